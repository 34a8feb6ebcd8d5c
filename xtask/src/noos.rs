//! Proves that the crates which claim to need no operating system need none.
//!
//! Called by `ci`. Builds the program in `xtask/noos`: it has no standard library, no C library and
//! its own `_start`, uses every such crate, and is linked statically with nothing else. A crate
//! that pulls in `std` fails with a duplicate lang item; one that calls the C library fails with an
//! undefined symbol. The program has its own workspace, so that features which other crates switch
//! on in the libraries do not reach it, but the main workspace's versions. Building for a target
//! without an OS would prove the same; such a target has to be downloaded first.

use crate::report::Report;
use crate::tree;
use std::path::{Path, PathBuf};
use std::process::Command;

const CRATE: &str = "xtask/noos";

/// Packages that mean an operating system. The link would not tell for them: they ask for the C
/// library themselves.
const OS_PACKAGES: [&str; 6] = ["errno", "getrandom", "libc", "mio", "rustix", "tokio"];

/// No start files, no libraries.
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
/// A line to show where cargo cannot be run or the files cannot be written.
pub(crate) fn run() -> Result<Report, String> {
    let folder = tree::root().join(CRATE);
    let lock = |path: &Path| path.join("Cargo.lock");
    // The same versions as everywhere else; cargo takes out what is not used here.
    std::fs::copy(lock(&tree::root()), lock(&folder))
        .map_err(|e| format!("cannot copy Cargo.lock to {CRATE}: {e}"))?;

    let mut report = Report::default();
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
            report.error(CRATE, 0, format!("{package} came in, and with it the OS"));
        }
    }
    report.looked_at = format!("{} packages linked", packages.len());
    Ok(report)
}

fn cargo(folder: &Path) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(folder).env("CARGO_TARGET_DIR", target_dir());
    cargo
}

/// A folder of its own below the caller's: features and panic strategy differ here.
fn target_dir() -> PathBuf {
    let outer = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    tree::root().join(outer).join("noos")
}

/// Names of all packages that the program is built from.
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
