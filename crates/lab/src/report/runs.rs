//! The runs of a report: benchmarks with their options, durations and aims (`report/runs.toml`).

use serde::Deserialize;
use serde_json::Value;

use super::results::value_at;

/// The list of runs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RunList {
    run: Vec<ReportRun>,
}

/// A benchmark with the options of a report.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReportRun {
    /// Name of the benchmark: `outboard-lab bench NAME`.
    pub(super) name: String,
    /// Question that the benchmark answers.
    pub(super) question: String,
    /// Options of the whole benchmark.
    #[serde(default)]
    full: Vec<String>,
    /// Options with `--quick`.
    #[serde(default)]
    quick: Vec<String>,
    /// Expected duration on two cores, in seconds.
    full_s: u32,
    quick_s: u32,
    /// Cores that the benchmark needs at least.
    #[serde(default = "once")]
    pub(super) cores: usize,
    /// Runs with `--quick`, of which the report has the medians: one run of a short measurement
    /// depends too much on its moment.
    #[serde(default = "once")]
    quick_repeat: usize,
    /// Headline figures that are not ratios: they differ from machine to machine.
    #[serde(default)]
    pub(super) absolute: Vec<String>,
    #[serde(default)]
    pub(super) aim: Vec<ReportAim>,
}

/// A bound for a headline figure.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReportAim {
    /// Path in the run's JSON, such as `headline.tx_ratio_256k`.
    pub(super) value: String,
    pub(super) at_least: Option<f64>,
    pub(super) at_most: Option<f64>,
    pub(super) text: String,
}

/// Whether an aim is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AimVerdict {
    Met,
    Missed,
    /// The figure was not measured: by the options, or because the run failed.
    NotMeasured,
}

impl ReportAim {
    /// Compares a run's result with the aim. Every number of an object has to meet it.
    pub(super) fn verdict(&self, result: &Value) -> AimVerdict {
        let figures = numbers(value_at(result, &self.value));
        let meets = |figure: &f64| {
            self.at_least.is_none_or(|least| *figure >= least)
                && self.at_most.is_none_or(|most| *figure <= most)
        };
        match figures.iter().all(meets) {
            _ if figures.is_empty() => AimVerdict::NotMeasured,
            true => AimVerdict::Met,
            false => AimVerdict::Missed,
        }
    }

    /// Returns the bound as text.
    pub(super) fn bound(&self) -> String {
        let least = self.at_least.map(|least| format!("≥ {least}"));
        let most = self.at_most.map(|most| format!("≤ {most}"));
        least.into_iter().chain(most).collect::<Vec<_>>().join(", ")
    }
}

/// Default of counts.
const fn once() -> usize {
    1
}

/// Returns the number, or all numbers of an object.
fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Object(fields) => fields.values().flat_map(numbers).collect(),
        Value::Array(values) => values.iter().flat_map(numbers).collect(),
        other => other.as_f64().into_iter().collect(),
    }
}

impl ReportRun {
    /// Returns the arguments of `outboard-lab`.
    pub(super) fn arguments(&self, quick: bool) -> Vec<String> {
        let options = if quick { &self.quick } else { &self.full };
        let words = ["bench", &self.name].map(str::to_owned).into_iter();
        words.chain(options.iter().cloned()).chain(["--json".to_owned()]).collect()
    }

    /// Returns the number of runs, unless the user says otherwise.
    pub(super) const fn repeat(&self, quick: bool) -> usize {
        if quick { self.quick_repeat } else { 1 }
    }

    /// Returns the expected duration of one run in seconds.
    pub(super) fn expected_s(&self, quick: bool) -> u32 {
        if quick { self.quick_s } else { self.full_s }
    }
}

/// Returns all runs, in their order.
///
/// # Panics
/// If the embedded list is invalid, which a test excludes.
pub(super) fn all_runs() -> Vec<ReportRun> {
    let list: RunList =
        toml::from_str(include_str!("../../report/runs.toml")).expect("checked by a test");
    list.run
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory as _, Parser as _};
    use serde_json::json;

    use crate::args::Cli;

    #[test]
    fn every_benchmark_is_a_run_with_valid_options() {
        let command = Cli::command();
        let bench = command.find_subcommand("bench").expect("a verb");
        let benches: Vec<_> = bench.get_subcommands().map(|one| one.get_name()).collect();
        let runs = all_runs();
        assert_eq!(runs.len(), benches.len());
        for run in &runs {
            assert!(benches.contains(&run.name.as_str()), "{}", run.name);
            for quick in [false, true] {
                let arguments = run.arguments(quick).into_iter();
                let words = std::iter::once("outboard-lab".to_owned()).chain(arguments);
                assert!(Cli::try_parse_from(words).is_ok(), "{}", run.name);
            }
            for aim in &run.aim {
                assert!(aim.at_least.or(aim.at_most).is_some(), "{}: {}", run.name, aim.value);
            }
        }
        let quick = |run: &ReportRun| run.expected_s(true) as usize * run.repeat(true);
        let quick: usize = runs.iter().map(quick).sum();
        assert!(quick < 30 * 60, "the quick report takes {quick} s");
    }

    #[test]
    fn an_aim_holds_for_every_number() {
        let aim = |value: &str, at_least, at_most| ReportAim {
            value: value.to_owned(),
            at_least,
            at_most,
            text: String::new(),
        };
        let result = json!({ "headline": { "ratio": 2.5, "rows": { "a": 1.0, "b": 3.0 } } });
        let verdict = |value, at_least, at_most| aim(value, at_least, at_most).verdict(&result);
        assert_eq!(verdict("headline.ratio", Some(2.5), None), AimVerdict::Met);
        assert_eq!(verdict("headline.ratio", Some(2.6), None), AimVerdict::Missed);
        assert_eq!(verdict("headline.ratio", Some(1.0), Some(2.0)), AimVerdict::Missed);
        assert_eq!(verdict("headline.rows", Some(1.0), None), AimVerdict::Met);
        assert_eq!(verdict("headline.rows", Some(1.5), None), AimVerdict::Missed);
        assert_eq!(verdict("headline.other", Some(1.0), None), AimVerdict::NotMeasured);
        assert_eq!(aim("x", Some(1.5), Some(2.0)).bound(), "≥ 1.5, ≤ 2");
    }
}
