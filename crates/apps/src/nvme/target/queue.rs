//! One connection of the target: from received PDUs to commands, and from completions to responses.
//!
//! A queue begins with Connect, which makes it the admin queue of a new controller or an I/O queue
//! of an existing one. `admin` answers admin commands at once; I/O commands become operations,
//! executed by `io`. Invariants: a command is completed once; its identifier is not accepted again
//! before that; no more commands are open than the queue has entries.

use std::collections::VecDeque;
use std::sync::Arc;

use base::{Duration, Instant};
use bytes::Bytes;
use host::SocketError;
use host::nvme::{NvmeDataMatch, NvmeDataSource, NvmeTransportEnd, NvmeTransportEvent};
use wire::Endpoint;
use wire::nvme::command::{FABRICS, NvmeCommand, NvmeCompletion, Sgl};
use wire::nvme::fabrics::ConnectResult;
use wire::nvme::pdu::{PduFault, at};
use wire::nvme::status::NvmeStatus;

use super::admin;
use super::backend::TargetTransport;
use super::common::{NvmeOpId, TargetConnId};
use super::connect::{self, ConnectRefusal, ConnectedQueueParams};
use super::controller::Controller;
use super::group::TargetMail;
use super::log::ConnectNames;
use super::shared::NvmeTargetState;
use super::shared_ranges::NamespaceLock;
use super::unacked_responses::{UnackedResponse, UnackedResponses};
use crate::pattern_inspection::ConnectionRules;

/// SQHD of a queue without flow control (fabrics section 3.3).
const NO_FLOW_CONTROL: u16 = 0xffff;
/// Limit of unacknowledged responses of a connection that has no queue yet.
const UNCONNECTED_RESPONSES_MAX: u16 = 32;
/// Interval at which a stalled or lingering connection checks for acknowledgments. The host
/// sends a notice only when everything is acknowledged, except for bytes that the device still
/// reads.
const ACK_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Multiple of `data_timeout` in which all data of one write has to arrive.
const WHOLE_WRITE_FACTOR: u64 = 4;

/// A connection of the target.
pub(super) struct NvmeTargetConn<L> {
    pub(super) link: L,
    pub(super) key: TargetConnId,
    /// The peer's address.
    pub(super) remote: Option<Endpoint>,
    /// The initiator that sent Connect, for the log line at the end.
    pub(super) initiator_name: Option<String>,
    /// Deadline for Connect; for a leaving connection, deadline for its acknowledgments.
    deadline_at: Instant,
    /// The connection has ended for its peer, and stays only until the peer has acknowledged data
    /// that the device may read again.
    lingering: bool,
    pub(super) queue: Option<NvmeTargetQueue>,
    /// Rules about patterns, if the data of the queue's commands is inspected.
    rules: ConnectionRules,
    /// The data of the capsule that is being received contains a denied pattern.
    is_capsule_denied: bool,
    pub(super) unacked: UnackedResponses,
    /// Time of the next check whether reading can continue or a lingering connection can end;
    /// `None` if neither is pending.
    recheck_at: Option<Instant>,
}

/// A connected queue.
pub(super) struct NvmeTargetQueue {
    pub(super) params: ConnectedQueueParams,
    /// Submission queue head.
    sqhd: u16,
    /// Number of open commands.
    open: u16,
    /// Bitmap of the identifiers of open commands.
    cids: Box<[u64; 1024]>,
    /// Operations that wait for data, indexed by transfer tag (TTAG).
    ops_by_ttag: Vec<Option<NvmeOpId>>,
    /// Number of tags in use.
    tags_used: usize,
    /// Time at which requested data last arrived or was first requested; `None` if none is awaited.
    data_progress_at: Option<Instant>,
    /// Tags with the times of their R2Ts, the oldest first.
    r2ts: VecDeque<(Instant, u16)>,
}

impl NvmeTargetQueue {
    fn new(is: ConnectedQueueParams) -> Self {
        Self {
            params: is,
            sqhd: 0,
            open: 0,
            cids: Box::new([0; 1024]),
            ops_by_ttag: Vec::new(),
            tags_used: 0,
            data_progress_at: None,
            r2ts: VecDeque::new(),
        }
    }

