//! BBR version 3: draft-ietf-ccwg-bbr-06, with the draft's names.
//!
//! BBR measures the bandwidth and the round-trip time of the path, and paces at that bandwidth
//! instead of filling the queue until packets are lost. Called by [`super::bbr_feedback`] for
//! transmits, acknowledgments, losses, ECN marks and time-outs; [`super::output`] asks it for the
//! pacing rate and the length of a run. Sets the congestion window; sends nothing, detects no
//! losses.
//!
//! | file | function |
//! |---|---|
//! | this one | interface, state machine: sections 5.3 and 5.4 |
//! | [`model`] | the model of the path: section 5.5 |
//! | [`control`] | pacing rate, run length, window: section 5.6 |
//! | [`rate_sample`] | samples of the delivery rate: section 4.1 |
//! | [`windowed_max`] | a filter |
//!
//! Bounds that are not set are [`UNBOUNDED`], which minima and maxima handle as the draft's
//! Infinity. Differences from the draft: `docs/decisions/047-bbr.md`.

mod control;
mod model;
mod rate_sample;
#[cfg(test)]
mod tests;
mod windowed_max;

use base::{Duration, Instant, Prng};

use model::{CongestionSignals, FullPipe, LongTermModel, RttModel, ShortTermModel, UndoState};
pub(crate) use rate_sample::{AckedBytes, DepartingTransmit};
use rate_sample::{DeliverySampler, RateSample};
use windowed_max::WindowedMax;

/// A bound that is not set.
const UNBOUNDED: u64 = u64::MAX;
/// BBR.ProbeRTTDuration.
const PROBE_RTT_DURATION: Duration = Duration::from_millis(200);
/// Rounds after which Drain ends in any case (section 5.3.2).
const DRAIN_ROUNDS_MAX: u64 = 3;
/// Rounds after which the bandwidth is probed, as by Reno with a window of as many packets (section
/// 5.3.3.8).
const RENO_ROUNDS_MAX: u64 = 63;
/// Minimum time between two probes of the bandwidth (section 5.3.3.8). Up to a second more is
/// random.
const PROBE_WAIT_MIN: Duration = Duration::from_secs(2);
const PROBE_WAIT_RANDOM_NS: u64 = 1_000_000_000;

/// States: section 5.1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BbrState {
    /// Doubles the rate each round until the pipe is full.
    Startup,
    /// Drains the queue that Startup made.
    Drain,
    /// Steady state.
    ProbeBw(ProbeBwPhase),
    /// Reduces the bytes in flight to measure the round-trip time without a queue.
    ProbeRtt,
}

/// Phases of the steady state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeBwPhase {
    /// Sends slower than the path delivers.
    Down,
    /// Sends as fast as the path delivers.
    Cruise,
    /// Forgets the short-term model and fills the pipe.
    Refill,
    /// Sends faster than the path delivers.
    Up,
}

use ProbeBwPhase::{Cruise, Down, Refill, Up};

/// What the samples of the current acknowledgments belong to: BBR.ack_phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AckPhase {
    /// Not to a probe of the bandwidth.
    Init,
    /// Refilling.
    Refilling,
    /// The probe has begun; its samples are to come.
    ProbeStarting,
    /// Samples of the probe.
    ProbeFeedback,
    /// The probe is over; its last samples are coming.
    ProbeStopping,
}

/// State of the connection at an event.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BbrInputs {
    pub(crate) now: Instant,
    pub(crate) mss: u64,
    /// Congestion window in bytes; also the output.
    pub(crate) cwnd: u64,
    /// Bytes in the network: C.inflight without what waits in the device.
    pub(crate) inflight: u64,
    /// The window limited sending in the last round.
    pub(crate) cwnd_limited: bool,
    /// Lost ranges are being retransmitted.
    pub(crate) recovering: bool,
    /// The peer sends selective acknowledgments.
    pub(crate) sack: bool,
    /// Smoothed round-trip time; zero before the first sample.
    pub(crate) srtt: Duration,
}

/// A range that was found lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LostRange {
    /// Tag of its last transmit.
    pub(crate) tag: u32,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// Packet-timed round trips: section 5.5.1.
#[derive(Clone, Copy, Debug, Default)]
struct RoundCounter {
    /// A transmit that left after this total of delivered bytes ends the round.
    next_delivered: u64,
    count: u64,
    /// The current acknowledgment begins a round.
    start: bool,
}

