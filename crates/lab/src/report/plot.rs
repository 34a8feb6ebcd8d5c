//! Drawings of plots as SVG, by the library `plotters`.
//!
//! Colors are those of Okabe and Ito, which color-blind people can tell apart; series of lines
//! differ in their markers, too. The style sheet of the pages replaces colors in dark mode by their
//! values, so this module and `report.css` name the same ones.

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::{
    Cartesian2d, ChartBuilder, ChartContext, Circle, Cross, ErrorBar, IntoDrawingArea as _,
    LineSeries, RGBColor, Rectangle, SVGBackend, Text, TriangleMarker,
};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color as _, ShapeStyle, TRANSPARENT, TextStyle};

use super::catalogue::{ItemPlot, PlotKind};
use super::plot_data::{PlotData, PlotPoint, PlotSeries};

/// Size in CSS pixels: text is legible if the plot is scaled to a phone's width.
const SIZE: (u32, u32) = (520, 340);
const FONT: (&str, u32) = ("sans-serif", 15);
/// Height of a line of text, and mean width of a character.
const LINE_HEIGHT: u16 = 17;
const CHARACTER_WIDTH: u32 = 8;
/// Space around the axes: margin, margin on the right, label areas below and on the left.
const MARGIN: u32 = 10;
const MARGIN_RIGHT: u32 = 28;
const LABELS_BELOW: u32 = 50;
const LABELS_LEFT: u32 = 68;
/// Colors of series, in order; `.series-N` of the style sheet are the same.
const SERIES_COLORS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x60, 0x60, 0x60),
];
const AXIS: RGBColor = RGBColor(0x80, 0x80, 0x80);
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
/// Share of a category's width that its bars fill.
const BARS_WIDTH: f64 = 0.8;

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Returns the index of a series' color.
pub(super) const fn color_index(series: usize) -> usize {
    series % SERIES_COLORS.len()
}

/// Draws a plot as an SVG element.
///
/// # Errors
/// Returns the reason for which the library cannot draw it.
pub(super) fn draw(plot: &ItemPlot, data: &PlotData) -> Result<String, String> {
    let mut svg = String::new();
    draw_into(&mut svg, plot, data).map_err(|error| format!("cannot draw a plot: {error}"))?;
    // The style sheet decides on the size; the viewBox keeps the proportions.
    let size = format!("width=\"{}\" height=\"{}\" ", SIZE.0, SIZE.1);
    Ok(svg.replacen(&size, "class=\"plot\" role=\"img\" ", 1))
}

fn draw_into(
    svg: &mut String,
    plot: &ItemPlot,
    data: &PlotData,
) -> Result<(), Box<dyn std::error::Error>> {
    let axis = XAxis::new(plot, data);
    let names = category_lines(&data.categories);
    let further_lines = names.iter().map(Vec::len).max().unwrap_or(1).saturating_sub(1);
    let further_lines = u32::try_from(further_lines).unwrap_or(0);
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    let (x, y) = (axis.range(), y_range(data));
    let mut chart = ChartBuilder::on(&root)
        .margin(MARGIN)
        .margin_right(MARGIN_RIGHT)
        .x_label_area_size(LABELS_BELOW + u32::from(LINE_HEIGHT) * further_lines)
        .y_label_area_size(LABELS_LEFT)
        .build_cartesian_2d(x.0..x.1, y.0..y.1)
        .map_err(|error| error.to_string())?;
    // The library's labels have one line: those of categories are drawn below.
    let label = |x: &f64| if names.is_empty() { axis.label(*x) } else { String::new() };
    let mut mesh = chart.configure_mesh();
    mesh.axis_style(AXIS).bold_line_style(GRID).light_line_style(TRANSPARENT);
    mesh.label_style(FONT).axis_desc_style(FONT);
    mesh.x_desc(plot.x_label.as_str()).y_desc(plot.y_label.as_str());
    mesh.x_labels(axis.labels()).x_label_formatter(&label);
    mesh.y_labels(6).y_label_formatter(&|y| short_number(*y));
    if plot.kind == PlotKind::Bar {
        mesh.disable_x_mesh();
    }
    mesh.draw().map_err(|error| error.to_string())?;
    let style = TextStyle::from(FONT).pos(Pos::new(HPos::Center, VPos::Top));
    for (at, lines) in names.into_iter().enumerate() {
        let (x, mut y) = chart.backend_coord(&(at as f64, 0.0));
        y += 8;
        for line in lines {
            root.draw(&Text::new(line, (x, y), style.clone())).map_err(|e| e.to_string())?;
            y += i32::from(LINE_HEIGHT);
        }
    }
    let count = data.series.len();
    for (at, series) in data.series.iter().enumerate() {
        match plot.kind {
            PlotKind::Line => draw_line(&mut chart, at, series, &axis),
            PlotKind::Bar => draw_bars(&mut chart, at, series, count),
        }
        .map_err(|error| error.to_string())?;
    }
    root.present().map_err(|error| error.to_string())?;
    Ok(())
}

type DrawResult = Result<(), Box<dyn std::error::Error>>;

