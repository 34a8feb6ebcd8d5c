//! Harness of all benchmarks: runs the settings of an [`Experiment`] in turn, checks the path of
//! each run, prints a table, and prints JSON.
//!
//! A benchmark has arguments, which implement [`Benchmark`], settings, a measurement, a check of
//! the path, and fields. It hands its experiments to a [`BenchReport`] and adds its conclusions
//! from their rows. Nothing here depends on the measured quantity.

use std::collections::BTreeMap;
use std::fmt::{Debug, Display};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use cli::Failure;

/// A benchmark, with its command-line arguments.
pub(crate) trait Benchmark {
    /// Measures and reports.
    ///
    /// # Errors
    /// Reports a set-up that failed, wrong bytes, or a path other than the one to be measured.
    fn run(&self, report: &mut BenchReport) -> Result<(), Failure>;
}

/// A measured table. `S` is the setting of a run, `F` the result of one run, or of all runs of a
/// setting.
pub(crate) struct Experiment<'a, S, F> {
    /// Settings, in groups that are compared. The runs of a group take turns, so that other load on
    /// the machine affects all of them alike.
    pub(crate) groups: Vec<Vec<S>>,
    /// Runs of each setting.
    pub(crate) repeats: usize,
    /// Runs a setting once.
    pub(crate) measure: &'a mut dyn FnMut(S) -> Result<F, Failure>,
    /// Returns whether a run took the path of its setting. Silent fallback to software is the
    /// characteristic bug of an offload.
    pub(crate) took_path: &'a dyn Fn(S, &F) -> bool,
    /// Combines the results of a setting's runs, of which there is at least one.
    pub(crate) combine: &'a dyn Fn(Vec<F>) -> F,
    /// Returns the fields of a row.
    pub(crate) fields: ShowRow<'a, S, F>,
}

/// Returns the fields of a row; the second argument is the first row of its group.
pub(crate) type ShowRow<'a, S, F> = &'a dyn Fn(&ResultRow<S, F>, &ResultRow<S, F>) -> Fields;

/// A setting with its result.
#[derive(Clone, Debug)]
pub(crate) struct ResultRow<S, F> {
    pub(crate) setting: S,
    pub(crate) figures: F,
}

/// Returns the result of the first setting that matches.
pub(crate) fn find_figures<S, F>(
    rows: &[ResultRow<S, F>],
    is_wanted: impl Fn(&S) -> bool,
) -> Option<&F> {
    rows.iter().find(|row| is_wanted(&row.setting)).map(|row| &row.figures)
}

/// Returns the median run by `key`.
pub(crate) fn median_by<F, K: PartialOrd>(mut runs: Vec<F>, key: impl Fn(&F) -> K) -> F {
    runs.sort_by(|a, b| key(a).partial_cmp(&key(b)).unwrap_or(std::cmp::Ordering::Equal));
    runs.swap_remove(runs.len() / 2)
}

/// Returns the median: the mean of the middle two for an even number of values, NaN for none.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// Returns the run of a setting that is run once.
pub(crate) fn single_run<F>(mut runs: Vec<F>) -> F {
    runs.swap_remove(0)
}

/// Returns the ratio of two numbers if both are present.
pub(crate) fn ratio(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    a.zip(b).map(|(a, b)| a / b)
}

/// A row of a report: JSON fields, table columns, or both.
#[derive(Debug, Default)]
pub(crate) struct Fields(Vec<Field>);

#[derive(Debug)]
struct Field {
    /// Heading of the table column; `None` if JSON only.
    head: Option<&'static str>,
    /// JSON key; `None` if table only.
    name: Option<&'static str>,
    value: Value,
}

impl Fields {
    /// Returns a row without fields.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    fn with(mut self, head: Option<&'static str>, name: Option<&'static str>, v: Value) -> Self {
        self.0.push(Field { head, name, value: v });
        self
    }

    /// Adds a JSON field that is a table column too.
    pub(crate) fn show(
        self,
        head: &'static str,
        name: &'static str,
        value: impl Into<Value>,
    ) -> Self {
        self.with(Some(head), Some(name), value.into())
    }

    /// Adds a JSON field without a column.
    pub(crate) fn field(self, name: &'static str, value: impl Into<Value>) -> Self {
        self.with(None, Some(name), value.into())
    }

    /// Adds a table column without a JSON field.
    pub(crate) fn column(self, head: &'static str, value: impl Into<Value>) -> Self {
        self.with(Some(head), None, value.into())
    }

    /// Adds counters as a JSON field.
    pub(crate) fn counters(self, counters: &BTreeMap<&'static str, u64>) -> Self {
        self.field("counters", json!(counters))
    }

    /// Appends the fields of another row.
    pub(crate) fn append(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    fn columns(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        self.0.iter().filter_map(|field| Some((field.head?, &field.value)))
    }

    /// Returns the JSON fields.
    pub(crate) fn into_json(self) -> Value {
        let named = self.0.into_iter().filter_map(|f| Some((f.name?.to_owned(), f.value)));
        Value::Object(named.collect())
    }
}

