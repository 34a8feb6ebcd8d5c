//! `outboard-lab bench serve-live`: wrk against `outboard serve` and against nginx with sendfile,
//! on one core each.
//!
//! Both servers run during the whole benchmark, each in a network namespace ([`servers`]), and take
//! turns, so that other load on the machine affects both. The client has a core of its own. A row's
//! result is the median over rounds of the ratio within a round. The cost of a run is read from
//! /proc ([`crate::bench::live::load`]): the CPU time of all the server's threads, and the busy
//! time of its core, because the kernel does part of the network processing in soft interrupts,
//! which are charged to whichever process they interrupt.
//!
//! Needs root, for the namespaces' interfaces. All processes that it starts end with it.

pub(super) mod servers;

use std::collections::BTreeMap;

use clap::Args;
use serde_json::{Map, Value, json};

use super::experiment::{BenchReport, Benchmark};
use super::live::comparison::{Measured, Rounds, RunValue, report};
use super::live::environment::LiveTestbed;
use super::live::load::{self, LoadRun};
use super::live::machine::machine;
use super::live::outboard::LiveServeOptions;
use super::live::{LoadRow, named, tools};
use cli::Failure;
use servers::ServeLiveServers;

/// Arguments of `outboard-lab bench serve-live`.
#[derive(Debug, Args)]
pub(crate) struct ServeLiveArgs {
    #[command(flatten)]
    rounds: Rounds,
    /// Rows to measure
    #[arg(long, value_delimiter = ',', value_parser = |name: &str| named(&ROWS, name),
        default_values_t = ROWS)]
    rows: Vec<LoadRow>,
    #[command(flatten)]
    serve: LiveServeOptions,
}

const ROWS: [LoadRow; 7] = [
    LoadRow::new("4k", 4 << 10, 64),
    LoadRow::new("256k", 256 << 10, 64),
    LoadRow::new("10m", 10 << 20, 16),
    LoadRow { close: true, ..LoadRow::new("close", 64, 64) },
    LoadRow::over_tls("https-4k", 4 << 10, 64),
    LoadRow::over_tls("https-256k", 256 << 10, 64),
    LoadRow::over_tls("https-10m", 10 << 20, 16),
];

/// Seconds of a run that warms up, or compares settings of nginx.
const WARM_UP_S: u32 = 1;
/// Congestion control that nginx is tried with, besides the system's default.
const ALTERNATIVE: &str = "cubic";

/// nginx's congestion control for each row.
type Congestion = BTreeMap<&'static str, String>;

impl Benchmark for ServeLiveArgs {
    fn run(&self, to: &mut BenchReport) -> Result<(), Failure> {
        tools::check_root()?;
        tools::check_programs()?;
        let lab = ServeLiveServers::start(
            LiveTestbed::new(&ROWS)?,
            self.serve.link,
            &self.serve.options,
        )?;
        let congestion = select_congestion_control(&lab, &self.rows)?;
        let measured = self.rounds.compare(&self.rows, |row, server, seconds, _| {
            if server == 0 {
                return load::run(lab.outboard(row), &lab.bed, row, seconds);
            }
            lab.nginx.set_congestion(&congestion[row.name])?;
            load::run(lab.nginx.server(), &lab.bed, row, seconds)
        })?;
        let values: [RunValue; 3] = [
            ("requests", LoadRun::requests_per_s),
            ("CPU", LoadRun::server_s_per_request),
            ("core", LoadRun::core_s_per_request),
        ];
        let names = ["outboard", "nginx"];
        report(to, names, &measured, &values, |m| fields(m, &congestion));
        to.line(format!("nginx's congestion control: {congestion:?}"));
        let mut headline = Map::new();
        for m in &measured {
            let mut put = |what: &str, value| {
                headline.insert(format!("{what}_ratio_{}", m.row.name), m.ratio(1, value).into());
            };
            put("requests", LoadRun::requests_per_s);
            put("server_cpu", LoadRun::server_s_per_request);
        }
        to.set("headline", headline);
        let mut machine = machine(&lab.bed, &["nginx", "wrk"]);
        machine["system_congestion_control"] = lab.nginx.congestion().into();
        to.set("link", format!("{:?}", self.serve.link).to_lowercase());
        to.set("machine", machine);
        Ok(())
    }
}

fn fields(m: &Measured<2>, congestion: &Congestion) -> Value {
    json!({
        "file_bytes": m.row.bytes,
        "connection_close": m.row.close,
        "nginx_congestion_control": congestion[m.row.name],
        "requests_ratio": m.ratio(1, LoadRun::requests_per_s),
        "requests_ratio_of_rounds": m.ratios(1, LoadRun::requests_per_s),
        "server_cpu_ratio": m.ratio(1, LoadRun::server_s_per_request),
        "core_busy_ratio": m.ratio(1, LoadRun::core_s_per_request),
    })
}

/// Warms up, and selects for each row the congestion control with which nginx is faster.
fn select_congestion_control(
    lab: &ServeLiveServers,
    rows: &[LoadRow],
) -> Result<Congestion, Failure> {
    let mut chosen = Congestion::new();
    for &row in rows {
        eprintln!("warming up: {row}");
        load::run(lab.outboard(row), &lab.bed, row, WARM_UP_S)?;
        let system = lab.nginx.congestion();
        let mut best = (f64::MIN, system);
        for name in [system, ALTERNATIVE] {
            if lab.nginx.set_congestion(name).is_err() {
                continue; // the kernel does not have it
            }
            let rate = load::run(lab.nginx.server(), &lab.bed, row, WARM_UP_S)?.requests_per_s();
            if rate > best.0 {
                best = (rate, name);
            }
        }
        chosen.insert(row.name, best.1.to_owned());
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_names() {
        assert_eq!(named(&ROWS, "256k").unwrap().bytes, 262_144);
        assert!(named(&ROWS, "1k").is_err());
    }
}
