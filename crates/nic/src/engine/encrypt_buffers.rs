//! Recycled buffers for encrypted payloads.
//!
//! Content is never encrypted in place, since host memory and file blocks are shared. It is
//! encrypted into a buffer from here, which the outgoing frames then share. Once the link has
//! dropped its references, the buffer is reused, the most recent first because it is still in the
//! CPU cache. Buffers in use are queued in the order in which they left, which is about the order
//! in which the link releases them, so free ones are found at the front.
//!
//! Bounded: [`EncryptBuffers::has_room`] is false once [`BYTES_MAX`] bytes are in use. A transmit
//! that was accepted before still gets its buffer.

use abi::aligned::{AlignedBuf, PAGE_BYTES};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Minimum output of a transmit that is encrypted by workers. To pass less to another core takes
/// about as long as to encrypt it.
pub(super) const JOB_BYTES_MIN: usize = 4 << 10;
/// Maximum output of a job, unless a record or datagram is longer: small enough that the jobs of a
/// transmit keep several workers busy.
pub(super) const JOB_BYTES_MAX: usize = 34 << 10;
/// Bytes in use at which no more operations are taken.
const BYTES_MAX: usize = 64 << 20;
/// Maximum bytes of free buffers kept per size class.
const FREE_BYTES_MAX: usize = 16 << 20;
/// Number of size classes. A class is a power of two of pages; the last is 2 GiB, more than a
/// transmit can have.
const CLASSES: usize = 20;

/// Buffers of one size class.
#[derive(Debug, Default)]
struct BufferSizeClass {
    in_use: VecDeque<Arc<AlignedBuf>>,
    free: Vec<Arc<AlignedBuf>>,
}

/// The buffers of all size classes.
#[derive(Debug, Default)]
pub(super) struct EncryptBuffers {
    classes: [BufferSizeClass; CLASSES],
    /// Bytes of buffers in use, including those whose release has not been noticed yet.
    bytes: usize,
}

impl EncryptBuffers {
    /// Returns an unshared buffer of at least `len` bytes with unspecified content.
    pub(super) fn take(&mut self, len: usize) -> Arc<AlignedBuf> {
        let class = Self::class(len);
        self.reclaim(class);
        let free = self.classes[class].free.pop();
        free.unwrap_or_else(|| Arc::new(AlignedBuf::new(1 << class)))
    }

    /// Records that frames share `buffer`.
    pub(super) fn mark_in_use(&mut self, buffer: &Arc<AlignedBuf>) {
        self.bytes += buffer.len();
        self.classes[Self::class(buffer.len())].in_use.push_back(Arc::clone(buffer));
    }

    /// Returns whether fewer than [`BYTES_MAX`] bytes are in use.
    pub(super) const fn has_room(&self) -> bool {
        self.bytes < BYTES_MAX
    }

    /// Reclaims released buffers if the bound is reached.
    pub(super) fn trim(&mut self) {
        for class in 0..CLASSES {
            if self.has_room() {
                return;
            }
            self.reclaim(class);
            // A buffer that the link keeps for long must not hide the released ones behind it.
            if let Some(kept) = self.classes[class].in_use.pop_front() {
                self.classes[class].in_use.push_back(kept);
            }
        }
    }

    /// Reclaims the released buffers at the front of a class.
    fn reclaim(&mut self, class: usize) {
        let BufferSizeClass { in_use: lent, free } = &mut self.classes[class];
        while lent.front_mut().is_some_and(|buffer| Arc::get_mut(buffer).is_some()) {
            let Some(buffer) = lent.pop_front() else { return };
            self.bytes -= buffer.len();
            if (free.len() + 1) * buffer.len() <= FREE_BYTES_MAX {
                free.push(buffer);
            }
        }
    }

    /// Bytes of all buffers in use, including those whose release has not been noticed yet.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Drops all buffers.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the size class for `len` bytes.
    fn class(len: usize) -> usize {
        let pages = len.div_ceil(PAGE_BYTES).max(1).next_power_of_two();
        (pages.trailing_zeros() as usize).min(CLASSES - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_reused() {
        let mut outputs = EncryptBuffers::default();
        let a = outputs.take(5000);
        assert_eq!(a.len(), 2 * PAGE_BYTES);
        outputs.mark_in_use(&a);
        let b = outputs.take(5000);
        assert!(!Arc::ptr_eq(&a, &b), "still lent");
        outputs.mark_in_use(&b);
        let first = Arc::as_ptr(&a);
        drop(a);
        assert_eq!(Arc::as_ptr(&outputs.take(8192)), first);
        assert_eq!(outputs.bytes(), 2 * PAGE_BYTES, "the other is still lent");
    }

    #[test]
    fn room_returns_once_buffers_are_released() {
        let mut outputs = EncryptBuffers::default();
        let mut lent = alloc::vec![];
        while outputs.has_room() {
            let buffer = outputs.take(1 << 20);
            outputs.mark_in_use(&buffer);
            lent.push(buffer);
        }
        assert_eq!(lent.len(), 64);
        outputs.trim();
        assert!(!outputs.has_room());
        lent.drain(1..5);
        outputs.trim();
        assert!(outputs.has_room(), "the first of all does not hide them");
    }
}
