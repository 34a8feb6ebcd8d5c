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
/// The message beside the descriptor.
const HANDED_OVER: &[u8] = b"handed over";
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

    /// Passes the socket on, when the device has ended.
    ///
    /// # Errors
    /// Fails if the process that has asked is gone.
    pub(crate) fn hand_over(&self, listener: &UnixListener) -> Result<(), Failure> {
        let client = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(client) = client else { return Ok(()) };
        let sent = AttachmentSocket::new(client).send(HANDED_OVER, &[listener.as_fd()]);
        sent.map_err(|e| Failure::System(format!("cannot pass the socket on: {e}")))
    }
}

/// Asks the process with this control socket to end, and takes its socket. Returns it with the path
/// of its file, if it has one.
///
/// # Errors
/// Fails if there is no such process, or it passes no socket on.
pub(crate) fn ask(control: &Path) -> Result<(UnixListener, Option<PathBuf>), Failure> {
    let failed = |e: std::io::Error| {
        let control = control.display();
        Failure::Unavailable(format!("cannot take over the device of {control}: {e}"))
    };
    let mut stream = UnixStream::connect(control).map_err(failed)?;
    writeln!(stream, "{TAKE_OVER}").map_err(failed)?;
    let received = AttachmentSocket::new(stream).receive(HANDED_OVER.len(), END_TIME_MAX);
    let (message, fds) = received.map_err(failed)?;
    match <[OwnedFd; 1]>::try_from(fds) {
        Ok([fd]) if message == HANDED_OVER => {
            let listener = io::activation::listener_of(fd).map_err(failed)?;
            let address = listener.local_addr().map_err(failed)?;
            Ok((listener, address.as_pathname().map(Path::to_owned)))
        }
        _ => Err(failed(std::io::Error::other("it passes no socket on"))),
    }
}
