//! Frames that one device receives for another: part of [`Device`].
//!
//! With several queues each queue has a device, a host and a queue of the link, and the link may
//! choose its queue by any rule. A device therefore passes each TCP segment and UDP datagram whose
//! hash or connection ID leads to another queue on to that queue's device, before any engine sees
//! it. So one device sees all frames of a flow. Of a frame that belongs to no flow (ARP, ICMP)
//! every device gets a copy. A device has events for the host of its own queue only.
//!
//! An entry of the steering's table may be moved to another queue ([`abi::steering`]). The device
//! of the new queue then has a set of the older flows, whose segments it hands over to the former
//! queue; the hosts add to it and remove from it ([`abi::Op::HandOver`]). The former queue's device
//! has the same set, for segments that it receives from the link itself. A flow that is missing in
//! a set costs a detour by the hosts, and so does one that is there wrongly.
//!
//! A buffer changes its owner with its frame. In exchange the driver returns a free buffer of the
//! same size to the device that received the frame, so that no pool runs dry.

use abi::link::RxFrame;
use abi::steering::{OwnQueue, SegmentHandOver, SteeredFrame, SteeringReason};
use abi::{PacketBuf, ReceivedFrame};
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;
use base::{Instant, internal_error};
use hashbrown::HashTable;
use tcp_rules::tuple::hash_tuple;
use wire::Tuple;

use super::Device;
use crate::counters::SteeringCounters;
use crate::pipeline::Egress;
use crate::pipeline::rx::{ParsedRxFrame, RxTransport};

/// Frames that may wait for the driver, for each queue: more than a driver takes from the link
/// between two polls.
const WAITING_MAX: usize = 256;
/// Maximum number of older flows in a device's set. A new set is begun when it is full; the hosts
/// fill it again.
const OLDER_FLOWS_MAX: usize = 65_536;

/// Flows of moved entries that stayed with the former queue.
#[derive(Debug)]
struct OlderFlows {
    tuples: HashTable<Tuple>,
    seed: u64,
}

impl OlderFlows {
    fn contains(&self, tuple: &Tuple) -> bool {
        !self.tuples.is_empty()
            && self.tuples.find(hash_tuple(self.seed, tuple), |t| t == tuple).is_some()
    }

    fn insert(&mut self, tuple: &Tuple) {
        if self.contains(tuple) {
            return;
        }
        if self.tuples.len() >= OLDER_FLOWS_MAX {
            self.tuples.clear();
        }
        let seed = self.seed;
        let hash = |tuple: &Tuple| hash_tuple(seed, tuple);
        self.tuples.insert_unique(hash(tuple), *tuple, hash);
    }

    fn remove(&mut self, tuple: &Tuple) {
        if let Ok(found) = self.tuples.find_entry(hash_tuple(self.seed, tuple), |t| t == tuple) {
            found.remove();
        }
    }

    /// Follows a segment that is handed over for this reason.
    fn learn(&mut self, tuple: &Tuple, reason: SteeringReason) {
        match reason {
            SteeringReason::Current | SteeringReason::TornDown => {}
            SteeringReason::Former => self.insert(tuple),
            SteeringReason::Returned => self.remove(tuple),
        }
    }
}

/// Frames for other devices.
#[derive(Debug)]
pub(super) struct Steering {
    /// The device's own queue; `None` if it serves all.
    own: Option<usize>,
    /// Waiting frames of each queue.
    waiting: Vec<VecDeque<SteeredFrame>>,
    older_flows: OlderFlows,
    pub(super) counters: SteeringCounters,
}

impl Steering {
    /// Creates the steering of a device. `seed` is that of its hash tables.
    pub(super) fn new(own: Option<usize>, queues: usize, seed: u64) -> Self {
        let mut waiting = Vec::new();
        waiting.resize_with(own.map_or(0, |_| queues), VecDeque::new);
        let older_flows = OlderFlows { tuples: HashTable::new(), seed };
        Self { own, waiting, older_flows, counters: SteeringCounters::default() }
    }

    /// Returns the queue that processes a segment of an entry that was moved from the queue
    /// `former`. Only the current queue sees all segments of the entry, and the former one those
    /// that the link delivers to it.
    fn route_moved(
        &mut self,
        own: usize,
        former: usize,
        arrived: &ParsedRxFrame,
    ) -> (usize, SteeringReason) {
        let current = (arrived.queue, SteeringReason::Current);
        let Some(tuple) = arrived.tcp_tuple() else { return current };
        if own != former && own != arrived.queue {
            return current;
        }
        if arrived.is_syn() {
            self.older_flows.remove(tuple);
            return current;
        }
        if self.older_flows.contains(tuple) { (former, SteeringReason::Former) } else { current }
    }

    /// Returns whether the device serves a queue.
    pub(super) fn serves(&self, queue: usize) -> bool {
        self.own.is_none_or(|own| own == queue)
    }

    /// Drops the waiting frames.
    pub(super) fn clear(&mut self, egress: &mut Egress) {
        for steered in self.waiting.iter_mut().flat_map(|queue| queue.drain(..)) {
            egress.recycle(steered.frame.packet);
        }
        self.older_flows.tuples.clear();
    }
}

