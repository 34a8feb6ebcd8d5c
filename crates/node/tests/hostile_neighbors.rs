//! A hostile program beside an honest one on the same device: the honest program's frames are the
//! same, byte for byte, as without the other. The honest program has one queue, or two.

use std::collections::VecDeque;

use abi::attach::{AddressClaim, ClaimedQueue, PortClaim};
use abi::count::CountRequest;
use abi::disk::{DiskCompletion, DiskRequest};
use abi::link::{LinkTxStatus, RxFrame, TxFrame};
use abi::setup::{CookieSecret, ListenId, SetupListen};
use abi::splice::{Splice, SpliceId, SpliceSide};
use abi::steering::{FlowSteering, SegmentHandOver, SteeredFrame, SteeringReason};
use abi::teardown::{ClosingState, LateData, Teardown};
use abi::{
    Checksum, Event, FileAccess, FileId, FlowId, Op, PacketBuf, PacketHeader, PacketPool, Transmit,
    TransmitParts,
};
use base::{Duration, Instant, Prng, SeqNum};
use bytes::Bytes;
use host::{Cidr, Host, HostConfig, ListenConfig};
use nic::switch::EmbeddedSwitch;
use nic::{Device, DeviceConfig, SetupConfig, SpliceConfig, TeardownConfig};
use outboard_node::{DiskPort, FunctionPorts, HostHalf, HostPorts, LinkPort, SwitchHalf};
use testkit::{LinkFrame, MemDisk, NoticeRecorder, PLAIN_LINK, TestMachine, read_all};
use wire::emit::{EthernetAddrs, IpHeader};
use wire::frame::{self, ParsedFrame, protocol};
use wire::segment::tcp_packet;
use wire::tcp::{TcpFlags, TcpHeader};
use wire::{Endpoint, Tuple};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const HONEST: [u8; 4] = [10, 0, 0, 1];
const HOSTILE: [u8; 4] = [10, 0, 0, 66];
const CLIENT: [u8; 4] = [10, 0, 0, 9];
const PORT: u16 = 80;
const BYTES: usize = 300_000;
const STEP: Duration = Duration::from_micros(100);
/// Window of the segments that the hostile program makes, by which they are recognized.
const FORGED_WINDOW: u16 = 4242;
/// Seed of the steering of the honest program's queues.
const STEERING_SEED: u64 = 0x0123_4567_89ab_cdef;
/// Operations of the hostile program in a step.
const OPS_PER_STEP: u64 = 12;

/// The rings between a program and its function. It has no files.
#[derive(Default)]
struct ProgramRings {
    ops: VecDeque<Op>,
    events: VecDeque<Event>,
    recycled: VecDeque<PacketBuf>,
}

impl DiskPort for ProgramRings {
    fn submit(&mut self, _: Instant, request: DiskRequest) -> Result<(), DiskRequest> {
        panic!("a disk request: {request:?}");
    }

    fn poll(&mut self, _: Instant) -> Option<DiskCompletion> {
        None
    }
}

impl FunctionPorts for ProgramRings {
    fn pop_op(&mut self, _: &mut PacketPool) -> Option<Op> {
        self.ops.pop_front()
    }

    fn pop_recycled(&mut self) -> Option<PacketBuf> {
        self.recycled.pop_front()
    }

    fn push_event(&mut self, event: Event) -> Result<(), Event> {
        self.events.push_back(event);
        Ok(())
    }

    fn wake_host(&mut self) {}
}

impl HostPorts for ProgramRings {
    fn pop_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn has_op_room(&mut self) -> bool {
        true
    }

    fn push_op(&mut self, op: Op) {
        self.ops.push_back(op);
    }

    fn push_recycled(&mut self, packet: PacketBuf) {
        self.recycled.push_back(packet);
    }
}

/// The link of the device.
#[derive(Default)]
struct SwitchLink {
    received: VecDeque<LinkFrame>,
    sent: Vec<LinkFrame>,
}

