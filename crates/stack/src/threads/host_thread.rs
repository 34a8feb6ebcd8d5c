//! A host thread: calls the driver of a [`host::Host`] and its application, with the rings of the
//! devices.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use abi::disk::{DiskCompletion, DiskRequest};
use abi::{Event, Op, PacketBuf};
use base::{Duration, Instant};
use host::{Application, AutoAddrEvent, MovedConnection};
use io::clock::MonotonicClock;
use io::disk::Disk;
use io::notify::Poller;
use node::{DiskPort, HostHalf, HostPorts, RETRY};

use super::carrier::{CarrierSleeper, HostCarrier};
use super::shutdown::ThreadPhase;
use super::{HostMessage, HostSide, Messages};
use crate::control::ProbeReceiver;
use crate::hooks::Hooks;
use crate::host_disk;
use crate::log::AccessLog;

/// A host's end of the carrier, with its disk for the files that the device does not read.
struct HostThreadPorts<C> {
    disk: Box<dyn Disk>,
    carrier: C,
}

pub(super) struct HostThread<A, M, C> {
    clock: MonotonicClock,
    half: HostHalf,
    app: A,
    ports: HostThreadPorts<C>,
    messages: Messages<M>,
    queries: ProbeReceiver,
    log: Option<AccessLog>,
    addr_events: Option<Sender<AutoAddrEvent>>,
    hooks: Hooks<A, M>,
    /// A full ring or disk blocked the last turn: retry after [`RETRY`] even without a wake-up.
    blocked: bool,
    phase: ThreadPhase,
}

impl<A: Application, M, C: HostCarrier> HostThread<A, M, C> {
    pub(super) fn new(
        clock: MonotonicClock,
        host_side: HostSide<A, M>,
        messages: Messages<M>,
        carrier: C,
        queries: ProbeReceiver,
    ) -> Self {
        let HostSide { host, app, disk, log, addr_events, hooks } = host_side;
        Self {
            clock,
            half: HostHalf::new(host),
            app,
            ports: HostThreadPorts { disk, carrier },
            messages,
            queries,
            log,
            addr_events,
            hooks,
            blocked: false,
            phase: ThreadPhase::Running,
        }
    }

    pub(super) const fn carrier(&mut self) -> &mut C {
        &mut self.ports.carrier
    }

    /// Runs until `stop` is set; then resets all connections, so that no peer is left waiting.
    pub(super) fn run(mut self, stop: &AtomicBool) {
        let mut poller = Poller::new();
        let mut changes = self.register_descriptors(&mut poller);
        while !self.has_ended(stop) {
            // Before the turn, because there may be no idle moment for minutes.
            self.take_messages();
            if self.ports.carrier.follow_device() {
                poller.clear();
                changes = self.register_descriptors(&mut poller);
            }
            if self.turn() {
                continue;
            }
            self.carrier().sleeper().prepare_sleep();
            let sleeps = !self.carrier().has_work() && !self.has_unseen_flag(stop);
            if sleeps {
                self.flush_log();
            }
            // An error means that the kernel is out of memory: the loop continues without sleep.
            let woken = sleeps && poller.wait(self.sleep_for()).is_ok();
            self.carrier().sleeper().finish_sleep(woken.then_some(&poller));
            if woken && changes.is_some_and(|changes| poller.is_ready(changes)) {
                self.begin_turn();
            }
        }
        self.finish();
    }

    /// Adds the descriptors that announce work; returns the index of the application's descriptor.
    pub(super) fn register_descriptors(&mut self, poller: &mut Poller) -> Option<usize> {
        self.ports.carrier.sleeper().register(poller);
        self.ports.disk.pollable().map(|fd| poller.add(fd));
        (self.hooks.pollable)(&self.app).map(|fd| poller.add(fd))
    }

    /// Tells the application that its descriptor is readable.
    pub(super) fn begin_turn(&mut self) {
        self.app.begin_turn();
    }

    /// Returns whether the thread must end: the device has confirmed that every frame is on the
    /// link, or the time for it is over. Starts the end of application and host when `stop` is set.
    pub(super) fn has_ended(&mut self, stop: &AtomicBool) -> bool {
        let now = self.clock.now();
        if self.phase.enter_if_stopped(stop, now) {
            self.half.end(now, &mut self.app);
        }
        self.phase.is_ending() && (self.half.host.has_ended() || self.phase.is_over(now))
    }

