//! Data digests on transmit, against a bitwise CRC, on plain TCP and in TLS records.

use abi::l5o::{L5oContent, L5oCreate, L5oDirection, L5oId, L5oState, RecordRange};
use abi::nvme_tcp::{NvmeTcpState, PREFIX_BYTES_MAX, PduDataSource, PduRange, TlsCarrier};
use abi::{
    Event, FileExtent, FileFault, FileId, FlowId, Op, Refusal, Transmit, TransmitOutcome,
    TransmitPart,
};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use base::SeqNum;
use bytes::Bytes;
use proptest::prelude::*;
use testkit::PLAIN_LINK;
use wire::tls::TlsRecordRun;

use super::l5o_tx::{ALL, TlsTestPeer, config};
use super::rig::{Rig, content, echoed};
use crate::{DeviceConfig, FileConfig, L5oConfig};

/// Sequence number of the stream's first byte.
const START: u32 = 0xffff_f800;
const FLOW: u64 = 7;
const TLS: L5oId = L5oId(70);
const NVME: L5oId = L5oId(71);
/// The file from which data may come, and its version.
const FILE: u32 = 1;
const VERSION: u64 = 3;
/// Content bytes of a TLS record.
const RECORD: u32 = 300;

/// CRC32C (RFC 3385), reflected, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 }
        })
    })
}

fn state(over: Option<TlsCarrier>) -> NvmeTcpState {
    NvmeTcpState { header_digest: true, data_digest: true, pdu_bytes_max: 1 << 20, tls: over }
}

fn create(context: L5oId, state: NvmeTcpState) -> Op {
    let (flow, state) = (FlowId(FLOW), L5oState::NvmeTcp(state));
    let (direction, tcpsn) = (L5oDirection::Transmit, SeqNum(START));
    Op::L5oCreate(Box::new(L5oCreate { context, flow, direction, tcpsn, state }))
}

/// A PDU.
#[derive(Clone, Debug)]
struct TxTestPdu {
    number: u64,
    header: Vec<u8>,
    data: Vec<u8>,
    /// Offset of the data in the file, if it comes from there.
    file: Option<u64>,
}

impl TxTestPdu {
    fn new(number: u64, header: usize, data: usize, file: bool) -> Self {
        let at = usize::try_from(number * 5000 % 50_000).unwrap();
        let header = (0..header).map(|i| u8::try_from((i + at) % 256).unwrap()).collect();
        let file = file.then_some(at as u64);
        Self { number, header, data: content(VERSION, at, data), file }
    }

    fn wire(&self) -> Vec<u8> {
        [&self.header[..], &self.data, &crc32c(&self.data).to_le_bytes()].concat()
    }

    fn len(&self) -> usize {
        self.header.len() + self.data.len() + 4
    }

    /// Describes a range, with the data that precedes it if `prefix`.
    fn range(&self, skip: usize, len: usize, prefix: bool) -> PduRange {
        let data = |at: usize| at.saturating_sub(self.header.len()).min(self.data.len());
        let (before, to) = (data(skip), data(skip + len));
        let prefix = if prefix { before } else { 0 };
        let from = before - prefix;
        let as_u32 = |n: usize| u32::try_from(n).unwrap();
        let data = match self.file {
            Some(at) if to > from => {
                let (file, offset) = (FileId(FILE), at + from as u64);
                PduDataSource::File(FileExtent { file, offset, len: as_u32(to - from) })
            }
            _ => PduDataSource::Host(Bytes::copy_from_slice(&self.data[from..to])),
        };
        PduRange {
            context: NVME,
            number: self.number,
            header: Bytes::copy_from_slice(&self.header),
            data_len: as_u32(self.data.len()),
            data,
            prefix: as_u32(prefix),
            skip: as_u32(skip),
            len: as_u32(len),
        }
    }

