//! An association: one controller with all its queues, from the first connection to its loss.
//!
//! The set-up is a sequence of steps (fabrics section 3; base section 3.5): connect the admin
//! queue, read the capabilities, enable the controller and wait until it is ready, identify it,
//! negotiate the number of I/O queues, list the namespaces, then connect the I/O queues, each over
//! its own connection. Afterwards keep alives and asynchronous events continue until the
//! association is lost or closed. A discovery controller has no I/O queues.
//!
//! The submodule `namespaces` reads the namespaces. Called by [`super::Initiator`], which owns the
//! users' commands. Any failure here is a [`AssociationLoss`] and ends the association.

mod namespaces;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use abi::aligned::{AlignedBuf, PAGE_BYTES};
use base::{Duration, Instant};
use bytes::Bytes;
use host::nvme::{NvmeInitiatorParams, NvmeTransport};
use host::{Host, SocketId, SocketOption};
use wire::Endpoint;
use wire::nvme::command::{
    AbortCommand, AsyncEvent, FeaturesCommand, IdentifyCommand, NvmeCommand, NvmeCompletion,
    QueueCounts, Sgl, admin, events, feature,
};
use wire::nvme::fabrics::{
    ADMIN_IN_CAPSULE_BYTES, CNTLID_DYNAMIC, ConnectCommand, ConnectData, ConnectResult,
    ControllerCapabilities, ControllerConfiguration, ControllerStatus, FabricsCommand, PropertyGet,
    PropertySet, ShutdownNotification, property,
};
use wire::nvme::identify::{IdentifyController, cns};
use wire::nvme::status::NvmeStatus;

use super::InitiatorConfig;
use super::command::{
    AssociationLoss, CommandData, ControllerLimits, IO_QUEUE, InitiatorNamespace,
};
use super::counters::InitiatorCounters;
use super::queue::{CommandDone, CommandOrigin, InitiatorQueue, InitiatorQueueEvent, LateCommand};
use crate::nvme::channel::NvmeChannel;
use crate::pattern_inspection::PatternInspection;

/// Entries of the admin queue: Linux's NVMF_AQ_DEPTH.
const ADMIN_ENTRIES: u16 = 32;
/// Interval between reads of CSTS while the controller is not ready.
const READY_POLL: Duration = Duration::from_millis(100);
/// Entries of the admin queue that Abort commands leave free.
const ADMIN_LEFT: usize = 4;
/// Unit of CAP.TO.
const READY_UNIT: Duration = Duration::from_millis(500);
/// Largest data of a command in bytes if the controller has no limit.
const DATA_BYTES_MAX: u64 = 1 << 30;
/// Number of Asynchronous Event Requests kept open.
const EVENT_REQUESTS: u8 = 2;
/// Bytes of a submission queue entry in units of IOCCSZ (16 bytes).
const ENTRY_UNITS: u32 = 4;

/// Environment of one call: host, time, configuration and counters.
pub(super) struct AssociationEnv<'a> {
    pub(super) host: &'a mut Host,
    pub(super) now: Instant,
    pub(super) config: &'a InitiatorConfig,
    pub(super) counters: &'a mut InitiatorCounters,
    pub(super) inspection: &'a mut PatternInspection,
}

/// Step of the set-up: the admin command whose completion is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AssociationSetupStep {
    Transport,
    Connect,
    Capabilities,
    Version,
    Enable,
    /// Reads CSTS; or waits until the time of the next read.
    Ready(Option<Instant>),
    Controller,
    Queues,
    Events,
    ChangedLog,
    Namespaces,
    Namespace(u32),
    Descriptors(u32),
    /// None: I/O queues are being connected, or the set-up is complete.
    Idle,
}

impl AssociationSetupStep {
    const fn name(self) -> &'static str {
        match self {
            Self::Transport => "connection",
            Self::Connect => "connect of the admin queue",
            Self::Capabilities => "capabilities",
            Self::Version => "version",
            Self::Enable => "enabling",
            Self::Ready(_) => "getting ready",
            Self::Controller => "Identify Controller",
            Self::Queues => "number of queues",
            Self::Events => "event configuration",
            Self::ChangedLog => "list of changed namespaces",
            Self::Namespaces => "list of namespaces",
            Self::Namespace(_) => "Identify Namespace",
            Self::Descriptors(_) => "descriptors of a namespace",
            Self::Idle => IO_QUEUE,
        }
    }
}

