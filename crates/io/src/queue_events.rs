//! The kernel's reports about numbers of queues (`ethtool -L`), by the generic netlink family
//! `ethtool` (Linux 5.6).
//!
//! Read by the thread of [`crate::watched_link`]. The reports are not parsed: after any of them the
//! caller reads the number of its interface, so none can be lost.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, RawFd};

use crate::generic_netlink::GenericFamily;
use crate::netlink::{join_group, open_socket};

/// Size of the buffer for messages, which are truncated to it.
const BUFFER_BYTES: usize = 4096;

/// A socket that receives the reports of all interfaces.
#[derive(Debug)]
pub(crate) struct QueueEventSocket(File);

impl QueueEventSocket {
    /// Opens a socket that receives reports from now on.
    pub(crate) fn open() -> io::Result<Self> {
        let group = GenericFamily::find("ethtool")?.group("monitor")?;
        let socket = open_socket(libc::NETLINK_GENERIC, libc::SOCK_NONBLOCK)?;
        join_group(&socket, group)?;
        Ok(Self(socket))
    }

    /// Removes all reports.
    pub(crate) fn drain(&mut self) {
        let mut buffer = [0; BUFFER_BYTES];
        // After an error other than an empty queue the descriptor still polls readable.
        while self.0.read(&mut buffer).is_ok() {}
    }

    /// Returns a descriptor that polls readable when there are reports.
    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_socket_has_no_reports() {
        // Kernels before 5.6 do not have the family.
        let Ok(mut socket) = QueueEventSocket::open() else { return };
        socket.drain();
        assert!(socket.fd() >= 0);
    }
}
