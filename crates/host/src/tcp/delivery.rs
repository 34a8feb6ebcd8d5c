//! Delivery rate of a connection, as Linux's `tcpi_delivery_rate`.
//!
//! One sample per round trip, in constant time and memory. A sample begins at an acknowledgment, or
//! when the first bytes leave, and ends when all bytes sent by then are acknowledged. A sample
//! during which the application had nothing more to send counts only if its rate is at least that
//! of the sample before.

use base::Instant;

/// State of the estimator.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeliveryRate {
    /// Bytes delivered since the sample began, cumulatively or selectively.
    delivered: u32,
    /// Position whose acknowledgment ends the sample; 0 without a sample.
    end: u64,
    /// Time at which the sample began.
    since: Instant,
    /// The application did not fill the window since the sample began.
    app_limited: bool,
    /// Bytes and microseconds of the last sample that counted; 0 before the first. The rate is
    /// computed on request: a division in each round trip would cost more than the rest.
    sample: (u32, u32),
    rate_app_limited: bool,
}

impl DeliveryRate {
    /// Returns the rate in bytes per second, and whether the application limited it.
    pub(crate) fn rate(&self) -> (u64, bool) {
        let (bytes, micros) = self.sample;
        let rate = (u64::from(bytes) * 1_000_000).checked_div(micros.into());
        (rate.unwrap_or(0), self.rate_app_limited)
    }

    /// Begins a sample: bytes up to `nxt` leave while nothing is outstanding.
    pub(crate) const fn on_first_sent(&mut self, now: Instant, nxt: u64) {
        self.begin(now, nxt);
    }

    /// Begins a sample without one in progress: file bytes before `nxt` have left the device. Their
    /// time in the device does not count.
    pub(crate) const fn on_departed(&mut self, now: Instant, nxt: u64) {
        if self.end == 0 {
            let app_limited = self.app_limited;
            self.begin(now, nxt);
            self.app_limited = app_limited;
        }
    }

    /// Notes that everything that may be sent was sent, with window to spare.
    pub(crate) const fn on_app_limited(&mut self) {
        self.app_limited = true;
    }

    /// Adds `bytes`, delivered by an acknowledgment of everything before `una`.
    pub(crate) fn on_ack(&mut self, now: Instant, bytes: u64, una: u64, nxt: u64) {
        self.delivered = self.delivered.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        if una < self.end {
            return;
        }
        if self.end > 0 {
            self.finish(now);
        }
        if una < nxt {
            self.begin(now, nxt);
        } else {
            self.end = 0;
        }
    }

    const fn begin(&mut self, now: Instant, nxt: u64) {
        (self.delivered, self.since) = (0, now);
        (self.end, self.app_limited) = (nxt, false);
    }

    fn finish(&mut self, now: Instant) {
        let micros = u32::try_from(now.since(self.since).as_micros()).unwrap_or(u32::MAX);
        if micros == 0 {
            // The clock did not advance: no path is that short.
            return;
        }
        let (last_bytes, last_micros) = self.sample;
        let faster = u64::from(self.delivered) * u64::from(last_micros)
            >= u64::from(last_bytes) * u64::from(micros);
        if !self.app_limited || faster {
            self.sample = (self.delivered, micros);
            self.rate_app_limited = self.app_limited;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Instant {
        Instant::from_millis(n)
    }

    #[test]
    fn a_sample_is_what_a_round_trip_delivers() {
        let mut rate = DeliveryRate::default();
        rate.on_first_sent(ms(0), 10_001);
        // 10,000 bytes are in flight; from 100 ms on, 1,000 are acknowledged each 10 ms, and
        // replaced.
        for n in 1..=30 {
            rate.on_ack(ms(90 + n * 10), 1000, 1 + n * 1000, 10_001 + n * 1000);
        }
        assert_eq!(rate.rate(), (100_000, false));
    }

    #[test]
    fn app_limited_samples_only_raise_the_rate() {
        let mut rate = DeliveryRate::default();
        rate.on_first_sent(ms(0), 10_001);
        rate.on_ack(ms(100), 10_000, 10_001, 10_001);
        assert_eq!(rate.rate(), (100_000, false));
        rate.on_first_sent(ms(200), 10_101);
        rate.on_app_limited();
        rate.on_ack(ms(300), 100, 10_101, 10_101);
        assert_eq!(rate.rate(), (100_000, false), "less, for want of bytes");
        rate.on_first_sent(ms(400), 30_101);
        rate.on_app_limited();
        rate.on_ack(ms(500), 20_000, 30_101, 30_101);
        assert_eq!(rate.rate(), (200_000, true));
        rate.on_first_sent(ms(600), 30_201);
        rate.on_ack(ms(600), 100, 30_201, 30_201);
        assert_eq!(rate.rate(), (200_000, true), "no time has passed");
    }
}
