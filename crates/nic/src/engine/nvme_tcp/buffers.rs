//! Registered buffers of one receive context: the destination of data by tag (Autonomous NIC
//! Offloads, section 5.1: the map from CIDs to block layer buffers).
//!
//! Called by `mod` to register buffers, and by `walk` with data. Invariants: a byte of a buffer is
//! written at most once, so correctly placed bytes stay; bytes that are not awaited are not
//! written. Limits over all contexts are enforced by `mod`.

use abi::FlowId;
use abi::l5o::L5oId;
use abi::nvme_tcp::{DdpBuffer, DdpId, DdpSetup, DdpTeardownDone};
use base::mix;
use core::ops::Range;
use hashbrown::HashTable;

use crate::engine::received_ranges::ReceivedRanges;

/// A buffer while it is registered with the device.
#[derive(Debug)]
pub(super) struct RegisteredBuffer {
    flow: FlowId,
    pub(super) tag: u16,
    pub(super) id: DdpId,
    /// `DATAO` of the buffer's first byte.
    offset: u32,
    /// Bytes awaited, from the first byte on.
    len: u32,
    /// Awaited bytes that have not been placed yet.
    bytes_missing: u32,
    /// Ranges that have been placed.
    placed: ReceivedRanges,
    memory: DdpBuffer,
}

/// Destination of a PDU's data, from its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PduDataTarget {
    pub(super) tag: u16,
    pub(super) offset: u32,
    pub(super) len: u32,
}

impl RegisteredBuffer {
    /// Creates a buffer from a validated set-up.
    pub(super) fn new(setup: DdpSetup) -> Self {
        let DdpSetup { flow, tag, id, offset, len, filled: there, buffer, .. } = setup;
        let mut placed = ReceivedRanges::default();
        if there > 0 {
            placed.add(0, there);
        }
        Self { flow, tag, id, offset, len, bytes_missing: len - there, placed, memory: buffer }
    }

    /// Returns the size of the memory in bytes.
    pub(super) const fn bytes(&self) -> u64 {
        self.memory.len() as u64
    }

    /// Returns whether every awaited byte has been placed.
    pub(super) const fn is_full(&self) -> bool {
        self.bytes_missing == 0
    }

    /// Hands the memory back to the host.
    pub(super) fn give_back(self, context: L5oId) -> DdpTeardownDone {
        let Self { flow, tag, id, memory, .. } = self;
        DdpTeardownDone { context, flow, tag, id, buffer: memory, refused: None }
    }

    /// Returns whether all of the data lies in the awaited range.
    fn fits(&self, data: &PduDataTarget) -> bool {
        let end = |offset: u32, len: u32| u64::from(offset) + u64::from(len);
        self.offset <= data.offset && end(data.offset, data.len) <= end(self.offset, self.len)
    }

    /// Returns the end of the longest prefix of `range` that is entirely free or entirely written,
    /// and whether it is free.
    pub(super) fn first_uniform_part(&self, range: &Range<u32>) -> (u32, bool) {
        let unseen = self.placed.next_missing(range.start);
        if unseen > range.start {
            (unseen.min(range.end), false)
        } else {
            (self.placed.next_received(range.start).min(range.end), true)
        }
    }

    /// Marks a free range of the awaited bytes as written and returns its memory, which the caller
    /// fills. Returns `None` if the range cannot be recorded because there are too many separate
    /// ranges.
    pub(super) fn claim(&mut self, range: &Range<u32>) -> Option<ClaimedRange<'_>> {
        if range.end > self.len || !self.placed.add(range.start, range.end) {
            return None;
        }
        self.bytes_missing = self.bytes_missing.saturating_sub(range.end - range.start);
        Some(ClaimedRange { memory: &mut self.memory, at: range.start as usize })
    }

    /// Converts a `DATAO` to an offset in the buffer.
    pub(super) const fn at(&self, offset: u32) -> u32 {
        offset.wrapping_sub(self.offset)
    }

    /// Converts an offset in the buffer to a `DATAO`.
    pub(super) const fn offset_of(&self, at: u32) -> u32 {
        self.offset.wrapping_add(at)
    }
}

/// A range of a buffer that is about to be filled.
pub(super) struct ClaimedRange<'a> {
    memory: &'a mut DdpBuffer,
    /// Offset of the next byte to write.
    at: usize,
}

impl ClaimedRange<'_> {
    /// Writes the next bytes of the range.
    pub(super) fn write_next(&mut self, bytes: &[u8]) {
        let written = self.memory.write(self.at, bytes);
        debug_assert!(written, "the set-up and the range were checked");
        self.at += bytes.len();
    }
}

/// Registered buffers by tag.
#[derive(Debug, Default)]
pub(super) struct RegisteredBuffers(HashTable<RegisteredBuffer>);

impl RegisteredBuffers {
    /// Returns whether a buffer has this tag.
    pub(super) fn has(&self, tag: u16) -> bool {
        self.0.find(hash(tag), |buffer| buffer.tag == tag).is_some()
    }

    /// Returns whether a buffer awaits the data.
    pub(super) fn expects(&self, data: &PduDataTarget) -> bool {
        let found = self.0.find(hash(data.tag), |buffer| buffer.tag == data.tag);
        found.is_some_and(|buffer| buffer.fits(data))
    }

    /// Returns the buffer that awaits the data.
    pub(super) fn find_for(&mut self, data: &PduDataTarget) -> Option<&mut RegisteredBuffer> {
        let found = self.0.find_mut(hash(data.tag), |buffer| buffer.tag == data.tag);
        found.filter(|buffer| buffer.fits(data))
    }

    /// Adds a buffer. No other may have its tag.
    pub(super) fn insert(&mut self, buffer: RegisteredBuffer) {
        self.0.insert_unique(hash(buffer.tag), buffer, |buffer| hash(buffer.tag));
    }

    /// Removes and returns the buffer with this tag.
    pub(super) fn remove(&mut self, tag: u16) -> Option<RegisteredBuffer> {
        let entry = self.0.find_entry(hash(tag), |buffer| buffer.tag == tag).ok()?;
        Some(entry.remove().0)
    }

    /// Removes and returns all buffers.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = RegisteredBuffer> + '_ {
        self.0.drain()
    }
}

/// Unkeyed, because tags are chosen by the host and few.
const fn hash(tag: u16) -> u64 {
    mix(0, tag as u64, 0)
}
