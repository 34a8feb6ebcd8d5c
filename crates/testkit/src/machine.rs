//! A machine in memory: a host and the real device, driven as the product drives them, with
//! unbounded rings and a disk that the test chooses.
//!
//! Used by the tests of `apps`, `node`, `quic` and `sim` and by the fuzz targets;
//! [`crate::network`] connects two machines by a link. The application above the host belongs to
//! the caller, who passes it to each turn.

use std::collections::VecDeque;

use abi::disk::{DiskCompletion, DiskRequest};
use abi::link::{LinkCaps, LinkTxStatus, RxFrame, TxFrame};
use abi::{Checksum, Event, Op, PacketBuf, PacketPool};
use base::Instant;
use host::{Application, Host, Notice, SocketId};
use nic::{Device, DeviceConfig};
use node::{DeviceHalf, DevicePorts, DiskPort, HostHalf, HostPorts};

/// A link without segmentation or checksum offload, with the Ethernet MTU.
pub const PLAIN_LINK: LinkCaps =
    LinkCaps { segmentation: false, udp_segmentation: false, checksum: false, mtu: 1500 };

/// The half of a machine that sends requests to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MachineHalf {
    /// The host.
    Host,
    /// The device.
    Device,
}

/// A disk shared by both halves of a machine.
pub trait TestDisk {
    /// Starts a request of half `half`.
    fn submit(&mut self, now: Instant, by: MachineHalf, request: DiskRequest);
    /// Returns the next completion for half `half`.
    fn poll(&mut self, now: Instant, by: MachineHalf) -> Option<DiskCompletion>;
    /// Returns the time at which the next pending request completes.
    fn poll_timeout(&self) -> Option<Instant>;
}

/// No disk: panics if the machine sends a disk request.
impl TestDisk for () {
    fn submit(&mut self, _: Instant, by: MachineHalf, request: DiskRequest) {
        panic!("{by:?} asks a disk that is not there: {request:?}");
    }

    fn poll(&mut self, _: Instant, _: MachineHalf) -> Option<DiskCompletion> {
        None
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

/// A frame on a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkFrame {
    /// Frame bytes, starting at the Ethernet header.
    pub bytes: Vec<u8>,
    /// State of the transport checksum.
    pub checksum: Checksum,
    /// Payload bytes of each segment of a run; 0 for a single packet.
    pub segment_size: u16,
}

impl LinkFrame {
    /// Returns a copy of a frame that the device transmits.
    #[must_use]
    pub fn of(frame: &TxFrame) -> Self {
        let mut bytes = vec![0; frame.len()];
        frame.copy_to(&mut bytes);
        let checksum = match frame.checksum_partial {
            true => Checksum::Partial,
            false => Checksum::Unchecked,
        };
        Self { bytes, checksum, segment_size: frame.segment_size }
    }
}

/// The rings between the two halves, and the frames received from and sent to the link.
#[derive(Default)]
struct MachineQueues {
    ops: VecDeque<Op>,
    events: VecDeque<Event>,
    /// Queue whose host this is, if the device is that of one of several queues; otherwise 0.
    own: usize,
    /// Events for other queues; the machine has no host threads for them.
    other_events: Vec<Event>,
    recycle: VecDeque<PacketBuf>,
    received: VecDeque<LinkFrame>,
    sent: Vec<LinkFrame>,
}

/// A host and its device.
pub struct TestMachine<D = ()> {
    host: HostHalf,
    device: DeviceHalf,
    queues: MachineQueues,
    /// The disk used by both halves.
    pub disk: D,
    /// Maximum payload of a run, in bytes; a longer one is rejected with [`LinkTxStatus::TooLong`].
    pub run_bytes_max: usize,
}

impl<D: TestDisk> TestMachine<D> {
    /// Creates a machine on a link with the capabilities `link`.
    #[must_use]
    pub fn new(
        config: host::HostConfig,
        device: DeviceConfig,
        link: LinkCaps,
        seed: u64,
        disk: D,
    ) -> Self {
        let own = device.own_queue.as_ref().map_or(0, |own| own.index);
        let device = Device::new(device, link);
        let host = HostHalf::new(Host::new(config, &device.capabilities(), seed));
        let queues = MachineQueues { own, ..MachineQueues::default() };
        let device = DeviceHalf::new(device, own);
        Self { host, device, queues, disk, run_bytes_max: usize::MAX }
    }

