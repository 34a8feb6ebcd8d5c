//! Packet formats: views over bytes, and validated values.
//!
//! The crate holds everything about frames that both sides of the contract must agree on: the
//! offsets of headers ([`frame`]), TCP headers ([`tcp`]), writing headers ([`emit`]), the packets
//! that a run of segments is cut into ([`segment`]), checksums ([`checksum`]), the RSS hash
//! ([`rss`]), TLS records ([`tls`]), QUIC packets ([`quic`]) and NVMe over TCP ([`nvme`]). Standard
//! formats off the hot path (ARP, ICMP, neighbor discovery) are `smoltcp`'s, re-exported as
//! [`std_formats`].
//!
//! Parsers are total: they never panic on input but return an error that names the fault.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod checksum;
pub mod emit;
pub mod fragment;
pub mod frame;
mod link_address;
pub mod nvme;
pub mod quic;
pub mod rss;
pub mod segment;
pub mod tcp;
pub mod tls;

pub use link_address::LinkAddress;
pub use smoltcp::wire as std_formats;

/// Length of an Ethernet header.
pub const ETHERNET_BYTES: usize = 14;
/// Length of an IPv4 header without options, the only kind that this stack sends.
pub const IPV4_BYTES: usize = 20;
/// Length of the fixed IPv6 header.
pub const IPV6_BYTES: usize = 40;
/// Length of a TCP header without options.
pub const TCP_BYTES: usize = 20;
/// Length of a UDP header.
pub const UDP_BYTES: usize = 8;

/// UDP port of DHCP clients (RFC 2131 section 4.1).
pub const DHCP_CLIENT_PORT: u16 = 68;
/// UDP port of DHCP servers.
pub const DHCP_SERVER_PORT: u16 = 67;

/// Returns the link-local address of an interface: RFC 4291 appendix A.
#[must_use]
pub fn link_local(mac: [u8; 6]) -> core::net::Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    let word = |high, low| u16::from_be_bytes([high, low]);
    [0xfe80, 0, 0, 0, word(a ^ 2, b), word(c, 0xff), word(0xfe, d), word(e, f)].into()
}

/// An IP address and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// Address.
    pub addr: core::net::IpAddr,
    /// Port.
    pub port: u16,
}

impl core::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::net::SocketAddr::new(self.addr, self.port).fmt(f)
    }
}

/// Both ends of a connection as this machine sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tuple {
    /// Our end.
    pub local: Endpoint,
    /// The peer's end.
    pub remote: Endpoint,
}

/// Returns checksum settings for [`std_formats`]: verify and fill in all checksums.
#[must_use]
pub fn std_formats_caps() -> smoltcp::phy::ChecksumCapabilities {
    smoltcp::phy::ChecksumCapabilities::default()
}
