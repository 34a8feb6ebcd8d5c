//! Payload in the buffer that it arrived in, with the metadata of its segment.
//!
//! [`TcpReceiveState`](super::TcpReceiveState) queues, trims and reads chunks; the bytes stay in
//! their buffers.

use alloc::vec::Vec;

use abi::PacketBuf;
use abi::l5o::RxMetadata;

/// Payload in the buffer that it arrived in.
#[derive(Debug)]
pub(crate) struct RxSegment {
    buf: RxSegmentBuffer,
    start: usize,
    end: usize,
    /// Offset in the buffer at which the payload began on arrival; offsets in the metadata count
    /// from it.
    origin: usize,
    metadata: RxMetadata,
}

#[derive(Debug)]
enum RxSegmentBuffer {
    Packet(PacketBuf),
    Joined(Vec<u8>),
}

impl RxSegmentBuffer {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Packet(packet) => packet.as_slice(),
            Self::Joined(bytes) => bytes,
        }
    }
}

impl RxSegment {
    pub(crate) const fn new(
        packet: PacketBuf,
        start: usize,
        end: usize,
        metadata: RxMetadata,
    ) -> Self {
        Self { buf: RxSegmentBuffer::Packet(packet), start, end, origin: start, metadata }
    }

    /// Returns a chunk of bytes that were copied together.
    pub(super) fn from_copied(bytes: Vec<u8>) -> Self {
        let end = bytes.len();
        Self {
            buf: RxSegmentBuffer::Joined(bytes),
            start: 0,
            end,
            origin: 0,
            metadata: RxMetadata::default(),
        }
    }

    /// Returns whether the chunk has metadata that its bytes need, so that these must not be joined
    /// with others.
    pub(super) fn needs_metadata(&self) -> bool {
        !self.metadata.is_dispensable()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.buf.as_slice()[self.start..self.end]
    }

    pub(crate) const fn len(&self) -> usize {
        self.end - self.start
    }

    pub(super) fn footprint(&self) -> usize {
        match &self.buf {
            RxSegmentBuffer::Packet(packet) => packet.footprint(),
            RxSegmentBuffer::Joined(bytes) => bytes.capacity(),
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Returns the packet buffer; `None` if the bytes were copied together.
    pub(super) fn into_packet(self) -> Option<PacketBuf> {
        match self.buf {
            RxSegmentBuffer::Packet(packet) => Some(packet),
            RxSegmentBuffer::Joined(_) => None,
        }
    }

    /// Returns the metadata of the segment, and the offset of the remaining bytes in its payload.
    pub(super) const fn metadata_mut(&mut self) -> (&mut RxMetadata, usize) {
        (&mut self.metadata, self.start - self.origin)
    }

    /// Returns [`Self::metadata_mut`], shared.
    pub(super) const fn metadata(&self) -> (&RxMetadata, usize) {
        (&self.metadata, self.start - self.origin)
    }

    /// Removes `bytes` from the front, at most the length.
    pub(super) const fn consume(&mut self, bytes: usize) {
        self.start += bytes;
    }

    /// Returns `len` bytes from offset `from`, which the chunk has.
    pub(super) const fn piece(&self, from: usize, len: usize) -> RxSegmentPiece<'_> {
        RxSegmentPiece { chunk: self, at: self.start + from, len }
    }

    /// Trims the chunk, which begins at position `start`, to from..to; returns its new start, or
    /// `None` if nothing is left.
    pub(super) fn trim(&mut self, start: u64, from: u64, to: u64) -> Option<u64> {
        let end = start + self.len() as u64;
        let (keep_from, keep_to) = (start.max(from), end.min(to));
        if keep_from >= keep_to {
            self.end = self.start;
            return None;
        }
        // Both differences are below the length.
        self.end -= usize::try_from(end - keep_to).unwrap_or(0);
        self.start += usize::try_from(keep_from - start).unwrap_or(0);
        Some(keep_from)
    }
}

/// Readable bytes of one segment.
#[derive(Clone, Copy)]
pub(crate) struct RxSegmentPiece<'a> {
    chunk: &'a RxSegment,
    /// Offset in the chunk's buffer.
    at: usize,
    len: usize,
}

impl<'a> RxSegmentPiece<'a> {
    pub(crate) fn bytes(&self) -> &'a [u8] {
        &self.chunk.buf.as_slice()[self.at..self.at + self.len]
    }

    /// Returns the segment's payload as it arrived, and the offset of the piece in it.
    pub(crate) fn segment(&self) -> (&'a [u8], usize) {
        let RxSegment { buf, origin, end, .. } = self.chunk;
        (&buf.as_slice()[*origin..(*end).max(*origin)], self.at - origin)
    }

    pub(crate) const fn metadata(&self) -> &'a RxMetadata {
        &self.chunk.metadata
    }
}
