//! House rules that neither rustc nor clippy checks: lengths, module heads, banned idioms, crate
//! attributes, the language of comments, names of types.
//!
//! Called by `ci`. Reads every Rust file of the tree, and the documents for their language. A
//! justified exception is added to the rule's table here, with a reason; a file cannot switch a
//! rule off for itself.

mod attributes;
mod banned;
mod functions;
mod let_chains;
mod lines;
mod names;
mod prose;

use crate::report::CheckReport;
use crate::{scan, tree};

/// A Rust file, read and scanned once for all rules.
#[derive(Debug)]
pub(crate) struct RustSource {
    /// Path relative to the repository's root.
    pub(crate) path: String,
    /// The original text.
    pub(crate) text: String,
    /// The text with comments and the contents of literals blanked out.
    pub(crate) code: String,
    /// True for each line that is compiled for tests only.
    pub(crate) test_lines: Vec<bool>,
}

impl RustSource {
    /// Scans a file. `test_file` marks all of it as test code.
    pub(crate) fn new(path: &str, text: String, test_file: bool) -> Self {
        let code = scan::mask(&text);
        let mut test_lines = scan::test_lines(&code);
        if test_file {
            test_lines.fill(true);
        }
        Self { path: path.to_owned(), text, code, test_lines }
    }

    /// Returns whether a line, counted from 1, is test code.
    pub(crate) fn is_test(&self, line: usize) -> bool {
        line.checked_sub(1).and_then(|at| self.test_lines.get(at)).copied().unwrap_or(false)
    }

    /// Returns the crate's folder: `crates/NAME`, or the first folder of the path.
    pub(crate) fn krate(&self) -> &str {
        let depth = if self.path.starts_with("crates/") { 2 } else { 1 };
        self.path.match_indices('/').nth(depth - 1).map_or(&self.path, |(at, _)| &self.path[..at])
    }
}

/// Runs all rules on the tree.
///
/// # Errors
/// Reports a tree that cannot be read.
pub(crate) fn run() -> Result<CheckReport, String> {
    let files = tree::files()?;
    let sources = sources(&files)?;
    let mut report = CheckReport::default();
    for source in &sources {
        lines::check(source, &mut report);
        banned::check(source, &mut report);
        let_chains::check(source, &mut report);
        attributes::check(source, &mut report);
        prose::check(source, &mut report);
    }
    names::check(&sources, &mut report);
    for path in files.iter().filter(|path| path.ends_with(".md")) {
        prose::document(path, &tree::read(path)?, &mut report);
    }
    functions::check(&sources, &tree::read(functions::LIST)?, &mut report);
    report.summary = format!("{} files", sources.len());
    Ok(report)
}

/// Reads and scans all Rust files among `files`.
///
/// # Errors
/// Reports a file that cannot be read.
pub(crate) fn sources(files: &[String]) -> Result<Vec<RustSource>, String> {
    let mut texts = Vec::new();
    for path in files.iter().filter(|path| path.ends_with(".rs")) {
        texts.push((path.as_str(), tree::read(path)?));
    }
    let test_roots = test_roots(&texts);
    let scanned = texts
        .into_iter()
        .map(|(path, text)| RustSource::new(path, text, is_test_file(path, &test_roots)));
    Ok(scanned.collect())
}

/// Returns the paths, without `.rs`, of modules that other files declare for tests only. Each
/// stands for its file and the folder below it.
fn test_roots(texts: &[(&str, String)]) -> Vec<String> {
    let mut roots = Vec::new();
    for (path, text) in texts.iter().filter(|(_, text)| text.contains("cfg(")) {
        let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
        let children = match file {
            "lib.rs" | "main.rs" | "mod.rs" => folder.to_owned(),
            _ => path.trim_end_matches(".rs").to_owned(),
        };
        let names = scan::test_modules(&scan::mask(text));
        roots.extend(names.into_iter().map(|name| format!("{children}/{name}")));
    }
    roots
}

fn is_test_file(path: &str, test_roots: &[String]) -> bool {
    let is_under = |root: &String| {
        path.strip_prefix(root.as_str()).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
    };
    path.split('/').any(|part| part == "tests" || part == "benches")
        || test_roots.iter().any(is_under)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_files_are_known_by_folder_or_declaration() {
        let texts = [
            ("crates/a/src/lib.rs", "#[cfg(test)]\nmod checks;\nmod b;".to_owned()),
            ("crates/a/src/b.rs", "#[cfg(test)]\nmod more;".to_owned()),
        ];
        let roots = test_roots(&texts);
        assert_eq!(roots, ["crates/a/src/checks", "crates/a/src/b/more"]);
        for path in ["crates/a/src/checks.rs", "crates/a/src/checks/x.rs", "crates/a/src/b/more.rs"]
        {
            assert!(is_test_file(path, &roots), "{path}");
        }
        assert!(is_test_file("interop/tests/files.rs", &[]));
        assert!(!is_test_file("crates/a/src/checks_not.rs", &roots));
    }

    #[test]
    fn crates_are_the_folders_of_manifests() {
        let krate = |path: &str| RustSource::new(path, String::new(), false).krate().to_owned();
        assert_eq!(krate("crates/nic/src/engine/file.rs"), "crates/nic");
        assert_eq!(krate("xtask/src/main.rs"), "xtask");
        assert_eq!(krate("build.rs"), "build.rs");
    }
}
