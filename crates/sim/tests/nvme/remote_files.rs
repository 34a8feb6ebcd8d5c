//! A content server on remote storage under faults from a seed: packets are lost, reordered and
//! duplicated, the link is cut, connections to the target are killed, and devices are reset.
//!
//! The client's machine also has the target. A client that gets an error requests the file again.
//! No byte of a file is ever wrong, whatever happens, and all files arrive after the faults.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use abi::Refusal;
use apps::content::ContentServerConfig;
use apps::get::{GetClient, GetClientConfig, GetEvent, GetOrder, GetTransport};
use apps::nvme::initiator::{BackOff, InitiatorConfig};
use apps::nvme::target::{NamespaceConfig, NvmeTarget, NvmeTargetConfig, SubsystemConfig};
use apps::remote::{RemoteContentServer, RemoteFilesConfig, RemoteVolumeConfig};
use base::{Duration, Instant, Prng};
use crypto::Provider;
use host::{
    Application, ContentSource, Host, ListenConfig, Notice, SocketId, TlsClient, TlsServer,
};
use outboard_sim::ext4_image::ext4_image;
use testkit::LinkDestination;
use wire::Endpoint;

use crate::disk::PATH;
use crate::machines::{FaultyDiskMachine, FaultyLinkPair, LinkFaultRates, START, machines};
use crate::storage::{HOST, SUBSYSTEM, nqn};
use crate::transport::nvme_tls_config;

/// Number of seeds.
const SEEDS: u64 = 64;
/// Files of the file system.
const FILES: usize = 12;
/// Largest file.
const BYTES_MAX: u64 = 400_000;
/// Downloads that begin before each fault, and faults of a seed.
const DOWNLOADS: usize = 4;
const FAULTS: usize = 8;
/// Downloads at a time.
const PARALLEL: usize = 3;
/// Ports of the target and of the content server.
const TARGET_PORT: u16 = 4420;
const HTTPS_PORT: u16 = 443;

/// Sums over all seeds of counters that must move.
const MOVED: [&str; 9] = [
    "nvme_rx_placed_bytes",
    "nvme_rx_copied_bytes",
    "tx_tls_encrypted_bytes",
    "rx_tls_decrypted_bytes",
    "device_resets",
    "remote_outages",
    "remote_timeouts",
    "remote_cache_evictions",
    "tcp_retrans",
];
/// Counters that stay zero: each would be a bug.
const ZERO: [&str; 2] = ["internal_errors", "remote_corrupt"];

/// Configuration of a seed.
#[derive(Clone, Copy, Debug)]
struct RemoteRunParams {
    seed: u64,
    offload: bool,
    https: bool,
    tls_storage: bool,
}

impl RemoteRunParams {
    const fn of(seed: u64) -> Self {
        let (https, tls_storage) = (seed % 2 == 0, seed % 3 == 0);
        Self { seed, offload: seed % 4 != 3, https, tls_storage }
    }
}

/// A download in progress: file, and bytes received.
#[derive(Clone, Copy, Debug)]
struct OpenDownload {
    file: usize,
    received: usize,
}

/// A client that repeats failed downloads, and the target.
struct PersistentClient {
    client: GetClient,
    target: NvmeTarget,
    transport: GetTransport,
    files: Arc<Vec<(String, Vec<u8>)>>,
    waiting: VecDeque<usize>,
    open: BTreeMap<u32, OpenDownload>,
    next: u32,
    done: usize,
    failed: Vec<String>,
}

impl PersistentClient {
    fn start(&mut self, now: Instant, host: &mut Host) -> bool {
        let mut worked = false;
        while self.open.len() < PARALLEL {
            let Some(file) = self.waiting.pop_front() else { break };
            let scheme =
                if matches!(self.transport, GetTransport::Plain) { "http" } else { "https" };
            let url = format!("{scheme}://target.test/{}", self.files[file].0);
            let order = GetOrder {
                id: self.next,
                url: url.parse().unwrap(),
                addrs: vec![[10, 77, 0, 2].into()],
                transport: self.transport.clone(),
                parts_max: 1,
                resume: None,
            };
            self.open.insert(self.next, OpenDownload { file, received: 0 });
            self.next += 1;
            self.client.start(now, host, order);
            worked = true;
        }
        worked
    }

