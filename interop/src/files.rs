//! Files to serve: a folder that goes with the test, filled with a pattern that repeats from a
//! seed.

use crate::tool;
use base::Prng;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A folder of files to serve.
#[derive(Debug)]
pub struct Files {
    folder: TempDir,
}

impl Files {
    /// An empty folder inside `parent`, which tests give as `env!("CARGO_TARGET_TMPDIR")`: on the
    /// disk that the build uses, where `/tmp` may be memory and refuse direct I/O.
    ///
    /// # Panics
    /// Where it cannot be made.
    #[must_use]
    pub fn new(parent: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("site-").tempdir_in(parent);
        Self { folder: folder.unwrap_or_else(|e| panic!("no folder in {parent}: {e}")) }
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file of `text`, with the folders above it.
    ///
    /// # Panics
    /// Where it cannot be written.
    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.prepare(name);
        fs::write(&path, text).unwrap_or_else(|e| panic!("cannot write {name}: {e}"));
        path
    }

    /// Writes a file of `bytes` bytes of [`pattern`], seeded by its length.
    ///
    /// # Panics
    /// Where it cannot be written.
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

    /// Makes a file of `bytes` zeros that takes no room, as an empty disk.
    ///
    /// # Panics
    /// Where it cannot be made.
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

/// The bytes that [`Files::fill`] writes for a file of `bytes` bytes.
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

/// The SHA-256 of a file as `sha256sum` prints it: not our code, and not the code under test.
///
/// # Panics
/// Where the file cannot be read.
#[must_use]
pub fn sha256(path: &Path) -> String {
    let file = File::open(path).unwrap_or_else(|e| panic!("cannot open {}: {e}", path.display()));
    let output = tool::run_on(file, &mut tool::command("sha256sum"));
    assert!(output.status.success(), "sha256sum of {}", path.display());
    first_word(&output.stdout)
}

/// The sum in what `sha256sum` printed.
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
