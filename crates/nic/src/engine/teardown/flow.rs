//! One connection that is being torn down: transmission, received segments, and retransmission.
//!
//! When the connection is taken over, everything that was given, including the FIN, is sent at
//! once. Its state is therefore three bits: `passive` (the peer closed first: LAST-ACK),
//! `fin_received`, and whether our FIN is acknowledged. With neither of the last two the state is
//! FIN-WAIT-1, with only the acknowledgment FIN-WAIT-2, with only the peer's FIN CLOSING, and with
//! both the connection has ended (RFC 9293 section 3.3.2).
//!
//! A timer always runs: the retransmission timer until everything is acknowledged, then the
//! FIN-WAIT-2 timer. There is no congestion control (AccelTCP section 4.2): the host hands over no
//! more than both windows allow at once, and retransmissions are at most that, with exponential
//! back-off.
//!
//! Called by the engine, which finds the connection, keeps the timer and removes the connection.

use abi::teardown::{ClosingState, LateData, Teardown};
use abi::{FlowId, Transmit, TransmitParts};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use base::{Duration, Instant, SeqNum};
use tcp_rules::challenge::ChallengeLimiter;
use tcp_rules::paws::TsRecent;
use tcp_rules::window::ReceiveWindow;
use wire::tcp::{TcpFlags, TcpHeader};

use super::TeardownAction;
use super::counters::TeardownCounters;
use super::segments::{TeardownFacts, TimestampClock, has_prefix, kept_extent, segment};
use super::time_wait::TimeWaitState;

/// Maximum RTO. RFC 6298 section 2 requires at least 60 seconds; this is Linux's TCP_RTO_MAX.
const RTO_MAX: Duration = Duration::from_secs(120);
/// Minimum RTO: one tick of the timer wheel.
const RTO_MIN: Duration = Duration::from_millis(16);
/// Maximum TIME-WAIT: two maximum segment lifetimes (RFC 9293 section 3.4.2).
const TIME_WAIT_MAX: Duration = Duration::from_secs(240);
/// Duplicate acknowledgments before a fast retransmit: RFC 5681 section 3.2.
const DUP_ACKS: u8 = 3;
/// Minimum age, in bytes, that an acceptable acknowledgment may have: RFC 5961 section 5.2, for a
/// peer whose largest window is unknown.
const OLD_ACK_MIN: i32 = 1 << 16;

/// The part of the engine that a connection can access.
pub(super) struct TeardownEnv<'a> {
    pub(super) now: Instant,
    pub(super) counters: &'a mut TeardownCounters,
    pub(super) transmits: &'a mut VecDeque<(usize, Transmit)>,
    pub(super) actions: &'a mut VecDeque<TeardownAction>,
    /// Time from now at which the connection's timer expires; `None` leaves the timer unchanged.
    pub(super) arm: Option<Duration>,
}

/// Reason for the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TeardownEnd {
    /// Both directions are closed, and the peer knows that.
    Closed,
    /// Both directions are closed, but the peer may not know that and may retransmit its FIN.
    TimeWait,
    /// A reset was sent or received.
    Reset,
    /// The peer was silent for too long.
    TimedOut,
}

/// A connection that is being torn down.
#[derive(Debug)]
pub(super) struct TeardownFlow {
    /// The connection as it was handed over. `una`, `nxt`, `edge` and `rcv_nxt` are kept up to
    /// date; `parts` are those not completely acknowledged.
    tcb: Box<Teardown>,
    /// Sequence number of the first byte of `parts`.
    parts_seq: SeqNum,
    /// Sequence number of our FIN.
    fin: SeqNum,
    /// TS.Recent and our timestamp clock, if timestamps are in use.
    timestamps: Option<(TsRecent, TimestampClock)>,
    challenges: ChallengeLimiter,
    queue: u32,
    /// The window that we offer, as an unscaled header field.
    window: u16,
    /// The window that the peer last offered, as an unscaled header field.
    peer_window: Option<u16>,
    /// True in LAST-ACK: the peer closed first.
    passive: bool,
    /// True once the peer's FIN has arrived.
    fin_received: bool,
    /// Time-outs since the last progress.
    tries: u8,
    dup_acks: u8,
    /// The timer's slot in the wheel, and the tick at which it expires.
    pub(super) slot: u32,
    pub(super) due: u64,
}

