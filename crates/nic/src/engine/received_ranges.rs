//! The received byte ranges of a message: a few ranges, in order, with gaps between them.
//!
//! Used by the receive contexts of TLS for records and of NVMe/TCP for buffers. Memory is constant:
//! a range for which there is no room is refused, and the caller gives up the message.

/// Maximum number of disjoint ranges per message.
const RANGES: usize = 8;

/// Received ranges of a message, ascending and separated by gaps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReceivedRanges {
    ranges: [(u32, u32); RANGES],
    count: usize,
}

impl ReceivedRanges {
    /// Returns the set that holds the first `len` bytes.
    pub(crate) fn prefix(len: u32) -> Self {
        let mut seen = Self { count: usize::from(len > 0), ..Self::default() };
        seen.ranges[0] = (0, len);
        seen
    }

    /// Returns whether all bytes in `from..to` were received.
    pub(crate) fn covers(&self, from: u32, to: u32) -> bool {
        self.all().iter().any(|&(start, end)| start <= from && to <= end)
    }

    /// Returns the first position at or after `from` that was not received.
    pub(crate) fn next_missing(&self, from: u32) -> u32 {
        let inside = |&&(start, end): &&(u32, u32)| start <= from && from < end;
        self.all().iter().find(inside).map_or(from, |&(_, end)| end)
    }

    /// Returns the start of the first range that ends after `from`, or `u32::MAX` if there is none.
    /// The start is less than `from` if `from` lies inside a range.
    pub(crate) fn next_received(&self, from: u32) -> u32 {
        self.all().iter().find(|&&(_, end)| from < end).map_or(u32::MAX, |&(start, _)| start)
    }

    /// Returns the end of the last range, or 0 if there is none.
    pub(crate) fn end(&self) -> u32 {
        self.all().last().map_or(0, |&(_, end)| end)
    }

    /// Adds a range that overlaps no other. Returns false if all [`RANGES`] slots are in use.
    pub(crate) fn add(&mut self, from: u32, to: u32) -> bool {
        let at = self.all().iter().position(|&(start, _)| start > from).unwrap_or(self.count);
        let joins_before = at > 0 && self.ranges[at - 1].1 == from;
        let joins_after = at < self.count && self.ranges[at].0 == to;
        match (joins_before, joins_after) {
            (true, true) => {
                self.ranges[at - 1].1 = self.ranges[at].1;
                self.ranges.copy_within(at + 1..self.count, at);
                self.count -= 1;
            }
            (true, false) => self.ranges[at - 1].1 = to,
            (false, true) => self.ranges[at].0 = from,
            (false, false) => {
                if self.count == RANGES {
                    return false;
                }
                self.ranges.copy_within(at..self.count, at + 1);
                self.ranges[at] = (from, to);
                self.count += 1;
            }
        }
        true
    }

    /// Splits the set at byte `at`. Offsets of the second part are relative to `at`.
    pub(crate) fn split(&self, at: u32) -> (Self, Self) {
        let (mut before, mut behind) = (Self::default(), Self::default());
        for &(start, end) in self.all() {
            if start < at {
                before.push(start, end.min(at));
            }
            if end > at {
                behind.push(start.max(at) - at, end - at);
            }
        }
        (before, behind)
    }

    /// Appends a range after all others; drops it if there is no room.
    fn push(&mut self, from: u32, to: u32) {
        if let Some(free) = self.ranges.get_mut(self.count) {
            *free = (from, to);
            self.count += 1;
        }
    }

    /// Returns the ranges, ascending.
    pub(crate) fn all(&self) -> &[(u32, u32)] {
        &self.ranges[..self.count]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use base::Prng;

    #[test]
    fn agrees_with_a_map_of_bytes() {
        let mut prng = Prng::new(3);
        for _ in 0..500 {
            let (mut seen, mut map) = (ReceivedRanges::default(), vec![false; 64]);
            for _ in 0..40 {
                let from = usize::try_from(prng.next_u64() % 64).unwrap();
                let free = map[from..].iter().take_while(|&&byte| !byte).count();
                let at = u32::try_from(from).unwrap();
                let seen_at = map[from..].iter().position(|&byte| byte).map(|n| n + from);
                let wanted = seen_at.map_or(u32::MAX, |n| u32::try_from(n).unwrap());
                // Inside a range, `next_received` returns the start of that range.
                if free > 0 {
                    assert_eq!(seen.next_received(at), wanted);
                    assert_eq!(seen.next_missing(at), at);
                    let len = 1 + usize::try_from(prng.next_u64()).unwrap_or(0) % free;
                    if seen.add(at, at + u32::try_from(len).unwrap()) {
                        map[from..from + len].fill(true);
                    }
                } else {
                    let end = map[from..].iter().take_while(|&&byte| byte).count() + from;
                    assert_eq!(seen.next_missing(at), u32::try_from(end).unwrap());
                    assert!(seen.covers(at, u32::try_from(end).unwrap()));
                    assert!(!seen.covers(at, u32::try_from(end).unwrap() + 1));
                    let (before, behind) = seen.split(at);
                    assert_eq!(before.end(), at.min(seen.end()).min(before.end()));
                    assert_eq!(behind.next_missing(0), seen.next_missing(at) - at);
                    assert_eq!(behind.end(), seen.end() - at);
                }
            }
        }
    }
}
