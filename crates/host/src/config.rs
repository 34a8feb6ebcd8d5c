//! Configuration of a host, fixed before it starts. Sizes are run-time values, never Cargo
//! features.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::ops::RangeInclusive;
use core::str::FromStr;

use abi::Refusal;
use abi::attach::AddressClaim;
use abi::setup::CookieSecret;
use abi::steering::OwnQueue;
use base::{Duration, Instant};

/// A local address and the length of its on-link prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    /// Local address.
    pub addr: IpAddr,
    /// Bits of the on-link prefix: 0..=32 or 0..=128.
    pub prefix_len: u8,
}

impl Cidr {
    /// Returns whether `other` is on-link.
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

    /// Parses an address, a slash and a prefix length.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("invalid address `{text}`; expected ADDRESS/LENGTH, for example 10.77.0.2/24")
        };
        let (addr, len) = text.split_once('/').ok_or_else(wrong)?;
        let addr: IpAddr = addr.parse().map_err(|_| wrong())?;
        let prefix_len: u8 = len.parse().map_err(|_| wrong())?;
        let bits = if addr.is_ipv4() { 32 } else { 128 };
        if prefix_len > bits { Err(wrong()) } else { Ok(Self { addr, prefix_len }) }
    }
}

/// Configuration of a host stack.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Local addresses; the first of a family is the source address of active opens.
    pub addrs: Vec<Cidr>,
    /// Default gateways, at most one of each family.
    pub gateways: Vec<IpAddr>,
    /// True if this host answers ARP requests, neighbor solicitations and echo requests. All hosts
    /// of a device receive the packets that belong to no flow, so exactly one of them answers.
    pub answers: bool,
    /// True if the host announces its addresses when it begins, when they change, and after a reset
    /// of the device (RFC 5227 section 3, RFC 4861 section 7.2.6): for programs whose device is not
    /// the station that had the addresses before.
    pub announces: bool,
    /// What the program claims of a device in another process, if its addresses may change: the
    /// host adds new addresses before it uses them ([`abi::Op::ExtendClaim`]).
    pub claim: Option<AddressClaim>,
    /// The queue whose flows this host owns, if there are several: active opens use only ports that
    /// lead to it. `None` if the host owns all flows of its addresses.
    pub own_queue: Option<OwnQueue>,
    /// Secret of the SYN cookies that devices make for this host. The hosts of several queues have
    /// the same one. `None` to derive it from the host's seed.
    pub cookie_secret: Option<CookieSecret>,
    /// Local ports of active opens; Linux's `ip_local_port_range`.
    pub ports: RangeInclusive<u16>,
    /// Maximum number of connections, not counting half-open ones.
    pub connections_max: usize,
    /// Maximum number of open files.
    pub files_max: usize,
    /// Source of the content of files.
    pub content: ContentSource,
    /// `Ok` if the device sends files, or the reason for a refusal.
    pub file_offload: Result<(), Refusal>,
    /// `Ok` if the device encrypts and decrypts TLS records if it can, or the reason for a refusal.
    pub tls_offload: Result<(), Refusal>,
    /// `Ok` if NVMe/TCP is offloaded if the device can, or the reason for a refusal.
    pub nvme_tcp_offload: Result<(), Refusal>,
    /// `Ok` if set-up offload is permitted to listeners that request it, or the reason for a
    /// refusal.
    pub setup_offload: Result<(), Refusal>,
    /// `Ok` if tear-down offload is permitted to connections that request it, or the reason for a
    /// refusal.
    pub teardown_offload: Result<(), Refusal>,
    /// True if connections that the device set up begin with a quasi-TCB instead of a TCB. Disabled
    /// only to measure its effect.
    pub lazy_tcb: bool,
    /// `Ok` if `nsplice` is available, or the reason for a refusal.
    pub splice_offload: Result<(), Refusal>,
    /// `Ok` if the device protects and decrypts QUIC packets, or the reason for a refusal.
    pub quic_offload: Result<(), Refusal>,
    /// `Ok` if the device decompresses received content, or the reason for a refusal.
    pub decompress_offload: Result<(), Refusal>,
    /// True if the device segments UDP transmits into datagrams; otherwise the host does.
    pub udp_segmentation: bool,
    /// Maximum memory of the datagrams queued on a UDP socket, in bytes. Datagrams beyond it are
    /// dropped.
    pub udp_receive_bytes_max: usize,
    /// TCP parameters.
    pub tcp: TcpConfig,
}

impl Default for HostConfig {
    fn default() -> Self {
        Self {
            addrs: Vec::new(),
            gateways: Vec::new(),
            answers: true,
            announces: false,
            claim: None,
            own_queue: None,
            cookie_secret: None,
            // Dynamic port range of RFC 6335.
            ports: 49152..=65535,
            connections_max: 65_536,
            files_max: 4_096,
            content: ContentSource::Disk,
            file_offload: Ok(()),
            tls_offload: Ok(()),
            nvme_tcp_offload: Ok(()),
            setup_offload: Ok(()),
            teardown_offload: Ok(()),
            lazy_tcb: true,
            splice_offload: Ok(()),
            quic_offload: Ok(()),
            decompress_offload: Ok(()),
            udp_segmentation: false,
            udp_receive_bytes_max: 4 << 20,
            tcp: TcpConfig::default(),
        }
    }
}

