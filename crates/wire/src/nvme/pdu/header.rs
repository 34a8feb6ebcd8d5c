//! PDU headers after the common header (tcp section 3.6.2).

use super::{
    COMMON_BYTES, DIGEST_BYTES, FatalErrorStatus, HEADER_BYTES, MAXH2CDATA_MIN, PDA_MAX, PFV,
    PduCommonHeader, PduFault, PduFlags, PduKind, PduRules, at, data_offset,
};
use crate::nvme::{get, put, u8_at, u16_at, u32_at};

/// Header of H2CData or C2HData after the common header (tcp sections 3.6.2.7 and 3.6.2.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataPduHeader {
    /// CCCID: identifier of the command.
    pub cccid: u16,
    /// TTAG: tag of the R2T in H2CData; reserved in C2HData.
    pub ttag: u16,
    /// DATAO: offset in the command's data, in bytes.
    pub offset: u32,
    /// DATAL: length of the data in bytes, at least 1.
    pub len: u32,
    /// LAST_PDU.
    pub last: bool,
    /// SUCCESS: only in C2HData.
    pub success: bool,
}

impl DataPduHeader {
    /// Parses the header in `bytes`, which begins with the common header.
    ///
    /// # Errors
    /// The [`PduFault`] for a terminate request.
    pub fn parse(common: &PduCommonHeader, bytes: &[u8; HEADER_BYTES]) -> Result<Self, PduFault> {
        let (offset, len) = (u32_at(bytes, 12), u32_at(bytes, 16));
        if offset % 4 != 0 {
            return Err(PduFault::field(at::DATAO));
        }
        if len != common.data_len {
            return Err(PduFault::field(at::DATAL));
        }
        offset.checked_add(len).ok_or(PduFault::OUT_OF_RANGE)?;
        let to_host = common.kind == PduKind::C2HData;
        Ok(Self {
            cccid: u16_at(bytes, 8),
            ttag: if to_host { 0 } else { u16_at(bytes, 10) },
            offset,
            len,
            last: common.flags.has(PduFlags::LAST),
            success: to_host && common.flags.has(PduFlags::SUCCESS),
        })
    }

    /// Returns the offset after the last byte of data.
    #[must_use]
    pub const fn end(&self) -> u32 {
        self.offset.saturating_add(self.len)
    }

    fn write(&self, out: &mut [u8]) {
        put(out, 8, &self.cccid.to_le_bytes());
        put(out, 10, &self.ttag.to_le_bytes());
        put(out, 12, &self.offset.to_le_bytes());
        put(out, 16, &self.len.to_le_bytes());
    }
}

/// ICReq (tcp section 3.6.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcReq {
    /// PDU format version.
    pub pfv: u16,
    /// HPDA: alignment of data to the initiator, in dwords less one.
    pub hpda: u8,
    /// The initiator requests header digests.
    pub header_digest: bool,
    /// The initiator requests data digests.
    pub data_digest: bool,
    /// MAXR2T: maximum outstanding R2Ts of a command, less one.
    pub maxr2t: u32,
}

/// ICResp (tcp section 3.6.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcResp {
    /// PDU format version.
    pub pfv: u16,
    /// CPDA: alignment of data to the controller, in dwords less one.
    pub cpda: u8,
    /// Header digests are enabled.
    pub header_digest: bool,
    /// Data digests are enabled.
    pub data_digest: bool,
    /// Maximum bytes of data in an H2CData: a multiple of four, at least [`MAXH2CDATA_MIN`].
    pub maxh2cdata: u32,
}

/// Bits of DGST in ICReq and ICResp.
const HDGST_ENABLE: u8 = 0x01;
const DDGST_ENABLE: u8 = 0x02;

const fn dgst(header: bool, data: bool) -> u8 {
    let header = if header { HDGST_ENABLE } else { 0 };
    header | if data { DDGST_ENABLE } else { 0 }
}

impl IcReq {
    fn parse(bytes: &[u8]) -> Result<Self, PduFault> {
        let dgst = u8_at(bytes, 11);
        let request = Self {
            pfv: u16_at(bytes, 8),
            hpda: u8_at(bytes, 10),
            header_digest: dgst & HDGST_ENABLE != 0,
            data_digest: dgst & DDGST_ENABLE != 0,
            maxr2t: u32_at(bytes, 12),
        };
        check_setup(request.pfv, request.hpda)?;
        Ok(request)
    }

