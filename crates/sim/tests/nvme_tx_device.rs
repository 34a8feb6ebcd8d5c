//! Two hosts with real devices, and PDUs of NVMe/TCP from files and from memory over a wire that
//! loses and reorders: what arrives is what was written, with right digests, whoever filled them
//! in; and counters say who did.

use std::collections::VecDeque;
use std::sync::Arc;

use abi::crypto::{CryptoProvider as _, Suite};
use abi::disk::{DiskCompletion, DiskFile, DiskRequest};
use abi::l5o::{Direction, L5oId, L5oRefused};
use abi::nvme_tcp::NvmeTcpState;
use abi::port::{RxFrame, WireCaps};
use abi::{Checksum, Event, FileKind, FileStat, FlowId, Op, Refusal};
use base::{Instant, Prng};
use bytes::Bytes;
use host::nvme::PduData;
use host::{
    Cidr, Config, FileId, Host, Listen, Notice, SocketId, TlsDirection, TlsKeys, TlsVersion,
};
use nic::{Device, DeviceConfig, FileConfig, L5oConfig};
use wire::Endpoint;

/// Ethernet, IPv4, TCP with timestamps.
const HEADERS: usize = 14 + 20 + 32;
/// Bytes of the namespace's file.
const FILE_BYTES: usize = 1 << 20;

/// A byte of the namespace.
fn stored(at: u64) -> u8 {
    u8::try_from((at * 7 + at / 4093) % 256).unwrap()
}

/// A disk with one file, which answers in any order.
struct Disk {
    waiting: Vec<DiskRequest>,
    prng: Prng,
}

impl Disk {
    fn answer(&mut self) -> Option<DiskCompletion> {
        let most = u64::try_from(self.waiting.len()).ok().filter(|&n| n > 0)?;
        let at = usize::try_from(self.prng.next_u64() % most).unwrap();
        let size = FILE_BYTES as u64;
        let (kind, modified_s, modified_ns, version) = (FileKind::Regular, 1, 2, 3);
        let stat = FileStat { kind, size, modified_s, modified_ns, version };
        match self.waiting.remove(at) {
            DiskRequest::Open { id, .. } => {
                Some(DiskCompletion::Opened { id, result: Ok((DiskFile(1), stat)) })
            }
            DiskRequest::Read { id, offset, mut buf, .. } => {
                let len = buf.len().min(FILE_BYTES - usize::try_from(offset).unwrap());
                for (at, byte) in (offset..).zip(&mut buf.as_mut_slice()[..len]) {
                    *byte = stored(at);
                }
                Some(DiskCompletion::Read { id, buf, result: Ok((len.try_into().unwrap(), stat)) })
            }
            // Nobody writes here.
            _ => None,
        }
    }
}

struct End {
    host: Host,
    device: Device,
    device_disk: Disk,
    host_disk: Disk,
    socket: Option<SocketId>,
    opened: bool,
    read: Vec<u8>,
    /// What the device was first asked to seal with, if anything.
    seals: Option<(L5oId, FlowId)>,
}

impl End {
    fn new(number: u8, config: DeviceConfig, offload: Result<(), Refusal>) -> Self {
        let caps =
            WireCaps { segmentation: false, udp_segmentation: false, checksum: true, mtu: 1500 };
        let device = Device::new(config, caps);
        let addr = [10, 0, 0, number].into();
        let config = Config {
            addrs: vec![Cidr { addr, prefix_len: 24 }],
            nvme_tcp_offload: offload,
            ..Config::default()
        };
        let host = Host::new(config, &device.capabilities(), number.into());
        let disk = |seed| Disk { waiting: vec![], prng: Prng::new(seed) };
        let (device_disk, host_disk) = (disk(1), disk(2));
        let (socket, opened, read, seals) = (None, false, Vec::new(), None);
        Self { host, device, device_disk, host_disk, socket, opened, read, seals }
    }

    fn count(&self, name: &str) -> u64 {
        let (mut sum, mut found) = (0, false);
        let mut add = |n: &str, value: u64| {
            if n == name {
                (sum, found) = (sum + value, true);
            }
        };
        self.host.visit(&mut add);
        self.device.visit(&mut add);
        assert!(found, "no counter {name}");
        sum
    }

