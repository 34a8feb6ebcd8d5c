//! One connection: streams towards quinn-proto, and what has to be done after each event.
//!
//! [`crate::Endpoint`] gives it its turn. What an application writes waits here, in order, until
//! quinn-proto has room for it; file content becomes places ([`crate::placed`]) where the device
//! reads the file and seals the packets, and is read by the host before it is written where not.
//! Datagrams are made in [`crate::transmit`].

use core::net::SocketAddr;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use abi::{FileExtent, FileFault, FileId, FlowId};
use base::{Duration, Instant};
use bytes::Bytes;
use host::{DiskToken, DiskUser, FaultScope, Host, UdpId};
use quinn_proto::{ConnectionHandle, Dir, StreamId, VarInt, WriteError};

use crate::Handle;
use crate::config::Config;
use crate::congestion::{Counts, Link};
use crate::counters::Counters;
use crate::offload::{About, Cids, Device, Offload};
use crate::placed::{CHUNK_BYTES, Place, Placed, Released, zeros};
use crate::protection::{Record, Shared};
use crate::schedule::{Priority, Schedule, TURN_BYTES};
use crate::transmit::{Late, Plan};

/// Bytes that the host reads of a file at a time.
const READ_BYTES: u64 = 128 * 1024;
/// Bytes that may be unacknowledged at most: in memory, and where files take none.
const WINDOWS: [u64; 2] = [2 << 20, 16 << 20];
/// Bytes that may be unacknowledged in any case.
const WINDOW_MIN: u64 = 256 * 1024;
/// Congestion windows that may be unacknowledged: one in flight, two that hang behind a packet that
/// is lost until it has been sent again, and one that is queued.
const CONGESTION_WINDOWS: u64 = 4;
/// What a stream is reset with where its file fails: RFC 9114's `H3_INTERNAL_ERROR`.
pub(crate) const FILE_FAILED: u32 = 0x0102;
/// Streams without anything to send whose credit is kept, those with the largest numbers: of others
/// less is known than the peer allows.
const EARLY_CREDIT_MAX: usize = 128;

/// A part of what a stream sends.
#[derive(Debug)]
enum Piece {
    Bytes(Bytes),
    File { file: FileId, offset: u64, len: u64 },
}

/// The reason for which a stream with unsent data waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Waits {
    /// The application: everything so far was written.
    #[default]
    Application,
    /// Its turn: it is in the [`Schedule`].
    Turn,
    /// The peer's credit for the stream: quinn-proto will say when there is some.
    Credit,
    /// The host's read of the file at the front.
    Disk,
}

/// What a stream is still to send.
#[derive(Debug, Default)]
struct Outgoing {
    queue: VecDeque<Piece>,
    /// Nothing follows.
    finish: bool,
    /// The first file in the queue is being read by the host.
    reading: bool,
    waits: Waits,
    priority: Priority,
    /// Bytes that are left of its turn.
    turn: u64,
    /// Bytes that quinn-proto took.
    written: u64,
    /// Bytes that the peer allows at least ([`EARLY_CREDIT_MAX`]).
    credit: u64,
}

/// The end of a stream's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// It has more to write.
    Over,
    /// It has something to write and the connection has no room for it.
    Full,
    /// It waits, or is gone.
    Waits,
}

/// Streams by what they wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// The peer's credit for the stream.
    pub stream_credit: usize,
    /// The peer's credit for the connection.
    pub connection_credit: usize,
    /// Room for what is not acknowledged: the congestion window, and what is queued behind it.
    pub window: usize,
    /// A read by the host.
    pub disk: usize,
}

/// What a read is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReadFor {
    /// A stream of a connection that the device does not seal for.
    Stream { handle: Handle, stream: StreamId, extent: FileExtent },
    /// A packet that was built with a hole in it.
    Late { handle: Handle, late: u64, at: usize, extent: FileExtent },
}

/// Reads under way.
#[derive(Debug)]
pub(crate) struct Reads {
    /// The endpoint as a user of the disk.
    user: DiskUser,
    next: u64,
    pub(crate) pending: BTreeMap<u64, ReadFor>,
}

impl Reads {
    pub(crate) const fn new(user: DiskUser) -> Self {
        Self { user, next: 0, pending: BTreeMap::new() }
    }

    pub(crate) const fn user(&self) -> DiskUser {
        self.user
    }