/// The cycle of the phases of [`BbrState::ProbeBw`].
#[derive(Clone, Copy, Debug)]
struct ProbeCycle {
    /// BBR.cycle_stamp: start of the cycle.
    since: Instant,
    /// BBR.bw_probe_wait.
    wait: Duration,
    rounds_since_up: u64,
    ack_phase: AckPhase,
    /// BBR.is_bw_probe_sample: samples belong to a probe that no loss has answered yet.
    is_sample: bool,
    prev_too_high: bool,
    prev_precautionary: bool,
}

/// State of BBR for a connection.
#[derive(Debug)]
pub(crate) struct Bbr {
    /// State of the connection at the current event.
    inputs: BbrInputs,
    /// Sample of the current acknowledgment.
    rs: RateSample,
    sampler: DeliverySampler,
    state: BbrState,
    prng: Prng,
    round: RoundCounter,
    cycle: ProbeCycle,
    drain_start_round: u64,
    /// End of the stay in ProbeRTT, once the bytes in flight have fallen.
    probe_rtt_done_at: Option<Instant>,
    probe_rtt_round_done: bool,
    /// The connection sends again after it was idle, and nothing was acknowledged since.
    idle_restart: bool,
    full_pipe: FullPipe,
    rtt: RttModel,
    /// BBR.max_bw in the previous and in the current cycle.
    max_bw: [u64; 2],
    /// BBR.bw: bytes per second.
    bw: u64,
    short: ShortTermModel,
    long: LongTermModel,
    signals: CongestionSignals,
    undo: UndoState,
    /// Window before a loss or ProbeRTT.
    prior_cwnd: u64,
    /// BBR.extra_acked and its current interval.
    extra_acked: WindowedMax,
    extra_acked_since: Instant,
    extra_acked_delivered: u64,
    initial_cwnd: u64,
    /// Bytes per second.
    pacing_rate: u64,
    /// The pacing rate was set from the first round-trip time.
    saw_rtt: bool,
}

impl Bbr {
    /// Returns the state of a new connection. `seed` makes the times of probes random.
    pub(crate) fn new(seed: u64, initial_cwnd: u64, now: Instant) -> Self {
        let mut bbr = Self {
            inputs: BbrInputs { now, ..BbrInputs::default() },
            rs: RateSample::default(),
            sampler: DeliverySampler::default(),
            state: BbrState::Startup,
            prng: Prng::new(seed),
            round: RoundCounter::default(),
            cycle: ProbeCycle {
                since: Instant::ZERO,
                wait: Duration::ZERO,
                rounds_since_up: 0,
                ack_phase: AckPhase::Init,
                is_sample: false,
                prev_too_high: false,
                prev_precautionary: false,
            },
            drain_start_round: 0,
            probe_rtt_done_at: None,
            probe_rtt_round_done: false,
            idle_restart: false,
            full_pipe: FullPipe::default(),
            rtt: RttModel::new(now),
            max_bw: [0; 2],
            bw: 0,
            short: ShortTermModel::UNSET,
            long: LongTermModel::UNSET,
            signals: CongestionSignals::default(),
            undo: UndoState::default(),
            prior_cwnd: 0,
            extra_acked: WindowedMax::default(),
            extra_acked_since: now,
            extra_acked_delivered: 0,
            initial_cwnd: 0,
            pacing_rate: 0,
            saw_rtt: false,
        };
        bbr.set_initial_cwnd(initial_cwnd);
        bbr
    }

    /// Makes room for the measurements of a transmit that is handed to the device.
    pub(crate) fn on_handed_over(&mut self, tag: u32) {
        self.sampler.on_handed_over(tag);
    }

    /// Handles the departure of a transmit from the device.
    pub(crate) fn on_departed(&mut self, transmit: DepartingTransmit) {
        self.sampler.on_departed(transmit);
    }

    /// Notes that the current acknowledgment covers bytes of the transmit `tag`.
    pub(crate) fn note_delivered(&mut self, tag: u32) {
        self.sampler.note_delivered(tag);
    }

    /// Notes that everything that may be sent was sent, with room in the window; `inflight` counts
    /// the bytes that the device holds, too.
    pub(crate) fn mark_app_limited(&mut self, inflight: u64) {
        self.sampler.mark_app_limited(inflight);
    }

