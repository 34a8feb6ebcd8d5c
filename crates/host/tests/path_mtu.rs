//! Path MTU discovery by the packetization layer: RFC 4821, RFC 8899.

use outboard_host::{HostConfig, MtuProbing, SocketOption};
use testkit::{ScriptedTcpPeer, Seg, seg};

/// Segment sizes in an MTU of 1500 bytes, in the base MTU of 1064, and in IPv4's minimum of 576,
/// with timestamps.
const FULL: u32 = 1448;
const BASE: u32 = 1012;
const LEAST: u32 = 524;

/// Returns an established, unpaced connection with a measured round trip of 100 ms and a congestion
/// window of 20 full segments.
fn warm(probing: MtuProbing, change: impl FnOnce(&mut HostConfig)) -> ScriptedTcpPeer {
    let t = ScriptedTcpPeer::server_with(|c| {
        (c.tcp.pacing, c.tcp.mtu_probing) = (false, probing);
        c.tcp.initial_window = if probing == MtuProbing::Always { 28 } else { 20 };
        change(c);
    });
    let mut t = t.established();
    t.app_write(b"x");
    t.take("a byte");
    t.at_ms(100);
    t.send(seg!(ACK));
    t
}

/// Writes `bytes` bytes in pieces that the send buffer takes.
fn write(t: &mut ScriptedTcpPeer, bytes: u32) {
    t.app_write_zeros(bytes as usize);
}

/// Returns the segments that were sent: the first byte of each, and its length.
fn sizes(sent: &[Seg]) -> Vec<(u32, u32)> {
    let mut sizes = Vec::new();
    for seg in sent {
        let (mut seq, mut left) = (seg.seq.unwrap(), seg.len.unwrap());
        let size = seg.run.filter(|&run| run > 0).map_or(left, u32::from);
        while left > 0 {
            let len = left.min(size);
            sizes.push((seq, len));
            (seq, left) = (seq + len, left - len);
        }
    }
    sizes
}

/// Delivers everything on a path that drops segments of more than `path` bytes silently, until
/// `end` is acknowledged or `round_trips` have passed. The peer acknowledges each segment.
fn run_path(t: &mut ScriptedTcpPeer, path: u32, end: u32, round_trips: u32) -> Vec<u32> {
    let (mut received, mut next, mut tried) = (Vec::new(), 2, Vec::new());
    for _ in 0..round_trips {
        let sent = sizes(&t.take_all());
        t.after_ms(100);
        for (seq, len) in sent {
            if len > path {
                tried.push(len);
                continue;
            }
            received.push((seq, seq + len));
            received.sort_unstable();
            while let Some(&(_, end)) = received.iter().find(|&&(a, b)| a <= next && next < b) {
                next = end;
            }
            let above: Vec<_> = received.iter().copied().filter(|&(a, _)| a > next).collect();
            let ack = seg!(ACK ack (next));
            // One block for all that arrived after the hole: nothing else is lost.
            let block = above.first().map(|first| (first.0, above[above.len() - 1].1));
            t.send(Seg { sacks: block.map(|block| vec![block]), ..ack });
        }
        if next == end {
            return tried;
        }
    }
    panic!("{next} of {end} bytes arrived, tried {tried:?}")
}

