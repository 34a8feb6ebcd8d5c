//! PDUs that are right in some of their parts, as inputs choose: raw bytes hardly ever get past a
//! digest.

use abi::crypto::CryptoProvider as _;
use crypto::Provider;
use wire::nvme::pdu::{
    DataHeader, Fault, Fes, HEADER_BYTES_MAX, Header, IcReq, IcResp, R2t, Rules,
};

use crate::input::Input;

/// Most bytes of a script's stream.
const STREAM_BYTES_MAX: usize = 64 << 10;

/// The bytes of a PDU, by the receiver's rules, with the digests that it is to have.
pub(crate) fn pdu(header: &Header, data: &[u8], rules: &Rules) -> Vec<u8> {
    let mut room = [0; HEADER_BYTES_MAX];
    let len = u32::try_from(data.len()).unwrap_or(0);
    let Some(common) = header.write(len, rules, &mut room) else { return Vec::new() };
    let bare = usize::from(common.kind.header_len());
    let mut out = room[..bare].to_vec();
    if common.header_bytes as usize > bare {
        out.extend(Provider.crc32c(0, &room[..bare]).to_le_bytes());
    }
    if !data.is_empty() {
        out.resize(common.data().start as usize, 0);
        out.extend(data);
    }
    if common.data_digest().is_some() {
        out.extend(Provider.crc32c(0, data).to_le_bytes());
    }
    out
}

/// An ICReq that is right.
pub(crate) const fn request(rules: &Rules) -> Header {
    let Rules { header_digest, data_digest, .. } = *rules;
    Header::ICReq(IcReq { pfv: 0, hpda: 0, header_digest, data_digest, maxr2t: 0 })
}

/// An ICResp that is right.
pub(crate) const fn response(rules: &Rules) -> Header {
    let Rules { header_digest, data_digest, .. } = *rules;
    let (pfv, cpda, maxh2cdata) = (0, 0, 4096);
    Header::ICResp(IcResp { pfv, cpda, header_digest, data_digest, maxh2cdata })
}

/// What a peer sends.
pub(crate) fn stream(input: &mut Input<'_>, rules: &Rules) -> Vec<u8> {
    let mut out = Vec::new();
    while !input.is_empty() && out.len() < STREAM_BYTES_MAX {
        let from = out.len();
        let kind = input.byte();
        if kind % 16 == 15 {
            let len = usize::from(input.byte());
            out.extend_from_slice(input.take(len));
        } else {
            let (header, data) = any(kind % 16, input);
            out.extend(pdu(&header, &data, rules));
        }
        if kind & 0x80 != 0 {
            let (at, with) = (usize::from(input.u16()), input.byte());
            if let Some(byte) = out.get_mut(from..).and_then(|pdu| pdu.get_mut(at)) {
                *byte ^= with;
            }
        }
    }
    out
}

/// A header with its data.
fn any(kind: u8, input: &mut Input<'_>) -> (Header, Vec<u8>) {
    match kind {
        0 | 1 => (Header::CapsuleCmd(input.array()), Vec::new()),
        2 | 3 => {
            let entry = input.array();
            (Header::CapsuleCmd(entry), data(input))
        }
        4 => (Header::CapsuleResp(input.array()), Vec::new()),
        5 | 6 => {
            let data = data(input);
            (Header::H2CData(data_header(input, data.len())), data)
        }
        7..=9 => {
            let data = data(input);
            (Header::C2HData(data_header(input, data.len())), data)
        }
        10 => {
            let (cccid, ttag) = (input.byte().into(), input.byte().into());
            (Header::R2T(R2t { cccid, ttag, offset: input.u32(), len: input.u32() }), Vec::new())
        }
        11 => {
            let fault = Fault { fes: Fes(input.u16()), fei: input.u32() };
            (Header::H2CTermReq(fault), data(input))
        }
        12 => {
            let fault = Fault { fes: Fes(input.u16()), fei: input.u32() };
            (Header::C2HTermReq(fault), data(input))
        }
        13 => {
            let dgst = input.byte();
            let (header_digest, data_digest) = (dgst & 1 != 0, dgst & 2 != 0);
            let (pfv, hpda, maxr2t) = (input.byte().into(), input.byte(), input.u32());
            let request = IcReq { pfv, hpda, header_digest, data_digest, maxr2t };
            (Header::ICReq(request), Vec::new())
        }
        _ => {
            let dgst = input.byte();
            let (header_digest, data_digest) = (dgst & 1 != 0, dgst & 2 != 0);
            let (pfv, cpda, maxh2cdata) = (input.byte().into(), input.byte(), input.u32());
            let response = IcResp { pfv, cpda, header_digest, data_digest, maxh2cdata };
            (Header::ICResp(response), Vec::new())
        }
    }
}

/// Up to 8 KiB of bytes that differ.
fn data(input: &mut Input<'_>) -> Vec<u8> {
    let (len, seed) = (input.u16() % 8193, input.byte());
    (0..len).map(|at| u8::try_from(at % 251).unwrap_or(0) ^ seed).collect()
}

fn data_header(input: &mut Input<'_>, len: usize) -> DataHeader {
    let (tag, flags, offset) = (input.byte(), input.byte(), input.u16());
    DataHeader {
        cccid: tag.into(),
        ttag: tag.into(),
        // Most are in the buffer, and aligned.
        offset: if flags & 4 == 0 { u32::from(offset) % 8192 / 4 * 4 } else { offset.into() },
        len: u32::try_from(len).unwrap_or(0),
        last: flags & 1 != 0,
        success: flags & 2 != 0,
    }
}
