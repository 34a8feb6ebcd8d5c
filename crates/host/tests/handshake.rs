//! Connection establishment: RFC 9293 section 3.5, RFC 7323 section 2, RFC 2018 section 2, RFC
//! 4987.

use std::collections::BTreeSet;
use std::sync::Arc;

use abi::Op;
use abi::steering::{FlowOwners, FlowSteering, OwnQueue, SteeringReason};
use base::{Duration, Instant};
use outboard_host::SocketError;
use testkit::{ScriptedTcpPeer, seg};
use wire::{Endpoint, Tuple};

/// RFC 9293 section 3.7.1, RFC 7323 sections 2.2 and 3.2, RFC 2018 section 2: every option in the
/// SYN is accepted.
#[test]
fn every_option_is_negotiated() {
    let mut t = ScriptedTcpPeer::server();
    t.send(seg!(SYN seq 0 win 65535 mss 1460 sack_ok tsval 5000 wscale 7));
    t.expect(seg!(SYN ACK seq 0 ack 1 win 65535 mss 1460 sack_ok wscale 5 tsecr 5000));
    t.expect_counters(|t| t.send(seg!(ACK seq 1 ack 1)), &[("tcp_passive_opens", 1)]);
    assert!(t.accepted().is_some());
    assert_eq!((t.state(), t.info().mss), ("ESTABLISHED", 1448));
    t.expect_nothing();
}

/// RFC 9293 section 3.7.1: without an MSS option the MSS is 536 bytes. Other options that the SYN
/// does not have are not used.
#[test]
fn a_bare_syn_gets_a_bare_answer() {
    let mut t = ScriptedTcpPeer::server();
    t.send(seg!(SYN seq 0 win 1000));
    t.expect(seg!(SYN ACK seq 0 ack 1 win 65535 mss 1460 no_ts));
    t.send(seg!(ACK win 1000));
    assert!(t.accepted().is_some());
    assert_eq!(t.info().mss, 536);
    t.app_write_zeros(600);
    t.expect(seg!(ACK PSH seq 1 len 600 run 536 no_ts no_sack));
}

/// RFC 7323 section 2.2: the window of a SYN is never scaled; later windows are.
#[test]
fn windows_are_scaled_after_the_handshake() {
    let mut t = ScriptedTcpPeer::server();
    t.send(seg!(SYN win 100 mss 1460 sack_ok tsval 5000 wscale 7));
    t.take("SYN-ACK");
    t.send(seg!(ACK win 2));
    t.accepted();
    t.app_write_zeros(1000);
    t.expect(seg!(ACK seq 1 len 256));
    t.expect_nothing();
}

/// RFC 6298 section 2.1: the SYN-ACK is retransmitted with time-outs of 1, 2, 4, .. seconds; then
/// the half-open connection is dropped.
#[test]
fn a_syn_ack_is_retransmitted_and_expires() {
    let mut t = ScriptedTcpPeer::server();
    t.send(seg!(SYN mss 1460 sack_ok tsval 5000 wscale 7));
    t.expect_at(0, seg!(SYN ACK));
    t.expect_counters(
        |t| {
            t.at_ms(100_000);
            for at in [1000, 3000, 7000, 15_000, 31_000] {
                t.expect_at(at, seg!(SYN ACK seq 0 ack 1));
            }
            t.expect_nothing();
        },
        &[("tcp_syn_acks_resent", 5), ("tcp_syns_expired", 1)],
    );
    t.send(seg!(ACK seq 1 ack 1));
    t.expect(seg!(RST seq 1));
}

/// RFC 9293 section 3.10.7.4: a repeated SYN is answered again, with the same sequence number.
#[test]
fn a_repeated_syn_is_answered_again() {
    let mut t = ScriptedTcpPeer::server();
    t.send(seg!(SYN mss 1460 sack_ok tsval 5000 wscale 7));
    t.expect(seg!(SYN ACK seq 0 ack 1));
    t.at_ms(500);
    t.expect_counters(
        |t| t.send(seg!(SYN seq 0 mss 1460 sack_ok tsval 5500 wscale 7)),
        &[("tcp_syn_acks_resent", 1)],
    );
    t.expect(seg!(SYN ACK seq 0 ack 1));
}

