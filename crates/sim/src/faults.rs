//! The scenario of a seed: sizes, options and faults of one run, drawn once and then fixed.
//!
//! Swarm testing (Groce and others, "Swarm testing", ISSTA 2012): each run omits most faults and
//! has a few strongly, so that runs differ more than if all faults were always slightly on.
//! Everything is drawn here, in one place and one order; during the run only occurrences within
//! these bounds are drawn.

use std::sync::Arc;

use abi::l5o::ResyncMode;
use abi::steering::FlowSteering;
use apps::content;
use apps::proxy::ProxyMode;
use base::{Duration, Prng};
use host::{CongestionAlgorithm, TcpConfig};
use nic::FileConfig;

use crate::calm::Disturbance;
use crate::device_process::DeviceProcess;
use crate::numbers::Numbers;
use crate::path_mtu::PathMtuScenario;
use crate::patterns::PatternScenario;
use crate::proxy_scenario::ProxyScenario;
use crate::queues;
use crate::quic::QuicScenario;
use crate::remote_scenario::RemoteScenario;
use crate::storage::{self, StorageScenario};
use crate::tls::KEY_RECORDS;
use crate::uploads::UploadScenario;

/// Size of a queue that never drops a frame.
const UNLIMITED: u64 = 1 << 40;

/// Faults of the network; each `f64` is a probability per frame.
#[derive(Clone, Debug, Default)]
pub(crate) struct NetFaults {
    /// Loss.
    pub(crate) loss: f64,
    /// Probability that a frame is lost after its predecessor was.
    pub(crate) burst: f64,
    /// Duplication.
    pub(crate) duplicate: f64,
    /// Corruption of one bit.
    pub(crate) corrupt: f64,
    /// Delay, so that later frames overtake.
    pub(crate) reorder: f64,
    /// Maximum delay of a reordered frame.
    pub(crate) reorder_max: Duration,
    /// Probability of a second copy of a SYN that arrives much later.
    pub(crate) old_syns: f64,
    /// Number of times that a client is disconnected for a while.
    pub(crate) partitions: u64,
}

impl NetFaults {
    /// Returns whether any fault is possible.
    pub(crate) fn any(&self) -> bool {
        self.loss > 0.0
            || self.duplicate > 0.0
            || self.corrupt > 0.0
            || self.reorder > 0.0
            || self.old_syns > 0.0
            || self.partitions > 0
    }
}

/// Properties of the network without faults.
#[derive(Clone, Debug)]
pub(crate) struct Links {
    /// One-way delay from port to port.
    pub(crate) delay: Duration,
    /// Maximum of a random addition to the delay; it never reorders frames between two ports.
    pub(crate) jitter: Duration,
    /// Rate of a node's own port.
    pub(crate) port_bytes_per_s: u64,
    /// Rate of the link from the switch to a client.
    pub(crate) down_bytes_per_s: u64,
    /// Size of the queue in front of that link; frames that do not fit are lost.
    pub(crate) queue_bytes_max: u64,
    /// Queue length in bytes above which packets are marked with CE (RFC 3168).
    pub(crate) mark_bytes: Option<u64>,
    /// Largest IP packet.
    pub(crate) mtu: u16,
    /// Runs of segments cross unsegmented and with partial checksums, as over a TAP.
    pub(crate) runs: bool,
    /// Devices build longer runs than the port accepts.
    pub(crate) long_runs: bool,
    /// Probability per turn of a device that its port accepts only a few frames.
    pub(crate) full: f64,
}

/// Frames from an attacker.
#[derive(Clone, Debug, Default)]
pub(crate) struct AttackerConfig {
    /// Mean time between two frames; `None` without an attacker.
    pub(crate) interval: Option<Duration>,
    /// Bit mask of kinds: 1 random bytes, 2 SYNs from any address, 4 forged segments of other
    /// connections, 8 damaged copies.
    pub(crate) kinds: u8,
}

/// Properties and faults of the disk.
#[derive(Clone, Debug)]
pub(crate) struct DiskFaults {
    /// Minimum and usual maximum time of a request.
    pub(crate) latency: (Duration, Duration),
    /// Probability that a request takes far longer.
    pub(crate) stall: f64,
    /// Maximum time of such a request.
    pub(crate) stall_max: Duration,
    /// Probability that an open fails.
    pub(crate) open_error: f64,
    /// Probability that a read fails.
    pub(crate) read_error: f64,
    /// Probability that a read returns fewer bytes than requested.
    pub(crate) short_read: f64,
    /// Probability that a write, a flush or a zeroing fails.
    pub(crate) write_error: f64,
    /// Probability that a write or a zeroing fails for lack of space.
    pub(crate) no_space: f64,
    /// Number of times that a file changes.
    pub(crate) changes: u64,
    /// Maximum number of requests in flight for each half of a node.
    pub(crate) depth: usize,
}

