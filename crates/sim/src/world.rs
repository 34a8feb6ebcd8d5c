//! The world: nodes, network, disk and clock of one run.
//!
//! A run has two phases, as TigerBeetle's simulator has: faults first, and then none. In the second
//! everything that was begun must end. The world is over when nothing is left to happen; then all
//! gauges must be zero. It is single-threaded and depends on its seed alone.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use abi::{Checksum, Refusal};
use apps::content::ContentServer;
use base::{Duration, Instant, Prng};
use host::{Cidr, Config, Host, Listen};
use nic::{Device, DeviceConfig, L5oConfig, TeardownConfig};
use wire::Endpoint;

use crate::Options;
use crate::checkers::progress::Progress;
use crate::checkers::wire::Wire;
use crate::checkers::{conserve, counters};
use crate::client::Client;
use crate::disk::{SimDisk, Work};
use crate::events::{Arrival, Event, Queue, Side};
use crate::faults::Scenario;
use crate::hostile;
use crate::net::Net;
use crate::node::{App, Around, Node, Turn};
use crate::report::Report;
use crate::tls;
use crate::trace::What;

/// The server is the first node.
const SERVER: usize = 0;
/// After the faults the clients begin a last session each.
const LAST_SESSION: Duration = Duration::from_secs(4);

/// One run.
pub(crate) struct World {
    pub(crate) scenario: Scenario,
    pub(crate) now: Instant,
    queue: Queue,
    pub(crate) nodes: Vec<Node>,
    pub(crate) net: Net,
    pub(crate) disk: SimDisk,
    pub(crate) report: Report,
    pub(crate) wire: Wire,
    progress: Progress,
    /// For what threads and attackers do.
    rng: Prng,
    /// A frame that crossed the network, for attackers to copy.
    seen: Vec<u8>,
    pub(crate) events: u64,
}

/// Address of a node.
fn address(node: usize, v6: bool) -> IpAddr {
    // The server and at most eight clients.
    let last = u8::try_from(node + 1).unwrap_or(u8::MAX);
    if v6 {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into()).into()
    } else {
        Ipv4Addr::new(10, 0, 0, last).into()
    }
}

fn mac(node: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, u8::try_from(node + 1).unwrap_or(u8::MAX)]
}

impl World {
    /// The world of a scenario, at its beginning.
    pub(crate) fn new(scenario: Scenario, options: &Options) -> Self {
        let mut rng = Prng::new(scenario.seed);
        tls::begin(scenario.seed);
        let clients = scenario.crowd.clients;
        // One port more: the attacker's.
        let macs: Vec<_> = (0..clients + 2).map(mac).collect();
        let net = Net::new(scenario.links.clone(), scenario.net.clone(), &macs, rng.fork());
        let disk = SimDisk::new(scenario.disk.clone(), scenario.seed, scenario.files, rng.fork());
        let mut nodes = vec![server(&scenario, &net, &mut rng)];
        for node in 1..=clients {
            nodes.push(client(node, &scenario, &net, &disk, &mut rng));
        }
        let mut report = Report::new(options.trace);
        report.errors_allowed = scenario.may_fail()
            || !scenario.calm_net()
            || scenario.crowd.dribble > 0.0
            || scenario.crowd.slow > 0.0
            // What the device was tearing down ends in a reset.
            || (scenario.hand_over.tear_down && scenario.resets > 0);
        report.failures_allowed = scenario.may_fail();
        let mut world = Self {
            now: Instant::ZERO,
            queue: Queue::default(),
            nodes,
            net,
            disk,
            report,
            wire: Wire::new(
                scenario.links.mtu,
                scenario.port(),
                scenario.tls.is_some(),
                scenario.hand_over.set_up,
            ),
            progress: Progress::default(),
            rng,
            seen: Vec::new(),
            events: 0,
            scenario,
        };
        world.plan();
        world
    }

    /// Puts the faults of the scenario on the calendar, and everybody's first turn.
    fn plan(&mut self) {
        let end = self.scenario.fault_time;
        let clients = self.scenario.crowd.clients as u64;
        let tls = self.scenario.tls.is_some();
        let (queue, r) = (&mut self.queue, &mut self.rng);
        let at = |r: &mut Prng| Instant::ZERO + Duration::from_nanos(r.below(end.as_nanos()));
        for _ in 0..self.scenario.disk.changes {
            queue.push(at(r), Event::Change);
        }
        for reset in 0..self.scenario.resets {
            // The clients' devices hold state too where they do TLS.
            let node = if tls { reset % (clients + 1) } else { 0 };
            queue.push(at(r), Event::Reset(node as usize));
        }
        for _ in 0..self.scenario.net.partitions {
            let (client, from) = (r.range(1, clients) as usize, at(r));
            queue.push(from, Event::Partition(client, true));
            let to = from + Duration::from_nanos(r.below(end.as_nanos()));
            queue.push(to, Event::Partition(client, false));
        }
        for _ in 0..self.scenario.crowd.vanish {
            let client = r.range(1, clients) as usize;
            queue.push(at(r), Event::Vanish(client));
        }
        if self.scenario.hostile.interval.is_some() {
            queue.push(at(r), Event::Attack);
        }
        queue.push(Instant::ZERO + end, Event::Heal);
        for node in 0..self.nodes.len() {
            self.wake(node, Side::Host, Instant::ZERO);
        }
    }

