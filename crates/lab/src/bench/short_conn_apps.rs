//! Transactions of one small request and one small response, for accounted benchmarks: the message
//! server and client of AccelTCP's evaluation (section 6.1).
//!
//! The client keeps a number of transactions open. Each has a connection of its own, or several
//! follow each other on one connection. Every byte is compared by the client, and the first and
//! last byte of every piece by the server.

use std::collections::{BTreeMap, BTreeSet};

use base::{Duration, Instant};
use bytes::Bytes;
use host::{
    Application, Host, ListenConfig, ListenerOption, Notice, SocketError, SocketId, SocketOption,
};
use wire::Endpoint;

use super::cycle_accounting::{BenchApp, Usage};
use super::experiment::Fields;

/// Limit of half-open and not yet accepted connections per port.
const BACKLOG: usize = 65_536;
/// Server ports: a client has 16,384 local ports for each.
pub(crate) const PORTS: u16 = 8;
/// Connections opened at the start.
const OPENING_MAX: u32 = 32;
/// Slots of the transmit ring, as many as a NIC has at most: all of its memory passes through the
/// caches.
pub(crate) const TRANSMIT_RING: usize = 4096;
/// Interrupt moderation: events within this time are handled together.
pub(crate) const MODERATION: Duration = Duration::from_micros(10);
/// Value of all bytes of messages.
const FILL: u8 = 0x5a;

/// Parameters that both ends of a run share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransactionParams {
    /// Concurrent transactions.
    pub(crate) concurrent: u32,
    /// Bytes of a request and of a response.
    pub(crate) message_bytes: usize,
    /// Transactions per connection; [`u32::MAX`] for persistent connections.
    pub(crate) per_connection: u32,
    /// The end that closes after the last transaction.
    pub(crate) closes: ClosingEnd,
}

/// The end that closes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClosingEnd {
    Server,
    Client,
}

/// Transactions of a run, and the resources that the measured machine used for them.
#[derive(Debug)]
pub(crate) struct Transactions {
    pub(crate) count: u64,
    pub(crate) used: Usage,
}

impl Transactions {
    /// Returns host cycles per transaction.
    pub(crate) fn host_cycles(&self) -> f64 {
        self.used.cycles.host as f64 / self.count as f64
    }

    /// Returns the fields that all rows have.
    pub(crate) fn fields(&self) -> Fields {
        let each = |what: u64| what as f64 / self.count as f64;
        Fields::new()
            .field("transactions", self.count)
            .show("host cycles", "host_cycles", self.host_cycles())
            .show("packets", "host_packets", each(self.used.host_packets))
            .show("device cycles", "device_cycles", each(self.used.cycles.device))
            .append(self.used.allocation_fields(self.count as f64))
    }
}

/// The server: answers each request, and closes after it if connections have only one.
pub(crate) struct ShortServer {
    params: TransactionParams,
    response: Bytes,
    /// Bytes of incomplete requests that have arrived so far.
    partial: BTreeMap<SocketId, usize>,
    errors: Vec<String>,
}

impl ShortServer {
    /// Returns a server that listens on `host` with these options.
    pub(crate) fn new(
        agreed: TransactionParams,
        host: &mut Host,
        options: &[ListenerOption],
    ) -> Self {
        let mut errors = Vec::new();
        for port in 0..PORTS {
            match host.listen(ListenConfig { addr: None, port: 80 + port, backlog: BACKLOG }) {
                Ok(id) => options.iter().for_each(|&o| host.set_listener_option(id, o)),
                Err(e) => errors.push(e.to_string()),
            }
        }
        let response = Bytes::from(vec![FILL; agreed.message_bytes]);
        Self { params: agreed, response, partial: BTreeMap::new(), errors }
    }

    fn serve(&mut self, now: Instant, host: &mut Host, socket: SocketId) {
        let wanted = self.params.message_bytes;
        let mut here = 0;
        loop {
            let bytes = host.peek(socket);
            if bytes.is_empty() {
                break;
            }
            if bytes.first() != Some(&FILL) || bytes.last() != Some(&FILL) {
                self.errors.push("data mismatch in a request".to_owned());
            }
            let len = bytes.len();
            here += len;
            host.consume(socket, len);
        }
        if here < wanted {
            let readiness = host.readiness(socket);
            if readiness.error.is_some() || readiness.peer_closed {
                self.partial.remove(&socket);
                host.close(now, socket);
                return;
            }
            if here == 0 {
                return;
            }
            // The request spans several segments.
            let before = self.partial.entry(socket).or_default();
            *before += here;
            if *before < wanted {
                return;
            }
            self.partial.remove(&socket);
        }
        if let Err(e) = host.send(now, socket, self.response.clone()) {
            self.errors.push(e.to_string());
        }
        if self.params.closes == ClosingEnd::Server && self.params.per_connection == 1 {
            host.close(now, socket);
        }
    }
}

impl Application for ShortServer {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        match notice {
            Notice::Accepted(_, socket) => {
                if self.params.per_connection > 1 {
                    host.set_option(now, socket, SocketOption::NoDelay(true));
                }
                self.serve(now, host, socket);
            }
            Notice::Socket(socket) => self.serve(now, host, socket),
            _ => {}
        }
    }
}

/// The clients and the backend of a proxy, on one machine.
pub(crate) struct ProxyPeers {
    pub(crate) client: ShortClient,
    backend: ShortServer,
    /// Connections that the backend accepted.
    accepted: BTreeSet<SocketId>,
}

impl ProxyPeers {
    pub(crate) fn new(agreed: TransactionParams, proxy: Endpoint, host: &mut Host) -> Self {
        Self {
            client: ShortClient::new(agreed, proxy),
            backend: ShortServer::new(agreed, host, &[]),
            accepted: BTreeSet::new(),
        }
    }
}

