//! One connection in our hands: what is sent, what a segment does to it, and its retransmissions.
//!
//! From when it is taken over all that was given has been sent once, the FIN too. So the states
//! are three bits: the peer's FIN came before that or not (LAST-ACK, or one of the others), it has
//! come by now, our FIN is acknowledged. FIN-WAIT-1 is neither of the last two, FIN-WAIT-2 the
//! last, CLOSING the other, and with both the connection has ended (RFC 9293 section 3.3.2).
//!
//! A timer runs as long as the connection is here: the retransmission's until everything is
//! acknowledged, then that of FIN-WAIT-2. There is no congestion control (AccelTCP section 4.2):
//! the host hands over no more than both windows let go at once, and what is sent again is at most
//! that, with exponential back-off.
//!
//! Called by the engine, which finds the connection, keeps the timer and ends it.

use abi::teardown::{ClosingState, LateData, Teardown};
use abi::{FlowId, Parts, Transmit};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use base::{Duration, Instant, SeqNum};
use tcp_rules::challenge::ChallengeLimiter;
use tcp_rules::paws::TsRecent;
use tcp_rules::window::ReceiveWindow;
use wire::tcp::{Flags, Segment};

use super::Action;
use super::counters::TeardownCounters;
use super::segments::{Facts, Stamp, kept_extent, recovers, segment};
use super::time_wait::Remains;

/// RFC 6298 section 2 asks for an upper bound of at least 60 seconds; Linux's TCP_RTO_MAX.
const RTO_MAX: Duration = Duration::from_secs(120);
/// Shorter ones make no sense at the wheel's grain.
const RTO_MIN: Duration = Duration::from_millis(16);
/// RFC 9293 section 3.4.2: two maximum segment lifetimes.
const TIME_WAIT_MAX: Duration = Duration::from_secs(240);
/// RFC 5681 section 3.2.
const DUP_ACKS: u8 = 3;
/// An acknowledgment may be so old at least: RFC 5961 section 5.2, where the peer's largest window
/// is not known.
const OLD_ACK_MIN: i32 = 1 << 16;

/// What a connection may reach outside itself.
pub(super) struct Cx<'a> {
    pub(super) now: Instant,
    pub(super) counters: &'a mut TeardownCounters,
    pub(super) transmits: &'a mut VecDeque<(usize, Transmit)>,
    pub(super) actions: &'a mut VecDeque<Action>,
    /// When its timer is to run out, counted from now; none to leave it as it is.
    pub(super) arm: Option<Duration>,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Both directions are closed, and the peer knows.
    Closed,
    /// The same, but the peer may not know: its FIN may come again.
    TimeWait,
    /// By a reset, or with one.
    Reset,
    /// The peer was silent for too long.
    TimedOut,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Flow {
    /// As it was handed over. `una`, `nxt`, `edge` and `rcv_nxt` go on from there; `parts` are
    /// those not yet wholly acknowledged.
    t: Box<Teardown>,
    /// First byte of the parts.
    start: SeqNum,
    /// Our FIN.
    fin: SeqNum,
    /// TS.Recent and our clock, where there are timestamps.
    stamps: Option<(TsRecent, Stamp)>,
    challenges: ChallengeLimiter,
    queue: u32,
    /// The window that we offer, and that the peer last offered, as they stand in headers.
    window: u16,
    peer_window: Option<u16>,
    /// LAST-ACK: the peer closed first.
    passive: bool,
    /// The peer's FIN has come.
    fin_received: bool,
    /// Retransmissions after time-outs since the last progress.
    tries: u8,
    dup_acks: u8,
    /// Where in the wheel its timer is, and the tick at which it runs out.
    pub(super) slot: u32,
    pub(super) due: u64,
}

impl Flow {
    /// A connection that [`super::segments::check`] has found fit.
    pub(super) fn new(now: Instant, queue: usize, facts: &Facts, mut t: Box<Teardown>) -> Self {
        let past_us = t.timestamp.map_or(0, |ts| ts.past_us);
        t.rto = t.rto.clamp(RTO_MIN, RTO_MAX);
        t.time_wait = t.time_wait.min(TIME_WAIT_MAX);
        Self {
            start: t.una,
            fin: facts.fin,
            stamps: facts
                .stamps
                .map(|(value, echo)| (TsRecent::new(now, echo), Stamp::new(now, value, past_us))),
            challenges: ChallengeLimiter::new(),
            queue: u32::try_from(queue).unwrap_or(u32::MAX),
            window: facts.window,
            peer_window: None,
            passive: t.state == ClosingState::LastAck,
            fin_received: matches!(t.state, ClosingState::Closing | ClosingState::LastAck),
            tries: 0,
            dup_acks: 0,
            slot: 0,
            due: 0,
            t,
        }
    }

