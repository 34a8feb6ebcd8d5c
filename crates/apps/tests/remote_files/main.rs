//! The content server on remote storage: files in an ext4 file system on a namespace of our target,
//! read by our initiator on the same host. The client's machine also has the target.

mod image;
#[path = "../machines/mod.rs"]
mod machines;
mod transports;

use std::sync::Arc;

use abi::Refusal;
use base::{Duration, Instant};
use bytes::Bytes;
use crypto::Provider;
use host::{
    Application, Cidr, ContentSource, Host, HostConfig, Notice, SocketError, SocketId, TlsClient,
    TlsServer,
};
use image::{BIG, BLOCK, SMALL, SMALL_AT, big, image, inode_at, small};
use machines::{CLIENT, SERVER, machine};
use nic::{DeviceConfig, L5oConfig, QuicConfig};
use outboard_apps::content::ContentServerConfig;
use outboard_apps::nvme::initiator::{BackOff, InitiatorConfig};
use outboard_apps::nvme::target::{NamespaceConfig, NvmeTarget, NvmeTargetConfig, SubsystemConfig};
use outboard_apps::remote::{RemoteContentServer, RemoteFilesConfig, RemoteVolumeConfig};
use testkit::{MemDisk, NetworkNode, PLAIN_LINK, TestMachine, TwoMachineNetwork, fixed_delay_link};
use wire::Endpoint;
use wire::nvme::nqn::Nqn;

/// The client: HTTP, and an NVMe/TCP target.
struct ClientAndTarget {
    target: NvmeTarget,
    socket: Option<SocketId>,
    received: Vec<u8>,
    failed: Option<SocketError>,
}

impl Application for ClientAndTarget {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        self.target.handle_notice(now, host, notice);
        let Notice::Socket(socket) = notice else { return };
        if Some(socket) == self.socket {
            testkit::read_all(host, socket, &mut self.received);
            self.failed = self.failed.or_else(|| host.readiness(socket).error);
        }
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.target.handle_timeout(now, host);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.target.poll_timeout()
    }

    fn advance(&mut self, now: Instant, host: &mut Host) -> bool {
        self.target.advance(now, host)
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.target.visit(f);
    }
}

type Network = TwoMachineNetwork<ClientAndTarget, RemoteContentServer>;

fn nqn(name: &str) -> Nqn {
    Nqn::new(&format!("nqn.2026-11.example:{name}")).expect("it is valid")
}

fn target(tls: Option<TlsServer>, host: &mut Host) -> NvmeTarget {
    let namespace =
        NamespaceConfig { block_shift: 12, ..NamespaceConfig::new(&nqn("disks"), "disk") };
    let subsystem = SubsystemConfig {
        nqn: nqn("disks"),
        serial: String::from("1"),
        hosts: None,
        namespaces: vec![namespace],
    };
    let config =
        NvmeTargetConfig { subsystems: vec![subsystem], tls, ..NvmeTargetConfig::default() };
    NvmeTarget::new(config, Arc::new(Provider), host).expect("it is good")
}

/// Creates the machine of the content server.
fn server(offload: Result<(), Refusal>) -> TestMachine<MemDisk> {
    let l5o = L5oConfig {
        tls_tx: true,
        tls_rx: true,
        nvme_tcp_rx: true,
        nvme_tcp_tx: true,
        ddp_io_threshold: 4096,
        ..L5oConfig::new(Arc::new(Provider))
    };
    let device = DeviceConfig {
        l5o: Some(l5o),
        quic: Some(QuicConfig::new(Arc::new(Provider))),
        ..DeviceConfig::new([2, 0, 0, 0, 0, SERVER])
    };
    let config = HostConfig {
        addrs: vec![Cidr { addr: [10, 77, 0, SERVER].into(), prefix_len: 24 }],
        content: ContentSource::Application,
        nvme_tcp_offload: offload,
        tls_offload: offload,
        quic_offload: offload,
        ..HostConfig::default()
    };
    TestMachine::new(config, device, PLAIN_LINK, SERVER.into(), MemDisk::default())
}

