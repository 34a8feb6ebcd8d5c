//! `outboard bench serve-live`: wrk against `outboard serve` and against nginx with sendfile, each
//! with one core.
//!
//! Both servers stay up during the whole benchmark, each in a network namespace ([`lab`]), and take
//! turns: a run of one, a run of the other, so that what else the machine does hits both. The
//! client has a core of its own. A row's result is the median over rounds of the ratio within a
//! round. What a run costs is read from /proc ([`load`]): the server's CPU time over all its
//! threads, and the busy time of its core, since the kernel does part of a server's network work in
//! soft interrupts, in whosever time they happen to come.
//!
//! It needs root, for the namespaces' interfaces. What it starts it ends; nothing outlives it.

mod lab;
mod load;
mod report;
mod tools;

use clap::Args;

use crate::error::Failure;
use lab::Lab;
use load::Run;
use report::Report;

/// `outboard bench serve-live`.
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

/// What the client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    /// Its name on the command line and in the report; the file's name too.
    name: &'static str,
    /// Bytes of the file.
    bytes: u64,
    /// Connections at one time.
    connections: u32,
    /// Whether each request has a connection of its own.
    close: bool,
    /// Over TLS.
    tls: bool,
}

impl Row {
    const fn new(name: &'static str, bytes: u64, connections: u32) -> Self {
        Self { name, bytes, connections, close: false, tls: false }
    }

    const fn over_tls(name: &'static str, bytes: u64, connections: u32) -> Self {
        Self { tls: true, ..Self::new(name, bytes, connections) }
    }
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
    tools::install_missing()?;
    let lab = Lab::start(&ROWS, &args.serve_option)?;
    let mut measured = choose(&lab, &args.rows)?;
    for round in 1..=args.rounds {
        for entry in &mut measured {
            eprintln!("round {round} of {}: {}", args.rounds, entry.row.name);
            let outboard = load::run(lab.outboard(entry.row), &lab, entry.row, args.seconds)?;
            entry.outboard.push(outboard);
            lab.nginx.set_congestion(&entry.congestion)?;
            let nginx = load::run(lab.nginx.server(), &lab, entry.row, args.seconds)?;
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
        load::run(lab.outboard(row), lab, row, WARM_UP_S)?;
        let system = lab.nginx.congestion().to_owned();
        let mut best = (f64::MIN, system.clone());
        for name in [system.as_str(), ALTERNATIVE] {
            if lab.nginx.set_congestion(name).is_err() {
                continue; // this kernel does not have it
            }
            let rate = load::run(lab.nginx.server(), lab, row, WARM_UP_S)?.requests_per_s();
            if rate > best.0 {
                best = (rate, name.to_owned());
            }
        }
        let congestion = best.1;
        measured.push(Measured { row, congestion, outboard: Vec::new(), nginx: Vec::new() });
    }
    Ok(measured)
}

/// The middle one; of an even number the mean of both.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_names() {
        assert_eq!(parse_row("256k").unwrap().bytes, 262_144);
        assert!(parse_row("1k").is_err());
    }

    #[test]
    fn medians() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
        assert!(median(std::iter::empty()).is_nan());
    }
}
