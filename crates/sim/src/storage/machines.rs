//! Construction of the machines of a scenario with storage. Called by [`crate::run`] at the
//! beginning of a run and when a machine starts again.

use std::sync::Arc;

use abi::Refusal;
use apps::nvme::initiator;
use apps::nvme::target::{
    self, NamespaceConfig, NvmeTarget, NvmeTargetGroup, NvmeTargetMember, SubsystemConfig,
};
use base::{Duration, Instant, Prng};
use host::{Host, HostConfig, ListenConfig, TlsClient};
use nic::{Device, DeviceConfig, L5oConfig};
use wire::Endpoint;
use wire::nvme::nqn::Nqn;

use super::rogue::{self, Rogue};
use super::user::User;
use super::{NodeNvmeOffloads, PORT, SPARE_ENTRIES, StorageScenario, StorageSide};
use crate::faults::{Scenario, TlsDevice};
use crate::machines::{address, addresses, capabilities, device_base, remote_device};
use crate::net::SimNet;
use crate::node::{App, SimNode};
use crate::numbers;
use crate::queues::SimQueue;
use crate::tls;

/// Number of the stranger's host NQN, which no subsystem admits.
const STRANGER: usize = 99;

/// Returns the NQN of a machine or of the subsystem that it uses.
fn name(what: &str, node: usize) -> Nqn {
    let text = format!("nqn.2026-11.example:{what}{node}");
    Nqn::new(&text).unwrap_or_else(Nqn::discovery)
}

/// Returns the engine of a device for NVMe/TCP, and for TLS below it.
pub(crate) fn l5o(side: &StorageSide, tls: Option<&TlsDevice>) -> L5oConfig {
    L5oConfig {
        contexts_max: tls.map_or(side.contexts_max, |tls| tls.contexts_max),
        cache_bytes: side.cache_bytes,
        out_of_order: side.out_of_order,
        resync: side.resync,
        tls_tx: tls.is_some_and(|tls| tls.tx),
        tls_rx: tls.is_some_and(|tls| tls.rx),
        nvme_tcp_tx: side.mode != NodeNvmeOffloads::Copy,
        ddp_buffers_max: if side.mode == NodeNvmeOffloads::Crc { 0 } else { side.buffers_max },
        ddp_buffer_bytes_max: side.buffer_bytes_max,
        ddp_io_threshold: side.threshold,
        incomplete_messages_max: side.messages_ahead_max,
        ..L5oConfig::new(Arc::new(crypto::Provider))
    }
}

/// Builds the device and the host of a machine, or of a queue of it, in their initial state.
pub(crate) fn machine(
    (node, queue): (usize, SimQueue),
    scenario: &Scenario,
    storage: &StorageScenario,
    net: &SimNet,
    rng: &mut Prng,
) -> (Device, Host) {
    let is_target = node == 0;
    let side = storage.side(node);
    let mut device_config = DeviceConfig {
        file: (is_target && scenario.offload).then(|| scenario.device.clone()),
        l5o: Some(l5o(side, scenario.tls_device(node))),
        pending_transmits_max: scenario.pending_transmits_max,
        correct_timestamps: scenario.correct_timestamps,
        rss_seed: rng.next_u64(),
        ..device_base(scenario, node)
    };
    let ahead = Duration::from_millis(scenario.clock_ahead_ms.wrapping_mul(node as u64 + 1));
    let tls = scenario.tls_device(node).is_some_and(|device| device.used);
    let used = |used: bool| if used { Ok(()) } else { Err(Refusal::Disabled) };
    let tcp = if is_target { &scenario.server_tcp } else { &scenario.client_tcp };
    let mut config = HostConfig {
        addrs: addresses(node),
        file_offload: used(scenario.offload),
        tls_offload: used(tls),
        nvme_tcp_offload: used(side.uses_nvme()),
        tcp: numbers::tcp(scenario, node, tcp, ahead),
        ..HostConfig::default()
    };
    queue.configure(&scenario.steering, &mut device_config, &mut config);
    let device = Device::new(device_config, net.link_caps());
    let host = Host::new(config, &capabilities(scenario, node, &device), rng.next_u64());
    (device, host)
}

