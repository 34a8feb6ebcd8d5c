//! NVMe/TCP on the layer-5 offload ([`crate::l5o`]; Autonomous NIC Offloads, sections 5.1 and 5.3),
//! with the operations of Linux's proposed `ulp_ddp`.
//!
//! A receive context follows the PDUs of one connection, verifies data digests, and copies data
//! into buffers that the host registered before it requested the data (direct data placement). A
//! transmit context fills data digests in. Both work on the *stream*: the TCP payload, or the
//! content of the TLS records in it. Stream positions are sequence numbers modulo 2^32: on plain
//! TCP those of TCP; in TLS records they start at that of the context's first record and count
//! bytes of content.
//!
//! The memory of a registered buffer moves to the device and returns with
//! [`crate::Event::DdpTeardownDone`], so the host never reads memory that the device may still
//! write. The bytes of a frame stay in the frame: a host that does not accept a placement copies
//! them.

use core::ops::Range;

use base::SeqNum;
use bytes::Bytes;
use smallvec::SmallVec;

use crate::aligned::AlignedBuf;
use crate::inspect::InspectClaims;
use crate::l5o::L5oId;
use crate::region::RegionRange;
use crate::{FileExtent, FlowId, Refusal};

/// State of one direction of an NVMe/TCP connection after `ICReq` and `ICResp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmeTcpState {
    /// PDU headers are followed by their CRC32C.
    pub header_digest: bool,
    /// Data is followed by its CRC32C.
    pub data_digest: bool,
    /// Length of the longest PDU that the peer may send, in bytes; a header with a greater length
    /// is not taken for a PDU.
    pub pdu_bytes_max: u32,
    /// The TLS records that carry the stream; `None` on plain TCP.
    pub tls: Option<TlsCarrier>,
}

/// Start of a stream that is carried by TLS records: the first content byte of record
/// `first_record`, whose first byte has the sequence number [`crate::l5o::L5oCreate::tcpsn`]. That
/// sequence number is also the stream position of the first content byte.
///
/// The stream continues over records of application data without padding. A receive context that
/// meets any other record stops permanently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsCarrier {
    /// TLS context of the same direction.
    pub context: L5oId,
    /// Number of the first record.
    pub first_record: u64,
    /// Bytes of content before the first PDU of the context: the rest of a PDU that the host
    /// processes itself.
    pub skip: u32,
}

/// The host's number for a registered buffer. Numbers of a connection wrap after 2^32 buffers.
/// Unlike tags, they are not reused while frames with claims about an earlier buffer may still be
/// unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DdpId(pub u32);

/// Memory of a registered buffer. The device only writes to it.
#[derive(Debug)]
pub enum DdpBuffer {
    /// Memory of this process.
    Pages(AlignedBuf),
    /// Memory that the host shares with a device in another process, which thus reaches the host
    /// even if the device's process ends.
    Shared(RegionRange),
}

impl DdpBuffer {
    /// Returns the length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub const fn len(&self) -> usize {
        match self {
            Self::Pages(pages) => pages.len(),
            Self::Shared(range) => range.len(),
        }
    }

    /// Copies `bytes` to the buffer, from its byte `at` on. Returns false, and copies nothing, if
    /// they do not fit.
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> bool {
        match self {
            Self::Pages(pages) => {
                let to =
                    pages.as_mut_slice().get_mut(at..).and_then(|to| to.get_mut(..bytes.len()));
                to.map(|to| to.copy_from_slice(bytes)).is_some()
            }
            Self::Shared(range) => range.write(at, bytes),
        }
    }

    /// Returns the memory of this process.
    ///
    /// # Panics
    /// If it is shared: the host's end of a carrier replaces such memory by the pages that the host
    /// has registered.
    #[must_use]
    pub fn into_pages(self) -> AlignedBuf {
        match self {
            Self::Pages(pages) => pages,
            Self::Shared(range) => unreachable!("{range:?} was not replaced"),
        }
    }
}

/// `ulp_ddp_ops::setup`: registers a buffer for the data of one tag.
#[derive(Debug)]
pub struct DdpSetup {
    /// The receive context.
    pub context: L5oId,
    /// The connection.
    pub flow: FlowId,
    /// Tag of the data: `CCCID` in C2HData, `TTAG` in H2CData.
    pub tag: u16,
    /// Number of the buffer.
    pub id: DdpId,
    /// `DATAO` of the buffer's first byte.
    pub offset: u32,
    /// Bytes of data expected from `offset` on: at most the buffer's length.
    pub len: u32,
    /// Leading bytes of the expected ones that are already in the buffer: fewer than `len`. The
    /// device does not write them.
    pub filled: u32,
    /// The memory.
    pub buffer: DdpBuffer,
}

impl DdpSetup {
    /// Returns the answer of a device that refuses the buffer.
    #[must_use]
    pub fn refuse(self, why: Refusal) -> DdpTeardownDone {
        let Self { context, flow, tag, id, buffer, .. } = self;
        DdpTeardownDone { context, flow, tag, id, buffer, refused: Some(why) }
    }
}

