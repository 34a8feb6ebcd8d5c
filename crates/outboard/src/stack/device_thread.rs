//! A device thread: drives [`nic::Device`] with a wire, a disk and the rings of the hosts.
//!
//! One round takes a bounded batch from each source and gives out what the device made of it. It
//! sleeps only when a whole round found nothing, on the wire, the disk and the bell.

use std::sync::atomic::{AtomicBool, Ordering};

use base::{Duration, Instant};
use io::clock::Clock;
use io::disk::Disk;
use io::notify::Poller;
use io::wire::{TxStatus, Wire};
use nic::Device;

use super::ending::Phase;
use super::load::LoadMeter;
use super::queue::DeviceQueue;
use crate::control::Queries;

/// Frames, operations and completions taken per round: enough to make batches, few enough that the
/// others wait for tens of microseconds only.
const BATCH: usize = 64;
/// When a full ring or wire is tried again.
const RETRY: Duration = Duration::from_micros(200);

pub(super) struct DeviceThread {
    clock: Clock,
    device: Device,
    wire: Box<dyn Wire>,
    disk: Box<dyn Disk>,
    pub(super) queue: DeviceQueue,
    queries: Queries,
    /// Something could not be handed on: try again soon, whatever happens.
    blocked: bool,
    phase: Phase,
}

impl DeviceThread {
    pub(super) const fn new(
        clock: Clock,
        device: Device,
        wire: Box<dyn Wire>,
        disk: Box<dyn Disk>,
        queue: DeviceQueue,
        queries: Queries,
    ) -> Self {
        Self { clock, device, wire, disk, queue, queries, blocked: false, phase: Phase::Running }
    }

    /// Works until `stop` is set and the host has ended.
    pub(super) fn run(mut self, stop: &AtomicBool) {
        let mut poller = Poller::new();
        let bell = poller.add(self.queue.bell.fd());
        self.watch(&mut poller);
        let (mut load, mut worked) = (LoadMeter::new(), false);
        while !self.has_ended(stop) {
            // Before the round: there may be no idle moment in minutes.
            self.answer_queries();
            if let Some(permille) = load.round(self.clock.now(), worked) {
                self.device.note_load(permille);
            }
            worked = self.round();
            if worked {
                continue;
            }
            self.queue.bell.prepare_sleep();
            let sleeps = !self.queue.has_work() && !self.must_look(stop);
            // An error means that the kernel is out of memory: go on, more slowly.
            let woken = sleeps && poller.wait(self.sleep_for()).is_ok();
            self.queue.bell.awake(woken && poller.is_ready(bell));
        }
    }

    /// Adds the descriptors that say that there is work, except for the bell's.
    pub(super) fn watch(&self, poller: &mut Poller) {
        self.wire.pollable().map(|fd| poller.add(fd));
        self.disk.pollable().map(|fd| poller.add(fd));
    }

    /// Returns whether the work is over: the host has ended, or no longer waits. Without a host
    /// that does its part the time for it ends.
    pub(super) fn has_ended(&mut self, stop: &AtomicBool) -> bool {
        let now = self.clock.now();
        self.phase.begins_to_end(stop, now);
        self.phase.is_ending() && (self.queue.host_ended.is_said() || self.phase.is_over(now))
    }

    /// Returns whether another thread has said something that a sleep would miss.
    pub(super) fn must_look(&self, stop: &AtomicBool) -> bool {
        let told = stop.load(Ordering::Acquire);
        told && (!self.phase.is_ending() || self.queue.host_ended.is_said())
    }

    /// Does what there is to do; says whether there was anything.
    pub(super) fn round(&mut self) -> bool {
        let now = self.clock.now();
        self.blocked = false;
        let mut busy = self.take_frames(now);
        busy |= self.take_ops(now);
        busy |= self.take_completions(now);
        // The echo of a transmit comes before the acknowledgment of its bytes can.
        busy |= self.give_events();
        busy |= self.give_requests();
        busy |= self.give_frames(now);
        busy |= self.give_events();
        busy
    }

    fn take_frames(&mut self, now: Instant) -> bool {
        for taken in 0..BATCH {
            let Some(frame) = self.wire.receive(now, self.device.pool()) else { return taken > 0 };
            self.device.handle_frame(now, frame);
        }
        true
    }

    fn take_ops(&mut self, now: Instant) -> bool {
        while let Some(packet) = self.queue.recycle.pop() {
            self.device.pool().put(packet);
        }
        for taken in 0..BATCH {
            if !self.device.can_take_op() {
                self.blocked = true;
                return taken > 0;
            }
            let Some(op) = self.queue.ops.pop() else { return taken > 0 };
            self.device.handle_op(now, self.queue.index, op);
        }
        true
    }

    fn take_completions(&mut self, now: Instant) -> bool {
        for taken in 0..BATCH {
            let Some(completion) = self.disk.poll() else { return taken > 0 };
            self.device.handle_disk(now, completion);
        }
        true
    }

    fn give_requests(&mut self) -> bool {
        let mut any = false;
        while let Some(request) = self.device.poll_disk() {
            if let Err(request) = self.disk.submit(request) {
                self.device.unpoll_disk(request);
                break;
            }
            any = true;
        }
        if any {
            self.disk.flush();
        }
        any
    }

    fn give_frames(&mut self, now: Instant) -> bool {
        for given in 0..BATCH {
            let Some(frame) = self.device.poll_frame(now) else { return given > 0 };
            match self.wire.transmit(now, &frame) {
                TxStatus::Sent | TxStatus::Failed => self.device.recycle(frame),
                TxStatus::TooLong => self.device.unpoll_long_frame(frame),
                TxStatus::Full => {
                    self.device.unpoll_frame(frame);
                    self.blocked = true;
                    return given > 0;
                }
            }
        }
        true
    }

    fn give_events(&mut self) -> bool {
        let mut any = false;
        for (index, ring) in self.queue.events.iter_mut().enumerate() {
            let mut pushed = false;
            while let Some(event) = self.device.poll_queue_event(index) {
                if let Err(event) = ring.push(event) {
                    // The device takes no operation of any host while one has no room for events.
                    if ring.is_abandoned() {
                        continue;
                    }
                    self.device.unpoll_event(index, event);
                    self.blocked = true;
                    break;
                }
                pushed = true;
            }
            if pushed {
                self.queue.host_bells[index].ring();
                any = true;
            }
        }
        any
    }

    /// Longest time to sleep.
    pub(super) fn sleep_for(&self) -> Option<Duration> {
        let now = self.clock.now();
        let due = [self.wire.poll_timeout(), self.device.poll_timeout(now)];
        let due = due.into_iter().flatten().map(|at| at.since(now)).min();
        let due = if self.blocked { Some(due.unwrap_or(RETRY).min(RETRY)) } else { due };
        self.phase.sleep_for(now, due)
    }

    pub(super) fn answer_queries(&self) {
        self.queries.answer(|answer| {
            self.device.visit(&mut |name, value| answer.counter(name, value));
            self.wire.visit(&mut |name, value| answer.counter(name, value));
            self.disk.visit(&mut |name, value| answer.counter(name, value));
            if answer.wants_sockets() {
                let now = self.clock.now();
                self.device.splices(now).for_each(|info| answer.splice(info));
            }
        });
    }
}
