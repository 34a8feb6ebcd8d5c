//! PDUs of NVMe/TCP: headers as values, and faults in malformed ones (tcp section 3.6).
//!
//! Transports parse headers by [`PduHeader::parse`] and answer a [`PduFault`] with a terminate
//! request. A device that follows a stream, or searches it for a PDU, uses [`match_pdu_header`],
//! which is stricter: reserved bits and bytes must be zero. The callers verify the digests.

mod header;

use core::fmt;
use core::ops::Range;

pub use header::{DataPduHeader, IcReq, IcResp, PduHeader, R2t};

/// Length of the common header.
pub const COMMON_BYTES: usize = 8;
/// Length of the longest header, that of ICReq and ICResp.
pub const HEADER_BYTES_MAX: usize = 128;
/// Length of a CapsuleCmd's header.
pub const COMMAND_BYTES: usize = 72;
/// Length of every other header.
pub const HEADER_BYTES: usize = 24;
/// Length of a digest.
pub const DIGEST_BYTES: u32 = 4;
/// Maximum length of a terminate request (tcp section 3.6.2.3).
pub const TERM_BYTES_MAX: u32 = 152;
/// Maximum CPDA and HPDA: 32 dwords, less one.
pub const PDA_MAX: u8 = 31;
/// Minimum MAXH2CDATA of a controller (tcp section 3.6.2.2).
pub const MAXH2CDATA_MIN: u32 = 4096;
/// The only PDU format version.
pub const PFV: u16 = 0;

/// PDU type (tcp section 3.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum PduKind {
    /// Initialize Connection Request.
    ICReq = 0x00,
    /// Initialize Connection Response.
    ICResp = 0x01,
    /// Terminate connection request of the initiator.
    H2CTermReq = 0x02,
    /// Terminate connection request of the controller.
    C2HTermReq = 0x03,
    /// Command capsule, with or without data.
    CapsuleCmd = 0x04,
    /// Response capsule.
    CapsuleResp = 0x05,
    /// Data of a write.
    H2CData = 0x06,
    /// Data of a read.
    C2HData = 0x07,
    /// Ready to Transfer.
    R2T = 0x09,
}

impl PduKind {
    /// Decodes the first byte of a PDU.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0x00 => Self::ICReq,
            0x01 => Self::ICResp,
            0x02 => Self::H2CTermReq,
            0x03 => Self::C2HTermReq,
            0x04 => Self::CapsuleCmd,
            0x05 => Self::CapsuleResp,
            0x06 => Self::H2CData,
            0x07 => Self::C2HData,
            0x09 => Self::R2T,
            _ => return None,
        })
    }

    /// Returns HLEN: the length of the header without its digest.
    #[must_use]
    pub const fn header_len(self) -> u8 {
        match self {
            Self::ICReq | Self::ICResp => 128,
            Self::CapsuleCmd => 72,
            _ => 24,
        }
    }

    /// Returns whether initiators send this type; controllers send the others.
    #[must_use]
    pub const fn from_host(self) -> bool {
        matches!(self, Self::ICReq | Self::H2CTermReq | Self::CapsuleCmd | Self::H2CData)
    }

    /// Returns whether the PDU has a header digest if digests were negotiated.
    #[must_use]
    pub const fn can_have_header_digest(self) -> bool {
        !matches!(self, Self::ICReq | Self::ICResp | Self::H2CTermReq | Self::C2HTermReq)
    }

    /// Returns whether the PDU can carry command data.
    #[must_use]
    pub const fn can_carry_data(self) -> bool {
        matches!(self, Self::CapsuleCmd | Self::H2CData | Self::C2HData)
    }

    /// Returns the bits of FLAGS that are not reserved.
    const fn flags(self) -> PduFlags {
        match self {
            Self::ICReq | Self::ICResp | Self::H2CTermReq | Self::C2HTermReq => PduFlags::NONE,
            Self::CapsuleCmd => PduFlags::HDGST.with(PduFlags::DDGST),
            Self::CapsuleResp | Self::R2T => PduFlags::HDGST,
            Self::H2CData => PduFlags::HDGST.with(PduFlags::DDGST).with(PduFlags::LAST),
            Self::C2HData => {
                PduFlags::HDGST.with(PduFlags::DDGST).with(PduFlags::LAST).with(PduFlags::SUCCESS)
            }
        }
    }
}

