//! Queue of future events on virtual time.
//!
//! Events at the same instant occur in the order in which they were pushed, so the order does not
//! depend on how the heap breaks ties. Used by [`crate::run`] only.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use abi::Checksum;
use base::Instant;

use crate::disk::{DiskClient, SimDiskRequest};

/// A half of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NodeHalf {
    Device,
    /// The host and the application above it.
    Host,
}

/// A frame on its way to a node.
#[derive(Debug)]
pub(crate) struct SimLinkFrame {
    pub(crate) from: usize,
    pub(crate) bytes: Vec<u8>,
    /// The link's knowledge of the transport checksum.
    pub(crate) checksum: Checksum,
    /// Payload bytes of each segment of a run that crosses the link unsegmented; otherwise 0.
    pub(crate) segment_size: u16,
}

/// An event of the simulation.
#[derive(Debug)]
pub(crate) enum SimEvent {
    /// A frame arrives at a node.
    Frame(usize, SimLinkFrame),
    /// Half of a node polls its queues.
    Turn(usize, NodeHalf),
    /// A disk operation completes for half of a node. The number is the node's
    /// `life` at submission: completions for a killed machine are
    /// dropped.
    Disk(DiskClient, u32, SimDiskRequest),
    /// The content of a file changes.
    Change,
    /// A node's device is reset and loses its state.
    Reset(usize),
    /// A node's device loses a transmit context.
    LoseContext(usize),
    /// A node is disconnected (true) or reconnected (false).
    Partition(usize, bool),
    /// The NAT in front of a client maps it to another UDP port.
    Rebind(usize),
    /// A client's or server's machine stops for good.
    Vanish(usize),
    /// A machine is killed; true if it also loses power.
    Kill(usize, bool),
    /// A killed or ended machine starts again.
    Start(usize),
    /// The program on a machine is asked to terminate; it is started again afterwards.
    End(usize),
    /// Deadline of a termination.
    EndLimit(usize),
    /// The attacker sends a frame.
    Attack,
    /// All faults end.
    Heal,
    /// The proxy's health checks stop, unless clients are still active.
    StopChecks,
}

#[derive(Debug)]
struct QueuedSimEvent {
    at: Instant,
    order: u64,
    event: SimEvent,
}

impl PartialEq for QueuedSimEvent {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for QueuedSimEvent {}

impl PartialOrd for QueuedSimEvent {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for QueuedSimEvent {
    /// Reversed order, because `BinaryHeap` returns the greatest entry first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

/// Future events in order of time, then of insertion.
#[derive(Debug, Default)]
pub(crate) struct SimEventQueue {
    heap: BinaryHeap<QueuedSimEvent>,
    next_order: u64,
}

impl SimEventQueue {
    /// Adds an event.
    pub(crate) fn push(&mut self, at: Instant, event: SimEvent) {
        let order = self.next_order;
        self.next_order += 1;
        self.heap.push(QueuedSimEvent { at, order, event });
    }

    /// Removes and returns the next event and its time.
    pub(crate) fn pop(&mut self) -> Option<(Instant, SimEvent)> {
        self.heap.pop().map(|entry| (entry.at, entry.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_first_then_order_of_arrival() {
        let mut queue = SimEventQueue::default();
        let at = Instant::from_nanos;
        queue.push(at(2), SimEvent::Vanish(0));
        queue.push(at(1), SimEvent::Vanish(1));
        queue.push(at(2), SimEvent::Vanish(2));
        queue.push(at(1), SimEvent::Vanish(3));
        let order: Vec<_> = std::iter::from_fn(|| queue.pop())
            .map(|(at, event)| match event {
                SimEvent::Vanish(name) => (at.as_nanos(), name),
                _ => panic!("only these were put in"),
            })
            .collect();
        assert_eq!(order, [(1, 1), (1, 3), (2, 0), (2, 2)]);
    }
}
