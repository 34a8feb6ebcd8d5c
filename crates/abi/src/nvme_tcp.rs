//! NVMe over TCP on the autonomous offload ([`crate::l5o`]; Autonomous NIC Offloads, sections 5.1
//! and 5.3), with the operations of Linux's proposed `ulp_ddp`.
//!
//! A receive context follows the PDUs of one connection, checks data digests, and copies data into
//! buffers that the host registered before it asked for the data (direct data placement). A
//! transmit context fills data digests in. Both work on the *stream*: the TCP payload, or the
//! content of TLS records on it. Positions in the stream are sequence numbers, wrapping at 2^32: on
//! plain TCP those of TCP, else they go on with each byte of content from where the context began.
//!
//! The memory of a registered buffer moves to the device and comes back by
//! [`crate::Event::DdpTeardownDone`]; so nobody reads what somebody else may still write. The bytes
//! of a frame stay in the frame: a host that does not believe a placement copies them.

use core::ops::Range;

use base::SeqNum;
use bytes::Bytes;
use smallvec::SmallVec;

use crate::aligned::AlignedBuf;
use crate::l5o::L5oId;
use crate::{FileExtent, FlowId, Refusal};

/// One direction of an NVMe/TCP connection after `ICReq` and `ICResp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmeTcpState {
    /// Every PDU's header is followed by its CRC32C.
    pub header_digest: bool,
    /// Data is followed by its CRC32C.
    pub data_digest: bool,
    /// Largest PDU that the peer may send, in bytes; a longer one is no PDU.
    pub pdu_bytes_max: u32,
    /// The records that carry it; none on plain TCP.
    pub over: Option<OverTls>,
}

/// Where the stream begins in TLS records: with the first byte of content of record `number`,
/// whose first byte on the wire is [`crate::l5o::L5oCreate::tcpsn`]. That number is also the
/// position in the stream.
///
/// It goes on over records of application data that are not padded. A receive context that meets
/// another record stops for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverTls {
    /// TLS's context of the same direction.
    pub context: L5oId,
    /// The record.
    pub number: u64,
    /// Bytes of content from there to the first PDU: what precedes is the rest of one that somebody
    /// else follows.
    pub skip: u32,
}

/// The host's name for a buffer that it lends. No other of a connection has it, but for one that
/// was lent 2^32 buffers before: a tag is used again while frames with claims about the buffer
/// before are still unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DdpId(pub u32);

/// `ulp_ddp_ops::setup`: data that comes under a tag goes to a buffer.
#[derive(Debug)]
pub struct DdpSetup {
    /// The receive context.
    pub context: L5oId,
    /// The connection.
    pub flow: FlowId,
    /// What the data comes under: `CCCID` in C2HData, `TTAG` in H2CData.
    pub tag: u16,
    /// The buffer's name.
    pub id: DdpId,
    /// `DATAO` of the buffer's first byte.
    pub offset: u32,
    /// Bytes that are awaited, from the first on: at most the buffer's length.
    pub len: u32,
    /// Those of them that are there already, from the first on: fewer than `len`. They stay as they
    /// are.
    pub there: u32,
    /// Where they go.
    pub buffer: AlignedBuf,
}

impl DdpSetup {
    /// The answer of a device that will not have the buffer.
    #[must_use]
    pub fn refuse(self, why: Refusal) -> DdpTeardownDone {
        let Self { context, flow, tag, id, buffer, .. } = self;
        DdpTeardownDone { context, flow, tag, id, buffer, refused: Some(why) }
    }
}

/// `ulp_ddp_ulp_ops::ddp_teardown_done`: the device uses a buffer no more. It says so when the host
/// asks ([`crate::Op::DdpTeardown`]), unasked when every byte awaited was placed, at once where it
/// will not have the buffer, and for every buffer after a reset.
#[derive(Debug)]
pub struct DdpTeardownDone {
    /// The receive context.
    pub context: L5oId,
    /// The connection.
    pub flow: FlowId,
    /// The tag.
    pub tag: u16,
    /// The buffer's name.
    pub id: DdpId,
    /// The buffer.
    pub buffer: AlignedBuf,
    /// Why it was never used.
    pub refused: Option<Refusal>,
}

