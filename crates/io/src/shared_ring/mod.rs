//! Rings of descriptors between two processes that do not trust each other.
//!
//! The counterpart of [`abi::ring`] for descriptors ([`abi::layout`]) instead of values: one
//! producer, one consumer, no locks, and a system call only to wake a consumer that sleeps. A ring
//! is a circle of bytes. Each descriptor has its length in front (32 bits) and begins at a multiple
//! of eight bytes; it may continue at the start of the circle. The two indices count bytes modulo
//! 2^32. `docs/descriptors.md` has the layout.
//!
//! A ring is larger than the caches of a core, because the longest descriptors are. So that short
//! ones do not travel through all of it, the producer *rewinds* an empty ring: the next descriptor
//! is at the start of the circle again, whose lines are still in the cache. It publishes the index
//! that the start has (`base`) before the first descriptor that lies there. While a descriptor
//! waits, the base does not change, so the consumer reads it once for each batch that it finds.
//!
//! Invariants, whatever the other process writes:
//! - An index of the other process is read once and checked before use; our own index is read from
//!   private memory only.
//! - A descriptor is copied out before it is examined, so that it cannot change meanwhile.
//! - No access leaves the ring, and a call ends after at most one descriptor.
//!
//! After a [`PeerFault`] the ring is of no use: the caller ends the connection to the process. A
//! ring neither wakes nor waits itself: [`SharedRingProducer::publish`] returns whether the caller
//! has to signal the consumer's eventfd ([`crate::notify::Notifier`]).

mod memory;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering, fence};

use abi::layout::{DESCRIPTOR_BYTES_MAX, may_hold_keys};

use memory::{ASLEEP_AT, BASE_AT, HEAD_AT, TAIL_AT};
pub use memory::{CAPACITY_MAX, CAPACITY_MIN, SharedRingMemory};

pub use crate::sealed_file::SharedMemoryError;

/// Bytes of the length in front of a descriptor.
const LENGTH_BYTES: u32 = 4;
/// Alignment of descriptors.
const WORD_BYTES: u32 = 8;
/// [`WORD_BYTES`] as a length.
const WORD: usize = WORD_BYTES as usize;
/// Bytes from the start of the circle after which the producer rewinds: half of a small L1 cache.
const REWIND_BYTES: u32 = 16 << 10;
/// Bytes between two attempts to rewind, each of which reads the consumer's index.
const REWIND_RETRY_BYTES: u32 = 4 << 10;

/// A violation of the ring's rules by the other process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerFault {
    /// An index of the other process lies outside of the ring, or is not a multiple of eight.
    #[error("an index outside of the ring")]
    BadIndex,
    /// A descriptor is empty, or longer than the bytes that were published or than
    /// [`DESCRIPTOR_BYTES_MAX`].
    #[error("a descriptor of impossible length")]
    BadLength,
}

/// Result of [`SharedRingProducer::push`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingPush {
    /// The descriptor is in the ring; [`SharedRingProducer::publish`] makes it visible.
    Written,
    /// There is no room at the moment.
    Full,
    /// The descriptor is empty or longer than the ring.
    DoesNotFit,
}

/// The sending end of a ring.
#[derive(Debug)]
pub struct SharedRingProducer {
    memory: SharedRingMemory,
    /// Index after the last descriptor written.
    tail: u32,
    published: u32,
    head_seen: u32,
    /// Index of the start of the circle.
    base: u32,
    /// Index at the last attempt to rewind, and bytes from there to the next one.
    rewind_tried: u32,
    rewind_after: u32,
}

/// The receiving end of a ring.
#[derive(Debug)]
pub struct SharedRingConsumer {
    memory: SharedRingMemory,
    /// Index of the next descriptor.
    head: u32,
    tail_seen: u32,
    /// Index of the start of the circle, for the descriptors before `tail_seen`.
    base: u32,
    /// The producer is gone: the descriptors before `tail_seen` are the last ones.
    is_finished: bool,
}

impl SharedRingProducer {
    /// Creates the sending end of a new ring.
    #[must_use]
    pub const fn new(memory: SharedRingMemory) -> Self {
        let (tail, published, head_seen, base) = (0, 0, 0, 0);
        let (rewind_tried, rewind_after) = (0, REWIND_BYTES);
        Self { memory, tail, published, head_seen, base, rewind_tried, rewind_after }
    }

    /// Writes a descriptor.
    ///
    /// # Errors
    /// If the consumer's index is invalid.
    pub fn push(&mut self, descriptor: &[u8]) -> Result<RingPush, PeerFault> {
        let Some(bytes) = occupied(descriptor.len()).filter(|&n| n <= self.memory.capacity())
        else {
            return Ok(RingPush::DoesNotFit);
        };
        if self.tail.wrapping_sub(self.rewind_tried) >= self.rewind_after {
            self.rewind_if_empty()?;
        }
        if !self.has_room(bytes)? {
            return Ok(RingPush::Full);
        }
        write(self.memory.words(), self.tail.wrapping_sub(self.base), descriptor);
        self.tail = self.tail.wrapping_add(bytes);
        Ok(RingPush::Written)
    }

