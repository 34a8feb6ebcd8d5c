//! Accounted mode: client, link, device and host in one thread in turn, on a
//! virtual clock; the time-stamp counter's cycles of each part are summed apart.
//!
//! The parts are those of the running program, rings included; only threads, wake-ups and the
//! kernel's wire are absent. Virtual time stands still while somebody has work, then jumps to the
//! next thing that is due, so that a run's packets do not depend on the machine.

use std::collections::{BTreeMap, VecDeque};

use abi::disk::{DiskCompletion, DiskRequest};
use abi::port::{RxFrame, TxFrame, TxStatus};
use abi::ring::{Consumer, Producer, ring};
use abi::{Event, Op, PacketBuf, PacketPool};
use apps::content::ContentServer;
use apps::proxy::Proxy;
use base::{Duration, Instant};
use host::{Application, Host};
use io::clock::cycles;
use io::wire::Wire;
use nic::Device;
use node::{DeviceHalf, DevicePorts, DiskPort, HostHalf, HostPorts};

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
    /// The client that measures it.
    Client(Box<Client>),
    /// An end of streams of messages.
    Stream(Box<Stream>),
    /// A server of small requests.
    ShortServer(Box<ShortServer>),
    /// A client that sends small requests.
    ShortClient(Box<ShortClient>),
    /// The proxy that relays them.
    Proxy(Box<Proxy>),
    /// Both ends of what a proxy relays.
    Peers(Box<Peers>),
    /// An end of downloads over QUIC.
    Quic(Box<QuicEnd>),
    /// An end of reads and writes over NVMe/TCP.
    Nvme(Box<NvmeEnd>),
}

impl App {
    fn as_application(&mut self) -> &mut dyn Application {
        match self {
            Self::Server(server) => &mut **server,
            Self::Client(client) => &mut **client,
            Self::Stream(stream) => &mut **stream,
            Self::ShortServer(server) => &mut **server,
            Self::ShortClient(client) => &mut **client,
            Self::Proxy(proxy) => &mut **proxy,
            Self::Peers(peers) => &mut **peers,
            Self::Quic(end) => &mut **end,
            Self::Nvme(end) => &mut **end,
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Server(server) => server.poll_timeout(),
            Self::Proxy(proxy) => proxy.poll_timeout(),
            Self::Quic(end) => end.poll_timeout(),
            Self::Client(_)
            | Self::Stream(_)
            | Self::ShortServer(_)
            | Self::ShortClient(_)
            | Self::Peers(_)
            | Self::Nvme(_) => None,
        }
    }
}

/// A host's ends of the rings, and its disk.
struct HostSide {
    ops: Producer<Op>,
    events: Consumer<Event>,
    recycle: Producer<PacketBuf>,
    disk: Option<ModelledDisk>,
    /// Packets that the host received, and packets or runs that it handed over.
    packets: u64,
    digests_ignored: bool,
}

/// A device's ends of the rings, its link and its disk.
struct DeviceSide {
    wire: Box<dyn Wire>,
    ops: Consumer<Op>,
    events: Producer<Event>,
    recycle: Consumer<PacketBuf>,
    disk: Option<ModelledDisk>,
    /// Frames that the link has given, and the device has not taken.
    received: VecDeque<RxFrame>,
    /// Frames that the device received.
    packets: u64,
    /// Cycles of the link in this turn.
    wire_cycles: u64,
}

/// A machine: host, device and the rings between them.
pub(crate) struct Node {
    pub(crate) host: HostHalf,
    pub(crate) device: DeviceHalf,
    pub(crate) app: App,
    host_side: HostSide,
    device_side: DeviceSide,
    pub(crate) cycles: Cycles,
}

impl Node {
    pub(crate) fn new(
        host: Host,
        device: Device,
        app: App,
        wire: Box<dyn Wire>,
        device_disk: Option<ModelledDisk>,
        host_disk: Option<ModelledDisk>,
    ) -> Self {
        let ((ops_in, ops), (events, events_out)) = (ring(SLOTS), ring(SLOTS));
        let (recycle_in, recycle) = ring(SLOTS);
        Self {
            host: HostHalf::new(host),
            device: DeviceHalf::new(device, 0),
            app,
            host_side: HostSide {
                ops: ops_in,
                events: events_out,
                recycle: recycle_in,
                disk: host_disk,
                packets: 0,
                digests_ignored: false,
            },
            device_side: DeviceSide {
                wire,
                ops,
                events,
                recycle,
                disk: device_disk,
                received: VecDeque::new(),
                packets: 0,
                wire_cycles: 0,
            },
            cycles: Cycles::default(),
        }
    }

    /// Drops what the device says of data digests: so the host computes them, of data that the
    /// device places.
    pub(crate) const fn ignore_digests(&mut self) {
        self.host_side.digests_ignored = true;
    }

