//! Keeps corrected TCP timestamps of a flow from going backward.
//!
//! A transmit that waited for a disk leaves with a timestamp advanced by its wait (IO-TCP section
//! 3.5). The wait is measured from when the device took the transmit, so it excludes the time in
//! the ring, which differs between transmits. Without this module, of two transmits that leave
//! together the later one could carry the earlier timestamp, and so could one written meanwhile
//! that does not wait. A receiver drops segments whose timestamp goes backward (PAWS, RFC 7323
//! section 5.2).
//!
//! Called by [`super::tx`] for every transmit with a timestamp. Constant in size: each slot
//! remembers the flow that used it last. If flows collide in a slot, the older one is forgotten,
//! which costs at most such a drop.

use abi::FlowId;
use alloc::boxed::Box;
use alloc::vec;

/// Number of slots. The low bits of a flow's number, which hosts assign densely, select the slot.
const SLOTS: usize = 1024;

#[derive(Clone, Copy, Debug)]
struct TimestampSlot {
    queue: usize,
    flow: FlowId,
    tsval: u32,
}

/// Last timestamp of each flow that had an advanced one recently.
#[derive(Debug)]
pub(crate) struct TimestampGuard {
    slots: Box<[TimestampSlot]>,
}

impl TimestampGuard {
    /// Creates an empty table.
    pub(crate) fn new() -> Self {
        let none = TimestampSlot { queue: 0, flow: FlowId::NONE, tsval: 0 };
        Self { slots: vec![none; SLOTS].into_boxed_slice() }
    }

    /// Returns the timestamp for a transmit that would carry `tsval`; `moved` is true if that was
    /// advanced.
    pub(crate) fn clamp(&mut self, queue: usize, flow: FlowId, stamp: u32, moved: bool) -> u32 {
        if flow == FlowId::NONE {
            return stamp;
        }
        #[expect(clippy::cast_possible_truncation, reason = "the low bits choose the slot")]
        let slot = &mut self.slots[flow.0 as usize % SLOTS];
        let known = slot.flow == flow && slot.queue == queue;
        // Timestamps wrap: RFC 7323 section 5.2 compares them modulo 2^32.
        let behind = known && slot.tsval.wrapping_sub(stamp) < 1 << 31;
        let stamp = if behind { slot.tsval } else { stamp };
        if moved || known {
            *slot = TimestampSlot { queue, flow, tsval: stamp };
        }
        stamp
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_of_a_flow_never_go_back() {
        let mut stamps = TimestampGuard::new();
        let flow = FlowId(7);
        assert_eq!(stamps.clamp(0, flow, 90, false), 90);
        assert_eq!(stamps.clamp(0, flow, 100, true), 100);
        assert_eq!(stamps.clamp(0, flow, 99, true), 100, "left with it, taken later");
        assert_eq!(stamps.clamp(0, flow, 99, false), 100, "written before it left");
        assert_eq!(stamps.clamp(0, flow, 101, false), 101);
        assert_eq!(stamps.clamp(1, flow, 50, false), 50, "flows are the queue's own");
        assert_eq!(stamps.clamp(0, FlowId(8), 50, false), 50);
        assert_eq!(stamps.clamp(0, FlowId::NONE, 50, true), 50);
        assert_eq!(stamps.clamp(0, flow, u32::MAX, true), 101, "far behind, modulo 2^32");
        let other = FlowId(7 + 1024);
        assert_eq!(stamps.clamp(0, other, u32::MAX, true), u32::MAX);
        assert_eq!(stamps.clamp(0, other, 2, false), 2, "it wraps");
        assert_eq!(stamps.clamp(0, flow, 1, false), 1, "forgotten: another took the slot");
    }
}