/// RFC 4821 section 7.7: after three time-outs of a full segment smaller ones are sent, with the
/// base size of section 7.2; after another, the minimum of IPv4. The bytes are segmented again.
#[test]
fn a_black_hole_is_detected() {
    let mut t = warm(MtuProbing::BlackHole, |_| {});
    write(&mut t, 4 * FULL);
    t.take("data");
    t.expect_counters(
        |t| {
            t.at_ms(5500);
            // A tail loss probe, then time-outs of 300, 600, 1200 and 2400 ms.
            t.expect_at(300, seg!(ACK PSH seq (2 + 3 * FULL) len (FULL) again));
            t.expect_at(600, seg!(ACK seq 2 len (FULL) again));
            t.expect_at(1200, seg!(ACK seq 2 len (FULL) again));
            t.expect_at(2400, seg!(ACK seq 2 len (BASE) run 0 again));
            t.expect_at(4800, seg!(ACK seq 2 len (LEAST) run 0 again));
            t.expect_nothing();
        },
        &[
            ("tcp_mtu_black_holes", 2),
            ("tcp_tail_probes", 1),
            ("tcp_timeouts", 4),
            ("tcp_retrans", 5),
            ("tcp_retrans_bytes", u64::from(3 * FULL + BASE + LEAST)),
        ],
    );
    assert_eq!(u32::from(t.info().mss), LEAST);
    t.send(seg!(ACK ack (2 + LEAST)));
    // The rest of the segment of the base size, and the rest of the full one.
    let again = [(2 + LEAST, BASE - LEAST), (2 + BASE, FULL - BASE)];
    assert_eq!(sizes(&t.take_all())[..2], again, "segmented again");
}

/// RFC 8899 section 4.3 with a path of 1200 bytes: all bytes arrive, and the search finds the
/// path's size within Linux's `tcp_probe_threshold`.
#[test]
fn a_transfer_survives_a_black_hole() {
    let mut t = warm(MtuProbing::BlackHole, |_| {});
    let bytes = 700_000;
    write(&mut t, bytes);
    let tried = run_path(&mut t, 1148, 2 + bytes, 2_000);
    assert_eq!(t.count("tcp_mtu_black_holes"), 1);
    let mss = u32::from(t.info().mss);
    assert!((1141..=1148).contains(&mss), "{mss} after {tried:?}");
    let (probes, failed) = (t.count("tcp_mtu_probes"), t.count("tcp_mtu_probe_fail"));
    assert_eq!(probes, t.count("tcp_mtu_probe_success") + failed);
    assert!(failed > 0 && t.count("tcp_mtu_probe_success") > 0, "{probes} probes");
}

/// A segment that is smaller than the base size shows that even that is too large.
#[test]
fn a_partial_segment_shows_a_small_path() {
    let mut t = warm(MtuProbing::BlackHole, |_| {});
    write(&mut t, 800);
    t.at_ms(3_000);
    assert_eq!((t.count("tcp_mtu_black_holes"), u32::from(t.info().mss)), (1, LEAST));
}

/// Bytes that a device reads from a file are cut by the new size, too: a transmit of them is a
/// range of the file and a segment size.
#[test]
fn files_are_segmented_again() {
    let mut t = warm(MtuProbing::BlackHole, |_| {});
    t.app_file(u64::from(8 * FULL));
    t.expect(seg!(ACK seq 2 len (8 * FULL) run 1448 file (0, 8 * FULL) echo));
    t.echo_last_transmit(0);
    let mut cut = Vec::new();
    for _ in 0..400 {
        t.after_ms(10);
        for seg in t.take_all() {
            cut.push((seg.seq.unwrap(), seg.len.unwrap()));
            t.echo_last_transmit(0);
        }
    }
    assert_eq!(t.count("tcp_mtu_black_holes"), 1);
    assert_eq!(cut.last(), Some(&(2, BASE)), "{cut:?}");
    t.send(seg!(ACK ack (2 + BASE)));
    t.expect(seg!(ACK seq (2 + BASE) len (FULL - BASE) again file (BASE.into(), FULL - BASE)));
    t.expect(seg!(ACK seq (2 + FULL) len (BASE) again file (FULL.into(), BASE)));
}

/// A small segment that is lost repeatedly shows nothing about large ones; nor does a segment if
/// discovery is off.
#[test]
fn other_losses_are_no_black_hole() {
    for (probing, bytes) in [(MtuProbing::BlackHole, LEAST), (MtuProbing::Off, FULL)] {
        let mut t = warm(probing, |_| {});
        write(&mut t, bytes);
        t.at_ms(20_000);
        assert!(t.count("tcp_timeouts") > 4);
        assert_eq!((t.count("tcp_mtu_black_holes"), u32::from(t.info().mss)), (0, FULL));
    }
}

