//! Catalogue of the papers' figures and tables (`report/PAPER.toml`): what each one shows, whether
//! and how it is reproduced, and the numbers that the paper states.

use serde::Deserialize;
use serde_json::Value;

use super::results::value_at;

/// The catalogue of a paper.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PaperCatalogue {
    /// Name of the paper in identifiers and files.
    pub(super) paper: String,
    pub(super) title: String,
    #[serde(rename = "item")]
    pub(super) items: Vec<PaperItem>,
}

/// A figure or table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PaperItem {
    /// Number in the paper: `fig-17`, `table-3`.
    pub(super) id: String,
    /// Subject, in our words.
    pub(super) title: String,
    pub(super) status: ItemStatus,
    /// Differences from the paper's conditions, or the reason for the status.
    pub(super) note: String,
    #[serde(default)]
    pub(super) plot: Vec<ItemPlot>,
    #[serde(default)]
    pub(super) paper_series: Vec<PaperSeries>,
    #[serde(default)]
    pub(super) compare: Vec<PaperFigure>,
}

/// How far a figure or table is reproduced.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ItemStatus {
    /// A benchmark measures it.
    Reproduced,
    /// The model predicts it for the paper's hardware.
    Predicted,
    /// It has no counterpart here.
    NotApplicable,
}

impl ItemStatus {
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::Predicted => "predicted",
            Self::NotApplicable => "not applicable",
        }
    }
}

/// A plot of a benchmark's rows.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ItemPlot {
    /// Name in `report/runs.toml`.
    pub(super) run: String,
    /// Array of the rows in the run's JSON.
    pub(super) rows: String,
    /// Fields that a row must have to be in the plot.
    #[serde(default)]
    pub(super) filter: serde_json::Map<String, Value>,
    /// Field of the x axis.
    pub(super) x: String,
    pub(super) x_label: String,
    #[serde(default = "one")]
    pub(super) x_scale: f64,
    /// True if the values of x are at equal distances, as they are on a logarithmic axis if each is
    /// a multiple of the one before.
    #[serde(default)]
    pub(super) x_steps: bool,
    /// Field of the y axis; alternatively `ys`.
    #[serde(default)]
    pub(super) y: String,
    /// Several fields of the y axis: the name of the series, and the field.
    #[serde(default)]
    pub(super) ys: Vec<(String, String)>,
    pub(super) y_label: String,
    #[serde(default = "one")]
    pub(super) y_scale: f64,
    /// Fields whose values name the series.
    #[serde(default)]
    pub(super) series: Vec<String>,
    pub(super) kind: PlotKind,
}

const fn one() -> f64 {
    1.0
}

/// Form of a plot.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum PlotKind {
    #[default]
    Line,
    Bar,
}

/// Numbers of a series that the paper's text states.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PaperSeries {
    pub(super) name: String,
    pub(super) x: Vec<Value>,
    pub(super) y: Vec<f64>,
}

/// A number of the paper beside ours.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PaperFigure {
    pub(super) what: String,
    /// As the paper states it, with its unit.
    pub(super) paper: String,
    /// `RUN:PATH`: a value in a run's JSON.
    pub(super) ours: String,
}

impl PaperFigure {
    /// Returns the run and the path of our figure.
    pub(super) fn source(&self) -> (&str, &str) {
        self.ours.split_once(':').unwrap_or((&self.ours, ""))
    }

    /// Returns our figure, null if it was not measured.
    pub(super) fn ours<'a>(&self, results: impl Fn(&str) -> Option<&'a Value>) -> &'a Value {
        let (run, path) = self.source();
        results(run).map_or(&Value::Null, |result| value_at(result, path))
    }
}

impl ItemPlot {
    /// Returns the fields of the y axis, with the names of their series if there are several.
    pub(super) fn y_fields(&self) -> Vec<(&str, &str)> {
        match self.ys.is_empty() {
            true => vec![("", &self.y)],
            false => self.ys.iter().map(|(name, field)| (&name[..], &field[..])).collect(),
        }
    }

    /// Returns the rows of a result that belong to the plot.
    pub(super) fn rows<'a>(&self, result: &'a Value) -> Vec<&'a Value> {
        let rows = result[self.rows.as_str()].as_array().into_iter().flatten();
        let belongs =
            |row: &&Value| self.filter.iter().all(|(key, wanted)| value_at(row, key) == wanted);
        rows.filter(belongs).collect()
    }
}

/// Returns the catalogues of all papers.
///
/// # Panics
/// If an embedded file is invalid, which a test excludes.
pub(super) fn all_papers() -> Vec<PaperCatalogue> {
    let files = [
        include_str!("../../report/autonomous-nic-offloads.toml"),
        include_str!("../../report/acceltcp.toml"),
        include_str!("../../report/io-tcp.toml"),
        include_str!("../../report/niquic.toml"),
    ];
    files.map(|text| toml::from_str(text).expect("checked by a test")).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::runs::all_runs;
    use std::collections::BTreeSet;

    /// Figures and tables of a paper, without those of them that a folder lacks.
    fn numbers(items: &[PaperItem], kind: &str) -> Vec<u32> {
        let number = |item: &PaperItem| {
            let digits = item.id.strip_prefix(kind)?.trim_end_matches(char::is_alphabetic);
            digits.parse().ok()
        };
        let unique: BTreeSet<u32> = items.iter().filter_map(number).collect();
        unique.into_iter().collect()
    }

    #[test]
    fn every_figure_and_table_of_the_papers_is_there() {
        let counts = [
            ("autonomous-nic-offloads", 19, 5),
            ("acceltcp", 14, 6),
            ("io-tcp", 14, 4),
            ("niquic", 10, 2),
        ];
        let papers = all_papers();
        for (paper, (name, figures, tables)) in papers.iter().zip(counts) {
            assert_eq!(paper.paper, name);
            let ids: BTreeSet<_> = paper.items.iter().map(|item| &item.id).collect();
            assert_eq!(ids.len(), paper.items.len(), "{name}: an identifier is there twice");
            let all = |last: u32| (1..=last).collect::<Vec<_>>();
            assert_eq!(numbers(&paper.items, "fig-"), all(figures), "{name}");
            assert_eq!(numbers(&paper.items, "table-"), all(tables), "{name}");
        }
    }

    #[test]
    fn items_refer_to_runs_and_say_why() {
        let runs = all_runs();
        let is_run = |name: &str| runs.iter().any(|run| run.name == name);
        for item in all_papers().iter().flat_map(|paper| &paper.items) {
            let id = &item.id;
            assert!(!item.title.is_empty() && item.note.len() > 20, "{id}");
            for plot in &item.plot {
                assert!(is_run(&plot.run) && plot.y.is_empty() != plot.ys.is_empty(), "{id}");
            }
            assert!(item.compare.iter().all(|figure| is_run(figure.source().0)), "{id}");
            let has_ours = !item.plot.is_empty() || !item.compare.is_empty();
            assert_eq!(has_ours, item.status == ItemStatus::Reproduced, "{id}");
            for series in &item.paper_series {
                assert_eq!(series.x.len(), series.y.len(), "{id}: {}", series.name);
            }
        }
    }
}
