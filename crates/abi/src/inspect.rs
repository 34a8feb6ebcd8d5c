//! Inspection of received bytes for patterns (Autonomous NIC Offloads, section 7).
//!
//! A context of the layer-5 engine inspects the bytes of one connection: the stream, the content of
//! the TLS records that the device decrypts, or the data of NVMe/TCP commands. A claim about
//! inspected bytes names the state before and after them. It is therefore independent of everything
//! else: the host uses a claim if its own state at that byte equals the state before, and inspects
//! the bytes itself if not. So neither side has to tell the other where it is in the stream, after
//! a loss or at any other time.

use alloc::sync::Arc;
use core::ops::Range;

use patterns::PatternSet;
use smallvec::SmallVec;

use crate::l5o::L5oId;

/// Matches in a claim. With more, the bytes count as not inspected.
pub const RANGE_MATCHES_MAX: usize = 8;
/// Claims about one frame. With more, the bytes of further records or PDUs count as not inspected.
pub const FRAME_RANGES_MAX: usize = 16;

/// Bytes of a connection that a context inspects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InspectedContent {
    /// The stream.
    Stream,
    /// The content of TLS records. A record that the device does not decrypt is not inspected.
    TlsContent,
    /// The data of the commands of NVMe/TCP, on plain TCP or in TLS records: that of C2HData and
    /// H2CData, and in-capsule data. The data of each command is inspected for itself, from the
    /// state of a first byte on, so no match crosses from one command to another. Only PDUs that
    /// the connection's receive context of NVMe/TCP follows are inspected.
    NvmeData,
}

/// State with which an inspection context is created.
#[derive(Clone, Debug)]
pub struct InspectState {
    /// The patterns to find.
    pub patterns: Arc<PatternSet>,
    /// The bytes to inspect.
    pub content: InspectedContent,
}

/// A match in inspected bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeMatch {
    /// Index of the pattern in the set.
    pub pattern: u16,
    /// Offset in the frame's payload after the last byte of the match.
    pub end: u32,
}

/// Claim that the device inspected consecutive bytes of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectedRange {
    /// The inspected range of the payload.
    pub range: Range<u32>,
    /// State before the range: the number of a [`patterns::PatternState`].
    pub before: u32,
    /// State after the range.
    pub after: u32,
    /// The patterns that end in the range, in the order of their ends.
    pub matches: SmallVec<[RangeMatch; 1]>,
}

/// Claims of an inspection context about a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectClaims {
    /// The context.
    pub context: L5oId,
    /// The claims, in the order of the bytes.
    pub ranges: SmallVec<[InspectedRange; 1]>,
}
