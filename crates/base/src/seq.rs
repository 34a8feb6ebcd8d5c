//! TCP sequence numbers: RFC 9293 section 3.4, arithmetic modulo 2^32.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// Maximum number of bytes that a mark may stay behind: more than any TCP window but one of scale
/// 14, and well below half of the sequence space.
const MARK_DISTANCE_MAX: i32 = 1 << 29;

/// A TCP sequence number. Ordering is relative: `a.lt(b)` is true if `b` is less than 2^31 ahead of
/// `a`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SeqNum(pub u32);

impl SeqNum {
    /// Returns the bytes from `earlier` to `self`; negative if `earlier` is ahead.
    #[must_use]
    #[expect(
        clippy::cast_possible_wrap,
        reason = "the signed distance modulo 2^32 is what RFC 9293 3.4 compares by"
    )]
    pub const fn distance(self, earlier: Self) -> i32 {
        self.0.wrapping_sub(earlier.0) as i32
    }

    /// Returns whether `self` comes before `other`.
    #[must_use]
    pub const fn lt(self, other: Self) -> bool {
        self.distance(other) < 0
    }

    /// Returns whether `self` comes before `other` or is the same.
    #[must_use]
    pub const fn le(self, other: Self) -> bool {
        self.distance(other) <= 0
    }

    /// Returns whether `self` comes after `other`.
    #[must_use]
    pub const fn gt(self, other: Self) -> bool {
        self.distance(other) > 0
    }

    /// Returns whether `self` comes after `other` or is the same.
    #[must_use]
    pub const fn ge(self, other: Self) -> bool {
        self.distance(other) >= 0
    }

    /// Returns the later of the two.
    #[must_use]
    pub const fn max(self, other: Self) -> Self {
        if self.gt(other) { self } else { other }
    }

    /// Returns whether the number lies more than 2^29 before `high`. State at such a number has to
    /// be dropped: from 2^31 on it would compare as ahead.
    #[must_use]
    pub const fn is_far_before(self, high: Self) -> bool {
        high.distance(self) > MARK_DISTANCE_MAX
    }

    /// Returns the number, or the one 2^29 before `high` if it lies further before. A mark that is
    /// updated so stays behind `high`.
    #[must_use]
    pub const fn clamp_behind(self, high: Self) -> Self {
        if self.is_far_before(high) {
            Self(high.0.wrapping_sub(MARK_DISTANCE_MAX.unsigned_abs()))
        } else {
            self
        }
    }
}

impl Add<u32> for SeqNum {
    type Output = Self;
    fn add(self, bytes: u32) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl AddAssign<u32> for SeqNum {
    fn add_assign(&mut self, bytes: u32) {
        *self = *self + bytes;
    }
}

impl Sub<u32> for SeqNum {
    type Output = Self;
    fn sub(self, bytes: u32) -> Self {
        Self(self.0.wrapping_sub(bytes))
    }
}

impl fmt::Debug for SeqNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Returns the low half of a number: sequence numbers and timestamps are modulo 2^32.
#[expect(clippy::cast_possible_truncation, reason = "the low half is what is wanted")]
#[must_use]
pub const fn low32(x: u64) -> u32 {
    x as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_wraps() {
        let near_end = SeqNum(u32::MAX - 1);
        assert!(near_end.lt(near_end + 3));
        assert_eq!((near_end + 3).distance(near_end), 3);
        assert_eq!(near_end + 3, SeqNum(1));
        assert!(SeqNum(0).lt(SeqNum(0x7fff_ffff)));
        assert!(SeqNum(0).gt(SeqNum(0x8000_0001)));
        assert_eq!(SeqNum(1) - 2, SeqNum(u32::MAX));
        assert_eq!(near_end.max(SeqNum(1)), SeqNum(1));
    }

    #[test]
    fn marks_stay_behind() {
        let mark = SeqNum(u32::MAX - 9);
        assert_eq!(mark.clamp_behind(mark + (1 << 29)), mark);
        assert_eq!(mark.clamp_behind(mark + (1 << 29) + 7), mark + 7);
        assert_eq!(mark.clamp_behind(mark - 5), mark, "not back");
        let high = (0..1000).fold((mark, mark), |(mark, high), _| {
            let high = high + (1 << 24);
            assert!(mark.le(high));
            (mark.clamp_behind(high), high)
        });
        assert_eq!(high.1.distance(high.0), 1 << 29);
    }
}
