//! Below and beside TCP: ARP, neighbor discovery, ICMP, path MTU, malformed packets, checksums,
//! ECN, keep-alive.

use abi::{Checksum, Event};
use base::Duration;
use outboard_host::{SocketError, SocketOption};
use testkit::{HOST, HOST_MAC, HOST_V6, PEER, PEER_MAC, PEER_V6, ScriptedTcpPeer, seg};

fn arp_request(t: &mut ScriptedTcpPeer, target: [u8; 4]) {
    let mut frame = [[0xff; 6], PEER_MAC].concat();
    frame.extend_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend_from_slice(&PEER_MAC);
    frame.extend_from_slice(&[10, 77, 0, 1]);
    frame.extend_from_slice(&[0; 6]);
    frame.extend_from_slice(&target);
    t.inject(&frame);
}

/// RFC 826.
#[test]
fn arp_requests_for_us_are_answered() {
    let mut t = ScriptedTcpPeer::new(|_| {}, (HOST, PEER));
    t.expect_counters(|t| arp_request(t, [10, 77, 0, 2]), &[("neighbor_replies", 1)]);
    let reply = t.non_tcp_frames.pop_front().unwrap();
    assert_eq!(reply[..6], PEER_MAC);
    assert_eq!(
        (reply[21], &reply[22..28], &reply[28..32]),
        (2, &HOST_MAC[..], &[10, 77, 0, 2][..])
    );
    t.expect_counters(|t| arp_request(t, [10, 77, 0, 9]), &[]);
    assert!(t.non_tcp_frames.is_empty());
}

/// RFC 1122 section 2.3.2.2: a packet to an unresolved neighbor is kept, and sent when the neighbor
/// is resolved.
#[test]
fn packets_wait_for_an_unresolved_neighbor() {
    let mut t = ScriptedTcpPeer::server();
    t.answers_neighbors = false;
    t.send(seg!(SYN mss 1460));
    t.expect_nothing();
    assert_eq!(t.non_tcp_frames.len(), 1, "it is asked for");
    arp_request(&mut t, [10, 77, 0, 2]);
    t.expect(seg!(SYN ACK seq 0 ack 1));
    assert_eq!(t.non_tcp_frames.len(), 2);
}

#[test]
fn a_silent_neighbor_is_given_up() {
    let mut t = ScriptedTcpPeer::server_with(|c| c.tcp.syn_ack_retries = 0);
    t.answers_neighbors = false;
    t.send(seg!(SYN mss 1460));
    t.expect_counters(|t| t.at_ms(10_000), &[("neighbor_drops", 1), ("tcp_syns_expired", 1)]);
    assert_eq!(t.non_tcp_frames.len(), 3, "RFC 4861: three times");
    t.expect_nothing();
}

/// RFC 4861 section 7.2.4.
#[test]
fn neighbor_solicitations_are_answered() {
    let mut t = ScriptedTcpPeer::new(|_| {}, (HOST_V6, PEER_V6));
    let mut body = vec![135, 0, 0, 0, 0, 0, 0, 0];
    let core::net::IpAddr::V6(host) = HOST_V6 else { unreachable!() };
    body.extend_from_slice(&host.octets());
    body.extend_from_slice(&[1, 1]);
    body.extend_from_slice(&PEER_MAC);
    t.expect_counters(|t| t.send_icmp(&body), &[("neighbor_replies", 1)]);
    let reply = t.non_tcp_frames.pop_front().unwrap();
    assert_eq!((reply[..6].to_vec(), reply[54]), (PEER_MAC.to_vec(), 136));
    // Section 7.1.1: the hop limit must be 255 and the checksum must be right. `send_ip` leaves the
    // checksum zero, which is detected first.
    let frame_with_low_hop_limit = [body.clone(), vec![]].concat();
    t.expect_counters(
        |t| t.send_ip(58, &frame_with_low_hop_limit),
        &[("received_bad_checksum", 1)],
    );
}

