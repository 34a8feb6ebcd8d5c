//! A bounded number of requests in flight, for a thread that waits for their completions.
//!
//! Used by the subcommands that move many blocks. Completions arrive in any order; the token
//! identifies the request.

use std::sync::mpsc::{Receiver, Sender, channel};

use abi::aligned::AlignedBuf;
use apps::nvme::initiator::{NvmeRequest, NvmeRequestDone};

use super::handle::{CompletionSender, InitiatorHandle};
use super::session::InitiatorSession;
use crate::interrupt::Interrupt;
use cli::Failure;

/// Requests in flight of one namespace.
pub(super) struct NvmeRequestPipe {
    handle: InitiatorHandle,
    interrupt: Interrupt,
    nsid: u32,
    replies: Sender<Option<NvmeRequestDone>>,
    done: Receiver<Option<NvmeRequestDone>>,
    open: usize,
}

impl NvmeRequestPipe {
    /// Creates a pipe for requests to a namespace.
    pub(super) fn new(session: &InitiatorSession, nsid: u32) -> Self {
        let (replies, done) = channel();
        let (handle, interrupt) = (session.handle(), session.interrupt());
        Self { handle, interrupt, nsid, replies, done, open: 0 }
    }

    /// Returns the number of requests in flight.
    pub(super) const fn open(&self) -> usize {
        self.open
    }

    /// Submits a request.
    pub(super) fn submit(&mut self, token: u64, request: NvmeRequest, buffer: Option<AlignedBuf>) {
        let reply = CompletionSender::new(token, self.replies.clone());
        self.handle.submit(self.nsid, request, buffer, reply);
        self.open += 1;
    }

    /// Waits for the next completion; returns its token and buffer.
    ///
    /// # Errors
    /// Fails if the request has failed.
    pub(super) fn wait(&mut self) -> Result<(u64, Option<AlignedBuf>), Failure> {
        let Ok(Some(done)) = self.done.recv() else {
            return Err(Failure::System("host thread ended unexpectedly".to_owned()));
        };
        self.open -= 1;
        match done.result {
            Ok(_) => Ok((done.token, done.buffer)),
            Err(error) => Err(self.interrupt.or(Failure::Unavailable(error.to_string()))),
        }
    }
}

/// Returns a buffer for this many bytes.
pub(super) fn buffer(bytes: usize) -> AlignedBuf {
    AlignedBuf::new(bytes.div_ceil(abi::aligned::PAGE_BYTES).max(1))
}

#[cfg(test)]
mod tests {
    use super::super::handle::tests::dead_handle;
    use super::*;

    #[test]
    fn a_host_thread_that_is_gone_is_noticed() {
        let (replies, done) = channel();
        let interrupt = Interrupt::default();
        let mut pipe =
            NvmeRequestPipe { handle: dead_handle(), interrupt, nsid: 1, replies, done, open: 0 };
        pipe.submit(1, NvmeRequest::Flush, None);
        assert_eq!(pipe.wait().unwrap_err().to_string(), "host thread ended unexpectedly");
    }
}
