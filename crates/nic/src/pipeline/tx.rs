//! Transmits: every operation is checked once, here, before anything is stored or looked up.
//!
//! The later stages rely on the checks of [`check_transmit`]. A transmit that waits or that an
//! engine completes becomes a [`CheckedTransmit`]; [`CheckedTransmit::into_run`] makes a [`TxRun`]
//! of it when its payload is at hand. Other transmits become runs at once.

use abi::link::FramePayloads;
use abi::{FlowId, PacketHeader, Transmit, TransmitPart, TsvalPosition};
use alloc::sync::Arc;
use base::{Duration, Instant, SeqNum};
use wire::{ETHERNET_BYTES, TCP_BYTES, UDP_BYTES};

use super::headers::{TemplateKind, classify};
use super::timestamp_guard::TimestampGuard;
use super::tso::TxRun;
use crate::engine::l5o::TxPieces;
use crate::engine::quic::QuicEncryptPlan;

/// A checked transmit without its payload.
#[derive(Debug)]
pub(crate) struct CheckedTransmit {
    /// Queue of the host.
    pub(crate) queue: usize,
    /// The connection.
    pub(crate) flow: FlowId,
    /// Time at which the device took the operation.
    pub(crate) taken_at: Instant,
    /// Tag of the echo, if one was requested.
    pub(crate) echo: Option<u32>,
    header: PacketHeader,
    kind: TemplateKind,
    /// Plan for making the payload of the parts; empty if the parts are the payload.
    pub(crate) l5o_plan: TxPieces,
    /// Plan for encrypting the payload, if it is a batch of QUIC datagrams.
    pub(crate) quic_encryption: Option<Arc<QuicEncryptPlan>>,
    segment_size: u16,
    timestamp: Option<TsvalPosition>,
}

/// Checks a transmit and returns the kind of its header. Returns `None` if the transmit is
/// malformed, its packets exceed `mtu` bytes above Ethernet, or its payload exceeds `bytes_max`.
pub(crate) fn check_transmit(
    transmit: &Transmit,
    mtu: u16,
    bytes_max: u32,
) -> Option<TemplateKind> {
    let Transmit { header, segment_size, parts, timestamp, .. } = transmit;
    let kind = classify(header)?;
    let payload = payload_len(parts, bytes_max)?;
    let packet = match *segment_size {
        0 => payload,
        size => payload.min(usize::from(size)),
    };
    // TCP is cut by sequence numbers, UDP into datagrams; their templates have no payload.
    let cuttable = match kind {
        TemplateKind::Tcp => true,
        TemplateKind::Udp => header.len() == header.l4() + UDP_BYTES,
        _ => false,
    };
    if packet < payload && !cuttable {
        return None;
    }
    let l3 = if kind == TemplateKind::Raw { ETHERNET_BYTES } else { header.l3() };
    if header.len() - l3 + packet > usize::from(mtu) {
        return None;
    }
    if let Some(ts) = timestamp {
        let options = header.l4() + TCP_BYTES..header.len();
        let at = usize::from(ts.offset);
        if kind != TemplateKind::Tcp || at < options.start || at + 4 > options.end {
            return None;
        }
    }
    // Contexts complete messages by TCP sequence number.
    let completed =
        |part: &TransmitPart| matches!(part, TransmitPart::Records(_) | TransmitPart::Pdu(_));
    (kind == TemplateKind::Tcp || !parts.iter().any(completed)).then_some(kind)
}

/// Advances the TSval of a header by the time that its transmit waited, so that the peer's echo of
/// it measures the network alone (IO-TCP section 3.5).
pub(crate) fn advance_timestamp(
    header: &mut PacketHeader,
    position: TsvalPosition,
    delay: Duration,
    (queue, flow): (usize, FlowId),
    guard: &mut TimestampGuard,
) {
    let at = usize::from(position.offset);
    let past_us = u64::from(position.sub_ms_us.min(1000));
    let millis = past_us.saturating_add(delay.as_micros()) / 1000;
    if let Some(field) = header.as_mut_slice()[at..].first_chunk_mut::<4>() {
        // The timestamp clock wraps: RFC 7323 section 5.
        #[expect(clippy::cast_possible_truncation, reason = "modulo 2^32")]
        let new = u32::from_be_bytes(*field).wrapping_add(millis as u32);
        *field = guard.clamp(queue, flow, new, millis > 0).to_be_bytes();
    }
}

/// Returns the number of payload bytes of all parts; `None` if it exceeds the limit.
fn payload_len(parts: &[TransmitPart], bytes_max: u32) -> Option<usize> {
    let mut total = 0_usize;
    for part in parts {
        total = total.checked_add(part.len() as usize)?;
    }
    (total <= bytes_max as usize).then_some(total)
}

impl CheckedTransmit {
    /// Creates the description of a transmit that [`check_transmit`] found to be of `kind`.
    pub(crate) fn new(queue: usize, now: Instant, transmit: &Transmit, kind: TemplateKind) -> Self {
        Self {
            queue,
            flow: transmit.flow,
            taken_at: now,
            echo: transmit.echo,
            header: transmit.header.clone(),
            kind,
            l5o_plan: TxPieces::new(),
            quic_encryption: None,
            segment_size: transmit.segment_size,
            timestamp: transmit.timestamp,
        }
    }

