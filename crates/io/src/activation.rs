//! Sockets that another process has opened for this one: a service manager, by socket activation
//! (sd_listen_fds(3)), or an earlier process, which passes its socket on.
//!
//! Used by `stack` for the socket that programs attach to. The environment tells which descriptors
//! are passed, and for which process.
#![expect(unsafe_code, reason = "takes ownership of inherited descriptors")]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;

use rustix::net::sockopt::{socket_acceptconn, socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketType};

/// Takes the listening Unix socket that the service manager has passed; `None` if it has passed no
/// descriptor. To be called at the start, once, before this process opens descriptors.
///
/// # Errors
/// If the manager has passed several descriptors, or one that is no such socket.
pub fn take_listener() -> io::Result<Option<UnixListener>> {
    let mut passed = sd_notify::listen_fds()?;
    match (passed.len(), passed.next()) {
        // SAFETY: the protocol makes this process, which the variables name, the owner of the
        // descriptor. The caller has opened none that could have the number.
        (1, Some(fd)) => listener_of(unsafe { OwnedFd::from_raw_fd(fd) }).map(Some),
        (0, _) => Ok(None),
        (count, _) => Err(io::Error::other(format!("{count} sockets instead of one"))),
    }
}

/// Takes a listening Unix socket of streams, and has it closed on exec.
///
/// # Errors
/// If the descriptor is no such socket.
pub fn listener_of(fd: OwnedFd) -> io::Result<UnixListener> {
    let is_listener = socket_domain(&fd)? == AddressFamily::UNIX
        && socket_type(&fd)? == SocketType::STREAM
        && socket_acceptconn(&fd)?;
    if !is_listener {
        return Err(io::Error::other("not a listening Unix socket of type stream"));
    }
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
    Ok(fd.into())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;

    #[test]
    fn only_listening_unix_sockets_are_taken() {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
        assert!(listener_of(listener.into()).is_ok());
        for wrong in [
            OwnedFd::from(TcpListener::bind("127.0.0.1:0").unwrap()),
            UnixStream::pair().unwrap().0.into(),
            UnixDatagram::unbound().unwrap().into(),
            tempfile::tempfile().unwrap().into(),
        ] {
            assert!(listener_of(wrong).is_err());
        }
    }

    #[test]
    fn nothing_is_taken_without_a_manager() {
        assert!(take_listener().unwrap().is_none());
    }
}
