//! The receiving half of a connection: window, reassembly, SACK blocks, and when to acknowledge.
//!
//! Payload stays in the packet buffers that it came in; what the application reads are slices of
//! them. Positions are 64 bits wide like the sender's: 0 is the peer's SYN, 1 its first byte.

mod chunk;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use abi::PacketBuf;
use abi::nvme_tcp::Placed;
use base::{Duration, Instant, SeqNum};
use bytes::Bytes;
use wire::tcp::{Options, SackBlock};

pub(crate) use self::chunk::{Chunk, Piece};
use crate::rare::{AtRest, Rare};

/// Segments that may wait for a hole to be filled: an attacker's bytes are bounded by this and by
/// the window.
const OUT_OF_ORDER_MAX: usize = 1024;
/// Buffers that may hold far more than their payload before the queue is copied together.
const SPARSE_CHUNKS_MAX: usize = 32;
/// Segments that the device opened, and that wait to be read: these are not copied together, since
/// what was opened of each is known of each.
const OPENED_CHUNKS_MAX: usize = 4096;
/// Segments acknowledged at once at the beginning of a connection: Linux's TCP_MAX_QUICKACKS.
const QUICK_ACKS: u8 = 16;

/// A segment that waits for a hole before it to be filled.
#[derive(Debug)]
struct Waiting {
    start: u64,
    chunk: Chunk,
}

impl Waiting {
    const fn end(&self) -> u64 {
        self.start + self.chunk.len() as u64
    }
}

/// What is to be acknowledged, and how soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    /// With the next data, or after a delay.
    Later,
    Now,
}

/// What came out of order, or twice: at rest while everything comes as it was sent.
#[derive(Debug, Default)]
struct Disorder {
    /// Segments behind a hole, in order and without overlaps.
    waiting: Vec<Waiting>,
    /// Payload bytes of them.
    bytes: usize,
    /// Starts of the segments that last came out of order, for the order of SACK blocks.
    recent: [u64; 3],
    /// A range that came twice: reported once (RFC 2883).
    duplicate: Option<(u64, u64)>,
}

impl AtRest for Disorder {
    fn at_rest() -> &'static Self {
        static AT_REST: Disorder =
            Disorder { waiting: Vec::new(), bytes: 0, recent: [0; 3], duplicate: None };
        &AT_REST
    }
}

/// State of the receiving half.
#[derive(Debug)]
pub(crate) struct Receive {
    irs: SeqNum,
    /// Position of the next byte expected in order.
    nxt: u64,
    /// Right edge of the window that was offered: never taken back (RFC 9293 section 3.8.6).
    edge: u64,
    /// Shift of the windows that we offer.
    pub(crate) scale: u8,
    /// Position of the peer's FIN, once it is known.
    fin: Option<u64>,
    ready: VecDeque<Chunk>,
    ready_bytes: usize,
    disorder: Rare<Disorder>,
    due: Due,
    unacked_segments: u8,
    quick_acks: u8,
    /// Payload of the largest segment that came: what the peer sends by.
    segment_size: u16,
    last_arrival: Instant,
}

/// What became of a segment's payload.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// New bytes are ready to be read.
    pub(crate) readable: bool,
    /// The peer's FIN was reached, in order.
    pub(crate) fin_reached: bool,
    /// The buffer, where it is not needed.
    pub(crate) spare: Option<PacketBuf>,
}

impl Receive {
    /// `window` is what the SYN-ACK or the SYN offered.
    pub(crate) const fn new(irs: SeqNum, scale: u8, window: u32) -> Self {
        Self {
            irs,
            nxt: 1,
            edge: 1 + window as u64,
            scale,
            fin: None,
            ready: VecDeque::new(),
            ready_bytes: 0,
            disorder: Rare::new(),
            due: Due::Nothing,
            unacked_segments: 0,
            quick_acks: QUICK_ACKS,
            segment_size: 0,
            last_arrival: Instant::ZERO,
        }
    }

    /// The same, as of a connection that begins at `now`.
    pub(crate) fn heard_at(mut self, now: Instant) -> Self {
        self.heard(now);
        self
    }

    /// A connection that begins with a request which came before there was one: it is read up to
    /// `unread`, and not acknowledged.
    pub(crate) fn resume(&mut self, unread: Option<Chunk>) {
        if let Some(chunk) = unread {
            self.queue(chunk);
        }
        self.due = Due::Now;
    }

