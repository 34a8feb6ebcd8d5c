//! Handlers of a connection's expired timers.

use alloc::boxed::Box;

use base::{Duration, Instant, internal_error};

use super::conn::{TcpConnection, TcpEnv};
use super::output::TransmitKind;
use super::recovery::{CongestionEpisode, RtoExpiry, TailLossProbe};
use super::scoreboard::SentRangeInfo;
use super::timers::{RetransmitPurpose, TcpTimer};
use super::transform::TxTransforms;
use crate::api::SocketError;

/// Unanswered keep-alive probes after which the peer counts as dead: Linux's
/// `tcp_keepalive_probes`.
const KEEPALIVE_PROBES_MAX: u8 = 9;
/// Interval of unanswered keep-alive probes: Linux's `tcp_keepalive_intvl`.
const KEEPALIVE_RETRY: Duration = Duration::from_secs(75);
/// Time without a segment after which a connection releases spare memory.
const SHRINK_AFTER: Duration = Duration::from_secs(1);

impl<T: TxTransforms> TcpConnection<T> {
    /// Handles every timer that has expired.
    pub(crate) fn handle_timeout(&mut self, cx: &mut TcpEnv<'_>) {
        if self.timers.take(TcpTimer::Retransmit, cx.now) {
            match self.retransmit_for {
                RetransmitPurpose::TimeOut => self.on_retransmission_timeout(cx),
                RetransmitPurpose::TailProbe => self.on_tail_probe(cx),
                RetransmitPurpose::Reordering => self.on_reordering_timeout(cx),
                RetransmitPurpose::WindowProbe => self.on_window_probe(cx),
            }
        }
        if self.timers.take(TcpTimer::DelayedAck, cx.now) && self.rcv.ack_is_delayed() {
            cx.out.counters.tcp_delayed_acks += 1;
            self.rcv.ack_now();
        }
        // These two timers only wake the connection up: output runs after every time-out.
        let _paced = self.timers.take(TcpTimer::Pace, cx.now);
        let _deferred = self.timers.take(TcpTimer::Defer, cx.now);
        if self.timers.take(TcpTimer::Idle, cx.now) {
            self.on_idle(cx);
        }
        if self.timers.take(TcpTimer::Linger, cx.now) {
            self.finish(cx, None);
        }
    }

    /// Aborts the connection if the peer has acknowledged nothing for the user time-out, or our SYN
    /// was sent too often (RFC 9293 section 3.8.3, RFC 5482). Returns whether it did.
    fn abort_if_timed_out(&mut self, cx: &mut TcpEnv<'_>) -> bool {
        let silent = cx.now.since(self.snd.progress_at);
        let opening = self.is_opening();
        let up = silent > self.user_timeout()
            || opening && self.snd.rtt.backoff >= cx.config.syn_retries;
        if up {
            cx.out.counters.tcp_timed_out += 1;
            self.abort(cx, SocketError::TimedOut);
        }
        up
    }

    /// Handles a retransmission time-out: RFC 6298 section 5, RFC 5681 section 3.1.
    fn on_retransmission_timeout(&mut self, cx: &mut TcpEnv<'_>) {
        if !self.snd.flight.any_departed() || self.abort_if_timed_out(cx) {
            return;
        }
        cx.out.counters.tcp_timeouts += 1;
        self.snd.rtt.backoff = self.snd.rtt.backoff.saturating_add(1);
        self.snd.probe = None;
        if self.is_opening() {
            self.snd.flight.resend(0, 1, cx.now, SentRangeInfo::default());
            self.send_syn(cx);
            self.arm_retransmit(cx, None);
            return;
        }
        // As in Linux's `tcp_enter_loss`: one reduction for all data outstanding when losses, a
        // mark or the last time-out were noticed. PRR's window, small by now, does not measure the
        // path, and a repeated time-out of the same data is no new information (RFC 5681 section
        // 3.1).
        let una = self.snd.una;
        let (reduces, expiries) = match self.snd.episode.as_deref() {
            None => (true, 1),
            Some(CongestionEpisode::Cwr(reduction) | CongestionEpisode::Recovery(reduction)) => {
                (una >= reduction.end, 1)
            }
            Some(CongestionEpisode::Loss(before)) if una > before.una => (true, 1),
            Some(CongestionEpisode::Loss(before)) => (false, before.expiries.saturating_add(1)),
        };
        self.process_mtu_probe_timeout(cx);
        self.detect_black_hole(cx, expiries);
        if reduces {
            self.save_undo_state();
            let mss = self.snd.mss;
            self.snd.cc.on_congestion(mss);
        }
        self.save_bbr_state(cx.now);
        self.snd.cc.on_timeout();
        self.snd.send_cwr = self.options.ecn;
        self.snd.flight.mark_all_lost();
        self.report_losses_to_bbr(cx.now);
        let expiry = RtoExpiry { end: self.snd.nxt, una, expiries };
        self.snd.episode = Some(Box::new(CongestionEpisode::Loss(expiry)));
        let pipe = u32::try_from(self.snd.flight.pipe()).unwrap_or(u32::MAX);
        self.snd.cc.cwnd = pipe.saturating_add(self.snd.mss);
        self.snd.pace_at = Instant::ZERO;
        // The first range is retransmitted at once by `output`; the timer restarts with it.
        self.rearm_after_timeout(cx);
    }