impl TeardownFlow {
    /// Creates a connection that [`super::segments::check`] has accepted.
    pub(super) fn new(
        now: Instant,
        queue: usize,
        facts: &TeardownFacts,
        mut t: Box<Teardown>,
    ) -> Self {
        let past_us = t.timestamp.map_or(0, |ts| ts.sub_ms_us);
        t.rto = t.rto.clamp(RTO_MIN, RTO_MAX);
        t.time_wait = t.time_wait.min(TIME_WAIT_MAX);
        Self {
            parts_seq: t.una,
            fin: facts.fin,
            timestamps: facts.timestamps.map(|(value, echo)| {
                (TsRecent::new(now, echo), TimestampClock::new(now, value, past_us))
            }),
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
            tcb: t,
        }
    }

    /// The host's queue.
    pub(super) const fn queue(&self) -> usize {
        self.queue as usize
    }

    /// Returns the state to keep in TIME-WAIT.
    pub(super) fn time_wait_state(&self) -> TimeWaitState {
        TimeWaitState {
            queue: self.queue(),
            snd_nxt: self.tcb.nxt,
            rcv_nxt: self.tcb.rcv_nxt,
            window: self.window,
            timestamps: self.timestamps.map(|(recent, stamp)| (recent.value(), stamp)),
            time: self.tcb.time_wait,
        }
    }

    /// Sends the bytes that were never sent, from part `sent_parts` on.
    pub(super) fn begin(&mut self, cx: &mut TeardownEnv<'_>, sent_parts: usize) {
        if self.fin_acked() {
            return self.await_fin(cx);
        }
        cx.arm = Some(self.tcb.rto);
        if self.tcb.nxt == self.fin + 1 {
            return;
        }
        let nxt = self.tcb.nxt;
        self.tcb.nxt = self.fin + 1;
        self.send(cx, sent_parts, nxt, false);
    }

    /// Handles a segment with `payload` bytes. Returns how the connection ended, if it did.
    pub(super) fn receive(
        &mut self,
        cx: &mut TeardownEnv<'_>,
        segment: &TcpHeader,
        payload: u32,
    ) -> Option<TeardownEnd> {
        let flags = segment.flags;
        if self.timestamps.is_some_and(|(recent, _)| recent.rejects(cx.now, segment)) {
            cx.counters.teardown_paws_drops += 1;
            self.acknowledge_limited(cx);
            return None;
        }
        let controls = u32::from(flags.has(TcpFlags::SYN)) + u32::from(flags.has(TcpFlags::FIN));
        // RFC 9293 section 3.10.7.4, first: the sequence number.
        if !self.receive_window().accepts(segment.seq, payload + controls) {
            self.answer_unacceptable(cx, flags, payload);
            return None;
        }
        // Second: resets. RFC 5961 section 3.2 requires the exact number.
        if flags.has(TcpFlags::RST) {
            if segment.seq == self.tcb.rcv_nxt {
                cx.counters.teardown_reset_by_peer += 1;
                return Some(self.release(cx, TeardownEnd::Reset));
            }
            self.challenge(cx);
            return None;
        }
        // Fourth: SYNs, challenged regardless of the number (RFC 5961 section 4.2).
        if flags.has(TcpFlags::SYN) {
            self.challenge(cx);
            return None;
        }
        if !flags.has(TcpFlags::ACK) {
            return None;
        }
        if !self.take_acknowledgment(cx, segment, payload) {
            return None;
        }
        self.take_payload(cx, segment, payload)
    }

