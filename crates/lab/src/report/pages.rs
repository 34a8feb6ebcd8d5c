//! Contents of the report's pages.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::catalogue::{ItemPlot, ItemStatus, PaperCatalogue, PaperItem, PlotKind};
use super::page::{HtmlCell, escape, number_text, page, table};
use super::plot;
use super::plot_data::{PlotData, plot_data};
use super::results::{RunResult, flatten};
use super::runs::{AimVerdict, ReportRun};

/// Contents of a report.
pub(super) struct ReportContents<'a> {
    pub(super) runs: &'a [ReportRun],
    pub(super) papers: &'a [PaperCatalogue],
    pub(super) results: &'a BTreeMap<String, RunResult>,
    /// Machine, versions and options.
    pub(super) machine: &'a Value,
}

impl ReportContents<'_> {
    /// Returns all pages: file names and contents.
    ///
    /// # Errors
    /// Returns the reason for which a plot cannot be drawn.
    pub(super) fn pages(&self) -> Result<Vec<(String, String)>, String> {
        let mut pages = Vec::new();
        let mut add = |file: &str, heading: &str, body: String| {
            pages.push((file.to_owned(), page(file, heading, &body)));
        };
        add("index.html", "Outboard: measured results", self.summary());
        for paper in self.papers {
            let file = format!("{}.html", paper.paper);
            add(&file, &paper.title, self.paper(paper)?);
        }
        add("checklist.html", "Figures and tables of the papers", self.checklist());
        add("model.html", "Predictions of the model", predicted());
        add("machine.html", "Machine and runs", self.machine_and_runs());
        Ok(pages)
    }

    fn summary(&self) -> String {
        let mut html = String::from(
            "<p>Headline figures of every benchmark. Ratios compare settings of one run; cycles, \
             rates and times are of this machine.</p>\n",
        );
        html += &table(&["benchmark", "figure", "value"], &self.headlines());
        html += "<h2>Aims</h2>\n";
        html += &table(&["benchmark", "aim", "figure", "bound", "value", ""], &self.aims());
        let failed = self.results.iter().filter_map(|(name, result)| {
            let reason = result.failure.as_deref()?;
            Some(vec![HtmlCell::text(name), HtmlCell::with_class("failed", reason)])
        });
        let failed: Vec<_> = failed.collect();
        if !failed.is_empty() {
            html += "<h2>Benchmarks that failed</h2>\n";
            html += &table(&["benchmark", "reason"], &failed);
        }
        html
    }

    fn headlines(&self) -> Vec<Vec<HtmlCell>> {
        let mut rows = Vec::new();
        for run in self.runs {
            let name = || HtmlCell::html(format!("<code>{}</code>", escape(&run.name)));
            let Some(result) = self.results.get(&run.name) else {
                let there = self.machine["cores"].as_u64();
                let reason = match there.is_some_and(|there| there < run.cores as u64) {
                    true => format!("not run: it needs {} cores", run.cores),
                    false => "not run".to_owned(),
                };
                let missing = HtmlCell::with_class("muted", &reason);
                rows.push(vec![name(), missing, HtmlCell::value(&Value::Null)]);
                continue;
            };
            let median = result.median();
            let figures = flatten(&median["headline"]);
            if figures.is_empty() {
                let reason = result.failure.as_deref().unwrap_or("no headline");
                let reason = HtmlCell::with_class("failed", reason);
                rows.push(vec![name(), reason, HtmlCell::value(&Value::Null)]);
            }
            rows.extend(
                figures.into_iter().map(|(path, value)| {
                    vec![name(), HtmlCell::text(&path), HtmlCell::value(value)]
                }),
            );
        }
        rows
    }

    fn aims(&self) -> Vec<Vec<HtmlCell>> {
        let mut rows = Vec::new();
        for run in self.runs {
            let result = self.results.get(&run.name).map_or(Value::Null, RunResult::median);
            rows.extend(run.aim.iter().map(|aim| {
                let verdict = match aim.verdict(&result) {
                    AimVerdict::Met => HtmlCell::with_class("met", "met"),
                    AimVerdict::Missed => HtmlCell::with_class("missed", "missed"),
                    AimVerdict::NotMeasured => HtmlCell::with_class("muted", "not measured"),
                };
                vec![
                    HtmlCell::text(&run.name),
                    HtmlCell::text(&aim.text),
                    HtmlCell::text(&aim.value),
                    HtmlCell::text(&aim.bound()),
                    HtmlCell::value(super::results::value_at(&result, &aim.value)),
                    verdict,
                ]
            }));
        }
        rows
    }

    fn paper(&self, paper: &PaperCatalogue) -> Result<String, String> {
        let mut html = String::new();
        let (absent, present): (Vec<_>, Vec<_>) =
            paper.items.iter().partition(|item| item.status == ItemStatus::NotApplicable);
        for item in present {
            let _ = write!(
                html,
                "<h2 id=\"{id}\">{id}: {title}</h2>\n<p><span class=\"met\">{status}</span>. \
                 {note}</p>\n",
                id = escape(&item.id),
                title = escape(&item.title),
                status = item.status.text(),
                note = escape(&item.note),
            );
            html += &self.plots(item)?;
            html += &paper_numbers(item);
            html += &self.compared(item);
        }
        html += "<h2>Not applicable</h2>\n";
        let rows = absent.into_iter().map(|item| {
            let id = format!("<span id=\"{id}\">{id}</span>", id = escape(&item.id));
            vec![HtmlCell::html(id), HtmlCell::text(&item.title), HtmlCell::text(&item.note)]
        });
        html += &table(&["item", "subject", "reason"], &rows.collect::<Vec<_>>());
        Ok(html)
    }

    fn plots(&self, item: &PaperItem) -> Result<String, String> {
        let mut html = String::new();
        for plot in &item.plot {
            let result = self.results.get(&plot.run);
            let Some(data) = result.and_then(|result| plot_data(plot, result)) else {
                let reason = result.and_then(|result| result.failure.as_deref());
                let reason = reason.unwrap_or("the run left out these rows, or was not made");
                let _ = writeln!(
                    html,
                    "<figure><figcaption class=\"muted\">No result of <code>{}</code>: {}\
                     </figcaption></figure>",
                    escape(&plot.run),
                    escape(reason)
                );
                continue;
            };
            let _ = writeln!(
                html,
                "<figure>{}{}<figcaption>Ours: <code>{}</code></figcaption>{}</figure>",
                legend(&data),
                plot::draw(plot, &data)?,
                escape(&plot.run),
                numbers(plot, &data),
            );
        }
        Ok(if html.is_empty() { html } else { format!("<div class=\"plots\">{html}</div>\n") })
    }

    fn compared(&self, item: &PaperItem) -> String {
        if item.compare.is_empty() {
            return String::new();
        }
        let medians: BTreeMap<_, _> =
            self.results.iter().map(|(name, result)| (name.as_str(), result.median())).collect();
        let rows = item.compare.iter().map(|figure| {
            vec![
                HtmlCell::text(&figure.what),
                HtmlCell::text(&figure.paper),
                HtmlCell::value(figure.ours(|run| medians.get(run))),
                HtmlCell::html(format!("<code>{}</code>", escape(&figure.ours))),
            ]
        });
        table(&["figure", "paper", "ours", "source"], &rows.collect::<Vec<_>>())
    }

    fn checklist(&self) -> String {
        let mut html = String::new();
        for paper in self.papers {
            let count = |status| paper.items.iter().filter(|item| item.status == status).count();
            let _ = write!(
                html,
                "<h2>{}</h2>\n<p>{} reproduced, {} predicted, {} not applicable.</p>\n",
                escape(&paper.title),
                count(ItemStatus::Reproduced),
                count(ItemStatus::Predicted),
                count(ItemStatus::NotApplicable),
            );
            let rows = paper.items.iter().map(|item| {
                let link =
                    format!("<a href=\"{p}.html#{i}\">{i}</a>", p = paper.paper, i = item.id);
                vec![
                    HtmlCell::html(link),
                    HtmlCell::text(&item.title),
                    HtmlCell::text(item.status.text()),
                    HtmlCell::text(&item.note),
                ]
            });
            html += &table(
                &["item", "subject", "state", "differences, or reason"],
                &rows.collect::<Vec<_>>(),
            );
        }
        html
    }

    fn machine_and_runs(&self) -> String {
        let facts = flatten(self.machine).into_iter();
        let facts = facts.map(|(name, value)| vec![HtmlCell::text(&name), HtmlCell::value(value)]);
        let mut html = table(&["", ""], &facts.collect::<Vec<_>>());
        html += "<h2>Runs</h2>\n";
        let rows = self.runs.iter().map(|run| {
            let result = self.results.get(&run.name);
            let arguments = result.map(|result| result.arguments.join(" "));
            let files = result
                .map(|_| format!("<a href=\"raw/{name}.json\">JSON</a>", name = escape(&run.name)));
            vec![
                HtmlCell::text(&run.name),
                HtmlCell::text(&run.question),
                HtmlCell::html(format!("<code>{}</code>", escape(&arguments.unwrap_or_default()))),
                HtmlCell::value(&result.map_or(Value::Null, |one| one.repetitions.len().into())),
                HtmlCell::value(&result.map_or(Value::Null, |one| one.seconds.into())),
                HtmlCell::html(files.unwrap_or_default()),
            ]
        });
        let heads = ["benchmark", "question", "arguments", "repetitions", "seconds", "results"];
        html + &table(&heads, &rows.collect::<Vec<_>>())
    }
}

