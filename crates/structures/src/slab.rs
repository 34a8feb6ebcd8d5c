//! A table with generational keys.
//!
//! A [`SlabKey`] refers to a value until the value is removed; afterwards it refers to nothing,
//! even when its slot is used again. So lists may keep keys of removed values (a canceled waiter, a
//! disk request from before a reset) and find out on access. Slots are reused, so that a steady
//! state does not allocate.

use alloc::vec::Vec;

/// End of the list of free slots; an index that no slot has.
const NO_SLOT: u32 = u32::MAX;

/// Key of a value in a [`Slab`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabKey {
    index: u32,
    generation: u32,
}

impl SlabKey {
    /// A key that refers to nothing in any slab.
    pub const NONE: Self = Self { index: NO_SLOT, generation: 0 };

    /// Returns the index of the slot, whatever it holds now.
    #[must_use]
    #[inline]
    pub const fn index(self) -> u32 {
        self.index
    }

    /// Returns the key as a number, for a request whose completion carries it back.
    #[must_use]
    #[inline]
    pub const fn to_u64(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    /// Returns the key from a number that came back. Numbers that are no keys refer to nothing.
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of the number")]
    #[must_use]
    #[inline]
    pub const fn from_u64(number: u64) -> Self {
        Self { index: number as u32, generation: (number >> 32) as u32 }
    }
}

#[derive(Debug)]
struct SlabSlot<T> {
    generation: u32,
    next_free: u32,
    value: Option<T>,
}

/// A table of values with generational keys.
#[derive(Debug)]
pub struct Slab<T> {
    slots: Vec<SlabSlot<T>>,
    free: u32,
    len: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Slab<T> {
    /// Creates an empty slab.
    #[must_use]
    pub const fn new() -> Self {
        Self { slots: Vec::new(), free: NO_SLOT, len: 0 }
    }

    /// Returns the number of values.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no values.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Inserts a value and returns its key. Callers limit the number of values far below 2^32.
    ///
    /// # Panics
    /// If there are 2^32 - 1 slots.
    pub fn insert(&mut self, value: T) -> SlabKey {
        self.len += 1;
        if let Some(place) = self.slots.get_mut(self.free as usize) {
            let key = SlabKey { index: self.free, generation: place.generation };
            self.free = place.next_free;
            place.value = Some(value);
            return key;
        }
        let index = u32::try_from(self.slots.len()).unwrap_or(NO_SLOT);
        assert!(index != NO_SLOT, "every user of a slab has a limit below 2^32");
        self.slots.push(SlabSlot { generation: 0, next_free: NO_SLOT, value: Some(value) });
        SlabKey { index, generation: 0 }
    }

    /// Returns the value of `key`.
    #[must_use]
    pub fn get(&self, key: SlabKey) -> Option<&T> {
        let place = self.slots.get(key.index as usize)?;
        if place.generation == key.generation { place.value.as_ref() } else { None }
    }

    /// Returns the key of the value in a slot, if there is one, for a caller that stores only
    /// indexes.
    #[must_use]
    pub fn key_at(&self, index: u32) -> Option<SlabKey> {
        let place = self.slots.get(index as usize).filter(|place| place.value.is_some())?;
        Some(SlabKey { index, generation: place.generation })
    }

    /// Returns the number of slots, used or free: the index of every key is below.
    #[must_use]
    pub fn slot_count(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(NO_SLOT)
    }

    /// Returns the value of `key` for changes.
    pub fn get_mut(&mut self, key: SlabKey) -> Option<&mut T> {
        let place = self.slots.get_mut(key.index as usize)?;
        if place.generation == key.generation { place.value.as_mut() } else { None }
    }

    /// Removes and returns the value of `key`, which is stale afterwards.
    pub fn remove(&mut self, key: SlabKey) -> Option<T> {
        let place = self.slots.get_mut(key.index as usize)?;
        if place.generation != key.generation {
            return None;
        }
        let value = place.value.take()?;
        place.generation = place.generation.wrapping_add(1);
        place.next_free = self.free;
        self.free = key.index;
        self.len -= 1;
        Some(value)
    }

    /// Iterates over all values with their keys.
    pub fn iter(&self) -> impl Iterator<Item = (SlabKey, &T)> {
        (0_u32..).zip(&self.slots).filter_map(|(index, place)| {
            let key = SlabKey { index, generation: place.generation };
            place.value.as_ref().map(|value| (key, value))
        })
    }

    /// Iterates over all values for changes.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|place| place.value.as_mut())
    }

    /// Removes all values and passes each to `f`; every key is stale afterwards.
    pub fn drain(&mut self, mut f: impl FnMut(T)) {
        for index in 0..self.slots.len() {
            let Ok(place) = u32::try_from(index) else { continue };
            let key = SlabKey { index: place, generation: self.slots[index].generation };
            if let Some(value) = self.remove(key) {
                f(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_go_stale() {
        let mut slab = Slab::new();
        let a = slab.insert('a');
        let b = slab.insert('b');
        assert_eq!(slab.remove(a), Some('a'));
        let c = slab.insert('c');
        assert_eq!((slab.get(a), slab.get(b), slab.get(c)), (None, Some(&'b'), Some(&'c')));
        assert_eq!((slab.remove(a), slab.len()), (None, 2));
        assert_eq!(SlabKey::from_u64(c.to_u64()), c);
        assert!(slab.get(SlabKey::NONE).is_none());
        slab.drain(|_| ());
        assert!(slab.is_empty() && slab.get(b).is_none() && slab.get(c).is_none());
        slab.insert('d');
        assert_eq!(slab.iter().map(|(_, v)| *v).collect::<Vec<_>>(), ['d']);
    }
}
