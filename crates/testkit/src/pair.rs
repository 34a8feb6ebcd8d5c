//! Two hosts that talk to each other over a path that delays, loses, reorders and doubles packets.
//!
//! Time jumps to the next thing that happens: a packet arrives, a disk answers, a timer expires. A
//! run that has nothing to wait for and is not finished is stuck, and panics.

use core::cmp::Reverse;
use core::net::{IpAddr, Ipv4Addr};
use std::collections::BinaryHeap;

use abi::{
    Capabilities, Checksum, Event, FileKind, FileLimits, FileOpened, FileStat, Op, PacketPool,
    Part, Received, TransmitDone, TransmitOutcome,
};
use base::{Duration, Instant, Prng};
use bytes::Bytes;
use host::{Cidr, Config, FileId, Host, Listen, Notice, SocketId};
use wire::Endpoint;

use crate::decode::{file_byte, packets};

/// Which of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The one that connects.
    Client,
    /// The one that listens.
    Server,
}

impl Side {
    const fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// What the path does to packets, in each direction alike.
#[derive(Clone, Debug)]
pub struct Path {
    /// One-way delay.
    pub delay: Duration,
    /// Probability that a packet is lost.
    pub loss: f64,
    /// Probability that a packet is held back by `reorder_by`.
    pub reorder: f64,
    /// How long a reordered packet is held back.
    pub reorder_by: Duration,
    /// Probability that a packet arrives twice.
    pub duplicate: f64,
    /// Bytes per second that the path carries, if it is limited.
    pub bytes_per_s: Option<u64>,
    /// Longest queue before the limit; what would wait longer is lost.
    pub queue: Duration,
    /// How long a simulated disk takes.
    pub disk: Duration,
    /// Seed of everything random.
    pub seed: u64,
}

impl Default for Path {
    fn default() -> Self {
        Self {
            delay: Duration::from_millis(5),
            loss: 0.0,
            reorder: 0.0,
            reorder_by: Duration::from_millis(2),
            duplicate: 0.0,
            bytes_per_s: None,
            queue: Duration::from_millis(50),
            disk: Duration::from_micros(100),
            seed: 1,
        }
    }
}

#[derive(Debug)]
enum Happening {
    Frame(Vec<u8>),
    Event(Event),
}

#[derive(Debug)]
struct Due {
    at: Instant,
    order: u64,
    side: Side,
    what: Happening,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// What one side sends, and has received.
#[derive(Clone, Copy, Debug, Default)]
pub struct Transfer {
    /// Bytes of memory to send.
    pub bytes: u64,
    /// Bytes of a file to send after them.
    pub file_bytes: u64,
}

/// One of the two hosts, with its application.
struct End {
    host: Host,
    socket: Option<SocketId>,
    transfer: Transfer,
    written: u64,
    file: Option<FileId>,
    file_queued: bool,
    received: u64,
    /// When the direction before the path is free again.
    free_at: Instant,
}

/// Two hosts and the path between them.
pub struct Pair {
    ends: [End; 2],
    path: Path,
    prng: Prng,
    now: Instant,
    due: BinaryHeap<Reverse<Due>>,
    order: u64,
    pool: PacketPool,
    /// Packets that the path lost, in all.
    pub lost: u64,
    /// Packets that crossed, in all.
    pub crossed: u64,
}

const START: Instant = Instant::from_millis(1_000);

fn addr(side: Side) -> IpAddr {
    let last = match side {
        Side::Client => 1,
        Side::Server => 2,
    };
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
}

impl Pair {
    /// A server that listens on port 80 and a client that begins to connect; each sends what
    /// `transfers` says.
    #[must_use]
    pub fn new(path: Path, transfers: [Transfer; 2], change: impl Fn(Side, &mut Config)) -> Self {
        let mut prng = Prng::new(path.seed);
        let mut end = |side: Side, transfer| {
            let mut config = Config {
                addrs: vec![Cidr { addr: addr(side), prefix_len: 24 }],
                ..Config::default()
            };
            change(side, &mut config);
            let capabilities = Capabilities {
                transmit_bytes_max: 65_535,
                mtu: 1500,
                mac: [2, 0, 0, 0, 0, side as u8],
                file: Ok(FileLimits { files_max: 10 }),
                l5o: Err(abi::Refusal::NotSupported),

                setup: Err(abi::Refusal::NotSupported),
                teardown: Err(abi::Refusal::NotSupported),
                splice: Err(abi::Refusal::NotSupported),
                quic: Err(abi::Refusal::NotSupported),
            };
            End {
                host: Host::new(config, &capabilities, prng.next_u64()),
                socket: None,
                transfer,
                written: 0,
                file: None,
                file_queued: false,
                received: 0,
                free_at: START,
            }
        };
        let mut ends = [end(Side::Client, transfers[0]), end(Side::Server, transfers[1])];
        ends[1].host.listen(Listen { addr: None, port: 80, backlog: 4 }).expect("port 80 is free");
        let remote = Endpoint { addr: addr(Side::Server), port: 80 };
        ends[0].socket = Some(ends[0].host.connect(START, remote).expect("it can connect"));
        Self {
            ends,
            path,
            prng,
            now: START,
            due: BinaryHeap::new(),
            order: 0,
            pool: PacketPool::new(64),
            lost: 0,
            crossed: 0,
        }
    }