    /// The host's queue.
    pub(super) const fn queue(&self) -> usize {
        self.queue as usize
    }

    /// What is kept of it in TIME-WAIT.
    pub(super) fn remains(&self) -> Remains {
        Remains {
            queue: self.queue(),
            snd_nxt: self.t.nxt,
            rcv_nxt: self.t.rcv_nxt,
            window: self.window,
            stamps: self.stamps.map(|(recent, stamp)| (recent.value(), stamp)),
            time: self.t.time_wait,
        }
    }

    /// Sends what was never sent, from part `sent_parts` on.
    pub(super) fn begin(&mut self, cx: &mut Cx<'_>, sent_parts: usize) {
        if self.fin_acked() {
            return self.await_fin(cx);
        }
        cx.arm = Some(self.t.rto);
        if self.t.nxt == self.fin + 1 {
            return;
        }
        let nxt = self.t.nxt;
        self.t.nxt = self.fin + 1;
        self.send(cx, sent_parts, nxt, false);
    }

    /// A segment with `payload` bytes came. Says whether the connection has ended.
    pub(super) fn receive(
        &mut self,
        cx: &mut Cx<'_>,
        segment: &Segment,
        payload: u32,
    ) -> Option<End> {
        let flags = segment.flags;
        if self.stamps.is_some_and(|(recent, _)| recent.rejects(cx.now, segment)) {
            cx.counters.teardown_paws_drops += 1;
            self.acknowledge_stray(cx);
            return None;
        }
        let controls = u32::from(flags.has(Flags::SYN)) + u32::from(flags.has(Flags::FIN));
        // RFC 9293 section 3.10.7.4, first: the sequence number.
        if !self.offered().accepts(segment.seq, payload + controls) {
            self.answer_unacceptable(cx, flags, payload);
            return None;
        }
        // Second: resets, by RFC 5961 section 3.2 only with the exact number.
        if flags.has(Flags::RST) {
            if segment.seq == self.t.rcv_nxt {
                cx.counters.teardown_reset_by_peer += 1;
                return Some(self.end(cx, End::Reset));
            }
            self.challenge(cx);
            return None;
        }
        // Fourth: SYNs, by RFC 5961 section 4.2 whatever the number.
        if flags.has(Flags::SYN) {
            self.challenge(cx);
            return None;
        }
        if !flags.has(Flags::ACK) {
            return None;
        }
        if !self.take_acknowledgment(cx, segment, payload) {
            return None;
        }
        self.take_payload(cx, segment, payload)
    }

    /// The timer ran out. Says whether the connection has ended.
    pub(super) fn time_out(&mut self, cx: &mut Cx<'_>, retries_max: u8) -> Option<End> {
        if self.fin_acked() {
            cx.counters.teardown_fin_wait_expired += 1;
            return Some(self.end(cx, End::TimedOut));
        }
        // A transmit that the pipeline dropped, because its file failed or its context is gone, is
        // to us a loss like any other; so such a connection ends here, with a reset.
        if self.tries >= retries_max {
            cx.counters.teardown_timed_out += 1;
            self.reset(cx);
            return Some(self.end(cx, End::TimedOut));
        }
        self.tries += 1;
        self.dup_acks = 0;
        cx.counters.teardown_retransmits += 1;
        self.send(cx, 0, self.start, true);
        // RFC 6298 (5.5).
        let factor = 1_u64.checked_shl(u32::from(self.tries)).unwrap_or(u64::MAX);
        let backed_off = Duration::from_nanos(self.t.rto.as_nanos().saturating_mul(factor));
        cx.arm = Some(backed_off.min(RTO_MAX));
        None
    }

    /// Resets the connection. A peer that has all that was sent expects the segment behind it, one
    /// that has acknowledged what it has expects the segment there: only a reset with the number
    /// that is expected counts (RFC 5961 section 3.2).
    pub(super) fn abort(&mut self, cx: &mut Cx<'_>) -> End {
        let flags = Flags::RST.with(Flags::ACK);
        if self.t.una != self.t.nxt {
            self.transmit(cx, FlowId::NONE, self.t.una, flags, |transmit| transmit);
        }
        self.reset(cx);
        self.end(cx, End::Reset)
    }

    fn fin_acked(&self) -> bool {
        self.t.una == self.fin + 1
    }

    /// The window in the template, unscaled: less than was offered where there is a scale, so that
    /// of what comes far ahead some is answered and not looked at.
    fn offered(&self) -> ReceiveWindow {
        ReceiveWindow { next: self.t.rcv_nxt, len: self.window.into() }
    }

