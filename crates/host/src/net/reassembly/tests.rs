//! Packets are cut into fragments, which arrive in any order, twice, or overlapping.

use alloc::vec;
use alloc::vec::Vec;
use core::net::{Ipv4Addr, Ipv6Addr};

use abi::{Capabilities, Refusal};
use proptest::prelude::*;
use wire::ETHERNET_BYTES;
use wire::emit::{EthernetAddrs, IpHeader};
use wire::frame::protocol;
use wire::segment::packet;

use super::*;
use crate::config::{Cidr, HostConfig};

const ID: u16 = 77;

fn outbox() -> Outbox {
    let capabilities =
        Capabilities::without_engines([2, 0, 0, 0, 0, 2], 1500, 1448, Refusal::NotSupported);
    let cidr = |addr: IpAddr, prefix_len| Cidr { addr, prefix_len };
    let addrs = vec![cidr(ends(4).1, 24), cidr(ends(6).1, 64)];
    Outbox::new(&HostConfig { addrs, ..HostConfig::default() }, &capabilities)
}

/// Returns source and destination.
fn ends(version: u8) -> (IpAddr, IpAddr) {
    if version == 4 {
        (Ipv4Addr::new(10, 0, 0, 1).into(), Ipv4Addr::new(10, 0, 0, 2).into())
    } else {
        let addr = |n| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n).into();
        (addr(1), addr(2))
    }
}

/// Returns the frame of an unfragmented datagram.
fn whole(version: u8, len: usize) -> Vec<u8> {
    let (source, destination) = ends(version);
    let ip = IpHeader { source, destination, protocol: protocol::UDP, ecn: 0, hop_limit: 64 };
    let udp_len = u16::try_from(8 + len).unwrap().to_be_bytes();
    let header = [0, 9, 0, 9, udp_len[0], udp_len[1], 0, 0];
    let payload: Vec<u8> = (0..251).cycle().take(len).collect();
    let mut frame =
        packet(&EthernetAddrs { source: [2; 6], destination: [4; 6] }, &ip, &[&header, &payload]);
    if version == 4 {
        // Reassembly clears DF.
        frame[20..22].fill(0);
        set_ipv4_lengths(&mut frame[14..34], 28 + len).unwrap();
    }
    frame
}

fn half(offset: usize) -> u16 {
    u16::try_from(offset).unwrap()
}

/// Returns a fragment of `frame` with these bytes of its payload.
fn cut(frame: &[u8], piece: Range<usize>, more: bool) -> Vec<u8> {
    let is_v4 = frame[12] == 8;
    let ip_end = ETHERNET_BYTES + if is_v4 { 20 } else { 40 };
    let mut cut = frame[..ip_end].to_vec();
    if is_v4 {
        cut[18..20].copy_from_slice(&ID.to_be_bytes());
        let field = half(piece.start / 8) | (u16::from(more) << 13);
        cut[20..22].copy_from_slice(&field.to_be_bytes());
        set_ipv4_lengths(&mut cut[14..], 20 + piece.len()).unwrap();
    } else {
        let next = core::mem::replace(&mut cut[20], FRAGMENT_HEADER);
        let field = half(piece.start) | u16::from(more);
        cut.extend_from_slice(&[next, 0]);
        cut.extend_from_slice(&field.to_be_bytes());
        cut.extend_from_slice(&u32::from(ID).to_be_bytes());
        let end = cut.len() + piece.len();
        emit::set_lengths(&mut cut, 14, end, 0);
    }
    cut.extend_from_slice(&frame[ip_end..][piece]);
    cut
}

/// Returns all fragments of `frame`, with at most `size` bytes each.
fn cut_all(frame: &[u8], size: usize) -> Vec<Vec<u8>> {
    let payload = frame.len() - if frame[12] == 8 { 34 } else { 54 };
    let starts = (0..payload).step_by(size);
    starts.map(|at| cut(frame, at..payload.min(at + size), at + size < payload)).collect()
}

/// Returns the packets that were returned to the device.
fn returned(out: &mut Outbox) -> Vec<Vec<u8>> {
    let returned = out.ops.drain(..).map(|op| match op {
        Op::Return(SteeredFrame { frame, reason: SteeringReason::Current }) => {
            assert_eq!((frame.checksum, frame.segment_size), (Checksum::Unchecked, 0));
            frame.packet.as_slice().to_vec()
        }
        _ => panic!("only returned frames"),
    });
    returned.collect()
}

