//! The device thread of a device process: a link, and a device for each program that is attached.
//!
//! Calls [`SwitchHalf`], which does the work. The thread itself follows the programs that come and
//! go, and sleeps after a turn that found no work.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use abi::PacketPool;
use abi::link::{LinkTxStatus, RxFrame, TxFrame};
use base::{Duration, Instant};
use io::attachment::PeerProcess;
use io::clock::MonotonicClock;
use io::link::Link;
use io::notify::Poller;
use nic::switch::{EmbeddedSwitch, FUNCTIONS_MAX};
use nic::{Device, DeviceConfig};
use node::remote::RemoteDeviceEnd;
use node::{LinkPort, RETRY, SwitchHalf};

use super::load::LoadMeter;
use super::shutdown::ThreadPhase;
use crate::attach::{
    AttachedEnd, AttachmentLoss, FormerEnds, PatternThread, ProgramArrival, ProgramArrivals,
    ProgramOrigin, ProgramPorts,
};
use crate::control::{ProbeAnswer, ProbeReceiver};
use crate::device::with_crypto_threads;
use crate::record::{RecorderSource, RunRecorder};

base::counters! {
    /// Counters of the programs of a device process.
    pub struct ProgramCounters {
        /// Programs that attached.
        programs_attached,
        /// Programs that ended or were expelled.
        programs_left,
        /// Programs expelled because they violated the rules of the carrier.
        programs_expelled: alarm,
    }
}

/// A program of a function, and the counters of its former ones.
#[derive(Debug, Default)]
struct FunctionRecord {
    origin: Option<ProgramOrigin>,
    former: FormerEnds,
}

/// Parts of the thread.
pub(crate) struct SwitchSide {
    /// Configuration of the device of each program.
    pub(crate) device: DeviceConfig,
    /// Number of threads that encrypt and decrypt beside the device of each program.
    pub(crate) crypto_workers: u8,
    pub(crate) link: Box<dyn Link>,
    pub(crate) arrivals: ProgramArrivals,
    pub(crate) patterns: PatternThread,
    /// `None` if the run is not recorded.
    pub(crate) recorders: Option<RecorderSource>,
}

pub(crate) struct SwitchThread {
    clock: MonotonicClock,
    half: SwitchHalf<ProgramPorts>,
    device: DeviceConfig,
    crypto_workers: u8,
    link: SwitchLink,
    arrivals: ProgramArrivals,
    patterns: PatternThread,
    recorders: Option<RecorderSource>,
    functions: [FunctionRecord; FUNCTIONS_MAX],
    counters: ProgramCounters,
    queries: ProbeReceiver,
    /// Position of the notifier in the poller.
    polled: usize,
    /// A full link, ring or disk blocked the last turn: retry after [`RETRY`] even without a
    /// wake-up.
    blocked: bool,
    /// Changes of the link that the devices know of.
    link_changes: u32,
    load: LoadMeter,
    phase: ThreadPhase,
}

impl SwitchThread {
    pub(super) fn new(clock: MonotonicClock, side: SwitchSide, queries: ProbeReceiver) -> Self {
        let SwitchSide { device, crypto_workers, link, arrivals, patterns, recorders } = side;
        let recorder = RunRecorder(recorders.as_ref().map(|recorders| recorders.recorder(0)));
        let switch = EmbeddedSwitch::new(device.mac, device.rss_seed);
        let first = create_function_device(&device, &*link, (0, crypto_workers));
        Self {
            clock,
            half: SwitchHalf::new(switch, first),
            device,
            crypto_workers,
            link: SwitchLink { link, recorder },
            arrivals,
            patterns,
            recorders,
            functions: std::array::from_fn(|_| FunctionRecord::default()),
            counters: ProgramCounters::default(),
            queries,
            polled: 0,
            blocked: false,
            link_changes: 0,
            load: LoadMeter::new(),
            phase: ThreadPhase::Running,
        }
    }

