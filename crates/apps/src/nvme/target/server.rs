//! The table of connections, their deadlines, and effects of one connection's turn on others.
//!
//! [`super::NvmeTarget`] passes on the host's notices. If a turn releases a range or memory, or an
//! association loses its admin queue, the affected connections have their turn before the call
//! returns ([`NvmeTargetServer::run_affected`]).

use abi::FileId;
use base::{DeadlineHeap, Duration, Instant};
use host::nvme::NvmeTransportEnd;
use host::{DiskUser, SocketError, TlsAlert};
use wire::nvme::nqn::Nqn;
use wire::nvme::status::NvmeStatus;

use super::NvmeTargetConfig;
use super::admin::NOT_ABORTED;
use super::backend::{TargetDisk, TargetTransport};
use super::common::{NvmeOpId, PendingAbort, TargetConnId};
use super::controller::{Controller, Controllers};
use super::counters::NvmeTargetCounters;
use super::log::ConnectionLog;
use super::namespaces::NvmeQueueInfo;
use super::queue::{NOT_ACKNOWLEDGED, NvmeTargetConn, TargetConnContext};
use super::shared::{NvmeOpStage, NvmeOpTable, NvmeTargetState};
use super::subsystem::{OpenedSubsystems, open_all};
use crate::nvme::SecureChannelError;
use crate::pattern_inspection::PatternInspection;
use crate::write_buffers::WriteBufferPool;

/// Interval of checks for acknowledgments of locked ranges that other commands wait for. The host
/// sends a notice only when everything is acknowledged.
const LOCK_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// The target, generic over connections.
pub(super) struct NvmeTargetServer<L> {
    pub(super) shared: NvmeTargetState,
    /// Connections, indexed by the slot of their socket.
    slots: Vec<Option<NvmeTargetConn<L>>>,
    connections: usize,
    deadlines: DeadlineHeap,
    next_serial: u32,
    /// Time of the next check for acknowledgments.
    ack_check_at: Option<Instant>,
}