fn now() -> Instant {
    Instant::from_millis(5)
}

#[test]
fn a_packet_in_order_is_returned_whole() {
    for version in [4, 6] {
        let (mut all, mut out) = (Reassembly::default(), outbox());
        let frame = whole(version, 4000);
        let fragments = cut_all(&frame, 1480);
        for (at, fragment) in fragments.iter().enumerate() {
            assert_eq!(wire::frame::parse(fragment), Err(wire::frame::FrameHeaderError::Fragment));
            assert!(returned(&mut out).is_empty(), "{at}");
            all.handle_fragment(&mut out, now(), fragment);
        }
        let mut expected = frame.clone();
        if version == 4 {
            expected[18..20].copy_from_slice(&ID.to_be_bytes());
            set_ipv4_lengths(&mut expected[14..34], 4028).unwrap();
        }
        assert_eq!(returned(&mut out), [expected]);
        let c = &out.counters;
        assert_eq!((c.ip_reasm_reqds, c.ip_reasm_oks, c.ip_reasm_fails), (3, 1, 0));
        assert!(all.packets.is_empty() && all.poll_timeout().is_none());
    }
}

/// RFC 5722, and the same for IPv4: the whole packet is dropped, and the fragments that follow too.
#[test]
fn overlapping_fragments_drop_the_packet() {
    for version in [4, 6] {
        let frame = whole(version, 3000);
        for overlap in [8..1488, 0..1488, 0..8, 1472..1480, 1400..1600, 0..3000] {
            let (mut all, mut out) = (Reassembly::default(), outbox());
            let fragments = cut_all(&frame, 1480);
            all.handle_fragment(&mut out, now(), &fragments[0]);
            all.handle_fragment(&mut out, now(), &cut(&frame, overlap.clone(), true));
            fragments.iter().for_each(|f| all.handle_fragment(&mut out, now(), f));
            assert!(returned(&mut out).is_empty(), "{overlap:?}");
            assert_eq!((out.counters.ip_reasm_overlaps, out.counters.ip_reasm_fails), (1, 1));
            // The identification may be used again later.
            all.handle_timeout(&mut out, now() + TIME_MAX);
            fragments.iter().for_each(|f| all.handle_fragment(&mut out, now(), f));
            assert_eq!(returned(&mut out).len(), 1);
        }
    }
}

/// A second end of the packet, or bytes after it.
#[test]
fn contradicting_lengths_drop_the_packet() {
    let frame = whole(4, 3000);
    for (piece, more) in [(2960..2968, false), (2960..3000, true), (8..16, false)] {
        let (mut all, mut out) = (Reassembly::default(), outbox());
        all.handle_fragment(&mut out, now(), &cut(&frame, 1480..1600, false));
        all.handle_fragment(&mut out, now(), &cut(&frame, piece, more));
        assert_eq!(out.counters.ip_reasm_overlaps, 1);
    }
}

#[test]
fn memory_and_time_are_bounded() {
    let frame = whole(4, 60_000);
    let (mut all, mut out) = (Reassembly::default(), outbox());
    for id in 0..1000_u16 {
        let mut fragment = cut(&frame, 59_000..59_008, true);
        fragment[18..20].copy_from_slice(&id.to_be_bytes());
        set_ipv4_lengths(&mut fragment[14..34], 28).unwrap();
        all.handle_fragment(&mut out, now(), &fragment);
    }
    assert_eq!((all.packets.len(), out.counters.ip_reasm_fails), (64, 1000 - 64));
    assert!(all.packets.iter().all(|packet| packet.payload.capacity() < 128 << 10));
    assert_eq!(all.poll_timeout(), Some(now() + TIME_MAX));
    all.handle_timeout(&mut out, now() + TIME_MAX);
    assert!(all.packets.is_empty());
    assert_eq!((out.counters.ip_reasm_timeouts, out.counters.ip_reasm_fails), (64, 1000));
    // Many tiny fragments.
    for at in 0..1000 {
        all.handle_fragment(&mut out, now(), &cut(&frame, at * 16..at * 16 + 8, true));
    }
    assert_eq!(all.packets.len(), 1);
    assert!(all.packets[0].is_bad && all.packets[0].payload.is_empty());
}

