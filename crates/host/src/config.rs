//! What an operator decides before the stack starts. Sizes are run-time values, never Cargo
//! features.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::ops::RangeInclusive;
use core::str::FromStr;

use abi::Refusal;
use base::{Duration, Instant};

/// An address of ours and the length of its on-link prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    /// Our address.
    pub addr: IpAddr,
    /// Bits of the prefix that is on-link: 0..=32 or 0..=128.
    pub prefix_len: u8,
}

impl Cidr {
    /// Whether `other` is on the same link.
    #[must_use]
    pub fn contains(&self, other: IpAddr) -> bool {
        let same = |ours: u128, theirs: u128, bits: u32| {
            let host_bits = bits.saturating_sub(u32::from(self.prefix_len));
            (ours ^ theirs).checked_shr(host_bits).unwrap_or(0) == 0
        };
        match (self.addr, other) {
            (IpAddr::V4(a), IpAddr::V4(b)) => same(u32::from(a).into(), u32::from(b).into(), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => same(a.into(), b.into(), 128),
            _ => false,
        }
    }
}

impl FromStr for Cidr {
    type Err = String;

    /// Parses an address, a slash and the length of a prefix.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not an address with a prefix length, as 10.77.0.2/24");
        let (addr, len) = text.split_once('/').ok_or_else(wrong)?;
        let addr: IpAddr = addr.parse().map_err(|_| wrong())?;
        let prefix_len: u8 = len.parse().map_err(|_| wrong())?;
        let bits = if addr.is_ipv4() { 32 } else { 128 };
        if prefix_len > bits { Err(wrong()) } else { Ok(Self { addr, prefix_len }) }
    }
}

/// Configuration of a host stack.
#[derive(Clone, Debug)]
pub struct Config {
    /// Our addresses; the first of a family is the source of connections we open.
    pub addrs: Vec<Cidr>,
    /// Next hops for what is not on-link, at most one of each family.
    pub gateways: Vec<IpAddr>,
    /// Whether this host answers ARP requests, neighbour solicitations and echo requests: one of
    /// the hosts that share a device does, since all of them hear what belongs to no flow.
    pub answers: bool,
    /// Ports of connections that we open; Linux's `ip_local_port_range`.
    pub ports: RangeInclusive<u16>,
    /// Connections at one time, half-open ones apart.
    pub connections_max: usize,
    /// Files open at one time.
    pub files_max: usize,
    /// Whether files are sent by the device, or why not.
    pub file_offload: Result<(), Refusal>,
    /// Whether TLS records are sealed and opened by the device, as far as it can, or why not.
    pub tls_offload: Result<(), Refusal>,
    /// Whether the device does what it can for NVMe over TCP, or why not.
    pub nvme_tcp_offload: Result<(), Refusal>,
    /// Whether listeners that ask for it have the device set connections up, or why not.
    pub setup_offload: Result<(), Refusal>,
    /// Whether connections that ask for it are torn down by the device, or why not.
    pub teardown_offload: Result<(), Refusal>,
    /// Whether connections that the device set up begin without a TCB; off only to measure what
    /// that is worth.
    pub lazy_tcb: bool,
    /// Whether `nsplice` splices, or why not.
    pub splice_offload: Result<(), Refusal>,
    /// Whether QUIC packets are protected and opened by the device, or why not.
    pub quic_offload: Result<(), Refusal>,
    /// Whether the device cuts UDP transmits into datagrams; else the host does.
    pub udp_segmentation: bool,
    /// Memory of the datagrams that may wait on a UDP socket, in bytes; more are dropped.
    pub udp_receive_bytes_max: usize,
    /// TCP's choices.
    pub tcp: TcpConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            addrs: Vec::new(),
            gateways: Vec::new(),
            answers: true,
            // RFC 6335's dynamic range.
            ports: 49152..=65535,
            connections_max: 65_536,
            files_max: 4_096,
            file_offload: Ok(()),
            tls_offload: Ok(()),
            nvme_tcp_offload: Ok(()),
            setup_offload: Ok(()),
            teardown_offload: Ok(()),
            lazy_tcb: true,
            splice_offload: Ok(()),
            quic_offload: Ok(()),
            udp_segmentation: false,
            udp_receive_bytes_max: 4 << 20,
            tcp: TcpConfig::default(),
        }
    }
}

/// Congestion control algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Algorithm {
    /// CUBIC: RFC 9438.
    #[default]
    Cubic,
    /// NewReno: RFC 5681 and RFC 6582.
    NewReno,
}

