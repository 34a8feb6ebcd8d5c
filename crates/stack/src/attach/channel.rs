//! The channel of an attachment: memory shared with a process of this machine, or frames to another
//! machine.

use std::os::fd::RawFd;

use base::Duration;
use node::channel::{CarrierFault, DescriptorChannel, SentPayload};
use node::ethernet::EthernetCounters;

use super::ethernet_channel::EthernetChannel;
use super::shared_channel::SharedMemoryChannel;

/// One end of a channel.
#[derive(Debug)]
pub(crate) enum AttachedChannel {
    /// Rings in shared memory.
    Shared(SharedMemoryChannel),
    /// A session over Ethernet.
    Ethernet(Box<EthernetChannel>),
}

impl AttachedChannel {
    /// Returns the descriptor that polls readable when the other side has sent something or ended.
    pub(super) fn fd(&self) -> RawFd {
        match self {
            Self::Shared(channel) => channel.fd(),
            Self::Ethernet(channel) => channel.fd(),
        }
    }

    /// Announces that this end's thread is about to sleep.
    pub(super) fn prepare_sleep(&mut self) {
        match self {
            Self::Shared(channel) => channel.prepare_sleep(),
            Self::Ethernet(channel) => channel.prepare_sleep(),
        }
    }

    /// Announces that the thread is awake; `is_ready` is whether [`Self::fd`] is ready.
    pub(super) fn finish_sleep(&mut self, is_ready: bool) {
        match self {
            Self::Shared(channel) => channel.finish_sleep(is_ready),
            // Frames are found in the next turn.
            Self::Ethernet(_) => {}
        }
    }

    /// Returns whether a descriptor waits, or a fault, which is found when it is received.
    pub(super) fn has_work(&mut self) -> bool {
        match self {
            Self::Shared(channel) => channel.has_work(),
            Self::Ethernet(channel) => channel.has_work(),
        }
    }

    /// Sends doorbells and frames that are due, and returns whether the other side has ended. To be
    /// called in each turn.
    pub(super) fn advance(&mut self) -> bool {
        match self {
            Self::Shared(channel) => channel.advance(),
            Self::Ethernet(channel) => channel.advance(),
        }
    }

    /// Returns the time until [`Self::advance`] is to be called, if it matters.
    pub(super) fn sleep_limit(&self) -> Option<Duration> {
        match self {
            Self::Shared(_) => None,
            Self::Ethernet(channel) => channel.sleep_limit(),
        }
    }

    /// Returns the number of doorbells sent, each a system call.
    pub(super) const fn doorbells(&self) -> u64 {
        match self {
            Self::Shared(channel) => channel.doorbells,
            Self::Ethernet(_) => 0,
        }
    }

    /// Returns the counters of a session over Ethernet.
    pub(super) fn ethernet_counters(&self) -> Option<&EthernetCounters> {
        match self {
            Self::Shared(_) => None,
            Self::Ethernet(channel) => Some(channel.counters()),
        }
    }
}

impl DescriptorChannel for AttachedChannel {
    fn payload_bytes_min(&self) -> Option<usize> {
        match self {
            Self::Shared(channel) => channel.payload_bytes_min(),
            Self::Ethernet(channel) => channel.payload_bytes_min(),
        }
    }

    #[inline]
    fn has_room(&mut self) -> Result<bool, CarrierFault> {
        match self {
            Self::Shared(channel) => channel.has_room(),
            Self::Ethernet(channel) => channel.has_room(),
        }
    }

    #[inline]
    fn push(&mut self, descriptor: &[u8], payload: &[SentPayload]) -> Result<(), CarrierFault> {
        match self {
            Self::Shared(channel) => channel.push(descriptor, payload),
            Self::Ethernet(channel) => channel.push(descriptor, payload),
        }
    }

    #[inline]
    fn publish(&mut self) {
        match self {
            Self::Shared(channel) => channel.publish(),
            Self::Ethernet(channel) => channel.publish(),
        }
    }

    #[inline]
    fn pop(&mut self, out: &mut Vec<u8>) -> Result<bool, CarrierFault> {
        match self {
            Self::Shared(channel) => channel.pop(out),
            Self::Ethernet(channel) => channel.pop(out),
        }
    }

    #[inline]
    fn payload_len(&self) -> usize {
        match self {
            Self::Shared(channel) => channel.payload_len(),
            Self::Ethernet(channel) => channel.payload_len(),
        }
    }

    #[inline]
    fn copy_payload(&self, at: usize, to: &mut [u8]) {
        match self {
            Self::Shared(channel) => channel.copy_payload(at, to),
            Self::Ethernet(channel) => channel.copy_payload(at, to),
        }
    }
}