/// Event of an association for the initiator.
#[derive(Debug)]
pub(super) enum AssociationEvent {
    Nothing,
    /// All queues are connected.
    Live,
    /// A user's command has ended: serial number, completion, buffer, and whether digests matched.
    Answer(u64, CommandDone),
    /// The namespaces were read again.
    Namespaces,
    DiscoveryChanged,
}

/// A controller and its queues.
#[derive(Debug)]
pub(super) struct Association {
    remote: Endpoint,
    /// The admin queue, then the I/O queues.
    pub(super) queues: Vec<InitiatorQueue>,
    step: AssociationSetupStep,
    /// Deadline of the set-up, or of the controller to become ready.
    setup_deadline: Option<Instant>,
    capabilities: ControllerCapabilities,
    cntlid: u16,
    controller: Option<Box<IdentifyController>>,
    pub(super) limits: ControllerLimits,
    pub(super) namespaces: BTreeMap<u32, InitiatorNamespace>,
    listed_nsids: VecDeque<u32>,
    /// The namespaces changed while they were being read.
    rescan: bool,
    pub(super) live: bool,
    keep_alive: Option<Instant>,
    events_open: u8,
    events_max: u8,
    aborts_open: u8,
}

impl Association {
    /// Starts to connect the admin queue.
    pub(super) fn begin(
        cx: &mut AssociationEnv<'_>,
        remote: Endpoint,
    ) -> Result<Self, AssociationLoss> {
        let limits = ControllerLimits { data_bytes_max: DATA_BYTES_MAX, oncs: 0 };
        let mut association = Self {
            remote,
            queues: Vec::new(),
            step: AssociationSetupStep::Transport,
            setup_deadline: Some(cx.now + cx.config.setup_timeout),
            capabilities: ControllerCapabilities::from_value(0),
            cntlid: CNTLID_DYNAMIC,
            controller: None,
            limits,
            namespaces: BTreeMap::new(),
            listed_nsids: VecDeque::new(),
            rescan: false,
            live: false,
            keep_alive: None,
            events_open: 0,
            events_max: 0,
            aborts_open: 0,
        };
        association.open_queue(cx, ADMIN_ENTRIES)?;
        Ok(association)
    }

    /// Starts to connect the next queue.
    fn open_queue(
        &mut self,
        cx: &mut AssociationEnv<'_>,
        entries: u16,
    ) -> Result<(), AssociationLoss> {
        let id = u16::try_from(self.queues.len()).unwrap_or(u16::MAX);
        let tls = cx.config.tls.as_ref().filter(|_| cx.config.psk.is_none());
        let socket = match tls {
            Some(client) => cx.host.connect_tls(cx.now, self.remote, client),
            None => cx.host.connect(cx.now, self.remote),
        };
        let socket = socket.map_err(AssociationLoss::Connect)?;
        // PDUs are written whole, so Nagle's algorithm could only delay their last segments.
        cx.host.set_option(cx.now, socket, SocketOption::NoDelay(true));
        let InitiatorConfig { header_digest, data_digest, .. } = *cx.config;
        let params = NvmeInitiatorParams { header_digest, data_digest, hpda: 0, maxr2t: 0 };
        let transport = NvmeTransport::initiate(socket, Arc::clone(&cx.config.crypto), params);
        let capsule = usize::try_from(ADMIN_IN_CAPSULE_BYTES).unwrap_or(0);
        let channel = NvmeChannel::initiate(transport, cx.config.psk.as_deref());
        self.queues.push(InitiatorQueue::new(channel, id, entries, capsule));
        Ok(())
    }

    /// Returns the index of a socket's queue.
    pub(super) fn queue_of(&self, socket: SocketId) -> Option<usize> {
        self.queues.iter().position(|queue| queue.socket() == socket)
    }

    /// Returns the index of the I/O queue for the next command: a queue with the fewest open
    /// commands, searching from the one after `last`. `None` if all are full.
    pub(super) fn pick(&self, last: usize) -> Option<usize> {
        let io = self.queues.len().saturating_sub(1);
        let order = (0..io).map(|i| 1 + (last + i) % io);
        let room = |&index: &usize| self.queues.get(index).is_some_and(|q| q.live && q.room() > 0);
        order
            .filter(room)
            .min_by_key(|&index| self.queues.get(index).map_or(0, InitiatorQueue::in_flight))
    }

