//! Translation of headers between the two connections of a pair, and what stays unchanged.

use super::*;

/// Figure 7: segments are relayed with addresses, ports and numbers of the other connection,
/// between all IP versions. (The rig verifies each checksum.)
#[test]
fn segments_pass_both_ways() {
    for (a, b) in FAMILIES {
        let mut bed = SpliceRig::live([side(a, 0), side(b, 1)]);
        bed.passes(0, &seg(0, 0, b"request"));
        bed.passes(1, &seg(0, 7, b""));
        bed.passes(1, &RelaySegment { flags: ACK.with(TcpFlags::PSH), ..seg(0, 7, &[9; 1440]) });
        bed.passes(0, &seg(7, 1440, b""));
        // Across the wrap of the sequence numbers of each side.
        bed.passes(1, &seg(1440, 7, &[1; 1000]));
        bed.passes(0, &seg(7, 2440, &[2; 1000]));
        // Rewritten in the received buffer, unless the length of the headers changes.
        let in_place = (a == b).then_some("splice_relayed_in_place +6");
        let before = ["splice_checksums_adjusted +6", "splice_relayed_bytes +3447"].into_iter();
        let expected: Vec<&str> =
            before.chain(in_place).chain(["splice_relayed_packets +6"]).collect();
        assert_eq!(bed.moved(), expected);
        assert_eq!(bed.rig.counter("splice_pairs"), 1);
        assert_eq!(bed.rig.counter("rx_packets"), 0, "the host gets none of them");
    }
}

/// RFC 7323 section 2.3: a window is decoded with the sender's scale and encoded with the scale
/// offered on the other side.
#[test]
fn windows_are_scaled() {
    for (peer_scale, own_scale, window, expected) in [
        (7, 7, 500, 500),
        (0, 7, 64_000, 500),
        (7, 0, 500, 64_000),
        (8, 2, 65_535, 65_535),
        (3, 7, 15, 0),
    ] {
        let (mut a, mut b) = (side(4, 0), side(4, 1));
        (a.peer_scale, b.own_scale) = (peer_scale, own_scale);
        (a.own_scale, b.peer_scale) = (0, 0);
        let mut bed = SpliceRig::live([a, b]);
        bed.send(0, &RelaySegment { window, ..seg(0, 0, b"x") });
        assert_eq!(bed.out()[0].1.window, expected, "{peer_scale} {own_scale}");
    }
}

/// RFC 7323: each peer sees one continuous clock, and echoes of its own values.
#[test]
fn timestamps_go_on() {
    let (mut a, mut b) = (side(4, 0), side(6, 1));
    // The values sent to B's peer wrap.
    (a.timestamps, b.timestamps) = (clocks(1000, 50_000), clocks(u32::MAX - 3, 900));
    let mut bed = SpliceRig::live([a, b]);
    let mut exchange = |from: usize, ts, expected: (u32, u32)| {
        bed.send(from, &RelaySegment { ts: Some(ts), ..seg(0, 0, b"") });
        let out = bed.out();
        assert_eq!(out[0].1.ts, Some(expected));
    };
    exchange(0, (50_000, 1000), (u32::MAX - 3, 900));
    exchange(0, (50_010, 1000), (6, 900));
    // B's peer echoes that; A's peer gets the echo in its own clock.
    exchange(1, (920, 6), (1020, 50_010));
    exchange(0, (50_030, 1020), (26, 920));
    // An echo of a value that the host sent before the splice is never translated to a time that
    // B's peer has not sent.
    exchange(0, (50_031, 400), (27, 900));
    exchange(1, (930, u32::MAX - 500), (1030, 50_000));
    // Half a wrap of the clock later, the same values count as later ones.
    for step in 1..=5_u32 {
        let ahead = step << 30;
        let later = |value: u32| value.wrapping_add(ahead);
        exchange(1, (later(900), 27), (later(1000), 50_031));
        exchange(0, (50_040, 1000_u32.wrapping_add(ahead)), (36, 900_u32.wrapping_add(ahead)));
    }
}

/// An echo of a value that was not sent yet is translated to the other peer's latest TSval, and
/// later echoes are translated correctly.
#[test]
fn echoes_of_unsent_values_become_the_latest() {
    let (mut a, mut b) = (side(4, 0), side(6, 1));
    (a.timestamps, b.timestamps) = (clocks(u32::MAX - 50, 50_000), clocks(700, 900));
    let mut bed = SpliceRig::live([a, b]);
    let mut echo = |sent: u32| {
        bed.send(0, &RelaySegment { ts: Some((50_000, sent)), ..seg(0, 0, b"") });
        bed.out()[0].1.ts.unwrap().1
    };
    for ahead in [1, 40, 1 << 20, (1 << 31) - 1] {
        assert_eq!(echo((u32::MAX - 50).wrapping_add(ahead)), 900, "{ahead}");
    }
    bed.passes(1, &seg(0, 0, b""));
    bed.send(1, &RelaySegment { ts: Some((1000, 700)), ..seg(0, 0, b"") });
    assert_eq!(bed.out()[0].1.ts, Some((49, 50_000)));
    let mut echo = |sent: u32| {
        bed.send(0, &RelaySegment { ts: Some((50_000, sent)), ..seg(0, 0, b"") });
        bed.out()[0].1.ts.unwrap().1
    };
    assert_eq!([u32::MAX, 49, 50, 1 << 30].map(&mut echo), [950, 1000, 1000, 1000]);
}