    /// Has the host read.
    pub(crate) fn begin(&mut self, host: &mut Host, extent: FileExtent, what: ReadFor) {
        self.next += 1;
        self.pending.insert(self.next, what);
        host.extent_read(DiskToken { user: self.user, number: self.next }, extent);
    }
}

/// All that a connection needs from outside.
pub(crate) struct Cx<'a> {
    pub(crate) now: Instant,
    pub(crate) host: &'a mut Host,
    pub(crate) socket: UdpId,
    pub(crate) config: &'a Config,
    pub(crate) counters: &'a mut Counters,
    pub(crate) released: &'a Released,
    pub(crate) reads: &'a mut Reads,
    pub(crate) scratch: &'a mut Scratch,
}

/// Memory that is used again.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) buffer: Vec<u8>,
    pub(crate) records: Vec<Record>,
    pub(crate) plans: Vec<Plan>,
}

impl Cx<'_> {
    /// quinn-proto's time.
    pub(crate) fn time(&self) -> std::time::Instant {
        self.config.epoch + std::time::Duration::from_nanos(self.now.as_nanos())
    }

    pub(crate) fn device(&mut self) -> Device<'_> {
        Device { host: self.host, counters: self.counters, config: self.config }
    }
}

/// A connection.
pub(crate) struct Connection {
    pub(crate) inner: quinn_proto::Connection,
    pub(crate) quinn: ConnectionHandle,
    pub(crate) handle: Handle,
    pub(crate) shared: Arc<Shared>,
    pub(crate) flow: FlowId,
    pub(crate) offload: Offload,
    pub(crate) placed: Placed,
    pub(crate) late: VecDeque<Late>,
    pub(crate) late_next: u64,
    /// Our connection IDs that lead here, by their sequence numbers.
    pub(crate) cids: Cids,
    pub(crate) cids_issued: u64,
    /// UDP payload in both directions.
    pub(crate) bytes: u64,
    /// Bytes of files that were given to quinn-proto for the device to read.
    pub(crate) file_bytes_offloaded: u64,
    /// Where the peer was when it was last heard, and how often it had moved.
    pub(crate) remote: SocketAddr,
    pub(crate) migrations: u64,
    /// The handshake is complete.
    pub(crate) connected: bool,
    /// It has ended; quinn-proto keeps it for a while.
    pub(crate) lost: bool,
    /// The reason of its end.
    pub(crate) closed: Option<String>,
    pub(crate) dirty: bool,
    /// One of several files failed in the device, and which is not known: the host reads what is
    /// sent until it finds it.
    pub(crate) careful: bool,
    congestion: Link,
    /// What became of its losses.
    pub(crate) losses: Counts,
    streams: BTreeMap<StreamId, Outgoing>,
    /// Credit of streams that send nothing now.
    early_credit: BTreeMap<StreamId, u64>,
    schedule: Schedule,
    /// Bytes that quinn-proto took, of all streams.
    written: u64,
}

impl Connection {
    pub(crate) fn new(
        inner: quinn_proto::Connection,
        quinn: ConnectionHandle,
        handle: Handle,
        shared: Arc<Shared>,
        flow: FlowId,
    ) -> Self {
        let mut connection = Self {
            remote: inner.remote_address(),
            congestion: Link::new(&inner),
            losses: Counts::default(),
            inner,
            quinn,
            handle,
            shared,
            flow,
            offload: Offload::default(),
            placed: Placed::default(),
            late: VecDeque::new(),
            late_next: 0,
            cids: Cids::new(),
            cids_issued: 0,
            bytes: 0,
            file_bytes_offloaded: 0,
            migrations: 0,
            connected: false,
            lost: false,
            closed: None,
            dirty: true,
            careful: false,
            streams: BTreeMap::new(),
            early_credit: BTreeMap::new(),
            schedule: Schedule::default(),
            written: 0,
        };
        connection.inner.set_send_window(WINDOW_MIN);
        connection
    }

    /// Queues a piece, or the end of the stream.
    fn queue(&mut self, stream: StreamId, piece: Option<Piece>) {
        if !self.streams.contains_key(&stream) {
            self.begin(stream);
        }
        let Some(outgoing) = self.streams.get_mut(&stream) else { return };
        outgoing.finish |= piece.is_none();
        outgoing.queue.extend(piece);
        if outgoing.waits == Waits::Application {
            outgoing.waits = Waits::Turn;
            self.schedule.push(stream, outgoing.priority);
        }
    }

