//! Two machines with an endpoint, a host and the real device each, a disk below them, and a wire
//! that does with every frame what a test says.

use std::collections::BTreeMap;
use std::sync::Arc;

use abi::aligned::AlignedBuf;
use abi::disk::{DiskCompletion, DiskFile, DiskRequest, RequestId};
use abi::port::{RxFrame, WireCaps};
use abi::quic::Steering;
use abi::{Checksum, Event, FileFault, FileKind, FileStat, Op};
use base::{Duration, Instant};
use crypto::Provider;
use host::{Cidr, Host};
use nic::{Device, DeviceConfig, QuicConfig};
use quic::{Config, Endpoint, Handle};
use wire::frame::protocol;

/// Where a frame's UDP payload begins: Ethernet, IPv4, UDP.
pub(crate) const PAYLOAD_AT: usize = 42;
/// One way over the wire, where a test says nothing else.
pub(crate) const WAY: Duration = Duration::from_millis(5);
/// Virtual time at which tests begin.
pub(crate) const START: Instant = Instant::from_millis(1_000);
/// Last byte of the server's addresses.
const SERVER: u8 = 2;
/// Bytes of every file.
const FILE_BYTES: u64 = 1 << 30;

/// The byte at a place of a file.
pub(crate) fn file_byte(file: u32, offset: u64) -> u8 {
    (offset.wrapping_mul(31) >> 3).to_le_bytes()[0]
        ^ offset.to_le_bytes()[0]
        ^ file.to_le_bytes()[0]
}

/// The disk of a machine. Files are named by one letter.
#[derive(Default)]
pub(crate) struct Disk {
    /// How long a read takes.
    pub(crate) delay: Duration,
    /// Files that cannot be read, from some byte on.
    pub(crate) broken: BTreeMap<String, u64>,
    /// Files that were changed, and how long they are since.
    pub(crate) changed: BTreeMap<String, u64>,
    names: Vec<String>,
    /// Completions, when they are due, and whether they are the device's.
    due: Vec<(Instant, bool, DiskCompletion)>,
}

impl Disk {
    fn stat(&self, name: &str) -> FileStat {
        let changed = self.changed.get(name);
        FileStat {
            kind: FileKind::Regular,
            size: changed.copied().unwrap_or(FILE_BYTES),
            modified_s: i64::from(changed.is_some()),
            modified_ns: 0,
            // Each file has its own: blocks are shared by it.
            version: u64::from(name.as_bytes()[0]) << 8 | u64::from(changed.is_some()),
        }
    }

    fn serve(&mut self, now: Instant, device: bool, request: DiskRequest) {
        let (at, done) = match request {
            DiskRequest::Open { id, path, .. } => {
                let name = String::from_utf8_lossy(&path).into_owned();
                let stat = self.stat(&name);
                self.names.push(name);
                let file = DiskFile(u32::try_from(self.names.len() - 1).expect("few files"));
                (now, DiskCompletion::Opened { id, result: Ok((file, stat)) })
            }
            DiskRequest::Read { id, file, offset, buf } => {
                (now + self.delay, self.read(id, file, offset, buf))
            }
            DiskRequest::Write { .. } | DiskRequest::Flush { .. } | DiskRequest::Zero { .. } => {
                panic!("nobody writes")
            }
            DiskRequest::Close { .. } => return,
        };
        self.due.push((at, device, done));
    }

    fn read(
        &self,
        id: RequestId,
        file: DiskFile,
        offset: u64,
        mut buf: AlignedBuf,
    ) -> DiskCompletion {
        let name = &self.names[file.0 as usize];
        let stat = self.stat(name);
        let end = offset + buf.len() as u64;
        if self.broken.get(name).is_some_and(|from| end > *from) {
            return DiskCompletion::Read { id, buf, result: Err(FileFault::Io) };
        }
        let letter = u32::from(name.as_bytes()[0]);
        for (at, byte) in (offset..).zip(buf.as_mut_slice()) {
            *byte = file_byte(letter, at);
        }
        let len = u32::try_from(stat.size.min(end).saturating_sub(offset)).expect("a read");
        DiskCompletion::Read { id, buf, result: Ok((len, stat)) }
    }

    fn take_due(&mut self, now: Instant) -> Vec<(bool, DiskCompletion)> {
        let (due, later) = self.due.drain(..).partition::<Vec<_>, _>(|(at, ..)| *at <= now);
        self.due = later;
        due.into_iter().map(|(_, device, done)| (device, done)).collect()
    }
}

