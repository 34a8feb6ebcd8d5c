//! Rate limit of answers to unacceptable segments: RFC 5961 section 7.
//!
//! One limiter per connection. Called before a challenge acknowledgment is sent, and before the
//! answer to a bare segment outside the window: a stranger must not make a connection send at the
//! stranger's rate, and two ends that are out of synchronization must not answer each other
//! forever.

use base::{Duration, Instant, low32};

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

/// [`ChallengeLimiter`] in two bytes, for connections that live for minutes: if the last answer was
/// sent a multiple of 65.5 seconds ago, an answer may be denied once more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShortChallengeLimiter {
    /// Time at which the last answer was sent, in milliseconds modulo 2^16; zero if none was.
    sent_at_ms: u16,
}

impl ShortChallengeLimiter {
    /// Returns a limiter that has allowed no answer yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { sent_at_ms: 0 }
    }

    /// Returns whether an answer may be sent now; if so, counts it as sent.
    pub fn allow(&mut self, now: Instant) -> bool {
        #[expect(clippy::cast_possible_truncation, reason = "modulo 2^16")]
        let now_ms = low32(now.as_millis()) as u16;
        let since = now_ms.wrapping_sub(self.sent_at_ms);
        if self.sent_at_ms != 0 && u64::from(since) < INTERVAL.as_millis() {
            return false;
        }
        self.sent_at_ms = now_ms.max(1);
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

    #[test]
    fn the_short_one_allows_the_same() {
        for start in [1, 10_000, 65_535, 65_536, 1 << 40] {
            let mut limiter = ShortChallengeLimiter::new();
            let times = [0, 1, 499, 501, 502, 1000, 1001, 9000];
            let allowed = times.map(|after| limiter.allow(Instant::from_millis(start + after)));
            assert_eq!(allowed, [true, false, false, true, false, false, true, true]);
        }
    }
}
