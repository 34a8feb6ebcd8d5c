//! Data digests on transmit: two hosts with real devices, and NVMe/TCP PDUs from files and from
//! memory on a link that loses and reorders frames. PDUs arrive unchanged and with right digests,
//! whether the host or the device computed them, and counters show which did.

use std::sync::Arc;

use abi::crypto::{CryptoProvider, Suite};
use abi::l5o::{L5oDirection, L5oId, L5oRefused};
use abi::link::LinkCaps;
use abi::nvme_tcp::NvmeTcpState;
use abi::{Checksum, Event, FlowId, Op, Refusal};
use base::{Duration, Instant, Prng};
use bytes::Bytes;
use host::nvme::PduData;
use host::{Cidr, FileId, HostConfig, ListenConfig, SocketId, TlsVersion};
use nic::{DeviceConfig, FileConfig, L5oConfig};
use testkit::{
    DiskCompletionOrder, LinkDestination, LinkRule, MemDisk, PLAIN_LINK, ReadAllApp, TestMachine,
    TwoMachineNetwork, session_keys,
};
use wire::Endpoint;

/// Ethernet, IPv4, TCP with timestamps.
const HEADERS: usize = 14 + 20 + 32;
/// Size of the namespace's file.
const FILE_BYTES: usize = 1 << 20;

/// Returns the byte at an offset of the namespace.
fn stored(at: u64) -> u8 {
    u8::try_from((at * 7 + at / 4093) % 256).unwrap()
}

fn machine(
    number: u8,
    device: DeviceConfig,
    offload: Result<(), Refusal>,
) -> (TestMachine<MemDisk>, ReadAllApp) {
    let link = LinkCaps { checksum: true, ..PLAIN_LINK };
    let addr = [10, 0, 0, number].into();
    let config = HostConfig {
        addrs: vec![Cidr { addr, prefix_len: 24 }],
        nvme_tcp_offload: offload,
        ..HostConfig::default()
    };
    let mut disk = MemDisk::default();
    disk.order = DiskCompletionOrder::Random(Prng::new(1));
    disk.insert_computed("namespace", FILE_BYTES as u64, 3, stored);
    (TestMachine::new(config, device, link, number.into(), disk), ReadAllApp::default())
}

/// Returns the rule of a link that, of 1,000 frames with payload to the client, loses `loss` and
/// delays as many.
fn lossy(loss: u64) -> LinkRule {
    let mut prng = Prng::new(5);
    Box::new(move |_, towards, mut frame| {
        frame.checksum = Checksum::Good;
        let bytes = &frame.bytes;
        let has_payload = bytes.len() > HEADERS && bytes[12..14] == [8, 0];
        if towards == LinkDestination::Server || !has_payload {
            return vec![(Duration::ZERO, frame)];
        }
        match prng.below(1000) {
            draw if draw < loss => vec![],
            draw if draw < 2 * loss => vec![(Duration::from_micros(1), frame)],
            _ => vec![(Duration::ZERO, frame)],
        }
    })
}

/// The protocol below the PDUs.
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

/// A client that stands for an initiator, and a server that writes PDUs, with its file open.
struct NvmeTxNetwork {
    net: TwoMachineNetwork<ReadAllApp, ReadAllApp>,
    file: FileId,
    prng: Prng,
    /// All bytes that the server has written.
    written: Vec<u8>,
    /// Stream position after the last PDU.
    mark: u64,
    /// First transmit context that the server's host created, with its flow.
    first_tx_context: Option<(L5oId, FlowId)>,
}

fn engine() -> L5oConfig {
    L5oConfig::new(Arc::new(crypto::Provider))
}

fn device(number: u8) -> DeviceConfig {
    // Little memory, so that blocks are evicted.
    let file = FileConfig { memory_bytes_max: 1 << 20, block_pages: 2, ..FileConfig::default() };
    let l5o = Some(engine());
    DeviceConfig { file: Some(file), l5o, ..DeviceConfig::new([2, 0, 0, 0, 0, number]) }
}