/// FLAGS of the common header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PduFlags(pub u8);

impl PduFlags {
    /// HDGSTF: a header digest follows the header.
    pub const HDGST: Self = Self(0x01);
    /// DDGSTF: a data digest follows the data.
    pub const DDGST: Self = Self(0x02);
    /// LAST_PDU: the last data for this R2T, or for this command.
    pub const LAST: Self = Self(0x04);
    /// SUCCESS: the command completed without error, and no response capsule follows.
    pub const SUCCESS: Self = Self(0x08);
    /// No flags.
    pub const NONE: Self = Self(0);

    /// Returns the union of both sets.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns this set if `condition` is true, otherwise the empty set.
    #[must_use]
    pub const fn only_if(self, condition: bool) -> Self {
        if condition { self } else { Self::NONE }
    }

    /// Returns whether all flags of `other` are set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Fatal Error Status of a terminate request (tcp section 3.6.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FatalErrorStatus(pub u16);

impl FatalErrorStatus {
    /// A header field is invalid; the information is its offset.
    pub const INVALID_FIELD: Self = Self(1);
    /// The PDU is not allowed in the present state.
    pub const SEQUENCE: Self = Self(2);
    /// The header digest is wrong; the information is the received digest.
    pub const HEADER_DIGEST: Self = Self(3);
    /// The data is outside the command's data.
    pub const OUT_OF_RANGE: Self = Self(4);
    /// More data than allowed (sent by a controller), or more R2Ts (sent by an initiator).
    pub const LIMIT_EXCEEDED: Self = Self(5);
    /// A parameter is not supported; the information is its offset.
    pub const UNSUPPORTED: Self = Self(6);
}

impl fmt::Display for FatalErrorStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::INVALID_FIELD => "invalid PDU header field",
            Self::SEQUENCE => "PDU sequence error",
            Self::HEADER_DIGEST => "header digest error",
            Self::OUT_OF_RANGE => "data transfer out of range",
            Self::LIMIT_EXCEEDED => "data transfer or R2T limit exceeded",
            Self::UNSUPPORTED => "unsupported parameter",
            Self(other) => return write!(f, "fatal error status {other:#x}"),
        })
    }
}

/// A fault in a PDU, as reported by a terminate request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PduFault {
    /// Fatal error status.
    pub fes: FatalErrorStatus,
    /// Fatal Error Information: an offset in the header, a digest, or zero.
    pub fei: u32,
}

impl PduFault {
    /// The PDU is not allowed in the present state.
    pub const SEQUENCE: Self = Self { fes: FatalErrorStatus::SEQUENCE, fei: 0 };
    /// The data is outside the command's data.
    pub const OUT_OF_RANGE: Self = Self { fes: FatalErrorStatus::OUT_OF_RANGE, fei: 0 };
    /// More data in a PDU, or more R2Ts, than allowed.
    pub const LIMIT_EXCEEDED: Self = Self { fes: FatalErrorStatus::LIMIT_EXCEEDED, fei: 0 };

    /// Returns the fault of an invalid header field at this offset.
    #[must_use]
    pub const fn field(offset: u32) -> Self {
        Self { fes: FatalErrorStatus::INVALID_FIELD, fei: offset }
    }

    /// Returns the fault of an unsupported parameter at this offset.
    #[must_use]
    pub const fn unsupported(offset: u32) -> Self {
        Self { fes: FatalErrorStatus::UNSUPPORTED, fei: offset }
    }

    /// Returns the fault of a wrong header digest; `came` is the received one.
    #[must_use]
    pub const fn header_digest(came: u32) -> Self {
        Self { fes: FatalErrorStatus::HEADER_DIGEST, fei: came }
    }
}

impl fmt::Display for PduFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:#x})", self.fes, self.fei)
    }
}

