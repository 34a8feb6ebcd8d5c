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
use super::termination::Termination;
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
    pub(crate) times: Times,
    /// The status that the client got, if it is known.
    pub(crate) status: Option<u16>,
    pub(crate) termination: Termination,
}

/// When a pair came how far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    began: Instant,
    /// The head was whole, and had a pool.
    pub(crate) routed: Option<Instant>,
    /// A backend was connected.
    pub(crate) connected: Option<Instant>,
    /// The backend's first byte came through this host.
    pub(crate) answered: Option<Instant>,
}

impl Times {
    pub(crate) const fn new(began: Instant) -> Self {
        Self { began, routed: None, connected: None, answered: None }
    }

    /// Appends the times as HAProxy does, `TR/Tw/Tc/Tr/Ta` in milliseconds: to the head, in a queue
    /// (there is none), to a connection, to an answer, and all together; -1 if it did not come so
    /// far or passed this host by.
    fn write(&self, now: Instant, line: &mut String) {
        let between = |from: Option<Instant>, to: Option<Instant>| {
            from.zip(to).map_or(-1, |(from, to)| {
                i64::try_from(to.since(from).as_millis()).unwrap_or(i64::MAX)
            })
        };
        let head = between(Some(self.began), self.routed);
        let queue = if self.routed.is_some() { 0 } else { -1 };
        let connect = between(self.routed, self.connected);
        let answer = between(self.connected, self.answered);
        let all = between(Some(self.began), Some(now));
        // Writing to a String cannot fail.
        let _ = write!(line, " {head}/{queue}/{connect}/{answer}/{all}");
    }
}

/// The beginning of a response, up to the status in its status line.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StatusLine {
    bytes: [u8; Self::BYTES],
    len: usize,
}

impl StatusLine {
    /// `HTTP/1.1 200`
    const BYTES: usize = 12;

    /// A status of our own.
    pub(crate) fn of(code: u16) -> Self {
        let mut line = Self::default();
        line.take(format!("HTTP/1.1 {code}").as_bytes());
        line
    }

    /// Returns whether more of the response says nothing more.
    pub(crate) const fn is_whole(&self) -> bool {
        self.len == Self::BYTES
    }

    /// Takes the next bytes of the response.
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        let room = self.bytes.iter_mut().skip(self.len);
        self.len += room.zip(bytes).map(|(to, from)| *to = *from).count();
    }

    /// The status; none if there is no response, or none of HTTP/1.
    pub(crate) fn code(&self) -> Option<u16> {
        let rest = self.bytes.strip_prefix(b"HTTP/1.")?;
        let [_, b' ', digits @ ..] = rest else { return None };
        core::str::from_utf8(digits).ok()?.parse().ok()
    }
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

    /// A line of the access log: the client, the time, what it asked for, the status, its backend,
    /// bytes from and to the client, who relayed them, how it ended, times, and HAProxy's state at
    /// termination. A status that is not known is -1, as in HAProxy's logs.
    pub(crate) fn note(&mut self, now: Instant, record: &Record<'_>) {
        if !self.log.enabled() {
            return;
        }
        self.clock.advance(now);
        let mut line = String::with_capacity(160 + record.asked.len());
        // Writing to a String cannot fail.
        let _ = write!(line, "{} [{}] ", record.client, self.clock.log());
        quoted(&mut line, Some(record.asked));
        let _ = match record.status {
            Some(status) => write!(line, " {status}"),
            None => write!(line, " -1"),
        };
        let _ = match record.backend {
            Some(backend) => write!(line, " {backend}"),
            None => write!(line, " -"),
        };
        let [up, down] = record.bytes;
        let _ = write!(line, " {up} {down} {} {}", record.how, record.end);
        record.times.write(now, &mut line);
        let _ = write!(line, " {}", record.termination);
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