    /// The peer's SYN came: a connection that we open learns where the stream begins.
    pub(crate) const fn synchronize(&mut self, irs: SeqNum) {
        self.irs = irs;
    }

    /// The acknowledgment number to send.
    pub(crate) fn ack(&self) -> SeqNum {
        self.seq(self.nxt)
    }

    pub(crate) fn seq(&self, position: u64) -> SeqNum {
        #[expect(clippy::cast_possible_truncation, reason = "sequence numbers are modulo 2^32")]
        let low = position as u32;
        self.irs + low
    }

    /// Position of the sequence number nearest to what is expected; none before the SYN.
    pub(crate) fn position(&self, seq: SeqNum) -> Option<u64> {
        self.nxt.checked_add_signed(i64::from(seq.distance(self.ack())))
    }

    /// Whether a segment of `len` sequence numbers at `seq` touches the window: RFC 9293 section
    /// 3.4, table 6.
    pub(crate) fn acceptable(&self, seq: SeqNum, len: u32) -> bool {
        let Some(start) = self.position(seq) else { return false };
        let window = self.edge - self.nxt;
        match (len, window) {
            (0, 0) => start == self.nxt,
            (0, _) => (self.nxt..self.edge).contains(&start) || start == self.nxt,
            (_, 0) => false,
            (len, _) => start < self.edge && start + u64::from(len) > self.nxt,
        }
    }

    /// Whether `seq` lies in the window, as an RST's must.
    pub(crate) fn in_window(&self, seq: SeqNum) -> bool {
        self.position(seq).is_some_and(|p| (self.nxt..self.edge.max(self.nxt + 1)).contains(&p))
    }

    /// Takes the payload of an acceptable segment at `seq`, `packets` merged packets of it.
    pub(crate) fn take(
        &mut self,
        now: Instant,
        seq: SeqNum,
        mut chunk: Chunk,
        fin: bool,
        packets: u8,
    ) -> Taken {
        let Some(start) = self.position(seq) else { return spare(chunk) };
        let came = chunk.len();
        let end = start + came as u64;
        if fin && self.fin.is_none() && end <= self.edge {
            self.fin = Some(end);
        }
        if end <= self.nxt && !chunk.is_empty() {
            self.report_duplicate(start, end);
            return Taken { fin_reached: self.reach_fin(), ..spare(chunk) };
        }
        if start < self.nxt && !chunk.is_empty() {
            self.report_duplicate(start, self.nxt);
        }
        // What lies outside the window, or behind the FIN, is not taken.
        let stop = self.fin.map_or(self.edge, |fin| fin.min(self.edge));
        let Some(start) = chunk.trim(start, self.nxt, stop) else {
            if fin {
                // RFC 5681 section 4.2: what comes out of order is answered at once; so is a FIN in
                // order.
                self.due = Due::Now;
            }
            return Taken { fin_reached: self.reach_fin(), ..spare(chunk) };
        };
        if chunk.is_marked() && self.ready.len() >= OPENED_CHUNKS_MAX {
            // It comes again.
            return spare(chunk);
        }
        self.note_arrival(now, packets, came);
        if start > self.nxt {
            self.due = Due::Now;
            return Taken { spare: self.wait(start, chunk), ..Taken::default() };
        }
        self.nxt += chunk.len() as u64;
        self.queue(chunk);
        let mut taken = Taken { readable: true, ..Taken::default() };
        if !self.disorder.waiting.is_empty() {
            taken.spare = self.join_waiting();
            // RFC 5681 section 4.2: at once when a hole is filled.
            self.due = Due::Now;
        }
        taken.fin_reached = self.reach_fin();
        taken
    }

    fn note_arrival(&mut self, now: Instant, packets: u8, bytes: usize) {
        self.last_arrival = now;
        let size = bytes.div_ceil(usize::from(packets.max(1)));
        self.segment_size = self.segment_size.max(u16::try_from(size).unwrap_or(u16::MAX));
        self.unacked_segments = self.unacked_segments.saturating_add(packets.max(1));
        // RFC 5681 section 4.2: at least every second segment; quickly at the start, as Linux.
        if self.unacked_segments >= 2 || self.quick_acks > 0 {
            self.quick_acks = self.quick_acks.saturating_sub(packets.max(1));
            self.due = Due::Now;
        } else if self.due == Due::Nothing {
            self.due = Due::Later;
        }
    }

