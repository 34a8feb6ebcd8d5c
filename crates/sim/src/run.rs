//! The simulation of one run: nodes, network, disk and clock.
//!
//! A run has two phases, like those of TigerBeetle's simulator: first with faults, then without. In
//! the second phase everything that was begun must complete. The run ends when the event queue is
//! empty; then all gauges must be zero. The simulation is single-threaded and depends on its seed
//! alone.

mod kills;
mod queues;
mod terminations;

use std::collections::BTreeMap;
use std::sync::Arc;

use abi::Checksum;
use abi::disk::DiskRequest;
use apps::nvme::target::NvmeTargetGroup;
use base::{Duration, Instant, Prng};
use node::record::{RecordLane, describe_frame};
use wire::Endpoint;
use wire::frame::{ParsedFrame, parse, protocol};

use crate::RunOptions;
use crate::attacker;
use crate::checkers::frames::FrameChecker;
use crate::checkers::performance::PerformanceChecker;
use crate::checkers::progress::ProgressChecker;
use crate::checkers::{alarms, conserve, counters, proxy, remote, storage, uploads};
use crate::disk::{DiskClient, SimDisk, SimDiskRequest};
use crate::events::{NodeHalf, SentFrame, SimEvent, SimEventQueue, SimLinkFrame};
use crate::faults::Scenario;
use crate::machines::{ServerStart, address, client, mac, server};
use crate::net::SimNet;
use crate::node::{App, NodeTurnResult, SimNode, TurnEnv};
use crate::numbers;
use crate::proxy_scenario;
use crate::queues::{self as machine_queues, SimQueue};
use crate::remote_scenario;
use crate::report::RunReport;
use crate::storage::{StorageScenario, machines};
use crate::tls;
use crate::trace::TraceKind;
use crate::uploads::UploadScenario;

/// Node of the server.
const SERVER: usize = 0;
/// Time between the end of the faults and the last session that each client then begins.
const LAST_SESSION: Duration = Duration::from_secs(4);
/// Behind a proxy the last session begins later, by this plus the proxy's idle timeout: the proxy
/// may wait that long for a response that was lost with its server's connection, and then counts a
/// failure; and it does not retry a server that was down at once.
const LAST_PROXIED: Duration = Duration::from_secs(20);
/// With remote files it begins when the server has reached its target again, whose packets may be
/// retransmitted late after a partition.
const LAST_REMOTE: Duration = Duration::from_secs(20);
/// Maximum time in milliseconds until a killed machine starts again.
const DOWN_MAX_MS: u64 = 1_500;
/// Interval of the checks whether clients are done.
const CHECKS_END: Duration = Duration::from_secs(10);

/// State of one run.
pub(crate) struct SimRun {
    pub(crate) scenario: Scenario,
    pub(crate) now: Instant,
    queue: SimEventQueue,
    /// The machines, then the further queues of the one with several.
    pub(crate) nodes: Vec<SimNode>,
    machines: usize,
    pub(crate) net: SimNet,
    pub(crate) disk: SimDisk,
    pub(crate) report: RunReport,
    pub(crate) frame_checker: FrameChecker,
    progress: ProgressChecker,
    pub(crate) performance: PerformanceChecker,
    /// For the scheduling of threads and for attackers.
    rng: Prng,
    /// A frame that crossed the network, for attackers to copy.
    seen: Vec<u8>,
    /// `quic_tx_sealed` of the server's device at the last NAT rebinding.
    quic_encrypted_before: Option<u64>,
    /// A QUIC datagram that crossed the network, for attackers to copy.
    seen_quic: Vec<u8>,
    pub(crate) events: u64,
    /// Generator of the moves of steering entries.
    moves: Prng,
    pub(crate) entries_moved: u64,
    /// Pairs that the proxy had spliced when the faults ended.
    pub(crate) spliced_before: u64,
    /// Counters of machines that were killed or terminated, summed.
    pub(crate) stopped_counters: BTreeMap<&'static str, u64>,
}

