//! Tear-down offload (AccelTCP section 4.2) of one connection: its state for the device, and its
//! return if the device refuses it.
//!
//! Called by `stream::closing`, which decides when.

use alloc::boxed::Box;

use abi::teardown::{ClosingState, Teardown, TeardownLimits};
use abi::{FileExtent, FileId, Op, PacketHeader, TransmitPart, TransmitParts};
use base::Instant;
use smallvec::SmallVec;
use wire::emit::set_lengths;
use wire::frame::{ParsedFrame, parse as parse_frame, protocol};
use wire::tcp::{TcpFlags, TcpHeader};
use wire::{Endpoint, IPV4_BYTES, IPV6_BYTES, Tuple};

use super::conn::{ConnParams, TcpConnection, TcpEnv};
use super::mtu_probing::segment_size_after_losses;
use super::output::past_us;
use super::scoreboard::SentRangeInfo;
use super::spans::SpanMap;
use super::state::TcpState;
use super::timers::TcpTimer;
use super::transform::TxTransforms;
use crate::config::TcpConfig;

/// Maximum number of parts of a connection that is handed over: more come from many small writes
/// and are costly for the device to keep.
const PARTS_MAX: usize = 8;

impl<T: TxTransforms> TcpConnection<T> {
    /// Returns whether the application has closed the connection, so that only the rest of the
    /// stream and the FIN are left to deliver.
    pub(crate) const fn is_ready_for_teardown(&self) -> bool {
        self.closing_state().is_some() && self.snd.fin && !self.modes.held_by_app
    }

    /// Returns the state that the device is told; `None` in a state that cannot be handed over.
    const fn closing_state(&self) -> Option<ClosingState> {
        match self.state {
            TcpState::FinWait1 => Some(ClosingState::FinWait1),
            TcpState::FinWait2 => Some(ClosingState::FinWait2),
            TcpState::Closing => Some(ClosingState::Closing),
            TcpState::LastAck => Some(ClosingState::LastAck),
            _ => None,
        }
    }

    /// Returns whether the unsent rest needs no congestion control, reassembly or disk, which the
    /// paper keeps off the NIC.
    fn fits_teardown_limits(&self, limits: &TeardownLimits) -> bool {
        let snd = &self.snd;
        let bytes = snd.spans.end().saturating_sub(snd.una);
        let settled = snd.is_open() && !snd.flight.has_lost() && !snd.host_reads_file;
        let sent = !snd.flight.any_pending() && !self.awaits_device();
        let fits = bytes <= u64::from(limits.bytes_max.min(snd.cc.cwnd))
            && snd.spans.end() <= snd.edge.max(snd.nxt);
        settled && sent && fits && !self.rcv.has_holes() && self.rcv.ready_bytes() == 0
    }

    /// Returns the state of the connection for the device; the caller then removes the connection.
    /// `None` if it cannot be handed over now.
    pub(crate) fn make_teardown(
        &mut self,
        cx: &mut TcpEnv<'_>,
        limits: &TeardownLimits,
    ) -> Option<Box<Teardown>> {
        // The device counts the age of TS.Recent from the hand-over.
        let stale = self.options.timestamps && self.options.ts_recent.has_expired(cx.now);
        if stale
            || !self.fits_teardown_limits(limits)
            || self.snd.spans.first_unread(self.snd.una).is_some()
        {
            cx.out.counters.hand_over_deferred += 1;
            return None;
        }
        let state = self.closing_state()?;
        let segment = self.segment(cx, self.snd.nxt, TcpFlags::ACK);
        let (header, timestamp) = cx.out.tcp_header_to(cx.now, &self.tuple, &segment)?;
        let timestamp = timestamp.map(|ts| abi::TsvalPosition { sub_ms_us: past_us(cx.now), ..ts });
        let (parts, new_file_bytes) = self.collect_unacked()?;
        cx.out.counters.file_offload_bytes += new_file_bytes;
        let (mss, probing) = (self.snd.mss, cx.config.mtu_probing);
        let mss_after_timeouts =
            segment_size_after_losses(mss, &self.tuple, &self.options, probing);
        self.timers.stop_all();
        Some(Box::new(Teardown {
            flow: self.flow,
            header,
            timestamp,
            una: self.seq(self.snd.una),
            nxt: self.seq(self.snd.nxt),
            edge: self.seq(self.snd.edge),
            peer_scale: self.options.peer_scale,
            mss: u16::try_from(self.snd.mss).unwrap_or(u16::MAX),
            mss_after_timeouts,
            parts,
            rcv_nxt: self.rcv.ack(),
            state,
            rto: self.snd.rtt.rto(cx.config),
            time_wait: cx.config.time_wait,
            contexts: self.snd.transforms.take_contexts().collect(),
            late_data: self.late_data,
        }))
    }