/// RFC 8200 section 5: every path of IPv6 carries 1280 bytes, unless a translator to IPv4 is on it
/// (RFC 7915).
#[test]
fn black_holes_over_ipv6() {
    let mut t = ScriptedTcpPeer::server_v6()
        .established_by(&seg!(SYN mss 1440 sack_ok tsval 5000 wscale 7));
    write(&mut t, 1428);
    t.take("data");
    for (ms, holes, mtu) in [(6_900, 0, 1500), (8_000, 1, 1280), (60_000, 2, 596)] {
        t.at_ms(ms);
        assert_eq!((t.count("tcp_mtu_black_holes"), t.info().mss), (holes, mtu - 72), "{ms} ms");
    }
}

/// RFC 4821 section 7.2: with `Always`, connections begin with the base size; sections 7.3 and
/// 7.6.1: the first probe has the largest size, in one segment, and its acknowledgment raises the
/// size of the others.
#[test]
fn probes_raise_the_size() {
    let mut t = warm(MtuProbing::Always, |_| {});
    assert_eq!(u32::from(t.info().mss), BASE);
    t.expect_counters(|t| write(t, 14 * BASE), &[("tcp_mtu_probes", 1)]);
    t.expect(seg!(ACK seq 2 len (FULL) run 0 first));
    t.expect(seg!(ACK PSH seq (2 + FULL) len (14 * BASE - FULL) run 1012));
    t.expect_nothing();
    t.send(seg!(ACK ack (1 + FULL)));
    assert_eq!(u32::from(t.info().mss), BASE, "a byte is missing");
    t.expect_counters(|t| t.send(seg!(ACK ack (2 + FULL))), &[("tcp_mtu_probe_success", 1)]);
    assert_eq!(u32::from(t.info().mss), FULL);
    t.send(seg!(ACK ack (2 + 14 * BASE)));
    t.expect_counters(|t| write(t, 14 * FULL), &[]);
    t.expect(seg!(ACK PSH seq (2 + 14 * BASE) len (14 * FULL) run 1448));
}

/// RFC 4821 section 7.6.2: the loss of a probe alone is no congestion. The bytes are retransmitted
/// in segments of the size before, and a smaller size is probed.
#[test]
fn a_lost_probe_is_no_congestion() {
    let mut t = warm(MtuProbing::Always, |_| {});
    write(&mut t, 28 * BASE);
    assert_eq!(sizes(&t.take_all())[0], (2, FULL));
    let before = t.info();
    t.at_ms(200);
    let at = 2 + FULL;
    for n in 1..3 {
        t.send(seg!(ACK ack 2 sack (at, at + n * BASE)));
    }
    t.take_all();
    t.expect_counters(
        |t| t.send(seg!(ACK ack 2 sack (at, at + 3 * BASE))),
        &[("tcp_mtu_probe_fail", 1), ("tcp_retrans", 1), ("tcp_retrans_bytes", FULL.into())],
    );
    assert_eq!(sizes(&t.take_all())[..2], [(2, BASE), (2 + BASE, FULL - BASE)]);
    let after = t.info();
    assert_eq!((after.ssthresh, after.congestion_state), (u32::MAX, "Disorder"));
    assert!(after.cwnd >= before.cwnd, "{} {}", after.cwnd, before.cwnd);
    assert_eq!(u32::from(after.mss), BASE);
    t.at_ms(300);
    t.send(seg!(ACK ack (2 + 28 * BASE)));
    write(&mut t, 20 * BASE);
    // The middle of 1012 and 1447.
    assert_eq!(sizes(&t.take_all())[0].1, 1229);
}

