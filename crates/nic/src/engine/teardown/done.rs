//! Ends of connections in sums: a queue's host is told of many at once (AccelTCP appendix A).
//!
//! Told is when [`SUM`] have ended, or [`SUM_DELAY`] after the first that was not told of,
//! whichever comes first.

use abi::teardown::TeardownDone;
use alloc::vec::Vec;
use base::{Duration, Instant};

/// Ends that are told at once.
const SUM: u32 = 64;
/// How long an end may be kept back.
const SUM_DELAY: Duration = Duration::from_millis(10);

/// What the hosts have not been told.
#[derive(Debug, Default)]
pub(super) struct Ends {
    /// By queue, with the time at which it is told at the latest.
    queues: Vec<(TeardownDone, Instant)>,
    /// The first of these times.
    due: Option<Instant>,
}

impl Ends {
    /// A connection of `queue` has ended: `count` adds it. Gives what the host is told now.
    pub(super) fn add(
        &mut self,
        now: Instant,
        queue: usize,
        count: impl FnOnce(&mut TeardownDone),
    ) -> Option<TeardownDone> {
        if self.queues.len() <= queue {
            self.queues.resize(queue + 1, (TeardownDone::default(), Instant::FAR_FUTURE));
        }
        let (sum, due) = self.queues.get_mut(queue)?;
        if sum.total() == 0 {
            *due = now + SUM_DELAY;
            let first = self.due.map_or(*due, |other| other.min(*due));
            self.due = Some(first);
        }
        count(sum);
        if sum.total() < SUM { None } else { self.take(queue) }
    }

    /// The next queue whose time has come, and what its host is told.
    pub(super) fn poll(&mut self, now: Instant) -> Option<(usize, TeardownDone)> {
        if self.due.is_none_or(|due| due > now) {
            return None;
        }
        let queue = self.queues.iter().position(|&(_, due)| due <= now)?;
        self.take(queue).map(|sum| (queue, sum))
    }

    /// When the next is due.
    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn take(&mut self, queue: usize) -> Option<TeardownDone> {
        let none = (TeardownDone::default(), Instant::FAR_FUTURE);
        let (sum, _) = core::mem::replace(self.queues.get_mut(queue)?, none);
        let first = self.queues.iter().map(|&(_, due)| due).min();
        self.due = first.filter(|&due| due < Instant::FAR_FUTURE);
        Some(sum)
    }
}
