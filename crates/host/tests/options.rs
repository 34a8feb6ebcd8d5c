//! Options that an application sets on a socket, and the state that it sees: `TCP_MAXSEG`,
//! `SHUT_RD`, `TCP_INFO`, and PSH at the end of its writes.

use base::Duration;
use outboard_host::{ListenConfig, ListenerOption, SocketError, SocketOption};
use testkit::{ScriptedTcpPeer, TcpFlags, seg};

/// Returns the sequence number `n` segments of 1448 bytes after the first byte.
fn seq_of_segment(n: u32) -> u32 {
    1 + n * 1448
}

fn unpaced(segments: u32) -> ScriptedTcpPeer {
    ScriptedTcpPeer::server_with(|c| {
        c.tcp.pacing = false;
        c.tcp.initial_window = segments;
    })
    .established()
}

/// RFC 9293 section 3.9.1.2, Linux's `tcp_push`: a transmit that has the end of a write has PSH,
/// also when it is retransmitted; one in the middle of a write has not.
#[test]
fn the_end_of_each_write_is_pushed() {
    let mut t = unpaced(4);
    t.app_write_unpumped(&[0; 2 * 1448 + 100]);
    t.app_write_unpumped(&[0; 10 * 1448]);
    t.pump();
    let pushed = |t: &mut ScriptedTcpPeer, seq: u32, len: u32| {
        let sent = t.take("a transmit");
        assert_eq!((sent.seq, sent.len), (Some(seq), Some(len)));
        sent.flags.has(TcpFlags::PSH)
    };
    assert!(pushed(&mut t, 1, 4 * 1448), "the first write ends in it");
    t.send(seg!(ACK ack (seq_of_segment(4))));
    assert!(!pushed(&mut t, seq_of_segment(4), 8 * 1448), "the middle of the second");
    t.send(seg!(ACK ack (seq_of_segment(12))));
    assert!(pushed(&mut t, seq_of_segment(12), 100));
    // Retransmitted, a segment at a time.
    let mut t = unpaced(4);
    t.app_write_unpumped(&[0; 1448 + 100]);
    t.app_write_unpumped(&[0; 2 * 1448 - 100]);
    t.pump();
    assert!(pushed(&mut t, 1, 3 * 1448));
    t.after_ms(10);
    t.send(seg!(ACK ack 1 sack (seq_of_segment(2), seq_of_segment(3))));
    t.at_ms(1000);
    let again: Vec<_> = t.take_all().into_iter().filter(|s| s.again == Some(true)).collect();
    assert!(!again.is_empty());
    for sent in again {
        let (start, end) = (sent.seq.unwrap(), sent.seq.unwrap() + sent.len.unwrap());
        let holds_an_end = (start..end).contains(&(1448 + 100));
        assert_eq!(sent.flags.has(TcpFlags::PSH), holds_an_end, "{sent}");
    }
}

/// `TCP_MAXSEG` before the handshake limits both the MSS that the host offers and the segments that
/// it sends.
#[test]
fn the_largest_segment_is_offered() {
    let mut t = ScriptedTcpPeer::client();
    t.expect(seg!(SYN ECE CWR mss 1460));
    let nowhere = || ScriptedTcpPeer::new(|_| {}, (testkit::HOST, testkit::PEER));
    let mut t = nowhere();
    let remote = wire::Endpoint { addr: testkit::PEER, port: 80 };
    let socket = t.host.connect(t.now(), remote).expect("it connects");
    t.host.set_option(t.now(), socket, SocketOption::MaxSegment(1000));
    t.pump();
    assert_eq!(t.take("SYN").mss, Some(1000));
    let mut t = nowhere();
    let listener =
        t.host.listen(ListenConfig { addr: None, port: 80, backlog: 16 }).expect("it is free");
    t.host.set_listener_option(listener, ListenerOption::MaxSegment(600));
    t.send(seg!(SYN mss 1460 sack_ok tsval 5000 wscale 7));
    t.expect(seg!(SYN ACK mss 600));
    t.send(seg!(ACK));
    t.accepted();
    assert_eq!(t.info().mss, 588);
    t.app_write(&[0; 1000]);
    t.expect(seg!(ACK seq 1 run 588));
}