    fn queue(&mut self, chunk: Chunk) {
        self.ready_bytes += chunk.len();
        self.ready.push_back(chunk);
        if self.ready.len() > SPARSE_CHUNKS_MAX && !self.ready.iter().any(Chunk::is_marked) {
            self.join_sparse();
        }
    }

    /// Copies the queue together where its buffers hold more than four times its bytes: a peer that
    /// sends single bytes must not tie up a buffer for each.
    fn join_sparse(&mut self) {
        let held: usize = self.ready.iter().map(Chunk::footprint).sum();
        if held > 4 * self.ready_bytes {
            let mut bytes = Vec::with_capacity(self.ready_bytes * 2);
            self.ready.iter().for_each(|c| bytes.extend_from_slice(c.bytes()));
            self.ready.clear();
            self.ready.push_back(Chunk::joined(bytes));
        }
    }

    fn reach_fin(&mut self) -> bool {
        if self.fin == Some(self.nxt) {
            self.nxt += 1;
            self.due = Due::Now;
            return true;
        }
        false
    }

    /// Keeps a segment for later, without the bytes that are already there; gives its buffer back
    /// where nothing of it is new or there is no room.
    fn wait(&mut self, mut start: u64, mut chunk: Chunk) -> Option<PacketBuf> {
        let mut index = self.disorder.waiting.partition_point(|w| w.start <= start);
        if index > 0 && self.disorder.waiting[index - 1].end() > start {
            let before = self.disorder.waiting[index - 1].end();
            let (from, to) = (start, (start + chunk.len() as u64).min(before));
            self.report_duplicate(from, to);
            let Some(rest) = chunk.trim(start, before, u64::MAX) else {
                return chunk.into_packet();
            };
            start = rest;
        }
        let end = start + chunk.len() as u64;
        // Segments that this one covers whole go; one that it overlaps keeps its bytes.
        while let Some(next) = self.disorder.waiting.get(index) {
            if next.start >= end {
                break;
            }
            if next.end() <= end {
                let gone = self.disorder.waiting.remove(index);
                self.disorder.bytes -= gone.chunk.len();
            } else {
                let stop = next.start;
                chunk.trim(start, start, stop);
                break;
            }
        }
        if chunk.is_empty() || self.disorder.waiting.len() >= OUT_OF_ORDER_MAX {
            return chunk.into_packet();
        }
        self.disorder.recent = [start, self.disorder.recent[0], self.disorder.recent[1]];
        self.disorder.bytes += chunk.len();
        index = index.min(self.disorder.waiting.len());
        self.disorder.waiting.insert(index, Waiting { start, chunk });
        None
    }

    /// Moves what is in order now to the queue of the application.
    fn join_waiting(&mut self) -> Option<PacketBuf> {
        // The run to move is at the front, and every segment in it may bring the next into order.
        let mut reach = self.nxt;
        let count = self
            .disorder
            .waiting
            .iter()
            .take_while(|waiting| {
                let joins = waiting.start <= reach;
                reach = if joins { reach.max(waiting.end()) } else { reach };
                joins
            })
            .count();
        let moved: Vec<Waiting> = self.disorder.waiting.drain(..count).collect();
        let mut spare = None;
        for mut waiting in moved {
            self.disorder.bytes -= waiting.chunk.len();
            let Some(_) = waiting.chunk.trim(waiting.start, self.nxt, u64::MAX) else {
                spare = waiting.chunk.into_packet();
                continue;
            };
            self.nxt += waiting.chunk.len() as u64;
            self.queue(waiting.chunk);
        }
        if self.disorder.waiting.is_empty() {
            self.disorder.waiting = Vec::new();
        }
        spare
    }

    /// Reports what of an unacceptable segment's payload had come before: only that was received
    /// (RFC 2883 section 4). A probe of a closed window, for one, brings a byte that is not kept.
    pub(crate) fn note_duplicate(&mut self, seq: SeqNum, len: usize) {
        let Some(start) = self.position(seq) else { return };
        let end = (start + len as u64).min(self.nxt);
        if start < end {
            self.report_duplicate(start, end);
        }
    }

    fn report_duplicate(&mut self, start: u64, end: u64) {
        self.disorder.duplicate = Some((start, end));
        self.due = Due::Now;
    }

