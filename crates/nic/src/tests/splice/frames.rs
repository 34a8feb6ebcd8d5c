//! Frames on the link: checksums, runs, cuts, limits, buffers, encapsulation.

use super::*;

/// A packet that is damaged between verification and sending stays detectably damaged, because its
/// checksum is updated incrementally.
#[test]
fn damage_stays_visible() {
    for (a, b) in FAMILIES {
        let mut bed = SpliceRig::live([side(a, 0), side(b, 1)]);
        let mut frame = bed.frame(0, &seg(0, 0, b"payload"));
        *frame.last_mut().unwrap() ^= 1;
        // The link verified the checksum, and then a bit flipped.
        bed.rig.lenient = true;
        bed.inject(&frame, Checksum::Good, 0);
        let mut out = bytes_of(&bed.rig.sent[0]);
        *out.last_mut().unwrap() ^= 1;
        verify(&out);
        *out.last_mut().unwrap() ^= 1;
        let damaged = std::panic::catch_unwind(|| verify(&out));
        assert!(damaged.is_err(), "the peer has to notice");
        // A packet that is received damaged is not relayed: the host counts it.
        bed.rig.sent.clear();
        bed.rig.events.clear();
        bed.inject(&frame, Checksum::Unchecked, 0);
        assert_eq!(bed.rig.sent.len(), 0);
        let event = bed.rig.events.pop().unwrap().1;
        assert!(matches!(event, Event::Received(r) if r.checksum == Checksum::Bad));
    }
}

/// A partial checksum, as received from a TAP, is left to a link that completes checksums, and
/// completed for one that does not.
#[test]
fn partial_checksums_are_completed() {
    for (a, b) in FAMILIES {
        for checksum in [false, true] {
            let caps = LinkCaps { checksum, ..PLAIN_LINK };
            let sides = [side(a, 0), side(b, 1)];
            let mut bed = SpliceRig::with(SpliceConfig::default(), caps, sides);
            bed.begin(ID).unwrap();
            bed.start(vec![]);
            bed.moved();
            let mut frame = bed.frame(0, &seg(0, 0, b"payload"));
            let l4 = if a == 4 { 34 } else { 54 };
            frame[l4 + 16] ^= 0x5a;
            bed.inject(&frame, Checksum::Partial, 0);
            let out = bed.rig.sent.pop().unwrap();
            assert_eq!(out.checksum_partial, checksum);
            let expected = RelaySegment { hop_limit: 63, ..seg(0, 0, b"payload") };
            assert_eq!(bed.decode(&bytes_of(&out)), (1, expected));
            let in_place = (a == b && checksum).then_some("splice_relayed_in_place +1");
            let before = ["splice_checksums_summed +1", "splice_relayed_bytes +7"].into_iter();
            let expected: Vec<&str> =
                before.chain(in_place).chain(["splice_relayed_packets +1"]).collect();
            assert_eq!(bed.moved(), expected);
        }
    }
}

/// A run merged by the link is relayed as one run if the link segments, with segments that the
/// other side accepts; otherwise the device cuts it.
#[test]
fn runs_stay_runs() {
    let payload: Vec<u8> = (0..20_000_u32).map(|i| u8::try_from(i % 251).unwrap()).collect();
    for (own, other, size) in [(1448, 1448, 1448), (1448, 1000, 1000), (1000, 1448, 1000)] {
        for whole in [true, false] {
            let mut b = side(6, 1);
            b.mss = other;
            let caps = LinkCaps {
                segmentation: whole,
                udp_segmentation: false,
                checksum: whole,
                mtu: 1514,
            };
            let mut bed = SpliceRig::with(SpliceConfig::default(), caps, [side(4, 0), b]);
            bed.begin(ID).unwrap();
            bed.start(vec![]);
            let flags = ACK.with(TcpFlags::PSH);
            let sent = RelaySegment { flags, ..seg(0, 0, &payload) };
            let frame = bed.frame(0, &sent);
            bed.inject(&frame, Checksum::Partial, own);
            let count = if whole { 1 } else { payload.len().div_ceil(size) };
            assert_eq!(bed.rig.sent.len(), count);
            let mut at = 0;
            for frame in bed.rig.sent.clone() {
                assert_eq!(usize::from(frame.segment_size), if whole { size } else { 0 });
                let (to, got) = bed.decode(&bytes_of(&frame));
                assert_eq!((to, got.seq), (1, i32::try_from(at).unwrap()));
                assert_eq!(got.payload, payload[at..at + got.payload.len()]);
                assert!(whole || got.payload.len() <= size);
                at += got.payload.len();
                assert_eq!(got.flags, if at == payload.len() { flags } else { ACK });
            }
            assert_eq!(at, payload.len());
            assert_eq!(bed.rig.counter("splice_relayed_packets"), 20_000_u64.div_ceil(own.into()));
        }
    }
}

