//! One thread that runs a device and its host in turn, for a process with a single core.
//!
//! There, two threads would preempt each other: a context switch for each batch, and timeouts of
//! the host before the device has read the acknowledgments. The rings are kept, so that both sides
//! are the same code as with two threads.

use std::sync::atomic::AtomicBool;

use host::Application;
use io::notify::Poller;

use super::carrier::{CarrierSleeper, SleepingCarrier};
use super::device_thread::DeviceThread;
use super::host_thread::HostThread;
use super::queue::HostRings;

pub(super) struct SharedThread<A, M> {
    device: DeviceThread,
    host: HostThread<A, M, HostRings>,
}

impl<A: Application, M> SharedThread<A, M> {
    pub(super) const fn new(device: DeviceThread, host: HostThread<A, M, HostRings>) -> Self {
        Self { device, host }
    }

    /// Runs until `stop` is set; then resets all connections, so that no peer is left waiting.
    pub(super) fn run(mut self, stop: &AtomicBool) {
        let mut poller = Poller::new();
        self.device.register_descriptors(&mut poller);
        let changes = self.host.register_descriptors(&mut poller);
        let mut finished = false;
        loop {
            if !finished && self.host.has_ended(stop) {
                self.host.finish();
                finished = true;
            }
            // Other hosts' last segments may arrive on this link.
            if self.device.has_ended(stop) {
                break;
            }
            // Before the turns, because there may be no idle moment for minutes.
            self.device.answer_queries();
            self.host.take_messages();
            if self.turn() {
                continue;
            }
            self.device.rings().sleeper().prepare_sleep();
            self.host.carrier().sleeper().prepare_sleep();
            let work = self.device.rings().has_work() || self.host.carrier().has_work();
            let sleeps =
                !work && !self.device.has_unseen_flag(stop) && !self.host.has_unseen_flag(stop);
            if sleeps {
                self.host.flush_log();
            }
            let due = [self.device.sleep_for(), self.host.sleep_for()].into_iter().flatten().min();
            // An error means that the kernel is out of memory: the loop continues without sleep.
            let woken = sleeps && poller.wait(due).is_ok();
            self.device.rings().sleeper().finish_sleep(woken.then_some(&poller));
            self.host.carrier().sleeper().finish_sleep(woken.then_some(&poller));
            if woken && changes.is_some_and(|changes| poller.is_ready(changes)) {
                self.host.begin_turn();
            }
        }
        if !finished {
            self.host.finish();
        }
    }

    /// Runs a turn of both sides. Frames that the device received are answered before it receives
    /// more.
    fn turn(&mut self) -> bool {
        // The host's turn since the last call does not count.
        self.device.measure_load(false);
        let received = self.device.turn();
        self.device.measure_load(received);
        let answered = self.host.turn();
        received || answered
    }
}
