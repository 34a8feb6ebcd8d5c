//! Two established connections become one: the device relays between them (AccelTCP section 4.3).
//!
//! *How it begins.* The host has relayed and seen acknowledged all that it received, and since then
//! acknowledges nothing new. With [`Splice`] the device takes both tuples and answers with
//! `Spliced`; frames that come from then on it keeps, a few of each direction. Behind `Spliced` no
//! frame of either connection follows in the event ring, so the host gives back, with
//! `SpliceStart`, those that it had not acknowledged; the device relays these first, then what it
//! kept, then what comes. So nothing is lost and nothing overtakes.

use base::{Duration, SeqNum};
use wire::Tuple;

/// The host's name for a pair of spliced connections; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpliceId(pub u64);

/// Two connections to be spliced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Splice {
    /// The name of it.
    pub id: SpliceId,
    /// Both connections; what one sends the other gets.
    pub sides: [SpliceSide; 2],
    /// Without a packet for that long both are reset.
    pub idle_timeout: Duration,
}

/// One of two connections, as its TCB has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpliceSide {
    /// Its ends.
    pub tuple: Tuple,
    /// Link address of the next hop to the peer.
    pub link: [u8; 6],
    /// Next byte that the peer would be sent; all before were acknowledged.
    pub snd_nxt: SeqNum,
    /// Next byte expected of the peer; all before were acknowledged, and relayed.
    pub rcv_nxt: SeqNum,
    /// Shift of the windows that the peer offers.
    pub peer_scale: u8,
    /// Shift of the windows that we offered the peer.
    pub own_scale: u8,
    /// Window that the peer has offered last, in bytes.
    pub peer_window: u32,
    /// Window that we have offered last, in bytes from `rcv_nxt` on.
    pub own_window: u32,
    /// Payload bytes of the largest segment for the peer.
    pub mss: u16,
    /// Selective acknowledgments were agreed on.
    pub sack: bool,
    /// ECN was agreed on.
    pub ecn: bool,
    /// Timestamps, where they were agreed on.
    pub timestamps: Option<SpliceTimestamps>,
}

/// The clocks of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpliceTimestamps {
    /// What we would send as TSval now.
    pub value: u32,
    /// The peer's latest TSval: what we would send as TSecr.
    pub recent: u32,
}

/// A splice has ended. What it keeps of it for a while, to repair lost acknowledgments, is the
/// device's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpliceClosed {
    /// Which.
    pub id: SpliceId,
    /// Payload bytes that each side sent and the other acknowledged.
    pub bytes: [u64; 2],
    /// Packets relayed that each side sent.
    pub packets: [u64; 2],
    /// How it ended.
    pub end: SpliceEnd,
}

/// How a splice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpliceEnd {
    /// Both directions were closed and acknowledged.
    Closed,
    /// That side's peer (0 or 1) reset it.
    Reset(u8),
    /// Nothing came for too long; both were reset.
    IdleTimeout,
    /// The host ended it; both were reset.
    Unspliced,
}

/// What the engine offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpliceLimits {
    /// Pairs at one time, over all queues.
    pub pairs_max: u32,
}
