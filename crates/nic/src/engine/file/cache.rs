//! The block cache: blocks of files in memory, found by content, shared by all transmits that send
//! them, and evicted when memory is short.
//!
//! A block's name is its file's *version* and its index, so connections and file IDs that send the
//! same content share it, and changed content is another block. Several blocks with different pages
//! may have one name, because random reads take only the pages that they need. A block is immutable
//! once its read is complete. A namespace's version does not change with its content; an outdated
//! block is therefore *detached*, that is, it loses its name. Transmits that have pinned it keep
//! it, it is no longer found, and it is dropped after its last use.
//!
//! A block is kept by *pins* (pending transmits), *shares* (frames in flight, which own a reference
//! to the buffer), and *held* bytes (sent but not acknowledged, so a retransmission may need them).
//! Pinned and shared blocks are never evicted. The others are in one of two LRU lists: blocks
//! without held bytes are evicted first, then held ones. Each step is O(1).
//!
//! Called by the file engine. The cache does no I/O and knows neither transmits nor file IDs.
//! Invariant: after every call that may free memory, [`BlockCache::take_freed`] returns true.

use abi::aligned::{AlignedBuf, PAGE_BYTES};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use base::{internal_error, mix};
use hashbrown::HashTable;
use smallvec::SmallVec;

use super::buffers::BlockBufferPool;
use super::counters::FileCounters;
use super::waiters::{WaitList, Waiters};
use structures::slab::{Slab, SlabKey};

/// Blocks of a list that are examined per eviction. Shared blocks are skipped and moved to the
/// list's end.
const EVICTION_TRIES: usize = 16;

#[derive(Debug)]
enum BlockContent {
    Reading {
        /// The file from which the block is read.
        file: SlabKey,
        waiters: WaitList,
    },
    Ready(Arc<AlignedBuf>),
}

#[derive(Debug)]
struct CachedBlock {
    version: u64,
    index: u64,
    /// The pages of the block that are in memory, in bytes.
    range: Range<u32>,
    content: BlockContent,
    pins: u32,
    held_bytes: u64,
    /// True if the block was read ahead and has not been requested yet.
    read_ahead: bool,
    /// True if the block has lost its name.
    detached: bool,
    list: Option<EvictionList>,
    prev: SlabKey,
    next: SlabKey,
}

impl CachedBlock {
    /// Returns how many bytes of `range` of the file are in this block.
    fn overlap(&self, range: &Range<u64>, block_bytes: u64) -> u64 {
        let at = self.index.saturating_mul(block_bytes);
        let [start, end] = [self.range.start, self.range.end].map(|n| at.saturating_add(n.into()));
        end.min(range.end).saturating_sub(start.max(range.start))
    }
}

/// The lists of evictable blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EvictionList {
    Free,
    Held,
}

#[derive(Clone, Copy, Debug)]
struct LruList {
    head: SlabKey,
    tail: SlabKey,
}

const EMPTY_LIST: LruList = LruList { head: SlabKey::NONE, tail: SlabKey::NONE };

/// A block that is being read.
#[derive(Clone, Debug)]
pub(crate) struct BlockRead {
    pub(crate) version: u64,
    pub(crate) index: u64,
    /// The bytes of the block that are read, whole pages.
    pub(crate) range: Range<u32>,
    pub(crate) file: SlabKey,
}

/// The block cache.
#[derive(Debug)]
pub(crate) struct BlockCache {
    blocks: Slab<CachedBlock>,
    by_content: HashTable<SlabKey>,
    free: LruList,
    held: LruList,
    waiters: Waiters,
    buffers: BlockBufferPool,
    held_bytes: u64,
    /// True if memory may have been freed since [`BlockCache::take_freed`] was last called.
    freed: bool,
    seed: u64,
}

