//! Incoming segments: RFC 9293 section 3.10.7, with the defenses of RFC 5961 and the PAWS of RFC
//! 7323.
//!
//! Called by the host for a segment whose tuple is this connection's. Decides whether the segment
//! is acceptable, then passes its acknowledgment to [`super::ack`] and its payload to
//! [`super::rcv`].

use core::ops::Range;

use abi::PacketBuf;
use abi::l5o::RxMetadata;
use abi::teardown::LateData;
use base::{Instant, SeqNum};
use tcp_rules::paws::TsRecent;
use wire::tcp::{TcpFlags, TcpHeader};

use super::conn::{TcpConnection, TcpEnv};
use super::rcv::RxSegment;
use super::state::{TcpState, TcpStateEvent};
use super::timers::TcpTimer;
use super::transform::TxTransforms;
use crate::api::SocketError;

/// A received TCP segment.
pub(crate) struct RxTcpSegment {
    pub(crate) segment: TcpHeader,
    /// The frame that holds the segment.
    pub(crate) packet: PacketBuf,
    pub(crate) payload: Range<usize>,
    /// The device's metadata, for the protocol above that reads the payload.
    pub(crate) metadata: RxMetadata,
    /// Packets that were merged into the segment by receive coalescing.
    pub(crate) packets: u8,
    /// A packet carried the CE mark (RFC 3168).
    pub(crate) ce: bool,
}

impl RxTcpSegment {
    pub(crate) fn sequence_len(&self) -> u32 {
        let flags = self.segment.flags;
        let controls = u32::from(flags.has(TcpFlags::SYN)) + u32::from(flags.has(TcpFlags::FIN));
        // Frames are at most 66 KiB.
        u32::try_from(self.payload.len()).unwrap_or(u32::MAX) + controls
    }
}

impl<T: TxTransforms> TcpConnection<T> {
    /// Processes a segment.
    pub(crate) fn handle_segment(&mut self, cx: &mut TcpEnv<'_>, arrival: RxTcpSegment) {
        let continues = if self.state == TcpState::SynSent {
            // Payload on a SYN (TCP Fast Open) is not taken: the peer sends it again.
            self.handle_in_syn_sent(cx, &arrival.segment);
            false
        } else {
            self.handle_synchronized(cx, &arrival)
        };
        let spare = if continues { self.handle_payload(cx, arrival) } else { Some(arrival.packet) };
        if let Some(packet) = spare {
            cx.out.recycle.push_back(packet);
        }
    }

    /// Processes the acknowledgment of a segment whose payload is kept for a splice to relay.
    /// Returns whether the segment is acceptable.
    pub(crate) fn handle_ack_of_relayed(
        &mut self,
        cx: &mut TcpEnv<'_>,
        arrival: &RxTcpSegment,
    ) -> bool {
        let Some(una) = self.check_segment(cx, arrival) else { return false };
        // The timestamp is not taken over: it comes again with the payload.
        self.rcv.note_alive(cx.now);
        if self.options.ecn {
            self.note_ecn(arrival);
        }
        self.handle_acknowledgment(cx, &arrival.segment, una, true);
        true
    }

    /// Processes a segment's acknowledgment. Returns whether its payload or its FIN is to be taken.
    fn handle_synchronized(&mut self, cx: &mut TcpEnv<'_>, arrival: &RxTcpSegment) -> bool {
        let Some(una) = self.check_segment(cx, arrival) else { return false };
        self.take_timestamp_and_ecn(cx.now, arrival, una);
        let has_payload = !arrival.payload.is_empty();
        self.handle_acknowledgment(cx, &arrival.segment, una, has_payload);
        self.state != TcpState::Closed && (has_payload || arrival.segment.flags.has(TcpFlags::FIN))
    }