    /// Returns whether another thread has set a flag that this thread has not seen yet, so that it
    /// must not sleep.
    pub(super) fn has_unseen_flag(&self, stop: &AtomicBool) -> bool {
        stop.load(Ordering::Acquire) && !self.phase.is_ending()
    }

    /// Flushes the log, and lets the device threads end.
    pub(super) fn finish(&mut self) {
        self.write_log();
        self.flush_log();
        self.ports.carrier.finish();
    }

    /// Runs a turn of host and application; returns whether there was any work.
    pub(super) fn turn(&mut self) -> bool {
        let turn = self.half.turn(self.clock.now(), &mut self.app, &mut self.ports);
        self.blocked = turn.blocked;
        self.write_log();
        self.send_addr_events();
        turn.worked
    }

    /// Returns the longest time to sleep.
    pub(super) fn sleep_for(&self) -> Option<Duration> {
        let now = self.clock.now();
        // Without a device there is no room before the next one arrives, which wakes the thread.
        let retries = self.blocked && self.ports.carrier.has_device();
        let retry = retries.then(|| now + RETRY);
        let due = Instant::earliest([self.half.poll_timeout(&self.app), retry]);
        let limits = [due.map(|at| at.since(now)), self.ports.carrier.sleep_limit()];
        self.phase.sleep_for(now, limits.into_iter().flatten().min())
    }

    /// Passes the host's events of automatic addresses on.
    fn send_addr_events(&mut self) {
        let Some(events) = &self.addr_events else { return };
        while let Some(event) = self.half.host.poll_addr_event() {
            // The receiving thread ends after this one.
            let _ = events.send(event);
        }
    }

    fn write_log(&mut self) {
        let Some(log) = &mut self.log else { return };
        while let Some(line) = self.app.poll_log() {
            log.write(&line);
        }
    }

    pub(super) fn flush_log(&mut self) {
        if let Some(log) = &mut self.log {
            log.flush();
        }
    }

    /// Answers queries, reopens the log if requested, and passes messages of other threads to the
    /// application.
    pub(super) fn take_messages(&mut self) {
        self.answer_queries();
        if let Some(log) = &mut self.log {
            log.reopen_if_requested();
        }
        if self.phase.is_ending() {
            return;
        }
        while let Ok(message) = self.messages.try_recv() {
            let (now, host) = (self.clock.now(), &mut self.half.host);
            match message {
                HostMessage::Drain => self.app.drain(now, host),
                HostMessage::SetAddrs(addrs) => host.set_addrs(now, &addrs),
                HostMessage::ReleaseMovedEntries => host.release_moved_entries(now),
                HostMessage::ExtendClaim(extension) => {
                    self.ports.carrier.extend_claim(extension);
                }
                HostMessage::Application(message) => {
                    (self.hooks.handle_message)(&mut self.app, now, host, message);
                }
            }
        }
    }

    fn answer_queries(&self) {
        let host = &self.half.host;
        self.queries.answer(|answer| {
            host.visit(&mut |name, value| answer.counter(name, value));
            self.app.visit(&mut |name, value| answer.counter(name, value));
            self.ports.carrier.visit(&mut |name, value| answer.counter(name, value));
            self.ports.disk.visit(&mut |name, value| {
                answer.counter(host_disk::counter_name(name), value);
            });
            if answer.wants_sockets() {
                for info in host.sockets().filter_map(|socket| host.info(socket)) {
                    answer.socket(info);
                }
                (self.hooks.list_quic_connections)(&self.app, &mut |info| answer.quic(info));
            }
        });
    }
}

impl<C> DiskPort for HostThreadPorts<C> {
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

impl<C: HostCarrier> HostPorts for HostThreadPorts<C> {
    fn pop_event(&mut self) -> Option<Event> {
        self.carrier.pop_event()
    }

    fn has_op_room(&mut self) -> bool {
        self.carrier.has_op_room()
    }

    #[inline]
    fn push_op(&mut self, op: Op) {
        self.carrier.push_op(op);
    }

    fn push_recycled(&mut self, packet: PacketBuf) {
        self.carrier.push_recycled(packet);
    }

    fn wake_device(&mut self) {
        self.carrier.wake_device();
    }

    fn has_moved_room(&mut self, queue: usize) -> bool {
        self.carrier.has_moved_room(queue)
    }

    fn push_moved(&mut self, queue: usize, moved: MovedConnection) {
        self.carrier.push_moved(queue, moved);
    }

    fn pop_moved(&mut self) -> Option<MovedConnection> {
        self.carrier.pop_moved()
    }
}
