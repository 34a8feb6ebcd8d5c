//! Relaying of one segment: whether it may pass, its headers for the other side, and the outgoing
//! frame.
//!
//! Called by [`SpliceEngine::receive`] for each frame of a live pair, and when a pair starts. A
//! frame whose headers keep their length is rewritten and sent in the buffer in which it was
//! received; for another one the headers are copied, and the payload is shared. `pair` decides,
//! `translate` rewrites; here is what happens to buffers and checksums.

use alloc::sync::Arc;

use abi::link::{FramePayload, FramePayloads, RxFrame};
use abi::splice::SpliceEnd;
use abi::{Checksum, PacketBuf, PacketHeader};
use base::{Instant, internal_error};
use wire::emit::{pseudo_header_of, set_lengths};
use wire::frame::protocol;
use wire::tcp::TcpFlags;

use super::pair::{SpliceFault, SplicedPairPhase};
use super::segment::SplicedSegment;
use super::translate::{CHECKSUM_AT, HeaderTranslation, RewrittenHeaders, Untranslatable};
use super::{PairSide, SpliceEngine};
use crate::pipeline::rx::TransportPosition;
use crate::pipeline::{Egress, QueuedPacket, RelayedFrame, TxRun};

/// How a segment fits the connection to its receiver.
struct RelayFit {
    /// Maximum payload of a segment with the same options.
    payload_max: u16,
    /// Payload of each outgoing packet but the last. Segments above the other side's MSS are
    /// segmented again, and so are merged frames.
    size: u16,
    is_one_packet: bool,
    /// Number of packets before the link merged them.
    packets: u64,
}

impl RelayFit {
    /// Returns how a segment of `len` payload bytes fits, which the link merged of packets with
    /// `segment_size` bytes, or did not if that is zero.
    fn new(
        translation: &HeaderTranslation,
        len: usize,
        segment_size: u16,
        segment: &SplicedSegment,
    ) -> Self {
        let payload_max = translation.payload_max(segment);
        let size = match segment_size {
            0 => payload_max,
            size => size.min(payload_max),
        };
        let packets = match segment_size {
            0 => 1,
            size => len.div_ceil(size.into()).max(1) as u64,
        };
        Self { payload_max, size, is_one_packet: len <= usize::from(size), packets }
    }
}

impl SpliceEngine {
    /// Relays a frame to the other side if it may pass.
    pub(super) fn relay(
        &mut self,
        out: &mut Egress,
        now: Instant,
        end: PairSide,
        frame: RxFrame,
        at: &TransportPosition,
    ) {
        let Some(segment) = SplicedSegment::read(frame.packet.as_slice(), at) else {
            self.counters.splice_dropped_malformed += 1;
            return out.recycle(frame.packet);
        };
        // A frame relayed before this one may have ended the pair.
        let Some(pair) = self.pairs.get(end.key) else { return out.recycle(frame.packet) };
        if let Err(fault) = pair.examine(end.side, &segment) {
            out.recycle(frame.packet);
            return self.refuse(out, now, end, fault);
        }
        if segment.flags.has(TcpFlags::RST) {
            return self.relay_reset(out, end, frame, at, segment);
        }
        let closed = self.pass(out, now, end, frame, at, &segment);
        if closed {
            self.linger(out, now, end.key);
        }
    }

    /// Counts a segment that may not pass, and challenges its sender if necessary.
    fn refuse(&mut self, out: &mut Egress, now: Instant, end: PairSide, fault: SpliceFault) {
        let c = &mut self.counters;
        *match fault {
            SpliceFault::Syn => &mut c.splice_dropped_syn,
            SpliceFault::BlindReset { .. } => &mut c.splice_dropped_blind_reset,
            SpliceFault::OutOfWindow => &mut c.splice_dropped_out_of_window,
            SpliceFault::BadAck => &mut c.splice_dropped_bad_ack,
            SpliceFault::NoAck => &mut c.splice_dropped_no_ack,
        } += 1;
        if matches!(fault, SpliceFault::Syn | SpliceFault::BlindReset { in_window: true }) {
            self.challenge(out, now, end);
        }
    }

