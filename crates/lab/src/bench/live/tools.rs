//! The programs that live benchmarks need: whether they are there, and running them.
//! `scripts/setup.sh bench` installs them.

use std::path::Path;
use std::process::{Command, Stdio};

use cli::Failure;

/// A program and the Debian package that has it.
const PROGRAMS: [(&str, &str); 8] = [
    ("haproxy", "haproxy"),
    ("nginx", "nginx-light"),
    ("wrk", "wrk"),
    ("ip", "iproute2"),
    ("nsenter", "util-linux"),
    ("setpriv", "util-linux"),
    ("taskset", "util-linux"),
    ("unshare", "util-linux"),
];
/// Where system programs are that a user's PATH may leave out.
const MORE_PATH: &str = "/usr/local/sbin:/usr/sbin:/sbin";

/// Says what to do where we are not root.
pub(crate) fn check_root() -> Result<(), Failure> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    // Real, effective, saved, file system.
    let effective = status.lines().find_map(|l| l.strip_prefix("Uid:")?.split_whitespace().nth(1));
    if effective == Some("0") {
        return Ok(());
    }
    Err(Failure::NoPermission(
        "the benchmark sets up network namespaces: run it as root, as with sudo".to_owned(),
    ))
}

/// A program, looked for where system programs are too.
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

/// Checks that what most benchmarks need is there.
pub(crate) fn check_programs() -> Result<(), Failure> {
    check(&PROGRAMS)
}

/// Checks that programs are there, each of which comes with that Debian package.
pub(crate) fn check(programs: &[(&str, &str)]) -> Result<(), Failure> {
    let missing = programs.iter().filter(|(program, _)| !is_there(program));
    let mut packages: Vec<&str> = missing.map(|&(_, package)| package).collect();
    packages.dedup();
    if packages.is_empty() {
        return Ok(());
    }
    Err(Failure::Unavailable(format!(
        "the benchmark needs {}: `scripts/setup.sh bench` installs it",
        packages.join(", ")
    )))
}

/// Runs a program to its end; gives what it printed.
///
/// # Errors
/// Where it does not start or says that it failed, with its own words.
pub(crate) fn output(command: &mut Command) -> Result<String, Failure> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output =
        command.output().map_err(|e| Failure::System(format!("cannot run {name}: {e}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().next().unwrap_or("it does not say why");
    let command: Vec<_> = command.get_args().map(|a| a.to_string_lossy()).collect();
    Err(Failure::System(format!("{name} {} failed: {line}", command.join(" "))))
}
