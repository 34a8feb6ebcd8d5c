//! Connections without a network: written bytes are recorded, and a test acts as the peer.
//!
//! Used by the tests of the content server and the proxy; [`super::tests`] compare the fake with
//! the host. The fake is stricter: it panics on calls that an application has no reason to make.

use core::net::{IpAddr, Ipv4Addr};
use std::collections::VecDeque;
use std::sync::Arc;

use base::Instant;
use bytes::Bytes;
use host::{PatternMatch, Readiness, SendError, SocketError};
use patterns::{PatternSet, PatternState};
use wire::Endpoint;

use super::Connections;

/// Payload of a packet, and so the most that one `peek` returns.
const PACKET_BYTES: usize = 1448;

/// Local address of all connections.
const LOCAL: Endpoint = Endpoint { addr: IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2)), port: 80 };

/// Slot and generation of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FakeSocketId {
    pub(crate) index: usize,
    generation: u32,
}

/// Source of written bytes; only bytes of memory occupy the send buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WrittenFrom {
    /// Host memory.
    InMemory,
    /// A file.
    InFile,
}

/// State of the FIN that is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FinState {
    #[default]
    None,
    Sent,
    Acknowledged,
}

#[derive(Default)]
struct FakeConnection {
    generation: u32,
    remote: Option<Endpoint>,
    established: bool,
    tls: bool,
    /// Packets that were not read completely.
    received: VecDeque<Vec<u8>>,
    peer_closed: bool,
    sent: Vec<u8>,
    /// Bytes of `sent` that [`FakeConnections::take_sent`] has returned.
    taken: usize,
    /// Unacknowledged parts of `sent`, in order.
    queue: VecDeque<(usize, WrittenFrom)>,
    /// Maximum number of unacknowledged bytes of memory.
    buffer: usize,
    fin: FinState,
    error: Option<SocketError>,
    closed: bool,
    /// The connection was closed with [`Connections::close_lingering`].
    lingers: bool,
    aborted: bool,
    inspection: Option<FakeInspection>,
}

/// State of an inspected connection.
struct FakeInspection {
    patterns: Arc<PatternSet>,
    state: PatternState,
    position: u64,
    /// Bytes that were inspected and not consumed.
    unread: usize,
}

impl FakeConnection {
    const fn is_gone(&self) -> bool {
        self.closed || self.aborted
    }

    fn queued(&self) -> usize {
        self.queue.iter().map(|(len, _)| len).sum()
    }

    fn queued_in_memory(&self) -> usize {
        self.queue
            .iter()
            .filter(|(_, held)| *held == WrittenFrom::InMemory)
            .map(|(len, _)| len)
            .sum()
    }

    fn room(&self) -> usize {
        self.buffer.saturating_sub(self.queued_in_memory())
    }

    fn write(&mut self, bytes: &[u8], held: WrittenFrom) {
        assert!(self.established && self.fin == FinState::None, "written outside of a connection");
        self.sent.extend_from_slice(bytes);
        if !bytes.is_empty() {
            self.queue.push_back((bytes.len(), held));
        }
    }

    fn acknowledge(&mut self, mut bytes: u64) {
        while let Some((len, _)) = self.queue.front_mut().filter(|_| bytes > 0) {
            let here = usize::try_from(bytes).unwrap_or(usize::MAX).min(*len);
            *len -= here;
            bytes -= here as u64;
            if *len == 0 {
                self.queue.pop_front();
            }
        }
        if bytes > 0 && self.fin == FinState::Sent {
            self.fin = FinState::Acknowledged;
        }
    }
}

/// The fake connections; `app_state` is the state of an application's further calls.
#[derive(Default)]
pub(crate) struct FakeConnections<X = ()> {
    all: Vec<FakeConnection>,
    pub(crate) app_state: X,
}

impl<X> FakeConnections<X> {
    pub(crate) const fn new(more: X) -> Self {
        Self { all: Vec::new(), app_state: more }
    }

    /// Opens a connection that is not established. Takes the smallest free slot, like the host, so
    /// that indices are soon used again.
    pub(crate) fn open(&mut self, remote: Endpoint, buffer: usize) -> FakeSocketId {
        let free = self.all.iter().position(FakeConnection::is_gone);
        let index = free.unwrap_or(self.all.len());
        if index == self.all.len() {
            self.all.push(FakeConnection::default());
            self.put(index, 0, remote, buffer)
        } else {
            self.put(index, self.all[index].generation + 1, remote, buffer)
        }
    }

