//! The parts that reports of live benchmarks share: a server's line, and what was measured on.

use std::fmt;

use serde_json::{Value, json};

use super::lab::Bed;
use super::load::Run;
use super::median;
use super::tools::program;
use cli::Failure;

/// What went wrong in any of the servers' runs.
pub(in crate::bench) fn errors<'a>(
    servers: impl IntoIterator<Item = (&'a str, &'a Vec<Run>)>,
) -> Option<String> {
    let runs = servers.into_iter().flat_map(|(name, runs)| runs.iter().map(move |r| (name, r)));
    let all: Vec<String> = runs
        .filter(|(_, run)| !run.errors.is_empty())
        .map(|(name, run)| format!("{name}: {}", run.errors))
        .collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// Looks at rows, each with what went wrong in it.
///
/// # Errors
/// Where a row had errors: its numbers prove nothing.
pub(in crate::bench) fn check_rows<'a>(
    rows: impl IntoIterator<Item = (&'a str, Option<String>)>,
) -> Result<(), Failure> {
    match rows.into_iter().find_map(|(row, errors)| Some((row, errors?))) {
        None => Ok(()),
        Some((row, errors)) => Err(Failure::System(format!("row {row} is void: {errors}"))),
    }
}

/// Medians of one server's runs in a row.
pub(in crate::bench) struct Summary {
    requests_per_s: f64,
    bytes_per_s: f64,
    server_s_per_gb: f64,
    core_s_per_gb: f64,
    server_s_per_100k: f64,
    core_s_per_100k: f64,
    interrupts_part: f64,
    switches_per_request: f64,
    client_busy: f64,
    p50_us: f64,
    p99_us: f64,
}

impl Summary {
    /// Of all runs.
    pub(in crate::bench) fn of(runs: &[Run]) -> Self {
        let of = |value: fn(&Run) -> f64| median(runs.iter().map(value));
        Self {
            requests_per_s: of(Run::requests_per_s),
            bytes_per_s: of(Run::bytes_per_s),
            server_s_per_gb: of(|r| r.server_s / r.bytes * 1e9),
            core_s_per_gb: of(|r| r.core_s / r.bytes * 1e9),
            server_s_per_100k: of(|r| r.server_s / r.requests * 1e5),
            core_s_per_100k: of(|r| r.core_s / r.requests * 1e5),
            interrupts_part: of(|r| r.interrupts_s / r.core_s),
            switches_per_request: of(|r| r.switches / r.requests),
            client_busy: of(|r| r.client_busy),
            p50_us: of(|r| r.latency_us.0),
            p99_us: of(|r| r.latency_us.1),
        }
    }

    /// For machines.
    pub(in crate::bench) fn json(&self) -> Value {
        json!({
            "requests_per_s": self.requests_per_s,
            "bytes_per_s": self.bytes_per_s,
            "server_cpu_s_per_gb": self.server_s_per_gb,
            "core_busy_s_per_gb": self.core_s_per_gb,
            "server_cpu_s_per_100k_requests": self.server_s_per_100k,
            "core_busy_s_per_100k_requests": self.core_s_per_100k,
            "interrupts_part_of_core_busy": self.interrupts_part,
            "context_switches_per_request": self.switches_per_request,
            "client_core_busy": self.client_busy,
            "latency_p50_us": self.p50_us,
            "latency_p99_us": self.p99_us,
        })
    }
}

/// The head of the table.
pub(in crate::bench) fn write_header(f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(
        f,
        "{:<10} {:<9} {:>9} {:>8} {:>9} {:>9} {:>10} {:>9} {:>7} {:>8} {:>8} {:>7}",
        "row",
        "server",
        "req/s",
        "MB/s",
        "CPU s/GB",
        "core s/GB",
        "CPU s/100k",
        "core/100k",
        "switch",
        "p50 us",
        "p99 us",
        "client"
    )
}

/// What the columns are.
pub(in crate::bench) fn write_legend(f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(
        f,
        "CPU: the server's threads; core: everything on its core, soft interrupts among it;"
    )?;
    writeln!(f, "switch: context switches per request; client: how busy the client's core was.")
}

/// A server's line of the table.
pub(in crate::bench) fn show(
    f: &mut fmt::Formatter<'_>,
    row: &str,
    server: &str,
    s: &Summary,
) -> fmt::Result {
    writeln!(
        f,
        "{row:<10} {server:<9} {:>9.0} {:>8.1} {:>9.3} {:>9.3} {:>10.2} {:>9.2} {:>7.3} {:>8.0} \
         {:>8.0} {:>6.0}%",
        s.requests_per_s,
        s.bytes_per_s / 1e6,
        s.server_s_per_gb,
        s.core_s_per_gb,
        s.server_s_per_100k,
        s.core_s_per_100k,
        s.switches_per_request,
        s.p50_us,
        s.p99_us,
        s.client_busy * 100.0,
    )
}

/// What was measured on and with.
pub(in crate::bench) fn machine(bed: &Bed, programs: &[&str]) -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": "));
    // nginx says its version on stderr, wrk on stdout, and fails.
    let version = |name: &str| {
        let said = program(name).arg("-v").output().ok()?;
        let text = [said.stdout, said.stderr].concat();
        Some(String::from_utf8_lossy(&text).lines().next()?.trim().to_owned())
    };
    let mut machine = json!({
        "cpu": model.map(|(_, name)| name),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "cores": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        "server_core": bed.server_core,
        "client_core": bed.client_core,
        "outboard": env!("CARGO_PKG_VERSION"),
    });
    for name in programs {
        machine[*name] = version(name).into();
    }
    machine
}
