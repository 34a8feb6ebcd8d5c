//! Rings between host threads and device threads, with their wake-ups.
//!
//! Host `h` sends its operations to device thread `h`, whose file handles it uses. A received
//! packet belongs to the host that its flow's hash selects, whichever device thread received it, so
//! there is a ring of events for each pair of device and host.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use abi::ring::{Consumer, Producer, Waker, ring};
use abi::{Event, Op, PacketBuf};
use io::notify::Notifier;

use super::ending::HostEnded;
use cli::Failure;

/// Slots of each ring: packets of a few milliseconds.
const SLOTS: usize = 4096;

/// Wakes a thread, with a system call only if it sleeps.
#[derive(Clone)]
pub(crate) struct Bell {
    waker: Arc<Waker>,
    notifier: Notifier,
}

impl Bell {
    pub(super) fn new() -> Result<Self, Failure> {
        let notifier =
            Notifier::new().map_err(|e| Failure::System(format!("cannot make an eventfd: {e}")))?;
        Ok(Self { waker: Arc::new(Waker::new()), notifier })
    }

    /// Wakes the thread if it sleeps. To be called after a push to one of its rings.
    pub(crate) fn ring(&self) {
        if self.waker.must_wake() {
            self.notifier.notify();
        }
    }

    /// Announces that the thread is about to sleep. It must check its rings once more after this
    /// call.
    pub(crate) fn prepare_sleep(&self) {
        self.waker.prepare_sleep();
    }

    /// Announces that the thread is awake; `rung` is whether [`Self::fd`] was ready.
    pub(crate) fn awake(&self, rung: bool) {
        self.waker.awake();
        if rung {
            self.notifier.drain();
        }
    }

    /// Returns the notifier, to wake the thread unconditionally.
    pub(crate) fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// Returns the descriptor to sleep on.
    pub(crate) fn fd(&self) -> RawFd {
        self.notifier.as_raw_fd()
    }
}

/// A host thread's ends of the rings.
pub(crate) struct HostQueue {
    pub(crate) ops: Producer<Op>,
    pub(crate) recycle: Producer<PacketBuf>,
    /// One ring from each device thread.
    pub(crate) events: Vec<Consumer<Event>>,
    pub(crate) bell: Bell,
    pub(crate) device_bell: Bell,
    pub(super) ended: HostEnded,
}

impl HostQueue {
    /// Returns whether an event waits.
    pub(crate) fn has_work(&mut self) -> bool {
        self.events.iter_mut().any(|ring| !ring.is_empty())
    }
}

/// A device thread's ends of the rings.
pub(crate) struct DeviceQueue {
    /// Index of the host whose operations it executes.
    pub(crate) index: usize,
    pub(crate) ops: Consumer<Op>,
    pub(crate) recycle: Consumer<PacketBuf>,
    /// One ring to each host thread.
    pub(crate) events: Vec<Producer<Event>>,
    pub(crate) bell: Bell,
    pub(crate) host_bells: Vec<Bell>,
    pub(super) host_ended: HostEnded,
}

impl DeviceQueue {
    /// Returns whether an operation waits.
    pub(crate) fn has_work(&mut self) -> bool {
        !self.ops.is_empty()
    }
}

/// Both ends of a queue.
pub(crate) struct Queue {
    pub(crate) host: HostQueue,
    pub(crate) device: DeviceQueue,
}

/// Creates the rings for `queues` host threads and as many device threads.
///
/// # Errors
/// Fails if no file descriptor is left.
pub(crate) fn mesh(queues: usize) -> Result<Vec<Queue>, Failure> {
    let bells = |n: usize| (0..n).map(|_| Bell::new()).collect::<Result<Vec<_>, _>>();
    let (host_bells, device_bells) = (bells(queues)?, bells(queues)?);
    let mut to_host: Vec<Vec<Consumer<Event>>> = (0..queues).map(|_| Vec::new()).collect();
    let mut from_device: Vec<Vec<Producer<Event>>> = (0..queues).map(|_| Vec::new()).collect();
    for producers in &mut from_device {
        for consumers in &mut to_host {
            let (tx, rx) = ring(SLOTS);
            producers.push(tx);
            consumers.push(rx);
        }
    }
    let ends = to_host.into_iter().zip(from_device).enumerate();
    Ok(ends
        .map(|(index, (incoming, outgoing))| {
            let (ops_tx, ops_rx) = ring(SLOTS);
            let (recycle_tx, recycle_rx) = ring(SLOTS);
            let (bell, device_bell) = (host_bells[index].clone(), device_bells[index].clone());
            let ended = HostEnded::default();
            let host = HostQueue {
                ops: ops_tx,
                recycle: recycle_tx,
                events: incoming,
                bell,
                device_bell: device_bell.clone(),
                ended: ended.clone(),
            };
            let device = DeviceQueue {
                index,
                ops: ops_rx,
                recycle: recycle_rx,
                events: outgoing,
                bell: device_bell,
                host_bells: host_bells.clone(),
                host_ended: ended,
            };
            Queue { host, device }
        })
        .collect())
}
