//! `outboard-lab bench proxy-live`: wrk through `outboard proxy`, through HAProxy with
//! `splice-auto`, and through nginx, each with one core, to an nginx that has the files.
//!
//! All three stay up during the whole benchmark, each in a network namespace ([`lab`]), and take
//! turns, so that what else the machine does hits all. Client and backend share the other core:
//! what a proxy can do there is bounded by them, so the CPU time that a request costs says more
//! than requests per second where the client's core is busy. A row's result is the median over
//! rounds of the ratio within a round.
//!
//! `outboard proxy` looks at the first request of a connection and relays the rest, as the paper's
//! proxies do; HAProxy and nginx look at every request. It needs root, for the namespaces'
//! interfaces. What it starts it ends; nothing outlives it.

mod lab;
mod report;

use clap::Args;

use crate::bench::live::load::{self, Run};
use crate::bench::live::{Row, tools};
use cli::Failure;
use lab::Lab;
use report::Report;

/// `outboard-lab bench proxy-live`.
#[derive(Debug, Args)]
pub(crate) struct ProxyLiveArgs {
    /// Seconds of each run
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Rounds: in each, every row is measured with each proxy
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Only whether it works: one round of one second
    #[arg(long, conflicts_with_all = ["seconds", "rounds"])]
    quick: bool,
    /// Rows to measure: some of 4k, 256k, 4k-close, 256k-close
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = parse_row,
        default_values = ["4k", "256k", "4k-close", "256k-close"]
    )]
    rows: Vec<Row>,
    /// An option for `outboard proxy`, as `--proxy-option=--splice=off`; may be given several times
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    proxy_option: Vec<String>,
    /// For machines
    #[arg(long)]
    json: bool,
}

const ROWS: [Row; 4] = [
    Row::new("4k", 4 << 10, 64),
    Row::new("256k", 256 << 10, 64),
    Row { close: true, ..Row::new("4k-close", 4 << 10, 64) },
    Row { close: true, ..Row::new("256k-close", 256 << 10, 64) },
];

/// Seconds of a run that only warms up.
const WARM_UP_S: u32 = 1;
/// The proxies, in the order in which they are run.
const NAMES: [&str; 3] = ["outboard", "haproxy", "nginx"];

fn parse_row(name: &str) -> Result<Row, String> {
    ROWS.into_iter().find(|row| row.name == name).ok_or_else(|| {
        let names: Vec<_> = ROWS.iter().map(|row| row.name).collect();
        format!("`{name}` is no row; there are: {}", names.join(", "))
    })
}

/// A row's runs of each proxy, in the order of rounds.
struct Measured {
    row: Row,
    runs: [Vec<Run>; 3],
}

/// Runs the benchmark.
///
/// # Errors
/// Where something is missing or not allowed, or where a row had errors: the table is printed all
/// the same.
pub(crate) fn run(args: &ProxyLiveArgs) -> Result<(), Failure> {
    tools::check_root()?;
    tools::check_programs()?;
    let (seconds, rounds) = if args.quick { (1, 1) } else { (args.seconds, args.rounds) };
    let lab = Lab::start(&ROWS, &args.proxy_option)?;
    let mut measured: Vec<Measured> =
        args.rows.iter().map(|row| Measured { row: *row, runs: Default::default() }).collect();
    for entry in &measured {
        for server in lab.servers() {
            load::run(server, &lab.bed, entry.row, WARM_UP_S)?;
        }
    }
    for round in 1..=rounds {
        for entry in &mut measured {
            eprintln!("round {round} of {rounds}: {}", entry.row.name);
            for (runs, server) in entry.runs.iter_mut().zip(lab.servers()) {
                runs.push(load::run(server, &lab.bed, entry.row, seconds)?);
            }
        }
    }
    let relayed = lab.relayed()?;
    let report = Report::new(&measured, &lab, relayed);
    if args.json {
        println!("{:#}", report.json());
    } else {
        print!("{report}");
    }
    report.check()
}
