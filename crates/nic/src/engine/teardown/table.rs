//! Values by connection tuple.
//!
//! The hash is keyed and candidates are compared by their full tuple, so different connections are
//! never confused. Used by the engine and by [`super::time_wait`]; callers must check that a tuple
//! is absent before inserting it.

use hashbrown::HashTable;
use tcp_rules::tuple::hash_tuple;
use wire::Tuple;

use structures::slab::{Slab, SlabKey};

/// Values by connection tuple.
#[derive(Debug)]
pub(super) struct TupleTable<T> {
    values: Slab<(Tuple, T)>,
    index: HashTable<SlabKey>,
    seed: u64,
}

impl<T> TupleTable<T> {
    /// Creates an empty table.
    pub(super) const fn new(seed: u64) -> Self {
        Self { values: Slab::new(), index: HashTable::new(), seed }
    }

    /// Number of connections.
    pub(super) const fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns whether the table is empty.
    pub(super) const fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Returns the key of a tuple.
    pub(super) fn find(&self, tuple: &Tuple) -> Option<SlabKey> {
        if self.values.is_empty() {
            return None;
        }
        let same = |&key: &SlabKey| self.values.get(key).is_some_and(|(other, _)| other == tuple);
        self.index.find(hash_tuple(self.seed, tuple), same).copied()
    }

    /// Inserts a connection that is not in the table.
    pub(super) fn insert(&mut self, tuple: Tuple, value: T) -> SlabKey {
        let key = self.values.insert((tuple, value));
        let (values, seed) = (&self.values, self.seed);
        let rehash =
            |&key: &SlabKey| values.get(key).map_or(0, |(other, _)| hash_tuple(seed, other));
        self.index.insert_unique(hash_tuple(seed, &tuple), key, rehash);
        key
    }

    /// Returns the connection with this key.
    pub(super) fn get(&self, key: SlabKey) -> Option<&(Tuple, T)> {
        self.values.get(key)
    }

    /// Returns the value with this key, mutably.
    pub(super) fn get_mut(&mut self, key: SlabKey) -> Option<&mut T> {
        self.values.get_mut(key).map(|(_, value)| value)
    }

    /// Returns the current key of a slab index; see [`SlabKey::index`].
    pub(super) fn key_at(&self, index: u32) -> Option<SlabKey> {
        self.values.key_at(index)
    }

    /// Upper bound of all keys' indices.
    pub(super) fn places(&self) -> u32 {
        self.values.slot_count()
    }

    /// Removes and returns the connection with this key.
    pub(super) fn remove(&mut self, key: SlabKey) -> Option<(Tuple, T)> {
        let (tuple, value) = self.values.remove(key)?;
        let hash = hash_tuple(self.seed, &tuple);
        if let Ok(found) = self.index.find_entry(hash, |&other| other == key) {
            found.remove();
        }
        Some((tuple, value))
    }

    /// Removes all connections.
    pub(super) fn clear(&mut self) {
        self.values.drain(drop);
        self.index.clear();
    }
}
