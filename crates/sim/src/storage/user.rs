//! Who uses a namespace through an initiator, and checks all that it gives.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use abi::aligned::{AlignedBuf, PAGE_BYTES};
use apps::nvme::initiator::{Config, Error, Event, Initiator, Request, State};
use base::{Instant, Prng};
use bytes::Bytes;
use host::{Application, Host, Notice};
use wire::Endpoint;
use wire::nvme::status::Status;

use super::model::{Extent, Model, SECTOR, fill};

/// The namespace.
const NSID: u32 = 1;

/// What is to be done, with blocks: the first, and how many.
#[derive(Clone, Debug)]
pub enum Todo {
    /// Read.
    Read((u64, u32)),
    /// Write the next version; with FUA.
    Write((u64, u32), bool),
    /// Make zeros; with FUA.
    Zero((u64, u32), bool),
    /// Deallocate.
    Deallocate(Vec<(u64, u32)>),
    /// Flush.
    Flush,
    /// Compare with what a version has there.
    Compare((u64, u32), u64),
    /// Compare with what the model says is there; or with something else.
    CompareNow((u64, u32), bool),
}

/// A request that is open.
#[derive(Debug)]
struct Open {
    asked: Asked,
    /// It may not fail.
    strict: bool,
    /// The target has lost power, and may have answered it before that.
    doubtful: bool,
}

/// What is open.
#[derive(Debug)]
enum Asked {
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
    /// With what is there, as far as the model was sure of that, or with something else.
    Compare {
        extent: Extent,
        oldest: Vec<u64>,
        same: bool,
        sure: bool,
    },
}

/// A request that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its number.
    pub token: u64,
    /// How.
    pub error: Error,
    /// Nothing may fail any more when it was asked for.
    pub strict: bool,
}

/// The blocks of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Bytes of a block, as a power of two.
    pub shift: u8,
    /// The first.
    pub first: u64,
    /// How many.
    pub blocks: u64,
}

/// How far a user is that was told to come to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// It was not told, or the time has not come.
    Working,
    /// What was open has ended, and what is asked for may not fail.
    Strict,
    /// All is read once more.
    Reading,
    /// The association is closed.
    Closed,
}

/// What an end says of a compare.
enum Compared {
    /// It was none, or has failed.
    No,
    /// Equal or not, it has ended well.
    Either,
}

/// Random requests that are made when nothing may fail any more.
const STRICT: usize = 8;
/// Bytes of a read in the end.
const READ_BYTES: u64 = 256 << 10;

/// What the requests of a user are like.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Requests that are open at one time.
    pub depth: usize,
    /// Bytes of a request, at most.
    pub bytes_max: u64,
    /// Changes among them, of ten.
    pub changes: u64,
}

/// The user.
pub struct User {
    /// What asks for it.
    pub initiator: Initiator,
    /// What its requests are like.
    pub load: Load,
    /// Requests to be made at random.
    pub left: usize,
    /// To be asked before those.
    pub script: VecDeque<Todo>,
    /// What the namespace may hold.
    pub model: Model,
    /// Compares are among its requests.
    pub compares: bool,
    rng: Prng,
    part: Part,
    stage: Stage,
    /// When it may come to an end.
    finish_at: Option<Instant>,
    /// That time has come.
    called: bool,
    open: BTreeMap<u64, Open>,
    next: u64,
    /// How each request ended.
    pub results: BTreeMap<u64, Result<u64, Error>>,
    /// Hashes of what reads gave that nothing made uncertain.
    pub settled: BTreeMap<u64, u64>,
    /// Requests that failed; of compares those that may have been equal or not are none.
    pub failed: Vec<Failure>,
    /// What happened, for a trace: what, the request, its first block, how many, or how it ended.
    pub log: Vec<[u64; 5]>,
    /// What the initiator said beyond that.
    pub events: Vec<Event>,
    /// The first thing that may not be.
    pub wrong: Option<String>,
    hash: DefaultHasher,
}

impl User {
    /// A user of a part of a namespace, which nobody else changes.
    #[must_use]
    pub fn new(config: Config, remote: Endpoint, load: Load, part: Part, rng: Prng) -> Self {
        Self {
            initiator: Initiator::new(config, remote),
            load,
            left: 0,
            script: VecDeque::new(),
            model: Model::new(((part.first + part.blocks) << part.shift) as usize / SECTOR),
            compares: false,
            rng,
            part,
            stage: Stage::Working,
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

    /// What all completions come to, and when they came.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash.finish()
    }

    /// Requests that are open.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Whether all that was to be asked for has ended.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.open.is_empty() && self.left == 0 && self.script.is_empty()
    }

    /// What requests failed with.
    #[must_use]
    pub fn failures(&self) -> Vec<Error> {
        self.results.values().filter_map(|result| result.err()).collect()
    }

    /// A counter of the initiator, by its name.
    ///
    /// # Panics
    /// Where there is none of that name.
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

