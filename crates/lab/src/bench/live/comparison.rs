//! Comparison of servers that run in turn: rounds, ratios within a round, and their report.
//!
//! All live benchmarks measure with [`Rounds::compare`]; those whose client prints wrk's numbers
//! report with [`report`]. The first server is always ours.

use std::fmt::Display;

use clap::Args;
use serde_json::Value;

use super::LoadRow;
use super::load::LoadRun;
use crate::bench::experiment::{BenchReport, Fields, TextTable, median};
use cli::Failure;

/// Length and number of the runs of a live benchmark.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Rounds {
    /// Length of each run in seconds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Number of rounds; each round runs every row with every server
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Run one round of one second, to check that everything works
    #[arg(long, conflicts_with_all = ["seconds", "rounds"])]
    quick: bool,
}

impl Rounds {
    /// Runs every row with each server in turn, round after round. The arguments of `run` are the
    /// row, the server's index, the seconds and the round's number, counted from 1.
    ///
    /// # Errors
    /// Returns the error of the first run that failed.
    pub(crate) fn compare<T: Copy + Display, R, const N: usize>(
        self,
        rows: &[T],
        mut run: impl FnMut(T, usize, u32, u32) -> Result<R, Failure>,
    ) -> Result<Vec<Compared<T, R, N>>, Failure> {
        let (seconds, rounds) = if self.quick { (1, 1) } else { (self.seconds, self.rounds) };
        let compared = |&row| Compared { row, runs: std::array::from_fn(|_| Vec::new()) };
        let mut all: Vec<_> = rows.iter().map(compared).collect();
        for round in 1..=rounds {
            for Compared { row, runs } in &mut all {
                eprintln!("round {round} of {rounds}: {row}");
                for (server, runs) in runs.iter_mut().enumerate() {
                    runs.push(run(*row, server, seconds, round)?);
                }
            }
        }
        Ok(all)
    }
}

/// A row's runs of each server, in the order of the rounds.
pub(crate) struct Compared<T, R, const N: usize> {
    pub(crate) row: T,
    pub(crate) runs: [Vec<R>; N],
}

impl<T, R, const N: usize> Compared<T, R, N> {
    /// Returns the median over a server's rounds.
    pub(crate) fn median(&self, server: usize, value: fn(&R) -> f64) -> f64 {
        median(self.runs[server].iter().map(value))
    }

    /// Returns the ratio of our value to another server's, for each round.
    pub(crate) fn ratios(&self, other: usize, value: fn(&R) -> f64) -> Vec<f64> {
        let theirs = self.runs[other].iter().map(value);
        self.runs[0].iter().map(value).zip(theirs).map(|(ours, theirs)| ours / theirs).collect()
    }

    /// Returns the median of [`Self::ratios`].
    pub(crate) fn ratio(&self, other: usize, value: fn(&R) -> f64) -> f64 {
        median(self.ratios(other, value).into_iter())
    }
}

/// A row of a benchmark whose client prints wrk's numbers.
pub(crate) type Measured<const N: usize> = Compared<LoadRow, LoadRun, N>;

