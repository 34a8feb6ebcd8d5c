//! Registered buffers of one receive context: where data goes that comes under a tag
//! (Autonomous NIC Offloads, section 5.1: the map from CIDs to block layer buffers).
//!
//! Called by `mod` with the host's set-ups, by `chain` with data. Invariants: a byte of a buffer is
//! written at most once, so that what was placed rightly stays; what is not awaited is not written.
//! Limits over all contexts are `mod`'s.

use abi::FlowId;
use abi::aligned::AlignedBuf;
use abi::l5o::L5oId;
use abi::nvme_tcp::{DdpId, DdpSetup, DdpTeardownDone};
use base::mix;
use core::ops::Range;
use hashbrown::HashTable;

use crate::engine::seen::Seen;

/// A buffer, as long as the device has it.
#[derive(Debug)]
pub(super) struct Buffer {
    flow: FlowId,
    pub(super) tag: u16,
    pub(super) id: DdpId,
    /// `DATAO` of its first byte.
    offset: u32,
    /// Bytes awaited.
    len: u32,
    /// Bytes awaited that were not placed.
    left: u32,
    /// Which of its bytes were placed.
    placed: Seen,
    memory: AlignedBuf,
}

/// The data of a PDU, as its header has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DataAt {
    pub(super) tag: u16,
    pub(super) offset: u32,
    pub(super) len: u32,
}

impl Buffer {
    /// The buffer of a set-up that was checked.
    pub(super) fn new(setup: DdpSetup) -> Self {
        let DdpSetup { flow, tag, id, offset, len, there, buffer, .. } = setup;
        let mut placed = Seen::default();
        if there > 0 {
            placed.add(0, there);
        }
        Self { flow, tag, id, offset, len, left: len - there, placed, memory: buffer }
    }

    /// Bytes of its memory.
    pub(super) const fn bytes(&self) -> u64 {
        self.memory.len() as u64
    }

    /// Whether every byte awaited was placed.
    pub(super) const fn is_full(&self) -> bool {
        self.left == 0
    }

    /// It is the host's again.
    pub(super) fn give_back(self, context: L5oId) -> DdpTeardownDone {
        let Self { flow, tag, id, memory, .. } = self;
        DdpTeardownDone { context, flow, tag, id, buffer: memory, refused: None }
    }

    /// Whether all of the data belongs here.
    fn fits(&self, data: &DataAt) -> bool {
        let end = |offset: u32, len: u32| u64::from(offset) + u64::from(len);
        self.offset <= data.offset && end(data.offset, data.len) <= end(self.offset, self.len)
    }

    /// The part of `range`, from its start, all of which is free or none of which is; whether it is
    /// free.
    pub(super) fn part(&self, range: &Range<u32>) -> (u32, bool) {
        let unseen = self.placed.unseen_from(range.start);
        if unseen > range.start {
            (unseen.min(range.end), false)
        } else {
            (self.placed.seen_from(range.start).min(range.end), true)
        }
    }

    /// Memory of a range that is free, to be written now; none where too many separate ranges were
    /// written already.
    pub(super) fn claim(&mut self, range: &Range<u32>) -> Option<&mut [u8]> {
        let memory = self.memory.as_mut_slice();
        let memory = memory.get_mut(range.start as usize..range.end as usize)?;
        if !self.placed.add(range.start, range.end) {
            return None;
        }
        self.left = self.left.saturating_sub(range.end - range.start);
        Some(memory)
    }

    /// Where in the buffer the byte at `DATAO` `offset` lies.
    pub(super) const fn at(&self, offset: u32) -> u32 {
        offset.wrapping_sub(self.offset)
    }

    /// `DATAO` of the buffer's byte `at`.
    pub(super) const fn offset_of(&self, at: u32) -> u32 {
        self.offset.wrapping_add(at)
    }
}

/// Buffers by tag.
#[derive(Debug, Default)]
pub(super) struct Buffers(HashTable<Buffer>);

impl Buffers {
    /// Whether there is one under this tag.
    pub(super) fn has(&self, tag: u16) -> bool {
        self.0.find(hash(tag), |buffer| buffer.tag == tag).is_some()
    }

    /// Whether there is one that the data belongs to.
    pub(super) fn expects(&self, data: &DataAt) -> bool {
        let found = self.0.find(hash(data.tag), |buffer| buffer.tag == data.tag);
        found.is_some_and(|buffer| buffer.fits(data))
    }

    /// The buffer that the data belongs to.
    pub(super) fn of(&mut self, data: &DataAt) -> Option<&mut Buffer> {
        let found = self.0.find_mut(hash(data.tag), |buffer| buffer.tag == data.tag);
        found.filter(|buffer| buffer.fits(data))
    }

    /// Adds one whose tag no other has.
    pub(super) fn insert(&mut self, buffer: Buffer) {
        self.0.insert_unique(hash(buffer.tag), buffer, |buffer| hash(buffer.tag));
    }

    /// Takes one out.
    pub(super) fn remove(&mut self, tag: u16) -> Option<Buffer> {
        let entry = self.0.find_entry(hash(tag), |buffer| buffer.tag == tag).ok()?;
        Some(entry.remove().0)
    }

    /// Takes all out.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Buffer> + '_ {
        self.0.drain()
    }
}

/// Tags are the host's own, and few.
const fn hash(tag: u16) -> u64 {
    mix(0, tag as u64, 0)
}
