//! The command line's shape.

use clap::{Parser, Subcommand};

/// Measurements and simulations of outboard, the split transport stack.
#[derive(Debug, Parser)]
#[command(name = "outboard-lab", version, about)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Measure: the papers' tables, and comparisons with other programs
    Bench(crate::bench::BenchArgs),
    /// Run the whole product on virtual time, with faults drawn from seeds
    Sim(crate::sim::SimArgs),
}
