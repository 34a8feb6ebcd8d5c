//! Files that fail, change or are slow during a transfer.

use base::Duration;
use outboard_quic::StreamReadError;

use crate::topology::{LINK_DELAY, QuicFaultNetwork};
use crate::transfers::{FileTransfers, down};

/// Expected reset of the stream: RFC 9114's `H3_INTERNAL_ERROR`.
const FAILED: StreamReadError = StreamReadError::Reset(0x0102);

/// Transfers three files, of which the second fails before `bytes` have arrived.
fn one_of_three_fails(fail: impl Fn(&mut QuicFaultNetwork), bytes: u64) {
    let mut lab = QuicFaultNetwork::new();
    let all = vec![down("a", 3_000_000), down("b", 3_000_000), down("c", 3_000_000)];
    let mut t = FileTransfers::begin(&mut lab, all);
    lab.run(20, |lab| {
        t.step(lab);
        t.received() > 1_500_000
    });
    assert_eq!(lab.server.count("quic_offloaded"), 1);
    fail(&mut lab);
    let ended = lab.run(60, |lab| t.step(lab));
    assert!(ended, "{} {:?}", t.received(), t.all.iter().map(|t| t.ended).collect::<Vec<_>>());
    assert_eq!(t.lost, [None, None]);
    assert_eq!(t.all[1].ended, Some(FAILED));
    assert!((t.all[1].received.len() as u64) < bytes);
    t.all[0].check();
    t.all[2].check();
    assert_eq!(lab.server.count("quic_file_failures"), 1);
    assert_eq!((lab.server.count("quic_entries"), lab.server.count("quic_not_sealed")), (2, 0));
    t.close(&mut lab);
}

#[test]
fn a_read_that_fails_resets_its_stream_only() {
    let fail = |lab: &mut QuicFaultNetwork| {
        lab.server.disk.file("b").fail_reads_from = Some(2_000_000);
    };
    one_of_three_fails(fail, 2_000_000);
}

/// The new file is shorter and has another modification time; its bytes must not be sent.
#[test]
fn a_file_that_changes_resets_its_stream_only() {
    let fail = |lab: &mut QuicFaultNetwork| {
        lab.server.disk.file("b").rewrite(1_000_000);
    };
    one_of_three_fails(fail, 3_000_000);
}

/// The failure begins at the first byte that the device reads.
#[test]
fn the_only_file_fails() {
    let mut lab = QuicFaultNetwork::new();
    let mut t = FileTransfers::begin(&mut lab, vec![down("a", 5_000_000)]);
    lab.run(20, |lab| {
        t.step(lab);
        t.received() > 1_000_000
    });
    lab.server.disk.file("a").fail_reads_from = Some(0);
    let ended = lab.run(60, |lab| t.step(lab));
    assert!(ended && t.lost == [None, None]);
    assert_eq!(t.all[0].ended, Some(FAILED));
    assert_eq!(lab.server.count("quic_file_failures"), 1);
    t.close(&mut lab);
}

/// Figures of two transfers of [`SLOW_BYTES`] each on one connection.
#[derive(Debug)]
struct SlowDiskFigures {
    /// Time of the first transfer, and of the second one, from a disk that takes no time.
    times: [Duration; 2],
    /// Packets that the server sent up to the end of the first transfer.
    sent: u64,
    lost: u64,
    congestion_events: u64,
    /// Smoothed round-trip times at the ends of the transfers.
    rtts: [Duration; 2],
}

const SLOW_BYTES: u64 = 8_000_000;

/// Transfers a file from a disk whose reads take `read_time`, then another one from a fast disk.
fn transfers_from(read_time: Duration) -> SlowDiskFigures {
    let mut lab = QuicFaultNetwork::new();
    lab.server.disk.read_time = read_time;
    let begun = lab.now;
    let mut t = FileTransfers::begin(&mut lab, vec![down("a", SLOW_BYTES)]);
    assert!(lab.run(120, |lab| t.step(lab)), "{read_time}: {}", t.received());
    let path = |lab: &mut QuicFaultNetwork, t: &FileTransfers| {
        lab.server.app.info(t.server.expect("connected")).expect("it is there").stats.path
    };
    let (first, between) = (path(&mut lab, &t), lab.now);
    lab.server.disk.read_time = Duration::ZERO;
    t.ask_for(&mut lab, down("b", SLOW_BYTES));
    assert!(lab.run(120, |lab| t.step(lab)));
    t.check();
    let last = path(&mut lab, &t);
    assert!(lab.server.count("quic_file_bytes_offloaded") > 2 * SLOW_BYTES * 9 / 10);
    let millis = |time: core::time::Duration| {
        Duration::from_micros(u64::try_from(time.as_micros()).expect("a short time"))
    };
    SlowDiskFigures {
        times: [between.since(begun), lab.now.since(between)],
        sent: first.sent_packets,
        lost: last.lost_packets,
        congestion_events: last.congestion_events,
        rtts: [millis(first.rtt), millis(last.rtt)],
    }
}

/// Disks of half a round trip, of five and of fifty. Packets wait for them in the device, and
/// quinn-proto considers them sent: the wait is part of its samples and timers. Packets that are
/// late are not taken for lost, the window is not reduced, and when the disk is fast again so is
/// the connection.
#[test]
fn slow_disks() {
    let fast = transfers_from(Duration::ZERO);
    for millis in [5, 50, 500] {
        let slow = transfers_from(Duration::from_millis(millis));
        assert_eq!((slow.lost, slow.congestion_events), (0, 0), "{slow:?}");
        assert!(slow.sent <= fast.sent + fast.sent / 50, "probes and repetitions: {slow:?}");
        // While the disk is slow the smoothed round trip contains a part of the wait.
        assert!(slow.rtts[0] < LINK_DELAY * 2 + Duration::from_millis(millis) / 5, "{slow:?}");
        // Afterwards nothing is left of it.
        assert!(slow.rtts[1] <= fast.rtts[1] + Duration::from_micros(100), "{slow:?}");
        assert!(slow.times[1] <= fast.times[1] + fast.times[1] / 50, "{slow:?}");
    }
}
