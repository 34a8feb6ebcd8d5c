//! Rings of descriptors between two processes that do not trust each other.
//!
//! The counterpart of [`abi::ring`] for descriptors ([`abi::layout`]) instead of values: one
//! producer, one consumer, no locks, and a system call only to wake a consumer that sleeps. A ring
//! is a circle of bytes. Each descriptor has its length in front (32 bits) and begins at a multiple
//! of eight bytes; it may continue at the start of the circle. The two indices count bytes modulo
//! 2^32. `docs/descriptors.md` has the layout.
//!
//! Payload can lie beside a descriptor, in the same entry. The consumer copies it from there to its
//! destination, so that each side copies a payload once.
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
//! - A descriptor is copied out before it is examined, so that it cannot change meanwhile. Payload
//!   is copied out before it is used.
//! - No access leaves the ring, and a call ends after at most one descriptor.
//!
//! After a [`PeerFault`] the ring is of no use: the caller ends the connection to the process. A
//! ring neither wakes nor waits itself: [`SharedRingProducer::publish`] returns whether the caller
//! has to signal the consumer's eventfd ([`crate::notify::Notifier`]).

mod memory;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering, fence};

use abi::layout::{DESCRIPTOR_BYTES_MAX, PAYLOAD_ALIGNMENT, may_hold_keys};

use memory::{ASLEEP_AT, BASE_AT, HEAD_AT, TAIL_AT};
pub use memory::{CAPACITY_MAX, CAPACITY_MIN, SharedRingMemory};

pub use crate::sealed_file::SharedMemoryError;
use crate::shared_copy::{read_vectors, write_vectors};

/// Bytes of the length in front of a descriptor.
const LENGTH_BYTES: u32 = 4;
/// Alignment of descriptors, and of the parts of a payload.
const WORD_BYTES: u32 = 8;
/// [`WORD_BYTES`] as a length.
const WORD: usize = WORD_BYTES as usize;
const _: () = assert!(WORD == PAYLOAD_ALIGNMENT);
/// Flag in the length of a descriptor: the length of a payload follows (32 bits), then, from the
/// next word on, the descriptor and the payload.
const HAS_PAYLOAD: u32 = 1 << 31;
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
    /// A descriptor is empty, or longer, with its payload, than the bytes that were published or
    /// than [`DESCRIPTOR_BYTES_MAX`]. Or the length of a payload is no multiple of eight.
    #[error("a descriptor or payload of impossible length")]
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
    /// The payload beside the last descriptor, whose memory the producer does not get back yet.
    payload: HeldPayload,
    /// The producer is gone: the descriptors before `tail_seen` are the last ones.
    is_finished: bool,
}

