//! Steering of received frames: which functions a frame is for.
//!
//! Frames of flows go to the function that has claimed their destination. Requests about an address
//! (ARP, neighbor solicitations, echo requests) go to the one function that answers for it. Frames
//! for all stations, and answers that every host needs, go to all functions, as a queue-less NIC
//! would copy them to all of its queues.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::frame::{
    FrameHeaderError, IpPacket, NEIGHBOR_SOLICITATION, ParsedFrame, parse, parse_quoted, protocol,
};

use super::claims::ClaimTable;
use super::flow_key::FlowKey;
use super::function_set::FunctionSet;

/// ICMP types of requests, which one host answers (RFC 792, RFC 4443).
const ECHO_REQUEST: u8 = 8;
const ECHO_REQUEST_V6: u8 = 128;
/// Bytes of an ICMP header before the packet that an error message quotes.
const ICMP_BYTES: usize = 8;

/// Functions that a received frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RxRoute {
    /// The function that owns the flow; `local` is the destination. With the offset of the
    /// transport header; `None` if the frame is an ICMP error, which quotes a packet of the flow.
    Flow(FlowKey, Option<usize>),
    /// The function that answers for an address.
    Answerer(IpAddr),
    /// Each function of the set has a copy.
    Copies(FunctionSet),
    /// All functions have a copy.
    All,
    /// The frame is malformed.
    Malformed,
}

/// Returns the functions that a frame is for.
pub(super) fn route(frame: &[u8], claims: &ClaimTable) -> RxRoute {
    match parse(frame) {
        Ok(ParsedFrame::Arp { at }) => route_arp(frame, at),
        Ok(ParsedFrame::Ip(ip)) if is_for_several(ip.destination) => route_to_several(frame, &ip),
        Ok(ParsedFrame::Ip(ip)) => route_ip(frame, &ip, claims),
        // One host reassembles the fragments of a packet.
        Err(FrameHeaderError::Fragment) => wire::fragment::parse(frame)
            .map_or(RxRoute::Malformed, |fragment| RxRoute::Answerer(fragment.destination)),
        Err(_) => RxRoute::Malformed,
    }
}

/// Routes a request to the host that has the address, and a reply to all, which have a table of
/// neighbors each. An announcement (RFC 5227 section 3) has the form of a request about the sender.
fn route_arp(frame: &[u8], at: usize) -> RxRoute {
    let addr = |offset: usize| {
        let octets = frame.get(at + offset..)?.first_chunk::<4>()?;
        Some(Ipv4Addr::from(*octets))
    };
    let is_request = frame.get(at + 6..at + 8) == Some(&[0, 1]);
    match (addr(14), addr(24)) {
        (Some(sender), Some(target)) if is_request && sender != target => {
            RxRoute::Answerer(target.into())
        }
        (Some(_), Some(_)) => RxRoute::All,
        _ => RxRoute::Malformed,
    }
}

fn is_for_several(addr: IpAddr) -> bool {
    addr.is_multicast() || matches!(addr, IpAddr::V4(v4) if v4.is_broadcast())
}

fn route_to_several(frame: &[u8], ip: &IpPacket) -> RxRoute {
    let is_solicitation =
        ip.protocol == protocol::ICMPV6 && frame.get(ip.l4) == Some(&NEIGHBOR_SOLICITATION);
    if is_solicitation { route_solicitation(frame, ip) } else { RxRoute::All }
}

/// Routes a neighbor solicitation to the host that has the target.
fn route_solicitation(frame: &[u8], ip: &IpPacket) -> RxRoute {
    let target = frame.get(ip.l4 + ICMP_BYTES..ip.end).and_then(|rest| rest.first_chunk::<16>());
    target.map_or(RxRoute::Malformed, |octets| RxRoute::Answerer(Ipv6Addr::from(*octets).into()))
}

fn route_ip(frame: &[u8], ip: &IpPacket, claims: &ClaimTable) -> RxRoute {
    let of_addr = || RxRoute::Copies(claims.functions_of(ip.destination));
    match (ip.protocol, frame.get(ip.l4).filter(|_| ip.l4 < ip.end)) {
        (protocol::TCP | protocol::UDP, _) => ip.tuple(frame).map_or(RxRoute::Malformed, |tuple| {
            let is_udp = ip.protocol == protocol::UDP;
            RxRoute::Flow(FlowKey { tuple, is_udp }, Some(ip.l4))
        }),
        (protocol::ICMP, Some(&ECHO_REQUEST)) | (protocol::ICMPV6, Some(&ECHO_REQUEST_V6)) => {
            RxRoute::Answerer(ip.destination)
        }
        (protocol::ICMPV6, Some(&NEIGHBOR_SOLICITATION)) => route_solicitation(frame, ip),
        // Errors quote the packet that they are about.
        (protocol::ICMP, Some(3 | 4 | 11 | 12)) | (protocol::ICMPV6, Some(1..=4)) => {
            quoted_flow(frame, ip).map_or_else(of_addr, |key| RxRoute::Flow(key, None))
        }
        // Other messages of neighbors and routers: each host has its own state.
        (protocol::ICMPV6, Some(_)) => RxRoute::All,
        (protocol::ICMP | protocol::ICMPV6, None) => RxRoute::Malformed,
        _ => of_addr(),
    }
}

/// Returns the flow of the packet that an ICMP error quotes: its source is the stack's side.
fn quoted_flow(frame: &[u8], ip: &IpPacket) -> Option<FlowKey> {
    let quoted = parse_quoted(frame.get(ip.l4 + ICMP_BYTES..ip.end)?)?;
    Some(FlowKey { tuple: quoted.tuple, is_udp: quoted.protocol == protocol::UDP })
}