    /// Adds SACK blocks: a duplicate first (RFC 2883), then the run that the latest segment is part
    /// of, then others lately reported (RFC 2018 section 4).
    pub(crate) fn sack_blocks(&mut self, options: &mut Options, max: usize) {
        let mut left = max;
        if let Some((start, end)) = self.disorder.duplicate.take() {
            if left > 0 {
                options.push_sack(SackBlock { start: self.seq(start), end: self.seq(end) });
                left -= 1;
            }
        }
        let mut reported: [u64; 4] = [0; 4];
        for at in
            self.disorder.recent.into_iter().chain(self.disorder.waiting.first().map(|w| w.start))
        {
            let Some((start, end)) = self.run_at(at) else { continue };
            if left == 0 || reported.contains(&start) {
                continue;
            }
            reported[left % 4] = start;
            left -= 1;
            options.push_sack(SackBlock { start: self.seq(start), end: self.seq(end) });
        }
    }

    /// A duplicate is reported at most once, and not at all to a peer without SACK.
    pub(crate) fn forget_duplicate(&mut self) {
        if self.disorder.duplicate.is_some() {
            self.disorder.duplicate = None;
        }
    }

    /// The run of waiting bytes that holds `position`.
    fn run_at(&self, position: u64) -> Option<(u64, u64)> {
        let index = self.disorder.waiting.partition_point(|w| w.end() <= position);
        let hit = self.disorder.waiting.get(index).filter(|w| w.start <= position)?;
        let (mut start, mut end) = (hit.start, hit.end());
        for before in self.disorder.waiting[..index].iter().rev() {
            if before.end() != start {
                break;
            }
            start = before.start;
        }
        for after in &self.disorder.waiting[index + 1..] {
            if after.start != end {
                break;
            }
            end = after.end();
        }
        Some((start, end))
    }

    /// Whether bytes wait behind a hole: acknowledgments then carry SACK blocks.
    pub(crate) fn has_holes(&self) -> bool {
        !self.disorder.waiting.is_empty() || self.disorder.duplicate.is_some()
    }