    /// Returns the position that an acceptable segment acknowledges. Any other segment is answered
    /// and changes nothing else of the connection (RFC 5961 section 5.2).
    fn check_segment(&mut self, cx: &mut TcpEnv<'_>, arrival: &RxTcpSegment) -> Option<u64> {
        if self.passes_checks(cx, arrival) {
            self.check_acknowledgment(cx, &arrival.segment)
        } else {
            None
        }
    }

    /// Takes over timestamp and ECN marks of an acceptable segment. Its timestamp is ignored if its
    /// acknowledgment is older than `una`, as in Linux's `tcp_ack`: a blind attacker would have to
    /// guess the sequence numbers in flight.
    fn take_timestamp_and_ecn(&mut self, now: Instant, arrival: &RxTcpSegment, una: u64) {
        if una >= self.snd.una {
            self.rcv.note_alive(now);
            self.note_timestamp(now, &arrival.segment);
        }
        if self.options.ecn {
            self.note_ecn(arrival);
        }
    }

    /// Makes the checks that need no acknowledgment number: the first to the fourth step of RFC
    /// 9293 section 3.10.7.4. Answers a segment that fails.
    fn passes_checks(&mut self, cx: &mut TcpEnv<'_>, arrival: &RxTcpSegment) -> bool {
        let segment = &arrival.segment;
        let flags = segment.flags;
        if self.options.timestamps && self.options.ts_recent.rejects(cx.now, segment) {
            cx.out.counters.tcp_paws_dropped += 1;
            self.ack_within_limit(cx);
            return false;
        }
        if !self.rcv.acceptable(segment.seq, arrival.sequence_len()) {
            self.answer_unacceptable(cx, arrival);
            return false;
        }
        if flags.has(TcpFlags::RST) {
            self.handle_reset(cx, segment.seq);
            return false;
        }
        if flags.has(TcpFlags::SYN) {
            // RFC 5961 section 4.2: a SYN never resets, whatever its sequence number.
            self.challenge(cx);
            return false;
        }
        flags.has(TcpFlags::ACK)
    }

    /// Answers an unacceptable segment by an acknowledgment, so that a peer out of synchronization
    /// recovers; payload that was received before is reported by DSACK (RFC 2883).
    fn answer_unacceptable(&mut self, cx: &mut TcpEnv<'_>, arrival: &RxTcpSegment) {
        cx.out.counters.tcp_out_of_window += 1;
        let flags = arrival.segment.flags;
        if flags.has(TcpFlags::RST) {
            return;
        }
        if flags.has(TcpFlags::SYN) {
            self.challenge(cx);
            return;
        }
        if arrival.payload.is_empty() && !flags.has(TcpFlags::FIN) {
            // A zero-window probe or a keep-alive; or both ends are out of synchronization and must
            // not answer each other forever.
            self.ack_within_limit(cx);
            return;
        }
        if self.acknowledged_position(&arrival.segment).is_some() {
            self.rcv.note_duplicate(arrival.segment.seq, arrival.payload.len());
        }
        self.rcv.ack_now();
    }

    /// RFC 5961 section 3.2: only the exact sequence number resets; any other in the window is
    /// challenged.
    fn handle_reset(&mut self, cx: &mut TcpEnv<'_>, seq: SeqNum) {
        if seq == self.rcv.ack() {
            let refused = self.state == TcpState::SynReceived;
            let error = if refused { SocketError::Refused } else { SocketError::Reset };
            match self.state {
                TcpState::TimeWait => self.finish(cx, None),
                _ => self.abort(cx, error),
            }
        } else if self.rcv.in_window(seq) {
            self.challenge(cx);
        }
    }

    /// Sends a challenge acknowledgment (RFC 5961), within the rate limit.
    pub(crate) fn challenge(&mut self, cx: &mut TcpEnv<'_>) {
        if self.ack_within_limit(cx) {
            cx.out.counters.tcp_challenge_acks += 1;
        } else {
            cx.out.counters.tcp_challenge_acks_limited += 1;
        }
    }