/// Returns the volume on the client's machine.
fn volume(tls: Option<TlsClient>) -> RemoteVolumeConfig {
    let back_off = BackOff { ctrl_loss: None, ..BackOff::default() };
    let initiator = InitiatorConfig {
        back_off,
        data_digest: true,
        header_digest: true,
        tls,
        ..InitiatorConfig::new(nqn("host"), [7; 16], nqn("disks"), Arc::new(Provider))
    };
    let remote = Endpoint { addr: [10, 77, 0, CLIENT].into(), port: 4420 };
    RemoteVolumeConfig { name: String::new(), initiator, remote, nsid: 1 }
}

struct RemoteRig {
    net: Network,
}

impl RemoteRig {
    fn new(offload: Result<(), Refusal>, remote: RemoteFilesConfig) -> Self {
        let mut server = server(offload);
        let mut client = machine(CLIENT, Err(Refusal::Disabled), None);
        client.disk.insert("disk", image(), 1);
        let now = Instant::from_millis(1);
        let remote = RemoteFilesConfig { volumes: vec![volume(None)], ..remote };
        let content = ContentServerConfig::default();
        let content = RemoteContentServer::new(remote, content, now, server.host());
        let content = content.expect("the port is free");
        let app = ClientAndTarget {
            target: target(None, client.host()),
            socket: None,
            received: Vec::new(),
            failed: None,
        };
        let net = TwoMachineNetwork::new(now, (client, app), (server, content));
        Self { net }
    }

    fn run_until(&mut self, done: impl FnMut(&mut Network) -> bool) {
        let is_done = self.net.run_until(Duration::from_secs(300), done);
        assert!(is_done, "nothing came of it: {:?}", self.net.server.counters());
    }

    fn begin(&mut self, path: &str) {
        let remote = Endpoint { addr: [10, 77, 0, SERVER].into(), port: 80 };
        let now = self.net.now;
        let socket = self.net.client.host().connect(now, remote).expect("a port is free");
        let app = &mut self.net.client.app;
        (app.socket, app.failed) = (Some(socket), None);
        app.received.clear();
        self.run_until(|net| net.client.host().readiness(socket).writable);
        let text = format!("GET /{path} HTTP/1.1\r\nHost: a\r\n\r\n");
        let sent = self.net.client.machine.host().send(self.net.now, socket, Bytes::from(text));
        assert!(sent.is_ok());
    }

    /// Returns head and body of the response.
    fn get(&mut self, path: &str) -> (String, Vec<u8>) {
        self.begin(path);
        let mut response = None;
        self.run_until(|net| {
            response = split(&net.client.app.received);
            response.is_some() || net.client.app.failed.is_some()
        });
        response.expect("a response")
    }

    fn count(&self, name: &str) -> u64 {
        self.net.server.count(name)
    }

    /// Lets virtual time pass.
    fn wait(&mut self, time: Duration) {
        let until = self.net.now + time;
        self.net.run_until(time + Duration::from_secs(1), |net| net.now >= until);
    }

    /// Returns the namespace's bytes, to be changed behind the target's back.
    fn disk(&mut self) -> &mut [u8] {
        self.net.client.disk.file("disk").bytes_mut()
    }

    /// Makes the link drop all frames of NVMe/TCP, or none.
    fn set_outage(&mut self, is_lost: bool) {
        let mut usual = fixed_delay_link(Duration::from_micros(50));
        self.net.link = Box::new(move |now, to, frame| {
            let port = 4420_u16.to_be_bytes();
            let is_nvme = frame.bytes.get(34..38).is_some_and(|p| p[..2] == port || p[2..] == port);
            if is_lost && is_nvme { Vec::new() } else { usual(now, to, frame) }
        });
    }
}