    /// Returns the host.
    pub const fn host(&mut self) -> &mut Host {
        &mut self.host.host
    }

    /// Returns the device.
    pub const fn device(&mut self) -> &mut Device {
        &mut self.device.device
    }

    /// Returns the queue of operations that the device has not taken yet.
    pub const fn ops(&mut self) -> &mut VecDeque<Op> {
        &mut self.queues.ops
    }

    /// Returns the events that the device pushed for other queues than the host's.
    #[must_use]
    pub fn other_events(&self) -> &[Event] {
        &self.queues.other_events
    }

    /// Queues a frame for the device to receive from the link.
    pub fn receive(&mut self, frame: LinkFrame) {
        self.queues.received.push_back(frame);
    }

    /// Runs the device and then the host once. Returns the frames for the link, and whether either
    /// had work to do.
    pub fn turn(
        &mut self,
        now: Instant,
        app: &mut (impl Application + ?Sized),
    ) -> (Vec<LinkFrame>, bool) {
        let Self { host, device, queues, disk, run_bytes_max } = self;
        let run_bytes_max = *run_bytes_max;
        let mut ports = MachinePorts { queues, disk, run_bytes_max, half: MachineHalf::Device };
        let by_device = device.turn(now, &mut ports);
        ports.half = MachineHalf::Host;
        let by_host = host.turn(now, app, &mut ports);
        (core::mem::take(&mut queues.sent), by_device.worked || by_host.worked)
    }

    /// Runs turns at time `now` until no work is left. Returns the frames for the link.
    pub fn settle(
        &mut self,
        now: Instant,
        app: &mut (impl Application + ?Sized),
    ) -> Vec<LinkFrame> {
        let mut all = Vec::new();
        loop {
            let (mut frames, worked) = self.turn(now, app);
            all.append(&mut frames);
            if !worked {
                return all;
            }
        }
    }

    /// Returns the time at which the host, the device or the disk has work to do next.
    pub fn poll_timeout(&self, now: Instant, app: &(impl Application + ?Sized)) -> Option<Instant> {
        Instant::earliest([
            self.host.poll_timeout(app),
            self.device.poll_timeout(now),
            self.disk.poll_timeout(),
        ])
    }

    /// Calls `f` with the name and value of every counter and gauge of host and device.
    pub fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.host.host.visit(f);
        self.device.device.visit(f);
    }

    /// Returns the sum of the host's and the device's counters and gauges named `name`.
    ///
    /// # Panics
    /// If no counter has this name, so that a misspelled name does not read as zero.
    #[must_use]
    pub fn sum_counters(&self, name: &str) -> u64 {
        count(name, |f| self.visit(f))
    }
}

/// Returns the sum of the values that `visit` reports under `name`.
///
/// # Panics
/// If no counter has this name, so that a misspelled name does not read as zero.
pub fn count(name: &str, visit: impl FnOnce(&mut dyn FnMut(&'static str, u64))) -> u64 {
    let (mut sum, mut found) = (0, false);
    visit(&mut |n, value| {
        if n == name {
            (sum, found) = (sum + value, true);
        }
    });
    assert!(found, "no counter {name}");
    sum
}

/// The ports of one half of a machine.
struct MachinePorts<'a, D> {
    queues: &'a mut MachineQueues,
    disk: &'a mut D,
    run_bytes_max: usize,
    half: MachineHalf,
}

impl<D: TestDisk> DiskPort for MachinePorts<'_, D> {
    fn submit(&mut self, now: Instant, request: DiskRequest) -> Result<(), DiskRequest> {
        self.disk.submit(now, self.half, request);
        Ok(())
    }

    fn poll(&mut self, now: Instant) -> Option<DiskCompletion> {
        self.disk.poll(now, self.half)
    }
}

