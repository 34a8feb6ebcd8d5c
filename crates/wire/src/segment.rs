//! Completion of packets as a NIC does it (lengths, sequence numbers, checksums), for single
//! packets and for the packets of a run of segments.
//!
//! [`cut_run`] segments contiguous runs, for captures (whose readers do not accept frames longer
//! than a packet) and for tests. The device cuts its runs one packet at a time, with payloads in
//! many pieces, and completes them with the same [`HeaderLayout`]. Frames with invalid headers are
//! passed on unchanged.

use alloc::vec;
use alloc::vec::Vec;

use crate::checksum::ChecksumSum;
use crate::emit::{self, EthernetAddrs, IpHeader};
use crate::frame::{IpPacket, ParsedFrame, parse, protocol};
use crate::tcp::{TcpFlags, TcpHeader};
use crate::{ETHERNET_BYTES, IPV4_BYTES, IPV6_BYTES, Tuple};

/// Offsets of a frame's headers, and its transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderLayout {
    /// Offset of the IP header.
    pub l3: usize,
    /// Offset of the transport header.
    pub l4: usize,
    /// Transport protocol number.
    pub protocol: u8,
}

impl HeaderLayout {
    /// Returns the layout of a frame whose header offsets are known. `None` if there are extension
    /// headers or IPv4 options. Length fields are not checked, since those of a run are not valid
    /// yet.
    #[must_use]
    pub fn of(frame: &[u8], l3: usize, l4: usize) -> Option<Self> {
        let (at, bytes) = match frame.get(l3)? >> 4 {
            4 => (9, IPV4_BYTES),
            6 => (6, IPV6_BYTES),
            _ => return None,
        };
        let protocol = *frame.get(l3 + at)?;
        (l3 + bytes == l4).then_some(Self { l3, l4, protocol })
    }

    /// Returns the layout of a received frame.
    #[must_use]
    pub fn find(frame: &[u8]) -> Option<Self> {
        let Ok(ParsedFrame::Ip(IpPacket { l3, l4, .. })) = parse(frame) else { return None };
        Self::of(frame, l3, l4)
    }

    /// Returns the offset of the payload.
    fn payload(&self, frame: &[u8]) -> Option<usize> {
        match self.protocol {
            // RFC 9293 section 3.1: the data offset counts 32-bit words.
            protocol::TCP => {
                let words = usize::from(frame.get(self.l4 + 12)? >> 4);
                (words >= 5).then_some(self.l4 + words * 4)
            }
            protocol::UDP | protocol::ICMPV6 => Some(self.l4 + 8),
            _ => None,
        }
        .filter(|payload| *payload <= frame.len())
    }

    /// Returns the offset of the transport checksum, for protocols that have one.
    #[must_use]
    pub const fn checksum(&self) -> Option<usize> {
        let offset = match self.protocol {
            protocol::TCP => 16,
            protocol::UDP => 6,
            protocol::ICMP | protocol::ICMPV6 => 2,
            _ => return None,
        };
        Some(self.l4 + offset)
    }

    /// Returns the sum of the pseudo-header of a packet that ends at `end`; zero for ICMPv4, which
    /// has none.
    ///
    /// # Panics
    /// If the IP header is not within `frame`.
    #[must_use]
    pub fn pseudo_header(&self, frame: &[u8], end: usize) -> ChecksumSum {
        match self.protocol {
            protocol::ICMP => ChecksumSum::new(),
            protocol => emit::pseudo_header_of(frame, self.l3, protocol, end - self.l4),
        }
    }

    /// Sets the lengths of a packet that ends at `end`, and IPv4's identification and checksum.
    ///
    /// # Panics
    /// If the headers are not within `frame`.
    pub fn set_lengths(&self, frame: &mut [u8], end: usize, identification: u16) {
        emit::set_lengths(frame, self.l3, end, identification);
        if self.protocol == protocol::UDP {
            let len = u16::try_from(end - self.l4).unwrap_or(0);
            frame[self.l4 + 4..self.l4 + 6].copy_from_slice(&len.to_be_bytes());
        }
    }

