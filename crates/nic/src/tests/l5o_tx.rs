//! Encryption on transmit, against a software reference that encrypts whole records only.

use abi::crypto::{CryptoProvider, NONCE_BYTES, Suite};
use abi::l5o::{
    L5oContent, L5oCreate, L5oDirection, L5oId, L5oState, RecordRange, TlsState, framing,
};
use abi::{
    Event, FileExtent, FileFault, FileId, FlowId, Op, Refusal, Transmit, TransmitOutcome,
    TransmitPart,
};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use base::{Prng, SeqNum};
use bytes::Bytes;
use proptest::prelude::*;
use testkit::PLAIN_LINK;
use wire::tls::{TlsFraming, TlsRecordRun, TlsRecordVersion};

use super::frames::MAC;
use super::rig::{Rig, content, echoed, pattern};
use crate::{DeviceConfig, FileConfig, L5oConfig};

/// All versions and suites.
pub(super) const ALL: [(TlsRecordVersion, Suite); 6] = [
    (TlsRecordVersion::Tls12, Suite::Aes128Gcm),
    (TlsRecordVersion::Tls12, Suite::Aes256Gcm),
    (TlsRecordVersion::Tls12, Suite::ChaCha20Poly1305),
    (TlsRecordVersion::Tls13, Suite::Aes128Gcm),
    (TlsRecordVersion::Tls13, Suite::Aes256Gcm),
    (TlsRecordVersion::Tls13, Suite::ChaCha20Poly1305),
];
/// Sequence number of the first encrypted byte.
pub(super) const START: u32 = 0xffff_f000;
const FLOW: u64 = 7;
pub(super) const CONTEXT: L5oId = L5oId(70);

/// Keys of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct TlsTestPeer {
    pub(super) version: TlsRecordVersion,
    pub(super) suite: Suite,
    pub(super) key: [u8; 32],
    pub(super) iv: [u8; NONCE_BYTES],
}

impl TlsTestPeer {
    pub(super) fn new((version, suite): (TlsRecordVersion, Suite)) -> Self {
        Self { version, suite, key: [0x5a; 32], iv: *b"twelve bytes" }
    }

    pub(super) fn framing(&self) -> TlsFraming {
        framing(self.version, self.suite)
    }

    pub(super) fn create(
        &self,
        context: L5oId,
        direction: L5oDirection,
        tcpsn: u32,
        number: u64,
    ) -> Op {
        let Self { version, suite, key, iv } = *self;
        let state = TlsState { version, suite, key: key.into(), iv, number };
        let (flow, state) = (FlowId(FLOW), L5oState::Tls(state));
        let tcpsn = SeqNum(tcpsn);
        Op::L5oCreate(Box::new(L5oCreate { context, flow, direction, tcpsn, state }))
    }

    /// Returns one encrypted record.
    pub(super) fn seal(&self, number: u64, kind: u8, content: &[u8]) -> Vec<u8> {
        let (framing, mut front) = (self.framing(), [0; 13]);
        let nonce = framing.nonce(&self.iv, number);
        let len = framing.write_full_header(kind, content.len(), &nonce, &mut front);
        let mut text = content.to_vec();
        text.extend(vec![kind; framing.inner_type_len()]);
        let key = crypto::Provider.aead(self.suite, &self.key[..self.suite.key_bytes()]).unwrap();
        let (aad, used) = framing.aad(number, kind, text.len());
        let tag = key.seal(&nonce, &aad[..used], &mut text);
        [&front[..len], &text, &tag].concat()
    }
}

/// A stream of one run: the plaintext of the host, and the bytes expected on the link.
pub(super) struct TlsTxStream {
    peer: TlsTestPeer,
    run: TlsRecordRun,
    number: u64,
    content: Vec<u8>,
    pub(super) wire: Vec<u8>,
}

impl TlsTxStream {
    pub(super) fn new(
        peer: TlsTestPeer,
        number: u64,
        content: Vec<u8>,
        record_content: u32,
    ) -> Self {
        let overhead = u32::try_from(peer.framing().overhead()).unwrap();
        let run = TlsRecordRun {
            content_bytes: content.len() as u64,
            record_content_bytes: record_content,
            overhead,
        };
        let mut wire = vec![];
        for index in 0..run.records() {
            let from = usize::try_from(index * u64::from(record_content)).unwrap();
            let part = &content[from..from + run.record_content_len(index) as usize];
            wire.extend(peer.seal(number + index, 23, part));
        }
        assert_eq!(wire.len() as u64, run.wire_len());
        Self { peer, run, number, content, wire }
    }

