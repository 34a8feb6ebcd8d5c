//! The scoreboard of RFC 6675: ranges that were sent and are not acknowledged, with the
//! transmission times of RFC 8985.
//!
//! An entry is a range that was sent in one transmit. It is split when a SACK or a retransmission
//! covers only part of it. Entries are in order of position and cover SND.UNA to SND.NXT without
//! holes. An entry whose transmit has not been echoed by the device is *pending*: it has not left
//! the machine, so it can be neither lost nor a sample of the round-trip time.

use base::{Duration, Instant};

use super::inline_first_queue::InlineFirstQueue;
use crate::lazy_box::{LazyBox, StaticDefault};

/// A range of the stream that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SentRange {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Time at which the range was last sent or, while it is pending, handed to the device.
    pub(crate) xmit: Instant,
    /// Tag of the last transmit, by which the echo is matched.
    pub(crate) tag: u32,
    /// Payload bytes of the full segments, counted from `start`.
    segment_size: u16,
    /// Flags: [`SACKED`], [`LOST`], [`RESENT`], [`EVER_RESENT`], [`PENDING`], [`LOSS_TAKEN`].
    bits: u8,
}

/// Properties of a transmit of a range.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SentRangeInfo {
    /// Tag of the transmit, by which the echo is matched.
    pub(crate) tag: u32,
    /// Payload bytes of a full segment.
    pub(crate) segment_size: u16,
    /// The device will echo the transmit.
    pub(crate) pending: bool,
}

/// The range was selectively acknowledged.
const SACKED: u8 = 1;
/// The range was found lost.
const LOST: u8 = 2;
/// The retransmission of the range is in flight; only together with `LOST`.
const RESENT: u8 = 4;
/// The range was ever retransmitted: no sample of the round-trip time (Karn's rule).
const EVER_RESENT: u8 = 8;
/// The last transmit of the range has not been echoed.
const PENDING: u8 = 16;
/// The loss was passed to congestion control; only together with `LOST`.
const LOSS_TAKEN: u8 = 32;

impl SentRange {
    const fn len(&self) -> u64 {
        self.end - self.start
    }

    const fn has(&self, bit: u8) -> bool {
        self.bits & bit != 0
    }

    /// Returns how many segments that were sent later arrived before this one, if the last of them
    /// ends at `position`.
    pub(crate) fn overtaken_by(&self, position: u64) -> u64 {
        position.saturating_sub(self.start).div_ceil(u64::from(self.segment_size.max(1)))
    }

    /// Returns whether the transmit has not been echoed: the time since then measures nothing.
    pub(crate) const fn is_pending(&self) -> bool {
        self.has(PENDING)
    }

    /// Returns the length of the first segment.
    pub(crate) fn first_segment_bytes(&self) -> u64 {
        self.len().min(self.segment_size.max(1).into())
    }

    /// Returns the last segment boundary of the range that is not after `position`.
    fn boundary_at_or_before(&self, position: u64) -> u64 {
        let size = u64::from(self.segment_size.max(1));
        match position {
            _ if position >= self.end => self.end,
            _ if position <= self.start => self.start,
            _ => self.start + (position - self.start) / size * size,
        }
    }

    /// Returns the first segment boundary of the range that is not before `position`.
    fn boundary_at_or_after(&self, position: u64) -> u64 {
        let size = u64::from(self.segment_size.max(1));
        match position {
            _ if position >= self.end => self.end,
            _ if position <= self.start => self.start,
            _ => (self.start + (position - self.start).div_ceil(size) * size).min(self.end),
        }
    }

    /// Returns whether the range was ever retransmitted.
    pub(crate) const fn ever_resent(&self) -> bool {
        self.has(EVER_RESENT)
    }

    /// Returns whether the range may be in the network: neither known to have arrived nor known to
    /// be lost.
    const fn may_arrive(&self) -> bool {
        !self.has(SACKED) && (!self.has(LOST) || self.has(RESENT))
    }
}

