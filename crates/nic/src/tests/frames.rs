//! Frames for tests: header templates, whole packets, and verification of all checksums.

use abi::link::{RxFrame, TxFrame};
use abi::{Checksum, FlowId, PacketHeader, PacketPool, Transmit, TransmitParts};
use alloc::vec;
use alloc::vec::Vec;
use base::SeqNum;
use core::net::IpAddr;
use wire::checksum::ChecksumSum;
use wire::emit::{EthernetAddrs, IpHeader, pseudo_header_of, tcp_headers};
use wire::frame::{ParsedFrame, parse, protocol};
use wire::segment::HeaderLayout;
use wire::tcp::{TcpFlags, TcpHeader, TcpTimestamps};

/// Offset of TSval in [`tcp_header`] for IPv4.
pub(crate) const TS_AT: u8 = 14 + 20 + 20 + 4;

/// Ethernet address of the device under test.
pub(crate) const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn addresses(version: u8) -> (IpAddr, IpAddr) {
    match version {
        4 => ([10, 77, 0, 2].into(), [10, 77, 0, 1].into()),
        _ => ([0xfd77, 0, 0, 0, 0, 0, 0, 2].into(), [0xfd77, 0, 0, 0, 0, 0, 0, 1].into()),
    }
}

/// Returns the template of a TCP run with timestamps (TSval 7777) and, for IPv4, identification
/// 0x0102.
pub(crate) fn tcp_header(version: u8, seq: u32, flags: TcpFlags) -> PacketHeader {
    let (source, destination) = addresses(version);
    let ip = IpHeader { source, destination, protocol: protocol::TCP, ecn: 2, hop_limit: 64 };
    let link = EthernetAddrs { source: MAC, destination: [2, 0, 0, 0, 0, 2] };
    let mut segment = TcpHeader {
        source: 80,
        destination: 40_000,
        seq: SeqNum(seq),
        ack: SeqNum(9),
        flags,
        window: 500,
        ..TcpHeader::default()
    };
    segment.options.timestamps = Some(TcpTimestamps { value: 7777, echo: 5 });
    let l4 = 14 + ip.len();
    let mut header = PacketHeader::zeroed(l4 + segment.header_len(), 14, l4).unwrap();
    tcp_headers(&link, &ip, &segment, 0, header.as_mut_slice());
    if version == 4 {
        header.as_mut_slice()[18..20].copy_from_slice(&[1, 2]);
    }
    header
}

/// Returns the template of UDP datagrams from port 443 to port 5000, for IPv4 with identification
/// 0x0102, as the host sends it: without length and checksum.
pub(crate) fn udp_header(version: u8) -> PacketHeader {
    let tcp = tcp_header(version, 1, TcpFlags::ACK);
    let mut bytes = Vec::from(&tcp.as_slice()[..tcp.l4()]);
    bytes[if version == 4 { 23 } else { 20 }] = protocol::UDP;
    bytes.extend_from_slice(&[443_u16.to_be_bytes(), 5000_u16.to_be_bytes()].concat());
    bytes.extend_from_slice(&[0; 4]);
    PacketHeader::from_bytes(&bytes, tcp.l3(), tcp.l4()).unwrap()
}

/// Returns a transmit without payload.
pub(crate) fn transmit(flow: FlowId, seq: u32, segment_size: u16) -> Transmit {
    Transmit {
        flow,
        header: tcp_header(4, seq, TcpFlags::ACK),
        segment_size,
        parts: TransmitParts::new(),
        timestamp: None,
        echo: None,
        retransmission: false,
        quic: None,
    }
}

/// Returns a complete packet of `protocol` to [`MAC`], with checksums.
pub(crate) fn packet(version: u8, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let header = tcp_header(version, 1, TcpFlags::ACK);
    let (l3, l4) = (header.l3(), header.l4());
    let mut frame = Vec::from(&header.as_slice()[..l4]);
    frame[..6].copy_from_slice(&MAC);
    frame[if version == 4 { 23 } else { 20 }] = protocol;
    match protocol {
        protocol::TCP => frame.extend_from_slice(&header.as_slice()[l4..]),
        _ => frame.extend_from_slice(&[0, 80, 1, 1, 0, 0, 0, 0]),
    }
    frame.extend_from_slice(payload);
    HeaderLayout { l3, l4, protocol }.complete(&mut frame, 0);
    frame
}

/// Returns a frame as received from a link that does not verify checksums.
pub(crate) fn rx_frame(pool: &mut PacketPool, bytes: &[u8]) -> RxFrame {
    let packet = pool.copy(bytes).unwrap();
    RxFrame { packet, checksum: Checksum::Unchecked, segment_size: 0 }
}

/// Returns the bytes of a transmitted frame.
pub(crate) fn bytes_of(frame: &TxFrame) -> Vec<u8> {
    let mut out = vec![0; frame.len()];
    frame.copy_to(&mut out);
    out
}

/// Checks that a packet is well-formed and ends where its IP header says, and that its transport
/// checksum is correct.
pub(crate) fn verify(bytes: &[u8]) {
    let Ok(ParsedFrame::Ip(ip)) = parse(bytes) else { panic!("malformed: {:?}", parse(bytes)) };
    assert_eq!(ip.end, bytes.len());
    let mut sum = match ip.protocol {
        protocol::ICMP => ChecksumSum::new(),
        _ => pseudo_header_of(bytes, ip.l3, ip.protocol, ip.end - ip.l4),
    };
    sum.add(&bytes[ip.l4..]);
    assert_eq!(sum.finish(), 0, "transport checksum");
}
