//! Rings between host threads and device threads, with their wake-ups.
//!
//! Host `h` sends its operations to device thread `h`, whose file handles it uses. A received
//! packet belongs to the host that its flow's hash selects, whichever device thread received it, so
//! there is a ring of events for each pair of device and host.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use abi::ring::{RingConsumer, RingProducer, RingWaker, ring};
use abi::{Event, Op, PacketBuf};
use io::notify::Notifier;

use super::shutdown::HostEndedFlag;
use cli::Failure;

/// Slots of each ring. A ring is passed through from end to end, so its memory stays in the cache
/// only if it is small: the rings of operations and events of a queue have 192 KiB. Output that
/// finds a ring full waits in the queues of host and device.
const SLOTS: usize = 512;

/// Wakes a thread, with a system call only if it sleeps.
#[derive(Clone)]
pub(crate) struct ThreadWaker {
    waker: Arc<RingWaker>,
    notifier: Notifier,
}

impl ThreadWaker {
    pub(super) fn new() -> Result<Self, Failure> {
        let notifier =
            Notifier::new().map_err(|e| Failure::System(format!("cannot create eventfd: {e}")))?;
        Ok(Self { waker: Arc::new(RingWaker::new()), notifier })
    }

    /// Wakes the thread if it sleeps. To be called after a push to one of its rings.
    pub(crate) fn wake_if_asleep(&self) {
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
    pub(crate) fn finish_sleep(&self, rung: bool) {
        self.waker.mark_awake();
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
pub(crate) struct HostRings {
    pub(crate) ops: RingProducer<Op>,
    pub(crate) recycle: RingProducer<PacketBuf>,
    /// One ring from each device thread.
    pub(crate) events: Vec<RingConsumer<Event>>,
    pub(crate) waker: ThreadWaker,
    pub(crate) device_waker: ThreadWaker,
    pub(super) ended: HostEndedFlag,
}

impl HostRings {
    /// Returns whether an event waits.
    pub(crate) fn has_work(&mut self) -> bool {
        self.events.iter_mut().any(|ring| !ring.is_empty())
    }
}

/// A device thread's ends of the rings.
pub(crate) struct DeviceRings {
    /// Index of the host whose operations it executes.
    pub(crate) index: usize,
    pub(crate) ops: RingConsumer<Op>,
    pub(crate) recycle: RingConsumer<PacketBuf>,
    /// One ring to each host thread.
    pub(crate) events: Vec<RingProducer<Event>>,
    pub(crate) waker: ThreadWaker,
    pub(crate) host_wakers: Vec<ThreadWaker>,
    pub(super) host_ended: HostEndedFlag,
}

impl DeviceRings {
    /// Returns whether an operation waits.
    pub(crate) fn has_work(&mut self) -> bool {
        !self.ops.is_empty()
    }
}

/// Both ends of a queue.
pub(crate) struct QueueRings {
    pub(crate) host: HostRings,
    pub(crate) device: DeviceRings,
}

/// Creates the rings for `queues` host threads and as many device threads.
///
/// # Errors
/// Fails if no file descriptor is left.
pub(crate) fn ring_mesh(queues: usize) -> Result<Vec<QueueRings>, Failure> {
    let bells = |n: usize| (0..n).map(|_| ThreadWaker::new()).collect::<Result<Vec<_>, _>>();
    let (host_bells, device_bells) = (bells(queues)?, bells(queues)?);
    let mut to_host: Vec<Vec<RingConsumer<Event>>> = (0..queues).map(|_| Vec::new()).collect();
    let mut from_device: Vec<Vec<RingProducer<Event>>> = (0..queues).map(|_| Vec::new()).collect();
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
            let ended = HostEndedFlag::default();
            let host = HostRings {
                ops: ops_tx,
                recycle: recycle_tx,
                events: incoming,
                waker: bell,
                device_waker: device_bell.clone(),
                ended: ended.clone(),
            };
            let device = DeviceRings {
                index,
                ops: ops_rx,
                recycle: recycle_rx,
                events: outgoing,
                waker: device_bell,
                host_wakers: host_bells.clone(),
                host_ended: ended,
            };
            QueueRings { host, device }
        })
        .collect())
}
