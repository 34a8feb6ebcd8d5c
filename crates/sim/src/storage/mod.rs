//! Scenarios with storage: their parameters, and the machines.
//!
//! In one of five scenarios without a proxy there is no HTTP: the server is an NVMe/TCP target, and
//! each client an initiator with a [`user`] of a namespace or of a part of one, which checks
//! everything it reads against a [`model`]. Devices place data and compute digests, in some
//! scenarios over TLS and in some with small tables. Machines are killed and start again; the
//! target's may lose unflushed data. One client may be a `rogue` that sends invalid PDUs, and one
//! a stranger that no subsystem admits. `crate::faults` draws the parameters with the rest of a
//! scenario.
//!
//! The integration tests of this crate use the model and the user, too.

pub(crate) mod machines;
pub mod model;
pub(crate) mod rogue;
pub mod user;

use std::sync::Arc;

use abi::l5o::ResyncMode;
use apps::pattern_rules::PatternRules;
use base::{Duration, Prng};

use crate::faults::Scenario;
use crate::patterns;
use user::{UserBlocks, UserLoad};

/// Chosen so that the seeds kept as regression tests have no storage.
const SALT: u64 = 0x0440_0297;
/// The target's TCP port.
pub(crate) const PORT: u16 = 4420;
/// Size of a table that never fills.
const ENOUGH: u32 = 4_096;
/// Approximate number of bytes that the requests of a user transfer.
const BUDGET_BYTES: u64 = 2 << 20;
/// Queue entries of an initiator beyond those that its user's requests need.
const SPARE_ENTRIES: u16 = 2;

/// Offloads that hosts use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeNvmeOffloads {
    /// All.
    All,
    /// All except TLS.
    Nvme,
    /// TLS only.
    Tls,
    /// Data digests without placement.
    Crc,
    /// Placement, but no digests on transmit.
    Copy,
    /// None.
    Software,
}

/// Offloads of a machine, and the sizes of its device's tables.
#[derive(Clone, Debug)]
pub(crate) struct StorageSide {
    mode: NodeNvmeOffloads,
    contexts_max: u32,
    buffers_max: u32,
    buffer_bytes_max: u64,
    threshold: u32,
    cache_bytes: u32,
    out_of_order: bool,
    resync: ResyncMode,
    messages_ahead_max: usize,
}

impl StorageSide {
    pub(crate) fn draw(r: &mut Prng) -> Self {
        let modes = [
            NodeNvmeOffloads::All,
            NodeNvmeOffloads::All,
            NodeNvmeOffloads::All,
            NodeNvmeOffloads::Nvme,
            NodeNvmeOffloads::Tls,
        ];
        let others = [NodeNvmeOffloads::Crc, NodeNvmeOffloads::Copy, NodeNvmeOffloads::Software];
        let modes = [&modes[..], &others].concat();
        let few = r.chance(0.2);
        Self {
            mode: modes[r.below(modes.len() as u64) as usize],
            contexts_max: if r.chance(0.15) { r.range(1, 6) as u32 } else { ENOUGH },
            buffers_max: if few { r.range(1, 8) as u32 } else { ENOUGH },
            buffer_bytes_max: if r.chance(0.1) { r.range(8_192, 300_000) } else { 256 << 20 },
            threshold: [1, 1, 512, 4_096][r.below(4) as usize],
            cache_bytes: if r.chance(0.2) { r.range(208, 2_000) as u32 } else { 4 << 20 },
            out_of_order: r.chance(0.8),
            resync: [ResyncMode::StreamScan, ResyncMode::NextHint, ResyncMode::Async]
                [r.below(3) as usize],
            messages_ahead_max: if r.chance(0.2) { r.range(1, 4) as usize } else { 64 },
        }
    }

    /// Forces all offload on or off.
    pub(crate) const fn force(&mut self, offload: bool) {
        self.mode = if offload { NodeNvmeOffloads::All } else { NodeNvmeOffloads::Software };
    }

    /// Returns whether the host uses any NVMe/TCP offload.
    pub(crate) const fn uses_nvme(&self) -> bool {
        !matches!(self.mode, NodeNvmeOffloads::Tls | NodeNvmeOffloads::Software)
    }

    const fn uses_tls(&self) -> bool {
        matches!(self.mode, NodeNvmeOffloads::All | NodeNvmeOffloads::Tls)
    }

    /// Returns whether all NVMe/TCP offloads are used, for all but the smallest transfers.
    pub(crate) const fn does_all(&self) -> bool {
        matches!(self.mode, NodeNvmeOffloads::All | NodeNvmeOffloads::Nvme) && self.threshold <= 512
    }

