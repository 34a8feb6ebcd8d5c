//! One connection that is being torn down: transmission, received segments, and retransmission.
//!
//! When the connection is taken over, everything that was given, including the FIN, is sent at
//! once. So SND.NXT is the number after the FIN from then on, and SND.UNA follows from
//! [`Outstanding`].
//!
//! A timer always runs: the retransmission timer until everything is acknowledged, then the
//! FIN-WAIT-2 timer. There is no congestion control (AccelTCP section 4.2): the host hands over no
//! more than both windows allow at once, and retransmissions are at most that, with exponential
//! back-off.
//!
//! A [`TeardownFlow`] is small, since a device may have hundreds of thousands (section 4.2): shared
//! properties are in a [`super::profile`], and state that only unacknowledged bytes need is in
//! [`super::unacked`].
//!
//! Called by the engine, which finds the connection, keeps the timer and removes the connection.

use abi::l5o::L5oId;
use abi::teardown::{ClosingState, LateData, Teardown};
use abi::{FlowId, Transmit, TransmitParts};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use base::{Duration, Instant, SeqNum, internal_error};
use tcp_rules::challenge::ShortChallengeLimiter;
use tcp_rules::paws::TsRecent;
use tcp_rules::window::ReceiveWindow;
use wire::tcp::{TcpFlags, TcpHeader};

use super::TeardownAction;
use super::counters::TeardownCounters;
use super::profile::SegmentNumbers;
use super::segments::{TeardownFacts, TimestampClock, has_prefix, kept_extent};
use super::state::ClosureState;
use super::table::ClosurePeer;
use super::unacked::{LossRepair, UnackedBytes, UnackedId, UnackedTable};

/// Minimum age, in bytes, that an acceptable acknowledgment may have: RFC 5961 section 5.2, for a
/// peer whose largest window is unknown.
const OLD_ACK_MIN: i32 = 1 << 16;
/// Time after which received bytes are acknowledged if the transmit that carries the acknowledgment
/// waits for a disk: the host's usual delay. RFC 9293 MUST-58: less than half a second.
const ACK_DELAY: Duration = Duration::from_millis(40);

/// The part of the engine that a connection can access.
pub(super) struct TeardownEnv<'a> {
    pub(super) now: Instant,
    pub(super) peer: ClosurePeer<'a>,
    pub(super) unacked: &'a mut UnackedTable,
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

/// What the peer has not acknowledged.
#[derive(Clone, Copy, Debug)]
enum Outstanding {
    /// Bytes and the FIN.
    Bytes(UnackedId),
    /// Only the FIN.
    Fin(LossRepair),
    /// Nothing.
    Nothing {
        /// The window that the peer last offered, as an unscaled header field.
        peer_window: u16,
    },
}

/// A connection that is being torn down, or in TIME-WAIT.
#[derive(Debug)]
pub(super) struct TeardownFlow {
    outstanding: Outstanding,
    /// SND.NXT: the number after our FIN.
    pub(super) snd_nxt: SeqNum,
    pub(super) rcv_nxt: SeqNum,
    /// TS.Recent, if timestamps are in use. Its age needs no record: without progress, a connection
    /// ends long before the 24 days of RFC 7323 section 5.5.
    ts_recent: u32,
    /// The fields of the [`TimestampClock`].
    ts_offset: u32,
    ts_phase: u16,
    /// The window that we offer, as an unscaled header field.
    window: u16,
    /// Bytes that the peer may still send and that are discarded.
    late_bytes_left: u32,
    challenges: ShortChallengeLimiter,
    state: ClosureState,
}

impl TeardownFlow {
    /// Creates a connection that [`super::segments::check`] has accepted.
    pub(super) fn new(now: Instant, facts: &TeardownFacts, t: &Teardown) -> Self {
        let past_us = t.timestamp.map_or(0, |ts| ts.sub_ms_us);
        let (tsval, ts_recent) = facts.timestamps.unwrap_or_default();
        let clock = TimestampClock::new(now, tsval, past_us);
        // Until the first acknowledgment arrives, this is the window that the peer has left.
        let window = t.edge.distance(t.una).max(0).unsigned_abs() >> t.peer_scale;
        let peer_window = u16::try_from(window).unwrap_or(u16::MAX);
        Self {
            outstanding: match t.state {
                ClosingState::FinWait2 => Outstanding::Nothing { peer_window },
                _ => Outstanding::Fin(LossRepair::new(t.rto, peer_window)),
            },
            snd_nxt: facts.fin + 1,
            rcv_nxt: t.rcv_nxt,
            ts_recent,
            ts_offset: clock.offset,
            ts_phase: clock.phase,
            window: facts.window,
            late_bytes_left: match t.late_data {
                LateData::Reset => 0,
                LateData::Discard { bytes_max } => bytes_max,
            },
            challenges: ShortChallengeLimiter::new(),
            state: match t.state {
                ClosingState::FinWait1 => ClosureState::FinWait1,
                ClosingState::FinWait2 => ClosureState::FinWait2,
                ClosingState::Closing => ClosureState::Closing,
                ClosingState::LastAck => ClosureState::LastAck,
            },
        }
    }

