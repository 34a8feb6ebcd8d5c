//! The file engine: file to wire (IO-TCP, sections 3.4 to 3.6).
//!
//! A transmit names extents of files; the engine finds their blocks in memory or has the disk read
//! them, and gives the payload back when all are there. Reads are page-aligned and never block;
//! connections that send the same content share blocks and reads. A block is kept after it was
//! sent, until the host acknowledges it or memory is short.
//!
//! *Memory is bounded and its end is never a failure.* Transmits get their blocks strictly in the
//! order in which they came, one transmit at a time ("admission"). So a transmit that holds blocks
//! waits for the disk only, never for memory behind a transmit that waits for memory itself, even
//! where both are of one flow: there is no circle, and every transmit ends. [`FileConfig::clamped`]
//! sees to it that the memory suffices for any single transmit.
//!
//! *Bytes of a changed file are never sent as right ones.* A read whose length or whose version
//! after the read differs from what was there at open fails everyone who waits for it; the block is
//! not kept and the file is not read again.
//!
//! *What the host has written to a namespace is never sent as it was before.* The host says which
//! range is old by now; its blocks leave the cache, and those that are being read never enter it.
//! What waits for such a block wants other bytes of it, and still gets them.
//!
//! Called by [`crate::Device`]. It knows no packets, no flows and no time. The path is the host's
//! and goes to the disk as it is; the disk keeps it below the root. Files: `open` (names and
//! handles), `cache` (blocks), `buffers` (memory), `waiters`, `admission` and `jobs`
//! (transmits that wait), `engine` (what the device sees), `counters`.

mod admission;
mod buffers;
mod cache;
mod counters;
mod engine;
mod jobs;
mod open;
mod waiters;

use abi::aligned::{AlignedBuf, PAGE_BYTES};
use abi::disk::{DiskCompletion, DiskFile, DiskRequest, RequestId};
use abi::{FileAccess, FileExtent, FileFault, FileId, FileOpened, FileStat, Part, Parts};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use smallvec::SmallVec;

use self::admission::Admission;
use self::cache::{Cache, Reading, pages};
use self::counters::FileCounters;
pub(crate) use self::open::PINNED;
use self::open::{OpenFiles, Opened, Readable};
use super::Resolved;
use crate::config::FileConfig;
use structures::slab::Key;

/// Longest path in bytes: Linux's `PATH_MAX`.
const PATH_BYTES_MAX: usize = 4096;

/// How a transmit starts.
#[derive(Debug)]
pub(crate) enum Start {
    /// Everything was in memory.
    Ready(Resolved),
    /// It waits; [`FileEngine::admit`] is to be called with this name.
    Waiting(Key),
}

/// The end of a transmit that waited: the name that it was admitted under, and its payload.
pub(crate) type Done = (Key, Result<Resolved, FileFault>);

/// The engine's state.
#[derive(Debug)]
pub(crate) struct FileEngine {
    config: FileConfig,
    files: OpenFiles,
    /// Files found changed, and their queues, of which the host has not been told.
    changed: Vec<(usize, FileId)>,
    cache: Cache,
    admission: Admission,
    /// Opens and closes for the disk.
    control: VecDeque<DiskRequest>,
    /// Reads for the disk.
    reads: VecDeque<DiskRequest>,
    /// Reads that the disk has.
    in_flight: usize,
    done: VecDeque<Done>,
    counters: FileCounters,
}

impl FileEngine {
    /// An engine without files.
    pub(crate) fn new(config: FileConfig, transmit_bytes_max: u32, seed: u64) -> Self {
        let config = config.clamped(transmit_bytes_max);
        Self {
            files: OpenFiles::new(config.files_max, seed),
            changed: Vec::new(),
            cache: Cache::new(config.memory_bytes_max, config.block_pages, seed),
            admission: Admission::new(),
            control: VecDeque::new(),
            reads: VecDeque::new(),
            in_flight: 0,
            done: VecDeque::new(),
            counters: FileCounters::default(),
            config,
        }
    }

    /// Files that can be open at one time.
    pub(crate) const fn files_max(&self) -> u32 {
        self.config.files_max
    }

