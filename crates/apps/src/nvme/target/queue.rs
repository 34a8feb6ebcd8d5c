//! One connection: from what comes on it to commands, and back to completions.
//!
//! A queue begins with Connect, which makes it the admin queue of a new controller or an I/O queue
//! of one that there is. `admin` answers the commands of the former at once; those of the latter
//! are operations, which `io` does. Invariants: a command is completed once; its identifier is not
//! taken for another before that; no more commands are open than the queue has entries.

use std::collections::VecDeque;

use base::{Duration, Instant};
use bytes::Bytes;
use host::SocketError;
use host::nvme::{Ended, Incoming, Source};
use wire::Endpoint;
use wire::nvme::command::{Command, Completion, FABRICS, Sgl};
use wire::nvme::fabrics::ConnectResult;
use wire::nvme::pdu::{Fault, at};
use wire::nvme::status::Status;

use super::admin;
use super::answers::{Answer, Answers};
use super::connect::{self, Connected, Refused};
use super::controller::ConnKey;
use super::link::Link;
use super::locks::LockId;
use super::log::Caller;
use super::shared::{OpId, Shared};

/// SQHD of a queue without flow control (fabrics, section 3.3).
const NO_FLOW_CONTROL: u16 = 0xffff;
/// Answers that are not acknowledged before there is a queue, which has entries.
const UNCONNECTED: u16 = 32;
/// How often it is looked whether answers are acknowledged, and more is taken: the host tells of
/// that when everything is, but for bytes that the device still reads.
const STALL: Duration = Duration::from_millis(500);
/// How many times as long as a host may send nothing all the data of one write may take.
const WHOLE_WRITE: u64 = 4;

/// A connection.
pub(super) struct Conn<L> {
    pub(super) link: L,
    pub(super) key: ConnKey,
    /// The peer's address.
    pub(super) remote: Option<Endpoint>,
    /// The host that has connected it, for the log line of its end.
    pub(super) who: Option<String>,
    /// Until when it has to be connected; once it leaves, until when it may stay.
    until: Instant,
    /// It is over for its peer, and stays only until that has what the device may read again.
    leaves: bool,
    pub(super) queue: Option<Queue>,
    pub(super) answers: Answers,
    /// When to look whether more can be taken of what came, or it can end; none where it could.
    stalled: Option<Instant>,
}

/// A queue that is connected.
pub(super) struct Queue {
    pub(super) is: Connected,
    /// Submission queue head.
    sqhd: u16,
    /// Commands that are open.
    open: u16,
    /// Identifiers of open commands, a bit for each.
    cids: Box<[u64; 1024]>,
    /// Operations that wait for data, by their tags.
    tags: Vec<Option<OpId>>,
    /// Tags in use.
    tags_used: usize,
    /// Since when nothing came of the data that was asked for; none where none was.
    data_since: Option<Instant>,
    /// When what is under a tag was asked for, the oldest first.
    asked: VecDeque<(Instant, u16)>,
}

impl Queue {
    fn new(is: Connected) -> Self {
        Self {
            is,
            sqhd: 0,
            open: 0,
            cids: Box::new([0; 1024]),
            tags: Vec::new(),
            tags_used: 0,
            data_since: None,
            asked: VecDeque::new(),
        }
    }

    /// Commands that are open.
    pub(super) const fn open(&self) -> u16 {
        self.open
    }

    /// Takes a command in; says whether its identifier was free.
    fn begin(&mut self, cid: u16) -> bool {
        let Some(word) = self.cids.get_mut(usize::from(cid / 64)) else { return false };
        let bit = 1 << (cid % 64);
        let free = *word & bit == 0;
        *word |= bit;
        self.open += u16::from(free);
        free
    }

    /// A command is over: what its completion says of the queue.
    fn finish(&mut self, cid: u16) -> u16 {
        if let Some(word) = self.cids.get_mut(usize::from(cid / 64)) {
            *word &= !(1 << (cid % 64));
        }
        self.open = self.open.saturating_sub(1);
        self.advance()
    }

    /// The queue's head moves on, one entry for each completion.
    fn advance(&mut self) -> u16 {
        if !self.is.flow_control {
            return NO_FLOW_CONTROL;
        }
        self.sqhd = (self.sqhd + 1) % self.is.size;
        self.sqhd
    }

    /// A tag for an operation.
    pub(super) fn tag(&mut self, now: Instant, id: OpId) -> Option<u16> {
        let index = self.tags.iter().position(Option::is_none).unwrap_or(self.tags.len());
        let tag = u16::try_from(index).ok()?;
        if index == self.tags.len() {
            self.tags.push(None);
        }
        *self.tags.get_mut(index)? = Some(id);
        if self.tags_used == 0 {
            self.data_since = Some(now);
        }
        self.tags_used += 1;
        self.asked.push_back((now, tag));
        Some(tag)
    }

