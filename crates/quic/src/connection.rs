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
use host::{Host, UdpId};
use quinn_proto::{ConnectionHandle, StreamId, VarInt, WriteError};

use crate::Handle;
use crate::config::Config;
use crate::counters::Counters;
use crate::offload::{About, Cids, Device, Offload};
use crate::placed::{CHUNK_BYTES, Place, Placed, Released, zeros};
use crate::protection::{Record, Shared};
use crate::transmit::{Late, Plan, SEVERAL_FILES};

/// Bytes that the host reads of a file at a time.
const READ_BYTES: u64 = 128 * 1024;
/// Bytes that may be unacknowledged: in memory, and where files take none.
const WINDOWS: [u64; 2] = [2 << 20, 16 << 20];
/// What a stream is reset with where its file fails: RFC 9114's `H3_INTERNAL_ERROR`.
pub(crate) const FILE_FAILED: u32 = 0x0102;

/// A part of what a stream sends.
#[derive(Debug)]
enum Piece {
    Bytes(Bytes),
    File { file: FileId, offset: u64, len: u64 },
}

/// What a stream is still to send.
#[derive(Debug, Default)]
struct Outgoing {
    queue: VecDeque<Piece>,
    /// Nothing follows.
    finish: bool,
    /// quinn-proto has no room: it will say when it has.
    blocked: bool,
    /// The file at the front is being read.
    reading: bool,
    /// Bytes that quinn-proto took.
    written: u64,
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
#[derive(Debug, Default)]
pub(crate) struct Reads {
    next: u64,
    pub(crate) pending: BTreeMap<u64, ReadFor>,
}

impl Reads {
    /// Has the host read.
    pub(crate) fn begin(&mut self, host: &mut Host, extent: FileExtent, what: ReadFor) {
        self.next += 1;
        self.pending.insert(self.next, what);
        host.extent_read(self.next, extent);
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
    pub(crate) dirty: bool,
    /// One of several files failed in the device, and which is not known: the host reads what is
    /// sent until it finds it.
    pub(crate) careful: bool,
    streams: BTreeMap<StreamId, Outgoing>,
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
            dirty: true,
            careful: false,
            streams: BTreeMap::new(),
        };
        connection.inner.set_send_window(WINDOWS[0]);
        connection
    }

    /// Queues bytes on a stream.
    pub(crate) fn write(&mut self, stream: StreamId, bytes: Bytes) {
        if !bytes.is_empty() && !self.lost {
            self.streams.entry(stream).or_default().queue.push_back(Piece::Bytes(bytes));
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
            let piece = Piece::File { file, offset, len };
            self.streams.entry(stream).or_default().queue.push_back(piece);
        }
        held
    }

