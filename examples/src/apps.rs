//! Applications that the examples share: a server that echoes, and a client that checks the echo.

use base::Instant;
use bytes::Bytes;
use host::{Application, Host, ListenConfig, Notice, SocketId};
use wire::Endpoint;

/// Echoes received bytes on port 7.
#[derive(Debug, Default)]
pub struct EchoServer {
    /// Bytes echoed so far.
    pub bytes: u64,
}

impl EchoServer {
    /// Starts to listen.
    ///
    /// # Panics
    /// If port 7 is in use.
    #[must_use]
    pub fn listen(host: &mut Host) -> Self {
        let config = ListenConfig { addr: None, port: 7, backlog: 16 };
        host.listen(config).expect("port 7 is free");
        Self::default()
    }
}

impl Application for EchoServer {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        let (Notice::Accepted(_, socket) | Notice::Socket(socket)) = notice else { return };
        // As much as the send buffer takes; another notice follows when it has room again.
        while let received @ 1.. = host.peek(socket).len() {
            let bytes = Bytes::copy_from_slice(host.peek(socket));
            let sent = host.send(now, socket, bytes).unwrap_or(0);
            host.consume(socket, sent);
            self.bytes += sent as u64;
            if sent < received {
                break;
            }
        }
        let ready = host.readiness(socket);
        if ready.error.is_some() || (ready.peer_closed && host.peek(socket).is_empty()) {
            host.close(now, socket);
        }
    }
}

/// Sends bytes to an echo server, and checks that they come back.
#[derive(Debug)]
pub struct EchoClient {
    /// The connection.
    pub socket: SocketId,
    data: Bytes,
    sent: usize,
    /// Bytes that came back so far.
    pub received: usize,
}

impl EchoClient {
    /// Connects to port 7 of a server, to send `data`.
    ///
    /// # Panics
    /// If no connection can be opened.
    #[must_use]
    pub fn connect(host: &mut Host, server: [u8; 4], data: Bytes) -> Self {
        let remote = Endpoint { addr: server.into(), port: 7 };
        let socket = host.connect(Instant::ZERO, remote).expect("a connection");
        Self { socket, data, sent: 0, received: 0 }
    }

    /// Returns whether all bytes came back.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.received == self.data.len()
    }
}

impl Application for EchoClient {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        if !matches!(notice, Notice::Socket(socket) if socket == self.socket) {
            return;
        }
        if host.readiness(self.socket).writable && self.sent < self.data.len() {
            // The bytes are shared, not copied.
            self.sent += host.send(now, self.socket, self.data.slice(self.sent..)).unwrap_or(0);
        }
        while let received @ 1.. = host.peek(self.socket).len() {
            let expected = &self.data[self.received..][..received];
            assert!(host.peek(self.socket) == expected, "a byte differs");
            host.consume(self.socket, received);
            self.received += received;
        }
        if self.is_done() {
            host.close(now, self.socket);
        }
    }
}