    fn tagged(&self, tag: u16) -> Option<OpId> {
        self.tags.get(usize::from(tag)).copied().flatten()
    }

    fn untag(&mut self, tag: u16) -> Option<OpId> {
        let id = self.tags.get_mut(usize::from(tag))?.take()?;
        self.tags_used -= 1;
        // Hosts send in the order in which they were asked.
        let place = self.asked.iter().position(|(_, asked)| *asked == tag);
        place.and_then(|place| self.asked.remove(place));
        if self.tags_used == 0 {
            self.data_since = None;
        }
        Some(id)
    }
}

impl Queue {
    /// When data has to have come: some of it, and all that was asked for first. A few bytes now
    /// and then would keep the memory of all writes.
    fn data_deadline(&self, timeout: Duration) -> Option<Instant> {
        let silent = self.data_since.map(|since| since + timeout);
        let whole = self.asked.front().map(|(since, _)| *since + timeout * WHOLE_WRITE);
        silent.into_iter().chain(whole).min()
    }
}

/// A connection's turn: all that it may touch.
pub(super) struct Turn<'a, L: Link> {
    pub(super) now: Instant,
    pub(super) host: &'a mut L::Host,
    pub(super) shared: &'a mut Shared,
    pub(super) conn: &'a mut Conn<L>,
}

