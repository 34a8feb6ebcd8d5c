//! Whether an open file still has the content that it had when it was opened.
//!
//! Called by every backend after each read of a file that was opened as [`DiskAccess::Content`]:
//! [`Promise::check`] compares the file's metadata with what it was. A read whose file changed
//! returns another [`FileStat::version`] than the open did, and its asker ends the transfers.
//!
//! What metadata of Linux can tell: a writer sets mtime before the first byte changes
//! (through a mapping: when its page is first written), and ctime with it. So with neither changed
//! since the open the bytes are the same, within the clock of the file system. `chmod`, `chown`,
//! `touch -a`, links, `unlink` and a rename over the file change ctime and leave mtime, size and
//! bytes alone. An append changes size and mtime, and so does a program that rewrites the file in
//! place to be longer: no metadata tells the two apart (the change cookie of the kernel is not
//! given to programs, and no notification has a range). So [`ChangeRule::Content`] asks the
//! content: the last bytes that were promised must still be what they were when the file was
//! opened. A file that was made anew with other content has others there, for what follows an
//! insertion moves.
//!
//! An append in progress looks like rewriting in place, between its new mtime and its new size:
//! such a file is looked at again for a moment, before its transfers end.
//!
//! What this does not see, and [`ChangeRule::Strict`] does: between two reads of ours, a program
//! that rewrites bytes before the last [`SAMPLE_BYTES`] promised and makes the file longer as well,
//! or that sets mtime back to the nanosecond.
#![expect(unsafe_code, reason = "statfs")]

use std::ffi::CString;
use std::fs::{File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use abi::disk::DiskAccess;
use abi::{FileFault, FileKind, FileStat};

use super::root::{fault, mix, stat};

/// Promised bytes whose content is compared when metadata cannot tell.
const SAMPLE_BYTES: u64 = 4096;

/// Looks at a file that may be growing: some milliseconds, enough for a writer that was preempted.
const GROWTH_LOOKS: u32 = 2000;

/// The rule for changes of a file that is being sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChangeRule {
    /// Truncation, and rewriting in place. Mode, owner, links, access time, another file under its
    /// name and bytes appended change nothing that was promised.
    #[default]
    Content,
    /// Any change of its metadata.
    Strict,
}