/// The same without SACK: three duplicate acknowledgments show the loss of the whole probe.
#[test]
fn a_lost_probe_without_sack() {
    let mut t = ScriptedTcpPeer::server_with(|c| {
        (c.tcp.pacing, c.tcp.mtu_probing) = (false, MtuProbing::Always);
        c.tcp.initial_window = 28;
    })
    .established_by(&seg!(SYN mss 1460 wscale 7 tsval 5000));
    write(&mut t, 12 * BASE);
    assert_eq!(sizes(&t.take_all())[0], (1, FULL));
    t.at_ms(100);
    t.send(seg!(ACK ack 1));
    t.send(seg!(ACK ack 1));
    t.expect_counters(
        |t| t.send(seg!(ACK ack 1)),
        &[("tcp_mtu_probe_fail", 1), ("tcp_retrans", 1), ("tcp_retrans_bytes", FULL.into())],
    );
    assert_eq!(sizes(&t.take_all()), [(1, BASE), (1 + BASE, FULL - BASE)]);
    assert_eq!((t.info().ssthresh, t.info().congestion_state), (u32::MAX, "Disorder"));
}

/// RFC 4821 section 7.6.4: if other segments are lost too, congestion may have been the cause. The
/// window is reduced, and the same size is tried again.
#[test]
fn a_probe_lost_among_others_is_inconclusive() {
    let mut t = warm(MtuProbing::Always, |_| {});
    write(&mut t, 28 * BASE);
    t.take_all();
    t.at_ms(200);
    let at = 2 + FULL + BASE;
    t.expect_counters(
        |t| t.send(seg!(ACK ack 2 sack (at, at + 6 * BASE))),
        &[("tcp_recoveries", 1), ("tcp_retrans", 2), ("tcp_retrans_bytes", (FULL + BASE).into())],
    );
    assert!(t.info().ssthresh < u32::MAX);
    t.take_all();
    t.at_ms(300);
    t.send(seg!(ACK ack (2 + 28 * BASE)));
    assert_eq!((u32::from(t.info().mss), t.count("tcp_mtu_probe_success")), (BASE, 0));
    write(&mut t, 28 * BASE);
    assert!(sizes(&t.take_all()).iter().any(|&(_, len)| len == FULL), "tried again");
}

/// RFC 4821 section 7.6.3: a probe that is lost with everything after it has failed, too; the
/// time-out is congestion as always.
#[test]
fn a_probe_that_times_out_has_failed() {
    let mut t = warm(MtuProbing::Always, |c| c.tcp.sack = false);
    write(&mut t, 12 * BASE);
    t.take_all();
    t.expect_counters(
        |t| t.at_ms(500),
        &[
            ("tcp_mtu_probe_fail", 1),
            ("tcp_timeouts", 1),
            ("tcp_retrans", 1),
            ("tcp_retrans_bytes", BASE.into()),
        ],
    );
    assert_eq!(sizes(&t.take_all()), [(2, BASE)]);
}

/// RFC 4821 section 7.4: no probe without the data that shows its loss, nor with a window that is
/// too small for that, nor while segments are missing.
#[test]
fn probes_need_data_after_them_and_calm() {
    let mut t = warm(MtuProbing::Always, |_| {});
    let followed = FULL + 4 * BASE;
    write(&mut t, followed - 1);
    assert_eq!((sizes(&t.take_all())[0], t.count("tcp_mtu_probes")), ((2, BASE), 0));
    t.send(seg!(ACK ack (1 + followed)));
    t.expect_counters(|t| write(t, followed), &[("tcp_mtu_probes", 1)]);
    t.take_all();
    t.send(seg!(ACK ack (1 + 2 * followed)));
    assert_eq!(u32::from(t.info().mss), FULL, "complete");

    let mut t = warm(MtuProbing::Always, |_| {});
    t.send(seg!(ACK ack 2 win 40));
    write(&mut t, 20 * BASE);
    assert_eq!(t.count("tcp_mtu_probes"), 0, "40 << 7 bytes of window");

    let mut t = warm(MtuProbing::Always, |_| {});
    write(&mut t, 3 * BASE);
    t.send(seg!(ACK ack 2 sack (2 + BASE, 2 + 2 * BASE)));
    write(&mut t, 20 * BASE);
    assert_eq!(t.count("tcp_mtu_probes"), 0, "a segment is missing");
}

