//! The bytes that s2n-tls reads and writes: its callbacks work on memory of ours, not on a socket.
#![expect(unsafe_code, reason = "callbacks of a C library")]

use std::ffi::c_void;
use std::ptr::NonNull;
use std::slice;

use s2n_tls::connection::Connection;
use s2n_tls::error::Error;

/// What passes between us and the library.
#[derive(Default)]
struct Pipe {
    received: Vec<u8>,
    /// How much of `received` the library has read.
    read: usize,
    sent: Vec<u8>,
}

/// Owns the [`Pipe`] that a connection's callbacks have a pointer to; so it has to outlive the
/// connection.
pub(super) struct Link(NonNull<Pipe>);

// SAFETY: the pipe is memory of our own that nothing but this link and the callbacks of its
// connection touch, and those run in calls of the connection's methods only, which go with it.
unsafe impl Send for Link {}

impl Link {
    pub(super) fn new() -> Self {
        Self(NonNull::from(Box::leak(Box::<Pipe>::default())))
    }

    /// Has the connection read and write here. It must be dropped before this link.
    pub(super) fn attach(&self, connection: &mut Connection) -> Result<(), Error> {
        let context = self.0.as_ptr().cast::<c_void>();
        connection.set_receive_callback(Some(receive))?.set_send_callback(Some(send))?;
        // SAFETY: the context is the pipe, which is what `receive` takes it for; it lives until
        // this link is dropped, after the connection.
        unsafe { connection.set_receive_context(context) }?;
        // SAFETY: the same, of `send`.
        unsafe { connection.set_send_context(context) }?;
        Ok(())
    }

    /// What the connection may read next, in place of what it had.
    pub(super) fn give(&mut self, received: &[u8]) {
        // SAFETY: `new` made it and `drop` alone frees it. There is no other reference: callbacks
        // make one while a method of the connection runs, which none does now.
        let pipe = unsafe { self.0.as_mut() };
        pipe.received.clear();
        pipe.received.extend_from_slice(received);
        pipe.read = 0;
    }

    /// How much of what was given has been read, and what was written.
    pub(super) fn take(&mut self) -> (usize, Vec<u8>) {
        // SAFETY: as in `give`.
        let pipe = unsafe { self.0.as_mut() };
        (pipe.read, std::mem::take(&mut pipe.sent))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // SAFETY: `new` leaked this box, and the connection that had a copy of the pointer is gone.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Reads up to `len` bytes into `buf`; `EAGAIN` where there are none.
unsafe extern "C" fn receive(context: *mut c_void, buf: *mut u8, len: u32) -> i32 {
    // SAFETY: the context is the pipe that `attach` set, and nobody else has a reference to it
    // while the library runs.
    let pipe = unsafe { &mut *context.cast::<Pipe>() };
    let rest = pipe.received.get(pipe.read..).unwrap_or_default();
    let n = rest.len().min(len as usize).min(i32::MAX as usize);
    if n == 0 {
        // SAFETY: the thread's own errno, which is always there.
        unsafe { *libc::__errno_location() = libc::EAGAIN };
        return -1;
    }
    // SAFETY: the library gives `len` bytes of room at `buf`, of its own memory.
    unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), buf, n) };
    pipe.read += n;
    i32::try_from(n).unwrap_or(-1)
}

/// Takes all `len` bytes at `buf`.
unsafe extern "C" fn send(context: *mut c_void, buf: *const u8, len: u32) -> i32 {
    // SAFETY: as in `receive`.
    let pipe = unsafe { &mut *context.cast::<Pipe>() };
    let n = len.min(i32::MAX as u32);
    if n > 0 {
        // SAFETY: the library has `len` bytes at `buf`, which it does not change meanwhile.
        pipe.sent.extend_from_slice(unsafe { slice::from_raw_parts(buf, n as usize) });
    }
    i32::try_from(n).unwrap_or(-1)
}