/// `TCP_MAXSEG` of an established connection: segments sent from now on are shorter; never below
/// Linux's minimum, and never longer again.
#[test]
fn the_largest_segment_of_an_established_connection() {
    let mut t = unpaced(10);
    t.app_option(SocketOption::MaxSegment(1012));
    t.app_write(&[0; 3000]);
    t.expect(seg!(ACK PSH seq 1 len 3000 run 1000));
    t.send(seg!(ACK));
    t.app_option(SocketOption::MaxSegment(1400));
    assert_eq!(t.info().mss, 1000);
    t.app_option(SocketOption::MaxSegment(1));
    assert_eq!(t.info().mss, 76);
}

/// A peer that offers less than any segment can have is sent segments of Linux's minimum.
#[test]
fn a_peer_mss_below_the_minimum_is_raised() {
    let mut t = ScriptedTcpPeer::new(|_| {}, (testkit::HOST, testkit::PEER));
    t.host.listen(ListenConfig { addr: None, port: 80, backlog: 16 }).expect("it is free");
    t.send(seg!(SYN mss 12 sack_ok tsval 5000 wscale 7));
    t.take("a SYN-ACK");
    t.send(seg!(ACK));
    t.accepted();
    t.app_option(SocketOption::MaxSegment(1000));
    assert_eq!(t.info().mss, 76);
    t.app_write(&[0; 100]);
    t.expect(seg!(ACK seq 1 run 76));
}

/// A FIN with retransmitted bytes is no new data (Linux: `tcp_rcv_state_process`).
#[test]
fn a_fin_with_old_data_closes_in_order() {
    for close in [ScriptedTcpPeer::app_close, ScriptedTcpPeer::app_shutdown] {
        let mut t = ScriptedTcpPeer::server().established();
        t.send(seg!(ACK seq 1 data b"data"));
        t.take_all();
        t.app_read();
        t.host.shutdown_read(t.now(), t.socket());
        close(&mut t);
        t.expect(seg!(ACK FIN seq 1 ack 5));
        t.send(seg!(ACK FIN seq 1 ack 1 data b"data"));
        assert!(t.take_all().iter().all(|s| !s.flags.has(TcpFlags::RST)));
        assert_eq!(t.host.counters().tcp_out_rsts, 0);
    }
}

/// `SHUT_RD`: unread bytes and bytes that still arrive are discarded and acknowledged, so that the
/// window never closes.
#[test]
fn shutdown_read_discards_data() {
    let mut t = ScriptedTcpPeer::server_with(|c| c.tcp.receive_bytes_max = 4096).established();
    t.send_data(b"unread");
    t.take_all();
    let socket = t.socket();
    t.expect_counters(
        |t| {
            t.host.shutdown_read(t.now(), socket);
            t.pump();
        },
        &[("tcp_discarded_bytes", 6)],
    );
    let ready = t.host.readiness(socket);
    assert_eq!((ready.readable, ready.peer_closed, ready.writable), (false, true, true));
    t.expect_counters(
        |t| {
            for _ in 0..20 {
                t.send_data(&[0; 1000]);
            }
        },
        &[("tcp_discarded_bytes", 20_000)],
    );
    t.after_ms(50);
    assert_eq!(t.take_all().last().and_then(|s| s.ack), Some(20_007));
    assert!(t.app_read().is_empty());
    t.app_write(b"answer");
    t.expect(seg!(ACK seq 1 ack 20_007 data b"answer"));
    t.send(seg!(ACK));
    t.app_shutdown();
    t.expect(seg!(ACK FIN seq 7));
    t.send(seg!(ACK));
    assert_eq!(t.state(), "FIN-WAIT-2");
    // RFC 1122 section 4.2.2.13: data for a closed connection is answered with a reset.
    t.send_data(b"more");
    t.expect(seg!(RST ACK seq 8));
    assert_eq!(t.error(), Some(SocketError::Closed));
}