    /// Describes a range of the TLS records that carry this PDU alone.
    fn sealed(
        &self,
        peer: TlsTestPeer,
        record: u64,
        skip: usize,
        len: usize,
        prefix: bool,
    ) -> RecordRange {
        let run = self.run(peer);
        let place = run.position(skip as u64);
        let done = place.index * u64::from(RECORD);
        let front = u32::try_from(peer.framing().full_header_len()).unwrap();
        let start = run.content_before(place, front);
        let end = run.content_before(run.position((skip + len) as u64), front);
        let before = if prefix { start - done } else { 0 };
        let from = usize::try_from(start - before).unwrap();
        let bytes = usize::try_from(end).unwrap() - from;
        let content = match bytes {
            0 => L5oContent::Host(Bytes::new()),
            _ => L5oContent::Pdu(Box::new(self.range(from, bytes, prefix))),
        };
        RecordRange {
            context: TLS,
            content,
            prefix: u32::try_from(before).unwrap(),
            number: record + place.index,
            kind: 23,
            run: TlsRecordRun { content_bytes: run.content_bytes - done, ..run },
            skip: place.offset,
            len: u32::try_from(len).unwrap(),
        }
    }

    fn run(&self, peer: TlsTestPeer) -> TlsRecordRun {
        let overhead = u32::try_from(peer.framing().overhead()).unwrap();
        TlsRecordRun { content_bytes: self.len() as u64, record_content_bytes: RECORD, overhead }
    }
}

/// A stream of PDUs: the bytes expected on the link, and where each PDU begins.
struct NvmeTxStream {
    peer: Option<TlsTestPeer>,
    pdus: Vec<TxTestPdu>,
    /// For each PDU, its position and the number of its first record.
    starts: Vec<(usize, u64)>,
    wire: Vec<u8>,
}

impl NvmeTxStream {
    fn new(peer: Option<TlsTestPeer>, pdus: Vec<TxTestPdu>) -> Self {
        let (mut starts, mut wire, mut record) = (vec![], vec![], 0);
        for pdu in &pdus {
            starts.push((wire.len(), record));
            match peer {
                None => wire.extend(pdu.wire()),
                Some(peer) => {
                    for part in pdu.wire().chunks(RECORD as usize) {
                        wire.extend(peer.seal(record, 23, part));
                        record += 1;
                    }
                }
            }
        }
        Self { peer, pdus, starts, wire }
    }

    /// Returns `count` PDUs of many sizes, alternately from memory and from a file.
    fn mixed(peer: Option<TlsTestPeer>, count: u64, data: usize) -> Self {
        let pdu = |n: u64| {
            let len = 1 + usize::try_from(n * 37).unwrap() % data;
            TxTestPdu::new(n, 24 + usize::try_from(n % 3).unwrap() * 4, len, n % 2 == 1)
        };
        Self::new(peer, (0..count).map(pdu).collect())
    }

    fn transmit(&self, from: usize, len: usize, prefix: bool) -> Transmit {
        let mut transmit = echoed(FLOW, START.wrapping_add(u32::try_from(from).unwrap()));
        let ends = self.starts.iter().skip(1).map(|s| s.0).chain([self.wire.len()]);
        for ((pdu, &(start, record)), end) in self.pdus.iter().zip(&self.starts).zip(ends) {
            let (a, b) = (from.max(start), (from + len).min(end));
            if a < b {
                transmit.parts.push(match self.peer {
                    None => TransmitPart::Pdu(Box::new(pdu.range(a - start, b - a, prefix))),
                    Some(peer) => {
                        let sealed = pdu.sealed(peer, record, a - start, b - a, prefix);
                        TransmitPart::Records(Box::new(sealed))
                    }
                });
            }
        }
        transmit.retransmission = prefix;
        transmit
    }

    fn rig(&self) -> Rig {
        let file = Some(FileConfig { block_pages: 1, ..FileConfig::default() });
        let mut rig = Rig::with(DeviceConfig { file, ..config() }, PLAIN_LINK);
        rig.put("a", 60_000, VERSION);
        rig.open(0, FILE, "a").unwrap();
        let over = self.peer.map(|peer| {
            rig.op(0, peer.create(TLS, L5oDirection::Transmit, START, 0));
            TlsCarrier { context: TLS, first_record: 0, skip: 0 }
        });
        rig.op(0, create(NVME, state(over)));
        rig.events.clear();
        rig.moved(&[]);
        rig
    }
}

/// Sends a transmit, completes disk requests, and returns the payload of its packets, concatenated.
fn sent(rig: &mut Rig, transmit: Transmit) -> Vec<u8> {
    rig.send(0, transmit);
    rig.complete_all();
    rig.packets().into_iter().flat_map(|(_, bytes)| bytes).collect()
}

