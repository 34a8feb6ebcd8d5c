//! The pass over a piece of the stream: each byte is assigned to a PDU.
//!
//! Called by `rx`; works on a [`PduTracker`]. Headers are assembled from any number of pieces. Data
//! is copied to the buffer of its tag and summed in the same pass, in any order; when all bytes of
//! a PDU have arrived, its digests are checked. The stream itself is only read.

use abi::crypto::CryptoProvider;
use abi::nvme_tcp::{DdpId, DdpPlacement, NvmeRxClaims};
use alloc::vec::Vec;
use base::{SeqNum, internal_error};
use core::ops::Range;
use wire::nvme::pdu::{COMMON_BYTES, DataPduHeader, PduCommonHeader, PduKind, PduRules};

use super::buffers::{PduDataTarget, RegisteredBuffer, RegisteredBuffers};
use super::chain::PduTracker;
use super::counters::NvmeTcpCounters;
use super::pdu::{COMMON, HeaderTrust};
use super::search::header_digest_is_right;

/// Bytes copied and summed at a time, so that the sum reads from the first-level cache.
const CHUNK: usize = 8192;

/// Offset of the command identifier in a CapsuleCmd (base section 3.3.3.1: bytes 2 and 3 of the
/// submission queue entry).
const COMMAND_ID: usize = COMMON_BYTES + 2;

/// A range of a packet that is data of a command, and was not processed before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommandDataRange {
    /// Command identifier.
    pub(crate) cid: u16,
    /// Offset of the first byte in the command's data.
    pub(crate) offset: u64,
    /// The range of the TCP payload.
    pub(crate) range: Range<usize>,
}

/// A contiguous piece of the stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamPiece<'a> {
    /// Stream position of the first byte.
    pub(super) pos: SeqNum,
    /// Offset of the first byte in the TCP payload.
    pub(super) at: u32,
    pub(super) bytes: &'a [u8],
}

impl<'a> StreamPiece<'a> {
    /// Returns up to `len` bytes from offset `from` on.
    pub(super) fn cut(&self, from: usize, len: u32) -> Self {
        let bytes = self.bytes.get(from..).unwrap_or_default();
        let bytes = bytes.get(..len as usize).unwrap_or(bytes);
        StreamPiece {
            pos: self.pos + offset_u32(from),
            at: self.at.saturating_add(offset_u32(from)),
            bytes,
        }
    }

    pub(super) fn len(&self) -> u32 {
        offset_u32(self.bytes.len())
    }
}

/// Inputs and results of the pass over one packet.
pub(super) struct NvmeRxPass<'a> {
    pub(super) crypto: &'a dyn CryptoProvider,
    pub(super) rules: &'a PduRules,
    pub(super) buffers: &'a mut RegisteredBuffers,
    pub(super) counters: &'a mut NvmeTcpCounters,
    /// Buffers that this packet has filled.
    pub(super) filled: &'a mut Vec<RegisteredBuffer>,
    pub(super) placed: NvmeRxClaims,
    /// Data of commands; `None` if it is not inspected.
    pub(super) inspectable: Option<&'a mut Vec<CommandDataRange>>,
    /// True if bytes are placed and summed; false if PDUs are only followed.
    pub(super) offload: bool,
    /// True if a plausible header is used before the host has confirmed it.
    pub(super) trust_plausible: bool,
    /// Maximum plausible distance of a piece from the highest byte, in bytes.
    pub(super) window_bytes: u32,
    /// True if the piece arrived out of order.
    pub(super) out_of_order: bool,
    /// True if bytes were placed or a PDU was checked.
    pub(super) offloaded: bool,
    /// True if data was passed over since the last summed range.
    pub(super) skipped: bool,
    /// True if some bytes had no known boundary.
    pub(super) boundary_unknown: bool,
    /// True if bytes that were followed turned out to be no PDUs.
    pub(super) header_wrong: bool,
}

impl NvmeRxPass<'_> {
    /// Records that data in `range` of the payload is in its PDU's sum.
    fn note_summed(&mut self, range: Range<u32>) {
        match self.placed.summed.last_mut().filter(|_| !self.skipped) {
            // The bytes between the two ranges are not data.
            Some(last) => last.end = range.end,
            None => self.placed.summed.push(range),
        }
        self.skipped = false;
    }
}

