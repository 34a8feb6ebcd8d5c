//! The host's half of the driver.

use abi::disk::{DiskAccess, DiskRequest};
use abi::steering::SteeringReason;
use abi::{Event, FileAccess, Op, PacketBuf};
use base::Instant;
use host::{Application, Host, MovedConnection, Notice};

use crate::{DiskPort, TurnResult};

/// Maximum number of events, and of completions, that are taken in a turn.
const BATCH: usize = 256;

/// A host's rings, and its disk for files that the device does not read.
pub trait HostPorts: DiskPort {
    /// Returns the next event of the device.
    fn pop_event(&mut self) -> Option<Event>;

    /// Returns whether the device's ring has room for an operation.
    fn has_op_room(&mut self) -> bool;

    /// Puts an operation into the device's ring, which has room.
    fn push_op(&mut self, op: Op);

    /// Returns a buffer to the device. If the ring is full the buffer is freed, and the device
    /// allocates another.
    fn push_recycled(&mut self, packet: PacketBuf);

    /// Wakes the device, which has new operations.
    fn wake_device(&mut self) {}

    /// Returns whether the host of another queue takes a connection. False if there is none.
    fn has_moved_room(&mut self, _queue: usize) -> bool {
        false
    }

    /// Sends a connection to the host of another queue, which has room, and wakes it.
    fn push_moved(&mut self, _queue: usize, _moved: MovedConnection) {}

    /// Returns the next connection that the host of another queue sent.
    fn pop_moved(&mut self) -> Option<MovedConnection> {
        None
    }
}

/// State of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AppPhase {
    Running,
    /// [`HostHalf::end`] was called: the application still receives notices, but no time-outs.
    Ending,
}

/// A host with its driver.
pub struct HostHalf {
    /// The host.
    pub host: Host,
    /// A request for which the disk had no room.
    waiting_request: Option<DiskRequest>,
    phase: AppPhase,
}

impl HostHalf {
    /// Creates the driver of a host.
    #[must_use]
    pub const fn new(host: Host) -> Self {
        Self { host, waiting_request: None, phase: AppPhase::Running }
    }