    fn handle(&mut self, event: GetEvent) {
        match event {
            GetEvent::Begun { .. } => {}
            GetEvent::Content { id, offset, bytes } => {
                let open = self.open.get_mut(&id).expect("it is open");
                let (name, content) = &self.files[open.file];
                assert_eq!(offset, open.received as u64, "{name}: in order");
                let is_right = content[open.received..].starts_with(&bytes);
                assert!(is_right, "{name}: wrong bytes at {offset}");
                open.received += bytes.len();
                self.client.written(id, bytes.len());
            }
            GetEvent::Ended { id, result } => {
                let OpenDownload { file, received } = self.open.remove(&id).expect("it is open");
                let (name, content) = &self.files[file];
                match result {
                    Ok(()) => {
                        assert_eq!(received, content.len(), "{name}: all of it");
                        self.done += 1;
                    }
                    Err(error) => {
                        self.failed.push(format!("{name}: {error}"));
                        self.waiting.push_back(file);
                    }
                }
            }
        }
    }

    fn is_done(&self) -> bool {
        self.open.is_empty() && self.waiting.is_empty()
    }
}

impl Application for PersistentClient {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        self.target.handle_notice(now, host, notice);
        self.client.handle_notice(now, host, notice);
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.target.handle_timeout(now, host);
        self.client.handle_timeout(now, host);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        Instant::earliest([self.target.poll_timeout(), self.client.poll_timeout()])
    }

    fn advance(&mut self, now: Instant, host: &mut Host) -> bool {
        let mut worked = self.target.advance(now, host) | self.client.advance(now, host);
        while let Some(event) = self.client.poll_event() {
            worked = true;
            self.handle(event);
        }
        self.start(now, host) | worked
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.target.visit(f);
        self.client.visit(f);
    }
}

struct RemoteRun {
    net: FaultyLinkPair<PersistentClient, RemoteContentServer>,
    rng: Prng,
    rates: LinkFaultRates,
}

fn files(rng: &mut Prng) -> Vec<(String, Vec<u8>)> {
    let sizes: Vec<u64> = (0..FILES).map(|_| rng.below(BYTES_MAX)).collect();
    let fill = |size: u64, rng: &mut Prng| {
        (0..size).map(|_| rng.next_u64().to_le_bytes()[0]).collect::<Vec<u8>>()
    };
    sizes.iter().enumerate().map(|(at, &size)| (format!("file{at}"), fill(size, rng))).collect()
}

fn target(machine: &mut FaultyDiskMachine, tls: Option<TlsServer>) -> NvmeTarget {
    let namespace =
        NamespaceConfig { block_shift: 12, ..NamespaceConfig::new(&nqn(SUBSYSTEM), PATH) };
    let subsystem = SubsystemConfig {
        nqn: nqn(SUBSYSTEM),
        serial: String::from("1"),
        hosts: None,
        namespaces: vec![namespace],
    };
    let config =
        NvmeTargetConfig { subsystems: vec![subsystem], tls, ..NvmeTargetConfig::default() };
    NvmeTarget::new(config, Arc::new(Provider), machine.host()).unwrap()
}

fn site(
    params: RemoteRunParams,
    machine: &mut FaultyDiskMachine,
    (server, client): &(TlsServer, TlsClient),
) -> RemoteContentServer {
    let back_off = BackOff { ctrl_loss: None, ..BackOff::default() };
    let initiator = InitiatorConfig {
        back_off,
        header_digest: true,
        data_digest: true,
        tls: params.tls_storage.then(|| client.clone()),
        ..InitiatorConfig::new(nqn(HOST), [7; 16], nqn(SUBSYSTEM), Arc::new(Provider))
    };
    let remote = Endpoint { addr: [10, 77, 0, 1].into(), port: TARGET_PORT };
    let volume = RemoteVolumeConfig { name: String::new(), initiator, remote, nsid: 1 };
    let files = RemoteFilesConfig {
        volumes: vec![volume],
        cache_bytes_max: 512 << 10,
        ..RemoteFilesConfig::default()
    };
    let listen = |port| ListenConfig { addr: None, port, backlog: 64 };
    let content = ContentServerConfig {
        listen: vec![listen(HTTPS_PORT)],
        tls: Some(server.clone()),
        cleartext_listen: vec![listen(80)],
        ..ContentServerConfig::default()
    };
    RemoteContentServer::new(files, content, START, machine.host()).unwrap()
}

