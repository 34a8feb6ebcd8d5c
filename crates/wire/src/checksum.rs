//! The Internet checksum (RFC 1071) over any number of pieces.

use core::net::IpAddr;

/// A running ones' complement sum. Pieces may have any length; the sum continues correctly after a
/// piece of odd length.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChecksumSum {
    total: u64,
    odd: bool,
}

impl ChecksumSum {
    /// Returns the sum of no bytes.
    #[must_use]
    pub const fn new() -> Self {
        Self { total: 0, odd: false }
    }

    /// Returns the sum of whole 32-bit words, for short headers; faster than [`Self::add`] there.
    /// Bytes after the last whole word are ignored.
    #[must_use]
    pub fn of_words(bytes: &[u8]) -> Self {
        let words = bytes.chunks_exact(4);
        let total = words.map(|w| u64::from(u32::from_be_bytes([w[0], w[1], w[2], w[3]]))).sum();
        Self { total, odd: false }
    }

    /// Adds bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        // A sum that starts at an odd byte is the byte-swapped sum of the same bytes (RFC 1071
        // section 2, B).
        let part = fold(sum_bytes(bytes));
        self.total += u64::from(if self.odd { part.swap_bytes() } else { part });
        self.odd ^= bytes.len() % 2 == 1;
    }

    /// Adds one 16-bit word, at an even position.
    pub const fn add_u16(&mut self, word: u16) {
        self.total += word as u64;
    }

    /// Returns the folded sum, not complemented: the content of a partial checksum field.
    #[must_use]
    pub const fn fold(self) -> u16 {
        fold(self.total)
    }

    /// Returns the value of the checksum field.
    #[must_use]
    pub const fn finish(self) -> u16 {
        !fold(self.total)
    }
}

/// Returns the sum of the TCP or UDP pseudo-header (RFC 9293 section 3.1, RFC 8200 section 8.1).
#[must_use]
pub fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, len: usize) -> ChecksumSum {
    let mut sum = ChecksumSum::new();
    for addr in [source, destination] {
        match addr {
            IpAddr::V4(v4) => sum.add(&v4.octets()),
            IpAddr::V6(v6) => sum.add(&v6.octets()),
        }
    }
    sum.total += u64::from(protocol) + len as u64;
    sum
}

/// Returns a checksum field after a 16-bit word of the covered bytes changed from `old` to `new`
/// (RFC 1624 equation 3).
#[must_use]
pub const fn adjust(checksum: u16, old: u16, new: u16) -> u16 {
    !fold(!checksum as u64 + !old as u64 + new as u64)
}

/// Change of a checksum that follows from changes of the covered bytes: RFC 1624 equation 3 over
/// any number of fields.
///
/// Each change adds `~old + new`, so the sum of an unchanged field is negative zero, never positive
/// zero. The fault of RFC 1141 that RFC 1624 section 3 describes cannot occur, and a correct
/// checksum becomes the one that a new sum over all bytes would be.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChecksumDelta(u64);

impl ChecksumDelta {
    /// Returns the difference of no change.
    #[must_use]
    pub const fn new() -> Self {
        Self(0)
    }

    /// Records a change of a word at an even position.
    pub const fn u16(&mut self, old: u16, new: u16) {
        self.0 += !old as u64 + new as u64;
    }

    /// Records a change of two words. `odd` if they begin at an odd position: their sum is then
    /// byte-swapped (RFC 1071 section 2, B).
    pub const fn u32(&mut self, old: u32, new: u32, odd: bool) {
        let turn = if odd { 8 } else { 0 };
        self.0 += (!old).rotate_left(turn) as u64 + new.rotate_left(turn) as u64;
    }

    /// Adds the changes recorded in `other`.
    pub const fn add(&mut self, other: Self) {
        self.0 += other.0;
    }

    /// Returns the difference folded to 16 bits, so that any number of them can be added.
    #[must_use]
    pub const fn folded(self) -> Self {
        Self(fold(self.0) as u64)
    }

    /// Returns the checksum field after the changes.
    #[must_use]
    pub const fn apply(self, checksum: u16) -> u16 {
        !fold(!checksum as u64 + self.0)
    }
}

