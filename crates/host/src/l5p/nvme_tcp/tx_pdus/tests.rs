//! A send stream with PDUs, plain and in records, against a model of the device that completes
//! them.

use alloc::vec;
use alloc::vec::Vec;

use abi::crypto::Suite;
use abi::l5o::RecordRange;
use abi::{FileId, TransmitPart, TransmitParts};
use proptest::prelude::*;
use wire::tls::{TlsRecordRun, TlsRecordVersion};

use super::*;
use crate::l5p::tls::record::TlsRecordKeys;
use crate::l5p::tls::tx_keys::tests::{RECORD, TestRecordDevice, file_bytes, keys, suites};
use crate::l5p::tls::tx_keys::{RecordRun, TlsTxKeys};
use crate::l5p::transforms::{L5pTransforms, L5pUnit};
use crate::tcp::spans::SpanMap;

const FILE: FileId = FileId(1);
const CONTEXT: L5oId = L5oId(9);

/// Model of a device's state: the data that it has seen of the current PDU.
#[derive(Default)]
struct TestPduDevice {
    last: Option<(u64, u32)>,
    seen: Option<Vec<u8>>,
    records: TestRecordDevice,
}

impl TestPduDevice {
    /// Returns the bytes of a range. Panics if a digest depends on data that the device was not
    /// given.
    fn complete(&mut self, range: &PduRange) -> Vec<u8> {
        assert_eq!(range.context, CONTEXT);
        let mut data = match &range.data {
            PduDataSource::Host(bytes) => bytes.to_vec(),
            PduDataSource::File(extent) => file_bytes(extent.offset, extent.len as usize),
        };
        let header = u32::try_from(range.header.len()).unwrap();
        let prefix: Vec<u8> = data.drain(..range.prefix as usize).collect();
        let here = self.last == Some((range.number, range.skip));
        if range.skip <= header {
            self.seen = Some(Vec::new());
        } else if !prefix.is_empty() {
            assert_eq!(prefix.len(), (range.skip - header).min(range.data_len) as usize);
            self.seen = Some(prefix);
        } else if !here {
            self.seen = None;
        }
        if let Some(seen) = &mut self.seen {
            seen.extend_from_slice(&data);
        }
        let (skip, end) = (range.skip as usize, (range.skip + range.len) as usize);
        let mut out = range.header[skip.min(header as usize)..end.min(header as usize)].to_vec();
        out.extend(data);
        let digest_at = (header + range.data_len) as usize;
        if end > digest_at {
            let seen = self.seen.as_ref().expect("all data that the digest depends on");
            assert_eq!(seen.len(), range.data_len as usize);
            let digest = crypto::Provider.crc32c(0, seen).to_le_bytes();
            out.extend_from_slice(&digest[skip.max(digest_at) - digest_at..end - digest_at]);
        }
        assert_eq!(out.len(), range.len as usize, "data that is not sent");
        self.last = Some((range.number, range.skip + range.len));
        out
    }

    /// Returns the bytes of a part at `position`.
    fn part(
        &mut self,
        keys: Option<&Arc<TlsRecordKeys>>,
        position: u64,
        part: &TransmitPart,
    ) -> Vec<u8> {
        match (part, keys) {
            (TransmitPart::Host(bytes), _) => bytes.to_vec(),
            (TransmitPart::Pdu(range), None) => self.complete(range),
            (TransmitPart::Records(sealed), Some(keys)) => {
                let mut sealed = RecordRange::clone(sealed);
                if let L5oContent::Pdu(range) = &sealed.content {
                    sealed.content = L5oContent::Host(self.complete(range).into());
                }
                self.records.complete(keys, position, &sealed)
            }
            _ => panic!("plaintext, or a file without its digest"),
        }
    }
}

/// A PDU: whether its data is a file, bytes of header and data, whether the device may complete it.
type TestPduSpec = (bool, usize, usize, bool);

fn steps() -> impl Strategy<Value = Vec<TestPduSpec>> {
    let step = (any::<bool>(), 1..40_usize, 0..450_usize, any::<bool>());
    proptest::collection::vec(step, 1..8)
}

