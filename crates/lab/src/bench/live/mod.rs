//! What live benchmarks share: programs as users run them, each in a network namespace, asked by
//! wrk, or by another client, in turns.
//!
//! [`super::serve_live`], [`super::proxy_live`] and [`super::quic_live`] say which programs, and
//! what is asked for.

pub(crate) mod comparison;
pub(crate) mod lab;
pub(crate) mod load;
pub(crate) mod machine;
pub(crate) mod tools;

use std::fmt::{self, Display};

/// What the client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Its name on the command line and in the report; the file's name too.
    pub(crate) name: &'static str,
    /// Bytes of the file.
    pub(crate) bytes: u64,
    /// Connections at one time.
    pub(crate) connections: u32,
    /// Whether each request has a connection of its own.
    pub(crate) close: bool,
    /// Over TLS.
    pub(crate) tls: bool,
    /// Requests at one time on a connection: more than one with HTTP/3 only.
    pub(crate) streams: u32,
}

impl Row {
    /// Over plain TCP, with keep-alive.
    pub(crate) const fn new(name: &'static str, bytes: u64, connections: u32) -> Self {
        Self { name, bytes, connections, close: false, tls: false, streams: 1 }
    }

    /// Over TLS.
    pub(crate) const fn over_tls(name: &'static str, bytes: u64, connections: u32) -> Self {
        Self { tls: true, ..Self::new(name, bytes, connections) }
    }
}

impl Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Returns the one with that name.
///
/// # Errors
/// A line with the names that there are.
pub(crate) fn named<T: Copy + Display>(all: &[T], name: &str) -> Result<T, String> {
    all.iter().copied().find(|one| one.to_string() == name).ok_or_else(|| {
        let names: Vec<String> = all.iter().map(T::to_string).collect();
        format!("`{name}` is not among {}", names.join(", "))
    })
}
