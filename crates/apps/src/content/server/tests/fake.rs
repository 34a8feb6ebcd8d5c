//! Sockets and files without a network: what was written is kept as bytes, and acknowledged when a
//! test says so.

use core::net::IpAddr;
use std::collections::{BTreeMap, VecDeque};

use abi::{FileFault, FileId, FileKind, FileStat};
use base::{Duration, Instant};
use bytes::Bytes;
use host::{Readiness, SendError, SocketError};

use super::super::Server;
use crate::content::Config;
use crate::content::answer::Service;
use crate::content::sockets::Sockets;

/// Slot and generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id(usize, u32);

#[derive(Default)]
struct Socket {
    generation: u32,
    received: VecDeque<Vec<u8>>,
    sent: Vec<u8>,
    /// Bytes of `sent` that the test has looked at.
    seen: usize,
    acknowledged: u64,
    room: usize,
    peer_closed: bool,
    shut: bool,
    closed: bool,
    /// TLS was taken off it.
    cleartext: bool,
    /// It was closed, and what still comes is discarded.
    lingers: bool,
    aborted: bool,
    error: Option<SocketError>,
}

impl Socket {
    fn queue(&self) -> u64 {
        self.sent.len() as u64 - self.acknowledged
    }
}

type Opened = Result<(FileStat, Vec<u8>), FileFault>;

/// The fake.
#[derive(Default)]
pub(crate) struct FakeSockets {
    sockets: Vec<Socket>,
    tree: BTreeMap<String, Opened>,
    /// By number of the open: what was found then.
    opened: Vec<(Opened, bool)>,
    paths: Vec<String>,
    under_way: VecDeque<FileId>,
    version: u64,
    /// Handles that there are.
    pub(crate) files_max: usize,
}

impl FakeSockets {
    fn get(&self, id: Id) -> &Socket {
        &self.sockets[id.0]
    }

    fn get_mut(&mut self, id: Id) -> &mut Socket {
        let socket = &mut self.sockets[id.0];
        assert_eq!(socket.generation, id.1, "a stale id was written to");
        socket
    }
}

impl Sockets for FakeSockets {
    type Id = Id;

    fn index(id: Id) -> usize {
        id.0
    }

    fn readiness(&self, id: Id) -> Readiness {
        let socket = self.get(id);
        Readiness {
            readable: !socket.received.is_empty(),
            writable: socket.room > 0,
            peer_closed: socket.peer_closed && socket.received.is_empty(),
            drained: socket.queue() == 0,
            error: socket.error,
        }
    }

    fn remote(&self, _: Id) -> Option<IpAddr> {
        Some(IpAddr::from([10, 77, 0, 1]))
    }

    fn speaks_tls(&self, id: Id) -> bool {
        !self.get(id).cleartext
    }

    fn peek(&self, id: Id) -> &[u8] {
        self.get(id).received.front().map_or(&[], Vec::as_slice)
    }

    fn consume(&mut self, id: Id, bytes: usize) {
        let socket = self.get_mut(id);
        let front = socket.received.front_mut().expect("consume only what peek showed");
        front.drain(..bytes);
        if front.is_empty() {
            socket.received.pop_front();
        }
    }

