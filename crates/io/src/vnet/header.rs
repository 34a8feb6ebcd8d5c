//! The virtio-net header before each frame, which describes its offloads.
//!
//! Virtual I/O Device 1.2 section 5.1.6, `struct virtio_net_hdr`: the ten-byte form without
//! `num_buffers`, in native byte order, which is the default of `IFF_VNET_HDR` (Linux,
//! `tun_put_user`) and of `PACKET_VNET_HDR`.

use abi::Checksum;
use abi::link::TxFrame;

/// Size of the header.
pub(crate) const VNET_BYTES: usize = 10;

/// `flags`: the checksum from `csum_start` on is partial.
const F_NEEDS_CSUM: u8 = 1;
/// `flags`, on receive: the checksum was verified.
const F_DATA_VALID: u8 = 2;
/// `gso_type`: a single packet.
const GSO_NONE: u8 = 0;
/// `gso_type`: a run of TCP segments over IPv4.
const GSO_TCPV4: u8 = 1;
/// `gso_type`: a run of TCP segments over IPv6.
const GSO_TCPV6: u8 = 4;
/// `gso_type`: a run of UDP datagrams, over IPv4 or IPv6 (Virtual I/O Device 1.3: `GSO_UDP_L4`).
const GSO_UDP: u8 = 5;
/// Flag in `gso_type`: the first segment has CWR set, and the later ones must not (RFC 3168 section
/// 6.1.2).
const GSO_ECN: u8 = 0x80;

const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const PROTOCOL_ICMPV6: u8 = 58;
/// CWR in the flags byte of a TCP header, which is at offset 13.
const TCP_CWR: u8 = 0x80;

/// The request to complete a transport checksum, as virtio-net and AF_XDP state it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChecksumRequest {
    /// First byte of the frame that the checksum covers.
    pub(crate) start: u16,
    /// Offset of the checksum from there.
    pub(crate) offset: u16,
}

impl ChecksumRequest {
    /// Returns the request for a frame with [`TxFrame::checksum_partial`]; `None` for a protocol
    /// without partial checksums.
    pub(crate) fn of(frame: &TxFrame) -> Option<Self> {
        let (_, protocol) = ip_version_and_protocol(frame.headers(), frame.header.l3())?;
        Self::new(protocol, frame.header.l4())
    }

    /// Returns the request for a packet of this protocol whose transport header is at `l4`.
    fn new(protocol: u8, l4: usize) -> Option<Self> {
        let offset = match protocol {
            PROTOCOL_TCP => 16,
            PROTOCOL_UDP => 6,
            PROTOCOL_ICMPV6 => 2,
            // ICMP over IPv4 has no pseudo-header and so no partial checksum.
            _ => return None,
        };
        Some(Self { start: u16::try_from(l4).ok()?, offset })
    }
}

/// Returns the header for a frame, or `None` if the format cannot describe the frame.
pub(super) fn encode(frame: &TxFrame) -> Option<[u8; VNET_BYTES]> {
    let mut out = [0; VNET_BYTES];
    if !frame.checksum_partial && frame.segment_size == 0 {
        return Some(out);
    }
    let header = frame.headers();
    let (ipv6, protocol) = ip_version_and_protocol(header, frame.header.l3())?;
    let l4 = frame.header.l4();
    if frame.checksum_partial {
        let request = ChecksumRequest::new(protocol, l4)?;
        out[0] = F_NEEDS_CSUM;
        out[6..8].copy_from_slice(&request.start.to_ne_bytes());
        out[8..10].copy_from_slice(&request.offset.to_ne_bytes());
    }
    // A run that fits one packet is sent as a packet: the kernel refuses to segment it.
    if frame.segment_size > 0 && frame.payload_len() > usize::from(frame.segment_size) {
        out[1] = match protocol {
            PROTOCOL_TCP => {
                let ecn = if header.get(l4 + 13)? & TCP_CWR == 0 { 0 } else { GSO_ECN };
                ecn | if ipv6 { GSO_TCPV6 } else { GSO_TCPV4 }
            }
            PROTOCOL_UDP => GSO_UDP,
            _ => return None,
        };
        out[2..4].copy_from_slice(&u16::try_from(frame.header.len()).ok()?.to_ne_bytes());
        out[4..6].copy_from_slice(&frame.segment_size.to_ne_bytes());
    }
    Some(out)
}

/// Returns whether the header describes a run of segments.
pub(super) const fn is_run(vnet: [u8; VNET_BYTES]) -> bool {
    vnet[1] != GSO_NONE
}

