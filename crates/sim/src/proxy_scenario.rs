//! Scenarios with a proxy: their parameters, and the proxy's machine.
//!
//! In one scenario of four the clients connect to `apps::proxy` on a machine of its own, with one
//! or two servers behind it that share a disk. [`crate::faults`] draws the parameters with the rest
//! of a scenario; [`crate::run`] adds the machine to the run. [`PROXY_NAME`] tells the proxy's own
//! responses from those of servers.

use apps::proxy::{
    ForwardingPolicy, HashBy, HealthCheckConfig, InsertedFields, LoadBalancing, Proxy, ProxyConfig,
    ProxyLimits, ProxyListener, ProxyMode, ProxyOffloads, ProxyPool, ProxyTable,
};
use base::{Duration, Instant, Prng};
use host::{Host, TcpConfig};
use nic::{Device, DeviceConfig, SetupConfig, SpliceConfig, TeardownConfig};
use wire::Endpoint;

use crate::faults::{NetFaults, Scenario, draw_net, draw_tcp};
use crate::http::PROXY_NAME;
use crate::machines::{
    address, addresses, capabilities, cookie_secret, device_base, remote_device,
};
use crate::net::SimNet;
use crate::node::{App, SimNode};
use crate::numbers;
use crate::patterns::PatternScenario;
use crate::queues::SimQueue;

/// Alert of the proxy if it has no server for a client (RFC 8446 section 6.2).
pub(crate) const INTERNAL_ERROR: u8 = 80;
/// Chosen so that the seeds kept as regression tests have no proxy.
const SALT: u64 = 0x0590_0043;
/// Size of a table that never fills.
const ENOUGH: u32 = 65_536;

/// The network between the proxy and its servers.
#[derive(Clone, Debug)]
pub(crate) struct BackNetwork {
    /// One-way delay from port to port.
    pub(crate) delay: Duration,
    /// Faults of frames to and from servers.
    pub(crate) faults: NetFaults,
}

/// A proxy between clients and servers.
#[derive(Clone, Debug)]
pub(crate) struct ProxyScenario {
    pub(crate) mode: ProxyMode,
    /// Number of servers behind it: one or two.
    pub(crate) servers: usize,
    /// Servers are reached over IPv6.
    pub(crate) v6: bool,
    /// The proxy uses splicing.
    pub(crate) splice: bool,
    /// Its device has a splice engine.
    engine: bool,
    /// Maximum number of pairs in the device, and of frames that it keeps while a pair begins.
    pairs_max: u32,
    kept_max: usize,
    /// Its device sets up connections.
    set_up: bool,
    /// Maximum number of connections that its device tears down at one time.
    flows_max: u32,
    balance: LoadBalancing,
    insert: InsertedFields,
    keep_alive: bool,
    check: HealthCheckConfig,
    connect_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    retries: u32,
    /// The second server's machine stops for good.
    pub(crate) server_stops: bool,
    pub(crate) tcp: TcpConfig,
    /// Maximum number of bytes after which aborting clients abort: before a pair is spliced, while
    /// it begins, or afterwards.
    pub(crate) abort_bytes_max: u64,
    pub(crate) back: BackNetwork,
}

impl ProxyScenario {
    /// Returns whether the device has room for every pair and for all frames that arrive while it
    /// begins.
    pub(crate) const fn has_room(&self) -> bool {
        self.pairs_max == ENOUGH && self.kept_max == 256 && self.flows_max == ENOUGH
    }

    /// Uses a generator of its own: scenarios without a proxy do not depend on these draws.
    pub(crate) fn draw(seed: u64, tls: bool, calm: bool, runs: bool) -> Option<Self> {
        let r = &mut Prng::new(seed ^ SALT);
        if !r.chance(0.25) {
            return None;
        }
        let look = r.chance(0.6);
        let mode = match (look, tls) {
            (false, _) => ProxyMode::Tcp,
            (true, false) => ProxyMode::Http,
            (true, true) => ProxyMode::Tls,
        };
        let small = r.chance(0.25);
        let field = |r: &mut Prng| r.chance(0.3);
        let servers = r.range(1, 2) as usize;
        let server_stops = servers == 2 && !calm && r.chance(0.2);
        Some(Self {
            mode,
            servers,
            server_stops,
            // A server that stops is not detected at once.
            retries: r.range(server_stops.into(), 3) as u32,
            v6: r.chance(0.4),
            splice: r.chance(0.85),
            engine: r.chance(0.95),
            pairs_max: if small { r.range(1, 3) as u32 } else { ENOUGH },
            kept_max: if r.chance(0.15) { r.range(0, 4) as usize } else { 256 },
            set_up: r.chance(0.7),
            flows_max: if r.chance(0.2) { r.range(1, 4) as u32 } else { ENOUGH },
            balance: [
                LoadBalancing::RoundRobin,
                LoadBalancing::Least,
                LoadBalancing::Maglev(HashBy::Source),
                LoadBalancing::Maglev(HashBy::Host),
            ][r.below(4) as usize],
            insert: InsertedFields {
                x_forwarded_for: field(r),
                x_forwarded_proto: field(r),
                forwarded: field(r),
                via: field(r),
            },
            keep_alive: r.chance(0.85),
            check: draw_check(r, mode),
            connect_timeout: Duration::from_millis(r.range(300, 4_000)),
            // Longer than any live peer is ever silent.
            idle_timeout: Duration::from_secs(r.range(20, 60)),
            tcp: draw_tcp(r, false),
            abort_bytes_max: [1, 1_000, 200_000][r.below(3) as usize],
            back: BackNetwork {
                delay: Duration::from_micros([5, 50, 500, 5_000][r.below(4) as usize]),
                faults: if calm { NetFaults::default() } else { draw_back(r, runs) },
            },
        })
    }