impl DiskFaults {
    /// Returns whether a transfer may fail because of the disk.
    pub(crate) fn any(&self) -> bool {
        self.open_error > 0.0 || self.read_error > 0.0 || self.short_read > 0.0 || self.changes > 0
    }
}

/// The rings between host and device, and the scheduling of the threads that poll them.
#[derive(Clone, Debug)]
pub(crate) struct RingFaults {
    pub(crate) slots: usize,
    /// Probability that a turn is late.
    pub(crate) late: f64,
    /// Maximum lateness of a turn.
    pub(crate) late_max: Duration,
}

/// Behavior of the clients.
#[derive(Clone, Debug)]
pub(crate) struct ClientLoad {
    pub(crate) clients: usize,
    /// Maximum number of connections of each client.
    pub(crate) sessions_max: u64,
    /// Maximum number of requests on each connection.
    pub(crate) requests_max: u64,
    /// Probabilities of a slow reader, of a slow writer, and of a client that aborts in the middle.
    pub(crate) slow: f64,
    pub(crate) dribble: f64,
    pub(crate) abort: f64,
    /// Maximum number of bytes after which a client aborts.
    pub(crate) abort_bytes_max: u64,
    /// Number of clients whose machine stops.
    pub(crate) vanish: u64,
    /// Probability of a request that is not just a GET of a file.
    pub(crate) odd: f64,
    pub(crate) v6: f64,
}

/// A device's TLS engine.
#[derive(Clone, Debug)]
pub(crate) struct TlsDevice {
    /// The host uses the engine.
    pub(crate) used: bool,
    pub(crate) tx: bool,
    pub(crate) rx: bool,
    pub(crate) contexts_max: u32,
    pub(crate) cache_bytes: u32,
    pub(crate) out_of_order: bool,
    pub(crate) resync: ResyncMode,
    pub(crate) messages_ahead_max: usize,
}

/// Size of a context table that is never full.
const CONTEXTS_ENOUGH: u32 = 4_096;

impl TlsDevice {
    fn draw(r: &mut Prng) -> Self {
        let [tx, rx] =
            [[true, true], [true, true], [true, false], [false, true]][r.below(4) as usize];
        Self {
            used: r.chance(0.75),
            tx,
            rx,
            contexts_max: if r.chance(0.15) { r.range(1, 4) as u32 } else { CONTEXTS_ENOUGH },
            cache_bytes: if r.chance(0.3) { r.range(208, 2_000) as u32 } else { 4 << 20 },
            out_of_order: r.chance(0.6),
            resync: [ResyncMode::StreamScan, ResyncMode::NextHint, ResyncMode::Async]
                [r.below(3) as usize],
            messages_ahead_max: if r.chance(0.3) { r.range(1, 4) as usize } else { 64 },
        }
    }

    /// Returns whether the device encrypts.
    pub(crate) const fn encrypts(&self) -> bool {
        self.used && self.tx
    }

    /// Returns whether the device decrypts.
    pub(crate) const fn decrypts(&self) -> bool {
        self.used && self.rx
    }

    /// Returns whether the context table never fills.
    pub(crate) const fn has_room(&self) -> bool {
        self.contexts_max >= CONTEXTS_ENOUGH
    }
}

/// TLS in a scenario: HTTPS or NVMe/TCP over TLS.
#[derive(Clone, Debug)]
pub(crate) struct TlsScenario {
    /// TLS 1.2; otherwise 1.3.
    pub(crate) v12: bool,
    /// Index of the AEAD.
    pub(crate) suite: usize,
    /// Index into [`crate::tls::KEY_RECORDS`] if TLS 1.3 updates its keys often.
    pub(crate) key_records: Option<usize>,
    pub(crate) server: TlsDevice,
    pub(crate) client: TlsDevice,
}

impl TlsScenario {
    /// Uses a generator of its own: the rest of the scenario does not depend on these draws.
    fn draw(seed: u64) -> Option<Self> {
        let r = &mut Prng::new(seed ^ 0x7150_0f0b);
        r.chance(1.0 / 3.0).then(|| Self::draw_some(r))
    }

    /// Draws the parameters of TLS.
    pub(crate) fn draw_some(r: &mut Prng) -> Self {
        Self {
            v12: r.chance(0.3),
            suite: r.below(3) as usize,
            key_records: r.chance(0.3).then(|| r.below(KEY_RECORDS.len() as u64) as usize),
            server: TlsDevice::draw(r),
            client: TlsDevice::draw(r),
        }
    }

