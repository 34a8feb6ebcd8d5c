//! Loss: RFC 6298 (time-out), RFC 8985 (RACK-TLP), RFC 6937 (PRR), RFC 3522 (Eifel), RFC 2883 and
//! RFC 3708 (DSACK), RFC 6582 (NewReno).

use base::Duration;
use outboard_host::{MtuProbing, SocketError, SocketOption};
use testkit::{ScriptedTcpPeer, seg};

/// Returns an established, unpaced connection with a measured round trip of 100 ms and a congestion
/// window of `segments` times 1448 bytes.
fn warm(segments: u32) -> ScriptedTcpPeer {
    let t = ScriptedTcpPeer::server_with(|c| {
        c.tcp.pacing = false;
        c.tcp.initial_window = segments;
    })
    .established();
    warmed(t)
}

fn warmed(mut t: ScriptedTcpPeer) -> ScriptedTcpPeer {
    t.app_write(b"x");
    t.take("a byte");
    t.at_ms(100);
    t.send(seg!(ACK));
    assert_eq!(t.info().srtt, Duration::from_millis(100));
    t
}

/// Returns the sequence number `n` segments after the byte that `warmed` sent.
fn seq_of_segment(n: u32) -> u32 {
    2 + n * 1448
}

/// RFC 6298 section 5: the time-out doubles, and lost data is retransmitted in slow start.
#[test]
fn the_time_out_backs_off() {
    let t = ScriptedTcpPeer::server_with(|c| {
        (c.tcp.pacing, c.tcp.mtu_probing) = (false, MtuProbing::Off);
    });
    let mut t = warmed(t.established());
    t.app_write_zeros(14480);
    t.expect_at(100, seg!(ACK seq 2 len 14480));
    t.expect_counters(
        |t| {
            t.at_ms(3000);
            // After two round trips a tail loss probe; then time-outs of 300, 600 and 1200 ms.
            t.expect_at(300, seg!(ACK PSH seq (seq_of_segment(9)) len 1448 again));
            t.expect_at(600, seg!(ACK seq 2 len 1448 again));
            t.expect_at(1200, seg!(ACK seq 2 len 1448 again));
            t.expect_at(2400, seg!(ACK seq 2 len 1448 again));
            t.expect_nothing();
        },
        &[
            ("tcp_tail_probes", 1),
            ("tcp_timeouts", 3),
            ("tcp_retrans", 4),
            ("tcp_retrans_bytes", 4 * 1448),
        ],
    );
    assert_eq!(t.info().cwnd, 1448, "RFC 5681 section 3.1: the loss window");
    t.send(seg!(ACK ack (seq_of_segment(1))));
    t.expect(seg!(ACK seq (seq_of_segment(1)) len 2896 again));
}

/// Karn's algorithm (RFC 6298 section 3): without timestamps a retransmitted segment is no sample.
#[test]
fn a_retransmitted_segment_is_no_sample() {
    let mut t = ScriptedTcpPeer::server().established_by(&seg!(SYN mss 1460));
    t.app_write(b"x");
    t.take("data");
    t.at_ms(1000);
    t.expect(seg!(ACK seq 1 len 1 again));
    t.at_ms(1400);
    t.send(seg!(ACK));
    assert_eq!(t.info().srtt, Duration::ZERO);
}

/// RFC 7323 section 4.1: with timestamps it is one, by the echo.
#[test]
fn a_timestamp_samples_a_retransmission() {
    let mut t = ScriptedTcpPeer::server_with(|c| c.tcp.sack = false).established();
    t.app_write(b"x");
    t.take("data");
    t.at_ms(1000);
    t.expect(seg!(ACK seq 1 len 1 again));
    t.at_ms(1400);
    t.send(seg!(ACK));
    assert_eq!(t.info().srtt, Duration::from_millis(400));
}

