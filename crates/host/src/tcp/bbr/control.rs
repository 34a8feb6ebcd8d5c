//! Control parameters of BBR: draft section 5.6. Pacing rate, length of a run, congestion window.

use base::Duration;

use super::{Bbr, BbrState, Cruise, Down, Refill, UNBOUNDED, Up};

/// BBR.PacingMarginPercent.
const PACING_MARGIN_PERCENT: u64 = 1;
/// BBR.StartupPacingGain, in percent as all gains.
const STARTUP_PACING_GAIN: u64 = 277;
/// BBR.DrainPacingGain.
const DRAIN_PACING_GAIN: u64 = 50;
/// BBR.DefaultCwndGain.
const DEFAULT_CWND_GAIN: u64 = 200;
/// BBR.ProbeRTTCwndGain.
const PROBE_RTT_CWND_GAIN: u64 = 50;
/// Section 5.6.2: the round-trip time before the first sample.
const UNKNOWN_RTT: Duration = Duration::from_millis(1);
/// Bounds of a run in bytes and in segments (section 5.6.3).
const SEND_QUANTUM_MAX: u64 = 64 * 1024;
const SEND_QUANTUM_SEGMENTS_MIN: u64 = 2;
/// BBR.MinPipeCwnd in segments.
const PIPE_SEGMENTS_MIN: u64 = 4;

impl Bbr {
    /// Returns the pacing rate in bytes per second, at least 1.
    pub(crate) fn pacing_rate(&self) -> u64 {
        self.pacing_rate.max(1)
    }

    /// Returns the bytes that may leave as one run: C.send_quantum.
    pub(crate) fn send_quantum(&self, mss: u64) -> u64 {
        (self.pacing_rate / 1000).min(SEND_QUANTUM_MAX).max(SEND_QUANTUM_SEGMENTS_MIN * mss)
    }

    /// Sets the initial window in bytes, and the pacing rate that follows from it.
    pub(crate) fn set_initial_cwnd(&mut self, bytes: u64) {
        self.initial_cwnd = bytes;
        self.pacing_rate = percent(STARTUP_PACING_GAIN, rate_of(bytes, UNKNOWN_RTT));
    }

    /// Sets the pacing rate by the first round-trip time, which only then may lower it: Linux's
    /// `bbr_init_pacing_rate_from_rtt`.
    pub(super) fn init_pacing_rate(&mut self) {
        let srtt = self.inputs.srtt;
        if !self.saw_rtt && srtt > Duration::ZERO {
            self.saw_rtt = true;
            self.pacing_rate = percent(STARTUP_PACING_GAIN, rate_of(self.initial_cwnd, srtt));
        }
    }

    /// Returns the pacing gain in percent: the table of section 5.6.1.
    const fn pacing_gain(&self) -> u64 {
        match self.state {
            BbrState::Startup => STARTUP_PACING_GAIN,
            BbrState::Drain => DRAIN_PACING_GAIN,
            BbrState::ProbeBw(Down) => 90,
            BbrState::ProbeBw(Cruise | Refill) | BbrState::ProbeRtt => 100,
            BbrState::ProbeBw(Up) => 125,
        }
    }

    const fn cwnd_gain(&self) -> u64 {
        match self.state {
            BbrState::ProbeBw(Up) => 225,
            BbrState::ProbeRtt => PROBE_RTT_CWND_GAIN,
            BbrState::Startup | BbrState::Drain | BbrState::ProbeBw(_) => DEFAULT_CWND_GAIN,
        }
    }

    pub(super) fn set_pacing_rate(&mut self) {
        self.set_pacing_rate_with_gain(self.pacing_gain());
    }

    pub(super) fn set_pacing_rate_with_gain(&mut self, gain: u64) {
        if self.bw == 0 {
            // Losses may end Startup before anything was delivered; the initial rate stays.
            return;
        }
        let rate = percent(100 - PACING_MARGIN_PERCENT, percent(gain, self.bw));
        if self.full_pipe.reached || rate > self.pacing_rate {
            self.pacing_rate = rate;
        }
    }

