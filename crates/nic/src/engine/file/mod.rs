//! The file engine: from file to link (IO-TCP, sections 3.4 to 3.6).
//!
//! A transmit names extents of files. The engine finds their blocks in memory or has the disk read
//! them, and returns the payload when it is complete. Reads are page-aligned and never block. In a
//! sequential run whole blocks are read, and read ahead; otherwise only the needed pages.
//! Connections that send the same content share blocks and reads. A block is kept after it was sent
//! until the host acknowledges it or memory is short.
//!
//! *Memory is bounded, and running out of it is never a failure.* Transmits get their blocks
//! strictly in arrival order, one transmit at a time (admission). A transmit that has pinned blocks
//! therefore waits only for the disk, never for memory behind another transmit that waits for
//! memory, even on the same flow. No cycle is possible, and every transmit completes.
//! [`FileConfig::clamped`] ensures that memory suffices for any single transmit.
//!
//! *Bytes of a changed file are never sent.* If the length or version found by a read differs from
//! that at open, the read fails for all its waiters, the block is not kept, and the file is not
//! read again.
//!
//! *Outdated bytes of a namespace are never sent after the host's invalidation.* The host names the
//! range that it has written. Its blocks leave the cache, and blocks being read do not enter it.
//! Transmits that already wait for such a block need other bytes of it, and still get them.
//!
//! Called by [`crate::Device`]. Packets, flows and time are unknown here. Paths come from the host
//! and are passed to the disk unchanged; the disk confines them to its root. Files: `open_files`
//! (IDs and handles), `cache` (blocks), `buffers` (memory), `streams` (sequential runs), `waiters`,
//! `admission` and `jobs` (pending transmits), `engine` (the [`super::Engine`] implementation), and
//! `counters`.

mod admission;
mod buffers;
mod cache;
mod counters;
mod engine;
mod jobs;
mod open_files;
mod streams;
mod waiters;

use abi::aligned::{AlignedBuf, PAGE_BYTES};
use abi::disk::{DiskCompletion, DiskFile, DiskRequest, DiskRequestId};
use abi::{
    FileAccess, FileExtent, FileFault, FileId, FileOpened, FileStat, TransmitPart, TransmitParts,
};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;
use smallvec::SmallVec;

use self::admission::Admission;
use self::cache::{BlockCache, BlockRead, pages};
use self::counters::FileCounters;
pub(crate) use self::open_files::PINNED;
use self::open_files::{OpenCompletion, OpenFiles, ReadableFile};
use self::streams::StreamEnds;
use super::ResolvedPayload;
use crate::config::FileConfig;
use structures::slab::SlabKey;

/// Maximum length of a path in bytes: Linux's `PATH_MAX`.
const PATH_BYTES_MAX: usize = 4096;

/// Result of starting a transmit.
#[derive(Debug)]
pub(crate) enum FileStart {
    /// All blocks were in memory.
    Ready(ResolvedPayload),
    /// The transmit is pending; [`FileEngine::admit`] must be called with this key.
    Waiting(SlabKey),
}

/// Completion of a pending transmit: its token from [`FileEngine::admit`] and its payload.
pub(crate) type FileJobDone = (SlabKey, Result<ResolvedPayload, FileFault>);

/// The file engine.
#[derive(Debug)]
pub(crate) struct FileEngine {
    config: FileConfig,
    files: OpenFiles,
    /// Files found changed, with their queues, that have not been reported to the host yet.
    changed: Vec<(usize, FileId)>,
    cache: BlockCache,
    streams: StreamEnds,
    admission: Admission,
    /// Opens and closes for the disk.
    control: VecDeque<DiskRequest>,
    /// Reads for the disk.
    reads: VecDeque<DiskRequest>,
    /// Number of reads submitted to the disk.
    in_flight: usize,
    done: VecDeque<FileJobDone>,
    counters: FileCounters,
}

impl FileEngine {
    /// Creates an engine without files.
    pub(crate) fn new(config: FileConfig, transmit_bytes_max: u32, seed: u64) -> Self {
        let config = config.clamped(transmit_bytes_max);
        Self {
            files: OpenFiles::new(config.files_max, seed),
            changed: Vec::new(),
            cache: BlockCache::new(config.memory_bytes_max, config.block_pages, seed),
            streams: StreamEnds::new(seed),
            admission: Admission::new(),
            control: VecDeque::new(),
            reads: VecDeque::new(),
            in_flight: 0,
            done: VecDeque::new(),
            counters: FileCounters::default(),
            config,
        }
    }

