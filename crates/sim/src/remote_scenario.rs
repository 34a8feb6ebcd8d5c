//! Scenarios in which the content server's files lie on a namespace of another machine: their
//! parameters, and the machines.
//!
//! In one of seven scenarios with neither a proxy, storage nor uploads, the server's files are in
//! an ext4 file system ([`crate::ext4_image`]) on an NVMe/TCP namespace. One more machine has the
//! target; the server's machine is an initiator besides ([`apps::remote`]). The connection between
//! them uses TLS in some scenarios, whether the clients do or not. Both machines are killed and
//! start again, and the target's is disconnected. [`crate::faults`] draws the parameters with the
//! rest of a scenario.

use std::sync::Arc;

use abi::Refusal;
use apps::content::ContentServerConfig;
use apps::nvme::initiator::{BackOff, InitiatorConfig};
use apps::nvme::target::{NamespaceConfig, NvmeTarget, NvmeTargetConfig, SubsystemConfig};
use apps::remote::{RemoteContentServer, RemoteFilesConfig, RemoteVolumeConfig};
use base::{Duration, Instant, Prng};
use host::{ContentSource, Host, HostConfig, ListenConfig};
use nic::{Device, DeviceConfig, L5oConfig};
use wire::Endpoint;
use wire::nvme::nqn::Nqn;

use crate::faults::{Scenario, TlsScenario};
use crate::machines::{address, addresses, capabilities, device_base, remote_device};
use crate::net::SimNet;
use crate::node::{App, SimNode};
use crate::numbers;
use crate::storage::{PORT, StorageSide, machines};
use crate::tls;

/// Path of the namespace on the target's disk.
pub(crate) const NAMESPACE: &str = "site";
/// Chosen so that the seeds kept as regression tests have no remote files.
const SALT: u64 = 0x03e3_07e0_0015;

/// Remote files in a scenario.
#[derive(Clone, Debug)]
pub(crate) struct RemoteScenario {
    /// TLS between the server and the target: that of the scenario, or of its own.
    pub(crate) tls: Option<TlsScenario>,
    /// Header digests, and data digests.
    digests: (bool, bool),
    queues: u16,
    /// Logarithm of the block size.
    shift: u8,
    cache_bytes: usize,
    read_ahead_units: u64,
    fetches_max: usize,
    validity: Duration,
    keep_alive: Duration,
    /// Time for which requests wait for a target.
    patience: Duration,
    /// The target's device reads the namespace.
    offload: bool,
    pub(crate) server: StorageSide,
    pub(crate) target: StorageSide,
    /// Numbers of times that the server's and the target's machine is killed and starts again.
    pub(crate) server_kills: u64,
    pub(crate) target_kills: u64,
    /// Number of times that the target is disconnected for a while.
    pub(crate) partitions: u64,
}

impl RemoteScenario {
    /// Uses a generator of its own: scenarios without remote files do not depend on these draws.
    pub(crate) fn draw(seed: u64, calm_net: bool, tls: Option<&TlsScenario>) -> Option<Self> {
        let r = &mut Prng::new(seed ^ SALT);
        if !r.chance(0.15) {
            return None;
        }
        let own = TlsScenario::draw_some(r);
        let kills = |r: &mut Prng| if !calm_net && r.chance(0.35) { r.range(1, 2) } else { 0 };
        Some(Self {
            tls: r.chance(0.5).then(|| tls.cloned().unwrap_or(own)),
            digests: (r.chance(0.6), r.chance(0.6)),
            queues: r.range(1, 4) as u16,
            shift: if r.chance(0.5) { 9 } else { 12 },
            cache_bytes: (512 << 10) << r.below(3),
            read_ahead_units: r.below(6),
            fetches_max: 1 << r.below(7) as usize,
            validity: Duration::from_millis(if r.chance(0.3) { 0 } else { r.below(1_500) }),
            keep_alive: Duration::from_secs(r.range(10, 30)),
            patience: match !calm_net && r.chance(0.5) {
                true => Duration::from_millis(r.range(1_500, 4_000)),
                false => Duration::from_secs(10),
            },
            offload: r.chance(0.75),
            server: StorageSide::draw(r),
            target: StorageSide::draw(r),
            server_kills: kills(r),
            target_kills: kills(r),
            partitions: if !calm_net && r.chance(0.3) { r.range(1, 2) } else { 0 },
        })
    }

    /// Adapts the rest of a scenario.
    pub(crate) fn shape(&self, scenario: &mut Scenario) {
        // The device of the server sends no files of its own disk, and these do not change.
        scenario.offload = false;
        scenario.disk.changes = 0;
        scenario.patterns = None;
        scenario.backlog = scenario.backlog.max(8);
    }

    /// Forces all offload of NVMe/TCP on or off.
    pub(crate) const fn force(&mut self, offload: bool) {
        self.server.force(offload);
        self.target.force(offload);
    }