/// RFC 5961 section 3.2: only a reset with the exact sequence number ends a half-open connection.
#[test]
fn a_reset_of_a_half_open_connection() {
    let mut t = ScriptedTcpPeer::server();
    t.send(seg!(SYN mss 1460));
    t.take("SYN-ACK");
    t.send(seg!(RST seq 5));
    t.send(seg!(RST seq 1));
    t.expect_counters(
        |t| t.send(seg!(ACK seq 1 ack 1)),
        &[("tcp_no_connection", 1), ("tcp_out_rsts", 1)],
    );
    t.expect(seg!(RST seq 1));
}

/// RFC 9293 section 3.10.7.4: an acknowledgment of data never sent is answered with a reset, and
/// the half-open connection stays.
#[test]
fn a_wrong_acknowledgment_of_a_half_open_connection() {
    let mut t = ScriptedTcpPeer::server();
    t.send(seg!(SYN mss 1460));
    t.take("SYN-ACK");
    t.send(seg!(ACK seq 1 ack 77));
    t.expect(seg!(RST seq 77));
    t.send(seg!(ACK seq 1 ack 1));
    assert!(t.accepted().is_some());
}

/// RFC 9293 section 3.10.7.1: a SYN for a port without a listener is answered with a reset.
#[test]
fn a_closed_port_resets() {
    let mut t = ScriptedTcpPeer::new(|_| {}, (testkit::HOST, testkit::PEER));
    t.expect_counters(
        |t| t.send(seg!(SYN seq 0)),
        &[("tcp_no_connection", 1), ("tcp_out_rsts", 1)],
    );
    t.expect(seg!(RST ACK seq 0 ack 1));
    t.send(seg!(ACK seq 9 ack 1234));
    t.take("a reset");
    t.send(seg!(RST seq 9));
    t.expect_nothing();
}

/// RFC 9293 section 3.10.7.4: the last acknowledgment of the handshake may carry data.
#[test]
fn data_with_the_last_acknowledgment() {
    let mut t = ScriptedTcpPeer::server();
    t.send(seg!(SYN mss 1460 sack_ok tsval 5000 wscale 7));
    t.take("SYN-ACK");
    t.send(seg!(ACK PSH seq 1 ack 1 data b"GET /"));
    t.accepted();
    assert_eq!(t.app_read(), b"GET /");
    t.expect(seg!(ACK seq 1 ack 6));
}

/// RFC 9293 figure 6: an active open.
#[test]
fn an_active_open() {
    let mut t = ScriptedTcpPeer::client();
    t.expect(seg!(SYN ECE CWR seq 0 win 65535 mss 1460 sack_ok wscale 5 tsecr 0));
    t.at_ms(20);
    t.send(seg!(SYN ACK seq 0 ack 1 win 60000 mss 1400 sack_ok tsval 5000 wscale 3));
    t.expect(seg!(ACK seq 1 ack 1 tsecr 5000));
    assert_eq!((t.state(), t.info().mss), ("ESTABLISHED", 1388));
    assert_eq!(t.info().srtt, Duration::from_millis(20), "the handshake is the first sample");
    assert_eq!(t.info().cwnd, 10 * 1388, "RFC 6928");
}

/// RFC 9293 section 3.10.7.3: options that the peer does not accept are not used.
#[test]
fn an_active_open_to_a_plain_peer() {
    let mut t = ScriptedTcpPeer::client();
    t.take("SYN");
    t.send(seg!(SYN ACK seq 0 ack 1 win 500));
    t.expect(seg!(ACK seq 1 ack 1 no_ts));
    assert_eq!(t.info().mss, 536);
    t.app_write_zeros(1000);
    t.expect(seg!(ACK seq 1 len 500 no_ts ecn 0));
}

/// RFC 6298 section 5: the SYN is retransmitted six times with back-off; then the connection times
/// out.
#[test]
fn a_syn_without_answer_times_out() {
    let mut t = ScriptedTcpPeer::client();
    t.expect_at(0, seg!(SYN ECE CWR seq 0));
    t.expect_counters(
        |t| t.at_ms(200_000),
        &[("tcp_timeouts", 6), ("tcp_timed_out", 1), ("tcp_attempt_fails", 1)],
    );
    for at in [1000, 3000, 7000, 15_000, 31_000, 63_000] {
        t.expect_at(at, seg!(SYN ECE CWR seq 0 mss 1460));
    }
    t.expect_nothing();
    assert_eq!(t.error(), Some(SocketError::TimedOut));
}

