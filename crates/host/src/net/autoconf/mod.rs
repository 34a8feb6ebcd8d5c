//! Addresses that the network assigns: DHCP (RFC 2131) and stateless address autoconfiguration of
//! IPv6 (RFC 4862).
//!
//! [`AutoAddrs`] is a state machine without I/O. It takes received frames and the time, and returns
//! frames to send, events to report, and the addresses, gateways and MTU in effect. Two callers run
//! the same object one after the other: crate `stack` on a bare link until the first address is
//! assigned, and [`crate::Host`] from then on, because a lease must be renewed while connections
//! are open.
//!
//! Every frame that it sends is complete, with link addresses and checksums, so it needs neither
//! the neighbor table nor an address. Renewals go to the link address that the server's last
//! acknowledgment came from; if that is out of date, rebinding by broadcast follows.
//!
//! Everything received is bounded: one lease, a fixed number of routers and prefixes. It resolves
//! no names and sets no routes other than the default ones.

mod dhcp;
mod dhcp_format;
mod slaac;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use abi::{Checksum, PacketHeader, Transmit};
use base::{Instant, Prng};
use bytes::Bytes;
use wire::checksum::pseudo_header;
use wire::frame::{IpPacket, ParsedFrame, protocol};
use wire::{DHCP_CLIENT_PORT, ETHERNET_BYTES, UDP_BYTES};

use super::outbox::plain_transmit;
use crate::config::Cidr;
use dhcp::DhcpClient;
use slaac::Slaac;

/// Events that are kept for a caller that does not take them.
const EVENTS_MAX: usize = 32;

base::counters! {
    /// Counters of automatic addresses.
    pub struct AutoAddrCounters {
        /// DHCPDISCOVER messages sent.
        dhcp_discovers,
        /// DHCPREQUEST messages sent, including renewals.
        dhcp_requests,
        /// DHCPOFFER messages accepted.
        dhcp_offers,
        /// DHCPACK messages accepted.
        dhcp_acks,
        /// DHCPNAK messages received.
        dhcp_naks,
        /// Leases extended by a DHCPACK.
        dhcp_renewals,
        /// Leases that ended without an extension.
        dhcp_expired: alarm,
        /// Addresses declined because another station uses them.
        dhcp_declines: alarm,
        /// DHCPRELEASE messages sent.
        dhcp_releases,
        /// DHCP messages ignored: malformed, of another transaction, or without a required option.
        dhcp_ignored,
        /// ARP packets of another station that claims our leased address.
        arp_conflicts: alarm,
        /// Router solicitations sent.
        router_solicitations,
        /// Router advertisements accepted.
        router_adverts,
        /// Router advertisements ignored because they are malformed or not from this link.
        router_adverts_invalid: alarm,
        /// Routers and prefixes ignored because the tables were full.
        router_table_full: alarm,
        /// IPv6 addresses found in use by another station (RFC 4862 section 5.4).
        dad_conflicts: alarm,
        /// IPv6 addresses assigned.
        slaac_assigned,
        /// IPv6 addresses whose lifetime ended.
        slaac_expired,
    }
}

/// Configuration of [`AutoAddrs`].
#[derive(Clone, Debug)]
pub struct AutoAddrConfig {
    /// Lease an IPv4 address by DHCP.
    pub dhcp: bool,
    /// Form IPv6 addresses from router advertisements.
    pub slaac: bool,
    /// Link address.
    pub mac: [u8; 6],
    /// Addresses, gateways and MTU that are configured by hand.
    pub fixed: NetworkAddrs,
    /// Secret of the interface identifiers (RFC 7217): the same at each start, so that the
    /// addresses are the same.
    pub secret: (u64, u64),
    /// Seed of transaction numbers and delays.
    pub seed: u64,
}

/// Addresses, default gateways and MTU of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkAddrs {
    /// Local addresses; the first of a family is the source address of active opens.
    pub addrs: Vec<Cidr>,
    /// Default gateways, at most one of each family.
    pub gateways: Vec<IpAddr>,
    /// Largest IP packet in bytes.
    pub mtu: u16,
}

/// A change of automatic addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AutoAddrEvent {
    /// A DHCP server leased an address.
    Leased {
        /// The address.
        addr: Cidr,
        /// The server.
        server: Ipv4Addr,
        /// Duration of the lease in seconds.
        seconds: u32,
    },
    /// Another station uses an address that was leased to us.
    Declined(Ipv4Addr),
    /// A server withdrew the address.
    Withdrawn(Ipv4Addr),
    /// The lease ended, and no server extended it.
    Expired(Ipv4Addr),
    /// Another station uses an IPv6 address that we formed.
    Duplicate(Ipv6Addr),
    /// The addresses, gateways or MTU in effect have changed.
    Changed(NetworkAddrs),
}

