//! Two machines that send streams to each other over a path that delays, loses, reorders and
//! duplicates packets: a [`TwoMachineNetwork`] whose link rule follows [`PathConfig`].

use core::cell::Cell;
use std::rc::Rc;

use base::{Duration, Instant, Prng};
use bytes::Bytes;
use host::{Application, Cidr, FileId, Host, HostConfig, ListenConfig, Notice, SocketId};
use nic::{DeviceConfig, FileConfig};
use wire::Endpoint;

use crate::packetize::file_byte;
use crate::{LinkRule, MemDisk, PLAIN_LINK, TestMachine, TwoMachineNetwork};

/// One of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TransferSide {
    /// The host that connects.
    Client,
    /// The host that listens.
    Server,
}

/// Properties of the path, equal in both directions, and of the hosts' disks.
#[derive(Clone, Debug)]
pub struct PathConfig {
    /// One-way delay.
    pub delay: Duration,
    /// Probability that a packet is lost.
    pub loss: f64,
    /// Probability that a packet is delayed by a further `reorder_by`.
    pub reorder: f64,
    /// Additional delay of a reordered packet.
    pub reorder_by: Duration,
    /// Probability that a packet is delivered twice.
    pub duplicate: f64,
    /// Rate limit in bytes per second, if any.
    pub bytes_per_s: Option<u64>,
    /// Maximum queueing delay at the rate limit; packets that would wait longer are lost.
    pub queue_delay_max: Duration,
    /// Time that a disk read takes.
    pub disk_read_time: Duration,
    /// Seed of all random decisions.
    pub seed: u64,
}

impl Default for PathConfig {
    fn default() -> Self {
        Self {
            delay: Duration::from_millis(5),
            loss: 0.0,
            reorder: 0.0,
            reorder_by: Duration::from_millis(2),
            duplicate: 0.0,
            bytes_per_s: None,
            queue_delay_max: Duration::from_millis(50),
            disk_read_time: Duration::from_micros(100),
            seed: 1,
        }
    }
}

/// Number of packets sent into the path, and how many of them it lost.
#[derive(Debug, Default)]
struct PathPacketCounts {
    sent: Cell<u64>,
    lost: Cell<u64>,
}

impl PathConfig {
    fn into_link_rule(self, mut prng: Prng, counts: Rc<PathPacketCounts>) -> LinkRule {
        // Time until which each direction is busy.
        let mut free_at = [START; 2];
        Box::new(move |now, towards, frame| {
            counts.sent.set(counts.sent.get() + 1);
            let free = &mut free_at[towards as usize];
            let mut after = self.delay;
            let mut lost = self.bytes_per_s.is_some() && free.since(now) > self.queue_delay_max;
            if let Some(rate) = self.bytes_per_s.filter(|_| !lost) {
                let time = frame.bytes.len() as u64 * 1_000_000_000 / rate;
                *free = (*free).max(now) + Duration::from_nanos(time);
                after += free.since(now);
            }
            lost = lost || prng.chance(self.loss);
            if lost {
                counts.lost.set(counts.lost.get() + 1);
                return Vec::new();
            }
            if prng.chance(self.reorder) {
                after += self.reorder_by;
            }
            let copies = 1 + usize::from(prng.chance(self.duplicate));
            vec![(after, frame); copies]
        })
    }
}

/// Data that one side sends.
#[derive(Clone, Copy, Debug, Default)]
pub struct PairTransfer {
    /// Bytes sent from memory.
    pub bytes: u64,
    /// Bytes of a file, sent after those from memory.
    pub file_bytes: u64,
}

/// Two hosts and the path between them.
pub struct TransferPair {
    net: TwoMachineNetwork<PatternStreamApp, PatternStreamApp>,
    counts: Rc<PathPacketCounts>,
}

const START: Instant = Instant::from_millis(1_000);

impl TransferPair {
    /// Creates a server that listens on port 80 and a client that starts to connect to it. Each
    /// side sends its entry of `transfers`, the client's first; `change` edits its host
    /// configuration.
    #[must_use]
    pub fn new(
        path: PathConfig,
        transfers: [PairTransfer; 2],
        change: impl Fn(TransferSide, &mut HostConfig),
    ) -> Self {
        let mut prng = Prng::new(path.seed);
        let mut end = |side: TransferSide| {
            let number = side as u8 + 1;
            let addr = [10, 0, 0, number].into();
            let mut config =
                HostConfig { addrs: vec![Cidr { addr, prefix_len: 24 }], ..HostConfig::default() };
            change(side, &mut config);
            let mut device = DeviceConfig::new([2, 0, 0, 0, 0, number]);
            device.file = Some(FileConfig { memory_bytes_max: 4 << 20, ..FileConfig::default() });
            let mut disk = MemDisk::default();
            disk.read_time = path.disk_read_time;
            disk.insert_computed("file", 1 << 40, 1, file_byte);
            let stream = PatternStreamApp {
                transfer: transfers[side as usize],
                expected: transfers[1 - side as usize],
                ..PatternStreamApp::default()
            };
            (TestMachine::new(config, device, PLAIN_LINK, prng.next_u64(), disk), stream)
        };
        let (mut client, mut server) = (end(TransferSide::Client), end(TransferSide::Server));
        let listen = ListenConfig { addr: None, port: 80, backlog: 4 };
        server.0.host().listen(listen).expect("port 80 is free");
        let remote = Endpoint { addr: [10, 0, 0, 2].into(), port: 80 };
        client.1.socket = client.0.host().connect(START, remote).ok();
        let (mut net, counts) =
            (TwoMachineNetwork::new(START, client, server), Rc::new(PathPacketCounts::default()));
        net.link = path.into_link_rule(prng, Rc::clone(&counts));
        Self { net, counts }
    }