/// A machine.
pub(crate) struct Machine {
    pub(crate) host: Host,
    pub(crate) endpoint: Endpoint,
    pub(crate) device: Device,
    pub(crate) disk: Disk,
    /// The device is reset before the next operations reach it: what the host had said by then is
    /// for a device that knows nothing.
    pub(crate) reset_before_ops: bool,
    /// Datagrams that the device gave to another host than this one.
    pub(crate) strays: u64,
    queues: usize,
}

impl Machine {
    /// A counter or gauge of the device, or else of the endpoint, by its name.
    pub(crate) fn count(&self, wanted: &str) -> u64 {
        let mut found = None;
        let mut look = |name: &'static str, value| {
            if name == wanted && found.is_none() {
                found = Some(value);
            }
        };
        self.device.visit(&mut look);
        self.endpoint.visit(&mut look);
        found.unwrap_or_else(|| panic!("{wanted}: no such counter"))
    }

    fn turn(&mut self, now: Instant) -> (Vec<Vec<u8>>, bool) {
        let mut worked = false;
        if self.host.poll_timeout().is_some_and(|at| at <= now) {
            self.host.handle_timeout(now);
        }
        if self.endpoint.poll_timeout().is_some_and(|at| at <= now) {
            self.endpoint.handle_timeout(now, &mut self.host);
        }
        for (device, done) in self.disk.take_due(now) {
            worked = true;
            match device {
                true => self.device.handle_disk(now, done),
                false => self.host.handle_disk(now, done),
            }
        }
        while let Some(event) = self.device.poll_queue_event(0) {
            self.host.handle_event(now, event);
            worked = true;
        }
        for other in 1..self.queues {
            while let Some(event) = self.device.poll_queue_event(other) {
                let is_datagram =
                    matches!(&event, Event::Received(r) if payload(r.packet.as_slice()).is_some());
                self.strays += u64::from(is_datagram);
                worked = true;
            }
        }
        while let Some(notice) = self.host.poll_notice() {
            self.endpoint.handle_notice(now, &mut self.host, notice);
            worked = true;
        }
        self.endpoint.flush(now, &mut self.host);
        while self.device.can_take_op() {
            let Some(op) = self.host.poll_op(now) else { break };
            worked = true;
            let has_file = |t: &abi::Transmit| t.parts.iter().any(|part| part.extent().is_some());
            if self.reset_before_ops && matches!(&op, Op::Transmit(t) if has_file(t)) {
                self.reset_before_ops = false;
                self.device.reset();
            }
            self.device.handle_op(now, 0, op);
        }
        while let Some(packet) = self.host.poll_recycle() {
            self.device.pool().put(packet);
        }
        let mut frames = Vec::new();
        while let Some(frame) = self.device.poll_frame(now) {
            let mut bytes = vec![0; frame.len()];
            frame.copy_to(&mut bytes);
            self.device.recycle(frame);
            frames.push(bytes);
        }
        while let Some(request) = self.device.poll_disk() {
            worked = true;
            self.disk.serve(now, true, request);
        }
        while let Some(request) = self.host.poll_disk() {
            worked = true;
            self.disk.serve(now, false, request);
        }
        (frames, worked)
    }

    fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let disk = self.disk.due.iter().map(|(at, ..)| *at).min();
        let others =
            [self.host.poll_timeout(), self.endpoint.poll_timeout(), self.device.poll_timeout(now)];
        others.into_iter().flatten().chain(disk).min()
    }
}

/// What becomes of a frame: each of these arrives, after that time.
pub(crate) type Fate = Vec<(Duration, Vec<u8>)>;

/// What the wire does: with a frame to the server, or from it.
pub(crate) type Way = Box<dyn FnMut(Instant, bool, Vec<u8>) -> Fate>;

/// Both machines, and the wire between them.
pub(crate) struct Lab {
    pub(crate) now: Instant,
    pub(crate) client: Machine,
    pub(crate) server: Machine,
    pub(crate) wire: Way,
    /// Frames on their way, in the order of their arrival: whether to the server.
    flying: BTreeMap<(Instant, u64), (bool, Vec<u8>)>,
    frames: u64,
    setup: Setup,
    server_tls: Arc<rustls::ServerConfig>,
    tls: Arc<rustls::ClientConfig>,
}

