//! Frames that a packet socket sends in one system call (sendmmsg(2)).
//!
//! Called by [`super::VnetLink`]. A frame that was pushed leaves a frame that was sent in its
//! place, whose payload the device reuses ([`crate::link::Link::transmit`]).
#![expect(unsafe_code, reason = "sendmmsg reads the frames by pointers")]

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;

use abi::PacketHeader;
use abi::link::{FramePayload, FramePayloads, TxFrame};

use super::VNET_BYTES;

/// Frames of one call. More save little: a call costs a tenth of what the kernel does for a frame.
const BATCH: usize = 16;
/// Slices of all frames of a call that need no allocation.
const SLICES: usize = 128;

#[derive(Debug)]
struct QueuedFrame {
    vnet: [u8; VNET_BYTES],
    frame: TxFrame,
}

/// Frames to send, in order.
#[derive(Debug)]
pub(in crate::vnet) struct TxBatch {
    slots: Vec<QueuedFrame>,
    /// Frames that were sent or dropped since the batch was last empty.
    sent: usize,
    /// Frames that were pushed since then.
    pushed: usize,
}

impl TxBatch {
    pub(super) fn new() -> Self {
        let empty = || QueuedFrame {
            vnet: [0; VNET_BYTES],
            frame: TxFrame {
                header: PacketHeader::empty(),
                payload: FramePayloads::new(),
                segment_size: 0,
                checksum_partial: false,
            },
        };
        Self { slots: (0..BATCH).map(|_| empty()).collect(), sent: 0, pushed: 0 }
    }

    /// Appends a frame, in exchange for one that was sent. Returns false, with the frame unchanged,
    /// if there is no room.
    pub(in crate::vnet) fn push(&mut self, vnet: [u8; VNET_BYTES], frame: &mut TxFrame) -> bool {
        let Some(slot) = self.slots.get_mut(self.pushed) else { return false };
        slot.vnet = vnet;
        std::mem::swap(&mut slot.frame, frame);
        self.pushed += 1;
        true
    }

    pub(in crate::vnet) const fn is_empty(&self) -> bool {
        self.sent == self.pushed
    }

    /// Returns the frame to be sent next.
    pub(in crate::vnet) fn front(&self) -> Option<&TxFrame> {
        self.waiting().first().map(|queued| &queued.frame)
    }

    /// Removes the frame to be sent next.
    pub(in crate::vnet) fn pop_front(&mut self) {
        self.advance(1);
    }

    /// Sends frames in one call, and calls `sent` with each that was sent.
    ///
    /// # Errors
    /// That of the first frame, which stays. Interrupted calls are to be repeated.
    pub(in crate::vnet) fn send(
        &mut self,
        socket: &File,
        mut sent: impl FnMut(&TxFrame, [u8; VNET_BYTES]),
    ) -> io::Result<()> {
        let waiting = self.waiting();
        let count = waiting.iter().map(|queued| queued.frame.payload.len() + 2).sum();
        let mut few = [IoSlice::new(&[]); SLICES];
        let mut many;
        let slices = match few.get_mut(..count) {
            Some(slices) => slices,
            None => {
                many = vec![IoSlice::new(&[]); count];
                &mut many[..]
            }
        };
        // SAFETY: a mmsghdr is plain data, valid as zeros.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
        let mut rest = &mut slices[..];
        for (message, QueuedFrame { vnet, frame }) in messages.iter_mut().zip(waiting) {
            let (own, others) = rest.split_at_mut(frame.payload.len() + 2);
            rest = others;
            own[0] = IoSlice::new(vnet);
            own[1] = IoSlice::new(frame.header.as_slice());
            for (slice, payload) in own[2..].iter_mut().zip(&frame.payload) {
                *slice = IoSlice::new(payload.as_slice());
            }
            // An `IoSlice` has the layout of a `struct iovec`.
            message.msg_hdr.msg_iov = own.as_mut_ptr().cast();
            message.msg_hdr.msg_iovlen = own.len();
        }
        let number = u32::try_from(waiting.len()).map_err(io::Error::other)?;
        // SAFETY: the first `number` messages were filled in; their slices and the frames that
        // these refer to live, unchanged, until the call has returned.
        let done = unsafe { libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), number, 0) };
        let done = usize::try_from(done).map_err(|_| io::Error::last_os_error())?;
        waiting.iter().take(done).for_each(|queued| sent(&queued.frame, queued.vnet));
        self.advance(done);
        Ok(())
    }

    fn waiting(&self) -> &[QueuedFrame] {
        self.slots.get(self.sent..self.pushed).unwrap_or_default()
    }

    /// Counts frames as sent, and releases their payloads but for those that the device reuses.
    fn advance(&mut self, frames: usize) {
        let end = (self.sent + frames).min(self.pushed);
        for QueuedFrame { frame, .. } in self.slots.get_mut(self.sent..end).unwrap_or_default() {
            frame.payload.retain(|payload| matches!(payload, FramePayload::Frame(_)));
        }
        self.sent = end;
        if self.sent == self.pushed {
            (self.sent, self.pushed) = (0, 0);
        }
    }
}
