//! Worlds with QUIC: what a seed says about them, and the endpoints that they make.
//!
//! In three worlds of ten without a proxy the server speaks HTTP/3 besides, on UDP, and each
//! client's machine fetches files by it ([`crate::h3`]) while its sessions over TCP go on.
//! Addresses of clients change on the way ([`crate::nat`]), keys change in mid-transfer, and the
//! engines of both sides' devices have little room in some worlds. [`crate::faults`] draws this
//! with the rest of a scenario; handshakes are [`crate::tls`]'s.

use std::sync::Arc;

use abi::Refusal;
use abi::quic::Reorder;
use base::{Duration, Prng};
use nic::QuicConfig;

use crate::faults::Scenario;
use crate::tls;

/// The server's port.
pub(crate) const SERVER_PORT: u16 = 443;
/// Every client's port.
pub(crate) const CLIENT_PORT: u16 = 40_000;
/// Of the numbers that are drawn here.
const SALT: u64 = 0x0090_0000;
/// Entries of a table that is never full.
const ENOUGH: u32 = 65_536;

/// A device's engine for QUIC.
#[derive(Clone, Debug)]
pub(crate) struct QuicDevice {
    /// The host asks for it.
    pub(crate) used: bool,
    entries_max: u32,
    waiting_max: u32,
    /// How long packets wait for those before them, where they do.
    reorder: Option<Reorder>,
}

impl QuicDevice {
    fn draw(r: &mut Prng) -> Self {
        Self {
            used: r.chance(0.8),
            // Two for each connection.
            entries_max: if r.chance(0.2) { r.range(1, 6) as u32 } else { ENOUGH },
            waiting_max: if r.chance(0.2) { r.range(1, 16) as u32 } else { 16_384 },
            reorder: r.chance(0.75).then(|| Reorder {
                packets: r.range(1, 200) as u16,
                bytes: if r.chance(0.3) { r.range(1, 10_000) as u32 } else { 256 * 1024 },
                time: Duration::from_micros(r.range(1, 5_000)),
            }),
        }
    }

    /// Whether every connection that is asked for gets its place.
    pub(crate) const fn has_room(&self) -> bool {
        self.entries_max == ENOUGH
    }
}

/// A world that speaks QUIC.
#[derive(Clone, Debug)]
pub(crate) struct Quic {
    /// Which AEAD.
    pub(crate) suite: usize,
    /// Bytes from which on the device is asked.
    pub(crate) offload_bytes_min: u64,
    /// Handshakes at one time from which on addresses have to be proved.
    handshakes_before_retry: usize,
    /// Times that a client gets another address.
    pub(crate) rebindings: u64,
    /// What is sent to the address before is lost from then on.
    pub(crate) forgets: bool,
    /// Bytes that a client reads between two updates of keys, where it asks for them.
    pub(crate) key_bytes: Option<u64>,
    /// Connections of a client, besides one that lasts until after the faults.
    pub(crate) sessions_max: u64,
    idle_timeout: Duration,
    /// The host gives its device many datagrams at once.
    pub(crate) segmentation: bool,
    pub(crate) server: QuicDevice,
    pub(crate) client: QuicDevice,
}

impl Quic {
    /// From numbers of its own: other worlds are the same as if there were none with QUIC.
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
            // A client that only waits for what does not come says nothing from its new address.
            forgets: !calm && r.chance(0.3),
            key_bytes: r.chance(0.4).then(|| r.range(1_000, 200_000)),
            sessions_max: r.range(1, 3),
            // Longer than anybody who is alive says nothing, but for a disk that stalls.
            idle_timeout: Duration::from_secs(r.range(20, 40)),
            segmentation: r.chance(0.7),
            server: QuicDevice::draw(r),
            client: QuicDevice::draw(r),
        })
    }

    /// With all offload, or with none, whatever the seed said.
    pub(crate) const fn force(&mut self, offload: bool) {
        (self.server.used, self.client.used) = (offload, offload);
    }

    fn device(&self, is_server: bool) -> &QuicDevice {
        if is_server { &self.server } else { &self.client }
    }

    fn endpoint(&self, is_server: bool, seed: [u8; 32]) -> quic::Config {
        // quinn-proto's time has to begin somewhere: what it is makes no difference.
        let epoch = io::clock::std_epoch();
        quic::Config {
            port: if is_server { SERVER_PORT } else { CLIENT_PORT },
            tls: is_server.then(|| tls::quic_server(self.suite)),
            handshakes_before_retry: self.handshakes_before_retry,
            offload_bytes_min: self.offload_bytes_min,
            reorder: self.device(is_server).reorder,
            idle_timeout: self.idle_timeout,
            ..quic::Config::new(Arc::new(crypto::Provider), epoch, seed)
        }
    }
}

/// A node's engine for QUIC. Where it is not used, every other device has it nevertheless.
pub(crate) fn engine(scenario: &Scenario, node: usize) -> Option<QuicConfig> {
    let device = scenario.quic.as_ref()?.device(node == 0);
    if !device.used && scenario.seed % 2 == 0 {
        return None;
    }
    Some(QuicConfig {
        entries_max: device.entries_max,
        waiting_max: device.waiting_max,
        ..QuicConfig::new(Arc::new(crypto::Provider))
    })
}

/// Whether a node's host has its device do QUIC.
pub(crate) fn offload(scenario: &Scenario, node: usize) -> Result<(), Refusal> {
    let used = scenario.quic.as_ref().is_none_or(|quic| quic.device(node == 0).used);
    if used { Ok(()) } else { Err(Refusal::Disabled) }
}

/// Whether a node's host gives its device many datagrams at once.
pub(crate) fn segmentation(scenario: &Scenario) -> bool {
    scenario.quic.as_ref().is_some_and(|quic| quic.segmentation)
}

/// A node's endpoint. Its randomness is the seed's.
pub(crate) fn config(scenario: &Scenario, node: usize) -> Option<quic::Config> {
    let quic = scenario.quic.as_ref()?;
    let mut rng = Prng::new(scenario.seed ^ SALT ^ ((node as u64 + 1) << 48));
    let mut seed = [0; 32];
    for chunk in seed.chunks_exact_mut(8) {
        chunk.copy_from_slice(&rng.next_u64().to_le_bytes());
    }
    let unix_epoch = scenario.content.unix_epoch;
    Some(quic::Config { unix_epoch, ..quic.endpoint(node == 0, seed) })
}