    pub(super) const fn open(&self) -> u16 {
        self.open
    }

    /// Opens a command. Returns false if its identifier is in use.
    fn open_command(&mut self, cid: u16) -> bool {
        let Some(word) = self.cids.get_mut(usize::from(cid / 64)) else { return false };
        let bit = 1 << (cid % 64);
        let free = *word & bit == 0;
        *word |= bit;
        self.open += u16::from(free);
        free
    }

    /// Closes a command. Returns the SQHD for its completion.
    fn close_command(&mut self, cid: u16) -> u16 {
        if let Some(word) = self.cids.get_mut(usize::from(cid / 64)) {
            *word &= !(1 << (cid % 64));
        }
        self.open = self.open.saturating_sub(1);
        self.advance_sqhd()
    }

    /// Advances the queue's head by one entry, as every completion does. Returns SQHD.
    fn advance_sqhd(&mut self) -> u16 {
        if !self.params.flow_control {
            return NO_FLOW_CONTROL;
        }
        self.sqhd = (self.sqhd + 1) % self.params.size;
        self.sqhd
    }

    /// Allocates a transfer tag for an operation.
    pub(super) fn tag(&mut self, now: Instant, id: NvmeOpId) -> Option<u16> {
        let index =
            self.ops_by_ttag.iter().position(Option::is_none).unwrap_or(self.ops_by_ttag.len());
        let tag = u16::try_from(index).ok()?;
        if index == self.ops_by_ttag.len() {
            self.ops_by_ttag.push(None);
        }
        *self.ops_by_ttag.get_mut(index)? = Some(id);
        if self.tags_used == 0 {
            self.data_progress_at = Some(now);
        }
        self.tags_used += 1;
        self.r2ts.push_back((now, tag));
        Some(tag)
    }

    fn tagged(&self, tag: u16) -> Option<NvmeOpId> {
        self.ops_by_ttag.get(usize::from(tag)).copied().flatten()
    }

    fn untag(&mut self, tag: u16) -> Option<NvmeOpId> {
        let id = self.ops_by_ttag.get_mut(usize::from(tag))?.take()?;
        self.tags_used -= 1;
        // Initiators usually send data in the order of the R2Ts.
        let place = self.r2ts.iter().position(|(_, asked)| *asked == tag);
        place.and_then(|place| self.r2ts.remove(place));
        if self.tags_used == 0 {
            self.data_progress_at = None;
        }
        Some(id)
    }
}

impl NvmeTargetQueue {
    /// Returns the deadline for awaited data: of any progress, and of all data of the oldest R2T.
    /// The second limit keeps a peer that sends a few bytes now and then from holding memory.
    fn data_deadline(&self, timeout: Duration) -> Option<Instant> {
        let silent = self.data_progress_at.map(|since| since + timeout);
        let whole = self.r2ts.front().map(|(since, _)| *since + timeout * WHOLE_WRITE_FACTOR);
        silent.into_iter().chain(whole).min()
    }
}

/// One connection during its turn, with everything that it may access.
pub(super) struct TargetConnContext<'a, L: TargetTransport> {
    pub(super) now: Instant,
    pub(super) host: &'a mut L::Host,
    pub(super) shared: &'a mut NvmeTargetState,
    pub(super) conn: &'a mut NvmeTargetConn<L>,
}

