//! Files that fail, change or are slow during a transfer.

use base::Duration;
use outboard_quic::StreamReadError;

use crate::topology::QuicFaultNetwork;
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

/// The disk takes five round trips. Packets wait for it in the device, and quinn-proto considers
/// them sent.
#[test]
fn a_slow_disk() {
    let mut lab = QuicFaultNetwork::new();
    lab.server.disk.read_time = Duration::from_millis(50);
    let mut t = FileTransfers::begin(&mut lab, vec![down("a", 8_000_000)]);
    let ended = lab.run(120, |lab| t.step(lab));
    assert!(ended);
    t.check();
    let stats = lab.server.app.info(t.server.expect("connected")).expect("it is there");
    assert!(lab.server.count("quic_file_bytes_offloaded") > 7_000_000);
    // The disk reads ahead, and packets that it delays are late, not lost: the window is not
    // reduced.
    let path = stats.stats.path;
    assert_eq!((path.lost_packets, path.congestion_events), (0, 0), "{path:?}");
    assert!(path.cwnd > 100_000 && path.rtt.as_millis() < 20, "{path:?}");
}