    /// Acknowledges an unacceptable segment, within the rate limit of challenges. Returns whether
    /// it did.
    fn ack_within_limit(&mut self, cx: &TcpEnv<'_>) -> bool {
        let may = self.challenges.allow(cx.now);
        if may {
            self.rcv.ack_now();
        }
        may
    }

    fn note_timestamp(&mut self, now: Instant, segment: &TcpHeader) {
        let Some(ts) = segment.options.timestamps.filter(|_| self.options.timestamps) else {
            return;
        };
        self.ts_echoed = ts.echo;
        self.options.ts_recent.update(now, segment, self.last_ack_sent);
    }

    /// RFC 3168 section 6.1.3: echoes a CE mark until a data segment with CWR says that the peer
    /// has reduced its window. Marks count on data only.
    fn note_ecn(&mut self, arrival: &RxTcpSegment) {
        if arrival.payload.is_empty() {
            return;
        }
        if arrival.segment.flags.has(TcpFlags::CWR) {
            self.rcv.echo_ce = false;
        }
        if arrival.ce {
            if !self.rcv.echo_ce {
                self.rcv.ack_now();
            }
            self.rcv.echo_ce = true;
        }
    }

    /// Takes payload and FIN: the seventh and eighth step of RFC 9293 section 3.10.7.4. Returns the
    /// packet if it was not taken.
    fn handle_payload(&mut self, cx: &mut TcpEnv<'_>, arrival: RxTcpSegment) -> Option<PacketBuf> {
        let RxTcpSegment { segment, packet, payload, packets, metadata, .. } = arrival;
        let fin = segment.flags.has(TcpFlags::FIN);
        let closing = matches!(self.state, TcpState::FinWait1 | TcpState::FinWait2);
        let shut = self.modes.held_by_app && self.rcv.read_shut && closing;
        // The peer's FIN may come with retransmitted bytes, as in Linux.
        let end = self.rcv.position(segment.seq).map(|at| at + payload.len() as u64);
        let is_new = !payload.is_empty() && end.is_none_or(|end| end > self.rcv.next());
        if is_new && (self.resets_late_data() || shut) {
            // RFC 9293 section 3.10.7.4 and RFC 1122 section 4.2.2.13: data for an application that
            // has closed the connection, or shut down both directions, is answered by a reset.
            self.abort(cx, SocketError::Closed);
            return Some(packet);
        }
        let chunk = RxSegment::new(packet, payload.start, payload.end, metadata);
        let expected = self.rcv.next();
        let spares = &mut cx.out.recycle;
        let taken = self.rcv.take(cx.now, segment.seq, chunk, (fin, packets), spares);
        let new = self.rcv.next() - expected - u64::from(taken.fin_reached);
        if !self.modes.held_by_app && !self.count_late_data(cx, new) {
            self.abort(cx, SocketError::Closed);
            return None;
        }
        self.modes.notify_app |= taken.readable || taken.fin_reached;
        if taken.fin_reached {
            self.enter(cx.out, TcpStateEvent::Fin);
        }
        if self.rcv.ack_is_delayed() && !self.timers.is_set(TcpTimer::DelayedAck) {
            self.timers.set(TcpTimer::DelayedAck, cx.now + cx.config.delayed_ack);
        }
        None
    }

    /// Processes a segment in SYN-SENT: RFC 9293 section 3.10.7.3.
    fn handle_in_syn_sent(&mut self, cx: &mut TcpEnv<'_>, segment: &TcpHeader) {
        let flags = segment.flags;
        // Acceptable only if our SYN was sent.
        let unacceptable = segment.ack != self.seq(1) || self.snd.nxt == 0;
        if flags.has(TcpFlags::ACK) && unacceptable {
            if !flags.has(TcpFlags::RST) {
                cx.out.reset_unmatched_ack(cx.now, &self.tuple, segment.ack);
            }
            return;
        }
        if flags.has(TcpFlags::RST) {
            if flags.has(TcpFlags::ACK) {
                self.abort(cx, SocketError::Refused);
            }
            return;
        }
        if !flags.has(TcpFlags::SYN) {
            return;
        }
        self.apply_peer_syn(cx, segment);
        if flags.has(TcpFlags::ACK) {
            self.handle_acknowledgment(cx, segment, 1, false);
            self.become_established(cx);
        } else {
            // Simultaneous open: our SYN is sent again, with an acknowledgment.
            self.enter(cx.out, TcpStateEvent::PeerSyn);
            self.snd.nxt = 0;
            self.snd.flight = super::scoreboard::RetransmitQueue::new();
            self.timers.stop(TcpTimer::Retransmit);
        }
        self.rcv.ack_now();
    }