impl NvmeTxNetwork {
    /// Connects the client, opens the file, and attaches TLS keys if `carrier` is TLS.
    fn new(carrier: Carrier, target: DeviceConfig, offload: Result<(), Refusal>) -> Self {
        let (client, server) = (machine(2, device(2), Ok(())), machine(1, target, offload));
        let mut net = TwoMachineNetwork::new(Instant::from_millis(1000), client, server);
        net.link = lossy(0);
        net.server.host().listen(ListenConfig { addr: None, port: 4420, backlog: 8 }).unwrap();
        let file = net.server.host().offload_open("namespace").unwrap();
        let remote = Endpoint { addr: [10, 0, 0, 1].into(), port: 4420 };
        let now = net.now;
        net.client.app.socket = Some(net.client.host().connect(now, remote).unwrap());
        let (prng, written) = (Prng::new(5), vec![]);
        let mut sim = Self { net, file, prng, written, mark: 0, first_tx_context: None };
        sim.run_until(|net| {
            net.server.app.socket.is_some() && net.server.host().offload_fstat(file).is_some()
        });
        if let Carrier::Tls(version, suite) = carrier {
            let TwoMachineNetwork { now, client, server, .. } = &mut sim.net;
            let crypto: Arc<dyn CryptoProvider> = Arc::new(crypto::Provider);
            let keys = session_keys(version, suite, 0, &crypto);
            for (end, keys) in [client, server].into_iter().zip(keys) {
                let socket = end.app.socket.unwrap();
                end.host().attach_tls(*now, socket, &keys).unwrap();
            }
        }
        sim
    }

    fn socket(&self) -> SocketId {
        self.net.server.app.socket.unwrap()
    }

    fn begin(&mut self) -> Result<L5oId, Refusal> {
        let (header_digest, data_digest, pdu_bytes_max) = (true, true, 1 << 20);
        let state = NvmeTcpState { header_digest, data_digest, pdu_bytes_max, tls: None };
        let (now, socket) = (self.net.now, self.socket());
        self.net.server.host().nvme_tx_context(now, socket, state, Arc::new(crypto::Provider))
    }

    /// Runs a turn of both ends; if there is nothing to do, advances time.
    fn step(&mut self) {
        if !self.net.turn() {
            let end = self.net.now + Duration::from_secs(1000);
            assert!(self.net.advance(end), "nothing to wait for");
        }
        for op in self.net.server.ops().iter() {
            match op {
                Op::L5oCreate(create) if create.direction == L5oDirection::Transmit => {
                    self.first_tx_context.get_or_insert((create.context, create.flow));
                }
                _ => {}
            }
        }
    }

    fn run_until(
        &mut self,
        mut done: impl FnMut(&mut TwoMachineNetwork<ReadAllApp, ReadAllApp>) -> bool,
    ) {
        for _ in 0..400_000 {
            if done(&mut self.net) {
                return;
            }
            self.step();
        }
        let (read, written) = (self.net.client.app.read.len(), self.written.len());
        panic!("{read} of {written} bytes came");
    }

    fn count(&self, name: &str) -> u64 {
        self.net.server.count(name)
    }

