//! Two transports against each other: reads and writes of all sizes, over TCP and TLS, with faults,
//! device resets and key updates. Also the test applications and helpers of other modules.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use abi::aligned::{AlignedBuf, PAGE_BYTES};
use abi::crypto::{CryptoProvider, Suite};
use base::{Duration, Instant, Prng};
use bytes::Bytes;
use crypto::Provider;
use host::nvme::{
    NvmeDataSource, NvmeInitiatorParams, NvmeTargetParams, NvmeTransport, NvmeTransportEnd,
    NvmeTransportEvent,
};
use host::{
    Application, Host, ListenConfig, Notice, SocketId, TlsClient, TlsKeys, TlsServer, TlsVersion,
};
use testkit::session_keys;
use wire::Endpoint;

use crate::machines::{FaultyLinkPair, LinkFaultRates, START, machines};

/// The port of NVMe/TCP.
const PORT: u16 = 4420;
/// Records before a key's limit at which the host changes it.
const KEY_MARGIN: u64 = 1024;
/// Maximum length of in-capsule data.
const CAPSULE: u32 = 8192;

/// Returns the byte at an offset of a version of the namespace: 0 is read, 1 is written.
fn byte(at: u64, version: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(version) >> 29).to_le_bytes()[0]
}

pub(crate) fn pattern_bytes(at: u64, len: u32, version: u64) -> Vec<u8> {
    (at..at + u64::from(len)).map(|at| byte(at, version)).collect()
}

fn buffer(len: u32) -> AlignedBuf {
    AlignedBuf::new((len as usize).div_ceil(PAGE_BYTES).max(1))
}

/// A read or write of these tests, with its offset and length. Its SQE has a layout of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PatternCommand {
    pub(crate) write: bool,
    pub(crate) at: u64,
    pub(crate) len: u32,
}

impl PatternCommand {
    pub(crate) fn sqe(self, cid: u16) -> [u8; 64] {
        let mut sqe = [0; 64];
        sqe[0] = u8::from(self.write);
        sqe[2..4].copy_from_slice(&cid.to_le_bytes());
        sqe[8..16].copy_from_slice(&self.at.to_le_bytes());
        sqe[16..20].copy_from_slice(&self.len.to_le_bytes());
        sqe
    }

    pub(crate) fn of(sqe: &[u8; 64]) -> (u16, Self) {
        let cid = u16::from_le_bytes([sqe[2], sqe[3]]);
        let at = u64::from_le_bytes(sqe[8..16].try_into().unwrap());
        let len = u32::from_le_bytes(sqe[16..20].try_into().unwrap());
        (cid, Self { write: sqe[0] == 1, at, len })
    }
}

pub(crate) fn cqe(cid: u16) -> [u8; 16] {
    let mut cqe = [0; 16];
    cqe[12..14].copy_from_slice(&cid.to_le_bytes());
    cqe
}

/// A command under way.
#[derive(Clone, Copy, Debug)]
struct PatternCommandState {
    command: PatternCommand,
    /// Data bytes received.
    got: u32,
    /// True once the target has completed it.
    ended: bool,
    /// True while its buffer is with the transport.
    buffer_registered: bool,
}

/// An initiator that keeps `depth` commands under way and checks the data of each.
pub(crate) struct PatternInitiator {
    transport: Option<NvmeTransport>,
    params: NvmeInitiatorParams,
    tls: Option<TlsKeys>,
    pub(crate) client: Option<TlsClient>,
    pub(crate) todo: VecDeque<PatternCommand>,
    depth: usize,
    running: BTreeMap<u16, PatternCommandState>,
    pub(crate) done: usize,
    pub(crate) bad_digests: usize,
    pub(crate) ended: Option<NvmeTransportEnd>,
}

impl PatternInitiator {
    pub(crate) fn new(
        params: NvmeInitiatorParams,
        depth: usize,
        todo: VecDeque<PatternCommand>,
    ) -> Self {
        Self {
            transport: None,
            params,
            tls: None,
            client: None,
            todo,
            depth,
            running: BTreeMap::new(),
            done: 0,
            bad_digests: 0,
            ended: None,
        }
    }

    pub(crate) fn connect(&mut self, now: Instant, host: &mut Host) {
        let socket = connect(now, host, self.client.as_ref());
        self.transport = Some(NvmeTransport::initiate(socket, Arc::new(Provider), self.params));
    }

