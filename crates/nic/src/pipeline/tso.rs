//! Segmentation: cuts a run of bytes under one header template into packets, of TCP or of UDP.
//!
//! For a segmenting link the run is passed as one frame, or as few as its length requires.
//! Otherwise packets are cut one at a time when they are polled, so that a run of 64 KiB occupies
//! one entry of the queue and not 45. Payload is sliced, never copied. Each packet is what the host
//! would have built without segmentation (RFC 9293 section 3.8.3). A run of UDP is cut into
//! datagrams (Linux: `UDP_SEGMENT`).
//!
//! Called by [`crate::Device::poll_frame`]. It neither orders nor waits.

use abi::PacketHeader;
use abi::link::{FramePayload, FramePayloads, LinkCaps, TxFrame};
use wire::segment::{FLAGS_AT, advance_seq};
use wire::tcp::TcpFlags;

use super::headers::{TemplateKind, classify, complete_headers, u16_at};
use super::merge::TcpHeaders;
use crate::config::RUN_BYTES_MAX;
use crate::crypto_jobs::PendingParts;

/// Maximum number of parts of a run to which another one was appended. A list longer than
/// [`FramePayloads`] holds in place is allocated, which costs less than another frame.
const MERGED_PARTS_MAX: usize = 16;

/// A checked transmit whose payload is at hand.
#[derive(Debug)]
pub(crate) struct TxRun {
    /// Header of the next packet, without lengths and checksums.
    header: PacketHeader,
    kind: TemplateKind,
    payload: FramePayloads,
    /// Payload bytes of each packet but the last; zero if the run is one packet.
    segment_size: u16,
    /// Payload bytes not sent yet.
    bytes_left: usize,
    /// Index of the payload in which the next packet begins, and offset in it.
    part: usize,
    part_at: usize,
    identification: u16,
    /// Parts of the payload that crypto workers have not returned yet.
    parts_missing: u32,
}

impl TxRun {
    /// Returns the payload, sent or not.
    pub(crate) fn into_payloads(self) -> FramePayloads {
        self.payload
    }

    /// Creates a run of `payload` under `header`, which [`super::tx::check_transmit`] has accepted
    /// as a `kind`.
    pub(crate) fn new(
        header: PacketHeader,
        kind: TemplateKind,
        payload: FramePayloads,
        segment_size: u16,
    ) -> Self {
        let left = payload.iter().map(|p| p.as_slice().len()).sum();
        // A run that fits in one packet is not segmented.
        let segment_size = if left > usize::from(segment_size) { segment_size } else { 0 };
        let identification = match kind {
            TemplateKind::Raw => 0,
            _ => u16_at(header.as_slice(), header.l3() + 4).unwrap_or(0),
        };
        Self {
            header,
            kind,
            payload,
            segment_size,
            bytes_left: left,
            part: 0,
            part_at: 0,
            identification,
            parts_missing: 0,
        }
    }

    /// Makes the run wait for parts of its payload, which has empty ones in their places.
    pub(crate) fn await_parts(&mut self, pending: PendingParts, segment_size: u16) {
        self.parts_missing = pending.parts;
        self.bytes_left += pending.bytes;
        let segmented = self.bytes_left > usize::from(segment_size);
        self.segment_size = if segmented { segment_size } else { 0 };
    }

    /// Sets a part of the payload that the run waits for.
    pub(crate) fn fill(&mut self, part: usize, payload: FramePayload) {
        if let Some(place) = self.payload.get_mut(part) {
            *place = payload;
            self.parts_missing = self.parts_missing.saturating_sub(1);
        }
    }

    /// Returns whether the run waits for parts of its payload.
    pub(crate) const fn is_incomplete(&self) -> bool {
        self.parts_missing > 0
    }

    /// Creates one packet of `payload` under a header made by an engine; `None` if the header is
    /// malformed.
    pub(crate) fn from_header(header: PacketHeader, payload: FramePayloads) -> Option<Self> {
        let kind = classify(&header)?;
        Some(Self::new(header, kind, payload, 0))
    }

    /// As [`Self::from_header`], cut into segments of `segment_size`; zero for one packet.
    pub(crate) fn from_header_segmented(
        header: PacketHeader,
        payload: FramePayloads,
        segment_size: u16,
    ) -> Option<Self> {
        let kind = classify(&header)?;
        Some(Self::new(header, kind, payload, segment_size))
    }