/// What was done with the bytes of a received frame (`ulp_ddp` and `ulp_crc` of an skb).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Placed {
    /// Which context did it; none in a default.
    pub context: Option<L5oId>,
    /// Bytes that are also in buffers, in the order of the payload; they do not overlap.
    pub placements: SmallVec<[Placement; 2]>,
    /// Ranges of the TCP payload in which all data of PDUs is in the sums that digests are compared
    /// with, in order. What came twice is summed once, and is in no range of the other frame.
    pub summed: SmallVec<[Range<u32>; 1]>,
    /// Positions in the stream of PDUs all of whose bytes were seen, and whose digests are right,
    /// each once, with this frame as the last that brought bytes of it. A PDU that has no digest
    /// is not named. It speaks for the bytes that were summed, and for no other copy of them.
    pub verified: SmallVec<[SeqNum; 2]>,
}

/// A range of a frame's TCP payload that was copied to a buffer.
///
/// Where it lies in a TLS record it counts only if that record is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The bytes.
    pub range: Range<u32>,
    /// The buffer.
    pub id: DdpId,
    /// `DATAO` of the first of them.
    pub offset: u32,
}

/// A range of a PDU that the device completes with its data digest.
///
/// What the digest says depends on all of the data. Where the range begins within the data, or
/// behind it, and where the last range made for this context ended, the device knows the sum so
/// far. Else, and where the range has a byte of the digest, [`Self::prefix`] brings all of the
/// data that precedes the range.
#[derive(Clone, Debug)]
pub struct PduRange {
    /// The transmit context.
    pub context: L5oId,
    /// The PDU's number in the context: the same for every range of it, another for any other.
    pub number: u64,
    /// All that precedes the data: header, header digest, padding.
    pub header: Bytes,
    /// Bytes of data in the PDU.
    pub data_len: u32,
    /// Data, from `prefix` bytes before the range's first to the range's last.
    pub data: Data,
    /// Bytes of `data` that precede the range: zero, or all of the data before it.
    pub prefix: u32,
    /// Bytes of the PDU before the range.
    pub skip: u32,
    /// Bytes of the range.
    pub len: u32,
}

impl PduRange {
    /// How much of [`Self::data`] precedes the byte `at` of the range.
    #[must_use]
    pub fn data_before(&self, at: u32) -> u32 {
        let header = u32::try_from(self.header.len()).unwrap_or(u32::MAX);
        let data = |place: u32| place.saturating_sub(header).min(self.data_len);
        let before = data(self.skip.saturating_add(at)) - data(self.skip);
        self.prefix.saturating_add(before)
    }
}

/// Where the data of a PDU comes from.
#[derive(Clone, Debug)]
pub enum Data {
    /// The host's memory.
    Host(Bytes),
    /// A file that the device reads.
    File(FileExtent),
}

impl Data {
    /// Bytes of it.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Host(bytes) => bytes.len(),
            Self::File(extent) => extent.len as usize,
        }
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The range of a file that the device reads for it.
    #[must_use]
    pub const fn extent(&self) -> Option<&FileExtent> {
        match self {
            Self::File(extent) => Some(extent),
            Self::Host(_) => None,
        }
    }

    /// The same, to change it.
    pub const fn extent_mut(&mut self) -> Option<&mut FileExtent> {
        match self {
            Self::File(extent) => Some(extent),
            Self::Host(_) => None,
        }
    }
}

/// Bytes of a data digest.
pub const DIGEST_BYTES: u32 = 4;

/// Most bytes of [`PduRange::prefix`], over all ranges of one transmit; one with more is refused.
/// So the digest of a PDU with more data is the host's to compute.
pub const PREFIX_BYTES_MAX: u32 = 1 << 20;

/// What the engine offers (`struct ulp_ddp_limits`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmeTcpLimits {
    /// Fills digests in.
    pub tx: bool,
    /// Checks digests.
    pub rx: bool,
    /// Buffers that may be registered at one time over all contexts; zero where it does not place.
    pub buffers_max: u32,
    /// Bytes of all of them.
    pub buffer_bytes_max: u64,
    /// Fewer bytes than these are not worth a registration.
    pub io_threshold: u32,
}