impl<L: TargetTransport> TargetConnContext<'_, L> {
    /// Handles everything that was received. Returns the reason if the connection ended.
    pub(super) fn run(&mut self) -> Option<NvmeTransportEnd> {
        while !self.is_stalled() {
            let Some(incoming) = self.poll_link() else { break };
            match incoming {
                NvmeTransportEvent::Command { .. } | NvmeTransportEvent::WriteData { .. }
                    if self.conn.lingering => {}
                NvmeTransportEvent::Command { sqe, data, digest_ok } => {
                    self.handle_command(&NvmeCommand::parse(&sqe), data, digest_ok);
                }
                NvmeTransportEvent::WriteData { ttag, digest_ok, .. } => {
                    self.handle_write_data(ttag, digest_ok);
                }
                NvmeTransportEvent::Buffer { tag, buffer } => {
                    let queue = self.conn.queue.as_mut();
                    if let Some(id) = queue.and_then(|queue| queue.untag(tag)) {
                        self.handle_buffer(id, buffer);
                    }
                }
                NvmeTransportEvent::Ended(how) => return Some(how),
                NvmeTransportEvent::Ready => {
                    let secure = u64::from(self.conn.link.identity().is_some());
                    self.shared.counters.nvmet_tls_handshakes += secure;
                }
                // Sent to initiators only.
                NvmeTransportEvent::Response(_)
                | NvmeTransportEvent::ReadData { .. }
                | NvmeTransportEvent::R2t { .. } => {}
            }
        }
        self.release_acknowledged();
        // A leaving connection ends once all data that may have to be retransmitted is
        // acknowledged.
        self.conn.lingering.then(|| self.linger_until_delivered()).flatten()
    }

    /// Returns the next event of the connection. Matches in its data are counted, and mark commands
    /// as denied.
    fn poll_link(&mut self) -> Option<NvmeTransportEvent> {
        let NvmeTargetConn { link, rules, queue, is_capsule_denied, .. } = &mut *self.conn;
        let NvmeTargetState { inspection, ops, .. } = &mut *self.shared;
        link.poll(self.now, self.host, &mut |NvmeDataMatch { ttag, pattern, .. }| {
            if inspection.admits_match(rules, pattern) {
                return;
            }
            match ttag {
                None => *is_capsule_denied = true,
                Some(tag) => {
                    let op = queue.as_ref().and_then(|queue| queue.tagged(tag));
                    let op = op.and_then(|id| ops.get_mut(id));
                    op.into_iter().for_each(|op| op.is_denied = true);
                }
            }
        })
    }

    /// Returns whether data that the device may read again can still be delivered.
    fn has_undelivered_reads(&self) -> bool {
        let delivers = match self.conn.link.error(self.host) {
            // After a TLS error, TCP still delivers the records that were encrypted before, and the
            // alert.
            None | Some(SocketError::Tls(_) | SocketError::TlsHandshake) => true,
            Some(_) => false,
        };
        self.conn.unacked.has_locked_ranges() && delivers
    }

    /// Handles the end of the connection for its peer. Returns true if the connection stays until
    /// sent data is delivered; the ranges of that data stay locked until then.
    pub(super) fn start_lingering(&mut self) -> bool {
        self.release_acknowledged();
        let stays = self.has_undelivered_reads();
        if stays {
            self.detach_operations();
            self.remove_queue();
            let _stays = self.linger_until_delivered();
        }
        stays
    }

    /// Stops handling received commands and data. Returns an end if the connection can be closed
    /// now.
    pub(super) fn linger_until_delivered(&mut self) -> Option<NvmeTransportEnd> {
        if !self.conn.lingering {
            self.conn.lingering = true;
            self.conn.deadline_at = self.now + self.shared.config.send_timeout;
        }
        let stays = self.has_undelivered_reads();
        self.conn.recheck_at = stays.then(|| self.now + ACK_CHECK_INTERVAL);
        (!stays).then_some(NvmeTransportEnd::Closed)
    }

    /// Returns whether reading stops because the peer has too many unacknowledged responses. If the
    /// connection is lost, reading continues, and responses are discarded.
    fn is_stalled(&mut self) -> bool {
        let entries =
            self.conn.queue.as_ref().map_or(UNCONNECTED_RESPONSES_MAX, |queue| queue.params.size);
        let before = self.conn.recheck_at.take();
        if self.conn.lingering || !self.conn.unacked.is_limit_reached(entries) {
            return false;
        }
        self.release_acknowledged();
        let over = self.conn.link.error(self.host).is_some();
        if over || !self.conn.unacked.is_limit_reached(entries) {
            return false;
        }
        self.shared.counters.nvmet_stalls += u64::from(before.is_none());
        self.conn.recheck_at = Some(self.now + ACK_CHECK_INTERVAL);
        true
    }

    /// Drops the responses that the peer has acknowledged, and unlocks their ranges.
    pub(super) fn release_acknowledged(&mut self) {
        if self.conn.unacked.is_empty() {
            return;
        }
        let acknowledged = self.conn.link.acknowledged(self.host);
        while let Some(answer) = self.conn.unacked.pop(acknowledged) {
            if let Some((place, lock)) = answer.locked_range {
                self.shared.unlock(place, NamespaceLock::Shared(lock));
            }
        }
    }

    /// Marks all unacknowledged read ranges as suspect, after the disk failed to read data that was
    /// being sent; it is not known which. The next reads of these ranges are checked before data is
    /// sent, and fail if the disk cannot read them.
    pub(super) fn mark_reads_suspect(&mut self) {
        for (place, lock) in self.conn.unacked.locked_ranges() {
            let Some(namespace) = self.shared.namespaces.get(place) else { continue };
            if let Some(range) = namespace.locks.range(lock) {
                namespace.shared.mark_suspect(range);
            }
        }
    }

    fn handle_command(&mut self, command: &NvmeCommand, data: Bytes, digest_ok: bool) {
        let cid = command.cid;
        let is_denied = core::mem::take(&mut self.conn.is_capsule_denied);
        let Some(queue) = &mut self.conn.queue else {
            return self.handle_first(command, &data, digest_ok);
        };
        let ConnectedQueueParams { cntlid, qid, size, .. } = queue.params;
        if queue.open >= size {
            return self.refuse_overflow(cid);
        }
        if !queue.open_command(cid) {
            // The open command with this identifier is unaffected, but this entry was consumed.
            let sqhd = queue.advance_sqhd();
            let status = NvmeStatus::COMMAND_ID_CONFLICT.do_not_retry();
            self.count_failed(cid, status);
            return self.respond(&NvmeCompletion { result: 0, sqhd, cid, status });
        }
        if let Some(controller) = self.shared.controllers.get(cntlid) {
            controller.association.note_command(self.shared.member.queue(), self.now);
        }
        if qid != 0 {
            return self.handle_io(command, data, (digest_ok, is_denied));
        }
        self.shared.counters.nvmet_admin_commands += 1;
        let answer = match check(command, digest_ok) {
            Err(status) => admin::AdminResponse::Failed(status),
            Ok(()) if command.opcode == FABRICS => admin::fabrics(self.shared, cntlid, command),
            Ok(()) => admin::admin(self.shared, cntlid, command),
        };
        match answer {
            admin::AdminResponse::Value(result) => self.complete(cid, result, NvmeStatus::SUCCESS),
            admin::AdminResponse::Failed(status) => self.complete(cid, 0, status),
            admin::AdminResponse::Data(page) => self.complete_with_page(command, page),
            admin::AdminResponse::Pending => {}
        }
    }

    /// Refuses a command that exceeds the queue's entries; the open ones are executed. The targets
    /// of Linux and SPDK end such a connection without a reason, as a controller may. Here the
    /// status and the log name the error. Command Sequence Error is the generic status code for a
    /// protocol violation by several commands together; Do Not Retry is not set, since the command
    /// itself is valid.
    fn refuse_overflow(&mut self, cid: u16) {
        let Some(queue) = &mut self.conn.queue else { return };
        let ConnectedQueueParams { size, qid, .. } = queue.params;
        let sqhd = queue.advance_sqhd();
        let status = NvmeStatus::COMMAND_SEQUENCE.with_more();
        self.count_failed(cid, status);
        self.shared.counters.nvmet_queue_overflows += 1;
        let who = self.conn.initiator_name.as_deref().unwrap_or("");
        let why =
            format!("command {cid} refused {who}: all {size} entries of queue {qid} are in use");
        self.shared.log.add(self.now, self.conn.remote, why);
        self.respond(&NvmeCompletion { result: 0, sqhd, cid, status });
    }

    /// Handles the first command of a connection, which has to be Connect.
    fn handle_first(&mut self, command: &NvmeCommand, data: &[u8], digest_ok: bool) {
        let key = self.conn.key;
        let checked = check(command, digest_ok).and_then(|()| in_capsule(command, data));
        let checked = checked.map_err(|status| {
            ConnectRefusal::new(
                ConnectResult::Refused(status),
                format!("first command failed: {status}"),
            )
        });
        let connected = match checked {
            Ok(()) => {
                let identity = self.conn.link.identity();
                connect::connect(self.now, self.shared, (key, identity), command, data)
            }
            Err(refused) => Err(refused),
        };
        self.log_connect(&connected, data);
        let counters = &mut self.shared.counters;
        let cid = command.cid;
        let completion = match connected {
            Ok(is) => {
                let mut queue = NvmeTargetQueue::new(is);
                let sqhd = queue.advance_sqhd();
                self.conn.queue = Some(queue);
                if is.qid != 0 {
                    self.start_inspection();
                }
                let result = ConnectResult::Accepted { cntlid: is.cntlid, authentication: 0 };
                let (dword0, status) = result.to_completion();
                NvmeCompletion { result: u64::from(dword0), sqhd, cid, status }
            }
            Err(refused) => {
                let (dword0, status) = refused.result.to_completion();
                *match status.code() {
                    NvmeStatus::INVALID_HOST => &mut counters.nvmet_refused_host,
                    NvmeStatus::CONTROLLER_BUSY => &mut counters.nvmet_refused_busy,
                    _ => &mut counters.nvmet_refused_connect,
                } += 1;
                NvmeCompletion { result: u64::from(dword0), sqhd: 0, cid, status }
            }
        };
        self.respond(&completion);
    }

    /// Begins to inspect the data of the commands of an I/O queue, if there are rules.
    fn start_inspection(&mut self) {
        let conn = &mut *self.conn;
        conn.rules = self.shared.inspection.rules();
        if let Some(patterns) = conn.rules.patterns() {
            conn.link.start_inspection(self.now, self.host, patterns);
        }
    }

    /// Logs the result of a Connect.
    fn log_connect(
        &mut self,
        connected: &Result<ConnectedQueueParams, ConnectRefusal>,
        data: &[u8],
    ) {
        let caller = ConnectNames(data);
        let line = match connected {
            Ok(ConnectedQueueParams { cntlid, qid, size, .. }) => {
                let who = format!("{caller} controller={cntlid} queue={qid}");
                let (header, data) = self.conn.link.digests();
                let digests = match (header, data) {
                    (false, false) => "none",
                    (true, false) => "header",
                    (false, true) => "data",
                    (true, true) => "header,data",
                };
                let tls = if self.conn.link.identity().is_some() { " tls=psk" } else { "" };
                let line = format!("connected {who} entries={size} digests={digests}{tls}");
                self.conn.initiator_name = Some(who);
                line
            }
            Err(ConnectRefusal { result, why }) => {
                format!("refused {caller}: {why} ({})", result.to_completion().1)
            }
        };
        self.shared.log.add(self.now, self.conn.remote, line);
    }

    /// Handles a part of a write's data. The transport has checked its command, its offset and
    /// whether it may be the last; it ends a violating connection at the header, before any data.
    fn handle_write_data(&mut self, tag: u16, digest_ok: bool) {
        let Some(queue) = &mut self.conn.queue else { return };
        let Some(op) = queue.tagged(tag).and_then(|id| self.shared.ops.get_mut(id)) else {
            return self.terminate(PduFault::field(at::TTAG));
        };
        op.digest_failed |= !digest_ok;
        queue.data_progress_at = Some(self.now);
    }

    /// Completes a command.
    pub(super) fn complete(&mut self, cid: u16, result: u64, status: NvmeStatus) {
        if !status.is_success() {
            self.count_failed(cid, status);
        }
        self.close_and_respond(cid, result, status);
    }

    /// Completes a command whose data contains a denied pattern.
    pub(super) fn complete_denied(&mut self, cid: u16) {
        self.shared.counters.nvmet_errors_denied += 1;
        let status = NvmeStatus::ACCESS_DENIED.do_not_retry();
        self.record_error(cid, status);
        self.close_and_respond(cid, 0, status);
    }

    fn close_and_respond(&mut self, cid: u16, result: u64, status: NvmeStatus) {
        let Some(queue) = &mut self.conn.queue else { return };
        let sqhd = queue.close_command(cid);
        self.respond(&NvmeCompletion { result, sqhd, cid, status });
    }

    /// Completes a read with its data. The range `locked_range` stays locked until the peer
    /// acknowledges.
    pub(super) fn complete_with_data(
        &mut self,
        cid: u16,
        data: &NvmeDataSource,
        kept: Option<(usize, NamespaceLock)>,
    ) {
        // With flow control a completion is needed to report SQHD (tcp section 3.3.2.2).
        let success = self.conn.queue.as_ref().is_some_and(|queue| !queue.params.flow_control);
        let mut mark = self.conn.link.send_data(self.now, self.host, cid, data, success);
        let sqhd = self.conn.queue.as_mut().map_or(0, |queue| queue.close_command(cid));
        if !success {
            let completion = NvmeCompletion { result: 0, sqhd, cid, status: NvmeStatus::SUCCESS };
            mark = self.conn.link.send_response(self.now, self.host, &completion.to_bytes());
        }
        let bytes = match data {
            NvmeDataSource::Memory(memory) => memory.len(),
            NvmeDataSource::File { .. } => 0,
        };
        // Only reads are sent, and their locks are shared.
        let locked_range = kept.and_then(|(place, lock)| match lock {
            NamespaceLock::Shared(lock) => Some((place, lock)),
            NamespaceLock::Exclusive(_) => None,
        });
        self.conn.unacked.push(UnackedResponse { mark, bytes, locked_range });
    }

    /// Completes a command with a page, which must be as long as the host's SGL describes.
    fn complete_with_page(&mut self, command: &NvmeCommand, page: Vec<u8>) {
        let wanted = match command.sgl {
            Sgl::Transport { len } => len as usize,
            _ => return self.complete(command.cid, 0, SGL_TYPE),
        };
        if wanted != page.len() {
            return self.complete(command.cid, 0, SGL_LENGTH);
        }
        self.complete_with_data(command.cid, &NvmeDataSource::Memory(Bytes::from(page)), None);
    }

    fn respond(&mut self, completion: &NvmeCompletion) {
        let mark = self.conn.link.send_response(self.now, self.host, &completion.to_bytes());
        self.conn.unacked.push(UnackedResponse { mark, bytes: 0, locked_range: None });
    }

    fn count_failed(&mut self, cid: u16, status: NvmeStatus) {
        self.shared.counters.count_failed(status);
        self.record_error(cid, status);
    }

    fn record_error(&mut self, cid: u16, status: NvmeStatus) {
        let Some(queue) = &self.conn.queue else { return };
        if let Some(controller) = self.shared.controllers.get(queue.params.cntlid) {
            controller.association.record_error(queue.params.qid, cid, status);
        }
    }

    pub(super) fn terminate(&mut self, why: PduFault) {
        self.conn.link.terminate(self.now, self.host, why);
    }

    /// Detaches all operations of the connection and returns their command identifiers. Disk
    /// operations continue without an owner and keep their range locked until they end.
    pub(super) fn detach_operations(&mut self) -> Vec<u16> {
        let mut cids = Vec::new();
        for id in self.shared.ops.of_connection(self.conn.key) {
            let Some(op) = self.shared.ops.get_mut(id) else { continue };
            cids.push(op.cid);
            if op.at_disk() {
                op.owner = None;
            } else if let Some(mut op) = self.shared.ops.remove(id) {
                self.shared.release_resources(&mut op);
            }
        }
        cids
    }

    /// Releases everything that an ended connection held.
    pub(super) fn release_all(&mut self) {
        self.detach_operations();
        let answers = core::mem::take(&mut self.conn.unacked);
        for (place, lock) in answers.locked_ranges() {
            self.shared.unlock(place, NamespaceLock::Shared(lock));
        }
        self.remove_queue();
    }

    fn remove_queue(&mut self) {
        let Some(queue) = self.conn.queue.take() else { return };
        let ConnectedQueueParams { cntlid, qid, .. } = queue.params;
        let shared = &mut *self.shared;
        if qid != 0 {
            if let Some(controller) = shared.controllers.get(cntlid) {
                controller.association.remove_queue(qid);
            }
        } else if let Some(Controller { association, .. }) = shared.controllers.remove(cntlid) {
            // The association ends with its admin queue. An I/O queue that is being connected
            // elsewhere was admitted before this, so its queue of the target reads the mail later.
            shared.member.associations().remove(cntlid);
            shared.end_io_queues(&association);
            shared.member.broadcast(|| TargetMail::AssociationEnded(Arc::clone(&association)));
        }
    }
}

