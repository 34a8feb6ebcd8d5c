//! PDUs of NVMe/TCP: their headers as values, and what is wrong with one that is not (tcp, section
//! 3.6).
//!
//! Transports parse each header by [`Header::parse`] and answer a [`Fault`] with a terminate
//! request. A device that follows a stream, or looks for a PDU in it, asks [`common`], which is
//! stricter: bits and bytes that are reserved have to be zero. Digests are left to both of them.

mod header;

use core::fmt;
use core::ops::Range;

pub use header::{DataHeader, Header, IcReq, IcResp, R2t};

/// Bytes that every PDU begins with.
pub const COMMON_BYTES: usize = 8;
/// Bytes of the longest header: ICReq and ICResp.
pub const HEADER_BYTES_MAX: usize = 128;
/// Bytes of a CapsuleCmd's header.
pub const COMMAND_BYTES: usize = 72;
/// Bytes of every other header.
pub const HEADER_BYTES: usize = 24;
/// Bytes of a digest.
pub const DIGEST_BYTES: u32 = 4;
/// Most bytes of a terminate request (tcp, section 3.6.2.3).
pub const TERM_BYTES_MAX: u32 = 152;
/// Largest CPDA or HPDA: one less than 32 dwords.
pub const PDA_MAX: u8 = 31;
/// Smallest MAXH2CDATA that a controller may say (tcp, section 3.6.2.2).
pub const MAXH2CDATA_MIN: u32 = 4096;
/// The only PDU format version.
pub const PFV: u16 = 0;

/// Which PDU (tcp, section 3.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Initialize connection request.
    ICReq = 0x00,
    /// Initialize connection response.
    ICResp = 0x01,
    /// The host ends the connection.
    H2CTermReq = 0x02,
    /// The controller ends the connection.
    C2HTermReq = 0x03,
    /// A command, with or without data.
    CapsuleCmd = 0x04,
    /// A completion.
    CapsuleResp = 0x05,
    /// Data of a write.
    H2CData = 0x06,
    /// Data of a read.
    C2HData = 0x07,
    /// The controller is ready to transfer.
    R2T = 0x09,
}

impl Kind {
    /// By the first byte of a PDU.
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

    /// HLEN: bytes of the header, its digest not included.
    #[must_use]
    pub const fn header_len(self) -> u8 {
        match self {
            Self::ICReq | Self::ICResp => 128,
            Self::CapsuleCmd => 72,
            _ => 24,
        }
    }

    /// Whether hosts send it; controllers send the others.
    #[must_use]
    pub const fn from_host(self) -> bool {
        matches!(self, Self::ICReq | Self::H2CTermReq | Self::CapsuleCmd | Self::H2CData)
    }

    /// Whether it can have a header digest.
    #[must_use]
    pub const fn has_digests(self) -> bool {
        !matches!(self, Self::ICReq | Self::ICResp | Self::H2CTermReq | Self::C2HTermReq)
    }

    /// Whether it can carry data of a command.
    #[must_use]
    pub const fn has_data(self) -> bool {
        matches!(self, Self::CapsuleCmd | Self::H2CData | Self::C2HData)
    }

    /// Bits of FLAGS that are not reserved.
    const fn flags(self) -> Flags {
        match self {
            Self::ICReq | Self::ICResp | Self::H2CTermReq | Self::C2HTermReq => Flags::NONE,
            Self::CapsuleCmd => Flags::HDGST.with(Flags::DDGST),
            Self::CapsuleResp | Self::R2T => Flags::HDGST,
            Self::H2CData => Flags::HDGST.with(Flags::DDGST).with(Flags::LAST),
            Self::C2HData => Flags::HDGST.with(Flags::DDGST).with(Flags::LAST).with(Flags::SUCCESS),
        }
    }
}

/// FLAGS of the common header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// HDGSTF: a header digest follows the header.
    pub const HDGST: Self = Self(0x01);
    /// DDGSTF: a data digest follows the data.
    pub const DDGST: Self = Self(0x02);
    /// LAST_PDU: no more data for this R2T, or for this command.
    pub const LAST: Self = Self(0x04);
    /// SUCCESS: the command has ended without error, and no response follows.
    pub const SUCCESS: Self = Self(0x08);
    /// None.
    pub const NONE: Self = Self(0);

    /// Both sets together.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// This set, or none.
    #[must_use]
    pub const fn only_if(self, condition: bool) -> Self {
        if condition { self } else { Self::NONE }
    }

    /// Whether all of `other` are set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Fatal error status of a terminate request (tcp, section 3.6.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fes(pub u16);

