//! Blind attacks: segments of an attacker who knows the addresses and ports of a connection and
//! guesses the rest (RFC 5961, RFC 7323 section 4.3). A segment does not change the connection
//! before its acknowledgment number was found acceptable.

use base::Duration;
use outboard_host::SocketOption;
use testkit::{ScriptedTcpPeer, Seg, seg};

/// Acknowledgment numbers outside the acceptable range.
const WRONG_ACKS: [u32; 5] = [0, 100_000, 1 << 31, u32::MAX - 70_000, u32::MAX];

/// Delivers a segment that the peer did not send.
fn forge(t: &mut ScriptedTcpPeer, seg: &Seg) {
    let frame = t.build_frame(seg);
    t.inject(&frame);
}

/// Returns a connection on which the peer has sent ten bytes.
fn ten_bytes_received() -> ScriptedTcpPeer {
    let mut t = ScriptedTcpPeer::server().established();
    t.send_data(b"0123456789");
    t.app_read();
    t.take_all();
    t
}

/// RFC 7323 section 4.3: a future timestamp beside an unacceptable acknowledgment number does not
/// become TS.Recent. Otherwise PAWS would drop all segments of the real peer.
#[test]
fn a_forged_timestamp_does_not_end_the_connection() {
    for ack in WRONG_ACKS {
        for (seq, len) in [(11, 0), (11, 5), (8, 5), (1, 11)] {
            let mut t = ten_bytes_received();
            t.at_ms(10);
            forge(&mut t, &seg!(ACK seq (seq) ack (ack) len (len) tsval 1_000_000_000));
            t.take_all();
            t.expect_counters(|t| t.send_data(b"hello"), &[]);
            t.expect(seg!(ACK ack 16 tsecr 5010));
            assert_eq!(t.app_read(), b"hello", "seq {seq} len {len} ack {ack}");
        }
    }
}

/// As in Linux, an acknowledgment number older than the last is acceptable but does not update
/// TS.Recent. An attacker has to guess a number in flight, not one in a whole window.
#[test]
fn a_timestamp_beside_an_old_acknowledgment_is_ignored() {
    let mut t = ten_bytes_received();
    t.app_write(&[0; 1000]);
    t.take("data");
    t.at_ms(10);
    t.send(seg!(ACK));
    forge(&mut t, &seg!(ACK seq 11 ack 500 tsval 1_000_000_000));
    t.expect_counters(|t| t.send_data(b"hello"), &[]);
    assert_eq!(t.app_read(), b"hello");
}

/// RFC 5961 section 5.2: an acceptable acknowledgment number is not older than the largest window
/// that the peer has offered, and never before our first byte.
#[test]
fn an_acknowledgment_older_than_a_window_is_challenged() {
    let mut t = ScriptedTcpPeer::server();
    t.set_win(2000);
    let mut t = t.established_by(&seg!(SYN win 2000 mss 1460));
    t.app_write(&[0; 6000]);
    while !t.take_all().is_empty() {
        t.send(seg!(ACK));
    }
    for ack in [0, u32::MAX, 1, 4000] {
        t.after_ms(1000);
        let challenge = [("tcp_challenge_acks", 1)];
        t.expect_counters(|t| forge(t, &seg!(ACK seq 1 ack (ack) data b"evil")), &challenge);
        t.expect(seg!(ACK ack 1));
    }
    t.expect_counters(|t| forge(t, &seg!(ACK seq 1 ack 4001 data b"late")), &[]);
    assert_eq!(t.app_read(), b"late");
}

fn with_ecn() -> ScriptedTcpPeer {
    let mut t = ScriptedTcpPeer::server();
    t.send(seg!(SYN ECE CWR mss 1460 sack_ok tsval 5000 wscale 7));
    t.take("SYN-ACK");
    t.send(seg!(ACK));
    t.accepted();
    t
}