    /// Handles the expired timer. Returns how the connection ended, if it did.
    pub(super) fn on_timer_expired(
        &mut self,
        cx: &mut TeardownEnv<'_>,
        retries_max: u8,
    ) -> Option<TeardownEnd> {
        if self.fin_acked() {
            cx.counters.teardown_fin_wait_expired += 1;
            return Some(self.release(cx, TeardownEnd::TimedOut));
        }
        // A transmit dropped by the pipeline, because its file failed or its context is gone, is
        // treated as a loss; such a connection ends here with a reset.
        if self.tries >= retries_max {
            cx.counters.teardown_timed_out += 1;
            self.reset(cx);
            return Some(self.release(cx, TeardownEnd::TimedOut));
        }
        self.tries += 1;
        self.dup_acks = 0;
        cx.counters.teardown_retransmits += 1;
        self.send(cx, 0, self.parts_seq, true);
        // RFC 6298 (5.5).
        let factor = 1_u64.checked_shl(u32::from(self.tries)).unwrap_or(u64::MAX);
        let backed_off = Duration::from_nanos(self.tcb.rto.as_nanos().saturating_mul(factor));
        cx.arm = Some(backed_off.min(RTO_MAX));
        None
    }

    /// Resets the connection. A peer that has everything expects the number after the last byte
    /// sent; another one expects the number that it last acknowledged. Only a reset with the
    /// expected number counts (RFC 5961 section 3.2), so both are sent.
    pub(super) fn abort(&mut self, cx: &mut TeardownEnv<'_>) -> TeardownEnd {
        let flags = TcpFlags::RST.with(TcpFlags::ACK);
        if self.tcb.una != self.tcb.nxt {
            self.transmit(cx, FlowId::NONE, self.tcb.una, flags, |transmit| transmit);
        }
        self.reset(cx);
        self.release(cx, TeardownEnd::Reset)
    }

    fn fin_acked(&self) -> bool {
        self.tcb.una == self.fin + 1
    }

    /// Returns the receive window with the template's unscaled window field. If a scale is in use,
    /// that is less than was offered, so some segments far ahead are answered rather than
    /// processed.
    fn receive_window(&self) -> ReceiveWindow {
        ReceiveWindow { next: self.tcb.rcv_nxt, len: self.window.into() }
    }

    /// Answers an unacceptable segment, so that a peer out of step can recover. Segments without
    /// payload and FIN are answered at a limited rate, so that two ends out of step do not answer
    /// each other forever.
    fn answer_unacceptable(&mut self, cx: &mut TeardownEnv<'_>, flags: TcpFlags, payload: u32) {
        cx.counters.teardown_out_of_window += 1;
        if flags.has(TcpFlags::RST) {
            return;
        }
        if flags.has(TcpFlags::SYN) {
            self.challenge(cx);
        } else if payload == 0 && !flags.has(TcpFlags::FIN) {
            // Most often a keep-alive, which is no sign of an attack.
            self.acknowledge_limited(cx);
        } else {
            self.acknowledge(cx);
        }
    }

    /// Updates TS.Recent. RCV.NXT serves as Last.ACK.sent, since received data is acknowledged at
    /// once.
    fn note_timestamp(&mut self, now: Instant, segment: &TcpHeader) {
        if let Some((recent, _)) = &mut self.timestamps {
            recent.update(now, segment, self.tcb.rcv_nxt);
        }
    }

    /// Performs the fifth step: the acknowledgment. Returns whether the rest of the segment is to
    /// be processed.
    fn take_acknowledgment(
        &mut self,
        cx: &mut TeardownEnv<'_>,
        segment: &TcpHeader,
        payload: u32,
    ) -> bool {
        let una = self.tcb.una;
        // RFC 5961 section 5.2: not beyond the sent bytes, and not older than a window.
        let oldest = self.tcb.edge.distance(una).max(OLD_ACK_MIN);
        if segment.ack.gt(self.tcb.nxt) || segment.ack.distance(una) < -oldest {
            self.challenge(cx);
            return false;
        }
        if segment.ack.lt(una) {
            return true;
        }
        // State changes only after the acknowledgment was found acceptable. One older than the last
        // does not update TS.Recent, as in Linux.
        self.note_timestamp(cx.now, segment);
        let same_window = self.peer_window.replace(segment.window) == Some(segment.window);
        self.tcb.edge = segment.ack + (u32::from(segment.window) << self.tcb.peer_scale);
        if segment.ack.gt(una) {
            self.advance(cx, segment.ack);
        } else if same_window
            && payload == 0
            && !segment.flags.has(TcpFlags::FIN)
            && !self.fin_acked()
        {
            // Duplicates: RFC 5681 section 2. Three of them: section 3.2.
            self.dup_acks = self.dup_acks.saturating_add(1);
            if self.dup_acks == DUP_ACKS {
                cx.counters.teardown_dup_ack_retransmits += 1;
                self.send(cx, 0, self.parts_seq, true);
                cx.arm = Some(self.tcb.rto);
            }
        }
        true
    }