    /// Creates one packet whose header is complete, including checksums.
    pub(crate) fn from_complete_header(header: PacketHeader, payload: FramePayloads) -> Self {
        Self::new(header, TemplateKind::Raw, payload, 0)
    }

    /// Returns whether the packets of `next` may be appended to this run: they continue it, and
    /// none of it was sent.
    pub(crate) fn can_append(&self, next: &Self) -> bool {
        let size = usize::from(self.segment_size);
        let is_next_size = next.segment_size == self.segment_size
            || next.segment_size == 0 && (1..=size).contains(&next.bytes_left);
        self.kind == TemplateKind::Tcp
            && next.kind == TemplateKind::Tcp
            && size > 0
            && self.bytes_left % size == 0
            && is_next_size
            && (self.part, self.part_at) == (0, 0)
            && self.bytes_left + next.bytes_left <= RUN_BYTES_MAX as usize
            && self.payload.len() + next.payload.len() <= MERGED_PARTS_MAX
            && !(self.is_incomplete() || next.is_incomplete())
            && tcp_headers(&self.header)
                .zip(tcp_headers(&next.header))
                .is_some_and(|(run, next)| next.continues(&run, self.bytes_left))
    }

    /// Appends the packets of `next`, which [`Self::can_append`] has accepted.
    pub(crate) fn append(&mut self, next: Self) {
        let flags_at = self.header.l4() + FLAGS_AT;
        self.header.as_mut_slice()[flags_at] |= next.header.as_slice()[flags_at];
        self.bytes_left += next.bytes_left;
        self.payload.extend(next.payload);
    }

    /// Returns whether the run becomes more than one packet.
    pub(crate) const fn is_segmented(&self) -> bool {
        self.segment_size > 0
    }

    /// Restores the run from a frame that the link refused; `None` if the frame was not a run.
    pub(crate) fn from_refused_frame(frame: TxFrame) -> Option<Self> {
        let kind = classify(&frame.header).filter(|_| frame.segment_size > 0)?;
        Some(Self::new(frame.header, kind, frame.payload, frame.segment_size))
    }

    /// Returns whether all bytes of a segmented run were returned.
    pub(crate) const fn is_used_up(&self) -> bool {
        self.bytes_left == 0
    }

    /// Returns the frame of a run that is not segmented. The run is used up.
    #[inline]
    pub(crate) fn take_frame(&mut self, caps: &LinkCaps) -> TxFrame {
        let Self { header, kind, payload, identification, .. } = self;
        let checksum_partial =
            complete_headers(header, *kind, payload, *identification, caps.checksum);
        let (header, payload) = (header.clone(), core::mem::take(payload));
        TxFrame { header, payload, segment_size: 0, checksum_partial }
    }

    /// Returns the next frame of a segmented run, of at most `run_bytes_max` payload bytes if the
    /// link segments it. After the last frame, [`Self::is_used_up`].
    pub(crate) fn next_frame(&mut self, caps: &LinkCaps, run_bytes_max: u32) -> TxFrame {
        let size = usize::from(self.segment_size);
        let whole = match self.kind {
            TemplateKind::Tcp => caps.segmentation,
            TemplateKind::Udp => caps.udp_segmentation,
            _ => false,
        };
        if !(whole && caps.checksum) {
            return self.cut(caps, size, 0);
        }
        // A length field of zero has another meaning in IPv6 (RFC 2675), and UDP has a length field
        // of its own.
        let ipv4 = self.header.as_slice()[self.header.l3()] >> 4 == 4;
        let long = ipv4 && self.kind == TemplateKind::Tcp;
        let most = if long { run_bytes_max } else { run_bytes_max.min(RUN_BYTES_MAX) };
        let most = (most as usize / size).max(1) * size;
        // The rest of a run may be a single packet.
        let frame_size = if self.bytes_left > size { self.segment_size } else { 0 };
        self.cut(caps, most, frame_size)
    }

    /// Returns the next frame: `most` payload bytes or the rest, to be segmented by `frame_size`.
    fn cut(&mut self, caps: &LinkCaps, most: usize, frame_size: u16) -> TxFrame {
        let bytes = self.bytes_left.min(most);
        let payload = self.take(bytes);
        self.bytes_left -= bytes;
        let last = self.bytes_left == 0;
        let packets = match frame_size {
            0 => 1,
            size => bytes.div_ceil(usize::from(size)),
        };
        let mut header = self.header.clone();
        let flags_at = header.l4() + FLAGS_AT;
        if self.kind == TemplateKind::Tcp {
            let flags = &mut header.as_mut_slice()[flags_at];
            // Flags of the first packet alone are cleared in the template after it was sent.
            *flags = TcpFlags(*flags).for_packet_of_run(true, last).0;
        }
        let identification = self.identification;
        let checksum_partial =
            complete_headers(&mut header, self.kind, &payload, identification, caps.checksum);
        if !last {
            self.advance(bytes, packets, flags_at);
        }
        TxFrame { header, payload, segment_size: frame_size, checksum_partial }
    }

