//! Data received after the hand-over, if the host asked to discard it (RFC 9112 section 9.6).

use super::*;

/// As [`teardown_of`], with up to `bytes_max` bytes of late data to discard.
fn lingering(lens: &[usize], bytes_max: u32) -> Teardown {
    Teardown { late_data: LateData::Discard { bytes_max }, ..teardown_of(lens) }
}

/// A pipelined request arrives before the response is acknowledged: the response is retransmitted
/// until it is, and the connection ends with a FIN in both directions.
#[test]
fn late_data_does_not_cut_the_response_off() {
    let mut rig = rig();
    hand_over(&mut rig, lingering(&[10], 1000));
    sent_lines(&mut rig);
    send(&mut rig, &peer(RCV, UNA, TcpFlags::ACK).with(b"GET / "));
    assert_eq!(sent_lines(&mut rig), [". 1011+0 5006"]);
    assert_eq!(advance_to(&mut rig, 16_220), [(16_203, "FP. 1000+10 5006".into())], "sent again");
    send(&mut rig, &peer(RCV + 6, UNA + 11, TcpFlags::ACK).with(b"HTTP"));
    assert_eq!(sent_lines(&mut rig), [". 1011+0 5010"], "acknowledged in FIN-WAIT-2, too");
    send(&mut rig, &peer(RCV + 10, UNA + 11, FIN_ACK));
    assert_eq!(sent_lines(&mut rig), [". 1011+0 5011"]);
    assert_eq!(gauges(&rig), (0, 1));
    advance_to(&mut rig, 16_300);
    assert_eq!(reported_ends(&mut rig), [CLOSED]);
    assert_eq!(
        changed_counters(&mut rig),
        [
            "teardown_closed +1",
            "teardown_late_data_bytes +10",
            "teardown_retransmits +1",
            "teardown_time_wait_entered +1",
        ]
    );
    assert_eq!(delivered_frames(&mut rig), 0, "nothing is left to the host");
}

/// close_notify and the FIN in one segment, as most TLS clients send them.
#[test]
fn late_data_with_the_fin() {
    let mut rig = rig();
    hand_over(&mut rig, lingering(&[10], 1000));
    sent_lines(&mut rig);
    send(&mut rig, &peer(RCV, UNA + 11, FIN_ACK).with(&[0; 24]));
    assert_eq!((sent_lines(&mut rig), gauges(&rig)), (Vec::from([". 1011+0 5025".into()]), (0, 1)));
    // The acknowledgment was lost: both are retransmitted, in TIME-WAIT.
    send(&mut rig, &peer(RCV, UNA + 11, FIN_ACK).with(&[0; 24]));
    assert_eq!(sent_lines(&mut rig), [". 1011+0 5025"]);
}

/// The window's right edge never moves back, and data after a hole has to be retransmitted.
#[test]
fn late_data_out_of_order_and_twice() {
    let mut rig = rig();
    hand_over(&mut rig, lingering(&[10], 1000));
    sent_lines(&mut rig);
    let window = |rig: &mut Rig| {
        let frame = bytes_of(&rig.sent.pop().expect("an acknowledgment"));
        let Ok(ParsedFrame::Ip(ip)) = parse(&frame) else { panic!("well-formed") };
        let (segment, _) = TcpHeader::parse(&frame[ip.l4..ip.end]).unwrap();
        (segment.ack.0, segment.window)
    };
    send(&mut rig, &peer(RCV + 4, UNA, FIN_ACK).with(b"ond"));
    let (ack, first) = window(&mut rig);
    assert_eq!(ack, RCV, "a duplicate acknowledgment asks for what is missing");
    send(&mut rig, &peer(RCV, UNA, TcpFlags::ACK).with(b"first"));
    assert_eq!(window(&mut rig), (RCV + 5, first));
    send(&mut rig, &peer(RCV, UNA, TcpFlags::ACK).with(b"first"));
    assert_eq!(window(&mut rig), (RCV + 5, first), "nothing new");
    send(&mut rig, &peer(RCV + 4, UNA, FIN_ACK).with(b"tond"));
    assert_eq!(window(&mut rig), (RCV + 9, first), "the new part, and the FIN");
    assert_eq!(
        changed_counters(&mut rig),
        [
            "teardown_late_data_bytes +8",
            "teardown_late_data_out_of_order +1",
            "teardown_out_of_window +1",
        ]
    );
}

