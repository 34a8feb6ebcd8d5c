//! What all receive contexts share: bounds, and room for the packet at hand.
//!
//! Owned by the engine and lent to each walk over a packet. Keeps nothing of a connection.

use alloc::vec::Vec;
use base::{SeqNum, internal_error};

use super::counters::L5oCounters;
use crate::config::L5oConfig;
use crate::engine::tls::Undo;

/// What all contexts share.
#[derive(Debug)]
pub(super) struct Tools {
    /// Room for a message as it came.
    pub(super) scratch: Vec<u8>,
    /// What was opened in the packet at hand.
    pub(super) undo: Vec<Undo>,
    /// Messages kept, over all contexts.
    pub(super) open: usize,
    /// End of the latest packet before the one at hand.
    pub(super) high: SeqNum,
    pub(super) out_of_order: bool,
    pub(super) ahead_max: usize,
    pub(super) total_max: usize,
    pub(super) window_bytes: u32,
}

impl Tools {
    pub(super) fn new(config: &L5oConfig) -> Self {
        Self {
            scratch: Vec::with_capacity(1 << 15),
            undo: Vec::new(),
            open: 0,
            high: SeqNum(0),
            out_of_order: config.out_of_order,
            ahead_max: config.messages_ahead_max.max(1),
            total_max: config.messages_ahead_total,
            window_bytes: config.window_bytes_max,
        }
    }
    /// So many of the messages kept are not any more.
    pub(super) fn release(&mut self, messages: usize, counters: &mut L5oCounters) {
        match self.open.checked_sub(messages) {
            Some(open) => self.open = open,
            None => internal_error!(counters.nic_internal_errors, "more messages than were kept"),
        }
    }
}
