//! A machine: a device, a host above it, an application above that, and the rings between them.
//!
//! Each half takes turns as the threads of `outboard serve` do: it takes a bounded batch of what
//! has come, works, and gives out what the rings have room for. Between its turns nothing happens
//! in it. The world decides when a turn comes.

use std::collections::{BTreeMap, VecDeque};

use abi::disk::{DiskCompletion, DiskRequest};
use abi::port::{RxFrame, TxFrame};
use abi::splice::{Splice, SpliceId};
use abi::{Event, Op, PacketBuf};
use apps::content::ContentServer;
use apps::nvme::target::Target;
use apps::proxy::{Proxy, Table};
use base::{Duration, Instant};
use host::Host;
use nic::Device;

use crate::checkers::echo::EchoOrder;
use crate::checkers::quic::Order;
use crate::client::{Client, Context};
use crate::disk::SimDisk;
use crate::events::Arrival;
use crate::odd::OddHost;
use crate::report::Report;
use crate::storage::rogue::Rogue;
use crate::storage::user::User;
use crate::trace::What;

/// Taken from each source in a turn.
const BATCH: usize = 64;
/// When a full ring or port is tried again.
const RETRY: Duration = Duration::from_micros(200);
/// Frames that wait for the device before the wire loses them.
const RECEIVE_MAX: usize = 4_096;

/// What runs above the host.
pub(crate) enum App {
    Server(Box<ContentServer>),
    Proxy(Box<Proxy>),
    Client(Box<Client>),
    Target(Box<Target>),
    User(Box<User>),
    Rogue(Box<Rogue>),
}

/// What a turn came to.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// The other half has something to take.
    pub(crate) ring: bool,
    /// When this half wants another turn.
    pub(crate) next: Option<Instant>,
    /// For the trace: how much of what was taken.
    pub(crate) taken: [u64; 3],
}

/// What a turn may use of the world.
pub(crate) struct Around<'a> {
    pub(crate) now: Instant,
    /// Whose turn it is.
    pub(crate) node: usize,
    pub(crate) disk: &'a mut SimDisk,
    pub(crate) report: &'a mut Report,
    /// Requests for the disk, to be submitted by the world.
    pub(crate) requests: Vec<DiskRequest>,
    /// Frames for the network.
    pub(crate) frames: Vec<TxFrame>,
    /// Pairs that the device has begun to relay.
    pub(crate) spliced: Vec<Splice>,
    /// Pairs of which the host hears that they have ended; none stands for all.
    pub(crate) unspliced: Vec<Option<SpliceId>>,
    /// Requests that the disk still takes.
    pub(crate) disk_room: usize,
    /// Frames that the port still takes.
    pub(crate) port_ready: Result<(), Instant>,
}

/// A machine.
pub(crate) struct Node {
    pub(crate) device: Device,
    pub(crate) host: Host,
    pub(crate) app: App,
    ops: VecDeque<Op>,
    recycle: VecDeque<PacketBuf>,
    /// Buffers that this ring had no room for.
    recycle_overruns: u64,
    events: VecDeque<Event>,
    /// An operation that the ring had no room for.
    waiting: Option<Op>,
    /// Pairs that the device was asked to take, and has not begun with.
    splices: BTreeMap<SpliceId, Splice>,
    pub(crate) odd: OddHost,
    pub(crate) echo_order: EchoOrder,
    /// Frames that have arrived.
    received: VecDeque<Arrival>,
    pub(crate) receive_overruns: u64,
    /// The order in which the device delivered packets of QUIC since its start.
    pub(crate) quic_order: Order,
    pub(crate) device_disk: VecDeque<DiskCompletion>,
    pub(crate) host_disk: VecDeque<DiskCompletion>,
    /// When the halves' next turns are.
    pub(crate) turns: [Instant; 2],
    /// By how much its clock is ahead of the world's.
    ahead: Duration,
    /// It has stopped, for good or until it starts again.
    pub(crate) stopped: bool,
    /// The program was told to end.
    pub(crate) ends: bool,
    /// Times that it was killed.
    pub(crate) life: u32,
    slots: usize,
}

impl Node {
    /// The device loses the context for sealing that it was asked for last, and tells nobody.
    pub(crate) fn lose_context(&mut self) {
        self.odd.lose_context(&mut self.ops);
    }

