//! The receiving direction of a session: frames in any order become descriptors in order.

use abi::layout::{DESCRIPTOR_BYTES_MAX, may_hold_keys};
use abi::{PacketBuf, PacketPool};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use base::{Duration, Instant, SeqNum};

use super::header::ReceivedFrames;
use super::{EthernetCounters, LENGTH_BYTES, WINDOW_FRAMES};
use crate::channel::CarrierFault;

/// Frames after which an acknowledgment is sent, even if more are about to be received.
const UNACKNOWLEDGED_MAX: u32 = 32;
/// Frames by which the limit rises before the sender is told.
const LIMIT_STEP: u32 = WINDOW_FRAMES / 4;

/// Longest time for which an acknowledgment waits for a frame to go with.
const ACK_DELAY: Duration = Duration::from_micros(500);

/// The acknowledgment that is owed to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AckState {
    /// Everything is acknowledged.
    Sent,
    /// To be sent with the next frame, before the thread sleeps, or at this time.
    DueAt(Instant),
    /// To be sent at once.
    Due,
}

/// The receiving direction.
#[derive(Debug)]
pub(super) struct FrameReceiver {
    /// Frames from `consumed` on; `None` for one that is missing.
    frames: VecDeque<Option<PacketBuf>>,
    /// Number of the first frame whose bytes were not all taken.
    consumed: SeqNum,
    /// First number that was not received.
    next: SeqNum,
    /// Limit in the last frame that was sent.
    announced: SeqNum,
    ack: AckState,
    unacknowledged: u32,
    /// Length and bytes of the descriptor that is being received.
    length: Vec<u8>,
    descriptor: Vec<u8>,
}

impl FrameReceiver {
    pub(super) fn new() -> Self {
        Self {
            frames: VecDeque::new(),
            consumed: SeqNum(0),
            next: SeqNum(0),
            announced: SeqNum(WINDOW_FRAMES),
            ack: AckState::Sent,
            unacknowledged: 0,
            length: Vec::new(),
            descriptor: Vec::new(),
        }
    }

    /// Returns the first number that was not received.
    pub(super) const fn next(&self) -> SeqNum {
        self.next
    }

    /// Returns the first number that is not accepted yet.
    pub(super) fn limit(&self) -> SeqNum {
        self.consumed + WINDOW_FRAMES
    }

    /// Returns the frames that were received after the first one that is missing.
    pub(super) fn received(&self) -> ReceivedFrames {
        let mut received = ReceivedFrames::default();
        let first = self.position(self.next) + 1;
        for (position, frame) in self.frames.iter().skip(first).enumerate() {
            if frame.is_some() {
                received.insert(position);
            }
        }
        received
    }

    /// Returns whether an acknowledgment is to be sent even if no other frame is.
    pub(super) fn is_ack_due(&self, now: Instant) -> bool {
        match self.ack {
            AckState::Sent => false,
            AckState::DueAt(at) => at <= now,
            AckState::Due => true,
        }
    }

    /// Makes the next frame acknowledge everything at once.
    pub(super) const fn owe_ack(&mut self) {
        self.ack = AckState::Due;
    }

    /// Makes an acknowledgment that waits due.
    pub(super) const fn hasten_ack(&mut self) {
        if let AckState::DueAt(_) = self.ack {
            self.ack = AckState::Due;
        }
    }

    /// Notes that a frame is sent, with the present acknowledgment and limit.
    pub(super) fn note_acknowledged(&mut self) {
        self.ack = AckState::Sent;
        self.unacknowledged = 0;
        self.announced = self.limit();
    }

    /// Returns the position of a number that is not before `consumed`.
    fn position(&self, number: SeqNum) -> usize {
        usize::try_from(number.distance(self.consumed)).unwrap_or(0)
    }

    /// Takes the payload of a numbered frame. A duplicate returns to the pool.
    ///
    /// # Errors
    /// If the number is beyond the limit.
    pub(super) fn handle_payload(
        &mut self,
        now: Instant,
        number: SeqNum,
        payload: PacketBuf,
        pool: &mut PacketPool,
        counters: &mut EthernetCounters,
    ) -> Result<(), CarrierFault> {
        if number.ge(self.limit()) {
            pool.put(payload);
            return Err(CarrierFault::Channel);
        }
        let position = self.position(number);
        let is_known =
            number.lt(self.consumed) || self.frames.get(position).is_some_and(Option::is_some);
        if is_known {
            counters.carrier_frames_doubled += 1;
            self.owe_ack();
            pool.put(payload);
            return Ok(());
        }
        counters.carrier_frames_received += 1;
        if self.frames.len() <= position {
            self.frames.resize_with(position + 1, || None);
        }
        self.frames[position] = Some(payload);
        self.unacknowledged += 1;
        let is_in_order = number == self.next;
        while self.frames.get(self.position(self.next)).is_some_and(Option::is_some) {
            self.next += 1;
        }
        if !is_in_order || self.unacknowledged >= UNACKNOWLEDGED_MAX {
            self.owe_ack();
        } else if self.ack == AckState::Sent {
            self.ack = AckState::DueAt(now + ACK_DELAY);
        }
        Ok(())
    }

    /// Moves the next descriptor to `out`; returns false if it has not arrived.
    ///
    /// # Errors
    /// If its length is impossible.
    pub(super) fn pop(
        &mut self,
        out: &mut Vec<u8>,
        pool: &mut PacketPool,
    ) -> Result<bool, CarrierFault> {
        while let Some(Some(frame)) = self.frames.front_mut() {
            let is_whole = take(frame, &mut self.length, &mut self.descriptor)?;
            if frame.is_empty() {
                let frame = self.frames.pop_front().flatten();
                frame.into_iter().for_each(|frame| pool.put(frame));
                self.consumed += 1;
            }
            if is_whole {
                core::mem::swap(out, &mut self.descriptor);
                self.descriptor.clear();
                self.length.clear();
                self.follow_limit();
                return Ok(true);
            }
        }
        self.follow_limit();
        Ok(false)
    }

    /// Returns whether bytes have arrived that [`Self::pop`] can take.
    pub(super) fn has_bytes(&self) -> bool {
        self.frames.front().is_some_and(Option::is_some)
    }

    fn follow_limit(&mut self) {
        let raised = self.limit().distance(self.announced);
        if u32::try_from(raised).is_ok_and(|raised| raised >= LIMIT_STEP) {
            self.owe_ack();
        }
    }
}

/// Moves bytes of a frame to the length or the descriptor, until that is complete or the frame is
/// empty. Returns whether the descriptor is complete.
fn take(
    frame: &mut PacketBuf,
    length: &mut Vec<u8>,
    descriptor: &mut Vec<u8>,
) -> Result<bool, CarrierFault> {
    move_bytes(frame, LENGTH_BYTES, length);
    let Some(bytes) = length.first_chunk::<LENGTH_BYTES>() else { return Ok(false) };
    let bytes = u32::from_le_bytes(*bytes) as usize;
    if bytes == 0 || bytes > DESCRIPTOR_BYTES_MAX {
        return Err(CarrierFault::Channel);
    }
    move_bytes(frame, bytes, descriptor);
    Ok(descriptor.len() == bytes)
}

/// Appends bytes from the front of a frame until `to` has `len` of them. No key stays in the frame.
fn move_bytes(frame: &mut PacketBuf, len: usize, to: &mut Vec<u8>) {
    let count = (len - to.len()).min(frame.len());
    let bytes = &mut frame.as_mut_slice()[..count];
    to.extend_from_slice(bytes);
    if may_hold_keys(to) {
        bytes.fill(0);
    }
    frame.remove_prefix(count);
}