    fn rearm_after_timeout(&mut self, cx: &mut TcpEnv<'_>) {
        let rto = self.snd.rtt.rto(cx.config);
        self.retransmit_for = RetransmitPurpose::TimeOut;
        self.timers.set(TcpTimer::Retransmit, cx.now + rto);
    }

    /// Sends a tail loss probe: new data if there is any, else the last segment again (RFC 8985
    /// section 7.3).
    fn on_tail_probe(&mut self, cx: &mut TcpEnv<'_>) {
        if self.abort_if_timed_out(cx) {
            return;
        }
        let Some(last) = self.snd.flight.back().copied() else {
            internal_error!(cx.out.counters.internal_errors, "a probe of an empty flight");
            return;
        };
        cx.out.counters.tcp_tail_probes += 1;
        let mss = u64::from(self.snd.mss);
        let nxt = self.snd.nxt;
        let room = self.snd.edge.saturating_sub(nxt);
        let fresh = (self.send_end() - nxt).min(mss).min(room);
        let sent_new = fresh > 0 && self.transmit(cx, nxt, nxt + fresh, TransmitKind::New) > 0;
        if !sent_new {
            let start = last.start.max(last.end.saturating_sub(mss));
            self.retransmit(cx, start, last.end);
        }
        let probe = TailLossProbe { end: self.snd.nxt, retransmitted: !sent_new };
        self.snd.probe = Some(Box::new(probe));
        self.rearm_after_timeout(cx);
    }

    /// Marks ranges lost that waited for reordering: RFC 8985 section 6.3.
    fn on_reordering_timeout(&mut self, cx: &mut TcpEnv<'_>) {
        let recovering = self.snd.is_recovering();
        let snd = &mut self.snd;
        let (lost, wait) = snd.rack.detect(cx.now, &mut snd.flight, &snd.rtt, snd.mss, recovering);
        if lost && !self.take_mtu_probe_loss(cx) {
            self.report_losses_to_bbr(cx.now);
            self.enter_recovery(cx, 0);
            self.reduce_in_proportion(0, false);
        }
        self.arm_retransmit(cx, wait);
    }

    /// Probes a closed window while nothing is in flight: RFC 9293 section 3.8.6.1.
    fn on_window_probe(&mut self, cx: &mut TcpEnv<'_>) {
        if self.abort_if_peer_silent(cx) {
            return;
        }
        cx.out.counters.tcp_window_probes += 1;
        self.snd.window_probes = self.snd.window_probes.saturating_add(1);
        let nxt = self.snd.nxt;
        let room = self.snd.edge.saturating_sub(nxt).min(u64::from(self.snd.mss));
        let data = self.snd.spans.end().saturating_sub(nxt).min(room);
        // RFC 9293 section 3.8.6.2.1: a small window is filled after the override time-out.
        if data == 0 || self.transmit(cx, nxt, nxt + data, TransmitKind::New) == 0 {
            self.send_probe(cx);
        }
        self.arm_retransmit(cx, None);
    }

    /// Aborts the connection if the peer has been silent for the user time-out. A peer that answers
    /// may keep its window closed forever (RFC 9293 section 3.8.6.1). Returns whether it aborted.
    fn abort_if_peer_silent(&mut self, cx: &mut TcpEnv<'_>) -> bool {
        let silent = self.rcv.time_since_arrival(cx.now) > self.user_timeout();
        if silent {
            cx.out.counters.tcp_timed_out += 1;
            self.abort(cx, SocketError::TimedOut);
        }
        silent
    }

    /// Sends keep-alive probes (RFC 9293 section 3.8.4) and releases spare memory.
    fn on_idle(&mut self, cx: &mut TcpEnv<'_>) {
        let quiet = self.rcv.time_since_arrival(cx.now);
        if self.snd.flight.is_empty() && quiet >= SHRINK_AFTER {
            self.snd.flight.reset();
            self.shrink_bbr();
            self.snd.spans.shrink();
            self.rcv.shrink();
        } else if self.snd.flight.is_empty() {
            self.timers.set(TcpTimer::Idle, cx.now + (SHRINK_AFTER - quiet));
            return;
        }
        let interval = self.keep_alive();
        if interval == Duration::ZERO {
            return;
        }
        if quiet < interval {
            self.snd.probes = 0;
            self.timers.set(TcpTimer::Idle, cx.now + (interval - quiet));
            return;
        }
        if !self.snd.flight.is_empty() {
            // Keep-alive probes are for idle connections; outstanding data has a time-out of its
            // own (RFC 9293 section 3.8.4).
            self.timers.set(TcpTimer::Idle, cx.now + interval);
            return;
        }
        if self.snd.probes >= KEEPALIVE_PROBES_MAX {
            cx.out.counters.tcp_timed_out += 1;
            self.abort(cx, SocketError::TimedOut);
            return;
        }
        cx.out.counters.tcp_keepalive_probes += 1;
        self.snd.probes += 1;
        self.send_probe(cx);
        self.timers.set(TcpTimer::Idle, cx.now + KEEPALIVE_RETRY.min(interval));
    }

    /// Sets the timer of an idle connection.
    pub(crate) fn arm_idle(&mut self, now: Instant) {
        let interval = self.keep_alive();
        let keep_alive = interval != Duration::ZERO;
        let after = if keep_alive { interval.min(SHRINK_AFTER) } else { SHRINK_AFTER };
        self.timers.set(TcpTimer::Idle, now + after);
    }
}