impl fmt::Display for AutoAddrEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leased { addr: Cidr { addr, prefix_len }, server, seconds } => {
                write!(f, "DHCP: {server} leased {addr}/{prefix_len} for {seconds} s")
            }
            Self::Declined(addr) => {
                write!(f, "DHCP: {addr} is in use by another station; asking for another address")
            }
            Self::Withdrawn(addr) => write!(f, "DHCP: the server withdrew {addr}"),
            Self::Expired(addr) => {
                write!(f, "DHCP: the lease of {addr} ended; no server answers")
            }
            Self::Duplicate(addr) => {
                write!(f, "IPv6: {addr} is in use by another station")
            }
            Self::Changed(network) => {
                f.write_str("addresses are now")?;
                if network.addrs.is_empty() {
                    f.write_str(" none")?;
                }
                network.addrs.iter().try_for_each(|c| write!(f, " {}/{}", c.addr, c.prefix_len))
            }
        }
    }
}

/// A complete frame to send.
#[derive(Clone, Debug)]
pub struct AutoAddrFrame {
    /// Headers, with link addresses, lengths and checksums.
    pub header: PacketHeader,
    /// Bytes after the headers.
    pub body: Bytes,
}

impl AutoAddrFrame {
    /// Returns the transmit of the frame.
    #[must_use]
    pub fn into_transmit(self) -> Transmit {
        plain_transmit(self.header, self.body)
    }
}

/// Outputs that DHCP and SLAAC share.
#[derive(Debug, Default)]
struct AutoOutput {
    frames: VecDeque<AutoAddrFrame>,
    events: VecDeque<AutoAddrEvent>,
    counters: AutoAddrCounters,
}

impl AutoOutput {
    fn send(&mut self, frame: Option<AutoAddrFrame>) {
        self.frames.extend(frame);
    }

    fn report(&mut self, event: AutoAddrEvent) {
        if self.events.len() < EVENTS_MAX {
            self.events.push_back(event);
        }
    }
}

/// Clients for automatic addresses on one link.
#[derive(Debug)]
pub struct AutoAddrs {
    dhcp: Option<DhcpClient>,
    slaac: Option<Box<Slaac>>,
    fixed: NetworkAddrs,
    out: AutoOutput,
    /// Addresses in effect, as reported last.
    last: NetworkAddrs,
}

impl AutoAddrs {
    /// Creates the clients. They begin with the first call of [`Self::handle_timeout`].
    #[must_use]
    pub fn new(config: AutoAddrConfig) -> Self {
        let AutoAddrConfig { dhcp, slaac, mac, fixed, secret, seed } = config;
        let mut prng = Prng::new(seed);
        Self {
            dhcp: dhcp.then(|| DhcpClient::new(mac, prng.fork())),
            slaac: slaac.then(|| Box::new(Slaac::new(mac, secret, prng.fork()))),
            last: fixed.clone(),
            fixed,
            out: AutoOutput::default(),
        }
    }

    /// Leaves the answers to neighbor solicitations to the host that runs the clients from now on.
    pub(crate) fn stop_answering(&mut self) {
        self.slaac.iter_mut().for_each(|slaac| slaac.stop_answering());
    }

    /// Handles a received frame, and ignores those that do not concern automatic addresses.
    /// `checksum` is the state of the transport checksum.
    pub fn handle_frame(&mut self, now: Instant, frame: &[u8], checksum: Checksum) {
        match wire::frame::parse(frame) {
            Ok(ParsedFrame::Arp { at }) => {
                if let (Some(dhcp), Some(packet)) = (&mut self.dhcp, frame.get(at..)) {
                    dhcp.handle_arp(&mut self.out, now, packet);
                }
            }
            Ok(ParsedFrame::Ip(ip)) => self.handle_ip(now, frame, &ip, checksum),
            Err(_) => {}
        }
        self.report_change(now);
    }

    fn handle_ip(&mut self, now: Instant, frame: &[u8], ip: &IpPacket, checksum: Checksum) {
        let Some(body) = frame.get(ip.l4..ip.end) else { return };
        match (ip.protocol, ip.source) {
            (protocol::UDP, IpAddr::V4(_)) => {
                let (Some(dhcp), Some(payload)) =
                    (&mut self.dhcp, dhcp_payload(ip, body, checksum))
                else {
                    return;
                };
                let mut source = [0; 6];
                source.copy_from_slice(&frame[6..12]);
                dhcp.handle_message(&mut self.out, now, source, payload);
            }
            (protocol::ICMPV6, IpAddr::V6(source)) => {
                let good = || {
                    let mut sum =
                        pseudo_header(ip.source, ip.destination, protocol::ICMPV6, body.len());
                    sum.add(body);
                    sum.finish() == 0
                };
                if let Some(slaac) = self.slaac.as_mut().filter(|_| good()) {
                    let from = (source, ip.hop_limit);
                    slaac.handle_message(&mut self.out, now, from, &frame[6..12], body);
                }
            }
            _ => {}
        }
    }

