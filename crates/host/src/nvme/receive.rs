//! Reception of PDUs: the byte stream is parsed in order, independent of packet boundaries.
//!
//! Called by [`NvmeTransport::poll`]. A header is collected and checked before its data, so each
//! byte of data has a destination when it is read. Bytes that the device placed at that destination
//! are skipped; all others are copied. Data digests that the device verified are not computed
//! again.

use abi::nvme_tcp::{DdpId, NvmeRxClaims, NvmeTcpState};
use alloc::vec::Vec;
use base::{Instant, SeqNum};
use bytes::Bytes;
use core::ops::Range;
use smallvec::SmallVec;
use wire::nvme::pdu::{
    COMMON_BYTES, DIGEST_BYTES, PduCommonHeader, PduFault, PduHeader, PduKind, PduRules, at,
};

use super::buffers::UncheckedRxPdu;
use super::{
    NvmeDataMatch, NvmeNegotiated, NvmeTransport, NvmeTransportEnd, NvmeTransportEvent,
    NvmeTransportPhase, NvmeTransportRole, reclaim,
};
use crate::api::{PatternMatch, SocketId};
use crate::host::Host;
use crate::l5p::inspect::InspectionCursor;

/// Maximum length of a received PDU: 16 MiB of data, and header, padding and digests.
pub(super) const PLEN_MAX: u32 = (16 << 20) + 1024;
/// Maximum number of bytes before a PDU's data: PDO is one byte.
const FRONT_BYTES_MAX: usize = 256;
/// Number of PDUs whose starts are remembered, for the device's questions.
const BOUNDARIES: usize = 128;
/// Bound on the device's claims about digests of PDUs that are not read yet.
const VERIFIED_MAX: usize = 256;

/// A PDU whose header was read.
#[derive(Debug)]
struct NvmeRxPdu {
    header: PduHeader,
    common: PduCommonHeader,
    /// Position of its first byte in the stream.
    begin: SeqNum,
    /// Data bytes read.
    done: u32,
    /// Data bytes placed by the device.
    placed: u32,
    /// All data bytes read are copies that the device has summed.
    summed: bool,
    /// CRC32C of the data read; `None` if it is not computed, because the device may verify the
    /// digest.
    sum: Option<u32>,
    /// Data of a command capsule.
    capsule: Vec<u8>,
    /// Progress of the inspection of the capsule's data; `None` before its first byte.
    inspection: Option<InspectionCursor>,
}

/// State of the parser.
#[derive(Debug)]
pub(super) struct NvmePduParser {
    /// Rules of the PDUs that are received.
    pub(super) rules: PduRules,
    /// The received part of a header or a digest.
    front: [u8; FRONT_BYTES_MAX],
    have: usize,
    pdu: Option<NvmeRxPdu>,
    /// Position of the next byte, in the stream that the device counts.
    position: SeqNum,
    /// A receive context was requested.
    attached: bool,
    /// Starts of the last PDUs, as a ring; `count` were recorded.
    boundaries: [SeqNum; BOUNDARIES],
    count: usize,
    /// Positions of PDUs whose digest the device verified.
    verified: SmallVec<[SeqNum; 4]>,
}

impl NvmePduParser {
    pub(super) fn new() -> Self {
        Self {
            rules: PduRules::NONE,
            front: [0; FRONT_BYTES_MAX],
            have: 0,
            pdu: None,
            position: SeqNum(0),
            attached: false,
            boundaries: [SeqNum(0); BOUNDARIES],
            count: 0,
            verified: SmallVec::new(),
        }
    }

    /// Returns the state for a context of the device.
    pub(super) const fn state(&self) -> NvmeTcpState {
        let PduRules { header_digest, data_digest, plen_max, .. } = self.rules;
        NvmeTcpState { header_digest, data_digest, pdu_bytes_max: plen_max, tls: None }
    }

