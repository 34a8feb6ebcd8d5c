//! Accounted mode: client, link, device and host run in turn on one thread and a virtual clock, and
//! the time-stamp counter's cycles are summed for each.
//!
//! The parts are those of the running program, rings included; only threads, wake-ups and the
//! kernel's network interface are absent. Virtual time stands still while any part has work, then
//! jumps to the earliest deadline, so that the packets of a run do not depend on the machine.

use std::collections::{BTreeMap, VecDeque};

use abi::disk::{DiskCompletion, DiskRequest};
use abi::link::{LinkTxStatus, RxFrame, TxFrame};
use abi::ring::{RingConsumer, RingProducer, ring};
use abi::{Event, Op, PacketBuf, PacketPool};
use apps::content::ContentServer;
use apps::proxy::Proxy;
use apps::remote::RemoteContentServer;
use base::{Duration, Instant};
use cli::Failure;
use host::{Application, Host};
use io::clock::cycles;
use io::heap::allocations;
use io::link::Link;
use nic::Device;
use node::{DeviceHalf, DevicePorts, DiskPort, HostHalf, HostPorts};

use super::disk::ModelledDisk;
use super::experiment::Fields;

/// Frames that a device receives in one turn. As in the program, it sends their results before it
/// receives more.
const BATCH: usize = 256;
/// Slots of each ring, as in the program.
const SLOTS: usize = 512;

/// Virtual time at which runs begin: no timer is due earlier.
pub(crate) const START: Instant = Instant::from_millis(1000);

/// Counters by name.
pub(crate) type CounterMap = BTreeMap<&'static str, u64>;

/// Cycles used by one machine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cycles {
    /// Host stack and application, and the host's ends of the rings.
    pub(crate) host: u64,
    /// Device, its ends of the rings, its link and its disk.
    pub(crate) device: u64,
    /// The link's part of `device`: the work of a NIC's DMA.
    pub(crate) link: u64,
}

/// Allocations of memory by one machine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Allocations {
    /// By host stack and application.
    pub(crate) host: u64,
    /// By device, link and disk.
    pub(crate) device: u64,
}

/// An application that a benchmark runs above a host.
pub(crate) trait BenchApp: Application {
    /// Opens files and connections at the start of a run.
    fn start(&mut self, _now: Instant, _host: &mut Host) {}

    /// Returns the first error: a benchmark that transferred wrong bytes is invalid.
    fn error(&self) -> Option<&str> {
        None
    }

