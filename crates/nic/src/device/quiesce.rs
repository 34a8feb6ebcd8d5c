//! Ending the device's work for a host: part of [`Device`].
//!
//! [`abi::Op::Quiesce`] is the last operation of a host. The host has reset its own connections
//! before; those that the device has taken over are reset here. The device answers once the link
//! has taken every frame, so that stopping the device afterwards cuts nothing off.

use abi::Event;
use base::Instant;

use super::Device;

impl Device {
    /// Resets every connection of a queue that the device has taken over, and notifies the host
    /// when all frames are sent.
    pub(super) fn quiesce(&mut self, now: Instant, queue: usize) {
        self.with_engines(now, |engines, egress| engines.quiesce(now, queue, egress));
        if queue < self.queues() && !self.quiescing.contains(&queue) {
            self.quiescing.push(queue);
        }
    }

    /// Reports [`Event::Quiesced`] to the hosts that asked, once the link has taken every frame.
    /// Transmits that wait for a disk count too; a host cancels them by ending their connections,
    /// except those that it no longer knows.
    pub(super) fn report_quiesced(&mut self) {
        if !self.has_sent_everything() {
            return;
        }
        for queue in core::mem::take(&mut self.quiescing) {
            self.egress.emit(queue, Event::Quiesced);
        }
    }
}