fn split(received: &[u8]) -> Option<(String, Vec<u8>)> {
    let end = received.windows(4).position(|w| w == b"\r\n\r\n")? + 4;
    let head = String::from_utf8(received[..end].to_vec()).expect("heads are text");
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "))?;
    let body = received.get(end..end + length.parse::<usize>().ok()?)?;
    Some((head, body.to_vec()))
}

fn serve(offload: Result<(), Refusal>) -> RemoteRig {
    let mut rig = RemoteRig::new(offload, RemoteFilesConfig::default());
    let (head, body) = rig.get("big");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(body == big(), "each byte in its place");
    let (_, body) = rig.get("small");
    assert!(body == small());
    let (head, _) = rig.get("none");
    assert!(head.starts_with("HTTP/1.1 404"), "{head}");
    let (misses, hits) = (rig.count("remote_cache_misses"), rig.count("remote_cache_hits"));
    assert!(rig.get("big").1 == big());
    assert_eq!(rig.count("remote_cache_misses"), misses, "all units are in the cache");
    assert!(rig.count("remote_cache_hits") > hits);
    assert_eq!(rig.count("file_provided_bytes"), (2 * BIG + SMALL) as u64);
    assert_eq!(rig.count("remote_copied_bytes"), 0);
    assert!(rig.count("remote_read_ahead_units") > 0);
    assert_eq!(rig.count("internal_errors"), 0);
    rig
}

#[test]
fn placed_blocks_are_sent_without_a_copy() {
    let rig = serve(Ok(()));
    let fetched = (BIG + SMALL) as u64;
    assert_eq!(rig.count("remote_fetched_bytes"), fetched);
    // Without the hole, with the rest of the last block and with pages of metadata.
    let placed = fetched - 10 * BLOCK as u64;
    assert!(rig.count("nvme_rx_placed_bytes") >= placed, "{:?}", rig.net.server.counters());
    assert!(rig.count("nvme_rx_digests_device") > 0);
}

#[test]
fn without_offload_the_host_copies_each_block_once() {
    let rig = serve(Err(Refusal::Disabled));
    assert_eq!(rig.count("nvme_rx_placed_bytes"), 0);
}

#[test]
fn a_changed_file_has_a_new_version_and_ends_transfers() {
    let mut rig = RemoteRig::new(Ok(()), RemoteFilesConfig::default());
    let (before, _) = rig.get("small");
    rig.wait(Duration::from_secs(2));
    rig.disk()[SMALL_AT] ^= 1;
    rig.disk()[inode_at(13) + 0xc] ^= 1;
    let (after, body) = rig.get("small");
    let etag = |head: &str| head.lines().find(|line| line.starts_with("ETag")).map(str::to_owned);
    assert_ne!(etag(&before), etag(&after));
    let mut expected = small();
    expected[0] ^= 1;
    assert!(body == expected, "the new content, and none of the old");
    assert_eq!(rig.count("remote_files_changed"), 0, "no transfer was in progress");

    // Each unit is verified, so the change is noticed while the file is being sent.
    let remote = RemoteFilesConfig {
        validity: Duration::ZERO,
        read_ahead_units: 0,
        ..RemoteFilesConfig::default()
    };
    let mut rig = RemoteRig::new(Ok(()), remote);
    rig.set_outage(false);
    rig.begin("big");
    rig.run_until(|net| net.client.app.received.len() > 100_000);
    rig.disk()[inode_at(12) + 0xc] ^= 1;
    rig.run_until(|net| net.client.app.failed.is_some());
    assert_eq!(rig.count("remote_files_changed"), 1);
    assert!(rig.net.client.app.received.len() < BIG);
}

#[test]
fn a_file_system_that_is_mounted_is_refused_until_it_is_clean() {
    let mut rig = RemoteRig::new(Ok(()), RemoteFilesConfig::default());
    assert!(rig.get("small").0.starts_with("HTTP/1.1 200"));
    rig.wait(Duration::from_secs(2));
    rig.disk()[1024 + 0x60] |= 4;
    let (head, _) = rig.get("small");
    assert!(head.starts_with("HTTP/1.1 503") && head.contains("Retry-After"), "{head}");
    rig.wait(Duration::from_secs(2));
    rig.disk()[1024 + 0x60] &= !4;
    assert!(rig.get("small").0.starts_with("HTTP/1.1 200"));
}