    /// Runs until `stop` is set. It does not wait for programs, whose connections outlive it.
    pub(super) fn run(mut self, stop: &AtomicBool) {
        let mut poller = Poller::new();
        self.register_descriptors(&mut poller);
        let mut worked = false;
        while !self.has_ended(stop) {
            // Before the turn, because there may be no idle moment for minutes.
            self.answer_queries();
            if let Some(permille) = self.load.start_round(self.clock.now(), worked) {
                self.half.set_load(permille);
            }
            if self.follow_programs() {
                poller.clear();
                self.register_descriptors(&mut poller);
            }
            worked = self.turn();
            if worked {
                continue;
            }
            self.half.programs_mut().for_each(|ports| ports.attached.prepare_sleep());
            let work = self.half.programs_mut().any(|ports| ports.attached.has_work());
            let sleeps = !work && !stop.load(Ordering::Acquire);
            // An error means that the kernel is out of memory: the loop continues without sleep.
            let woken = sleeps && poller.wait(self.sleep_for()).is_ok();
            self.finish_sleep(woken.then_some(&poller));
        }
    }

    fn has_ended(&mut self, stop: &AtomicBool) -> bool {
        self.phase.enter_if_stopped(stop, self.clock.now());
        self.phase.is_ending()
    }

    /// Adds the descriptors that announce work.
    fn register_descriptors(&mut self, poller: &mut Poller) {
        self.polled = poller.add(self.arrivals.notifier().as_raw_fd());
        let link = &self.link.link;
        for fd in [link.pollable(), link.pollable_changes()].into_iter().flatten() {
            poller.add(fd);
        }
        self.half.programs_mut().for_each(|ports| ports.attached.register(poller));
        // Connections of programs that are gone may need their files.
        for fd in self.half.all_ports().filter_map(|ports| ports.disk.pollable()) {
            poller.add(fd);
        }
    }

    fn finish_sleep(&mut self, slept: Option<&Poller>) {
        if slept.is_some_and(|poller| poller.is_ready(self.polled)) {
            self.arrivals.notifier().drain();
        }
        self.half.programs_mut().for_each(|ports| ports.attached.finish_sleep(slept));
    }

    /// Follows the programs that come and go. Returns whether the descriptors that announce work
    /// have changed.
    fn follow_programs(&mut self) -> bool {
        let mut changed = false;
        for function in 0..FUNCTIONS_MAX {
            changed |= self.end_if_lost(function);
        }
        while let Some(arrival) = self.arrivals.next() {
            self.begin(arrival);
            changed = true;
        }
        changed
    }

    /// Ends the program of a function if it is gone or broke the rules, and frees a function whose
    /// connections have ended. Returns whether there was a change.
    fn end_if_lost(&mut self, function: usize) -> bool {
        let record = &mut self.functions[function];
        let Some(ports) = self.half.program_mut(function) else {
            return self.free_if_idle(function);
        };
        let Some(loss) = ports.attached.loss() else { return false };
        if let AttachmentLoss::Fault(fault) = loss {
            if let Some(origin) = record.origin {
                eprintln!("outboard: expelling {origin}: {fault}");
            }
            self.counters.programs_expelled += 1;
        }
        self.counters.programs_left += 1;
        record.former.add(ports.attached.end());
        self.half.end(self.clock.now(), function);
        self.arrivals.end(function);
        self.free_if_idle(function);
        true
    }

    /// Releases a function whose connections have ended. Returns whether it was in use.
    fn free_if_idle(&mut self, function: usize) -> bool {
        let record = &mut self.functions[function];
        if record.origin.is_none() || !self.half.is_idle(function) {
            return false;
        }
        record.origin = None;
        self.arrivals.free(function);
        true
    }

    /// Assigns a function to a program.
    fn begin(&mut self, arrival: ProgramArrival) {
        let ProgramArrival { function, claim, origin, channel, region, disk } = arrival;
        if !self.half.is_idle(function) {
            // Every other function has a program: connections of the former one are abandoned.
            self.half.free(function);
        }
        let compiler = self.patterns.compiler(self.arrivals.notifier().clone());
        let attached = AttachedEnd::new(RemoteDeviceEnd::new(channel, region, Box::new(compiler)));
        let recorders = self.recorders.as_ref();
        let recorder = RunRecorder(recorders.map(|recorders| recorders.recorder(function)));
        let ports = ProgramPorts {
            attached,
            claim: self.arrivals.claim_of(function),
            disk,
            turn_at: Instant::ZERO,
            recorder,
        };
        let (device, link, workers) = (&self.device, &*self.link.link, self.crypto_workers);
        let create = || create_function_device(device, link, (function, workers));
        let begun = self.half.begin(function, &claim, ports, create);
        debug_assert!(begun.is_ok(), "the acceptor grants no claim twice");
        self.functions[function].origin = Some(origin);
        self.counters.programs_attached += 1;
    }

