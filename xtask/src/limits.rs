//! Generates the pages of limits from the constants of the product, and checks that they are
//! current.
//!
//! Called by `main` and `ci`. A limit is a constant whose name ends with `_MAX`, `_MIN` or `_LIMIT`
//! and that has a doc comment, outside tests. The text is the first sentence of that comment.

use std::fmt::Write as _;
use std::process::ExitCode;

use crate::report::CheckReport;
use crate::{scan, tree};

/// A generated page.
struct LimitsPage {
    path: &'static str,
    title: &'static str,
    /// Crates with their titles.
    crates: &'static [(&'static str, &'static str)],
}

/// The pages, with the crates whose limits a user or a developer of a device may meet.
const PAGES: [LimitsPage; 3] = [
    LimitsPage {
        path: "docs/limits.md",
        title: "Limits of the device",
        crates: &[("abi", "The contract"), ("wire", "Packet formats"), ("nic", "The device")],
    },
    LimitsPage {
        path: "docs/limits-host.md",
        title: "Limits of the host",
        crates: &[("host", "The host"), ("quic", "QUIC")],
    },
    LimitsPage {
        path: "docs/limits-programs.md",
        title: "Limits of the programs",
        crates: &[
            ("io", "Links and disks"),
            ("apps", "Content server, proxy, NVMe/TCP"),
            ("stack", "Threads, control socket, metrics"),
            ("outboard", "The program"),
        ],
    },
];
const ENDINGS: [&str; 3] = ["_MAX", "_MIN", "_LIMIT"];

const HEAD: &str = "\
    Bounds that are compiled in, for readers who ask how large a table is or why something was\n\
    refused. Bounds that can be configured are fields of `DeviceConfig`\n\
    (`crates/nic/src/config.rs`) and `HostConfig` (`crates/host/src/config.rs`), and options of\n\
    the [programs](cli/overview.md).\n\n\
    This page is generated from the constants: `cargo run -p xtask -- limits --write`.\n";

/// Checks the pages.
///
/// # Errors
/// Reports a tree that cannot be read.
pub(crate) fn run() -> Result<CheckReport, String> {
    let (mut report, mut total) = (CheckReport::default(), 0);
    for page in &PAGES {
        let (text, count) = generate(page)?;
        total += count;
        if tree::read(page.path).ok().as_deref() != Some(&text) {
            report.error(page.path, 0, "is not current; run cargo run -p xtask -- limits --write");
        }
    }
    report.summary = format!("{total} limits");
    Ok(report)
}

/// Writes the pages.
///
/// # Errors
/// Reports a tree that cannot be read or written.
pub(crate) fn write() -> Result<ExitCode, String> {
    for page in &PAGES {
        let (text, count) = generate(page)?;
        let path = tree::root().join(page.path);
        std::fs::write(path, text).map_err(|e| format!("{}: {e}", page.path))?;
        println!("{}: {count} limits", page.path);
    }
    Ok(ExitCode::SUCCESS)
}

fn generate(page: &LimitsPage) -> Result<(String, usize), String> {
    let (mut text, mut count) = (format!("# {}\n\n{HEAD}", page.title), 0);
    let files = tree::files()?;
    for (name, title) in page.crates {
        let folder = format!("crates/{name}/src/");
        let mut rows = Vec::new();
        for path in files.iter().filter(|path| path.starts_with(&folder) && path.ends_with(".rs")) {
            if path.contains("tests") {
                continue;
            }
            let file = path.trim_start_matches(&folder);
            rows.extend(limits_of(&tree::read(path)?).into_iter().map(|limit| (file, limit)));
        }
        if rows.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n## {title}\n\n| in `{folder}` | limit | value | meaning |");
        text.push_str("|---|---|---|---|\n");
        for (file, Limit { name, value, meaning }) in &rows {
            let _ = writeln!(text, "| {file} | `{name}` | `{value}` | {meaning} |");
        }
        count += rows.len();
    }
    Ok((text, count))
}

struct Limit {
    name: String,
    value: String,
    meaning: String,
}

/// Returns the documented limits of a file outside its tests.
fn limits_of(text: &str) -> Vec<Limit> {
    let tests = scan::test_lines(&scan::mask(text));
    let (mut limits, mut comment) = (Vec::new(), String::new());
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(text) = line.strip_prefix("///") {
            comment = format!("{comment} {}", text.trim()).trim().to_owned();
            continue;
        }
        let meaning = std::mem::take(&mut comment);
        let Some((_, declared)) = line.split_once("const ") else { continue };
        let Some((name, rest)) = declared.split_once(':') else { continue };
        // A value on the next line is an expression of some length: it is not a plain number.
        let Some((_, value)) = rest.split_once(" = ") else { continue };
        let is_limit = ENDINGS.iter().any(|ending| name.ends_with(ending));
        let is_test = tests.get(index).is_some_and(|test| *test);
        if is_limit && !is_test && !meaning.is_empty() && value.ends_with(';') {
            limits.push(Limit {
                name: name.to_owned(),
                value: value.trim_end_matches(';').to_owned(),
                meaning: first_sentence(&meaning),
            });
        }
    }
    limits
}

/// Returns the text up to its first period, colon or semicolon, without links.
fn first_sentence(text: &str) -> String {
    let end = [". ", ": ", "; "].iter().filter_map(|end| text.find(end)).min();
    let text = &text[..end.unwrap_or(text.len())];
    text.trim_end_matches('.').replace("[`", "`").replace("`]", "`").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documented_constants_are_limits() {
        let text = "/// Maximum number of paths. More are refused.\nconst PATHS_MAX: usize = 8;\n\
                    const A_MAX: u8 = 1;\n/// Other.\nconst B: u8 = 1;\n\
                    #[cfg(test)]\nmod tests {\n    /// C.\n    const C_MAX: u8 = 1;\n}\n";
        let found = limits_of(text);
        assert_eq!(found.len(), 1);
        let Limit { name, value, meaning } = &found[0];
        assert_eq!((&name[..], &value[..]), ("PATHS_MAX", "8"));
        assert_eq!(meaning, "Maximum number of paths");
    }
}
