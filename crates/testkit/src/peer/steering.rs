//! Hosts of several queues, and the segments that they hand over to each other.

use std::sync::Arc;

use abi::Op;
use abi::steering::{FlowSteering, OwnQueue, SteeringReason};
use wire::Tuple;

use super::ScriptedTcpPeer;

impl ScriptedTcpPeer {
    /// Returns a steering of two queues in which the first connection of a peer of
    /// [`Self::server_of_queue`] has entry 0, which belongs to queue 0. That is also the entry of
    /// the hash 0, which the device reports for the peer's frames.
    ///
    /// # Panics
    /// Panics if no key fits; one of 512 does.
    #[must_use]
    pub fn steering_of_two_queues() -> Arc<FlowSteering> {
        let info = Self::server().established().info();
        let tuple = Tuple { local: info.local, remote: info.remote };
        let fits = |steering: &FlowSteering| steering.entry_of(&tuple) == 0;
        let steering = (3..).map(|seed| FlowSteering::new(seed, 2)).find(fits);
        Arc::new(steering.expect("one of 512 keys"))
    }

    /// Creates a server, as [`Self::server`] does, whose host is that of a queue.
    #[must_use]
    pub fn server_of_queue(steering: &Arc<FlowSteering>, index: usize) -> Self {
        let own = OwnQueue { steering: Arc::clone(steering), index };
        Self::server_with(|config| config.own_queue = Some(own))
    }

    /// Removes and returns the hand-overs of segments: the queue, and the reason.
    pub fn take_handed_over(&mut self) -> Vec<(usize, SteeringReason)> {
        let (mut taken, mut rest) = (Vec::new(), Vec::new());
        for op in self.other_ops.drain(..) {
            match op {
                Op::HandOver(segment) => taken.push((segment.queue, segment.frame.reason)),
                other => rest.push(other),
            }
        }
        self.other_ops.extend(rest);
        taken
    }
}
