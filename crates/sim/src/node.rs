//! A machine: a device, a host above it, an application above that, and the rings between them.
//!
//! The halves take turns like the threads of `outboard serve`: a turn takes a bounded batch of
//! input, processes it, and emits output while the rings have room. Nothing happens in a half
//! between its turns. [`crate::run`] schedules the turns.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use abi::disk::{DiskCompletion, DiskRequest};
use abi::link::{LinkTxStatus, RxFrame, TxFrame};
use abi::splice::{Splice, SpliceId};
use abi::steering::SteeredFrame;
use abi::{Event, Op, PacketBuf, PacketPool};
use apps::content::ContentServer;
use apps::nvme::target::NvmeTarget;
use apps::pattern_rules::PatternRules;
use apps::proxy::{Proxy, ProxyTable};
use apps::remote::RemoteContentServer;
use base::{Duration, Instant};
use host::{Application, Host, MovedConnection, Notice};
use nic::Device;
use node::record::{RecordLane, describe_event, describe_op};
use node::{DeviceHalf, DevicePorts, DiskPort, HostHalf, HostPorts, RETRY, TurnResult};

use crate::checkers::echo::EchoOrder;
use crate::checkers::patterns::ClaimChecker;
use crate::checkers::quic::QuicOrderChecker;
use crate::client::{ClientEnv, SimClient};
use crate::disk::SimDisk;
use crate::events::{NodeHalf, SentFrame, SimLinkFrame};
use crate::misbehaving_host::MisbehavingHost;
use crate::queues::SimQueue;
use crate::remote_device::RemoteDevice;
use crate::report::RunReport;
use crate::storage::rogue::Rogue;
use crate::storage::user::User;
use crate::trace::TraceKind;

/// Frames that wait for the device before further ones are lost.
const RECEIVE_MAX: usize = 4_096;

/// Payload bytes of the longest run that a port accepts.
const RUN_BYTES_MAX: usize = 65_416;

/// Application above the host.
pub(crate) enum App {
    Server(Box<ContentServer>),
    RemoteServer(Box<RemoteContentServer>),
    Proxy(Box<Proxy>),
    Client(Box<SimClient>),
    Target(Box<NvmeTarget>),
    User(Box<User>),
    Rogue(Box<Rogue>),
}

/// Result of a turn.
#[derive(Debug, Default)]
pub(crate) struct NodeTurnResult {
    /// The other half has to be woken.
    pub(crate) ring: bool,
    /// Time of the next turn of this half, on the simulation's clock.
    pub(crate) next: Option<Instant>,
    /// For the trace: numbers of items taken from the three kinds of queues.
    pub(crate) taken: [u64; 3],
}

/// The parts of the simulation that a turn uses.
pub(crate) struct TurnEnv<'a> {
    pub(crate) now: Instant,
    /// The node whose turn it is.
    pub(crate) node: usize,
    pub(crate) disk: &'a mut SimDisk,
    pub(crate) report: &'a mut RunReport,
    /// Disk requests, submitted after the turn.
    pub(crate) requests: Vec<DiskRequest>,
    /// Frames for the network, sent after the turn.
    pub(crate) frames: Vec<SentFrame>,
    /// Pairs that the device has begun to splice.
    pub(crate) spliced: Vec<Splice>,
    /// Pairs whose end the device has reported to the host; `None` means all (a reset).
    pub(crate) unspliced: Vec<Option<SpliceId>>,
    /// Number of requests that the disk still accepts.
    pub(crate) disk_room: usize,
    /// Time at which the port accepts frames again, if it does not now.
    pub(crate) port_ready: Result<(), Instant>,
    /// Number of frames that the port accepts in this turn.
    pub(crate) port_room: usize,
    /// The port has refused a frame.
    pub(crate) port_refused: bool,
    /// Number of frames that the device of each queue of the machine has room for.
    pub(crate) steering_room: Vec<usize>,
    /// Frames for the devices of other queues, and free buffers in return for theirs.
    pub(crate) steered: Vec<(usize, SteeredFrame)>,
    pub(crate) spares: Vec<(usize, PacketBuf)>,
    /// Connections for the hosts of other queues.
    pub(crate) moved: Vec<(usize, MovedConnection)>,
}

