//! Results of points: one file each, and the table that they are merged into.
//!
//! A result is written under a temporary name and renamed, so a worker that is killed leaves none
//! or a whole one. A result contains its arguments: those of another grid are refused.

use std::path::{Path, PathBuf};

use cli::Failure;
use serde_json::{Map, Value, json};

use super::grid::{GridPoint, SweepGrid};
use crate::child::write_whole;
use crate::csv;

/// Returns the file of a point's result.
fn path_of(folder: &Path, point: &GridPoint) -> PathBuf {
    folder.join(format!("point-{:05}.json", point.index))
}

/// Stores the result of a point.
///
/// # Errors
/// Reports a file that cannot be written.
pub(super) fn store(
    folder: &Path,
    grid: &SweepGrid,
    point: &GridPoint,
    result: &Value,
) -> Result<(), Failure> {
    let path = path_of(folder, point);
    let content = json!({ "arguments": grid.arguments(point), "result": result });
    write_whole(&path, &format!("{content:#}\n"))
        .map_err(|error| Failure::System(format!("cannot write {}: {error}", path.display())))
}

/// Returns the result of a point, `None` if it is not in this folder.
///
/// # Errors
/// Reports a file that cannot be read, is not JSON, or belongs to another grid.
pub(super) fn load(
    folder: &Path,
    grid: &SweepGrid,
    point: &GridPoint,
) -> Result<Option<Value>, Failure> {
    let path = path_of(folder, point);
    let refuse = |what: &dyn std::fmt::Display| {
        Failure::NoInput(format!("cannot use result {}: {what}", path.display()))
    };
    let text = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|error| refuse(&error))?,
    };
    let mut content: Value = serde_json::from_str(&text).map_err(|error| refuse(&error))?;
    if content["arguments"] != json!(grid.arguments(point)) {
        return Err(refuse(&"it was made with another grid; use an empty folder"));
    }
    Ok(Some(content["result"].take()))
}

/// The merged table of a grid.
#[derive(Debug, PartialEq)]
pub(super) struct SweepTable {
    /// Options of the grid, then its columns.
    heads: Vec<String>,
    /// A cell for each head.
    rows: Vec<Vec<Value>>,
    /// Sums by column, for columns of `sums`.
    sums: Map<String, Value>,
}

impl SweepTable {
    /// Merges the results in `folders`, in the order of the points.
    ///
    /// # Errors
    /// Reports results that are missing or invalid.
    pub(super) fn merge(grid: &SweepGrid, folders: &[PathBuf]) -> Result<Self, Failure> {
        let (mut rows, mut missing) = (Vec::new(), Vec::new());
        let points = grid.points();
        for point in &points {
            let mut found = None;
            for folder in folders {
                found = found.or(load(folder, grid, point)?);
            }
            let Some(result) = found else {
                missing.push(point.index);
                continue;
            };
            let options = point.options.iter().map(|(_, value)| Value::from(value.as_str()));
            let options: Vec<_> = options.collect();
            rows.extend(grid.rows_of(&result).iter().map(|row| {
                let cells = grid.columns.iter().map(|column| cell(row, column).clone());
                options.iter().cloned().chain(cells).collect()
            }));
        }
        if !missing.is_empty() {
            let (count, of) = (missing.len(), points.len());
            missing.truncate(20);
            return Err(Failure::Unavailable(format!(
                "{count} of {of} points have no result: {missing:?}; run their shards again"
            )));
        }
        let options = points.first().map_or(&[][..], |point| &point.options);
        let heads = options.iter().map(|(option, _)| option.clone()).chain(grid.columns.clone());
        let heads: Vec<_> = heads.collect();
        let sum = |column: &String| {
            let at = heads.iter().rposition(|head| head == column)?;
            Some((column.clone(), sum_of(rows.iter().map(|row: &Vec<Value>| &row[at]))))
        };
        let sums = grid.sums.iter().filter_map(sum).collect();
        Ok(Self { heads, rows, sums })
    }

