//! One PDU of which something is missing: which of its bytes were seen, its header, and the sums of
//! its data.
//!
//! Called by `chain`. A PDU whose header is not known is *open*: a place where a PDU begins, and
//! the bytes up to the next known place, or up to wherever. Invariant: a byte is stored or summed
//! once.

use abi::crypto::CryptoProvider;
use base::SeqNum;
use wire::nvme::pdu::{COMMAND_BYTES, COMMON_BYTES, Common, DIGEST_BYTES};

use super::buffers::DataAt;
use crate::engine::seen::Seen;

/// Bytes of the longest header with its digest.
pub(super) const FRONT: usize = COMMAND_BYTES + DIGEST_BYTES as usize;
/// Bytes that a PDU's length is known by.
#[expect(clippy::cast_possible_truncation, reason = "eight")]
pub(super) const COMMON: u32 = COMMON_BYTES as u32;
/// Bytes of an open place that nothing known lies behind: far less than half the sequence space.
pub(super) const OPEN: u32 = 1 << 30;

/// Most separate ranges that data is summed in.
const SUMS: usize = 8;

/// How much a place is to be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    /// It rests on a header that was found, and which may be anything. Nothing is done with it.
    Doubtful,
    /// It rests on a header that was found, and which chance does not make.
    Likely,
    /// It rests on what the host has said.
    Sure,
}

/// CRC32Cs of ranges of the data that do not touch, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    ranges: [Sum; SUMS],
    count: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    from: u32,
    to: u32,
    crc: u32,
}

impl Sums {
    /// Adds a range that overlaps none. `go_on` gets the CRC32C of what lies before it and gives
    /// that of both. Says no where there is no room.
    ///
    /// A range of its own begins with zero; where the gap before one is filled, the two are
    /// combined, which costs the same for any length.
    pub(super) fn add(
        &mut self,
        crypto: &dyn CryptoProvider,
        from: u32,
        to: u32,
        go_on: impl FnOnce(u32) -> u32,
    ) -> bool {
        let all = &self.ranges[..self.count];
        let at = all.iter().position(|sum| sum.from > from).unwrap_or(self.count);
        let before = at.checked_sub(1).filter(|&before| all[before].to == from);
        let mut sum = Sum { from, to, crc: 0 };
        if let Some(before) = before {
            (sum.from, sum.crc) = (all[before].from, all[before].crc);
        }
        sum.crc = go_on(sum.crc);
        let after = all.get(at).copied().filter(|after| after.from == to);
        if let Some(after) = after {
            let len = u64::from(after.to - after.from);
            (sum.to, sum.crc) = (after.to, crypto.crc32c_combine(sum.crc, after.crc, len));
        }
        match (before, after) {
            (Some(before), Some(_)) => {
                self.ranges[before] = sum;
                self.ranges.copy_within(at + 1..self.count, at);
                self.count -= 1;
            }
            (Some(before), None) => self.ranges[before] = sum,
            (None, Some(_)) => self.ranges[at] = sum,
            (None, None) if self.count == SUMS => return false,
            (None, None) => {
                self.ranges.copy_within(at..self.count, at + 1);
                self.ranges[at] = sum;
                self.count += 1;
            }
        }
        true
    }

    /// The CRC32C of a range, if it is summed as one.
    pub(super) fn of(&self, from: u32, to: u32) -> Option<u32> {
        let mut all = self.ranges[..self.count].iter();
        all.find(|sum| (sum.from, sum.to) == (from, to)).map(|sum| sum.crc)
    }
}

