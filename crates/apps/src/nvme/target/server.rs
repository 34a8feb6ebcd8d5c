//! The table of connections, their deadlines, and effects of one connection's turn on others.
//!
//! [`super::Target`] passes on the host's notices. If a turn releases a range or memory, or an
//! association loses its admin queue, the affected connections have their turn before the call
//! returns ([`Server::settle`]).

use abi::FileId;
use base::{Alarms, Duration, Instant};
use host::nvme::Ended;
use host::{Alert, DiskUser, SocketError};
use wire::nvme::nqn::Nqn;
use wire::nvme::status::Status;

use super::Config;
use super::admin::NOT_ABORTED;
use super::buffers::Buffers;
use super::controller::{ConnKey, Controller, Controllers};
use super::counters::Counters;
use super::link::{Disk, Link};
use super::log::ConnectionLog;
use super::namespaces::QueueInfo;
use super::queue::{Conn, NOT_ACKNOWLEDGED, Turn};
use super::shared::{Aborting, Health, OpId, Ops, Shared, Stage};
use super::subsystem::{State, open_all};
use crate::nvme::Insecure;

/// Interval of checks for acknowledgments of locked ranges that other commands wait for. The host
/// sends a notice only when everything is acknowledged.
const RECHECK: Duration = Duration::from_millis(5);

/// The target, generic over connections.
pub(super) struct Server<L> {
    pub(super) shared: Shared,
    /// Connections, indexed by the slot of their socket.
    slots: Vec<Option<Conn<L>>>,
    connections: usize,
    deadlines: Alarms,
    next_serial: u32,
    /// Time of the next check for acknowledgments.
    recheck: Option<Instant>,
}

impl<L: Link> Server<L> {
    pub(super) fn new(config: Config, disk: &mut L::Host) -> Self {
        let (subsystems, namespaces) = open_all(&config.subsystems, disk);
        let failed = namespaces.iter().filter(|one| matches!(one.state, State::Failed(_))).count();
        let mut counters = Counters::default();
        counters.nvmet_namespaces_failed += failed as u64;
        let log = ConnectionLog::new(config.log, config.unix_epoch);
        let shared = Shared {
            disk_user: disk.new_user(),
            buffers: Buffers::new(config.buffer_bytes_max),
            config,
            counters,
            subsystems,
            namespaces,
            controllers: Controllers::default(),
            ops: Ops::default(),
            ready: Default::default(),
            thirsty: Default::default(),
            capsules: 0,
            aborts: Default::default(),
            doomed: Vec::new(),
            generation: 1,
            health: Health::default(),
            log,
            leaving: Vec::new(),
            closed: Default::default(),
        };
        Self {
            shared,
            slots: Vec::new(),
            connections: 0,
            deadlines: Alarms::default(),
            next_serial: 0,
            recheck: None,
        }
    }

    pub(super) const fn connections(&self) -> usize {
        self.connections
    }

