//! One connection: data of its streams on the way to quinn-proto, and the work after each event.
//!
//! Called by [`crate::QuicEndpoint`]. Data that an application writes is queued per stream until
//! quinn-proto has room for it. File content is passed as placeholder zeros
//! ([`crate::file_ranges`]) if the device reads the file and encrypts the packets; otherwise the
//! host reads it before it is written. [`crate::transmit`] builds the datagrams.

use core::net::SocketAddr;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use abi::{FileExtent, FileFault, FileId, FlowId};
use base::{Duration, Instant};
use bytes::Bytes;
use host::{DiskToken, DiskUser, FaultScope, Host, UdpId};
use quinn_proto::{ConnectionHandle, Dir, StreamId, VarInt, WriteError};

use crate::QuicHandle;
use crate::config::QuicEndpointConfig;
use crate::congestion::{LossCounts, PathCongestion};
use crate::counters::QuicEndpointCounters;
use crate::file_ranges::{
    CHUNK_BYTES, FileRange, ReleasedRanges, StreamFileMap, placeholder_zeros,
};
use crate::offload::{CidMap, ConnectionOffload, OffloadEnv, OffloadParams};
use crate::protection::{DeferredPacket, OneRttShared};
use crate::schedule::{Priority, StreamSchedule, TURN_BYTES};
use crate::transmit::{DatagramPlan, PendingDatagram};

/// Maximum bytes per read of a file by the host.
const READ_BYTES: u64 = 128 * 1024;
/// Maximum unacknowledged bytes: without transmit offload, when file content is held in memory, and
/// with it, when it is not.
const UNACKED_BYTES_MAX: [u64; 2] = [2 << 20, 16 << 20];
/// Minimum of the limit of unacknowledged bytes.
const UNACKED_BYTES_MIN: u64 = 256 * 1024;
/// Limit of unacknowledged bytes in congestion windows: one in flight, two that wait behind a lost
/// packet until its retransmission is acknowledged, and one queued.
const UNACKED_CWNDS: u64 = 4;
/// Error code of streams that are reset because their file failed: `H3_INTERNAL_ERROR` of RFC 9114.
pub(crate) const FILE_FAILED: u32 = 0x0102;
/// Maximum streams without unsent data whose credit is kept. Those with the largest numbers are
/// kept; of the others a lower limit is assumed than the peer allows.
const EARLY_CREDIT_MAX: usize = 128;

/// A part of a stream's queued data.
#[derive(Debug)]
enum OutgoingPiece {
    Bytes(Bytes),
    File { file: FileId, offset: u64, len: u64 },
}

/// Reason for which a stream waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum StreamWait {
    /// All data written by the application was passed on.
    #[default]
    Application,
    /// The stream is in the [`StreamSchedule`].
    Turn,
    /// The peer's stream credit is used up; quinn-proto reports when there is more.
    Credit,
    /// The host reads the file at the front of the queue.
    Disk,
}

/// Queued data of a stream.
#[derive(Debug, Default)]
struct OutgoingStream {
    queue: VecDeque<OutgoingPiece>,
    /// The stream ends after the queue.
    finish: bool,
    /// The host is reading the first file in the queue.
    reading: bool,
    wait: StreamWait,
    priority: Priority,
    /// Bytes left of the stream's turn.
    turn_bytes_left: u64,
    /// Bytes passed to quinn-proto.
    written: u64,
    /// Known lower bound of the peer's limit for the stream ([`EARLY_CREDIT_MAX`]).
    credit_min: u64,
}

/// Reason for the end of a stream's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TurnOutcome {
    /// The turn is used up; the stream has more to write.
    UsedUp,
    /// The stream has more to write but the connection has no room.
    NoRoom,
    /// The stream waits, or is gone.
    Waits,
}

/// Number of streams by what they wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamWaitCounts {
    /// The peer's stream credit.
    pub stream_credit: usize,
    /// The peer's connection credit.
    pub connection_credit: usize,
    /// Room in the limit of unacknowledged bytes: the congestion window and the data queued behind
    /// it.
    pub window: usize,
    /// A file read by the host.
    pub disk: usize,
}