impl SimRun {
    /// Builds the initial state of a scenario.
    pub(crate) fn new(mut scenario: Scenario, options: &RunOptions) -> Self {
        scenario.steering = machine_queues::steering(scenario.seed, scenario.queues);
        let (mut rng, moves) =
            (Prng::new(scenario.seed), machine_queues::moves_generator(scenario.seed));
        tls::begin(scenario.seed);
        let clients = scenario.crowd.clients;
        let target = usize::from(scenario.remote.is_some());
        let others = scenario.proxied.as_ref().map_or(target, |proxied| proxied.servers);
        // One port more, for the attacker.
        let macs: Vec<_> = (0..clients + others + 2).map(mac).collect();
        let net = SimNet::new(&scenario, &macs, rng.fork());
        let mut disk = disk_of(&scenario, rng.fork());
        let group = NvmeTargetGroup::new(scenario.queues_of(SERVER));
        let mut nodes = match &scenario.storage {
            Some(storage) => {
                let target = (storage, &group);
                kills::storage_nodes(&scenario, target, &net, &mut disk, &mut rng)
            }
            None => {
                let queue = first_queue(&scenario, SERVER);
                let start = ServerStart::default();
                vec![server((SERVER, queue), &scenario, &net, &mut rng, start)]
            }
        };
        for node in nodes.len()..=clients {
            nodes.push(client(node, &scenario, &net, &disk, &mut rng));
        }
        if let Some(proxied) = &scenario.proxied {
            let node = nodes.len();
            let queue = first_queue(&scenario, node);
            nodes.push(proxy_scenario::machine(node, queue, &scenario, proxied, &net, &mut rng));
            for node in scenario.servers().filter(|&node| node != SERVER) {
                let only = (node, SimQueue::ONLY);
                nodes.push(server(only, &scenario, &net, &mut rng, ServerStart::default()));
            }
        }
        if let Some(remote) = &scenario.remote {
            nodes.push(remote.target(nodes.len(), &scenario, &net, &mut rng));
        }
        let machines = nodes.len();
        nodes.extend(further_queues(&scenario, &group, &net));
        nodes.iter_mut().for_each(|node| node.odd.late_answers = scenario.late_answers);
        let report = report_of(&scenario, options);
        let mut sim = Self {
            now: Instant::ZERO,
            queue: SimEventQueue::default(),
            nodes,
            machines,
            net,
            disk,
            report,
            frame_checker: FrameChecker::new(&scenario, macs.len()),
            progress: ProgressChecker::default(),
            performance: PerformanceChecker::default(),
            rng,
            seen: Vec::new(),
            quic_encrypted_before: None,
            seen_quic: Vec::new(),
            events: 0,
            moves,
            entries_moved: 0,
            spliced_before: 0,
            stopped_counters: BTreeMap::new(),
            scenario,
        };
        sim.plan();
        sim.plan_moves();
        sim.plan_oddities();
        sim
    }

    /// Schedules lost contexts and the termination of a program, from generators of their own: the
    /// rest of the run does not depend on them.
    fn plan_oddities(&mut self) {
        let r = &mut Prng::new(self.scenario.seed ^ 0x1057_c0de);
        for _ in 0..self.scenario.lost_contexts {
            let after = r.below(self.scenario.fault_time.as_nanos());
            let at = Instant::ZERO + Duration::from_nanos(after);
            self.queue.push(at, SimEvent::LoseContext(SERVER));
        }
        for _ in 0..self.scenario.uploads.as_ref().map_or(0, |uploads| uploads.kills) {
            let after = r.below(self.scenario.fault_time.as_nanos());
            let at = Instant::ZERO + Duration::from_nanos(after);
            self.queue.push(at, SimEvent::Kill(SERVER, r.chance(0.5)));
            let down = Duration::from_millis(r.range(1, DOWN_MAX_MS));
            self.queue.push(at + down, SimEvent::Start(SERVER));
        }
        self.plan_remote(r);
        if let Some((node, at)) = terminations::plan(&self.scenario) {
            self.queue.push(at, SimEvent::End(node));
        }
    }

    /// Schedules the faults of a server with remote files and of its target.
    fn plan_remote(&mut self, r: &mut Prng) {
        let Some((remote, target)) = self.scenario.remote.as_ref().zip(self.scenario.target())
        else {
            return;
        };
        let end = self.scenario.fault_time.as_nanos();
        let at = |r: &mut Prng| Instant::ZERO + Duration::from_nanos(r.below(end));
        for (kills, node) in [(remote.server_kills, SERVER), (remote.target_kills, target)] {
            for _ in 0..kills {
                let from = at(r);
                self.queue.push(from, SimEvent::Kill(node, r.chance(0.5)));
                let down = Duration::from_millis(r.range(1, DOWN_MAX_MS));
                self.queue.push(from + down, SimEvent::Start(node));
            }
        }
        for _ in 0..remote.partitions {
            let from = at(r);
            self.queue.push(from, SimEvent::Partition(target, true));
            let to = from + Duration::from_nanos(r.below(end));
            self.queue.push(to, SimEvent::Partition(target, false));
        }
    }

