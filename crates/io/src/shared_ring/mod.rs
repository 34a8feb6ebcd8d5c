//! Rings of descriptors between two processes that do not trust each other.
//!
//! The counterpart of [`abi::ring`] for descriptors ([`abi::layout`]) instead of values: one
//! producer, one consumer, no locks, and a system call only to wake a consumer that sleeps. A ring
//! is a circle of bytes. Each descriptor has its length in front (32 bits) and begins at a multiple
//! of eight bytes; it may continue at the start of the circle. The two indices count bytes modulo
//! 2^32. `docs/descriptors.md` has the layout.
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

use memory::{ASLEEP_AT, HEAD_AT, TAIL_AT};
pub use memory::{CAPACITY_MAX, CAPACITY_MIN, SharedRingMemory};

pub use crate::sealed_file::SharedMemoryError;

/// Bytes of the length in front of a descriptor.
const LENGTH_BYTES: u32 = 4;
/// Alignment of descriptors.
const WORD_BYTES: u32 = 8;

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
}

/// The receiving end of a ring.
#[derive(Debug)]
pub struct SharedRingConsumer {
    memory: SharedRingMemory,
    /// Index of the next descriptor.
    head: u32,
    tail_seen: u32,
}

impl SharedRingProducer {
    /// Creates the sending end of a new ring.
    #[must_use]
    pub const fn new(memory: SharedRingMemory) -> Self {
        Self { memory, tail: 0, published: 0, head_seen: 0 }
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
        if !self.has_room(bytes)? {
            return Ok(RingPush::Full);
        }
        write(self.memory.words(), self.tail, descriptor);
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
        if self.free() >= bytes {
            return Ok(true);
        }
        let head = self.memory.control(HEAD_AT).load(Ordering::Acquire);
        if self.tail.wrapping_sub(head) > self.tail.wrapping_sub(self.head_seen)
            || head % WORD_BYTES != 0
        {
            return Err(PeerFault::BadIndex);
        }
        self.head_seen = head;
        Ok(self.free() >= bytes)
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
        Self { memory, head: 0, tail_seen: 0 }
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
        let first = word(words, self.head).load(Ordering::Relaxed);
        // The low half, in the byte order of the layout.
        let [a, b, c, d, ..] = first.to_le_bytes();
        let len = u32::from_le_bytes([a, b, c, d]) as usize;
        let there = self.tail_seen.wrapping_sub(self.head);
        let Some(bytes) = occupied(len).filter(|&bytes| bytes <= there) else {
            return Err(PeerFault::BadLength);
        };
        read(words, self.head, first, len, out);
        if may_hold_keys(out) {
            (0..bytes / WORD_BYTES).for_each(|n| {
                let index = self.head.wrapping_add(n * WORD_BYTES);
                word(words, index).store(0, Ordering::Relaxed);
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
        if self.head == self.tail_seen {
            let tail = self.memory.control(TAIL_AT).load(Ordering::Acquire);
            if tail.wrapping_sub(self.head) > self.memory.capacity() || tail % WORD_BYTES != 0 {
                return Err(PeerFault::BadIndex);
            }
            self.tail_seen = tail;
        }
        Ok(self.head == self.tail_seen)
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

/// Returns the word at an index, which is a multiple of [`WORD_BYTES`]. The number of words is a
/// power of two.
#[inline]
fn word(words: &[AtomicU64], index: u32) -> &AtomicU64 {
    &words[(index / WORD_BYTES) as usize & (words.len() - 1)]
}

/// Writes a descriptor, with its length in front, from an index on.
fn write(words: &[AtomicU64], index: u32, descriptor: &[u8]) {
    let len = u32::try_from(descriptor.len()).unwrap_or(0).to_le_bytes();
    let (begin, rest) = descriptor.split_at(descriptor.len().min(LENGTH_BYTES as usize));
    let mut first = [0; WORD_BYTES as usize];
    first[..len.len()].copy_from_slice(&len);
    first[len.len()..len.len() + begin.len()].copy_from_slice(begin);
    word(words, index).store(u64::from_le_bytes(first), Ordering::Relaxed);
    let mut index = index;
    let mut store = |bytes| {
        index = index.wrapping_add(WORD_BYTES);
        word(words, index).store(u64::from_le_bytes(bytes), Ordering::Relaxed);
    };
    let mut chunks = rest.chunks_exact(WORD_BYTES as usize);
    chunks.by_ref().filter_map(|chunk| chunk.first_chunk().copied()).for_each(&mut store);
    let last = chunks.remainder();
    if !last.is_empty() {
        let mut padded = [0; WORD_BYTES as usize];
        padded[..last.len()].copy_from_slice(last);
        store(padded);
    }
}

/// Copies a descriptor of `len` bytes at an index, with its first word, to `out`.
fn read(words: &[AtomicU64], index: u32, first: u64, len: usize, out: &mut Vec<u8>) {
    let [_, _, _, _, begin @ ..] = first.to_le_bytes();
    out.clear();
    out.extend_from_slice(&begin[..begin.len().min(len)]);
    out.resize(len, 0);
    let mut index = index;
    let mut load = || {
        index = index.wrapping_add(WORD_BYTES);
        word(words, index).load(Ordering::Relaxed).to_le_bytes()
    };
    let mut chunks = out[begin.len().min(len)..].chunks_exact_mut(WORD_BYTES as usize);
    chunks.by_ref().for_each(|chunk| chunk.copy_from_slice(&load()));
    let last = chunks.into_remainder();
    if !last.is_empty() {
        last.copy_from_slice(&load()[..last.len()]);
    }
}
