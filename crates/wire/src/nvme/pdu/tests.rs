//! PDUs checked byte by byte, every field out of its range, and round trips.

use super::*;
use crate::nvme::get;
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

const PLAIN: PduRules =
    PduRules { header_digest: false, data_digest: false, pda: 0, plen_max: 1 << 20 };
const BOTH: PduRules =
    PduRules { header_digest: true, data_digest: true, pda: 0, plen_max: 1 << 20 };

fn parse(bytes: &[u8], rules: &PduRules) -> Result<PduHeader, PduFault> {
    let common = PduCommonHeader::parse(bytes.first_chunk().unwrap(), rules)?;
    PduHeader::parse(&common, bytes)
}

fn written(header: &PduHeader, data_len: u32, rules: &PduRules) -> Vec<u8> {
    let mut bytes = [0xee; HEADER_BYTES_MAX];
    let common = header.write(data_len, rules, &mut bytes).unwrap();
    bytes[..usize::from(common.kind.header_len())].to_vec()
}

/// Parses a valid header after one of its bytes was changed.
fn with(
    header: &PduHeader,
    data_len: u32,
    rules: &PduRules,
    at: u32,
    byte: u8,
) -> Result<PduHeader, PduFault> {
    let mut bytes = written(header, data_len, rules);
    bytes[at as usize] = byte;
    parse(&bytes, rules)
}

const DATA: DataPduHeader = DataPduHeader {
    cccid: 0x1234,
    ttag: 0x5678,
    offset: 0x1000,
    len: 512,
    last: true,
    success: false,
};

#[test]
fn headers_as_linux_writes_them() {
    // Linux's `nvme_tcp_init_connection`: both digests, HPDA 0, one R2T.
    let mut icreq = vec![0x00, 0x00, 0x80, 0x00, 0x80, 0, 0, 0, 0, 0, 0x00, 0x03, 0, 0, 0, 0];
    icreq.resize(128, 0);
    let request = IcReq { pfv: 0, hpda: 0, header_digest: true, data_digest: true, maxr2t: 0 };
    assert_eq!(parse(&icreq, &PduRules::NONE), Ok(PduHeader::ICReq(request)));
    assert_eq!(written(&PduHeader::ICReq(request), 0, &PduRules::NONE), icreq);

    // Linux's `nvmet_tcp_handle_icreq`: MAXH2CDATA of 0x400000.
    let mut icresp = vec![0x01, 0x00, 0x80, 0x00, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x40, 0];
    icresp.resize(128, 0);
    let response =
        IcResp { pfv: 0, cpda: 0, header_digest: false, data_digest: false, maxh2cdata: 4 << 20 };
    assert_eq!(parse(&icresp, &PduRules::NONE), Ok(PduHeader::ICResp(response)));
    assert_eq!(written(&PduHeader::ICResp(response), 0, &PduRules::NONE), icresp);

    // Linux's `nvmet_setup_c2h_data_pdu`: 4 KiB, both digests, the last PDU.
    let c2h = [
        0x07, 0x07, 0x18, 0x1c, 0x20, 0x10, 0, 0, 0x2a, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0,
        0, 0,
    ];
    let data =
        DataPduHeader { cccid: 42, ttag: 0, offset: 0, len: 4096, last: true, success: false };
    assert_eq!(parse(&c2h, &BOTH), Ok(PduHeader::C2HData(data)));
    assert_eq!(written(&PduHeader::C2HData(data), 4096, &BOTH), c2h);
    let common = match_pdu_header(&c2h, &BOTH).unwrap();
    assert_eq!((common.data(), common.data_digest()), (28..4124, Some(4124..4128)));

    // Linux's `nvmet_setup_r2t_pdu`: 128 KiB with a tag, header digest.
    let r2t = [
        0x09, 0x01, 0x18, 0x00, 0x1c, 0, 0, 0, 0x07, 0, 0x07, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0,
    ];
    let request = R2t { cccid: 7, ttag: 7, offset: 0, len: 128 << 10 };
    assert_eq!(parse(&r2t, &BOTH), Ok(PduHeader::R2T(request)));
    assert_eq!(written(&PduHeader::R2T(request), 0, &BOTH), r2t);
}