impl LinkPort for SwitchLink {
    fn receive(&mut self, _: Instant, pool: &mut PacketPool) -> Option<RxFrame> {
        let LinkFrame { bytes, checksum, segment_size } = self.received.pop_front()?;
        let packet = pool.copy(&bytes).expect("it fits a buffer");
        Some(RxFrame { packet, checksum, segment_size })
    }

    fn transmit(&mut self, _: Instant, frame: &mut TxFrame) -> LinkTxStatus {
        self.sent.push(LinkFrame::of(frame));
        LinkTxStatus::Sent
    }
}

fn device() -> Device {
    let mut config = DeviceConfig::new(MAC);
    config.file = None;
    config.setup = Some(SetupConfig::default());
    config.teardown = Some(TeardownConfig::default());
    config.splice = Some(SpliceConfig::default());
    Device::new(config, PLAIN_LINK)
}

fn claim(addrs: &[[u8; 4]]) -> AddressClaim {
    let addrs = addrs.iter().map(|&addr| addr.into()).collect();
    AddressClaim::new(addrs, PortClaim::All)
}

/// Returns the claim of a queue of a program; `None` if the program has one only.
fn queue_claim(addrs: &[[u8; 4]], seed: u64, index: Option<u8>) -> AddressClaim {
    let queue = index.map(|index| ClaimedQueue { seed, index, queues: 2, quic: None });
    AddressClaim { queue, ..claim(addrs) }
}

fn host_config(addr: [u8; 4]) -> HostConfig {
    let addrs = vec![Cidr { addr: addr.into(), prefix_len: 24 }];
    HostConfig { addrs, ..HostConfig::default() }
}

/// Makes operations that try to disturb the connection of the honest program.
struct HostileProgram {
    random: Prng,
    /// The connection, from the device's side.
    tuple: Tuple,
    next: u64,
}

impl HostileProgram {
    fn seq(&mut self) -> SeqNum {
        SeqNum(self.random.next_u32())
    }

    /// Returns a segment between the honest program and its client, in this direction.
    fn segment(&mut self, from_client: bool, flags: TcpFlags) -> Vec<u8> {
        let Tuple { local, remote } = self.tuple;
        let (from, to) = if from_client { (remote, local) } else { (local, remote) };
        let (source, destination) = if from_client { (CLIENT_MAC, MAC) } else { (MAC, CLIENT_MAC) };
        let link = EthernetAddrs { source, destination };
        let (source, destination) = (from.addr, to.addr);
        let ip = IpHeader { source, destination, protocol: protocol::TCP, ecn: 0, hop_limit: 64 };
        let (seq, ack) = (self.seq(), self.seq());
        let (source, destination) = (from.port, to.port);
        let (window, options) = (FORGED_WINDOW, Default::default());
        let tcp = TcpHeader { source, destination, seq, ack, flags, window, options };
        tcp_packet(&link, &ip, &tcp, &[])
    }

    fn header(&mut self, flags: TcpFlags) -> PacketHeader {
        let packet = self.segment(false, flags);
        PacketHeader::from_bytes(&packet, 14, 34).expect("headers without options")
    }

    fn received(&mut self) -> SteeredFrame {
        let flags = [TcpFlags::RST, TcpFlags::SYN, TcpFlags::ACK, TcpFlags::FIN];
        let flags = flags[usize::try_from(self.random.below(4)).unwrap_or(0)];
        let packet = PacketPool::new(1).copy(&self.segment(true, flags)).expect("it is short");
        let frame = RxFrame { packet, checksum: Checksum::Good, segment_size: 0 };
        let reasons = [SteeringReason::Current, SteeringReason::Former, SteeringReason::Returned];
        let reason = reasons[usize::try_from(self.random.below(3)).unwrap_or(0)];
        SteeredFrame { frame, reason }
    }

    fn transmit(header: PacketHeader) -> Op {
        Op::Transmit(Transmit {
            flow: FlowId::NONE,
            header,
            segment_size: 0,
            parts: TransmitParts::new(),
            timestamp: None,
            echo: None,
            retransmission: false,
            quic: None,
        })
    }