/// What is not as usual.
pub(crate) struct Setup {
    /// Entries of the devices' QUIC engines.
    pub(crate) entries_max: u32,
    /// Names in the server's certificate.
    pub(crate) names: usize,
    pub(crate) server: fn(&mut Config),
    pub(crate) client: fn(&mut Config),
    /// The server's device has another queue, whose host knows nothing of these connections.
    pub(crate) steering: Option<Steering>,
}

impl Default for Setup {
    fn default() -> Self {
        Self { entries_max: 100, names: 1, server: |_| {}, client: |_| {}, steering: None }
    }
}

fn device(last: u8, setup: &Setup) -> Device {
    let mut quic = QuicConfig::new(Arc::new(Provider));
    quic.entries_max = setup.entries_max;
    let mut config = DeviceConfig { quic: Some(quic), ..DeviceConfig::new([2, 0, 0, 0, 0, last]) };
    if let (Some(steering), SERVER) = (setup.steering, last) {
        (config.queues, config.quic_steering) = (2, Some(steering));
    }
    Device::new(
        config,
        WireCaps { segmentation: false, udp_segmentation: false, checksum: false, mtu: 1500 },
    )
}

fn endpoint(
    host: &mut Host,
    last: u8,
    setup: &Setup,
    tls: Option<Arc<rustls::ServerConfig>>,
) -> Endpoint {
    let mut config = Config::new(Arc::new(Provider), io::clock::std_epoch(), [last; 32]);
    config.port = 5000;
    if tls.is_some() {
        config.port = 443;
        config.steering = setup.steering.map(|steering| (steering, 0));
        (setup.server)(&mut config);
    } else {
        (setup.client)(&mut config);
    }
    config.tls = tls;
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    Endpoint::new(config, &provider, host).expect("the port is free")
}

fn machine(last: u8, setup: &Setup, tls: Option<Arc<rustls::ServerConfig>>) -> Machine {
    let device = device(last, setup);
    let addr = core::net::IpAddr::from([10, 77, 0, last]);
    let host_config = host::Config {
        addrs: vec![Cidr { addr, prefix_len: 24 }],
        udp_segmentation: true,
        ..host::Config::default()
    };
    let mut host = Host::new(host_config, &device.capabilities(), u64::from(last));
    let endpoint = endpoint(&mut host, last, setup, tls);
    let queues = if setup.steering.is_some() && last == SERVER { 2 } else { 1 };
    let (disk, strays) = (Disk::default(), 0);
    Machine { host, endpoint, device, disk, reset_before_ops: false, strays, queues }
}

/// TLS of both sides. The more names, the longer the certificate.
fn tls(names: usize) -> (Arc<rustls::ServerConfig>, Arc<rustls::ClientConfig>) {
    let mut all = vec!["localhost".to_owned()];
    all.extend((1..names).map(|i| format!("name-{i}.a-long-domain-of-nobody.example")));
    testkit::tls13(all, b"test")
}

impl Lab {
    /// Two machines with whole devices.
    pub(crate) fn new() -> Self {
        Self::with(Setup::default())
    }

    pub(crate) fn with(setup: Setup) -> Self {
        let (server_tls, tls) = tls(setup.names);
        Self {
            now: START,
            client: machine(1, &setup, None),
            server: machine(2, &setup, Some(Arc::clone(&server_tls))),
            wire: Box::new(|_, _, frame| vec![(WAY, frame)]),
            flying: BTreeMap::new(),
            frames: 0,
            setup,
            server_tls,
            tls,
        }
    }

    /// The client connects.
    pub(crate) fn connect(&mut self) -> Handle {
        let remote = core::net::SocketAddr::from(([10, 77, 0, 2], 443));
        let (now, tls) = (self.now, Arc::clone(&self.tls));
        let Machine { endpoint, host, .. } = &mut self.client;
        let handle = endpoint.connect(now, host, remote, "localhost", &tls).expect("it begins");
        endpoint.flush(now, host);
        handle
    }

    /// A frame that nobody sent arrives at once.
    pub(crate) fn inject(&mut self, to_server: bool, frame: Vec<u8>) {
        self.frames += 1;
        self.flying.insert((self.now, self.frames), (to_server, frame));
    }

