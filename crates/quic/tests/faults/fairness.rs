//! Sharing of a connection between its streams: round robin by bytes, and the priorities of RFC
//! 9218.
//!
//! The path is a bottleneck of a fixed rate with a short queue, so that a share of the connection
//! determines a duration. Every case runs with and without offload to the device.

use base::{Duration, Instant};
use outboard_quic::{Priority, QuicEndpointConfig};

use crate::topology::{LINK_DELAY, PAYLOAD_AT, QuicFaultNetwork, QuicFaultSetup};
use crate::transfers::{FileTransfers, down};

/// Bandwidth to the client in bytes per second.
const RATE: u64 = 20_000_000;
/// Maximum time that a frame waits in the bottleneck's queue.
const QUEUE: Duration = Duration::from_millis(10);
/// Length of files that these tests never finish.
const LARGE: u64 = 200_000_000;
const SMALL: u64 = 300_000;

/// Makes the path to the client a bottleneck with a drop-tail queue.
fn bottleneck(lab: &mut QuicFaultNetwork, rate: u64) {
    let mut free = Instant::ZERO;
    lab.set_link_rule(move |now, to_server, frame| {
        if to_server {
            return vec![(LINK_DELAY, frame)];
        }
        let begin = free.max(now);
        if begin > now + QUEUE {
            return Vec::new();
        }
        let bytes = (frame.len() + PAYLOAD_AT) as u64;
        free = begin + Duration::from_nanos(bytes * 1_000_000_000 / rate);
        vec![(free.since(now) + LINK_DELAY, frame)]
    });
}

fn roomy(config: &mut QuicEndpointConfig) {
    // As in browsers and curl: one stream may use all of the connection's window.
    config.receive_windows = [8 << 20, 8 << 20];
}

fn lab(offload: bool) -> QuicFaultNetwork {
    let server: fn(&mut QuicEndpointConfig) = match offload {
        true => |_| {},
        false => |config| config.offload_bytes_min = u64::MAX,
    };
    let mut lab = QuicFaultNetwork::with(QuicFaultSetup {
        server,
        client: roomy,
        ..QuicFaultSetup::default()
    });
    bottleneck(&mut lab, RATE);
    lab
}

/// Checks that the bytes took the path under test, device or software.
fn check_path(lab: &QuicFaultNetwork, offload: bool) {
    let counters = lab.server.app.counters();
    if offload {
        assert!(counters.quic_file_bytes_offloaded > SMALL, "{counters:?}");
        assert!(counters.quic_out_for_device > 100, "{counters:?}");
        assert_eq!(counters.quic_out_late, 0);
    } else {
        assert_eq!((counters.quic_file_bytes_offloaded, counters.quic_offloaded), (0, 0));
        assert!(counters.quic_file_bytes_software > SMALL, "{counters:?}");
    }
}

/// Starts three large transfers and runs until they fill the path.
fn three_large(lab: &mut QuicFaultNetwork) -> FileTransfers {
    let large = ["a", "b", "c"].map(|file| down(file, LARGE));
    let mut transfers = FileTransfers::begin(lab, large.into());
    let filled = lab.run(20, |lab| {
        transfers.step(lab);
        transfers.received() > 8_000_000
    });
    assert!(filled, "{} bytes", transfers.received());
    transfers
}

#[test]
fn a_small_response_beside_large_ones() {
    for offload in [true, false] {
        let mut lab = lab(offload);
        let mut transfers = three_large(&mut lab);
        let begun = lab.now;
        let small = transfers.ask_for(&mut lab, down("s", SMALL));
        lab.run(20, |lab| {
            transfers.step(lab);
            transfers.all[small].ended.is_some()
        });
        let took = lab.now.since(begun);
        // A quarter of the rate: 60 ms, and three round trips of 10 to 20 ms.
        assert!(transfers.all[small].ended.is_some(), "{offload}: not within {took:?}");
        assert!(took < Duration::from_millis(150), "{offload}: {took:?}");
        transfers.all[small].check();
        check_path(&lab, offload);
    }
}

#[test]
fn large_responses_share_by_bytes() {
    for offload in [true, false] {
        let mut lab = lab(offload);
        let mut transfers = three_large(&mut lab);
        let before: Vec<usize> = transfers.all.iter().map(|t| t.received.len()).collect();
        let until = lab.now + Duration::from_millis(500);
        lab.run(1, |lab| {
            transfers.step(lab);
            lab.now >= until
        });
        let shares: Vec<usize> =
            transfers.all.iter().zip(before).map(|(t, before)| t.received.len() - before).collect();
        let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
        assert!(*least * 10 > *most * 8, "{offload}: {shares:?}");
        check_path(&lab, offload);
    }
}

/// An urgent response gets the connection and finds credit, although less urgent ones always have
/// data. The path is slow, so that the credit corresponds to seconds.
#[test]
fn an_urgent_response_is_not_kept_waiting() {
    for offload in [true, false] {
        let mut lab = lab(offload);
        bottleneck(&mut lab, 2_000_000);
        let mut transfers = three_large(&mut lab);
        let begun = lab.now;
        transfers.priority = Priority::new(0, false);
        let urgent = transfers.ask_for(&mut lab, down("s", SMALL));
        lab.run(5, |lab| {
            transfers.step(lab);
            transfers.all[urgent].ended.is_some()
        });
        let took = lab.now.since(begun);
        // 150 ms at this rate, one queue before it, and round trips.
        assert!(transfers.all[urgent].ended.is_some(), "{offload}: not within {took:?}");
        assert!(took < Duration::from_millis(300), "{offload}: {took:?}");
        transfers.all[urgent].check();
        check_path(&lab, offload);
    }
}
