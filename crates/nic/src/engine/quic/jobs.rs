//! Encryption and decryption of packets that workers may do beside the device.
//!
//! Packets are independent of each other, so any number of workers may have some. `tx` makes a
//! [`QuicSealJob`] of several datagrams of a batch, `rx` a [`QuicOpenPacket`] of a received one;
//! [`crate::Device`] passes them to the workers and returns the results. A job owns its memory and
//! shares keys. It decides nothing: whether a packet number is new, and whether a received packet
//! has the number that was assumed, is decided by the engine, in the order of transmission or
//! arrival.

use abi::PacketBuf;
use abi::aligned::AlignedBuf;
use abi::link::{FramePayload, FramePayloads};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use super::QuicEncryptPlan;
use super::keys::QuicAhead;
use crate::engine::payload_reader::PayloadReader;

/// Encryption of some datagrams of a batch.
pub(crate) struct QuicSealJob {
    pub(super) plan: Arc<QuicEncryptPlan>,
    /// Index of the first datagram in the batch.
    pub(super) first: usize,
    /// Plaintext of the datagrams.
    pub(super) plaintext: FramePayloads,
    /// Buffer for the encrypted datagrams, not shared before the job has ended.
    pub(super) buffer: Arc<AlignedBuf>,
    /// Length of the datagrams in bytes.
    pub(super) len: usize,
    /// Index among the parts of the payload.
    pub(super) part: usize,
}

/// A received packet whose keys and number are known, unless the packets before it change them.
pub(crate) struct QuicOpenPacket {
    pub(super) packet: PacketBuf,
    /// Range of the encrypted text and its tag in `packet`.
    pub(super) text: Range<usize>,
    pub(super) ahead: QuicAhead,
    /// Index among the frames that wait for workers.
    pub(crate) frame: usize,
}

/// Decryption of several packets. Reused, so that no memory is allocated per job.
#[derive(Default)]
pub(crate) struct QuicOpenJob {
    pub(crate) packets: Vec<QuicOpenPacket>,
    /// Number of the set of frames to which the packets belong.
    pub(crate) batch: u64,
    /// Copy of a packet's ciphertext until it is verified.
    scratch: Vec<u8>,
}

impl QuicSealJob {
    /// Returns the length of the output in bytes.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Encrypts the datagrams. Returns whether all of them are encrypted; if not, the buffer is
    /// empty of plaintext.
    pub(crate) fn run(&mut self) -> bool {
        let room = Arc::get_mut(&mut self.buffer).map(|buffer| buffer.as_mut_slice());
        let Some(out) = room.and_then(|room| room.get_mut(..self.len)) else { return false };
        PayloadReader::new(&self.plaintext).copy(out);
        let sealed = self.plan.encrypt_datagrams(self.first, out).is_ok();
        if !sealed {
            out.fill(0);
        }
        sealed
    }

    /// Returns the index of the encrypted part in the payload, and the part.
    pub(crate) fn into_part(self) -> (usize, FramePayload) {
        let len = u32::try_from(self.len).unwrap_or(0);
        (self.part, FramePayload::Block { block: self.buffer, start: 0, len })
    }
}

impl QuicOpenJob {
    /// Decrypts the packets that were not decrypted yet.
    pub(crate) fn run(&mut self) {
        for QuicOpenPacket { packet, text, ahead, .. } in &mut self.packets {
            let text = packet.as_mut_slice().get_mut(text.clone()).unwrap_or_default();
            self.scratch.clear();
            self.scratch.extend_from_slice(text);
            let opened = ahead.keys.open(ahead.number, &ahead.header, text);
            if !opened {
                text.copy_from_slice(&self.scratch);
            }
            ahead.opened = Some(opened);
        }
    }
}

impl QuicOpenPacket {
    /// Returns whether the packet is as it arrived, or decrypted. A job that was interrupted leaves
    /// packets in neither state.
    pub(crate) const fn has_ended(&self) -> bool {
        self.ahead.opened.is_some()
    }

    /// Returns the packet's buffer.
    pub(crate) fn into_packet(self) -> PacketBuf {
        self.packet
    }
}
