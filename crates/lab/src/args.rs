//! Command-line arguments of `outboard-lab`.

use clap::{Parser, Subcommand};

/// Benchmarks and simulations of outboard, a split transport stack
#[derive(Debug, Parser)]
#[command(name = "outboard-lab", version, about)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// Subcommands of `outboard-lab`.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a benchmark: the papers' tables, and comparisons with other programs
    Bench(crate::bench::BenchArgs),
    /// Calculate the host cores, NICs and machines that a workload needs
    Plan(crate::plan::PlanArgs),
    /// Run all benchmarks, and write a report with the papers' figures and tables as HTML
    Report(crate::report::ReportArgs),
    /// Run the whole product in deterministic simulation, with faults drawn from seeds
    Sim(crate::sim::SimArgs),
    /// Run the points of a parameter grid, in shards on any number of machines, and merge the
    /// results
    Sweep(crate::sweep::SweepArgs),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// docs/cli has the help of every command.
    #[test]
    fn reference_is_current() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli");
        assert_eq!(cli::check_reference(Cli::command(), &folder), Ok(()));
    }
}