/// RFC 792, RFC 4443 section 4.1.
#[test]
fn echo_requests_are_answered() {
    for (addrs, request, reply) in [((HOST, PEER), 8, 0), ((HOST_V6, PEER_V6), 128, 129)] {
        let mut t = ScriptedTcpPeer::new(|_| {}, addrs);
        let body = [&[request, 0, 0, 0, 1, 2, 3, 4][..], b"payload"].concat();
        t.expect_counters(|t| t.send_icmp(&body), &[("icmp_echo_replies", 1)]);
        let frame = t.non_tcp_frames.pop_front().unwrap();
        let l4 = if addrs.0.is_ipv4() { 34 } else { 54 };
        assert_eq!((frame[l4], &frame[l4 + 4..]), (reply, &body[4..]));
    }
}

/// RFC 1122 section 4.1.3.1, with a rate limit (RFC 1812 section 4.3.2.8).
#[test]
fn udp_ports_are_unreachable() {
    let mut t = ScriptedTcpPeer::new(|_| {}, (HOST, PEER));
    t.expect_counters(
        |t| t.send_ip(17, &[1, 2, 0, 9, 0, 8, 0, 0]),
        &[("udp_no_ports", 1), ("icmp_errors_sent", 1)],
    );
    let frame = t.non_tcp_frames.pop_front().unwrap();
    assert_eq!(frame[34..36], [3, 3]);
    for _ in 0..200 {
        t.send_ip(17, &[1, 2, 0, 9, 0, 8, 0, 0]);
    }
    assert_eq!(t.host.counters().icmp_errors_sent, 100);
    t.at_ms(2000);
    t.expect_counters(
        |t| t.send_ip(17, &[1, 2, 0, 9, 0, 8, 0, 0]),
        &[("udp_no_ports", 1), ("icmp_errors_sent", 1)],
    );
}

/// A link whose MTU shrinks limits open connections; if it grows, only later ones.
#[test]
fn another_mtu_of_the_link() {
    let mut t = ScriptedTcpPeer::server_with(|c| c.tcp.pacing = false).established();
    t.expect_counters(
        |t| t.handle_device_event(Event::LinkChanged { mtu: 1200 }),
        &[("tcp_pmtu_reductions", 1)],
    );
    t.app_write_zeros(2 * 1148);
    t.expect(seg!(ACK PSH seq 1 len 2296 run 1148));
    t.expect_counters(|t| t.handle_device_event(Event::LinkChanged { mtu: 9000 }), &[]);
    assert_eq!(t.info().mss, 1148);
    let mut later = ScriptedTcpPeer::server_with(|c| c.tcp.pacing = false);
    later.handle_device_event(Event::LinkChanged { mtu: 1400 });
    assert_eq!(later.established().info().mss, 1400 - 52);
}

/// RFC 1191: an error that quotes bytes in flight lowers the path MTU, and these bytes are
/// retransmitted in smaller packets.
#[test]
fn a_smaller_path_mtu() {
    let mut t = ScriptedTcpPeer::server_with(|c| c.tcp.pacing = false).established();
    t.app_write_zeros(2 * 1448);
    t.expect(seg!(ACK PSH seq 1 len 2896 run 1448));
    let mut error = vec![3, 4, 0, 0, 0, 0, 1200_u16.to_be_bytes()[0], 1200_u16.to_be_bytes()[1]];
    error.extend(t.icmp_quote(1));
    t.expect_counters(
        |t| t.send_icmp(&error),
        &[("tcp_pmtu_reductions", 1), ("tcp_retrans", 1), ("tcp_retrans_bytes", 2896)],
    );
    t.expect(seg!(ACK PSH seq 1 len 2896 run 1148 again));
    assert_eq!(t.info().mss, 1148);
    assert_eq!(t.info().ssthresh, u32::MAX, "it is no congestion");
}

/// RFC 5927: an error that quotes no bytes in flight is ignored.
#[test]
fn a_forged_path_mtu_is_ignored() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_write_zeros(1448);
    t.take("data");
    let mut error = vec![3, 4, 0, 0, 0, 0, 2, 100];
    error.extend(t.icmp_quote(5000));
    t.expect_counters(|t| t.send_icmp(&error), &[("icmp_ignored", 1)]);
    assert_eq!(t.info().mss, 1448);
    t.expect_nothing();
}

