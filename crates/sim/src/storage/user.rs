//! Who uses a namespace through an initiator, and checks all that it gives.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use abi::aligned::{AlignedBuf, PAGE_BYTES};
use apps::nvme::initiator::{Config, Error, Event, Initiator, Request, State};
use base::{Instant, Prng};
use bytes::Bytes;
use host::{Host, Notice};
use wire::Endpoint;

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
    /// With what the model says is there.
    Compare((u64, u32), u64),
}

/// What is open.
#[derive(Debug)]
enum Asked {
    Read { extent: Extent, oldest: Vec<u64> },
    Change { version: u64, extents: Vec<Extent>, fua: bool },
    Flush { answered: Option<Vec<u64>> },
    Compare,
}

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
    rng: Prng,
    shift: u8,
    blocks: u64,
    open: BTreeMap<u64, Asked>,
    next: u64,
    /// How each request ended.
    pub results: BTreeMap<u64, Result<u64, Error>>,
    /// Hashes of what reads gave that nothing made uncertain.
    pub settled: BTreeMap<u64, u64>,
    /// What the initiator said beyond that.
    pub events: Vec<Event>,
    /// The first thing that may not be.
    pub wrong: Option<String>,
    hash: DefaultHasher,
}

impl User {
    /// A user of a namespace of so many blocks of so many bytes, as a power of two.
    #[must_use]
    pub fn new(
        config: Config,
        remote: Endpoint,
        load: Load,
        (shift, blocks): (u8, u64),
        rng: Prng,
    ) -> Self {
        Self {
            initiator: Initiator::new(config, remote),
            load,
            left: 0,
            script: VecDeque::new(),
            model: Model::new((blocks << shift) as usize / SECTOR),
            rng,
            shift,
            blocks,
            open: BTreeMap::new(),
            next: 0,
            results: BTreeMap::new(),
            settled: BTreeMap::new(),
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
        for asked in self.open.values_mut() {
            match asked {
                Asked::Read { extent, oldest } => *oldest = self.model.oldest(*extent),
                // Sent again, it does not bring back what was lost.
                Asked::Flush { answered } => *answered = None,
                _ => {}
            }
        }
    }

    /// Its machine stops and starts again: nobody knows what was done of what was open.
    pub fn restart(&mut self, config: Config, remote: Endpoint) {
        self.open.clear();
        self.initiator = Initiator::new(config, remote);
    }

    fn sectors(&self, (lba, count): (u64, u32)) -> Extent {
        let by = self.shift - 9;
        ((lba << by) as usize, (count as usize) << by)
    }

    fn draw_range(&mut self) -> (u64, u32) {
        let most = self.load.bytes_max >> self.shift;
        // As many small ones as large ones.
        let most = 1 << self.rng.below(u64::from(most.ilog2()) + 1);
        let count = self.rng.range(most / 2 + 1, most).min(self.blocks);
        (self.rng.below(self.blocks - count + 1), count as u32)
    }

    fn draw(&mut self) -> Todo {
        let (range, change, fua) =
            (self.draw_range(), self.rng.below(10) < self.load.changes, self.rng.chance(0.25));
        match self.rng.below(20) {
            0 => Todo::Flush,
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

    fn submit(&mut self, host: &mut Host, now: Instant, todo: Todo) {
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
                (Request::Compare { lba: range.0, data }, Asked::Compare)
            }
        };
        self.next += 1;
        self.open.insert(self.next, asked);
        let busy = self.initiator.submit(host, now, (self.next, NSID), request, buffer).is_err();
        if busy {
            self.fail("the initiator has no room");
        }
    }

    fn fail(&mut self, what: impl Into<String>) {
        self.wrong.get_or_insert_with(|| what.into());
    }

    fn take(&mut self, token: u64, result: Result<u64, Error>, buffer: Option<AlignedBuf>) {
        self.results.insert(token, result);
        let Some(asked) = self.open.remove(&token) else {
            return self.fail(format!("{token} was not open, and has ended"));
        };
        if result.is_err() {
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
                extents.iter().for_each(|extent| self.model.end(version, fua, *extent));
            }
            Asked::Flush { answered } => {
                answered.into_iter().for_each(|answered| self.model.flushed(&answered));
            }
            Asked::Compare => {}
        }
    }

    /// Takes what ended and asks for more.
    pub fn pump(&mut self, host: &mut Host, now: Instant) {
        while let Some(event) = self.initiator.poll_event() {
            (now.as_nanos(), format!("{event:?}")).hash(&mut self.hash);
            self.events.push(event);
        }
        loop {
            while let Some(done) = self.initiator.poll_done() {
                (now.as_nanos(), done.token, done.result.is_ok()).hash(&mut self.hash);
                self.take(done.token, done.result, done.buffer);
            }
            let known = self.initiator.data_bytes_max().is_some();
            let up = !matches!(self.initiator.state(), State::Failed(_) | State::Closed);
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
            self.submit(host, now, todo);
        }
    }

    /// Takes a notice.
    pub fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: &Notice) {
        self.initiator.handle_notice(host, now, notice);
        self.pump(host, now);
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.initiator.handle_timeout(host, now);
        self.pump(host, now);
    }

    /// When something is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.initiator.poll_timeout()
    }
}
