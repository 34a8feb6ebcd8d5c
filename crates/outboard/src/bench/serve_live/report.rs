//! The report: a table for people, JSON for machines.

use std::fmt;

use serde_json::{Map, Value, json};

use super::lab::Lab;
use super::load::Run;
use super::tools::program;
use super::{Measured, median};
use crate::error::Failure;

/// Everything that was measured.
pub(super) struct Report<'a> {
    measured: &'a [Measured],
    machine: Value,
}

/// Medians of one server's runs in a row.
struct Summary {
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
    fn of(runs: &[Run]) -> Self {
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

    fn json(&self) -> Value {
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

impl Measured {
    /// Outboard's value over nginx's, for each round.
    fn ratios(&self, value: fn(&Run) -> f64) -> Vec<f64> {
        self.outboard.iter().zip(&self.nginx).map(|(o, n)| value(o) / value(n)).collect()
    }

    fn median_ratio(&self, value: fn(&Run) -> f64) -> f64 {
        median(self.ratios(value).into_iter())
    }

    /// What went wrong in any run.
    fn errors(&self) -> Option<String> {
        let of = |name: &'static str, runs: &[Run]| {
            runs.iter()
                .filter(|run| !run.errors.is_empty())
                .map(move |run| format!("{name}: {}", run.errors))
                .collect::<Vec<_>>()
        };
        let all = [of("outboard", &self.outboard), of("nginx", &self.nginx)].concat();
        (!all.is_empty()).then(|| all.join("; "))
    }

    fn server_s_per_request(run: &Run) -> f64 {
        run.server_s / run.requests
    }

    fn core_s_per_request(run: &Run) -> f64 {
        run.core_s / run.requests
    }

    fn json(&self) -> Value {
        json!({
            "row": self.row.name,
            "file_bytes": self.row.bytes,
            "connections": self.row.connections,
            "connection_close": self.row.close,
            "nginx_congestion_control": self.congestion,
            "outboard": Summary::of(&self.outboard).json(),
            "nginx": Summary::of(&self.nginx).json(),
            "requests_ratio": self.median_ratio(Run::requests_per_s),
            "requests_ratio_of_rounds": self.ratios(Run::requests_per_s),
            "server_cpu_ratio": self.median_ratio(Self::server_s_per_request),
            "core_busy_ratio": self.median_ratio(Self::core_s_per_request),
            "errors": self.errors(),
        })
    }
}

impl<'a> Report<'a> {
    pub(super) fn new(measured: &'a [Measured], lab: &Lab) -> Self {
        Self { measured, machine: machine(lab) }
    }

    pub(super) fn json(&self) -> Value {
        let mut headline = Map::new();
        for m in self.measured {
            let name = m.row.name;
            headline.insert(
                format!("requests_ratio_{name}"),
                m.median_ratio(Run::requests_per_s).into(),
            );
            headline.insert(
                format!("server_cpu_ratio_{name}"),
                m.median_ratio(Measured::server_s_per_request).into(),
            );
        }
        let rows: Vec<Value> = self.measured.iter().map(Measured::json).collect();
        json!({ "headline": headline, "rows": rows, "machine": self.machine })
    }

    /// # Errors
    /// Where a row had errors: its numbers prove nothing.
    pub(super) fn check(&self) -> Result<(), Failure> {
        match self.measured.iter().find_map(|m| Some((m.row.name, m.errors()?))) {
            None => Ok(()),
            Some((row, errors)) => Err(Failure::System(format!("row {row} is void: {errors}"))),
        }
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<6} {:<9} {:>9} {:>8} {:>9} {:>9} {:>10} {:>9} {:>7} {:>8} {:>8} {:>7}",
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
        )?;
        for m in self.measured {
            show(f, m.row.name, "outboard", &Summary::of(&m.outboard))?;
            show(f, "", &format!("nginx/{}", m.congestion), &Summary::of(&m.nginx))?;
            let (rate, cpu) = (Run::requests_per_s, Measured::server_s_per_request);
            let rounds = m.ratios(rate);
            let rounds: Vec<String> = rounds.iter().map(|r| format!("{r:.2}")).collect();
            writeln!(
                f,
                "       outboard/nginx: requests {:.2} (rounds {}), CPU {:.2}, core {:.2}",
                m.median_ratio(rate),
                rounds.join(" "),
                m.median_ratio(cpu),
                m.median_ratio(Measured::core_s_per_request),
            )?;
            if let Some(errors) = m.errors() {
                writeln!(f, "       VOID: {errors}")?;
            }
        }
        writeln!(
            f,
            "CPU: the server's threads; core: everything on its core, soft interrupts among it;"
        )?;
        writeln!(f, "switch: context switches per request; client: how busy the client's core was.")
    }
}

fn show(f: &mut fmt::Formatter<'_>, row: &str, server: &str, s: &Summary) -> fmt::Result {
    writeln!(
        f,
        "{row:<6} {server:<9} {:>9.0} {:>8.1} {:>9.3} {:>9.3} {:>10.2} {:>9.2} {:>7.3} {:>8.0} \
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
fn machine(lab: &Lab) -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": "));
    // nginx says its version on stderr, wrk on stdout, and fails.
    let version = |name: &str| {
        let said = program(name).arg("-v").output().ok()?;
        let text = [said.stdout, said.stderr].concat();
        Some(String::from_utf8_lossy(&text).lines().next()?.trim().to_owned())
    };
    json!({
        "cpu": model.map(|(_, name)| name),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "cores": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        "server_core": lab.server_core,
        "client_core": lab.client_core,
        "system_congestion_control": lab.nginx.congestion(),
        "outboard": env!("CARGO_PKG_VERSION"),
        "nginx": version("nginx"),
        "wrk": version("wrk"),
    })
}
