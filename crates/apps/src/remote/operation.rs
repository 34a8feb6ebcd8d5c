//! Operations: opening a file, reading a range, fetching a unit.
//!
//! [`super::RemoteFiles`] runs an operation when everything that it waited for has happened. It
//! either completes, or waits again. Nothing of a run is kept but the stage of a fetch, so an
//! operation sees the metadata as of its last run.

use abi::aligned::AlignedBuf;
use abi::disk::{DiskFile, DiskRequestId};
use abi::{FileFault, FileKind, FileStat};
use base::Instant;
use bytes::{Bytes, BytesMut};
use host::Host;

use super::units::{UNIT_BYTES, UnitPiece, UnitState};
use super::volume::VolumeWork;
use super::{OperationId, RemoteEvent, RemoteFiles};
use crate::ext4::{Ext4Fault, Ext4FileKind, Ext4Inode, Ext4Run, ROOT_INODE};

/// The work of an operation.
#[derive(Debug)]
pub(super) enum OperationWork {
    /// Finds out whether a volume can be read.
    Probe {
        volume: usize,
    },
    Open {
        id: DiskRequestId,
        /// `None` if no volume has the path.
        volume: Option<usize>,
        path: Box<[u8]>,
    },
    Read {
        id: DiskRequestId,
        file: u32,
        offset: u64,
        len: u32,
        len_min: u32,
        expected: u64,
        /// A unit was absent at the first run.
        was_missed: bool,
    },
    Fetch {
        file: u32,
        unit: u64,
        stage: FetchStage,
    },
}

/// Stage of a fetch.
#[derive(Debug)]
pub(super) enum FetchStage {
    /// The extents are looked up.
    Map,
    /// The pieces are read: each has its buffer later, or is zeros.
    Reading(Vec<FetchedPiece>),
    /// The pieces are complete, and the inode is compared.
    Verify(Vec<UnitPiece>),
}

/// A piece of a unit that is being read.
#[derive(Debug)]
pub(super) struct FetchedPiece {
    len: usize,
    /// `None` for zeros, and until it was read.
    placed: Option<(AlignedBuf, usize)>,
    is_zeros: bool,
}

/// An operation.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) work: OperationWork,
    /// Events to wait for before the next run.
    pub(super) waits: usize,
    pub(super) deadline: Option<Instant>,
    /// Metadata from before this time is not trusted.
    pub(super) not_before: Instant,
    /// An invalid structure was found once: old and new metadata may have been mixed.
    pub(super) is_retry: bool,
}

/// Result of a run.
enum OperationRun {
    Waits(usize),
    Ended,
    Failed(FileFault),
    Invalid(usize, Ext4Fault),
}

impl<T> From<(usize, VolumeWork<T>)> for OperationRun {
    /// Converts unfinished work of a volume.
    fn from((volume, work): (usize, VolumeWork<T>)) -> Self {
        match work {
            VolumeWork::Done(..) => Self::Ended,
            VolumeWork::Waits(count) => Self::Waits(count),
            VolumeWork::Fault(fault) => Self::Invalid(volume, fault),
        }
    }
}

impl RemoteFiles {
    pub(super) fn run_operation(&mut self, now: Instant, host: &mut Host, id: OperationId) {
        let Some(mut operation) = self.operations.remove(&id) else { return };
        let run = match &mut operation.work {
            OperationWork::Probe { volume } => self.run_probe(now, id, *volume, &operation),
            OperationWork::Open { .. } => self.run_open(now, host, id, &operation),
            OperationWork::Read { .. } => self.run_read(now, host, id, &mut operation),
            OperationWork::Fetch { .. } => self.run_fetch(now, id, &mut operation),
        };
        match run {
            OperationRun::Waits(waits) => {
                operation.waits = waits;
                self.operations.insert(id, operation);
            }
            OperationRun::Ended => self.forget_deadline(id, &operation),
            OperationRun::Failed(fault) => {
                self.operations.insert(id, operation);
                self.fail(now, host, id, fault);
            }
            OperationRun::Invalid(volume, fault) => {
                self.handle_invalid(now, host, (id, operation), volume, fault);
            }
        }
    }

