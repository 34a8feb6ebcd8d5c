//! Congestion control: NewReno (RFC 5681) and CUBIC (RFC 9438), in bytes, with HyStart++ (RFC 9406,
//! [`super::hystart`]) for the first slow start.
//!
//! Owns the congestion window and the slow-start threshold. Called by the sender for
//! acknowledgments, and for losses, ECN marks and time-outs that indicate congestion. During
//! recovery, PRR sets the window ([`super::recovery`]). With BBR, [`super::bbr`] sets the window,
//! and nothing here changes it.

use alloc::boxed::Box;

use base::{Duration, Instant};

use super::bbr::Bbr;
use super::hystart::HyStart;
use crate::config::{CongestionAlgorithm, TcpConfig};

/// CUBIC's beta: RFC 9438 section 4.6.
const BETA_CUBIC: f64 = 0.7;
/// CUBIC's C in segments per cubic second: RFC 9438 section 5.
const C: f64 = 0.4;

/// State of a connection's congestion control.
#[derive(Debug)]
pub struct Congestion {
    /// Congestion window in bytes.
    pub cwnd: u32,
    /// Slow-start threshold in bytes.
    pub ssthresh: u32,
    /// Bytes acknowledged toward the next increase in congestion avoidance.
    credit: u32,
    law: CongestionLaw,
    hystart: HyStart,
}

/// Use of the congestion window in the last round trip: RFC 7661's condition, decided as by Linux's
/// `tcp_cwnd_validate`. A window that was not used says nothing about the path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CwndUsage {
    /// The congestion window limited sending.
    limited: bool,
    /// Maximum number of outstanding bytes, if the window was not the limit.
    outstanding: u32,
    /// Send position at the time of the note, which is valid until that is acknowledged.
    until: u64,
}

impl CwndUsage {
    /// Notes the outstanding bytes after something was sent or the window prevented it.
    pub(crate) const fn note(&mut self, limited: bool, outstanding: u64, una: u64, nxt: u64) {
        let over = una >= self.until;
        #[expect(clippy::cast_possible_truncation, reason = "a window is at most 1 GiB")]
        let outstanding = outstanding as u32;
        if over || limited || !self.limited && outstanding > self.outstanding {
            *self = Self { limited, outstanding, until: nxt };
        }
    }

    /// Returns whether the window limited sending in the last round trip.
    pub(crate) const fn is_limited(&self) -> bool {
        self.limited
    }

    /// Returns whether the window may grow. In slow start it grows to twice the bytes that were
    /// outstanding.
    pub(crate) fn allows_growth(&self, cc: &Congestion) -> bool {
        self.limited || cc.in_slow_start() && cc.cwnd / 2 < self.outstanding
    }
}

/// Growth of CUBIC's estimate of Reno's window until it reaches the window before the last
/// reduction; beyond, it grows by a segment in each round trip (RFC 9438 section 4.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenoGrowth {
    /// By 3(1-β)/(1+β) of a segment in each round trip: RFC 9438's rule. With CUBIC's smaller
    /// reductions the average window then equals Reno's at equal losses.
    #[default]
    EqualWindow,
    /// By a segment in each round trip, as Reno's window grows.
    Segment,
}

impl RenoGrowth {
    /// Returns the segments per round trip, below the window before the last reduction.
    fn alpha(self) -> f64 {
        match self {
            Self::EqualWindow => 3.0 * (1.0 - BETA_CUBIC) / (1.0 + BETA_CUBIC),
            Self::Segment => 1.0,
        }
    }
}

#[derive(Debug)]
enum CongestionLaw {
    NewReno,
    Cubic(CubicState),
    /// A model of the path sets the window. Boxed, since it is large.
    Bbr(Box<Bbr>),
}

/// State of congestion control before a reduction, by which [`Congestion::undo`] undoes it.
#[derive(Clone, Copy, Debug)]
pub struct CongestionSnapshot {
    cwnd: u32,
    ssthresh: u32,
    credit: u32,
    hystart: HyStart,
    /// State of CUBIC; `None` with NewReno, which has no more state, and with BBR, which saves its
    /// own.
    cubic: Option<CubicState>,
}

