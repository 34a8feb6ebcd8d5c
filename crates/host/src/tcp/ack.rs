//! Acknowledgments: delivered ranges, losses, and their effect on the congestion window.
//!
//! The order is that of Linux's `tcp_ack`: window, cumulative and selective acknowledgment,
//! round-trip time, RACK, the phases of recovery, congestion control, timers.

use alloc::boxed::Box;

use base::{Instant, SeqNum, low32};
use wire::tcp::{SackBlock, TcpFlags, TcpHeader};

use super::conn::{AckedFileRange, TcpConnection, TcpEnv};
use super::rack::Rack;
use super::recovery::{CongestionEpisode, CwndReduction, CwndUndo, TailLossProbe};
use super::scoreboard::{DeliveredBytes, SentRange};
use super::state::TcpState;
use super::timers::TcpTimer;
use super::transform::TxTransforms;

/// Effects of one acknowledgment, gathered while it is processed.
#[derive(Debug, Default)]
struct AckEffects {
    delivered: DeliveredBytes,
    /// The acknowledged position moved.
    progressed: bool,
    /// Bytes that a DSACK reports as received twice (RFC 2883).
    dsack_bytes: u64,
    /// Acknowledged position.
    una: u64,
    /// Our timestamp that the segment echoes.
    ts_echo: Option<u32>,
    /// The segment carried payload.
    with_payload: bool,
    /// A duplicate acknowledgment as defined by RFC 5681 section 2.
    duplicate: bool,
    /// The segment echoes a CE mark (RFC 3168 section 6.1.2).
    echoes_mark: bool,
}

impl<T: TxTransforms> TcpConnection<T> {
    /// Returns the position that a segment acknowledges, if it is acceptable by RFC 5961 section
    /// 5.2: not beyond SND.NXT, not older than a window, and, as in Linux, not before our
    /// first byte.
    pub(crate) fn acknowledged_position(&self, segment: &TcpHeader) -> Option<u64> {
        let ahead = i64::from(segment.ack.distance(self.seq(self.snd.una)));
        let recent = segment.flags.has(TcpFlags::ACK) && ahead >= -i64::from(self.snd.wnd_max);
        let position = self.snd.una.checked_add_signed(ahead);
        position.filter(|una| recent && (1..=self.snd.nxt).contains(una))
    }

    /// Checks an acknowledgment by the fifth step of RFC 9293 section 3.10.7.4, as
    /// [`Self::acknowledged_position`] does. Answers an unacceptable one: with a reset before the
    /// handshake is complete, else with a challenge acknowledgment.
    pub(crate) fn check_acknowledgment(
        &mut self,
        cx: &mut TcpEnv<'_>,
        segment: &TcpHeader,
    ) -> Option<u64> {
        let position = self.acknowledged_position(segment);
        if position.is_none() {
            if self.state == TcpState::SynReceived {
                cx.out.reset_unmatched_ack(cx.now, &self.tuple, segment.ack);
            } else {
                self.challenge(cx);
            }
        }
        position
    }

    /// Processes a segment's acceptable acknowledgment of everything before `una`.
    pub(crate) fn handle_acknowledgment(
        &mut self,
        cx: &mut TcpEnv<'_>,
        segment: &TcpHeader,
        una: u64,
        with_payload: bool,
    ) {
        let ts_echo =
            segment.options.timestamps.filter(|_| self.options.timestamps).map(|ts| ts.echo);
        // As in Linux, an acknowledgment older than the last one is ignored here: its echo is
        // older, too. ECE on a SYN-ACK agrees to ECN (RFC 3168 section 6.1.1).
        let echo = segment.flags.has(TcpFlags::ECE) && !segment.flags.has(TcpFlags::SYN);
        let echoes_mark = self.options.ecn && echo && una >= self.snd.una;
        let mut ack =
            AckEffects { una, ts_echo, with_payload, echoes_mark, ..AckEffects::default() };
        let edge = self.snd.edge;
        self.update_window(segment, una);
        ack.progressed = una > self.snd.una;
        ack.duplicate = una == self.snd.una
            && edge == self.snd.edge
            && !with_payload
            && !segment.flags.any(TcpFlags::SYN.with(TcpFlags::FIN));
        if !ack.progressed && self.snd.flight.is_empty() {
            // Nothing is outstanding: an answer to a probe, data of the other direction, or a DSACK
            // for an unnecessary retransmission (RFC 2883).
            self.snd.probes = 0;
            self.snd.progress_at = cx.now;
            self.mark_delivered(cx.now, segment, &mut ack);
            self.process_tail_probe(cx, &ack);
            self.try_undo(cx, &ack);
            self.arm_retransmit(cx, None);
            return;
        }
        self.mark_delivered(cx.now, segment, &mut ack);
        self.sample_rtt(cx.now, &ack);
        if ack.progressed {
            self.advance_una(cx, una);
        }
        self.begin_bbr_ack(cx.now, &ack.delivered);
        self.snd.rate.on_ack(cx.now, ack.delivered.bytes, self.snd.una, self.snd.nxt);
        self.process_tail_probe(cx, &ack);
        self.process_mtu_probe_ack(cx);
        let undone = self.try_undo(cx, &ack);
        let wait = self.process_loss(cx, &mut ack, undone);
        self.grow_cwnd(cx.now, &ack);
        let is_cwr = matches!(self.snd.episode.as_deref(), Some(CongestionEpisode::Cwr(_)));
        if is_cwr && self.snd.flight.is_empty() {
            // No acknowledgment is on its way that could repeat the echo.
            self.snd.cc.end_reduction();
            self.snd.episode = None;
        }
        self.advance_state(cx);
        self.arm_retransmit(cx, wait);
    }