/// Purpose of a file read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReadPurpose {
    /// Data of a stream, on a connection without transmit offload.
    Stream { handle: QuicHandle, stream: StreamId, extent: FileExtent },
    /// Missing file content of a packet that was already built.
    Delayed { handle: QuicHandle, late: u64, at: usize, extent: FileExtent },
}

/// File reads in progress.
#[derive(Debug)]
pub(crate) struct PendingReads {
    /// The endpoint's identity towards the disk.
    user: DiskUser,
    next: u64,
    pub(crate) pending: BTreeMap<u64, ReadPurpose>,
}

impl PendingReads {
    pub(crate) const fn new(user: DiskUser) -> Self {
        Self { user, next: 0, pending: BTreeMap::new() }
    }

    pub(crate) const fn user(&self) -> DiskUser {
        self.user
    }

    /// Starts a read by the host.
    pub(crate) fn start(&mut self, host: &mut Host, extent: FileExtent, what: ReadPurpose) {
        self.next += 1;
        self.pending.insert(self.next, what);
        host.extent_read(DiskToken { user: self.user, number: self.next }, extent);
    }
}

/// Environment of a connection: the parts of its endpoint that it uses.
pub(crate) struct QuicEnv<'a> {
    pub(crate) now: Instant,
    pub(crate) host: &'a mut Host,
    pub(crate) socket: UdpId,
    pub(crate) config: &'a QuicEndpointConfig,
    pub(crate) counters: &'a mut QuicEndpointCounters,
    pub(crate) released: &'a ReleasedRanges,
    pub(crate) reads: &'a mut PendingReads,
    pub(crate) scratch: &'a mut TransmitScratch,
}

/// Buffers that are reused between calls.
#[derive(Debug, Default)]
pub(crate) struct TransmitScratch {
    pub(crate) buffer: Vec<u8>,
    pub(crate) records: Vec<DeferredPacket>,
    pub(crate) plans: Vec<DatagramPlan>,
}

impl QuicEnv<'_> {
    /// Converts `now` to quinn-proto's time.
    pub(crate) fn time(&self) -> std::time::Instant {
        self.config.epoch + std::time::Duration::from_nanos(self.now.as_nanos())
    }

    pub(crate) fn device(&mut self) -> OffloadEnv<'_> {
        OffloadEnv { host: self.host, counters: self.counters, config: self.config }
    }
}

/// A QUIC connection.
pub(crate) struct QuicConnection {
    pub(crate) inner: quinn_proto::Connection,
    pub(crate) quinn_handle: ConnectionHandle,
    pub(crate) handle: QuicHandle,
    pub(crate) shared: Arc<OneRttShared>,
    pub(crate) flow: FlowId,
    pub(crate) offload: ConnectionOffload,
    pub(crate) file_map: StreamFileMap,
    pub(crate) delayed: VecDeque<PendingDatagram>,
    pub(crate) delayed_next_id: u64,
    /// Our connection IDs in use, by sequence number.
    pub(crate) cids: CidMap,
    pub(crate) cids_issued: u64,
    /// Bytes of UDP payload, both directions together.
    pub(crate) bytes: u64,
    /// File bytes passed to quinn-proto for the device to read.
    pub(crate) file_bytes_offloaded: u64,
    /// The peer's address as of the last received datagram, and the number of its changes.
    pub(crate) remote: SocketAddr,
    pub(crate) migrations: u64,
    /// True when the handshake is complete.
    pub(crate) connected: bool,
    /// True when the connection has ended; quinn-proto keeps its state for a while.
    pub(crate) ended: bool,
    /// Reason for the end.
    pub(crate) end_reason: Option<String>,
    pub(crate) dirty: bool,
    /// True if the device reported a fault of one of several files without saying which. The host
    /// then reads all file content that is sent until it finds the failed file.
    pub(crate) read_files_on_host: bool,
    congestion: PathCongestion,
    /// Accumulated results of loss detection.
    pub(crate) losses: LossCounts,
    streams: BTreeMap<StreamId, OutgoingStream>,
    /// Credit of streams without queued data.
    early_credit: BTreeMap<StreamId, u64>,
    schedule: StreamSchedule,
    /// Bytes of all streams passed to quinn-proto.
    written: u64,
}

