//! The receiving half of a connection: window, reassembly, SACK blocks, delayed acknowledgments.
//!
//! Payload stays in the packet buffers that it arrived in; the application reads slices of them.
//! Positions are 64 bits wide: 0 is the peer's SYN, 1 its first byte.

mod reassembly;
mod rx_segment;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use abi::PacketBuf;
use abi::inspect::InspectClaims;
use abi::l5o::RxMetadata;
use base::{Duration, Instant, SeqNum};
use bytes::Bytes;
use tcp_rules::window::ReceiveWindow;

use self::reassembly::ReassemblyQueue;
pub(crate) use self::rx_segment::{RxSegment, RxSegmentPiece};
use super::buffered_u32;
use crate::lazy_box::LazyBox;

/// Length of the receive queue above which sparsely filled buffers are copied together.
const SPARSE_CHUNKS_MAX: usize = 32;
/// Maximum number of queued segments when one with metadata arrives. Those are not copied together,
/// since the metadata belongs to each segment.
const MARKED_CHUNKS_MAX: usize = 4096;
/// Segments acknowledged at once at the start of a connection: Linux's `TCP_MAX_QUICKACKS`.
const QUICK_ACKS: u8 = 16;

/// Urgency of the next acknowledgment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AckUrgency {
    Nothing,
    /// With the next data, or when the delay ends.
    Later,
    Now,
}

/// `TcpReceiveState::fin` while the FIN is unknown: beyond every position of a stream.
const NO_FIN: u64 = u64::MAX;

/// The receiving half of a connection.
#[derive(Debug)]
pub(crate) struct TcpReceiveState {
    irs: SeqNum,
    /// Position of the next byte expected in order: RCV.NXT.
    nxt: u64,
    /// Position of the right edge of the offered window, which is never taken back (RFC 9293
    /// section 3.8.6).
    edge: u64,
    /// Shift of the windows that we offer.
    pub(crate) scale: u8,
    /// Position of the peer's FIN; [`NO_FIN`] until it is known.
    fin: u64,
    ready: VecDeque<RxSegment>,
    /// At most the receive buffer.
    ready_bytes: u32,
    disorder: LazyBox<ReassemblyQueue>,
    due: AckUrgency,
    unacked_segments: u8,
    quick_acks: u8,
    /// Payload bytes of the largest packet received, an estimate of the peer's segment size.
    segment_size: u16,
    /// A CE mark was seen and the peer has not yet answered with CWR: segments carry ECE (RFC
    /// 3168).
    pub(crate) echo_ce: bool,
    /// `SHUT_RD`: received bytes are discarded.
    pub(crate) read_shut: bool,
    last_arrival: Instant,
}

/// Result of [`TcpReceiveState::take`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReceiveOutcome {
    /// New bytes can be read.
    pub(crate) readable: bool,
    /// The peer's FIN was reached in order.
    pub(crate) fin_reached: bool,
}

impl TcpReceiveState {
    /// Creates the state of a stream; `window` is the window in bytes that our SYN or SYN-ACK
    /// offered.
    pub(crate) const fn new(irs: SeqNum, scale: u8, window: u32) -> Self {
        Self {
            irs,
            nxt: 1,
            edge: 1 + window as u64,
            scale,
            fin: NO_FIN,
            ready: VecDeque::new(),
            ready_bytes: 0,
            disorder: LazyBox::new(),
            due: AckUrgency::Nothing,
            unacked_segments: 0,
            quick_acks: QUICK_ACKS,
            segment_size: 0,
            echo_ce: false,
            read_shut: false,
            last_arrival: Instant::ZERO,
        }
    }

    /// Sets the time of the last arrival.
    pub(crate) fn with_last_arrival(mut self, now: Instant) -> Self {
        self.note_alive(now);
        self
    }

    /// Takes over a request that was received before the connection had a TCB and has not been
    /// acknowledged; `unread` is the part that the application has not read.
    pub(crate) fn take_over_request(&mut self, unread: Option<RxSegment>) {
        if let Some(chunk) = unread {
            self.queue(chunk);
        }
        self.due = AckUrgency::Now;
    }

