//! Import rules within a crate: no cycles between files, and no imports in forbidden directions.
//!
//! Called by `ci`, and by `main` to draw a crate's modules. Reads the imports between the files
//! below a crate's `src` (`graph`) and finds cycles (`cycles`). A module and its descendants may
//! import each other, because they are one unit in several files. A re-exported item counts as part
//! of the module that re-exports it. Test code is ignored, and so are imports from other crates,
//! which `deps` checks.

mod cycles;
mod draw;
mod graph;

use crate::report::CheckReport;
use crate::tidy::{self, RustSource};
use crate::tree;
use graph::ImportGraph;
use std::process::ExitCode;

/// Exception for a crate that still has files in cycles.
struct Allowance {
    krate: &'static str,
    /// Number of files in cycles; may decrease, never increase.
    files: usize,
    why: &'static str,
}

const fn allow(krate: &'static str, files: usize, why: &'static str) -> Allowance {
    Allowance { krate, files, why }
}

/// Crates that are not listed must have no cycles.
const ALLOWANCES: &[Allowance] = &[
    allow("abi", 3, "contexts of layer-5 protocols refer to NVMe/TCP, inspection, and vice versa"),
    allow("apps", 12, "parts of the NVMe target and initiator use each other's types"),
    allow("io", 2, "two halves of one type"),
    allow("outboard", 6, "subcommands and their options"),
    allow("quic", 2, "a connection and its packet transmission"),
    allow("sim", 20, "options of a run refer to everything that they control"),
    allow("stack", 4, "the builder and the built type refer to each other"),
];

/// Crates whose top-level modules, with everything below them, are layers without import cycles.
const LAYERED: &[&str] = &["host"];

/// A forbidden direction of direct imports between files of a crate.
struct ForbiddenDirection {
    /// Importing module and everything below it, as a path below `crates` without `.rs`.
    from: &'static str,
    /// Module that must not be imported, and everything below it.
    to: &'static str,
    why: &'static str,
}

const DIRECTIONS: &[ForbiddenDirection] = &[
    ForbiddenDirection {
        from: "host/src/tcp",
        to: "host/src/l5p",
        why: "TCP must not depend on layer-5 protocols",
    },
    ForbiddenDirection {
        from: "nic/src/engine",
        to: "nic/src/device",
        why: "an engine uses only what it is passed, and must not depend on the device",
    },
];

/// Runs the check on the tree.
///
/// # Errors
/// Reports a tree that cannot be read.
pub(crate) fn run() -> Result<CheckReport, String> {
    let files = tree::files()?;
    let sources = tidy::sources(&files)?;
    let mut report = CheckReport::default();
    let mut imports = 0;
    for krate in tree::crates(&files) {
        let graph = graph_of(&sources, &krate);
        imports += graph.imports.len();
        check_cycles(&krate, &graph, allowance(&krate), &mut report);
        check_directions(&graph, DIRECTIONS, &mut report);
        if LAYERED.contains(&krate.as_str()) {
            check_folders(&krate, &graph, &mut report);
        }
    }
    report.summary = format!("{imports} imports");
    Ok(report)
}

/// Draws the modules of a crate: `--dot CRATE` each file, `--svg CRATE` modules of up to two names,
/// `--folders CRATE` top-level modules.
pub(crate) fn draw(args: &[&str]) -> Result<ExitCode, String> {
    let (format, krate) = match args {
        [format @ ("--dot" | "--svg" | "--folders"), krate] => (*format, tree::folder(krate)),
        _ => return Err("imports: expected --dot, --svg or --folders, and a crate".to_owned()),
    };
    let files = tree::files()?;
    if !tree::crates(&files).iter().any(|name| name == krate) {
        return Err(format!("crates/{krate} does not exist"));
    }
    let graph = graph_of(&tidy::sources(&files)?, krate);
    let drawn = match format {
        "--dot" => draw::dot(&graph),
        "--svg" => draw::svg(&graph, 2),
        _ => draw::svg(&graph, 1),
    };
    print!("{drawn}");
    Ok(ExitCode::SUCCESS)
}

fn graph_of(sources: &[RustSource], krate: &str) -> ImportGraph {
    ImportGraph::new(sources, &format!("crates/{krate}/src"))
}

fn allowance(krate: &str) -> usize {
    ALLOWANCES.iter().find(|allowance| allowance.krate == krate).map_or(0, |a| a.files)
}

/// Compares the number of files in cycles with the crate's allowance.
fn check_cycles(krate: &str, graph: &ImportGraph, allowed: usize, report: &mut CheckReport) {
    let cycles = cycles::find(graph);
    let found: usize = cycles.iter().map(Vec::len).sum();
    let table = "xtask/src/imports/mod.rs";
    if found < allowed {
        let why = ALLOWANCES.iter().find(|a| a.krate == krate).map_or("", |a| a.why);
        let message =
            format!("{krate} has only {found} files in import cycles; lower its allowance ({why})");
        report.warning(table, 0, message);
    }
    if found <= allowed {
        return;
    }
    for cycle in &cycles {
        let mut lines = Vec::new();
        for (&(from, to), at) in &graph.imports {
            if graph.is_import_between_unrelated(from, to)
                && cycle.contains(&from)
                && cycle.contains(&to)
            {
                let at: Vec<_> = at.iter().map(usize::to_string).collect();
                let (from, to) = (&graph.files[from], &graph.files[to]);
                lines.push(format!("  {from}:{} imports {to}", at.join(",")));
            }
        }
        let message = format!(
            "import cycle of {} files ({krate} may have {allowed} files in cycles); move items \
                 that \
             both sides need to a module that imports neither\n{}",
            cycle.len(),
            lines.join("\n")
        );
        let first = cycle.first().map_or("", |&file| graph.files[file].as_str());
        report.error(first, 0, message);
    }
}

