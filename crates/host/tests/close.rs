//! Connection termination: RFC 9293 section 3.6, RFC 5961, RFC 6191, RFC 1337.

use base::{Duration, Instant};
use outboard_host::SocketError;
use testkit::{ScriptedTcpPeer, seg};
use wire::Endpoint;

/// RFC 9293 figure 12: the host closes first.
#[test]
fn an_active_close() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_shutdown();
    t.expect(seg!(ACK FIN seq 1 ack 1));
    assert_eq!(t.state(), "FIN-WAIT-1");
    t.send(seg!(ACK ack 2));
    assert_eq!(t.state(), "FIN-WAIT-2");
    t.send(seg!(ACK FIN seq 1 ack 2));
    t.expect(seg!(ACK seq 2 ack 2));
    assert_eq!(t.state(), "TIME-WAIT");
    assert!(t.host.readiness(t.socket()).peer_closed);
    t.app_close();
    assert_eq!(t.state(), "GONE");
}

/// RFC 9293 section 3.6, case 2: the peer closes first; the host continues to send, then closes.
#[test]
fn a_passive_close() {
    let mut t = ScriptedTcpPeer::server().established();
    t.send(seg!(ACK FIN seq 1 ack 1));
    t.expect(seg!(ACK seq 1 ack 2));
    assert_eq!(t.state(), "CLOSE-WAIT");
    assert!(t.host.readiness(t.socket()).peer_closed);
    t.app_write(b"bye");
    t.expect(seg!(ACK PSH seq 1 ack 2 data b"bye"));
    t.app_close();
    t.expect(seg!(ACK FIN seq 4 ack 2));
    assert_eq!(t.state(), "LAST-ACK");
    t.send(seg!(ACK ack 5));
    assert_eq!(t.state(), "GONE");
    t.at_ms(100_000);
    t.expect_nothing();
}

/// RFC 9293 figure 13: both close at once.
#[test]
fn a_simultaneous_close() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_shutdown();
    t.expect(seg!(ACK FIN seq 1 ack 1));
    t.send(seg!(ACK FIN seq 1 ack 1));
    t.expect(seg!(ACK seq 2 ack 2));
    assert_eq!(t.state(), "CLOSING");
    t.send(seg!(ACK ack 2));
    assert_eq!(t.state(), "TIME-WAIT");
}

/// The FIN shares a segment with the last data, in both directions.
#[test]
fn a_fin_with_data() {
    let mut t = ScriptedTcpPeer::server().established();
    t.send(seg!(ACK FIN seq 1 ack 1 data b"last"));
    t.expect(seg!(ACK ack 6));
    assert!(!t.host.readiness(t.socket()).peer_closed, "not before everything has been read");
    assert_eq!(t.app_read(), b"last");
    assert!(t.host.readiness(t.socket()).peer_closed);
    t.app_write_unpumped(b"mine");
    t.app_shutdown();
    t.expect(seg!(ACK PSH FIN seq 1 ack 6 data b"mine"));
    t.send(seg!(ACK ack 6));
    assert_eq!(t.error(), Some(SocketError::Closed));
}

/// RFC 9293 section 3.10.7.4: the peer's FIN and its acknowledgment of ours share a segment.
#[test]
fn a_fin_that_acknowledges_ours() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_shutdown();
    t.take("our FIN");
    t.send(seg!(ACK FIN seq 1 ack 2));
    t.expect(seg!(ACK seq 2 ack 2));
    assert_eq!(t.state(), "TIME-WAIT");
}

/// A FIN that arrives before the data it follows waits for that data, and is answered at once (RFC
/// 5681 section 4.2).
#[test]
fn a_fin_out_of_order() {
    let mut t = ScriptedTcpPeer::server().established();
    t.send(seg!(ACK FIN seq 5 ack 1));
    t.expect(seg!(ACK ack 1));
    assert_eq!(t.state(), "ESTABLISHED");
    t.send(seg!(ACK seq 1 ack 1 data b"data"));
    t.expect(seg!(ACK ack 6));
    assert_eq!(t.state(), "CLOSE-WAIT");
}

