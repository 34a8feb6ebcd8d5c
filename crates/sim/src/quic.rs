//! Scenarios with QUIC: their parameters, and the configuration of endpoints.
//!
//! In three of ten scenarios without a proxy the server also serves HTTP/3 over UDP, and each
//! client's machine fetches files with it ([`crate::h3`]) besides its sessions over TCP. Clients'
//! addresses change ([`crate::nat`]), keys are updated during transfers, and in some scenarios the
//! engines of both sides' devices have small tables. [`crate::faults`] draws the parameters with
//! the rest of a scenario; [`crate::tls`] configures handshakes.

use std::sync::Arc;

use abi::Refusal;
use abi::quic::QuicReorderBounds;
use base::{Duration, Prng};
use nic::QuicConfig;

use crate::faults::Scenario;
use crate::tls;

/// The server's UDP port.
pub(crate) const SERVER_PORT: u16 = 443;
/// The UDP port of every client.
pub(crate) const CLIENT_PORT: u16 = 40_000;
/// Salt of this module's generators.
const SALT: u64 = 0x0090_0000;
/// Size of a table that never fills.
const ENOUGH: u32 = 65_536;

/// A device's QUIC engine.
#[derive(Clone, Debug)]
pub(crate) struct QuicDevice {
    /// The host uses the engine.
    pub(crate) used: bool,
    entries_max: u32,
    waiting_max: u32,
    /// Limits of the reordering window; `None` without reordering in the device.
    reorder: Option<QuicReorderBounds>,
}

impl QuicDevice {
    fn draw(r: &mut Prng) -> Self {
        Self {
            used: r.chance(0.8),
            // Two entries for each connection.
            entries_max: if r.chance(0.2) { r.range(1, 6) as u32 } else { ENOUGH },
            waiting_max: if r.chance(0.2) { r.range(1, 16) as u32 } else { 16_384 },
            reorder: r.chance(0.75).then(|| QuicReorderBounds {
                packets: r.range(1, 200) as u16,
                bytes: if r.chance(0.3) { r.range(1, 10_000) as u32 } else { 256 * 1024 },
                time: Duration::from_micros(r.range(1, 5_000)),
            }),
        }
    }

    /// Returns whether the engine has an entry for every connection.
    pub(crate) const fn has_room(&self) -> bool {
        self.entries_max == ENOUGH
    }
}

/// QUIC in a scenario.
#[derive(Clone, Debug)]
pub(crate) struct QuicScenario {
    /// Index of the AEAD.
    pub(crate) suite: usize,
    /// Bytes after which a connection is offloaded.
    pub(crate) offload_bytes_min: u64,
    /// Number of concurrent handshakes at which the server begins to send Retry.
    handshakes_before_retry: usize,
    /// Number of NAT rebindings.
    pub(crate) rebindings: u64,
    /// Datagrams to the previous address are lost from then on.
    pub(crate) forgets: bool,
    /// Bytes that a client reads between two key updates; `None` without key updates.
    pub(crate) key_bytes: Option<u64>,
    /// Maximum number of connections of a client, besides one that lasts until after the faults.
    pub(crate) sessions_max: u64,
    idle_timeout: Duration,
    /// The host submits many datagrams at once (UDP segmentation offload).
    pub(crate) segmentation: bool,
    pub(crate) server: QuicDevice,
    pub(crate) client: QuicDevice,
}

impl QuicScenario {
    /// Uses a generator of its own: scenarios without QUIC do not depend on these draws.
    pub(crate) fn draw(seed: u64, calm: bool) -> Option<Self> {
        let r = &mut Prng::new(seed ^ SALT);
        if !r.chance(0.3) {
            return None;
        }
        Some(Self {
            suite: r.below(3) as usize,
            offload_bytes_min: [0, 3_000, 50_000, 256 * 1024][r.below(4) as usize],
            handshakes_before_retry: [0, 1, 1024, 1024][r.below(4) as usize],
            rebindings: if r.chance(0.5) { r.range(1, 6) } else { 0 },
            // A client that only waits for lost packets sends nothing from its new address.
            forgets: !calm && r.chance(0.3),
            key_bytes: r.chance(0.4).then(|| r.range(1_000, 200_000)),
            sessions_max: r.range(1, 3),
            // Longer than any live peer is ever silent, except during a disk stall.
            idle_timeout: Duration::from_secs(r.range(20, 40)),
            segmentation: r.chance(0.7),
            server: QuicDevice::draw(r),
            client: QuicDevice::draw(r),
        })
    }

    /// Forces all offload on or off.
    pub(crate) const fn force(&mut self, offload: bool) {
        (self.server.used, self.client.used) = (offload, offload);
    }

    fn device(&self, is_server: bool) -> &QuicDevice {
        if is_server { &self.server } else { &self.client }
    }

    fn endpoint(&self, is_server: bool, seed: [u8; 32]) -> quic::QuicEndpointConfig {
        // quinn-proto needs an epoch for its time; the value makes no difference.
        let epoch = io::clock::std_epoch();
        quic::QuicEndpointConfig {
            port: if is_server { SERVER_PORT } else { CLIENT_PORT },
            tls: is_server.then(|| tls::quic_server(self.suite)),
            handshakes_before_retry: self.handshakes_before_retry,
            offload_bytes_min: self.offload_bytes_min,
            reorder: self.device(is_server).reorder,
            idle_timeout: self.idle_timeout,
            ..quic::QuicEndpointConfig::new(Arc::new(crypto::Provider), epoch, seed)
        }
    }
}

/// Returns the QUIC engine of a node's device. Of the devices whose engine is not used, those of
/// odd seeds have one all the same.
pub(crate) fn engine(scenario: &Scenario, node: usize) -> Option<QuicConfig> {
    let device = scenario.quic.as_ref()?.device(node == 0);
    if !device.used && scenario.seed % 2 == 0 {
        return None;
    }
    Some(QuicConfig {
        entries_max: device.entries_max,
        waiting_datagrams_max: device.waiting_max,
        ..QuicConfig::new(Arc::new(crypto::Provider))
    })
}

/// Returns whether a node's host uses QUIC offload.
pub(crate) fn offload(scenario: &Scenario, node: usize) -> Result<(), Refusal> {
    let used = scenario.quic.as_ref().is_none_or(|quic| quic.device(node == 0).used);
    if used { Ok(()) } else { Err(Refusal::Disabled) }
}

/// Returns whether a node's host submits many datagrams at once.
pub(crate) fn segmentation(scenario: &Scenario) -> bool {
    scenario.quic.as_ref().is_some_and(|quic| quic.segmentation)
}

/// Returns the configuration of a node's endpoint, with randomness from the seed and from the
/// number of times that the node's program has started before.
pub(crate) fn config(
    scenario: &Scenario,
    node: usize,
    life: u32,
) -> Option<quic::QuicEndpointConfig> {
    let quic = scenario.quic.as_ref()?;
    let mut rng =
        Prng::new(scenario.seed ^ SALT ^ ((node as u64 + 1) << 48 ^ u64::from(life) << 40));
    let mut seed = [0; 32];
    for chunk in seed.chunks_exact_mut(8) {
        chunk.copy_from_slice(&rng.next_u64().to_le_bytes());
    }
    let unix_epoch = scenario.content.unix_epoch;
    Some(quic::QuicEndpointConfig { unix_epoch, ..quic.endpoint(node == 0, seed) })
}