    /// Schedules the faults of the scenario and the first turn of every host.
    fn plan(&mut self) {
        let end = self.scenario.fault_time;
        let clients = self.scenario.crowd.clients as u64;
        let scenario = &self.scenario;
        let everybody =
            scenario.tls.is_some() || scenario.quic.is_some() || scenario.storage.is_some();
        let (proxy, nodes) = (self.scenario.proxy(), self.machines as u64);
        let (queue, r) = (&mut self.queue, &mut self.rng);
        let at = |r: &mut Prng| Instant::ZERO + Duration::from_nanos(r.below(end.as_nanos()));
        for _ in 0..self.scenario.disk.changes {
            queue.push(at(r), SimEvent::Change);
        }
        let (front, front_queues) = (scenario.front(), scenario.queues_of(scenario.front()) as u64);
        for reset in 0..self.scenario.resets {
            let node = match proxy {
                // The proxy's device holds the most state; those of the other nodes hold some.
                Some(proxy) => (proxy as u64 + reset) % nodes,
                None if scenario.remote.is_some() => reset % nodes,
                // Clients' devices hold state too if they use TLS, QUIC or data placement.
                None if everybody => reset % (clients + 1),
                None => 0,
            };
            // The devices of a machine with several are reset in turn.
            let further = if node as usize == front { reset % front_queues } else { 0 };
            let node = if further > 0 { nodes + further - 1 } else { node };
            queue.push(at(r), SimEvent::Reset(node as usize));
        }
        for _ in 0..self.scenario.net.partitions {
            let (client, from) = (r.range(1, clients) as usize, at(r));
            queue.push(from, SimEvent::Partition(client, true));
            let to = from + Duration::from_nanos(r.below(end.as_nanos()));
            queue.push(to, SimEvent::Partition(client, false));
        }
        let back = self.scenario.proxied.as_ref().map_or(0, |p| p.back.faults.partitions);
        for _ in 0..back {
            let pick = r.below(self.scenario.servers().count() as u64) as usize;
            let server = self.scenario.servers().nth(pick).unwrap_or(SERVER);
            let from = at(r);
            queue.push(from, SimEvent::Partition(server, true));
            let to = from + Duration::from_nanos(r.below(end.as_nanos()));
            queue.push(to, SimEvent::Partition(server, false));
        }
        for _ in 0..self.scenario.quic.as_ref().map_or(0, |quic| quic.rebindings) {
            let client = r.range(1, clients) as usize;
            queue.push(at(r), SimEvent::Rebind(client));
        }
        for _ in 0..self.scenario.crowd.vanish {
            let client = r.range(1, clients) as usize;
            queue.push(at(r), SimEvent::Vanish(client));
        }
        if self.scenario.proxied.as_ref().is_some_and(|proxied| proxied.server_stops) {
            let last = self.scenario.servers().last().unwrap_or(SERVER);
            queue.push(at(r), SimEvent::Vanish(last));
        }
        if self.scenario.hostile.interval.is_some() {
            queue.push(at(r), SimEvent::Attack);
        }
        for (kills, nodes) in self.scenario.storage.iter().flat_map(StorageScenario::kills) {
            for _ in 0..kills {
                let (node, from) = (r.range(nodes.0, nodes.1) as usize, at(r));
                queue.push(from, SimEvent::Kill(node, r.chance(0.5)));
                let down = Duration::from_millis(r.range(1, DOWN_MAX_MS));
                queue.push(from + down, SimEvent::Start(node));
            }
        }
        queue.push(Instant::ZERO + end, SimEvent::Heal);
        for node in 0..self.nodes.len() {
            self.wake(node, NodeHalf::Host, Instant::ZERO);
        }
    }

    /// Runs to the end or to the first violation.
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