/// Carriers of the PDUs: plain TCP, and each version and suite of TLS.
fn carriers() -> impl Iterator<Item = Option<TlsTestPeer>> {
    core::iter::once(None).chain(ALL.map(|suite| Some(TlsTestPeer::new(suite))))
}

#[test]
fn the_reference_is_the_published_sum() {
    // RFC 3720 section B.4.
    assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    assert_eq!(crc32c(&(0..32).collect::<Vec<u8>>()), 0x46dd_794e);
}

#[test]
fn whole_pdus_in_order() {
    let stream = NvmeTxStream::mixed(None, 6, 4000);
    let mut rig = stream.rig();
    let out = sent(&mut rig, stream.transmit(0, stream.wire.len(), false));
    assert_eq!(out, stream.wire);
    let bytes = alloc::format!("tx_nvmeotcp_bytes +{}", out.len());
    assert_eq!(
        rig.moved(&["tx_nvme", "tx_tls", "l5o_cache", "dma"]),
        ["l5o_cache_hits +6", "tx_nvmeotcp_packets +6", &bytes, "tx_nvmeotcp_digests +6"]
    );
}

#[test]
fn any_cut_in_order() {
    for peer in carriers() {
        let stream = NvmeTxStream::mixed(peer, 8, 200);
        for step in [1, 2, 3, 7, 16, 50, 333, 1000] {
            let mut rig = stream.rig();
            let mut out = vec![];
            while out.len() < stream.wire.len() {
                let len = step.min(stream.wire.len() - out.len());
                let next = sent(&mut rig, stream.transmit(out.len(), len, false));
                assert_eq!(next, stream.wire[out.len()..][..len], "{step} at {}", out.len());
                out.extend(next);
            }
            let names = ["ooo", "drop_no_sync_data", "drop_bypass_req", "resync_bytes"];
            for name in names {
                assert_eq!(rig.counter(&alloc::format!("tx_nvmeotcp_{name}")), 0, "{name}");
            }
            if step == 1 {
                assert_eq!(rig.counter("tx_nvmeotcp_digests"), 8 * 4, "one for each byte of it");
            }
        }
    }
}

#[test]
fn every_range_can_be_sent_again_with_its_prefix() {
    for peer in [None, Some(TlsTestPeer::new(ALL[3]))] {
        // With TLS, PDUs longer than a record, so that the prefixes in the PDU and in the record
        // differ.
        let pdu = |n| TxTestPdu::new(n, 24, if peer.is_some() { 400 } else { 60 }, n == 1);
        let stream = NvmeTxStream::new(peer, vec![pdu(0), pdu(1)]);
        let mut rig = stream.rig();
        for from in 0..stream.wire.len() {
            for len in [1, 4, 30, 90] {
                let len = len.min(stream.wire.len() - from);
                let out = sent(&mut rig, stream.transmit(from, len, true));
                assert_eq!(out, stream.wire[from..from + len], "{from} {len}");
            }
        }
        assert_eq!(rig.counter("tx_nvmeotcp_drop_no_sync_data"), 0);
        assert!(rig.counter("tx_nvmeotcp_resync_bytes") > 0);
        assert!(rig.counter("tx_nvmeotcp_ooo") > 0);
        assert!(rig.counter("dma_recover_bytes") > 0, "of host memory");
    }
}

#[test]
fn a_digest_that_is_not_known_drops_the_transmit() {
    let stream = NvmeTxStream::new(None, vec![TxTestPdu::new(9, 24, 1000, false)]);
    let mut rig = stream.rig();
    let end = stream.wire.len();
    assert_eq!(sent(&mut rig, stream.transmit(500, end - 500, false)), [0; 0]);
    let unsealed = TransmitOutcome::Dropped(FileFault::Refused(Refusal::Encrypted));
    assert_eq!(rig.outcomes(), [(START.wrapping_add(500), unsealed)]);
    assert_eq!(
        rig.moved(&["tx_nvme", "tx_dropped"]),
        ["tx_dropped_l5o +1", "tx_nvmeotcp_ooo +1", "tx_nvmeotcp_drop_no_sync_data +1"]
    );
    // Data alone needs no sum; the digest after it does, up to its last byte.
    assert_eq!(sent(&mut rig, stream.transmit(500, 100, false)), stream.wire[500..600]);
    assert_eq!(sent(&mut rig, stream.transmit(600, 424, false)), stream.wire[600..1024]);
    assert_eq!(sent(&mut rig, stream.transmit(1024, 1, false)), [0; 0]);
    assert_eq!(sent(&mut rig, stream.transmit(end - 1, 1, false)), [0; 0]);
    assert_eq!(rig.counter("tx_nvmeotcp_drop_no_sync_data"), 3);
    // From the start of the data nothing precedes.
    assert_eq!(sent(&mut rig, stream.transmit(24, end - 24, false)), stream.wire[24..]);
    // A refused range does not advance the context.
    assert_eq!(sent(&mut rig, stream.transmit(0, 600, false)), stream.wire[..600]);
    assert_eq!(sent(&mut rig, stream.transmit(601, end - 601, false)), [0; 0]);
    assert_eq!(sent(&mut rig, stream.transmit(600, end - 600, false)), [0; 0]);
    assert_eq!(sent(&mut rig, stream.transmit(600, end - 600, true)), stream.wire[600..]);
    assert_eq!(rig.counter("tx_nvmeotcp_resync_bytes"), 576);
}

