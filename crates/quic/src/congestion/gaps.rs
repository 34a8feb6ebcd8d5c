//! Packet numbers that the peer has not acknowledged although it has acknowledged later ones, and
//! which of them were declared lost.
//!
//! quinn-proto forgets a packet when it declares it lost, and does not report a late
//! acknowledgment, so the numbers are kept here for a while. Its loss detection (RFC 9002 section
//! 6.1) is monotonic in the packet number: if a threshold holds for a number, it holds for every
//! lower one. Therefore the lost packets are the gaps below a single number.

use std::collections::VecDeque;
use std::ops::Range;

/// Maximum gaps kept; older ones belong to losses that no acknowledgment will undo.
const GAPS_MAX: usize = 256;
/// Maximum skipped numbers kept until the peer has acknowledged later ones. quinn-proto skips
/// numbers ever more rarely (RFC 9000 section 21.4).
const SKIPPED_MAX: usize = 8;

/// Gaps in the packet numbers that a peer has acknowledged.
#[derive(Clone, Debug, Default)]
pub(crate) struct PacketNumberGaps {
    /// One above the largest acknowledged number; zero before the first acknowledgment.
    next: u64,
    /// Missing numbers below `next`, ascending.
    missing: VecDeque<Range<u64>>,
    /// Missing numbers below this one were declared lost.
    lost_below: u64,
    /// Missing numbers below this one are forgotten.
    forgotten_below: u64,
    /// Numbers that were never sent.
    skipped: VecDeque<u64>,
}

impl PacketNumberGaps {
    /// Records a number that is never sent.
    pub(crate) fn on_skipped(&mut self, number: u64) {
        if self.skipped.len() == SKIPPED_MAX {
            self.skipped.pop_front();
        }
        self.skipped.push_back(number);
    }

    /// Processes a range of an ACK frame, in ascending order within a frame. Returns whether one of
    /// its numbers had been declared lost.
    pub(crate) fn on_acked(&mut self, acked: Range<u64>) -> bool {
        let was_lost = self.fill(&acked);
        if self.next == 0 {
            // Numbers before the first acknowledged range are not tracked.
            (self.lost_below, self.forgotten_below) = (acked.start, acked.start);
            self.next = acked.start;
        }
        if acked.end > self.next {
            if acked.start > self.next {
                self.add_missing(self.next..acked.start);
            }
            self.next = acked.end;
        }
        was_lost
    }

    /// Removes numbers from the gaps. Returns whether one of them had been declared lost.
    fn fill(&mut self, acked: &Range<u64>) -> bool {
        let mut was_lost = false;
        let mut at = self.missing.partition_point(|gap| gap.end <= acked.start);
        while let Some(gap) = self.missing.get(at).filter(|gap| gap.start < acked.end).cloned() {
            let filled = gap.start.max(acked.start)..gap.end.min(acked.end);
            was_lost |= filled.start < self.lost_below;
            self.missing.remove(at);
            for left in [filled.end..gap.end, gap.start..filled.start] {
                if !left.is_empty() {
                    self.missing.insert(at, left);
                }
            }
            at += usize::from(gap.start < filled.start);
        }
        was_lost
    }

    fn add_missing(&mut self, gap: Range<u64>) {
        let mut start = gap.start;
        while let Some(number) = self.skipped.front().copied().filter(|n| *n < gap.end) {
            self.skipped.pop_front();
            if number >= start {
                self.push(start..number);
                start = number + 1;
            }
        }
        self.push(start..gap.end);
    }

    fn push(&mut self, gap: Range<u64>) {
        if gap.is_empty() {
            return;
        }
        if self.missing.len() == GAPS_MAX {
            self.forgotten_below = self.missing.pop_front().map_or(0, |oldest| oldest.end);
        }
        self.missing.push_back(gap);
    }

    /// Marks as lost the `count` lowest missing numbers that are not lost yet, and all missing ones
    /// that are `threshold` or more below the largest acknowledged number. Returns a range with
    /// these numbers.
    pub(crate) fn on_lost(&mut self, count: u64, threshold: u64) -> Range<u64> {
        let (mut left, start) = (count, self.lost_below);
        // A lost MTU probe is missing but not in `count`.
        let certain = self.next.saturating_sub(threshold);
        let mut end = start;
        for gap in &self.missing {
            let from = gap.start.max(start);
            let to = (from + left).max(certain).min(gap.end);
            if from < to {
                left = left.saturating_sub(to - from);
                end = to;
            }
        }
        self.lost_below = end;
        start..end
    }

