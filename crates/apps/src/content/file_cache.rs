//! The cache of open files: path to handle, metadata and prepared fields.
//!
//! [`super::server`] looks paths up and reports the beginning and the end of each open. An entry is
//! valid for a time, or until [`FileCache::expire`] says that its path may lead to another file.
//! The next request then opens the path again, and requests that arrive meanwhile wait for the same
//! open. A failed open is not cached, unless the file was optional.
//!
//! Bounded: at most `capacity` entries have a resource; each further entry is being opened and has
//! a connection that waits for it. The victim is found by second chance (CLOCK), so a hit writes
//! one flag and moves nothing. Entries that were not used during a sweep interval are dropped too,
//! so that no handle keeps a deleted file alive. The cache calls no socket:
//! [`FileCache::poll_close`] returns the handles to close.

use std::collections::BTreeMap;

use abi::{FileFault, FileId, FileKind, FileStat, Refusal};
use base::{Duration, Instant};
use hashbrown::HashTable;
use siphasher::sip::SipHasher13;

use super::open_file::OpenFile;

/// Interval between two searches for unused entries.
const SWEEP_INTERVAL: Duration = Duration::from_secs(30);
/// Entries that are evicted at once if the host or the device can open no further file.
const EVICT_ON_FULL: usize = 8;

/// A request that waits for an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenWaiter {
    /// A connection: its index in the server's table, and a serial number that distinguishes it
    /// from earlier connections at that index.
    Connection { index: u32, serial: u32 },
    /// Serial number of an HTTP/3 request.
    Request(u32),
}

/// Result of opening a path.
#[derive(Debug)]
pub(crate) enum CachedResource {
    File(OpenFile),
    Directory,
    /// Nothing that can be sent; cached for optional files only.
    Absent(FileFault),
}

/// Result of looking up a path.
#[derive(Debug)]
pub(crate) enum FileLookup<'a> {
    /// The path is cached.
    Ready(&'a CachedResource),
    /// The path is being opened: call [`FileCache::join`].
    Opening,
    /// The path must be opened, for the first time or again.
    Unknown,
}

/// Action of the server after an open ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FileOpenOutcome {
    /// Resume these requests: the path is cached, or its open failed.
    Resume(Vec<OpenWaiter>, Result<(), FileFault>),
    /// Open this path once more: the device had no room and now may have, or the path may lead to
    /// another file by now.
    Reopen(Box<[u8]>),
    /// The handle belongs to no open of this cache.
    Unknown,
}

struct FileCacheEntry {
    path: Box<[u8]>,
    resource: Option<CachedResource>,
    /// Last instant at which `open_file` is valid; `None` after it expired.
    valid_until: Option<Instant>,
    /// Used since the CLOCK hand or the sweep last passed.
    used: bool,
    opening: Option<PendingOpen>,
}

struct PendingOpen {
    waiters: Vec<OpenWaiter>,
    /// A missing file is no error, and is cached as [`CachedResource::Absent`].
    optional: bool,
    retried: bool,
    /// The path expired after the open began.
    expired: bool,
}

/// The cache.
pub(crate) struct FileCache {
    capacity: usize,
    validity: Duration,
    hasher: SipHasher13,
    /// Indices into `entries` by path.
    table: HashTable<u32>,
    entries: Vec<Option<FileCacheEntry>>,
    free: Vec<u32>,
    /// Opens in progress, with the index of their entry.
    opening: BTreeMap<FileId, u32>,
    /// Number of entries with a resource.
    ready: usize,
    /// Position of the CLOCK hand in `entries`.
    hand: usize,
    next_sweep: Instant,
    close: Vec<FileId>,
    /// Number of pieces of each file that wait for room in the host. A pinned file must not be
    /// closed.
    pins: BTreeMap<FileId, u32>,
    /// Files to close once they are no longer pinned.
    pinned_close: Vec<FileId>,
}