/// RFC 9293 section 3.10.7.3: a reset refuses the connection only if it acknowledges our SYN.
#[test]
fn a_refused_connection() {
    let mut t = ScriptedTcpPeer::client();
    t.take("SYN");
    t.send(seg!(RST seq 0));
    assert_eq!(t.state(), "SYN-SENT");
    t.send(seg!(RST ACK seq 0 ack 9));
    assert_eq!(t.state(), "SYN-SENT");
    t.expect_counters(|t| t.send(seg!(RST ACK seq 0 ack 1)), &[("tcp_attempt_fails", 1)]);
    assert_eq!(t.error(), Some(SocketError::Refused));
    t.expect_nothing();
}

/// RFC 9293 section 3.10.7.3: an acknowledgment of data never sent is answered with a reset.
#[test]
fn an_old_syn_ack_is_reset() {
    let mut t = ScriptedTcpPeer::client();
    t.take("SYN");
    t.send(seg!(SYN ACK seq 0 ack 500));
    t.expect(seg!(RST seq 500));
    assert_eq!(t.state(), "SYN-SENT");
}

/// RFC 9293 figure 7: both ends send their SYN first.
#[test]
fn a_simultaneous_open() {
    let mut t = ScriptedTcpPeer::client();
    t.expect(seg!(SYN ECE CWR seq 0));
    t.send(seg!(SYN seq 0 win 60000 mss 1460 sack_ok tsval 5000 wscale 7));
    t.expect(seg!(SYN ACK seq 0 ack 1));
    assert_eq!(t.state(), "SYN-RECEIVED");
    t.send(seg!(SYN ACK seq 0 ack 1 tsval 5001));
    t.expect(seg!(ACK seq 1 ack 1));
    t.send(seg!(ACK seq 1 ack 1));
    assert_eq!(t.state(), "ESTABLISHED");
    t.app_write(b"hello");
    t.expect(seg!(ACK seq 1 ack 1 data b"hello"));
}

/// RFC 9293 section 3.10.4: the application closes the connection before it is established.
#[test]
fn closing_before_opening() {
    let mut t = ScriptedTcpPeer::client();
    t.take("SYN");
    t.app_shutdown();
    assert_eq!(t.error(), Some(SocketError::Closed));
    t.send(seg!(SYN ACK seq 0 ack 1 mss 1460));
    t.expect(seg!(RST seq 1));
}

/// Returns a server whose SYN cache has one entry, which is in use; the peer has moved to another
/// port.
fn cache_full() -> ScriptedTcpPeer {
    let mut t = ScriptedTcpPeer::server_listening(|_| {}, 1);
    t.send(seg!(SYN mss 1460));
    t.take("a SYN-ACK from the cache");
    t.use_peer_port(41_000);
    t
}

/// RFC 4987 section 3.6: if the SYN cache is full, a SYN cookie holds the state, with the options
/// in the timestamp.
#[test]
fn cookies_when_the_cache_is_full() {
    let mut t = cache_full();
    t.expect_counters(
        |t| t.send(seg!(SYN mss 1460 sack_ok tsval 5000 wscale 9)),
        &[("tcp_syn_cookies_sent", 1)],
    );
    t.expect(seg!(SYN ACK seq 0 ack 1 mss 1460 sack_ok wscale 5));
    t.at_ms(50);
    t.expect_counters(
        |t| t.send(seg!(ACK seq 1 ack 1 win 2)),
        &[("tcp_syn_cookies_accepted", 1), ("tcp_passive_opens", 1)],
    );
    t.accepted();
    assert_eq!((t.state(), t.info().mss), ("ESTABLISHED", 1448));
    t.app_write_zeros(1448);
    t.expect(seg!(ACK seq 1 len 1024));
}

/// Without timestamps a cookie holds only the segment size.
#[test]
fn a_cookie_without_timestamps() {
    let mut t = cache_full();
    t.send(seg!(SYN mss 1300 sack_ok wscale 9));
    let syn_ack = t.take("a SYN-ACK by cookie");
    assert!(!syn_ack.sack_ok && syn_ack.wscale.is_none() && syn_ack.tsval.is_none());
    t.send(seg!(ACK PSH seq 1 ack 1 data b"hello"));
    t.accepted();
    assert_eq!(t.info().mss, 1300);
    assert_eq!(t.app_read(), b"hello");
}