/// RFC 8985 section 6.2, RFC 6675: after SACKs of three segments beyond a hole the hole is
/// retransmitted at once.
#[test]
fn three_sacks_repair_a_hole_at_once() {
    let mut t = warm(10);
    t.app_write_zeros(14480);
    t.take("a window");
    t.at_ms(200);
    t.expect_counters(
        |t| {
            t.send(seg!(ACK ack 2 sack (seq_of_segment(1), seq_of_segment(2))));
            t.send(seg!(ACK ack 2 sack (seq_of_segment(1), seq_of_segment(3))));
            t.expect_nothing();
            t.send(seg!(ACK ack 2 sack (seq_of_segment(1), seq_of_segment(4))));
            t.expect(seg!(ACK seq 2 len 1448 again ecn 0));
        },
        &[("tcp_recoveries", 1), ("tcp_retrans", 1), ("tcp_retrans_bytes", 1448)],
    );
    t.at_ms(300);
    t.send(seg!(ACK ack (seq_of_segment(10))));
    t.expect_nothing();
    assert_eq!(t.info().ssthresh, 14480 * 7 / 10, "RFC 9438 section 4.6");
    assert_eq!(t.info().cwnd, t.info().ssthresh, "RFC 6937 section 3");
}

/// RFC 8985 section 6.3: after a SACK of one segment beyond a hole the hole is lost a quarter of a
/// round trip later.
#[test]
fn one_sack_repairs_a_hole_after_the_reordering_window() {
    let mut t = warm(10);
    t.app_write_zeros(14480);
    t.take("a window");
    t.at_ms(200);
    t.send(seg!(ACK ack 2 sack (seq_of_segment(1), seq_of_segment(2))));
    t.expect_nothing();
    t.expect_counters(
        |t| t.at_ms(230),
        &[("tcp_recoveries", 1), ("tcp_retrans", 1), ("tcp_retrans_bytes", 1448)],
    );
    t.expect_at(225, seg!(ACK seq 2 len 1448 again));
    t.expect_nothing();
}

/// RFC 8985 section 6.2: a segment reordered within that time is not retransmitted.
#[test]
fn reordering_within_the_window_is_tolerated() {
    let mut t = warm(10);
    t.app_write_zeros(14480);
    t.take("a window");
    t.at_ms(200);
    t.expect_counters(
        |t| {
            t.send(seg!(ACK ack 2 sack (seq_of_segment(1), seq_of_segment(2))));
            t.at_ms(220);
            t.send(seg!(ACK ack (seq_of_segment(2))));
            t.at_ms(260);
        },
        &[],
    );
    t.expect_nothing();
    // From now on three SACKs no longer prove a loss.
    t.send(seg!(ACK ack (seq_of_segment(2)) sack (seq_of_segment(3), seq_of_segment(6))));
    t.expect_nothing();
}

/// RFC 6937: after a loss about seven segments are sent for ten that arrive (CUBIC's beta).
#[test]
fn the_rate_is_reduced_in_proportion() {
    let mut t = warm(20);
    t.app_write_zeros(60 * 1448);
    t.take("a window");
    t.expect_nothing();
    t.at_ms(200);
    let mut new_bytes = 0;
    for n in 2..=20 {
        t.send(seg!(ACK ack 2 sack (seq_of_segment(1), seq_of_segment(n))));
        let sent: u32 = t.take_all().iter().map(|s| s.len.unwrap()).sum();
        new_bytes += sent;
        if n > 4 {
            assert!(sent <= 2 * 1448, "no burst: {sent} bytes for one segment delivered");
        }
    }
    let segments = new_bytes / 1448;
    assert!((11..=15).contains(&segments), "{segments} segments in place of 19");
}

/// RFC 8985 section 7: a lost tail is probed after two round trips, and the acknowledgment of the
/// probe leads to its repair without a time-out.
#[test]
fn a_lost_tail_is_repaired_by_a_probe() {
    let mut t = warm(10);
    t.app_write_zeros(4 * 1448);
    t.take("four segments");
    t.at_ms(200);
    t.send(seg!(ACK ack (seq_of_segment(2))));
    t.expect_counters(
        |t| {
            t.at_ms(400);
            t.expect_at(400, seg!(ACK PSH seq (seq_of_segment(3)) len 1448 again));
            t.at_ms(500);
            t.send(seg!(ACK ack (seq_of_segment(2)) sack (seq_of_segment(3), seq_of_segment(4))));
            t.expect(seg!(ACK seq (seq_of_segment(2)) len 1448 again));
            t.at_ms(600);
            t.send(seg!(ACK ack (seq_of_segment(4))));
        },
        &[
            ("tcp_tail_probes", 1),
            ("tcp_recoveries", 1),
            ("tcp_retrans", 2),
            ("tcp_retrans_bytes", 2896),
        ],
    );
    t.at_ms(5000);
    t.expect_nothing();
}