/// Another PDU at the offset at which the last range ended does not continue that range.
#[test]
fn a_sum_belongs_to_its_pdu() {
    let (a, b) = (TxTestPdu::new(1, 24, 100, false), TxTestPdu::new(2, 24, 100, false));
    let mut rig = NvmeTxStream::new(None, vec![a.clone()]).rig();
    let mut send = |pdu: &TxTestPdu, skip: usize, len: usize| {
        let mut transmit = echoed(FLOW, START);
        transmit.parts.push(TransmitPart::Pdu(Box::new(pdu.range(skip, len, false))));
        sent(&mut rig, transmit)
    };
    assert_eq!(send(&a, 0, 60), a.wire()[..60]);
    assert_eq!(send(&b, 60, 68), [0; 0]);
    assert_eq!(send(&a, 60, 68), [0; 0], "nor is the first one's known any more");
}

#[test]
fn contexts_come_and_go() {
    let stream = NvmeTxStream::new(None, vec![TxTestPdu::new(1, 24, 100, true)]);
    let mut rig = stream.rig();
    let refused = |rig: &mut Rig| -> Vec<Refusal> {
        let why =
            core::mem::take(&mut rig.events).into_iter().filter_map(|(_, event)| match event {
                Event::L5oRefused(refused) => Some(refused.reason),
                _ => None,
            });
        why.collect()
    };
    rig.op(0, create(NVME, state(None)));
    assert_eq!(refused(&mut rig), [Refusal::TableFull], "a name is used once");
    let nothing = NvmeTcpState { data_digest: false, ..state(None) };
    rig.op(0, create(L5oId(72), nothing));
    assert_eq!(refused(&mut rig), [Refusal::NotSupported], "there is nothing to do");
    // The context is destroyed while a transmit waits for the disk.
    rig.send(0, stream.transmit(0, 128, false));
    rig.op(0, Op::L5oDestroy { context: NVME });
    assert_eq!(rig.counter("l5o_contexts"), 1);
    rig.complete_all();
    let out: Vec<u8> = rig.packets().into_iter().flat_map(|(_, bytes)| bytes).collect();
    assert_eq!(out, stream.wire);
    assert_eq!(rig.counter("l5o_contexts"), 0, "the last transmit has left");
    assert_eq!(sent(&mut rig, stream.transmit(0, 10, false)), [0; 0]);
    assert_eq!(rig.counter("tx_nvmeotcp_drop_bypass_req"), 1);
    assert_eq!(rig.device.capabilities().l5o.map(|l5o| l5o.nvme_tcp.tx), Ok(true));
    let l5o = L5oConfig { nvme_tcp_tx: false, ..config().l5o.unwrap() };
    let mut rig = Rig::with(DeviceConfig { l5o: Some(l5o), ..config() }, PLAIN_LINK);
    rig.op(0, create(NVME, state(None)));
    assert_eq!(refused(&mut rig), [Refusal::NotSupported]);
    assert_eq!(rig.device.capabilities().l5o.map(|l5o| l5o.nvme_tcp.tx), Ok(false));
    assert_eq!((rig.counter("l5o_refused"), rig.counter("tx_nvmeotcp_ctx")), (1, 0));
}

