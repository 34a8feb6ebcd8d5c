//! Accounted mode: client, link, device and host in one thread in turn, on a
//! virtual clock; the time-stamp counter's cycles of each part are summed apart.
//!
//! The parts are those of the running program, rings included; only threads, wake-ups and the
//! kernel's wire are absent. Virtual time stands still while somebody has work, then jumps to the
//! next thing that is due, so that a run's packets do not depend on the machine.

use std::collections::{BTreeMap, VecDeque};

use abi::port::{RxFrame, TxFrame};
use abi::ring::{Consumer, Producer, ring};
use abi::{Event, Op, PacketBuf};
use apps::content::ContentServer;
use apps::proxy::Proxy;
use base::{Duration, Instant};
use host::Host;
use io::clock::cycles;
use io::wire::{TxStatus, Wire};
use nic::Device;

use super::client::Client;
use super::disk::ModelledDisk;
use super::nvme::NvmeEnd;
use super::quic::QuicEnd;
use super::short::{Peers, ShortClient, ShortServer};
use super::stream::Stream;

/// Frames that a device takes in a turn: as the program's, it sends what became of them before it
/// takes more.
const BATCH: usize = 256;
/// Slots of the rings.
const SLOTS: usize = 4096;

/// Counters by name.
pub(crate) type Counted = BTreeMap<&'static str, u64>;

/// Cycles of one node.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cycles {
    /// Host stack and application, and its ends of the rings.
    pub(crate) host: u64,
    /// Device, its ends of the rings, its wire and its disk.
    pub(crate) device: u64,
    /// Of these, the wire: what a NIC's DMA does.
    pub(crate) wire: u64,
}

/// What runs above a host.
pub(crate) enum App {
    /// The product.
    Server(Box<ContentServer>),
    /// Who measures it.
    Client(Box<Client>),
    /// An end of streams of messages.
    Stream(Box<Stream>),
    /// Who answers small requests.
    ShortServer(Box<ShortServer>),
    /// Who asks them.
    ShortClient(Box<ShortClient>),
    /// Who relays them.
    Proxy(Box<Proxy>),
    /// Both ends of what a proxy relays.
    Peers(Box<Peers>),
    /// An end of downloads over QUIC.
    Quic(Box<QuicEnd>),
    /// An end of reads and writes over NVMe/TCP.
    Nvme(Box<NvmeEnd>),
}

/// A machine: host, device and the rings between them.
pub(crate) struct Node {
    pub(crate) host: Host,
    pub(crate) device: Device,
    pub(crate) app: App,
    wire: Box<dyn Wire>,
    /// The device's disk.
    disk: Option<ModelledDisk>,
    /// The host's own.
    host_disk: Option<ModelledDisk>,
    ops: (Producer<Op>, Consumer<Op>),
    events: (Producer<Event>, Consumer<Event>),
    recycle: (Producer<PacketBuf>, Consumer<PacketBuf>),
    waiting: Option<Op>,
    /// Room for batches.
    frames: Vec<RxFrame>,
    sending: VecDeque<TxFrame>,
    pub(crate) cycles: Cycles,
    /// Packets that the host received, and packets or runs that it handed over.
    pub(crate) host_packets: u64,
    /// Frames that the device received.
    pub(crate) device_packets: u64,
    /// What the device says of data digests is dropped: so the host computes them, of data that the
    /// device places.
    pub(crate) digests_ignored: bool,
}

impl Node {
    pub(crate) fn new(
        host: Host,
        device: Device,
        app: App,
        wire: Box<dyn Wire>,
        disk: Option<ModelledDisk>,
        host_disk: Option<ModelledDisk>,
    ) -> Self {
        Self {
            host,
            device,
            app,
            wire,
            disk,
            host_disk,
            ops: ring(SLOTS),
            events: ring(SLOTS),
            recycle: ring(SLOTS),
            waiting: None,
            frames: Vec::new(),
            sending: VecDeque::new(),
            cycles: Cycles::default(),
            host_packets: 0,
            device_packets: 0,
            digests_ignored: false,
        }
    }

