//! Signals that end a stack or make it reload.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use base::Duration;
use cli::Failure;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals as OsSignals;

/// The signals SIGINT, SIGTERM, SIGHUP and SIGUSR1 of the process, in order of arrival.
///
/// The iterator blocks until the next signal.
#[derive(Debug)]
pub struct Signals(Receiver<i32>);

impl Signals {
    /// Starts handling the signals, which no longer end the process by themselves. A program calls
    /// this before it opens anything, so that no signal is lost.
    ///
    /// # Errors
    /// Fails if no file descriptor or thread is left.
    pub fn take() -> Result<Self, Failure> {
        let mut signals = OsSignals::new([SIGINT, SIGTERM, SIGHUP, SIGUSR1])
            .map_err(|e| Failure::System(format!("cannot handle signals: {e}")))?;
        let (sender, receiver) = channel();
        crate::spawn("signals".to_owned(), move || {
            for signal in signals.forever() {
                if sender.send(signal).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self(receiver))
    }

    /// Waits for the next signal, at most for `limit`; returns `None` if none arrived.
    pub(crate) fn next_within(&self, limit: Duration) -> Option<i32> {
        match self.0.recv_timeout(std::time::Duration::from_micros(limit.as_micros())) {
            Ok(signal) => Some(signal),
            Err(RecvTimeoutError::Timeout) => None,
            // The signal thread is gone: treated as a request to end.
            Err(RecvTimeoutError::Disconnected) => Some(SIGTERM),
        }
    }
}

impl Iterator for Signals {
    type Item = i32;

    fn next(&mut self) -> Option<i32> {
        self.0.recv().ok()
    }
}
