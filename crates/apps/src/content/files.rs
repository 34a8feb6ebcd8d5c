//! The cache of open files: path to handle, metadata and prepared fields.
//!
//! [`super::server`] looks paths up, tells of opens that it began and of how they ended. An entry
//! is believed for a validity time, or until [`Files::expire`] says that its path may lead
//! elsewhere; then the next request opens the path again, and requests that come meanwhile wait
//! with it for the same open. What could not be opened is not remembered beyond
//! the requests that wait.
//!
//! Bounded: at most `capacity` entries that are not being opened (the others each have a connection
//! that waits). The victim is found by second chance (CLOCK), so that a hit writes one flag and
//! moves nothing. Entries that nobody asked for during a sweep interval go as well, so that no
//! handle keeps a deleted file alive. It calls no socket: handles to close are given out by
//! [`Files::poll_close`].

use std::collections::BTreeMap;

use abi::{FileFault, FileId, FileKind, FileStat, Refusal};
use base::{Duration, Instant};
use hashbrown::HashTable;
use siphasher::sip::SipHasher13;

use super::resource::OpenFile;

/// How often entries that were not asked for are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(30);
/// Handles given back at once where a table of open files is full.
const EVICT_ON_FULL: usize = 8;

/// Requests that wait for an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiter {
    /// A connection: its place in the server's table, and a serial number that tells it from those
    /// that had the place before.
    Connection { index: u32, serial: u32 },
    /// A request of HTTP/3, by its serial number.
    Request(u32),
}

/// What a path is.
#[derive(Debug)]
pub(crate) enum Resource {
    File(OpenFile),
    Directory,
    /// Nothing that can be sent: known of optional files only.
    Absent(FileFault),
}

/// What is known of a path.
#[derive(Debug)]
pub(crate) enum Lookup<'a> {
    /// It may be answered.
    Ready(&'a Resource),
    /// An open is under way: join it.
    Opening,
    /// It has to be opened, for the first time or again.
    Unknown,
}

/// What an open's end asks of the server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    /// Let these connections go on: the path is ready, or failed.
    Resume(Vec<Waiter>, Result<(), FileFault>),
    /// Open this path once more: there was no room on the device, and now there may be; or it may
    /// lead elsewhere by now.
    Again(Box<[u8]>),
    /// Nobody's.
    Unknown,
}

struct Entry {
    path: Box<[u8]>,
    resource: Option<Resource>,
    /// Until when `resource` is believed, that instant included; not at all once it has expired.
    valid_until: Option<Instant>,
    /// Asked for since the hand or the sweep came by.
    used: bool,
    opening: Option<Opening>,
}

struct Opening {
    waiters: Vec<Waiter>,
    /// It is no failure if there is no such file, and worth remembering.
    optional: bool,
    retried: bool,
    /// The path may lead elsewhere than when the open began.
    outdated: bool,
}

/// The cache.
pub(crate) struct Files {
    capacity: usize,
    validity: Duration,
    hasher: SipHasher13,
    /// Indices into `entries` by path.
    table: HashTable<u32>,
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    /// Opens under way.
    opening: BTreeMap<FileId, u32>,
    /// Entries with a resource.
    ready: usize,
    /// Where the search for a victim goes on.
    hand: usize,
    next_sweep: Instant,
    close: Vec<FileId>,
    /// How many pieces that were not yet given to the host are of a file: it must not be closed
    /// before.
    pins: BTreeMap<FileId, u32>,
    /// To be closed once nothing pins them.
    pinned_close: Vec<FileId>,
}

impl Files {
    /// An empty cache. `seed` keys the hash, so that clients cannot choose paths that collide.
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