    /// What is left of the machine without its device: for counting memory.
    pub(crate) fn into_host(self) -> (Host, App) {
        (self.host, self.app)
    }

    /// Lets host and application work; says whether they had anything to do.
    pub(crate) fn host_turn(&mut self, now: Instant) -> bool {
        let from = cycles();
        let mut busy = false;
        while let Some(mut event) = self.events.1.pop() {
            if let Event::Received(received) = &mut event {
                if let Some(placed) = received.placed.as_mut().filter(|_| self.digests_ignored) {
                    placed.verified.clear();
                }
            }
            self.host_packets += u64::from(matches!(event, Event::Received(_)));
            self.host.handle_event(now, event);
            busy = true;
        }
        while let Some(done) = self.host_disk.as_mut().and_then(|d| d.poll(now)) {
            self.host.handle_disk(now, done);
            busy = true;
        }
        if self.host.poll_timeout().is_some_and(|at| at <= now) {
            self.host.handle_timeout(now);
            busy = true;
        }
        busy |= self.app_turn(now);
        while let Some(op) = self.next_op(now) {
            self.host_packets += u64::from(matches!(op, Op::Transmit(_) | Op::Teardown(_)));
            if let Err(op) = self.ops.0.push(op) {
                self.waiting = Some(op);
                break;
            }
            busy = true;
        }
        while let Some(packet) = self.host.poll_recycle() {
            if self.recycle.0.push(packet).is_err() {
                break;
            }
        }
        while let Some(request) = self.host.poll_disk() {
            busy = true;
            if let Some(disk) = &mut self.host_disk {
                disk.submit(now, request);
            }
        }
        if busy {
            self.cycles.host += cycles() - from;
        }
        busy
    }

    /// The next operation. An operation is large: one that does not wait is not moved.
    fn next_op(&mut self, now: Instant) -> Option<Op> {
        if self.waiting.is_some() { self.waiting.take() } else { self.host.poll_op(now) }
    }

    fn app_turn(&mut self, now: Instant) -> bool {
        let mut busy = false;
        match &mut self.app {
            App::Server(server) => {
                if server.poll_timeout().is_some_and(|at| at <= now) {
                    server.handle_timeout(now, &mut self.host);
                    busy = true;
                }
                while let Some(notice) = self.host.poll_notice() {
                    server.handle_notice(now, &mut self.host, notice);
                    busy = true;
                }
            }
            App::Client(client) => {
                while let Some(notice) = self.host.poll_notice() {
                    client.handle_notice(now, &mut self.host, notice);
                    busy = true;
                }
            }
            App::Stream(stream) => {
                while let Some(notice) = self.host.poll_notice() {
                    stream.handle_notice(now, &mut self.host, notice);
                    busy = true;
                }
            }
            App::ShortServer(server) => {
                while let Some(notice) = self.host.poll_notice() {
                    server.handle_notice(now, &mut self.host, notice);
                    busy = true;
                }
            }
            App::ShortClient(client) => {
                while let Some(notice) = self.host.poll_notice() {
                    client.handle_notice(now, &mut self.host, notice);
                    busy = true;
                }
            }
            App::Proxy(proxy) => {
                if proxy.poll_timeout().is_some_and(|at| at <= now) {
                    proxy.handle_timeout(now, &mut self.host);
                    busy = true;
                }
                while let Some(notice) = self.host.poll_notice() {
                    proxy.handle_notice(now, &mut self.host, notice);
                    busy = true;
                }
            }
            App::Peers(peers) => {
                while let Some(notice) = self.host.poll_notice() {
                    peers.handle_notice(now, &mut self.host, notice);
                    busy = true;
                }
            }
            App::Quic(end) => busy = end.turn(now, &mut self.host),
            App::Nvme(end) => {
                while let Some(notice) = self.host.poll_notice() {
                    end.handle_notice(now, &mut self.host, notice);
                    busy = true;
                }
            }
        }
        busy
    }