    /// Returns whether no operation or request waits for room.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        !self.host.has_ops() && self.waiting_request.is_none()
    }

    /// Ends the application and then the host, which resets its connections. The caller continues
    /// with turns until [`Host::has_ended`].
    pub fn end(&mut self, now: Instant, app: &mut (impl Application + ?Sized)) {
        if self.phase == AppPhase::Running {
            app.end(now, &mut self.host);
            self.host.end(now);
            self.phase = AppPhase::Ending;
        }
    }

    /// Takes a batch of events and completions, runs host and application, and moves the host's
    /// operations and requests to the ports.
    pub fn turn(
        &mut self,
        now: Instant,
        app: &mut (impl Application + ?Sized),
        ports: &mut impl HostPorts,
    ) -> TurnResult {
        let mut turn = TurnResult::default();
        turn.worked |= self.take_moved(now, ports);
        self.take_events(now, ports, &mut turn);
        self.take_completions(now, ports, &mut turn);
        if self.host.poll_timeout().is_some_and(|at| at <= now) {
            self.host.handle_timeout(now);
            turn.worked = true;
        }
        self.run_application(now, app, ports, &mut turn);
        self.push_ops(now, app, ports, &mut turn);
        self.submit_requests(now, app, ports, &mut turn);
        turn
    }

    /// Returns the time at which host or application need a turn even without input.
    #[must_use]
    pub fn poll_timeout(&self, app: &(impl Application + ?Sized)) -> Option<Instant> {
        let of_app = app.poll_timeout().filter(|_| self.phase == AppPhase::Running);
        [self.host.poll_timeout(), of_app].into_iter().flatten().min()
    }

    fn take_events(&mut self, now: Instant, ports: &mut impl HostPorts, turn: &mut TurnResult) {
        for _ in 0..BATCH {
            let Some(event) = ports.pop_event() else { return };
            if matches!(&event, Event::Received(it) if it.steered == SteeringReason::Returned) {
                // The host that returned the segment may have sent its connection before.
                self.take_moved(now, ports);
            }
            self.host.handle_event(now, event);
            turn.worked = true;
        }
        turn.more = true;
    }

    /// Takes over the connections that hosts of other queues sent. Returns whether there were any.
    fn take_moved(&mut self, now: Instant, ports: &mut impl HostPorts) -> bool {
        let mut any = false;
        while let Some(moved) = ports.pop_moved() {
            self.host.take_over(now, moved);
            any = true;
        }
        any
    }

    /// Sends the connection of a notice to the queue that it is to follow its steering entry to, if
    /// that and the application permit it. Returns whether it did.
    fn move_connection(
        &mut self,
        now: Instant,
        notice: Notice,
        app: &mut (impl Application + ?Sized),
        ports: &mut impl HostPorts,
    ) -> bool {
        let Notice::Socket(socket) = notice else { return false };
        let Some(queue) = self.host.queue_to_follow(socket) else { return false };
        if !ports.has_moved_room(queue) || !app.give_up(socket) {
            return false;
        }
        if let Some(moved) = self.host.move_out(now, socket) {
            ports.push_moved(queue, moved);
        }
        true
    }

    fn take_completions(
        &mut self,
        now: Instant,
        ports: &mut impl HostPorts,
        turn: &mut TurnResult,
    ) {
        for _ in 0..BATCH {
            let Some(completion) = ports.poll(now) else { return };
            self.host.handle_disk(now, completion);
            turn.worked = true;
        }
        turn.more = true;
    }

    fn run_application(
        &mut self,
        now: Instant,
        app: &mut (impl Application + ?Sized),
        ports: &mut impl HostPorts,
        turn: &mut TurnResult,
    ) {
        let is_due = app.poll_timeout().is_some_and(|at| at <= now);
        if is_due && self.phase == AppPhase::Running {
            app.handle_timeout(now, &mut self.host);
            turn.worked = true;
        }
        let moves = self.phase == AppPhase::Running && self.host.has_connections_to_move();
        let mut begun = false;
        while let Some(notice) = self.host.poll_notice() {
            if !core::mem::replace(&mut begun, true) {
                app.begin_turn();
            }
            if moves && self.move_connection(now, notice, app, ports) {
                continue;
            }
            app.handle_notice(now, &mut self.host, notice);
            turn.worked = true;
        }
        turn.worked |= app.advance(now, &mut self.host);
    }

    fn push_ops(
        &mut self,
        now: Instant,
        app: &mut (impl Application + ?Sized),
        ports: &mut impl HostPorts,
        turn: &mut TurnResult,
    ) {
        let mut any = false;
        // An operation is large, so it stays in its queue until there is room.
        while self.host.prepare_op(now) {
            if !ports.has_op_room() {
                turn.blocked = true;
                break;
            }
            let Some(op) = self.host.poll_op(now) else { break };
            if let Op::FileOpen { path, access: FileAccess::Content, .. } = &op {
                app.note_open(path);
            }
            ports.push_op(op);
            any = true;
        }
        while let Some(packet) = self.host.poll_recycle() {
            ports.push_recycled(packet);
        }
        if any {
            ports.wake_device();
            turn.worked = true;
        }
    }

    fn submit_requests(
        &mut self,
        now: Instant,
        app: &mut (impl Application + ?Sized),
        ports: &mut impl HostPorts,
        turn: &mut TurnResult,
    ) {
        let mut any = false;
        while let Some(request) = self.waiting_request.take().or_else(|| self.host.poll_disk()) {
            if let DiskRequest::Open { path, access: DiskAccess::Content, .. } = &request {
                app.note_open(path);
            }
            if let Err(request) = ports.submit(now, request) {
                // The completions that make room cause the next turn.
                self.waiting_request = Some(request);
                break;
            }
            any = true;
        }
        if any {
            ports.flush();
            turn.worked = true;
        }
        // The application answers them in the next turn.
        turn.worked |= self.host.has_content_requests();
    }
}
