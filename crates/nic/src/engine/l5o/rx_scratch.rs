//! Memory and bounds that all receive contexts share.
//!
//! Owned by the engine and passed to the parser of each packet. Keeps no state of a connection.

use alloc::vec::Vec;
use base::{SeqNum, internal_error};

use super::counters::L5oCounters;
use crate::config::L5oConfig;
use crate::engine::tls::DecryptedRange;

/// Scratch memory and bounds shared by all receive contexts.
#[derive(Debug)]
pub(super) struct RxScratch {
    /// Copy of a whole message while it is decrypted in place, if the suite needs one.
    pub(super) scratch: Vec<u8>,
    /// Ranges decrypted in the current packet.
    pub(super) decrypted: Vec<DecryptedRange>,
    /// Messages tracked over all contexts, except those of the context that is processing a packet.
    pub(super) tracked_messages: usize,
    /// End of the highest packet before the current one.
    pub(super) high: SeqNum,
    pub(super) out_of_order: bool,
    pub(super) messages_per_flow_max: usize,
    pub(super) messages_total_max: usize,
    pub(super) window_bytes: u32,
}

impl RxScratch {
    pub(super) fn new(config: &L5oConfig) -> Self {
        Self {
            scratch: Vec::with_capacity(1 << 15),
            decrypted: Vec::new(),
            tracked_messages: 0,
            high: SeqNum(0),
            out_of_order: config.out_of_order,
            messages_per_flow_max: config.incomplete_messages_max.max(1),
            messages_total_max: config.incomplete_messages_total,
            window_bytes: config.window_bytes_max,
        }
    }
    /// Subtracts `messages` from the number of messages tracked.
    pub(super) fn release(&mut self, messages: usize, counters: &mut L5oCounters) {
        match self.tracked_messages.checked_sub(messages) {
            Some(open) => self.tracked_messages = open,
            None => internal_error!(counters.nic_internal_errors, "more messages than were kept"),
        }
    }
}
