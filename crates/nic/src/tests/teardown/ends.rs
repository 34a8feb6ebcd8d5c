//! Ends of connections: closing in every order, loss, silence, late data.

use abi::link::LinkCaps;
use abi::steering::{SteeredFrame, SteeringReason};

use super::*;

/// Checks that the end is reported ten milliseconds later, and nothing else happens.
fn reported_after_10_ms(rig: &mut Rig) -> Vec<TeardownDone> {
    let now = rig.now.as_millis();
    assert_eq!(advance_to(rig, now + 9), []);
    assert_eq!(reported_ends(rig), []);
    assert_eq!(advance_to(rig, now + 10), []);
    reported_ends(rig)
}

#[test]
fn active_close() {
    let mut rig = rig();
    hand_over(&mut rig, teardown_of(&[64]));
    assert_eq!(sent_lines(&mut rig), ["FP. 1000+64 5000"]);
    assert_eq!(gauges(&rig), (1, 0));
    send(&mut rig, &peer(RCV, UNA + 65, TcpFlags::ACK));
    assert_eq!(sent_lines(&mut rig), [""; 0], "FIN-WAIT-2");
    send(&mut rig, &peer(RCV, UNA + 65, FIN_ACK));
    assert_eq!(sent_lines(&mut rig), [". 1065+0 5001"]);
    assert_eq!(gauges(&rig), (0, 1));
    assert_eq!(reported_after_10_ms(&mut rig), [CLOSED]);
    assert_eq!(changed_counters(&mut rig), ["teardown_closed +1", "teardown_time_wait_entered +1"]);
    assert_eq!(delivered_frames(&mut rig), 0);
    // The tuple is kept for a minute, and the device asks for no other poll.
    let end = Instant::from_millis(16_003 + 60_000);
    assert_eq!(rig.device.poll_timeout(rig.now), Some(end));
    assert_eq!(advance_to(&mut rig, 16_003 + 60_000), []);
    assert_eq!((gauges(&rig), rig.device.poll_timeout(rig.now)), ((0, 0), None));
}

/// A segment that the host returns is one of the connection, or, if that has ended, says so.
#[test]
fn returned_segments_find_their_connection_or_are_marked() {
    let give_back = |rig: &mut Rig, peer: &PeerSegment, reason| {
        let frame = rx_frame(rig.device.pool(), &peer.frame());
        rig.op(0, Op::Return(SteeredFrame { frame, reason }));
        let events = core::mem::take(&mut rig.events).into_iter();
        let steered = events.filter_map(|(_, event)| match event {
            Event::Received(received) => Some(received.steered),
            _ => None,
        });
        steered.collect::<Vec<_>>()
    };
    let mut rig = rig();
    hand_over(&mut rig, teardown_of(&[64]));
    assert_eq!(sent_lines(&mut rig), ["FP. 1000+64 5000"]);
    let earlier = peer(RCV, UNA + 20, TcpFlags::ACK);
    assert_eq!(give_back(&mut rig, &earlier, SteeringReason::TornDown), []);
    send(&mut rig, &peer(RCV, 0, TcpFlags::RST));
    assert_eq!(gauges(&rig), (0, 0));
    let later = give_back(&mut rig, &earlier, SteeringReason::TornDown);
    assert_eq!(later, [SteeringReason::TornDown]);
    // A reassembled packet is one from the link.
    let whole = give_back(&mut rig, &earlier, SteeringReason::Current);
    assert_eq!(whole, [SteeringReason::Current]);
}

#[test]
fn passive_close() {
    let mut rig = rig();
    hand_over(&mut rig, Teardown { state: ClosingState::LastAck, ..teardown_of(&[10]) });
    assert_eq!(sent_lines(&mut rig), ["FP. 1000+10 5000"]);
    send(&mut rig, &peer(RCV - 1, UNA, FIN_ACK).stamped(5));
    assert_eq!(
        sent_lines(&mut rig),
        [". 1011+0 5000"],
        "the peer's FIN again: our answer was lost"
    );
    send(&mut rig, &peer(RCV, UNA + 11, TcpFlags::ACK));
    assert_eq!(reported_after_10_ms(&mut rig), [CLOSED]);
    assert_eq!(changed_counters(&mut rig), ["teardown_closed +1", "teardown_out_of_window +1"]);
    assert_eq!((gauges(&rig), rig.device.poll_timeout(rig.now)), ((0, 0), None));
}