    fn handle(&mut self, event: SimEvent) {
        match event {
            SimEvent::Frame(to, frame) => self.arrive(to, frame),
            SimEvent::Turn(node, side) => {
                if self.nodes[node].turns[side as usize] == self.now {
                    self.nodes[node].turns[side as usize] = Instant::FAR_FUTURE;
                    self.turn(node, side);
                }
            }
            SimEvent::Disk(by, life, work) => {
                if self.nodes[by.0].life == life {
                    self.disk_done(by, work);
                }
            }
            SimEvent::Change => {
                let (file, how, size) = self.disk.change();
                self.note(SERVER, TraceKind::Change, [file as u64, how, size, 0, 0]);
            }
            SimEvent::Reset(node) => {
                self.note(node, TraceKind::Fault, [1, node as u64, 1, 0, 0]);
                if !self.nodes[node].stopped {
                    self.nodes[node].reset_device(self.now);
                    self.wake_soon(node, NodeHalf::Device);
                }
            }
            SimEvent::MoveEntries => self.move_entries(),
            SimEvent::LoseContext(node) => {
                self.note(node, TraceKind::Fault, [6, node as u64, 1, 0, 0]);
                if !self.nodes[node].stopped {
                    self.nodes[node].lose_context();
                    self.wake_soon(node, NodeHalf::Device);
                }
            }
            SimEvent::Partition(node, cut) => {
                self.note(node, TraceKind::Fault, [2, node as u64, cut.into(), 0, 0]);
                if !self.nodes[node].stopped {
                    self.net.cut(node, cut);
                }
            }
            SimEvent::Rebind(node) => {
                self.note(node, TraceKind::Fault, [5, node as u64, 1, 0, 0]);
                self.quic_encrypted_before = Some(self.sum_of(SERVER, "quic_tx_sealed"));
                self.net.rebind(node, self.scenario.quic.as_ref().is_some_and(|q| q.forgets));
            }
            SimEvent::Vanish(node) => {
                self.note(node, TraceKind::Fault, [3, node as u64, 1, 0, 0]);
                self.nodes[node].stopped = true;
                self.disk.crash(node, &mut self.rng);
                self.net.cut(node, true);
            }
            SimEvent::Kill(node, power) => self.kill(node, power),
            SimEvent::Start(node) => self.start(node),
            SimEvent::End(node) => self.end_host(node),
            SimEvent::EndLimit(node) => self.check_end_limit(node),
            SimEvent::Attack => self.attack(),
            SimEvent::Heal => self.heal(),
            SimEvent::StopChecks => self.stop_checks(),
        }
    }

    /// Reports a violation of a performance bound.
    fn report_performance(&mut self, node: usize, result: Result<(), String>) {
        if let Err(what) = result {
            self.report.fail(self.now, "performance", format!("n{node}: {what}"));
        }
    }

    fn note(&mut self, node: usize, what: TraceKind, fields: [u64; 5]) {
        self.report.trace.note(self.now, node, what, fields);
    }

    fn heal(&mut self) {
        self.note(SERVER, TraceKind::Fault, [4, 0, 0, 0, 0]);
        self.report.healed_at = Some(self.now);
        let bounded = self.performance.healed(&self.scenario, &self.nodes, &self.net);
        self.report_performance(SERVER, bounded);
        self.net.heal();
        self.disk.heal();
        let mut at = self.now + LAST_SESSION;
        if let Some((proxied, proxy)) = self.scenario.proxied.as_ref().zip(self.scenario.proxy()) {
            at = self.now + proxied.idle_timeout + LAST_PROXIED;
            self.net.cut(SERVER, false);
            self.spliced_before = self.sum_of(proxy, "proxy_spliced");
            self.queue.push(at, SimEvent::StopChecks);
        }
        if self.scenario.remote.is_some() {
            at = self.now + LAST_REMOTE;
            self.queue.push(at, SimEvent::StopChecks);
        }
        for node in 1..self.nodes.len() {
            let local = self.nodes[node].local(at);
            match &mut self.nodes[node].app {
                App::User(user) => user.finish_at(local),
                App::Rogue(rogue) => rogue.finish(),
                _ => {}
            }
            if self.nodes[node].stopped {
                continue;
            }
            self.net.cut(self.machine_of(node), false);
            let calm = self.scenario.calm.is_some();
            match &mut self.nodes[node].app {
                App::Client(client) if !calm => client.add_last(&self.disk.files(), local),
                _ => {}
            }
            self.wake_soon(node, NodeHalf::Host);
        }
    }

    /// Stops health checks, which would otherwise continue indefinitely: once its clients are done,
    /// the proxy gets a table without them. A server of remote files is drained, and ends its
    /// association with the target, whose keep-alive would continue.
    fn stop_checks(&mut self) {
        let busy = |node: &SimNode| match &node.app {
            App::Client(client) => !node.stopped && !client.is_done(),
            _ => false,
        };
        if self.nodes.iter().any(busy) {
            return self.queue.push(self.now + CHECKS_END, SimEvent::StopChecks);
        }
        if self.scenario.remote.is_some() {
            self.nodes[SERVER].drain(self.now);
            return self.wake_soon(SERVER, NodeHalf::Host);
        }
        let Some((proxied, proxy)) = self.scenario.proxied.as_ref().zip(self.scenario.proxy())
        else {
            return;
        };
        let table = proxied.table(&self.scenario, false);
        let now = self.now;
        self.for_nodes_of(proxy, |node| node.apply(now, table.clone()));
        for node in self.nodes_of(proxy) {
            self.wake_soon(node, NodeHalf::Host);
        }
    }

