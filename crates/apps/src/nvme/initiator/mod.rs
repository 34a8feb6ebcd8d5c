//! The initiator: a sans-IO application that reads and writes namespaces of one NVMe/TCP controller
//! over the host's sockets.
//!
//! An [`Initiator`] keeps one association: an admin queue and I/O queues, each over its own
//! connection. Its user submits requests with tokens and takes their results in any order. If the
//! association is lost, the initiator reconnects, and resends unanswered commands if that is safe
//! (`recovery`); the user notices only the delay. Data with a wrong digest is never returned: the
//! command is sent again, and fails after some retries.
//!
//! Called by the driver of the host: [`Initiator::handle_notice`] with every notice,
//! [`Initiator::handle_timeout`] at [`Initiator::poll_timeout`], and [`Initiator::poll_done`] and
//! [`Initiator::poll_event`] after each of these and after [`Initiator::submit`].
//!
//! Invariants: every accepted request completes once, with its buffer; overlapping changes are
//! executed in the order of submission; no request is in two queues.
//!
//! Not supported: multipathing, reservations, metadata, in-band authentication, fused commands.
//!
//! Files: `association` (set-up, keep alive, events), `queue` (a connection and its commands),
//! `config`, `command` (requests), `recovery` (reconnects and replay), `discovery`, `counters`.
//! Specifications are cited by the names that [`wire::nvme`] defines.

mod association;
mod command;
mod config;
mod counters;
mod discovery;
mod queue;
mod recovery;

use std::collections::{BTreeMap, VecDeque};

use abi::aligned::AlignedBuf;
use base::{Duration, Instant};
use host::{Application, Host, Notice, SocketId};
use wire::Endpoint;
use wire::nvme::status::NvmeStatus;

use self::association::{Association, AssociationEnv, AssociationEvent};
pub use self::command::{
    AdminData, AssociationLoss, InitiatorBusy, InitiatorNamespace, NvmeRequest, NvmeRequestDone,
    NvmeRequestError,
};
use self::command::{CommandData, ControllerLimits};
pub use self::config::{InitiatorConfig, InitiatorEvent, InitiatorState};
pub use self::counters::InitiatorCounters;
pub use self::discovery::{Discovery, DiscoveryError};
use self::queue::{CommandDone, CommandOrigin, InitiatorQueue, InitiatorQueueEvent};
pub use self::recovery::BackOff;
use self::recovery::{Outage, PendingChanges};
use crate::pattern_inspection::PatternInspection;

/// Entries of the admin queue that are not used for users' commands but kept for keep alive, Abort
/// and Asynchronous Event Request.
const ADMIN_RESERVED: usize = 8;
/// Index of the admin queue.
const ADMIN: usize = 0;
/// Time in which a controller has to shut down. It is short because only the controller's volatile
/// cache may be unwritten, and users who need that written have sent a flush.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A submitted request that has not completed.
#[derive(Debug)]
struct PendingRequest {
    token: u64,
    namespace: InitiatorNamespace,
    request: NvmeRequest,
    buffer: Option<AlignedBuf>,
    digest_retries: u8,
    status_retries: u8,
    protocol_losses: u8,
    losses: u8,
    /// The request is suspected of ending associations: it is sent only while no other is in
    /// flight.
    sent_alone: bool,
    held_back: bool,
}

#[derive(Debug)]
enum InitiatorPhase {
    Idle,
    Up(Box<Association>),
    /// Closed by the user; waits until the deadline for the controller to confirm the shutdown.
    Closing(Box<Association>, Instant),
    Waiting(Instant),
    Failed(AssociationLoss),
    Closed,
}

/// An initiator of one controller.
#[derive(Debug)]
pub struct Initiator {
    config: InitiatorConfig,
    remote: Endpoint,
    phase: InitiatorPhase,
    outage: Outage,
    /// Connection of the last association on which a terminate request or an alert is still being
    /// delivered.
    lingering_socket: Option<SocketId>,
    /// By serial number, which is the order of submission.
    requests: BTreeMap<u64, PendingRequest>,
    changes: PendingChanges,
    /// Serial numbers of requests that wait for an entry: of the admin queue, of any I/O queue.
    ready: [VecDeque<u64>; 2],
    /// The I/O request in flight was sent alone.
    alone: bool,
    next_serial: u64,
    last_queue: usize,
    namespaces: BTreeMap<u32, InitiatorNamespace>,
    limits: Option<ControllerLimits>,
    done: VecDeque<NvmeRequestDone>,
    events: VecDeque<InitiatorEvent>,
    counters: InitiatorCounters,
    inspection: PatternInspection,
}

