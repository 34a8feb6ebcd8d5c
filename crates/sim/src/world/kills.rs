//! Machines of a world of storage: how it begins, and how one is killed and starts again.
//!
//! What a machine had in its host, its device and its rings is gone, and what it asked of the disk
//! is not answered; what the disk has of its namespaces is lost in part where the power is. Its
//! user remembers: a user is whoever sits before the machine.

use base::Prng;

use super::{SERVER, World};
use crate::disk::SimDisk;
use crate::events::Side;
use crate::faults::Scenario;
use crate::machines::address;
use crate::net::Net;
use crate::node::{App, Node};
use crate::storage::{Storage, machines};
use crate::trace::What;

impl World {
    /// A machine is killed.
    pub(super) fn kill(&mut self, node: usize, power: bool) {
        self.note(node, What::Fault, [6, node as u64, power.into(), 0, 0]);
        if self.nodes[node].stopped {
            return;
        }
        *self.past.entry("machines_killed").or_insert(0) += 1;
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

    /// A machine has nothing any more of what was in it.
    pub(super) fn stop(&mut self, node: usize, power: bool) {
        let past = &mut self.past;
        self.nodes[node].visit(&mut |name, value| *past.entry(name).or_insert(0) += value);
        self.nodes[node].kill();
        self.disk.kill(node, power, &mut self.rng);
        self.net.cut(node, true);
        self.wire.note_killed(&[false, true].map(|v6| address(node, v6)));
    }

    /// It starts again.
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
        self.note(node, What::Fault, [7, node as u64, 0, 0, 0]);
        self.wake_soon(node, Side::Host);
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

/// The machines of a world of storage.
pub(super) fn storage_nodes(
    scenario: &Scenario,
    storage: &Storage,
    net: &Net,
    disk: &mut SimDisk,
    rng: &mut Prng,
) -> Vec<Node> {
    for (path, size) in storage.namespaces() {
        disk.add_namespace(&path, size);
    }
    let all = SERVER..=scenario.crowd.clients;
    all.map(|node| machines::node(node, scenario, storage, net, rng)).collect()
}
