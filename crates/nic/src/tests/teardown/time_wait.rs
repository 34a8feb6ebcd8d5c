//! TIME-WAIT: which segments are answered, and reuse of the tuple.

use super::*;

/// Returns a device with a connection that has just entered TIME-WAIT.
fn waiting() -> Rig {
    let mut rig = rig();
    hand_over(&mut rig, teardown_of(&[10]));
    send(&mut rig, &peer(RCV, UNA + 11, FIN_ACK));
    sent_lines(&mut rig);
    changed_counters(&mut rig);
    reported_ends(&mut rig);
    rig
}

#[test]
fn a_fin_is_answered_and_restarts_the_time() {
    let mut rig = waiting();
    advance_to(&mut rig, 16_003 + 40_000);
    send(&mut rig, &peer(RCV, UNA + 11, FIN_ACK));
    assert_eq!(sent_lines(&mut rig), [". 1011+0 5001"], "our acknowledgment was lost");
    advance_to(&mut rig, 16_003 + 99_999);
    assert_eq!(gauges(&rig), (0, 1));
    advance_to(&mut rig, 16_003 + 100_000);
    assert_eq!((gauges(&rig), changed_counters(&mut rig)), ((0, 0), Vec::new()));
}

/// RFC 9293 section 3.10.7.4, eighth: only the peer's own FIN restarts the time.
#[test]
fn a_forged_fin_does_not_restart_the_time() {
    let mut rig = waiting();
    advance_to(&mut rig, 16_003 + 40_000);
    for (seq, ack) in [(RCV - 1, 11), (RCV + 1, 11), (RCV + 5000, 11), (RCV, 10), (RCV, 12)] {
        send(&mut rig, &peer(seq, UNA + ack, FIN_ACK));
    }
    send(&mut rig, &peer(RCV, 0, TcpFlags::FIN));
    advance_to(&mut rig, 16_003 + 60_000);
    assert_eq!(gauges(&rig), (0, 0));
}

#[test]
fn a_restarted_entry_expires_last() {
    let mut rig = rig();
    for (port, at_ms) in [(1, 0), (2, 10_000), (3, 20_000)] {
        advance_to(&mut rig, 16_003 + at_ms);
        let mut next = teardown_of(&[10]);
        next.header.as_mut_slice()[36..38].copy_from_slice(&u16::to_be_bytes(port));
        hand_over(&mut rig, next);
        send(&mut rig, &PeerSegment { port, ..peer(RCV, UNA + 11, FIN_ACK) });
    }
    advance_to(&mut rig, 16_003 + 30_000);
    for port in [1, 3, 2] {
        send(&mut rig, &PeerSegment { port, ..peer(RCV, UNA + 11, FIN_ACK) });
        let next = rig.now.as_millis() + 1000;
        advance_to(&mut rig, next);
    }
    for (at_ms, here) in [(89_999, 3), (90_000, 2), (91_000, 1), (92_000, 0)] {
        advance_to(&mut rig, 16_003 + at_ms);
        assert_eq!(gauges(&rig), (0, here));
    }
}

#[test]
fn most_is_not_answered() {
    let mut rig = waiting();
    send(&mut rig, &peer(RCV + 1, UNA + 11, TcpFlags::ACK));
    send(&mut rig, &peer(RCV + 1, UNA + 11, TcpFlags::RST));
    send(&mut rig, &peer(RCV + 1, UNA + 11, TcpFlags::RST.with(TcpFlags::SYN)));
    assert_eq!((sent_lines(&mut rig), gauges(&rig)), (Vec::new(), (0, 1)), "RFC 1337");
    send(&mut rig, &peer(RCV - 4, UNA + 11, TcpFlags::ACK).with(b"more"));
    assert_eq!(sent_lines(&mut rig), [". 1011+0 5001"]);
    assert_eq!(delivered_frames(&mut rig), 0);
    let mut group = peer(RCV, UNA + 11, FIN_ACK).frame();
    group[0] = 1;
    let frame = rx_frame(rig.device.pool(), &group);
    rig.device.handle_frame(rig.now, frame);
    rig.collect();
    assert_eq!(sent_lines(&mut rig), [""; 0], "no answer from a group address");
}

/// RFC 6191.
#[test]
fn a_newer_syn_takes_over() {
    let syn = |seq: u32, stamps: Option<(u32, u32)>| PeerSegment {
        stamps,
        ..peer(seq, 0, TcpFlags::SYN)
    };
    let older = [
        syn(RCV + 9, Some((4, 0))),
        syn(RCV - 9, Some((5, 0))),
        syn(RCV, None),
        syn(RCV + 1, None),
        PeerSegment { ack: 0, ..peer(RCV + 9, 0, TcpFlags::SYN.with(TcpFlags::ACK)) },
    ];
    for (nth, old) in older.iter().enumerate() {
        let mut rig = waiting();
        send(&mut rig, old);
        assert_eq!(sent_lines(&mut rig), [". 1011+0 5001"], "{nth}");
        assert_eq!((gauges(&rig), delivered_frames(&mut rig)), ((0, 1), 0));
    }
    let newer = [syn(RCV - 9, Some((6, 0))), syn(RCV + 2, Some((5, 0))), syn(RCV + 2, None)];
    for new in newer {
        let mut rig = waiting();
        send(&mut rig, &new);
        assert_eq!((sent_lines(&mut rig), gauges(&rig)), (Vec::new(), (0, 0)));
        assert_eq!(delivered_frames(&mut rig), 1, "it is for a listener");
        assert_eq!(changed_counters(&mut rig), ["teardown_time_wait_reused +1"]);
    }
}

#[test]
fn the_oldest_is_evicted_for_a_new_one() {
    let mut rig = rig_with(TeardownConfig { time_wait_max: 2, ..TeardownConfig::default() });
    for port in [1, 2, 1, 3] {
        let mut next = teardown_of(&[10]);
        next.header.as_mut_slice()[36..38].copy_from_slice(&u16::to_be_bytes(port));
        hand_over(&mut rig, next);
        send(&mut rig, &PeerSegment { port, ..peer(RCV, UNA + 11, FIN_ACK) });
    }
    sent_lines(&mut rig);
    assert_eq!(gauges(&rig), (0, 2));
    assert_eq!(rig.counter("teardown_time_wait_evicted"), 1, "port 1 came twice");
    reported_ends(&mut rig);
    for (port, is_here) in [(1, true), (2, false), (3, true)] {
        send(&mut rig, &PeerSegment { port, ..peer(RCV, UNA + 11, FIN_ACK) });
        assert_eq!(
            (sent_lines(&mut rig).len() == 1, delivered_frames(&mut rig) == 0),
            (is_here, is_here)
        );
    }

    let mut rig = rig_with(TeardownConfig { time_wait_max: 0, ..TeardownConfig::default() });
    hand_over(&mut rig, teardown_of(&[10]));
    send(&mut rig, &peer(RCV, UNA + 11, FIN_ACK));
    assert_eq!((gauges(&rig), rig.counter("teardown_time_wait_evicted")), ((0, 0), 1));
}

/// The host opened a connection on a tuple that is still in TIME-WAIT, and hands it over.
#[test]
fn a_new_connection_ends_the_old_ones_time() {
    let mut rig = waiting();
    hand_over(&mut rig, teardown_of(&[20]));
    assert_eq!(
        (sent_lines(&mut rig), gauges(&rig)),
        (Vec::from(["FP. 1000+20 5000".into()]), (1, 0))
    );
}