    /// Handles an acknowledgment of everything before `una`.
    fn advance(&mut self, cx: &mut TeardownEnv<'_>, una: SeqNum) {
        self.tcb.una = una;
        (self.tries, self.dup_acks) = (0, 0);
        while let Some(part) = self.tcb.parts.first() {
            let end = self.parts_seq + part.len();
            if end.gt(una) {
                break;
            }
            self.parts_seq = end;
            cx.actions.extend(kept_extent(part).map(TeardownAction::FileDone));
            self.tcb.parts.remove(0);
        }
        if self.fin_acked() {
            self.await_fin(cx);
        } else {
            // RFC 6298 (5.3).
            cx.arm = Some(self.tcb.rto);
        }
    }

    /// Enters FIN-WAIT-2, which is bounded even if the peer never closes (Linux: tcp_fin_timeout).
    fn await_fin(&mut self, cx: &mut TeardownEnv<'_>) {
        self.destroy_contexts(cx);
        cx.arm = Some(self.tcb.time_wait);
    }

    /// Performs the seventh and eighth steps of RFC 9293 section 3.10.7.4: payload and FIN. Returns
    /// the reason if the connection ended.
    fn take_payload(
        &mut self,
        cx: &mut TeardownEnv<'_>,
        segment: &TcpHeader,
        payload: u32,
    ) -> Option<TeardownEnd> {
        let end = segment.seq + payload;
        let is_late = payload > 0 && end.gt(self.tcb.rcv_nxt) && !self.fin_received;
        if is_late && !self.discard(cx, segment.seq, end) {
            cx.counters.teardown_reset_late_data += 1;
            self.reset(cx);
            return Some(self.release(cx, TeardownEnd::Reset));
        }
        let fin = segment.flags.has(TcpFlags::FIN) && !self.fin_received;
        if fin && end == self.tcb.rcv_nxt {
            self.tcb.rcv_nxt = end + 1;
            self.fin_received = true;
        }
        if fin || segment.flags.has(TcpFlags::FIN) || payload > 0 {
            // Also acknowledges a FIN after a hole: the peer counts duplicates.
            self.acknowledge(cx);
        }
        if !self.fin_received || !self.fin_acked() {
            return None;
        }
        let how = if self.passive { TeardownEnd::Closed } else { TeardownEnd::TimeWait };
        cx.counters.teardown_closed += 1;
        Some(self.release(cx, how))
    }

    /// Consumes and discards data from `seq` to `release`, some of it new. Returns false if the
    /// host did not request that or the bound is exceeded. Data after a hole is not consumed; the
    /// peer will retransmit it.
    ///
    /// The template's window is offered from the last byte consumed, so its right edge never moves
    /// back. With TLS the data is not decrypted: the last record that we send, close_notify, was
    /// numbered before the hand-over, so no application data follows for which a KeyUpdate would
    /// require an answer (RFC 8446 sections 4.6.3 and 6.1).
    fn discard(&mut self, cx: &mut TeardownEnv<'_>, seq: SeqNum, end: SeqNum) -> bool {
        let LateData::Discard { bytes_max } = &mut self.tcb.late_data else { return false };
        if seq.gt(self.tcb.rcv_nxt) {
            cx.counters.teardown_late_data_out_of_order += 1;
            return true;
        }
        let new = end.distance(self.tcb.rcv_nxt).unsigned_abs();
        let Some(left) = bytes_max.checked_sub(new) else { return false };
        *bytes_max = left;
        self.tcb.rcv_nxt = end;
        cx.counters.teardown_late_data_bytes += u64::from(new);
        true
    }