    /// Adds commands, and submits them if the connection is set up.
    pub(crate) fn ask(
        &mut self,
        now: Instant,
        host: &mut Host,
        more: impl Iterator<Item = PatternCommand>,
    ) {
        self.todo.extend(more);
        if self.transport.as_ref().is_some_and(|t| t.negotiated().is_some()) {
            self.submit(now, host);
        }
    }

    fn submit(&mut self, now: Instant, host: &mut Host) {
        let Some(transport) = &mut self.transport else { return };
        while self.running.len() < self.depth {
            let Some(command) = self.todo.pop_front() else { return };
            let cid = (0..).find(|cid| !self.running.contains_key(cid)).unwrap();
            let mut data = Bytes::new();
            if command.write && command.len <= CAPSULE {
                data = pattern_bytes(command.at, command.len, 1).into();
            } else if !command.write {
                let back = transport.expect(host, (cid, cid), 0, command.len, buffer(command.len));
                assert!(back.is_none(), "the tag is free");
            }
            transport.send_command(now, host, &command.sqe(cid), data);
            let running = PatternCommandState {
                command,
                got: 0,
                ended: false,
                buffer_registered: !command.write,
            };
            self.running.insert(cid, running);
        }
    }

    /// Completes a command if both its response and its buffer are here. They come in any order.
    fn complete(&mut self, cid: u16) {
        if self.running.get(&cid).is_some_and(|running| running.ended && !running.buffer_registered)
        {
            self.running.remove(&cid);
            self.done += 1;
        }
    }

    fn take(&mut self, now: Instant, host: &mut Host, incoming: NvmeTransportEvent) {
        let transport = self.transport.as_mut().unwrap();
        match incoming {
            NvmeTransportEvent::Ready => {}
            NvmeTransportEvent::ReadData { cccid, len, digest_ok, success, .. } => {
                let running = self.running.get_mut(&cccid).expect("it was asked for");
                running.got += len;
                running.ended |= success;
                self.bad_digests += usize::from(!digest_ok);
                self.complete(cccid);
            }
            NvmeTransportEvent::Buffer { tag, buffer } => {
                let running = self.running.get_mut(&tag).expect("it was asked for");
                let command = running.command;
                assert_eq!(running.got, command.len);
                let right = pattern_bytes(command.at, command.len, 0);
                assert!(buffer.as_slice()[..command.len as usize] == right[..], "{command:?}");
                running.buffer_registered = false;
                self.complete(tag);
            }
            NvmeTransportEvent::R2t { cccid, ttag, offset, len } => {
                let command = self.running[&cccid].command;
                let data = pattern_bytes(command.at + u64::from(offset), len, 1).into();
                transport.send_write_data(now, host, (cccid, ttag), offset, data, true);
            }
            NvmeTransportEvent::Response(cqe) => {
                let cid = u16::from_le_bytes([cqe[12], cqe[13]]);
                self.running.get_mut(&cid).expect("it was asked for").ended = true;
                self.complete(cid);
            }
            NvmeTransportEvent::Ended(how) => self.ended = Some(how),
            NvmeTransportEvent::Command { .. } | NvmeTransportEvent::WriteData { .. } => {
                panic!("{incoming:?}")
            }
        }
    }
}

impl Application for PatternInitiator {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        let Notice::Socket(socket) = notice else { return };
        if let Some(keys) = self.tls.take() {
            host.attach_tls(now, socket, &keys).unwrap();
        }
        while let Some(incoming) = self.transport.as_mut().and_then(|t| t.poll(now, host)) {
            self.take(now, host, incoming);
        }
        if self.transport.as_ref().is_some_and(|t| t.negotiated().is_some()) {
            self.submit(now, host);
        }
    }
}

/// A target whose data follows from offsets ([`pattern_bytes`]). It checks written data.
pub(crate) struct PatternTarget {
    transport: Option<NvmeTransport>,
    params: NvmeTargetParams,
    tls: Option<TlsKeys>,
    writes: BTreeMap<u16, (u16, PatternCommand)>,
    pub(crate) written: u64,
    pub(crate) bad_digests: usize,
    pub(crate) ended: Option<NvmeTransportEnd>,
    rng: Prng,
}