impl BlockCache {
    /// Creates an empty cache of up to `bytes_max` bytes, in blocks of up to `pages_max` pages.
    pub(crate) fn new(bytes_max: usize, pages_max: usize, seed: u64) -> Self {
        Self {
            blocks: Slab::new(),
            by_content: HashTable::new(),
            free: EMPTY_LIST,
            held: EMPTY_LIST,
            waiters: Waiters::new(),
            buffers: BlockBufferPool::new(bytes_max, pages_max),
            held_bytes: 0,
            freed: false,
            seed,
        }
    }

    /// Number of blocks in memory or being read.
    pub(crate) const fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Bytes of memory in use.
    pub(crate) const fn allocated_bytes(&self) -> usize {
        self.buffers.allocated_bytes()
    }

    /// Bytes sent and not acknowledged, over all blocks.
    pub(crate) const fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Returns whether [`Self::take_freed`] would return true.
    pub(crate) const fn has_freed(&self) -> bool {
        self.freed
    }

    /// Returns whether memory may have been freed since the last call.
    pub(crate) const fn take_freed(&mut self) -> bool {
        core::mem::replace(&mut self.freed, false)
    }

    /// Returns a block with bytes `range` of block `index`, in memory or being read.
    pub(crate) fn find(&self, version: u64, index: u64, range: &Range<u32>) -> Option<SlabKey> {
        let covers = |b: &CachedBlock| b.range.start <= range.start && range.end <= b.range.end;
        let same = |&key: &SlabKey| {
            let block = self.blocks.get(key);
            block.is_some_and(|b| b.index == index && b.version == version && covers(b))
        };
        self.by_content.find(mix(self.seed, version, index), same).copied()
    }

    /// Returns all blocks with this name.
    fn find_all(&self, version: u64, index: u64) -> SmallVec<[SlabKey; 4]> {
        let same = |key: &SlabKey| {
            self.blocks.get(*key).is_some_and(|b| b.index == index && b.version == version)
        };
        let all = self.by_content.iter_hash(mix(self.seed, version, index));
        all.copied().filter(same).collect()
    }

    /// Returns the offset in its block of the first byte of [`Self::content`].
    pub(crate) fn content_start(&self, key: SlabKey) -> u32 {
        self.blocks.get(key).map_or(0, |block| block.range.start)
    }

    /// Returns the content of a block that is in memory.
    pub(crate) fn content(&self, key: SlabKey) -> Option<&Arc<AlignedBuf>> {
        match &self.blocks.get(key)?.content {
            BlockContent::Ready(buf) => Some(buf),
            BlockContent::Reading { .. } => None,
        }
    }

    /// Returns the source of a block that is being read.
    pub(crate) fn reading(&self, key: SlabKey) -> Option<BlockRead> {
        let block = self.blocks.get(key)?;
        let BlockContent::Reading { file, .. } = block.content else { return None };
        let range = block.range.clone();
        Some(BlockRead { version: block.version, index: block.index, range, file })
    }

    /// Creates a block that is about to be read from `file`.
    pub(crate) fn begin_read(&mut self, reading: BlockRead, ahead: bool) -> SlabKey {
        let BlockRead { version, index, range, file } = reading;
        let key = self.blocks.insert(CachedBlock {
            version,
            index,
            range,
            content: BlockContent::Reading { file, waiters: WaitList::EMPTY },
            pins: 0,
            held_bytes: 0,
            read_ahead: ahead,
            detached: false,
            list: None,
            prev: SlabKey::NONE,
            next: SlabKey::NONE,
        });
        let (blocks, seed) = (&self.blocks, self.seed);
        let rehash = |&key: &SlabKey| blocks.get(key).map_or(0, |b| mix(seed, b.version, b.index));
        self.by_content.insert_unique(mix(seed, version, index), key, rehash);
        key
    }

    /// Adds a pending transmit to the waiters of a block that is being read.
    pub(crate) fn wait(&mut self, key: SlabKey, waiter: SlabKey) {
        if let Some(BlockContent::Reading { waiters, .. }) =
            self.blocks.get_mut(key).map(|b| &mut b.content)
        {
            self.waiters.push(waiters, waiter);
        }
    }