/// RFC 9293 section 3.7.1: segments must not be larger than the peer accepts, and the least size
/// that a cookie can hold is 536. The SYN is dropped; when it is retransmitted, the cache may have
/// room.
#[test]
fn a_cookie_is_not_sent_to_a_peer_of_small_segments() {
    let mut t = cache_full();
    t.expect_counters(|t| t.send(seg!(SYN mss 535 tsval 5000)), &[("tcp_listen_drops", 1)]);
    t.expect_nothing();
    t.expect_counters(|t| t.send(seg!(SYN mss 536 tsval 5000)), &[("tcp_syn_cookies_sent", 1)]);
    t.take("a SYN-ACK by cookie");
}

/// RFC 7323 section 3.2: a cookie that was sent with timestamps is valid only with timestamps, so
/// that an attacker has to guess both.
#[test]
fn a_cookie_with_timestamps_needs_timestamps() {
    const ACCEPTED: &[(&str, u64)] = &[("tcp_syn_cookies_accepted", 1), ("tcp_passive_opens", 1)];
    const REFUSED: &[(&str, u64)] =
        &[("tcp_syn_cookies_failed", 1), ("tcp_no_connection", 1), ("tcp_out_rsts", 1)];
    for (stamped, counters) in [(true, ACCEPTED), (false, REFUSED)] {
        let mut t = cache_full();
        t.send(seg!(SYN mss 1460 tsval 5000));
        t.take("a SYN-ACK by cookie");
        let end = if stamped { seg!(ACK seq 1 ack 1) } else { seg!(ACK seq 1 ack 1 no_ts) };
        t.expect_counters(|t| t.send(end), counters);
    }
}

/// RFC 7323 section 5.4: as on the device, a cookie is invalid if the host cannot have sent the
/// echoed timestamp within the cookie's lifetime.
#[test]
fn a_cookie_with_a_wrong_timestamp_is_refused() {
    for (ahead, taken) in
        [(0, true), (1000, false), (1 << 20, false), (0_u32.wrapping_sub(200_000), false)]
    {
        let mut t = cache_full();
        t.send(seg!(SYN mss 1460 tsval 5000));
        let stamp = t.take("a SYN-ACK by cookie").tsval.expect("a timestamp");
        t.send(seg!(ACK seq 1 ack 1 tsecr (stamp.wrapping_add(ahead))));
        assert_eq!(t.accepted().is_some(), taken, "{ahead}");
    }
}

/// An acknowledgment without a valid cookie creates no connection.
#[test]
fn a_forged_cookie_is_refused() {
    let mut t = cache_full();
    t.send(seg!(SYN mss 1460));
    t.take("a SYN-ACK by cookie");
    t.expect_counters(
        |t| t.send(seg!(ACK seq 1 ack 2)),
        &[("tcp_syn_cookies_failed", 1), ("tcp_no_connection", 1), ("tcp_out_rsts", 1)],
    );
    t.expect(seg!(RST seq 2));
}

/// A valid cookie without room for its connection is dropped, as in Linux, and so is what follows
/// it in the same flight: a reset would end a connection that a retransmission can still establish.
#[test]
fn data_after_a_cookie_without_room_is_dropped() {
    let mut t = ScriptedTcpPeer::server_listening(|c| c.connections_max = 1, 1);
    t.send(seg!(SYN mss 1460));
    t.take("a SYN-ACK from the cache");
    t.use_peer_port(41_000);
    t.send(seg!(SYN mss 1460 tsval 5000));
    t.take("a SYN-ACK by cookie");
    // Its SYN waits for a neighbor.
    t.answers_neighbors = false;
    let other = Endpoint { addr: [10, 77, 0, 99].into(), port: 9 };
    let other = t.host.connect(t.now(), other).expect("room for one");
    t.expect_counters(
        |t| {
            t.send(seg!(ACK seq 1 ack 1 data b"GET "));
            t.send(seg!(ACK PSH seq 5 ack 1 data b"/"));
        },
        &[("tcp_listen_drops", 1), ("tcp_first_segment_missing", 1)],
    );
    t.expect_nothing();
    t.host.abort(t.now(), other);
    // The rest of the flight, which arrives when there is room.
    t.expect_counters(
        |t| t.send(seg!(ACK PSH seq 6 ack 1 data b"index")),
        &[("tcp_first_segment_missing", 1)],
    );
    t.expect_nothing();
    t.expect_counters(
        |t| t.send(seg!(ACK PSH seq 1 ack 1 data b"GET /")),
        &[("tcp_syn_cookies_accepted", 1), ("tcp_passive_opens", 1)],
    );
    t.accepted();
    assert_eq!(t.app_read(), b"GET /");
}

