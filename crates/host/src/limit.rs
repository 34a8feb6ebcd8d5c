//! Limits on what strangers can make us send.
//!
//! Called where an answer goes to whoever asked, ICMP errors and resets for no connection, so that
//! a flood costs its frames and not as many answers. It is no fair share among those who ask.

use base::{Duration, Instant};

/// So many a second.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PerSecond {
    window: Instant,
    sent: u32,
}

impl PerSecond {
    /// Whether another may be sent, where `max` a second may.
    pub(crate) fn allows(&mut self, now: Instant, max: u32) -> bool {
        if now.since(self.window) >= Duration::from_secs(1) {
            (self.window, self.sent) = (now, 0);
        }
        let allows = self.sent < max;
        self.sent += u32::from(allows);
        allows
    }
}