    fn send(&mut self, id: Id, bytes: Bytes) -> Result<usize, SendError> {
        let socket = self.get_mut(id);
        assert!(!socket.shut && !socket.closed, "written after the end");
        let taken = bytes.len().min(socket.room);
        socket.room -= taken;
        socket.sent.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn send_queue(&self, id: Id) -> u64 {
        self.get(id).queue()
    }

    fn shutdown(&mut self, id: Id) {
        let socket = self.get_mut(id);
        assert!(!socket.shut, "shut down twice");
        socket.shut = true;
    }

    fn close(&mut self, _: Instant, id: Id) {
        let socket = self.get_mut(id);
        socket.closed = true;
    }

    fn close_lingering(&mut self, _: Instant, id: Id, bytes_max: u32) {
        assert!(bytes_max > 0);
        let socket = self.get_mut(id);
        socket.received.clear();
        (socket.closed, socket.lingers) = (true, true);
    }

    fn abort(&mut self, _: Instant, id: Id) {
        self.get_mut(id).aborted = true;
    }

    fn offload_open(&mut self, path: &[u8]) -> Option<FileId> {
        if self.opened.iter().filter(|(_, is_open)| *is_open).count() >= self.files_max {
            return None;
        }
        let file = FileId(u32::try_from(self.opened.len()).expect("few files"));
        let found = core::str::from_utf8(path)
            .ok()
            .and_then(|path| self.tree.get(path))
            .cloned()
            .unwrap_or(Err(FileFault::NotFound));
        self.paths.push(String::from_utf8_lossy(path).into());
        self.opened.push((found, true));
        self.under_way.push_back(file);
        Some(file)
    }

    fn offload_fstat(&self, file: FileId) -> Option<Result<FileStat, FileFault>> {
        let (opened, _) = self.opened.get(file.0 as usize)?;
        let under_way = self.under_way.contains(&file);
        (!under_way).then(|| opened.as_ref().map(|o| o.0).map_err(|fault| *fault))
    }

    fn offload_write(
        &mut self,
        id: Id,
        file: FileId,
        offset: u64,
        len: u64,
    ) -> Result<(), SendError> {
        let (opened, is_open) = &self.opened[file.0 as usize];
        assert!(is_open, "sent from a closed file");
        let content = &opened.as_ref().expect("sent from a file that failed to open").1;
        let range = usize::try_from(offset).unwrap()..usize::try_from(offset + len).unwrap();
        let bytes = content[range].to_vec();
        let socket = self.get_mut(id);
        assert!(!socket.shut && !socket.closed, "written after the end");
        socket.sent.extend(bytes);
        Ok(())
    }

    fn offload_close(&mut self, file: FileId) {
        let is_open = &mut self.opened[file.0 as usize].1;
        assert!(*is_open, "closed twice");
        *is_open = false;
    }
}

/// A server, its sockets and a clock.
pub(crate) struct World {
    pub(crate) server: Server<Id>,
    pub(crate) sockets: FakeSockets,
    pub(crate) now: Instant,
}

impl World {
    /// A world with `a.txt`, `b` and the directory `d`.
    pub(crate) fn new() -> Self {
        Self::with(Config::default())
    }

    /// The same, with a server that is configured so.
    pub(crate) fn with(config: Config) -> Self {
        let config = Config { access_log: true, ..config };
        let server = Server::new(config);
        let sockets = FakeSockets { files_max: 1000, ..FakeSockets::default() };
        let mut world = Self { server, sockets, now: Instant::ZERO };
        world.put("a.txt", "content of a");
        world.put("b", "content of b");
        world.put("d", "");
        if let Some(Ok((stat, _))) = world.sockets.tree.get_mut("d") {
            stat.kind = FileKind::Directory;
        }
        world
    }

    pub(crate) fn put(&mut self, path: &str, content: &str) {
        self.sockets.version += 1;
        let stat = FileStat {
            kind: FileKind::Regular,
            size: content.len() as u64,
            modified_s: 784_111_777,
            modified_ns: 0,
            version: self.sockets.version,
        };
        self.sockets.tree.insert(path.into(), Ok((stat, content.into())));
    }

    pub(crate) fn remove(&mut self, path: &str) {
        self.sockets.tree.remove(path);
    }

    pub(crate) fn accept(&mut self) -> Id {
        self.accept_for(Service::Plain)
    }

    pub(crate) fn accept_for(&mut self, service: Service) -> Id {
        self.sockets.sockets.push(Socket { room: usize::MAX, ..Socket::default() });
        let id = Id(self.sockets.sockets.len() - 1, 0);
        self.server.handle_accepted(self.now, &mut self.sockets, id, service);
        id
    }

    /// The client turned out not to speak TLS.
    pub(crate) fn take_tls_off(&mut self, id: Id) {
        self.sockets.get_mut(id).cleartext = true;
    }

    /// A new connection in the place of one that is gone.
    pub(crate) fn accept_at(&mut self, old: Id) -> Id {
        let generation = old.1 + 1;
        let fresh = Socket { room: usize::MAX, generation, ..Socket::default() };
        assert!(core::mem::replace(&mut self.sockets.sockets[old.0], fresh).closed);
        let id = Id(old.0, generation);
        self.server.handle_accepted(self.now, &mut self.sockets, id, Service::Plain);
        id
    }