/// The peer's FIN arrived before the hand-over, but not the acknowledgment of the host's FIN.
#[test]
fn handed_over_in_closing() {
    let mut rig = rig();
    hand_over(&mut rig, Teardown { state: ClosingState::Closing, ..teardown_of(&[10]) });
    assert_eq!(sent_lines(&mut rig), ["FP. 1000+10 5000"]);
    send(&mut rig, &peer(RCV, UNA + 11, TcpFlags::ACK));
    assert_eq!((sent_lines(&mut rig), gauges(&rig)), (Vec::new(), (0, 1)), "TIME-WAIT");
    assert_eq!(reported_after_10_ms(&mut rig), [CLOSED]);
    assert_eq!(changed_counters(&mut rig), ["teardown_closed +1", "teardown_time_wait_entered +1"]);
}

#[test]
fn simultaneous_close() {
    let mut rig = rig();
    hand_over(&mut rig, teardown_of(&[10]));
    sent_lines(&mut rig);
    send(&mut rig, &peer(RCV, UNA, FIN_ACK));
    assert_eq!(sent_lines(&mut rig), [". 1011+0 5001"]);
    assert_eq!(gauges(&rig), (1, 0), "CLOSING");
    send(&mut rig, &peer(RCV + 1, UNA + 11, TcpFlags::ACK));
    assert_eq!((sent_lines(&mut rig), gauges(&rig)), (Vec::new(), (0, 1)));
    assert_eq!(reported_after_10_ms(&mut rig), [CLOSED]);
}

#[test]
fn fin_and_acknowledgment_together() {
    let mut rig = rig();
    hand_over(&mut rig, teardown_of(&[10]));
    sent_lines(&mut rig);
    send(&mut rig, &peer(RCV, UNA + 11, FIN_ACK));
    assert_eq!((sent_lines(&mut rig), gauges(&rig)), (Vec::from([". 1011+0 5001".into()]), (0, 1)));
}

#[test]
fn a_bare_fin_and_one_already_sent() {
    let mut rig = rig();
    hand_over(&mut rig, teardown_of(&[]));
    assert_eq!(sent_lines(&mut rig), ["F. 1000+0 5000"]);
    send(&mut rig, &peer(RCV, UNA + 1, FIN_ACK));
    assert_eq!(sent_lines(&mut rig), [". 1001+0 5001"]);
    // A FIN alone does not need window space.
    let mut second = Teardown { edge: SeqNum(UNA), ..teardown_of(&[]) };
    second.header.as_mut_slice()[37] = 0x41;
    hand_over(&mut rig, second);
    assert_eq!(sent_lines(&mut rig), ["F. 1000+0 5000"]);
    // The host has sent everything including the FIN.
    let mut third = Teardown { nxt: SeqNum(UNA + 11), edge: SeqNum(UNA), ..teardown_of(&[4, 6]) };
    third.header.as_mut_slice()[37] = 0x42;
    hand_over(&mut rig, third);
    assert_eq!(sent_lines(&mut rig), [""; 0]);
    let sent = advance_to(&mut rig, 16_003 + 300);
    let lines: Vec<&str> = sent.iter().map(|(_, line)| line.as_str()).collect();
    assert_eq!(lines, ["F. 1000+0 5000", ". 1000+4 5000"], "the first part probes the window");
}

#[test]
fn sent_parts_wait_for_the_timer() {
    let mut rig = rig();
    hand_over(&mut rig, Teardown { nxt: SeqNum(UNA + 100), ..teardown_of(&[60, 40, 30]) });
    assert_eq!(sent_lines(&mut rig), ["FP. 1100+30 5000"]);
    let lines = advance_to(&mut rig, 16_003 + 220);
    assert_eq!(lines, [(16_203, "FP. 1000+130 5000".into())]);
}

