//! `outboard-lab bench serve-live`: wrk against `outboard serve` and against nginx with sendfile,
//! each with one core.
//!
//! Both servers stay up during the whole benchmark, each in a network namespace ([`lab`]), and take
//! turns: a run of one, a run of the other, so that what else the machine does hits both. The
//! client has a core of its own. A row's result is the median over rounds of the ratio within a
//! round. What a run costs is read from /proc ([`crate::bench::live::load`]): the server's CPU time
//! over all its threads, and the busy time of its core, since the kernel does part of a server's
//! network work in soft interrupts, in whosever time they happen to come.
//!
//! It needs root, for the namespaces' interfaces. What it starts it ends; nothing outlives it.

mod lab;
mod report;

use clap::Args;

use crate::bench::live::load::{self, Run};
use crate::bench::live::{Row, tools};
use cli::Failure;
use lab::Lab;
use report::Report;

/// `outboard-lab bench serve-live`.
#[derive(Debug, Args)]
pub(crate) struct ServeLiveArgs {
    /// Seconds of each run
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Rounds: in each, every row is measured with either server
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Rows to measure: some of 4k, 256k, 10m, close, https-4k, https-256k, https-10m
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = parse_row,
        default_values = ["4k", "256k", "10m", "close", "https-4k", "https-256k", "https-10m"]
    )]
    rows: Vec<Row>,
    /// An option for `outboard serve`, as `--serve-option=--threads=two`; may be given several
    /// times
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    serve_option: Vec<String>,
    /// For machines
    #[arg(long)]
    json: bool,
}

const ROWS: [Row; 7] = [
    Row::new("4k", 4 << 10, 64),
    Row::new("256k", 256 << 10, 64),
    Row::new("10m", 10 << 20, 16),
    Row { close: true, ..Row::new("close", 64, 64) },
    Row::over_tls("https-4k", 4 << 10, 64),
    Row::over_tls("https-256k", 256 << 10, 64),
    Row::over_tls("https-10m", 10 << 20, 16),
];

/// Seconds of a run that only warms up or compares nginx's settings.
const WARM_UP_S: u32 = 1;
/// Congestion control that nginx is tried with besides the system's own.
const ALTERNATIVE: &str = "cubic";

fn parse_row(name: &str) -> Result<Row, String> {
    ROWS.into_iter().find(|row| row.name == name).ok_or_else(|| {
        let names: Vec<_> = ROWS.iter().map(|row| row.name).collect();
        format!("`{name}` is no row; there are: {}", names.join(", "))
    })
}

/// A row's runs, in the order of rounds.
struct Measured {
    row: Row,
    /// nginx's congestion control in this row.
    congestion: String,
    outboard: Vec<Run>,
    nginx: Vec<Run>,
}

/// Runs the benchmark.
///
/// # Errors
/// Where something is missing or not allowed, or where a row had errors: the table is printed all
/// the same.
pub(crate) fn run(args: &ServeLiveArgs) -> Result<(), Failure> {
    tools::check_root()?;
    tools::check_programs()?;
    let lab = Lab::start(&ROWS, &args.serve_option)?;
    let mut measured = choose(&lab, &args.rows)?;
    for round in 1..=args.rounds {
        for entry in &mut measured {
            eprintln!("round {round} of {}: {}", args.rounds, entry.row.name);
            let outboard = load::run(lab.outboard(entry.row), &lab.bed, entry.row, args.seconds)?;
            entry.outboard.push(outboard);
            lab.nginx.set_congestion(&entry.congestion)?;
            let nginx = load::run(lab.nginx.server(), &lab.bed, entry.row, args.seconds)?;
            entry.nginx.push(nginx);
        }
    }
    let report = Report::new(&measured, &lab);
    if args.json {
        println!("{:#}", report.json());
    } else {
        print!("{report}");
    }
    report.check()
}

/// Warms up, and finds the congestion control with which nginx is faster, for each row.
fn choose(lab: &Lab, rows: &[Row]) -> Result<Vec<Measured>, Failure> {
    let mut measured = Vec::new();
    for &row in rows {
        eprintln!("warming up: {}", row.name);
        load::run(lab.outboard(row), &lab.bed, row, WARM_UP_S)?;
        let system = lab.nginx.congestion().to_owned();
        let mut best = (f64::MIN, system.clone());
        for name in [system.as_str(), ALTERNATIVE] {
            if lab.nginx.set_congestion(name).is_err() {
                continue; // this kernel does not have it
            }
            let rate = load::run(lab.nginx.server(), &lab.bed, row, WARM_UP_S)?.requests_per_s();
            if rate > best.0 {
                best = (rate, name.to_owned());
            }
        }
        let congestion = best.1;
        measured.push(Measured { row, congestion, outboard: Vec::new(), nginx: Vec::new() });
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_names() {
        assert_eq!(parse_row("256k").unwrap().bytes, 262_144);
        assert!(parse_row("1k").is_err());
    }
}
