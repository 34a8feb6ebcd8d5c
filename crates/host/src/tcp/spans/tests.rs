//! Tests of positions and sources in the send buffer.

use super::*;
use crate::net::outbox::Outbox;
use abi::l5o::L5oId;
use abi::{Refusal, TransmitPart};
use alloc::vec::Vec;
use core::convert::Infallible;
use proptest::prelude::*;

impl TxUnit for Infallible {
    fn len(&self) -> u64 {
        match *self {}
    }

    fn memory(&self) -> usize {
        match *self {}
    }

    fn file(&self) -> Option<FileId> {
        match *self {}
    }

    fn is_unread(&self) -> bool {
        match *self {}
    }

    fn piece_end(&self, _: u64) -> u64 {
        match *self {}
    }

    fn release_before(&mut self, _: u64, _: &mut dyn FnMut(FileId, u64, u64)) -> usize {
        match *self {}
    }

    fn first_unread(&self, _: u64) -> Option<UnreadRange> {
        match *self {}
    }
}

/// Transforms of a connection without protocols above TCP.
impl TxTransforms for () {
    type Unit = Infallible;
    type Lost = ();

    fn part(&mut self, unit: &Infallible, _: u64, _: u64, _: u32) -> Option<TransmitPart> {
        match *unit {}
    }

    fn fill(
        &mut self,
        unit: &Infallible,
        _: u64,
        _: Bytes,
    ) -> Option<(u64, SpanPieces<Infallible>)> {
        match *unit {}
    }

    fn read_on_host(&mut self, unit: &mut Infallible) -> Option<SpanPieces<Infallible>> {
        match *unit {}
    }

    fn note_handed_over(&mut self, _: u64, _: u32, _: &[TransmitPart], _: bool) {}
    fn note_echo(&mut self, _: u32, _: bool) {}
    fn note_all_canceled(&mut self) {}
    fn forget_expected_positions(&mut self) {}
    fn drop_acked_keys(&mut self, _: u64, _: &mut Outbox) {}
    fn add_to_counters(&mut self, _: &mut Outbox) {}
    fn drop_contexts(&mut self, _: &mut Outbox, _: Option<(L5oId, Refusal)>) {}

    fn device_has_context(&self, _: &TransmitPart, _: u64) -> bool {
        true
    }

    fn take_contexts(&mut self) -> impl Iterator<Item = L5oId> {
        core::iter::empty()
    }
}

const FILE: FileId = FileId(3);

fn parts(map: &SpanMap<Infallible>, position: u64, len: u32) -> (u32, Vec<(u64, u32)>) {
    let mut parts = TransmitParts::new();
    let sent = map.collect(position, len, &mut (), &mut parts).len;
    let seen = parts.iter().map(|p| match p {
        TransmitPart::Host(b) => (u64::from(b[0]), p.len()),
        TransmitPart::File(e) => (e.offset, e.len),
        TransmitPart::Records(_) | TransmitPart::Pdu(_) => panic!("no records"),
    });
    (sent, seen.collect())
}

fn unread(map: &SpanMap<Infallible>, position: u64) -> (u64, u64, u64) {
    let unread = map.first_unread(position).unwrap();
    (unread.at, unread.offset, unread.bytes)
}

#[test]
fn head_and_body_share_a_transmit() {
    let mut map = SpanMap::<Infallible>::new();
    map.push_memory(Bytes::from_static(&[7; 100]));
    map.push_plain(StreamSource::Device { file: FILE, offset: 4096 }, 1000);
    assert_eq!(parts(&map, 1, 500), (500, [(7, 100), (4096, 400)].into()));
    assert_eq!(parts(&map, 501, 5000), (600, [(4496, 600)].into()));
    let mut released = Vec::new();
    map.advance(301, |f, o, n| released.push((f, o, n)));
    assert_eq!(released, [(FILE, 4096, 200)]);
    assert_eq!(map.memory(), 0);
    assert_eq!(parts(&map, 301, 50), (50, [(4296, 50)].into()));
}

#[test]
fn a_transmit_has_as_many_extents_as_the_device_takes() {
    let mut map = SpanMap::<Infallible>::new();
    for offset in 0..40 {
        map.push_plain(StreamSource::Device { file: FILE, offset: offset * 100 }, 10);
    }
    let most = FileLimits::EXTENTS_PER_TRANSMIT_MAX;
    let (sent, seen) = parts(&map, 1, 400);
    assert_eq!((sent as usize, seen.len()), (10 * most, most));
}

