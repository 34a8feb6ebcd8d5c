//! A send stream with records against a model of the device that completes them.

use alloc::vec;

use abi::crypto::Suite;
use abi::{FileId, TransmitParts};
use bytes::Bytes;
use proptest::prelude::*;
use wire::tls::TlsRecordVersion;

use super::*;
use crate::l5p::nvme_tcp::tx_pdus::TxContent;
use crate::l5p::transforms::{L5pTransforms, L5pUnit};
use crate::storage::source::StreamSource;
use crate::tcp::spans::SpanMap;

/// Content bytes of a record, few so that runs have many records.
pub(crate) const RECORD: u32 = 100;
const FILE: FileId = FileId(1);

pub(crate) fn file_bytes(offset: u64, len: usize) -> Vec<u8> {
    (offset..).take(len).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect()
}

/// Model of a device's state: the content that it has seen of the current record.
#[derive(Default)]
pub(crate) struct TestRecordDevice {
    position: u64,
    seen: Vec<u8>,
}

impl TestRecordDevice {
    /// Returns the bytes of a part at `position` of the stream. Panics if a tag depends on content
    /// that the device was not given.
    pub(crate) fn complete(
        &mut self,
        keys: &TlsRecordKeys,
        position: u64,
        part: &RecordRange,
    ) -> Vec<u8> {
        let mut content = match &part.content {
            L5oContent::Host(bytes) => bytes.to_vec(),
            L5oContent::File(extent) => file_bytes(extent.offset, extent.len as usize),
            L5oContent::Pdu(_) => panic!("no PDUs"),
        };
        let front = u32::try_from(keys.framing.full_header_len()).unwrap();
        if part.skip <= front {
            self.seen = Vec::new();
        } else if part.prefix > 0 {
            self.seen = content.drain(..part.prefix as usize).collect();
        } else if self.position != position {
            let before = part.run.content_before(part.run.position(part.skip.into()), front);
            // Keystream only: unknown content must not affect the output.
            self.seen = vec![0; usize::try_from(before).unwrap()];
            let tag_at = part.run.record_content_len(0) + part.run.overhead - 16;
            assert!(part.skip + part.len <= tag_at, "a tag without its record");
        }
        self.position = position + u64::from(part.len);
        let (mut out, mut at, end) = (Vec::new(), u64::from(part.skip), part.skip + part.len);
        let mut content = content.into_iter();
        while at < u64::from(end) {
            let place = part.run.position(at);
            let start = part.run.record_start(place.index);
            let stop = part.run.record_start(place.index + 1).min(u64::from(end));
            let len = part.run.record_content_len(place.index) as usize;
            let upto = part.run.content_before(part.run.position(stop), front);
            let upto = usize::try_from(upto - place.index * u64::from(RECORD)).unwrap();
            let missing = upto.min(len) - self.seen.len();
            self.seen.extend(content.by_ref().take(missing));
            let mut text = self.seen.clone();
            text.resize(len, 0);
            let mut sealed = Vec::new();
            keys.seal(part.number + place.index, part.kind, &text, &mut sealed);
            let within = |at: u64| usize::try_from(at - start).unwrap();
            let range = within(at)..within(stop);
            out.extend_from_slice(&sealed[range]);
            at = stop;
            if stop == part.run.record_start(place.index + 1) {
                self.seen = Vec::new();
            }
        }
        assert_eq!(content.next(), None, "content that is not sent");
        out
    }
}

pub(crate) fn keys(version: TlsRecordVersion, suite: Suite) -> Arc<TlsRecordKeys> {
    let key = [7; 32];
    let key = &key[..suite.key_bytes()];
    Arc::new(TlsRecordKeys::new(&crypto::Provider, version, suite, key, [9; 12]).unwrap())
}

pub(crate) fn suites() -> impl Strategy<Value = (TlsRecordVersion, Suite)> {
    const SUITES: &[Suite] = &[Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305];
    const VERSIONS: &[TlsRecordVersion] = &[TlsRecordVersion::Tls12, TlsRecordVersion::Tls13];
    (proptest::sample::select(VERSIONS), proptest::sample::select(SUITES))
}

/// Returns a stream with runs from memory and files, and records encrypted by the host between
/// them; its bytes as they are sent; its transforms.
fn stream(
    keys: &Arc<TlsRecordKeys>,
    steps: &[(u8, u64)],
) -> (SpanMap<L5pUnit>, Vec<u8>, L5pTransforms) {
    let mut sealer = TlsTxKeys::new();
    sealer.push(keys.clone(), Some(L5oId(3)), 1);
    let (mut map, mut wire, mut number) = (SpanMap::new(), vec![0], 0);
    for &(kind, len) in steps {
        let framing = keys.framing;
        let run = TlsRecordRun {
            content_bytes: len,
            record_content_bytes: RECORD,
            overhead: u32::try_from(framing.overhead()).unwrap(),
        };
        let front = u32::try_from(framing.full_header_len()).unwrap();
        let records = RecordRun { epoch: 0, number, kind: 23, run, front };
        number += run.records();
        let offset = u64::from(kind) * 1000 + number;
        let content = file_bytes(offset, usize::try_from(len).unwrap());
        let sealed = sealer.encrypt(&records, &content);
        wire.extend_from_slice(&sealed);
        let source = match kind % 3 {
            0 => StreamSource::Memory(Bytes::from(content)),
            1 => StreamSource::Device { file: FILE, offset },
            _ => {
                map.push_memory(Bytes::from(sealed));
                continue;
            }
        };
        map.push_unit(L5pUnit::Records { records, text: TxContent::Plain(source) });
    }
    (map, wire, L5pTransforms { tx_keys: Some(Box::new(sealer)), pdus: None })
}

