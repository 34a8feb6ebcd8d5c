//! `report --compare`: the headline figures of two reports, or of two programs, with the confidence
//! intervals of their ratios.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::results::{RunResult, flatten};
use super::runs::ReportRun;
use super::statistics::{RatioEstimate, ratio_of_medians};
use crate::bench::{Fields, TextTable};

/// A headline figure of two reports.
#[derive(Debug)]
pub(super) struct ComparedFigure {
    /// `RUN: path`.
    name: String,
    /// True if the figure is a ratio within one run, which should not depend on the machine.
    is_ratio: bool,
    a: f64,
    b: f64,
    estimate: RatioEstimate,
}

/// Returns the figures that both reports have.
pub(super) fn compare(
    runs: &[ReportRun],
    a: &BTreeMap<String, RunResult>,
    b: &BTreeMap<String, RunResult>,
) -> Vec<ComparedFigure> {
    let mut compared = Vec::new();
    for run in runs {
        let (Some(a), Some(b)) = (a.get(&run.name), b.get(&run.name)) else { continue };
        for (path, _) in flatten(&a.first()["headline"]) {
            let (a, b) = (values(a, &path), values(b, &path));
            let Some(estimate) = ratio_of_medians(&a, &b) else { continue };
            compared.push(ComparedFigure {
                name: format!("{}: {path}", run.name),
                is_ratio: !run.absolute.contains(&path),
                a: crate::bench::median(a.into_iter()),
                b: crate::bench::median(b.into_iter()),
                estimate,
            });
        }
    }
    compared
}

/// Returns the values of a headline figure in all repetitions.
fn values(result: &RunResult, path: &str) -> Vec<f64> {
    let value = |repetition: &Value| {
        let headline = &repetition["headline"];
        flatten(headline).into_iter().find(|(at, _)| at == path)?.1.as_f64()
    };
    result.repetitions.iter().filter_map(value).collect()
}

/// Returns the ratio figure that differs most.
pub(super) fn worst(compared: &[ComparedFigure]) -> Option<&ComparedFigure> {
    let ratios = compared.iter().filter(|figure| figure.is_ratio);
    ratios.max_by(|a, b| a.distance().total_cmp(&b.distance()))
}

impl ComparedFigure {
    /// Returns how far the ratio is from one, as a logarithm.
    fn distance(&self) -> f64 {
        self.estimate.ratio.abs().ln().abs()
    }

    /// Returns the difference in percent.
    fn percent(&self) -> f64 {
        (self.estimate.ratio - 1.0) * 100.0
    }

    /// Returns whether the interval excludes equality.
    fn differs(&self) -> Option<bool> {
        self.estimate.interval.map(|(low, high)| !(low..=high).contains(&1.0))
    }
}

/// Returns the comparison as a table.
pub(super) fn to_text(compared: &[ComparedFigure]) -> String {
    let interval = |figure: &ComparedFigure| {
        let bounds = figure.estimate.interval?;
        Some(format!("{:.3} to {:.3}", bounds.0, bounds.1))
    };
    let row = |figure: &ComparedFigure| {
        Fields::new()
            .column("figure", figure.name.as_str())
            .column("A", figure.a)
            .column("B", figure.b)
            .column("B/A", figure.estimate.ratio)
            .column("95 % interval", interval(figure).unwrap_or_else(|| "-".to_owned()))
            .column("kind", if figure.is_ratio { "ratio" } else { "absolute" })
            .column(
                "differs",
                match figure.differs() {
                    None => "-",
                    Some(true) => "yes",
                    Some(false) => "no",
                },
            )
    };
    let rows: Vec<_> = compared.iter().map(row).collect();
    let mut lines = TextTable::default().lines(&rows);
    lines.push(match worst(compared) {
        None => "no ratio in common".to_owned(),
        Some(worst) => format!(
            "\nworst difference of a ratio: {:+.1} % ({}); {} of {} ratios within 5 %",
            worst.percent(),
            worst.name,
            compared.iter().filter(|one| one.is_ratio && one.percent().abs() <= 5.0).count(),
            compared.iter().filter(|one| one.is_ratio).count(),
        ),
    });
    lines.join("\n") + "\n"
}

/// Returns the comparison as JSON.
pub(super) fn to_json(compared: &[ComparedFigure]) -> Value {
    let figure = |figure: &ComparedFigure| {
        json!({
            "figure": figure.name,
            "is_ratio": figure.is_ratio,
            "a": figure.a,
            "b": figure.b,
            "ratio": figure.estimate.ratio,
            "interval": figure.estimate.interval.map(|(low, high)| [low, high]),
            "differs": figure.differs(),
        })
    };
    json!({
        "figures": compared.iter().map(figure).collect::<Vec<_>>(),
        "worst": worst(compared).map(|one| json!({ "figure": one.name, "percent": one.percent() })),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::results::tests::result;
    use crate::report::runs::all_runs;

    fn report(factor: f64) -> BTreeMap<String, RunResult> {
        let repetition = |step: f64| {
            let ratio = (8.0 + step) * factor;
            json!({ "headline": { "tx_ratio_256k": ratio, "other": 2.0, "none": null } })
        };
        let memory = json!({ "headline": { "host_bytes_per_idle_connection": 700.0 * factor } });
        [
            ("tls".to_owned(), result([0.0, 0.1, 0.2].map(repetition).into())),
            ("memory".to_owned(), result(vec![memory])),
        ]
        .into()
    }

    #[test]
    fn the_worst_ratio_is_found() {
        let compared = compare(&all_runs(), &report(1.0), &report(1.25));
        let mut names: Vec<_> = compared.iter().map(|figure| figure.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            ["memory: host_bytes_per_idle_connection", "tls: other", "tls: tx_ratio_256k"]
        );
        let worst = worst(&compared).unwrap();
        assert_eq!(worst.name, "tls: tx_ratio_256k", "memory is no ratio");
        assert!((worst.percent() - 25.0).abs() < 1e-9);
        assert_eq!(worst.differs(), Some(true));
        let other = compared.iter().find(|figure| figure.name == "tls: other");
        assert_eq!(other.unwrap().differs(), Some(false));
        let text = to_text(&compared);
        assert!(
            text.ends_with("+25.0 % (tls: tx_ratio_256k); 1 of 2 ratios within 5 %\n"),
            "{text}"
        );
        assert_eq!(to_json(&compared)["worst"]["figure"], "tls: tx_ratio_256k");
    }

    #[test]
    fn equal_reports_are_equal() {
        let compared = compare(&all_runs(), &report(1.0), &report(1.0));
        assert!(compared.iter().all(|figure| figure.estimate.ratio == 1.0));
        assert_eq!(to_text(&[]), "no ratio in common\n");
    }
}
