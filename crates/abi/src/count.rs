//! Frame counts of a flow, for hosts that want to see the traffic of connections, including those
//! that the device has taken over.
//!
//! Types of [`crate::Op::CountFlow`] and [`crate::Event::FlowCounted`]. The device counts the
//! frames that it sees and changes nothing; it stops counting the flows of a host that ends, and
//! all flows when it is reset.

use base::Instant;

/// Operations on the counts of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CountRequest {
    /// Starts counting.
    Start,
    /// Reports the counts and continues.
    Report,
    /// Reports the counts and stops.
    Stop,
}

/// Counts of a flow in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounts {
    /// Frames received.
    pub received: FlowTraffic,
    /// Frames sent.
    pub sent: FlowTraffic,
}

/// Counts of a flow in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowTraffic {
    /// Frames.
    pub frames: u64,
    /// Bytes of the frames, headers included.
    pub bytes: u64,
    /// Time of the last frame; `None` if there was none.
    pub last: Option<Instant>,
}