    /// Returns whether the proxy and its device can splice any number of connections with that
    /// client.
    pub(crate) fn can_splice(&self, scenario: &Scenario) -> bool {
        let [client, ours, server] =
            [&scenario.client_tcp, &self.tcp, &scenario.server_tcp].map(|tcp| tcp.timestamps);
        let alike = (client && ours) == (ours && server);
        self.splice
            && self.engine
            && self.pairs_max == ENOUGH
            && alike
            && scenario.patterns.is_none()
    }

    /// Returns whether the device is asked to set up connections, and can.
    pub(crate) fn sets_up(&self) -> bool {
        self.set_up && self.mode != ProxyMode::Tcp
    }

    /// Returns the proxy's configuration, with health checks or without; these continue
    /// indefinitely.
    pub(crate) fn table(&self, scenario: &Scenario, checks: bool) -> ProxyTable {
        let port = scenario.port();
        let at = |node| Endpoint { addr: address(node, self.v6), port };
        let backends = scenario.servers().map(at).map(Into::into);
        let interval = if checks { self.check.interval } else { Duration::ZERO };
        let pool = ProxyPool {
            name: String::from("servers"),
            balance: self.balance,
            backends: backends.collect(),
            check: HealthCheckConfig { interval, ..self.check.clone() },
            ..ProxyPool::default()
        };
        let listener = ProxyListener {
            addr: None,
            port,
            mode: self.mode,
            routes: Vec::new(),
            default: Some(0),
            insert: if self.mode == ProxyMode::Http {
                self.insert
            } else {
                InsertedFields::default()
            },
            policy: ForwardingPolicy::Append,
            keep_alive: self.keep_alive || self.mode != ProxyMode::Http,
            offloads: ProxyOffloads::ALL,
        };
        let limits = ProxyLimits {
            connect_timeout: self.connect_timeout,
            idle_timeout: self.idle_timeout,
            retries: self.retries,
            ..ProxyLimits::default()
        };
        ProxyTable { listeners: vec![listener], pools: vec![pool], limits }
    }
}

/// Draws faults as between clients and the proxy, with more partitions.
fn draw_back(r: &mut Prng, runs: bool) -> NetFaults {
    let faults = draw_net(r, runs);
    NetFaults { partitions: if r.chance(0.3) { r.range(1, 4) } else { 0 }, ..faults }
}

fn draw_check(r: &mut Prng, mode: ProxyMode) -> HealthCheckConfig {
    // A directory without its trailing slash is redirected, which counts as a healthy response.
    let path = if mode == ProxyMode::Http && r.chance(0.5) { "/d" } else { "" };
    let interval = if r.chance(0.5) { r.range(200, 2_000) } else { 0 };
    HealthCheckConfig {
        path: String::from(path),
        interval: Duration::from_millis(interval),
        timeout: Duration::from_millis(r.range(200, 2_000)),
        rise: r.range(1, 2) as u32,
        fall: r.range(1, 3) as u32,
        ..HealthCheckConfig::default()
    }
}

/// Builds the proxy's machine, or a queue of it.
pub(crate) fn machine(
    node: usize,
    queue: SimQueue,
    scenario: &Scenario,
    proxied: &ProxyScenario,
    net: &SimNet,
    rng: &mut Prng,
) -> SimNode {
    let splice = SpliceConfig {
        pairs_max: proxied.pairs_max,
        kept_frames_max: proxied.kept_max,
        ..SpliceConfig::default()
    };
    let teardown = TeardownConfig {
        flows_max: proxied.flows_max,
        time_wait_max: scenario.hand_over.time_wait_max,
        ..TeardownConfig::default()
    };
    let mut device = DeviceConfig {
        file: None,
        l5o: scenario.patterns_of(node).and_then(|patterns| patterns.engine(None)),
        setup: proxied.set_up.then(SetupConfig::default),
        teardown: Some(teardown),
        splice: proxied.engine.then_some(splice),
        pending_transmits_max: scenario.pending_transmits_max,
        rss_seed: rng.next_u64(),
        ..device_base(scenario, node)
    };
    let ahead = Duration::from_millis(scenario.clock_ahead_ms.wrapping_mul(node as u64 + 1));
    let mut config = host::HostConfig {
        addrs: addresses(node),
        lazy_tcb: scenario.hand_over.lazy_tcb,
        cookie_secret: Some(cookie_secret(&device)),
        tcp: numbers::tcp(scenario, node, &proxied.tcp, ahead),
        ..host::HostConfig::default()
    };
    queue.configure(&scenario.steering, &mut device, &mut config);
    let device = Device::new(device, net.link_caps());
    let mut host = Host::new(config, &capabilities(scenario, node, &device), rng.next_u64());
    let config = ProxyConfig {
        pattern_rules: scenario.patterns_of(node).map(PatternScenario::rules),
        backlog: scenario.backlog,
        server_name: String::from(PROXY_NAME),
        unix_epoch: scenario.content.unix_epoch,
        seed: rng.next_u64(),
        splice: proxied.splice,
        access_log: scenario.content.access_log,
    };
    let table = proxied.table(scenario, true);
    let proxy = match Proxy::new(Instant::ZERO + ahead, config, table, &mut host) {
        Ok(proxy) => proxy,
        Err(error) => unreachable!("no other listener: {error}"),
    };
    SimNode::new(device, host, App::Proxy(Box::new(proxy)), ahead, scenario.rings.slots)
        .with_remote_device(remote_device(scenario, node))
        .with_patterns(scenario.patterns_of(node).map(PatternScenario::rules))
        .on_queue(queue)
}