impl<L: TargetTransport> NvmeTargetConn<L> {
    /// Creates a connection that has to send Connect before `deadline_at`.
    pub(super) fn new(
        link: L,
        (key, remote): (TargetConnId, Option<Endpoint>),
        until: Instant,
    ) -> Self {
        Self {
            link,
            key,
            remote,
            initiator_name: None,
            deadline_at: until,
            lingering: false,
            queue: None,
            rules: ConnectionRules::default(),
            is_capsule_denied: false,
            unacked: UnackedResponses::default(),
            recheck_at: None,
        }
    }

    /// Returns the time of the connection's next turn if nothing is received before.
    pub(super) fn deadline(&self, shared: &NvmeTargetState) -> Option<Instant> {
        let queue = self.queue.as_ref().filter(|_| !self.lingering);
        let until = queue.is_none().then_some(self.deadline_at);
        let data = queue.and_then(|queue| queue.data_deadline(shared.config.data_timeout));
        let admin = queue.filter(|queue| queue.params.qid == 0);
        let alive = admin
            .and_then(|queue| shared.controllers.get(queue.params.cntlid))
            .and_then(|controller| controller.expires());
        let own = [until, data, alive, self.recheck_at, self.link.poll_timeout()];
        own.into_iter().flatten().min()
    }

