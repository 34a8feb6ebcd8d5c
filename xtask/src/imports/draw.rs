//! Drawings of a crate's modules: Graphviz input, or an SVG picture.
//!
//! Called by `imports --dot`, `--svg` and `--folders`. The picture has a box for each module path
//! of up to `depth` names, which stands for everything below it. Importing modules are above
//! imported ones; modules in a cycle share a layer. The pictures are for documents: their bytes
//! depend on the imports alone.

use super::cycles;
use super::graph::ImportGraph;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Sizes in pixels.
const CHARACTER: usize = 8;
const BOX_HEIGHT: usize = 26;
const GAP: usize = 16;
const LAYER_GAP: usize = 48;
const WIDTH: usize = 1200;

/// Returns all files as a directed graph in the Graphviz language.
pub(crate) fn dot(graph: &ImportGraph) -> String {
    let mut out = String::from("digraph modules {\n  node [shape=box, fontname=\"monospace\"];\n");
    for module in &graph.modules {
        let _ = writeln!(out, "  \"{}\";", label(module));
    }
    for &(from, to) in graph.imports.keys() {
        let style =
            if graph.is_import_between_unrelated(from, to) { "" } else { " [style=dotted]" };
        let (from, to) = (label(&graph.modules[from]), label(&graph.modules[to]));
        let _ = writeln!(out, "  \"{from}\" -> \"{to}\"{style};");
    }
    out + "}\n"
}

fn label(module: &[String]) -> String {
    if module.is_empty() { "crate".to_owned() } else { module.join("::") }
}

/// A box of the picture, in pixels.
struct ModuleBox {
    name: String,
    x: usize,
    y: usize,
    width: usize,
}

/// Returns the modules as a picture, without the root module, which imports everything.
pub(crate) fn svg(graph: &ImportGraph, depth: usize) -> String {
    let (names, edges) = fold(graph, depth);
    let (places, width, height) = lay_out(&names, &edges);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"monospace\" font-size=\"13\">\n<defs><marker id=\"tip\" refX=\"7\" \
         refY=\"3\" markerWidth=\"8\" markerHeight=\"6\" orient=\"auto\"><path d=\"M0 0L7 3L0 \
         6z\" fill=\"#567\"/></marker></defs>\n<rect width=\"100%\" height=\"100%\" \
         fill=\"#fff\"/>\n"
    );
    for &(from, to) in &edges {
        let (from, to) = (&places[from], &places[to]);
        let (x, y) = (from.x + from.width / 2, from.y + BOX_HEIGHT);
        let (to_x, to_y) = (to.x + to.width / 2, to.y);
        let _ = writeln!(
            out,
            "<path d=\"M{x} {y}C{x} {} {to_x} {} {to_x} {to_y}\" fill=\"none\" stroke=\"#567\" \
             stroke-opacity=\"0.6\" marker-end=\"url(#tip)\"/>",
            y + GAP,
            to_y.saturating_sub(GAP)
        );
    }
    for ModuleBox { name, x, y, width, .. } in &places {
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{BOX_HEIGHT}\" rx=\"4\" \
             fill=\"#eef3f8\" stroke=\"#345\"/><text x=\"{}\" y=\"{}\" \
             text-anchor=\"middle\">{name}</text>",
            x + width / 2,
            y + 17
        );
    }
    out + "</svg>\n"
}

/// Returns the modules of up to `depth` names, sorted, and the imports between them.
pub(crate) fn fold(graph: &ImportGraph, depth: usize) -> (Vec<String>, Vec<(usize, usize)>) {
    let folded = |module: &Vec<String>| label(&module[..module.len().min(depth)]);
    let all: BTreeSet<String> =
        graph.modules.iter().filter(|module| !module.is_empty()).map(folded).collect();
    let names: Vec<String> = all.into_iter().collect();
    let of = |file: usize| names.binary_search(&folded(&graph.modules[file])).ok();
    let edges: BTreeSet<(usize, usize)> = graph
        .imports
        .keys()
        .filter(|&&(from, to)| graph.is_import_between_unrelated(from, to))
        .filter_map(|&(from, to)| Some((of(from)?, of(to)?)))
        .filter(|(from, to)| from != to)
        .collect();
    (names, edges.into_iter().collect())
}

