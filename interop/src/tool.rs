//! Running other programs: search path, time limits, and messages if one is missing.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// Time limit that no working command reaches.
const WATCHDOG: Duration = Duration::from_secs(120);

/// Returns a command that is also searched for in the administrator's folders: on Debian, `ip` is
/// in `/usr/sbin`, which a user's `PATH` lacks.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(program);
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

/// Runs `command` to its end without input. It is killed after two minutes.
///
/// # Panics
/// If it cannot be started.
pub fn run(command: &mut Command) -> Output {
    run_on(Stdio::null(), command)
}

/// Like [`run`], with input.
pub(crate) fn run_on(input: impl Into<Stdio>, command: &mut Command) -> Output {
    command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
    match command.spawn() {
        Ok(child) => wait_with_time_limit(child),
        Err(e) => panic!("cannot run {command:?}: {e}; `make setup` installs what tests need"),
    }
}

/// Returns the standard output of a command that succeeded.
///
/// # Panics
/// If it failed; the message contains its output.
#[must_use]
#[track_caller]
pub fn expect_success(output: &Output) -> String {
    assert!(output.status.success(), "{}: {}", output.status, output_text(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a command like [`run`], and returns its standard output.
///
/// # Panics
/// If it cannot be started, or fails.
#[track_caller]
pub fn run_for_output(command: &mut Command) -> String {
    expect_success(&run(command))
}

/// Returns standard output and standard error of a command, one after the other.
#[must_use]
pub fn output_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Waits for the end of a child. It is killed after two minutes.
///
/// # Panics
/// If waiting fails.
#[must_use]
pub fn wait_with_time_limit(child: Child) -> Output {
    let _watchdog = Watchdog::of(&child);
    child.wait_with_output().unwrap_or_else(|e| panic!("cannot wait for a child: {e}"))
}

/// Kills a child after two minutes, unless this is dropped earlier.
#[derive(Debug)]
pub struct Watchdog(#[expect(dead_code, reason = "its end is what is waited for")] Sender<()>);

impl Watchdog {
    /// Starts watching a child.
    #[must_use]
    pub fn of(child: &Child) -> Self {
        let (pid, (dropped, watch)) = (child.id(), channel());
        thread::spawn(move || {
            if watch.recv_timeout(WATCHDOG) == Err(RecvTimeoutError::Timeout) {
                eprintln!("process {pid} is still there after {WATCHDOG:?}");
                signal("KILL", pid);
            }
        });
        Self(dropped)
    }
}

/// Sends the signal `name` to the process `pid`.
///
/// # Panics
/// If there is no such process.
pub(crate) fn signal(name: &str, pid: u32) {
    let output = run(command("kill").args(["-s", name, &pid.to_string()]));
    assert!(
        output.status.success(),
        "cannot send SIG{name} to {pid}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Returns whether we run as root, the owner of our entry in `/proc`.
pub(crate) fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

/// Calls each of `clients` again and again in a thread of its own while `work` runs. Returns the
/// number of calls, and the result of `work`.
///
/// # Panics
/// If `work` or a client does.
pub fn with_clients<R>(clients: &[&(dyn Fn() + Sync)], work: impl FnOnce() -> R) -> (u32, R) {
    /// Ends the clients even if `work` panics.
    struct EndOnDrop<'a>(&'a AtomicBool);

    impl Drop for EndOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    let (is_over, calls) = (AtomicBool::new(false), AtomicU32::new(0));
    let result = thread::scope(|scope| {
        for client in clients {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    client();
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _end = EndOnDrop(&is_over);
        work()
    });
    (calls.into_inner(), result)
}

/// Returns the numbers of bytes that an interface has received and sent. `ip` is a command of ip(8)
/// in its namespace.
///
/// # Panics
/// If there is no such interface.
#[must_use]
pub fn interface_bytes(mut ip: Command, interface: &str) -> [u64; 2] {
    let shown = run_for_output(ip.args(["-s", "-j", "link", "show", interface]));
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    ["rx", "tx"].map(|direction| {
        shown[0]["stats64"][direction]["bytes"].as_u64().expect("statistics of the interface")
    })
}
