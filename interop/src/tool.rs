//! Running programs: where they are looked for, and what is said when one is not there.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Output};

/// A command that finds what administrators find: `ip` is in `/usr/sbin`, which a user's `PATH` on
/// Debian leaves out.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(program);
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

/// Runs `command` to its end.
///
/// # Panics
/// Where it cannot be started.
pub(crate) fn run(command: &mut Command) -> Output {
    match command.output() {
        Ok(output) => output,
        Err(e) => panic!("cannot run {command:?}: {e}; `make setup` installs what tests need"),
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
