//! Orders of other threads to the initiators of a session, of which there is one for each device
//! queue.
//!
//! Requests go to the initiators in turn; NVMe orders no two of them. A flush covers only the
//! writes that its own controller has completed (base section 7.1), so it goes to all. Used by the
//! subcommands' threads; [`super::session`] receives the orders.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use abi::aligned::AlignedBuf;
use apps::nvme::initiator::{InitiatorNamespace, NvmeRequest, NvmeRequestDone};
use stack::MessageSender;

/// An order of another thread to the initiator.
pub(super) enum InitiatorOrder {
    /// Submits a request.
    Submit {
        /// Namespace ID.
        nsid: u32,
        /// The request.
        request: NvmeRequest,
        /// Buffer for the data of a read.
        buffer: Option<AlignedBuf>,
        /// Receiver of the completion.
        reply: CompletionSender,
    },
    /// Returns the namespaces and the largest request in bytes.
    Namespaces(Sender<NamespacesAnswer>),
    /// Closes the association.
    Close,
}

/// Namespaces, and the largest request in bytes.
pub(super) type NamespacesAnswer = (Vec<InitiatorNamespace>, u64);

/// Receiver of a completion.
enum CompletionReceiver {
    /// The requester.
    Requester(Sender<Option<NvmeRequestDone>>),
    /// A flush of all controllers.
    Flush(Arc<FlushOfAll>),
}

impl CompletionReceiver {
    fn send(self, done: Option<NvmeRequestDone>) {
        match self {
            Self::Requester(to) => drop(to.send(done)),
            Self::Flush(flush) => flush.finish_one(done),
        }
    }
}

/// Reply channel of one request, used once. Dropping it sends `None`, so that a waiting thread is
/// released even if the host thread panics.
pub(super) struct CompletionSender {
    /// The requester's name for the request.
    token: u64,
    /// `None` after the reply was sent.
    to: Option<CompletionReceiver>,
}

impl CompletionSender {
    /// Creates a reply to a channel, which several requests may share.
    pub(super) const fn new(token: u64, to: Sender<Option<NvmeRequestDone>>) -> Self {
        Self { token, to: Some(CompletionReceiver::Requester(to)) }
    }

    pub(super) fn send(mut self, done: NvmeRequestDone) {
        let done = NvmeRequestDone { token: self.token, ..done };
        if let Some(to) = self.to.take() {
            to.send(Some(done));
        }
    }
}

impl Drop for CompletionSender {
    fn drop(&mut self) {
        if let Some(to) = self.to.take() {
            to.send(None);
        }
    }
}

/// A flush that is sent to all controllers, and ends with the last of them.
struct FlushOfAll(Mutex<FlushState>);

struct FlushState {
    /// Number of controllers that have not answered.
    left: usize,
    /// The first completion that is an error, or else the last one; `None` before any.
    done: Option<NvmeRequestDone>,
    /// A host thread has ended without an answer.
    is_lost: bool,
    reply: Option<CompletionSender>,
}

impl FlushOfAll {
    fn new(controllers: usize, reply: CompletionSender) -> Self {
        let state =
            FlushState { left: controllers, done: None, is_lost: false, reply: Some(reply) };
        Self(Mutex::new(state))
    }

    fn finish_one(&self, done: Option<NvmeRequestDone>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.left = state.left.saturating_sub(1);
        match done {
            None => state.is_lost = true,
            Some(done) if state.done.as_ref().is_none_or(|one| one.result.is_ok()) => {
                state.done = Some(done);
            }
            Some(_) => {}
        }
        if state.left > 0 {
            return;
        }
        // Without an answer the reply is dropped, which releases the requester.
        let lost = state.is_lost;
        if let (Some(reply), Some(done), false) = (state.reply.take(), state.done.take(), lost) {
            reply.send(done);
        }
    }
}

/// Sends orders to a session's initiators, from any thread.
#[derive(Clone)]
pub(super) struct InitiatorHandle {
    queues: Arc<[MessageSender<InitiatorOrder>]>,
    /// Number of requests so far.
    sent: Arc<AtomicUsize>,
}

impl InitiatorHandle {
    pub(super) fn new(queues: &[MessageSender<InitiatorOrder>]) -> Self {
        Self { queues: queues.into(), sent: Arc::default() }
    }

