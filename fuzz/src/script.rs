//! Builds PDUs that are partly valid from the fuzzer's input: raw bytes hardly ever pass a digest.

use std::collections::VecDeque;

use crypto::Provider;
use wire::nvme::command::{NvmeBlockRange, NvmeCommand, Sgl, io};
use wire::nvme::pdu::{
    DataPduHeader, FatalErrorStatus, IcReq, IcResp, PduFault, PduHeader, PduRules, R2t,
};

use crate::input::FuzzInput;

/// Block size of the namespace.
const BLOCK_BYTES: u32 = 4096;
/// Length at which a stream ends, checked before each PDU.
const STREAM_BYTES_MAX: usize = 64 << 10;

/// Returns a PDU with the digests that `rules` ask for, or no bytes if there is no such PDU.
pub(crate) fn pdu(header: &PduHeader, data: &[u8], rules: &PduRules) -> Vec<u8> {
    testkit::pdu(header, data, rules, &Provider).unwrap_or_default()
}

/// Returns a valid ICReq.
pub(crate) const fn request(rules: &PduRules) -> PduHeader {
    let PduRules { header_digest, data_digest, .. } = *rules;
    PduHeader::ICReq(IcReq { pfv: 0, hpda: 0, header_digest, data_digest, maxr2t: 0 })
}

/// Returns a valid ICResp.
pub(crate) const fn response(rules: &PduRules) -> PduHeader {
    let PduRules { header_digest, data_digest, .. } = *rules;
    let (pfv, cpda, maxh2cdata) = (0, 0, 4096);
    PduHeader::ICResp(IcResp { pfv, cpda, header_digest, data_digest, maxh2cdata })
}

/// Returns what a peer sends: `first`, then pieces, each sent after the effects of those before it.
pub(crate) fn stream(
    first: Vec<u8>,
    input: &mut FuzzInput<'_>,
    rules: &PduRules,
) -> VecDeque<Vec<u8>> {
    let (mut pieces, mut piece, mut all) = (VecDeque::from([first]), Vec::new(), 0);
    while !input.is_empty() && all < STREAM_BYTES_MAX {
        let kind = input.byte();
        let mut bytes = if kind % 16 == 15 {
            let len = usize::from(input.byte());
            input.take(len).to_vec()
        } else {
            let (header, data) = any_pdu(kind % 16, input);
            pdu(&header, &data, rules)
        };
        if kind & 0x80 != 0 {
            let (at, with) = (usize::from(input.u16()), input.byte());
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= with;
            }
        }
        all += bytes.len();
        piece.extend(bytes);
        if kind & 0x40 != 0 {
            pieces.push_back(core::mem::take(&mut piece));
        }
    }
    pieces.push_back(piece);
    pieces
}

/// Returns a header of the given kind with its data.
fn any_pdu(kind: u8, input: &mut FuzzInput<'_>) -> (PduHeader, Vec<u8>) {
    match kind {
        0 => (PduHeader::CapsuleCmd(input.array()), Vec::new()),
        1 => {
            let command = blocks(input);
            let len = NvmeBlockRange::from_command(&command).count * BLOCK_BYTES;
            let command = command.with_data(Sgl::Transport { len });
            (PduHeader::CapsuleCmd(command.to_bytes()), Vec::new())
        }
        2 => {
            let entry = input.array();
            (PduHeader::CapsuleCmd(entry), data(input))
        }
        3 => {
            let (command, data) = (blocks(input), data(input));
            let len = u32::try_from(data.len()).unwrap_or(0);
            let command = command.with_data(Sgl::InCapsule { offset: 0, len });
            (PduHeader::CapsuleCmd(command.to_bytes()), data)
        }
        4 => (PduHeader::CapsuleResp(input.array()), Vec::new()),
        5 => {
            let data = data(input);
            (PduHeader::H2CData(data_header(input, data.len())), data)
        }
        6 => {
            // Answers an R2T in full if the tags are right.
            let (tags, kind) = (input.byte(), input.byte());
            let (cccid, ttag) = ((tags & 15).into(), (tags >> 4).into());
            let len = (u32::from(kind & 3) + 1) * BLOCK_BYTES;
            let header = DataPduHeader { cccid, ttag, offset: 0, len, last: true, success: false };
            (PduHeader::H2CData(header), bytes(len, kind))
        }
        7..=9 => {
            let data = data(input);
            (PduHeader::C2HData(data_header(input, data.len())), data)
        }
        10 => {
            let (cccid, ttag) = (input.byte().into(), input.byte().into());
            (PduHeader::R2T(R2t { cccid, ttag, offset: input.u32(), len: input.u32() }), Vec::new())
        }
        11 => {
            let fault = PduFault { fes: FatalErrorStatus(input.u16()), fei: input.u32() };
            (PduHeader::H2CTermReq(fault), data(input))
        }
        12 => {
            let fault = PduFault { fes: FatalErrorStatus(input.u16()), fei: input.u32() };
            (PduHeader::C2HTermReq(fault), data(input))
        }
        13 => {
            let dgst = input.byte();
            let (header_digest, data_digest) = (dgst & 1 != 0, dgst & 2 != 0);
            let (pfv, hpda, maxr2t) = (input.byte().into(), input.byte(), input.u32());
            let request = IcReq { pfv, hpda, header_digest, data_digest, maxr2t };
            (PduHeader::ICReq(request), Vec::new())
        }
        _ => {
            let dgst = input.byte();
            let (header_digest, data_digest) = (dgst & 1 != 0, dgst & 2 != 0);
            let (pfv, cpda, maxh2cdata) = (input.byte().into(), input.byte(), input.u32());
            let response = IcResp { pfv, cpda, header_digest, data_digest, maxh2cdata };
            (PduHeader::ICResp(response), Vec::new())
        }
    }
}

/// Returns a command for blocks of the namespace, most of them in range, without its data.
fn blocks(input: &mut FuzzInput<'_>) -> NvmeCommand {
    let opcodes =
        [io::READ, io::WRITE, io::COMPARE, io::WRITE_ZEROES, io::DATASET_MANAGEMENT, io::FLUSH];
    let (cid, kind, place) = (input.byte() & 15, input.byte(), input.byte());
    let opcode = opcodes[usize::from(kind & 15) % opcodes.len()];
    let blocks = NvmeBlockRange::new((place & 31).into(), u32::from(place >> 5 & 3) + 1);
    NvmeBlockRange { fua: kind & 16 != 0, ..blocks }.encode_into(NvmeCommand::new(
        opcode,
        cid.into(),
        1,
    ))
}

/// Returns up to 8 KiB of data that depends on the input.
fn data(input: &mut FuzzInput<'_>) -> Vec<u8> {
    let (len, seed) = (input.u16() % 8193, input.byte());
    bytes(len.into(), seed)
}

fn bytes(len: u32, seed: u8) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at % 251).unwrap_or(0) ^ seed).collect()
}

fn data_header(input: &mut FuzzInput<'_>, len: usize) -> DataPduHeader {
    let (tag, flags, offset) = (input.byte(), input.byte(), input.u16());
    DataPduHeader {
        cccid: tag.into(),
        ttag: tag.into(),
        // Half of the offsets are within the buffer and aligned.
        offset: if flags & 4 == 0 { u32::from(offset) % 8192 / 4 * 4 } else { offset.into() },
        len: u32::try_from(len).unwrap_or(0),
        last: flags & 1 != 0,
        success: flags & 2 != 0,
    }
}