    /// An unacceptable segment is answered, so that a peer that is out of step finds back; bare
    /// ones at a limited rate, for two ends that are out of step must not answer each other for
    /// ever.
    fn answer_unacceptable(&mut self, cx: &mut Cx<'_>, flags: Flags, payload: u32) {
        cx.counters.teardown_out_of_window += 1;
        if flags.has(Flags::RST) {
            return;
        }
        if flags.has(Flags::SYN) {
            self.challenge(cx);
        } else if payload == 0 && !flags.has(Flags::FIN) {
            // A keep-alive, most often: no sign of an attack.
            self.acknowledge_stray(cx);
        } else {
            self.acknowledge(cx);
        }
    }

    /// Everything received is acknowledged at once.
    fn note_timestamp(&mut self, now: Instant, segment: &Segment) {
        if let Some((recent, _)) = &mut self.stamps {
            recent.note(now, segment, self.t.rcv_nxt);
        }
    }

    /// Fifth: the acknowledgment. Says whether the rest of the segment counts.
    fn take_acknowledgment(&mut self, cx: &mut Cx<'_>, segment: &Segment, payload: u32) -> bool {
        let una = self.t.una;
        // RFC 5961 section 5.2: not beyond what was sent, and not older than a window.
        let oldest = self.t.edge.distance(una).max(OLD_ACK_MIN);
        if segment.ack.gt(self.t.nxt) || segment.ack.distance(una) < -oldest {
            self.challenge(cx);
            return false;
        }
        if segment.ack.lt(una) {
            return true;
        }
        // Nothing changes before the acknowledgment is known to be acceptable, and one that is
        // older than the last says nothing about the peer's clock, as in Linux.
        self.note_timestamp(cx.now, segment);
        let same_window = self.peer_window.replace(segment.window) == Some(segment.window);
        self.t.edge = segment.ack + (u32::from(segment.window) << self.t.peer_scale);
        if segment.ack.gt(una) {
            self.advance(cx, segment.ack);
        } else if same_window && payload == 0 && !segment.flags.has(Flags::FIN) && !self.fin_acked()
        {
            // RFC 5681 section 2 says what a duplicate is, and section 3.2 what three of them are.
            self.dup_acks = self.dup_acks.saturating_add(1);
            if self.dup_acks == DUP_ACKS {
                cx.counters.teardown_dup_ack_retransmits += 1;
                self.send(cx, 0, self.start, true);
                cx.arm = Some(self.t.rto);
            }
        }
        true
    }

    /// The peer has everything before `una`.
    fn advance(&mut self, cx: &mut Cx<'_>, una: SeqNum) {
        self.t.una = una;
        (self.tries, self.dup_acks) = (0, 0);
        while let Some(part) = self.t.parts.first() {
            let end = self.start + part.len();
            if end.gt(una) {
                break;
            }
            self.start = end;
            cx.actions.extend(kept_extent(part).map(Action::FileDone));
            self.t.parts.remove(0);
        }
        if self.fin_acked() {
            self.await_fin(cx);
        } else {
            // RFC 6298 (5.3).
            cx.arm = Some(self.t.rto);
        }
    }

    /// Enters FIN-WAIT-2, which ends though the peer never closes (Linux: tcp_fin_timeout).
    fn await_fin(&mut self, cx: &mut Cx<'_>) {
        self.destroy_contexts(cx);
        cx.arm = Some(self.t.time_wait);
    }

    /// Seventh and eighth: payload and FIN.
    fn take_payload(&mut self, cx: &mut Cx<'_>, segment: &Segment, payload: u32) -> Option<End> {
        let end = segment.seq + payload;
        let is_late = payload > 0 && end.gt(self.t.rcv_nxt) && !self.fin_received;
        if is_late && !self.discard(cx, segment.seq, end) {
            cx.counters.teardown_reset_late_data += 1;
            self.reset(cx);
            return Some(self.end(cx, End::Reset));
        }
        let fin = segment.flags.has(Flags::FIN) && !self.fin_received;
        if fin && end == self.t.rcv_nxt {
            self.t.rcv_nxt = end + 1;
            self.fin_received = true;
        }
        if fin || segment.flags.has(Flags::FIN) || payload > 0 {
            // Also where something before the FIN is missing: the peer counts duplicates.
            self.acknowledge(cx);
        }
        if !self.fin_received || !self.fin_acked() {
            return None;
        }
        let how = if self.passive { End::Closed } else { End::TimeWait };
        cx.counters.teardown_closed += 1;
        Some(self.end(cx, how))
    }

