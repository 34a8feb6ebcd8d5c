//! Congestion control: NewReno (RFC 5681) and CUBIC (RFC 9438), in bytes.
//!
//! Owns the window and the slow-start threshold; called by the sender when bytes are acknowledged
//! and when loss, ECN marks or time-outs say that the path is full. During recovery PRR sets the
//! window ([`super::recovery`]).

use base::{Duration, Instant};

use crate::config::Algorithm;

/// CUBIC's beta: RFC 9438 section 4.6.
const BETA_CUBIC: f64 = 0.7;
/// CUBIC's C in segments per cubic second: RFC 9438 section 5.
const C: f64 = 0.4;

/// State of a connection's congestion control.
#[derive(Clone, Debug)]
pub(crate) struct Congestion {
    /// Congestion window in bytes.
    pub(crate) cwnd: u32,
    /// Slow-start threshold in bytes.
    pub(crate) ssthresh: u32,
    /// Bytes acknowledged towards the next increase in congestion avoidance.
    credit: u32,
    law: Law,
}

#[derive(Clone, Debug)]
enum Law {
    NewReno,
    Cubic(Cubic),
}

#[derive(Clone, Debug, Default)]
struct Cubic {
    /// Window before the last reduction, in segments.
    w_max: f64,
    /// Window that Reno would have, in segments.
    w_est: f64,
    /// Time from the epoch's start to the plateau at `w_max`, in seconds.
    k: f64,
    /// Start of the current congestion avoidance; none before the first acknowledgment in it.
    epoch: Option<Instant>,
}

impl Congestion {
    pub(crate) fn new(algorithm: Algorithm, initial_window_bytes: u32) -> Self {
        let law = match algorithm {
            Algorithm::NewReno => Law::NewReno,
            Algorithm::Cubic => Law::Cubic(Cubic::default()),
        };
        Self { cwnd: initial_window_bytes, ssthresh: u32::MAX, credit: 0, law }
    }

    /// Whether the window is below the threshold.
    pub(crate) const fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// `acked` new bytes were acknowledged, outside recovery, while the window was what limited
    /// sending.
    pub(crate) fn on_ack(&mut self, now: Instant, acked: u32, mss: u32, srtt: Duration) {
        let mut acked = acked;
        if self.in_slow_start() {
            // RFC 5681 section 3.1 with RFC 3465's byte counting, without its limit: as Linux,
            // since one acknowledgment may stand for a run of 64 KiB.
            let grow = acked.min(self.ssthresh - self.cwnd);
            self.cwnd = self.cwnd.saturating_add(grow);
            acked -= grow;
        }
        if acked == 0 {
            return;
        }
        let per_increase = match &mut self.law {
            Law::NewReno => self.cwnd,
            Law::Cubic(cubic) => cubic.bytes_per_segment(now, self.cwnd, acked, mss, srtt),
        };
        self.credit = self.credit.saturating_add(acked);
        if self.credit >= per_increase {
            let segments = self.credit / per_increase.max(1);
            self.credit -= segments * per_increase;
            self.cwnd = self.cwnd.saturating_add(segments.saturating_mul(mss));
        }
    }

    /// The path is full: sets the threshold. The caller sets the window, by PRR or at once.
    pub(crate) fn on_congestion(&mut self, mss: u32) {
        let floor = 2 * mss;
        self.ssthresh = match &mut self.law {
            // RFC 5681 equation 4; the window stands for the flight, as in Linux.
            Law::NewReno => (self.cwnd / 2).max(floor),
            Law::Cubic(cubic) => cubic.reduce(self.cwnd, mss).max(floor),
        };
        self.credit = 0;
    }

    /// Nothing was sent for longer than the time-out: RFC 5681 section 4.1, by halves as RFC 2861
    /// has it.
    pub(crate) fn on_idle(&mut self, idle: Duration, rto: Duration, initial_window_bytes: u32) {
        let mut idle = idle;
        let restart = initial_window_bytes.min(self.cwnd);
        self.ssthresh = self.ssthresh.max(self.cwnd / 4 * 3);
        while idle > rto && self.cwnd > restart {
            self.cwnd /= 2;
            idle = idle - rto;
        }
        self.cwnd = self.cwnd.max(restart);
        if let Law::Cubic(cubic) = &mut self.law {
            cubic.epoch = None;
        }
    }

