//! The file of a download: `FILE.part` until it is complete, then renamed to `FILE`.
//!
//! `FILE.part.json` beside it has the validator of the object and the ranges that were written, so
//! that an interrupted download can be continued, also after a crash of the program. It is replaced
//! about once a second, after the bytes were written; bytes since then are fetched again. Files
//! whose object has no validator cannot be continued, and have no such state.

use std::fs::{self, File, OpenOptions};
use std::io::Read as _;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use apps::get::ResumePoint;
use aws_lc_rs::digest::{Context, SHA256};
use base::{Duration, Instant};
use serde::{Deserialize, Serialize};

/// Interval at which the state is saved.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum length of the file of the state, in bytes.
const STATE_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of attempts of an open that races with the end of another download.
const OPEN_TRIES: usize = 8;
/// Bytes read at a time for the checksum.
const READ_BYTES: usize = 1 << 20;

/// Content of the state file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PartState {
    url: String,
    validator: String,
    length: u64,
    /// Ranges that were written: first byte and end, ascending and apart.
    done: Vec<(u64, u64)>,
}

impl PartState {
    /// Returns whether the state is possible for a file of `bytes` bytes.
    fn is_valid(&self, bytes: u64) -> bool {
        let mut at = None;
        self.done.iter().all(|&(start, end)| {
            let ascending = at.is_none_or(|at| at < start) && start < end;
            at = Some(end);
            ascending && end <= self.length.min(bytes)
        })
    }

    fn missing(&self) -> Vec<Range<u64>> {
        let (mut missing, mut at) = (Vec::new(), 0);
        for &(start, end) in self.done.iter().chain([&(self.length, self.length)]) {
            if at < start {
                missing.push(at..start);
            }
            at = end;
        }
        missing
    }
}

/// Adds a range to ascending ranges, and joins those that touch.
fn insert_range(done: &mut Vec<(u64, u64)>, start: u64, end: u64) {
    let first = done.partition_point(|&(_, e)| e < start);
    let behind = done.partition_point(|&(s, _)| s <= end);
    let joined = done.get(first..behind).unwrap_or_default();
    let start = joined.first().map_or(start, |&(s, _)| s.min(start));
    let end = joined.last().map_or(end, |&(_, e)| e.max(end));
    done.splice(first..behind.max(first), [(start, end)]);
}

/// Reason for which a file cannot be opened for a download.
#[derive(Debug, thiserror::Error)]
pub(super) enum PartFileError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// Another download of this file was interrupted.
    #[error(
        "{} is an interrupted transfer of {url}; continue it with --continue, or remove it",
        .part.display()
    )]
    Interrupted { part: PathBuf, url: String },
    /// Another process is downloading this file.
    #[error(
        "another process is writing {}; wait for its end, or choose another file",
        .part.display()
    )]
    InUse { part: PathBuf },
}

/// A file that is being downloaded.
#[derive(Debug)]
pub(super) struct PartFile {
    target: PathBuf,
    part: PathBuf,
    state_path: PathBuf,
    file: File,
    url: String,
    /// `None` until the download has begun, and if it cannot be continued.
    state: Option<PartState>,
    saved_at: Instant,
    /// The state has changed since then.
    is_changed: bool,
}

impl PartFile {
    /// Opens the file for a download to `target`. Nothing of it is changed before [`Self::begin`].
    ///
    /// # Errors
    /// Fails if another process downloads it, an interrupted download would be lost, or the file
    /// cannot be created.
    pub(super) fn open(target: &Path, url: &str, continues: bool) -> Result<Self, PartFileError> {
        // A symbolic link stays one.
        let target = fs::canonicalize(target).unwrap_or_else(|_| target.to_owned());
        let with = |suffix: &str| {
            let mut path = target.clone().into_os_string();
            path.push(suffix);
            PathBuf::from(path)
        };
        let (part, state_path) = (with(".part"), with(".part.json"));
        let file = open_locked(&part)?;
        let state = read_state(&state_path).filter(|_| file.metadata().is_ok());
        let bytes = file.metadata()?.len();
        let state = state.filter(|state| state.is_valid(bytes));
        if let Some(state) = state.as_ref().filter(|state| !continues || state.url != url) {
            return Err(PartFileError::Interrupted { part, url: state.url.clone() });
        }
        let (url, saved_at) = (url.to_owned(), Instant::ZERO);
        Ok(Self { target, part, state_path, file, url, state, saved_at, is_changed: false })
    }

