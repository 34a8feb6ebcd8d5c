//! HTTP client for accounted benchmarks: a number of connections, each of which downloads one file
//! after another.
//!
//! It checks the length of each body and samples its bytes; whole contents are checked by the tests
//! and the simulator.

use std::collections::BTreeMap;

use base::{Instant, Prng};
use bytes::Bytes;
use host::{Application, Host, Notice, SocketError, SocketId, TlsClient};
use wire::Endpoint;

use super::cycle_accounting::BenchApp;
use super::testbed::Files;

/// Connections in the handshake at one time.
const OPENING_MAX: u32 = 64;

#[derive(Debug, Default)]
struct Download {
    /// Bytes of the present body; `u64::MAX` until the connection is established.
    file: u32,
    /// Bytes of the response's header section so far.
    head: Vec<u8>,
    /// Body bytes since [`DownloadClient::reset_bytes_per_connection`].
    bytes_since_reset: u64,
    body_received: u64,
    responses: u64,
}

/// Order in which a client requests files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileOrder {
    Random,
    /// One after the other, so that a cache that is smaller than all files never has the next one.
    InTurn,
}

pub(crate) struct DownloadClient {
    server: Endpoint,
    tls: Option<TlsClient>,
    files: Files,
    order: FileOrder,
    next_file: u32,
    connections: u32,
    downloads: BTreeMap<SocketId, Download>,
    /// Connections that have been established.
    established: u32,
    /// Connections that have had two responses.
    warm_connections: u32,
    prng: Prng,
    /// Complete responses received.
    pub(crate) responses: u64,
    /// Body bytes received.
    pub(crate) body_bytes: u64,
    /// Errors; the first one ends the run.
    errors: Vec<String>,
    /// True if no further requests are sent.
    pub(crate) draining: bool,
}

impl DownloadClient {
    pub(crate) fn new(server: Endpoint, files: Files, connections: u32) -> Self {
        Self {
            server,
            tls: None,
            files,
            order: FileOrder::Random,
            next_file: 0,
            connections,
            downloads: BTreeMap::new(),
            established: 0,
            warm_connections: 0,
            prng: Prng::new(7),
            responses: 0,
            body_bytes: 0,
            errors: Vec::new(),
            draining: false,
        }
    }

    /// Makes the client use TLS, if there is a configuration, and request files in this order.
    pub(crate) fn configured(self, tls: Option<TlsClient>, order: FileOrder) -> Self {
        Self { tls, order, ..self }
    }

    /// Returns whether a socket is one of this client.
    pub(crate) fn has(&self, socket: SocketId) -> bool {
        self.downloads.contains_key(&socket)
    }

    /// Opens the next connection; after the last one, all connections send their first request.
    fn established(&mut self, now: Instant, host: &mut Host, socket: SocketId) {
        if let Some(download) = self.downloads.get_mut(&socket) {
            download.body_received = 0;
        }
        self.established += 1;
        if self.downloads.len() < self.connections as usize {
            self.open(now, host, 1);
        } else if self.established == self.connections {
            let all: Vec<_> = self.downloads.keys().copied().collect();
            all.into_iter().for_each(|socket| self.request(now, host, socket));
        }
    }

    fn open(&mut self, now: Instant, host: &mut Host, count: u32) {
        for _ in 0..count {
            let connected = match &self.tls {
                Some(tls) => host.connect_tls(now, self.server, tls),
                None => host.connect(now, self.server),
            };
            match connected {
                Ok(socket) => {
                    self.downloads
                        .insert(socket, Download { body_received: u64::MAX, ..<_>::default() });
                }
                Err(e) => self.errors.push(e.to_string()),
            }
        }
    }

    /// Returns the number of connections that are established.
    pub(crate) fn established_count(&self, host: &Host) -> usize {
        self.downloads.keys().filter(|&&s| host.readiness(s).writable).count()
    }

    /// Returns whether every connection has had two responses.
    pub(crate) const fn is_warm(&self) -> bool {
        self.warm_connections == self.connections
    }

    /// Restarts the count of body bytes per connection.
    pub(crate) fn reset_bytes_per_connection(&mut self) {
        self.downloads.values_mut().for_each(|d| d.bytes_since_reset = 0);
    }

    /// Returns the body bytes of each connection, for Jain's fairness index.
    pub(crate) fn bytes_per_connection(&self) -> Vec<f64> {
        self.downloads.values().map(|d| d.bytes_since_reset as f64).collect()
    }

    fn request(&mut self, now: Instant, host: &mut Host, socket: SocketId) {
        let Some(download) = self.downloads.get_mut(&socket) else { return };
        download.body_received = 0;
        download.head.clear();
        if self.draining {
            return;
        }
        download.file = match self.order {
            FileOrder::Random => {
                u32::try_from(self.prng.below(self.files.count.into())).unwrap_or(0)
            }
            FileOrder::InTurn => {
                self.next_file = (self.next_file + 1) % self.files.count;
                self.next_file
            }
        };
        let text = format!("GET /{} HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n", download.file);
        if let Err(e) = host.send(now, socket, Bytes::from(text)) {
            self.errors.push(e.to_string());
        }
    }

    /// Takes bytes from the receive queue, up to the end of one response. Returns the number used.
    fn take_response(&mut self, host: &Host, socket: SocketId) -> usize {
        let bytes = host.peek(socket);
        let Some(download) = self.downloads.get_mut(&socket) else { return bytes.len() };
        let mut used = 0;
        if download.body_received == 0 && !download.head.ends_with(b"\r\n\r\n") {
            while used < bytes.len() && !download.head.ends_with(b"\r\n\r\n") {
                download.head.push(bytes[used]);
                used += 1;
            }
            if download.head.ends_with(b"\r\n\r\n") && !download.head.starts_with(b"HTTP/1.1 200") {
                self.errors.push(String::from_utf8_lossy(&download.head).into_owned());
            }
        }
        let left = self.files.size - download.body_received;
        let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len() - used);
        if here > 0 {
            // One byte of each piece is compared.
            let at = usize::try_from(self.prng.below(here as u64)).unwrap_or(0);
            let expected = (self.files.byte)(download.file, download.body_received + at as u64);
            if bytes[used + at] != expected {
                self.errors.push(format!("wrong byte in file {}", download.file));
            }
        }
        download.body_received += here as u64;
        download.bytes_since_reset += here as u64;
        self.body_bytes += here as u64;
        used + here
    }
}

impl Application for DownloadClient {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        let Notice::Socket(socket) = notice else { return };
        let readiness = host.readiness(socket);
        if let Some(error) = readiness.error {
            if error != SocketError::Closed {
                self.errors.push(error.to_string());
            }
            return;
        }
        let fresh = self.downloads.get(&socket).is_some_and(|d| d.body_received == u64::MAX);
        if fresh && readiness.writable {
            self.established(now, host, socket);
        }
        while !host.peek(socket).is_empty() {
            let used = self.take_response(host, socket);
            host.consume(socket, used);
            let Some(download) = self.downloads.get_mut(&socket) else { return };
            if download.body_received == self.files.size {
                download.responses += 1;
                self.warm_connections += u32::from(download.responses == 2);
                self.responses += 1;
                self.request(now, host, socket);
            }
        }
    }
}

impl BenchApp for DownloadClient {
    /// Opens the first connections: a few at a time, since a SYN that is lost to a limit is
    /// repeated only after a second.
    fn start(&mut self, now: Instant, host: &mut Host) {
        self.open(now, host, self.connections.min(OPENING_MAX));
    }

    fn error(&self) -> Option<&str> {
        self.errors.first().map(String::as_str)
    }
}