    fn begin(&mut self, stream: StreamId) {
        let ours = u64::from(self.inner.side().is_server());
        let initial = self.shared.lock().credit.initial(u64::from(stream), ours);
        let credit = initial.max(self.early_credit.remove(&stream).unwrap_or(0));
        // Streams in one direction are the application's own: settings, and what it says of others.
        let priority = match stream.dir() {
            Dir::Uni => Priority::CONTROL,
            Dir::Bi => Priority::default(),
        };
        self.streams.insert(stream, Outgoing { credit, ..Outgoing::default() });
        self.set_priority(stream, priority);
    }

    /// Sets the priority of what a stream is to send; without effect when all of it is written.
    pub(crate) fn set_priority(&mut self, stream: StreamId, priority: Priority) {
        let Some(outgoing) = self.streams.get_mut(&stream) else { return };
        if outgoing.priority == priority {
            return;
        }
        if outgoing.waits == Waits::Turn {
            self.schedule.remove(stream, outgoing.priority);
            self.schedule.push(stream, priority);
        }
        outgoing.priority = priority;
        // It may have been reset before.
        let _ = self.inner.send_stream(stream).set_priority(priority.for_quinn());
    }

    /// Queues bytes on a stream.
    pub(crate) fn write(&mut self, stream: StreamId, bytes: Bytes) {
        if !bytes.is_empty() && !self.lost {
            self.queue(stream, Some(Piece::Bytes(bytes)));
        }
    }

    /// Queues a file's bytes. Says whether there is such a range.
    pub(crate) fn write_file(
        &mut self,
        host: &mut Host,
        stream: StreamId,
        file: FileId,
        offset: u64,
        len: u64,
    ) -> bool {
        if self.lost || len == 0 {
            return true;
        }
        let held = host.extent_hold(file, offset, len).is_some();
        if held {
            self.queue(stream, Some(Piece::File { file, offset, len }));
        }
        held
    }

    /// Nothing follows on a stream.
    pub(crate) fn finish(&mut self, stream: StreamId) {
        if !self.lost {
            self.queue(stream, None);
        }
    }

    /// Ends a stream of ours at once.
    pub(crate) fn reset(&mut self, host: &mut Host, stream: StreamId, code: u32) {
        self.forget_stream(host, stream);
        // Its chunks are let go of one by one; none is a place for anything any more.
        self.placed.forget(u64::from(stream));
        if !self.lost {
            // It may have been finished and acknowledged before.
            let _ = self.inner.send_stream(stream).reset(VarInt::from_u32(code));
        }
    }

    /// quinn-proto has room again for a stream that had none.
    pub(crate) fn unblock(&mut self, stream: StreamId) {
        let Some(outgoing) = self.streams.get_mut(&stream) else { return };
        if outgoing.waits == Waits::Credit {
            outgoing.waits = Waits::Turn;
            self.schedule.push(stream, outgoing.priority);
        }
    }

    /// Drops what a stream was to send.
    pub(crate) fn forget_stream(&mut self, host: &mut Host, stream: StreamId) {
        let Some(outgoing) = self.streams.remove(&stream) else { return };
        self.schedule.remove(stream, outgoing.priority);
        for piece in outgoing.queue {
            if let Piece::File { file, offset, len } = piece {
                host.extent_release(file, offset, len, false);
            }
        }
    }

    /// The connection has ended: nothing is sent any more but what quinn-proto has to say.
    pub(crate) fn end(&mut self, host: &mut Host, why: String) {
        self.lost = true;
        self.closed.get_or_insert(why);
        let streams: Vec<StreamId> = self.streams.keys().copied().collect();
        streams.into_iter().for_each(|stream| self.forget_stream(host, stream));
        self.late.clear();
        self.offload.remove(host);
    }

