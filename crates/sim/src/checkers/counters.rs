//! Counters at the end of a run: those that must have moved, those that must not have, and gauges
//! that must be zero.

use abi::FileLimits;
use abi::nvme_tcp::PREFIX_BYTES_MAX;
use base::Instant;

use crate::faults::{NodeRole, Scenario, TlsDevice};
use crate::node::SimNode;
use crate::report::RunReport;

/// Gauges of a machine that are zero at the end.
const EMPTY_AT_END: [&str; 40] = [
    "connections_quasi",
    "connections_closing_on_device",
    "l5o_contexts",
    "l5o_messages_open",
    "connections",
    "connections_half_open",
    "connections_time_wait",
    "http_connections_open",
    "http_files_cached",
    "uploads_open",
    "upload_buffer_bytes",
    "tx_pending_transmits",
    "tx_pending_flows",
    "tx_runs",
    "file_held_bytes",
    "file_open_files",
    "file_waiting_transmits",
    "file_reads_in_flight",
    "splice_draining",
    "splice_live",
    "splice_pairs",
    "splice_lingering",
    "splice_kept_frames",
    "proxy_connections_open",
    "proxy_splices_open",
    "quic_connections_open",
    "quic_entries",
    "quic_routes",
    "quic_waiting",
    "quic_waiting_bytes",
    "nvme_tcp_contexts",
    "nvme_tcp_pdus_open",
    "nvme_tcp_buffers",
    "nvme_tcp_buffer_bytes",
    "nvmet_connections_open",
    "nvmet_controllers_open",
    "nvmet_operations_open",
    "nvmet_buffer_bytes",
    "nvmet_locks_held",
    "nvmet_locks_waiting",
];

/// Counters that only faults of the network move, on any node.
const CALM_NET: [&str; 8] = [
    "tcp_timeouts",
    "tcp_recoveries",
    "tcp_in_errs",
    "tcp_syn_acks_resent",
    "received_bad_checksum",
    "received_malformed",
    "neighbor_drops",
    "tcp_timed_out",
];

/// The counters of [`CALM_NET`] that a spliced pair's windows may move: see
/// [`Scenario::overshoots`].
const OVERSHOT: [&str; 2] = ["tcp_timeouts", "tcp_recoveries"];

/// Counters that nothing in a simulation may move.
const NEVER: [&str; 11] = [
    "tx_dropped_malformed",
    "tx_dropped_table_full",
    "checksum_software",
    "file_unknown",
    // TCP delivers to TLS what the peer sent, whatever happens to packets.
    "tls_decrypt_error",
    "tls_handshake_failures",
    "tls_alerts_sent",
    "tls_alerts_received",
    // Clients send less late data than servers discard.
    "teardown_reset_late_data",
    "tcp_late_data_resets",
    // The host supplies the bytes that a tag needs.
    "tx_tls_drop_no_sync_data",
];

/// Maximum number of extents in a transmit, and of content bytes in a record (RFC 8446 section
/// 5.1).
const EXTENTS: u32 = FileLimits::EXTENTS_PER_TRANSMIT_MAX as u32;
const RECORD_BYTES: u32 = 1 << 14;