    /// Runs a turn; returns whether there was any work.
    fn turn(&mut self) -> bool {
        let now = self.clock.now();
        if self.recorders.is_some() {
            self.half.programs_mut().for_each(|ports| ports.turn_at = now);
        }
        let turn = self.half.turn(now, &mut self.link);
        let changes = self.link.link.changes();
        if changes != self.link_changes {
            self.link_changes = changes;
            self.half.handle_link_change(self.link.link.capabilities().mtu);
        }
        self.blocked = turn.blocked;
        turn.worked
    }

    /// Returns the longest time to sleep.
    fn sleep_for(&self) -> Option<Duration> {
        let now = self.clock.now();
        let retry = self.blocked.then(|| now + RETRY);
        let due = [self.link.link.poll_timeout(), self.half.poll_timeout(now), retry];
        let due = Instant::earliest(due).map(|at| at.since(now));
        let programs = (0..FUNCTIONS_MAX).filter_map(|function| self.half.program(function));
        let limits = programs.filter_map(|ports| ports.attached.sleep_limit());
        self.phase.sleep_for(now, due.into_iter().chain(limits).min())
    }

    /// Answers with the counters of each function's device and program, and those of the switch.
    fn answer_queries(&mut self) {
        let Self { clock, half, link, arrivals, functions, counters, queries, .. } = self;
        queries.answer(|answer| {
            answer.begin("switch", 0);
            counters.visit(&mut |name, value| answer.counter(name, value));
            answer.counter("programs_refused", arrivals.refused());
            answer.counter("programs_attached_now", half.programs() as u64);
            half.visit(&mut |name, value| answer.counter(name, value));
            link.link.visit(&mut |name, value| answer.counter(name, value));
            for (function, device) in half.devices() {
                answer.begin("nic", function);
                device.visit(&mut |name, value| answer.counter(name, value));
                if answer.wants_sockets() {
                    device.splices(clock.now()).for_each(|info| answer.splice(info));
                }
                visit_program(&functions[function], half.program(function), answer);
            }
        });
    }
}

/// Creates the device of a function, with threads that encrypt and decrypt beside it. Without
/// threads, if none is left, its own thread does that.
fn create_function_device(
    config: &DeviceConfig,
    link: &dyn Link,
    (function, workers): (usize, u8),
) -> Device {
    let create = || Device::new(config.clone(), link.capabilities());
    with_crypto_threads(create(), function, workers).unwrap_or_else(|failure| {
        eprintln!("outboard: program {function} has no crypto workers: {failure}");
        create()
    })
}

/// Adds the counters of a function's disk and carriers, and the process of its program.
fn visit_program(
    record: &FunctionRecord,
    program: Option<&ProgramPorts>,
    answer: &mut ProbeAnswer,
) {
    let attached = program.map(|ports| &ports.attached);
    record.former.visit(attached, &mut |name, value| answer.counter(name, value));
    program
        .into_iter()
        .for_each(|ports| ports.disk.visit(&mut |name, value| answer.counter(name, value)));
    if let Some(ProgramOrigin::Process(PeerProcess { pid, uid })) = record.origin {
        answer.counter("program_pid", pid.try_into().unwrap_or(0));
        answer.counter("program_uid", uid.into());
    }
}

/// The link, and the recorder of its frames.
struct SwitchLink {
    link: Box<dyn Link>,
    recorder: RunRecorder,
}

impl LinkPort for SwitchLink {
    fn receive(&mut self, now: Instant, pool: &mut PacketPool) -> Option<RxFrame> {
        self.recorder.receive(now, &mut *self.link, pool)
    }

    fn transmit(&mut self, now: Instant, frame: &mut TxFrame) -> LinkTxStatus {
        self.recorder.transmit(now, &mut *self.link, frame)
    }

    fn flush_link(&mut self, now: Instant) -> bool {
        self.link.flush(now)
    }
}
