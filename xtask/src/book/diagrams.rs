//! Mermaid blocks as SVG: state diagrams and flowcharts by Graphviz, sequences by `sequence`.
//!
//! Called by `book`. Reads the part of Mermaid that the pages use; a line that is not understood is
//! an error, so that no diagram loses an arrow in silence.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use super::sequence;

/// Replaces each Mermaid block of a page by a picture.
pub(super) fn convert(page: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if line.trim() != "```mermaid" {
            let _ = writeln!(out, "{line}");
            continue;
        }
        let block: Vec<&str> = lines.by_ref().take_while(|line| line.trim() != "```").collect();
        let svg = legible(&draw(&block)?);
        let _ = writeln!(out, "<div class=\"diagram\">{svg}</div>");
    }
    Ok(out)
}

/// Width in pixels below which a picture is not scaled down: a narrow screen scrolls instead.
const WIDTH_MIN: u32 = 640;

/// Adds a minimum width to a picture, so that its text stays legible.
fn legible(svg: &str) -> String {
    let width = svg.split_once("width=\"").and_then(|(_, rest)| rest.split_once('"'));
    let Some((width, _)) = width else { return svg.to_owned() };
    let digits: String = width.chars().take_while(char::is_ascii_digit).collect();
    let pixels = digits.parse::<u32>().unwrap_or(0) * if width.ends_with("pt") { 4 } else { 3 } / 3;
    svg.replacen("<svg", &format!("<svg style=\"min-width: {}px\"", pixels.min(WIDTH_MIN)), 1)
}

fn draw(block: &[&str]) -> Result<String, String> {
    let Some((first, rest)) = block.split_first() else { return Err("empty diagram".to_owned()) };
    match first.trim() {
        "stateDiagram-v2" => graphviz(&states(rest)?),
        "sequenceDiagram" => sequence::draw(rest),
        head if head.starts_with("flowchart") => {
            graphviz(&flowchart(head.trim_start_matches("flowchart").trim(), rest)?)
        }
        head => Err(format!("unknown kind of diagram: {head}")),
    }
}

const GRAPH: &str = "digraph { bgcolor=transparent; nodesep=0.35; ranksep=0.45;
node [shape=box, style=rounded, fontname=\"sans-serif\", fontsize=12, margin=\"0.12,0.06\"];
edge [fontname=\"sans-serif\", fontsize=10, arrowsize=0.7];\n";

/// Translates `A --> B: label` lines. Edges between the same states share an arrow.
fn states(lines: &[&str]) -> Result<String, String> {
    let mut edges: Vec<(String, String, Vec<String>)> = Vec::new();
    for line in lines.iter().map(|line| line.trim()).filter(|line| !line.is_empty()) {
        let unknown = || format!("unknown line: {line}");
        let (edge, label) = line.split_once(": ").unwrap_or((line, ""));
        let (from, to) = edge.split_once(" --> ").ok_or_else(unknown)?;
        let (from, to) = (from.trim().to_owned(), to.trim().to_owned());
        match edges.iter_mut().find(|(a, b, _)| *a == from && *b == to) {
            Some((_, _, labels)) => labels.push(label.to_owned()),
            None => edges.push((from, to, vec![label.to_owned()])),
        }
    }
    let mut graph = GRAPH.to_owned();
    for (from, to, labels) in edges {
        let label = labels.join("\\n");
        let name = |text: &str| if text == "[*]" { "●".to_owned() } else { text.to_owned() };
        let _ = writeln!(
            graph,
            "{} -> {} [label={}];",
            quoted(&name(&from)),
            quoted(&name(&to)),
            quoted(&label)
        );
    }
    Ok(graph + "}\n")
}

/// Translates nodes with texts, and edges with or without labels.
fn flowchart(direction: &str, lines: &[&str]) -> Result<String, String> {
    let mut graph = format!("{GRAPH}rankdir={direction};\n");
    for line in lines.iter().map(|line| line.trim()).filter(|line| !line.is_empty()) {
        let (both, line) = (line.contains("<-->"), line.replace("<-->", "-->"));
        let (from, label, to) = split_edge(&line).ok_or_else(|| format!("unknown line: {line}"))?;
        let (from, to) = (node(from, &mut graph)?, node(to, &mut graph)?);
        let ends = if both { ", dir=both" } else { "" };
        let _ = writeln!(
            graph,
            "{} -> {} [label={}{ends}];",
            quoted(&from),
            quoted(&to),
            quoted(label)
        );
    }
    Ok(graph + "}\n")
}

/// Splits `A --> B`, `A -->|label| B` and `A -- label --> B`.
fn split_edge(line: &str) -> Option<(&str, &str, &str)> {
    let (left, right) = line.split_once("-->")?;
    if let Some(rest) = right.strip_prefix('|') {
        let (label, to) = rest.split_once('|')?;
        return Some((left.trim(), label.trim(), to.trim()));
    }
    match left.split_once(" -- ") {
        Some((from, label)) => Some((from.trim(), label.trim().trim_matches('"'), right.trim())),
        None => Some((left.trim(), "", right.trim())),
    }
}

/// Returns the name of a node, and declares its text if the line has one: `id[text]`.
fn node(text: &str, graph: &mut String) -> Result<String, String> {
    let Some(at) = text.find(['[', '(', '{']) else { return Ok(text.to_owned()) };
    let (name, label) = text.split_at(at);
    let label = label.trim_matches(['[', ']', '(', ')', '{', '}', '"']);
    if name.is_empty() || label.is_empty() {
        return Err(format!("unknown node: {text}"));
    }
    let shape = if text.contains("[(") { ", shape=cylinder, style=solid" } else { "" };
    let label = label.replace("<br>", "\\n").replace("<br/>", "\\n");
    let _ = writeln!(graph, "{} [label={}{shape}];", quoted(name), quoted(&label));
    Ok(name.to_owned())
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\\\""))
}