    /// Requests a receive context, from the next PDU on whose header has not arrived. Returns
    /// whether one was requested.
    pub(super) fn attach(&mut self, now: Instant, host: &mut Host, socket: SocketId) -> bool {
        let Some(left) = self.left() else { return false };
        let (mut cx, streams) = host.streams(now);
        let Some(position) = streams.nvme_attach(&mut cx, socket, self.state(), left) else {
            return false;
        };
        // The context counts the stream from another position.
        let moved = position.0.wrapping_sub(self.position.0);
        if let Some(pdu) = &mut self.pdu {
            pdu.begin += moved;
        }
        (self.position, self.attached, self.count) = (position, true, 0);
        self.verified.clear();
        true
    }

    /// Returns the number of bytes to the next PDU; `None` if a header has arrived partially.
    fn left(&self) -> Option<u32> {
        match &self.pdu {
            Some(pdu) => pdu.common.plen.checked_sub(self.position.0.wrapping_sub(pdu.begin.0)),
            None => (self.have == 0).then_some(0),
        }
    }

    /// Returns the number of data bytes under a tag in the current PDU.
    fn under_way(&self, tag: u16) -> u32 {
        match self.pdu.as_ref().map(|pdu| &pdu.header) {
            Some(PduHeader::C2HData(data)) if data.cccid == tag => data.len,
            Some(PduHeader::H2CData(data)) if data.ttag == tag => data.len,
            _ => 0,
        }
    }

    /// Returns whether a PDU begins at a position; `None` if that is not known yet.
    pub(super) fn is_pdu_start(&self, position: SeqNum) -> Option<bool> {
        let at_boundary = self.pdu.is_none() && self.have == 0;
        if position.ge(self.position) && !(at_boundary && position == self.position) {
            return None;
        }
        let known = self.count.min(BOUNDARIES);
        let begins = self.boundaries[..known].contains(&position);
        Some(begins || at_boundary && position == self.position)
    }

    /// Returns whether the device verified a PDU's digest over the same bytes that the host read:
    /// of retransmitted bytes it may have summed another copy.
    fn is_verified(&self, pdu: &NvmeRxPdu) -> bool {
        pdu.summed && self.verified.contains(&pdu.begin)
    }

    fn note_boundary(&mut self) {
        self.boundaries[self.count % BOUNDARIES] = self.position;
        self.count += 1;
    }

    /// Collects bytes of a header or a digest until there are `wanted`. Returns how many were
    /// taken.
    fn collect_front(&mut self, bytes: &[u8], wanted: usize) -> usize {
        let take = bytes.len().min(wanted.saturating_sub(self.have));
        let end = self.have + take;
        if let Some(room) = self.front.get_mut(self.have..end) {
            room.copy_from_slice(&bytes[..take]);
        }
        self.have = end;
        take
    }

    fn advance(&mut self, bytes: usize) {
        self.position += u32::try_from(bytes).unwrap_or(0);
    }
}

/// The longest run of the next bytes for which the device's claims are uniform.
struct PlacedRun {
    len: usize,
    /// Buffer and offset in the command's data at which the device placed the bytes.
    placed: Option<(DdpId, u32)>,
    /// The device has summed the bytes.
    summed: bool,
}

/// Returns the run that begins with byte `at` of a payload.
fn run_at(placed: &NvmeRxClaims, at: usize, len: usize) -> PlacedRun {
    let at = u32::try_from(at).unwrap_or(u32::MAX);
    // Offset in a range that has begun, if it has, and the distance to its next boundary.
    let turn = |range: &Range<u32>| match at.checked_sub(range.start) {
        Some(inside) => (Some(inside), range.end - at),
        None => (None, range.start - at),
    };
    let next = placed.placements.iter().find(|placement| placement.range.end > at);
    let (inside, most) = next.map_or((None, u32::MAX), |next| turn(&next.range));
    let here = next.zip(inside).map(|(next, inside)| (next.id, next.offset.saturating_add(inside)));
    let sums = placed.summed.iter().find(|range| range.end > at);
    let (summed, until) = sums.map_or((None, u32::MAX), turn);
    PlacedRun { len: len.min(most.min(until) as usize), placed: here, summed: summed.is_some() }
}

