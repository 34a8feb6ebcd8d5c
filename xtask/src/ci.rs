//! Runs the checks and prints their reports.
//!
//! Called by `main`. Prints the findings of each check, then one line with the amount checked and
//! the time taken. All checks run even if an early one fails, so that one run shows everything.

use crate::report::Report;
use crate::{deps, docs, imports, mutants, noos, tidy};
use std::process::ExitCode;
use std::time::Instant;

/// One check.
pub(crate) struct Step {
    /// Name on the command line.
    pub(crate) name: &'static str,
    run: fn() -> Result<Report, String>,
}

/// All checks in the order of `ci`.
pub(crate) const STEPS: [Step; 6] = [
    Step { name: "tidy", run: tidy::run },
    Step { name: "deps", run: deps::run },
    Step { name: "imports", run: imports::run },
    Step { name: "docs", run: docs::run },
    Step { name: "faults", run: mutants::check },
    Step { name: "noos", run: noos::run },
];

/// Runs all checks.
pub(crate) fn run() -> ExitCode {
    let failed = STEPS.iter().filter(|step| !passes(step)).count();
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs one check.
pub(crate) fn run_one(step: &Step) -> ExitCode {
    if passes(step) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[expect(clippy::disallowed_methods, reason = "shows people how long a check took")]
fn passes(step: &Step) -> bool {
    let start = Instant::now();
    let report = (step.run)().unwrap_or_else(|message| {
        let mut report = Report::default();
        report.error(step.name, 0, message);
        report
    });
    let seconds = start.elapsed().as_secs_f64();
    for warning in &report.warnings {
        println!("warning: {warning}");
    }
    for error in &report.errors {
        println!("error: {error}");
    }
    let verdict = if report.errors.is_empty() { "ok" } else { "FAILED" };
    println!("xtask {:<7} {verdict:<6} {seconds:6.1} s  {}", step.name, report.looked_at);
    report.errors.is_empty()
}
