//! Alarm counters are zero at the end if every peer was honest, no packet was damaged, no disk
//! failed and no device was reset.
//!
//! Loss, duplication and reordering of packets excuse no alarm, because most attacks would look
//! like that. Tables that a scenario makes small do; [`excuses`] lists the counters that they may
//! move.

use base::Instant;

use crate::faults::Scenario;
use crate::machines::has_remote_device;
use crate::node::SimNode;
use crate::patterns::PatternScenario;
use crate::report::RunReport;

/// Counters that must be 0 in every scenario: each counts a bug.
const INTERNAL: [&str; 4] =
    ["internal_errors", "quic_internal_errors", "nic_internal_errors", "nvmet_internal_errors"];

/// Moved by devices whose tables of TLS or NVMe/TCP contexts and buffers may fill.
const CONTEXTS: [&str; 12] = [
    "l5o_refused",
    "tls_tx_device_refused",
    "tls_rx_device_refused",
    "tls_tx_device_lost",
    "tx_tls_drop_bypass_req",
    "tx_dropped_l5o",
    "nvme_tx_device_refused",
    "nvme_tx_device_lost",
    "nvme_ddp_refused",
    "rx_nvmeotcp_sk_add_fail",
    "rx_nvmeotcp_ddp_setup_fail",
    "tx_nvmeotcp_drop_bypass_req",
];

/// Moved by devices whose tables of QUIC connections may fill.
const QUIC: [&str; 7] = [
    "quic_refused_full",
    "quic_ops_ignored",
    "quic_tx_refused_unknown",
    "tx_dropped_quic",
    "quic_out_dropped",
    "quic_device_refused_full",
    "quic_not_sealed",
];

/// Moved by proxies whose devices' tables of pairs may fill.
const PAIRS: [&str; 5] = [
    "splice_refused_full",
    "splice_refused_by_device",
    "splice_dropped_kept_full",
    "proxy_splice_refused_table_full",
    "teardown_refused_table_full",
];

/// Moved by a proxy if the network loses packets or a backend's machine stops.
const BACKENDS: [&str; 7] = [
    "proxy_502",
    "proxy_503",
    "proxy_504",
    "proxy_checks_bad",
    "proxy_backends_went_down",
    "proxy_no_backend_up",
    "proxy_no_backend_room",
];

/// Returns every counter of a simulated machine that is marked `alarm` in its definition.
fn alarms() -> impl Iterator<Item = &'static str> {
    let others = [
        host::HostCounters::ALARMS,
        quic::QuicEndpointCounters::ALARMS,
        apps::content::ContentCounters::ALARMS,
        apps::content::UploadCounters::ALARMS,
        apps::remote::RemoteCounters::ALARMS,
        apps::proxy::ProxyCounters::ALARMS,
        apps::nvme::target::NvmeTargetCounters::ALARMS,
        apps::nvme::initiator::InitiatorCounters::ALARMS,
    ];
    nic::ALARMS.into_iter().chain(others).flatten().copied()
}

/// Returns the alarms that the scenario may raise on a machine.
fn excuses(index: usize, scenario: &Scenario) -> Vec<&'static str> {
    let contexts = scenario.tls_device(index).is_none_or(|device| device.has_room())
        && scenario.patterns.as_ref().is_none_or(PatternScenario::has_room)
        && scenario.storage.as_ref().is_none_or(|s| s.target.has_room() && s.initiator.has_room())
        && scenario.remote.as_ref().is_none_or(|r| r.target.has_room() && r.server.has_room());
    let quic = scenario.quic.as_ref();
    let entries = quic.is_none_or(|quic| quic.server.has_room() && quic.client.has_room());
    let proxied = scenario.proxied.as_ref();
    let pairs = proxied.is_none_or(|proxied| proxied.has_room());
    let backends = proxied.is_none_or(|proxied| scenario.calm_net() && !proxied.server_stops);
    let hand_over = scenario.hand_over.flows_max >= 65_536;
    // The region of a device in another process may be full.
    let local = !has_remote_device(scenario, index);
    let excuses: [(bool, &[&str]); 7] = [
        (contexts, &CONTEXTS),
        (entries, &QUIC),
        (pairs, &PAIRS),
        (backends, &BACKENDS),
        (hand_over, &["teardown_refused_table_full"]),
        (scenario.backlog >= 64, &["tcp_listen_drops"]),
        (local, &["nvme_ddp_refused"]),
    ];
    excuses.into_iter().filter(|(roomy, _)| !roomy).flat_map(|(_, names)| names).copied().collect()
}

/// Checks one machine.
pub(crate) fn check(
    now: Instant,
    index: usize,
    node: &SimNode,
    scenario: &Scenario,
    report: &mut RunReport,
) {
    for name in INTERNAL {
        let value = node.counter(name);
        if value != 0 {
            report.fail(now, "alarms", format!("n{index}: {name} is {value}"));
        }
    }
    if !scenario.is_honest() {
        return;
    }
    let excused = excuses(index, scenario);
    let moved =
        alarms().filter(|name| !excused.contains(name)).map(|name| (name, node.counter(name)));
    let moved: Vec<String> = moved
        .filter(|(_, value)| *value != 0)
        .map(|(name, value)| format!("{name} is {value}"))
        .collect();
    if !moved.is_empty() {
        let what = format!("n{index}: {} though all are honest", moved.join(", "));
        report.fail(now, "alarms", what);
    }
}
