//! Construction of servers and clients from a scenario, and their addresses.
//!
//! Called by [`crate::run`] at the beginning of a run and at restarts. [`crate::proxy_scenario`]
//! builds the proxy.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use abi::setup::CookieSecret;
use abi::{Capabilities, Refusal};
use apps::content::{ContentServer, ContentServerConfig, UploadConfig, UploadQuota};
use base::{Duration, Instant, Prng};
use host::{Cidr, Host, HostConfig, ListenConfig};
use nic::{Device, DeviceConfig, L5oConfig, LONG_TRANSMIT_BYTES, TeardownConfig};
use wire::Endpoint;

use crate::client::SimClient;
use crate::content::UPLOADS;
use crate::device_process::DeviceProcess;
use crate::disk::SimDisk;
use crate::faults::Scenario;
use crate::h3::H3Client;
use crate::net::SimNet;
use crate::node::{App, SimNode};
use crate::numbers;
use crate::patterns::PatternScenario;
use crate::queues::SimQueue;
use crate::quic;
use crate::remote_device::{REGION_BYTES, RemoteCarrier, RemoteDevice};
use crate::tls;

/// Salt of the generators of devices in other processes.
const REMOTE_SALT: u64 = 0x00de_71ce_0f0f;
/// Salt of the generator that draws the carriers of these devices.
const CARRIER_SALT: u64 = 0x88b5;

/// Returns the IP address of a node.
pub(crate) fn address(node: usize, v6: bool) -> IpAddr {
    // At most two servers, a proxy and eight clients.
    let last = u8::try_from(node + 1).unwrap_or(u8::MAX);
    if v6 {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into()).into()
    } else {
        Ipv4Addr::new(10, 0, 0, last).into()
    }
}

/// Returns the MAC address of a node.
pub(crate) fn mac(node: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, u8::try_from(node + 1).unwrap_or(u8::MAX)]
}

/// Returns the addresses of a node with their prefixes, for its host's configuration.
pub(crate) fn addresses(node: usize) -> Vec<Cidr> {
    vec![
        Cidr { addr: address(node, false), prefix_len: 16 },
        Cidr { addr: address(node, true), prefix_len: 64 },
    ]
}

/// Returns whether the device of a machine is another process.
pub(crate) fn has_remote_device(scenario: &Scenario, node: usize) -> bool {
    let drawn = || Prng::new(scenario.seed ^ REMOTE_SALT ^ ((node as u64) << 48)).chance(0.25);
    let wanted = match scenario.device_process {
        DeviceProcess::BySeed => drawn(),
        DeviceProcess::Never => false,
        DeviceProcess::Always | DeviceProcess::DiesAfter(_) => true,
    };
    wanted && scenario.queues_of(node) == 1
}

/// Returns the carrier of a machine whose device is another process.
pub(crate) fn remote_device(scenario: &Scenario, node: usize) -> Option<Box<RemoteDevice>> {
    let random = Prng::new(scenario.seed ^ REMOTE_SALT ^ node as u64);
    let dies_after = match scenario.device_process {
        DeviceProcess::DiesAfter(ops) if scenario.servers().next() == Some(node) => Some(ops),
        _ => None,
    };
    let carrier = if Prng::new(scenario.seed ^ CARRIER_SALT ^ node as u64).chance(0.5) {
        RemoteCarrier::Ethernet
    } else {
        RemoteCarrier::SharedMemory
    };
    let device = || Box::new(RemoteDevice::new(carrier, random, dies_after));
    has_remote_device(scenario, node).then(device)
}

/// Returns the capabilities that a machine's device offers to its host.
pub(crate) fn capabilities(scenario: &Scenario, node: usize, device: &Device) -> Capabilities {
    let capabilities = device.capabilities();
    if has_remote_device(scenario, node) {
        capabilities.for_other_process(REGION_BYTES as u64)
    } else {
        capabilities
    }
}

/// Returns whether a node's host uses TLS offload.
fn tls_offload(scenario: &Scenario, node: usize) -> Result<(), Refusal> {
    let used = scenario.tls_device(node).is_none_or(|device| device.used);
    if used { Ok(()) } else { Err(Refusal::Disabled) }
}