    /// Forces all offload on or off.
    pub(crate) const fn force(&mut self, offload: bool) {
        if offload {
            (self.server.tx, self.server.rx) = (true, true);
            (self.client.tx, self.client.rx) = (true, true);
        }
        (self.server.used, self.client.used) = (offload, offload);
    }
}

/// The connection offloads of the server's device.
#[derive(Clone, Debug)]
pub(crate) struct HandOverScenario {
    /// Set-up offload.
    pub(crate) set_up: bool,
    /// Tear-down offload.
    pub(crate) tear_down: bool,
    /// Maximum number of flows in the device at one time, and of TIME-WAIT entries.
    pub(crate) flows_max: u32,
    pub(crate) time_wait_max: u32,
    /// The host uses a lazy TCB for connections that the device set up.
    pub(crate) lazy_tcb: bool,
}

impl HandOverScenario {
    /// Uses a generator of its own: the rest of the scenario does not depend on these draws.
    fn draw(seed: u64) -> Self {
        let r = &mut Prng::new(seed ^ 0xacce_17c9);
        let used = r.chance(0.6);
        let [set_up, tear_down] = [[true, true], [true, false], [false, true]][r.below(3) as usize];
        Self {
            set_up: used && set_up,
            tear_down: used && tear_down,
            flows_max: if r.chance(0.2) { r.range(1, 4) as u32 } else { 65_536 },
            time_wait_max: if r.chance(0.2) { r.range(1, 4) as u32 } else { 262_144 },
            lazy_tcb: r.chance(0.8),
        }
    }
}

/// Role of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeRole {
    Client,
    Proxy,
    Server,
    /// The NVMe/TCP target with a server's files.
    Target,
}

/// A whole scenario: the parameters of one run.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    /// Machines whose device is another process.
    pub(crate) device_process: DeviceProcess,
    /// Connection offloads of the device.
    pub(crate) hand_over: HandOverScenario,
    /// TLS, and the engines for its record layer.
    pub(crate) tls: Option<TlsScenario>,
    /// A proxy between clients and servers.
    pub(crate) proxied: Option<ProxyScenario>,
    /// Rules about patterns that clients send.
    pub(crate) patterns: Option<PatternScenario>,
    /// HTTP/3 over UDP, in addition.
    pub(crate) quic: Option<QuicScenario>,
    /// NVMe/TCP instead of HTTP.
    pub(crate) storage: Option<StorageScenario>,
    /// The server's files lie on a namespace of another machine.
    pub(crate) remote: Option<RemoteScenario>,
    /// Uploads, in addition.
    pub(crate) uploads: Option<UploadScenario>,
    /// Path MTU discovery, and a link in the middle that drops large frames.
    pub(crate) path_mtu: PathMtuScenario,
    /// The single disturbance, in a scenario with bounds on performance.
    pub(crate) calm: Option<Disturbance>,
    /// The host uses file offload.
    pub(crate) offload: bool,
    pub(crate) files: u64,
    /// Faults occur from the start until this time.
    pub(crate) fault_time: Duration,
    pub(crate) net: NetFaults,
    pub(crate) links: Links,
    pub(crate) hostile: AttackerConfig,
    pub(crate) disk: DiskFaults,
    pub(crate) rings: RingFaults,
    pub(crate) crowd: ClientLoad,
    /// Number of device resets.
    pub(crate) resets: u64,
    pub(crate) device: FileConfig,
    pub(crate) pending_transmits_max: usize,
    pub(crate) correct_timestamps: bool,
    pub(crate) server_tcp: TcpConfig,
    pub(crate) client_tcp: TcpConfig,
    pub(crate) backlog: usize,
    pub(crate) content: content::ContentServerConfig,
    /// Number of local ports of a client if they are few: it reuses one that the server may still
    /// have in TIME-WAIT.
    pub(crate) ports: Option<u16>,
    /// Number of times that the server's device silently loses a transmit context.
    pub(crate) lost_contexts: u64,
    /// Hosts answer resynchronization requests late and twice.
    pub(crate) late_answers: bool,
    /// Number of queues of the machine to which clients connect.
    pub(crate) queues: usize,
    /// Steering of flows to these queues. A run has its own, because it moves entries.
    pub(crate) steering: Arc<FlowSteering>,
    /// The node whose program terminates in the middle and starts again.
    pub(crate) terminates: Option<usize>,
    /// Sequence numbers and the like that begin just below their limits.
    pub(crate) numbers: Option<Numbers>,
    /// Milliseconds by which the nodes' clocks are ahead of simulated time: timestamps wrap at
    /// 2^32.
    pub(crate) clock_ahead_ms: u64,
}