    /// Updates the peer's window (RFC 9293 section 3.10.7.4) by a segment that is not older than
    /// the last one that set it. An acknowledgment older than `una` is ignored, so SND.WL2 is not
    /// needed.
    fn update_window(&mut self, segment: &TcpHeader, una: u64) {
        let Some(seq) = self.rcv.position(segment.seq) else { return };
        if una < self.snd.una || seq < self.snd.wl1 {
            return;
        }
        let shift = if segment.flags.has(TcpFlags::SYN) { 0 } else { self.options.peer_scale };
        let window = u32::from(segment.window) << shift;
        self.snd.wl1 = seq;
        self.snd.edge = una + u64::from(window);
        if window >= self.snd.mss {
            self.snd.window_probes = 0;
        }
        self.snd.wnd_max = self.snd.wnd_max.max(window);
    }

    /// Marks ranges delivered, cumulatively and selectively, and passes them to RACK.
    fn mark_delivered(&mut self, now: Instant, segment: &TcpHeader, ack: &mut AckEffects) {
        let offset = self.options.ts_offset;
        let (una_before, iss) = (self.snd.una, self.snd.iss);
        let super::conn::TcpSendState { flight, rack, rtt, nxt, cc, .. } = &mut self.snd;
        // RFC 8985 section 6.2 step 2: a timestamp echo older than the retransmission belongs to
        // the original.
        let spurious = |sent: &SentRange, echo: Option<u32>| {
            echo.is_some_and(|e| SeqNum(e).lt(SeqNum(timestamp(sent.xmit, offset))))
        };
        let echo = ack.ts_echo;
        let mut arrived = |rack: &mut Rack, sent: &SentRange| {
            rack.on_delivered(now, sent, rtt, spurious(sent, echo));
            if let Some(bbr) = cc.bbr_mut() {
                bbr.note_delivered(sent.tag);
            }
        };
        flight.acknowledge(ack.una, now, &mut ack.delivered, |sent| arrived(rack, sent));
        if !self.options.sack {
            return;
        }
        let position = |seq: SeqNum| {
            una_before.checked_add_signed(i64::from(seq.distance(iss + low32(una_before))))
        };
        let blocks = segment.options.sack();
        for (index, block) in blocks.iter().enumerate() {
            let (Some(start), Some(end)) = (position(block.start), position(block.end)) else {
                continue;
            };
            if start >= end || end > *nxt {
                continue;
            }
            let covers = |b: &SackBlock| b.start.le(block.start) && b.end.ge(block.end);
            // RFC 2883 section 4: a DSACK is the first block, below the acknowledgment or inside
            // the second.
            if index == 0 && (end <= ack.una || blocks.get(1).is_some_and(covers)) {
                ack.dsack_bytes = end - start;
                rack.on_dsack(ack.una, *nxt);
            } else if start >= ack.una {
                flight.sack(start, end, now, &mut ack.delivered, |sent| arrived(rack, sent));
            }
        }
    }

