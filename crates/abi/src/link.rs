//! Frames between a device and its link.
//!
//! The link is implemented in `io` (TAP, packet sockets, a memory link) and in `sim`. If its
//! capabilities allow, segments of up to 64 KiB and partial checksums cross in one call.

use alloc::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::aligned::AlignedBuf;
use crate::{Checksum, PacketBuf, PacketHeader};

/// Bytes of a frame after its headers: shared, never copied on the way to the link.
#[derive(Clone, Debug)]
pub enum FramePayload {
    /// Memory of the host.
    Host(Bytes),
    /// Part of a block of the device's memory: file content, or output of an engine.
    Block {
        /// The block.
        block: Arc<AlignedBuf>,
        /// Offset of the first byte in the block.
        start: u32,
        /// Length in bytes.
        len: u32,
    },
    /// A received frame that is relayed as a whole, with headers rewritten in its buffer.
    Frame(PacketBuf),
    /// Part of a received frame that is relayed. After sending, the frame's owner may return the
    /// buffer to the device (`Device::recycle` in `nic`) instead of dropping it.
    Packet {
        /// The received frame.
        packet: Arc<PacketBuf>,
        /// Offset of the first byte in the frame.
        start: u32,
        /// Length in bytes.
        len: u32,
    },
}

impl FramePayload {
    /// Returns the bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Host(bytes) => bytes,
            Self::Block { block, start, len } => {
                &block.as_slice()[*start as usize..][..*len as usize]
            }
            Self::Frame(packet) => packet.as_slice(),
            Self::Packet { packet, start, len } => {
                &packet.as_slice()[*start as usize..][..*len as usize]
            }
        }
    }

    /// Returns the buffer of a received frame, if the payload is all or the last part of one.
    #[must_use]
    pub fn into_received(self) -> Option<PacketBuf> {
        match self {
            Self::Host(_) | Self::Block { .. } => None,
            Self::Frame(packet) => Some(packet),
            Self::Packet { packet, .. } => Arc::into_inner(packet),
        }
    }

    /// Returns the part of `bytes` bytes at offset `from`.
    ///
    /// # Panics
    /// If the range does not lie within the payload.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the range lies in the payload: asserted")]
    pub fn slice(&self, from: usize, bytes: usize) -> Self {
        assert!(from + bytes <= self.as_slice().len(), "a slice lies within its payload");
        match self {
            Self::Host(host) => Self::Host(host.slice(from..from + bytes)),
            Self::Block { block, start, .. } => Self::Block {
                block: Arc::clone(block),
                start: *start + from as u32,
                len: bytes as u32,
            },
            Self::Frame(packet) => {
                Self::Host(Bytes::copy_from_slice(&packet.as_slice()[from..from + bytes]))
            }
            Self::Packet { packet, start, .. } => Self::Packet {
                packet: Arc::clone(packet),
                start: *start + from as u32,
                len: bytes as u32,
            },
        }
    }
}

/// Payloads of one frame, in order.
pub type FramePayloads = SmallVec<[FramePayload; 3]>;

/// A frame to be sent.
#[derive(Clone, Debug)]
pub struct TxFrame {
    /// Ethernet, network and transport headers. Empty if they lie at the front of the payload; see
    /// [`Self::headers`].
    pub header: PacketHeader,
    /// Payload, which follows the headers. That of a relayed frame may begin with them
    /// ([`FramePayload::Frame`]).
    pub payload: FramePayloads,
    /// Payload bytes of each packet into which the link cuts the frame; zero if it is one packet.
    /// Nonzero only if the link has [`LinkCaps::segmentation`], or for UDP
    /// [`LinkCaps::udp_segmentation`].
    pub segment_size: u16,
    /// True if the link has to complete the transport checksum, whose field holds the sum of the
    /// pseudo-header. Only if the link has [`LinkCaps::checksum`].
    pub checksum_partial: bool,
}

impl TxFrame {
    /// Returns bytes that begin with the headers, for those who read their fields: the headers
    /// alone, or the whole frame if they lie at the front of its payload.
    #[must_use]
    pub fn headers(&self) -> &[u8] {
        match self.payload.first() {
            Some(frame) if self.header.is_empty() => frame.as_slice(),
            _ => self.header.as_slice(),
        }
    }

    /// Returns the length of headers and payload in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.header.len() + self.payload_len()
    }

    /// Returns whether the frame has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of payload bytes, including headers at their front.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        self.payload.iter().map(|p| p.as_slice().len()).sum()
    }

    /// Returns the number of packets that the link cuts the frame into.
    #[must_use]
    pub fn packets(&self) -> usize {
        match usize::from(self.segment_size) {
            0 => 1,
            size => self.payload_len().div_ceil(size).max(1),
        }
    }

    /// Returns the number of bytes of these packets, headers included.
    #[must_use]
    pub fn bytes_on_link(&self) -> usize {
        self.packets() * self.header.len() + self.payload_len()
    }

    /// Copies the frame into `out`, which must have the frame's length.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn copy_to(&self, out: &mut [u8]) {
        assert_eq!(out.len(), self.len(), "the frame fills the buffer exactly");
        let (head, mut rest) = out.split_at_mut(self.header.len());
        head.copy_from_slice(self.header.as_slice());
        for payload in &self.payload {
            let bytes = payload.as_slice();
            let (here, after) = rest.split_at_mut(bytes.len());
            here.copy_from_slice(bytes);
            rest = after;
        }
    }
}

/// A received frame.
#[derive(Debug)]
pub struct RxFrame {
    /// The frame.
    pub packet: PacketBuf,
    /// The link's knowledge of the transport checksum.
    pub checksum: Checksum,
    /// Payload bytes of each packet that was merged into this frame; zero for a single packet.
    pub segment_size: u16,
}

/// Capabilities of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkCaps {
    /// The link segments TCP (TSO): it accepts frames with [`TxFrame::segment_size`] set, of up to
    /// 64 KiB, or longer if the device is configured for it.
    pub segmentation: bool,
    /// The link segments UDP (USO), up to 64 KiB. Requires [`Self::checksum`].
    pub udp_segmentation: bool,
    /// The link completes checksums: it accepts frames with [`TxFrame::checksum_partial`] set.
    pub checksum: bool,
    /// Largest packet in bytes, without the Ethernet header.
    pub mtu: u16,
}

/// Result of giving a frame to the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum LinkTxStatus {
    /// The link has taken the frame. Delivery is not guaranteed.
    Sent,
    /// The link has no room at the moment; the same frame may be offered again.
    Full,
    /// The link can never take this frame; it is counted and dropped.
    Failed,
    /// The link has no room for a run of this length, but may have room for it in shorter pieces.
    TooLong,
}
