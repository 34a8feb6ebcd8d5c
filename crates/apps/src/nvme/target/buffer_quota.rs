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

use super::common::NvmeOpId;
use super::shared::{NvmeOp, NvmeOpStage, NvmeTargetState};
use crate::write_buffers as buffers;

/// A controller's use of its quota.
#[derive(Debug, Default)]
pub(super) struct BufferQuota {
    /// Bytes of operations that have memory or wait for it in the shared queue.
    pub(super) charged_bytes: usize,
    /// Operations that wait for others of this controller. May contain operations that have ended.
    pub(super) waiting: VecDeque<NvmeOpId>,
    /// Bytes of in-capsule data of waiting operations.
    waiting_capsule_bytes: usize,
}

impl NvmeTargetState {
    /// Returns the quota of a controller in bytes; at least the data of the largest command.
    fn quota_bytes_max(&self) -> usize {
        let largest = usize::try_from(self.data_max()).map_or(usize::MAX, buffers::bytes_for);
        (self.config.buffer_bytes_max / 2).max(largest)
    }

    /// Charges an operation to its controller's quota. Returns false if the quota is used up or
    /// other operations of the controller wait for it.
    pub(super) fn charge_quota(&mut self, id: NvmeOpId) -> bool {
        let most = self.quota_bytes_max();
        let Some(op) = self.ops.get_mut(id) else { return false };
        // A controller is removed only together with its connections.
        let Some(controller) = self.controllers.get_mut(op.cntlid) else { return false };
        let bytes = buffers::bytes_for(op.data_len as usize);
        let share = &mut controller.quota;
        let admitted = share.waiting.is_empty() && share.charged_bytes + bytes <= most;
        if admitted {
            share.charged_bytes += bytes;
            op.quota_bytes = bytes;
        }
        admitted
    }

    /// Makes an operation wait for memory, in the shared queue if `quota_bytes` (within the quota).
    /// Returns false if there is no room to keep its in-capsule data meanwhile.
    pub(super) fn wait_for_memory(&mut self, id: NvmeOpId, admitted: bool) -> bool {
        let all = self.config.capsule_bytes_max;
        let Some(op) = self.ops.get_mut(id) else { return false };
        let Some(controller) = self.controllers.get_mut(op.cntlid) else { return false };
        let share = &mut controller.quota;
        let bytes = op.capsule.len();
        if bytes > 0
            && (share.waiting_capsule_bytes + bytes > all / 2
                || self.waiting_capsule_bytes + bytes > all)
        {
            return false;
        }
        share.waiting_capsule_bytes += bytes;
        self.waiting_capsule_bytes += bytes;
        op.waiting_capsule_bytes = bytes;
        let waiting = if admitted { &mut self.waiting_for_buffer } else { &mut share.waiting };
        waiting.push_back(id);
        true
    }

    /// Subtracts in-capsule data that no longer waits.
    pub(super) fn release_capsule_bytes(&mut self, cntlid: u16, bytes: usize) {
        self.waiting_capsule_bytes -= bytes;
        if let Some(controller) = self.controllers.get_mut(cntlid).filter(|_| bytes > 0) {
            controller.quota.waiting_capsule_bytes =
                controller.quota.waiting_capsule_bytes.saturating_sub(bytes);
        }
    }

    /// Returns an operation's bytes to its controller's quota, and moves operations that now fit to
    /// the shared queue.
    pub(super) fn release_quota(&mut self, op: &mut NvmeOp) {
        let most = self.quota_bytes_max();
        let bytes = core::mem::take(&mut op.quota_bytes);
        if bytes == 0 && op.stage != NvmeOpStage::Memory {
            return;
        }
        // An operation at the disk may outlive its controller.
        let Some(controller) = self.controllers.get_mut(op.cntlid) else { return };
        let share = &mut controller.quota;
        share.charged_bytes = share.charged_bytes.saturating_sub(bytes);
        while let Some(&id) = share.waiting.front() {
            if let Some(op) = self.ops.get_mut(id).filter(|op| op.stage == NvmeOpStage::Memory) {
                let bytes = buffers::bytes_for(op.data_len as usize);
                if share.charged_bytes + bytes > most {
                    return;
                }
                share.charged_bytes += bytes;
                op.quota_bytes = bytes;
                self.waiting_for_buffer.push_back(id);
            }
            share.waiting.pop_front();
        }
    }
}
