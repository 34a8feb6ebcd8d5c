//! State that a connection needs only while something is unacknowledged.
//!
//! [`UnackedBytes`] are parts, and the state that only their transmission needs. They are most of a
//! connection's memory, and are dropped as soon as the peer has acknowledged all of them.
//! [`LossRepair`] is needed until the FIN is acknowledged, too. Called by [`super::flow`].

use abi::l5o::L5oId;
use abi::{FileExtent, FlowId, TransmitParts};
use base::{Duration, Instant, SeqNum};
use smallvec::SmallVec;
use structures::slab::Slab;
use tcp_rules::black_hole::BLACK_HOLE_TIMEOUTS;

use super::segments::kept_extent;

/// Maximum RTO. RFC 6298 section 2 requires at least 60 seconds; this is Linux's TCP_RTO_MAX.
const RTO_MAX: Duration = Duration::from_secs(120);
/// Minimum RTO: one tick of the timer wheel.
const RTO_MIN: Duration = Duration::from_millis(1);
/// Duplicate acknowledgments before a fast retransmit: RFC 5681 section 3.2.
const DUP_ACKS: u8 = 3;

/// State of retransmission.
#[derive(Clone, Copy, Debug)]
pub(super) struct LossRepair {
    /// RTO in milliseconds, before it is backed off. At most 65 seconds.
    rto_ms: u16,
    /// The window that the peer last offered, as an unscaled header field.
    pub(super) peer_window: u16,
    /// Time-outs since the last progress.
    pub(super) tries: u8,
    dup_acks: u8,
}

impl LossRepair {
    /// Returns the state of a connection that has just been handed over.
    pub(super) fn new(rto: Duration, peer_window: u16) -> Self {
        let rto_ms = rto.max(RTO_MIN).as_nanos().div_ceil(1_000_000);
        let rto_ms = u16::try_from(rto_ms).unwrap_or(u16::MAX);
        Self { rto_ms, peer_window, tries: 0, dup_acks: 0 }
    }

    /// Returns the RTO.
    pub(super) const fn rto(&self) -> Duration {
        Duration::from_millis(self.rto_ms as u64)
    }

    /// Takes note of an acknowledgment of new bytes.
    pub(super) const fn on_progress(&mut self) {
        (self.tries, self.dup_acks) = (0, 0);
    }

    /// Takes note of a duplicate acknowledgment. Returns whether to retransmit.
    pub(super) const fn on_dup_ack(&mut self) -> bool {
        self.dup_acks = self.dup_acks.saturating_add(1);
        self.dup_acks == DUP_ACKS
    }

    /// Takes note of a time-out. Returns the time until the next one: RFC 6298 (5.5).
    pub(super) fn back_off(&mut self) -> Duration {
        self.tries = self.tries.saturating_add(1);
        self.dup_acks = 0;
        let factor = 1_u64.checked_shl(self.tries.into()).unwrap_or(u64::MAX);
        let backed_off = Duration::from_nanos(self.rto().as_nanos().saturating_mul(factor));
        backed_off.min(RTO_MAX)
    }
}

/// Unacknowledged bytes of a connection.
#[derive(Debug)]
pub(super) struct UnackedBytes {
    /// SND.UNA.
    pub(super) una: SeqNum,
    /// Sequence number of the first byte of `parts`.
    pub(super) parts_seq: SeqNum,
    /// Right edge of the peer's window.
    pub(super) edge: SeqNum,
    /// The parts that are not completely acknowledged; at least one.
    pub(super) parts: TransmitParts,
    /// Contexts to destroy together with the parts.
    pub(super) contexts: SmallVec<[L5oId; 2]>,
    /// The connection's number for transmits that must not overtake each other.
    pub(super) flow: FlowId,
    /// Payload bytes of a full segment.
    pub(super) mss: u16,
    /// The same after [`BLACK_HOLE_TIMEOUTS`] consecutive time-outs.
    pub(super) mss_after_timeouts: u16,
    /// Time of the first transmit, if it may wait for a disk. It carries the acknowledgment of all
    /// that was received. `None` once that is sent otherwise, or the peer has answered.
    pub(super) ack_waits_since: Option<Instant>,
    pub(super) repair: LossRepair,
}

impl UnackedBytes {
    /// Removes the parts before `una` and passes the file extents in them to `acked`.
    pub(super) fn advance(&mut self, una: SeqNum, mut acked: impl FnMut(FileExtent)) {
        self.una = una;
        while let Some(part) = self.parts.first() {
            let end = self.parts_seq + part.len();
            if end.gt(una) {
                break;
            }
            self.parts_seq = end;
            kept_extent(part).map(&mut acked);
            self.parts.remove(0);
        }
    }

    /// Lowers the segment size after repeated time-outs of segments that are larger: the path may
    /// drop them silently (RFC 4821 section 7.7). Returns whether it did. Probes of a closed window
    /// show nothing about the path.
    pub(super) fn detect_black_hole(&mut self) -> bool {
        let small = self.mss_after_timeouts;
        let bytes: u32 = self.parts.iter().map(abi::TransmitPart::len).sum();
        let first = self.parts.first().map_or(0, abi::TransmitPart::len);
        let fits_window = (self.parts_seq + first).le(self.edge);
        let lowers = self.repair.tries >= BLACK_HOLE_TIMEOUTS
            && self.mss > small
            && bytes > u32::from(small)
            && fits_window;
        if lowers {
            self.mss = self.mss_after_timeouts;
        }
        lowers
    }

    /// Returns the parts from index `skip` on, which begin at `seq`, and the number after them.
    /// Beyond the peer's window there is only the first part, which then serves as a window probe
    /// (RFC 9293 section 3.8.6.1).
    pub(super) fn sendable(&self, skip: usize, seq: SeqNum) -> (TransmitParts, SeqNum) {
        let (mut parts, mut at) = (TransmitParts::new(), seq);
        for part in self.parts.iter().skip(skip) {
            let end = at + part.len();
            if !parts.is_empty() && end.gt(self.edge) {
                break;
            }
            parts.push(part.clone());
            at = end;
        }
        (parts, at)
    }
}

/// Number of the unacknowledged bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnackedId(u32);

/// The unacknowledged bytes of all connections.
#[derive(Debug, Default)]
pub(super) struct UnackedTable(Slab<UnackedBytes>);

impl UnackedTable {
    /// Adds the bytes of a connection.
    pub(super) fn insert(&mut self, bytes: UnackedBytes) -> UnackedId {
        UnackedId(self.0.insert(bytes).index())
    }

    /// Returns the bytes of a connection.
    pub(super) fn get(&self, id: UnackedId) -> Option<&UnackedBytes> {
        self.0.get(self.0.key_at(id.0)?)
    }

    /// Returns the bytes of a connection for changes.
    pub(super) fn get_mut(&mut self, id: UnackedId) -> Option<&mut UnackedBytes> {
        self.0.get_mut(self.0.key_at(id.0)?)
    }

    /// Removes and returns the bytes of a connection.
    pub(super) fn remove(&mut self, id: UnackedId) -> Option<UnackedBytes> {
        self.0.remove(self.0.key_at(id.0)?)
    }

    /// Returns the number of connections with unacknowledged bytes.
    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Removes all bytes.
    pub(super) fn clear(&mut self) {
        self.0 = Slab::new();
    }
}
