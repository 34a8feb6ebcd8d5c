//! When connections want to be woken: one heap for all of them, lazily kept.
//!
//! The host and the applications above it use one each; names are the slots of their tables. A
//! connection's next time-out moves with every acknowledgment, nearly always to later. So an entry
//! stays where it is until it comes up, and only then is looked at again; it moves only where the
//! time-out moved to earlier. Each slot has one entry at most, and knows its place in the heap:
//! without that, entries that were overtaken would lie in it until their own time comes, many for
//! each connection that is busy.
//!
//! Invariants: `places[heap[i].slot] == i`; a parent is not later than its children.

use alloc::vec::Vec;

use crate::Instant;

/// Children of an entry: four make it half as deep as two would.
const CHILDREN: usize = 4;
/// Slots that the places grow by.
const GROW_SLOTS: usize = 1024;
/// The place of a slot without an entry.
const NOWHERE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Instant,
    slot: u32,
}

/// The heap.
#[derive(Debug, Default)]
pub struct Alarms {
    heap: Vec<Entry>,
    places: Vec<u32>,
}

impl Alarms {
    /// `slot` wants to be woken at `at`; it may be woken before. Slots are small numbers: memory is
    /// kept up to the greatest.
    pub fn set(&mut self, slot: u32, at: Instant) {
        if at == Instant::FAR_FUTURE {
            return;
        }
        let index = slot as usize;
        if self.places.len() <= index {
            if self.places.capacity() <= index {
                // By steps, not by doubling, as the table itself.
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

    /// The next slot whose time has come. Its entry is gone: a wish for later has to be set again.
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

    /// Takes the entry of a slot away, if it has one.
    pub fn clear(&mut self, slot: u32) {
        let Some(&place) = self.places.get(slot as usize) else { return };
        if place == NOWHERE {
            return;
        }
        // To the top, and away.
        self.rise(place as usize, Entry { at: Instant::ZERO, slot });
        self.pop(Instant::ZERO);
    }

    /// When the next time comes.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.heap.first().map(|entry| entry.at)
    }

    /// Puts `entry` at `place` or where it belongs above.
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

    /// Puts `entry` at the root or where it belongs below.
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

    /// Against an ordered map of slot to time.
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