    /// Takes data from `seq` to `end`, some of it new, and discards it, if that is what the host
    /// asked for and the bound allows. Data behind a hole is left to the peer to send again.
    ///
    /// The template's window is offered beyond every byte taken, so its right edge never moves
    /// back. With TLS the data is not decrypted: the last record that we send, close_notify, was
    /// numbered before the hand-over, so that no application data follows for which a KeyUpdate
    /// would want an answer (RFC 8446 sections 4.6.3 and 6.1).
    fn discard(&mut self, cx: &mut Cx<'_>, seq: SeqNum, end: SeqNum) -> bool {
        let LateData::Discard { bytes_max } = &mut self.t.late_data else { return false };
        if seq.gt(self.t.rcv_nxt) {
            cx.counters.teardown_late_data_out_of_order += 1;
            return true;
        }
        let new = end.distance(self.t.rcv_nxt).unsigned_abs();
        let Some(left) = bytes_max.checked_sub(new) else { return false };
        *bytes_max = left;
        self.t.rcv_nxt = end;
        cx.counters.teardown_late_data_bytes += u64::from(new);
        true
    }

    /// Sends the parts from the given one on, which begins at `seq`, and the FIN: as one transmit,
    /// which the pipeline segments. Beyond the peer's window nothing goes but the first part, where
    /// the window has shrunk: that is the probe then (RFC 9293 section 3.8.6.1).
    fn send(&self, cx: &mut Cx<'_>, skip: usize, seq: SeqNum, again: bool) {
        let (mut parts, mut at) = (Parts::new(), seq);
        for part in self.t.parts.iter().skip(skip) {
            let end = at + part.len();
            if !parts.is_empty() && end.gt(self.t.edge) {
                break;
            }
            parts.push(part.clone());
            at = end;
        }
        let mut flags = Flags::ACK;
        if at == self.fin {
            flags = flags.with(Flags::FIN);
            if !parts.is_empty() {
                flags = flags.with(Flags::PSH);
            }
        }
        let long = at.distance(seq) > i32::from(self.t.mss);
        let segment_size = if long { self.t.mss } else { 0 };
        let retransmission = again || recovers(&parts);
        self.transmit(cx, self.t.flow, seq, flags, |transmit| Transmit {
            segment_size,
            parts,
            retransmission,
            protect: None,
            ..transmit
        });
    }

    /// Sends a segment without payload that nothing holds up: behind a transmit that waits for a
    /// disk an acknowledgment would come too late.
    fn send_bare(&self, cx: &mut Cx<'_>, flags: Flags) {
        self.transmit(cx, FlowId::NONE, self.t.nxt, flags, |transmit| transmit);
    }

    fn transmit(
        &self,
        cx: &mut Cx<'_>,
        flow: FlowId,
        seq: SeqNum,
        flags: Flags,
        with: impl FnOnce(Transmit) -> Transmit,
    ) {
        let stamps = self.stamps.map(|(recent, stamp)| (stamp.value(cx.now), recent.value()));
        let (header, timestamp) = segment(&self.t, seq, flags, stamps);
        let transmit = Transmit {
            flow,
            header,
            segment_size: 0,
            parts: Parts::new(),
            timestamp,
            // The host has forgotten the connection.
            echo: None,
            retransmission: false,
            protect: None,
        };
        cx.transmits.push_back((self.queue(), with(transmit)));
    }

    fn acknowledge(&self, cx: &mut Cx<'_>) {
        self.send_bare(cx, Flags::ACK);
    }

    /// RFC 9293 section 3.5.2. What of ours still waits for a disk must not follow it.
    fn reset(&self, cx: &mut Cx<'_>) {
        self.send_bare(cx, Flags::RST.with(Flags::ACK));
    }

    /// A challenge acknowledgment, unless one went out just now.
    fn challenge(&mut self, cx: &mut Cx<'_>) {
        if self.acknowledge_stray(cx) {
            cx.counters.teardown_challenge_acks += 1;
        } else {
            cx.counters.teardown_challenge_acks_limited += 1;
        }
    }

    /// Acknowledges a segment that does not count, unless another was just now. Says whether it
    /// did.
    fn acknowledge_stray(&mut self, cx: &mut Cx<'_>) -> bool {
        let may = self.challenges.allow(cx.now);
        if may {
            self.acknowledge(cx);
        }
        may
    }

    /// Lets go of everything that is held outside.
    fn end(&mut self, cx: &mut Cx<'_>, how: End) -> End {
        if !self.fin_acked() {
            cx.actions.push_back(Action::Cancel(self.queue(), self.t.flow));
        }
        for part in self.t.parts.drain(..) {
            cx.actions.extend(kept_extent(&part).map(Action::FileDone));
        }
        self.destroy_contexts(cx);
        how
    }

    fn destroy_contexts(&mut self, cx: &mut Cx<'_>) {
        let queue = self.queue();
        let contexts = self.t.contexts.drain(..);
        cx.actions.extend(contexts.map(|context| Action::Destroy(queue, context)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Beside a bit per slot of the wheel, an entry of the index and the bytes themselves.
    #[test]
    fn a_connection_is_small() {
        let bytes = size_of::<Flow>() + size_of::<Teardown>() + size_of::<wire::Tuple>();
        assert!(bytes <= 408, "{bytes} bytes");
    }
}