    /// Returns whether the device has room for every context and buffer.
    pub(crate) const fn has_room(&self) -> bool {
        let memory = self.buffer_bytes_max > 1 << 20 && self.messages_ahead_max > 4;
        self.contexts_max == ENOUGH && self.buffers_max == ENOUGH && memory
    }
}

/// Storage in a scenario.
#[derive(Clone, Debug)]
pub(crate) struct StorageScenario {
    /// Number of machines with a user.
    pub(crate) initiators: usize,
    /// One more initiator that is not admitted; one more that sends invalid PDUs.
    pub(crate) stranger: bool,
    pub(crate) rogue: bool,
    /// Header digests, and data digests.
    pub(crate) digests: (bool, bool),
    queues: u16,
    load: UserLoad,
    /// Requests of each user, before the last ones.
    requests: usize,
    /// Logarithm of the block size, and the size in bytes of a user's part.
    shift: u8,
    pub(crate) bytes: usize,
    /// All users have parts of one namespace.
    shared: bool,
    in_capsule_bytes: u32,
    maxh2cdata: u32,
    cpda: u8,
    mdts: u8,
    queues_max: u16,
    /// Memory of the target for writes, in units of the largest write.
    buffers: usize,
    keep_alive: Duration,
    command_timeout: Duration,
    /// Number of times that the target, or an initiator, is killed and starts again.
    pub(crate) target_kills: u64,
    pub(crate) initiator_kills: u64,
    /// Probability that the TCP checksum of a corrupted frame is updated to match.
    pub(crate) unseen: f64,
    write_error: f64,
    no_space: f64,
    resets: u64,
    /// Rules about patterns in the data of commands, of the target and of all users. Nothing is
    /// denied.
    pub(crate) rules: Option<Arc<PatternRules>>,
    pub(crate) target: StorageSide,
    pub(crate) initiator: StorageSide,
}

impl StorageScenario {
    /// Uses a generator of its own: scenarios without storage do not depend on these draws.
    pub(crate) fn draw(
        seed: u64,
        wanted: bool,
        (calm_net, calm_disk): (bool, bool),
        tls: bool,
    ) -> Option<Self> {
        let r = &mut Prng::new(seed ^ SALT);
        if !r.chance(0.2) && !wanted {
            return None;
        }
        let depth = 1 << r.below(9);
        // Many small requests, or few large ones.
        let shift = if r.chance(0.6) { 9 } else { 12 };
        let largest = 1_u64 << r.range(shift.into(), 20);
        let bytes_max = if depth > 32 { largest.min(32_768) } else { largest };
        let mean = bytes_max / u64::from(bytes_max.ilog2() - u32::from(shift) + 1) + 512;
        let most = (BUDGET_BYTES / mean).clamp(12, 300) as usize;
        let digests = (r.chance(0.6), r.chance(0.6));
        let protected = tls || digests == (true, true);
        let kills = !calm_net && r.chance(0.4);
        let errors = !calm_disk && r.chance(0.5);
        Some(Self {
            initiators: r.range(1, 3) as usize,
            stranger: r.chance(0.15),
            rogue: r.chance(0.2),
            digests,
            queues: r.range(1, 4) as u16,
            load: UserLoad { depth, bytes_max, changes: r.range(2, 8) },
            requests: most.max(depth.min(96)),
            shift,
            bytes: (256 << 10) << r.below(3),
            shared: r.chance(0.4),
            in_capsule_bytes: [8_192, 8_192, 16_384, 65_536][r.below(4) as usize],
            maxh2cdata: [4_096, 16_384, 131_072][r.below(3) as usize],
            cpda: if r.chance(0.3) { r.below(32) as u8 } else { 0 },
            mdts: (bytes_max.ilog2() as u8).saturating_sub(12).clamp(1, 8),
            queues_max: if r.chance(0.1) { 1 } else { 64 },
            buffers: 1 << r.below(7) as usize,
            keep_alive: Duration::from_secs(r.range(10, 30)),
            command_timeout: Duration::from_secs(60),
            target_kills: if kills { r.range(0, 2) } else { 0 },
            initiator_kills: if kills { r.range(0, 2) } else { 0 },
            unseen: if !calm_net && protected && r.chance(0.4) { r.unit() * 0.5 } else { 0.0 },
            write_error: if errors && r.chance(0.5) { r.unit() * 0.2 } else { 0.0 },
            no_space: if errors && r.chance(0.5) { r.unit() * 0.2 } else { 0.0 },
            resets: if r.chance(0.35) { r.range(1, 4) } else { 0 },
            rules: patterns::draw_storage_rules(seed),
            target: StorageSide::draw(r),
            initiator: StorageSide::draw(r),
        })
    }

