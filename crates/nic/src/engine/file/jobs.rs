//! Transmits on their way through the file engine: what they need, and how they get it.
//!
//! [`FileEngine::start`] plans a transmit: it checks each extent and lists the pieces of blocks
//! that it consists of. Where all are in memory it is done. Else it becomes a [`Job`], which stands
//! in admission until it has a pin on every block, then waits for the reads that are missing.

use abi::port::Payload;
use abi::{ExtentCount, FileExtent, FileFault, Part, Parts};
use alloc::sync::Arc;
use smallvec::SmallVec;

use base::internal_error;

use super::super::Resolved;
use super::open::Readable;
use super::{FileEngine, Start};
use structures::slab::Key;

/// A piece of a block.
#[derive(Clone, Copy, Debug)]
struct Need {
    /// The file that it is of.
    file: Key,
    version: u64,
    /// Index of the block.
    index: u64,
    /// The block, or [`Key::NONE`] while it is not in memory.
    block: Key,
    /// First byte within the block.
    start: u32,
    /// Bytes.
    len: u32,
}

type Needs = SmallVec<[Need; 2]>;

/// A transmit that waits.
#[derive(Debug)]
pub(super) struct Job {
    /// The name that the device gave it.
    token: Key,
    parts: Parts,
    needs: Needs,
    /// The first so many needs have a pin on their block.
    acquired: usize,
    /// So many of these blocks are still being read.
    missing: usize,
    /// Not a retransmission.
    first: bool,
    /// It has been counted as waiting for memory.
    waited: bool,
}

/// How far a job in admission got.
enum Admitted {
    All,
    NoMemory,
    Failed(FileFault),
}

impl FileEngine {
    /// Starts a transmit of `parts`; `first` says that its bytes are to be held once they are sent.
    ///
    /// # Errors
    /// `BadExtent` for a file or a range that is not there, `Changed` for a file that was found
    /// changed.
    pub(crate) fn start(
        &mut self,
        queue: usize,
        parts: Parts,
        first: bool,
    ) -> Result<Start, FileFault> {
        let needs = self.plan(queue, &parts).inspect_err(|&fault| {
            self.counters.file_bad_extents += u64::from(fault == FileFault::BadExtent);
        })?;
        // Nobody overtakes those who wait for memory: see the module's head.
        let ready = |need: &Need| self.cache.content(need.block).is_some();
        if self.admission.is_idle() && needs.iter().all(ready) {
            let mut ahead = None;
            for need in &needs {
                self.counters.file_block_hits += 1;
                self.cache.touch(need.block);
                if self.cache.ask(need.block) {
                    ahead = Some((need.file, need.index));
                }
            }
            // The payload first: reading ahead may evict, and its references keep the blocks.
            let resolved = self.resolve(parts, &needs, first);
            if let Some((file, index)) = ahead {
                self.read_ahead(file, index);
            }
            return Ok(Start::Ready(resolved));
        }
        for need in &needs {
            self.files.retain(need.file);
        }
        let (token, waited) = (Key::NONE, false);
        let job = Job { token, parts, needs, acquired: 0, missing: 0, first, waited };
        Ok(Start::Waiting(self.admission.insert(job)))
    }

    /// Lets a transmit that waits go on; its end will be reported under `token`.
    pub(crate) fn admit(&mut self, job: Key, token: Key) {
        if let Some(waiting) = self.admission.get_mut(job) {
            waiting.token = token;
            self.admission.admit(job);
        }
    }

    /// Forgets a transmit that waits.
    pub(crate) fn cancel(&mut self, job: Key) {
        if let Some(job) = self.admission.remove(job) {
            self.let_go(&job);
        }
    }

    /// Gives blocks to the jobs in admission, oldest first, as far as memory goes.
    pub(super) fn advance(&mut self) {
        while let Some(key) = self.admission.head() {
            match self.acquire(key) {
                Admitted::All => {
                    self.admission.pass_head();
                    self.finish_if_complete(key);
                }
                Admitted::Failed(fault) => {
                    self.admission.pass_head();
                    self.fail(key, fault);
                }
                Admitted::NoMemory => return,
            }
        }
    }

    /// A block that a job waits for is there.
    pub(super) fn block_arrived(&mut self, key: Key) {
        // A job that was cancelled waits no more.
        let Some(job) = self.admission.get_mut(key) else { return };
        if job.missing == 0 {
            internal_error!(self.counters.nic_internal_errors, "a block arrived twice for a job");
            return;
        }
        job.missing -= 1;
        self.finish_if_complete(key);
    }

    /// Ends a job without its bytes.
    pub(super) fn fail(&mut self, key: Key, fault: FileFault) {
        if let Some(job) = self.admission.remove(key) {
            self.let_go(&job);
            self.done.push_back((job.token, Err(fault)));
        }
    }

