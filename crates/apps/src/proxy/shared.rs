//! State that all connections of a proxy share: table, backends, owners of sockets, counters, log.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use base::Instant;
use host::SpliceId;
use wire::Endpoint;

use super::config::{ProxyConfig, ProxyTable};
use super::counters::ProxyCounters;
use super::pool::{BackendId, Backends, HealthChange};
use super::termination::Termination;
use crate::content::date::HttpClock;
use crate::content::log::{AccessLogQueue, quoted};
use crate::pattern_inspection::PatternInspection;

/// Owner of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketOwner {
    /// A pair, by its index; the socket is that of either side.
    Pair(usize),
    /// A health check, by its backend.
    Check(BackendId),
}

/// Owners of sockets, by the socket's index.
#[derive(Debug)]
pub(crate) struct SocketOwners<I>(Vec<Option<(I, SocketOwner)>>);

impl<I> Default for SocketOwners<I> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<I: Copy + Eq> SocketOwners<I> {
    /// Sets the owner of a socket. An earlier socket with this index has ended without a notice.
    pub(crate) fn set(&mut self, index: usize, socket: I, owner: SocketOwner) {
        if self.0.len() <= index {
            self.0.resize(index + 1, None);
        }
        if let Some(slot) = self.0.get_mut(index) {
            *slot = Some((socket, owner));
        }
    }

    pub(crate) fn get(&self, index: usize, socket: I) -> Option<SocketOwner> {
        let (known, owner) = (*self.0.get(index)?)?;
        (known == socket).then_some(owner)
    }

    /// Removes the owner of a socket that was closed.
    pub(crate) fn clear(&mut self, index: usize, socket: I) {
        if let Some(slot) = self.0.get_mut(index).filter(|s| s.is_some_and(|s| s.0 == socket)) {
            *slot = None;
        }
    }
}

/// The contents of a line of the access log.
#[derive(Debug)]
pub(crate) struct ProxyLogRecord<'a> {
    pub(crate) client: Endpoint,
    /// Request line, or server name of the ClientHello; empty if nothing was read.
    pub(crate) requested: &'a [u8],
    pub(crate) backend: Option<Endpoint>,
    /// Bytes from the client, and bytes to it.
    pub(crate) bytes: [u64; 2],
    /// `spliced`, `relayed` or `answered`.
    pub(crate) how: &'static str,
    /// Cause of the connection's end, in a word or two.
    pub(crate) end: &'a str,
    pub(crate) times: PairTimes,
    /// Status of the response to the client, if it is known.
    pub(crate) status: Option<u16>,
    pub(crate) termination: Termination,
}

/// Times at which a pair reached its stages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PairTimes {
    began: Instant,
    /// The head was complete and a pool was found.
    pub(crate) routed: Option<Instant>,
    /// A backend was connected.
    pub(crate) connected: Option<Instant>,
    /// The backend's first byte passed through this host.
    pub(crate) answered: Option<Instant>,
}

impl PairTimes {
    pub(crate) const fn new(began: Instant) -> Self {
        Self { began, routed: None, connected: None, answered: None }
    }

    /// Appends the times as HAProxy does, `TR/Tw/Tc/Tr/Ta` in milliseconds: time to receive the
    /// head, in the queue (there is none), to connect, to the response, and in total; -1 if the
    /// pair did not reach the stage, or the device relayed the response.
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

/// The first bytes of a response, up to the status in its status line.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ResponseStatusLine {
    bytes: [u8; Self::BYTES],
    len: usize,
}

impl ResponseStatusLine {
    /// `HTTP/1.1 200`
    const BYTES: usize = 12;

    /// Returns the status line of a response of the proxy's own.
    pub(crate) fn of(code: u16) -> Self {
        let mut line = Self::default();
        line.take(format!("HTTP/1.1 {code}").as_bytes());
        line
    }

    /// Returns whether the status is complete.
    pub(crate) const fn is_whole(&self) -> bool {
        self.len == Self::BYTES
    }

    /// Appends bytes of the response.
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        let room = self.bytes.iter_mut().skip(self.len);
        self.len += room.zip(bytes).map(|(to, from)| *to = *from).count();
    }

    /// Returns the status; `None` if there is no response, or it is not HTTP/1.
    pub(crate) fn code(&self) -> Option<u16> {
        let rest = self.bytes.strip_prefix(b"HTTP/1.")?;
        let [_, b' ', digits @ ..] = rest else { return None };
        core::str::from_utf8(digits).ok()?.parse().ok()
    }
}

/// State that all connections share.
pub(crate) struct ProxyShared<I> {
    pub(crate) config: ProxyConfig,
    pub(crate) table: ProxyTable,
    /// Slot in `backends` of each pool of the table.
    pub(crate) pools: Vec<usize>,
    pub(crate) backends: Backends,
    pub(crate) owners: SocketOwners<I>,
    /// Pairs that are spliced, or wait for the device's decision.
    pub(crate) splices: BTreeMap<SpliceId, usize>,
    pub(crate) clock: HttpClock,
    pub(crate) counters: ProxyCounters,
    pub(crate) inspection: PatternInspection,
    pub(crate) log: AccessLogQueue,
    /// Backends that went down since the health checks were last informed.
    pub(crate) went_down: Vec<BackendId>,
}

impl<I: Copy + Eq> ProxyShared<I> {
    pub(crate) fn new(config: ProxyConfig) -> Self {
        Self {
            clock: HttpClock::new(config.unix_epoch),
            log: AccessLogQueue::new(config.access_log),
            inspection: PatternInspection::new(config.pattern_rules.clone()),
            config,
            table: ProxyTable::default(),
            pools: Vec::new(),
            backends: Backends::default(),
            owners: SocketOwners::default(),
            splices: BTreeMap::new(),
            counters: ProxyCounters::default(),
            went_down: Vec::new(),
        }
    }

    /// Logs a pair. A line has the client, the time, the request, the status, the backend, bytes
    /// from and to the client, who relayed them, how the pair ended, times, and HAProxy's
    /// termination state. An unknown status is -1, as in HAProxy's logs.
    pub(crate) fn log_record(&mut self, now: Instant, record: &ProxyLogRecord<'_>) {
        if !self.log.enabled() {
            return;
        }
        self.clock.advance(now);
        let mut line = String::with_capacity(160 + record.requested.len());
        // Writing to a String cannot fail.
        let _ = write!(line, "{} [{}] ", record.client, self.clock.log());
        quoted(&mut line, Some(record.requested));
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

    /// Counts and logs a change of a backend's health.
    pub(crate) fn record_health_change(
        &mut self,
        now: Instant,
        backend: BackendId,
        change: HealthChange,
    ) {
        let what = match change {
            HealthChange::None => return,
            HealthChange::Up => {
                self.counters.proxy_backends_came_up += 1;
                "is up"
            }
            HealthChange::Down => {
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

    /// Logs a line that is not about a client.
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
        let mut owners = SocketOwners::default();
        owners.set(3, 'a', SocketOwner::Pair(1));
        owners.set(3, 'b', SocketOwner::Check(2));
        assert_eq!((owners.get(3, 'a'), owners.get(3, 'b')), (None, Some(SocketOwner::Check(2))));
        owners.clear(3, 'a');
        assert_eq!(
            owners.get(3, 'b'),
            Some(SocketOwner::Check(2)),
            "a late word about the old one"
        );
        owners.clear(3, 'b');
        assert_eq!((owners.get(3, 'b'), owners.get(9, 'b')), (None, None));
    }
}