/// RFC 6946: it does not meet other fragments with the same identification.
#[test]
fn an_atomic_fragment_is_a_packet() {
    let (mut all, mut out) = (Reassembly::default(), outbox());
    let (long, short) = (whole(6, 3000), whole(6, 100));
    let fragments = cut_all(&long, 1480);
    all.handle_fragment(&mut out, now(), &fragments[0]);
    all.handle_fragment(&mut out, now(), &cut(&short, 0..108, false));
    assert_eq!(returned(&mut out), [short]);
    fragments[1..].iter().for_each(|f| all.handle_fragment(&mut out, now(), f));
    assert_eq!(returned(&mut out), [long]);
}

#[test]
fn fragments_of_fragments_are_dropped() {
    let (mut all, mut out) = (Reassembly::default(), outbox());
    let inner = cut(&whole(6, 100), 0..108, false);
    let outer = cut(&inner, 0..116, false);
    all.handle_fragment(&mut out, now(), &outer);
    assert!(returned(&mut out).is_empty());
    assert_eq!(out.counters.ip_reasm_fails, 1);
}

/// RFC 3168 section 5.3.
#[test]
fn a_congestion_mark_of_a_fragment_is_kept() {
    for (fields, expected) in [([2, 3], Some(3)), ([2, 2], Some(2)), ([0, 3], None)] {
        let (mut all, mut out) = (Reassembly::default(), outbox());
        for (mut fragment, ecn) in cut_all(&whole(4, 2000), 1480).into_iter().zip(fields) {
            fragment[15] = ecn;
            let len = fragment.len() - 14;
            set_ipv4_lengths(&mut fragment[14..34], len).unwrap();
            all.handle_fragment(&mut out, now(), &fragment);
        }
        assert_eq!(returned(&mut out).first().map(|frame| frame[15]), expected);
    }
}

proptest! {
    /// In any order, with duplicates, with any sizes.
    #[test]
    fn any_order_and_duplicates(
        v6: bool, len in 1..9000_usize, size in 1..200_usize, seed: u64,
    ) {
        let version = if v6 { 6 } else { 4 };
        let frame = whole(version, len);
        let size = (size * 8).max((len + 8).div_ceil(100) / 8 * 8 + 8);
        let fragments = cut_all(&frame, size);
        let mut prng = base::Prng::new(seed);
        let mut order: Vec<usize> = (0..fragments.len()).chain(0..fragments.len() / 2).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, usize::try_from(prng.below(at as u64 + 1)).unwrap());
        }
        let (mut all, mut out) = (Reassembly::default(), outbox());
        if fragments.len() == 1 && !v6 {
            return Ok(());
        }
        let mut seen = vec![false; fragments.len()];
        let mut complete = 0;
        for at in order {
            if complete == 0 {
                all.handle_fragment(&mut out, now(), &fragments[at]);
                seen[at] = true;
                let got = returned(&mut out);
                prop_assert_eq!(got.len(), usize::from(seen.iter().all(|&s| s)));
                complete += got.len();
                if let Some(got) = got.first() {
                    let ip_end = if v6 { 54 } else { 34 };
                    prop_assert_eq!(&got[ip_end..], &frame[ip_end..]);
                }
            }
        }
        prop_assert_eq!(complete, 1);
        prop_assert_eq!(out.counters.ip_reasm_overlaps, 0);
    }

    #[test]
    fn any_frame_is_survived(
        frames in proptest::collection::vec(
            (any::<bool>(), proptest::collection::vec(any::<u8>(), 60..140)), 1..40),
    ) {
        let (mut all, mut out) = (Reassembly::default(), outbox());
        for (v6, mut frame) in frames {
            let template = cut(&whole(if v6 { 6 } else { 4 }, 200), 8..16, true);
            let keep = if v6 { 56 } else { 20 };
            frame[..keep].copy_from_slice(&template[..keep]);
            let len = frame.len() - 14;
            if v6 {
                emit::set_lengths(&mut frame, 14, 14 + len, 0);
            } else {
                frame[22..34].copy_from_slice(&template[22..34]);
                set_ipv4_lengths(&mut frame[14..34], len).unwrap();
            }
            all.handle_fragment(&mut out, now(), &frame);
        }
        for frame in returned(&mut out) {
            prop_assert!(wire::frame::parse(&frame).is_ok());
        }
        prop_assert!(all.packets.len() <= PACKETS_MAX);
    }
}
