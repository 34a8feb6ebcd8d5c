//! Frames that a packet socket sends in one system call (sendmmsg(2)).
//!
//! Called by [`crate::vnet::VnetLink`]. A frame that was pushed leaves a frame that was sent in its
//! place, whose payload the device reuses ([`crate::link::Link::transmit`]).
#![expect(unsafe_code, reason = "sendmmsg reads the frames by pointers")]

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;

use abi::PacketHeader;
use abi::link::{FramePayload, FramePayloads, TxFrame};

use crate::vnet::{VNET_BYTES, fill_slices};

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
            fill_slices(own, vnet, frame);
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
            frame.payload.retain(|payload| {
                matches!(payload, FramePayload::Frame(_) | FramePayload::Packet { .. })
            });
        }
        self.sent = end;
        if self.sent == self.pushed {
            (self.sent, self.pushed) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;
    use std::sync::Arc;

    use abi::{PacketBuf, PacketPool};
    use bytes::Bytes;

    use super::*;

    const VNET: [u8; VNET_BYTES] = [7; VNET_BYTES];

    fn frame(payload: FramePayload) -> TxFrame {
        TxFrame {
            header: PacketHeader::from_bytes(b"header", 0, 0).unwrap(),
            payload: [payload].into_iter().collect(),
            segment_size: 0,
            checksum_partial: false,
        }
    }

    fn packet(bytes: &[u8]) -> Arc<PacketBuf> {
        Arc::new(PacketPool::new(1).copy(bytes).unwrap())
    }

    fn sockets() -> (File, UnixDatagram) {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        (File::from(OwnedFd::from(ours)), theirs)
    }

    /// A call sends all frames in order, and a frame that was sent comes back with the memory that
    /// the device reuses.
    #[test]
    fn frames_leave_in_one_call_and_buffers_come_back() {
        let (socket, peer) = sockets();
        let (mut batch, block) = (TxBatch::new(), packet(b"two"));
        let shared = FramePayload::Packet { packet: Arc::clone(&block), start: 1, len: 2 };
        let memory = Bytes::from_static(b"one");
        let mut first = frame(FramePayload::Host(memory));
        assert!(batch.push(VNET, &mut first) && first.is_empty());
        assert!(batch.push(VNET, &mut frame(shared)));
        let mut lens = Vec::new();
        batch.send(&socket, |sent, vnet| lens.push((sent.len(), vnet))).unwrap();
        assert_eq!(lens, [(9, VNET), (8, VNET)]);
        assert!(batch.is_empty());
        let mut read = [0; 64];
        for want in [&b"headerone"[..], b"headerwo"] {
            let len = peer.recv(&mut read).unwrap();
            assert_eq!(read[..len], [&VNET[..], want].concat());
        }
        let mut next = [b"a", b"b"].map(|bytes| frame(FramePayload::Host(bytes[..].into())));
        assert!(next.iter_mut().all(|frame| batch.push(VNET, frame)));
        assert!(next[0].payload.is_empty(), "the host's memory was released");
        assert!(matches!(next[1].payload[..], [FramePayload::Packet { .. }]), "for the device");
        assert_eq!(Arc::strong_count(&block), 2);
    }

    /// A frame for which the kernel has no room stays, and those behind it.
    #[test]
    fn frames_wait_for_room() {
        let (socket, peer) = sockets();
        let (mut batch, mut accepted) = (TxBatch::new(), 0);
        let number = |n: u32| frame(FramePayload::Host(n.to_be_bytes().to_vec().into()));
        let full = loop {
            while batch.push(VNET, &mut number(accepted)) {
                accepted += 1;
            }
            if let Err(error) = batch.send(&socket, |_, _| {}) {
                break error;
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        let (mut read, mut received) = ([0; 64], 0_u32);
        while received < accepted {
            while let Ok(len) = peer.recv(&mut read) {
                assert_eq!(read[len - 4..len], received.to_be_bytes(), "in order");
                received += 1;
            }
            let _ = batch.send(&socket, |_, _| {});
        }
        assert!(batch.is_empty());
    }
}