/// Lays a graph out, and returns it as SVG without a prolog and without colors.
fn graphviz(graph: &str) -> Result<String, String> {
    let missing = |e: std::io::Error| {
        format!("cannot run dot of Graphviz: {e}; install it with scripts/setup.sh test")
    };
    let child =
        Command::new("dot").arg("-Tsvg").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.map_err(missing)?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(graph.as_bytes()).map_err(missing)?;
    }
    let output = child.wait_with_output().map_err(missing)?;
    let svg = String::from_utf8_lossy(&output.stdout).into_owned();
    let start = svg.find("<svg").filter(|_| output.status.success());
    let svg = &svg[start.ok_or_else(|| format!("dot failed on {graph}"))?..];
    // Blank lines would end the block of HTML in Markdown.
    let lines = svg.lines().filter(|line| !line.trim().is_empty() && !line.starts_with("<!--"));
    let svg: String = lines.collect::<Vec<_>>().join("\n");
    Ok(svg.replace("fill=\"black\" stroke=\"black\"", "class=\"arrow\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_understood() {
        assert_eq!(split_edge("A --> B"), Some(("A", "", "B")));
        assert_eq!(split_edge("A -->|x y| B"), Some(("A", "x y", "B")));
        assert_eq!(split_edge("A -- \"x (y)\" --> B[b]"), Some(("A", "x (y)", "B[b]")));
        assert_eq!(split_edge("A B"), None);
    }

    #[test]
    fn wide_pictures_may_shrink_to_a_legible_width() {
        assert_eq!(
            legible("<svg width=\"90pt\">"),
            "<svg style=\"min-width: 120px\" width=\"90pt\">"
        );
        assert!(legible("<svg width=\"900\">").contains("min-width: 640px"));
    }

    #[test]
    fn states_share_arrows() {
        let graph = states(&["  A --> B: x", "  A --> B: y", "  B --> [*]"]).unwrap();
        assert!(graph.contains("\"A\" -> \"B\" [label=\"x\\ny\"];"), "{graph}");
        assert!(states(&["note left of A"]).is_err());
    }

    #[test]
    fn other_text_is_unchanged() {
        assert_eq!(convert("# A\n\n```sh\nb\n```\n"), Ok("# A\n\n```sh\nb\n```\n".to_owned()));
        assert!(convert("```mermaid\npie\n```\n").is_err());
    }
}
