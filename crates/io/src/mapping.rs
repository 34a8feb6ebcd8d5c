//! Memory that the process maps: its own, that of a socket's rings, or a file shared with another
//! process.
//!
//! Used by [`crate::xdp`], [`crate::packet_socket`], [`crate::shared_ring`] and
//! [`crate::shared_region`]. The owner of a
//! [`Mapping`] bounds its accesses by [`Mapping::len`].
#![expect(unsafe_code, reason = "mmap and munmap")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;

/// Memory that is unmapped when it is dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process; its owner alone accesses it.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps zeroed memory of the process.
    pub(crate) fn anonymous(bytes: usize) -> io::Result<Self> {
        Self::new(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    }

    /// Maps `bytes` of a socket or file, shared with the kernel or with other processes, from the
    /// offset `at`.
    pub(crate) fn shared(file: &impl AsFd, bytes: usize, at: libc::off_t) -> io::Result<Self> {
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        Self::new(bytes, flags, file.as_fd().as_raw_fd(), at)
    }

    /// Maps a file as [`Self::shared`] does, but allocates its pages when they are used.
    pub(crate) fn sparse(file: &impl AsFd, bytes: usize) -> io::Result<Self> {
        Self::new(bytes, libc::MAP_SHARED, file.as_fd().as_raw_fd(), 0)
    }

    fn new(bytes: usize, flags: libc::c_int, fd: libc::c_int, at: libc::off_t) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses the address, so no memory that is in use is replaced.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd, at) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, bytes })
    }

    pub(crate) const fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) const fn len(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and its owner holds no pointer into it any longer.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
