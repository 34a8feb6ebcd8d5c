//! HTML pages: escaping, tables, and the frame of a page.

use std::fmt::Write as _;

use serde_json::Value;

use super::plot::short_number;

const STYLE: &str = include_str!("report.css");

/// Pages of a report, in the order of their links: file and heading.
pub(super) const PAGES: [(&str, &str); 8] = [
    ("index.html", "Summary"),
    ("autonomous-nic-offloads.html", "Autonomous NIC Offloads"),
    ("acceltcp.html", "AccelTCP"),
    ("io-tcp.html", "IO-TCP"),
    ("niquic.html", "NiQUIC"),
    ("checklist.html", "Checklist"),
    ("model.html", "Model"),
    ("machine.html", "Machine and runs"),
];

/// Returns text with the characters escaped that have a meaning in HTML and its attributes.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Returns a whole page.
pub(super) fn page(file: &str, heading: &str, body: &str) -> String {
    let link = |(to, name): &(&str, &str)| {
        let current = if *to == file { " aria-current=\"page\"" } else { "" };
        format!("<a href=\"{to}\"{current}>{name}</a>")
    };
    let links: Vec<_> = PAGES.iter().map(link).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{heading} - Outboard report</title>\n<link rel=\"icon\" href=\"data:,\">\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<nav>{}</nav>\n<main>\n<h1>{heading}</h1>\n\
         {body}</main>\n</body>\n</html>\n",
        links.join("\n"),
        heading = escape(heading),
    )
}

/// A cell of a table, with its HTML.
pub(super) struct HtmlCell {
    html: String,
    is_number: bool,
}

impl HtmlCell {
    /// Returns a cell with text.
    pub(super) fn text(text: &str) -> Self {
        Self { html: escape(text), is_number: false }
    }

    /// Returns a cell with HTML that was escaped.
    pub(super) const fn html(html: String) -> Self {
        Self { html, is_number: false }
    }

    /// Returns a cell with a value of JSON. Numbers have four digits or fewer.
    pub(super) fn value(value: &Value) -> Self {
        match value {
            Value::Null => Self { html: "-".to_owned(), is_number: true },
            Value::Number(number) => {
                Self { html: number_text(number.as_f64().unwrap_or_default()), is_number: true }
            }
            Value::String(text) => Self::text(text),
            other => Self::text(&other.to_string()),
        }
    }

    /// Returns a cell with text in a class of the style sheet.
    pub(super) fn with_class(class: &str, text: &str) -> Self {
        Self::html(format!("<span class=\"{class}\">{}</span>", escape(text)))
    }
}

/// Returns a number with about four digits.
pub(super) fn number_text(number: f64) -> String {
    match number.abs() {
        10_000.0.. => short_number(number),
        100.0.. => format!("{number:.1}"),
        0.1.. => format!("{number:.3}"),
        0.0 => "0".to_owned(),
        _ => format!("{number:.5}"),
    }
}

/// Returns a table that scrolls within its box on narrow screens.
pub(super) fn table(heads: &[&str], rows: &[Vec<HtmlCell>]) -> String {
    let is_number = |at: usize| rows.iter().any(|row| row[at].is_number);
    let class = |is_number: bool| if is_number { " class=\"n\"" } else { "" };
    let mut html = String::from("<div class=\"table\"><table>\n<tr>");
    for (at, head) in heads.iter().enumerate() {
        let _ = write!(html, "<th{}>{}</th>", class(is_number(at)), escape(head));
    }
    html.push_str("</tr>\n");
    for row in rows {
        html.push_str("<tr>");
        for cell in row {
            let _ = write!(html, "<td{}>{}</td>", class(cell.is_number), cell.html);
        }
        html.push_str("</tr>\n");
    }
    html + "</table></div>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn results_cannot_become_markup() {
        let evil = "<script>alert('x')</script>\"&";
        let escaped = "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&quot;&amp;";
        assert_eq!(escape(evil), escaped);
        let cells = vec![
            HtmlCell::text(evil),
            HtmlCell::value(&json!({ "k": evil })),
            HtmlCell::with_class("met", evil),
        ];
        let html = table(&[evil, "b", "c"], &[cells]) + &page("index.html", evil, "");
        assert!(!html.contains("<script"), "{html}");
    }

    #[test]
    fn numbers_are_aligned_and_short() {
        let cells = [json!(123_456), json!(0.123_456), json!(null), json!("text")];
        let html = table(&["a", "b", "c", "d"], &[cells.iter().map(HtmlCell::value).collect()]);
        assert!(html.contains(
            "<td class=\"n\">123k</td><td class=\"n\">0.123</td><td class=\"n\">-</td><td>text"
        ));
        assert_eq!(number_text(1234.56), "1234.6");
        assert_eq!(number_text(0.000_5), "0.00050");
    }

    #[test]
    fn pages_load_nothing() {
        for (file, heading) in PAGES {
            let html = page(file, heading, "");
            assert!(!html.contains("http:") && !html.contains("https:"), "{file}");
            assert_eq!(html.matches("aria-current").count(), 2, "{file}: link and style");
        }
    }
}
