//! ARP (RFC 826) and neighbor discovery (RFC 4861): replies and solicitations.
//!
//! Formats are `smoltcp`'s. Called by the host for ARP frames and neighbor messages; the table is
//! in [`super::neighbor`].

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use abi::{Op, PacketHeader};
use base::Instant;
use bytes::Bytes;
use smallvec::SmallVec;
use wire::ETHERNET_BYTES;
use wire::emit::{self, EthernetAddrs, IpHeader};
use wire::frame::{ETHERTYPE_ARP, IpPacket, protocol};
use wire::std_formats::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, HardwareAddress, Icmpv6Packet, Icmpv6Repr,
    NdiscNeighborFlags, NdiscRepr, RawHardwareAddress,
};

use super::outbox::Outbox;

const BROADCAST: [u8; 6] = [0xff; 6];

/// Handles an ARP packet.
pub(crate) fn handle_arp(out: &mut Outbox, now: Instant, packet: &[u8]) {
    let parsed = ArpPacket::new_checked(packet).and_then(|p| ArpRepr::parse(&p));
    let Ok(ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr,
        source_protocol_addr,
        target_protocol_addr,
        ..
    }) = parsed
    else {
        out.counters.received_malformed += 1;
        return;
    };
    if !out.net.is_ours(target_protocol_addr.into()) {
        return;
    }
    let mac = source_hardware_addr.0;
    let asked = operation == ArpOperation::Request;
    if mac[0] & 1 == 0 && !source_protocol_addr.is_unspecified() {
        learn(out, now, source_protocol_addr.into(), mac, asked);
    }
    if asked && out.net.answers_requests {
        let (to, ip) = (EthernetAddress(mac), source_protocol_addr);
        send_arp(out, ArpOperation::Reply, target_protocol_addr, to, ip);
        out.counters.neighbor_replies += 1;
    }
}

fn learn(out: &mut Outbox, now: Instant, addr: IpAddr, mac: [u8; 6], create: bool) {
    for transmit in out.net.neighbors.learn(now, addr, mac, create) {
        out.ops.push_back(Op::Transmit(transmit));
    }
}

fn send_arp(
    out: &mut Outbox,
    operation: ArpOperation,
    ours: Ipv4Addr,
    target_hardware_addr: EthernetAddress,
    target_protocol_addr: Ipv4Addr,
) {
    let to = (target_hardware_addr, target_protocol_addr);
    if let Some(header) = arp_frame(out.net.mac, operation, ours, to) {
        out.send_frame(header, Bytes::new());
    }
}

/// Returns an ARP packet's frame from `mac`. `to` are the link address and IP address of its
/// target; a request is a broadcast.
pub(crate) fn arp_frame(
    mac: [u8; 6],
    operation: ArpOperation,
    source_protocol_addr: Ipv4Addr,
    to: (EthernetAddress, Ipv4Addr),
) -> Option<PacketHeader> {
    let (target_hardware_addr, target_protocol_addr) = to;
    let request = operation == ArpOperation::Request;
    let destination = if request { BROADCAST } else { target_hardware_addr.0 };
    let repr = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: EthernetAddress(mac),
        source_protocol_addr,
        target_hardware_addr,
        target_protocol_addr,
    };
    let len = ETHERNET_BYTES + repr.buffer_len();
    let mut header = PacketHeader::zeroed(len, ETHERNET_BYTES, len).ok()?;
    let frame = header.as_mut_slice();
    frame[..6].copy_from_slice(&destination);
    frame[6..12].copy_from_slice(&mac);
    frame[12..14].copy_from_slice(&ETHERTYPE_ARP.to_be_bytes());
    repr.emit(&mut ArpPacket::new_unchecked(&mut frame[ETHERNET_BYTES..]));
    Some(header)
}

/// Tells all neighbors at which station our addresses are: by announcements (RFC 5227 section 3)
/// and unsolicited advertisements (RFC 4861 section 7.2.6). Those that do not know the addresses
/// ignore it.
pub(crate) fn announce(out: &mut Outbox) {
    for addr in out.net.addrs().collect::<SmallVec<[IpAddr; 4]>>() {
        out.counters.neighbor_announcements += 1;
        match addr {
            IpAddr::V4(v4) => {
                send_arp(out, ArpOperation::Request, v4, EthernetAddress([0; 6]), v4);
            }
            IpAddr::V6(target_addr) => {
                let repr = NdiscRepr::NeighborAdvert {
                    flags: NdiscNeighborFlags::OVERRIDE,
                    target_addr,
                    lladdr: Some(raw(out.net.mac)),
                };
                send_ndisc(out, target_addr, ALL_NODES, multicast_mac(ALL_NODES), repr);
            }
        }
    }
}

