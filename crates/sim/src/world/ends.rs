//! Hosts that end in the middle of a world, and are started again: what peers hear of it.
//!
//! The program on a machine is told to end: its application says goodbye, its host closes ports and
//! resets connections ([`host::Host::end`]), its device answers when the link has taken every
//! frame. Then it is gone, and begins again a moment later, as a service that is restarted. By the
//! time that it is gone, each connection that its peer had must have had a FIN or a reset from it;
//! what the network loses of that is the network's.

use base::{Duration, Instant, Prng};

use super::World;
use crate::events::{Event, Side};
use crate::faults::Scenario;
use crate::machines::{address, server};
use crate::node::App;
use crate::proxied;
use crate::trace::What;

/// A host that has not ended after so long never will: reads of a disk may stall for seconds.
const LIMIT: Duration = Duration::from_secs(8);
/// How long it is gone at most.
const DOWN_MAX_MS: u64 = 50;
/// Of the numbers that are drawn here.
const SALT: u64 = 0x000e_4d50;

/// Which node's host ends, and when.
pub(super) fn plan(scenario: &Scenario) -> Option<(usize, Instant)> {
    let r = &mut Prng::new(scenario.seed ^ SALT);
    let after = r.below(scenario.fault_time.as_nanos());
    scenario.ends.map(|node| (node, Instant::ZERO + Duration::from_nanos(after)))
}

impl World {
    /// A host is told to end.
    pub(super) fn end_host(&mut self, node: usize) {
        self.note(node, What::Fault, [8, node as u64, 0, 0, 0]);
        if self.nodes[node].stopped || self.nodes[node].ends {
            return;
        }
        self.nodes[node].end(self.now);
        self.queue.push(self.now + LIMIT, Event::EndLimit(node));
        self.wake_soon(node, Side::Host);
    }

    /// A host that was told to end should have done so.
    pub(super) fn check_end_limit(&mut self, node: usize) {
        if self.nodes[node].ends {
            self.report.fail(self.now, "ends", format!("n{node} has not ended within {LIMIT}"));
        }
    }

    /// A host may have ended with its last turn: then its machine is gone for a moment.
    pub(super) fn finish_end(&mut self, node: usize) {
        if !self.nodes[node].ends || !self.nodes[node].host().has_ended() {
            return;
        }
        let addresses = [false, true].map(|v6| address(node, v6));
        match self.wire.count_told(&addresses) {
            Ok(told) => *self.past.entry("peers_told").or_insert(0) += told,
            Err(what) => self.report.fail(self.now, "ends", format!("n{node} {what}")),
        }
        *self.past.entry("hosts_ended").or_insert(0) += 1;
        self.stop(node, false);
        let r = &mut Prng::new(self.scenario.seed ^ SALT ^ 1);
        let down = Duration::from_millis(r.range(1, DOWN_MAX_MS));
        self.queue.push(self.now + down, Event::Start(node));
    }

    /// A server or a proxy starts again.
    pub(super) fn restart(&mut self, node: usize) {
        let rng = &mut Prng::new(self.scenario.seed ^ SALT ^ 2);
        let mut fresh = match &self.scenario.proxied {
            Some(proxied) if self.scenario.proxy() == Some(node) => {
                proxied::machine(node, &self.scenario, proxied, &self.net, rng)
            }
            _ => server(node, &self.scenario, &self.net, rng),
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
