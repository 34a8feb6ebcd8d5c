//! Grid files: the parameters of a sweep, and the points that they span.
//!
//! A grid is a TOML file, see `sweeps/`. Its points are numbered in a fixed order, the last
//! parameter fastest, so that all workers agree on them without talking to each other.

use std::path::Path;

use cli::Failure;
use serde::Deserialize;
use serde_json::Value;

/// Greatest number of points of a grid: a mistyped range is refused, not run.
const POINTS_MAX: usize = 100_000;

/// A grid file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SweepGrid {
    /// Arguments of `outboard-lab` that all points have in common.
    command: Vec<String>,
    /// Options that vary, in order.
    parameters: Vec<GridParameter>,
    /// Array in a point's JSON object whose entries are rows; without it the object is the row.
    pub(super) rows: Option<String>,
    /// Columns of the table, as paths in a row: `counters.net_lost`.
    pub(super) columns: Vec<String>,
    /// Columns that are added up over all rows.
    #[serde(default)]
    pub(super) sums: Vec<String>,
}

/// An option with its values.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GridParameter {
    /// Option without its dashes.
    option: String,
    values: Option<Vec<Value>>,
    range: Option<GridRange>,
}

/// Numbers from `first` in steps of `step`, below `end`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GridRange {
    first: u64,
    end: u64,
    step: u64,
}

/// A combination of values: one run of `outboard-lab`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GridPoint {
    /// Position in the order of the grid.
    pub(super) index: usize,
    /// Options with their values.
    pub(super) options: Vec<(String, String)>,
}

impl SweepGrid {
    /// Reads a grid file.
    ///
    /// # Errors
    /// Names the file and the mistake in it.
    pub(super) fn load(path: &Path) -> Result<Self, Failure> {
        let refuse = |what: &dyn std::fmt::Display| {
            Failure::NoInput(format!("cannot use grid {}: {what}", path.display()))
        };
        let text = std::fs::read_to_string(path).map_err(|error| refuse(&error))?;
        Self::parse(&text).map_err(|what| refuse(&what))
    }

    /// Parses a grid file.
    ///
    /// # Errors
    /// Returns the mistake in one line.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let grid: Self = toml::from_str(text)
            .map_err(|error| error.to_string().split_whitespace().collect::<Vec<_>>().join(" "))?;
        let mut count = 1_usize;
        for parameter in &grid.parameters {
            let values = parameter.count()?;
            count = count.checked_mul(values).filter(|&n| n <= POINTS_MAX).ok_or_else(|| {
                format!("more than {POINTS_MAX} points; give {} fewer values", parameter.option)
            })?;
        }
        if let Some(column) = grid.sums.iter().find(|&sum| !grid.columns.contains(sum)) {
            return Err(format!("{column} in sums is not one of the columns"));
        }
        Ok(grid)
    }

    /// Returns all points in order.
    pub(super) fn points(&self) -> Vec<GridPoint> {
        let mut combinations = vec![Vec::new()];
        for parameter in &self.parameters {
            let values = parameter.texts();
            let extend = |options: Vec<(String, String)>| {
                let extended = values.iter().map(move |value| {
                    let mut options = options.clone();
                    options.push((parameter.option.clone(), value.clone()));
                    options
                });
                extended.collect::<Vec<_>>()
            };
            combinations = combinations.into_iter().flat_map(extend).collect();
        }
        let points = combinations.into_iter().enumerate();
        points.map(|(index, options)| GridPoint { index, options }).collect()
    }

    /// Returns the arguments of a point's run.
    pub(super) fn arguments(&self, point: &GridPoint) -> Vec<String> {
        let options = point.options.iter().flat_map(|(o, value)| [format!("--{o}"), value.clone()]);
        self.command.iter().cloned().chain(options).chain(["--json".to_owned()]).collect()
    }

    /// Returns the rows of a point's result.
    pub(super) fn rows_of(&self, result: &Value) -> Vec<Value> {
        match &self.rows {
            None => vec![result.clone()],
            Some(key) => result[key.as_str()].as_array().cloned().unwrap_or_default(),
        }
    }
}

impl GridParameter {
    fn count(&self) -> Result<usize, String> {
        let option = &self.option;
        let count = match (&self.values, self.range) {
            (Some(values), None) => values.len(),
            (None, Some(GridRange { step: 0, .. })) => {
                return Err(format!("the step of {option} is zero"));
            }
            (None, Some(GridRange { first, end, step })) => {
                usize::try_from(end.saturating_sub(first).div_ceil(step)).unwrap_or(usize::MAX)
            }
            _ => return Err(format!("{option} needs either values or a range")),
        };
        match count {
            0 => Err(format!("{option} has no values")),
            _ => Ok(count),
        }
    }

    fn texts(&self) -> Vec<String> {
        let value = |value: &Value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        match (&self.values, self.range) {
            (Some(values), _) => values.iter().map(value).collect(),
            (None, Some(GridRange { first, end, step })) => {
                let values = std::iter::successors(Some(first), |at| at.checked_add(step));
                values.take_while(|&at| at < end).map(|at| at.to_string()).collect()
            }
            (None, None) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRID: &str = r#"
        command = ["bench", "io-tcp"]
        rows = "rows"
        columns = ["path", "counters.net_lost"]
        [[parameters]]
        option = "sizes"
        values = [10, "20"]
        [[parameters]]
        option = "connections"
        range = { first = 0, end = 5, step = 2 }
    "#;

    #[test]
    fn points_are_all_combinations_in_order() {
        let grid = SweepGrid::parse(GRID).unwrap();
        let points = grid.points();
        let texts: Vec<_> = points.iter().map(|point| grid.arguments(point).join(" ")).collect();
        let expected = [(10, 0), (10, 2), (10, 4), (20, 0), (20, 2), (20, 4)];
        let expected = expected.map(|(size, connections)| {
            format!("bench io-tcp --sizes {size} --connections {connections} --json")
        });
        assert_eq!(texts, expected);
        assert!(points.iter().enumerate().all(|(at, point)| at == point.index));
    }

    #[test]
    fn mistakes_are_said_in_one_line() {
        let refused = |from: &str, to: &str| {
            assert!(GRID.contains(from), "{from}");
            let what = SweepGrid::parse(&GRID.replace(from, to)).unwrap_err();
            assert!(!what.contains('\n'), "{what}");
            what
        };
        assert_eq!(refused("step = 2", "step = 0"), "the step of connections is zero");
        assert_eq!(refused("end = 5", "end = 0"), "connections has no values");
        assert_eq!(
            refused("end = 5, step = 2", "end = 500_000, step = 1"),
            "more than 100000 points; give connections fewer values"
        );
        assert_eq!(refused("values = [10, \"20\"]", ""), "sizes needs either values or a range");
        assert_eq!(
            refused("rows = \"rows\"", "sums = [\"x\"]"),
            "x in sums is not one of the columns"
        );
        assert!(refused("rows =", "row =").contains("unknown field `row`"));
    }

    /// The grids that are checked in parse, and their commands are ones of this program.
    #[test]
    fn grids_of_the_repository_are_valid() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sweeps");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let grid = SweepGrid::load(&path).unwrap();
            for point in grid.points() {
                let arguments = grid.arguments(&point);
                let words = std::iter::once("outboard-lab".to_owned()).chain(arguments);
                let parsed = <crate::args::Cli as clap::Parser>::try_parse_from(words);
                assert!(parsed.is_ok(), "{}: {:?}", path.display(), parsed.err());
            }
            count += 1;
        }
        assert!(count >= 2);
    }
}
