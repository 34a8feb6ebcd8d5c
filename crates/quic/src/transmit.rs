//! Transmission: passes the datagrams that quinn-proto built to the host's UDP socket, encrypted or
//! for the device to encrypt.
//!
//! If packets were left in plaintext ([`crate::protection`]), each is parsed. File content becomes
//! parts that the device reads. With transmit offload each packet's layout goes to the device;
//! otherwise the packets are encrypted here. A packet with file content that the device cannot read
//! (after a device reset, a refused offload, or with too many extents for one transmit) is delayed
//! until the host has read the content; no other packets are delayed here.

use core::net::{IpAddr, SocketAddr};
use std::ops::Range;

use abi::crypto::TAG_BYTES;
use abi::quic::{QuicId, QuicProtect, QuicTxPacket};
use abi::{ExtentCount, FileExtent, FileFault, FileLimits, TransmitPart, TransmitParts};
use base::internal_error;
use bytes::Bytes;
use host::{FaultScope, UdpSend};
use quinn_proto::Transmit;
use wire::Endpoint;
use wire::quic::{QuicFrame, QuicFrames, QuicStreamFrame};

use crate::connection::{QuicConnection, QuicEnv, ReadPurpose};
use crate::counters::QuicEndpointCounters;
use crate::file_ranges::Placeholders;
use crate::frames::short_header_offset;
use crate::protection::DeferredPacket;

/// Maximum datagrams per transmit: 1,452-byte datagrams in 64 KiB.
const DATAGRAMS_MAX: usize = 45;
/// Up to this length a batch is copied out of the buffer; longer ones take the buffer with them.
const COPY_BYTES_MAX: usize = 4096;

/// Layout of a datagram in a batch.
#[derive(Debug)]
pub(crate) struct DatagramPlan {
    /// Range of the datagram in the batch.
    range: Range<usize>,
    /// The 1-RTT packet in plaintext, if any: its offset in the datagram, and its record.
    packet: Option<(usize, DeferredPacket)>,
    /// Gaps to fill with file content; offsets are relative to the batch.
    placeholders: Placeholders,
}

impl DatagramPlan {
    /// Returns whether one transmit can carry the extents of all placeholders. A datagram with the
    /// ends of many short responses may have too many.
    fn fits_a_transmit(&self) -> bool {
        if self.placeholders.len() <= FileLimits::EXTENTS_PER_TRANSMIT_MAX {
            return true; // The usual case.
        }
        let mut extents = ExtentCount::default();
        self.placeholders.iter().all(|hole| extents.add(&hole.extent()))
    }
}

/// A datagram that waits for file content.
#[derive(Debug)]
pub(crate) struct PendingDatagram {
    pub(crate) id: u64,
    datagram: Vec<u8>,
    packet_begin: usize,
    record: DeferredPacket,
    placeholders_left: usize,
    path: DatagramPath,
}

/// Addresses and ECN of a datagram.
#[derive(Clone, Copy, Debug)]
struct DatagramPath {
    remote: SocketAddr,
    source: Option<IpAddr>,
    ecn: u8,
}

impl DatagramPath {
    fn of(transmit: &Transmit) -> Self {
        let ecn = transmit.ecn.map_or(0, |ecn| ecn as u8);
        Self { remote: transmit.destination, source: transmit.src_ip, ecn }
    }
}

/// Returns the length of each datagram of a batch, or 0 for a single datagram.
fn segment_size(transmit: &Transmit) -> u16 {
    let size = transmit.segment_size.filter(|size| *size < transmit.size);
    size.and_then(|size| u16::try_from(size).ok()).unwrap_or(0)
}

/// Builds a send operation for bytes that need no protection, outside of any flow.
pub(crate) fn unprotected_send(transmit: &Transmit, bytes: Bytes) -> UdpSend {
    let way = DatagramPath::of(transmit);
    UdpSend {
        flow: abi::FlowId::NONE,
        source: way.source,
        remote: Endpoint { addr: way.remote.ip(), port: way.remote.port() },
        ecn: way.ecn,
        segment_size: segment_size(transmit),
        parts: [TransmitPart::Host(bytes)].into_iter().collect(),
        retransmission: false,
        echo: None,
        protect: None,
    }
}

