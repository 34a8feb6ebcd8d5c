//! Writing Ethernet, IP and TCP headers, and mending them per packet as segmentation does.

use core::net::IpAddr;

use crate::checksum::Sum;
use crate::frame::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use crate::tcp::Segment;
use crate::{ETHERNET_BYTES, IPV4_BYTES, IPV6_BYTES, UDP_BYTES};

/// Ethernet addresses of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Sender.
    pub source: [u8; 6],
    /// Receiver.
    pub destination: [u8; 6],
}

/// What an IP header says beyond lengths and checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// Sender.
    pub source: IpAddr,
    /// Receiver; of the same family as `source`.
    pub destination: IpAddr,
    /// What follows.
    pub protocol: u8,
    /// The ECN field.
    pub ecn: u8,
    /// Time to live, or hop limit.
    pub hop_limit: u8,
}

impl IpHeader {
    /// Bytes of the header.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self.destination {
            IpAddr::V4(_) => IPV4_BYTES,
            IpAddr::V6(_) => IPV6_BYTES,
        }
    }

    /// Never: every IP header has bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }
}

/// Writes Ethernet and IP headers at the start of `out`, for `payload_len` bytes behind them.
/// Lengths that do not fit 16 bits are written as zero.
///
/// # Panics
/// Where `out` is shorter than the headers.
pub fn ethernet_ip(link: &Link, ip: &IpHeader, payload_len: usize, out: &mut [u8]) {
    ethernet_ip_template(link, ip, out);
    set_lengths(out, ETHERNET_BYTES, ETHERNET_BYTES + ip.len() + payload_len, 0);
}

/// As [`ethernet_ip`], without lengths and without a checksum: [`set_lengths`] sets these in each
/// packet that is made with the template.
///
/// # Panics
/// Where `out` is shorter than the headers.
pub fn ethernet_ip_template(link: &Link, ip: &IpHeader, out: &mut [u8]) {
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
            // Don't fragment: path MTU discovery, RFC 1191.
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

/// The octets of an address; an IPv4 address as it is mapped to IPv6 (RFC 4291 section 2.5.5.2).
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
/// Where the IP header is not within `frame`.
pub fn set_lengths(frame: &mut [u8], l3: usize, end: usize, identification: u16) {
    if frame[l3] >> 4 == 4 {
        let total = u16::try_from(end - l3).unwrap_or(0);
        let header = &mut frame[l3..l3 + IPV4_BYTES];
        header[2..4].copy_from_slice(&total.to_be_bytes());
        header[4..6].copy_from_slice(&identification.to_be_bytes());
        header[10..12].fill(0);
        let sum = Sum::of_words(header);
        header[10..12].copy_from_slice(&sum.finish().to_be_bytes());
    } else {
        let payload = u16::try_from(end - l3 - IPV6_BYTES).unwrap_or(0);
        frame[l3 + 4..l3 + 6].copy_from_slice(&payload.to_be_bytes());
    }
}

/// The pseudo-header's sum for `len` bytes from the transport header on, read from the IP header at
/// `l3`.
///
/// # Panics
/// Where the IP header is not within `frame`.
#[must_use]
pub fn pseudo_header_of(frame: &[u8], l3: usize, protocol: u8, len: usize) -> Sum {
    let v4 = frame[l3] >> 4 == 4;
    let addresses = if v4 { l3 + 12..l3 + 20 } else { l3 + 8..l3 + 40 };
    let mut sum = Sum::of_words(&frame[addresses]);
    sum.add_u16(u16::from(protocol));
    // The length of a run of segments may have more than 16 bits.
    #[expect(clippy::cast_possible_truncation, reason = "split into its 16-bit halves")]
    {
        sum.add_u16((len >> 16) as u16);
        sum.add_u16(len as u16);
    }
    sum
}

/// Writes the headers of a TCP segment into `out`, checksum zero, and gives the offset of TSval
/// where there is one. `out` is exactly as long as the Ethernet header, `ip` and `segment`'s header
/// are together.
///
/// # Panics
/// Where `out` has another length.
pub fn tcp_headers(
    link: &Link,
    ip: &IpHeader,
    segment: &Segment,
    payload_len: usize,
    out: &mut [u8],
) -> Option<usize> {
    let tsval_at = tcp_template(link, ip, segment, out);
    let l4 = ETHERNET_BYTES + ip.len();
    set_lengths(out, ETHERNET_BYTES, l4 + segment.header_len() + payload_len, 0);
    tsval_at
}

/// As [`tcp_headers`], without lengths and without the IP header's checksum: what a device
/// completes.
///
/// # Panics
/// As [`tcp_headers`].
pub fn tcp_template(
    link: &Link,
    ip: &IpHeader,
    segment: &Segment,
    out: &mut [u8],
) -> Option<usize> {
    let l4 = ETHERNET_BYTES + ip.len();
    ethernet_ip_template(link, ip, out);
    segment.emit(&mut out[l4..]).map(|at| at + l4)
}

/// Writes the headers of a UDP datagram into `out`: ports, and the length for `payload_len` bytes.
/// The IP header's length and checksum, and UDP's checksum, are left to a device. `out` is exactly
/// as long as the headers.
///
/// # Panics
/// Where `out` has another length.
pub fn udp_template(
    link: &Link,
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
