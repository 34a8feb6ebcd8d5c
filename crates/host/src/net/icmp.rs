//! ICMP and ICMPv6: echo replies, errors about our connections, and the errors that we send.
//!
//! An error is acted on only if the packet that it quotes has bytes in flight on a connection of
//! ours (RFC 5927); the caller checks that. Errors that we send are limited in rate (RFC 1812
//! section 4.3.2.8, RFC 4443 section 2.4 f).

use alloc::vec;
use core::net::IpAddr;

use base::{Instant, SeqNum};
use bytes::Bytes;
use wire::Tuple;
use wire::checksum::{ChecksumSum, pseudo_header};
use wire::emit::IpHeader;
use wire::frame::{IpPacket, QuotedPacket, parse_quoted, protocol};
use wire::std_formats::{Icmpv6Packet, Icmpv6Repr};

use super::arp;
use super::outbox::{HOP_LIMIT, Outbox};
use crate::rate_limit::RateLimiter;

/// Maximum number of errors that we send per second.
const ERRORS_PER_SECOND: u32 = 100;
/// Bytes of a packet after its IP header that an error quotes: RFC 1812 would allow more.
const QUOTED_BYTES: usize = 8;

/// An ICMP error about a TCP segment of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IcmpTcpError {
    /// The tuple of the connection, seen from this host.
    pub(crate) tuple: Tuple,
    /// Sequence number of the segment that caused the error.
    pub(crate) seq: SeqNum,
    pub(crate) kind: IcmpErrorKind,
}

/// Kinds of errors that matter to TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IcmpErrorKind {
    /// The packet was too big for the next hop; its MTU in bytes, or 0 if the error does not tell
    /// it.
    TooBig(u32),
    /// The port or protocol is unreachable or prohibited.
    Refused,
    /// The host or network is unreachable at the moment.
    Unreachable,
}

/// Handles an ICMP or ICMPv6 packet. Returns an error about a TCP segment if the packet is one.
pub(crate) fn handle_icmp(
    out: &mut Outbox,
    now: Instant,
    ip: &IpPacket,
    frame: &[u8],
) -> Option<IcmpTcpError> {
    let body = &frame[ip.l4..ip.end];
    if !checksum_holds(ip, body) {
        out.counters.received_bad_checksum += 1;
        return None;
    }
    let (Some(&kind), Some(&code)) = (body.first(), body.get(1)) else {
        out.counters.received_malformed += 1;
        return None;
    };
    match (ip.protocol, kind) {
        // Echo request: RFC 792, RFC 4443 section 4.1.
        (protocol::ICMP, 8) | (protocol::ICMPV6, 128) => {
            reply_echo(out, now, ip, body);
            None
        }
        (protocol::ICMP, 3) => {
            let mtu = u32::from(u16::from_be_bytes([*body.get(6)?, *body.get(7)?]));
            let kind = match code {
                4 => IcmpErrorKind::TooBig(mtu),
                2 | 3 | 10 | 13 => IcmpErrorKind::Refused,
                _ => IcmpErrorKind::Unreachable,
            };
            parse_quoted_segment(body.get(8..)?, kind)
        }
        (protocol::ICMPV6, 2) => {
            let mtu = u32::from_be_bytes(body.get(4..8)?.try_into().ok()?);
            parse_quoted_segment(body.get(8..)?, IcmpErrorKind::TooBig(mtu))
        }
        (protocol::ICMPV6, 1) => {
            let kind = if matches!(code, 1 | 4) {
                IcmpErrorKind::Refused
            } else {
                IcmpErrorKind::Unreachable
            };
            parse_quoted_segment(body.get(8..)?, kind)
        }
        (protocol::ICMPV6, 135 | 136) => {
            handle_neighbor(out, now, ip, frame);
            None
        }
        _ => None,
    }
}

