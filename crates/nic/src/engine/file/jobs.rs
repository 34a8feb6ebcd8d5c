//! Pending transmits in the file engine: the blocks that they need, and how they get them.
//!
//! [`FileEngine::start`] plans a transmit: it checks each extent and lists the block ranges in it.
//! If all blocks are in memory, the transmit is complete. Otherwise it becomes a [`FileJob`], which
//! is queued for admission until it has pinned every block, and then waits for the missing reads.

use abi::link::FramePayload;
use abi::{ExtentCount, FileExtent, FileFault, TransmitPart, TransmitParts};
use alloc::sync::Arc;
use core::ops::Range;
use smallvec::SmallVec;

use base::internal_error;

use super::super::ResolvedPayload;
use super::open_files::ReadableFile;
use super::{FileEngine, FileStart};
use structures::slab::SlabKey;

/// A range of a block that a transmit needs.
#[derive(Clone, Copy, Debug)]
struct BlockNeed {
    /// The file that contains the range.
    file: SlabKey,
    version: u64,
    /// Index of the block in the file.
    index: u64,
    /// The block, or [`SlabKey::NONE`] while it is not in memory.
    block: SlabKey,
    /// Offset of the first byte in the block.
    start: u32,
    /// Length in bytes.
    len: u32,
    /// Bytes of the sequential run that the extent continues.
    run: u64,
}

impl BlockNeed {
    const fn range(&self) -> Range<u32> {
        self.start..self.start + self.len
    }
}

type BlockNeeds = SmallVec<[BlockNeed; 2]>;

/// A pending transmit.
#[derive(Debug)]
pub(super) struct FileJob {
    /// The device's key of the transmit.
    token: SlabKey,
    parts: TransmitParts,
    needs: BlockNeeds,
    /// Number of needs, from the first, whose blocks are pinned.
    acquired: usize,
    /// Number of pinned blocks that are still being read.
    missing: usize,
    /// True unless this is a retransmission.
    first: bool,
    /// True once the job was counted as waiting for memory.
    waited: bool,
}

/// Result of trying to pin a job's blocks.
enum AdmitResult {
    All,
    NoMemory,
    Failed(FileFault),
}

impl FileEngine {
    /// Starts a transmit of `parts`. `first` is false for a retransmission; otherwise the bytes are
    /// held once they are sent.
    ///
    /// # Errors
    /// `BadExtent` if a file or range does not exist, `Changed` if a file was found changed.
    pub(crate) fn start(
        &mut self,
        queue: usize,
        parts: TransmitParts,
        first: bool,
    ) -> Result<FileStart, FileFault> {
        let needs = self.plan(queue, &parts, first).inspect_err(|&fault| {
            self.counters.file_bad_extents += u64::from(fault == FileFault::BadExtent);
        })?;
        // No transmit overtakes those that wait for memory; see the parent module.
        let ready = |need: &BlockNeed| self.cache.content(need.block).is_some();
        if self.admission.is_idle() && needs.iter().all(ready) {
            let mut ahead = None;
            for need in &needs {
                self.counters.file_block_hits += 1;
                self.cache.touch(need.block);
                if self.cache.mark_requested(need.block) {
                    ahead = Some(*need);
                }
            }
            // Resolve first: read-ahead may evict, and the payload's references keep the blocks.
            let resolved = self.resolve(parts, &needs, first);
            if let Some(need) = ahead {
                self.read_ahead(need.file, need.index, need.run);
            }
            return Ok(FileStart::Ready(resolved));
        }
        for need in &needs {
            self.files.retain(need.file);
        }
        let (token, waited) = (SlabKey::NONE, false);
        let job = FileJob { token, parts, needs, acquired: 0, missing: 0, first, waited };
        Ok(FileStart::Waiting(self.admission.insert(job)))
    }

    /// Queues a pending transmit for admission. Its completion will be reported under `token`.
    pub(crate) fn admit(&mut self, job: SlabKey, token: SlabKey) {
        if let Some(waiting) = self.admission.get_mut(job) {
            waiting.token = token;
            self.admission.admit(job);
        }
    }

    /// Removes a pending transmit.
    pub(crate) fn cancel(&mut self, job: SlabKey) {
        if let Some(job) = self.admission.remove(job) {
            self.release_job(&job);
        }
    }

