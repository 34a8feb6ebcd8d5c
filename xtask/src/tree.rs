//! The working tree: its root and the files that belong to it.
//!
//! Used by every check. Files are what git tracks plus what it would track (untracked and not
//! ignored), so that a check sees new files before they are committed and never sees build output.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The repository's root folder: the parent of this crate's folder.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// Paths of all files of the tree, relative to its root, sorted.
///
/// # Errors
/// A line to show where git cannot be run or refuses.
pub(crate) fn files() -> Result<Vec<String>, String> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .map_err(|e| format!("cannot run git: {e}"))?;
    if !output.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let mut files: Vec<String> = text
        .split('\0')
        // A tracked file that was deleted but not yet committed is still listed.
        .filter(|path| !path.is_empty() && root().join(path).is_file())
        .map(str::to_owned)
        .collect();
    files.sort();
    files.dedup();
    Ok(files)
}

/// The text of one file of the tree.
///
/// # Errors
/// A line to show where it cannot be read or is not UTF-8.
pub(crate) fn read(path: &str) -> Result<String, String> {
    std::fs::read_to_string(root().join(path)).map_err(|e| format!("{path}: {e}"))
}

/// Names of the folders directly under `crates/` that hold a manifest, sorted.
pub(crate) fn crates(files: &[String]) -> Vec<String> {
    files
        .iter()
        .filter_map(|path| path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml"))
        .filter(|name| !name.contains('/'))
        .map(str::to_owned)
        .collect()
}

/// Returns the folder of a package of the workspace below `crates`.
pub(crate) fn folder(package: &str) -> &str {
    package.strip_prefix("outboard-").unwrap_or(package)
}

/// Returns the package in a folder below `crates`.
pub(crate) fn package(folder: &str) -> String {
    if folder == "outboard" { folder.to_owned() } else { format!("outboard-{folder}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_have_the_project_name_in_front() {
        for (name, below) in [("outboard-nvme-psk", "nvme-psk"), ("outboard", "outboard")] {
            assert_eq!((folder(name), package(below).as_str()), (below, name));
        }
    }

    #[test]
    fn crates_are_folders_with_a_manifest() {
        let files = ["crates/a/Cargo.toml", "crates/a/src/lib.rs", "crates/a/b/Cargo.toml", "x"];
        assert_eq!(crates(&files.map(String::from)), ["a"]);
    }
}
