//! A user of a namespace: submits requests through an initiator and checks all results.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use abi::aligned::{AlignedBuf, PAGE_BYTES};
use apps::nvme::initiator::{
    Initiator, InitiatorConfig, InitiatorEvent, InitiatorState, NvmeRequest, NvmeRequestError,
};
use base::{Instant, Prng};
use bytes::Bytes;
use host::{Application, Host, Notice};
use wire::Endpoint;
use wire::nvme::status::NvmeStatus;

use super::model::{Extent, Model, SECTOR, fill};

/// Identifier of the namespace.
const NSID: u32 = 1;

/// A request to make. A pair is the first block and the number of blocks.
#[derive(Clone, Debug)]
pub enum UserRequest {
    /// Read.
    Read((u64, u32)),
    /// Write the next version; true with FUA.
    Write((u64, u32), bool),
    /// Write zeroes; true with FUA.
    Zero((u64, u32), bool),
    /// Deallocate.
    Deallocate(Vec<(u64, u32)>),
    /// Flush.
    Flush,
    /// Compare with the content of a version.
    Compare((u64, u32), u64),
    /// Compare with the content according to the model if true, otherwise with something else.
    CompareNow((u64, u32), bool),
}

/// A request that is open.
#[derive(Debug)]
struct OpenNvmeRequest {
    asked: OpenRequestKind,
    /// It must not fail.
    strict: bool,
    /// The target has lost power, and may have completed the request before that.
    doubtful: bool,
}

/// Kind of an open request, and what its check needs.
#[derive(Debug)]
enum OpenRequestKind {
    Read {
        extent: Extent,
        oldest: Vec<u64>,
    },
    Change {
        version: u64,
        extents: Vec<Extent>,
        fua: bool,
    },
    Flush {
        answered: Option<Vec<u64>>,
    },
    /// Compare with the content as the model had it, or with something else. `sure` if the model
    /// was certain of the content.
    Compare {
        extent: Extent,
        oldest: Vec<u64>,
        same: bool,
        sure: bool,
    },
}

/// A request that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserFailure {
    /// Token of the request.
    pub token: u64,
    /// The error.
    pub error: NvmeRequestError,
    /// No failures were permitted when it was submitted.
    pub strict: bool,
}

/// The blocks of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserBlocks {
    /// Logarithm of the block size in bytes.
    pub shift: u8,
    /// First block.
    pub first: u64,
    /// Number of blocks.
    pub blocks: u64,
}

/// Progress of a user that was asked to finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum UserStage {
    /// It was not asked, or the time has not come.
    Working,
    /// All earlier requests have completed, and new ones must not fail.
    Strict,
    /// Everything is read once more.
    Reading,
    /// The association is closed.
    Closed,
}

/// Classification of a completion, for compares that the model can judge.
enum CompareVerdict {
    /// Not a compare, or a failure.
    No,
    /// A compare that succeeded, whether equal or not.
    Either,
}

/// Number of random requests in stage `Strict`.
const STRICT: usize = 8;
/// Maximum size of a read in stage `Reading`.
const READ_BYTES: u64 = 256 << 10;

/// Distribution of a user's requests.
#[derive(Clone, Copy, Debug)]
pub struct UserLoad {
    /// Maximum number of open requests.
    pub depth: usize,
    /// Maximum size of a request in bytes.
    pub bytes_max: u64,
    /// Number of changes in ten requests, on average.
    pub changes: u64,
}