impl NvmeTransport {
    /// Reads some received bytes. Returns whether there may be more work.
    pub(super) fn step(&mut self, host: &mut Host, found: &mut dyn FnMut(NvmeDataMatch)) -> bool {
        let len = host.peek(self.socket).len();
        if len == 0 {
            self.attach_again(host);
            return false;
        }
        let mut run = PlacedRun { len, placed: None, summed: false };
        if self.receiver.attached {
            if let Some((placed, at)) = host.nvme_streams().1.nvme_placed(self.socket) {
                run = run_at(placed, at, len);
                if !placed.verified.is_empty() {
                    let verified = core::mem::take(&mut placed.verified);
                    let room = VERIFIED_MAX.saturating_sub(self.receiver.verified.len());
                    self.receiver.verified.extend(verified.into_iter().take(room));
                }
            }
        }
        let taken = match &self.receiver.pdu {
            None => self.read_header(host, len),
            Some(pdu) if pdu.done < pdu.common.data_len => {
                if self.inspects {
                    self.inspect_data(host, len, found);
                }
                self.read_data(host, &run)
            }
            Some(_) => self.read_digest(host, len),
        };
        host.consume(self.socket, taken);
        self.receiver.advance(taken);
        self.finish(host);
        if self.phase == NvmeTransportPhase::Ended {
            self.discard(host);
        }
        true
    }

    /// Requests a receive context again if there is none, and registers the awaited buffers with
    /// it.
    fn attach_again(&mut self, host: &mut Host) {
        if self.phase != NvmeTransportPhase::Open {
            return;
        }
        let (out, streams) = host.nvme_streams();
        if streams.nvme_is_to_attach(out, self.socket, self.receiver.position)
            && self.receiver.attach(self.now, host, self.socket)
        {
            for tag in self.buffers.tags() {
                self.register_again(host, tag);
            }
        }
    }

    /// Registers a buffer that is here, for the data whose header has not arrived.
    pub(super) fn register_again(&mut self, host: &mut Host, tag: u16) {
        let under_way = self.receiver.under_way(tag);
        let Some(awaited) = self.buffers.get_mut(tag) else { return };
        let Some((range, buffer)) = awaited.take_for_registration(tag, under_way) else { return };
        let (out, streams) = host.nvme_streams();
        match streams.nvme_register(out, self.socket, range, buffer) {
            Ok(id) => awaited.set_registration(id),
            Err(buffer) => awaited.return_buffer(buffer),
        }
    }

    /// Collects bytes of a header. Returns how many were taken.
    fn read_header(&mut self, host: &Host, len: usize) -> usize {
        let receiver = &mut self.receiver;
        if receiver.have == 0 {
            receiver.note_boundary();
        }
        let bytes = &host.peek(self.socket)[..len];
        let mut taken = receiver.collect_front(bytes, COMMON_BYTES);
        if let Some(first) = receiver.front.first_chunk().filter(|_| receiver.have >= COMMON_BYTES)
        {
            // An invalid header is reported by `finish`.
            if let Ok(common) = PduCommonHeader::parse(first, &receiver.rules) {
                taken += receiver.collect_front(&bytes[taken..], front_bytes(&common));
            }
        }
        taken
    }

    /// Inspects those of the next `len` bytes that are data of the current PDU, of which the device
    /// may have placed only a part.
    fn inspect_data(&mut self, host: &mut Host, len: usize, found: &mut dyn FnMut(NvmeDataMatch)) {
        let Some(pdu) = &mut self.receiver.pdu else { return };
        let len = len.min((pdu.common.data_len - pdu.done) as usize);
        let (cccid, tag, offset, ttag) = match &pdu.header {
            PduHeader::C2HData(data) => (data.cccid, Some(data.cccid), data.offset, None),
            PduHeader::H2CData(data) => (data.cccid, Some(data.ttag), data.offset, Some(data.ttag)),
            PduHeader::CapsuleCmd(entry) => (command_id(entry), None, 0, None),
            _ => return,
        };
        let cursor = match tag.and_then(|tag| self.buffers.get_mut(tag)) {
            Some(awaited) => &mut awaited.inspection,
            None => &mut pdu.inspection,
        };
        let (out, streams) = host.nvme_streams();
        streams.inspect_nvme_data(
            out,
            (self.socket, len),
            (cursor, offset),
            &mut |PatternMatch { pattern, end }| {
                let end = u32::try_from(end).unwrap_or(u32::MAX);
                found(NvmeDataMatch { cccid, ttag, pattern, end });
            },
        );
    }