    /// Handles expired timers; the first call starts the clients.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Some(dhcp) = &mut self.dhcp {
            dhcp.handle_timeout(&mut self.out, now);
        }
        if let Some(slaac) = &mut self.slaac {
            slaac.handle_timeout(&mut self.out, now);
        }
        self.report_change(now);
    }

    /// Returns the time at which to call [`Self::handle_timeout`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        Instant::earliest([
            self.dhcp.as_ref().and_then(DhcpClient::poll_timeout),
            self.slaac.as_ref().and_then(|slaac| slaac.poll_timeout()),
        ])
    }

    /// Returns the next frame to send.
    pub fn poll_frame(&mut self) -> Option<AutoAddrFrame> {
        self.out.frames.pop_front()
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<AutoAddrEvent> {
        self.out.events.pop_front()
    }

    /// Returns whether DHCP, if it is enabled, has a lease.
    #[must_use]
    pub fn has_lease(&self) -> bool {
        self.dhcp.as_ref().is_none_or(|dhcp| dhcp.lease().is_some())
    }

    /// Returns whether SLAAC, if it is enabled, has an address.
    #[must_use]
    pub fn has_slaac_address(&self) -> bool {
        self.slaac.as_ref().is_none_or(|slaac| slaac.addrs().next().is_some())
    }

    /// Returns the addresses, gateways and MTU in effect.
    #[must_use]
    pub const fn network(&self) -> &NetworkAddrs {
        &self.last
    }

    /// Releases the lease, for an orderly exit.
    pub fn release(&mut self, now: Instant) {
        if let Some(dhcp) = &mut self.dhcp {
            dhcp.release(&mut self.out, now);
        }
        self.slaac = None;
    }

    /// Calls `f` with the name and value of each counter.
    pub fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.out.counters.visit(f);
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counters(&self) -> &AutoAddrCounters {
        &self.out.counters
    }

    /// Computes the addresses in effect, and reports them if they have changed.
    fn report_change(&mut self, now: Instant) {
        let mut network = self.fixed.clone();
        let has_gateway = |network: &NetworkAddrs, v4: bool| {
            network.gateways.iter().any(|gateway| gateway.is_ipv4() == v4)
        };
        if let Some(lease) = self.dhcp.as_ref().and_then(DhcpClient::lease) {
            network.addrs.push(lease.addr);
            let router = lease.router.filter(|_| !has_gateway(&network, true));
            network.gateways.extend(router.map(IpAddr::V4));
            network.mtu = lease.mtu.map_or(network.mtu, |mtu| mtu.min(network.mtu));
        }
        if let Some(slaac) = &self.slaac {
            network.addrs.extend(slaac.addrs());
            let router = slaac.router(now).filter(|_| !has_gateway(&network, false));
            network.gateways.extend(router.map(IpAddr::V6));
            network.mtu = slaac.mtu().map_or(network.mtu, |mtu| mtu.min(network.mtu));
        }
        if network != self.last {
            self.last = network.clone();
            // The caller must learn of the latest state, even if it has not taken the events.
            self.out.events.retain(|event| !matches!(event, AutoAddrEvent::Changed(_)));
            self.out.events.push_back(AutoAddrEvent::Changed(network));
        }
    }
}

/// Returns the payload of a UDP datagram to the port of DHCP clients, if its checksum is correct.
fn dhcp_payload<'a>(ip: &IpPacket, datagram: &'a [u8], checksum: Checksum) -> Option<&'a [u8]> {
    let word = |at: usize| Some(u16::from_be_bytes(*datagram.get(at..)?.first_chunk()?));
    let len = usize::from(word(4)?);
    let covered = datagram.get(..len).filter(|covered| covered.len() >= UDP_BYTES)?;
    if word(2)? != DHCP_CLIENT_PORT {
        return None;
    }
    let good = match checksum {
        Checksum::Good | Checksum::Partial => true,
        Checksum::Bad => false,
        Checksum::Unchecked => {
            let mut sum = pseudo_header(ip.source, ip.destination, protocol::UDP, len);
            sum.add(covered);
            word(6)? == 0 || sum.finish() == 0
        }
    };
    good.then(|| &covered[UDP_BYTES..])
}

/// Returns whether a received frame may concern automatic addresses.
pub(crate) fn concerns_auto_addrs(frame: &[u8], ip: &IpPacket) -> bool {
    match ip.protocol {
        protocol::ICMPV6 => matches!(frame.get(ip.l4), Some(134..=136)),
        protocol::UDP => frame.get(ip.l4 + 2..ip.l4 + 4) == Some(&DHCP_CLIENT_PORT.to_be_bytes()),
        _ => false,
    }
}

/// Returns a frame without body from its header.
fn plain_frame(header: PacketHeader) -> AutoAddrFrame {
    debug_assert!(header.len() > ETHERNET_BYTES, "a frame has contents");
    AutoAddrFrame { header, body: Bytes::new() }
}

#[cfg(test)]
mod tests;
