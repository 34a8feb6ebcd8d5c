//! Frames as they cross between a device and its wire.
//!
//! The wire is in `io` (TAP, packet sockets, a memory link) or in `sim`. Segments of up to 64 KiB
//! and unfinished checksums may cross in one call where the wire says that it can take them.

use alloc::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::aligned::AlignedBuf;
use crate::{Checksum, Header, PacketBuf};

/// Bytes of a frame after its headers: shared, never copied on the way to the wire.
#[derive(Clone, Debug)]
pub enum Payload {
    /// The host's memory.
    Host(Bytes),
    /// Part of a buffer that the device read from a disk.
    Block {
        /// The buffer.
        block: Arc<AlignedBuf>,
        /// First byte.
        start: u32,
        /// Bytes.
        len: u32,
    },
    /// Part of a frame that came in and goes on. Who drops the frame may give the buffer back first
    /// (`Device::recycle` of `nic`).
    Packet {
        /// The buffer.
        packet: Arc<PacketBuf>,
        /// First byte.
        start: u32,
        /// Bytes.
        len: u32,
    },
}

impl Payload {
    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Host(bytes) => bytes,
            Self::Block { block, start, len } => {
                &block.as_slice()[*start as usize..][..*len as usize]
            }
            Self::Packet { packet, start, len } => {
                &packet.as_slice()[*start as usize..][..*len as usize]
            }
        }
    }

    /// `len` bytes of it from `start`.
    ///
    /// # Panics
    /// Where the range is not within it.
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
            Self::Packet { packet, start, .. } => Self::Packet {
                packet: Arc::clone(packet),
                start: *start + from as u32,
                len: bytes as u32,
            },
        }
    }
}

/// Payloads of one frame, in order.
pub type Payloads = SmallVec<[Payload; 3]>;

/// A frame on its way out.
#[derive(Clone, Debug)]
pub struct TxFrame {
    /// Ethernet, network and transport headers.
    pub header: Header,
    /// What follows them.
    pub payload: Payloads,
    /// Payload bytes of each packet that the wire shall cut this into; zero for a frame that goes
    /// as it is. Only where [`WireCaps::segmentation`] is set, or for UDP the other one.
    pub segment_size: u16,
    /// Whether the wire has to fill in the transport checksum: its field then holds the
    /// pseudo-header's sum. Only where [`WireCaps::checksum`] is set.
    pub checksum_partial: bool,
}

impl TxFrame {
    /// Bytes of headers and payload.
    #[must_use]
    pub fn len(&self) -> usize {
        self.header.len() + self.payload_len()
    }

    /// Whether there are no bytes in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of payload.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        self.payload.iter().map(|p| p.as_slice().len()).sum()
    }

    /// Copies the frame into `out`, which is exactly as long as it.
    ///
    /// # Panics
    /// Where the lengths differ.
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

/// A frame on its way in.
#[derive(Debug)]
pub struct RxFrame {
    /// The frame.
    pub packet: PacketBuf,
    /// What the wire knows of the transport checksum.
    pub checksum: Checksum,
    /// Payload bytes of each packet merged into this frame; zero where nothing was merged.
    pub segment_size: u16,
}

/// What a wire can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireCaps {
    /// TCP runs with [`TxFrame::segment_size`] set: of up to 64 KiB, or more where the device was
    /// told so.
    pub segmentation: bool,
    /// The same of UDP, up to 64 KiB: with [`Self::checksum`] only.
    pub udp_segmentation: bool,
    /// Frames with [`TxFrame::checksum_partial`] set.
    pub checksum: bool,
    /// Largest packet above Ethernet, in bytes.
    pub mtu: u16,
}

/// What became of a frame that was to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum TxStatus {
    /// The link has it. That it arrives is not promised.
    Sent,
    /// No room at the moment: the same frame may be offered again.
    Full,
    /// The link cannot take this frame, now or later; it is counted.
    Failed,
    /// The link has no room for so long a run of segments, but may have it for the same in pieces.
    TooLong,
}