    /// Drops measurements of transmits that no range in flight belongs to. There are `ranges` of
    /// them, with these `tags`.
    pub(crate) fn drop_old(&mut self, ranges: usize, tags: impl Iterator<Item = u32>) {
        if self.sampler.has_old_snapshots(ranges) {
            self.sampler.drop_old_snapshots(tags);
        }
    }

    /// Frees memory while nothing is in flight.
    pub(crate) fn shrink(&mut self) {
        self.sampler.shrink();
    }

    /// Prepares for sending: section 5.4.1, and the pacing rate by the first round-trip time.
    /// Returns the window.
    pub(crate) fn before_transmit(&mut self, inputs: BbrInputs) -> u64 {
        self.inputs = inputs;
        self.init_pacing_rate();
        if inputs.inflight == 0 && self.sampler.is_app_limited() {
            self.idle_restart = true;
            self.extra_acked_since = inputs.now;
            match self.state {
                BbrState::ProbeBw(_) => self.set_pacing_rate_with_gain(100),
                BbrState::ProbeRtt => self.check_probe_rtt_done(),
                BbrState::Startup | BbrState::Drain => {}
            }
        }
        self.inputs.cwnd
    }

    /// Handles what an acknowledgment delivered. Losses that it shows are passed to
    /// [`Self::on_lost`] next; then [`Self::finish_ack`] is called.
    pub(crate) fn begin_ack(&mut self, inputs: BbrInputs, acked: AckedBytes) {
        self.inputs = inputs;
        self.init_pacing_rate();
        self.rs = self.sampler.on_ack(inputs.now, acked);
    }

    /// Completes an acknowledgment: `UpdateOnACK` of section 5.2.3. Returns the window.
    pub(crate) fn finish_ack(&mut self, inputs: BbrInputs) -> u64 {
        self.inputs = inputs;
        self.update_latest_delivery_signals();
        self.update_congestion_signals();
        self.update_ack_aggregation();
        self.check_full_bw_reached();
        self.check_startup_done();
        self.check_drain_done();
        self.update_probe_bw_cycle_phase();
        self.update_min_rtt();
        self.check_probe_rtt();
        self.advance_latest_delivery_signals();
        self.bound_bw_for_model();
        self.set_pacing_rate();
        self.set_cwnd();
        self.inputs.cwnd
    }

    /// Returns the state.
    #[cfg(test)]
    pub(crate) const fn state(&self) -> BbrState {
        self.state
    }

    const fn in_probe_bw(&self) -> bool {
        matches!(self.state, BbrState::ProbeBw(_))
    }

    /// Returns whether the bandwidth is being probed: `IsProbingBW`.
    const fn is_probing_bw(&self) -> bool {
        matches!(self.state, BbrState::Startup | BbrState::ProbeBw(Refill | Up))
    }

    fn start_round(&mut self) {
        self.round.next_delivered = self.sampler.delivered();
    }

    // ---- Startup and Drain: sections 5.3.1 and 5.3.2 ----

    fn check_startup_done(&mut self) {
        self.check_startup_high_loss();
        if self.state == BbrState::Startup && self.full_pipe.reached {
            self.state = BbrState::Drain;
            self.drain_start_round = self.round.count;
        }
    }

    fn check_drain_done(&mut self) {
        if self.state == BbrState::Drain
            && (self.inputs.inflight <= self.inflight_of(self.bw, 100)
                || self.round.count > self.drain_start_round + DRAIN_ROUNDS_MAX)
        {
            self.start_probe_bw_down();
        }
    }

    // ---- ProbeBW: section 5.3.3 ----

    fn start_probe_bw_down(&mut self) {
        self.reset_congestion_signals();
        self.long.acked_per_increase = UNBOUNDED;
        // `PickProbeWait`.
        self.cycle.rounds_since_up = self.prng.below(2);
        let random = Duration::from_nanos(self.prng.below(PROBE_WAIT_RANDOM_NS));
        self.cycle.wait = PROBE_WAIT_MIN + random;
        self.cycle.since = self.inputs.now;
        self.cycle.ack_phase = AckPhase::ProbeStopping;
        self.start_round();
        self.state = BbrState::ProbeBw(Down);
    }