/// Checks one machine.
pub(crate) fn check(
    now: Instant,
    index: usize,
    node: &SimNode,
    scenario: &Scenario,
    report: &mut RunReport,
) {
    let retries_of_proxy = report.stats.retries_of_proxy;
    let (long, lost) = (report.stats.h3_long, report.stats.h3_lost);
    let late_data_dropped = report.late_data_dropped;
    let mut fail = |what: String| report.fail(now, "counters", format!("n{index}: {what}"));
    check_empty(index, node, scenario, &mut fail);
    check_buffers(node, &mut fail);
    if scenario.calm_net()
        && scenario.is_quick()
        && scenario.resets == 0
        && scenario.crowd.vanish == 0
    {
        // Transmits for a context that the device then refused are dropped, and their bytes
        // retransmitted.
        let refused = ["tls_tx_device_refused", "nvme_tx_device_refused"];
        let dropped = refused.iter().any(|name| node.counter(name) > 0);
        let overshoots = scenario.overshoots() || dropped || late_data_dropped;
        for name in CALM_NET {
            let value = node.counter(name);
            if value != 0 && !(overshoots && OVERSHOT.contains(&name)) {
                fail(format!("{name} is {value} without a fault of the network"));
            }
        }
        // A tail-loss probe (RFC 8985 section 7) may be spurious if a queue grows, which is
        // harmless.
        let (again, probes) = (node.counter("tcp_retrans"), node.counter("tcp_tail_probes"));
        if again > probes && !overshoots {
            fail(format!(
                "{again} retransmissions, {probes} probes without a fault of the network"
            ));
        }
    }
    if let Some(Err(what)) = inspects(index, scenario).map(|engine| check_patterns(node, engine)) {
        fail(what);
    }
    check_never(index, node, scenario, retries_of_proxy, &mut fail);
    if let Err(what) = check_memory(node, scenario) {
        fail(what);
    }
    if let Some(device) = scenario.tls_device(index) {
        if let Err(what) = check_tls(index, node, scenario, device) {
            fail(what);
        }
    }
    if let Some(quic) = &scenario.quic {
        let role = scenario.role(index);
        // A long connection may belong to another queue of the machine.
        let long = if scenario.queues_of(index) > 1 { 0 } else { long };
        if let Err(what) = super::quic::check(node, role, scenario, quic, long) {
            fail(what);
        }
    }
    match scenario.role(index) {
        NodeRole::Client | NodeRole::Target => {}
        NodeRole::Proxy => check_hand_over(node, scenario, true, &mut fail),
        NodeRole::Server if scenario.storage.is_some() => {}
        NodeRole::Server => {
            check_hand_over(node, scenario, false, &mut fail);
            if scenario.remote.is_none() {
                check_files(node, scenario, lost > 0, &mut fail);
            }
        }
    }
}

/// Compares the memory of a device's file blocks with its limit.
///
/// # Errors
/// The memory exceeds the limit.
pub(super) fn check_memory(node: &SimNode, scenario: &Scenario) -> Result<(), String> {
    let capabilities = node.device().capabilities();
    // Each extent may be accompanied by the prefix of its record or PDU.
    let pdu = capabilities.l5o.as_ref().is_ok_and(|limits| limits.nvme_tcp.tx);
    let pdu = if pdu { PREFIX_BYTES_MAX } else { 0 };
    let prefixes = if capabilities.l5o.is_ok() { EXTENTS * RECORD_BYTES + pdu } else { 0 };
    let most = capabilities.transmit_bytes_max + prefixes;
    let limit = scenario.device.clone().clamped(most).memory_bytes_max;
    let memory = node.file_memory_bytes();
    if memory > limit as u64 {
        return Err(format!("{memory} bytes of device memory, the limit is {limit}"));
    }
    Ok(())
}

/// Checks the gauges that must be zero.
fn check_empty(index: usize, node: &SimNode, scenario: &Scenario, fail: &mut impl FnMut(String)) {
    for name in EMPTY_AT_END {
        let value = node.counter(name);
        // If a stream is abandoned while the device reads for it, blocks that are read afterwards
        // are held until their memory is needed.
        let given_up = name == "file_held_bytes" && scenario.quic.is_some();
        // A target keeps its namespaces open.
        let stored = scenario.has_namespaces(index);
        let served = name == "file_open_files" && stored;
        // If reads fail, a block of a connection that was reset may be held until its memory is
        // needed.
        let served = served || name == "file_held_bytes" && stored && scenario.disk.any();
        if value != 0 && !served && !(given_up && (scenario.clients_abort() || scenario.may_fail()))
        {
            fail(format!("{name} is {value} at the end"));
        }
    }
}

