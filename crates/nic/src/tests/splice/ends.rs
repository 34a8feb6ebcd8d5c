//! Ends of pairs, and requests that are refused.

use super::*;

fn fin(seq: i32, ack: i32, payload: &[u8]) -> RelaySegment {
    RelaySegment { flags: ACK.with(TcpFlags::FIN), ..seg(seq, ack, payload) }
}

/// Both directions close, in either order. The pair stays for a while in case the last
/// acknowledgment was lost, and byte counts are exact despite retransmissions.
#[test]
fn closes_when_both_have_closed() {
    for first in 0..2 {
        let mut bed = SpliceRig::live([side(4, 0), side(6, 1)]);
        let last = 1 - first;
        bed.passes(first, &seg(0, 0, b"12345"));
        bed.passes(first, &seg(0, 0, b"12345"));
        bed.passes(first, &fin(5, 0, b"678"));
        bed.passes(last, &seg(0, 5, b""));
        bed.passes(first, &fin(5, 0, b"678"));
        bed.passes(last, &seg(0, 9, b"half-closed"));
        bed.passes(first, &seg(9, 11, b""));
        bed.passes(last, &fin(11, 9, b""));
        let SpliceClosed { id, bytes, packets, end } = bed.closes(first, &seg(9, 12, b""));
        assert_eq!((id, end), (ID, SpliceEnd::Closed));
        assert_eq!((bytes[first], bytes[last]), (8, 11));
        assert_eq!((packets[first], packets[last]), (6, 3));
        assert_eq!(bed.rig.counter("splice_lingering"), 1);
        // The last acknowledgment was lost: it is repeated, and the end is not reported again.
        bed.after(Duration::from_secs(7));
        bed.passes(last, &fin(11, 9, b""));
        bed.passes(first, &seg(9, 12, b""));
        bed.after(Duration::from_secs(1));
        assert_eq!(bed.rig.events.len(), 0);
        assert_eq!((bed.rig.counter("splice_pairs"), bed.rig.counter("splice_closed")), (0, 1));
        assert_eq!(bed.out(), []);
    }
}

/// If the tuple is reused during that time, the pair is removed and the SYN goes to the host.
#[test]
fn a_syn_ends_the_lingering() {
    let mut bed = SpliceRig::plain();
    bed.passes(0, &fin(0, 0, b""));
    bed.passes(1, &fin(0, 1, b""));
    assert_eq!(bed.closes(0, &seg(1, 1, b"")).end, SpliceEnd::Closed);
    bed.send(0, &RelaySegment { flags: TcpFlags::SYN, ..seg(90_000, 0, b"") });
    let events: Vec<Event> = bed.rig.events.drain(..).map(|(_, event)| event).collect();
    assert!(matches!(&events[..], [Event::Received(_)]), "{events:?}");
    assert_eq!(bed.rig.counter("splice_lingers_cut_short"), 1);
    assert_eq!(bed.rig.counter("splice_lingering"), 0);
}

#[test]
fn idle_pairs_are_reset() {
    let mut bed = SpliceRig::plain();
    bed.after(Duration::from_secs(59));
    bed.passes(0, &seg(0, 0, b"data"));
    bed.after(Duration::from_secs(59));
    assert_eq!((bed.rig.events.len(), bed.rig.counter("splice_pairs")), (0, 1));
    let due = bed.rig.now + Duration::from_secs(1);
    assert_eq!(bed.rig.device.poll_timeout(bed.rig.now), Some(due));
    bed.after(Duration::from_secs(1));
    let rst = |seq| RelaySegment { flags: TcpFlags::RST, window: 0, ..seg(seq, 0, b"") };
    assert_eq!(bed.out(), [(0, rst(0)), (1, rst(4))]);
    assert_eq!(bed.closed().end, SpliceEnd::IdleTimeout);
    assert_eq!(bed.rig.device.poll_timeout(bed.rig.now), None);
}

#[test]
fn unspliced_pairs_are_reset() {
    let mut bed = SpliceRig::plain();
    bed.passes(0, &seg(0, 0, b"data"));
    bed.passes(1, &seg(0, 4, b"answer"));
    bed.moved();
    bed.rig.op(1, Op::Unsplice { id: ID });
    assert_eq!(bed.moved(), ["splice_ops_ignored +1"], "another queue's names are its own");
    bed.rig.op(0, Op::Unsplice { id: ID });
    let rst = |seq| RelaySegment { flags: TcpFlags::RST, window: 0, ..seg(seq, 0, b"") };
    assert_eq!(bed.out(), [(0, rst(6)), (1, rst(4))]);
    let closed = bed.closed();
    assert_eq!((closed.end, closed.bytes), (SpliceEnd::Unspliced, [4, 0]));
    assert_eq!(bed.moved(), ["splice_resets_sent +2", "splice_unspliced +1"]);
}