    /// Describes a range of the encrypted stream, with the prefix in its record if `prefix`.
    fn sealed(&self, from: usize, len: usize, prefix: bool) -> RecordRange {
        let place = self.run.position(from as u64);
        let first = self.run.record_start(place.index);
        let done = place.index * u64::from(self.run.record_content_bytes);
        let run = TlsRecordRun { content_bytes: self.run.content_bytes - done, ..self.run };
        let front = u32::try_from(self.peer.framing().full_header_len()).unwrap();
        let start = self.run.content_before(place, front);
        let end = self.run.content_before(self.run.position((from + len) as u64), front);
        let prefix = if prefix { start - done } else { 0 };
        let content = usize::try_from(start - prefix).unwrap()..usize::try_from(end).unwrap();
        assert_eq!(first + u64::from(place.offset), from as u64);
        RecordRange {
            context: CONTEXT,
            content: L5oContent::Host(Bytes::copy_from_slice(&self.content[content])),
            prefix: u32::try_from(prefix).unwrap(),
            number: self.number + place.index,
            kind: 23,
            run,
            skip: place.offset,
            len: u32::try_from(len).unwrap(),
        }
    }

    pub(super) fn transmit(&self, from: usize, len: usize, prefix: bool) -> Transmit {
        transmit_of(from, vec![TransmitPart::Records(Box::new(self.sealed(from, len, prefix)))])
    }
}

/// Returns a transmit that begins `from` bytes after the start of the stream.
fn transmit_of(from: usize, parts: Vec<TransmitPart>) -> Transmit {
    let seq = START.wrapping_add(u32::try_from(from).unwrap());
    let mut transmit = echoed(FLOW, seq);
    transmit.parts = parts.into();
    transmit
}

pub(super) fn config() -> DeviceConfig {
    let l5o = Some(L5oConfig::new(Arc::new(crypto::Provider)));
    DeviceConfig { l5o, ..DeviceConfig::new(MAC) }
}

fn rig(peer: TlsTestPeer, number: u64) -> Rig {
    let mut rig = Rig::with(config(), PLAIN_LINK);
    rig.op(0, peer.create(CONTEXT, L5oDirection::Transmit, START, number));
    rig.moved(&[]);
    rig
}

/// Sends a transmit and returns the payload of its packets, concatenated.
fn sent(rig: &mut Rig, transmit: Transmit) -> Vec<u8> {
    rig.send(0, transmit);
    rig.packets().into_iter().flat_map(|(_, bytes)| bytes).collect()
}

pub(super) fn numbers(len: usize) -> Vec<u8> {
    let mut prng = Prng::new(11);
    (0..len).map(|_| u8::try_from(prng.next_u64() % 256).unwrap()).collect()
}

#[test]
fn whole_records_in_order() {
    for suite in ALL {
        let stream = TlsTxStream::new(TlsTestPeer::new(suite), 5, numbers(40_000), 16_384);
        let mut rig = rig(stream.peer, 5);
        let out = sent(&mut rig, stream.transmit(0, stream.wire.len(), false));
        assert_eq!(out, stream.wire);
        assert_eq!(
            rig.moved(&["tx_tls", "l5o", "dma"]),
            [
                "tx_tls_encrypted_packets +28".into(),
                alloc::format!("tx_tls_encrypted_bytes +{}", out.len()),
                "l5o_cache_hits +1".into(),
                "l5o_output_bytes +65536".into(),
            ]
        );
    }
}

#[test]
fn ranges_continue_where_the_context_is() {
    for suite in ALL {
        let stream = TlsTxStream::new(TlsTestPeer::new(suite), 0, numbers(700), 100);
        for step in [1, 2, 7, 13, 16, 50, 119, 130, 333] {
            let mut rig = rig(stream.peer, 0);
            let mut out = vec![];
            while out.len() < stream.wire.len() {
                let len = step.min(stream.wire.len() - out.len());
                let next = sent(&mut rig, stream.transmit(out.len(), len, false));
                assert_eq!(next.len(), len);
                out.extend(next);
            }
            assert_eq!(out, stream.wire);
            let moved = rig.moved(&["tx_tls_ooo", "tx_tls_drop", "tx_tls_skip", "tx_tls_resync"]);
            assert_eq!(moved, [""; 0]);
        }
    }
}

