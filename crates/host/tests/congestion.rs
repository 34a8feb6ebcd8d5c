//! Congestion control: RFC 3168 (ECN), RFC 3042 (limited transmit), RFC 5681 and RFC 7661 (growth),
//! RFC 8985 (RACK's round trip), RFC 9438 (CUBIC's reduction), and waiting for a longer run.

use base::Duration;
use testkit::{ScriptedTcpPeer, Seg, seg};

/// Returns an established, unpaced connection with a measured round trip of 100 ms and a congestion
/// window of `segments` times 1448 bytes.
fn warm(segments: u32, syn: &Seg) -> ScriptedTcpPeer {
    let mut t = ScriptedTcpPeer::server_with(|c| {
        c.tcp.pacing = false;
        c.tcp.initial_window = segments;
    })
    .established_by(syn);
    t.app_write(b"x");
    t.take("a byte");
    t.at_ms(100);
    t.send(seg!(ACK));
    assert_eq!(t.info().srtt, Duration::from_millis(100));
    assert_eq!(t.info().cwnd, segments * 1448);
    t
}

fn warm_without_ecn(segments: u32) -> ScriptedTcpPeer {
    warm(segments, &seg!(SYN mss 1460 sack_ok tsval 5000 wscale 7))
}

fn with_ecn(segments: u32) -> ScriptedTcpPeer {
    warm(segments, &seg!(SYN ECE CWR mss 1460 sack_ok tsval 5000 wscale 7))
}

/// Returns the sequence number `n` segments after the byte that `warm` sent.
fn seq_of_segment(n: u32) -> u32 {
    2 + n * 1448
}

/// Removes all segments that the host sent. Returns the sum of their payload lengths.
fn sent_bytes(t: &mut ScriptedTcpPeer) -> u32 {
    t.take_all().iter().map(|s| s.len.unwrap_or(0)).sum()
}

/// RFC 3168 section 6.1.2 with RFC 6937: the reduction starts with the acknowledgment that has ECE.
/// It delivers one of four segments: two new ones may leave, as in Linux, and not as many as the
/// old window allows.
#[test]
fn an_echo_reduces_the_window_at_once() {
    let mut t = with_ecn(10);
    t.app_write_zeros(4 * 1448);
    t.take("four segments");
    t.at_ms(200);
    t.expect_counters(
        |t| t.send(seg!(ACK ECE ack (seq_of_segment(1)))),
        &[("tcp_ecn_reductions", 1)],
    );
    assert_eq!((t.info().ssthresh, t.info().cwnd), (14_480 * 7 / 10, 5 * 1448));
    t.app_write_zeros(20 * 1448);
    t.expect(seg!(ACK CWR seq (seq_of_segment(4)) len 2896 first));
    t.expect_nothing();
    // ECE for data sent before the peer learned of the reduction causes no second one.
    t.at_ms(210);
    t.expect_counters(|t| t.send(seg!(ACK ECE ack (seq_of_segment(4)))), &[]);
    assert!(sent_bytes(&mut t) <= 4 * 1448);
    t.at_ms(300);
    t.expect_counters(|t| t.send(seg!(ACK ack (seq_of_segment(6)))), &[]);
    assert_eq!(t.info().cwnd, t.info().ssthresh, "RFC 6937 section 3");
    // ECE for later data does.
    t.take_all();
    t.expect_counters(
        |t| t.send(seg!(ACK ECE ack (seq_of_segment(7)))),
        &[("tcp_ecn_reductions", 1)],
    );
}

/// If the acknowledgment with ECE leaves nothing outstanding, the window becomes the threshold, and
/// the next data has CWR.
#[test]
fn an_echo_with_the_last_acknowledgment_reduces_the_window() {
    let mut t = with_ecn(10);
    t.app_write_zeros(4 * 1448);
    t.take("four segments");
    t.at_ms(200);
    t.expect_counters(
        |t| t.send(seg!(ACK ECE ack (seq_of_segment(4)))),
        &[("tcp_ecn_reductions", 1)],
    );
    t.expect_counters(|t| t.send(seg!(ACK ECE ack (seq_of_segment(4)))), &[]);
    assert_eq!(t.info().cwnd, 14_480 * 7 / 10);
    t.app_write_zeros(20 * 1448);
    t.expect(seg!(ACK CWR seq (seq_of_segment(4)) len (7 * 1448) first));
}

/// RFC 3168 section 6.1.2: CWR reports every reduction to the peer, also one after a time-out.
#[test]
fn a_time_out_is_reported_by_cwr() {
    let mut t = with_ecn(10);
    t.app_write_zeros(1448);
    t.take("a segment");
    t.at_ms(1500);
    assert!(t.info().ssthresh < u32::MAX, "the timer has expired");
    t.take_all();
    t.send(seg!(ACK));
    t.app_write_zeros(1448);
    t.expect(seg!(ACK CWR seq (seq_of_segment(1)) len 1448 first));
}

