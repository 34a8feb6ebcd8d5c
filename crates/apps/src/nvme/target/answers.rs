//! Answers that a connection was given and whose bytes its peer has not acknowledged.
//!
//! A command is over for its host when it reads the answer; until then the answer is memory here,
//! and where it is a read, a range that nobody may write. Called by `queue`, which takes nothing
//! more of a connection that has too many of them: what its peer sends stays in the window of its
//! TCP. A host that waits for answers never gets there, since the acknowledgment of an answer comes
//! before the command that takes its place.
//!
//! Invariant: marks ascend, so that what is acknowledged is in front.

use std::collections::VecDeque;

use super::locks::LockId;

/// Most bytes of memory that answers are made of before no more commands are taken. The last one
/// may go above that.
const BYTES_MAX: usize = 64 << 10;

/// What was sent for a command.
#[derive(Debug)]
pub(super) struct Answer {
    /// What the peer has to acknowledge up to.
    pub(super) mark: u64,
    /// Bytes of memory of its data.
    pub(super) bytes: usize,
    /// The namespace, in the table of all, and the range of it that the device may read again.
    pub(super) kept: Option<(usize, LockId)>,
}

/// Those of a connection.
#[derive(Debug, Default)]
pub(super) struct Answers {
    queue: VecDeque<Answer>,
    bytes: usize,
    /// Those that keep a range.
    keeping: usize,
}

impl Answers {
    /// Takes one in that was sent after all others.
    pub(super) fn push(&mut self, answer: Answer) {
        self.bytes += answer.bytes;
        self.keeping += usize::from(answer.kept.is_some());
        self.queue.push_back(answer);
    }

    /// Takes the oldest out, if it is acknowledged.
    pub(super) fn pop(&mut self, acknowledged: u64) -> Option<Answer> {
        self.queue.front().filter(|answer| answer.mark <= acknowledged)?;
        let answer = self.queue.pop_front()?;
        self.bytes -= answer.bytes;
        self.keeping -= usize::from(answer.kept.is_some());
        Some(answer)
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether there are as many as a queue has entries, or too large ones.
    pub(super) fn are_too_many(&self, entries: u16) -> bool {
        self.queue.len() >= usize::from(entries) || self.bytes >= BYTES_MAX
    }

    /// Whether a range is kept.
    pub(super) const fn keep(&self) -> bool {
        self.keeping > 0
    }

    /// The ranges that are kept.
    pub(super) fn kept(&self) -> impl Iterator<Item = (usize, LockId)> + '_ {
        self.queue.iter().filter_map(|answer| answer.kept)
    }
}