impl QuicConnection {
    pub(crate) fn new(
        inner: quinn_proto::Connection,
        quinn: ConnectionHandle,
        handle: QuicHandle,
        shared: Arc<OneRttShared>,
        flow: FlowId,
    ) -> Self {
        let mut connection = Self {
            remote: inner.remote_address(),
            congestion: PathCongestion::new(&inner),
            losses: LossCounts::default(),
            inner,
            quinn_handle: quinn,
            handle,
            shared,
            flow,
            offload: ConnectionOffload::default(),
            file_map: StreamFileMap::default(),
            delayed: VecDeque::new(),
            delayed_next_id: 0,
            cids: CidMap::new(),
            cids_issued: 0,
            bytes: 0,
            file_bytes_offloaded: 0,
            migrations: 0,
            connected: false,
            ended: false,
            end_reason: None,
            dirty: true,
            read_files_on_host: false,
            streams: BTreeMap::new(),
            early_credit: BTreeMap::new(),
            schedule: StreamSchedule::default(),
            written: 0,
        };
        connection.inner.set_send_window(UNACKED_BYTES_MIN);
        connection
    }

    /// Queues a piece of data, or the end of the stream.
    fn queue(&mut self, stream: StreamId, piece: Option<OutgoingPiece>) {
        if !self.streams.contains_key(&stream) {
            self.add_stream(stream);
        }
        let Some(outgoing) = self.streams.get_mut(&stream) else { return };
        outgoing.finish |= piece.is_none();
        outgoing.queue.extend(piece);
        if outgoing.wait == StreamWait::Application {
            outgoing.wait = StreamWait::Turn;
            self.schedule.push(stream, outgoing.priority);
        }
    }

    fn add_stream(&mut self, stream: StreamId) {
        let ours = u64::from(self.inner.side().is_server());
        let initial = self.shared.lock().credit.initial_stream_limit(u64::from(stream), ours);
        let credit = initial.max(self.early_credit.remove(&stream).unwrap_or(0));
        // Unidirectional streams carry the application's control data: settings and stream
        // metadata.
        let priority = match stream.dir() {
            Dir::Uni => Priority::CONTROL,
            Dir::Bi => Priority::default(),
        };
        self.streams
            .insert(stream, OutgoingStream { credit_min: credit, ..OutgoingStream::default() });
        self.set_priority(stream, priority);
    }

    /// Sets the priority of a stream; no effect if all of its data was passed on.
    pub(crate) fn set_priority(&mut self, stream: StreamId, priority: Priority) {
        let Some(outgoing) = self.streams.get_mut(&stream) else { return };
        if outgoing.priority == priority {
            return;
        }
        if outgoing.wait == StreamWait::Turn {
            self.schedule.remove(stream, outgoing.priority);
            self.schedule.push(stream, priority);
        }
        outgoing.priority = priority;
        // This fails if the stream was reset before.
        let _ = self.inner.send_stream(stream).set_priority(priority.for_quinn());
    }

    /// Queues bytes on a stream.
    pub(crate) fn write(&mut self, stream: StreamId, bytes: Bytes) {
        if !bytes.is_empty() && !self.ended {
            self.queue(stream, Some(OutgoingPiece::Bytes(bytes)));
        }
    }

    /// Queues a range of a file on a stream. Returns false if the file has no such range.
    pub(crate) fn write_file(
        &mut self,
        host: &mut Host,
        stream: StreamId,
        file: FileId,
        offset: u64,
        len: u64,
    ) -> bool {
        if self.ended || len == 0 {
            return true;
        }
        let held = host.extent_hold(file, offset, len).is_some();
        if held {
            self.queue(stream, Some(OutgoingPiece::File { file, offset, len }));
        }
        held
    }

    /// Ends a stream after its queued data.
    pub(crate) fn finish(&mut self, stream: StreamId) {
        if !self.ended {
            self.queue(stream, None);
        }
    }