impl PduTracker {
    /// Processes a piece from byte `at` on. Returns the offset of the first byte with no known
    /// boundary.
    pub(super) fn walk(
        &mut self,
        w: &mut NvmeRxPass<'_>,
        piece: &StreamPiece<'_>,
        mut at: usize,
    ) -> Option<usize> {
        while at < piece.bytes.len() {
            let pos = piece.pos + offset_u32(at);
            let mut places = self.list.iter().enumerate();
            let Some((index, pdu)) = places.find(|(_, pdu)| pos.lt(pdu.end())) else {
                return Some(at);
            };
            let last = index + 1 == self.list.len();
            let Ok(from) = u32::try_from(pos.distance(pdu.start)) else {
                // Old bytes, or a gap in which nothing is known.
                at += pdu.start.distance(pos).unsigned_abs() as usize;
                continue;
            };
            let stop = pdu.len.min(from + offset_u32(piece.bytes.len() - at));
            let unseen = if pdu.dead { stop } else { pdu.received.next_missing(from).min(stop) };
            if unseen > from {
                w.skipped = true;
                at += (unseen - from) as usize;
                self.reach(piece, at);
                continue;
            }
            let stop = stop.min(pdu.received.next_received(from));
            let (open, part) = (pdu.is_open(), piece.cut(at, stop - from));
            let taken = if !open {
                self.take(w, index, from, &part)
            } else if from < COMMON {
                self.begin(w, index, from, &part)
            } else {
                // The byte may belong to a header whose length is not known yet.
                self.keep(index, from, &part);
                w.skipped = true;
                if last {
                    return Some(at);
                }
                self.mark_passed(index, from, stop);
                part.len()
            };
            at += taken as usize;
            self.reach(piece, at);
        }
        None
    }

    fn keep(&mut self, index: usize, from: u32, part: &StreamPiece<'_>) {
        if let Some(pdu) = self.list.get_mut(index) {
            pdu.keep(from, part.bytes);
        }
    }

    fn reach(&mut self, piece: &StreamPiece<'_>, at: usize) {
        self.high = self.high.max(piece.pos + offset_u32(at.min(piece.bytes.len())));
    }

    /// Processes bytes of a common header. Returns how many were consumed.
    fn begin(
        &mut self,
        w: &mut NvmeRxPass<'_>,
        index: usize,
        from: u32,
        part: &StreamPiece<'_>,
    ) -> u32 {
        let taken = part.len().min(COMMON - from);
        let Some(pdu) = self.list.get_mut(index) else {
            internal_error!(w.counters.nic_internal_errors, "a header begins without a place");
            return taken;
        };
        let to = from + taken;
        let room = pdu.received.add(from, to);
        pdu.keep(from, &part.bytes[..taken as usize]);
        if !room {
            self.close(index);
        } else if let Some(first) = pdu.front(COMMON).and_then(<[u8]>::first_chunk) {
            let common = PduCommonHeader::parse(first, w.rules).ok();
            self.high = self.high.max(part.pos + taken);
            let fits = |common: &PduCommonHeader| {
                !matches!(common.kind, PduKind::ICReq | PduKind::ICResp)
                    && self
                        .from_initiator
                        .is_none_or(|from_host| common.kind.from_host() == from_host)
            };
            match common.filter(fits) {
                Some(common) => {
                    self.handle_common_header(index, common, w.counters);
                    if self.header(w, index, &common) {
                        self.complete(w, index);
                    }
                }
                None => self.wrong(w, index),
            }
        }
        taken
    }

    /// Handles bytes that should be a header and are not.
    fn wrong(&mut self, w: &mut NvmeRxPass<'_>, index: usize) {
        w.header_wrong = true;
        self.on_no_header(index, w.counters);
    }

