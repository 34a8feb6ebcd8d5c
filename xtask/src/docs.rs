//! Checks the documents: they name only existing paths, a name followed by its file is defined in
//! that file, Rust excerpts are in the tree, links lead to pages and headings that exist, pages are
//! short, the summary of the book has every page, and ARCHITECTURE.md mentions every crate.
//!
//! Called by `ci`. Reads text in backticks outside code blocks. A name counts as a
//! path if it begins with a folder of the tree or has the extension of a source file. Commands,
//! options, and names without a file are not checked.

use crate::report::CheckReport;
use crate::{scan, tree};

/// Documents of the root that are checked beside docs/, and must exist.
const DOCUMENTS: [&str; 4] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"];
/// Largest README, and largest page, in bytes: a reader should see where it ends.
const README_BYTES_MAX: usize = 6_000;
const PAGE_BYTES_MAX: usize = 15_000;
/// Table of contents of the book.
const SUMMARY: &str = "docs/SUMMARY.md";
/// Extensions by which a single word is taken for a file name.
const ENDINGS: [&str; 6] = [".rs", ".md", ".toml", ".sh", ".txt", ".lock"];

/// Runs the check on the tree.
///
/// # Errors
/// Reports a tree that cannot be read.
pub(crate) fn run() -> Result<CheckReport, String> {
    let files = tree::files()?;
    let mut report = CheckReport::default();
    let mut paths = 0;
    let is_page = |path: &&String| path.starts_with("docs/") && path.ends_with(".md");
    let code = files.iter().filter(|path| path.ends_with(".rs"));
    let sources: Vec<String> = code.filter_map(|path| tree::read(path).ok()).collect();
    let pages: Vec<&str> = files.iter().filter(is_page).map(String::as_str).collect();
    for document in DOCUMENTS.into_iter().chain(pages.iter().copied()) {
        let Ok(text) = tree::read(document) else {
            report.error(document, 0, "is missing or not UTF-8");
            continue;
        };
        check_size(document, &text, &mut report);
        check_excerpts(document, &text, &sources, &mut report);
        check_links(document, &text, &files, &mut report, |path| tree::read(path).ok());
        paths += check_paths(document, &text, &files, &mut report);
        check_definitions(document, &text, &mut report, |path| tree::read(path).ok());
        if document == "ARCHITECTURE.md" {
            check_crates(document, &text, &tree::crates(&files), &mut report);
        }
    }
    check_summary(&pages, &tree::read(SUMMARY).unwrap_or_default(), &mut report);
    report.summary = format!("{} pages, {paths} paths", pages.len());
    Ok(report)
}

fn check_paths(document: &str, text: &str, files: &[String], report: &mut CheckReport) -> usize {
    let paths: Vec<_> = names(text)
        .into_iter()
        .filter_map(|(line, name)| Some((line, path(&name, files)?)))
        .collect();
    for (line, path) in &paths {
        if !exists(path, files) {
            report.error(document, *line, format!("`{path}` does not exist"));
        }
    }
    paths.len()
}

fn check_size(document: &str, text: &str, report: &mut CheckReport) {
    let most = match document {
        "README.md" => README_BYTES_MAX,
        SUMMARY => usize::MAX,
        _ => PAGE_BYTES_MAX,
    };
    if text.len() > most {
        let size = text.len();
        report.error(document, 0, format!("{size} bytes; at most {most}: move a part to a page"));
    }
}

/// Checks that each block of Rust is an excerpt of a source, so that a tutorial stays true.
fn check_excerpts(document: &str, text: &str, sources: &[String], report: &mut CheckReport) {
    for (index, block) in text.split("```rust\n").enumerate().skip(1) {
        let excerpt = block.split("```").next().unwrap_or_default();
        if !sources.iter().any(|source| source.contains(excerpt)) {
            let first = excerpt.lines().next().unwrap_or_default().trim();
            report.error(document, 0, format!("Rust block {index} (`{first}`) is in no source"));
        }
    }
}

/// Checks that the table of contents has every page.
fn check_summary(pages: &[&str], summary: &str, report: &mut CheckReport) {
    for page in pages.iter().map(|page| page.trim_start_matches("docs/")) {
        if format!("docs/{page}") != SUMMARY && !summary.contains(&format!("]({page})")) {
            report.error(SUMMARY, 0, format!("lacks {page}"));
        }
    }
}

/// Checks the links of a document to other files and their headings.
fn check_links(
    document: &str,
    text: &str,
    files: &[String],
    report: &mut CheckReport,
    read: impl Fn(&str) -> Option<String>,
) {
    for (line, target) in links(text) {
        if target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let (path, heading) = target.split_once('#').unwrap_or((&target, ""));
        let path = if path.is_empty() { document.to_owned() } else { resolve(document, path) };
        // The summary names pages of the root as the book has them.
        let is_root_page = document == SUMMARY && files.contains(&path.replace("docs/", ""));
        if !files.contains(&path) && !is_root_page && !exists(&path, files) {
            report.error(document, line, format!("link to {target}: {path} does not exist"));
        } else if !heading.is_empty()
            && !read(&path).unwrap_or_default().lines().any(|line| slug(line) == heading)
        {
            report.error(document, line, format!("link to {target}: no such heading in {path}"));
        }
    }
}

