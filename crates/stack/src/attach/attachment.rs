//! The attachment of a thread to another process, for either side: its end of the carrier, its
//! sleep, and the loss of the other process.

use std::os::fd::AsRawFd;

use cli::Failure;
use io::notify::{Notifier, Poller};
use node::remote::{CarrierCounters, CarrierFault, RemoteEnd};

use super::channel::SharedMemoryChannel;
use crate::threads::CarrierSleeper;

/// Reason for which an attachment has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttachmentLoss {
    /// The other process has closed the socket, or has ended.
    PeerGone,
    /// The other process violated the rules of the carrier.
    Fault(CarrierFault),
}

/// A thread's attachment to another process, or the lack of one.
pub(crate) struct Attachment<E> {
    notifier: Notifier,
    /// Positions of the notifier and of the channel in the thread's poller.
    polled: [usize; 2],
    end: Option<E>,
    /// Counters of former ends, and their doorbells.
    former: CarrierCounters,
    former_doorbells: u64,
}

impl<E: RemoteEnd<Channel = SharedMemoryChannel>> Attachment<E> {
    /// Creates the state of a thread without an attachment.
    ///
    /// # Errors
    /// If no file descriptor is left.
    pub(super) fn new() -> Result<Self, Failure> {
        let notifier =
            Notifier::new().map_err(|e| Failure::System(format!("cannot create eventfd: {e}")))?;
        let (former, former_doorbells) = (CarrierCounters::default(), 0);
        Ok(Self { notifier, polled: [0; 2], end: None, former, former_doorbells })
    }

    /// Returns the thread's end of the carrier.
    pub(super) const fn end(&mut self) -> Option<&mut E> {
        self.end.as_mut()
    }

    /// Returns whether there is an end.
    pub(super) const fn is_attached(&self) -> bool {
        self.end.is_some()
    }

    /// Attaches the thread, which has no end.
    pub(super) fn attach(&mut self, end: E) {
        debug_assert!(self.end.is_none(), "an end is left before the next one");
        self.end = Some(end);
    }

    /// Drops an end that is of no more use, and returns why. To be called in each turn.
    pub(super) fn leave_if_lost(&mut self) -> Option<AttachmentLoss> {
        let end = self.end.as_mut()?;
        let loss = match end.fault() {
            Some(fault) => AttachmentLoss::Fault(fault),
            None if end.channel_mut().is_peer_gone() => AttachmentLoss::PeerGone,
            None => return None,
        };
        self.former.add(end.counters());
        self.former_doorbells += end.channel().doorbells;
        self.end = None;
        Some(loss)
    }

    /// Returns whether there is something to receive, or a fault to follow.
    pub(super) fn has_work(&mut self) -> bool {
        let end = self.end.as_mut();
        end.is_some_and(|end| end.fault().is_some() || end.channel_mut().has_work())
    }

    /// Calls `f` with the name and value of each counter of all ends so far.
    pub(super) fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        let (mut all, mut doorbells) = (self.former.clone(), self.former_doorbells);
        if let Some(end) = &self.end {
            all.add(end.counters());
            doorbells += end.channel().doorbells;
        }
        all.visit(f);
        f("carrier_doorbells", doorbells);
    }
}

impl<E: RemoteEnd<Channel = SharedMemoryChannel>> CarrierSleeper for Attachment<E> {
    fn register(&mut self, poller: &mut Poller) {
        self.polled[0] = poller.add(self.notifier.as_raw_fd());
        let fd = self.end.as_ref().map(|end| end.channel().fd());
        // Without an end the second position is that of the notifier.
        self.polled[1] = fd.map_or(self.polled[0], |fd| poller.add(fd));
    }

    fn prepare_sleep(&self) {
        if let Some(end) = &self.end {
            end.channel().prepare_sleep();
        }
    }

    fn finish_sleep(&mut self, slept: Option<&Poller>) {
        let ready = |index: usize| slept.is_some_and(|poller| poller.is_ready(index));
        if ready(self.polled[0]) {
            self.notifier.drain();
        }
        if let Some(end) = &mut self.end {
            end.channel_mut().finish_sleep(ready(self.polled[1]));
        }
    }

    fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }
}