    /// Returns whether a command is open on any I/O queue.
    pub(super) fn is_busy(&self) -> bool {
        self.queues.iter().skip(1).any(|queue| queue.in_flight() > 0)
    }

    /// Handles the next event of a queue. To be called until it returns `None`.
    pub(super) fn poll(
        &mut self,
        cx: &mut AssociationEnv<'_>,
        index: usize,
    ) -> Result<Option<AssociationEvent>, AssociationLoss> {
        let Some(queue) = self.queues.get_mut(index) else { return Ok(None) };
        match queue.poll(cx.now, cx.host, cx.counters, cx.inspection) {
            None => Ok(None),
            Some(InitiatorQueueEvent::Ended(how)) => Err(match queue.channel.insecure() {
                Some(why) => {
                    cx.counters.nvmei_tls_handshakes_failed += 1;
                    AssociationLoss::Insecure(why)
                }
                None => AssociationLoss::Connection(how),
            }),
            Some(InitiatorQueueEvent::Ready) => {
                check_digests(cx, queue)?;
                if queue.id != 0 {
                    queue.start_inspection(cx.now, cx.host, cx.inspection.rules());
                }
                cx.counters.nvmei_tls_handshakes += u64::from(queue.channel.identity().is_some());
                self.send_connect(cx, index).map(Some)
            }
            Some(InitiatorQueueEvent::Answer(answer)) => self.handle(cx, index, answer).map(Some),
        }
    }

    fn handle(
        &mut self,
        cx: &mut AssociationEnv<'_>,
        index: usize,
        answer: CommandDone,
    ) -> Result<AssociationEvent, AssociationLoss> {
        match answer.owner {
            CommandOrigin::Request(serial) => return Ok(AssociationEvent::Answer(serial, answer)),
            CommandOrigin::KeepAlive if answer.completion.status.is_success() => {
                cx.counters.nvmei_keep_alives += 1;
            }
            CommandOrigin::KeepAlive => {
                return Err(AssociationLoss::Refused {
                    step: "keep alive",
                    status: answer.completion.status,
                });
            }
            CommandOrigin::Abort => self.aborts_open = self.aborts_open.saturating_sub(1),
            CommandOrigin::AsyncEvent => return self.handle_event(cx, &answer.completion),
            CommandOrigin::SetUp if index > 0 => {
                return self.queue_connected(cx, index, &answer.completion);
            }
            CommandOrigin::SetUp => {
                let CommandDone { completion, buffer, digest_ok, .. } = answer;
                return self.next_step(cx, &completion, buffer, digest_ok);
            }
        }
        Ok(AssociationEvent::Nothing)
    }

    /// Sends Connect, which is the first command on every queue (fabrics section 3.3).
    fn send_connect(
        &mut self,
        cx: &mut AssociationEnv<'_>,
        index: usize,
    ) -> Result<AssociationEvent, AssociationLoss> {
        let Some(queue) = self.queues.get_mut(index) else { return Ok(AssociationEvent::Nothing) };
        let kato = if index == 0 { cx.config.keep_alive.as_millis() } else { 0 };
        let connect = ConnectCommand {
            qid: queue.id,
            sqsize: queue.sqsize(),
            kato: u32::try_from(kato).unwrap_or(u32::MAX),
            ..ConnectCommand::default()
        };
        let data = ConnectData {
            hostid: cx.config.host_id,
            cntlid: self.cntlid,
            subnqn: Some(cx.config.subsystem),
            hostnqn: Some(cx.config.host),
        };
        let command = FabricsCommand::Connect(connect).to_command(0, Sgl::NONE);
        let data = CommandData::Out(Bytes::copy_from_slice(&data.to_bytes()));
        if index == 0 {
            self.step = AssociationSetupStep::Connect;
        }
        let timeout = Some(cx.config.command_timeout);
        self.send(cx, index, (CommandOrigin::SetUp, timeout), command, data)
    }

    fn send(
        &mut self,
        cx: &mut AssociationEnv<'_>,
        index: usize,
        (owner, timeout): (CommandOrigin, Option<Duration>),
        command: NvmeCommand,
        data: CommandData,
    ) -> Result<AssociationEvent, AssociationLoss> {
        let Some(queue) = self.queues.get_mut(index) else { return Ok(AssociationEvent::Nothing) };
        let sent = queue.send(cx.now, cx.host, (owner, timeout), command, data, cx.counters);
        // `Initiator` leaves `ADMIN_RESERVED` entries of the admin queue free.
        sent.map_err(|_| AssociationLoss::Timeout("places in the admin queue"))?;
        Ok(AssociationEvent::Nothing)
    }