/// A user of a namespace.
pub struct User {
    /// The initiator that it uses.
    pub initiator: Initiator,
    /// Distribution of its requests.
    pub load: UserLoad,
    /// Number of random requests still to be made.
    pub left: usize,
    /// Requests to be made before the random ones.
    pub script: VecDeque<UserRequest>,
    /// Permitted contents of the namespace.
    pub model: Model,
    /// Its random requests include compares.
    pub compares: bool,
    rng: Prng,
    part: UserBlocks,
    stage: UserStage,
    /// Time at which it begins to finish.
    finish_at: Option<Instant>,
    /// The time `finish_at` has come.
    called: bool,
    open: BTreeMap<u64, OpenNvmeRequest>,
    next: u64,
    /// Result of each request.
    pub results: BTreeMap<u64, Result<u64, NvmeRequestError>>,
    /// Hashes of the data of reads whose content was certain.
    pub settled: BTreeMap<u64, u64>,
    /// Requests that failed, except compares that the model judges.
    pub failed: Vec<UserFailure>,
    /// Log for the trace: kind, token, and then the first block and the number of blocks of a
    /// submission, or the result of a completion.
    pub log: Vec<[u64; 5]>,
    /// Events of the initiator.
    pub events: Vec<InitiatorEvent>,
    /// Description of the first violation.
    pub wrong: Option<String>,
    hash: DefaultHasher,
}

impl User {
    /// Returns a user of a part of a namespace that no other user changes.
    #[must_use]
    pub fn new(
        config: InitiatorConfig,
        remote: Endpoint,
        load: UserLoad,
        part: UserBlocks,
        rng: Prng,
    ) -> Self {
        Self {
            initiator: Initiator::new(config, remote),
            load,
            left: 0,
            script: VecDeque::new(),
            model: Model::new(((part.first + part.blocks) << part.shift) as usize / SECTOR),
            compares: false,
            rng,
            part,
            stage: UserStage::Working,
            finish_at: None,
            called: false,
            open: BTreeMap::new(),
            next: 0,
            results: BTreeMap::new(),
            settled: BTreeMap::new(),
            failed: Vec::new(),
            log: Vec::new(),
            events: Vec::new(),
            wrong: None,
            hash: DefaultHasher::new(),
        }
    }

