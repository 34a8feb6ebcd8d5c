//! A packet on the walk over it: what is opened of it, and what is found out.
//!
//! Made by `rx` for each packet; the walk itself is `walk`'s, and `chain` looks into the packet for
//! headers. It knows no messages but the one that the opened range begins in.

use base::SeqNum;
use core::ops::Range;

use super::counters::L5oCounters;
use super::tools::Tools;
use crate::engine::tls::{FRONT, Keys};

/// A walk over one packet.
pub(super) struct Walk<'a> {
    pub(super) keys: &'a Keys,
    pub(super) seq: SeqNum,
    pub(super) payload: &'a mut [u8],
    pub(super) tools: &'a mut Tools,
    pub(super) counters: &'a mut L5oCounters,
    /// What is opened.
    pub(super) range: Option<Range<usize>>,
    /// The message that the range begins in.
    pub(super) first: First,
    /// Messages found right.
    pub(super) verified: Range<u64>,
    /// Something was opened on an assumption.
    pub(super) ahead: bool,
    /// From here on nothing is known.
    pub(super) lost: Option<usize>,
    /// The last header that was seen, and its number.
    pub(super) header: Option<(SeqNum, u64)>,
    /// A tag was right whose number was guessed.
    pub(super) proven: bool,
    /// A tag was wrong.
    pub(super) failed: bool,
    /// Nothing more is opened in this packet.
    pub(super) closed: bool,
}

/// The message that a range begins in.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct First {
    pub(super) number: u64,
    pub(super) offset: u32,
    pub(super) len: u32,
    pub(super) front: [u8; FRONT],
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        keys: &'a Keys,
        seq: SeqNum,
        payload: &'a mut [u8],
        tools: &'a mut Tools,
        counters: &'a mut L5oCounters,
    ) -> Self {
        tools.undo.clear();
        Self {
            keys,
            seq,
            payload,
            tools,
            counters,
            range: None,
            first: First::default(),
            verified: 0..0,
            ahead: false,
            lost: None,
            header: None,
            proven: false,
            failed: false,
            closed: false,
        }
    }

    /// Where in the payload a sequence number is; negative before it.
    pub(super) fn at(&self, seq: SeqNum) -> i64 {
        i64::from(seq.distance(self.seq))
    }

    #[expect(clippy::cast_possible_truncation, reason = "frames have at most 66 KiB")]
    pub(super) fn seq_at(&self, at: usize) -> SeqNum {
        self.seq + at as u32
    }

    /// What is opened ends here, if anything is.
    pub(super) fn close(&mut self) {
        self.closed |= self.range.is_some();
    }

    /// More is opened, behind what is open or as the first.
    pub(super) fn extend(&mut self, range: Range<usize>, first: First) {
        match &mut self.range {
            Some(open) => open.end = range.end,
            None => (self.range, self.first) = (Some(range), first),
        }
        if self.first.number == first.number {
            (self.first.len, self.first.front) = (first.len, first.front);
        }
    }

    /// A message was found right.
    pub(super) fn verify(&mut self, number: u64) {
        if self.verified.is_empty() {
            self.verified = number..number;
        }
        if self.verified.end == number {
            self.verified.end = number.wrapping_add(1);
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "offsets lie in a frame of at most 66 KiB")]
pub(super) const fn small(at: usize) -> u32 {
    at as u32
}

/// An offset, to compare with places before the packet.
pub(super) fn wide(at: usize) -> i64 {
    i64::try_from(at).unwrap_or(i64::MAX)
}
