//! The rings between host threads and device threads, and the bells that wake them.
//!
//! Host `h` sends its operations to device thread `h`, whose file handles it uses. A received
//! packet belongs to the host that its flow's hash says, whichever device thread received it; so
//! events have a ring for each pair.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use abi::ring::{Consumer, Producer, Waker, ring};
use abi::{Event, Op, PacketBuf};
use io::notify::Notifier;

use super::ending::HostEnded;
use cli::Failure;

/// Slots of each ring: a few milliseconds of packets.
const SLOTS: usize = 4096;

/// Wakes a thread, at the cost of a system call only if it sleeps.
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

    /// Called after something was pushed for the thread.
    pub(crate) fn ring(&self) {
        if self.waker.must_wake() {
            self.notifier.notify();
        }
    }

    /// The thread is about to sleep, and looks once more after this.
    pub(crate) fn prepare_sleep(&self) {
        self.waker.prepare_sleep();
    }

    /// The thread is awake; `rung` says whether [`Self::fd`] was ready.
    pub(crate) fn awake(&self, rung: bool) {
        self.waker.awake();
        if rung {
            self.notifier.drain();
        }
    }

    /// To wake the thread for other reasons.
    pub(crate) fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// To sleep on.
    pub(crate) fn fd(&self) -> RawFd {
        self.notifier.as_raw_fd()
    }
}

/// A host thread's ends.
pub(crate) struct HostQueue {
    pub(crate) ops: Producer<Op>,
    pub(crate) recycle: Producer<PacketBuf>,
    /// From each device thread.
    pub(crate) events: Vec<Consumer<Event>>,
    pub(crate) bell: Bell,
    pub(crate) device_bell: Bell,
    pub(super) ended: HostEnded,
}

impl HostQueue {
    /// Whether an event waits.
    pub(crate) fn has_work(&mut self) -> bool {
        self.events.iter_mut().any(|ring| !ring.is_empty())
    }
}

/// A device thread's ends.
pub(crate) struct DeviceQueue {
    /// Which host it works for.
    pub(crate) index: usize,
    pub(crate) ops: Consumer<Op>,
    pub(crate) recycle: Consumer<PacketBuf>,
    /// To each host thread.
    pub(crate) events: Vec<Producer<Event>>,
    pub(crate) bell: Bell,
    pub(crate) host_bells: Vec<Bell>,
    pub(super) host_ended: HostEnded,
}

impl DeviceQueue {
    /// Whether an operation waits.
    pub(crate) fn has_work(&mut self) -> bool {
        !self.ops.is_empty()
    }
}

/// Both sides of a queue.
pub(crate) struct Queue {
    pub(crate) host: HostQueue,
    pub(crate) device: DeviceQueue,
}

/// Rings for `queues` host threads and as many device threads.
///
/// # Errors
/// Fails if the process has no descriptor left.
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
