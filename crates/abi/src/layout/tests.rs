//! Tests with descriptors that are made from the published table alone, by a second implementation
//! that knows no type of the contract.

use std::collections::BTreeMap;
use std::path::Path;
use std::{env, fs};

use base::Prng;

use super::*;
use crate::aligned::{AlignedBuf, PAGE_BYTES};
use crate::nvme_tcp::DdpBuffer;
use crate::region::{HeapRegion, RegionRange, SharedRegion};
use crate::{FlowId, PacketBuf, PacketPool, Transmit, TransmitPart, TransmitParts};
use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::{format, vec};
use bytes::Bytes;
use patterns::PatternSet;
use proptest::prelude::*;

/// Version and fingerprint of the published layout. Layouts that differ need other versions.
const PUBLISHED: (u16, u64) = (12, 0x323a_c7ce_534d_d52f);

fn memory() -> InlineMemory {
    InlineMemory { pool: PacketPool::new(16) }
}

/// The layout as a reader of the documentation knows it.
struct PublishedLayout {
    fields: BTreeMap<String, String>,
    variants: BTreeMap<String, Vec<(u8, String)>>,
}

impl PublishedLayout {
    fn read(text: &str) -> Self {
        let joined = text.replace(",\n      ", ", ").replace(":\n      ", ": ");
        let mut layout = Self { fields: BTreeMap::new(), variants: BTreeMap::new() };
        let mut current = String::new();
        for line in joined.lines() {
            let (name, fields) = line.split_once(": ").unwrap_or((line, ""));
            if let Some(variant) = name.strip_prefix("  ") {
                let tag = variant.split(' ').next().unwrap().parse().unwrap();
                layout.variants.get_mut(&current).unwrap().push((tag, fields.to_owned()));
            } else if fields.is_empty() {
                current = name.to_owned();
                layout.variants.insert(current.clone(), vec![]);
            } else {
                layout.fields.insert(name.to_owned(), fields.to_owned());
            }
        }
        layout
    }

    /// Appends random bytes of a list of fields.
    fn write_fields(&self, fields: &str, random: &mut Prng, out: &mut Vec<u8>) {
        for field in split_top(fields) {
            let (_, of) = field.split_once(' ').unwrap();
            self.write(of, random, out);
        }
    }

    /// Appends random bytes of a type.
    fn write(&self, of: &str, random: &mut Prng, out: &mut Vec<u8>) {
        let bytes = |count: u64, random: &mut Prng, out: &mut Vec<u8>| {
            out.extend((0..count).map(|_| random.next_u64().to_le_bytes()[0]));
        };
        let inner = |start: &str| of.strip_prefix(start).and_then(|of| of.strip_suffix('>'));
        if let Some(of) = inner("Option<") {
            out.push(random.below(2).to_le_bytes()[0]);
            if out.ends_with(&[1]) {
                self.write(of, random, out);
            }
        } else if let Some(both) = inner("Result<") {
            let is_err = random.below(2).to_le_bytes()[0];
            out.push(is_err);
            self.write(split_top(both)[usize::from(is_err)], random, out);
        } else if let Some(of) = inner("Range<") {
            self.write(of, random, out);
            self.write(of, random, out);
        } else if let Some(list) = of.strip_prefix('[').and_then(|of| of.strip_suffix(']')) {
            let (of, count) = match list.split_once("; ") {
                Some((of, count)) => (of, count.parse().unwrap()),
                None => {
                    let count = random.below(4);
                    out.extend_from_slice(&count.to_le_bytes()[..2]);
                    (list, count)
                }
            };
            (0..count).for_each(|_| self.write(of, random, out));
        } else if let Some(fields) = self.fields.get(of) {
            self.write_fields(fields, random, out);
        } else if let Some(variants) = self.variants.get(of) {
            let portable: Vec<_> =
                variants.iter().filter(|(_, fields)| !fields.contains("Decompress")).collect();
            let index = random.below(portable.len() as u64);
            let (tag, fields) = portable[usize::try_from(index).unwrap()];
            out.push(*tag);
            self.write_fields(fields, random, out);
        } else {
            match of {
                "u8" => bytes(1, random, out),
                "u16" => bytes(2, random, out),
                "u32" => bytes(4, random, out),
                "u64" | "i64" | "ns u64" => bytes(8, random, out),
                "bool" => out.push(random.below(2).to_le_bytes()[0]),
                "nothing" => {}
                "IpAddr" => {
                    let (version, len) = *random_of(&[(4, 4), (6, 16)], random);
                    out.push(version);
                    bytes(len, random, out);
                }
                "PacketHeader" => {
                    out.extend_from_slice(&[54, 14, 34]);
                    bytes(54, random, out);
                }
                "QuicConnectionId" => {
                    let len = random.below(21);
                    out.push(len.to_le_bytes()[0]);
                    bytes(len, random, out);
                }
                "PatternSet" => {
                    let count = 1 + random.below(4);
                    out.push(1);
                    out.extend_from_slice(&count.to_le_bytes()[..2]);
                    for _ in 0..count {
                        let len = 1 + random.below(20);
                        out.extend_from_slice(&len.to_le_bytes()[..2]);
                        bytes(len, random, out);
                    }
                }
                "Memory" | "PagedMemory" => {
                    let len = if of == "Memory" { random.below(100) } else { 4096 };
                    out.extend_from_slice(&[0xff; 4]);
                    out.extend_from_slice(&len.to_le_bytes()[..4]);
                    bytes(len, random, out);
                }
                _ => panic!("the table does not explain {of}"),
            }
        }
    }
}

