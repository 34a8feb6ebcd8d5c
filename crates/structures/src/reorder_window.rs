//! The reordering window: packets that wait for earlier ones, by packet number. NiQUIC's TCAM
//! (section 3.3) as a direct-mapped table.
//!
//! The slot of a number is the number modulo the table's size. The numbers in the window differ by
//! less than that, so that no two share a slot, no slot needs a tag, and a look-up, an insertion
//! and the removal of the next packet are one access each, in any order of arrival. The window
//! knows neither time nor bytes; its values refer to packets that are kept elsewhere. Called by the
//! QUIC engine of the device.
//!
//! Invariants: waiting numbers are above `next` (after each change, callers remove all packets that
//! are next) and below `end`; `end - next` is at most the window's size; slots outside that range
//! are empty.

use alloc::boxed::Box;
use alloc::vec;

/// Maximum number of packet numbers that a window spans.
const PACKETS_MAX: u16 = 1024;

/// The value of an empty slot.
const EMPTY: u32 = u32::MAX;

/// Position of a packet number relative to a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowPosition {
    /// Below the next number: the packet arrived before, or was skipped.
    Behind,
    /// The lowest missing number, for which the waiting packets wait.
    Next,
    /// The packet has to wait, and its slot is empty.
    Ahead,
    /// A packet with this number waits.
    Taken,
    /// Above the window.
    Beyond,
}

/// The packets that wait for earlier ones, by packet number.
#[derive(Debug)]
pub struct ReorderWindow {
    slots: Box<[u32]>,
    /// Maximum number of packet numbers in the window, counted from `next`.
    packets: u16,
    /// The oldest number that is missing.
    next: u64,
    /// One above the newest number that waits; `next` if none does.
    end: u64,
    waiting: u32,
}

impl ReorderWindow {
    /// Returns an empty window of `packets` numbers, limited to 1..=1024, that begins at `next`.
    #[must_use]
    pub fn new(packets: u16, next: u64) -> Self {
        let packets = packets.clamp(1, PACKETS_MAX);
        let slots = vec![EMPTY; usize::from(packets.next_power_of_two())];
        Self { slots: slots.into_boxed_slice(), packets, next, end: next, waiting: 0 }
    }

    /// Returns the position of `number`.
    #[must_use]
    pub fn position(&self, number: u64) -> WindowPosition {
        match number.checked_sub(self.next) {
            None => WindowPosition::Behind,
            Some(0) => WindowPosition::Next,
            Some(ahead) if ahead >= u64::from(self.packets) => WindowPosition::Beyond,
            Some(_) if self.slots[self.index(number)] == EMPTY => WindowPosition::Ahead,
            Some(_) => WindowPosition::Taken,
        }
    }

    /// Inserts a packet whose position is [`WindowPosition::Ahead`]. Numbers are below 2^62 (RFC
    /// 9000 section 12.3); `value` refers to the packet and is not 2^32 - 1.
    pub fn insert(&mut self, number: u64, value: u32) {
        let index = self.index(number);
        self.slots[index] = value;
        self.end = self.end.max(number + 1);
        self.waiting += 1;
    }

    /// Moves the window past `number`, which was delivered without waiting. The number is not
    /// below the next one, and no packet up to it waits.
    pub fn advance_past(&mut self, number: u64) {
        self.next = number + 1;
        self.end = self.end.max(self.next);
    }

    /// Removes and returns the packet with the next number, if it waits.
    pub fn pop_next(&mut self) -> Option<u32> {
        if self.waiting == 0 {
            return None;
        }
        let index = self.index(self.next);
        let value = core::mem::replace(&mut self.slots[index], EMPTY);
        if value == EMPTY {
            return None;
        }
        self.waiting -= 1;
        self.next += 1;
        Some(value)
    }

    /// Removes and returns the oldest waiting packet, and skips the missing numbers before it.
    pub fn pop_first(&mut self) -> Option<u32> {
        while self.waiting > 0 {
            if let Some(value) = self.pop_next() {
                return Some(value);
            }
            self.next += 1;
        }
        None
    }

    /// Removes and returns the oldest waiting packet if its number is below `floor`, and skips the
    /// missing numbers before it; else skips all numbers below `floor` and returns `None`. Repeated
    /// until it returns `None`, it moves the start of the window to `floor` or leaves it above.
    pub fn pop_below(&mut self, floor: u64) -> Option<u32> {
        while self.next < floor && self.waiting > 0 {
            if let Some(value) = self.pop_next() {
                return Some(value);
            }
            self.next += 1;
        }
        self.next = self.next.max(floor);
        self.end = self.end.max(self.next);
        None
    }

    /// Returns the lowest start of a window that has a slot for `number`.
    #[must_use]
    pub fn floor_for(&self, number: u64) -> u64 {
        number.saturating_sub(u64::from(self.packets) - 1)
    }