impl<L: Link> Turn<'_, L> {
    /// Takes all that came; says how the connection ended, if so.
    pub(super) fn run(&mut self) -> Option<Ended> {
        while !self.is_stalled() {
            let Some(incoming) = self.conn.link.poll(self.now, self.host) else { break };
            match incoming {
                Incoming::Command { .. } | Incoming::WriteData { .. } if self.conn.leaves => {}
                Incoming::Command { sqe, data, digest_ok } => {
                    self.handle_command(&Command::parse(&sqe), data, digest_ok);
                }
                Incoming::WriteData { ttag, digest_ok, .. } => {
                    self.handle_write_data(ttag, digest_ok);
                }
                Incoming::Buffer { tag, buffer } => {
                    let queue = self.conn.queue.as_mut();
                    if let Some(id) = queue.and_then(|queue| queue.untag(tag)) {
                        self.handle_buffer(id, buffer);
                    }
                }
                Incoming::Ended(how) => return Some(how),
                Incoming::Ready => {
                    let secure = u64::from(self.conn.link.identity().is_some());
                    self.shared.counters.nvmet_tls_handshakes += secure;
                }
                // The rest is said to initiators only.
                Incoming::Response(_) | Incoming::ReadData { .. } | Incoming::R2t { .. } => {}
            }
        }
        self.release_acknowledged();
        // What was sent may have to be read again until it has arrived.
        self.conn.leaves.then(|| self.leave()).flatten()
    }

    /// Whether what the device may read again, for a retransmission, can still arrive.
    fn has_to_stay(&self) -> bool {
        let delivers = match self.conn.link.error(self.host) {
            // TCP does, where our TLS has ended: what was sealed, and then the alert.
            None | Some(SocketError::Tls(_) | SocketError::TlsHandshake) => true,
            Some(_) => false,
        };
        self.conn.answers.keep() && delivers
    }

    /// The connection is over for its peer. Says whether it stays nevertheless: what was sent is
    /// delivered before it is closed, and the ranges of that are kept until then.
    pub(super) fn lingers(&mut self) -> bool {
        self.release_acknowledged();
        let stays = self.has_to_stay();
        if stays {
            self.let_go();
            self.remove_queue();
            let _stays = self.leave();
        }
        stays
    }

    /// Nothing more is taken of what comes; says when the connection can end.
    pub(super) fn leave(&mut self) -> Option<Ended> {
        if !self.conn.leaves {
            self.conn.leaves = true;
            self.conn.until = self.now + self.shared.config.send_timeout;
        }
        let stays = self.has_to_stay();
        self.conn.stalled = stays.then(|| self.now + STALL);
        (!stays).then_some(Ended::Closed)
    }

    /// Whether nothing more is taken of what came, since the peer has not acknowledged what it was
    /// answered. What comes on a connection that is lost is not answered, and goes nowhere.
    fn is_stalled(&mut self) -> bool {
        let entries = self.conn.queue.as_ref().map_or(UNCONNECTED, |queue| queue.is.size);
        let before = self.conn.stalled.take();
        if self.conn.leaves || !self.conn.answers.are_too_many(entries) {
            return false;
        }
        self.release_acknowledged();
        let over = self.conn.link.error(self.host).is_some();
        if over || !self.conn.answers.are_too_many(entries) {
            return false;
        }
        self.shared.counters.nvmet_stalls += u64::from(before.is_none());
        self.conn.stalled = Some(self.now + STALL);
        true
    }

    /// Forgets the answers whose bytes the peer has, and gives their ranges back.
    pub(super) fn release_acknowledged(&mut self) {
        if self.conn.answers.is_empty() {
            return;
        }
        let acknowledged = self.conn.link.acknowledged(self.host);
        while let Some(answer) = self.conn.answers.pop(acknowledged) {
            if let Some((place, lock)) = answer.kept {
                self.shared.unlock(place, lock);
            }
        }
    }

    /// The disk could not read something that was being sent. What that was is not known: the next
    /// reads of any of it look first whether they can be answered, and fail if not.
    pub(super) fn suspect_reads(&mut self) {
        for (place, lock) in self.conn.answers.kept() {
            let Some(namespace) = self.shared.namespaces.get_mut(place) else { continue };
            if let Some(range) = namespace.locks.range(lock) {
                namespace.suspect(range);
            }
        }
    }

    fn handle_command(&mut self, command: &Command, data: Bytes, digest_ok: bool) {
        let cid = command.cid;
        let Some(queue) = &mut self.conn.queue else {
            return self.handle_first(command, &data, digest_ok);
        };
        let Connected { cntlid, qid, size, .. } = queue.is;
        if queue.open >= size {
            return self.refuse_overflow(cid);
        }
        if !queue.begin(cid) {
            // Nothing is said of the command that is open; this entry was taken nevertheless.
            let sqhd = queue.advance();
            let status = Status::COMMAND_ID_CONFLICT.do_not_retry();
            self.note_failed(cid, status);
            return self.answer(&Completion { result: 0, sqhd, cid, status });
        }
        if let Some(controller) = self.shared.controllers.get_mut(cntlid) {
            controller.heard = self.now;
        }
        if qid != 0 {
            return self.handle_io(command, data, digest_ok);
        }
        self.shared.counters.nvmet_admin_commands += 1;
        let answer = match check(command, digest_ok) {
            Err(status) => admin::Answer::Failed(status),
            Ok(()) if command.opcode == FABRICS => admin::fabrics(self.shared, cntlid, command),
            Ok(()) => admin::admin(self.shared, cntlid, command),
        };
        match answer {
            admin::Answer::Value(result) => self.complete(cid, result, Status::SUCCESS),
            admin::Answer::Failed(status) => self.complete(cid, 0, status),
            admin::Answer::Data(page) => self.complete_with_page(command, page),
            admin::Answer::Held => {}
        }
    }

    /// Refuses a command of a host that has sent more than the queue has entries; the others are
    /// done. Linux's and SPDK's targets end such a connection without a word, as a controller may.
    /// The status and the log say here what the host did wrong: of the generic status codes Command
    /// Sequence Error is that for a violation of the protocol by several commands together, without
    /// Do Not Retry, since the command itself is good.
    fn refuse_overflow(&mut self, cid: u16) {
        let Some(queue) = &mut self.conn.queue else { return };
        let Connected { size, qid, .. } = queue.is;
        let sqhd = queue.advance();
        let status = Status::COMMAND_SEQUENCE.with_more();
        self.note_failed(cid, status);
        self.shared.counters.nvmet_queue_overflows += 1;
        let who = self.conn.who.as_deref().unwrap_or("");
        let why =
            format!("command {cid} refused {who}: queue {qid} has {size} entries, all in use");
        self.shared.log.add(self.now, self.conn.remote, why);
        self.answer(&Completion { result: 0, sqhd, cid, status });
    }

    /// The first command: it has to be Connect.
    fn handle_first(&mut self, command: &Command, data: &[u8], digest_ok: bool) {
        let key = self.conn.key;
        let checked = check(command, digest_ok).and_then(|()| in_capsule(command, data));
        let checked = checked.map_err(|status| {
            Refused::new(ConnectResult::Refused(status), format!("its first command: {status}"))
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
                let mut queue = Queue::new(is);
                let sqhd = queue.advance();
                self.conn.queue = Some(queue);
                let result = ConnectResult::Accepted { cntlid: is.cntlid, authentication: 0 };
                let (dword0, status) = result.to_completion();
                Completion { result: u64::from(dword0), sqhd, cid, status }
            }
            Err(refused) => {
                let (dword0, status) = refused.result.to_completion();
                *match status.code() {
                    Status::INVALID_HOST => &mut counters.nvmet_refused_host,
                    Status::CONTROLLER_BUSY => &mut counters.nvmet_refused_busy,
                    _ => &mut counters.nvmet_refused_connect,
                } += 1;
                Completion { result: u64::from(dword0), sqhd: 0, cid, status }
            }
        };
        self.answer(&completion);
    }

    /// Says in the log how a Connect went.
    fn log_connect(&mut self, connected: &Result<Connected, Refused>, data: &[u8]) {
        let caller = Caller(data);
        let line = match connected {
            Ok(Connected { cntlid, qid, size, .. }) => {
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
                self.conn.who = Some(who);
                line
            }
            Err(Refused { result, why }) => {
                format!("refused {caller}: {why} ({})", result.to_completion().1)
            }
        };
        self.shared.log.add(self.now, self.conn.remote, line);
    }

    /// A part of a write's data came. The transport has checked its command, its place and whether
    /// it may be the last: it ends the connection at the header, before any data.
    fn handle_write_data(&mut self, tag: u16, digest_ok: bool) {
        let Some(queue) = &mut self.conn.queue else { return };
        let Some(op) = queue.tagged(tag).and_then(|id| self.shared.ops.get_mut(id)) else {
            return self.terminate(Fault::field(at::TTAG));
        };
        op.spoilt |= !digest_ok;
        queue.data_since = Some(self.now);
    }

    /// Ends a command.
    pub(super) fn complete(&mut self, cid: u16, result: u64, status: Status) {
        if !status.is_success() {
            self.note_failed(cid, status);
        }
        let Some(queue) = &mut self.conn.queue else { return };
        let sqhd = queue.finish(cid);
        self.answer(&Completion { result, sqhd, cid, status });
    }

    /// Ends a command well, with all of its data, whose range is kept until the peer has it.
    pub(super) fn complete_with_data(
        &mut self,
        cid: u16,
        data: &Source,
        kept: Option<(usize, LockId)>,
    ) {
        // Only a completion says how far the queue was taken (tcp, section 3.3.2.2).
        let success = self.conn.queue.as_ref().is_some_and(|queue| !queue.is.flow_control);
        let mut mark = self.conn.link.send_data(self.now, self.host, cid, data, success);
        let sqhd = self.conn.queue.as_mut().map_or(0, |queue| queue.finish(cid));
        if !success {
            let completion = Completion { result: 0, sqhd, cid, status: Status::SUCCESS };
            mark = self.conn.link.send_response(self.now, self.host, &completion.to_bytes());
        }
        let bytes = match data {
            Source::Memory(memory) => memory.len(),
            Source::File { .. } => 0,
        };
        self.conn.answers.push(Answer { mark, bytes, kept });
    }

    /// A page of which the host wants as much as it has described.
    fn complete_with_page(&mut self, command: &Command, page: Vec<u8>) {
        let wanted = match command.sgl {
            Sgl::Transport { len } => len as usize,
            _ => return self.complete(command.cid, 0, SGL_TYPE),
        };
        if wanted != page.len() {
            return self.complete(command.cid, 0, SGL_LENGTH);
        }
        self.complete_with_data(command.cid, &Source::Memory(Bytes::from(page)), None);
    }

    fn answer(&mut self, completion: &Completion) {
        let mark = self.conn.link.send_response(self.now, self.host, &completion.to_bytes());
        self.conn.answers.push(Answer { mark, bytes: 0, kept: None });
    }

    fn note_failed(&mut self, cid: u16, status: Status) {
        self.shared.counters.count_failed(status);
        let Some(queue) = &self.conn.queue else { return };
        if let Some(controller) = self.shared.controllers.get_mut(queue.is.cntlid) {
            controller.note_error(queue.is.qid, cid, status);
        }
    }

    pub(super) fn terminate(&mut self, why: Fault) {
        self.conn.link.terminate(self.now, self.host, why);
    }

    /// Gives up all operations, and gives their commands. What the disk still does goes on without
    /// them, and keeps its range until then.
    pub(super) fn let_go(&mut self) -> Vec<u16> {
        let mut cids = Vec::new();
        for id in self.shared.ops.of(self.conn.key) {
            let Some(op) = self.shared.ops.get_mut(id) else { continue };
            cids.push(op.cid);
            if op.at_disk() {
                op.owner = None;
            } else if let Some(mut op) = self.shared.ops.remove(id) {
                self.shared.relinquish(&mut op);
            }
        }
        cids
    }

    /// The connection is over: what it held is given back.
    pub(super) fn abandon(&mut self) {
        self.let_go();
        let answers = core::mem::take(&mut self.conn.answers);
        for (place, lock) in answers.kept() {
            self.shared.unlock(place, lock);
        }
        self.remove_queue();
    }

    fn remove_queue(&mut self) {
        let Some(queue) = self.conn.queue.take() else { return };
        let Connected { cntlid, qid, .. } = queue.is;
        if qid != 0 {
            if let Some(controller) = self.shared.controllers.get_mut(cntlid) {
                controller.remove_queue(qid);
            }
        } else if let Some(controller) = self.shared.controllers.remove(cntlid) {
            // Without its admin queue there is no association.
            self.shared.doomed.extend(controller.io_queues());
        }
    }
}