    /// The state of the connection.
    pub(super) const fn state(&self) -> ClosureState {
        self.state
    }

    /// TS.Recent; see [`super::profile::ClosureProfile::has_timestamps`].
    pub(super) const fn ts_recent(&self) -> u32 {
        self.ts_recent
    }

    /// Takes the parts, and sends those that were never sent, from part `sent_parts` on.
    pub(super) fn begin(&mut self, cx: &mut TeardownEnv<'_>, t: Teardown, sent_parts: usize) {
        let Outstanding::Fin(repair) = self.outstanding else {
            destroy(cx, t.contexts);
            cx.arm = Some(cx.peer.profile.time_wait);
            return;
        };
        let has_files = t.parts.iter().any(|part| part.extent().is_some());
        let acks_late = has_files && t.nxt != self.snd_nxt;
        if t.parts.is_empty() {
            destroy(cx, t.contexts);
        } else {
            self.outstanding = Outstanding::Bytes(cx.unacked.insert(UnackedBytes {
                una: t.una,
                parts_seq: t.una,
                edge: t.edge,
                parts: t.parts,
                contexts: t.contexts,
                flow: t.flow,
                mss: t.mss,
                mss_after_timeouts: t.mss_after_timeouts,
                ack_waits_since: acks_late.then_some(cx.now),
                repair,
            }));
        }
        cx.arm = Some(if acks_late { ACK_DELAY.min(repair.rto()) } else { repair.rto() });
        if t.nxt != self.snd_nxt {
            self.send(cx, Some((sent_parts, t.nxt)));
        }
    }

