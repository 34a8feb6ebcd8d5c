//! The files that hosts have open.
//!
//! The version that the cache uses is the disk's for content files: equal versions mean equal
//! bytes, regardless of who opened them. Namespaces are writable, so their disk versions mean
//! nothing; each open of a namespace gets a version of its own and shares no blocks.
//!
//! A file is named by its queue and the host's ID. When the host closes a file, its name is removed
//! at once. The entry and the disk's handle remain until the last transmit and the last read that
//! use the file are done; those refer to the entry by its [`SlabKey`].

use abi::disk::{DiskAccess, DiskFile};
use abi::{FileAccess, FileFault, FileId, FileStat, Refusal};
use alloc::boxed::Box;
use base::mix;
use hashbrown::HashTable;
use smallvec::SmallVec;

use structures::slab::{Slab, SlabKey};

/// Domain separator for the versions of namespaces.
const NAMESPACE: u64 = 0x6e73_7061_6365;

/// Queue of the IDs that [`OpenFiles::pin`] returns. No host has it.
pub(crate) const PINNED: usize = usize::MAX;

#[derive(Debug)]
enum OpenStage {
    /// The disk has not answered yet.
    Opening,
    Open {
        disk: DiskFile,
        stat: FileStat,
    },
}

#[derive(Debug)]
struct OpenFile {
    queue: usize,
    id: FileId,
    /// The path, if the file is a namespace.
    namespace: Option<Box<[u8]>>,
    stage: OpenStage,
    /// Number of transmits and reads that use the file.
    uses: u32,
    /// True once the host has closed the file.
    closed: bool,
    /// True once a read found the file changed: nothing is sent from it any longer.
    changed: bool,
}

/// Properties of an open file that transmits need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadableFile {
    pub(crate) disk: DiskFile,
    pub(crate) version: u64,
    pub(crate) size: u64,
    /// True if the host may write to the file.
    pub(crate) namespace: bool,
}

/// Handling of the completion of an open.
#[derive(Debug)]
pub(crate) enum OpenCompletion {
    /// The host is waiting for the answer.
    Tell { queue: usize, file: FileId },
    /// The host has closed the file meanwhile, or the device was reset: nothing is reported, and
    /// the disk's handle is closed.
    Abandoned,
}

/// The open files by name.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    files: Slab<OpenFile>,
    names: HashTable<SlabKey>,
    files_max: usize,
    seed: u64,
}

impl OpenFiles {
    /// Creates an empty table for up to `files_max` files.
    pub(crate) const fn new(files_max: u32, seed: u64) -> Self {
        let files_max = files_max as usize;
        Self { files: Slab::new(), names: HashTable::new(), files_max, seed }
    }

    /// Number of files open, being opened, or closed and still in use.
    pub(crate) const fn len(&self) -> usize {
        self.files.len()
    }

    /// Adds an entry for a file that the disk is about to open. `namespace` is the path of a
    /// namespace.
    pub(crate) fn begin(
        &mut self,
        queue: usize,
        id: FileId,
        namespace: Option<Box<[u8]>>,
    ) -> Result<SlabKey, FileFault> {
        if self.find(queue, id).is_some() {
            return Err(FileFault::BadExtent);
        }
        if self.files.len() >= self.files_max {
            return Err(FileFault::Refused(Refusal::TableFull));
        }
        let stage = OpenStage::Opening;
        let file = OpenFile { queue, id, namespace, stage, uses: 0, closed: false, changed: false };
        let key = self.files.insert(file);
        let (files, seed) = (&self.files, self.seed);
        let rehash = |&key: &SlabKey| files.get(key).map_or(0, |f| hash(seed, f.queue, f.id));
        self.names.insert_unique(hash(seed, queue, id), key, rehash);
        Ok(key)
    }

    /// Handles the disk's answer. If the file is not open afterwards, its entry is removed.
    pub(crate) fn finish(
        &mut self,
        key: SlabKey,
        result: Option<(DiskFile, FileStat)>,
    ) -> OpenCompletion {
        let Some(file) = self.files.get_mut(key) else { return OpenCompletion::Abandoned };
        if !matches!(file.stage, OpenStage::Opening) {
            return OpenCompletion::Abandoned;
        }
        let (queue, id, closed) = (file.queue, file.id, file.closed);
        match result {
            Some((disk, mut stat)) if !closed => {
                if file.namespace.is_some() {
                    // A key identifies one open and is never reused.
                    stat.version = mix(self.seed, key.to_u64(), NAMESPACE);
                }
                file.stage = OpenStage::Open { disk, stat };
            }
            _ => {
                self.unname(key);
                self.files.remove(key);
            }
        }
        if closed { OpenCompletion::Abandoned } else { OpenCompletion::Tell { queue, file: id } }
    }

