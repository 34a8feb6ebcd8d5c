//! Sockets without a network: what was written is kept as bytes, and tests say what peers do.

use base::{Duration, Instant};
use bytes::Bytes;
use host::{
    ConnectError, Readiness, SendError, SocketError, SpliceEnd, SpliceError, SpliceId, SpliceMeta,
};
use wire::Endpoint;

use super::super::Server;
use crate::proxy::config::{Config, HeaderPolicy, Insert, Listener, Mode, Pool, Table};
use crate::proxy::sockets::Sockets;

/// Slot and generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id(pub(crate) usize, u32);

#[derive(Default)]
struct Socket {
    generation: u32,
    remote: Option<Endpoint>,
    connected: bool,
    received: Vec<u8>,
    sent: Vec<u8>,
    /// Bytes of `sent` that the test has looked at.
    seen: usize,
    acknowledged: usize,
    /// Bytes that may be sent and not acknowledged.
    room: usize,
    peer_closed: bool,
    shut: bool,
    closed: bool,
    /// It was closed, and what still comes is discarded.
    lingers: bool,
    aborted: bool,
    error: Option<SocketError>,
}

/// The fake.
#[derive(Default)]
pub(crate) struct FakeSockets {
    sockets: Vec<Socket>,
    /// Sockets that were opened, in order.
    pub(crate) opened: Vec<Id>,
    /// What `connect` says.
    pub(crate) connect_error: Option<ConnectError>,
    /// What `nsplice` says.
    pub(crate) splice: Option<SpliceError>,
    pub(crate) spliced: Vec<(Id, Id)>,
    meta: Option<SpliceMeta>,
}

pub(crate) fn end(n: u8, port: u16) -> Endpoint {
    Endpoint { addr: [10, 77, 0, n].into(), port }
}

impl FakeSockets {
    fn get(&self, id: Id) -> &Socket {
        &self.sockets[id.0]
    }

    fn live(&mut self, id: Id) -> &mut Socket {
        let socket = &mut self.sockets[id.0];
        assert_eq!(socket.generation, id.1, "a stale id was used");
        assert!(!socket.closed && !socket.aborted, "used after it was let go");
        socket
    }

    fn open(&mut self, socket: Socket) -> Id {
        // The smallest free slot, as the host does it: names are used again soon.
        let free = self.sockets.iter().position(|s| s.closed || s.aborted);
        let index = free.unwrap_or(self.sockets.len());
        let generation = self.sockets.get(index).map_or(0, |s| s.generation + 1);
        let socket = Socket { generation, ..socket };
        if index == self.sockets.len() {
            self.sockets.push(socket);
        } else {
            self.sockets[index] = socket;
        }
        Id(index, generation)
    }
}

impl Sockets for FakeSockets {
    type Id = Id;

    fn index(id: Id) -> usize {
        id.0
    }

    fn readiness(&self, id: Id) -> Readiness {
        let socket = self.get(id);
        if socket.generation != id.1 || socket.closed || socket.aborted {
            return Readiness { error: Some(SocketError::Closed), ..Readiness::default() };
        }
        Readiness {
            readable: !socket.received.is_empty(),
            writable: socket.connected && self.send_room(id) > 0 && !socket.shut,
            peer_closed: socket.peer_closed && socket.received.is_empty(),
            drained: self.send_queue(id) == 0,
            error: socket.error,
        }
    }

    fn remote(&self, id: Id) -> Option<Endpoint> {
        self.get(id).remote
    }

    fn local(&self, _: Id) -> Option<Endpoint> {
        Some(end(2, 80))
    }

    fn peek(&self, id: Id) -> &[u8] {
        // The first run only, as packets are.
        let bytes = &self.get(id).received;
        &bytes[..bytes.len().min(1000)]
    }

    fn consume(&mut self, id: Id, bytes: usize) {
        self.live(id).received.drain(..bytes);
    }

