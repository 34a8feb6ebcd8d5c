//! Streams of messages for accounted benchmarks: one end sends as fast as it may, and the other
//! reads.
//!
//! Each connection sends messages of one size from memory or from a file; the other end compares
//! one byte of every piece that it reads. With a cipher suite, both ends use TLS with fixed keys
//! and without a handshake: only records are measured.

use std::collections::BTreeMap;
use std::sync::Arc;

use abi::crypto::Suite;
use base::{Instant, Prng};
use bytes::Bytes;
use host::{
    Application, FileId, Host, Notice, SocketError, SocketId, TlsDirection, TlsKeys, TlsVersion,
};
use wire::Endpoint;

use super::cycle_accounting::BenchApp;

/// Bytes of the buffer from which messages are cut.
const SOURCE_BYTES: usize = 1 << 20;
/// Target for the bytes queued by all connections together; each connection queues between two
/// messages and 2 MiB.
const QUEUED_BYTES: u64 = 256 << 20;

/// Name of the file that a sender sends.
pub(crate) const CONTENT: &str = "content";

/// Source of the sender's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamSource {
    /// Memory that is sent without a copy.
    Memory,
    /// Memory that is copied first, as `send` to a kernel does.
    Copied,
    /// A file that the device reads.
    File,
}

/// Parameters that both ends of a run share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamParams {
    pub(crate) connections: u32,
    pub(crate) message_bytes: usize,
    pub(crate) source: StreamSource,
    /// Nothing is sent before all connections are established. One whose SYN is lost again and
    /// again is seconds behind: meanwhile, the others would send gigabytes.
    pub(crate) begin_together: bool,
    /// TLS version and cipher suite; `None` for plain TCP.
    pub(crate) suite: Option<(TlsVersion, Suite)>,
}

/// The application of either end.
pub(crate) struct StreamApp {
    params: StreamParams,
    /// Address to connect to; `None` at the listening end.
    server: Option<Endpoint>,
    sends: bool,
    content: Bytes,
    file: Option<FileId>,
    /// Bytes that each connection has written or read.
    done: BTreeMap<SocketId, u64>,
    established: u32,
    /// Connections that have read a byte.
    begun: u32,
    prng: Prng,
    /// Bytes read by all connections.
    pub(crate) bytes: u64,
    /// Errors; the first one ends the run.
    errors: Vec<String>,
}

/// Returns the offset of the nth connection's server port from the first one: the client has a
/// limited number of local ports for each.
pub(crate) fn server_port_offset(nth: u32) -> u16 {
    u16::try_from(nth / 16_000).unwrap_or(0)
}

/// Returns the byte at a position of the content, in which no two pages are equal.
pub(crate) fn byte_at(position: u64) -> u8 {
    let at = position % SOURCE_BYTES as u64;
    #[expect(clippy::cast_possible_truncation, reason = "a byte is wanted")]
    let byte = (at ^ (at >> 8) ^ (at >> 16)) as u8;
    byte
}

/// Returns the content of the file.
pub(crate) fn content() -> Vec<u8> {
    (0..SOURCE_BYTES as u64).map(byte_at).collect()
}

impl StreamApp {
    pub(crate) fn new(agreed: StreamParams, server: Option<Endpoint>, sends: bool) -> Self {
        Self {
            params: agreed,
            server,
            sends,
            content: Bytes::from(content()),
            file: None,
            done: BTreeMap::new(),
            established: 0,
            begun: 0,
            prng: Prng::new(5),
            bytes: 0,
            errors: Vec::new(),
        }
    }

    /// Returns whether every connection is established.
    pub(crate) const fn is_up(&self) -> bool {
        self.established == self.params.connections
    }

    /// Returns whether every connection has read a byte.
    pub(crate) const fn has_begun(&self) -> bool {
        self.begun == self.params.connections
    }

    /// Handles an established connection: attaches TLS, if it is used.
    fn establish(&mut self, now: Instant, host: &mut Host, socket: SocketId) {
        self.attach_keys(now, host, socket);
        self.count_established(now, host);
    }

    fn attach_keys(&mut self, now: Instant, host: &mut Host, socket: SocketId) {
        let Some((version, suite)) = self.params.suite else { return };
        // One key for all streams of a measurement: nothing here is secret.
        let direction = |which: u8| TlsDirection::new(&[which; 32], [which; 12], 0);
        let (tx, rx) = if self.server.is_some() { (1, 2) } else { (2, 1) };
        let (tx, rx) = (direction(tx), direction(rx));
        let keys = TlsKeys { version, suite, tx, rx, crypto: Arc::new(crypto::Provider) };
        if let Err(e) = host.attach_tls(now, socket, &keys) {
            self.errors.push(e.to_string());
        }
    }

