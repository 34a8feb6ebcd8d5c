//! Remote files at the end of a run: the file system was never found corrupt, nothing is open, and
//! the intended half placed the data.

use base::Instant;

use crate::faults::{Scenario, TlsDevice};
use crate::node::SimNode;
use crate::report::RunReport;

/// Gauges of the server that are zero at the end.
const EMPTY_AT_END: [&str; 3] = ["remote_operations_open", "remote_fetches", "nvmei_requests_open"];
/// Counters of either machine that only damage moves, which every checksum detects here.
const NEVER: [&str; 6] = [
    "remote_corrupt",
    "nvme_data_digest_errors",
    "nvme_header_digest_errors",
    "nvme_terminations",
    "nvmei_protocol_errors",
    "nvmei_digest_retries",
];

/// Checks the server and the target.
pub(crate) fn check(now: Instant, nodes: &[SimNode], scenario: &Scenario, report: &mut RunReport) {
    let Some(remote) = &scenario.remote else { return };
    let mut fail = |what: String| report.fail(now, "remote", what);
    for (index, side) in [(Some(0), &remote.server), (scenario.target(), &remote.target)] {
        let Some(node) = index.and_then(|index| nodes.get(index)).filter(|node| !node.stopped)
        else {
            continue;
        };
        for name in NEVER.into_iter().chain(EMPTY_AT_END) {
            let value = node.counter(name);
            if value > 0 {
                fail(format!("{name} is {value} without a cause"));
            }
        }
        let by_device =
            ["nvme_rx_placed_bytes", "nvme_rx_digests_device", "nvme_tx_digests_device"];
        for name in by_device.iter().filter(|_| !side.uses_nvme()) {
            if node.counter(name) > 0 {
                fail(format!("{name} is {} though offload is off", node.counter(name)));
            }
        }
    }
    let Some(server) = nodes.first().filter(|node| !node.stopped) else { return };
    let [fetched, placed] =
        ["remote_fetched_bytes", "nvme_rx_placed_bytes"].map(|name| server.counter(name));
    let calm = scenario.calm_net() && scenario.resets == 0 && !scenario.disk.any();
    // TLS connections use contexts of the same table.
    let has_room =
        remote.server.has_room() && scenario.tls_device(0).is_none_or(TlsDevice::has_room);
    // The region of a device in another process may be full.
    let has_room = has_room && server.counter("nvme_ddp_refused") == 0;
    let sure = calm && remote.server.does_all() && has_room;
    if sure && remote.tls.is_none() && placed < fetched {
        fail(format!("{fetched} bytes fetched, the device placed {placed}"));
    }
}