    /// Turns the template into that of the next packet.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "sequence numbers and identifications wrap"
    )]
    fn advance(&mut self, by: usize, packets: usize, flags_at: usize) {
        self.identification = self.identification.wrapping_add(packets as u16);
        // Datagrams of a run differ in nothing else.
        if self.kind != TemplateKind::Tcp {
            return;
        }
        let l4 = self.header.l4();
        let bytes = self.header.as_mut_slice();
        bytes[flags_at] = TcpFlags(bytes[flags_at]).for_packet_of_run(false, true).0;
        advance_seq(&mut bytes[l4..], by as u32);
    }

    /// Removes the next `bytes` of the payload, which has at least as many.
    fn take(&mut self, mut bytes: usize) -> FramePayloads {
        if bytes == self.bytes_left && self.part == 0 && self.part_at == 0 {
            return core::mem::take(&mut self.payload);
        }
        let mut out = FramePayloads::new();
        while bytes > 0 {
            let part = &self.payload[self.part];
            let here = (part.as_slice().len() - self.part_at).min(bytes);
            if here > 0 {
                out.push(part.slice(self.part_at, here));
            }
            bytes -= here;
            self.part_at += here;
            if self.part_at == part.as_slice().len() {
                self.part += 1;
                self.part_at = 0;
            }
        }
        out
    }
}