/// RFC 8201 section 4: the path MTU is never below 1280 bytes.
#[test]
fn packet_too_big_over_ipv6() {
    let mut t = ScriptedTcpPeer::server_v6()
        .established_by(&seg!(SYN mss 1440 sack_ok tsval 5000 wscale 7));
    t.app_write_zeros(1428);
    t.take("data");
    let mut error = vec![2, 0, 0, 0, 0, 0, 1, 0];
    error.extend(t.icmp_quote(1));
    t.send_icmp(&error);
    assert_eq!(t.info().mss, 1280 - 60 - 12);
    t.expect(seg!(ACK PSH seq 1 len 1428 run 1208 again));
}

/// RFC 5461: a hard error ends a connection that is being opened, but not an established one.
#[test]
fn unreachable_while_opening() {
    let mut t = ScriptedTcpPeer::client();
    t.take("SYN");
    let mut error = vec![3, 3, 0, 0, 0, 0, 0, 0];
    error.extend(t.icmp_quote(0));
    t.send_icmp(&error);
    assert_eq!(t.error(), Some(SocketError::Refused));

    let mut t = ScriptedTcpPeer::server().established();
    t.app_write(b"data");
    t.take("data");
    let mut error = vec![3, 3, 0, 0, 0, 0, 0, 0];
    error.extend(t.icmp_quote(1));
    t.send_icmp(&error);
    assert_eq!(t.state(), "ESTABLISHED");
}

/// Malformed packets are counted by their kind, and not answered.
#[test]
fn malformed_packets() {
    let mut t = ScriptedTcpPeer::server().established();
    let good = t.build_frame(&seg!(ACK data b"hello"));
    t.expect_counters(|t| t.inject(&good[..20]), &[("received_malformed", 1)]);
    t.expect_counters(|t| t.inject(&[0; 60]), &[("received_malformed", 1)]);
    t.expect_counters(|t| t.send_ip(6, &[0; 7]), &[("tcp_in_errs", 1)]);
    let mut options = good.clone();
    options[34 + 20] = 3; // window scale of length 1
    options[34 + 21] = 1;
    t.expect_counters(|t| t.inject(&options), &[("tcp_in_errs", 1)]);
    t.expect_counters(|t| t.send_ip(132, &[0; 20]), &[("received_unknown_protocol", 1)]);
    let mut elsewhere = good.clone();
    elsewhere[33] = 77;
    elsewhere[24..26].fill(0);
    let mut sum = wire::checksum::ChecksumSum::new();
    sum.add(&elsewhere[14..34]);
    let sum = sum.finish().to_be_bytes();
    elsewhere[24..26].copy_from_slice(&sum);
    t.expect_counters(|t| t.inject(&elsewhere), &[("received_not_ours", 1)]);
    t.expect_nothing();
    assert_eq!(t.app_read(), b"");
}

/// The host verifies a checksum that the device has not verified.
#[test]
fn checksums() {
    let mut t = ScriptedTcpPeer::server().established();
    t.checksum = Checksum::Unchecked;
    let good = t.build_frame(&seg!(ACK data b"hello"));
    let mut bad = good.clone();
    *bad.last_mut().unwrap() ^= 1;
    t.expect_counters(
        |t| t.inject(&bad),
        &[("checksum_software", 1), ("received_bad_checksum", 1)],
    );
    t.expect_nothing();
    t.expect_counters(|t| t.inject(&good), &[("checksum_software", 1)]);
    t.expect(seg!(ACK ack 6));
    t.checksum = Checksum::Bad;
    t.expect_counters(|t| t.inject(&good), &[("received_bad_checksum", 1)]);
}

fn ecn() -> ScriptedTcpPeer {
    let mut t = ScriptedTcpPeer::server_with(|c| c.tcp.pacing = false);
    t.send(seg!(SYN ECE CWR mss 1460 sack_ok tsval 5000 wscale 7));
    t.expect(seg!(SYN ACK ECE ecn 0));
    t.send(seg!(ACK));
    t.accepted();
    t
}