    /// Lets host, device and disks work; gives what leaves.
    fn work(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        loop {
            let mut busy = false;
            while let Some(event) = self.device.poll_queue_event(0) {
                self.host.handle_event(now, event);
                busy = true;
            }
            if self.host.poll_timeout().is_some_and(|at| at <= now) {
                self.host.handle_timeout(now);
            }
            while let Some(notice) = self.host.poll_notice() {
                match notice {
                    Notice::Accepted(_, socket) => self.socket = Some(socket),
                    Notice::File(_) => self.opened = true,
                    _ => {}
                }
            }
            while let Some(op) = self.host.poll_op(now) {
                match &op {
                    Op::L5oCreate(create) if create.direction == Direction::Transmit => {
                        self.seals.get_or_insert((create.context, create.flow));
                    }
                    _ => {}
                }
                self.device.handle_op(now, 0, op);
                busy = true;
            }
            while let Some(packet) = self.host.poll_recycle() {
                self.device.pool().put(packet);
            }
            while let Some(frame) = self.device.poll_frame(now) {
                let mut bytes = vec![0; frame.len()];
                frame.copy_to(&mut bytes);
                frames.push(bytes);
            }
            self.device_disk.waiting.extend(core::iter::from_fn(|| self.device.poll_disk()));
            self.host_disk.waiting.extend(core::iter::from_fn(|| self.host.poll_disk()));
            if let Some(done) = self.device_disk.answer() {
                self.device.handle_disk(now, done);
                busy = true;
            }
            if let Some(done) = self.host_disk.answer() {
                self.host.handle_disk(now, done);
                busy = true;
            }
            self.drain();
            if !busy {
                return frames;
            }
        }
    }

    fn take(&mut self, frame: &[u8], now: Instant) {
        let packet = self.device.pool().copy(frame).unwrap();
        let frame = RxFrame { packet, checksum: Checksum::Good, segment_size: 0 };
        self.device.handle_frame(now, frame);
    }

    fn drain(&mut self) {
        let Some(socket) = self.socket else { return };
        loop {
            let bytes = self.host.peek(socket).to_vec();
            if bytes.is_empty() {
                return;
            }
            self.host.consume(socket, bytes.len());
            self.read.extend_from_slice(&bytes);
        }
    }
}

/// What carries the PDUs.
#[derive(Clone, Copy, Debug)]
enum Carrier {
    Tcp,
    Tls(TlsVersion, Suite),
}

const CARRIERS: [Carrier; 4] = [
    Carrier::Tcp,
    Carrier::Tls(TlsVersion::Tls13, Suite::Aes128Gcm),
    Carrier::Tls(TlsVersion::Tls12, Suite::Aes256Gcm),
    Carrier::Tls(TlsVersion::Tls13, Suite::ChaCha20Poly1305),
];

struct World {
    now: Instant,
    initiator: End,
    target: End,
    file: FileId,
    prng: Prng,
    /// Of a thousand frames with payload, so many are lost, and as many come late.
    loss: u64,
    late: VecDeque<Vec<u8>>,
    /// What the target has written, and the last mark.
    written: Vec<u8>,
    mark: u64,
}

fn engine() -> L5oConfig {
    L5oConfig::new(Arc::new(crypto::Provider))
}

fn device(number: u8) -> DeviceConfig {
    // Little memory: blocks come and go.
    let file = FileConfig { memory_bytes_max: 1 << 20, block_pages: 2, ..FileConfig::default() };
    let l5o = Some(engine());
    DeviceConfig { file: Some(file), l5o, ..DeviceConfig::new([2, 0, 0, 0, 0, number]) }
}