    /// Opens a file. An answer that is known at once is given back, the other comes from
    /// [`Self::handle`].
    pub(crate) fn open(
        &mut self,
        queue: usize,
        id: FileId,
        path: Box<[u8]>,
        access: FileAccess,
    ) -> Option<FileOpened> {
        self.counters.file_opens += 1;
        let begun = if path.len() > PATH_BYTES_MAX {
            Err(FileFault::BadPath)
        } else {
            let namespace = (access == FileAccess::Namespace).then(|| path.clone());
            self.files.begin(queue, id, namespace)
        };
        match begun {
            Ok(key) => {
                let (id, access) = (RequestId(key.to_u64()), access.into());
                self.control.push_back(DiskRequest::Open { id, path, access });
                None
            }
            Err(fault) => {
                self.counters.file_open_failures += 1;
                Some(FileOpened { file: id, result: Err(fault) })
            }
        }
    }

    /// Forgets a file; what already waits for its bytes still gets them.
    pub(crate) fn close(&mut self, queue: usize, id: FileId) {
        match self.files.close(queue, id) {
            Some(disk) => self.close_disk(disk),
            None => self.counters.file_unknown += 1,
        }
    }

    /// Bytes of a file have reached the peer, or never will.
    pub(crate) fn acknowledge(&mut self, queue: usize, extent: FileExtent) {
        self.counters.file_acks += 1;
        let key = self.files.find(queue, extent.file);
        // A file found changed holds blocks all the same.
        let Some((version, size)) = key.and_then(|key| self.files.content_of(key)) else {
            self.counters.file_unknown += 1;
            return;
        };
        let to = extent.offset.saturating_add(u64::from(extent.len)).min(size);
        self.cache.acknowledge(version, extent.offset, to, self.config.block_bytes() as u64);
    }

    /// The host has written to a range of a namespace: what there is of it, however it was opened,
    /// is given to nobody any more.
    pub(crate) fn invalidate(&mut self, queue: usize, id: FileId, offset: u64, len: u64) {
        self.counters.file_invalidations += 1;
        let key = self.files.find(queue, id);
        let versions = key.map(|key| self.files.versions_of(key)).unwrap_or_default();
        // A file that is being opened has none: nothing of it was read so far.
        self.counters.file_unknown += u64::from(key.is_none());
        let (to, block_bytes) = (offset.saturating_add(len), self.config.block_bytes() as u64);
        for version in versions {
            self.cache.invalidate(version, offset, to, block_bytes, &mut self.counters);
        }
    }

    /// Keeps the files of `parts` open for the device's own use, whatever the host closes, and
    /// gives them names of the queue [`PINNED`]; one [`Self::unpin`] for each part lets go of them.
    /// Says whether all are open; else nothing has changed.
    pub(crate) fn pin(&mut self, queue: usize, parts: &mut Parts) -> bool {
        let mut pins = SmallVec::<[FileId; 2]>::new();
        for extent in parts.iter().filter_map(Part::extent) {
            let Some(pin) = self.files.pin(queue, extent.file) else {
                pins.into_iter().for_each(|pin| self.unpin(pin));
                return false;
            };
            pins.push(pin);
        }
        let extents = parts.iter_mut().filter_map(Part::extent_mut);
        extents.zip(pins).for_each(|(extent, pin)| extent.file = pin);
        true
    }

    /// Takes one pin off a file.
    pub(crate) fn unpin(&mut self, pin: FileId) {
        if let Some(key) = self.files.find(PINNED, pin) {
            let closed = self.files.release(key);
            self.close_disk(closed);
        }
    }

    /// Whether [`Self::poll_done`] may return something.
    pub(crate) fn may_have_done(&self) -> bool {
        self.cache.has_freed() || self.admission.has_changed() || !self.done.is_empty()
    }

    /// The next end of a transmit that waited. Called until there is none after every other call.
    #[inline]
    pub(crate) fn poll_done(&mut self) -> Option<Done> {
        if self.done.is_empty() {
            let (freed, changed) = (self.cache.take_freed(), self.admission.take_changed());
            if freed || changed {
                self.advance();
            }
        }
        self.done.pop_front()
    }

    /// Frames may have left and let go of blocks: the oldest transmit that waits for memory tries
    /// again.
    pub(crate) fn nudge(&mut self) {
        self.admission.nudge();
    }

    /// Whether transmits wait for memory that no completion of a read will free.
    pub(crate) fn waits_for_memory(&self) -> bool {
        !self.admission.is_idle() && self.in_flight == 0 && self.reads.is_empty()
    }

