//! How the device ends its work for a host: half of [`Device`].
//!
//! [`abi::Op::Quiesce`] is the last operation of a host that ends. By then the host has reset its
//! own connections; those that the device has taken over are reset here. The answer is given when
//! the link has taken every frame, so that ending the device then cuts nothing off.

use abi::Event;
use base::Instant;

use super::Device;

impl Device {
    /// Resets every connection that the device has of a queue, and answers when all is sent.
    pub(super) fn quiesce(&mut self, now: Instant, queue: usize) {
        self.engage(now, |engines, egress| engines.quiesce(now, queue, egress));
        if queue < self.queues() && !self.quiescing.contains(&queue) {
            self.quiescing.push(queue);
        }
    }

    /// Answers hosts that end, once the link has taken everything. Transmits that wait for a disk
    /// count: a host lets them go by ending their connections, but for those that it forgot.
    pub(super) fn tell_quiesced(&mut self) {
        if !self.has_sent_everything() {
            return;
        }
        for queue in core::mem::take(&mut self.quiescing) {
            self.egress.emit(queue, Event::Quiesced);
        }
    }
}