    /// Runs until `done` says so, or for that many seconds of virtual time.
    pub(crate) fn run(&mut self, seconds: u64, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now + Duration::from_secs(seconds);
        loop {
            while self.turn() {}
            if done(self) {
                return true;
            }
            while self.turn() {}
            let machines = [&self.client, &self.server];
            let timeouts = machines.into_iter().filter_map(|m| m.poll_timeout(self.now));
            let next = self.flying.keys().map(|(at, _)| *at).chain(timeouts).min();
            let Some(next) = next.filter(|at| *at <= end) else { return false };
            self.now = self.now.max(next);
        }
    }

    /// Lets both sides do what they can at this time; says whether they did anything.
    fn turn(&mut self) -> bool {
        let mut moved = false;
        while let Some(first) = self.flying.first_entry().filter(|e| e.key().0 <= self.now) {
            let (to_server, frame) = first.remove();
            let machine = if to_server { &mut self.server } else { &mut self.client };
            if let Some(packet) = machine.device.pool().copy(&frame) {
                let checksum = Checksum::Unchecked;
                let frame = RxFrame { packet, checksum, segment_size: 0 };
                machine.device.handle_frame(self.now, frame);
            }
            moved = true;
        }
        for from_server in [false, true] {
            let machine = if from_server { &mut self.server } else { &mut self.client };
            let (frames, worked) = machine.turn(self.now);
            moved |= worked || !frames.is_empty();
            for frame in frames {
                for (delay, frame) in (self.wire)(self.now, !from_server, frame) {
                    self.frames += 1;
                    self.flying.insert((self.now + delay, self.frames), (!from_server, frame));
                }
            }
        }
        moved
    }

    /// A machine is switched off and on: nothing is left but its seeds and addresses.
    pub(crate) fn restart(&mut self, server: bool) {
        match server {
            true => self.server = machine(2, &self.setup, Some(Arc::clone(&self.server_tls))),
            false => self.client = machine(1, &self.setup, None),
        }
    }
}

/// The UDP payload of a frame; none where it is no UDP.
pub(crate) fn payload(frame: &[u8]) -> Option<&[u8]> {
    (frame.get(12..14)? == [8, 0] && *frame.get(23)? == protocol::UDP).then_some(())?;
    frame.get(PAYLOAD_AT..)
}

/// Whether a frame has a short-header packet at its begin.
pub(crate) fn is_short(frame: &[u8]) -> bool {
    payload(frame).and_then(<[u8]>::first).is_some_and(|first| first & 0x80 == 0)
}

/// The long-header packets of version 1 in a datagram (RFC 9000, section 17.2), none of them a
/// Retry: the first byte of each, and all of its bytes.
pub(crate) fn long_packets(datagram: &[u8]) -> Vec<(u8, &[u8])> {
    let (mut packets, mut left) = (Vec::new(), datagram);
    while left.first().is_some_and(|first| first & 0x80 != 0) {
        let ids = 6 + usize::from(left[5]);
        let mut at = ids + 1 + usize::from(left[ids]);
        let varint = |at: &mut usize| {
            let bytes = 1 << (left[*at] >> 6);
            let value = left[*at..*at + bytes].iter().fold(0, |v, b| v << 8 | usize::from(*b));
            *at += bytes;
            value & !(3 << (8 * bytes - 2))
        };
        if left[0] & 0x30 == 0 {
            let token = varint(&mut at); // Only an Initial has one.
            at += token;
        }
        let len = varint(&mut at);
        let (packet, rest) = left.split_at(at + len);
        packets.push((packet[0], packet));
        left = rest;
    }
    packets
}

/// Whether a packet with that first byte is a Handshake packet. The second bit may be anything
/// (RFC 9287).
pub(crate) const fn is_handshake(first: u8) -> bool {
    first & 0xb0 == 0xa0
}

/// Lengths and sums of a frame whose bytes were changed. There is no UDP checksum afterwards
/// (RFC 768).
pub(crate) fn mend(mut frame: Vec<u8>) -> Vec<u8> {
    let end = frame.len();
    wire::emit::set_lengths(&mut frame, 14, end, 0);
    let len = u16::try_from(end - 34).expect("a datagram");
    frame[38..40].copy_from_slice(&len.to_be_bytes());
    frame[40..42].fill(0);
    frame
}

/// The same frame with another UDP payload.
pub(crate) fn with_payload(frame: &[u8], payload: &[u8]) -> Vec<u8> {
    mend([&frame[..PAYLOAD_AT], payload].concat())
}