    /// Counts an established connection. With the last one, all begin.
    fn count_established(&mut self, now: Instant, host: &mut Host) {
        self.established += 1;
        if self.is_up() {
            self.work_all(now, host);
        }
    }

    fn work_all(&mut self, now: Instant, host: &mut Host) {
        let sockets: Vec<SocketId> = self.done.keys().copied().collect();
        sockets.into_iter().for_each(|socket| self.work(now, host, socket));
    }

    fn work(&mut self, now: Instant, host: &mut Host, socket: SocketId) {
        if self.sends {
            self.write(now, host, socket);
        } else {
            self.read(host, socket);
        }
    }

    fn write(&mut self, now: Instant, host: &mut Host, socket: SocketId) {
        if self.params.begin_together && !self.is_up() {
            return;
        }
        let Some(done) = self.done.get_mut(&socket) else { return };
        let message = self.params.message_bytes;
        let share = QUEUED_BYTES / u64::from(self.params.connections);
        let queued = share.clamp(2 * message as u64, 2 << 20);
        while host.send_queue(socket) < queued && host.readiness(socket).writable {
            // To the end of the present message, of which the socket may have accepted only a part.
            #[expect(clippy::cast_possible_truncation, reason = "less than the source")]
            let at = *done as usize % SOURCE_BYTES;
            let end = (at / message + 1) * message;
            let taken = match self.params.source {
                StreamSource::File => {
                    let Some(file) = self.file.filter(|&f| host.offload_fstat(f).is_some()) else {
                        return;
                    };
                    let len = end - at;
                    host.offload_write(now, socket, file, at as u64, len as u64).map(|()| len)
                }
                StreamSource::Memory => host.send(now, socket, self.content.slice(at..end)),
                StreamSource::Copied => {
                    host.send(now, socket, Bytes::copy_from_slice(&self.content[at..end]))
                }
            };
            match taken {
                Ok(0) => return,
                Ok(taken) => *done += taken as u64,
                Err(e) => return self.errors.push(e.to_string()),
            }
        }
    }

    fn read(&mut self, host: &mut Host, socket: SocketId) {
        let Some(done) = self.done.get_mut(&socket) else { return };
        loop {
            let bytes = host.peek(socket);
            let len = bytes.len();
            if len == 0 {
                return;
            }
            let at = self.prng.below(len as u64);
            #[expect(clippy::cast_possible_truncation, reason = "less than the piece")]
            let seen = bytes[at as usize];
            if seen != byte_at(*done + at) {
                self.errors.push(format!("wrong byte at {}", *done + at));
                return;
            }
            self.begun += u32::from(*done == 0);
            *done += len as u64;
            self.bytes += len as u64;
            host.consume(socket, len);
        }
    }
}

impl Application for StreamApp {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        match notice {
            Notice::Accepted(_, socket) => {
                self.done.insert(socket, 0);
                self.establish(now, host, socket);
                self.work(now, host, socket);
            }
            Notice::Socket(socket) => {
                if let Some(error) = host.readiness(socket).error {
                    if error != SocketError::Closed {
                        self.errors.push(error.to_string());
                    }
                    return;
                }
                let fresh =
                    self.server.is_some() && host.info(socket).is_some_and(|i| i.tls.is_none());
                let plain = self.params.suite.is_none();
                if fresh && !plain && host.readiness(socket).writable {
                    self.establish(now, host, socket);
                } else if plain
                    && self.server.is_some()
                    && self.established < self.params.connections
                {
                    self.count_established(now, host);
                }
                self.work(now, host, socket);
            }
            _ => self.work_all(now, host),
        }
    }
}

impl BenchApp for StreamApp {
    fn start(&mut self, now: Instant, host: &mut Host) {
        if self.sends && self.params.source == StreamSource::File {
            self.file = host.offload_open(CONTENT);
        }
        let Some(server) = self.server else { return };
        for nth in 0..self.params.connections {
            let port = server.port + server_port_offset(nth);
            match host.connect(now, Endpoint { port, ..server }) {
                Ok(socket) => {
                    self.done.insert(socket, 0);
                }
                Err(e) => self.errors.push(e.to_string()),
            }
        }
    }

    fn error(&self) -> Option<&str> {
        self.errors.first().map(String::as_str)
    }
}
