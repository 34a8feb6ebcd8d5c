//! Packet formats: views over bytes, and values that were validated.
//!
//! What both sides of the contract need to agree on about a frame is here: where its headers lie
//! ([`frame`]), what a TCP segment says ([`tcp`]), how it is written ([`emit`]), the packets that a
//! run of segments becomes ([`segment`]), its checksums and its RSS hash, TLS records ([`tls`]),
//! QUIC packets ([`quic`]), and NVMe over TCP ([`nvme`]).
//! Standard formats off the hot path (ARP, ICMP, neighbour discovery) are `smoltcp`'s, re-exported
//! as [`std_formats`].
//!
//! Nothing here panics on input: parsing is total and answers with an error that says what was
//! wrong.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod checksum;
pub mod emit;
pub mod frame;
pub mod nvme;
pub mod quic;
pub mod rss;
pub mod segment;
pub mod tcp;
pub mod tls;

pub use smoltcp::wire as std_formats;

/// Bytes of an Ethernet header.
pub const ETHERNET_BYTES: usize = 14;
/// Bytes of an IPv4 header without options: the only kind that this stack sends.
pub const IPV4_BYTES: usize = 20;
/// Bytes of the fixed IPv6 header.
pub const IPV6_BYTES: usize = 40;
/// Bytes of a TCP header without options.
pub const TCP_BYTES: usize = 20;
/// Bytes of a UDP header.
pub const UDP_BYTES: usize = 8;

/// An IP address and a port, in 20 bytes.
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

/// The two ends of a connection as this machine sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tuple {
    /// Our end.
    pub local: Endpoint,
    /// The peer's end.
    pub remote: Endpoint,
}

/// Checksum settings for [`std_formats`]: verify and fill in everything.
#[must_use]
pub fn std_formats_caps() -> smoltcp::phy::ChecksumCapabilities {
    smoltcp::phy::ChecksumCapabilities::default()
}
