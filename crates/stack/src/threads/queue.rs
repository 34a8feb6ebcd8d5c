//! Rings between host threads and device threads, with their wake-ups.
//!
//! Host `h` sends its operations to device thread `h` and gets the events of that thread alone. A
//! received frame belongs to the queue that its flow's hash selects, whichever device thread
//! received it: that thread hands it over to the queue's device thread. So for each pair of device
//! threads there is a ring of frames, and one of free buffers in return; and for each pair of host
//! threads, one of connections that follow their steering entry to another queue.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use abi::ring::{RingConsumer, RingProducer, RingWaker, ring};
use abi::steering::SteeredFrame;
use abi::{Event, Op, PacketBuf};
use host::MovedConnection;
use io::notify::{Notifier, Poller};

use super::carrier::{CarrierSleeper, HostCarrier, SleepingCarrier};
use super::shutdown::HostEndedFlag;
use cli::Failure;

/// Slots of each ring. A ring is passed through from end to end, so its memory stays in the cache
/// only if it is small: the rings of operations and events of a queue have 192 KiB. Output that
/// finds a ring full waits in the queues of host and device.
const SLOTS: usize = 512;
/// Slots of each ring of connections between two hosts. If it is full, connections stay where they
/// are until their next request.
const MOVED_SLOTS: usize = 64;

/// Wakes a thread, with a system call only if it sleeps.
#[derive(Clone)]
pub(crate) struct ThreadWaker {
    waker: Arc<RingWaker>,
    notifier: Notifier,
    /// Index of the notifier in the poller of the thread that sleeps.
    polled: usize,
}

impl ThreadWaker {
    pub(super) fn new() -> Result<Self, Failure> {
        let notifier =
            Notifier::new().map_err(|e| Failure::System(format!("cannot create eventfd: {e}")))?;
        Ok(Self { waker: Arc::new(RingWaker::new()), notifier, polled: 0 })
    }

    /// Wakes the thread if it sleeps. To be called after a push to one of its rings.
    pub(crate) fn wake_if_asleep(&self) {
        if self.waker.must_wake() {
            self.notifier.notify();
        }
    }
}

impl CarrierSleeper for ThreadWaker {
    fn register(&mut self, poller: &mut Poller) {
        self.polled = poller.add(self.notifier.as_raw_fd());
    }

    fn prepare_sleep(&mut self) {
        self.waker.prepare_sleep();
    }

    fn finish_sleep(&mut self, slept: Option<&Poller>) {
        self.waker.mark_awake();
        if slept.is_some_and(|poller| poller.is_ready(self.polled)) {
            self.notifier.drain();
        }
    }

    fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }
}

/// A host thread's ends of the rings.
pub(crate) struct HostRings {
    pub(crate) ops: RingProducer<Op>,
    pub(crate) recycle: RingProducer<PacketBuf>,
    pub(crate) events: RingConsumer<Event>,
    pub(crate) waker: ThreadWaker,
    pub(crate) device_waker: ThreadWaker,
    /// Wakers of all device threads, which wait for the end of each host.
    pub(super) device_wakers: Vec<ThreadWaker>,
    pub(super) ended: HostEndedFlag,
    pub(super) moved: MovedRings,
}

/// A host thread's ends of the rings of connections to and from the other host threads, by queue.
pub(crate) struct MovedRings {
    outgoing: Vec<RingProducer<MovedConnection>>,
    incoming: Vec<RingConsumer<MovedConnection>>,
    wakers: Vec<ThreadWaker>,
}

impl MovedRings {
    /// Returns whether a queue's host takes a connection.
    pub(super) fn has_room(&mut self, queue: usize) -> bool {
        self.outgoing.get_mut(queue).is_some_and(|ring| ring.free() > 0)
    }

    /// Sends a connection to a queue's host, and wakes it.
    pub(super) fn push(&mut self, queue: usize, moved: MovedConnection) {
        let pushed = self.outgoing[queue].push(moved);
        debug_assert!(pushed.is_ok(), "the caller asked for room");
        self.wakers[queue].wake_if_asleep();
    }

    /// Returns the next connection of another host.
    pub(super) fn pop(&mut self) -> Option<MovedConnection> {
        self.incoming.iter_mut().find_map(RingConsumer::pop)
    }
}

impl SleepingCarrier for HostRings {
    type Sleeper = ThreadWaker;

    fn sleeper(&mut self) -> &mut ThreadWaker {
        &mut self.waker
    }