/// State of CUBIC. Connections are small: 32 bits suffice for values that are not accumulated.
#[derive(Clone, Copy, Debug, Default)]
struct CubicState {
    /// The plateau in segments: the window before the last reduction, or less by fast convergence.
    /// Zero if the window at the start of congestion avoidance becomes the plateau.
    w_max: f32,
    /// Window when the threshold was last set, in segments: RFC 9438 cwnd_prior.
    cwnd_prior: f32,
    /// Estimate of Reno's window, in segments.
    w_est: f64,
    /// Seconds from the epoch's start until the window reaches `w_max`.
    k: f32,
    /// An acknowledgment has begun the current congestion avoidance, at `epoch`.
    epoch_begun: bool,
    epoch: Instant,
    /// Time at which an acknowledgment last counted in this epoch.
    last_ack_at: Instant,
    reno_growth: RenoGrowth,
}

impl Congestion {
    /// Creates the state for a new path. `seed` is unpredictable and makes the times of BBR's
    /// probes random.
    #[must_use]
    pub fn new(config: &TcpConfig, mss: u32, seed: u32, now: Instant) -> Self {
        let cwnd = config.initial_window * mss;
        let law = match config.algorithm {
            CongestionAlgorithm::NewReno => CongestionLaw::NewReno,
            CongestionAlgorithm::Cubic => CongestionLaw::Cubic(CubicState::default()),
            CongestionAlgorithm::Bbr => {
                CongestionLaw::Bbr(Box::new(Bbr::new(seed.into(), cwnd.into(), now)))
            }
        };
        Self { cwnd, ssthresh: u32::MAX, credit: 0, law, hystart: HyStart::new(config.hystart) }
    }

    /// Sets the window of a connection that has sent nothing.
    pub(crate) fn set_initial_cwnd(&mut self, cwnd: u32) {
        self.cwnd = cwnd;
        if let Some(bbr) = self.bbr_mut() {
            bbr.set_initial_cwnd(cwnd.into());
        }
    }

    /// Returns the state of BBR; `None` with another algorithm.
    pub(crate) fn bbr(&self) -> Option<&Bbr> {
        if let CongestionLaw::Bbr(bbr) = &self.law { Some(bbr) } else { None }
    }

    /// Returns the state of BBR; `None` with another algorithm.
    pub(crate) fn bbr_mut(&mut self) -> Option<&mut Bbr> {
        if let CongestionLaw::Bbr(bbr) = &mut self.law { Some(bbr) } else { None }
    }

    /// Returns whether BBR sets the window.
    pub(crate) const fn is_bbr(&self) -> bool {
        matches!(self.law, CongestionLaw::Bbr(_))
    }

    /// Sets the growth of CUBIC's estimate of Reno's window from now on; has no effect on NewReno.
    pub const fn set_reno_growth(&mut self, growth: RenoGrowth) {
        if let CongestionLaw::Cubic(cubic) = &mut self.law {
            cubic.reno_growth = growth;
        }
    }

    /// Returns whether the window is below the threshold.
    #[must_use]
    pub const fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Passes an acknowledgment of everything before `una` to HyStart++, which may end the first
    /// slow start. `nxt` is the send position, `rtt` the acknowledgment's sample.
    pub fn on_ack_for_hystart(&mut self, una: u64, nxt: u64, rtt: Option<Duration>) {
        if self.hystart.on_ack(una, nxt, rtt) {
            // CUBIC then begins at its plateau: RFC 9438 section 4.10.
            self.ssthresh = self.cwnd;
        }
    }

    /// Grows the window for `acked` newly acknowledged bytes. Called outside recovery, while the
    /// window limits sending.
    pub fn on_ack(&mut self, now: Instant, acked: u32, mss: u32, srtt: Duration) {
        if self.is_bbr() {
            return;
        }
        let mut acked = acked;
        if self.in_slow_start() {
            // RFC 5681 section 3.1 with the byte counting of RFC 3465, without its limit, as in
            // Linux: one acknowledgment may cover a run of 64 KiB.
            let divisor = self.hystart.divisor();
            let grow = (acked / divisor).min(self.ssthresh - self.cwnd);
            self.cwnd = self.cwnd.saturating_add(grow);
            acked = if self.in_slow_start() { 0 } else { acked - grow * divisor };
        }
        if acked == 0 {
            return;
        }
        let per_increase = match &mut self.law {
            CongestionLaw::NewReno | CongestionLaw::Bbr(_) => self.cwnd,
            CongestionLaw::Cubic(cubic) => {
                cubic.bytes_per_segment(now, self.cwnd, acked, mss, srtt)
            }
        };
        self.credit = self.credit.saturating_add(acked);
        if self.credit >= per_increase {
            let segments = self.credit / per_increase.max(1);
            self.credit -= segments * per_increase;
            self.cwnd = self.cwnd.saturating_add(segments.saturating_mul(mss));
        }
    }