    /// Returns the point at which the download continues; `None` if it begins with the first byte.
    pub(super) fn resume_point(&self) -> Option<ResumePoint> {
        let PartState { validator, length, .. } = self.state.as_ref()?;
        let (validator, length, missing) =
            (validator.clone(), *length, self.state.as_ref()?.missing());
        Some(ResumePoint { validator, length, missing })
    }

    /// Returns the number of bytes that were written, also by earlier runs.
    pub(super) fn written_bytes(&self) -> u64 {
        let done = self.state.iter().flat_map(|state| &state.done);
        done.map(|(start, end)| end - start).sum()
    }

    /// Prepares for content from the beginning of the object.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub(super) fn begin(
        &mut self,
        length: Option<u64>,
        validator: Option<String>,
    ) -> std::io::Result<()> {
        self.file.set_len(0)?;
        self.state = validator.zip(length).map(|(validator, length)| PartState {
            url: self.url.clone(),
            validator,
            length,
            done: Vec::new(),
        });
        match &self.state {
            Some(_) => self.save(),
            None => remove_if_there(&self.state_path),
        }
    }

    /// Writes content, and saves the state now and then.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub(super) fn write(&mut self, now: Instant, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.file.write_all_at(bytes, offset)?;
        let Some(state) = &mut self.state else { return Ok(()) };
        insert_range(&mut state.done, offset, offset + bytes.len() as u64);
        self.is_changed = true;
        self.save_if_due(now)
    }

    /// Saves the state, if it has changed and was last saved more than a second ago.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub(super) fn save_if_due(&mut self, now: Instant) -> std::io::Result<()> {
        if !self.is_changed || now.since(self.saved_at) < SAVE_INTERVAL {
            return Ok(());
        }
        (self.saved_at, self.is_changed) = (now, false);
        self.save()
    }

    /// Replaces the state file.
    fn save(&self) -> std::io::Result<()> {
        let Some(state) = &self.state else { return Ok(()) };
        let mut path = self.state_path.clone().into_os_string();
        path.push(".new");
        fs::write(&path, serde_json::to_vec(state)?)?;
        fs::rename(&path, &self.state_path)
    }

    /// Returns the SHA-256 of the file.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub(super) fn sha256(&self) -> std::io::Result<[u8; 32]> {
        let (mut context, mut file) = (Context::new(&SHA256), File::open(&self.part)?);
        let mut buffer = vec![0; READ_BYTES];
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                bytes => context.update(buffer.get(..bytes).unwrap_or_default()),
            }
        }
        let mut sum = [0; 32];
        sum.copy_from_slice(context.finish().as_ref());
        Ok(sum)
    }

    /// Renames the complete file to its name. An existing file is replaced, and its permissions are
    /// kept.
    ///
    /// # Errors
    /// Fails if the bytes cannot be stored or the file cannot be renamed.
    pub(super) fn complete(&self) -> std::io::Result<()> {
        if let Ok(metadata) = fs::metadata(&self.target) {
            self.file.set_permissions(metadata.permissions())?;
        }
        // Otherwise a crash of the system after the rename could leave an incomplete file.
        self.file.sync_all()?;
        fs::rename(&self.part, &self.target)?;
        remove_if_there(&self.state_path)
    }

    /// Keeps what an incomplete download can be continued from, if `keep` and there is any; else
    /// removes the file.
    ///
    /// # Errors
    /// Fails if the state cannot be saved or a file cannot be removed.
    pub(super) fn abandon(&self, keep: bool) -> std::io::Result<()> {
        match &self.state {
            Some(state) if keep && !state.done.is_empty() => self.save(),
            _ => {
                remove_if_there(&self.state_path)?;
                remove_if_there(&self.part)
            }
        }
    }
}

/// Opens the file of a download and locks it, until it is closed, against other downloads.
fn open_locked(part: &Path) -> Result<File, PartFileError> {
    for _ in 0..OPEN_TRIES {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(part)?;
        if !io::disk::lock(&file)? {
            break;
        }
        // A download that has ended meanwhile has renamed or removed the file that was opened here.
        let ours = file.metadata()?;
        if fs::metadata(part).is_ok_and(|m| (m.dev(), m.ino()) == (ours.dev(), ours.ino())) {
            return Ok(file);
        }
    }
    Err(PartFileError::InUse { part: part.to_owned() })
}