    fn has_work(&mut self) -> bool {
        !self.events.is_empty() || self.moved.incoming.iter_mut().any(|ring| !ring.is_empty())
    }
}

impl HostCarrier for HostRings {
    #[inline]
    fn pop_event(&mut self) -> Option<Event> {
        self.events.pop()
    }

    #[inline]
    fn has_op_room(&mut self) -> bool {
        self.ops.free() > 0
    }

    #[inline]
    fn push_op(&mut self, op: Op) {
        let pushed = self.ops.push(op);
        debug_assert!(pushed.is_ok(), "the caller asked for room");
    }

    fn push_recycled(&mut self, packet: PacketBuf) {
        // Dropped if the ring is full; the device allocates another.
        let _dropped = self.recycle.push(packet);
    }

    fn wake_device(&mut self) {
        self.device_waker.wake_if_asleep();
    }

    /// Lets the device threads end.
    fn finish(&mut self) {
        self.ended.set();
        self.device_wakers.iter().for_each(ThreadWaker::wake_if_asleep);
    }

    fn has_moved_room(&mut self, queue: usize) -> bool {
        self.moved.has_room(queue)
    }

    fn push_moved(&mut self, queue: usize, moved: MovedConnection) {
        self.moved.push(queue, moved);
    }

    fn pop_moved(&mut self) -> Option<MovedConnection> {
        self.moved.pop()
    }
}

/// A device thread's ends of the rings.
pub(crate) struct DeviceRings {
    /// Index of the host whose operations it executes.
    pub(crate) index: usize,
    pub(crate) ops: RingConsumer<Op>,
    pub(crate) recycle: RingConsumer<PacketBuf>,
    pub(crate) events: RingProducer<Event>,
    pub(crate) waker: ThreadWaker,
    pub(crate) host_waker: ThreadWaker,
    /// Flags of all host threads: their last segments may arrive on any queue of the link.
    pub(super) hosts_ended: Vec<HostEndedFlag>,
    pub(crate) steering: SteeringRings,
}

/// A device thread's ends of the rings to and from the other device threads, by queue.
pub(crate) struct SteeringRings {
    /// Received frames for other devices.
    pub(crate) frames_out: Vec<RingProducer<SteeredFrame>>,
    /// Frames that other devices received.
    frames_in: Vec<RingConsumer<SteeredFrame>>,
    /// Free buffers in exchange for those of `frames_in`.
    pub(crate) spares_out: Vec<RingProducer<PacketBuf>>,
    /// Free buffers in exchange for those of `frames_out`.
    spares_in: Vec<RingConsumer<PacketBuf>>,
    pub(crate) wakers: Vec<ThreadWaker>,
    /// Ring of `frames_in` to look at first, so that no device starves another.
    next: usize,
}

impl SteeringRings {
    /// Returns the next frame that another device received, and that device's queue.
    pub(crate) fn pop_frame(&mut self) -> Option<(usize, SteeredFrame)> {
        let queues = self.frames_in.len();
        for offset in 0..queues {
            let from = (self.next + offset) % queues;
            if let Some(frame) = self.frames_in[from].pop() {
                self.next = from + 1;
                return Some((from, frame));
            }
        }
        None
    }

    /// Returns the next free buffer of another device.
    pub(crate) fn pop_spare(&mut self) -> Option<PacketBuf> {
        self.spares_in.iter_mut().find_map(RingConsumer::pop)
    }
}

impl SleepingCarrier for DeviceRings {
    type Sleeper = ThreadWaker;

    fn sleeper(&mut self) -> &mut ThreadWaker {
        &mut self.waker
    }

    fn has_work(&mut self) -> bool {
        !self.ops.is_empty() || self.steering.frames_in.iter_mut().any(|ring| !ring.is_empty())
    }
}

impl DeviceRings {
    /// Returns the next buffer that the host or another device has returned.
    #[inline]
    pub(super) fn pop_recycled(&mut self) -> Option<PacketBuf> {
        self.recycle.pop().or_else(|| self.steering.pop_spare())
    }

    /// Sends an event. Drops it if the host has ended.
    ///
    /// # Errors
    /// Returns the event if there is no room for it.
    #[inline]
    #[expect(clippy::result_large_err, reason = "the event comes back as it is")]
    pub(super) fn push_event(&mut self, event: Event) -> Result<(), Event> {
        match self.events.push(event) {
            Err(event) if !self.events.is_abandoned() => Err(event),
            _ => Ok(()),
        }
    }

