//! What the files of a crate import from each other.
//!
//! Used by the check and by the drawings. Reads paths that begin with `crate` or `super`, in `use`
//! and anywhere else; each leads to the file of the longest part of it that names a module. A path
//! that begins with a module's child leads to a descendant, which is no business of the check, and
//! is not read. A re-export is not followed: it counts as the file that has it.

use crate::scan;
use crate::tidy::Source;
use std::collections::BTreeMap;

/// Files of a crate and their imports.
#[derive(Debug)]
pub(crate) struct Graph {
    /// Paths of the files, relative to the repository's root, sorted.
    pub(crate) files: Vec<String>,
    /// The module of each file: its name and those of its ancestors, outermost first.
    pub(crate) modules: Vec<Vec<String>>,
    /// Which file imports which, and the lines that do.
    pub(crate) imports: BTreeMap<(usize, usize), Vec<usize>>,
}

impl Graph {
    /// Reads the files below `folder`, a crate's `src`.
    pub(crate) fn new(sources: &[Source], folder: &str) -> Self {
        let has_lib = sources.iter().any(|source| source.path == format!("{folder}/lib.rs"));
        let mut files: Vec<(&Source, Vec<String>)> = sources
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

    /// Whether an import joins files of which neither is the other's ancestor.
    pub(crate) fn is_import_between_strangers(&self, from: usize, to: usize) -> bool {
        let (from, to) = (&self.modules[from], &self.modules[to]);
        !from.starts_with(to) && !to.starts_with(from)
    }
}

/// The module of a file; none if it is not of the library, or of the program if there is none.
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

/// A path in a file.
#[derive(Debug, PartialEq, Eq)]
struct Path {
    /// From `crate` or `super` to its last name.
    names: Vec<String>,
    /// Modules of the file itself in which it stands, outermost first.
    inside: Vec<String>,
    line: usize,
}

/// All paths in masked code that begin with `crate` or `super`, those of groups one by one.
fn paths(code: &str) -> Vec<Path> {
    let inline = scan::inline_modules(code);
    let mut found = Vec::new();
    for start in ["crate", "super"] {
        for at in scan::words(code, start) {
            // `super::super`: the first of them begins the path.
            if code[..at].trim_end().ends_with("::") {
                continue;
            }
            let inside = inline.iter().filter(|(_, range)| range.contains(&at));
            let inside: Vec<_> = inside.map(|(name, _)| name.clone()).collect();
            let mut reader = Reader { code, at: at + start.len(), ends: Vec::new() };
            reader.rest(&mut vec![start.to_owned()]);
            found.extend(reader.ends.into_iter().filter(|(names, _)| names.len() > 1).map(
                |(names, at)| {
                    let line = scan::line_of(code, at);
                    Path { names, inside: inside.clone(), line }
                },
            ));
        }
    }
    found.sort_by_key(|path: &Path| path.line);
    found
}

/// Reads one path, which may have groups.
struct Reader<'a> {
    code: &'a str,
    at: usize,
    /// The paths, and where each ends.
    ends: Vec<(Vec<String>, usize)>,
}

impl Reader<'_> {
    /// Reads on behind the last name of `path`.
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
                // A new name for it, or an attribute: not read.
                while self.at < self.code.len() && !self.code[self.at..].starts_with([',', '}']) {
                    self.at += self.code[self.at..].chars().next().map_or(1, char::len_utf8);
                }
                self.skip(",");
            }
        } else if self.name(path) {
            self.rest(path);
            path.pop();
        } else {
            // `*`, or the types of a generic item.
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

/// The file that a path leads to.
fn resolve(module: &[String], path: &Path, modules: &[Vec<String>]) -> Option<usize> {
    let mut names = path.names.iter().map(String::as_str).peekable();
    let mut full: Vec<&str> = match names.peek() {
        Some(&"crate") => Vec::new(),
        _ => module.iter().chain(&path.inside).map(String::as_str).collect(),
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

    fn named(graph: &Graph) -> Vec<(&str, &str, Vec<usize>)> {
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
        assert!(graph.is_import_between_strangers(at("a/c.rs"), at("a/d.rs")));
        assert!(!graph.is_import_between_strangers(at("a/c.rs"), at("a/mod.rs")));
        assert!(!graph.is_import_between_strangers(at("a/c.rs"), at("lib.rs")));
    }

    #[test]
    fn programs_beside_a_library_are_left_out() {
        let graph = graph(&[("lib.rs", ""), ("main.rs", "x"), ("bin/x.rs", "y"), ("a.rs", "z")]);
        assert_eq!(graph.files, ["crates/a/src/a.rs"], "an empty file has no code");
    }
}