/// RFC 6298: a lost FIN is retransmitted.
#[test]
fn a_lost_fin_is_sent_again() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_write(b"x");
    t.take("data");
    t.at_ms(50);
    t.send(seg!(ACK));
    t.app_shutdown();
    t.expect(seg!(ACK FIN seq 2));
    t.at_ms(400);
    t.expect_at(300, seg!(ACK FIN seq 2 again));
    t.at_ms(2000);
    assert!(t.take_all().iter().all(|s| s.seq == Some(2) && s.flags.has(testkit::TcpFlags::FIN)));
    t.send(seg!(ACK ack 3));
    assert_eq!(t.state(), "FIN-WAIT-2");
}

/// RFC 9293 section 3.10.7.4: a repeated FIN is acknowledged again.
#[test]
fn a_repeated_fin_is_acknowledged_again() {
    let mut t = ScriptedTcpPeer::server().established();
    t.send(seg!(ACK FIN seq 1 ack 1));
    t.expect(seg!(ACK ack 2));
    t.send(seg!(ACK FIN seq 1 ack 1));
    t.expect(seg!(ACK ack 2));
}

fn in_time_wait() -> ScriptedTcpPeer {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_close();
    t.take("our FIN");
    t.send(seg!(ACK FIN seq 1 ack 2));
    t.take("an acknowledgment");
    assert_eq!(t.state(), "GONE", "no user holds it");
    t
}

/// RFC 9293 section 3.10.7.4: in TIME-WAIT a FIN is acknowledged again and restarts the time-out.
#[test]
fn time_wait_acknowledges_again() {
    let mut t = in_time_wait();
    t.at_ms(50_000);
    t.send(seg!(ACK FIN seq 1 ack 2));
    t.expect(seg!(ACK seq 2 ack 2));
    t.at_ms(100_000);
    t.send(seg!(ACK FIN seq 1 ack 2));
    t.expect(seg!(ACK seq 2 ack 2));
    t.at_ms(161_000);
    t.send(seg!(ACK FIN seq 1 ack 2));
    t.expect(seg!(RST seq 2));
}

/// After a simultaneous close both ends are in TIME-WAIT. If they answered bare acknowledgments,
/// they would answer each other forever.
#[test]
fn time_wait_does_not_answer_bare_acknowledgments() {
    let mut t = in_time_wait();
    t.send(seg!(ACK seq 2 ack 2));
    t.expect_nothing();
}

/// RFC 1337: a reset does not end TIME-WAIT.
#[test]
fn time_wait_ignores_resets() {
    let mut t = in_time_wait();
    t.send(seg!(RST seq 2));
    t.send(seg!(ACK FIN seq 1 ack 2));
    t.expect(seg!(ACK seq 2 ack 2));
}

/// RFC 6191: a SYN with a later timestamp takes over the tuple; its sequence numbers are beyond the
/// old ones.
#[test]
fn a_newer_syn_takes_over_time_wait() {
    let mut t = in_time_wait();
    t.at_ms(2000);
    t.new_incarnation(100_000);
    t.expect_counters(
        |t| t.send(seg!(SYN mss 1460 sack_ok tsval 7000 wscale 7)),
        &[("tcp_time_wait_reused", 1), ("tcp_syns_cached", 1)],
    );
    t.expect(seg!(SYN ACK seq 0 ack 1));
    t.send(seg!(ACK));
    assert!(t.accepted().is_some());
    assert_eq!(t.state(), "ESTABLISHED");
}

/// RFC 9293 section 3.10.7.4 and RFC 1122 section 4.2.2.13: data for a closed socket is answered
/// with a reset.
#[test]
fn data_after_close_is_reset() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_close();
    t.expect(seg!(ACK FIN seq 1 ack 1));
    t.send(seg!(ACK ack 2));
    t.expect_counters(
        |t| t.send(seg!(ACK ack 2 data b"late")),
        &[("tcp_estab_resets", 1), ("tcp_out_rsts", 1)],
    );
    t.expect(seg!(RST ACK seq 2));
    assert_eq!(t.state(), "GONE");
}

