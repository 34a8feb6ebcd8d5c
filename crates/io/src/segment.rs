//! Software segmentation: the packets that a run of segments becomes on a cable, with lengths,
//! sequence numbers and checksums as a NIC writes them.
//!
//! For captures ([`crate::pcap`]): readers know no frames longer than a packet, and tshark refuses
//! files with one over 256 KiB. What is sent is cut by the device or the kernel, and not here. A
//! frame that makes no sense is given as it is.

use wire::frame::{Frame, IpPacket, parse, protocol};
use wire::tcp::Flags;
use wire::{IPV4_BYTES, IPV6_BYTES, emit};

/// Where a frame's headers lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    l3: usize,
    l4: usize,
    protocol: u8,
}

impl Layout {
    /// Of a frame whose headers are known to lie there, without extension headers; its lengths may
    /// be those of no packet.
    pub(crate) fn of(frame: &[u8], l3: usize, l4: usize) -> Option<Self> {
        let (at, bytes) = match frame.get(l3)? >> 4 {
            4 => (9, IPV4_BYTES),
            6 => (6, IPV6_BYTES),
            _ => return None,
        };
        let protocol = *frame.get(l3 + at)?;
        (l3 + bytes == l4).then_some(Self { l3, l4, protocol })
    }

    /// Of a frame that has come in.
    pub(crate) fn find(frame: &[u8]) -> Option<Self> {
        let Ok(Frame::Ip(IpPacket { l3, l4, .. })) = parse(frame) else { return None };
        Self::of(frame, l3, l4)
    }

    /// Where the payload begins, and where the checksum is.
    fn transport(&self, frame: &[u8]) -> Option<(usize, usize)> {
        match self.protocol {
            // RFC 9293 section 3.1: the data offset counts words of 32 bits.
            protocol::TCP => {
                let words = usize::from(frame.get(self.l4 + 12)? >> 4);
                (words >= 5).then_some((self.l4 + words * 4, self.l4 + 16))
            }
            protocol::UDP => Some((self.l4 + 8, self.l4 + 6)),
            protocol::ICMPV6 => Some((self.l4 + 8, self.l4 + 2)),
            _ => None,
        }
        .filter(|(payload, _)| *payload <= frame.len())
    }
}

/// Calls `each` with the packets that `frame` becomes, `segment_size` bytes of payload in each;
/// zero for a frame that is one packet. `partial` says whether its checksum is unfinished. `packet`
/// is room.
pub(crate) fn cut(
    frame: &[u8],
    layout: Option<Layout>,
    (segment_size, partial): (u16, bool),
    packet: &mut Vec<u8>,
    mut each: impl FnMut(&[u8]),
) {
    let found = layout.and_then(|layout| Some((layout, layout.transport(frame)?)));
    let Some((layout, (payload_at, sum_at))) = found else { return each(frame) };
    let (headers, payload) = frame.split_at(payload_at);
    let runs = matches!(layout.protocol, protocol::TCP | protocol::UDP);
    let size = if runs { usize::from(segment_size) } else { 0 };
    if (size == 0 || payload.len() <= size) && !partial {
        return each(frame);
    }
    if size == 0 || payload.len() <= size {
        packet.clear();
        packet.extend_from_slice(frame);
        sum(packet, layout, sum_at);
        return each(packet);
    }
    let last = payload.len().div_ceil(size) - 1;
    for (index, part) in payload.chunks(size).enumerate() {
        packet.clear();
        packet.extend_from_slice(headers);
        packet.extend_from_slice(part);
        number(packet, layout, (index, index * size), index == last);
        sum(packet, layout, sum_at);
        each(packet);
    }
}

/// Makes the headers those of the packet with that number, whose payload begins `before` bytes
/// behind the run's first.
#[expect(clippy::cast_possible_truncation, reason = "numbers and identifications wrap")]
fn number(packet: &mut [u8], layout: Layout, (index, before): (usize, usize), last: bool) {
    let Layout { l3, l4, .. } = layout;
    let identification = u16::from_be_bytes([packet[l3 + 4], packet[l3 + 5]]);
    let end = packet.len();
    emit::set_lengths(packet, l3, end, identification.wrapping_add(index as u16));
    if layout.protocol == protocol::UDP {
        let len = u16::try_from(end - l4).unwrap_or(0);
        packet[l4 + 4..l4 + 6].copy_from_slice(&len.to_be_bytes());
        return;
    }
    if let Some(seq) = packet[l4 + 4..].first_chunk_mut::<4>() {
        *seq = u32::from_be_bytes(*seq).wrapping_add(before as u32).to_be_bytes();
    }
    let flags = &mut packet[l4 + 13];
    *flags = Flags(*flags).of_run(index == 0, last).0;
}

