//! The end of a queue's threads: a protocol between host and device.
//!
//! [`super::Threads::stop`] signals both at the same time. The host thread ends the application and
//! then the host ([`host::Host::end`]), and continues to work until the device has confirmed that
//! every frame is on the link. Then it sets [`HostEndedFlag`]. The device threads end once all
//! hosts have, because each may receive the last segments of any of them. Both waits are bounded,
//! so neither a blocked link nor a missing thread can keep the program from ending.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{Duration, Instant};

/// Longest time for the last frames, which may wait for a link or for reads from a disk.
const LIMIT: Duration = Duration::from_secs(2);

/// Phase of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThreadPhase {
    /// Working.
    Running,
    /// Told to end: works at most until then.
    Ending { until: Instant },
}

impl ThreadPhase {
    /// Enters the ending phase if `stop` is set; returns true once, on that transition.
    pub(super) fn enter_if_stopped(&mut self, stop: &AtomicBool, now: Instant) -> bool {
        let begins = *self == Self::Running && stop.load(Ordering::Acquire);
        if begins {
            *self = Self::Ending { until: now + LIMIT };
        }
        begins
    }

    /// Returns whether the thread was told to end.
    pub(super) fn is_ending(self) -> bool {
        self != Self::Running
    }

    /// Returns whether the time to end is over.
    pub(super) fn is_over(self, now: Instant) -> bool {
        matches!(self, Self::Ending { until } if now >= until)
    }

    /// Returns the longest time to sleep, if the thread has nothing to do for `due` (`None`: no
    /// limit).
    pub(super) fn sleep_for(self, now: Instant, due: Option<Duration>) -> Option<Duration> {
        match self {
            Self::Running => due,
            Self::Ending { until } => Some(due.unwrap_or(LIMIT).min(until.since(now))),
        }
    }
}

/// Flag set by a queue's host thread for the device threads: the last frame is on the link, or the
/// host no longer waits for it.
#[derive(Clone, Debug, Default)]
pub(super) struct HostEndedFlag(Arc<AtomicBool>);

impl HostEndedFlag {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