    /// Adds an accepted connection at the index of its socket's slot.
    pub(super) fn handle_accepted(
        &mut self,
        now: Instant,
        host: &mut L::Host,
        index: usize,
        mut link: L,
    ) {
        // A previous connection in this slot has ended without a notice.
        self.remove(now, host, index, "lost");
        let remote = link.remote(host);
        if self.connections >= self.shared.config.connections_max {
            self.shared.counters.nvmet_connections_refused += 1;
            let most = self.connections;
            self.shared.log.add(now, remote, format!("refused: {most} connections are there"));
            link.end(now, host, false);
            return;
        }
        self.shared.counters.nvmet_connections += 1;
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || None);
        }
        let key = ConnKey { index, serial: self.next_serial };
        self.next_serial = self.next_serial.wrapping_add(1);
        let connect_by = now + self.shared.config.connect_timeout;
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = Some(Conn::new(link, (key, remote), connect_by));
            self.connections += 1;
        }
        self.handle_socket(now, host, index);
    }

    /// Handles a notice about a connection.
    pub(super) fn handle_socket(&mut self, now: Instant, host: &mut L::Host, index: usize) {
        let ended = self.with(now, host, index, |turn| turn.run()).flatten();
        if let Some(how) = ended {
            self.end(now, host, index, how);
        }
        self.settle(now, host);
    }

    /// Returns the connected queues.
    pub(super) fn queues(&self) -> Vec<QueueInfo> {
        let Shared { subsystems, controllers, .. } = &self.shared;
        let info = |conn: &Conn<L>| {
            let queue = conn.queue.as_ref()?;
            let controller = controllers.get(queue.is.cntlid)?;
            let subsystem = controller.subsystem.and_then(|index| subsystems.get(index));
            let (header_digest, data_digest) = conn.link.digests();
            Some(QueueInfo {
                remote: conn.remote,
                host: controller.hostnqn,
                host_id: controller.hostid,
                subsystem: subsystem.map_or_else(Nqn::discovery, |subsystem| subsystem.nqn),
                controller: queue.is.cntlid,
                queue: queue.is.qid,
                entries: queue.is.size,
                open: queue.open(),
                header_digest,
                data_digest,
                pre_shared_key: conn.link.identity().is_some(),
            })
        };
        self.slots.iter().flatten().filter_map(info).collect()
    }

    pub(super) fn link(&self, index: usize) -> Option<&L> {
        Some(&self.slots.get(index)?.as_ref()?.link)
    }

    /// Handles the end of an open of a namespace's file.
    pub(super) fn handle_file(&mut self, now: Instant, host: &mut L::Host, file: FileId) {
        if self.handle_reopened(now, host, file) {
            return;
        }
        let shared = &mut self.shared;
        let Some(place) = shared.namespaces.iter().position(|one| one.file == Some(file)) else {
            return;
        };
        let Some(namespace) = shared.namespaces.get_mut(place) else { return };
        let before = namespace.state;
        namespace.handle_opened(host);
        let after = namespace.state;
        if before == after {
            return;
        }
        shared.counters.nvmet_namespaces_failed += u64::from(matches!(after, State::Failed(_)));
        if let Some((index, nsid)) = shared.name_of(place) {
            shared.note_namespace(index, nsid);
            let line = match after {
                State::Failed(fault) => format!("namespace={nsid} failed: {fault}"),
                _ => format!("namespace={nsid} ready"),
            };
            shared.log.add(now, None, line);
        }
        self.settle(now, host);
    }

    /// Replaces the list of hosts that may connect to a subsystem. Returns false if the subsystem
    /// does not exist.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        host: &mut L::Host,
        subsystem: &Nqn,
        hosts: Option<Vec<Nqn>>,
    ) -> bool {
        let shared = &mut self.shared;
        let found = shared.subsystems.iter_mut().find(|one| one.nqn == *subsystem);
        let Some(found) = found else { return false };
        found.hosts = hosts;
        shared.generation += 1;
        let discovery = |one: &&mut Controller| one.subsystem.is_none();
        for controller in shared.controllers.iter_mut().filter(discovery) {
            controller.events.note_discovery();
        }
        self.settle(now, host);
        true
    }

    /// Handles ended disk operations.
    pub(super) fn handle_disk(&mut self, now: Instant, host: &mut L::Host, user: DiskUser) {
        if user != self.shared.disk_user {
            return;
        }
        while let Some((token, result)) = host.poll_read(user) {
            let id = OpId(token);
            if let Some(index) = self.owner(id) {
                self.with(now, host, index, |turn| turn.handle_read(id, result));
            } else if let Some(mut op) = self.shared.ops.remove(id) {
                self.shared.counters.nvmet_orphans += 1;
                op.reading.take().into_iter().for_each(|extent| host.release(extent));
                self.shared.relinquish(&mut op);
            }
        }
        while let Some((token, buffer, result)) = host.poll_changed(user) {
            let id = OpId(token);
            if let Some(index) = self.owner(id) {
                self.with(now, host, index, |turn| turn.handle_changed(id, buffer, result));
            } else if let Some(mut op) = self.shared.ops.remove(id) {
                self.shared.counters.nvmet_orphans += 1;
                op.buffer = buffer.or_else(|| op.buffer.take());
                self.shared.relinquish(&mut op);
            }
        }
        self.settle(now, host);
    }

    /// Returns the index of the connection of an operation.
    fn owner(&self, id: OpId) -> Option<usize> {
        self.find(self.shared.ops.get(id)?.owner?)
    }

    fn find(&self, key: ConnKey) -> Option<usize> {
        let conn = self.slots.get(key.index)?.as_ref()?;
        (conn.key == key).then_some(key.index)
    }

    /// Handles expired deadlines.
    pub(super) fn handle_timeout(&mut self, now: Instant, host: &mut L::Host) {
        while let Some(key) = self.deadlines.pop(now) {
            let index = key as usize;
            let Some(conn) = self.slots.get(index).and_then(Option::as_ref) else { continue };
            if let Some(why) = conn.overdue(now, &mut self.shared) {
                self.remove(now, host, index, why);
            } else {
                self.handle_socket(now, host, index);
            }
        }
        if self.recheck.is_some_and(|at| at <= now) {
            for index in 0..self.slots.len() {
                let conn = self.slots.get(index).and_then(Option::as_ref);
                if conn.is_some_and(|conn| conn.answers.keep()) {
                    self.with(now, host, index, |turn| turn.release_acknowledged());
                }
            }
            self.expire_ranges(now, host);
        }
        self.settle(now, host);
    }

    /// Ends connections that have not acknowledged ranges for which other commands have waited too
    /// long. TCP does not end them: a peer that responds may keep its window closed forever (RFC
    /// 9293 section 3.8.6.1), or accept a byte now and then.
    fn expire_ranges(&mut self, now: Instant, host: &mut L::Host) {
        let ranges = self.shared.overdue(now);
        if ranges.is_empty() {
            return;
        }
        for index in 0..self.slots.len() {
            let conn = self.slots.get(index).and_then(Option::as_ref);
            let waited_for = |kept| ranges.binary_search(&kept).is_ok();
            if conn.is_some_and(|conn| conn.answers.kept().any(waited_for)) {
                self.shared.counters.nvmet_timeouts_acknowledge += 1;
                self.remove(now, host, index, NOT_ACKNOWLEDGED);
            }
        }
    }

    /// Returns the time for [`Self::handle_timeout`]; may be early.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.next().into_iter().chain(self.recheck).min()
    }

    /// Ends all connections. The caller has stopped listening.
    pub(super) fn drain(&mut self, now: Instant, host: &mut L::Host) {
        for index in 0..self.slots.len() {
            self.remove(now, host, index, "the target ends");
        }
        self.settle(now, host);
    }

    /// Runs the connections affected by the previous turns until no work is left.
    pub(super) fn settle(&mut self, now: Instant, host: &mut L::Host) {
        loop {
            if let Some(key) = self.shared.doomed.pop() {
                let index = self.find(key);
                let why = "its controller's admin queue is gone";
                index.into_iter().for_each(|index| self.remove(now, host, index, why));
            } else if let Some(abort) = self.shared.aborts.pop_front() {
                self.abort(now, host, abort);
            } else if let Some(id) = self.shared.ready.pop_front() {
                let index = self.owner(id);
                index.map(|index| self.with(now, host, index, |turn| turn.perform(id)));
            } else if let Some(id) = self.next_thirsty() {
                let index = self.owner(id);
                index.map(|index| self.with(now, host, index, |turn| turn.fetch(id, true)));
            } else {
                break;
            }
        }
        self.close_files(host);
        self.report_events(now, host);
        let wanted = self.shared.waiting() > 0;
        self.recheck = wanted.then(|| self.recheck.filter(|at| *at > now).unwrap_or(now + RECHECK));
    }

    /// Aborts a command if possible, then completes the Abort command.
    fn abort(&mut self, now: Instant, host: &mut L::Host, abort: Aborting) {
        let Aborting { admin, cid, queue, target } = abort;
        let index = self.find(queue);
        let aborted =
            index.and_then(|index| self.with(now, host, index, |turn| turn.abort(target)));
        let result = if aborted == Some(true) { 0 } else { NOT_ABORTED };
        if let Some(index) = self.find(admin) {
            self.with(now, host, index, |turn| turn.complete(cid, result, Status::SUCCESS));
        }
    }

    /// Removes and returns the operation that has waited longest for memory, if its buffer is
    /// available.
    fn next_thirsty(&mut self) -> Option<OpId> {
        let shared = &mut self.shared;
        loop {
            let id = *shared.thirsty.front()?;
            let waits = |op: &&super::shared::Op| op.stage == Stage::Memory;
            let Some(op) = shared.ops.get(id).filter(waits) else {
                shared.thirsty.pop_front();
                continue;
            };
            if !shared.buffers.fits(op.data_len as usize) {
                return None;
            }
            return shared.thirsty.pop_front();
        }
    }

    fn report_events(&mut self, now: Instant, host: &mut L::Host) {
        let mut due = Vec::new();
        for controller in self.shared.controllers.iter_mut() {
            while let Some((cid, event)) = controller.events.poll() {
                due.push((controller.queue(0), cid, event));
            }
        }
        for (key, cid, event) in due {
            let Some(index) = key.and_then(|key| self.find(key)) else { continue };
            self.shared.counters.nvmet_events += 1;
            let value = u64::from(event.to_value());
            self.with(now, host, index, |turn| turn.complete(cid, value, Status::SUCCESS));
        }
    }

    /// Runs `work` on a connection and updates the connection's deadline.
    fn with<R>(
        &mut self,
        now: Instant,
        host: &mut L::Host,
        index: usize,
        work: impl FnOnce(&mut Turn<'_, L>) -> R,
    ) -> Option<R> {
        let conn = self.slots.get_mut(index)?.as_mut()?;
        let mut turn = Turn { now, host, shared: &mut self.shared, conn };
        let result = work(&mut turn);
        if let (Some(at), Ok(key)) = (conn.deadline(&self.shared), u32::try_from(index)) {
            self.deadlines.set(key, at);
        }
        Some(result)
    }

    /// Handles the end of a connection.
    fn end(&mut self, now: Instant, host: &mut L::Host, index: usize, how: Ended) {
        self.log_end(now, index, how);
        let counters = &mut self.shared.counters;
        let gently = match how {
            Ended::Closed => true,
            Ended::Terminated(_) | Ended::TerminatedByPeer(_) => {
                counters.nvmet_connections_terminated += 1;
                true
            }
            Ended::Lost(SocketError::File(_)) => {
                counters.nvmet_connections_lost += 1;
                counters.nvmet_connections_unreadable += 1;
                self.with(now, host, index, |turn| turn.suspect_reads());
                false
            }
            Ended::Lost(why) => {
                counters.nvmet_connections_lost += 1;
                self.count_insecure(index, why)
            }
            Ended::Silent => {
                counters.nvmet_connections_lost += 1;
                false
            }
        };
        if gently && self.with(now, host, index, |turn| turn.lingers()) == Some(true) {
            return;
        }
        self.take_out(now, host, index, gently);
    }

    /// Counts a connection lost before it was secure. Returns whether our TLS ended it, with an
    /// alert that is still to be delivered.
    fn count_insecure(&mut self, index: usize, why: SocketError) -> bool {
        let ours = matches!(why, SocketError::TlsHandshake | SocketError::Tls(_));
        let Some(conn) = self.slots.get(index).and_then(Option::as_ref) else { return ours };
        let counters = &mut self.shared.counters;
        if conn.queue.is_none() && (ours || matches!(why, SocketError::TlsPeer(_))) {
            counters.nvmet_tls_handshakes_failed += 1;
            // TLS with certificates runs in the socket: a PDU's first byte is an unexpected message
            // there.
            let plain = conn.link.insecure() == Some(Insecure::Plain)
                || why == SocketError::Tls(Alert::UnexpectedMessage);
            counters.nvmet_tls_plain += u64::from(plain);
        }
        ours
    }

    /// Logs the end of a connection, once.
    fn log_end(&mut self, now: Instant, index: usize, how: impl core::fmt::Display) {
        let Some(conn) = self.slots.get_mut(index).and_then(Option::as_mut) else { return };
        let log = &mut self.shared.log;
        match (conn.who.take(), conn.link.insecure()) {
            (Some(who), _) => log.add(now, conn.remote, format!("closed {who}: {how}")),
            (None, Some(why)) => log.add(now, conn.remote, format!("refused: {why}")),
            // The line was logged when it began to leave.
            (None, None) if conn.is_leaving() => {}
            (None, None) => log.add(now, conn.remote, format!("closed without a queue: {how}")),
        }
    }

    fn remove(&mut self, now: Instant, host: &mut L::Host, index: usize, why: &str) {
        self.log_end(now, index, why);
        self.take_out(now, host, index, false);
    }

    fn take_out(&mut self, now: Instant, host: &mut L::Host, index: usize, gently: bool) {
        if self.with(now, host, index, |turn| turn.abandon()).is_none() {
            return;
        }
        let Some(mut conn) = self.slots.get_mut(index).and_then(Option::take) else { return };
        self.connections -= 1;
        conn.link.end(now, host, gently);
        if let Ok(key) = u32::try_from(index) {
            self.deadlines.clear(key);
        }
    }
}

#[cfg(test)]
mod tests;