    /// Sends the parts from index `skip` on, which begin at `seq`, and the FIN, as one transmit
    /// that the pipeline segments. Beyond the peer's window only the first part is sent, which then
    /// serves as a window probe (RFC 9293 section 3.8.6.1).
    fn send(&self, cx: &mut TeardownEnv<'_>, skip: usize, seq: SeqNum, again: bool) {
        let (mut parts, mut at) = (TransmitParts::new(), seq);
        for part in self.tcb.parts.iter().skip(skip) {
            let end = at + part.len();
            if !parts.is_empty() && end.gt(self.tcb.edge) {
                break;
            }
            parts.push(part.clone());
            at = end;
        }
        let mut flags = TcpFlags::ACK;
        if at == self.fin {
            flags = flags.with(TcpFlags::FIN);
            if !parts.is_empty() {
                flags = flags.with(TcpFlags::PSH);
            }
        }
        let long = at.distance(seq) > i32::from(self.tcb.mss);
        let segment_size = if long { self.tcb.mss } else { 0 };
        let retransmission = again || has_prefix(&parts);
        self.transmit(cx, self.tcb.flow, seq, flags, |transmit| Transmit {
            segment_size,
            parts,
            retransmission,
            quic: None,
            ..transmit
        });
    }

    /// Sends a segment without payload, on no flow, so that it does not wait behind a transmit that
    /// waits for a disk.
    fn send_bare(&self, cx: &mut TeardownEnv<'_>, flags: TcpFlags) {
        self.transmit(cx, FlowId::NONE, self.tcb.nxt, flags, |transmit| transmit);
    }

    fn transmit(
        &self,
        cx: &mut TeardownEnv<'_>,
        flow: FlowId,
        seq: SeqNum,
        flags: TcpFlags,
        with: impl FnOnce(Transmit) -> Transmit,
    ) {
        let stamps = self.timestamps.map(|(recent, stamp)| (stamp.value(cx.now), recent.value()));
        let (header, timestamp) = segment(&self.tcb, seq, flags, stamps);
        let transmit = Transmit {
            flow,
            header,
            segment_size: 0,
            parts: TransmitParts::new(),
            timestamp,
            // The host has forgotten the connection.
            echo: None,
            retransmission: false,
            quic: None,
        };
        cx.transmits.push_back((self.queue(), with(transmit)));
    }

    fn acknowledge(&self, cx: &mut TeardownEnv<'_>) {
        self.send_bare(cx, TcpFlags::ACK);
    }

    /// Sends a reset (RFC 9293 section 3.5.2). Pending transmits must not follow it.
    fn reset(&self, cx: &mut TeardownEnv<'_>) {
        self.send_bare(cx, TcpFlags::RST.with(TcpFlags::ACK));
    }

    /// Sends a challenge ACK, subject to the rate limit.
    fn challenge(&mut self, cx: &mut TeardownEnv<'_>) {
        if self.acknowledge_limited(cx) {
            cx.counters.teardown_challenge_acks += 1;
        } else {
            cx.counters.teardown_challenge_acks_limited += 1;
        }
    }

    /// Acknowledges an unacceptable segment, subject to the rate limit. Returns whether it did.
    fn acknowledge_limited(&mut self, cx: &mut TeardownEnv<'_>) -> bool {
        let may = self.challenges.allow(cx.now);
        if may {
            self.acknowledge(cx);
        }
        may
    }

    /// Releases all outside resources: pending transmits, files and contexts.
    fn release(&mut self, cx: &mut TeardownEnv<'_>, how: TeardownEnd) -> TeardownEnd {
        if !self.fin_acked() {
            cx.actions.push_back(TeardownAction::Cancel(self.queue(), self.tcb.flow));
        }
        for part in self.tcb.parts.drain(..) {
            cx.actions.extend(kept_extent(&part).map(TeardownAction::FileDone));
        }
        self.destroy_contexts(cx);
        how
    }

    fn destroy_contexts(&mut self, cx: &mut TeardownEnv<'_>) {
        let queue = self.queue();
        let contexts = self.tcb.contexts.drain(..);
        cx.actions.extend(contexts.map(|context| TeardownAction::Destroy(queue, context)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Excludes one bit per slot of the wheel, the index entry, and the payload.
    #[test]
    fn a_connection_is_small() {
        let bytes = size_of::<TeardownFlow>() + size_of::<Teardown>() + size_of::<wire::Tuple>();
        assert!(bytes <= 408, "{bytes} bytes");
    }
}