    /// Returns whether all hosts have ended, whose last segments may arrive on any device.
    pub(super) fn have_hosts_ended(&self) -> bool {
        self.hosts_ended.iter().all(HostEndedFlag::is_set)
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
    let hosts_ended: Vec<_> = (0..queues).map(|_| HostEndedFlag::default()).collect();
    let steering = steering_mesh(&device_bells);
    let moved = mesh(queues, if queues > 1 { MOVED_SLOTS } else { 1 });
    Ok(steering
        .into_iter()
        .zip(moved)
        .enumerate()
        .map(|(index, (steering, (outgoing, incoming)))| {
            let (events_tx, events_rx) = ring(SLOTS);
            let (ops_tx, ops_rx) = ring(SLOTS);
            let (recycle_tx, recycle_rx) = ring(SLOTS);
            let (bell, device_bell) = (host_bells[index].clone(), device_bells[index].clone());
            let host = HostRings {
                ops: ops_tx,
                recycle: recycle_tx,
                events: events_rx,
                waker: bell.clone(),
                device_waker: device_bell.clone(),
                device_wakers: device_bells.clone(),
                ended: hosts_ended[index].clone(),
                moved: MovedRings { outgoing, incoming, wakers: host_bells.clone() },
            };
            let device = DeviceRings {
                index,
                ops: ops_rx,
                recycle: recycle_rx,
                events: events_tx,
                waker: device_bell,
                host_waker: bell,
                hosts_ended: hosts_ended.clone(),
                steering,
            };
            QueueRings { host, device }
        })
        .collect())
}

/// The ends of one thread: producers to all threads, and consumers from all threads.
type MeshEnds<T> = (Vec<RingProducer<T>>, Vec<RingConsumer<T>>);

/// Creates a ring from each of `threads` threads to each; returns each thread's ends.
fn mesh<T: Send>(threads: usize, slots: usize) -> Vec<MeshEnds<T>> {
    let mut outgoing: Vec<Vec<RingProducer<T>>> = (0..threads).map(|_| Vec::new()).collect();
    let mut incoming: Vec<Vec<RingConsumer<T>>> = (0..threads).map(|_| Vec::new()).collect();
    for producers in &mut outgoing {
        for consumers in &mut incoming {
            let (tx, rx) = ring(slots);
            producers.push(tx);
            consumers.push(rx);
        }
    }
    outgoing.into_iter().zip(incoming).collect()
}

/// Creates the rings between the device threads with these wakers.
fn steering_mesh(wakers: &[ThreadWaker]) -> Vec<SteeringRings> {
    // A single device hands nothing over.
    let slots = if wakers.len() > 1 { SLOTS } else { 1 };
    let frames = mesh(wakers.len(), slots);
    let spares = mesh(wakers.len(), slots);
    frames
        .into_iter()
        .zip(spares)
        .map(|((frames_out, frames_in), (spares_out, spares_in))| SteeringRings {
            frames_out,
            frames_in,
            spares_out,
            spares_in,
            wakers: wakers.to_vec(),
            next: 0,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use abi::link::RxFrame;
    use abi::steering::SteeringReason;
    use abi::{Checksum, PacketPool};

    use super::*;

    fn frame(byte: u8) -> SteeredFrame {
        let packet = PacketPool::new(1).copy(&[byte]).unwrap();
        let frame = RxFrame { packet, checksum: Checksum::Good, segment_size: 0 };
        SteeredFrame { frame, reason: SteeringReason::Current }
    }

    #[test]
    fn frames_and_spares_reach_the_device_of_their_queue() {
        let mut queues = ring_mesh(3).unwrap();
        for from in [0, 2] {
            let rings = &mut queues[from].device.steering;
            for _ in 0..2 {
                rings.frames_out[1].push(frame(u8::try_from(from).unwrap())).unwrap();
            }
        }
        assert!(!queues[0].device.has_work() && queues[1].device.has_work());
        let rings = &mut queues[1].device.steering;
        let taken: Vec<_> = std::iter::from_fn(|| rings.pop_frame())
            .map(|(from, frame)| (from, frame.frame.packet.as_slice()[0]))
            .collect();
        assert_eq!(taken, [(0, 0), (2, 2), (0, 0), (2, 2)], "in turn");
        rings.spares_out[2].push(frame(9).frame.packet).unwrap();
        assert!(queues[0].device.steering.pop_spare().is_none());
        assert_eq!(queues[2].device.steering.pop_spare().unwrap().as_slice(), [9]);
    }
}