    /// Returns the entry of a name.
    pub(crate) fn find(&self, queue: usize, id: FileId) -> Option<SlabKey> {
        if queue == PINNED {
            return self.files.key_at(id.0);
        }
        let same =
            |&key: &SlabKey| self.files.get(key).is_some_and(|f| f.id == id && f.queue == queue);
        self.names.find(hash(self.seed, queue, id), same).copied()
    }

    /// Returns the properties needed to send from a file.
    ///
    /// # Errors
    /// `BadExtent` if the file is not open or not of a readable kind, `Changed` if it was found
    /// changed.
    pub(crate) fn readable(&self, key: SlabKey) -> Result<ReadableFile, FileFault> {
        match self.files.get(key) {
            Some(OpenFile { changed: true, .. }) => Err(FileFault::Changed),
            Some(file @ OpenFile { stage: OpenStage::Open { disk, stat }, .. })
                if file.access().accepts(stat.kind) =>
            {
                let (disk, namespace) = (*disk, file.namespace.is_some());
                Ok(ReadableFile { disk, version: stat.version, size: stat.size, namespace })
            }
            _ => Err(FileFault::BadExtent),
        }
    }

    /// Returns the versions of all opens of a namespace, by any queue. Empty if `key` is not a
    /// namespace.
    pub(crate) fn versions_of(&self, key: SlabKey) -> SmallVec<[u64; 2]> {
        let Some(path) = self.files.get(key).and_then(|file| file.namespace.as_ref()) else {
            return SmallVec::new();
        };
        let version = |(_, file): (SlabKey, &OpenFile)| match file.stage {
            OpenStage::Open { stat, .. } if file.namespace.as_ref() == Some(path) => {
                Some(stat.version)
            }
            _ => None,
        };
        self.files.iter().filter_map(version).collect()
    }

    /// Returns version and size of an open file, changed or not.
    pub(crate) fn content_of(&self, key: SlabKey) -> Option<(u64, u64)> {
        match self.files.get(key)?.stage {
            OpenStage::Open { stat, .. } => Some((stat.version, stat.size)),
            OpenStage::Opening => None,
        }
    }

    /// Returns whether the entry exists.
    pub(crate) fn exists(&self, key: SlabKey) -> bool {
        self.files.get(key).is_some()
    }

    /// Adds one use of a file.
    pub(crate) fn retain(&mut self, key: SlabKey) {
        if let Some(file) = self.files.get_mut(key) {
            file.uses += 1;
        }
    }

    /// Adds one use of a readable file and returns an ID for it in the queue [`PINNED`], valid
    /// until [`Self::release`].
    pub(crate) fn pin(&mut self, queue: usize, id: FileId) -> Option<FileId> {
        let key = self.find(queue, id).filter(|&key| self.readable(key).is_ok())?;
        self.retain(key);
        Some(FileId(key.index()))
    }

    /// Removes one use of a file. Returns the disk's handle if it is to be closed now.
    pub(crate) fn release(&mut self, key: SlabKey) -> Option<DiskFile> {
        let file = self.files.get_mut(key)?;
        file.uses = file.uses.saturating_sub(1);
        self.reap(key)
    }

    /// Closes a file for the host. Returns `None` if it is not open; otherwise the disk's handle if
    /// it is to be closed now.
    pub(crate) fn close(&mut self, queue: usize, id: FileId) -> Option<Option<DiskFile>> {
        let key = self.find(queue, id)?;
        self.unname(key);
        self.files.get_mut(key)?.closed = true;
        Some(self.reap(key))
    }

    /// Stops sending from files of this version, because the disk no longer has their content.
    /// Calls `tell` for those that hosts have open.
    pub(crate) fn mark_changed(&mut self, version: u64, mut tell: impl FnMut(usize, FileId)) {
        for file in self.files.values_mut() {
            let concerned =
                matches!(file.stage, OpenStage::Open { stat, .. } if stat.version == version);
            if concerned && !file.changed {
                file.changed = true;
                if !file.closed {
                    tell(file.queue, file.id);
                }
            }
        }
    }

    /// Removes all files. Calls `close` for those that the disk has open.
    pub(crate) fn clear(&mut self, mut close: impl FnMut(DiskFile)) {
        self.names.clear();
        self.files.drain(|file| {
            if let OpenStage::Open { disk, .. } = file.stage {
                close(disk);
            }
        });
    }

