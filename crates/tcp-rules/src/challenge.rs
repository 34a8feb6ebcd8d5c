//! Rate limit of answers to unacceptable segments: RFC 5961 section 7.
//!
//! One limiter per connection. Called before a challenge acknowledgment is sent, and before the
//! answer to a bare segment outside the window: a stranger must not make a connection send at the
//! stranger's rate, and two ends that are out of synchronization must not answer each other
//! forever.

use base::{Duration, Instant};

/// Interval of answers: Linux's `tcp_invalid_ratelimit`.
const INTERVAL: Duration = Duration::from_millis(500);

/// Allows one answer per interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChallengeLimiter {
    /// Time at which the last answer was sent; the epoch if none was.
    sent_at: Instant,
}

impl ChallengeLimiter {
    /// Returns a limiter that has allowed no answer yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { sent_at: Instant::ZERO }
    }

    /// Returns whether an answer may be sent now; if so, counts it as sent.
    pub fn allow(&mut self, now: Instant) -> bool {
        if self.sent_at != Instant::ZERO && now.since(self.sent_at) < INTERVAL {
            return false;
        }
        self.sent_at = now.max(Instant::from_nanos(1));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allows_one_answer_in_each_interval() {
        for start in [0, 1, 10_000] {
            let mut limiter = ChallengeLimiter::new();
            let times = [0, 1, 499, 501, 502, 1000, 1001, 9000];
            let allowed = times.map(|after| limiter.allow(Instant::from_millis(start + after)));
            assert_eq!(allowed, [true, false, false, true, false, false, true, true]);
        }
    }
}
