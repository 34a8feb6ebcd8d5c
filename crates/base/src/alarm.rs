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
const NOWHERE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Instant,
    slot: u32,
}

/// A heap of deadlines, at most one for each slot.
#[derive(Debug, Default)]
pub struct Alarms {
    heap: Vec<Entry>,
    places: Vec<u32>,
}

impl Alarms {
    /// Sets the deadline of `slot` to `at`, unless an earlier one is set: then [`Self::pop`]
    /// returns the slot early. Slots are small numbers: memory is allocated up to the greatest.
    pub fn set(&mut self, slot: u32, at: Instant) {
        if at == Instant::FAR_FUTURE {
            return;
        }
        let index = slot as usize;
        if self.places.len() <= index {
            if self.places.capacity() <= index {
                // By constant steps and not by doubling, like the tables of the owners.
                self.places.reserve_exact(index + GROW_SLOTS - self.places.len());
                self.heap.reserve_exact(index + GROW_SLOTS - self.heap.len());
            }
            self.places.resize(index + 1, NOWHERE);
        }
        match self.places[index] {
            NOWHERE => {
                self.heap.push(Entry { at, slot });
                self.rise(self.heap.len() - 1, Entry { at, slot });
            }
            place if at < self.heap[place as usize].at => {
                self.rise(place as usize, Entry { at, slot });
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
        self.places[first.slot as usize] = NOWHERE;
        let last = self.heap.pop()?;
        if !self.heap.is_empty() {
            self.sink(last);
        }
        Some(first.slot)
    }

    /// Removes the entry of a slot, if it has one.
    pub fn clear(&mut self, slot: u32) {
        let Some(&place) = self.places.get(slot as usize) else { return };
        if place == NOWHERE {
            return;
        }
        // Moves the entry to the root and pops it.
        self.rise(place as usize, Entry { at: Instant::ZERO, slot });
        self.pop(Instant::ZERO);
    }

    /// Returns the earliest deadline.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.heap.first().map(|entry| entry.at)
    }

    /// Puts `entry` at `place`, or above it if it is earlier than its parents there.
    fn rise(&mut self, mut place: usize, entry: Entry) {
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
    fn sink(&mut self, entry: Entry) {
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
    fn put(&mut self, place: usize, entry: Entry) {
        self.heap[place] = entry;
        self.places[entry.slot as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Duration, Prng};
    use alloc::collections::BTreeMap;

    /// Compares the heap with an ordered map of slot to time.
    #[test]
    fn comes_up_in_order_each_slot_once() {
        let mut prng = Prng::new(3);
        let (mut alarms, mut model) = (Alarms::default(), BTreeMap::<u32, Instant>::new());
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
    fn never_is_no_entry() {
        let mut alarms = Alarms::default();
        alarms.set(7, Instant::FAR_FUTURE);
        assert_eq!((alarms.next(), alarms.pop(Instant::from_millis(1))), (None, None));
    }
}
