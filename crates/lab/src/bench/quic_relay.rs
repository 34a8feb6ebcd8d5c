//! `outboard-lab bench quic-relay`: HTTP/3 by `outboard serve`, quic-go and ngtcp2 over the same
//! path with a round trip of 10 ms, loss and reordering.
//!
//! Each server has a network namespace and stays up; client and relay run in it for each run
//! ([`lab`]). The client is quic-go's for all of them: quinn takes packets for duplicates that more
//! than 128 others have overtaken. The relay delays both directions and does the rest to what the
//! server sends; its randomness has a seed for each round, which all servers get.
//!
//! The relay and quic-go's programs are of `interop`; they are looked for beside this program, and
//! the latter is built there if Go is. It needs root, for the namespaces. What it starts it ends.

mod lab;

use clap::Args;
use serde_json::{Map, Value, json};

use crate::bench::live::report::machine;
use crate::bench::live::{median, tools};
use cli::Failure;
use lab::{Got, Lab, SERVERS};

/// `outboard-lab bench quic-relay`.
#[derive(Debug, Args)]
pub(crate) struct QuicRelayArgs {
    /// Seconds of each run
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Rounds: in each, every path is measured with every server
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Only whether it works: one round of one second
    #[arg(long, conflicts_with_all = ["seconds", "rounds"])]
    quick: bool,
    /// Paths to measure: some of clean, late-0.2, late-2, loss-1, beside
    #[arg(long, value_delimiter = ',', value_parser = parse_path,
        default_values = ["clean", "late-0.2", "late-2", "loss-1", "beside"])]
    paths: Vec<TestPath>,
    /// An option for `outboard serve`, as `--serve-option=--threads=two`; may be given several
    /// times
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    serve_option: Vec<String>,
    /// For machines
    #[arg(long)]
    json: bool,
}

/// A path between client and server, and what is downloaded over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TestPath {
    name: &'static str,
    /// Numbers for the relay.
    relay: &'static [&'static str],
    /// Downloads of 200 MB at one time.
    downloads: u32,
    /// True if one of 300 KB is begun beside them.
    small: bool,
    what: &'static str,
}

const PATHS: [TestPath; 5] = [
    TestPath::new("clean", &["delay_us=5000"], "round trip of 10 ms"),
    TestPath::new(
        "late-0.2",
        &["delay_us=5000", "late_ppm=2000", "late_us=6500"],
        "0.2 % of packets 6.5 ms late",
    ),
    TestPath::new(
        "late-2",
        &["delay_us=5000", "late_ppm=20000", "late_us=6500"],
        "2 % of packets 6.5 ms late",
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

fn parse_path(name: &str) -> Result<TestPath, String> {
    PATHS.into_iter().find(|path| path.name == name).ok_or_else(|| {
        let names: Vec<_> = PATHS.iter().map(|path| path.name).collect();
        format!("`{name}` is no path; there are: {}", names.join(", "))
    })
}

/// A path's runs, of each server in the order of rounds.
struct Measured {
    path: TestPath,
    runs: [Vec<Got>; SERVERS.len()],
}

impl Measured {
    /// The median of a server's rounds.
    fn median(&self, server: usize, value: fn(&Got) -> f64) -> f64 {
        median(self.runs[server].iter().map(value))
    }

    /// Outboard's rate to the better one's of the others.
    fn ratio(&self) -> f64 {
        let others = (1..SERVERS.len()).map(|server| self.median(server, Got::bytes_per_s));
        self.median(0, Got::bytes_per_s) / others.fold(0.0, f64::max)
    }

    fn json(&self) -> Value {
        let servers: Map<String, Value> = SERVERS
            .iter()
            .enumerate()
            .map(|(at, name)| {
                let rounds: Vec<f64> = self.runs[at].iter().map(Got::bytes_per_s).collect();
                let mut value = json!({
                    "bytes_per_s": self.median(at, Got::bytes_per_s),
                    "bytes_per_s_of_rounds": rounds,
                });
                if self.path.small {
                    value["small_ms"] = self.median(at, Got::small_ms).into();
                }
                ((*name).to_owned(), value)
            })
            .collect();
        json!({
            "path": self.path.name,
            "what": self.path.what,
            "relay": self.path.relay,
            "servers": servers,
            "bytes_per_s_ratio_to_best": self.ratio(),
        })
    }

    fn print(&self) {
        print!("{:<9}", self.path.name);
        for at in 0..SERVERS.len() {
            print!(" {:>9.2} MB/s", self.median(at, Got::bytes_per_s) / 1e6);
        }
        println!(" {:>8.2}   {}", self.ratio(), self.path.what);
        if self.path.small {
            print!("{:<9}", "");
            for at in 0..SERVERS.len() {
                // `inf`: it was not complete when the run ended.
                print!(" {:>9.1} ms  ", self.median(at, Got::small_ms));
            }
            println!("{:>12}until the 300 KB are there", "");
        }
    }
}

/// Runs the benchmark.
///
/// # Errors
/// The part that is missing, not allowed or failed.
pub(crate) fn run(args: &QuicRelayArgs) -> Result<(), Failure> {
    tools::check_root()?;
    tools::check(&lab::PROGRAMS)?;
    let (seconds, rounds) = if args.quick { (1, 1) } else { (args.seconds, args.rounds) };
    let lab = Lab::start(&args.serve_option)?;
    let mut measured: Vec<Measured> =
        args.paths.iter().map(|path| Measured { path: *path, runs: Default::default() }).collect();
    for round in 1..=rounds {
        for entry in &mut measured {
            eprintln!("round {round} of {rounds}: {}", entry.path.name);
            for (server, runs) in entry.runs.iter_mut().enumerate() {
                runs.push(lab.run(server, &entry.path, seconds, round)?);
            }
        }
    }
    if args.json {
        let paths: Vec<Value> = measured.iter().map(Measured::json).collect();
        let headline: Map<String, Value> = measured
            .iter()
            .map(|m| (format!("bytes_per_s_ratio_to_best_{}", m.path.name), m.ratio().into()))
            .collect();
        let machine = machine(lab.bed(), &[]);
        println!("{:#}", json!({ "headline": headline, "paths": paths, "machine": machine }));
        return Ok(());
    }
    print!("{:<9}", "path");
    for name in SERVERS {
        print!(" {name:>14}");
    }
    println!(" {:>8}", "ratio");
    measured.iter().for_each(Measured::print);
    println!(
        "The ratio is Outboard's to the better one of the others; medians of {rounds} rounds."
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_names() {
        assert_eq!(parse_path("beside").map(|path| path.downloads), Ok(3));
        assert!(parse_path("dirty").is_err());
    }
}
