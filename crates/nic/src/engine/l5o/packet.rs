//! State of the pass over one packet: the decrypted range and the findings.
//!
//! Created by `rx` for each packet; the pass itself is in `walk`, and `chain` reads headers in the
//! packet. The only message known here is the one in which the decrypted range begins. There is one
//! decrypted range ([`PacketDecryptState`]): it grows at its end until it is closed, and is undone
//! if a tag is wrong.

use base::{SeqNum, internal_error};
use core::ops::Range;

use super::counters::L5oCounters;
use super::rx_scratch::RxScratch;
use crate::engine::tls::{FRONT, TlsDeviceKeys};

/// A pass over one packet.
pub(super) struct RecordParser<'a> {
    pub(super) keys: &'a TlsDeviceKeys,
    pub(super) seq: SeqNum,
    pub(super) payload: &'a mut [u8],
    pub(super) tools: &'a mut RxScratch,
    pub(super) counters: &'a mut L5oCounters,
    decrypt_state: PacketDecryptState,
    /// Numbers of the messages whose tags were verified, one contiguous range.
    pub(super) verified: Range<u64>,
    /// True if something was decrypted on an assumption, even if it was undone. For the counters
    /// only.
    pub(super) used_assumption: bool,
    /// Offset of the first byte for which no message boundary is known.
    pub(super) unknown_from: Option<usize>,
    /// Start and number of the last message whose header was read.
    pub(super) last_header: Option<(SeqNum, u64)>,
    /// True if a tag was correct under a speculative number. That stays true if a later tag is
    /// wrong.
    pub(super) number_proved: bool,
}

/// State of the packet's decrypted range.
#[derive(Clone, Debug)]
enum PacketDecryptState {
    /// No range yet.
    Nothing,
    /// A range that may be extended at its end.
    Growing(PacketDecryptedRange),
    /// A range that is final.
    Final(PacketDecryptedRange),
    /// No range: a tag was wrong, and the packet is left as it arrived.
    Failed,
}

impl PacketDecryptState {
    /// Returns whether bytes of message `number` may be added.
    const fn may_grow(&self, number: u64) -> bool {
        match self {
            Self::Nothing => true,
            Self::Growing(open) => number.wrapping_sub(open.last_number) <= 1,
            Self::Final(_) | Self::Failed => false,
        }
    }
}

/// The decrypted range.
#[derive(Clone, Debug)]
pub(super) struct PacketDecryptedRange {
    pub(super) range: Range<usize>,
    /// The message in which the range begins.
    pub(super) first: DecryptedRangeStart,
    /// Number of the message in which it ends.
    last_number: u64,
}

/// The message in which a range begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecryptedRangeStart {
    pub(super) number: u64,
    pub(super) offset: u32,
    pub(super) len: u32,
    pub(super) front: [u8; FRONT],
}

impl<'a> RecordParser<'a> {
    pub(super) fn new(
        keys: &'a TlsDeviceKeys,
        seq: SeqNum,
        payload: &'a mut [u8],
        tools: &'a mut RxScratch,
        counters: &'a mut L5oCounters,
    ) -> Self {
        tools.decrypted.clear();
        Self {
            keys,
            seq,
            payload,
            tools,
            counters,
            decrypt_state: PacketDecryptState::Nothing,
            verified: 0..0,
            used_assumption: false,
            unknown_from: None,
            last_header: None,
            number_proved: false,
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

    /// Returns whether bytes of message `number` may be decrypted. The host derives the numbers of
    /// a range from that of its first message, so a range has consecutive ones.
    pub(super) const fn may_decrypt(&self, number: u64) -> bool {
        self.decrypt_state.may_grow(number)
    }

    /// Returns the decrypted range.
    pub(super) const fn decrypted(&self) -> Option<&PacketDecryptedRange> {
        match &self.decrypt_state {
            PacketDecryptState::Growing(stretch) | PacketDecryptState::Final(stretch) => {
                Some(stretch)
            }
            PacketDecryptState::Nothing | PacketDecryptState::Failed => None,
        }
    }

    /// Ends the decrypted range, if there is one.
    pub(super) fn end_range(&mut self) {
        self.decrypt_state =
            match core::mem::replace(&mut self.decrypt_state, PacketDecryptState::Nothing) {
                PacketDecryptState::Growing(stretch) => PacketDecryptState::Final(stretch),
                other => other,
            };
    }

    /// Starts the decrypted range or extends it at its end.
    pub(super) fn extend(&mut self, range: Range<usize>, first: DecryptedRangeStart) {
        match &mut self.decrypt_state {
            PacketDecryptState::Nothing => {
                let last_number = first.number;
                self.decrypt_state =
                    PacketDecryptState::Growing(PacketDecryptedRange { range, first, last_number })
            }
            PacketDecryptState::Growing(open) => {
                debug_assert_eq!(open.range.end, range.start, "one contiguous range");
                (open.range.end, open.last_number) = (range.end, first.number);
                if open.first.number == first.number {
                    (open.first.len, open.first.front) = (first.len, first.front);
                }
            }
            PacketDecryptState::Final(_) | PacketDecryptState::Failed => {
                internal_error!(self.counters.nic_internal_errors, "opened behind the end");
            }
        }
    }

    /// Discards the decrypted range after a wrong tag and forbids a new one. Returns the start of
    /// the discarded range.
    pub(super) fn fail(&mut self) -> Option<usize> {
        self.verified = 0..0;
        match core::mem::replace(&mut self.decrypt_state, PacketDecryptState::Failed) {
            PacketDecryptState::Growing(stretch) | PacketDecryptState::Final(stretch) => {
                Some(stretch.range.start)
            }
            PacketDecryptState::Nothing | PacketDecryptState::Failed => None,
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
pub(super) const fn offset_u32(at: usize) -> u32 {
    at as u32
}

/// Widens an offset for comparison with positions before the packet.
pub(super) fn offset_i64(at: usize) -> i64 {
    i64::try_from(at).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_range_are_consecutive() {
        let first = DecryptedRangeStart { number: 3, offset: 0, len: 10, front: [0; FRONT] };
        let range = PacketDecryptedRange { range: 0..20, first, last_number: 4 };
        let growing = PacketDecryptState::Growing(range.clone());
        assert!([4, 5].iter().all(|&number| growing.may_grow(number)));
        assert!(![0, 3, 6, u64::MAX].iter().any(|&number| growing.may_grow(number)));
        assert!(PacketDecryptState::Nothing.may_grow(7));
        assert!(!PacketDecryptState::Final(range).may_grow(4));
        assert!(!PacketDecryptState::Failed.may_grow(4));
    }
}
