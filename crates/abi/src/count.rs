//! Counting the frames of a flow: for hosts that want to know what passes a device, of connections
//! that it has taken over too.
//!
//! The vocabulary of [`crate::Op::CountFlow`] and [`crate::Event::FlowCounted`]. A device counts
//! what it sees and changes nothing; it forgets the flows of a host that ends, and all of them when
//! it is reset.

use base::Instant;

/// Requests about the counts of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CountRequest {
    /// Begin to count.
    Start,
    /// Tell what was counted, and go on.
    Report,
    /// Tell what was counted, and end.
    Stop,
}

/// Counts of a flow in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounts {
    /// Frames received.
    pub received: Traffic,
    /// Frames sent.
    pub sent: Traffic,
}

/// What passed of a flow in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Frames.
    pub frames: u64,
    /// Their bytes, headers included.
    pub bytes: u64,
    /// When the last of them passed; none if none did.
    pub last: Option<Instant>,
}
