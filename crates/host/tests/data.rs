//! Data in both directions without loss: acknowledgments, reassembly, small segments, windows,
//! pacing.

use base::Duration;
use outboard_host::SocketOption;
use testkit::{ScriptedTcpPeer, seg};

/// Number of segments that are acknowledged at once at the start of a connection, as in Linux.
const QUICK_ACKS: usize = 16;

fn quick_phase_over() -> ScriptedTcpPeer {
    let mut t = ScriptedTcpPeer::server().established();
    for _ in 0..QUICK_ACKS {
        t.send_data(b"x");
        t.expect(seg!(ACK));
    }
    t.app_read();
    t
}

/// RFC 5681 section 4.2, RFC 9293 section 3.8.6.3: an acknowledgment may be delayed, here by 40 ms.
#[test]
fn an_acknowledgment_is_delayed() {
    let mut t = quick_phase_over();
    let at = t.ms();
    t.expect_counters(
        |t| {
            t.send_data(b"hello");
            t.expect_nothing();
            t.after_ms(39);
            t.expect_nothing();
            t.after_ms(1);
        },
        &[("tcp_delayed_acks", 1)],
    );
    t.expect_at(at + 40, seg!(ACK ack 22));
}

/// RFC 5681 section 4.2: at least every second segment is acknowledged at once.
#[test]
fn every_second_segment_is_acknowledged() {
    let mut t = quick_phase_over();
    t.send_data(&[0; 1448]);
    t.expect_nothing();
    t.send_data(&[0; 1448]);
    t.expect(seg!(ACK ack 2913));
    t.after_ms(100);
    t.expect_nothing();
}

/// RFC 9293 section 3.8.6.3: data carries the acknowledgment.
#[test]
fn data_carries_the_acknowledgment() {
    let mut t = quick_phase_over();
    t.send_data(b"ping");
    t.app_write(b"pong");
    t.expect(seg!(ACK PSH seq 1 ack 21 data b"pong"));
    t.after_ms(100);
    t.send(seg!(ACK));
    t.expect_nothing();
}

/// RFC 2018 section 4: out-of-order ranges are reported, the latest first; at once, by RFC 5681
/// section 4.2.
#[test]
fn out_of_order_segments_are_reported() {
    let mut t = ScriptedTcpPeer::server().established();
    t.send(seg!(ACK seq 4 ack 1 data b"def"));
    t.expect(seg!(ACK ack 1 sack (4, 7)));
    t.send(seg!(ACK seq 10 ack 1 data b"jkl"));
    t.expect(seg!(ACK ack 1 sack (10, 13) sack (4, 7)));
    t.send(seg!(ACK seq 7 ack 1 data b"ghi"));
    t.expect(seg!(ACK ack 1 sack (4, 13)));
    t.send(seg!(ACK seq 1 ack 1 data b"abc"));
    t.expect(seg!(ACK ack 13 no_sack));
    assert_eq!(t.app_read(), b"abcdefghijkl");
}

/// RFC 2883 section 4: a duplicate is reported once, in the first block.
#[test]
fn duplicates_are_reported_by_dsack() {
    let mut t = ScriptedTcpPeer::server().established();
    t.send_data(b"abcdef");
    t.expect(seg!(ACK ack 7));
    t.send(seg!(ACK seq 1 ack 1 data b"abcdef"));
    t.expect(seg!(ACK ack 7 sack (1, 7)));
    t.send(seg!(ACK seq 10 ack 1 data b"jkl"));
    t.expect(seg!(ACK ack 7 sack (10, 13)));
    t.send(seg!(ACK seq 10 ack 1 data b"jkl"));
    t.expect(seg!(ACK ack 7 sack (10, 13) sack (10, 13)));
}