impl PatternTarget {
    pub(crate) fn new(alignment: u8, rng: Prng) -> Self {
        let params = NvmeTargetParams {
            header_digest: true,
            data_digest: true,
            cpda: alignment,
            maxh2cdata: 131_072,
            in_capsule_max: CAPSULE,
        };
        Self {
            transport: None,
            params,
            tls: None,
            writes: BTreeMap::new(),
            written: 0,
            bad_digests: 0,
            ended: None,
            rng,
        }
    }

    fn command(
        &mut self,
        now: Instant,
        host: &mut Host,
        cid: u16,
        command: PatternCommand,
        data: &Bytes,
    ) {
        let transport = self.transport.as_mut().unwrap();
        if !command.write {
            let data = NvmeDataSource::Memory(pattern_bytes(command.at, command.len, 0).into());
            let success = self.rng.chance(0.5);
            transport.send_read_data(now, host, cid, &data, success);
            if !success {
                transport.send_response(now, host, &cqe(cid));
            }
        } else if data.is_empty() {
            let ttag = (0..).find(|ttag| !self.writes.contains_key(ttag)).unwrap();
            self.writes.insert(ttag, (cid, command));
            assert!(
                transport.expect(host, (cid, ttag), 0, command.len, buffer(command.len)).is_none()
            );
            transport.send_r2t(now, host, (cid, ttag), 0, command.len);
        } else {
            assert!(data[..] == pattern_bytes(command.at, command.len, 1)[..]);
            self.written += u64::from(command.len);
            transport.send_response(now, host, &cqe(cid));
        }
    }
}

impl Application for PatternTarget {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        if let Notice::Accepted(_, socket) = notice {
            self.accept(now, host, socket);
        }
        while let Some(incoming) = self.transport.as_mut().and_then(|t| t.poll(now, host)) {
            match incoming {
                NvmeTransportEvent::Ready => {}
                NvmeTransportEvent::Command { sqe, data, digest_ok } => {
                    self.bad_digests += usize::from(!digest_ok);
                    let (cid, command) = PatternCommand::of(&sqe);
                    self.command(now, host, cid, command, &data);
                }
                NvmeTransportEvent::WriteData { digest_ok, .. } => {
                    self.bad_digests += usize::from(!digest_ok);
                }
                NvmeTransportEvent::Buffer { tag, buffer } => {
                    let (cid, command) = self.writes.remove(&tag).unwrap();
                    let right = pattern_bytes(command.at, command.len, 1);
                    assert!(buffer.as_slice()[..command.len as usize] == right[..], "{command:?}");
                    self.written += u64::from(command.len);
                    self.transport.as_mut().unwrap().send_response(now, host, &cqe(cid));
                }
                NvmeTransportEvent::Ended(how) => self.ended = Some(how),
                other => panic!("{other:?}"),
            }
        }
    }
}

impl PatternTarget {
    fn accept(&mut self, now: Instant, host: &mut Host, socket: SocketId) {
        if let Some(keys) = self.tls.take() {
            host.attach_tls(now, socket, &keys).unwrap();
        }
        self.transport = Some(NvmeTransport::serve(socket, Arc::new(Provider), self.params));
    }
}

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
struct TransportRunParams {
    seed: u64,
    /// Header digests, data digests.
    digests: (bool, bool),
    /// HPDA and CPDA.
    alignment: u8,
    tls: bool,
    faults: LinkFaultRates,
    offload: bool,
    /// Times that both devices are reset.
    resets: u32,
    commands: usize,
    depth: usize,
    /// Records after which TLS keys change; `None` without handshakes.
    key_records: Option<u64>,
}

impl Default for TransportRunParams {
    fn default() -> Self {
        Self {
            seed: 1,
            digests: (true, true),
            alignment: 0,
            tls: false,
            faults: LinkFaultRates::default(),
            offload: true,
            resets: 0,
            commands: 60,
            depth: 8,
            key_records: None,
        }
    }
}

/// Configures both ends of TLS for NVMe/TCP: secrets can be extracted, and no tickets are sent.
pub(crate) fn nvme_tls_config(
    (server, client): (Arc<rustls::ServerConfig>, Arc<rustls::ClientConfig>),
) -> (TlsServer, TlsClient) {
    let (mut server, mut client) = ((*server).clone(), (*client).clone());
    server.send_tls13_tickets = 0;
    server.enable_secret_extraction = true;
    client.enable_secret_extraction = true;
    let server = TlsServer { config: Arc::new(server), crypto: Arc::new(Provider) };
    let name = "target.test".try_into().unwrap();
    (server, TlsClient { config: Arc::new(client), name, crypto: Arc::new(Provider) })
}