    /// Returns the sum of one side's counters and gauges named `name`.
    #[must_use]
    pub fn count(&self, side: TransferSide, name: &str) -> u64 {
        match side {
            TransferSide::Client => self.net.client.count(name),
            TransferSide::Server => self.net.server.count(name),
        }
    }

    /// Returns the number of packets sent, and how many of them the path lost.
    #[must_use]
    pub fn packets(&self) -> (u64, u64) {
        (self.counts.sent.get(), self.counts.lost.get())
    }

    /// Returns the virtual time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.net.now.since(START)
    }

    /// Runs until both sides have received everything and closed.
    ///
    /// # Panics
    /// If that takes longer than `limit` of virtual time, both hosts become idle before, or a
    /// received byte is wrong.
    pub fn run(&mut self, limit: Duration) {
        let done =
            self.net.run_until(limit, |net| net.client.app.finished && net.server.app.finished);
        let Self { net, counts } = self;
        let (client, server) = (&net.client.app, &net.server.app);
        assert!(done, "not done after {limit}: {counts:?}\n{client:?}\n{server:?}");
    }
}

/// An application that sends its part of a byte pattern, and verifies the peer's.
#[derive(Debug, Default)]
struct PatternStreamApp {
    socket: Option<SocketId>,
    transfer: PairTransfer,
    /// The peer's transfer.
    expected: PairTransfer,
    written: u64,
    file: Option<FileId>,
    /// All data was written and the sending direction is closed.
    send_closed: bool,
    received: u64,
    /// All data was sent and received, and the peer has closed.
    finished: bool,
}

impl Application for PatternStreamApp {
    fn handle_notice(&mut self, _: Instant, _: &mut Host, notice: Notice) {
        if let Notice::Accepted(_, socket) = notice {
            self.socket = Some(socket);
        }
    }

    fn advance(&mut self, now: Instant, host: &mut Host) -> bool {
        let Some(socket) = self.socket.filter(|_| !self.finished) else { return false };
        let ready = host.readiness(socket);
        assert_eq!(ready.error, None, "the connection ended: {self:?}");
        let before = (self.received, self.written, self.file, self.send_closed);
        self.receive(host, socket);
        if ready.writable {
            self.send(now, host, socket);
        }
        let all = self.received == self.expected.bytes + self.expected.file_bytes;
        self.finished = self.send_closed && all && host.readiness(socket).peer_closed;
        self.finished || before != (self.received, self.written, self.file, self.send_closed)
    }
}

impl PatternStreamApp {
    fn send(&mut self, now: Instant, host: &mut Host, socket: SocketId) {
        while self.written < self.transfer.bytes {
            let room = host.send_room(socket) as u64;
            let len = (self.transfer.bytes - self.written).min(room).min(256 * 1024);
            if len == 0 {
                return;
            }
            let bytes: Bytes = (self.written..self.written + len).map(file_byte).collect();
            self.written += host.send(now, socket, bytes).expect("it is connected") as u64;
        }
        if self.transfer.file_bytes > 0 {
            let open = || host.offload_open("file").expect("there is room");
            let file = *self.file.get_or_insert_with(open);
            if host.offload_fstat(file).is_none() {
                return;
            }
            // File offsets continue the offsets of the memory bytes, so the receiver checks a
            // single pattern.
            let PairTransfer { bytes, file_bytes } = self.transfer;
            host.offload_write(now, socket, file, bytes, file_bytes).expect("it is open");
            host.offload_close(file);
        }
        host.shutdown(now, socket);
        self.send_closed = true;
    }

    fn receive(&mut self, host: &mut Host, socket: SocketId) {
        let mut bytes = Vec::new();
        crate::read_all(host, socket, &mut bytes);
        for byte in bytes {
            assert_eq!(byte, file_byte(self.received), "byte {} of the stream", self.received);
            self.received += 1;
        }
    }
}
