//! Kills and restarts of machines with storage or uploads, and the construction of the former.
//!
//! A killed machine loses the state of its host, its device and its rings, and its disk requests
//! are not answered. If the power is lost too, part of the unflushed data of its namespaces is
//! lost. The user of an initiator keeps its model of the namespace: it is not part of the machine.

use std::sync::Arc;

use apps::nvme::target::NvmeTargetGroup;
use base::Prng;

use super::{SERVER, SimRun};
use crate::disk::SimDisk;
use crate::events::NodeHalf;
use crate::faults::Scenario;
use crate::machines::address;
use crate::net::SimNet;
use crate::node::{App, SimNode};
use crate::queues::SimQueue;
use crate::storage::{StorageScenario, machines};
use crate::trace::TraceKind;

impl SimRun {
    /// Kills a machine.
    #[inline(never)]
    pub(super) fn kill(&mut self, node: usize, power: bool) {
        self.note(node, TraceKind::Fault, [6, node as u64, power.into(), 0, 0]);
        if self.nodes[node].stopped {
            return;
        }
        *self.stopped_counters.entry("machines_killed").or_insert(0) += 1;
        for node in self.nodes_of(node) {
            self.stop(node, power);
        }
        if node != SERVER || !power {
            return;
        }
        for node in &mut self.nodes {
            if let App::User(user) = &mut node.app {
                user.note_power_loss();
            }
        }
    }

    /// Stops a machine: all state in it is lost, and its counters are added to `stopped_counters`.
    pub(super) fn stop(&mut self, node: usize, power: bool) {
        let past = &mut self.stopped_counters;
        self.nodes[node].visit(&mut |name, value| *past.entry(name).or_insert(0) += value);
        self.nodes[node].kill();
        self.disk.kill(node, power, &mut self.rng);
        let machine = self.machine_of(node);
        self.net.cut(machine, true);
        self.frame_checker.note_killed(&[false, true].map(|v6| address(machine, v6)));
    }

    /// Starts a stopped machine again.
    #[inline(never)]
    pub(super) fn start(&mut self, node: usize) {
        if !self.nodes[node].stopped {
            return;
        }
        if self.scenario.storage.is_some() {
            self.start_storage(node);
        } else {
            self.restart(node);
        }
        self.net.cut(node, false);
        self.note(node, TraceKind::Fault, [7, node as u64, 0, 0, 0]);
        for node in self.nodes_of(node) {
            self.wake_soon(node, NodeHalf::Host);
        }
    }

    fn start_storage(&mut self, machine: usize) {
        let nodes = self.nodes_of(machine);
        let (scenario, rng) = (&self.scenario, &mut self.rng);
        let Some(storage) = &scenario.storage else { return };
        let group = NvmeTargetGroup::new(scenario.queues_of(machine));
        for node in nodes {
            let node = &mut self.nodes[node];
            let place = (machine, node.queue);
            let (device, mut host) = machines::machine(place, scenario, storage, &self.net, rng);
            match &mut node.app {
                App::User(user) => {
                    let config = machines::initiator(machine, scenario, storage);
                    user.restart(config, machines::remote(machine, scenario));
                }
                app => {
                    let member = group.member(node.queue.index);
                    let target = machines::target(scenario, storage, member, &mut host);
                    *app = App::Target(Box::new(target));
                }
            }
            node.start(device, host);
        }
    }
}

/// Builds the machines of a scenario with storage, each with its first queue.
pub(super) fn storage_nodes(
    scenario: &Scenario,
    (storage, group): (&StorageScenario, &Arc<NvmeTargetGroup>),
    net: &SimNet,
    disk: &mut SimDisk,
    rng: &mut Prng,
) -> Vec<SimNode> {
    for (path, size) in storage.namespaces() {
        disk.add_namespace(&path, size);
    }
    let all = SERVER..=scenario.crowd.clients;
    let first = |node| (node, SimQueue { index: 0, count: scenario.queues_of(node) });
    all.map(|node| machines::node(first(node), scenario, (storage, group), net, rng)).collect()
}