    fn write(&self, out: &mut [u8]) {
        put(out, 8, &self.pfv.to_le_bytes());
        put(out, 10, &[self.hpda, dgst(self.header_digest, self.data_digest)]);
        put(out, 12, &self.maxr2t.to_le_bytes());
    }
}

impl IcResp {
    fn parse(bytes: &[u8]) -> Result<Self, PduFault> {
        let dgst = u8_at(bytes, 11);
        let response = Self {
            pfv: u16_at(bytes, 8),
            cpda: u8_at(bytes, 10),
            header_digest: dgst & HDGST_ENABLE != 0,
            data_digest: dgst & DDGST_ENABLE != 0,
            maxh2cdata: u32_at(bytes, 12),
        };
        check_setup(response.pfv, response.cpda)?;
        if response.maxh2cdata < MAXH2CDATA_MIN || response.maxh2cdata % 4 != 0 {
            return Err(PduFault::field(at::MAXH2CDATA));
        }
        Ok(response)
    }

    fn write(&self, out: &mut [u8]) {
        put(out, 8, &self.pfv.to_le_bytes());
        put(out, 10, &[self.cpda, dgst(self.header_digest, self.data_digest)]);
        put(out, 12, &self.maxh2cdata.to_le_bytes());
    }
}

/// Checks version and alignment. An unknown version is an unsupported parameter; an alignment above
/// the maximum is an invalid field.
const fn check_setup(pfv: u16, pda: u8) -> Result<(), PduFault> {
    if pfv != PFV {
        Err(PduFault::unsupported(at::PFV))
    } else if pda > PDA_MAX {
        Err(PduFault::field(at::PDA))
    } else {
        Ok(())
    }
}

/// R2T (tcp section 3.6.2.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct R2t {
    /// CCCID: identifier of the command.
    pub cccid: u16,
    /// TTAG: tag that the H2CData PDUs must repeat.
    pub ttag: u16,
    /// R2TO: offset in the command's data, in bytes.
    pub offset: u32,
    /// R2TL: number of bytes requested, at least 1.
    pub len: u32,
}

impl R2t {
    fn parse(bytes: &[u8]) -> Result<Self, PduFault> {
        let [cccid, ttag] = [8, 10].map(|at| u16_at(bytes, at));
        let [offset, len] = [12, 16].map(|at| u32_at(bytes, at));
        if offset % 4 != 0 {
            return Err(PduFault::field(at::DATAO));
        }
        if len == 0 {
            return Err(PduFault::field(at::DATAL));
        }
        offset.checked_add(len).ok_or(PduFault::OUT_OF_RANGE)?;
        Ok(Self { cccid, ttag, offset, len })
    }

    fn write(&self, out: &mut [u8]) {
        put(out, 8, &self.cccid.to_le_bytes());
        put(out, 10, &self.ttag.to_le_bytes());
        put(out, 12, &self.offset.to_le_bytes());
        put(out, 16, &self.len.to_le_bytes());
    }
}

/// A complete header without its digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PduHeader {
    /// Initialize Connection Request.
    ICReq(IcReq),
    /// Initialize Connection Response.
    ICResp(IcResp),
    /// Terminate request of the initiator; bytes of the header in error follow.
    H2CTermReq(PduFault),
    /// Terminate request of the controller; bytes of the header in error follow.
    C2HTermReq(PduFault),
    /// Submission queue entry of a command.
    CapsuleCmd([u8; 64]),
    /// Completion queue entry.
    CapsuleResp([u8; 16]),
    /// Data of a write.
    H2CData(DataPduHeader),
    /// Data of a read.
    C2HData(DataPduHeader),
    /// Ready to Transfer.
    R2T(R2t),
}

impl PduHeader {
    /// Returns the PDU type.
    #[must_use]
    pub const fn kind(&self) -> PduKind {
        match self {
            Self::ICReq(_) => PduKind::ICReq,
            Self::ICResp(_) => PduKind::ICResp,
            Self::H2CTermReq(_) => PduKind::H2CTermReq,
            Self::C2HTermReq(_) => PduKind::C2HTermReq,
            Self::CapsuleCmd(_) => PduKind::CapsuleCmd,
            Self::CapsuleResp(_) => PduKind::CapsuleResp,
            Self::H2CData(_) => PduKind::H2CData,
            Self::C2HData(_) => PduKind::C2HData,
            Self::R2T(_) => PduKind::R2T,
        }
    }