    /// Gives quinn-proto what it has room for, streams by turns.
    pub(crate) fn pump(&mut self, cx: &mut Cx<'_>) {
        let worth = self.connected && self.bytes >= cx.config.offload_bytes_min && !self.lost;
        if worth && self.offload.is_due(self.bytes) {
            let min_rtt = self.inner.stats().path.min_rtt.as_nanos();
            let min_rtt = Duration::from_nanos(u64::try_from(min_rtt).unwrap_or(u64::MAX));
            let about = About { flow: self.flow, cids: &self.cids, min_rtt };
            self.offload.ask(&mut cx.device(), &self.shared, &about);
        }
        self.inner.set_send_window(self.send_window());
        while let Some(stream) = self.schedule.pop() {
            let turn = self.take_turn(cx, stream);
            let Some(outgoing) = self.streams.get_mut(&stream) else { continue };
            match turn {
                Turn::Waits => {}
                Turn::Over => self.schedule.push(stream, outgoing.priority),
                Turn::Full => {
                    self.schedule.push_first(stream, outgoing.priority);
                    return;
                }
            }
        }
    }

    /// Bytes that may be unacknowledged: what is queued behind the congestion window has used the
    /// peer's credit already, and a stream that is more urgent could not have it.
    fn send_window(&self) -> u64 {
        let congestion = self.inner.congestion_state().window();
        // Of each stream quinn-proto counts the piece at its front until all of it is acknowledged.
        let fronts = TURN_BYTES * self.streams.len() as u64;
        let max = WINDOWS[usize::from(self.offload.tx().is_some())];
        (congestion.saturating_mul(CONGESTION_WINDOWS) + fronts).clamp(WINDOW_MIN, max)
    }

    /// Lets a stream write for a turn.
    fn take_turn(&mut self, cx: &mut Cx<'_>, stream: StreamId) -> Turn {
        // Alone it need not be cut into turns.
        let turn = if self.schedule.is_empty() { CHUNK_BYTES as u64 } else { TURN_BYTES };
        if let Some(outgoing) = self.streams.get_mut(&stream).filter(|o| o.turn == 0) {
            outgoing.turn = turn;
        }
        loop {
            if let Some(turn) = self.step(cx, stream) {
                return turn;
            }
        }
    }

    /// Writes of the piece at a stream's front; returns how the turn ended, if it did.
    fn step(&mut self, cx: &mut Cx<'_>, stream: StreamId) -> Option<Turn> {
        let by_device = self.offload.tx().is_some();
        let Some(outgoing) = self.streams.get_mut(&stream) else { return Some(Turn::Waits) };
        match outgoing.queue.front_mut() {
            None if outgoing.finish => {
                self.streams.remove(&stream);
                // A stream that the peer has stopped is reset already.
                let _ = self.inner.send_stream(stream).finish();
                Some(Turn::Waits)
            }
            None => {
                outgoing.waits = Waits::Application;
                Some(Turn::Waits)
            }
            Some(_) if outgoing.turn == 0 => Some(Turn::Over),
            Some(Piece::Bytes(_)) => {
                self.read_ahead(cx, stream);
                self.write_front(cx, stream)
            }
            Some(&mut Piece::File { file, offset, len }) => {
                if by_device && !outgoing.reading && cx.host.extent_reader(file).is_ok() {
                    self.place(cx, stream, (file, offset, len));
                    return None;
                }
                outgoing.waits = Waits::Disk;
                if !outgoing.reading {
                    self.begin_read(cx, stream, (file, offset, len));
                }
                Some(Turn::Waits)
            }
        }
    }

    /// Has the host read what comes behind the bytes at a stream's front, so that the stream has
    /// something to write in its next turn: others that are less urgent would take it.
    fn read_ahead(&mut self, cx: &mut Cx<'_>, stream: StreamId) {
        let by_device = self.offload.tx().is_some();
        // Without credit nothing behind the front can be sent in the next turn.
        let may_read = |o: &&Outgoing| !o.reading && o.written < o.credit;
        let Some(outgoing) = self.streams.get(&stream).filter(may_read) else { return };
        let Some(&Piece::File { file, offset, len }) = outgoing.queue.get(1) else { return };
        if !by_device || cx.host.extent_reader(file).is_err() {
            self.begin_read(cx, stream, (file, offset, len));
        }
    }

    fn begin_read(
        &mut self,
        cx: &mut Cx<'_>,
        stream: StreamId,
        (file, offset, len): (FileId, u64, u64),
    ) {
        let Some(outgoing) = self.streams.get_mut(&stream) else { return };
        outgoing.reading = true;
        let len = u32::try_from(len.min(READ_BYTES)).unwrap_or(u32::MAX);
        let extent = FileExtent { file, offset, len };
        let what = ReadFor::Stream { handle: self.handle, stream, extent };
        cx.reads.begin(cx.host, extent, what);
    }

