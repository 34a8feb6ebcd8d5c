//! The inspected ranges of a stream, or of the data of several commands, that an inspection context
//! remembers.
//!
//! A range that continues one of them is inspected from the state at its end; bytes within one were
//! inspected before and are skipped. Every other range begins anew, with the state of a stream's
//! first byte. The number of ranges is bounded; the one that grew least recently is forgotten.
//!
//! Positions count bytes, and only their differences matter.

use core::ops::Range;

use patterns::PatternState;
use smallvec::SmallVec;

/// Ranges that are remembered. They are the stream, and the data around a few holes in it, or the
/// data of a few commands whose PDUs alternate.
const RUNS_MAX: usize = 8;

/// An inspected range.
#[derive(Clone, Copy, Debug)]
struct InspectedRun {
    start: u64,
    end: u64,
    /// State at its end.
    state: PatternState,
}

/// The inspected ranges, the one that grew last at the front. They do not touch.
#[derive(Debug, Default)]
pub(super) struct InspectedRuns {
    runs: SmallVec<[InspectedRun; RUNS_MAX]>,
}

/// Bytes to inspect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UninspectedPart {
    /// Position of the first of them.
    pub(super) at: u64,
    /// Number of them, at least one.
    pub(super) len: u64,
    /// State before them; `None` to begin anew.
    pub(super) state: Option<PatternState>,
}

impl InspectedRuns {
    /// Returns the first part of `len` bytes at `at` that was not inspected; `None` if there is
    /// none.
    pub(super) fn uninspected(&self, at: u64, len: u64) -> Option<UninspectedPart> {
        let end = at.saturating_add(len);
        let before = self.runs.iter().find(|run| run.start <= at && at <= run.end);
        let at = before.map_or(at, |run| run.end);
        let next = self.runs.iter().map(|run| run.start).filter(|&start| start > at).min();
        let len = next.map_or(end, |next| next.min(end)).checked_sub(at)?;
        (len > 0).then(|| UninspectedPart { at, len, state: before.map(|run| run.state) })
    }

    /// Returns whether none of `len` bytes at `at` was inspected.
    pub(super) fn is_uninspected(&self, at: u64, len: u64) -> bool {
        let end = at.saturating_add(len);
        self.runs.iter().all(|run| run.end <= at || end <= run.start)
    }

    /// Forgets the ranges that begin at these positions.
    pub(super) fn forget(&mut self, positions: Range<u64>) {
        self.runs.retain(|run| !positions.contains(&run.start));
    }

    /// Notes that a part was inspected, with `state` after it.
    pub(super) fn note(&mut self, part: UninspectedPart, state: PatternState) {
        let mut run = InspectedRun { start: part.at, end: part.at.saturating_add(part.len), state };
        self.runs.retain(|known| {
            if known.end == run.start {
                run.start = known.start;
            } else if known.start == run.end {
                (run.end, run.state) = (known.end, known.state);
            } else {
                return true;
            }
            false
        });
        self.runs.truncate(RUNS_MAX - 1);
        self.runs.insert(0, run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;
    use patterns::PatternSet;
    use proptest::prelude::*;

    fn part(at: u64, len: u64, state: Option<PatternState>) -> UninspectedPart {
        UninspectedPart { at, len, state }
    }

    #[test]
    fn ranges_continue_skip_and_join() {
        let set = PatternSet::new(&["abc"]).unwrap();
        let state = |text: &[u8]| set.scan(set.start(), text, &mut |_, _| ());
        let (a, b) = (state(b"a"), state(b"ab"));
        let mut runs = InspectedRuns::default();
        assert_eq!(runs.uninspected(100, 50), Some(part(100, 50, None)));
        runs.note(part(100, 50, None), a);
        assert_eq!(runs.uninspected(100, 50), None, "a retransmission");
        assert_eq!(runs.uninspected(140, 20), Some(part(150, 10, Some(a))));
        assert_eq!(runs.uninspected(200, 50), Some(part(200, 50, None)), "behind a hole");
        runs.note(part(200, 50, None), b);
        assert_eq!(runs.uninspected(150, 80), Some(part(150, 50, Some(a))), "the hole only");
        runs.note(part(150, 50, Some(a)), a);
        assert_eq!(runs.uninspected(250, 1), Some(part(250, 1, Some(b))));
        assert_eq!(runs.runs.len(), 1);
    }

    #[test]
    fn the_ranges_are_bounded() {
        let set = PatternSet::new(&["abc"]).unwrap();
        let mut runs = InspectedRuns::default();
        for at in 0..100 {
            runs.note(part(at * 10, 5, None), set.start());
            assert!(runs.runs.len() <= RUNS_MAX);
        }
        assert_eq!(runs.uninspected(990, 5), None);
        assert_eq!(runs.uninspected(0, 5), Some(part(0, 5, None)), "forgotten");
        runs.note(part(u64::MAX - 1, u64::MAX, None), set.start());
        assert_eq!(runs.uninspected(u64::MAX, 9), None);
    }

    proptest! {
        /// In any order, no byte of a remembered range is inspected twice, and a state is used only
        /// at the end of the bytes that led to it.
        #[test]
        fn bytes_are_inspected_once(
            pieces in proptest::collection::vec((0_u64..60, 1_u64..20), 1..5),
        ) {
            let set = PatternSet::new(&["abcabd", "cab"]).unwrap();
            let text: Vec<u8> = b"abc".iter().copied().cycle().take(80).collect();
            let (mut runs, mut inspected) = (InspectedRuns::default(), vec![false; 80]);
            for (at, len) in pieces {
                let Some(part) = runs.uninspected(at, len) else { continue };
                prop_assert!(part.at >= at && part.at + part.len <= at + len);
                let at = |position: u64| usize::try_from(position).unwrap();
                let range = at(part.at)..at(part.at + part.len);
                prop_assert!(inspected[range.clone()].iter().all(|seen| !seen));
                prop_assert!(part.state.is_none() || part.at > 0 && inspected[range.start - 1]);
                inspected[range.clone()].fill(true);
                let before = part.state.unwrap_or_else(|| set.start());
                runs.note(part, set.scan(before, &text[range], &mut |_, _| ()));
            }
        }
    }
}
