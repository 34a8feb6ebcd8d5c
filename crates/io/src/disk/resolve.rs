//! Opening of paths beneath a directory, and the meaning of the kernel's errors.
//!
//! Called for the files of a root and for uploads. The kernel resolves the paths: `openat2(2)` with
//! `RESOLVE_BENEATH` refuses all ways out of the directory (`..`, absolute paths, symbolic links)
//! at the open, without the race of a check in user space with a rename. Symbolic links that stay
//! inside are followed.
#![expect(unsafe_code, reason = "openat2")]

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use abi::{FileFault, Refusal};

/// Flags of the resolution of all paths. Magic links (`/proc/PID/fd`) could lead anywhere.
pub(super) const RESOLVE: u64 = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_MAGICLINKS;

/// Opens a path beneath a directory with these flags, which create no file.
pub(super) fn open_beneath(dir: RawFd, path: &CStr, flags: u64) -> io::Result<File> {
    // SAFETY: an open_how is plain data, valid as zeros.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = flags;
    how.resolve = RESOLVE;
    let size = size_of::<libc::open_how>();
    // SAFETY: the path is NUL-terminated, `how` is valid for `size` bytes, and both outlive the
    // call.
    let fd = unsafe { libc::syscall(libc::SYS_openat2, dir, path.as_ptr(), &raw const how, size) };
    match i32::try_from(fd) {
        // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
        Ok(fd @ 0..) => Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) })),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns whether a call that failed should be repeated.
pub(super) fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR))
}

/// Converts an error of the kernel for the requester.
pub(super) fn file_fault_of(error: &io::Error) -> FileFault {
    match error.raw_os_error() {
        Some(libc::ENOENT) => FileFault::NotFound,
        // EXDEV: the path leads out of the root.
        Some(libc::EACCES | libc::EPERM | libc::EXDEV | libc::EROFS) => FileFault::Denied,
        Some(libc::ELOOP | libc::ENAMETOOLONG | libc::ENOTDIR | libc::EINVAL | libc::EISDIR) => {
            FileFault::BadPath
        }
        Some(libc::EMFILE | libc::ENFILE) => FileFault::Refused(Refusal::TableFull),
        _ => FileFault::Io,
    }
}
