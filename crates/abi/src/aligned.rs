//! Direct I/O and io_uring need buffers whose address and length are multiples of the disk's page.
//! A buffer has one owner while it is filled; then every transmit that sends from it shares it
//! read-only ([`alloc::sync::Arc`]).
#![expect(unsafe_code, reason = "allocates with an alignment, and frees what it allocated")]

use alloc::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use core::ptr::NonNull;

/// Alignment and unit of size of buffers: the page of x86-64 and of NVMe disks.
pub const PAGE_BYTES: usize = 4096;

/// Page-aligned bytes whose length is a multiple of [`PAGE_BYTES`].
pub struct AlignedBuf {
    data: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer owns its allocation; it has no interior mutability and no tie to a thread.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access is read-only.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// Allocates `pages` pages of zeroed memory.
    ///
    /// # Panics
    /// If `pages` is zero or the size in bytes overflows `isize`. Callers take the size from
    /// configuration, never from input.
    #[must_use]
    pub fn new(pages: usize) -> Self {
        let layout = Self::layout(pages * PAGE_BYTES);
        // SAFETY: the layout's size is not zero, as `layout` asserts.
        let data = unsafe { alloc_zeroed(layout) };
        let Some(data) = NonNull::new(data) else { handle_alloc_error(layout) };
        Self { data, len: pages * PAGE_BYTES }
    }

    /// Returns the length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes.
    #[must_use]
    pub const fn as_slice(&self) -> &[u8] {
        // SAFETY: `data` points to `len` initialized bytes that live as long as `self`.
        unsafe { core::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }

    /// Returns the bytes for writing.
    pub const fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `&mut self` makes the access exclusive.
        unsafe { core::slice::from_raw_parts_mut(self.data.as_ptr(), self.len) }
    }

    fn layout(len: usize) -> Layout {
        assert!(len > 0, "an aligned buffer has at least one page");
        match Layout::from_size_align(len, PAGE_BYTES) {
            Ok(layout) => layout,
            Err(_) => panic!("an aligned buffer of {len} bytes overflows"),
        }
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout, and freed once.
        unsafe { dealloc(self.data.as_ptr(), Self::layout(self.len)) };
    }
}

impl core::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_aligned_zeroed_and_writable() {
        let mut buf = AlignedBuf::new(3);
        assert_eq!(buf.as_slice().as_ptr() as usize % PAGE_BYTES, 0);
        assert_eq!(buf.len(), 3 * PAGE_BYTES);
        assert!(buf.as_slice().iter().all(|&b| b == 0));
        buf.as_mut_slice()[3 * PAGE_BYTES - 1] = 7;
        assert_eq!(buf.as_slice()[3 * PAGE_BYTES - 1], 7);
    }
}