    /// Sets the threshold at congestion. The caller sets the window, by PRR or at once.
    pub fn on_congestion(&mut self, mss: u32) {
        let floor = 2 * mss;
        self.ssthresh = match &mut self.law {
            // RFC 5681 equation 4; the window is used for the flight size, as in Linux.
            CongestionLaw::NewReno => (self.cwnd / 2).max(floor),
            CongestionLaw::Cubic(cubic) => cubic.reduce(self.cwnd, mss).max(floor),
            CongestionLaw::Bbr(_) => self.ssthresh,
        };
        self.credit = 0;
        self.hystart.stop();
    }

    /// Sets the window at the end of a reduction: RFC 6937 section 3.
    pub(crate) const fn end_reduction(&mut self) {
        if !self.is_bbr() {
            self.cwnd = self.ssthresh;
        }
    }

    /// Handles a retransmission time-out, whether or not it set the threshold again, or a
    /// protocol's equivalent, such as QUIC's persistent congestion.
    pub const fn on_timeout(&mut self) {
        self.hystart.stop();
        if let CongestionLaw::Cubic(cubic) = &mut self.law {
            // RFC 9438 section 4.8: the next congestion avoidance begins at its own plateau.
            cubic.w_max = 0.0;
            cubic.epoch_begun = false;
        }
    }

    /// Reduces the window after `idle`, in which nothing was sent: RFC 5681 section 4.1, halved per
    /// time-out as in RFC 2861.
    pub(crate) fn on_idle(&mut self, idle: Duration, rto: Duration, initial_window_bytes: u32) {
        let mut idle = idle;
        let restart = initial_window_bytes.min(self.cwnd);
        self.ssthresh = self.ssthresh.max(self.cwnd / 4 * 3);
        while idle > rto && self.cwnd > restart {
            self.cwnd /= 2;
            idle = idle - rto;
        }
        self.cwnd = self.cwnd.max(restart);
        if let CongestionLaw::Cubic(cubic) = &mut self.law {
            cubic.epoch_begun = false;
        }
    }

    /// Returns the state to which [`Self::undo`] can return.
    #[must_use]
    pub const fn snapshot(&self) -> CongestionSnapshot {
        let Self { cwnd, ssthresh, credit, hystart, .. } = *self;
        let cubic = if let CongestionLaw::Cubic(cubic) = &self.law { Some(*cubic) } else { None };
        CongestionSnapshot { cwnd, ssthresh, credit, hystart, cubic }
    }

    /// Restores the state before a reduction that turned out to be spurious (RFC 9438 section 4.9).
    pub fn undo(&mut self, before: CongestionSnapshot) {
        let CongestionSnapshot { cwnd, ssthresh, credit, hystart, cubic } = before;
        self.cwnd = self.cwnd.max(cwnd);
        (self.ssthresh, self.credit, self.hystart) = (ssthresh, credit, hystart);
        if let (CongestionLaw::Cubic(now), Some(before)) = (&mut self.law, cubic) {
            *now = before;
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "windows are clamped to 1..=u32::MAX before they are converted"
)]
impl CubicState {
    /// Returns the bytes to be acknowledged per segment of growth: RFC 9438 sections 4.2 to 4.5.
    fn bytes_per_segment(
        &mut self,
        now: Instant,
        cwnd: u32,
        acked: u32,
        mss: u32,
        srtt: Duration,
    ) -> u32 {
        let segments = f64::from(cwnd) / f64::from(mss);
        if !self.epoch_begun {
            // RFC 9438 section 4.2, equation 2
            self.k = libm::cbrt((f64::from(self.w_max) - segments).max(0.0) / C) as f32;
            self.w_max = self.w_max.max(segments as f32);
            self.w_est = segments;
            (self.epoch_begun, self.epoch, self.last_ack_at) = (true, now, now);
        }
        // Section 5.8: the curve is stopped while the window is not used. While it is used,
        // acknowledgments come in each round trip.
        let gap = now.since(self.last_ack_at);
        if gap > srtt * 2 {
            self.epoch += gap - srtt;
        }
        self.last_ack_at = now;
        let t = (now.since(self.epoch) + srtt).as_nanos() as f64 / 1e9;
        // Equation 1; the target is clamped as in section 4.4.
        let d = t - f64::from(self.k);
        let target = (C * d * d * d + f64::from(self.w_max)).clamp(segments, segments * 1.5);
        // Section 4.3, equation 4: alpha is 1 once Reno's window would have reached cwnd_prior.
        let alpha =
            if self.w_est < f64::from(self.cwnd_prior) { self.reno_growth.alpha() } else { 1.0 };
        self.w_est += alpha * (f64::from(acked) / f64::from(cwnd));
        let target = target.max(self.w_est);
        let growth = (target - segments) / segments;
        if growth <= 0.0 {
            // On the plateau: a segment per hundred windows, as in Linux.
            return cwnd.saturating_mul(100);
        }
        ((f64::from(mss) / growth) as u64).clamp(u64::from(mss) * 2, u64::from(u32::MAX)) as u32
    }