    fn start_probe_bw_refill(&mut self) {
        self.short = ShortTermModel::UNSET;
        (self.long.up_rounds, self.long.up_acked) = (0, 0);
        self.cycle.prev_precautionary = false;
        self.cycle.ack_phase = AckPhase::Refilling;
        self.start_round();
        self.state = BbrState::ProbeBw(Refill);
    }

    fn start_probe_bw_up(&mut self) {
        self.cycle.ack_phase = AckPhase::ProbeStarting;
        self.start_round();
        self.full_pipe.restart(self.rs.rate);
        self.state = BbrState::ProbeBw(Up);
        self.raise_inflight_longterm_slope();
    }

    fn update_probe_bw_cycle_phase(&mut self) {
        if !self.full_pipe.reached || self.adapt_long_term_model() {
            return;
        }
        let BbrState::ProbeBw(phase) = self.state else { return };
        match phase {
            Down | Cruise if self.is_time_to_probe_bw() => self.start_probe_bw_refill(),
            Down if self.is_time_to_cruise() => self.state = BbrState::ProbeBw(Cruise),
            // One round fills the pipe.
            Refill if self.round.start => {
                self.cycle.is_sample = true;
                self.start_probe_bw_up();
            }
            Up if self.is_time_to_go_down() => {
                self.cycle.prev_too_high = false;
                self.start_probe_bw_down();
            }
            Down | Cruise | Refill | Up => {}
        }
    }

    /// Section 5.3.3.8.
    fn is_time_to_probe_bw(&self) -> bool {
        let packets = self.target_inflight() / self.inputs.mss.max(1);
        self.inputs.now > self.cycle.since + self.cycle.wait
            || self.cycle.rounds_since_up >= packets.min(RENO_ROUNDS_MAX)
    }

    fn is_time_to_cruise(&self) -> bool {
        let inflight = self.inputs.inflight;
        inflight <= self.inflight_with_headroom()
            && inflight <= self.inflight_of(self.max_bw(), 100)
    }

    /// Section 5.3.3.7.
    fn is_time_to_go_down(&mut self) -> bool {
        let longterm = self.long.inflight;
        // Before this acknowledgment. Whole segments are sent, so the bound is reached if no other
        // one fits.
        let inflight = self.inputs.inflight + self.rs.newly_acked;
        let reached = inflight + self.inputs.mss > longterm;
        if self.cycle.prev_too_high && reached {
            self.cycle.prev_precautionary = true;
            return true;
        }
        if self.inputs.cwnd_limited && self.inputs.cwnd >= longterm {
            // The bandwidth is limited by the bound.
            self.full_pipe.restart(self.rs.rate);
            return false;
        }
        self.full_pipe.now
    }

    // ---- ProbeRTT: section 5.3.4 ----

    fn check_probe_rtt(&mut self) {
        if self.state != BbrState::ProbeRtt && self.rtt.probe_expired && !self.idle_restart {
            self.save_cwnd();
            self.state = BbrState::ProbeRtt;
            self.probe_rtt_done_at = None;
            self.cycle.ack_phase = AckPhase::ProbeStopping;
            self.start_round();
        }
        if self.state == BbrState::ProbeRtt {
            self.handle_probe_rtt();
        }
        if self.rs.delivered > 0 {
            self.idle_restart = false;
        }
    }

    fn handle_probe_rtt(&mut self) {
        // Low rates are no measurement of the path.
        self.sampler.mark_app_limited(self.inputs.inflight);
        if self.probe_rtt_done_at.is_some() {
            self.probe_rtt_round_done |= self.round.start;
            if self.probe_rtt_round_done {
                self.check_probe_rtt_done();
            }
        } else if self.inputs.inflight <= self.probe_rtt_cwnd() {
            self.probe_rtt_done_at = Some(self.inputs.now + PROBE_RTT_DURATION);
            self.probe_rtt_round_done = false;
            self.start_round();
        }
    }

    fn check_probe_rtt_done(&mut self) {
        if self.probe_rtt_done_at.is_some_and(|at| self.inputs.now > at) {
            self.rtt.schedule_probe(self.inputs.now);
            self.restore_cwnd();
            self.exit_probe_rtt();
        }
    }

    fn exit_probe_rtt(&mut self) {
        self.short = ShortTermModel::UNSET;
        if self.full_pipe.reached {
            self.start_probe_bw_down();
            self.state = BbrState::ProbeBw(Cruise);
        } else {
            self.state = BbrState::Startup;
        }
    }
}