/// RFC 3042, RFC 6675 section 5: each of the first segments that arrive out of order lets a new one
/// out, even if the host could wait for a longer run.
#[test]
fn limited_transmit_with_sack() {
    let mut t = warm_without_ecn(30);
    t.app_write_zeros(60 * 1448);
    assert_eq!(sent_bytes(&mut t), 30 * 1448);
    t.at_ms(200);
    t.send(seg!(ACK ack 2 sack (seq_of_segment(1), seq_of_segment(2))));
    t.expect(seg!(ACK seq (seq_of_segment(30)) len 1448 first));
    t.expect_nothing();
    t.send(seg!(ACK ack 2 sack (seq_of_segment(1), seq_of_segment(3))));
    t.expect(seg!(ACK seq (seq_of_segment(31)) len 1448 first));
    t.expect_nothing();
}

/// As Linux's `tcp_tso_should_defer`: a short transmit is deferred until at most a millisecond
/// after the last one, and is sent then if no acknowledgment arrives.
#[test]
fn a_short_run_is_deferred_for_a_millisecond() {
    let mut t = warm_without_ecn(30);
    t.app_write_zeros(300 * 1448);
    assert_eq!(sent_bytes(&mut t), 30 * 1448);
    t.at_ms(200);
    t.send(seg!(ACK ack (seq_of_segment(2))));
    t.expect_at(200, seg!(ACK seq (seq_of_segment(30)) len (4 * 1448)));
    t.at_us(200_100);
    t.send(seg!(ACK ack (seq_of_segment(4))));
    t.at_us(200_900);
    t.expect_nothing();
    t.at_us(201_500);
    t.expect_at(201, seg!(ACK seq (seq_of_segment(34)) len (4 * 1448)));
    // Bytes acknowledged meanwhile make the run longer; a third of the window is not held back.
    t.send(seg!(ACK ack (seq_of_segment(6))));
    t.expect_nothing();
    t.send(seg!(ACK ack (seq_of_segment(12))));
    t.expect(seg!(ACK seq (seq_of_segment(38)) len (16 * 1448)));
    t.app_option(outboard_host::SocketOption::Defer(false));
    t.send(seg!(ACK ack (seq_of_segment(14))));
    t.expect(seg!(ACK len (4 * 1448)));
}

/// Nothing is deferred if the next acknowledgment is not due within a millisecond.
#[test]
fn no_run_is_deferred_beyond_a_millisecond() {
    let mut t = warm_without_ecn(30);
    t.app_write_zeros(300 * 1448);
    assert_eq!(sent_bytes(&mut t), 30 * 1448);
    t.at_ms(150);
    t.send(seg!(ACK ack (seq_of_segment(2))));
    t.expect(seg!(ACK seq (seq_of_segment(30)) len (4 * 1448)));
    t.at_us(150_100);
    t.send(seg!(ACK ack (seq_of_segment(4))));
    t.expect(seg!(ACK seq (seq_of_segment(34)) len (4 * 1448)));
}

/// Returns a connection that has sent a whole window; one round trip has passed.
fn window_sent() -> ScriptedTcpPeer {
    let mut t = warm_without_ecn(10);
    t.app_write_zeros(14_480);
    t.take("a window");
    t.at_ms(200);
    t
}

/// RFC 8985 section 6.2: RACK.rtt is that of every segment that arrives. One that was sent with the
/// others and arrives 20 ms after them extends the time that RACK waits for the rest.
#[test]
fn a_late_segment_makes_rack_wait() {
    let mut t = window_sent();
    t.send(seg!(ACK ack 2 sack (seq_of_segment(1), seq_of_segment(2))
        sack (seq_of_segment(3), seq_of_segment(4))));
    t.at_ms(220);
    t.send(seg!(ACK ack (seq_of_segment(2)) sack (seq_of_segment(3), seq_of_segment(4))));
    t.expect_counters(|t| t.at_ms(244), &[]);
    t.expect_nothing();
    t.at_ms(250);
    t.expect_at(245, seg!(ACK seq (seq_of_segment(2)) len 1448 again));
}