    /// Packets that the host received, and packets or runs that it handed over.
    pub(crate) const fn host_packets(&self) -> u64 {
        self.host_side.packets
    }

    /// Frames that the device received.
    pub(crate) const fn device_packets(&self) -> u64 {
        self.device_side.packets
    }

    /// The machine without its device, for counting memory.
    pub(crate) fn into_host(self) -> (HostHalf, App) {
        (self.host, self.app)
    }

    /// Lets host and application work; returns whether they had anything to do.
    fn host_turn(&mut self, now: Instant) -> bool {
        let from = cycles();
        let turn = self.host.turn(now, self.app.as_application(), &mut self.host_side);
        if turn.worked {
            self.cycles.host += cycles() - from;
        }
        turn.worked
    }

    /// Lets the device work; returns whether it had anything to do.
    fn device_turn(&mut self, now: Instant) -> bool {
        let from = cycles();
        self.device_side.wire_cycles = 0;
        let turn = self.device.turn(now, &mut self.device_side);
        if turn.worked {
            self.cycles.device += cycles() - from;
            self.cycles.wire += self.device_side.wire_cycles;
        }
        turn.worked
    }

    /// Every counter of host, device and wire.
    pub(crate) fn counters(&self) -> Counted {
        let mut all = Counted::new();
        let mut note = |name, value| {
            all.insert(name, value);
        };
        self.host.host.visit(&mut note);
        self.device.device.visit(&mut note);
        self.device_side.wire.visit(&mut note);
        all
    }

    fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let disk = |d: &Option<ModelledDisk>| d.as_ref().and_then(ModelledDisk::poll_timeout);
        Instant::earliest([
            self.host.host.poll_timeout(),
            self.app.poll_timeout(),
            self.device.poll_timeout(now),
            self.device_side.wire.poll_timeout(),
            disk(&self.device_side.disk),
            disk(&self.host_side.disk),
        ])
    }
}

fn submit(disk: &mut Option<ModelledDisk>, now: Instant, request: DiskRequest) {
    if let Some(disk) = disk {
        disk.submit(now, request);
    }
}

impl DiskPort for HostSide {
    fn submit(&mut self, now: Instant, request: DiskRequest) -> Result<(), DiskRequest> {
        submit(&mut self.disk, now, request);
        Ok(())
    }

    fn poll(&mut self, now: Instant) -> Option<DiskCompletion> {
        self.disk.as_mut()?.poll(now)
    }
}

impl HostPorts for HostSide {
    fn pop_event(&mut self, _: usize) -> Option<Event> {
        let mut event = self.events.pop()?;
        if let Event::Received(received) = &mut event {
            self.packets += 1;
            if let Some(placed) = received.placed.as_mut().filter(|_| self.digests_ignored) {
                placed.verified.clear();
            }
        }
        Some(event)
    }

    fn push_op(&mut self, op: Op) -> Result<(), Op> {
        let is_packet = matches!(op, Op::Transmit(_) | Op::Teardown(_));
        self.ops.push(op)?;
        self.packets += u64::from(is_packet);
        Ok(())
    }

    fn push_recycled(&mut self, packet: PacketBuf) {
        let _dropped = self.recycle.push(packet);
    }
}

impl DiskPort for DeviceSide {
    fn submit(&mut self, now: Instant, request: DiskRequest) -> Result<(), DiskRequest> {
        submit(&mut self.disk, now, request);
        Ok(())
    }

    fn poll(&mut self, now: Instant) -> Option<DiskCompletion> {
        self.disk.as_mut()?.poll(now)
    }
}

impl DevicePorts for DeviceSide {
    fn receive(&mut self, now: Instant, pool: &mut PacketPool) -> Option<RxFrame> {
        if self.received.is_empty() {
            // In batches, so that the counter of cycles is read once for many frames.
            let from = cycles();
            while self.received.len() < BATCH {
                let Some(frame) = self.wire.receive(now, pool) else { break };
                self.received.push_back(frame);
            }
            self.wire_cycles += cycles() - from;
            self.packets += self.received.len() as u64;
        }
        self.received.pop_front()
    }

    fn transmit(&mut self, now: Instant, frame: &TxFrame) -> TxStatus {
        let from = cycles();
        let status = self.wire.transmit(now, frame);
        self.wire_cycles += cycles() - from;
        status
    }

    fn pop_op(&mut self) -> Option<Op> {
        self.ops.pop()
    }

    fn pop_recycled(&mut self) -> Option<PacketBuf> {
        self.recycle.pop()
    }

    fn push_event(&mut self, _: usize, event: Event) -> Result<(), Event> {
        self.events.push(event)
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
        let Node { host: HostHalf { host, .. }, app, .. } = &mut self.server;
        match app {
            App::Stream(stream) => stream.start(now, host),
            App::Nvme(end) => end.start(now, host),
            _ => {}
        }
        let Node { host: HostHalf { host, .. }, app, .. } = &mut self.client;
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