    /// Pins blocks for the queued jobs, oldest first, until memory runs out.
    pub(super) fn advance(&mut self) {
        while let Some(key) = self.admission.head() {
            match self.acquire(key) {
                AdmitResult::All => {
                    self.admission.pass_head();
                    self.finish_if_complete(key);
                }
                AdmitResult::Failed(fault) => {
                    self.admission.pass_head();
                    self.fail(key, fault);
                }
                AdmitResult::NoMemory => return,
            }
        }
    }

    /// Handles the completed read of a block for which job `key` waits.
    pub(super) fn block_arrived(&mut self, key: SlabKey) {
        // The job may have been canceled.
        let Some(job) = self.admission.get_mut(key) else { return };
        if job.missing == 0 {
            internal_error!(self.counters.nic_internal_errors, "a block arrived twice for a job");
            return;
        }
        job.missing -= 1;
        self.finish_if_complete(key);
    }

    /// Completes a job with a fault.
    pub(super) fn fail(&mut self, key: SlabKey, fault: FileFault) {
        if let Some(job) = self.admission.remove(key) {
            self.release_job(&job);
            self.done.push_back((job.token, Err(fault)));
        }
    }

    /// Lists the block ranges of all file extents.
    fn plan(
        &mut self,
        queue: usize,
        parts: &TransmitParts,
        first: bool,
    ) -> Result<BlockNeeds, FileFault> {
        let mut needs = BlockNeeds::new();
        let mut extents = ExtentCount::default();
        for part in parts {
            let TransmitPart::File(extent) = part else { continue };
            if !extents.add(extent) {
                return Err(FileFault::BadExtent);
            }
            let file = self.files.find(queue, extent.file).ok_or(FileFault::BadExtent)?;
            let readable = self.files.readable(file)?;
            let run = self.run_of(&readable, extent, first);
            self.plan_extent(file, &readable, extent, run, &mut needs)?;
        }
        Ok(needs)
    }

    fn plan_extent(
        &self,
        file: SlabKey,
        readable: &ReadableFile,
        extent: &FileExtent,
        run: u64,
        needs: &mut BlockNeeds,
    ) -> Result<(), FileFault> {
        let end = extent.offset.checked_add(u64::from(extent.len)).ok_or(FileFault::BadExtent)?;
        if extent.len == 0 || end > readable.size {
            return Err(FileFault::BadExtent);
        }
        let block_bytes = self.config.block_bytes() as u64;
        let version = readable.version;
        let mut at = extent.offset;
        while at < end {
            let (index, within) = (at / block_bytes, at % block_bytes);
            let len = (block_bytes - within).min(end - at);
            #[expect(clippy::cast_possible_truncation, reason = "a block is at most a megabyte")]
            let (start, bytes) = (within as u32, len as u32);
            let block = SlabKey::NONE;
            let mut need = BlockNeed { file, version, index, block, start, len: bytes, run };
            need.block = self.cache.find(version, index, &need.range()).unwrap_or(SlabKey::NONE);
            needs.push(need);
            at += len;
        }
        Ok(())
    }

    /// Pins the blocks of a job and starts the missing reads. If memory runs out, the job keeps its
    /// pins and continues there the next time; no other job gets blocks meanwhile.
    fn acquire(&mut self, key: SlabKey) -> AdmitResult {
        let mut ahead = None;
        loop {
            let Some(job) = self.admission.get(key) else { return AdmitResult::All };
            let Some(&need) = job.needs.get(job.acquired) else { break };
            let readable = match self.files.readable(need.file) {
                Ok(readable) => readable,
                Err(fault) => return AdmitResult::Failed(fault),
            };
            let found = self.cache.find(need.version, need.index, &need.range());
            let first_use = if let Some(block) = found {
                let here = self.cache.content(block).is_some();
                self.counters.file_block_hits += u64::from(here);
                self.counters.file_block_shared_waits += u64::from(!here);
                self.take(key, block);
                self.cache.mark_requested(block)
            } else if let Some(block) = self.read_needed(&need, &readable) {
                self.take(key, block);
                true
            } else {
                self.wait_for_memory(key);
                return AdmitResult::NoMemory;
            };
            if first_use {
                ahead = Some(need);
            }
        }
        if let Some(need) = ahead {
            self.read_ahead(need.file, need.index, need.run);
        }
        AdmitResult::All
    }