/// A SYN-ACK is acknowledged before data of several segments: if it is a cookie, the second segment
/// must not be the first to arrive (RFC 4987 section 3.6).
#[test]
fn long_data_follows_the_acknowledgment_of_a_syn_ack() {
    for (bytes, separate) in [(1448_u32, false), (1449, true)] {
        let mut t = ScriptedTcpPeer::client_with(|c| c.tcp.pacing = false);
        t.take("SYN");
        t.app_write_unpumped(&vec![0; bytes as usize]);
        t.send(seg!(SYN ACK seq 0 ack 1 mss 1460 sack_ok tsval 5000 wscale 7));
        if separate {
            t.expect(seg!(ACK seq 1 ack 1 len 0));
        }
        t.expect(seg!(ACK PSH seq 1 ack 1 len (bytes)));
        t.expect_nothing();
    }
}

/// RFC 6298 section 2: the handshake is the first round-trip sample, unless the SYN-ACK was sent
/// twice (Karn's algorithm, section 3).
#[test]
fn the_handshake_is_a_sample() {
    for (again, srtt_ms) in [(false, 30), (true, 0)] {
        let mut t = ScriptedTcpPeer::server_listening(|_| {}, 16);
        t.send(seg!(SYN mss 1460));
        t.take("a SYN-ACK");
        t.at_ms(20);
        if again {
            t.send(seg!(SYN mss 1460));
            t.take("the SYN-ACK again");
        }
        t.at_ms(30);
        t.send(seg!(ACK seq 1 ack 1));
        t.accepted();
        assert_eq!(t.info().srtt, Duration::from_millis(srtt_ms));
    }
}

/// RFC 4987: a SYN flood takes bounded memory and does not affect established connections.
#[test]
fn a_flood_of_syns_leaves_connections_alone() {
    let mut t = ScriptedTcpPeer::server_listening(|_| {}, 64);
    t.send(seg!(SYN mss 1460));
    t.take("a SYN-ACK");
    t.send(seg!(ACK seq 1 ack 1));
    t.accepted();
    t.app_write_zeros(1000);
    t.take("a segment");
    t.expect_counters(
        |t| t.send_syn_flood(1024..11_024),
        &[("tcp_syns_cached", 64), ("tcp_syn_cookies_sent", 9_936)],
    );
    t.send(seg!(ACK seq 1 ack 1001));
    t.app_write_zeros(500);
    t.expect(seg!(ACK seq 1001 len 500));
    assert_eq!(t.state(), "ESTABLISHED");
    // The handshakes stay incomplete, and the entries of the cache expire.
    t.send(seg!(ACK seq 1 ack 1501));
    t.expect_counters(
        |t| t.at_ms(200_000),
        &[("tcp_syn_acks_resent", 320), ("tcp_syns_expired", 64)],
    );
}

/// RFC 9293 section 3.10.7.1: every segment of an unknown connection is answered with a reset, but
/// at most `resets_per_s_max` times per second.
#[test]
fn resets_are_rate_limited() {
    let mut t = ScriptedTcpPeer::server_with(|c| c.tcp.resets_per_s_max = 3);
    let strangers = |t: &mut ScriptedTcpPeer, ports: core::ops::Range<u16>, resets| {
        for port in ports {
            t.use_peer_port(port);
            t.send(seg!(ACK seq 1 ack 7));
            if port < resets {
                t.expect(seg!(RST));
            }
            t.expect_nothing();
        }
    };
    let moves = [("tcp_no_connection", 5), ("tcp_out_rsts", 3), ("tcp_out_rsts_limited", 2)];
    t.expect_counters(|t| strangers(t, 2000..2005, 2003), &moves);
    t.at_ms(999);
    let moves = [("tcp_no_connection", 2), ("tcp_out_rsts_limited", 2)];
    t.expect_counters(|t| strangers(t, 3000..3002, 3000), &moves);
    t.at_ms(1001);
    let moves = [("tcp_no_connection", 4), ("tcp_out_rsts", 3), ("tcp_out_rsts_limited", 1)];
    t.expect_counters(|t| strangers(t, 4000..4004, 4003), &moves);
}