    /// Calls `f` with the name and value of each of the application's counters.
    fn count(&self, _f: &mut dyn FnMut(&'static str, u64)) {}
}

impl BenchApp for ContentServer {}
impl BenchApp for Proxy {}

impl BenchApp for RemoteContentServer {
    fn count(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.visit(f);
    }
}

/// Resources that a machine has used, and its counters: in total, or between two moments.
#[derive(Clone, Debug)]
pub(crate) struct Usage {
    /// Virtual time.
    pub(crate) elapsed: Duration,
    pub(crate) cycles: Cycles,
    pub(crate) allocations: Allocations,
    /// Packets that the host received, plus packets or segmentation runs that it sent.
    pub(crate) host_packets: u64,
    /// Frames that the device received.
    pub(crate) device_packets: u64,
    /// Counters of host, device and link; a difference holds only those that moved.
    pub(crate) counters: CounterMap,
}

impl Usage {
    /// Returns how much a counter moved.
    pub(crate) fn moved(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or_default()
    }

    /// Returns the columns for allocations, divided by a number of transactions, requests or
    /// messages.
    pub(crate) fn allocation_fields(&self, count: f64) -> Fields {
        let Allocations { host, device } = self.allocations;
        Fields::new().show("host alloc", "host_allocations", host as f64 / count).show(
            "dev alloc",
            "device_allocations",
            device as f64 / count,
        )
    }

    /// Returns the difference to an earlier usage.
    pub(crate) fn since(mut self, before: &Self) -> Self {
        self.counters.retain(|name, value| {
            *value = value.saturating_sub(before.moved(name));
            *value > 0
        });
        self.elapsed = self.elapsed - before.elapsed;
        self.cycles.host -= before.cycles.host;
        self.cycles.device -= before.cycles.device;
        self.cycles.link -= before.cycles.link;
        self.allocations.host -= before.allocations.host;
        self.allocations.device -= before.allocations.device;
        self.host_packets -= before.host_packets;
        self.device_packets -= before.device_packets;
        self
    }
}

/// A host's ends of the rings, and its disk.
struct HostSide {
    ops: RingProducer<Op>,
    events: RingConsumer<Event>,
    recycle: RingProducer<PacketBuf>,
    disk: Option<ModelledDisk>,
    /// Packets that the host received, plus packets or segmentation runs that it sent.
    packets: u64,
    digests_ignored: bool,
}

/// A device's ends of the rings, its link and its disk.
struct DeviceSide {
    link: Box<dyn Link>,
    ops: RingConsumer<Op>,
    events: RingProducer<Event>,
    recycle: RingConsumer<PacketBuf>,
    disk: Option<ModelledDisk>,
    /// Frames received from the link that the device has not taken yet.
    received: VecDeque<RxFrame>,
    /// Frames that the device received.
    packets: u64,
    /// Cycles of the link in the present turn.
    link_cycles: u64,
}

/// A machine: host, device and the rings between them.
pub(crate) struct AccountedMachine<A> {
    pub(crate) host: HostHalf,
    device: DeviceHalf,
    pub(crate) app: A,
    host_side: HostSide,
    device_side: DeviceSide,
    pub(crate) cycles: Cycles,
    allocations: Allocations,
}

impl<A: BenchApp> AccountedMachine<A> {
    pub(crate) fn new(
        host: Host,
        device: Device,
        app: A,
        link: Box<dyn Link>,
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
                link,
                ops,
                events,
                recycle,
                disk: device_disk,
                received: VecDeque::new(),
                packets: 0,
                link_cycles: 0,
            },
            cycles: Cycles::default(),
            allocations: Allocations::default(),
        }
    }

    /// Discards the device's claims about data digests, so that the host computes the digests of
    /// data that the device placed.
    pub(crate) const fn ignore_digests(&mut self) {
        self.host_side.digests_ignored = true;
    }

    /// Drops the device, so that the host's memory can be measured.
    pub(crate) fn into_host(self) -> (HostHalf, A) {
        (self.host, self.app)
    }

    /// Runs host and application; returns whether they had work.
    fn host_turn(&mut self, now: Instant) -> bool {
        let (allocated, from) = (allocations(), cycles());
        let turn = self.host.turn(now, &mut self.app, &mut self.host_side);
        if turn.worked {
            self.cycles.host += cycles() - from;
            self.allocations.host += allocations() - allocated;
        }
        turn.worked
    }

    /// Runs the device; returns whether it had work.
    fn device_turn(&mut self, now: Instant) -> bool {
        let (allocated, from) = (allocations(), cycles());
        self.device_side.link_cycles = 0;
        let turn = self.device.turn(now, &mut self.device_side);
        if turn.worked {
            self.cycles.device += cycles() - from;
            self.allocations.device += allocations() - allocated;
            self.cycles.link += self.device_side.link_cycles;
        }
        turn.worked
    }

    /// Returns everything used until `now`.
    pub(crate) fn usage(&self, now: Instant) -> Usage {
        let mut counters = CounterMap::new();
        let mut note = |name, value| {
            counters.insert(name, value);
        };
        self.host.host.visit(&mut note);
        self.device.device.visit(&mut note);
        self.device_side.link.visit(&mut note);
        self.app.count(&mut note);
        Usage {
            elapsed: now.since(Instant::ZERO),
            cycles: self.cycles,
            allocations: self.allocations,
            host_packets: self.host_side.packets,
            device_packets: self.device_side.packets,
            counters,
        }
    }

    fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let disk = |d: &Option<ModelledDisk>| d.as_ref().and_then(ModelledDisk::poll_timeout);
        Instant::earliest([
            self.host.poll_timeout(&self.app),
            self.device.poll_timeout(now),
            self.device_side.link.poll_timeout(),
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
    fn pop_event(&mut self) -> Option<Event> {
        let mut event = self.events.pop()?;
        if let Event::Received(received) = &mut event {
            self.packets += 1;
            if let Some(placed) = received.metadata.nvme_tcp_mut().filter(|_| self.digests_ignored)
            {
                placed.verified.clear();
            }
        }
        Some(event)
    }

    fn has_op_room(&mut self) -> bool {
        self.ops.free() > 0
    }

    #[inline]
    fn push_op(&mut self, op: Op) {
        self.packets += u64::from(matches!(op, Op::Transmit(_) | Op::Teardown(_)));
        let pushed = self.ops.push(op);
        debug_assert!(pushed.is_ok(), "the caller asked for room");
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
            // In batches, so that the cycle counter is read once for many frames.
            let from = cycles();
            while self.received.len() < BATCH {
                let Some(frame) = self.link.receive(now, pool) else { break };
                self.received.push_back(frame);
            }
            self.link_cycles += cycles() - from;
            self.packets += self.received.len() as u64;
        }
        self.received.pop_front()
    }

    fn transmit(&mut self, now: Instant, frame: &mut TxFrame) -> LinkTxStatus {
        let from = cycles();
        let status = self.link.transmit(now, frame);
        self.link_cycles += cycles() - from;
        status
    }

    fn pop_op(&mut self, _: &mut PacketPool) -> Option<Op> {
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
pub(crate) struct AccountedPair<S, C> {
    pub(crate) now: Instant,
    /// Interrupt moderation: events within this time are handled together. Zero for none.
    moderation: Duration,
    pub(crate) server: AccountedMachine<S>,
    pub(crate) client: AccountedMachine<C>,
}

impl<S: BenchApp, C: BenchApp> AccountedPair<S, C> {
    /// Returns two machines at [`START`].
    pub(crate) const fn new(
        server: AccountedMachine<S>,
        client: AccountedMachine<C>,
        moderation: Duration,
    ) -> Self {
        Self { now: START, moderation, server, client }
    }

    /// Starts both applications.
    pub(crate) fn start(&mut self) {
        self.server.app.start(self.now, &mut self.server.host.host);
        self.client.app.start(self.now, &mut self.client.host.host);
    }

    /// Runs until `done` returns true; it is called between rounds.
    ///
    /// # Errors
    /// An application's error, or a run in which no machine has work or a deadline.
    pub(crate) fn run_until(&mut self, mut done: impl FnMut(&Self) -> bool) -> Result<(), Failure> {
        loop {
            if let Some(what) = self.server.app.error().or_else(|| self.client.app.error()) {
                return Err(Failure::System(format!("benchmark failed: {what}")));
            }
            if done(self) {
                return Ok(());
            }
            if !self.advance() {
                let what = "benchmark failed: no pending work and no timer";
                return Err(Failure::System(what.to_owned()));
            }
        }
    }

    /// Runs both machines once, or moves the clock to the next deadline. Returns false if there is
    /// none.
    fn advance(&mut self) -> bool {
        let now = self.now;
        let mut busy = self.server.device_turn(now);
        busy |= self.server.host_turn(now);
        busy |= self.client.device_turn(now);
        busy |= self.client.host_turn(now);
        if busy {
            return true;
        }
        let next = [self.server.poll_timeout(now), self.client.poll_timeout(now)];
        let Some(at) = next.into_iter().flatten().min() else { return false };
        self.now = at.max(now) + self.moderation;
        true
    }

    /// Returns everything that the server has used until now.
    pub(crate) fn server_usage(&self) -> Usage {
        self.server.usage(self.now)
    }

    /// Returns everything that the client has used until now.
    pub(crate) fn client_usage(&self) -> Usage {
        self.client.usage(self.now)
    }
}
