//! Programs that terminate in the middle of a run and start again, and what their peers receive.
//!
//! The program on a machine is asked to terminate: its application says goodbye, its host closes
//! ports and resets connections ([`host::Host::end`]), and its device reports when the link has
//! accepted every frame. The machine is then stopped and starts again a moment later, like a
//! restarted service. By then, every connection that its peer still had must have been sent a FIN
//! or a reset; the network may lose these.

use base::{Duration, Instant, Prng};

use super::SimRun;
use crate::events::{NodeHalf, SimEvent};
use crate::faults::Scenario;
use crate::machines::{ServerStart, address, server};
use crate::node::App;
use crate::proxy_scenario;
use crate::queues::SimQueue;
use crate::trace::TraceKind;

/// Deadline of a termination; reads of a disk may stall for seconds.
const LIMIT: Duration = Duration::from_secs(8);
/// Maximum time in milliseconds that the program is down.
const DOWN_MAX_MS: u64 = 50;
/// Salt of this module's generators.
const SALT: u64 = 0x000e_4d50;

/// Draws when the program of the scenario's node terminates, if one does.
pub(super) fn plan(scenario: &Scenario) -> Option<(usize, Instant)> {
    let r = &mut Prng::new(scenario.seed ^ SALT);
    let after = r.below(scenario.fault_time.as_nanos());
    scenario.terminates.map(|node| (node, Instant::ZERO + Duration::from_nanos(after)))
}

impl SimRun {
    /// Asks the program on a node to terminate.
    #[inline(never)]
    pub(super) fn end_host(&mut self, node: usize) {
        self.note(node, TraceKind::Fault, [8, node as u64, 0, 0, 0]);
        if self.nodes[node].stopped || self.nodes[node].terminating {
            return;
        }
        self.nodes[node].end(self.now);
        self.queue.push(self.now + LIMIT, SimEvent::EndLimit(node));
        self.wake_soon(node, NodeHalf::Host);
    }

    /// Reports a violation if the program has not terminated by its deadline.
    pub(super) fn check_end_limit(&mut self, node: usize) {
        if self.nodes[node].terminating {
            self.report.fail(self.now, "ends", format!("n{node} has not ended within {LIMIT}"));
        }
    }

    /// Stops the node if its host has terminated with its last turn, and schedules its restart.
    pub(super) fn finish_end(&mut self, node: usize) {
        if !self.nodes[node].terminating || !self.nodes[node].host().has_ended() {
            return;
        }
        let addresses = [false, true].map(|v6| address(node, v6));
        match self.frame_checker.count_notified(&addresses) {
            Ok(told) => *self.stopped_counters.entry("peers_told").or_insert(0) += told,
            Err(what) => self.report.fail(self.now, "ends", format!("n{node} {what}")),
        }
        *self.stopped_counters.entry("hosts_ended").or_insert(0) += 1;
        self.stop(node, false);
        let r = &mut Prng::new(self.scenario.seed ^ SALT ^ 1);
        let down = Duration::from_millis(r.range(1, DOWN_MAX_MS));
        self.queue.push(self.now + down, SimEvent::Start(node));
    }

    /// Starts a server, a proxy or a target with a server's files again.
    pub(super) fn restart(&mut self, node: usize) {
        let life = self.nodes[node].life;
        let repeats = u64::from(life.saturating_sub(1));
        let rng = &mut Prng::new(self.scenario.seed ^ SALT ^ 2 ^ (repeats << 32));
        let now = self.now;
        let start = ServerStart { life, upload_bytes: self.disk.start_uploads(), now };
        let mut fresh = match &self.scenario.proxied {
            Some(proxied) if self.scenario.proxy() == Some(node) => proxy_scenario::machine(
                node,
                SimQueue::ONLY,
                &self.scenario,
                proxied,
                &self.net,
                rng,
            ),
            _ => match &self.scenario.remote {
                Some(remote) if self.scenario.target() == Some(node) => {
                    remote.target(node, &self.scenario, &self.net, rng)
                }
                _ => server((node, SimQueue::ONLY), &self.scenario, &self.net, rng, start),
            },
        };
        std::mem::swap(&mut self.nodes[node].app, &mut fresh.app);
        debug_assert!(!matches!(self.nodes[node].app, App::Client(_)), "clients do not end");
        let (device, host) = fresh.into_halves();
        self.nodes[node].start(device, host);
        if self.scenario.proxy() == Some(node) {
            self.spliced_before = 0;
        }
    }
}