    /// The payload of a transmit has left: its blocks are held until they are acknowledged.
    pub(crate) fn departed(&mut self, holds: &[(Key, u32)], file_bytes: u32) {
        if file_bytes == 0 {
            return;
        }
        self.counters.file_transmits += 1;
        self.counters.file_bytes += u64::from(file_bytes);
        for &(block, bytes) in holds {
            self.cache.hold(block, bytes);
        }
    }

    /// The next request for the disk.
    pub(crate) fn poll_disk(&mut self) -> Option<DiskRequest> {
        if let Some(request) = self.control.pop_front() {
            return Some(request);
        }
        if self.in_flight >= self.config.reads_in_flight_max {
            return None;
        }
        let read = self.reads.pop_front()?;
        self.in_flight += 1;
        Some(read)
    }

    /// The disk did not take a request.
    pub(crate) fn unpoll_disk(&mut self, request: DiskRequest) {
        match request {
            DiskRequest::Read { id, file, offset, buf } => {
                self.in_flight = self.in_flight.saturating_sub(1);
                // Polled before a reset: nobody wants it any more.
                if self.cache.reading(Key::from_u64(id.0)).is_none() {
                    return self.take_stale(buf);
                }
                self.reads.push_front(DiskRequest::Read { id, file, offset, buf });
            }
            DiskRequest::Open { id, .. } if !self.files.exists(Key::from_u64(id.0)) => {}
            DiskRequest::Open { .. } | DiskRequest::Close { .. } => {
                self.control.push_front(request);
            }
            DiskRequest::Write { .. } | DiskRequest::Flush { .. } | DiskRequest::Zero { .. } => {
                debug_assert!(false, "a device does not write");
            }
        }
    }

    /// Takes an answer from the disk; gives what the host is to be told.
    pub(crate) fn handle(&mut self, completion: DiskCompletion) -> Option<(usize, FileOpened)> {
        match completion {
            DiskCompletion::Opened { id, result } => self.handle_opened(id, result),
            DiskCompletion::Read { id, buf, result } => {
                self.handle_read(id, buf, result);
                None
            }
            DiskCompletion::Written { .. }
            | DiskCompletion::Flushed { .. }
            | DiskCompletion::Zeroed { .. } => {
                self.counters.file_stale_completions += 1;
                None
            }
        }
    }

    /// The next file that was found changed, and its queue.
    pub(crate) fn poll_changed(&mut self) -> Option<(usize, FileId)> {
        self.changed.pop()
    }

    /// Forgets everything. The disk is told to close what it has open.
    pub(crate) fn forget(&mut self) {
        self.changed.clear();
        self.control.retain(|request| matches!(request, DiskRequest::Close { .. }));
        while let Some(read) = self.reads.pop_front() {
            if let DiskRequest::Read { buf, .. } = read {
                self.take_stale(buf);
            }
        }
        let control = &mut self.control;
        self.files.clear(|file| control.push_back(DiskRequest::Close { file }));
        self.admission.clear();
        self.cache.clear();
        self.done.clear();
    }

    /// Counters and gauges by name.
    pub(crate) fn visit_counters(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(f);
        f("file_blocks", self.cache.len() as u64);
        f("file_memory_bytes", self.cache.allocated_bytes() as u64);
        f("file_held_bytes", self.cache.held_bytes());
        f("file_open_files", self.files.len() as u64);
        f("file_waiting_transmits", self.admission.len() as u64);
        f("file_reads_in_flight", self.in_flight as u64);
    }

    fn handle_opened(
        &mut self,
        id: RequestId,
        result: Result<(DiskFile, FileStat), FileFault>,
    ) -> Option<(usize, FileOpened)> {
        match self.files.finish(Key::from_u64(id.0), result.ok()) {
            Opened::Tell { queue, file } => {
                self.counters.file_open_failures += u64::from(result.is_err());
                Some((queue, FileOpened { file, result: result.map(|(_, stat)| stat) }))
            }
            Opened::Abandoned => {
                self.counters.file_stale_completions += 1;
                self.close_disk(result.ok().map(|(disk, _)| disk));
                None
            }
        }
    }