/// A single packet longer than the other side's MSS is cut; options count.
#[test]
fn long_segments_are_cut() {
    let (mut a, mut b) = (side(4, 0), side(6, 1));
    (a.timestamps, b.timestamps, b.mss) = (clocks(1, 1), clocks(1, 1), 1428);
    let mut bed = SpliceRig::live([a, b]);
    bed.passes(1, &RelaySegment { ts: Some((1, 1)), ..seg(0, 0, &[1; 100]) });
    for (sack, lens) in [(vec![], [1428, 20]), (vec![(10, 20)], [1416, 32])] {
        let sent = RelaySegment { ts: Some((1, 1)), sack, ..seg(0, 0, &[7; 1448]) };
        bed.send(0, &sent);
        let got: Vec<usize> = bed.out().iter().map(|(_, seg)| seg.payload.len()).collect();
        assert_eq!(got, lens);
    }
    assert_eq!(bed.rig.counter("splice_cut"), 2);
    assert_eq!(bed.rig.counter("splice_relayed_packets"), 3);
}

/// If the link's MTU shrinks, packets of spliced pairs are cut.
#[test]
fn packets_fit_a_smaller_mtu() {
    let mut bed = SpliceRig::plain();
    bed.rig.device.handle_link_change(1240);
    bed.send(0, &seg(0, 0, &[7; 1460]));
    let got: Vec<usize> = bed.out().iter().map(|(_, seg)| seg.payload.len()).collect();
    assert_eq!(got, [1200, 260]);
}

/// The relayed payload stays in the receive buffer, and the buffer returns to the pool; also if the
/// headers have to be copied.
#[test]
fn buffers_are_shared_and_come_back() {
    for (a, b) in FAMILIES {
        let mut bed = SpliceRig::live([side(a, 0), side(b, 1)]);
        let frame = bed.frame(0, &seg(0, 0, &[5; 1000]));
        let headers = frame.len() - 1000;
        let mut places = vec![];
        let taken = bed.rig.counter("pool_taken");
        for _ in 0..5 {
            let packet = bed.rig.device.pool().copy(&frame).unwrap();
            let came = packet.as_slice()[headers..].as_ptr();
            places.push(came);
            let frame = RxFrame { packet, checksum: Checksum::Good, segment_size: 0 };
            bed.rig.device.handle_frame(bed.rig.now, frame);
            let mut out = bed.rig.device.poll_frame(bed.rig.now).unwrap();
            let sent = match &out.payload[..] {
                [FramePayload::Frame(packet)] if a == b => &packet.as_slice()[headers..],
                [payload @ FramePayload::Packet { .. }] if a != b => payload.as_slice(),
                _ => panic!("{out:?}"),
            };
            assert_eq!(sent.as_ptr(), came);
            bed.rig.device.recycle(&mut out);
        }
        assert!(places.iter().all(|&place| place == places[0]), "one buffer did it all");
        let counters = ["pool_taken", "pool_new", "pool_returned"].map(|n| bed.rig.counter(n));
        assert_eq!(counters, [taken + 5, 1, 5], "the allocator may give the same place again");
    }
}

/// While the link does not keep up, packets that would wait for it are dropped, as on a switch.
#[test]
fn a_link_that_does_not_keep_up() {
    let mut bed = SpliceRig::plain();
    let frame = bed.frame(0, &seg(0, 0, b"x"));
    for _ in 0..5000 {
        let packet = bed.rig.device.pool().copy(&frame).unwrap();
        let rx = RxFrame { packet, checksum: Checksum::Good, segment_size: 0 };
        bed.rig.device.handle_frame(bed.rig.now, rx);
    }
    assert_eq!(bed.rig.counter("tx_runs"), 4096);
    assert_eq!(bed.rig.counter("splice_dropped_link_full"), 904);
    assert_eq!(bed.rig.counter("pool_out"), 4096);
    bed.rig.device.reset();
    assert_eq!(bed.rig.counter("pool_out"), 0, "a reset returns the buffers");
}

/// IEEE 802.1Q tags, IPv4 options, IPv6 extension headers and padding are not relayed.
#[test]
fn encapsulation_is_not_relayed() {
    let mut bed = SpliceRig::live([side(4, 0), side(6, 1)]);
    let expected = |seq| (1, RelaySegment { hop_limit: 63, ..seg(seq, 0, b"x") });
    let mut tagged = bed.frame(0, &seg(0, 0, b"x"));
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    tagged.extend_from_slice(&[0xee; 9]);
    bed.inject(&tagged, Checksum::Unchecked, 0);
    let mut options = bed.frame(0, &seg(1, 0, b"x"));
    options.splice(34..34, [1, 1, 1, 0]);
    options[14] = 0x46;
    options[16..18].copy_from_slice(&45_u16.to_be_bytes());
    options[24..26].fill(0);
    let mut sum = wire::checksum::ChecksumSum::new();
    sum.add(&options[14..38]);
    options[24..26].copy_from_slice(&sum.finish().to_be_bytes());
    bed.inject(&options, Checksum::Unchecked, 0);
    assert_eq!(bed.out(), [expected(0), expected(1)]);

    let mut bed = SpliceRig::live([side(4, 0), side(6, 1)]);
    let mut extended = bed.frame(1, &seg(0, 0, b"x"));
    extended.splice(54..54, [6, 0, 1, 4, 0, 0, 0, 0]);
    extended[20] = 60;
    extended[18..20].copy_from_slice(&29_u16.to_be_bytes());
    bed.inject(&extended, Checksum::Unchecked, 0);
    assert_eq!(bed.out(), [(0, RelaySegment { hop_limit: 63, ..seg(0, 0, b"x") })]);
}
