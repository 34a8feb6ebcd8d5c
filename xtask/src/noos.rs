//! Proves that the crates which claim to need no operating system need none.
//!
//! Called by `ci`. Builds the program in `xtask/noos`, which has its own `_start` and no standard
//! or C library, uses every such crate, and is linked statically with nothing else. A crate that
//! pulls in `std` fails with a duplicate lang item; one that calls the C library fails with an
//! undefined symbol. The program is a workspace of its own, so that features which other crates
//! enable in libraries do not reach it; the versions are those of the main workspace. Building for
//! a target without an OS would prove the same, but such a target must be downloaded first.

use crate::report::CheckReport;
use crate::tree;
use std::path::{Path, PathBuf};
use std::process::Command;

const CRATE: &str = "xtask/noos";

/// Packages that imply an operating system. Linking does not reveal them, because they request the
/// C library themselves.
const OS_PACKAGES: [&str; 6] = ["errno", "getrandom", "libc", "mio", "rustix", "tokio"];

/// Linker options: no start files, no libraries.
const LINK: [&str; 8] = [
    "-C",
    "link-arg=-nostartfiles",
    "-C",
    "link-arg=-nostdlib",
    "-C",
    "link-arg=-static",
    "-C",
    "relocation-model=static",
];

/// Builds and links the program.
///
/// # Errors
/// Reports that cargo cannot be run, or that a file cannot be written.
pub(crate) fn run() -> Result<CheckReport, String> {
    let folder = tree::root().join(CRATE);
    let lock = |path: &Path| path.join("Cargo.lock");
    // The same versions as in the main workspace; cargo removes unused entries.
    std::fs::copy(lock(&tree::root()), lock(&folder))
        .map_err(|e| format!("cannot copy Cargo.lock to {CRATE}: {e}"))?;

    let mut report = CheckReport::default();
    let build = cargo(&folder).args(["rustc", "--quiet", "--"]).args(LINK).output();
    let build = build.map_err(|e| format!("cannot run cargo: {e}"))?;
    if !build.status.success() {
        let message = String::from_utf8_lossy(&build.stderr).into_owned();
        report.error(CRATE, 0, format!("does not link without an operating system\n{message}"));
        return Ok(report);
    }
    let packages = packages(&folder)?;
    for package in &packages {
        if OS_PACKAGES.contains(&package.as_str()) {
            report.error(
                CRATE,
                0,
                format!("depends on {package}, which needs an operating system"),
            );
        }
    }
    report.summary = format!("{} packages linked", packages.len());
    Ok(report)
}

fn cargo(folder: &Path) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(folder).env("CARGO_TARGET_DIR", target_dir());
    cargo
}

/// Returns a build folder of its own below the caller's, because features and panic strategy
/// differ.
fn target_dir() -> PathBuf {
    let outer = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    tree::root().join(outer).join("noos")
}

/// Returns the names of all packages that the program is built from.
fn packages(folder: &Path) -> Result<Vec<String>, String> {
    let tree = cargo(folder)
        .args(["tree", "--quiet", "--edges", "normal", "--prefix", "none", "--format", "{p}"])
        .output()
        .map_err(|e| format!("cannot run cargo tree: {e}"))?;
    if !tree.status.success() {
        return Err(format!("cargo tree: {}", String::from_utf8_lossy(&tree.stderr)));
    }
    let text = String::from_utf8_lossy(&tree.stdout);
    let mut names: Vec<String> =
        text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
    names.sort();
    names.dedup();
    Ok(names)
}
