//! The table of pairs and their deadlines.
//!
//! [`super::Proxy`] forwards the host's notices. A deadline that moves later leaves its pair's
//! alarm where it is; the deadline is compared again when the alarm fires. So relaying moves no
//! alarm.

use abi::Refusal;
use base::{DeadlineHeap, Instant};
use host::{SpliceError, SpliceId};

use super::config::{ProxyConfig, ProxyTable};
use super::health_check::HealthChecks;
use super::pair::{PairAction, ProxyPair, ProxyPairEnv};
use super::shared::{ProxyShared, SocketOwner};
use super::sockets::ProxySockets;

/// The proxy, generic over the sockets.
pub(crate) struct ProxyServer<I> {
    pub(crate) shared: ProxyShared<I>,
    checks: HealthChecks<I>,
    pairs: Vec<Option<ProxyPair<I>>>,
    free: Vec<usize>,
    deadlines: DeadlineHeap,
    /// True once all connections are being reset; only notices about ended splices still count.
    ending: bool,
}

impl<I: Copy + Eq> ProxyServer<I> {
    pub(crate) fn new(config: ProxyConfig) -> Self {
        Self {
            checks: HealthChecks::new(config.seed),
            shared: ProxyShared::new(config),
            pairs: Vec::new(),
            free: Vec::new(),
            deadlines: DeadlineHeap::default(),
            ending: false,
        }
    }

    /// Returns the number of clients.
    pub(crate) fn connections(&self) -> usize {
        self.pairs.len() - self.free.len()
    }

    /// Replaces the table. Clients that have a backend keep it.
    pub(crate) fn apply(&mut self, now: Instant, table: ProxyTable) {
        let (pools, added) = self.shared.backends.apply(&table.pools);
        self.shared.table = table;
        self.shared.pools = pools;
        self.shared.counters.proxy_tables += 1;
        self.checks.watch(now, &mut self.shared, &added);
    }

    /// Logs every client whose connection the host is about to reset.
    pub(crate) fn end(&mut self, now: Instant) {
        self.ending = true;
        for pair in self.pairs.iter().flatten() {
            pair.log_drained(now, &mut self.shared);
        }
    }

    /// Handles a client that was accepted by the listener with this index in the table.
    pub(crate) fn handle_accepted<S: ProxySockets<Id = I>>(
        &mut self,
        now: Instant,
        host: &mut S,
        socket: I,
        listener: usize,
    ) {
        if self.ending {
            return;
        }
        if self.connections() >= self.shared.table.limits.connections_max {
            self.shared.counters.proxy_refused_full += 1;
            host.abort(now, socket);
            return;
        }
        self.shared.counters.proxy_accepted += 1;
        let rules = self.shared.inspection.start(now, host, socket);
        let index = self.free.pop().unwrap_or_else(|| {
            self.pairs.push(None);
            self.pairs.len() - 1
        });
        let cx = ProxyPairEnv { now, host, shared: &mut self.shared };
        let Some(pair) = ProxyPair::new(&cx, socket, rules, index, listener) else {
            self.free.push(index);
            host.close(now, socket);
            return;
        };
        if let Some(slot) = self.pairs.get_mut(index) {
            *slot = Some(pair);
        }
        self.shared.owners.set(S::index(socket), socket, SocketOwner::Pair(index));
        self.with_pair(now, host, index, ProxyPair::start);
    }

    /// Handles a change of a connection's readiness.
    pub(crate) fn handle_socket<S: ProxySockets<Id = I>>(
        &mut self,
        now: Instant,
        host: &mut S,
        socket: I,
    ) {
        if self.ending {
            return;
        }
        match self.shared.owners.get(S::index(socket), socket) {
            Some(SocketOwner::Pair(index)) => {
                self.with_pair(now, host, index, ProxyPair::handle_readiness)
            }
            Some(SocketOwner::Check(id)) => {
                self.checks.handle_socket(now, host, &mut self.shared, id);
            }
            None => {}
        }
    }

    /// Handles a splice that the device has accepted.
    pub(crate) fn handle_spliced<S: ProxySockets<Id = I>>(
        &mut self,
        now: Instant,
        host: &mut S,
        id: SpliceId,
    ) {
        let Some(index) = self.shared.splices.get(&id).copied() else { return };
        self.with_pair(now, host, index, |pair, cx| {
            pair.handle_spliced(cx);
            PairAction::Keep
        });
    }

    /// Handles a splice that the device has refused.
    pub(crate) fn handle_splice_refused<S: ProxySockets<Id = I>>(
        &mut self,
        now: Instant,
        host: &mut S,
        id: SpliceId,
        why: Refusal,
    ) {
        let Some(index) = self.shared.splices.remove(&id).filter(|_| !self.ending) else { return };
        let error = SpliceError::Refused(why);
        self.with_pair(now, host, index, |pair, cx| pair.handle_splice_refused(cx, error));
    }

    /// Handles the end of a splice.
    pub(crate) fn handle_splice_closed<S: ProxySockets<Id = I>>(
        &mut self,
        now: Instant,
        host: &mut S,
        id: SpliceId,
    ) {
        let Some(index) = self.shared.splices.remove(&id) else { return };
        let meta = host.take_splice(id);
        self.with_pair(now, host, index, |pair, cx| pair.handle_splice_closed(cx, meta));
    }

    /// Handles the deadlines that have passed.
    pub(crate) fn handle_timeout<S: ProxySockets<Id = I>>(&mut self, now: Instant, host: &mut S) {
        while let Some(key) = self.deadlines.pop(now) {
            let index = key as usize;
            let Some(pair) = self.pairs.get(index).and_then(Option::as_ref) else { continue };
            if pair.deadline > now {
                self.deadlines.set(key, pair.deadline);
            } else {
                self.with_pair(now, host, index, ProxyPair::handle_timeout);
            }
        }
        self.checks.handle_timeout(now, host, &mut self.shared);
    }

    /// Returns the time at which to call [`Self::handle_timeout`]; this may be too early.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.next().into_iter().chain(self.checks.poll_timeout()).min()
    }

    fn with_pair<S: ProxySockets<Id = I>>(
        &mut self,
        now: Instant,
        host: &mut S,
        index: usize,
        work: impl FnOnce(&mut ProxyPair<I>, &mut ProxyPairEnv<'_, S>) -> PairAction,
    ) {
        let Some(slot) = self.pairs.get_mut(index) else { return };
        let Some(pair) = slot else { return };
        let mut cx = ProxyPairEnv { now, host, shared: &mut self.shared };
        let fate = work(pair, &mut cx);
        let (deadline, key) = (pair.deadline, u32::try_from(index));
        if fate == PairAction::Ended {
            *slot = None;
            self.free.push(index);
            key.into_iter().for_each(|key| self.deadlines.clear(key));
        } else {
            key.into_iter().for_each(|key| self.deadlines.set(key, deadline));
        }
        for id in core::mem::take(&mut self.shared.went_down) {
            self.checks.set_alarm(&self.shared, id);
        }
    }
}

#[cfg(test)]
mod tests;
