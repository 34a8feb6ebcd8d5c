//! Checks that README.md and ARCHITECTURE.md name only existing paths, that a name followed by its
//! file is defined in that file, and that ARCHITECTURE.md mentions every crate.
//!
//! Called by `ci`. Reads text in backticks and link targets outside code blocks. A name counts as a
//! path if it begins with a folder of the tree or has the extension of a source file. Commands,
//! options, and names without a file are not checked.

use crate::report::CheckReport;
use crate::tree;

/// Documents that are checked; both must exist.
const DOCUMENTS: [&str; 2] = ["README.md", "ARCHITECTURE.md"];
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
    for document in DOCUMENTS {
        let Ok(text) = tree::read(document) else {
            report.error(document, 0, "is missing or not UTF-8");
            continue;
        };
        paths += check_paths(document, &text, &files, &mut report);
        check_definitions(document, &text, &mut report, |path| tree::read(path).ok());
        if document == "ARCHITECTURE.md" {
            check_crates(document, &text, &tree::crates(&files), &mut report);
        }
    }
    report.summary = format!("{paths} paths");
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

/// Returns texts in backticks and link targets outside code blocks, with their lines.
fn names(text: &str) -> Vec<(usize, String)> {
    let mut names = Vec::new();
    let mut in_block = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
            continue;
        }
        if in_block {
            continue;
        }
        names.extend(line.split('`').skip(1).step_by(2).map(|name| (index + 1, name.to_owned())));
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        names.extend(targets.map(|target| (index + 1, target.to_owned())));
    }
    names
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
        assert_eq!(missing("[x](docs/a.md)").len(), 1);
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
    fn every_crate_is_described() {
        let mut report = CheckReport::default();
        let crates = ["abi", "nic", "host", "io"].map(String::from);
        let text = "crates/abi and `nic`\n```\n  host/ the host\n```\nportfolio/";
        check_crates("ARCHITECTURE.md", text, &crates, &mut report);
        let got: Vec<_> = report.errors.iter().map(ToString::to_string).collect();
        assert_eq!(got, ["ARCHITECTURE.md: does not mention crates/io"]);
    }
}