impl World {
    /// A target that a connection leads to, with its file open.
    fn new(carrier: Carrier, target: DeviceConfig, offload: Result<(), Refusal>) -> Self {
        let (initiator, target) = (End::new(2, device(2), Ok(())), End::new(1, target, offload));
        let mut world = Self {
            now: Instant::from_millis(1000),
            initiator,
            target,
            file: FileId(0),
            prng: Prng::new(5),
            loss: 0,
            late: VecDeque::new(),
            written: vec![],
            mark: 0,
        };
        world.target.host.listen(Listen { addr: None, port: 4420, backlog: 8 }).unwrap();
        world.file = world.target.host.offload_open("namespace").unwrap();
        let remote = Endpoint { addr: [10, 0, 0, 1].into(), port: 4420 };
        world.initiator.socket = Some(world.initiator.host.connect(world.now, remote).unwrap());
        world.run_until(|world| world.target.socket.is_some() && world.target.opened);
        if let Carrier::Tls(version, suite) = carrier {
            for (end, (tx, rx)) in [(&mut world.initiator, (1, 2)), (&mut world.target, (2, 1))] {
                let half = |which: u8| TlsDirection::new(&[which; 32], [which; 12], 0);
                let crypto = Arc::new(crypto::Provider);
                let keys = TlsKeys { version, suite, tx: half(tx), rx: half(rx), crypto };
                end.host.attach_tls(world.now, end.socket.unwrap(), &keys).unwrap();
            }
        }
        world
    }

    fn socket(&self) -> SocketId {
        self.target.socket.unwrap()
    }

    fn begin(&mut self) -> Result<L5oId, Refusal> {
        let (header_digest, data_digest, pdu_bytes_max) = (true, true, 1 << 20);
        let state = NvmeTcpState { header_digest, data_digest, pdu_bytes_max, over: None };
        let (now, socket) = (self.now, self.socket());
        self.target.host.nvme_tx_context(now, socket, state, Arc::new(crypto::Provider))
    }

    /// One round: frames cross, some do not, some later.
    fn step(&mut self) {
        let out = self.target.work(self.now);
        let back = self.initiator.work(self.now);
        let quiet = out.is_empty() && back.is_empty() && self.late.is_empty();
        let late = core::mem::take(&mut self.late);
        for frame in out {
            let has_payload = frame.len() > HEADERS && frame[12..14] == [8, 0];
            match self.prng.next_u64() % 1000 {
                draw if has_payload && draw < self.loss => {}
                draw if has_payload && draw < 2 * self.loss => self.late.push_back(frame),
                _ => self.initiator.take(&frame, self.now),
            }
        }
        late.iter().for_each(|frame| self.initiator.take(frame, self.now));
        back.iter().for_each(|frame| self.target.take(frame, self.now));
        if quiet {
            let next = |end: &End| {
                let device = end.device.poll_timeout(self.now);
                [end.host.poll_timeout(), device].into_iter().flatten().min()
            };
            let next = [next(&self.target), next(&self.initiator)].into_iter().flatten().min();
            self.now = next.expect("something to wait for").max(self.now);
        }
    }

    fn run_until(&mut self, done: impl Fn(&Self) -> bool) {
        for _ in 0..100_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        let (read, written) = (self.initiator.read.len(), self.written.len());
        panic!("{read} of {written} bytes came");
    }

    /// Writes a PDU, and notes what it is.
    fn send(&mut self, header: usize, data: PduData, digest: bool) {
        let header: Vec<u8> = (0..header).map(|at| u8::try_from(at % 256).unwrap()).collect();
        let bytes: Vec<u8> = match &data {
            PduData::None => vec![],
            PduData::Memory(bytes) => bytes.to_vec(),
            PduData::File { offset, len, .. } => {
                (*offset..).take(*len as usize).map(stored).collect()
            }
        };
        let (socket, now) = (self.socket(), self.now);
        let mark = self.target.host.send_pdu(now, socket, header.clone().into(), data, digest);
        let before = self.written.len();
        self.written.extend(header);
        self.written.extend_from_slice(&bytes);
        if digest && !bytes.is_empty() {
            self.written.extend(crypto::Provider.crc32c(0, &bytes).to_le_bytes());
        }
        let mark = mark.unwrap();
        assert_eq!(mark - self.mark, (self.written.len() - before) as u64);
        self.mark = mark;
    }