/// Returns whether the header describes a run of UDP datagrams.
pub(super) const fn is_datagram_run(vnet: [u8; VNET_BYTES]) -> bool {
    vnet[1] & !GSO_ECN == GSO_UDP
}

/// Returns whether the packet is IPv6, and its transport protocol. Our stack sends no extension
/// headers.
fn ip_version_and_protocol(header: &[u8], l3: usize) -> Option<(bool, u8)> {
    match header.get(l3)? >> 4 {
        4 => Some((false, *header.get(l3 + 9)?)),
        6 => Some((true, *header.get(l3 + 6)?)),
        _ => None,
    }
}

/// Returns the checksum state of a received frame, and its segment size (0 for a single packet).
pub(super) fn decode(vnet: [u8; VNET_BYTES]) -> (Checksum, u16) {
    let [flags, gso_type, _, _, size0, size1, ..] = vnet;
    let checksum = if flags & F_NEEDS_CSUM != 0 {
        Checksum::Partial
    } else if flags & F_DATA_VALID != 0 {
        Checksum::Good
    } else {
        Checksum::Unchecked
    };
    match gso_type & !GSO_ECN {
        GSO_NONE => (checksum, 0),
        _ => (checksum, u16::from_ne_bytes([size0, size1])),
    }
}

#[cfg(test)]
mod tests {
    use abi::PacketHeader;
    use abi::link::FramePayload;
    use bytes::Bytes;

    use super::*;

    fn frame(version: u8, protocol: u8, payload: usize) -> TxFrame {
        let l4 = if version == 4 { 34 } else { 54 };
        let mut header = vec![0; l4 + 20];
        header[14] = version << 4;
        header[if version == 4 { 23 } else { 20 }] = protocol;
        TxFrame {
            header: PacketHeader::from_bytes(&header, 14, l4).unwrap(),
            payload: [FramePayload::Host(Bytes::from(vec![0; payload]))].into_iter().collect(),
            segment_size: 0,
            checksum_partial: true,
        }
    }

    fn fields(vnet: [u8; VNET_BYTES]) -> (u8, u8, [u16; 4]) {
        let word = |at| u16::from_ne_bytes([vnet[at], vnet[at + 1]]);
        (vnet[0], vnet[1], [word(2), word(4), word(6), word(8)])
    }

    #[test]
    fn encodes_each_protocol() {
        let plain = TxFrame { checksum_partial: false, ..frame(4, 1, 9) };
        assert_eq!(encode(&plain), Some([0; VNET_BYTES]));
        assert_eq!(fields(encode(&frame(4, 6, 9)).unwrap()), (1, 0, [0, 0, 34, 16]));
        assert_eq!(fields(encode(&frame(6, 17, 9)).unwrap()), (1, 0, [0, 0, 54, 6]));
        assert_eq!(fields(encode(&frame(6, 58, 9)).unwrap()), (1, 0, [0, 0, 54, 2]));
        assert_eq!(encode(&frame(4, 1, 9)), None);
        assert_eq!(encode(&frame(5, 6, 9)), None);
    }

    #[test]
    fn encodes_runs() {
        let mut run = TxFrame { segment_size: 100, ..frame(4, 6, 250) };
        assert_eq!(fields(encode(&run).unwrap()), (1, 1, [54, 100, 34, 16]));
        run.header.as_mut_slice()[34 + 13] = 0x80;
        assert_eq!(fields(encode(&run).unwrap()).1, 0x81);
        let run = TxFrame { segment_size: 100, ..frame(6, 6, 250) };
        assert_eq!(fields(encode(&run).unwrap()), (1, 4, [74, 100, 54, 16]));
        let short = TxFrame { segment_size: 100, ..frame(4, 6, 100) };
        assert_eq!(fields(encode(&short).unwrap()), (1, 0, [0, 0, 34, 16]));
        let udp = TxFrame { segment_size: 100, ..frame(4, 17, 250) };
        assert_eq!(fields(encode(&udp).unwrap()), (1, 5, [54, 100, 34, 6]));
        let icmp = TxFrame { segment_size: 100, ..frame(6, 58, 250) };
        assert_eq!(encode(&icmp), None);
    }

    #[test]
    fn decodes() {
        let [a, b] = 1448_u16.to_ne_bytes();
        assert_eq!(decode([0; 10]), (Checksum::Unchecked, 0));
        assert_eq!(decode([1, 0, 0, 0, a, b, 0, 0, 0, 0]), (Checksum::Partial, 0));
        assert_eq!(decode([2, 0x81, 0, 0, a, b, 0, 0, 0, 0]), (Checksum::Good, 1448));
    }
}
