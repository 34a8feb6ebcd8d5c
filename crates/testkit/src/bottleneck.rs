//! Connections that share a bottleneck: a queue of limited length and rate, on virtual time.
//!
//! Used by tests of congestion control. Each connection has a sender and a receiver of its own,
//! with real devices. Frames of all senders pass the queue; acknowledgments are only delayed.

use std::collections::BTreeMap;

use base::{Duration, Instant, Prng};
use bytes::Bytes;
use host::{Application, Cidr, CongestionAlgorithm, FileId, Host, HostConfig, ListenConfig};
use host::{Notice, SocketId};
use nic::{DeviceConfig, FileConfig};
use wire::Endpoint;

use crate::machine::{LinkFrame, TestMachine, count};
use crate::{MemDisk, PLAIN_LINK};

const START: Instant = Instant::from_millis(1_000);
/// Bytes that a sender from memory writes at a time.
static ZEROS: [u8; 65_536] = [0; 65_536];
/// Buffers of each connection, larger than any window here.
const BUFFER_BYTES: u32 = 16 << 20;

/// Properties of the bottleneck.
#[derive(Clone, Copy, Debug)]
pub struct BottleneckConfig {
    /// Rate in bytes per second.
    pub bytes_per_s: u64,
    /// Round-trip time without a queue.
    pub round_trip: Duration,
    /// Bytes that wait at most.
    pub queue_bytes_max: u64,
    /// Probability that a frame is lost after the queue.
    pub loss: f64,
    /// Seed of all random decisions.
    pub seed: u64,
}

impl BottleneckConfig {
    /// Returns the bandwidth-delay product in bytes.
    #[must_use]
    pub fn bdp(&self) -> u64 {
        self.bytes_per_s * self.round_trip.as_micros() / 1_000_000
    }
}

/// The bytes that a sender sends without end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowSource {
    /// From memory.
    Memory,
    /// From a file that the device reads.
    DeviceFile,
    /// From a file that the host reads.
    HostFile,
}

/// A connection that shares the bottleneck.
#[derive(Clone, Copy, Debug)]
pub struct FlowConfig {
    /// Congestion control of the sender.
    pub algorithm: CongestionAlgorithm,
    /// Source of its bytes.
    pub source: FlowSource,
    /// Time after the start at which it connects.
    pub starts_after: Duration,
}

/// An application that sends without end.
#[derive(Debug, Default)]
struct EndlessSender {
    socket: Option<SocketId>,
    from_file: bool,
    file: Option<FileId>,
    written: bool,
}

impl Application for EndlessSender {
    fn handle_notice(&mut self, _: Instant, _: &mut Host, _: Notice) {}

    fn advance(&mut self, now: Instant, host: &mut Host) -> bool {
        let Some(socket) = self.socket.filter(|&s| host.readiness(s).writable) else {
            return false;
        };
        if self.from_file {
            let file =
                *self.file.get_or_insert_with(|| host.offload_open("file").expect("there is room"));
            if self.written || host.offload_fstat(file).is_none() {
                return false;
            }
            host.offload_write(now, socket, file, 0, 1 << 36).expect("it is open");
            self.written = true;
            return true;
        }
        let mut any = false;
        while host.send_room(socket) >= ZEROS.len() {
            any |= host.send(now, socket, Bytes::from_static(&ZEROS)).unwrap_or(0) > 0;
        }
        any
    }
}

/// An application that discards what it receives.
#[derive(Debug, Default)]
struct DiscardingReceiver {
    socket: Option<SocketId>,
    received: u64,
}

impl Application for DiscardingReceiver {
    fn handle_notice(&mut self, _: Instant, _: &mut Host, notice: Notice) {
        if let Notice::Accepted(_, socket) = notice {
            self.socket = Some(socket);
        }
    }

    fn advance(&mut self, _: Instant, host: &mut Host) -> bool {
        let Some(socket) = self.socket else { return false };
        let before = self.received;
        loop {
            let len = host.peek(socket).len();
            if len == 0 {
                return self.received > before;
            }
            host.consume(socket, len);
            self.received += len as u64;
        }
    }
}

struct Flow {
    config: FlowConfig,
    sender: (TestMachine<MemDisk>, EndlessSender),
    receiver: (TestMachine<MemDisk>, DiscardingReceiver),
    /// Bytes received when the measurement began.
    received_before: u64,
}

