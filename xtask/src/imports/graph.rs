//! Imports between the files of a crate.
//!
//! Used by the check and by the drawings. Reads paths that begin with `crate` or `super`, in `use`
//! declarations and elsewhere. A path is resolved to the file of its longest prefix that is a
//! module. Paths that begin with a child module are not read, because they lead to a descendant,
//! which the check ignores. Re-exports are not followed: an import of one counts for the file that
//! contains it.

use crate::scan;
use crate::tidy::RustSource;
use std::collections::BTreeMap;

/// Files of a crate and their imports.
#[derive(Debug)]
pub(crate) struct ImportGraph {
    /// Paths of the files, relative to the repository's root, sorted.
    pub(crate) files: Vec<String>,
    /// Module path of each file, without the crate's name, outermost module first.
    pub(crate) modules: Vec<Vec<String>>,
    /// Pairs of importing and imported file, with the lines of the imports.
    pub(crate) imports: BTreeMap<(usize, usize), Vec<usize>>,
}

impl ImportGraph {
    /// Reads the files below `folder`, the `src` folder of a crate.
    pub(crate) fn new(sources: &[RustSource], folder: &str) -> Self {
        let has_lib = sources.iter().any(|source| source.path == format!("{folder}/lib.rs"));
        let mut files: Vec<(&RustSource, Vec<String>)> = sources
            .iter()
            .filter(|source| !source.test_lines.iter().all(|&test| test))
            .filter_map(|source| Some((source, module(&source.path, folder, has_lib)?)))
            .collect();
        files.sort_by(|a, b| a.0.path.cmp(&b.0.path));
        let modules: Vec<_> = files.iter().map(|(_, module)| module.clone()).collect();
        let mut imports = BTreeMap::<_, Vec<usize>>::new();
        for (from, (source, module)) in files.iter().enumerate() {
            for path in paths(&source.code) {
                let to = resolve(module, &path, &modules).filter(|&to| to != from);
                if let (Some(to), false) = (to, source.is_test(path.line)) {
                    let lines = imports.entry((from, to)).or_default();
                    if lines.last() != Some(&path.line) {
                        lines.push(path.line);
                    }
                }
            }
        }
        let files = files.iter().map(|(source, _)| source.path.clone()).collect();
        Self { files, modules, imports }
    }

    /// Returns whether neither file's module is an ancestor of the other's.
    pub(crate) fn is_import_between_unrelated(&self, from: usize, to: usize) -> bool {
        let (from, to) = (&self.modules[from], &self.modules[to]);
        !from.starts_with(to) && !to.starts_with(from)
    }
}

/// Returns the module path of a file; `None` if the file is not part of the library, or of the
/// program if the crate has no library.
fn module(path: &str, folder: &str, has_lib: bool) -> Option<Vec<String>> {
    let name = path.strip_prefix(folder)?.strip_prefix('/')?.strip_suffix(".rs")?;
    if name == "lib" || (name == "main" && !has_lib) {
        return Some(Vec::new());
    }
    if name == "main" || name.starts_with("bin/") {
        return None;
    }
    let name = name.strip_suffix("/mod").unwrap_or(name);
    Some(name.split('/').map(str::to_owned).collect())
}

/// A path in the source code.
#[derive(Debug, PartialEq, Eq)]
struct SourcePath {
    /// Names from `crate` or `super` to the last one.
    names: Vec<String>,
    /// Inline modules that contain the path, outermost first.
    inline_modules: Vec<String>,
    line: usize,
}

/// Returns all paths in masked code that begin with `crate` or `super`; groups are expanded.
fn paths(code: &str) -> Vec<SourcePath> {
    let inline = scan::inline_modules(code);
    let mut found = Vec::new();
    for start in ["crate", "super"] {
        for at in scan::words(code, start) {
            // In `super::super`, the first `super` begins the path.
            if code[..at].trim_end().ends_with("::") {
                continue;
            }
            let inside = inline.iter().filter(|(_, range)| range.contains(&at));
            let inside: Vec<_> = inside.map(|(name, _)| name.clone()).collect();
            let mut reader = PathParser { code, at: at + start.len(), ends: Vec::new() };
            reader.rest(&mut vec![start.to_owned()]);
            found.extend(reader.ends.into_iter().filter(|(names, _)| names.len() > 1).map(
                |(names, at)| {
                    let line = scan::line_of(code, at);
                    SourcePath { names, inline_modules: inside.clone(), line }
                },
            ));
        }
    }
    found.sort_by_key(|path: &SourcePath| path.line);
    found
}

/// Reads one path, which may contain groups.
struct PathParser<'a> {
    code: &'a str,
    at: usize,
    /// Complete paths, with the position of the end of each.
    ends: Vec<(Vec<String>, usize)>,
}

