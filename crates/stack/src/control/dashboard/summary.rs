//! Data of the dashboard: rates, shares of offloads and refusals, from two readings of the
//! counters.

use serde_json::{Map, Value, json};

/// Connections in an event. The page says how many there are in all.
const CONNECTIONS_MAX: usize = 200;

/// An offload: counters of what the device did, and of what software did instead.
struct OffloadCounters {
    name: &'static str,
    unit: &'static str,
    device: &'static [&'static str],
    software: &'static [&'static str],
    /// Counters of refusals and fallbacks with their reasons.
    reasons: &'static [&'static str],
}

/// The offloads, in the order of the page. Counters are those of `host`, summed over queues.
const OFFLOADS: [OffloadCounters; 9] = [
    OffloadCounters {
        name: "files",
        unit: "bytes",
        device: &["file_offload_bytes", "quic_file_bytes_offloaded"],
        software: &["file_fallback_bytes", "quic_file_bytes_software"],
        reasons: &["file_fallback_opens", "file_aborts", "quic_file_bytes_late"],
    },
    OffloadCounters {
        name: "TLS transmit",
        unit: "connections",
        device: &["tls_tx_device"],
        software: &["tls_tx_sw"],
        reasons: &["tls_tx_device_refused", "tls_tx_device_lost"],
    },
    OffloadCounters {
        name: "TLS receive",
        unit: "records",
        device: &["tls_rx_records_full"],
        software: &["tls_rx_records_partial", "tls_rx_records_none"],
        reasons: &["tls_rx_device_refused", "tls_rx_device_put_off", "tls_rx_device_resync"],
    },
    OffloadCounters {
        name: "NVMe/TCP receive",
        unit: "PDUs",
        device: &["nvme_rx_pdus_full"],
        software: &["nvme_rx_pdus_partial", "nvme_rx_pdus_none"],
        reasons: &["nvme_ddp_refused", "nvme_rx_lost", "nvme_rx_put_off"],
    },
    OffloadCounters {
        name: "NVMe/TCP transmit",
        unit: "digests",
        device: &["nvme_tx_digests_device"],
        software: &["nvme_tx_digests_host"],
        reasons: &["nvme_tx_device_refused", "nvme_tx_device_lost"],
    },
    OffloadCounters {
        name: "QUIC",
        unit: "connections",
        device: &["quic_offloaded"],
        software: &[],
        reasons: &[
            "quic_device_refused_full",
            "quic_device_refused_protocol",
            "quic_device_refused_disabled",
            "quic_device_refused_other",
        ],
    },
    OffloadCounters {
        name: "connection tear-down",
        unit: "connections",
        device: &["handed_over"],
        software: &["hand_over_refused", "hand_over_kept_full", "hand_over_kept_overloaded"],
        reasons: &["hand_over_deferred", "hand_over_kept_disabled", "handed_over_lost"],
    },
    OffloadCounters {
        name: "splice",
        unit: "pairs",
        device: &["splice_handed_over"],
        software: &["proxy_relayed"],
        reasons: &[
            "splice_declined_not_connected",
            "splice_declined_offload",
            "splice_declined_encrypted",
            "splice_declined_options",
            "splice_declined_busy",
            "splice_declined_full",
            "splice_refused",
        ],
    },
    OffloadCounters {
        name: "inspection",
        unit: "bytes",
        device: &["inspect_device_bytes"],
        software: &["inspect_host_bytes"],
        reasons: &["inspect_device_refused"],
    },
];

/// A reading of the counters.
#[derive(Clone, Debug)]
pub(super) struct CounterReading {
    /// Seconds since any fixed time.
    pub(super) at_s: f64,
    /// `{"host": {"q0": {..}}, "nic": {"q0": {..}}}`.
    pub(super) counters: Value,
    /// CPU time of each thread so far, in seconds.
    pub(super) thread_cpu_s: Vec<(String, f64)>,
}

impl CounterReading {
    /// Returns a counter's sum over the queues of a part.
    fn sum(&self, part: &str, name: &str) -> u64 {
        let queues = self.counters[part].as_object().into_iter().flatten();
        queues.filter_map(|(_, counters)| counters[name].as_u64()).sum()
    }

    fn sums(&self, part: &str, names: &[&str]) -> u64 {
        names.iter().map(|name| self.sum(part, name)).sum()
    }
}

/// Returns an event: `now`, with rates since `before`. `connections` is the answer to `ss`. Rates
/// of the link are null if the device is another process.
pub(super) fn summary(
    before: &CounterReading,
    now: &CounterReading,
    connections: &Value,
    is_alarm: fn(&str) -> bool,
) -> Value {
    let seconds = now.at_s - before.at_s;
    let rate = |part: &str, names: &[&str]| {
        let moved = now.sums(part, names).saturating_sub(before.sums(part, names));
        if seconds > 0.0 { moved as f64 / seconds } else { 0.0 }
    };
    // A device in another process counts the bytes on its link.
    let has_device = now.counters["nic"].is_object();
    let link_rate = |name: &str| has_device.then(|| rate("nic", &[name]));
    let requests = ["http_requests", "nvmet_reads", "nvmet_writes", "proxy_accepted"];
    let all = connections.as_array().map_or(&[][..], Vec::as_slice);
    json!({
        "received_bytes_per_s": link_rate("rx_bytes"),
        "sent_bytes_per_s": link_rate("tx_bytes"),
        "requests_per_s": rate("host", &requests),
        "retransmissions_per_s": rate("host", &["tcp_retrans"]),
        "load": loads(before, now, seconds),
        "offloads": OFFLOADS.iter().map(|one| offload(one, now)).collect::<Vec<_>>(),
        "alarms": alarms(now, is_alarm),
        "connections_total": all.len(),
        "connections": all.iter().take(CONNECTIONS_MAX).map(connection).collect::<Vec<_>>(),
    })
}