    /// Maximum number of open files.
    pub(crate) const fn files_max(&self) -> u32 {
        self.config.files_max
    }

    /// Opens a file. Returns the answer if it is known at once; otherwise [`Self::handle`] will
    /// return it.
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
                let (id, access) = (DiskRequestId(key.to_u64()), access.into());
                self.control.push_back(DiskRequest::Open { id, path, access });
                None
            }
            Err(fault) => {
                self.counters.file_open_failures += 1;
                Some(FileOpened { file: id, result: Err(fault) })
            }
        }
    }

    /// Closes a file. Transmits that already wait for its bytes still get them.
    pub(crate) fn close(&mut self, queue: usize, id: FileId) {
        match self.files.close(queue, id) {
            Some(disk) => self.close_disk(disk),
            None => self.counters.file_unknown += 1,
        }
    }

    /// Releases held bytes of a file that the peer has acknowledged or will never need.
    pub(crate) fn acknowledge(&mut self, queue: usize, extent: FileExtent) {
        self.counters.file_acks += 1;
        let key = self.files.find(queue, extent.file);
        // Blocks of a file found changed may still be held.
        let Some((version, size)) = key.and_then(|key| self.files.content_of(key)) else {
            self.counters.file_unknown += 1;
            return;
        };
        let to = extent.offset.saturating_add(u64::from(extent.len)).min(size);
        self.cache.acknowledge(version, extent.offset, to, self.config.block_bytes() as u64);
    }

    /// Invalidates a range of a namespace that the host has written to, for all opens of that
    /// namespace.
    pub(crate) fn invalidate(&mut self, queue: usize, id: FileId, offset: u64, len: u64) {
        self.counters.file_invalidations += 1;
        let key = self.files.find(queue, id);
        let versions = key.map(|key| self.files.versions_of(key)).unwrap_or_default();
        // A file that is still being opened has no versions, and none of its blocks were read.
        self.counters.file_unknown += u64::from(key.is_none());
        let (to, block_bytes) = (offset.saturating_add(len), self.config.block_bytes() as u64);
        for version in versions {
            self.cache.invalidate(version, offset, to, block_bytes, &mut self.counters);
        }
    }

    /// Pins the files of `parts` for the device's own use, even if the host closes them, and
    /// replaces their IDs by ones of the queue [`PINNED`]. Each part must be released by one
    /// [`Self::unpin`]. Returns false, with nothing changed, if a file is not open.
    pub(crate) fn pin(&mut self, queue: usize, parts: &mut TransmitParts) -> bool {
        let mut pins = SmallVec::<[FileId; 2]>::new();
        for extent in parts.iter().filter_map(TransmitPart::extent) {
            let Some(pin) = self.files.pin(queue, extent.file) else {
                pins.into_iter().for_each(|pin| self.unpin(pin));
                return false;
            };
            pins.push(pin);
        }
        let extents = parts.iter_mut().filter_map(TransmitPart::extent_mut);
        extents.zip(pins).for_each(|(extent, pin)| extent.file = pin);
        true
    }

    /// Releases one pin of a file.
    pub(crate) fn unpin(&mut self, pin: FileId) {
        if let Some(key) = self.files.find(PINNED, pin) {
            let closed = self.files.release(key);
            self.close_disk(closed);
        }
    }

    /// Returns whether [`Self::poll_done`] may return a completion.
    pub(crate) fn may_have_done(&self) -> bool {
        self.cache.has_freed() || self.admission.has_changed() || !self.done.is_empty()
    }

    /// Returns the next completion of a pending transmit. Must be called until `None` after every
    /// other call.
    #[inline]
    pub(crate) fn poll_done(&mut self) -> Option<FileJobDone> {
        if self.done.is_empty() {
            let (freed, changed) = (self.cache.take_freed(), self.admission.take_changed());
            if freed || changed {
                self.advance();
            }
        }
        self.done.pop_front()
    }

    /// Lets the oldest transmit that waits for memory try again, because frames may have left and
    /// released blocks.
    pub(crate) fn retry_waiting(&mut self) {
        self.admission.request_retry();
    }

    /// Returns whether transmits wait for memory that no read completion will free.
    pub(crate) fn waits_for_memory(&self) -> bool {
        !self.admission.is_idle() && self.in_flight == 0 && self.reads.is_empty()
    }

    /// Records that a transmit's payload has left: its blocks are held until acknowledged.
    pub(crate) fn on_transmit_sent(&mut self, holds: &[(SlabKey, u32)], file_bytes: u32) {
        if file_bytes == 0 {
            return;
        }
        self.counters.file_transmits += 1;
        self.counters.file_bytes += u64::from(file_bytes);
        for &(block, bytes) in holds {
            self.cache.hold(block, bytes);
        }
    }

    /// Returns the next request for the disk.
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

    /// Takes back a request that the disk did not accept.
    pub(crate) fn unpoll_disk(&mut self, request: DiskRequest) {
        match request {
            DiskRequest::Read { id, file, offset, buf } => {
                self.in_flight = self.in_flight.saturating_sub(1);
                // The read was polled before a reset and is no longer wanted.
                if self.cache.reading(SlabKey::from_u64(id.0)).is_none() {
                    return self.take_stale(buf);
                }
                self.reads.push_front(DiskRequest::Read { id, file, offset, buf });
            }
            DiskRequest::Open { id, .. } if !self.files.exists(SlabKey::from_u64(id.0)) => {}
            DiskRequest::Open { .. } | DiskRequest::Close { .. } => {
                self.control.push_front(request);
            }
            DiskRequest::Write { .. }
            | DiskRequest::Flush { .. }
            | DiskRequest::Publish { .. }
            | DiskRequest::Zero { .. } => {
                debug_assert!(false, "a device does not write");
            }
        }
    }

    /// Handles a disk completion. Returns the answer to an open and its queue, if any.
    pub(crate) fn handle(&mut self, completion: DiskCompletion) -> Option<(usize, FileOpened)> {
        match completion {
            DiskCompletion::Opened { id, result } => self.handle_opened(id, result),
            DiskCompletion::Read { id, buf, result } => {
                self.handle_read(id, buf, result);
                None
            }
            DiskCompletion::Written { .. }
            | DiskCompletion::Flushed { .. }
            | DiskCompletion::Published { .. }
            | DiskCompletion::Zeroed { .. } => {
                self.counters.file_stale_completions += 1;
                None
            }
        }
    }

    /// Returns the next file that was found changed, with its queue.
    pub(crate) fn poll_changed(&mut self) -> Option<(usize, FileId)> {
        self.changed.pop()
    }

    /// Discards all state except counters, and has the disk close its open files.
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

    /// Calls `f` with the name and value of each counter and gauge.
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
        id: DiskRequestId,
        result: Result<(DiskFile, FileStat), FileFault>,
    ) -> Option<(usize, FileOpened)> {
        match self.files.finish(SlabKey::from_u64(id.0), result.ok()) {
            OpenCompletion::Tell { queue, file } => {
                self.counters.file_open_failures += u64::from(result.is_err());
                Some((queue, FileOpened { file, result: result.map(|(_, stat)| stat) }))
            }
            OpenCompletion::Abandoned => {
                self.counters.file_stale_completions += 1;
                self.close_disk(result.ok().map(|(disk, _)| disk));
                None
            }
        }
    }

    fn handle_read(
        &mut self,
        id: DiskRequestId,
        buf: AlignedBuf,
        result: Result<(u32, FileStat), FileFault>,
    ) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let key = SlabKey::from_u64(id.0);
        let Some(reading) = self.cache.reading(key) else {
            self.counters.file_stale_completions += 1;
            return self.take_stale(buf);
        };
        let verdict = self.check_read(&reading, buf.len(), result);
        let closed = self.files.release(reading.file);
        self.close_disk(closed);
        let mut waiters = self.cache.take_waiters(key);
        let verdict = match (verdict, self.cache.accept_from_disk(buf)) {
            (Ok(()), Some(buf)) => {
                self.cache.fill(key, buf);
                while let Some(job) = self.cache.next_waiter(&mut waiters) {
                    self.block_arrived(job);
                }
                return;
            }
            (Ok(()), None) => FileFault::Io,
            (Err(fault), buf) => {
                buf.into_iter().for_each(|buf| self.cache.make_spare(buf));
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

    /// Checks that a read returned the content that existed when the file was opened.
    fn check_read(
        &self,
        reading: &BlockRead,
        buf_bytes: usize,
        result: Result<(u32, FileStat), FileFault>,
    ) -> Result<(), FileFault> {
        let (bytes, stat) = result?;
        let file = self.files.readable(reading.file)?;
        let start = reading.range.start as usize;
        let expected =
            self.block_len(&file, reading.index).saturating_sub(start).min(reading.range.len());
        if file.namespace {
            // A namespace that has shrunk is still read where it has bytes.
            return if bytes as usize >= expected { Ok(()) } else { Err(FileFault::Io) };
        }
        if stat.version != reading.version || (bytes as usize) < expected {
            return Err(FileFault::Changed);
        }
        if buf_bytes < expected { Err(FileFault::Io) } else { Ok(()) }
    }

    /// Length of block `index` of a file in bytes; 0 beyond its end.
    fn block_len(&self, file: &ReadableFile, index: u64) -> usize {
        let block_bytes = self.config.block_bytes();
        let start = index.saturating_mul(block_bytes as u64);
        usize::try_from(file.size.saturating_sub(start)).unwrap_or(usize::MAX).min(block_bytes)
    }

    /// Range of all bytes of a block.
    #[expect(clippy::cast_possible_truncation, reason = "a block is at most a megabyte")]
    const fn whole_block(&self) -> Range<u32> {
        0..self.config.block_bytes() as u32
    }

    /// Starts the read of the pages of a block that contain the bytes `range`. Returns `None` if
    /// there is no memory, or if the block lies beyond the file's end.
    fn read(
        &mut self,
        file: SlabKey,
        readable: &ReadableFile,
        index: u64,
        range: Range<u32>,
        ahead: bool,
    ) -> Option<SlabKey> {
        let first_page = range.start as usize / PAGE_BYTES;
        let end_page = pages(self.block_len(readable, index).min(range.end as usize));
        if end_page <= first_page {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "a block is at most a megabyte")]
        let range = (first_page * PAGE_BYTES) as u32..(end_page * PAGE_BYTES) as u32;
        let buf = self.cache.take_for_disk(end_page - first_page, ahead, &mut self.counters)?;
        self.counters.file_disk_reads += 1;
        self.counters.file_reads_of_pages += u64::from(range.len() < self.config.block_bytes());
        self.counters.file_disk_read_bytes += buf.len() as u64;
        self.counters.file_read_ahead += u64::from(ahead);
        let offset = index * self.config.block_bytes() as u64 + u64::from(range.start);
        let reading = BlockRead { version: readable.version, index, range, file };
        let block = self.cache.begin_read(reading, ahead);
        self.files.retain(file);
        self.reads.push_back(DiskRequest::Read {
            id: DiskRequestId(block.to_u64()),
            file: readable.disk,
            offset,
            buf,
        });
        Some(block)
    }

    /// Starts reads of the blocks after `index`, of no more bytes than the sequential run up to
    /// there has, while there is free memory and the disk is not busy.
    fn read_ahead(&mut self, file: SlabKey, index: u64, run: u64) {
        let Ok(readable) = self.files.readable(file) else { return };
        let blocks = run / self.config.block_bytes() as u64;
        for ahead in 1..=blocks.min(self.config.read_ahead_blocks.into()) {
            let Some(next) = index.checked_add(ahead) else { return };
            if self.reads.len() >= self.config.reads_in_flight_max {
                return;
            }
            #[expect(clippy::cast_possible_truncation, reason = "a block is at most a megabyte")]
            let here = 0..self.block_len(&readable, next) as u32;
            if self.cache.find(readable.version, next, &here).is_none()
                && self.read(file, &readable, next, here, true).is_none()
            {
                return;
            }
        }
    }

    fn take_stale(&mut self, buf: AlignedBuf) {
        if let Some(buf) = self.cache.accept_from_disk(buf) {
            self.cache.make_spare(buf);
        }
    }

    fn close_disk(&mut self, disk: Option<DiskFile>) {
        if let Some(file) = disk {
            self.control.push_back(DiskRequest::Close { file });
        }
    }
}

const _: () = assert!(PAGE_BYTES.is_power_of_two(), "offsets of blocks are multiples of pages");
