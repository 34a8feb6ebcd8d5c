//! Detection of a queue on the path from round-trip times.
//!
//! The minimum of a round counts, as in HyStart++ (RFC 9406): a queue delays all packets of a
//! round, whereas a busy machine or jitter of the path delays only some.

use base::{Duration, Instant};

/// Growth of the minimum round-trip time that indicates a queue: an eighth of it, within these
/// bounds (RFC 9406 section 4.3).
const DIVISOR: u64 = 8;
const GROWTH_MIN: Duration = Duration::from_millis(4);
const GROWTH_MAX: Duration = Duration::from_millis(16);

/// Minimum round-trip times of the current round and the previous one.
#[derive(Debug, Default)]
pub(crate) struct PathQueueDetector {
    /// Start of the current round.
    round_start: Instant,
    /// `None` before the round's first sample.
    current: Option<Duration>,
    previous: Option<Duration>,
}

impl PathQueueDetector {
    /// Adds the round-trip time of an acknowledged packet. A round lasts `srtt`.
    pub(crate) fn on_sample(&mut self, now: Instant, rtt: Duration, srtt: Duration) {
        if now.since(self.round_start) >= srtt {
            (self.round_start, self.previous) = (now, self.current.take());
        }
        self.current = Some(self.current.map_or(rtt, |least| least.min(rtt)));
    }

    /// Returns whether there is a queue on a path whose minimum round-trip time ever is `min_rtt`.
    pub(crate) fn has_queue(&self, min_rtt: Duration) -> bool {
        let shown = min_rtt + (min_rtt / DIVISOR).clamp(GROWTH_MIN, GROWTH_MAX);
        let least = [self.current, self.previous].into_iter().flatten().min();
        least.is_some_and(|least| least > shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// Returns the detector after rounds of 10 ms with these samples in ms.
    fn after(rounds: &[&[u64]]) -> PathQueueDetector {
        let (mut queue, mut now) = (PathQueueDetector::default(), Instant::from_millis(1000));
        for samples in rounds {
            samples.iter().for_each(|rtt| queue.on_sample(now, ms(*rtt), ms(10)));
            now += ms(10);
        }
        queue
    }

    #[test]
    fn a_queue_delays_all_packets() {
        assert!(!PathQueueDetector::default().has_queue(ms(10)));
        assert!(after(&[&[15, 16], &[15, 17]]).has_queue(ms(10)));
        assert!(!after(&[&[14, 16], &[14, 17]]).has_queue(ms(10)), "less than 4 ms of a queue");
        assert!(!after(&[&[11, 16], &[15, 17]]).has_queue(ms(10)), "not in the round before");
        assert!(!after(&[&[15, 16], &[15, 11, 17]]).has_queue(ms(10)), "one came sooner");
        assert!(after(&[&[11], &[15, 16], &[15, 17]]).has_queue(ms(10)), "long ago");
    }

    #[test]
    fn it_is_an_eighth_of_a_long_round_trip() {
        assert!(!after(&[&[111]]).has_queue(ms(100)));
        assert!(after(&[&[113]]).has_queue(ms(100)));
        assert!(after(&[&[617]]).has_queue(ms(600)), "16 ms at most");
    }
}