#[test]
fn half_close_ends_in_time() {
    let mut rig = rig();
    hand_over(&mut rig, teardown_of(&[10]));
    send(&mut rig, &peer(RCV, UNA + 11, TcpFlags::ACK));
    sent_lines(&mut rig);
    // A keep-alive of the peer is answered, and does not restart the timer.
    assert_eq!(advance_to(&mut rig, 16_003 + 30_000), []);
    send(&mut rig, &peer(RCV - 1, UNA + 11, TcpFlags::ACK));
    assert_eq!(sent_lines(&mut rig), [". 1011+0 5000"]);
    assert_eq!(advance_to(&mut rig, 16_003 + 59_000), []);
    assert_eq!((reported_ends(&mut rig), gauges(&rig)), (Vec::new(), (1, 0)));
    assert_eq!(advance_to(&mut rig, 16_003 + 60_040), []);
    assert_eq!((reported_ends(&mut rig), gauges(&rig)), (Vec::from([TIMED_OUT]), (0, 0)));
    assert_eq!(
        changed_counters(&mut rig),
        ["teardown_fin_wait_expired +1", "teardown_out_of_window +1"],
        "a keep-alive is no sign of an attack"
    );
}

#[test]
fn a_response_of_several_segments() {
    for wire in [
        PLAIN_LINK,
        LinkCaps { segmentation: true, udp_segmentation: false, checksum: true, mtu: 1500 },
    ] {
        let mut rig = Rig::with(config(TeardownConfig::default()), wire);
        hand_over(&mut rig, teardown_of(&[1000, 2000]));
        let mut content = Vec::new();
        for frame in &rig.sent {
            let bytes = bytes_of(frame);
            content.extend_from_slice(&bytes[frame.header.len()..]);
        }
        assert_eq!(content, bytes(0, 3000));
        if wire.segmentation {
            assert_eq!(rig.sent[0].segment_size, 1448);
            assert_eq!(sent_lines(&mut rig), ["FP. 1000+3000 5000"]);
        } else {
            let expected = [". 1000+1448 5000", ". 2448+1448 5000", "FP. 3896+104 5000"];
            assert_eq!(sent_lines(&mut rig), expected);
        }
        // Only the first segment arrives: its part is not completely acknowledged until the second.
        send(&mut rig, &peer(RCV, UNA + 1000, TcpFlags::ACK));
        let again = advance_to(&mut rig, 220);
        assert_eq!(
            again[0],
            (
                200,
                if wire.segmentation {
                    "FP. 2000+2000 5000".into()
                } else {
                    ". 2000+1448 5000".into()
                }
            )
        );
        assert_eq!(changed_counters(&mut rig), ["teardown_retransmits +1"]);
    }
}

#[test]
fn a_part_half_acknowledged_is_sent_whole() {
    let mut rig = rig();
    hand_over(&mut rig, teardown_of(&[100, 100]));
    sent_lines(&mut rig);
    send(&mut rig, &peer(RCV, UNA + 150, TcpFlags::ACK));
    assert_eq!(advance_to(&mut rig, 16_220), [(16_203, "FP. 1100+100 5000".into())]);
    send(&mut rig, &peer(RCV, UNA + 200, TcpFlags::ACK));
    assert_eq!(
        advance_to(&mut rig, 16_500),
        [(16_420, "F. 1200+0 5000".into())],
        "the FIN was lost"
    );
}

/// RFC 6298 (5.5): doubled each time.
#[test]
fn backs_off_and_gives_up() {
    let mut rig = rig_with(TeardownConfig { retries_max: 3, ..TeardownConfig::default() });
    advance_to(&mut rig, 32_000);
    hand_over(&mut rig, teardown_of(&[10]));
    sent_lines(&mut rig);
    let fin = "FP. 1000+10 5000";
    let expected = [(200, fin), (600, fin), (1400, fin), (3000, "R. 1011+0 5000")];
    let lines = advance_to(&mut rig, 40_000);
    assert_eq!(lines, expected.map(|(at, line)| (32_000 + at, line.into())));
    assert_eq!((reported_ends(&mut rig), gauges(&rig)), (Vec::from([TIMED_OUT]), (0, 0)));
    assert_eq!(changed_counters(&mut rig), ["teardown_timed_out +1", "teardown_retransmits +3"]);
    assert_eq!(rig.device.poll_timeout(rig.now), None);
}