/// Returns the TLS engine of a node's device. Of the devices whose engine is not used, those of odd
/// seeds have one all the same.
fn tls_engine(scenario: &Scenario, node: usize) -> Option<L5oConfig> {
    let device = scenario.tls_device(node)?;
    if !device.used && scenario.seed % 2 == 0 {
        return None;
    }
    Some(L5oConfig {
        contexts_max: device.contexts_max,
        cache_bytes: device.cache_bytes,
        out_of_order: device.out_of_order,
        resync: device.resync,
        tls_tx: device.tx,
        tls_rx: device.rx,
        incomplete_messages_max: device.messages_ahead_max,
        // HTTP nodes have no NVMe/TCP; a device with it must reserve more memory for files.
        nvme_tcp_tx: false,
        nvme_tcp_rx: false,
        ..L5oConfig::new(Arc::new(crypto::Provider))
    })
}

/// Returns the part of the device configuration that all nodes share.
pub(crate) fn device_base(scenario: &Scenario, node: usize) -> DeviceConfig {
    let mut config = DeviceConfig::new(mac(node));
    if scenario.links.long_runs {
        (config.transmit_bytes_max, config.run_bytes_max) =
            (LONG_TRANSMIT_BYTES, LONG_TRANSMIT_BYTES);
    }
    config
}

/// State in which a server's program starts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ServerStart {
    /// Number of times that it has started before.
    pub(crate) life: u32,
    /// Bytes of the files in the directory for uploads.
    pub(crate) upload_bytes: u64,
    /// Simulated time.
    pub(crate) now: Instant,
}

/// Returns the configuration of a server's uploads.
fn uploads(scenario: &Scenario, start: ServerStart) -> Option<UploadConfig> {
    scenario.uploads.as_ref().map(|uploads| UploadConfig {
        quota: Arc::new(UploadQuota::new(uploads.quota, start.upload_bytes)),
        file_bytes_max: uploads.file_bytes_max,
        served_as: Some(UPLOADS.as_bytes().to_vec()),
        decompression: None,
    })
}

/// Starts the content server of a machine's own files, or of those on a namespace.
fn content_server(
    scenario: &Scenario,
    content: ContentServerConfig,
    now: Instant,
    host: &mut Host,
) -> App {
    if let Some(remote) = &scenario.remote {
        return App::RemoteServer(Box::new(remote.server(scenario, content, now, host)));
    }
    match ContentServer::new(content, host) {
        Ok(server) => App::Server(Box::new(server)),
        Err(error) => unreachable!("no other listener: {error}"),
    }
}

/// Builds a server, or a queue of it.
pub(crate) fn server(
    (node, queue): (usize, SimQueue),
    scenario: &Scenario,
    net: &SimNet,
    rng: &mut Prng,
    start: ServerStart,
) -> SimNode {
    // Without offload: either a device without the engine, or a host that does not use it.
    let engine = rng.chance(0.5) || scenario.offload;
    let mut device = DeviceConfig {
        file: engine.then(|| scenario.device.clone()),
        l5o: match scenario.patterns_of(node) {
            Some(patterns) => patterns.engine(tls_engine(scenario, node)),
            None => tls_engine(scenario, node),
        },
        quic: quic::engine(scenario, node),
        pending_transmits_max: scenario.pending_transmits_max,
        correct_timestamps: scenario.correct_timestamps,
        rss_seed: rng.next_u64(),
        teardown: Some(TeardownConfig {
            flows_max: scenario.hand_over.flows_max,
            time_wait_max: scenario.hand_over.time_wait_max,
            ..TeardownConfig::default()
        }),
        ..device_base(scenario, node)
    };
    if let Some(remote) = &scenario.remote {
        (device.file, device.l5o) = (None, Some(remote.server_engine(scenario)));
    }
    let ahead = Duration::from_millis(scenario.clock_ahead_ms);
    let mut config = HostConfig {
        addrs: addresses(node),
        file_offload: if scenario.offload { Ok(()) } else { Err(Refusal::Disabled) },
        tls_offload: tls_offload(scenario, node),
        quic_offload: quic::offload(scenario, node),
        udp_segmentation: quic::segmentation(scenario),
        lazy_tcb: scenario.hand_over.lazy_tcb,
        cookie_secret: Some(cookie_secret(&device)),
        tcp: numbers::tcp(scenario, node, &scenario.server_tcp, ahead),
        ..HostConfig::default()
    };
    if let Some(remote) = &scenario.remote {
        remote.configure_host(&mut config);
    }
    queue.configure(&scenario.steering, &mut device, &mut config);
    let steering = queue.quic_steering(scenario.seed, quic::SERVER_PORT);
    device.quic_steering = steering;
    let device = Device::new(device, net.link_caps());
    let mut host = Host::new(config, &capabilities(scenario, node, &device), rng.next_u64());
    let mut content = scenario.content.clone();
    content.tls = scenario.tls.as_ref().map(tls::server);
    content.http3 = quic::config(scenario, node, start.life);
    if let (Some(http3), Some(steering)) = (&mut content.http3, steering) {
        http3.steering = Some((steering, queue.index));
    }
    content.uploads = uploads(scenario, start);
    content.pattern_rules = scenario.patterns_of(node).map(PatternScenario::rules);
    (content.setup_offload, content.teardown_offload) =
        (scenario.hand_over.set_up, scenario.hand_over.tear_down);
    content.listen =
        vec![ListenConfig { addr: None, port: scenario.port(), backlog: scenario.backlog }];
    let app = content_server(scenario, content, start.now + ahead, &mut host);
    SimNode::new(device, host, app, ahead, scenario.rings.slots)
        .with_remote_device(remote_device(scenario, node))
        .with_patterns(scenario.patterns_of(node).map(PatternScenario::rules))
        .on_queue(queue)
}