    /// Lists the pieces of blocks that file extents consist of.
    fn plan(&self, queue: usize, parts: &Parts) -> Result<Needs, FileFault> {
        let mut needs = Needs::new();
        let mut extents = ExtentCount::default();
        for part in parts {
            let Part::File(extent) = part else { continue };
            if !extents.takes(extent) {
                return Err(FileFault::BadExtent);
            }
            let file = self.files.find(queue, extent.file).ok_or(FileFault::BadExtent)?;
            let readable = self.files.readable(file)?;
            self.plan_extent(file, &readable, extent, &mut needs)?;
        }
        Ok(needs)
    }

    fn plan_extent(
        &self,
        file: Key,
        readable: &Readable,
        extent: &FileExtent,
        needs: &mut Needs,
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
            let block = self.cache.find(version, index).unwrap_or(Key::NONE);
            #[expect(clippy::cast_possible_truncation, reason = "a block is at most a megabyte")]
            let (start, bytes) = (within as u32, len as u32);
            needs.push(Need { file, version, index, block, start, len: bytes });
            at += len;
        }
        Ok(())
    }

    /// Pins the blocks of a job, and has those read that are not in memory. What it has it keeps,
    /// and goes on from there the next time: nobody else gets blocks meanwhile.
    fn acquire(&mut self, key: Key) -> Admitted {
        let mut ahead = None;
        loop {
            let Some(job) = self.admission.get(key) else { return Admitted::All };
            let Some(&need) = job.needs.get(job.acquired) else { break };
            let readable = match self.files.readable(need.file) {
                Ok(readable) => readable,
                Err(fault) => return Admitted::Failed(fault),
            };
            let sequential = if let Some(block) = self.cache.find(need.version, need.index) {
                let here = self.cache.content(block).is_some();
                self.counters.file_block_hits += u64::from(here);
                self.counters.file_block_shared_waits += u64::from(!here);
                self.take(key, block);
                self.cache.ask(block)
            } else if let Some(block) = self.read(need.file, &readable, need.index, false) {
                self.take(key, block);
                self.is_sequential(&need)
            } else {
                self.wait_for_memory(key);
                return Admitted::NoMemory;
            };
            if sequential {
                ahead = Some((need.file, need.index));
            }
        }
        if let Some((file, index)) = ahead {
            self.read_ahead(file, index);
        }
        Admitted::All
    }

    /// Gives a block to the next need of a job.
    fn take(&mut self, key: Key, block: Key) {
        let missing = self.cache.content(block).is_none();
        let wants = |job: &&mut Job| job.acquired < job.needs.len();
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

    fn wait_for_memory(&mut self, key: Key) {
        if let Some(job) = self.admission.get_mut(key).filter(|job| !job.waited) {
            job.waited = true;
            self.counters.file_memory_waits += 1;
        }
    }

    /// Whether a block that had to be read looks like the next one of a reader that goes through
    /// its file.
    fn is_sequential(&self, need: &Need) -> bool {
        let before = need.index.checked_sub(1);
        before.is_none_or(|before| self.cache.find(need.version, before).is_some())
    }

    fn finish_if_complete(&mut self, key: Key) {
        let complete = |job: &Job| job.missing == 0 && job.acquired == job.needs.len();
        if !self.admission.get(key).is_some_and(complete) {
            return;
        }
        let Some(mut job) = self.admission.remove(key) else {
            internal_error!(self.counters.nic_internal_errors, "a job that is complete is gone");
            return;
        };
        let parts = core::mem::take(&mut job.parts);
        let resolved = self.resolve(parts, &job.needs, job.first);
        self.let_go(&job);
        self.done.push_back((job.token, Ok(resolved)));
    }

    /// Takes a job's hands off its blocks and files.
    fn let_go(&mut self, job: &Job) {
        for need in &job.needs[..job.acquired] {
            self.cache.unpin(need.block, &mut self.counters);
        }
        for need in &job.needs {
            let closed = self.files.release(need.file);
            self.close_disk(closed);
        }
    }

    /// The payload of a transmit whose blocks are all in memory. It shares the blocks, so that they
    /// cannot be evicted while it exists.
    fn resolve(&mut self, parts: Parts, needs: &[Need], first: bool) -> Resolved {
        let mut resolved = Resolved::default();
        let mut needs = needs.iter();
        for part in parts {
            match part {
                Part::Host(bytes) if bytes.is_empty() => {}
                Part::Host(bytes) => resolved.payloads.push(Payload::Host(bytes)),
                Part::Sealed(_) | Part::Pdu(_) => internal_error!(
                    self.counters.nic_internal_errors,
                    "a plan has not made content of a part"
                ),
                Part::File(extent) => {
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
                        let (start, len) = (need.start, need.len);
                        resolved.payloads.push(Payload::Block { block, start, len });
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
