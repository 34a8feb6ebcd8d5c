//! Detects whether an open file still has the content that it had when it was opened.
//!
//! Called by all backends after each read of a file that was opened as [`DiskAccess::Content`]:
//! [`ContentPromise::check`] compares the file's metadata with those of the open. If the content
//! has changed, the read returns another [`FileStat::version`] than the open did, and the requester
//! ends its transfers.
//!
//! Metadata on Linux: a writer sets mtime before the first byte changes (through a mapping: at the
//! first write to a page), and ctime with it. So if neither has changed since the open, the bytes
//! are the same, up to the resolution of the file system's clock. `chmod`, `chown`, `touch -a`,
//! links, `unlink` and a rename over the file change ctime, but not mtime, size or bytes. An append
//! changes size and mtime, and so does a program that rewrites the file in place to be longer. No
//! metadata distinguishes these two: the kernel does not export its change cookie, and no
//! notification carries a range. So [`ChangeRule::Content`] compares content: the last promised
//! bytes must be those of the open. A file rewritten with other content has other bytes there,
//! since everything after an insertion moves.
//!
//! Between its new mtime and its new size, an append in progress looks like a rewrite in place. So
//! such a file is examined again for up to [`GROWTH_WAIT`] before its transfers end.
//!
//! Not detected here, but by [`ChangeRule::Strict`]: between two reads, a program rewrites bytes
//! before the last [`SAMPLE_BYTES`] and also makes the file longer, or restores mtime to the
//! nanosecond.
#![expect(unsafe_code, reason = "statfs")]

use std::ffi::CString;
use std::fs::{File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use abi::disk::DiskAccess;
use abi::{FileFault, FileKind, FileStat};
use base::Duration;

use super::resolve::file_fault_of;
use super::root::{mix, stat};
use crate::clock::MonotonicClock;

/// Size of the sample: the last promised bytes, compared if metadata cannot decide.
const SAMPLE_BYTES: u64 = 4096;

/// How long a file that may be growing is examined again: longer than a time slice, because the
/// writer may be preempted between its new mtime and its new size.
pub(super) const GROWTH_WAIT: Duration = Duration::from_millis(10);

/// Which changes of a file end its transfers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChangeRule {
    /// Truncation, and rewriting in place. Changes of mode, owner, links or access time, another
    /// file under the same name, and appended bytes are allowed.
    #[default]
    Content,
    /// Any change of metadata.
    Strict,
}