    // ---- window: section 5.6.4 ----

    /// Returns the bandwidth-delay product in bytes.
    pub(super) fn bdp(&self) -> u64 {
        self.bdp_multiple(self.bw, 100)
    }

    fn bdp_multiple(&self, bw: u64, gain: u64) -> u64 {
        match self.rtt.min {
            None => self.initial_cwnd,
            Some(rtt) => {
                let bytes = u128::from(bw) * u128::from(rtt.as_nanos()) / 1_000_000_000;
                percent(gain, u64::try_from(bytes).unwrap_or(u64::MAX / 1000))
            }
        }
    }

    pub(super) const fn min_pipe_cwnd(&self) -> u64 {
        PIPE_SEGMENTS_MIN * self.inputs.mss
    }

    fn quantization_budget(&self, inflight: u64) -> u64 {
        let mss = self.inputs.mss;
        let offload_budget = 3 * self.send_quantum(mss);
        let more = if self.state == BbrState::ProbeBw(Up) { 2 * mss } else { 0 };
        inflight.max(offload_budget).max(self.min_pipe_cwnd()) + more
    }

    /// Returns the bytes in flight that a bandwidth needs, times `gain` percent: `Inflight`.
    pub(super) fn inflight_of(&self, bw: u64, gain: u64) -> u64 {
        self.quantization_budget(self.bdp_multiple(bw, gain))
    }

    fn max_inflight(&self) -> u64 {
        let bytes = self.bdp_multiple(self.bw, self.cwnd_gain()) + self.extra_acked.value();
        self.quantization_budget(bytes)
    }

    pub(super) fn probe_rtt_cwnd(&self) -> u64 {
        self.bdp_multiple(self.bw, PROBE_RTT_CWND_GAIN).max(self.min_pipe_cwnd())
    }

    pub(super) fn set_cwnd(&mut self) {
        let (max, acked) = (self.max_inflight(), self.rs.newly_acked);
        let cwnd = self.inputs.cwnd;
        let few = self.sampler.delivered() < self.initial_cwnd;
        let mut cwnd = if self.full_pipe.reached {
            (cwnd + acked).min(max)
        } else if cwnd < max || few {
            cwnd + acked
        } else {
            cwnd
        };
        cwnd = cwnd.max(self.min_pipe_cwnd());
        if self.state == BbrState::ProbeRtt {
            cwnd = cwnd.min(self.probe_rtt_cwnd());
        }
        self.inputs.cwnd = cwnd.min(self.model_bound());
    }

    /// Returns the window that the model of the path allows: `BoundCwndForModel`.
    fn model_bound(&self) -> u64 {
        let bound = match self.state {
            BbrState::ProbeBw(Cruise) | BbrState::ProbeRtt => self.inflight_with_headroom(),
            BbrState::ProbeBw(_) => self.long.inflight,
            BbrState::Startup | BbrState::Drain => UNBOUNDED,
        };
        bound.min(self.short.inflight).max(self.min_pipe_cwnd())
    }

    /// Saves the window before a loss or ProbeRTT changes it.
    pub(super) fn save_cwnd(&mut self) {
        let cwnd = self.inputs.cwnd;
        let undisturbed = !self.inputs.recovering && self.state != BbrState::ProbeRtt;
        self.prior_cwnd = if undisturbed { cwnd } else { self.prior_cwnd.max(cwnd) };
    }

    pub(super) fn restore_cwnd(&mut self) {
        self.inputs.cwnd = self.inputs.cwnd.max(self.prior_cwnd);
    }
}

/// Returns `gain` percent of a value.
pub(super) const fn percent(gain: u64, value: u64) -> u64 {
    match value.checked_mul(gain) {
        Some(product) => product / 100,
        None => value / 100 * gain,
    }
}

/// Returns the rate in bytes per second of `bytes` per `time`, which is not zero.
fn rate_of(bytes: u64, time: Duration) -> u64 {
    bytes.saturating_mul(1_000_000_000) / time.as_nanos().max(1)
}
