//! Deadlines of connections: one heap for all of them, updated lazily.
//!
//! The host and the applications above it use one each; entries are named by the slots of their
//! tables. A connection's next time-out moves with every acknowledgment, nearly always later. An
//! entry therefore keeps an old, earlier time until that has come, when the owner sets the slot
//! again; it moves only if the time-out moves earlier. Each slot has at most one entry, and its
//! position in the heap is known: without that, outdated entries would stay in the heap until their
//! own time, many for each busy connection.
//!
//! Invariants: `places[heap[i].slot] == i`; a parent is not later than its children.

use alloc::vec::Vec;

use crate::Instant;

/// Children of an entry: four make the heap half as deep as two would.
const CHILDREN: usize = 4;
/// Slots by which the tables grow.
const GROW_SLOTS: usize = 1024;
/// Position of a slot without an entry.
const NO_POSITION: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct DeadlineEntry {
    at: Instant,
    slot: u32,
}

/// A heap of deadlines, at most one for each slot.
#[derive(Debug, Default)]
pub struct DeadlineHeap {
    heap: Vec<DeadlineEntry>,
    positions: Vec<u32>,
}

impl DeadlineHeap {
    /// Sets the deadline of `slot` to `at`, unless an earlier one is set: then [`Self::pop`]
    /// returns the slot early. Slots are small numbers: memory is allocated up to the greatest.
    pub fn set(&mut self, slot: u32, at: Instant) {
        if at == Instant::FAR_FUTURE {
            return;
        }
        let index = slot as usize;
        if self.positions.len() <= index {
            if self.positions.capacity() <= index {
                // By constant steps and not by doubling, like the tables of the owners.
                self.positions.reserve_exact(index + GROW_SLOTS - self.positions.len());
                self.heap.reserve_exact(index + GROW_SLOTS - self.heap.len());
            }
            self.positions.resize(index + 1, NO_POSITION);
        }
        match self.positions[index] {
            NO_POSITION => {
                self.heap.push(DeadlineEntry { at, slot });
                self.sift_up(self.heap.len() - 1, DeadlineEntry { at, slot });
            }
            place if at < self.heap[place as usize].at => {
                self.sift_up(place as usize, DeadlineEntry { at, slot });
            }
            _ => {}
        }
    }

    /// Removes and returns the next slot whose deadline has come. A later deadline has to be set
    /// again.
    pub fn pop(&mut self, now: Instant) -> Option<u32> {
        let first = *self.heap.first()?;
        if first.at > now {
            return None;
        }
        self.positions[first.slot as usize] = NO_POSITION;
        let last = self.heap.pop()?;
        if !self.heap.is_empty() {
            self.sift_down(last);
        }
        Some(first.slot)
    }

    /// Removes the entry of a slot, if it has one.
    pub fn clear(&mut self, slot: u32) {
        let Some(&place) = self.positions.get(slot as usize) else { return };
        if place == NO_POSITION {
            return;
        }
        // Moves the entry to the root and pops it.
        self.sift_up(place as usize, DeadlineEntry { at: Instant::ZERO, slot });
        self.pop(Instant::ZERO);
    }

    /// Returns the earliest deadline.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.heap.first().map(|entry| entry.at)
    }

    /// Puts `entry` at `place`, or above it if it is earlier than its parents there.
    fn sift_up(&mut self, mut place: usize, entry: DeadlineEntry) {
        while place > 0 {
            let parent = (place - 1) / CHILDREN;
            if self.heap[parent].at <= entry.at {
                break;
            }
            self.put(place, self.heap[parent]);
            place = parent;
        }
        self.put(place, entry);
    }

    /// Puts `entry` at the root, or below it if it is later than its children there.
    fn sift_down(&mut self, entry: DeadlineEntry) {
        let mut place = 0;
        loop {
            let first = place * CHILDREN + 1;
            let last = self.heap.len().min(first + CHILDREN);
            let Some(child) = (first..last).min_by_key(|&child| self.heap[child].at) else { break };
            if entry.at <= self.heap[child].at {
                break;
            }
            self.put(place, self.heap[child]);
            place = child;
        }
        self.put(place, entry);
    }

    #[expect(clippy::cast_possible_truncation, reason = "no more entries than slots, a u32 each")]
    fn put(&mut self, place: usize, entry: DeadlineEntry) {
        self.heap[place] = entry;
        self.positions[entry.slot as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Duration, Prng};
    use alloc::collections::BTreeMap;

    /// Compares the heap with an ordered map of slot to time.
    #[test]
    fn pops_in_order_each_slot_once() {
        let mut prng = Prng::new(3);
        let (mut alarms, mut model) = (DeadlineHeap::default(), BTreeMap::<u32, Instant>::new());
        let mut now = Instant::ZERO;
        for _ in 0..20_000 {
            if prng.below(3) > 0 {
                let slot = u32::try_from(prng.below(300)).unwrap();
                let at = now + Duration::from_micros(prng.below(5_000));
                alarms.set(slot, at);
                let known = model.entry(slot).or_insert(at);
                *known = at.min(*known);
            } else {
                now += Duration::from_micros(prng.below(100));
                while let Some(slot) = alarms.pop(now) {
                    let at = model.remove(&slot).unwrap();
                    assert!(at <= now && model.values().all(|&other| at <= other));
                }
            }
            assert_eq!(alarms.next(), model.values().min().copied());
            assert_eq!(alarms.heap.len(), model.len());
        }
    }

    #[test]
    fn far_future_sets_no_deadline() {
        let mut alarms = DeadlineHeap::default();
        alarms.set(7, Instant::FAR_FUTURE);
        assert_eq!((alarms.next(), alarms.pop(Instant::from_millis(1))), (None, None));
    }
}