    /// Removes a closed entry without uses. An entry that is still being opened stays until the
    /// disk answers.
    fn reap(&mut self, key: SlabKey) -> Option<DiskFile> {
        let file = self.files.get(key)?;
        let OpenStage::Open { disk, .. } = file.stage else { return None };
        if !file.closed || file.uses > 0 {
            return None;
        }
        self.files.remove(key);
        Some(disk)
    }

    fn unname(&mut self, key: SlabKey) {
        let Some(file) = self.files.get(key) else { return };
        let hash = hash(self.seed, file.queue, file.id);
        if let Ok(found) = self.names.find_entry(hash, |&k| k == key) {
            found.remove();
        }
    }
}

impl OpenFile {
    fn access(&self) -> DiskAccess {
        let access = match self.namespace {
            Some(_) => FileAccess::Namespace,
            None => FileAccess::Content,
        };
        access.into()
    }
}

const fn hash(seed: u64, queue: usize, id: FileId) -> u64 {
    mix(seed, id.0 as u64, queue as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::FileKind;

    const STAT: FileStat =
        FileStat { kind: FileKind::Regular, size: 10, modified_s: 0, modified_ns: 0, version: 77 };

    #[test]
    fn a_closed_file_lives_until_its_last_use() {
        let mut files = OpenFiles::new(2, 1);
        let key = files.begin(0, FileId(1), None).unwrap();
        assert!(files.readable(key).is_err(), "not open yet");
        assert!(matches!(
            files.finish(key, Some((DiskFile(5), STAT))),
            OpenCompletion::Tell { .. }
        ));
        files.retain(key);
        assert_eq!(files.close(0, FileId(1)), Some(None));
        assert_eq!(files.close(0, FileId(1)), None, "its name is gone");
        let again = files.begin(0, FileId(1), None).unwrap();
        let full = FileFault::Refused(Refusal::TableFull);
        assert_eq!(files.begin(0, FileId(2), None), Err(full), "the first still counts");
        assert_eq!(files.readable(key).unwrap().size, 10);
        assert_eq!(files.release(key), Some(DiskFile(5)));
        assert_eq!(files.len(), 1);
        assert_eq!(files.begin(0, FileId(1), None), Err(FileFault::BadExtent), "in use");
        assert!(files.begin(1, FileId(1), None).is_ok(), "names are the queue's own");
        assert_eq!(files.find(0, FileId(1)), Some(again));
    }

    /// If the host closes a pinned file and opens another with the same ID, the two stay distinct.
    #[test]
    fn a_pinned_file_keeps_its_name() {
        let mut files = OpenFiles::new(2, 1);
        assert_eq!(files.pin(0, FileId(1)), None, "not open");
        let key = files.begin(0, FileId(1), None).unwrap();
        assert_eq!(files.pin(0, FileId(1)), None, "not open yet");
        files.finish(key, Some((DiskFile(5), STAT)));
        let pin = files.pin(0, FileId(1)).unwrap();
        assert_eq!(files.close(0, FileId(1)), Some(None));
        let again = files.begin(0, FileId(1), None).unwrap();
        assert_eq!(files.find(PINNED, pin), Some(key));
        assert_eq!(files.find(0, FileId(1)), Some(again));
        assert!(files.readable(key).is_ok());
        assert_eq!(files.release(key), Some(DiskFile(5)));
        assert_eq!(files.find(PINNED, pin), None);
        assert_eq!(files.find(PINNED, FileId(u32::MAX)), None);
    }

    #[test]
    fn closed_before_it_was_open() {
        let mut files = OpenFiles::new(2, 1);
        let key = files.begin(0, FileId(1), None).unwrap();
        assert_eq!(files.close(0, FileId(1)), Some(None));
        assert!(matches!(files.finish(key, Some((DiskFile(5), STAT))), OpenCompletion::Abandoned));
        assert_eq!(files.len(), 0);
        assert!(matches!(files.finish(key, None), OpenCompletion::Abandoned), "answered twice");
    }

    #[test]
    fn only_regular_files_are_read() {
        let mut files = OpenFiles::new(2, 1);
        let key = files.begin(0, FileId(1), None).unwrap();
        files.finish(key, Some((DiskFile(5), FileStat { kind: FileKind::Directory, ..STAT })));
        assert_eq!(files.readable(key).unwrap_err(), FileFault::BadExtent);
    }
}
