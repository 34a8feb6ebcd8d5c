//! The end of a queue's threads: a protocol between host and device.
//!
//! [`super::Threads::stop`] tells both at the same time. The host thread has the application and
//! then the host end ([`host::Host::end`]), and works on until the device has confirmed that every
//! frame is on the link; then it says so, and only then the device thread ends. Each waits for a
//! bounded time only: no link that takes nothing, and no thread that is gone, keeps the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{Duration, Instant};

/// How long the last frames may take. They wait for a link, or for a disk's last reads.
const LIMIT: Duration = Duration::from_secs(2);

/// The phase of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It works.
    Running,
    /// It was told to end, and works until then at most.
    Ending { until: Instant },
}

impl Phase {
    /// Looks whether the thread was told to end; says so once.
    pub(super) fn begins_to_end(&mut self, stop: &AtomicBool, now: Instant) -> bool {
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

    /// Returns whether the time for that is over.
    pub(super) fn is_over(self, now: Instant) -> bool {
        matches!(self, Self::Ending { until } if now >= until)
    }

    /// Longest time to sleep, where `due` is what there is else to wait for.
    pub(super) fn sleep_for(self, now: Instant, due: Option<Duration>) -> Option<Duration> {
        match self {
            Self::Running => due,
            Self::Ending { until } => Some(due.unwrap_or(LIMIT).min(until.since(now))),
        }
    }
}

/// Said by the host thread of a queue to its device thread: the last frame is on the link, or the
/// host waits for it no more.
#[derive(Clone, Debug, Default)]
pub(super) struct HostEnded(Arc<AtomicBool>);

impl HostEnded {
    pub(super) fn say(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(super) fn is_said(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
