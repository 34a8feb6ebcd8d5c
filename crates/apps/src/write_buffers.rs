//! Memory for data that is written to the disk: reusable page-aligned buffers out of one budget.
//! The NVMe/TCP target and the uploads of the content server use it.
//!
//! Buffer sizes are powers of two of pages, to limit the number of free lists. If a connection ends
//! while its transport or the disk has a buffer, the buffer is lost, but its bytes return to the
//! budget.

use abi::aligned::{AlignedBuf, PAGE_BYTES};

/// The budget and its free buffers.
#[derive(Debug)]
pub(crate) struct WriteBufferPool {
    /// Free buffers, indexed by the logarithm (base 2) of their pages.
    free: Vec<Vec<AlignedBuf>>,
    free_bytes: usize,
    used_bytes: usize,
    bytes_max: usize,
}

/// Bytes of the budget that are in use; to be returned with [`WriteBufferPool::release`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WriteBufferLease {
    bytes: usize,
}

impl WriteBufferLease {
    /// Returns the length of the buffer.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Returns the size of the buffer for `len` bytes of data.
pub(crate) const fn bytes_for(len: usize) -> usize {
    let pages = if len == 0 { 1 } else { len.div_ceil(PAGE_BYTES) };
    pages.next_power_of_two().saturating_mul(PAGE_BYTES)
}

impl WriteBufferPool {
    /// Creates a budget of `bytes_max` bytes.
    pub(crate) const fn new(bytes_max: usize) -> Self {
        Self { free: Vec::new(), free_bytes: 0, used_bytes: 0, bytes_max }
    }

    pub(crate) const fn used_bytes(&self) -> usize {
        self.used_bytes
    }

    /// Returns whether a buffer for `len` bytes is within the budget now.
    pub(crate) fn fits(&self, len: usize) -> bool {
        self.used_bytes.saturating_add(bytes_for(len)) <= self.bytes_max
    }

    /// Takes a buffer of at least `len` bytes. Returns `None` if it would exceed the budget.
    pub(crate) fn take(&mut self, len: usize) -> Option<(AlignedBuf, WriteBufferLease)> {
        if !self.fits(len) {
            return None;
        }
        let bytes = bytes_for(len);
        let pages = bytes / PAGE_BYTES;
        self.used_bytes += bytes;
        let kept = self.free.get_mut(size_class(pages)).and_then(Vec::pop);
        if kept.is_some() {
            self.free_bytes -= bytes;
        }
        self.trim();
        Some((kept.unwrap_or_else(|| AlignedBuf::new(pages)), WriteBufferLease { bytes }))
    }

    /// Returns a lease to the budget, and the buffer to its free list unless it is lost.
    pub(crate) fn release(&mut self, lease: WriteBufferLease, buffer: Option<AlignedBuf>) {
        self.used_bytes -= lease.bytes;
        let Some(buffer) = buffer.filter(|buffer| buffer.len() == lease.bytes) else { return };
        let kind = size_class(buffer.len() / PAGE_BYTES);
        if self.free.len() <= kind {
            self.free.resize_with(kind + 1, Vec::new);
        }
        if let Some(free) = self.free.get_mut(kind) {
            self.free_bytes += buffer.len();
            free.push(buffer);
        }
    }

    /// Drops free buffers, which count against the budget too, until the budget is kept.
    fn trim(&mut self) {
        for free in &mut self.free {
            while self.used_bytes + self.free_bytes > self.bytes_max {
                let Some(buffer) = free.pop() else { break };
                self.free_bytes -= buffer.len();
            }
        }
    }
}

const fn size_class(pages: usize) -> usize {
    pages.trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_within_the_budget() {
        let mut buffers = WriteBufferPool::new(16 * PAGE_BYTES);
        let (mut small, one) = buffers.take(1).unwrap();
        let (large, eight) = buffers.take(5 * PAGE_BYTES).unwrap();
        assert_eq!((small.len(), large.len()), (PAGE_BYTES, 8 * PAGE_BYTES));
        assert!(buffers.take(5 * PAGE_BYTES).is_none(), "it would be 17 pages");
        small.as_mut_slice()[0] = 7;
        buffers.release(one, Some(small));
        buffers.release(eight, Some(large));
        assert_eq!((buffers.used_bytes(), buffers.free_bytes), (0, 9 * PAGE_BYTES));
        let (small, one) = buffers.take(PAGE_BYTES).unwrap();
        assert_eq!(small.as_slice()[0], 7, "the same");
        buffers.release(one, Some(small));
        let (all, sixteen) = buffers.take(16 * PAGE_BYTES).unwrap();
        assert_eq!((all.len(), buffers.free_bytes), (16 * PAGE_BYTES, 0), "the others are gone");
        buffers.release(sixteen, None);
        assert_eq!((buffers.used_bytes(), buffers.free_bytes), (0, 0));
    }
}
