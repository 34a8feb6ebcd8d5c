//! Frames that one device receives for another: part of [`Device`].
//!
//! With several queues each queue has a device, a host and a queue of the link, and the link may
//! choose its queue by any rule. A device therefore passes each TCP segment and UDP datagram whose
//! hash or connection ID leads to another queue on to that queue's device, before any engine sees
//! it. So one device sees all frames of a flow. Of a frame that belongs to no flow (ARP, ICMP)
//! every device gets a copy. A device has events for the host of its own queue only.
//!
//! A buffer changes its owner with its frame. In exchange the driver returns a free buffer of the
//! same size to the device that received the frame, so that no pool runs dry.

use abi::link::RxFrame;
use abi::{PacketBuf, ReceivedFrame};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use base::{Instant, internal_error};

use super::Device;
use crate::counters::SteeringCounters;
use crate::pipeline::Egress;
use crate::pipeline::rx::{ParsedRxFrame, RxTransport};

/// Frames that may wait for the driver, for each queue: more than a driver takes from the link
/// between two polls.
const WAITING_MAX: usize = 256;

/// Frames for other devices.
#[derive(Debug)]
pub(super) struct Steering {
    /// The device's own queue; `None` if it serves all.
    own: Option<usize>,
    /// Waiting frames of each queue.
    waiting: Vec<VecDeque<RxFrame>>,
    pub(super) counters: SteeringCounters,
}

impl Steering {
    pub(super) fn new(own: Option<usize>, queues: usize) -> Self {
        let mut waiting = Vec::new();
        waiting.resize_with(own.map_or(0, |_| queues), VecDeque::new);
        Self { own, waiting, counters: SteeringCounters::default() }
    }

    /// Returns whether the device serves a queue.
    pub(super) fn serves(&self, queue: usize) -> bool {
        self.own.is_none_or(|own| own == queue)
    }

    /// Drops the waiting frames.
    pub(super) fn clear(&mut self, egress: &mut Egress) {
        for frame in self.waiting.iter_mut().flat_map(|queue| queue.drain(..)) {
            egress.recycle(frame.packet);
        }
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
        if arrived.queue == own {
            return Some(arrived);
        }
        let ReceivedFrame { packet, checksum, segment_size, .. } = arrived.received;
        self.queue_for(arrived.queue, RxFrame { packet, checksum, segment_size });
        None
    }

    /// Queues a copy of a frame that belongs to no flow for each other device.
    fn copy_to_other_devices(&mut self, own: usize, received: &ReceivedFrame) {
        let &ReceivedFrame { checksum, segment_size, .. } = received;
        for other in (0..self.queues()).filter(|&other| other != own) {
            let Some(packet) = self.egress.pool.copy(received.packet.as_slice()) else { return };
            self.queue_for(other, RxFrame { packet, checksum, segment_size });
        }
    }

    /// Queues a frame for the device of another queue, or drops it.
    fn queue_for(&mut self, queue: usize, frame: RxFrame) {
        let waiting = self.steering.waiting.get_mut(queue);
        match waiting.filter(|waiting| waiting.len() < WAITING_MAX) {
            Some(waiting) => {
                self.steering.counters.rx_steered_out += 1;
                waiting.push_back(frame);
            }
            None => {
                self.steering.counters.rx_steered_dropped += 1;
                self.egress.recycle(frame.packet);
            }
        }
    }

    /// Returns the next received frame for the device of another queue.
    #[inline]
    pub fn poll_steered(&mut self, queue: usize) -> Option<RxFrame> {
        self.steering.waiting.get_mut(queue)?.pop_front()
    }

    /// Drops a frame that the device of its queue has no room for.
    pub fn drop_steered(&mut self, frame: RxFrame) {
        self.steering.counters.rx_steered_out -= 1;
        self.steering.counters.rx_steered_dropped += 1;
        self.egress.recycle(frame.packet);
    }

    /// Processes a frame that another device received. Returns a free buffer of the same size for
    /// that device.
    pub fn handle_steered(&mut self, now: Instant, frame: RxFrame) -> Option<PacketBuf> {
        let spare = self.egress.pool.take(frame.packet.footprint());
        match self.receiver.handle(frame) {
            Ok(mut arrived) if self.accepts(&arrived) => {
                self.steering.counters.rx_steered_in += 1;
                arrived.queue = self.steering.own.unwrap_or(arrived.queue);
                self.handle_own(now, arrived);
            }
            // All devices have the same keys, so the other one found this device's queue.
            Ok(ParsedRxFrame { received: ReceivedFrame { packet, .. }, .. }) | Err(packet) => {
                let counter = &mut self.egress.internal.nic_internal_errors;
                internal_error!(*counter, "a frame of another queue was handed over");
                self.egress.recycle(packet);
            }
        }
        spare
    }

    /// Returns whether a frame of another device is one for this device.
    fn accepts(&self, frame: &ParsedRxFrame) -> bool {
        self.steering.serves(frame.queue) || matches!(frame.transport, RxTransport::Other)
    }
}
