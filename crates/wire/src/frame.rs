//! Where the headers of a frame lie: one pass from Ethernet to the transport header.
//!
//! The device runs it on every received frame; the host runs it again, because it trusts no offset
//! that crossed a ring. It checks lengths and versions and skips VLAN tags and IPv6 extension
//! headers; it does not verify checksums other than IPv4's header checksum, which is part of being
//! well-formed.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::checksum::Sum;
use crate::{ETHERNET_BYTES, IPV4_BYTES, IPV6_BYTES};

/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// EtherType of an IEEE 802.1Q tag.
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;

/// Protocol numbers that the stack knows.
pub mod protocol {
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
}

/// IPv6 extension headers that a packet may carry before its transport header. More is refused: no
/// honest sender needs them, and the walk has to be bounded.
const EXTENSION_HEADERS_MAX: usize = 4;

/// A frame whose headers are well-formed as far as the transport header's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// An ARP packet.
    Arp {
        /// Where it begins.
        at: usize,
    },
    /// An IP packet.
    Ip(IpPacket),
}

/// Where the parts of an IP packet lie in its frame, and what its header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpPacket {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Offset of the IP header.
    pub l3: usize,
    /// Offset of the transport header.
    pub l4: usize,
    /// Offset just behind the packet; Ethernet padding lies beyond.
    pub end: usize,
    /// Protocol of what lies at `l4`.
    pub protocol: u8,
    /// The ECN field: RFC 3168.
    pub ecn: u8,
    /// Time to live, or hop limit.
    pub hop_limit: u8,
}

/// What is wrong with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FrameError {
    /// It ends before its headers do.
    Truncated,
    /// The EtherType is none that the stack speaks.
    UnknownEtherType,
    /// The IP version does not fit the EtherType.
    BadVersion,
    /// A length field points outside the frame, or inside a header.
    BadLength,
    /// The IPv4 header checksum is wrong.
    BadHeaderChecksum,
    /// It is a fragment: the stack sends with DF set and takes none.
    Fragment,
    /// Too many IPv6 extension headers, or one that forbids delivery.
    BadExtensionHeader,
}

/// Finds the headers of a frame.
///
/// # Errors
/// `FrameError` says what is malformed; the frame is then of no use to anybody.
pub fn parse(frame: &[u8]) -> Result<Frame, FrameError> {
    let mut ethertype = u16_at(frame, 12)?;
    let mut l3 = ETHERNET_BYTES;
    if ethertype == ETHERTYPE_VLAN {
        ethertype = u16_at(frame, 16)?;
        l3 += 4;
    }
    match ethertype {
        ETHERTYPE_IPV4 => parse_ipv4(frame, l3).map(Frame::Ip),
        ETHERTYPE_IPV6 => parse_ipv6(frame, l3).map(Frame::Ip),
        ETHERTYPE_ARP => Ok(Frame::Arp { at: l3 }),
        _ => Err(FrameError::UnknownEtherType),
    }
}

fn parse_ipv4(frame: &[u8], l3: usize) -> Result<IpPacket, FrameError> {
    let header = frame.get(l3..l3 + IPV4_BYTES).ok_or(FrameError::Truncated)?;
    if header[0] >> 4 != 4 {
        return Err(FrameError::BadVersion);
    }
    let header_bytes = usize::from(header[0] & 0x0f) * 4;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if header_bytes < IPV4_BYTES || total < header_bytes || l3 + total > frame.len() {
        return Err(FrameError::BadLength);
    }
    if Sum::of_words(&frame[l3..l3 + header_bytes]).finish() != 0 {
        return Err(FrameError::BadHeaderChecksum);
    }
    // MF, or a fragment offset: RFC 791 section 3.1.
    if u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0 {
        return Err(FrameError::Fragment);
    }
    let addr =
        |at: usize| Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]);
    Ok(IpPacket {
        source: addr(12).into(),
        destination: addr(16).into(),
        l3,
        l4: l3 + header_bytes,
        end: l3 + total,
        protocol: header[9],
        ecn: header[1] & 3,
        hop_limit: header[8],
    })
}

