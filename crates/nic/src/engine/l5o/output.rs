//! Memory for what was sealed: buffers that go around.
//!
//! Content is never sealed where it lies, since host memory and file blocks are shared; it is
//! sealed into a buffer from here, which the frames that leave then share. Once the wire has let go
//! of them, the buffer is used again. Buffers of a size stand in the order in which they were lent,
//! and the wire lets go about in that order, so the oldest is looked at first.
//!
//! Bounded: [`Outputs::has_room`] says no while more than [`BYTES_MAX`] are lent. What a transmit
//! that was taken before needs it gets nevertheless.

use abi::aligned::{AlignedBuf, PAGE_BYTES};
use alloc::collections::VecDeque;
use alloc::sync::Arc;

/// Sealed bytes on their way at which no more operations are taken.
const BYTES_MAX: usize = 64 << 20;
/// Sizes are powers of two of pages: the last has 2 GiB, more than a transmit can be.
const CLASSES: usize = 20;
/// Buffers that are looked at before a new one is made.
const LOOKS: usize = 4;

/// All buffers.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    classes: [VecDeque<Arc<AlignedBuf>>; CLASSES],
    bytes: usize,
}

impl Outputs {
    /// A buffer of at least `len` bytes, with old content, that nobody else has.
    pub(super) fn take(&mut self, len: usize) -> Arc<AlignedBuf> {
        let class = Self::class(len);
        let free = &mut self.classes[class];
        for _ in 0..free.len().min(LOOKS) {
            let Some(mut buffer) = free.pop_front() else { break };
            if Arc::get_mut(&mut buffer).is_some() {
                self.bytes -= buffer.len();
                return buffer;
            }
            free.push_back(buffer);
        }
        Arc::new(AlignedBuf::new(1 << class))
    }

    /// Notes that a buffer was lent.
    pub(super) fn lent(&mut self, buffer: &Arc<AlignedBuf>) {
        self.bytes += buffer.len();
        self.classes[Self::class(buffer.len())].push_back(Arc::clone(buffer));
    }

    /// Whether the bound is not reached.
    pub(super) const fn has_room(&self) -> bool {
        self.bytes < BYTES_MAX
    }

    /// Lets go of buffers that came back, where there are too many.
    pub(super) fn trim(&mut self) {
        for class in &mut self.classes {
            if self.bytes < BYTES_MAX {
                return;
            }
            let bytes = &mut self.bytes;
            class.retain(|buffer| {
                let keep = Arc::strong_count(buffer) > 1 || *bytes < BYTES_MAX;
                *bytes -= if keep { 0 } else { buffer.len() };
                keep
            });
        }
    }

    /// Bytes in all buffers that are lent or were.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Forgets all of them.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Which size `len` bytes need.
    fn class(len: usize) -> usize {
        let pages = len.div_ceil(PAGE_BYTES).max(1).next_power_of_two();
        (pages.trailing_zeros() as usize).min(CLASSES - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_go_around() {
        let mut outputs = Outputs::default();
        let a = outputs.take(5000);
        assert_eq!(a.len(), 2 * PAGE_BYTES);
        outputs.lent(&a);
        let b = outputs.take(5000);
        assert!(!Arc::ptr_eq(&a, &b), "still lent");
        outputs.lent(&b);
        let first = Arc::as_ptr(&a);
        drop(a);
        assert_eq!(Arc::as_ptr(&outputs.take(8192)), first);
        assert_eq!(outputs.bytes(), 2 * PAGE_BYTES);
    }

    #[test]
    fn the_bound_is_seen_and_left_again() {
        let mut outputs = Outputs::default();
        let mut lent = alloc::vec![];
        while outputs.has_room() {
            let buffer = outputs.take(1 << 20);
            outputs.lent(&buffer);
            lent.push(buffer);
        }
        assert_eq!(lent.len(), 64);
        outputs.trim();
        assert!(!outputs.has_room());
        lent.truncate(60);
        outputs.trim();
        assert!(outputs.has_room());
    }
}