/// Source of the content of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ContentSource {
    /// The disks of the device and of the host.
    #[default]
    Disk,
    /// The application, by [`crate::ContentRequest`]. The device reads no files.
    Application,
}

/// Congestion control algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CongestionAlgorithm {
    /// CUBIC (RFC 9438).
    #[default]
    Cubic,
    /// NewReno (RFC 5681 and RFC 6582).
    NewReno,
    /// BBR version 3 (draft-ietf-ccwg-bbr). TCP only; it always paces.
    Bbr,
}

/// Path MTU discovery by the packetization layer (PLPMTUD, RFC 4821), beside that by ICMP: Linux's
/// `tcp_mtu_probing`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MtuProbing {
    /// None.
    Off,
    /// After full segments were lost repeatedly, smaller ones are sent and larger ones are probed.
    #[default]
    BlackHole,
    /// Every connection begins with small segments and probes larger ones.
    Always,
}

impl MtuProbing {
    /// Returns whether black holes are detected.
    #[must_use]
    pub fn is_on(self) -> bool {
        self != Self::Off
    }
}

/// Configuration of TCP. The defaults follow Linux.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// Congestion control algorithm.
    pub algorithm: CongestionAlgorithm,
    /// Receive buffer of a connection in bytes: the largest window that is advertised.
    pub receive_bytes_max: u32,
    /// Maximum host memory of a connection's send stream, in bytes. File spans need none.
    pub send_bytes_max: usize,
    /// Acknowledged bytes of a file after which the device is told to release them; the rest is
    /// reported when nothing is in flight. IO-TCP section 3.5 has 32 KiB; a transmit may have eight
    /// times that, and each report costs an operation.
    pub file_ack_bytes: u64,
    /// Initial window in segments (RFC 6928).
    pub initial_window: u32,
    /// End the first slow start when the round-trip time rises: HyStart++ (RFC 9406).
    pub hystart: bool,
    /// Minimum that the retransmission time-out adds to the smoothed round-trip time.
    pub rto_min: Duration,
    /// Maximum retransmission time-out.
    pub rto_max: Duration,
    /// Maximum delay of an acknowledgment.
    pub delayed_ack: Duration,
    /// Time for which the tuple of a closed connection stays in TIME-WAIT (RFC 9293 section 3.4.2).
    pub time_wait: Duration,
    /// Time for which bytes may stay unacknowledged before the connection is aborted (RFC 5482).
    pub user_timeout: Duration,
    /// Retransmissions of a SYN before the connection attempt fails.
    pub syn_retries: u8,
    /// Retransmissions of a SYN-ACK before the half-open connection is dropped.
    pub syn_ack_retries: u8,
    /// Offer and accept selective acknowledgments.
    pub sack: bool,
    /// Offer and accept timestamps.
    pub timestamps: bool,
    /// Maximum resets per second for segments of no connection, which may be forged. Segments
    /// beyond it are not answered; real peers retransmit.
    pub resets_per_s_max: u32,
    /// Accept ECN, and request it on active opens.
    pub ecn: bool,
    /// Pace transmits: spread a window over its round-trip time. BBR paces in any case.
    pub pacing: bool,
    /// Default of [`SocketOption::Defer`](crate::SocketOption): short transmits wait briefly for an
    /// acknowledgment that makes them longer.
    pub defer: bool,
    /// Path MTU discovery without ICMP.
    pub mtu_probing: MtuProbing,
    /// Start retransmission timers at the device's echo. Disabled only to measure its effect.
    pub echo: bool,
    /// First sequence numbers, timestamps and record numbers; for tests only.
    #[doc(hidden)]
    pub first_numbers: FirstNumbers,
}

/// First numbers of connections, for tests of their wraparound. Outside tests, sequence numbers and
/// timestamps are derived from a secret (RFC 6528, RFC 7323 section 5.4), and record numbers come
/// from the handshake.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default)]
pub struct FirstNumbers {
    /// Time at which the host starts.
    pub at: Instant,
    /// Limit that initial sequence numbers lie below, by less than 1 KiB or less than 1 MiB. They
    /// grow by one for each millisecond since `at`.
    pub sequence: Option<u32>,
    /// Limit that the timestamps of each tuple reach within 4.1 seconds after `at`.
    pub timestamp: Option<u32>,
    /// Added to the TLS record numbers, if the limit of the key allows it.
    pub record: u64,
}

impl TcpConfig {
    /// Returns the shift of the windows that are advertised: the smallest that can express the
    /// whole receive buffer.
    pub(crate) fn window_scale(&self) -> u8 {
        let mut scale = 0;
        while self.receive_bytes_max >> scale > u32::from(u16::MAX) && scale < 14 {
            scale += 1;
        }
        scale
    }

    /// Returns the unscaled window field of a SYN or SYN-ACK (RFC 7323 section 2.2).
    pub(crate) fn first_window(&self) -> u16 {
        u16::try_from(self.receive_bytes_max).unwrap_or(u16::MAX)
    }
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            algorithm: CongestionAlgorithm::Cubic,
            receive_bytes_max: 1 << 20,
            send_bytes_max: 1 << 20,
            file_ack_bytes: 256 << 10,
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
            // Some 500 cycles for each, device and host together: 1/500 of a core.
            resets_per_s_max: 10_000,
            ecn: true,
            pacing: true,
            defer: true,
            mtu_probing: MtuProbing::default(),
            echo: true,
            first_numbers: FirstNumbers::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cidrs_parse_and_contain() {
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