#[test]
fn unread_bytes_wait_for_the_host() {
    let mut map = SpanMap::<Infallible>::new();
    map.push_memory(Bytes::from_static(&[1; 10]));
    map.push_plain(StreamSource::Unread { file: FILE, offset: 50 }, 100);
    assert_eq!(parts(&map, 1, 1000).0, 10);
    assert_eq!(unread(&map, 1), (11, 50, 100));
    assert_eq!(map.fill(11, Bytes::from_static(&[2; 60]), &mut ()), 60);
    assert_eq!(parts(&map, 1, 1000), (70, [(1, 10), (2, 60)].into()));
    assert_eq!(unread(&map, 1), (71, 110, 40));
    assert_eq!(map.fill(70, Bytes::from_static(&[9; 40]), &mut ()), 0, "not where the hole is");
    assert_eq!(map.fill(91, Bytes::from_static(&[4; 10]), &mut ()), 10, "in the middle");
    assert_eq!(unread(&map, 1), (71, 110, 20));
    assert_eq!(map.fill(71, Bytes::from_static(&[3; 20]), &mut ()), 20);
    assert_eq!(unread(&map, 1), (101, 140, 10));
    assert_eq!(map.fill(101, Bytes::from_static(&[3; 10]), &mut ()), 10);
    assert_eq!(parts(&map, 1, 1000).0, 110);
    assert_eq!(map.memory(), 110);
}

#[test]
fn device_ranges_are_unread_only_after_a_reset() {
    let mut map = SpanMap::<Infallible>::new();
    map.push_plain(StreamSource::Device { file: FILE, offset: 0 }, 100);
    assert_eq!(map.first_unread(1), None);
    map.read_on_host(&mut ());
    assert_eq!(unread(&map, 1), (1, 0, 100));
    map.advance(101, |_, _, _| {});
    map.push_plain(StreamSource::Device { file: FILE, offset: 0 }, 100);
    assert_eq!(map.first_unread(101), None);
    map.push_plain(StreamSource::Unread { file: FILE, offset: 500 }, 100);
    assert_eq!(unread(&map, 101), (201, 500, 100));
}

proptest! {
    /// Whatever is appended, acknowledged and collected, the bytes at a position never change.
    #[test]
    fn a_position_has_one_source(
        steps in proptest::collection::vec((any::<bool>(), 1..500_u64), 1..20),
        acks in any::<[u16; 4]>(),
        at in any::<[u16; 4]>(),
    ) {
        let mut map = SpanMap::<Infallible>::new();
        let mut model: Vec<u64> = alloc::vec![0];
        for (i, &(memory, len)) in steps.iter().enumerate() {
            if memory {
                let byte = u8::try_from(i).unwrap();
                map.push_memory(Bytes::from(alloc::vec![byte; usize::try_from(len).unwrap()]));
                model.extend((0..len).map(|_| u64::from(byte)));
            } else {
                let offset = 1000 * (i as u64 + 1);
                map.push_plain(StreamSource::Device { file: FILE, offset }, len);
                model.extend(offset..offset + len);
            }
        }
        prop_assert_eq!(map.end(), model.len() as u64);
        let mut acks: Vec<u64> = acks.iter().map(|&a| u64::from(a) % map.end()).collect();
        acks.sort_unstable();
        let end = map.end();
        for (ack, at) in acks.into_iter().zip(at) {
            map.advance(ack, |_, _, _| {});
            let from = ack.max(1) + u64::from(at) % (end - ack.max(1) + 1);
            let mut got = TransmitParts::new();
            let n = map.collect(from, 700, &mut (), &mut got).len;
            prop_assert_eq!(u64::from(n), (end - from).min(700));
            let mut expect = &model[usize::try_from(from).unwrap()..];
            for part in &got {
                for i in 0..part.len() {
                    let value = match part {
                        TransmitPart::Host(b) => u64::from(b[i as usize]),
                        TransmitPart::File(e) => e.offset + u64::from(i),
                        TransmitPart::Records(_) | TransmitPart::Pdu(_) => panic!("no records"),
                    };
                    prop_assert_eq!(value, expect[0]);
                    expect = &expect[1..];
                }
            }
        }
    }
}
