//! Accepting whoever connects to a socket of the kernel's, and going on where nobody can be.
//!
//! Called by the threads that serve the control socket, the metrics and NBD, for each result of
//! `accept`. Who is let in, and what is done for them, is theirs.

use std::io;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Until the next try where nobody could be accepted: without descriptors that fails at once.
const RETRY: Duration = Duration::from_millis(100);

/// What became of `accept` so far.
pub(crate) struct Accept {
    /// As what its clients are spoken of.
    clients: &'static str,
    /// Whether it was said that nobody can be accepted.
    told: bool,
}

impl Accept {
    /// For clients that are called so.
    pub(crate) const fn new(clients: &'static str) -> Self {
        Self { clients, told: false }
    }

    /// Gives whoever was accepted. Where nobody could be, says so once, and takes a while.
    pub(crate) fn take<T>(&mut self, accepted: io::Result<T>) -> Option<T> {
        match accepted {
            Ok(client) => {
                self.told = false;
                Some(client)
            }
            Err(error) => {
                if !self.told {
                    eprintln!("outboard: {} cannot be accepted: {error}", self.clients);
                }
                self.told = true;
                // Nobody says anything here: it is the time between two tries.
                let (_quiet, nothing) = channel::<()>();
                let _elapsed = nothing.recv_timeout(RETRY);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_said_once_and_the_next_client_is_taken() {
        let mut accept = Accept::new("clients");
        for _ in 0..2 {
            assert!(accept.take::<()>(Err(io::Error::other("no descriptors"))).is_none());
            assert!(accept.told);
        }
        assert!(accept.take(Ok(())).is_some());
        assert!(!accept.told);
    }
}