    /// Takes a sample of the round-trip time (RFC 6298 section 3, RFC 7323 section 4.1): from a
    /// range that was sent once; else from the echoed timestamp if the acknowledgment made
    /// progress.
    fn sample_rtt(&mut self, now: Instant, ack: &AckEffects) {
        let sample = match (ack.delivered.first_rtt, ack.ts_echo) {
            (Some(rtt), _) if ack.delivered.resent_at.is_none() => Some(rtt),
            (_, Some(echo))
                if ack.progressed && echo != 0 && !self.echoes_first_arrival(ack, echo) =>
            {
                let elapsed = timestamp(now, self.options.ts_offset).wrapping_sub(echo);
                // The peer's echo is not trusted beyond 2^24 ms.
                (elapsed < 1 << 24).then(|| base::Duration::from_millis(elapsed.max(1).into()))
            }
            _ => None,
        };
        if let Some(rtt) = sample {
            self.snd.rtt.sample(now, rtt);
        }
        if let Some(rtt) = ack.delivered.last_rtt {
            self.snd.rtt.sample_min(now, rtt);
        }
    }

    /// Returns whether the echoed timestamp may be that of a first arrival whose own acknowledgment
    /// was lost: the time since then contains the time-out and is no round trip. With SACK, the
    /// peer reports this by a DSACK (RFC 2883 section 4); without, Karn's rule applies.
    fn echoes_first_arrival(&self, ack: &AckEffects, echo: u32) -> bool {
        let older = |at: Instant| SeqNum(echo).lt(SeqNum(timestamp(at, self.options.ts_offset)));
        ack.dsack_bytes > 0 || !self.options.sack && ack.delivered.resent_at.is_some_and(older)
    }

    /// Frees acknowledged bytes, and reports acknowledged file ranges to the device a threshold at
    /// a time (IO-TCP section 3.5).
    fn advance_una(&mut self, cx: &mut TcpEnv<'_>, una: u64) {
        self.snd.una = una;
        self.snd.progress_at = cx.now;
        self.snd.probes = 0;
        self.snd.window_probes = 0;
        let mut unreported =
            core::mem::replace(&mut self.snd.unreported_acked, AckedFileRange::NONE);
        let mut report = |done: AckedFileRange| done.report(cx.files, cx.out);
        self.snd.spans.advance(una, |file, offset, len| {
            let len = u32::try_from(len).unwrap_or(u32::MAX);
            let continues = unreported.offset + u64::from(unreported.len) == offset;
            match unreported.len.checked_add(len) {
                Some(sum) if unreported.file == file && continues => unreported.len = sum,
                _ => {
                    report(unreported);
                    unreported = AckedFileRange { file, offset, len };
                }
            }
        });
        let idle = self.snd.flight.is_empty();
        if idle && !self.timers.is_set(TcpTimer::Idle) {
            self.arm_idle(cx.now);
        }
        if idle || u64::from(unreported.len) >= cx.config.file_ack_bytes {
            report(unreported);
        } else {
            self.snd.unreported_acked = unreported;
        }
        self.snd.transforms.drop_acked_keys(una, cx.out);
        if self.modes.wants_send_room && self.send_room(cx.config) * 3 >= cx.config.send_bytes_max {
            self.modes.wants_send_room = false;
            self.modes.notify_app = true;
        }
        // The application is notified when everything has been delivered.
        self.modes.notify_app |= una == self.send_end();
    }

    /// RFC 8985 section 7.4: detects that a tail loss probe repaired a loss that nothing else
    /// showed.
    fn process_tail_probe(&mut self, cx: &mut TcpEnv<'_>, ack: &AckEffects) {
        let Some(TailLossProbe { end, retransmitted: resent }) = self.snd.probe.as_deref().copied()
        else {
            return;
        };
        if ack.una < end {
            return;
        }
        if !resent || ack.dsack_bytes > 0 {
            self.snd.probe = None;
        } else if ack.una > end {
            self.snd.probe = None;
            cx.out.counters.tcp_tail_probe_repairs += 1;
            if self.snd.is_open() {
                self.report_repaired_loss_to_bbr(cx.now);
                self.begin_reduction(cx.now, CongestionEpisode::Cwr, ack.delivered.bytes);
            }
        } else if !ack.progressed && !ack.with_payload {
            // The original had arrived: the peer, without SACK, answers the probe by a duplicate
            // acknowledgment.
            self.snd.probe = None;
        }
    }

