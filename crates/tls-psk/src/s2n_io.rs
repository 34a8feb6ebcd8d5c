//! The callbacks by which s2n-tls reads and writes: they use memory of ours instead of a socket.
#![expect(unsafe_code, reason = "callbacks of a C library")]

use std::ffi::c_void;
use std::ptr::NonNull;
use std::slice;

use s2n_tls::connection::Connection;
use s2n_tls::error::Error;

/// Bytes exchanged with the library.
#[derive(Default)]
struct S2nPipe {
    received: Vec<u8>,
    /// Bytes of `received` that the library has read.
    read: usize,
    sent: Vec<u8>,
}

/// Owns the [`S2nPipe`] that a connection's callbacks point to. Must outlive the connection.
pub(super) struct S2nIo(NonNull<S2nPipe>);

// SAFETY: only this link and the callbacks of its connection access the pipe. The callbacks run
// only within calls of the connection's methods, and the connection moves together with this link.
unsafe impl Send for S2nIo {}

impl S2nIo {
    pub(super) fn new() -> Self {
        Self(NonNull::from(Box::leak(Box::<S2nPipe>::default())))
    }

    /// Makes a connection read and write here. The connection must be dropped before this link.
    pub(super) fn attach(&self, connection: &mut Connection) -> Result<(), Error> {
        let context = self.0.as_ptr().cast::<c_void>();
        connection.set_receive_callback(Some(receive))?.set_send_callback(Some(send))?;
        // SAFETY: the context points to the pipe, the type that `receive` casts it to; the pipe
        // lives until this link is dropped, after the connection.
        unsafe { connection.set_receive_context(context) }?;
        // SAFETY: the same, for `send`.
        unsafe { connection.set_send_context(context) }?;
        Ok(())
    }

    /// Replaces the bytes that the connection can read.
    pub(super) fn set_received(&mut self, received: &[u8]) {
        // SAFETY: `new` created the pipe and only `drop` frees it. No other reference exists:
        // callbacks create one only while a method of the connection runs.
        let pipe = unsafe { self.0.as_mut() };
        pipe.received.clear();
        pipe.received.extend_from_slice(received);
        pipe.read = 0;
    }

    /// Returns the number of bytes that were read, and takes the bytes that were written.
    pub(super) fn take_sent(&mut self) -> (usize, Vec<u8>) {
        // SAFETY: as in `set_received`.
        let pipe = unsafe { self.0.as_mut() };
        (pipe.read, std::mem::take(&mut pipe.sent))
    }
}

impl Drop for S2nIo {
    fn drop(&mut self) {
        // SAFETY: `new` leaked this box, and the connection, which had a copy of the pointer, is
        // dropped.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Copies up to `len` bytes to `buf`; fails with `EAGAIN` if there are none.
unsafe extern "C" fn receive(context: *mut c_void, buf: *mut u8, len: u32) -> i32 {
    // SAFETY: the context is the pipe that `attach` set, and no other reference to it exists while
    // the library runs.
    let pipe = unsafe { &mut *context.cast::<S2nPipe>() };
    let rest = pipe.received.get(pipe.read..).unwrap_or_default();
    let n = rest.len().min(len as usize).min(i32::MAX as usize);
    if n == 0 {
        // SAFETY: the pointer to the thread's own errno is always valid.
        unsafe { *libc::__errno_location() = libc::EAGAIN };
        return -1;
    }
    // SAFETY: the library provides `len` bytes of its own memory at `buf`, so the ranges are valid
    // and disjoint.
    unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), buf, n) };
    pipe.read += n;
    i32::try_from(n).unwrap_or(-1)
}

/// Takes all `len` bytes at `buf`.
unsafe extern "C" fn send(context: *mut c_void, buf: *const u8, len: u32) -> i32 {
    // SAFETY: as in `receive`.
    let pipe = unsafe { &mut *context.cast::<S2nPipe>() };
    let n = len.min(i32::MAX as u32);
    if n > 0 {
        // SAFETY: `buf` points to `len` initialized bytes, which the library does not change during
        // the call.
        pipe.sent.extend_from_slice(unsafe { slice::from_raw_parts(buf, n as usize) });
    }
    i32::try_from(n).unwrap_or(-1)
}
