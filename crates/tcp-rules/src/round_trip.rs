//! The estimator of the round-trip time: RFC 6298 section 2.
//!
//! Callers sample only data that were sent once (Karn's rule, section 3), and set the bounds and
//! the back-off of their time-outs.

use base::Duration;

/// Smoothed round-trip time and its variation; zero before the first sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundTripEstimator {
    srtt: Duration,
    rttvar: Duration,
}

impl RoundTripEstimator {
    /// Creates an estimator without a sample.
    #[must_use]
    pub const fn new() -> Self {
        Self { srtt: Duration::ZERO, rttvar: Duration::ZERO }
    }

    /// Adds a sample.
    pub fn sample(&mut self, rtt: Duration) {
        if !self.is_known() {
            // (2.2)
            self.srtt = rtt;
            self.rttvar = rtt / 2;
            return;
        }
        // (2.3), alpha = 1/8, beta = 1/4
        let error = if rtt > self.srtt { rtt - self.srtt } else { self.srtt - rtt };
        self.rttvar = (self.rttvar * 3 + error) / 4;
        self.srtt = (self.srtt * 7 + rtt) / 8;
    }

    /// Returns whether there was a sample above zero.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.srtt != Duration::ZERO
    }

    /// Returns the smoothed round-trip time.
    #[must_use]
    pub const fn srtt(&self) -> Duration {
        self.srtt
    }

    /// Returns the part of a time-out that covers the variation: K times RTTVAR, K = 4.
    #[must_use]
    pub fn margin(&self) -> Duration {
        self.rttvar * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_rfc_6298() {
        let ms = Duration::from_millis;
        let mut rtt = RoundTripEstimator::new();
        assert!(!rtt.is_known());
        rtt.sample(ms(100));
        assert_eq!((rtt.srtt(), rtt.margin()), (ms(100), ms(200)));
        rtt.sample(ms(20));
        assert_eq!((rtt.srtt(), rtt.margin()), (ms(90), Duration::from_micros(230_000)));
        assert!(rtt.is_known());
    }
}