/// Solicits the link address of every neighbor that the table wants to resolve.
pub(crate) fn solicit(out: &mut Outbox) {
    while let Some(hop) = out.net.neighbors.poll_solicitation() {
        let Some(ours) = out.net.source_for(hop) else { continue };
        out.counters.neighbor_solicitations += 1;
        match (ours, hop) {
            (IpAddr::V4(ours), IpAddr::V4(hop)) => {
                send_arp(out, ArpOperation::Request, ours, EthernetAddress([0; 6]), hop);
            }
            (IpAddr::V6(ours), IpAddr::V6(hop)) => {
                let repr =
                    NdiscRepr::NeighborSolicit { target_addr: hop, lladdr: Some(raw(out.net.mac)) };
                let group = solicited_node(hop);
                send_ndisc(out, ours, group, multicast_mac(group), repr);
            }
            _ => {}
        }
    }
}

/// Handles a neighbor solicitation or advertisement. A hop limit of 255 proves that it was sent on
/// this link.
pub(crate) fn handle_ndisc(
    out: &mut Outbox,
    now: Instant,
    ip: &IpPacket,
    link_source: [u8; 6],
    repr: NdiscRepr<'_>,
) {
    let IpAddr::V6(source) = ip.source else { return };
    if ip.hop_limit != 255 {
        out.counters.received_malformed += 1;
        return;
    }
    match repr {
        NdiscRepr::NeighborSolicit { target_addr, lladdr } => {
            if !out.net.is_ours(target_addr.into()) {
                return;
            }
            let mac = lladdr.map_or(link_source, |raw| mac_of(&raw).unwrap_or(link_source));
            // Duplicate address detection uses the unspecified address: RFC 4862 section 5.4.3.
            let (to, to_mac, solicited) = if source.is_unspecified() {
                (ALL_NODES, multicast_mac(ALL_NODES), NdiscNeighborFlags::empty())
            } else {
                learn(out, now, source.into(), mac, true);
                (source, mac, NdiscNeighborFlags::SOLICITED)
            };
            if !out.net.answers_requests {
                return;
            }
            let repr = NdiscRepr::NeighborAdvert {
                flags: solicited | NdiscNeighborFlags::OVERRIDE,
                target_addr,
                lladdr: Some(raw(out.net.mac)),
            };
            send_ndisc(out, target_addr, to, to_mac, repr);
            out.counters.neighbor_replies += 1;
        }
        NdiscRepr::NeighborAdvert { target_addr, lladdr, .. } => {
            let mac = lladdr.and_then(|raw| mac_of(&raw)).unwrap_or(link_source);
            learn(out, now, target_addr.into(), mac, false);
        }
        _ => {}
    }
}

fn send_ndisc(
    out: &mut Outbox,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    destination_mac: [u8; 6],
    repr: NdiscRepr<'_>,
) {
    let to = (destination, destination_mac);
    if let Some(header) = ndisc_frame(out.net.mac, source, to, repr) {
        out.send_frame(header, Bytes::new());
    }
}

/// Returns the frame of a message of neighbor discovery from `mac`. `to` are the IP address and
/// link address of the destination.
pub(crate) fn ndisc_frame(
    mac: [u8; 6],
    source: Ipv6Addr,
    to: (Ipv6Addr, [u8; 6]),
    repr: NdiscRepr<'_>,
) -> Option<PacketHeader> {
    let (destination, destination_mac) = to;
    let repr = Icmpv6Repr::Ndisc(repr);
    let ip = IpHeader {
        source: source.into(),
        destination: destination.into(),
        protocol: protocol::ICMPV6,
        ecn: 0,
        hop_limit: 255,
    };
    let l4 = ETHERNET_BYTES + ip.len();
    let len = l4 + repr.buffer_len();
    let mut header = PacketHeader::zeroed(len, ETHERNET_BYTES, l4).ok()?;
    let link = EthernetAddrs { source: mac, destination: destination_mac };
    let frame = header.as_mut_slice();
    emit::ethernet_ip(&link, &ip, len - l4, frame);
    let mut packet = Icmpv6Packet::new_unchecked(&mut frame[l4..]);
    repr.emit(&source, &destination, &mut packet, &wire::std_formats_caps());
    Some(header)
}

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// All routers of the link (RFC 4291 section 2.7.1).
pub(crate) const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

/// Returns the solicited-node multicast address: RFC 4291 section 2.7.1.
pub(crate) fn solicited_node(addr: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b] = addr.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | (a & 0xff), b)
}

/// Returns the Ethernet address of a multicast group: RFC 2464 section 7.
pub(crate) fn multicast_mac(group: Ipv6Addr) -> [u8; 6] {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

pub(crate) fn raw(mac: [u8; 6]) -> RawHardwareAddress {
    RawHardwareAddress::from(HardwareAddress::Ethernet(EthernetAddress(mac)))
}

fn mac_of(raw: &RawHardwareAddress) -> Option<[u8; 6]> {
    <[u8; 6]>::try_from(raw.as_bytes()).ok().filter(|mac| mac[0] & 1 == 0)
}