/// The rings between the halves of a machine, and the inputs of each half from outside.
#[derive(Debug)]
struct NodeRings {
    ops: VecDeque<Op>,
    recycle: VecDeque<PacketBuf>,
    /// Buffers dropped because the `recycle` ring was full.
    recycle_overruns: u64,
    events: VecDeque<Event>,
    /// Frames that have arrived.
    received: VecDeque<SimLinkFrame>,
    /// Frames that other devices of the machine have handed over, with their queues.
    steered: VecDeque<(usize, SteeredFrame)>,
    /// Connections that other hosts of the machine have sent.
    moved: VecDeque<MovedConnection>,
    device_disk: VecDeque<DiskCompletion>,
    host_disk: VecDeque<DiskCompletion>,
    slots: usize,
    /// The carrier, if the device is another process.
    remote: Option<Box<RemoteDevice>>,
}

impl NodeRings {
    const fn new(slots: usize) -> Self {
        Self {
            ops: VecDeque::new(),
            recycle: VecDeque::new(),
            recycle_overruns: 0,
            events: VecDeque::new(),
            received: VecDeque::new(),
            steered: VecDeque::new(),
            moved: VecDeque::new(),
            device_disk: VecDeque::new(),
            host_disk: VecDeque::new(),
            slots,
            remote: None,
        }
    }

    /// Loses the operations and events on the way. The buffers of frames in events return to the
    /// device's pool, which stays, so that they are not missed.
    fn lose(&mut self) {
        for op in self.ops.drain(..) {
            if let (Op::DdpSetup(setup), Some(remote)) = (op, &mut self.remote) {
                remote.recall_unsent(*setup);
            }
        }
        self.received.clear();
        for event in self.events.drain(..) {
            if let Event::Received(received) = event {
                self.recycle.push_back(received.packet);
            }
        }
    }
}

/// Checkers that watch the contract between the halves.
#[derive(Debug, Default)]
pub(crate) struct ContractWatch {
    /// Pairs that the device was asked to splice and has not started.
    splices: BTreeMap<SpliceId, Splice>,
    pub(crate) echo_order: EchoOrder,
    /// Order in which the device delivered QUIC packets since its start.
    pub(crate) quic_order: QuicOrderChecker,
    pub(crate) claims: ClaimChecker,
}

/// A machine.
pub(crate) struct SimNode {
    device: DeviceHalf,
    host: HostHalf,
    pub(crate) app: App,
    rings: NodeRings,
    pub(crate) watch: ContractWatch,
    pub(crate) odd: MisbehavingHost,
    pub(crate) receive_overruns: u64,
    pub(crate) queue: SimQueue,
    /// Times of the next turns of device and host.
    pub(crate) turns: [Instant; 2],
    /// Lead of the node's clock over simulated time.
    ahead: Duration,
    /// Stopped, for good or until it starts again.
    pub(crate) stopped: bool,
    /// The program was asked to terminate and has not yet.
    pub(crate) terminating: bool,
    /// Number of times that the machine was killed or its program terminated.
    pub(crate) life: u32,
    /// All counters at the end of the run; empty before.
    frozen_counters: BTreeMap<&'static str, u64>,
}

impl SimNode {
    pub(crate) fn new(device: Device, host: Host, app: App, ahead: Duration, slots: usize) -> Self {
        Self {
            device: DeviceHalf::new(device, 0),
            host: HostHalf::new(host),
            app,
            rings: NodeRings::new(slots),
            watch: ContractWatch::default(),
            odd: MisbehavingHost::default(),
            receive_overruns: 0,
            queue: SimQueue::ONLY,
            turns: [Instant::FAR_FUTURE; 2],
            ahead,
            stopped: false,
            terminating: false,
            life: 0,
            frozen_counters: BTreeMap::new(),
        }
    }

    /// Makes the node one of several queues of its machine.
    pub(crate) fn on_queue(self, queue: SimQueue) -> Self {
        Self { device: DeviceHalf::new(self.device.device, queue.index), queue, ..self }
    }