    /// Runs to the end, or to the first violation.
    pub(crate) fn run(&mut self) {
        while let Some((at, event)) = self.queue.pop() {
            debug_assert!(at >= self.now, "time does not run backwards");
            self.now = at;
            self.events += 1;
            self.progress.event(at, &mut self.report);
            self.handle(event);
            if self.report.violation.is_some() {
                return;
            }
        }
        self.check_end();
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Frame(to, frame) => self.arrive(to, frame),
            Event::Turn(node, side) => {
                if self.nodes[node].turns[side as usize] == self.now {
                    self.nodes[node].turns[side as usize] = Instant::FAR_FUTURE;
                    self.turn(node, side);
                }
            }
            Event::Disk(side, work) => self.disk_done(side, work),
            Event::Change => {
                let (file, how, size) = self.disk.change();
                self.note(SERVER, What::Change, [file as u64, how, size, 0, 0]);
            }
            Event::Reset(node) => {
                self.note(node, What::Fault, [1, node as u64, 1, 0, 0]);
                if !self.nodes[node].stopped {
                    self.nodes[node].device.reset();
                    self.wake_soon(node, Side::Device);
                }
            }
            Event::Partition(node, cut) => {
                self.note(node, What::Fault, [2, node as u64, cut.into(), 0, 0]);
                if !self.nodes[node].stopped {
                    self.net.cut(node, cut);
                }
            }
            Event::Vanish(node) => {
                self.note(node, What::Fault, [3, node as u64, 1, 0, 0]);
                self.nodes[node].stopped = true;
                self.net.cut(node, true);
            }
            Event::Attack => self.attack(),
            Event::Heal => self.heal(),
        }
    }

    fn note(&mut self, node: usize, what: What, fields: [u64; 5]) {
        self.report.trace.note(self.now, node, what, fields);
    }

    fn heal(&mut self) {
        self.note(SERVER, What::Fault, [4, 0, 0, 0, 0]);
        self.report.healed_at = Some(self.now);
        self.net.heal();
        self.disk.heal();
        let at = self.now + LAST_SESSION;
        for node in 1..self.nodes.len() {
            if self.nodes[node].stopped {
                continue;
            }
            self.net.cut(node, false);
            let local = self.nodes[node].local(at);
            if let App::Client(client) = &mut self.nodes[node].app {
                client.add_last(&self.disk.files(), local);
            }
            self.wake_soon(node, Side::Host);
        }
    }

    fn arrive(&mut self, to: usize, frame: Arrival) {
        if to >= self.nodes.len() || self.nodes[to].stopped {
            return;
        }
        let tcp = crate::trace::hash_bytes(0, &frame.bytes[..frame.bytes.len().min(100)]);
        let fields = [0, tcp, 0, frame.bytes.len() as u64, frame.from as u64];
        self.note(to, What::Arrive, fields);
        self.nodes[to].receive(frame);
        self.wake_soon(to, Side::Device);
    }

    fn disk_done(&mut self, side: Side, work: Work) {
        let (kind, offset) = match &work {
            Work::Open { .. } => (0, 0),
            Work::Read { offset, .. } => (1, *offset),
        };
        let completion = self.disk.complete(side, work);
        let (bytes, fault) = match &completion {
            abi::disk::DiskCompletion::Opened { result, .. } => (0, u64::from(result.is_err())),
            abi::disk::DiskCompletion::Read { result, .. } => {
                (result.as_ref().map_or(0, |r| u64::from(r.0)), u64::from(result.is_err()))
            }
        };
        self.note(SERVER, What::Disk, [side as u64, kind, offset, bytes, fault]);
        let node = &mut self.nodes[SERVER];
        match side {
            Side::Device => node.device_disk.push_back(completion),
            Side::Host => node.host_disk.push_back(completion),
        }
        self.wake_soon(SERVER, side);
    }

    /// A thread that sleeps is woken: that takes a moment, and sometimes long.
    fn wake_soon(&mut self, node: usize, side: Side) {
        let mut after = Duration::from_nanos(300 + self.rng.below(1_200));
        if self.report.healed_at.is_none() && self.rng.chance(self.scenario.rings.late) {
            after += Duration::from_nanos(self.rng.below(self.scenario.rings.late_max.as_nanos()));
        }
        self.wake(node, side, self.now + after);
    }

    /// Gives half a node a turn at that time, unless it has one before.
    fn wake(&mut self, node: usize, side: Side, at: Instant) {
        let turn = &mut self.nodes[node].turns[side as usize];
        if at < *turn {
            *turn = at;
            self.queue.push(at, Event::Turn(node, side));
        }
    }

    fn turn(&mut self, index: usize, side: Side) {
        let node = &mut self.nodes[index];
        if node.stopped {
            return;
        }
        let disk_room = self.disk.room(side);
        let mut around = Around {
            now: self.now,
            port_ready: self.net.ready_at(self.now, index),
            disk: &mut self.disk,
            report: &mut self.report,
            requests: Vec::new(),
            frames: Vec::new(),
            disk_room,
        };
        let turn = match side {
            Side::Device => node.device_turn(&mut around),
            Side::Host => node.host_turn(&mut around),
        };
        let (requests, frames) = (around.requests, around.frames);
        self.note_turn(index, side, &turn, frames.len());
        let worked = turn.taken != [0; 3] || !frames.is_empty() || !requests.is_empty();
        self.progress.turn(self.now, index, side, worked, turn.next, &mut self.report);
        for request in requests {
            if let Some((after, work)) = self.disk.submit(side, request) {
                self.queue.push(self.now + after, Event::Disk(side, work));
            }
        }
        for frame in &frames {
            self.transmit(index, frame);
        }
        if turn.ring {
            let other = if side == Side::Device { Side::Host } else { Side::Device };
            self.wake_soon(index, other);
        }
        if let Some(at) = turn.next {
            self.wake(index, side, at.max(self.now));
        }
    }

    fn note_turn(&mut self, node: usize, side: Side, turn: &Turn, frames: usize) {
        let [a, b, c] = turn.taken;
        match side {
            Side::Device => self.note(node, What::DeviceTurn, [a, b, c, frames as u64, 0]),
            Side::Host => {
                let next = turn.next.map_or(0, |at| at.since(self.now).as_micros());
                self.note(node, What::HostTurn, [a, b, c, next, 0]);
            }
        }
    }

    fn transmit(&mut self, node: usize, frame: &abi::port::TxFrame) {
        let [flags, seq, ack, sum] = {
            let known = &self.disk.catalogue;
            self.wire.sent(self.now, node, frame, known, &mut self.report)
        };
        let fields = [flags, seq, ack, frame.len() as u64, sum];
        self.note(node, What::Send, fields);
        if self.scenario.hostile.interval.is_some() {
            self.seen.resize(frame.len(), 0);
            frame.copy_to(&mut self.seen);
        }
        self.net.send(self.now, node, frame, &mut self.queue);
        self.note_fates();
    }

    fn note_fates(&mut self) {
        for (fate, from, len) in std::mem::take(&mut self.net.fates) {
            self.note(from, What::Fate, [fate as u64, from as u64, len, 0, 0]);
        }
    }

    /// An attacker sends a frame, and plans the next.
    fn attack(&mut self) {
        let Some(interval) = self.scenario.hostile.interval else { return };
        if self.report.healed_at.is_some() {
            return;
        }
        let victim = self.rng.range(1, self.scenario.crowd.clients as u64) as usize;
        let sockets: Vec<_> = self.nodes[victim].host.sockets().collect();
        let pick = self.rng.below(sockets.len() as u64) as usize;
        let ends = sockets.get(pick).map(|&s| {
            let host = &self.nodes[victim].host;
            (host.local(s), host.remote(s))
        });
        let (victim_end, server) = match ends {
            Some((Some(local), Some(remote))) => (Some((mac(victim), local)), remote),
            _ => (None, Endpoint { addr: address(SERVER, false), port: self.scenario.port() }),
        };
        let from = self.nodes.len();
        let v4_server = Endpoint { addr: address(SERVER, false), port: self.scenario.port() };
        let target = hostile::Target {
            source_mac: mac(from),
            server_mac: mac(SERVER),
            server,
            v4_server,
            victim: victim_end,
            seen: &self.seen,
        };
        let bytes = hostile::frame(&mut self.rng, self.scenario.hostile.kinds, &target);
        self.net.counters.net_hostile += 1;
        let frame = Arrival { from, bytes, checksum: Checksum::Unchecked, segment_size: 0 };
        self.net.carry(self.now, frame, &mut self.queue);
        self.note_fates();
        let after = Duration::from_nanos(self.rng.range(1, interval.as_nanos() * 2));
        self.queue.push(self.now + after, Event::Attack);
    }

    /// Nothing is left to happen: everything has to be over.
    fn check_end(&mut self) {
        let now = self.now;
        for index in 0..self.nodes.len() {
            let node = &self.nodes[index];
            if node.stopped {
                continue;
            }
            if let App::Client(client) = &node.app {
                if !client.is_done() {
                    let what = client.describe(&node.host).join("; ");
                    self.report.fail(now, "progress", format!("stuck: {what}"));
                }
            }
            if !node.is_idle() {
                self.report.fail(now, "progress", format!("n{index}: something lies in a ring"));
            }
            counters::check(now, index, node, &self.scenario, &mut self.report);
        }
        if self.disk.open_files() != 0 || self.disk.bad_handles != 0 {
            let (open, bad) = (self.disk.open_files(), self.disk.bad_handles);
            let what = format!("{open} files are open on the disk; {bad} wrong handles");
            self.report.fail(now, "counters", what);
        }
        conserve::check(now, &self.wire, &mut self.report);
    }
}

