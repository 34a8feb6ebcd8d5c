//! Offsets of a frame's headers, found in one pass from Ethernet to the transport header.
//!
//! The device parses every received frame; the host parses it again, because it trusts no offset
//! from a ring. The parser checks lengths and versions and skips VLAN tags and IPv6 extension
//! headers. Of the checksums it verifies only that of the IPv4 header.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::checksum::ChecksumSum;
use crate::{ETHERNET_BYTES, Endpoint, IPV4_BYTES, IPV6_BYTES, Tuple};

/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// EtherType of an IEEE 802.1Q tag.
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;

/// ICMPv6 type of neighbor solicitations (RFC 4861 section 4.3).
pub const NEIGHBOR_SOLICITATION: u8 = 135;

/// Protocol numbers used by the stack.
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

/// Maximum IPv6 extension headers before the transport header. More are refused: no honest sender
/// needs them, and the loop must be bounded.
pub(crate) const EXTENSION_HEADERS_MAX: usize = 4;

/// A frame with well-formed headers up to the start of the transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParsedFrame {
    /// An ARP packet.
    Arp {
        /// Offset of the ARP packet in the frame.
        at: usize,
    },
    /// An IP packet.
    Ip(IpPacket),
}

/// Offsets of an IP packet in its frame, and fields of its header.
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
    /// Offset of the packet's end; Ethernet padding may follow.
    pub end: usize,
    /// Protocol number of the header at `l4`.
    pub protocol: u8,
    /// ECN field (RFC 3168).
    pub ecn: u8,
    /// Time to live (IPv4) or hop limit (IPv6).
    pub hop_limit: u8,
}

impl IpPacket {
    /// Returns addresses and ports of a TCP segment or UDP datagram in its frame; `local` is the
    /// destination. `None` for other packets, and if it has no complete ports.
    #[must_use]
    pub fn tuple(&self, frame: &[u8]) -> Option<Tuple> {
        if !matches!(self.protocol, protocol::TCP | protocol::UDP) {
            return None;
        }
        let [a, b, c, d] = *frame.get(self.l4..self.end)?.first_chunk::<4>()?;
        let (source, destination) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Some(Tuple {
            local: Endpoint { addr: self.destination, port: destination },
            remote: Endpoint { addr: self.source, port: source },
        })
    }
}

/// A TCP segment or UDP datagram that an ICMP error quotes, perhaps cut short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotedPacket<'a> {
    /// Addresses and ports; `local` is the source, to which the error was sent.
    pub tuple: Tuple,
    /// Protocol number, TCP or UDP.
    pub protocol: u8,
    /// The quoted bytes from the transport header on, the ports at least.
    pub transport: &'a [u8],
}

/// Finds the headers of the packet that an ICMP error quotes; `quoted` begins with its IP header.
/// `None` if it is neither a TCP segment nor a UDP datagram, or has no complete ports.
#[must_use]
pub fn parse_quoted(quoted: &[u8]) -> Option<QuotedPacket<'_>> {
    let v4 = |at: usize| quoted.get(at..)?.first_chunk::<4>().map(|octets| (*octets).into());
    let v6 = |at: usize| quoted.get(at..)?.first_chunk::<16>().map(|octets| (*octets).into());
    let (source, destination, protocol, l4): (IpAddr, IpAddr, u8, usize) =
        match quoted.first()? >> 4 {
            4 => (v4(12)?, v4(16)?, *quoted.get(9)?, usize::from(quoted[0] & 15) * 4),
            6 => (v6(8)?, v6(24)?, *quoted.get(6)?, IPV6_BYTES),
            _ => return None,
        };
    let transport = quoted.get(l4..)?;
    let ports = transport.first_chunk::<4>()?;
    let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
    let tuple = Tuple {
        local: Endpoint { addr: source, port: port(0) },
        remote: Endpoint { addr: destination, port: port(2) },
    };
    (matches!(protocol, protocol::TCP | protocol::UDP) && l4 >= IPV4_BYTES)
        .then_some(QuotedPacket { tuple, protocol, transport })
}

/// Reason why a frame is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FrameHeaderError {
    /// The frame ends before its headers do.
    Truncated,
    /// The EtherType is not supported.
    UnknownEtherType,
    /// The IP version does not match the EtherType.
    BadVersion,
    /// A length field points outside the frame, or into a header.
    BadLength,
    /// The IPv4 header checksum is wrong.
    BadHeaderChecksum,
    /// The packet is a fragment ([`crate::fragment`]).
    Fragment,
    /// Too many IPv6 extension headers.
    BadExtensionHeader,
}

/// Finds the headers of a frame.
///
/// # Errors
/// [`FrameHeaderError`] if the headers are malformed.
pub fn parse(frame: &[u8]) -> Result<ParsedFrame, FrameHeaderError> {
    let mut ethertype = u16_at(frame, 12)?;
    let mut l3 = ETHERNET_BYTES;
    if ethertype == ETHERTYPE_VLAN {
        ethertype = u16_at(frame, 16)?;
        l3 += 4;
    }
    match ethertype {
        ETHERTYPE_IPV4 => parse_ipv4(frame, l3).map(ParsedFrame::Ip),
        ETHERTYPE_IPV6 => parse_ipv6(frame, l3).map(ParsedFrame::Ip),
        ETHERTYPE_ARP => Ok(ParsedFrame::Arp { at: l3 }),
        _ => Err(FrameHeaderError::UnknownEtherType),
    }
}