/// Adds the 16-bit words of `total` in ones' complement. Without branches, which are slower than
/// the few additions that a short sum does not need.
#[expect(clippy::cast_possible_truncation, reason = "the last sum is at most 16 bits long")]
const fn fold(total: u64) -> u16 {
    // At most 2^33 - 2, then 2^17 - 1, then 2^16, then 2^16 - 1.
    let total = (total >> 32) + (total & 0xffff_ffff);
    let total = (total >> 32) + (total >> 16 & 0xffff) + (total & 0xffff);
    let total = (total >> 16) + (total & 0xffff);
    ((total >> 16) + (total & 0xffff)) as u16
}

/// Sums big-endian words. 32-bit loads are added to 64-bit lanes, which the compiler vectorizes; no
/// lane overflows below 16 GiB of input.
fn sum_bytes(bytes: &[u8]) -> u64 {
    let (chunks, tail) = bytes.split_at(bytes.len() & !31);
    let mut lanes = [0_u64; 8];
    for chunk in chunks.chunks_exact(32) {
        for (lane, word) in lanes.iter_mut().zip(chunk.chunks_exact(4)) {
            *lane += u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
        }
    }
    let mut total: u64 = lanes.iter().map(|&lane| (lane >> 32) + (lane & 0xffff_ffff)).sum();
    let mut words = tail.chunks_exact(2);
    for word in &mut words {
        total += u64::from(u16::from_ne_bytes([word[0], word[1]]));
    }
    if let [last] = words.remainder() {
        total += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    // The sum is byte-order independent up to a swap of the result (RFC 1071 section 2, B).
    u64::from(u16::from_be(fold(total)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn simple(bytes: &[u8]) -> u16 {
        let mut total = 0_u64;
        for pair in bytes.chunks(2) {
            total += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
        }
        fold(total)
    }

    #[test]
    fn rfc_1071_example() {
        let mut sum = ChecksumSum::new();
        sum.add(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.fold(), 0xddf2);
    }

    #[test]
    fn short_headers_sum_alike() {
        let header: [u8; 20] = *b"Ea header of words.!";
        let mut sum = ChecksumSum::new();
        sum.add(&header);
        assert_eq!(ChecksumSum::of_words(&header).fold() % 0xffff, sum.fold() % 0xffff);
    }

    #[test]
    fn rfc_1624_example() {
        assert_eq!(adjust(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    proptest! {
        /// Fields at even and odd positions change, among them to and from all zeros and all ones.
        #[test]
        fn differences_equal_summing_anew(
            mut bytes in proptest::collection::vec(
                prop_oneof![Just(0_u8), Just(0xff), any::<u8>()], 12..60),
            changes in proptest::collection::vec(
                (any::<u8>(), prop_oneof![Just(0_u32), Just(u32::MAX), any::<u32>()]), 0..6),
        ) {
            bytes[0] = 6; // as in a pseudo-header, never all zeros
            let mut before = ChecksumSum::new();
            before.add(&bytes);
            let mut difference = ChecksumDelta::new();
            for (at, new) in changes {
                let at = 1 + usize::from(at) % (bytes.len() - 5);
                let field: &mut [u8; 4] = bytes[at..].first_chunk_mut().unwrap();
                difference.u32(u32::from_be_bytes(*field), new, at % 2 == 1);
                *field = new.to_be_bytes();
            }
            let mut after = ChecksumSum::new();
            after.add(&bytes);
            prop_assert_eq!(difference.apply(before.finish()), after.finish());
            prop_assert_eq!(difference.folded().apply(before.finish()), after.finish());
        }

        #[test]
        fn sum_is_independent_of_split(
            bytes in proptest::collection::vec(any::<u8>(), 0..400),
            cuts in any::<[u8; 3]>(),
        ) {
            let mut sum = ChecksumSum::new();
            let mut cuts = cuts.map(|c| usize::from(c).min(bytes.len()));
            cuts.sort_unstable();
            let mut from = 0;
            for cut in cuts.into_iter().chain([bytes.len()]) {
                sum.add(&bytes[from..cut]);
                from = cut;
            }
            prop_assert_eq!(sum.fold() % 0xffff, simple(&bytes) % 0xffff);
        }
    }
}