    /// A notice about a socket.
    pub(crate) fn poke(&mut self, id: Id) {
        self.server.handle_socket(self.now, &mut self.sockets, id);
    }

    pub(crate) fn receive(&mut self, id: Id, text: &str) {
        if !text.is_empty() {
            self.sockets.get_mut(id).received.push_back(text.into());
        }
        self.poke(id);
    }

    pub(crate) fn peer_closes(&mut self, id: Id) {
        self.sockets.get_mut(id).peer_closed = true;
        self.poke(id);
    }

    pub(crate) fn fail(&mut self, id: Id, error: SocketError) {
        self.sockets.get_mut(id).error = Some(error);
        self.poke(id);
    }

    pub(crate) fn set_room(&mut self, id: Id, bytes: usize) {
        self.sockets.get_mut(id).room = bytes;
    }

    pub(crate) fn acknowledge(&mut self, id: Id, bytes: u64) {
        let socket = self.sockets.get_mut(id);
        socket.acknowledged += bytes.min(socket.queue());
        self.poke(id);
    }

    pub(crate) fn acknowledge_all(&mut self, id: Id) {
        self.acknowledge(id, u64::MAX);
    }

    /// Ends all opens that are under way, the youngest first: disks keep no order.
    pub(crate) fn finish_opens(&mut self) {
        for file in core::mem::take(&mut self.sockets.under_way).into_iter().rev() {
            self.server.handle_file(self.now, &mut self.sockets, file);
        }
    }

    /// Ends the open that began first.
    pub(crate) fn finish_oldest_open(&mut self) {
        let file = self.sockets.under_way.pop_front().expect("an open is under way");
        self.server.handle_file(self.now, &mut self.sockets, file);
    }

    /// Lets time pass, with a call at each moment that the server asked for.
    pub(crate) fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(next) = self.server.poll_timeout().filter(|next| *next <= end) {
            assert!(next >= self.now, "time does not run backwards");
            self.now = next;
            self.server.handle_timeout(next, &mut self.sockets);
            assert!(self.server.poll_timeout().is_none_or(|after| after > next), "no progress");
        }
        self.now = end;
    }

    /// What was sent since the last look.
    pub(crate) fn sent(&mut self, id: Id) -> String {
        let socket = &mut self.sockets.sockets[id.0];
        let text = String::from_utf8(socket.sent[socket.seen..].to_vec()).expect("text");
        socket.seen = socket.sent.len();
        text
    }

    pub(crate) fn unread(&self, id: Id) -> usize {
        self.sockets.get(id).received.iter().map(Vec::len).sum()
    }

    pub(crate) fn is_shut(&self, id: Id) -> bool {
        self.sockets.get(id).shut
    }

    pub(crate) fn is_closed(&self, id: Id) -> bool {
        self.sockets.get(id).closed
    }

    pub(crate) fn is_aborted(&self, id: Id) -> bool {
        self.sockets.get(id).aborted
    }

    /// Paths that were opened, in order.
    pub(crate) fn opens(&self) -> Vec<&str> {
        self.sockets.paths.iter().map(String::as_str).collect()
    }

    pub(crate) fn files_open(&self) -> usize {
        self.sockets.opened.iter().filter(|(_, is_open)| *is_open).count()
    }

    pub(crate) fn log(&mut self) -> Option<String> {
        self.server.responder.log.poll()
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        let mut value = None;
        self.server.responder.counters.visit(&mut |n, v| {
            if n == name {
                value = Some(v);
            }
        });
        value.expect("a counter of that name")
    }

    /// Exactly these counters moved.
    pub(crate) fn assert_moved(&self, expected: &[(&str, u64)]) {
        let mut moved = Vec::new();
        self.server.responder.counters.visit(&mut |name, value| {
            if value > 0 {
                moved.push((name, value));
            }
        });
        assert_eq!(moved, expected);
    }

    /// No connection and no deadline is left.
    pub(crate) fn assert_empty(&self) {
        assert_eq!((self.server.connections(), self.server.deadlines.next()), (0, None));
    }
}