    /// Makes the device another process, if there is a carrier to it.
    pub(crate) fn with_remote_device(mut self, remote: Option<Box<RemoteDevice>>) -> Self {
        self.rings.remote = remote;
        self
    }

    /// Returns whether the device's process is about to die.
    pub(crate) fn device_is_dying(&self) -> bool {
        self.rings.remote.as_ref().is_some_and(|remote| remote.is_dying())
    }

    /// Compares the claims of the device about these rules' patterns with the results of software.
    pub(crate) fn with_patterns(mut self, rules: Option<Arc<PatternRules>>) -> Self {
        self.watch.claims.patterns = rules.map(|rules| Arc::clone(rules.patterns()));
        self
    }

    /// Makes the device silently lose its most recent transmit context.
    pub(crate) fn lose_context(&mut self) {
        self.odd.lose_context(&mut self.rings.ops);
    }

    /// Converts simulated time to the node's own.
    pub(crate) fn local(&self, now: Instant) -> Instant {
        now + self.ahead
    }

    /// Converts the node's own time to simulated time.
    fn global(&self, local: Instant) -> Instant {
        local - self.ahead
    }

    pub(crate) const fn device(&self) -> &Device {
        &self.device.device
    }

    pub(crate) const fn host(&self) -> &Host {
        &self.host.host
    }

    /// Queues a frame that has arrived.
    pub(crate) fn receive(&mut self, frame: SimLinkFrame) {
        if self.rings.received.len() < RECEIVE_MAX {
            self.rings.received.push_back(frame);
        } else {
            self.receive_overruns += 1;
        }
    }

    /// Returns the number of frames of other devices that the node has room for.
    pub(crate) fn steering_room(&self) -> usize {
        self.rings.slots.saturating_sub(self.rings.steered.len())
    }

    /// Queues a frame that the device of another queue has received.
    pub(crate) fn take_steered(&mut self, from: usize, frame: SteeredFrame) {
        self.rings.steered.push_back((from, frame));
    }

    /// Queues a connection that the host of another queue has sent.
    pub(crate) fn take_moved(&mut self, moved: MovedConnection) {
        self.rings.moved.push_back(moved);
    }

    /// Queues a free buffer of another device.
    pub(crate) fn take_spare(&mut self, spare: PacketBuf) {
        self.rings.recycle.push_back(spare);
    }

    /// Queues a disk completion for one half.
    pub(crate) fn complete(&mut self, side: NodeHalf, completion: DiskCompletion) {
        match side {
            NodeHalf::Device => self.rings.device_disk.push_back(completion),
            NodeHalf::Host => self.rings.host_disk.push_back(completion),
        }
    }

    /// Kills the machine: all state in it is lost.
    pub(crate) fn kill(&mut self) {
        self.stopped = true;
        self.terminating = false;
        self.life += 1;
        self.turns = [Instant::FAR_FUTURE; 2];
        let mut remote = self.rings.remote.take();
        remote.iter_mut().for_each(|remote| remote.restart());
        self.rings = NodeRings { remote, ..NodeRings::new(self.rings.slots) };
        self.watch.splices.clear();
        self.watch.echo_order.clear();
    }

    /// Asks the program to terminate.
    pub(crate) fn end(&mut self, now: Instant) {
        let local = self.local(now);
        let mut none = ();
        self.host.end(local, self.app.as_application(|_| &mut none));
        self.terminating = true;
    }

    /// Returns the device and the host of a machine that has not run.
    pub(crate) fn into_halves(self) -> (Device, Host) {
        (self.device.device, self.host.host)
    }

    /// Starts the machine again with the given device and host.
    pub(crate) fn start(&mut self, device: Device, host: Host) {
        self.device = DeviceHalf::new(device, self.queue.index);
        self.host = HostHalf::new(host);
        self.watch.quic_order = QuicOrderChecker::default();
        self.stopped = false;
    }

    /// Resets the device, which loses its state, or kills its process.
    pub(crate) fn reset_device(&mut self, now: Instant) {
        self.device.device.reset();
        self.watch.echo_order.clear();
        let Some(remote) = &mut self.rings.remote else { return };
        remote.die(now);
        self.rings.lose();
        while let Some((_, event)) = self.device.device.poll_event() {
            if let Event::Received(received) = event {
                self.rings.recycle.push_back(received.packet);
            }
        }
        self.watch.splices.clear();
        self.watch.quic_order = QuicOrderChecker::default();
    }