/// Metadata that changes with content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Marks {
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Marks {
    fn of(meta: &Metadata) -> Self {
        Self {
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }

    fn read(file: &File) -> Result<Self, FileFault> {
        file.metadata().map(|meta| Self::of(&meta)).map_err(|error| fault(&error))
    }

    /// Returns whether a file that was `before` was rewritten in place, or is about to grow: a
    /// write sets mtime first, and moves the end of the file when the bytes are there.
    fn may_grow_from(&self, before: &Self) -> bool {
        self.size == before.size && self.modified != before.modified
    }
}

/// The state of the promised bytes.
#[derive(Clone, Copy, Debug)]
enum State {
    /// They are what they were, when the metadata was `seen`.
    Kept { seen: Marks, sample: Option<u64> },
    /// They are not, and never will be.
    Broken,
}

/// The content that an open file had when it was opened.
#[derive(Debug)]
pub(super) struct Promise {
    rule: ChangeRule,
    access: DiskAccess,
    stat: FileStat,
    at_open: Marks,
    state: Mutex<State>,
}

impl Promise {
    /// Promises what a file has now.
    pub(super) fn new(
        file: &File,
        access: DiskAccess,
        rule: ChangeRule,
    ) -> Result<Self, FileFault> {
        let meta = file.metadata().map_err(|error| fault(&error))?;
        let (stat, at_open) = (stat(file, &meta)?, Marks::of(&meta));
        let state = Mutex::new(State::Kept { seen: at_open, sample: None });
        Ok(Self { rule, access, stat, at_open, state })
    }

    /// Metadata at the open.
    pub(super) const fn stat(&self) -> FileStat {
        self.stat
    }

    /// The range whose content [`Self::note_sample`] wants, if any.
    pub(super) fn sample_range(&self) -> Option<(u64, usize)> {
        let wanted = self.rule == ChangeRule::Content
            && self.access == DiskAccess::Content
            && self.stat.kind == FileKind::Regular
            && self.stat.size > 0;
        let len = self.stat.size.min(SAMPLE_BYTES);
        wanted.then(|| (self.stat.size - len, usize::try_from(len).unwrap_or(0)))
    }

    /// Notes the content of [`Self::sample_range`], read after the open. Whoever changed the file
    /// meanwhile has changed its metadata: then the bytes are not those that were promised.
    pub(super) fn note_sample(&self, file: &File, bytes: &[u8]) {
        let whole = self.sample_range().is_some_and(|(_, len)| bytes.len() == len);
        if whole && Marks::read(file) == Ok(self.at_open) {
            if let State::Kept { sample, .. } = &mut *self.lock() {
                *sample = Some(digest(bytes));
            }
        }
    }

    /// Reads the sample in the calling thread.
    pub(super) fn take_sample(&self, file: &File) {
        if let Some(bytes) = self.read_sample(file) {
            self.note_sample(file, &bytes);
        }
    }

    /// The metadata to return with a read that has just ended: that of the open while the promised
    /// bytes are what they were, else what the file has now, with another version.
    pub(super) fn check(&self, file: &File) -> Result<FileStat, FileFault> {
        let meta = file.metadata().map_err(|error| fault(&error))?;
        if Marks::of(&meta) == self.at_open && self.stat.kind != FileKind::Block {
            return Ok(self.stat);
        }
        if self.rule == ChangeRule::Strict || self.access != DiskAccess::Content {
            return stat(file, &meta);
        }
        // Looked at again under the lock: so that looks of several threads are in order.
        let mut state = self.lock();
        let mut meta = file.metadata().map_err(|error| fault(&error))?;
        if let State::Kept { seen, .. } = &*state {
            for _ in 0..GROWTH_LOOKS {
                if !Marks::of(&meta).may_grow_from(seen) {
                    break;
                }
                std::thread::yield_now();
                meta = file.metadata().map_err(|error| fault(&error))?;
            }
        }
        let now = Marks::of(&meta);
        *state = match *state {
            State::Kept { seen, sample } if self.is_kept(file, seen, now, sample) => {
                State::Kept { seen: now, sample }
            }
            State::Kept { .. } | State::Broken => State::Broken,
        };
        match *state {
            State::Kept { .. } => Ok(self.stat),
            State::Broken => stat(file, &meta),
        }
    }

    fn is_kept(&self, file: &File, seen: Marks, now: Marks, sample: Option<u64>) -> bool {
        let untouched = (now.size, now.modified) == (seen.size, seen.modified);
        if now == seen || self.at_open.size == 0 {
            return true;
        }
        if now.size < self.at_open.size || !(untouched || now.size > seen.size) {
            return false;
        }
        match sample {
            Some(sample) => self.read_sample(file).is_some_and(|now| digest(&now) == sample),
            // Cold still: its metadata is all that speaks for the file.
            None => untouched,
        }
    }

    fn read_sample(&self, file: &File) -> Option<Vec<u8>> {
        let (offset, len) = self.sample_range()?;
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, offset).ok()?;
        Some(bytes)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // Every change of the state is one assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A hash of content. Not keyed: whoever can choose the content of a file can also send another.
fn digest(bytes: &[u8]) -> u64 {
    let word = |chunk: &[u8]| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    };
    bytes.chunks(8).fold(bytes.len() as u64, |state, chunk| mix(state, word(chunk)))
}

/// Returns why changes of files below `root` may be seen late or not at all, if its file system is
/// known for that: for the operator.
#[must_use]
pub fn weak_time_stamps(root: &Path) -> Option<&'static str> {
    let path = CString::new(root.as_os_str().as_bytes()).ok()?;
    // SAFETY: a statfs is plain data, valid as zeroes.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is NUL-terminated, `found` is valid for the call, and both outlive it.
    if unsafe { libc::statfs(path.as_ptr(), &raw mut found) } != 0 {
        return None;
    }
    // statfs(2) lists the numbers.
    match found.f_type {
        0x6969 => Some("NFS tells of changes by others late"),
        0xff53_4d42 | 0xfe53_4d42 => Some("SMB tells of changes by others late"),
        0x0102_1997 => Some("9P tells of changes by others late"),
        0x6573_5546 => Some("FUSE tells of changes as the program behind it does"),
        0x4d44 => Some("FAT has time stamps of two seconds"),
        0x2011_bab0 => Some("exFAT has time stamps of ten milliseconds"),
        _ => None,
    }
}
