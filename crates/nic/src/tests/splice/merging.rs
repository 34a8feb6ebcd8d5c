//! Packets that wait for the link together: those that become one, and those that must not.

use super::*;

/// Runs of a flow that arrive together leave as one, with the flags of the last one.
#[test]
fn runs_that_arrive_together_are_merged() {
    let caps = LinkCaps { segmentation: true, udp_segmentation: false, checksum: true, mtu: 1514 };
    let mut bed = SpliceRig::with(SpliceConfig::default(), caps, [side(4, 0), side(4, 1)]);
    bed.begin(ID).unwrap();
    bed.start(vec![]);
    bed.moved();
    let payload: Vec<u8> = (0..9000_u32).map(|i| u8::try_from(i % 251).unwrap()).collect();
    let part = |from: usize, to: usize| seg(i32::try_from(from).unwrap(), 0, &payload[from..to]);
    let last =
        RelaySegment { flags: ACK.with(TcpFlags::PSH).with(TcpFlags::FIN), ..part(6000, 9000) };
    bed.send_together(1, &[part(0, 2000), part(2000, 6000), last.clone()], 1000);
    let sent = bed.out();
    let expected = RelaySegment { payload: payload.clone(), seq: 0, hop_limit: 63, ..last };
    assert_eq!(sent, [(0, expected)]);
    assert_eq!(
        bed.moved(),
        [
            "splice_checksums_summed +3",
            "splice_cut +3",
            "splice_merged +2",
            "splice_relayed_bytes +9000",
            "splice_relayed_packets +9"
        ]
    );
    assert_eq!(bed.rig.counter("tx_packets"), 9);
}

/// A run is not continued behind a packet of another size, a gap, another acknowledgment or a
/// packet of its direction that was queued meanwhile.
#[test]
fn runs_are_not_merged_over_other_packets() {
    let caps = LinkCaps { segmentation: true, udp_segmentation: false, checksum: true, mtu: 1514 };
    let run = |seq: i32, ack: i32, len: usize| seg(seq, ack, &vec![7; len]);
    for (between, after) in [
        (vec![], run(2001, 0, 2000)),
        (vec![], run(2000, 1, 2000)),
        (vec![run(2000, 0, 1500)], run(3500, 0, 2000)),
        (vec![run(2000, 0, 0)], run(2000, 0, 2000)),
    ] {
        let sides = [side(4, 0), side(4, 1)];
        let mut bed = SpliceRig::with(SpliceConfig::default(), caps, sides);
        bed.begin(ID).unwrap();
        bed.start(vec![]);
        bed.passes(0, &seg(0, 0, b"x"));
        let all = [&[run(0, 0, 2000)][..], &between, &[after]].concat();
        bed.send_together(1, &all, 1000);
        let merged = u64::from(between.first().is_some_and(|seg| seg.payload.len() == 1500));
        assert_eq!(bed.rig.counter("splice_merged"), merged, "{between:?}");
        let seqs: Vec<i32> = bed.out().iter().map(|(_, seg)| seg.seq).collect();
        let expected: Vec<i32> = all.iter().map(|seg| seg.seq).collect();
        assert!(merged == 1 || seqs == expected, "{seqs:?}");
    }
}

/// Payload does not overtake a challenge ACK, whose number would then be an old one.
#[test]
fn runs_are_not_merged_over_a_challenge() {
    let caps = LinkCaps { segmentation: true, udp_segmentation: false, checksum: true, mtu: 1514 };
    let mut bed = SpliceRig::with(SpliceConfig::default(), caps, [side(4, 0), side(4, 1)]);
    bed.begin(ID).unwrap();
    bed.start(vec![]);
    let run = |seq: i32| bed.frame(1, &seg(seq, 0, &[7; 2000]));
    let syn = bed.frame(0, &RelaySegment { flags: TcpFlags::SYN, ..seg(0, 0, b"") });
    let (first, next) = (run(0), run(2000));
    bed.receive(&first, Checksum::Partial, 1000);
    bed.receive(&syn, Checksum::Good, 0);
    bed.receive(&next, Checksum::Partial, 1000);
    bed.rig.collect();
    let sent: Vec<_> =
        bed.out().iter().map(|(to, seg)| (*to, seg.seq, seg.payload.len())).collect();
    assert_eq!(sent, [(0, 0, 2000), (0, 2000, 0), (0, 2000, 2000)]);
    assert_eq!(bed.rig.counter("splice_challenges"), 1);
    assert_eq!(bed.rig.counter("splice_merged"), 0);
}

/// Acknowledgments that arrive together leave as the last one; those that say something else than
/// an earlier one do not.
#[test]
fn acknowledgments_that_arrive_together_are_merged() {
    let mut bed = SpliceRig::plain();
    bed.passes(1, &seg(0, 0, &[1; 1000]));
    let sack = RelaySegment { sack: vec![(600, 700)], ..seg(0, 500, b"") };
    let window = RelaySegment { window: 400, ..seg(0, 500, b"") };
    let acks = [100, 200, 300].map(|ack| seg(0, ack, b""));
    let repeated = seg(0, 300, b"");
    let all = [&acks[..], &[repeated, seg(0, 500, b""), window, sack, seg(0, 800, b"")]].concat();
    bed.send_together(0, &all, 0);
    let sent: Vec<_> =
        bed.out().iter().map(|(_, seg)| (seg.ack, seg.window, seg.sack.len())).collect();
    let expected = [(300, 500, 0), (500, 500, 0), (500, 400, 0), (500, 500, 1), (800, 500, 0)];
    assert_eq!(sent, expected);
    assert_eq!(bed.rig.counter("splice_merged"), 3);
    assert_eq!(bed.rig.counter("splice_relayed_packets"), 9);
}