    fn splice_side(&mut self, tuple: Tuple) -> SpliceSide {
        SpliceSide {
            tuple,
            next_hop_mac: CLIENT_MAC,
            snd_nxt: self.seq(),
            rcv_nxt: self.seq(),
            peer_scale: 7,
            own_scale: 7,
            peer_window: 65_535,
            own_window: 65_535,
            mss: 1460,
            sack: true,
            ecn: false,
            timestamps: None,
        }
    }

    fn teardown(&mut self) -> Op {
        let una = self.seq();
        Op::Teardown(Box::new(Teardown {
            flow: FlowId(self.next),
            header: self.header(TcpFlags::ACK),
            timestamp: None,
            una,
            nxt: una,
            edge: una + 65_535,
            peer_scale: 7,
            mss: 1460,
            mss_after_timeouts: 1460,
            parts: TransmitParts::new(),
            rcv_nxt: self.seq(),
            state: ClosingState::FinWait1,
            rto: Duration::from_millis(1),
            time_wait: Duration::from_millis(1),
            contexts: Default::default(),
            late_data: LateData::Reset,
        }))
    }

    /// Returns the next operation.
    fn op(&mut self) -> Op {
        self.next += 1;
        let listener = ListenId(u32::try_from(self.next).unwrap_or(0));
        match self.random.below(14) {
            0 => Self::transmit(self.header(TcpFlags::RST)),
            1 => Self::transmit(self.header(TcpFlags::FIN.with(TcpFlags::ACK))),
            2 => Self::transmit(arp_reply()),
            3 => {
                let index = [None, Some(0), Some(1)][usize::try_from(self.next % 3).unwrap_or(0)];
                let seed = self.random.next_u64();
                Op::ExtendClaim(Box::new(queue_claim(&[HOSTILE, HONEST], seed, index)))
            }
            4 => Op::Listen(Box::new(SetupListen {
                listener,
                addrs: [HONEST.into()].into(),
                port: PORT,
                window: 1000,
                window_scale: 0,
                mss: [1460, 1440],
                sack: true,
                ecn: false,
                defer_accept: false,
                secret: CookieSecret([1, 2]),
            })),
            5 => {
                let requests = [CountRequest::Start, CountRequest::Report, CountRequest::Stop];
                let request = requests[usize::try_from(self.random.below(3)).unwrap_or(0)];
                Op::CountFlow { tuple: Box::new(self.tuple), request }
            }
            6 => Op::Return(self.received()),
            7 => {
                let (tuple, frame) = (self.tuple, self.received());
                Op::HandOver(SegmentHandOver {
                    queue: usize::from(self.next % 2 == 0),
                    tuple,
                    frame,
                })
            }
            8 => {
                let own = Endpoint { addr: HOSTILE.into(), port: 1 };
                let other = Tuple { local: own, remote: self.tuple.remote };
                let sides = [self.splice_side(self.tuple), self.splice_side(other)];
                let (id, idle_timeout) = (SpliceId(self.next), Duration::from_millis(1));
                Op::Splice(Box::new(Splice { id, sides, idle_timeout }))
            }
            9 => Op::SpliceStart {
                id: SpliceId(self.next.saturating_sub(5)),
                packets: [self.received().frame].into(),
            },
            10 => self.teardown(),
            11 => Op::Cancel { flow: FlowId(self.random.below(4)) },
            12 => Op::FileOpen {
                file: FileId(1),
                path: b"a".as_slice().into(),
                access: FileAccess::Content,
            },
            _ => Op::Quiesce,
        }
    }
}

/// Returns an ARP reply to the client: the honest program's address is at another station.
fn arp_reply() -> PacketHeader {
    let mut bytes = [&CLIENT_MAC[..], &MAC, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]].concat();
    bytes.extend([&[2, 0, 0, 0, 0, 66][..], &HONEST, &CLIENT_MAC, &CLIENT].concat());
    PacketHeader::from_bytes(&bytes, 14, 42).expect("it is short")
}

/// Result of a run.
struct NeighborRun {
    /// The honest program's frames, with their times.
    frames: Vec<(Instant, LinkFrame)>,
    received: Vec<u8>,
    refused: [u64; 2],
}

