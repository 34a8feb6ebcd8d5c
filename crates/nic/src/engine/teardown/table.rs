//! Values by the full tuple of their connection.
//!
//! The hash is keyed, and what it finds is compared whole: two peers that differ in one bit of an
//! address are two connections, whatever the table's size. Called by the engine and by
//! [`super::time_wait`]; who inserts looks first.

use hashbrown::HashTable;
use tcp_rules::tuple::hash_tuple;
use wire::Tuple;

use structures::slab::{Key, Slab};

/// The table.
#[derive(Debug)]
pub(super) struct Table<T> {
    values: Slab<(Tuple, T)>,
    index: HashTable<Key>,
    seed: u64,
}

impl<T> Table<T> {
    /// Nothing in it.
    pub(super) const fn new(seed: u64) -> Self {
        Self { values: Slab::new(), index: HashTable::new(), seed }
    }

    /// Connections in it.
    pub(super) const fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are none.
    pub(super) const fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The connection of a tuple.
    pub(super) fn find(&self, tuple: &Tuple) -> Option<Key> {
        if self.values.is_empty() {
            return None;
        }
        let same = |&key: &Key| self.values.get(key).is_some_and(|(other, _)| other == tuple);
        self.index.find(hash_tuple(self.seed, tuple), same).copied()
    }

    /// Stores the value of a connection that is not in the table.
    pub(super) fn insert(&mut self, tuple: Tuple, value: T) -> Key {
        let key = self.values.insert((tuple, value));
        let (values, seed) = (&self.values, self.seed);
        let rehash = |&key: &Key| values.get(key).map_or(0, |(other, _)| hash_tuple(seed, other));
        self.index.insert_unique(hash_tuple(seed, &tuple), key, rehash);
        key
    }

    /// What `key` names.
    pub(super) fn get(&self, key: Key) -> Option<&(Tuple, T)> {
        self.values.get(key)
    }

    /// What `key` names, to change it.
    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.values.get_mut(key).map(|(_, value)| value)
    }

    /// The key of what is at a place: see [`Key::index`].
    pub(super) fn key_at(&self, index: u32) -> Option<Key> {
        self.values.key_at(index)
    }

    /// Places that there are: every key's index is below.
    pub(super) fn places(&self) -> u32 {
        self.values.places()
    }

    /// Takes what `key` names.
    pub(super) fn remove(&mut self, key: Key) -> Option<(Tuple, T)> {
        let (tuple, value) = self.values.remove(key)?;
        let hash = hash_tuple(self.seed, &tuple);
        if let Ok(found) = self.index.find_entry(hash, |&other| other == key) {
            found.remove();
        }
        Some((tuple, value))
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.values.drain(drop);
        self.index.clear();
    }
}