    /// Processes bytes of a PDU with a known header, up to the end of its header, padding, data or
    /// digest. Returns how many were consumed.
    fn take(
        &mut self,
        w: &mut NvmeRxPass<'_>,
        index: usize,
        from: u32,
        part: &StreamPiece<'_>,
    ) -> u32 {
        let pdu = self.list.get_mut(index);
        let Some((common, pdu)) = pdu.and_then(|pdu| Some((pdu.common?, pdu))) else {
            internal_error!(w.counters.nic_internal_errors, "bytes of a PDU without a header");
            return part.len();
        };
        let data = common.data();
        let ends = [common.header_bytes, data.start, data.end];
        let end = ends.into_iter().find(|&end| from < end).unwrap_or(common.plen);
        let part = part.cut(0, end - from);
        let to = from + part.len();
        let live = w.offload && pdu.is_trusted();
        pdu.sum_incomplete |= !live && from >= common.header_bytes;
        if !pdu.received.add(from, to) {
            w.counters.nvme_tcp_pdus_given_up += 1;
            self.mark_dead(index);
            return part.len();
        }
        if from < common.header_bytes {
            pdu.keep(from, part.bytes);
            if !self.header(w, index, &common) {
                return part.len();
            }
        } else if data.contains(&from) {
            if live {
                self.data(w, index, &common, from, &part);
            } else {
                w.skipped = true;
            }
        } else if let Some(at) = common.data_digest().and_then(|d| from.checked_sub(d.start)) {
            let at = at as usize;
            pdu.digest[at..at + part.bytes.len()].copy_from_slice(part.bytes);
        }
        self.complete(w, index);
        part.len()
    }

    /// Handles further header bytes. Returns false if the complete header is invalid.
    fn header(&mut self, w: &mut NvmeRxPass<'_>, index: usize, common: &PduCommonHeader) -> bool {
        let Some(pdu) = self.list.get_mut(index) else {
            internal_error!(w.counters.nic_internal_errors, "a header of no PDU");
            return false;
        };
        let Some(front) = pdu.front(common.header_bytes) else { return true };
        if !header_digest_is_right(w.crypto, common, front) {
            // A wrong digest is an error only if the PDU is certain to be one.
            w.counters.nvme_tcp_digest_errors += u64::from(pdu.trust == HeaderTrust::Certain);
            self.wrong(w, index);
            return false;
        }
        let cid = front.get(COMMAND_ID..).and_then(<[u8]>::first_chunk);
        let cid = cid.map(|cid| u16::from_le_bytes(*cid));
        if let (PduKind::C2HData | PduKind::H2CData, Some(header)) =
            (common.kind, front.first_chunk())
        {
            let Ok(header) = DataPduHeader::parse(common, header) else {
                self.wrong(w, index);
                return false;
            };
            let tag = if common.kind == PduKind::C2HData { header.cccid } else { header.ttag };
            pdu.data_at = Some(PduDataTarget { tag, offset: header.offset, len: header.len });
            pdu.command = Some((header.cccid, header.offset));
        }
        if common.kind == PduKind::CapsuleCmd {
            pdu.command = cid.map(|cid| (cid, 0));
        }
        if pdu.trust == HeaderTrust::Certain {
            self.from_initiator = Some(common.kind.from_host());
        }
        let expected = pdu.data_at.is_some_and(|data| w.buffers.expects(&data));
        let digest = w.rules.header_digest && common.kind.can_have_header_digest();
        if w.trust_plausible && (expected || digest) {
            self.raise(index, HeaderTrust::Likely);
        }
        true
    }

    /// Places data, and sums it if the PDU has a data digest.
    fn data(
        &mut self,
        w: &mut NvmeRxPass<'_>,
        index: usize,
        common: &PduCommonHeader,
        from: u32,
        part: &StreamPiece<'_>,
    ) {
        let Some(pdu) = self.list.get_mut(index) else {
            internal_error!(w.counters.nic_internal_errors, "data of no PDU");
            return;
        };
        let at = from - common.data().start;
        let to = pdu.data_at;
        if let (Some((cid, offset)), Some(inspectable)) = (pdu.command, &mut w.inspectable) {
            let offset = u64::from(offset) + u64::from(at);
            let range = part.at as usize..part.at as usize + part.bytes.len();
            inspectable.push(CommandDataRange { cid, offset, range });
        }
        let summed = common.data_digest().is_some();
        if summed && !pdu.sum_incomplete {
            let crypto = w.crypto;
            let sum = |crc| place_and_sum(w, to, at, part, Some(crc));
            pdu.sum_incomplete = !pdu.sums.add(crypto, at, at + part.len(), sum);
            w.note_summed(part.at..part.at + part.len());
        } else {
            w.skipped = true;
            place_and_sum(w, to, at, part, None);
        }
        w.offloaded = true;
        if w.out_of_order {
            w.counters.nvme_tcp_out_of_order_bytes += u64::from(part.len());
        }
    }