/// TLS below the PDUs; `None` for TCP alone.
fn carriers() -> impl Strategy<Value = Option<(TlsRecordVersion, Suite)>> {
    proptest::option::of(suites())
}

struct TestPduStream {
    map: SpanMap<L5pUnit>,
    transforms: L5pTransforms,
    keys: Option<Arc<TlsRecordKeys>>,
    wire: Vec<u8>,
    /// Bytes of files in the stream.
    file: u64,
    counters: HostCounters,
    records: u64,
}

impl TestPduStream {
    fn new(carrier: Option<(TlsRecordVersion, Suite)>, steps: &[TestPduSpec]) -> Self {
        let mut pdus = NvmeTxPdus::default();
        let over = None;
        let (header_digest, data_digest, pdu_bytes_max) = (true, true, 1 << 20);
        let state = NvmeTcpState { header_digest, data_digest, pdu_bytes_max, tls: over };
        pdus.begin(state, Arc::new(crypto::Provider));
        pdus.renew(CONTEXT);
        let keys = carrier.map(|(version, suite)| keys(version, suite));
        let sealer = keys.as_ref().map(|keys| {
            let mut sealer = TlsTxKeys::new();
            sealer.push(keys.clone(), Some(L5oId(3)), 1);
            Box::new(sealer)
        });
        let transforms = L5pTransforms { tx_keys: sealer, pdus: Some(Box::new(pdus)) };
        let (map, counters, wire) = (SpanMap::new(), HostCounters::default(), vec![0]);
        let mut stream = Self { map, transforms, keys, wire, file: 0, counters, records: 0 };
        for &step in steps {
            stream.write(step);
        }
        stream
    }

    fn write(&mut self, (file, header, data_len, device): TestPduSpec) {
        let offset = self.wire.len() as u64;
        let header = Bytes::from(vec![u8::try_from(header).unwrap(); header]);
        let data = file_bytes(offset, data_len);
        let mut text = [&header[..], &data].concat();
        if data_len > 0 {
            text.extend(crypto::Provider.crc32c(0, &data).to_le_bytes());
        }
        // Files are the device's at first; those that the host reads from the start are not tested.
        let file = file && data_len > 0;
        let source = match file {
            true => StreamSource::Device { file: FILE, offset },
            false => StreamSource::Memory(data.into()),
        };
        self.file += if file { data_len as u64 } else { 0 };
        let data_len = u32::try_from(data_len).unwrap();
        let mut pdu = OutgoingPdu { header, data: source, data_len, digest: true, mark: 0 };
        assert_eq!(pdu.len(), text.len() as u64);
        let pdus = self.transforms.pdus.as_mut().unwrap();
        pdu.mark = pdus.mark(pdu.len());
        let mark = pdu.mark;
        let texts = pdus.stream_content(pdu, device || file, &mut self.counters);
        for (source, len) in join_memory(texts) {
            let content: Vec<u8> = text.drain(..usize::try_from(len).unwrap()).collect();
            self.push(source, len, &content);
        }
        assert_eq!(text, []);
        let end = self.map.end();
        self.pdus().note(mark, end, 1);
    }

    fn pdus(&mut self) -> &mut NvmeTxPdus {
        self.transforms.pdus.as_mut().unwrap()
    }

    fn push(&mut self, text: TxContent, len: u64, content: &[u8]) {
        let Some(keys) = &self.keys else {
            match text {
                TxContent::Plain(source) => self.map.push_plain(source, len),
                TxContent::Pdu(pdu) => self.map.push_unit(L5pUnit::Pdu(pdu)),
            }
            return self.wire.extend(content);
        };
        let overhead = u32::try_from(keys.framing.overhead()).unwrap();
        let run = TlsRecordRun { content_bytes: len, record_content_bytes: RECORD, overhead };
        let front = u32::try_from(keys.framing.full_header_len()).unwrap();
        let records = RecordRun { epoch: 0, number: self.records, kind: 23, run, front };
        self.records += run.records();
        let sealer = self.transforms.tx_keys.as_ref().unwrap();
        self.wire.extend(sealer.encrypt(&records, content));
        self.map.push_unit(L5pUnit::Records { records, text });
    }