    /// Runs an operation again, once, if the metadata is invalid: pages of different ages may
    /// contradict each other. Fails it otherwise.
    fn handle_invalid(
        &mut self,
        now: Instant,
        host: &mut Host,
        (id, mut operation): (OperationId, Operation),
        volume: usize,
        fault: Ext4Fault,
    ) {
        let is_corrupt = matches!(fault, Ext4Fault::Corrupt(_) | Ext4Fault::Checksum(_));
        if is_corrupt && !operation.is_retry {
            (operation.is_retry, operation.not_before) = (true, now);
            self.operations.insert(id, operation);
            return self.ready.push_back(id);
        }
        let of_file = matches!(fault, Ext4Fault::NotFound | Ext4Fault::BadPath);
        self.counters.remote_corrupt += u64::from(is_corrupt);
        if !of_file {
            self.events.push_back((volume, RemoteEvent::Unreadable(fault)));
        }
        self.operations.insert(id, operation);
        self.fail(now, host, id, fault_of(fault));
    }

    fn forget_deadline(&mut self, id: OperationId, operation: &Operation) {
        if let Some(at) = operation.deadline {
            self.deadlines.remove(&(at, id));
        }
    }

    /// Fails an operation; a fetch with those that wait for its unit.
    pub(super) fn fail(
        &mut self,
        now: Instant,
        host: &mut Host,
        id: OperationId,
        fault: FileFault,
    ) {
        let Some(operation) = self.operations.remove(&id) else { return };
        self.forget_deadline(id, &operation);
        match operation.work {
            OperationWork::Probe { .. } => {}
            OperationWork::Open { id, .. } => {
                self.counters.remote_opens_failed += 1;
                host.complete_content_open(now, id, Err(fault));
            }
            OperationWork::Read { id, .. } => {
                host.complete_content_read(now, id, Err(fault));
            }
            OperationWork::Fetch { file, unit, .. } => {
                let waiters = self.units.fail((file, unit));
                self.end_fetch();
                for waiter in waiters {
                    self.fail(now, host, waiter, fault);
                }
                self.files.remove_units(file, 1);
            }
        }
    }

    fn run_probe(
        &mut self,
        now: Instant,
        id: OperationId,
        index: usize,
        operation: &Operation,
    ) -> OperationRun {
        let Some(volume) = self.volumes.get_mut(index) else { return OperationRun::Ended };
        let floors = (operation.not_before, operation.not_before);
        let work = volume.with_file_system(now, floors, id, &mut self.counters, |system, view| {
            system.inode(view, ROOT_INODE)
        });
        if matches!(work, VolumeWork::Done(..)) {
            self.events.push_back((index, RemoteEvent::Readable));
        }
        (index, work).into()
    }

    fn run_open(
        &mut self,
        now: Instant,
        host: &mut Host,
        id: OperationId,
        operation: &Operation,
    ) -> OperationRun {
        let OperationWork::Open { id: request, volume: index, path } = &operation.work else {
            return OperationRun::Ended;
        };
        let Some(index) = *index else { return OperationRun::Failed(FileFault::NotFound) };
        let Some(volume) = self.volumes.get_mut(index) else {
            return OperationRun::Failed(FileFault::NotFound);
        };
        let floors = (operation.not_before, operation.not_before);
        let work = volume.with_file_system(now, floors, id, &mut self.counters, |system, view| {
            let inode = system.lookup(view, path)?;
            if inode.kind == Ext4FileKind::Regular {
                inode.check_extents()?;
            }
            Ok(inode)
        });
        let VolumeWork::Done(inode, since) = work else { return (index, work).into() };
        self.counters.remote_opens += 1;
        let stat = stat_of(&inode);
        let file = self.files.open(index, inode, since, now);
        for old in self.files.unused_versions(file) {
            let count = self.units.remove_file(old);
            self.files.remove_units(old, count);
        }
        host.complete_content_open(now, *request, Ok((DiskFile(file), stat)));
        OperationRun::Ended
    }