    /// Returns a hash over all completions and their times.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash.finish()
    }

    /// Returns the number of open requests.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Returns whether all requests have completed and none are left to be made.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.open.is_empty() && self.left == 0 && self.script.is_empty()
    }

    /// Returns the errors of failed requests.
    #[must_use]
    pub fn failures(&self) -> Vec<NvmeRequestError> {
        self.results.values().filter_map(|result| result.err()).collect()
    }

    /// Returns a counter of the initiator by name.
    ///
    /// # Panics
    /// If there is no counter of that name.
    #[must_use]
    pub fn count(&self, wanted: &str) -> u64 {
        let mut found = None;
        self.initiator.counters().visit(&mut |name, value| {
            if name == wanted {
                found = Some(value);
            }
        });
        found.unwrap_or_else(|| panic!("{wanted}: no such counter"))
    }

    /// Notes that the target has lost power.
    pub fn note_power_loss(&mut self) {
        self.model.lose_power();
        for open in self.open.values_mut() {
            open.doubtful = true;
            match &mut open.asked {
                OpenRequestKind::Read { extent, oldest } => *oldest = self.model.oldest(*extent),
                // A retry of the flush does not restore the lost data.
                OpenRequestKind::Flush { answered } => *answered = None,
                OpenRequestKind::Compare { sure, .. } => *sure = false,
                OpenRequestKind::Change { .. } => {}
            }
        }
    }

    /// Notes that its machine starts again: it is unknown which open requests were executed.
    pub fn restart(&mut self, config: InitiatorConfig, remote: Endpoint) {
        self.open.clear();
        self.initiator = Initiator::new(config, remote);
    }

    /// Asks the user to finish at that time: once all requests have completed, it makes a few more
    /// that must not fail, reads everything and closes the association.
    pub fn finish_at(&mut self, at: Instant) {
        self.finish_at = Some(at);
    }

    /// Returns whether it has finished.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.stage == UserStage::Closed && self.is_idle()
    }

    /// Checks the contents of the namespace.
    ///
    /// # Errors
    /// Names content that is not permitted.
    pub fn check(&self, namespace: &[u8]) -> Result<(), String> {
        let bytes = namespace.get(self.bytes()).ok_or("the namespace is too short")?;
        let extent = self.all();
        self.model.check(extent.0, &self.model.oldest(extent), bytes)
    }

    /// Returns the byte range of its part.
    #[must_use]
    pub fn bytes(&self) -> Range<usize> {
        let (first, count) = self.all();
        first * SECTOR..(first + count) * SECTOR
    }

    fn all(&self) -> Extent {
        self.sectors((self.part.first, self.part.blocks as u32))
    }

    fn sectors(&self, (lba, count): (u64, u32)) -> Extent {
        let by = self.part.shift - 9;
        ((lba << by) as usize, (count as usize) << by)
    }

    fn draw_range(&mut self) -> (u64, u32) {
        let most = (self.load.bytes_max >> self.part.shift).max(1);
        // Small requests as often as large ones.
        let most = 1 << self.rng.below(u64::from(most.ilog2()) + 1);
        let count = self.rng.range(most / 2 + 1, most).min(self.part.blocks);
        (self.part.first + self.rng.below(self.part.blocks - count + 1), count as u32)
    }

    fn draw(&mut self) -> UserRequest {
        let (range, change, fua) =
            (self.draw_range(), self.rng.below(10) < self.load.changes, self.rng.chance(0.25));
        match self.rng.below(20) {
            0 => UserRequest::Flush,
            1 | 2 if self.compares && !change => UserRequest::CompareNow(range, fua),
            _ if !change => UserRequest::Read(range),
            1 | 2 => UserRequest::Zero(range, fua),
            3 => {
                let half = range.1 / 2;
                let second = (range.0 + u64::from(half), range.1 - half);
                UserRequest::Deallocate(vec![(range.0, half), second])
            }
            _ => UserRequest::Write(range, fua),
        }
    }

    fn change(&mut self, ranges: &[(u64, u32)], zero: bool, fua: bool) -> OpenRequestKind {
        let version = self.next + 1;
        let extents: Vec<Extent> = ranges.iter().map(|range| self.sectors(*range)).collect();
        extents.iter().for_each(|extent| self.model.begin(version, zero, *extent));
        OpenRequestKind::Change { version, extents, fua }
    }

    fn data(&self, range: (u64, u32), version: u64) -> Bytes {
        let (first, count) = self.sectors(range);
        let mut data = vec![0; count * SECTOR];
        fill(version, first, &mut data);
        data.into()
    }

    /// Returns the content according to the model; unless `same`, with a difference.
    fn latest(&self, (first, count): Extent, same: bool) -> Vec<u8> {
        let mut data = vec![0; count * SECTOR];
        for (at, sector) in (first..).zip(data.chunks_mut(SECTOR)) {
            if let Some(version) = self.model.latest(at) {
                fill(version, at, sector);
            }
        }
        if let Some(last) = data.last_mut().filter(|_| !same) {
            *last ^= 1;
        }
        data
    }

    fn submit(&mut self, now: Instant, host: &mut Host, todo: UserRequest) {
        let mut buffer = None;
        let (request, asked) = match todo {
            UserRequest::Read((lba, blocks)) => {
                let extent = self.sectors((lba, blocks));
                buffer = Some(AlignedBuf::new((extent.1 * SECTOR).div_ceil(PAGE_BYTES)));
                let oldest = self.model.oldest(extent);
                (NvmeRequest::Read { lba, blocks }, OpenRequestKind::Read { extent, oldest })
            }
            UserRequest::Write(range, fua) => {
                let asked = self.change(&[range], false, fua);
                let data = self.data(range, self.next + 1);
                (NvmeRequest::Write { lba: range.0, data, fua }, asked)
            }
            UserRequest::Zero((lba, blocks), fua) => {
                let asked = self.change(&[(lba, blocks)], true, fua);
                let deallocate = self.rng.chance(0.5);
                (NvmeRequest::WriteZeroes { lba, blocks, deallocate, fua }, asked)
            }
            UserRequest::Deallocate(ranges) => {
                let asked = self.change(&ranges, true, false);
                (NvmeRequest::Deallocate { ranges }, asked)
            }
            UserRequest::Flush => {
                let answered = Some(self.model.answered());
                (NvmeRequest::Flush, OpenRequestKind::Flush { answered })
            }
            UserRequest::Compare(range, version) => {
                let data = self.data(range, version);
                let (extent, oldest) = (self.sectors(range), Vec::new());
                let asked = OpenRequestKind::Compare { extent, oldest, same: true, sure: false };
                (NvmeRequest::Compare { lba: range.0, data }, asked)
            }
            UserRequest::CompareNow(range, same) => {
                let extent = self.sectors(range);
                let (data, oldest) = (self.latest(extent, same).into(), self.model.oldest(extent));
                let sure = self.model.is_settled(extent.0, &oldest);
                let asked = OpenRequestKind::Compare { extent, oldest, same, sure };
                (NvmeRequest::Compare { lba: range.0, data }, asked)
            }
        };
        self.next += 1;
        let strict = self.stage > UserStage::Working;
        self.open.insert(self.next, OpenNvmeRequest { asked, strict, doubtful: false });
        self.note_asked(&request);
        let busy = self.initiator.submit(now, host, (self.next, NSID), request, buffer).is_err();
        if busy {
            self.fail("the initiator has no room");
        }
    }

    fn fail(&mut self, what: impl Into<String>) {
        self.wrong.get_or_insert_with(|| what.into());
    }

    fn note_asked(&mut self, request: &NvmeRequest) {
        let shift = self.part.shift;
        let [what, lba, blocks] = match request {
            NvmeRequest::Read { lba, blocks } => [0, *lba, u64::from(*blocks)],
            NvmeRequest::Write { lba, data, .. } => [1, *lba, data.len() as u64 >> shift],
            NvmeRequest::WriteZeroes { lba, blocks, .. } => [2, *lba, u64::from(*blocks)],
            NvmeRequest::Compare { lba, data } => [3, *lba, data.len() as u64 >> shift],
            NvmeRequest::Deallocate { ranges } => [4, ranges.first().map_or(0, |range| range.0), 0],
            _ => [5, 0, 0],
        };
        self.log.push([what, self.next, lba, blocks, 0]);
    }

    /// Judges the result of a compare against the model.
    fn compared(
        &self,
        open: &OpenNvmeRequest,
        result: Result<u64, NvmeRequestError>,
    ) -> Result<CompareVerdict, String> {
        let differs = match result {
            Err(NvmeRequestError::Status(status)) => status.code() == NvmeStatus::COMPARE_FAILURE,
            _ => false,
        };
        let OpenRequestKind::Compare { extent, oldest, same, sure } = &open.asked else {
            return Ok(CompareVerdict::No);
        };
        if oldest.is_empty() || (result.is_err() && !differs) {
            return Ok(CompareVerdict::No);
        }
        // The result means nothing if the content was uncertain at submission or was changed since.
        let sure = *sure && self.model.is_settled(extent.0, oldest);
        if sure && differs == *same {
            return Err(format!("compare of {extent:?} said {result:?}, same: {same}"));
        }
        Ok(CompareVerdict::Either)
    }

    fn take(
        &mut self,
        token: u64,
        result: Result<u64, NvmeRequestError>,
        buffer: Option<AlignedBuf>,
    ) {
        self.log.push([8, token, result.is_ok().into(), 0, 0]);
        let Some(open) = self.open.remove(&token) else {
            return self.fail(format!("{token} was not open, and has ended"));
        };
        match self.compared(&open, result) {
            Ok(CompareVerdict::No) => {
                self.results.insert(token, result);
            }
            Ok(CompareVerdict::Either) => {
                self.results.insert(token, Ok(0));
                return;
            }
            Err(what) => return self.fail(format!("{token}: {what}")),
        }
        let OpenNvmeRequest { asked, strict, doubtful } = open;
        if let Err(error) = result {
            self.failed.push(UserFailure { token, error, strict });
            return;
        }
        match asked {
            OpenRequestKind::Read { extent: (first, count), oldest } => {
                let Some(buffer) = buffer else {
                    return self.fail(format!("{token} has no buffer any more"));
                };
                let bytes = &buffer.as_slice()[..count * SECTOR];
                if let Err(why) = self.model.check(first, &oldest, bytes) {
                    return self.fail(format!("{token}: {why}"));
                }
                let mut hash = DefaultHasher::new();
                bytes.hash(&mut hash);
                hash.finish().hash(&mut self.hash);
                if self.model.is_settled(first, &oldest) {
                    self.settled.insert(token, hash.finish());
                }
            }
            OpenRequestKind::Change { version, extents, fua } => {
                // A change that may have completed before the loss of power is durable only with
                // FUA.
                let extents = extents.iter().filter(|_| fua || !doubtful);
                extents.for_each(|extent| self.model.end(version, fua, *extent));
            }
            OpenRequestKind::Flush { answered } => {
                answered.into_iter().for_each(|answered| self.model.flushed(&answered));
            }
            OpenRequestKind::Compare { .. } => {}
        }
    }

    fn take_ends(&mut self, now: Instant) {
        while let Some(done) = self.initiator.poll_done() {
            (now.as_nanos(), done.token, done.result.is_ok()).hash(&mut self.hash);
            self.take(done.token, done.result, done.buffer);
        }
    }

    fn take_events(&mut self, now: Instant) {
        while let Some(event) = self.initiator.poll_event() {
            (now.as_nanos(), format!("{event:?}")).hash(&mut self.hash);
            // Later completions are from after the loss of power.
            if matches!(event, InitiatorEvent::Lost(_)) {
                self.open.values_mut().for_each(|open| open.doubtful = false);
            }
            self.log.push([9, matches!(event, InitiatorEvent::Connected).into(), 0, 0, 0]);
            self.events.push(event);
        }
    }

    /// Advances to the next stage once all requests of the present one have completed.
    fn advance_stage(&mut self, now: Instant, host: &mut Host) {
        if !self.is_idle() || self.finish_at.is_none_or(|at| now < at) {
            return;
        }
        match self.stage {
            UserStage::Working => (self.stage, self.left) = (UserStage::Strict, STRICT),
            UserStage::Strict => {
                self.stage = UserStage::Reading;
                let UserBlocks { shift, first, blocks } = self.part;
                let most = self.initiator.data_bytes_max().unwrap_or(0).min(READ_BYTES);
                let step = (most >> shift).clamp(1, blocks);
                let reads = (0..blocks.div_ceil(step)).map(|at| {
                    let from = at * step;
                    UserRequest::Read((first + from, step.min(blocks - from) as u32))
                });
                self.script.extend(reads);
            }
            UserStage::Reading => {
                self.stage = UserStage::Closed;
                self.initiator.close(now, host);
            }
            UserStage::Closed => {}
        }
    }

    /// Handles completions and events, and submits more requests.
    pub fn pump(&mut self, now: Instant, host: &mut Host) {
        loop {
            self.take_ends(now);
            // After the completions: those that arrived before a connection loss are not of retried
            // requests.
            self.take_events(now);
            let known = self.initiator.namespaces().any(|namespace| namespace.nsid == NSID);
            let up = !matches!(
                self.initiator.state(),
                InitiatorState::Failed(_) | InitiatorState::Closed
            );
            if known && up {
                self.advance_stage(now, host);
            }
            if !known || !up || self.open.len() >= self.load.depth {
                return;
            }
            let todo = match self.script.pop_front() {
                Some(todo) => todo,
                None if self.left > 0 => {
                    self.left -= 1;
                    self.draw()
                }
                None => return,
            };
            self.submit(now, host, todo);
        }
    }
}

impl Application for User {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        self.initiator.handle_notice(now, host, notice);
        self.pump(now, host);
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.called |= self.finish_at.is_some_and(|at| at <= now);
        self.initiator.handle_timeout(now, host);
        self.pump(now, host);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let finish = self.finish_at.filter(|_| self.stage == UserStage::Working && !self.called);
        [self.initiator.poll_timeout(), finish].into_iter().flatten().min()
    }

    fn advance(&mut self, now: Instant, host: &mut Host) -> bool {
        // Connects after a start; nothing else does.
        self.initiator.connect(now, host);
        false
    }
}