    pub(crate) fn new(device: Device, host: Host, app: App, ahead: Duration, slots: usize) -> Self {
        Self {
            device,
            host,
            app,
            ops: VecDeque::new(),
            recycle: VecDeque::new(),
            recycle_overruns: 0,
            events: VecDeque::new(),
            waiting: None,
            splices: BTreeMap::new(),
            odd: OddHost::default(),
            echo_order: EchoOrder::default(),
            received: VecDeque::new(),
            receive_overruns: 0,
            quic_order: Order::default(),
            device_disk: VecDeque::new(),
            host_disk: VecDeque::new(),
            turns: [Instant::FAR_FUTURE; 2],
            ahead,
            stopped: false,
            ends: false,
            life: 0,
            slots,
        }
    }

    /// The node's own time.
    pub(crate) fn local(&self, now: Instant) -> Instant {
        now + self.ahead
    }

    /// The world's time, from the node's own.
    fn global(&self, local: Instant) -> Instant {
        local - self.ahead
    }

    /// A frame has arrived at the wire.
    pub(crate) fn receive(&mut self, frame: Arrival) {
        if self.received.len() < RECEIVE_MAX {
            self.received.push_back(frame);
        } else {
            self.receive_overruns += 1;
        }
    }

    /// It is killed: what was in it is nowhere.
    pub(crate) fn kill(&mut self) {
        self.stopped = true;
        self.ends = false;
        self.life += 1;
        self.turns = [Instant::FAR_FUTURE; 2];
        self.ops.clear();
        self.recycle.clear();
        self.recycle_overruns = 0;
        self.events.clear();
        self.waiting = None;
        self.splices.clear();
        self.echo_order.clear();
        self.received.clear();
        self.device_disk.clear();
        self.host_disk.clear();
    }

    /// The program is told to end.
    pub(crate) fn end(&mut self, now: Instant) {
        let local = self.local(now);
        match &mut self.app {
            App::Server(server) => server.end(local, &mut self.host),
            App::Proxy(proxy) => proxy.end(local),
            App::Client(_) | App::Target(_) | App::User(_) | App::Rogue(_) => {}
        }
        self.host.end(local);
        self.ends = true;
    }

    /// It starts again, with this device and host.
    pub(crate) fn start(&mut self, device: Device, host: Host) {
        (self.device, self.host) = (device, host);
        self.quic_order = Order::default();
        self.stopped = false;
    }

    /// The device loses its state.
    pub(crate) fn reset_device(&mut self) {
        self.device.reset();
        self.echo_order.clear();
    }

    /// Buffers on their way from the host to the device's pool, and those that the ring between
    /// them had no room for.
    pub(crate) fn recycled(&self) -> u64 {
        self.recycle.len() as u64 + self.recycle_overruns
    }

    /// Whether anything waits between the halves.
    pub(crate) fn is_idle(&self) -> bool {
        self.ops.is_empty()
            && self.events.is_empty()
            && self.waiting.is_none()
            && self.received.is_empty()
            && self.device_disk.is_empty()
            && self.host_disk.is_empty()
    }

    /// The device's turn.
    pub(crate) fn device_turn(&mut self, around: &mut Around<'_>) -> Turn {
        let now = self.local(around.now);
        let mut turn = Turn::default();
        let mut blocked = false;
        for _ in 0..BATCH {
            let Some(frame) = self.received.pop_front() else { break };
            turn.taken[0] += 1;
            let pool = self.device.pool();
            if let Some(packet) = pool.copy(&frame.bytes) {
                let Arrival { checksum, segment_size, .. } = frame;
                self.device.handle_frame(now, RxFrame { packet, checksum, segment_size });
            }
        }
        while let Some(packet) = self.recycle.pop_front() {
            self.device.pool().put(packet);
        }
        for _ in 0..BATCH {
            if !self.device.can_take_op() {
                blocked = !self.ops.is_empty();
                break;
            }
            let Some(op) = self.ops.pop_front() else { break };
            turn.taken[1] += 1;
            self.note_splice(&op, around);
            self.quic_order.note_op(&op);
            self.echo_order.taken(&op);
            self.device.handle_op(now, 0, op);
        }
        for _ in 0..BATCH {
            let Some(completion) = self.device_disk.pop_front() else { break };
            turn.taken[2] += 1;
            self.device.handle_disk(now, completion);
        }
        blocked |= self.give_events(around, &mut turn);
        blocked |= self.give_frames(now, around, &mut turn);
        self.give_device_requests(around);
        blocked |= self.give_events(around, &mut turn);
        let more = !self.received.is_empty()
            || !self.device_disk.is_empty()
            || (!self.ops.is_empty() && self.device.can_take_op());
        let due = self.device.poll_timeout(now).map(|at| self.global(at));
        let retry = blocked.then(|| around.now + RETRY);
        let again = more.then(|| around.now + Duration::from_micros(1));
        turn.next = [turn.next, due, retry, again].into_iter().flatten().min();
        turn
    }