    /// One of the hosts.
    #[must_use]
    pub const fn host(&self, side: Side) -> &Host {
        &self.ends[side as usize].host
    }

    /// The connection on that side, once there is one.
    #[must_use]
    pub const fn socket(&self, side: Side) -> Option<SocketId> {
        self.ends[side as usize].socket
    }

    /// Virtual time since the beginning.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.now.since(START)
    }

    /// Runs until both sides have received and closed everything.
    ///
    /// # Panics
    /// Where it takes longer than `limit` of virtual time, nothing more is to happen, or a byte is
    /// wrong.
    pub fn run(&mut self, limit: Duration) {
        while !self.is_done() {
            self.drive(Side::Client);
            self.drive(Side::Server);
            if self.is_done() {
                break;
            }
            self.step();
            assert!(self.elapsed() < limit, "not done after {limit}: {}", self.describe());
        }
    }

    fn is_done(&self) -> bool {
        [Side::Client, Side::Server].into_iter().all(|side| {
            let (end, peer) = (&self.ends[side as usize], &self.ends[side.other() as usize]);
            let all = end.received == peer.transfer.bytes + peer.transfer.file_bytes;
            all && end.socket.is_some_and(|s| end.host.readiness(s).peer_closed)
        })
    }

    fn describe(&self) -> String {
        let one = |end: &End| {
            let info = end.socket.and_then(|s| end.host.info(s));
            format!("received {}, written {}, {info:?}", end.received, end.written)
        };
        format!(
            "at {} lost {} crossed {}\n client {}\n server {}\n next {:?} {:?}",
            self.elapsed(),
            self.lost,
            self.crossed,
            one(&self.ends[0]),
            one(&self.ends[1]),
            self.ends[0].host.poll_timeout(),
            self.ends[1].host.poll_timeout(),
        )
    }

    /// Moves to the next moment at which something happens, and lets it.
    fn step(&mut self) {
        let timers = self.ends.iter().filter_map(|e| e.host.poll_timeout()).min();
        let arrival = self.due.peek().map(|Reverse(due)| due.at);
        let Some(next) = timers.into_iter().chain(arrival).min() else {
            panic!("stuck: {}", self.describe());
        };
        self.now = self.now.max(next);
        while self.due.peek().is_some_and(|Reverse(due)| due.at <= self.now) {
            let Some(Reverse(due)) = self.due.pop() else { break };
            let event = match due.what {
                Happening::Event(event) => event,
                Happening::Frame(frame) => {
                    let packet = self.pool.copy(&frame).expect("it fits");
                    Event::Received(Received::new(packet, Checksum::Unchecked, 0, 0))
                }
            };
            let now = self.now;
            self.ends[due.side as usize].host.handle_event(now, event);
        }
        for end in &mut self.ends {
            if end.host.poll_timeout().is_some_and(|at| at <= self.now) {
                end.host.handle_timeout(self.now);
            }
        }
    }

    /// Runs the application of a side and takes out what its host sends.
    fn drive(&mut self, side: Side) {
        let now = self.now;
        let end = &mut self.ends[side as usize];
        while let Some(notice) = end.host.poll_notice() {
            if let Notice::Accepted(_, id) = notice {
                end.socket = Some(id);
            }
        }
        end.run_application(now);
        while let Some(packet) = end.host.poll_recycle() {
            self.pool.put(packet);
        }
        while let Some(op) = self.ends[side as usize].host.poll_op(now) {
            self.take_op(side, op);
        }
    }

