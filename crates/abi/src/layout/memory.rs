//! Payload buffers in descriptors: named by region, offset and length, or inline.
//!
//! A carrier implements [`EncodeMemory`] for its sending side and [`DecodeMemory`] for its
//! receiving side. [`InlineMemory`] is both, for carriers without shared memory: every byte lies
//! in the descriptor.

use alloc::sync::Arc;

use bytes::Bytes;
use patterns::PatternSet;

use crate::aligned::{AlignedBuf, PAGE_BYTES};
use crate::region::RegionRange;
use crate::{PacketBuf, PacketPool};

/// Bytes in a registered region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRange {
    /// Number of the region: [`Self::REGISTERED`], or [`Self::INLINE`] for inline bytes.
    pub region: u32,
    /// Offset of the first byte in the region.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
}

impl MemoryRange {
    /// Number of the region that a program registers when it attaches.
    pub const REGISTERED: u32 = 0;
    /// Number of the bytes that cross beside the descriptor, if the carrier can do that. Buffers
    /// name all of them in their order; each begins at the next multiple of [`PAYLOAD_ALIGNMENT`].
    pub const PAYLOAD: u32 = 1;
    /// Region number that marks inline bytes.
    pub const INLINE: u32 = u32::MAX;
}

/// Alignment in bytes of the buffers beside a descriptor ([`MemoryRange::PAYLOAD`]).
pub const PAYLOAD_ALIGNMENT: usize = 8;

/// Name of a set of patterns in a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatternSetName {
    /// The number under which both sides know the set.
    Known(u32),
    /// None: the patterns follow. Each side knows the set from then on, under the number that its
    /// carrier assigns in the same way.
    New,
}

/// Names the buffers of outgoing descriptors. Each function returns the buffer if it has no name;
/// its bytes are then copied into the descriptor. By default nothing has a name.
pub trait EncodeMemory {
    /// Names payload that the sender keeps until the receiver has released it.
    ///
    /// # Errors
    /// The payload, if it lies in no region.
    fn name_bytes(&mut self, bytes: Bytes) -> Result<MemoryRange, Bytes> {
        Err(bytes)
    }

    /// Names the buffer of a frame, which then belongs to the receiver.
    ///
    /// # Errors
    /// The frame, if it lies in no region.
    fn name_frame(&mut self, frame: PacketBuf) -> Result<MemoryRange, PacketBuf> {
        Err(frame)
    }

    /// Takes the buffer of a frame whose bytes were copied into the descriptor.
    fn take_copied(&mut self, _frame: PacketBuf) {}

    /// Names a set of patterns.
    fn name_patterns(&mut self, _: &Arc<PatternSet>) -> PatternSetName {
        PatternSetName::New
    }
}

/// Resolves the buffers of received descriptors. Each function returns `None` if the sender may not
/// name the memory, or if there is no memory for a copy; the descriptor is then refused. By default
/// no memory may be named.
pub trait DecodeMemory {
    /// Returns payload in a region.
    fn bytes(&mut self, _: MemoryRange) -> Option<Bytes> {
        None
    }

    /// Returns the buffer of a frame in a region.
    fn frame(&mut self, _: MemoryRange) -> Option<PacketBuf> {
        None
    }

    /// Returns the memory of a registered buffer in a region.
    fn shared_buffer(&mut self, _: MemoryRange) -> Option<RegionRange> {
        None
    }

    /// Copies the bytes of a frame to a new buffer.
    fn copy_frame(&mut self, bytes: &[u8]) -> Option<PacketBuf>;

    /// Returns the set of patterns with a number.
    fn known_patterns(&mut self, _: u32) -> Option<Arc<PatternSet>> {
        None
    }

    /// Compiles a set of patterns, which are within the limits.
    fn new_patterns(&mut self, _: &[&[u8]]) -> Option<Arc<PatternSet>> {
        None
    }

    /// Copies payload.
    fn copy_bytes(&mut self, bytes: &[u8]) -> Option<Bytes> {
        Some(Bytes::copy_from_slice(bytes))
    }

    /// Copies a registered buffer, whose length is a positive multiple of [`PAGE_BYTES`].
    fn copy_buffer(&mut self, bytes: &[u8]) -> Option<AlignedBuf> {
        let mut buffer = AlignedBuf::new(bytes.len() / PAGE_BYTES);
        buffer.as_mut_slice().copy_from_slice(bytes);
        Some(buffer)
    }
}

/// Memory of a carrier without regions and known sets of patterns. It refuses every named range.
#[derive(Debug)]
pub struct InlineMemory {
    /// Buffers for received frames.
    pub pool: PacketPool,
}

impl EncodeMemory for InlineMemory {}

impl DecodeMemory for InlineMemory {
    fn copy_frame(&mut self, bytes: &[u8]) -> Option<PacketBuf> {
        self.pool.copy(bytes)
    }

    fn new_patterns(&mut self, patterns: &[&[u8]]) -> Option<Arc<PatternSet>> {
        PatternSet::new(patterns).ok().map(Arc::new)
    }
}