impl Scenario {
    /// Returns the scenario of a seed.
    pub(crate) fn draw(seed: u64) -> Self {
        Self::of(seed, false)
    }

    /// Returns the scenario of a seed, with storage if `wanted` whatever the seed.
    pub(crate) fn of(seed: u64, wanted: bool) -> Self {
        let mut rng = Prng::new(seed ^ 0x5eed_0f0b);
        let r = &mut rng;
        let calm_net = r.chance(0.25);
        let calm_disk = r.chance(if calm_net { 0.5 } else { 0.3 });
        let mut links = draw_links(r, calm_net);
        draw_refusals(seed, &mut links);
        let net = if calm_net { NetFaults::default() } else { draw_net(r, links.runs) };
        let disk = draw_disk(r, calm_disk);
        let mut crowd = draw_crowd(r, calm_net);
        let resets = if calm_disk || !r.chance(0.2) { 0 } else { r.range(1, 3) };
        let hostile = if calm_net { AttackerConfig::default() } else { draw_hostile(r) };
        let rings = RingFaults {
            slots: 1 << r.range(2, 12),
            late: if r.chance(0.2) { r.unit() * 0.3 } else { 0.0 },
            late_max: Duration::from_micros(r.range(10, 5_000)),
        };
        let slots = if calm_net { rings.slots.max(64) } else { rings.slots };
        let tls = TlsScenario::draw(seed);
        let proxied =
            ProxyScenario::draw(seed, tls.is_some(), calm_net, links.runs).filter(|_| !wanted);
        if let Some(proxied) = &proxied {
            crowd.abort_bytes_max = proxied.abort_bytes_max;
        }
        let storage = StorageScenario::draw(seed, wanted, (calm_net, calm_disk), tls.is_some());
        let storage = storage.filter(|_| proxied.is_none());
        let mut scenario = Self {
            seed,
            storage: None,
            remote: None,
            uploads: None,
            calm: None,
            path_mtu: PathMtuScenario::default(),
            hand_over: HandOverScenario::draw(seed),
            quic: QuicScenario::draw(seed, calm_net).filter(|_| proxied.is_none()),
            patterns: PatternScenario::draw(seed).filter(|_| storage.is_none()),
            proxied,
            tls,
            offload: r.chance(0.75),
            files: r.range(1, 6),
            fault_time: Duration::from_millis(r.range(200, 4_000)),
            net,
            links,
            hostile,
            disk,
            rings: RingFaults { slots, ..rings },
            crowd,
            resets,
            device: draw_device(r),
            pending_transmits_max: if r.chance(0.1) { r.range(1, 16) as usize } else { 65_536 },
            correct_timestamps: r.chance(0.8),
            server_tcp: draw_tcp(r, true),
            client_tcp: draw_tcp(r, false),
            backlog: if r.chance(0.2) && !calm_net { r.range(1, 4) as usize } else { 64 },
            content: draw_content(r),
            clock_ahead_ms: if r.chance(0.3) { r.below(1 << 33) } else { 0 },
            ports: None,
            lost_contexts: 0,
            late_answers: false,
            numbers: None,
            queues: 1,
            steering: queues::steering(seed, 1),
            device_process: DeviceProcess::default(),
            terminates: None,
        };
        scenario.shape(storage);
        scenario.draw_files((calm_net, calm_disk));
        scenario.draw_additions(calm_net);
        scenario
    }

    /// Draws later additions to scenarios, each from a generator of its own.
    fn draw_additions(&mut self, calm_net: bool) {
        self.draw_oddities();
        self.draw_end();
        self.draw_queues();
        self.draw_path_mtu(calm_net);
        self.draw_bbr();
    }

    /// Draws path MTU discovery. Last, since a black hole is a fault of the network, on which other
    /// draws depend.
    fn draw_path_mtu(&mut self, calm: bool) {
        // With a cookie, the second segment of a request opens no connection before the first has
        // arrived: it is reset, again and again if the first is lost for its size.
        let sets_up = match &self.proxied {
            Some(proxied) => proxied.sets_up() || self.hand_over.set_up,
            None => self.hand_over.set_up,
        };
        // The user of a remote file gives up, and opens a new connection, before the time-outs of
        // the old one show a black hole.
        let local = self.remote.is_none();
        let may_drop = !calm && !sets_up && self.backlog >= 64 && local;
        let (mtu, time) = (self.links.mtu, self.fault_time);
        let path = PathMtuScenario::draw(self.seed, may_drop, mtu, time);
        let [server, other] = path.probing;
        (self.server_tcp.mtu_probing, self.client_tcp.mtu_probing) = (server, other);
        if let Some(proxied) = &mut self.proxied {
            proxied.tcp.mtu_probing = other;
        }
        self.path_mtu = path;
    }