    /// Reads data. Returns how many bytes were taken.
    fn read_data(&mut self, host: &mut Host, run: &PlacedRun) -> usize {
        let Some(pdu) = &mut self.receiver.pdu else { return 0 };
        let left = (pdu.common.data_len - pdu.done) as usize;
        let take = run.len.min(left);
        let bytes = &host.peek(self.socket)[..take];
        let here = u32::try_from(take).unwrap_or(0);
        let place = match &pdu.header {
            PduHeader::C2HData(data) => Some((data.cccid, data.offset + pdu.done)),
            PduHeader::H2CData(data) => Some((data.ttag, data.offset + pdu.done)),
            _ => None,
        };
        let mut awaited = place.and_then(|(tag, _)| self.buffers.get_mut(tag));
        let inspection =
            awaited.as_mut().map_or(&mut pdu.inspection, |awaited| &mut awaited.inspection);
        inspection.iter_mut().for_each(|cursor| cursor.consume_inspected(take));
        let (mut copied, mut early) = (true, None);
        match (place, awaited) {
            (Some((_, offset)), Some(awaited)) if awaited.holds(run.placed, offset) => {
                awaited.note_placed(here);
                pdu.placed += here;
                (pdu.sum, copied) = (None, false);
            }
            (Some((tag, offset)), Some(awaited)) => {
                awaited.write(offset, bytes);
                early = awaited.is_crowded().then_some(tag);
            }
            (None, _) => pdu.capsule.extend_from_slice(bytes),
            (Some(_), None) => {}
        }
        pdu.sum = pdu.sum.map(|sum| self.crypto.crc32c(sum, bytes));
        pdu.summed &= run.summed;
        pdu.done += here;
        let counters = &mut host.out.counters;
        let bytes = if copied {
            &mut counters.nvme_rx_copied_bytes
        } else {
            &mut counters.nvme_rx_placed_bytes
        };
        *bytes += u64::from(here);
        if let Some(tag) = early {
            self.reclaim_early(host, tag);
        }
        take
    }

    /// Collects bytes of a data digest. Returns how many were taken.
    fn read_digest(&mut self, host: &Host, len: usize) -> usize {
        self.receiver.collect_front(&host.peek(self.socket)[..len], DIGEST_BYTES as usize)
    }

    /// Processes a header or a PDU that is complete.
    fn finish(&mut self, host: &mut Host) {
        let receiver = &self.receiver;
        let Some(pdu) = &receiver.pdu else {
            let Some(first) =
                receiver.front.first_chunk().filter(|_| receiver.have >= COMMON_BYTES)
            else {
                return;
            };
            let have = receiver.have;
            let kind = PduKind::from_byte(first[0]);
            // The type is checked before any other field: the fields of a PDU that must not arrive
            // have no meaning.
            let parsed = kind
                .ok_or(PduFault::field(at::TYPE))
                .and_then(|kind| self.check_kind(kind))
                .and_then(|()| PduCommonHeader::parse(first, &receiver.rules));
            let whole = parsed.map(|common| (common, have >= front_bytes(&common)));
            match whole {
                Ok((common, true)) => {
                    if let Err(fault) = self.handle_header(host, common) {
                        self.reject(host, fault, common.kind);
                    }
                }
                Ok((_, false)) => {}
                Err(fault) => self.reject(host, fault, kind.unwrap_or(PduKind::CapsuleCmd)),
            }
            return;
        };
        let digest = if pdu.common.data_digest().is_some() { DIGEST_BYTES as usize } else { 0 };
        if pdu.done == pdu.common.data_len && receiver.have >= digest {
            let receiver = &mut self.receiver;
            receiver.have = 0;
            if let Some(pdu) = receiver.pdu.take() {
                let begin = pdu.begin;
                self.handle_pdu(host, pdu);
                // Claims about this PDU and earlier ones are no longer needed: PDUs without data
                // have only header digests, which the host verifies.
                self.receiver.verified.retain(|at| !begin.ge(*at));
            }
        }
    }