    /// Removes the list of waiters from a block, to be iterated with [`Self::next_waiter`].
    pub(crate) fn take_waiters(&mut self, key: SlabKey) -> WaitList {
        match self.blocks.get_mut(key).map(|b| &mut b.content) {
            Some(BlockContent::Reading { waiters, .. }) => {
                core::mem::replace(waiters, WaitList::EMPTY)
            }
            _ => WaitList::EMPTY,
        }
    }

    /// Removes and returns the first waiter of a list. Its key may be stale.
    pub(crate) fn next_waiter(&mut self, list: &mut WaitList) -> Option<SlabKey> {
        self.waiters.pop(list)
    }

    /// Completes the read of a block with valid content.
    pub(crate) fn fill(&mut self, key: SlabKey, buf: AlignedBuf) {
        self.freed = true;
        if let Some(block) = self.blocks.get_mut(key) {
            block.content = BlockContent::Ready(Arc::new(buf));
            self.touch(key);
        }
    }

    /// Removes a block whose read failed.
    pub(crate) fn discard(&mut self, key: SlabKey) {
        self.freed = true;
        self.drop_block(key);
    }

    /// Pins a block for a pending transmit.
    pub(crate) fn pin(&mut self, key: SlabKey) {
        if let Some(block) = self.blocks.get_mut(key) {
            block.pins += 1;
            self.unlink(key);
        }
    }

    /// Releases a pending transmit's pin.
    pub(crate) fn unpin(&mut self, key: SlabKey, counters: &mut FileCounters) {
        self.freed = true;
        match self.blocks.get_mut(key) {
            Some(block) if block.pins > 0 => {
                block.pins -= 1;
                self.touch(key);
            }
            _ => internal_error!(counters.nic_internal_errors, "a block that is not pinned"),
        }
    }

    /// Moves a block to the most recently used end of the list that it now belongs to. Drops it if
    /// it is detached and unused.
    pub(crate) fn touch(&mut self, key: SlabKey) {
        self.unlink(key);
        let Some(block) = self.blocks.get_mut(key) else { return };
        let BlockContent::Ready(buf) = &block.content else { return };
        if block.pins > 0 {
            return;
        }
        if block.detached && Arc::strong_count(buf) == 1 {
            return self.drop_block(key);
        }
        // A detached block that frames share counts as memory until they have left and it is
        // evicted.
        let which = if block.held_bytes > 0 { EvictionList::Held } else { EvictionList::Free };
        let list = match which {
            EvictionList::Free => &mut self.free,
            EvictionList::Held => &mut self.held,
        };
        let prev = core::mem::replace(&mut list.tail, key);
        block.list = Some(which);
        block.prev = prev;
        match self.blocks.get_mut(prev) {
            Some(before) => before.next = key,
            None => self.list(which).head = key,
        }
    }

    /// Records a request for a block. Returns whether this is the first one after a read-ahead.
    pub(crate) fn mark_requested(&mut self, key: SlabKey) -> bool {
        self.blocks.get_mut(key).is_some_and(|b| core::mem::take(&mut b.read_ahead))
    }

    /// Adds `bytes` held bytes to a block: they have been sent for the first time.
    pub(crate) fn hold(&mut self, key: SlabKey, bytes: u32) {
        if let Some(block) = self.blocks.get_mut(key).filter(|block| !block.detached) {
            block.held_bytes += u64::from(bytes);
            self.held_bytes += u64::from(bytes);
            self.touch(key);
        }
    }