    /// Notices what the host has the device relay.
    fn note_splice(&mut self, op: &Op, around: &mut Around<'_>) {
        match op {
            Op::Splice(splice) => {
                self.splices.insert(splice.id, (**splice).clone());
            }
            Op::SpliceStart { id, .. } => around.spliced.extend(self.splices.remove(id)),
            _ => {}
        }
    }

    fn give_events(&mut self, around: &mut Around<'_>, turn: &mut Turn) -> bool {
        while let Some(event) = self.device.poll_queue_event(0) {
            if self.events.len() >= self.slots {
                self.device.unpoll_event(0, event);
                return true;
            }
            self.quic_order.note_event(&event);
            self.echo_order.delivered(&event);
            match &event {
                Event::SpliceClosed(closed) => around.unspliced.push(Some(closed.id)),
                Event::Reset => around.unspliced.push(None),
                _ => {}
            }
            self.events.push_back(event);
            turn.ring = true;
        }
        false
    }

    /// Gives frames to the port; says whether it took no more.
    fn give_frames(&mut self, now: Instant, around: &mut Around<'_>, turn: &mut Turn) -> bool {
        for given in 0..=BATCH {
            let Some(frame) = self.device.poll_frame(now) else { return false };
            // A batch at most, and none while the port is busy: the device takes it back.
            if given == BATCH {
                self.device.unpoll_frame(frame);
                turn.next = Some(around.now + Duration::from_micros(1));
                return false;
            }
            if let Err(ready_at) = around.port_ready {
                self.device.unpoll_frame(frame);
                turn.next = Some(ready_at.max(around.now + Duration::from_micros(1)));
                return false;
            }
            if let Err(what) = self.echo_order.sent(&frame) {
                around.report.fail(around.now, "echo", format!("n{}: {what}", around.node));
            }
            around.frames.push(frame);
        }
        false
    }

    fn give_device_requests(&mut self, around: &mut Around<'_>) {
        while let Some(request) = self.device.poll_disk() {
            if !matches!(request, DiskRequest::Close { .. }) {
                if around.disk_room == 0 {
                    // The disk's completions bring the next turn.
                    self.device.unpoll_disk(request);
                    return;
                }
                around.disk_room -= 1;
            }
            around.requests.push(request);
        }
    }

    /// The host's turn, and the application's.
    pub(crate) fn host_turn(&mut self, around: &mut Around<'_>) -> Turn {
        let local = self.local(around.now);
        let mut turn = Turn::default();
        for _ in 0..BATCH {
            let Some(event) = self.events.pop_front() else { break };
            turn.taken[0] += 1;
            self.host.handle_event(local, event);
        }
        for _ in 0..BATCH {
            let Some(completion) = self.host_disk.pop_front() else { break };
            turn.taken[2] += 1;
            self.host.handle_disk(local, completion);
        }
        if self.host.poll_timeout().is_some_and(|at| at <= local) {
            self.host.handle_timeout(local);
        }
        self.run_app(local, around);
        turn.ring |= self.odd.begin_turn(&mut self.ops);
        while let Some(op) = self.waiting.take().or_else(|| self.host.poll_op(local)) {
            if self.ops.len() >= self.slots {
                self.waiting = Some(op);
                break;
            }
            self.odd.pass(op, &mut self.ops);
            turn.taken[1] += 1;
            turn.ring = true;
        }
        while let Some(packet) = self.host.poll_recycle() {
            if self.recycle.len() < self.slots {
                self.recycle.push_back(packet);
            } else {
                // A full ring costs an allocation later.
                self.recycle_overruns += 1;
            }
        }
        while let Some(request) = self.host.poll_disk() {
            around.requests.push(request);
        }
        let app_due = match &self.app {
            App::Server(server) => server.poll_timeout(),
            App::Proxy(proxy) => proxy.poll_timeout(),
            App::Client(client) => client.poll_timeout(),
            App::Target(target) => target.poll_timeout(),
            App::User(user) => user.poll_timeout(),
            App::Rogue(rogue) => rogue.poll_timeout(),
        };
        let app_due = app_due.filter(|_| !self.ends);
        let due = [self.host.poll_timeout(), app_due].into_iter().flatten().min();
        let due = due.map(|at| self.global(at).max(around.now + Duration::from_micros(1)));
        let retry = self.waiting.is_some().then(|| around.now + RETRY);
        let more = !self.events.is_empty() || !self.host_disk.is_empty();
        let again = more.then(|| around.now + Duration::from_micros(1));
        turn.next = [due, retry, again].into_iter().flatten().min();
        turn
    }

