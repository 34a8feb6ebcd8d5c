//! PDUs that are sent.
//!
//! Called by the user of [`super::NvmeTransport`]. A PDU is a header, made here with its digest and
//! padding, and data that is only referred to. The data digest is computed by the device if it can,
//! otherwise by the host when the data is in memory ([`Host::send_pdu`]). Every PDU is accepted:
//! callers are bounded by their open commands.

use abi::nvme_tcp::PREFIX_BYTES_MAX;
use base::Instant;
use bytes::Bytes;
use smallvec::{SmallVec, smallvec};
use wire::nvme::pdu::{
    DataPduHeader, HEADER_BYTES_MAX, IcReq, IcResp, PFV, PduFault, PduHeader, R2t,
};

use super::{
    NvmeInitiatorParams, NvmeTargetParams, NvmeTransport, NvmeTransportEnd, NvmeTransportRole,
};
use crate::api::FileId;
use crate::host::Host;
use crate::l5p::nvme_tcp::tx_pdus::PduData;

/// Maximum data of a C2HData: the bytes that must be summed again if its end is lost. The host's
/// cost of a PDU hardly depends on its length, and a transmit is as long.
const C2H_DATA_MAX: u32 = 256 << 10;

/// Maximum data of an H2CData, if the controller accepts as much. Linux's target (6.1) finds
/// digests wrong if several H2CData answer one R2T; Linux's initiator sends one.
const H2C_DATA_MAX: u32 = PREFIX_BYTES_MAX;

/// Source of data.
#[derive(Clone, Debug)]
pub enum NvmeDataSource {
    /// Memory.
    Memory(Bytes),
    /// Range of an open file.
    File {
        /// File.
        file: FileId,
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        len: u32,
    },
}

impl NvmeDataSource {
    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> u32 {
        match self {
            Self::Memory(bytes) => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            Self::File { len, .. } => *len,
        }
    }

    /// Returns whether the length is zero.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a part of the data.
    fn part(&self, from: u32, bytes: u32) -> PduData {
        match self {
            Self::Memory(memory) => {
                let end = memory.len().min(from as usize + bytes as usize);
                PduData::Memory(memory.slice(memory.len().min(from as usize)..end))
            }
            Self::File { file, offset, .. } => {
                let offset = offset.saturating_add(u64::from(from));
                PduData::File { file: *file, offset, len: bytes }
            }
        }
    }
}

impl NvmeTransport {
    /// Sends a command, with or without data in its capsule. Returns a mark.
    pub fn send_command(
        &mut self,
        now: Instant,
        host: &mut Host,
        sqe: &[u8; 64],
        data: Bytes,
    ) -> u64 {
        self.now = now;
        let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let data = if data.is_empty() { PduData::None } else { PduData::Memory(data) };
        self.write_pdu(host, &PduHeader::CapsuleCmd(*sqe), data, len)
    }

    /// Sends a completion. Returns a mark.
    pub fn send_response(&mut self, now: Instant, host: &mut Host, cqe: &[u8; 16]) -> u64 {
        self.now = now;
        self.write_pdu(host, &PduHeader::CapsuleResp(*cqe), PduData::None, 0)
    }

    /// Sends all data of a read, in one PDU or several. With `success` no response follows. Returns
    /// a mark.
    pub fn send_read_data(
        &mut self,
        now: Instant,
        host: &mut Host,
        cccid: u16,
        data: &NvmeDataSource,
        success: bool,
    ) -> u64 {
        self.now = now;
        self.send_data(data, C2H_DATA_MAX, |transport, from, len, end| {
            let success = end && success;
            let header = DataPduHeader { cccid, ttag: 0, offset: from, len, last: end, success };
            transport.write_pdu(host, &PduHeader::C2HData(header), data.part(from, len), len)
        })
    }

    /// Sends data of a write that an R2T requested, in as many PDUs as the controller's limit
    /// requires. `last`: the data is the last of that R2T. Returns a mark.
    pub fn send_write_data(
        &mut self,
        now: Instant,
        host: &mut Host,
        (cccid, ttag): (u16, u16),
        offset: u32,
        data: Bytes,
        last: bool,
    ) -> u64 {
        self.now = now;
        let most = self.negotiated.map_or(u32::MAX, |n| n.maxh2cdata).min(H2C_DATA_MAX);
        let data = NvmeDataSource::Memory(data);
        self.send_data(&data, most, |transport, from, len, end| {
            let offset = offset.saturating_add(from);
            let last = last && end;
            let header = DataPduHeader { cccid, ttag, offset, len, last, success: false };
            transport.write_pdu(host, &PduHeader::H2CData(header), data.part(from, len), len)
        })
    }