    fn handle_read(
        &mut self,
        id: RequestId,
        buf: AlignedBuf,
        result: Result<(u32, FileStat), FileFault>,
    ) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let key = Key::from_u64(id.0);
        let Some(reading) = self.cache.reading(key) else {
            self.counters.file_stale_completions += 1;
            return self.take_stale(buf);
        };
        let verdict = self.judge(&reading, buf.len(), result);
        let closed = self.files.release(reading.file);
        self.close_disk(closed);
        let mut waiters = self.cache.take_waiters(key);
        let verdict = match (verdict, self.cache.take_back(buf)) {
            (Ok(()), Some(buf)) => {
                self.cache.fill(key, buf);
                while let Some(job) = self.cache.next_waiter(&mut waiters) {
                    self.block_arrived(job);
                }
                return;
            }
            (Ok(()), None) => FileFault::Io,
            (Err(fault), buf) => {
                buf.into_iter().for_each(|buf| self.cache.put(buf));
                fault
            }
        };
        if verdict == FileFault::Changed {
            self.counters.file_changed += 1;
            let changed = &mut self.changed;
            self.files.mark_changed(reading.version, |queue, file| changed.push((queue, file)));
        } else {
            self.counters.file_read_errors += 1;
        }
        while let Some(job) = self.cache.next_waiter(&mut waiters) {
            self.fail(job, verdict);
        }
        self.cache.discard(key);
    }

    /// Whether a read brought what was there when the file was opened.
    fn judge(
        &self,
        reading: &Reading,
        buf_bytes: usize,
        result: Result<(u32, FileStat), FileFault>,
    ) -> Result<(), FileFault> {
        let (bytes, stat) = result?;
        let file = self.files.readable(reading.file)?;
        let expected = self.block_len(&file, reading.index);
        if file.namespace {
            // One that is shorter than it was is still read where it has bytes.
            return if bytes as usize >= expected { Ok(()) } else { Err(FileFault::Io) };
        }
        if stat.version != reading.version || (bytes as usize) < expected {
            return Err(FileFault::Changed);
        }
        if buf_bytes < expected { Err(FileFault::Io) } else { Ok(()) }
    }

    /// Bytes of a file in its block `index`; zero beyond its end.
    fn block_len(&self, file: &Readable, index: u64) -> usize {
        let block_bytes = self.config.block_bytes();
        let start = index.saturating_mul(block_bytes as u64);
        usize::try_from(file.size.saturating_sub(start)).unwrap_or(usize::MAX).min(block_bytes)
    }

    /// Has the disk read a block, if there is memory for it.
    fn read(&mut self, file: Key, readable: &Readable, index: u64, ahead: bool) -> Option<Key> {
        let bytes = self.block_len(readable, index);
        if bytes == 0 {
            return None;
        }
        let buf = self.cache.lend(pages(bytes), ahead, &mut self.counters)?;
        self.counters.file_disk_reads += 1;
        self.counters.file_disk_read_bytes += buf.len() as u64;
        self.counters.file_read_ahead += u64::from(ahead);
        let reading = Reading { version: readable.version, index, file };
        let block = self.cache.begin_read(reading, ahead);
        self.files.retain(file);
        self.reads.push_back(DiskRequest::Read {
            id: RequestId(block.to_u64()),
            file: readable.disk,
            offset: index * self.config.block_bytes() as u64,
            buf,
        });
        Some(block)
    }

    /// Has the disk read the blocks behind `index`, as far as memory is to be had for the asking
    /// and the disk is not busy.
    fn read_ahead(&mut self, file: Key, index: u64) {
        let Ok(readable) = self.files.readable(file) else { return };
        for ahead in 1..=u64::from(self.config.read_ahead_blocks) {
            let Some(next) = index.checked_add(ahead) else { return };
            if self.reads.len() >= self.config.reads_in_flight_max {
                return;
            }
            if self.cache.find(readable.version, next).is_none()
                && self.read(file, &readable, next, true).is_none()
            {
                return;
            }
        }
    }

    fn take_stale(&mut self, buf: AlignedBuf) {
        if let Some(buf) = self.cache.take_back(buf) {
            self.cache.put(buf);
        }
    }

    fn close_disk(&mut self, disk: Option<DiskFile>) {
        if let Some(file) = disk {
            self.control.push_back(DiskRequest::Close { file });
        }
    }
}

const _: () = assert!(PAGE_BYTES.is_power_of_two(), "offsets of blocks are multiples of pages");