proptest! {
    /// For any transmits, retransmits and acknowledgments: each position always has the same byte,
    /// and no tag is requested without the content that it depends on.
    #[test]
    fn a_device_makes_the_same_records_as_the_host(
        (version, suite) in suites(),
        steps in proptest::collection::vec((any::<u8>(), 1..450_u64), 1..8),
        sends in proptest::collection::vec((any::<bool>(), any::<u16>(), 1..400_u32), 1..40),
    ) {
        let keys = keys(version, suite);
        let (mut map, wire, mut transforms) = stream(&keys, &steps);
        prop_assert_eq!(map.end(), wire.len() as u64);
        let (mut device, mut next, mut acked) = (TestRecordDevice::default(), 1, 1);
        for (again, at, len) in sends {
            let from = if again { acked + u64::from(at) % (next - acked + 1) } else { next };
            let mut parts = TransmitParts::new();
            let sent = map.collect(from, len, &mut transforms, &mut parts);
            let mut position = from;
            for part in &parts {
                let bytes = match part {
                    TransmitPart::Records(sealed) => device.complete(&keys, position, sealed),
                    TransmitPart::Host(bytes) => bytes.to_vec(),
                    TransmitPart::File(_) | TransmitPart::Pdu(_) => panic!("plaintext"),
                };
                let at = usize::try_from(position).unwrap();
                prop_assert_eq!(&bytes[..], &wire[at..at + bytes.len()]);
                position += bytes.len() as u64;
            }
            prop_assert_eq!(position, from + u64::from(sent.len));
            next = next.max(position);
            if again && at % 3 == 0 {
                acked = acked.max(from);
                map.advance(acked, |_, _, _| {});
            }
        }
    }

    /// If the device is lost at any moment, the host produces the same bytes.
    #[test]
    fn the_host_makes_the_same_records_without_the_device(
        (version, suite) in suites(),
        steps in proptest::collection::vec((any::<u8>(), 1..450_u64), 1..8),
        ack: u16,
        limit in 1..500_usize,
    ) {
        let keys = keys(version, suite);
        let (mut map, wire, mut transforms) = stream(&keys, &steps);
        let acked = 1 + u64::from(ack) % map.end();
        map.advance(acked, |_, _, _| {});
        prop_assert!(transforms.tx_keys.as_mut().unwrap().lose(None));
        map.read_on_host(&mut transforms);
        while let Some(unread) = map.first_unread(acked) {
            let len = usize::try_from(unread.bytes).unwrap().min(limit.max(RECORD as usize));
            let bytes = Bytes::from(file_bytes(unread.offset, len));
            prop_assert!(map.fill(unread.at, bytes, &mut transforms) > 0, "it continues");
        }
        let mut parts = TransmitParts::new();
        let len = u32::try_from(map.end() - acked).unwrap();
        prop_assert_eq!(map.collect(acked, len, &mut transforms, &mut parts).len, len);
        let mut got = Vec::new();
        for part in &parts {
            let TransmitPart::Host(bytes) = part else { panic!("the device is gone") };
            got.extend_from_slice(bytes);
        }
        prop_assert_eq!(&got[..], &wire[usize::try_from(acked).unwrap()..]);
        prop_assert_eq!(map.memory(), got.len());
    }
}

#[test]
fn keys_are_dropped_after_their_last_record() {
    let first = keys(TlsRecordVersion::Tls13, Suite::Aes128Gcm);
    let mut sealer = TlsTxKeys::new();
    sealer.push(first.clone(), Some(L5oId(1)), 1);
    sealer.push(keys(TlsRecordVersion::Tls13, Suite::Aes128Gcm), Some(L5oId(2)), 500);
    let mut gone = Vec::new();
    sealer.acknowledged(499, |context| gone.push(context));
    assert_eq!(gone, []);
    sealer.acknowledged(500, |context| gone.push(context));
    assert_eq!((gone, sealer.newest()), (vec![L5oId(1)], 1));
    assert!(!sealer.has(&first));
}

/// A connection is handed over with records only if the device is known to have their context. An
/// acknowledged byte proves it, and earlier the echo of a transmit that needed it.
#[test]
fn an_echo_proves_a_context() {
    let (context, other) = (L5oId(1), L5oId(2));
    let part = |context| {
        TransmitPart::Records(Box::new(RecordRange {
            context,
            content: L5oContent::Host(Bytes::from_static(b"x")),
            prefix: 0,
            number: 0,
            kind: 23,
            run: TlsRecordRun { content_bytes: 1, record_content_bytes: 100, overhead: 22 },
            skip: 0,
            len: 23,
        }))
    };
    let mut sealer = TlsTxKeys::new();
    sealer.note_echo(7);
    sealer.note_echo_asked(7, &[TransmitPart::Host(Bytes::from_static(b"x"))]);
    sealer.note_echo(7);
    assert!(!sealer.is_proven(context, 0), "nothing was asked");
    sealer.note_echo_asked(8, &[TransmitPart::Host(Bytes::from_static(b"x")), part(context)]);
    sealer.note_echo(7);
    assert!(!sealer.is_proven(context, 0), "of another transmit");
    sealer.note_echo(8);
    assert!(sealer.is_proven(context, 0) && !sealer.is_proven(other, 0));
    // New keys have a context of their own.
    sealer.note_echo_asked(9, &[part(other)]);
    assert!(!sealer.is_proven(other, 0));
    sealer.note_echo(9);
    assert!(sealer.is_proven(other, 0));
}