impl QuicConnection {
    /// Sends everything that the connection may send now.
    pub(crate) fn transmit(&mut self, cx: &mut QuicEnv<'_>) {
        self.update_losses(cx);
        let mtu = usize::from(self.inner.current_mtu()).max(1);
        let most = (cx.host.udp_bytes_max() as usize / mtu).clamp(1, DATAGRAMS_MAX);
        loop {
            // Packets that the device encrypts, or that may lack file content, stay in plaintext.
            self.shared.begin_batch(self.offload.tx().is_some() || !self.file_map.is_empty());
            cx.scratch.buffer.clear();
            cx.scratch.buffer.reserve(mtu * most);
            let time = cx.time();
            let made = self.inner.poll_transmit(time, most, &mut cx.scratch.buffer);
            let Some(transmit) = made else { break };
            self.bytes += transmit.size as u64;
            self.shared.take_records(&mut cx.scratch.records);
            self.send(cx, &transmit);
        }
        self.shared.begin_batch(false);
    }

    fn send(&mut self, cx: &mut QuicEnv<'_>, transmit: &Transmit) {
        let size = transmit.segment_size.unwrap_or(transmit.size).max(1);
        let count = transmit.size.div_ceil(size) as u64;
        cx.counters.quic_out_datagrams += count;
        if cx.scratch.records.is_empty() {
            let bytes = take_bytes(&mut cx.scratch.buffer);
            cx.host.udp_send(
                cx.now,
                cx.socket,
                UdpSend { flow: self.flow, ..unprotected_send(transmit, bytes) },
            );
            return;
        }
        let mut plans = core::mem::take(&mut cx.scratch.plans);
        plans.clear();
        match self.plan(cx, transmit.size, size, &mut plans) {
            Some(first) => self.send_planned(cx, transmit, &plans, first),
            // A batch that cannot be parsed would be sent in plaintext; drop it instead.
            None => cx.counters.quic_out_malformed += count,
        }
        cx.scratch.plans = plans;
    }

    /// Parses a batch into `plans`. Returns whether all file content in it is sent for the first
    /// time, or `None` if it cannot be parsed.
    fn plan(
        &mut self,
        cx: &QuicEnv<'_>,
        len: usize,
        size: usize,
        plans: &mut Vec<DatagramPlan>,
    ) -> Option<bool> {
        let mut records = cx.scratch.records.iter();
        let (mut begin, mut first) = (0, true);
        while begin < len {
            let range = begin..len.min(begin + size);
            begin = range.end;
            let datagram = cx.scratch.buffer.get(range.clone())?;
            let mut holes = Placeholders::new();
            let packet = match short_header_offset(datagram) {
                None => None,
                Some(at) => {
                    let record = *records.next()?;
                    let text = at + record.header_len..datagram.len().checked_sub(TAG_BYTES)?;
                    let payload = datagram.get(text.clone())?;
                    if record.len != datagram.len() - at {
                        return None;
                    }
                    first &=
                        self.find_placeholders(payload, range.start + text.start, &mut holes)?;
                    Some((at, record))
                }
            };
            plans.push(DatagramPlan { range, packet, placeholders: holes });
        }
        records.next().is_none().then_some(first)
    }

    /// Collects the holes in a packet's payload, which begins at offset `at` of the batch. Returns
    /// whether all file content in it is sent for the first time, or `None` if it is malformed.
    fn find_placeholders(
        &mut self,
        payload: &[u8],
        at: usize,
        holes: &mut Placeholders,
    ) -> Option<bool> {
        if self.file_map.is_empty() {
            return Some(true);
        }
        let mut first = true;
        for frame in QuicFrames::new(payload) {
            if let QuicFrame::Stream(QuicStreamFrame { id, offset, data, .. }) = frame.ok()? {
                first &= self.file_map.collect_placeholders(
                    id,
                    offset,
                    at + data.start..at + data.end,
                    holes,
                );
            }
        }
        Some(first)
    }

    fn send_planned(
        &mut self,
        cx: &mut QuicEnv<'_>,
        transmit: &Transmit,
        plans: &[DatagramPlan],
        first: bool,
    ) {
        let by_device = self.offload.tx();
        let mut holes = plans.iter().flat_map(|plan| &plan.placeholders);
        let has_holes = holes.clone().next().is_some();
        let readable = holes.all(|hole| cx.host.extent_reader(hole.file).is_ok())
            && !(has_holes && self.read_files_on_host);
        match by_device {
            Some(quic) if readable => {
                // Nearly always there is one run, of datagrams that fit.
                for run in plans.chunk_by(|a, b| a.fits_a_transmit() == b.fits_a_transmit()) {
                    match run.first().is_some_and(DatagramPlan::fits_a_transmit) {
                        true => self.send_by_device(cx, quic, transmit, run, first),
                        false => {
                            cx.counters.quic_out_too_many_extents += run.len() as u64;
                            self.send_separately(cx, DatagramPath::of(transmit), run);
                        }
                    }
                }
            }
            _ if !has_holes => {
                let mut buffer = core::mem::take(&mut cx.scratch.buffer);
                for plan in plans {
                    if let Some((begin, record)) = &plan.packet {
                        self.seal(cx.counters, &mut buffer[plan.range.clone()], *begin, record);
                    }
                }
                cx.scratch.buffer = buffer;
                let bytes = take_bytes(&mut cx.scratch.buffer);
                let send = UdpSend { flow: self.flow, ..unprotected_send(transmit, bytes) };
                cx.host.udp_send(cx.now, cx.socket, send);
            }
            _ => self.send_separately(cx, DatagramPath::of(transmit), plans),
        }
    }

