//! Batches of packets to encrypt: planned when the operation is accepted, encrypted when they
//! leave.
//!
//! [`QuicEngine::plan`] checks everything that does not depend on the bytes, and consumes the
//! packet numbers, so that these are checked in ring order; the numbers of a transmit that fails
//! later are lost. A plan holds the keys, so it can be completed even if its entry is removed.
//! [`QuicEngine::encrypt`] is called when all bytes are available. Content is never encrypted in
//! place, since host memory and file blocks are shared.
//!
//! If a packet cannot be encrypted, the whole transmit is dropped: nothing leaves unencrypted.

use abi::link::{FramePayload, FramePayloads};
use abi::quic::{QuicId, QuicProtect, QuicTxPacket};
use alloc::boxed::Box;
use alloc::sync::Arc;
use smallvec::SmallVec;
use wire::quic::NUMBER_MAX;

use super::QuicEngine;
use super::keys::{QuicEncryptFailure, QuicPacketKeys, fits_datagram};
use super::table::{QuicEntry, QuicEntryKind};
use crate::engine::payload_reader::PayloadReader;

/// A validated batch of packets.
pub(crate) struct QuicEncryptPlan {
    /// The transmit entry.
    pub(crate) quic: QuicId,
    keys: QuicPacketKeys,
    packets: SmallVec<[Option<QuicTxPacket>; 1]>,
    /// Bytes of all datagrams, and of each except the last.
    len: usize,
    size: usize,
}

/// Error: the batch cannot be encrypted. The reason was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuicNotEncrypted;

impl QuicEngine {
    /// Validates a batch of `len` bytes in datagrams of `segment_size` bytes (0: one datagram).
    /// Returns `None` if there is nothing to encrypt.
    pub(crate) fn plan(
        &mut self,
        queue: usize,
        protect: QuicProtect,
        len: usize,
        segment_size: u16,
    ) -> Result<Option<Box<QuicEncryptPlan>>, QuicNotEncrypted> {
        let QuicProtect { quic, packets } = protect;
        let size = match usize::from(segment_size) {
            0 => len,
            size => size.min(len),
        };
        if packets.len() != len.checked_div(size).map_or(1, |_| len.div_ceil(size)) {
            return Err(self.refuse_malformed());
        }
        if packets.iter().all(Option::is_none) {
            return Ok(None);
        }
        let entry = self.table.find(queue, quic).and_then(|key| self.table.get_mut(key));
        let Some(QuicEntry { keys, kind: QuicEntryKind::Transmit { next }, .. }) = entry else {
            self.counters.quic_tx_refused_unknown += 1;
            return Err(QuicNotEncrypted);
        };
        let mut above = *next;
        for (index, packet) in packets.iter().enumerate() {
            let Some(packet) = packet else { continue };
            if !fits_datagram(packet, size.min(len - index * size)) {
                return Err(self.refuse_malformed());
            }
            if packet.number < above || packet.number > NUMBER_MAX {
                self.counters.quic_tx_refused_number += 1;
                return Err(QuicNotEncrypted);
            }
            above = packet.number + 1;
        }
        *next = above;
        Ok(Some(Box::new(QuicEncryptPlan { quic, keys: keys.clone(), packets, len, size })))
    }

    /// Builds the payload of a batch from its parts.
    pub(crate) fn encrypt(
        &mut self,
        sealing: &QuicEncryptPlan,
        parts: &FramePayloads,
    ) -> Result<FramePayloads, QuicNotEncrypted> {
        let QuicEncryptPlan { keys, packets, len, size, .. } = sealing;
        if parts.iter().map(|part| part.as_slice().len()).sum::<usize>() != *len {
            return Err(self.refuse_malformed());
        }
        let mut buffer = self.outputs.take(*len);
        let room = Arc::get_mut(&mut buffer).and_then(|b| b.as_mut_slice().get_mut(..*len));
        let Some(out) = room else { return Err(self.refuse_malformed()) };
        PayloadReader::new(parts).copy(out);
        let (mut count, mut bytes) = (0, 0);
        for (datagram, packet) in out.chunks_mut((*size).max(1)).zip(packets) {
            let Some(packet) = packet else { continue };
            match keys.encrypt(packet, datagram) {
                Ok(()) => (count, bytes) = (count + 1, bytes + datagram.len() as u64),
                Err(QuicEncryptFailure::Malformed) => return Err(self.refuse_malformed()),
                Err(QuicEncryptFailure::UnknownKeys) => {
                    self.counters.quic_tx_refused_keys += 1;
                    return Err(QuicNotEncrypted);
                }
            }
        }
        self.counters.quic_tx_sealed += count;
        self.counters.quic_tx_sealed_bytes += bytes;
        self.outputs.mark_in_use(&buffer);
        let len = u32::try_from(*len).unwrap_or(0);
        let mut payloads = FramePayloads::new();
        payloads.push(FramePayload::Block { block: buffer, start: 0, len });
        Ok(payloads)
    }

    /// Counts a malformed batch.
    pub(crate) const fn refuse_malformed(&mut self) -> QuicNotEncrypted {
        self.counters.quic_tx_refused_malformed += 1;
        QuicNotEncrypted
    }

    /// Returns whether there is memory for encrypting more.
    pub(crate) const fn has_output_room(&self) -> bool {
        self.outputs.has_room()
    }

    /// Reclaims buffers of transmitted frames.
    pub(crate) fn trim(&mut self) {
        self.outputs.trim();
    }
}

impl core::fmt::Debug for QuicEncryptPlan {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Sealing({} datagrams)", self.packets.len())
    }
}