/// RFC 2018 section 2: SACK is not used unless negotiated. Duplicates do not keep data from
/// carrying acknowledgments.
#[test]
fn no_sack_without_agreement() {
    let mut t = ScriptedTcpPeer::server().established_by(&seg!(SYN mss 1460));
    t.send(seg!(ACK seq 4 ack 1 data b"def"));
    t.expect(seg!(ACK ack 1 no_sack));
    t.send(seg!(ACK seq 1 ack 1 data b"abc"));
    t.expect(seg!(ACK ack 7 no_sack));
    t.send(seg!(ACK seq 1 ack 1 data b"abcdef"));
    t.expect(seg!(ACK ack 7 no_sack));
    for _ in 2..QUICK_ACKS {
        t.send_data(b"y");
        t.take("an acknowledgment");
    }
    t.send_data(b"z");
    t.app_write(b"reply");
    t.expect(seg!(ACK PSH seq 1 ack 22 data b"reply"));
    t.at_ms(100);
    t.expect_nothing();
}

/// RFC 9293 section 3.7.4 with Minshall's change: one small segment at a time is outstanding.
#[test]
fn nagle_holds_the_second_small_segment() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_write(b"a");
    t.expect(seg!(ACK PSH seq 1 data b"a"));
    t.app_write(b"b");
    t.app_write(b"c");
    t.expect_nothing();
    t.send(seg!(ACK ack 2));
    t.expect(seg!(ACK PSH seq 2 data b"bc"));
}

/// The full segments of a write are sent; its rest waits for the small segment before it.
#[test]
fn nagle_holds_only_the_rest() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_write(b"a");
    t.take("the small one");
    t.app_write_zeros(1448 + 100);
    t.expect(seg!(ACK seq 2 len 1448));
    t.expect_nothing();
    t.send(seg!(ACK ack 2));
    t.expect(seg!(ACK PSH seq 1450 len 100));
}

/// A full segment in flight does not hold back a small one (Minshall).
#[test]
fn a_small_rest_follows_full_segments_at_once() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_write_zeros(2 * 1448 + 10);
    t.expect(seg!(ACK PSH seq 1 len 2906 run 1448));
    t.app_write_zeros(5);
    t.expect_nothing();
}

#[test]
fn no_delay_switches_nagle_off() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_option(SocketOption::NoDelay(true));
    t.app_write(b"a");
    t.expect(seg!(ACK PSH data b"a"));
    t.app_write(b"b");
    t.expect(seg!(ACK PSH data b"b"));
}

#[test]
fn cork_holds_partial_segments() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_option(SocketOption::Cork(true));
    t.app_write_zeros(100);
    t.expect_nothing();
    t.app_write_zeros(1448);
    t.expect(seg!(ACK seq 1 len 1448));
    t.expect_nothing();
    t.app_option(SocketOption::Cork(false));
    t.expect(seg!(ACK PSH seq 1449 len 100));
}

/// A FIN is not held back by a cork.
#[test]
fn closing_uncorks() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_option(SocketOption::Cork(true));
    t.app_write(b"rest");
    t.app_shutdown();
    t.expect(seg!(ACK PSH FIN seq 1 data b"rest"));
}

/// RFC 6928: the initial window is ten segments. RFC 5681 section 3.1: it doubles in a round trip.
#[test]
fn the_initial_window_is_ten_segments() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_write_zeros(100_000);
    t.expect(seg!(ACK seq 1 len 14480 run 1448));
    t.expect_nothing();
    assert_eq!(t.info().cwnd, 14_480);
    t.at_ms(1);
    t.send(seg!(ACK ack 14481));
    t.expect(seg!(ACK seq 14481 len 28960));
    t.expect_nothing();
    assert_eq!(t.info().cwnd, 28_960);
}

/// RFC 5681 section 4.1: after an idle period the window restarts at its initial size.
#[test]
fn an_idle_connection_begins_again() {
    let mut t = ScriptedTcpPeer::server().established();
    for round in 0..3 {
        t.app_write_zeros(14_480 << round);
        t.take("a window");
        t.after_ms(1);
        t.send(seg!(ACK));
    }
    assert!(t.info().cwnd >= 100_000, "{}", t.info().cwnd);
    t.after_ms(60_000);
    t.app_write_zeros(100_000);
    t.expect(seg!(ACK len 14480));
    t.expect_nothing();
}