    fn collect(&mut self, from: u64, len: u32) -> (u32, TransmitParts) {
        let mut parts = TransmitParts::new();
        let sent = self.map.collect(from, len, &mut self.transforms, &mut parts);
        (sent.len, parts)
    }

    /// Returns the device's output for `len` bytes from `from`.
    fn sent(&mut self, device: &mut TestPduDevice, from: u64, len: u32) -> Vec<u8> {
        let (sent, parts) = self.collect(from, len);
        let mut out = Vec::new();
        for part in &parts {
            let bytes = device.part(self.keys.as_ref(), from + out.len() as u64, part);
            assert_eq!(bytes.len(), part.len() as usize);
            out.extend(bytes);
        }
        assert_eq!(out.len(), sent as usize);
        out
    }

    fn wire(&self, from: u64, len: usize) -> &[u8] {
        &self.wire[usize::try_from(from).unwrap()..][..len]
    }

    /// Acknowledges everything up to `position`. Returns the bytes of files that are released.
    fn advance(&mut self, position: u64) -> u64 {
        let mut released = 0;
        self.map.advance(position, |_, _, len| released += len);
        released
    }

    /// Lets the host read what it must. Returns the bytes of files that it read.
    fn fill(&mut self, from: u64) -> u64 {
        let mut filled = 0;
        while let Some(unread) = self.map.first_unread(from) {
            assert_eq!(unread.bytes, unread.bytes_min, "all of a PDU's data");
            let bytes = file_bytes(unread.offset, usize::try_from(unread.bytes).unwrap());
            let len = self.map.fill(unread.at, bytes.into(), &mut self.transforms);
            assert_eq!(len, unread.bytes);
            filled += len;
        }
        filled
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..<_>::default() })]

    /// For any transmits, retransmits and acknowledgments: each position always has the same byte,
    /// and no digest or tag is requested without the data that it depends on.
    #[test]
    fn a_device_makes_the_same_pdus_as_the_host(
        carrier in carriers(),
        steps in steps(),
        sends in proptest::collection::vec((any::<bool>(), any::<u16>(), 1..400_u32), 1..40),
    ) {
        let mut stream = TestPduStream::new(carrier, &steps);
        prop_assert_eq!(stream.map.end(), stream.wire.len() as u64);
        let (mut device, mut next, mut acked) = (TestPduDevice::default(), 1, 1);
        let mut released = 0;
        for (again, at, len) in sends {
            let from = if again { acked + u64::from(at) % (next - acked + 1) } else { next };
            let bytes = stream.sent(&mut device, from, len);
            prop_assert_eq!(bytes.len() as u64, u64::from(len).min(stream.map.end() - from));
            prop_assert_eq!(&bytes[..], stream.wire(from, bytes.len()));
            next = next.max(from + bytes.len() as u64);
            if again && at % 3 == 0 {
                acked = acked.max(from);
                released += stream.advance(acked);
            }
        }
        released += stream.advance(stream.map.end());
        prop_assert_eq!((released, stream.map.memory()), (stream.file, 0));
    }

    /// If the device, or only its digest context, is lost at any moment, the host produces the same
    /// bytes.
    #[test]
    fn the_host_makes_the_same_pdus_without_the_device(
        carrier in carriers(),
        steps in steps(),
        ack: u16,
        all: bool,
    ) {
        let mut stream = TestPduStream::new(carrier, &steps);
        let acked = 1 + u64::from(ack) % stream.map.end();
        let mut released = stream.advance(acked);
        stream.pdus().take_context();
        if let Some(sealer) = stream.transforms.tx_keys.as_mut().filter(|_| all) {
            prop_assert!(sealer.lose(None));
        }
        stream.map.read_on_host(&mut stream.transforms);
        released += stream.fill(acked);
        prop_assert_eq!(released, stream.file);
        let end = stream.map.end();
        let bytes =
            stream.sent(&mut TestPduDevice::default(), acked, u32::try_from(end - acked).unwrap());
        prop_assert_eq!(&bytes[..], stream.wire(acked, usize::try_from(end - acked).unwrap()));
        if all || carrier.is_none() {
            prop_assert_eq!(stream.map.memory(), bytes.len());
        } else {
            let (_, parts) = stream.collect(acked, u32::MAX);
            prop_assert!(
                parts.iter().all(|p| matches!(p, TransmitPart::Records(_))), "it still seals");
        }
        prop_assert_eq!(stream.advance(end), 0);
        prop_assert_eq!(stream.map.memory(), 0);
    }

    /// A mark is reached when the last byte of its PDU is acknowledged, in any order of queries.
    #[test]
    fn marks_follow_acknowledgments(carrier in carriers(), steps in steps(), acks: [u16; 4]) {
        let mut stream = TestPduStream::new(carrier, &steps);
        for ack in acks {
            let una = u64::from(ack) % (stream.map.end() + 1);
            let want = stream.pdus().marks.iter().rfind(|(_, end)| *end <= una).map_or(0, |m| m.0);
            prop_assert_eq!(stream.pdus().acknowledged(una), want);
        }
        let sum = |&(_, header, data, _): &TestPduSpec|
            header + data + if data > 0 { 4 } else { 0 };
        let all: usize = steps.iter().map(sum).sum();
        let end = stream.map.end();
        prop_assert_eq!(stream.pdus().acknowledged(end), all as u64);
    }
}