/// A PDU, an open place, or a place of which nothing matters any more.
#[derive(Clone, Debug)]
pub(super) struct Pdu {
    /// Position of its first byte.
    pub(super) start: SeqNum,
    /// Bytes; of an open place those up to the next one, or [`OPEN`].
    pub(super) len: u32,
    /// Its common header, once that has come.
    pub(super) common: Option<Common>,
    /// Where its data belongs, once its header has come.
    pub(super) data_at: Option<DataAt>,
    /// Only its place counts: it is complete, or was given up.
    pub(super) dead: bool,
    /// Its start was found by a search, and not by what lies before.
    pub(super) guessed: bool,
    pub(super) standing: Standing,
    /// Bytes of it passed without being summed: its digest cannot be checked.
    pub(super) broken: bool,
    /// Its header, as far as it came, and a bit for each byte of it that did.
    front: [u8; FRONT],
    came: u128,
    /// Its data digest, as far as it came.
    pub(super) digest: [u8; DIGEST_BYTES as usize],
    /// Which of its bytes came.
    pub(super) seen: Seen,
    pub(super) sums: Sums,
}

impl Pdu {
    /// An open place of `len` bytes.
    pub(super) fn open(start: SeqNum, len: u32, standing: Standing) -> Self {
        Self {
            start,
            len,
            common: None,
            data_at: None,
            dead: false,
            guessed: false,
            standing,
            broken: false,
            front: [0; FRONT],
            came: 0,
            digest: [0; DIGEST_BYTES as usize],
            seen: Seen::default(),
            sums: Sums::default(),
        }
    }

    /// Where the next one begins.
    pub(super) fn end(&self) -> SeqNum {
        self.start + self.len
    }

    /// Whether its header is still to come.
    pub(super) const fn is_open(&self) -> bool {
        self.common.is_none() && !self.dead
    }

    /// Whether its data is placed and summed.
    pub(super) fn is_trusted(&self) -> bool {
        self.standing != Standing::Doubtful
    }

    /// Keeps bytes that may be of its header.
    pub(super) fn keep(&mut self, from: u32, bytes: &[u8]) {
        for ((at, to), byte) in self.front.iter_mut().enumerate().skip(from as usize).zip(bytes) {
            *to = *byte;
            self.came |= 1 << at;
        }
    }

    /// Its first `len` bytes, if all of them came.
    pub(super) fn front(&self, len: u32) -> Option<&[u8]> {
        let all = (1 << len.min(127)) - 1;
        if self.came & all == all { self.front.get(..len as usize) } else { None }
    }

    /// Cuts an open place: what lies from byte `at` on is the next.
    pub(super) fn split(&mut self, at: u32) -> Self {
        let (before, behind) = self.seen.split(at);
        self.seen = before;
        let mut rest = Self::open(self.start + at, self.len.saturating_sub(at), self.standing);
        rest.seen = behind;
        self.len = at;
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use base::Prng;

    /// Ranges in any order give the sum of the whole.
    #[test]
    fn sums_of_ranges_in_any_order() {
        let crypto = crypto::Provider;
        let mut prng = Prng::new(6);
        let mut below = |n: u32| u32::try_from(prng.next_u64() % u64::from(n)).unwrap();
        for _ in 0..300 {
            let text: Vec<u8> = (0..200).map(|_| u8::try_from(below(256)).unwrap()).collect();
            let mut cuts: Vec<u32> = (0..10).map(|_| below(200)).chain([0, 200]).collect();
            cuts.sort_unstable();
            cuts.dedup();
            let mut ranges: Vec<(u32, u32)> = cuts.windows(2).map(|w| (w[0], w[1])).collect();
            let (mut sums, mut room) = (Sums::default(), true);
            let mut map = [false; 200];
            while !ranges.is_empty() {
                let nth = below(u32::try_from(ranges.len()).unwrap()) as usize;
                let (from, to) = ranges.swap_remove(nth);
                let part = &text[from as usize..to as usize];
                room &= sums.add(&crypto, from, to, |crc| crypto.crc32c(crc, part));
                map[from as usize..to as usize].fill(true);
                if room {
                    assert!(map.iter().all(|&m| m) == sums.of(0, 200).is_some());
                }
            }
            assert!(!room || sums.of(0, 200) == Some(crypto.crc32c(0, &text)));
        }
    }
}
