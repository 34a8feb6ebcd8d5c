//! The Unix socket between a program and a device in another process: messages with descriptors,
//! then doorbells, and the end of either process.
//!
//! Used by the carriers of `stack`. First each side sends one message, with file descriptors beside
//! it (SCM_RIGHTS, unix(7)); [`abi::attach`] and [`abi::layout`] define its content. Then a byte in
//! either direction is a doorbell, and the end of the stream is the end of the other process.
//!
//! Doorbells are bytes and not eventfds, because the other process is hostile: the flag O_NONBLOCK
//! of an eventfd belongs to the open file, which both processes share, so that a process could
//! clear it and make the other one block in a write. The two ends of a socket are two open files.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use base::Duration;
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::clock::MonotonicClock;

/// Most descriptors beside a message.
pub const ATTACHED_FDS_MAX: usize = 4;
/// Bytes of doorbells that are read at once.
const DOORBELL_BYTES: usize = 256;

/// State of the other process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachedPeer {
    /// It is there.
    Present,
    /// It has closed the socket, or has ended.
    Gone,
}

/// Identity of the other process, by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerProcess {
    /// Its process ID.
    pub pid: i32,
    /// Its effective user ID.
    pub uid: u32,
}

/// One end of the socket.
#[derive(Debug)]
pub struct AttachmentSocket(UnixStream);

impl AttachmentSocket {
    /// Takes a connected socket.
    #[must_use]
    pub const fn new(stream: UnixStream) -> Self {
        Self(stream)
    }

    /// Connects to the socket of a device.
    ///
    /// # Errors
    /// If no process listens there.
    pub fn connect(path: &Path) -> io::Result<Self> {
        UnixStream::connect(path).map(Self)
    }

    /// Sends a message, with descriptors beside it.
    ///
    /// # Errors
    /// If the other process is gone, or reads too slowly to take a message at once.
    pub fn send(&self, message: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let length = u32::try_from(message.len()).map_err(io::Error::other)?.to_le_bytes();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(ATTACHED_FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fits = fds.len() <= ATTACHED_FDS_MAX;
        if !fits || (!fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds))) {
            return Err(io::Error::other("too many descriptors for a message"));
        }
        let parts = [IoSlice::new(&length), IoSlice::new(message)];
        let sent = retry_on_intr(|| sendmsg(&self.0, &parts, &mut control, SendFlags::NOSIGNAL))?;
        let is_whole = sent == length.len() + message.len();
        if is_whole { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Receives a message of at most `bytes_max` bytes within the time `limit`, and the descriptors
    /// beside it.
    ///
    /// # Errors
    /// If the other process is gone, is too slow, or sends a longer message or more than
    /// [`ATTACHED_FDS_MAX`] descriptors.
    pub fn receive(
        &self,
        bytes_max: usize,
        limit: Duration,
    ) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        let clock = MonotonicClock::new();
        let until = clock.now() + limit;
        let mut fds = Vec::new();
        let mut take = |bytes: &mut [u8]| -> io::Result<()> {
            let mut at = 0;
            while at < bytes.len() {
                let left = until.since(clock.now());
                if left == Duration::ZERO {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                self.0.set_read_timeout(Some(std::time::Duration::from_nanos(left.as_nanos())))?;
                at += self.receive_part(&mut bytes[at..], &mut fds)?;
            }
            Ok(())
        };
        let mut length = [0; 4];
        take(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > bytes_max {
            return Err(io::Error::other("the message is too long"));
        }
        let mut message = vec![0; length];
        take(&mut message)?;
        Ok((message, fds))
    }

    fn receive_part(&self, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(ATTACHED_FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(bytes)];
        let received =
            retry_on_intr(|| recvmsg(&self.0, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC))?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) || fds.len() > ATTACHED_FDS_MAX {
            return Err(io::Error::other("too many descriptors beside a message"));
        }
        if received.bytes == 0 {
            Err(io::ErrorKind::UnexpectedEof.into())
        } else {
            Ok(received.bytes)
        }
    }

    /// Returns process and user of the other side, as they were when it connected.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn peer_process(&self) -> io::Result<PeerProcess> {
        let found = rustix::net::sockopt::socket_peercred(&self.0)?;
        Ok(PeerProcess { pid: found.pid.as_raw_pid(), uid: found.uid.as_raw() })
    }