#[test]
fn data_of_files_is_read_once_and_released() {
    let stream = NvmeTxStream::new(None, vec![TxTestPdu::new(2, 24, 12_000, true)]);
    let mut rig = stream.rig();
    let end = stream.wire.len();
    let mut out = sent(&mut rig, stream.transmit(0, 8000, false));
    out.extend(sent(&mut rig, stream.transmit(8000, end - 8000, false)));
    assert_eq!(out, stream.wire);
    let reads = rig.counter("file_disk_reads");
    // A retransmission of the digest needs all data, which is still held.
    assert_eq!(sent(&mut rig, stream.transmit(end - 2, 2, true)), stream.wire[end - 2..]);
    assert_eq!(rig.counter("file_disk_reads"), reads);
    assert_eq!(rig.counter("dma_recover_bytes"), 0, "a file's prefix does not cross PCIe");
    assert_eq!(rig.counter("file_held_bytes"), 12_000);
    rig.ack(0, FILE, 10_000, 12_000);
    assert_eq!(rig.counter("file_held_bytes"), 0);
}

#[test]
fn malformed_ranges_are_refused() {
    let pdu = TxTestPdu::new(1, 24, 400, false);
    let stream = NvmeTxStream::new(None, vec![pdu.clone()]);
    let change: [fn(&mut PduRange); 15] = [
        // A partial prefix, from which no sum can be computed.
        |r| {
            let PduDataSource::Host(data) = &mut r.data else { unreachable!() };
            (*data, r.prefix) = (data.slice(1..), r.prefix - 1);
        },
        |r| r.len = 0,
        |r| r.len += 1,
        |r| r.len = u32::MAX,
        |r| r.skip += 1,
        |r| r.skip = u32::MAX,
        |r| r.skip = 10,
        |r| r.prefix -= 1,
        |r| r.prefix = 0,
        |r| r.data_len += 1,
        |r| r.data_len = 0,
        |r| r.data_len = u32::MAX,
        |r| r.header = Bytes::new(),
        |r| r.data = PduDataSource::Host(Bytes::new()),
        |r| r.data = PduDataSource::File(FileExtent { file: FileId(1), offset: 0, len: u32::MAX }),
    ];
    let mut rig = stream.rig();
    for (nth, change) in (1..).zip(change) {
        let mut range = pdu.range(200, 228, true);
        change(&mut range);
        let mut transmit = echoed(FLOW, START);
        transmit.parts.push(TransmitPart::Pdu(Box::new(range)));
        assert_eq!(sent(&mut rig, transmit), [0; 0], "{nth}");
        assert_eq!(rig.counter("tx_dropped_malformed"), nth);
    }
    assert_eq!(sent(&mut rig, stream.transmit(200, 228, true)), stream.wire[200..428]);
}

/// Content of encrypted records is not sent in plaintext, nor the other way round.
#[test]
fn content_of_records_stays_in_them() {
    let peer = TlsTestPeer::new(ALL[3]);
    let plain = NvmeTxStream::new(None, vec![TxTestPdu::new(1, 24, 100, false)]);
    let inside = NvmeTxStream::new(Some(peer), plain.pdus.clone());
    let mut rig = inside.rig();
    assert_eq!(sent(&mut rig, plain.transmit(0, 128, false)), [0; 0]);
    assert_eq!(rig.counter("tx_dropped_malformed"), 1);
    assert_eq!(sent(&mut rig, inside.transmit(0, 150, false)), inside.wire);
    let mut rig = plain.rig();
    rig.op(0, peer.create(TLS, L5oDirection::Transmit, START, 0));
    assert_eq!(sent(&mut rig, inside.transmit(0, 150, false)), [0; 0]);
    assert_eq!(rig.counter("tx_dropped_malformed"), 1);
}

/// The memory for prefixes is bounded: a transmit with more is refused.
#[test]
fn prefixes_have_a_limit() {
    let data = PREFIX_BYTES_MAX as usize;
    for (data, fits) in [(data, true), (data + 1, false)] {
        let pdu = TxTestPdu { number: 1, header: vec![0; 24], data: vec![7; data], file: None };
        let stream = NvmeTxStream::new(None, vec![pdu]);
        let out = sent(&mut stream.rig(), stream.transmit(24 + data, 4, true));
        let want = if fits { &stream.wire[24 + data..] } else { &[] };
        assert_eq!(out, want);
    }
}