fn random_of<'a, T>(all: &'a [T], random: &mut Prng) -> &'a T {
    &all[usize::try_from(random.below(all.len() as u64)).unwrap()]
}

/// Splits a list at the commas that lie in no angle bracket.
fn split_top(list: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0, 0, vec![]);
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'<' => depth += 1,
            b'>' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(list[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(list[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

/// Decodes an operation or event and returns its encoding.
fn again(of: &str, bytes: &[u8]) -> Result<Vec<u8>, LayoutFault> {
    let (mut memory, mut out) = (memory(), vec![]);
    match of {
        "Op" => encode_op(&mut decode_op(bytes, &mut memory)?, &mut memory, &mut out),
        _ => encode_event(&mut decode_event(bytes, &mut memory)?, &mut memory, &mut out),
    }
    .expect("what was decoded is portable");
    Ok(out)
}

/// The page of the documentation holds the table of this code.
#[test]
fn the_published_layout_is_this_one() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/descriptors.md");
    let text = fs::read_to_string(&page).unwrap();
    let (before, rest) = text.split_once("```text\n").unwrap();
    let (published, after) = rest.split_once("```").unwrap();
    let table = layout_table();
    if env::var_os("OUTBOARD_WRITE_DOCS").is_some() {
        let new = format!("{before}```text\n{}```{after}", table.to_text());
        return fs::write(&page, new).unwrap();
    }
    assert_eq!(published, table.to_text(), "write it with OUTBOARD_WRITE_DOCS=1");
    let got = (LAYOUT_VERSION, table.fingerprint());
    assert_eq!(got, PUBLISHED, "another layout needs another version: {:#018x}", got.1);
    assert_eq!(LAYOUT_FINGERPRINT, got.1);
}

/// Every variant, made from the table, is decoded, and is encoded to the same bytes.
#[test]
fn descriptors_made_from_the_table_are_understood() {
    let layout = PublishedLayout::read(&layout_table().to_text());
    let mut random = Prng::new(7);
    for of in ["Op", "Event"] {
        for (tag, fields) in &layout.variants[of] {
            if fields.contains("Decompress") {
                assert_eq!(
                    again(of, &[*tag, 0, 0, 0, 0, 0, 0, 0, 0]),
                    Err(LayoutFault::NotPortable)
                );
                continue;
            }
            for _ in 0..200 {
                let mut bytes = vec![*tag];
                layout.write_fields(fields, &mut random, &mut bytes);
                assert_eq!(again(of, &bytes).as_deref(), Ok(&bytes[..]), "{of} {tag}");
                let cut = usize::try_from(random.below(bytes.len() as u64)).unwrap();
                assert!(again(of, &bytes[..cut]).is_err(), "{of} {tag} of {cut} bytes");
                bytes.push(0);
                assert_eq!(again(of, &bytes), Err(LayoutFault::Trailing), "{of} {tag}");
            }
        }
    }
}

/// A transmit keeps its values, and its bytes are those of the page. A comparison of encodings
/// alone would not show that writer and reader confuse two fields in the same manner.
#[test]
fn values_survive() {
    let (mut memory, mut out) = (memory(), vec![]);
    let mut parts = TransmitParts::new();
    parts.push(TransmitPart::Host(Bytes::from_static(b"payload")));
    let header = crate::PacketHeader::from_bytes(&[7; 54], 14, 34).unwrap();
    let transmit = Transmit {
        flow: FlowId(0x0102_0304_0506_0708),
        header,
        segment_size: 1448,
        parts,
        timestamp: None,
        echo: Some(9),
        retransmission: true,
        quic: None,
    };
    encode_op(&mut Op::Transmit(transmit), &mut memory, &mut out).unwrap();
    let mut expected = vec![1, 8, 7, 6, 5, 4, 3, 2, 1, 54, 14, 34];
    expected.extend_from_slice(&[7; 54]);
    expected.extend_from_slice(&[0xa8, 0x05, 1, 0, 1, 0xff, 0xff, 0xff, 0xff, 7, 0, 0, 0]);
    expected.extend_from_slice(b"payload");
    expected.extend_from_slice(&[0, 1, 9, 0, 0, 0, 1, 0]);
    assert_eq!(out, expected);
    let Ok(Op::Transmit(got)) = decode_op(&out, &mut memory) else { panic!() };
    assert_eq!((got.flow, got.segment_size), (FlowId(0x0102_0304_0506_0708), 1448));
    assert_eq!((got.header.l3(), got.header.l4(), got.echo), (14, 34, Some(9)));
    assert!(got.retransmission && got.quic.is_none() && got.timestamp.is_none());
    let [TransmitPart::Host(bytes)] = &got.parts[..] else { panic!() };
    assert_eq!(&bytes[..], b"payload");
}

/// A carrier with one region, in which payload is named and not copied.
struct NamedPayload(Bytes);

impl EncodeMemory for NamedPayload {
    fn name_bytes(&mut self, bytes: Bytes) -> Result<MemoryRange, Bytes> {
        let offset = bytes.as_ptr() as usize - self.0.as_ptr() as usize;
        let len = u32::try_from(bytes.len()).unwrap();
        Ok(MemoryRange { region: 3, offset: offset as u64, len })
    }
}

impl DecodeMemory for NamedPayload {
    fn bytes(&mut self, range: MemoryRange) -> Option<Bytes> {
        let start = usize::try_from(range.offset).ok()?;
        let end = start.checked_add(range.len as usize)?;
        (range.region == 3 && end <= self.0.len()).then(|| self.0.slice(start..end))
    }

    fn copy_frame(&mut self, _: &[u8]) -> Option<PacketBuf> {
        None
    }
}

#[test]
fn payload_in_a_region_is_named_and_not_copied() {
    let region = Bytes::from(vec![5; 1000]);
    let mut memory = NamedPayload(region.clone());
    let mut out = vec![];
    encode(&mut region.slice(100..300), &mut memory, &mut out).unwrap();
    assert_eq!(out, [3, 0, 0, 0, 200, 0, 0, 0, 100, 0, 0, 0, 0, 0, 0, 0]);
    let got: Bytes = decode(&out, &mut memory).unwrap();
    assert_eq!((got.as_ptr(), got.len()), (region[100..].as_ptr(), 200));
    for (at, value) in [(0, 4), (4, 0xff), (9, 0xff), (15, 0xff)] {
        let mut wrong = out.clone();
        wrong[at] = value;
        let refused = decode::<Bytes>(&wrong, &mut memory).map(|bytes| bytes.len());
        let expected = if at == 4 { Ok(255) } else { Err(LayoutFault::BadMemory) };
        assert_eq!(refused, expected, "byte {at}");
    }
}

#[test]
fn registered_buffers_consist_of_pages() {
    let (mut memory, mut out) = (memory(), vec![]);
    encode(&mut DdpBuffer::Pages(AlignedBuf::new(2)), &mut memory, &mut out).unwrap();
    assert_eq!(decode::<DdpBuffer>(&out, &mut memory).unwrap().len(), 2 * PAGE_BYTES);
    for len in [0, 1, PAGE_BYTES - 1, PAGE_BYTES + 1] {
        let mut bytes = vec![0xff; 4];
        bytes.extend_from_slice(&u32::try_from(len).unwrap().to_le_bytes());
        bytes.resize(8 + len, 0);
        let refused = decode::<DdpBuffer>(&bytes, &mut memory).map(|buffer| buffer.len());
        assert_eq!(refused, Err(LayoutFault::OutOfRange), "{len} bytes");
        // A named buffer has the same rule; unregistered memory is refused after it.
        bytes.truncate(8);
        bytes[..4].fill(0);
        bytes.extend_from_slice(&[0; 8]);
        let refused = decode::<DdpBuffer>(&bytes, &mut memory).map(|buffer| buffer.len());
        assert_eq!(refused, Err(LayoutFault::OutOfRange), "{len} bytes, named");
    }
    let named = [0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let refused = decode::<DdpBuffer>(&named, &mut memory).map(|buffer| buffer.len());
    assert_eq!(refused, Err(LayoutFault::BadMemory));
}

/// A registered buffer in a region crosses as its name, in both directions.
#[test]
fn registered_buffers_in_a_region_are_named() {
    struct Region(Arc<dyn SharedRegion>);
    impl EncodeMemory for Region {}
    impl DecodeMemory for Region {
        fn copy_frame(&mut self, _: &[u8]) -> Option<PacketBuf> {
            None
        }

        fn shared_buffer(&mut self, range: MemoryRange) -> Option<RegionRange> {
            RegionRange::new(&self.0, range.offset, range.len as usize)
        }
    }
    let mut memory = Region(Arc::new(HeapRegion::new(3 * PAGE_BYTES)));
    let range = RegionRange::new(&memory.0, 4096, 2 * PAGE_BYTES).unwrap();
    let mut out = vec![];
    encode(&mut DdpBuffer::Shared(range), &mut memory, &mut out).unwrap();
    assert_eq!(out, [0, 0, 0, 0, 0, 32, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0]);
    let mut crossed: DdpBuffer = decode(&out, &mut memory).unwrap();
    assert!(crossed.write(8191, &[7]) && !crossed.write(8191, &[7, 7]));
    let mut last = [0];
    memory.0.read(3 * PAGE_BYTES - 1, &mut last);
    assert_eq!(last, [7]);
    out[5] = 48;
    let beyond = decode::<DdpBuffer>(&out, &mut memory).map(|buffer| buffer.len());
    assert_eq!(beyond, Err(LayoutFault::BadMemory));
}

/// A set crosses whole. Numbers that no carrier has assigned, and sets beyond the limits, are
/// refused before anything is compiled.
#[test]
fn sets_of_patterns_cross_within_their_limits() {
    let (mut memory, mut out) = (memory(), vec![]);
    let mut set = Arc::new(PatternSet::new(&["pin", "needle"]).unwrap());
    encode(&mut set, &mut memory, &mut out).unwrap();
    assert_eq!(out, *b"\x01\x02\x00\x03\x00pin\x06\x00needle");
    let crossed: Arc<PatternSet> = decode(&out, &mut memory).unwrap();
    assert_eq!(crossed.patterns(), set.patterns());
    let list = |lens: &[u16]| {
        let mut bytes = vec![1];
        bytes.extend_from_slice(&u16::try_from(lens.len()).unwrap().to_le_bytes());
        for len in lens {
            bytes.extend_from_slice(&len.to_le_bytes());
            bytes.resize(bytes.len() + usize::from(*len), b'x');
        }
        bytes
    };
    for (bytes, fault) in [
        (vec![0, 0, 0, 0, 0], LayoutFault::BadMemory),
        (vec![2, 0, 0], LayoutFault::UnknownTag),
        (list(&[]), LayoutFault::OutOfRange),
        (list(&[3, 0]), LayoutFault::OutOfRange),
        (list(&[257]), LayoutFault::OutOfRange),
        (list(&[256; 65]), LayoutFault::OutOfRange),
        (list(&[1; 1025]), LayoutFault::OutOfRange),
        (vec![1, 0xff, 0xff, 1, 0, 7], LayoutFault::Truncated),
    ] {
        let refused = decode::<Arc<PatternSet>>(&bytes, &mut memory).map(|_| ());
        assert_eq!(refused, Err(fault), "{:?}", &bytes[..3]);
    }
}

/// An operation that cannot leave the process leaves no bytes behind.
#[test]
fn what_is_not_portable_is_refused_whole() {
    let (mut memory, mut out) = (memory(), vec![1, 2, 3]);
    let mut long: Box<[u8]> = vec![0; 1 << 16].into();
    assert_eq!(encode(&mut long, &mut memory, &mut out), Err(EncodeFault::TooLong));
    let mut huge = DdpBuffer::Pages(AlignedBuf::new(DESCRIPTOR_BYTES_MAX / PAGE_BYTES + 1));
    assert_eq!(encode(&mut huge, &mut memory, &mut out), Err(EncodeFault::TooLong));
    assert_eq!(out, [1, 2, 3]);
    let refused = decode_op(&vec![1; DESCRIPTOR_BYTES_MAX + 1], &mut memory);
    assert_eq!(refused.map(|_| ()), Err(LayoutFault::TooLong));
}

/// A list cannot claim more elements than there are bytes.
#[test]
fn a_length_without_bytes_is_refused() {
    let entries = [17, 0xff, 0xff, 0, 0];
    assert_eq!(again("Op", &entries), Err(LayoutFault::Truncated));
    assert_eq!(again("Op", &[99]), Err(LayoutFault::UnknownTag));
    assert_eq!(again("Op", &[]), Err(LayoutFault::Truncated));
    assert_eq!(
        again("Op", &[14, 0, 0, 0, 0, 0, 0, 0, 0, 2, 3, 1, 0, 0]),
        Err(LayoutFault::OutOfRange)
    );
}

/// Debug output of a writer shows no key.
#[test]
fn debug_output_shows_no_bytes() {
    let mut memory = memory();
    let mut out = vec![0x5e; 32];
    assert_eq!(format!("{:?}", Encoder::new(&mut memory, &mut out)), "Encoder(32 bytes)");
    assert_eq!(format!("{:?}", Decoder::new(&mut memory, &out)), "Decoder(32 bytes left)");
    assert_eq!(LayoutFault::Trailing.to_string(), "bytes follow the descriptor");
}

proptest! {
    /// A changed descriptor is refused, or is the only encoding of another value.
    #[test]
    fn changed_descriptors_have_one_encoding(
        seed: u64, event: bool,
        changes in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..4),
    ) {
        let layout = PublishedLayout::read(&layout_table().to_text());
        let of = if event { "Event" } else { "Op" };
        let mut bytes = vec![];
        layout.write(of, &mut Prng::new(seed), &mut bytes);
        for (at, value) in changes {
            let at = usize::from(at) % bytes.len();
            bytes[at] = value;
        }
        if let Ok(same) = again(of, &bytes) {
            prop_assert_eq!(same, bytes);
        }
    }

    #[test]
    fn total_on_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200), event: bool) {
        let of = if event { "Event" } else { "Op" };
        if let Ok(same) = again(of, &bytes) {
            prop_assert_eq!(same, bytes);
        }
    }
}
