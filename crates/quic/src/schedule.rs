//! Whose turn it is: the order in which streams of a connection get room for what they send.
//!
//! By the priorities of RFC 9218. Data of a lower urgency value goes first, always. Within an
//! urgency, incremental streams take turns of [`TURN_BYTES`] each, and those that are not
//! incremental are sent one after the other, in the order of their numbers; all of these together
//! take one turn, so that neither kind waits for the end of the other (section 10 leaves it open).
//!
//! A [`Schedule`] knows only streams that could send something now. [`crate::connection`] takes out
//! the next one, writes for a turn, and puts it back.

use std::collections::{BTreeSet, VecDeque};

use quinn_proto::StreamId;

/// Bytes that a stream writes before the next one gets its turn: some ten packets.
pub(crate) const TURN_BYTES: u64 = 16 * 1024;

/// Urgencies of RFC 9218, and one above them.
const RANKS: usize = 9;

/// Priority of what a stream sends (RFC 9218).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// Zero is for what is sent before any response.
    rank: u8,
    incremental: bool,
}

impl Priority {
    /// Priority of what has to be sent before all responses: control streams.
    pub const CONTROL: Self = Self { rank: 0, incremental: true };

    /// A priority of these parameters; urgencies above 7, the least urgent, count as 7.
    #[must_use]
    pub const fn new(urgency: u8, incremental: bool) -> Self {
        let urgency = if urgency > 7 { 7 } else { urgency };
        Self { rank: urgency + 1, incremental }
    }

    /// The value for quinn-proto: larger is more urgent, and zero is its default.
    pub(crate) fn for_quinn(self) -> i32 {
        i32::from(Self::default().rank) - i32::from(self.rank)
    }
}

/// The priority of streams for which nothing is said: urgency 3, the default of RFC 9218, and
/// incremental, which is not: a client that has no priorities shares its connection fairly.
impl Default for Priority {
    fn default() -> Self {
        Self::new(3, true)
    }
}

/// A turn within a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Stream(StreamId),
    /// The first of [`Rank::sequential`].
    Sequential,
}

/// Streams of one urgency.
#[derive(Debug, Default)]
struct Rank {
    turns: VecDeque<Turn>,
    /// Those that are not incremental; [`Turn::Sequential`] is among the turns if there are any.
    sequential: BTreeSet<StreamId>,
}

/// Streams that have something to write.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    ranks: [Rank; RANKS],
}

impl Schedule {
    /// Takes out the stream whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<StreamId> {
        let rank = self.ranks.iter_mut().find(|rank| !rank.turns.is_empty())?;
        match rank.turns.pop_front()? {
            Turn::Stream(stream) => Some(stream),
            Turn::Sequential => {
                let stream = rank.sequential.pop_first();
                if !rank.sequential.is_empty() {
                    rank.turns.push_back(Turn::Sequential);
                }
                stream
            }
        }
    }

    /// Adds a stream behind the others of its urgency.
    pub(crate) fn push(&mut self, stream: StreamId, priority: Priority) {
        let rank = &mut self.ranks[usize::from(priority.rank).min(RANKS - 1)];
        if priority.incremental {
            rank.turns.push_back(Turn::Stream(stream));
            return;
        }
        if rank.sequential.is_empty() {
            rank.turns.push_back(Turn::Sequential);
        }
        rank.sequential.insert(stream);
    }

    /// Gives a stream that was just taken out its turn back.
    pub(crate) fn push_first(&mut self, stream: StreamId, priority: Priority) {
        let rank = &mut self.ranks[usize::from(priority.rank).min(RANKS - 1)];
        if priority.incremental {
            rank.turns.push_front(Turn::Stream(stream));
            return;
        }
        rank.turns.retain(|turn| *turn != Turn::Sequential);
        rank.sequential.insert(stream);
        rank.turns.push_front(Turn::Sequential);
    }

    /// Removes a stream, wherever it stands.
    pub(crate) fn remove(&mut self, stream: StreamId, priority: Priority) {
        let rank = &mut self.ranks[usize::from(priority.rank).min(RANKS - 1)];
        rank.sequential.remove(&stream);
        let none = rank.sequential.is_empty();
        rank.turns.retain(|turn| match *turn {
            Turn::Stream(other) => other != stream,
            Turn::Sequential => !none,
        });
    }

    /// Returns whether no stream waits for a turn.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranks.iter().all(|rank| rank.turns.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quinn_proto::{Dir, Side};

    fn stream(index: u64) -> StreamId {
        StreamId::new(Side::Client, Dir::Bi, index)
    }

    /// The next turns, each stream behind the others afterwards.
    fn turns(schedule: &mut Schedule, priorities: &[(u64, Priority)], count: usize) -> Vec<u64> {
        let turn = |_| {
            let stream = schedule.pop().expect("there are streams");
            let priority = priorities.iter().find(|(index, _)| *index == stream.index());
            schedule.push(stream, priority.expect("it is one of them").1);
            stream.index()
        };
        (0..count).map(turn).collect()
    }

    fn schedule(priorities: &[(u64, Priority)]) -> Schedule {
        let mut schedule = Schedule::default();
        priorities.iter().for_each(|&(index, priority)| schedule.push(stream(index), priority));
        schedule
    }

    #[test]
    fn equals_take_turns() {
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
    fn a_turn_that_was_cut_off_goes_on() {
        let all = [
            (0, Priority::new(3, false)),
            (1, Priority::new(3, true)),
            (2, Priority::new(3, false)),
        ];
        let mut schedule = schedule(&all);
        for expected in [0, 1, 0] {
            let first = schedule.pop().expect("there are streams");
            assert_eq!(first, stream(expected));
            schedule.push_first(first, all[usize::try_from(expected).unwrap()].1);
            assert_eq!(schedule.pop(), Some(first), "it has its turn still");
            schedule.push(first, all[usize::try_from(expected).unwrap()].1);
        }
    }
}
