//! Splicing (AccelTCP section 4.3): the device relays between two established connections.
//!
//! *Start.* Before it sends [`Splice`], the host has relayed everything that it received and seen
//! it acknowledged; after that it acknowledges nothing new. The device takes over both tuples,
//! answers with `Spliced`, and from then on keeps arriving frames, up to a limit for each pair. No
//! frame of either connection follows `Spliced` in the event ring, so the host returns with
//! `SpliceStart` the frames that it had not acknowledged. The device relays these first, then those
//! that it kept, then new ones. So no byte is lost or reordered.

use base::{Duration, SeqNum};
use wire::Tuple;

/// The host's number for a pair of spliced connections; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpliceId(pub u64);

/// Two connections to splice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Splice {
    /// The new splice.
    pub id: SpliceId,
    /// The two connections; bytes received on one are sent on the other.
    pub sides: [SpliceSide; 2],
    /// Time without a packet after which both connections are reset.
    pub idle_timeout: Duration,
}

/// One of the two connections: the state of its TCB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpliceSide {
    /// Addresses and ports.
    pub tuple: Tuple,
    /// Ethernet address of the next hop to the peer.
    pub next_hop_mac: [u8; 6],
    /// SND.NXT: next sequence number to send. Everything before it was acknowledged.
    pub snd_nxt: SeqNum,
    /// RCV.NXT: next sequence number expected from the peer. Everything before it was acknowledged
    /// and relayed.
    pub rcv_nxt: SeqNum,
    /// Window scale of the peer's windows.
    pub peer_scale: u8,
    /// Window scale of the windows that the host offered.
    pub own_scale: u8,
    /// Window that the peer offered last, in bytes from `snd_nxt`.
    pub peer_window: u32,
    /// Window that the host offered last, in bytes from `rcv_nxt`.
    pub own_window: u32,
    /// Payload bytes of the largest segment to the peer.
    pub mss: u16,
    /// True if SACK was negotiated.
    pub sack: bool,
    /// True if ECN was negotiated.
    pub ecn: bool,
    /// Timestamps, if they were negotiated.
    pub timestamps: Option<SpliceTimestamps>,
}

/// Timestamp values of a connection (RFC 7323).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpliceTimestamps {
    /// TSval that the host would send now.
    pub tsval: u32,
    /// TS.Recent: the peer's latest TSval, to be sent as TSecr.
    pub ts_recent: u32,
}

/// The end of a splice. The device may keep state of it for a while, to repair lost
/// acknowledgments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpliceClosed {
    /// The splice.
    pub id: SpliceId,
    /// Payload bytes from each side that the other side acknowledged.
    pub bytes: [u64; 2],
    /// Packets relayed from each side.
    pub packets: [u64; 2],
    /// Reason for the end of the splice.
    pub end: SpliceEnd,
}

/// Reason for the end of a splice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpliceEnd {
    /// Both directions were closed and acknowledged.
    Closed,
    /// The peer of that side (0 or 1) reset the connection.
    Reset(u8),
    /// No packet arrived for the idle time-out; both connections were reset.
    IdleTimeout,
    /// The host ended the splice; both connections were reset.
    Unspliced,
}

/// Limits of splicing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpliceLimits {
    /// Pairs at one time, over all queues.
    pub pairs_max: u32,
}