    /// Sets the initial sequence number from the SYN-ACK or SYN that answers ours.
    pub(crate) const fn synchronize(&mut self, irs: SeqNum) {
        self.irs = irs;
    }

    /// Returns the acknowledgment number to send.
    pub(crate) fn ack(&self) -> SeqNum {
        self.seq(self.nxt)
    }

    pub(crate) fn seq(&self, position: u64) -> SeqNum {
        #[expect(clippy::cast_possible_truncation, reason = "sequence numbers are modulo 2^32")]
        let low = position as u32;
        self.irs + low
    }

    /// Returns the position of the sequence number nearest to the next expected one; `None` before
    /// the SYN.
    pub(crate) fn position(&self, seq: SeqNum) -> Option<u64> {
        self.nxt.checked_add_signed(i64::from(seq.distance(self.ack())))
    }

    /// Returns whether a segment of `len` sequence numbers at `seq` touches the window. False if it
    /// begins before the peer's SYN.
    pub(crate) fn acceptable(&self, seq: SeqNum, len: u32) -> bool {
        self.position(seq).is_some() && self.window().accepts(seq, len)
    }

    fn window(&self) -> ReceiveWindow {
        // The length is 0 after a FIN right after a full window, when the next position is beyond
        // the edge.
        let len = self.edge.saturating_sub(self.nxt);
        ReceiveWindow { next: self.ack(), len: u32::try_from(len).unwrap_or(u32::MAX) }
    }

    /// Returns whether `seq` lies in the window, as that of an RST must.
    pub(crate) fn in_window(&self, seq: SeqNum) -> bool {
        self.window().contains(seq)
    }

    /// Takes the payload of an acceptable segment at `seq`, merged from `packets` packets. Buffers
    /// that are not needed, of this segment or of earlier ones, go to `spares`.
    pub(crate) fn take(
        &mut self,
        now: Instant,
        seq: SeqNum,
        mut chunk: RxSegment,
        (fin, packets): (bool, u8),
        spares: &mut impl Extend<PacketBuf>,
    ) -> ReceiveOutcome {
        let Some(start) = self.position(seq) else { return recycle_segment(chunk, spares) };
        let came = chunk.len();
        let end = start + came as u64;
        if fin && self.fin == NO_FIN && end <= self.edge {
            self.fin = end;
        }
        if end <= self.nxt && !chunk.is_empty() {
            self.report_duplicate(start, end);
            return ReceiveOutcome {
                fin_reached: self.reach_fin(),
                ..recycle_segment(chunk, spares)
            };
        }
        if start < self.nxt && !chunk.is_empty() {
            self.report_duplicate(start, self.nxt);
        }
        // Bytes outside the window or after the FIN are dropped.
        let stop = self.fin.min(self.edge);
        let Some(start) = chunk.trim(start, self.nxt, stop) else {
            if fin {
                // RFC 5681 section 4.2: a segment out of order is acknowledged at once; so is a FIN
                // in order.
                self.due = AckUrgency::Now;
            }
            return ReceiveOutcome {
                fin_reached: self.reach_fin(),
                ..recycle_segment(chunk, spares)
            };
        };
        if chunk.needs_metadata() && self.ready.len() >= MARKED_CHUNKS_MAX {
            // The queue is full; the peer retransmits the segment.
            return recycle_segment(chunk, spares);
        }
        self.note_arrival(now, packets, came);
        if start > self.nxt {
            self.due = AckUrgency::Now;
            self.insert_out_of_order(start, chunk, spares);
            return ReceiveOutcome::default();
        }
        self.nxt += chunk.len() as u64;
        self.queue(chunk);
        if !self.disorder.segments.is_empty() {
            self.queue_in_order(spares);
            // RFC 5681 section 4.2: acknowledge at once when a hole is filled.
            self.due = AckUrgency::Now;
        }
        if self.ready.len() > SPARSE_CHUNKS_MAX && !self.ready.iter().any(RxSegment::needs_metadata)
        {
            self.compact_sparse(spares);
        }
        ReceiveOutcome { readable: true, fin_reached: self.reach_fin() }
    }