impl PathParser<'_> {
    /// Continues after the last name of `path`.
    fn rest(&mut self, path: &mut Vec<String>) {
        let end = self.at;
        if !self.skip("::") {
            return self.ends.push((path.clone(), end.saturating_sub(1)));
        }
        if self.skip("{") {
            while !self.skip("}") && self.at < self.code.len() {
                let depth = path.len();
                if self.name(path) {
                    self.rest(path);
                } else if !self.skip("*") {
                    self.at += 1;
                }
                path.truncate(depth);
                // Skips a new name (`as`) or an attribute.
                while self.at < self.code.len() && !self.code[self.at..].starts_with([',', '}']) {
                    self.at += self.code[self.at..].chars().next().map_or(1, char::len_utf8);
                }
                self.skip(",");
            }
        } else if self.name(path) {
            self.rest(path);
            path.pop();
        } else {
            // `*`, or generic arguments.
            self.ends.push((path.clone(), end));
        }
    }

    fn name(&mut self, path: &mut Vec<String>) -> bool {
        self.space();
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let rest = &self.code[self.at..];
        let name: String = rest.chars().take_while(|&c| is_word(c)).collect();
        self.at += name.len();
        let found = !name.is_empty();
        if found {
            path.push(name);
        }
        found
    }

    fn skip(&mut self, token: &str) -> bool {
        let before = self.at;
        self.space();
        if self.code[self.at..].starts_with(token) {
            self.at += token.len();
            return true;
        }
        self.at = before;
        false
    }

    fn space(&mut self) {
        let rest = &self.code[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }
}

/// Returns the file that a path leads to.
fn resolve(module: &[String], path: &SourcePath, modules: &[Vec<String>]) -> Option<usize> {
    let mut names = path.names.iter().map(String::as_str).peekable();
    let mut full: Vec<&str> = match names.peek() {
        Some(&"crate") => Vec::new(),
        _ => module.iter().chain(&path.inline_modules).map(String::as_str).collect(),
    };
    names.next_if_eq(&"crate");
    while names.next_if_eq(&"super").is_some() {
        full.pop()?;
    }
    full.extend(names);
    (0..=full.len()).rev().find_map(|len| modules.iter().position(|module| *module == full[..len]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::imports::tests::graph;

    fn read(code: &str) -> Vec<(String, usize)> {
        let paths = paths(&scan::mask(code));
        paths.into_iter().map(|path| (path.names.join("::"), path.line)).collect()
    }

    fn named(graph: &ImportGraph) -> Vec<(&str, &str, Vec<usize>)> {
        let name = |file: usize| graph.files[file].trim_start_matches("crates/a/src/");
        graph.imports.iter().map(|(&(a, b), lines)| (name(a), name(b), lines.clone())).collect()
    }

    #[test]
    fn reads_paths_with_groups() {
        let own = |found: &[(&str, usize)]| -> Vec<(String, usize)> {
            found.iter().map(|&(path, line)| (path.to_owned(), line)).collect()
        };
        assert_eq!(read("use crate::a::B;"), own(&[("crate::a::B", 1)]));
        assert_eq!(
            read("use crate::{a::{self, B as C},\n d::*, e};"),
            own(&[("crate::a::self", 1), ("crate::a::B", 1), ("crate::d", 2), ("crate::e", 2)])
        );
        assert_eq!(read("use super::super::a;\n"), own(&[("super::super::a", 1)]));
        assert_eq!(
            read("fn f(x: crate::a::B<u8>) { super::c::d::<u8>() }"),
            own(&[("crate::a::B", 1), ("super::c::d", 1)])
        );
        assert_eq!(read("pub(crate) fn f() {} pub(super) use x::super_y;"), own(&[]));
        assert_eq!(read("// use crate::a;\nf(\"crate::b\");"), own(&[]));
    }

    #[test]
    fn paths_lead_to_files() {
        let graph = graph(&[
            ("lib.rs", "mod a;"),
            ("a/mod.rs", "use crate::b::B;\nuse crate::a::c::C;"),
            ("a/c.rs", "use super::d::{self, D};\nuse super::A;\nuse crate::Root;"),
            (
                "a/d.rs",
                "mod e { use super::super::c::C; use super::Own; }\nfn f() { crate::b::g() }",
            ),
            ("b.rs", "struct B;\n#[cfg(test)]\nmod tests {\nuse crate::a::c::C;\n}"),
        ]);
        assert_eq!(
            named(&graph),
            [
                ("a/c.rs", "a/d.rs", vec![1]),
                ("a/c.rs", "a/mod.rs", vec![2]),
                ("a/c.rs", "lib.rs", vec![3]),
                ("a/d.rs", "a/c.rs", vec![1]),
                ("a/d.rs", "b.rs", vec![2]),
                ("a/mod.rs", "a/c.rs", vec![2]),
                ("a/mod.rs", "b.rs", vec![1]),
            ]
        );
        let at = |name: &str| graph.files.iter().position(|f| f.ends_with(name)).unwrap();
        assert!(graph.is_import_between_unrelated(at("a/c.rs"), at("a/d.rs")));
        assert!(!graph.is_import_between_unrelated(at("a/c.rs"), at("a/mod.rs")));
        assert!(!graph.is_import_between_unrelated(at("a/c.rs"), at("lib.rs")));
    }

    #[test]
    fn programs_beside_a_library_are_left_out() {
        let graph = graph(&[("lib.rs", ""), ("main.rs", "x"), ("bin/x.rs", "y"), ("a.rs", "z")]);
        assert_eq!(graph.files, ["crates/a/src/a.rs"], "an empty file has no code");
    }
}