    fn run_read(
        &mut self,
        now: Instant,
        host: &mut Host,
        id: OperationId,
        operation: &mut Operation,
    ) -> OperationRun {
        let OperationWork::Read { id: request, file, offset, len, len_min, expected, was_missed } =
            &mut operation.work
        else {
            return OperationRun::Ended;
        };
        let (file, offset) = (*file, *offset);
        let Some(open) = self.files.get_mut(file) else {
            return OperationRun::Failed(FileFault::BadExtent);
        };
        if open.is_changed {
            return OperationRun::Failed(FileFault::Changed);
        }
        let size = open.inode.size;
        if offset.checked_add(u64::from(*len_min)).is_none_or(|end| end > size) {
            return OperationRun::Failed(FileFault::BadExtent);
        }
        // A reader that asks only for what it needs now is given one unit more if it continues.
        let is_sequential = open.read_end == offset;
        let next = if is_sequential { UNIT_BYTES } else { 0 };
        let end = size.min((offset + *expected).max(offset + u64::from(*len) + next));
        let absent = self.read_units(now, (file, offset), u64::from(*len_min), end, id);
        if absent > 0 {
            self.counters.remote_cache_misses += u64::from(!*was_missed);
            *was_missed = true;
            return OperationRun::Waits(absent);
        }
        self.counters.remote_cache_hits += u64::from(!*was_missed);
        let Some(bytes) = self.gather((file, offset), *len_min as usize, *len as usize) else {
            // Evicted meanwhile: the next run fetches it again.
            self.ready.push_back(id);
            return OperationRun::Waits(0);
        };
        if let Some(open) = self.files.get_mut(file) {
            open.read_end = offset + bytes.len() as u64;
        }
        self.counters.remote_reads += 1;
        host.complete_content_read(now, *request, Ok(bytes));
        OperationRun::Ended
    }

    /// Makes `id` wait for the units of `needed` bytes at `offset` that are absent, and starts to
    /// fetch them and, up to `end`, those after them. Returns the number of absent ones.
    fn read_units(
        &mut self,
        now: Instant,
        (file, offset): (u32, u64),
        needed: u64,
        end: u64,
        id: OperationId,
    ) -> usize {
        let (first, last) = (offset / UNIT_BYTES, (offset + needed - 1) / UNIT_BYTES);
        let mut absent = 0;
        for unit in first..=last {
            if !self.units.contains((file, unit)) {
                self.begin_fetch(now, file, unit, true);
            }
            if let Some(UnitState::Fetching(waiters)) = self.units.get((file, unit)) {
                waiters.push(id);
                absent += 1;
            }
        }
        let end = end.div_ceil(UNIT_BYTES).min(last + 1 + self.config.read_ahead_units);
        for unit in last + 1..end {
            let is_full = self.fetches >= self.config.fetches_max;
            if !is_full && !self.units.contains((file, unit)) {
                self.counters.remote_read_ahead_units += 1;
                self.begin_fetch(now, file, unit, false);
            }
        }
        absent
    }

    fn begin_fetch(&mut self, now: Instant, file: u32, unit: u64, is_needed: bool) {
        self.units.begin((file, unit));
        self.files.add_unit(file);
        let work = OperationWork::Fetch { file, unit, stage: FetchStage::Map };
        let id = self.add(now, work, false);
        if self.fetches < self.config.fetches_max {
            self.fetches += 1;
            self.ready.push_back(id);
        } else if is_needed {
            self.waiting_fetches.push_back(id);
        }
    }

    /// Lets the next fetch begin after one has ended.
    fn end_fetch(&mut self) {
        match self.waiting_fetches.pop_front() {
            Some(id) => self.ready.push_back(id),
            None => self.fetches -= 1,
        }
    }