    /// Returns the sequence number of the first byte (TCP only).
    pub(crate) fn seq(&self) -> SeqNum {
        let field = self.header.as_slice().get(self.header.l4() + 4..);
        SeqNum(field.and_then(|f| f.first_chunk()).map_or(0, |f| u32::from_be_bytes(*f)))
    }

    /// Returns the payload bytes of each packet but the last; zero if the transmit is one packet.
    pub(crate) const fn segment_size(&self) -> u16 {
        self.segment_size
    }

    /// Combines header and payload, and advances the timestamp if there is a `guard`.
    pub(crate) fn into_run(
        mut self,
        payload: FramePayloads,
        delay: Duration,
        guard: Option<&mut TimestampGuard>,
    ) -> TxRun {
        if let (Some(position), Some(guard)) = (self.timestamp, guard) {
            let by = (self.queue, self.flow);
            advance_timestamp(&mut self.header, position, delay, by, guard);
        }
        TxRun::new(self.header, self.kind, payload, self.segment_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RUN_BYTES_MAX;
    use crate::tests::frames::{TS_AT, bytes_of, tcp_header, transmit, udp_header};
    use abi::link::LinkCaps;
    use abi::{FileExtent, FileId, TransmitPart};
    use bytes::Bytes;
    use wire::tcp::TcpFlags;

    const CAPS: LinkCaps =
        LinkCaps { segmentation: false, udp_segmentation: false, checksum: false, mtu: 1500 };

    fn accepted(transmit: Transmit) -> bool {
        check_transmit(&transmit, 1500, RUN_BYTES_MAX).is_some()
    }

    #[test]
    fn sizes_are_checked_against_the_mtu() {
        let with = |segment_size: u16, len: usize| {
            let mut t = transmit(FlowId(1), 1, segment_size);
            t.parts.push(TransmitPart::Host(Bytes::from(alloc::vec![0; len])));
            accepted(t)
        };
        assert!(with(0, 1448) && with(1448, 65_416) && with(60_000, 10));
        assert!(!with(0, 1449), "one packet above the MTU");
        assert!(!with(1449, 1449), "segments above the MTU");
        assert!(!with(1448, 65_417), "more than a transmit may carry");
    }

    #[test]
    fn lengths_that_overflow_are_refused() {
        let mut t = transmit(FlowId(1), 1, 1448);
        for _ in 0..5 {
            let extent = FileExtent { file: FileId(0), offset: u64::MAX, len: u32::MAX };
            t.parts.push(TransmitPart::File(extent));
        }
        assert!(!accepted(t));
    }

    #[test]
    fn the_timestamp_lies_in_the_options() {
        let with = |offset: u8| {
            let mut t = transmit(FlowId(1), 1, 0);
            t.timestamp = Some(TsvalPosition { offset, sub_ms_us: 0 });
            accepted(t)
        };
        assert!(with(TS_AT));
        assert!(!with(10) && !with(53) && !with(63) && !with(255));
    }

    #[test]
    fn only_segments_and_datagrams_are_cut() {
        let of = |header: PacketHeader, protocol: u8| {
            let mut t = Transmit { header, ..transmit(FlowId::NONE, 1, 100) };
            t.header.as_mut_slice()[23] = protocol;
            t.parts.push(TransmitPart::Host(Bytes::from_static(&[0; 101])));
            accepted(t)
        };
        assert!(of(tcp_header(4, 1, TcpFlags::ACK), 6) && of(udp_header(4), 17));
        assert!(!of(udp_header(4), 1), "ICMP");
        assert!(!of(tcp_header(4, 1, TcpFlags::ACK), 17), "payload in the template");
    }

    #[test]
    fn timestamps_leave_out_the_wait() {
        let tsval = |past_us: u16, delay_us: u64, correct: bool| {
            let mut t = transmit(FlowId(1), 1, 0);
            t.timestamp = Some(TsvalPosition { offset: TS_AT, sub_ms_us: past_us });
            let kind = check_transmit(&t, 1500, RUN_BYTES_MAX).unwrap();
            let out = CheckedTransmit::new(0, Instant::ZERO, &t, kind);
            let mut stamps = correct.then(TimestampGuard::new);
            let delay = Duration::from_micros(delay_us);
            let mut run = out.into_run(FramePayloads::new(), delay, stamps.as_mut());
            let bytes = bytes_of(&run.take_frame(&CAPS));
            let at = usize::from(TS_AT);
            u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
        };
        assert_eq!(tsval(0, 999, true), 7777);
        assert_eq!(tsval(1, 999, true), 7778);
        assert_eq!(tsval(999, 2500, true), 7780);
        assert_eq!(tsval(999, 2500, false), 7777);
        assert_eq!(tsval(u16::MAX, 0, true), 7778, "at most a millisecond");
    }
}