/// The payload beside the descriptor that was received last.
#[derive(Clone, Copy, Debug)]
struct HeldPayload {
    /// Position of its first word.
    position: u32,
    /// Length in bytes, a multiple of [`WORD_BYTES`]; 0 if there is none.
    len: u32,
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
        self.push_entry(occupied(descriptor.len()), |words, position| {
            write(words, position, descriptor);
        })
    }

    /// Writes a descriptor with payload beside it, which is not empty. Each of its parts begins at
    /// a multiple of eight bytes from the start of the payload.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn push_with_payload<'a>(
        &mut self,
        descriptor: &[u8],
        parts: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Result<RingPush, PeerFault> {
        let payload = parts.clone().map(|part| part.len().next_multiple_of(WORD)).sum();
        let bytes = occupied_with_payload(descriptor.len(), payload);
        self.push_entry(bytes, |words, mut position| {
            let lengths = [descriptor.len(), payload].map(|len| u32::try_from(len).unwrap_or(0));
            let first = u64::from(lengths[0] | HAS_PAYLOAD) | u64::from(lengths[1]) << u32::BITS;
            word(words, position).store(first, Ordering::Relaxed);
            position = position.wrapping_add(WORD_BYTES);
            position = write_bytes(words, position, descriptor);
            for part in parts {
                position = write_bytes(words, position, part);
            }
        })
    }

    /// Writes an entry of `bytes` bytes, if there is one of this length.
    #[inline]
    fn push_entry(
        &mut self,
        bytes: Option<u32>,
        write: impl FnOnce(&[AtomicU64], u32),
    ) -> Result<RingPush, PeerFault> {
        let Some(bytes) = bytes.filter(|&bytes| bytes <= self.memory.capacity()) else {
            return Ok(RingPush::DoesNotFit);
        };
        if self.tail.wrapping_sub(self.rewind_tried) >= self.rewind_after {
            self.rewind_if_empty()?;
        }
        if !self.has_room(bytes)? {
            return Ok(RingPush::Full);
        }
        write(self.memory.words(), self.tail.wrapping_sub(self.base));
        self.tail = self.tail.wrapping_add(bytes);
        Ok(RingPush::Written)
    }

    /// Returns whether there is room for the longest descriptor, or one with payload that has as
    /// many bytes.
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
        let (base, payload) = (0, HeldPayload { position: 0, len: 0 });
        Self { memory, head: 0, tail_seen: 0, base, payload, is_finished: false }
    }

    /// Moves the oldest descriptor to `out`, whose content it replaces. Returns false if there is
    /// none. No key stays in the ring; the caller clears `out` ([`abi::layout::clear_keys`]).
    /// Payload beside it can be copied until the next call of this function or [`Self::is_empty`].
    ///
    /// # Errors
    /// If the producer's index or a length is invalid.
    pub fn pop(&mut self, out: &mut Vec<u8>) -> Result<bool, PeerFault> {
        if self.is_empty()? {
            return Ok(false);
        }
        let words = self.memory.words();
        let position = self.head.wrapping_sub(self.base);
        let first = word(words, position).load(Ordering::Relaxed);
        // The low half, in the byte order of the layout.
        let [a, b, c, d, payload_len @ ..] = first.to_le_bytes();
        let len = u32::from_le_bytes([a, b, c, d]);
        let there = self.tail_seen.wrapping_sub(self.head);
        if len & HAS_PAYLOAD != 0 {
            let lengths = (len & !HAS_PAYLOAD, u32::from_le_bytes(payload_len));
            return self.pop_with_payload(position, lengths, there, out).map(|()| true);
        }
        let Some(bytes) = occupied(len as usize).filter(|&bytes| bytes <= there) else {
            return Err(PeerFault::BadLength);
        };
        read(words, position, first, len as usize, out);
        if may_hold_keys(out) {
            (0..bytes / WORD_BYTES).for_each(|n| {
                let position = position.wrapping_add(n * WORD_BYTES);
                word(words, position).store(0, Ordering::Relaxed);
            });
        }
        self.head = self.head.wrapping_add(bytes);
        self.publish_head();
        Ok(true)
    }

    /// Moves a descriptor with payload to `out`. `lengths` are its own and that of the payload,
    /// `there` the bytes that were published.
    fn pop_with_payload(
        &mut self,
        position: u32,
        lengths: (u32, u32),
        there: u32,
        out: &mut Vec<u8>,
    ) -> Result<(), PeerFault> {
        let (len, payload) = (lengths.0 as usize, lengths.1 as usize);
        let bytes = occupied_with_payload(len, payload).filter(|&bytes| bytes <= there);
        let Some(bytes) = bytes.filter(|_| payload % WORD == 0) else {
            return Err(PeerFault::BadLength);
        };
        out.resize(len, 0);
        read_bytes(self.memory.words(), position.wrapping_add(WORD_BYTES), out);
        let end = position.wrapping_add(bytes);
        self.payload = HeldPayload { position: end.wrapping_sub(lengths.1), len: lengths.1 };
        self.head = self.head.wrapping_add(bytes);
        Ok(())
    }

    /// Returns the length of the payload beside the descriptor that was received last, with the
    /// padding after its parts.
    #[must_use]
    pub const fn payload_len(&self) -> usize {
        self.payload.len as usize
    }

    /// Copies a part of the payload beside the descriptor that was received last.
    ///
    /// # Panics If `at` is no multiple of eight or the part does not lie in [`Self::payload_len`]:
    /// the caller has checked both.
    pub fn copy_payload(&self, at: usize, to: &mut [u8]) {
        let end = at.checked_add(to.len());
        assert!(at % WORD == 0 && end.is_some_and(|end| end <= self.payload_len()), "at {at}");
        let at = u32::try_from(at).unwrap_or(0);
        read_bytes(self.memory.words(), self.payload.position.wrapping_add(at), to);
    }

    fn publish_head(&self) {
        self.memory.control(HEAD_AT).store(self.head, Ordering::Release);
    }

    /// Returns whether the ring is empty at the moment.
    ///
    /// # Errors
    /// If the producer's index is invalid.
    pub fn is_empty(&mut self) -> Result<bool, PeerFault> {
        if self.payload.len > 0 {
            self.payload.len = 0;
            self.publish_head();
        }
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

/// Returns the bytes that a descriptor with payload occupies in a ring; `None` if there is none of
/// these lengths.
fn occupied_with_payload(len: usize, payload: usize) -> Option<u32> {
    let sum = len.checked_next_multiple_of(WORD)?.checked_add(payload)?;
    if len == 0 || payload == 0 || sum > DESCRIPTOR_BYTES_MAX {
        return None;
    }
    u32::try_from(WORD + sum).ok()
}

/// Returns the word at a position, which is a multiple of [`WORD_BYTES`]. The number of words is a
/// power of two.
#[inline]
fn word(words: &[AtomicU64], position: u32) -> &AtomicU64 {
    &words[(position / WORD_BYTES) as usize & (words.len() - 1)]
}

/// Returns `count` words of the circle in their order from a position on: those up to the end of
/// the memory, and those from its start on.
#[inline]
fn words_from(words: &[AtomicU64], position: u32, count: usize) -> (&[AtomicU64], &[AtomicU64]) {
    let first = (position / WORD_BYTES) as usize & (words.len() - 1);
    match words.get(first..first + count) {
        Some(all) => (all, &[]),
        None => (&words[first..], &words[..first + count - words.len()]),
    }
}

/// Writes a descriptor, with its length in front, from a position on.
fn write(words: &[AtomicU64], position: u32, descriptor: &[u8]) {
    let len = u32::try_from(descriptor.len()).unwrap_or(0);
    let (begin, rest) = descriptor.split_at(descriptor.len().min(LENGTH_BYTES as usize));
    let begin =
        begin.first_chunk().map_or_else(|| padded(begin), |&all| u32::from_le_bytes(all).into());
    let first = u64::from(len) | begin << u32::BITS;
    word(words, position).store(first, Ordering::Relaxed);
    write_bytes(words, position.wrapping_add(WORD_BYTES), rest);
}

/// Writes bytes from a position on, and returns the position of the next word.
#[inline]
fn write_bytes(words: &[AtomicU64], position: u32, bytes: &[u8]) -> u32 {
    let (whole, last_bytes) = (bytes.len() / WORD, bytes.len() % WORD);
    let (to, to_start) = words_from(words, position, whole);
    let (begin, begin_start) = bytes.split_at(to.len() * WORD);
    write_words(to, begin);
    write_words(to_start, begin_start);
    let position = position.wrapping_add(WORD_BYTES * u32::try_from(whole).unwrap_or(0));
    if last_bytes == 0 {
        return position;
    }
    // A load of eight bytes is faster than a copy of fewer.
    let last = bytes.last_chunk().map_or_else(
        || padded(bytes),
        |last| u64::from_le_bytes(*last) >> (u64::BITS as usize - last_bytes * 8),
    );
    word(words, position).store(last, Ordering::Relaxed);
    position.wrapping_add(WORD_BYTES)
}

/// Returns up to eight bytes as a word, with zeros in place of the missing ones.
fn padded(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// Writes the whole words of `bytes`.
#[inline]
fn write_words(words: &[AtomicU64], bytes: &[u8]) {
    let written = write_vectors(words, bytes);
    let chunks = bytes[written * WORD..].chunks_exact(WORD).filter_map(<[u8]>::first_chunk);
    for (word, chunk) in words[written..].iter().zip(chunks) {
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
    let (from, from_start) = words_from(words, position.wrapping_add(WORD_BYTES), count);
    let (rest, rest_start) = rest.split_at_mut(from.len() * WORD);
    read_words(from, rest);
    read_words(from_start, rest_start);
    out.truncate(len);
}

/// Copies bytes from a position on, which begin at a word and end anywhere.
fn read_bytes(words: &[AtomicU64], position: u32, to: &mut [u8]) {
    let (whole, last_bytes) = (to.len() / WORD, to.len() % WORD);
    let (from, from_start) = words_from(words, position, whole);
    let (begin, rest) = to.split_at_mut(from.len() * WORD);
    let (rest, last) = rest.split_at_mut(from_start.len() * WORD);
    read_words(from, begin);
    read_words(from_start, rest);
    if last_bytes > 0 {
        let after = position.wrapping_add(WORD_BYTES * u32::try_from(whole).unwrap_or(0));
        let word = word(words, after).load(Ordering::Relaxed).to_le_bytes();
        last.copy_from_slice(&word[..last_bytes]);
    }
}

/// Copies words to bytes.
#[inline]
fn read_words(words: &[AtomicU64], bytes: &mut [u8]) {
    let read = read_vectors(words, bytes);
    for (word, chunk) in words[read..].iter().zip(bytes[read * WORD..].chunks_exact_mut(WORD)) {
        chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
    }
}