/// RFC 4821 section 7.4: the congestion window must have room for the whole probe; new data waits
/// for that, as in Linux's `tcp_mtu_probe`.
#[test]
fn a_probe_awaits_room_in_the_window() {
    let mut t = warm(MtuProbing::Always, |c| c.tcp.initial_window = 8);
    write(&mut t, 3 * BASE);
    t.take_all();
    t.app_write_zeros(20 * BASE as usize);
    // 8 segments and the byte: room for 5 more, of which the probe takes one and a half.
    assert_eq!(sizes(&t.take_all())[0], (2 + 3 * BASE, FULL));
    assert_eq!(t.count("tcp_mtu_probes"), 1);
}

/// RFC 1191 section 6.3, RFC 8899 section 5.1.1 (PMTU_RAISE_TIMER): ten minutes after a router
/// reported a smaller size, larger ones are probed.
#[test]
fn a_reported_size_is_probed_after_ten_minutes() {
    let mut t = warm(MtuProbing::BlackHole, |_| {});
    write(&mut t, FULL);
    t.take("data");
    let mut error = vec![3, 4, 0, 0, 0, 0, 4, 176];
    error.extend(t.icmp_quote(2));
    t.expect_counters(
        |t| t.send_icmp(&error),
        &[("tcp_pmtu_reductions", 1), ("tcp_retrans", 1), ("tcp_retrans_bytes", FULL.into())],
    );
    t.take_all();
    t.send(seg!(ACK ack (2 + FULL)));
    for (ms, probes) in [(600_000, 0), (600_200, 1)] {
        t.at_ms(ms);
        let before = t.info().mss;
        assert_eq!(before, 1148);
        write(&mut t, 8 * FULL);
        let sent = sizes(&t.take_all());
        assert_eq!(t.count("tcp_mtu_probes"), probes, "at {ms} ms");
        let end = sent.iter().map(|(seq, len)| seq + len).max().unwrap();
        t.send(seg!(ACK ack (end)));
    }
    assert_eq!(u32::from(t.info().mss), FULL);
}

/// RFC 8899 section 4.6.1: a router's report of the probe's size fails the probe at once.
#[test]
fn a_router_reports_the_probe() {
    let mut t = warm(MtuProbing::Always, |_| {});
    write(&mut t, 14 * BASE);
    t.take_all();
    let mut error = vec![3, 4, 0, 0, 0, 0, 4, 176];
    error.extend(t.icmp_quote(2));
    t.expect_counters(
        |t| t.send_icmp(&error),
        &[("tcp_mtu_probe_fail", 1), ("tcp_retrans", 1), ("tcp_retrans_bytes", FULL.into())],
    );
    assert_eq!(sizes(&t.take_all()), [(2, BASE), (2 + BASE, FULL - BASE)]);
    t.send(seg!(ACK ack (2 + 14 * BASE)));
    write(&mut t, 20 * BASE);
    // The middle of 1012 and the reported 1148.
    assert_eq!(sizes(&t.take_all())[0].1, 1080);
}

/// `TCP_MAXSEG` also limits probes.
#[test]
fn probes_respect_the_segment_limit() {
    let mut t = warm(MtuProbing::Always, |_| {});
    t.app_option(SocketOption::MaxSegment(1200));
    write(&mut t, 14 * BASE);
    assert_eq!(sizes(&t.take_all())[0], (2, 1188));
}
