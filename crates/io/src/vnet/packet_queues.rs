//! The queues of a packet socket: its receive ring, and the frames to send in one call.
//!
//! Called by [`super::VnetLink`], which owns the socket, and counts; set up by
//! [`crate::packet_socket`]. Frames are received from a ring that the kernel fills (`rx_ring`), and
//! sent several at a time (`tx_batch`).

mod rx_ring;
mod tx_batch;

use std::cell::Cell;
use std::fs::File;
use std::io;

use abi::{PacketBuf, PacketPool};

use super::{LandingBuffer, VNET_BYTES};
use crate::socket_option::get_option;
use rx_ring::{RingFrame, RxRing};
use tx_batch::TxBatch;

/// Queues of one socket.
#[derive(Debug)]
pub(crate) struct PacketQueues {
    ring: RxRing,
    /// Frames to send.
    pub(super) batch: TxBatch,
    /// Received frames that the kernel has dropped for want of room.
    dropped: Cell<u64>,
}

impl PacketQueues {
    /// Sets up the queues of a socket that is not bound yet.
    pub(crate) fn new(socket: &File) -> io::Result<Self> {
        Ok(Self { ring: RxRing::new(socket)?, batch: TxBatch::new(), dropped: Cell::new(0) })
    }

    /// Returns the next received frame with its virtio-net header; `None` if it is malformed.
    ///
    /// # Errors
    /// `WouldBlock` if no frame waits, and those of [`LandingBuffer::read`].
    pub(super) fn receive(
        &mut self,
        socket: &File,
        landing: &mut LandingBuffer,
        pool: &mut PacketPool,
    ) -> io::Result<Option<([u8; VNET_BYTES], PacketBuf)>> {
        loop {
            let frame = match self.ring.front() {
                None => return Err(io::ErrorKind::WouldBlock.into()),
                Some(RingFrame::Whole(vnet, frame)) => {
                    Ok(pool.copy(frame).map(|packet| (vnet, packet)))
                }
                Some(RingFrame::InSocket) => landing.read(socket, pool),
                Some(RingFrame::Dropped) => {
                    self.dropped.set(self.dropped.get() + 1);
                    self.ring.release();
                    continue;
                }
            };
            self.ring.release();
            return frame;
        }
    }

    /// Returns the number of received frames that were dropped because ring or socket were full.
    pub(super) fn dropped(&self, socket: &File) -> u64 {
        let mut stats = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let option = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
        // Without an answer the counts stay zero.
        let _ = get_option(socket, option, &mut stats);
        // The kernel's count starts again at each call.
        self.dropped.set(self.dropped.get() + u64::from(stats.tp_drops));
        self.dropped.get()
    }
}
