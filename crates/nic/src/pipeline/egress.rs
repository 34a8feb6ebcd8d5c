//! The ways out of the device, and what lies at them: events for the hosts, packets for the wire,
//! buffers that are not needed any more.
//!
//! [`crate::Device`] has one and lends it to its engines, which tell hosts and send by it. It
//! bounds nothing by itself but received frames: it says if there is room, and its users ask.
//!
//! Invariant: it knows how many echoes of transmits wait, for no frame leaves while one does.

use abi::{Event, PacketBuf, PacketPool, Received};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::Run;
use crate::counters::{DeliveryCounters, InternalCounters, TxCounters};

/// Runs that may wait for the wire before the device takes no more operations, and drops what would
/// go straight on.
const RUNS_MAX: usize = 4096;

/// What waits for one host.
#[derive(Debug, Default)]
struct HostQueue {
    events: VecDeque<Event>,
    /// Connections that the device was asked to tear down.
    teardowns: u32,
}

/// Events, packets and buffers.
#[derive(Debug)]
pub(crate) struct Egress {
    /// Runs for the wire, in order.
    pub(crate) runs: VecDeque<Run>,
    pub(crate) tx: TxCounters,
    pub(crate) delivered: DeliveryCounters,
    /// Internal errors of the device itself, outside of its engines.
    pub(crate) internal: InternalCounters,
    pub(crate) pool: PacketPool,
    /// Largest packet above Ethernet that the wire carries.
    pub(crate) mtu: u16,
    queues: Vec<HostQueue>,
    queue_events_max: usize,
    /// Echoes of transmits among the events.
    echoes: usize,
}

impl Egress {
    /// Nothing waits, for any of `queues` hosts.
    pub(crate) fn new(queues: usize, queue_events_max: usize, mtu: u16, pool: PacketPool) -> Self {
        let mut all = Vec::new();
        all.resize_with(queues, HostQueue::default);
        Self {
            runs: VecDeque::new(),
            tx: TxCounters::default(),
            delivered: DeliveryCounters::default(),
            internal: InternalCounters::default(),
            pool,
            mtu,
            queues: all,
            queue_events_max,
            echoes: 0,
        }
    }

    /// Sends a packet, or a run of them, that is ready for the wire; nothing where its header made
    /// no sense.
    pub(crate) fn send(&mut self, run: Option<Run>) {
        let Some(run) = run else { return };
        self.tx.tx_transmits += 1;
        self.tx.tx_tso_transmits += u64::from(run.is_segmented());
        self.runs.push_back(run);
    }

    /// Takes a buffer that is not needed any more.
    pub(crate) fn put(&mut self, packet: PacketBuf) {
        self.pool.put(packet);
    }

    /// Whether the wire keeps up: else an engine's packets that need not be are not sent.
    pub(crate) fn has_run_room(&self) -> bool {
        self.runs.len() < RUNS_MAX
    }

    /// Returns the number of queues, each with a host.
    pub(crate) fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Whether a queue takes another frame.
    pub(crate) fn has_room(&self, queue: usize) -> bool {
        self.queues.get(queue).is_some_and(|queue| queue.events.len() < self.queue_events_max)
    }

    /// Whether every queue takes another frame.
    pub(crate) fn has_room_everywhere(&self) -> bool {
        (0..self.queues.len()).all(|queue| self.has_room(queue))
    }

    /// Tells a host something.
    #[inline]
    pub(crate) fn emit(&mut self, queue: usize, event: Event) {
        if let Some(queue) = self.queues.get_mut(queue) {
            self.echoes += usize::from(event.is_echo());
            queue.events.push_back(event);
        }
    }

    /// Gives a host a frame if its queue has room, and drops it else.
    pub(crate) fn deliver(&mut self, queue: usize, received: Received) {
        if self.has_room(queue) {
            self.hand_over(queue, received);
        } else {
            self.delivered.rx_dropped_overrun += 1;
            self.pool.put(received.packet);
        }
    }

    /// Gives a host a frame for which its queue has room.
    #[inline]
    pub(crate) fn hand_over(&mut self, queue: usize, mut received: Received) {
        self.delivered.count(&received);
        received.teardowns = self.queues.get(queue).map_or(0, |queue| queue.teardowns);
        self.emit(queue, Event::Received(received));
    }

    /// Gives a host what is in `next` as part of the frame that was delivered just before it, if
    /// the host has not taken that and `append` does it. Says whether it did.
    pub(crate) fn merge(
        &mut self,
        queue: usize,
        next: &Received,
        append: impl FnOnce(&mut Received, &mut PacketPool) -> bool,
    ) -> bool {
        let last = self.queues.get_mut(queue).and_then(|queue| queue.events.back_mut());
        let merged = match last {
            Some(Event::Received(tail)) => append(tail, &mut self.pool),
            _ => false,
        };
        if merged {
            self.delivered.count(next);
        }
        merged
    }

    /// Notes that a host has handed a connection over, for the device to tear it down.
    pub(crate) fn count_teardown(&mut self, queue: usize) {
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.teardowns = queue.teardowns.wrapping_add(1);
        }
    }

    /// Whether nothing waits for a host; none if there is no such queue.
    pub(crate) fn is_empty(&self, queue: usize) -> Option<bool> {
        self.queues.get(queue).map(|queue| queue.events.is_empty())
    }

    /// Takes the next event of a queue.
    #[inline]
    pub(crate) fn poll_event(&mut self, queue: usize) -> Option<Event> {
        let event = self.queues.get_mut(queue)?.events.pop_front()?;
        self.echoes -= usize::from(event.is_echo());
        Some(event)
    }

    /// Puts an event back that was polled: it is the queue's next.
    pub(crate) fn unpoll_event(&mut self, queue: usize, event: Event) {
        if let Some(queue) = self.queues.get_mut(queue) {
            self.echoes += usize::from(event.is_echo());
            queue.events.push_front(event);
        }
    }

    /// Whether the echo of a transmit waits to be polled.
    pub(crate) const fn has_echoes(&self) -> bool {
        self.echoes > 0
    }

    /// Forgets what waits, and tells every host so. Memory of a host is never lost.
    pub(crate) fn reset(&mut self) {
        self.runs.clear();
        self.echoes = 0;
        for HostQueue { events, .. } in &mut self.queues {
            let waiting = core::mem::take(events);
            events.push_back(Event::Reset);
            for event in waiting {
                match event {
                    Event::Received(received) => self.pool.put(received.packet),
                    Event::DdpTeardownDone(_) => events.push_back(event),
                    _ => {}
                }
            }
        }
    }
}