    /// Draws the hosts with BBR from a generator of its own.
    fn draw_bbr(&mut self) {
        let r = &mut Prng::new(self.seed ^ 0xbb37_0f0b);
        let proxy = self.proxied.as_mut().map(|proxied| &mut proxied.tcp);
        for tcp in [&mut self.server_tcp, &mut self.client_tcp].into_iter().chain(proxy) {
            if r.chance(0.2) {
                tcp.algorithm = CongestionAlgorithm::Bbr;
            }
        }
    }

    /// Returns whether a host has BBR.
    pub(crate) fn has_bbr(&self) -> bool {
        let proxy = self.proxied.as_ref().map(|proxied| &proxied.tcp);
        let hosts = [&self.server_tcp, &self.client_tcp].into_iter().chain(proxy);
        hosts.into_iter().any(|tcp| tcp.algorithm == CongestionAlgorithm::Bbr)
    }

    /// Draws the number of queues. A program that terminates has one, and so have a server with
    /// remote files, and one of uploads, whose queues would share a quota.
    fn draw_queues(&mut self) {
        let one = self.terminates.is_some() || self.uploads.is_some() || self.remote.is_some();
        self.queues = match self.storage {
            _ if one => 1,
            Some(_) => queues::draw_of_target(self.seed),
            None => queues::draw(self.seed),
        };
    }

    /// Returns the number of queues of a machine.
    pub(crate) fn queues_of(&self, machine: usize) -> usize {
        // Bounds of performance hold for each queue; runs that measure them have one.
        if machine == self.front() && self.calm.is_none() { self.queues } else { 1 }
    }

    /// Draws few ports, old SYNs, first numbers and lost contexts from generators of their own: the
    /// rest of the scenario does not depend on these draws.
    fn draw_oddities(&mut self) {
        let r = &mut Prng::new(self.seed ^ 0x0dd5_0f0b);
        let (few, lose, late) = (r.chance(0.3), r.chance(0.7), r.chance(0.3));
        let local = self.storage.is_none() && self.remote.is_none();
        self.late_answers = late && local && self.tls.is_some();
        let http = self.storage.is_none() && self.proxied.is_none();
        // The numbers of an upload run ahead of the clock of first numbers (RFC 6528).
        let slow = self.tls.is_none() && self.quic.is_none() && self.uploads.is_none();
        if few && http && slow {
            self.ports = Some(r.range(2, 6) as u16);
        }
        let again = if self.ports.is_some() { 0.7 } else { 0.2 };
        if Prng::new(self.seed ^ 0x01d5_0f0b).chance(again) && !self.calm_net() {
            self.net.old_syns = 0.5;
        }
        // A client that reuses a port must begin above the sequence numbers of its old connection.
        self.numbers = Numbers::draw(self.seed, self.tls.as_ref()).filter(|_| self.ports.is_none());
        if let Some(ahead) = self.numbers.as_ref().and_then(Numbers::clock_ahead_ms) {
            self.clock_ahead_ms = ahead;
        }
        if lose && local && self.resets > 0 && !self.calm_net() {
            self.lost_contexts = r.range(2, 8);
        }
    }

    /// Draws the node whose program terminates, from a generator of its own. Not combined with
    /// device resets: after a reset no FIN or reset is sent for the connections that were in the
    /// device.
    fn draw_end(&mut self) {
        let r = &mut Prng::new(self.seed ^ 0x0e4d_0f0b);
        let (ends, front) = (r.chance(0.12), r.chance(0.6));
        // A target that cannot be reached is not told of the end.
        let unreachable = |remote: &RemoteScenario| remote.target_kills + remote.partitions > 0;
        if !ends || self.resets > 0 || self.remote.as_ref().is_some_and(unreachable) {
            return;
        }
        self.terminates = match &self.storage {
            Some(storage) => storage.kills_target().then_some(0),
            None => Some(if front { self.front() } else { 0 }),
        };
    }

    fn shape(&mut self, storage: Option<StorageScenario>) {
        if let Some(storage) = &storage {
            storage.shape(self);
        }
        self.storage = storage;
    }

    /// Draws remote files, or else uploads.
    fn draw_files(&mut self, calm: (bool, bool)) {
        if self.storage.is_some() || self.proxied.is_some() {
            return;
        }
        let remote = RemoteScenario::draw(self.seed, calm.0, self.tls.as_ref());
        if let Some(remote) = remote {
            remote.shape(self);
            self.remote = Some(remote);
            return;
        }
        let (clients, quic) = (self.crowd.clients, self.quic.is_some());
        let uploads = UploadScenario::draw(self.seed, clients, calm, quic);
        if let Some(uploads) = &uploads {
            (self.disk.write_error, self.disk.no_space) = (uploads.write_error, uploads.no_space);
        }
        self.uploads = uploads;
    }