/// Returns the share of a core that each thread used.
fn loads(before: &CounterReading, now: &CounterReading, seconds: f64) -> Vec<Value> {
    let load = |(name, cpu): &(String, f64)| {
        let (_, earlier) = before.thread_cpu_s.iter().find(|(other, _)| other == name)?;
        let share = if seconds > 0.0 { (cpu - earlier) / seconds } else { 0.0 };
        Some(json!({ "thread": name, "share": share.clamp(0.0, 1.0) }))
    };
    now.thread_cpu_s.iter().filter_map(load).collect()
}

fn offload(counters: &OffloadCounters, now: &CounterReading) -> Value {
    let device = now.sums("host", counters.device);
    let software = now.sums("host", counters.software);
    let reasons = counters.reasons.iter().map(|&name| (name, now.sum("host", name)));
    let reasons: Map<String, Value> = reasons
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| (name.to_owned(), count.into()))
        .collect();
    let total = device + software;
    json!({
        "name": counters.name,
        "unit": counters.unit,
        "device": device,
        "software": software,
        "share": (total > 0).then(|| device as f64 / total as f64),
        "reasons": reasons,
    })
}

/// Returns the alarms that have moved, summed over the queues.
fn alarms(now: &CounterReading, is_alarm: fn(&str) -> bool) -> Map<String, Value> {
    let mut moved = Map::new();
    for part in now.counters.as_object().into_iter().flat_map(Map::values) {
        for counters in part.as_object().into_iter().flat_map(Map::values) {
            for (name, value) in counters.as_object().into_iter().flatten() {
                let value = value.as_u64().filter(|_| is_alarm(name)).unwrap_or(0);
                if value > 0 {
                    let sum = moved.get(name).and_then(Value::as_u64).unwrap_or(0) + value;
                    moved.insert(name.clone(), sum.into());
                }
            }
        }
    }
    moved
}

/// Returns the fields of a connection that the page shows.
fn connection(info: &Value) -> Value {
    let offloads = info["offload"].as_object().into_iter().flatten();
    let active = offloads.filter(|(_, state)| state["active"] == true);
    let names: Vec<_> = active.map(|(name, _)| name.as_str()).collect();
    json!({
        "remote": info["remote"],
        "local": info["local"],
        "protocol": info["protocol"].as_str().unwrap_or("tcp"),
        "state": info["state"],
        "srtt_us": info["srtt_us"],
        "cwnd_bytes": info["cwnd_bytes"],
        "offloads": names.join(" "),
        "queue": info["queue"],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(at_s: f64, host: Value, nic: Value, cpu: f64) -> CounterReading {
        CounterReading {
            at_s,
            counters: json!({ "host": { "q0": host.clone(), "q1": host }, "nic": { "q0": nic } }),
            thread_cpu_s: vec![("nic0".to_owned(), cpu)],
        }
    }

    #[test]
    fn rates_shares_and_reasons_follow_from_counters() {
        let before = reading(10.0, json!({ "http_requests": 5 }), json!({ "tx_bytes": 100 }), 1.0);
        let host = json!({
            "http_requests": 15, "file_offload_bytes": 300, "file_fallback_bytes": 100,
            "tls_tx_device_refused": 2, "received_malformed": 1,
        });
        let now = reading(12.0, host, json!({ "tx_bytes": 700 }), 1.5);
        let sockets = json!([{ "remote": "10.0.0.2:1", "state": "ESTABLISHED", "queue": 1,
            "offload": { "file": { "active": true }, "tls_rx": { "active": false } } }]);
        let event = summary(&before, &now, &sockets, |name| name == "received_malformed");
        assert_eq!(event["requests_per_s"], 10.0, "two queues");
        assert_eq!(event["sent_bytes_per_s"], 300.0);
        let mut attached = now.clone();
        attached.counters.as_object_mut().unwrap().remove("nic");
        let event_of_attached = summary(&before, &attached, &sockets, |_| false);
        assert_eq!(event_of_attached["sent_bytes_per_s"], Value::Null);
        assert_eq!(event_of_attached["requests_per_s"], 10.0);
        assert_eq!(event["load"], json!([{ "thread": "nic0", "share": 0.25 }]));
        assert_eq!(event["offloads"][0]["share"], 0.75);
        assert_eq!(event["offloads"][1]["reasons"], json!({ "tls_tx_device_refused": 4 }));
        assert_eq!(event["offloads"][3]["share"], Value::Null);
        assert_eq!(event["alarms"], json!({ "received_malformed": 2 }));
        assert_eq!(event["connections"][0]["offloads"], "file");
        assert_eq!(event["connections_total"], 1);
    }

    #[test]
    fn a_restart_of_counters_is_no_negative_rate() {
        let before = reading(10.0, json!({ "http_requests": 5 }), json!({}), 2.0);
        let now = reading(10.0, json!({ "http_requests": 1 }), json!({}), 1.0);
        let event = summary(&before, &now, &json!([]), |_| false);
        assert_eq!(event["requests_per_s"], 0.0);
        assert_eq!(event["load"][0]["share"], 0.0);
    }
}
