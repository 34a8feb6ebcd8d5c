//! Workloads (`workloads/*.toml`): what a unit of work needs, by the host and by the device.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::model::ResourceDemand;

/// A workload with its paths.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlannedWorkload {
    pub(super) name: String,
    pub(super) title: String,
    /// Bytes of payload in a unit.
    pub(super) unit_bytes: f64,
    #[serde(rename = "path")]
    pub(super) paths: Vec<WorkloadPath>,
}

/// A division of the work: all by the host, or parts by the device.
#[derive(Debug, Deserialize)]
pub(super) struct WorkloadPath {
    pub(super) name: String,
    /// Contexts of a connection in the device.
    #[serde(default)]
    pub(super) contexts: f64,
    /// Row of a benchmark that has this path's cycles.
    measured: MeasuredRow,
    #[serde(flatten)]
    pub(super) demand: ResourceDemand,
}

/// A row in the results of a report, and its fields.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MeasuredRow {
    run: String,
    rows: String,
    filter: Map<String, Value>,
    /// Fields with cycles of a unit.
    host_cycles: Option<String>,
    nic_cycles: Option<String>,
    /// Fields with cycles of a byte.
    host_cycles_per_byte: Option<String>,
    nic_cycles_per_byte: Option<String>,
}

impl PlannedWorkload {
    /// Parses a workload.
    ///
    /// # Errors
    /// Returns the mistake in one line.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let workload: Self = toml::from_str(text)
            .map_err(|error| error.to_string().split_whitespace().collect::<Vec<_>>().join(" "))?;
        if !(workload.unit_bytes > 0.0 && workload.unit_bytes.is_finite()) {
            return Err(format!("unit_bytes is {}; it must be positive", workload.unit_bytes));
        }
        if workload.paths.is_empty() {
            return Err("it has no path".to_owned());
        }
        Ok(workload)
    }

    /// Replaces the cycles of all paths by those that a report has measured.
    ///
    /// # Errors
    /// Returns the result that is missing, in one line.
    pub(super) fn measure(&mut self, results: &Path) -> Result<(), String> {
        let unit_bytes = self.unit_bytes;
        for path in &mut self.paths {
            path.measured.apply(results, unit_bytes, &mut path.demand)?;
        }
        Ok(())
    }
}

impl MeasuredRow {
    fn apply(
        &self,
        results: &Path,
        unit_bytes: f64,
        demand: &mut ResourceDemand,
    ) -> Result<(), String> {
        let file = results.join("raw").join(&self.run).with_extension("json");
        let refuse = |what: &str| format!("cannot use result {}: {what}", file.display());
        let text = std::fs::read_to_string(&file).map_err(|error| refuse(&error.to_string()))?;
        let result: Value =
            serde_json::from_str(&text).map_err(|error| refuse(&error.to_string()))?;
        let rows = result["repetitions"][0][self.rows.as_str()].as_array();
        let belongs = |row: &&Value| self.filter.iter().all(|(key, wanted)| row[key] == *wanted);
        let row = rows.into_iter().flatten().find(belongs);
        let row = row.ok_or_else(|| refuse("it has no row of this workload"))?;
        let value = |field: &Option<String>| row[field.as_deref()?].as_f64();
        let per_byte = |field: &Option<String>| value(field).map(|cycles| cycles * unit_bytes);
        let host = value(&self.host_cycles).or_else(|| per_byte(&self.host_cycles_per_byte));
        let nic = value(&self.nic_cycles).or_else(|| per_byte(&self.nic_cycles_per_byte));
        demand.host_cycles = host.ok_or_else(|| refuse("its row has no host cycles"))?;
        demand.nic_cycles = nic.ok_or_else(|| refuse("its row has no device cycles"))?;
        Ok(())
    }
}

/// Returns the workloads of `workloads/`.
///
/// # Panics
/// If an embedded file is invalid, which a test excludes.
pub(super) fn built_in_workloads() -> Vec<PlannedWorkload> {
    let files = [
        include_str!("../../../../workloads/content.toml"),
        include_str!("../../../../workloads/tls.toml"),
        include_str!("../../../../workloads/proxy.toml"),
        include_str!("../../../../workloads/short-connections.toml"),
        include_str!("../../../../workloads/storage.toml"),
    ];
    files.map(|text| PlannedWorkload::parse(text).expect("checked by a test")).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_workloads_have_both_paths() {
        for workload in built_in_workloads() {
            let names: Vec<_> = workload.paths.iter().map(|path| path.name.as_str()).collect();
            assert_eq!(names, ["host", "device"], "{}", workload.name);
            for path in &workload.paths {
                assert!(path.demand.host_cycles > 0.0 && path.demand.link_bytes > 0.0);
            }
            let [host, device] = [0, 1].map(|at| workload.paths[at].demand.host_cycles);
            assert!(device < host / 2.0, "{}: the device saves host cycles", workload.name);
        }
    }

    #[test]
    fn results_of_a_report_replace_the_cycles() {
        let folder = std::env::temp_dir().join(format!("outboard-plan-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("raw")).unwrap();
        let mut tls = built_in_workloads().remove(1);
        assert!(tls.measure(&folder).unwrap_err().starts_with("cannot use result "));
        let row = |path: &str, host: f64, nic: f64| {
            json!({ "side": "Transmit", "path": path, "suite": "Aes128Gcm",
                "message_bytes": 262_144, "host_cycles_per_byte": host,
                "device_cycles_per_byte": nic })
        };
        let rows = [row("host", 0.5, 0.125), row("device", 0.25, 1.0)];
        let result = json!({ "repetitions": [{ "rows": rows }] });
        std::fs::write(folder.join("raw/tls.json"), result.to_string()).unwrap();
        tls.measure(&folder).unwrap();
        let cycles = tls.paths.iter().map(|path| (path.demand.host_cycles, path.demand.nic_cycles));
        assert_eq!(cycles.collect::<Vec<_>>(), [(131_072.0, 32_768.0), (65_536.0, 262_144.0)]);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