    /// Returns the threshold after a multiplicative decrease with fast convergence: sections 4.6
    /// and 4.7.
    fn reduce(&mut self, cwnd: u32, mss: u32) -> u32 {
        let segments = f64::from(cwnd) / f64::from(mss);
        let converges = segments < f64::from(self.w_max);
        let w_max = if converges { segments * (1.0 + BETA_CUBIC) / 2.0 } else { segments };
        (self.w_max, self.cwnd_prior) = (w_max as f32, segments as f32);
        self.epoch_begun = false;
        (f64::from(cwnd) * BETA_CUBIC) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const MSS: u32 = 1448;
    const RTT: Duration = Duration::from_millis(100);

    fn cc(algorithm: CongestionAlgorithm, initial_window: u32) -> Congestion {
        let config = TcpConfig { algorithm, initial_window, ..TcpConfig::default() };
        Congestion::new(&config, MSS, 0, Instant::ZERO)
    }

    /// Acknowledges a window per round trip for `rounds` of them; returns the time after them.
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
        let mut cc = cc(CongestionAlgorithm::NewReno, 10);
        run(&mut cc, Instant::ZERO, 3);
        assert_eq!(cc.cwnd, 80 * MSS);
    }

    #[test]
    fn newreno_adds_a_segment_per_round() {
        let mut cc = cc(CongestionAlgorithm::NewReno, 20);
        cc.on_congestion(MSS);
        assert_eq!(cc.ssthresh, 10 * MSS);
        cc.cwnd = cc.ssthresh;
        run(&mut cc, Instant::ZERO, 5);
        assert_eq!(cc.cwnd, 15 * MSS);
    }