    /// Returns the number of buffers on their way from the host to the device's pool, including
    /// those that the ring had no room for.
    pub(crate) fn recycled(&self) -> u64 {
        self.rings.recycle.len() as u64 + self.rings.recycle_overruns
    }

    /// Returns whether nothing waits between the halves.
    pub(crate) fn is_idle(&self) -> bool {
        let NodeRings { ops, events, received, steered, moved, device_disk, host_disk, .. } =
            &self.rings;
        self.host.is_idle()
            && ops.is_empty()
            && events.is_empty()
            && received.is_empty()
            && steered.is_empty()
            && moved.is_empty()
            && device_disk.is_empty()
            && host_disk.is_empty()
            && self.rings.remote.as_ref().is_none_or(|remote| remote.is_settled())
    }

    /// Runs a turn of the device.
    pub(crate) fn device_turn(&mut self, around: &mut TurnEnv<'_>) -> NodeTurnResult {
        let now = self.local(around.now);
        let soon = around.now + Duration::from_micros(1);
        let mut turned = NodeTurnResult::default();
        let lost = self.rings.remote.as_mut();
        if let Some((until, remote)) = lost.and_then(|it| Some((it.lost_until()?, it))) {
            if until > around.now {
                self.rings.lose();
                return NodeTurnResult { next: Some(until), ..turned };
            }
            remote.attach(self.device.device.capabilities().mtu);
            around.unspliced.push(None);
            turned.ring = true;
        }
        let (rings, watch) = (&mut self.rings, &mut self.watch);
        let mut ports = SimDevicePorts { rings, watch, around, turned, full: None };
        let TurnResult { more, blocked, .. } = self.device.turn(now, &mut ports);
        let (mut turned, full) = (ports.turned, ports.full);
        let NodeRings { received, steered, device_disk, ops, events, .. } = &self.rings;
        let takes_ops = self.device.device.can_take_op();
        let more = more
            || !received.is_empty()
            || !steered.is_empty()
            || !device_disk.is_empty()
            || (takes_ops && !ops.is_empty());
        // A busy link reports when it accepts frames again.
        let waits_for_host = !takes_ops || events.len() >= self.rings.slots;
        let retry = blocked && (full.is_none() || waits_for_host);
        let retry = retry.then(|| around.now + RETRY);
        let due = self.device.poll_timeout(now).map(|at| self.global(at));
        let full = full.map(|at| at.max(soon));
        turned.next = [due, retry, full, more.then_some(soon)].into_iter().flatten().min();
        turned
    }

    /// Runs a turn of the host and the application.
    pub(crate) fn host_turn(&mut self, around: &mut TurnEnv<'_>) -> NodeTurnResult {
        let local = self.local(around.now);
        let soon = around.now + Duration::from_micros(1);
        let ring = self.odd.begin_turn(&mut self.rings.ops);
        let mut turned = NodeTurnResult { ring, ..NodeTurnResult::default() };
        let (rings, odd, requests) = (&mut self.rings, &mut self.odd, &mut around.requests);
        let moved = &mut around.moved;
        let mut ports = SimHostPorts { rings, odd, requests, moved, turned: &mut turned };
        let (now, disk, report) = (around.now, &*around.disk, &mut *around.report);
        let mut client_turn = None;
        let app = self
            .app
            .as_application(|client| client_turn.insert(ClientTurn { client, now, disk, report }));
        let turn = self.host.turn(local, app, &mut ports);
        while app.poll_log().is_some() {}
        let due = self.host.poll_timeout(app).map(|at| self.global(at).max(soon));
        let retry = turn.blocked.then(|| around.now + RETRY);
        let again = turn.more.then_some(soon);
        turned.next = [due, retry, again].into_iter().flatten().min();
        if let App::RemoteServer(server) = &mut self.app {
            while server.poll_event().is_some() {}
        }
        self.report_user(around);
        turned
    }

