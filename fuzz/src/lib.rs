//! Fuzzing: what is done with bytes that nobody has chosen.
//!
//! Each target is a function of bytes, which panics where something is wrong. `make fuzz` runs
//! them under libFuzzer (`src/bin`), which looks for bytes that lead to code that no others have
//! led to; `cargo test` runs them over what was found before (`corpus`), and so does a target's
//! program with files for arguments.
//!
//! [`formats`]: readers of formats. [`transport`]: PDUs of NVMe over TCP from any peer, with a
//! device and without. [`target`]: the whole target. Nothing here reads a clock.
#![forbid(unsafe_code)]

pub mod formats;
mod input;
mod net;
mod script;
pub mod target;
pub mod transport;

/// A target by name, for programs that replay files.
#[must_use]
pub fn by_name(name: &str) -> Option<fn(&[u8])> {
    match name {
        "formats" => Some(formats::run),
        "transport" => Some(transport::run),
        "target" => Some(target::run),
        _ => None,
    }
}

/// Runs a target over the files that are named on the command line.
///
/// # Errors
/// A file that cannot be read.
pub fn replay(target: fn(&[u8])) -> std::io::Result<()> {
    std::env::args_os().skip(1).try_for_each(|path| {
        target(&std::fs::read(path)?);
        Ok(())
    })
}
