//! A packet on the walk over it: what is opened of it, and what is found out.
//!
//! Made by `rx` for each packet; the walk itself is `walk`'s, and `chain` looks into the packet for
//! headers. It knows no messages but the one that the opened range begins in. What is opened is one
//! range ([`Opening`]): it grows at its end until it is closed, and is taken back if a tag is
//! wrong.

use base::{SeqNum, internal_error};
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
    opening: Opening,
    /// Messages found right.
    pub(super) verified: Range<u64>,
    /// Something was opened on an assumption: a fact for the counters, whatever becomes of it.
    pub(super) ahead: bool,
    /// From here on nothing is known.
    pub(super) lost: Option<usize>,
    /// The last header that was seen, and its number.
    pub(super) header: Option<(SeqNum, u64)>,
    /// A tag was right whose number was guessed. The guess stays right if a later tag is wrong.
    pub(super) proven: bool,
}

/// What is opened of a packet.
#[derive(Clone, Debug)]
enum Opening {
    /// Nothing so far.
    Nothing,
    /// A range; what follows right behind it may be opened too.
    Open(Stretch),
    /// A range; nothing more is opened.
    Closed(Stretch),
    /// Nothing, since a tag was wrong: the packet goes as it came.
    Failed,
}

/// An opened range.
#[derive(Clone, Debug)]
pub(super) struct Stretch {
    pub(super) range: Range<usize>,
    /// The message that the range begins in.
    pub(super) first: First,
}

/// The message that a range begins in.
#[derive(Clone, Copy, Debug)]
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
            opening: Opening::Nothing,
            verified: 0..0,
            ahead: false,
            lost: None,
            header: None,
            proven: false,
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

    /// Whether more may be opened.
    pub(super) const fn may_open(&self) -> bool {
        matches!(self.opening, Opening::Nothing | Opening::Open(_))
    }

    /// What is opened.
    pub(super) const fn opened(&self) -> Option<&Stretch> {
        match &self.opening {
            Opening::Open(stretch) | Opening::Closed(stretch) => Some(stretch),
            Opening::Nothing | Opening::Failed => None,
        }
    }

    /// What is opened ends here, if anything is.
    pub(super) fn close(&mut self) {
        self.opening = match core::mem::replace(&mut self.opening, Opening::Nothing) {
            Opening::Open(stretch) => Opening::Closed(stretch),
            other => other,
        };
    }

    /// More is opened, behind what is open or as the first.
    pub(super) fn extend(&mut self, range: Range<usize>, first: First) {
        match &mut self.opening {
            Opening::Nothing => self.opening = Opening::Open(Stretch { range, first }),
            Opening::Open(open) => {
                debug_assert_eq!(open.range.end, range.start, "one contiguous range");
                open.range.end = range.end;
                if open.first.number == first.number {
                    (open.first.len, open.first.front) = (first.len, first.front);
                }
            }
            Opening::Closed(_) | Opening::Failed => {
                internal_error!(self.counters.nic_internal_errors, "opened behind the end");
            }
        }
    }

    /// A tag was wrong: nothing is opened any more. Returns where the opened range began.
    pub(super) fn fail(&mut self) -> Option<usize> {
        self.verified = 0..0;
        match core::mem::replace(&mut self.opening, Opening::Failed) {
            Opening::Open(stretch) | Opening::Closed(stretch) => Some(stretch.range.start),
            Opening::Nothing | Opening::Failed => None,
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