/// Returns the source address of a packet.
fn source(bytes: &[u8]) -> Option<core::net::IpAddr> {
    match frame::parse(bytes) {
        Ok(ParsedFrame::Ip(ip)) => Some(ip.source),
        _ => None,
    }
}

/// A queue of the honest program.
struct HonestQueue {
    function: usize,
    half: HostHalf,
    app: NoticeRecorder,
}

impl HonestQueue {
    /// Attaches the queue; `index` is `None` if it is the only one.
    fn begin(half: &mut SwitchHalf<ProgramRings>, function: usize, index: Option<u8>) -> Self {
        let claim = queue_claim(&[HONEST], STEERING_SEED, index);
        assert_eq!(half.begin(function, &claim, ProgramRings::default(), device), Ok(()));
        let mut host = Host::new(host_config(HONEST), &device().capabilities(), 1);
        host.listen(ListenConfig { addr: None, port: PORT, backlog: 1 }).unwrap();
        Self { function, half: HostHalf::new(host), app: NoticeRecorder::default() }
    }
}

/// Sends [`BYTES`] from the honest program to a client, beside a hostile one if there is a seed.
fn run(queues: &[Option<u8>], seed: Option<u64>) -> NeighborRun {
    let mut half = SwitchHalf::new(EmbeddedSwitch::new(MAC, 7), device());
    let functions = [0, 2].into_iter().zip(queues);
    let mut servers: Vec<_> = functions
        .map(|(function, &index)| HonestQueue::begin(&mut half, function, index))
        .collect();
    assert_eq!(half.begin(1, &claim(&[HOSTILE]), ProgramRings::default(), device), Ok(()));
    let mut client = TestMachine::new(
        host_config(CLIENT),
        DeviceConfig::new(CLIENT_MAC),
        PLAIN_LINK,
        2,
        MemDisk::default(),
    );
    let mut client_app = NoticeRecorder::default();
    let mut now = Instant::from_millis(1);
    let remote = Endpoint { addr: HONEST.into(), port: PORT };
    let socket = client.host().connect(now, remote).unwrap();
    let mut link = SwitchLink::default();
    let text: Vec<u8> = (0..=250).cycle().take(BYTES).collect();
    let (mut sent, mut frames, mut received) = (0, Vec::new(), Vec::new());
    let mut hostile = None;
    while received.len() < BYTES {
        now += STEP;
        assert!(now < Instant::from_millis(10_000), "{} bytes", received.len());
        link.received.extend(client.settle(now, &mut client_app));
        if let (Some(hostile), Some(ports)) = (&mut hostile, half.program_mut(1)) {
            let ops = (0..OPS_PER_STEP).map(|_| HostileProgram::op(hostile));
            ports.ops.extend(ops);
        }
        for _ in 0..4 {
            half.turn(now, &mut link);
            for HonestQueue { function, half: server, app } in &mut servers {
                if let Some(accepted) = app.accepted() {
                    let rest = Bytes::copy_from_slice(&text[sent..]);
                    sent += server.host.send(now, accepted, rest).unwrap_or(0);
                }
                let ports = half.program_mut(*function).expect("the honest program is there");
                server.turn(now, app, ports);
            }
        }
        for frame in link.sent.drain(..) {
            let of_hostile = source(&frame.bytes) == Some(HOSTILE.into());
            if !of_hostile {
                frames.push((now, frame.clone()));
                client.receive(frame);
            }
        }
        client.settle(now, &mut client_app).into_iter().for_each(|f| link.received.push_back(f));
        read_all(client.host(), socket, &mut received);
        if let (None, Some(seed), Some(info)) = (&hostile, seed, client.host().info(socket)) {
            let tuple = Tuple { local: remote, remote: info.local };
            hostile = Some(HostileProgram { random: Prng::new(seed), tuple, next: 0 });
        }
    }
    let ports = half.program_mut(1).expect("the hostile program is there");
    for event in ports.events.drain(..) {
        if let Event::Received(received) = event {
            let bytes = received.packet.as_slice();
            let is_forged = bytes.get(48..50) == Some(&FORGED_WINDOW.to_be_bytes());
            let of_client = source(bytes) == Some(CLIENT.into());
            assert!(is_forged || !of_client, "a frame of the other's client");
        }
    }
    for (_, device) in half.devices() {
        assert_eq!(testkit::count("nic_internal_errors", |f| device.visit(f)), 0);
    }
    let count = |name| testkit::count(name, |f| half.visit(f));
    let refused = ["switch_tx_refused", "switch_claims_refused"].map(count);
    NeighborRun { frames, received, refused }
}

