//! Packets other than TCP from the peer.

use core::net::IpAddr;

use base::SeqNum;
use wire::ETHERNET_BYTES;
use wire::emit::{self, EthernetAddrs, IpHeader};
use wire::frame::protocol;
use wire::segment::packet;

use super::{HOST_MAC, PEER_MAC, ScriptedTcpPeer};

/// Builds a neighbor advertisement of the peer's address `target`.
pub(super) fn neighbor_advert(target: core::net::Ipv6Addr, to: IpAddr) -> Vec<u8> {
    let ip = IpHeader {
        source: target.into(),
        destination: to,
        protocol: protocol::ICMPV6,
        ecn: 0,
        hop_limit: 255,
    };
    let mut body = vec![136, 0, 0, 0, 0x60, 0, 0, 0];
    body.extend_from_slice(&target.octets());
    body.extend_from_slice(&[2, 1]);
    body.extend_from_slice(&PEER_MAC);
    icmp_frame(&ip, &body)
}

/// Builds a frame from the peer with an ICMP or ICMPv6 message, and fills in its checksum.
fn icmp_frame(ip: &IpHeader, body: &[u8]) -> Vec<u8> {
    packet(&EthernetAddrs { source: PEER_MAC, destination: HOST_MAC }, ip, &[body])
}

impl ScriptedTcpPeer {
    /// Sends an ICMP or ICMPv6 message from the peer or a router, and fills in its checksum.
    pub fn send_icmp(&mut self, body: &[u8]) {
        let v4 = self.addrs.0.is_ipv4();
        let ip = IpHeader {
            source: self.addrs.1,
            destination: self.addrs.0,
            protocol: if v4 { protocol::ICMP } else { protocol::ICMPV6 },
            ecn: 0,
            hop_limit: 255,
        };
        let frame = icmp_frame(&ip, body);
        self.inject(&frame);
    }

    /// Sends an IP packet from the peer with hop limit 64; the checksum in `body` is not filled in.
    pub fn send_ip(&mut self, protocol: u8, body: &[u8]) {
        let (source, destination) = (self.addrs.1, self.addrs.0);
        let ip = IpHeader { source, destination, protocol, ecn: self.ecn, hop_limit: 64 };
        let link = EthernetAddrs { source: PEER_MAC, destination: HOST_MAC };
        let mut frame = vec![0; ETHERNET_BYTES + ip.len()];
        emit::ethernet_ip(&link, &ip, body.len(), &mut frame);
        frame.extend_from_slice(body);
        self.inject(&frame);
    }

    /// Returns the IP header and first 8 bytes of the host's segment at `seq`, as an ICMP error
    /// quotes them.
    #[must_use]
    pub fn icmp_quote(&self, seq: u32) -> Vec<u8> {
        let ip = IpHeader {
            source: self.addrs.0,
            destination: self.addrs.1,
            protocol: protocol::TCP,
            ecn: 0,
            hop_limit: 60,
        };
        let link = EthernetAddrs { source: HOST_MAC, destination: PEER_MAC };
        let mut frame = vec![0; ETHERNET_BYTES + ip.len()];
        emit::ethernet_ip(&link, &ip, 1480, &mut frame);
        let mut quote = frame.split_off(ETHERNET_BYTES);
        quote.extend_from_slice(&self.ports.0.to_be_bytes());
        quote.extend_from_slice(&self.ports.1.to_be_bytes());
        let seq = self.host_iss.unwrap_or(SeqNum(0)) + seq;
        quote.extend_from_slice(&seq.0.to_be_bytes());
        quote
    }
}
