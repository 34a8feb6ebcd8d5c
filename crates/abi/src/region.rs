//! Memory that the processes of a host and of its device share.
//!
//! A program registers a region when it attaches; descriptors name ranges of it
//! ([`crate::layout::MemoryRange`]). The carriers implement [`SharedRegion`]; [`HeapRegion`] is the
//! one of tests and of the simulator, whose two sides are one process.
//!
//! Invariant: neither side has a reference to the bytes, because the other one may write to them at
//! any time. They are copied in and out, and a copy is judged only after it was made.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicU8, Ordering};

/// A region, as one of the two sides has mapped it.
pub trait SharedRegion: Send + Sync + fmt::Debug {
    /// Returns the length in bytes.
    fn len(&self) -> usize;

    /// Returns whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `bytes` to the region, from the offset `at` on.
    ///
    /// # Panics
    /// If they do not fit: the caller has checked the range.
    fn write(&self, at: usize, bytes: &[u8]);

    /// Copies the bytes of the region from the offset `at` on to `out`, which it fills.
    ///
    /// # Panics
    /// As [`Self::write`].
    fn read(&self, at: usize, out: &mut [u8]);
}

/// A range of a region, which lies in it.
#[derive(Clone)]
pub struct RegionRange {
    region: Arc<dyn SharedRegion>,
    range: Range<usize>,
}

impl RegionRange {
    /// Returns the range of `len` bytes at `offset`; `None` if the region has no such range.
    #[must_use]
    pub fn new(region: &Arc<dyn SharedRegion>, offset: u64, len: usize) -> Option<Self> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(len).filter(|&end| end <= region.len())?;
        Some(Self { region: Arc::clone(region), range: start..end })
    }

    /// Returns the offset in the region.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.range.start
    }

    /// Returns the length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.range.end - self.range.start
    }

    /// Returns whether there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.range.start == self.range.end
    }

    /// Copies `bytes` to the range, from its byte `at` on. Returns false, and copies nothing, if
    /// they do not fit.
    pub fn write(&self, at: usize, bytes: &[u8]) -> bool {
        let fits = at.checked_add(bytes.len()).is_some_and(|end| end <= self.len());
        if fits {
            self.region.write(self.range.start + at, bytes);
        }
        fits
    }
}

impl fmt::Debug for RegionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegionRange({:?})", self.range)
    }
}

/// A region in the memory of one process.
#[derive(Debug)]
pub struct HeapRegion(Box<[AtomicU8]>);

impl HeapRegion {
    /// Creates a region of `len` zeroed bytes.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self((0..len).map(|_| AtomicU8::new(0)).collect())
    }
}

impl SharedRegion for HeapRegion {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        let to = &self.0[at..at + bytes.len()];
        to.iter().zip(bytes).for_each(|(to, &byte)| to.store(byte, Ordering::Relaxed));
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        let from = &self.0[at..at + out.len()];
        from.iter().zip(out).for_each(|(from, byte)| *byte = from.load(Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_lie_in_their_region() {
        let region: Arc<dyn SharedRegion> = Arc::new(HeapRegion::new(100));
        let range = |offset, len| RegionRange::new(&region, offset, len);
        assert!(range(0, 101).is_none() && range(100, 1).is_none());
        assert!(range(u64::MAX, 1).is_none() && range(1, usize::MAX).is_none());
        let part = range(90, 10).unwrap();
        assert!(part.write(8, &[1, 2]));
        assert!(!part.write(9, &[3, 4]) && !part.write(usize::MAX, &[5]));
        let mut bytes = [9; 4];
        region.read(96, &mut bytes);
        assert_eq!(bytes, [0, 0, 1, 2]);
        assert!(range(100, 0).unwrap().is_empty());
    }
}