/// Returns the text of a table cell. Fractions have about four significant digits.
fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => {
            let number = number.as_f64().unwrap_or_default();
            let decimals = match number.abs() {
                1000.0.. => 0,
                100.0.. => 1,
                10.0.. => 2,
                1.0.. => 3,
                _ => 4,
            };
            format!("{number:.decimals$}")
        }
        other => other.to_string(),
    }
}

/// A printed table. Columns grow with their contents.
#[derive(Debug, Default)]
pub(crate) struct TextTable {
    /// Width of each column, and whether it holds text (aligned left).
    columns: Vec<(usize, bool)>,
}

impl TextTable {
    /// Returns the lines of rows; the heading comes before the first rows.
    pub(crate) fn lines(&mut self, rows: &[Fields]) -> Vec<String> {
        let Some(first) = rows.first() else { return Vec::new() };
        let heads: Vec<_> = first.columns().map(|(head, _)| head).collect();
        let is_new = self.columns.is_empty();
        self.columns.resize(heads.len(), (6, false));
        for row in rows {
            for ((width, is_text), (head, value)) in self.columns.iter_mut().zip(row.columns()) {
                *is_text |= value.is_string();
                *width = (*width).max(head.len()).max(text(value).len());
            }
        }
        let line = |cells: &mut dyn Iterator<Item = String>| {
            let padded = cells.zip(&self.columns).map(|(cell, &(width, is_text))| match is_text {
                true => format!("{cell:<width$}"),
                false => format!("{cell:>width$}"),
            });
            padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        let mut lines = Vec::new();
        if is_new {
            lines.push(line(&mut heads.into_iter().map(str::to_owned)));
        }
        lines.extend(rows.iter().map(|row| line(&mut row.columns().map(|(_, value)| text(value)))));
        lines
    }
}

/// Output of a benchmark: tables for people, or one JSON object.
pub(crate) struct BenchReport {
    json: bool,
    fields: Map<String, Value>,
    /// Reason for which the numbers are invalid.
    void: Option<Failure>,
}

/// Prints a line. A closed standard output, as that of `| head`, is no reason to panic.
fn print_line(text: impl Display) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

impl BenchReport {
    /// Returns an empty report, as JSON or as tables.
    pub(crate) fn new(json: bool) -> Self {
        Self { json, fields: Map::new(), void: None }
    }

    /// Prints a line: on stdout, or with JSON on stderr, as progress.
    pub(crate) fn line(&self, text: impl Display) {
        if self.json {
            eprintln!("{text}");
        } else {
            print_line(text);
        }
    }

    /// Sets a field of the JSON object.
    pub(crate) fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.fields.insert(name.to_owned(), value.into());
    }

    /// Runs an experiment, prints its table and sets its rows as `field`.
    ///
    /// # Errors
    /// Reports a run that failed, or that took a path other than the one to be measured.
    pub(crate) fn measure<S: Copy + Debug, F: Debug>(
        &mut self,
        field: &str,
        mut experiment: Experiment<'_, S, F>,
    ) -> Result<Vec<ResultRow<S, F>>, Failure> {
        let (mut table, mut rows, mut values) = (TextTable::default(), Vec::new(), Vec::new());
        for settings in std::mem::take(&mut experiment.groups) {
            let group = experiment.measure_group(&settings)?;
            let fields = group.iter().map(|row| (experiment.fields)(row, &group[0]));
            let fields: Vec<Fields> = fields.collect();
            table.lines(&fields).iter().for_each(|line| self.line(line));
            values.extend(fields.into_iter().map(Fields::into_json));
            rows.extend(group);
        }
        self.set(field, values);
        Ok(rows)
    }