    /// Releases the held bytes `from..to` of the file of `version`.
    pub(crate) fn acknowledge(&mut self, version: u64, from: u64, to: u64, block_bytes: u64) {
        self.freed = true;
        if from >= to {
            return;
        }
        let (first, last) = (from / block_bytes, (to - 1) / block_bytes);
        // An acknowledgment of a huge range costs at most a walk over the existing blocks.
        if last - first >= self.blocks.len() as u64 {
            let within =
                |b: &CachedBlock| b.version == version && (first..=last).contains(&b.index);
            let keys: Vec<SlabKey> =
                self.blocks.iter().filter(|(_, b)| within(b)).map(|(key, _)| key).collect();
            for key in keys {
                self.unhold(key, from..to, block_bytes);
            }
        } else {
            for index in first..=last {
                for key in self.find_all(version, index) {
                    self.unhold(key, from..to, block_bytes);
                }
            }
        }
    }

    /// Detaches the blocks of bytes `from..to` of the file of `version`, which are outdated.
    pub(crate) fn invalidate(
        &mut self,
        version: u64,
        from: u64,
        to: u64,
        block_bytes: u64,
        counters: &mut FileCounters,
    ) {
        self.freed = true;
        if from >= to {
            return;
        }
        let (first, last) = (from / block_bytes, (to - 1) / block_bytes);
        // As above, a huge range costs at most a walk over the existing blocks.
        let keys: SmallVec<[SlabKey; 4]> = if last - first >= self.blocks.len() as u64 {
            let within =
                |b: &CachedBlock| b.version == version && (first..=last).contains(&b.index);
            self.blocks.iter().filter(|(_, b)| within(b) && !b.detached).map(|b| b.0).collect()
        } else {
            (first..=last).flat_map(|index| self.find_all(version, index)).collect()
        };
        for key in keys {
            let block = self.blocks.get(key);
            if block.is_none_or(|b| b.overlap(&(from..to), block_bytes) == 0) {
                continue;
            }
            counters.file_invalidated_blocks += 1;
            self.detach(key);
            counters.file_detached_blocks += u64::from(self.blocks.get(key).is_some());
        }
    }

    /// Removes a block's name, and the block itself if it is unused.
    fn detach(&mut self, key: SlabKey) {
        self.unname(key);
        if let Some(block) = self.blocks.get_mut(key) {
            block.detached = true;
            self.held_bytes -= core::mem::take(&mut block.held_bytes);
            self.touch(key);
        }
    }

    /// Returns a buffer of `pages` pages for a read, evicting blocks if necessary. A read-ahead
    /// (`read_ahead`) evicts neither held blocks nor read-ahead blocks that have not been requested
    /// yet.
    pub(crate) fn take_for_disk(
        &mut self,
        pages: usize,
        ahead: bool,
        counters: &mut FileCounters,
    ) -> Option<AlignedBuf> {
        loop {
            if let Some(buf) = self.buffers.take_for_disk(pages) {
                return Some(buf);
            }
            let evicted = self.evict(EvictionList::Free, ahead, counters)
                || (!ahead && self.evict(EvictionList::Held, ahead, counters));
            if !evicted {
                return None;
            }
        }
    }

    /// Accepts a buffer back from the disk. Returns `None` if no such amount of memory was given to
    /// it.
    pub(crate) fn accept_from_disk(&mut self, buf: AlignedBuf) -> Option<AlignedBuf> {
        self.buffers.accept_from_disk(buf)
    }

    /// Makes a buffer spare whose content is not used.
    pub(crate) fn make_spare(&mut self, buf: AlignedBuf) {
        self.freed = true;
        self.buffers.make_spare(buf);
    }

    /// Removes all blocks. Buffers in use by the disk are still expected back.
    pub(crate) fn clear(&mut self) {
        let mut contents = Vec::new();
        self.blocks.drain(|block| contents.push(block.content));
        for content in contents {
            self.reuse(content);
        }
        self.by_content.clear();
        self.waiters.clear();
        (self.free, self.held) = (EMPTY_LIST, EMPTY_LIST);
        self.held_bytes = 0;
    }