    fn arrive(&mut self, to: usize, frame: SimLinkFrame) {
        if to >= self.machines || self.nodes[to].stopped {
            return;
        }
        let (machine, to) = (to, self.node_of_arrival(to, &frame.bytes));
        let tcp = crate::trace::hash_bytes(0, &frame.bytes[..frame.bytes.len().min(100)]);
        let fields = [0, tcp, 0, frame.bytes.len() as u64, frame.from as u64];
        self.note(to, TraceKind::Arrive, fields);
        let trace = &mut self.report.trace;
        trace.record(self.now, to, RecordLane::Arrived, || describe_frame(&frame.bytes, false));
        let paths = (&self.scenario, &self.net);
        let node = (machine, &self.nodes[to]);
        let bounded = self.performance.arrived(self.now, node, paths, &frame.bytes);
        self.report_performance(to, bounded);
        self.nodes[to].receive(frame);
        self.wake_soon(to, NodeHalf::Device);
    }

    fn disk_done(&mut self, by: DiskClient, work: SimDiskRequest) {
        let (index, side) = by;
        let (kind, offset) = match &work {
            SimDiskRequest::Open { .. } => (0, 0),
            SimDiskRequest::Read { offset, .. } => (1, *offset),
            SimDiskRequest::Write { offset, .. } => (2, *offset),
            SimDiskRequest::Flush { .. } => (3, 0),
            SimDiskRequest::Publish { .. } => (4, 0),
        };
        let completion = self.disk.complete(by, work);
        if let Some(what) = self.disk.wrong.take() {
            self.report.fail(self.now, "uploads", what);
        }
        let (bytes, fault) = match &completion {
            abi::disk::DiskCompletion::Opened { result, .. } => (0, u64::from(result.is_err())),
            abi::disk::DiskCompletion::Read { result, .. } => {
                (result.as_ref().map_or(0, |r| u64::from(r.0)), u64::from(result.is_err()))
            }
            abi::disk::DiskCompletion::Written { result, .. }
            | abi::disk::DiskCompletion::Flushed { result, .. }
            | abi::disk::DiskCompletion::Zeroed { result, .. } => (0, u64::from(result.is_err())),
            abi::disk::DiskCompletion::Published { result, .. } => (0, u64::from(result.is_err())),
        };
        self.note(index, TraceKind::Disk, [side as u64, kind, offset, bytes, fault]);
        let node = &mut self.nodes[index];
        if node.stopped {
            return self.disk.close_all_of(index);
        }
        node.complete(side, completion);
        self.wake_soon(index, side);
    }

    /// Wakes a sleeping thread: usually within microseconds, sometimes much later.
    fn wake_soon(&mut self, node: usize, side: NodeHalf) {
        let mut after = Duration::from_nanos(300 + self.rng.below(1_200));
        if self.report.healed_at.is_none() && self.rng.chance(self.scenario.rings.late) {
            after += Duration::from_nanos(self.rng.below(self.scenario.rings.late_max.as_nanos()));
        }
        self.wake(node, side, self.now + after);
    }

    /// Schedules a turn of half of a node, unless it has an earlier one.
    fn wake(&mut self, node: usize, side: NodeHalf, at: Instant) {
        let turn = &mut self.nodes[node].turns[side as usize];
        if at < *turn {
            *turn = at;
            self.queue.push(at, SimEvent::Turn(node, side));
        }
    }

    /// Draws how many frames a port accepts in a turn, apart from what its rate allows.
    fn port_room(&mut self, side: NodeHalf) -> usize {
        let full = self.scenario.links.full;
        if side == NodeHalf::Host || full == 0.0 || self.report.healed_at.is_some() {
            return usize::MAX;
        }
        if self.rng.chance(full) { self.rng.below(4) as usize } else { usize::MAX }
    }