    /// Checks the digests of a PDU if all its bytes have arrived.
    fn complete(&mut self, w: &mut NvmeRxPass<'_>, index: usize) {
        let Some(pdu) = self.list.get(index).filter(|pdu| pdu.received.covers(0, pdu.len)) else {
            return;
        };
        let live = w.offload && pdu.is_trusted() && !pdu.sum_incomplete;
        let whole = |common: &PduCommonHeader| live && pdu.front(common.header_bytes).is_some();
        let Some(common) = pdu.common.filter(whole) else { return self.mark_dead(index) };
        let data = common.data();
        let right = common.data_digest().is_none()
            || pdu.sums.of(0, data.end - data.start) == Some(u32::from_le_bytes(pdu.digest));
        let any = common.data_digest().is_some() || w.rules.header_digest;
        if !right {
            w.counters.nvme_tcp_digest_errors += 1;
        } else if any && common.kind.can_have_header_digest() {
            w.placed.verified.push(pdu.start);
            w.counters.nvme_tcp_pdus_verified += 1;
        }
        w.offloaded = true;
        self.mark_dead(index);
    }
}

/// Copies data to its buffer, if it has one, and sums it, if `crc` is the sum of the preceding
/// bytes. `at` is the offset in the PDU's data. Returns the new sum.
fn place_and_sum(
    w: &mut NvmeRxPass<'_>,
    to: Option<PduDataTarget>,
    at: u32,
    part: &StreamPiece<'_>,
    crc: Option<u32>,
) -> u32 {
    let Some(data) = to else { return sum(w.crypto, crc, part.bytes) };
    let Some(buffer) = w.buffers.find_for(&data) else { return sum(w.crypto, crc, part.bytes) };
    let start = buffer.at(data.offset) + at;
    let range = start..start + part.len();
    let mut made = crc;
    if buffer.first_uniform_part(&range) == (range.end, true) {
        let Some(mut memory) = buffer.claim(&range) else { return sum(w.crypto, crc, part.bytes) };
        for from in part.bytes.chunks(CHUNK) {
            memory.write_next(from);
            made = made.map(|crc| w.crypto.crc32c(crc, from));
        }
        record_placement(
            &mut w.placed,
            buffer.id,
            buffer.offset_of(start),
            part.at..part.at + part.len(),
        );
        w.counters.rx_nvmeotcp_bytes += u64::from(part.len());
    } else {
        made = made.map(|crc| w.crypto.crc32c(crc, part.bytes));
        let placed = fill(buffer, &range, part, &mut w.placed);
        w.counters.rx_nvmeotcp_bytes += u64::from(placed);
    }
    if buffer.is_full() {
        w.filled.extend(w.buffers.remove(data.tag));
    }
    made.unwrap_or(0)
}

fn sum(crypto: &dyn CryptoProvider, crc: Option<u32>, bytes: &[u8]) -> u32 {
    crc.map_or(0, |crc| crypto.crc32c(crc, bytes))
}

/// Writes the bytes of a buffer range that were not written before. Returns how many they are.
fn fill(
    buffer: &mut RegisteredBuffer,
    range: &Range<u32>,
    part: &StreamPiece<'_>,
    placed: &mut NvmeRxClaims,
) -> u32 {
    let (mut at, mut written) = (range.start, 0);
    while at < range.end {
        let (end, free) = buffer.first_uniform_part(&(at..range.end));
        let (from, to) = (at - range.start, end - range.start);
        let bytes = part.bytes.get(from as usize..to as usize);
        if let (true, Some(bytes)) = (free, bytes) {
            if let Some(mut memory) = buffer.claim(&(at..end)) {
                memory.write_next(bytes);
                record_placement(
                    placed,
                    buffer.id,
                    buffer.offset_of(at),
                    part.at + from..part.at + to,
                );
                written += to - from;
            }
        }
        at = end;
    }
    written
}

/// Records that a range of the payload was placed.
fn record_placement(placed: &mut NvmeRxClaims, id: DdpId, offset: u32, range: Range<u32>) {
    placed.placements.push(DdpPlacement { range, id, offset });
}

#[expect(clippy::cast_possible_truncation, reason = "offsets lie in a frame of at most 66 KiB")]
pub(super) const fn offset_u32(at: usize) -> u32 {
    at as u32
}
