//! A device thread: calls the driver of a [`nic::Device`], with a link, a disk and the rings of the
//! hosts.
//!
//! It sleeps only after a turn that found no work, on the link, the disk and the notifier.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use abi::disk::{DiskCompletion, DiskRequest};
use abi::link::{RxFrame, TxFrame};
use abi::steering::{FlowSteering, SteeredFrame};
use abi::{Event, Op, PacketBuf, PacketPool};
use base::{Duration, Instant};
use io::clock::MonotonicClock;
use io::disk::Disk;
use io::link::{Link, LinkTxStatus};
use io::notify::Poller;
use node::{DeviceHalf, DevicePorts, DiskPort, RETRY};

use super::DeviceSide;
use super::carrier::{CarrierSleeper, SleepingCarrier};
use super::load::LoadMeter;
use super::queue::DeviceRings;
use super::shutdown::ThreadPhase;
use crate::control::ProbeReceiver;
use crate::record::RunRecorder;

/// Link and disk of a device, with its rings.
struct DeviceThreadPorts {
    link: Box<dyn Link>,
    disk: Box<dyn Disk>,
    rings: DeviceRings,
    steering: Arc<FlowSteering>,
    /// Start of the turn, which is the time of its entries in the record.
    turn_at: Instant,
    recorder: RunRecorder,
}

pub(crate) struct DeviceThread {
    clock: MonotonicClock,
    half: DeviceHalf,
    ports: DeviceThreadPorts,
    queries: ProbeReceiver,
    /// A full link, ring or disk blocked the last turn: retry after [`RETRY`] even without a
    /// wake-up.
    blocked: bool,
    /// Changes of the link that the device knows of.
    link_changes: u32,
    load: LoadMeter,
    phase: ThreadPhase,
}

impl DeviceThread {
    pub(crate) fn new(
        clock: MonotonicClock,
        device_side: DeviceSide,
        rings: DeviceRings,
        queries: ProbeReceiver,
    ) -> Self {
        let DeviceSide { device, link, disk, steering, recorder } = device_side;
        let half = DeviceHalf::new(device, rings.index);
        let (turn_at, recorder) = (Instant::ZERO, RunRecorder(recorder));
        let ports = DeviceThreadPorts { link, disk, rings, steering, turn_at, recorder };
        let (load, phase) = (LoadMeter::new(), ThreadPhase::Running);
        Self { clock, half, ports, queries, blocked: false, link_changes: 0, load, phase }
    }

    pub(super) const fn rings(&mut self) -> &mut DeviceRings {
        &mut self.ports.rings
    }

    /// Runs until `stop` is set and all hosts have ended.
    pub(crate) fn run(mut self, stop: &AtomicBool) {
        let mut poller = Poller::new();
        self.register_descriptors(&mut poller);
        let mut worked = false;
        while !self.has_ended(stop) {
            // Before the turn, because there may be no idle moment for minutes.
            self.answer_queries();
            self.measure_load(worked);
            worked = self.turn();
            if worked {
                continue;
            }
            self.rings().sleeper().prepare_sleep();
            let sleeps = !self.rings().has_work() && !self.has_unseen_flag(stop);
            // An error means that the kernel is out of memory: the loop continues without sleep.
            let woken = sleeps && poller.wait(self.sleep_for()).is_ok();
            self.rings().sleeper().finish_sleep(woken.then_some(&poller));
        }
    }

    /// Adds the descriptors that announce work.
    pub(super) fn register_descriptors(&mut self, poller: &mut Poller) {
        self.ports.rings.sleeper().register(poller);
        self.ports.link.pollable().map(|fd| poller.add(fd));
        self.ports.link.pollable_changes().map(|fd| poller.add(fd));
        self.ports.disk.pollable().map(|fd| poller.add(fd));
    }

    /// Returns whether the thread must end: all hosts have ended, or the time for it is over.
    pub(super) fn has_ended(&mut self, stop: &AtomicBool) -> bool {
        let now = self.clock.now();
        self.phase.enter_if_stopped(stop, now);
        let ended = self.ports.rings.have_hosts_ended();
        self.phase.is_ending() && (ended || self.phase.is_over(now))
    }

