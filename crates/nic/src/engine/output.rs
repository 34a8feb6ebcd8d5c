//! Memory for what was sealed: buffers that go around.
//!
//! Content is never sealed where it lies, since host memory and file blocks are shared; it is
//! sealed into a buffer from here, which the frames that leave then share. Once the wire has let go
//! of them, the buffer is used again, the latest first, while the cache still has it. Those that
//! are lent stand in the order in which they left, and the wire lets go about in that order: what
//! came back is found at the front.
//!
//! Bounded: [`Outputs::has_room`] says no while more than [`BYTES_MAX`] are lent. What a transmit
//! that was taken before needs it gets nevertheless.

use abi::aligned::{AlignedBuf, PAGE_BYTES};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Sealed bytes on their way at which no more operations are taken.
const BYTES_MAX: usize = 64 << 20;
/// Bytes of buffers of one size that wait to be used again.
const FREE_BYTES_MAX: usize = 16 << 20;
/// Sizes are powers of two of pages: the last has 2 GiB, more than a transmit can be.
const CLASSES: usize = 20;

/// Buffers of one size.
#[derive(Debug, Default)]
struct Class {
    lent: VecDeque<Arc<AlignedBuf>>,
    free: Vec<Arc<AlignedBuf>>,
}

/// All buffers.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    classes: [Class; CLASSES],
    /// Bytes that are lent, as far as is known.
    bytes: usize,
}

impl Outputs {
    /// A buffer of at least `len` bytes, with old content, that nobody else has.
    pub(super) fn take(&mut self, len: usize) -> Arc<AlignedBuf> {
        let class = Self::class(len);
        self.reclaim(class);
        let free = self.classes[class].free.pop();
        free.unwrap_or_else(|| Arc::new(AlignedBuf::new(1 << class)))
    }

    /// Notes that a buffer was lent.
    pub(super) fn lent(&mut self, buffer: &Arc<AlignedBuf>) {
        self.bytes += buffer.len();
        self.classes[Self::class(buffer.len())].lent.push_back(Arc::clone(buffer));
    }

    /// Whether the bound is not reached.
    pub(super) const fn has_room(&self) -> bool {
        self.bytes < BYTES_MAX
    }

    /// Looks for what came back, where the bound is reached.
    pub(super) fn trim(&mut self) {
        for class in 0..CLASSES {
            if self.has_room() {
                return;
            }
            self.reclaim(class);
            // One that the wire keeps for longer must not hide those behind it.
            if let Some(kept) = self.classes[class].lent.pop_front() {
                self.classes[class].lent.push_back(kept);
            }
        }
    }

    /// Takes back what the wire has let go of, from the front.
    fn reclaim(&mut self, class: usize) {
        let Class { lent, free } = &mut self.classes[class];
        while lent.front_mut().is_some_and(|buffer| Arc::get_mut(buffer).is_some()) {
            let Some(buffer) = lent.pop_front() else { return };
            self.bytes -= buffer.len();
            if (free.len() + 1) * buffer.len() <= FREE_BYTES_MAX {
                free.push(buffer);
            }
        }
    }

    /// Bytes in all buffers that are lent, as far as is known.
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
        assert_eq!(outputs.bytes(), 2 * PAGE_BYTES, "the other is still lent");
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
        lent.drain(1..5);
        outputs.trim();
        assert!(outputs.has_room(), "the first of all does not hide them");
    }
}