    /// Fills in the transport checksum of a packet that ends at `end`. `frame` has at least the
    /// headers; `rest` is the part of the payload that is not in `frame`.
    ///
    /// # Panics
    /// If the headers are not within `frame`.
    pub fn set_checksum<'a>(
        &self,
        frame: &mut [u8],
        end: usize,
        rest: impl IntoIterator<Item = &'a [u8]>,
    ) {
        let Some(at) = self.checksum() else { return };
        frame[at..at + 2].fill(0);
        let mut sum = self.pseudo_header(frame, end);
        sum.add(&frame[self.l4..]);
        rest.into_iter().for_each(|part| sum.add(part));
        // RFC 768: a computed zero is sent as all ones, since zero means no checksum.
        let sum = match sum.finish() {
            0 if self.protocol == protocol::UDP => 0xffff,
            sum => sum,
        };
        frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }

    /// Completes a contiguous packet: lengths, identification and checksums.
    ///
    /// # Panics
    /// If the headers are not within `packet`.
    pub fn complete(&self, packet: &mut [u8], identification: u16) {
        let end = packet.len();
        self.set_lengths(packet, end, identification);
        self.set_checksum(packet, end, []);
    }
}

/// Returns a complete packet with `parts` after its IP header.
#[must_use]
pub fn packet(link: &EthernetAddrs, ip: &IpHeader, parts: &[&[u8]]) -> Vec<u8> {
    let l4 = ETHERNET_BYTES + ip.len();
    let mut packet = vec![0; l4];
    emit::ethernet_ip_template(link, ip, &mut packet);
    parts.iter().for_each(|part| packet.extend_from_slice(part));
    let layout = HeaderLayout { l3: ETHERNET_BYTES, l4, protocol: ip.protocol };
    layout.complete(&mut packet, 0);
    packet
}

/// Returns a complete TCP packet.
#[must_use]
pub fn tcp_packet(
    link: &EthernetAddrs,
    ip: &IpHeader,
    segment: &TcpHeader,
    payload: &[u8],
) -> Vec<u8> {
    let mut header = vec![0; segment.header_len()];
    segment.emit(&mut header);
    packet(link, ip, &[&header, payload])
}

/// Returns a complete TCP packet from the remote end of a connection; its ports replace those of
/// `segment`.
#[must_use]
pub fn tcp_packet_from_peer(
    tuple: &Tuple,
    link: &EthernetAddrs,
    segment: &TcpHeader,
    payload: &[u8],
) -> Vec<u8> {
    let Tuple { local, remote } = *tuple;
    let segment = TcpHeader { source: remote.port, destination: local.port, ..*segment };
    let (source, destination, protocol) = (remote.addr, local.addr, protocol::TCP);
    let ip = IpHeader { source, destination, protocol, ecn: 0, hop_limit: 64 };
    tcp_packet(link, &ip, &segment, payload)
}

/// Calls `each` with the packets that `frame` is cut into, with `segment_size` bytes of payload
/// each; zero if the frame is a single packet. `partial` is true if the checksum of the frame is
/// partial. `packet` is a buffer to reuse.
pub fn cut_run(
    frame: &[u8],
    layout: Option<HeaderLayout>,
    (segment_size, partial): (u16, bool),
    packet: &mut Vec<u8>,
    mut each: impl FnMut(&[u8]),
) {
    let found = layout.and_then(|layout| Some((layout, layout.payload(frame)?)));
    let Some((layout, payload_at)) = found else { return each(frame) };
    let (headers, payload) = frame.split_at(payload_at);
    let runs = matches!(layout.protocol, protocol::TCP | protocol::UDP);
    let size = if runs { usize::from(segment_size) } else { 0 };
    if (size == 0 || payload.len() <= size) && !partial {
        return each(frame);
    }
    if size == 0 || payload.len() <= size {
        packet.clear();
        packet.extend_from_slice(frame);
        layout.set_checksum(packet, frame.len(), []);
        return each(packet);
    }
    let last = payload.len().div_ceil(size) - 1;
    for (index, part) in payload.chunks(size).enumerate() {
        packet.clear();
        packet.extend_from_slice(headers);
        packet.extend_from_slice(part);
        number_packet(packet, layout, (index, index * size), index == last);
        each(packet);
    }
}

/// Completes the headers of the packet at `index` of a run; `before` bytes of the run's payload
/// precede its own.
#[expect(clippy::cast_possible_truncation, reason = "numbers and identifications wrap")]
fn number_packet(
    packet: &mut [u8],
    layout: HeaderLayout,
    (index, before): (usize, usize),
    last: bool,
) {
    let HeaderLayout { l3, l4, .. } = layout;
    if layout.protocol == protocol::TCP {
        advance_seq(&mut packet[l4..], before as u32);
        let flags = &mut packet[l4 + FLAGS_AT];
        *flags = TcpFlags(*flags).for_packet_of_run(index == 0, last).0;
    }
    let identification = u16::from_be_bytes([packet[l3 + 4], packet[l3 + 5]]);
    layout.complete(packet, identification.wrapping_add(index as u16));
}

/// Offset of the control bits (flags) in a TCP header.
pub const FLAGS_AT: usize = 13;
/// Offset of the sequence number in a TCP header.
const SEQ_AT: usize = 4;