#[test]
fn every_range_can_be_sent_again_with_its_prefix() {
    for suite in ALL {
        let stream = TlsTxStream::new(TlsTestPeer::new(suite), 9, numbers(70), 30);
        let mut rig = rig(stream.peer, 9);
        for from in 0..stream.wire.len() {
            for len in [1, 3, 20, 80] {
                let len = len.min(stream.wire.len() - from);
                let out = sent(&mut rig, stream.transmit(from, len, true));
                assert_eq!(out, stream.wire[from..from + len], "{from} {len}");
            }
        }
        assert_eq!(rig.counter("tx_tls_drop_no_sync_data"), 0);
        assert!(rig.counter("tx_tls_resync_bytes") > 0 && rig.counter("tx_tls_ooo") > 0);
        assert!(rig.counter("dma_recover_bytes") >= rig.counter("tx_tls_resync_bytes"));
    }
}

#[test]
fn a_tag_that_cannot_be_computed_drops_the_transmit() {
    for suite in ALL {
        let stream = TlsTxStream::new(TlsTestPeer::new(suite), 0, numbers(1000), 1000);
        let mut rig = rig(stream.peer, 0);
        let (end, front) = (stream.wire.len(), stream.peer.framing().full_header_len());
        assert_eq!(sent(&mut rig, stream.transmit(500, end - 500, false)), [0; 0]);
        let unsealed = TransmitOutcome::Dropped(FileFault::Refused(Refusal::Encrypted));
        assert_eq!(rig.outcomes(), [(START.wrapping_add(500), unsealed)]);
        assert_eq!(
            rig.moved(&["tx_tls", "tx_dropped"]),
            ["tx_dropped_l5o +1", "tx_tls_ooo +1", "tx_tls_drop_no_sync_data +1"]
        );
        // Ciphertext alone needs no sum; the tag after it does.
        assert_eq!(sent(&mut rig, stream.transmit(500, 100, false)), stream.wire[500..600]);
        assert_eq!(sent(&mut rig, stream.transmit(600, 1, false)), stream.wire[600..601]);
        assert_eq!(sent(&mut rig, stream.transmit(601, end - 601, false)), [0; 0]);
        assert_eq!(rig.counter("tx_tls_skip_no_sync_data"), 2);
        // At the start of the text no content precedes.
        let out = sent(&mut rig, stream.transmit(front, end - front, false));
        assert_eq!(out, stream.wire[front..]);
    }
}

#[test]
fn contexts_come_and_go() {
    let mut rig = Rig::with(
        DeviceConfig {
            l5o: Some(L5oConfig { contexts_max: 1, ..config().l5o.unwrap() }),
            ..config()
        },
        PLAIN_LINK,
    );
    let peer = TlsTestPeer::new(ALL[3]);
    let stream = TlsTxStream::new(peer, 0, numbers(100), 100);
    let refused = |rig: &mut Rig| -> Vec<Refusal> {
        let events = core::mem::take(&mut rig.events);
        let why = events.into_iter().filter_map(|(_, event)| match event {
            Event::L5oRefused(refused) => Some(refused.reason),
            _ => None,
        });
        why.collect()
    };
    assert_eq!(sent(&mut rig, stream.transmit(0, 10, false)), [0; 0]);
    assert_eq!(rig.counter("tx_tls_drop_bypass_req"), 1);
    rig.op(0, peer.create(CONTEXT, L5oDirection::Transmit, START, 0));
    assert_eq!(refused(&mut rig), []);
    rig.op(0, peer.create(L5oId(71), L5oDirection::Transmit, START, 0));
    assert_eq!(refused(&mut rig), [Refusal::TableFull]);
    assert_eq!((rig.counter("l5o_refused"), rig.counter("l5o_contexts")), (1, 1));
    assert_eq!(sent(&mut rig, stream.transmit(0, 10, false)), stream.wire[..10]);
    rig.op(0, Op::L5oDestroy { context: CONTEXT });
    assert_eq!(rig.counter("l5o_contexts"), 0);
    assert_eq!(sent(&mut rig, stream.transmit(10, 10, false)), [0; 0]);
    rig.op(0, peer.create(L5oId(72), L5oDirection::Transmit, START, 0));
    rig.device.reset();
    rig.collect();
    assert_eq!((rig.counter("l5o_contexts"), rig.counter("tx_tls_ctx")), (0, 2));
    let mut rig = Rig::with(DeviceConfig { l5o: None, ..config() }, PLAIN_LINK);
    rig.op(0, peer.create(CONTEXT, L5oDirection::Transmit, START, 0));
    assert_eq!(refused(&mut rig), [Refusal::Disabled]);
    assert_eq!(rig.device.capabilities().l5o, Err(Refusal::Disabled));
}

