//! Answers to `stat` and `ss`: counters and connections as JSON.

use std::net::SocketAddr;

use abi::Refusal;
use abi::quic::{QuicConnectionId, QuicId};
use host::SocketInfo;
use nic::SpliceInfo;
use quic::ConnectionInfo;
use serde_json::{Value, json};

use super::probe::Probe;

/// Returns the counters of all threads: `{"host": {"q0": {..}}, "nic": {"q0": {..}}}`. A device
/// process has a function for each program instead of a queue, and the part `switch`.
pub(crate) fn counters(probes: &[Probe]) -> Value {
    let mut all = json!({});
    for answer in probes.iter().filter_map(|probe| probe.ask(false)) {
        for ((part, index), name, value) in answer.counters {
            all[part][format!("q{index}")][name] = value.into();
        }
    }
    all
}

/// Returns all connections: TCP, then QUIC, then the pairs that devices splice.
pub(super) fn sockets(probes: &[Probe]) -> Value {
    let (mut all, mut quic, mut pairs) = (Vec::new(), Vec::new(), Vec::new());
    for probe in probes {
        let Some(answer) = probe.ask(true) else { continue };
        all.extend(answer.sockets.iter().map(|info| describe(info, probe.index)));
        quic.extend(answer.quic.iter().map(|info| describe_quic(info, probe.index)));
        pairs.extend(answer.splices.iter().map(|(queue, info)| describe_pair(info, *queue)));
    }
    all.append(&mut quic);
    all.append(&mut pairs);
    Value::Array(all)
}

/// Describes a spliced pair: its first connection like a socket, and the second one in
/// `spliced_with`.
fn describe_pair(info: &SpliceInfo, queue: usize) -> Value {
    let [first, second] = info.tuples;
    json!({
        "queue": queue,
        "local": first.local.to_string(),
        "remote": first.remote.to_string(),
        "state": info.state,
        "spliced_with": {
            "local": second.local.to_string(),
            "remote": second.remote.to_string(),
        },
        "bytes_from_remote": info.bytes[0],
        "bytes_to_remote": info.bytes[1],
        "packets_from_remote": info.packets[0],
        "packets_to_remote": info.packets[1],
        "age_ms": info.age.as_millis(),
        "idle_ms": info.idle.as_millis(),
    })
}

fn describe(info: &SocketInfo, queue: usize) -> Value {
    json!({
        "queue": queue,
        "local": info.local.to_string(),
        "remote": info.remote.to_string(),
        "state": info.state,
        "send_queue": info.send_queue,
        "receive_queue": info.receive_queue,
        "cwnd_bytes": info.cwnd,
        "ssthresh_bytes": info.ssthresh,
        "srtt_us": info.srtt.as_micros(),
        "rto_us": info.rto.as_micros(),
        "mss": info.mss,
        "rcv_mss": info.rcv_mss,
        "congestion_state": info.congestion_state,
        "sacked_bytes": info.sacked,
        "lost_bytes": info.lost,
        "reordering": info.reordering,
        "min_rtt_us": info.min_rtt.as_micros(),
        "delivery_rate_bytes_per_s": info.delivery_rate,
        "delivery_rate_app_limited": info.delivery_rate_app_limited,
        "pacing_rate_bytes_per_s": info.pacing_rate,
        "file_bytes_offloaded": info.file_bytes_offloaded,
        "retransmitted_bytes": info.retransmitted_bytes,
        "tls": info.tls.map(|tls| json!({
            "version": format!("{:?}", tls.version),
            "suite": format!("{:?}", tls.suite),
            "rx_records_full": tls.rx_records[0],
            "rx_records_partial": tls.rx_records[1],
            "rx_records_none": tls.rx_records[2],
        })),
        "offload": {
            "file": offload(info.file_offload),
            "tls_tx": info.tls.map(|tls| offload(tls.tx_offload)),
            "tls_rx": info.tls.map(|tls| offload(tls.rx_offload)),
            "nvme_tx": info.nvme.and_then(|nvme| nvme.tx_offload).map(offload),
            "nvme_rx": info.nvme.map(|nvme| offload(nvme.rx_offload)),
            "inspect": info.inspection.map(offload),
        },
    })
}

/// Describes a QUIC connection.
fn describe_quic(info: &ConnectionInfo, queue: usize) -> Value {
    let (addr, port) = info.local;
    let path = info.stats.path;
    let direction = |state: Result<Option<QuicId>, Refusal>| match state {
        Ok(Some(name)) => json!({ "active": true, "name": name.0 }),
        Ok(None) => json!({ "active": false, "reason": "not requested yet" }),
        Err(why) => offload(Err(why)),
    };
    let hex = |id: &QuicConnectionId| format!("{id:?}");
    let waiting = info.waiting;
    json!({
        "protocol": "quic",
        "version": info.version,
        "connection_ids": info.ids.iter().map(hex).collect::<Vec<_>>(),
        "peer_connection_id": info.peer_id.as_ref().map(hex),
        "close_reason": info.closed,
        "streams_waiting": {
            "stream_credit": waiting.stream_credit,
            "connection_credit": waiting.connection_credit,
            "window": waiting.window,
            "disk": waiting.disk,
        },
        "congestion_events": path.congestion_events,
        "queue": queue,
        "local": addr.map_or_else(|| format!("*:{port}"), |a| SocketAddr::new(a, port).to_string()),
        "remote": info.remote.to_string(),
        "state": info.state,
        "bytes_sent": info.stats.udp_tx.bytes,
        "bytes_received": info.stats.udp_rx.bytes,
        "streams_sending": info.streams,
        "cwnd_bytes": path.cwnd,
        "srtt_us": info.rtt.as_micros(),
        "mtu": path.current_mtu,
        "lost_packets": path.lost_packets,
        "losses_spurious": info.losses_spurious,
        "cwnd_reductions": info.reductions[0],
        "cwnd_reductions_undone": info.reductions[1],
        "file_bytes_offloaded": info.file_bytes_offloaded,
        "key_updates": info.key_updates,
        "migrations": info.migrations,
        "offload": {
            "quic_tx": direction(info.offload[0]),
            "quic_rx": direction(info.offload[1]),
        },
    })
}

/// Describes whether an offload is active for a connection, or why not.
fn offload(state: Result<(), Refusal>) -> Value {
    match state {
        Ok(()) => json!({ "active": true }),
        Err(why) => json!({ "active": false, "reason": why.to_string() }),
    }
}