    /// Sends consecutive datagrams of a batch, which the device encrypts.
    fn send_by_device(
        &mut self,
        cx: &mut QuicEnv<'_>,
        quic: QuicId,
        transmit: &Transmit,
        plans: &[DatagramPlan],
        first: bool,
    ) {
        let newest = plans.iter().filter_map(|plan| Some(plan.packet?.1.generation)).max();
        self.offload.ensure_tx_keys(&mut cx.device(), &self.shared, newest.unwrap_or(0));
        let packets = plans.iter().map(packet_layout).collect();
        let protect = Some(Box::new(QuicProtect { quic, packets }));
        cx.counters.quic_out_for_device += plans.len() as u64;
        let has_holes = plans.iter().any(|plan| !plan.placeholders.is_empty());
        let begin = plans.first().map_or(0, |plan| plan.range.start);
        let end = plans.last().map_or(0, |plan| plan.range.end);
        let parts = match has_holes || begin > 0 || end < cx.scratch.buffer.len() {
            true => split_parts(&cx.scratch.buffer, begin..end, plans),
            false => [TransmitPart::Host(take_bytes(&mut cx.scratch.buffer))].into_iter().collect(),
        };
        let segment_size = if plans.len() > 1 { segment_size(transmit) } else { 0 };
        let sealed = unprotected_send(transmit, Bytes::new());
        let (flow, retransmission, echo) = (self.flow, !first, files_of(plans));
        let send = UdpSend { flow, parts, segment_size, retransmission, echo, protect, ..sealed };
        cx.host.udp_send(cx.now, cx.socket, send);
    }

    /// Encrypts a packet of a datagram as the device would. If that is impossible the datagram is
    /// overwritten with zeros; plaintext is never sent.
    fn seal(
        &self,
        counters: &mut QuicEndpointCounters,
        datagram: &mut [u8],
        begin: usize,
        record: &DeferredPacket,
    ) {
        let state = self.shared.lock();
        let keys = state.generation(record.generation).map(|generation| &generation.tx);
        let (Some(keys), Some(header)) = (keys, &state.tx_header) else {
            datagram.fill(0);
            return;
        };
        let Some(packet) = datagram.get_mut(begin..) else {
            internal_error!(counters.quic_internal_errors, "a packet behind its datagram");
            datagram.fill(0);
            return;
        };
        keys.encrypt_packet(record.number, packet, record.header_len);
        header.protect(record.header_len.saturating_sub(record.pn_len), packet);
    }

    /// Sends the datagrams of a batch separately; those with holes after the host has filled them.
    fn send_separately(&mut self, cx: &mut QuicEnv<'_>, way: DatagramPath, plans: &[DatagramPlan]) {
        for plan in plans {
            let Some(bytes) = cx.scratch.buffer.get(plan.range.clone()) else {
                internal_error!(cx.counters.quic_internal_errors, "a datagram behind its batch");
                return;
            };
            let mut datagram = bytes.to_vec();
            let Some((begin, record)) = plan.packet else {
                self.send_one(cx, way, datagram);
                continue;
            };
            if plan.placeholders.is_empty() {
                self.seal(cx.counters, &mut datagram, begin, &record);
                self.send_one(cx, way, datagram);
                continue;
            }
            cx.counters.quic_out_late += 1;
            self.delayed_next_id += 1;
            let (id, missing) = (self.delayed_next_id, plan.placeholders.len());
            self.delayed.push_back(PendingDatagram {
                id,
                datagram,
                packet_begin: begin,
                record,
                placeholders_left: missing,
                path: way,
            });
            for hole in &plan.placeholders {
                let extent = hole.extent();
                let at = hole.at - plan.range.start;
                let what = ReadPurpose::Delayed { handle: self.handle, late: id, at, extent };
                cx.reads.start(cx.host, extent, what);
            }
        }
    }