fn handle_neighbor(out: &mut Outbox, now: Instant, ip: &IpPacket, frame: &[u8]) {
    let (IpAddr::V6(source), IpAddr::V6(destination)) = (ip.source, ip.destination) else { return };
    let body = &frame[ip.l4..ip.end];
    let parsed = Icmpv6Packet::new_checked(body).and_then(|packet| {
        let caps = wire::std_formats_caps();
        Icmpv6Repr::parse(&source, &destination, &packet, &caps)
    });
    let Ok(Icmpv6Repr::Ndisc(repr)) = parsed else {
        out.counters.received_malformed += 1;
        return;
    };
    let mut link_source = [0; 6];
    link_source.copy_from_slice(&frame[6..12]);
    arp::handle_ndisc(out, now, ip, link_source, repr);
}

fn checksum_holds(ip: &IpPacket, body: &[u8]) -> bool {
    let mut sum = if ip.protocol == protocol::ICMPV6 {
        pseudo_header(ip.source, ip.destination, protocol::ICMPV6, body.len())
    } else {
        ChecksumSum::new()
    };
    sum.add(body);
    sum.finish() == 0
}

fn reply_echo(out: &mut Outbox, now: Instant, ip: &IpPacket, body: &[u8]) {
    let for_us = out.net.answers_requests && out.net.is_ours(ip.destination);
    if body.len() < 8 || !for_us {
        return;
    }
    let mut reply = body.to_vec();
    reply[0] = if ip.protocol == protocol::ICMP { 0 } else { 129 };
    let header = IpHeader {
        source: ip.destination,
        destination: ip.source,
        protocol: ip.protocol,
        ecn: 0,
        hop_limit: HOP_LIMIT,
    };
    write_checksum(&header, &mut reply);
    out.send_ip_fragmented(now, &header, Bytes::from(reply));
    out.counters.icmp_echo_replies += 1;
}

/// Computes and writes the checksum.
fn write_checksum(ip: &IpHeader, body: &mut [u8]) {
    body[2..4].fill(0);
    let mut sum = if ip.protocol == protocol::ICMPV6 {
        pseudo_header(ip.source, ip.destination, protocol::ICMPV6, body.len())
    } else {
        ChecksumSum::new()
    };
    sum.add(body);
    body[2..4].copy_from_slice(&sum.finish().to_be_bytes());
}

/// Parses the TCP segment that an error quotes: its IP header and at least 8 bytes behind it.
fn parse_quoted_segment(packet: &[u8], kind: IcmpErrorKind) -> Option<IcmpTcpError> {
    let QuotedPacket { tuple, protocol, transport } = parse_quoted(packet)?;
    let tcp = transport.get(..QUOTED_BYTES).filter(|_| protocol == protocol::TCP)?;
    let seq = SeqNum(u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]));
    Some(IcmpTcpError { tuple, seq, kind })
}

/// Returns the rate limiter for [`send_port_unreachable`].
pub(crate) const fn error_limit() -> RateLimiter {
    RateLimiter::new(ERRORS_PER_SECOND)
}

/// Reports to the sender of a UDP datagram that its port is not bound: RFC 1122 section 4.1.3.1.
pub(crate) fn send_port_unreachable(
    out: &mut Outbox,
    limit: &mut RateLimiter,
    now: Instant,
    ip: &IpPacket,
    frame: &[u8],
) {
    if ip.source.is_multicast() || ip.destination.is_multicast() || !limit.allows(now) {
        return;
    }
    let quote = &frame[ip.l3..ip.end.min(ip.l4 + QUOTED_BYTES)];
    let mut body = vec![0; 8 + quote.len()];
    let v4 = ip.source.is_ipv4();
    (body[0], body[1]) = if v4 { (3, 3) } else { (1, 4) };
    body[8..].copy_from_slice(quote);
    let header = IpHeader {
        source: ip.destination,
        destination: ip.source,
        protocol: if v4 { protocol::ICMP } else { protocol::ICMPV6 },
        ecn: 0,
        hop_limit: HOP_LIMIT,
    };
    write_checksum(&header, &mut body);
    out.send_ip(now, &header, Bytes::from(body));
    out.counters.icmp_errors_sent += 1;
}
