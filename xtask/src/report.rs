//! Findings of a check: errors, which fail it, and warnings, which do not.
//!
//! Every check returns one [`CheckReport`]; only `ci` prints.

use std::fmt;

/// A problem and its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// File, relative to the repository's root.
    pub(crate) path: String,
    /// Line, counted from 1; zero for the whole file.
    pub(crate) line: usize,
    /// The problem, and how to solve it.
    pub(crate) message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.message),
            line => write!(f, "{}:{line}: {}", self.path, self.message),
        }
    }
}

/// Outcome of one check.
#[derive(Debug, Default)]
pub(crate) struct CheckReport {
    /// Findings that fail the check.
    pub(crate) errors: Vec<Finding>,
    /// Findings that do not.
    pub(crate) warnings: Vec<Finding>,
    /// Amount checked, for the summary line.
    pub(crate) summary: String,
}

impl CheckReport {
    /// Adds an error.
    pub(crate) fn error(&mut self, path: &str, line: usize, message: impl Into<String>) {
        self.errors.push(Finding { path: path.to_owned(), line, message: message.into() });
    }

    /// Adds a warning.
    pub(crate) fn warning(&mut self, path: &str, line: usize, message: impl Into<String>) {
        self.warnings.push(Finding { path: path.to_owned(), line, message: message.into() });
    }
}