#[test]
fn capsules_with_and_without_data() {
    let capsule = PduHeader::CapsuleCmd([7; 64]);
    let empty = written(&capsule, 0, &BOTH);
    assert_eq!(empty[..8], [4, 1, 72, 0, 76, 0, 0, 0], "no data, no data digest, no offset");
    let full = written(&capsule, 1024, &BOTH);
    assert_eq!(full[..8], [4, 3, 72, 76, 0x50, 4, 0, 0]);
    assert_eq!(parse(&empty, &BOTH), Ok(capsule));
    assert_eq!(parse(&full, &BOTH), Ok(capsule));
    let aligned = PduRules { pda: 31, ..BOTH };
    let common = capsule.common_header(1024, &aligned).unwrap();
    assert_eq!((common.pdo, common.plen, common.data()), (128, 1156, 128..1152));
    assert_eq!(data_offset(72, false, 0), 72);
    assert_eq!(data_offset(24, true, 1), 32);
    assert_eq!(data_offset(24, true, 6), 28);
    // An offset without data is ignored, but a device that searches for PDUs rejects it.
    let mut odd = empty;
    odd[3] = 76;
    assert_eq!(parse(&odd, &BOTH), Ok(capsule));
    assert_eq!(match_pdu_header(&odd, &BOTH), None);
}

#[test]
fn each_field_of_the_common_header() {
    let data = PduHeader::H2CData(DATA);
    let field = |at| Err(PduFault::field(at));
    for kind in [0x08, 0x0a, 0x0b, 0x40, 0xff] {
        assert_eq!(with(&data, 512, &PLAIN, at::TYPE, kind), field(at::TYPE));
    }
    for hlen in [0, 23, 25, 72, 128] {
        assert_eq!(with(&data, 512, &PLAIN, at::HLEN, hlen), field(at::HLEN));
    }
    assert_eq!(with(&data, 512, &PLAIN, at::FLAGS, 0x05), field(at::FLAGS), "header digest");
    assert_eq!(with(&data, 512, &PLAIN, at::FLAGS, 0x06), field(at::FLAGS), "data digest");
    assert_eq!(with(&data, 512, &BOTH, at::FLAGS, 0x05), field(at::FLAGS), "no data digest");
    assert_eq!(with(&data, 512, &BOTH, at::FLAGS, 0x06), field(at::FLAGS), "no header digest");
    let read = PduHeader::C2HData(DATA);
    assert_eq!(with(&read, 512, &PLAIN, at::FLAGS, 0x08), field(at::FLAGS), "success before last");
    assert!(with(&read, 512, &PLAIN, at::FLAGS, 0x0c).is_ok());
    for pdo in [0, 20, 25, 26, 27] {
        assert_eq!(with(&data, 512, &PLAIN, at::PDO, pdo), field(at::PDO));
    }
    assert_eq!(with(&data, 512, &PLAIN, at::PDO, 28), field(at::DATAL), "four bytes of padding");
    let aligned = PduRules { pda: 3, ..PLAIN };
    assert_eq!(with(&data, 512, &aligned, at::PDO, 24), field(at::PDO));
    assert_eq!(with(&data, 512, &PLAIN, at::PLEN, 23), field(at::DATAL));
}

#[test]
fn lengths_of_pdus() {
    let plen = |header: &PduHeader, rules: &PduRules, plen: u32| {
        let mut bytes = written(header, 0, rules);
        bytes[4..8].copy_from_slice(&plen.to_le_bytes());
        parse(&bytes, rules).map(drop)
    };
    let wrong = Err(PduFault::field(at::PLEN));
    let response = PduHeader::CapsuleResp([0; 16]);
    for len in [0, 23, 25, 28, u32::MAX] {
        assert_eq!(plen(&response, &PLAIN, len), wrong);
    }
    assert_eq!(plen(&response, &BOTH, 24), wrong, "the digest is missing");
    assert_eq!(plen(&response, &BOTH, 28), Ok(()));
    let r2t = PduHeader::R2T(R2t { cccid: 0, ttag: 0, offset: 0, len: 4 });
    assert_eq!(plen(&r2t, &PLAIN, 25), wrong);
    let term = PduHeader::C2HTermReq(PduFault::SEQUENCE);
    assert_eq!(plen(&term, &BOTH, 152), Ok(()));
    assert_eq!(plen(&term, &BOTH, 153), wrong);
    assert_eq!(plen(&term, &BOTH, 23), wrong);
    let capsule = PduHeader::CapsuleCmd([0; 64]);
    assert_eq!(plen(&capsule, &PLAIN, 71), wrong);
    assert_eq!(plen(&capsule, &PLAIN, 73), Err(PduFault::field(at::PDO)), "data at no offset");
    let request = IcReq { pfv: 0, hpda: 0, header_digest: false, data_digest: false, maxr2t: 0 };
    assert_eq!(plen(&PduHeader::ICReq(request), &PduRules::NONE, 129), wrong);
    assert_eq!(plen(&PduHeader::ICReq(request), &PduRules::NONE, 127), wrong);
    let data = written(&PduHeader::H2CData(DATA), 512, &BOTH);
    for (most, result) in [(544, Ok(())), (543, wrong)] {
        let rules = PduRules { plen_max: most, ..BOTH };
        assert_eq!(parse(&data, &rules).map(drop), result);
    }
    // Header, header digest, and a data digest without data.
    let mut none = data;
    none[4..8].copy_from_slice(&32_u32.to_le_bytes());
    assert_eq!(parse(&none, &BOTH).map(drop), wrong);
}