    /// Returns whether the connection has ended for its peer and stays only to deliver sent data.
    pub(super) const fn is_lingering(&self) -> bool {
        self.lingering
    }

    /// Counts an expired deadline and returns it as the reason for which the connection has to end.
    pub(super) fn check_deadlines(
        &self,
        now: Instant,
        shared: &mut NvmeTargetState,
    ) -> Option<&'static str> {
        let Some(queue) = self.queue.as_ref().filter(|_| !self.lingering) else {
            let counters = &mut shared.counters;
            let (counter, why) = match self.lingering {
                true => (&mut counters.nvmet_timeouts_acknowledge, NOT_ACKNOWLEDGED),
                false => (&mut counters.nvmet_timeouts_connect, "timed out waiting for Connect"),
            };
            *counter += u64::from(now >= self.deadline_at);
            return (now >= self.deadline_at).then_some(why);
        };
        let over = |at: Option<Instant>| at.is_some_and(|at| now >= at);
        if over(queue.data_deadline(shared.config.data_timeout)) {
            shared.counters.nvmet_timeouts_data += 1;
            return Some("timed out waiting for data of a write");
        }
        let controller =
            shared.controllers.get(queue.params.cntlid).filter(|_| queue.params.qid == 0);
        let silent = over(controller.and_then(|controller| controller.expires()));
        shared.counters.nvmet_timeouts_keep_alive += u64::from(silent);
        silent.then_some("keep-alive timer expired")
    }
}

