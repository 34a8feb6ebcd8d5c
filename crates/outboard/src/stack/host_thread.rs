//! A host thread: drives [`host::Host`] and the application with the events of the device.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;

use abi::disk::{DiskAccess, DiskRequest};
use abi::{Event, FileAccess, Op};
use base::{Duration, Instant};
use host::Host;
use io::clock::Clock;
use io::disk::Disk;
use io::notify::Poller;

use super::ending::Phase;
use super::queue::HostQueue;
use super::{App, Log};
use crate::control::Queries;

/// Events taken per round.
const BATCH: usize = 256;
/// When a full ring is tried again.
const RETRY: Duration = Duration::from_micros(200);

pub(super) struct HostThread<A: App> {
    pub(super) clock: Clock,
    pub(super) host: Host,
    pub(super) app: A,
    /// What other threads tell the application; they wake this one.
    pub(super) messages: Receiver<A::Message>,
    /// For what the device does not read.
    pub(super) disk: Box<dyn Disk>,
    pub(super) queue: HostQueue,
    pub(super) queries: Queries,
    pub(super) log: Option<Log>,
    /// An operation that the ring had no room for.
    pub(super) waiting: Option<Op>,
    pub(super) phase: Phase,
}

impl<A: App> HostThread<A> {
    /// Works until `stop` is set; then resets every connection, so that no peer is left waiting.
    pub(super) fn run(mut self, stop: &AtomicBool) {
        let mut poller = Poller::new();
        let bell = poller.add(self.queue.bell.fd());
        let changes = self.watch(&mut poller);
        while !self.has_ended(stop) {
            // Before the round: there may be no idle moment in minutes.
            self.take_messages();
            if self.round() {
                continue;
            }
            self.queue.bell.prepare_sleep();
            let sleeps = !self.queue.has_work() && !self.must_look(stop);
            if sleeps {
                self.flush_log();
            }
            // An error means that the kernel is out of memory: go on, more slowly.
            let woken = sleeps && poller.wait(self.sleep_for()).is_ok();
            self.queue.bell.awake(woken && poller.is_ready(bell));
            if woken && changes.is_some_and(|changes| poller.is_ready(changes)) {
                self.app.begin_round();
            }
        }
        self.finish();
    }

    /// Adds the descriptors that say that there is work, except for the bell's; returns the
    /// place of the application's.
    pub(super) fn watch(&self, poller: &mut Poller) -> Option<usize> {
        self.disk.pollable().map(|fd| poller.add(fd));
        self.app.pollable().map(|fd| poller.add(fd))
    }

    /// Returns whether the work is over: the device has confirmed that everything is on the
    /// link, or the time for it is over. Begins the end when that is asked for.
    pub(super) fn has_ended(&mut self, stop: &AtomicBool) -> bool {
        let now = self.clock.now();
        if self.phase.begins_to_end(stop, now) {
            self.app.end(now, &mut self.host);
            self.host.end(now);
        }
        self.phase.is_ending() && (self.host.has_ended() || self.phase.is_over(now))
    }

    /// Returns whether another thread has said something that a sleep would miss.
    pub(super) fn must_look(&self, stop: &AtomicBool) -> bool {
        stop.load(Ordering::Acquire) && !self.phase.is_ending()
    }

    /// Lets the device end.
    pub(super) fn finish(&mut self) {
        self.write_log();
        self.flush_log();
        self.queue.ended.say();
        self.queue.device_bell.ring();
    }

    /// Does what there is to do; says whether there was anything.
    pub(super) fn round(&mut self) -> bool {
        let now = self.clock.now();
        let mut busy = self.take_events(now);
        while let Some(completion) = self.disk.poll() {
            self.host.handle_disk(now, completion);
            busy = true;
        }
        if self.host.poll_timeout().is_some_and(|at| at <= now) {
            self.host.handle_timeout(now);
            busy = true;
        }
        if !self.phase.is_ending() && self.app.poll_timeout().is_some_and(|at| at <= now) {
            self.app.handle_timeout(now, &mut self.host);
            busy = true;
        }
        let mut looked = false;
        while let Some(notice) = self.host.poll_notice() {
            if !core::mem::replace(&mut looked, true) {
                self.app.begin_round();
            }
            self.app.handle_notice(now, &mut self.host, notice);
            busy = true;
        }
        busy |= self.give_ops(now);
        busy |= self.give_requests();
        self.write_log();
        busy
    }

    fn take_events(&mut self, now: Instant) -> bool {
        let mut any = false;
        for ring in &mut self.queue.events {
            for _ in 0..BATCH {
                let Some(event) = ring.pop() else { break };
                let reset = matches!(event, Event::Reset);
                self.host.handle_event(now, event);
                any = true;
                if reset {
                    break;
                }
            }
        }
        any
    }

    fn give_ops(&mut self, now: Instant) -> bool {
        let mut any = false;
        while let Some(op) = self.next_op(now) {
            if let Op::FileOpen { path, access: FileAccess::Content, .. } = &op {
                self.app.note_open(path);
            }
            if let Err(op) = self.queue.ops.push(op) {
                self.waiting = Some(op);
                break;
            }
            any = true;
        }
        while let Some(packet) = self.host.poll_recycle() {
            if self.queue.recycle.push(packet).is_err() {
                break; // dropped: the device allocates another
            }
        }
        if any {
            self.queue.device_bell.ring();
        }
        any
    }

    /// The next operation. An operation is large: one that does not wait is not moved.
    fn next_op(&mut self, now: Instant) -> Option<Op> {
        if self.waiting.is_some() { self.waiting.take() } else { self.host.poll_op(now) }
    }

    fn give_requests(&mut self) -> bool {
        let mut any = false;
        while let Some(request) = self.host.poll_disk() {
            // The disk's queue is as long as there are connections that read: one request each.
            let mut request = request;
            if let DiskRequest::Open { path, access: DiskAccess::Content, .. } = &request {
                self.app.note_open(path);
            }
            while let Err(back) = self.disk.submit(request) {
                self.disk.flush();
                request = back;
                let now = self.clock.now();
                while let Some(completion) = self.disk.poll() {
                    self.host.handle_disk(now, completion);
                }
            }
            any = true;
        }
        if any {
            self.disk.flush();
        }
        any
    }

    /// Longest time to sleep.
    pub(super) fn sleep_for(&self) -> Option<Duration> {
        let now = self.clock.now();
        let of_app = self.app.poll_timeout().filter(|_| !self.phase.is_ending());
        let due = [self.host.poll_timeout(), of_app];
        let due = due.into_iter().flatten().map(|at| at.since(now)).min();
        let blocked = self.waiting.is_some();
        let due = if blocked { Some(due.unwrap_or(RETRY).min(RETRY)) } else { due };
        self.phase.sleep_for(now, due)
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

    /// Answers questions, and hands the application what other threads said.
    pub(super) fn take_messages(&mut self) {
        self.answer_queries();
        if let Some(log) = &mut self.log {
            log.reopen_if_asked();
        }
        if self.phase.is_ending() {
            return;
        }
        while let Ok(message) = self.messages.try_recv() {
            self.app.handle_message(self.clock.now(), &mut self.host, message);
        }
    }

    fn answer_queries(&self) {
        self.queries.answer(|answer| {
            self.host.visit(&mut |name, value| answer.counter(name, value));
            self.app.visit(&mut |name, value| answer.counter(name, value));
            if answer.wants_sockets() {
                for info in self.host.sockets().filter_map(|s| self.host.info(s)) {
                    answer.socket(info);
                }
                self.app.quic(&mut |info| answer.quic(info));
            }
        });
    }
}