#[test]
fn each_field_behind_the_common_header() {
    let field = |at| Err(PduFault::field(at));
    for header in [PduHeader::H2CData(DATA), PduHeader::C2HData(DATA)] {
        assert_eq!(with(&header, 512, &PLAIN, at::DATAO, 1), field(at::DATAO));
        assert_eq!(with(&header, 512, &PLAIN, at::DATAL, 1), field(at::DATAL));
        assert_eq!(with(&header, 512, &PLAIN, at::DATAL + 1, 1), field(at::DATAL));
        let mut far = written(&header, 512, &PLAIN);
        far[12..16].copy_from_slice(&0xffff_fe00_u32.to_le_bytes());
        assert_eq!(parse(&far, &PLAIN), Err(PduFault::OUT_OF_RANGE), "ends at 2^32");
        assert_eq!(match_pdu_header(&far, &PLAIN), None);
        assert!(
            match_pdu_header(&far[..23], &PLAIN).is_some(),
            "the length of data is not there yet"
        );
        assert_eq!(match_pdu_header(&far[..7], &PLAIN), None);
    }
    let r2t = PduHeader::R2T(R2t { cccid: 1, ttag: 2, offset: 0, len: 4 });
    assert_eq!(with(&r2t, 0, &PLAIN, at::DATAO, 2), field(at::DATAO));
    assert_eq!(with(&r2t, 0, &PLAIN, at::DATAL, 0), field(at::DATAL));
    let request = PduHeader::ICReq(IcReq {
        pfv: 0,
        hpda: 31,
        header_digest: false,
        data_digest: false,
        maxr2t: 7,
    });
    assert_eq!(with(&request, 0, &PduRules::NONE, at::PFV, 1), Err(PduFault::unsupported(at::PFV)));
    assert_eq!(with(&request, 0, &PduRules::NONE, at::PDA, 32), field(at::PDA));
    let response = PduHeader::ICResp(IcResp {
        pfv: 0,
        cpda: 0,
        header_digest: false,
        data_digest: false,
        maxh2cdata: 0x1000,
    });
    assert_eq!(
        with(&response, 0, &PduRules::NONE, at::PFV + 1, 1),
        Err(PduFault::unsupported(at::PFV))
    );
    assert_eq!(with(&response, 0, &PduRules::NONE, at::PDA, 255), field(at::PDA));
    let max = at::MAXH2CDATA;
    assert_eq!(with(&response, 0, &PduRules::NONE, max, 2), field(max), "no multiple of four");
    assert_eq!(with(&response, 0, &PduRules::NONE, max + 1, 0x0f), field(max), "below 4096");
}

#[test]
fn what_is_not_a_pdu_to_a_device() {
    let request = PduHeader::ICReq(IcReq {
        pfv: 0,
        hpda: 0,
        header_digest: true,
        data_digest: true,
        maxr2t: 0,
    });
    assert_eq!(
        match_pdu_header(&written(&request, 0, &BOTH), &BOTH),
        None,
        "only once, at the start"
    );
    let mut response = written(&PduHeader::CapsuleResp([0; 16]), 0, &PLAIN);
    assert!(match_pdu_header(&response, &PLAIN).is_some());
    response[1] = 0x10;
    assert!(
        parse(&response, &PLAIN).is_ok() && match_pdu_header(&response, &PLAIN).is_none(),
        "reserved"
    );
    response[1] = 0;
    response[3] = 24;
    assert!(
        parse(&response, &PLAIN).is_ok() && match_pdu_header(&response, &PLAIN).is_none(),
        "an offset"
    );
    let term = written(&PduHeader::C2HTermReq(PduFault::SEQUENCE), 24, &BOTH);
    let found = match_pdu_header(&term, &BOTH).unwrap();
    assert_eq!((found.plen, found.data(), found.data_digest()), (48, 24..48, None));
    assert_eq!(match_pdu_header(&[0; 200], &PLAIN), None);
    assert_eq!(match_pdu_header(&[0xff; 200], &PLAIN), None);
}

#[test]
fn what_cannot_be_written() {
    let response = PduHeader::CapsuleResp([0; 16]);
    assert_eq!(response.common_header(1, &PLAIN), None, "no data");
    assert_eq!(PduHeader::H2CData(DATA).common_header(u32::MAX, &PLAIN), None, "too long");
    assert_eq!(response.write(0, &PLAIN, &mut [0; 23]), None, "no room");
    let text = alloc::format!("{}", PduFault::field(at::PLEN));
    assert_eq!(text, "invalid PDU header field (0x4)");
}

