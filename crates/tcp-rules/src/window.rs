//! The receive window: which segments are acceptable (RFC 9293 section 3.10.7.4, first check).
//!
//! Called for each segment of a connection, half-open ones and those being torn down included. What
//! becomes of a segment that is not acceptable is for the caller.

use base::SeqNum;

/// What a peer may send: `len` numbers from `next` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveWindow {
    /// The number that is expected next: RCV.NXT.
    pub next: SeqNum,
    /// Numbers that are taken from there on: RCV.WND, below 2^31.
    pub len: u32,
}

impl ReceiveWindow {
    /// Returns whether a segment of `len` numbers at `seq`, its SYN and FIN counted, is acceptable:
    /// RFC 9293 table 6. A segment that begins before the window and ends behind it touches it too,
    /// and is trimmed to it at both ends.
    #[must_use]
    #[inline]
    pub const fn accepts(self, seq: SeqNum, len: u32) -> bool {
        let (first, window) = (seq.distance(self.next) as i64, self.len as i64);
        match (len, self.len) {
            (0, 0) => first == 0,
            (0, _) => 0 <= first && first < window,
            // Only what has no length is taken through a closed window.
            (_, 0) => false,
            _ => first < window && first + len as i64 > 0,
        }
    }

    /// Returns whether the number lies in the window, as that of a reset must (RFC 5961 section
    /// 3.2); the next number does though the window is closed.
    #[must_use]
    pub const fn contains(self, seq: SeqNum) -> bool {
        self.accepts(seq, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9293 table 6, where sequence numbers wrap too.
    #[test]
    fn accepts_what_the_table_says() {
        for next in [SeqNum(1000), SeqNum(u32::MAX), SeqNum(0)] {
            let open = ReceiveWindow { next, len: 10 };
            // Without a length, from the next number to the window's last.
            assert!(open.accepts(next, 0) && open.accepts(next + 9, 0));
            assert!(!open.accepts(next - 1, 0) && !open.accepts(next + 10, 0));
            // With one, its first or its last number, or one between them.
            assert!(open.accepts(next - 4, 5) && !open.accepts(next - 5, 5));
            assert!(open.accepts(next + 9, 100) && !open.accepts(next + 10, 1));
            assert!(open.accepts(next - 5, 100), "around the window");
        }
    }

    /// A closed window takes a bare segment at the next number, and neither data nor a FIN.
    #[test]
    fn a_closed_window_takes_no_length() {
        let closed = ReceiveWindow { next: SeqNum(7), len: 0 };
        assert!(closed.accepts(SeqNum(7), 0) && closed.contains(SeqNum(7)));
        assert!(!closed.accepts(SeqNum(7), 1) && !closed.accepts(SeqNum(6), 2));
        assert!(!closed.accepts(SeqNum(6), 0) && !closed.accepts(SeqNum(8), 0));
    }

    /// A number half of all numbers away is in no window.
    #[test]
    fn far_numbers_are_outside() {
        let widest = ReceiveWindow { next: SeqNum(7), len: 1 << 30 };
        assert!(!widest.accepts(SeqNum(7 + (1 << 31)), 0));
        assert!(!widest.accepts(SeqNum(7 + (1 << 31)), 65_535));
        assert!(widest.contains(SeqNum(7 + (1 << 30) - 1)));
    }
}