/// RFC 3168 section 6.1.3 with RFC 5961: a forged CE mark is not echoed, and a forged CWR does not
/// end an echo.
#[test]
fn forged_ecn_marks_are_ignored() {
    for ack in WRONG_ACKS {
        let mut t = with_ecn();
        forge(&mut t, &seg!(ACK seq 1 ack (ack) ecn 3 data b"evil"));
        t.take_all();
        t.send_data(b"a");
        let echoed = t.take("an acknowledgment").flags.has(testkit::TcpFlags::ECE);
        assert!(!echoed, "a forged mark is echoed: ack {ack}");
        t.send(seg!(ACK ecn 3 data b"b"));
        t.expect(seg!(ACK ECE ack 3));
        forge(&mut t, &seg!(ACK CWR seq 3 ack (ack) data b"evil"));
        t.take_all();
        t.send_data(b"c");
        t.expect(seg!(ACK ECE ack 4));
    }
}

/// RFC 3168 section 6.1.2: an ECE beside a wrong or an old acknowledgment number does not reduce
/// the window.
#[test]
fn forged_echoes_do_not_reduce_the_window() {
    let mut t = with_ecn();
    t.app_write(&[0; 1000]);
    t.take("data");
    t.send(seg!(ACK));
    t.app_write(&[0; 1000]);
    t.take("data");
    for ack in WRONG_ACKS.into_iter().chain([500]) {
        forge(&mut t, &seg!(ACK ECE seq 1 ack (ack)));
    }
    assert_eq!(t.host.counters().tcp_ecn_reductions, 0);
}

/// RFC 9293 section 3.8.4: a forged segment does not postpone a keep-alive probe.
#[test]
fn forged_segments_do_not_delay_keep_alives() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_option(SocketOption::KeepAlive(Some(Duration::from_secs(10))));
    t.at_ms(6000);
    for ack in WRONG_ACKS {
        forge(&mut t, &seg!(ACK seq 1 ack (ack)));
    }
    t.take_all();
    t.at_ms(10_500);
    t.expect_at(10_000, seg!(ACK seq 0 ack 1 len 0));
}

/// A forged segment does not change the peer's window.
#[test]
fn a_forged_window_is_ignored() {
    let mut t = ten_bytes_received();
    for ack in WRONG_ACKS {
        forge(&mut t, &seg!(ACK seq 11 ack (ack) win 0));
    }
    t.take_all();
    t.app_write(b"hello");
    t.expect(seg!(ACK seq 1 data b"hello"));
}

/// RFC 2883: a DSACK reports a duplicate from the peer, but not a forged one.
#[test]
fn forged_duplicates_are_not_reported() {
    for ack in WRONG_ACKS {
        let mut t = ten_bytes_received();
        forge(&mut t, &seg!(ACK seq 1 ack (ack) len 4));
        t.expect(seg!(ACK ack 11 no_sack));
    }
    let mut t = ten_bytes_received();
    t.send(seg!(ACK seq 1 len 4));
    t.expect(seg!(ACK ack 11 sack (1, 5)));
}

/// RFC 2883 section 4: only bytes that were received are reported as duplicates: not the byte of a
/// window probe, nor bytes beyond the window.
#[test]
fn only_received_bytes_are_reported_by_dsack() {
    let mut t = ScriptedTcpPeer::server_with(|c| c.tcp.receive_bytes_max = 4096).established();
    t.send_data(&[0; 2048]);
    t.send_data(&[0; 2048]);
    t.take_all();
    let nxt = 4097;
    t.send(seg!(ACK seq (nxt) ack 1 len 1));
    t.expect(seg!(ACK ack (nxt) win 0 no_sack));
    t.send(seg!(ACK seq (nxt + 100_000) ack 1 len 10));
    t.expect(seg!(ACK ack (nxt) no_sack));
    t.send(seg!(ACK seq (nxt - 5) ack 1 len 10));
    t.expect(seg!(ACK ack (nxt) sack (nxt - 5, nxt)));
}

