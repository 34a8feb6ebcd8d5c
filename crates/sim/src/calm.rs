//! Scenarios with a single disturbance, so that performance has a bound.
//!
//! Drawn besides the usual scenarios for one seed in eight ([`crate::check_seed`]) or on request
//! (`outboard-lab sim --calm`), by a generator of their own, so that the usual scenario of a seed
//! does not depend on them. Without loss, corruption, duplicates, resets and slow readers, each
//! client makes its transfers during the disturbance and closes. [`crate::checkers::performance`]
//! has the bounds.

use base::{Duration, Prng};
use host::MtuProbing;

use crate::faults::{AttackerConfig, DiskFaults, NetFaults, RingFaults, Scenario};
use crate::path_mtu::PathMtuScenario;

/// Salt of this module's generator.
const SALT: u64 = 0xca17_0f0b;
/// Ethernet header plus the largest packet of a path without jumbo frames.
const FRAME_BYTES: u64 = 1_514;
/// Rate of links that no sender here can fill, in bytes per second.
const FAST: u64 = 1_250_000_000;
/// Time for transfers that take a few round trips or disk reads.
const LONG: Duration = Duration::from_secs(30);

/// The single disturbance of a scenario.
#[derive(Clone, Debug)]
pub(crate) enum Disturbance {
    /// Some packets are delayed, by less than RACK's initial reordering window: a sender that has
    /// seen reordering must not mark any of them lost.
    Reordering,
    /// One link is slow and has a short queue, which a long transfer fills repeatedly.
    Bottleneck {
        /// Frames on the path and in the queue when both are full.
        frames: u64,
        /// Bytes of the transferred file.
        bytes: u64,
    },
    /// Transmits wait for a slow disk; in some scenarios a proxy is between client and server.
    SlowDisk,
}

impl Scenario {
    /// Returns the scenario of a seed with a single disturbance.
    pub(crate) fn calm(seed: u64) -> Self {
        // Most seeds have no storage.
        let usual = (0..64).map(|try_| Self::draw(seed ^ try_ << 40));
        let local = |usual: &Self| usual.storage.is_none() && usual.remote.is_none();
        let found = usual.into_iter().find(local);
        let Some(mut scenario) = found else { unreachable!("no seed without storage") };
        let r = &mut Prng::new(seed ^ SALT);
        scenario.calm_down(r);
        match r.below(3) {
            0 => scenario.reorder(r),
            1 => scenario.narrow(r),
            _ => scenario.slow_down_disk(r),
        }
        scenario
    }

    /// Returns the size in bytes of every file, if the disturbance prescribes one.
    pub(crate) fn file_bytes(&self) -> Option<u64> {
        match self.calm {
            Some(Disturbance::Bottleneck { bytes, .. }) => Some(bytes),
            Some(Disturbance::Reordering) => Some(2_000_000),
            Some(Disturbance::SlowDisk) | None => None,
        }
    }

    /// Removes every fault.
    fn calm_down(&mut self, r: &mut Prng) {
        self.net = NetFaults::default();
        self.patterns = None;
        self.hostile = AttackerConfig::default();
        self.disk = DiskFaults {
            latency: (Duration::from_micros(20), Duration::from_micros(200)),
            stall: 0.0,
            open_error: 0.0,
            read_error: 0.0,
            short_read: 0.0,
            write_error: 0.0,
            no_space: 0.0,
            changes: 0,
            depth: 64,
            ..self.disk.clone()
        };
        self.rings = RingFaults { slots: 4_096, late: 0.0, late_max: Duration::ZERO };
        let crowd = &mut self.crowd;
        (crowd.clients, crowd.sessions_max, crowd.requests_max) = (1, 1, 1);
        (crowd.slow, crowd.dribble, crowd.abort, crowd.odd) = (0.0, 0.0, 0.0, 0.0);
        crowd.vanish = 0;
        (self.resets, self.lost_contexts, self.terminates) = (0, 0, None);
        (self.ports, self.late_answers, self.quic, self.uploads) = (None, false, None, None);
        self.pending_transmits_max = 65_536;
        self.path_mtu = PathMtuScenario::default();
        self.backlog = 64;
        self.device.files_max = 1_024;
        self.device.memory_bytes_max = self.device.memory_bytes_max.max(1 << 20);
        self.correct_timestamps = true;
        self.fault_time = LONG;
        let links = &mut self.links;
        (links.port_bytes_per_s, links.down_bytes_per_s) = (FAST, FAST);
        links.jitter = Duration::ZERO;
        links.queue_bytes_max = u64::MAX;
        links.mark_bytes = None;
        (links.mtu, links.runs, links.long_runs, links.full) = (1_500, false, false, 0.0);
        let hystart = r.chance(0.5);
        for tcp in [&mut self.server_tcp, &mut self.client_tcp] {
            (tcp.sack, tcp.hystart, tcp.initial_window) = (true, hystart, 10);
            (tcp.receive_bytes_max, tcp.send_bytes_max) = (1 << 20, 1 << 20);
            tcp.mtu_probing = MtuProbing::default();
        }
    }

    fn reorder(&mut self, r: &mut Prng) {
        let round_trip_us = [4_000, 10_000, 40_000][r.below(3) as usize];
        self.links.delay = Duration::from_micros(round_trip_us / 2);
        self.net.reorder = 0.03 + r.unit() * 0.12;
        // RFC 8985 section 6.2: the window begins at a quarter of the minimum RTT. Both a segment
        // and the acknowledgment that reports it may be delayed.
        self.net.reorder_max =
            Duration::from_micros(r.range(round_trip_us / 24, round_trip_us / 12));
        self.client_tcp.receive_bytes_max = r.range(128 * 1024, 512 * 1024) as u32;
        self.proxied = None;
        self.calm = Some(Disturbance::Reordering);
    }

    fn narrow(&mut self, r: &mut Prng) {
        let (rate, delay_us) =
            [(1_250_000, 2_000), (1_250_000, 15_000), (12_500_000, 500), (12_500_000, 2_000)]
                [r.below(4) as usize];
        self.links.delay = Duration::from_micros(delay_us);
        self.links.down_bytes_per_s = rate;
        let frames = r.range(50, 80);
        let path = rate * 2 * delay_us / 1_000_000;
        self.links.queue_bytes_max = frames * FRAME_BYTES - path;
        self.client_tcp.receive_bytes_max = 4 << 20;
        let bytes = frames * 70_000;
        self.fault_time = Duration::from_millis(2_000 + 2_000 * bytes / rate);
        self.proxied = None;
        self.calm = Some(Disturbance::Bottleneck { frames, bytes });
    }

    fn slow_down_disk(&mut self, r: &mut Prng) {
        let low = r.range(5, 100);
        let high = low + r.range(1, 100);
        self.disk.latency = (Duration::from_millis(low), Duration::from_millis(high));
        self.links.delay = Duration::from_micros([5, 50, 500, 5_000, 20_000][r.below(5) as usize]);
        self.crowd.clients = r.range(1, 3) as usize;
        (self.crowd.sessions_max, self.crowd.requests_max) = (2, 4);
        (self.server_tcp.timestamps, self.client_tcp.timestamps) = (true, true);
        if let Some(proxied) = &mut self.proxied {
            proxied.back.faults = NetFaults::default();
            proxied.server_stops = false;
            proxied.tcp.timestamps = true;
            proxied.tcp.receive_bytes_max = 1 << 20;
        }
        self.calm = Some(Disturbance::SlowDisk);
    }
}