    /// Forgets the send stream after the hand-over, in which the device was given the last `handed`
    /// bytes of files. The device reports acknowledgments of those to its file engine itself. The
    /// prefix before them in their record was acknowledged and is reported here. Called after the
    /// hand-over, so that no file is closed that the device still needs.
    pub(crate) fn release_after_teardown(&mut self, cx: &mut TcpEnv<'_>, handed: u64) {
        self.report_acked(cx);
        let mut spans = core::mem::replace(&mut self.snd.spans, SpanMap::new());
        let mut left = SmallVec::<[(FileId, u64, u64); 2]>::new();
        spans.advance(spans.end(), |file, offset, len| left.push((file, offset, len)));
        let before = left.iter().map(|&(_, _, len)| len).sum::<u64>().saturating_sub(handed);
        // At most one record's content.
        if let (Some(&(file, offset, _)), Ok(len @ 1..)) = (left.first(), u32::try_from(before)) {
            cx.out.ops.push_back(Op::FileAck(FileExtent { file, offset, len }));
        }
        for (file, offset, len) in left {
            cx.files.release(cx.out, file, offset, len, false);
        }
    }

    /// Collects the unacknowledged bytes, and counts the file bytes among them that were never
    /// sent. Sent and unsent bytes are separate parts, because the device retransmits whole parts.
    fn collect_unacked(&mut self) -> Option<(TransmitParts, u64)> {
        let (una, end) = (self.snd.una, self.snd.spans.end());
        let nxt = self.snd.nxt.min(end);
        let (mut parts, mut sent) = (TransmitParts::new(), 0);
        for (from, to) in [(una, nxt), (nxt, end)] {
            sent = parts.len();
            let Some(len) = u32::try_from(to.saturating_sub(from)).ok().filter(|&len| len > 0)
            else {
                continue;
            };
            let transforms = &mut self.snd.transforms;
            transforms.forget_expected_positions();
            if self.snd.spans.collect(from, len, transforms, &mut parts).len < len {
                return None;
            }
        }
        // A refused context would be reported when the host no longer has the connection.
        if !parts.iter().all(|part| self.snd.transforms.device_has_context(part, una)) {
            return None;
        }
        let new = parts.get(sent..).unwrap_or_default().iter().map(file_bytes_without_prefix).sum();
        (parts.len() <= PARTS_MAX).then_some((parts, new))
    }

    /// Returns a connection that the device gave back. Its bytes are all in host memory; those
    /// before `nxt` count as sent now.
    pub(crate) fn from_returned_teardown(
        begin: ConnParams,
        teardown: &Teardown,
        config: &TcpConfig,
        now: Instant,
    ) -> Self {
        let mut conn = Self::established(begin, config, now);
        for part in &teardown.parts {
            if let TransmitPart::Host(bytes) = part {
                conn.snd.spans.push_memory(bytes.clone());
            }
        }
        let ahead = |seq: base::SeqNum| u64::from(seq.distance(teardown.una).max(0).unsigned_abs());
        conn.snd.fin = true;
        conn.late_data = teardown.late_data;
        // If the FIN is acknowledged it has position 1, and the stream begins behind it.
        let una = 1 + u64::from(teardown.state == ClosingState::FinWait2);
        conn.snd.una = una;
        conn.snd.nxt = una + ahead(teardown.nxt);
        conn.snd.edge = una + ahead(teardown.edge);
        if conn.snd.nxt > una {
            let (nxt, tag) = (conn.snd.nxt, conn.snd.next_tag);
            let segment_size = u16::try_from(conn.snd.mss).unwrap_or(u16::MAX);
            conn.snd.flight.push(1, nxt, now, SentRangeInfo { tag, segment_size, pending: false });
            conn.snd.next_tag = tag.wrapping_add(1);
            conn.timers.set(TcpTimer::Retransmit, now + teardown.rto);
        }
        conn.state = match teardown.state {
            ClosingState::FinWait1 => TcpState::FinWait1,
            ClosingState::FinWait2 => TcpState::FinWait2,
            ClosingState::Closing => TcpState::Closing,
            ClosingState::LastAck => TcpState::LastAck,
        };
        if conn.state == TcpState::FinWait2 {
            conn.timers.set(TcpTimer::Linger, now + teardown.time_wait);
        }
        conn
    }
}

/// Returns the bytes of files in the parts of a hand-over, without prefixes.
pub(crate) fn teardown_file_bytes(parts: &TransmitParts) -> u64 {
    parts.iter().map(file_bytes_without_prefix).sum()
}

/// Returns the file bytes that a part sends, without the prefix before them in their record.
fn file_bytes_without_prefix(part: &TransmitPart) -> u64 {
    let prefix = part.extent_prefix();
    part.extent().map_or(0, |extent| u64::from(extent.len.saturating_sub(prefix)))
}

/// Parses the tuple and the segment from a header that `Outbox::tcp_header_to` made.
pub(crate) fn parse_tcp_header(header: &PacketHeader) -> Option<(Tuple, TcpHeader)> {
    let mut header = header.clone();
    let (l3, end) = (header.l3(), header.len());
    let bytes = header.as_mut_slice();
    let ip_bytes = if bytes.get(l3)? >> 4 == 4 { IPV4_BYTES } else { IPV6_BYTES };
    if end < l3 + ip_bytes {
        return None;
    }
    set_lengths(bytes, l3, end, 0);
    let Ok(ParsedFrame::Ip(ip)) = parse_frame(bytes) else { return None };
    if ip.protocol != protocol::TCP {
        return None;
    }
    let (segment, _) = TcpHeader::parse(bytes.get(ip.l4..ip.end)?).ok()?;
    let local = Endpoint { addr: ip.source, port: segment.source };
    let remote = Endpoint { addr: ip.destination, port: segment.destination };
    Some((Tuple { local, remote }, segment))
}