    /// Returns whether there is room for the longest descriptor.
    ///
    /// # Errors
    /// If the consumer's index is invalid.
    pub fn has_room_for_any(&mut self) -> Result<bool, PeerFault> {
        occupied(DESCRIPTOR_BYTES_MAX).map_or(Ok(false), |bytes| self.has_room(bytes))
    }

    fn has_room(&mut self, bytes: u32) -> Result<bool, PeerFault> {
        if self.free() < bytes {
            self.read_head()?;
        }
        Ok(self.free() >= bytes)
    }

    /// Moves the next descriptor to the start of the circle if no descriptor waits.
    #[cold]
    fn rewind_if_empty(&mut self) -> Result<(), PeerFault> {
        self.read_head()?;
        (self.rewind_tried, self.rewind_after) = (self.tail, REWIND_RETRY_BYTES);
        if self.head_seen == self.tail {
            (self.base, self.rewind_after) = (self.tail, REWIND_BYTES);
            // Publishing the next tail orders this.
            self.memory.control(BASE_AT).store(self.base, Ordering::Relaxed);
        }
        Ok(())
    }

    fn read_head(&mut self) -> Result<(), PeerFault> {
        let head = self.memory.control(HEAD_AT).load(Ordering::Acquire);
        if self.tail.wrapping_sub(head) > self.tail.wrapping_sub(self.head_seen)
            || head % WORD_BYTES != 0
        {
            return Err(PeerFault::BadIndex);
        }
        self.head_seen = head;
        Ok(())
    }

    /// Makes the written descriptors visible to the consumer. Returns whether the caller has to
    /// wake it.
    #[must_use]
    pub fn publish(&mut self) -> bool {
        if self.published == self.tail {
            return false;
        }
        self.published = self.tail;
        self.memory.control(TAIL_AT).store(self.tail, Ordering::Release);
        // Orders the index before the load of the flag; pairs with the fence in `prepare_sleep`.
        fence(Ordering::SeqCst);
        let asleep = self.memory.control(ASLEEP_AT);
        asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::Relaxed) != 0
    }

    fn free(&self) -> u32 {
        self.memory.capacity() - self.tail.wrapping_sub(self.head_seen)
    }
}

impl SharedRingConsumer {
    /// Creates the receiving end of a new ring.
    #[must_use]
    pub const fn new(memory: SharedRingMemory) -> Self {
        Self { memory, head: 0, tail_seen: 0, base: 0, is_finished: false }
    }

    /// Moves the oldest descriptor to `out`, whose content it replaces. Returns false if there is
    /// none. No key stays in the ring; the caller clears `out` ([`abi::layout::clear_keys`]).
    ///
    /// # Errors
    /// If the producer's index or the length of the descriptor is invalid.
    pub fn pop(&mut self, out: &mut Vec<u8>) -> Result<bool, PeerFault> {
        if self.is_empty()? {
            return Ok(false);
        }
        let words = self.memory.words();
        let position = self.head.wrapping_sub(self.base);
        let first = word(words, position).load(Ordering::Relaxed);
        // The low half, in the byte order of the layout.
        let [a, b, c, d, ..] = first.to_le_bytes();
        let len = u32::from_le_bytes([a, b, c, d]) as usize;
        let there = self.tail_seen.wrapping_sub(self.head);
        let Some(bytes) = occupied(len).filter(|&bytes| bytes <= there) else {
            return Err(PeerFault::BadLength);
        };
        read(words, position, first, len, out);
        if may_hold_keys(out) {
            (0..bytes / WORD_BYTES).for_each(|n| {
                let position = position.wrapping_add(n * WORD_BYTES);
                word(words, position).store(0, Ordering::Relaxed);
            });
        }
        self.head = self.head.wrapping_add(bytes);
        self.memory.control(HEAD_AT).store(self.head, Ordering::Release);
        Ok(true)
    }

    /// Returns whether the ring is empty at the moment.
    ///
    /// # Errors
    /// If the producer's index is invalid.
    pub fn is_empty(&mut self) -> Result<bool, PeerFault> {
        if self.head == self.tail_seen && !self.is_finished {
            self.read_tail()?;
        }
        Ok(self.head == self.tail_seen)
    }

    /// Takes the descriptors that are published at this time as the last ones. For a producer that
    /// is gone: another process may have its memory, and write to it without end.
    pub fn finish(&mut self) {
        // An invalid index publishes nothing.
        let _ = self.read_tail();
        self.is_finished = true;
    }