    fn send_step(
        &mut self,
        cx: &mut AssociationEnv<'_>,
        step: AssociationSetupStep,
        command: NvmeCommand,
    ) -> Result<AssociationEvent, AssociationLoss> {
        self.step = step;
        let timeout = Some(cx.config.command_timeout);
        self.send(cx, 0, (CommandOrigin::SetUp, timeout), command, CommandData::None)
    }

    fn send_step_with_buffer(
        &mut self,
        cx: &mut AssociationEnv<'_>,
        step: AssociationSetupStep,
        command: NvmeCommand,
        buffer: Option<AlignedBuf>,
    ) -> Result<AssociationEvent, AssociationLoss> {
        self.step = step;
        let buffer = buffer.unwrap_or_else(|| AlignedBuf::new(1));
        let len = u32::try_from(PAGE_BYTES).unwrap_or(0);
        let timeout = Some(cx.config.command_timeout);
        self.send(cx, 0, (CommandOrigin::SetUp, timeout), command, CommandData::In { buffer, len })
    }

    fn read_property(
        &mut self,
        cx: &mut AssociationEnv<'_>,
        step: AssociationSetupStep,
        offset: u32,
    ) -> Result<AssociationEvent, AssociationLoss> {
        let get = FabricsCommand::PropertyGet(PropertyGet::new(offset));
        self.send_step(cx, step, get.to_command(0, Sgl::NONE))
    }

    /// Handles the completion of a step and starts the next one.
    fn next_step(
        &mut self,
        cx: &mut AssociationEnv<'_>,
        completion: &NvmeCompletion,
        buffer: Option<AlignedBuf>,
        digest_ok: bool,
    ) -> Result<AssociationEvent, AssociationLoss> {
        let (step, status) = (self.step, completion.status);
        let none = step == AssociationSetupStep::Events || step == AssociationSetupStep::ChangedLog;
        if !status.is_success()
            && matches!(
                step,
                AssociationSetupStep::Namespace(_) | AssociationSetupStep::Descriptors(_)
            )
        {
            return self.namespace_refused(cx, step, status, buffer);
        }
        if !status.is_success() && step != AssociationSetupStep::Connect && !none {
            return Err(AssociationLoss::Refused { step: step.name(), status });
        }
        if !digest_ok {
            // The data of the answer is unusable. Reconnecting is simpler than repeating the step.
            let status = NvmeStatus::TRANSIENT_TRANSPORT;
            return Err(AssociationLoss::Refused { step: step.name(), status });
        }
        match step {
            AssociationSetupStep::Connect => self.connected(cx, completion),
            AssociationSetupStep::Capabilities => {
                self.capabilities = ControllerCapabilities::from_value(completion.result);
                self.read_property(cx, AssociationSetupStep::Version, property::VS)
            }
            AssociationSetupStep::Version => self.enable(cx),
            AssociationSetupStep::Enable => {
                let wait = READY_UNIT.as_nanos() * u64::from(self.capabilities.timeout.max(1));
                self.setup_deadline =
                    Some(cx.now + cx.config.setup_timeout + Duration::from_nanos(wait));
                self.read_property(cx, AssociationSetupStep::Ready(None), property::CSTS)
            }
            AssociationSetupStep::Ready(_) => self.check_ready(cx, completion.dword0()),
            AssociationSetupStep::Controller => self.identified(cx, buffer),
            AssociationSetupStep::Queues => self.queues_granted(cx, completion.dword0()),
            AssociationSetupStep::Events => {
                self.request_events(cx)?;
                self.after_events(cx)
            }
            AssociationSetupStep::ChangedLog => self.list_namespaces(cx, 0, buffer),
            AssociationSetupStep::Namespaces => self.namespaces_listed(cx, buffer),
            AssociationSetupStep::Namespace(nsid) => self.namespace_identified(cx, nsid, buffer),
            AssociationSetupStep::Descriptors(nsid) => self.descriptors_received(cx, nsid, buffer),
            AssociationSetupStep::Transport | AssociationSetupStep::Idle => {
                Ok(AssociationEvent::Nothing)
            }
        }
    }

