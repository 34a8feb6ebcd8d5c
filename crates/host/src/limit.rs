//! Limits on what strangers can make us send.
//!
//! Called where an answer goes to whoever asked, ICMP errors and resets for no connection, so that
//! a flood costs its frames and not as many answers. It is no fair share among those who ask.

use base::{Duration, Instant};

/// So many a second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PerSecond {
    max: u32,
    window: Instant,
    sent: u32,
}

impl PerSecond {
    /// Returns a limit of `max` a second.
    pub(crate) const fn new(max: u32) -> Self {
        Self { max, window: Instant::ZERO, sent: 0 }
    }

    /// Returns whether another may be sent, and counts it.
    pub(crate) fn allows(&mut self, now: Instant) -> bool {
        if now.since(self.window) >= Duration::from_secs(1) {
            (self.window, self.sent) = (now, 0);
        }
        let allows = self.sent < self.max;
        self.sent += u32::from(allows);
        allows
    }
}