impl FileCache {
    /// Creates an empty cache. `seed` keys the hash, so that clients cannot choose paths that
    /// collide.
    pub(crate) fn new(capacity: usize, validity: Duration, seed: (u64, u64)) -> Self {
        Self {
            capacity: capacity.max(1),
            validity,
            hasher: SipHasher13::new_with_keys(seed.0, seed.1),
            table: HashTable::new(),
            entries: Vec::new(),
            free: Vec::new(),
            opening: BTreeMap::new(),
            ready: 0,
            hand: 0,
            next_sweep: Instant::FAR_FUTURE,
            close: Vec::new(),
            pins: BTreeMap::new(),
            pinned_close: Vec::new(),
        }
    }

    /// Looks a path up. Does not allocate.
    pub(crate) fn lookup(&mut self, now: Instant, path: &[u8]) -> FileLookup<'_> {
        let Some(index) = self.find(path) else { return FileLookup::Unknown };
        let Some(entry) = self.entries[index as usize].as_mut() else { return FileLookup::Unknown };
        match &entry.resource {
            Some(resource) if entry.valid_until.is_some_and(|until| now <= until) => {
                entry.used = true;
                FileLookup::Ready(resource)
            }
            _ if entry.opening.is_some() => FileLookup::Opening,
            _ => FileLookup::Unknown,
        }
    }

    /// Registers an open that began for a path that [`Self::lookup`] found to be
    /// [`FileLookup::Unknown`]. If it is `optional`, it may end without a file
    /// ([`CachedResource::Absent`]).
    pub(crate) fn begin(&mut self, path: &[u8], file: FileId, waiter: OpenWaiter, optional: bool) {
        let opening =
            PendingOpen { waiters: vec![waiter], optional, retried: false, expired: false };
        let index = match self.find(path) {
            Some(index) => index,
            None => self.insert(path),
        };
        self.opening.insert(file, index);
        if let Some(entry) = self.entries[index as usize].as_mut() {
            entry.opening = Some(opening);
        }
    }

    /// Registers the second open of a path, after [`FileOpenOutcome::Reopen`].
    pub(crate) fn begin_reopen(&mut self, path: &[u8], file: FileId) {
        if let Some(index) = self.find(path) {
            self.opening.insert(file, index);
        }
    }

    /// Adds a waiter to the open of a path that is in progress.
    pub(crate) fn join(&mut self, path: &[u8], waiter: OpenWaiter, optional: bool) {
        let Some(index) = self.find(path) else { return };
        if let Some(opening) =
            self.entries[index as usize].as_mut().and_then(|e| e.opening.as_mut())
        {
            opening.waiters.push(waiter);
            opening.optional |= optional;
        }
    }

    /// Handles the end of an open. `now_s` is the Unix time in seconds.
    pub(crate) fn handle_opened(
        &mut self,
        now: Instant,
        now_s: u64,
        file: FileId,
        result: Result<FileStat, FileFault>,
    ) -> FileOpenOutcome {
        let Some(index) = self.opening.remove(&file) else { return FileOpenOutcome::Unknown };
        let Some(entry) = self.entries[index as usize].as_mut() else {
            return FileOpenOutcome::Unknown;
        };
        let Some(mut opening) = entry.opening.take() else { return FileOpenOutcome::Unknown };
        let resource = match result {
            Ok(stat) => match stat.kind {
                FileKind::Regular => {
                    Ok(CachedResource::File(OpenFile::new(&entry.path, file, &stat, now_s)))
                }
                FileKind::Directory => Ok(CachedResource::Directory),
                // Devices, FIFOs and sockets are not served.
                FileKind::Block | FileKind::Other => Err(FileFault::Denied),
            },
            Err(fault) => Err(fault),
        };
        if !matches!(resource, Ok(CachedResource::File(_))) {
            self.close.push(file);
        }
        // Storage that did not answer within its time is not asked again: the request has waited.
        let is_unavailable = matches!(resource, Err(FileFault::Unavailable));
        if opening.expired && !opening.retried && !is_unavailable {
            if let Ok(CachedResource::File(open)) = resource {
                self.close.push(open.file);
            }
            (opening.retried, opening.expired) = (true, false);
            let path = entry.path.clone();
            entry.opening = Some(opening);
            return FileOpenOutcome::Reopen(path);
        }
        // If the path expired during its second open too, the result is only for the requests that
        // wait.
        let until = if opening.expired { now } else { now + self.validity };
        match resource {
            Ok(resource) => {
                self.store(index, (now, until), resource);
                FileOpenOutcome::Resume(opening.waiters, Ok(()))
            }
            Err(FileFault::Refused(Refusal::TableFull)) if !opening.retried && self.ready > 0 => {
                opening.retried = true;
                let path = entry.path.clone();
                entry.opening = Some(opening);
                self.evict_some();
                FileOpenOutcome::Reopen(path)
            }
            Err(fault) if opening.optional => {
                // A refused open is remembered as well: requests look up other optional files
                // before they are answered, and would open this one again after each.
                self.store(index, (now, until), CachedResource::Absent(fault));
                FileOpenOutcome::Resume(opening.waiters, Ok(()))
            }
            Err(fault) => {
                self.remove(index);
                FileOpenOutcome::Resume(opening.waiters, Err(fault))
            }
        }
    }

    /// Evicts a few entries, because the host or the device can open no further file.
    pub(crate) fn evict_some(&mut self) {
        for _ in 0..EVICT_ON_FULL {
            self.evict();
        }
    }

    /// Removes a path whose second open could not begin, and returns its waiters.
    pub(crate) fn cancel(&mut self, path: &[u8]) -> Vec<OpenWaiter> {
        let Some(index) = self.find(path) else { return Vec::new() };
        let opening = self.entries[index as usize].as_mut().and_then(|e| e.opening.take());
        self.remove(index);
        opening.map_or_else(Vec::new, |opening| opening.waiters)
    }

    /// Marks a path as changed: the next request opens it again.
    pub(crate) fn expire(&mut self, path: &[u8]) {
        if let Some(index) = self.find(path) {
            self.expire_entry(index as usize);
        }
    }

    /// Marks all paths as changed.
    pub(crate) fn expire_all(&mut self) {
        (0..self.entries.len()).for_each(|index| self.expire_entry(index));
    }

    fn expire_entry(&mut self, index: usize) {
        let Some(entry) = self.entries[index].as_mut() else { return };
        entry.valid_until = None;
        if let Some(opening) = &mut entry.opening {
            opening.expired = true;
        }
    }

    /// Drops all files, so that the next requests open them with new handles.
    pub(crate) fn drop_all(&mut self) {
        for index in 0..self.entries.len() {
            self.expire_entry(index);
            self.drop_resource(index);
        }
    }

    /// Drops a file from which a transfer failed.
    pub(crate) fn invalidate(&mut self, file: FileId) {
        let named = |entry: &FileCacheEntry| match &entry.resource {
            Some(CachedResource::File(cached)) => cached.file == file,
            _ => false,
        };
        let index = self.entries.iter().position(|e| e.as_ref().is_some_and(named));
        if let Some(index) = index {
            self.drop_resource(index);
        }
    }

    /// Drops the entries that were not used since the last sweep.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if now < self.next_sweep {
            return;
        }
        for index in 0..self.entries.len() {
            let Some(entry) = self.entries[index].as_mut() else { continue };
            if entry.resource.is_some() && !core::mem::take(&mut entry.used) {
                self.drop_resource(index);
            }
        }
        self.next_sweep = if self.ready > 0 { now + SWEEP_INTERVAL } else { Instant::FAR_FUTURE };
    }

    /// Time at which to call [`Self::handle_timeout`].
    pub(crate) const fn poll_timeout(&self) -> Instant {
        self.next_sweep
    }

    /// Returns the next handle to close.
    pub(crate) fn poll_close(&mut self) -> Option<FileId> {
        loop {
            let file = self.close.pop()?;
            if !self.pins.contains_key(&file) {
                return Some(file);
            }
            self.pinned_close.push(file);
        }
    }

    /// Pins a file, because a piece of it waits for room in the host, which does not know of it
    /// yet.
    pub(crate) fn pin(&mut self, file: FileId) {
        *self.pins.entry(file).or_insert(0) += 1;
    }

    /// Unpins a file, because a piece of it was given to the host, or never will be.
    pub(crate) fn unpin(&mut self, file: FileId) {
        let Some(count) = self.pins.get_mut(&file) else { return };
        *count -= 1;
        if *count == 0 {
            self.pins.remove(&file);
            while let Some(at) = self.pinned_close.iter().position(|f| *f == file) {
                self.pinned_close.swap_remove(at);
                self.close.push(file);
            }
        }
    }

    /// Returns the number of entries with a resource.
    pub(crate) const fn len(&self) -> usize {
        self.ready
    }

    /// Stores the resource of an entry whose open has ended. It is valid until `until`.
    fn store(&mut self, index: u32, (now, until): (Instant, Instant), resource: CachedResource) {
        let Some(entry) = self.entries[index as usize].as_mut() else { return };
        entry.valid_until = Some(until);
        entry.used = true;
        let had = entry.resource.is_some();
        match (&entry.resource, resource) {
            // Unchanged: the old handle stays, so that all connections share the device's state of
            // the file.
            (Some(CachedResource::File(old)), CachedResource::File(new))
                if old.version == new.version && old.size == new.size =>
            {
                self.close.push(new.file);
            }
            (old, new) => {
                if let Some(CachedResource::File(old)) = old {
                    self.close.push(old.file);
                }
                entry.resource = Some(new);
            }
        }
        if !had {
            self.ready += 1;
            if self.ready > self.capacity {
                self.evict();
            }
            if self.next_sweep == Instant::FAR_FUTURE {
                self.next_sweep = now + SWEEP_INTERVAL;
            }
        }
    }

    /// Evicts one entry that has had its second chance. The newest entry is marked as used, so it
    /// survives unless all entries are.
    fn evict(&mut self) {
        // Two rounds suffice: the first clears all flags.
        for _ in 0..self.entries.len() * 2 {
            let index = self.hand;
            self.hand = (self.hand + 1) % self.entries.len();
            let Some(entry) = self.entries[index].as_mut() else { continue };
            if entry.resource.is_some() && !core::mem::take(&mut entry.used) {
                self.drop_resource(index);
                return;
            }
        }
    }

    /// Drops an entry's resource, and the entry itself unless its path is being opened.
    fn drop_resource(&mut self, index: usize) {
        let Some(entry) = self.entries[index].as_mut() else { return };
        if let Some(resource) = entry.resource.take() {
            self.ready -= 1;
            if let CachedResource::File(open) = resource {
                self.close.push(open.file);
            }
        }
        if entry.opening.is_none() {
            self.unlink(index);
        }
    }

    fn remove(&mut self, index: u32) {
        if let Some(entry) = self.entries[index as usize].as_mut() {
            entry.opening = None;
        }
        self.drop_resource(index as usize);
    }

    fn unlink(&mut self, index: usize) {
        let Some(entry) = self.entries[index].take() else { return };
        let hash = self.hasher.hash(&entry.path);
        if let Ok(found) = self.table.find_entry(hash, |&i| i as usize == index) {
            let (index, _) = found.remove();
            self.free.push(index);
        }
    }

    fn find(&self, path: &[u8]) -> Option<u32> {
        let same =
            |&index: &u32| self.entries[index as usize].as_ref().is_some_and(|e| *e.path == *path);
        self.table.find(self.hasher.hash(path), same).copied()
    }

    fn insert(&mut self, path: &[u8]) -> u32 {
        let entry = FileCacheEntry {
            path: path.into(),
            resource: None,
            valid_until: None,
            used: false,
            opening: None,
        };
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            // Beyond the capacity there is at most one entry for each connection.
            u32::try_from(self.entries.len() - 1).expect("fewer than 2^32 entries")
        });
        self.entries[index as usize] = Some(entry);
        let Self { table, entries, hasher, .. } = self;
        let rehash =
            |&index: &u32| entries[index as usize].as_ref().map_or(0, |e| hasher.hash(&e.path));
        table.insert_unique(hasher.hash(path), index, rehash);
        index
    }
}

#[cfg(test)]
mod tests;
