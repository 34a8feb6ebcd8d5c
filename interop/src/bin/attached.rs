//! Runs `outboard` with arguments, attached to a device in another process over shared memory.
//!
//!     attached OUTBOARD VERB [OPTION]...
//!
//! Starts `outboard nic` with the options of the device, waits until it is ready, and executes the
//! program in its own place, so that the process number is that of the program. The device gets
//! SIGTERM when the program ends. If the device fails, its message and its exit code are those of
//! this program, because a program with a device of its own would fail in the same way. A program
//! that cannot attach is executed as it is.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Error};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use interop::{SplitArguments, split_arguments};

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let Some(program) = args.next() else {
        eprintln!("usage: attached OUTBOARD VERB [OPTION]...");
        return ExitCode::from(2);
    };
    let args: Vec<OsString> = args.collect();
    let executed = match split_arguments(&args) {
        Some(split) => execute_attached(&program, split),
        None => Err(Command::new(program).args(args).exec()),
    };
    executed.unwrap_or_else(|error| {
        eprintln!("attached: {error}");
        ExitCode::FAILURE
    })
}

/// Starts the device, and executes the program. Returns only the exit code of a device that fails.
fn execute_attached(program: &OsStr, split: SplitArguments) -> Result<ExitCode, Error> {
    let own = std::process::id();
    let path = |name: &str| std::env::temp_dir().join(format!("outboard-{name}-{own}"));
    let (listen, control, log) = (path("nic"), path("control"), path("log"));
    let mut device = Command::new("setpriv");
    device.args(["--pdeathsig", "TERM", "--", "flock", "--no-fork", "--timeout", "10"]);
    device.arg(lock_of_link(&split.device)?).arg(program).args(split.device);
    device.arg("--listen").arg(&listen).arg("--control").arg(control);
    device.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&log)?);
    let mut device = device.spawn()?;
    let mut ready = String::new();
    let stdout = device.stdout.take().expect("it is a pipe");
    BufReader::new(stdout).read_line(&mut ready)?;
    let said = std::fs::read_to_string(&log)?;
    std::fs::remove_file(&log)?;
    if ready.is_empty() {
        if said.is_empty() {
            eprintln!("attached: an earlier device still has the link");
        }
        eprint!("{said}");
        let code = device.wait()?.code().and_then(|code| u8::try_from(code).ok());
        return Ok(code.map_or(ExitCode::FAILURE, ExitCode::from));
    }
    let mut nic = OsString::from("unix:");
    nic.push(listen);
    Err(Command::new(program).args(split.program).arg("--nic").arg(nic).exec())
}

/// Returns the lock file of the device's link in this namespace: the device of an earlier program
/// may still end, and two do not share a link.
fn lock_of_link(device: &[OsString]) -> Result<PathBuf, Error> {
    let netns = std::fs::read_link(Path::new("/proc/self/ns/net"))?;
    let link = device.iter().skip_while(|arg| *arg != "--link").nth(1).cloned().unwrap_or_default();
    let name = format!("outboard-{}-{}.lock", netns.display(), link.to_string_lossy());
    Ok(std::env::temp_dir().join(name.replace(['/', ':', '[', ']'], "-")))
}
