//! `outboard-lab bench quic-relay`: HTTP/3 from `outboard serve`, quic-go and ngtcp2 over the same
//! path with a round trip of 10 ms, loss and reordering.
//!
//! Each server runs in a network namespace during the whole benchmark; client and relay run there
//! for each run ([`servers`]). The client is quic-go's for all servers, because quinn takes a
//! packet for a duplicate if more than 128 others have overtaken it. The relay delays both
//! directions, and drops and delays packets of the server; its seed depends on the round only, so
//! that all servers get the same.
//!
//! The relay and quic-go's programs are part of `interop`. They are expected in this program's
//! folder; quic-go's is built there if Go is installed. Needs root, for the namespaces. All
//! processes that it starts end with it.

mod servers;

use std::fmt::{self, Display};

use clap::Args;
use serde_json::{Map, Value, json};

use super::experiment::{BenchReport, Benchmark, Fields, TextTable};
use super::live::comparison::{Compared, Rounds};
use super::live::machine::machine;
use super::live::{named, tools};
use cli::Failure;
use servers::{PullResult, QuicRelayServers, SERVERS};

/// Arguments of `outboard-lab bench quic-relay`.
#[derive(Debug, Args)]
pub(crate) struct QuicRelayArgs {
    #[command(flatten)]
    rounds: Rounds,
    /// Paths to measure
    #[arg(long, value_delimiter = ',', value_parser = |name: &str| named(&PATHS, name),
        default_values_t = PATHS)]
    paths: Vec<TestPath>,
    /// Pass an option to `outboard serve`, such as `--serve-option=--threads=two`; repeatable
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    serve_option: Vec<String>,
}

/// A network path between client and server, and the downloads over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TestPath {
    name: &'static str,
    /// Arguments of the relay.
    relay: &'static [&'static str],
    /// Number of concurrent downloads of 200 MB.
    downloads: u32,
    /// True if a download of 300 KB starts beside them.
    small: bool,
    what: &'static str,
}

const PATHS: [TestPath; 5] = [
    TestPath::new("clean", &["delay_us=5000"], "round trip of 10 ms"),
    TestPath::new(
        "late-0.2",
        &["delay_us=5000", "late_ppm=2000", "late_us=6500"],
        "0.2 % of packets late by 6.5 ms",
    ),
    TestPath::new(
        "late-2",
        &["delay_us=5000", "late_ppm=20000", "late_us=6500"],
        "2 % of packets late by 6.5 ms",
    ),
    TestPath::new("loss-1", &["delay_us=5000", "loss_ppm=10000"], "1 % of packets lost"),
    TestPath {
        downloads: 3,
        small: true,
        ..TestPath::new("beside", &["delay_us=5000"], "300 KB beside three of 200 MB")
    },
];

impl TestPath {
    const fn new(name: &'static str, relay: &'static [&'static str], what: &'static str) -> Self {
        Self { name, relay, downloads: 1, small: false, what }
    }
}

impl Display for TestPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

type Measured = Compared<TestPath, PullResult, { SERVERS.len() }>;

impl Benchmark for QuicRelayArgs {
    fn run(&self, report: &mut BenchReport) -> Result<(), Failure> {
        tools::check_root()?;
        tools::check(&servers::PROGRAMS)?;
        let lab = QuicRelayServers::start(&self.serve_option)?;
        let measured = self.rounds.compare(&self.paths, |path, server, seconds, round| {
            lab.run(server, &path, seconds, round)
        })?;
        let mut table = TextTable::default();
        for m in &measured {
            table.lines(&lines(m)).iter().for_each(|line| report.line(line));
        }
        report.line("ratio: Outboard to the faster of the others; medians over rounds");
        report.set("paths", measured.iter().map(json_of).collect::<Vec<_>>());
        let headline = measured
            .iter()
            .map(|m| (format!("bytes_per_s_ratio_to_best_{}", m.row.name), ratio(m).into()));
        report.set("headline", headline.collect::<Map<_, _>>());
        report.set("machine", machine(lab.bed(), &[]));
        Ok(())
    }
}

/// Returns the ratio of Outboard's rate to that of the faster of the others.
fn ratio(m: &Measured) -> f64 {
    let others = (1..SERVERS.len()).map(|server| m.median(server, PullResult::bytes_per_s));
    m.median(0, PullResult::bytes_per_s) / others.fold(0.0, f64::max)
}

/// Returns the lines of a path: rates, and with `small` the time that the 300 KB took.
fn lines(m: &Measured) -> Vec<Fields> {
    let line = |unit, value: &dyn Fn(usize) -> f64, ratio: Option<f64>, what: &str| {
        let start = Fields::new().column("path", m.row.name);
        let servers = SERVERS.iter().enumerate();
        let values = servers.fold(start, |line, (at, name)| line.column(name, value(at)));
        values.column("unit", unit).column("ratio", ratio).column("what", what)
    };
    let rate = |at| m.median(at, PullResult::bytes_per_s) / 1e6;
    let mut lines = vec![line("MB/s", &rate, Some(ratio(m)), m.row.what)];
    if m.row.small {
        // Infinite if the download was not complete at the end of the run.
        let small = |at| m.median(at, PullResult::small_ms);
        lines.push(line("ms", &small, None, "time to download 300 KB"));
    }
    lines
}

fn json_of(m: &Measured) -> Value {
    let server = |(at, name): (usize, &&str)| {
        let rounds: Vec<f64> = m.runs[at].iter().map(PullResult::bytes_per_s).collect();
        let mut value = json!({
            "bytes_per_s": m.median(at, PullResult::bytes_per_s),
            "bytes_per_s_of_rounds": rounds,
        });
        if m.row.small {
            value["small_ms"] = m.median(at, PullResult::small_ms).into();
        }
        ((*name).to_owned(), value)
    };
    json!({
        "path": m.row.name,
        "what": m.row.what,
        "relay": m.row.relay,
        "servers": SERVERS.iter().enumerate().map(server).collect::<Map<_, _>>(),
        "bytes_per_s_ratio_to_best": ratio(m),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_names() {
        assert_eq!(named(&PATHS, "beside").map(|path| path.downloads), Ok(3));
        assert!(named(&PATHS, "dirty").is_err());
    }
}
