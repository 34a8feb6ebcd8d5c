//! Failures, exit codes and reference pages of the programs `outboard` and `outboard-lab`.
#![forbid(unsafe_code)]

mod reference;

use std::process::ExitCode;

use thiserror::Error;

pub use reference::{ReferencePage, check_reference};

/// A failure: one line for the user, and an exit code.
#[derive(Debug, Error)]
pub enum Failure {
    /// The options contradict each other, or one is invalid.
    #[error("{0}")]
    Usage(String),
    /// A file or directory named by the user cannot be used.
    #[error("{0}")]
    NoInput(String),
    /// A required resource is not available: a running instance, a free port.
    #[error("{0}")]
    Unavailable(String),
    /// The operating system refuses an operation that should work.
    #[error("{0}")]
    System(String),
    /// The user lacks the permission.
    #[error("{0}")]
    NoPermission(String),
    /// A transfer failed; the exit code is curl's.
    #[error("{1}")]
    Transfer(u8, String),
    /// Ended by this signal before the work was done.
    #[error("interrupted")]
    Interrupted(i32),
}

impl Failure {
    /// Returns the exit code: 2 for usage errors as in clap, 128 plus the signal as in shells, the
    /// given one of a transfer, otherwise one of `sysexits.h`.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code())
    }

    /// Returns the exit code as a number, for reports.
    #[must_use]
    pub fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::NoInput(_) => 66,
            Self::Unavailable(_) => 69,
            Self::System(_) => 71,
            Self::NoPermission(_) => 77,
            Self::Transfer(code, _) => *code,
            Self::Interrupted(signal) => 128 | u8::try_from(*signal).unwrap_or(0),
        }
    }
}

/// Returns a number and a noun in singular or plural: "1 backend", "2 backends".
#[must_use]
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Prints the failure, if any, and returns the exit code of a program.
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