    fn connected(
        &mut self,
        cx: &mut AssociationEnv<'_>,
        completion: &NvmeCompletion,
    ) -> Result<AssociationEvent, AssociationLoss> {
        match ConnectResult::from_completion(completion.dword0(), completion.status) {
            ConnectResult::Accepted { cntlid, authentication: 0 } => self.cntlid = cntlid,
            ConnectResult::Accepted { .. } => return Err(AssociationLoss::Authentication),
            _ => {
                let step = self.step.name();
                return Err(AssociationLoss::Refused { step, status: completion.status });
            }
        }
        if let Some(queue) = self.queues.first_mut() {
            queue.live = true;
        }
        self.read_property(cx, AssociationSetupStep::Capabilities, property::CAP)
    }

    /// Enables the controller, which Connect has created disabled.
    fn enable(&mut self, cx: &mut AssociationEnv<'_>) -> Result<AssociationEvent, AssociationLoss> {
        if self.capabilities.css & 1 == 0 && !cx.config.subsystem.is_discovery() {
            return Err(AssociationLoss::Unusable("it has no NVM command set"));
        }
        let mps = self.capabilities.mpsmin;
        let configuration = ControllerConfiguration { mps, ..ControllerConfiguration::ENABLED };
        let set = PropertySet::new(property::CC, configuration.to_value());
        let set = FabricsCommand::PropertySet(set);
        self.send_step(cx, AssociationSetupStep::Enable, set.to_command(0, Sgl::NONE))
    }

    fn check_ready(
        &mut self,
        cx: &mut AssociationEnv<'_>,
        status: u32,
    ) -> Result<AssociationEvent, AssociationLoss> {
        let status = ControllerStatus::from_value(status);
        if status.fatal {
            return Err(AssociationLoss::Fatal);
        }
        if !status.ready {
            self.step = AssociationSetupStep::Ready(Some(cx.now + READY_POLL));
            return Ok(AssociationEvent::Nothing);
        }
        self.setup_deadline = Some(cx.now + cx.config.setup_timeout);
        // Before the controller is ready its keep alive timer does not run (base section 3.9), and
        // it accepts no Keep Alive.
        let kato = cx.config.keep_alive;
        self.keep_alive = (kato > Duration::ZERO).then(|| cx.now + half(kato));
        let identify = IdentifyCommand { cns: cns::CONTROLLER, ..IdentifyCommand::default() };
        let command = identify.encode_into(NvmeCommand::new(admin::IDENTIFY, 0, 0));
        self.send_step_with_buffer(cx, AssociationSetupStep::Controller, command, None)
    }

    fn identified(
        &mut self,
        cx: &mut AssociationEnv<'_>,
        page: Option<AlignedBuf>,
    ) -> Result<AssociationEvent, AssociationLoss> {
        let Some(page) = page.as_ref().and_then(|page| page.as_slice().first_chunk()) else {
            return Err(AssociationLoss::Unusable("it does not say what it is"));
        };
        let controller = Box::new(IdentifyController::parse(page));
        let page_shift = 12 + u32::from(self.capabilities.mpsmin);
        let most = match controller.mdts {
            0 => DATA_BYTES_MAX,
            mdts => 1_u64.checked_shl(page_shift + u32::from(mdts)).unwrap_or(DATA_BYTES_MAX),
        };
        let data_bytes_max = most.min(DATA_BYTES_MAX);
        self.limits = ControllerLimits { data_bytes_max, oncs: controller.oncs };
        self.events_max = EVENT_REQUESTS.min(controller.aerl.saturating_add(1));
        let (oaes, ioccsz) = (controller.oaes, controller.ioccsz);
        self.controller = Some(controller);
        if cx.config.subsystem.is_discovery() {
            return self.configure_events(cx, oaes);
        }
        if ioccsz < ENTRY_UNITS {
            return Err(AssociationLoss::Unusable(
                "its command capsules have no room for a command",
            ));
        }
        let queues = u32::from(cx.config.queues.max(1));
        let counts = QueueCounts { submission: queues, completion: queues };
        let command = NvmeCommand::new(admin::SET_FEATURES, 0, 0);
        let command = FeaturesCommand::set(feature::NUMBER_OF_QUEUES, counts.to_value(), command);
        self.send_step(cx, AssociationSetupStep::Queues, command)
    }