/// Returns the secret of the cookies that a device makes for its host: another one for each queue,
/// as `rss_seed` is here.
pub(crate) const fn cookie_secret(device: &DeviceConfig) -> CookieSecret {
    CookieSecret([device.rss_seed, u64::from_be_bytes(*b"setup ck")])
}

/// Builds a client.
pub(crate) fn client(
    index: usize,
    scenario: &Scenario,
    net: &SimNet,
    disk: &SimDisk,
    rng: &mut Prng,
) -> SimNode {
    let config = DeviceConfig {
        file: None,
        l5o: tls_engine(scenario, index),
        quic: quic::engine(scenario, index),
        rss_seed: rng.next_u64(),
        ..device_base(scenario, index)
    };
    let device = Device::new(config, net.link_caps());
    let ahead = Duration::from_millis(scenario.clock_ahead_ms.wrapping_mul(index as u64 + 1));
    let tcp = numbers::tcp(scenario, index, &scenario.client_tcp, ahead);
    let tls_offload = tls_offload(scenario, index);
    let first = *HostConfig::default().ports.start();
    let last =
        scenario.ports.map_or_else(|| *HostConfig::default().ports.end(), |few| first + (few - 1));
    let config = HostConfig {
        addrs: addresses(index),
        ports: first..=last,
        tcp,
        tls_offload,
        quic_offload: quic::offload(scenario, index),
        udp_segmentation: quic::segmentation(scenario),
        ..HostConfig::default()
    };
    let mut host = Host::new(config, &capabilities(scenario, index, &device), rng.next_u64());
    let v6 = rng.chance(scenario.crowd.v6);
    let server = Endpoint { addr: address(scenario.front(), v6), port: scenario.port() };
    let start = Instant::ZERO + ahead;
    let files = disk.files();
    let h3 = h3_client(index, scenario, server.addr, &mut host, &files, start);
    let client = SimClient::new(index, server, rng.fork(), scenario, &files, start).with_h3(h3);
    SimNode::new(device, host, App::Client(Box::new(client)), ahead, scenario.rings.slots.max(64))
        .with_remote_device(remote_device(scenario, index))
}

/// Builds the HTTP/3 client of a client's machine.
fn h3_client(
    node: usize,
    scenario: &Scenario,
    server: IpAddr,
    host: &mut Host,
    files: &[(String, u64)],
    start: Instant,
) -> Option<H3Client> {
    let quic = scenario.quic.as_ref()?;
    let provider = tls::quic_endpoint(quic.suite, node);
    let endpoint = ::quic::QuicEndpoint::new(quic::config(scenario, node, 0)?, &provider, host);
    let endpoint = match endpoint {
        Ok(endpoint) => endpoint,
        Err(error) => unreachable!("no other user of the port: {error}"),
    };
    Some(H3Client::new(node, server, endpoint, (scenario, quic), files, start))
}