fn parse_ipv4(frame: &[u8], l3: usize) -> Result<IpPacket, FrameHeaderError> {
    let header = frame.get(l3..l3 + IPV4_BYTES).ok_or(FrameHeaderError::Truncated)?;
    if header[0] >> 4 != 4 {
        return Err(FrameHeaderError::BadVersion);
    }
    let header_bytes = usize::from(header[0] & 0x0f) * 4;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if header_bytes < IPV4_BYTES || total < header_bytes || l3 + total > frame.len() {
        return Err(FrameHeaderError::BadLength);
    }
    if ChecksumSum::of_words(&frame[l3..l3 + header_bytes]).finish() != 0 {
        return Err(FrameHeaderError::BadHeaderChecksum);
    }
    // MF flag or fragment offset (RFC 791 section 3.1).
    if u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0 {
        return Err(FrameHeaderError::Fragment);
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

fn parse_ipv6(frame: &[u8], l3: usize) -> Result<IpPacket, FrameHeaderError> {
    let header = frame.get(l3..l3 + IPV6_BYTES).ok_or(FrameHeaderError::Truncated)?;
    if header[0] >> 4 != 6 {
        return Err(FrameHeaderError::BadVersion);
    }
    let end = l3 + IPV6_BYTES + usize::from(u16::from_be_bytes([header[4], header[5]]));
    if end > frame.len() {
        return Err(FrameHeaderError::BadLength);
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

/// Skips hop-by-hop options, routing headers and destination options (RFC 8200 section 4).
fn skip_extension_headers(
    packet: &[u8],
    mut next: u8,
    mut at: usize,
) -> Result<(u8, usize), FrameHeaderError> {
    for _ in 0..=EXTENSION_HEADERS_MAX {
        match next {
            0 | 43 | 60 => {
                let header = packet.get(at..at + 8).ok_or(FrameHeaderError::Truncated)?;
                next = header[0];
                at += (usize::from(header[1]) + 1) * 8;
                if at > packet.len() {
                    return Err(FrameHeaderError::BadLength);
                }
            }
            44 => return Err(FrameHeaderError::Fragment),
            _ => return Ok((next, at)),
        }
    }
    Err(FrameHeaderError::BadExtensionHeader)
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, FrameHeaderError> {
    match bytes.get(at..at + 2) {
        Some(&[high, low]) => Ok(u16::from_be_bytes([high, low])),
        _ => Err(FrameHeaderError::Truncated),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a frame with a well-formed IPv4 header and 20 bytes for TCP.
    fn ipv4() -> [u8; 54] {
        let mut f = [0; 54];
        f[12..14].copy_from_slice(&[0x08, 0x00]);
        f[14..34].copy_from_slice(&[
            0x45, 0x02, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        let mut sum = ChecksumSum::new();
        sum.add(&f[14..34]);
        f[24..26].copy_from_slice(&sum.finish().to_be_bytes());
        f
    }

    #[test]
    fn ipv4_offsets() {
        let Ok(ParsedFrame::Ip(ip)) = parse(&ipv4()) else { panic!("well-formed") };
        assert_eq!((ip.l3, ip.l4, ip.end, ip.protocol, ip.ecn), (14, 34, 54, 6, 2));
    }

    #[test]
    fn malformed_ipv4_is_classified() {
        let broken = |at: usize, byte: u8| {
            let mut f = ipv4();
            f[at] = byte;
            parse(&f).unwrap_err()
        };
        assert_eq!(broken(14, 0x65), FrameHeaderError::BadVersion);
        assert_eq!(broken(14, 0x44), FrameHeaderError::BadLength);
        assert_eq!(broken(17, 41), FrameHeaderError::BadLength);
        assert_eq!(broken(26, 11), FrameHeaderError::BadHeaderChecksum);
        assert_eq!(parse(&ipv4()[..30]), Err(FrameHeaderError::Truncated));
        assert_eq!(parse(&[0; 60]), Err(FrameHeaderError::UnknownEtherType));
    }

    #[test]
    fn endless_extension_headers_are_refused() {
        let mut f = [0; 14 + 40 + 80];
        f[12..14].copy_from_slice(&[0x86, 0xdd]);
        f[14] = 0x60;
        f[19] = 80; // ten hop-by-hop headers, each naming the next
        assert_eq!(parse(&f), Err(FrameHeaderError::BadExtensionHeader));
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
            if let Ok(ParsedFrame::Ip(ip)) = parse(&bytes) {
                prop_assert!(ip.l3 < ip.l4 && ip.l4 <= ip.end && ip.end <= bytes.len());
            }
        }
    }
}