/// RFC 4821 section 7.7: after three time-outs without progress the segments are smaller; with
/// progress before, they are not.
#[test]
fn a_black_hole_makes_segments_smaller() {
    for progress in [false, true] {
        let mut rig = rig();
        advance_to(&mut rig, 32_000);
        hand_over(&mut rig, teardown_of(&[1400, 1448]));
        let full = [". 1000+1448 5000", "FP. 2448+1400 5000"];
        assert_eq!(sent_lines(&mut rig), full);
        // Time-outs after 200 and 600 ms; the third after 1400 ms.
        assert_eq!(advance_to(&mut rig, 32_700).len(), 2 * full.len());
        if progress {
            send(&mut rig, &peer(RCV, UNA + 1400, TcpFlags::ACK));
        }
        let lines: Vec<_> = advance_to(&mut rig, 33_500).into_iter().map(|(_, l)| l).collect();
        let lowered = rig.counter("teardown_mtu_black_holes");
        if progress {
            assert_eq!((&lines[0][..], lowered), ("FP. 2400+1448 5000", 0));
            continue;
        }
        let small = [
            ". 1000+524 5000",
            ". 1524+524 5000",
            ". 2048+524 5000",
            ". 2572+524 5000",
            ". 3096+524 5000",
            "FP. 3620+228 5000",
        ];
        assert_eq!((lines, lowered), (small.map(String::from).to_vec(), 1));
    }
}

/// RFC 6298 (2.5): at most two minutes.
#[test]
fn backs_off_to_two_minutes() {
    let mut rig = rig();
    advance_to(&mut rig, 32_000);
    hand_over(&mut rig, Teardown { rto: Duration::from_millis(1601), ..teardown_of(&[10]) });
    sent_lines(&mut rig);
    let times: Vec<u64> = advance_to(&mut rig, 900_000).iter().map(|(at, _)| at - 32_000).collect();
    let mut expected = Vec::new();
    let (mut sum, mut rto) = (0_u64, 1601_u64);
    for _ in 0..9 {
        sum += rto;
        expected.push(sum);
        rto = (rto * 2).min(120_000);
    }
    assert_eq!(times, expected);
    assert_eq!(rig.counter("teardown_retransmits"), 8);
}

#[test]
fn progress_ends_the_back_off() {
    let mut rig = rig();
    advance_to(&mut rig, 32_000);
    hand_over(&mut rig, teardown_of(&[100, 100]));
    assert_eq!(advance_to(&mut rig, 32_700).len(), 3);
    send(&mut rig, &peer(RCV, UNA + 100, TcpFlags::ACK));
    let fin: String = "FP. 1100+100 5000".into();
    assert_eq!(advance_to(&mut rig, 33_400), [(32_900, fin.clone()), (33_300, fin)]);
}

#[test]
fn three_duplicates() {
    let mut rig = rig();
    hand_over(&mut rig, teardown_of(&[100, 100]));
    send(&mut rig, &peer(RCV, UNA + 100, TcpFlags::ACK));
    sent_lines(&mut rig);
    let dup = peer(RCV, UNA + 100, TcpFlags::ACK);
    send(&mut rig, &dup);
    send(&mut rig, &PeerSegment { window: 501, ..dup.clone() });
    send(&mut rig, &dup);
    assert_eq!(sent_lines(&mut rig), [""; 0], "a window update is no duplicate");
    for _ in 0..2 {
        send(&mut rig, &dup);
    }
    assert_eq!(sent_lines(&mut rig), ["FP. 1100+100 5000"]);
    for _ in 0..5 {
        send(&mut rig, &dup);
    }
    assert_eq!(sent_lines(&mut rig), [""; 0], "once");
    assert_eq!(changed_counters(&mut rig), ["teardown_dup_ack_retransmits +1"]);
    send(&mut rig, &peer(RCV, UNA + 201, FIN_ACK));
    assert_eq!(gauges(&rig), (0, 1));
    for _ in 0..4 {
        send(&mut rig, &peer(RCV + 1, UNA + 201, TcpFlags::ACK));
    }
    assert_eq!(sent_lines(&mut rig), [". 1201+0 5001"]);
}

/// RFC 1122 section 4.2.2.13.
#[test]
fn late_data_resets() {
    for flags in [TcpFlags::ACK, FIN_ACK] {
        let mut rig = rig();
        hand_over(&mut rig, teardown_of(&[10]));
        sent_lines(&mut rig);
        send(&mut rig, &peer(RCV, UNA + 11, flags).with(b"more"));
        assert_eq!(sent_lines(&mut rig), ["R. 1011+0 5000"]);
        assert_eq!(reported_after_10_ms(&mut rig), [RESET]);
        assert_eq!(changed_counters(&mut rig), ["teardown_reset_late_data +1"]);
        assert_eq!(gauges(&rig), (0, 0));
    }
}