    /// Returns whether nothing can fail between the nodes; no packet may then be sent twice.
    pub(crate) fn calm_net(&self) -> bool {
        !self.net.any()
            && self.proxied.as_ref().is_none_or(|proxied| !proxied.back.faults.any())
            && self.hostile.interval.is_none()
            && self.terminates.is_none()
            && self.uploads.as_ref().is_none_or(|uploads| uploads.kills == 0)
            && self.remote.as_ref().is_none_or(RemoteScenario::is_undisturbed)
            && self.links.queue_bytes_max == UNLIMITED
            && self.path_mtu.black_hole.is_none()
    }

    /// Returns whether every peer follows the protocols, packets are never damaged, and neither a
    /// disk nor a device fails. Packets may be lost, duplicated and reordered, and machines may
    /// stop.
    pub(crate) fn is_honest(&self) -> bool {
        let back = self.proxied.as_ref().map_or(0.0, |proxied| proxied.back.faults.corrupt);
        let disk = self.disk.any() || self.disk.write_error > 0.0 || self.disk.no_space > 0.0;
        self.net.corrupt == 0.0
            && back == 0.0
            && self.hostile.interval.is_none()
            && !disk
            && self.resets == 0
            && self.lost_contexts == 0
            && self.storage.as_ref().is_none_or(StorageScenario::is_honest)
            && self.uploads.as_ref().is_none_or(|uploads| uploads.kills == 0)
            // A request fails if the target cannot be reached for too long.
            && (self.remote.is_none() || self.calm_net())
    }

    /// Returns whether no queue can grow faster than the RTT estimate can follow: several
    /// connections over one slow link delay each other by more than a retransmission timeout. Nor
    /// may operations wait in the rings: a device that accepts few transmits leaves the others
    /// there, for as long as a disk read takes, and no echo reports that wait.
    pub(crate) fn is_quick(&self) -> bool {
        let alone = self.crowd.sessions_max == 1 && self.quic.is_none();
        // Users of namespaces transfer more over one link than all HTTP clients together.
        self.storage.is_none()
            && self.remote.is_none()
            && self.rings.late == 0.0
            && self.pending_transmits_max > 16
            && self.backlog >= 64
            && (alone || self.links.down_bytes_per_s > 100_000_000)
    }

    /// Returns the server's TCP port.
    pub(crate) const fn port(&self) -> u16 {
        match (&self.storage, &self.tls) {
            (Some(_), _) => storage::PORT,
            (None, Some(_)) => 443,
            (None, None) => 80,
        }
    }

    pub(crate) fn role(&self, node: usize) -> NodeRole {
        match node.checked_sub(self.crowd.clients + 1) {
            None if node > 0 => NodeRole::Client,
            Some(0) if self.remote.is_some() => NodeRole::Target,
            Some(0) => NodeRole::Proxy,
            None | Some(_) => NodeRole::Server,
        }
    }

    /// Returns the proxy's node, if there is a proxy.
    pub(crate) fn proxy(&self) -> Option<usize> {
        self.proxied.as_ref().map(|_| self.crowd.clients + 1)
    }

    /// Returns the node of the target with the server's files, if there is one.
    pub(crate) fn target(&self) -> Option<usize> {
        self.remote.as_ref().map(|_| self.crowd.clients + 1)
    }

    /// Returns the servers' nodes: node 0, and perhaps a second one behind the proxy.
    pub(crate) fn servers(&self) -> impl Iterator<Item = usize> + use<> {
        let all = self.proxied.as_ref().map_or(1, |proxied| proxied.servers);
        let second = self.crowd.clients + 2;
        [0, second].into_iter().take(all)
    }

    /// Returns the node to which clients connect.
    pub(crate) fn front(&self) -> usize {
        self.proxy().unwrap_or(0)
    }

    /// Returns whether one peer of a spliced pair may send more than the other has room for: the
    /// window that the proxy's host advertised stays valid, and data that does not fit is
    /// retransmitted.
    pub(crate) fn overshoots(&self) -> bool {
        let ends = self.client_tcp.receive_bytes_max.min(self.server_tcp.receive_bytes_max);
        self.proxied
            .as_ref()
            .is_some_and(|proxied| proxied.splice && proxied.tcp.receive_bytes_max > ends)
    }

    /// Returns whether the proxy may answer a ClientHello with an alert.
    pub(crate) fn proxy_alerts(&self) -> bool {
        self.proxied.as_ref().is_some_and(|proxied| proxied.mode == ProxyMode::Tls)
    }