/// Frames share header and data; only digests are written.
#[test]
fn data_is_not_copied() {
    let pdu = TxTestPdu::new(1, 24, 1000, false);
    let range = pdu.range(0, pdu.len(), false);
    let PduDataSource::Host(data) = &range.data else { unreachable!() };
    let (header, data) = (range.header.as_ptr(), data.as_ptr());
    let mut transmit = echoed(FLOW, START);
    transmit.parts.push(TransmitPart::Pdu(Box::new(range)));
    let config = DeviceConfig { l5o: Some(L5oConfig::new(Arc::new(crypto::Provider))), ..config() };
    let mut device = crate::Device::new(config, PLAIN_LINK);
    device.handle_op(base::Instant::ZERO, 0, create(NVME, state(None)));
    device.handle_op(base::Instant::ZERO, 0, Op::Transmit(transmit));
    assert!(device.poll_event().is_some_and(|(_, event)| event.is_echo()));
    let frame = device.poll_frame(base::Instant::ZERO).unwrap();
    let at: Vec<_> = frame.payload.iter().map(|p| p.as_slice().as_ptr()).collect();
    assert_eq!(at[..2], [header, data]);
    assert_eq!((at.len(), frame.payload_len()), (3, 1028));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..<_>::default() })]

    /// An arbitrary description is either refused or yields the length that it states.
    #[test]
    fn descriptions_are_validated(
        (header, data_len, data) in (0..50_usize, 0..80_u32, 0..80_usize),
        (skip, len, prefix) in (0..140_u32, 0..140_u32, 0..80_u32),
        huge in prop::option::of(0..4_u8),
        inside: bool,
    ) {
        let peer = inside.then(|| TlsTestPeer::new(ALL[3]));
        let mut rig = NvmeTxStream::new(peer, vec![]).rig();
        let header = Bytes::from(vec![1; header]);
        let data = PduDataSource::Host(Bytes::from(vec![2; data]));
        let (context, number) = (NVME, 0);
        let mut range = PduRange { context, number, header, data_len, data, prefix, skip, len };
        match huge {
            Some(0) => range.skip = u32::MAX - skip,
            Some(1) => range.len = u32::MAX - len,
            Some(2) => range.data_len = u32::MAX - data_len,
            Some(_) => range.prefix = u32::MAX - prefix,
            None => {}
        }
        let overhead = peer.map_or(0, |peer| u32::try_from(peer.framing().overhead()).unwrap());
        let mut transmit = echoed(FLOW, START);
        transmit.parts.push(match inside {
            false => TransmitPart::Pdu(Box::new(range)),
            true => TransmitPart::Records(Box::new(RecordRange {
                context: TLS,
                content: L5oContent::Pdu(Box::new(range)),
                prefix: 0,
                number: 0,
                kind: 23,
                run: TlsRecordRun {
                    content_bytes: len.into(),
                    record_content_bytes: RECORD,
                    overhead,
                },
                skip: 0,
                len: len + overhead,
            })),
        });
        let out = sent(&mut rig, transmit);
        prop_assert!(out.is_empty() || out.len() == (len + overhead) as usize);
        let dropped = rig.counter("tx_dropped_malformed") + rig.counter("tx_dropped_l5o");
        prop_assert_eq!(dropped, u64::from(out.is_empty()));
    }

    /// Random ranges in random order, some sent again. With the prefix they are always correct;
    /// without it they are correct or dropped.
    #[test]
    fn sent_bytes_are_correct(
        carrier in 0..7_usize,
        sizes in prop::collection::vec((8..60_usize, 1..900_usize, any::<bool>()), 1..5),
        ranges in prop::collection::vec((0..4000_usize, 1..2000_usize, any::<bool>()), 1..20),
    ) {
        let pdus = (0..).zip(&sizes).map(|(n, &(h, d, file))| TxTestPdu::new(n, h, d, file));
        let stream = NvmeTxStream::new(carriers().nth(carrier).unwrap(), pdus.collect());
        let mut rig = stream.rig();
        let mut at = 0;
        for (jump, len, prefix) in ranges {
            // Half of them continue at the last range.
            let from = if jump % 2 == 0 { at } else { jump } % stream.wire.len();
            let len = len.min(stream.wire.len() - from);
            let out = sent(&mut rig, stream.transmit(from, len, prefix));
            at = from + len;
            prop_assert!(out == stream.wire[from..at] || (!prefix && out.is_empty()));
        }
    }
}