/// Checks that each receive buffer is back in its pool, on its way there, dropped by a full ring,
/// or queued in a UDP socket that is never read again.
fn check_buffers(node: &SimNode, fail: &mut impl FnMut(String)) {
    let (out, recycled) = (node.counter("pool_out"), node.recycled());
    let queued = node.counter("udp_receive_queue");
    if out != recycled + queued {
        fail(format!("{out} receive buffers are out, {recycled} recycled, {queued} in sockets"));
    }
}

/// Checks the counters that nothing may move.
fn check_never(
    index: usize,
    node: &SimNode,
    scenario: &Scenario,
    retries_of_proxy: u64,
    fail: &mut dyn FnMut(String),
) {
    let by_proxy = scenario.role(index) == NodeRole::Client && scenario.proxy_alerts();
    for name in NEVER {
        let value = node.counter(name);
        // TLS detects damage that TCP's checksum does not.
        let damaged = scenario.storage.as_ref().is_some_and(|storage| storage.unseen > 0.0);
        let allowed = match name {
            _ if damaged && name.starts_with("tls_") => true,
            // After a reset the device knows none of the host's files. While the device opens a
            // namespace, the host notifies it of changes.
            "file_unknown" => scenario.resets > 0 || scenario.has_namespaces(index),
            // A proxy without a server sends an alert; each of these was checked when it arrived.
            "tls_handshake_failures" => by_proxy && value <= retries_of_proxy,
            _ => false,
        };
        if value != 0 && !allowed {
            fail(format!("{name} is {value}"));
        }
    }
}

/// Checks which half set up the connections of a server or a proxy, and that the device has none
/// left.
fn check_hand_over(
    node: &SimNode,
    scenario: &Scenario,
    is_proxy: bool,
    fail: &mut dyn FnMut(String),
) {
    let accepted = node.counter("setup_accepted");
    let opens = node.counter("tcp_passive_opens");
    let (client, server) = (scenario.client_tcp.timestamps, scenario.server_tcp.timestamps);
    let (asked, can) = match &scenario.proxied {
        Some(proxied) if is_proxy => (proxied.sets_up(), proxied.tcp.timestamps && client),
        Some(proxied) => (scenario.hand_over.set_up, proxied.tcp.timestamps && server),
        None => (scenario.hand_over.set_up, server && client),
    };
    if !asked && accepted > 0 {
        fail(format!("the device set {accepted} connections up, unasked"));
    }
    if asked && can && scenario.calm_net() && scenario.resets == 0 && accepted < opens {
        fail(format!("the device set up {accepted} of {opens} connections"));
    }
    let (given, back) = (node.counter("handed_over"), node.counter("hand_over_refused"));
    let ends = ["handed_over_closed", "handed_over_reset", "handed_over_timed_out"]
        .map(|name| node.counter(name));
    let lost = node.counter("handed_over_lost");
    let ended = back + lost + ends.iter().sum::<u64>();
    // A connection whose end the device reported just before its reset is counted twice: as ended
    // and as lost.
    if ended < given || (lost == 0 && ended > given) {
        fail(format!("{given} connections handed over, {ended} heard of again"));
    }
}

