//! Running programs: where they are looked for, and what is said when one is not there.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Longer than any command takes that works.
const WATCHDOG: Duration = Duration::from_secs(120);

/// A command that finds what administrators find: `ip` is in `/usr/sbin`, which a user's `PATH` on
/// Debian leaves out.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(program);
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

/// Runs `command` to its end, with nothing to read; one that takes minutes is killed.
///
/// # Panics
/// Where it cannot be started.
pub fn run(command: &mut Command) -> Output {
    run_on(Stdio::null(), command)
}

/// As [`run`], with something to read.
pub(crate) fn run_on(input: impl Into<Stdio>, command: &mut Command) -> Output {
    command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
    match command.spawn() {
        Ok(child) => finish(child),
        Err(e) => panic!("cannot run {command:?}: {e}; `make setup` installs what tests need"),
    }
}

/// What a command printed that came to a good end.
///
/// # Panics
/// Where it did not; all that it said is in the message.
#[must_use]
#[track_caller]
pub fn good(output: &Output) -> String {
    assert!(output.status.success(), "{}: {}", output.status, said(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a command to a good end, as [`run`]; gives what it printed.
///
/// # Panics
/// Where it cannot be started, or fails.
#[track_caller]
pub fn printed(command: &mut Command) -> String {
    good(&run(command))
}

/// All that a command said: what it printed, and what it complained of.
#[must_use]
pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Waits for the end of a child; one that takes minutes is killed.
///
/// # Panics
/// Where it is none of ours.
#[must_use]
pub fn finish(child: Child) -> Output {
    let _watchdog = Watchdog::of(&child);
    child.wait_with_output().unwrap_or_else(|e| panic!("cannot wait for a child: {e}"))
}

/// Kills a child that takes minutes, unless it is dropped before.
#[derive(Debug)]
pub struct Watchdog(#[expect(dead_code, reason = "its end is what is waited for")] Sender<()>);

impl Watchdog {
    /// Watches a child.
    #[must_use]
    pub fn of(child: &Child) -> Self {
        let (pid, (dropped, watch)) = (child.id(), channel());
        std::thread::spawn(move || {
            if watch.recv_timeout(WATCHDOG) == Err(RecvTimeoutError::Timeout) {
                eprintln!("process {pid} is still there after {WATCHDOG:?}");
                signal("KILL", pid);
            }
        });
        Self(dropped)
    }
}

/// Sends signal `name` to the process `pid`.
///
/// # Panics
/// Where there is no such process: it ended when it should not have.
pub(crate) fn signal(name: &str, pid: u32) {
    let output = run(command("kill").args(["-s", name, &pid.to_string()]));
    assert!(
        output.status.success(),
        "cannot send SIG{name} to {pid}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Whether we run as root: the owner of our own entry under `/proc`.
pub(crate) fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}