    /// Resets the sending part of a stream.
    pub(crate) fn reset(&mut self, host: &mut Host, stream: StreamId, code: u32) {
        self.drop_stream_data(host, stream);
        // Its chunks are dropped one by one; none of them needs file content any longer.
        self.file_map.remove_stream(u64::from(stream));
        if !self.ended {
            // This fails if the stream was finished and acknowledged before.
            let _ = self.inner.send_stream(stream).reset(VarInt::from_u32(code));
        }
    }

    /// Reschedules a stream that waited for stream credit.
    pub(crate) fn unblock(&mut self, stream: StreamId) {
        let Some(outgoing) = self.streams.get_mut(&stream) else { return };
        if outgoing.wait == StreamWait::Credit {
            outgoing.wait = StreamWait::Turn;
            self.schedule.push(stream, outgoing.priority);
        }
    }

    /// Drops the queued data of a stream.
    pub(crate) fn drop_stream_data(&mut self, host: &mut Host, stream: StreamId) {
        let Some(outgoing) = self.streams.remove(&stream) else { return };
        self.schedule.remove(stream, outgoing.priority);
        for piece in outgoing.queue {
            if let OutgoingPiece::File { file, offset, len } = piece {
                host.extent_release(file, offset, len, false);
            }
        }
    }

    /// Marks the connection as ended: only quinn-proto's own packets are sent from now on.
    pub(crate) fn mark_ended(&mut self, host: &mut Host, why: String) {
        self.ended = true;
        self.end_reason.get_or_insert(why);
        let streams: Vec<StreamId> = self.streams.keys().copied().collect();
        streams.into_iter().for_each(|stream| self.drop_stream_data(host, stream));
        self.delayed.clear();
        self.offload.remove(host);
    }

    /// Offloads the connection if it is due, and passes queued data to quinn-proto, by turns of the
    /// streams.
    pub(crate) fn write_streams(&mut self, cx: &mut QuicEnv<'_>) {
        let worth = self.connected && self.bytes >= cx.config.offload_bytes_min && !self.ended;
        if worth && self.offload.is_request_due(self.bytes) {
            let min_rtt = self.inner.stats().path.min_rtt.as_nanos();
            let min_rtt = Duration::from_nanos(u64::try_from(min_rtt).unwrap_or(u64::MAX));
            let about = OffloadParams { flow: self.flow, cids: &self.cids, min_rtt };
            self.offload.request(&mut cx.device(), &self.shared, &about);
        }
        self.inner.set_send_window(self.send_window());
        while let Some(stream) = self.schedule.pop() {
            let turn = self.run_turn(cx, stream);
            let Some(outgoing) = self.streams.get_mut(&stream) else { continue };
            match turn {
                TurnOutcome::Waits => {}
                TurnOutcome::UsedUp => self.schedule.push(stream, outgoing.priority),
                TurnOutcome::NoRoom => {
                    self.schedule.push_front(stream, outgoing.priority);
                    return;
                }
            }
        }
    }

    /// Returns the limit of unacknowledged bytes. It is kept low because data queued behind the
    /// congestion window has used the peer's credit, which a more urgent stream could then not use.
    fn send_window(&self) -> u64 {
        let congestion = self.inner.congestion_state().window();
        // quinn-proto counts the piece at the front of each stream until all of it is acknowledged.
        let fronts = TURN_BYTES * self.streams.len() as u64;
        let max = UNACKED_BYTES_MAX[usize::from(self.offload.tx().is_some())];
        (congestion.saturating_mul(UNACKED_CWNDS) + fronts).clamp(UNACKED_BYTES_MIN, max)
    }

    /// Lets a stream write until its turn ends.
    fn run_turn(&mut self, cx: &mut QuicEnv<'_>, stream: StreamId) -> TurnOutcome {
        // A single stream need not be cut into short turns.
        let turn = if self.schedule.is_empty() { CHUNK_BYTES as u64 } else { TURN_BYTES };
        if let Some(outgoing) = self.streams.get_mut(&stream).filter(|o| o.turn_bytes_left == 0) {
            outgoing.turn_bytes_left = turn;
        }
        loop {
            if let Some(turn) = self.write_once(cx, stream) {
                return turn;
            }
        }
    }