    fn send(&mut self, id: Id, bytes: Bytes) -> Result<usize, SendError> {
        let room = self.send_room(id);
        let socket = self.live(id);
        if let Some(error) = socket.error {
            return Err(SendError::NotConnected(error));
        }
        assert!(!socket.shut && socket.connected, "written outside of a connection");
        let taken = bytes.len().min(room);
        socket.sent.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn send_room(&self, id: Id) -> usize {
        let socket = self.get(id);
        socket.room - (socket.sent.len() - socket.acknowledged).min(socket.room)
    }

    fn send_queue(&self, id: Id) -> u64 {
        let socket = self.get(id);
        (socket.sent.len() - socket.acknowledged) as u64
    }

    fn shutdown(&mut self, id: Id) {
        let socket = self.live(id);
        assert!(!socket.shut, "shut down twice");
        socket.shut = true;
    }

    fn close(&mut self, _: Instant, id: Id) {
        let socket = &mut self.sockets[id.0];
        if socket.generation == id.1 {
            socket.closed = true;
        }
    }

    fn close_lingering(&mut self, now: Instant, id: Id, bytes_max: u32) {
        assert!(bytes_max > 0);
        self.live(id).lingers = true;
        self.close(now, id);
    }

    fn abort(&mut self, _: Instant, id: Id) {
        self.live(id).aborted = true;
    }

    fn connect(&mut self, _: Instant, remote: Endpoint) -> Result<Id, ConnectError> {
        if let Some(error) = self.connect_error {
            return Err(error);
        }
        let socket = Socket { remote: Some(remote), room: 100_000, ..Socket::default() };
        let id = self.open(socket);
        self.opened.push(id);
        Ok(id)
    }

    fn nsplice(&mut self, _: Instant, a: Id, b: Id, _: Duration) -> Result<SpliceId, SpliceError> {
        match self.splice {
            Some(error) => Err(error),
            None => {
                self.spliced.push((a, b));
                Ok(SpliceId(self.spliced.len() as u64))
            }
        }
    }

    fn take_splice(&mut self, _: SpliceId) -> Option<SpliceMeta> {
        self.meta.take()
    }
}

/// A proxy, its sockets and a clock.
pub(crate) struct World {
    pub(crate) server: Server<Id>,
    pub(crate) sockets: FakeSockets,
    pub(crate) now: Instant,
}

pub(crate) fn listener(mode: Mode) -> Listener {
    Listener {
        addr: None,
        port: 80,
        mode,
        routes: Vec::new(),
        default: Some(0),
        insert: Insert::default(),
        policy: HeaderPolicy::Append,
        keep_alive: true,
    }
}

/// A pool of 10.77.0.11 and so on, without checks.
pub(crate) fn pool(backends: u8) -> Pool {
    let check = crate::proxy::Check { interval: Duration::ZERO, ..Default::default() };
    let backends = (11..11 + backends).map(|n| end(n, 8080).into()).collect();
    Pool { name: "p".into(), backends, check, ..Pool::default() }
}

pub(crate) fn table(mode: Mode, backends: u8) -> Table {
    let (listeners, pools) = (vec![listener(mode)], vec![pool(backends)]);
    Table { listeners, pools, ..Table::default() }
}

impl World {
    /// A proxy that relays by itself.
    pub(crate) fn new(mode: Mode, backends: u8) -> Self {
        let config = Config { splice: false, ..Config::default() };
        Self::with(config, table(mode, backends))
    }

    pub(crate) fn with(config: Config, table: Table) -> Self {
        let mut server = Server::new(Config { access_log: true, ..config });
        server.apply(Instant::ZERO, table);
        Self { server, sockets: FakeSockets::default(), now: Instant::ZERO }
    }

    pub(crate) fn accept(&mut self) -> Id {
        self.accept_from(1)
    }

    pub(crate) fn accept_from(&mut self, n: u8) -> Id {
        let socket = Socket {
            remote: Some(end(n, 40_000)),
            connected: true,
            room: 100_000,
            ..Socket::default()
        };
        let id = self.sockets.open(socket);
        self.server.handle_accepted(self.now, &mut self.sockets, id, 0);
        id
    }

    pub(crate) fn poke(&mut self, id: Id) {
        self.server.handle_socket(self.now, &mut self.sockets, id);
    }

    pub(crate) fn receive(&mut self, id: Id, bytes: impl AsRef<[u8]>) {
        self.sockets.live(id).received.extend_from_slice(bytes.as_ref());
        self.poke(id);
    }

    pub(crate) fn peer_closes(&mut self, id: Id) {
        self.sockets.live(id).peer_closed = true;
        self.poke(id);
    }

    pub(crate) fn fail(&mut self, id: Id, error: SocketError) {
        self.sockets.live(id).error = Some(error);
        self.poke(id);
    }

    /// The socket that was opened last.
    pub(crate) fn opened(&self) -> Id {
        *self.sockets.opened.last().expect("a connection was opened")
    }