    /// Undoes a reduction of the window that proves to have been spurious. Returns whether it did.
    fn try_undo(&mut self, cx: &mut TcpEnv<'_>, ack: &AckEffects) -> bool {
        if ack.dsack_bytes > 0 {
            cx.out.counters.tcp_dsacks += 1;
        }
        let recovering = self.snd.is_recovering();
        let Some(undo) = &mut self.snd.undo else { return false };
        // Eifel (RFC 3522): the acknowledgment echoes a timestamp older than the first
        // retransmission, so the original caused it.
        let eifel = ack.progressed
            && recovering
            && match (undo.resent_at, ack.ts_echo) {
                (Some(resent), Some(echo)) => SeqNum(echo).lt(SeqNum(resent)),
                _ => false,
            };
        if ack.dsack_bytes > 0 && undo.any {
            undo.resent = undo.resent.saturating_sub(ack.dsack_bytes);
        }
        // RFC 3708: a DSACK answered every retransmission.
        let all_dsacked = undo.any && undo.resent == 0 && ack.dsack_bytes > 0;
        if !eifel && !all_dsacked {
            return false;
        }
        let before = undo.cc;
        self.snd.undo = None;
        self.snd.cc.undo(before);
        self.undo_bbr(cx.now);
        self.snd.flight.clear_loss_marks();
        self.snd.rtt.backoff = 0;
        self.snd.episode = None;
        cx.out.counters.tcp_undos += 1;
        true
    }

    /// Detects losses and changes the phase accordingly. Returns the delay after which RACK wants
    /// its timer to expire.
    fn process_loss(
        &mut self,
        cx: &mut TcpEnv<'_>,
        ack: &mut AckEffects,
        undone: bool,
    ) -> Option<base::Duration> {
        self.leave_phase(cx, ack.delivered.bytes);
        let recovering = self.snd.is_recovering();
        let snd = &mut self.snd;
        let (lost, wait) = if self.options.sack && !undone {
            snd.rack.detect(cx.now, &mut snd.flight, &snd.rtt, snd.mss, recovering)
        } else {
            (!self.options.sack && self.detect_without_sack(ack), None)
        };
        let lost = lost && !self.take_mtu_probe_loss(cx);
        if lost {
            self.report_losses_to_bbr(cx.now);
            self.enter_recovery(cx, ack.delivered.bytes);
        }
        if ack.echoes_mark {
            self.process_ecn_echo(cx, ack.delivered.bytes);
        }
        self.reduce_in_proportion(ack.delivered.bytes, ack.progressed && !lost);
        wait
    }

    /// Detects losses by RFC 6582 section 3.2, for a peer without SACK: three duplicate
    /// acknowledgments mean that the first segment is lost, a partial acknowledgment that the next
    /// one is. Returns whether a loss was found.
    fn detect_without_sack(&mut self, ack: &mut AckEffects) -> bool {
        /// RFC 5681 section 3.2.
        const DUP_THRESH: u8 = 3;
        let probe = self.mtu_probe().filter(|probe| probe.start == self.snd.una);
        let snd = &mut self.snd;
        let mss = u64::from(snd.mss);
        // The first segment may be a larger one, a probe of the path MTU.
        let first = probe.map_or(mss, |probe| probe.size().into());
        if ack.progressed {
            snd.dup_acks = 0;
            let recovers = matches!(snd.episode.as_deref(), Some(CongestionEpisode::Recovery(_)));
            let partial = recovers && !snd.flight.is_empty();
            if partial {
                // The bytes that the duplicates stood for were counted when these came.
                ack.delivered.bytes = ack.delivered.bytes.min(mss);
            }
            return partial && snd.flight.mark_first_lost(mss);
        }
        if !ack.duplicate {
            return false;
        }
        snd.dup_acks = snd.dup_acks.saturating_add(1);
        match snd.episode.as_deref() {
            Some(CongestionEpisode::Recovery(_)) => {
                // Each duplicate means that a segment has left the network.
                ack.delivered.bytes = mss;
                false
            }
            None | Some(CongestionEpisode::Cwr(_)) if snd.dup_acks == DUP_THRESH => {
                // Duplicates below the last recovery's end answer its own retransmissions.
                snd.una > snd.recover && snd.flight.mark_first_lost(first)
            }
            _ => false,
        }
    }

    /// Sets the window during a reduction (RFC 6937), after `delivered` bytes have arrived.
    pub(crate) fn reduce_in_proportion(&mut self, delivered: u64, safe: bool) {
        let (pipe, mss, ssthresh) = (self.snd.flight.pipe(), self.snd.mss, self.snd.cc.ssthresh);
        if self.snd.cc.is_bbr() {
            return;
        }
        if let Some(reduction) = self.snd.reduction() {
            let window = reduction.window(delivered, pipe, ssthresh, mss, safe);
            self.snd.cc.cwnd = window.max(mss);
        }
    }