    /// Writes from the piece at a stream's front. Returns how the turn ended, or `None` if it has
    /// not.
    fn write_once(&mut self, cx: &mut QuicEnv<'_>, stream: StreamId) -> Option<TurnOutcome> {
        let by_device = self.offload.tx().is_some();
        let Some(outgoing) = self.streams.get_mut(&stream) else { return Some(TurnOutcome::Waits) };
        match outgoing.queue.front_mut() {
            None if outgoing.finish => {
                self.streams.remove(&stream);
                // This fails if the peer stopped the stream, which is then reset already.
                let _ = self.inner.send_stream(stream).finish();
                Some(TurnOutcome::Waits)
            }
            None => {
                outgoing.wait = StreamWait::Application;
                Some(TurnOutcome::Waits)
            }
            Some(_) if outgoing.turn_bytes_left == 0 => Some(TurnOutcome::UsedUp),
            Some(OutgoingPiece::Bytes(_)) => {
                self.read_ahead(cx, stream);
                self.write_front(cx, stream)
            }
            Some(&mut OutgoingPiece::File { file, offset, len }) => {
                if by_device && !outgoing.reading && cx.host.extent_reader(file).is_ok() {
                    self.queue_placeholder(cx, stream, (file, offset, len));
                    return None;
                }
                outgoing.wait = StreamWait::Disk;
                if !outgoing.reading {
                    self.start_stream_read(cx, stream, (file, offset, len));
                }
                Some(TurnOutcome::Waits)
            }
        }
    }

    /// Starts reading the file after the bytes at a stream's front, so that the stream has data in
    /// its next turn; otherwise less urgent streams would take the turn.
    fn read_ahead(&mut self, cx: &mut QuicEnv<'_>, stream: StreamId) {
        let by_device = self.offload.tx().is_some();
        // Without credit nothing after the front can be sent in the next turn.
        let may_read = |o: &&OutgoingStream| !o.reading && o.written < o.credit_min;
        let Some(outgoing) = self.streams.get(&stream).filter(may_read) else { return };
        let Some(&OutgoingPiece::File { file, offset, len }) = outgoing.queue.get(1) else {
            return;
        };
        if !by_device || cx.host.extent_reader(file).is_err() {
            self.start_stream_read(cx, stream, (file, offset, len));
        }
    }

    fn start_stream_read(
        &mut self,
        cx: &mut QuicEnv<'_>,
        stream: StreamId,
        (file, offset, len): (FileId, u64, u64),
    ) {
        let Some(outgoing) = self.streams.get_mut(&stream) else { return };
        outgoing.reading = true;
        let len = u32::try_from(len.min(READ_BYTES)).unwrap_or(u32::MAX);
        let extent = FileExtent { file, offset, len };
        let what = ReadPurpose::Stream { handle: self.handle, stream, extent };
        cx.reads.start(cx.host, extent, what);
    }

    /// Writes bytes from a stream's front, up to the rest of its turn. Returns how the turn ended,
    /// or `None` if it has not.
    fn write_front(&mut self, cx: &mut QuicEnv<'_>, stream: StreamId) -> Option<TurnOutcome> {
        let outgoing = self.streams.get_mut(&stream)?;
        let Some(OutgoingPiece::Bytes(bytes)) = outgoing.queue.front_mut() else { return None };
        let most = usize::try_from(outgoing.turn_bytes_left).unwrap_or(usize::MAX).min(bytes.len());
        let mut front = bytes.split_to(most);
        let left = core::mem::take(bytes);
        let written = self.inner.send_stream(stream).write_chunks(std::slice::from_mut(&mut front));
        outgoing.queue.pop_front();
        for rest in [left, front].into_iter().filter(|rest| !rest.is_empty()) {
            outgoing.queue.push_front(OutgoingPiece::Bytes(rest));
        }
        match written {
            Ok(written) => {
                outgoing.written += written.bytes as u64;
                outgoing.turn_bytes_left =
                    outgoing.turn_bytes_left.saturating_sub(written.bytes as u64);
                self.written += written.bytes as u64;
                None
            }
            // quinn-proto reports when there is room, whatever the limit was.
            Err(WriteError::Blocked) if outgoing.written >= outgoing.credit_min => {
                outgoing.wait = StreamWait::Credit;
                Some(TurnOutcome::Waits)
            }
            Err(WriteError::Blocked) => Some(TurnOutcome::NoRoom),
            Err(WriteError::Stopped(_) | WriteError::ClosedStream) => {
                self.drop_stream_data(cx.host, stream);
                Some(TurnOutcome::Waits)
            }
        }
    }

