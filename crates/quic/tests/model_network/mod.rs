//! Two hosts with an endpoint each. Each has a reference device, a simple and slow implementation
//! of `abi::quic`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use abi::crypto::{Aead, CryptoProvider as _, HeaderProtection, TAG_BYTES};
use abi::quic::{
    QuicAdd, QuicDecrypted, QuicDirection, QuicFailure, QuicId, QuicKeys, QuicLimits, QuicProtect,
    QuicRouteKey, QuicStatus,
};
use abi::{
    Capabilities, Checksum, Event, ExtentCount, FileExtent, FileFault, FileId, FileKind,
    FileLimits, FileOpened, FileStat, Op, PacketPool, ReceivedFrame, Refusal, Transmit,
    TransmitDone, TransmitOutcome, TransmitPart,
};
use base::{Duration, Instant};
use crypto::Provider;
use host::{Application as _, Cidr, Host};
use outboard_quic::{QuicEndpoint, QuicEndpointConfig, QuicHandle};
use testkit::MemDisk;
use wire::frame::ParsedFrame;
use wire::segment::HeaderLayout;

/// Offset of a frame's UDP payload: Ethernet, IPv4 and UDP headers.
const PAYLOAD_AT: usize = 42;
/// Virtual time at the start of a test.
const START: Instant = Instant::from_millis(1_000);

/// Returns the byte at an offset of every file.
pub(crate) fn file_byte(offset: u64) -> u8 {
    (offset.wrapping_mul(31) >> 3).to_le_bytes()[0] ^ offset.to_le_bytes()[0]
}

/// Capabilities and behavior of a device.
#[derive(Clone, Copy, Default)]
pub(crate) struct ModelAbilities {
    /// The device has a QUIC engine.
    pub(crate) quic: bool,
    /// The device also decrypts received packets.
    pub(crate) decrypts: bool,
    /// Reason for which the device refuses every offload, if any.
    pub(crate) refuses: Option<Refusal>,
    /// The device reads files.
    pub(crate) files: bool,
    /// MTU of the link; `None` for 1,500.
    pub(crate) link_mtu: Option<u16>,
}

struct ModelKeys {
    phase: bool,
    aead: Box<dyn Aead>,
    iv: [u8; 12],
}

struct ModelContext {
    add: Box<QuicAdd>,
    header: Box<dyn HeaderProtection>,
    keys: Vec<ModelKeys>,
    next: u64,
}

/// Reference device.
#[derive(Default)]
pub(crate) struct QuicModelDevice {
    pub(crate) abilities: ModelAbilities,
    entries: BTreeMap<QuicId, ModelContext>,
    routes: BTreeMap<Vec<u8>, QuicId>,
    files: BTreeMap<FileId, Box<[u8]>>,
    events: VecDeque<Event>,
    /// File bytes read, and file bytes reported as acknowledged.
    pub(crate) file_bytes: [u64; 2],
    pub(crate) encrypted: u64,
    pub(crate) decrypted: u64,
    pub(crate) rekeys: u64,
    /// True if file reads fail.
    pub(crate) file_reads_fail: bool,
}

fn keys(suite: abi::crypto::Suite, keys: &QuicKeys) -> ModelKeys {
    let aead = Provider.aead(suite, &keys.key[..suite.key_bytes()]).expect("a key");
    ModelKeys { phase: keys.phase, aead, iv: keys.iv }
}

fn nonce(iv: [u8; 12], number: u64) -> [u8; 12] {
    let mut nonce = iv;
    nonce[4..].iter_mut().zip(number.to_be_bytes()).for_each(|(n, b)| *n ^= b);
    nonce
}

impl QuicModelDevice {
    /// Returns the number of offload contexts.
    pub(crate) fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Returns the reordering time of each receive context; `None` in it means no reordering
    /// window.
    pub(crate) fn reorder_times(&self) -> Vec<Option<Duration>> {
        let time = |entry: &ModelContext| match &entry.add.direction {
            QuicDirection::Receive { reorder, .. } => Some(reorder.map(|bounds| bounds.time)),
            QuicDirection::Transmit => None,
        };
        self.entries.values().filter_map(time).collect()
    }

    /// Returns the number of connection IDs that lead to contexts.
    pub(crate) fn routes(&self) -> usize {
        self.routes.len()
    }

    /// Forgets everything and reports a reset.
    fn reset(&mut self) {
        self.entries.clear();
        self.routes.clear();
        self.files.clear();
        self.events.push_back(Event::Reset);
    }