#[test]
fn requests_wait_for_a_lost_target_and_then_get_503() {
    let mut rig = RemoteRig::new(Ok(()), RemoteFilesConfig::default());
    rig.set_outage(false);
    assert!(rig.get("small").0.starts_with("HTTP/1.1 200"));
    rig.set_outage(true);
    rig.wait(Duration::from_secs(2));
    let begun = rig.net.now;
    let (head, _) = rig.get("big");
    assert!(head.starts_with("HTTP/1.1 503") && head.contains("Retry-After"), "{head}");
    let waited = rig.net.now.since(begun);
    assert!((10..12).contains(&(waited.as_nanos() / 1_000_000_000)), "{waited:?}");
    assert_eq!(rig.count("remote_timeouts"), 1);

    // The target returns while a request waits.
    rig.wait(Duration::from_secs(20));
    rig.begin("big");
    rig.wait(Duration::from_secs(1));
    rig.set_outage(false);
    rig.run_until(|net| split(&net.client.app.received).is_some());
    let (head, body) = split(&rig.net.client.app.received).expect("a response");
    assert!(head.starts_with("HTTP/1.1 200") && body == big(), "{head}");
    assert!(rig.count("remote_outages") > 0);
    assert_eq!(rig.count("nvmei_associations"), 2);
}

#[test]
fn a_transfer_that_has_begun_ends_if_the_target_stays_away() {
    let remote = RemoteFilesConfig { read_ahead_units: 0, ..RemoteFilesConfig::default() };
    let mut rig = RemoteRig::new(Ok(()), remote);
    rig.set_outage(false);
    rig.begin("big");
    rig.run_until(|net| net.client.app.received.len() > 100_000);
    rig.set_outage(true);
    rig.run_until(|net| net.client.app.failed.is_some());
    let received = rig.net.client.app.received.clone();
    let end = received.windows(4).position(|w| w == b"\r\n\r\n").expect("a head") + 4;
    assert!(received.len() < BIG && big().starts_with(&received[end..]));
}

#[test]
fn a_small_cache_evicts_and_serves_the_same_bytes() {
    let remote = RemoteFilesConfig {
        cache_bytes_max: 512 << 10,
        fetches_max: 2,
        ..RemoteFilesConfig::default()
    };
    let mut rig = RemoteRig::new(Ok(()), remote);
    for _ in 0..3 {
        assert!(rig.get("big").1 == big());
    }
    assert!(rig.count("remote_cache_evictions") > 3);
    assert!(rig.count("remote_cache_bytes") <= 512 << 10);
}

/// A response that is in progress needs the storage until its end; then the controller is shut
/// down, and does not wait for its keep-alive timeout.
#[test]
fn a_drain_shuts_the_controller_down_after_the_last_response() {
    let mut rig = RemoteRig::new(Ok(()), RemoteFilesConfig::default());
    rig.set_outage(false);
    rig.begin("big");
    rig.run_until(|net| net.client.app.received.len() > 50_000);
    let now = rig.net.now;
    let NetworkNode { machine, app } = &mut rig.net.server;
    app.drain(now, machine.host());
    rig.run_until(|net| split(&net.client.app.received).is_some());
    assert!(split(&rig.net.client.app.received).is_some_and(|(_, body)| body == big()));
    rig.run_until(|net| net.client.count("nvmet_controllers_open") == 0);
    assert!(rig.net.now.since(now) < Duration::from_secs(5), "before any timeout");
    let of_target = |name: &str| rig.net.client.count(name);
    assert_eq!(of_target("nvmet_connections_lost"), 0, "no connection was reset");
    assert_eq!(of_target("nvmet_timeouts_keep_alive"), 0);
    rig.run_until(|net| net.client.count("nvmet_connections_open") == 0);
}