impl Application for ProxyPeers {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        let ours = match notice {
            Notice::Accepted(_, socket) => self.accepted.insert(socket),
            Notice::Socket(socket) => self.accepted.contains(&socket),
            _ => false,
        };
        if ours {
            self.backend.handle_notice(now, host, notice);
            if let Notice::Socket(socket) = notice {
                if host.readiness(socket).error.is_some() {
                    self.accepted.remove(&socket);
                }
            }
        } else {
            self.client.handle_notice(now, host, notice);
        }
    }
}

/// A connection that waits for a response.
#[derive(Clone, Copy, Debug)]
struct PendingResponse {
    /// Bytes of the response that have arrived.
    received: usize,
    /// The request was sent.
    request_sent: bool,
    /// Remaining transactions, the present one included.
    transactions_left: u32,
}

/// The client: opens connections and sends requests.
pub(crate) struct ShortClient {
    params: TransactionParams,
    server: Endpoint,
    request: Bytes,
    waiting: BTreeMap<SocketId, PendingResponse>,
    opened: u64,
    /// Transactions open, or about to be.
    open_transactions: u32,
    /// Complete responses received.
    pub(crate) transactions: u64,
    errors: Vec<String>,
}

impl ShortClient {
    pub(crate) fn new(agreed: TransactionParams, server: Endpoint) -> Self {
        let request = Bytes::from(vec![FILL; agreed.message_bytes]);
        Self {
            params: agreed,
            server,
            request,
            waiting: BTreeMap::new(),
            opened: 0,
            open_transactions: 0,
            transactions: 0,
            errors: Vec::new(),
        }
    }

    /// Returns whether the number of open transactions has been reached.
    pub(crate) const fn is_full(&self) -> bool {
        self.open_transactions == self.params.concurrent
    }

    /// Starts one more transaction unless there are enough. It is called for every connection that
    /// is established, so that the number doubles each round trip, and no SYN is lost to a limit
    /// and repeated a second later.
    fn start_transaction(&mut self, now: Instant, host: &mut Host) {
        if !self.is_full() {
            self.open_transactions += 1;
            self.open(now, host);
        }
    }

    fn open(&mut self, now: Instant, host: &mut Host) {
        let nth = u16::try_from(self.opened % u64::from(PORTS)).unwrap_or(0);
        self.opened += 1;
        match host.connect(now, Endpoint { port: self.server.port + nth, ..self.server }) {
            Ok(socket) => {
                let left = self.params.per_connection;
                self.waiting.insert(
                    socket,
                    PendingResponse { received: 0, request_sent: false, transactions_left: left },
                );
            }
            Err(e) => self.errors.push(e.to_string()),
        }
    }

    fn send_request(&mut self, now: Instant, host: &mut Host, socket: SocketId) {
        host.set_option(now, socket, SocketOption::NoDelay(true));
        if let Some(waiting) = self.waiting.get_mut(&socket) {
            (waiting.received, waiting.request_sent) = (0, true);
        }
        if let Err(e) = host.send(now, socket, self.request.clone()) {
            self.errors.push(e.to_string());
        }
    }

    fn read(&mut self, now: Instant, host: &mut Host, socket: SocketId) {
        let mut len = 0;
        loop {
            let bytes = host.peek(socket);
            if bytes.is_empty() {
                break;
            }
            if bytes.iter().any(|&byte| byte != FILL) {
                self.errors.push("data mismatch in a response".to_owned());
            }
            let here = bytes.len();
            len += here;
            host.consume(socket, here);
        }
        let Some(waiting) = self.waiting.get_mut(&socket) else { return };
        waiting.received += len;
        if waiting.received > self.params.message_bytes {
            self.errors.push("response too long".to_owned());
        }
        if waiting.received < self.params.message_bytes {
            return;
        }
        self.transactions += 1;
        waiting.transactions_left -= u32::from(self.params.per_connection < u32::MAX);
        if waiting.transactions_left > 0 {
            self.send_request(now, host, socket);
            return;
        }
        self.waiting.remove(&socket);
        // If the server's FIN came with the response, our FIN goes out with the acknowledgment.
        if self.params.closes == ClosingEnd::Client || host.readiness(socket).peer_closed {
            host.close(now, socket);
        }
        self.open(now, host);
    }
}

impl Application for ShortClient {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        let Notice::Socket(socket) = notice else { return };
        let readiness = host.readiness(socket);
        let Some(asked) = self.waiting.get(&socket).map(|waiting| waiting.request_sent) else {
            if readiness.peer_closed {
                host.close(now, socket);
            }
            return;
        };
        if let Some(error) = readiness.error {
            if error != SocketError::Closed || self.params.per_connection < u32::MAX {
                self.errors.push(error.to_string());
            }
            return;
        }
        if !asked && readiness.writable {
            self.send_request(now, host, socket);
            self.start_transaction(now, host);
        }
        self.read(now, host, socket);
    }
}

impl BenchApp for ShortServer {
    fn error(&self) -> Option<&str> {
        self.errors.first().map(String::as_str)
    }
}

impl BenchApp for ShortClient {
    fn start(&mut self, now: Instant, host: &mut Host) {
        for _ in 0..self.params.concurrent.min(OPENING_MAX) {
            self.start_transaction(now, host);
        }
    }

    fn error(&self) -> Option<&str> {
        self.errors.first().map(String::as_str)
    }
}

impl BenchApp for ProxyPeers {
    fn start(&mut self, now: Instant, host: &mut Host) {
        self.client.start(now, host);
    }

    fn error(&self) -> Option<&str> {
        self.client.error().or_else(|| self.backend.error())
    }
}
