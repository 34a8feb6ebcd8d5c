//! Upgrade of a device process: another process takes its socket over, and its place.
//!
//! The new process asks on the control socket of the old one ([`ask`]), whose permissions decide
//! who may. The old one ends its device, as after SIGTERM, and then passes on the socket that
//! programs attach to ([`TakeOverSlot::hand_over`]). The socket listens all the time: programs that
//! attach again wait in its queue for the new process. Nothing else crosses; programs keep their
//! connections, and claim their addresses again.

use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use base::Duration;
use cli::Failure;
use io::attachment::AttachmentSocket;
use signal_hook::consts::SIGTERM;

/// The query on the control socket.
pub(crate) const TAKE_OVER: &str = "take-over";
/// Messages beside the descriptor: the file of the socket is handed over too, or belongs to a
/// service manager.
const WITH_FILE: &[u8] = b"with file";
/// See [`WITH_FILE`].
const SOCKET_ALONE: &[u8] = b"socket alone";
/// The message of a device without a socket, whose programs attach over Ethernet.
const NO_SOCKET: &[u8] = b"no socket";
/// Longest time until the old process has ended its device.
const END_TIME_MAX: Duration = Duration::from_secs(10);

/// A process that asks to take over, if there is one.
#[derive(Clone, Debug, Default)]
pub(crate) struct TakeOverSlot(Arc<Mutex<Option<UnixStream>>>);

impl TakeOverSlot {
    /// Ends this process in favor of one that has asked. A second one that asks gets no answer.
    pub(crate) fn request(&self, client: &UnixStream) -> std::io::Result<()> {
        let client = client.try_clone()?;
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none() {
            *slot = Some(client);
            signal_hook::low_level::raise(SIGTERM)?;
        }
        Ok(())
    }

    /// Returns whether a process has asked.
    pub(crate) fn is_requested(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Passes the socket on, when the device has ended. `has_file`: the next process is to remove
    /// its file at the end.
    ///
    /// # Errors
    /// Fails if the process that has asked is gone.
    pub(crate) fn hand_over(
        &self,
        listener: Option<&UnixListener>,
        has_file: bool,
    ) -> Result<(), Failure> {
        let client = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(client) = client else { return Ok(()) };
        let client = AttachmentSocket::new(client);
        let sent = match listener {
            Some(listener) if has_file => client.send(WITH_FILE, &[listener.as_fd()]),
            Some(listener) => client.send(SOCKET_ALONE, &[listener.as_fd()]),
            None => client.send(NO_SOCKET, &[]),
        };
        sent.map_err(|e| Failure::System(format!("cannot pass the socket on: {e}")))
    }
}

/// Asks the process with this control socket to end, and takes its socket, if it has one. Returns
/// it with the path of its file, if that is handed over too.
///
/// # Errors
/// Fails if there is no such process, or it passes no socket on.
pub(crate) fn ask(control: &Path) -> Result<(Option<UnixListener>, Option<PathBuf>), Failure> {
    let failed = |e: std::io::Error| {
        let control = control.display();
        Failure::Unavailable(format!("cannot take over the device of {control}: {e}"))
    };
    let mut stream = UnixStream::connect(control).map_err(failed)?;
    writeln!(stream, "{TAKE_OVER}").map_err(failed)?;
    let received = AttachmentSocket::new(stream).receive(SOCKET_ALONE.len(), END_TIME_MAX);
    let (message, fds) = received.map_err(failed)?;
    match <[OwnedFd; 1]>::try_from(fds) {
        Ok([fd]) if message == WITH_FILE || message == SOCKET_ALONE => {
            let listener = io::activation::listener_of(fd).map_err(failed)?;
            let address = listener.local_addr().map_err(failed)?;
            let file = address.as_pathname().filter(|_| message == WITH_FILE);
            let file = file.map(Path::to_owned);
            Ok((Some(listener), file))
        }
        Err(fds) if fds.is_empty() && message == NO_SOCKET => Ok((None, None)),
        _ => Err(failed(std::io::Error::other("it passes no socket on"))),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::thread;

    use super::*;

    /// The file of the socket is handed over only if the old process had created it.
    #[test]
    fn a_socket_crosses_with_or_without_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let listener = UnixListener::bind(path("listen")).unwrap();
        let control = UnixListener::bind(path("control")).unwrap();
        for (has_socket, has_file) in [(true, true), (true, false), (false, false)] {
            thread::scope(|scope| {
                scope.spawn(|| {
                    let mut client = control.accept().unwrap().0;
                    let mut query = [0; TAKE_OVER.len() + 1];
                    client.read_exact(&mut query).unwrap();
                    let slot = TakeOverSlot(Arc::new(Mutex::new(Some(client))));
                    assert!(slot.is_requested());
                    slot.hand_over(has_socket.then_some(&listener), has_file).unwrap();
                    assert!(!slot.is_requested());
                });
                let (taken, file) = ask(&path("control")).unwrap();
                assert_eq!(file, has_file.then(|| path("listen")));
                assert_eq!(taken.is_some(), has_socket);
                let Some(taken) = taken else { return };
                let _client = UnixStream::connect(path("listen")).unwrap();
                assert!(taken.accept().is_ok(), "it is the same socket");
            });
        }
        assert!(ask(&path("none")).unwrap_err().to_string().contains("cannot take over"));
    }
}
