//! The memory of a ring: a sealed file, mapped by both processes ([`crate::sealed_file`]).
//!
//! All memory is accessed as atomic words, or by assembly code (`shared_copy`), so that a process
//! that writes where it must not cannot cause a data race in this one.
#![expect(unsafe_code, reason = "memory of two processes")]

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::mapping::Mapping;
use crate::sealed_file::{self, SharedMemoryError};

/// Bytes before the first descriptor.
pub(super) const CONTROL_BYTES: usize = 4096;
/// Offsets of the indices and of the flag: on cache lines of their own, 128 bytes apart because
/// the adjacent-line prefetcher fetches lines in pairs.
pub(super) const TAIL_AT: usize = 0;
/// Beside the tail, with which it is read.
pub(super) const BASE_AT: usize = 4;
pub(super) const HEAD_AT: usize = 128;
pub(super) const ASLEEP_AT: usize = 256;

/// Smallest and largest capacity of a ring in bytes.
pub const CAPACITY_MIN: u32 = 4096;
/// See [`CAPACITY_MIN`]. Indices differ by at most a quarter of their range.
pub const CAPACITY_MAX: u32 = 1 << 30;

/// Memory of one ring. One process creates it and passes its descriptor to the other.
#[derive(Debug)]
pub struct SharedRingMemory {
    mapping: Mapping,
    file: File,
    capacity: u32,
}

impl SharedRingMemory {
    /// Creates the memory of an empty ring of `capacity` bytes.
    ///
    /// # Errors
    /// If `capacity` is not a power of two in [`CAPACITY_MIN`] to [`CAPACITY_MAX`], or if the
    /// operating system refuses memory or a descriptor.
    pub fn create(capacity: u32) -> Result<Self, SharedMemoryError> {
        let bytes = CONTROL_BYTES as u64 + u64::from(capacity);
        if !is_capacity(capacity) {
            return Err(SharedMemoryError::BadLength(bytes));
        }
        Self::attach(sealed_file::create("outboard-ring", bytes)?.into(), capacity)
    }

    /// Maps the memory of a ring that another process has created. Mapping it allocates it, at the
    /// expense of this process, so `capacity_max` bounds its capacity.
    ///
    /// # Errors
    /// If the file is no memory of a ring, or a larger one: its sender is not trusted.
    pub fn attach(fd: OwnedFd, capacity_max: u32) -> Result<Self, SharedMemoryError> {
        let (file, len) = sealed_file::accept(fd)?.ok_or(SharedMemoryError::NotSealed)?;
        let capacity = len.checked_sub(CONTROL_BYTES as u64).and_then(|len| len.try_into().ok());
        let capacity =
            capacity.filter(|&capacity| is_capacity(capacity) && capacity <= capacity_max);
        let (Some(capacity), Ok(bytes)) = (capacity, usize::try_from(len)) else {
            return Err(SharedMemoryError::BadLength(len));
        };
        let mapping = Mapping::shared(&file, bytes, 0)?;
        Ok(Self { mapping, file, capacity })
    }

    /// Returns the capacity in bytes, a power of two.
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Returns an index or flag. `at` is one of the constants of this module.
    #[inline]
    pub(super) fn control(&self, at: usize) -> &AtomicU32 {
        debug_assert!(at < CONTROL_BYTES && at % size_of::<AtomicU32>() == 0, "{at}");
        // SAFETY: `at` lies in the mapping and is aligned, the mapping is page-aligned and lives
        // as long as `self`, and the file cannot shrink.
        unsafe { self.mapping.base().add(at).cast::<AtomicU32>().as_ref() }
    }

    /// Returns the words of the descriptors.
    #[inline]
    pub(super) fn words(&self) -> &[AtomicU64] {
        let count = self.capacity as usize / size_of::<AtomicU64>();
        debug_assert_eq!(CONTROL_BYTES + self.capacity as usize, self.mapping.len());
        // SAFETY: the mapping has `capacity` bytes from the aligned offset on, lives as long as
        // `self`, and the file cannot shrink.
        unsafe {
            let first = self.mapping.base().add(CONTROL_BYTES).cast::<AtomicU64>();
            std::slice::from_raw_parts(first.as_ptr(), count)
        }
    }
}

impl AsFd for SharedRingMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

const fn is_capacity(capacity: u32) -> bool {
    capacity.is_power_of_two() && capacity >= CAPACITY_MIN && capacity <= CAPACITY_MAX
}