    /// Releases held bytes of a block in bytes `acked` of its file. If another block has some of
    /// these bytes, they may be released twice; then a block is evicted too early, and read again.
    fn unhold(&mut self, key: SlabKey, acked: Range<u64>, block_bytes: u64) {
        let Some(block) = self.blocks.get_mut(key) else { return };
        let bytes = block.overlap(&acked, block_bytes).min(block.held_bytes);
        block.held_bytes -= bytes;
        self.held_bytes -= bytes;
        if bytes > 0 && block.held_bytes == 0 && block.list.is_some() {
            self.touch(key);
        }
    }

    /// Evicts the least recently used block of a list that no frame shares. Returns whether there
    /// was one.
    fn evict(&mut self, which: EvictionList, ahead: bool, counters: &mut FileCounters) -> bool {
        for _ in 0..EVICTION_TRIES {
            let key = self.list(which).head;
            let Some(block) = self.blocks.get(key) else { return false };
            let BlockContent::Ready(buf) = &block.content else {
                internal_error!(
                    counters.nic_internal_errors,
                    "a block that is read may be evicted"
                );
                return false;
            };
            if ahead && block.read_ahead {
                return false;
            }
            if Arc::strong_count(buf) > 1 {
                self.touch(key);
                continue;
            }
            counters.file_evicted += 1;
            counters.file_held_evicted += u64::from(block.held_bytes > 0);
            counters.file_read_ahead_wasted += u64::from(block.read_ahead);
            self.drop_block(key);
            return true;
        }
        false
    }

    fn drop_block(&mut self, key: SlabKey) {
        if let Some(content) = self.remove(key) {
            self.reuse(content);
        }
    }

    fn remove(&mut self, key: SlabKey) -> Option<BlockContent> {
        self.unlink(key);
        self.unname(key);
        let block = self.blocks.remove(key)?;
        self.held_bytes -= block.held_bytes;
        Some(block.content)
    }

    fn unname(&mut self, key: SlabKey) {
        let Some(block) = self.blocks.get(key) else { return };
        let hash = mix(self.seed, block.version, block.index);
        if let Ok(found) = self.by_content.find_entry(hash, |&k| k == key) {
            found.remove();
        }
    }

    fn reuse(&mut self, content: BlockContent) {
        let BlockContent::Ready(buf) = content else { return };
        let bytes = buf.len();
        match Arc::try_unwrap(buf) {
            Ok(buf) => self.buffers.make_spare(buf),
            Err(_shared) => self.buffers.forget(bytes),
        }
    }

    fn unlink(&mut self, key: SlabKey) {
        let Some(block) = self.blocks.get_mut(key) else { return };
        let Some(which) = block.list.take() else { return };
        let prev = core::mem::replace(&mut block.prev, SlabKey::NONE);
        let next = core::mem::replace(&mut block.next, SlabKey::NONE);
        match self.blocks.get_mut(prev) {
            Some(before) => before.next = next,
            None => self.list(which).head = next,
        }
        match self.blocks.get_mut(next) {
            Some(after) => after.prev = prev,
            None => self.list(which).tail = prev,
        }
    }

    const fn list(&mut self, which: EvictionList) -> &mut LruList {
        match which {
            EvictionList::Free => &mut self.free,
            EvictionList::Held => &mut self.held,
        }
    }
}

