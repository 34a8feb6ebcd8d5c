//! The attachment of a thread to another process, for either side: an end of the carrier, its
//! sleep, and the loss of the other process.

use std::os::fd::AsRawFd;

use base::Duration;
use cli::Failure;
use io::notify::{Notifier, Poller};
use node::channel::CarrierFault;
use node::ethernet::EthernetCounters;
use node::remote::{CarrierCounters, RemoteEnd};

use super::channel::AttachedChannel;
use crate::threads::CarrierSleeper;

/// Reason for which an attachment has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttachmentLoss {
    /// The other process has ended the attachment, or does not answer.
    PeerGone,
    /// The other process violated the rules of the carrier.
    Fault(CarrierFault),
}

/// An end of a carrier to another process, in a thread that sleeps.
pub(crate) struct AttachedEnd<E> {
    end: E,
    /// Position of the channel in the thread's poller.
    polled: usize,
}

impl<E: RemoteEnd<Channel = AttachedChannel>> AttachedEnd<E> {
    /// Takes an end of a new channel.
    pub(crate) const fn new(end: E) -> Self {
        Self { end, polled: 0 }
    }

    /// Returns the end.
    pub(crate) const fn end(&mut self) -> &mut E {
        &mut self.end
    }

    /// Returns why the end is of no more use, if it is not. To be called in each turn.
    pub(crate) fn loss(&mut self) -> Option<AttachmentLoss> {
        match self.end.fault() {
            Some(fault) => Some(AttachmentLoss::Fault(fault)),
            None if self.end.channel_mut().advance() => Some(AttachmentLoss::PeerGone),
            None => None,
        }
    }

    /// Returns whether there is something to receive, or a fault to follow.
    pub(crate) fn has_work(&mut self) -> bool {
        let has_own = self.end.fault().is_some() || self.end.has_own_events();
        has_own || (!self.end.is_waiting() && self.end.channel_mut().has_work())
    }

    /// See [`CarrierSleeper::register`].
    pub(crate) fn register(&mut self, poller: &mut Poller) {
        self.polled = poller.add(self.end.channel().fd());
    }

    /// See [`CarrierSleeper::prepare_sleep`].
    pub(crate) fn prepare_sleep(&mut self) {
        self.end.channel_mut().prepare_sleep();
    }

    /// See [`SleepingCarrier::sleep_limit`](crate::threads::SleepingCarrier::sleep_limit).
    pub(crate) fn sleep_limit(&self) -> Option<Duration> {
        self.end.channel().sleep_limit()
    }

    /// See [`CarrierSleeper::finish_sleep`].
    pub(crate) fn finish_sleep(&mut self, slept: Option<&Poller>) {
        let rung = slept.is_some_and(|poller| poller.is_ready(self.polled));
        self.end.channel_mut().finish_sleep(rung);
    }
}

/// Counters of a thread's ends of carriers, one after the other.
#[derive(Debug, Default)]
pub(crate) struct FormerEnds {
    counters: CarrierCounters,
    ethernet: EthernetCounters,
    doorbells: u64,
}

impl FormerEnds {
    /// Adds the counters of an end that is left.
    pub(crate) fn add<E: RemoteEnd<Channel = AttachedChannel>>(&mut self, left: &E) {
        self.counters.add(left.counters());
        let channel = left.channel();
        self.doorbells += channel.doorbells();
        channel.ethernet_counters().into_iter().for_each(|counters| self.ethernet.add(counters));
    }

    /// Calls `f` with the name and value of each counter of the former ends and the present one.
    pub(crate) fn visit<E: RemoteEnd<Channel = AttachedChannel>>(
        &self,
        present: Option<&AttachedEnd<E>>,
        f: &mut dyn FnMut(&'static str, u64),
    ) {
        let (counters, ethernet) = (self.counters.clone(), self.ethernet.clone());
        let mut all = Self { counters, ethernet, doorbells: self.doorbells };
        present.into_iter().for_each(|present| all.add(&present.end));
        all.counters.visit(f);
        all.ethernet.visit(f);
        f("carrier_doorbells", all.doorbells);
    }
}

/// A thread's attachment to another process, or the lack of one.
pub(crate) struct Attachment<E> {
    notifier: Notifier,
    /// Position of the notifier in the thread's poller.
    polled: usize,
    attached: Option<AttachedEnd<E>>,
    former: FormerEnds,
}

impl<E: RemoteEnd<Channel = AttachedChannel>> Attachment<E> {
    /// Creates the state of a thread without an attachment.
    ///
    /// # Errors
    /// If no file descriptor is left.
    pub(super) fn new() -> Result<Self, Failure> {
        let (notifier, former) = (new_notifier()?, FormerEnds::default());
        Ok(Self { notifier, polled: 0, attached: None, former })
    }

    /// Returns the thread's end of the carrier.
    pub(super) fn end(&mut self) -> Option<&mut E> {
        self.attached.as_mut().map(AttachedEnd::end)
    }

    /// Returns whether there is an end.
    pub(super) const fn is_attached(&self) -> bool {
        self.attached.is_some()
    }

    /// Attaches the thread, which has no end.
    pub(super) fn attach(&mut self, end: E) {
        debug_assert!(self.attached.is_none(), "an end is left before the next one");
        self.attached = Some(AttachedEnd::new(end));
    }

    /// Removes an end that is of no more use, and returns it with the reason. To be called in each
    /// turn.
    pub(super) fn leave_if_lost(&mut self) -> Option<(AttachmentLoss, E)> {
        let loss = self.attached.as_mut()?.loss()?;
        let left = self.attached.take()?.end;
        self.former.add(&left);
        Some((loss, left))
    }

    /// Returns whether there is something to receive, or a fault to follow.
    pub(super) fn has_work(&mut self) -> bool {
        self.attached.as_mut().is_some_and(AttachedEnd::has_work)
    }

    /// See [`SleepingCarrier::sleep_limit`](crate::threads::SleepingCarrier::sleep_limit).
    pub(super) fn sleep_limit(&self) -> Option<Duration> {
        self.attached.as_ref()?.sleep_limit()
    }

    /// Calls `f` with the name and value of each counter of all ends so far.
    pub(super) fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.former.visit(self.attached.as_ref(), f);
    }
}

impl<E: RemoteEnd<Channel = AttachedChannel>> CarrierSleeper for Attachment<E> {
    fn register(&mut self, poller: &mut Poller) {
        self.polled = poller.add(self.notifier.as_raw_fd());
        self.attached.iter_mut().for_each(|attached| attached.register(poller));
    }

    fn prepare_sleep(&mut self) {
        self.attached.iter_mut().for_each(AttachedEnd::prepare_sleep);
    }

    fn finish_sleep(&mut self, slept: Option<&Poller>) {
        if slept.is_some_and(|poller| poller.is_ready(self.polled)) {
            self.notifier.drain();
        }
        self.attached.iter_mut().for_each(|attached| attached.finish_sleep(slept));
    }

    fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }
}

/// Creates a notifier for a thread.
///
/// # Errors
/// If no file descriptor is left.
pub(crate) fn new_notifier() -> Result<Notifier, Failure> {
    Notifier::new().map_err(|e| Failure::System(format!("cannot create eventfd: {e}")))
}