impl<D: TestDisk> DevicePorts for MachinePorts<'_, D> {
    fn receive(&mut self, _: Instant, pool: &mut PacketPool) -> Option<RxFrame> {
        loop {
            let LinkFrame { bytes, checksum, segment_size } = self.queues.received.pop_front()?;
            if let Some(packet) = pool.copy(&bytes) {
                return Some(RxFrame { packet, checksum, segment_size });
            }
        }
    }

    fn transmit(&mut self, _: Instant, frame: &mut TxFrame) -> LinkTxStatus {
        if frame.payload_len() > self.run_bytes_max {
            return LinkTxStatus::TooLong;
        }
        self.queues.sent.push(LinkFrame::of(frame));
        LinkTxStatus::Sent
    }

    fn pop_op(&mut self, _: &mut PacketPool) -> Option<Op> {
        self.queues.ops.pop_front()
    }

    fn pop_recycled(&mut self) -> Option<PacketBuf> {
        self.queues.recycle.pop_front()
    }

    fn push_event(&mut self, queue: usize, event: Event) -> Result<(), Event> {
        if queue == self.queues.own {
            self.queues.events.push_back(event);
        } else {
            self.queues.other_events.push(event);
        }
        Ok(())
    }
}

impl<D: TestDisk> HostPorts for MachinePorts<'_, D> {
    fn pop_event(&mut self) -> Option<Event> {
        self.queues.events.pop_front()
    }

    fn has_op_room(&mut self) -> bool {
        true
    }

    fn push_op(&mut self, op: Op) {
        self.queues.ops.push_back(op);
    }

    fn push_recycled(&mut self, packet: PacketBuf) {
        self.queues.recycle.push_back(packet);
    }
}

/// An application that collects the notices of its host.
#[derive(Debug, Default)]
pub struct NoticeRecorder(pub Vec<Notice>);

impl NoticeRecorder {
    /// Returns the socket of the latest [`Notice::Accepted`].
    #[must_use]
    pub fn accepted(&self) -> Option<SocketId> {
        self.0.iter().rev().find_map(|notice| match notice {
            Notice::Accepted(_, socket) => Some(*socket),
            _ => None,
        })
    }
}

impl Application for NoticeRecorder {
    fn handle_notice(&mut self, _: Instant, _: &mut Host, notice: Notice) {
        self.0.push(notice);
    }
}

/// An application that reads everything from one connection: the latest accepted, or the one that
/// the test sets.
#[derive(Debug, Default)]
pub struct ReadAllApp {
    /// The connection to read from.
    pub socket: Option<SocketId>,
    /// All bytes read so far.
    pub read: Vec<u8>,
}

impl Application for ReadAllApp {
    fn handle_notice(&mut self, _: Instant, _: &mut Host, notice: Notice) {
        if let Notice::Accepted(_, socket) = notice {
            self.socket = Some(socket);
        }
    }

    fn advance(&mut self, _: Instant, host: &mut Host) -> bool {
        let before = self.read.len();
        if let Some(socket) = self.socket {
            read_all(host, socket, &mut self.read);
        }
        self.read.len() > before
    }
}

/// Reads everything that a socket has received and appends it to `into`.
pub fn read_all(host: &mut Host, socket: SocketId, into: &mut Vec<u8>) {
    loop {
        let bytes = host.peek(socket);
        let len = bytes.len();
        into.extend_from_slice(bytes);
        if len == 0 {
            return;
        }
        host.consume(socket, len);
    }
}
