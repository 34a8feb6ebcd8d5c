//! Memory and bounds that all receive contexts share.
//!
//! Owned by the engine and passed to the parser of each packet. Keeps no state of a connection.

use alloc::vec::Vec;
use base::{SeqNum, internal_error};

use super::counters::L5oCounters;
use crate::config::L5oConfig;
use crate::engine::tls::Undo;

/// Scratch memory and bounds shared by all receive contexts.
#[derive(Debug)]
pub(super) struct Tools {
    /// Copy of a whole message while it is decrypted in place.
    pub(super) scratch: Vec<u8>,
    /// Ranges decrypted in the current packet.
    pub(super) undo: Vec<Undo>,
    /// Messages tracked over all contexts, except those of the context that is processing a packet.
    pub(super) open: usize,
    /// End of the highest packet before the current one.
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
    /// Subtracts `messages` from the number of messages tracked.
    pub(super) fn release(&mut self, messages: usize, counters: &mut L5oCounters) {
        match self.open.checked_sub(messages) {
            Some(open) => self.open = open,
            None => internal_error!(counters.nic_internal_errors, "more messages than were kept"),
        }
    }
}