    /// Terminates the connection for an invalid PDU; an invalid terminate request is not answered.
    fn reject(&mut self, host: &mut Host, fault: PduFault, kind: PduKind) {
        let header = self.receiver.front;
        let have = self.receiver.have;
        if matches!(kind, PduKind::H2CTermReq | PduKind::C2HTermReq) {
            host.shutdown(self.now, self.socket);
            return self.end(NvmeTransportEnd::TerminatedByPeer(fault));
        }
        self.terminate_for(host, fault, &header[..have.min(header.len())]);
    }

    /// Checks a complete header, before any byte after it is processed.
    fn handle_header(&mut self, host: &mut Host, common: PduCommonHeader) -> Result<(), PduFault> {
        let receiver = &mut self.receiver;
        let bare = usize::from(common.kind.header_len());
        if common.header_bytes as usize > bare {
            let (header, rest) = receiver.front.split_at(bare);
            let came = rest.first_chunk().map_or(0, |digest| u32::from_le_bytes(*digest));
            if self.crypto.crc32c(0, header) != came {
                host.out.counters.nvme_header_digest_errors += 1;
                return Err(PduFault::header_digest(came));
            }
        }
        let header = PduHeader::parse(&common, &self.receiver.front[..bare])?;
        if let Err(fault) = self.check_data(&header, &common) {
            if let PduHeader::C2HData(data) = &header {
                self.faulty_command = Some(data.cccid);
            }
            return Err(fault);
        }
        let receiver = &mut self.receiver;
        let front = u32::try_from(receiver.have).unwrap_or(0);
        // With a receive context, the digest is computed only if the device did not verify it.
        let device = receiver.attached && host.nvme_streams().1.nvme_context(self.socket).is_some();
        let sum = (receiver.rules.data_digest && !device).then_some(0);
        let begin = receiver.position - front;
        let capsule = match header {
            PduHeader::CapsuleCmd(_) => Vec::with_capacity(common.data_len as usize),
            _ => Vec::new(),
        };
        receiver.have = 0;
        receiver.pdu = Some(NvmeRxPdu {
            header,
            common,
            begin,
            done: 0,
            placed: 0,
            summed: true,
            sum,
            capsule,
            inspection: None,
        });
        host.out.counters.nvme_rx_pdus += 1;
        // A PDU without data is complete.
        if common.data_len == 0 {
            self.finish(host);
        }
        Ok(())
    }

    /// Checks whether a PDU of this type may arrive now, at this end (NVMe/TCP section 3.3.1).
    fn check_kind(&self, kind: PduKind) -> Result<(), PduFault> {
        let target = matches!(self.role, NvmeTransportRole::Target(_));
        if kind.from_host() != target {
            return Err(PduFault::field(at::TYPE));
        }
        let setup = matches!(kind, PduKind::ICReq | PduKind::ICResp);
        let ends = matches!(kind, PduKind::H2CTermReq | PduKind::C2HTermReq);
        let open = self.phase == NvmeTransportPhase::Open;
        if ends || setup != open { Ok(()) } else { Err(PduFault::SEQUENCE) }
    }

    /// Checks whether the data of a PDU has a destination.
    fn check_data(&self, header: &PduHeader, common: &PduCommonHeader) -> Result<(), PduFault> {
        let (tag, data, wrong) = match header {
            PduHeader::C2HData(data) => (data.cccid, data, at::CCCID),
            PduHeader::H2CData(data) => (data.ttag, data, at::TTAG),
            PduHeader::CapsuleCmd(_) => {
                let most = match self.role {
                    NvmeTransportRole::Target(serve) => serve.in_capsule_max,
                    NvmeTransportRole::Initiator(_) => 0,
                };
                return if common.data_len <= most {
                    Ok(())
                } else {
                    Err(PduFault::LIMIT_EXCEEDED)
                };
            }
            _ => return Ok(()),
        };
        if let NvmeTransportRole::Target(serve) = self.role {
            if data.len > serve.maxh2cdata {
                return Err(PduFault::LIMIT_EXCEEDED);
            }
        }
        // A buffer that the device has not returned yet keeps its tag on the host. That must not be
        // visible: the answer to the peer must not depend on the device.
        let awaited = self.buffers.get(tag).filter(|awaited| awaited.is_open());
        let awaited = awaited.ok_or_else(|| PduFault::field(wrong))?;
        if awaited.cccid != data.cccid {
            return Err(PduFault::field(at::CCCID));
        }
        // In order and without holes, as Linux and SPDK require.
        if !awaited.takes(data.offset, data.len) {
            return Err(PduFault::OUT_OF_RANGE);
        }
        // LAST_PDU before all data of the R2T (NVMe/TCP section 3.6.2.7) means that the rest would
        // never arrive, and SUCCESS before all data of the read (section 3.6.2.8) ends the command
        // in the same way. Checked before the data: its digest may have to wait for a buffer on the
        // device, and another fault would be reported then.
        let ends = match header {
            PduHeader::H2CData(_) => data.last,
            _ => data.success,
        };
        if ends && !awaited.completes(data.len) {
            return Err(PduFault::field(at::FLAGS));
        }
        Ok(())
    }