    /// Lets the device work; says whether it had anything to do.
    pub(crate) fn device_turn(&mut self, now: Instant) -> bool {
        let from = cycles();
        let mut busy = false;
        while self.frames.len() < BATCH {
            let Some(frame) = self.wire.receive(now, self.device.pool()) else { break };
            self.frames.push(frame);
        }
        let wire = cycles() - from;
        self.device_packets += self.frames.len() as u64;
        busy |= !self.frames.is_empty();
        for frame in self.frames.drain(..) {
            self.device.handle_frame(now, frame);
        }
        while let Some(packet) = self.recycle.1.pop() {
            self.device.pool().put(packet);
        }
        while self.device.can_take_op() {
            let Some(op) = self.ops.1.pop() else { break };
            self.device.handle_op(now, 0, op);
            busy = true;
        }
        while let Some(done) = self.disk.as_mut().and_then(|d| d.poll(now)) {
            self.device.handle_disk(now, done);
            busy = true;
        }
        while let Some(request) = self.device.poll_disk() {
            busy = true;
            if let Some(disk) = &mut self.disk {
                disk.submit(now, request);
            }
        }
        busy |= self.give_events();
        let sent;
        (busy, sent) = self.give_frames(now, busy);
        busy |= self.give_events();
        if busy {
            self.cycles.device += cycles() - from;
            self.cycles.wire += wire + sent;
        }
        busy
    }

    /// Gives the wire what the device has for it, in batches; says whether there was anything, or
    /// had been before, and the wire's cycles.
    fn give_frames(&mut self, now: Instant, mut busy: bool) -> (bool, u64) {
        let mut spent = 0;
        loop {
            while self.sending.len() < BATCH {
                let Some(frame) = self.device.poll_frame(now) else { break };
                self.sending.push_back(frame);
            }
            if self.sending.is_empty() {
                return (busy, spent);
            }
            let from = cycles();
            let full = |frame| self.wire.transmit(now, frame) == TxStatus::Full;
            let taken = self.sending.iter().position(full).unwrap_or(self.sending.len());
            spent += cycles() - from;
            busy |= taken > 0;
            self.sending.drain(..taken).for_each(|frame| self.device.recycle(frame));
            if !self.sending.is_empty() {
                while let Some(frame) = self.sending.pop_back() {
                    self.device.unpoll_frame(frame);
                }
                return (busy, spent);
            }
        }
    }

    fn give_events(&mut self) -> bool {
        let mut busy = false;
        while self.events.0.free() > 0 {
            let Some(event) = self.device.poll_queue_event(0) else { break };
            busy = true;
            if let Err(event) = self.events.0.push(event) {
                self.device.unpoll_event(0, event);
                break;
            }
        }
        busy
    }

    /// Every counter of host, device and wire.
    pub(crate) fn counters(&self) -> Counted {
        let mut all = Counted::new();
        let mut note = |name, value| {
            all.insert(name, value);
        };
        self.host.visit(&mut note);
        self.device.visit(&mut note);
        self.wire.visit(&mut note);
        all
    }

    fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let app = match &self.app {
            App::Server(server) => server.poll_timeout(),
            App::Proxy(proxy) => proxy.poll_timeout(),
            App::Quic(end) => end.poll_timeout(),
            _ => None,
        };
        let disk = |d: &Option<ModelledDisk>| d.as_ref().and_then(ModelledDisk::poll_timeout);
        [
            self.host.poll_timeout(),
            self.device.poll_timeout(now),
            self.wire.poll_timeout(),
            disk(&self.disk),
            disk(&self.host_disk),
            app,
        ]
        .into_iter()
        .flatten()
        .min()
    }
}