    /// Writes `count` PDUs of all kinds; gives how many have a digest.
    fn send_many(&mut self, count: u64) -> u64 {
        let mut digests = 0;
        for nth in 0..count {
            let draw = self.prng.next_u64();
            let len = 1 + u32::try_from(draw % 40_000).unwrap();
            let offset = draw / 40_000 % (FILE_BYTES as u64 - 40_000);
            let file = PduData::File { file: self.file, offset, len };
            let memory = || (0..u64::from(len)).map(|at| stored(at + draw % 99)).collect::<Bytes>();
            let (data, digest) = match nth % 5 {
                0 | 1 => (file, true),
                2 => (PduData::Memory(memory()), true),
                3 => (PduData::None, true),
                _ => (file, false),
            };
            digests += u64::from(nth % 5 < 3);
            self.send(24 + 4 * usize::try_from(nth % 2).unwrap(), data, digest);
        }
        digests
    }

    /// Everything has come, and is what was written.
    fn settle(&mut self) {
        self.run_until(|world| {
            let acknowledged = world.target.host.pdus_acknowledged(world.socket());
            world.initiator.read.len() >= world.written.len() && acknowledged == world.mark
        });
        assert!(self.initiator.read == self.written, "other bytes came");
    }

    /// Closes the connection: nothing is left of it on the device.
    fn close(mut self) {
        let (now, socket) = (self.now, self.socket());
        self.target.host.close(now, socket);
        let peer = self.initiator.socket.unwrap();
        self.run_until(|world| world.initiator.host.readiness(peer).peer_closed);
        self.initiator.host.close(now, peer);
        self.run_until(|world| world.target.count("connections") == 0);
        self.target.host.offload_close(self.file);
        let _frames = self.target.work(self.now);
        for gauge in ["l5o_contexts", "file_held_bytes", "file_open_files"] {
            assert_eq!(self.target.count(gauge), 0, "{gauge}");
        }
    }
}

#[test]
fn the_device_fills_digests_in() {
    for carrier in CARRIERS {
        let mut world = World::new(carrier, device(1), Ok(()));
        world.begin().unwrap();
        world.loss = 20;
        let digests = world.send_many(100);
        world.settle();
        let count = |name: &str| world.target.count(name);
        assert_eq!(count("nvme_tx_pdus"), 100);
        assert_eq!((count("nvme_tx_digests_device"), count("nvme_tx_digests_host")), (digests, 0));
        assert_eq!((count("nvme_tx_device"), count("tx_nvmeotcp_ctx")), (1, 1));
        assert!(count("tx_nvmeotcp_digests") >= digests, "{carrier:?}");
        assert_eq!(count("file_fallback_bytes"), 0);
        // It was sent again, with what precedes it, and nothing had to be dropped.
        assert!(count("tcp_retrans") > 0 && count("tx_nvmeotcp_resync_bytes") > 0, "{carrier:?}");
        assert_eq!(count("tx_nvmeotcp_drop_no_sync_data"), 0);
        assert_eq!(count("tx_nvmeotcp_drop_bypass_req") + count("tx_dropped_l5o"), 0);
        world.close();
    }
}

/// Nothing is lost and all of it is in order: no sum is made twice.
#[test]
fn in_order_no_sum_is_made_twice() {
    for carrier in CARRIERS {
        let mut world = World::new(carrier, device(1), Ok(()));
        world.begin().unwrap();
        let digests = world.send_many(50);
        world.settle();
        let count = |name: &str| world.target.count(name);
        assert_eq!((count("nvme_tx_digests_device"), count("nvme_tx_digests_host")), (digests, 0));
        assert_eq!((count("tx_nvmeotcp_ooo"), count("tx_nvmeotcp_resync_bytes")), (0, 0));
        world.close();
    }
}

