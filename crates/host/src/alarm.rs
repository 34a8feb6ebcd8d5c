//! When connections want to be woken: one heap for all of them, lazily kept.
//!
//! A connection's next time-out moves with every acknowledgment, nearly always to later. So an
//! entry stays where it is until it comes up, and only then is looked at again; a new entry is made
//! only where the time-out moved to earlier.

use alloc::collections::BinaryHeap;
use core::cmp::Reverse;

use base::Instant;

/// The heap; names are slots of the table of connections.
#[derive(Debug, Default)]
pub(crate) struct Alarms {
    heap: BinaryHeap<Reverse<(Instant, u32)>>,
}

impl Alarms {
    /// `slot` wants to be woken at `at`, and has an entry for `armed`; gives the time of the entry
    /// it has now.
    pub(crate) fn set(&mut self, slot: u32, at: Instant, armed: Instant) -> Instant {
        if at >= armed {
            return armed;
        }
        self.heap.push(Reverse((at, slot)));
        at
    }

    /// The next slot whose time has come, and the time that its entry said. The entry is gone.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<(u32, Instant)> {
        let &Reverse((at, slot)) = self.heap.peek()?;
        if at > now {
            return None;
        }
        self.heap.pop();
        Some((slot, at))
    }

    /// When the next time comes.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }
}
