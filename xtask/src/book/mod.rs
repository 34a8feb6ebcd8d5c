//! Builds the book: docs/ as HTML in target/book, with diagrams as SVG.
//!
//! Called by `main`. mdbook and Graphviz do the work; this verb converts Mermaid blocks to SVG
//! first, so that no page needs a script to show its diagrams. Writes only below the target folder.

mod diagrams;
mod sequence;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::tree;

/// Style of the diagrams, in the colors of the book's theme.
const STYLE: &str = ".diagram { overflow-x: auto; text-align: center; margin: 1em 0; }
.diagram svg { max-width: 100%; height: auto; }
.diagram text { fill: var(--fg); font-family: sans-serif; }
.diagram path, .diagram polygon, .diagram ellipse, .diagram line, .diagram rect,
.diagram polyline { stroke: var(--fg); }
.diagram .arrow { fill: var(--fg); }
.diagram .box { fill: var(--quote-bg); }
.content table { display: block; overflow-x: auto; }
.content td:first-child code { white-space: nowrap; }
.content main { overflow-wrap: break-word; }
";

/// Settings of mdbook.
const SETTINGS: &str = "[book]
title = \"Outboard\"
language = \"en\"
src = \"src\"

[output.html]
additional-css = [\"diagrams.css\"]
no-section-label = true

[output.html.print]
enable = false
";

/// Builds the book.
///
/// # Errors
/// Reports a page that cannot be read or converted, and programs that are missing or fail.
pub(crate) fn run() -> Result<ExitCode, String> {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| tree::root().join("target"), PathBuf::from);
    let (source, out) = (target.join("book-source"), target.join("book"));
    let failed = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
    if source.exists() {
        std::fs::remove_dir_all(&source).map_err(|e| failed(&source, e))?;
    }
    let mut pages = 0;
    for path in tree::files()?.iter().filter(|path| path.starts_with("docs/")) {
        let text = tree::read(path)?;
        let text = match path.ends_with(".md") {
            true => {
                diagrams::convert(&link_root_files(&text)).map_err(|e| format!("{path}: {e}"))?
            }
            false => text,
        };
        write(&source.join("src").join(path.trim_start_matches("docs/")), &text)?;
        pages += 1;
    }
    for name in ROOT_PAGES {
        write(&source.join("src").join(name), &tree::read(name)?.replace("](docs/", "]("))?;
    }
    write(&source.join("book.toml"), SETTINGS)?;
    write(&source.join("diagrams.css"), STYLE)?;
    let tool = target.join("tools/bin/mdbook");
    let tool = if tool.exists() { tool } else { PathBuf::from("mdbook") };
    let status = Command::new(&tool).arg("build").arg(&source).arg("--dest-dir").arg(&out).status();
    let status = status.map_err(|e| {
        format!("cannot run {}: {e}; install it with scripts/setup.sh test", tool.display())
    })?;
    if !status.success() {
        return Err("mdbook failed".to_owned());
    }
    println!("{pages} pages: {}", out.join("index.html").display());
    Ok(ExitCode::SUCCESS)
}

/// Files of the root that are pages of the book.
const ROOT_PAGES: [&str; 4] = ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"];

/// Changes links to pages of the root, which lie beside the others in the book.
fn link_root_files(text: &str) -> String {
    let mut text = text.to_owned();
    for name in ROOT_PAGES {
        text = text.replace(&format!("](../../{name}"), &format!("](../{name}"));
        text = text.replace(&format!("](../{name}"), &format!("]({name}"));
    }
    text
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("{}: {e}", path.display());
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    std::fs::write(path, text).map_err(failed)
}