fn parse_ipv6(frame: &[u8], l3: usize) -> Result<IpPacket, FrameError> {
    let header = frame.get(l3..l3 + IPV6_BYTES).ok_or(FrameError::Truncated)?;
    if header[0] >> 4 != 6 {
        return Err(FrameError::BadVersion);
    }
    let end = l3 + IPV6_BYTES + usize::from(u16::from_be_bytes([header[4], header[5]]));
    if end > frame.len() {
        return Err(FrameError::BadLength);
    }
    let (protocol, l4) = skip_extension_headers(&frame[..end], header[6], l3 + IPV6_BYTES)?;
    let addr = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&header[at..at + 16]);
        Ipv6Addr::from(octets)
    };
    Ok(IpPacket {
        source: addr(8).into(),
        destination: addr(24).into(),
        l3,
        l4,
        end,
        protocol,
        ecn: header[1] >> 4 & 3,
        hop_limit: header[7],
    })
}

/// Walks hop-by-hop options, routing and destination options: RFC 8200 section 4.
fn skip_extension_headers(
    packet: &[u8],
    mut next: u8,
    mut at: usize,
) -> Result<(u8, usize), FrameError> {
    for _ in 0..=EXTENSION_HEADERS_MAX {
        match next {
            0 | 43 | 60 => {
                let header = packet.get(at..at + 8).ok_or(FrameError::Truncated)?;
                next = header[0];
                at += (usize::from(header[1]) + 1) * 8;
                if at > packet.len() {
                    return Err(FrameError::BadLength);
                }
            }
            44 => return Err(FrameError::Fragment),
            _ => return Ok((next, at)),
        }
    }
    Err(FrameError::BadExtensionHeader)
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, FrameError> {
    match bytes.get(at..at + 2) {
        Some(&[high, low]) => Ok(u16::from_be_bytes([high, low])),
        _ => Err(FrameError::Truncated),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A well-formed IPv4 header for 20 bytes of TCP, from RFC-conform parts.
    fn ipv4() -> [u8; 54] {
        let mut f = [0; 54];
        f[12..14].copy_from_slice(&[0x08, 0x00]);
        f[14..34].copy_from_slice(&[
            0x45, 0x02, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        let mut sum = Sum::new();
        sum.add(&f[14..34]);
        f[24..26].copy_from_slice(&sum.finish().to_be_bytes());
        f
    }

    #[test]
    fn ipv4_offsets() {
        let Ok(Frame::Ip(ip)) = parse(&ipv4()) else { panic!("well-formed") };
        assert_eq!((ip.l3, ip.l4, ip.end, ip.protocol, ip.ecn), (14, 34, 54, 6, 2));
    }

    #[test]
    fn malformed_ipv4_says_why() {
        let broken = |at: usize, byte: u8| {
            let mut f = ipv4();
            f[at] = byte;
            parse(&f).unwrap_err()
        };
        assert_eq!(broken(14, 0x65), FrameError::BadVersion);
        assert_eq!(broken(14, 0x44), FrameError::BadLength);
        assert_eq!(broken(17, 41), FrameError::BadLength);
        assert_eq!(broken(26, 11), FrameError::BadHeaderChecksum);
        assert_eq!(parse(&ipv4()[..30]), Err(FrameError::Truncated));
        assert_eq!(parse(&[0; 60]), Err(FrameError::UnknownEtherType));
    }

    #[test]
    fn endless_extension_headers_are_refused() {
        let mut f = [0; 14 + 40 + 80];
        f[12..14].copy_from_slice(&[0x86, 0xdd]);
        f[14] = 0x60;
        f[19] = 80; // ten hop-by-hop headers, each naming the next
        assert_eq!(parse(&f), Err(FrameError::BadExtensionHeader));
    }

    proptest! {
        #[test]
        fn total_on_any_bytes(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            kind in 0..4_usize,
        ) {
            let mut bytes = bytes;
            let ethertype = [ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_ARP, ETHERTYPE_VLAN][kind];
            if bytes.len() >= 14 {
                bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
            }
            if let Ok(Frame::Ip(ip)) = parse(&bytes) {
                prop_assert!(ip.l3 < ip.l4 && ip.l4 <= ip.end && ip.end <= bytes.len());
            }
        }
    }
}
