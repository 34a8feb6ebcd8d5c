//! The event queue: what happens when, on virtual time.
//!
//! Events of one instant happen in the order in which they were put in: the queue never depends on
//! how a heap breaks ties. Used by [`crate::world`] alone.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use abi::Checksum;
use base::Instant;

use crate::disk::{Asker, Work};

/// Which half of a node works, or whose disk a request is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    /// The device.
    Device,
    /// The host and the application above it.
    Host,
}

/// A frame on its way to a node.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) from: usize,
    pub(crate) bytes: Vec<u8>,
    /// What the wire knows of the transport checksum.
    pub(crate) checksum: Checksum,
    /// Payload bytes of each packet of a run that crosses whole.
    pub(crate) segment_size: u16,
}

/// Something that happens.
#[derive(Debug)]
pub(crate) enum Event {
    /// A frame reaches a node's wire.
    Frame(usize, Arrival),
    /// Half a node looks at its queues.
    Turn(usize, Side),
    /// The disk has done something for half a node, in the life of the node that has this number.
    Disk(Asker, u32, Work),
    /// A file changes.
    Change,
    /// A node's device loses its state.
    Reset(usize),
    /// A node's device loses a context for sealing.
    LoseContext(usize),
    /// A node is cut off, or is back.
    Partition(usize, bool),
    /// A client's port is another, as others see it.
    Rebind(usize),
    /// A client's machine stops.
    Vanish(usize),
    /// A machine is killed, with the power lost or not.
    Kill(usize, bool),
    /// It starts again.
    Start(usize),
    /// The program on a machine is told to end, and starts again.
    End(usize),
    /// By now it has ended.
    EndLimit(usize),
    /// Somebody sends what no client would.
    Attack,
    /// All faults end.
    Heal,
    /// The proxy stops to look whether its servers are well, unless clients are still there.
    StopChecks,
}

#[derive(Debug)]
struct Entry {
    at: Instant,
    order: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// The earliest is the greatest: `BinaryHeap` gives the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

/// What is going to happen.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    heap: BinaryHeap<Entry>,
    next_order: u64,
}

impl Queue {
    /// Puts an event in.
    pub(crate) fn push(&mut self, at: Instant, event: Event) {
        let order = self.next_order;
        self.next_order += 1;
        self.heap.push(Entry { at, order, event });
    }

    /// The next event and its time.
    pub(crate) fn pop(&mut self) -> Option<(Instant, Event)> {
        self.heap.pop().map(|entry| (entry.at, entry.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_first_then_order_of_arrival() {
        let mut queue = Queue::default();
        let at = Instant::from_nanos;
        queue.push(at(2), Event::Vanish(0));
        queue.push(at(1), Event::Vanish(1));
        queue.push(at(2), Event::Vanish(2));
        queue.push(at(1), Event::Vanish(3));
        let order: Vec<_> = std::iter::from_fn(|| queue.pop())
            .map(|(at, event)| match event {
                Event::Vanish(name) => (at.as_nanos(), name),
                _ => panic!("only these were put in"),
            })
            .collect();
        assert_eq!(order, [(1, 1), (1, 3), (2, 0), (2, 2)]);
    }
}
