//! Receive ring of a packet socket: frames that are received without a system call
//! (`Documentation/networking/packet_mmap.rst` of Linux, `TPACKET_V2`).
//!
//! Called by [`super::PacketQueues`]. The kernel copies each frame into the next slot, behind its
//! virtio-net header. A slot has room for a packet; the kernel leaves a longer frame, a merged run,
//! in the socket's receive queue (`PACKET_COPY_THRESH`), in the order of the slots. Kernel and
//! process own a slot in turns: its status says whose it is.
//!
//! Version 3 packs frames of any length into blocks, but hands a block over only when it is full or
//! a millisecond old, which every request and every acknowledgment of a quiet connection would wait
//! for.
#![expect(unsafe_code, reason = "memory that is shared with the kernel")]

use std::fs::File;
use std::io;
use std::mem::size_of;
use std::sync::atomic::{AtomicU32, Ordering};

use super::VNET_BYTES;
use crate::mapping::Mapping;
use crate::socket_option::set_option;

/// Bytes of a slot: the kernel's header, which with the space for alignment takes 76 bytes, and an
/// Ethernet frame.
const SLOT_BYTES: usize = 2048;
/// Slots, a power of two. A burst of as many frames may arrive while the thread does not run.
const SLOTS: usize = 4096;
/// Bytes that the kernel allocates at a time.
const BLOCK_BYTES: usize = 64 << 10;
/// `TPACKET_V2` of `enum tpacket_versions`.
const VERSION: libc::c_int = 1;

/// The frame of a slot.
pub(super) enum RingFrame<'a> {
    /// The whole frame and its virtio-net header.
    Whole([u8; VNET_BYTES], &'a [u8]),
    /// The frame is the next one in the socket's receive queue.
    InSocket,
    /// The frame is longer than a slot, and the receive queue was full.
    Dropped,
}

/// Receive ring of one socket.
#[derive(Debug)]
pub(super) struct RxRing {
    mapping: Mapping,
    /// Slot of the next frame.
    next: usize,
}

impl RxRing {
    /// Sets up the ring of a socket that is not bound yet.
    pub(super) fn new(socket: &File) -> io::Result<Self> {
        let bytes = SLOTS * SLOT_BYTES;
        let number = |n: usize| u32::try_from(n).map_err(io::Error::other);
        let request = libc::tpacket_req {
            tp_block_size: number(BLOCK_BYTES)?,
            tp_block_nr: number(bytes / BLOCK_BYTES)?,
            tp_frame_size: number(SLOT_BYTES)?,
            tp_frame_nr: number(SLOTS)?,
        };
        let threshold: libc::c_int = 1;
        set_option(socket, (libc::SOL_PACKET, libc::PACKET_VERSION), &VERSION)?;
        set_option(socket, (libc::SOL_PACKET, libc::PACKET_COPY_THRESH), &threshold)?;
        set_option(socket, (libc::SOL_PACKET, libc::PACKET_RX_RING), &request)?;
        Ok(Self { mapping: Mapping::shared(socket, bytes, 0)?, next: 0 })
    }

    /// Returns the next frame, which stays in its slot until [`Self::release`].
    pub(super) fn front(&self) -> Option<RingFrame<'_>> {
        if self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the slot is ours until it is released; `slot` returns a pointer to its first
        // byte, which the kernel has aligned for its header.
        let header = unsafe { self.slot().cast::<libc::tpacket2_hdr>().read() };
        if header.tp_status & libc::TP_STATUS_COPY != 0 {
            return Some(RingFrame::InSocket);
        }
        // SAFETY: the slot lies in the mapping and is ours: the kernel writes to it only after it
        // was released, which needs `&mut self`.
        let slot = unsafe { std::slice::from_raw_parts(self.slot(), SLOT_BYTES) };
        let (from, bytes) = (usize::from(header.tp_mac), header.tp_snaplen as usize);
        let vnet = from.checked_sub(VNET_BYTES).and_then(|at| slot.get(at..)?.first_chunk());
        let frame = slot.get(from..).and_then(|rest| rest.get(..bytes));
        match (vnet, frame) {
            (Some(vnet), Some(frame)) if header.tp_len == header.tp_snaplen => {
                Some(RingFrame::Whole(*vnet, frame))
            }
            _ => Some(RingFrame::Dropped),
        }
    }

    /// Returns the slot of the frame that [`Self::front`] has returned to the kernel.
    pub(super) fn release(&mut self) {
        self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % SLOTS;
    }

    fn slot(&self) -> *mut u8 {
        // SAFETY: `next` is less than the number of slots, which fill the mapping.
        unsafe { self.mapping.base().as_ptr().add(self.next * SLOT_BYTES) }
    }

    fn status(&self) -> &AtomicU32 {
        const { assert!(std::mem::offset_of!(libc::tpacket2_hdr, tp_status) == 0) };
        const { assert!(size_of::<libc::tpacket2_hdr>() < SLOT_BYTES) };
        // SAFETY: the status is the first word of a slot; kernel and process access it by atomic
        // operations only, but for the read in `front`, while the kernel does not write.
        unsafe { AtomicU32::from_ptr(self.slot().cast()) }
    }
}