    /// Queues placeholder zeros for the next bytes of the file at a stream's front.
    fn queue_placeholder(
        &mut self,
        cx: &mut QuicEnv<'_>,
        stream: StreamId,
        front: (FileId, u64, u64),
    ) {
        let Some(outgoing) = self.streams.get_mut(&stream) else { return };
        let (file, offset, left) = front;
        let len = left.min(CHUNK_BYTES as u64);
        outgoing.consume_file_bytes(0, len);
        let place = FileRange {
            connection: self.handle,
            stream: u64::from(stream),
            start: outgoing.written,
            len,
            file,
            offset,
        };
        self.file_map.insert(place);
        outgoing.queue.push_front(OutgoingPiece::Bytes(placeholder_zeros(place, cx.released)));
        cx.counters.quic_file_bytes_offloaded += len;
        self.file_bytes_offloaded += len;
    }

    /// Handles the end of the host's read for a stream.
    pub(crate) fn handle_read(
        &mut self,
        cx: &mut QuicEnv<'_>,
        stream: StreamId,
        extent: &FileExtent,
        result: Result<Bytes, FileFault>,
    ) {
        let Some(outgoing) = self.streams.get_mut(&stream) else { return };
        let is_file = |piece: &OutgoingPiece| matches!(piece, OutgoingPiece::File { .. });
        let Some(at) = outgoing.queue.iter().position(is_file) else { return };
        let Some(&OutgoingPiece::File { file, offset, .. }) = outgoing.queue.get(at) else {
            return;
        };
        if !outgoing.reading || file != extent.file || offset != extent.offset {
            return; // The stream's queue has changed since.
        }
        outgoing.reading = false;
        if outgoing.wait == StreamWait::Disk {
            outgoing.wait = StreamWait::Turn;
            self.schedule.push(stream, outgoing.priority);
        }
        match result {
            Ok(bytes) => {
                let len = bytes.len() as u64;
                outgoing.consume_file_bytes(at, len);
                outgoing.queue.insert(at, OutgoingPiece::Bytes(bytes));
                cx.host.extent_release(file, offset, len, false);
                cx.counters.quic_file_bytes_software += len;
            }
            Err(_) => self.fail_file(cx, stream),
        }
    }

    /// Resets a stream whose file content can no longer be read.
    fn fail_file(&mut self, cx: &mut QuicEnv<'_>, stream: StreamId) {
        cx.counters.quic_file_failures += 1;
        self.reset(cx.host, stream, FILE_FAILED);
    }

    /// Resets the streams that send a file that has changed or cannot be read.
    pub(crate) fn fail_streams(&mut self, cx: &mut QuicEnv<'_>, file: FileId) {
        let mut streams: Vec<u64> = self.file_map.streams().collect();
        streams.dedup();
        streams.retain(|stream| self.file_map.has_file(*stream, file));
        self.read_files_on_host &= streams.is_empty();
        for stream in streams.into_iter().filter_map(|id| VarInt::from_u64(id).ok()) {
            self.fail_file(cx, StreamId::from(stream));
        }
    }

    /// Handles a transmit that the device dropped because of its files.
    pub(crate) fn handle_fault(
        &mut self,
        cx: &mut QuicEnv<'_>,
        scope: FaultScope,
        fault: FileFault,
    ) {
        match (fault, scope) {
            // The device lost the file or has no room: a packet loss, not a fault of the file. A
            // changed file is reported as `Changed`.
            (FileFault::BadExtent | FileFault::FlowFailed | FileFault::Refused(_), _) => {
                cx.counters.quic_out_dropped += 1;
                // Exception: the file was found changed before the device lost it. It is never
                // opened on a device again.
                if let Some(failed) = self.file_map.find_file(|f| cx.host.extent_fault(f).is_some())
                {
                    self.fail_streams(cx, failed);
                }
            }
            (FileFault::Changed, FaultScope::Several) => cx.counters.quic_out_dropped += 1,
            (_, FaultScope::Several) => self.read_files_on_host = true,
            (_, FaultScope::File(file)) => self.fail_streams(cx, file),
        }
    }

