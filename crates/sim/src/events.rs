//! Queue of future events on virtual time.
//!
//! Events at the same instant occur in the order in which they were pushed, so the order does not
//! depend on how the heap breaks ties. Used by [`crate::run`] only.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use abi::Checksum;
use abi::link::TxFrame;
use base::Instant;

use crate::disk::{DiskClient, SimDiskRequest};

/// A half of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NodeHalf {
    Device,
    /// The host and the application above it.
    Host,
}

/// A frame that a device has sent: a copy that shares no memory with the device, as on a link.
#[derive(Debug)]
pub(crate) struct SentFrame {
    pub(crate) bytes: Vec<u8>,
    /// Payload bytes of each segment of a run that crosses the link unsegmented; otherwise 0.
    pub(crate) segment_size: u16,
    /// True if the transport checksum is left to the link.
    pub(crate) checksum_partial: bool,
}

impl SentFrame {
    pub(crate) fn new(frame: &TxFrame) -> Self {
        let mut bytes = Vec::with_capacity(frame.len());
        bytes.extend_from_slice(frame.header.as_slice());
        frame.payload.iter().for_each(|part| bytes.extend_from_slice(part.as_slice()));
        let &TxFrame { segment_size, checksum_partial, .. } = frame;
        Self { bytes, segment_size, checksum_partial }
    }
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
    /// Entries of the steering of a machine with several queues are moved.
    MoveEntries,
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

/// Bits for the slot of an event; the order of insertion has the other 40 of 64.
const SLOT_BITS: u32 = 24;

/// Future events in order of time, then of insertion.
#[derive(Debug, Default)]
pub(crate) struct SimEventQueue {
    /// A number for each event, in the order of events: from the most significant bits, its time
    /// in nanoseconds, its order of insertion, and its slot. Events themselves are large to move.
    heap: BinaryHeap<Reverse<u128>>,
    /// Slots of events; `None` if a slot is free.
    events: Vec<Option<SimEvent>>,
    free: Vec<usize>,
    next_order: u64,
}

impl SimEventQueue {
    /// Adds an event.
    pub(crate) fn push(&mut self, at: Instant, event: SimEvent) {
        let order = self.next_order;
        self.next_order += 1;
        let slot = self.free.pop().unwrap_or(self.events.len());
        assert!(slot < 1 << SLOT_BITS, "at most 2^{SLOT_BITS} events are pending");
        match self.events.get_mut(slot) {
            Some(free) => *free = Some(event),
            None => self.events.push(Some(event)),
        }
        let order = order << SLOT_BITS | slot as u64;
        self.heap.push(Reverse(u128::from(at.as_nanos()) << 64 | u128::from(order)));
    }

    /// Removes and returns the next event and its time.
    pub(crate) fn pop(&mut self) -> Option<(Instant, SimEvent)> {
        let Reverse(entry) = self.heap.pop()?;
        let slot = entry as usize & ((1 << SLOT_BITS) - 1);
        let event = self.events.get_mut(slot)?.take()?;
        self.free.push(slot);
        Some((Instant::from_nanos((entry >> 64) as u64), event))
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
