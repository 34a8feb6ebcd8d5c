//! Messages of DHCP: fields of received ones, and frames of those to send. Formats are `smoltcp`'s.
//!
//! Called by [`super::dhcp`].

use alloc::vec;
use core::net::{IpAddr, Ipv4Addr};

use abi::PacketHeader;
use bytes::Bytes;
use wire::checksum::pseudo_header;
use wire::emit::{self, EthernetAddrs, IpHeader};
use wire::frame::protocol;
use wire::std_formats::{DhcpMessageType, DhcpPacket, DhcpRepr, EthernetAddress};
use wire::{DHCP_CLIENT_PORT, DHCP_SERVER_PORT, ETHERNET_BYTES, IPV4_BYTES, UDP_BYTES};

use super::AutoAddrFrame;
use crate::config::Cidr;
use crate::net::outbox::HOP_LIMIT;

/// Options that are requested: subnet mask, router, MTU, lease time, T1, T2.
const REQUESTED: &[u8] = &[1, 3, OPTION_MTU, 51, 58, 59];
const OPTION_MTU: u8 = 26;
const OPTION_ROUTER: u8 = 3;
/// Minimum length of a message: that of BOOTP (RFC 1542 section 2.1).
const MESSAGE_BYTES_MIN: usize = 300;
/// Largest DHCP message that we accept (RFC 2131 section 2).
const MESSAGE_BYTES_MAX: u16 = 1472;
/// Smallest MTU that is accepted: RFC 2132 section 5.1 has 68, with which TCP is of no use.
const MTU_MIN: u16 = 576;

/// A message from a server.
#[derive(Clone, Debug)]
pub(super) struct ServerMessage {
    pub(super) kind: DhcpMessageType,
    pub(super) xid: u32,
    /// The address offered.
    pub(super) addr: Option<Cidr>,
    pub(super) server: Option<Ipv4Addr>,
    /// The first router on the link of `addr`.
    pub(super) router: Option<Ipv4Addr>,
    pub(super) mtu: Option<u16>,
    /// Seconds of the lease, of T1 and of T2.
    pub(super) lease: Option<u32>,
    pub(super) renew: Option<u32>,
    pub(super) rebind: Option<u32>,
}

impl ServerMessage {
    /// Parses a message to the client with this link address. Returns `None` if it is malformed or
    /// for another client.
    pub(super) fn parse(payload: &[u8], mac: [u8; 6]) -> Option<Self> {
        let packet = DhcpPacket::new_checked(payload).ok()?;
        let repr = DhcpRepr::parse(&packet).ok()?;
        if repr.client_hardware_address.0 != mac {
            return None;
        }
        // RFC 3396: an option that occurs twice is concatenated; none of these needs that.
        let option = |kind: u8| packet.options().find(|o| o.kind == kind).map(|o| o.data);
        let mtu = option(OPTION_MTU).and_then(|data| <[u8; 2]>::try_from(data).ok());
        let addr = repr.subnet_mask.and_then(|mask| usable(repr.your_ip, mask));
        let routers = option(OPTION_ROUTER).unwrap_or_default().chunks_exact(4);
        let router = routers
            .filter_map(|octets| <[u8; 4]>::try_from(octets).ok().map(Ipv4Addr::from))
            .find(|&router| addr.is_some_and(|a| a.contains(router.into()) && a.addr != router));
        Some(Self {
            kind: repr.message_type,
            xid: repr.transaction_id,
            addr,
            server: repr.server_identifier.filter(|server| !server.is_unspecified()),
            router,
            mtu: mtu.map(u16::from_be_bytes).filter(|&mtu| mtu >= MTU_MIN),
            lease: repr.lease_duration.filter(|&seconds| seconds > 0),
            renew: repr.renew_duration,
            rebind: repr.rebind_duration,
        })
    }
}

/// Returns an address with its prefix length, if it is a station's and the mask is contiguous.
fn usable(addr: Ipv4Addr, mask: Ipv4Addr) -> Option<Cidr> {
    let bits = mask.to_bits();
    let prefix_len = u8::try_from(bits.leading_ones()).ok()?;
    let contiguous = bits.count_ones() == bits.leading_ones() && prefix_len > 0;
    let host = addr.to_bits() & !bits;
    let is_station = prefix_len >= 31 || (host != 0 && host != !bits);
    let unicast = !addr.is_unspecified()
        && !addr.is_multicast()
        && !addr.is_loopback()
        && !addr.is_broadcast();
    (contiguous && is_station && unicast).then_some(Cidr { addr: addr.into(), prefix_len })
}