/// Checks which half sent the server's files.
fn check_files(node: &SimNode, scenario: &Scenario, lost: bool, fail: &mut dyn FnMut(String)) {
    let (bytes, fallback) =
        (node.counter("file_offload_bytes"), node.counter("file_fallback_bytes"));
    let body = node.counter("http_body_bytes");
    let offload = scenario.files_offloaded();
    let refused = scenario.resets > 0
        || scenario.device.files_max < 16
        || node.counter("tls_tx_device_refused") > 0;
    // For QUIC the host reads files until the connection has sent enough to be offloaded.
    let quic = scenario.quic.is_some();
    let by_quic = node.counter("quic_file_bytes_offloaded");
    if offload && !refused && !quic && fallback != 0 {
        fail(format!("the host read {fallback} bytes itself"));
    }
    if !offload && bytes != 0 {
        fail(format!("the device was asked for {bytes} bytes though offload is off"));
    }
    let sure = !scenario.may_fail() && scenario.calm_net();
    let quic_by_host = node.counter("quic_file_bytes_software");
    let sent = if offload { bytes + by_quic + quic_by_host } else { fallback };
    // Data that waits for room in a connection that ends early is not sent.
    let unsent = (scenario.clients_abort() || (quic && lost)) && sent < body;
    if sure && !refused && sent != body && !unsent {
        fail(format!("{body} bytes of bodies, {sent} bytes of files sent"));
    }
}

/// Checks which half did the work of a machine's TLS: property 10 in particular.
fn check_tls(
    index: usize,
    node: &SimNode,
    scenario: &Scenario,
    device: &TlsDevice,
) -> Result<(), String> {
    let value = |name| node.counter(name);
    let (sealed, opened) = (value("tx_tls_encrypted_bytes"), value("rx_tls_decrypted_bytes"));
    for (may, name, bytes) in
        [(device.encrypts(), "sealed", sealed), (device.decrypts(), "opened", opened)]
    {
        if !may && bytes > 0 {
            return Err(format!("the device {name} {bytes} bytes without a request"));
        }
    }
    let refused = value("tls_tx_device_refused") + value("tls_rx_device_refused");
    let by_device = value("l5o_refused");
    if device.has_room() && refused + by_device > 0 {
        return Err(format!("contexts refused: {by_device}, of which the host knows {refused}"));
    }
    // The host ignores refusals for connections that have ended.
    if refused > by_device {
        return Err(format!("{refused} contexts refused, of which the device knows {by_device}"));
    }
    let sure = scenario.calm_net() && scenario.resets == 0 && by_device == 0;
    if sure && device.encrypts() && sealed == 0 && value("tls_tx_bytes") > 0 {
        return Err(String::from("the device encrypted nothing, without a reason"));
    }
    // The server's receive context may be created too late for everything that a client sends.
    if sure
        && scenario.role(index) == NodeRole::Client
        && device.decrypts()
        && opened == 0
        && value("tls_rx_bytes") > 0
    {
        return Err(String::from("the device decrypted nothing, without a reason"));
    }
    Ok(())
}

/// Returns whether the device of a machine inspects; `None` if the machine has no rules about
/// patterns, or may have lost the counts of its application.
fn inspects(index: usize, scenario: &Scenario) -> Option<bool> {
    let storage = scenario.storage.as_ref().filter(|storage| storage.is_plain());
    let storage = storage.is_some_and(|storage| storage.rules.is_some());
    let engine = scenario.patterns_of(index).map(|patterns| patterns.engine);
    engine.or_else(|| storage.then_some(true))
}

/// Checks the matches of a machine with rules about patterns. `engine`: its device inspects.
///
/// # Errors
/// Describes the violation.
fn check_patterns(node: &SimNode, engine: bool) -> Result<(), String> {
    let mut by_rules = 0;
    node.visit(&mut |name, value| {
        let is_rule = name.starts_with("pattern_line_") || name == "pattern_former_matches";
        by_rules += if is_rule { value } else { 0 };
    });
    let found = node.counter("inspect_matches") + node.counter("pattern_http3_matches");
    if by_rules != found {
        return Err(format!("{found} matches, {by_rules} counted by rules"));
    }
    for name in ["http_denied", "proxy_denied", "pattern_line_1_matches"] {
        if node.counter(name) > 0 {
            return Err(format!("{name} is {}, but no client sends it", node.counter(name)));
        }
    }
    let by_device = node.counter("inspect_device_bytes");
    if by_device > 0 && !engine {
        return Err(format!("a device without the engine inspected {by_device} bytes"));
    }
    Ok(())
}
