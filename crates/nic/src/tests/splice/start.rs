//! The order of frames at the start of a pair, and limits on kept frames.

use super::*;

/// AccelTCP section 5.1: first the frames returned by the host, then those kept since, then new
/// ones.
#[test]
fn frames_keep_their_order_at_the_start() {
    let sides = [side(4, 0), side(6, 1)];
    let mut bed = SpliceRig::with(SpliceConfig::default(), PLAIN_LINK, sides);
    let before = [bed.frame(0, &seg(0, 0, b"first ")), bed.frame(1, &seg(0, 0, b"1st "))];
    bed.begin(ID).unwrap();
    bed.send(0, &seg(6, 0, b"second "));
    bed.send(1, &seg(4, 0, b"2nd "));
    bed.send(0, &seg(13, 0, b"third "));
    assert_eq!((bed.rig.counter("splice_kept_frames"), bed.out().len()), (3, 0));
    bed.start(before.to_vec());
    bed.send(0, &RelaySegment { flags: ACK.with(TcpFlags::FIN), ..seg(19, 0, b"last") });
    let of = |to: usize, out: &[(usize, RelaySegment)]| -> Vec<u8> {
        out.iter().filter(|o| o.0 == to).flat_map(|o| o.1.payload.clone()).collect()
    };
    let out = bed.out();
    assert_eq!(of(1, &out), b"first second third last");
    assert_eq!(of(0, &out), b"1st 2nd ");
    assert_eq!(bed.rig.counter("splice_kept_frames"), 0);
    assert_eq!(
        bed.moved(),
        [
            "splice_begun +1",
            "splice_checksums_adjusted +6",
            "splice_kept_frames_total +3",
            "splice_pairs +1",
            "splice_relayed_bytes +31",
            "splice_relayed_packets +6",
        ]
    );
    // A pair is started once.
    bed.start(vec![bed.frame(0, &seg(0, 0, b"first "))]);
    assert_eq!((bed.moved(), bed.out().len()), (vec![String::from("splice_ops_ignored +1")], 0));
}

/// Frames that do not belong to the pair are not relayed, even if the host returns them.
#[test]
fn frames_of_other_connections_are_not_relayed() {
    let sides = [side(4, 0), side(4, 1)];
    let mut bed = SpliceRig::with(SpliceConfig::default(), PLAIN_LINK, sides);
    let good = bed.frame(0, &seg(0, 0, b"first"));
    let mut other = good.clone();
    other[35] ^= 1; // another port
    bed.begin(ID).unwrap();
    bed.moved();
    bed.start(vec![other, good[..30].to_vec(), vec![], good]);
    assert_eq!(bed.out().len(), 1);
    assert_eq!(
        bed.moved(),
        [
            "splice_checksums_adjusted +1",
            "splice_dropped_not_of_pair +3",
            "splice_relayed_bytes +5",
            "splice_relayed_in_place +1",
            "splice_relayed_packets +1"
        ]
    );
}

/// Frames beyond the limit are dropped and counted; the peers retransmit them.
#[test]
fn keeping_is_bounded() {
    let by_count = SpliceConfig { kept_frames_max: 3, ..SpliceConfig::default() };
    let by_bytes = SpliceConfig { kept_bytes_max: 3 * 256, ..SpliceConfig::default() };
    for config in [by_count, by_bytes] {
        let mut bed = SpliceRig::with(config, PLAIN_LINK, [side(4, 0), side(4, 1)]);
        bed.begin(ID).unwrap();
        for n in 0..5 {
            bed.send(0, &seg(n, 0, b"x"));
        }
        assert_eq!(bed.rig.counter("splice_kept_frames"), 3);
        assert_eq!(bed.rig.counter("splice_dropped_kept_full"), 2);
        bed.start(vec![]);
        assert_eq!(bed.out().len(), 3);
        bed.passes(0, &seg(3, 0, b"x"));
        bed.rig.op(0, Op::Unsplice { id: ID });
        bed.rig.events.clear();
        bed.rig.sent.clear();
        // The memory is free for the next pair.
        bed.begin(SpliceId(8)).unwrap();
        (0..3).for_each(|n| bed.send(0, &seg(n, 0, b"x")));
        assert_eq!(bed.rig.counter("splice_kept_frames"), 3);
        bed.rig.op(0, Op::Unsplice { id: SpliceId(8) });
        assert_eq!(bed.rig.counter("splice_kept_frames"), 0);
    }
}