/// A message to a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientMessage {
    pub(super) kind: DhcpMessageType,
    pub(super) xid: u32,
    /// Seconds since the client began.
    pub(super) secs: u16,
    /// Our address, if we use one.
    pub(super) client_ip: Ipv4Addr,
    /// The address that is requested or declined.
    pub(super) requested: Option<Ipv4Addr>,
    /// The server that is selected, or whose lease is given back.
    pub(super) server: Option<Ipv4Addr>,
    /// Link address and IP address of the receiver; `None` for a broadcast.
    pub(super) to: Option<([u8; 6], Ipv4Addr)>,
}

impl ClientMessage {
    /// Returns the frame of the message.
    pub(super) fn frame(&self, mac: [u8; 6]) -> Option<AutoAddrFrame> {
        let asks = matches!(self.kind, DhcpMessageType::Discover | DhcpMessageType::Request);
        let repr = DhcpRepr {
            message_type: self.kind,
            transaction_id: self.xid,
            secs: self.secs,
            client_hardware_address: EthernetAddress(mac),
            client_ip: self.client_ip,
            your_ip: Ipv4Addr::UNSPECIFIED,
            server_ip: Ipv4Addr::UNSPECIFIED,
            router: None,
            subnet_mask: None,
            relay_agent_ip: Ipv4Addr::UNSPECIFIED,
            // A reply to an address that the host does not have yet would need an answer to ARP.
            broadcast: asks && self.client_ip.is_unspecified(),
            requested_ip: self.requested,
            client_identifier: Some(EthernetAddress(mac)),
            server_identifier: self.server,
            parameter_request_list: asks.then_some(REQUESTED),
            dns_servers: None,
            max_size: asks.then_some(MESSAGE_BYTES_MAX),
            lease_duration: None,
            renew_duration: None,
            rebind_duration: None,
            additional_options: &[],
        };
        let mut message = vec![0; repr.buffer_len().max(MESSAGE_BYTES_MIN)];
        repr.emit(&mut DhcpPacket::new_unchecked(&mut message[..])).ok()?;
        let (to_mac, to) = self.to.unwrap_or(([0xff; 6], Ipv4Addr::BROADCAST));
        udp_frame((mac, self.client_ip), (to_mac, to), Bytes::from(message))
    }
}

/// Returns the frame of a datagram between the ports of DHCP.
fn udp_frame(
    (mac, source): ([u8; 6], Ipv4Addr),
    (to_mac, destination): ([u8; 6], Ipv4Addr),
    body: Bytes,
) -> Option<AutoAddrFrame> {
    let (source, destination): (IpAddr, IpAddr) = (source.into(), destination.into());
    let ip =
        IpHeader { source, destination, protocol: protocol::UDP, ecn: 0, hop_limit: HOP_LIMIT };
    let l4 = ETHERNET_BYTES + IPV4_BYTES;
    let mut header = PacketHeader::zeroed(l4 + UDP_BYTES, ETHERNET_BYTES, l4).ok()?;
    let link = EthernetAddrs { source: mac, destination: to_mac };
    let frame = header.as_mut_slice();
    emit::udp_template(&link, &ip, [DHCP_CLIENT_PORT, DHCP_SERVER_PORT], body.len(), frame);
    emit::set_lengths(frame, ETHERNET_BYTES, l4 + UDP_BYTES + body.len(), 0);
    let len = UDP_BYTES + body.len();
    let mut sum = pseudo_header(source, destination, protocol::UDP, len);
    sum.add(&frame[l4..]);
    sum.add(&body);
    // RFC 768: a sum of zero is sent as all ones.
    let checksum = if sum.finish() == 0 { u16::MAX } else { sum.finish() };
    frame[l4 + 6..l4 + 8].copy_from_slice(&checksum.to_be_bytes());
    Some(AutoAddrFrame { header, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_stations_only() {
        let mask = Ipv4Addr::new(255, 255, 255, 0);
        let addr = |d: u8| Ipv4Addr::new(10, 0, 0, d);
        assert_eq!(usable(addr(5), mask).map(|cidr| cidr.prefix_len), Some(24));
        assert!(usable(addr(0), mask).is_none() && usable(addr(255), mask).is_none());
        assert!(usable(addr(5), Ipv4Addr::new(255, 0, 255, 0)).is_none(), "not contiguous");
        assert!(usable(addr(5), Ipv4Addr::UNSPECIFIED).is_none());
        assert!(usable(addr(5), Ipv4Addr::BROADCAST).is_some(), "a /32");
        for bad in [Ipv4Addr::LOCALHOST, Ipv4Addr::new(224, 0, 0, 5), Ipv4Addr::UNSPECIFIED] {
            assert!(usable(bad, mask).is_none(), "{bad}");
        }
    }
}