    /// Nothing follows on a stream.
    pub(crate) fn finish(&mut self, stream: StreamId) {
        if !self.lost {
            self.streams.entry(stream).or_default().finish = true;
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

    /// Room in quinn-proto for a stream that had none.
    pub(crate) fn unblock(&mut self, stream: StreamId) {
        if let Some(outgoing) = self.streams.get_mut(&stream) {
            outgoing.blocked = false;
        }
    }

    /// Drops what a stream was to send.
    pub(crate) fn forget_stream(&mut self, host: &mut Host, stream: StreamId) {
        let Some(outgoing) = self.streams.remove(&stream) else { return };
        for piece in outgoing.queue {
            if let Piece::File { file, offset, len } = piece {
                host.extent_release(file, offset, len, false);
            }
        }
    }

    /// The connection has ended: nothing is sent any more but what quinn-proto has to say.
    pub(crate) fn end(&mut self, host: &mut Host) {
        self.lost = true;
        let streams: Vec<StreamId> = self.streams.keys().copied().collect();
        streams.into_iter().for_each(|stream| self.forget_stream(host, stream));
        self.late.clear();
        self.offload.remove(host);
    }

    /// Gives quinn-proto what it has room for.
    pub(crate) fn pump(&mut self, cx: &mut Cx<'_>) {
        let worth = self.connected && self.bytes >= cx.config.offload_bytes_min && !self.lost;
        if worth && self.offload.is_due(self.bytes) {
            let min_rtt = self.inner.stats().path.min_rtt.as_nanos();
            let min_rtt = Duration::from_nanos(u64::try_from(min_rtt).unwrap_or(u64::MAX));
            let about = About { flow: self.flow, cids: &self.cids, min_rtt };
            if self.offload.ask(&mut cx.device(), &self.shared, &about) {
                self.inner.set_send_window(WINDOWS[1]);
            }
        }
        let mut at = None;
        loop {
            let next = match at {
                None => self.streams.iter().next(),
                Some(stream) => self
                    .streams
                    .range((std::ops::Bound::Excluded(stream), std::ops::Bound::Unbounded))
                    .next(),
            };
            let Some((&stream, _)) = next else { break };
            at = Some(stream);
            while self.step(cx, stream) {}
        }
    }

    /// Moves one piece of a stream on; says whether there is more to do at once.
    fn step(&mut self, cx: &mut Cx<'_>, stream: StreamId) -> bool {
        let by_device = self.offload.tx().is_some();
        let Some(outgoing) = self.streams.get_mut(&stream) else { return false };
        if outgoing.blocked || outgoing.reading {
            return false;
        }
        match outgoing.queue.front_mut() {
            None => {
                if outgoing.finish {
                    self.streams.remove(&stream);
                    // A stream that the peer has stopped is reset already.
                    let _ = self.inner.send_stream(stream).finish();
                }
                false
            }
            Some(Piece::Bytes(bytes)) => {
                let chunks = std::slice::from_mut(bytes);
                let written = self.inner.send_stream(stream).write_chunks(chunks);
                match written {
                    Ok(written) => outgoing.written += written.bytes as u64,
                    Err(WriteError::Blocked) => outgoing.blocked = true,
                    Err(WriteError::Stopped(_) | WriteError::ClosedStream) => {
                        self.forget_stream(cx.host, stream);
                        return false;
                    }
                }
                if bytes.is_empty() {
                    outgoing.queue.pop_front();
                }
                true
            }
            Some(&mut Piece::File { file, offset, len }) => {
                if by_device && cx.host.extent_reader(file).is_ok() {
                    self.place(cx, stream, (file, offset, len));
                    return true;
                }
                let len = u32::try_from(len.min(READ_BYTES)).unwrap_or(u32::MAX);
                let extent = FileExtent { file, offset, len };
                outgoing.reading = true;
                let what = ReadFor::Stream { handle: self.handle, stream, extent };
                cx.reads.begin(cx.host, extent, what);
                false
            }
        }
    }

    /// Puts zeros in the place of the next bytes of the file at a stream's front.
    fn place(&mut self, cx: &mut Cx<'_>, stream: StreamId, front: (FileId, u64, u64)) {
        let Some(outgoing) = self.streams.get_mut(&stream) else { return };
        let (file, offset, left) = front;
        let len = left.min(CHUNK_BYTES as u64);
        outgoing.take_front(len);
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
        let Some(&Piece::File { file, offset, .. }) = outgoing.queue.front() else { return };
        if !outgoing.reading || file != extent.file || offset != extent.offset {
            return; // The stream has another queue by now.
        }
        outgoing.reading = false;
        match result {
            Ok(bytes) => {
                let len = bytes.len() as u64;
                outgoing.take_front(len);
                outgoing.queue.push_front(Piece::Bytes(bytes));
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

    /// The device dropped a transmit with bytes of that file, or of [`SEVERAL_FILES`].
    pub(crate) fn handle_fault(&mut self, cx: &mut Cx<'_>, file: u32, fault: FileFault) {
        match fault {
            // It has lost the file, or has no room: a loss, and no fault of the file's. Of one that
            // has changed it tells apart.
            FileFault::BadExtent | FileFault::FlowFailed | FileFault::Refused(_) => {
                cx.counters.quic_out_dropped += 1;
            }
            FileFault::Changed if file == SEVERAL_FILES => cx.counters.quic_out_dropped += 1,
            _ if file == SEVERAL_FILES => self.careful = true,
            _ => self.fail_streams(cx, FileId(file)),
        }
    }

    /// Streams that have something left to be sent.
    pub(crate) fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Notes where the peer is by now (RFC 9000, section 9).
    pub(crate) fn follow_peer(&mut self, counters: &mut Counters) {
        let remote = self.inner.remote_address();
        if self.remote != remote {
            self.remote = remote;
            self.migrations += 1;
            counters.quic_migrations += 1;
        }
    }

    /// A datagram was handled: the device follows the peer's keys, and the connection IDs that the
    /// peer retired lead here no more.
    pub(crate) fn follow_packets(&mut self, cx: &mut Cx<'_>) {
        let mut state = self.shared.lock();
        self.offload.follow_rx(&mut cx.device(), &state);
        cx.counters.quic_in_disagreed += core::mem::take(&mut state.disagreed);
        if state.retired.is_empty() {
            return;
        }
        let retired = core::mem::take(&mut state.retired);
        drop(state);
        for id in retired.iter().filter_map(|sequence| self.cids.remove(sequence)) {
            self.offload.route(&mut cx.device(), id, false);
        }
    }
}

impl Outgoing {
    /// Takes bytes off the file at the front.
    fn take_front(&mut self, bytes: u64) {
        if let Some(Piece::File { offset, len, .. }) = self.queue.front_mut() {
            *offset += bytes;
            *len = len.saturating_sub(bytes);
            if *len == 0 {
                self.queue.pop_front();
            }
        }
    }
}