    /// Relays a segment that may pass. Returns whether both directions are now closed.
    fn pass(
        &mut self,
        out: &mut Egress,
        now: Instant,
        end: PairSide,
        frame: RxFrame,
        at: &TransportPosition,
        segment: &SplicedSegment,
    ) -> bool {
        let Some(pair) = self.pairs.get_mut(end.key) else {
            internal_error!(self.counters.nic_internal_errors, "a frame of no pair");
            out.recycle(frame.packet);
            return false;
        };
        let RxFrame { mut packet, checksum, segment_size } = frame;
        let len = segment.payload.len();
        let (way, back) = pair.directions_of_mut(end.side);
        let translation = &mut way.translation;
        let fit = RelayFit::new(translation, len, segment_size, segment);
        let in_place = fit.is_one_packet
            && translation.keeps_layout(packet.as_slice(), at)
            && (checksum == Checksum::Good || out.link.checksum);
        let mut copied = None;
        let rewritten = if in_place {
            translation.rewrite(packet.as_mut_slice(), true, segment, back.end)
        } else {
            translation.copy_headers(packet.as_slice(), at, segment).and_then(|copy| {
                let (header, kept_ip) = copied.insert(copy);
                translation.rewrite(header.as_mut_slice(), *kept_ip, segment, back.end)
            })
        };
        let rewritten = match rewritten {
            Ok(rewritten) => rewritten,
            Err(unfit) => {
                self.count_untranslatable(unfit);
                out.recycle(packet);
                return false;
            }
        };
        if let Some(tsval) = rewritten.tsval {
            pair.note_tsval(end.side, tsval);
        }
        let closed = pair.record(end.side, segment, rewritten.window, fit.packets);
        pair.relayed_at = now;
        let c = &mut self.counters;
        c.splice_sack_left_out += u64::from(rewritten.sack_left_out);
        c.splice_relayed_packets += fit.packets;
        c.splice_relayed_bytes += len as u64;
        c.splice_cut += u64::from(len > usize::from(fit.payload_max));
        let adjusted = fit.is_one_packet && checksum == Checksum::Good;
        c.splice_checksums_adjusted += u64::from(adjusted);
        c.splice_checksums_summed += u64::from(!adjusted);
        let adjustment = if adjusted { Some(&rewritten) } else { None };
        match copied {
            Some(copy) => {
                let payload = self.payload(out, packet, segment);
                if let Some(run) = copied_run(copy, payload, fit.size, adjustment) {
                    self.queue(out, end, |out, before| out.queue_run_behind(before, run));
                }
            }
            None => {
                c.splice_relayed_in_place += 1;
                packet.truncate(segment.payload.end);
                let frame = frame_in_place(packet, at, adjustment);
                self.queue(out, end, |out, before| out.queue_relayed_behind(before, frame));
            }
        }
        closed
    }

    /// Queues a packet of the direction from `end`, which may join the one that was queued last.
    fn queue(
        &mut self,
        out: &mut Egress,
        end: PairSide,
        queue_behind: impl FnOnce(&mut Egress, Option<QueuedPacket>) -> (QueuedPacket, bool),
    ) {
        let pair = self.pairs.get_mut(end.key);
        let before = pair.as_ref().and_then(|pair| pair.directions_of(end.side).0.queued);
        let (queued, merged) = queue_behind(out, before);
        self.counters.splice_merged += u64::from(merged);
        if let Some(pair) = pair {
            pair.directions_of_mut(end.side).0.queued = Some(queued);
        }
    }

    fn count_untranslatable(&mut self, unfit: Untranslatable) {
        *match unfit {
            Untranslatable::Malformed => &mut self.counters.splice_dropped_malformed,
            Untranslatable::HopLimit => &mut self.counters.splice_dropped_hop_limit,
        } += 1;
    }

    /// Returns a frame's payload for sharing with the outgoing frame. The buffer of a frame without
    /// payload is released.
    fn payload(
        &mut self,
        out: &mut Egress,
        packet: PacketBuf,
        segment: &SplicedSegment,
    ) -> FramePayloads {
        let mut payloads = FramePayloads::new();
        let place = (u32::try_from(segment.payload.start), u32::try_from(segment.payload.len()));
        match place {
            (Ok(start), Ok(len)) if len > 0 => {
                let packet = self.share(packet);
                payloads.push(FramePayload::Packet { packet, start, len });
            }
            _ => out.recycle(packet),
        }
        payloads
    }

    fn share(&mut self, packet: PacketBuf) -> Arc<PacketBuf> {
        let Some(mut shell) = self.spare_packets.pop() else { return Arc::new(packet) };
        match Arc::get_mut(&mut shell) {
            Some(inner) => {
                *inner = packet;
                shell
            }
            None => Arc::new(packet),
        }
    }

