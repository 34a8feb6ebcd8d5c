//! Load of a device: the share of time that it works.
//!
//! If host and device share a thread, the host's turns are not part of it. There, a device that is
//! overloaded is one that leaves the host no time.

use base::{Duration, Instant};

/// Averaging time: long compared to a batch, short compared to changes of traffic.
const WINDOW: Duration = Duration::from_millis(100);

/// Measures the share of time spent working.
#[derive(Debug)]
pub(super) struct LoadMeter {
    since: Instant,
    /// Start of the last round.
    working_since: Option<Instant>,
    busy: Duration,
}

impl LoadMeter {
    pub(super) const fn new() -> Self {
        Self { since: Instant::ZERO, working_since: None, busy: Duration::ZERO }
    }

    /// Starts a round; `worked` is whether the device found work in the last one. At the end of a
    /// window, returns its load in thousandths.
    pub(super) fn start_round(&mut self, now: Instant, worked: bool) -> Option<u16> {
        if let Some(from) = self.working_since.take() {
            if worked {
                self.busy += now.since(from);
            }
        }
        self.working_since = Some(now);
        let window = now.since(self.since);
        if window < WINDOW {
            return None;
        }
        let permille = self.busy.as_nanos() * 1000 / window.as_nanos().max(1);
        (self.since, self.busy) = (now, Duration::ZERO);
        u16::try_from(permille.min(1000)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_rounds_that_found_work() {
        let mut meter = LoadMeter::new();
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        assert_eq!(meter.start_round(at(1000), false), Some(0), "the first window is thrown away");
        // Three of ten rounds found work; the thread slept in between.
        let mut shares = Vec::new();
        for ms in 1..=100 {
            shares.extend(meter.start_round(at(1000 + ms), ms % 10 < 3));
        }
        assert_eq!(shares, [300]);
    }

    /// A device that shares its thread: rounds of the device and of the host alternate.
    #[test]
    fn rounds_of_the_host_do_not_count() {
        for (device_us, host_us, expected) in [(30, 70, 300), (98, 2, 980)] {
            let mut meter = LoadMeter::new();
            let mut now = Instant::ZERO + Duration::from_millis(1000);
            assert_eq!(meter.start_round(now, false), Some(0));
            let mut shares = Vec::new();
            for _ in 0..1000 {
                shares.extend(meter.start_round(now, false));
                now += Duration::from_micros(device_us);
                shares.extend(meter.start_round(now, true));
                now += Duration::from_micros(host_us);
            }
            shares.extend(meter.start_round(now, false));
            assert_eq!(shares, [expected]);
        }
    }
}