    /// Writes of the bytes at a stream's front what is left of its turn; returns how the turn
    /// ended, if it did.
    fn write_front(&mut self, cx: &mut Cx<'_>, stream: StreamId) -> Option<Turn> {
        let outgoing = self.streams.get_mut(&stream)?;
        let Some(Piece::Bytes(bytes)) = outgoing.queue.front_mut() else { return None };
        let most = usize::try_from(outgoing.turn).unwrap_or(usize::MAX).min(bytes.len());
        let mut front = bytes.split_to(most);
        let left = core::mem::take(bytes);
        let written = self.inner.send_stream(stream).write_chunks(std::slice::from_mut(&mut front));
        outgoing.queue.pop_front();
        for rest in [left, front].into_iter().filter(|rest| !rest.is_empty()) {
            outgoing.queue.push_front(Piece::Bytes(rest));
        }
        match written {
            Ok(written) => {
                outgoing.written += written.bytes as u64;
                outgoing.turn = outgoing.turn.saturating_sub(written.bytes as u64);
                self.written += written.bytes as u64;
                None
            }
            // quinn-proto will say when there is room, whatever it waits for.
            Err(WriteError::Blocked) if outgoing.written >= outgoing.credit => {
                outgoing.waits = Waits::Credit;
                Some(Turn::Waits)
            }
            Err(WriteError::Blocked) => Some(Turn::Full),
            Err(WriteError::Stopped(_) | WriteError::ClosedStream) => {
                self.forget_stream(cx.host, stream);
                Some(Turn::Waits)
            }
        }
    }

    /// Puts zeros in the place of the next bytes of the file at a stream's front.
    fn place(&mut self, cx: &mut Cx<'_>, stream: StreamId, front: (FileId, u64, u64)) {
        let Some(outgoing) = self.streams.get_mut(&stream) else { return };
        let (file, offset, left) = front;
        let len = left.min(CHUNK_BYTES as u64);
        outgoing.take(0, len);
        let place = Place {
            connection: self.handle,
            stream: u64::from(stream),
            start: outgoing.written,
            len,
            file,
            offset,
        };
        self.placed.insert(place);
        outgoing.queue.push_front(Piece::Bytes(zeros(place, cx.released)));
        cx.counters.quic_file_bytes_offloaded += len;
        self.file_bytes_offloaded += len;
    }

    /// The host has read what a stream waited for.
    pub(crate) fn handle_read(
        &mut self,
        cx: &mut Cx<'_>,
        stream: StreamId,
        extent: &FileExtent,
        result: Result<Bytes, FileFault>,
    ) {
        let Some(outgoing) = self.streams.get_mut(&stream) else { return };
        let is_file = |piece: &Piece| matches!(piece, Piece::File { .. });
        let Some(at) = outgoing.queue.iter().position(is_file) else { return };
        let Some(&Piece::File { file, offset, .. }) = outgoing.queue.get(at) else { return };
        if !outgoing.reading || file != extent.file || offset != extent.offset {
            return; // The stream has another queue by now.
        }
        outgoing.reading = false;
        if outgoing.waits == Waits::Disk {
            outgoing.waits = Waits::Turn;
            self.schedule.push(stream, outgoing.priority);
        }
        match result {
            Ok(bytes) => {
                let len = bytes.len() as u64;
                outgoing.take(at, len);
                outgoing.queue.insert(at, Piece::Bytes(bytes));
                cx.host.extent_release(file, offset, len, false);
                cx.counters.quic_file_bytes_software += len;
            }
            Err(_) => self.fail_file(cx, stream),
        }
    }

    /// What a stream sends cannot be had any more.
    fn fail_file(&mut self, cx: &mut Cx<'_>, stream: StreamId) {
        cx.counters.quic_file_failures += 1;
        self.reset(cx.host, stream, FILE_FAILED);
    }

    /// A file was found changed, or cannot be read: the streams that send it end.
    pub(crate) fn fail_streams(&mut self, cx: &mut Cx<'_>, file: FileId) {
        let mut streams: Vec<u64> = self.placed.streams().collect();
        streams.dedup();
        streams.retain(|stream| self.placed.has(*stream, file));
        self.careful &= streams.is_empty();
        for stream in streams.into_iter().filter_map(|id| VarInt::from_u64(id).ok()) {
            self.fail_file(cx, StreamId::from(stream));
        }
    }

