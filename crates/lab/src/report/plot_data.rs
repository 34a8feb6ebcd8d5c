//! Series of a plot from the rows of a benchmark.

use serde_json::Value;

use super::catalogue::{ItemPlot, PlotKind};
use super::results::{RunResult, value_at};

/// A plot: series over numbers, or over categories.
#[derive(Debug, PartialEq)]
pub(super) struct PlotData {
    /// Names of the categories on the x axis, of a bar plot. A point's x is its index.
    pub(super) categories: Vec<String>,
    pub(super) series: Vec<PlotSeries>,
}

/// Points of one line, or bars of one color.
#[derive(Debug, PartialEq)]
pub(super) struct PlotSeries {
    pub(super) name: String,
    pub(super) points: Vec<PlotPoint>,
}

/// A point: the median of the repetitions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PlotPoint {
    pub(super) x: f64,
    pub(super) y: f64,
    /// Least and greatest value, of two repetitions or more.
    pub(super) range: Option<(f64, f64)>,
}

/// Returns the series of a plot, `None` if the result has no rows for it.
pub(super) fn plot_data(plot: &ItemPlot, result: &RunResult) -> Option<PlotData> {
    let median = result.median();
    let repetitions: Vec<_> = result.repetitions.iter().map(|one| plot.rows(one)).collect();
    let mut data = PlotData { categories: Vec::new(), series: Vec::new() };
    for (at, row) in plot.rows(&median).into_iter().enumerate() {
        let Some(x) = data.x_of(plot, value_at(row, &plot.x)) else { continue };
        for (name, field) in plot.y_fields() {
            let Some(y) = value_at(row, field).as_f64() else { continue };
            let values =
                repetitions.iter().filter_map(|rows| value_at(rows.get(at)?, field).as_f64());
            let range = range_of(values).filter(|_| repetitions.len() > 1);
            let range = range.map(|(low, high)| (low * plot.y_scale, high * plot.y_scale));
            let point = PlotPoint { x, y: y * plot.y_scale, range };
            data.add(series_name(name, plot, row), point);
        }
    }
    if plot.kind == PlotKind::Line {
        for series in &mut data.series {
            series.points.sort_by(|a, b| a.x.total_cmp(&b.x));
        }
    }
    (!data.series.is_empty()).then_some(data)
}

/// Returns the least and the greatest value.
fn range_of(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |range, value| {
        let (low, high) = range.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    })
}

/// Returns the name of a series: that of its field on the y axis, and the values of its row.
fn series_name(name: &str, plot: &ItemPlot, row: &Value) -> String {
    let name = (!name.is_empty()).then(|| name.to_owned());
    let values = plot.series.iter().map(|key| text_of(value_at(row, key)));
    name.into_iter().chain(values).collect::<Vec<_>>().join(", ")
}

fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "none".to_owned(),
        other => other.to_string(),
    }
}

impl PlotData {
    fn add(&mut self, name: String, point: PlotPoint) {
        match self.series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push(point),
            None => self.series.push(PlotSeries { name, points: vec![point] }),
        }
    }

    /// Returns the category at a position of the x axis, `None` between two.
    pub(super) fn category_at(&self, x: f64) -> Option<&str> {
        let mut categories = self.categories.iter().enumerate();
        let (_, name) = categories.find(|(at, _)| (*at as f64 - x).abs() < 1e-6)?;
        Some(name)
    }

    fn x_of(&mut self, plot: &ItemPlot, value: &Value) -> Option<f64> {
        if plot.kind == PlotKind::Line {
            return value.as_f64().map(|x| x * plot.x_scale);
        }
        let scaled = value.as_f64().map(|number| format!("{}", number * plot.x_scale));
        let name = scaled.unwrap_or_else(|| text_of(value));
        let at = self.categories.iter().position(|known| *known == name).unwrap_or_else(|| {
            self.categories.push(name);
            self.categories.len() - 1
        });
        Some(at as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::results::tests::result;
    use serde_json::json;

    fn repetition(factor: f64) -> Value {
        json!({ "rows": [
            { "fault": "Loss", "rate": 0.05, "way": "Ours", "full": 0.9 * factor },
            { "fault": "Loss", "rate": 0.01, "way": "Ours", "full": 0.98 },
            { "fault": "Loss", "rate": 0.01, "way": "Paper", "full": 0.7 },
            { "fault": "Loss", "rate": 0.05, "way": "Paper", "full": null },
            { "fault": "Reorder", "rate": 0.01, "way": "Ours", "full": 1.0 },
        ] })
    }

    fn plot(kind: PlotKind) -> ItemPlot {
        ItemPlot {
            rows: "rows".to_owned(),
            filter: json!({ "fault": "Loss" }).as_object().unwrap().clone(),
            x: "rate".to_owned(),
            ys: vec![(String::new(), "full".to_owned())],
            x_scale: 100.0,
            y_scale: 100.0,
            series: vec!["way".to_owned()],
            kind,
            ..ItemPlot::default()
        }
    }

    #[test]
    fn rows_are_points_of_their_series() {
        let data = plot_data(&plot(PlotKind::Line), &result(vec![repetition(1.0)])).unwrap();
        let point = |x, y| PlotPoint { x, y, range: None };
        let series = |name: &str, points| PlotSeries { name: name.to_owned(), points };
        let ours = vec![point(1.0, 98.0), point(5.0, 90.0)];
        let expected = vec![series("Ours", ours), series("Paper", vec![point(1.0, 70.0)])];
        assert_eq!(data, PlotData { categories: Vec::new(), series: expected });
        assert_eq!(plot_data(&plot(PlotKind::Line), &result(Vec::new())), None);
    }

    #[test]
    fn repetitions_have_a_range_and_bars_have_categories() {
        let repetitions = [1.0, 0.5, 0.75].map(repetition).into();
        let data = plot_data(&plot(PlotKind::Bar), &result(repetitions)).unwrap();
        assert_eq!(data.categories, ["5", "1"]);
        let first = data.series[0].points[0];
        assert_eq!(first, PlotPoint { x: 0.0, y: 67.5, range: Some((45.0, 90.0)) });
    }

    /// Rows are selected, and series named, by integers also if there are several repetitions.
    #[test]
    fn parameters_stay_integers() {
        let rows = |full: f64| {
            json!({ "rows": [
                { "bytes": 64, "rate": 1, "full": full },
                { "bytes": 1024, "rate": 1, "full": full },
            ] })
        };
        let filter = json!({ "bytes": 64 }).as_object().unwrap().clone();
        let plot = ItemPlot { filter, series: vec!["bytes".to_owned()], ..plot(PlotKind::Line) };
        let data = plot_data(&plot, &result(vec![rows(0.5), rows(0.75), rows(1.0)])).unwrap();
        let point = PlotPoint { x: 100.0, y: 75.0, range: Some((50.0, 100.0)) };
        let expected = PlotSeries { name: "64".to_owned(), points: vec![point] };
        assert_eq!(data.series, [expected]);
    }
}
