//! What one controller may have of the memory for writes: half of it, so that a host that asks for
//! much, and then sends little, leaves the other half to others.
//!
//! Called by `io`, before an operation gets memory, and by `shared`, when it is over. Operations
//! within their controllers' shares wait for memory with those of all others, in one order; those
//! above wait here, behind their own controller's alone. Data that came in capsules waits with
//! them: that is memory as well, and bounded likewise.
//!
//! Invariant: where operations wait here, others of the same controller have memory, or are about
//! to get it; when they give it back, these are looked at.

use std::collections::VecDeque;

use super::buffers;
use super::shared::{Op, OpId, Shared, Stage};

/// What a controller has of the memory for writes.
#[derive(Debug, Default)]
pub(super) struct Share {
    /// Bytes of operations that have memory, or wait for it with all others.
    pub(super) bytes: usize,
    /// Operations that wait for their controller's others, and some that are gone.
    pub(super) waiting: VecDeque<OpId>,
    /// Bytes of capsules that wait.
    capsules: usize,
}

impl Shared {
    /// Most bytes of a controller; a command's data always fits.
    fn share_max(&self) -> usize {
        let largest = usize::try_from(self.data_max()).map_or(usize::MAX, buffers::bytes_for);
        (self.config.buffer_bytes_max / 2).max(largest)
    }

    /// Takes the bytes of an operation out of its controller's share; not where there are too few
    /// left, or others wait for them.
    pub(super) fn admit(&mut self, id: OpId) -> bool {
        let most = self.share_max();
        let Some(op) = self.ops.get_mut(id) else { return false };
        // Its controller goes only with its connection.
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

    /// An operation has to wait, with all others where it was admitted. Says whether what came in
    /// its capsule can.
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

    /// So many bytes of capsules wait no more.
    pub(super) fn note_capsule(&mut self, cntlid: u16, bytes: usize) {
        self.capsules -= bytes;
        if let Some(controller) = self.controllers.get_mut(cntlid).filter(|_| bytes > 0) {
            controller.share.capsules = controller.share.capsules.saturating_sub(bytes);
        }
    }

    /// Gives the bytes of an operation back to its controller's share: others of it wait with all
    /// others now.
    pub(super) fn dismiss(&mut self, op: &mut Op) {
        let most = self.share_max();
        let bytes = core::mem::take(&mut op.admitted);
        if bytes == 0 && op.stage != Stage::Memory {
            return;
        }
        // Operations outlive their controller while the disk works.
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