    /// Moves the log and the errors of a user of namespaces to the report.
    fn report_user(&mut self, around: &mut TurnEnv<'_>) {
        let App::User(user) = &mut self.app else { return };
        for fields in user.log.drain(..) {
            around.report.trace.note(around.now, around.node, TraceKind::User, fields);
        }
        if let Some(what) = user.wrong.take() {
            around.report.fail(around.now, "storage", format!("n{}: {what}", around.node));
        }
    }

    /// Returns whether other queues' targets have sent mail to this one's.
    pub(crate) fn has_mail(&self) -> bool {
        matches!(&self.app, App::Target(target) if target.has_mail())
    }

    /// Lets the application end its connections in order, and accept no more.
    pub(crate) fn drain(&mut self, now: Instant) {
        let local = self.local(now);
        let mut none = ();
        self.app.as_application(|_| &mut none).drain(local, &mut self.host.host);
    }

    /// Applies another table to the proxy; ignored on other machines.
    pub(crate) fn apply(&mut self, now: Instant, table: ProxyTable) {
        let local = self.local(now);
        if let App::Proxy(proxy) = &mut self.app {
            let applied = proxy.apply(local, &mut self.host.host, table);
            assert_eq!(applied, Ok(()), "its listeners do not change");
        }
    }

    /// Keeps the present values of all counters for [`Self::counter`], since the checks at the end
    /// of a run look up hundreds. The machine does nothing afterwards.
    pub(crate) fn freeze_counters(&mut self) {
        let mut counters = BTreeMap::new();
        self.visit(&mut |name, value| {
            counters.insert(name, value);
        });
        self.frozen_counters = counters;
    }

    /// Returns the bytes of the device's memory that file blocks occupy.
    pub(crate) fn file_memory_bytes(&self) -> u64 {
        let mut found = 0;
        self.device.device.visit(&mut |name, value| {
            if name == "file_memory_bytes" {
                found = value;
            }
        });
        found
    }

    /// Returns a counter or gauge of the device, the host or the application by name; 0 if there is
    /// none.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        if !self.frozen_counters.is_empty() {
            return self.frozen_counters.get(name).copied().unwrap_or(0);
        }
        let mut found = 0;
        let mut look = |n: &'static str, value: u64| {
            if n == name {
                found = value;
            }
        };
        self.visit(&mut look);
        found
    }

    /// Visits all counters and gauges of the machine.
    pub(crate) fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.device.device.visit(f);
        self.host.host.visit(f);
        if let Some(remote) = &self.rings.remote {
            remote.visit(f);
        }
        match &self.app {
            App::Server(server) => server.visit(f),
            App::RemoteServer(server) => server.visit(f),
            App::Proxy(proxy) => proxy.visit(f),
            App::Client(client) => {
                if let Some(h3) = &client.h3 {
                    h3.visit(f);
                }
            }
            App::Target(target) => target.visit(f),
            App::User(user) => user.initiator.visit_counters(f),
            App::Rogue(rogue) => rogue.counters.visit(f),
        }
    }
}

impl App {
    /// Returns the application for the host's driver. A client needs more than its host; `client`
    /// wraps it.
    fn as_application<'a>(
        &'a mut self,
        client: impl FnOnce(&'a mut SimClient) -> &'a mut dyn Application,
    ) -> &'a mut dyn Application {
        match self {
            Self::Server(server) => &mut **server,
            Self::RemoteServer(server) => &mut **server,
            Self::Proxy(proxy) => &mut **proxy,
            Self::Client(it) => client(it),
            Self::Target(target) => &mut **target,
            Self::User(user) => &mut **user,
            Self::Rogue(rogue) => &mut **rogue,
        }
    }
}

/// A client with the parts of the simulation that it needs besides its host.
struct ClientTurn<'a> {
    client: &'a mut SimClient,
    now: Instant,
    disk: &'a SimDisk,
    report: &'a mut RunReport,
}

impl ClientTurn<'_> {
    fn with<R>(
        &mut self,
        local: Instant,
        host: &mut Host,
        work: impl FnOnce(&mut SimClient, &mut ClientEnv<'_>) -> R,
    ) -> R {
        let (now, disk) = (self.now, self.disk);
        work(self.client, &mut ClientEnv { now, local, host, disk, report: self.report })
    }
}