    /// Carries out an operation; returns frames for the link.
    fn handle(&mut self, op: Op) -> Vec<Vec<u8>> {
        match op {
            Op::Transmit(transmit) => return self.transmit(&transmit),
            Op::FileOpen { file, path, .. } => {
                let result = if self.abilities.files {
                    self.files.insert(file, path);
                    Ok(stat())
                } else {
                    Err(FileFault::Refused(Refusal::NotSupported))
                };
                self.events.push_back(Event::FileOpened(FileOpened { file, result }));
            }
            Op::FileClose { file } => drop(self.files.remove(&file)),
            Op::FileAck(extent) => self.file_bytes[1] += u64::from(extent.len),
            Op::QuicAdd(add) => self.add(add),
            Op::QuicRekey(rekey) => {
                self.rekeys += 1;
                if let Some(entry) = self.entries.get_mut(&rekey.quic) {
                    let made = keys(entry.add.suite, &rekey.keys);
                    let newest = entry.keys.last().expect("one at least");
                    assert_ne!(newest.phase, made.phase, "the other phase");
                    entry.keys.push(made);
                    if entry.keys.len() > 2 {
                        entry.keys.remove(0);
                    }
                }
            }
            Op::QuicRoute(route) => {
                let QuicRouteKey::Id { id, .. } = route.route else {
                    panic!("we have connection IDs")
                };
                if route.add {
                    self.routes.insert(id.as_slice().to_vec(), route.quic);
                } else {
                    assert_eq!(self.routes.remove(id.as_slice()), Some(route.quic));
                }
            }
            Op::QuicRemove { quic } => {
                self.entries.remove(&quic);
                self.routes.retain(|_, name| *name != quic);
            }
            other => panic!("{other:?}"),
        }
        Vec::new()
    }

    fn add(&mut self, add: Box<QuicAdd>) {
        if let Some(why) = self.abilities.refuses {
            let (quic, flow, why) = (add.quic, add.flow, QuicFailure::Refused(why));
            self.events.push_back(Event::QuicStatus(QuicStatus { quic, flow, failure: why }));
            return;
        }
        if let QuicDirection::Receive { routes, .. } = &add.direction {
            for route in routes {
                let QuicRouteKey::Id { id, .. } = route else { panic!("we have connection IDs") };
                self.routes.insert(id.as_slice().to_vec(), add.quic);
            }
        }
        let key = &add.header_key[..add.suite.key_bytes()];
        let header = Provider.header_protection(add.suite, key).expect("a key");
        let first = keys(add.suite, &add.keys);
        let next = add.next_packet_number;
        self.entries.insert(add.quic, ModelContext { add, header, keys: vec![first], next });
    }

    fn transmit(&mut self, transmit: &Transmit) -> Vec<Vec<u8>> {
        let mut payload = Vec::new();
        let files = transmit.parts.iter().any(|part| part.extent().is_some());
        let mut extents = ExtentCount::default();
        let mut taken = transmit.parts.iter().filter_map(TransmitPart::extent);
        assert!(taken.all(|extent| extents.add(extent)), "no more than the contract has");
        for part in &transmit.parts {
            match part {
                TransmitPart::Host(bytes) => payload.extend_from_slice(bytes),
                TransmitPart::File(FileExtent { file, offset, len }) => {
                    assert!(self.files.contains_key(file), "an open file");
                    payload.extend((0..u64::from(*len)).map(|i| file_byte(offset + i)));
                    self.file_bytes[0] += u64::from(*len);
                }
                TransmitPart::Records(_) | TransmitPart::Pdu(_) => panic!("no TCP here"),
            }
        }
        if let Some(tag) = transmit.echo {
            let fault = files && self.file_reads_fail;
            let unknown = |protect: &QuicProtect| !self.entries.contains_key(&protect.quic);
            let unsealed = transmit.quic.as_deref().is_some_and(unknown);
            let outcome = match (fault, unsealed) {
                (true, _) => TransmitOutcome::Dropped(FileFault::Io),
                (false, true) => TransmitOutcome::Dropped(FileFault::Refused(Refusal::DoesNotFit)),
                (false, false) => TransmitOutcome::Sent,
            };
            let (flow, delay) = (transmit.flow, Duration::ZERO);
            self.events.push_back(Event::TransmitDone(TransmitDone { flow, tag, delay, outcome }));
            if fault {
                return Vec::new();
            }
        }
        let size =
            if transmit.segment_size == 0 { usize::MAX } else { transmit.segment_size.into() };
        let mut datagrams: Vec<Vec<u8>> = payload.chunks(size).map(<[u8]>::to_vec).collect();
        if datagrams.is_empty() {
            datagrams.push(Vec::new()); // An ARP frame is all header.
        }
        if let Some(protect) = &transmit.quic {
            assert_eq!(protect.packets.len(), datagrams.len());
            let Some(entry) = self.entries.get_mut(&protect.quic) else {
                let (quic, flow, why) = (protect.quic, transmit.flow, QuicFailure::NotEncrypted);
                self.events.push_back(Event::QuicStatus(QuicStatus { quic, flow, failure: why }));
                return Vec::new();
            };
            for (packet, datagram) in protect.packets.iter().zip(&mut datagrams) {
                let Some(packet) = packet else { continue };
                entry.encrypt(packet, datagram);
                self.encrypted += 1;
            }
        }
        let header = transmit.header.as_slice();
        datagrams.iter().map(|datagram| finish([header, datagram].concat())).collect()
    }