    /// The target has lost power.
    pub fn note_power_loss(&mut self) {
        self.model.lose();
        for open in self.open.values_mut() {
            open.doubtful = true;
            match &mut open.asked {
                Asked::Read { extent, oldest } => *oldest = self.model.oldest(*extent),
                // Sent again, it does not bring back what was lost.
                Asked::Flush { answered } => *answered = None,
                Asked::Compare { sure, .. } => *sure = false,
                Asked::Change { .. } => {}
            }
        }
    }

    /// Its machine stops and starts again: nobody knows what was done of what was open.
    pub fn restart(&mut self, config: Config, remote: Endpoint) {
        self.open.clear();
        self.initiator = Initiator::new(config, remote);
    }

    /// From that time on, when all that is open has ended, it asks for a few things more, of which
    /// nothing may fail, reads everything and closes the association.
    pub fn finish_at(&mut self, at: Instant) {
        self.finish_at = Some(at);
    }

    /// Whether it has come to its end.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.stage == Stage::Closed && self.is_idle()
    }

    /// Whether the bytes of the namespace may be what they are.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self, namespace: &[u8]) -> Result<(), String> {
        let bytes = namespace.get(self.bytes()).ok_or("the namespace is too short")?;
        let extent = self.all();
        self.model.check(extent.0, &self.model.oldest(extent), bytes)
    }

    /// Where the bytes of its part are.
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
        // As many small ones as large ones.
        let most = 1 << self.rng.below(u64::from(most.ilog2()) + 1);
        let count = self.rng.range(most / 2 + 1, most).min(self.part.blocks);
        (self.part.first + self.rng.below(self.part.blocks - count + 1), count as u32)
    }

    fn draw(&mut self) -> Todo {
        let (range, change, fua) =
            (self.draw_range(), self.rng.below(10) < self.load.changes, self.rng.chance(0.25));
        match self.rng.below(20) {
            0 => Todo::Flush,
            1 | 2 if self.compares && !change => Todo::CompareNow(range, fua),
            _ if !change => Todo::Read(range),
            1 | 2 => Todo::Zero(range, fua),
            3 => {
                let half = range.1 / 2;
                let second = (range.0 + u64::from(half), range.1 - half);
                Todo::Deallocate(vec![(range.0, half), second])
            }
            _ => Todo::Write(range, fua),
        }
    }

    fn change(&mut self, ranges: &[(u64, u32)], zero: bool, fua: bool) -> Asked {
        let version = self.next + 1;
        let extents: Vec<Extent> = ranges.iter().map(|range| self.sectors(*range)).collect();
        extents.iter().for_each(|extent| self.model.begin(version, zero, *extent));
        Asked::Change { version, extents, fua }
    }

    fn data(&self, range: (u64, u32), version: u64) -> Bytes {
        let (first, count) = self.sectors(range);
        let mut data = vec![0; count * SECTOR];
        fill(version, first, &mut data);
        data.into()
    }

    /// What the model says is there, or something else.
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

    fn submit(&mut self, now: Instant, host: &mut Host, todo: Todo) {
        let mut buffer = None;
        let (request, asked) = match todo {
            Todo::Read((lba, blocks)) => {
                let extent = self.sectors((lba, blocks));
                buffer = Some(AlignedBuf::new((extent.1 * SECTOR).div_ceil(PAGE_BYTES)));
                let oldest = self.model.oldest(extent);
                (Request::Read { lba, blocks }, Asked::Read { extent, oldest })
            }
            Todo::Write(range, fua) => {
                let asked = self.change(&[range], false, fua);
                let data = self.data(range, self.next + 1);
                (Request::Write { lba: range.0, data, fua }, asked)
            }
            Todo::Zero((lba, blocks), fua) => {
                let asked = self.change(&[(lba, blocks)], true, fua);
                let deallocate = self.rng.chance(0.5);
                (Request::WriteZeroes { lba, blocks, deallocate, fua }, asked)
            }
            Todo::Deallocate(ranges) => {
                let asked = self.change(&ranges, true, false);
                (Request::Deallocate { ranges }, asked)
            }
            Todo::Flush => {
                let answered = Some(self.model.answered());
                (Request::Flush, Asked::Flush { answered })
            }
            Todo::Compare(range, version) => {
                let data = self.data(range, version);
                let (extent, oldest) = (self.sectors(range), Vec::new());
                let asked = Asked::Compare { extent, oldest, same: true, sure: false };
                (Request::Compare { lba: range.0, data }, asked)
            }
            Todo::CompareNow(range, same) => {
                let extent = self.sectors(range);
                let (data, oldest) = (self.latest(extent, same).into(), self.model.oldest(extent));
                let sure = self.model.is_settled(extent.0, &oldest);
                let asked = Asked::Compare { extent, oldest, same, sure };
                (Request::Compare { lba: range.0, data }, asked)
            }
        };
        self.next += 1;
        let strict = self.stage > Stage::Working;
        self.open.insert(self.next, Open { asked, strict, doubtful: false });
        self.note_asked(&request);
        let busy = self.initiator.submit(now, host, (self.next, NSID), request, buffer).is_err();
        if busy {
            self.fail("the initiator has no room");
        }
    }

    fn fail(&mut self, what: impl Into<String>) {
        self.wrong.get_or_insert_with(|| what.into());
    }

    fn note_asked(&mut self, request: &Request) {
        let shift = self.part.shift;
        let [what, lba, blocks] = match request {
            Request::Read { lba, blocks } => [0, *lba, u64::from(*blocks)],
            Request::Write { lba, data, .. } => [1, *lba, data.len() as u64 >> shift],
            Request::WriteZeroes { lba, blocks, .. } => [2, *lba, u64::from(*blocks)],
            Request::Compare { lba, data } => [3, *lba, data.len() as u64 >> shift],
            Request::Deallocate { ranges } => [4, ranges.first().map_or(0, |range| range.0), 0],
            _ => [5, 0, 0],
        };
        self.log.push([what, self.next, lba, blocks, 0]);
    }

    /// How a compare may end that the model has something to say about, as it counts.
    fn compared(&self, open: &Open, result: Result<u64, Error>) -> Result<Compared, String> {
        let differs =
            matches!(result, Err(Error::Status(s)) if s.code() == Status::COMPARE_FAILURE);
        let Asked::Compare { extent, oldest, same, sure } = &open.asked else {
            return Ok(Compared::No);
        };
        if oldest.is_empty() || (result.is_err() && !differs) {
            return Ok(Compared::No);
        }
        // What was not sure when it was asked for, or was changed since, says nothing.
        let sure = *sure && self.model.is_settled(extent.0, oldest);
        if sure && differs == *same {
            return Err(format!("compare of {extent:?} said {result:?}, same: {same}"));
        }
        Ok(Compared::Either)
    }

    fn take(&mut self, token: u64, result: Result<u64, Error>, buffer: Option<AlignedBuf>) {
        self.log.push([8, token, result.is_ok().into(), 0, 0]);
        let Some(open) = self.open.remove(&token) else {
            return self.fail(format!("{token} was not open, and has ended"));
        };
        match self.compared(&open, result) {
            Ok(Compared::No) => {
                self.results.insert(token, result);
            }
            Ok(Compared::Either) => {
                self.results.insert(token, Ok(0));
                return;
            }
            Err(what) => return self.fail(format!("{token}: {what}")),
        }
        let Open { asked, strict, doubtful } = open;
        if let Err(error) = result {
            self.failed.push(Failure { token, error, strict });
            return;
        }
        match asked {
            Asked::Read { extent: (first, count), oldest } => {
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
            Asked::Change { version, extents, fua } => {
                // What was answered before the power was lost is there only if it was through.
                let extents = extents.iter().filter(|_| fua || !doubtful);
                extents.for_each(|extent| self.model.end(version, fua, *extent));
            }
            Asked::Flush { answered } => {
                answered.into_iter().for_each(|answered| self.model.flushed(&answered));
            }
            Asked::Compare { .. } => {}
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
            // Whatever answers from now on has not been stopped since.
            if matches!(event, Event::Lost(_)) {
                self.open.values_mut().for_each(|open| open.doubtful = false);
            }
            self.log.push([9, matches!(event, Event::Connected).into(), 0, 0, 0]);
            self.events.push(event);
        }
    }

    /// Goes on with what it does last, once all before that has ended.
    fn advance_stage(&mut self, now: Instant, host: &mut Host) {
        if !self.is_idle() || self.finish_at.is_none_or(|at| now < at) {
            return;
        }
        match self.stage {
            Stage::Working => (self.stage, self.left) = (Stage::Strict, STRICT),
            Stage::Strict => {
                self.stage = Stage::Reading;
                let Part { shift, first, blocks } = self.part;
                let most = self.initiator.data_bytes_max().unwrap_or(0).min(READ_BYTES);
                let step = (most >> shift).clamp(1, blocks);
                let reads = (0..blocks.div_ceil(step)).map(|at| {
                    let from = at * step;
                    Todo::Read((first + from, step.min(blocks - from) as u32))
                });
                self.script.extend(reads);
            }
            Stage::Reading => {
                self.stage = Stage::Closed;
                self.initiator.close(now, host);
            }
            Stage::Closed => {}
        }
    }

    /// Takes what ended and asks for more.
    pub fn pump(&mut self, now: Instant, host: &mut Host) {
        loop {
            self.take_ends(now);
            // After the ends: those that came before a loss are no answers to what is sent again.
            self.take_events(now);
            let known = self.initiator.namespaces().any(|namespace| namespace.nsid == NSID);
            let up = !matches!(self.initiator.state(), State::Failed(_) | State::Closed);
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
        let finish = self.finish_at.filter(|_| self.stage == Stage::Working && !self.called);
        [self.initiator.poll_timeout(), finish].into_iter().flatten().min()
    }

    fn advance(&mut self, now: Instant, host: &mut Host) -> bool {
        // After a start nothing else has it connect.
        self.initiator.connect(now, host);
        false
    }
}