    /// Returns `min` to `max` bytes of units that are ready: shared if one piece has `min` bytes,
    /// otherwise copied. `None` if a unit is gone.
    fn gather(&mut self, (file, offset): (u32, u64), min: usize, max: usize) -> Option<Bytes> {
        let mut copied = BytesMut::new();
        loop {
            let at = offset + copied.len() as u64;
            let Some(UnitState::Ready(pieces)) = self.units.get((file, at / UNIT_BYTES)) else {
                return None;
            };
            let mut skip = usize::try_from(at % UNIT_BYTES).ok()?;
            let piece = pieces.iter().find(|piece| {
                let is_here = skip < piece.bytes.len();
                skip -= if is_here { 0 } else { piece.bytes.len() };
                is_here
            })?;
            let here = piece.bytes.slice(skip..);
            if copied.is_empty() && here.len() >= min {
                return Some(here.slice(..here.len().min(max)));
            }
            copied.extend_from_slice(&here[..here.len().min(min - copied.len())]);
            if copied.len() == min {
                self.counters.remote_copied_bytes += min as u64;
                return Some(copied.freeze());
            }
        }
    }

    fn run_fetch(
        &mut self,
        now: Instant,
        id: OperationId,
        operation: &mut Operation,
    ) -> OperationRun {
        let OperationWork::Fetch { file, unit, stage } = &mut operation.work else {
            return OperationRun::Ended;
        };
        let (file, unit) = (*file, *unit);
        loop {
            match stage {
                FetchStage::Map => {
                    match self.map_unit(now, id, (file, unit), operation.not_before) {
                        Ok(pieces) => *stage = FetchStage::Reading(pieces),
                        Err(run) => return run,
                    }
                    let FetchStage::Reading(pieces) = stage else { continue };
                    let reads = pieces.iter().filter(|piece| !piece.is_zeros).count();
                    if reads > 0 {
                        return OperationRun::Waits(reads);
                    }
                }
                FetchStage::Reading(pieces) => {
                    let pieces = pieces.drain(..).map(FetchedPiece::finish).collect();
                    operation.not_before = now - self.config.validity;
                    *stage = FetchStage::Verify(pieces);
                }
                FetchStage::Verify(pieces) => {
                    if let Err(run) = self.verify(now, id, file, operation.not_before) {
                        return run;
                    }
                    let pieces = core::mem::take(pieces);
                    let bytes: usize = pieces.iter().map(|piece| piece.bytes.len()).sum();
                    self.counters.remote_fetched_bytes += bytes as u64;
                    for waiter in self.units.store((file, unit), pieces) {
                        self.wake(waiter);
                    }
                    self.end_fetch();
                    return OperationRun::Ended;
                }
            }
        }
    }

    /// Looks up the extents of a unit, and starts to read them.
    fn map_unit(
        &mut self,
        now: Instant,
        id: OperationId,
        (file, unit): (u32, u64),
        not_before: Instant,
    ) -> Result<Vec<FetchedPiece>, OperationRun> {
        let Some(open) = self.files.get_mut(file) else {
            return Err(OperationRun::Failed(FileFault::BadExtent));
        };
        let (index, inode) = (open.volume, open.inode.clone());
        let floors = (not_before, open.seen_at);
        let Some(volume) = self.volumes.get_mut(index) else {
            return Err(OperationRun::Failed(FileFault::BadExtent));
        };
        let from = unit * UNIT_BYTES;
        let to = inode.size.min(from + UNIT_BYTES);
        let work = volume.with_file_system(now, floors, id, &mut self.counters, |system, view| {
            let block = u64::from(system.superblock.block_bytes);
            let first = from / block;
            let runs = system.map(view, &inode, first, to.div_ceil(block) - first)?;
            Ok((runs, block))
        });
        let VolumeWork::Done((runs, block), _) = work else { return Err((index, work).into()) };
        let mut pieces = Vec::new();
        for Ext4Run { file_block, blocks, start } in runs {
            let end = ((file_block + blocks) * block).min(to);
            let mut at = file_block * block;
            while at < end {
                let offset = start.map(|start| start * block + (at - file_block * block));
                let len = offset.map_or(end - at, |offset| volume.piece_len(offset, end - at));
                if let Some(offset) = offset {
                    let bytes = volume.buffer_len(offset, len);
                    let buffer = self.units.buffer(usize::try_from(bytes).unwrap_or(0));
                    volume.read_piece((id, pieces.len()), offset, len, buffer);
                }
                let (len, is_zeros) = (usize::try_from(len).unwrap_or(0), offset.is_none());
                pieces.push(FetchedPiece { len, placed: None, is_zeros });
                at += len as u64;
            }
        }
        Ok(pieces)
    }