fn draw_line(
    chart: &mut Chart<'_, '_>,
    at: usize,
    series: &PlotSeries,
    axis: &XAxis<'_>,
) -> DrawResult {
    let color = SERIES_COLORS[color_index(at)];
    let style = color.stroke_width(2);
    let places: Vec<_> = series.points.iter().map(|point| (axis.place(point.x), point.y)).collect();
    chart.draw_series(LineSeries::new(places.iter().copied(), style))?;
    match at % 3 {
        0 => chart.draw_series(places.iter().map(|&xy| Circle::new(xy, 4, color.filled())))?,
        1 => chart
            .draw_series(places.iter().map(|&xy| TriangleMarker::new(xy, 6, color.filled())))?,
        _ => chart.draw_series(places.iter().map(|&xy| Cross::new(xy, 4, style)))?,
    };
    let points = series.points.iter().zip(&places);
    draw_ranges(chart, points.map(|(point, place)| (place.0, point)), style)
}

fn draw_bars(
    chart: &mut Chart<'_, '_>,
    at: usize,
    series: &PlotSeries,
    count: usize,
) -> DrawResult {
    let color = SERIES_COLORS[color_index(at)];
    let width = BARS_WIDTH / count as f64;
    let left = |point: &PlotPoint| point.x - BARS_WIDTH / 2.0 + width * at as f64;
    let bars = series.points.iter().map(|point| {
        let corners = [(left(point), 0.0), (left(point) + width * 0.94, point.y)];
        Rectangle::new(corners, color.filled())
    });
    chart.draw_series(bars)?;
    let middles = series.points.iter().map(|point| (left(point) + width * 0.47, point));
    draw_ranges(chart, middles, AXIS.stroke_width(2))
}

/// Draws the least and the greatest value of repetitions.
fn draw_ranges<'p>(
    chart: &mut Chart<'_, '_>,
    points: impl Iterator<Item = (f64, &'p PlotPoint)>,
    style: ShapeStyle,
) -> DrawResult {
    let bars = points.filter_map(|(x, point)| {
        let (low, high) = point.range?;
        Some(ErrorBar::new_vertical(x, low, point.y, high, style, 8))
    });
    chart.draw_series(bars)?;
    Ok(())
}

/// Returns the names of categories in lines that fit between their neighbors.
fn category_lines(names: &[String]) -> Vec<Vec<String>> {
    let width = SIZE.0 - MARGIN - MARGIN_RIGHT - LABELS_LEFT;
    let characters = |count: usize| width as usize / count / CHARACTER_WIDTH as usize;
    let wrapped = |name: &String| wrapped(name, characters(names.len()));
    names.iter().map(wrapped).collect()
}

/// Divides a text at spaces and hyphens into lines of at most this many characters, if its words
/// are not longer.
fn wrapped(text: &str, characters: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_inclusive([' ', '-']) {
        let Some(line) = lines.last_mut() else { unreachable!("there is a first line") };
        let len = line.chars().count() + word.trim_end().chars().count();
        if line.is_empty() || len <= characters {
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.iter_mut().for_each(|line| line.truncate(line.trim_end().len()));
    lines
}

/// Returns the range of the y axis: from zero, with room above the greatest value.
fn y_range(data: &PlotData) -> (f64, f64) {
    let points = data.series.iter().flat_map(|series| &series.points);
    let highest = points.map(|point| point.range.map_or(point.y, |(_, high)| high.max(point.y)));
    let highest = highest.fold(0.0, f64::max);
    (0.0, if highest > 0.0 { highest * 1.08 } else { 1.0 })
}

/// The x axis: numbers, or positions that have names.
struct XAxis<'a> {
    data: &'a PlotData,
    /// Values of x, if they are at equal distances.
    steps: Vec<f64>,
}

impl<'a> XAxis<'a> {
    fn new(plot: &ItemPlot, data: &'a PlotData) -> Self {
        let points = data.series.iter().flat_map(|series| &series.points);
        let mut steps: Vec<f64> = points.map(|point| point.x).collect();
        steps.sort_by(f64::total_cmp);
        steps.dedup();
        steps.retain(|_| plot.x_steps && plot.kind == PlotKind::Line);
        Self { data, steps }
    }

    /// Returns the position of a value on the axis.
    fn place(&self, x: f64) -> f64 {
        self.steps.iter().position(|step| *step == x).map_or(x, |at| at as f64)
    }

    /// Returns the number of named positions.
    fn names(&self) -> usize {
        self.steps.len().max(self.data.categories.len())
    }

    fn range(&self) -> (f64, f64) {
        if self.names() > 0 {
            return (-0.5, self.names() as f64 - 0.5);
        }
        let points = self.data.series.iter().flat_map(|series| &series.points);
        let (low, high) = points.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), point| {
            (low.min(point.x), high.max(point.x))
        });
        let margin = if high > low { (high - low) * 0.04 } else { 0.5 };
        (low - margin, high + margin)
    }

    /// Returns the number of labels that there is room for.
    fn labels(&self) -> usize {
        match self.names() {
            0 => 7,
            // Labels are at whole numbers; those at halves are empty.
            names => names * 2,
        }
    }

    fn label(&self, place: f64) -> String {
        if self.names() == 0 {
            return short_number(place);
        }
        let mut steps = self.steps.iter().enumerate();
        let step = steps.find(|(at, _)| (*at as f64 - place).abs() < 1e-6);
        match step {
            Some((_, step)) => short_number(*step),
            None => self.data.category_at(place).unwrap_or_default().to_owned(),
        }
    }
}