impl Device {
    /// Returns a frame that this device is to process; queues it, or a copy, for the devices of
    /// other queues.
    #[inline]
    pub(super) fn steer(&mut self, mut arrived: ParsedRxFrame) -> Option<ParsedRxFrame> {
        let Some(own) = self.steering.own else { return Some(arrived) };
        if matches!(arrived.transport, RxTransport::Other) {
            self.copy_to_other_devices(own, &arrived.received);
            arrived.queue = own;
        }
        let (queue, reason) = match arrived.former {
            None => (arrived.queue, SteeringReason::Current),
            Some(former) => self.steering.route_moved(own, former, &arrived),
        };
        if queue == own {
            arrived.queue = own;
            return Some(arrived);
        }
        let ReceivedFrame { packet, checksum, segment_size, .. } = arrived.received;
        let frame = RxFrame { packet, checksum, segment_size };
        self.queue_for(queue, SteeredFrame { frame, reason });
        None
    }

    /// Releases those of the entries in which no engine has a connection.
    pub(super) fn release_entries(&mut self, entries: &[usize]) {
        let Some(OwnQueue { steering, index }) = &self.config.own_queue else { return };
        let mut in_use = BTreeSet::new();
        self.engines.visit_connections(&mut |tuple| {
            in_use.insert(steering.entry_of(tuple));
        });
        for &entry in entries.iter().filter(|&&entry| entry < steering.entries()) {
            if !in_use.contains(&entry) && steering.release(entry, *index) {
                self.steering.counters.rx_steered_entries_released += 1;
            }
        }
    }

    /// Passes on a segment that the host has no connection for.
    pub(super) fn hand_over(&mut self, segment: SegmentHandOver) {
        let SegmentHandOver { queue, tuple, frame } = segment;
        self.steering.older_flows.learn(&tuple, frame.reason);
        self.queue_for(queue, frame);
    }

    /// Queues a copy of a frame that belongs to no flow for each other device.
    fn copy_to_other_devices(&mut self, own: usize, received: &ReceivedFrame) {
        let &ReceivedFrame { checksum, segment_size, .. } = received;
        for other in (0..self.queues()).filter(|&other| other != own) {
            let Some(packet) = self.egress.pool.copy(received.packet.as_slice()) else { return };
            let frame = RxFrame { packet, checksum, segment_size };
            self.queue_for(other, SteeredFrame { frame, reason: SteeringReason::Current });
        }
    }

    /// Queues a frame for the device of another queue, or drops it.
    fn queue_for(&mut self, queue: usize, steered: SteeredFrame) {
        let waiting = self.steering.waiting.get_mut(queue);
        match waiting.filter(|waiting| waiting.len() < WAITING_MAX) {
            Some(waiting) => {
                self.steering.counters.count_out(steered.reason, 1);
                waiting.push_back(steered);
            }
            None => {
                self.steering.counters.rx_steered_dropped += 1;
                self.egress.recycle(steered.frame.packet);
            }
        }
    }

    /// Returns the next received frame for the device of another queue.
    #[inline]
    pub fn poll_steered(&mut self, queue: usize) -> Option<SteeredFrame> {
        self.steering.waiting.get_mut(queue)?.pop_front()
    }

    /// Drops a frame that the device of its queue has no room for.
    pub fn drop_steered(&mut self, steered: SteeredFrame) {
        self.steering.counters.count_out(steered.reason, 1_u64.wrapping_neg());
        self.steering.counters.rx_steered_dropped += 1;
        self.egress.recycle(steered.frame.packet);
    }

    /// Processes a frame that another device received. Returns a free buffer of the same size for
    /// that device.
    pub fn handle_steered(&mut self, now: Instant, steered: SteeredFrame) -> Option<PacketBuf> {
        let SteeredFrame { frame, reason } = steered;
        let spare = self.egress.pool.take(frame.packet.footprint());
        let parsed = self.receiver.handle(frame);
        match parsed {
            Ok(arrived) if self.accepts(&arrived, reason) => {
                self.steering.counters.rx_steered_in += 1;
                self.handle_accepted(now, arrived, reason);
            }
            // All devices have the same steering, so the other one found this device's queue.
            Ok(ParsedRxFrame { received: ReceivedFrame { packet, .. }, .. }) | Err(packet) => {
                let counter = &mut self.egress.internal.nic_internal_errors;
                internal_error!(*counter, "a frame of another queue was handed over");
                self.egress.recycle(packet);
            }
        }
        spare
    }

    /// Processes a frame that the host returned. The device that took a connection over for
    /// tear-down processes its segments, whether or not their entry was moved since.
    pub(super) fn handle_returned(&mut self, now: Instant, returned: SteeredFrame) {
        let SteeredFrame { frame, reason } = returned;
        if reason != SteeringReason::TornDown {
            return self.handle_frame(now, frame);
        }
        match self.receiver.handle(frame) {
            Ok(arrived) => self.handle_accepted(now, arrived, reason),
            Err(packet) => self.egress.recycle(packet),
        }
    }

    /// Returns whether a frame of another device is one for this device. The frame's entry may have
    /// been moved while the frame was on its way.
    fn accepts(&self, frame: &ParsedRxFrame, reason: SteeringReason) -> bool {
        reason != SteeringReason::Current
            || self.steering.serves(frame.queue)
            || frame.former.is_some()
            || matches!(frame.transport, RxTransport::Other)
    }

    /// Processes a frame of another device, or one that the host returned. If the frame's entry was
    /// moved, it may have to be handed over again.
    fn handle_accepted(
        &mut self,
        now: Instant,
        mut arrived: ParsedRxFrame,
        reason: SteeringReason,
    ) {
        arrived.received.steered = reason;
        if reason == SteeringReason::Current && arrived.former.is_some() {
            if let Some(own) = self.steer(arrived) {
                self.handle_own(now, own);
            }
            return;
        }
        if let Some(tuple) = arrived.tcp_tuple() {
            self.steering.older_flows.learn(tuple, reason);
        }
        arrived.queue = self.steering.own.unwrap_or(arrived.queue);
        self.handle_own(now, arrived);
    }
}
