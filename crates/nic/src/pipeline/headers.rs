//! Classification of a transmit's header template, and completion of one packet's lengths and
//! checksums.
//!
//! The template comes from the host and may contain anything; [`classify`] accepts only templates
//! that the rest of the pipeline can modify without further checks.

use abi::PacketHeader;
use abi::link::FramePayload;
use wire::frame::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, protocol};
use wire::segment::HeaderLayout;
use wire::{ETHERNET_BYTES, IPV4_BYTES, IPV6_BYTES, TCP_BYTES, UDP_BYTES, emit};

/// Bytes of an IEEE 802.1Q tag.
const VLAN_BYTES: usize = 4;
/// Bytes of an ICMP header up to and including its checksum.
const ICMP_BYTES: usize = 4;

/// Protocol of a template after its Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TemplateKind {
    /// TCP over IP, with the complete TCP header in the template.
    Tcp,
    /// UDP over IP, with the UDP header in the template.
    Udp,
    /// ICMP over IPv4.
    Icmp,
    /// ICMP over IPv6.
    Icmpv6,
    /// Another protocol over IP: only the IP lengths are completed.
    OtherIp,
    /// Not IP, or already complete: sent unmodified.
    Raw,
}

impl TemplateKind {
    /// Returns the transport protocol, if more than the IP header has to be completed.
    const fn protocol(self) -> Option<u8> {
        match self {
            Self::Tcp => Some(protocol::TCP),
            Self::Udp => Some(protocol::UDP),
            Self::Icmp => Some(protocol::ICMP),
            Self::Icmpv6 => Some(protocol::ICMPV6),
            Self::OtherIp | Self::Raw => None,
        }
    }
}

/// Classifies a template; `None` if its offsets and fields contradict each other.
pub(crate) fn classify(header: &PacketHeader) -> Option<TemplateKind> {
    let bytes = header.as_slice();
    let (mut ethertype, mut l3) = (u16_at(bytes, 12)?, ETHERNET_BYTES);
    if ethertype == ETHERTYPE_VLAN {
        ethertype = u16_at(bytes, ETHERNET_BYTES + 2)?;
        l3 += VLAN_BYTES;
    }
    let (version, ip_bytes, protocol_at) = match ethertype {
        ETHERTYPE_IPV4 => (4, IPV4_BYTES, 9),
        ETHERTYPE_IPV6 => (6, IPV6_BYTES, 6),
        _ => return Some(TemplateKind::Raw),
    };
    let ip = bytes.get(l3..l3 + ip_bytes)?;
    // This stack makes no IPv4 options, and `set_lengths` sums twenty bytes.
    let plain = ip[0] >> 4 == version && (version == 6 || ip[0] & 0x0f == 5);
    if !plain || header.l3() != l3 || header.l4() != l3 + ip_bytes {
        return None;
    }
    // A fragment is complete: all fragments of a packet have one identification, and its checksum
    // covers their payload together.
    let field = u16_at(bytes, l3 + 6).unwrap_or_default();
    if version == 4 && field & 0x3fff != 0 {
        return Some(TemplateKind::Raw);
    }
    let transport = &bytes[header.l4()..];
    match ip[protocol_at] {
        protocol::TCP => {
            let offset = transport.get(12).map(|&b| usize::from(b >> 4) * 4)?;
            (offset >= TCP_BYTES && offset == transport.len()).then_some(TemplateKind::Tcp)
        }
        protocol::UDP => (transport.len() >= UDP_BYTES).then_some(TemplateKind::Udp),
        protocol::ICMP if version == 4 && transport.len() >= ICMP_BYTES => Some(TemplateKind::Icmp),
        protocol::ICMPV6 if version == 6 && transport.len() >= ICMP_BYTES => {
            Some(TemplateKind::Icmpv6)
        }
        _ => Some(TemplateKind::OtherIp),
    }
}