    fn note_arrival(&mut self, now: Instant, packets: u8, bytes: usize) {
        self.last_arrival = now;
        let size = bytes.div_ceil(usize::from(packets.max(1)));
        self.segment_size = self.segment_size.max(u16::try_from(size).unwrap_or(u16::MAX));
        self.unacked_segments = self.unacked_segments.saturating_add(packets.max(1));
        // RFC 5681 section 4.2: at least every second segment; at the start every one, as in Linux.
        if self.unacked_segments >= 2 || self.quick_acks > 0 {
            self.quick_acks = self.quick_acks.saturating_sub(packets.max(1));
            self.due = AckUrgency::Now;
        } else if self.due == AckUrgency::Nothing {
            self.due = AckUrgency::Later;
        }
    }

    fn queue(&mut self, chunk: RxSegment) {
        self.ready_bytes += buffered_u32(chunk.len());
        self.ready.push_back(chunk);
    }

    /// Copies the queue together if its buffers hold more than four times its bytes: a peer that
    /// sends single bytes must not tie up a buffer for each.
    fn compact_sparse(&mut self, spares: &mut impl Extend<PacketBuf>) {
        let held: usize = self.ready.iter().map(RxSegment::footprint).sum();
        if held > 4 * self.ready_bytes() {
            self.join_ready(spares);
        }
    }

    /// Copies the readable bytes together. Their buffers go to `spares`, their metadata is lost.
    pub(crate) fn join_ready(&mut self, spares: &mut impl Extend<PacketBuf>) {
        if self.ready.is_empty() {
            return;
        }
        let mut bytes = Vec::with_capacity(self.ready_bytes() * 2);
        self.ready.iter().for_each(|c| bytes.extend_from_slice(c.bytes()));
        spares.extend(self.ready.drain(..).filter_map(RxSegment::into_packet));
        self.ready.push_back(RxSegment::from_copied(bytes));
    }

    fn reach_fin(&mut self) -> bool {
        if self.fin == self.nxt {
            self.nxt += 1;
            self.due = AckUrgency::Now;
            return true;
        }
        false
    }

    /// Returns the window field to send: what fits the buffer. The right edge never moves back, nor
    /// forward by less than a segment (RFC 9293 section 3.8.6.2.2).
    pub(crate) fn window_to_offer(&mut self, buffer_bytes: u32, mss: u32) -> u16 {
        let used = self.ready_bytes() + self.disorder.bytes;
        let free = (buffer_bytes as usize).saturating_sub(used) as u64;
        let worth = u64::from(mss.min(buffer_bytes / 2));
        let limit = u64::from(u16::MAX) << self.scale;
        let edge = self.nxt + free.min(limit);
        if edge >= self.edge + worth {
            self.edge = edge;
        }
        let window = (self.edge - self.nxt.min(self.edge)) >> self.scale;
        u16::try_from(window).unwrap_or(u16::MAX)
    }

    /// Returns whether a window update is worth a segment of its own.
    pub(crate) fn is_window_update_due(&self, buffer_bytes: u32, mss: u32) -> bool {
        let used = self.ready_bytes() + self.disorder.bytes;
        let free = (buffer_bytes as usize).saturating_sub(used) as u64;
        let edge = self.nxt + free.min(u64::from(u16::MAX) << self.scale);
        let offered = self.edge.saturating_sub(self.nxt);
        // As in Linux: if the window at least doubles and holds a segment. A peer that has sent
        // nothing yet learns the window from the next segment: the unscaled window of a handshake
        // is small and no reason to send a packet for each connection.
        self.nxt > 1 && edge >= self.edge + u64::from(mss) && edge - self.nxt >= 2 * offered
    }

    /// Requests an acknowledgment at once.
    pub(crate) const fn ack_now(&mut self) {
        self.due = AckUrgency::Now;
    }

    /// Turns an acknowledgment that is due at once into a delayed one. Returns whether one is
    /// pending.
    pub(crate) fn delay_ack(&mut self) -> bool {
        if self.due == AckUrgency::Now {
            self.due = AckUrgency::Later;
        }
        self.due == AckUrgency::Later
    }

    /// Returns whether an acknowledgment is due at once.
    pub(crate) fn ack_is_due(&self) -> bool {
        self.due == AckUrgency::Now
    }

