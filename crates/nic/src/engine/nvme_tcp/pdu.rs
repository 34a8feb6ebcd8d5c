//! An incomplete PDU, or another entry of the chain: its received ranges, its header, and the sums
//! of its data.
//!
//! Used by `chain` and `walk`. An entry whose header is not known is *open*: a PDU begins there,
//! and the entry extends to the next known one or without limit. Invariant: each byte is stored or
//! summed once.

use abi::crypto::CryptoProvider;
use base::SeqNum;
use wire::nvme::pdu::{COMMAND_BYTES, COMMON_BYTES, DIGEST_BYTES, PduCommonHeader};

use super::buffers::PduDataTarget;
use crate::engine::received_ranges::ReceivedRanges;

/// Size of the longest header including its digest.
pub(super) const FRONT: usize = COMMAND_BYTES + DIGEST_BYTES as usize;
/// Size of the common header, which contains the PDU's length.
#[expect(clippy::cast_possible_truncation, reason = "eight")]
pub(super) const COMMON: u32 = COMMON_BYTES as u32;
/// Length of an open entry without a successor: far less than half the sequence space.
pub(super) const OPEN: u32 = 1 << 30;

/// Maximum number of disjoint ranges of data that are summed.
const SUMS: usize = 8;

/// Trust in an entry's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum HeaderTrust {
    /// Derived from a header found by a search, which could be a coincidence. Its data is not
    /// processed.
    Unproven,
    /// Derived from a header found by a search that is not a coincidence.
    Likely,
    /// Derived from the start of the stream or from a position that the host confirmed.
    Certain,
}

/// CRC32Cs of disjoint, non-adjacent ranges of the data, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct RangeSums {
    ranges: [RangeSum; SUMS],
    count: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct RangeSum {
    from: u32,
    to: u32,
    crc: u32,
}

impl RangeSums {
    /// Adds a range that overlaps no other. `go_on` receives the CRC32C of the bytes before the
    /// range and returns that of both together. Returns false if there is no room.
    ///
    /// A separate range starts from zero. When the gap before it is filled, the two sums are
    /// combined, at a cost independent of their lengths.
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
        let mut sum = RangeSum { from, to, crc: 0 };
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

    /// Returns the CRC32C of a range if exactly that range is summed.
    pub(super) fn of(&self, from: u32, to: u32) -> Option<u32> {
        let mut all = self.ranges[..self.count].iter();
        all.find(|sum| (sum.from, sum.to) == (from, to)).map(|sum| sum.crc)
    }
}

/// A PDU, an open entry, or a dead entry.
#[derive(Clone, Debug)]
pub(super) struct PduEntry {
    /// Stream position of the first byte.
    pub(super) start: SeqNum,
    /// Length in bytes. An open entry extends to the next entry, or has the length [`OPEN`].
    pub(super) len: u32,
    /// The common header, once it has arrived.
    pub(super) common: Option<PduCommonHeader>,
    /// Destination of the data, once the header has arrived.
    pub(super) data_at: Option<PduDataTarget>,
    /// Command that the data belongs to and offset of the data in that of the command, once the
    /// header has arrived.
    pub(super) command: Option<(u16, u32)>,
    /// True for a complete or abandoned PDU, of which only the range matters.
    pub(super) dead: bool,
    /// True if the start was found by a search and not yet proved.
    pub(super) found_by_search: bool,
    pub(super) trust: HeaderTrust,
    /// True if data bytes passed without being summed, so that the digest cannot be checked.
    pub(super) sum_incomplete: bool,
    /// The received bytes of the header.
    front: [u8; FRONT],
    front_received: u128,
    /// The received bytes of the data digest.
    pub(super) digest: [u8; DIGEST_BYTES as usize],
    /// Ranges of the PDU that have arrived.
    pub(super) received: ReceivedRanges,
    pub(super) sums: RangeSums,
}

impl PduEntry {
    /// Creates an open entry of `len` bytes.
    pub(super) fn open(start: SeqNum, len: u32, standing: HeaderTrust) -> Self {
        Self {
            start,
            len,
            common: None,
            data_at: None,
            command: None,
            dead: false,
            found_by_search: false,
            trust: standing,
            sum_incomplete: false,
            front: [0; FRONT],
            front_received: 0,
            digest: [0; DIGEST_BYTES as usize],
            received: ReceivedRanges::default(),
            sums: RangeSums::default(),
        }
    }

    /// Returns the position after the last byte.
    pub(super) fn end(&self) -> SeqNum {
        self.start + self.len
    }

    /// Returns whether the header has not arrived yet.
    pub(super) const fn is_open(&self) -> bool {
        self.common.is_none() && !self.dead
    }

    /// Returns whether the data may be placed and summed.
    pub(super) fn is_trusted(&self) -> bool {
        self.trust != HeaderTrust::Unproven
    }

    /// Stores bytes that may belong to the header.
    pub(super) fn keep(&mut self, from: u32, bytes: &[u8]) {
        for ((at, to), byte) in self.front.iter_mut().enumerate().skip(from as usize).zip(bytes) {
            *to = *byte;
            self.front_received |= 1 << at;
        }
    }

    /// Returns the first `len` bytes if all of them have arrived.
    pub(super) fn front(&self, len: u32) -> Option<&[u8]> {
        let all = (1 << len.min(127)) - 1;
        if self.front_received & all == all { self.front.get(..len as usize) } else { None }
    }

    /// Splits an open entry: the bytes from `at` on are returned as a new entry.
    pub(super) fn split(&mut self, at: u32) -> Self {
        let (before, behind) = self.received.split(at);
        self.received = before;
        let mut rest = Self::open(self.start + at, self.len.saturating_sub(at), self.trust);
        rest.received = behind;
        self.len = at;
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use base::Prng;

    /// Ranges in any order yield the sum of the whole.
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
            let (mut sums, mut room) = (RangeSums::default(), true);
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
