//! A channel in shared memory: a ring for each direction, and a socket for doorbells.
//!
//! The end of either process is the end of the socket's stream, which a thread that sleeps on the
//! socket notices at once; one that never sleeps asks now and then.

use std::os::fd::{AsRawFd, RawFd};

use io::attachment::{AttachedPeer, AttachmentSocket};
use io::shared_ring::{PeerFault, RingPush, SharedRingConsumer, SharedRingProducer};
use node::remote::{CarrierFault, DescriptorChannel};

/// Capacity of each ring in bytes: twice the longest descriptor.
pub(super) const RING_BYTES: u32 = 2 << 20;

/// Turns after which a thread that does not sleep looks whether the other process is there.
const TURNS_PER_LOOK: u32 = 256;

/// One end of the channel.
#[derive(Debug)]
pub(crate) struct SharedMemoryChannel {
    out: SharedRingProducer,
    into: SharedRingConsumer,
    socket: AttachmentSocket,
    peer: AttachedPeer,
    turns: u32,
    /// Doorbells sent, each a system call.
    pub(super) doorbells: u64,
}

impl SharedMemoryChannel {
    /// Creates an end of rings and a socket in the phase of doorbells.
    pub(super) const fn new(
        out: SharedRingProducer,
        into: SharedRingConsumer,
        socket: AttachmentSocket,
    ) -> Self {
        Self { out, into, socket, peer: AttachedPeer::Present, turns: 0, doorbells: 0 }
    }

    /// Returns the descriptor that polls readable when the other process rings or ends.
    pub(super) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Announces that this end's thread is about to sleep.
    pub(super) fn prepare_sleep(&self) {
        self.into.prepare_sleep();
    }

    /// Announces that the thread is awake; `rung` is whether [`Self::fd`] is ready.
    pub(super) fn finish_sleep(&mut self, rung: bool) {
        self.into.mark_awake();
        if rung {
            self.look();
        }
    }

    /// Returns whether a descriptor waits, or a fault, which is found when it is received.
    pub(super) fn has_work(&mut self) -> bool {
        !self.into.is_empty().unwrap_or(false)
    }

    /// Returns whether the other process has ended. To be called in each turn.
    pub(super) fn is_peer_gone(&mut self) -> bool {
        self.turns = self.turns.wrapping_add(1);
        if self.turns % TURNS_PER_LOOK == 0 {
            self.look();
        }
        self.peer == AttachedPeer::Gone
    }

    fn look(&mut self) {
        self.peer = self.socket.drain();
    }
}

impl DescriptorChannel for SharedMemoryChannel {
    #[inline]
    fn has_room(&mut self) -> Result<bool, CarrierFault> {
        self.out.has_room_for_any().map_err(fault)
    }

    #[inline]
    fn push(&mut self, descriptor: &[u8]) -> Result<(), CarrierFault> {
        let pushed = self.out.push(descriptor).map_err(fault)?;
        debug_assert_eq!(pushed, RingPush::Written, "the caller asked for room");
        Ok(())
    }

    #[inline]
    fn publish(&mut self) {
        if self.out.publish() {
            self.doorbells += 1;
            self.socket.ring();
        }
    }

    #[inline]
    fn pop(&mut self, out: &mut Vec<u8>) -> Result<bool, CarrierFault> {
        self.into.pop(out).map_err(fault)
    }
}

fn fault(_: PeerFault) -> CarrierFault {
    CarrierFault::Channel
}