    /// Returns the number of streams with unsent data.
    pub(crate) fn unsent_stream_count(&self) -> usize {
        self.streams.len()
    }

    /// Counts the streams with unsent data by what they wait for.
    pub(crate) fn wait_counts(&self) -> StreamWaitCounts {
        let credit = self.shared.lock().credit.connection;
        let mut waiting = StreamWaitCounts::default();
        for outgoing in self.streams.values() {
            match outgoing.wait {
                StreamWait::Application => {}
                StreamWait::Turn if self.written >= credit => waiting.connection_credit += 1,
                StreamWait::Turn => waiting.window += 1,
                StreamWait::Credit => waiting.stream_credit += 1,
                StreamWait::Disk => waiting.disk += 1,
            }
        }
        waiting
    }

    /// Records a change of the peer's address (RFC 9000 section 9).
    pub(crate) fn update_peer_address(&mut self, counters: &mut QuicEndpointCounters) {
        let remote = self.inner.remote_address();
        if self.remote != remote {
            self.remote = remote;
            self.migrations += 1;
            counters.quic_migrations += 1;
            self.congestion.update_path(&self.inner);
        }
    }

    /// Lets congestion control act on losses as time passes.
    pub(crate) fn update_losses(&mut self, cx: &mut QuicEnv<'_>) {
        let counts = self.congestion.poll_counts(cx.now, &self.inner, None);
        self.count_losses(cx.counters, counts);
    }

    fn count_losses(&mut self, counters: &mut QuicEndpointCounters, counts: LossCounts) {
        counters.count_losses(counts);
        self.losses += counts;
    }

    /// Handles the side effects of a received datagram: key updates and credit of the peer,
    /// acknowledgments, and removal of the connection IDs that the peer retired.
    pub(crate) fn apply_packet_effects(&mut self, cx: &mut QuicEnv<'_>) {
        self.offload.ensure_rx_keys(&mut cx.device(), &self.shared);
        if !self.shared.take_has_news() {
            return;
        }
        let mut state = self.shared.lock();
        cx.counters.quic_in_disagreed += core::mem::take(&mut state.mismatched);
        for (stream, limit) in state.credit.raised_stream_limits.drain(..) {
            let id = VarInt::from_u64(stream).ok();
            let outgoing = id.and_then(|id| self.streams.get_mut(&StreamId::from(id)));
            match (outgoing, id.map(StreamId::from)) {
                (Some(outgoing), _) => outgoing.credit_min = outgoing.credit_min.max(limit),
                (None, Some(stream)) => record_early_credit(&mut self.early_credit, stream, limit),
                (None, None) => {}
            }
        }
        let counts = self.congestion.poll_counts(cx.now, &self.inner, Some(&mut state.news));
        let retired = core::mem::take(&mut state.retired_cids);
        drop(state);
        self.count_losses(cx.counters, counts);
        for id in retired.iter().filter_map(|sequence| self.cids.remove(sequence)) {
            self.offload.route(&mut cx.device(), id, false);
        }
    }
}

/// Records the credit of a stream that has no queued data.
fn record_early_credit(early: &mut BTreeMap<StreamId, u64>, stream: StreamId, limit: u64) {
    let credit = early.entry(stream).or_default();
    *credit = limit.max(*credit);
    if early.len() > EARLY_CREDIT_MAX {
        early.pop_first();
    }
}

impl OutgoingStream {
    /// Removes bytes from the front of the file at index `at` of the queue.
    fn consume_file_bytes(&mut self, at: usize, bytes: u64) {
        if let Some(OutgoingPiece::File { offset, len, .. }) = self.queue.get_mut(at) {
            *offset += bytes;
            *len = len.saturating_sub(bytes);
            if *len == 0 {
                self.queue.remove(at);
            }
        }
    }
}