    fn queues_granted(
        &mut self,
        cx: &mut AssociationEnv<'_>,
        granted: u32,
    ) -> Result<AssociationEvent, AssociationLoss> {
        let granted = QueueCounts::from_value(granted);
        let granted = granted.map_or(1, |counts| counts.submission.min(counts.completion));
        let queues = u32::from(cx.config.queues.max(1)).min(granted);
        let most = self.controller.as_ref().map_or(0, |controller| controller.maxcmd);
        let entries = cx.config.queue_entries.min(self.capabilities.mqes.saturating_add(1));
        let entries = if most > 0 { entries.min(most) } else { entries }.max(2);
        for _ in 0..queues {
            self.open_queue(cx, entries)?;
        }
        let oaes = self.controller.as_ref().map_or(0, |controller| controller.oaes);
        self.configure_events(cx, oaes)
    }

    fn configure_events(
        &mut self,
        cx: &mut AssociationEnv<'_>,
        oaes: u32,
    ) -> Result<AssociationEvent, AssociationLoss> {
        let wanted = oaes & (events::NAMESPACES | events::DISCOVERY);
        if wanted == 0 {
            return self.after_events(cx);
        }
        let command = NvmeCommand::new(admin::SET_FEATURES, 0, 0);
        self.send_step(
            cx,
            AssociationSetupStep::Events,
            FeaturesCommand::set(feature::ASYNC_EVENT, wanted, command),
        )
    }

    fn after_events(
        &mut self,
        cx: &mut AssociationEnv<'_>,
    ) -> Result<AssociationEvent, AssociationLoss> {
        if cx.config.subsystem.is_discovery() {
            self.step = AssociationSetupStep::Idle;
            return Ok(self.check_live());
        }
        self.list_namespaces(cx, 0, None)
    }

    /// Keeps the asynchronous event requests open.
    fn request_events(&mut self, cx: &mut AssociationEnv<'_>) -> Result<(), AssociationLoss> {
        while self.events_open < self.events_max {
            self.events_open += 1;
            let command = NvmeCommand::new(admin::ASYNC_EVENT, 0, 0);
            self.send(cx, 0, (CommandOrigin::AsyncEvent, None), command, CommandData::None)?;
        }
        Ok(())
    }

    fn handle_event(
        &mut self,
        cx: &mut AssociationEnv<'_>,
        completion: &NvmeCompletion,
    ) -> Result<AssociationEvent, AssociationLoss> {
        self.events_open = self.events_open.saturating_sub(1);
        if !completion.status.is_success() {
            // The controller accepts fewer requests than AERL announces, or none.
            self.events_max = self.events_open;
            return Ok(AssociationEvent::Nothing);
        }
        cx.counters.nvmei_events += 1;
        let event = AsyncEvent::from_value(completion.dword0());
        self.request_events(cx)?;
        if event == AsyncEvent::DISCOVERY_CHANGED {
            return Ok(AssociationEvent::DiscoveryChanged);
        }
        if event == AsyncEvent::NAMESPACE_CHANGED {
            self.rescan = true;
            return self.rescan_namespaces(cx).map(|_| AssociationEvent::Nothing);
        }
        Ok(AssociationEvent::Nothing)
    }

    fn queue_connected(
        &mut self,
        _: &mut AssociationEnv<'_>,
        index: usize,
        completion: &NvmeCompletion,
    ) -> Result<AssociationEvent, AssociationLoss> {
        if !completion.status.is_success() {
            return Err(AssociationLoss::Refused { step: IO_QUEUE, status: completion.status });
        }
        let units = self.controller.as_ref().filter(|c| c.icdoff == 0).map_or(0, |c| c.ioccsz);
        let bytes = u64::from(units.saturating_sub(ENTRY_UNITS)) * 16;
        if let Some(queue) = self.queues.get_mut(index) {
            queue.live = true;
            queue.set_in_capsule(usize::try_from(bytes).unwrap_or(usize::MAX));
        }
        Ok(self.check_live())
    }

    fn check_live(&mut self) -> AssociationEvent {
        let live =
            self.step == AssociationSetupStep::Idle && self.queues.iter().all(|queue| queue.live);
        if !live || self.live {
            return AssociationEvent::Nothing;
        }
        (self.live, self.setup_deadline) = (true, None);
        AssociationEvent::Live
    }

