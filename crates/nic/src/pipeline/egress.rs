//! Outputs of the device and their queues: events for the hosts, packets for the link, used buffers
//! for the pool.
//!
//! [`crate::Device`] owns it and passes it to its engines, which emit events and packets through
//! it. It enforces no limit except for received frames: it reports whether there is room, and its
//! callers check.
//!
//! Invariant: `echoes` is the number of queued echoes of transmits, because no frame leaves while
//! one is queued.

use abi::link::LinkCaps;
use abi::{Event, PacketBuf, PacketPool, ReceivedFrame};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::{QueuedPacket, RelayedFrame, RunQueue, TxRun};
use crate::counters::{DeliveryCounters, InternalCounters, TxCounters};

/// Runs that may wait for the link. At the limit the device takes no operations and engines drop
/// packets that they only relay.
const RUNS_MAX: usize = 4096;

/// Queued events of one host.
#[derive(Debug, Default)]
struct EgressQueue {
    events: VecDeque<Event>,
    /// Tear-down operations taken from the host, modulo 2^32.
    teardowns: u32,
}

/// Queues of events and packets, and the pool of buffers.
#[derive(Debug)]
pub(crate) struct Egress {
    /// Runs and relayed frames for the link, in order.
    pub(crate) runs: RunQueue,
    pub(crate) tx: TxCounters,
    pub(crate) delivered: DeliveryCounters,
    /// Internal errors of the device itself, without its engines.
    pub(crate) internal: InternalCounters,
    pub(crate) pool: PacketPool,
    /// Capabilities of the link.
    pub(crate) link: LinkCaps,
    /// Largest MTU that hosts were told of: they may have transmits of that size on the way.
    pub(crate) mtu_max: u16,
    queues: Vec<EgressQueue>,
    queue_events_max: usize,
    /// Number of queued events that are echoes of transmits.
    echoes: usize,
}

impl Egress {
    /// Creates empty queues for `queues` hosts.
    pub(crate) fn new(
        queues: usize,
        queue_events_max: usize,
        link: LinkCaps,
        pool: PacketPool,
    ) -> Self {
        let mut all = Vec::new();
        all.resize_with(queues, EgressQueue::default);
        Self {
            runs: RunQueue::default(),
            tx: TxCounters::default(),
            delivered: DeliveryCounters::default(),
            internal: InternalCounters::default(),
            pool,
            mtu_max: link.mtu,
            link,
            queues: all,
            queue_events_max,
            echoes: 0,
        }
    }

    /// Queues a packet or run that is ready for the link.
    #[inline]
    pub(crate) fn queue_run(&mut self, run: TxRun) {
        self.tx.tx_transmits += 1;
        self.tx.tx_tso_transmits += u64::from(run.is_segmented());
        self.runs.push(run);
    }

    /// Queues a run of relayed packets that is ready for the link, or appends it to the packet of
    /// its flow and direction that was queued before it, if possible. Returns its place, and
    /// whether it was appended.
    pub(crate) fn queue_run_behind(
        &mut self,
        before: Option<QueuedPacket>,
        run: TxRun,
    ) -> (QueuedPacket, bool) {
        let run = match before {
            Some(QueuedPacket::Run(number)) => match self.runs.append(number, run) {
                Ok(()) => return (QueuedPacket::Run(number), true),
                Err(run) => run,
            },
            _ => run,
        };
        let number = self.runs.next_number();
        self.queue_run(run);
        (QueuedPacket::Run(number), false)
    }

    /// Queues a relayed frame that is ready for the link, in place of the packet of its flow and
    /// direction that was queued before it, if that is superfluous now. Returns its place, and
    /// whether it replaced the other one.
    pub(crate) fn queue_relayed_behind(
        &mut self,
        before: Option<QueuedPacket>,
        frame: RelayedFrame,
    ) -> (QueuedPacket, bool) {
        let frame = match before {
            Some(QueuedPacket::Relayed(number)) => match self.runs.supersede(number, frame) {
                Ok(older) => {
                    self.recycle(older);
                    return (QueuedPacket::Relayed(number), true);
                }
                Err(frame) => frame,
            },
            _ => frame,
        };
        self.tx.tx_transmits += 1;
        (QueuedPacket::Relayed(self.runs.push_relayed(frame)), false)
    }