/// Offsets of header fields, for Fatal Error Information.
pub mod at {
    /// PDU-Type.
    pub const TYPE: u32 = 0;
    /// FLAGS.
    pub const FLAGS: u32 = 1;
    /// HLEN.
    pub const HLEN: u32 = 2;
    /// PDO.
    pub const PDO: u32 = 3;
    /// PLEN.
    pub const PLEN: u32 = 4;
    /// PFV of ICReq and ICResp.
    pub const PFV: u32 = 8;
    /// HPDA of ICReq, CPDA of ICResp.
    pub const PDA: u32 = 10;
    /// DGST of ICReq and ICResp.
    pub const DGST: u32 = 11;
    /// MAXH2CDATA of ICResp.
    pub const MAXH2CDATA: u32 = 12;
    /// First field of a CapsuleCmd or CapsuleResp: the submission or completion queue entry.
    pub const ENTRY: u32 = 8;
    /// CCCID of H2CData, C2HData and R2T.
    pub const CCCID: u32 = 8;
    /// TTAG of H2CData and R2T.
    pub const TTAG: u32 = 10;
    /// DATAO of H2CData and C2HData, R2TO of R2T.
    pub const DATAO: u32 = 12;
    /// DATAL of H2CData and C2HData, R2TL of R2T.
    pub const DATAL: u32 = 16;
}

/// Negotiated parameters by which a receiver checks PDUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PduRules {
    /// Header digests are enabled.
    pub header_digest: bool,
    /// Data digests are enabled.
    pub data_digest: bool,
    /// The receiver's own PDA, 0 to [`PDA_MAX`]: data is aligned to multiples of PDA + 1 dwords.
    pub pda: u8,
    /// Maximum PLEN in bytes.
    pub plen_max: u32,
}

impl PduRules {
    /// Parameters before ICReq and ICResp.
    pub const NONE: Self = Self { header_digest: false, data_digest: false, pda: 0, plen_max: 128 };

    /// Returns the length of a header with its digest.
    #[must_use]
    pub const fn header_bytes(&self, kind: PduKind) -> u32 {
        let digest =
            if self.header_digest && kind.can_have_header_digest() { DIGEST_BYTES } else { 0 };
        kind.header_len() as u32 + digest
    }
}

/// Returns the offset of data in a PDU: after header, header digest, and padding to a multiple of
/// `pda` + 1 dwords (tcp section 3.3.1: CPDA and HPDA).
#[must_use]
pub const fn data_offset(header_len: u8, header_digest: bool, pda: u8) -> u32 {
    let digest = if header_digest { DIGEST_BYTES } else { 0 };
    (header_len as u32 + digest).next_multiple_of(alignment(pda))
}

const fn alignment(pda: u8) -> u32 {
    (pda as u32 + 1) * 4
}

/// A validated common header (tcp section 3.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PduCommonHeader {
    /// PDU-Type.
    pub kind: PduKind,
    /// FLAGS.
    pub flags: PduFlags,
    /// PDO, as received; zero if there is no data.
    pub pdo: u8,
    /// PLEN: length of the PDU.
    pub plen: u32,
    /// Length of the header with its digest.
    pub header_bytes: u32,
    /// Length of the data without its digest; in a terminate request that of the header in error.
    pub data_len: u32,
}

impl PduCommonHeader {
    /// Parses a common header and checks everything that needs no later bytes of the PDU.
    ///
    /// # Errors
    /// The [`PduFault`] for a terminate request.
    pub fn parse(bytes: &[u8; COMMON_BYTES], rules: &PduRules) -> Result<Self, PduFault> {
        let [kind, flags, hlen, pdo, plen @ ..] = *bytes;
        let kind = PduKind::from_byte(kind).ok_or(PduFault::field(at::TYPE))?;
        let (flags, plen) = (PduFlags(flags), u32::from_le_bytes(plen));
        if hlen != kind.header_len() {
            return Err(PduFault::field(at::HLEN));
        }
        let header_bytes = rules.header_bytes(kind);
        let plen_max = match kind {
            PduKind::ICReq | PduKind::ICResp => header_bytes,
            PduKind::H2CTermReq | PduKind::C2HTermReq => TERM_BYTES_MAX,
            _ => rules.plen_max,
        };
        if plen < header_bytes || plen > plen_max {
            return Err(PduFault::field(at::PLEN));
        }
        let mut common = Self { kind, flags, pdo: 0, plen, header_bytes, data_len: 0 };
        let rest = plen - header_bytes;
        match kind {
            PduKind::H2CTermReq | PduKind::C2HTermReq => common.data_len = rest,
            PduKind::CapsuleCmd if rest == 0 => {}
            _ if kind.can_carry_data() => common.set_data_offset(pdo, rules)?,
            _ if rest == 0 => {}
            _ => return Err(PduFault::field(at::PLEN)),
        }
        common.check_flags(rules)?;
        Ok(common)
    }