/// Builds the target on its host, or that of a queue.
pub(crate) fn target(
    scenario: &Scenario,
    storage: &StorageScenario,
    member: NvmeTargetMember,
    host: &mut Host,
) -> NvmeTarget {
    let users = 1..=storage.initiators;
    let subsystem = |node: usize, path: String, shift: u8, hosts: Vec<Nqn>| {
        let nqn = name("disk", node);
        let namespace = NamespaceConfig { block_shift: shift, ..NamespaceConfig::new(&nqn, &path) };
        SubsystemConfig {
            nqn,
            serial: node.to_string(),
            hosts: Some(hosts),
            namespaces: vec![namespace],
        }
    };
    let hosts = |owner| {
        let theirs = users.clone().filter(move |&node| storage.owner(node) == owner);
        theirs.map(|node| name("host", node)).collect::<Vec<_>>()
    };
    let owners = users.clone().filter(|&node| storage.owner(node) == node);
    let mut subsystems: Vec<_> =
        owners.map(|node| subsystem(node, super::path(node), storage.shift, hosts(node))).collect();
    if storage.rogue {
        let rogue = vec![name("host", rogue::NUMBER)];
        subsystems.push(subsystem(rogue::NUMBER, String::from(rogue::PATH), 9, rogue));
    }
    let config = target::NvmeTargetConfig {
        member: Some(member),
        listen: vec![ListenConfig { addr: None, port: PORT, backlog: scenario.backlog }],
        tls: scenario.tls.as_ref().map(tls::server),
        subsystems,
        cpda: storage.cpda,
        in_capsule_bytes: storage.in_capsule_bytes,
        maxh2cdata: storage.maxh2cdata,
        mdts: storage.mdts,
        pattern_rules: storage.rules.clone(),
        queues_max: storage.queues_max,
        buffer_bytes_max: (4_096 << storage.mdts) * storage.buffers,
        ..target::NvmeTargetConfig::default()
    };
    match NvmeTarget::new(config, Arc::new(crypto::Provider), host) {
        Ok(target) => target,
        Err(error) => unreachable!("all of this is in range: {error}"),
    }
}

/// Returns the configuration of a user's initiator.
pub(crate) fn initiator(
    node: usize,
    scenario: &Scenario,
    storage: &StorageScenario,
) -> initiator::InitiatorConfig {
    let (header_digest, data_digest) = storage.digests;
    let number = if storage.is_user(node) { node } else { STRANGER };
    let owner = if storage.is_user(node) { storage.owner(node) } else { 1 };
    let entries = storage.load.depth as u16 / storage.queues + SPARE_ENTRIES;
    let back_off = initiator::BackOff {
        max: Duration::from_secs(2),
        ctrl_loss: None,
        ..initiator::BackOff::default()
    };
    let crypto = Arc::new(crypto::Provider);
    initiator::InitiatorConfig {
        header_digest,
        data_digest,
        queues: storage.queues,
        queue_entries: entries,
        keep_alive: storage.keep_alive,
        command_timeout: storage.command_timeout,
        back_off,
        tls: client(node, scenario),
        pattern_rules: storage.rules.clone(),
        ..initiator::InitiatorConfig::new(
            name("host", number),
            [node as u8; 16],
            name("disk", owner),
            crypto,
        )
    }
}

fn client(node: usize, scenario: &Scenario) -> Option<TlsClient> {
    scenario.tls.as_ref().map(|tls| tls::client(tls, node, 0))
}

/// Returns the target's endpoint, as a machine connects to it.
pub(crate) fn remote(node: usize, scenario: &Scenario) -> Endpoint {
    let v6 = Prng::new(scenario.seed ^ node as u64).chance(scenario.crowd.v6);
    Endpoint { addr: address(0, v6), port: PORT }
}

/// Builds a node in its initial state. `group` is that of the target's queues.
pub(crate) fn node(
    (node, queue): (usize, SimQueue),
    scenario: &Scenario,
    (storage, group): (&StorageScenario, &Arc<NvmeTargetGroup>),
    net: &SimNet,
    rng: &mut Prng,
) -> SimNode {
    let (device, mut host) = machine((node, queue), scenario, storage, net, rng);
    let ahead = Duration::from_millis(scenario.clock_ahead_ms.wrapping_mul(node as u64 + 1));
    let remote = remote(node, scenario);
    let app = if node == 0 {
        App::Target(Box::new(target(scenario, storage, group.member(queue.index), &mut host)))
    } else if storage.is_rogue(node) {
        let names = (name("host", rogue::NUMBER), name("disk", rogue::NUMBER));
        let start = Instant::ZERO + ahead;
        App::Rogue(Box::new(Rogue::new(remote, client(node, scenario), names, rng.fork(), start)))
    } else {
        let config = initiator(node, scenario, storage);
        let part = storage.part(if storage.is_user(node) { node } else { 1 });
        let mut user = User::new(config, remote, storage.load, part, rng.fork());
        if storage.is_user(node) {
            (user.left, user.compares) = (storage.requests, true);
        }
        App::User(Box::new(user))
    };
    SimNode::new(device, host, app, ahead, scenario.rings.slots.max(64))
        .with_remote_device(remote_device(scenario, node))
        .on_queue(queue)
        .with_patterns(storage.rules.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_names() {
        assert_ne!(name("host", STRANGER), Nqn::discovery());
        assert_ne!(name("disk", 1), name("disk", 2));
    }
}