    /// The reduction turned out to be without reason: back to what was before.
    pub(crate) fn undo(&mut self, cwnd: u32, ssthresh: u32) {
        self.cwnd = self.cwnd.max(cwnd);
        self.ssthresh = ssthresh;
        if let Law::Cubic(cubic) = &mut self.law {
            cubic.epoch = None;
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "windows are clamped to 1..=u32::MAX before they are converted"
)]
impl Cubic {
    /// Bytes to be acknowledged per segment of growth: RFC 9438 sections 4.2 to 4.5.
    fn bytes_per_segment(
        &mut self,
        now: Instant,
        cwnd: u32,
        acked: u32,
        mss: u32,
        srtt: Duration,
    ) -> u32 {
        let segments = f64::from(cwnd) / f64::from(mss);
        let epoch = *self.epoch.get_or_insert_with(|| {
            // RFC 9438 section 4.2, equation 2
            self.k = libm::cbrt((self.w_max - segments).max(0.0) / C);
            self.w_max = self.w_max.max(segments);
            self.w_est = segments;
            now
        });
        let t = (now.since(epoch) + srtt).as_nanos() as f64 / 1e9;
        // Equation 1; the target is limited as in section 4.4.
        let d = t - self.k;
        let target = (C * d * d * d + self.w_max).clamp(segments, segments * 1.5);
        // Section 4.3: equation 4, alpha grows to 1 once Reno would have regained w_max.
        let alpha = if self.w_est < self.w_max {
            3.0 * (1.0 - BETA_CUBIC) / (1.0 + BETA_CUBIC)
        } else {
            1.0
        };
        self.w_est += alpha * (f64::from(acked) / f64::from(cwnd));
        let target = target.max(self.w_est);
        let growth = (target - segments) / segments;
        if growth <= 0.0 {
            // On the plateau: a segment per hundred windows, as Linux.
            return cwnd.saturating_mul(100);
        }
        ((f64::from(mss) / growth) as u64).clamp(u64::from(mss) * 2, u64::from(u32::MAX)) as u32
    }

    /// Section 4.6 and 4.7: multiplicative decrease with fast convergence.
    fn reduce(&mut self, cwnd: u32, mss: u32) -> u32 {
        let segments = f64::from(cwnd) / f64::from(mss);
        self.w_max =
            if segments < self.w_max { segments * (1.0 + BETA_CUBIC) / 2.0 } else { segments };
        self.epoch = None;
        (f64::from(cwnd) * BETA_CUBIC) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1448;
    const RTT: Duration = Duration::from_millis(100);

    /// Acknowledges a window per round trip for `rounds` of them.
    fn run(cc: &mut Congestion, start: Instant, rounds: u64) -> Instant {
        let mut now = start;
        for _ in 0..rounds {
            let window = cc.cwnd;
            let mut left = window;
            now += RTT;
            while left > 0 {
                let acked = left.min(2 * MSS);
                cc.on_ack(now, acked, MSS, RTT);
                left -= acked;
            }
        }
        now
    }

    #[test]
    fn slow_start_doubles() {
        let mut cc = Congestion::new(Algorithm::NewReno, 10 * MSS);
        run(&mut cc, Instant::ZERO, 3);
        assert_eq!(cc.cwnd, 80 * MSS);
    }

    #[test]
    fn newreno_adds_a_segment_per_round() {
        let mut cc = Congestion::new(Algorithm::NewReno, 20 * MSS);
        cc.on_congestion(MSS);
        assert_eq!(cc.ssthresh, 10 * MSS);
        cc.cwnd = cc.ssthresh;
        run(&mut cc, Instant::ZERO, 5);
        assert_eq!(cc.cwnd, 15 * MSS);
    }

    #[test]
    fn cubic_returns_to_w_max_in_k_seconds() {
        let mut cc = Congestion::new(Algorithm::Cubic, 100 * MSS);
        cc.on_congestion(MSS);
        cc.cwnd = cc.ssthresh;
        assert!(cc.cwnd.abs_diff(70 * MSS) <= 1);
        // K = cbrt((100 - 70) / 0.4) = 4.2 s: RFC 9438 equation 2
        let now = run(&mut cc, Instant::ZERO, 42);
        let at_k = f64::from(cc.cwnd) / f64::from(MSS);
        assert!((95.0..105.0).contains(&at_k), "{at_k}");
        run(&mut cc, now, 60);
        assert!(cc.cwnd > 150 * MSS, "it probes beyond: {}", cc.cwnd / MSS);
    }

    #[test]
    fn cubic_is_no_slower_than_reno_on_short_paths() {
        let mut cc = Congestion::new(Algorithm::Cubic, 20 * MSS);
        cc.on_congestion(MSS);
        cc.cwnd = cc.ssthresh;
        let from = cc.cwnd;
        let mut now = Instant::ZERO;
        for _ in 0..100 {
            now += Duration::from_micros(100);
            let window = cc.cwnd;
            cc.on_ack(now, window, MSS, Duration::from_micros(100));
        }
        assert!(cc.cwnd >= from + 50 * MSS, "{}", (cc.cwnd - from) / MSS);
    }

    #[test]
    fn idle_decays_to_the_initial_window() {
        let mut cc = Congestion::new(Algorithm::Cubic, 10 * MSS);
        cc.cwnd = 160 * MSS;
        let rto = Duration::from_millis(300);
        cc.on_idle(Duration::from_millis(700), rto, 10 * MSS);
        assert_eq!(cc.cwnd, 40 * MSS);
        cc.on_idle(Duration::from_secs(60), rto, 10 * MSS);
        assert_eq!(cc.cwnd, 10 * MSS);
    }
}
