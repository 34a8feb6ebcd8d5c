//! Results folder of a report: `raw/NAME.json` for each run, and CSV tables of its rows.
//!
//! A file is written when its run has ended, whole or not at all, so a report that was interrupted
//! can be resumed, and folders of several workers can be merged.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cli::Failure;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::child::write_whole;
use crate::csv;

/// Results of a benchmark, as stored.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct RunResult {
    /// Arguments of `outboard-lab`.
    pub(super) arguments: Vec<String>,
    /// Duration of all repetitions, in seconds.
    pub(super) seconds: f64,
    /// Reason for which the run failed or its figures are invalid.
    pub(super) failure: Option<String>,
    /// JSON object of each repetition.
    pub(super) repetitions: Vec<Value>,
}

impl RunResult {
    /// Returns the first repetition's JSON; null if there is none.
    pub(super) fn first(&self) -> &Value {
        self.repetitions.first().unwrap_or(&Value::Null)
    }

    /// Returns the JSON object in which each number is the median of the repetitions.
    pub(super) fn median(&self) -> Value {
        median_of(&self.repetitions.iter().collect::<Vec<_>>())
    }
}

/// Returns a value like the first one, with the medians of all numbers.
fn median_of(values: &[&Value]) -> Value {
    let Some(&first) = values.first() else { return Value::Null };
    match first {
        Value::Object(fields) => {
            let median = |key: &String| {
                median_of(&values.iter().map(|value| &value[key.as_str()]).collect::<Vec<_>>())
            };
            fields.keys().map(|key| (key.clone(), median(key))).collect::<Value>()
        }
        Value::Array(entries) => {
            let median = |at: usize| {
                median_of(&values.iter().filter_map(|value| value.get(at)).collect::<Vec<_>>())
            };
            (0..entries.len()).map(median).collect()
        }
        // A number that is the same in all repetitions stays as it is: a parameter is an integer,
        // and filters and names of series compare it.
        Value::Number(_) if values.iter().any(|value| *value != first) => {
            crate::bench::median(values.iter().filter_map(|value| value.as_f64())).into()
        }
        other => other.clone(),
    }
}

/// Returns the value at a path, keys with dots between them; null if it is absent.
pub(super) fn value_at<'a>(value: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(value, |value, key| match key.parse::<usize>() {
        Ok(index) if value.is_array() => &value[index],
        _ => &value[key],
    })
}

/// Returns all scalars below a value with their paths. An entry of an array is named by the first
/// text in it.
pub(super) fn flatten(value: &Value) -> Vec<(String, &Value)> {
    let inner = |key: &str, value| {
        let prefix = |(path, value)| (format!("{key}.{path}"), value);
        flatten(value).into_iter().map(prefix).collect::<Vec<_>>()
    };
    match value {
        Value::Object(fields) => {
            let paths = fields.iter().flat_map(|(key, value)| match value {
                Value::Object(_) | Value::Array(_) => inner(key, value),
                _ => vec![(key.clone(), value)],
            });
            paths.collect()
        }
        Value::Array(entries) => {
            let paths = entries.iter().enumerate().flat_map(|(at, entry)| {
                let fields = entry.as_object().into_iter().flatten();
                let name = fields.filter_map(|(_, value)| value.as_str()).next();
                inner(&name.map_or_else(|| at.to_string(), str::to_owned), entry)
            });
            paths.collect()
        }
        _ => Vec::new(),
    }
}

/// A folder of results.
#[derive(Clone, Debug)]
pub(super) struct ResultsFolder(PathBuf);

impl ResultsFolder {
    /// Creates the folder if it does not exist.
    ///
    /// # Errors
    /// Reports a folder that cannot be created.
    pub(super) fn create(path: &Path) -> Result<Self, Failure> {
        let folder = Self(path.to_owned());
        std::fs::create_dir_all(folder.raw()).map_err(|error| {
            Failure::NoInput(format!("cannot create folder {}: {error}", path.display()))
        })?;
        Ok(folder)
    }