    /// What is known of a path. No allocation.
    pub(crate) fn lookup(&mut self, now: Instant, path: &[u8]) -> Lookup<'_> {
        let Some(index) = self.find(path) else { return Lookup::Unknown };
        let Some(entry) = self.entries[index as usize].as_mut() else { return Lookup::Unknown };
        match &entry.resource {
            Some(resource) if entry.valid_until.is_some_and(|until| now <= until) => {
                entry.used = true;
                Lookup::Ready(resource)
            }
            _ if entry.opening.is_some() => Lookup::Opening,
            _ => Lookup::Unknown,
        }
    }

    /// An open began, for a path that [`Self::lookup`] said is unknown.
    /// An `optional` one may end without a file ([`Resource::Absent`]).
    pub(crate) fn begin(&mut self, path: &[u8], file: FileId, waiter: Waiter, optional: bool) {
        let opening = Opening { waiters: vec![waiter], optional, retried: false, outdated: false };
        let index = match self.find(path) {
            Some(index) => index,
            None => self.insert(path),
        };
        self.opening.insert(file, index);
        if let Some(entry) = self.entries[index as usize].as_mut() {
            entry.opening = Some(opening);
        }
    }

    /// The second open of a path after [`Opened::Again`] began.
    pub(crate) fn begin_again(&mut self, path: &[u8], file: FileId) {
        if let Some(index) = self.find(path) {
            self.opening.insert(file, index);
        }
    }

    /// Waits with others for a path that is being opened.
    pub(crate) fn join(&mut self, path: &[u8], waiter: Waiter, optional: bool) {
        let Some(index) = self.find(path) else { return };
        if let Some(opening) =
            self.entries[index as usize].as_mut().and_then(|e| e.opening.as_mut())
        {
            opening.waiters.push(waiter);
            opening.optional |= optional;
        }
    }

    /// An open ended. `now_s` is the time in seconds since 1970.
    pub(crate) fn opened(
        &mut self,
        now: Instant,
        now_s: u64,
        file: FileId,
        result: Result<FileStat, FileFault>,
    ) -> Opened {
        let Some(index) = self.opening.remove(&file) else { return Opened::Unknown };
        let Some(entry) = self.entries[index as usize].as_mut() else { return Opened::Unknown };
        let Some(mut opening) = entry.opening.take() else { return Opened::Unknown };
        let resource = match result {
            Ok(stat) => match stat.kind {
                FileKind::Regular => {
                    Ok(Resource::File(OpenFile::new(&entry.path, file, &stat, now_s)))
                }
                FileKind::Directory => Ok(Resource::Directory),
                // Devices, FIFOs and sockets are nobody's business.
                FileKind::Block | FileKind::Other => Err(FileFault::Denied),
            },
            Err(fault) => Err(fault),
        };
        if !matches!(resource, Ok(Resource::File(_))) {
            self.close.push(file);
        }
        if opening.outdated && !opening.retried {
            if let Ok(Resource::File(open)) = resource {
                self.close.push(open.file);
            }
            (opening.retried, opening.outdated) = (true, false);
            let path = entry.path.clone();
            entry.opening = Some(opening);
            return Opened::Again(path);
        }
        // What a second open that was overtaken too has found answers only those that wait.
        let until = if opening.outdated { now } else { now + self.validity };
        match resource {
            Ok(resource) => {
                self.keep(index, (now, until), resource);
                Opened::Resume(opening.waiters, Ok(()))
            }
            Err(FileFault::Refused(Refusal::TableFull)) if !opening.retried && self.ready > 0 => {
                opening.retried = true;
                let path = entry.path.clone();
                entry.opening = Some(opening);
                self.make_room();
                Opened::Again(path)
            }
            Err(fault) if opening.optional => {
                // A refused open is remembered as well: requests look up other optional files
                // before they are answered, and would open this one again after each.
                self.keep(index, (now, until), Resource::Absent(fault));
                Opened::Resume(opening.waiters, Ok(()))
            }
            Err(fault) => {
                self.remove(index);
                Opened::Resume(opening.waiters, Err(fault))
            }
        }
    }

    /// Gives up a few entries: there are no handles left.
    pub(crate) fn make_room(&mut self) {
        for _ in 0..EVICT_ON_FULL {
            self.evict();
        }
    }

    /// The second open of a path failed to begin. Who waited for it is to be told.
    pub(crate) fn cancel(&mut self, path: &[u8]) -> Vec<Waiter> {
        let Some(index) = self.find(path) else { return Vec::new() };
        let opening = self.entries[index as usize].as_mut().and_then(|e| e.opening.take());
        self.remove(index);
        opening.map_or_else(Vec::new, |opening| opening.waiters)
    }

    /// A path may lead elsewhere by now, or to other content: the next request opens it again.
    pub(crate) fn expire(&mut self, path: &[u8]) {
        if let Some(index) = self.find(path) {
            self.expire_entry(index as usize);
        }
    }

    /// The same, for all paths.
    pub(crate) fn expire_all(&mut self) {
        (0..self.entries.len()).for_each(|index| self.expire_entry(index));
    }

    fn expire_entry(&mut self, index: usize) {
        let Some(entry) = self.entries[index].as_mut() else { return };
        entry.valid_until = None;
        if let Some(opening) = &mut entry.opening {
            opening.outdated = true;
        }
    }

    /// Believes a file no longer: a transfer from it failed.
    pub(crate) fn invalidate(&mut self, file: FileId) {
        let named =
            |entry: &Entry| matches!(&entry.resource, Some(Resource::File(f)) if f.file == file);
        let index = self.entries.iter().position(|e| e.as_ref().is_some_and(named));
        if let Some(index) = index {
            self.forget(index);
        }
    }

    /// Forgets what nobody asked for since the last sweep.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if now < self.next_sweep {
            return;
        }
        for index in 0..self.entries.len() {
            let Some(entry) = self.entries[index].as_mut() else { continue };
            if entry.resource.is_some() && !core::mem::take(&mut entry.used) {
                self.forget(index);
            }
        }
        self.next_sweep = if self.ready > 0 { now + SWEEP_INTERVAL } else { Instant::FAR_FUTURE };
    }

    /// When to call [`Self::handle_timeout`].
    pub(crate) const fn poll_timeout(&self) -> Instant {
        self.next_sweep
    }

    /// A handle that is to be closed.
    pub(crate) fn poll_close(&mut self) -> Option<FileId> {
        loop {
            let file = self.close.pop()?;
            if !self.pins.contains_key(&file) {
                return Some(file);
            }
            self.pinned_close.push(file);
        }
    }

    /// A piece of a file waits for room in the host, which therefore does not know of it yet.
    pub(crate) fn pin(&mut self, file: FileId) {
        *self.pins.entry(file).or_insert(0) += 1;
    }

    /// A piece was given to the host, or never will be.
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

    /// Entries that hold a file or a directory.
    pub(crate) const fn len(&self) -> usize {
        self.ready
    }

    /// Takes a resource into an entry that has ended its open, to be believed until an instant.
    fn keep(&mut self, index: u32, (now, until): (Instant, Instant), resource: Resource) {
        let Some(entry) = self.entries[index as usize].as_mut() else { return };
        entry.valid_until = Some(until);
        entry.used = true;
        let had = entry.resource.is_some();
        match (&entry.resource, resource) {
            // Unchanged: the old handle stays, so that all connections share what the device holds
            // for it.
            (Some(Resource::File(old)), Resource::File(new))
                if old.version == new.version && old.size == new.size =>
            {
                self.close.push(new.file);
            }
            (old, new) => {
                if let Some(Resource::File(old)) = old {
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

    /// Gives up one entry that has had its second chance. The newest is marked used, and so
    /// survives unless all are.
    fn evict(&mut self) {
        // Two rounds find one: the first clears every flag.
        for _ in 0..self.entries.len() * 2 {
            let index = self.hand;
            self.hand = (self.hand + 1) % self.entries.len();
            let Some(entry) = self.entries[index].as_mut() else { continue };
            if entry.resource.is_some() && !core::mem::take(&mut entry.used) {
                self.forget(index);
                return;
            }
        }
    }

    /// Drops an entry's resource, and the entry unless somebody waits for its path.
    fn forget(&mut self, index: usize) {
        let Some(entry) = self.entries[index].as_mut() else { return };
        if let Some(resource) = entry.resource.take() {
            self.ready -= 1;
            if let Resource::File(open) = resource {
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
        self.forget(index as usize);
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
        let entry = Entry {
            path: path.into(),
            resource: None,
            valid_until: None,
            used: false,
            opening: None,
        };
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            // One entry for each connection at most, beyond the capacity.
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