/// After `SHUT_RD` the peer's FIN closes the connection in order.
#[test]
fn shutdown_read_closes_in_order() {
    let mut t = ScriptedTcpPeer::server().established();
    t.host.shutdown_read(t.now(), t.socket());
    t.app_shutdown();
    t.expect(seg!(ACK FIN seq 1));
    t.send(seg!(ACK));
    t.send(seg!(ACK FIN));
    t.expect(seg!(ACK seq 2 ack 2));
    assert_eq!(t.state(), "TIME-WAIT");
}

/// `TCP_INFO` shows the state of recovery and the scoreboard.
#[test]
fn tcp_info_shows_recovery() {
    let mut t = unpaced(10);
    t.app_write(b"x");
    t.take("a byte");
    t.at_ms(100);
    t.send(seg!(ACK));
    let at = |n: u32| 2 + n * 1448;
    t.app_write(&[0; 14_480]);
    t.take_all();
    assert_eq!((t.info().congestion_state, t.info().reordering), ("Open", 3));
    t.at_ms(200);
    t.send(seg!(ACK ack 2 sack (at(5), at(6))));
    let info = t.info();
    assert_eq!((info.congestion_state, info.sacked, info.lost), ("Disorder", 1448, 0));
    t.send(seg!(ACK ack 2 sack (at(5), at(8))));
    let info = t.info();
    assert_eq!((info.congestion_state, info.sacked, info.lost), ("Recovery", 3 * 1448, 5 * 1448));
    assert_eq!(info.min_rtt, Duration::from_millis(100));
    // The original arrives after all, after seven later segments.
    let mut t = unpaced(10);
    t.app_write(&[0; 14_480]);
    t.take_all();
    t.at_ms(100);
    t.send(seg!(ACK ack 1 sack (1449, 1 + 8 * 1448)));
    t.take_all();
    t.at_ms(101);
    t.send(seg!(ACK ack 1449 sack (1 + 4 * 1448, 1 + 8 * 1448) tsecr 0));
    assert_eq!(t.info().congestion_state, "Disorder", "it was undone");
    let mut t = unpaced(10);
    t.app_write(&[0; 1448]);
    t.at_ms(5000);
    assert_eq!(t.info().congestion_state, "Loss");
}

/// `TCP_INFO` shows the reordering in segments, the peer's segment size, and the delivery rate.
#[test]
fn tcp_info_shows_the_path() {
    let mut t = unpaced(10);
    t.app_write(&[0; 14_480]);
    t.take_all();
    t.at_ms(100);
    t.send(seg!(ACK ack 1 sack (seq_of_segment(1), seq_of_segment(3))));
    assert_eq!(t.info().reordering, 3);
    t.send(seg!(ACK ack (seq_of_segment(1)) sack (seq_of_segment(1), seq_of_segment(3))
        sack (seq_of_segment(8), seq_of_segment(9))));
    t.send(seg!(ACK ack (seq_of_segment(4))));
    assert_eq!(t.info().reordering, 6, "segment 3, behind segment 8");
    assert_eq!(t.info().delivery_rate, 0);
    t.at_ms(200);
    t.send(seg!(ACK ack (seq_of_segment(10))));
    let info = t.info();
    assert_eq!(info.delivery_rate, 14_480 * 5, "10 segments in 200 ms");
    assert!(info.delivery_rate_app_limited || t.info().send_queue == 0);
    assert_eq!(info.rcv_mss, 0);
    t.send_data(&[0; 1200]);
    t.send_data(&[0; 700]);
    assert_eq!(t.info().rcv_mss, 1200);
}
