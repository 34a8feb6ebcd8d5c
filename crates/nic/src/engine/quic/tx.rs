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
//!
//! With workers, the headers of all packets are checked first, so that encryption cannot fail
//! later; then jobs take the place of bytes.

use abi::link::{FramePayload, FramePayloads};
use abi::quic::{QuicId, QuicProtect, QuicTxPacket};
use alloc::sync::Arc;
use alloc::vec::Vec;
use bytes::Bytes;
use smallvec::SmallVec;
use wire::quic::NUMBER_MAX;

use super::QuicEngine;
use super::jobs::QuicSealJob;
use super::keys::{QuicEncryptFailure, QuicPacketKeys, fits_datagram};
use super::table::{QuicEntry, QuicEntryKind};
use crate::engine::encrypt_buffers::{JOB_BYTES_MAX, JOB_BYTES_MIN};
use crate::engine::payload_reader::PayloadReader;

/// Longest header of a packet in plaintext, by the width of its fields in [`QuicTxPacket`].
const TX_HEADER_BYTES_MAX: usize = u8::MAX as usize + wire::quic::NUMBER_BYTES_MAX;

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
    ) -> Result<Option<Arc<QuicEncryptPlan>>, QuicNotEncrypted> {
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
        Ok(Some(Arc::new(QuicEncryptPlan { quic, keys: keys.clone(), packets, len, size })))
    }

    /// Builds the payload of a batch from its parts. If there are workers, the payload has empty
    /// parts in place of the output of the `jobs` that are added.
    pub(crate) fn encrypt(
        &mut self,
        sealing: &Arc<QuicEncryptPlan>,
        parts: &FramePayloads,
        jobs: Option<&mut Vec<QuicSealJob>>,
    ) -> Result<FramePayloads, QuicNotEncrypted> {
        let len = &sealing.len;
        if parts.iter().map(|part| part.as_slice().len()).sum::<usize>() != *len {
            return Err(self.refuse_malformed());
        }
        if let Some(jobs) = jobs.filter(|_| *len >= JOB_BYTES_MIN) {
            return self.stage(sealing, parts, jobs);
        }
        let mut buffer = self.outputs.take(*len);
        let room = Arc::get_mut(&mut buffer).and_then(|b| b.as_mut_slice().get_mut(..*len));
        let Some(out) = room else { return Err(self.refuse_malformed()) };
        PayloadReader::new(parts).copy(out);
        if let Err(why) = sealing.encrypt_datagrams(0, out) {
            return Err(self.refuse(why));
        }
        self.count_sealed(sealing);
        self.outputs.mark_in_use(&buffer);
        let len = u32::try_from(*len).unwrap_or(0);
        let mut payloads = FramePayloads::new();
        payloads.push(FramePayload::Block { block: buffer, start: 0, len });
        Ok(payloads)
    }

    /// Builds jobs that encrypt a batch, and a payload of as many empty parts.
    fn stage(
        &mut self,
        sealing: &Arc<QuicEncryptPlan>,
        parts: &FramePayloads,
        jobs: &mut Vec<QuicSealJob>,
    ) -> Result<FramePayloads, QuicNotEncrypted> {
        let QuicEncryptPlan { len, size, ref packets, .. } = **sealing;
        if let Err(why) = sealing.check_headers(parts) {
            return Err(self.refuse(why));
        }
        self.count_sealed(sealing);
        let datagrams = packets.len().div_ceil(len.div_ceil(JOB_BYTES_MAX));
        let (mut source, mut payloads) = (PayloadReader::new(parts), FramePayloads::new());
        for first in (0..packets.len()).step_by(datagrams) {
            let bytes = (datagrams * size).min(len - first * size);
            let mut plaintext = FramePayloads::new();
            source.share(u32::try_from(bytes).unwrap_or(0), &mut plaintext);
            jobs.push(QuicSealJob {
                plan: Arc::clone(sealing),
                first,
                plaintext,
                buffer: self.outputs.take(bytes),
                len: bytes,
                part: payloads.len(),
            });
            payloads.push(FramePayload::Host(Bytes::new()));
        }
        Ok(payloads)
    }

    /// Records that frames share the output of a job.
    pub(crate) fn on_sealed(&mut self, job: &QuicSealJob) {
        self.outputs.mark_in_use(&job.buffer);
    }

    fn count_sealed(&mut self, sealed: &QuicEncryptPlan) {
        for (index, packet) in sealed.packets.iter().enumerate() {
            if packet.is_some() {
                let bytes = sealed.size.min(sealed.len - index * sealed.size);
                self.counters.quic_tx_sealed += 1;
                self.counters.quic_tx_sealed_bytes += bytes as u64;
            }
        }
    }

    fn refuse(&mut self, why: QuicEncryptFailure) -> QuicNotEncrypted {
        match why {
            QuicEncryptFailure::Malformed => self.refuse_malformed(),
            QuicEncryptFailure::UnknownKeys => {
                self.counters.quic_tx_refused_keys += 1;
                QuicNotEncrypted
            }
        }
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

impl QuicEncryptPlan {
    /// Encrypts in place the datagrams in `out`, which begin with that of index `first`.
    pub(super) fn encrypt_datagrams(
        &self,
        first: usize,
        out: &mut [u8],
    ) -> Result<(), QuicEncryptFailure> {
        let packets = self.packets.get(first..).unwrap_or_default();
        for (datagram, packet) in out.chunks_mut(self.size.max(1)).zip(packets) {
            if let Some(packet) = packet {
                self.keys.encrypt(packet, datagram)?;
            }
        }
        Ok(())
    }

    /// Checks what [`Self::encrypt_datagrams`] checks, without encrypting.
    fn check_headers(&self, parts: &FramePayloads) -> Result<(), QuicEncryptFailure> {
        let mut header = [0; TX_HEADER_BYTES_MAX];
        let mut source = PayloadReader::new(parts);
        let mut at = 0;
        for (index, packet) in self.packets.iter().enumerate() {
            let Some(packet) = packet else { continue };
            let begin = index * self.size + usize::from(packet.begin);
            let len = usize::from(packet.pn_offset) + usize::from(packet.pn_len);
            let header = header.get_mut(..len).ok_or(QuicEncryptFailure::Malformed)?;
            source.skip(u32::try_from(begin - at).unwrap_or(u32::MAX));
            source.copy(header);
            at = begin + len;
            self.keys.check(packet, header)?;
        }
        Ok(())
    }
}

impl core::fmt::Debug for QuicEncryptPlan {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Sealing({} datagrams)", self.packets.len())
    }
}