    /// Returns whether all of these numbers were acknowledged after all.
    pub(crate) fn are_acked(&self, numbers: &Range<u64>) -> bool {
        let at = self.missing.partition_point(|gap| gap.end <= numbers.start);
        numbers.start >= self.forgotten_below
            && self.missing.get(at).is_none_or(|gap| gap.start >= numbers.end)
    }

    /// Forgets missing numbers below `below`, which were really lost.
    pub(crate) fn forget(&mut self, below: u64) {
        while self.missing.front().is_some_and(|gap| gap.end <= below) {
            self.missing.pop_front();
        }
        if let Some(gap) = self.missing.front_mut() {
            gap.start = gap.start.max(below);
        }
        self.forgotten_below = self.forgotten_below.max(below);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn late_acknowledgments_are_reported_once() {
        let mut gaps = PacketNumberGaps::default();
        assert!(!gaps.on_acked(0..10));
        assert!(!gaps.on_acked(11..14));
        assert_eq!(gaps.on_lost(1, 3), 0..11);
        assert!(!gaps.are_acked(&(0..11)));
        assert!(gaps.on_acked(5..15));
        assert!(gaps.are_acked(&(0..11)));
        assert!(!gaps.on_acked(5..15), "told once");
    }

    #[test]
    fn missing_but_not_lost_is_late() {
        let mut gaps = PacketNumberGaps::default();
        gaps.on_acked(0..10);
        gaps.on_acked(12..13);
        assert!(!gaps.on_acked(10..12));
        // The lower of two gaps is the lost one.
        gaps.on_acked(14..15);
        gaps.on_acked(16..17);
        assert_eq!(gaps.on_lost(1, 3), 0..14);
        assert!(!gaps.on_acked(15..16));
        assert!(gaps.on_acked(13..14));
    }

    #[test]
    fn skipped_numbers_are_never_missing() {
        let mut gaps = PacketNumberGaps::default();
        gaps.on_acked(0..10);
        gaps.on_skipped(10);
        gaps.on_acked(12..16);
        assert_eq!(gaps.on_lost(1, 3), 0..12);
        assert!(gaps.on_acked(11..12));
        assert!(gaps.are_acked(&(0..12)));
    }

    #[test]
    fn forgotten_numbers_stay_lost() {
        let mut gaps = PacketNumberGaps::default();
        gaps.on_acked(0..10);
        gaps.on_acked(20..30);
        assert_eq!(gaps.on_lost(10, 3), 0..20);
        gaps.forget(20);
        assert!(!gaps.on_acked(10..20));
        assert!(!gaps.are_acked(&(0..20)));
        // The number of gaps is bounded.
        for number in 0..10_000 {
            gaps.on_acked(40 + 2 * number..41 + 2 * number);
        }
        assert_eq!(gaps.missing.len(), GAPS_MAX);
    }

    proptest! {
        /// Compares with a set of numbers.
        #[test]
        fn as_a_set(
            acks in proptest::collection::vec((0_u64..100, 1_u64..20, any::<bool>()), 1..50),
        ) {
            let mut gaps = PacketNumberGaps::default();
            let (mut acked, mut first) = (BTreeSet::new(), None);
            for (start, len, lose) in acks {
                let range = start..start + len;
                first.get_or_insert(range.start);
                let lost_before = gaps.lost_below;
                let known = first.unwrap_or(0);
                let late = range.clone().any(|n| {
                    n >= known && n < lost_before && n < gaps.next && !acked.contains(&n)
                });
                prop_assert_eq!(gaps.on_acked(range.clone()), late);
                acked.extend(range);
                if lose {
                    let _ = gaps.on_lost(1, 3);
                }
                let missing: Vec<u64> = gaps.missing.iter().cloned().flatten().collect();
                let expected: Vec<u64> =
                    (known..gaps.next).filter(|n| !acked.contains(n)).collect();
                prop_assert_eq!(missing, expected);
            }
        }
    }
}
