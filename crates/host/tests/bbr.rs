//! BBR (draft-ietf-ccwg-bbr) in exchanges with a scripted peer: pacing, samples of transmits that
//! wait for a disk, losses, ECN, and idle times. Its states are tested beside it.

use base::Duration;
use outboard_host::CongestionAlgorithm;
use testkit::{ScriptedTcpPeer, Seg, seg};

/// Returns an established connection with BBR and a measured round trip of 100 ms.
fn warm_by(syn: &Seg) -> ScriptedTcpPeer {
    let mut t = ScriptedTcpPeer::server_with(|c| {
        c.tcp.algorithm = CongestionAlgorithm::Bbr;
        c.tcp.pacing = false;
    })
    .established_by(syn);
    t.app_write(b"x");
    t.take("a byte");
    t.at_ms(100);
    t.send(seg!(ACK));
    assert_eq!(t.info().srtt, Duration::from_millis(100));
    t
}

fn warm() -> ScriptedTcpPeer {
    warm_by(&seg!(SYN mss 1460 sack_ok tsval 5000 wscale 7))
}

fn seq_of_segment(n: u32) -> u32 {
    2 + n * 1448
}

/// Section 5.6.2: at first, 2.77 initial windows per round trip, in runs of two segments; whatever
/// the option for pacing is.
#[test]
fn runs_leave_at_the_pacing_rate() {
    let mut t = warm();
    let rate = 277 * 14_480 / 10;
    assert_eq!(t.info().pacing_rate, rate);
    t.app_write_zeros(14_480);
    t.at_ms(150);
    let sent = t.take_timed();
    assert_eq!(sent.len(), 5);
    let gap = 2896 * 1_000_000 / rate;
    for (n, (at, segment)) in sent.iter().enumerate() {
        assert_eq!(segment.len, Some(2896));
        assert!((at - sent[0].0).abs_diff(n as u64 * gap) <= 4, "run {n} at {at} us");
    }
}

/// Section 4.1: the rate of a transmit that waited for a disk counts from its departure.
#[test]
fn the_wait_for_a_disk_is_no_part_of_the_rate() {
    let paced = |wait_ms: u64| {
        let mut t = warm();
        t.app_file(2 * 1448);
        t.take("a run");
        t.after_ms(wait_ms);
        t.echo_last_transmit(wait_ms);
        t.after_ms(5);
        t.send(seg!(ACK));
        t.info().pacing_rate
    };
    // Two segments in 5 ms, times 2.77 less 1 %.
    assert_eq!(paced(2_000), 2896 * 200 * 277 / 100 * 99 / 100);
    assert_eq!(paced(0), paced(2_000));
}

/// Section 5.5.10.3: recovery does not reduce the window in proportion; a segment leaves for each
/// that has arrived, at the pacing rate.
#[test]
fn a_loss_keeps_the_window() {
    let mut t = warm();
    t.app_write_zeros(20 * 1448);
    t.at_ms(190);
    t.take_all();
    let window = t.info().cwnd;
    t.at_ms(210);
    t.send(seg!(ACK ack 2 sack (seq_of_segment(1), seq_of_segment(4))));
    assert_eq!(t.info().congestion_state, "Recovery");
    assert!(t.info().cwnd >= window, "{} of {window}", t.info().cwnd);
    assert_eq!(t.info().ssthresh, u32::MAX);
    t.expect(seg!(ACK seq 2 len 1448 again));
}

/// Section 5.6.4.4: a time-out leaves one segment; the window returns when everything is repaired.
#[test]
fn a_time_out_leaves_one_segment() {
    let mut t = warm();
    t.app_write_zeros(10 * 1448);
    t.at_ms(190);
    t.take_all();
    let window = t.info().cwnd;
    t.at_ms(2_000);
    assert_eq!((t.info().congestion_state, t.info().cwnd), ("Loss", 1448));
    t.take_all();
    t.send(seg!(ACK ack (seq_of_segment(10))));
    assert_eq!(t.info().congestion_state, "Open");
    assert!(t.info().cwnd >= window, "{} of {window}", t.info().cwnd);
}

/// Section 3.7, RFC 3168 section 6.1.2: one response per window, and CWR on the next data.
#[test]
fn a_mark_is_answered_once_per_window() {
    let mut t = warm_by(&seg!(SYN ECE CWR mss 1460 sack_ok tsval 5000 wscale 7));
    t.app_write_zeros(10 * 1448);
    t.at_ms(190);
    t.take_all();
    t.at_ms(200);
    t.expect_counters(
        |t| {
            t.send(seg!(ACK ECE ack (seq_of_segment(2))));
            t.send(seg!(ACK ECE ack (seq_of_segment(4))));
        },
        &[("tcp_ecn_reductions", 1)],
    );
    t.at_ms(210);
    t.send(seg!(ACK ack (seq_of_segment(10))));
    t.app_write_zeros(1448);
    t.at_ms(400);
    assert!(t.take_all().iter().any(|s| s.flags.has(testkit::TcpFlags::CWR)));
}

/// Section 5.4: the window survives an idle time.
#[test]
fn an_idle_time_keeps_the_window() {
    let mut t = warm();
    t.app_write_zeros(10 * 1448);
    t.at_ms(190);
    t.take_all();
    t.at_ms(200);
    t.send(seg!(ACK ack (seq_of_segment(10))));
    let window = t.info().cwnd;
    assert!(window > 14_480);
    t.at_ms(60_000);
    t.app_write_zeros(1448);
    assert_eq!(t.info().cwnd, window);
}

/// A loss that ends Startup before the first sample of bandwidth or round-trip time leaves the
/// initial rate: at the bandwidth measured so far, zero, nothing would ever be sent again.
#[test]
fn a_loss_before_any_sample_keeps_the_rate() {
    let mut t = ScriptedTcpPeer::server_with(|c| c.tcp.algorithm = CongestionAlgorithm::Bbr);
    t.send(seg!(SYN mss 1448));
    // Karn's rule: an answer to the second SYN-ACK is no sample.
    t.at_ms(1_500);
    t.take_all();
    t.send(seg!(ACK ack 1));
    t.accepted();
    t.app_write_zeros(10 * 1448);
    t.at_ms(1_510);
    t.take_all();
    let rate = t.info().pacing_rate;
    for _ in 0..3 {
        t.send(seg!(ACK ack 1));
    }
    t.expect(seg!(ACK seq 1 len 1448 again));
    assert_eq!((t.info().srtt, t.info().pacing_rate), (Duration::ZERO, rate));
    t.send(seg!(ACK ack (1 + 10 * 1448)));
    t.app_write_zeros(1448);
    t.at_ms(1_520);
    t.expect(seg!(ACK PSH seq (1 + 10 * 1448) len 1448));
}