/// Returns both ends of TLS with keys that change after `records` records.
pub(crate) fn tls_with_key_updates(records: u64) -> (TlsServer, TlsClient) {
    let limit = KEY_MARGIN + records;
    nvme_tls_config(testkit::tls13_limited(vec!["target.test".into()], b"nvme", limit))
}

/// Appends all received bytes of a socket to `to`.
pub(crate) fn take(host: &mut Host, socket: SocketId, to: &mut Vec<u8>) {
    loop {
        let bytes = host.peek(socket);
        if bytes.is_empty() {
            return;
        }
        to.extend_from_slice(bytes);
        let len = bytes.len();
        host.consume(socket, len);
    }
}

pub(crate) fn listen(host: &mut Host, tls: Option<&TlsServer>) {
    let listen = ListenConfig { addr: None, port: PORT, backlog: 8 };
    match tls {
        Some(server) => host.listen_tls(listen, server.clone()).unwrap(),
        None => host.listen(listen).unwrap(),
    };
}

pub(crate) fn connect(now: Instant, host: &mut Host, tls: Option<&TlsClient>) -> SocketId {
    let remote = Endpoint { addr: [10, 77, 0, 2].into(), port: PORT };
    match tls {
        Some(client) => host.connect_tls(now, remote, client).unwrap(),
        None => host.connect(now, remote).unwrap(),
    }
}

/// Runs commands of all sizes to their end; returns the machines, for their counters.
fn run(run: TransportRunParams) -> FaultyLinkPair<PatternInitiator, PatternTarget> {
    let (mut client, mut target) = machines(run.seed, &|host, _| {
        if !run.offload {
            host.nvme_tcp_offload = Err(abi::Refusal::Disabled);
            host.tls_offload = Err(abi::Refusal::Disabled);
        }
    });
    let mut rng = Prng::new(run.seed);
    let sizes = [512, 4096, 4096, 8192, 16384, 65536, 131_072 + 512, 262_144, 1 << 20];
    let command = |rng: &mut Prng| PatternCommand {
        write: rng.chance(0.4),
        at: (rng.next_u64() % 1000) * 512,
        len: sizes[usize::try_from(rng.next_u64() % 9).unwrap()],
    };
    let (header_digest, data_digest) = run.digests;
    let params = NvmeInitiatorParams { header_digest, data_digest, hpda: run.alignment, maxr2t: 0 };
    let todo = (0..run.commands).map(|_| command(&mut rng)).collect();
    let mut asker = PatternInitiator::new(params, run.depth, todo);
    let mut server = PatternTarget::new(run.alignment, rng.fork());
    if run.tls {
        let crypto: Arc<dyn CryptoProvider> = Arc::new(Provider);
        let keys = session_keys(TlsVersion::Tls13, Suite::Aes128Gcm, 0, &crypto);
        [asker.tls, server.tls] = keys.map(Some);
    }
    let shake = run.key_records.map(tls_with_key_updates);
    listen(target.host(), shake.as_ref().map(|(server, _)| server));
    asker.client = shake.map(|(_, client)| client);
    asker.connect(START, client.host());
    let mut net = FaultyLinkPair::new(run.seed, (client, asker), (target, server));
    net.set_faults(run.faults);
    let all = run.commands;
    for reset in 1..=run.resets {
        let upto = all * reset as usize / (run.resets as usize + 1);
        let limit = Duration::from_secs(100);
        assert!(net.run_until(limit, |net| net.client.app.done >= upto), "{run:?}");
        net.client.device().reset();
        net.server.device().reset();
    }
    let ended = net.run_until(Duration::from_secs(300), |net| net.client.app.done == all);
    let (asker, server) = (&net.client.app, &net.server.app);
    assert!(ended, "{} of {all} of {run:?}; {:?} {:?}", asker.done, asker.ended, server.ended);
    assert_eq!((asker.bad_digests, server.bad_digests), (0, 0));
    net
}

#[test]
fn commands_of_all_sizes() {
    for digests in [(false, false), (true, false), (false, true), (true, true)] {
        for alignment in [0, 31] {
            let net =
                run(TransportRunParams { digests, alignment, ..TransportRunParams::default() });
            for machine in net.both() {
                for (name, by_device) in [
                    ("nvme_tx_digests_device", digests.1),
                    ("nvme_rx_digests_device", digests.1),
                    ("nvme_rx_placed_bytes", true),
                    ("nvme_tx_digests_host", false),
                    ("nvme_rx_digests_host", false),
                    ("nvme_ddp_refused", false),
                    ("nvme_rx_sw", false),
                ] {
                    assert_eq!(machine.sum_counters(name) > 0, by_device, "{name}: {digests:?}");
                }
            }
        }
    }
}