impl Fes {
    /// A field of a header is wrong; the information is its offset.
    pub const INVALID_FIELD: Self = Self(1);
    /// A PDU that may not come now.
    pub const SEQUENCE: Self = Self(2);
    /// The header digest is wrong; the information is the digest that came.
    pub const HEADER_DIGEST: Self = Self(3);
    /// Data outside the command's.
    pub const OUT_OF_RANGE: Self = Self(4);
    /// More data than was allowed (from a controller), or more R2Ts (from a host).
    pub const LIMIT_EXCEEDED: Self = Self(5);
    /// A parameter that is not supported; the information is its offset.
    pub const UNSUPPORTED: Self = Self(6);
}

impl fmt::Display for Fes {
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

/// What is wrong with a PDU, as a terminate request says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fault {
    /// Fatal error status.
    pub fes: Fes,
    /// Fatal error information: an offset in the header, a digest, or zero.
    pub fei: u32,
}

impl Fault {
    /// A PDU that may not come now.
    pub const SEQUENCE: Self = Self { fes: Fes::SEQUENCE, fei: 0 };
    /// Data outside the command's.
    pub const OUT_OF_RANGE: Self = Self { fes: Fes::OUT_OF_RANGE, fei: 0 };
    /// More data in a PDU, or more R2Ts, than was allowed.
    pub const LIMIT_EXCEEDED: Self = Self { fes: Fes::LIMIT_EXCEEDED, fei: 0 };

    /// The field at this offset of the header is wrong.
    #[must_use]
    pub const fn field(offset: u32) -> Self {
        Self { fes: Fes::INVALID_FIELD, fei: offset }
    }

    /// The parameter at this offset of the header is not supported.
    #[must_use]
    pub const fn unsupported(offset: u32) -> Self {
        Self { fes: Fes::UNSUPPORTED, fei: offset }
    }

    /// This header digest came, and is wrong.
    #[must_use]
    pub const fn header_digest(came: u32) -> Self {
        Self { fes: Fes::HEADER_DIGEST, fei: came }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:#x})", self.fes, self.fei)
    }
}

/// Offsets of fields in headers: fatal error information.
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
    /// The first field of a CapsuleCmd or a CapsuleResp: a submission or completion queue entry.
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

/// What a receiver knows about the PDUs that come to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Headers have digests.
    pub header_digest: bool,
    /// Data has digests.
    pub data_digest: bool,
    /// The receiver's own PDA, 0 to [`PDA_MAX`]: data begins at multiples of one dword more.
    pub pda: u8,
    /// Largest PLEN, in bytes.
    pub plen_max: u32,
}

impl Rules {
    /// Before ICReq and ICResp have come.
    pub const NONE: Self = Self { header_digest: false, data_digest: false, pda: 0, plen_max: 128 };

    /// Bytes of a header with its digest.
    #[must_use]
    pub const fn header_bytes(&self, kind: Kind) -> u32 {
        let digest = if self.header_digest && kind.has_digests() { DIGEST_BYTES } else { 0 };
        kind.header_len() as u32 + digest
    }
}

/// Where the data of a PDU begins: behind header, header digest, and padding to a multiple of `pda`
/// and one dwords (tcp, section 3.3.1: CPDA and HPDA).
#[must_use]
pub const fn data_offset(header_len: u8, header_digest: bool, pda: u8) -> u32 {
    let digest = if header_digest { DIGEST_BYTES } else { 0 };
    (header_len as u32 + digest).next_multiple_of(alignment(pda))
}

const fn alignment(pda: u8) -> u32 {
    (pda as u32 + 1) * 4
}

/// The common header (tcp, section 3.6.1), checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Common {
    /// PDU-Type.
    pub kind: Kind,
    /// FLAGS.
    pub flags: Flags,
    /// PDO, as it came; zero where there is no data.
    pub pdo: u8,
    /// PLEN: bytes of the whole PDU.
    pub plen: u32,
    /// Bytes of the header with its digest.
    pub header_bytes: u32,
    /// Bytes of data, without the digest. In a terminate request those of the header in error.
    pub data_len: u32,
}

