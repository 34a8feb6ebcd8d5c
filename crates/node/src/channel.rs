//! The channel below a carrier's ends: what moves descriptors to another process or machine.
//!
//! Called by [`crate::remote`]. Implemented by rings in shared memory and by sessions over
//! Ethernet, in the crate of the threads, and by [`MemoryChannel`]. Payload that is not short
//! crosses beside the descriptor that names it ([`MemoryRange::PAYLOAD`]) if the channel can do
//! that: it is then copied once on each side, to the channel and from it to its destination.
//!
//! A channel neither encodes nor judges descriptors.
//!
//! [`MemoryRange::PAYLOAD`]: abi::layout::MemoryRange::PAYLOAD

use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;

use abi::PacketBuf;
use abi::layout::{LayoutFault, PAYLOAD_ALIGNMENT};
use bytes::Bytes;

/// Shortest payload that crosses beside its descriptor in shared memory. A shorter one costs less
/// in the descriptor, with which it is copied.
pub const PAYLOAD_BYTES_MIN: usize = 256;

/// Moves descriptors to another process or machine, and back, in order.
pub trait DescriptorChannel {
    /// Returns the length of the shortest payload that can cross beside its descriptor; `None` if
    /// all payload has to lie in the descriptor.
    fn payload_bytes_min(&self) -> Option<usize> {
        None
    }

    /// Returns whether a descriptor of any length can be sent.
    ///
    /// # Errors
    /// The other side violated the rules of the channel.
    fn has_room(&mut self) -> Result<bool, CarrierFault>;

    /// Sends a descriptor, and the payload beside it; the caller has asked for room. There is
    /// payload only if [`Self::payload_bytes_min`] admits it.
    ///
    /// # Errors
    /// As [`Self::has_room`].
    fn push(&mut self, descriptor: &[u8], payload: &[SentPayload]) -> Result<(), CarrierFault>;

    /// Makes the descriptors that were sent visible, and wakes the other side if it sleeps.
    fn publish(&mut self);

    /// Moves the next descriptor to `out`, whose content it replaces; returns false if there is
    /// none.
    ///
    /// # Errors
    /// As [`Self::has_room`].
    fn pop(&mut self, out: &mut Vec<u8>) -> Result<bool, CarrierFault>;

    /// Returns the length of the payload beside the descriptor that was received last, with the
    /// padding after each part.
    fn payload_len(&self) -> usize {
        0
    }

    /// Copies a part of the payload beside the descriptor that was received last. The caller has
    /// checked that it lies in [`Self::payload_len`] and begins at a multiple of
    /// [`PAYLOAD_ALIGNMENT`].
    fn copy_payload(&self, at: usize, to: &mut [u8]) {
        unreachable!("no payload, and {} bytes of it at {at}", to.len());
    }
}

/// A buffer that crosses beside the descriptor that names it.
#[derive(Debug)]
pub enum SentPayload {
    /// Payload of a transmit.
    Bytes(Bytes),
    /// A frame, whose buffer is returned to its pool.
    Frame(PacketBuf),
}

impl SentPayload {
    /// Returns the bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Frame(frame) => frame.as_slice(),
        }
    }
}

/// A violation of the rules by the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarrierFault {
    /// An index or a length of the channel is impossible.
    Channel,
    /// Bytes that are no descriptor.
    Descriptor(LayoutFault),
}

impl core::fmt::Display for CarrierFault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Channel => f.write_str("an index or length outside of the ring"),
            Self::Descriptor(fault) => write!(f, "invalid descriptor: {fault}"),
        }
    }
}

impl core::error::Error for CarrierFault {}

/// An end of a channel in the memory of one thread, for tests and the simulator.
#[derive(Debug)]
pub struct MemoryChannel {
    pub(crate) out: QueuedDescriptors,
    into: QueuedDescriptors,
    /// The payload beside the descriptor that was received last.
    payload: Vec<u8>,
    descriptors_max: usize,
}

pub(crate) type QueuedDescriptors = Rc<RefCell<VecDeque<QueuedDescriptor>>>;

/// A descriptor on its way.
#[derive(Debug, Default)]
pub(crate) struct QueuedDescriptor {
    pub(crate) bytes: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl MemoryChannel {
    /// Returns both ends of a channel with room for this many descriptors in each direction.
    #[must_use]
    pub fn pair(descriptors_max: usize) -> (Self, Self) {
        let (one, other) = (QueuedDescriptors::default(), QueuedDescriptors::default());
        let (out, into) = (Rc::clone(&other), Rc::clone(&one));
        let far = Self { out, into, payload: Vec::new(), descriptors_max };
        (Self { out: one, into: other, payload: Vec::new(), descriptors_max }, far)
    }
}

impl DescriptorChannel for MemoryChannel {
    fn payload_bytes_min(&self) -> Option<usize> {
        Some(PAYLOAD_BYTES_MIN)
    }

    fn has_room(&mut self) -> Result<bool, CarrierFault> {
        Ok(self.out.borrow().len() < self.descriptors_max)
    }

    fn push(&mut self, descriptor: &[u8], payload: &[SentPayload]) -> Result<(), CarrierFault> {
        let mut queued = QueuedDescriptor { bytes: descriptor.to_vec(), payload: Vec::new() };
        for part in payload {
            queued.payload.extend_from_slice(part.as_slice());
            queued.payload.resize(queued.payload.len().next_multiple_of(PAYLOAD_ALIGNMENT), 0);
        }
        self.out.borrow_mut().push_back(queued);
        Ok(())
    }

    fn publish(&mut self) {}

    fn pop(&mut self, out: &mut Vec<u8>) -> Result<bool, CarrierFault> {
        let Some(next) = self.into.borrow_mut().pop_front() else { return Ok(false) };
        (*out, self.payload) = (next.bytes, next.payload);
        Ok(true)
    }

    fn payload_len(&self) -> usize {
        self.payload.len()
    }

    fn copy_payload(&self, at: usize, to: &mut [u8]) {
        to.copy_from_slice(&self.payload[at..at + to.len()]);
    }
}
