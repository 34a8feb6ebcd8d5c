//! What the programs `outboard` and `outboard-lab` have in common: why they end without success,
//! and the exit code for it.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use thiserror::Error;

/// A failure: one line, and an exit code of `sysexits.h`.
#[derive(Debug, Error)]
pub enum Failure {
    /// The command line contradicts itself.
    #[error("{0}")]
    Usage(String),
    /// A file or folder that the user named cannot be used.
    #[error("{0}")]
    NoInput(String),
    /// Something that has to be there is not: a running instance, a free port.
    #[error("{0}")]
    Unavailable(String),
    /// The operating system refuses something that it should not.
    #[error("{0}")]
    System(String),
    /// The user is not allowed to.
    #[error("{0}")]
    NoPermission(String),
    /// A signal came before the end.
    #[error("interrupted")]
    Interrupted(i32),
}

impl Failure {
    /// The exit code: EX_USAGE is clap's 2, a signal's what shells make of it, the others are those
    /// of `sysexits.h`.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Usage(_) => 2,
            Self::NoInput(_) => 66,
            Self::Unavailable(_) => 69,
            Self::System(_) => 71,
            Self::NoPermission(_) => 77,
            Self::Interrupted(signal) => 128 | u8::try_from(*signal).unwrap_or(0),
        })
    }
}

/// Returns the exit code of a program, and prints its failure.
#[must_use]
pub fn exit_code(program: &str, result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{program}: {failure}");
            failure.exit_code()
        }
    }
}