/// Reason in the log if a peer does not acknowledge.
pub(super) const NOT_ACKNOWLEDGED: &str = "timed out waiting for acknowledgments";
pub(super) const SGL_TYPE: NvmeStatus = NvmeStatus::SGL_TYPE_INVALID.do_not_retry();
pub(super) const SGL_LENGTH: NvmeStatus = NvmeStatus::SGL_LENGTH_INVALID.do_not_retry();

/// Checks the requirements of every command over Fabrics.
pub(super) fn check(command: &NvmeCommand, digest_ok: bool) -> Result<(), NvmeStatus> {
    if !digest_ok {
        // The initiator may retry (tcp section 3.3.1.2).
        return Err(NvmeStatus::TRANSIENT_TRANSPORT);
    }
    if command.is_fused() || !command.has_sgl() {
        return Err(NvmeStatus::INVALID_FIELD.do_not_retry());
    }
    Ok(())
}

/// Checks that all data of a command is in its capsule, immediately after the queue entry.
pub(super) fn in_capsule(command: &NvmeCommand, data: &[u8]) -> Result<(), NvmeStatus> {
    match command.sgl {
        Sgl::InCapsule { offset, .. } if offset != 0 => {
            Err(NvmeStatus::SGL_OFFSET_INVALID.do_not_retry())
        }
        Sgl::InCapsule { len, .. } if len as usize == data.len() => Ok(()),
        Sgl::InCapsule { .. } => Err(SGL_LENGTH),
        _ => Err(SGL_TYPE),
    }
}
