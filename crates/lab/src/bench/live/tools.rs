//! Programs that live benchmarks need: checks that they are installed, and runs them.
//! `scripts/setup.sh bench` installs them.

use std::path::Path;
use std::process::{Command, Stdio};

use cli::Failure;

/// Programs that most benchmarks need, and the Debian packages that contain them.
const PROGRAMS: [(&str, &str); 7] = [
    ("nginx", "nginx-light"),
    ("wrk", "wrk"),
    ("ip", "iproute2"),
    ("nsenter", "util-linux"),
    ("setpriv", "util-linux"),
    ("taskset", "util-linux"),
    ("unshare", "util-linux"),
];
/// Folders of system programs that a user's PATH may lack.
const MORE_PATH: &str = "/usr/local/sbin:/usr/sbin:/sbin";

/// Fails with advice unless the effective user is root.
pub(crate) fn check_root() -> Result<(), Failure> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    // Fields: real, effective, saved, file system.
    let effective = status.lines().find_map(|l| l.strip_prefix("Uid:")?.split_whitespace().nth(1));
    if effective == Some("0") {
        return Ok(());
    }
    Err(Failure::NoPermission(
        "cannot create network namespaces: not root; run with sudo".to_owned(),
    ))
}

/// Returns a command; the program is searched for in the folders of system programs too.
pub(crate) fn program(name: &str) -> Command {
    let mut command = Command::new(name);
    command.env("PATH", path()).stdin(Stdio::null());
    command
}

fn path() -> String {
    format!("{}:{MORE_PATH}", std::env::var("PATH").unwrap_or_default())
}

fn is_there(name: &str) -> bool {
    path().split(':').any(|folder| !folder.is_empty() && Path::new(folder).join(name).is_file())
}

/// Checks that the programs which most benchmarks need are installed.
pub(crate) fn check_programs() -> Result<(), Failure> {
    check(&PROGRAMS)
}

/// Checks that programs are installed; each comes with its Debian package.
pub(crate) fn check(programs: &[(&str, &str)]) -> Result<(), Failure> {
    let missing = programs.iter().filter(|(program, _)| !is_there(program));
    let mut packages: Vec<&str> = missing.map(|&(_, package)| package).collect();
    packages.dedup();
    if packages.is_empty() {
        return Ok(());
    }
    Err(Failure::Unavailable(format!(
        "required packages are missing: {}; run `scripts/setup.sh bench`",
        packages.join(", ")
    )))
}

/// Runs a program to its end and returns its standard output.
///
/// # Errors
/// Reports a program that does not start, or the first line of its standard error if it fails.
pub(crate) fn output(command: &mut Command) -> Result<String, Failure> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output =
        command.output().map_err(|e| Failure::System(format!("cannot run {name}: {e}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().next().unwrap_or("no error message");
    let command: Vec<_> = command.get_args().map(|a| a.to_string_lossy()).collect();
    Err(Failure::System(format!("{name} {} failed: {line}", command.join(" "))))
}