/// RFC 2525 section 2.17: a close with unread bytes sends a reset.
#[test]
fn closing_with_unread_bytes_resets() {
    let mut t = ScriptedTcpPeer::server().established();
    t.send_data(b"unread");
    t.take("an acknowledgment");
    t.app_close();
    t.expect(seg!(RST ACK seq 1 ack 7));
}

/// RFC 9293 section 3.6.1: a half-closed connection continues to receive.
#[test]
fn half_close_receives() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_shutdown();
    t.take("our FIN");
    t.send(seg!(ACK ack 2 data b"more"));
    t.expect(seg!(ACK seq 2 ack 5));
    assert_eq!(t.app_read(), b"more");
}

/// The time in FIN-WAIT-2 is bounded for a connection whose socket was closed.
#[test]
fn an_orphan_in_fin_wait_2_expires() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_close();
    t.take("our FIN");
    t.send(seg!(ACK ack 2));
    assert_eq!(t.state(), "FIN-WAIT-2");
    t.at_ms(61_000);
    assert_eq!(t.state(), "GONE");
}

/// RFC 5961 section 3.2: a reset takes effect only with the exact sequence number. One in the
/// window is challenged, and one outside of it ignored.
#[test]
fn resets_have_to_be_exact() {
    let mut t = ScriptedTcpPeer::server().established();
    t.expect_counters(|t| t.send(seg!(RST seq 2)), &[("tcp_challenge_acks", 1)]);
    t.expect(seg!(ACK seq 1 ack 1));
    t.expect_counters(|t| t.send(seg!(RST seq 2_000_000)), &[("tcp_out_of_window", 1)]);
    t.expect_nothing();
    t.expect_counters(|t| t.send(seg!(RST seq 1)), &[("tcp_estab_resets", 1)]);
    assert_eq!(t.error(), Some(SocketError::Reset));
    t.expect_nothing();
}

/// RFC 5961 section 4.2: a SYN on an established connection is challenged, whatever its sequence
/// number.
#[test]
fn a_syn_in_the_window_is_challenged() {
    let mut t = ScriptedTcpPeer::server().established();
    t.expect_counters(
        |t| t.send(seg!(SYN seq 5 mss 1460 tsval 6000)),
        &[("tcp_challenge_acks", 1)],
    );
    t.expect(seg!(ACK seq 1 ack 1));
    // Section 7: at most one challenge ACK in half a second.
    t.expect_counters(
        |t| t.send(seg!(SYN seq 6 mss 1460 tsval 6000)),
        &[("tcp_challenge_acks_limited", 1)],
    );
    t.expect_nothing();
    t.at_ms(600);
    t.expect_counters(
        |t| t.send(seg!(SYN seq 7 mss 1460 tsval 6000)),
        &[("tcp_challenge_acks", 1)],
    );
    t.expect(seg!(ACK seq 1 ack 1));
}

/// RFC 5961 section 5.2: acknowledgment numbers never sent or long outdated are challenged.
#[test]
fn acknowledgments_out_of_range_are_challenged() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_write(b"hello");
    t.take("data");
    t.expect_counters(|t| t.send(seg!(ACK ack 7 data b"evil")), &[("tcp_challenge_acks", 1)]);
    t.expect(seg!(ACK seq 6 ack 1));
    t.at_ms(500);
    t.take_all();
    t.expect_counters(
        |t| t.send(seg!(ACK seq 1 ack (1_u32.wrapping_sub(100_000)) data b"evil")),
        &[("tcp_challenge_acks", 1)],
    );
    t.take("a challenge");
    assert_eq!(t.app_read(), b"", "none of the payload counts");
}

/// RFC 7323 section 5 (PAWS): a segment with an old timestamp is dropped.
#[test]
fn an_old_timestamp_is_dropped() {
    let mut t = ScriptedTcpPeer::server().established();
    t.send_data(b"abc");
    t.expect(seg!(ACK ack 4 tsecr 5000));
    t.at_ms(1000);
    t.send_data(b"def");
    t.expect(seg!(ACK ack 7 tsecr 6000));
    t.expect_counters(
        |t| t.send(seg!(ACK seq 7 ack 1 tsval 5500 data b"old")),
        &[("tcp_paws_dropped", 1)],
    );
    t.expect(seg!(ACK ack 7 tsecr 6000));
    assert_eq!(t.app_read(), b"abcdef");
}