    fn send_data(
        &mut self,
        data: &NvmeDataSource,
        most: u32,
        mut send: impl FnMut(&mut Self, u32, u32, bool) -> u64,
    ) -> u64 {
        let (mut from, mut left) = (0, data.len());
        while left > 0 {
            let len = left.min(most);
            send(self, from, len, len == left);
            (from, left) = (from + len, left - len);
        }
        self.written
    }

    /// Requests data of a write. Returns a mark.
    pub fn send_r2t(
        &mut self,
        now: Instant,
        host: &mut Host,
        (cccid, ttag): (u16, u16),
        offset: u32,
        len: u32,
    ) -> u64 {
        self.now = now;
        self.write_pdu(host, &PduHeader::R2T(R2t { cccid, ttag, offset, len }), PduData::None, 0)
    }

    /// Terminates the connection because the peer violated the specification.
    pub fn terminate(&mut self, now: Instant, host: &mut Host, why: PduFault) {
        self.now = now;
        self.terminate_for(host, why, &[]);
    }

    /// As [`Self::terminate`], with the header that was wrong.
    pub(super) fn terminate_for(&mut self, host: &mut Host, why: PduFault, header: &[u8]) {
        let request = match self.role {
            NvmeTransportRole::Initiator(_) => PduHeader::H2CTermReq(why),
            NvmeTransportRole::Target(_) => PduHeader::C2HTermReq(why),
        };
        let header = &header[..header.len().min(HEADER_BYTES_MAX)];
        let len = u32::try_from(header.len()).unwrap_or(0);
        let data = match len {
            0 => PduData::None,
            _ => PduData::Memory(Bytes::copy_from_slice(header)),
        };
        self.write_pdu(host, &request, data, len);
        host.out.counters.nvme_terminations += 1;
        host.shutdown(self.now, self.socket);
        self.end(NvmeTransportEnd::Terminated(why));
    }

    /// Sends an initiator's first PDU.
    pub(super) fn send_setup_request(&mut self, host: &mut Host, params: NvmeInitiatorParams) {
        let NvmeInitiatorParams { header_digest, data_digest, hpda, maxr2t } = params;
        let request = IcReq { pfv: PFV, hpda, header_digest, data_digest, maxr2t };
        self.write_pdu(host, &PduHeader::ICReq(request), PduData::None, 0);
    }

    /// Sends a target's first PDU.
    pub(super) fn send_setup_response(
        &mut self,
        host: &mut Host,
        params: NvmeTargetParams,
        (header_digest, data_digest): (bool, bool),
    ) {
        let NvmeTargetParams { cpda, maxh2cdata, .. } = params;
        let response = IcResp { pfv: PFV, cpda, header_digest, data_digest, maxh2cdata };
        self.write_pdu(host, &PduHeader::ICResp(response), PduData::None, 0);
    }

    /// Writes a PDU. Returns its mark.
    fn write_pdu(
        &mut self,
        host: &mut Host,
        header: &PduHeader,
        data: PduData,
        data_len: u32,
    ) -> u64 {
        let mut room = [0; HEADER_BYTES_MAX];
        let Some(common) = header.write(data_len, &self.send, &mut room) else {
            return self.written;
        };
        let front = if data_len > 0 { common.data().start } else { common.plen } as usize;
        let bare = usize::from(common.kind.header_len());
        // One allocation for the bytes and their reference count. A `Vec` would need two, since
        // the header is cloned at once.
        let mut bytes: SmallVec<[u8; 80]> = smallvec![0; front];
        let copied = bare.min(front);
        bytes[..copied].copy_from_slice(&room[..copied]);
        if common.header_bytes as usize > bare {
            let digest = self.crypto.crc32c(0, &room[..bare]).to_le_bytes();
            if let Some(place) = bytes.get_mut(bare..bare + digest.len()) {
                place.copy_from_slice(&digest);
            }
        }
        let (now, digest) = (self.now, common.data_digest().is_some());
        // If the connection has ended, nothing more is acknowledged; its end is reported
        // separately.
        if let Ok(mark) = host.send_pdu(now, self.socket, Bytes::from_owner(bytes), data, digest) {
            self.written = mark;
        }
        self.written
    }
}