    /// Begins the phase of doorbells, in which no call blocks.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn begin_doorbells(&self) -> io::Result<()> {
        self.0.set_nonblocking(true)
    }

    /// Wakes the other process. If its buffer is full it has enough to wake for; if it is gone,
    /// [`Self::drain`] tells.
    pub fn ring(&self) {
        let _ = (&self.0).write(&[0]);
    }

    /// Takes the doorbells of the other process, at most 256 of them, so that a process that rings
    /// without pause cannot keep this one here.
    pub fn drain(&self) -> AttachedPeer {
        match (&self.0).read(&mut [0; DOORBELL_BYTES]) {
            Ok(0) => AttachedPeer::Gone,
            Ok(_) => AttachedPeer::Present,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => AttachedPeer::Present,
                _ => AttachedPeer::Gone,
            },
        }
    }
}

impl AsRawFd for AttachmentSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    fn pair() -> (AttachmentSocket, AttachmentSocket) {
        let (one, other) = UnixStream::pair().unwrap();
        (AttachmentSocket::new(one), AttachmentSocket::new(other))
    }

    #[test]
    fn a_message_crosses_with_its_descriptors() {
        let (one, other) = pair();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"content").unwrap();
        one.send(b"hello", &[file.as_fd(), file.as_fd()]).unwrap();
        let (message, mut fds) = other.receive(100, LIMIT).unwrap();
        assert_eq!((&message[..], fds.len()), (&b"hello"[..], 2));
        let got = File::from(fds.remove(0));
        assert_eq!(got.metadata().unwrap().len(), 7);
        other.send(b"", &[]).unwrap();
        assert_eq!(one.receive(0, LIMIT).unwrap().0, b"");
    }

    #[test]
    fn a_hostile_message_is_refused() {
        let (one, other) = pair();
        one.send(&[0; 100], &[]).unwrap();
        let refused = other.receive(99, LIMIT).unwrap_err();
        assert_eq!(refused.to_string(), "the message is too long");
        let (mut one, other) = UnixStream::pair().unwrap();
        let other = AttachmentSocket::new(other);
        one.write_all(&[9, 0, 0]).unwrap();
        let slow = other.receive(99, Duration::from_millis(20)).unwrap_err();
        assert!(matches!(slow.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut));
        drop(one);
        let gone = other.receive(99, LIMIT).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::UnexpectedEof);
        // More descriptors than a message has: those of several messages count together.
        let (one, other) = pair();
        let file = tempfile::tempfile().unwrap();
        let fds = [file.as_fd(); ATTACHED_FDS_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(ATTACHED_FDS_MAX))];
        for byte in [[9_u8], [0]] {
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
            sendmsg(&one.0, &[IoSlice::new(&byte)], &mut control, SendFlags::empty()).unwrap();
        }
        let refused = other.receive(99, LIMIT).unwrap_err();
        assert_eq!(refused.to_string(), "too many descriptors beside a message");
        let fds = [file.as_fd(); ATTACHED_FDS_MAX + 1];
        assert!(one.send(b"x", &fds).is_err());
    }

    #[test]
    fn doorbells_never_block_and_the_end_is_noticed() {
        let (one, other) = pair();
        one.begin_doorbells().unwrap();
        other.begin_doorbells().unwrap();
        assert_eq!(other.drain(), AttachedPeer::Present);
        // A storm that the other side does not answer.
        for _ in 0..100_000 {
            one.ring();
        }
        assert_eq!(other.drain(), AttachedPeer::Present);
        drop(other);
        one.ring();
        assert_eq!(one.drain(), AttachedPeer::Gone);
    }
}