fn rules() -> impl Strategy<Value = PduRules> {
    (any::<bool>(), any::<bool>(), 0..=PDA_MAX).prop_map(|(header_digest, data_digest, pda)| {
        PduRules { header_digest, data_digest, pda, plen_max: u32::MAX }
    })
}

/// Strategy for a header and the length of its data.
fn header() -> impl Strategy<Value = (PduHeader, u32)> {
    let data = (any::<u16>(), any::<u16>(), 0..1_u32 << 28, 1..1_u32 << 28, any::<[bool; 2]>());
    let data = data.prop_map(|(cccid, ttag, offset, len, [last, success])| {
        let offset = offset * 4;
        DataPduHeader { cccid, ttag, offset, len, last, success: last && success }
    });
    let setup = (0..=PDA_MAX, any::<[bool; 2]>(), 1024..1_u32 << 20);
    let r2t = (any::<[u16; 2]>(), 0..1_u32 << 28, 1..1_u32 << 28);
    prop_oneof![
        data.clone()
            .prop_map(|d| (PduHeader::H2CData(DataPduHeader { success: false, ..d }), d.len)),
        data.prop_map(|d| (PduHeader::C2HData(DataPduHeader { ttag: 0, ..d }), d.len)),
        (proptest::collection::vec(any::<u8>(), 64), 0..8192_u32)
            .prop_map(|(sqe, len)| (PduHeader::CapsuleCmd(get(&sqe, 0)), len)),
        any::<[u8; 16]>().prop_map(|cqe| (PduHeader::CapsuleResp(cqe), 0)),
        r2t.prop_map(|([cccid, ttag], offset, len)| {
            (PduHeader::R2T(R2t { cccid, ttag, offset: offset * 4, len }), 0)
        }),
        (any::<u16>(), any::<u32>(), 0..=128_u32).prop_map(|(fes, fei, len)| (
            PduHeader::H2CTermReq(PduFault { fes: FatalErrorStatus(fes), fei }),
            len
        )),
        (any::<u16>(), any::<u32>(), 0..=128_u32).prop_map(|(fes, fei, len)| (
            PduHeader::C2HTermReq(PduFault { fes: FatalErrorStatus(fes), fei }),
            len
        )),
        (setup.clone(), any::<u32>()).prop_map(|((hpda, [header_digest, data_digest], _), r)| {
            let request = IcReq { pfv: 0, hpda, header_digest, data_digest, maxr2t: r };
            (PduHeader::ICReq(request), 0)
        }),
        setup.prop_map(|(cpda, [header_digest, data_digest], max)| {
            let maxh2cdata = max * 4;
            (PduHeader::ICResp(IcResp { pfv: 0, cpda, header_digest, data_digest, maxh2cdata }), 0)
        }),
    ]
}

proptest! {
    #[test]
    fn headers_are_read_as_written((header, data_len) in header(), rules in rules()) {
        let bytes = written(&header, data_len, &rules);
        prop_assert_eq!(parse(&bytes, &rules), Ok(header));
        let parsed = PduCommonHeader::parse(bytes.first_chunk().unwrap(), &rules).unwrap();
        prop_assert_eq!(Some(parsed), header.common_header(data_len, &rules));
        let first = parsed.to_bytes();
        prop_assert_eq!(&first[..], &bytes[..8]);
        prop_assert_eq!(parsed.data().len(), data_len as usize);
        let digest = parsed.data_digest().map_or(0, |range| range.len());
        prop_assert_eq!(parsed.data().end as usize + digest, parsed.plen as usize);
        let setup = matches!(parsed.kind, PduKind::ICReq | PduKind::ICResp);
        let found = match_pdu_header(&bytes, &rules);
        prop_assert_eq!(found, (!setup).then_some(parsed));
        prop_assert_eq!(match_pdu_header(&bytes, &PduRules { pda: 0, ..rules }), found);
    }

    #[test]
    fn any_bytes_are_judged(
        bytes in proptest::collection::vec(any::<u8>(), 8..130),
        kind in 0..10_u8,
        rules in rules(),
    ) {
        let mut bytes = bytes;
        bytes[0] = kind;
        if let Some(kind) = PduKind::from_byte(kind) {
            bytes[2] = kind.header_len();
        }
        bytes[7] = 0;
        let parsed = PduCommonHeader::parse(bytes.first_chunk().unwrap(), &rules);
        let found = match_pdu_header(&bytes, &rules);
        prop_assert!(found.is_none() || parsed == Ok(found.unwrap()), "the device is stricter");
        if let Ok(parsed) = parsed {
            prop_assert!(parsed.data().end <= parsed.plen);
            let _ = PduHeader::parse(&parsed, &bytes);
        }
    }
}
