//! Worlds of storage: what a seed says about them, and the machines that it makes.
//!
//! In one world of five without a proxy nobody speaks HTTP: the server is a target of NVMe over
//! TCP, and each client an initiator with a [`user`] of a namespace, or of a part of one, who holds
//! everything that it gets against a [`model`]. Devices place data and do digests, over TLS in some
//! worlds; their tables are small in some. Machines are killed and start again, the target's with
//! what was not flushed lost or kept; one client may be a [`rogue`] that sends what no initiator
//! would, and one a stranger whom no subsystem admits. [`crate::faults`] draws this with the rest
//! of a scenario.
//!
//! Model and user serve the tests of this crate, too.

pub(crate) mod machines;
pub mod model;
pub(crate) mod rogue;
pub mod user;

use abi::l5o::ResyncMode;
use base::{Duration, Prng};

use crate::faults::Scenario;
use user::{Load, Part};

/// Chosen so that no seed that is kept for what it once found is one of these.
const SALT: u64 = 0x0440_0297;
/// The target's port.
pub(crate) const PORT: u16 = 4420;
/// Entries of a table that is never full.
const ENOUGH: u32 = 4_096;
/// Bytes that the requests of a user move, about.
const BUDGET_BYTES: u64 = 2 << 20;
/// Commands that an initiator has open at one time beyond those of its user.
const SPARE_ENTRIES: u16 = 2;

/// What hosts and devices do between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Devices do all they can.
    All,
    /// As without TLS's offload.
    Nvme,
    /// TLS's offload only.
    Tls,
    /// Digests, and no placement.
    Crc,
    /// Placement, and no digests that are sent.
    Copy,
    /// Hosts do everything.
    Software,
}

/// A machine's part in that, and its device's tables.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    mode: Mode,
    contexts_max: u32,
    buffers_max: u32,
    buffer_bytes_max: u64,
    threshold: u32,
    cache_bytes: u32,
    out_of_order: bool,
    resync: ResyncMode,
    messages_ahead_max: usize,
}