    /// Returns whether neither machine is killed or disconnected.
    pub(crate) const fn is_undisturbed(&self) -> bool {
        self.server_kills + self.target_kills + self.partitions == 0
    }

    /// Returns the engine of the server's device.
    pub(crate) fn server_engine(&self, scenario: &Scenario) -> L5oConfig {
        machines::l5o(&self.server, scenario.tls_device(0))
    }

    /// Lets the server's host take its files from the application.
    pub(crate) fn configure_host(&self, host: &mut HostConfig) {
        host.content = ContentSource::Application;
        host.nvme_tcp_offload =
            if self.server.uses_nvme() { Ok(()) } else { Err(Refusal::Disabled) };
    }

    /// Builds the server on its host.
    pub(crate) fn server(
        &self,
        scenario: &Scenario,
        content: ContentServerConfig,
        now: Instant,
        host: &mut Host,
    ) -> RemoteContentServer {
        let back_off =
            BackOff { max: Duration::from_secs(2), ctrl_loss: None, ..BackOff::default() };
        let (header_digest, data_digest) = self.digests;
        let initiator = InitiatorConfig {
            header_digest,
            data_digest,
            queues: self.queues,
            keep_alive: self.keep_alive,
            back_off,
            tls: self.tls.as_ref().map(|tls| tls::client(tls, 0, 0)),
            ..InitiatorConfig::new(name("host"), [1; 16], name("disk"), Arc::new(crypto::Provider))
        };
        let target = scenario.target().unwrap_or(0);
        let v6 = Prng::new(scenario.seed ^ SALT).chance(scenario.crowd.v6);
        let remote = Endpoint { addr: address(target, v6), port: PORT };
        let volume = RemoteVolumeConfig { name: String::new(), initiator, remote, nsid: 1 };
        let files = RemoteFilesConfig {
            volumes: vec![volume],
            cache_bytes_max: self.cache_bytes,
            read_ahead_units: self.read_ahead_units,
            fetches_max: self.fetches_max,
            validity: self.validity,
            patience: self.patience,
            ..RemoteFilesConfig::default()
        };
        match RemoteContentServer::new(files, content, now, host) {
            Ok(server) => server,
            Err(error) => unreachable!("no other listener: {error}"),
        }
    }

    /// Builds the target's machine.
    pub(crate) fn target(
        &self,
        node: usize,
        scenario: &Scenario,
        net: &SimNet,
        rng: &mut Prng,
    ) -> SimNode {
        let config = DeviceConfig {
            file: self.offload.then(|| scenario.device.clone()),
            l5o: Some(machines::l5o(&self.target, self.tls.as_ref().map(|tls| &tls.client))),
            pending_transmits_max: scenario.pending_transmits_max,
            correct_timestamps: scenario.correct_timestamps,
            rss_seed: rng.next_u64(),
            ..device_base(scenario, node)
        };
        let device = Device::new(config, net.link_caps());
        let ahead = Duration::from_millis(scenario.clock_ahead_ms.wrapping_mul(node as u64 + 1));
        let used = |used: bool| if used { Ok(()) } else { Err(Refusal::Disabled) };
        let config = HostConfig {
            addrs: addresses(node),
            file_offload: used(self.offload),
            tls_offload: used(self.tls.as_ref().is_none_or(|tls| tls.client.used)),
            nvme_tcp_offload: used(self.target.uses_nvme()),
            tcp: numbers::tcp(scenario, node, &scenario.server_tcp, ahead),
            ..HostConfig::default()
        };
        let mut host = Host::new(config, &capabilities(scenario, node, &device), rng.next_u64());
        let namespace = NamespaceConfig {
            block_shift: self.shift,
            ..NamespaceConfig::new(&name("disk"), NAMESPACE)
        };
        let subsystem = SubsystemConfig {
            nqn: name("disk"),
            serial: String::from("1"),
            hosts: Some(vec![name("host")]),
            namespaces: vec![namespace],
        };
        let config = NvmeTargetConfig {
            listen: vec![ListenConfig { addr: None, port: PORT, backlog: scenario.backlog }],
            tls: self.tls.as_ref().map(tls::server),
            subsystems: vec![subsystem],
            ..NvmeTargetConfig::default()
        };
        let target = match NvmeTarget::new(config, Arc::new(crypto::Provider), &mut host) {
            Ok(target) => target,
            Err(error) => unreachable!("all of this is in range: {error}"),
        };
        let slots = scenario.rings.slots.max(64);
        SimNode::new(device, host, App::Target(Box::new(target)), ahead, slots)
            .with_remote_device(remote_device(scenario, node))
    }
}

/// Returns the NQN of the server's host or of the target's subsystem.
fn name(what: &str) -> Nqn {
    let text = format!("nqn.2026-11.example:{what}");
    Nqn::new(&text).unwrap_or_else(Nqn::discovery)
}
