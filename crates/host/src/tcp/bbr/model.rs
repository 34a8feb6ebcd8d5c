//! BBR's model of the path: draft section 5.5. Bandwidth, round-trip time, aggregation, and what
//! losses and ECN marks say about the safe volume in flight.

use base::{Duration, Instant};

use super::control::percent;
use super::rate_sample::LostTransmit;
use super::{AckPhase, Bbr, BbrInputs, BbrState, LostRange, UNBOUNDED, Up};

/// BBR.LossThresh in percent.
const LOSS_THRESH: u64 = 2;
/// BBR.Beta in percent.
const BETA: u64 = 70;
/// BBR.Headroom in percent.
const HEADROOM: u64 = 15;
/// BBRStartupFullLossCnt.
const STARTUP_LOST_RANGES: u32 = 6;
/// Section 5.3.1.2: rounds without growth by a quarter after which the pipe is full.
const FULL_PIPE_ROUNDS: u8 = 3;
/// BBR.ExtraAckedFilterLen in rounds.
const EXTRA_ACKED_ROUNDS: u64 = 10;
/// BBR.ProbeRTTInterval.
const PROBE_RTT_INTERVAL: Duration = Duration::from_secs(5);
/// BBR.MinRTTFilterLen.
const MIN_RTT_WINDOW: Duration = Duration::from_secs(10);
/// Maximum of BBR.bw_probe_up_rounds (section 5.3.3.9).
const UP_ROUNDS_MAX: u32 = 30;

/// The estimator of a full pipe: section 5.3.1.2.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FullPipe {
    /// BBR.full_bw: the bandwidth that growth is measured against.
    bw: u64,
    rounds: u8,
    /// The current probe has filled the pipe.
    pub(super) now: bool,
    /// The pipe was ever full.
    pub(super) reached: bool,
}

impl FullPipe {
    /// Restarts the estimate from a bandwidth: `ResetFullBW`.
    pub(super) const fn restart(&mut self, bw: u64) {
        (self.bw, self.rounds, self.now) = (bw, 0, false);
    }
}

/// Minimum of the round-trip time: section 5.3.4.3.
#[derive(Clone, Copy, Debug)]
pub(super) struct RttModel {
    /// BBR.min_rtt; `None` before the first sample.
    pub(super) min: Option<Duration>,
    min_at: Instant,
    /// BBR.probe_rtt_min_delay and its time.
    probe_min: Option<Duration>,
    probe_min_at: Instant,
    pub(super) probe_expired: bool,
}

impl RttModel {
    pub(super) const fn new(now: Instant) -> Self {
        Self { min: None, min_at: now, probe_min: None, probe_min_at: now, probe_expired: false }
    }

    /// Schedules the next stay in ProbeRTT.
    pub(super) const fn schedule_probe(&mut self, now: Instant) {
        self.probe_min_at = now;
    }
}

/// Bounds by recent losses: section 5.5.10.3.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShortTermModel {
    /// BBR.bw_shortterm in bytes per second.
    pub(super) bw: u64,
    /// BBR.inflight_shortterm in bytes.
    pub(super) inflight: u64,
}

impl ShortTermModel {
    pub(super) const UNSET: Self = Self { bw: UNBOUNDED, inflight: UNBOUNDED };
}

/// The largest volume in flight that was safe: section 5.5.10.2.
#[derive(Clone, Copy, Debug)]
pub(super) struct LongTermModel {
    /// BBR.inflight_longterm in bytes.
    pub(super) inflight: u64,
    /// BBR.probe_up_acked_per_inc, BBR.bw_probe_up_acked, BBR.bw_probe_up_rounds.
    pub(super) acked_per_increase: u64,
    pub(super) up_acked: u64,
    pub(super) up_rounds: u32,
}

impl LongTermModel {
    pub(super) const UNSET: Self =
        Self { inflight: UNBOUNDED, acked_per_increase: UNBOUNDED, up_acked: 0, up_rounds: 0 };
}

/// Signals of the current round.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CongestionSignals {
    /// Something was lost or marked in this round.
    loss_in_round: bool,
    /// Total of delivered bytes at which the round ends, and whether it just did.
    round_delivered: u64,
    round_start: bool,
    /// Discontiguous ranges lost in this round, and the end of the last one.
    lost_ranges: u32,
    lost_end: u64,
    /// BBR.bw_latest and BBR.inflight_latest.
    bw_latest: u64,
    inflight_latest: u64,
}

/// State before a loss: section 5.5.11.1.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UndoState {
    /// State that the loss ended.
    state: Option<BbrState>,
    bw_shortterm: u64,
    inflight_shortterm: u64,
    inflight_longterm: u64,
}

