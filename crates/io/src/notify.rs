//! Waking a thread, and waiting for several descriptors at once: eventfd(2) and ppoll(2).
//!
//! The threads of device and host sleep in a [`Poller`] on their link, their disk and a
//! [`Notifier`] that the other side writes to. [`abi::ring::RingWaker`] decides whether to notify,
//! so that waking a busy thread costs no system call.
#![expect(unsafe_code, reason = "eventfd and ppoll")]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use base::Duration;

/// An eventfd that any thread can signal and a [`Poller`] sees until it is drained. Clones share
/// the descriptor.
#[derive(Clone, Debug)]
pub struct Notifier(Arc<File>);

impl Notifier {
    /// Creates an eventfd that is not signaled.
    ///
    /// # Errors
    /// If no file descriptor is left.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers are passed; the result is checked before use.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
        Ok(Self(Arc::new(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))))
    }

    /// Signals the eventfd.
    pub fn notify(&self) {
        // The only failure is EAGAIN, at a count of 2^64 - 2: it is signaled already.
        let _ = (&*self.0).write(&1_u64.to_ne_bytes());
    }

    /// Clears the signal; returns whether it was set.
    pub fn drain(&self) -> bool {
        // EAGAIN means that it was not set.
        matches!((&*self.0).read(&mut [0; 8]), Ok(8))
    }
}

impl AsRawFd for Notifier {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// `libc::EPOLLIN` in the type of the field of `epoll_event`.
const EPOLLIN: u32 = u32::from_ne_bytes(libc::EPOLLIN.to_ne_bytes());

/// Returns a descriptor that polls readable while any of `fds` does (epoll(7)).
///
/// # Errors
/// If no file descriptor is left, or if one of `fds` does not support polling.
pub fn epoll_any_of(fds: &[RawFd]) -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed; the result is checked before use.
    let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    let all = unsafe { OwnedFd::from_raw_fd(fd) };
    for &fd in fds {
        let mut event = libc::epoll_event { events: EPOLLIN, u64: 0 };
        // SAFETY: `event` is live for the call, which copies it.
        let result =
            unsafe { libc::epoll_ctl(all.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(all)
}

/// Makes the descriptor `to` refer to the open file of `from`, and closes the file that it referred
/// to (dup3(2)). Its number stays, so that a [`Poller`] need not know.
///
/// # Errors
/// If the kernel refuses; `to` is unchanged.
pub(crate) fn replace_descriptor(from: &impl AsRawFd, to: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: no pointers are passed; `to` owns its descriptor before and after the call.
    let fd = unsafe { libc::dup3(from.as_raw_fd(), to.as_raw_fd(), libc::O_CLOEXEC) };
    if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A short list of descriptors, with the result of the last poll.
#[derive(Debug, Default)]
pub struct Poller {
    fds: Vec<libc::pollfd>,
}

impl Poller {
    /// Returns an empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self { fds: Vec::new() }
    }

    /// Adds a descriptor and returns its index. The caller keeps it open as long as the list is
    /// waited on; a closed one counts as ready.
    pub fn add(&mut self, fd: RawFd) -> usize {
        self.fds.push(libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        self.fds.len() - 1
    }

    /// Empties the list.
    pub fn clear(&mut self) {
        self.fds.clear();
    }

    /// Sleeps until a descriptor is ready, `timeout` is over (`None`: no limit) or a signal
    /// arrives. Returns the number of ready descriptors.
    ///
    /// # Errors
    /// If the kernel has no memory for the list. A signal is not an error: it returns 0.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        let time = timeout.map(|d| libc::timespec {
            tv_sec: libc::time_t::try_from(d.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: libc::c_long::try_from(d.as_nanos() % 1_000_000_000).unwrap_or(0),
        });
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let count = self.fds.len() as libc::nfds_t;
        // SAFETY: the pointer and count are of one live vector; `time` is null or points to a live
        // timespec.
        let ready = unsafe { libc::ppoll(self.fds.as_mut_ptr(), count, time, std::ptr::null()) };
        if let Ok(ready) = usize::try_from(ready) {
            return Ok(ready);
        }
        let error = io::Error::last_os_error();
        for fd in &mut self.fds {
            fd.revents = 0;
        }
        if error.kind() == io::ErrorKind::Interrupted { Ok(0) } else { Err(error) }
    }

    /// Returns whether the descriptor with this index was ready (or in error) at the last
    /// [`Self::wait`].
    #[must_use]
    pub fn is_ready(&self, index: usize) -> bool {
        self.fds.get(index).is_some_and(|fd| fd.revents != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_is_heard_until_drained() {
        let (a, b) = (Notifier::new().unwrap(), Notifier::new().unwrap());
        let mut poller = Poller::new();
        let (ia, ib) = (poller.add(a.as_raw_fd()), poller.add(b.as_raw_fd()));
        assert_eq!(poller.wait(Some(Duration::ZERO)).unwrap(), 0);
        b.clone().notify();
        b.notify();
        assert_eq!(poller.wait(None).unwrap(), 1);
        assert!(!poller.is_ready(ia) && poller.is_ready(ib));
        assert!(b.drain());
        assert!(!b.drain());
        assert_eq!(poller.wait(Some(Duration::from_nanos(1))).unwrap(), 0);
        assert!(!poller.is_ready(ib));
    }

    #[test]
    fn any_of_several_bells_is_heard() {
        let bells = [Notifier::new().unwrap(), Notifier::new().unwrap()];
        let all = epoll_any_of(&bells.each_ref().map(AsRawFd::as_raw_fd)).unwrap();
        let mut poller = Poller::new();
        poller.add(all.as_raw_fd());
        for bell in &bells {
            assert_eq!(poller.wait(Some(Duration::ZERO)).unwrap(), 0);
            bell.notify();
            assert_eq!(poller.wait(None).unwrap(), 1);
            assert!(bell.drain());
        }
        assert!(epoll_any_of(&[-1]).is_err());
    }

    #[test]
    fn another_thread_wakes_the_sleeper() {
        let bell = Notifier::new().unwrap();
        let remote = bell.clone();
        let thread = std::thread::spawn(move || remote.notify());
        let mut poller = Poller::new();
        poller.add(bell.as_raw_fd());
        assert_eq!(poller.wait(None).unwrap(), 1);
        thread.join().unwrap();
    }
}
