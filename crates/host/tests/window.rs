//! Flow control: RFC 9293 section 3.8.6.

use testkit::{ScriptedTcpPeer, seg};

/// RFC 9293 section 3.8.6.1: a closed window is probed with exponential back-off, as long as the
/// peer answers.
#[test]
fn a_closed_window_is_probed() {
    let mut t = ScriptedTcpPeer::server().established();
    t.send(seg!(ACK win 0));
    t.app_write_zeros(5000);
    t.expect_nothing();
    t.expect_counters(
        |t| {
            // No round-trip sample yet: the time-out is one second (RFC 6298 section 2.1).
            for at in [1000, 3000, 7000, 15_000] {
                t.at_ms(at);
                t.expect_at(at, seg!(ACK seq 0 len 0));
                t.send(seg!(ACK ack 1 win 0));
            }
        },
        &[("tcp_window_probes", 4)],
    );
    t.expect_nothing();
    t.send(seg!(ACK ack 1));
    t.expect(seg!(ACK PSH seq 1 len 5000));
}

/// A closed window opens again: from then on the retransmission timer runs instead of the probe's.
#[test]
fn a_reopened_window_restarts_retransmission() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_write_zeros(1448);
    t.take("data");
    t.at_ms(10);
    t.send(seg!(ACK win 0));
    t.app_write_zeros(1448);
    t.at_ms(100);
    t.expect_nothing();
    t.send(seg!(ACK));
    t.expect(seg!(ACK seq 1449 len 1448));
    t.expect_counters(
        |t| t.at_ms(400),
        &[("tcp_tail_probes", 1), ("tcp_retrans", 1), ("tcp_retrans_bytes", 1448)],
    );
    t.expect(seg!(ACK seq 1449 len 1448 again));
}

/// RFC 9293 section 3.8.6.2.1: a window of less than a segment, and of less than half of the
/// largest window, is not used before the override time-out; then it is filled.
#[test]
fn a_silly_window_is_filled_after_a_time_out() {
    let mut t = ScriptedTcpPeer::server().established();
    t.send(seg!(ACK win 4));
    t.app_write_zeros(5000);
    t.expect_nothing();
    t.at_ms(1000);
    t.expect_at(1000, seg!(ACK seq 1 len 512));
    t.send(seg!(ACK win 0));
    t.expect_nothing();
}

/// RFC 9293 section 3.8.6.2.1 (3): half of the largest window ever offered is used at once.
#[test]
fn half_of_a_small_window_is_used_at_once() {
    let mut t = ScriptedTcpPeer::server();
    t.send(seg!(SYN mss 1460 win 1000));
    t.take("SYN-ACK");
    t.send(seg!(ACK win 1000));
    t.accepted();
    t.app_write_zeros(5000);
    t.expect(seg!(ACK seq 1 len 1000));
    t.send(seg!(ACK win 600));
    t.expect(seg!(ACK seq 1001 len 600));
    t.send(seg!(ACK win 400));
    t.expect_nothing();
}

/// RFC 9293 section 3.8.3, RFC 5482: a connection whose peer answers no probe times out.
#[test]
fn a_silent_peer_with_a_closed_window_is_given_up() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_option(outboard_host::SocketOption::UserTimeout(base::Duration::from_secs(20)));
    t.send(seg!(ACK win 0));
    t.app_write_zeros(100);
    t.at_ms(60_000);
    assert_eq!(t.error(), Some(outboard_host::SocketError::TimedOut));
}

/// RFC 9293 section 3.8.6.2.2: the window that the host offers opens by whole segments; it is
/// announced when the application has read.
#[test]
fn our_window_closes_and_opens() {
    let mut t = ScriptedTcpPeer::server_with(|c| c.tcp.receive_bytes_max = 10_000).established();
    t.send_data(&[7; 1448]);
    t.expect(seg!(ACK ack 1449 win 8552));
    for _ in 0..5 {
        t.send_data(&[7; 1448]);
        t.take("an acknowledgment");
    }
    t.send_data(&[7; 1312]);
    t.expect(seg!(ACK ack 10001 win 0));
    // A probe of the closed window is answered; its byte is not accepted.
    t.send(seg!(ACK seq 10001 ack 1 len 1));
    t.expect(seg!(ACK ack 10001 win 0));
    let mut few = [0; 1000];
    t.host.read(t.socket(), &mut few);
    t.pump();
    t.expect_nothing();
    assert_eq!(t.app_read().len(), 9000);
    t.expect(seg!(ACK ack 10001 win 10000));
}

/// A FIN directly after the last byte of the window is accepted. Later segments are outside the
/// window.
#[test]
fn a_fin_behind_a_full_window_is_taken_once() {
    let mut t = ScriptedTcpPeer::server_with(|c| c.tcp.receive_bytes_max = 1000).established();
    t.send(seg!(ACK FIN ack 1 len 1000));
    t.expect(seg!(ACK ack 1002 win 0));
    t.expect_counters(|t| t.send(seg!(ACK FIN seq 1001 ack 1)), &[("tcp_out_of_window", 1)]);
    t.expect(seg!(ACK ack 1002 win 0));
    t.expect_counters(|t| t.send(seg!(ACK seq 1002 ack 1 len 1)), &[("tcp_out_of_window", 1)]);
    t.expect_counters(|t| t.send(seg!(ACK seq 1002 ack 1)), &[]);
    assert_eq!((t.app_read().len(), t.state()), (1000, "CLOSE-WAIT"));
}

/// RFC 9293 section 3.10.7.4: the window of an older segment is ignored.
#[test]
fn an_older_segment_does_not_change_the_window() {
    let mut t = ScriptedTcpPeer::server().established();
    t.send_data(b"abc");
    t.take("an acknowledgment");
    t.send(seg!(ACK seq 1 ack 1 win 0));
    t.take_all();
    t.app_write(b"hello");
    t.expect(seg!(ACK PSH data b"hello"));
}