    /// Checks that the inode is unchanged, unless it is known since `not_before`.
    fn verify(
        &mut self,
        now: Instant,
        id: OperationId,
        file: u32,
        not_before: Instant,
    ) -> Result<(), OperationRun> {
        let Some(open) = self.files.get_mut(file) else {
            return Err(OperationRun::Failed(FileFault::BadExtent));
        };
        let index = open.volume;
        let Some(volume) = self.volumes.get_mut(index) else {
            return Err(OperationRun::Failed(FileFault::BadExtent));
        };
        if open.is_changed {
            return Err(OperationRun::Failed(FileFault::Changed));
        }
        if open.verified_at >= not_before && volume.is_trusted(open.verified_at) {
            return Ok(());
        }
        let number = open.inode.number;
        let floors = (not_before, not_before);
        let work = volume.with_file_system(now, floors, id, &mut self.counters, |system, view| {
            system.inode(view, number)
        });
        let is_same = match work {
            VolumeWork::Done(ref inode, since) => {
                self.counters.remote_verifications += 1;
                open.verified_at = open.verified_at.max(since);
                inode.version == open.inode.version
            }
            VolumeWork::Fault(Ext4Fault::NotFound) => false,
            work => return Err((index, work).into()),
        };
        if !is_same {
            open.is_changed = true;
            self.counters.remote_files_changed += 1;
            let count = self.units.remove_file(file);
            self.files.remove_units(file, count);
            return Err(OperationRun::Failed(FileFault::Changed));
        }
        Ok(())
    }

    /// Stores the buffer of a piece that was read.
    pub(super) fn place(&mut self, id: OperationId, index: usize, buffer: AlignedBuf, skip: usize) {
        let work = self.operations.get_mut(&id).map(|operation| &mut operation.work);
        let Some(OperationWork::Fetch { stage: FetchStage::Reading(pieces), .. }) = work else {
            // Another piece of the unit has failed.
            return self.units.recycle(buffer);
        };
        if let Some(piece) = pieces.get_mut(index) {
            piece.placed = Some((buffer, skip));
        }
    }
}

impl FetchedPiece {
    fn finish(self) -> UnitPiece {
        match self.placed {
            Some((buffer, skip)) => UnitPiece::placed(buffer, skip, self.len),
            None => UnitPiece::zeros(self.len),
        }
    }
}

fn stat_of(inode: &Ext4Inode) -> FileStat {
    FileStat {
        kind: match inode.kind {
            Ext4FileKind::Regular => FileKind::Regular,
            Ext4FileKind::Directory => FileKind::Directory,
            Ext4FileKind::Link | Ext4FileKind::Other => FileKind::Other,
        },
        size: inode.size,
        modified_s: inode.modified_s,
        modified_ns: inode.modified_ns,
        version: inode.version,
    }
}

/// Returns the error of a file for that of its file system. File systems that their operator can
/// repair are unavailable.
const fn fault_of(fault: Ext4Fault) -> FileFault {
    match fault {
        Ext4Fault::NotFound => FileFault::NotFound,
        Ext4Fault::BadPath => FileFault::BadPath,
        Ext4Fault::NoFileSystem | Ext4Fault::NeedsRecovery | Ext4Fault::HasErrors => {
            FileFault::Unavailable
        }
        _ => FileFault::Io,
    }
}
