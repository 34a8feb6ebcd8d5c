//! Storage with keys that go stale: the one container behind waiting transmits, jobs, files and
//! blocks.
//!
//! A [`Key`] names a value until the value is removed; afterwards it names nothing, even where its
//! place is used again. So lists may keep keys of things that are gone (a cancelled waiter, a disk
//! request from before a reset) and find out when they look. Places are reused, so that a steady
//! state does not allocate. [`mix`] hashes for the tables that index a slab.

use alloc::vec::Vec;
use core::net::IpAddr;

use wire::Tuple;

/// End of the list of free places.
const NO_PLACE: u32 = u32::MAX;

/// Name of a value in a [`Slab`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    /// Names nothing in any slab.
    pub(crate) const NONE: Self = Self { index: NO_PLACE, generation: 0 };

    /// Which place it names, whatever is there now.
    pub(crate) const fn index(self) -> u32 {
        self.index
    }

    /// The key as a number, for a request that leaves the device.
    pub(crate) const fn to_u64(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    /// The key from a number that came back; hostile numbers name nothing.
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of the number")]
    pub(crate) const fn from_u64(number: u64) -> Self {
        Self { index: number as u32, generation: (number >> 32) as u32 }
    }
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    next_free: u32,
    value: Option<T>,
}

/// Values by key.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<Place<T>>,
    free: u32,
    len: usize,
}

impl<T> Slab<T> {
    /// Nothing in it.
    pub(crate) const fn new() -> Self {
        Self { places: Vec::new(), free: NO_PLACE, len: 0 }
    }

    /// Values in it.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is in it.
    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Stores a value and names it. Callers bound the number of values far below 2^32.
    pub(crate) fn insert(&mut self, value: T) -> Key {
        self.len += 1;
        if let Some(place) = self.places.get_mut(self.free as usize) {
            let key = Key { index: self.free, generation: place.generation };
            self.free = place.next_free;
            place.value = Some(value);
            return key;
        }
        let index = u32::try_from(self.places.len()).unwrap_or(NO_PLACE);
        assert!(index != NO_PLACE, "every user of a slab has a limit below 2^32");
        self.places.push(Place { generation: 0, next_free: NO_PLACE, value: Some(value) });
        Key { index, generation: 0 }
    }

    /// The value that `key` names.
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let place = self.places.get(key.index as usize)?;
        if place.generation == key.generation { place.value.as_ref() } else { None }
    }

    /// The key of the value at a place, if there is one: for who may keep no more than the place.
    pub(crate) fn key_at(&self, index: u32) -> Option<Key> {
        let place = self.places.get(index as usize).filter(|place| place.value.is_some())?;
        Some(Key { index, generation: place.generation })
    }

    /// Places that there are, used or free: every key's index is below.
    pub(crate) fn places(&self) -> u32 {
        u32::try_from(self.places.len()).unwrap_or(NO_PLACE)
    }

    /// The value that `key` names, to change it.
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let place = self.places.get_mut(key.index as usize)?;
        if place.generation == key.generation { place.value.as_mut() } else { None }
    }

    /// Takes the value that `key` names; the key is stale from then on.
    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let place = self.places.get_mut(key.index as usize)?;
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

    /// All values and their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        (0_u32..).zip(&self.places).filter_map(|(index, place)| {
            let key = Key { index, generation: place.generation };
            place.value.as_ref().map(|value| (key, value))
        })
    }

    /// All values, to change them.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().filter_map(|place| place.value.as_mut())
    }

    /// Takes all values out; every key is stale afterwards.
    pub(crate) fn drain(&mut self, mut f: impl FnMut(T)) {
        for index in 0..self.places.len() {
            let Ok(place) = u32::try_from(index) else { continue };
            let key = Key { index: place, generation: self.places[index].generation };
            if let Some(value) = self.remove(key) {
                f(value);
            }
        }
    }
}

/// A hash of two words under a seed: a folded 64-by-64 multiplication, twice.
pub(crate) const fn mix(seed: u64, a: u64, b: u64) -> u64 {
    const fn fold(x: u64, y: u64) -> u64 {
        let product = x as u128 * y as u128;
        #[expect(clippy::cast_possible_truncation, reason = "the two halves of the product")]
        let halves = (product as u64, (product >> 64) as u64);
        halves.0 ^ halves.1
    }
    let first = fold(a ^ seed, 0x9e37_79b9_7f4a_7c15);
    fold(first ^ b, seed | 0x2545_f491_4f6c_dd1d)
}

/// A hash of a connection under a seed: for tables that are bounded, so that nobody outside can
/// choose what collides.
pub(crate) fn hash_tuple(seed: u64, tuple: &Tuple) -> u64 {
    let ports = u64::from(tuple.local.port) << 16 | u64::from(tuple.remote.port);
    match (tuple.local.addr, tuple.remote.addr) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => {
            mix(seed, u64::from(u32::from(local)) << 32 | u64::from(u32::from(remote)), ports)
        }
        (local, remote) => {
            let halves = |addr: IpAddr| {
                let bits = match addr {
                    IpAddr::V4(v4) => u32::from(v4).into(),
                    IpAddr::V6(v6) => u128::from(v6),
                };
                #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
                let halves = ((bits >> 64) as u64, bits as u64);
                halves
            };
            let ((l1, l0), (r1, r0)) = (halves(local), halves(remote));
            mix(mix(mix(seed, l1, l0), r1, r0), seed, ports)
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
        assert_eq!(Key::from_u64(c.to_u64()), c);
        assert!(slab.get(Key::NONE).is_none());
        slab.drain(|_| ());
        assert!(slab.is_empty() && slab.get(b).is_none() && slab.get(c).is_none());
        slab.insert('d');
        assert_eq!(slab.iter().map(|(_, v)| *v).collect::<Vec<_>>(), ['d']);
    }

    #[test]
    fn hashes_spread() {
        // 64 buckets, 4096 neighbouring keys: none empty, none with four times its share.
        let mut buckets = [0; 64];
        for flow in 0..4096 {
            buckets[usize::try_from(mix(7, 0, flow) % 64).unwrap()] += 1;
        }
        assert!(buckets.iter().all(|&n| n > 0 && n < 256), "{buckets:?}");
    }
}