    fn put(
        &mut self,
        index: usize,
        generation: u32,
        remote: Endpoint,
        buffer: usize,
    ) -> FakeSocketId {
        let remote = Some(remote);
        self.all[index] =
            FakeConnection { generation, remote, buffer, ..FakeConnection::default() };
        FakeSocketId { index, generation }
    }

    /// Returns the connection, unless the identifier is stale or the application has closed it.
    fn get(&self, id: FakeSocketId) -> Option<&FakeConnection> {
        let connection = self.all.get(id.index)?;
        (connection.generation == id.generation && !connection.is_gone()).then_some(connection)
    }

    fn live(&mut self, id: FakeSocketId) -> &mut FakeConnection {
        let connection = self.peer(id);
        assert!(!connection.is_gone(), "used after it was let go");
        connection
    }

    /// Returns the connection for actions of its peer.
    fn peer(&mut self, id: FakeSocketId) -> &mut FakeConnection {
        let connection = &mut self.all[id.index];
        assert_eq!(connection.generation, id.generation, "a stale name was used");
        connection
    }

    pub(crate) fn establish(&mut self, id: FakeSocketId) {
        self.live(id).established = true;
    }

    /// Sets whether the connection speaks TLS.
    pub(crate) fn set_tls(&mut self, id: FakeSocketId, tls: bool) {
        self.live(id).tls = tls;
    }

    pub(crate) fn peer_sends(&mut self, id: FakeSocketId, bytes: &[u8]) {
        self.peer(id).received.extend(bytes.chunks(PACKET_BYTES).map(<[u8]>::to_vec));
    }

    pub(crate) fn peer_closes(&mut self, id: FakeSocketId) {
        self.peer(id).peer_closed = true;
    }

    pub(crate) fn fail(&mut self, id: FakeSocketId, error: SocketError) {
        self.peer(id).error = Some(error);
    }

    /// Acknowledges this number of bytes; the FIN counts as one byte after the others.
    pub(crate) fn acknowledge(&mut self, id: FakeSocketId, bytes: u64) {
        self.peer(id).acknowledge(bytes);
    }

    /// Sets the maximum number of unacknowledged bytes of memory.
    pub(crate) fn set_buffer(&mut self, id: FakeSocketId, bytes: usize) {
        self.peer(id).buffer = bytes;
    }

    /// Limits the send buffer to this number of bytes beyond those that are unacknowledged now.
    pub(crate) fn set_room(&mut self, id: FakeSocketId, bytes: usize) {
        let connection = self.peer(id);
        connection.buffer = connection.queued_in_memory().saturating_add(bytes);
    }

    /// Writes bytes of a file.
    pub(crate) fn write_from_file(&mut self, id: FakeSocketId, bytes: &[u8]) {
        self.live(id).write(bytes, WrittenFrom::InFile);
    }

    /// Returns the bytes that were sent since the last call.
    pub(crate) fn take_sent(&mut self, id: FakeSocketId) -> Vec<u8> {
        let connection = self.peer(id);
        let bytes = connection.sent[connection.taken..].to_vec();
        connection.taken = connection.sent.len();
        bytes
    }

    pub(crate) fn unread(&self, id: FakeSocketId) -> usize {
        self.all[id.index].received.iter().map(Vec::len).sum()
    }

    pub(crate) fn is_shut(&self, id: FakeSocketId) -> bool {
        self.all[id.index].fin != FinState::None
    }

    /// Returns whether the application closed the connection without aborting it.
    pub(crate) fn is_closed(&self, id: FakeSocketId) -> bool {
        self.all[id.index].closed && !self.all[id.index].aborted
    }

    pub(crate) fn lingers(&self, id: FakeSocketId) -> bool {
        self.all[id.index].lingers
    }

    pub(crate) fn is_aborted(&self, id: FakeSocketId) -> bool {
        self.all[id.index].aborted
    }

    /// Asserts that the application has closed or aborted all connections.
    pub(crate) fn assert_all_gone(&self) {
        for (index, connection) in self.all.iter().enumerate() {
            assert!(connection.is_gone(), "connection {index} is left");
        }
    }
}

