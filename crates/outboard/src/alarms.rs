//! Alarms of this program: those of its stack and of its applications.
//!
//! The simulator checks that they are zero in runs in which all peers conform, and the interop
//! tests that they are zero after real clients.

use serde_json::Value;

/// Returns all alarms.
fn all() -> impl Iterator<Item = &'static str> {
    let applications = [
        apps::content::ContentCounters::ALARMS,
        apps::content::UploadCounters::ALARMS,
        apps::proxy::ProxyCounters::ALARMS,
        apps::nvme::target::NvmeTargetCounters::ALARMS,
        apps::nvme::initiator::InitiatorCounters::ALARMS,
    ];
    stack::alarms().chain(applications.into_iter().flatten().copied())
}

/// Returns whether a counter is an alarm.
pub(crate) fn is_alarm(name: &str) -> bool {
    all().any(|alarm| alarm == name)
}

/// Removes all counters except alarms from an answer to `stat`.
pub(crate) fn retain(answer: &mut Value) {
    let parts = answer.as_object_mut().into_iter().flat_map(|parts| parts.values_mut());
    let queues = parts.filter_map(Value::as_object_mut).flat_map(|queues| queues.values_mut());
    for counters in queues.filter_map(Value::as_object_mut) {
        counters.retain(|name, _| is_alarm(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_alarms_are_kept() {
        let mut answer = serde_json::json!({
            "host": { "q0": { "tcp_in_segs": 5, "tcp_in_errs": 1 } },
            "nic": { "q0": { "rx_packets": 5, "rx_checksum_bad": 0 } },
        });
        retain(&mut answer);
        let expected = serde_json::json!({
            "host": { "q0": { "tcp_in_errs": 1 } },
            "nic": { "q0": { "rx_checksum_bad": 0 } },
        });
        assert_eq!(answer, expected);
    }

    #[test]
    fn the_documents_list_every_alarm() {
        let readme = include_str!("../../../docs/metrics.md");
        let missing: Vec<_> = all().filter(|name| !readme.contains(&format!("`{name}`"))).collect();
        assert!(missing.is_empty(), "docs/metrics.md does not name {missing:?}");
    }
}