    /// Takes over sequence number, window and options of the peer's SYN.
    fn apply_peer_syn(&mut self, cx: &mut TcpEnv<'_>, segment: &TcpHeader) {
        let theirs = &segment.options;
        self.rcv.synchronize(segment.seq);
        self.last_ack_sent = segment.seq + 1;
        let scaling = theirs.window_scale.is_some();
        // RFC 7323 section 2.3: a shift above 14 counts as 14.
        self.options.peer_scale = theirs.window_scale.unwrap_or(0).min(14);
        if !scaling {
            self.rcv.scale = 0;
        }
        // TCP_MAXSEG may have lowered our limit.
        self.options.peer_mss = theirs.mss.unwrap_or(536).min(self.options.peer_mss);
        self.options.sack &= theirs.sack_permitted;
        self.options.timestamps &= theirs.timestamps.is_some();
        let ts_value = theirs.timestamps.map_or(0, |ts| ts.value);
        self.options.ts_recent = TsRecent::new(cx.now, ts_value);
        // RFC 3168 section 6.1.1: a SYN-ACK with ECE and without CWR agrees to ECN.
        self.options.ecn &= segment.flags.has(TcpFlags::ECE) && !segment.flags.has(TcpFlags::CWR);
        self.snd.edge = u64::from(segment.window);
        self.snd.wnd_max = u32::from(segment.window);
        self.apply_negotiated_options(cx);
    }

    fn become_established(&mut self, cx: &mut TcpEnv<'_>) {
        self.enter(cx.out, TcpStateEvent::Synchronized);
        self.modes.notify_app = true;
        self.arm_idle(cx.now);
    }

    /// Advances the state: from SYN-RECEIVED when our SYN is acknowledged, from the closing states
    /// when our FIN is.
    pub(crate) fn advance_state(&mut self, cx: &mut TcpEnv<'_>) {
        if self.state == TcpState::SynReceived && self.snd.una > 0 {
            self.become_established(cx);
        }
        if self.fin_acked() {
            // Later acknowledgments cover the FIN again and change nothing.
            match self.state.next(TcpStateEvent::FinAcked) {
                None => {}
                Some(TcpState::Closed) => self.finish(cx, None),
                Some(next) => {
                    if next == TcpState::FinWait2 && !self.modes.held_by_app {
                        self.timers.set(TcpTimer::Linger, cx.now + cx.config.time_wait);
                    }
                    self.state = next;
                }
            }
        }
    }

    /// Returns whether new data is answered by a reset: the application has closed the connection,
    /// without a lingering close.
    pub(crate) fn resets_late_data(&self) -> bool {
        !self.modes.held_by_app && self.late_data == LateData::Reset
    }

    /// Counts bytes that arrive after a lingering close. Returns false if they exceed its limit.
    fn count_late_data(&mut self, cx: &mut TcpEnv<'_>, bytes: u64) -> bool {
        let LateData::Discard { bytes_max } = &mut self.late_data else { return true };
        let left = u32::try_from(bytes).ok().and_then(|bytes| bytes_max.checked_sub(bytes));
        let Some(left) = left else {
            cx.out.counters.tcp_late_data_resets += 1;
            return false;
        };
        *bytes_max = left;
        cx.out.counters.tcp_late_data_bytes += bytes;
        true
    }
}