    /// Prints a table of rows that were measured elsewhere, and sets them as `field`.
    pub(crate) fn table(&mut self, field: &str, rows: Vec<Fields>) {
        TextTable::default().lines(&rows).iter().for_each(|line| self.line(line));
        self.set(field, rows.into_iter().map(Fields::into_json).collect::<Vec<_>>());
    }

    /// Marks the numbers as invalid. They are printed nevertheless; the first reason is kept.
    pub(crate) fn invalidate(&mut self, why: Failure) {
        self.void.get_or_insert(why);
    }

    /// Prints the JSON object, or the headline if there is one.
    ///
    /// # Errors
    /// Returns the reason for which the numbers are invalid.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        if self.json {
            print_line(format_args!("{:#}", Value::Object(self.fields)));
        } else if let Some(headline) = self.fields.get("headline") {
            print_line(format_args!("\nheadline: {headline:#}"));
        }
        self.void.map_or(Ok(()), Err)
    }
}

impl<S: Copy + Debug, F: Debug> Experiment<'_, S, F> {
    fn measure_group(&mut self, settings: &[S]) -> Result<Vec<ResultRow<S, F>>, Failure> {
        let mut runs: Vec<Vec<F>> = settings.iter().map(|_| Vec::new()).collect();
        for _ in 0..self.repeats {
            for (&setting, runs) in settings.iter().zip(&mut runs) {
                let figures = (self.measure)(setting).map_err(|failure| match failure {
                    Failure::System(what) => Failure::System(format!("{what} ({setting:?})")),
                    other => other,
                })?;
                if !(self.took_path)(setting, &figures) {
                    return Err(Failure::System(format!(
                        "run did not take the path of its setting ({setting:?}): {figures:?}"
                    )));
                }
                runs.push(figures);
            }
        }
        let row = |(&setting, runs)| ResultRow { setting, figures: (self.combine)(runs) };
        Ok(settings.iter().zip(runs).map(row).collect())
    }
}

/// Temporary folder of a benchmark, removed with its contents when this is dropped.
pub(crate) struct TempFolder(PathBuf);

impl TempFolder {
    /// Returns a path in the system's temporary folder; the folder itself is not created.
    pub(crate) fn new() -> Self {
        Self(std::env::temp_dir().join(format!("outboard-bench-{}", std::process::id())))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_a_group_take_turns() {
        let (mut report, mut count) = (BenchReport::new(true), 0);
        let mut measure = |groups: Vec<Vec<u32>>, limit| {
            report.measure(
                "rows",
                Experiment {
                    groups,
                    repeats: 3,
                    measure: &mut |setting| {
                        count += 1;
                        Ok(setting + count)
                    },
                    took_path: &|_, &figures| figures < limit,
                    combine: &|runs| median_by(runs, |&run| run),
                    fields: &|row, first| {
                        Fields::new().show("n", "n", row.figures).field("of", first.setting)
                    },
                },
            )
        };
        // Results in order of the runs: 11 22, 13 24, 15 26; 37 38 39.
        let rows = measure(vec![vec![10, 20], vec![30]], 40).unwrap();
        assert_eq!(rows.iter().map(|row| row.figures).collect::<Vec<_>>(), [13, 24, 38]);
        assert_eq!(find_figures(&rows, |&setting| setting == 20), Some(&24));
        let failure = measure(vec![vec![10]], 18).unwrap_err().to_string();
        assert_eq!(failure, "run did not take the path of its setting (10): 20");
        let rows = json!([{ "n": 13, "of": 10 }, { "n": 24, "of": 10 }, { "n": 38, "of": 30 }]);
        assert_eq!(report.fields["rows"], rows);
    }

    #[test]
    fn medians() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
        assert!(median(std::iter::empty()).is_nan());
    }

    #[test]
    fn tables_have_columns() {
        let row = |name: &str, value: Option<f64>| {
            Fields::new().show("name", "n", name).column("a number", value).field("hidden", 1)
        };
        let mut table = TextTable::default();
        let rows = [row("one", Some(1234.56)), row("two", Some(0.123_46))];
        assert_eq!(
            table.lines(&rows),
            ["name    a number", "one         1235", "two       0.1235"]
        );
        assert_eq!(table.lines(&[row("longer", None)]), ["longer         -"]);
        assert_eq!(row("one", None).into_json(), json!({ "n": "one", "hidden": 1 }));
    }
}