    /// Handles a frame from the link; returns it as the host receives it.
    fn receive(&mut self, frame: &[u8]) -> ReceivedFrame {
        let mut frame = frame.to_vec();
        let udp =
            matches!(wire::frame::parse(&frame), Ok(ParsedFrame::Ip(ip)) if ip.protocol == 17);
        let opened = (udp && self.abilities.decrypts)
            .then(|| self.decrypt(&mut frame[PAYLOAD_AT..]))
            .flatten();
        let packet = PacketPool::new(0).copy(&frame).expect("it fits");
        let mut received = ReceivedFrame::new(packet, Checksum::Good, 0, 0);
        self.decrypted += u64::from(opened.is_some());
        received.quic = opened.map(|(quic, number)| {
            Box::new(QuicDecrypted { quic, numbers: [number].into_iter().collect() })
        });
        received
    }

    fn decrypt(&mut self, datagram: &mut [u8]) -> Option<(QuicId, u64)> {
        if datagram[0] & 0x80 != 0 {
            return None;
        }
        let quic = *self.routes.get(datagram.get(1..9)?)?;
        let entry = self.entries.get_mut(&quic)?;
        let mut copy = datagram.to_vec();
        let mask = entry.header.mask(copy.get(13..29)?.try_into().ok()?);
        copy[0] ^= mask[0] & 0x1f;
        let pn_len = usize::from(copy[0] & 3) + 1;
        let mut number = 0;
        for i in 0..pn_len {
            copy[9 + i] ^= mask[1 + i];
            number = number << 8 | u64::from(copy[9 + i]);
        }
        // RFC 9000 appendix A.3.
        let (window, expected) = (1_u64 << (8 * pn_len), entry.next);
        let mut full = (expected & !(window - 1)) | number;
        if full + window / 2 <= expected {
            full += window;
        } else if full > expected + window / 2 && full >= window {
            full -= window;
        }
        let phase = copy[0] & 4 != 0;
        let keys = entry.keys.iter().find(|keys| keys.phase == phase)?;
        let (header, sealed) = copy.split_at_mut(9 + pn_len);
        keys.aead.open(&nonce(keys.iv, full), header, sealed).ok()?;
        entry.next = entry.next.max(full + 1);
        datagram.copy_from_slice(&copy);
        Some((quic, full))
    }
}

impl ModelContext {
    fn encrypt(&mut self, packet: &abi::quic::QuicTxPacket, datagram: &mut [u8]) {
        assert!(packet.number >= self.next, "a nonce is used once");
        self.next = packet.number + 1;
        let packet_bytes = &mut datagram[usize::from(packet.begin)..];
        assert_eq!(packet_bytes[0] & 0x80, 0);
        let (pn_offset, pn_len) = (usize::from(packet.pn_offset), usize::from(packet.pn_len));
        assert_eq!(usize::from(packet_bytes[0] & 3) + 1, pn_len);
        let phase = packet_bytes[0] & 4 != 0;
        let keys = self.keys.iter().find(|keys| keys.phase == phase).expect("its generation");
        let (header, rest) = packet_bytes.split_at_mut(pn_offset + pn_len);
        let (text, room) = rest.split_last_chunk_mut::<TAG_BYTES>().expect("room for the tag");
        *room = keys.aead.seal(&nonce(keys.iv, packet.number), header, text);
        let sample = packet_bytes[pn_offset + 4..pn_offset + 20].try_into().expect("a sample");
        let mask = self.header.mask(sample);
        packet_bytes[0] ^= mask[0] & 0x1f;
        for i in 0..pn_len {
            packet_bytes[pn_offset + i] ^= mask[1 + i];
        }
    }
}