impl<L: Link> Conn<L> {
    /// A connection that has to say Connect by then.
    pub(super) fn new(link: L, (key, remote): (ConnKey, Option<Endpoint>), until: Instant) -> Self {
        Self {
            link,
            key,
            remote,
            who: None,
            until,
            leaves: false,
            queue: None,
            answers: Answers::default(),
            stalled: None,
        }
    }

    /// When it wants its turn, whatever happens.
    pub(super) fn deadline(&self, shared: &Shared) -> Option<Instant> {
        let queue = self.queue.as_ref().filter(|_| !self.leaves);
        let until = queue.is_none().then_some(self.until);
        let data = queue.and_then(|queue| queue.data_deadline(shared.config.data_timeout));
        let admin = queue.filter(|queue| queue.is.qid == 0);
        let alive = admin
            .and_then(|queue| shared.controllers.get(queue.is.cntlid))
            .and_then(|controller| controller.expires());
        let own = [until, data, alive, self.stalled, self.link.poll_timeout()];
        own.into_iter().flatten().min()
    }

    /// Returns whether it is over for its peer, and stays only to deliver what was sent.
    pub(super) const fn is_leaving(&self) -> bool {
        self.leaves
    }

    /// Looks whether a time is over; says why the connection has to end, if it has to.
    pub(super) fn overdue(&self, now: Instant, shared: &mut Shared) -> Option<&'static str> {
        let Some(queue) = self.queue.as_ref().filter(|_| !self.leaves) else {
            let counters = &mut shared.counters;
            let (counter, why) = match self.leaves {
                true => (&mut counters.nvmet_timeouts_acknowledge, NOT_ACKNOWLEDGED),
                false => (&mut counters.nvmet_timeouts_connect, "no Connect in time"),
            };
            *counter += u64::from(now >= self.until);
            return (now >= self.until).then_some(why);
        };
        let over = |at: Option<Instant>| at.is_some_and(|at| now >= at);
        if over(queue.data_deadline(shared.config.data_timeout)) {
            shared.counters.nvmet_timeouts_data += 1;
            return Some("data of a write did not come in time");
        }
        let controller = shared.controllers.get(queue.is.cntlid).filter(|_| queue.is.qid == 0);
        let silent = over(controller.and_then(|controller| controller.expires()));
        shared.counters.nvmet_timeouts_keep_alive += u64::from(silent);
        silent.then_some("keep alive timer expired")
    }
}