/// Number of pages for `bytes` bytes.
pub(crate) const fn pages(bytes: usize) -> usize {
    bytes.div_ceil(PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const PAGE: Range<u32> = 0..4096;

    fn cache(blocks: usize) -> BlockCache {
        BlockCache::new(blocks * PAGE_BYTES, 1, 1)
    }

    /// Reads a block of one page. Returns `None` if there is no memory.
    fn read(cache: &mut BlockCache, index: u64, ahead: bool) -> Option<SlabKey> {
        let mut counters = FileCounters::default();
        let buf = cache.take_for_disk(1, ahead, &mut counters)?;
        let key = cache
            .begin_read(BlockRead { version: 9, index, range: PAGE, file: SlabKey::NONE }, ahead);
        let buf = cache.accept_from_disk(buf).unwrap();
        cache.fill(key, buf);
        Some(key)
    }

    fn present(cache: &BlockCache) -> Vec<u64> {
        (0..20).filter(|&i| cache.find(9, i, &PAGE).is_some()).collect()
    }

    #[test]
    fn the_least_recently_used_is_evicted_first() {
        let mut cache = cache(3);
        let zero = read(&mut cache, 0, false).unwrap();
        read(&mut cache, 1, false);
        read(&mut cache, 2, false);
        cache.touch(zero);
        read(&mut cache, 3, false);
        assert_eq!(present(&cache), [0, 2, 3]);
    }

    #[test]
    fn held_blocks_are_evicted_last_and_pinned_ones_never() {
        let mut cache = cache(3);
        let keys: Vec<SlabKey> = (0..3).map(|i| read(&mut cache, i, false).unwrap()).collect();
        cache.hold(keys[0], 4096);
        cache.pin(keys[2]);
        read(&mut cache, 3, false);
        assert_eq!(present(&cache), [0, 2, 3], "the free one");
        cache.hold(cache.find(9, 3, &PAGE).unwrap(), 1);
        assert!(read(&mut cache, 4, true).is_none(), "nothing held goes for reading ahead");
        read(&mut cache, 4, false);
        assert_eq!((present(&cache), cache.held_bytes()), (vec![2, 3, 4], 1));
        cache.pin(cache.find(9, 3, &PAGE).unwrap());
        cache.pin(cache.find(9, 4, &PAGE).unwrap());
        assert!(read(&mut cache, 5, false).is_none(), "all pinned");
        cache.take_freed();
        cache.unpin(keys[2], &mut FileCounters::default());
        assert!(cache.take_freed() && !cache.take_freed());
        assert!(read(&mut cache, 5, false).is_some());
    }

    #[test]
    fn shared_blocks_are_passed_over() {
        let mut cache = cache(2);
        let zero = read(&mut cache, 0, false).unwrap();
        read(&mut cache, 1, false);
        let on_its_way = Arc::clone(cache.content(zero).unwrap());
        read(&mut cache, 2, false);
        assert_eq!(present(&cache), [0, 2]);
        cache.pin(cache.find(9, 2, &PAGE).unwrap());
        assert!(read(&mut cache, 3, false).is_none());
        drop(on_its_way);
        assert!(read(&mut cache, 3, false).is_some());
        assert_eq!(cache.allocated_bytes(), 2 * PAGE_BYTES);
    }

    #[test]
    fn read_ahead_does_not_evict_read_ahead() {
        let mut cache = cache(2);
        let zero = read(&mut cache, 0, true).unwrap();
        read(&mut cache, 1, true);
        assert!(read(&mut cache, 2, true).is_none());
        assert!(cache.mark_requested(zero) && !cache.mark_requested(zero));
        assert!(read(&mut cache, 2, true).is_some());
        assert_eq!(present(&cache), [1, 2]);
    }

    #[test]
    fn acknowledgments_overlap_blocks() {
        let page = PAGE_BYTES as u64;
        let mut cache = cache(3);
        let keys: Vec<SlabKey> = (0..3).map(|i| read(&mut cache, i, false).unwrap()).collect();
        for &key in &keys {
            cache.hold(key, 4096);
        }
        cache.acknowledge(9, page / 2, page + 1, page);
        assert_eq!(cache.held_bytes(), 3 * page - page / 2 - 1);
        cache.acknowledge(9, 0, u64::MAX, page);
        assert_eq!(cache.held_bytes(), 0);
        cache.acknowledge(9, 0, page, page);
        cache.acknowledge(9, 5, 5, page);
        assert_eq!(cache.held_bytes(), 0, "acknowledged twice");
        assert_eq!(cache.held.head, SlabKey::NONE, "all free");
    }
}