impl Common {
    /// Reads the header that `bytes` are, and checks what needs no more of the PDU.
    ///
    /// # Errors
    /// What a terminate request has to say.
    pub fn parse(bytes: &[u8; COMMON_BYTES], rules: &Rules) -> Result<Self, Fault> {
        let [kind, flags, hlen, pdo, plen @ ..] = *bytes;
        let kind = Kind::from_byte(kind).ok_or(Fault::field(at::TYPE))?;
        let (flags, plen) = (Flags(flags), u32::from_le_bytes(plen));
        if hlen != kind.header_len() {
            return Err(Fault::field(at::HLEN));
        }
        let header_bytes = rules.header_bytes(kind);
        let plen_max = match kind {
            Kind::ICReq | Kind::ICResp => header_bytes,
            Kind::H2CTermReq | Kind::C2HTermReq => TERM_BYTES_MAX,
            _ => rules.plen_max,
        };
        if plen < header_bytes || plen > plen_max {
            return Err(Fault::field(at::PLEN));
        }
        let mut common = Self { kind, flags, pdo: 0, plen, header_bytes, data_len: 0 };
        let rest = plen - header_bytes;
        match kind {
            Kind::H2CTermReq | Kind::C2HTermReq => common.data_len = rest,
            Kind::CapsuleCmd if rest == 0 => {}
            _ if kind.has_data() => common.place_data(pdo, rules)?,
            _ if rest == 0 => {}
            _ => return Err(Fault::field(at::PLEN)),
        }
        common.check_flags(rules)?;
        Ok(common)
    }

    /// Data begins at a multiple that the receiver said, and there is some.
    fn place_data(&mut self, pdo: u8, rules: &Rules) -> Result<(), Fault> {
        let offset = u32::from(pdo);
        if offset < self.header_bytes || offset % alignment(rules.pda.min(PDA_MAX)) != 0 {
            return Err(Fault::field(at::PDO));
        }
        let digest = if rules.data_digest { DIGEST_BYTES } else { 0 };
        match self.plen.checked_sub(offset + digest) {
            Some(len) if len > 0 => (self.pdo, self.data_len) = (pdo, len),
            _ => return Err(Fault::field(at::PLEN)),
        }
        Ok(())
    }

    /// HDGSTF and DDGSTF say what was negotiated (tcp, section 3.3.1.1), and SUCCESS comes with the
    /// last data only (section 3.6.2.8).
    fn check_flags(&self, rules: &Rules) -> Result<(), Fault> {
        let header = rules.header_digest && self.kind.has_digests();
        let data = rules.data_digest && self.carries_data();
        let success = self.kind == Kind::C2HData && self.flags.has(Flags::SUCCESS);
        let wrong = self.flags.has(Flags::HDGST) != header
            || self.flags.has(Flags::DDGST) != data
            || success && !self.flags.has(Flags::LAST);
        if wrong { Err(Fault::field(at::FLAGS)) } else { Ok(()) }
    }

    const fn carries_data(&self) -> bool {
        self.kind.has_data() && self.data_len > 0
    }

    /// Where in the PDU its data lies; empty, at the end, where there is none.
    #[must_use]
    pub fn data(&self) -> Range<u32> {
        let start = if self.kind.has_data() { u32::from(self.pdo) } else { self.header_bytes };
        if self.data_len == 0 { self.plen..self.plen } else { start..start + self.data_len }
    }

    /// Where in the PDU the data digest lies; none where there is none.
    #[must_use]
    pub fn data_digest(&self) -> Option<Range<u32>> {
        let start = self.data().end;
        (self.carries_data() && start < self.plen).then_some(start..self.plen)
    }

    /// The common header's bytes.
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; COMMON_BYTES] {
        let [a, b, c, d] = self.plen.to_le_bytes();
        [self.kind as u8, self.flags.0, self.kind.header_len(), self.pdo, a, b, c, d]
    }
}

/// The magic pattern of NVMe/TCP (Autonomous NIC Offloads, section 5.1): the common header at the
/// start of `bytes` if a PDU may begin there after ICReq and ICResp, else none. Of `rules` all but
/// the alignment have to be right; zero is always one that fits.
///
/// Stricter than [`Common::parse`]: what is reserved has to be zero, and the length of data has to
/// be the one that the rest of the header says, as far as `bytes` have it. So where this gives
/// none, there may be a PDU from a peer that is odd; where it gives one, [`Common::parse`] does.
#[must_use]
pub fn common(bytes: &[u8], rules: &Rules) -> Option<Common> {
    let first: &[u8; COMMON_BYTES] = bytes.first_chunk()?;
    let common = Common::parse(first, rules).ok()?;
    let reserved = common.flags.0 & !common.kind.flags().0;
    let setup = matches!(common.kind, Kind::ICReq | Kind::ICResp);
    // Terminate requests have no data offset, and nor has a PDU without data.
    if setup || reserved != 0 || common.pdo != first[at::PDO as usize] {
        return None;
    }
    if let (Kind::H2CData | Kind::C2HData, Some(bytes)) = (common.kind, bytes.first_chunk()) {
        DataHeader::parse(&common, bytes).ok()?;
    }
    Some(common)
}

#[cfg(test)]
mod tests;
