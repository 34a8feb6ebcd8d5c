//! The memory of a ring: a sealed memfd, mapped by both processes (memfd_create(2)).
//!
//! The seals keep the other process from shrinking the file, after which an access would end this
//! process with SIGBUS. All memory is accessed as atomic words, so that a process that writes where
//! it must not cannot cause a data race in this one.
#![expect(unsafe_code, reason = "memfd_create, file seals, and memory of two processes")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::mapping::Mapping;

/// Bytes before the first descriptor.
pub(super) const CONTROL_BYTES: usize = 4096;
/// Offsets of the indices and of the flag: on cache lines of their own, 128 bytes apart because
/// the adjacent-line prefetcher fetches lines in pairs.
pub(super) const TAIL_AT: usize = 0;
pub(super) const HEAD_AT: usize = 128;
pub(super) const ASLEEP_AT: usize = 256;

/// Smallest and largest capacity of a ring in bytes.
pub const CAPACITY_MIN: u32 = 4096;
/// See [`CAPACITY_MIN`]. Indices differ by at most a quarter of their range.
pub const CAPACITY_MAX: u32 = 1 << 30;

/// Seals that the memory of a ring must have.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Reason for which a file cannot be the memory of a ring.
#[derive(Debug, thiserror::Error)]
pub enum RingMemoryError {
    /// The file can be shrunk by its sender.
    #[error("the memory of the ring has no seals")]
    NotSealed,
    /// The length is not that of a ring, or exceeds the limit of the receiver.
    #[error("the memory of the ring has {0} bytes")]
    BadLength(u64),
    /// The operating system refused.
    #[error("cannot map the memory of the ring: {0}")]
    Io(#[from] io::Error),
}

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
    pub fn create(capacity: u32) -> Result<Self, RingMemoryError> {
        let bytes = CONTROL_BYTES as u64 + u64::from(capacity);
        if !is_capacity(capacity) {
            return Err(RingMemoryError::BadLength(bytes));
        }
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a C string that outlives the call.
        let fd = unsafe { libc::memfd_create(c"outboard-ring".as_ptr(), flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error().into());
        }
        // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        file.set_len(bytes)?;
        // SAFETY: no pointers are passed.
        if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, SEALS) } < 0 {
            return Err(io::Error::last_os_error().into());
        }
        Self::attach(file.into(), capacity)
    }

    /// Maps the memory of a ring that another process has created. Mapping it allocates it, at the
    /// expense of this process, so `capacity_max` bounds its capacity.
    ///
    /// # Errors
    /// If the file is no memory of a ring, or a larger one: its sender is not trusted.
    pub fn attach(fd: OwnedFd, capacity_max: u32) -> Result<Self, RingMemoryError> {
        // SAFETY: no pointers are passed.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        // A file of another kind has no seals: EINVAL.
        if seals < 0 || seals & SEALS != SEALS || seals & libc::F_SEAL_WRITE != 0 {
            return Err(RingMemoryError::NotSealed);
        }
        let file = File::from(fd);
        let len = file.metadata()?.len();
        let capacity = len.checked_sub(CONTROL_BYTES as u64).and_then(|len| len.try_into().ok());
        let capacity =
            capacity.filter(|&capacity| is_capacity(capacity) && capacity <= capacity_max);
        let (Some(capacity), Ok(bytes)) = (capacity, usize::try_from(len)) else {
            return Err(RingMemoryError::BadLength(len));
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