/// A window is spread over a long round trip, but not over a short one; see RFC 9002 section 7.7
/// for the reasons.
#[test]
fn pacing_spreads_a_window() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_write_zeros(14_480);
    t.take("the first window, unpaced");
    t.at_ms(100);
    t.send(seg!(ACK));
    t.app_write_zeros(28_960);
    t.at_ms(195);
    let sent = t.take_timed();
    assert_eq!(sent.iter().map(|(_, s)| s.len.unwrap()).sum::<u32>(), 28_960);
    let (first, last) = (sent[0].0, sent[sent.len() - 1].0);
    assert!((30_000..60_000).contains(&(last - first)), "over half a round trip: {sent:?}");
    assert!(sent.iter().all(|(_, s)| s.len.unwrap() <= 2 * 1448), "{sent:?}");
}

#[test]
fn short_round_trips_are_not_paced() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_write_zeros(14_480);
    t.take("the first window");
    t.at_us(1500);
    t.send(seg!(ACK));
    t.app_write_zeros(28_960);
    t.expect(seg!(ACK len 28960));
}

/// A short round trip is not paced, even if queues under load make it longer.
#[test]
fn a_loaded_short_path_is_not_paced() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_write_zeros(14_480);
    t.take("the first window");
    t.at_us(1500);
    t.send(seg!(ACK));
    t.app_write_zeros(28_960);
    t.take("the second window");
    t.at_ms(40);
    t.take_all();
    t.send(seg!(ACK));
    assert!(t.info().srtt > Duration::from_millis(4));
    t.app_write_zeros(28_960);
    t.expect(seg!(ACK len 28960));
}

/// Time during which the host's thread did not run is made up for, in long runs; short ones would
/// delay it further.
#[test]
fn pacing_makes_up_for_a_late_thread() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_write_zeros(14_480);
    t.take("the first window, unpaced");
    t.at_ms(100);
    t.send(seg!(ACK));
    t.app_write_zeros(28_960);
    let at_once: u32 = t.take_all().iter().map(|s| s.len.unwrap()).sum();
    assert!(at_once <= 3 * 2896, "{at_once}");
    t.stall_ms(20);
    let late = t.take_all();
    assert!(late[0].len.unwrap() >= 3 * 1448, "what came due in 20 ms of 100: {late:?}");
    // Slow start sends twice the window per round trip: two fifths of the window in 20 ms.
    let total = at_once + late.iter().map(|s| s.len.unwrap()).sum::<u32>();
    assert!((11_000..20_000).contains(&total) && late.len() < 6, "{total}: {}", late.len());
}

/// RFC 6298 section 2: the round-trip time estimator.
#[test]
fn round_trips_are_measured() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_write(b"a");
    t.at_ms(100);
    t.send(seg!(ACK));
    assert_eq!(t.info().srtt, Duration::from_millis(100));
    // 100 + max(200 ms, 4 x 50): section 2.2 with Linux's floor.
    assert_eq!(t.info().rto, Duration::from_millis(300));
}

/// The send buffer is bounded, and the application is notified when there is room again.
#[test]
fn the_send_buffer_is_bounded() {
    let mut t = ScriptedTcpPeer::server_with(|c| c.tcp.send_bytes_max = 10_000).established();
    let big = bytes::Bytes::from(vec![0; 20_000]);
    assert_eq!(t.host.send(t.now(), t.socket(), big), Ok(10_000));
    t.pump();
    assert!(!t.host.readiness(t.socket()).writable);
    t.notices.clear();
    t.take("ten thousand bytes");
    t.send(seg!(ACK));
    assert!(t.host.readiness(t.socket()).writable);
    assert!(!t.notices.is_empty(), "the application is told");
}