/// Direction of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FrameDirection {
    ToReceiver,
    ToSender,
}

/// Connections that share a bottleneck.
pub struct SharedBottleneck {
    config: BottleneckConfig,
    now: Instant,
    flows: Vec<Flow>,
    prng: Prng,
    /// Time at which the queue is empty.
    free_at: Instant,
    frames: BTreeMap<(Instant, u64), (usize, FrameDirection, LinkFrame)>,
    serial: u64,
    measured_from: Instant,
    /// Sum and number of the frames' waits in the queue, in microseconds.
    waits_us: (u64, u64),
    /// Frames that the full queue dropped.
    dropped: u64,
}

fn machine(config: HostConfig, number: u8, file: bool, seed: u64) -> TestMachine<MemDisk> {
    let mut device = DeviceConfig::new([2, 0, 0, 0, 0, number]);
    device.file = file.then(|| FileConfig { memory_bytes_max: 4 << 20, ..FileConfig::default() });
    let mut disk = MemDisk::default();
    disk.read_time = Duration::from_micros(200);
    disk.insert_computed("file", 1 << 40, 1, |_| 0);
    TestMachine::new(config, device, PLAIN_LINK, seed, disk)
}

impl SharedBottleneck {
    /// Creates the connections; they start when the time of each has come.
    #[must_use]
    pub fn new(config: BottleneckConfig, flows: &[FlowConfig]) -> Self {
        let mut prng = Prng::new(config.seed);
        let flows = flows.iter().map(|&flow| {
            let mut host = |number: u8| {
                let addrs = vec![Cidr { addr: [10, 0, 0, number].into(), prefix_len: 24 }];
                let mut host = HostConfig { addrs, ..HostConfig::default() };
                host.tcp.algorithm = flow.algorithm;
                host.tcp.ecn = false;
                host.tcp.receive_bytes_max = BUFFER_BYTES;
                host.tcp.send_bytes_max = BUFFER_BYTES as usize;
                machine(host, number, flow.source == FlowSource::DeviceFile, prng.next_u64())
            };
            let (sender, mut receiver) = (host(1), host(2));
            let listen = ListenConfig { addr: None, port: 80, backlog: 4 };
            receiver.host().listen(listen).expect("port 80 is free");
            let from_file = flow.source != FlowSource::Memory;
            let app = EndlessSender { from_file, ..EndlessSender::default() };
            Flow {
                config: flow,
                sender: (sender, app),
                receiver: (receiver, DiscardingReceiver::default()),
                received_before: 0,
            }
        });
        let flows = flows.collect();
        Self {
            config,
            now: START,
            flows,
            prng,
            free_at: START,
            frames: BTreeMap::new(),
            serial: 0,
            measured_from: START,
            waits_us: (0, 0),
            dropped: 0,
        }
    }

    /// Begins a measurement: rates, waits and drops count from now.
    pub fn measure(&mut self) {
        self.measured_from = self.now;
        (self.waits_us, self.dropped) = ((0, 0), 0);
        for flow in &mut self.flows {
            flow.received_before = flow.receiver.1.received;
        }
    }

    /// Returns the rate of a connection's payload since the measurement began, in bytes per second.
    #[must_use]
    pub fn goodput(&self, flow: usize) -> u64 {
        let flow = &self.flows[flow];
        let micros = self.now.since(self.measured_from).as_micros().max(1);
        (flow.receiver.1.received - flow.received_before) * 1_000_000 / micros
    }

    /// Returns the share of the rate that all payload used, between 0 and 1.
    #[must_use]
    pub fn utilization(&self) -> f64 {
        let sum: u64 = (0..self.flows.len()).map(|flow| self.goodput(flow)).sum();
        sum as f64 / self.config.bytes_per_s as f64
    }

    /// Returns Jain's index of fairness of the connections' rates.
    #[must_use]
    pub fn fairness(&self) -> f64 {
        let rates: Vec<f64> = (0..self.flows.len()).map(|f| self.goodput(f) as f64).collect();
        let (sum, squares) = (rates.iter().sum::<f64>(), rates.iter().map(|r| r * r).sum::<f64>());
        sum * sum / (rates.len() as f64 * squares.max(1.0))
    }