    /// Handles a segment with `payload` bytes. Returns how the connection ended, if it did.
    pub(super) fn receive(
        &mut self,
        cx: &mut TeardownEnv<'_>,
        segment: &TcpHeader,
        payload: u32,
    ) -> Option<TeardownEnd> {
        let flags = segment.flags;
        if self.paws(cx).is_some_and(|recent| recent.rejects(cx.now, segment)) {
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
            if segment.seq == self.rcv_nxt {
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
        let bytes = match self.outstanding {
            Outstanding::Bytes(id) => cx.unacked.get_mut(id),
            _ => None,
        };
        let waiting = bytes.and_then(|bytes| Some((bytes.ack_waits_since.take()?, bytes)));
        if let Some((begun, bytes)) = waiting {
            let (flow, left) = (bytes.flow, bytes.repair.rto().saturating_sub(cx.now.since(begun)));
            self.acknowledge_late(cx, flow);
            if left > Duration::ZERO {
                cx.arm = Some(left);
                return None;
            }
        }
        let Some(repair) = self.repair(cx.unacked) else {
            cx.counters.teardown_fin_wait_expired += 1;
            return Some(self.release(cx, TeardownEnd::TimedOut));
        };
        // A transmit dropped by the pipeline, because its file failed or its context is gone, is
        // treated as a loss; such a connection ends here with a reset.
        if repair.tries >= retries_max {
            cx.counters.teardown_timed_out += 1;
            self.reset(cx);
            return Some(self.release(cx, TeardownEnd::TimedOut));
        }
        cx.arm = Some(repair.back_off());
        cx.counters.teardown_retransmits += 1;
        if let Outstanding::Bytes(id) = self.outstanding {
            let lowered = cx.unacked.get_mut(id).is_some_and(UnackedBytes::detect_black_hole);
            cx.counters.teardown_mtu_black_holes += u64::from(lowered);
        }
        self.send(cx, None);
        None
    }

    /// Resets the connection. A peer that has everything expects the number after the last byte
    /// sent; another one expects the number that it last acknowledged. Only a reset with the
    /// expected number counts (RFC 5961 section 3.2), so both are sent.
    pub(super) fn abort(&mut self, cx: &mut TeardownEnv<'_>) -> TeardownEnd {
        let flags = TcpFlags::RST.with(TcpFlags::ACK);
        let una = self.una(cx.unacked);
        if una != self.snd_nxt {
            self.transmit(cx, FlowId::NONE, una, flags, |transmit| transmit);
        }
        self.reset(cx);
        self.release(cx, TeardownEnd::Reset)
    }

    /// Acknowledges everything received.
    pub(super) fn acknowledge(&self, cx: &mut TeardownEnv<'_>) {
        self.send_bare(cx, TcpFlags::ACK);
    }

    /// Acknowledges everything received, if the transmit that was to carry the acknowledgment still
    /// waits for a disk.
    fn acknowledge_late(&self, cx: &mut TeardownEnv<'_>, flow: FlowId) {
        let ack = self.make_transmit(cx, FlowId::NONE, self.snd_nxt, TcpFlags::ACK);
        let queue = cx.peer.profile.queue;
        cx.actions.push_back(TeardownAction::TransmitIfWaiting(queue, flow, Box::new(ack)));
    }

    /// SND.UNA.
    fn una(&self, unacked: &UnackedTable) -> SeqNum {
        match self.outstanding {
            Outstanding::Bytes(id) => unacked.get(id).map_or(self.snd_nxt, |bytes| bytes.una),
            Outstanding::Fin(_) => self.snd_nxt - 1,
            Outstanding::Nothing { .. } => self.snd_nxt,
        }
    }

    /// The state of retransmission, until the FIN is acknowledged.
    fn repair<'a>(&'a mut self, unacked: &'a mut UnackedTable) -> Option<&'a mut LossRepair> {
        match &mut self.outstanding {
            Outstanding::Bytes(id) => unacked.get_mut(*id).map(|bytes| &mut bytes.repair),
            Outstanding::Fin(repair) => Some(repair),
            Outstanding::Nothing { .. } => None,
        }
    }

    /// TS.Recent, if timestamps are in use.
    fn paws(&self, cx: &TeardownEnv<'_>) -> Option<TsRecent> {
        cx.peer.profile.has_timestamps().then(|| TsRecent::new(cx.now, self.ts_recent))
    }

    /// Returns the receive window with the template's unscaled window field. If a scale is in use,
    /// that is less than was offered, so some segments far ahead are answered rather than
    /// processed.
    fn receive_window(&self) -> ReceiveWindow {
        ReceiveWindow { next: self.rcv_nxt, len: self.window.into() }
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
    fn note_timestamp(&mut self, cx: &TeardownEnv<'_>, segment: &TcpHeader) {
        if let Some(mut recent) = self.paws(cx) {
            recent.update(cx.now, segment, self.rcv_nxt);
            self.ts_recent = recent.value();
        }
    }

    /// Takes note of the peer's window. Returns whether it is the one that the peer last offered.
    fn note_window(&mut self, cx: &mut TeardownEnv<'_>, segment: &TcpHeader) -> bool {
        let peer_window = match &mut self.outstanding {
            Outstanding::Bytes(id) => {
                let Some(bytes) = cx.unacked.get_mut(*id) else { return false };
                let scale = cx.peer.profile.peer_scale;
                bytes.edge = segment.ack + (u32::from(segment.window) << scale);
                &mut bytes.repair.peer_window
            }
            Outstanding::Fin(repair) => &mut repair.peer_window,
            Outstanding::Nothing { peer_window } => peer_window,
        };
        core::mem::replace(peer_window, segment.window) == segment.window
    }

    /// Returns the size of the peer's window in bytes.
    fn peer_window_bytes(&self, cx: &TeardownEnv<'_>) -> i32 {
        let field = match self.outstanding {
            Outstanding::Bytes(id) => {
                return cx.unacked.get(id).map_or(0, |bytes| bytes.edge.distance(bytes.una));
            }
            Outstanding::Fin(repair) => repair.peer_window,
            Outstanding::Nothing { peer_window } => peer_window,
        };
        i32::from(field) << cx.peer.profile.peer_scale
    }

    /// Performs the fifth step: the acknowledgment. Returns whether the rest of the segment is to
    /// be processed.
    fn take_acknowledgment(
        &mut self,
        cx: &mut TeardownEnv<'_>,
        segment: &TcpHeader,
        payload: u32,
    ) -> bool {
        let una = self.una(cx.unacked);
        // RFC 5961 section 5.2: not beyond the sent bytes, and not older than a window.
        let oldest = self.peer_window_bytes(cx).max(OLD_ACK_MIN);
        if segment.ack.gt(self.snd_nxt) || segment.ack.distance(una) < -oldest {
            self.challenge(cx);
            return false;
        }
        if segment.ack.lt(una) {
            return true;
        }
        // State changes only after the acknowledgment was found acceptable. One older than the last
        // does not update TS.Recent, as in Linux.
        self.note_timestamp(cx, segment);
        let same_window = self.note_window(cx, segment);
        if segment.ack.gt(una) {
            self.advance(cx, segment.ack);
        } else if same_window && payload == 0 && !segment.flags.has(TcpFlags::FIN) {
            // Duplicates: RFC 5681 section 2. Three of them: section 3.2.
            let Some(repair) = self.repair(cx.unacked) else { return true };
            if repair.on_dup_ack() {
                cx.arm = Some(repair.rto());
                cx.counters.teardown_dup_ack_retransmits += 1;
                self.send(cx, None);
            }
        }
        true
    }

    /// Handles an acknowledgment of everything before `una`.
    fn advance(&mut self, cx: &mut TeardownEnv<'_>, una: SeqNum) {
        if let Outstanding::Bytes(id) = self.outstanding {
            let TeardownEnv { unacked, actions, .. } = cx;
            let Some(bytes) = unacked.get_mut(id) else {
                internal_error!(cx.counters.nic_internal_errors, "a connection without its bytes");
                return;
            };
            bytes.ack_waits_since = None;
            bytes.advance(una, |acked| actions.push_back(TeardownAction::FileDone(acked)));
            if bytes.parts.is_empty() {
                self.outstanding = Outstanding::Fin(bytes.repair);
                let bytes = unacked.remove(id);
                bytes.into_iter().for_each(|bytes| destroy(cx, bytes.contexts));
            }
        }
        match &mut self.outstanding {
            Outstanding::Fin(LossRepair { peer_window, .. }) if una == self.snd_nxt => {
                self.outstanding = Outstanding::Nothing { peer_window: *peer_window };
                self.state = self.state.on_fin_acked();
                // FIN-WAIT-2 is bounded even if the peer never closes (Linux: tcp_fin_timeout).
                cx.arm = Some(cx.peer.profile.time_wait);
            }
            _ => {
                let Some(repair) = self.repair(cx.unacked) else { return };
                repair.on_progress();
                // RFC 6298 (5.3).
                cx.arm = Some(repair.rto());
            }
        }
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
        let is_open = !self.state.has_received_fin();
        if is_open && payload > 0 && end.gt(self.rcv_nxt) && !self.discard(cx, segment.seq, end) {
            cx.counters.teardown_reset_late_data += 1;
            self.reset(cx);
            return Some(self.release(cx, TeardownEnd::Reset));
        }
        let has_fin = segment.flags.has(TcpFlags::FIN);
        if has_fin && is_open && end == self.rcv_nxt {
            self.rcv_nxt = end + 1;
            self.state = self.state.on_fin_received();
        }
        if has_fin || payload > 0 {
            // Also acknowledges a FIN after a hole: the peer counts duplicates.
            self.acknowledge(cx);
        }
        let how = match self.state {
            ClosureState::Closed => TeardownEnd::Closed,
            ClosureState::TimeWait => TeardownEnd::TimeWait,
            _ => return None,
        };
        cx.counters.teardown_closed += 1;
        Some(self.release(cx, how))
    }

    /// Consumes and discards data from `seq` to `end`, some of it new. Returns false if the host
    /// did not request that or the bound is exceeded. Data after a hole is not consumed; the peer
    /// will retransmit it.
    ///
    /// The template's window is offered from the last byte consumed, so its right edge never moves
    /// back. With TLS the data is not decrypted: the last record that we send, close_notify, was
    /// numbered before the hand-over, so no application data follows for which a KeyUpdate would
    /// require an answer (RFC 8446 sections 4.6.3 and 6.1).
    fn discard(&mut self, cx: &mut TeardownEnv<'_>, seq: SeqNum, end: SeqNum) -> bool {
        if self.late_bytes_left == 0 {
            return false;
        }
        if seq.gt(self.rcv_nxt) {
            cx.counters.teardown_late_data_out_of_order += 1;
            return true;
        }
        let new = end.distance(self.rcv_nxt).unsigned_abs();
        let Some(left) = self.late_bytes_left.checked_sub(new) else { return false };
        self.late_bytes_left = left;
        self.rcv_nxt = end;
        cx.counters.teardown_late_data_bytes += u64::from(new);
        true
    }

    /// Sends bytes and the FIN, as one transmit that the pipeline segments: for the first time the
    /// parts from an index on, which begin at a number; else all that are unacknowledged.
    fn send(&self, cx: &mut TeardownEnv<'_>, first: Option<(usize, SeqNum)>) {
        let fin = self.snd_nxt - 1;
        let Outstanding::Bytes(id) = self.outstanding else {
            // No transmit of bytes must leave before this one.
            self.transmit(cx, FlowId::NONE, fin, TcpFlags::ACK.with(TcpFlags::FIN), |fin| fin);
            return;
        };
        let Some(bytes) = cx.unacked.get(id) else {
            internal_error!(cx.counters.nic_internal_errors, "a connection without its bytes");
            return;
        };
        let (skip, seq) = first.unwrap_or((0, bytes.parts_seq));
        let (parts, end) = bytes.sendable(skip, seq);
        let mut flags = TcpFlags::ACK;
        if end == fin {
            flags = flags.with(TcpFlags::FIN);
            if !parts.is_empty() {
                flags = flags.with(TcpFlags::PSH);
            }
        }
        let is_long = end.distance(seq) > i32::from(bytes.mss);
        let (segment_size, flow) = (if is_long { bytes.mss } else { 0 }, bytes.flow);
        let retransmission = first.is_none() || has_prefix(&parts);
        self.transmit(cx, flow, seq, flags, |transmit| Transmit {
            segment_size,
            parts,
            retransmission,
            ..transmit
        });
    }

    /// Sends a segment without payload, on no flow, so that it does not wait behind a transmit that
    /// waits for a disk.
    fn send_bare(&self, cx: &mut TeardownEnv<'_>, flags: TcpFlags) {
        self.transmit(cx, FlowId::NONE, self.snd_nxt, flags, |transmit| transmit);
    }

    fn transmit(
        &self,
        cx: &mut TeardownEnv<'_>,
        flow: FlowId,
        seq: SeqNum,
        flags: TcpFlags,
        with: impl FnOnce(Transmit) -> Transmit,
    ) {
        let transmit = with(self.make_transmit(cx, flow, seq, flags));
        cx.transmits.push_back((cx.peer.profile.queue, transmit));
    }

    /// Returns a segment without payload.
    fn make_transmit(
        &self,
        cx: &TeardownEnv<'_>,
        flow: FlowId,
        seq: SeqNum,
        flags: TcpFlags,
    ) -> Transmit {
        let clock = TimestampClock { offset: self.ts_offset, phase: self.ts_phase };
        let numbers = SegmentNumbers {
            seq,
            ack: self.rcv_nxt,
            flags,
            window: self.window,
            stamps: (clock.value(cx.now), self.ts_recent),
        };
        let ClosurePeer { profile, remote } = cx.peer;
        let (header, timestamp) = profile.segment(remote, &numbers);
        Transmit {
            flow,
            header,
            segment_size: 0,
            parts: TransmitParts::new(),
            timestamp,
            // The host has forgotten the connection.
            echo: None,
            retransmission: false,
            quic: None,
        }
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

    /// Releases all outside resources of a connection that ends: pending transmits, files and
    /// contexts.
    fn release(&self, cx: &mut TeardownEnv<'_>, how: TeardownEnd) -> TeardownEnd {
        let Outstanding::Bytes(id) = self.outstanding else { return how };
        let Some(bytes) = cx.unacked.remove(id) else { return how };
        cx.actions.push_back(TeardownAction::Cancel(cx.peer.profile.queue, bytes.flow));
        for part in &bytes.parts {
            cx.actions.extend(kept_extent(part).map(TeardownAction::FileDone));
        }
        destroy(cx, bytes.contexts);
        how
    }
}

/// Destroys contexts that a connection no longer needs.
fn destroy(cx: &mut TeardownEnv<'_>, contexts: impl IntoIterator<Item = L5oId>) {
    let queue = cx.peer.profile.queue;
    cx.actions.extend(contexts.into_iter().map(|context| TeardownAction::Destroy(queue, context)));
}