/// Two machines and the link between them.
pub(crate) struct World {
    pub(crate) now: Instant,
    /// What happens within this time is seen together, as with interrupt moderation; zero where
    /// each thing is seen when it happens.
    pub(crate) moderation: Duration,
    pub(crate) server: Node,
    pub(crate) client: Node,
}

impl World {
    /// Runs until `done` says so, which is asked between rounds. Says no where nothing is left that
    /// could happen.
    pub(crate) fn run_until(&mut self, mut done: impl FnMut(&Self) -> bool) -> bool {
        while !done(self) {
            let now = self.now;
            let mut busy = self.server.device_turn(now);
            busy |= self.server.host_turn(now);
            busy |= self.client.device_turn(now);
            busy |= self.client.host_turn(now);
            if busy {
                continue;
            }
            let next = [self.server.poll_timeout(now), self.client.poll_timeout(now)];
            match next.into_iter().flatten().min() {
                Some(at) => self.now = at.max(now) + self.moderation,
                None => return false,
            }
        }
        true
    }

    /// The client's application.
    pub(crate) fn load(&mut self) -> &mut Client {
        match &mut self.client.app {
            App::Client(client) => client,
            _ => unreachable!("the client's node runs a client"),
        }
    }

    /// As [`Self::load`], to look at.
    pub(crate) fn load_ref(&self) -> &Client {
        match &self.client.app {
            App::Client(client) => client,
            _ => unreachable!("the client's node runs a client"),
        }
    }

    /// Every counter of the server's host, device and wire.
    pub(crate) fn server_counters(&self) -> Counted {
        self.server.counters()
    }

    /// Both ends of the streams.
    pub(crate) fn streams(&self) -> [&Stream; 2] {
        [&self.server, &self.client].map(|node| match &node.app {
            App::Stream(stream) => &**stream,
            _ => unreachable!("both nodes run streams"),
        })
    }

    /// Opens the client's connections.
    pub(crate) fn start(&mut self) {
        let now = self.now;
        let Node { host, app, .. } = &mut self.server;
        match app {
            App::Stream(stream) => stream.start(now, host),
            App::Nvme(end) => end.start(now, host),
            _ => {}
        }
        let Node { host, app, .. } = &mut self.client;
        match app {
            App::Client(client) => client.start(now, host),
            App::Stream(stream) => stream.start(now, host),
            App::ShortClient(client) => client.start(now, host),
            App::Peers(peers) => peers.client.start(now, host),
            App::Quic(end) => end.start(now, host),
            App::Nvme(end) => end.start(now, host),
            App::Server(_) | App::ShortServer(_) | App::Proxy(_) => {}
        }
    }

    /// Both ends of what a proxy relays.
    pub(crate) fn peers(&self) -> &Peers {
        match &self.client.app {
            App::Peers(peers) => peers,
            _ => unreachable!("the client's node runs both ends"),
        }
    }

    /// Both ends of downloads over QUIC: the server's and the client's.
    pub(crate) fn quic(&self) -> [&QuicEnd; 2] {
        [&self.server, &self.client].map(|node| match &node.app {
            App::Quic(end) => &**end,
            _ => unreachable!("both nodes run QUIC"),
        })
    }

    /// Both ends of reads and writes over NVMe/TCP: the target's and the initiator's.
    pub(crate) fn nvme(&self) -> [&NvmeEnd; 2] {
        [&self.server, &self.client].map(|node| match &node.app {
            App::Nvme(end) => &**end,
            _ => unreachable!("both nodes run NVMe/TCP"),
        })
    }

    /// Both ends of small transactions: who asks, and who answers.
    pub(crate) fn short(&self) -> (&ShortClient, &ShortServer) {
        match (&self.client.app, &self.server.app) {
            (App::ShortClient(client), App::ShortServer(server)) => (client, server),
            _ => unreachable!("the nodes run small transactions"),
        }
    }
}