impl Application for ClientTurn<'_> {
    fn handle_notice(&mut self, local: Instant, host: &mut Host, notice: Notice) {
        self.with(local, host, |client, cx| client.handle_notice(notice, cx));
    }

    fn handle_timeout(&mut self, local: Instant, host: &mut Host) {
        self.with(local, host, SimClient::handle_timeout);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.client.poll_timeout()
    }

    fn advance(&mut self, local: Instant, host: &mut Host) -> bool {
        self.with(local, host, SimClient::advance);
        false
    }
}

/// Ports of a device: link, disk and rings.
struct SimDevicePorts<'a, 'w> {
    rings: &'a mut NodeRings,
    watch: &'a mut ContractWatch,
    around: &'a mut TurnEnv<'w>,
    turned: NodeTurnResult,
    /// Time at which the link accepts frames again, if it refused one.
    full: Option<Instant>,
}

impl DiskPort for SimDevicePorts<'_, '_> {
    fn submit(&mut self, _: Instant, request: DiskRequest) -> Result<(), DiskRequest> {
        if !matches!(request, DiskRequest::Close { .. }) {
            if self.around.disk_room == 0 {
                return Err(request);
            }
            self.around.disk_room -= 1;
        }
        self.around.requests.push(request);
        Ok(())
    }

    fn poll(&mut self, _: Instant) -> Option<DiskCompletion> {
        let completion = self.rings.device_disk.pop_front()?;
        self.turned.taken[2] += 1;
        Some(completion)
    }
}

impl DevicePorts for SimDevicePorts<'_, '_> {
    fn receive(&mut self, _: Instant, pool: &mut PacketPool) -> Option<RxFrame> {
        loop {
            let SimLinkFrame { bytes, checksum, segment_size, .. } =
                self.rings.received.pop_front()?;
            self.turned.taken[0] += 1;
            if let Some(packet) = pool.copy(&bytes) {
                return Some(RxFrame { packet, checksum, segment_size });
            }
        }
    }

    fn transmit(&mut self, _: Instant, frame: &mut TxFrame) -> LinkTxStatus {
        let TurnEnv { now, node, port_ready, port_room, .. } = *self.around;
        if port_ready.is_err() || port_room == 0 {
            self.full = port_ready.err();
            self.around.port_refused = true;
            return LinkTxStatus::Full;
        }
        if frame.payload_len() > RUN_BYTES_MAX {
            return LinkTxStatus::TooLong;
        }
        self.around.port_room -= 1;
        if let Err(what) = self.watch.echo_order.sent(frame) {
            self.around.report.fail(now, "echo", format!("n{node}: {what}"));
        }
        self.around.frames.push(SentFrame::new(frame));
        LinkTxStatus::Sent
    }

    fn pop_op(&mut self, pool: &mut PacketPool) -> Option<Op> {
        if self.rings.remote.as_ref().is_some_and(|remote| remote.is_dying()) {
            return None;
        }
        let op = loop {
            let op = self.rings.ops.pop_front()?;
            let Some(remote) = &mut self.rings.remote else { break op };
            match remote.cross_op(op, pool) {
                Some(op) => break op,
                // The host has an event.
                None => self.turned.ring = true,
            }
        };
        self.turned.taken[1] += 1;
        match &op {
            Op::Splice(splice) => {
                self.watch.splices.insert(splice.id, (**splice).clone());
            }
            Op::SpliceStart { id, .. } => {
                self.around.spliced.extend(self.watch.splices.remove(id));
            }
            _ => {}
        }
        self.watch.quic_order.note_op(&op);
        self.watch.echo_order.taken(&op);
        let TurnEnv { now, node, .. } = *self.around;
        let trace = &mut self.around.report.trace;
        trace.record(now, node, RecordLane::Operation, || describe_op(&op));
        Some(op)
    }

    fn pop_recycled(&mut self) -> Option<PacketBuf> {
        self.rings.recycle.pop_front()
    }