/// The transport does not keep the device's claims about PDUs without data: they would leave no
/// room for claims about data digests.
#[test]
fn digests_stay_with_the_device() {
    let net = run(TransportRunParams { commands: 600, ..TransportRunParams::default() });
    for machine in net.both() {
        assert!(machine.sum_counters("nvme_rx_pdus") > 256);
        assert_eq!(machine.sum_counters("nvme_rx_digests_host"), 0);
        // Small reads have no registered buffer, but the device verifies their digests.
        assert_eq!(machine.sum_counters("nvme_rx_pdus_none"), 0);
    }
}

#[test]
fn commands_over_tls() {
    for digests in [(false, false), (true, true)] {
        let net = run(TransportRunParams { digests, tls: true, ..TransportRunParams::default() });
        for machine in net.both() {
            assert!(machine.sum_counters("nvme_rx_placed_bytes") > 0, "TLS opens, and NVMe places");
            assert_eq!(machine.sum_counters("nvme_rx_digests_device") > 0, digests.1);
            assert_eq!(machine.sum_counters("nvme_rx_digests_host"), 0);
        }
    }
}

#[test]
fn commands_in_software() {
    for tls in [false, true] {
        let net = run(TransportRunParams { offload: false, tls, ..TransportRunParams::default() });
        for machine in net.both() {
            for name in ["nvme_tx_digests_device", "nvme_rx_digests_device", "nvme_rx_placed_bytes"]
            {
                assert_eq!(machine.sum_counters(name), 0, "{name}");
            }
            assert!(machine.sum_counters("nvme_tx_digests_host") > 0);
            assert!(machine.sum_counters("nvme_rx_digests_host") > 0);
        }
    }
}

#[test]
fn commands_over_a_faulty_link() {
    let faults = LinkFaultRates { loss: 0.02, reorder: 0.02, duplicate: 0.01 };
    for seed in 1..=4 {
        let net = run(TransportRunParams {
            seed,
            faults,
            tls: seed % 2 == 0,
            ..TransportRunParams::default()
        });
        assert!(net.dropped() > 0);
    }
}

#[test]
fn devices_are_reset_in_between() {
    for tls in [false, true] {
        let net = run(TransportRunParams {
            resets: 5,
            tls,
            commands: 120,
            ..TransportRunParams::default()
        });
        for machine in net.both() {
            assert_eq!(
                machine.sum_counters("nvme_rx_renewed"),
                3,
                "four in a second, with the first"
            );
            assert_eq!(machine.sum_counters("nvme_rx_put_off"), 1);
            assert_eq!(machine.sum_counters("nvme_rx_lost"), 0);
        }
    }
}

/// Keys change between PDUs, which are not split. The transmit context for digests is not affected.
#[test]
fn keys_change_at_both_ends() {
    let clean =
        run(TransportRunParams { key_records: Some(1 << 20), ..TransportRunParams::default() });
    let net = run(TransportRunParams { key_records: Some(70), ..TransportRunParams::default() });
    for (machine, clean) in net.both().into_iter().zip(clean.both()) {
        let changes = machine.sum_counters("tls_rx_rekey_ok");
        assert!(changes >= 2, "{changes}");
        let renewed = machine.sum_counters("nvme_rx_renewed");
        assert!((2..=3).contains(&renewed), "{renewed}");
        assert_eq!(machine.sum_counters("rx_nvmeotcp_sk_add"), 1 + renewed);
        let bytes = ["nvme_rx_placed_bytes", "nvme_rx_copied_bytes"];
        let [placed, copied] = bytes.map(|name| machine.sum_counters(name));
        assert_eq!(
            placed + copied,
            bytes.map(|name| clean.sum_counters(name)).into_iter().sum::<u64>()
        );
        let digests = |name| (machine.sum_counters(name), clean.sum_counters(name));
        let (with, without) = digests("nvme_tx_digests_device");
        assert_eq!(with, without);
        assert_eq!(digests("nvme_tx_digests_host"), (0, 0));
        assert_eq!(machine.sum_counters("nvme_tx_device"), 1);
    }
}