    /// Pins a block for the next need of a job.
    fn take(&mut self, key: SlabKey, block: SlabKey) {
        let missing = self.cache.content(block).is_none();
        let wants = |job: &&mut FileJob| job.acquired < job.needs.len();
        let Some(job) = self.admission.get_mut(key).filter(wants) else {
            internal_error!(self.counters.nic_internal_errors, "a block that no job needs");
            return;
        };
        job.needs[job.acquired].block = block;
        job.acquired += 1;
        self.cache.pin(block);
        if missing {
            job.missing += 1;
            self.cache.wait(block, key);
        }
    }

    fn wait_for_memory(&mut self, key: SlabKey) {
        if let Some(job) = self.admission.get_mut(key).filter(|job| !job.waited) {
            job.waited = true;
            self.counters.file_memory_waits += 1;
        }
    }

    /// Returns the bytes of the sequential run that an extent continues, and extends the run if the
    /// extent is sent for the first time. Content is expected to be read from its beginning to its
    /// end.
    fn run_of(&mut self, readable: &ReadableFile, extent: &FileExtent, first: bool) -> u64 {
        let run = match extent.offset {
            0 if !readable.namespace => u64::MAX,
            offset => self.streams.run_at(readable.version, offset),
        };
        if first {
            let (len, end) =
                (u64::from(extent.len), extent.offset.saturating_add(extent.len.into()));
            self.streams.note(readable.version, end, run.saturating_add(len));
        }
        run
    }

    /// Starts the read of a block for a transmit: of the pages that it needs, or of the whole block
    /// in a run of at least a block. Returns `None` if there is no memory.
    fn read_needed(&mut self, need: &BlockNeed, readable: &ReadableFile) -> Option<SlabKey> {
        let whole = need.run >= self.config.block_bytes() as u64;
        let range = if whole { self.whole_block() } else { need.range() };
        self.read(need.file, readable, need.index, range, false)
    }

    fn finish_if_complete(&mut self, key: SlabKey) {
        let complete = |job: &FileJob| job.missing == 0 && job.acquired == job.needs.len();
        if !self.admission.get(key).is_some_and(complete) {
            return;
        }
        let Some(mut job) = self.admission.remove(key) else {
            internal_error!(self.counters.nic_internal_errors, "a job that is complete is gone");
            return;
        };
        let parts = core::mem::take(&mut job.parts);
        let resolved = self.resolve(parts, &job.needs, job.first);
        self.release_job(&job);
        self.done.push_back((job.token, Ok(resolved)));
    }

    /// Releases a job's pins on blocks and files.
    fn release_job(&mut self, job: &FileJob) {
        for need in &job.needs[..job.acquired] {
            self.cache.unpin(need.block, &mut self.counters);
        }
        for need in &job.needs {
            let closed = self.files.release(need.file);
            self.close_disk(closed);
        }
    }

    /// Builds the payload of a transmit whose blocks are all in memory. The payload shares the
    /// blocks, so they are not evicted while it exists.
    fn resolve(
        &mut self,
        parts: TransmitParts,
        needs: &[BlockNeed],
        first: bool,
    ) -> ResolvedPayload {
        let mut resolved = ResolvedPayload::default();
        let mut needs = needs.iter();
        for part in parts {
            match part {
                TransmitPart::Host(bytes) if bytes.is_empty() => {}
                TransmitPart::Host(bytes) => resolved.payloads.push(FramePayload::Host(bytes)),
                TransmitPart::Records(_) | TransmitPart::Pdu(_) => internal_error!(
                    self.counters.nic_internal_errors,
                    "a plan has not made content of a part"
                ),
                TransmitPart::File(extent) => {
                    resolved.file_bytes += extent.len;
                    let mut left = extent.len;
                    while left > 0 {
                        let here = needs.next().map(|need| (need, self.cache.content(need.block)));
                        let Some((need, Some(block))) = here else {
                            internal_error!(
                                self.counters.nic_internal_errors,
                                "a block of a complete transmit is missing"
                            );
                            break;
                        };
                        left -= need.len;
                        let block = Arc::clone(block);
                        let start = need.start - self.cache.content_start(need.block);
                        let len = need.len;
                        resolved.payloads.push(FramePayload::Block { block, start, len });
                        if first {
                            resolved.holds.push((need.block, len));
                        }
                    }
                }
            }
        }
        resolved
    }
}