#[test]
fn a_pdu_is_kept_until_its_last_byte_is_acknowledged() {
    let mut stream = TestPduStream::new(None, &[(false, 24, 100, true), (true, 24, 100, true)]);
    assert_eq!(stream.map.memory(), 24 + 100 + 24);
    assert_eq!(stream.advance(128), 0);
    assert_eq!(stream.map.memory(), 24 + 100 + 24);
    assert_eq!((stream.map.piece_end(1), stream.map.piece_end(100)), (1, 129));
    assert_eq!((stream.map.piece_end(129), stream.map.piece_end(130)), (129, 257));
    assert_eq!(stream.advance(256), 0);
    assert_eq!((stream.advance(257), stream.map.memory()), (100, 0));
    let c = &stream.counters;
    assert_eq!((c.nvme_tx_pdus, c.nvme_tx_digests_device, c.nvme_tx_digests_host), (2, 2, 0));
}

#[test]
fn the_host_digests_pdus_beyond_the_prefix_limit() {
    let most = PREFIX_BYTES_MAX as usize;
    for (len, device) in [(most, 1), (most + 1, 0)] {
        let stream = TestPduStream::new(None, &[(false, 24, len, true)]);
        let c = &stream.counters;
        assert_eq!((c.nvme_tx_digests_device, c.nvme_tx_digests_host), (device, 1 - device));
    }
}

/// A read whose range was acknowledged meanwhile, or that is incomplete, changes nothing.
#[test]
fn late_and_short_reads_are_ignored() {
    let mut stream = TestPduStream::new(None, &[(true, 24, 100, true), (true, 24, 50, true)]);
    stream.pdus().take_context();
    stream.map.read_on_host(&mut stream.transforms);
    let unread = stream.map.first_unread(30).unwrap();
    assert_eq!((unread.at, unread.bytes, unread.bytes_min), (1, 100, 100));
    let mut fill = |map: &mut SpanMap<L5pUnit>, at: u64, len: usize| {
        map.fill(at, file_bytes(1, len).into(), &mut stream.transforms)
    };
    assert_eq!(fill(&mut stream.map, 1, 99), 0);
    assert_eq!(fill(&mut stream.map, 2, 100), 0);
    stream.map.advance(129, |_, _, _| {});
    assert_eq!(fill(&mut stream.map, 1, 100), 0);
    assert_eq!(fill(&mut stream.map, 129, 50), 50);
    assert_eq!(stream.pdus().take_computed(), 1);
}