/// Puts each box into the layer below all boxes that import it, ordered by their positions and
/// centered. Returns the boxes, and width and height of the picture.
fn lay_out(names: &[String], edges: &[(usize, usize)]) -> (Vec<ModuleBox>, usize, usize) {
    let layers = layers(names.len(), edges);
    let width = |name: &String| name.len() * CHARACTER + GAP;
    let place = |name: &String| ModuleBox { name: name.clone(), x: 0, y: 0, width: width(name) };
    let mut places: Vec<ModuleBox> = names.iter().map(place).collect();
    let mut y = GAP;
    for layer in 0..=layers.iter().copied().max().unwrap_or(0) {
        let mut nodes: Vec<usize> =
            (0..names.len()).filter(|&node| layers[node] == layer).collect();
        nodes.sort_by_key(|&node| {
            let above = edges.iter().filter(|edge| edge.1 == node && layers[edge.0] < layer);
            let middles: Vec<usize> =
                above.map(|edge| places[edge.0].x + places[edge.0].width / 2).collect();
            middles.iter().sum::<usize>() / middles.len().max(1)
        });
        for row in rows(&nodes, &places) {
            let used: usize = row.iter().map(|&node| places[node].width + GAP).sum();
            let mut x = (WIDTH + GAP).saturating_sub(used) / 2;
            for node in row {
                (places[node].x, places[node].y) = (x, y);
                x += places[node].width + GAP;
            }
            y += BOX_HEIGHT + GAP;
        }
        y += LAYER_GAP;
    }
    (places, WIDTH, y)
}

/// Splits the nodes of a layer into rows that fit the width.
fn rows(nodes: &[usize], places: &[ModuleBox]) -> Vec<Vec<usize>> {
    let mut rows = vec![Vec::new()];
    let mut left = WIDTH;
    for &node in nodes {
        let width = places[node].width + GAP;
        if width > left {
            rows.push(Vec::new());
            left = WIDTH;
        }
        left = left.saturating_sub(width);
        if let Some(row) = rows.last_mut() {
            row.push(node);
        }
    }
    rows
}

/// Returns the layer of each node: one below the lowest node that imports it. A cycle counts as one
/// node.
fn layers(nodes: usize, edges: &[(usize, usize)]) -> Vec<usize> {
    let sets = cycles::components(nodes, edges);
    let set_of = |node: usize| sets.iter().position(|set| set.contains(&node)).unwrap_or(0);
    let of: Vec<usize> = (0..nodes).map(set_of).collect();
    let mut layers = vec![0; sets.len()];
    // As many rounds as the longest chain has nodes.
    for _ in 0..sets.len() {
        for &(from, to) in edges.iter().filter(|&&(from, to)| of[from] != of[to]) {
            layers[of[to]] = layers[of[to]].max(layers[of[from]] + 1);
        }
    }
    of.into_iter().map(|set| layers[set]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::imports::tests::graph;

    fn sample() -> ImportGraph {
        graph(&[
            ("lib.rs", "use crate::a::A;"),
            ("a.rs", "use crate::b::c::C;"),
            ("b/mod.rs", "mod c;"),
            ("b/c/d.rs", "use crate::e::E;\nuse crate::b::B;"),
            ("b/c/mod.rs", "mod d;"),
            ("e.rs", "struct E;"),
        ])
    }

    #[test]
    fn graphviz_gets_every_file_and_import() {
        let dot = dot(&sample());
        for line in ["\"a\" -> \"b::c\";", "\"b::c::d\" -> \"b\" [style=dotted];", "  \"e\";"] {
            assert!(dot.contains(line), "{line} in {dot}");
        }
    }

    #[test]
    fn importers_are_above() {
        let (names, edges) = fold(&sample(), 2);
        assert_eq!(names, ["a", "b", "b::c", "e"]);
        assert_eq!(edges, [(0, 2), (2, 3)]);
        assert_eq!(layers(4, &edges), [0, 0, 1, 2]);
        assert_eq!(layers(3, &[(0, 1), (1, 0), (1, 2)]), [0, 0, 1]);
    }

    #[test]
    fn the_picture_has_all_boxes() {
        let svg = svg(&sample(), 2);
        assert_eq!(svg.matches("<text").count(), 4);
        assert_eq!(svg.matches("marker-end").count(), 2);
        assert_eq!(super::svg(&sample(), 1).matches("<text").count(), 3);
    }
}
