//! The working tree: its root and its files.
//!
//! Used by every check. Files are those that git tracks, and untracked files that are not ignored,
//! so that a check sees new files before they are committed and never sees build output.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the repository's root: the parent of this crate's folder.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// Returns the paths of all files of the tree, relative to its root, sorted.
///
/// # Errors
/// Reports that git cannot be run, or fails.
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

/// Returns the text of a file of the tree.
///
/// # Errors
/// Reports a file that cannot be read, or is not UTF-8.
pub(crate) fn read(path: &str) -> Result<String, String> {
    std::fs::read_to_string(root().join(path)).map_err(|e| format!("{path}: {e}"))
}

/// Returns the names of the folders directly below `crates/` that contain a manifest, in order of
/// `files`.
pub(crate) fn crates(files: &[String]) -> Vec<String> {
    files
        .iter()
        .filter_map(|path| path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml"))
        .filter(|name| !name.contains('/'))
        .map(str::to_owned)
        .collect()
}

/// Returns the folder below `crates` of a package of the workspace.
pub(crate) fn folder(package: &str) -> &str {
    package.strip_prefix("outboard-").unwrap_or(package)
}

/// Returns the name of the package in a folder below `crates`.
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