    fn turn(&mut self, index: usize, side: NodeHalf) {
        if self.nodes[index].stopped {
            return;
        }
        let (disk_room, port_room) = (self.disk.room((index, side)), self.port_room(side));
        let (machine, steering_room) = (self.machine_of(index), self.steering_room(index));
        let node = &mut self.nodes[index];
        let queue = node.queue.index;
        let mut around = TurnEnv {
            now: self.now,
            node: index,
            port_ready: self.net.ready_at(self.now, machine),
            disk: &mut self.disk,
            report: &mut self.report,
            requests: Vec::new(),
            frames: Vec::new(),
            spliced: Vec::new(),
            unspliced: Vec::new(),
            disk_room,
            port_room,
            port_refused: false,
            steering_room,
            steered: Vec::new(),
            spares: Vec::new(),
            moved: Vec::new(),
        };
        let turn = match side {
            NodeHalf::Device => node.device_turn(&mut around),
            NodeHalf::Host => node.host_turn(&mut around),
        };
        self.net.counters.net_port_full += u64::from(around.port_refused);
        let (requests, frames, spliced) = (around.requests, around.frames, around.spliced);
        let (steered, spares, moved) = (around.steered, around.spares, around.moved);
        around
            .unspliced
            .iter()
            .for_each(|id| self.frame_checker.splice_closed(machine, queue, *id));
        self.note_turn(index, side, &turn, frames.len());
        for splice in &spliced {
            self.note(index, TraceKind::Splice, [splice.id.0, 0, 0, 0, 0]);
            self.frame_checker.spliced(queue, splice);
        }
        let paths = (&self.scenario, &self.net);
        let node = &self.nodes[index];
        let bounded = match side {
            NodeHalf::Device => self.performance.device_worked(node, &self.scenario),
            NodeHalf::Host => self.performance.host_worked((machine, node), paths),
        };
        self.report_performance(index, bounded);
        let handed = !steered.is_empty() || !spares.is_empty() || !moved.is_empty();
        let worked = turn.taken != [0; 3] || !frames.is_empty() || !requests.is_empty() || handed;
        self.progress.turn(self.now, index, side, worked, turn.next, &mut self.report);
        self.submit(index, side, requests);
        self.hand_over(index, steered, spares);
        self.carry_connections(machine, moved);
        self.deliver_mail(machine);
        for frame in frames {
            self.transmit(index, frame);
        }
        self.plan_turns(index, side, &turn);
        self.finish_end(index);
    }

    /// Schedules the turns that follow a turn, and the death of a device's process.
    fn plan_turns(&mut self, index: usize, side: NodeHalf, turn: &NodeTurnResult) {
        if self.nodes[index].device_is_dying() {
            self.queue.push(self.now, SimEvent::Reset(index));
        }
        if turn.ring {
            let other = if side == NodeHalf::Device { NodeHalf::Host } else { NodeHalf::Device };
            self.wake_soon(index, other);
        }
        if let Some(at) = turn.next {
            self.wake(index, side, at.max(self.now));
        }
    }

    fn submit(&mut self, index: usize, side: NodeHalf, requests: Vec<DiskRequest>) {
        for request in requests {
            if let Some((after, work)) = self.disk.submit((index, side), request) {
                let life = self.nodes[index].life;
                self.queue.push(self.now + after, SimEvent::Disk((index, side), life, work));
            }
        }
    }

    fn note_turn(&mut self, node: usize, side: NodeHalf, turn: &NodeTurnResult, frames: usize) {
        let [a, b, c] = turn.taken;
        match side {
            NodeHalf::Device => self.note(node, TraceKind::DeviceTurn, [a, b, c, frames as u64, 0]),
            NodeHalf::Host => {
                let next = turn.next.map_or(0, |at| at.since(self.now).as_micros());
                self.note(node, TraceKind::HostTurn, [a, b, c, next, 0]);
            }
        }
    }

    fn transmit(&mut self, index: usize, frame: SentFrame) {
        let node = self.machine_of(index);
        let [flags, seq, ack, sum] = {
            let known = &self.disk.catalogue;
            self.frame_checker.sent(self.now, node, &frame, known, &mut self.report)
        };
        let fields = [flags, seq, ack, frame.bytes.len() as u64, sum];
        self.note(index, TraceKind::Send, fields);
        let trace = &mut self.report.trace;
        trace.record(self.now, index, RecordLane::Sent, || describe_frame(&frame.bytes, true));
        let from = (node, &self.nodes[index]);
        let bounded = self.performance.sent(self.now, from, &self.scenario, &frame.bytes);
        self.report_performance(node, bounded);
        if self.scenario.hostile.interval.is_some() {
            self.seen.clone_from(&frame.bytes);
            let quic = self.scenario.quic.is_some() && frame.segment_size == 0;
            // Any of them, not only the last.
            if quic && is_datagram(&self.seen) && self.rng.chance(0.3) {
                self.seen_quic.clone_from(&self.seen);
            }
        }
        self.net.send(self.now, node, frame, &mut self.queue);
        self.note_fates();
    }

    fn note_fates(&mut self) {
        for (fate, from, len) in std::mem::take(&mut self.net.fates) {
            self.note(from, TraceKind::Fate, [fate as u64, from as u64, len, 0, 0]);
        }
    }

