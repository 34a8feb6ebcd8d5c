//! The programs that the benchmark needs: whether they are there, and installing them with apt.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::Failure;

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
/// Tells dpkg whether to start the services it installs; exit code 101 says no.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Says what to do where we are not root.
pub(in crate::bench) fn check_root() -> Result<(), Failure> {
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
pub(in crate::bench) fn program(name: &str) -> Command {
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

/// Installs what is missing of what most benchmarks need.
pub(in crate::bench) fn install_missing() -> Result<(), Failure> {
    install(&PROGRAMS)
}

/// Installs those of the programs that are missing, which come with these packages.
pub(in crate::bench) fn install(programs: &[(&str, &'static str)]) -> Result<(), Failure> {
    let mut packages: Vec<&str> =
        programs.iter().filter(|(program, _)| !is_there(program)).map(|&(_, p)| p).collect();
    packages.dedup();
    if packages.is_empty() {
        return Ok(());
    }
    let list = packages.join(" ");
    if !is_there("apt-get") {
        return Err(Failure::Unavailable(format!("no apt-get here; please install: {list}")));
    }
    eprintln!("installing {list}");
    let made_policy = !Path::new(POLICY).exists() && write_policy().is_ok();
    // Package lists that cannot be refreshed may do all the same.
    let _ = apt(&["update"]);
    let result = apt(&[&["install", "-y", "--no-install-recommends"], &packages[..]].concat());
    if made_policy {
        let _ = std::fs::remove_file(POLICY);
    }
    if result && programs.iter().all(|(program, _)| is_there(program)) {
        return Ok(());
    }
    Err(Failure::Unavailable(format!(
        "apt-get install {list} failed: run it by hand to see why, then try again"
    )))
}

/// The nginx that we start is ours; the package's service is not wanted.
fn write_policy() -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(POLICY, "#!/bin/sh\nexit 101\n")?;
    std::fs::set_permissions(POLICY, std::fs::Permissions::from_mode(0o755))
}

fn apt(arguments: &[&str]) -> bool {
    let mut command = program("apt-get");
    command.arg("-qq").args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    // What it has to say is not part of the report.
    command.stdout(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Runs a program to its end; gives what it printed.
///
/// # Errors
/// Where it does not start or says that it failed, with its own words.
pub(in crate::bench) fn output(command: &mut Command) -> Result<String, Failure> {
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