    /// Last byte of the address of the socket that was opened last.
    pub(crate) fn opened_to(&self) -> u8 {
        match self.sockets.get(self.opened()).remote.map(|remote| remote.addr) {
            Some(core::net::IpAddr::V4(v4)) => v4.octets()[3],
            other => panic!("{other:?}"),
        }
    }

    /// The backend that is being connected to accepts.
    pub(crate) fn establish(&mut self) -> Id {
        let id = self.opened();
        self.sockets.live(id).connected = true;
        self.poke(id);
        id
    }

    pub(crate) fn set_room(&mut self, id: Id, bytes: usize) {
        self.sockets.live(id).room = bytes;
    }

    pub(crate) fn acknowledge(&mut self, id: Id) {
        let socket = self.sockets.live(id);
        socket.acknowledged = socket.sent.len();
        self.poke(id);
    }

    /// The device has both sockets.
    pub(crate) fn spliced(&mut self) {
        let (a, b) = *self.sockets.spliced.last().expect("asked for");
        self.sockets.live(a).closed = true;
        self.sockets.live(b).closed = true;
        let id = SpliceId(self.sockets.spliced.len() as u64);
        self.server.handle_spliced(self.now, &mut self.sockets, id);
    }

    pub(crate) fn splice_refused(&mut self, why: abi::Refusal) {
        let id = SpliceId(self.sockets.spliced.len() as u64);
        self.server.handle_splice_refused(self.now, &mut self.sockets, id, why);
    }

    pub(crate) fn splice_closed(&mut self, bytes: [u64; 2], how: SpliceEnd) {
        let id = SpliceId(self.sockets.spliced.len() as u64);
        let remotes = [end(1, 40_000), end(11, 8080)];
        let meta = SpliceMeta { id, remotes, bytes, packets: [1, 1], end: Some(how) };
        self.sockets.meta = Some(meta);
        self.server.handle_splice_closed(self.now, &mut self.sockets, id);
    }

    /// Lets time pass, with a call at each moment that the server asked for.
    pub(crate) fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(next) = self.server.poll_timeout().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.server.handle_timeout(self.now, &mut self.sockets);
            assert!(self.server.poll_timeout().is_none_or(|after| after > next), "no progress");
        }
        self.now = end;
    }

    /// What was sent since the last look.
    pub(crate) fn sent(&mut self, id: Id) -> Vec<u8> {
        let socket = &mut self.sockets.sockets[id.0];
        assert_eq!(socket.generation, id.1);
        let bytes = socket.sent[socket.seen..].to_vec();
        socket.seen = socket.sent.len();
        bytes
    }

    pub(crate) fn text(&mut self, id: Id) -> String {
        String::from_utf8(self.sent(id)).expect("text")
    }

    pub(crate) fn unread(&self, id: Id) -> usize {
        self.sockets.get(id).received.len()
    }

    pub(crate) fn is_shut(&self, id: Id) -> bool {
        self.sockets.get(id).shut
    }

    pub(crate) fn is_closed(&self, id: Id) -> bool {
        self.sockets.get(id).closed && !self.sockets.get(id).aborted
    }

    pub(crate) fn lingers(&self, id: Id) -> bool {
        self.sockets.get(id).lingers
    }

    pub(crate) fn is_aborted(&self, id: Id) -> bool {
        self.sockets.get(id).aborted
    }

    pub(crate) fn log(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.server.shared.log.poll()).collect()
    }

    /// Exactly these counters moved.
    pub(crate) fn assert_moved(&self, expected: &[(&str, u64)]) {
        let mut moved = Vec::new();
        self.server.shared.counters.visit(&mut |name, value| {
            if value > 0 && name != "proxy_tables" {
                moved.push((name, value));
            }
        });
        assert_eq!(moved, expected);
    }

    /// No client, no deadline, no socket and no connection of a backend is left.
    pub(crate) fn assert_empty(&self) {
        assert_eq!((self.server.connections(), self.server.deadlines.next()), (0, None));
        assert!(self.server.shared.splices.is_empty());
        for (index, socket) in self.sockets.sockets.iter().enumerate() {
            assert!(socket.closed || socket.aborted, "socket {index} is left");
        }
        for id in 0..8 {
            let backend = self.server.shared.backends.get(id);
            assert!(backend.is_none_or(|b| b.connections == 0), "backend {id}");
        }
    }
}
