//! Lingering close: data that the peer sends after the close is discarded, and does not cut off the
//! response (RFC 9112 section 9.6). By the host, and handed over to the device.

use abi::teardown::{ClosingState, LateData, TeardownRefused};
use abi::{Event, Refusal};
use outboard_host::SocketOption;
use testkit::{ScriptedTcpPeer, seg};

/// Returns a server after a response and a lingering close; its FIN has left.
fn closed(bytes_max: u32) -> ScriptedTcpPeer {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_write_unpumped(b"response");
    t.app_close_lingering(bytes_max);
    t.expect(seg!(ACK PSH FIN seq 1 ack 1 data b"response"));
    t
}

/// Late data before and after the acknowledgment of the response is acknowledged, and so is the
/// FIN.
#[test]
fn late_data_does_not_cut_the_response_off() {
    let mut t = closed(100);
    t.expect_counters(|t| t.send(seg!(ACK ack 1 data b"late")), &[("tcp_late_data_bytes", 4)]);
    t.expect(seg!(ACK seq 10 ack 5 len 0));
    t.send(seg!(ACK seq 5 ack 10));
    assert_eq!(t.state(), "FIN-WAIT-2");
    t.expect_counters(
        |t| t.send(seg!(ACK seq 5 ack 10 data b"more")),
        &[("tcp_late_data_bytes", 4)],
    );
    t.expect(seg!(ACK seq 10 ack 9 len 0));
    t.send(seg!(ACK FIN seq 9 ack 10 data b"end"));
    t.expect(seg!(ACK seq 10 ack 13 len 0));
    assert_eq!(t.state(), "GONE", "its tuple is in TIME-WAIT");
}

/// A lost response is retransmitted although late data arrives meanwhile.
#[test]
fn a_lost_response_is_sent_again() {
    let mut t = closed(100);
    t.send(seg!(ACK ack 1 data b"late"));
    t.take("an acknowledgment");
    t.at_ms(3000);
    t.expect(seg!(ACK PSH FIN seq 1 ack 5 data b"response"));
}

/// Out-of-order late data waits for the bytes before it, and the window does not close.
#[test]
fn late_data_out_of_order() {
    let mut t = closed(100);
    t.send(seg!(ACK seq 5 ack 10 data b"second"));
    t.expect(seg!(ACK ack 1 sack (5, 11)));
    t.send(seg!(ACK seq 1 ack 10 data b"frst"));
    let first = t.take("an acknowledgment");
    assert_eq!(first.ack, Some(11));
    for round in 0..8 {
        t.send(seg!(ACK seq (11 + round) ack 10 data b"x"));
        let next = t.take("an acknowledgment");
        assert_eq!((next.ack, next.win), (Some(12 + round), first.win));
    }
    assert_eq!(t.host.counters().tcp_late_data_bytes, 18);
}

/// A peer that sends more bytes than the bound is reset; bytes up to the bound are acknowledged.
#[test]
fn late_data_is_bounded() {
    let mut t = closed(8);
    t.send(seg!(ACK ack 10 data b"12345678"));
    t.expect(seg!(ACK seq 10 ack 9));
    t.expect_counters(
        |t| t.send(seg!(ACK seq 9 ack 10 data b"9")),
        &[("tcp_late_data_resets", 1), ("tcp_estab_resets", 1), ("tcp_out_rsts", 1)],
    );
    t.expect(seg!(RST ACK seq 10));
    assert_eq!(t.state(), "GONE");
}

/// The time in FIN-WAIT-2 is bounded, too, even if the peer continues to send.
#[test]
fn fin_wait_2_is_bounded_in_time() {
    let mut t = closed(1000);
    t.send(seg!(ACK ack 10));
    for second in 1..=59 {
        t.at_ms(1000 * second);
        let seq = u32::try_from(second).unwrap();
        t.send(seg!(ACK seq (seq) ack 10 data b"x"));
    }
    t.at_ms(61_000);
    assert_eq!(t.state(), "GONE");
    t.take_all();
    t.send(seg!(ACK seq 60 ack 10 data b"x"));
    t.expect(seg!(RST));
}

/// Received bytes that were not read are discarded as well.
#[test]
fn unread_bytes_are_discarded() {
    let mut t = ScriptedTcpPeer::server().established();
    t.send_data(b"unread");
    t.take("an acknowledgment");
    t.app_write_unpumped(b"response");
    t.app_close_lingering(100);
    t.expect(seg!(ACK PSH FIN seq 1 ack 7 data b"response"));
}

/// The hand-over has the number of bytes that the device may discard: the bound less those already
/// discarded.
#[test]
fn the_bound_is_handed_over() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_option(SocketOption::TeardownOffload(true));
    t.app_write_unpumped(&[7; 20_000]);
    t.app_close_lingering(100);
    assert!(t.take_teardown().is_none(), "more than a congestion window");
    t.expect(seg!(ACK seq 1 ack 1 len 14480));
    t.send(seg!(ACK ack 1 data b"late"));
    t.expect(seg!(ACK ack 5));
    t.send(seg!(ACK seq 5 ack 14481));
    let teardown = t.take_teardown().expect("what is left fits");
    assert_eq!(teardown.late_data, LateData::Discard { bytes_max: 96 });
    assert_eq!(t.peer_stream_position(teardown.rcv_nxt), 5);
    assert_eq!(t.host.counters().handed_over, 1);
    // The device refuses the connection: the host continues to discard.
    let why = Refusal::DoesNotFit;
    t.handle_device_event(Event::TeardownRefused(TeardownRefused { teardown, reason: why }));
    t.take_all();
    t.send(seg!(ACK seq 5 ack 14481 data b"more"));
    t.expect(seg!(ACK ack 9));
    assert_eq!(t.host.counters().tcp_late_data_bytes, 8);
}

/// After the acknowledgment of everything outstanding, only FIN-WAIT-2 is left to hand over. The
/// host takes it back if the device refuses it.
#[test]
fn fin_wait_2_is_handed_over() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_option(SocketOption::TeardownOffload(true));
    t.app_write_unpumped(&[7; 14_480]);
    let socket = t.socket();
    t.host.shutdown(t.now(), socket);
    t.pump();
    t.expect(seg!(ACK PSH FIN seq 1 ack 1 len 14480));
    t.send(seg!(ACK ack 14482));
    assert_eq!(t.state(), "FIN-WAIT-2");
    t.app_close_lingering(100);
    let teardown = t.take_teardown().expect("FIN-WAIT-2");
    assert_eq!(teardown.state, ClosingState::FinWait2);
    assert_eq!(
        (t.host_stream_position(teardown.una), t.host_stream_position(teardown.nxt)),
        (14_482, 14_482)
    );
    assert!(teardown.parts.is_empty());
    let why = Refusal::Disabled;
    t.handle_device_event(Event::TeardownRefused(TeardownRefused { teardown, reason: why }));
    t.send(seg!(ACK seq 1 ack 14482 data b"late"));
    t.expect(seg!(ACK seq 14482 ack 5 len 0));
    t.send(seg!(FIN ACK seq 5 ack 14482));
    t.expect(seg!(ACK seq 14482 ack 6 len 0));
    assert_eq!(t.state(), "GONE");
}

/// A plain close still answers data with a reset (RFC 1122 section 4.2.2.13), as the hand-over
/// requires of the device.
#[test]
fn a_plain_close_is_handed_over_as_such() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_option(SocketOption::TeardownOffload(true));
    t.app_write_unpumped(b"bye");
    t.app_close();
    assert_eq!(t.take_teardown().expect("it fits").late_data, LateData::Reset);
}