    /// Returns the number of QUIC packets that the server's device encrypted since the last NAT
    /// rebinding.
    pub(crate) fn encrypted_after_rebinding(&self) -> u64 {
        let now = self.sum_of(SERVER, "quic_tx_sealed");
        self.quic_encrypted_before.map_or(0, |before| now.saturating_sub(before))
    }

    /// Returns the number of bytes that devices encrypted or decrypted in records with large
    /// numbers.
    pub(crate) fn tls_bytes_near_limits(&self) -> u64 {
        let names = ["tx_tls_encrypted_bytes", "rx_tls_decrypted_bytes"];
        let of = |node: &SimNode| names.iter().map(|name| node.counter(name)).sum::<u64>();
        let large = numbers::has_large_records(&self.scenario);
        self.nodes.iter().filter(|_| large).map(of).sum()
    }

    /// Sends a frame of the attacker and schedules the next.
    fn attack(&mut self) {
        let Some(interval) = self.scenario.hostile.interval else { return };
        if self.report.healed_at.is_some() {
            return;
        }
        // Behind a proxy the servers' connections are attacked too; the servers' sockets show them.
        let back = self.scenario.proxied.is_some() && self.rng.chance(0.5);
        let victim = if back {
            let pick = self.rng.below(self.scenario.servers().count() as u64) as usize;
            self.scenario.servers().nth(pick).unwrap_or(SERVER)
        } else {
            self.rng.range(1, self.scenario.crowd.clients as u64) as usize
        };
        let sockets: Vec<_> = self.nodes[victim].host().sockets().collect();
        let pick = self.rng.below(sockets.len() as u64) as usize;
        let ends = sockets.get(pick).map(|&s| {
            let host = self.nodes[victim].host();
            (host.local(s), host.remote(s))
        });
        let front = self.scenario.front();
        let v4_server = Endpoint { addr: address(front, false), port: self.scenario.port() };
        let (server_mac, client_mac) =
            if back { (mac(victim), mac(front)) } else { (mac(front), mac(victim)) };
        let (victim_end, server) = match ends {
            Some((Some(local), Some(remote))) if back => (Some((client_mac, remote)), local),
            Some((Some(local), Some(remote))) => (Some((client_mac, local)), remote),
            _ => (None, v4_server),
        };
        let from = self.machines;
        let numbers =
            victim_end.and_then(|(_, client)| self.frame_checker.expected((client, server)));
        let target = attacker::AttackTarget {
            source_mac: mac(from),
            server_mac,
            server,
            v4_server,
            victim: victim_end,
            // The effects of accepted forged data are left to tests of TCP.
            numbers: numbers.filter(|_| self.scenario.proxied.is_some()),
            seen: &self.seen,
        };
        let quic = self.scenario.quic.is_some() && self.rng.chance(0.7);
        let quic =
            quic.then(|| attacker::quic(&mut self.rng, &self.seen_quic, mac(from))).flatten();
        self.net.counters.net_hostile_quic += u64::from(quic.is_some());
        let kinds = self.scenario.hostile.kinds;
        let bytes = quic.unwrap_or_else(|| attacker::frame(&mut self.rng, kinds, &target));
        self.net.counters.net_hostile += 1;
        let frame = SimLinkFrame { from, bytes, checksum: Checksum::Unchecked, segment_size: 0 };
        self.net.carry(self.now, frame, &mut self.queue);
        self.note_fates();
        let after = Duration::from_nanos(self.rng.range(1, interval.as_nanos() * 2));
        self.queue.push(self.now + after, SimEvent::Attack);
    }

    /// Checks, when no events are left, that everything has completed.
    fn check_end(&mut self) {
        let now = self.now;
        self.nodes.iter_mut().for_each(SimNode::freeze_counters);
        let dropped = |node: &SimNode| node.counter("teardown_late_data_out_of_order") > 0;
        self.report.late_data_dropped = self.nodes.iter().any(dropped);
        for index in 0..self.nodes.len() {
            let node = &self.nodes[index];
            if node.stopped {
                continue;
            }
            if let App::Client(client) = &node.app {
                if !client.is_done() {
                    let what = client.describe(node.host()).join("; ");
                    self.report.fail(now, "progress", format!("stuck: {what}"));
                }
            }
            if !node.is_idle() {
                self.report.fail(now, "progress", format!("n{index}: something lies in a ring"));
            }
            let machine = self.machine_of(index);
            counters::check(now, machine, node, &self.scenario, &mut self.report);
            alarms::check(now, machine, node, &self.scenario, &mut self.report);
        }
        self.check_proxy();
        self.check_queues();
        self.check_path_mtu();
        storage::check(now, &self.scenario, &self.nodes, &self.disk, &mut self.report);
        if self.scenario.uploads.is_some() {
            uploads::check(now, &self.nodes[SERVER], &self.disk, &mut self.report);
        }
        remote::check(now, &self.nodes, &self.scenario, &mut self.report);
        // A target keeps its namespaces open.
        let serves = self.scenario.storage.is_some() || self.scenario.remote.is_some();
        let open = !serves && self.disk.open_files() != 0;
        if open || self.disk.bad_handles != 0 {
            let (open, bad) = (self.disk.open_files(), self.disk.bad_handles);
            let what = format!("{open} files are open on the disk; {bad} wrong handles");
            self.report.fail(now, "counters", what);
        }
        conserve::check(now, &self.frame_checker, &mut self.report);
    }