    /// Returns a used buffer to the pool.
    pub(crate) fn recycle(&mut self, packet: PacketBuf) {
        self.pool.put(packet);
    }

    /// Returns whether the link keeps up. If not, engines drop packets that need not be sent.
    pub(crate) fn has_run_room(&self) -> bool {
        self.runs.len() < RUNS_MAX
    }

    /// Returns the number of queues, each with a host.
    pub(crate) fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Returns whether a queue has room for another frame.
    pub(crate) fn has_room(&self, queue: usize) -> bool {
        self.queues.get(queue).is_some_and(|queue| queue.events.len() < self.queue_events_max)
    }

    /// Returns whether every queue has room for another frame.
    pub(crate) fn has_room_everywhere(&self) -> bool {
        (0..self.queues.len()).all(|queue| self.has_room(queue))
    }

    /// Queues an event for a host.
    #[inline]
    pub(crate) fn emit(&mut self, queue: usize, event: Event) {
        if let Some(queue) = self.queues.get_mut(queue) {
            self.echoes += usize::from(event.is_echo());
            queue.events.push_back(event);
        }
    }

    /// Delivers a frame to a host, or drops and counts it if the host's queue is full.
    pub(crate) fn deliver_or_drop(&mut self, queue: usize, received: ReceivedFrame) {
        if self.has_room(queue) {
            self.push_frame(queue, received);
        } else {
            self.delivered.rx_dropped_overrun += 1;
            self.pool.put(received.packet);
        }
    }

    /// Delivers a frame to a host whose queue has room.
    #[inline]
    pub(crate) fn push_frame(&mut self, queue: usize, mut received: ReceivedFrame) {
        self.delivered.count(&received);
        received.teardowns_taken = self.queues.get(queue).map_or(0, |queue| queue.teardowns);
        self.emit(queue, Event::Received(received));
    }

    /// Merges `next` into the frame that was delivered just before it, if that is still queued and
    /// `append` succeeds. Returns whether it was merged.
    pub(crate) fn merge(
        &mut self,
        queue: usize,
        next: &ReceivedFrame,
        append: impl FnOnce(&mut ReceivedFrame, &mut PacketPool) -> bool,
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

    /// Counts a tear-down operation of a host.
    pub(crate) fn count_teardown(&mut self, queue: usize) {
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.teardowns = queue.teardowns.wrapping_add(1);
        }
    }

    /// Returns whether no event is queued for a host; `None` if there is no such queue.
    pub(crate) fn is_empty(&self, queue: usize) -> Option<bool> {
        self.queues.get(queue).map(|queue| queue.events.is_empty())
    }

    /// Removes and returns the next event of a queue.
    #[inline]
    pub(crate) fn poll_event(&mut self, queue: usize) -> Option<Event> {
        let event = self.queues.get_mut(queue)?.events.pop_front()?;
        self.echoes -= usize::from(event.is_echo());
        Some(event)
    }

    /// Puts back an event that was polled; it is the queue's next.
    pub(crate) fn unpoll_event(&mut self, queue: usize, event: Event) {
        if let Some(queue) = self.queues.get_mut(queue) {
            self.echoes += usize::from(event.is_echo());
            queue.events.push_front(event);
        }
    }

    /// Returns whether the echo of a transmit is queued.
    pub(crate) const fn has_echoes(&self) -> bool {
        self.echoes > 0
    }

    /// Drops everything queued and reports the reset to the host of the device's own queue, or to
    /// every host if it serves all queues. Registered buffers and decompression jobs are kept:
    /// memory of a host is never lost.
    pub(crate) fn reset(&mut self, own: Option<usize>) {
        self.runs.clear(&mut self.pool);
        self.echoes = 0;
        for (index, EgressQueue { events, .. }) in self.queues.iter_mut().enumerate() {
            let waiting = core::mem::take(events);
            if own.is_none_or(|own| own == index) {
                events.push_back(Event::Reset);
            }
            for event in waiting {
                match event {
                    Event::Received(received) => self.pool.put(received.packet),
                    Event::DdpTeardownDone(_) | Event::Decompressed(_) => {
                        events.push_back(event);
                    }
                    _ => {}
                }
            }
        }
    }
}
