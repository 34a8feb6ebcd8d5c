//! Segments that the host hands over to another queue.

use abi::Op;
use abi::steering::SteeringReason;

use super::ScriptedTcpPeer;

impl ScriptedTcpPeer {
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
