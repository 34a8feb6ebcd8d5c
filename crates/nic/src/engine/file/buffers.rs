//! Memory for file blocks: counted, bounded, reused.
//!
//! A buffer is spare, in use by the disk, or shared by a block; all three count against one limit.
//! Nearly all buffers have the size of a whole block, so a steady state reuses spare ones and does
//! not allocate. The last block of a file only has the pages that it needs.

use abi::aligned::{AlignedBuf, PAGE_BYTES};
use alloc::vec::Vec;

/// The memory of the file engine.
#[derive(Debug)]
pub(crate) struct BlockBufferPool {
    /// Spare buffers, indexed by their number of pages minus one.
    spare: Vec<Vec<AlignedBuf>>,
    spare_bytes: usize,
    allocated_bytes: usize,
    disk_bytes: usize,
    bytes_max: usize,
}

impl BlockBufferPool {
    /// Creates an empty pool of up to `bytes_max` bytes, in buffers of up to `pages_max` pages.
    pub(crate) fn new(bytes_max: usize, pages_max: usize) -> Self {
        let mut spare = Vec::new();
        spare.resize_with(pages_max, Vec::new);
        Self { spare, spare_bytes: 0, allocated_bytes: 0, disk_bytes: 0, bytes_max }
    }

    /// Bytes in use, including spare buffers.
    pub(crate) const fn allocated_bytes(&self) -> usize {
        self.allocated_bytes
    }

    /// Returns a buffer for a disk read, or `None` if blocks must be evicted first.
    pub(crate) fn take_for_disk(&mut self, pages: usize) -> Option<AlignedBuf> {
        let bytes = pages * PAGE_BYTES;
        let buf = match self.spare.get_mut(pages - 1)?.pop() {
            Some(buf) => {
                self.spare_bytes -= bytes;
                buf
            }
            None => self.allocate(pages)?,
        };
        self.disk_bytes += bytes;
        Some(buf)
    }

    /// Accepts a buffer back from the disk. Returns `None` if no such amount of memory was given to
    /// it.
    pub(crate) fn accept_from_disk(&mut self, buf: AlignedBuf) -> Option<AlignedBuf> {
        self.disk_bytes = self.disk_bytes.checked_sub(buf.len())?;
        Some(buf)
    }

    /// Makes a buffer spare.
    pub(crate) fn make_spare(&mut self, buf: AlignedBuf) {
        let bytes = buf.len();
        match self.spare.get_mut(bytes / PAGE_BYTES - 1) {
            Some(spare) => {
                spare.push(buf);
                self.spare_bytes += bytes;
            }
            None => self.forget(bytes),
        }
    }

    /// Stops counting a buffer of `bytes` bytes whose remaining owners will free it.
    pub(crate) const fn forget(&mut self, bytes: usize) {
        self.allocated_bytes = self.allocated_bytes.saturating_sub(bytes);
    }

    fn allocate(&mut self, pages: usize) -> Option<AlignedBuf> {
        let bytes = pages * PAGE_BYTES;
        // Spare buffers of other sizes are freed before any content is evicted.
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
        let mut buffers = BlockBufferPool::new(4 * PAGE_BYTES, 4);
        let (a, b) = (buffers.take_for_disk(3).unwrap(), buffers.take_for_disk(1).unwrap());
        assert!(buffers.take_for_disk(1).is_none());
        let a = buffers.accept_from_disk(a).unwrap();
        let at = a.as_slice().as_ptr();
        buffers.make_spare(a);
        let a = buffers.take_for_disk(3).unwrap();
        assert_eq!(a.as_slice().as_ptr(), at, "reused");
        let a = buffers.accept_from_disk(a).unwrap();
        buffers.make_spare(a);
        let c = buffers.take_for_disk(2).unwrap();
        assert_eq!(buffers.allocated_bytes(), 3 * PAGE_BYTES, "the spare one made room");
        assert!(buffers.accept_from_disk(b).is_some() && buffers.accept_from_disk(c).is_some());
        assert!(buffers.accept_from_disk(AlignedBuf::new(1)).is_none(), "not ours");
    }
}
