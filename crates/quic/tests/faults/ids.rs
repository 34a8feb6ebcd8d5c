//! Retirement of connection IDs, and which of them the device knows.

use base::Duration;

use crate::topology::{QuicFaultNetwork, QuicFaultSetup};
use crate::transfers::{FileTransfers, down};

/// Maximum active connection IDs that quinn-proto accepts from its peer.
const IDS_MAX: u64 = 5;

/// A peer changes its connection ID in each step, before and after the connection is offloaded. The
/// device knows exactly the IDs in use.
#[test]
fn a_peer_that_retires_as_fast_as_it_can() {
    let server =
        |config: &mut outboard_quic::QuicEndpointConfig| config.offload_bytes_min = 256 * 1024;
    let mut lab = QuicFaultNetwork::with(QuicFaultSetup { server, ..QuicFaultSetup::default() });
    let mut t = FileTransfers::begin(&mut lab, vec![down("a", 4_000_000)]);
    // At first only retirements, too few bytes for an offload.
    let mut steps = 0;
    lab.run(5, |lab| {
        lab.client.app.address_changed(t.client);
        steps += 1;
        steps > 100
    });
    assert_eq!(lab.server.count("quic_offloaded"), 0);
    let mut most = 0;
    let ended = lab.run(120, |lab| {
        lab.client.app.address_changed(t.client);
        most = most.max(lab.server.count("quic_routes"));
        t.step(lab)
    });
    assert!(ended);
    t.check();
    let server = lab.server.app.info(t.server.expect("connected")).expect("it is there");
    let retired = server.stats.frame_rx.retire_connection_id;
    assert!(retired > 150, "{retired}");
    assert_eq!((lab.server.count("quic_offloaded"), lab.server.count("quic_entries")), (1, 2));
    assert_eq!(lab.server.count("quic_device_refused_other"), 0);
    assert!(most > 1 && most <= IDS_MAX, "{most} at one time");
    let known = lab.server.count("quic_in_opened");
    assert!(known > 500, "{known} were opened");
    t.close(&mut lab);
}

/// Nothing is left at the devices of ended connections, however they ended.
#[test]
fn nothing_leaks() {
    let mut lab = QuicFaultNetwork::new();
    for round in 0..6_u64 {
        let mut t = FileTransfers::begin(&mut lab, vec![down("a", 600_000)]);
        if round % 3 == 2 {
            // The client disappears; the server times out.
            lab.run(30, |lab| t.step(lab) || t.received() > 400_000);
            assert_eq!(lab.server.count("quic_entries"), 2);
            lab.set_link_rule(|_, _, _| Vec::new());
            lab.run(70, |_| false);
            lab.set_link_rule(|_, _, frame| vec![(Duration::from_millis(5), frame)]);
            assert_eq!(lab.server.count("quic_timed_out"), round / 3 + 1);
            assert_eq!((lab.server.count("quic_entries"), lab.server.count("quic_routes")), (0, 0));
            while lab.client.app.poll_event().is_some() {}
            while lab.server.app.poll_event().is_some() {}
        } else {
            t.run(&mut lab);
            t.close(&mut lab);
        }
    }
    assert_eq!(lab.server.count("quic_added"), 12);
    assert_eq!(lab.server.count("quic_removed"), 12);
    assert_eq!(lab.server.count("quic_ops_ignored"), 0);
}