    /// Handles expired deadlines.
    pub(super) fn handle_timeout(
        &mut self,
        cx: &mut AssociationEnv<'_>,
    ) -> Result<(), AssociationLoss> {
        if self.setup_deadline.is_some_and(|until| cx.now >= until) {
            let shaking = self.queues.iter().any(|queue| queue.channel.is_handshaking());
            return Err(AssociationLoss::Timeout(if shaking {
                "TLS handshake"
            } else {
                self.step.name()
            }));
        }
        if let AssociationSetupStep::Ready(Some(at)) = self.step {
            if cx.now >= at {
                self.read_property(cx, AssociationSetupStep::Ready(None), property::CSTS)?;
            }
        }
        if self.keep_alive.is_some_and(|at| cx.now >= at) {
            let kato = cx.config.keep_alive;
            self.keep_alive = Some(cx.now + half(kato));
            let command = NvmeCommand::new(admin::KEEP_ALIVE, 0, 0);
            self.send(
                cx,
                0,
                (CommandOrigin::KeepAlive, Some(kato.min(cx.config.command_timeout))),
                command,
                CommandData::None,
            )?;
        }
        // Backwards: if neither a command nor its Abort on the admin queue was answered, the
        // command is handled first.
        for index in (0..self.queues.len()).rev() {
            self.abort_late_commands(cx, index)?;
        }
        Ok(())
    }

    /// Sends Abort for late commands. A command that stays unanswered ends the association.
    fn abort_late_commands(
        &mut self,
        cx: &mut AssociationEnv<'_>,
        index: usize,
    ) -> Result<(), AssociationLoss> {
        let patience = cx.config.command_timeout;
        while let Some(queue) = self.queues.get_mut(index) {
            let sqid = queue.id;
            let Some(LateCommand { owner, cid, again }) = queue.poll_late(cx.now, patience) else {
                return Ok(());
            };
            cx.counters.nvmei_timeouts += 1;
            if again || !matches!(owner, CommandOrigin::Request(_)) {
                return Err(AssociationLoss::Timeout(match owner {
                    CommandOrigin::Request(_) => "command, and its abort",
                    CommandOrigin::KeepAlive => "keep alive",
                    _ => self.step.name(),
                }));
            }
            let most = self.controller.as_ref().map_or(0, |controller| controller.acl);
            let room = self.queues.first().is_some_and(|admin| admin.room() > ADMIN_LEFT);
            if self.aborts_open <= most && room {
                cx.counters.nvmei_aborts += 1;
                self.aborts_open += 1;
                let command =
                    AbortCommand { sqid, cid }.encode_into(NvmeCommand::new(admin::ABORT, 0, 0));
                self.send(
                    cx,
                    0,
                    (CommandOrigin::Abort, Some(patience)),
                    command,
                    CommandData::None,
                )?;
            }
        }
        Ok(())
    }

    /// Returns the time at which [`Self::handle_timeout`] or a transport has work to do.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let ready = match self.step {
            AssociationSetupStep::Ready(at) => at,
            _ => None,
        };
        let queues = self.queues.iter().filter_map(InitiatorQueue::poll_timeout).min();
        [self.setup_deadline, ready, self.keep_alive, queues].into_iter().flatten().min()
    }

    /// Asks the controller for a normal shutdown (base section 3.6.2).
    pub(super) fn shut_down(&mut self, cx: &mut AssociationEnv<'_>) {
        let configuration = ControllerConfiguration {
            shutdown: ShutdownNotification::Normal,
            ..ControllerConfiguration::ENABLED
        };
        let set = PropertySet::new(property::CC, configuration.to_value());
        let command = FabricsCommand::PropertySet(set).to_command(0, Sgl::NONE);
        // If the queue has no room, closing the connections has to suffice.
        let _ = self.send(cx, 0, (CommandOrigin::SetUp, None), command, CommandData::None);
    }
}

/// Checks that the requested digests were granted. Without them damage would go undetected that the
/// user asked to detect. Linux's initiator ends the association in this case, too.
fn check_digests(cx: &AssociationEnv<'_>, queue: &InitiatorQueue) -> Result<(), AssociationLoss> {
    let Some(agreed) = queue.channel.transport.negotiated() else { return Ok(()) };
    if cx.config.header_digest && !agreed.header_digest {
        return Err(AssociationLoss::NoDigests("header"));
    }
    if cx.config.data_digest && !agreed.data_digest {
        return Err(AssociationLoss::NoDigests("data"));
    }
    Ok(())
}

/// Returns half of the keep alive timeout, the interval of Keep Alive commands.
fn half(kato: Duration) -> Duration {
    Duration::from_nanos(kato.as_nanos() / 2)
}