    /// Leaves a phase when everything that had been sent at its beginning is acknowledged. CWR
    /// lasts until some of the new data that carries CWR is, as in Linux: until then the peer
    /// repeats its echo. `delivered` is as in [`Self::begin_reduction`].
    fn leave_phase(&mut self, cx: &mut TcpEnv<'_>, delivered: u64) {
        let una = self.snd.una;
        let over = |episode: &mut Box<CongestionEpisode>| match &**episode {
            CongestionEpisode::Cwr(reduction) => una > reduction.end,
            CongestionEpisode::Recovery(reduction) => una >= reduction.end,
            CongestionEpisode::Loss(time_out) => una >= time_out.end,
        };
        let Some(episode) = self.snd.episode.take_if(over) else { return };
        if !matches!(*episode, CongestionEpisode::Loss(_)) {
            self.snd.cc.end_reduction();
        }
        if !matches!(*episode, CongestionEpisode::Cwr(_)) {
            self.snd.rack.on_recovery_end();
            self.restore_bbr_cwnd(cx.now);
        }
        self.snd.recover = una;
        if matches!(*episode, CongestionEpisode::Recovery(_)) && self.snd.flight.has_lost() {
            // Data sent after the beginning of the recovery is lost too: another window, another
            // reduction (RFC 6675 section 5).
            self.enter_recovery(cx, delivered);
        }
    }

    /// Enters recovery after a loss was found. `delivered` is as in [`Self::begin_reduction`].
    pub(crate) fn enter_recovery(&mut self, cx: &mut TcpEnv<'_>, delivered: u64) {
        match self.snd.episode.as_deref_mut() {
            None => {
                cx.out.counters.tcp_recoveries += 1;
                self.begin_reduction(cx.now, CongestionEpisode::Recovery, delivered);
            }
            // The window is being reduced already: one reduction per round trip is enough.
            Some(episode @ &mut CongestionEpisode::Cwr(reduction)) => {
                cx.out.counters.tcp_recoveries += 1;
                *episode = CongestionEpisode::Recovery(reduction);
            }
            Some(CongestionEpisode::Recovery(_) | CongestionEpisode::Loss(_)) => {}
        }
    }

    /// Begins a reduction of the window at an acknowledgment that delivered `delivered` bytes.
    fn begin_reduction(
        &mut self,
        now: Instant,
        episode: impl FnOnce(CwndReduction) -> CongestionEpisode,
        delivered: u64,
    ) {
        self.save_undo_state();
        self.save_bbr_state(now);
        let snd = &mut self.snd;
        snd.cc.on_congestion(snd.mss);
        // RFC 9937 section 6.1, RecoverFS: bytes that were selectively acknowledged before are not
        // delivered during the reduction; those of this acknowledgment are.
        let flight = snd.flight.total() - snd.flight.sacked() + delivered;
        snd.episode = Some(Box::new(episode(CwndReduction::new(snd.nxt, flight))));
        snd.send_cwr = self.options.ecn;
    }

    /// Saves the state of congestion control before a reduction.
    pub(crate) fn save_undo_state(&mut self) {
        let snd = &mut self.snd;
        let cc = snd.cc.snapshot();
        snd.undo = Some(Box::new(CwndUndo { cc, resent_at: None, resent: 0, any: false }));
    }

    /// Reduces the window once per window of data, as for a lost packet (RFC 3168 section 6.1.2).
    fn process_ecn_echo(&mut self, cx: &mut TcpEnv<'_>, delivered: u64) {
        if self.snd.is_open() {
            cx.out.counters.tcp_ecn_reductions += 1;
            self.report_mark_to_bbr(cx.now);
            self.begin_reduction(cx.now, CongestionEpisode::Cwr, delivered);
        }
    }

    fn grow_cwnd(&mut self, now: Instant, ack: &AckEffects) {
        if self.finish_bbr_ack(now) {
            return;
        }
        let open = matches!(self.snd.episode.as_deref(), None | Some(CongestionEpisode::Loss(_)));
        if !open || !ack.progressed {
            return;
        }
        let snd = &mut self.snd;
        snd.cc.on_ack_for_hystart(snd.una, snd.nxt, ack.delivered.last_rtt);
        if snd.usage.allows_growth(&snd.cc) {
            let acked = u32::try_from(ack.delivered.bytes).unwrap_or(u32::MAX);
            snd.cc.on_ack(now, acked, snd.mss, snd.rtt.srtt());
        }
    }
}

/// Returns our timestamp of a time, in milliseconds (RFC 7323 section 5.4).
#[expect(clippy::cast_possible_truncation, reason = "timestamps are modulo 2^32")]
pub(crate) fn timestamp(at: Instant, offset: u32) -> u32 {
    (at.as_millis() as u32).wrapping_add(offset)
}