/// Fills in the transport checksum at `at`.
fn sum(packet: &mut [u8], layout: Layout, at: usize) {
    let Layout { l3, l4, protocol } = layout;
    packet[at..at + 2].fill(0);
    let mut sum = emit::pseudo_header_of(packet, l3, protocol, packet.len() - l4);
    sum.add(&packet[l4..]);
    // RFC 768: zero says that there is none.
    let sum = match sum.finish() {
        0 if protocol == protocol::UDP => 0xffff,
        sum => sum,
    };
    packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;
    use wire::ETHERNET_BYTES;
    use wire::checksum::pseudo_header;
    use wire::emit::{IpHeader, Link, tcp_template, udp_template};
    use wire::tcp::{Segment, Timestamps};

    use super::*;

    const ALL: Flags = Flags(Flags::FIN.0 | Flags::PSH.0 | Flags::ACK.0 | Flags::CWR.0);

    /// A run of numbered bytes under headers without lengths and sums, and where these lie.
    fn run(v4: bool, protocol: u8, payload: usize) -> (Vec<u8>, Option<Layout>) {
        let addr = |last: u8| -> IpAddr {
            if v4 {
                [10, 0, 0, last].into()
            } else {
                [0xfd77, 0, 0, 0, 0, 0, 0, last.into()].into()
            }
        };
        let (source, destination) = (addr(1), addr(2));
        let ip = IpHeader { source, destination, protocol, ecn: 0, hop_limit: 64 };
        let link = Link { source: [2; 6], destination: [4; 6] };
        let l4 = ETHERNET_BYTES + ip.len();
        let mut frame;
        if protocol == protocol::TCP {
            let mut segment =
                Segment { source: 1, destination: 2, flags: ALL, ..Segment::default() };
            segment.seq = base::SeqNum(u32::MAX - 999);
            segment.options.timestamps = Some(Timestamps { value: 9, echo: 8 });
            frame = vec![0; l4 + segment.header_len()];
            let _ = tcp_template(&link, &ip, &segment, &mut frame);
        } else {
            frame = vec![0; l4 + 8];
            udp_template(&link, &ip, [1, 2], payload, &mut frame);
        }
        frame.extend((0..payload).map(|at| u8::try_from(at % 251).unwrap()));
        let layout = Layout::of(&frame, ETHERNET_BYTES, l4);
        (frame, layout)
    }

    fn packets(frame: &[u8], layout: Option<Layout>, run: (u16, bool)) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        cut(frame, layout, run, &mut Vec::new(), |packet| all.push(packet.to_vec()));
        all
    }

    /// The transport header and payload of a packet whose lengths and checksums are right.
    fn checked(packet: &[u8]) -> &[u8] {
        let Ok(Frame::Ip(ip)) = parse(packet) else { panic!("{:?}", parse(packet)) };
        assert_eq!(ip.end, packet.len());
        let mut sum = pseudo_header(ip.source, ip.destination, ip.protocol, packet.len() - ip.l4);
        sum.add(&packet[ip.l4..]);
        assert_eq!(sum.finish(), 0);
        &packet[ip.l4..]
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
                all.iter().map(|packet| Segment::parse(checked(packet)).unwrap()).collect();
            let seqs: Vec<_> = headers.iter().map(|(segment, _)| segment.seq.0).collect();
            assert_eq!(seqs, [u32::MAX - 999, 0, 1000]);
            let flags: Vec<_> = headers.iter().map(|(segment, _)| segment.flags).collect();
            let middle = Flags::ACK;
            let first = middle.with(Flags::CWR);
            assert_eq!(flags, [first, middle, middle.with(Flags::FIN).with(Flags::PSH)]);
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
        let all = packets(&frame, Layout::find(&frame), (0, true));
        assert_eq!((all.len(), checked(&all[0]).len()), (1, 1032));
    }

    #[test]
    fn a_sum_of_zero_says_so_in_udp() {
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
        fn whatever_it_is_no_byte_is_lost(
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
            for layout in [Layout::find(&frame), Layout::of(&frame, headers.0, headers.1),
                Layout::of(&frame, 14, 34)] {
                let all = packets(&frame, layout, (size, partial));
                prop_assert!(!all.is_empty());
                prop_assert!(all.iter().map(Vec::len).sum::<usize>() >= frame.len());
            }
        }
    }
}
