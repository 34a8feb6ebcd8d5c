//! What `outboard nvme fio --json` says.

use crate::Counters;

/// How many reads `fio` has compared with what it wrote, and its own end's counters.
///
/// # Panics
/// Where `printed` is no such report.
#[must_use]
pub fn fio_report(printed: &str) -> (u64, Counters) {
    let report: serde_json::Value = serde_json::from_str(printed).expect("JSON");
    let counters = Counters::parse(&report["counters"].to_string()).expect("counters");
    (report["verified"].as_u64().expect("a number"), counters)
}