/// Advances the sequence number of a TCP header by `by` bytes.
pub fn advance_seq(tcp: &mut [u8], by: u32) {
    if let Some(seq) = tcp.get_mut(SEQ_AT..).and_then(<[u8]>::first_chunk_mut::<4>) {
        *seq = u32::from_be_bytes(*seq).wrapping_add(by).to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use proptest::prelude::*;

    use super::*;
    use crate::checksum::pseudo_header;
    use crate::emit::{tcp_headers, tcp_template, udp_template};
    use crate::tcp::TcpTimestamps;

    const ALL: TcpFlags =
        TcpFlags(TcpFlags::FIN.0 | TcpFlags::PSH.0 | TcpFlags::ACK.0 | TcpFlags::CWR.0);

    /// Returns a run of numbered bytes under headers without lengths and checksums, and its layout.
    fn run(v4: bool, protocol: u8, payload: usize) -> (Vec<u8>, Option<HeaderLayout>) {
        let addr = |last: u8| -> IpAddr {
            if v4 {
                [10, 0, 0, last].into()
            } else {
                [0xfd77, 0, 0, 0, 0, 0, 0, last.into()].into()
            }
        };
        let (source, destination) = (addr(1), addr(2));
        let ip = IpHeader { source, destination, protocol, ecn: 0, hop_limit: 64 };
        let link = EthernetAddrs { source: [2; 6], destination: [4; 6] };
        let l4 = ETHERNET_BYTES + ip.len();
        let mut frame;
        if protocol == protocol::TCP {
            let mut segment =
                TcpHeader { source: 1, destination: 2, flags: ALL, ..TcpHeader::default() };
            segment.seq = base::SeqNum(u32::MAX - 999);
            segment.options.timestamps = Some(TcpTimestamps { value: 9, echo: 8 });
            frame = vec![0; l4 + segment.header_len()];
            let _ = tcp_template(&link, &ip, &segment, &mut frame);
        } else {
            frame = vec![0; l4 + 8];
            udp_template(&link, &ip, [1, 2], payload, &mut frame);
        }
        frame.extend((0..payload).map(|at| u8::try_from(at % 251).unwrap()));
        let layout = HeaderLayout::of(&frame, ETHERNET_BYTES, l4);
        (frame, layout)
    }

    fn packets(frame: &[u8], layout: Option<HeaderLayout>, run: (u16, bool)) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        cut_run(frame, layout, run, &mut Vec::new(), |packet| all.push(packet.to_vec()));
        all
    }

    /// Returns transport header and payload of a packet after checking its lengths and checksums.
    fn checked(packet: &[u8]) -> &[u8] {
        let Ok(ParsedFrame::Ip(ip)) = parse(packet) else { panic!("{:?}", parse(packet)) };
        assert_eq!(ip.end, packet.len());
        let mut sum = pseudo_header(ip.source, ip.destination, ip.protocol, packet.len() - ip.l4);
        sum.add(&packet[ip.l4..]);
        assert_eq!(sum.finish(), 0);
        &packet[ip.l4..]
    }

    fn round_trip(source: &str, destination: &str) {
        let ip = IpHeader {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            protocol: protocol::TCP,
            ecn: 2,
            hop_limit: 64,
        };
        let link = EthernetAddrs { source: [1; 6], destination: [2; 6] };
        let (seq, ack) = (base::SeqNum(1), base::SeqNum(2));
        let (source, destination, flags, window) = (80, 5000, TcpFlags::ACK, 500);
        let mut segment =
            TcpHeader { source, destination, seq, ack, flags, window, ..TcpHeader::default() };
        segment.options.timestamps = Some(TcpTimestamps { value: 9, echo: 8 });
        let mut template = vec![0; ETHERNET_BYTES + ip.len() + segment.header_len()];
        let at = tcp_headers(&link, &ip, &segment, 10, &mut template).unwrap();
        assert_eq!(template[at..at + 4], [0, 0, 0, 9]);
        let packet = tcp_packet(&link, &ip, &segment, &[7; 10]);
        assert_eq!(packet[..ETHERNET_BYTES + ip.len()], template[..ETHERNET_BYTES + ip.len()]);
        let Ok(ParsedFrame::Ip(seen)) = parse(&packet) else { panic!("well-formed") };
        assert_eq!((seen.source, seen.destination), (ip.source, ip.destination));
        assert_eq!((seen.protocol, seen.ecn, seen.hop_limit), (6, 2, 64));
        let (parsed, header) = TcpHeader::parse(checked(&packet)).unwrap();
        assert_eq!((parsed, &checked(&packet)[header..]), (segment, &[7; 10][..]));
    }

    #[test]
    fn packets_parse_back() {
        round_trip("10.77.0.2", "10.77.0.1");
        round_trip("fd77::2", "fd77::1");
    }

    #[test]
    fn a_run_of_tcp_is_numbered() {
        for v4 in [true, false] {
            let (mut frame, layout) = run(v4, protocol::TCP, 2500);
            if v4 {
                frame[18..20].copy_from_slice(&[0xff, 0xff]);
            }
            let all = packets(&frame, layout, (1000, true));
            let headers: Vec<_> =
                all.iter().map(|packet| TcpHeader::parse(checked(packet)).unwrap()).collect();
            let seqs: Vec<_> = headers.iter().map(|(segment, _)| segment.seq.0).collect();
            assert_eq!(seqs, [u32::MAX - 999, 0, 1000]);
            let flags: Vec<_> = headers.iter().map(|(segment, _)| segment.flags).collect();
            let middle = TcpFlags::ACK;
            let first = middle.with(TcpFlags::CWR);
            assert_eq!(flags, [first, middle, middle.with(TcpFlags::FIN).with(TcpFlags::PSH)]);
            let payloads =
                all.iter().zip(&headers).map(|(packet, (_, len))| &checked(packet)[*len..]);
            assert_eq!(payloads.collect::<Vec<_>>().concat(), frame[frame.len() - 2500..]);
            if v4 {
                let numbers: Vec<_> = all.iter().map(|packet| packet[18..20].to_vec()).collect();
                assert_eq!(numbers, [[0xff, 0xff], [0, 0], [0, 1]]);
            }
        }
    }

    #[test]
    fn runs_longer_than_any_packet_are_cut() {
        let (frame, layout) = run(true, protocol::TCP, 300_000);
        let all = packets(&frame, layout, (1448, false));
        assert_eq!(all.len(), 300_000_usize.div_ceil(1448));
        all.iter().for_each(|packet| assert!(checked(packet).len() <= 1448 + 32));
    }

    #[test]
    fn a_run_of_udp_has_lengths() {
        for v4 in [true, false] {
            let (frame, layout) = run(v4, protocol::UDP, 2500);
            let all = packets(&frame, layout, (1000, true));
            let lens = all.iter().map(|packet| checked(packet)[4..6].to_vec());
            let lens: Vec<_> = lens.map(|len| u16::from_be_bytes([len[0], len[1]])).collect();
            assert_eq!(lens, [1008, 1008, 508]);
        }
    }

    #[test]
    fn an_unfinished_checksum_is_filled_in_and_a_finished_one_left() {
        let (run, layout) = run(true, protocol::TCP, 1000);
        let mut frame = run;
        let end = frame.len();
        emit::set_lengths(&mut frame, ETHERNET_BYTES, end, 0);
        assert_eq!(packets(&frame, layout, (1000, false)), [&frame[..]]);
        let all = packets(&frame, HeaderLayout::find(&frame), (0, true));
        assert_eq!((all.len(), checked(&all[0]).len()), (1, 1032));
    }

    #[test]
    fn udp_checksum_of_zero_is_all_ones() {
        let (mut frame, layout) = run(false, protocol::UDP, 2);
        let end = frame.len();
        emit::set_lengths(&mut frame, ETHERNET_BYTES, end, 0);
        frame[end - 2..].fill(0);
        let sum = packets(&frame, layout, (0, true))[0][end - 4..end - 2].to_vec();
        frame[end - 2..].copy_from_slice(&sum);
        assert_eq!(packets(&frame, layout, (0, true))[0][end - 4..end - 2], [0xff, 0xff]);
    }

    proptest! {
        #[test]
        fn cut_loses_no_bytes(
            mut frame in proptest::collection::vec(any::<u8>(), 0..200),
            ip in any::<bool>(),
            size in 0_u16..100,
            partial in any::<bool>(),
            headers in (0_usize..60, 0_usize..60),
        ) {
            if let (true, Some(head)) = (ip, frame.get_mut(12..35)) {
                head[..3].copy_from_slice(&[8, 0, 0x45]);
                head[11] = [6, 17, 58][head[11] as usize % 3];
            }
            for layout in [
                HeaderLayout::find(&frame),
                HeaderLayout::of(&frame, headers.0, headers.1),
                HeaderLayout::of(&frame, 14, 34)] {
                let all = packets(&frame, layout, (size, partial));
                prop_assert!(!all.is_empty());
                prop_assert!(all.iter().map(Vec::len).sum::<usize>() >= frame.len());
            }
        }
    }
}