fn finish(mut frame: Vec<u8>) -> Vec<u8> {
    if frame[12..14] == [8, 0] {
        HeaderLayout::of(&frame, 14, 34).expect("a packet").complete(&mut frame, 0);
    }
    frame
}

/// Returns the attributes of every file.
fn stat() -> FileStat {
    FileStat { kind: FileKind::Regular, size: 1 << 30, modified_s: 0, modified_ns: 0, version: 1 }
}

/// A machine.
pub(crate) struct QuicModelNode {
    pub(crate) host: Host,
    pub(crate) endpoint: QuicEndpoint,
    pub(crate) device: QuicModelDevice,
    /// The host's own disk, with the file `a`.
    disk: MemDisk,
}

/// Client, server, and the link between them.
pub(crate) struct QuicModelNetwork {
    pub(crate) now: Instant,
    pub(crate) client: QuicModelNode,
    pub(crate) server: QuicModelNode,
    /// Frames in flight: time of arrival, and whether the server receives them.
    in_flight: VecDeque<(Instant, bool, Vec<u8>)>,
    /// Frames whose number is a multiple of this are lost.
    pub(crate) lose_every: Option<u64>,
    /// Largest IP packet that the path carries, if it is smaller than the links' MTU.
    pub(crate) path_mtu: usize,
    /// Loss rate of frames to the client, in parts per million.
    pub(crate) loss_ppm: u64,
    /// Rate of late frames to the client in parts per million, and their extra delay.
    pub(crate) late: (u64, Duration),
    /// Bandwidth to the client in bytes per second; zero if unlimited.
    pub(crate) rate: u64,
    /// Time at which the link to the client becomes idle.
    idle_at: Instant,
    prng: base::Prng,
    frames: u64,
    tls: Arc<rustls::ClientConfig>,
}

fn node(
    last: u8,
    able: ModelAbilities,
    change: impl FnOnce(&mut QuicEndpointConfig),
) -> QuicModelNode {
    let (mac, mtu) = ([2, 0, 0, 0, 0, last], able.link_mtu.unwrap_or(1500));
    let none = Refusal::NotSupported;
    let capabilities = Capabilities {
        file: able.files.then_some(FileLimits { files_max: 9 }).ok_or(Refusal::Disabled),
        quic: able.quic.then_some(QuicLimits { entries_max: 100, waiting_max: 100 }).ok_or(none),
        ..Capabilities::without_engines(mac, mtu, 65_416, none)
    };
    let addr = core::net::IpAddr::from([10, 77, 0, last]);
    let host_config = host::HostConfig {
        addrs: vec![Cidr { addr, prefix_len: 24 }],
        udp_segmentation: true,
        ..host::HostConfig::default()
    };
    let mut host = Host::new(host_config, &capabilities, u64::from(last));
    let mut config =
        QuicEndpointConfig::new(Arc::new(Provider), io::clock::std_epoch(), [last; 32]);
    change(&mut config);
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let endpoint = QuicEndpoint::new(config, &provider, &mut host).expect("the port is free");
    let mut disk = MemDisk::default();
    disk.insert_computed("a", stat().size, stat().version, file_byte);
    disk.file("a").stat = stat();
    QuicModelNode {
        host,
        endpoint,
        device: QuicModelDevice { abilities: able, ..QuicModelDevice::default() },
        disk,
    }
}

impl QuicModelNetwork {
    /// Creates a server with a device of these abilities, and a client without offloads.
    pub(crate) fn new(able: ModelAbilities) -> Self {
        Self::with(able, ModelAbilities::default(), |_| {})
    }

    /// Creates both machines; `change` modifies the server's configuration.
    pub(crate) fn with(
        server: ModelAbilities,
        client: ModelAbilities,
        change: impl FnOnce(&mut QuicEndpointConfig),
    ) -> Self {
        let usual = QuicEndpointConfig::new(Arc::new(Provider), io::clock::std_epoch(), [0; 32]);
        Self::with_windows(server, client, usual.receive_windows, change)
    }

    /// As [`Self::with`], with the client's receive windows of a stream and of a connection.
    pub(crate) fn with_windows(
        server: ModelAbilities,
        client: ModelAbilities,
        receive_windows: [u32; 2],
        change: impl FnOnce(&mut QuicEndpointConfig),
    ) -> Self {
        let (server_tls, tls) = testkit::tls13(vec!["localhost".to_owned()], b"test");
        let server = node(2, server, |config| {
            config.tls = Some(server_tls);
            change(config);
        });
        let client = node(1, client, |config| {
            config.port = 5000;
            config.receive_windows = receive_windows;
        });
        let flying = VecDeque::new();
        let (late, prng) = ((0, Duration::ZERO), base::Prng::new(1));
        Self {
            now: START,
            client,
            server,
            in_flight: flying,
            lose_every: None,
            path_mtu: usize::MAX,
            loss_ppm: 0,
            late,
            rate: 0,
            idle_at: START,
            prng,
            frames: 0,
            tls,
        }
    }