/// Returns the model's predictions for the papers' set-ups, beside their results.
fn predicted() -> String {
    let predictions = crate::model::predictions();
    let mut html = String::from(
        "<p>Bounds by what a machine offers and a unit of work needs, and shares of cycles; the \
         model has no contention. All of its predictions are here.</p>\n",
    );
    if let Some((mean, worst)) = crate::model::errors_of(&predictions) {
        let count = predictions.len();
        let _ = writeln!(
            html,
            "<p>{count} predictions: mean error {mean:.1} %, worst {worst:.1} %.</p>"
        );
    }
    let rows = predictions.iter().map(|one| {
        let link = format!("<a href=\"{p}.html#{i}\">{p}/{i}</a>", p = one.paper, i = one.item);
        vec![
            HtmlCell::html(link),
            HtmlCell::text(&one.what),
            HtmlCell::value(&one.predicted.into()),
            HtmlCell::value(&one.published.into()),
            HtmlCell::text(&one.unit),
            HtmlCell::text(&format!("{:+.1} %", one.error_percent())),
            HtmlCell::text(&one.reason),
            HtmlCell::text(&one.inputs),
        ]
    });
    let heads = ["item", "set-up", "model", "paper", "unit", "error", "bound by", "inputs"];
    html + &table(&heads, &rows.collect::<Vec<_>>())
}