#[test]
fn a_hostile_program_changes_no_frame_of_an_honest_one() {
    for queues in [&[None][..], &[Some(0), Some(1)], &[Some(1), Some(0)]] {
        let alone = run(queues, None);
        assert!(alone.frames.len() > BYTES / 1460 && alone.refused == [0, 0]);
        for seed in 0..70 {
            let beside = run(queues, Some(seed));
            assert!(beside.refused.iter().all(|&count| count > 0), "{:?}", beside.refused);
            assert_eq!(beside.received, alone.received, "seed {seed}");
            assert_eq!(beside.frames.len(), alone.frames.len(), "seed {seed}");
            for (number, (with, without)) in beside.frames.iter().zip(&alone.frames).enumerate() {
                assert_eq!(with, without, "frame {number}, seed {seed}");
            }
        }
    }
}

/// A packet that a host has reassembled reaches the queue that it is for, of the same program only.
#[test]
fn returned_packets_stay_within_their_program() {
    let mut half = SwitchHalf::new(EmbeddedSwitch::new(MAC, 7), device());
    let _first = HonestQueue::begin(&mut half, 0, Some(0));
    let _second = HonestQueue::begin(&mut half, 2, Some(1));
    assert_eq!(half.begin(1, &claim(&[HOSTILE]), ProgramRings::default(), device), Ok(()));
    let steering = FlowSteering::new(STEERING_SEED, 2);
    let mut link = SwitchLink::default();
    for port in 40_000..40_020 {
        let local = Endpoint { addr: HONEST.into(), port: PORT };
        let remote = Endpoint { addr: CLIENT.into(), port };
        let tuple = Tuple { local, remote };
        let of_queue = [0, 2][steering.queue_of(&tuple)];
        let mut random = HostileProgram { random: Prng::new(port.into()), tuple, next: 0 };
        for (from, to) in [(0, of_queue), (2, of_queue), (1, 1)] {
            let reason = SteeringReason::Current;
            let frame = SteeredFrame { reason, ..random.received() };
            let bytes = frame.frame.packet.as_slice().to_vec();
            let ports = half.program_mut(from).expect("it was attached");
            ports.ops.push_back(Op::Return(frame));
            for turn in 0..3 {
                half.turn(Instant::from_millis(turn), &mut link);
            }
            for function in 0..3 {
                let ports = half.program_mut(function).expect("it was attached");
                let events = ports.events.drain(..).filter_map(|event| match event {
                    Event::Received(received) => Some(received.packet.as_slice().to_vec()),
                    _ => None,
                });
                let want = if function == to { vec![bytes.clone()] } else { vec![] };
                assert_eq!(events.collect::<Vec<_>>(), want, "from {from}, at {function}");
            }
        }
        // A storm of them is taken in one by one, between the turns of others.
        let storm = (0..100).map(|_| {
            Op::Return(SteeredFrame { reason: SteeringReason::Current, ..random.received() })
        });
        let other = 2 - of_queue;
        half.program_mut(other).expect("it was attached").ops.extend(storm);
        assert!(half.turn(Instant::from_millis(3), &mut link).more);
        let ports = half.program_mut(other).expect("it was attached");
        assert_eq!(ports.ops.len(), 99);
        ports.ops.clear();
        half.turn(Instant::from_millis(4), &mut link);
        half.program_mut(of_queue).expect("it was attached").events.clear();
    }
}
