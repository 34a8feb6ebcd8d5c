//! Writes, flushes and zeroing in the calling thread, shared by the blocking backends, and the
//! meaning of write errors.
//!
//! Writes go through the page cache. A write that must survive a loss of power is followed by a
//! flush: `fdatasync(2)` writes the data and the metadata needed to find it.
#![expect(unsafe_code, reason = "fallocate")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use abi::FileFault;

use super::resolve::is_transient;

/// Bytes per write if the file system cannot zero a range itself.
pub(super) const ZERO_BYTES: usize = 128 * 1024;
/// Source of these writes.
pub(super) static ZEROS: [u8; ZERO_BYTES] = [0; ZERO_BYTES];

/// Writes all of `bytes` at `offset`, and flushes if `fua`; returns whether it took more than one
/// call.
pub(super) fn write_whole(
    file: &File,
    bytes: &[u8],
    offset: u64,
    fua: bool,
) -> Result<bool, FileFault> {
    let (mut done, mut pieces) = (0, 0);
    while done < bytes.len() {
        match file.write_at(&bytes[done..], offset + done as u64) {
            Ok(0) => return Err(FileFault::Io),
            Ok(written) => done += written,
            Err(error) if is_transient(&error) => continue,
            Err(error) => return Err(write_fault_of(&error)),
        }
        pieces += 1;
    }
    if fua {
        flush(file)?;
    }
    Ok(pieces > 1)
}

/// Flushes written data to the disk.
pub(super) fn flush(file: &File) -> Result<(), FileFault> {
    loop {
        match file.sync_data() {
            Ok(()) => return Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) => return Err(write_fault_of(&error)),
        }
    }
}

/// Makes a range read as zeros; returns whether zeros had to be written.
pub(super) fn zero(
    file: &File,
    offset: u64,
    len: u64,
    deallocate: bool,
) -> Result<bool, FileFault> {
    match fallocate(file, offset, len, deallocate) {
        Ok(()) => Ok(false),
        Err(error) if is_fallocate_unsupported(&error) => {
            write_zeros(file, offset, len).map(|()| true)
        }
        Err(error) => Err(write_fault_of(&error)),
    }
}

fn fallocate(file: &File, offset: u64, len: u64, deallocate: bool) -> io::Result<()> {
    let range = |n: u64| libc::off_t::try_from(n).map_err(io::Error::other);
    let (offset, len) = (range(offset)?, range(len)?);
    loop {
        // SAFETY: no pointers; the descriptor is open.
        let result =
            unsafe { libc::fallocate(file.as_raw_fd(), zero_mode(deallocate), offset, len) };
        let error = io::Error::last_os_error();
        if result == 0 {
            return Ok(());
        } else if error.raw_os_error() != Some(libc::EINTR) {
            return Err(error);
        }
    }
}

fn write_zeros(file: &File, offset: u64, len: u64) -> Result<(), FileFault> {
    let mut done = 0;
    while done < len {
        let step = usize::try_from(len - done).unwrap_or(usize::MAX).min(ZERO_BYTES);
        write_whole(file, &ZEROS[..step], offset + done, false)?;
        done += step as u64;
    }
    Ok(())
}

/// Returns the mode of `fallocate(2)` that zeroes a range.
pub(super) const fn zero_mode(deallocate: bool) -> i32 {
    let how = if deallocate { libc::FALLOC_FL_PUNCH_HOLE } else { libc::FALLOC_FL_ZERO_RANGE };
    how | libc::FALLOC_FL_KEEP_SIZE
}

/// Returns whether an error of `fallocate(2)` means that the operation is not supported: on this
/// file system, or (EINVAL, block devices) at this alignment.
pub(super) fn is_fallocate_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL))
}

/// Converts an error of a write for the requester.
pub(super) fn write_fault_of(error: &io::Error) -> FileFault {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => FileFault::NoSpace,
        // EPERM: a sealed or immutable file. EROFS: the file system was mounted again, read-only.
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => FileFault::Denied,
        _ => FileFault::Io,
    }
}