    /// Writes a PDU, and records its expected bytes.
    fn send(&mut self, header: usize, data: PduData, digest: bool) {
        let header: Vec<u8> = (0..header).map(|at| u8::try_from(at % 256).unwrap()).collect();
        let bytes: Vec<u8> = match &data {
            PduData::None => vec![],
            PduData::Memory(bytes) => bytes.to_vec(),
            PduData::File { offset, len, .. } => {
                (*offset..).take(*len as usize).map(stored).collect()
            }
        };
        let (socket, now) = (self.socket(), self.net.now);
        let mark =
            self.net.server.host().send_pdu(now, socket, header.clone().into(), data, digest);
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

    /// Writes `count` PDUs of all kinds; returns the number with a data digest.
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

    /// Waits until all PDUs have arrived and are acknowledged, and compares their bytes.
    fn settle(&mut self) {
        let (socket, mark, len) = (self.socket(), self.mark, self.written.len());
        self.run_until(|net| {
            let acknowledged = net.server.host().pdus_acknowledged(socket);
            net.client.app.read.len() >= len && acknowledged == mark
        });
        assert!(self.net.client.app.read == self.written, "other bytes came");
    }

    /// Closes the connection, and checks that the device keeps nothing of it.
    fn close(mut self) {
        let (now, socket) = (self.net.now, self.socket());
        self.net.server.host().close(now, socket);
        let peer = self.net.client.app.socket.unwrap();
        self.run_until(|net| net.client.host().readiness(peer).peer_closed);
        self.net.client.host().close(now, peer);
        self.run_until(|net| net.server.count("connections") == 0);
        self.net.server.host().offload_close(self.file);
        self.net.settle();
        for gauge in ["l5o_contexts", "file_held_bytes", "file_open_files"] {
            assert_eq!(self.count(gauge), 0, "{gauge}");
        }
    }
}

#[test]
fn the_device_fills_digests_in() {
    for carrier in CARRIERS {
        let mut sim = NvmeTxNetwork::new(carrier, device(1), Ok(()));
        sim.begin().unwrap();
        sim.net.link = lossy(20);
        let digests = sim.send_many(100);
        sim.settle();
        let count = |name: &str| sim.count(name);
        assert_eq!(count("nvme_tx_pdus"), 100);
        assert_eq!((count("nvme_tx_digests_device"), count("nvme_tx_digests_host")), (digests, 0));
        assert_eq!((count("nvme_tx_device"), count("tx_nvmeotcp_ctx")), (1, 1));
        assert!(count("tx_nvmeotcp_digests") >= digests, "{carrier:?}");
        assert_eq!(count("file_fallback_bytes"), 0);
        // PDUs were retransmitted with their prefixes, and nothing had to be dropped.
        assert!(count("tcp_retrans") > 0 && count("tx_nvmeotcp_resync_bytes") > 0, "{carrier:?}");
        assert_eq!(count("tx_nvmeotcp_drop_no_sync_data"), 0);
        assert_eq!(count("tx_nvmeotcp_drop_bypass_req") + count("tx_dropped_l5o"), 0);
        sim.close();
    }
}

/// Without loss, no byte passes the device's digest twice.
#[test]
fn no_digest_is_computed_twice_in_order() {
    for carrier in CARRIERS {
        let mut sim = NvmeTxNetwork::new(carrier, device(1), Ok(()));
        sim.begin().unwrap();
        let digests = sim.send_many(50);
        sim.settle();
        let count = |name: &str| sim.count(name);
        assert_eq!((count("nvme_tx_digests_device"), count("nvme_tx_digests_host")), (digests, 0));
        assert_eq!((count("tx_nvmeotcp_ooo"), count("tx_nvmeotcp_resync_bytes")), (0, 0));
        sim.close();
    }
}

/// docs/properties.md, property 5: a device reset in the middle of PDUs loses no byte, and the
/// device fills in digests again afterwards.
#[test]
fn resets_in_the_middle() {
    for carrier in CARRIERS {
        let mut sim = NvmeTxNetwork::new(carrier, device(1), Ok(()));
        sim.begin().unwrap();
        sim.net.link = lossy(10);
        for round in 0..5 {
            sim.send_many(20);
            for _ in 0..2 + round {
                sim.step();
            }
            sim.net.server.device().reset();
        }
        sim.settle();
        let before = sim.count("nvme_tx_digests_host");
        assert!(before > 0, "{carrier:?}");
        assert_eq!(sim.count("device_resets"), 2 * 5, "the device's and the host's");
        // The host now reads the file itself; the device still computes digests of memory.
        for _ in 0..10 {
            sim.send(24, PduData::Memory(Bytes::from(vec![9; 5000])), true);
        }
        sim.settle();
        assert_eq!(sim.count("nvme_tx_digests_host"), before, "{carrier:?}");
    }
}

/// If the host encrypts it must also compute digests, so the context for digests is destroyed.
#[test]
fn digests_fall_back_with_refused_encryption() {
    let mut sim = NvmeTxNetwork::new(CARRIERS[1], device(1), Ok(()));
    sim.begin().unwrap();
    let digests = sim.send_many(30);
    (0..3).for_each(|_| sim.step());
    let (context, flow) = sim.first_tx_context.unwrap();
    let refused = Event::L5oRefused(L5oRefused { context, flow, reason: Refusal::TableFull });
    let now = sim.net.now;
    sim.net.server.host().handle_event(now, refused);
    sim.settle();
    let count = |name: &str| sim.count(name);
    assert_eq!((count("tls_tx_device_refused"), count("nvme_tx_device_lost")), (1, 1));
    assert_eq!(count("nvme_tx_digests_device"), digests);
    let host = count("nvme_tx_digests_host");
    assert!(0 < host && host <= digests);
    // Both contexts are requested again when twice as many bytes have been sent.
    let mut rounds = 0;
    while sim.count("nvme_tx_digests_device") == digests {
        sim.send_many(10);
        sim.settle();
        rounds += 1;
        assert!(rounds < 20, "no digest context");
    }
    assert!(rounds > 0);
    assert_eq!((sim.count("tls_device_asked_again"), sim.count("nvme_tx_device")), (1, 2));
    sim.net.settle();
    assert_eq!(sim.count("file_held_bytes"), 0, "what had left under the context");
}

/// The bytes are the same whichever capability of the device is missing.
#[test]
fn software_does_the_same() {
    let l5o = |change: fn(&mut L5oConfig)| {
        let mut config = device(1);
        config.l5o.as_mut().into_iter().for_each(change);
        config
    };
    for carrier in CARRIERS {
        let cases = [
            // Disabled; no L5O engine; no digests in it; no TLS in it; no file engine; a full
            // table.
            (device(1), Err(Refusal::Disabled), Err(Refusal::Disabled)),
            (DeviceConfig { l5o: None, ..device(1) }, Ok(()), Err(Refusal::Disabled)),
            (l5o(|l5o| l5o.nvme_tcp_tx = false), Ok(()), Err(Refusal::NotSupported)),
            (l5o(|l5o| l5o.tls_tx = false), Ok(()), Ok(())),
            (DeviceConfig { file: None, ..device(1) }, Ok(()), Ok(())),
            (l5o(|l5o| l5o.contexts_max = 0), Ok(()), Ok(())),
        ];
        for (nth, (config, offload, want)) in cases.into_iter().enumerate() {
            let mut sim = NvmeTxNetwork::new(carrier, config, offload);
            let begun = sim.begin().map(|_| ());
            // Digests are computed before encryption, so a host that encrypts computes them.
            let sealed_by_host = matches!(carrier, Carrier::Tls(..)) && matches!(nth, 1 | 3);
            let want = if sealed_by_host { Err(Refusal::Encrypted) } else { want };
            assert_eq!(begun, want, "{carrier:?} {nth}");
            sim.net.link = lossy(10);
            let digests = sim.send_many(60);
            sim.settle();
            let count = |name: &str| sim.count(name);
            let (host, device) = (count("nvme_tx_digests_host"), count("nvme_tx_digests_device"));
            assert!(host + device >= digests, "{carrier:?} {nth}");
            let refused = count("nvme_tx_device_refused") + count("nvme_tx_device_lost");
            match (nth, carrier) {
                (0..=2, _) | (3, Carrier::Tls(..)) => assert_eq!((host, device), (digests, 0)),
                (3, Carrier::Tcp) => assert_eq!((host, device), (0, digests)),
                // The host reads files and computes their digests.
                (4, _) => assert_eq!((host, device), (24, 12), "{carrier:?}"),
                (_, _) => {
                    assert_eq!(host, digests, "{carrier:?}");
                    assert!((1..=4).contains(&refused), "{carrier:?}: one for each doubling");
                }
            }
        }
    }
}