/// Configuration of TCP. The defaults are Linux's.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// Congestion control.
    pub algorithm: Algorithm,
    /// Receive buffer of a connection in bytes: the largest window it offers.
    pub receive_bytes_max: u32,
    /// Bytes of host memory that a connection's send stream may hold. File spans hold none.
    pub send_bytes_max: usize,
    /// Initial window in segments: RFC 6928.
    pub initial_window: u32,
    /// End the first slow start when the round trip grows: HyStart++, RFC 9406.
    pub hystart: bool,
    /// Least retransmission time-out beyond the smoothed round-trip time.
    pub rto_min: Duration,
    /// Largest retransmission time-out.
    pub rto_max: Duration,
    /// Longest delay of an acknowledgment.
    pub delayed_ack: Duration,
    /// How long a closed connection's tuple is kept: RFC 9293 section 3.4.2.
    pub time_wait: Duration,
    /// How long bytes may stay unacknowledged before the connection is given up (RFC 5482).
    pub user_timeout: Duration,
    /// Retransmissions of a SYN before it is given up.
    pub syn_retries: u8,
    /// Retransmissions of a SYN-ACK before the half-open connection is dropped.
    pub syn_ack_retries: u8,
    /// Offer and accept selective acknowledgments.
    pub sack: bool,
    /// Offer and accept timestamps.
    pub timestamps: bool,
    /// Resets per second for segments that fit no connection, which may be forged; what is beyond
    /// goes unanswered, and peers that mean it send again.
    pub resets_per_s_max: u32,
    /// Accept ECN, and ask for it on connections that we open.
    pub ecn: bool,
    /// Spread a window over its round trip.
    pub pacing: bool,
    /// Let short transmits wait a moment for an acknowledgment that makes them longer
    /// ([`SocketOption::Defer`](crate::SocketOption)).
    pub defer: bool,
    /// Start retransmission timers at the device's echo; off only to measure what that is worth.
    pub echo: bool,
    /// Where numbers begin; for tests only.
    #[doc(hidden)]
    pub first_numbers: FirstNumbers,
}

/// Where the numbers of connections begin, for tests of what happens at their limits. A host in use
/// takes sequence numbers and timestamps from a secret (RFC 6528, RFC 7323 section 5.4), and record
/// numbers from the handshake.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default)]
pub struct FirstNumbers {
    /// When the host begins.
    pub at: Instant,
    /// Initial sequence numbers lie before this: by less than a kibibyte or by less than a
    /// mebibyte, and a byte less for each millisecond since `at`.
    pub sequence: Option<u32>,
    /// The timestamps of each tuple reach this within seconds after `at`.
    pub timestamp: Option<u32>,
    /// Added to the record numbers of TLS, if its keys are good for so many records.
    pub record: u64,
}

impl TcpConfig {
    /// Returns the shift of the windows that we offer: the least that lets the whole buffer be
    /// offered.
    pub(crate) fn window_scale(&self) -> u8 {
        let mut scale = 0;
        while self.receive_bytes_max >> scale > u32::from(u16::MAX) && scale < 14 {
            scale += 1;
        }
        scale
    }

    /// Returns what the window field of a SYN or SYN-ACK offers: unscaled (RFC 7323 section 2.2).
    pub(crate) fn first_window(&self) -> u16 {
        u16::try_from(self.receive_bytes_max).unwrap_or(u16::MAX)
    }
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::Cubic,
            receive_bytes_max: 1 << 20,
            send_bytes_max: 1 << 20,
            initial_window: 10,
            hystart: true,
            rto_min: Duration::from_millis(200),
            rto_max: Duration::from_secs(120),
            delayed_ack: Duration::from_millis(40),
            time_wait: Duration::from_secs(60),
            user_timeout: Duration::from_secs(900),
            syn_retries: 6,
            syn_ack_retries: 5,
            sack: true,
            timestamps: true,
            // Some 500 cycles each, device and host together: a five-hundredth of a core.
            resets_per_s_max: 10_000,
            ecn: true,
            pacing: true,
            defer: true,
            echo: true,
            first_numbers: FirstNumbers::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes() {
        let net = |s: &str| s.parse::<Cidr>().unwrap();
        assert!(net("10.77.0.2/24").contains("10.77.0.1".parse().unwrap()));
        assert!(!net("10.77.0.2/24").contains("10.77.1.1".parse().unwrap()));
        assert!(net("10.77.0.2/0").contains("1.2.3.4".parse().unwrap()));
        assert!(!net("10.77.0.2/32").contains("10.77.0.3".parse().unwrap()));
        assert!(net("fd77::2/64").contains("fd77::99".parse().unwrap()));
        assert!(!net("fd77::2/64").contains("10.77.0.1".parse().unwrap()));
        for wrong in ["10.77.0.2", "10.77.0.2/33", "fd77::2/129", "x/24", "10.77.0.2/"] {
            assert!(wrong.parse::<Cidr>().is_err(), "{wrong}");
        }
    }
}