    /// Returns the number of packets that wait.
    #[must_use]
    pub const fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Iterates over numbers and values of the waiting packets, lowest number first.
    pub fn values(&self) -> impl Iterator<Item = (u64, u32)> {
        (self.next..self.end)
            .map(|number| (number, self.slots[self.index(number)]))
            .filter(|&(_, value)| value != EMPTY)
    }

    /// Returns the bytes of heap memory of the window.
    #[must_use]
    pub const fn heap_bytes(&self) -> usize {
        size_of_val(&*self.slots)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the size is a power of two below 2^16")]
    const fn index(&self, number: u64) -> usize {
        number as usize & (self.slots.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// The model of the window: an ordered map.
    struct Model {
        next: u64,
        packets: u64,
        map: BTreeMap<u64, u32>,
    }

    impl Model {
        fn position(&self, number: u64) -> WindowPosition {
            match number {
                n if n < self.next => WindowPosition::Behind,
                n if n == self.next => WindowPosition::Next,
                n if n - self.next >= self.packets => WindowPosition::Beyond,
                n if self.map.contains_key(&n) => WindowPosition::Taken,
                _ => WindowPosition::Ahead,
            }
        }

        fn pop_next(&mut self) -> Option<u32> {
            let value = self.map.remove(&self.next)?;
            self.next += 1;
            Some(value)
        }

        fn pop_below(&mut self, floor: u64) -> Option<u32> {
            match self.map.first_key_value() {
                Some((&number, _)) if number < floor => self.pop_first(),
                _ => {
                    self.next = self.next.max(floor);
                    None
                }
            }
        }

        fn pop_first(&mut self) -> Option<u32> {
            let (number, value) = self.map.pop_first()?;
            self.next = number + 1;
            Some(value)
        }
    }

    #[test]
    fn sizes_are_clamped() {
        assert_eq!(ReorderWindow::new(0, 5).position(5), WindowPosition::Next);
        assert_eq!(ReorderWindow::new(0, 5).position(6), WindowPosition::Beyond);
        assert_eq!(ReorderWindow::new(3, 5).heap_bytes(), 16);
        assert_eq!(ReorderWindow::new(u16::MAX, 5).heap_bytes(), 4096);
        assert_eq!(
            ReorderWindow::new(64, u64::MAX - 70).position(u64::MAX),
            WindowPosition::Beyond
        );
    }

    proptest! {
            #[test]
            fn equals_an_ordered_map(
                packets in 1_u16..40, start in 0_u64..1000,
                steps in proptest::collection::vec((0_u8..10, 0_u64..50), 0..300),
            ) {
                let mut window = ReorderWindow::new(packets, start);
                let mut model =
                    Model { next: start, packets: packets.into(), map: BTreeMap::new() };
                for (value, (step, number)) in (0_u32..).zip(steps) {
                    let number = (model.next + number).saturating_sub(5);
                    let position = window.position(number);
                    prop_assert_eq!(position, model.position(number));
                    match (step, position) {
                        (0, _) => {
                            prop_assert_eq!(window.pop_first(), model.pop_first());
                            while let Some(value) = model.pop_next() {
                                prop_assert_eq!(window.pop_next(), Some(value));
                            }
                        }
                        (_, WindowPosition::Ahead) => {
                            window.insert(number, value);
                            model.map.insert(number, value);
                        }
                        (_, WindowPosition::Next) => {
                            window.advance_past(number);
                            model.next = number + 1;
                            while let Some(value) = model.pop_next() {
                                prop_assert_eq!(window.pop_next(), Some(value));
                            }
                            prop_assert_eq!(window.pop_next(), None);
                        }
                        (_, WindowPosition::Beyond) => {
                            let floor = number + 1 - u64::from(packets);
                            prop_assert_eq!(window.floor_for(number), floor);
                            while let Some(value) = model.pop_below(floor) {
                                prop_assert_eq!(window.pop_below(floor), Some(value));
                            }
                            prop_assert_eq!(window.pop_below(floor), None);
                            while let Some(value) = model.pop_next() {
                                prop_assert_eq!(window.pop_next(), Some(value));
                            }
                            prop_assert_eq!(window.pop_next(), None);
                            prop_assert_eq!(window.position(number), model.position(number));
                            let fits = matches!(
     window.position(number),
     WindowPosition::Next | WindowPosition::Ahead
    );
    prop_assert!(fits);
                        }
                        (_, WindowPosition::Behind | WindowPosition::Taken) => {}
                    }
                    prop_assert_eq!(window.waiting() as usize, model.map.len());
                    prop_assert_eq!(
                        window.values().collect::<Vec<_>>(),
                        model.map.clone().into_iter().collect::<Vec<_>>()
                    );
                }
            }
        }
}