    fn check_proxy(&mut self) {
        let Some(proxied) = &self.scenario.proxied else { return };
        let asks = |node: &SimNode| matches!(node.app, App::Client(_)) && !node.stopped;
        let asks_again = self.report.healed_at.is_some() && self.scenario.calm.is_none();
        let asked = asks_again && self.nodes.iter().any(asks);
        let reset = self.frame_checker.pairs_reset();
        let known = proxy::ProxyExpectations { before: self.spliced_before, asked, reset };
        let Some(machine) = self.scenario.proxy() else { return };
        let nodes: Vec<_> = self.nodes_of(machine).map(|node| &self.nodes[node]).collect();
        let value = |name: &str| nodes.iter().map(|node| node.counter(name)).sum::<u64>();
        proxy::check(self.now, value, &self.scenario, proxied, &known, &mut self.report);
    }
}

/// Returns the first queue of a machine.
fn first_queue(scenario: &Scenario, machine: usize) -> SimQueue {
    SimQueue { index: 0, count: scenario.queues_of(machine) }
}

/// Builds the further queues of the machine to which clients connect. `group` is that of the queues
/// of a target.
fn further_queues(scenario: &Scenario, group: &Arc<NvmeTargetGroup>, net: &SimNet) -> Vec<SimNode> {
    let (front, count) = (scenario.front(), scenario.queues_of(scenario.front()));
    let build = |index| {
        let queue = SimQueue { index, count };
        let rng = &mut Prng::new(scenario.seed ^ ((index as u64) << 40));
        match (&scenario.proxied, &scenario.storage) {
            (Some(proxied), _) => {
                proxy_scenario::machine(front, queue, scenario, proxied, net, rng)
            }
            (None, Some(storage)) => {
                machines::node((front, queue), scenario, (storage, group), net, rng)
            }
            (None, None) => server((front, queue), scenario, net, rng, ServerStart::default()),
        }
    };
    (1..count).map(build).collect()
}

/// Returns the disk of a scenario's servers and targets, with their files.
fn disk_of(scenario: &Scenario, rng: Prng) -> SimDisk {
    let mut disk = SimDisk::new(scenario.disk.clone(), scenario.seed, scenario.files, rng);
    if let Some(bytes) = scenario.file_bytes() {
        disk = disk.with_file_bytes(bytes);
    }
    if let Some(uploads) = &scenario.uploads {
        disk = disk.with_uploads(uploads);
    }
    if scenario.remote.is_some() {
        disk = disk.with_site(remote_scenario::NAMESPACE);
    }
    disk
}

/// Returns an empty report that knows the errors that the scenario permits.
fn report_of(scenario: &Scenario, options: &RunOptions) -> RunReport {
    let mut report = RunReport::new(options.trace);
    if let Some(proxied) = &scenario.proxied {
        report.grace = proxied.idle_timeout + LAST_PROXIED - Duration::from_secs(1);
    }
    if scenario.remote.is_some() {
        report.grace = LAST_REMOTE - Duration::from_secs(1);
    }
    report.errors_allowed = scenario.may_fail()
        || !scenario.calm_net()
        || scenario.crowd.dribble > 0.0
        || scenario.crowd.slow > 0.0
        // Connections that the device was tearing down are lost in its reset.
        || (scenario.hand_over.tear_down && scenario.resets > 0)
        || scenario.uploads.as_ref().is_some_and(UploadScenario::refuses);
    report.uploads.is_replayed = scenario.may_replay();
    report.failures_allowed = scenario.may_fail();
    report.programs_end = scenario.terminates.is_some();
    report.servers_restart = scenario.server_restarts();
    report
}

/// Returns whether a frame is a UDP datagram.
fn is_datagram(frame: &[u8]) -> bool {
    matches!(parse(frame), Ok(ParsedFrame::Ip(ip)) if ip.protocol == protocol::UDP)
}