    /// Adapts the rest of a scenario.
    pub(crate) fn shape(&self, scenario: &mut Scenario) {
        scenario.quic = None;
        (scenario.hand_over.set_up, scenario.hand_over.tear_down) = (false, false);
        let crowd = &mut scenario.crowd;
        crowd.clients = self.machines();
        // An initiator has about as many connections as a client has sessions.
        (crowd.sessions_max, crowd.vanish) = (4, 0);
        (crowd.abort, crowd.slow, crowd.dribble) = (0.0, 0.0, 0.0);
        scenario.resets = self.resets;
        scenario.backlog = scenario.backlog.max(8);
        let disk = &mut scenario.disk;
        (disk.write_error, disk.no_space, disk.changes) = (self.write_error, self.no_space, 0);
        if self.unseen > 0.0 && !scenario.links.runs {
            scenario.net.corrupt = scenario.net.corrupt.max(0.01);
        }
        if let Some(tls) = &mut scenario.tls {
            tls.server.used &= self.target.uses_tls();
            tls.client.used &= self.initiator.uses_tls();
            for (device, side) in
                [(&mut tls.server, &self.target), (&mut tls.client, &self.initiator)]
            {
                device.contexts_max = device.contexts_max.min(side.contexts_max);
            }
        }
    }

    /// Forces all offload on or off.
    pub(crate) const fn force(&mut self, offload: bool) {
        self.target.force(offload);
        self.initiator.force(offload);
    }

    /// Returns the numbers of kills, each with the first and the last node of its range.
    pub(crate) fn kills(&self) -> [(u64, (u64, u64)); 2] {
        [(self.target_kills, (0, 0)), (self.initiator_kills, (1, self.initiators as u64))]
    }

    /// Returns the number of machines that connect to the target.
    fn machines(&self) -> usize {
        self.initiators + usize::from(self.stranger) + usize::from(self.rogue)
    }

    /// Returns whether a machine has a user that is admitted.
    pub(crate) const fn is_user(&self, node: usize) -> bool {
        node > 0 && node <= self.initiators
    }

    /// Returns whether all machines are admitted, follow the protocol, and are never killed.
    pub(crate) const fn is_honest(&self) -> bool {
        let kills = self.target_kills + self.initiator_kills;
        !self.stranger && !self.rogue && kills == 0
    }

    /// Returns whether a machine is the rogue, which is the last one.
    pub(crate) fn is_rogue(&self, node: usize) -> bool {
        self.rogue && node == self.machines()
    }

    /// Returns the offloads of a machine.
    pub(crate) const fn side(&self, node: usize) -> &StorageSide {
        if node == 0 { &self.target } else { &self.initiator }
    }

    /// Returns paths and sizes of the users' namespaces, shared or one each, and of the rogue's.
    pub(crate) fn namespaces(&self) -> Vec<(String, usize)> {
        let users = if self.shared { 1 } else { self.initiators };
        let bytes = if self.shared { self.bytes * self.initiators } else { self.bytes };
        let mut all: Vec<_> = (1..=users).map(|node| (path(node), bytes)).collect();
        if self.rogue {
            all.push((String::from(rogue::PATH), rogue::BYTES));
        }
        all
    }

    /// Returns whether there is no rogue and no kills.
    pub(crate) const fn is_plain(&self) -> bool {
        self.target_kills + self.initiator_kills == 0 && !self.rogue
    }

    /// Returns the node whose namespace a user has a part of: the first one or its own.
    pub(crate) const fn owner(&self, node: usize) -> usize {
        if self.shared { 1 } else { node }
    }

    /// Returns the part of a user.
    fn part(&self, node: usize) -> UserBlocks {
        let blocks = self.bytes as u64 >> self.shift;
        let first = if self.shared { (node as u64).saturating_sub(1) * blocks } else { 0 };
        UserBlocks { shift: self.shift, first, blocks }
    }

    /// Returns whether the target is killed.
    pub(crate) const fn kills_target(&self) -> bool {
        self.target_kills > 0
    }

    /// Returns whether the results of requests depend on the seed only, whichever half does the
    /// work.
    pub(crate) fn is_certain(&self, scenario: &Scenario) -> bool {
        let disk = &scenario.disk;
        let fails = disk.read_error + disk.short_read + disk.write_error + disk.no_space;
        self.target_kills + self.initiator_kills == 0 && self.unseen == 0.0 && fails == 0.0
    }
}

/// Returns the path of a user's namespace.
pub(crate) fn path(node: usize) -> String {
    format!("ns{node}")
}
