//! Machines with several queues: their nodes, and the frames that their devices hand over.

use abi::PacketBuf;
use abi::steering::SteeredFrame;
use base::{Duration, Instant};
use host::MovedConnection;

use super::SimRun;
use crate::checkers::path_mtu;
use crate::events::{NodeHalf, SimEvent};
use crate::node::{App, SimNode};
use crate::queues::queue_of_link;
use crate::trace::TraceKind;

impl SimRun {
    /// Returns the machine of a node.
    pub(super) fn machine_of(&self, node: usize) -> usize {
        if node < self.machines { node } else { self.scenario.front() }
    }

    /// Returns the names of all nodes: the machine's part, and the queue beyond the first.
    pub(crate) fn node_names(&self) -> Vec<String> {
        let name = |node: usize| {
            let machine = self.machine_of(node);
            let role = match &self.nodes[node].app {
                App::Server(_) | App::RemoteServer(_) => "server",
                App::Proxy(_) => "proxy",
                App::Client(_) => "client",
                App::Target(_) => "target",
                App::User(_) => "initiator",
                App::Rogue(_) => "rogue",
            };
            match node < self.machines {
                true => format!("{role} {machine}"),
                false => format!("{role} {machine}, queue {}", node - self.machines + 1),
            }
        };
        (0..self.nodes.len()).map(name).collect()
    }

    /// Returns the node of a machine's queue.
    pub(super) fn node_of(&self, machine: usize, queue: usize) -> usize {
        if queue == 0 { machine } else { self.machines + queue - 1 }
    }

    /// Returns the nodes of a machine.
    pub(super) fn nodes_of(&self, machine: usize) -> impl Iterator<Item = usize> + use<> {
        let (machines, count) = (self.machines, self.scenario.queues_of(machine));
        (0..count).map(move |queue| if queue == 0 { machine } else { machines + queue - 1 })
    }

    /// Returns the node at which a frame for a machine arrives.
    pub(super) fn node_of_arrival(&self, machine: usize, frame: &[u8]) -> usize {
        match self.scenario.queues_of(machine) {
            1 => machine,
            count => self.node_of(machine, queue_of_link(frame, count)),
        }
    }

    /// Returns the sum of a counter of all queues of a machine.
    pub(super) fn sum_of(&self, machine: usize, name: &str) -> u64 {
        self.nodes_of(machine).map(|node| self.nodes[node].counter(name)).sum()
    }

    /// Schedules moves of entries of the steering, in half of the scenarios with several queues.
    pub(super) fn plan_moves(&mut self) {
        let end = self.scenario.fault_time.as_nanos();
        let several = self.scenario.queues_of(self.scenario.front()) > 1;
        let count = if several && self.moves.chance(0.5) { self.moves.range(1, 4) } else { 0 };
        for _ in 0..count {
            let at = Instant::ZERO + Duration::from_nanos(self.moves.below(end));
            self.queue.push(at, SimEvent::MoveEntries);
        }
    }

    /// Moves a random share of the entries, each to a random queue.
    pub(super) fn move_entries(&mut self) {
        let (steering, r) = (&self.scenario.steering, &mut self.moves);
        let share = 1.0 / r.range(1, 4) as f64;
        let mut moved = 0;
        for entry in 0..steering.entries() {
            if r.chance(share) {
                let to = r.below(steering.queues() as u64) as usize;
                moved += u64::from(steering.move_entry(entry, to));
            }
        }
        self.entries_moved += moved;
        self.note(self.scenario.front(), TraceKind::Fault, [7, moved, 1, 0, 0]);
    }

    /// Returns the number of frames that each other device of the node's machine has room for.
    pub(super) fn steering_room(&self, node: usize) -> Vec<usize> {
        // A network without faults loses nothing here either.
        let ample = self.scenario.calm_net();
        let room = |node: usize| if ample { usize::MAX } else { self.nodes[node].steering_room() };
        self.nodes_of(self.machine_of(node)).map(room).collect()
    }

    /// Carries frames from a device to others of its machine, and free buffers in return.
    pub(super) fn hand_over(
        &mut self,
        node: usize,
        frames: Vec<(usize, SteeredFrame)>,
        spares: Vec<(usize, PacketBuf)>,
    ) {
        let (machine, queue) = (self.machine_of(node), self.nodes[node].queue.index);
        for (to, spare) in spares {
            let to = self.node_of(machine, to);
            self.nodes[to].take_spare(spare);
        }
        for (to, frame) in frames {
            let to = self.node_of(machine, to);
            self.nodes[to].take_steered(queue, frame);
            self.wake_soon(to, NodeHalf::Device);
        }
    }

    /// Carries connections from a host to others of its machine.
    pub(super) fn carry_connections(
        &mut self,
        machine: usize,
        moved: Vec<(usize, MovedConnection)>,
    ) {
        for (queue, moved) in moved {
            let to = self.node_of(machine, queue);
            self.nodes[to].take_moved(moved);
            self.wake_soon(to, NodeHalf::Host);
        }
    }

    /// Wakes the hosts of a machine's queues whose applications have mail.
    pub(super) fn deliver_mail(&mut self, machine: usize) {
        if self.scenario.queues_of(machine) > 1 {
            for node in self.nodes_of(machine) {
                if self.nodes[node].has_mail() {
                    self.wake_soon(node, NodeHalf::Host);
                }
            }
        }
    }

    /// Checks the counters that hold for the sum of several queues only.
    pub(super) fn check_queues(&mut self) {
        let front = self.scenario.front();
        let (count, quic) = (self.scenario.queues_of(front), self.scenario.quic.as_ref());
        let Some(quic) = quic.filter(|_| count > 1) else { return };
        let (long, offloaded) = (self.report.stats.h3_long, self.sum_of(front, "quic_offloaded"));
        if quic.server.used && long > 0 && offloaded == 0 {
            let what = format!("{long} long connections, and no device was asked");
            self.report.fail(self.now, "counters", what);
        }
    }

    /// Checks the discovery of the path MTU. A connection may find a black hole at one queue and
    /// probe at another.
    pub(super) fn check_path_mtu(&mut self) {
        for machine in 0..self.machines {
            let nodes: Vec<_> = self.nodes_of(machine).map(|node| &self.nodes[node]).collect();
            if nodes.iter().any(|node| node.stopped) {
                continue;
            }
            let value = |name: &str| nodes.iter().map(|node| node.counter(name)).sum::<u64>();
            path_mtu::check(self.now, machine, value, &self.scenario, &mut self.report);
        }
    }

    /// Applies `change` to each node of a machine.
    pub(super) fn for_nodes_of(&mut self, machine: usize, mut change: impl FnMut(&mut SimNode)) {
        for node in self.nodes_of(machine) {
            change(&mut self.nodes[node]);
        }
    }
}