impl Side {
    fn draw(r: &mut Prng) -> Self {
        let modes = [Mode::All, Mode::All, Mode::All, Mode::Nvme, Mode::Tls];
        let others = [Mode::Crc, Mode::Copy, Mode::Software];
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

    /// Whether its host has its device do something for NVMe over TCP.
    pub(crate) const fn uses_nvme(&self) -> bool {
        !matches!(self.mode, Mode::Tls | Mode::Software)
    }

    const fn uses_tls(&self) -> bool {
        matches!(self.mode, Mode::All | Mode::Tls)
    }

    /// Whether it does all that it can.
    pub(crate) const fn does_all(&self) -> bool {
        matches!(self.mode, Mode::All | Mode::Nvme) && self.threshold <= 512
    }

    /// Whether every context and every buffer that is asked for is had.
    pub(crate) const fn has_room(&self) -> bool {
        let memory = self.buffer_bytes_max > 1 << 20 && self.messages_ahead_max > 4;
        self.contexts_max == ENOUGH && self.buffers_max == ENOUGH && memory
    }
}

/// A world of storage.
#[derive(Clone, Debug)]
pub(crate) struct Storage {
    /// Machines with a user.
    pub(crate) initiators: usize,
    /// One that is not admitted; one that sends nonsense.
    pub(crate) stranger: bool,
    pub(crate) rogue: bool,
    /// Digests of headers, and of data.
    pub(crate) digests: (bool, bool),
    queues: u16,
    load: Load,
    /// Requests of each user, before the last ones.
    requests: usize,
    /// Bytes of a block, as a power of two, and of a user's part.
    shift: u8,
    pub(crate) bytes: usize,
    /// All users have parts of one namespace.
    shared: bool,
    in_capsule_bytes: u32,
    maxh2cdata: u32,
    cpda: u8,
    mdts: u8,
    queues_max: u16,
    /// Memory of the target for writes, in largest writes.
    buffers: usize,
    keep_alive: Duration,
    command_timeout: Duration,
    /// Times that the target, or an initiator, is killed and starts again.
    pub(crate) target_kills: u64,
    pub(crate) initiator_kills: u64,
    /// Frames whose corruption TCP's checksum does not see, of those that are corrupted.
    pub(crate) unseen: f64,
    write_error: f64,
    no_space: f64,
    resets: u64,
    pub(crate) target: Side,
    pub(crate) initiator: Side,
}

impl Storage {
    /// From numbers of its own: other worlds are the same as if there were none of these.
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
        // Many small ones, or few large ones.
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
            load: Load { depth, bytes_max, changes: r.range(2, 8) },
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
            target: Side::draw(r),
            initiator: Side::draw(r),
        })
    }

    /// Makes the rest of a scenario fit.
    pub(crate) fn shape(&self, scenario: &mut Scenario) {
        scenario.quic = None;
        (scenario.hand_over.set_up, scenario.hand_over.tear_down) = (false, false);
        let crowd = &mut scenario.crowd;
        crowd.clients = self.machines();
        // Its connections are as many as somebody's sessions would be.
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

    /// With all offload, or with none, whatever the seed said.
    pub(crate) const fn force(&mut self, offload: bool) {
        let mode = if offload { Mode::All } else { Mode::Software };
        (self.target.mode, self.initiator.mode) = (mode, mode);
    }

    /// How often machines are killed: of which, the first and the last.
    pub(crate) fn kills(&self) -> [(u64, (u64, u64)); 2] {
        [(self.target_kills, (0, 0)), (self.initiator_kills, (1, self.initiators as u64))]
    }

    /// Machines that connect to the target.
    fn machines(&self) -> usize {
        self.initiators + usize::from(self.stranger) + usize::from(self.rogue)
    }

    /// Whether a machine has a user who may do what it asks for.
    pub(crate) const fn is_user(&self, node: usize) -> bool {
        node > 0 && node <= self.initiators
    }

    /// Whether all machines are admitted, keep to the protocol, and are never killed.
    pub(crate) const fn is_honest(&self) -> bool {
        let kills = self.target_kills + self.initiator_kills;
        !self.stranger && !self.rogue && kills == 0
    }

    /// Whether a machine is the rogue's: the last one, if any.
    pub(crate) fn is_rogue(&self, node: usize) -> bool {
        self.rogue && node == self.machines()
    }

    /// The part of a machine's host and device.
    pub(crate) const fn side(&self, node: usize) -> &Side {
        if node == 0 { &self.target } else { &self.initiator }
    }

    /// The namespaces that users share or have each, and the rogue's.
    pub(crate) fn namespaces(&self) -> Vec<(String, usize)> {
        let users = if self.shared { 1 } else { self.initiators };
        let bytes = if self.shared { self.bytes * self.initiators } else { self.bytes };
        let mut all: Vec<_> = (1..=users).map(|node| (path(node), bytes)).collect();
        if self.rogue {
            all.push((String::from(rogue::PATH), rogue::BYTES));
        }
        all
    }

    /// Whether nobody else is there, and nobody is killed.
    pub(crate) const fn is_plain(&self) -> bool {
        self.target_kills + self.initiator_kills == 0 && !self.rogue
    }

    /// Whose namespace a user has a part of: the first one's, or its own.
    pub(crate) const fn owner(&self, node: usize) -> usize {
        if self.shared { 1 } else { node }
    }

    /// A user's part.
    fn part(&self, node: usize) -> Part {
        let blocks = self.bytes as u64 >> self.shift;
        let first = if self.shared { (node as u64).saturating_sub(1) * blocks } else { 0 };
        Part { shift: self.shift, first, blocks }
    }

    /// Whether the target is killed.
    pub(crate) const fn kills_target(&self) -> bool {
        self.target_kills > 0
    }

    /// Whether what requests come to depends on nothing but the seed, whoever does the work.
    pub(crate) fn is_certain(&self, scenario: &Scenario) -> bool {
        let disk = &scenario.disk;
        let fails = disk.read_error + disk.short_read + disk.write_error + disk.no_space;
        self.target_kills + self.initiator_kills == 0 && self.unseen == 0.0 && fails == 0.0
    }
}

/// The namespace of a user.
pub(crate) fn path(node: usize) -> String {
    format!("ns{node}")
}