fn check_directions(graph: &ImportGraph, rules: &[ForbiddenDirection], report: &mut CheckReport) {
    for rule in rules {
        for (&(from, to), lines) in &graph.imports {
            let (from, to) = (&graph.files[from], &graph.files[to]);
            if !is_below(from, rule.from) || !is_below(to, rule.to) {
                continue;
            }
            let message = format!("must not import {to}: {}", rule.why);
            report.error(from, lines[0], message);
        }
    }
}

/// Finds cycles between top-level modules.
fn check_folders(krate: &str, graph: &ImportGraph, report: &mut CheckReport) {
    let (names, edges) = draw::fold(graph, 1);
    for circle in cycles::components(names.len(), &edges).iter().filter(|set| set.len() > 1) {
        let names: Vec<&str> = circle.iter().map(|&node| names[node].as_str()).collect();
        let message = format!(
            "import cycle of the modules {}; see `xtask imports --folders {krate}`",
            names.join(", ")
        );
        report.error(&format!("crates/{krate}/src/lib.rs"), 0, message);
    }
}

/// Returns whether a file belongs to a module or to a descendant of it.
fn is_below(file: &str, module: &str) -> bool {
    let rest = file.strip_prefix("crates/").and_then(|file| file.strip_prefix(module));
    rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the import graph of a crate `a` with these files.
    pub(super) fn graph(files: &[(&str, &str)]) -> ImportGraph {
        let source = |&(path, text): &(&str, &str)| {
            RustSource::new(&format!("crates/a/src/{path}"), text.to_owned(), false)
        };
        let sources: Vec<_> = files.iter().map(source).collect();
        ImportGraph::new(&sources, "crates/a/src")
    }

    fn circle() -> ImportGraph {
        graph(&[
            ("lib.rs", "mod b;\nmod c;"),
            ("b.rs", "use crate::c::C;"),
            ("c/mod.rs", "mod d;"),
            ("c/d.rs", "\nuse crate::b::B;\nuse super::C;"),
            ("e.rs", "use crate::b::B;"),
        ])
    }

    #[test]
    fn circles_are_errors_above_what_is_allowed() {
        // `c` itself does not import `b`; its descendant `d` does, but `b` does not import `d`.
        let mut report = CheckReport::default();
        check_cycles("a", &circle(), 0, &mut report);
        assert_eq!(report.errors, []);

        let direct = graph(&[("b.rs", "use crate::c::C;"), ("c.rs", "\nuse super::b::B;")]);
        check_cycles("a", &direct, 2, &mut report);
        assert_eq!(report.errors, []);
        check_cycles("a", &direct, 1, &mut report);
        let [error] = report.errors.as_slice() else { panic!("{report:?}") };
        assert_eq!(error.path, "crates/a/src/b.rs");
        for import in ["b.rs:1 imports crates/a/src/c.rs", "c.rs:2 imports crates/a/src/b.rs"] {
            assert!(error.message.contains(import), "{}", error.message);
        }
        assert!(report.warnings.is_empty());
        check_cycles("a", &direct, 3, &mut report);
        assert_eq!(report.warnings.len(), 1, "the allowance can shrink");
    }

    #[test]
    fn folders_in_a_circle_are_errors() {
        let mut report = CheckReport::default();
        let layers = [
            ("b/x.rs", "use crate::c::y::Y;"),
            ("c/y.rs", "struct Y;"),
            ("c/w.rs", "use super::y;"),
        ];
        check_folders("a", &graph(&layers), &mut report);
        assert_eq!(report.errors, []);
        let folders = graph(&[
            ("b/x.rs", "use crate::c::y::Y;"),
            ("b/z.rs", "struct Z;"),
            ("c/y.rs", "struct Y;"),
            ("c/w.rs", "use crate::b::z::Z;"),
        ]);
        assert_eq!(cycles::find(&folders), [[0; 0]; 0], "no file is in a circle");
        check_folders("a", &folders, &mut report);
        let [error] = report.errors.as_slice() else { panic!("{report:?}") };
        assert!(error.message.contains("modules b, c"), "{}", error.message);
    }

    #[test]
    fn forbidden_directions_are_found() {
        let mut report = CheckReport::default();
        let rule = ForbiddenDirection { from: "a/src/c", to: "a/src/b", why: "x" };
        check_directions(&circle(), &[rule], &mut report);
        let [error] = report.errors.as_slice() else { panic!("{report:?}") };
        assert_eq!((error.path.as_str(), error.line), ("crates/a/src/c/d.rs", 2));
        let back = ForbiddenDirection { from: "a/src/b", to: "a/src/c/d", why: "" };
        check_directions(&circle(), &[back], &mut report);
        assert_eq!(report.errors.len(), 1);
    }

    #[test]
    fn modules_are_files_and_folders() {
        assert!(is_below("crates/host/src/tcp/mod.rs", "host/src/tcp"));
        assert!(is_below("crates/host/src/tcp.rs", "host/src/tcp"));
        assert!(!is_below("crates/host/src/tcp_x.rs", "host/src/tcp"));
    }
}