/// RFC 3168 section 6.1.1: ECN is used only if both sides agree.
#[test]
fn ecn_is_negotiated() {
    let mut t = ecn();
    t.app_write(b"data");
    t.expect(seg!(ACK PSH seq 1 ecn 2));
    let mut t = ScriptedTcpPeer::server().established();
    t.app_write(b"data");
    t.expect(seg!(ACK PSH seq 1 ecn 0));
    let mut t = ScriptedTcpPeer::server_with(|c| c.tcp.ecn = false);
    t.send(seg!(SYN ECE CWR mss 1460));
    t.expect(seg!(SYN ACK));
}

/// RFC 3168 section 6.1.3: a CE mark is echoed until the peer has reduced its window.
#[test]
fn marks_are_echoed() {
    let mut t = ecn();
    t.expect_counters(|t| t.send(seg!(ACK ecn 3 data b"a")), &[]);
    t.expect(seg!(ACK ECE ack 2));
    t.send(seg!(ACK ecn 2 data b"b"));
    t.expect(seg!(ACK ECE ack 3));
    t.send(seg!(ACK CWR ecn 2 data b"c"));
    t.expect(seg!(ACK ack 4));
}

/// RFC 3168 section 6.1.2: the window is reduced once per window of data, and CWR tells the peer.
#[test]
fn an_echoed_mark_reduces_the_window_once() {
    let mut t = ecn();
    t.app_write_zeros(100 * 1448);
    t.expect(seg!(ACK seq 1 len 14480));
    t.at_ms(50);
    t.expect_counters(
        |t| {
            t.send(seg!(ACK ECE ack 1449));
            t.send(seg!(ACK ECE ack 2897));
            t.send(seg!(ACK ECE ack 4345));
        },
        &[("tcp_ecn_reductions", 1)],
    );
    assert_eq!(t.info().ssthresh, 14480 * 7 / 10, "RFC 9438 section 4.6");
    t.send(seg!(ACK ack 14481));
    let sent = t.take_all();
    let cwr: Vec<_> = sent.iter().filter(|s| s.flags.has(testkit::TcpFlags::CWR)).collect();
    assert_eq!(cwr.len(), 1, "{sent:?}");
}

/// RFC 9293 section 3.8.4: an idle connection is probed, and ended if its peer does not answer.
#[test]
fn keep_alive() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_option(SocketOption::KeepAlive(Some(Duration::from_secs(60))));
    t.expect_counters(|t| t.at_ms(60_000), &[("tcp_keepalive_probes", 1)]);
    t.expect_at(60_000, seg!(ACK seq 0 ack 1 len 0));
    t.send(seg!(ACK));
    t.at_ms(119_000);
    t.expect_nothing();
    t.expect_counters(
        |t| t.at_ms(800_000),
        &[
            ("tcp_keepalive_probes", 9),
            ("tcp_timed_out", 1),
            ("tcp_estab_resets", 1),
            ("tcp_out_rsts", 1),
        ],
    );
    assert_eq!(t.error(), Some(SocketError::TimedOut));
}

/// A keep-alive from the peer, one byte before the expected sequence number, is answered.
#[test]
fn a_keep_alive_of_the_peer_is_answered() {
    let mut t = ScriptedTcpPeer::server().established();
    t.send(seg!(ACK seq 0 ack 1 len 0));
    t.expect(seg!(ACK seq 1 ack 1));
    t.send(seg!(ACK seq 0 ack 1 len 1));
    t.expect(seg!(ACK seq 1 ack 1));
}

#[test]
fn an_idle_connection_has_no_timers() {
    let mut t = ScriptedTcpPeer::server().established();
    t.send_data(b"hello");
    t.app_read();
    t.app_write(b"world");
    t.send(seg!(ACK));
    t.at_ms(5000);
    assert_eq!(t.host.poll_timeout(), None);
}