    /// Returns whether an acknowledgment is delayed.
    pub(crate) fn ack_is_delayed(&self) -> bool {
        self.due == AckUrgency::Later
    }

    /// Notes that an acknowledgment was sent, alone or with data.
    pub(crate) const fn note_ack_sent(&mut self) {
        self.due = AckUrgency::Nothing;
        self.unacked_segments = 0;
    }

    /// Returns the application's next bytes, without a copy.
    pub(crate) fn peek(&self) -> &[u8] {
        self.ready.front().map_or(&[], RxSegment::bytes)
    }

    /// Returns the metadata of the segment that [`Self::peek`] shows, and the offset of the shown
    /// bytes in its payload.
    pub(crate) fn metadata_mut(&mut self) -> Option<(&mut RxMetadata, usize)> {
        Some(self.ready.front_mut()?.metadata_mut())
    }

    /// Returns the results of inspections of that segment, and the same offset.
    pub(crate) fn inspect_claims(&self) -> Option<(&InspectClaims, usize)> {
        let (metadata, offset) = self.ready.front()?.metadata();
        Some((metadata.inspected()?, offset))
    }

    /// Removes bytes from the front; returns a buffer that is used up.
    pub(crate) fn consume(&mut self, bytes: usize) -> Option<PacketBuf> {
        let front = self.ready.front_mut()?;
        let bytes = bytes.min(front.len());
        front.consume(bytes);
        self.ready_bytes -= buffered_u32(bytes);
        if front.is_empty() { self.ready.pop_front()?.into_packet() } else { None }
    }

    /// Removes all readable bytes and returns them in one copy. The buffers go to `spares`: a pool
    /// that lost them would have to allocate and clear as many, which costs more than this copy.
    pub(crate) fn take_unread(&mut self, spares: &mut impl Extend<PacketBuf>) -> Bytes {
        let mut bytes = Vec::with_capacity(core::mem::take(&mut self.ready_bytes) as usize);
        self.ready.iter().for_each(|chunk| bytes.extend_from_slice(chunk.bytes()));
        spares.extend(self.ready.drain(..).filter_map(RxSegment::into_packet));
        bytes.into()
    }

    /// Returns the position of the next byte expected in order.
    pub(crate) const fn next(&self) -> u64 {
        self.nxt
    }

    /// Returns the position of the first byte that was not read.
    pub(crate) fn read_position(&self) -> u64 {
        self.nxt - u64::from(self.is_finished()) - u64::from(self.ready_bytes)
    }

    /// Returns the position of the right edge of the offered window.
    pub(crate) const fn edge(&self) -> u64 {
        self.edge
    }

    /// Iterates over `len` bytes from offset `skip` of the readable bytes, or what there is of
    /// them: each piece with the metadata of its segment.
    pub(crate) fn pieces(
        &self,
        skip: usize,
        len: usize,
    ) -> impl Iterator<Item = RxSegmentPiece<'_>> {
        let (mut skip, mut left) = (skip, len);
        self.ready.iter().map_while(move |chunk| {
            if left == 0 {
                return None;
            }
            let from = skip.min(chunk.len());
            let here = left.min(chunk.len() - from);
            (skip, left) = (skip - from, left - here);
            Some(chunk.piece(from, here))
        })
    }

    /// Copies readable bytes from offset `skip`; returns whether there were enough to fill `out`.
    pub(crate) fn copy_to(&self, skip: usize, out: &mut [u8]) -> bool {
        let mut done = 0;
        for piece in self.pieces(skip, out.len()) {
            let bytes = piece.bytes();
            out[done..done + bytes.len()].copy_from_slice(bytes);
            done += bytes.len();
        }
        done == out.len()
    }

    /// Returns the payload bytes of the largest packet received.
    pub(crate) const fn segment_size(&self) -> u16 {
        self.segment_size
    }

    /// Returns the number of readable bytes.
    pub(crate) const fn ready_bytes(&self) -> usize {
        self.ready_bytes as usize
    }

    /// Returns whether the peer's FIN has been reached.
    pub(crate) fn is_finished(&self) -> bool {
        self.nxt > self.fin
    }

    /// Returns the time since the last arrival.
    pub(crate) fn time_since_arrival(&self, now: Instant) -> Duration {
        now.since(self.last_arrival)
    }

    /// Notes a sign of life of the peer.
    pub(crate) const fn note_alive(&mut self, now: Instant) {
        self.last_arrival = now;
    }

    /// Releases memory that an idle connection does not need.
    pub(crate) fn shrink(&mut self) {
        if self.ready.is_empty() {
            self.ready = VecDeque::new();
        }
        if !self.has_holes() {
            self.disorder.reset();
        }
    }

    /// Drops all payload and returns every buffer to `spares`.
    pub(crate) fn clear(&mut self, spares: &mut impl Extend<PacketBuf>) {
        let mut waiting = Vec::new();
        if !self.disorder.segments.is_empty() {
            waiting = core::mem::take(&mut self.disorder.segments);
        }
        self.disorder.reset();
        let ready = core::mem::take(&mut self.ready);
        let chunks = ready.into_iter().chain(waiting.into_iter().map(|w| w.chunk));
        spares.extend(chunks.filter_map(RxSegment::into_packet));
        self.ready_bytes = 0;
    }
}