/// Name of a compared value, and the function that reads it from a run.
pub(crate) type RunValue = (&'static str, fn(&LoadRun) -> f64);

impl<const N: usize> Measured<N> {
    /// Returns the errors of all runs, or `None`.
    fn errors(&self, names: [&str; N]) -> Option<String> {
        let runs = names.iter().zip(&self.runs).flat_map(|(name, runs)| {
            runs.iter().filter(|run| !run.errors.is_empty()).map(move |run| (name, run))
        });
        let all: Vec<_> = runs.map(|(name, run)| format!("{name}: {}", run.errors)).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

/// Reports the rows of servers with these names, and the ratios of these values. `fields` returns
/// further JSON fields of a row. Errors in a row make the report void: its numbers are invalid.
pub(crate) fn report<const N: usize>(
    report: &mut BenchReport,
    names: [&'static str; N],
    measured: &[Measured<N>],
    values: &[RunValue],
    fields: impl Fn(&Measured<N>) -> Value,
) {
    let (mut table, mut rows) = (TextTable::default(), Vec::new());
    for m in measured {
        let line = |(&name, runs): (&&'static str, &Vec<LoadRun>)| {
            Fields::new().column("row", m.row.name).column("server", name).append(summary(runs))
        };
        let lines: Vec<Fields> = names.iter().zip(&m.runs).map(line).collect();
        table.lines(&lines).iter().for_each(|line| report.line(line));
        for (other, name) in names.iter().enumerate().skip(1) {
            let ratio = |(what, value): &RunValue| {
                let rounds = m.ratios(other, *value);
                let rounds: Vec<_> = rounds.iter().map(|ratio| format!("{ratio:.2}")).collect();
                format!("{what} {:.2} (rounds {})", m.ratio(other, *value), rounds.join(" "))
            };
            let ratios: Vec<_> = values.iter().map(ratio).collect();
            report.line(format!("        {}/{name}: {}", names[0], ratios.join(", ")));
        }
        let errors = m.errors(names);
        if let Some(errors) = &errors {
            report.line(format!("        INVALID: {errors}"));
            report.invalidate(Failure::System(format!("row {} is invalid: {errors}", m.row.name)));
        }
        let mut row = fields(m);
        row["row"] = m.row.name.into();
        row["connections"] = m.row.connections.into();
        row["errors"] = errors.into();
        for (name, runs) in names.iter().zip(&m.runs) {
            row[*name] = summary(runs).into_json();
        }
        rows.push(row);
    }
    report.set("rows", rows);
    report.line(
        "CPU: CPU time of the server's threads; core: busy time of its core, with soft \
             interrupts;\n\
         switch: context switches per request; client: how busy the client's core was.",
    );
}

/// Returns the medians of one server's runs in a row.
fn summary(runs: &[LoadRun]) -> Fields {
    let of = |value: fn(&LoadRun) -> f64| median(runs.iter().map(value));
    let bytes_per_s = of(LoadRun::bytes_per_s);
    Fields::new()
        .show("req/s", "requests_per_s", of(LoadRun::requests_per_s))
        .column("MB/s", bytes_per_s / 1e6)
        .field("bytes_per_s", bytes_per_s)
        .show("CPU s/GB", "server_cpu_s_per_gb", of(LoadRun::server_s_per_byte) * 1e9)
        .show("core s/GB", "core_busy_s_per_gb", of(LoadRun::core_s_per_byte) * 1e9)
        .show(
            "CPU s/100k req",
            "server_cpu_s_per_100k_requests",
            of(LoadRun::server_s_per_request) * 1e5,
        )
        .show(
            "core s/100k req",
            "core_busy_s_per_100k_requests",
            of(LoadRun::core_s_per_request) * 1e5,
        )
        .field("interrupts_part_of_core_busy", of(|run| run.interrupts_s / run.core_s))
        .show("csw/req", "context_switches_per_request", of(|run| run.switches / run.requests))
        .show("client", "client_core_busy", of(|run| run.client_busy))
        .show("p50 us", "latency_p50_us", of(|run| run.latency_us.0))
        .show("p99 us", "latency_p99_us", of(|run| run.latency_us.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_take_turns() {
        let rounds = Rounds { seconds: 5, rounds: 3, quick: false };
        let mut turns = Vec::new();
        let all: Vec<Compared<_, f64, 2>> = rounds
            .compare(&["a", "b"], |row, server, seconds, round| {
                turns.push((row, server, seconds, round));
                Ok(turns.len() as f64)
            })
            .unwrap();
        assert_eq!(turns[..3], [("a", 0, 5, 1), ("a", 1, 5, 1), ("b", 0, 5, 1)]);
        assert_eq!(turns[11], ("b", 1, 5, 3));
        assert_eq!(all[1].runs, [[3.0, 7.0, 11.0], [4.0, 8.0, 12.0]]);
        assert_eq!((all[1].median(1, |&run| run), all[1].ratio(1, |&run| run)), (8.0, 0.875));
    }

    #[test]
    fn rows_with_errors_are_void() {
        let run = LoadRun { requests: 1.0, bytes: 8.0, seconds: 1.0, ..LoadRun::default() };
        let failed = LoadRun { errors: "2 read errors".to_owned(), ..run.clone() };
        let rows =
            [Measured { row: LoadRow::new("4k", 8, 1), runs: [vec![run.clone()], vec![run]] }];
        let mut void = BenchReport::new(false);
        report(&mut void, ["a", "b"], &rows, &[], |_| serde_json::json!({}));
        assert!(void.finish().is_ok());
        let [mut row] = rows;
        row.runs[1].push(failed);
        let mut void = BenchReport::new(false);
        report(&mut void, ["a", "b"], &[row], &[], |_| serde_json::json!({}));
        let failure = void.finish().unwrap_err().to_string();
        assert_eq!(failure, "row 4k is invalid: b: 2 read errors");
    }
}