/// Returns a number of three digits, with a prefix of the SI for large ones.
pub(super) fn short_number(value: f64) -> String {
    let (scaled, prefix) = match value.abs() {
        1e9.. => (value / 1e9, "G"),
        1e6.. => (value / 1e6, "M"),
        1e4.. => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let decimals = match scaled.abs() {
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    let text = format!("{scaled:.decimals$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{text}{prefix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(categories: &[&str]) -> PlotData {
        let point = |x, y| PlotPoint { x, y, range: Some((y * 0.9, y * 1.1)) };
        let series = |name: &str, y| PlotSeries {
            name: name.to_owned(),
            points: vec![point(0.0, y), point(1.0, 2.0 * y)],
        };
        PlotData {
            categories: categories.iter().map(|&name| name.to_owned()).collect(),
            series: vec![series("a", 1.0), series("b & c", 3.0), series("c", 5.0)],
        }
    }

    #[test]
    fn long_names_are_in_several_lines() {
        assert_eq!(wrapped("bitmap wheel, shared", 13), ["bitmap wheel,", "shared"]);
        assert_eq!(wrapped("https-256k", 7), ["https-", "256k"]);
        assert_eq!(wrapped("persistent", 8), ["persistent"]);
        assert_eq!(wrapped("", 8), [""]);
        let names = ["list wheel, one per thread", "hash wheel, behind a mutex", "c", "d"];
        let plot = ItemPlot { kind: PlotKind::Bar, ..ItemPlot::default() };
        let svg = draw(&plot, &data(&names)).unwrap();
        let texts: Vec<_> = svg.lines().map(str::trim).collect();
        for line in ["list wheel,", "one per", "thread", "behind a", "mutex", "c"] {
            assert!(texts.contains(&line), "{line}: {texts:?}");
        }
    }

    /// Returns the names of an SVG's elements, after checking that they are nested correctly.
    fn elements(svg: &str) -> Vec<String> {
        let (mut open, mut names) = (Vec::new(), Vec::new());
        for tag in svg.split('<').skip(1) {
            let (tag, _) = tag.split_once('>').expect("an end");
            let name = tag.trim_start_matches('/').split([' ', '/', '\n']).next().unwrap();
            if tag.starts_with('/') {
                assert_eq!(open.pop().as_deref(), Some(name));
            } else {
                names.push(name.to_owned());
                if !tag.ends_with('/') {
                    open.push(name.to_owned());
                }
            }
        }
        assert!(open.is_empty(), "{open:?}");
        names
    }

    #[test]
    fn drawings_are_well_formed() {
        for kind in [PlotKind::Line, PlotKind::Bar] {
            for x_steps in [false, true] {
                let plot = ItemPlot {
                    kind,
                    x_steps,
                    x_label: "Loss <%>".to_owned(),
                    y_label: "Mbit/s".to_owned(),
                    ..ItemPlot::default()
                };
                let svg = draw(&plot, &data(&["one & two", "three"])).unwrap();
                let elements = elements(&svg);
                assert!(svg.starts_with("<svg class=\"plot\" role=\"img\" "), "{svg:.80}");
                assert!(svg.contains("Loss &lt;%&gt;") && svg.contains("Mbit/s"));
                for color in ["#0072B2", "#D55E00", "#009E73"] {
                    assert!(svg.contains(color), "{color}: {svg}");
                }
                let count = |name: &str| elements.iter().filter(|one| *one == name).count();
                match kind {
                    PlotKind::Line => assert!(count("circle") >= 2 && count("polyline") >= 3),
                    PlotKind::Bar => assert!(count("rect") >= 6 && svg.contains("one &amp; two")),
                }
            }
        }
    }

    #[test]
    fn a_single_point_and_zeros_can_be_drawn() {
        let point = PlotPoint { x: 0.0, y: 0.0, range: None };
        let series = vec![PlotSeries { name: String::new(), points: vec![point] }];
        let data = PlotData { categories: Vec::new(), series };
        assert!(draw(&ItemPlot::default(), &data).is_ok());
        assert!(draw(&ItemPlot { x_steps: true, ..ItemPlot::default() }, &data).is_ok());
    }

    #[test]
    fn numbers_are_short() {
        let numbers = [0.0, 0.25, 1.0, 12.34, 100.0, 4000.0, 16384.0, 131_072.0, -3e9];
        let texts = numbers.map(short_number);
        assert_eq!(texts, ["0", "0.25", "1", "12.3", "100", "4000", "16.4k", "131k", "-3G"]);
    }
}