impl Initiator {
    /// Creates an initiator that does not connect yet.
    #[must_use]
    pub fn new(config: InitiatorConfig, remote: Endpoint) -> Self {
        Self {
            inspection: PatternInspection::new(config.pattern_rules.clone()),
            config,
            remote,
            phase: InitiatorPhase::Idle,
            outage: Outage::default(),
            lingering_socket: None,
            requests: BTreeMap::new(),
            changes: PendingChanges::default(),
            ready: [VecDeque::new(), VecDeque::new()],
            alone: false,
            next_serial: 0,
            last_queue: 0,
            namespaces: BTreeMap::new(),
            limits: None,
            done: VecDeque::new(),
            events: VecDeque::new(),
            counters: InitiatorCounters::default(),
        }
    }

    /// Starts to connect. [`InitiatorEvent::Connected`] or [`InitiatorEvent::Failed`] follows.
    pub fn connect(&mut self, now: Instant, host: &mut Host) {
        if matches!(self.phase, InitiatorPhase::Idle) {
            self.start_association(now, host);
        }
    }

    /// Returns the state of the association.
    #[must_use]
    pub fn state(&self) -> InitiatorState {
        match &self.phase {
            InitiatorPhase::Idle => InitiatorState::Idle,
            InitiatorPhase::Up(association) if association.live => InitiatorState::Live,
            InitiatorPhase::Up(_) => InitiatorState::Connecting,
            InitiatorPhase::Waiting(_) => InitiatorState::Waiting,
            InitiatorPhase::Failed(loss) => InitiatorState::Failed(*loss),
            InitiatorPhase::Closing(..) | InitiatorPhase::Closed => InitiatorState::Closed,
        }
    }

    /// Returns the known namespaces.
    pub fn namespaces(&self) -> impl Iterator<Item = &InitiatorNamespace> {
        self.namespaces.values()
    }

    /// Returns the largest data of a request in bytes; `None` before the first association.
    #[must_use]
    pub fn data_bytes_max(&self) -> Option<u64> {
        self.limits.map(|limits| limits.data_bytes_max)
    }