    /// Starts a connection from the client.
    pub(crate) fn connect(&mut self) -> QuicHandle {
        let remote = core::net::SocketAddr::from(([10, 77, 0, 2], 443));
        let (now, tls) = (self.now, Arc::clone(&self.tls));
        let QuicModelNode { endpoint, host, .. } = &mut self.client;
        let handle = endpoint.connect(now, host, remote, "localhost", &tls).expect("it begins");
        endpoint.flush(now, host);
        handle
    }

    /// Resets the server's device.
    pub(crate) fn reset_device(&mut self) {
        self.server.device.reset();
    }

    /// Runs until `done` returns true, at most for `seconds` of virtual time. Returns whether it
    /// did.
    pub(crate) fn run(&mut self, seconds: u64, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now + Duration::from_secs(seconds);
        loop {
            while self.run_due() {}
            if done(self) {
                return true;
            }
            while self.run_due() {}
            let timeouts = [&self.client, &self.server]
                .into_iter()
                .flat_map(|node| [node.host.poll_timeout(), node.endpoint.poll_timeout()])
                .flatten();
            let next = self.in_flight.iter().map(|(at, ..)| *at).chain(timeouts).min();
            let Some(next) = next.filter(|at| *at <= end) else { return false };
            self.now = self.now.max(next);
        }
    }

    /// Lets both sides do all work that is due. Returns whether there was any.
    fn run_due(&mut self) -> bool {
        let mut moved = false;
        while let Some((_, to_server, frame)) = self
            .in_flight
            .front()
            .filter(|(at, ..)| *at <= self.now)
            .is_some()
            .then(|| self.in_flight.pop_front().expect("it was there"))
        {
            let node = if to_server { &mut self.server } else { &mut self.client };
            let received = node.device.receive(&frame);
            node.host.handle_event(self.now, Event::Received(received));
            moved = true;
        }
        for from_server in [false, true] {
            let node = if from_server { &mut self.server } else { &mut self.client };
            let (frames, worked) = node.run_due(self.now);
            moved |= worked;
            for frame in frames {
                self.frames += 1;
                if self.lose_every.is_some_and(|every| self.frames % every == 0) {
                    continue;
                }
                // A frame begins with 14 bytes of Ethernet.
                if frame.len().saturating_sub(14) > self.path_mtu {
                    continue;
                }
                if from_server && self.loss_ppm > 0 && self.prng.below(1_000_000) < self.loss_ppm {
                    continue;
                }
                let mut at = self.now + Duration::from_millis(5);
                if from_server && self.rate > 0 {
                    let takes =
                        Duration::from_nanos(frame.len() as u64 * 1_000_000_000 / self.rate);
                    self.idle_at = self.idle_at.max(self.now) + takes;
                    at = self.idle_at + Duration::from_millis(5);
                }
                if from_server && self.prng.below(1_000_000) < self.late.0 {
                    at += self.late.1;
                }
                let behind = self.in_flight.partition_point(|(other, ..)| *other <= at);
                self.in_flight.insert(behind, (at, !from_server, frame));
            }
        }
        moved
    }
}

impl QuicModelNode {
    fn run_due(&mut self, now: Instant) -> (Vec<Vec<u8>>, bool) {
        let mut worked = false;
        if self.host.poll_timeout().is_some_and(|at| at <= now) {
            self.host.handle_timeout(now);
        }
        if self.endpoint.poll_timeout().is_some_and(|at| at <= now) {
            self.endpoint.handle_timeout(now, &mut self.host);
        }
        while let Some(event) = self.device.events.pop_front() {
            self.host.handle_event(now, event);
            worked = true;
        }
        while let Some(notice) = self.host.poll_notice() {
            self.endpoint.handle_notice(now, &mut self.host, notice);
            worked = true;
        }
        self.endpoint.flush(now, &mut self.host);
        while let Some(request) = self.host.poll_disk() {
            worked = true;
            if let Some(completion) = self.disk.execute(request) {
                self.host.handle_disk(now, completion);
            }
        }
        let mut frames = Vec::new();
        while let Some(op) = self.host.poll_op(now) {
            worked = true;
            frames.extend(self.device.handle(op));
        }
        while self.host.poll_recycle().is_some() {}
        (frames, worked)
    }
}