/// RFC 8985 section 7.3: the probe has new data, if there is any.
#[test]
fn a_probe_prefers_new_data() {
    let mut t = warm(2);
    t.app_write_zeros(3 * 1448);
    t.expect(seg!(ACK seq 2 len 2896));
    t.at_ms(350);
    t.expect_at(300, seg!(ACK PSH seq (seq_of_segment(2)) len 1448 first));
}

/// RFC 8985 section 7.4.2: a probe that repaired a single loss reduces the window, once later data
/// is acknowledged.
#[test]
fn a_repair_by_a_probe_is_noticed() {
    let mut t = warm(10);
    t.app_write_zeros(1448);
    t.take("one segment");
    // Two round trips and the peer's delay exceed the time-out of 300 ms, so the probe takes its
    // place.
    t.at_ms(500);
    t.expect_at(400, seg!(ACK seq 2 len 1448 again));
    t.at_ms(600);
    t.expect_counters(|t| t.send(seg!(ACK)), &[]);
    t.app_write_zeros(1448);
    t.take("the next");
    t.at_ms(700);
    t.expect_counters(|t| t.send(seg!(ACK)), &[("tcp_tail_probe_repairs", 1)]);
    assert_eq!(t.info().ssthresh, 14480 * 7 / 10);
}

/// RFC 8985 section 7.4.2: a DSACK shows that the probe was not needed.
#[test]
fn an_unneeded_probe_costs_nothing() {
    let mut t = warm(10);
    t.app_write_zeros(1448);
    t.take("one segment");
    t.at_ms(410);
    t.expect_at(400, seg!(ACK seq 2 len 1448 again));
    t.send(seg!(ACK));
    t.at_ms(600);
    t.expect_counters(|t| t.send(seg!(ACK sack (2, seq_of_segment(1)))), &[("tcp_dsacks", 1)]);
    t.app_write_zeros(1448);
    t.take("the next");
    t.at_ms(700);
    t.expect_counters(|t| t.send(seg!(ACK)), &[]);
    assert_eq!(t.info().ssthresh, u32::MAX);
}

/// RFC 3522: the acknowledgment of the original arrives after the time-out, which is undone.
#[test]
fn a_spurious_time_out_is_undone() {
    let mut t = ScriptedTcpPeer::server_with(|c| {
        c.tcp.pacing = false;
        c.tcp.sack = false;
    })
    .established();
    t = warmed(t);
    t.app_write_zeros(14480);
    t.take("a window");
    t.at_ms(450);
    t.expect_at(400, seg!(ACK seq 2 len 1448 again));
    let before = t.info().cwnd;
    assert_eq!(before, 1448);
    t.expect_counters(|t| t.send(seg!(ACK ack (seq_of_segment(1)) tsecr 100)), &[("tcp_undos", 1)]);
    assert!(t.info().cwnd >= 14480, "{}", t.info().cwnd);
    assert_eq!(t.info().ssthresh, u32::MAX);
    assert!(t.take_all().iter().all(|s| s.again == Some(false)), "nothing else is sent again");
}

/// RFC 3708: a recovery is undone if every retransmission is answered by a DSACK.
#[test]
fn dsacks_undo_a_recovery() {
    let mut t = ScriptedTcpPeer::server_with(|c| {
        c.tcp.pacing = false;
        c.tcp.timestamps = false;
    })
    .established();
    t.app_write_zeros(14600);
    t.take("a window");
    t.at_ms(100);
    let at = |n: u32| 1 + n * 1460;
    t.send(seg!(ACK ack 1 sack (at(1), at(4))));
    t.expect(seg!(ACK seq 1 len 1460 again));
    t.at_ms(102);
    t.send(seg!(ACK ack (at(10))));
    assert!(t.info().ssthresh < 14600);
    t.at_ms(200);
    t.expect_counters(
        |t| t.send(seg!(ACK ack (at(10)) sack (1, at(1)))),
        &[("tcp_dsacks", 1), ("tcp_undos", 1)],
    );
    assert_eq!((t.info().ssthresh, t.info().cwnd >= 14600), (u32::MAX, true));
}