/// Completes the headers of one packet with payload `payload`: IP length, identification and
/// checksum, UDP length, transport checksum. With `offload` the checksum of TCP and UDP is left to
/// the link. Returns whether it was.
pub(crate) fn complete_headers(
    header: &mut PacketHeader,
    kind: TemplateKind,
    payload: &[FramePayload],
    identification: u16,
    offload: bool,
) -> bool {
    if kind == TemplateKind::Raw {
        return false;
    }
    let (l3, l4) = (header.l3(), header.l4());
    let end = header.len() + payload.iter().map(|p| p.as_slice().len()).sum::<usize>();
    let frame = header.as_mut_slice();
    let Some(protocol) = kind.protocol() else {
        emit::set_lengths(frame, l3, end, identification);
        return false;
    };
    let layout = HeaderLayout { l3, l4, protocol };
    layout.set_lengths(frame, end, identification);
    match layout
        .checksum()
        .filter(|_| offload && matches!(kind, TemplateKind::Tcp | TemplateKind::Udp))
    {
        Some(at) => {
            // A partial checksum, as in virtio (section 5.1.6.2) and Linux.
            let sum = layout.pseudo_header(frame, end).fold();
            frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
            true
        }
        None => {
            layout.set_checksum(frame, end, payload.iter().map(FramePayload::as_slice));
            false
        }
    }
}

/// Reads the big-endian 16-bit word at `at`.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    match bytes.get(at..at + 2) {
        Some(&[high, low]) => Some(u16::from_be_bytes([high, low])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::frames::{tcp_header, verify};
    use abi::link::FramePayloads;
    use alloc::vec::Vec;
    use bytes::Bytes;
    use smallvec::smallvec;
    use wire::tcp::TcpFlags;

    fn icmp(version: u8) -> PacketHeader {
        let (ethertype, ip_bytes) = if version == 4 { (0x0800_u16, 20) } else { (0x86dd, 40) };
        let mut header = PacketHeader::zeroed(14 + ip_bytes + 8, 14, 14 + ip_bytes).unwrap();
        let bytes = header.as_mut_slice();
        bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
        bytes[14] = if version == 4 { 0x45 } else { 0x60 };
        bytes[if version == 4 { 23 } else { 20 }] = if version == 4 { 1 } else { 58 };
        bytes[14 + ip_bytes] = 8;
        // Stale checksum of the host: it is computed anew.
        bytes[14 + ip_bytes + 2] = 0xab;
        header
    }

    #[test]
    fn templates_are_told_apart() {
        assert_eq!(classify(&tcp_header(4, 1, TcpFlags::ACK)), Some(TemplateKind::Tcp));
        assert_eq!(classify(&tcp_header(6, 1, TcpFlags::ACK)), Some(TemplateKind::Tcp));
        assert_eq!(classify(&icmp(4)), Some(TemplateKind::Icmp));
        assert_eq!(classify(&icmp(6)), Some(TemplateKind::Icmpv6));
        let mut arp = PacketHeader::zeroed(42, 14, 14).unwrap();
        arp.as_mut_slice()[12..14].copy_from_slice(&[8, 6]);
        assert_eq!(classify(&arp), Some(TemplateKind::Raw));
    }

    #[test]
    fn contradictions_are_refused() {
        let good = tcp_header(4, 1, TcpFlags::ACK);
        let broken = |at: usize, byte: u8| {
            let mut header = good.clone();
            header.as_mut_slice()[at] = byte;
            classify(&header)
        };
        assert_eq!(broken(14, 0x46), None, "IPv4 options");
        assert_eq!(broken(14, 0x65), None, "version");
        assert_eq!(broken(34 + 12, 0xf0), None, "data offset behind the header");
        assert_eq!(broken(34 + 12, 0x50), None, "data offset inside the header");
        let moved = PacketHeader::from_bytes(good.as_slice(), 14, 38).unwrap();
        assert_eq!(classify(&moved), None, "transport offset");
        assert_eq!(classify(&PacketHeader::zeroed(13, 0, 0).unwrap()), None, "no Ethernet header");
        let cut = PacketHeader::from_bytes(&good.as_slice()[..40], 14, 34).unwrap();
        assert_eq!(classify(&cut), None, "half a TCP header");
    }

    #[test]
    fn icmp_checksums_are_filled_in() {
        for version in [4, 6] {
            let mut header = icmp(version);
            let kind = classify(&header).unwrap();
            let payload: FramePayloads =
                smallvec![FramePayload::Host(Bytes::from_static(b"ping!"))];
            assert!(
                !complete_headers(&mut header, kind, &payload, 0, true),
                "never left to the wire"
            );
            let mut frame = Vec::from(header.as_slice());
            frame.extend_from_slice(b"ping!");
            verify(&frame);
        }
    }
}