/// `ulp_ddp_ulp_ops::ddp_teardown_done`: the device no longer uses a buffer and returns it. Sent on
/// the host's request ([`crate::Op::DdpTeardown`]), when every expected byte was placed, at once if
/// the device refuses the buffer, and for every buffer when its context is destroyed or the device
/// is reset.
#[derive(Debug)]
pub struct DdpTeardownDone {
    /// The receive context.
    pub context: L5oId,
    /// The connection.
    pub flow: FlowId,
    /// The tag.
    pub tag: u16,
    /// Number of the buffer.
    pub id: DdpId,
    /// The memory.
    pub buffer: DdpBuffer,
    /// Reason for which the device refused the buffer; `None` if it was registered.
    pub refused: Option<Refusal>,
}

/// Claims of a receive context about a received frame (`ulp_ddp` and `ulp_crc` of an skb).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct NvmeRxClaims {
    /// The context; `None` only in a default value.
    pub context: Option<L5oId>,
    /// Ranges that were also copied to buffers, in the order of the payload and without overlap.
    pub placements: SmallVec<[DdpPlacement; 2]>,
    /// Ranges of the TCP payload whose PDU data is included in the device's running digests, in
    /// order. Of bytes that were received twice, only one copy is included, and only its frame has
    /// the range.
    pub summed: SmallVec<[Range<u32>; 1]>,
    /// Stream positions of PDUs all of whose bytes were received and whose digests are correct,
    /// with this frame as the last that delivered bytes of them. Each PDU is named once; a PDU
    /// without digests is never named. The claim covers the copies of the bytes in `summed` ranges
    /// and no others.
    pub verified: SmallVec<[SeqNum; 2]>,
    /// Claims about data of commands that was inspected for patterns, in the order of the payload;
    /// each range lies in the data of one PDU.
    pub inspected: Option<InspectClaims>,
}

/// Claim that a range of a frame's TCP payload was copied to a buffer.
///
/// If the range lies in a TLS record, the claim is valid only if that record is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DdpPlacement {
    /// The range of the TCP payload.
    pub range: Range<u32>,
    /// The buffer.
    pub id: DdpId,
    /// `DATAO` of the range's first byte.
    pub offset: u32,
}

/// A range of a PDU that the device completes with its data digest.
///
/// The digest depends on all data of the PDU. If the range begins in or after the data, exactly
/// where the context's previous range ended, the device has the digest of the preceding data.
/// Otherwise, if the range includes a byte of the digest, [`Self::prefix`] supplies all data that
/// precedes the range.
#[derive(Clone, Debug)]
pub struct PduRange {
    /// The transmit context.
    pub context: L5oId,
    /// Number of the PDU in the context: the same for every range of the PDU, and different from
    /// that of any other.
    pub number: u64,
    /// Everything before the data: header, header digest, padding.
    pub header: Bytes,
    /// Length of the PDU's data in bytes.
    pub data_len: u32,
    /// Data, from `prefix` bytes before the range to the end of the range.
    pub data: PduDataSource,
    /// Leading bytes of `data` that precede the range: zero, or all data before it.
    pub prefix: u32,
    /// Bytes of the PDU before the range.
    pub skip: u32,
    /// Length of the range in bytes.
    pub len: u32,
}

impl PduRange {
    /// Returns how many bytes of [`Self::data`] precede byte `at` of the range.
    #[must_use]
    pub fn data_before(&self, at: u32) -> u32 {
        let header = u32::try_from(self.header.len()).unwrap_or(u32::MAX);
        let data = |place: u32| place.saturating_sub(header).min(self.data_len);
        let before = data(self.skip.saturating_add(at)) - data(self.skip);
        self.prefix.saturating_add(before)
    }
}

/// Source of a PDU's data.
#[derive(Clone, Debug)]
pub enum PduDataSource {
    /// Bytes in the host's memory.
    Host(Bytes),
    /// Bytes of a file, read by the device.
    File(FileExtent),
}

impl PduDataSource {
    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Host(bytes) => bytes.len(),
            Self::File(extent) => extent.len as usize,
        }
    }

    /// Returns whether there is no data.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the range of a file that the device reads for it.
    #[must_use]
    pub const fn extent(&self) -> Option<&FileExtent> {
        match self {
            Self::File(extent) => Some(extent),
            Self::Host(_) => None,
        }
    }

    /// Returns a mutable reference to [`Self::extent`].
    pub const fn extent_mut(&mut self) -> Option<&mut FileExtent> {
        match self {
            Self::File(extent) => Some(extent),
            Self::Host(_) => None,
        }
    }
}

/// Length of a data digest in bytes.
pub const DIGEST_BYTES: u32 = 4;

/// Maximum number of bytes of [`PduRange::prefix`] over all ranges of one transmit; a transmit with
/// more is refused. For PDUs with more data the host computes the digest.
pub const PREFIX_BYTES_MAX: u32 = 1 << 20;

/// Limits of the NVMe/TCP offload (`struct ulp_ddp_limits`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmeTcpLimits {
    /// The device fills in data digests.
    pub tx: bool,
    /// The device verifies data digests.
    pub rx: bool,
    /// Registered buffers at one time, over all contexts; zero if the device does not place data.
    pub buffers_max: u32,
    /// Bytes of all registered buffers.
    pub buffer_bytes_max: u64,
    /// Smallest size in bytes for which a registration is worthwhile.
    pub io_threshold: u32,
}