impl<L: TargetTransport> NvmeTargetServer<L> {
    pub(super) fn new(config: NvmeTargetConfig, disk: &mut L::Host) -> Self {
        let member = config.member.clone().unwrap_or_default();
        let OpenedSubsystems { subsystems, namespaces, failed } = open_all(
            &config.subsystems,
            (member.queue(), |path: &str| member.namespace(path)),
            disk,
        );
        let counters =
            NvmeTargetCounters { nvmet_namespaces_failed: failed, ..NvmeTargetCounters::default() };
        let log = ConnectionLog::new(config.log, config.unix_epoch);
        let shared = NvmeTargetState {
            member,
            disk_user: disk.new_user(),
            buffers: WriteBufferPool::new(config.buffer_bytes_max),
            inspection: PatternInspection::new(config.pattern_rules.clone()),
            config,
            counters,
            subsystems,
            namespaces,
            controllers: Controllers::default(),
            ops: NvmeOpTable::default(),
            ready: Default::default(),
            waiting_for_buffer: Default::default(),
            waiting_capsule_bytes: 0,
            aborts: Default::default(),
            to_disconnect: Vec::new(),
            generation: 1,
            log,
            namespaces_to_close: Vec::new(),
            closed_paths: Default::default(),
        };
        Self {
            shared,
            slots: Vec::new(),
            connections: 0,
            deadlines: DeadlineHeap::default(),
            next_serial: 0,
            ack_check_at: None,
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
        self.end_and_log(now, host, index, "lost");
        let remote = link.remote(host);
        if self.connections >= self.shared.config.connections_max {
            self.shared.counters.nvmet_connections_refused += 1;
            let most = self.connections;
            self.shared.log.add(
                now,
                remote,
                format!("refused: limit of {most} connections reached"),
            );
            link.end(now, host, false);
            return;
        }
        self.shared.counters.nvmet_connections += 1;
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || None);
        }
        let key = TargetConnId { index, serial: self.next_serial };
        self.next_serial = self.next_serial.wrapping_add(1);
        let connect_by = now + self.shared.config.connect_timeout;
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = Some(NvmeTargetConn::new(link, (key, remote), connect_by));
            self.connections += 1;
        }
        self.handle_socket(now, host, index);
    }

    /// Handles a notice about a connection.
    pub(super) fn handle_socket(&mut self, now: Instant, host: &mut L::Host, index: usize) {
        let ended = self.with_connection(now, host, index, |turn| turn.run()).flatten();
        if let Some(how) = ended {
            self.handle_end(now, host, index, how);
        }
        self.run_affected(now, host);
    }

    /// Returns the connected queues.
    pub(super) fn queues(&self) -> Vec<NvmeQueueInfo> {
        let NvmeTargetState { subsystems, controllers, .. } = &self.shared;
        let info = |conn: &NvmeTargetConn<L>| {
            let queue = conn.queue.as_ref()?;
            let association = &controllers.get(queue.params.cntlid)?.association;
            let subsystem = association.subsystem.and_then(|index| subsystems.get(index));
            let (header_digest, data_digest) = conn.link.digests();
            Some(NvmeQueueInfo {
                remote: conn.remote,
                host: association.hostnqn,
                host_id: association.hostid,
                subsystem: subsystem.map_or_else(Nqn::discovery, |subsystem| subsystem.nqn),
                controller: queue.params.cntlid,
                queue: queue.params.qid,
                entries: queue.params.size,
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
        let Some(namespace) = shared.namespaces.get(place) else { return };
        let change = namespace.handle_opened(shared.member.queue(), host);
        let Some(change) = change else { return };
        shared.settle_namespace(now, place, change);
        self.run_affected(now, host);
    }

    /// Replaces the list of hosts that may connect to a subsystem. Returns false if the subsystem
    /// does not exist.
    pub(super) fn set_allowed_hosts(
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
        let discovery = |one: &&mut Controller| one.association.subsystem.is_none();
        for controller in shared.controllers.iter_mut().filter(discovery) {
            controller.events.discovery_changed();
        }
        self.run_affected(now, host);
        true
    }

    /// Handles ended disk operations.
    pub(super) fn handle_disk(&mut self, now: Instant, host: &mut L::Host, user: DiskUser) {
        if user != self.shared.disk_user {
            return;
        }
        while let Some((token, result)) = host.poll_read(user) {
            let id = NvmeOpId(token);
            if let Some(index) = self.connection_of(id) {
                self.with_connection(now, host, index, |turn| turn.handle_read(id, result));
            } else if let Some(mut op) = self.shared.ops.remove(id) {
                self.shared.counters.nvmet_orphans += 1;
                op.reading.take().into_iter().for_each(|extent| host.release(extent));
                self.shared.release_resources(&mut op);
            }
        }
        while let Some((token, buffer, result)) = host.poll_changed(user) {
            let id = NvmeOpId(token);
            if let Some(index) = self.connection_of(id) {
                self.with_connection(now, host, index, |turn| {
                    turn.handle_disk_change(id, buffer, result)
                });
            } else if let Some(mut op) = self.shared.ops.remove(id) {
                self.shared.counters.nvmet_orphans += 1;
                op.buffer = buffer.or_else(|| op.buffer.take());
                self.shared.release_resources(&mut op);
            }
        }
        self.run_affected(now, host);
    }

    /// Returns the index of the connection of an operation.
    fn connection_of(&self, id: NvmeOpId) -> Option<usize> {
        self.connection_index(self.shared.ops.get(id)?.owner?)
    }

    fn connection_index(&self, key: TargetConnId) -> Option<usize> {
        let conn = self.slots.get(key.index)?.as_ref()?;
        (conn.key == key).then_some(key.index)
    }

    /// Handles expired deadlines.
    pub(super) fn handle_timeout(&mut self, now: Instant, host: &mut L::Host) {
        while let Some(key) = self.deadlines.pop(now) {
            let index = key as usize;
            let Some(conn) = self.slots.get(index).and_then(Option::as_ref) else { continue };
            if let Some(why) = conn.check_deadlines(now, &mut self.shared) {
                self.end_and_log(now, host, index, why);
            } else {
                self.handle_socket(now, host, index);
            }
        }
        if self.ack_check_at.is_some_and(|at| at <= now) {
            for index in 0..self.slots.len() {
                let conn = self.slots.get(index).and_then(Option::as_ref);
                if conn.is_some_and(|conn| conn.unacked.has_locked_ranges()) {
                    self.with_connection(now, host, index, |turn| turn.release_acknowledged());
                }
            }
            self.expire_ranges(now, host);
        }
        self.run_affected(now, host);
    }

    /// Ends connections that have not acknowledged ranges for which other commands have waited too
    /// long. TCP does not end them: a peer that responds may keep its window closed forever (RFC
    /// 9293 section 3.8.6.1), or accept a byte now and then.
    fn expire_ranges(&mut self, now: Instant, host: &mut L::Host) {
        let ranges = self.shared.expired_lock_holders(now);
        if ranges.is_empty() {
            return;
        }
        for index in 0..self.slots.len() {
            let conn = self.slots.get(index).and_then(Option::as_ref);
            let waited_for = |kept| ranges.binary_search(&kept).is_ok();
            if conn.is_some_and(|conn| conn.unacked.locked_ranges().any(waited_for)) {
                self.shared.counters.nvmet_timeouts_acknowledge += 1;
                self.end_and_log(now, host, index, NOT_ACKNOWLEDGED);
            }
        }
    }

    /// Returns the time for [`Self::handle_timeout`]; may be early.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.next().into_iter().chain(self.ack_check_at).min()
    }

    /// Ends all connections. The caller has stopped listening.
    pub(super) fn drain(&mut self, now: Instant, host: &mut L::Host) {
        for index in 0..self.slots.len() {
            self.end_and_log(now, host, index, "target is shutting down");
        }
        self.run_affected(now, host);
    }

    /// Runs the connections affected by the previous turns until no work is left.
    pub(super) fn run_affected(&mut self, now: Instant, host: &mut L::Host) {
        loop {
            if let Some(key) = self.shared.to_disconnect.pop() {
                let index = self.connection_index(key);
                let why = "admin queue of the controller was closed";
                index.into_iter().for_each(|index| self.end_and_log(now, host, index, why));
            } else if let Some(abort) = self.shared.aborts.pop_front() {
                self.abort(now, host, abort);
            } else if let Some(id) = self.shared.ready.pop_front() {
                let index = self.connection_of(id);
                index.map(|index| self.with_connection(now, host, index, |turn| turn.execute(id)));
            } else if let Some(id) = self.next_waiting_for_buffer() {
                let index = self.connection_of(id);
                index.map(|index| {
                    self.with_connection(now, host, index, |turn| turn.request_data(id, true))
                });
            } else {
                break;
            }
        }
        self.close_files(host);
        self.report_events(now, host);
        let wanted = self.shared.waiting() > 0;
        self.ack_check_at = wanted
            .then(|| self.ack_check_at.filter(|at| *at > now).unwrap_or(now + LOCK_CHECK_INTERVAL));
    }

    /// Aborts a command if possible, then completes the Abort command.
    fn abort(&mut self, now: Instant, host: &mut L::Host, abort: PendingAbort) {
        let aborted = self.abort_command(now, host, abort);
        self.complete_abort(now, host, abort, aborted);
    }

    /// Aborts a command of this queue if possible. Returns whether it was aborted.
    pub(super) fn abort_command(
        &mut self,
        now: Instant,
        host: &mut L::Host,
        abort: PendingAbort,
    ) -> bool {
        let PendingAbort { queue, target, .. } = abort;
        let index = self.connection_index(queue);
        let aborted = index
            .and_then(|index| self.with_connection(now, host, index, |turn| turn.abort(target)));
        aborted == Some(true)
    }

    /// Completes an Abort command.
    pub(super) fn complete_abort(
        &mut self,
        now: Instant,
        host: &mut L::Host,
        abort: PendingAbort,
        aborted: bool,
    ) {
        let result = if aborted { 0 } else { NOT_ABORTED };
        if let Some(index) = self.connection_index(abort.admin) {
            self.with_connection(now, host, index, |turn| {
                turn.complete(abort.cid, result, NvmeStatus::SUCCESS)
            });
        }
    }

    /// Removes and returns the operation that has waited longest for memory, if its buffer is
    /// available.
    fn next_waiting_for_buffer(&mut self) -> Option<NvmeOpId> {
        let shared = &mut self.shared;
        loop {
            let id = *shared.waiting_for_buffer.front()?;
            let waits = |op: &&super::shared::NvmeOp| op.stage == NvmeOpStage::Memory;
            let Some(op) = shared.ops.get(id).filter(waits) else {
                shared.waiting_for_buffer.pop_front();
                continue;
            };
            if !shared.buffers.fits(op.data_len as usize) {
                return None;
            }
            return shared.waiting_for_buffer.pop_front();
        }
    }

    fn report_events(&mut self, now: Instant, host: &mut L::Host) {
        let mut due = Vec::new();
        for controller in self.shared.controllers.iter_mut() {
            while let Some((cid, event)) = controller.events.poll() {
                due.push((controller.admin, cid, event));
            }
        }
        for (key, cid, event) in due {
            let Some(index) = key.and_then(|key| self.connection_index(key)) else { continue };
            self.shared.counters.nvmet_events += 1;
            let value = u64::from(event.to_value());
            self.with_connection(now, host, index, |turn| {
                turn.complete(cid, value, NvmeStatus::SUCCESS)
            });
        }
    }

    /// Runs `work` on a connection and updates the connection's deadline.
    fn with_connection<R>(
        &mut self,
        now: Instant,
        host: &mut L::Host,
        index: usize,
        work: impl FnOnce(&mut TargetConnContext<'_, L>) -> R,
    ) -> Option<R> {
        let conn = self.slots.get_mut(index)?.as_mut()?;
        let mut turn = TargetConnContext { now, host, shared: &mut self.shared, conn };
        let result = work(&mut turn);
        if let (Some(at), Ok(key)) = (conn.deadline(&self.shared), u32::try_from(index)) {
            self.deadlines.set(key, at);
        }
        Some(result)
    }

    /// Handles the end of a connection.
    fn handle_end(
        &mut self,
        now: Instant,
        host: &mut L::Host,
        index: usize,
        how: NvmeTransportEnd,
    ) {
        self.log_end(now, index, how);
        let counters = &mut self.shared.counters;
        let gently = match how {
            NvmeTransportEnd::Closed => true,
            NvmeTransportEnd::Terminated(_) | NvmeTransportEnd::TerminatedByPeer(_) => {
                counters.nvmet_connections_terminated += 1;
                true
            }
            NvmeTransportEnd::Lost(SocketError::File(_)) => {
                counters.nvmet_connections_lost += 1;
                counters.nvmet_connections_unreadable += 1;
                self.with_connection(now, host, index, |turn| turn.mark_reads_suspect());
                false
            }
            NvmeTransportEnd::Lost(why) => {
                counters.nvmet_connections_lost += 1;
                self.count_insecure(index, why)
            }
            NvmeTransportEnd::Silent => {
                counters.nvmet_connections_lost += 1;
                false
            }
        };
        if gently
            && self.with_connection(now, host, index, |turn| turn.start_lingering()) == Some(true)
        {
            return;
        }
        self.remove_connection(now, host, index, gently);
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
            let plain = conn.link.insecure() == Some(SecureChannelError::Plain)
                || why == SocketError::Tls(TlsAlert::UnexpectedMessage);
            counters.nvmet_tls_plain += u64::from(plain);
        }
        ours
    }

    /// Logs the end of a connection, once.
    fn log_end(&mut self, now: Instant, index: usize, how: impl core::fmt::Display) {
        let Some(conn) = self.slots.get_mut(index).and_then(Option::as_mut) else { return };
        let log = &mut self.shared.log;
        match (conn.initiator_name.take(), conn.link.insecure()) {
            (Some(who), _) => log.add(now, conn.remote, format!("closed {who}: {how}")),
            (None, Some(why)) => log.add(now, conn.remote, format!("refused: {why}")),
            // The line was logged when it began to leave.
            (None, None) if conn.is_lingering() => {}
            (None, None) => log.add(now, conn.remote, format!("closed before Connect: {how}")),
        }
    }

    fn end_and_log(&mut self, now: Instant, host: &mut L::Host, index: usize, why: &str) {
        self.log_end(now, index, why);
        self.remove_connection(now, host, index, false);
    }

    fn remove_connection(&mut self, now: Instant, host: &mut L::Host, index: usize, gently: bool) {
        if self.with_connection(now, host, index, |turn| turn.release_all()).is_none() {
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