impl UndoState {
    /// Returns the state that the last loss ended.
    #[cfg(test)]
    pub(super) const fn state_for_tests(&self) -> Option<BbrState> {
        self.state
    }
}

impl Bbr {
    // ---- losses and marks ----

    /// Handles a lost range: section 5.5.10.2.
    pub(crate) fn on_lost(&mut self, inputs: BbrInputs, range: LostRange) {
        self.inputs = inputs;
        self.note_loss();
        if self.signals.lost_ranges == 0 || self.signals.lost_end != range.start {
            self.signals.lost_ranges += 1;
        }
        self.signals.lost_end = range.end;
        let size = range.end - range.start;
        let Some(sent) = self.sampler.on_lost(range.tag, size) else { return };
        let too_high = self.is_too_high(sent.lost_since, sent.tx_in_flight);
        if self.cycle.is_sample && too_high {
            self.handle_inflight_too_high(inflight_at_loss(sent, size), sent.app_limited);
        }
    }

    /// Handles a loss that was repaired before its size was known: by a tail loss probe.
    pub(crate) fn on_repaired_loss(&mut self, inputs: BbrInputs) {
        self.inputs = inputs;
        self.note_loss();
    }

    /// Handles an ECN mark, at most one per round trip, as losses above the threshold: the draft
    /// specifies no response, and section 3.7 demands one.
    pub(crate) fn on_ecn_mark(&mut self, inputs: BbrInputs) {
        self.inputs = inputs;
        self.note_loss();
        if self.state == BbrState::Startup {
            self.full_pipe.reached = true;
            self.long.inflight = self.bdp().max(self.signals.inflight_latest);
        } else if self.cycle.is_sample {
            self.handle_inflight_too_high(self.rs.tx_in_flight, self.rs.app_limited);
        }
    }

    /// Saves the state when loss recovery begins, by losses or a time-out.
    pub(crate) fn on_recovery_start(&mut self, inputs: BbrInputs) {
        self.inputs = inputs;
        self.save_state_upon_loss();
    }

    /// Restores the window when all losses are repaired. Returns the window.
    pub(crate) fn on_recovery_end(&mut self, inputs: BbrInputs) -> u64 {
        self.inputs = inputs;
        self.restore_cwnd();
        self.inputs.cwnd
    }

    /// Handles a loss recovery that proves to have been spurious: section 5.5.11.2. Returns the
    /// window.
    pub(crate) fn on_spurious_recovery(&mut self, inputs: BbrInputs) -> u64 {
        self.inputs = inputs;
        self.restore_cwnd();
        self.signals.loss_in_round = false;
        self.full_pipe.restart(0);
        self.short.bw = self.short.bw.max(self.undo.bw_shortterm);
        self.short.inflight = self.short.inflight.max(self.undo.inflight_shortterm);
        self.long.inflight = self.long.inflight.max(self.undo.inflight_longterm);
        let before = self.undo.state.take();
        let probing_rtt = self.state == BbrState::ProbeRtt;
        match before {
            Some(BbrState::Startup) if self.state != BbrState::Startup => {
                self.full_pipe.reached = false;
                if !probing_rtt {
                    self.state = BbrState::Startup;
                }
            }
            Some(BbrState::ProbeBw(Up)) if self.state != BbrState::ProbeBw(Up) && !probing_rtt => {
                self.start_probe_bw_refill();
            }
            _ => {}
        }
        self.inputs.cwnd
    }

    fn note_loss(&mut self) {
        if !self.signals.loss_in_round {
            self.signals.round_delivered = self.sampler.delivered();
            self.save_state_upon_loss();
        }
        self.signals.loss_in_round = true;
    }

    fn save_state_upon_loss(&mut self) {
        self.save_cwnd();
        self.undo = UndoState {
            state: None,
            bw_shortterm: self.short.bw,
            inflight_shortterm: self.short.inflight,
            inflight_longterm: self.long.inflight,
        };
    }

    /// Returns whether losses say that too much was in flight: `IsInflightTooHigh`.
    const fn is_too_high(&self, lost: u64, tx_in_flight: u64) -> bool {
        lost > percent(LOSS_THRESH, tx_in_flight) || lost > 0 && !self.inputs.sack
    }

    fn handle_inflight_too_high(&mut self, tx_in_flight: u64, app_limited: bool) {
        self.cycle.prev_too_high = true;
        self.cycle.is_sample = false;
        if !app_limited {
            self.long.inflight = tx_in_flight.max(percent(BETA, self.target_inflight()));
        }
        if self.state == BbrState::ProbeBw(Up) {
            self.undo.state = Some(self.state);
            self.start_probe_bw_down();
        }
    }

