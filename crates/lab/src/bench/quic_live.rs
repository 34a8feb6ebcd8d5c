//! `outboard-lab bench quic-live`: HTTP/3 by `outboard serve`, and by quinn over the kernel's UDP
//! with segmentation and merging (`UDP_SEGMENT`, `UDP_GRO`), each with one core.
//!
//! Both servers stay up during the whole benchmark, each in a network namespace ([`lab`]), and take
//! turns, so that what else the machine does hits both. Client, cipher suite, certificate,
//! congestion control and the rest of the transport's parameters are the same. The client, quinn's
//! too, has a core of its own. A row's result is the median over rounds of the ratio within a
//! round.
//!
//! Both links' other ends are the kernel. What it does to take a packet in for the client is done
//! on the server's core: with the TAP in our time, with the pair of virtual Ethernet interfaces in
//! soft interrupts, which are nobody's. So the busy time of the core is what compares, beside the
//! CPU time of the server's threads ([`crate::bench::live::load`]).
//!
//! The reference and the client are programs of `interop`, since quinn, h3 and tokio are no part of
//! the product; they are looked for beside this program. It needs root, for the namespaces'
//! interfaces. What it starts it ends; nothing outlives it.

mod lab;
mod report;

use clap::Args;

use crate::bench::live::load::Run;
use crate::bench::live::{Row, tools};
use cli::Failure;
use lab::Lab;
use report::Report;

/// `outboard-lab bench quic-live`.
#[derive(Debug, Args)]
pub(crate) struct QuicLiveArgs {
    /// Seconds of each run
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Rounds: in each, every row is measured with either server
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Only whether it works: one round of one second
    #[arg(long, conflicts_with_all = ["seconds", "rounds"])]
    quick: bool,
    /// Rows to measure: some of large, many, small
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = parse_row,
        default_values = ["large", "many", "small"]
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

const ROWS: [Row; 3] = [
    Row::over_tls("large", 256 << 20, 1),
    Row::over_tls("many", 8 << 20, 16),
    Row { streams: 16, ..Row::over_tls("small", 4 << 10, 8) },
];

/// Seconds of a run that only warms up.
const WARM_UP_S: u32 = 1;

fn parse_row(name: &str) -> Result<Row, String> {
    ROWS.into_iter().find(|row| row.name == name).ok_or_else(|| {
        let names: Vec<_> = ROWS.iter().map(|row| row.name).collect();
        format!("`{name}` is no row; there are: {}", names.join(", "))
    })
}

/// A row's runs, in the order of rounds.
struct Measured {
    row: Row,
    outboard: Vec<Run>,
    quinn: Vec<Run>,
}

/// Runs the benchmark.
///
/// # Errors
/// Where something is missing or not allowed, or where a row had errors: the table is printed all
/// the same.
pub(crate) fn run(args: &QuicLiveArgs) -> Result<(), Failure> {
    tools::check_root()?;
    tools::check_programs()?;
    let (seconds, rounds) = if args.quick { (1, 1) } else { (args.seconds, args.rounds) };
    let lab = Lab::start(&ROWS, &args.serve_option)?;
    let mut measured: Vec<Measured> = args
        .rows
        .iter()
        .map(|row| Measured { row: *row, outboard: Vec::new(), quinn: Vec::new() })
        .collect();
    for entry in &measured {
        eprintln!("warming up: {}", entry.row.name);
        lab.run(&lab.outboard, entry.row, WARM_UP_S)?;
        lab.run(&lab.quinn, entry.row, WARM_UP_S)?;
    }
    for round in 1..=rounds {
        for entry in &mut measured {
            eprintln!("round {round} of {rounds}: {}", entry.row.name);
            entry.outboard.push(lab.run(&lab.outboard, entry.row, seconds)?);
            entry.quinn.push(lab.run(&lab.quinn, entry.row, seconds)?);
        }
    }
    let report = Report::new(&measured, &lab, lab.by_device()?);
    if args.json {
        println!("{:#}", report.json());
    } else {
        print!("{report}");
    }
    report.check()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_names() {
        let small = parse_row("small").unwrap();
        assert_eq!((small.bytes, small.connections, small.streams), (4096, 8, 16));
        assert!(parse_row("tiny").is_err());
    }
}