    /// The window field to send: what fits the buffer, without moving the right edge by less than a
    /// segment (RFC 9293 section 3.8.6.2.2) and without moving it back.
    pub(crate) fn offer(&mut self, buffer_bytes: u32, mss: u32) -> u16 {
        let used = self.ready_bytes + self.disorder.bytes;
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

    /// Whether the window that would be offered now is worth telling the peer about.
    pub(crate) fn window_opened(&self, buffer_bytes: u32, mss: u32) -> bool {
        let used = self.ready_bytes + self.disorder.bytes;
        let free = (buffer_bytes as usize).saturating_sub(used) as u64;
        let edge = self.nxt + free.min(u64::from(u16::MAX) << self.scale);
        let offered = self.edge.saturating_sub(self.nxt);
        // As Linux: when it at least doubles and holds a segment. A peer that has sent nothing yet
        // learns it soon enough: the unscaled window of a handshake is small, and is no reason to
        // send a packet for each connection.
        self.nxt > 1 && edge >= self.edge + u64::from(mss) && edge - self.nxt >= 2 * offered
    }

    /// An acknowledgment has to go out at once.
    pub(crate) const fn ack_now(&mut self) {
        self.due = Due::Now;
    }

    /// One that has to go out at once may wait for the delay after all. Says whether there is one.
    pub(crate) fn delay_ack(&mut self) -> bool {
        if self.due == Due::Now {
            self.due = Due::Later;
        }
        self.due == Due::Later
    }

    /// Whether one has to.
    pub(crate) fn ack_is_due(&self) -> bool {
        self.due == Due::Now
    }

    /// Whether one may wait for the delay.
    pub(crate) fn ack_is_delayed(&self) -> bool {
        self.due == Due::Later
    }

    /// An acknowledgment went out, alone or with data.
    pub(crate) const fn acked(&mut self) {
        self.due = Due::Nothing;
        self.unacked_segments = 0;
    }

    /// The application's next bytes, without a copy.
    pub(crate) fn peek(&self) -> &[u8] {
        self.ready.front().map_or(&[], Chunk::bytes)
    }

    /// What the device did with the NVMe/TCP in the segment that [`Self::peek`] shows, and where in
    /// its payload the bytes shown begin.
    pub(crate) fn placed(&mut self) -> Option<(&mut Placed, usize)> {
        self.ready.front_mut()?.placed()
    }

    /// Takes bytes off the front; gives a buffer back when it is used up.
    pub(crate) fn consume(&mut self, bytes: usize) -> Option<PacketBuf> {
        let front = self.ready.front_mut()?;
        let bytes = bytes.min(front.len());
        front.consume(bytes);
        self.ready_bytes -= bytes;
        if front.is_empty() { self.ready.pop_front()?.into_packet() } else { None }
    }

    /// Takes all that can be read, without a copy: the buffers go to the allocator when the bytes
    /// are not needed any more.
    pub(crate) fn take_unread(&mut self) -> Vec<Bytes> {
        self.ready_bytes = 0;
        self.ready.drain(..).map(Bytes::from_owner).collect()
    }

    /// Whether bytes are missing before some that came.
    pub(crate) fn has_gap(&self) -> bool {
        !self.disorder.waiting.is_empty()
    }

    /// Position of the next byte expected in order.
    pub(crate) const fn next(&self) -> u64 {
        self.nxt
    }

    /// Position of the first byte that was not read.
    pub(crate) fn read_position(&self) -> u64 {
        self.nxt - u64::from(self.finished()) - self.ready_bytes as u64
    }

    /// Right edge of the window that was offered.
    pub(crate) const fn edge(&self) -> u64 {
        self.edge
    }

    /// What can be read of `len` bytes from `skip` bytes behind the first: each piece with what the
    /// device opened of the segment that it came in.
    pub(crate) fn pieces(&self, skip: usize, len: usize) -> impl Iterator<Item = Piece<'_>> {
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

    /// Copies the bytes from `skip` bytes behind the first; says whether there are as many.
    pub(crate) fn copy_to(&self, skip: usize, out: &mut [u8]) -> bool {
        let mut done = 0;
        for piece in self.pieces(skip, out.len()) {
            let bytes = piece.bytes();
            out[done..done + bytes.len()].copy_from_slice(bytes);
            done += bytes.len();
        }
        done == out.len()
    }

    /// Payload of the largest segment that came.
    pub(crate) const fn segment_size(&self) -> u16 {
        self.segment_size
    }

    /// Bytes that the application can read.
    pub(crate) const fn ready_bytes(&self) -> usize {
        self.ready_bytes
    }

    /// Whether the peer's FIN has been reached.
    pub(crate) fn finished(&self) -> bool {
        self.fin.is_some_and(|fin| self.nxt > fin)
    }

    /// Time since something last arrived.
    pub(crate) fn quiet(&self, now: Instant) -> Duration {
        now.since(self.last_arrival)
    }

    /// The peer gave a sign of life.
    pub(crate) const fn heard(&mut self, now: Instant) {
        self.last_arrival = now;
    }

    /// Gives memory back that an idle connection does not need.
    pub(crate) fn shrink(&mut self) {
        if self.ready.is_empty() {
            self.ready = VecDeque::new();
        }
        if !self.has_holes() {
            self.disorder.rest();
        }
    }

    /// Gives every buffer back.
    pub(crate) fn clear(&mut self, mut recycle: impl FnMut(PacketBuf)) {
        let mut waiting = Vec::new();
        if !self.disorder.waiting.is_empty() {
            waiting = core::mem::take(&mut self.disorder.waiting);
        }
        self.disorder.rest();
        let ready = core::mem::take(&mut self.ready);
        for chunk in ready.into_iter().chain(waiting.into_iter().map(|w| w.chunk)) {
            if let Some(packet) = chunk.into_packet() {
                recycle(packet);
            }
        }
        self.ready_bytes = 0;
    }
}

fn spare(chunk: Chunk) -> Taken {
    Taken { spare: chunk.into_packet(), ..Taken::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::PacketPool;
    use proptest::prelude::*;

    const IRS: SeqNum = SeqNum(u32::MAX - 50);

    fn chunk(bytes: &[u8]) -> Chunk {
        let packet = PacketPool::new(0).copy(bytes).unwrap();
        Chunk::new(packet, 0, bytes.len(), None, None)
    }

    fn take(rcv: &mut Receive, at: u32, bytes: &[u8], fin: bool) -> Taken {
        rcv.take(Instant::ZERO, IRS + at, chunk(bytes), fin, 1)
    }

    fn read_all(rcv: &mut Receive) -> Vec<u8> {
        let mut out = Vec::new();
        while rcv.ready_bytes() > 0 {
            out.extend_from_slice(rcv.peek());
            rcv.consume(rcv.peek().len());
        }
        out
    }

    fn blocks(rcv: &mut Receive) -> Vec<(u32, u32)> {
        let mut options = Options::default();
        rcv.sack_blocks(&mut options, 3);
        let at = |seq: SeqNum| u32::try_from(seq.distance(IRS)).unwrap();
        options.sack().iter().map(|b| (at(b.start), at(b.end))).collect()
    }

    #[test]
    fn holes_are_reported_and_filled() {
        let mut rcv = Receive::new(IRS, 0, 1000);
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
        let mut rcv = Receive::new(IRS, 0, 1000);
        assert!(!take(&mut rcv, 4, b"def", true).fin_reached);
        assert!(take(&mut rcv, 1, b"abc", false).fin_reached);
        assert!(rcv.finished());
        assert_eq!(rcv.ack(), IRS + 8);
        assert!(!take(&mut rcv, 8, b"beyond the end", false).readable);
        assert_eq!(read_all(&mut rcv), b"abcdef");
    }

    #[test]
    fn nothing_outside_the_window_is_taken() {
        let mut rcv = Receive::new(IRS, 0, 4);
        assert!(!rcv.acceptable(IRS + 5, 1));
        assert!(rcv.acceptable(IRS + 4, 9));
        take(&mut rcv, 1, b"abcdefgh", false);
        assert_eq!(read_all(&mut rcv), b"abcd");
        assert!(!rcv.acceptable(IRS + 5, 1), "the window is closed");
        assert!(rcv.acceptable(IRS + 5, 0));
    }

    #[test]
    fn the_window_never_shrinks_and_opens_by_segments() {
        let mut rcv = Receive::new(IRS, 0, 1000);
        assert_eq!(rcv.offer(1000, 100), 1000);
        take(&mut rcv, 1, &[0; 500], false);
        assert_eq!(rcv.offer(1000, 100), 500);
        assert_eq!(rcv.offer(400, 100), 500, "a smaller buffer does not take it back");
        rcv.consume(50);
        assert_eq!(rcv.offer(1000, 100), 500, "50 bytes are not worth it");
        rcv.consume(450);
        assert!(rcv.window_opened(1000, 100));
        assert_eq!(rcv.offer(1000, 100), 1000);
    }

    #[test]
    fn single_bytes_do_not_hold_a_buffer_each() {
        let mut rcv = Receive::new(IRS, 0, 10_000);
        for i in 0..500 {
            take(&mut rcv, 1 + i, b"x", false);
        }
        assert!(rcv.ready.len() <= SPARSE_CHUNKS_MAX + 1);
        assert_eq!(read_all(&mut rcv), [b'x'; 500]);
    }

    proptest! {
        /// Segments of one stream in any order, cut and overlapped in any way, come out as the
        /// stream.
        #[test]
        fn reassembles(pieces in proptest::collection::vec((0..200_u32, 1..60_u32), 0..40)) {
            let stream: Vec<u8> = (0..=199).collect();
            let mut rcv = Receive::new(IRS, 0, 1000);
            let mut have = [false; 200];
            let mut out = Vec::new();
            let whole = [(0, 200)];
            for (round, &(at, len)) in pieces.iter().chain(&whole).enumerate() {
                let (from, to) = (at as usize, (at + len).min(200) as usize);
                take(&mut rcv, 1 + at, &stream[from..to], to == 200);
                have[from..to].fill(true);
                if round % 3 == 0 {
                    out.extend(read_all(&mut rcv));
                }
                let prefix = have.iter().take_while(|&&h| h).count();
                let ahead = usize::try_from(rcv.ack().distance(IRS + 1)).unwrap();
                prop_assert_eq!(ahead, prefix + usize::from(prefix == 200));
                let waiting: usize = rcv.disorder.waiting.iter().map(|w| w.chunk.len()).sum();
                prop_assert_eq!(waiting, rcv.disorder.bytes);
                prop_assert_eq!(waiting, have.iter().skip(prefix).filter(|&&h| h).count());
            }
            out.extend(read_all(&mut rcv));
            prop_assert_eq!(out, stream);
        }
    }
}