    /// Returns the number of requests that have not completed.
    #[must_use]
    pub fn open_requests(&self) -> usize {
        self.requests.len()
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counters(&self) -> &InitiatorCounters {
        &self.counters
    }

    /// Calls `f` with the name and value of each counter, also of those of
    /// [`InitiatorConfig::pattern_rules`].
    pub fn visit_counters(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(f);
        self.inspection.visit_rules(f);
    }

    /// Submits a request. `nsid` is 0 for commands without a namespace; no namespace is known
    /// before the first association is established. `buffer` receives data from the controller.
    /// Completion is always reported by [`Self::poll_done`], also for an invalid request.
    ///
    /// # Errors
    /// [`InitiatorBusy`], with the request and its buffer, if [`InitiatorConfig::requests_max`] are
    /// open.
    pub fn submit(
        &mut self,
        now: Instant,
        host: &mut Host,
        (token, nsid): (u64, u32),
        request: NvmeRequest,
        buffer: Option<AlignedBuf>,
    ) -> Result<(), InitiatorBusy> {
        if self.requests.len() >= self.config.requests_max {
            self.counters.nvmei_busy += 1;
            return Err(InitiatorBusy(request, buffer));
        }
        self.counters.nvmei_requests += 1;
        let namespace = match self.check(nsid, &request, buffer.as_ref()) {
            Ok(namespace) => namespace,
            Err(error) => {
                self.report_done(token, Err(error), buffer);
                return Ok(());
            }
        };
        let serial = self.next_serial;
        self.next_serial += 1;
        let change = request.changed_blocks(nsid, namespace.shift);
        let held = change.is_some_and(|extent| !self.changes.insert(serial, extent));
        let pending = PendingRequest {
            token,
            namespace,
            request,
            buffer,
            digest_retries: 0,
            status_retries: 0,
            protocol_losses: 0,
            losses: 0,
            sent_alone: false,
            held_back: held,
        };
        if held {
            self.counters.nvmei_held += 1;
        } else {
            self.ready[usize::from(pending.request.is_io())].push_back(serial);
        }
        self.requests.insert(serial, pending);
        self.send_ready_requests(now, host);
        Ok(())
    }

    /// Returns the next completed request.
    pub fn poll_done(&mut self) -> Option<NvmeRequestDone> {
        self.done.pop_front()
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<InitiatorEvent> {
        self.events.pop_front()
    }

    /// Closes the association in an orderly way: first the I/O queues, then the controller is shut
    /// down, and last the admin queue. Open requests fail with [`NvmeRequestError::Closed`].
    pub fn close(&mut self, now: Instant, host: &mut Host) {
        let phase = core::mem::replace(&mut self.phase, InitiatorPhase::Closed);
        match phase {
            InitiatorPhase::Up(mut association) => {
                // The buffers of data in flight are gone, so the connections are closed without a
                // shutdown.
                let busy = association.queues.get(ADMIN).is_some_and(InitiatorQueue::awaits_data);
                let orderly = association.live && !busy;
                let first = if orderly { ADMIN + 1 } else { ADMIN };
                self.reclaim_requests(now, host, &mut association, first);
                for queue in association.queues.iter().skip(first) {
                    host.close(now, queue.socket());
                }
                if orderly {
                    let (config, counters) = (&self.config, &mut self.counters);
                    let inspection = &mut self.inspection;
                    association.shut_down(&mut AssociationEnv {
                        host,
                        now,
                        config,
                        counters,
                        inspection,
                    });
                    self.phase = InitiatorPhase::Closing(association, now + CLOSE_TIMEOUT);
                }
            }
            InitiatorPhase::Closing(..) => self.phase = phase,
            _ => {}
        }
        self.fail_all(NvmeRequestError::Closed);
    }

    /// Finishes closing if the controller has confirmed the shutdown or ended the connection, or at
    /// the deadline.
    fn end_closing(&mut self, now: Instant, host: &mut Host) {
        let InitiatorPhase::Closing(association, until) = &mut self.phase else { return };
        let Some(admin) = association.queues.get_mut(ADMIN) else { return };
        let over = loop {
            match admin.poll(now, host, &mut self.counters, &mut self.inspection) {
                None => break now >= *until,
                Some(InitiatorQueueEvent::Answer(CommandDone {
                    owner: CommandOrigin::SetUp,
                    ..
                })) => break true,
                Some(InitiatorQueueEvent::Ended(_)) => break true,
                Some(_) => {}
            }
        };
        if over {
            host.close(now, admin.socket());
            self.phase = InitiatorPhase::Closed;
        }
    }

    /// Checks a request against the namespace and the controller's limits.
    fn check(
        &self,
        nsid: u32,
        request: &NvmeRequest,
        buffer: Option<&AlignedBuf>,
    ) -> Result<InitiatorNamespace, NvmeRequestError> {
        match &self.phase {
            InitiatorPhase::Failed(loss) => return Err(NvmeRequestError::ControllerLost(*loss)),
            InitiatorPhase::Closing(..) | InitiatorPhase::Closed => {
                return Err(NvmeRequestError::Closed);
            }
            _ => {}
        }
        let limits = self.limits.ok_or(NvmeRequestError::NoNamespace(nsid))?;
        let none = InitiatorNamespace { nsid, shift: 9, ..InitiatorNamespace::default() };
        let namespace = match self.namespaces.get(&nsid) {
            Some(namespace) => *namespace,
            None if !request.is_io() => none,
            None => return Err(NvmeRequestError::NoNamespace(nsid)),
        };
        request.check(&namespace, &limits, buffer)?;
        Ok(namespace)
    }

    fn start_association(&mut self, now: Instant, host: &mut Host) {
        // No old data may arrive after the first resent command.
        if let Some(socket) = self.lingering_socket.take() {
            host.abort(now, socket);
        }
        let mut cx = AssociationEnv {
            host,
            now,
            config: &self.config,
            counters: &mut self.counters,
            inspection: &mut self.inspection,
        };
        match Association::begin(&mut cx, self.remote) {
            Ok(association) => self.phase = InitiatorPhase::Up(Box::new(association)),
            Err(loss) => self.schedule_reconnect(now, loss),
        }
    }

    /// Handles everything that happened on a queue.
    fn poll_queue(&mut self, now: Instant, host: &mut Host, index: usize) {
        loop {
            let InitiatorPhase::Up(association) = &mut self.phase else { return };
            let mut cx = AssociationEnv {
                host,
                now,
                config: &self.config,
                counters: &mut self.counters,
                inspection: &mut self.inspection,
            };
            match association.poll(&mut cx, index) {
                Ok(None) => return,
                Ok(Some(progress)) => self.handle(progress),
                Err(loss) => return self.handle_loss(now, host, loss, Some(index)),
            }
        }
    }

    fn handle(&mut self, progress: AssociationEvent) {
        match progress {
            AssociationEvent::Nothing => {}
            AssociationEvent::Answer(serial, answer) => self.handle_completion(serial, answer),
            AssociationEvent::Live => {
                self.counters.nvmei_associations += 1;
                self.events.push_back(InitiatorEvent::Connected);
                self.adopt_namespaces();
            }
            AssociationEvent::Namespaces => {
                self.adopt_namespaces();
                self.events.push_back(InitiatorEvent::NamespacesChanged);
            }
            AssociationEvent::DiscoveryChanged => {
                self.events.push_back(InitiatorEvent::DiscoveryChanged)
            }
        }
    }

    /// Copies the association's namespaces, and fails the waiting requests whose namespace is gone
    /// or has been replaced by another.
    fn adopt_namespaces(&mut self) {
        let InitiatorPhase::Up(association) = &self.phase else { return };
        self.namespaces.clone_from(&association.namespaces);
        self.limits = Some(association.limits);
        let same = |before: &InitiatorNamespace| {
            self.namespaces.get(&before.nsid).is_some_and(|now| now.is_same(before))
        };
        let held = self.requests.iter().filter(|(_, pending)| pending.held_back);
        let waiting = self.ready.iter().flatten().chain(held.map(|(serial, _)| serial));
        let gone: Vec<u64> = waiting
            .filter(|serial| {
                let pending = self.requests.get(serial);
                pending.is_some_and(|p| p.request.is_io() && !same(&p.namespace))
            })
            .copied()
            .collect();
        for serial in gone {
            if let Some(nsid) = self.requests.get(&serial).map(|p| p.namespace.nsid) {
                self.finish(serial, Err(NvmeRequestError::NoNamespace(nsid)));
            }
        }
        // If requests are open, the outage ends only with the first answer: a controller that can
        // be connected each time but answers nothing is still lost.
        if self.requests.is_empty() {
            self.outage.end();
        }
    }

    /// Sends waiting requests while the queues have room.
    fn send_ready_requests(&mut self, now: Instant, host: &mut Host) {
        loop {
            let InitiatorPhase::Up(association) = &mut self.phase else { return };
            if !association.live {
                return;
            }
            let [admin, io] = &self.ready;
            let admin_room =
                association.queues.first().is_some_and(|queue| queue.room() > ADMIN_RESERVED);
            let place = match (admin.front(), io.front()) {
                (Some(&serial), _) if admin_room => Some((serial, ADMIN)),
                (_, Some(&serial)) => association.pick(self.last_queue).map(|at| (serial, at)),
                _ => None,
            };
            let Some((serial, index)) = place else { return };
            if index != ADMIN {
                let alone = self.requests.get(&serial).is_some_and(|pending| pending.sent_alone);
                if (alone || self.alone) && association.is_busy() {
                    return;
                }
                self.alone = alone;
                self.counters.nvmei_alone += u64::from(alone);
            }
            self.ready[usize::from(index != ADMIN)].pop_front();
            let Some(pending) = self.requests.get_mut(&serial) else { continue };
            let PendingRequest { namespace, request, buffer, .. } = pending;
            let (command, data) =
                request.to_command(namespace.nsid, namespace.shift, buffer.take());
            let Some(queue) = association.queues.get_mut(index) else { return };
            let timeout = Some(self.config.command_timeout);
            let owner = (CommandOrigin::Request(serial), timeout);
            self.counters.nvmei_commands += 1;
            if index != ADMIN {
                self.last_queue = index;
            }
            let sent = queue.send(now, host, owner, command, data, &mut self.counters);
            if let Err(data) = sent {
                // The queue has room, so it refuses only an invalid command.
                debug_assert!(false, "a queue with room takes a command");
                if let CommandData::In { buffer, .. } = data {
                    pending.buffer = Some(buffer);
                }
                self.finish(serial, Err(NvmeRequestError::BadLength));
            }
        }
    }

    /// Handles the completion of a request's command: retries, or completes the request.
    fn handle_completion(
        &mut self,
        serial: u64,
        CommandDone { completion, buffer, digest_ok, is_denied, .. }: CommandDone,
    ) {
        let Some(pending) = self.requests.get_mut(&serial) else { return };
        self.outage.end();
        if buffer.is_some() {
            pending.buffer = buffer;
        }
        let status = completion.status;
        let repeatable = pending.request.is_repeatable();
        let again = if status.is_success() && !digest_ok {
            pending.digest_retries += 1;
            let tries = pending.digest_retries;
            if !repeatable || tries > self.config.digest_retries {
                return self.finish(serial, Err(NvmeRequestError::DataDigest(tries)));
            }
            self.counters.nvmei_digest_retries += 1;
            true
        } else {
            let again = is_transient(status)
                && repeatable
                && pending.status_retries < self.config.status_retries;
            pending.status_retries += u8::from(again);
            self.counters.nvmei_status_retries += u64::from(again);
            again
        };
        if again {
            self.ready[usize::from(pending.request.is_io())].push_front(serial);
        } else if status.is_success() && is_denied {
            self.counters.nvmei_denied += 1;
            self.finish(serial, Err(NvmeRequestError::DeniedPattern));
        } else if status.is_success() {
            let (read, written) = pending.request.bytes(pending.namespace.shift);
            self.counters.nvmei_read_bytes += read;
            self.counters.nvmei_written_bytes += written;
            self.finish(serial, Ok(completion.result));
        } else {
            self.finish(serial, Err(NvmeRequestError::Status(status)));
        }
    }

    /// Completes a request, and releases requests that were held back by it.
    fn finish(&mut self, serial: u64, result: Result<u64, NvmeRequestError>) {
        let Some(pending) = self.requests.remove(&serial) else { return };
        self.report_done(pending.token, result, pending.buffer);
        if self.changes.remove(serial) {
            self.release_held();
        }
    }

    fn report_done(
        &mut self,
        token: u64,
        result: Result<u64, NvmeRequestError>,
        buffer: Option<AlignedBuf>,
    ) {
        let ended = if result.is_ok() {
            &mut self.counters.nvmei_done
        } else {
            &mut self.counters.nvmei_failed
        };
        *ended += 1;
        self.done.push_back(NvmeRequestDone { token, result, buffer });
    }

    /// Releases held requests that no longer overlap an earlier one.
    fn release_held(&mut self) {
        let free = |(serial, pending): (&u64, &mut PendingRequest)| {
            let free = pending.held_back && self.changes.can_send(*serial);
            pending.held_back &= !free;
            free.then_some(*serial)
        };
        let freed: Vec<u64> = self.requests.iter_mut().filter_map(free).collect();
        self.ready[1].extend(freed);
    }
}

impl Application for Initiator {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        let Notice::Socket(socket) = notice else { return };
        let (InitiatorPhase::Up(association) | InitiatorPhase::Closing(association, _)) =
            &self.phase
        else {
            return;
        };
        let Some(index) = association.queue_of(socket) else { return };
        self.poll_queue(now, host, index);
        self.end_closing(now, host);
        self.send_ready_requests(now, host);
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        match &mut self.phase {
            InitiatorPhase::Waiting(until) if now >= *until => self.start_association(now, host),
            InitiatorPhase::Closing(..) => self.end_closing(now, host),
            InitiatorPhase::Up(association) => {
                let queues = association.queues.len();
                let mut cx = AssociationEnv {
                    host,
                    now,
                    config: &self.config,
                    counters: &mut self.counters,
                    inspection: &mut self.inspection,
                };
                if let Err(loss) = association.handle_timeout(&mut cx) {
                    return self.handle_loss(now, host, loss, None);
                }
                for index in 0..queues {
                    self.poll_queue(now, host, index);
                }
            }
            _ => {}
        }
        self.send_ready_requests(now, host);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        match &self.phase {
            InitiatorPhase::Waiting(until) | InitiatorPhase::Closing(_, until) => Some(*until),
            InitiatorPhase::Up(association) => association.poll_timeout(),
            _ => None,
        }
    }
}

/// Returns whether a failed command may succeed if it is sent again.
fn is_transient(status: NvmeStatus) -> bool {
    let passing = [
        NvmeStatus::TRANSIENT_TRANSPORT,
        NvmeStatus::COMMAND_INTERRUPTED,
        NvmeStatus::ABORT_REQUESTED,
    ];
    !status.is_final() && passing.contains(&status.code())
}