    fn read_tail(&mut self) -> Result<(), PeerFault> {
        let tail = self.memory.control(TAIL_AT).load(Ordering::Acquire);
        let (there, known) = (tail.wrapping_sub(self.head), self.tail_seen.wrapping_sub(self.head));
        if !(known..=self.memory.capacity()).contains(&there) || tail % WORD_BYTES != 0 {
            return Err(PeerFault::BadIndex);
        }
        if known == 0 && there > 0 {
            let base = self.memory.control(BASE_AT).load(Ordering::Relaxed);
            if base % WORD_BYTES != 0 {
                return Err(PeerFault::BadIndex);
            }
            self.base = base;
        }
        self.tail_seen = tail;
        Ok(())
    }

    /// Announces that the consumer is about to sleep. It then calls [`Self::is_empty`] once more,
    /// for each of its rings, and sleeps only if all are empty.
    pub fn prepare_sleep(&self) {
        self.memory.control(ASLEEP_AT).store(1, Ordering::Relaxed);
        // Orders the flag before the second check; pairs with the fence in `publish`.
        fence(Ordering::SeqCst);
    }

    /// Announces that the consumer is awake.
    pub fn mark_awake(&self) {
        self.memory.control(ASLEEP_AT).store(0, Ordering::Relaxed);
    }
}

/// Returns the bytes that a descriptor occupies in a ring; `None` if there is none of this length.
fn occupied(len: usize) -> Option<u32> {
    if len == 0 || len > DESCRIPTOR_BYTES_MAX {
        return None;
    }
    let len = u32::try_from(len).ok()?;
    Some((LENGTH_BYTES + len).next_multiple_of(WORD_BYTES))
}

/// Returns the word at a position, which is a multiple of [`WORD_BYTES`]. The number of words is a
/// power of two.
#[inline]
fn word(words: &[AtomicU64], position: u32) -> &AtomicU64 {
    &words[(position / WORD_BYTES) as usize & (words.len() - 1)]
}

/// Returns the words of the circle in their order from the one after a position on, `count` at
/// most: those up to the end of the memory, and those from its start on.
#[inline]
fn words_after(words: &[AtomicU64], position: u32, count: usize) -> (&[AtomicU64], &[AtomicU64]) {
    let first = ((position / WORD_BYTES) as usize & (words.len() - 1)) + 1;
    match words.get(first..first + count) {
        Some(all) => (all, &[]),
        None => (&words[first..], &words[..first + count - words.len()]),
    }
}

/// Writes a descriptor, with its length in front, from a position on.
fn write(words: &[AtomicU64], position: u32, descriptor: &[u8]) {
    let len = u32::try_from(descriptor.len()).unwrap_or(0);
    let (begin, rest) = descriptor.split_at(descriptor.len().min(LENGTH_BYTES as usize));
    let first = u64::from(len) | padded(begin) << u32::BITS;
    word(words, position).store(first, Ordering::Relaxed);
    let (whole, last_bytes) = (rest.len() / WORD, rest.len() % WORD);
    let (to, to_start) = words_after(words, position, whole);
    let (rest, rest_start) = rest.split_at(to.len() * WORD);
    write_words(to, rest);
    write_words(to_start, rest_start);
    if last_bytes > 0 {
        // A load of eight bytes is faster than a copy of fewer.
        let last = descriptor.last_chunk().map_or_else(
            || padded(&descriptor[LENGTH_BYTES as usize..]),
            |last| u64::from_le_bytes(*last) >> (u64::BITS as usize - last_bytes * 8),
        );
        let after = WORD_BYTES * (1 + u32::try_from(whole).unwrap_or(0));
        word(words, position.wrapping_add(after)).store(last, Ordering::Relaxed);
    }
}

/// Returns up to eight bytes as a word, with zeros in place of the missing ones.
fn padded(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// Writes the whole words of `bytes`.
#[inline]
fn write_words(words: &[AtomicU64], bytes: &[u8]) {
    let chunks = bytes.chunks_exact(WORD).filter_map(<[u8]>::first_chunk);
    for (word, chunk) in words.iter().zip(chunks) {
        word.store(u64::from_le_bytes(*chunk), Ordering::Relaxed);
    }
}

/// Copies a descriptor of `len` bytes at a position, with its first word, to `out`.
fn read(words: &[AtomicU64], position: u32, first: u64, len: usize, out: &mut Vec<u8>) {
    let [_, _, _, _, begin @ ..] = first.to_le_bytes();
    let count = len.saturating_sub(begin.len()).div_ceil(WORD);
    // Whole words first: a copy of fewer bytes is slower.
    out.resize(begin.len() + count * WORD, 0);
    let (start, rest) = out.split_at_mut(begin.len());
    start.copy_from_slice(&begin);
    let (from, from_start) = words_after(words, position, count);
    let (rest, rest_start) = rest.split_at_mut(from.len() * WORD);
    read_words(from, rest);
    read_words(from_start, rest_start);
    out.truncate(len);
}

/// Copies words to bytes.
#[inline]
fn read_words(words: &[AtomicU64], bytes: &mut [u8]) {
    for (word, chunk) in words.iter().zip(bytes.chunks_exact_mut(WORD)) {
        chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
    }
}
