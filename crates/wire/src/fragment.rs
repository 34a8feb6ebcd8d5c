//! Fragments of IP packets: their fields (RFC 791 section 3.2, RFC 8200 section 4.5).
//!
//! Called by the host for frames that [`crate::frame::parse`] reports as fragments.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ops::Range;

use crate::checksum::ChecksumSum;
use crate::frame::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, EXTENSION_HEADERS_MAX, FrameHeaderError,
};
use crate::{ETHERNET_BYTES, IPV4_BYTES, IPV6_BYTES};

/// Next-header value of a fragment header.
pub const FRAGMENT_HEADER: u8 = 44;
/// Length of an IPv6 fragment header.
pub const FRAGMENT_HEADER_BYTES: usize = 8;

/// A fragment in a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Identification of the packet, among those with these addresses and, in IPv4, this protocol.
    pub identification: u32,
    /// Protocol number of the packet's payload (IPv4), or the header after the fragment header.
    pub protocol: u8,
    /// Position of the payload in that of the whole packet, in bytes: a multiple of 8.
    pub offset: usize,
    /// More fragments follow.
    pub more: bool,
    /// ECN field.
    pub ecn: u8,
    /// Offset of the IP header.
    pub l3: usize,
    /// Offset of the byte in the headers that names the header after them (IPv6); for IPv4 that of
    /// the protocol number.
    pub next_header_at: usize,
    /// Headers of the frame that the whole packet has too, from the Ethernet header on.
    pub headers: Range<usize>,
    /// The fragment's part of the payload.
    pub payload: Range<usize>,
}

/// Parses the fragment in a frame.
///
/// # Errors
/// [`FrameHeaderError`] if the headers are malformed, or the packet is no fragment.
pub fn parse(frame: &[u8]) -> Result<Fragment, FrameHeaderError> {
    let word = |at: usize| match frame.get(at..at + 2) {
        Some(&[high, low]) => Ok(u16::from_be_bytes([high, low])),
        _ => Err(FrameHeaderError::Truncated),
    };
    let (mut ethertype, mut l3) = (word(12)?, ETHERNET_BYTES);
    if ethertype == ETHERTYPE_VLAN {
        (ethertype, l3) = (word(16)?, l3 + 4);
    }
    match ethertype {
        ETHERTYPE_IPV4 => parse_ipv4(frame, l3),
        ETHERTYPE_IPV6 => parse_ipv6(frame, l3),
        _ => Err(FrameHeaderError::UnknownEtherType),
    }
}

fn parse_ipv4(frame: &[u8], l3: usize) -> Result<Fragment, FrameHeaderError> {
    let header = frame.get(l3..l3 + IPV4_BYTES).ok_or(FrameHeaderError::Truncated)?;
    let header_bytes = usize::from(header[0] & 0x0f) * 4;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if header_bytes < IPV4_BYTES || total < header_bytes || l3 + total > frame.len() {
        return Err(FrameHeaderError::BadLength);
    }
    if ChecksumSum::of_words(&frame[l3..l3 + header_bytes]).finish() != 0 {
        return Err(FrameHeaderError::BadHeaderChecksum);
    }
    let flags = u16::from_be_bytes([header[6], header[7]]);
    let addr =
        |at: usize| Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]);
    checked(Fragment {
        source: addr(12).into(),
        destination: addr(16).into(),
        identification: u16::from_be_bytes([header[4], header[5]]).into(),
        protocol: header[9],
        offset: usize::from(flags & 0x1fff) * 8,
        more: flags & 0x2000 != 0,
        ecn: header[1] & 3,
        l3,
        next_header_at: l3 + 9,
        headers: 0..l3 + header_bytes,
        payload: l3 + header_bytes..l3 + total,
    })
}

fn parse_ipv6(frame: &[u8], l3: usize) -> Result<Fragment, FrameHeaderError> {
    let header = frame.get(l3..l3 + IPV6_BYTES).ok_or(FrameHeaderError::Truncated)?;
    let end = l3 + IPV6_BYTES + usize::from(u16::from_be_bytes([header[4], header[5]]));
    let packet = frame.get(..end).ok_or(FrameHeaderError::BadLength)?;
    let (mut next_header_at, mut at) = (l3 + 6, l3 + IPV6_BYTES);
    for _ in 0..=EXTENSION_HEADERS_MAX {
        let fields = packet.get(at..at + 8).ok_or(FrameHeaderError::Truncated)?;
        match packet.get(next_header_at) {
            Some(&FRAGMENT_HEADER) => break,
            Some(0 | 43 | 60) => {
                next_header_at = at;
                at += (usize::from(fields[1]) + 1) * 8;
            }
            _ => return Err(FrameHeaderError::BadExtensionHeader),
        }
    }
    if packet.get(next_header_at) != Some(&FRAGMENT_HEADER) {
        return Err(FrameHeaderError::BadExtensionHeader);
    }
    let fields = packet.get(at..at + 8).ok_or(FrameHeaderError::Truncated)?;
    let addr = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&header[at..at + 16]);
        Ipv6Addr::from(octets)
    };
    let position = u16::from_be_bytes([fields[2], fields[3]]);
    checked(Fragment {
        source: addr(8).into(),
        destination: addr(24).into(),
        identification: u32::from_be_bytes([fields[4], fields[5], fields[6], fields[7]]),
        protocol: fields[0],
        offset: usize::from(position & !7),
        more: position & 1 != 0,
        ecn: header[1] >> 4 & 3,
        l3,
        next_header_at,
        headers: 0..at,
        payload: at + FRAGMENT_HEADER_BYTES..end,
    })
}

/// Returns the fragment if its lengths are possible: only the last fragment may have a length that
/// is no multiple of 8, and the whole packet must fit its 16-bit length.
fn checked(fragment: Fragment) -> Result<Fragment, FrameHeaderError> {
    let len = fragment.payload.len();
    let header_bytes = match fragment.source {
        IpAddr::V4(_) => fragment.headers.end - fragment.l3,
        IpAddr::V6(_) => fragment.headers.end - fragment.l3 - IPV6_BYTES,
    };
    let fits = header_bytes + fragment.offset + len <= usize::from(u16::MAX);
    if !fits || len == 0 || (fragment.more && len % 8 != 0) {
        return Err(FrameHeaderError::BadLength);
    }
    Ok(fragment)
}