/// The last acknowledgment was lost: the peer retransmits data that was received, alone and with
/// its FIN.
#[test]
fn old_data_is_acknowledged() {
    let mut rig = rig();
    hand_over(&mut rig, teardown_of(&[10]));
    sent_lines(&mut rig);
    send(&mut rig, &peer(RCV - 4, UNA, TcpFlags::ACK).with(b"more"));
    assert_eq!(sent_lines(&mut rig), [". 1011+0 5000"]);
    send(&mut rig, &peer(RCV - 4, UNA + 11, FIN_ACK).with(b"more"));
    assert_eq!(sent_lines(&mut rig), [". 1011+0 5001"]);
    assert_eq!(gauges(&rig), (0, 1));
    assert_eq!(
        changed_counters(&mut rig),
        ["teardown_closed +1", "teardown_out_of_window +1", "teardown_time_wait_entered +1",]
    );
    // No text follows the peer's FIN (RFC 9293 section 3.10.7.4, seventh).
    hand_over(&mut rig, Teardown { state: ClosingState::LastAck, ..teardown_of(&[10]) });
    sent_lines(&mut rig);
    send(&mut rig, &peer(RCV, UNA, TcpFlags::ACK).with(b"more"));
    assert_eq!((sent_lines(&mut rig), gauges(&rig).0), (Vec::from([". 1011+0 5000".into()]), 1));
}

/// A FIN after a hole is not accepted, and an acknowledgment tells the peer.
#[test]
fn a_fin_out_of_order_waits() {
    let mut rig = rig();
    hand_over(&mut rig, teardown_of(&[10]));
    sent_lines(&mut rig);
    send(&mut rig, &peer(RCV + 4, UNA + 11, FIN_ACK));
    assert_eq!((sent_lines(&mut rig), gauges(&rig)), (Vec::from([". 1011+0 5000".into()]), (1, 0)));
    send(&mut rig, &peer(RCV, UNA + 11, TcpFlags::ACK).with(b"more"));
    assert_eq!(sent_lines(&mut rig), ["R. 1011+0 5000"]);
}

#[test]
fn ends_are_told_in_sums() {
    let mut rig = rig();
    for port in 0..130_u16 {
        let mut next = teardown_of(&[10]);
        next.header.as_mut_slice()[36..38].copy_from_slice(&port.max(1).to_be_bytes());
        if port > 0 {
            hand_over(&mut rig, next);
        }
    }
    for port in 1..130 {
        if port == 64 {
            assert_eq!(reported_ends(&mut rig), []);
        }
        send(&mut rig, &PeerSegment { port, ..peer(RCV, UNA + 11, FIN_ACK) });
    }
    let full = TeardownDone { closed: 64, ..TeardownDone::default() };
    assert_eq!(reported_ends(&mut rig), [full, full]);
    assert_eq!(gauges(&rig), (0, 129));
    sent_lines(&mut rig);
    assert_eq!(reported_after_10_ms(&mut rig), [CLOSED]);
    assert_eq!(rig.counter("teardown_sums"), 3);
}

#[test]
fn reset_forgets_everything() {
    let mut rig = rig();
    hand_over(&mut rig, teardown_of(&[10]));
    send(&mut rig, &peer(RCV, UNA + 11, FIN_ACK));
    let mut other = teardown_of(&[10]);
    other.header.as_mut_slice()[37] = 0x41;
    hand_over(&mut rig, other);
    rig.device.reset();
    rig.collect();
    sent_lines(&mut rig);
    assert_eq!((gauges(&rig), rig.device.poll_timeout(rig.now)), ((0, 0), None));
    assert_eq!((advance_to(&mut rig, 100_000), reported_ends(&mut rig)), (Vec::new(), Vec::new()));
    send(&mut rig, &peer(RCV, UNA + 11, FIN_ACK));
    assert_eq!(delivered_frames(&mut rig), 1);
    // The device works again afterward.
    hand_over(&mut rig, teardown_of(&[10]));
    assert_eq!(sent_lines(&mut rig), ["FP. 1000+10 5000"]);
    assert_eq!(advance_to(&mut rig, 100_230), [(100_200, "FP. 1000+10 5000".into())]);
}
