//! Files to serve: a temporary folder, filled with a pattern that depends on a seed.

use crate::tool;
use base::Prng;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A folder of files to serve, removed when this is dropped.
#[derive(Debug)]
pub struct Files {
    folder: TempDir,
}

impl Files {
    /// Creates an empty folder inside `parent`, which is `env!("CARGO_TARGET_TMPDIR")` in tests: on
    /// the disk of the build, since `/tmp` may be in memory and refuse direct I/O.
    ///
    /// # Panics
    /// If it cannot be created.
    #[must_use]
    pub fn new(parent: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("site-").tempdir_in(parent);
        Self { folder: folder.unwrap_or_else(|e| panic!("no folder in {parent}: {e}")) }
    }

    /// Returns the folder's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file with this content, and the folders above it. Returns its path.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.prepare(name);
        fs::write(&path, text).unwrap_or_else(|e| panic!("cannot write {name}: {e}"));
        path
    }

    /// Writes a file of `bytes` bytes of [`pattern`], seeded by its length. Returns its path.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn fill(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.prepare(name);
        let written = File::create(&path).and_then(|file| {
            let mut out = BufWriter::with_capacity(1 << 20, file);
            let mut prng = Prng::new(bytes);
            let mut left = bytes;
            while left > 0 {
                let word = prng.next_u64().to_le_bytes();
                let take = usize::try_from(left).map_or(word.len(), |left| left.min(word.len()));
                out.write_all(&word[..take])?;
                left -= take as u64;
            }
            out.flush()
        });
        written.unwrap_or_else(|e| panic!("cannot write {name}: {e}"));
        path
    }

    /// Creates a sparse file of `bytes` zeros, such as an empty disk. Returns its path.
    ///
    /// # Panics
    /// If it cannot be created.
    pub fn sparse(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.prepare(name);
        let made = File::create(&path).and_then(|file| file.set_len(bytes));
        made.unwrap_or_else(|e| panic!("cannot make {name}: {e}"));
        path
    }

    fn prepare(&self, name: &str) -> PathBuf {
        let path = self.path().join(name);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).unwrap_or_else(|e| panic!("no folder for {name}: {e}"));
        }
        path
    }
}

/// Returns the bytes that [`Files::fill`] writes to a file of `bytes` bytes.
#[must_use]
pub fn pattern(bytes: usize) -> Vec<u8> {
    let mut prng = Prng::new(bytes as u64);
    let mut all = Vec::with_capacity(bytes + 8);
    while all.len() < bytes {
        all.extend_from_slice(&prng.next_u64().to_le_bytes());
    }
    all.truncate(bytes);
    all
}

/// Returns the SHA-256 of a file, computed by `sha256sum`, independently of our code.
///
/// # Panics
/// If the file cannot be read.
#[must_use]
pub fn sha256(path: &Path) -> String {
    let file = File::open(path).unwrap_or_else(|e| panic!("cannot open {}: {e}", path.display()));
    let output = tool::run_on(file, &mut tool::command("sha256sum"));
    assert!(output.status.success(), "sha256sum of {}", path.display());
    first_word(&output.stdout)
}

/// Returns the hash in the output of `sha256sum`.
pub(crate) fn first_word(printed: &[u8]) -> String {
    String::from_utf8_lossy(printed).split(' ').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_hold_the_pattern_and_go_away() {
        let parent = std::env::temp_dir();
        let files = Files::new(&parent.to_string_lossy());
        for bytes in [0, 1, 7, 8, 4097] {
            let path = files.fill("a/b", bytes as u64);
            assert_eq!(fs::read(path).unwrap(), pattern(bytes));
        }
        let path = files.write("c", "abc");
        // FIPS 180-2, appendix B.1.
        assert!(sha256(&path).starts_with("ba7816bf8f01cfea"));
        let folder = files.path().to_owned();
        drop(files);
        assert!(!folder.exists());
    }
}