    fn take_op(&mut self, side: Side, op: Op) {
        match op {
            Op::Transmit(transmit) => {
                let reads = transmit.parts.iter().any(|p| matches!(p, Part::File(_)));
                let delay = if reads { self.path.disk } else { Duration::ZERO };
                let leaves = (self.now + delay).max(self.ends[side as usize].free_at);
                if let Some(tag) = transmit.echo {
                    let done = TransmitDone {
                        flow: transmit.flow,
                        tag,
                        delay: leaves.since(self.now),
                        outcome: TransmitOutcome::Sent,
                    };
                    self.push(leaves, side, Happening::Event(Event::TransmitDone(done)));
                }
                if self.path.bytes_per_s.is_none() {
                    // What follows waits behind the disk.
                    self.ends[side as usize].free_at = leaves;
                }
                for packet in packets(&transmit, delay) {
                    self.cross(side, leaves, packet);
                }
            }
            Op::FileOpen { file, .. } => {
                let stat = FileStat {
                    kind: FileKind::Regular,
                    size: 1 << 40,
                    modified_s: 0,
                    modified_ns: 0,
                    version: 1,
                };
                let opened = FileOpened { file, result: Ok(stat) };
                self.push(self.now, side, Happening::Event(Event::FileOpened(opened)));
            }
            Op::FileClose { .. } | Op::FileAck(_) | Op::FileInvalidate { .. } => {}
            Op::Cancel { .. }
            | Op::L5oCreate(_)
            | Op::L5oDestroy { .. }
            | Op::L5oResyncRxResp { .. }
            | Op::DdpSetup(_)
            | Op::DdpTeardown { .. }
            | Op::Listen(_)
            | Op::Unlisten { .. }
            | Op::Teardown(_)
            | Op::Return(_)
            | Op::Splice(_)
            | Op::SpliceStart { .. }
            | Op::Unsplice { .. }
            | Op::Quiesce
            | Op::QuicAdd(_)
            | Op::QuicRekey(_)
            | Op::QuicRoute(_)
            | Op::QuicRemove { .. }
            | Op::CountFlow { .. } => {
                panic!("this device has no such engine")
            }
        }
    }

    fn push(&mut self, at: Instant, side: Side, what: Happening) {
        self.order += 1;
        self.due.push(Reverse(Due { at, order: self.order, side, what }));
    }

    /// One packet on its way from `side`.
    fn cross(&mut self, side: Side, leaves: Instant, packet: Vec<u8>) {
        self.crossed += 1;
        let mut at = leaves;
        if let Some(rate) = self.path.bytes_per_s {
            let free = &mut self.ends[side as usize].free_at;
            if free.since(leaves) > self.path.queue {
                self.lost += 1;
                return;
            }
            let time = Duration::from_nanos(packet.len() as u64 * 1_000_000_000 / rate);
            *free = (*free).max(leaves) + time;
            at = *free;
        }
        if self.prng.chance(self.path.loss) {
            self.lost += 1;
            return;
        }
        at += self.path.delay;
        if self.prng.chance(self.path.reorder) {
            at += self.path.reorder_by;
        }
        if self.prng.chance(self.path.duplicate) {
            self.push(at, side.other(), Happening::Frame(packet.clone()));
        }
        self.push(at, side.other(), Happening::Frame(packet));
    }
}

impl End {
    fn run_application(&mut self, now: Instant) {
        let Some(socket) = self.socket else { return };
        let ready = self.host.readiness(socket);
        assert_eq!(ready.error, None, "the connection ended");
        self.receive(socket);
        if !ready.writable {
            return;
        }
        while self.written < self.transfer.bytes {
            let room = self.host.send_room(socket) as u64;
            let len = (self.transfer.bytes - self.written).min(room).min(256 * 1024);
            if len == 0 {
                return;
            }
            let bytes: Bytes = (self.written..self.written + len).map(file_byte).collect();
            let taken = self.host.send(now, socket, bytes).expect("it is connected");
            self.written += taken as u64;
        }
        if self.transfer.file_bytes > 0 && !self.file_queued {
            let file = *self
                .file
                .get_or_insert_with(|| self.host.offload_open("file").expect("there is room"));
            if self.host.offload_fstat(file).is_none() {
                return;
            }
            // The receiver checks one pattern over both.
            let offset = self.transfer.bytes;
            let len = self.transfer.file_bytes;
            self.host.offload_write(now, socket, file, offset, len).expect("it is open");
            self.host.offload_close(file);
            self.file_queued = true;
        }
        self.host.shutdown(now, socket);
    }

    fn receive(&mut self, socket: SocketId) {
        loop {
            let bytes = self.host.peek(socket);
            if bytes.is_empty() {
                return;
            }
            for (i, &byte) in bytes.iter().enumerate() {
                let at = self.received + i as u64;
                assert_eq!(byte, file_byte(at), "byte {at} of the stream");
            }
            let len = bytes.len();
            self.received += len as u64;
            self.host.consume(socket, len);
        }
    }
}