    /// Processes a complete PDU.
    fn handle_pdu(&mut self, host: &mut Host, pdu: NvmeRxPdu) {
        match pdu.header {
            PduHeader::ICReq(request) => {
                let NvmeTransportRole::Target(serve) = self.role else { return };
                let digests = (
                    request.header_digest && serve.header_digest,
                    request.data_digest && serve.data_digest,
                );
                self.send_setup_response(host, serve, digests);
                let negotiated = NvmeNegotiated {
                    header_digest: digests.0,
                    data_digest: digests.1,
                    pda: request.hpda,
                    maxh2cdata: serve.maxh2cdata,
                    maxr2t: request.maxr2t,
                };
                self.enter_open(host, negotiated, serve.cpda);
            }
            PduHeader::ICResp(response) => {
                let NvmeTransportRole::Initiator(params) = self.role else { return };
                let more = response.header_digest && !params.header_digest
                    || response.data_digest && !params.data_digest;
                if more {
                    return self.terminate_for(host, PduFault::field(at::DGST), &[]);
                }
                let negotiated = NvmeNegotiated {
                    header_digest: response.header_digest,
                    data_digest: response.data_digest,
                    pda: response.cpda,
                    maxh2cdata: response.maxh2cdata,
                    maxr2t: params.maxr2t,
                };
                self.enter_open(host, negotiated, params.hpda);
            }
            PduHeader::H2CTermReq(fault) | PduHeader::C2HTermReq(fault) => {
                host.shutdown(self.now, self.socket);
                self.end(NvmeTransportEnd::TerminatedByPeer(fault));
            }
            PduHeader::CapsuleCmd(sqe) => {
                let digest_ok = self.capsule_is_right(host, &pdu);
                let data = Bytes::from(pdu.capsule);
                self.events.push_back(NvmeTransportEvent::Command { sqe, data, digest_ok });
            }
            PduHeader::CapsuleResp(cqe) => self.events.push_back(NvmeTransportEvent::Response(cqe)),
            PduHeader::R2T(r2t) => {
                let wire::nvme::pdu::R2t { cccid, ttag, offset, len } = r2t;
                self.events.push_back(NvmeTransportEvent::R2t { cccid, ttag, offset, len });
            }
            PduHeader::H2CData(_) | PduHeader::C2HData(_) => self.handle_data(host, &pdu),
        }
    }

    /// Returns whether a PDU's digest is right: verified by the device, or equal to `sum` or to the
    /// sum computed while reading. `None` if no sum is known.
    fn check_digest(&mut self, host: &mut Host, pdu: &NvmeRxPdu, sum: Option<u32>) -> Option<bool> {
        if pdu.common.data_digest().is_none() {
            return Some(true);
        }
        if self.receiver.is_verified(pdu) {
            host.out.counters.nvme_rx_digests_device += 1;
            return Some(true);
        }
        let sum = sum.or(pdu.sum)?;
        let right = sum == self.digest();
        count_digest(host, right);
        Some(right)
    }

    /// Returns the data digest read last.
    fn digest(&self) -> u32 {
        self.receiver.front.first_chunk().map_or(0, |digest| u32::from_le_bytes(*digest))
    }

    fn capsule_is_right(&mut self, host: &mut Host, pdu: &NvmeRxPdu) -> bool {
        self.check_digest(host, pdu, None).unwrap_or_else(|| {
            let right = self.crypto.crc32c(0, &pdu.capsule) == self.digest();
            count_digest(host, right);
            right
        })
    }