/// A peer that sends forever is bounded, in bytes and in time.
#[test]
fn late_data_is_bounded() {
    let mut rig = rig();
    hand_over(&mut rig, lingering(&[10], 8));
    sent_lines(&mut rig);
    send(&mut rig, &peer(RCV, UNA + 11, TcpFlags::ACK).with(b"12345678"));
    assert_eq!(sent_lines(&mut rig), [". 1011+0 5008"]);
    send(&mut rig, &peer(RCV + 8, UNA + 11, TcpFlags::ACK).with(b"9"));
    assert_eq!(
        (sent_lines(&mut rig), gauges(&rig)),
        (Vec::from(["R. 1011+0 5008".into()]), (0, 0))
    );
    advance_to(&mut rig, 16_100);
    assert_eq!(reported_ends(&mut rig), [RESET]);
    assert_eq!(
        changed_counters(&mut rig),
        ["teardown_reset_late_data +1", "teardown_late_data_bytes +8"]
    );

    advance_to(&mut rig, 32_000);
    hand_over(&mut rig, lingering(&[10], 1 << 20));
    send(&mut rig, &peer(RCV, UNA + 11, TcpFlags::ACK));
    for (seq, second) in (RCV..).zip(0..59) {
        advance_to(&mut rig, 32_000 + second * 1000);
        send(&mut rig, &peer(seq, UNA + 11, TcpFlags::ACK).with(b"x"));
    }
    assert_eq!(gauges(&rig).0, 1);
    advance_to(&mut rig, 32_000 + 60_040);
    assert_eq!((reported_ends(&mut rig), gauges(&rig).0), (Vec::from([TIMED_OUT]), 0));
    assert_eq!(rig.counter("teardown_late_data_bytes"), 8 + 59);
}

/// Data that an attacker injects into the window is not accepted (RFC 5961 section 5.2).
#[test]
fn late_data_needs_an_acceptable_acknowledgment() {
    let mut rig = rig();
    hand_over(&mut rig, lingering(&[10], 1000));
    sent_lines(&mut rig);
    for ack in [UNA + 12, UNA.wrapping_sub(70_000)] {
        send(&mut rig, &peer(RCV, ack, TcpFlags::ACK).with(b"evil"));
    }
    assert_eq!(sent_lines(&mut rig), [". 1011+0 5000"], "one challenge");
    assert_eq!(rig.counter("teardown_late_data_bytes"), 0);
}

/// FIN-WAIT-2: everything was acknowledged before the hand-over, and only the peer's FIN is
/// missing.
#[test]
fn late_data_when_only_the_end_of_the_peer_is_missing() {
    let mut rig = rig();
    let una = SeqNum(UNA + 11);
    let state = ClosingState::FinWait2;
    let waiting = |lens: &[usize]| Teardown { state, una, nxt: una, ..lingering(lens, 1000) };
    hand_over(&mut rig, waiting(&[]));
    assert_eq!((sent_lines(&mut rig), gauges(&rig)), (Vec::<String>::new(), (1, 0)));
    send(&mut rig, &peer(RCV, UNA + 11, TcpFlags::ACK).with(b"late"));
    assert_eq!(sent_lines(&mut rig), [". 1011+0 5004"]);
    send(&mut rig, &peer(RCV + 4, UNA + 11, FIN_ACK));
    assert_eq!((sent_lines(&mut rig), gauges(&rig)), (Vec::from([". 1011+0 5005".into()]), (0, 1)));
    advance_to(&mut rig, 16_100);
    assert_eq!(reported_ends(&mut rig), [CLOSED]);

    // A peer that never closes.
    advance_to(&mut rig, 77_000);
    hand_over(&mut rig, waiting(&[]));
    advance_to(&mut rig, 77_000 + 60_040);
    assert_eq!((reported_ends(&mut rig), gauges(&rig).0), (Vec::from([TIMED_OUT]), 0));
    // After an acknowledged FIN no bytes can be left to send.
    hand_over(&mut rig, waiting(&[10]));
    assert_eq!((rig.counter("teardown_refused_unfit"), gauges(&rig).0), (1, 0));
}