    /// Sets PDO and the data length. The data must be aligned as the receiver demands, and not
    /// empty.
    fn set_data_offset(&mut self, pdo: u8, rules: &PduRules) -> Result<(), PduFault> {
        let offset = u32::from(pdo);
        if offset < self.header_bytes || offset % alignment(rules.pda.min(PDA_MAX)) != 0 {
            return Err(PduFault::field(at::PDO));
        }
        let digest = if rules.data_digest { DIGEST_BYTES } else { 0 };
        match self.plen.checked_sub(offset + digest) {
            Some(len) if len > 0 => (self.pdo, self.data_len) = (pdo, len),
            _ => return Err(PduFault::field(at::PLEN)),
        }
        Ok(())
    }

    /// Checks that HDGSTF and DDGSTF are as negotiated (tcp section 3.3.1.1), and that SUCCESS
    /// comes only with the last data (section 3.6.2.8).
    fn check_flags(&self, rules: &PduRules) -> Result<(), PduFault> {
        let header = rules.header_digest && self.kind.can_have_header_digest();
        let data = rules.data_digest && self.carries_data();
        let success = self.kind == PduKind::C2HData && self.flags.has(PduFlags::SUCCESS);
        let wrong = self.flags.has(PduFlags::HDGST) != header
            || self.flags.has(PduFlags::DDGST) != data
            || success && !self.flags.has(PduFlags::LAST);
        if wrong { Err(PduFault::field(at::FLAGS)) } else { Ok(()) }
    }

    const fn carries_data(&self) -> bool {
        self.kind.can_carry_data() && self.data_len > 0
    }

    /// Returns the range of the data in the PDU; empty, at the PDU's end, if there is none.
    #[must_use]
    pub fn data(&self) -> Range<u32> {
        let start =
            if self.kind.can_carry_data() { u32::from(self.pdo) } else { self.header_bytes };
        if self.data_len == 0 { self.plen..self.plen } else { start..start + self.data_len }
    }

    /// Returns the range of the data digest in the PDU; `None` if there is none.
    #[must_use]
    pub fn data_digest(&self) -> Option<Range<u32>> {
        let start = self.data().end;
        (self.carries_data() && start < self.plen).then_some(start..self.plen)
    }

    /// Encodes the common header.
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; COMMON_BYTES] {
        let [a, b, c, d] = self.plen.to_le_bytes();
        [self.kind as u8, self.flags.0, self.kind.header_len(), self.pdo, a, b, c, d]
    }
}

/// Matches the magic pattern of NVMe/TCP (ANO section 5.1). Returns the common header at the start
/// of `bytes` if a PDU after ICReq and ICResp may begin there. Of `rules` all but the alignment
/// must be correct; an alignment of zero accepts all.
///
/// Stricter than [`PduCommonHeader::parse`]: reserved fields must be zero, and the length of data
/// must agree with the rest of the header, if `bytes` includes it. `None` may still be a PDU of an
/// unusual peer; whatever this function returns, [`PduCommonHeader::parse`] accepts.
#[must_use]
pub fn match_pdu_header(bytes: &[u8], rules: &PduRules) -> Option<PduCommonHeader> {
    let first: &[u8; COMMON_BYTES] = bytes.first_chunk()?;
    let common = PduCommonHeader::parse(first, rules).ok()?;
    let reserved = common.flags.0 & !common.kind.flags().0;
    let setup = matches!(common.kind, PduKind::ICReq | PduKind::ICResp);
    // Terminate requests and PDUs without data have no data offset.
    if setup || reserved != 0 || common.pdo != first[at::PDO as usize] {
        return None;
    }
    if let (PduKind::H2CData | PduKind::C2HData, Some(bytes)) = (common.kind, bytes.first_chunk()) {
        DataPduHeader::parse(&common, bytes).ok()?;
    }
    Some(common)
}

#[cfg(test)]
mod tests;