    /// Returns the number of initiators.
    pub(super) fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Submits a request for a namespace; `buffer` is for the data of a read.
    pub(super) fn submit(
        &self,
        nsid: u32,
        request: NvmeRequest,
        buffer: Option<AlignedBuf>,
        reply: CompletionSender,
    ) {
        if let (NvmeRequest::Flush, 2..) = (&request, self.queues.len()) {
            let flush = Arc::new(FlushOfAll::new(self.queues.len(), reply));
            for queue in &*self.queues {
                let to = Some(CompletionReceiver::Flush(Arc::clone(&flush)));
                let reply = CompletionSender { token: 0, to };
                let request = NvmeRequest::Flush;
                queue.send(InitiatorOrder::Submit { nsid, request, buffer: None, reply });
            }
            return;
        }
        let number = self.sent.fetch_add(1, Ordering::Relaxed);
        if let Some(queue) = self.queues.get(number % self.queues.len().max(1)) {
            queue.send(InitiatorOrder::Submit { nsid, request, buffer, reply });
        }
    }

    /// Returns what the initiator of a queue has found; `None` if its thread has ended. All earlier
    /// orders to it have been handled.
    pub(super) fn namespaces(&self, queue: usize) -> Option<NamespacesAnswer> {
        let (reply, answer) = channel();
        self.queues.get(queue)?.send(InitiatorOrder::Namespaces(reply));
        answer.recv().ok()
    }

    /// Closes the associations, and waits until that is done.
    pub(super) fn close(&self) {
        self.queues.iter().for_each(|queue| queue.send(InitiatorOrder::Close));
        (0..self.queues.len()).for_each(|queue| drop(self.namespaces(queue)));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use apps::nvme::initiator::NvmeRequestError;
    use wire::nvme::status::NvmeStatus;

    /// Returns a handle and its receiving end, in place of a host thread.
    pub(in super::super) fn detached_handle()
    -> (InitiatorHandle, impl Iterator<Item = InitiatorOrder>) {
        let (sender, orders) = MessageSender::detached().unwrap();
        (InitiatorHandle::new(&[sender]), orders)
    }

    /// Returns a handle to a host thread that has ended.
    pub(in super::super) fn dead_handle() -> InitiatorHandle {
        detached_handle().0
    }

    /// Completes a request successfully.
    pub(in super::super) fn complete(order: InitiatorOrder) {
        complete_with(order, Ok(0));
    }

    fn complete_with(order: InitiatorOrder, result: Result<u64, NvmeRequestError>) {
        let InitiatorOrder::Submit { reply, buffer, .. } = order else { panic!("a request") };
        reply.send(NvmeRequestDone { token: 0, result, buffer });
    }

    #[test]
    fn requests_take_turns_and_flushes_go_to_all() {
        let (a, mut of_a) = MessageSender::detached().unwrap();
        let (b, mut of_b) = MessageSender::detached().unwrap();
        let handle = InitiatorHandle::new(&[a, b]);
        let (to, done) = channel();
        let submit = |token, request| {
            handle.submit(1, request, None, CompletionSender::new(token, to.clone()));
        };
        let read = || NvmeRequest::Read { lba: 0, blocks: 1 };
        (0..4).for_each(|token| submit(token, read()));
        let counts = [of_a.by_ref().map(complete).count(), of_b.by_ref().map(complete).count()];
        assert_eq!(counts, [2, 2]);
        assert_eq!(done.try_iter().count(), 4);

        submit(7, NvmeRequest::Flush);
        complete(of_b.next().unwrap());
        assert!(done.try_recv().is_err(), "one controller has not flushed");
        complete(of_a.next().unwrap());
        assert_eq!(
            done.try_recv().unwrap().map(|done| (done.token, done.result)),
            Some((7, Ok(0)))
        );
        // One error is the result, whichever comes first.
        let failed = NvmeRequestError::Status(NvmeStatus::WRITE_FAULT);
        submit(8, NvmeRequest::Flush);
        complete_with(of_a.next().unwrap(), Err(failed));
        complete(of_b.next().unwrap());
        let said = done.try_recv().unwrap().map(|done| (done.token, done.result));
        assert_eq!(said, Some((8, Err(failed))));
        // A host thread that ends releases the requester.
        submit(9, NvmeRequest::Flush);
        complete(of_a.next().unwrap());
        drop(of_b.next());
        assert!(done.try_recv().unwrap().is_none());
    }
}