    /// Ends Startup by losses: section 5.3.1.3.
    pub(super) fn check_startup_high_loss(&mut self) {
        let signals = self.signals;
        if signals.round_start {
            self.signals.lost_ranges = 0;
        }
        let lost = self.sampler.lost_since(self.rs.prior_lost);
        let high = if self.inputs.sack {
            signals.round_start
                && signals.lost_ranges >= STARTUP_LOST_RANGES
                && self.is_too_high(lost, self.rs.tx_in_flight)
        } else {
            signals.lost_ranges > 0
        };
        if self.state == BbrState::Startup && self.inputs.recovering && high {
            self.undo.state = Some(self.state);
            self.full_pipe.reached = true;
            self.long.inflight = self.bdp().max(signals.inflight_latest);
        }
    }

    // ---- rounds and short-term model: section 5.5.10.3 ----

    pub(super) fn update_latest_delivery_signals(&mut self) {
        let signals = &mut self.signals;
        signals.bw_latest = signals.bw_latest.max(self.rs.rate);
        signals.inflight_latest = signals.inflight_latest.max(self.rs.delivered);
        signals.round_start =
            self.rs.has_data && self.rs.prior_delivered >= signals.round_delivered;
        if signals.round_start {
            signals.round_delivered = self.sampler.delivered();
        }
    }

    pub(super) const fn advance_latest_delivery_signals(&mut self) {
        if self.signals.round_start {
            self.signals.bw_latest = self.rs.rate;
            self.signals.inflight_latest = self.rs.delivered;
        }
    }

    pub(super) const fn reset_congestion_signals(&mut self) {
        self.signals.loss_in_round = false;
        self.signals.bw_latest = 0;
        self.signals.inflight_latest = 0;
    }

    pub(super) fn update_congestion_signals(&mut self) {
        self.update_max_bw();
        if !self.signals.round_start {
            return;
        }
        if self.signals.loss_in_round && !self.is_probing_bw() {
            self.adapt_lower_bounds();
        }
        self.signals.loss_in_round = false;
    }

    fn adapt_lower_bounds(&mut self) {
        if self.short.bw == UNBOUNDED {
            self.short.bw = self.max_bw();
        }
        if self.short.inflight == UNBOUNDED {
            self.short.inflight = self.inputs.cwnd;
        }
        self.short.bw = self.signals.bw_latest.max(percent(BETA, self.short.bw));
        self.short.inflight = self.signals.inflight_latest.max(percent(BETA, self.short.inflight));
    }

    pub(super) fn bound_bw_for_model(&mut self) {
        self.bw = self.max_bw().min(self.short.bw);
    }

    // ---- bandwidth: sections 5.5.1 to 5.5.6 ----

    /// Returns BBR.max_bw: the maximum of two cycles.
    pub(super) fn max_bw(&self) -> u64 {
        self.max_bw[0].max(self.max_bw[1])
    }

    fn update_max_bw(&mut self) {
        self.round.start = self.rs.has_data && self.rs.prior_delivered >= self.round.next_delivered;
        if self.round.start {
            self.start_round();
            self.round.count += 1;
            self.cycle.rounds_since_up += 1;
        }
        if self.rs.rate > 0 && (self.rs.rate >= self.max_bw() || !self.rs.app_limited) {
            self.max_bw[1] = self.max_bw[1].max(self.rs.rate);
        }
    }

    /// Begins a cycle of the filter; a cycle without samples changes nothing, as in Linux.
    fn advance_max_bw_filter(&mut self) {
        if self.max_bw[1] > 0 {
            self.max_bw = [self.max_bw[1], 0];
        }
    }

    pub(super) fn check_full_bw_reached(&mut self) {
        let rate = self.rs.rate;
        let full = &mut self.full_pipe;
        if full.now || !self.round.start || self.rs.app_limited || rate == 0 {
            return;
        }
        if rate >= full.bw.saturating_add(full.bw / 4) {
            full.restart(rate);
            return;
        }
        full.rounds += 1;
        full.now = full.rounds >= FULL_PIPE_ROUNDS;
        full.reached |= full.now;
    }

    // ---- long-term model: sections 5.3.3.9 and 5.5.10.2 ----

