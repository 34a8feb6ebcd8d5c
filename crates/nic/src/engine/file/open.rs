//! The files that the host has open.
//!
//! What the cache calls a file's version is the disk's for content: equal versions mean equal
//! bytes, whoever opened them. A namespace is written to, so that its version means nothing; it has
//! one of its own for each open, and shares no blocks.
//!
//! A file's name is its queue and the host's id. It is gone from the names as soon as the host
//! closes it; the entry stays, and the disk's handle with it, until the last transmit and the last
//! read that use it are done: they keep the entry's [`Key`].

use abi::disk::{DiskAccess, DiskFile};
use abi::{FileAccess, FileFault, FileId, FileStat, Refusal};
use alloc::boxed::Box;
use base::mix;
use hashbrown::HashTable;
use smallvec::SmallVec;

use structures::slab::{Key, Slab};

/// Tells versions of namespaces from other hashes.
const NAMESPACE: u64 = 0x6e73_7061_6365;

/// The queue of names that [`OpenFiles::pin`] gave. No host has it.
pub(crate) const PINNED: usize = usize::MAX;

#[derive(Debug)]
enum Stage {
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
    /// Where it was opened, if it is a namespace.
    namespace: Option<Box<[u8]>>,
    stage: Stage,
    /// Transmits and reads that use it.
    uses: u32,
    /// The host has closed it.
    closed: bool,
    /// A read found it changed: nothing is sent from it any more.
    changed: bool,
}

/// What a transmit has to know of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Readable {
    pub(crate) disk: DiskFile,
    pub(crate) version: u64,
    pub(crate) size: u64,
    /// The host may write to it.
    pub(crate) namespace: bool,
}

/// What to tell the host, and the disk, when an open ends.
#[derive(Debug)]
pub(crate) enum Opened {
    /// The host waits for the answer.
    Tell { queue: usize, file: FileId },
    /// The host has closed the file meanwhile, or the device was reset: nobody is told, and the
    /// disk's file is closed.
    Abandoned,
}

/// The files by name.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    files: Slab<OpenFile>,
    names: HashTable<Key>,
    files_max: usize,
    seed: u64,
}

impl OpenFiles {
    /// No files; at most `files_max` at a time.
    pub(crate) const fn new(files_max: u32, seed: u64) -> Self {
        let files_max = files_max as usize;
        Self { files: Slab::new(), names: HashTable::new(), files_max, seed }
    }

    /// Files open, being opened, or closed and still in use.
    pub(crate) const fn len(&self) -> usize {
        self.files.len()
    }

    /// Makes an entry for a file that the disk is about to open; `namespace` is the path of one.
    pub(crate) fn begin(
        &mut self,
        queue: usize,
        id: FileId,
        namespace: Option<Box<[u8]>>,
    ) -> Result<Key, FileFault> {
        if self.find(queue, id).is_some() {
            return Err(FileFault::BadExtent);
        }
        if self.files.len() >= self.files_max {
            return Err(FileFault::Refused(Refusal::TableFull));
        }
        let stage = Stage::Opening;
        let file = OpenFile { queue, id, namespace, stage, uses: 0, closed: false, changed: false };
        let key = self.files.insert(file);
        let (files, seed) = (&self.files, self.seed);
        let rehash = |&key: &Key| files.get(key).map_or(0, |f| hash(seed, f.queue, f.id));
        self.names.insert_unique(hash(seed, queue, id), key, rehash);
        Ok(key)
    }

    /// Takes the disk's answer. The entry of a file that is not open goes.
    pub(crate) fn finish(&mut self, key: Key, result: Option<(DiskFile, FileStat)>) -> Opened {
        let Some(file) = self.files.get_mut(key) else { return Opened::Abandoned };
        if !matches!(file.stage, Stage::Opening) {
            return Opened::Abandoned;
        }
        let (queue, id, closed) = (file.queue, file.id, file.closed);
        match result {
            Some((disk, mut stat)) if !closed => {
                if file.namespace.is_some() {
                    // The key names one open, and no other ever after.
                    stat.version = mix(self.seed, key.to_u64(), NAMESPACE);
                }
                file.stage = Stage::Open { disk, stat };
            }
            _ => {
                self.unname(key);
                self.files.remove(key);
            }
        }
        if closed { Opened::Abandoned } else { Opened::Tell { queue, file: id } }
    }

    /// The entry of a name.
    pub(crate) fn find(&self, queue: usize, id: FileId) -> Option<Key> {
        if queue == PINNED {
            return self.files.key_at(id.0);
        }
        let same = |&key: &Key| self.files.get(key).is_some_and(|f| f.id == id && f.queue == queue);
        self.names.find(hash(self.seed, queue, id), same).copied()
    }