/// A pair that was not started is only forgotten; its connections stay with the host and are not
/// reset.
#[test]
fn one_that_has_not_begun_is_only_forgotten() {
    let mut bed = SpliceRig::with(SpliceConfig::default(), PLAIN_LINK, [side(4, 0), side(4, 1)]);
    bed.begin(ID).unwrap();
    bed.send(0, &seg(0, 0, b"data"));
    bed.rig.op(0, Op::Unsplice { id: ID });
    assert_eq!((bed.out(), bed.closed().end), (vec![], SpliceEnd::Unspliced));
    assert_eq!(bed.rig.counter("splice_kept_frames"), 0);
    bed.send(0, &seg(0, 0, b"data"));
    assert!(matches!(bed.rig.events.pop(), Some((0, Event::Received(_)))));
}

/// A full table is a refusal with a reason.
#[test]
fn a_full_table_says_so() {
    let config = SpliceConfig { pairs_max: 2, ..SpliceConfig::default() };
    let mut bed = SpliceRig::with(config, PLAIN_LINK, [side(4, 0), side(4, 1)]);
    let nth = |n: u16| {
        let mut sides = [side(4, 0), side(4, 1)];
        sides.iter_mut().for_each(|side| side.tuple.remote.port += n);
        let idle_timeout = Duration::from_secs(60);
        Splice { id: SpliceId(n.into()), sides, idle_timeout }
    };
    assert_eq!(bed.ask(nth(1)), Ok(()));
    assert_eq!(bed.ask(nth(0)), Ok(()));
    assert_eq!(bed.ask(nth(2)), Err(Refusal::TableFull));
    assert_eq!(bed.rig.counter("splice_refused_full"), 1);
    // A pair that is closed and only lingers does not count.
    bed.rig.op(0, Op::SpliceStart { id: SpliceId(0), packets: Box::new([]) });
    bed.passes(0, &fin(0, 0, b""));
    bed.passes(1, &fin(0, 1, b""));
    bed.closes(0, &seg(1, 1, b""));
    bed.rig.op(0, Op::Splice(Box::new(nth(2))));
    let events: Vec<Event> = bed.rig.events.drain(..).map(|(_, event)| event).collect();
    assert!(matches!(&events[..], [Event::Spliced { result: Ok(()), .. }]), "{events:?}");
    assert_eq!(bed.rig.counter("splice_pairs"), 2);
}

#[test]
fn invalid_requests_are_refused() {
    let base = [side(4, 0), side(6, 1)];
    let mut bed = SpliceRig::with(SpliceConfig::default(), PLAIN_LINK, base);
    let mut refused = |change: &dyn Fn(&mut [SpliceSide; 2])| {
        let mut sides = base;
        change(&mut sides);
        let idle_timeout = Duration::ZERO;
        let result = bed.ask(Splice { id: SpliceId(1), sides, idle_timeout });
        assert_eq!(result, Err(Refusal::DoesNotFit));
    };
    refused(&|s| s[1].tuple = s[0].tuple);
    refused(&|s| s[0].mss = 0);
    refused(&|s| s[0].peer_scale = 15);
    refused(&|s| s[1].own_scale = 200);
    refused(&|s| s[1].own_window = u32::MAX);
    refused(&|s| s[1].peer_window = u32::MAX);
    refused(&|s| s[0].tuple.local.port = 0);
    refused(&|s| s[0].tuple.remote.port = 0);
    refused(&|s| s[0].tuple.remote.addr = s[1].tuple.remote.addr);
    refused(&|s| s[0].tuple.remote.addr = [224, 0, 0, 1].into());
    refused(&|s| s[0].next_hop_mac = [0xff; 6]);
    // A tuple or a number that is in use.
    assert_eq!(bed.begin(ID), Ok(()));
    assert_eq!(bed.begin(SpliceId(8)), Err(Refusal::DoesNotFit));
    let mut sides = base;
    sides[0].tuple.remote.port += 1;
    let idle_timeout = Duration::ZERO;
    assert_eq!(
        bed.ask(Splice { id: SpliceId(8), sides, idle_timeout }),
        Err(Refusal::DoesNotFit),
        "one of the two"
    );
    assert_eq!(bed.rig.counter("splice_refused_taken"), 3);
    assert_eq!(bed.rig.counter("splice_refused_malformed"), 10);
    assert_eq!(bed.rig.counter("splice_pairs"), 1);
}

/// A device without splicing refuses.
#[test]
fn switched_off() {
    let mut config = DeviceConfig::new(MAC);
    (config.file, config.splice) = (None, None);
    let mut bed = SpliceRig { rig: Rig::with(config, PLAIN_LINK), sides: [side(4, 0), side(4, 1)] };
    assert_eq!(bed.rig.device.capabilities().splice, Err(Refusal::Disabled));
    assert_eq!(bed.begin(ID), Err(Refusal::Disabled));
}

/// After a reset of the device, frames of the pair are delivered to the host, which resets the
/// unknown connection.
#[test]
fn a_reset_of_the_device_forgets() {
    let mut bed = SpliceRig::plain();
    bed.passes(0, &seg(0, 0, b"data"));
    bed.rig.device.reset();
    bed.rig.collect();
    assert!(matches!(bed.rig.events.pop(), Some((_, Event::Reset))));
    assert_eq!(bed.rig.counter("splice_pairs"), 0);
    bed.rig.events.clear();
    bed.send(0, &seg(4, 0, b"data"));
    assert!(matches!(bed.rig.events.pop(), Some((_, Event::Received(_)))));
    assert_eq!(bed.begin(ID), Ok(()), "and can begin again");
}