    /// Returns whether another thread has set a flag that this thread has not seen yet, so that it
    /// must not sleep.
    pub(super) fn has_unseen_flag(&self, stop: &AtomicBool) -> bool {
        let told = stop.load(Ordering::Acquire);
        told && (!self.phase.is_ending() || self.ports.rings.have_hosts_ended())
    }

    /// Runs a turn of the device; returns whether there was any work.
    pub(super) fn turn(&mut self) -> bool {
        self.ports.turn_at = self.clock.now();
        let turn = self.half.turn(self.ports.turn_at, &mut self.ports);
        // Only if it has changed does this do anything.
        let changes = self.ports.link.changes();
        if changes != self.link_changes {
            self.link_changes = changes;
            self.half.device.handle_link_change(self.ports.link.capabilities().mtu);
        }
        self.blocked = turn.blocked;
        turn.worked
    }

    /// Adds the time since the last call to the device's load, if the device worked meanwhile. Once
    /// in a window of the load, tells the link of moved flows.
    pub(super) fn measure_load(&mut self, worked: bool) {
        if let Some(permille) = self.load.start_round(self.clock.now(), worked) {
            self.half.device.set_load(permille);
            self.ports.link.follow_steering(&self.ports.steering);
        }
    }

    /// Returns the longest time to sleep.
    pub(super) fn sleep_for(&self) -> Option<Duration> {
        let now = self.clock.now();
        let retry = self.blocked.then(|| now + RETRY);
        let due = [self.ports.link.poll_timeout(), self.half.poll_timeout(now), retry];
        self.phase.sleep_for(now, Instant::earliest(due).map(|at| at.since(now)))
    }

    pub(super) fn answer_queries(&self) {
        self.queries.answer(|answer| {
            self.half.device.visit(&mut |name, value| answer.counter(name, value));
            self.ports.link.visit(&mut |name, value| answer.counter(name, value));
            self.ports.disk.visit(&mut |name, value| answer.counter(name, value));
            if answer.wants_sockets() {
                let now = self.clock.now();
                self.half.device.splices(now).for_each(|info| answer.splice(info));
            }
        });
    }
}

impl DiskPort for DeviceThreadPorts {
    fn submit(&mut self, _: Instant, request: DiskRequest) -> Result<(), DiskRequest> {
        self.disk.submit(request)
    }

    fn flush(&mut self) {
        self.disk.flush();
    }

    fn poll(&mut self, _: Instant) -> Option<DiskCompletion> {
        self.disk.poll()
    }
}

impl DevicePorts for DeviceThreadPorts {
    fn receive(&mut self, now: Instant, pool: &mut PacketPool) -> Option<RxFrame> {
        self.recorder.receive(now, &mut *self.link, pool)
    }

    fn transmit(&mut self, now: Instant, frame: &mut TxFrame) -> LinkTxStatus {
        self.recorder.transmit(now, &mut *self.link, frame)
    }

    fn flush_link(&mut self, now: Instant) -> bool {
        self.link.flush(now)
    }

    fn pop_op(&mut self, _: &mut PacketPool) -> Option<Op> {
        self.recorder.record_op(self.turn_at, self.rings.ops.pop())
    }

    fn pop_recycled(&mut self) -> Option<PacketBuf> {
        self.rings.pop_recycled()
    }

    fn push_event(&mut self, queue: usize, event: Event) -> Result<(), Event> {
        debug_assert_eq!(queue, self.rings.index, "a device has events for its own host only");
        let item = self.recorder.describe_event(&event);
        self.rings.push_event(event)?;
        self.recorder.record_event(self.turn_at, item);
        Ok(())
    }

    fn wake_host(&mut self, _: usize) {
        self.rings.host_waker.wake_if_asleep();
    }

    fn push_steered(&mut self, queue: usize, frame: SteeredFrame) -> Result<(), SteeredFrame> {
        self.rings.steering.frames_out[queue].push(frame)
    }

    fn wake_device(&mut self, queue: usize) {
        self.rings.steering.wakers[queue].wake_if_asleep();
    }

    fn pop_steered(&mut self) -> Option<(usize, SteeredFrame)> {
        self.rings.steering.pop_frame()
    }

    fn push_spare(&mut self, queue: usize, packet: PacketBuf) {
        let _freed = self.rings.steering.spares_out[queue].push(packet);
    }
}
