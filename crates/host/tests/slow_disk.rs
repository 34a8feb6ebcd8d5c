//! While a transmit waits for a disk, the connection's acknowledgments and resets do not wait with
//! it.

use base::Duration;
use outboard_host::SocketOption;
use testkit::{ScriptedTcpPeer, seg};

/// Returns a connection with a transmit of a file's bytes that waits at the device. It carries the
/// acknowledgment of a request.
fn waiting_for_disk() -> ScriptedTcpPeer {
    let mut t = ScriptedTcpPeer::server_with(|c| c.tcp.pacing = false).established();
    t.app_file_unpumped(0); // opens it
    t.pump();
    t.app_file_unpumped(1000);
    t.send_data(b"GET");
    t.expect(seg!(ACK seq 1 ack 4 file (0, 1000) echo));
    t.expect_nothing();
    t
}

/// RFC 9293 section 3.8.6.3: an acknowledgment is delayed by less than half a second, even if the
/// disk takes longer. It has the sequence number that the peer expects, and the timestamp of the
/// transmit that it overtakes, so that PAWS does not drop the latter (RFC 7323 section 5.3).
#[test]
fn an_acknowledgment_does_not_wait_for_a_disk() {
    let mut t = waiting_for_disk();
    t.at_ms(1000);
    t.expect_at(40, seg!(ACK seq 1 ack 4 len 0 tsval 0));
    t.expect_nothing();
}

/// If the disk is fast, the response's own acknowledgment suffices.
#[test]
fn a_fast_response_carries_the_acknowledgment() {
    let mut t = waiting_for_disk();
    t.at_ms(30);
    t.echo_last_transmit(29);
    t.expect_counters(|t| t.at_ms(100), &[]);
    t.expect_nothing();
}

/// A reset does not wait, and is not dropped with the waiting transmit. Its sequence number is that
/// of the first byte that has not left.
#[test]
fn a_reset_does_not_wait_for_a_disk() {
    let mut t = waiting_for_disk();
    t.app_abort();
    t.expect(seg!(RST ACK seq 1 ack 4));
    assert_eq!(t.take_acked_file_bytes(), 0, "the device holds bytes from when they leave");
    t.echo_last_transmit(5);
    assert_eq!(t.take_acked_file_bytes(), 1000);
}

/// RFC 9293 section 3.8.4: keep-alives are sent only if nothing is outstanding.
#[test]
fn no_keep_alive_while_data_is_outstanding() {
    let mut t = ScriptedTcpPeer::server_with(|c| c.tcp.pacing = false).established();
    t.app_option(SocketOption::KeepAlive(Some(Duration::from_secs(5))));
    t.app_write(b"x");
    t.take("a byte");
    t.at_ms(60_000);
    assert_eq!(t.host.counters().tcp_keepalive_probes, 0);
    assert!(t.host.counters().tcp_timeouts > 0);
}
