//! Order in which the streams of a connection may write, by the priorities of RFC 9218.
//!
//! A lower urgency value always goes first. Within an urgency, incremental streams take turns of
//! [`TURN_BYTES`] each; non-incremental streams are sent in the order of their numbers. All of the
//! latter together take one turn, so that neither kind has to wait until the other has finished
//! (RFC 9218 section 10 leaves this open).
//!
//! A [`StreamSchedule`] holds only streams that could write now. [`crate::connection`] removes the
//! next stream, writes for a turn, and puts it back.

use std::collections::{BTreeSet, VecDeque};

use quinn_proto::StreamId;

/// Bytes that a stream writes per turn: some ten packets.
pub(crate) const TURN_BYTES: u64 = 16 * 1024;

/// Urgencies of RFC 9218, and one above them.
const RANKS: usize = 9;

/// Priority of a stream (RFC 9218).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// Urgency plus one; 0 is sent before any response.
    rank: u8,
    incremental: bool,
}

impl Priority {
    /// Priority of control streams, which go before all responses.
    pub const CONTROL: Self = Self { rank: 0, incremental: true };

    /// Creates a priority. Urgencies above 7, the least urgent, count as 7.
    #[must_use]
    pub const fn new(urgency: u8, incremental: bool) -> Self {
        let urgency = if urgency > 7 { 7 } else { urgency };
        Self { rank: urgency + 1, incremental }
    }

    /// Returns quinn-proto's value: larger is more urgent, and 0 is the default.
    pub(crate) fn for_quinn(self) -> i32 {
        i32::from(Self::default().rank) - i32::from(self.rank)
    }
}

/// Default priority of a stream: urgency 3, the default of RFC 9218, and incremental, unlike RFC
/// 9218, so that a client without support for priorities shares its connection fairly.
impl Default for Priority {
    fn default() -> Self {
        Self::new(3, true)
    }
}

/// An entry of a rank's round robin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoundRobinEntry {
    Stream(StreamId),
    /// The stream with the lowest number in [`UrgencyQueue::sequential`].
    Sequential,
}

/// Streams of one urgency.
#[derive(Debug, Default)]
struct UrgencyQueue {
    entries: VecDeque<RoundRobinEntry>,
    /// Non-incremental streams. [`RoundRobinEntry::Sequential`] is in `entries` if and only if
    /// there are any.
    sequential: BTreeSet<StreamId>,
}

/// Streams that have data to write.
#[derive(Debug, Default)]
pub(crate) struct StreamSchedule {
    ranks: [UrgencyQueue; RANKS],
}

impl StreamSchedule {
    /// Removes and returns the stream whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<StreamId> {
        let rank = self.ranks.iter_mut().find(|rank| !rank.entries.is_empty())?;
        match rank.entries.pop_front()? {
            RoundRobinEntry::Stream(stream) => Some(stream),
            RoundRobinEntry::Sequential => {
                let stream = rank.sequential.pop_first();
                if !rank.sequential.is_empty() {
                    rank.entries.push_back(RoundRobinEntry::Sequential);
                }
                stream
            }
        }
    }

    /// Adds a stream behind the others of its urgency.
    pub(crate) fn push(&mut self, stream: StreamId, priority: Priority) {
        let rank = &mut self.ranks[usize::from(priority.rank).min(RANKS - 1)];
        if priority.incremental {
            rank.entries.push_back(RoundRobinEntry::Stream(stream));
            return;
        }
        if rank.sequential.is_empty() {
            rank.entries.push_back(RoundRobinEntry::Sequential);
        }
        rank.sequential.insert(stream);
    }

    /// Puts a stream that was just removed back in front of the others of its urgency.
    pub(crate) fn push_front(&mut self, stream: StreamId, priority: Priority) {
        let rank = &mut self.ranks[usize::from(priority.rank).min(RANKS - 1)];
        if priority.incremental {
            rank.entries.push_front(RoundRobinEntry::Stream(stream));
            return;
        }
        rank.entries.retain(|turn| *turn != RoundRobinEntry::Sequential);
        rank.sequential.insert(stream);
        rank.entries.push_front(RoundRobinEntry::Sequential);
    }

    /// Removes a stream.
    pub(crate) fn remove(&mut self, stream: StreamId, priority: Priority) {
        let rank = &mut self.ranks[usize::from(priority.rank).min(RANKS - 1)];
        rank.sequential.remove(&stream);
        let none = rank.sequential.is_empty();
        rank.entries.retain(|turn| match *turn {
            RoundRobinEntry::Stream(other) => other != stream,
            RoundRobinEntry::Sequential => !none,
        });
    }

    /// Returns whether no stream waits for a turn.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranks.iter().all(|rank| rank.entries.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quinn_proto::{Dir, Side};

    fn stream(index: u64) -> StreamId {
        StreamId::new(Side::Client, Dir::Bi, index)
    }

    /// Returns the next turns; each stream goes behind the others afterwards.
    fn turns(
        schedule: &mut StreamSchedule,
        priorities: &[(u64, Priority)],
        count: usize,
    ) -> Vec<u64> {
        let turn = |_| {
            let stream = schedule.pop().expect("there are streams");
            let priority = priorities.iter().find(|(index, _)| *index == stream.index());
            schedule.push(stream, priority.expect("it is one of them").1);
            stream.index()
        };
        (0..count).map(turn).collect()
    }

    fn schedule(priorities: &[(u64, Priority)]) -> StreamSchedule {
        let mut schedule = StreamSchedule::default();
        priorities.iter().for_each(|&(index, priority)| schedule.push(stream(index), priority));
        schedule
    }

    #[test]
    fn equal_streams_take_turns() {
        let all = [0, 1, 2].map(|index| (index, Priority::default()));
        assert_eq!(turns(&mut schedule(&all), &all, 7), [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn urgency_goes_first() {
        let all = [
            (0, Priority::new(3, true)),
            (1, Priority::new(0, true)),
            (2, Priority::CONTROL),
            (3, Priority::new(7, true)),
        ];
        let mut schedule = schedule(&all);
        for index in [2, 1, 0, 3] {
            assert_eq!(turns(&mut schedule, &all, 3), [index; 3]);
            schedule.remove(stream(index), all[usize::try_from(index).unwrap()].1);
        }
        assert!(schedule.is_empty());
        assert_eq!(schedule.pop(), None);
    }

    #[test]
    fn sequential_streams_are_one_of_those_that_take_turns() {
        let (one_by_one, shared) = (Priority::new(3, false), Priority::new(3, true));
        let all = [(5, one_by_one), (1, shared), (4, one_by_one), (2, shared)];
        let mut schedule = schedule(&all);
        assert_eq!(turns(&mut schedule, &all, 6), [4, 1, 2, 4, 1, 2]);
        schedule.remove(stream(4), one_by_one);
        assert_eq!(turns(&mut schedule, &all, 4), [5, 1, 2, 5]);
        schedule.remove(stream(5), one_by_one);
        assert_eq!(turns(&mut schedule, &all, 3), [1, 2, 1]);
    }

    #[test]
    fn interrupted_turn_continues() {
        let all = [
            (0, Priority::new(3, false)),
            (1, Priority::new(3, true)),
            (2, Priority::new(3, false)),
        ];
        let mut schedule = schedule(&all);
        for expected in [0, 1, 0] {
            let first = schedule.pop().expect("there are streams");
            assert_eq!(first, stream(expected));
            schedule.push_front(first, all[usize::try_from(expected).unwrap()].1);
            assert_eq!(schedule.pop(), Some(first), "it has its turn still");
            schedule.push(first, all[usize::try_from(expected).unwrap()].1);
        }
    }
}