/// Returns the names of series with their colors and markers.
fn legend(data: &PlotData) -> String {
    if data.series.len() < 2 {
        return String::new();
    }
    let is_bar = !data.categories.is_empty();
    let entry = |(at, series): (usize, &super::plot_data::PlotSeries)| {
        let marker = if is_bar { "■" } else { ["●", "▲", "✕"][at % 3] };
        let (color, name) = (plot::color_index(at), escape(&series.name));
        format!("<li><span class=\"series-{color}\">{marker}</span> {name}</li>")
    };
    let entries = data.series.iter().enumerate().map(entry);
    format!("<ul class=\"legend\">{}</ul>", entries.collect::<String>())
}

/// Returns the numbers of a plot as a table, closed at first.
fn numbers(plot: &ItemPlot, data: &PlotData) -> String {
    let x = |x: f64| match plot.kind {
        PlotKind::Bar => data.category_at(x).unwrap_or_default().to_owned(),
        PlotKind::Line => plot::short_number(x),
    };
    let rows = data.series.iter().flat_map(|series| {
        series.points.iter().map(|point| {
            let range = point
                .range
                .map(|(low, high)| format!(" ({} to {})", number_text(low), number_text(high)));
            vec![
                HtmlCell::text(&series.name),
                HtmlCell::text(&x(point.x)),
                HtmlCell::text(&(number_text(point.y) + &range.unwrap_or_default())),
            ]
        })
    });
    let heads = ["series", plot.x_label.as_str(), plot.y_label.as_str()];
    let table = table(&heads, &rows.collect::<Vec<_>>());
    format!("<details><summary>Numbers</summary>{table}</details>")
}

