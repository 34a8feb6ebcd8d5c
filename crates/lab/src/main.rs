//! `outboard-lab`: benchmarks and simulations of `outboard`. Each subcommand is a module.
//!
//! Exit codes are those of `outboard`: see [`cli::Failure`].
#![forbid(unsafe_code)]

mod args;
mod bench;
mod child;
mod csv;
mod ladder;
mod model;
mod plan;
mod report;
mod shard;
mod sim;
mod sweep;

use std::process::ExitCode;

use clap::Parser;
use io::heap::CountingAllocator;

use args::{Cli, Verb};

/// Counts allocations, which the accounted benchmarks report.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn main() -> ExitCode {
    let result = match Cli::parse().verb {
        Verb::Bench(bench) => bench::run(&bench),
        Verb::Plan(args) => plan::run(&args),
        Verb::Report(args) => report::run(&args),
        Verb::Sim(args) => sim::run(&args),
        Verb::Sweep(args) => sweep::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("outboard-lab: {failure}");
            failure.exit_code()
        }
    }
}
