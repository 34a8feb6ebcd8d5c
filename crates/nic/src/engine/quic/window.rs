//! Packets that wait for those before them, by packet number: NiQUIC's TCAM (section 3.3) as a
//! direct-mapped table.
//!
//! A number's place is the number modulo the table's size. All numbers in the window differ by less
//! than that, so no two share a place, no place needs a tag, and finding one, putting one in and
//! taking the next one out are one access each, whatever the order. Called by `rx`; it knows
//! neither time nor bytes, and its values name packets that are kept elsewhere.
//!
//! Invariants: the numbers that wait lie above `next` (callers take out all that are next before
//! they ask again) and below `end`, and `end - next` is at most the window's size; a place outside
//! of that range holds nothing.

use alloc::boxed::Box;
use alloc::vec;

/// Most packet numbers that a window spans.
pub const WINDOW_MAX: u16 = 1024;

/// What stands in a place where nobody waits.
const NOBODY: u32 = u32::MAX;

/// Where a packet number lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Below the next: it came before, or was given up.
    Behind,
    /// It is the one that the others wait for.
    Next,
    /// It has to wait, and there is room.
    Ahead,
    /// One with this number waits.
    Taken,
    /// Farther than the window reaches.
    Beyond,
}

/// The window.
#[derive(Debug)]
pub struct Window {
    places: Box<[u32]>,
    /// Numbers from `next` to the newest that may wait, both counted.
    packets: u16,
    /// The oldest number that is missing.
    next: u64,
    /// One above the newest that waits; `next` where none does.
    end: u64,
    waiting: u32,
}

impl Window {
    /// An empty window of `packets` numbers, 1 to [`WINDOW_MAX`], that begins at `next`.
    #[must_use]
    pub fn new(packets: u16, next: u64) -> Self {
        let packets = packets.clamp(1, WINDOW_MAX);
        let places = vec![NOBODY; usize::from(packets.next_power_of_two())];
        Self { places: places.into_boxed_slice(), packets, next, end: next, waiting: 0 }
    }

    /// Where `number` lies.
    #[must_use]
    pub fn place(&self, number: u64) -> Place {
        match number.checked_sub(self.next) {
            None => Place::Behind,
            Some(0) => Place::Next,
            Some(ahead) if ahead >= u64::from(self.packets) => Place::Beyond,
            Some(_) if self.places[self.index(number)] == NOBODY => Place::Ahead,
            Some(_) => Place::Taken,
        }
    }

    /// A packet that is [`Place::Ahead`] waits; numbers lie below 2^62 (RFC 9000, section 12.3),
    /// and `value`, which is not 2^32 - 1, names it.
    pub fn put(&mut self, number: u64, value: u32) {
        let index = self.index(number);
        self.places[index] = value;
        self.end = self.end.max(number + 1);
        self.waiting += 1;
    }

    /// The next packet came, or one from which on all are delivered: `number` is not below the
    /// next, and nobody waits with a number below or at it.
    pub fn passed(&mut self, number: u64) {
        self.next = number + 1;
        self.end = self.end.max(self.next);
    }

    /// Takes out the packet that is next, if it waits.
    pub fn pop_next(&mut self) -> Option<u32> {
        if self.waiting == 0 {
            return None;
        }
        let index = self.index(self.next);
        let value = core::mem::replace(&mut self.places[index], NOBODY);
        if value == NOBODY {
            return None;
        }
        self.waiting -= 1;
        self.next += 1;
        Some(value)
    }

    /// Takes out the oldest that waits, and gives those before it up.
    pub fn pop_first(&mut self) -> Option<u32> {
        while self.waiting > 0 {
            if let Some(value) = self.pop_next() {
                return Some(value);
            }
            self.next += 1;
        }
        None
    }

    /// Takes out the oldest that waits if its number is below `floor`, and gives those before it
    /// up; where none is, all below `floor`. So called until it gives none, it moves the window on
    /// to `floor`, if it was behind.
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

    /// The lowest number that [`Self::place`] can have room for together with `number`.
    #[must_use]
    pub fn floor_for(&self, number: u64) -> u64 {
        number.saturating_sub(u64::from(self.packets) - 1)
    }

    /// Packets that wait.
    #[must_use]
    pub const fn waiting(&self) -> u32 {
        self.waiting
    }

    /// All that wait, by number and value, lowest number first.
    pub fn values(&self) -> impl Iterator<Item = (u64, u32)> {
        (self.next..self.end)
            .map(|number| (number, self.places[self.index(number)]))
            .filter(|&(_, value)| value != NOBODY)
    }

    /// Bytes of memory behind it.
    #[must_use]
    pub const fn heap_bytes(&self) -> usize {
        size_of_val(&*self.places)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the size is a power of two below 2^16")]
    const fn index(&self, number: u64) -> usize {
        number as usize & (self.places.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// The same by an ordered map.
    struct Model {
        next: u64,
        packets: u64,
        map: BTreeMap<u64, u32>,
    }

    impl Model {
        fn place(&self, number: u64) -> Place {
            match number {
                n if n < self.next => Place::Behind,
                n if n == self.next => Place::Next,
                n if n - self.next >= self.packets => Place::Beyond,
                n if self.map.contains_key(&n) => Place::Taken,
                _ => Place::Ahead,
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
    fn sizes_are_mended() {
        assert_eq!(Window::new(0, 5).place(5), Place::Next);
        assert_eq!(Window::new(0, 5).place(6), Place::Beyond);
        assert_eq!(Window::new(3, 5).heap_bytes(), 16);
        assert_eq!(Window::new(u16::MAX, 5).heap_bytes(), 4096);
        assert_eq!(Window::new(64, u64::MAX - 70).place(u64::MAX), Place::Beyond);
    }

    proptest! {
        #[test]
        fn equals_an_ordered_map(
            packets in 1_u16..40, start in 0_u64..1000,
            steps in proptest::collection::vec((0_u8..10, 0_u64..50), 0..300),
        ) {
            let mut window = Window::new(packets, start);
            let mut model =
                Model { next: start, packets: packets.into(), map: BTreeMap::new() };
            for (value, (step, number)) in (0_u32..).zip(steps) {
                let number = (model.next + number).saturating_sub(5);
                let place = window.place(number);
                prop_assert_eq!(place, model.place(number));
                match (step, place) {
                    (0, _) => {
                        prop_assert_eq!(window.pop_first(), model.pop_first());
                        while let Some(value) = model.pop_next() {
                            prop_assert_eq!(window.pop_next(), Some(value));
                        }
                    }
                    (_, Place::Ahead) => {
                        window.put(number, value);
                        model.map.insert(number, value);
                    }
                    (_, Place::Next) => {
                        window.passed(number);
                        model.next = number + 1;
                        while let Some(value) = model.pop_next() {
                            prop_assert_eq!(window.pop_next(), Some(value));
                        }
                        prop_assert_eq!(window.pop_next(), None);
                    }
                    (_, Place::Beyond) => {
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
                        prop_assert_eq!(window.place(number), model.place(number));
                        prop_assert!(matches!(window.place(number), Place::Next | Place::Ahead));
                    }
                    (_, Place::Behind | Place::Taken) => {}
                }
                prop_assert_eq!(window.waiting() as usize, model.map.len());
                prop_assert_eq!(
                    window.values().collect::<Vec<_>>(),
                    model.map.iter().map(|(&number, &value)| (number, value)).collect::<Vec<_>>()
                );
            }
        }
    }
}