/// RFC 5961 section 4.2: a SYN with another sequence number does not end a half-open connection. A
/// peer that has restarted answers the challenge ACK with a reset.
#[test]
fn a_half_open_connection_survives_a_forged_syn() {
    let syn = seg!(SYN mss 1460 sack_ok tsval 5000 wscale 7);
    for seq in [1, 100, 70_000, 1 << 31, u32::MAX] {
        let mut t = ScriptedTcpPeer::server();
        t.send(syn.clone());
        t.expect(seg!(SYN ACK seq 0 ack 1));
        let forged = Seg { seq: Some(seq), ..syn.clone() };
        t.expect_counters(|t| forge(t, &forged), &[("tcp_challenge_acks", 1)]);
        t.expect(seg!(ACK seq 1 ack 1));
        t.expect_counters(|t| forge(t, &forged), &[("tcp_challenge_acks_limited", 1)]);
        t.expect_nothing();
        t.send(seg!(ACK seq 1 ack 1));
        assert!(t.accepted().is_some(), "seq {seq}");
        // A peer that has restarted: its reset has the sequence number that the challenge ACK
        // expects.
        let mut t = ScriptedTcpPeer::server();
        t.send(syn.clone());
        t.take("SYN-ACK");
        forge(&mut t, &forged);
        t.expect(seg!(ACK seq 1 ack 1));
        forge(&mut t, &seg!(RST seq 1));
        t.at_ms(1000);
        t.expect_counters(|t| forge(t, &forged), &[("tcp_syns_cached", 1)]);
        t.expect(seg!(SYN ACK));
    }
}

/// RFC 9293 section 3.10.7.4, first: a segment outside the window is answered with an
/// acknowledgment. Only for one inside may the acknowledgment number cause a reset.
#[test]
fn a_half_open_connection_checks_the_sequence_number_first() {
    for seq in [0, 65_536, 1 << 31] {
        let mut t = ScriptedTcpPeer::server();
        t.send(seg!(SYN mss 1460 tsval 5000));
        t.take("SYN-ACK");
        forge(&mut t, &seg!(ACK seq (seq) ack 77));
        t.expect(seg!(ACK seq 1 ack 1));
        forge(&mut t, &seg!(ACK seq 1 ack 77 tsval 4000));
        t.expect_nothing();
        t.send(seg!(ACK seq 1 ack 1));
        assert!(t.accepted().is_some());
    }
}

/// RFC 9293 section 3.10.7.4, fifth: in SYN-RECEIVED a wrong acknowledgment number is answered with
/// a reset, and the connection stays as it is.
#[test]
fn a_simultaneous_open_survives_a_wrong_acknowledgment() {
    for ack in [0, 2, 500, u32::MAX] {
        let mut t = ScriptedTcpPeer::client();
        t.take("SYN");
        t.send(seg!(SYN seq 0 win 60000 mss 1460 sack_ok tsval 5000 wscale 7));
        t.expect(seg!(SYN ACK seq 0 ack 1));
        forge(&mut t, &seg!(ACK seq 1 ack (ack) tsval 1_000_000_000 data b"evil"));
        t.expect(seg!(RST seq (ack)));
        assert_eq!(t.state(), "SYN-RECEIVED");
        t.send(seg!(ACK seq 1 ack 1));
        assert_eq!(t.state(), "ESTABLISHED");
        t.send_data(b"hello");
        assert_eq!(t.app_read(), b"hello");
    }
}

/// RFC 9293 section 3.10.7.4, eighth: only the peer's own FIN restarts TIME-WAIT.
#[test]
fn forged_fins_do_not_restart_time_wait() {
    let gauge = |t: &ScriptedTcpPeer| t.count("connections_time_wait");
    let mut t = ScriptedTcpPeer::server().established();
    t.app_shutdown();
    t.take("FIN");
    t.send(seg!(ACK));
    t.send(seg!(ACK FIN seq 1));
    t.take("the last acknowledgment");
    t.app_close();
    assert_eq!(gauge(&t), 1);
    t.at_ms(30_000);
    for (seq, ack) in [(0, 2), (2, 2), (5000, 2), (1, 1), (1, 3), (1, 1 << 31)] {
        forge(&mut t, &seg!(ACK FIN seq (seq) ack (ack)));
    }
    t.at_ms(60_500);
    assert_eq!(gauge(&t), 0);
}