/// The scoreboard of a connection, allocated only while something is in flight.
pub(crate) type RetransmitQueue = LazyBox<Scoreboard>;

/// The scoreboard. Its counters are in bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scoreboard {
    list: InlineFirstQueue<SentRange>,
    total: u64,
    sacked: u64,
    lost: u64,
    resent: u64,
    pending: u64,
    /// Time at which the transmit that was echoed last left.
    departed: Instant,
}

/// Ranges that an acknowledgment newly delivered.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeliveredBytes {
    /// Bytes that were acknowledged, cumulatively or selectively, for the first time.
    pub(crate) bytes: u64,
    /// Round-trip time of the first of the delivered ranges that were sent only once.
    pub(crate) first_rtt: Option<Duration>,
    /// Round-trip time of the last of the delivered ranges that were sent only once.
    pub(crate) last_rtt: Option<Duration>,
    /// Time at which the latest retransmission among the delivered ranges was sent; `None` if there
    /// was none.
    pub(crate) resent_at: Option<Instant>,
}

impl StaticDefault for Scoreboard {
    fn static_default() -> &'static Self {
        static AT_REST: Scoreboard = Scoreboard::new();
        &AT_REST
    }
}

impl Scoreboard {
    const fn new() -> Self {
        Self {
            list: InlineFirstQueue::new(),
            total: 0,
            sacked: 0,
            lost: 0,
            resent: 0,
            pending: 0,
            departed: Instant::ZERO,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the bytes thought to be in the network: RFC 6675's pipe.
    pub(crate) const fn pipe(&self) -> u64 {
        self.total - self.sacked - self.lost + self.resent
    }

    /// Returns the bytes in the network, without transmits that wait in the device.
    pub(crate) const fn in_network(&self) -> u64 {
        self.pipe().saturating_sub(self.pending)
    }

    /// Returns the number of entries.
    pub(crate) fn ranges(&self) -> usize {
        self.list.len()
    }

    /// Returns the tags of the entries that are not known to have arrived.
    pub(crate) fn unacknowledged_tags(&self) -> impl Iterator<Item = u32> {
        self.list.iter().filter(|sent| !sent.has(SACKED)).map(|sent| sent.tag)
    }

    /// Returns the time at which the transmit that was echoed last left.
    pub(crate) const fn last_departure(&self) -> Instant {
        self.departed
    }

    /// Returns the selectively acknowledged bytes.
    pub(crate) const fn sacked(&self) -> u64 {
        self.sacked
    }

    /// Returns the bytes known to be lost, whether they were retransmitted or not.
    pub(crate) const fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns whether a lost range has yet to be retransmitted.
    pub(crate) const fn has_lost(&self) -> bool {
        self.lost > self.resent
    }

    /// Returns whether a range that has left the machine is not cumulatively acknowledged.
    /// Selectively acknowledged bytes count: the peer may still discard them (RFC 2018 section 8).
    pub(crate) const fn any_departed(&self) -> bool {
        self.total > self.pending
    }

    /// Returns whether a transmit has not been echoed.
    pub(crate) const fn any_pending(&self) -> bool {
        self.pending > 0
    }

    /// Returns the start of the first range that was handed to the device for the first time and
    /// has not left, and when it was handed over. The peer expects no byte after this start.
    pub(crate) fn first_not_departed(&self) -> Option<(u64, Instant)> {
        if self.pending == 0 {
            return None;
        }
        let waits = |s: &&SentRange| s.has(PENDING) && !s.ever_resent();
        self.list.iter().find(waits).map(|s| (s.start, s.xmit))
    }

    /// Returns the bytes that were sent and are not cumulatively acknowledged.
    pub(crate) const fn total(&self) -> u64 {
        self.total
    }

    /// Returns the oldest entry.
    pub(crate) fn front(&self) -> Option<&SentRange> {
        self.list.front()
    }

    /// Returns the newest entry.
    pub(crate) fn back(&self) -> Option<&SentRange> {
        self.list.back()
    }

    /// Records the first transmission of the bytes after the last entry.
    pub(crate) fn push(&mut self, start: u64, end: u64, now: Instant, sending: SentRangeInfo) {
        debug_assert!(self.list.back().is_none_or(|b| b.end == start));
        let SentRangeInfo { tag, segment_size, pending } = sending;
        let bits = if pending { PENDING } else { 0 };
        self.total += end - start;
        self.pending += if pending { end - start } else { 0 };
        self.list.push_back(SentRange { start, end, xmit: now, tag, segment_size, bits });
    }

    /// Handles the echo of the transmit `tag`, which left `delay` after it was handed over. Returns
    /// whether an entry was waiting for it.
    ///
    /// Transmits of a flow leave in order, and together if they waited for one disk. The delay does
    /// not include the time that each spent in the ring, so departure times are made monotonic: a
    /// later transmit could otherwise seem to have left first, and RACK would find it lost.
    pub(crate) fn echo(&mut self, tag: u32, delay: Duration) -> bool {
        if self.pending == 0 {
            return false;
        }
        let mut found = false;
        for sent in self.list.iter_mut() {
            if sent.has(PENDING) && sent.tag == tag {
                sent.bits &= !PENDING;
                sent.xmit = (sent.xmit + delay).max(self.departed);
                self.departed = sent.xmit;
                self.pending -= sent.len();
                found = true;
            }
        }
        found
    }

    /// Counts pending ranges as sent now, because no echo will come: they are lost if they do not
    /// arrive.
    pub(crate) fn mark_all_departed(&mut self, now: Instant) {
        for sent in self.list.iter_mut() {
            if sent.has(PENDING) {
                sent.bits &= !PENDING;
                sent.xmit = now;
            }
        }
        self.pending = 0;
    }

    /// Removes everything before `una`, which has arrived. Calls `seen` with the whole segments of
    /// each range that was not yet known to have arrived.
    pub(crate) fn acknowledge(
        &mut self,
        una: u64,
        now: Instant,
        delivered: &mut DeliveredBytes,
        mut seen: impl FnMut(&SentRange),
    ) {
        while let Some(front) = self.list.front() {
            if front.start >= una {
                break;
            }
            let (mut gone, mut whole) = (*front, *front);
            if front.end > una {
                let (start, border) = (front.start, front.boundary_at_or_after(una));
                if border > una {
                    // The rest of a partly acknowledged segment becomes an entry of its own, so
                    // that the boundaries of the segments after it stay known.
                    self.split_out(0, start, border);
                }
                gone = self.list[0];
                whole.end = gone.boundary_at_or_before(una);
                gone.end = gone.end.min(una);
            }
            self.subtract_range(&gone);
            self.total -= gone.len();
            if !gone.has(SACKED) {
                Self::deliver(&gone, now, delivered);
                if whole.start < whole.end {
                    seen(&whole);
                }
            }
            if let Some(front) = self.list.front_mut() {
                front.start = gone.end;
                if front.start == front.end {
                    self.list.pop_front();
                }
            }
        }
    }

    /// Marks start..end selectively acknowledged and calls `seen` as `acknowledge` does. Only whole
    /// segments count, as in Linux: the transmission time of part of a segment is unknown (RFC 8985
    /// section 5).
    pub(crate) fn sack(
        &mut self,
        start: u64,
        end: u64,
        now: Instant,
        delivered: &mut DeliveredBytes,
        mut seen: impl FnMut(&SentRange),
    ) {
        let mut index = self.list.partition_point(|s| s.end <= start);
        while let Some(sent) = self.list.get(index) {
            if sent.start >= end {
                break;
            }
            let (start, end) = (sent.boundary_at_or_after(start), sent.boundary_at_or_before(end));
            if !sent.has(SACKED) && start < end {
                index = self.split_out(index, start, end);
                let sent = self.list[index];
                self.subtract_range(&sent);
                self.sacked += sent.len();
                self.list[index].bits = SACKED | (sent.bits & EVER_RESENT);
                Self::deliver(&sent, now, delivered);
                seen(&sent);
            }
            index += 1;
        }
        self.merge_sacked(start);
    }

    fn deliver(sent: &SentRange, now: Instant, delivered: &mut DeliveredBytes) {
        delivered.bytes += sent.len();
        if sent.ever_resent() {
            delivered.resent_at = delivered.resent_at.max(Some(sent.xmit));
        } else if !sent.has(PENDING) {
            let rtt = now.since(sent.xmit);
            delivered.first_rtt.get_or_insert(rtt);
            delivered.last_rtt = Some(rtt);
        }
    }

    /// Marks lost each range that may still arrive and for which `is_lost` returns true. Returns
    /// whether there was one.
    pub(crate) fn mark_lost(&mut self, mut is_lost: impl FnMut(&SentRange) -> bool) -> bool {
        let mut any = false;
        for index in 0..self.list.len() {
            let sent = self.list[index];
            if sent.may_arrive() && !sent.has(PENDING) && is_lost(&sent) {
                if sent.has(RESENT) {
                    self.resent -= sent.len();
                } else {
                    self.lost += sent.len();
                }
                self.list[index].bits = (sent.bits & !(RESENT | LOSS_TAKEN)) | LOST;
                any = true;
            }
        }
        any
    }

    /// Returns whether start..end is an entry that was found lost and not retransmitted, and no
    /// other entry is lost.
    pub(crate) fn is_lost_alone(&self, start: u64, end: u64) -> bool {
        let index = self.list.partition_point(|s| s.end <= start);
        self.lost == end - start
            && self.list.get(index).is_some_and(|sent| {
                (sent.start, sent.end) == (start, end) && sent.has(LOST) && !sent.has(RESENT)
            })
    }

    /// Calls `seen` with each range that was found lost since the last call.
    pub(crate) fn take_losses(&mut self, mut seen: impl FnMut(&SentRange)) {
        for sent in self.list.iter_mut() {
            if sent.has(LOST) && !sent.has(LOSS_TAKEN) {
                sent.bits |= LOSS_TAKEN;
                seen(sent);
            }
        }
    }

    /// Marks the first `len` bytes lost. Returns false if they were known to be lost or have not
    /// left.
    pub(crate) fn mark_first_lost(&mut self, len: u64) -> bool {
        let Some(&front) = self.list.front() else { return false };
        self.split_out(0, front.start, front.end.min(front.start + len));
        self.mark_lost(|sent| sent.start == front.start)
    }

    /// Marks everything outstanding lost (RFC 6298 (5.4)). If the oldest range was selectively
    /// acknowledged, the peer has discarded it, and all SACK information is cleared (RFC 2018
    /// section 8).
    pub(crate) fn mark_all_lost(&mut self) {
        if self.list.front().is_some_and(|s| s.has(SACKED)) {
            for sent in self.list.iter_mut() {
                sent.bits &= !SACKED;
            }
            self.sacked = 0;
        }
        self.mark_lost(|_| true);
    }

    /// Returns the first lost range that has yet to be retransmitted.
    pub(crate) fn next_lost(&self) -> Option<(u64, u64)> {
        if !self.has_lost() {
            return None;
        }
        let sent = self.list.iter().find(|s| s.has(LOST) && !s.has(RESENT))?;
        Some((sent.start, sent.end))
    }

    /// Records a retransmission of start..end, which lies within one entry.
    pub(crate) fn resend(&mut self, start: u64, end: u64, now: Instant, sending: SentRangeInfo) {
        let SentRangeInfo { tag, segment_size, pending } = sending;
        let index = self.list.partition_point(|s| s.end <= start);
        if index == self.list.len() {
            return;
        }
        let index = self.split_out(index, start, end);
        let sent = self.list[index];
        self.subtract_pending(&sent);
        if sent.has(LOST) && !sent.has(RESENT) {
            self.resent += sent.len();
            self.list[index].bits |= RESENT;
        }
        let entry = &mut self.list[index];
        entry.bits = (entry.bits & !PENDING) | EVER_RESENT | if pending { PENDING } else { 0 };
        entry.xmit = now;
        (entry.tag, entry.segment_size) = (tag, segment_size);
        self.pending += if pending { sent.len() } else { 0 };
    }

    /// Returns the time at which the oldest range was sent that has left the machine and is not
    /// known to have arrived.
    pub(crate) fn oldest_departure(&self) -> Option<Instant> {
        self.list.iter().find(|s| !s.has(SACKED) && !s.has(PENDING)).map(|s| s.xmit)
    }

    /// Clears all loss marks, after a time-out that turned out to be spurious.
    pub(crate) fn clear_loss_marks(&mut self) {
        for sent in self.list.iter_mut() {
            sent.bits &= !(LOST | RESENT | LOSS_TAKEN);
        }
        self.lost = 0;
        self.resent = 0;
    }

    /// Makes the part of the entry at `index` within start..end an entry of its own; returns its
    /// index.
    fn split_out(&mut self, mut index: usize, start: u64, end: u64) -> usize {
        let sent = self.list[index];
        if sent.start < start {
            self.list[index].end = start;
            index += 1;
            self.list.insert(index, SentRange { start, ..sent });
        }
        if sent.end > end {
            self.list[index].end = end;
            self.list.insert(index + 1, SentRange { start: end, ..sent });
        }
        index
    }

    /// Merges adjacent sacked entries around `position`, so that the list stays as short as the
    /// number of holes.
    fn merge_sacked(&mut self, position: u64) {
        let mut index = self.list.partition_point(|s| s.end <= position).saturating_sub(1);
        while index + 1 < self.list.len() && self.list[index].start <= position.max(1) {
            let (a, b) = (self.list[index], self.list[index + 1]);
            if a.has(SACKED) && b.has(SACKED) {
                self.list[index].end = b.end;
                self.list[index].bits |= b.bits;
                self.list.remove(index + 1);
            } else {
                index += 1;
            }
        }
    }

    /// Subtracts a removed range from the counters.
    fn subtract_range(&mut self, sent: &SentRange) {
        if sent.has(SACKED) {
            self.sacked -= sent.len();
        }
        if sent.has(LOST) {
            self.lost -= sent.len();
        }
        if sent.has(RESENT) {
            self.resent -= sent.len();
        }
        self.subtract_pending(sent);
    }

    fn subtract_pending(&mut self, sent: &SentRange) {
        if sent.has(PENDING) {
            self.pending -= sent.len();
        }
    }

    #[cfg(test)]
    fn check(&self) {
        let sum = |f: &dyn Fn(&SentRange) -> bool| -> u64 {
            self.list.iter().filter(|s| f(s)).map(SentRange::len).sum()
        };
        assert_eq!(self.total, sum(&|_| true));
        assert_eq!(self.sacked, sum(&|s| s.has(SACKED)));
        assert_eq!(self.lost, sum(&|s| s.has(LOST)));
        assert_eq!(self.resent, sum(&|s| s.has(RESENT)));
        assert_eq!(self.pending, sum(&|s| s.has(PENDING)));
        for (a, b) in self.list.iter().zip(self.list.iter().skip(1)) {
            assert_eq!(a.end, b.start, "no holes");
        }
        assert!(self.list.iter().all(|s| s.start < s.end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a transmit in segments of 100 bytes.
    fn by(tag: u32, pending: bool) -> SentRangeInfo {
        SentRangeInfo { tag, segment_size: 100, pending }
    }

    fn ms(n: u64) -> Instant {
        Instant::from_millis(n)
    }

    fn sent(n: u64) -> RetransmitQueue {
        let mut flight = RetransmitQueue::new();
        for i in 0..n {
            flight.push(1 + i * 100, 1 + (i + 1) * 100, ms(i), by(0, false));
        }
        flight
    }

    /// Transmits of a flow leave in order, though their delays in the ring differ.
    #[test]
    fn departures_never_go_back() {
        let mut flight = RetransmitQueue::new();
        flight.push(1, 101, ms(10), by(7, true));
        flight.push(101, 201, ms(11), by(8, true));
        assert_eq!(flight.first_not_departed(), Some((1, ms(10))));
        assert!(flight.echo(7, Duration::from_millis(30)));
        assert_eq!(flight.first_not_departed(), Some((101, ms(11))));
        // This transmit lay in the ring for longer before the device took it.
        assert!(flight.echo(8, Duration::from_millis(28)));
        assert_eq!(flight.oldest_departure(), Some(ms(40)));
        assert_eq!((flight.back().unwrap().xmit, flight.first_not_departed()), (ms(40), None));
        flight.check();
    }

    #[test]
    fn sack_loss_and_resend_move_the_pipe() {
        let mut flight = sent(10);
        let mut d = DeliveredBytes::default();
        flight.sack(301, 501, ms(50), &mut d, |_| {});
        assert_eq!((d.bytes, flight.pipe(), flight.sacked()), (200, 800, 200));
        assert_eq!(d.last_rtt, Some(Duration::from_millis(46)));
        assert!(flight.mark_lost(|s| s.end <= 301));
        assert_eq!((flight.pipe(), flight.next_lost()), (500, Some((1, 101))));
        flight.resend(1, 51, ms(51), by(0, false));
        assert_eq!((flight.pipe(), flight.next_lost()), (550, Some((51, 101))));
        let mut d = DeliveredBytes::default();
        flight.acknowledge(501, ms(60), &mut d, |_| {});
        assert_eq!((d.bytes, d.resent_at, flight.pipe()), (300, Some(ms(51)), 500));
        flight.check();
    }

    #[test]
    fn pending_ranges_are_neither_lost_nor_timed() {
        let mut flight = RetransmitQueue::new();
        flight.push(1, 101, ms(0), by(7, true));
        assert!(!flight.any_departed());
        assert!(!flight.mark_lost(|_| true));
        assert!(!flight.echo(8, Duration::ZERO));
        assert!(flight.echo(7, Duration::from_millis(30)));
        assert!(flight.any_departed());
        let mut d = DeliveredBytes::default();
        flight.acknowledge(101, ms(35), &mut d, |_| {});
        assert_eq!(d.first_rtt, Some(Duration::from_millis(5)), "the disk's 30 ms are left out");
    }

    #[test]
    fn a_time_out_after_reneging_believes_no_sack() {
        let mut flight = sent(3);
        flight.sack(1, 101, ms(9), &mut DeliveredBytes::default(), |_| {});
        flight.mark_all_lost();
        assert_eq!((flight.pipe(), flight.sacked(), flight.next_lost()), (0, 0, Some((1, 101))));
        flight.check();
    }

    proptest! {
        #[test]
        fn byte_counts_stay_consistent(
            steps in proptest::collection::vec((0..6_u8, 0..1200_u64, 1..300_u64), 0..60),
        ) {
            let mut flight = sent(10);
            let mut nxt = 1001;
            for (i, (what, at, len)) in steps.into_iter().enumerate() {
                let now = ms(100 + i as u64);
                let mut d = DeliveredBytes::default();
                let (start, end) = (at.max(1), (at.max(1) + len).min(nxt));
                match what {
                    0 => flight.acknowledge(at.min(nxt), now, &mut d, |_| {}),
                    1 if start < end => flight.sack(start, end, now, &mut d, |_| {}),
                    2 => { flight.mark_lost(|s| s.start % 3 == at % 3); }
                    3 => if let Some((s, e)) = flight.next_lost() {
                        flight.resend(s, e.min(s + len), now, by(1, len % 2 == 0));
                    },
                    4 => { flight.push(nxt, nxt + len, now, by(2, len % 2 == 0)); nxt += len; }
                    5 => { flight.echo(1 + (at % 2) as u32, Duration::ZERO); }
                    _ => flight.mark_all_lost(),
                }
                flight.check();
            }
        }
    }
}