    fn push_event(&mut self, _: usize, event: Event) -> Result<(), Event> {
        if self.rings.events.len() >= self.rings.slots {
            return Err(event);
        }
        if let Err(what) = self.watch.claims.delivered(&event) {
            let TurnEnv { now, node, .. } = *self.around;
            self.around.report.fail(now, "patterns", format!("n{node}: {what}"));
        }
        let TurnEnv { now, node, .. } = *self.around;
        let trace = &mut self.around.report.trace;
        trace.record(now, node, RecordLane::Event, || describe_event(&event));
        self.watch.quic_order.note_event(&event);
        self.watch.echo_order.delivered(&event);
        match &event {
            Event::SpliceClosed(closed) => self.around.unspliced.push(Some(closed.id)),
            Event::Reset => self.around.unspliced.push(None),
            _ => {}
        }
        self.rings.events.push_back(event);
        Ok(())
    }

    fn wake_host(&mut self, _: usize) {
        self.turned.ring = true;
    }

    fn push_steered(&mut self, queue: usize, frame: SteeredFrame) -> Result<(), SteeredFrame> {
        match self.around.steering_room.get_mut(queue) {
            Some(room) if *room > 0 => *room -= 1,
            _ => return Err(frame),
        }
        self.around.steered.push((queue, frame));
        Ok(())
    }

    fn pop_steered(&mut self) -> Option<(usize, SteeredFrame)> {
        let frame = self.rings.steered.pop_front()?;
        self.turned.taken[0] += 1;
        Some(frame)
    }

    fn push_spare(&mut self, queue: usize, packet: PacketBuf) {
        self.around.spares.push((queue, packet));
    }
}

/// Ports of a host: rings and disk.
struct SimHostPorts<'a> {
    rings: &'a mut NodeRings,
    odd: &'a mut MisbehavingHost,
    requests: &'a mut Vec<DiskRequest>,
    moved: &'a mut Vec<(usize, MovedConnection)>,
    turned: &'a mut NodeTurnResult,
}

impl DiskPort for SimHostPorts<'_> {
    fn submit(&mut self, _: Instant, request: DiskRequest) -> Result<(), DiskRequest> {
        self.requests.push(request);
        Ok(())
    }

    fn poll(&mut self, _: Instant) -> Option<DiskCompletion> {
        let completion = self.rings.host_disk.pop_front()?;
        self.turned.taken[2] += 1;
        Some(completion)
    }
}

impl HostPorts for SimHostPorts<'_> {
    fn pop_event(&mut self) -> Option<Event> {
        let Some(remote) = &mut self.rings.remote else {
            let event = self.rings.events.pop_front()?;
            self.turned.taken[0] += 1;
            return Some(event);
        };
        let event = match remote.pop_own_event() {
            Some(event) => event,
            None => {
                let (event, buffer) = remote.cross_event(self.rings.events.pop_front()?);
                self.rings.recycle.extend(buffer);
                event
            }
        };
        self.turned.taken[0] += 1;
        Some(event)
    }

    fn has_op_room(&mut self) -> bool {
        self.rings.ops.len() < self.rings.slots
            && self.rings.remote.as_ref().is_none_or(|remote| remote.is_attached())
    }

    fn push_op(&mut self, op: Op) {
        self.odd.pass(op, &mut self.rings.ops);
        self.turned.taken[1] += 1;
    }

    fn push_recycled(&mut self, packet: PacketBuf) {
        if let Some(remote) = &mut self.rings.remote {
            return remote.recycle(packet);
        }
        if self.rings.recycle.len() < self.rings.slots {
            self.rings.recycle.push_back(packet);
        } else {
            // A buffer that does not fit costs the device an allocation later.
            self.rings.recycle_overruns += 1;
        }
    }

    fn wake_device(&mut self) {
        self.turned.ring = true;
    }

    fn has_moved_room(&mut self, _: usize) -> bool {
        true
    }

    fn push_moved(&mut self, queue: usize, moved: MovedConnection) {
        self.moved.push((queue, moved));
    }

    fn pop_moved(&mut self) -> Option<MovedConnection> {
        let moved = self.rings.moved.pop_front()?;
        self.turned.taken[0] += 1;
        Some(moved)
    }
}