    #[test]
    fn cubic_returns_to_w_max_in_k_seconds() {
        let mut cc = cc(CongestionAlgorithm::Cubic, 100);
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
        let mut cc = cc(CongestionAlgorithm::Cubic, 20);
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

    /// RFC 9438 section 4.8: after a time-out the plateau is the window at which congestion
    /// avoidance begins, not that before the time-out.
    #[test]
    fn cubic_forgets_its_plateau_after_a_time_out() {
        let mut cc = cc(CongestionAlgorithm::Cubic, 1000);
        cc.on_congestion(MSS);
        cc.on_timeout();
        (cc.cwnd, cc.ssthresh) = (MSS, 70 * MSS);
        // Slow start up to the threshold, then 4 s.
        let now = run(&mut cc, Instant::ZERO, 7);
        assert_eq!(cc.cwnd, 70 * MSS);
        run(&mut cc, now, 40);
        // From there 0.4 x 4^3 = 26 more segments (equation 1 with K = 0), or Reno's 40 times 0.53
        // or 1. With the old plateau of 1000 segments, K would be 13 s and the growth more than
        // 400.
        let segments = cc.cwnd / MSS;
        assert!((90..=110).contains(&segments), "{segments}");
    }

    /// RFC 9438 section 4.3: alpha is 1 once the estimate of Reno's window reaches the window
    /// before the reduction, though fast convergence lowered the plateau.
    #[test]
    fn cubic_is_as_fast_as_reno_above_the_prior_window() {
        let mut cc = cc(CongestionAlgorithm::Cubic, 100);
        cc.on_congestion(MSS);
        cc.cwnd = 60 * MSS;
        cc.on_congestion(MSS);
        let CongestionLaw::Cubic(cubic) = &cc.law else { panic!("it is CUBIC") };
        assert!((cubic.w_max - 51.0).abs() < 0.1 && (cubic.cwnd_prior - 60.0).abs() < 0.1);
        cc.cwnd = cc.ssthresh;
        let estimate = |cc: &Congestion| match &cc.law {
            CongestionLaw::Cubic(cubic) => cubic.w_est,
            CongestionLaw::NewReno | CongestionLaw::Bbr(_) => 0.0,
        };
        let mut now = Instant::ZERO;
        let mut last = 0.0;
        for _ in 0..60 {
            now = run(&mut cc, now, 1);
            let step = estimate(&cc) - last;
            if last > 0.0 {
                let slow = last < 59.0;
                let right = if slow { step < 0.6 } else { last < 60.0 || step > 0.8 };
                assert!(right, "a step of {step} segments at {last}");
            }
            last = estimate(&cc);
        }
        assert!(last > 62.0, "{last}");
    }

    /// RFC 9438 section 5.8: time in which the application used less than the window does not
    /// count.
    #[test]
    fn cubic_stands_still_while_the_application_is_the_limit() {
        let grown = |pause: Duration| {
            let mut cc = cc(CongestionAlgorithm::Cubic, 100);
            cc.on_congestion(MSS);
            cc.cwnd = cc.ssthresh;
            let now = run(&mut cc, Instant::ZERO, 10);
            // Acknowledgments during the pause do not reach congestion control.
            run(&mut cc, now + pause, 5);
            cc.cwnd / MSS
        };
        let (without, with) = (grown(Duration::ZERO), grown(Duration::from_secs(30)));
        assert!(with.abs_diff(without) <= 1, "{with} segments and {without}");
    }

    /// Both kinds of growth of the estimate, on a path so short that CUBIC's own growth is
    /// negligible.
    #[test]
    fn reno_growth_is_chosen() {
        for (growth, segments) in [(RenoGrowth::EqualWindow, 10), (RenoGrowth::Segment, 20)] {
            let mut cc = cc(CongestionAlgorithm::Cubic, 100);
            cc.set_reno_growth(growth);
            cc.on_congestion(MSS);
            cc.cwnd = cc.ssthresh;
            let from = cc.cwnd;
            for _ in 0..20 {
                let window = cc.cwnd;
                cc.on_ack(Instant::ZERO, window, MSS, Duration::from_micros(100));
            }
            let grown = (cc.cwnd - from).div_ceil(MSS);
            assert!(grown.abs_diff(segments) <= 1, "{grown} segments with {growth:?}");
        }
    }

    /// RFC 9438 section 4.9: the whole state is restored.
    #[test]
    fn a_reduction_is_undone_completely() {
        let mut cc = cc(CongestionAlgorithm::Cubic, 100);
        cc.on_congestion(MSS);
        cc.cwnd = cc.ssthresh;
        run(&mut cc, Instant::ZERO, 20);
        let before = cc.snapshot();
        cc.on_congestion(MSS);
        cc.on_timeout();
        cc.cwnd = MSS;
        cc.undo(before);
        let (CongestionLaw::Cubic(a), Some(b)) = (&cc.law, &before.cubic) else { panic!("CUBIC") };
        assert_eq!((cc.cwnd, cc.ssthresh, a.epoch), (before.cwnd, before.ssthresh, b.epoch));
        assert!((a.w_max, a.k, a.w_est) == (b.w_max, b.k, b.w_est));
    }

    /// RFC 9406 and RFC 9438 section 4.10: a growing round-trip time ends slow start.
    #[test]
    fn slow_start_ends_when_the_round_trip_grows() {
        let mut cc = cc(CongestionAlgorithm::Cubic, 100);
        let (mut now, mut una) = (Instant::ZERO, 1_u64);
        let mut sizes = Vec::new();
        for round in 0..12_u64 {
            let rtt = Duration::from_millis(50 + round * 10);
            now += rtt;
            let (window, nxt) = (cc.cwnd, una + u64::from(cc.cwnd));
            for _ in 0..10 {
                una += u64::from(window / 10);
                cc.on_ack_for_hystart(una, nxt + u64::from(window), Some(rtt));
                cc.on_ack(now, window / 10, MSS, rtt);
            }
            sizes.push(cc.cwnd / MSS);
        }
        assert!(cc.ssthresh < u32::MAX, "{sizes:?}");
        assert_eq!(sizes[0], 200, "the first round cannot tell");
        let grown = sizes[11] as f64 / sizes[10] as f64;
        assert!(grown < 1.1, "congestion avoidance: {sizes:?}");
    }

    #[test]
    fn idle_decays_to_the_initial_window() {
        let mut cc = cc(CongestionAlgorithm::Cubic, 10);
        cc.cwnd = 160 * MSS;
        let rto = Duration::from_millis(300);
        cc.on_idle(Duration::from_millis(700), rto, 10 * MSS);
        assert_eq!(cc.cwnd, 40 * MSS);
        cc.on_idle(Duration::from_secs(60), rto, 10 * MSS);
        assert_eq!(cc.cwnd, 10 * MSS);
    }
}