/// RFC 6582 section 3.2: without SACK three duplicate acknowledgments start a recovery, and each
/// partial acknowledgment repairs the next hole.
#[test]
fn duplicates_repair_without_sack() {
    let mut t =
        ScriptedTcpPeer::server_with(|c| c.tcp.pacing = false).established_by(&seg!(SYN mss 1460));
    t.app_write_zeros(14600);
    t.take("a window");
    t.at_ms(100);
    let at = |n: u32| 1 + n * 1460;
    t.expect_counters(
        |t| {
            t.send(seg!(ACK ack 1));
            t.send(seg!(ACK ack 1));
            t.expect_nothing();
            t.send(seg!(ACK ack 1));
            t.expect(seg!(ACK seq 1 len 1460 again));
            t.send(seg!(ACK ack 1));
            t.expect_nothing();
            t.at_ms(200);
            t.send(seg!(ACK ack (at(5))));
            t.expect(seg!(ACK seq (at(5)) len 1460 again));
            t.at_ms(300);
            t.send(seg!(ACK ack (at(10))));
            t.expect_nothing();
        },
        &[("tcp_recoveries", 1), ("tcp_retrans", 2), ("tcp_retrans_bytes", 2920)],
    );
    assert_eq!(t.info().cwnd, t.info().ssthresh);
}

/// RFC 3042: without SACK each of the first two duplicate acknowledgments lets a new segment out,
/// beyond the window.
#[test]
fn duplicates_let_new_segments_out() {
    let mut t =
        ScriptedTcpPeer::server_with(|c| c.tcp.pacing = false).established_by(&seg!(SYN mss 1460));
    t.app_write_zeros(5 * 14_600);
    t.take("a window");
    let at = |n: u32| 1 + n * 1460;
    for n in 10..12 {
        t.send(seg!(ACK ack 1));
        t.expect(seg!(ACK seq (at(n)) len 1460));
        t.expect_nothing();
    }
    t.send(seg!(ACK ack 1));
    t.expect(seg!(ACK seq 1 len 1460 again));
    t.expect_nothing();
}

/// RFC 8985 section 3: RACK detects a lost retransmission, too.
#[test]
fn a_lost_retransmission_is_repaired() {
    let mut t = warm(10);
    t.app_write_zeros(30 * 1448);
    t.take("a window");
    t.at_ms(200);
    t.send(seg!(ACK ack 2 sack (seq_of_segment(1), seq_of_segment(4))));
    t.expect(seg!(ACK seq 2 len 1448 again));
    for n in 5..=10 {
        t.send(seg!(ACK ack 2 sack (seq_of_segment(1), seq_of_segment(n))));
    }
    assert!(!t.take_all().is_empty(), "new data goes out meanwhile");
    t.at_ms(300);
    t.send(seg!(ACK ack 2 sack (seq_of_segment(1), seq_of_segment(11))));
    t.at_ms(340);
    assert!(t.take_all().iter().any(|s| s.seq == Some(2) && s.again == Some(true)));
}

/// RFC 2018 section 8: after a time-out the SACKs of a peer that discarded their data are ignored.
#[test]
fn reneged_sacks_are_ignored_after_a_time_out() {
    let mut t = warm(10);
    t.app_write_zeros(2 * 1448);
    t.take("two segments");
    t.at_ms(200);
    t.send(seg!(ACK ack 2 sack (seq_of_segment(1), seq_of_segment(2))));
    t.at_ms(250);
    t.expect(seg!(ACK seq 2 len 1448 again));
    t.at_ms(300);
    t.send(seg!(ACK ack (seq_of_segment(1))));
    t.at_ms(10_000);
    let sent = t.take_all();
    assert!(
        sent.iter().any(|s| s.seq == Some(seq_of_segment(1)) && s.again == Some(true)),
        "{sent:?}"
    );
}

/// RFC 5482: a connection ends if its bytes stay unacknowledged for too long; idle time before them
/// does not count.
#[test]
fn the_user_time_out_counts_from_the_first_byte() {
    let mut t = ScriptedTcpPeer::server().established();
    t.app_option(SocketOption::UserTimeout(Duration::from_secs(20)));
    t.at_ms(100_000);
    t.app_write(b"hello");
    t.take("data");
    t.at_ms(110_000);
    assert_eq!(t.state(), "ESTABLISHED");
    t.expect_counters(
        |t| t.at_ms(150_000),
        &[
            ("tcp_tail_probes", 0),
            ("tcp_timed_out", 1),
            ("tcp_timeouts", 1),
            ("tcp_estab_resets", 1),
            ("tcp_out_rsts", 1),
            ("tcp_retrans", 1),
            ("tcp_retrans_bytes", 5),
        ]
        .into_iter()
        .filter(|&(_, by)| by > 0)
        .collect::<Vec<_>>(),
    );
    assert_eq!(t.error(), Some(SocketError::TimedOut));
}