/// RFC 7323 section 5.5: after 24 days TS.Recent is no longer valid. The next timestamp replaces
/// it, even if it seems older.
#[test]
fn an_idle_connections_timestamp_expires() {
    const DAYS_24: u64 = 24 * 24 * 3600 * 1000;
    let old = 5000 - 1;
    let mut t = ScriptedTcpPeer::server().established();
    t.send_data(b"abc");
    t.expect(seg!(ACK ack 4 tsecr 5000));
    t.at_ms(DAYS_24 - 2000);
    t.expect_counters(
        |t| t.send(seg!(ACK seq 4 ack 1 tsval (old) data b"old")),
        &[("tcp_paws_dropped", 1)],
    );
    t.expect(seg!(ACK ack 4 tsecr 5000));
    t.at_ms(DAYS_24 + 2000);
    t.expect_counters(|t| t.send(seg!(ACK seq 4 ack 1 tsval (old) data b"def")), &[]);
    t.after_ms(100);
    t.expect(seg!(ACK ack 7 tsecr (old)));
    let older = old - 1;
    t.expect_counters(|t| t.send(seg!(ACK seq 7 ack 1 tsval (older))), &[("tcp_paws_dropped", 1)]);
    assert_eq!(t.app_read(), b"abcdef");
}

/// The application aborts the connection.
#[test]
fn an_abort() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_write(b"hello");
    t.take("data");
    t.expect_counters(|t| t.app_abort(), &[("tcp_estab_resets", 1), ("tcp_out_rsts", 1)]);
    t.expect(seg!(RST ACK seq 6 ack 1));
    assert_eq!(t.state(), "GONE");
}

/// RFC 6056 section 3.3.3: ports to one remote endpoint are used in turn, because the peer may have
/// a recent one in TIME-WAIT. The ports used with one peer do not reveal those used with another.
#[test]
fn ephemeral_ports_are_used_in_turn() {
    let mut t = ScriptedTcpPeer::server();
    let (span, now) = (65_536 - 49_152, Instant::ZERO + Duration::from_secs(1000));
    let mut port = |last: u8| {
        let remote = Endpoint { addr: [192, 0, 2, last].into(), port: 80 };
        let socket = t.host.connect(now, remote).unwrap();
        let port = t.host.info(socket).unwrap().local.port;
        t.host.abort(now, socket);
        i32::from(port) - 49_152
    };
    let first = port(7);
    for n in 1..100 {
        assert_eq!(port(7), (first + n) % span);
    }
    let other = port(8);
    assert!((100..110).all(|n| other != (first + n) % span), "{other}");
}

/// RFC 6191 for an active open, as Linux's `tcp_tw_reuse`: if every port is taken, one that has
/// been in TIME-WAIT for a second is used again.
#[test]
fn our_own_connection_takes_over_a_port_in_time_wait() {
    let mut t = ScriptedTcpPeer::client();
    t.take("SYN");
    t.send(seg!(SYN ACK seq 0 ack 1 mss 1460 sack_ok tsval 5000 wscale 7));
    t.take("ACK");
    let used = t.host.local(t.socket());
    t.app_close();
    t.take("FIN");
    t.send(seg!(ACK FIN seq 1 ack 2));
    t.take("ACK");
    let remote = Endpoint { addr: testkit::PEER, port: 80 };
    let at = |ms| Instant::ZERO + Duration::from_secs(1000) + Duration::from_millis(ms);
    let mut others = 0;
    while t.host.connect(at(999), remote).is_ok() {
        others += 1;
    }
    assert_eq!(others, 16_383, "all ports but one");
    let last = t.host.connect(at(1001), remote).expect("the port is old enough");
    assert_eq!(t.host.local(last), used);
    assert_eq!(t.host.connect(at(1001), remote), Err(outboard_host::ConnectError::NoPort));
    assert_eq!(t.count("tcp_time_wait_reused"), 1);
}