/// Property 7: a device that is reset in the middle of PDUs loses no byte, and fills digests in
/// again after it.
#[test]
fn resets_in_the_middle() {
    for carrier in CARRIERS {
        let mut world = World::new(carrier, device(1), Ok(()));
        world.begin().unwrap();
        world.loss = 10;
        for round in 0..5 {
            world.send_many(20);
            for _ in 0..2 + round {
                world.step();
            }
            world.target.device.reset();
        }
        world.settle();
        let before = world.target.count("nvme_tx_digests_host");
        assert!(before > 0, "{carrier:?}");
        assert_eq!(world.target.count("device_resets"), 2 * 5, "the device's and the host's");
        // The file is the host's to read now; memory is completed by the device.
        for _ in 0..10 {
            world.send(24, PduData::Memory(Bytes::from(vec![9; 5000])), true);
        }
        world.settle();
        assert_eq!(world.target.count("nvme_tx_digests_host"), before, "{carrier:?}");
    }
}

/// Where the host seals it computes digests too: the context for them is given back.
#[test]
fn a_seal_that_is_refused_takes_digests_along() {
    let mut world = World::new(CARRIERS[1], device(1), Ok(()));
    world.begin().unwrap();
    let digests = world.send_many(30);
    (0..3).for_each(|_| world.step());
    let (context, flow) = world.target.seals.unwrap();
    let refused = Event::L5oRefused(L5oRefused { context, flow, why: Refusal::TableFull });
    world.target.host.handle_event(world.now, refused);
    world.settle();
    let count = |name: &str| world.target.count(name);
    assert_eq!((count("tls_tx_device_refused"), count("nvme_tx_device_lost")), (1, 1));
    assert_eq!(count("nvme_tx_digests_device"), digests);
    let host = count("nvme_tx_digests_host");
    assert!(0 < host && host <= digests);
    let more = world.send_many(10);
    world.settle();
    assert_eq!(world.target.count("nvme_tx_digests_host"), host + more);
    let _frames = world.target.work(world.now);
    assert_eq!(world.target.count("file_held_bytes"), 0, "what had left under the context");
}

/// Whatever is not there, the bytes are the same.
#[test]
fn software_does_the_same() {
    let l5o = |change: fn(&mut L5oConfig)| {
        let mut config = device(1);
        config.l5o.as_mut().into_iter().for_each(change);
        config
    };
    for carrier in CARRIERS {
        let cases = [
            // Switched off, no such engine, no digests on it, no file engine, a full table.
            (device(1), Err(Refusal::Disabled), Err(Refusal::Disabled)),
            (DeviceConfig { l5o: None, ..device(1) }, Ok(()), Err(Refusal::Disabled)),
            (l5o(|l5o| l5o.nvme_tcp_tx = false), Ok(()), Err(Refusal::NotSupported)),
            (l5o(|l5o| l5o.tls_tx = false), Ok(()), Ok(())),
            (DeviceConfig { file: None, ..device(1) }, Ok(()), Ok(())),
            (l5o(|l5o| l5o.contexts_max = 0), Ok(()), Ok(())),
        ];
        for (nth, (config, offload, want)) in cases.into_iter().enumerate() {
            let mut world = World::new(carrier, config, offload);
            let begun = world.begin().map(|_| ());
            // Who seals has to compute digests before that.
            let sealed_by_host = matches!(carrier, Carrier::Tls(..)) && matches!(nth, 1 | 3);
            let want = if sealed_by_host { Err(Refusal::Encrypted) } else { want };
            assert_eq!(begun, want, "{carrier:?} {nth}");
            world.loss = 10;
            let digests = world.send_many(60);
            world.settle();
            let count = |name: &str| world.target.count(name);
            let (host, device) = (count("nvme_tx_digests_host"), count("nvme_tx_digests_device"));
            assert!(host + device >= digests, "{carrier:?} {nth}");
            let refused = count("nvme_tx_device_refused") + count("nvme_tx_device_lost");
            match (nth, carrier) {
                (0..=2, _) | (3, Carrier::Tls(..)) => assert_eq!((host, device), (digests, 0)),
                (3, Carrier::Tcp) => assert_eq!((host, device), (0, digests)),
                // Files are the host's to read, and their digests with it.
                (4, _) => assert_eq!((host, device), (24, 12), "{carrier:?}"),
                (_, _) => assert_eq!((host, refused), (digests, 1), "{carrier:?}"),
            }
        }
    }
}
