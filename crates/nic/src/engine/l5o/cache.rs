//! Model of a NIC's context cache: contexts live in host memory, recently used ones in the NIC.
//!
//! Autonomous NIC Offloads, section 6.5: 4 MiB of NIC memory and 208 bytes per flow hold some
//! twenty thousand flows; beyond, contexts are fetched and written back over PCIe. The model only
//! counts; it changes no behavior. Contexts are identified by slab index. All operations take
//! constant time: the LRU order is a doubly linked list in one array.

use alloc::vec::Vec;

use super::counters::L5oCounters;

/// Sentinel index: no context.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct ContextLruLink {
    newer: u32,
    older: u32,
    resident: bool,
}

/// An LRU cache of contexts.
#[derive(Debug)]
pub(super) struct ContextCache {
    links: Vec<ContextLruLink>,
    newest: u32,
    oldest: u32,
    resident: usize,
    capacity: usize,
    context_bytes: u64,
}

impl ContextCache {
    /// Creates an empty cache of `bytes` for contexts of `context_bytes` each.
    pub(super) fn new(bytes: u32, context_bytes: u32) -> Self {
        let context_bytes = context_bytes.max(1);
        let capacity = (bytes / context_bytes).max(1) as usize;
        let context_bytes = u64::from(context_bytes);
        Self { links: Vec::new(), newest: NONE, oldest: NONE, resident: 0, capacity, context_bytes }
    }

    /// Adds a new context to the cache.
    pub(super) fn insert(&mut self, index: u32, counters: &mut L5oCounters) {
        let absent = ContextLruLink { newer: NONE, older: NONE, resident: false };
        if self.links.len() <= index as usize {
            self.links.resize(index as usize + 1, absent);
        }
        self.remove(index);
        self.enter(index, counters);
    }

    /// Records a use of a context.
    pub(super) fn touch(&mut self, index: u32, counters: &mut L5oCounters) {
        if index == self.newest || self.links.get(index as usize).is_some_and(|l| l.resident) {
            counters.l5o_cache_hits += 1;
            if index != self.newest {
                self.unlink(index);
                self.link(index);
            }
        } else {
            counters.l5o_cache_misses += 1;
            counters.dma_context_bytes += self.context_bytes;
            self.enter(index, counters);
        }
    }

    /// Removes a context.
    pub(super) fn remove(&mut self, index: u32) {
        if self.links.get(index as usize).is_some_and(|link| link.resident) {
            self.unlink(index);
            self.resident -= 1;
        }
    }

    /// Empties the cache.
    pub(super) fn clear(&mut self) {
        self.links.clear();
        (self.newest, self.oldest, self.resident) = (NONE, NONE, 0);
    }

    fn enter(&mut self, index: u32, counters: &mut L5oCounters) {
        if self.resident == self.capacity {
            let evicted = self.oldest;
            self.remove(evicted);
            counters.l5o_cache_evictions += 1;
            // The evicted context's dynamic state is dirty and is written back.
            counters.dma_context_bytes += self.context_bytes;
        }
        self.link(index);
        self.resident += 1;
    }

    fn link(&mut self, index: u32) {
        let older = core::mem::replace(&mut self.newest, index);
        match self.links.get_mut(older as usize) {
            Some(link) => link.newer = index,
            None => self.oldest = index,
        }
        if let Some(link) = self.links.get_mut(index as usize) {
            *link = ContextLruLink { newer: NONE, older, resident: true };
        }
    }

    fn unlink(&mut self, index: u32) {
        let Some(link) = self.links.get_mut(index as usize) else { return };
        let ContextLruLink { newer, older, .. } = *link;
        link.resident = false;
        match self.links.get_mut(newer as usize) {
            Some(link) => link.older = older,
            None => self.newest = older,
        }
        match self.links.get_mut(older as usize) {
            Some(link) => link.newer = newer,
            None => self.oldest = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Prng;

    #[test]
    fn the_least_recently_used_is_evicted() {
        let mut counters = L5oCounters::default();
        let mut cache = ContextCache::new(2 * 208 + 100, 208);
        cache.insert(0, &mut counters);
        cache.insert(1, &mut counters);
        cache.touch(0, &mut counters);
        cache.touch(0, &mut counters);
        assert_eq!((counters.l5o_cache_hits, counters.l5o_cache_misses), (2, 0));
        cache.insert(2, &mut counters);
        assert_eq!((counters.l5o_cache_evictions, counters.dma_context_bytes), (1, 208));
        cache.touch(0, &mut counters);
        cache.touch(1, &mut counters);
        assert_eq!((counters.l5o_cache_hits, counters.l5o_cache_misses), (3, 1));
        assert_eq!((counters.l5o_cache_evictions, counters.dma_context_bytes), (2, 3 * 208));
        cache.remove(1);
        cache.insert(3, &mut counters);
        assert_eq!(counters.l5o_cache_evictions, 2, "there was room");
    }

    #[test]
    fn agrees_with_a_list() {
        let mut prng = Prng::new(7);
        let (mut counters, mut cache) = (L5oCounters::default(), ContextCache::new(80, 10));
        let mut list: Vec<u32> = Vec::new();
        let mut hits = 0;
        for index in 0..20 {
            cache.insert(index, &mut counters);
            list.insert(0, index);
            list.truncate(8);
        }
        for _ in 0..5000 {
            let index = u32::try_from(prng.next_u64() % 20).unwrap();
            let found = list.iter().position(|&other| other == index);
            if prng.next_u64() % 16 == 0 {
                cache.remove(index);
                found.map(|at| list.remove(at));
                continue;
            }
            hits += u64::from(found.is_some());
            found.map(|at| list.remove(at));
            list.insert(0, index);
            list.truncate(8);
            cache.touch(index, &mut counters);
            assert_eq!((counters.l5o_cache_hits, cache.resident), (hits, list.len()));
        }
    }
}
