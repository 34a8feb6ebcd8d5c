//! Acknowledgments of the original of a segment that was retransmitted: they are neither round-trip
//! samples nor evidence that the retransmission arrived.

use base::Duration;
use testkit::{ScriptedTcpPeer, seg};

/// RFC 7323 section 4.1 and Karn's algorithm: without SACK the echo of an old timestamp is no
/// sample.
#[test]
fn an_old_echo_is_no_sample() {
    let mut t = ScriptedTcpPeer::server_with(|c| c.tcp.sack = false).established();
    t.app_write(b"x");
    t.take("data");
    t.at_ms(1000);
    t.expect(seg!(ACK seq 1 len 1 again));
    t.at_ms(1400);
    t.send(seg!(ACK tsecr 0));
    assert_eq!(t.info().srtt, Duration::ZERO);
}

/// RFC 8985 section 6.2, step 2: RACK does not count the retransmission as delivered, so that
/// segments sent before it are not marked lost.
#[test]
fn an_old_echo_does_not_move_rack() {
    let mut t = ScriptedTcpPeer::server_with(|c| {
        c.tcp.pacing = false;
        c.tcp.initial_window = 10;
    })
    .established();
    t.app_write(b"x");
    t.take("a byte");
    t.at_ms(100);
    t.send(seg!(ACK));
    let at = |n: u32| 2 + n * 1448;
    t.app_write_zeros(14480);
    t.take("a window");
    t.at_ms(200);
    t.send(seg!(ACK ack 2 sack (at(1), at(4)) tsecr 100));
    t.expect(seg!(ACK seq 2 len 1448 again));
    t.at_ms(250);
    t.send(seg!(ACK ack (at(4)) tsecr 100));
    t.at_ms(251);
    t.send(seg!(ACK ack (at(5)) tsecr 100));
    t.at_ms(300);
    let resent = t.take_all().iter().filter(|seg| seg.again == Some(true)).count();
    assert_eq!((resent, t.host.counters().tcp_undos), (0, 1));
}
