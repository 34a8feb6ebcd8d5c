//! Summaries of ended connections: a host gets one event for many of them (AccelTCP appendix A).
//!
//! A queue's event is sent when [`SUMMARY_FLOWS_MAX`] connections have ended, or
//! [`SUMMARY_DELAY_MAX`] after the first unreported one, whichever comes first.

use abi::teardown::TeardownDone;
use alloc::vec::Vec;
use base::{Duration, Instant};

/// Number of ended connections at which an event is sent.
const SUMMARY_FLOWS_MAX: u32 = 64;
/// Maximum delay of a report.
const SUMMARY_DELAY_MAX: Duration = Duration::from_millis(10);

/// Ended connections that have not been reported yet.
#[derive(Debug, Default)]
pub(super) struct TeardownSummaries {
    /// The summary of each queue, and the time at which it must be reported.
    queues: Vec<(TeardownDone, Instant)>,
    /// The earliest of these times.
    due: Option<Instant>,
}

impl TeardownSummaries {
    /// Records that a connection of `queue` has ended; `count` adds it to the summary. Returns the
    /// summary if it is to be reported now.
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
            *due = now + SUMMARY_DELAY_MAX;
            let first = self.due.map_or(*due, |other| other.min(*due));
            self.due = Some(first);
        }
        count(sum);
        if sum.total() < SUMMARY_FLOWS_MAX { None } else { self.take(queue) }
    }

    /// Returns the next queue whose summary is due, with the summary.
    pub(super) fn poll(&mut self, now: Instant) -> Option<(usize, TeardownDone)> {
        if self.due.is_none_or(|due| due > now) {
            return None;
        }
        let queue = self.queues.iter().position(|&(_, due)| due <= now)?;
        self.take(queue).map(|sum| (queue, sum))
    }

    /// Returns the time at which the next summary is due.
    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Discards all summaries.
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
