//! Recognition of sequential reads: the ends of recently sent file ranges.
//!
//! Used by `jobs`. A range that begins where another one ended continues its *run*. As with the
//! read-ahead of Linux, the bytes that are read beyond the needed pages grow with the run: they are
//! never more than the bytes of the run. Random reads of any size read only the pages that they
//! need. The table is direct-mapped and shared by all files; a run whose end was overwritten begins
//! again.

use alloc::boxed::Box;
use alloc::vec;
use base::mix;

/// Slots of the table, for as many concurrent runs.
const SLOTS: usize = 4096;

/// End of a run.
#[derive(Clone, Copy, Debug, Default)]
struct RunEnd {
    /// Hash of version and end; 0 if free.
    hash: u64,
    /// Bytes of the run up to here.
    bytes: u64,
}

/// Ends of the most recent runs.
#[derive(Debug)]
pub(super) struct StreamEnds {
    /// Indexed by the lowest bits of the hash.
    slots: Box<[RunEnd]>,
    seed: u64,
}

impl StreamEnds {
    pub(super) fn new(seed: u64) -> Self {
        Self { slots: vec![RunEnd::default(); SLOTS].into_boxed_slice(), seed }
    }

    /// Records a run of `bytes` that ends at `end` of the file of `version`.
    pub(super) fn note(&mut self, version: u64, end: u64, bytes: u64) {
        let hash = mix(self.seed, version, end);
        self.slots[slot(hash)] = RunEnd { hash, bytes };
    }

    /// Returns the bytes of the run that a range at `start` continues; 0 if there is none.
    pub(super) fn run_at(&self, version: u64, start: u64) -> u64 {
        let hash = mix(self.seed, version, start);
        let end = self.slots[slot(hash)];
        if end.hash == hash { end.bytes } else { 0 }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lowest bits")]
const fn slot(hash: u64) -> usize {
    hash as usize % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_continues_the_one_that_ended_there() {
        let mut ends = StreamEnds::new(1);
        assert_eq!(ends.run_at(7, 4096), 0);
        ends.note(7, 4096, 1000);
        assert_eq!((ends.run_at(7, 4096), ends.run_at(7, 4096)), (1000, 1000), "for any readers");
        assert_eq!((ends.run_at(8, 4096), ends.run_at(7, 8192)), (0, 0));
        for end in 0..1_000_000 {
            ends.note(9, end, 1);
        }
        assert_eq!(ends.run_at(7, 4096), 0, "overwritten");
    }
}