    /// Advances the phase of acknowledgments and raises the bound in flight. Returns whether it
    /// changed the state.
    pub(super) fn adapt_long_term_model(&mut self) -> bool {
        if self.cycle.ack_phase == AckPhase::ProbeStarting && self.round.start {
            self.cycle.ack_phase = AckPhase::ProbeFeedback;
        }
        if self.cycle.ack_phase == AckPhase::ProbeStopping && self.round.start {
            self.cycle.is_sample = false;
            self.cycle.ack_phase = AckPhase::Init;
            if self.in_probe_bw() && !self.rs.app_limited {
                self.advance_max_bw_filter();
            }
            if self.in_probe_bw() && self.cycle.prev_precautionary && !self.cycle.prev_too_high {
                self.start_probe_bw_refill();
                return true;
            }
        }
        let lost = self.sampler.lost_since(self.rs.prior_lost);
        if self.long.inflight == UNBOUNDED
            || !self.rs.has_data
            || self.is_too_high(lost, self.rs.tx_in_flight)
        {
            return false;
        }
        self.long.inflight = self.long.inflight.max(self.rs.tx_in_flight);
        if self.state == BbrState::ProbeBw(Up) {
            self.probe_inflight_longterm_upward();
        }
        false
    }

    pub(super) fn raise_inflight_longterm_slope(&mut self) {
        let growth = 1 << self.long.up_rounds;
        self.long.up_rounds = (self.long.up_rounds + 1).min(UP_ROUNDS_MAX);
        self.long.acked_per_increase = (self.inputs.cwnd / growth).max(self.inputs.mss).max(1);
    }

    fn probe_inflight_longterm_upward(&mut self) {
        let long = &mut self.long;
        if !self.inputs.cwnd_limited || self.inputs.cwnd < long.inflight {
            return;
        }
        long.up_acked += self.rs.newly_acked;
        let increases = long.up_acked / long.acked_per_increase;
        long.up_acked -= increases * long.acked_per_increase;
        long.inflight = long.inflight.saturating_add(increases * self.inputs.mss);
        if self.round.start {
            self.raise_inflight_longterm_slope();
        }
    }

    pub(super) fn target_inflight(&self) -> u64 {
        self.bdp().min(self.inputs.cwnd)
    }

    /// Returns the bound in flight less the room that is left to other flows.
    pub(super) fn inflight_with_headroom(&self) -> u64 {
        let inflight = self.long.inflight;
        if inflight == UNBOUNDED {
            return UNBOUNDED;
        }
        let headroom = percent(HEADROOM, inflight).max(self.inputs.mss);
        inflight.saturating_sub(headroom).max(self.min_pipe_cwnd())
    }

    // ---- round-trip time and aggregation: sections 5.3.4.3 and 5.5.9 ----

    pub(super) fn update_min_rtt(&mut self) {
        let (now, rtt) = (self.inputs.now, &mut self.rtt);
        rtt.probe_expired = now > rtt.probe_min_at + PROBE_RTT_INTERVAL;
        if let Some(sample) = self.rs.rtt {
            if rtt.probe_expired || rtt.probe_min.is_none_or(|min| sample < min) {
                (rtt.probe_min, rtt.probe_min_at) = (Some(sample), now);
            }
        }
        let Some(probe_min) = rtt.probe_min else { return };
        let expired = now > rtt.min_at + MIN_RTT_WINDOW;
        if expired || rtt.min.is_none_or(|min| probe_min < min) {
            (rtt.min, rtt.min_at) = (Some(probe_min), rtt.probe_min_at);
        }
    }

    pub(super) fn update_ack_aggregation(&mut self) {
        let now = self.inputs.now;
        let elapsed = u128::from(now.since(self.extra_acked_since).as_nanos());
        let expected = u128::from(self.bw) * elapsed / 1_000_000_000;
        let mut expected = u64::try_from(expected).unwrap_or(u64::MAX);
        if self.extra_acked_delivered <= expected {
            self.extra_acked_delivered = 0;
            self.extra_acked_since = now;
            expected = 0;
        }
        self.extra_acked_delivered += self.rs.newly_acked;
        let extra = self.extra_acked_delivered.saturating_sub(expected).min(self.inputs.cwnd);
        let window = if self.full_pipe.reached { EXTRA_ACKED_ROUNDS } else { 1 };
        self.extra_acked.update(window, self.round.count, extra);
    }
}

/// Returns the bytes in flight at which losses crossed the threshold, within a run of `size` bytes:
/// `InflightAtLoss`.
fn inflight_at_loss(sent: LostTransmit, size: u64) -> u64 {
    let before = sent.tx_in_flight.saturating_sub(size);
    let lost_before = sent.lost_since.saturating_sub(size);
    let allowed = percent(LOSS_THRESH, before).saturating_sub(lost_before);
    before + allowed * 100 / (100 - LOSS_THRESH)
}