/// The reason in the log of a connection whose peer does not acknowledge.
pub(super) const NOT_ACKNOWLEDGED: &str = "what was sent was not acknowledged in time";
pub(super) const SGL_TYPE: Status = Status::SGL_TYPE_INVALID.do_not_retry();
pub(super) const SGL_LENGTH: Status = Status::SGL_LENGTH_INVALID.do_not_retry();

/// What holds of every command over fabrics.
pub(super) fn check(command: &Command, digest_ok: bool) -> Result<(), Status> {
    if !digest_ok {
        // The host may send it again (tcp, section 3.3.1.2).
        return Err(Status::TRANSIENT_TRANSPORT);
    }
    if command.is_fused() || !command.has_sgl() {
        return Err(Status::INVALID_FIELD.do_not_retry());
    }
    Ok(())
}

/// Whether the data of a command is all in its capsule, where it begins behind the entry.
pub(super) fn in_capsule(command: &Command, data: &[u8]) -> Result<(), Status> {
    match command.sgl {
        Sgl::InCapsule { offset, .. } if offset != 0 => {
            Err(Status::SGL_OFFSET_INVALID.do_not_retry())
        }
        Sgl::InCapsule { len, .. } if len as usize == data.len() => Ok(()),
        Sgl::InCapsule { .. } => Err(SGL_LENGTH),
        _ => Err(SGL_TYPE),
    }
}
