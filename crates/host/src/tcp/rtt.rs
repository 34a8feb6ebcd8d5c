//! Round-trip time: the estimator of RFC 6298 with Linux's floor, and the windowed minimum that
//! RACK and pacing use.

use base::{Duration, Instant};
use tcp_rules::round_trip::RoundTripEstimator;

use crate::config::TcpConfig;

/// Time for which a minimum is valid. RFC 8985 section 6.2 does not set this window; Linux has 300
/// s.
const MIN_RTT_WINDOW: Duration = Duration::from_secs(300);

/// RFC 6298 (2.1): the time-out before any sample.
pub(crate) const RTO_INITIAL: Duration = Duration::from_secs(1);

/// State of the round-trip estimator.
#[derive(Clone, Debug)]
pub(crate) struct TcpRttEstimator {
    estimate: RoundTripEstimator,
    /// Minimum of the current and of the previous window.
    min: [Duration; 2],
    min_since: Instant,
    /// Doublings of the time-out since the last progress.
    pub(crate) backoff: u8,
}

impl TcpRttEstimator {
    pub(crate) const fn new() -> Self {
        Self {
            estimate: RoundTripEstimator::new(),
            min: [Duration::MAX; 2],
            min_since: Instant::ZERO,
            backoff: 0,
        }
    }

    /// Adds a sample from a segment that was sent once (Karn's rule, RFC 6298 section 3).
    pub(crate) fn sample(&mut self, now: Instant, rtt: Duration) {
        self.estimate.sample(rtt);
        self.backoff = 0;
        self.sample_min(now, rtt);
    }

    /// Adds a sample to the minimum only.
    pub(crate) fn sample_min(&mut self, now: Instant, rtt: Duration) {
        if now.since(self.min_since) > MIN_RTT_WINDOW {
            self.min = [Duration::MAX, self.min[0]];
            self.min_since = now;
        }
        self.min[0] = self.min[0].min(rtt);
    }

    /// Returns whether there was ever a sample.
    pub(crate) fn is_known(&self) -> bool {
        self.estimate.is_known()
    }

    /// Returns the smoothed round-trip time; zero before the first sample.
    pub(crate) const fn srtt(&self) -> Duration {
        self.estimate.srtt()
    }

    /// Returns the least round-trip time of the last 5 to 10 minutes; zero before the first sample.
    pub(crate) fn min(&self) -> Duration {
        match self.min[0].min(self.min[1]) {
            Duration::MAX => Duration::ZERO,
            min => min,
        }
    }

    /// Returns the retransmission time-out with its back-off.
    pub(crate) fn rto(&self, config: &TcpConfig) -> Duration {
        let base = if self.is_known() {
            // RFC 6298 (2.3). As in Linux, the floor applies to the variance and not to the sum.
            self.srtt() + self.estimate.margin().max(config.rto_min)
        } else {
            RTO_INITIAL
        };
        (base * (1_u64 << self.backoff.min(16))).min(config.rto_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_rfc_6298() {
        let config = TcpConfig::default();
        let mut rtt = TcpRttEstimator::new();
        assert_eq!(rtt.rto(&config), Duration::from_secs(1));
        rtt.sample(Instant::from_millis(1), Duration::from_millis(100));
        // The variance is 50 ms, 4 x 50 = 200.
        assert_eq!(rtt.rto(&config), Duration::from_millis(300));
        rtt.sample(Instant::from_millis(2), Duration::from_millis(20));
        assert_eq!(rtt.srtt(), Duration::from_millis(90));
        assert_eq!(rtt.min(), Duration::from_millis(20));
        rtt.backoff = 3;
        assert_eq!(
            rtt.rto(&config),
            (Duration::from_millis(90) + Duration::from_micros(230_000)) * 8
        );
    }

    #[test]
    fn the_minimum_expires() {
        let mut rtt = TcpRttEstimator::new();
        rtt.sample(Instant::from_millis(1), Duration::from_millis(1));
        for minutes in 1..14 {
            rtt.sample(Instant::from_millis(minutes * 60_000), Duration::from_millis(50));
        }
        assert_eq!(rtt.min(), Duration::from_millis(50));
    }
}
