//! Segments of an attacker off the path: RFC 5961.

use super::*;

/// RFC 5961 section 3: only a reset with the exact number is accepted; another one in the window is
/// challenged.
#[test]
fn blind_resets_change_nothing() {
    let rst = |seq| RelaySegment { flags: TcpFlags::RST, window: 0, ..seg(seq, 0, b"") };
    let mut bed = SpliceRig::plain();
    bed.passes(0, &seg(0, 0, b"data"));
    bed.passes(1, &seg(0, 4, b""));
    for out_of_window in [3, 1 << 30, -70_000] {
        let counted = &["splice_dropped_blind_reset +1"];
        bed.dropped(0, &rst(out_of_window), counted);
    }
    bed.moved();
    bed.send(0, &rst(5));
    let challenge = (0, RelaySegment { ack: 4, ..seg(0, 0, b"") });
    assert_eq!(bed.out(), [challenge]);
    assert_eq!(bed.moved(), ["splice_challenges +1", "splice_dropped_blind_reset +1"]);
    bed.dropped(0, &rst(6), &["splice_challenges_limited +1", "splice_dropped_blind_reset +1"]);
    // A legitimate peer answers the challenge with the number that it acknowledged.
    bed.send(0, &rst(4));
    assert_eq!(bed.out(), [(1, RelaySegment { hop_limit: 63, ..rst(4) })]);
    let closed = bed.closed();
    assert_eq!(closed.end, SpliceEnd::Reset(0));
    assert_eq!((closed.bytes, closed.packets), ([4, 0], [2, 1]));
    assert_eq!(bed.rig.counter("splice_pairs"), 0);
    // Later segments are delivered to the host.
    bed.send(1, &seg(0, 4, b"late"));
    assert!(matches!(bed.rig.events.pop(), Some((0, Event::Received(_)))));
}

/// A reset while data is in flight: the receiver may or may not have the data.
#[test]
fn a_reset_reaches_a_receiver_that_is_ahead() {
    let mut bed = SpliceRig::plain();
    bed.passes(1, &seg(0, 0, b"on its way"));
    bed.send(1, &RelaySegment { flags: TcpFlags::RST, ..seg(10, 0, b"") });
    let out = bed.out();
    assert_eq!((out.len(), out[0].0, out[0].1.ack), (1, 1, 0), "asked");
    bed.send(1, &RelaySegment { flags: TcpFlags::RST, ..seg(0, 0, b"") });
    assert_eq!(bed.out()[0].1.seq, 10, "behind what was relayed");
    assert_eq!(bed.closed().end, SpliceEnd::Reset(1));
}

/// RFC 5961 sections 4 and 5, RFC 9293 section 3.10.7.4.
#[test]
fn blind_injection_does_not_pass() {
    let mut bed = SpliceRig::plain();
    bed.passes(0, &seg(0, 0, b"data"));
    bed.passes(1, &seg(0, 4, b"answer"));
    bed.passes(0, &seg(4, 6, b""));
    let out_of_window = &["splice_dropped_out_of_window +1"];
    bed.dropped(0, &seg(4 + 64_001, 6, b"x"), out_of_window);
    bed.dropped(0, &seg(4 - 70_000, 6, b"x"), out_of_window);
    bed.dropped(0, &seg(1 << 30, 6, b"x"), out_of_window);
    bed.dropped(0, &seg(4, 7, b"x"), &["splice_dropped_bad_ack +1"]);
    bed.dropped(0, &seg(4, 6 - 70_000, b"x"), &["splice_dropped_bad_ack +1"]);
    bed.dropped(
        0,
        &RelaySegment { flags: TcpFlags::NONE, ..seg(4, 0, b"x") },
        &["splice_dropped_no_ack +1"],
    );
    // Old segments pass, because the receiver answers them: its acknowledgment may have been lost.
    // Window probes pass too.
    bed.passes(0, &seg(0, 0, b"data"));
    bed.passes(0, &seg(3, 6, b""));
    bed.passes(0, &seg(4 + 64_000, 6, b"p"));
    // A SYN is challenged.
    bed.moved();
    bed.send(1, &RelaySegment { flags: TcpFlags::SYN, ..seg(900, 0, b"") });
    let challenge = (1, RelaySegment { ack: 6, ..seg(64_005, 0, b"") });
    assert_eq!(bed.out(), [challenge]);
    assert_eq!(bed.moved(), ["splice_challenges +1", "splice_dropped_syn +1"]);
    bed.passes(0, &seg(4, 6, b"more"));
}

/// A challenge has timestamps; otherwise its receiver would discard it (RFC 7323 section 5.2).
#[test]
fn challenges_carry_timestamps() {
    let (mut a, mut b) = (side(4, 0), side(4, 1));
    (a.timestamps, b.timestamps) = (clocks(1000, 50), clocks(7000, 900));
    let mut bed = SpliceRig::live([a, b]);
    bed.send(0, &RelaySegment { ts: Some((60, 1000)), ..seg(0, 0, b"data") });
    bed.send(1, &RelaySegment { ts: Some((940, 7010)), ..seg(0, 4, b"") });
    bed.out();
    bed.send(0, &RelaySegment { flags: TcpFlags::SYN, ..seg(9, 0, b"") });
    assert_eq!(bed.out(), [(0, RelaySegment { ts: Some((1040, 60)), ack: 4, ..seg(0, 0, b"") })]);
}

/// A challenge offers the latest window; a segment that arrived out of order does not change it.
#[test]
fn challenges_offer_the_latest_window() {
    let mut bed = SpliceRig::plain();
    bed.passes(0, &seg(0, 0, b"data"));
    bed.passes(1, &RelaySegment { window: 300, ..seg(0, 4, b"") });
    bed.passes(1, &seg(0, 0, b""));
    bed.send(0, &RelaySegment { flags: TcpFlags::SYN, ..seg(9, 0, b"") });
    assert_eq!(bed.out(), [(0, RelaySegment { window: 300, ..seg(0, 4, b"") })]);
}
