//! Import cycles between files.
//!
//! Used by the check and by the drawing in layers. A crate has some hundred files, so reachability
//! is computed for every pair.

use super::graph::ImportGraph;

/// Returns the sets of files that import each other in a cycle, each sorted. Imports between a
/// module and its descendants do not count.
pub(crate) fn find(graph: &ImportGraph) -> Vec<Vec<usize>> {
    let strangers = graph.imports.keys().copied();
    let edges: Vec<_> =
        strangers.filter(|&(a, b)| graph.is_import_between_unrelated(a, b)).collect();
    let mut sets = components(graph.files.len(), &edges);
    sets.retain(|set| set.len() > 1);
    sets
}

/// Returns the strongly connected components of a graph.
pub(crate) fn components(nodes: usize, edges: &[(usize, usize)]) -> Vec<Vec<usize>> {
    let reach: Vec<Vec<bool>> = (0..nodes).map(|from| reachable(from, nodes, edges)).collect();
    let mut sets = Vec::<Vec<usize>>::new();
    for (node, reached) in reach.iter().enumerate() {
        let same = |set: &&mut Vec<usize>| reached[set[0]] && reach[set[0]][node];
        match sets.iter_mut().find(same) {
            Some(set) => set.push(node),
            None => sets.push(vec![node]),
        }
    }
    sets
}

fn reachable(from: usize, nodes: usize, edges: &[(usize, usize)]) -> Vec<bool> {
    let mut seen = vec![false; nodes];
    let mut open = vec![from];
    while let Some(node) = open.pop() {
        for &(_, to) in edges.iter().filter(|edge| edge.0 == node) {
            if !core::mem::replace(&mut seen[to], true) {
                open.push(to);
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::imports::tests::graph;

    #[test]
    fn components_are_circles_and_single_nodes() {
        let edges = [(0, 1), (1, 2), (2, 0), (2, 3), (4, 3), (4, 5), (5, 4)];
        assert_eq!(components(7, &edges), [vec![0, 1, 2], vec![3], vec![4, 5], vec![6]]);
    }

    #[test]
    fn a_module_and_its_descendants_are_one() {
        let family = [("a/mod.rs", "use crate::a::b::B;"), ("a/b.rs", "use super::A;")];
        assert_eq!(find(&graph(&family)), [[0; 0]; 0]);
        let siblings = [
            ("a/b.rs", "use super::c::C;"),
            ("a/c.rs", "use super::d::D;"),
            ("a/d.rs", "use crate::a::b::B;"),
            ("a/mod.rs", "use crate::a::b::B;"),
        ];
        assert_eq!(find(&graph(&siblings)), [[0, 1, 2]]);
    }
}
