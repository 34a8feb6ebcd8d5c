//! Connection set-up by the device: what it needs to answer SYNs, and what a connection that it set
//! up has agreed on (AccelTCP section 4.1).
//!
//! Nothing is kept for a connection that is being set up: the SYN-ACK's sequence number is a
//! cookie, its timestamp carries the options. Only an established connection reaches the host, as
//! the first frame that brings the cookie back, with an [`Established`] beside it.

use alloc::boxed::Box;
use core::net::IpAddr;

/// The host's name for a port whose SYNs the device answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenId(pub u32);

/// A port whose SYNs the device shall answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetupListen {
    /// The name of it.
    pub listener: ListenId,
    /// The addresses of ours that it is for, one to [`Self::ADDRS_MAX`]; of a wildcard, all of
    /// them. The device answers for these and no others.
    pub addrs: Box<[IpAddr]>,
    /// Port.
    pub port: u16,
    /// What the SYN-ACK's window field offers: unscaled (RFC 7323 section 2.2).
    pub window: u16,
    /// Shift of the windows that we offer later.
    pub window_scale: u8,
    /// Segment size that we offer over IPv4 and over IPv6.
    pub mss: [u16; 2],
    /// Whether we agree to selective acknowledgments.
    pub sack: bool,
    /// Whether we agree to ECN (RFC 3168 section 6.1.1).
    pub ecn: bool,
    /// `TCP_DEFER_ACCEPT`: the connection reaches the host with its first payload, and the bare
    /// acknowledgment that ends the handshake does not.
    pub defer: bool,
}

impl SetupListen {
    /// Most addresses of one port; more are refused.
    pub const ADDRS_MAX: usize = 64;
}

/// What the peer and the device agreed on. It stands beside the first frame of a connection; that
/// frame has the rest: its numbers less one are the two initial ones, and the timestamp that it
/// echoes is the SYN-ACK's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Established {
    /// The port that it was for.
    pub listener: ListenId,
    /// Segment size that the peer can take: one of the eight that a cookie can say, no
    /// larger than what the SYN had.
    pub peer_mss: u16,
    /// The peer's window scale, if its SYN had one.
    pub peer_scale: Option<u8>,
    /// Selective acknowledgments were agreed on.
    pub sack: bool,
    /// ECN was agreed on.
    pub ecn: bool,
}

/// What the engine offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetupLimits {
    /// Ports at one time, over all queues.
    pub listeners_max: u32,
}