    /// Relays a reset and ends the pair. The reset gets the number after everything that was
    /// relayed. The receiver expects that number; or, if bytes are still in flight, the number lies
    /// in its window, and the host answers its challenge ACK (RFC 5961 section 3.2).
    fn relay_reset(
        &mut self,
        out: &mut Egress,
        end: PairSide,
        frame: RxFrame,
        at: &TransportPosition,
        mut segment: SplicedSegment,
    ) {
        let Some(pair) = self.pairs.get_mut(end.key) else {
            internal_error!(self.counters.nic_internal_errors, "a reset of no pair");
            return out.recycle(frame.packet);
        };
        let (way, back) = pair.directions_of_mut(end.side);
        way.packets += 1;
        let acked = segment.seq;
        segment.payload.end = segment.payload.start;
        let translation = &mut way.translation;
        let copied = translation.copy_headers(frame.packet.as_slice(), at, &segment);
        let translated = copied.and_then(|(mut header, kept)| {
            translation.rewrite(header.as_mut_slice(), kept, &segment, back.end)?;
            Ok(header)
        });
        let behind = way.translation.seq(way.end);
        let moved = behind.0.wrapping_sub(way.translation.seq(acked).0);
        let lingers = matches!(pair.phase, SplicedPairPhase::Lingering(_));
        if let Ok(mut header) = translated {
            let l4 = header.l4();
            let field = header.as_mut_slice().get_mut(l4 + 4..);
            if let Some(field) = field.and_then(|field| field.first_chunk_mut::<4>()) {
                *field = u32::from_be_bytes(*field).wrapping_add(moved).to_be_bytes();
            }
            self.counters.splice_relayed_packets += 1;
            self.counters.splice_checksums_summed += 1;
            let run = TxRun::from_header_segmented(header, FramePayloads::new(), 0);
            run.into_iter().for_each(|run| out.queue_run(run));
        }
        out.recycle(frame.packet);
        if lingers {
            return self.finish(out, end.key);
        }
        self.counters.splice_reset_by_peer += 1;
        self.close(out, end.key, SpliceEnd::Reset(u8::from(end.side == 1)));
    }
}

/// Completes a frame whose headers were rewritten in its buffer. Its checksum is adjusted by the
/// difference that the headers made if the received one was correct; otherwise the link completes
/// it.
fn frame_in_place(
    mut packet: PacketBuf,
    at: &TransportPosition,
    adjustment: Option<&RewrittenHeaders>,
) -> RelayedFrame {
    let frame = packet.as_mut_slice();
    match adjustment {
        Some(rewritten) => rewritten.update_checksum(frame, at.l4),
        None => set_partial_checksum(frame, at),
    }
    RelayedFrame::new(packet, at, adjustment.is_none())
}

/// Returns a run of `payload` with a copy of the headers and whether their IP header is the
/// received one. The checksum is adjusted as by [`frame_in_place`]; otherwise the payload is
/// segmented by `size`, and the pipeline computes the checksums. Returns `None` if the headers are
/// malformed.
fn copied_run(
    (mut header, kept_ip): (PacketHeader, bool),
    payload: FramePayloads,
    size: u16,
    adjustment: Option<&RewrittenHeaders>,
) -> Option<TxRun> {
    let Some(rewritten) = adjustment else {
        return TxRun::from_header_segmented(header, payload, size);
    };
    let (l3, l4) = (header.l3(), header.l4());
    let end = header.len() + payload.iter().map(|part| part.as_slice().len()).sum::<usize>();
    if !kept_ip {
        set_lengths(header.as_mut_slice(), l3, end, 0);
    }
    rewritten.update_checksum(header.as_mut_slice(), l4);
    Some(TxRun::from_complete_header(header, payload))
}

/// Writes the sum of the pseudo-header to the checksum field of a frame's TCP segment: a partial
/// checksum, which the link completes.
fn set_partial_checksum(frame: &mut [u8], at: &TransportPosition) {
    let sum = pseudo_header_of(frame, at.l3, protocol::TCP, at.end - at.l4).fold();
    if let Some(field) = frame.get_mut(at.l4 + CHECKSUM_AT..).and_then(<[u8]>::first_chunk_mut) {
        *field = sum.to_be_bytes();
    }
}