/// Timestamps on only one side are refused, as they cannot be translated.
#[test]
fn timestamps_on_one_side_are_refused() {
    for which in 0..2 {
        let mut sides = [side(4, 0), side(4, 1)];
        sides[which].timestamps = clocks(1, 1);
        let mut bed = SpliceRig::with(SpliceConfig::default(), PLAIN_LINK, sides);
        assert_eq!(bed.begin(ID), Err(Refusal::OptionsDiffer));
        assert_eq!(bed.moved(), ["splice_refused_options +1"]);
        assert_eq!(bed.rig.counter("splice_pairs"), 0);
    }
}

/// RFC 2018: SACK blocks use the receiver's sequence numbers; a side that did not negotiate SACK
/// gets none.
#[test]
fn sack_blocks_are_translated_or_left_out() {
    for (agreed, ts) in [(true, None), (false, None), (true, clocks(5, 5)), (false, clocks(5, 5))] {
        let (mut a, mut b) = (side(4, 0), side(6, 1));
        (a.timestamps, b.timestamps, b.sack) = (ts, ts, agreed);
        let mut bed = SpliceRig::live([a, b]);
        bed.passes(1, &RelaySegment { ts: ts.map(|_| (5, 5)), ..seg(0, 0, &[1; 900]) });
        let sack = vec![(600, 900), (100, 500), (550, 560)];
        let sent = RelaySegment { sack, ts: ts.map(|_| (5, 5)), ..seg(0, 0, b"") };
        if agreed {
            bed.passes(0, &sent);
        } else {
            bed.send(0, &sent);
            let expected = RelaySegment { sack: vec![], hop_limit: 63, ..sent };
            assert_eq!(bed.out(), [(1, expected)]);
        }
    }
}

/// RFC 2883: a peer reports a duplicate of bytes that the host sent before the splice, which the
/// receiver did not send.
#[test]
fn sack_blocks_from_before_the_splice_are_left_out() {
    let mut bed = SpliceRig::live([side(4, 0), side(6, 1)]);
    bed.passes(1, &seg(0, 0, &[1; 900]));
    for sack in [vec![(-150, -20)], vec![(-10, 30)], vec![(-150, 0), (500, 900)]] {
        let sent = RelaySegment { sack, ..seg(0, 0, b"") };
        bed.send(0, &sent);
        let expected = RelaySegment { sack: vec![], hop_limit: 63, ..sent };
        assert_eq!(bed.out(), [(1, expected)]);
    }
    bed.passes(0, &RelaySegment { sack: vec![(0, 500)], ..seg(0, 0, b"") });
}

/// RFC 2018: a block must not be empty or exceed the bytes that the receiver has sent.
#[test]
fn sack_blocks_of_what_was_not_sent_are_left_out() {
    let mut bed = SpliceRig::live([side(4, 0), side(6, 1)]);
    bed.passes(1, &seg(0, 0, &[1; 900]));
    bed.moved();
    for sack in [vec![(100, 901)], vec![(900, 1000)], vec![(1, 2), (300, 300)], vec![(400, 300)]] {
        let sent = RelaySegment { sack, ..seg(0, 0, b"") };
        bed.send(0, &sent);
        assert_eq!(bed.out(), [(1, RelaySegment { sack: vec![], hop_limit: 63, ..sent })]);
        assert!(bed.moved().contains(&String::from("splice_sack_left_out +1")));
    }
    bed.passes(0, &RelaySegment { sack: vec![(100, 900)], ..seg(0, 0, b"") });
    assert!(!bed.moved().iter().any(|moved| moved.starts_with("splice_sack")));
}