/// Metadata that changes with the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileMarks {
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileMarks {
    fn of(meta: &Metadata) -> Self {
        Self {
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }

    fn read(file: &File) -> Result<Self, FileFault> {
        file.metadata().map(|meta| Self::of(&meta)).map_err(|error| file_fault_of(&error))
    }

    /// Returns whether a file with metadata `before` was rewritten in place, or is about to grow: a
    /// write sets mtime first, and the size only when the bytes are written.
    fn may_grow_from(&self, before: &Self) -> bool {
        self.size == before.size && self.modified != before.modified
    }
}

/// State of the promised bytes.
#[derive(Clone, Copy, Debug)]
enum PromiseState {
    /// Unchanged when the metadata was `seen`. `sample` is the digest of the sample, if it was
    /// read.
    Kept { seen: FileMarks, sample: Option<u64> },
    /// Changed; final.
    Broken,
}

/// The promise of an open file: the content at its open.
#[derive(Debug)]
pub(super) struct ContentPromise {
    rule: ChangeRule,
    access: DiskAccess,
    stat: FileStat,
    at_open: FileMarks,
    state: Mutex<PromiseState>,
}

impl ContentPromise {
    /// Promises the file's present content.
    pub(super) fn new(
        file: &File,
        access: DiskAccess,
        rule: ChangeRule,
    ) -> Result<Self, FileFault> {
        let meta = file.metadata().map_err(|error| file_fault_of(&error))?;
        let (stat, at_open) = (stat(file, &meta)?, FileMarks::of(&meta));
        let state = Mutex::new(PromiseState::Kept { seen: at_open, sample: None });
        Ok(Self { rule, access, stat, at_open, state })
    }

    /// Returns the metadata at the open.
    pub(super) const fn stat(&self) -> FileStat {
        self.stat
    }

    /// Returns offset and length of the sample for [`Self::record_sample`], if one is needed.
    pub(super) fn sample_range(&self) -> Option<(u64, usize)> {
        let wanted = self.rule == ChangeRule::Content
            && self.access == DiskAccess::Content
            && self.stat.kind == FileKind::Regular
            && self.stat.size > 0;
        let len = self.stat.size.min(SAMPLE_BYTES);
        wanted.then(|| (self.stat.size - len, usize::try_from(len).unwrap_or(0)))
    }

    /// Records the content of [`Self::sample_range`], read after the open. It is discarded if the
    /// metadata have changed since, because the bytes may not be the promised ones.
    pub(super) fn record_sample(&self, file: &File, bytes: &[u8]) {
        let whole = self.sample_range().is_some_and(|(_, len)| bytes.len() == len);
        if whole && FileMarks::read(file) == Ok(self.at_open) {
            if let PromiseState::Kept { sample, .. } = &mut *self.lock() {
                *sample = Some(digest(bytes));
            }
        }
    }

    /// Reads the sample in the calling thread.
    pub(super) fn read_and_record_sample(&self, file: &File) {
        if let Some(bytes) = self.read_sample(file) {
            self.record_sample(file, &bytes);
        }
    }

    /// Returns the metadata for a read that has just ended: those of the open while the promised
    /// bytes are unchanged, otherwise the present ones, with another version.
    pub(super) fn check(&self, file: &File) -> Result<FileStat, FileFault> {
        let meta = file.metadata().map_err(|error| file_fault_of(&error))?;
        if FileMarks::of(&meta) == self.at_open && self.stat.kind != FileKind::Block {
            return Ok(self.stat);
        }
        if self.rule == ChangeRule::Strict || self.access != DiskAccess::Content {
            return stat(file, &meta);
        }
        // Read again under the lock, so that the looks of several threads are ordered.
        let mut state = self.lock();
        let mut meta = file.metadata().map_err(|error| file_fault_of(&error))?;
        if let PromiseState::Kept { seen, .. } = &*state {
            let clock = MonotonicClock::new();
            let end = clock.now() + GROWTH_WAIT;
            while FileMarks::of(&meta).may_grow_from(seen) && clock.now() < end {
                std::thread::yield_now();
                meta = file.metadata().map_err(|error| file_fault_of(&error))?;
            }
        }
        let now = FileMarks::of(&meta);
        *state = match *state {
            PromiseState::Kept { seen, sample } if self.is_kept(file, seen, now, sample) => {
                PromiseState::Kept { seen: now, sample }
            }
            PromiseState::Kept { .. } | PromiseState::Broken => PromiseState::Broken,
        };
        match *state {
            PromiseState::Kept { .. } => Ok(self.stat),
            PromiseState::Broken => stat(file, &meta),
        }
    }

    fn is_kept(&self, file: &File, seen: FileMarks, now: FileMarks, sample: Option<u64>) -> bool {
        let untouched = (now.size, now.modified) == (seen.size, seen.modified);
        if now == seen || self.at_open.size == 0 {
            return true;
        }
        if now.size < self.at_open.size || !(untouched || now.size > seen.size) {
            return false;
        }
        match sample {
            Some(sample) => self.read_sample(file).is_some_and(|now| digest(&now) == sample),
            // Without a sample only the metadata can tell.
            None => untouched,
        }
    }

    fn read_sample(&self, file: &File) -> Option<Vec<u8>> {
        let (offset, len) = self.sample_range()?;
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, offset).ok()?;
        Some(bytes)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, PromiseState> {
        // A panic cannot leave the state half written: every change is one assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a hash of content. Not keyed: a user who controls a file's content can also replace it.
fn digest(bytes: &[u8]) -> u64 {
    let word = |chunk: &[u8]| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    };
    bytes.chunks(8).fold(bytes.len() as u64, |state, chunk| mix(state, word(chunk)))
}

/// Returns the reason for which changes of files below `root` may be detected late or not at all,
/// if its file system is known for that. The text is for the operator.
#[must_use]
pub fn unreliable_metadata_reason(root: &Path) -> Option<&'static str> {
    let path = CString::new(root.as_os_str().as_bytes()).ok()?;
    // SAFETY: a statfs is plain data, valid as zeroes.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is NUL-terminated, `found` is valid for the call, and both outlive it.
    if unsafe { libc::statfs(path.as_ptr(), &raw mut found) } != 0 {
        return None;
    }
    // Numbers from statfs(2).
    match found.f_type {
        0x6969 => Some("changes by other NFS clients are seen late"),
        0xff53_4d42 | 0xfe53_4d42 => Some("changes by other SMB clients are seen late"),
        0x0102_1997 => Some("changes by other 9P clients are seen late"),
        0x6573_5546 => Some("the FUSE server decides when changes are seen"),
        0x4d44 => Some("FAT time stamps have a resolution of 2 s"),
        0x2011_bab0 => Some("exFAT time stamps have a resolution of 10 ms"),
        _ => None,
    }
}
