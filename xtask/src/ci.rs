//! Runs the checks and prints their reports.
//!
//! Called by `main`. Prints the findings of each check, then one line with the amount checked and
//! the time taken. All checks run even if an early one fails, so that one run shows everything.

use crate::report::CheckReport;
use crate::{deps, docs, imports, limits, mutants, noos, tidy};
use std::process::ExitCode;
use std::time::Instant;

/// One check.
pub(crate) struct CiCheck {
    /// Name on the command line.
    pub(crate) name: &'static str,
    run: fn() -> Result<CheckReport, String>,
}

/// All checks in the order of `ci`.
pub(crate) const CHECKS: [CiCheck; 7] = [
    CiCheck { name: "tidy", run: tidy::run },
    CiCheck { name: "deps", run: deps::run },
    CiCheck { name: "imports", run: imports::run },
    CiCheck { name: "docs", run: docs::run },
    CiCheck { name: "limits", run: limits::run },
    CiCheck { name: "faults", run: mutants::check },
    CiCheck { name: "noos", run: noos::run },
];

/// Runs all checks.
pub(crate) fn run() -> ExitCode {
    let failed = CHECKS.iter().filter(|step| !passes(step)).count();
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs one check.
pub(crate) fn run_one(step: &CiCheck) -> ExitCode {
    if passes(step) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[expect(clippy::disallowed_methods, reason = "shows people how long a check took")]
fn passes(step: &CiCheck) -> bool {
    let start = Instant::now();
    let report = (step.run)().unwrap_or_else(|message| {
        let mut report = CheckReport::default();
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
    println!("xtask {:<7} {verdict:<6} {seconds:6.1} s  {}", step.name, report.summary);
    report.errors.is_empty()
}