/// Unknown options pass unchanged at any position; an option list with invalid lengths is dropped.
#[test]
fn other_options() {
    let raw = |bed: &SpliceRig, options: &[u8]| {
        let mut frame = bed.frame(0, &seg(0, 0, b""));
        frame.extend_from_slice(options);
        frame.extend_from_slice(b"payload");
        frame[34 + 12] = u8::try_from((20 + options.len()) / 4).unwrap() << 4;
        HeaderLayout::of(&frame, 14, 34).unwrap().complete(&mut frame, 1);
        frame
    };
    let ts = |odd: bool, value: u32, echo: u32| {
        let mut options = vec![];
        options.extend_from_slice(if odd { &[1, 253, 4, 7, 7][..] } else { &[1, 1][..] });
        options.extend_from_slice(&[8, 10]);
        options.extend_from_slice(&value.to_be_bytes());
        options.extend_from_slice(&echo.to_be_bytes());
        options.resize(options.len().next_multiple_of(4), 0);
        options
    };
    let (mut a, mut b) = (side(4, 0), side(4, 1));
    (a.timestamps, b.timestamps) = (clocks(100, 200), clocks(0xffff_fff0, 400));
    let mut bed = SpliceRig::live([a, b]);
    bed.send(1, &RelaySegment { ts: Some((450, 0xffff_fff0)), ..seg(0, 0, b"") });
    bed.out();
    for odd in [false, true] {
        let frame = raw(&bed, &ts(odd, 0x1234_5678, 150));
        bed.inject(&frame, Checksum::Unchecked, 0);
        let out = bytes_of(&bed.rig.sent.pop().unwrap());
        let value = 0x1234_5678_u32.wrapping_add(0xffff_fff0).wrapping_sub(200);
        let expected = ts(odd, value, 450);
        assert_eq!(out[54..], [&expected[..], b"payload"].concat());
    }
    for bad in [[253, 1, 0, 0], [253, 0, 0, 0], [1, 1, 253, 3], [1, 1, 1, 8]] {
        bed.moved();
        let frame = raw(&bed, &bad);
        bed.inject(&frame, Checksum::Unchecked, 0);
        assert_eq!(bed.moved(), ["splice_dropped_malformed +1"], "{bad:?}");
    }
}

/// RFC 3168: ECN marks and flags pass if both sides negotiated ECN.
#[test]
fn ecn_passes_if_both_agreed() {
    for (a_ecn, b_ecn) in [(true, true), (true, false), (false, true)] {
        for (a, b) in FAMILIES {
            let (mut a, mut b) = (side(a, 0), side(b, 1));
            (a.ecn, b.ecn) = (a_ecn, b_ecn);
            let mut bed = SpliceRig::live([a, b]);
            let flags = ACK.with(TcpFlags::ECE).with(TcpFlags::CWR);
            let sent = RelaySegment { flags, class: 0xbb, ..seg(0, 0, b"marked") };
            if a_ecn && b_ecn {
                bed.passes(0, &sent);
            } else {
                bed.send(0, &sent);
                let expected = RelaySegment { flags: ACK, class: 0xb8, hop_limit: 63, ..sent };
                assert_eq!(bed.out(), [(1, expected)]);
            }
        }
    }
}

/// RFC 791 section 3.2: a loop of two devices that splice to each other ends.
#[test]
fn hop_limits_count_down() {
    for (a, b) in FAMILIES {
        let mut bed = SpliceRig::live([side(a, 0), side(b, 1)]);
        bed.passes(0, &RelaySegment { hop_limit: 2, ..seg(0, 0, b"x") });
        for hop_limit in [1, 0] {
            let gone = RelaySegment { hop_limit, ..seg(1, 0, b"x") };
            bed.dropped(0, &gone, &["splice_dropped_hop_limit +1"]);
        }
    }
}

/// The urgent pointer is relative to the sequence number and passes unchanged.
#[test]
fn urgent_pointers_stay() {
    let mut bed = SpliceRig::plain();
    let mut frame =
        bed.frame(0, &RelaySegment { flags: ACK.with(TcpFlags::URG), ..seg(0, 0, b"urgent") });
    frame[34 + 18..34 + 20].copy_from_slice(&[0, 3]);
    let sum = wire::checksum::adjust(u16::from_be_bytes([frame[50], frame[51]]), 0, 3);
    frame[50..52].copy_from_slice(&sum.to_be_bytes());
    bed.inject(&frame, Checksum::Unchecked, 0);
    assert_eq!(bytes_of(&bed.rig.sent[0])[52..54], [0, 3]);
    assert_eq!(bed.rig.sent.len(), 1);
}

/// Full tuples are compared: in the published code clients could collide in a bucket.
#[test]
fn many_pairs_are_told_apart() {
    let mut bed = SpliceRig::with(SpliceConfig::default(), PLAIN_LINK, [side(4, 0), side(4, 1)]);
    let nth = |n: u16| {
        let mut sides = [side(4, 0), side(6, 1)];
        for side in &mut sides {
            side.tuple.remote.port = 10_000 + n;
            side.snd_nxt += u32::from(n) * 1000;
        }
        sides
    };
    for n in 0..1000 {
        let idle_timeout = Duration::from_secs(60);
        let id = SpliceId(n.into());
        assert_eq!(bed.ask(Splice { id, sides: nth(n), idle_timeout }), Ok(()));
        bed.rig.op(0, Op::SpliceStart { id, packets: Box::new([]) });
    }
    for n in (0..1000).rev() {
        bed.sides = nth(n);
        bed.passes(0, &seg(0, 0, b"to its own"));
        bed.passes(1, &seg(0, 10, b""));
    }
    assert_eq!(bed.rig.now, Instant::ZERO);
}
