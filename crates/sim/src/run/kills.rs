//! Kills and restarts of machines with storage or uploads, and the construction of the former.
//!
//! A killed machine loses the state of its host, its device and its rings, and its disk requests
//! are not answered. If the power is lost too, part of the unflushed data of its namespaces is
//! lost. The user of an initiator keeps its model of the namespace: it is not part of the machine.

use base::Prng;

use super::{SERVER, SimRun};
use crate::disk::SimDisk;
use crate::events::NodeHalf;
use crate::faults::Scenario;
use crate::machines::address;
use crate::net::SimNet;
use crate::node::{App, SimNode};
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
        self.stop(node, power);
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
        self.net.cut(node, true);
        self.frame_checker.note_killed(&[false, true].map(|v6| address(node, v6)));
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
        self.wake_soon(node, NodeHalf::Host);
    }

    fn start_storage(&mut self, node: usize) {
        let Some(storage) = &self.scenario.storage else { return };
        let (device, mut host) =
            machines::machine(node, &self.scenario, storage, &self.net, &mut self.rng);
        let app = &mut self.nodes[node].app;
        match app {
            App::User(user) => {
                let config = machines::initiator(node, &self.scenario, storage);
                user.restart(config, machines::remote(node, &self.scenario));
            }
            app => {
                *app = App::Target(Box::new(machines::target(&self.scenario, storage, &mut host)))
            }
        }
        self.nodes[node].start(device, host);
    }
}

/// Builds the machines of a scenario with storage.
pub(super) fn storage_nodes(
    scenario: &Scenario,
    storage: &StorageScenario,
    net: &SimNet,
    disk: &mut SimDisk,
    rng: &mut Prng,
) -> Vec<SimNode> {
    for (path, size) in storage.namespaces() {
        disk.add_namespace(&path, size);
    }
    let all = SERVER..=scenario.crowd.clients;
    all.map(|node| machines::node(node, scenario, storage, net, rng)).collect()
}