fn recycle_segment(chunk: RxSegment, spares: &mut impl Extend<PacketBuf>) -> ReceiveOutcome {
    spares.extend(chunk.into_packet());
    ReceiveOutcome::default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::PacketPool;
    use proptest::prelude::*;
    use wire::tcp::TcpOptions;

    const IRS: SeqNum = SeqNum(u32::MAX - 50);

    fn chunk(bytes: &[u8]) -> RxSegment {
        let packet = PacketPool::new(0).copy(bytes).unwrap();
        RxSegment::new(packet, 0, bytes.len(), RxMetadata::default())
    }

    fn take(rcv: &mut TcpReceiveState, at: u32, bytes: &[u8], fin: bool) -> ReceiveOutcome {
        rcv.take(Instant::ZERO, IRS + at, chunk(bytes), (fin, 1), &mut Vec::new())
    }

    fn read_all(rcv: &mut TcpReceiveState) -> Vec<u8> {
        read_into(rcv, &mut Vec::new())
    }

    fn read_into(rcv: &mut TcpReceiveState, spares: &mut Vec<PacketBuf>) -> Vec<u8> {
        let mut out = Vec::new();
        while rcv.ready_bytes() > 0 {
            out.extend_from_slice(rcv.peek());
            spares.extend(rcv.consume(rcv.peek().len()));
        }
        out
    }

    fn blocks(rcv: &mut TcpReceiveState) -> Vec<(u32, u32)> {
        let mut options = TcpOptions::default();
        rcv.sack_blocks(&mut options, 3);
        let at = |seq: SeqNum| u32::try_from(seq.distance(IRS)).unwrap();
        options.sack().iter().map(|b| (at(b.start), at(b.end))).collect()
    }

    #[test]
    fn holes_are_reported_and_filled() {
        let mut rcv = TcpReceiveState::new(IRS, 0, 1000);
        assert!(take(&mut rcv, 1, b"abc", false).readable);
        assert!(!take(&mut rcv, 7, b"ghi", false).readable);
        assert!(!take(&mut rcv, 13, b"mno", false).readable);
        assert_eq!(blocks(&mut rcv), [(13, 16), (7, 10)], "the latest first");
        assert!(rcv.ack_is_due());
        take(&mut rcv, 10, b"jkl", false);
        assert_eq!(blocks(&mut rcv), [(7, 16)]);
        take(&mut rcv, 7, b"ghi", false);
        assert_eq!(blocks(&mut rcv), [(7, 10), (7, 16)], "a duplicate is reported first, once");
        assert_eq!(blocks(&mut rcv), [(7, 16)]);
        let filled = take(&mut rcv, 4, b"defg", true);
        assert!(filled.readable && !filled.fin_reached);
        assert_eq!(read_all(&mut rcv), b"abcdefghijklmno");
        assert!(!rcv.has_holes());
    }

    #[test]
    fn the_fin_counts_once_everything_before_it_is_there() {
        let mut rcv = TcpReceiveState::new(IRS, 0, 1000);
        assert!(!take(&mut rcv, 4, b"def", true).fin_reached);
        assert!(take(&mut rcv, 1, b"abc", false).fin_reached);
        assert!(rcv.is_finished());
        assert_eq!(rcv.ack(), IRS + 8);
        assert!(!take(&mut rcv, 8, b"beyond the end", false).readable);
        assert_eq!(read_all(&mut rcv), b"abcdef");
    }

    #[test]
    fn nothing_outside_the_window_is_taken() {
        let mut rcv = TcpReceiveState::new(IRS, 0, 4);
        assert!(!rcv.acceptable(IRS + 5, 1));
        assert!(rcv.acceptable(IRS + 4, 9));
        take(&mut rcv, 1, b"abcdefgh", false);
        assert_eq!(read_all(&mut rcv), b"abcd");
        assert!(!rcv.acceptable(IRS + 5, 1), "the window is closed");
        assert!(rcv.acceptable(IRS + 5, 0));
    }

    #[test]
    fn the_window_never_shrinks_and_opens_by_segments() {
        let mut rcv = TcpReceiveState::new(IRS, 0, 1000);
        assert_eq!(rcv.window_to_offer(1000, 100), 1000);
        take(&mut rcv, 1, &[0; 500], false);
        assert_eq!(rcv.window_to_offer(1000, 100), 500);
        assert_eq!(rcv.window_to_offer(400, 100), 500, "a smaller buffer does not take it back");
        rcv.consume(50);
        assert_eq!(rcv.window_to_offer(1000, 100), 500, "50 bytes are not worth it");
        rcv.consume(450);
        assert!(rcv.is_window_update_due(1000, 100));
        assert_eq!(rcv.window_to_offer(1000, 100), 1000);
    }

    #[test]
    fn single_bytes_do_not_hold_a_buffer_each() {
        let mut rcv = TcpReceiveState::new(IRS, 0, 10_000);
        let mut spares = Vec::new();
        for i in 0..500 {
            rcv.take(Instant::ZERO, IRS + 1 + i, chunk(b"x"), (false, 1), &mut spares);
        }
        assert!(rcv.ready.len() <= SPARSE_CHUNKS_MAX + 1);
        assert_eq!(read_into(&mut rcv, &mut spares), [b'x'; 500]);
        assert_eq!(spares.len(), 500, "every buffer comes back");
    }

    proptest! {
        /// Segments of one stream in any order, cut and overlapped in any way, yield the stream,
        /// and each buffer is returned.
        #[test]
        fn reassembles(pieces in proptest::collection::vec((0..200_u32, 1..60_u32), 0..40)) {
            let stream: Vec<u8> = (0..=199).collect();
            let mut rcv = TcpReceiveState::new(IRS, 0, 1000);
            let mut have = [false; 200];
            let (mut out, mut spares) = (Vec::new(), Vec::new());
            let whole = [(0, 200)];
            for (round, &(at, len)) in pieces.iter().chain(&whole).enumerate() {
                let (from, to) = (at as usize, (at + len).min(200) as usize);
                let segment = chunk(&stream[from..to]);
                rcv.take(Instant::ZERO, IRS + 1 + at, segment, (to == 200, 1), &mut spares);
                have[from..to].fill(true);
                if round % 3 == 0 {
                    out.extend(read_into(&mut rcv, &mut spares));
                }
                let prefix = have.iter().take_while(|&&h| h).count();
                let ahead = usize::try_from(rcv.ack().distance(IRS + 1)).unwrap();
                prop_assert_eq!(ahead, prefix + usize::from(prefix == 200));
                let waiting: usize = rcv.disorder.segments.iter().map(|w| w.chunk.len()).sum();
                prop_assert_eq!(waiting, rcv.disorder.bytes);
                prop_assert_eq!(waiting, have.iter().skip(prefix).filter(|&&h| h).count());
            }
            out.extend(read_into(&mut rcv, &mut spares));
            prop_assert_eq!(out, stream);
            prop_assert_eq!(spares.len(), pieces.len() + 1);
        }
    }
}