/// A port that is no longer listened on refuses connections. Established ones stay, and half-open
/// ones are forgotten.
#[test]
fn a_port_that_is_closed_refuses() {
    let mut t = ScriptedTcpPeer::new(|_| {}, (testkit::HOST, testkit::PEER));
    let listen = outboard_host::ListenConfig { addr: None, port: 80, backlog: 16 };
    let listener = t.host.listen(listen).unwrap();
    t.send(seg!(SYN mss 1460));
    t.take("a SYN-ACK");
    t.use_peer_port(41_000);
    t.send(seg!(SYN mss 1460));
    t.take("a SYN-ACK");
    t.send(seg!(ACK));
    t.expect_counters(|t| t.host.unlisten(listener), &[]);
    // Established before, but accepted by the application only now.
    assert!(t.accepted().is_some());
    t.app_write_zeros(100);
    t.expect(seg!(ACK PSH len 100));
    t.send(seg!(ACK ack 101));
    t.use_peer_port(42_000);
    t.expect_counters(
        |t| t.send(seg!(SYN mss 1460)),
        &[("tcp_no_connection", 1), ("tcp_out_rsts", 1)],
    );
    t.expect(seg!(RST ACK));
    t.expect_counters(|t| t.at_ms(60_000), &[]);
    // The port can be listened on again.
    assert!(t.host.listen(listen).is_ok_and(|again| again != listener));
}

/// A connection over IPv6: the MSS leaves room for the longer header (RFC 9293 section 3.7.1).
#[test]
fn over_ipv6() {
    let mut t = ScriptedTcpPeer::server_v6();
    t.send(seg!(SYN mss 1440 sack_ok tsval 5000 wscale 7));
    t.expect(seg!(SYN ACK seq 0 ack 1 mss 1440));
    t.send(seg!(ACK));
    t.accepted();
    t.app_write_zeros(3000);
    t.expect(seg!(ACK seq 1 len 3000 run 1428));
}

/// With several queues, the answers to an active open reach the queue of the host that opened.
#[test]
fn active_opens_use_ports_that_lead_to_their_own_queue() {
    let steering = Arc::new(FlowSteering::new(3, 3));
    for index in 0..3 {
        let own = OwnQueue { steering: Arc::clone(&steering), index };
        let mut t = ScriptedTcpPeer::server_with(|config| config.own_queue = Some(own));
        for last in 2..40 {
            let remote = Endpoint { addr: [10, 77, 0, last].into(), port: 80 };
            let socket = t.host.connect(Instant::ZERO, remote).expect("a port is free");
            let local = t.host.local(socket).expect("it is open");
            assert_eq!(steering.queue_of(&Tuple { local, remote }), index);
        }
    }
}

/// A server whose queue 1 has, or had, the entry of its peer's flows; the other queue is 0.
fn server_of_moved_entry(moved_to: usize) -> ScriptedTcpPeer {
    let steering = Arc::new(FlowSteering::new(3, 2));
    let from = 1 - moved_to;
    // The hash of the peer's frames is 0, whose entry belongs to queue 0 at first.
    let entry = 0;
    if from == 1 {
        assert!(steering.move_entry(entry, 1) && steering.release(entry, 0));
    }
    assert!(steering.move_entry(entry, moved_to));
    ScriptedTcpPeer::server_with(|config| config.own_queue = Some(OwnQueue { steering, index: 1 }))
}

/// The new queue's host has no connection for a segment: the former queue's host may have.
#[test]
fn segments_of_no_connection_go_to_the_former_queue() {
    let mut t = server_of_moved_entry(1);
    t.send(seg!(ACK seq 5 ack 77 len 100));
    t.send(seg!(RST seq 5));
    t.send(seg!(SYN ACK seq 5 ack 9));
    assert_eq!(t.take_handed_over(), [(0, SteeringReason::Former); 3]);
    t.expect_nothing();
    // A SYN is a new connection's, whatever the former queue has.
    t.send(seg!(SYN mss 1460));
    t.expect(seg!(SYN ACK seq 0 ack 1 mss 1460));
    // Segments of an older connection on this tuple must not be reset by the new one's state.
    t.send(seg!(ACK seq 5000 ack 77_000 len 100));
    t.send(seg!(RST seq 5000));
    assert_eq!(t.take_handed_over(), [(0, SteeringReason::Former); 2]);
    t.expect_nothing();
    t.send(seg!(ACK));
    assert!(t.accepted().is_some());
    assert_eq!((t.take_handed_over().len(), t.count("tcp_handed_over")), (0, 5));
}

