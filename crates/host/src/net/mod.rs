//! The network layer of a host: output of frames, addresses, next hops, neighbors, ICMP.

use alloc::vec::Vec;
use core::net::IpAddr;

use wire::{Tuple, link_local};

use crate::config::{Cidr, HostConfig};

pub(crate) mod arp;
pub(crate) mod autoconf;
pub(crate) mod icmp;
pub(crate) mod neighbor;
pub(crate) mod outbox;
pub(crate) mod reassembly;

use autoconf::NetworkAddrs;
use neighbor::NeighborTable;

/// Addresses and routes of a host.
#[derive(Debug)]
pub(crate) struct Net {
    pub(crate) mac: [u8; 6],
    pub(crate) mtu: u16,
    addrs: Vec<Cidr>,
    gateways: Vec<IpAddr>,
    /// This host answers ARP requests, neighbor solicitations and echo requests, which every host
    /// of the device receives.
    pub(crate) answers_requests: bool,
    /// This host announces its addresses.
    pub(crate) announces: bool,
    pub(crate) neighbors: NeighborTable,
}

impl Net {
    pub(crate) fn new(config: &HostConfig, mac: [u8; 6], mtu: u16) -> Self {
        Self {
            mac,
            mtu,
            addrs: config.addrs.clone(),
            gateways: config.gateways.clone(),
            answers_requests: config.answers,
            announces: config.announces,
            neighbors: NeighborTable::new(),
        }
    }

    /// Returns whether these addresses, gateways and MTU are in effect.
    pub(crate) fn uses(&self, network: &NetworkAddrs) -> bool {
        let NetworkAddrs { addrs, gateways, mtu } = network;
        self.addrs == *addrs && self.gateways == *gateways && self.mtu == *mtu
    }

    /// Returns our addresses.
    pub(crate) fn addrs(&self) -> impl Iterator<Item = IpAddr> {
        self.addrs.iter().map(|cidr| cidr.addr)
    }

    /// Returns our addresses that are not in `network`.
    pub(crate) fn lost_by(&self, network: &NetworkAddrs) -> Vec<IpAddr> {
        let is_kept = |addr: IpAddr| network.addrs.iter().any(|cidr| cidr.addr == addr);
        self.addrs.iter().map(|cidr| cidr.addr).filter(|&addr| !is_kept(addr)).collect()
    }

    /// Replaces addresses, gateways and MTU.
    pub(crate) fn replace(&mut self, network: &NetworkAddrs) {
        self.addrs.clone_from(&network.addrs);
        self.gateways.clone_from(&network.gateways);
        self.mtu = network.mtu;
    }

    /// Returns whether `addr` is one of our addresses.
    pub(crate) fn is_ours(&self, addr: IpAddr) -> bool {
        self.addrs.iter().any(|c| c.addr == addr)
            || matches!(addr, IpAddr::V6(v6) if v6 == link_local(self.mac))
    }

    /// Returns our address from which to send to `remote`: one of the same subnet if there is one,
    /// else the first of the family.
    pub(crate) fn source_for(&self, remote: IpAddr) -> Option<IpAddr> {
        let family = |c: &&Cidr| c.addr.is_ipv4() == remote.is_ipv4();
        let near = self.addrs.iter().filter(family).find(|c| c.contains(remote));
        near.or_else(|| self.addrs.iter().find(family)).map(|c| c.addr)
    }

    /// Returns the next hop for a packet to `destination`: itself if on-link, else the gateway.
    pub(crate) fn next_hop(&self, destination: IpAddr) -> Option<IpAddr> {
        let on_link = self.addrs.iter().any(|c| c.contains(destination))
            || matches!(destination, IpAddr::V6(v6) if v6.is_unicast_link_local());
        if on_link {
            return Some(destination);
        }
        self.gateways.iter().copied().find(|g| g.is_ipv4() == destination.is_ipv4())
    }

    /// Returns the segment size to offer the peer: RFC 9293 section 3.7.1.
    pub(crate) fn mss_for(&self, tuple: &Tuple) -> u16 {
        #[expect(clippy::cast_possible_truncation, reason = "40 or 60")]
        let headers = if tuple.local.addr.is_ipv4() {
            (wire::IPV4_BYTES + wire::TCP_BYTES) as u16
        } else {
            (wire::IPV6_BYTES + wire::TCP_BYTES) as u16
        };
        self.mtu.saturating_sub(headers)
    }
}
