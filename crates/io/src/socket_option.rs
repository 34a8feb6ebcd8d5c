//! Options of sockets (getsockopt(2) and setsockopt(2)).
//!
//! Called by the modules that open sockets, when they set up or describe one.
#![expect(unsafe_code, reason = "getsockopt and setsockopt")]

use std::io;
use std::mem::size_of;
use std::os::fd::AsRawFd;

/// Sets an option, named by its level and number.
pub(crate) fn set_option<T>(
    socket: &impl AsRawFd,
    (level, option): (libc::c_int, libc::c_int),
    value: &T,
) -> io::Result<()> {
    let (fd, pointer) = (socket.as_raw_fd(), std::ptr::from_ref(value).cast());
    // SAFETY: the pointer and the length are those of `value`; the callers pair each option with
    // the type that the kernel reads for it.
    match unsafe { libc::setsockopt(fd, level, option, pointer, option_len::<T>()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads an option, and returns the number of bytes that the kernel has written. `T` is the plain
/// data that the kernel writes for the option, valid for all values of its bytes.
pub(crate) fn get_option<T>(
    socket: &impl AsRawFd,
    (level, option): (libc::c_int, libc::c_int),
    value: &mut T,
) -> io::Result<libc::socklen_t> {
    let mut len = option_len::<T>();
    let pointer = std::ptr::from_mut(value).cast();
    // SAFETY: both pointers are valid for the lengths that the kernel writes.
    match unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, pointer, &raw mut len) } {
        0 => Ok(len),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the size of an option or address.
pub(crate) fn option_len<T>() -> libc::socklen_t {
    // Options and addresses have a few bytes.
    libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0)
}
