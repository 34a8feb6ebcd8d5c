//! Memory for blocks: counted, bounded, reused.
//!
//! A buffer is spare, lent to the disk, or shared by a block; all three count against one limit.
//! Buffers of a whole block are by far the most, so that a steady state takes spare ones and does
//! not allocate; the tail of a file is as short as its pages.

use abi::aligned::{AlignedBuf, PAGE_BYTES};
use alloc::vec::Vec;

/// All memory of the file engine.
#[derive(Debug)]
pub(crate) struct Buffers {
    /// Free buffers by their pages, less one.
    spare: Vec<Vec<AlignedBuf>>,
    spare_bytes: usize,
    allocated_bytes: usize,
    lent_bytes: usize,
    bytes_max: usize,
}

impl Buffers {
    /// No buffers; up to `bytes_max` bytes in buffers of up to `pages_max` pages.
    pub(crate) fn new(bytes_max: usize, pages_max: usize) -> Self {
        let mut spare = Vec::new();
        spare.resize_with(pages_max, Vec::new);
        Self { spare, spare_bytes: 0, allocated_bytes: 0, lent_bytes: 0, bytes_max }
    }

    /// Memory in use, wherever it is.
    pub(crate) const fn allocated_bytes(&self) -> usize {
        self.allocated_bytes
    }

    /// A buffer to lend to the disk, or `None` where blocks have to go first.
    pub(crate) fn lend(&mut self, pages: usize) -> Option<AlignedBuf> {
        let bytes = pages * PAGE_BYTES;
        let buf = match self.spare.get_mut(pages - 1)?.pop() {
            Some(buf) => {
                self.spare_bytes -= bytes;
                buf
            }
            None => self.allocate(pages)?,
        };
        self.lent_bytes += bytes;
        Some(buf)
    }

    /// Takes a buffer from the disk; `None` where it is not one that was lent.
    pub(crate) fn take_back(&mut self, buf: AlignedBuf) -> Option<AlignedBuf> {
        self.lent_bytes = self.lent_bytes.checked_sub(buf.len())?;
        Some(buf)
    }

    /// Keeps a buffer for the next reader.
    pub(crate) fn put(&mut self, buf: AlignedBuf) {
        let bytes = buf.len();
        match self.spare.get_mut(bytes / PAGE_BYTES - 1) {
            Some(spare) => {
                spare.push(buf);
                self.spare_bytes += bytes;
            }
            None => self.forget(bytes),
        }
    }

    /// A buffer of `bytes` bytes is in other hands for good and frees itself there.
    pub(crate) const fn forget(&mut self, bytes: usize) {
        self.allocated_bytes = self.allocated_bytes.saturating_sub(bytes);
    }

    fn allocate(&mut self, pages: usize) -> Option<AlignedBuf> {
        let bytes = pages * PAGE_BYTES;
        // Spare buffers of other sizes make room before any content has to go.
        while self.allocated_bytes + bytes > self.bytes_max && self.spare_bytes > 0 {
            let buf = self.spare.iter_mut().rev().find_map(Vec::pop)?;
            self.spare_bytes -= buf.len();
            self.allocated_bytes -= buf.len();
        }
        if self.allocated_bytes + bytes > self.bytes_max {
            return None;
        }
        self.allocated_bytes += bytes;
        Some(AlignedBuf::new(pages))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_share_one_limit() {
        let mut buffers = Buffers::new(4 * PAGE_BYTES, 4);
        let (a, b) = (buffers.lend(3).unwrap(), buffers.lend(1).unwrap());
        assert!(buffers.lend(1).is_none());
        let a = buffers.take_back(a).unwrap();
        let at = a.as_slice().as_ptr();
        buffers.put(a);
        let a = buffers.lend(3).unwrap();
        assert_eq!(a.as_slice().as_ptr(), at, "reused");
        let a = buffers.take_back(a).unwrap();
        buffers.put(a);
        let c = buffers.lend(2).unwrap();
        assert_eq!(buffers.allocated_bytes(), 3 * PAGE_BYTES, "the spare one made room");
        assert!(buffers.take_back(b).is_some() && buffers.take_back(c).is_some());
        assert!(buffers.take_back(AlignedBuf::new(1)).is_none(), "not ours");
    }
}