    /// Returns the rules about patterns of a node.
    pub(crate) fn patterns_of(&self, node: usize) -> Option<&PatternScenario> {
        self.patterns.as_ref().filter(|_| node == self.front())
    }

    /// Returns the TLS engine of a node's device, if the scenario and the node use TLS.
    pub(crate) fn tls_device(&self, node: usize) -> Option<&TlsDevice> {
        let remote = self.remote.as_ref().and_then(|remote| remote.tls.as_ref());
        match self.role(node) {
            NodeRole::Server => self.tls.as_ref().or(remote).map(|tls| &tls.server),
            NodeRole::Client => self.tls.as_ref().map(|tls| &tls.client),
            NodeRole::Target => remote.map(|tls| &tls.client),
            NodeRole::Proxy => None,
        }
    }

    /// Returns whether the server's device sends files. With TLS it must also encrypt them.
    pub(crate) fn files_offloaded(&self) -> bool {
        self.offload && self.tls.as_ref().is_none_or(|tls| tls.server.encrypts())
    }

    /// Returns whether the server may truncate or refuse a response by its own fault.
    pub(crate) fn may_fail(&self) -> bool {
        self.disk.any()
            || self.resets > 0
            || self.device.files_max < 16
            || self.uploads.as_ref().is_some_and(UploadScenario::may_fail)
            || (self.remote.is_some() && !self.calm_net())
    }

    /// Returns whether a node may have an NVMe/TCP target, which keeps its namespaces open.
    pub(crate) fn has_namespaces(&self, node: usize) -> bool {
        self.storage.is_some() || self.role(node) == NodeRole::Target
    }

    /// Returns whether the server's machine is killed.
    pub(crate) fn kills_server(&self) -> bool {
        let kills = self.uploads.as_ref().map_or(0, |uploads| uploads.kills);
        kills + self.remote.as_ref().map_or(0, |remote| remote.server_kills) > 0
    }

    /// Returns whether the server's program may start again.
    pub(crate) fn server_restarts(&self) -> bool {
        self.terminates.is_some() || self.kills_server()
    }

    /// Returns whether clients may break off responses.
    pub(crate) fn clients_abort(&self) -> bool {
        self.crowd.abort > 0.0 || self.uploads.as_ref().is_some_and(UploadScenario::breaks)
    }

    /// Returns whether old copies of a client's packets may repeat its first request: with a SYN
    /// cookie, a copy of the first segment opens a connection.
    pub(crate) fn may_replay(&self) -> bool {
        let cookies = self.hand_over.set_up || self.backlog < 64;
        self.tls.is_none() && cookies && !self.calm_net()
    }
}

fn draw_links(r: &mut Prng, calm: bool) -> Links {
    let delay_us = [5, 50, 500, 5_000, 30_000][r.below(5) as usize];
    let runs = r.chance(0.2);
    let down_bytes_per_s = [1_250_000, 12_500_000, 125_000_000][r.below(3) as usize];
    // Without faults no queue drops frames either.
    let queue =
        if calm { UNLIMITED } else { [20_000, 100_000, 1 << 20, UNLIMITED][r.below(4) as usize] };
    Links {
        delay: Duration::from_micros(delay_us),
        jitter: Duration::from_micros(if r.chance(0.5) { r.below(delay_us / 2 + 1) } else { 0 }),
        port_bytes_per_s: [125_000_000, 1_250_000_000][r.below(2) as usize],
        down_bytes_per_s,
        queue_bytes_max: queue,
        mark_bytes: r.chance(0.3).then(|| r.range(3_000, 60_000)),
        mtu: if runs { 1500 } else { [1500, 1500, 1280, 9000][r.below(4) as usize] },
        runs,
        long_runs: false,
        full: 0.0,
    }
}

/// Draws the refusals of ports from a generator of its own: the rest of the scenario does not
/// depend on these draws.
fn draw_refusals(seed: u64, links: &mut Links) {
    let r = &mut Prng::new(seed ^ 0xf011_0f0b);
    links.long_runs = r.chance(0.5) && links.runs;
    links.full = if r.chance(0.25) { r.unit() * 0.5 } else { 0.0 };
}

/// Draws the faults of a network; each occurs in some scenarios only.
pub(crate) fn draw_net(r: &mut Prng, runs: bool) -> NetFaults {
    let p = |r: &mut Prng, on: f64, max: f64| {
        if r.chance(on) { r.unit() * r.unit() * max } else { 0.0 }
    };
    NetFaults {
        loss: p(r, 0.5, 0.25),
        burst: p(r, 0.3, 0.8),
        duplicate: p(r, 0.35, 0.3),
        corrupt: if runs { 0.0 } else { p(r, 0.35, 0.2) },
        reorder: p(r, 0.4, 0.5),
        reorder_max: Duration::from_micros(r.range(20, 20_000)),
        old_syns: 0.0,
        partitions: if r.chance(0.15) { r.range(1, 3) } else { 0 },
    }
}

