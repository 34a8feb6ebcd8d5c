//! Signals that end the subcommands which do their work and then end, as clients do.
//!
//! A thread waits for signals; at the first one it sends each application a message to close, and
//! the main thread, which waits for results of the application, reports the signal as its failure.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use cli::Failure;
use signal_hook::consts::SIGUSR1;
use stack::{MessageSender, Signals, spawn};

/// The signal that has ended the work of a subcommand; 0 if none.
#[derive(Clone, Default)]
pub(crate) struct Interrupt(Arc<AtomicI32>);

impl Interrupt {
    /// Sends `close` to the applications at the first signal, and ends the program at the second.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub(crate) fn watch<M: Send + 'static>(
        &self,
        signals: Signals,
        senders: Vec<MessageSender<M>>,
        close: fn() -> M,
    ) -> Result<(), Failure> {
        let seen = Arc::clone(&self.0);
        let watch = move || {
            // SIGUSR1 reopens logs, which these subcommands do not have.
            for signal in signals.filter(|&signal| signal != SIGUSR1) {
                if seen.swap(signal, Ordering::AcqRel) != 0 {
                    // The default action of the signal.
                    let _failed = signal_hook::low_level::emulate_default_handler(signal);
                }
                senders.iter().for_each(|sender| sender.send(close()));
            }
        };
        spawn("interrupts".to_owned(), watch).map(drop)
    }

    /// Returns whether there was a signal.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }

    /// Returns the signal as the failure if there was one, otherwise `failure`.
    pub(crate) fn or(&self, failure: Failure) -> Failure {
        match self.0.load(Ordering::Acquire) {
            0 => failure,
            signal => Failure::Interrupted(signal),
        }
    }
}