impl RemoteRun {
    fn new(params: RemoteRunParams) -> Self {
        let mut rng = Prng::new(params.seed ^ 0x5e_0f11e5);
        let files = Arc::new(files(&mut rng));
        let tls = nvme_tls_config(testkit::tls13(vec!["target.test".into()], b"http/1.1"));
        let (mut client, mut server) = machines(params.seed, &|host, device| {
            // Enough for all data in flight: frames are lost only on the link.
            device.pool_buffers_max = 1 << 16;
            if host.addrs[0].addr == std::net::IpAddr::from([10, 77, 0, 1]) {
                return;
            }
            host.content = ContentSource::Application;
            device.file = None;
            if !params.offload {
                host.nvme_tcp_offload = Err(Refusal::Disabled);
                host.tls_offload = Err(Refusal::Disabled);
            }
        });
        client.disk.fill_namespace(ext4_image(&files));
        let site = site(params, &mut server, &tls);
        let transport = match params.https {
            true => GetTransport::Tls(tls.1.clone()),
            false => GetTransport::Plain,
        };
        let app = PersistentClient {
            client: GetClient::new(GetClientConfig::default(), None),
            target: target(&mut client, params.tls_storage.then(|| tls.0.clone())),
            transport,
            files,
            waiting: VecDeque::new(),
            open: BTreeMap::new(),
            next: 0,
            done: 0,
            failed: Vec::new(),
        };
        let rates = LinkFaultRates {
            loss: rng.unit() * 0.02,
            reorder: rng.unit() * 0.1,
            duplicate: rng.unit() * 0.02,
        };
        let net = FaultyLinkPair::new(params.seed, (client, app), (server, site));
        Self { net, rng, rates }
    }

    /// Lets virtual time pass.
    fn wait(&mut self, time: Duration) {
        let _never = self.net.run_until(time, |_| false);
    }

    fn wait_up_to_ms(&mut self, ms: u64) {
        let time = Duration::from_micros(self.rng.below(ms * 1000));
        self.wait(time);
    }

    /// Resets every connection at the target's port, as the end of its process does.
    fn kill_target_connections(&mut self) {
        let now = self.net.now;
        let host = self.net.machine(LinkDestination::Client).host();
        let is_target =
            |&socket: &SocketId| host.local(socket).is_some_and(|at| at.port == TARGET_PORT);
        let sockets: Vec<SocketId> = host.sockets().filter(is_target).collect();
        sockets.into_iter().for_each(|socket| host.abort(now, socket));
    }

    fn fault(&mut self) {
        match self.rng.below(5) {
            0 => self.net.machine(LinkDestination::Server).device().reset(),
            1 => self.net.machine(LinkDestination::Client).device().reset(),
            2 => self.kill_target_connections(),
            3 => {
                // Sometimes for longer than requests wait.
                self.net.set_faults(LinkFaultRates { loss: 1.0, ..self.rates });
                self.wait_up_to_ms(25_000);
                self.net.set_faults(self.rates);
            }
            _ => {}
        }
    }

    fn run(&mut self, params: RemoteRunParams) {
        self.net.set_faults(self.rates);
        for _ in 0..FAULTS {
            for _ in 0..DOWNLOADS {
                let file = self.rng.below(FILES as u64);
                self.net.client.app.waiting.push_back(usize::try_from(file).unwrap());
            }
            self.wait_up_to_ms(10);
            self.fault();
            self.wait_up_to_ms(300);
        }
        self.net.set_faults(LinkFaultRates::default());
        let is_done = self.net.run_until(Duration::from_secs(900), |net| net.client.app.is_done());
        let app = &self.net.client.app;
        assert!(is_done, "{params:?}: {:?} open, {:?}", app.open, app.failed);
        assert_eq!(app.done, FAULTS * DOWNLOADS, "{params:?}");
    }
}

#[test]
fn files_on_storage_survive_faults() {
    let (mut sums, mut failed): (BTreeMap<&str, u64>, usize) = (BTreeMap::new(), 0);
    for seed in 0..SEEDS {
        let params = RemoteRunParams::of(seed);
        let mut run = RemoteRun::new(params);
        run.run(params);
        for name in ZERO {
            assert_eq!(run.net.server.count(name), 0, "{name}, {params:?}");
        }
        let device = ["nvme_rx_placed_bytes", "nvme_rx_digests_device", "tx_tls_encrypted_bytes"];
        for name in device.iter().filter(|_| !params.offload) {
            assert_eq!(run.net.server.count(name), 0, "{name}, {params:?}");
        }
        for (name, value) in run.net.server.counters() {
            *sums.entry(name).or_default() += value;
        }
        failed += run.net.client.app.failed.len();
    }
    for name in MOVED {
        assert!(sums.get(name).is_some_and(|&sum| sum > 0), "{name} did not move: {sums:?}");
    }
    assert!(failed > 0, "some outages are longer than requests wait");
}
