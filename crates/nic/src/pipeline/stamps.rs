//! TCP timestamps that were moved on, so that none of the same flow goes back behind them.
//!
//! A transmit that waited for a disk leaves with a timestamp moved on by its wait (IO-TCP section
//! 3.5). The wait is counted from when the device took the transmit, so the time in the ring is
//! left out, and that differs from one transmit to the next: of two that leave together the later
//! could carry the earlier stamp, and so could one that is written meanwhile and does not wait. A
//! receiver drops what goes back (PAWS, RFC 7323 section 5.2).
//!
//! Called by [`super::tx`] for every transmit with a timestamp. Constant in size: one entry per
//! slot, of the flow that used it last. Where flows meet in a slot the older is forgotten, which
//! costs at most what is said above.

use abi::FlowId;
use alloc::boxed::Box;
use alloc::vec;

/// Slots; flows are told apart by the low bits of their names, which hosts give out densely.
const SLOTS: usize = 1024;

#[derive(Clone, Copy, Debug)]
struct Entry {
    queue: usize,
    flow: FlowId,
    stamp: u32,
}

/// The last stamp that was moved on, of each of the flows that had one lately.
#[derive(Debug)]
pub(crate) struct Stamps {
    slots: Box<[Entry]>,
}

impl Stamps {
    /// None yet.
    pub(crate) fn new() -> Self {
        let none = Entry { queue: 0, flow: FlowId::NONE, stamp: 0 };
        Self { slots: vec![none; SLOTS].into_boxed_slice() }
    }

    /// The stamp for a transmit that is to carry `stamp`, which was moved on if `moved`.
    pub(crate) fn settle(&mut self, queue: usize, flow: FlowId, stamp: u32, moved: bool) -> u32 {
        if flow == FlowId::NONE {
            return stamp;
        }
        #[expect(clippy::cast_possible_truncation, reason = "the low bits choose the slot")]
        let slot = &mut self.slots[flow.0 as usize % SLOTS];
        let known = slot.flow == flow && slot.queue == queue;
        // Timestamps wrap: RFC 7323 section 5.2 compares them modulo 2^32.
        let behind = known && slot.stamp.wrapping_sub(stamp) < 1 << 31;
        let stamp = if behind { slot.stamp } else { stamp };
        if moved || known {
            *slot = Entry { queue, flow, stamp };
        }
        stamp
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_of_a_flow_never_go_back() {
        let mut stamps = Stamps::new();
        let flow = FlowId(7);
        assert_eq!(stamps.settle(0, flow, 90, false), 90);
        assert_eq!(stamps.settle(0, flow, 100, true), 100);
        assert_eq!(stamps.settle(0, flow, 99, true), 100, "left with it, taken later");
        assert_eq!(stamps.settle(0, flow, 99, false), 100, "written before it left");
        assert_eq!(stamps.settle(0, flow, 101, false), 101);
        assert_eq!(stamps.settle(1, flow, 50, false), 50, "flows are the queue's own");
        assert_eq!(stamps.settle(0, FlowId(8), 50, false), 50);
        assert_eq!(stamps.settle(0, FlowId::NONE, 50, true), 50);
        assert_eq!(stamps.settle(0, flow, u32::MAX, true), 101, "far behind, modulo 2^32");
        let other = FlowId(7 + 1024);
        assert_eq!(stamps.settle(0, other, u32::MAX, true), u32::MAX);
        assert_eq!(stamps.settle(0, other, 2, false), 2, "it wraps");
        assert_eq!(stamps.settle(0, flow, 1, false), 1, "forgotten: another took the slot");
    }
}