/// Returns the numbers that the paper states.
fn paper_numbers(item: &PaperItem) -> String {
    let rows = item.paper_series.iter().flat_map(|series| {
        let points = series.x.iter().zip(&series.y);
        points.map(|(x, y)| {
            vec![HtmlCell::text(&series.name), HtmlCell::value(x), HtmlCell::value(&(*y).into())]
        })
    });
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() { String::new() } else { table(&["paper", "at", "value"], &rows) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::catalogue::all_papers;
    use crate::report::results::tests::result;
    use crate::report::runs::all_runs;
    use serde_json::json;

    #[test]
    fn pages_have_headlines_plots_and_failures() {
        let row = |way: &str, rate: f64, full: f64| {
            let mut row = json!({ "side": "Receive", "fault": "Loss", "rate": rate });
            (row["way"], row["full"]) = (way.into(), full.into());
            row
        };
        let loss = json!({
            "rows": [row("Ours", 0.0, 1.0), row("Ours", 0.05, 0.99), row("Paper", 0.05, 0.3)],
            "headline": { "ours": { "full_at_5_loss": 0.99 }, "text": "<b>" },
        });
        let mut failed = result(Vec::new());
        failed.failure = Some("outboard-lab: needs <root>".to_owned());
        let results =
            [("tls-loss".to_owned(), result(vec![loss])), ("proxy-live".to_owned(), failed)].into();
        let (runs, papers) = (all_runs(), all_papers());
        let machine = json!({ "processor": "A & B", "cores": 2 });
        let contents =
            ReportContents { runs: &runs, papers: &papers, results: &results, machine: &machine };
        let pages: BTreeMap<_, _> = contents.pages().unwrap().into_iter().collect();
        let names: Vec<_> = super::super::page::PAGES.iter().map(|(file, _)| *file).collect();
        assert!(names.iter().all(|name| pages.contains_key(*name)) && pages.len() == names.len());

        let summary = &pages["index.html"];
        let first = summary.split("</table>").next().unwrap();
        assert!(runs.iter().all(|run| first.contains(&format!("<code>{}</code>", run.name))));
        assert!(first.contains("<td>ours.full_at_5_loss</td><td class=\"n\">0.990</td>"));
        assert!(first.contains("needs &lt;root&gt;") && first.contains("&lt;b&gt;"));
        assert!(first.contains("not run: it needs 4 cores"), "queue-balance");
        assert!(summary.contains("not measured"));
        let paper = &pages["autonomous-nic-offloads.html"];
        assert!(paper.contains("<svg class=\"plot\"") && paper.contains("id=\"fig-17\""));
        assert!(pages["machine.html"].contains("A &amp; B"));
        let items: usize = papers.iter().map(|paper| paper.items.len()).sum();
        assert_eq!(pages["checklist.html"].matches("<a href=").count(), items + names.len());
    }
}