    /// What is to be known for sending from a file.
    ///
    /// # Errors
    /// `BadExtent` for a file that is not open or of a kind that is not read, `Changed` for one
    /// that was found changed.
    pub(crate) fn readable(&self, key: Key) -> Result<Readable, FileFault> {
        match self.files.get(key) {
            Some(OpenFile { changed: true, .. }) => Err(FileFault::Changed),
            Some(file @ OpenFile { stage: Stage::Open { disk, stat }, .. })
                if file.access().takes(stat.kind) =>
            {
                let (disk, namespace) = (*disk, file.namespace.is_some());
                Ok(Readable { disk, version: stat.version, size: stat.size, namespace })
            }
            _ => Err(FileFault::BadExtent),
        }
    }

    /// The versions of all that is open of a namespace, by whatever queue; none where `key` names
    /// no namespace.
    pub(crate) fn versions_of(&self, key: Key) -> SmallVec<[u64; 2]> {
        let Some(path) = self.files.get(key).and_then(|file| file.namespace.as_ref()) else {
            return SmallVec::new();
        };
        let version = |(_, file): (Key, &OpenFile)| match file.stage {
            Stage::Open { stat, .. } if file.namespace.as_ref() == Some(path) => Some(stat.version),
            _ => None,
        };
        self.files.iter().filter_map(version).collect()
    }

    /// Version and size of an open file, changed or not.
    pub(crate) fn content_of(&self, key: Key) -> Option<(u64, u64)> {
        match self.files.get(key)?.stage {
            Stage::Open { stat, .. } => Some((stat.version, stat.size)),
            Stage::Opening => None,
        }
    }

    /// Whether the key names an entry.
    pub(crate) fn exists(&self, key: Key) -> bool {
        self.files.get(key).is_some()
    }

    /// Notes one more user.
    pub(crate) fn retain(&mut self, key: Key) {
        if let Some(file) = self.files.get_mut(key) {
            file.uses += 1;
        }
    }

    /// Notes one more user of a file that can be read, and names it for him: as of the queue
    /// [`PINNED`], until [`Self::release`].
    pub(crate) fn pin(&mut self, queue: usize, id: FileId) -> Option<FileId> {
        let key = self.find(queue, id).filter(|&key| self.readable(key).is_ok())?;
        self.retain(key);
        Some(FileId(key.index()))
    }

    /// Notes one user less; gives the disk's file where it is to be closed now.
    pub(crate) fn release(&mut self, key: Key) -> Option<DiskFile> {
        let file = self.files.get_mut(key)?;
        file.uses = file.uses.saturating_sub(1);
        self.reap(key)
    }

    /// The host closes a file. `None` where it is not open; else perhaps the disk's file, to be
    /// closed now.
    pub(crate) fn close(&mut self, queue: usize, id: FileId) -> Option<Option<DiskFile>> {
        let key = self.find(queue, id)?;
        self.unname(key);
        self.files.get_mut(key)?.closed = true;
        Some(self.reap(key))
    }

    /// Nothing is sent any more from files of this version: their content is not on the disk. Gives
    /// those that the host has open to `tell`.
    pub(crate) fn mark_changed(&mut self, version: u64, mut tell: impl FnMut(usize, FileId)) {
        for file in self.files.values_mut() {
            let concerned =
                matches!(file.stage, Stage::Open { stat, .. } if stat.version == version);
            if concerned && !file.changed {
                file.changed = true;
                if !file.closed {
                    tell(file.queue, file.id);
                }
            }
        }
    }

    /// Forgets all files; gives those that the disk has open to `close`.
    pub(crate) fn clear(&mut self, mut close: impl FnMut(DiskFile)) {
        self.names.clear();
        self.files.drain(|file| {
            if let Stage::Open { disk, .. } = file.stage {
                close(disk);
            }
        });
    }

    /// Removes a closed entry without users. One that is still being opened stays until the disk
    /// answers.
    fn reap(&mut self, key: Key) -> Option<DiskFile> {
        let file = self.files.get(key)?;
        let Stage::Open { disk, .. } = file.stage else { return None };
        if !file.closed || file.uses > 0 {
            return None;
        }
        self.files.remove(key);
        Some(disk)
    }

    fn unname(&mut self, key: Key) {
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
        assert!(matches!(files.finish(key, Some((DiskFile(5), STAT))), Opened::Tell { .. }));
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

    /// The host closes a pinned file and opens another under the same id: both are told apart.
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
        assert!(matches!(files.finish(key, Some((DiskFile(5), STAT))), Opened::Abandoned));
        assert_eq!(files.len(), 0);
        assert!(matches!(files.finish(key, None), Opened::Abandoned), "answered twice");
    }

    #[test]
    fn only_regular_files_are_read() {
        let mut files = OpenFiles::new(2, 1);
        let key = files.begin(0, FileId(1), None).unwrap();
        files.finish(key, Some((DiskFile(5), FileStat { kind: FileKind::Directory, ..STAT })));
        assert_eq!(files.readable(key).unwrap_err(), FileFault::BadExtent);
    }
}