fn addresses(node: usize) -> Vec<Cidr> {
    vec![
        Cidr { addr: address(node, false), prefix_len: 16 },
        Cidr { addr: address(node, true), prefix_len: 64 },
    ]
}

/// Whether a node's host has its device do TLS.
fn tls_offload(scenario: &Scenario, node: usize) -> Result<(), Refusal> {
    let used = scenario.tls.as_ref().is_none_or(|tls| tls.device(node).used);
    if used { Ok(()) } else { Err(Refusal::Disabled) }
}

/// A node's engine for TLS. Where it is not used, every other device has it nevertheless.
fn tls_engine(scenario: &Scenario, node: usize) -> Option<L5oConfig> {
    let device = scenario.tls.as_ref()?.device(node);
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
        messages_ahead_max: device.messages_ahead_max,
        ..L5oConfig::new(Arc::new(crypto::Provider))
    })
}

fn server(scenario: &Scenario, net: &Net, rng: &mut Prng) -> Node {
    // Without offload: a device without the engine, or a host that does not use it.
    let engine = rng.chance(0.5) || scenario.offload;
    let config = DeviceConfig {
        file: engine.then(|| scenario.device.clone()),
        l5o: tls_engine(scenario, SERVER),
        pending_transmits_max: scenario.pending_transmits_max,
        correct_timestamps: scenario.correct_timestamps,
        rss_seed: rng.next_u64(),
        teardown: Some(TeardownConfig {
            flows_max: scenario.hand_over.flows_max,
            time_wait_max: scenario.hand_over.time_wait_max,
            ..TeardownConfig::default()
        }),
        ..DeviceConfig::new(mac(SERVER))
    };
    let device = Device::new(config, net.wire_caps());
    let config = Config {
        addrs: addresses(SERVER),
        file_offload: if scenario.offload { Ok(()) } else { Err(Refusal::Disabled) },
        tls_offload: tls_offload(scenario, SERVER),
        lazy_tcb: scenario.hand_over.lazy_tcb,
        tcp: scenario.server_tcp.clone(),
        ..Config::default()
    };
    let mut host = Host::new(config, &device.capabilities(), rng.next_u64());
    let mut content = scenario.content.clone();
    content.tls = scenario.tls.as_ref().map(tls::server);
    (content.set_up, content.tear_down) = (scenario.hand_over.set_up, scenario.hand_over.tear_down);
    content.listen = vec![Listen { addr: None, port: scenario.port(), backlog: scenario.backlog }];
    let server = match ContentServer::new(content, &mut host) {
        Ok(server) => server,
        Err(error) => unreachable!("nobody else listens: {error}"),
    };
    let ahead = Duration::from_millis(scenario.clock_ahead_ms);
    Node::new(device, host, App::Server(Box::new(server)), ahead, scenario.rings.slots)
}

fn client(index: usize, scenario: &Scenario, net: &Net, disk: &SimDisk, rng: &mut Prng) -> Node {
    let config = DeviceConfig {
        file: None,
        l5o: tls_engine(scenario, index),
        rss_seed: rng.next_u64(),
        ..DeviceConfig::new(mac(index))
    };
    let device = Device::new(config, net.wire_caps());
    let tcp = scenario.client_tcp.clone();
    let tls_offload = tls_offload(scenario, index);
    let config = Config { addrs: addresses(index), tcp, tls_offload, ..Config::default() };
    let host = Host::new(config, &device.capabilities(), rng.next_u64());
    let v6 = rng.chance(scenario.crowd.v6);
    let server = Endpoint { addr: address(SERVER, v6), port: scenario.port() };
    let ahead = Duration::from_millis(scenario.clock_ahead_ms.wrapping_mul(index as u64 + 1));
    let start = Instant::ZERO + ahead;
    let files = disk.files();
    let client = Client::new(index, server, rng.fork(), scenario, &files, start);
    Node::new(device, host, App::Client(Box::new(client)), ahead, scenario.rings.slots.max(64))
}
