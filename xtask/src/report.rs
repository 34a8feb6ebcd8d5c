//! What a check found: errors that fail it and warnings that do not.
//!
//! Every check returns one [`Report`]; only `ci` prints.

use std::fmt;

/// One thing that is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// File, relative to the repository's root.
    pub(crate) path: String,
    /// Line, counted from 1; zero where the whole file is meant.
    pub(crate) line: usize,
    /// What is wrong and what to do instead.
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

/// The outcome of one check.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// What fails the check.
    pub(crate) errors: Vec<Finding>,
    /// What only deserves a look.
    pub(crate) warnings: Vec<Finding>,
    /// What was looked at, for the summary line.
    pub(crate) looked_at: String,
}

impl Report {
    /// Adds an error.
    pub(crate) fn error(&mut self, path: &str, line: usize, message: impl Into<String>) {
        self.errors.push(Finding { path: path.to_owned(), line, message: message.into() });
    }

    /// Adds a warning.
    pub(crate) fn warning(&mut self, path: &str, line: usize, message: impl Into<String>) {
        self.warnings.push(Finding { path: path.to_owned(), line, message: message.into() });
    }
}