fn draw_disk(r: &mut Prng, calm: bool) -> DiskFaults {
    let low = r.range(5, 200);
    let span = [100, 2_000, 30_000][r.below(3) as usize];
    let high = low + r.range(1, span);
    let mut disk = DiskFaults {
        latency: (Duration::from_micros(low), Duration::from_micros(high)),
        stall: 0.0,
        stall_max: Duration::from_millis(r.range(5, 3_000)),
        open_error: 0.0,
        read_error: 0.0,
        short_read: 0.0,
        write_error: 0.0,
        no_space: 0.0,
        changes: 0,
        depth: 1 << r.range(0, 7),
    };
    if !calm {
        let on = |r: &mut Prng, max: f64| if r.chance(0.25) { r.unit() * max } else { 0.0 };
        disk.stall = on(r, 0.2);
        disk.open_error = on(r, 0.3);
        disk.read_error = on(r, 0.1);
        disk.short_read = on(r, 0.1);
        disk.changes = if r.chance(0.3) { r.range(1, 12) } else { 0 };
    }
    disk
}

fn draw_crowd(r: &mut Prng, calm: bool) -> ClientLoad {
    let on = |r: &mut Prng, p: f64| if r.chance(p) { r.unit() * 0.6 } else { 0.0 };
    let clients_max = if r.chance(0.2) { 8 } else { 3 };
    ClientLoad {
        clients: r.range(1, clients_max) as usize,
        sessions_max: r.range(1, 4),
        requests_max: r.range(1, 5),
        slow: on(r, 0.25),
        dribble: on(r, 0.25),
        abort: if calm { 0.0 } else { on(r, 0.25) },
        abort_bytes_max: 200_000,
        vanish: u64::from(!calm && r.chance(0.1)),
        odd: r.unit() * 0.7,
        v6: [0.0, 0.5, 1.0][r.below(3) as usize],
    }
}

fn draw_hostile(r: &mut Prng) -> AttackerConfig {
    if !r.chance(0.25) {
        return AttackerConfig::default();
    }
    let interval = Duration::from_micros(r.range(100, 20_000));
    // At least one kind: 1 to 15 have a bit set.
    AttackerConfig { interval: Some(interval), kinds: u8::try_from(r.range(1, 15)).unwrap_or(1) }
}

fn draw_device(r: &mut Prng) -> FileConfig {
    let block_pages = 1 << r.below(5) as usize;
    FileConfig {
        memory_bytes_max: match r.below(4) {
            0 => 0,
            1 => r.below(1 << 20) as usize,
            _ => 16 << 20,
        },
        files_max: if r.chance(0.05) { r.range(1, 4) as u32 } else { 1024 },
        block_pages,
        reads_in_flight_max: 1 << r.below(6) as usize,
        read_ahead_blocks: r.below(5) as u32,
    }
}

/// Draws the TCP configuration of a host.
pub(crate) fn draw_tcp(r: &mut Prng, server: bool) -> TcpConfig {
    let big = r.chance(0.6);
    TcpConfig {
        algorithm: if r.chance(0.6) {
            CongestionAlgorithm::Cubic
        } else {
            CongestionAlgorithm::NewReno
        },
        receive_bytes_max: if big { 1 << 20 } else { r.range(4_096, 200_000) as u32 },
        send_bytes_max: if server && r.chance(0.3) {
            r.range(4_096, 100_000) as usize
        } else {
            1 << 20
        },
        initial_window: if r.chance(0.8) { 10 } else { r.range(1, 4) as u32 },
        sack: r.chance(0.85),
        timestamps: r.chance(0.85),
        ecn: r.chance(0.6),
        pacing: r.chance(0.8),
        time_wait: Duration::from_millis(r.range(100, 60_000)),
        ..TcpConfig::default()
    }
}

fn draw_content(r: &mut Prng) -> content::ContentServerConfig {
    let usual = content::ContentServerConfig::default();
    content::ContentServerConfig {
        seed: r.next_u64(),
        unix_epoch: Duration::from_secs(1_700_000_000),
        keepalive_timeout: Duration::from_secs(r.range(3, 60)),
        files_max: if r.chance(0.2) { r.range(1, 3) as usize } else { 64 },
        file_validity: Duration::from_millis(if r.chance(0.3) { r.below(100) } else { 1_000 }),
        requests_per_connection_max: if r.chance(0.1) { r.range(1, 4) as u32 } else { 1_000 },
        access_log: r.chance(0.1),
        ..usual
    }
}
