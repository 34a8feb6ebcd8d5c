//! The receive window: which segments are acceptable (RFC 9293 section 3.10.7.4, first check).
//!
//! Called for each segment of a connection, also half-open or being torn down. The response to an
//! unacceptable segment is the caller's.

use base::SeqNum;

/// A receive window: `len` sequence numbers from `next`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveWindow {
    /// The next expected sequence number: RCV.NXT.
    pub next: SeqNum,
    /// Sequence numbers in the window: RCV.WND, below 2^31.
    pub len: u32,
}

impl ReceiveWindow {
    /// Returns whether a segment of `len` sequence numbers at `seq`, SYN and FIN included, is
    /// acceptable: RFC 9293 table 6. So is a segment that begins before the window and ends after
    /// it; the caller trims it at both ends.
    #[must_use]
    #[inline]
    pub const fn accepts(self, seq: SeqNum, len: u32) -> bool {
        let (first, window) = (seq.distance(self.next) as i64, self.len as i64);
        match (len, self.len) {
            (0, 0) => first == 0,
            (0, _) => 0 <= first && first < window,
            // A closed window accepts only segments without a length.
            (_, 0) => false,
            _ => first < window && first + len as i64 > 0,
        }
    }

    /// Returns whether the number lies in the window, as that of a reset must (RFC 5961 section
    /// 3.2). The next number does even if the window is closed.
    #[must_use]
    pub const fn contains(self, seq: SeqNum) -> bool {
        self.accepts(seq, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9293 table 6, with sequence numbers that wrap too.
    #[test]
    fn accepts_segments_as_in_table_6() {
        for next in [SeqNum(1000), SeqNum(u32::MAX), SeqNum(0)] {
            let open = ReceiveWindow { next, len: 10 };
            // Without a length: from the next number to the window's last.
            assert!(open.accepts(next, 0) && open.accepts(next + 9, 0));
            assert!(!open.accepts(next - 1, 0) && !open.accepts(next + 10, 0));
            // With a length: its first or last number is in the window, or one between them.
            assert!(open.accepts(next - 4, 5) && !open.accepts(next - 5, 5));
            assert!(open.accepts(next + 9, 100) && !open.accepts(next + 10, 1));
            assert!(open.accepts(next - 5, 100), "around the window");
        }
    }

    /// A closed window accepts a bare segment at the next number, and neither data nor a FIN.
    #[test]
    fn a_closed_window_takes_no_length() {
        let closed = ReceiveWindow { next: SeqNum(7), len: 0 };
        assert!(closed.accepts(SeqNum(7), 0) && closed.contains(SeqNum(7)));
        assert!(!closed.accepts(SeqNum(7), 1) && !closed.accepts(SeqNum(6), 2));
        assert!(!closed.accepts(SeqNum(6), 0) && !closed.accepts(SeqNum(8), 0));
    }

    /// A number half of the sequence space away is in no window.
    #[test]
    fn far_numbers_are_outside() {
        let widest = ReceiveWindow { next: SeqNum(7), len: 1 << 30 };
        assert!(!widest.accepts(SeqNum(7 + (1 << 31)), 0));
        assert!(!widest.accepts(SeqNum(7 + (1 << 31)), 65_535));
        assert!(widest.contains(SeqNum(7 + (1 << 30) - 1)));
    }
}