    /// Parses a header; `bytes` begins with the common header. The caller has verified the header
    /// digest.
    ///
    /// # Errors
    /// The [`PduFault`] for a terminate request. A truncated header has an invalid HLEN.
    pub fn parse(common: &PduCommonHeader, bytes: &[u8]) -> Result<Self, PduFault> {
        let len = usize::from(common.kind.header_len());
        let bytes = bytes.get(..len).ok_or(PduFault::field(at::HLEN))?;
        let data = || DataPduHeader::parse(common, &get(bytes, 0));
        let term = || PduFault { fes: FatalErrorStatus(u16_at(bytes, 8)), fei: u32_at(bytes, 10) };
        Ok(match common.kind {
            PduKind::ICReq => Self::ICReq(IcReq::parse(bytes)?),
            PduKind::ICResp => Self::ICResp(IcResp::parse(bytes)?),
            PduKind::H2CTermReq => Self::H2CTermReq(term()),
            PduKind::C2HTermReq => Self::C2HTermReq(term()),
            PduKind::CapsuleCmd => Self::CapsuleCmd(get(bytes, COMMON_BYTES)),
            PduKind::CapsuleResp => Self::CapsuleResp(get(bytes, COMMON_BYTES)),
            PduKind::H2CData => Self::H2CData(data()?),
            PduKind::C2HData => Self::C2HData(data()?),
            PduKind::R2T => Self::R2T(R2t::parse(bytes)?),
        })
    }

    /// Returns the common header for this header and `data_len` bytes of data, by the receiver's
    /// rules. `None` if the PDU type cannot carry data, or not that much.
    #[must_use]
    pub fn common_header(&self, data_len: u32, rules: &PduRules) -> Option<PduCommonHeader> {
        let kind = self.kind();
        let header_bytes = rules.header_bytes(kind);
        let term = matches!(kind, PduKind::H2CTermReq | PduKind::C2HTermReq);
        if data_len > 0 && !kind.can_carry_data() && !term {
            return None;
        }
        let mut common =
            PduCommonHeader { kind, flags: self.flags(), pdo: 0, plen: 0, header_bytes, data_len };
        common.flags = common.flags.with(PduFlags::HDGST.only_if(header_bytes > kind_len(kind)));
        let mut plen = header_bytes;
        if common.carries_data() {
            let digest = rules.header_digest;
            plen = data_offset(kind.header_len(), digest, rules.pda.min(PDA_MAX));
            common.pdo = u8::try_from(plen).ok()?;
            common.flags = common.flags.with(PduFlags::DDGST.only_if(rules.data_digest));
        }
        let trailer = if common.flags.has(PduFlags::DDGST) { DIGEST_BYTES } else { 0 };
        common.plen = plen.checked_add(data_len)?.checked_add(trailer)?;
        Some(common)
    }

    const fn flags(&self) -> PduFlags {
        match self {
            Self::H2CData(data) => PduFlags::LAST.only_if(data.last),
            Self::C2HData(data) => {
                PduFlags::LAST.only_if(data.last).with(PduFlags::SUCCESS.only_if(data.success))
            }
            _ => PduFlags::NONE,
        }
    }

    /// Writes the header at the start of `out`, without digests and padding. Returns the common
    /// header, or `None` if [`Self::common_header`] does or there is no room.
    pub fn write(
        &self,
        data_len: u32,
        rules: &PduRules,
        out: &mut [u8],
    ) -> Option<PduCommonHeader> {
        let common = self.common_header(data_len, rules)?;
        let out = out.get_mut(..usize::from(common.kind.header_len()))?;
        out.fill(0);
        put(out, 0, &common.to_bytes());
        match self {
            Self::ICReq(request) => request.write(out),
            Self::ICResp(response) => response.write(out),
            Self::H2CTermReq(fault) | Self::C2HTermReq(fault) => {
                put(out, 8, &fault.fes.0.to_le_bytes());
                put(out, 10, &fault.fei.to_le_bytes());
            }
            Self::CapsuleCmd(entry) => put(out, COMMON_BYTES, entry),
            Self::CapsuleResp(entry) => put(out, COMMON_BYTES, entry),
            Self::H2CData(data) => data.write(out),
            Self::C2HData(data) => DataPduHeader { ttag: 0, ..*data }.write(out),
            Self::R2T(request) => request.write(out),
        }
        Some(common)
    }
}

const fn kind_len(kind: PduKind) -> u32 {
    kind.header_len() as u32
}
