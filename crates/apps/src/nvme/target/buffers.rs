//! Memory for the data of writes: page-aligned buffers out of one budget, used again.
//!
//! Buffers have sizes that are powers of two of pages, so that few kinds are kept. A buffer that
//! went to a connection which then ended never comes back; its bytes do.

use abi::aligned::{AlignedBuf, PAGE_BYTES};

/// The budget, and what is not in use of it.
#[derive(Debug)]
pub(super) struct Buffers {
    /// By the power of two of their pages.
    free: Vec<Vec<AlignedBuf>>,
    free_bytes: usize,
    used_bytes: usize,
    bytes_max: usize,
}

/// Bytes of a budget that somebody uses.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Lease {
    bytes: usize,
}

/// Bytes of a buffer for so many bytes of data.
pub(super) const fn bytes_for(len: usize) -> usize {
    let pages = if len == 0 { 1 } else { len.div_ceil(PAGE_BYTES) };
    pages.next_power_of_two().saturating_mul(PAGE_BYTES)
}

impl Buffers {
    /// A budget of so many bytes.
    pub(super) const fn new(bytes_max: usize) -> Self {
        Self { free: Vec::new(), free_bytes: 0, used_bytes: 0, bytes_max }
    }

    /// Bytes in use.
    pub(super) const fn used_bytes(&self) -> usize {
        self.used_bytes
    }

    /// Whether there is room for `len` bytes now.
    pub(super) fn fits(&self, len: usize) -> bool {
        self.used_bytes.saturating_add(bytes_for(len)) <= self.bytes_max
    }

    /// A buffer of `len` bytes at least, and what has to be given back for it; none where there is
    /// no room now.
    pub(super) fn take(&mut self, len: usize) -> Option<(AlignedBuf, Lease)> {
        if !self.fits(len) {
            return None;
        }
        let bytes = bytes_for(len);
        let pages = bytes / PAGE_BYTES;
        self.used_bytes += bytes;
        let kept = self.free.get_mut(kind(pages)).and_then(Vec::pop);
        if kept.is_some() {
            self.free_bytes -= bytes;
        }
        self.trim();
        Some((kept.unwrap_or_else(|| AlignedBuf::new(pages)), Lease { bytes }))
    }

    /// Gives a lease back, with the buffer unless that is lost.
    pub(super) fn give(&mut self, lease: Lease, buffer: Option<AlignedBuf>) {
        self.used_bytes -= lease.bytes;
        let Some(buffer) = buffer.filter(|buffer| buffer.len() == lease.bytes) else { return };
        let kind = kind(buffer.len() / PAGE_BYTES);
        if self.free.len() <= kind {
            self.free.resize_with(kind + 1, Vec::new);
        }
        if let Some(free) = self.free.get_mut(kind) {
            self.free_bytes += buffer.len();
            free.push(buffer);
        }
    }

    /// What is kept counts as well: buffers of other sizes make room.
    fn trim(&mut self) {
        for free in &mut self.free {
            while self.used_bytes + self.free_bytes > self.bytes_max {
                let Some(buffer) = free.pop() else { break };
                self.free_bytes -= buffer.len();
            }
        }
    }
}

const fn kind(pages: usize) -> usize {
    pages.trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_within_the_budget() {
        let mut buffers = Buffers::new(16 * PAGE_BYTES);
        let (mut small, one) = buffers.take(1).unwrap();
        let (large, eight) = buffers.take(5 * PAGE_BYTES).unwrap();
        assert_eq!((small.len(), large.len()), (PAGE_BYTES, 8 * PAGE_BYTES));
        assert!(buffers.take(5 * PAGE_BYTES).is_none(), "it would be 17 pages");
        small.as_mut_slice()[0] = 7;
        buffers.give(one, Some(small));
        buffers.give(eight, Some(large));
        assert_eq!((buffers.used_bytes(), buffers.free_bytes), (0, 9 * PAGE_BYTES));
        let (small, one) = buffers.take(PAGE_BYTES).unwrap();
        assert_eq!(small.as_slice()[0], 7, "the same");
        buffers.give(one, Some(small));
        let (all, sixteen) = buffers.take(16 * PAGE_BYTES).unwrap();
        assert_eq!((all.len(), buffers.free_bytes), (16 * PAGE_BYTES, 0), "the others are gone");
        buffers.give(sixteen, None);
        assert_eq!((buffers.used_bytes(), buffers.free_bytes), (0, 0));
    }
}