/// A segment that the former queue's host does not know either is answered here.
#[test]
fn segments_that_return_from_the_former_queue_are_answered() {
    let mut t = server_of_moved_entry(1);
    t.steered = SteeringReason::Returned;
    t.send(seg!(ACK seq 5 ack 77 len 100));
    t.expect(seg!(RST));
    assert!(t.take_handed_over().is_empty());
}

/// The former queue's host returns what it has no connection for, and keeps its connections.
#[test]
fn the_former_queue_returns_segments_of_no_connection() {
    let mut t = server_of_moved_entry(0);
    t.steered = SteeringReason::Former;
    t.send(seg!(ACK seq 5 ack 77 len 100));
    assert_eq!(t.take_handed_over(), [(0, SteeringReason::Returned)]);
    t.expect_nothing();
    // A SYN that was on its way when the entry was moved.
    t.steered = SteeringReason::Current;
    t.send(seg!(SYN mss 1460));
    assert_eq!(t.take_handed_over(), [(0, SteeringReason::Returned)]);
    t.expect_nothing();
}

/// Ports of moved entries are not used: the former queue may have a connection on the same tuple.
#[test]
fn active_opens_use_no_ports_of_moved_entries() {
    let steering = Arc::new(FlowSteering::new(3, 2));
    let moved = |steering: &FlowSteering| {
        (0..steering.entries()).filter(|&entry| entry % 8 == 1).for_each(|entry| {
            assert!(steering.move_entry(entry, 0));
        });
    };
    moved(&steering);
    let own = OwnQueue { steering: Arc::clone(&steering), index: 0 };
    let mut t = ScriptedTcpPeer::server_with(|config| config.own_queue = Some(own));
    for last in 2..40 {
        let remote = Endpoint { addr: [10, 77, 0, last].into(), port: 80 };
        let socket = t.host.connect(Instant::ZERO, remote).expect("a port is free");
        let local = t.host.local(socket).expect("it is open");
        let owners = steering.owners(steering.hash(&Tuple { local, remote }));
        assert_eq!(owners, FlowOwners::only(0));
    }
}

/// An entry is released when no connection of its former queue's host is left in it, and not
/// before the cookies of that host have expired.
#[test]
fn a_moved_entry_is_released_without_connections() {
    let info = ScriptedTcpPeer::server().established().info();
    let tuple = Tuple { local: info.local, remote: info.remote };
    let steering = (3..).map(|seed| FlowSteering::new(seed, 2)).find(|s| s.queue_of(&tuple) == 0);
    let steering = Arc::new(steering.expect("half of the keys"));
    let own = OwnQueue { steering: Arc::clone(&steering), index: 0 };
    let mut t = ScriptedTcpPeer::server_with(|config| config.own_queue = Some(own)).established();
    let used = steering.entry_of(&tuple);
    let moved = [used, (used + 2) % steering.entries(), (used + 4) % steering.entries()];
    assert!(moved.iter().all(|&entry| steering.move_entry(entry, 1)));
    let released_at = |t: &mut ScriptedTcpPeer, ms| {
        t.at_ms(ms);
        let mut released = Vec::new();
        for _ in 0..2 {
            t.host.release_moved_entries(Instant::from_millis(ms));
            t.pump();
            for op in t.other_ops.drain(..) {
                if let Op::ReleaseEntries(entries) = op {
                    released.extend(entries);
                }
            }
        }
        released
    };
    assert_eq!(released_at(&mut t, 1000), []);
    assert_eq!(released_at(&mut t, 138_000), [], "cookies may return");
    let unused: BTreeSet<usize> = moved.into_iter().filter(|&n| n != used).collect();
    assert_eq!(released_at(&mut t, 139_001).into_iter().collect::<BTreeSet<_>>(), unused);
    for entry in unused {
        assert!(steering.release(entry, 0));
    }
    t.app_close();
    t.expect(seg!(FIN ACK));
    t.send(seg!(FIN ACK seq 1 ack 2));
    assert_eq!(released_at(&mut t, 140_000), [], "in TIME-WAIT");
    assert_eq!(released_at(&mut t, 240_000), [used]);
}