impl<X> Connections for FakeConnections<X> {
    type Id = FakeSocketId;

    fn index(id: FakeSocketId) -> usize {
        id.index
    }

    fn readiness(&self, id: FakeSocketId) -> Readiness {
        let Some(connection) = self.get(id) else {
            return Readiness { error: Some(SocketError::Closed), ..Readiness::default() };
        };
        let FakeConnection { received, queue, established, fin, error, .. } = connection;
        Readiness {
            readable: !received.is_empty(),
            writable: *established
                && *fin == FinState::None
                && error.is_none()
                && connection.room() > 0,
            peer_closed: connection.peer_closed && received.is_empty(),
            drained: *established && queue.is_empty() && *fin != FinState::Sent,
            error: *error,
        }
    }

    fn remote(&self, id: FakeSocketId) -> Option<Endpoint> {
        self.get(id)?.remote
    }

    fn local(&self, id: FakeSocketId) -> Option<Endpoint> {
        self.get(id).map(|_| LOCAL)
    }

    fn speaks_tls(&self, id: FakeSocketId) -> bool {
        self.get(id).is_some_and(|connection| connection.tls)
    }

    fn peek(&self, id: FakeSocketId) -> &[u8] {
        self.get(id).and_then(|c| c.received.front()).map_or(&[], Vec::as_slice)
    }

    fn consume(&mut self, id: FakeSocketId, bytes: usize) {
        let FakeConnection { received, inspection, .. } = self.live(id);
        if let Some(inspection) = inspection {
            // The state of discarded bytes does not matter.
            inspection.unread = inspection.unread.saturating_sub(bytes);
        }
        let front = received.front_mut().expect("consume only what peek showed");
        front.drain(..bytes);
        if front.is_empty() {
            received.pop_front();
        }
    }

    fn start_inspection(&mut self, _: Instant, id: FakeSocketId, patterns: &Arc<PatternSet>) {
        let (patterns, state) = (Arc::clone(patterns), patterns.start());
        self.live(id).inspection = Some(FakeInspection { patterns, state, position: 0, unread: 0 });
    }

    fn inspect(&mut self, id: FakeSocketId, found: &mut dyn FnMut(PatternMatch)) {
        let FakeConnection { received, inspection, .. } = self.live(id);
        let (Some(bytes), Some(inspection)) = (received.front(), inspection) else { return };
        let FakeInspection { patterns, state, position, unread } = inspection;
        let bytes = &bytes[*unread..];
        *state = patterns.scan(*state, bytes, &mut |pattern, end| {
            let pattern = u16::try_from(pattern).expect("at most 1024 patterns");
            found(PatternMatch { pattern, end: *position + end as u64 });
        });
        *position += bytes.len() as u64;
        *unread += bytes.len();
    }

    fn send(&mut self, _: Instant, id: FakeSocketId, bytes: Bytes) -> Result<usize, SendError> {
        let connection = self.live(id);
        if let Some(error) = connection.error {
            return Err(SendError::NotConnected(error));
        }
        let taken = bytes.len().min(connection.room());
        connection.write(&bytes[..taken], WrittenFrom::InMemory);
        Ok(taken)
    }

    fn send_room(&self, id: FakeSocketId) -> usize {
        self.get(id).map_or(0, FakeConnection::room)
    }

    fn send_queue(&self, id: FakeSocketId) -> u64 {
        self.get(id).map_or(0, |connection| connection.queued() as u64)
    }

    fn shutdown(&mut self, _: Instant, id: FakeSocketId) {
        let connection = self.live(id);
        assert_eq!(connection.fin, FinState::None, "shut down twice");
        connection.fin = FinState::Sent;
    }

    fn close(&mut self, _: Instant, id: FakeSocketId) {
        let connection = &mut self.all[id.index];
        // Closing a connection that is gone has no effect.
        connection.closed |= connection.generation == id.generation;
    }

    fn close_lingering(&mut self, now: Instant, id: FakeSocketId, bytes_max: u32) {
        assert!(bytes_max > 0);
        let connection = self.live(id);
        connection.received.clear();
        connection.lingers = true;
        self.close(now, id);
    }

    fn abort(&mut self, _: Instant, id: FakeSocketId) {
        self.live(id).aborted = true;
    }
}