    /// The device dropped a transmit with bytes of these files.
    pub(crate) fn handle_fault(&mut self, cx: &mut Cx<'_>, scope: FaultScope, fault: FileFault) {
        match (fault, scope) {
            // It has lost the file, or has no room: a loss, and no fault of the file's. Of one that
            // has changed it tells apart.
            (FileFault::BadExtent | FileFault::FlowFailed | FileFault::Refused(_), _) => {
                cx.counters.quic_out_dropped += 1;
                // Unless it was found changed before the device lost it: no device is ever asked
                // to open that again.
                if let Some(failed) = self.placed.find_file(|f| cx.host.extent_fault(f).is_some()) {
                    self.fail_streams(cx, failed);
                }
            }
            (FileFault::Changed, FaultScope::Several) => cx.counters.quic_out_dropped += 1,
            (_, FaultScope::Several) => self.careful = true,
            (_, FaultScope::File(file)) => self.fail_streams(cx, file),
        }
    }

    /// Streams that have something left to be sent.
    pub(crate) fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Counts of the reasons for which those streams wait.
    pub(crate) fn waiting(&self) -> Waiting {
        let credit = self.shared.lock().credit.connection;
        let mut waiting = Waiting::default();
        for outgoing in self.streams.values() {
            match outgoing.waits {
                Waits::Application => {}
                Waits::Turn if self.written >= credit => waiting.connection_credit += 1,
                Waits::Turn => waiting.window += 1,
                Waits::Credit => waiting.stream_credit += 1,
                Waits::Disk => waiting.disk += 1,
            }
        }
        waiting
    }

    /// Notes where the peer is by now (RFC 9000, section 9).
    pub(crate) fn follow_peer(&mut self, counters: &mut Counters) {
        let remote = self.inner.remote_address();
        if self.remote != remote {
            self.remote = remote;
            self.migrations += 1;
            counters.quic_migrations += 1;
            self.congestion.follow_path(&self.inner);
        }
    }

    /// Time has passed: losses may be due.
    pub(crate) fn follow_losses(&mut self, cx: &mut Cx<'_>) {
        let counts = self.congestion.follow(cx.now, &self.inner, None);
        self.count_losses(cx.counters, counts);
    }

    fn count_losses(&mut self, counters: &mut Counters, counts: Counts) {
        counters.count_losses(counts);
        self.losses += counts;
    }

    /// A datagram was handled: the device follows the peer's keys, and the connection IDs that the
    /// peer retired lead here no more.
    pub(crate) fn follow_packets(&mut self, cx: &mut Cx<'_>) {
        let mut state = self.shared.lock();
        self.offload.follow_rx(&mut cx.device(), &state);
        cx.counters.quic_in_disagreed += core::mem::take(&mut state.disagreed);
        for (stream, limit) in state.credit.raised.drain(..) {
            let id = VarInt::from_u64(stream).ok();
            let outgoing = id.and_then(|id| self.streams.get_mut(&StreamId::from(id)));
            match (outgoing, id.map(StreamId::from)) {
                (Some(outgoing), _) => outgoing.credit = outgoing.credit.max(limit),
                (None, Some(stream)) => note_early(&mut self.early_credit, stream, limit),
                (None, None) => {}
            }
        }
        let counts = self.congestion.follow(cx.now, &self.inner, Some(&mut state.news));
        let retired = core::mem::take(&mut state.retired);
        drop(state);
        self.count_losses(cx.counters, counts);
        for id in retired.iter().filter_map(|sequence| self.cids.remove(sequence)) {
            self.offload.route(&mut cx.device(), id, false);
        }
    }
}

/// Notes how far the peer lets a stream send that has nothing to send yet, or nothing left.
fn note_early(early: &mut BTreeMap<StreamId, u64>, stream: StreamId, limit: u64) {
    let credit = early.entry(stream).or_default();
    *credit = limit.max(*credit);
    if early.len() > EARLY_CREDIT_MAX {
        early.pop_first();
    }
}

impl Outgoing {
    /// Takes bytes off the front of the file at a place of the queue.
    fn take(&mut self, at: usize, bytes: u64) {
        if let Some(Piece::File { offset, len, .. }) = self.queue.get_mut(at) {
            *offset += bytes;
            *len = len.saturating_sub(bytes);
            if *len == 0 {
                self.queue.remove(at);
            }
        }
    }
}