    /// Processes a data PDU whose data has arrived completely.
    fn handle_data(&mut self, host: &mut Host, pdu: &NvmeRxPdu) {
        let (tag, data) = match &pdu.header {
            PduHeader::C2HData(data) => (data.cccid, *data),
            PduHeader::H2CData(data) => (data.ttag, *data),
            _ => return,
        };
        self.count_offload(host, pdu);
        let verdict = self.check_digest(host, pdu, None);
        let digest = self.digest();
        let Some(awaited) = self.buffers.get_mut(tag) else { return };
        awaited.received += data.len;
        awaited.unchecked.push_back(UncheckedRxPdu { data, digest, verdict });
        // The host can compute a digest only with the buffer. It reclaims the buffer after the last
        // data, so that the device continues to place until then.
        if awaited.is_needed_now(data.last) && awaited.mark_reclaimed() {
            reclaim(host, self.socket, tag);
        }
        self.reclaim_early(host, tag);
        self.report_and_return(host, tag);
    }

    /// Reclaims a buffer for which too many PDUs or pieces wait.
    fn reclaim_early(&mut self, host: &mut Host, tag: u16) {
        let Some(awaited) = self.buffers.get_mut(tag) else { return };
        if awaited.is_crowded() && awaited.mark_reclaimed() {
            host.out.counters.nvme_ddp_early += 1;
            reclaim(host, self.socket, tag);
        }
    }

    /// Counts whether the device processed a data PDU completely, partially, or not at all.
    fn count_offload(&self, host: &mut Host, pdu: &NvmeRxPdu) {
        let verified = self.receiver.is_verified(pdu);
        let checked = pdu.common.data_digest().is_none() || verified;
        let counters = &mut host.out.counters;
        let counter = match pdu.placed {
            placed if placed == pdu.common.data_len && checked => &mut counters.nvme_rx_pdus_full,
            0 if !verified => &mut counters.nvme_rx_pdus_none,
            _ => &mut counters.nvme_rx_pdus_partial,
        };
        *counter += 1;
    }

    /// Reports the PDUs of a tag, in order, up to the first whose digest cannot be checked yet.
    pub(super) fn check_digests(&mut self, host: &mut Host, tag: u16) {
        let target = matches!(self.role, NvmeTransportRole::Target(_));
        while let Some(awaited) = self.buffers.get_mut(tag) {
            let Some(&UncheckedRxPdu { data, digest, verdict }) = awaited.unchecked.front() else {
                return;
            };
            let sum = |bytes: &[u8]| self.crypto.crc32c(0, bytes) == digest;
            let Some(digest_ok) = verdict.or_else(|| awaited.bytes(data.offset, data.len).map(sum))
            else {
                return;
            };
            awaited.unchecked.pop_front();
            if verdict.is_none() {
                count_digest(host, digest_ok);
            }
            let wire::nvme::pdu::DataPduHeader { cccid, ttag, offset, len, last, success } = data;
            self.events.push_back(if target {
                NvmeTransportEvent::WriteData { cccid, ttag, offset, len, last, digest_ok }
            } else {
                NvmeTransportEvent::ReadData { cccid, offset, len, last, success, digest_ok }
            });
        }
    }
}

fn count_digest(host: &mut Host, right: bool) {
    let counters = &mut host.out.counters;
    counters.nvme_rx_digests_host += 1;
    counters.nvme_data_digest_errors += u64::from(!right);
}

/// Returns the identifier of the command in a submission queue entry (base section 3.3.3.1).
fn command_id(entry: &[u8; 64]) -> u16 {
    u16::from_le_bytes([entry[2], entry[3]])
}

/// Returns the number of bytes before the data of a PDU, or its length if it has no data; for a
/// terminate request only the header's length.
fn front_bytes(common: &PduCommonHeader) -> usize {
    let end = match common.kind {
        PduKind::H2CTermReq | PduKind::C2HTermReq => common.header_bytes,
        _ if common.data_len == 0 => common.plen,
        _ => common.data().start,
    };
    end as usize
}