/// Reads a state; `None` if there is none, or it is not one of ours.
fn read_state(path: &Path) -> Option<PartState> {
    let mut text = Vec::new();
    File::open(path).ok()?.take(STATE_BYTES_MAX).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

fn remove_if_there(path: &Path) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that is removed at the end of its test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("outboard-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap();
            let mut names: Vec<_> = entries
                .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
                .collect();
            names.sort();
            names
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn open(target: &Path, continues: bool) -> Result<PartFile, PartFileError> {
        PartFile::open(target, "http://a/x", continues)
    }

    #[test]
    fn ranges_are_joined() {
        let mut done = Vec::new();
        for (start, end) in [(10, 20), (30, 40), (0, 5), (20, 25), (5, 10), (50, 60), (24, 52)] {
            insert_range(&mut done, start, end);
        }
        assert_eq!(done, [(0, 60)]);
        insert_range(&mut done, 70, 80);
        let state = PartState { url: String::new(), validator: String::new(), length: 90, done };
        assert_eq!(state.missing(), [60..70, 80..90]);
        assert!(state.is_valid(80) && !state.is_valid(79));
        for done in [vec![(5, 5)], vec![(5, 9), (9, 10)], vec![(7, 9), (1, 2)], vec![(80, 91)]] {
            assert!(!PartState { done: done.clone(), ..state.clone() }.is_valid(100), "{done:?}");
        }
    }

    #[test]
    fn a_complete_file_replaces_the_old_one() {
        let folder = Folder::new("part-complete");
        let target = folder.0.join("x");
        fs::write(&target, "old").unwrap();
        let mut file = open(&target, false).unwrap();
        file.begin(Some(6), Some("\"v\"".to_owned())).unwrap();
        file.write(Instant::ZERO, 3, b"def").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"old");
        file.write(Instant::ZERO, 0, b"abc").unwrap();
        // FIPS 180-2 has no vector of this text; `printf abcdef | sha256sum` computes it.
        assert_eq!(file.sha256().unwrap()[..4], [0xbe, 0xf5, 0x7e, 0xc7]);
        file.complete().unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"abcdef");
        assert_eq!(folder.names(), ["x"]);
    }

    #[test]
    fn an_interrupted_file_is_never_lost() {
        let folder = Folder::new("part-interrupted");
        let target = folder.0.join("x");
        let mut file = open(&target, false).unwrap();
        file.begin(Some(10), Some("\"v\"".to_owned())).unwrap();
        file.write(Instant::ZERO, 2, b"cde").unwrap();
        let busy = open(&target, true).unwrap_err().to_string();
        assert!(busy.contains("another process is writing"), "{busy}");
        file.abandon(true).unwrap();
        drop(file);
        let refused = open(&target, false).unwrap_err().to_string();
        assert!(refused.contains("continue it with --continue"), "{refused}");
        assert!(PartFile::open(&target, "http://other/", true).is_err());
        let mut file = open(&target, true).unwrap();
        let point = file.resume_point().unwrap();
        assert_eq!((point.validator.as_str(), point.length), ("\"v\"", 10));
        assert_eq!((point.missing, file.written_bytes()), (vec![0..2, 5..10], 3));
        // The object has changed, and cannot be continued any longer.
        file.begin(None, None).unwrap();
        file.write(Instant::ZERO, 0, b"new").unwrap();
        file.abandon(true).unwrap();
        drop(file);
        let file = open(&target, false).unwrap();
        file.abandon(true).unwrap();
        assert_eq!(folder.names(), Vec::<String>::new());
    }

    #[test]
    fn an_impossible_state_is_ignored() {
        let folder = Folder::new("part-impossible");
        let target = folder.0.join("x");
        for text in
            ["", "{}", "[1]", r#"{"url":"http://a/x","validator":"v","length":9,"done":[[0,5]]}"#]
        {
            fs::write(folder.0.join("x.part.json"), text).unwrap();
            assert!(open(&target, true).unwrap().resume_point().is_none(), "{text}");
        }
    }
}