    /// Returns the mean wait in the queue.
    #[must_use]
    pub fn mean_wait(&self) -> Duration {
        let (sum, count) = self.waits_us;
        Duration::from_micros(sum.checked_div(count).unwrap_or(0))
    }

    /// Returns the number of frames that the full queue dropped.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the figures of the measurement in a line, for messages of failed tests.
    #[must_use]
    pub fn summary(&self) -> String {
        let flows = self.flows.iter().enumerate();
        let rates: Vec<_> =
            flows.map(|(n, f)| (f.config.algorithm, self.goodput(n) * 8 / 1000)).collect();
        format!(
            "{rates:?} kbit/s, {:.3} of the rate, fairness {:.3}, wait {}, {} dropped",
            self.utilization(),
            self.fairness(),
            self.mean_wait(),
            self.dropped,
        )
    }

    /// Returns the sum of a sender's counters and gauges named `name`.
    #[must_use]
    pub fn count(&self, flow: usize, name: &str) -> u64 {
        count(name, |f| self.flows[flow].sender.0.visit(f))
    }

    /// Runs for a time.
    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.start_flows();
            while self.turn() {}
            let next = self.poll_timeout().map_or(end, |at| at.min(end));
            // An event that is due but made no progress is retried a little later.
            let later = self.now + Duration::from_micros(10);
            self.now = if next > self.now { next } else { later };
        }
    }

    fn start_flows(&mut self) {
        for flow in &mut self.flows {
            let due = START + flow.config.starts_after <= self.now;
            if due && flow.sender.1.socket.is_none() {
                let remote = Endpoint { addr: [10, 0, 0, 2].into(), port: 80 };
                flow.sender.1.socket = flow.sender.0.host().connect(self.now, remote).ok();
            }
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let machines = self.flows.iter().flat_map(|flow| {
            let waits = flow.sender.1.socket.is_none();
            [
                flow.sender.0.poll_timeout(self.now, &flow.sender.1),
                flow.receiver.0.poll_timeout(self.now, &flow.receiver.1),
                waits.then_some(START + flow.config.starts_after),
            ]
        });
        let first = self.frames.keys().next().map(|(at, _)| *at);
        machines.chain([first]).flatten().min()
    }

    /// Delivers the frames that are due, and runs each machine once. Returns whether anything
    /// happened.
    fn turn(&mut self) -> bool {
        let mut worked = false;
        while let Some(first) = self.frames.first_entry().filter(|e| e.key().0 <= self.now) {
            let (flow, direction, frame) = first.remove();
            match direction {
                FrameDirection::ToReceiver => self.flows[flow].receiver.0.receive(frame),
                FrameDirection::ToSender => self.flows[flow].sender.0.receive(frame),
            }
            worked = true;
        }
        for index in 0..self.flows.len() {
            let flow = &mut self.flows[index];
            let (sent, by_sender) = flow.sender.0.turn(self.now, &mut flow.sender.1);
            let (answers, by_receiver) = flow.receiver.0.turn(self.now, &mut flow.receiver.1);
            sent.into_iter().for_each(|frame| self.queue(index, frame));
            for frame in answers {
                self.carry(self.now, index, FrameDirection::ToSender, frame);
            }
            worked |= by_sender || by_receiver;
        }
        worked
    }

    /// Queues a frame at the bottleneck, or drops it.
    fn queue(&mut self, flow: usize, frame: LinkFrame) {
        let len = frame.bytes.len() as u64;
        let wait = self.free_at.since(self.now);
        let waiting = wait.as_nanos() * self.config.bytes_per_s / 1_000_000_000;
        if waiting + len > self.config.queue_bytes_max {
            self.dropped += 1;
            return;
        }
        self.waits_us = (self.waits_us.0 + wait.as_micros(), self.waits_us.1 + 1);
        let time = Duration::from_nanos(len * 1_000_000_000 / self.config.bytes_per_s);
        self.free_at = self.free_at.max(self.now) + time;
        if !self.prng.chance(self.config.loss) {
            self.carry(self.free_at, flow, FrameDirection::ToReceiver, frame);
        }
    }

    fn carry(&mut self, at: Instant, flow: usize, direction: FrameDirection, frame: LinkFrame) {
        self.serial += 1;
        let arrives = at + self.config.round_trip / 2;
        self.frames.insert((arrives, self.serial), (flow, direction, frame));
    }
}
