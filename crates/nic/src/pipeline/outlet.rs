//! The way out, for engines that send while a frame comes in.
//!
//! Lent by [`crate::Device`]: the queue to the wire with its counters, and the pool for buffers
//! that are not needed any more.

use abi::{PacketBuf, PacketPool};
use alloc::collections::VecDeque;

use super::Run;
use crate::counters::TxCounters;

/// Runs that may wait for the wire before the device takes no more operations, and drops what would
/// go straight on.
pub(crate) const RUNS_MAX: usize = 4096;

/// Queue and pool.
#[derive(Debug)]
pub(crate) struct Outlet<'a> {
    pub(crate) runs: &'a mut VecDeque<Run>,
    pub(crate) tx: &'a mut TxCounters,
    pub(crate) pool: &'a mut PacketPool,
}

impl Outlet<'_> {
    /// A packet, or a run of them, ready for the wire; nothing where its header made no sense.
    pub(crate) fn send(&mut self, run: Option<Run>) {
        let Some(run) = run else { return };
        self.tx.tx_transmits += 1;
        self.tx.tx_tso_transmits += u64::from(run.is_segmented());
        self.runs.push_back(run);
    }

    /// A buffer that is not needed any more.
    pub(crate) fn put(&mut self, packet: PacketBuf) {
        self.pool.put(packet);
    }

    /// Whether the wire keeps up.
    pub(crate) fn has_room(&self) -> bool {
        self.runs.len() < RUNS_MAX
    }
}