/// RFC 8985 section 5: a SACK of part of a segment does not advance RACK. As in Linux, the part
/// does not count as delivered.
#[test]
fn part_of_a_segment_does_not_move_rack() {
    let mut t = window_sent();
    t.expect_counters(
        |t| {
            t.send(seg!(ACK ack 2 sack (seq_of_segment(9), seq_of_segment(9) + 700)));
            t.send(seg!(ACK ack 2 sack (seq_of_segment(8) + 700, seq_of_segment(9) + 700)));
            t.at_ms(290);
        },
        &[],
    );
    t.expect_nothing();
    // A whole segment between two parts does.
    t.expect_counters(
        |t| {
            t.send(seg!(ACK ack 2 sack (seq_of_segment(7) + 700, seq_of_segment(9) + 700)));
            t.at_ms(320);
        },
        &[("tcp_recoveries", 1), ("tcp_retrans", 1), ("tcp_retrans_bytes", 1448)],
    );
    t.expect(seg!(ACK seq 2 len 1448 again));
    // Segment boundaries stay known after an acknowledgment of part of a segment.
    let mut t = window_sent();
    t.send(seg!(ACK ack (seq_of_segment(1) + 700) sack (seq_of_segment(3), seq_of_segment(6))));
    t.expect(seg!(ACK seq (seq_of_segment(1) + 700) len 748 again));
}

/// RFC 5681 section 3.1 and RFC 7661: a window that was full when it was sent grows by all bytes
/// acknowledged of it, although less and less is in flight meanwhile.
#[test]
fn a_whole_initial_window_doubles() {
    let mut t = window_sent();
    for n in [2, 4, 6, 8, 10] {
        t.send(seg!(ACK ack (seq_of_segment(n))));
    }
    assert_eq!(t.info().cwnd, 20 * 1448);
}

/// RFC 7661: a window that is not full grows only while it is less than twice the bytes in flight.
#[test]
fn a_window_that_is_not_used_does_not_grow() {
    let mut t = warm_without_ecn(10);
    for n in 0..20 {
        t.app_write_zeros(6 * 1448);
        t.take("six segments");
        t.after_ms(100);
        t.send(seg!(ACK ack (seq_of_segment((n + 1) * 6))));
    }
    assert_eq!(t.info().cwnd, 16 * 1448);
    // In congestion avoidance such a window does not grow at all.
    let mut t = with_ecn(20);
    t.app_write_zeros(20 * 1448);
    t.take_all();
    t.after_ms(100);
    t.send(seg!(ACK ECE ack (seq_of_segment(20))));
    for n in 0..200 {
        t.app_write_zeros(6 * 1448);
        t.take("six segments");
        t.after_ms(100);
        t.send(seg!(ACK ack (seq_of_segment(20 + (n + 1) * 6))));
    }
    assert_eq!(t.info().cwnd, 14 * 1448);
}

/// RFC 5681 section 3.1, Linux's `tcp_enter_loss`: a time-out during recovery is a sign of the same
/// congestion, so the threshold stays. It does not follow the window that PRR has reduced
/// meanwhile.
#[test]
fn a_time_out_in_recovery_keeps_the_threshold() {
    let mut t = warm_without_ecn(20);
    t.app_write_zeros(20 * 1448);
    t.take_all();
    t.at_ms(200);
    t.send(seg!(ACK ack 2 sack (seq_of_segment(10), seq_of_segment(13))));
    let ssthresh = t.info().ssthresh;
    assert_eq!(ssthresh, 20 * 1448 * 7 / 10);
    t.take_all();
    t.expect_counters(
        |t| t.at_ms(2000),
        &[("tcp_timeouts", 2), ("tcp_retrans", 2), ("tcp_retrans_bytes", 2 * 1448)],
    );
    assert_eq!(t.info().ssthresh, ssthresh);
    assert_eq!(t.info().cwnd, 1448);
}

/// RFC 5681 section 3.1: a time-out after progress since the last one is another loss, even if the
/// first is not repaired yet.
#[test]
fn a_second_time_out_after_progress_reduces_again() {
    let mut t = warm_without_ecn(20);
    t.app_write_zeros(20 * 1448);
    t.take_all();
    t.at_ms(1000);
    let first = t.info().ssthresh;
    assert_eq!(first, 20 * 1448 * 7 / 10);
    t.take_all();
    t.send(seg!(ACK ack (seq_of_segment(1))));
    t.after_ms(100);
    t.send(seg!(ACK ack (seq_of_segment(3))));
    let cwnd = t.info().cwnd;
    assert_eq!(cwnd, 4 * 1448);
    t.after_ms(5000);
    assert_eq!(t.info().ssthresh, cwnd * 7 / 10);
}

/// RFC 3168 section 6.1.1: ECE in a SYN-ACK negotiates ECN; it does not report congestion.
#[test]
fn ece_in_a_syn_ack_is_no_congestion() {
    let mut t = ScriptedTcpPeer::client();
    t.expect(seg!(SYN ECE CWR mss 1460));
    t.send(seg!(SYN ACK ECE ack 1 mss 1460 sack_ok tsval 5000 wscale 7));
    t.take("an acknowledgment");
    assert_eq!((t.info().cwnd, t.info().congestion_state), (10 * 1448, "Open"));
}