/// Returns the targets of links outside code blocks, with their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for (number, line) in scan::prose_lines(text) {
        // Code spans may contain brackets.
        let plain: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        let targets = plain.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        links.extend(targets.map(|target| (number, target.to_owned())));
    }
    links
}

/// Returns the path that a relative link in a document leads to.
fn resolve(document: &str, link: &str) -> String {
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Returns the anchor of a heading, as mdbook and GitHub form it; empty for other lines.
fn slug(line: &str) -> String {
    let text = line.trim_start_matches('#');
    if text.len() == line.len() || !text.starts_with(' ') {
        return String::new();
    }
    let kept = text.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Checks each name that is followed by its file, as in "`Device::handle_op`
/// (`crates/nic/src/device.rs`)": the file has to define the name's last part.
fn check_definitions(
    document: &str,
    text: &str,
    report: &mut CheckReport,
    read: impl Fn(&str) -> Option<String>,
) {
    let parts: Vec<&str> = text.split('`').collect();
    for (index, window) in parts.windows(3).enumerate() {
        let [name, between, path] = window else { continue };
        if index % 2 == 0 || between.trim() != "(" || !path.ends_with(".rs") {
            continue;
        }
        let last = name.rsplit("::").next().unwrap_or_default();
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        // A file that does not exist is reported with the paths.
        let Some(code) = read(path).filter(|_| name.chars().all(is_name)) else { continue };
        if !defines(&code, last) {
            let line = parts[..=index].iter().map(|part| part.matches('\n').count()).sum::<usize>();
            report.error(document, line + 1, format!("`{path}` does not define `{name}`"));
        }
    }
}

/// Returns whether Rust code defines an item, a field or a variant of this name.
fn defines(code: &str, name: &str) -> bool {
    const KEYWORDS: [&str; 8] = ["fn", "struct", "enum", "trait", "type", "const", "static", "mod"];
    code.lines().map(str::trim).filter(|line| !line.starts_with("//")).any(|line| {
        let follows = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_item = words.windows(2).any(|pair| {
            KEYWORDS.contains(&pair[0]) && pair[1].strip_prefix(name).is_some_and(follows)
        });
        let member = line.strip_prefix("pub ").unwrap_or(line);
        let is_member = member
            .strip_prefix(name)
            .is_some_and(|rest| [":", ",", "(", " {"].iter().any(|end| rest.starts_with(end)));
        is_item || is_member
    })
}

fn check_crates(document: &str, text: &str, crates: &[String], report: &mut CheckReport) {
    for name in crates {
        let described = text.contains(&format!("crates/{name}"))
            || text.contains(&format!("`{name}`"))
            || text.lines().any(|line| line.trim_start().starts_with(&format!("{name}/")));
        if !described {
            report.error(document, 0, format!("does not mention crates/{name}"));
        }
    }
}

/// Returns the texts in backticks outside code blocks, with their lines.
fn names(text: &str) -> Vec<(usize, String)> {
    let spans = |(number, line): (usize, &str)| {
        let spans = line.split('`').skip(1).step_by(2);
        spans.map(|name| (number, name.to_owned())).collect::<Vec<_>>()
    };
    scan::prose_lines(text).into_iter().flat_map(spans).collect()
}

/// Returns the path that a name denotes; `None` if it is not a path of the tree.
fn path(name: &str, files: &[String]) -> Option<String> {
    let no_path = |c: char| c.is_whitespace() || "*<>{}$|=,\"'()".contains(c);
    if name.is_empty() || name.contains(no_path) || name.contains("://") || name.starts_with('#') {
        return None;
    }
    let name = name.split('#').next().unwrap_or_default();
    // `crates/abi/src/op.rs:12` denotes a line of a file.
    let name = name.split(':').next().unwrap_or_default();
    let name = name.trim_start_matches("./").trim_end_matches('/');
    let first = name.split_once('/').map(|(first, _)| format!("{first}/"));
    let is_in_tree = first.is_some_and(|first| files.iter().any(|file| file.starts_with(&first)));
    // Absolute paths do not belong to the tree.
    let is_file = !name.starts_with('/') && ENDINGS.iter().any(|ending| name.ends_with(ending));
    (is_in_tree || is_file).then(|| name.to_owned())
}

/// Returns whether a file or folder of the tree has this path, or a file's path ends with it
/// (`tcp/rack.rs` for `crates/host/src/tcp/rack.rs`).
fn exists(path: &str, files: &[String]) -> bool {
    files.iter().any(|file| {
        file == path
            || file.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'))
            || file.strip_suffix(path).is_some_and(|rest| rest.ends_with('/'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> Vec<String> {
        ["Makefile", "README.md", "crates/abi/src/op.rs", "scripts/run.sh", "xtask/src/main.rs"]
            .map(String::from)
            .to_vec()
    }

    fn missing(text: &str) -> Vec<String> {
        let mut report = CheckReport::default();
        check_paths("README.md", text, &files(), &mut report);
        report.errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn existing_paths_pass() {
        let text = "`crates/abi`, `crates/abi/`, `op.rs`, `abi/src/op.rs:12`, `./README.md`,\n\
                    [run](scripts/run.sh), [top](#top), [a](README.md#b)\n\
                    ```\n`crates/none`\n```\n";
        assert_eq!(missing(text), [""; 0]);
    }

    #[test]
    fn non_paths_are_ignored() {
        let text = "`make run`, `abi`, `Op`, `/etc/passwd`, `tap:ob0`, `crates/*/src`,\n\
                    `10.77.0.1/24`, `outboard serve examples/none`,\n\
                    [x](https://example.com/crates/none.rs)";
        assert_eq!(missing(text), [""; 0]);
    }

    #[test]
    fn missing_paths_are_errors() {
        assert_eq!(missing("a\n`crates/none`"), ["README.md:2: `crates/none` does not exist"]);
        assert_eq!(missing("`p.rs`").len(), 1);
    }

    #[test]
    fn names_are_defined_in_their_files() {
        let read = |path: &str| {
            (path == "a.rs").then(|| {
                "pub(crate) fn run<T>() {}\nstruct Taken {\n    pub limit: u32,\n}\n\
                 // fn gone() {}\nfn runs() {}\nenum State {\n    Idle,\n}\n"
                    .to_owned()
            })
        };
        let errors = |text: &str| {
            let mut report = CheckReport::default();
            check_definitions("a.md", text, &mut report, read);
            report.errors.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        for name in ["run", "Host::run", "Taken", "limit", "State::Idle", "State"] {
            assert_eq!(errors(&format!("`x`: `{name}`\n(`a.rs`)")), [""; 0], "{name}");
        }
        assert_eq!(errors("`x`\n`A::gone` (`a.rs`)"), ["a.md:2: `a.rs` does not define `A::gone`"]);
        assert_eq!(errors("`ru` (`a.rs`), `--limit N` (`a.rs`), `none` (`b.rs`)").len(), 1);
    }

    #[test]
    fn links_lead_to_pages_and_headings() {
        let files = ["docs/a.md", "docs/b/c.md", "SECURITY.md"].map(String::from);
        let errors = |document: &str, text: &str| {
            let mut report = CheckReport::default();
            let read = |path: &str| (path == "docs/a.md").then(|| "# A `b`, c?\n".to_owned());
            check_links(document, text, &files, &mut report, read);
            report.errors.len()
        };
        assert_eq!(errors("docs/b/c.md", "[x](../a.md), [y](../../SECURITY.md), `[z](q)`"), 0);
        assert_eq!(errors("docs/a.md", "[x](b/c.md), [y](#a-b-c), [z](https://example.com/q)"), 0);
        assert_eq!(errors("docs/a.md", "[x](c.md)\n[y](#a)\n```\n[z](q)\n```"), 2);
    }

    #[test]
    fn excerpts_are_in_the_sources() {
        let mut report = CheckReport::default();
        let sources = ["fn a() {\n    b();\n}\n".to_owned()];
        let text = "```rust\n    b();\n```\n```rust\nc();\n```\n";
        check_excerpts("docs/a.md", text, &sources, &mut report);
        let errors: Vec<_> = report.errors.iter().map(ToString::to_string).collect();
        assert_eq!(errors, ["docs/a.md: Rust block 2 (`c();`) is in no source"]);
    }

    #[test]
    fn pages_are_short_and_in_the_summary() {
        let mut report = CheckReport::default();
        check_size("README.md", &"x".repeat(README_BYTES_MAX + 1), &mut report);
        check_size("docs/a.md", &"x".repeat(README_BYTES_MAX + 1), &mut report);
        check_summary(&["docs/SUMMARY.md", "docs/a.md", "docs/b.md"], "[A](a.md)", &mut report);
        let errors: Vec<_> = report.errors.iter().map(ToString::to_string).collect();
        assert_eq!(errors.len(), 2, "{errors:?}");
        assert_eq!(errors[1], "docs/SUMMARY.md: lacks b.md");
    }

    #[test]
    fn every_crate_is_described() {
        let mut report = CheckReport::default();
        let crates = ["abi", "nic", "host", "io"].map(String::from);
        let text = "crates/abi and `nic`\n```\n  host/ the host\n```\nportfolio/";
        check_crates("ARCHITECTURE.md", text, &crates, &mut report);
        let got: Vec<_> = report.errors.iter().map(ToString::to_string).collect();
        assert_eq!(got, ["ARCHITECTURE.md: does not mention crates/io"]);
    }
}
