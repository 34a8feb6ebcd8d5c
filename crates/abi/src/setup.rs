//! Set-up offload (AccelTCP section 4.1): parameters for answering SYNs, and the options negotiated
//! on a connection that the device set up.
//!
//! The device keeps no state of half-open connections: the sequence number of the SYN-ACK is a SYN
//! cookie, and its timestamp encodes options. Only an established connection reaches the host: its
//! first frame is the one that returns the cookie, with [`Established`] beside it.

use alloc::boxed::Box;
use core::fmt;
use core::net::IpAddr;

/// The host's number for a listening port whose SYNs the device answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenId(pub u32);

/// Secret from which a device derives the keys of a listener's SYN cookies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CookieSecret(pub [u64; 2]);

impl fmt::Debug for CookieSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CookieSecret")
    }
}

/// A listening port whose SYNs the device is to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetupListen {
    /// The new listener.
    pub listener: ListenId,
    /// Local addresses of the listener, 1 to [`Self::ADDRS_MAX`]; for a wildcard listener, all of
    /// the host's. The device answers SYNs to these only.
    pub addrs: Box<[IpAddr]>,
    /// Local port.
    pub port: u16,
    /// Window field of the SYN-ACK: unscaled (RFC 7323 section 2.2).
    pub window: u16,
    /// Window scale to offer.
    pub window_scale: u8,
    /// MSS to offer over IPv4 and over IPv6.
    pub mss: [u16; 2],
    /// True to accept SACK.
    pub sack: bool,
    /// True to accept ECN (RFC 3168 section 6.1.1).
    pub ecn: bool,
    /// `TCP_DEFER_ACCEPT`: the connection reaches the host with its first payload; the bare
    /// acknowledgment that completes the handshake is not delivered.
    pub defer_accept: bool,
    /// Secret of the cookies. It belongs to the host, so that another device, or the same one after
    /// a restart, accepts the cookies of the one before.
    pub secret: CookieSecret,
}

impl SetupListen {
    /// Maximum number of addresses of one listener; one with more is refused.
    pub const ADDRS_MAX: usize = 64;
}

/// Relation of a segment to a handshake that the device completed, attached to its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeSegment {
    /// The segment is the peer's first one after its SYN, or a copy of it.
    First(Established),
    /// The segment acknowledges the device's SYN-ACK, but another one precedes it. If the host does
    /// not have the connection, that one was lost or is late. It will establish the connection, so
    /// the host must not send a reset.
    Later,
}

/// Options negotiated between the peer and the device, attached to the first frame of a connection.
/// The initial sequence numbers are that frame's sequence and acknowledgment numbers minus one, and
/// the timestamp that it echoes is that of the SYN-ACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Established {
    /// The listener.
    pub listener: ListenId,
    /// MSS of the peer: the largest of eight values encodable in a cookie that does not exceed the
    /// MSS in the SYN.
    pub peer_mss: u16,
    /// Window scale of the peer, if its SYN had one.
    pub peer_scale: Option<u8>,
    /// True if SACK was negotiated.
    pub sack: bool,
    /// True if ECN was negotiated.
    pub ecn: bool,
}

/// Limits of the set-up offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetupLimits {
    /// Listeners at one time, over all queues.
    pub listeners_max: u32,
}
