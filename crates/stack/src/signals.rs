//! The signals that end a stack, or have it read its input again.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use base::Duration;
use cli::Failure;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals as OsSignals;

/// The signals SIGINT, SIGTERM, SIGHUP and SIGUSR1 of the process, in the order in which they came.
///
/// As an iterator it waits for the next one, without end.
#[derive(Debug)]
pub struct Signals(Receiver<i32>);

impl Signals {
    /// Takes the signals from now on: they no longer end the process by themselves. A program calls
    /// this before it opens anything, so that none is lost.
    ///
    /// # Errors
    /// Fails if the system has no descriptor or thread left.
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

    /// Waits for the next signal, `limit` at most; returns none if there was none.
    pub(crate) fn next_within(&self, limit: Duration) -> Option<i32> {
        match self.0.recv_timeout(std::time::Duration::from_micros(limit.as_micros())) {
            Ok(signal) => Some(signal),
            Err(RecvTimeoutError::Timeout) => None,
            // The thread ends with the process: as if it was told to.
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
