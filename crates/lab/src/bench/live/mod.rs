//! Common parts of the live benchmarks: programs as users run them, each in a network namespace,
//! take turns under load from wrk or another client.
//!
//! [`super::serve_live`], [`super::proxy_live`], [`super::quic_live`] and [`super::quic_relay`]
//! define the programs and the requests.

pub(crate) mod comparison;
pub(crate) mod environment;
pub(crate) mod load;
pub(crate) mod machine;
pub(crate) mod outboard;
pub(crate) mod tools;

use std::fmt::{self, Display};

/// A client's requests: which file, and over which connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoadRow {
    /// Name on the command line and in the report, and the name of the file, or its beginning.
    pub(crate) name: &'static str,
    /// Size of the file in bytes, or of the content of an upload; of the smallest one of a mix.
    pub(crate) bytes: u64,
    /// Sizes of files that are requested at random; empty if there is one file.
    pub(crate) mix: &'static [u64],
    /// Concurrent connections.
    pub(crate) connections: u32,
    /// True if each request has a connection of its own.
    pub(crate) close: bool,
    /// Use TLS.
    pub(crate) tls: bool,
    /// The client sends the file (PUT) instead of fetching it.
    pub(crate) upload: bool,
    /// Concurrent requests on a connection; more than one with HTTP/3 only.
    pub(crate) streams: u32,
}

impl LoadRow {
    /// Returns a row over plain TCP with keep-alive.
    pub(crate) const fn new(name: &'static str, bytes: u64, connections: u32) -> Self {
        Self {
            name,
            bytes,
            mix: &[],
            connections,
            close: false,
            tls: false,
            upload: false,
            streams: 1,
        }
    }

    /// Returns a row over TLS.
    pub(crate) const fn over_tls(name: &'static str, bytes: u64, connections: u32) -> Self {
        Self { tls: true, ..Self::new(name, bytes, connections) }
    }

    /// Returns the mean size of the files in bytes.
    pub(crate) fn mean_bytes(&self) -> u64 {
        let files = self.files();
        files.iter().map(|(_, size)| size).sum::<u64>() / files.len() as u64
    }

    /// Returns the names of the files, with their sizes; there is at least one.
    pub(crate) fn files(&self) -> Vec<(String, u64)> {
        if self.mix.is_empty() {
            return vec![(self.name.to_owned(), self.bytes)];
        }
        let named = |(number, &size)| (format!("{}-{number}", self.name), size);
        self.mix.iter().enumerate().map(named).collect()
    }

    /// Returns the bytes of a response's content at least.
    pub(crate) const fn response_bytes(&self) -> u64 {
        if self.upload { 0 } else { self.bytes }
    }
}

impl Display for LoadRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Returns the item with this name.
///
/// # Errors
/// Returns a message that lists the valid names.
pub(crate) fn named<T: Copy + Display>(all: &[T], name: &str) -> Result<T, String> {
    all.iter().copied().find(|one| one.to_string() == name).ok_or_else(|| {
        let names: Vec<String> = all.iter().map(T::to_string).collect();
        format!("unknown name `{name}`; expected one of {}", names.join(", "))
    })
}