fn tcp_headers(header: &PacketHeader) -> Option<TcpHeaders<'_>> {
    TcpHeaders::new(header.as_slice(), header.l3(), header.l4())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::frames::{bytes_of, tcp_header, udp_header, verify};
    use abi::aligned::AlignedBuf;
    use abi::link::FramePayload;
    use alloc::sync::Arc;
    use alloc::vec;
    use alloc::vec::Vec;
    use bytes::Bytes;
    use proptest::prelude::*;
    use wire::frame::{ParsedFrame, parse};
    use wire::tcp::TcpHeader;

    const SOFTWARE: LinkCaps =
        LinkCaps { segmentation: false, udp_segmentation: false, checksum: false, mtu: 1500 };

    /// Payloads of the given lengths, alternately in host memory and in blocks, with consecutive
    /// byte values.
    fn payloads(lens: &[usize]) -> FramePayloads {
        let mut at = 0_usize;
        let mut next = |len: usize| -> Vec<u8> {
            at += len;
            (at - len..at).map(|i| u8::try_from(i % 251).unwrap()).collect()
        };
        let mut out = FramePayloads::new();
        for (i, &len) in lens.iter().enumerate() {
            let content = next(len);
            out.push(if i % 2 == 0 {
                FramePayload::Host(Bytes::from(content))
            } else {
                let mut block = AlignedBuf::new(20);
                block.as_mut_slice()[7..7 + len].copy_from_slice(&content);
                let len = u32::try_from(len).unwrap();
                FramePayload::Block { block: Arc::new(block), start: 7, len }
            });
        }
        out
    }

    /// Returns the number of packets that the rest of a segmented run becomes.
    fn packets_left(run: &TxRun) -> usize {
        run.bytes_left.div_ceil(usize::from(run.segment_size))
    }

    fn frames(mut run: TxRun, caps: LinkCaps) -> Vec<TxFrame> {
        if !run.is_segmented() {
            return vec![run.take_frame(&caps)];
        }
        let mut out = vec![];
        while !run.is_used_up() {
            let frame = run.next_frame(&caps, RUN_BYTES_MAX);
            assert_eq!(frame.payload.iter().filter(|p| p.as_slice().is_empty()).count(), 0);
            out.push(frame);
        }
        out
    }

    #[test]
    fn a_run_for_a_segmenting_link_is_one_frame() {
        for version in [4, 6] {
            let caps =
                LinkCaps { segmentation: true, udp_segmentation: false, checksum: true, mtu: 1500 };
            let header = tcp_header(version, 5, TcpFlags::ACK.with(TcpFlags::PSH));
            let mut run =
                TxRun::new(header.clone(), TemplateKind::Tcp, payloads(&[3000, 70]), 1448);
            let cut = run.next_frame(&caps, RUN_BYTES_MAX);
            assert_eq!((cut.packets(), run.is_used_up(), cut.segment_size), (3, true, 1448));
            assert_eq!(cut.bytes_on_link(), 3 * header.len() + 3070);
            assert!(cut.checksum_partial);
            // The field holds the pseudo-header's sum: adding the segment's bytes yields its
            // checksum.
            let mut bytes = bytes_of(&cut);
            let l4 = header.l4();
            let mut sum = wire::checksum::ChecksumSum::new();
            sum.add(&bytes[l4..]);
            bytes[l4 + 16..l4 + 18].copy_from_slice(&sum.finish().to_be_bytes());
            verify(&bytes);
        }
    }

    #[test]
    fn checksums_alone_can_be_left_to_the_link() {
        let caps = LinkCaps { checksum: true, ..SOFTWARE };
        let run =
            TxRun::new(tcp_header(4, 5, TcpFlags::ACK), TemplateKind::Tcp, payloads(&[100]), 60);
        let frames = frames(run, caps);
        assert_eq!(frames.len(), 2);
        assert!(frames.iter().all(|f| f.checksum_partial && f.segment_size == 0));
    }

    /// Longer than 64 KiB: one frame with a zero length field over IPv4, several frames over IPv6.
    #[test]
    fn long_runs_are_cut_only_where_needed() {
        let caps =
            LinkCaps { segmentation: true, udp_segmentation: false, checksum: true, mtu: 1500 };
        let flags = TcpFlags::ACK.with(TcpFlags::PSH).with(TcpFlags::CWR);
        let lens = [80_000, 60_000, 1000];
        let long = |version| {
            TxRun::new(tcp_header(version, 5, flags), TemplateKind::Tcp, payloads(&lens), 1448)
        };
        let mut run = long(4);
        let cut = run.next_frame(&caps, 200_000);
        assert_eq!((cut.packets(), run.is_used_up(), cut.payload_len()), (98, true, 141_000));
        assert_eq!(bytes_of(&cut)[16..18], [0, 0]);

        for (version, most) in [(6, 200_000), (4, RUN_BYTES_MAX)] {
            let (mut run, mut at, mut lens) = (long(version), 0_u32, vec![]);
            loop {
                assert_eq!(packets_left(&run), (141_000 - at as usize).div_ceil(1448));
                let cut = run.next_frame(&caps, most);
                let (frame, l4) = (bytes_of(&cut), cut.header.l4());
                let (segment, _) = TcpHeader::parse(&frame[l4..]).unwrap();
                assert_eq!(segment.seq.0, 5 + at);
                let expected = if at == 0 { flags.without(TcpFlags::PSH) } else { TcpFlags::ACK };
                assert_eq!(
                    segment.flags,
                    if run.is_used_up() { TcpFlags::ACK.with(TcpFlags::PSH) } else { expected }
                );
                let length =
                    usize::from(u16_at(&frame, if version == 4 { 16 } else { 18 }).unwrap());
                assert_eq!(length, frame.len() - if version == 4 { 14 } else { 54 });
                let payload = &frame[cut.header.len()..];
                let first = at as usize;
                assert!(
                    payload.iter().enumerate().all(|(i, &b)| usize::from(b) == (first + i) % 251)
                );
                at += u32::try_from(payload.len()).unwrap();
                lens.push(payload.len());
                if run.is_used_up() {
                    break;
                }
            }
            assert_eq!(lens, [65_160, 65_160, 10_680]);
        }
    }

    /// Each datagram of a run has its own lengths, checksum and identification, whatever the link
    /// can do for TCP.
    #[test]
    fn datagrams_are_cut() {
        let caps =
            LinkCaps { segmentation: true, udp_segmentation: false, checksum: true, mtu: 1500 };
        for (version, caps) in [(4, SOFTWARE), (6, SOFTWARE), (4, caps)] {
            let header = udp_header(version);
            let run =
                TxRun::new(header.clone(), TemplateKind::Udp, payloads(&[1000, 1100, 500]), 1200);
            assert_eq!(packets_left(&run), 3);
            let mut whole = vec![];
            for (i, frame) in frames(run, caps).iter().enumerate() {
                assert_eq!((frame.segment_size, frame.checksum_partial), (0, caps.checksum));
                let bytes = bytes_of(frame);
                if !caps.checksum {
                    verify(&bytes);
                }
                let l4 = header.l4();
                assert_eq!(bytes[l4..l4 + 4], header.as_slice()[l4..l4 + 4], "ports");
                assert_eq!(usize::from(u16_at(&bytes, l4 + 4).unwrap()), bytes.len() - l4);
                if version == 4 {
                    assert_eq!(usize::from(u16_at(&bytes, 18).unwrap()), 0x0102 + i);
                }
                assert_eq!(bytes.len() - l4 - 8, [1200, 1200, 200][i]);
                whole.extend_from_slice(&bytes[l4 + 8..]);
            }
            assert!(whole.iter().enumerate().all(|(i, &b)| usize::from(b) == i % 251));
            assert_eq!(whole.len(), 2600);
        }
    }

    /// For a link that segments UDP, runs of datagrams stay whole up to the longest UDP frame.
    #[test]
    fn datagrams_for_a_segmenting_link_are_one_frame() {
        let able =
            LinkCaps { segmentation: true, udp_segmentation: true, checksum: true, mtu: 1500 };
        for (version, lens, whole) in
            [(4, [2000, 600], 2600), (6, [2000, 600], 2600), (4, [60_000, 9000], 64_800)]
        {
            let header = udp_header(version);
            let mut run = TxRun::new(header.clone(), TemplateKind::Udp, payloads(&lens), 1200);
            let cut = run.next_frame(&able, 200_000);
            let total: usize = lens.iter().sum();
            assert_eq!((cut.payload_len(), run.is_used_up()), (whole, whole == total));
            assert_eq!((cut.segment_size, cut.checksum_partial), (1200, true));
            assert_eq!(cut.packets(), whole.div_ceil(1200));
            let bytes = bytes_of(&cut);
            assert_eq!(usize::from(u16_at(&bytes, header.l4() + 4).unwrap()), whole + 8);
        }
        // Without checksum offload there is no segmentation.
        let caps = LinkCaps { checksum: false, ..able };
        let mut run = TxRun::new(udp_header(4), TemplateKind::Udp, payloads(&[2600]), 1200);
        assert_eq!(run.next_frame(&caps, 200_000).segment_size, 0);
    }

    proptest! {
        /// Against a reference that cuts a plain byte string: same bytes, same headers, correct
        /// checksums.
        #[test]
        fn equals_the_reference(
            lens in proptest::collection::vec(0_usize..9000, 1..7),
            segment_size in 1_u16..3000, v6: bool, flags: u8, seq: u32,
        ) {
            let flags = TcpFlags(flags);
            let header = tcp_header(if v6 { 6 } else { 4 }, seq, flags);
            let total: usize = lens.iter().sum();
            let whole: Vec<u8> = (0..total).map(|i| u8::try_from(i % 251).unwrap()).collect();
            let mut lens = lens;
            lens.retain(|&l| l > 0);
            let run = TxRun::new(header, TemplateKind::Tcp, payloads(&lens), segment_size);
            let frames = frames(run, SOFTWARE);
            let reference: Vec<&[u8]> = match total {
                0 => vec![&[]],
                _ => whole.chunks(usize::from(segment_size)).collect(),
            };
            prop_assert_eq!(frames.len(), reference.len());
            let mut at = seq;
            for (i, (frame, expected)) in frames.iter().zip(&reference).enumerate() {
                let bytes = bytes_of(frame);
                verify(&bytes);
                let Ok(ParsedFrame::Ip(ip)) = parse(&bytes) else { panic!("well-formed") };
                let (segment, header_len) = TcpHeader::parse(&bytes[ip.l4..]).unwrap();
                prop_assert_eq!(&bytes[ip.l4 + header_len..], *expected);
                prop_assert_eq!(segment.seq.0, at);
                at = at.wrapping_add(u32::try_from(expected.len()).unwrap());
                let last = i + 1 == frames.len();
                let ends = TcpFlags::FIN.with(TcpFlags::PSH);
                let mut expect = if last { flags } else { flags.without(ends) };
                expect = if i == 0 { expect } else { expect.without(TcpFlags::CWR) };
                prop_assert_eq!(segment.flags, expect);
                if !v6 {
                    let id = u16::from_be_bytes([bytes[18], bytes[19]]);
                    prop_assert_eq!(usize::from(id), 0x0102 + i);
                }
                prop_assert_eq!(segment.options.timestamps.map(|t| t.value), Some(7777));
            }
        }
    }
}