    /// Handles the end of a file read for a delayed datagram.
    pub(crate) fn handle_delayed_read(
        &mut self,
        cx: &mut QuicEnv<'_>,
        (id, at, extent): (u64, usize, FileExtent),
        result: Result<Bytes, FileFault>,
    ) {
        let Some(index) = self.delayed.iter().position(|late| late.id == id) else { return };
        let Ok(bytes) = result else {
            cx.counters.quic_out_late_dropped += 1;
            self.delayed.remove(index);
            self.fail_streams(cx, extent.file);
            return;
        };
        let Some(late) = self.delayed.get_mut(index) else { return };
        let read = bytes.len().min(extent.len as usize);
        let Some(hole) = late.datagram.get_mut(at..at + read) else {
            internal_error!(cx.counters.quic_internal_errors, "a hole behind its datagram");
            return;
        };
        hole.copy_from_slice(&bytes[..read]);
        cx.counters.quic_file_bytes_late += read as u64;
        if let Some(len) = u32::try_from(read).ok().and_then(|read| extent.len.checked_sub(read)) {
            if len > 0 {
                let offset = extent.offset + read as u64;
                let rest = FileExtent { offset, len, ..extent };
                let what = ReadPurpose::Delayed {
                    handle: self.handle,
                    late: id,
                    at: at + read,
                    extent: rest,
                };
                cx.reads.start(cx.host, rest, what);
                return;
            }
        }
        late.placeholders_left -= 1;
        if late.placeholders_left > 0 {
            return;
        }
        let Some(PendingDatagram { mut datagram, packet_begin: begin, record, path: way, .. }) =
            self.delayed.remove(index)
        else {
            return;
        };
        self.seal(cx.counters, &mut datagram, begin, &record);
        self.send_one(cx, way, datagram);
    }

    fn send_one(&self, cx: &mut QuicEnv<'_>, way: DatagramPath, datagram: Vec<u8>) {
        let send = UdpSend {
            flow: self.flow,
            source: way.source,
            remote: Endpoint { addr: way.remote.ip(), port: way.remote.port() },
            ecn: way.ecn,
            segment_size: 0,
            parts: [TransmitPart::Host(Bytes::from(datagram))].into_iter().collect(),
            retransmission: false,
            echo: None,
            protect: None,
        };
        cx.host.udp_send(cx.now, cx.socket, send);
    }
}

/// Returns the files whose content is in a batch; `None` if there is none.
fn files_of(plans: &[DatagramPlan]) -> Option<FaultScope> {
    let mut files = plans.iter().flat_map(|plan| &plan.placeholders).map(|hole| hole.file);
    let first = files.next()?;
    let one = files.all(|file| file == first);
    Some(if one { FaultScope::File(first) } else { FaultScope::Several })
}

/// Returns the layout of a datagram's packet for the device.
fn packet_layout(plan: &DatagramPlan) -> Option<QuicTxPacket> {
    let (begin, record) = plan.packet?;
    Some(QuicTxPacket {
        begin: u16::try_from(begin).ok()?,
        pn_offset: u8::try_from(record.header_len - record.pn_len).ok()?,
        pn_len: u8::try_from(record.pn_len).ok()?,
        number: record.number,
    })
}

/// Splits `range` of a batch, the datagrams of `plans`, into host bytes and file extents. The host
/// bytes are few, so they are copied, and the buffer is reused for the next batch.
fn split_parts(buffer: &[u8], range: Range<usize>, plans: &[DatagramPlan]) -> TransmitParts {
    let holes = || plans.iter().flat_map(|plan| &plan.placeholders);
    let filled: usize = holes().map(|hole| hole.len).sum();
    let mut kept = Vec::with_capacity(range.len().saturating_sub(filled));
    let (mut ends, mut at) = (smallvec::SmallVec::<[usize; 64]>::new(), range.start);
    for hole in holes() {
        kept.extend_from_slice(buffer.get(at..hole.at).unwrap_or_default());
        ends.push(kept.len());
        at = hole.at + hole.len;
    }
    kept.extend_from_slice(buffer.get(at..range.end).unwrap_or_default());
    let mut kept = Bytes::from(kept);
    let (mut parts, mut from) = (TransmitParts::with_capacity(2 * ends.len() + 1), 0);
    for (hole, to) in holes().zip(ends) {
        if to > from {
            parts.push(TransmitPart::Host(kept.split_to(to - from)));
            from = to;
        }
        parts.push(TransmitPart::File(hole.extent()));
    }
    if !kept.is_empty() {
        parts.push(TransmitPart::Host(kept));
    }
    parts
}

/// Takes the bytes out of a buffer, which is empty afterwards.
fn take_bytes(buffer: &mut Vec<u8>) -> Bytes {
    if buffer.len() <= COPY_BYTES_MAX {
        let bytes = Bytes::copy_from_slice(buffer);
        buffer.clear();
        return bytes;
    }
    Bytes::from(core::mem::take(buffer))
}
