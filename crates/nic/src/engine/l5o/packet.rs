//! State of the pass over one packet: what was decrypted and what was found.
//!
//! Created by `rx` for each packet; the pass itself is in `walk`, and `chain` reads headers in the
//! packet. The only message known here is the one in which the decrypted range begins. There is one
//! decrypted range ([`Opening`]): it grows at its end until it is closed, and is undone if a tag is
//! wrong.

use base::{SeqNum, internal_error};
use core::ops::Range;

use super::counters::L5oCounters;
use super::tools::Tools;
use crate::engine::tls::{FRONT, Keys};

/// A pass over one packet.
pub(super) struct Walk<'a> {
    pub(super) keys: &'a Keys,
    pub(super) seq: SeqNum,
    pub(super) payload: &'a mut [u8],
    pub(super) tools: &'a mut Tools,
    pub(super) counters: &'a mut L5oCounters,
    opening: Opening,
    /// Numbers of the messages whose tags were verified, one contiguous range.
    pub(super) verified: Range<u64>,
    /// True if something was decrypted on an assumption, even if it was undone. For the counters
    /// only.
    pub(super) ahead: bool,
    /// Offset of the first byte for which no message boundary is known.
    pub(super) lost: Option<usize>,
    /// Start and number of the last message whose header was read.
    pub(super) header: Option<(SeqNum, u64)>,
    /// True if a tag was correct under a speculative number. That stays true if a later tag is
    /// wrong.
    pub(super) proven: bool,
}

/// State of the packet's decrypted range.
#[derive(Clone, Debug)]
enum Opening {
    /// No range yet.
    Nothing,
    /// A range that may be extended at its end.
    Open(Stretch),
    /// A range that is final.
    Closed(Stretch),
    /// No range: a tag was wrong, and the packet is left as it arrived.
    Failed,
}

/// The decrypted range.
#[derive(Clone, Debug)]
pub(super) struct Stretch {
    pub(super) range: Range<usize>,
    /// The message in which the range begins.
    pub(super) first: First,
}

/// The message in which a range begins.
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

    /// Offset of `seq` in the payload; negative before it.
    pub(super) fn at(&self, seq: SeqNum) -> i64 {
        i64::from(seq.distance(self.seq))
    }

    #[expect(clippy::cast_possible_truncation, reason = "frames have at most 66 KiB")]
    pub(super) fn seq_at(&self, at: usize) -> SeqNum {
        self.seq + at as u32
    }

    /// True if more may be decrypted.
    pub(super) const fn may_open(&self) -> bool {
        matches!(self.opening, Opening::Nothing | Opening::Open(_))
    }

    /// Returns the decrypted range.
    pub(super) const fn opened(&self) -> Option<&Stretch> {
        match &self.opening {
            Opening::Open(stretch) | Opening::Closed(stretch) => Some(stretch),
            Opening::Nothing | Opening::Failed => None,
        }
    }

    /// Ends the decrypted range, if there is one.
    pub(super) fn close(&mut self) {
        self.opening = match core::mem::replace(&mut self.opening, Opening::Nothing) {
            Opening::Open(stretch) => Opening::Closed(stretch),
            other => other,
        };
    }

    /// Starts the decrypted range or extends it at its end.
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

    /// Discards the decrypted range after a wrong tag and forbids a new one. Returns the start of
    /// the discarded range.
    pub(super) fn fail(&mut self) -> Option<usize> {
        self.verified = 0..0;
        match core::mem::replace(&mut self.opening, Opening::Failed) {
            Opening::Open(stretch) | Opening::Closed(stretch) => Some(stretch.range.start),
            Opening::Nothing | Opening::Failed => None,
        }
    }

    /// Records a message with a correct tag, if its number continues the verified range.
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

/// Widens an offset for comparison with positions before the packet.
pub(super) fn wide(at: usize) -> i64 {
    i64::try_from(at).unwrap_or(i64::MAX)
}