#[test]
fn files_are_encrypted_and_not_changed() {
    let peer = TlsTestPeer::new(ALL[0]);
    let config = DeviceConfig {
        file: Some(FileConfig { block_pages: 1, ..FileConfig::default() }),
        ..config()
    };
    let mut rig = Rig::with(config, PLAIN_LINK);
    rig.put("a", 60_000, 3);
    rig.open(0, 1, "a").unwrap();
    rig.op(0, peer.create(CONTEXT, L5oDirection::Transmit, START, 0));
    let stream = TlsTxStream::new(peer, 0, content(3, 100, 40_000), 16_000);
    let file = |from: usize, len: usize, prefix: bool| {
        let mut sealed = stream.sealed(from, len, prefix);
        let L5oContent::Host(bytes) = &sealed.content else { unreachable!() };
        let at = stream.content.windows(bytes.len().max(1)).position(|w| w == &bytes[..]);
        let (offset, len) = (100 + at.unwrap() as u64, u32::try_from(bytes.len()).unwrap());
        sealed.content = L5oContent::File(FileExtent { file: FileId(1), offset, len });
        TransmitPart::Records(Box::new(sealed))
    };
    let plain = |bytes: &[u8]| TransmitPart::Host(Bytes::copy_from_slice(bytes));
    let len = 20_000;
    rig.send(0, transmit_of(0, vec![file(0, len, false), plain(b"between")]));
    // The context is destroyed while the transmit waits for the disk.
    rig.op(0, Op::L5oDestroy { context: CONTEXT });
    assert_eq!(rig.counter("l5o_contexts"), 1);
    rig.complete_all();
    let out: Vec<u8> = rig.packets().into_iter().flat_map(|(_, bytes)| bytes).collect();
    assert_eq!(out[..len], stream.wire[..len]);
    assert_eq!(&out[len..], b"between");
    assert_eq!(rig.counter("l5o_contexts"), 0, "the last transmit has left");
    // Retransmitted by another context: the blocks still have the bytes that were read.
    rig.op(0, peer.create(CONTEXT, L5oDirection::Transmit, START, 0));
    let mut again = transmit_of(17_000, vec![file(17_000, 5000, true)]);
    again.retransmission = true;
    rig.send(0, again);
    rig.complete_all();
    let out: Vec<u8> = rig.packets().into_iter().flat_map(|(_, bytes)| bytes).collect();
    assert_eq!(out, stream.wire[17_000..22_000]);
    assert_eq!(rig.counter("dma_recover_bytes"), 0, "a file's prefix does not cross PCIe");
    assert_eq!(pattern(3, 100), stream.content[0]);
}

#[test]
fn malformed_parts_are_refused() {
    let peer = TlsTestPeer::new(ALL[3]);
    let stream = TlsTxStream::new(peer, 0, numbers(1000), 400);
    let change: [fn(&mut RecordRange); 13] = [
        |s| s.run.overhead += 1,
        |s| s.run.record_content_bytes = 0,
        |s| s.run.record_content_bytes = 16_385,
        |s| s.run.content_bytes = u64::MAX,
        |s| s.run.content_bytes = 0,
        |s| s.skip += 400,
        |s| s.skip = u32::MAX,
        |s| s.len = 0,
        |s| s.len = u32::MAX,
        |s| s.len += 500,
        |s| s.prefix += 1,
        |s| s.number = u64::MAX,
        |s| s.content = L5oContent::Host(Bytes::new()),
    ];
    let mut rig = rig(peer, 0);
    for (nth, change) in (1..).zip(change) {
        let mut sealed = stream.sealed(200, 500, true);
        change(&mut sealed);
        rig.send(0, transmit_of(200, vec![TransmitPart::Records(Box::new(sealed))]));
        assert_eq!(rig.packets(), [], "{nth}");
        assert_eq!(rig.counter("tx_dropped_malformed"), nth);
    }
    assert_eq!(sent(&mut rig, stream.transmit(200, 500, true)), stream.wire[200..700]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..<_>::default() })]

    /// Random ranges in random order, some sent again. With the prefix they are always correct;
    /// without it they are correct or dropped.
    #[test]
    fn sent_bytes_are_correct(
        suite in 0..6_usize,
        record in 1..600_u32,
        len in 0..3000_usize,
        ranges in prop::collection::vec((0..4000_usize, 1..2000_usize, any::<bool>()), 1..20),
    ) {
        let stream = TlsTxStream::new(TlsTestPeer::new(ALL[suite]), 1 << 40, numbers(len), record);
        let mut rig = rig(stream.peer, 1 << 40);
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
