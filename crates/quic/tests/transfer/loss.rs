//! Throughput of downloads over paths with random loss, compared with the theoretical window.

use crate::model_network::ModelAbilities;
use crate::reordering::{BYTES, DEVICE, download, rate};

/// Effective round-trip time: that of the path, the time of a packet at the bottleneck, and half of
/// that until the client has a second packet to acknowledge.
const ROUND_TRIP_US: u64 = 10_100;
/// Minimum file bytes per packet: 1472 bytes of UDP payload without packet header, frame header and
/// tag.
const PACKET_BYTES: u64 = 1430;

/// Loss of 1% without a queue. A window that grows by a packet per round trip and is reduced to 0.7
/// has sqrt(1.7 / (2 * 0.3 * 0.01)) = 16.8 packets on average (RFC 9438 section 4.3, with the model
/// of M. Mathis et al., "The Macroscopic Behavior of the TCP Congestion Avoidance Algorithm").
fn window_matches_theory(device: ModelAbilities) {
    let (w, took) = download(device, |w| w.loss_ppm = 10_000);
    let packets = rate(took) * ROUND_TRIP_US * 10 / 1_000_000 / PACKET_BYTES;
    assert!((160..190).contains(&packets), "{packets} tenths of a packet per round trip");
    let counters = w.server.endpoint.counters();
    let lost = BYTES / PACKET_BYTES / 100;
    assert!((lost / 2..lost).contains(&counters.quic_reductions), "{counters:?}");
    assert_eq!(counters.quic_losses_spurious, 0);
}

#[test]
fn window_matches_theory_in_software() {
    window_matches_theory(ModelAbilities::default());
}

#[test]
fn window_matches_theory_with_device() {
    window_matches_theory(DEVICE);
}
