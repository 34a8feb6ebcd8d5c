//! Rate limit for packets sent in answer to unauthenticated packets: ICMP errors, and resets for no
//! connection. A flood then costs its frames but not an answer to each. The limit is global, not
//! per sender.

use base::{Duration, Instant};

/// A limit of events per second, counted in fixed windows of one second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateLimiter {
    max: u32,
    window: Instant,
    sent: u32,
}

impl RateLimiter {
    /// Returns a limit of `max` events per second.
    pub(crate) const fn new(max: u32) -> Self {
        Self { max, window: Instant::ZERO, sent: 0 }
    }

    /// Returns whether another event is allowed now, and counts it if so.
    pub(crate) fn allows(&mut self, now: Instant) -> bool {
        if now.since(self.window) >= Duration::from_secs(1) {
            (self.window, self.sent) = (now, 0);
        }
        let allows = self.sent < self.max;
        self.sent += u32::from(allows);
        allows
    }
}
