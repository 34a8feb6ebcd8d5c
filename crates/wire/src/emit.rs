//! Writing of Ethernet, IP, TCP and UDP headers, and per-packet changes to them for segmentation.

use core::net::IpAddr;

use crate::checksum::ChecksumSum;
use crate::frame::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use crate::tcp::TcpHeader;
use crate::{ETHERNET_BYTES, IPV4_BYTES, IPV6_BYTES, UDP_BYTES};

/// Ethernet addresses of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthernetAddrs {
    /// Source address.
    pub source: [u8; 6],
    /// Destination address.
    pub destination: [u8; 6],
}

/// Fields of an IP header other than lengths and checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// Source address.
    pub source: IpAddr,
    /// Destination address, of the same family as `source`.
    pub destination: IpAddr,
    /// Protocol number of the payload.
    pub protocol: u8,
    /// The ECN field.
    pub ecn: u8,
    /// Time to live (IPv4) or hop limit (IPv6).
    pub hop_limit: u8,
}

impl IpHeader {
    /// Returns the length of the header in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self.destination {
            IpAddr::V4(_) => IPV4_BYTES,
            IpAddr::V6(_) => IPV6_BYTES,
        }
    }

    /// Returns false: an IP header is never empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }
}

/// Writes Ethernet and IP headers at the start of `out`, for `payload_len` bytes after them.
/// Lengths of more than 16 bits are written as zero.
///
/// # Panics
/// If `out` is shorter than the headers.
pub fn ethernet_ip(link: &EthernetAddrs, ip: &IpHeader, payload_len: usize, out: &mut [u8]) {
    ethernet_ip_template(link, ip, out);
    set_lengths(out, ETHERNET_BYTES, ETHERNET_BYTES + ip.len() + payload_len, 0);
}

/// As [`ethernet_ip`], without lengths and checksum. [`set_lengths`] sets these in each packet that
/// is made from the template.
///
/// # Panics
/// If `out` is shorter than the headers.
pub fn ethernet_ip_template(link: &EthernetAddrs, ip: &IpHeader, out: &mut [u8]) {
    let ethertype = match ip.destination {
        IpAddr::V4(_) => ETHERTYPE_IPV4,
        IpAddr::V6(_) => ETHERTYPE_IPV6,
    };
    out[0..6].copy_from_slice(&link.destination);
    out[6..12].copy_from_slice(&link.source);
    out[12..14].copy_from_slice(&ethertype.to_be_bytes());
    let header = &mut out[ETHERNET_BYTES..ETHERNET_BYTES + ip.len()];
    match (ip.source, ip.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            header[0] = 0x45;
            header[1] = ip.ecn;
            header[2..6].fill(0);
            // DF is set for path MTU discovery (RFC 1191).
            header[6..8].copy_from_slice(&[0x40, 0]);
            header[8] = ip.hop_limit;
            header[9] = ip.protocol;
            header[12..16].copy_from_slice(&source.octets());
            header[16..20].copy_from_slice(&destination.octets());
        }
        (source, destination) => {
            header[0] = 0x60;
            header[1] = ip.ecn << 4;
            header[2..6].fill(0);
            header[6] = ip.protocol;
            header[7] = ip.hop_limit;
            header[8..24].copy_from_slice(&to_v6_octets(source));
            header[24..40].copy_from_slice(&to_v6_octets(destination));
        }
    }
}

/// Returns the octets of an address; an IPv4 address is mapped to IPv6 (RFC 4291 section 2.5.5.2).
#[must_use]
pub fn to_v6_octets(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Sets the length of the IP packet whose header begins at `l3` and which ends at `end`, and for
/// IPv4 its identification and header checksum.
///
/// # Panics
/// If the IP header is not within `frame`.
pub fn set_lengths(frame: &mut [u8], l3: usize, end: usize, identification: u16) {
    if frame[l3] >> 4 == 4 {
        let total = u16::try_from(end - l3).unwrap_or(0);
        let header = &mut frame[l3..l3 + IPV4_BYTES];
        header[2..4].copy_from_slice(&total.to_be_bytes());
        header[4..6].copy_from_slice(&identification.to_be_bytes());
        header[10..12].fill(0);
        let sum = ChecksumSum::of_words(header);
        header[10..12].copy_from_slice(&sum.finish().to_be_bytes());
    } else {
        let payload = u16::try_from(end - l3 - IPV6_BYTES).unwrap_or(0);
        frame[l3 + 4..l3 + 6].copy_from_slice(&payload.to_be_bytes());
    }
}

/// Returns the sum of the pseudo-header for `len` bytes of transport header and payload. The
/// addresses are read from the IP header at `l3`.
///
/// # Panics
/// If the IP header is not within `frame`.
#[must_use]
pub fn pseudo_header_of(frame: &[u8], l3: usize, protocol: u8, len: usize) -> ChecksumSum {
    let v4 = frame[l3] >> 4 == 4;
    let addresses = if v4 { l3 + 12..l3 + 20 } else { l3 + 8..l3 + 40 };
    let mut sum = ChecksumSum::of_words(&frame[addresses]);
    sum.add_u16(u16::from(protocol));
    // The length of a run of segments may need more than 16 bits.
    #[expect(clippy::cast_possible_truncation, reason = "split into its 16-bit halves")]
    {
        sum.add_u16((len >> 16) as u16);
        sum.add_u16(len as u16);
    }
    sum
}

/// Writes the headers of a TCP segment, with a checksum of zero, into `out`, which must be exactly
/// as long as the Ethernet header, `ip` and `segment`'s header together. Returns the offset of
/// TSval if there are timestamps.
///
/// # Panics
/// If `out` has another length.
pub fn tcp_headers(
    link: &EthernetAddrs,
    ip: &IpHeader,
    segment: &TcpHeader,
    payload_len: usize,
    out: &mut [u8],
) -> Option<usize> {
    let tsval_at = tcp_template(link, ip, segment, out);
    let l4 = ETHERNET_BYTES + ip.len();
    set_lengths(out, ETHERNET_BYTES, l4 + segment.header_len() + payload_len, 0);
    tsval_at
}

/// As [`tcp_headers`], without lengths and IP checksum, which a device fills in.
///
/// # Panics
/// As [`tcp_headers`].
pub fn tcp_template(
    link: &EthernetAddrs,
    ip: &IpHeader,
    segment: &TcpHeader,
    out: &mut [u8],
) -> Option<usize> {
    let l4 = ETHERNET_BYTES + ip.len();
    ethernet_ip_template(link, ip, out);
    segment.emit(&mut out[l4..]).map(|at| at + l4)
}

/// Writes the headers of a UDP datagram with `payload_len` bytes of payload into `out`, which must
/// be exactly as long as the headers. A device fills in the IP header's length and checksum, and
/// UDP's checksum.
///
/// # Panics
/// If `out` has another length.
pub fn udp_template(
    link: &EthernetAddrs,
    ip: &IpHeader,
    ports: [u16; 2],
    payload_len: usize,
    out: &mut [u8],
) {
    let l4 = ETHERNET_BYTES + ip.len();
    ethernet_ip_template(link, ip, out);
    let len = u16::try_from(UDP_BYTES + payload_len).unwrap_or(0);
    let udp = &mut out[l4..];
    udp[0..2].copy_from_slice(&ports[0].to_be_bytes());
    udp[2..4].copy_from_slice(&ports[1].to_be_bytes());
    udp[4..6].copy_from_slice(&len.to_be_bytes());
    udp[6..8].fill(0);
}