    /// Opens a folder of an earlier report.
    ///
    /// # Errors
    /// Reports a folder without results.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let folder = Self(path.to_owned());
        match folder.raw().is_dir() {
            true => Ok(folder),
            false => Err(Failure::NoInput(format!(
                "{} has no results: there is no folder raw in it",
                path.display()
            ))),
        }
    }

    fn raw(&self) -> PathBuf {
        self.0.join("raw")
    }

    fn path_of(&self, run: &str) -> PathBuf {
        self.raw().join(run).with_extension("json")
    }

    /// Returns the result of a run, `None` if it is not there.
    ///
    /// # Errors
    /// Reports a file that cannot be read or parsed.
    pub(super) fn load(&self, run: &str) -> Result<Option<RunResult>, Failure> {
        let path = self.path_of(run);
        let refuse = |what: &dyn std::fmt::Display| {
            Failure::NoInput(format!("cannot use result {}: {what}", path.display()))
        };
        match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(refuse(&error)),
            Ok(text) => serde_json::from_str(&text).map(Some).map_err(|error| refuse(&error)),
        }
    }

    /// Returns all results by run, of those named.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub(super) fn load_all<'a>(
        &self,
        runs: impl Iterator<Item = &'a str>,
    ) -> Result<BTreeMap<String, RunResult>, Failure> {
        let mut results = BTreeMap::new();
        for run in runs {
            if let Some(result) = self.load(run)? {
                results.insert(run.to_owned(), result);
            }
        }
        Ok(results)
    }

    /// Stores the result of a run, and its tables as CSV.
    ///
    /// # Errors
    /// Reports a file that cannot be written.
    pub(super) fn store(&self, run: &str, result: &RunResult) -> Result<(), Failure> {
        for (key, table) in tables(&result.median()) {
            self.write(&format!("raw/{run}.{key}.csv"), &table)?;
        }
        self.write(&format!("raw/{run}.json"), &format!("{:#}\n", json!(result)))
    }

    /// Writes a file of the report.
    ///
    /// # Errors
    /// Reports a file that cannot be written.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<(), Failure> {
        let path = self.0.join(name);
        write_whole(&path, text)
            .map_err(|error| Failure::System(format!("cannot write {}: {error}", path.display())))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

/// Returns the arrays of objects in a result as CSV, by key. Columns are those of all rows, in the
/// order of their appearance; counters are left to the JSON.
fn tables(result: &Value) -> Vec<(String, String)> {
    let Value::Object(fields) = result else { return Vec::new() };
    let table = |(key, value): (&String, &Value)| {
        let rows: Vec<_> = value.as_array()?.iter().filter_map(Value::as_object).collect();
        let mut columns: Vec<&String> = Vec::new();
        for (column, cell) in rows.iter().flat_map(|row| row.iter()) {
            if !cell.is_object() && !columns.contains(&column) {
                columns.push(column);
            }
        }
        let heads: Vec<_> = columns.iter().map(|&head| Value::from(head.as_str())).collect();
        let null = Value::Null;
        let lines = rows
            .iter()
            .map(|row| csv::line(columns.iter().map(|&column| row.get(column).unwrap_or(&null))));
        (!columns.is_empty()).then(|| (key.clone(), csv::line(&heads) + &lines.collect::<String>()))
    };
    fields.iter().filter_map(table).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A folder that is removed with its contents.
    pub(crate) struct TestFolder(pub(crate) PathBuf);

    impl TestFolder {
        pub(crate) fn new(name: &str) -> Self {
            let name = format!("outboard-report-{}-{name}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }
    }

    impl Drop for TestFolder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    pub(crate) fn result(repetitions: Vec<Value>) -> RunResult {
        RunResult { arguments: vec!["bench".to_owned()], seconds: 1.5, failure: None, repetitions }
    }

    #[test]
    fn numbers_are_medians_of_repetitions() {
        let of = |ratio: f64, text: &str| {
            let rows = json!([{ "name": text, "v": 2.0 * ratio }]);
            json!({ "headline": { "ratio": ratio }, "rows": rows })
        };
        let many = result(vec![of(3.0, "a"), of(1.0, "b"), of(2.0, "c")]);
        assert_eq!(many.median(), of(2.0, "a"));
        assert_eq!(result(vec![json!({ "n": 7 })]).median(), json!({ "n": 7 }), "still an integer");
        assert_eq!(result(Vec::new()).median(), Value::Null);
    }

    #[test]
    fn paths_lead_to_values() {
        let value = json!({ "a": { "b": [{ "c": 1 }, { "c": 2 }] }, "d": 3 });
        assert_eq!(value_at(&value, "a.b.1.c"), 2);
        assert_eq!(value_at(&value, "a.x.1"), &Value::Null);
        let paths: Vec<_> = flatten(&json!({ "a": { "b": 1, "c": null }, "d": "x" }))
            .into_iter()
            .map(|(path, value)| (path, value.clone()))
            .collect();
        let expected = [("a.b", json!(1)), ("a.c", Value::Null), ("d", json!("x"))];
        assert_eq!(paths, expected.map(|(path, value)| (path.to_owned(), value)));
    }

    #[test]
    fn results_are_stored_with_their_tables() {
        let folder = TestFolder::new("store");
        let results = ResultsFolder::create(&folder.0).unwrap();
        assert_eq!(results.load("tls").unwrap(), None);
        let rows = json!([{ "way": "a,b", "v": 1, "counters": {} }, { "way": "c", "more": true }]);
        let stored = result(vec![json!({ "rows": rows, "headline": {} })]);
        results.store("tls", &stored).unwrap();
        assert_eq!(results.load("tls").unwrap(), Some(stored));
        let csv = std::fs::read_to_string(folder.0.join("raw/tls.rows.csv")).unwrap();
        assert!(csv.contains("\"a,b\"") && csv.lines().count() == 3, "{csv}");
        std::fs::write(folder.0.join("raw/tls.json"), "{").unwrap();
        assert!(results.load("tls").is_err());
        assert!(ResultsFolder::open(&folder.0.join("raw")).is_err());
    }
}