    /// Returns the table as comma-separated values (RFC 4180), without the sums.
    pub(super) fn to_csv(&self) -> String {
        let heads = self.heads.iter().map(|head| Value::from(head.as_str())).collect();
        let lines = std::iter::once(&heads).chain(&self.rows);
        lines.map(csv::line).collect()
    }

    /// Returns the table as JSON: an object for each row, and the sums.
    pub(super) fn to_json(&self) -> Value {
        let object = |row: &Vec<Value>| -> Map<String, Value> {
            self.heads.iter().cloned().zip(row.iter().cloned()).collect()
        };
        json!({ "rows": self.rows.iter().map(object).collect::<Vec<_>>(), "sums": self.sums })
    }

    /// Returns the sums of columns.
    pub(super) const fn sums(&self) -> &Map<String, Value> {
        &self.sums
    }
}

/// Returns the value at a path in a row: keys with dots between them.
fn cell<'a>(row: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(row, |value, key| &value[key])
}

/// Adds up integers exactly, other numbers as floating point.
fn sum_of<'a>(values: impl Iterator<Item = &'a Value> + Clone) -> Value {
    let integers: Option<u64> = values.clone().map(Value::as_u64).sum();
    match integers {
        Some(sum) => sum.into(),
        None => values.filter_map(Value::as_f64).sum::<f64>().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> SweepGrid {
        let text = "command = ['sim']\ncolumns = ['seeds', 'counters.lost', 'name']\n\
                    sums = ['seeds']\n[[parameters]]\noption = 'first'\nvalues = [0, 10, 20]\n";
        SweepGrid::parse(text).unwrap()
    }

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("outboard-sweep-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn folders_merge_to_the_table_of_one_folder() {
        let (grid, folders) = (grid(), ["one", "a", "b"].map(Folder::new));
        let [one, a, b] = folders.each_ref().map(|folder| folder.0.clone());
        for point in grid.points() {
            let index = point.index;
            let result =
                json!({ "seeds": index + 1, "counters": { "lost": 0.5 }, "name": "x,\"y" });
            store(&one, &grid, &point, &result).unwrap();
            let part = if index % 2 == 0 { &a } else { &b };
            store(part, &grid, &point, &result).unwrap();
        }
        let whole = SweepTable::merge(&grid, &[one]).unwrap();
        assert_eq!(whole, SweepTable::merge(&grid, &[a.clone(), b.clone()]).unwrap());
        assert_eq!(whole, SweepTable::merge(&grid, &[b, a.clone()]).unwrap(), "in any order");
        assert_eq!(
            whole.to_csv(),
            "first,seeds,counters.lost,name\n0,1,0.5,\"x,\"\"y\"\n10,2,0.5,\"x,\"\"y\"\n\
             20,3,0.5,\"x,\"\"y\"\n"
        );
        assert_eq!(whole.to_json()["sums"], json!({ "seeds": 6 }));
        let what = SweepTable::merge(&grid, &[a]).unwrap_err().to_string();
        assert_eq!(what, "1 of 3 points have no result: [1]; run their shards again");
    }

    #[test]
    fn results_that_are_torn_or_of_another_grid_are_refused() {
        let (grid, folder) = (grid(), Folder::new("torn"));
        let point = &grid.points()[1];
        assert_eq!(load(&folder.0, &grid, point).unwrap(), None);
        store(&folder.0, &grid, point, &json!({ "seeds": 1 })).unwrap();
        assert_eq!(load(&folder.0, &grid, point).unwrap(), Some(json!({ "seeds": 1 })));
        let mut other = point.clone();
        other.options[0].1 = "11".to_owned();
        let what = load(&folder.0, &grid, &other).unwrap_err().to_string();
        assert!(what.ends_with("it was made with another grid; use an empty folder"), "{what}");
        std::fs::write(path_of(&folder.0, point), "{").unwrap();
        assert!(load(&folder.0, &grid, point).unwrap_err().to_string().contains("EOF"));
    }
}