    fn run_app(&mut self, local: Instant, around: &mut Around<'_>) {
        let ends = self.ends;
        let Self { host, app, .. } = self;
        match app {
            App::Server(server) => {
                if !ends && server.poll_timeout().is_some_and(|at| at <= local) {
                    server.handle_timeout(local, host);
                }
                while let Some(notice) = host.poll_notice() {
                    server.handle_notice(local, host, notice);
                }
                while server.poll_log().is_some() {}
            }
            App::Proxy(proxy) => {
                if !ends && proxy.poll_timeout().is_some_and(|at| at <= local) {
                    proxy.handle_timeout(local, host);
                }
                while let Some(notice) = host.poll_notice() {
                    proxy.handle_notice(local, host, notice);
                }
                while proxy.poll_log().is_some() {}
            }
            App::Client(client) => {
                let (now, disk) = (around.now, &*around.disk);
                let mut cx = Context { now, local, host, disk, report: around.report };
                if client.poll_timeout().is_some_and(|at| at <= local) {
                    client.handle_timeout(&mut cx);
                }
                while let Some(notice) = cx.host.poll_notice() {
                    client.handle_notice(notice, &mut cx);
                }
                client.advance(&mut cx);
            }
            App::Target(target) => {
                if !ends && target.poll_timeout().is_some_and(|at| at <= local) {
                    target.handle_timeout(local, host);
                }
                while let Some(notice) = host.poll_notice() {
                    target.handle_notice(local, host, notice);
                }
            }
            App::User(user) => run_user(user, host, local, around),
            App::Rogue(rogue) => {
                if rogue.poll_timeout().is_some_and(|at| at <= local) {
                    rogue.handle_timeout(local, host);
                }
                while let Some(notice) = host.poll_notice() {
                    rogue.handle_notice(local, host, &notice);
                }
            }
        }
    }

    /// Gives the proxy another table, where this is its machine.
    pub(crate) fn apply(&mut self, now: Instant, table: Table) {
        let local = self.local(now);
        if let App::Proxy(proxy) = &mut self.app {
            let applied = proxy.apply(local, &mut self.host, table);
            assert_eq!(applied, Ok(()), "its listeners do not change");
        }
    }

    /// A counter or gauge of the device, the host or the application, by name; zero where there is
    /// none.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        let mut found = 0;
        let mut look = |n: &'static str, value: u64| {
            if n == name {
                found = value;
            }
        };
        self.visit(&mut look);
        found
    }

    /// Walks all counters and gauges of the machine.
    pub(crate) fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.device.visit(f);
        self.host.visit(f);
        match &self.app {
            App::Server(server) => server.visit(f),
            App::Proxy(proxy) => proxy.visit(f),
            App::Client(client) => {
                if let Some(h3) = &client.h3 {
                    h3.visit(f);
                }
            }
            App::Target(target) => target.visit(f),
            App::User(user) => user.initiator.counters().visit(f),
            App::Rogue(rogue) => rogue.counters.visit(f),
        }
    }
}

/// The turn of a namespace's user.
fn run_user(user: &mut User, host: &mut Host, local: Instant, around: &mut Around<'_>) {
    // What it is not told in time, as after a start, it finds out here.
    user.initiator.connect(host, local);
    if user.poll_timeout().is_some_and(|at| at <= local) {
        user.handle_timeout(local, host);
    }
    while let Some(notice) = host.poll_notice() {
        user.handle_notice(local, host, &notice);
    }
    for fields in user.log.drain(..) {
        around.report.trace.note(around.now, around.node, What::User, fields);
    }
    if let Some(what) = user.wrong.take() {
        around.report.fail(around.now, "storage", format!("n{}: {what}", around.node));
    }
}
