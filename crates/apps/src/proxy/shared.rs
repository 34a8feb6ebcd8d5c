//! What all connections of a proxy share: the table, the backends, whose socket is whose, counters,
//! log.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use base::Instant;
use host::SpliceId;
use wire::Endpoint;

use super::config::{Config, Table};
use super::counters::Counters;
use super::pool::{BackendId, Backends, Change};
use crate::content::date::Clock;
use crate::content::log::{Log, quoted};

/// Whose a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A pair's, of either side.
    Pair(usize),
    /// A health check's.
    Check(BackendId),
}

/// Owners by the socket's index.
#[derive(Debug)]
pub(crate) struct Owners<I>(Vec<Option<(I, Owner)>>);

impl<I> Default for Owners<I> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<I: Copy + Eq> Owners<I> {
    /// Whoever had a socket with that index before has lost it without a word.
    pub(crate) fn set(&mut self, index: usize, socket: I, owner: Owner) {
        if self.0.len() <= index {
            self.0.resize(index + 1, None);
        }
        if let Some(slot) = self.0.get_mut(index) {
            *slot = Some((socket, owner));
        }
    }

    pub(crate) fn get(&self, index: usize, socket: I) -> Option<Owner> {
        let (known, owner) = (*self.0.get(index)?)?;
        (known == socket).then_some(owner)
    }

    /// The socket was let go.
    pub(crate) fn clear(&mut self, index: usize, socket: I) {
        if let Some(slot) = self.0.get_mut(index).filter(|s| s.is_some_and(|s| s.0 == socket)) {
            *slot = None;
        }
    }
}

/// What a line of the access log says.
#[derive(Debug)]
pub(crate) struct Record<'a> {
    pub(crate) client: Endpoint,
    /// The request line, or the name of the ClientHello; empty where nothing was looked at.
    pub(crate) asked: &'a [u8],
    pub(crate) backend: Option<Endpoint>,
    /// From the client and to it.
    pub(crate) bytes: [u64; 2],
    /// `spliced`, `relayed` or `answered`.
    pub(crate) how: &'static str,
    /// How it ended, in a word or two.
    pub(crate) end: &'a str,
    pub(crate) began: Instant,
}

/// All that is shared.
pub(crate) struct Shared<I> {
    pub(crate) config: Config,
    pub(crate) table: Table,
    /// Slot of each pool of the table.
    pub(crate) pools: Vec<usize>,
    pub(crate) backends: Backends,
    pub(crate) owners: Owners<I>,
    /// Pairs that the device has, or is about to have.
    pub(crate) splices: BTreeMap<SpliceId, usize>,
    pub(crate) clock: Clock,
    pub(crate) counters: Counters,
    pub(crate) log: Log,
    /// Backends that went down since the checks were told.
    pub(crate) went_down: Vec<BackendId>,
}

impl<I: Copy + Eq> Shared<I> {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            clock: Clock::new(config.unix_epoch),
            log: Log::new(config.access_log),
            config,
            table: Table::default(),
            pools: Vec::new(),
            backends: Backends::default(),
            owners: Owners::default(),
            splices: BTreeMap::new(),
            counters: Counters::default(),
            went_down: Vec::new(),
        }
    }

    /// A line of the access log: the client, the time, what it asked for, its backend, bytes from
    /// and to the client, who relayed them, how it ended, and milliseconds.
    pub(crate) fn note(&mut self, now: Instant, record: &Record<'_>) {
        if !self.log.enabled() {
            return;
        }
        self.clock.advance(now);
        let mut line = String::with_capacity(160 + record.asked.len());
        // Writing to a String cannot fail.
        let _ = write!(line, "{} [{}] ", record.client, self.clock.log());
        quoted(&mut line, Some(record.asked));
        let _ = match record.backend {
            Some(backend) => write!(line, " {backend}"),
            None => write!(line, " -"),
        };
        let ms = now.since(record.began).as_millis();
        let [up, down] = record.bytes;
        let _ = write!(line, " {up} {down} {} {} {ms}", record.how, record.end);
        if !self.log.push(line) {
            self.counters.proxy_log_dropped += 1;
        }
    }

    /// Counts what became of a backend, and says so in the log.
    pub(crate) fn note_change(&mut self, now: Instant, backend: BackendId, change: Change) {
        let what = match change {
            Change::None => return,
            Change::Up => {
                self.counters.proxy_backends_came_up += 1;
                "is up"
            }
            Change::Down => {
                self.counters.proxy_backends_went_down += 1;
                self.went_down.push(backend);
                "is down"
            }
        };
        let Some(addr) = self.backends.get(backend).map(|b| b.addr) else { return };
        let pool = self.backends.config_of(backend).map_or("", |pool| pool.name.as_str());
        if self.log.enabled() {
            let remark = format!("backend {addr} of {pool} {what}");
            self.remark(now, &remark);
        }
    }

    /// Puts a line that is about no client into the log.
    pub(crate) fn remark(&mut self, now: Instant, what: &dyn core::fmt::Display) {
        if self.log.enabled() {
            self.clock.advance(now);
            let line = format!("# [{}] {what}", self.clock.log());
            if !self.log.push(line) {
                self.counters.proxy_log_dropped += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_is_used_again_belongs_to_the_new_socket() {
        let mut owners = Owners::default();
        owners.set(3, 'a', Owner::Pair(1));
        owners.set(3, 'b', Owner::Check(2));
        assert_eq!((owners.get(3, 'a'), owners.get(3, 'b')), (None, Some(Owner::Check(2))));
        owners.clear(3, 'a');
        assert_eq!(owners.get(3, 'b'), Some(Owner::Check(2)), "a late word about the old one");
        owners.clear(3, 'b');
        assert_eq!((owners.get(3, 'b'), owners.get(9, 'b')), (None, None));
    }
}
