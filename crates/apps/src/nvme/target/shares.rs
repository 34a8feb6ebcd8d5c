//! Each controller's quota of the memory for write data: half of the total, so that an initiator
//! that sends many commands but little data leaves the other half to others.
//!
//! Called by `io` before an operation gets memory, and by `shared` when the operation has ended.
//! Operations within their controller's quota wait for memory in one queue shared by all
//! controllers; operations above the quota wait in their controller's own queue. In-capsule data
//! that waits with them is also memory, and is limited in the same way.
//!
//! Invariant: while operations wait in a controller's queue, other operations of that controller
//! have memory or wait in the shared queue; when one of these ends, the controller's queue is
//! examined again.

use std::collections::VecDeque;

use super::buffers;
use super::shared::{Op, OpId, Shared, Stage};

/// A controller's use of its quota.
#[derive(Debug, Default)]
pub(super) struct Share {
    /// Bytes of operations that have memory or wait for it in the shared queue.
    pub(super) bytes: usize,
    /// Operations that wait for others of this controller. May contain operations that have ended.
    pub(super) waiting: VecDeque<OpId>,
    /// Bytes of in-capsule data of waiting operations.
    capsules: usize,
}

impl Shared {
    /// Returns the quota of a controller in bytes; at least the data of the largest command.
    fn share_max(&self) -> usize {
        let largest = usize::try_from(self.data_max()).map_or(usize::MAX, buffers::bytes_for);
        (self.config.buffer_bytes_max / 2).max(largest)
    }

    /// Charges an operation to its controller's quota. Returns false if the quota is used up or
    /// other operations of the controller wait for it.
    pub(super) fn admit(&mut self, id: OpId) -> bool {
        let most = self.share_max();
        let Some(op) = self.ops.get_mut(id) else { return false };
        // A controller is removed only together with its connections.
        let Some(controller) = self.controllers.get_mut(op.cntlid) else { return false };
        let bytes = buffers::bytes_for(op.data_len as usize);
        let share = &mut controller.share;
        let admitted = share.waiting.is_empty() && share.bytes + bytes <= most;
        if admitted {
            share.bytes += bytes;
            op.admitted = bytes;
        }
        admitted
    }

    /// Makes an operation wait for memory, in the shared queue if `admitted` (within the quota).
    /// Returns false if there is no room to keep its in-capsule data meanwhile.
    pub(super) fn wait_for_memory(&mut self, id: OpId, admitted: bool) -> bool {
        let all = self.config.capsule_bytes_max;
        let Some(op) = self.ops.get_mut(id) else { return false };
        let Some(controller) = self.controllers.get_mut(op.cntlid) else { return false };
        let share = &mut controller.share;
        let bytes = op.capsule.len();
        if bytes > 0 && (share.capsules + bytes > all / 2 || self.capsules + bytes > all) {
            return false;
        }
        share.capsules += bytes;
        self.capsules += bytes;
        op.waits = bytes;
        let waiting = if admitted { &mut self.thirsty } else { &mut share.waiting };
        waiting.push_back(id);
        true
    }

    /// Subtracts in-capsule data that no longer waits.
    pub(super) fn note_capsule(&mut self, cntlid: u16, bytes: usize) {
        self.capsules -= bytes;
        if let Some(controller) = self.controllers.get_mut(cntlid).filter(|_| bytes > 0) {
            controller.share.capsules = controller.share.capsules.saturating_sub(bytes);
        }
    }

    /// Returns an operation's bytes to its controller's quota, and moves operations that now fit to
    /// the shared queue.
    pub(super) fn dismiss(&mut self, op: &mut Op) {
        let most = self.share_max();
        let bytes = core::mem::take(&mut op.admitted);
        if bytes == 0 && op.stage != Stage::Memory {
            return;
        }
        // An operation at the disk may outlive its controller.
        let Some(controller) = self.controllers.get_mut(op.cntlid) else { return };
        let share = &mut controller.share;
        share.bytes = share.bytes.saturating_sub(bytes);
        while let Some(&id) = share.waiting.front() {
            if let Some(op) = self.ops.get_mut(id).filter(|op| op.stage == Stage::Memory) {
                let bytes = buffers::bytes_for(op.data_len as usize);
                if share.bytes + bytes > most {
                    return;
                }
                share.bytes += bytes;
                op.admitted = bytes;
                self.thirsty.push_back(id);
            }
            share.waiting.pop_front();
        }
    }
}
