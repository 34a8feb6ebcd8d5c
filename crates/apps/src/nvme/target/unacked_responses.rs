//! Responses that were sent on a connection and are not yet acknowledged by the peer's TCP.
//!
//! A command has ended for the initiator when it reads the response; until then the response
//! occupies memory here, or a locked range of the namespace in case of a read. Called by `queue`,
//! which stops reading from a connection with too many unacknowledged responses, so that further
//! commands stay in the TCP receive window. An initiator that waits for responses never reaches the
//! limit, since it acknowledges a response before it sends the command that takes its place.
//!
//! Invariant: marks ascend, so acknowledged responses are at the front.

use std::collections::VecDeque;

use super::range_locks::LockId;

/// Bytes of response data in memory from which no further commands are taken. The last response may
/// exceed it.
const BYTES_MAX: usize = 64 << 10;

/// A response to a command.
#[derive(Debug)]
pub(super) struct UnackedResponse {
    /// Position in the send stream up to which the peer has to acknowledge.
    pub(super) mark: u64,
    /// Bytes of response data kept in memory.
    pub(super) bytes: usize,
    /// Index of the namespace in `Shared::namespaces`, and the lock on the range that the device
    /// may read again for a retransmission.
    pub(super) locked_range: Option<(usize, LockId)>,
}

/// Unacknowledged responses of one connection, the oldest first.
#[derive(Debug, Default)]
pub(super) struct UnackedResponses {
    queue: VecDeque<UnackedResponse>,
    bytes: usize,
    /// Number of responses that keep a range locked.
    locked_count: usize,
}

impl UnackedResponses {
    /// Adds a response that was sent after all others.
    pub(super) fn push(&mut self, answer: UnackedResponse) {
        self.bytes += answer.bytes;
        self.locked_count += usize::from(answer.locked_range.is_some());
        self.queue.push_back(answer);
    }

    /// Removes the oldest response if it is acknowledged.
    pub(super) fn pop(&mut self, acknowledged: u64) -> Option<UnackedResponse> {
        self.queue.front().filter(|answer| answer.mark <= acknowledged)?;
        let answer = self.queue.pop_front()?;
        self.bytes -= answer.bytes;
        self.locked_count -= usize::from(answer.locked_range.is_some());
        Some(answer)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns whether the limit is reached: as many responses as the queue has `entries`, or
    /// [`BYTES_MAX`].
    pub(super) fn is_limit_reached(&self, entries: u16) -> bool {
        self.queue.len() >= usize::from(entries) || self.bytes >= BYTES_MAX
    }

    /// Returns whether a range is kept locked.
    pub(super) const fn has_locked_ranges(&self) -> bool {
        self.locked_count > 0
    }

    /// Returns the namespaces and locks of all kept ranges.
    pub(super) fn locked_ranges(&self) -> impl Iterator<Item = (usize, LockId)> + '_ {
        self.queue.iter().filter_map(|answer| answer.locked_range)
    }
}
