//! The carriers of the contract, as the threads of hosts use them.
//!
//! A carrier moves operations, events and buffers between a host and its device, and wakes the
//! thread of either side. [`super::queue`] has the rings between two threads of this process;
//! [`crate::attach`] has those between two processes. The host thread is generic over the carrier,
//! so that the one in process costs no more than without this trait. Device threads are not: one
//! in the program's process has the rings of its queue ([`super::device_thread`]), one in a process
//! of its own has several programs ([`super::switch_thread`]).

use abi::{Event, Op, PacketBuf};
use base::Duration;
use host::MovedConnection;
use io::notify::{Notifier, Poller};

use crate::attach::ClaimExtension;

/// Lets the thread of a carrier sleep until the other side or another thread wakes it.
pub(crate) trait CarrierSleeper {
    /// Adds the descriptors that wake the thread.
    fn register(&mut self, poller: &mut Poller);

    /// Announces that the thread is about to sleep. It must call [`SleepingCarrier::has_work`] once
    /// more after this.
    fn prepare_sleep(&mut self);

    /// Announces that the thread is awake. `slept` is the result of its sleep, if it slept, with
    /// the descriptors of [`Self::register`].
    fn finish_sleep(&mut self, slept: Option<&Poller>);

    /// Returns the notifier that wakes the thread unconditionally.
    fn notifier(&self) -> Notifier;
}

/// A carrier whose thread sleeps while there is no work.
pub(crate) trait SleepingCarrier {
    /// Type of [`Self::sleeper`].
    type Sleeper: CarrierSleeper;

    /// Returns the means of sleep.
    fn sleeper(&mut self) -> &mut Self::Sleeper;

    /// Returns whether there is something to receive.
    fn has_work(&mut self) -> bool;

    /// Returns the longest time to sleep without a signal; `None` if only the signals of
    /// [`CarrierSleeper::register`] matter.
    fn sleep_limit(&self) -> Option<Duration> {
        None
    }

    /// Calls `f` with the name and value of each counter.
    fn visit(&self, _f: &mut dyn FnMut(&'static str, u64)) {}
}

/// A host thread's end.
pub(crate) trait HostCarrier: SleepingCarrier {
    /// Returns the next event.
    fn pop_event(&mut self) -> Option<Event>;

    /// Returns whether there is room for an operation.
    fn has_op_room(&mut self) -> bool;

    /// Sends an operation, for which there is room.
    fn push_op(&mut self, op: Op);

    /// Returns a buffer. If there is no room for it, it is freed.
    fn push_recycled(&mut self, packet: PacketBuf);

    /// Wakes the device, which has new operations.
    fn wake_device(&mut self);

    /// Called when the host has ended, or no longer waits for its last frames.
    fn finish(&mut self) {}

    /// Follows the loss of the device and the arrival of another one. Returns whether the
    /// descriptors of [`CarrierSleeper::register`] have changed.
    fn follow_device(&mut self) -> bool {
        false
    }

    /// Returns whether there is a device.
    fn has_device(&self) -> bool {
        true
    }

    /// Asks the device for further addresses and ports. One in this process receives all frames.
    fn extend_claim(&mut self, extension: ClaimExtension) {
        extension.finish(Ok(()));
    }

    /// See [`node::HostPorts::has_moved_room`].
    fn has_moved_room(&mut self, _queue: usize) -> bool {
        false
    }

    /// See [`node::HostPorts::push_moved`].
    fn push_moved(&mut self, _queue: usize, _moved: MovedConnection) {}

    /// See [`node::HostPorts::pop_moved`].
    fn pop_moved(&mut self) -> Option<MovedConnection> {
        None
    }
}
