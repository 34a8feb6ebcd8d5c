//! The driver of several devices that share a link through an [`EmbeddedSwitch`].
//!
//! Each device serves one program, as the virtual function of a NIC. A turn takes frames from the
//! link, steers them to the functions, and gives each function a turn of its [`DeviceHalf`]. What
//! the functions send goes through the switch to the link or to other functions.
//!
//! Fairness: each function may send [`QUANTUM`] bytes in a turn, which begins with another function
//! each time, and takes the same batches of operations. Each has a queue of received frames; one
//! that does not take them loses its own frames, and no others.
//!
//! When a program is gone, its function ends: the switch resets the connections that the device
//! does not tear down, and the device gets turns, without operations, until it has torn down the
//! others.

use abi::attach::{AddressClaim, AttachRefusal};
use abi::disk::{DiskCompletion, DiskRequest};
use abi::link::{LinkTxStatus, RxFrame, TxFrame};
use abi::steering::{SteeredFrame, SteeringReason};
use abi::{Checksum, Event, Op, PacketBuf, PacketPool};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use base::Instant;
use nic::Device;
use nic::switch::{EmbeddedSwitch, FUNCTIONS_MAX, FunctionSet, SentRoute, SwitchRoute};

use crate::device_half::FRAMES_PER_TURN;
use crate::{DeviceHalf, DevicePorts, DiskPort, TurnResult};

/// Bytes that a function sends in a turn, give or take a frame.
const QUANTUM: isize = 256 << 10;
/// Resets for peers of programs that are gone, sent in a turn.
const RESETS_PER_TURN: usize = 64;
/// Frames that wait for a function.
const WAITING_MAX: usize = 2 * FRAMES_PER_TURN;
/// Free buffers of each size that the switch keeps for received frames.
const POOL_BUFFERS: usize = 512;

/// The link of a switch.
pub trait LinkPort {
    /// Returns the next received frame, in a buffer from `pool`.
    fn receive(&mut self, now: Instant, pool: &mut PacketPool) -> Option<RxFrame>;

    /// Sends a frame. If the link keeps the payload, it leaves another one in its place.
    fn transmit(&mut self, now: Instant, frame: &mut TxFrame) -> LinkTxStatus;

    /// Sends the frames that the link has kept to send several in one system call. Returns false
    /// if some have to wait.
    fn flush_link(&mut self, _now: Instant) -> bool {
        true
    }
}

/// The disk and the program of a function.
pub trait FunctionPorts: DiskPort {
    /// See [`DevicePorts::pop_op`].
    fn pop_op(&mut self, pool: &mut PacketPool) -> Option<Op>;

    /// See [`DevicePorts::pop_recycled`].
    fn pop_recycled(&mut self) -> Option<PacketBuf>;

    /// See [`DevicePorts::push_event`].
    ///
    /// # Errors
    /// Returns the event if there is no room for it.
    #[expect(clippy::result_large_err, reason = "the event comes back as it is")]
    fn push_event(&mut self, event: Event) -> Result<(), Event>;

    /// Wakes the program, which has new events.
    fn wake_host(&mut self);

    /// Asks the process around the switch whether the program may have this claim instead of a
    /// smaller one. If it may, the switch grants it.
    ///
    /// # Errors
    /// The reason for the program.
    fn extend_claim(&mut self, _claim: &AddressClaim) -> Result<(), AttachRefusal> {
        Ok(())
    }
}

/// The program of a function.
enum FunctionPhase<P> {
    /// There is none.
    Idle,
    /// It uses the function.
    Serving(P),
    /// It is gone. The ports are those of its disk.
    Ending(P),
}

/// A function: a device and its program.
struct Function<P> {
    half: DeviceHalf,
    phase: FunctionPhase<P>,
    /// Received frames that the device has not taken.
    received: VecDeque<RxFrame>,
    /// Bytes that the function may still send in this turn.
    credit: isize,
}

impl<P> Function<P> {
    /// Creates a function without a program.
    fn boxed(device: Device) -> Box<Self> {
        let (half, received) = (DeviceHalf::new(device, 0), VecDeque::new());
        Box::new(Self { half, phase: FunctionPhase::Idle, received, credit: 0 })
    }
}

/// A frame that a function has sent to others, or that its device returned after its program.
struct LocalFrame {
    frame: RxFrame,
    from: usize,
}

/// A switch with its functions. `P` are the ports of each function.
pub struct SwitchHalf<P> {
    switch: EmbeddedSwitch,
    functions: [Option<Box<Function<P>>>; FUNCTIONS_MAX],
    /// Function with the first turn.
    next: usize,
    pool: PacketPool,
    local: Vec<LocalFrame>,
    /// A reset that the link had no room for.
    unsent: Option<TxFrame>,
}

impl<P: FunctionPorts> SwitchHalf<P> {
    /// Creates the driver of a switch without programs. `first` is the device of its first
    /// function; the others are created with their first program.
    #[must_use]
    pub fn new(switch: EmbeddedSwitch, first: Device) -> Self {
        let mut functions = [const { None }; FUNCTIONS_MAX];
        functions[0] = Some(Function::boxed(first));
        Self {
            switch,
            functions,
            next: 0,
            pool: PacketPool::new(POOL_BUFFERS),
            local: Vec::new(),
            unsent: None,
        }
    }

    /// Assigns a function to a program with this claim. `create` makes the function's device, the
    /// first time.
    ///
    /// # Errors
    /// As [`EmbeddedSwitch::add`]; the function is unchanged.
    ///
    /// # Panics
    /// If the function has a program.
    pub fn begin(
        &mut self,
        function: usize,
        claim: &AddressClaim,
        ports: P,
        create: impl FnOnce() -> Device,
    ) -> Result<(), AttachRefusal> {
        self.switch.add(function, claim)?;
        let function = self.functions[function].get_or_insert_with(|| Function::boxed(create()));
        assert!(matches!(function.phase, FunctionPhase::Idle), "the function has a program");
        function.half.device.welcome_host();
        function.phase = FunctionPhase::Serving(ports);
        Ok(())
    }

    /// Follows the end of a function's program. The function is free at once or, if its device
    /// still tears down connections, after later turns.
    pub fn end(&mut self, now: Instant, index: usize) {
        let Some(function) = &mut self.functions[index] else { return };
        let phase = core::mem::replace(&mut function.phase, FunctionPhase::Idle);
        let FunctionPhase::Serving(ports) = phase else {
            function.phase = phase;
            return;
        };
        let device = &mut function.half.device;
        device.retire_host();
        self.switch.end(now, index, |tuple| device.is_tearing_down(tuple));
        function.phase = FunctionPhase::Ending(ports);
        self.free_if_ended(index);
    }

    /// Frees a function whose program is gone, though its device still tears down connections.
    pub fn free(&mut self, index: usize) {
        let Some(function) = &mut self.functions[index] else { return };
        debug_assert!(!matches!(function.phase, FunctionPhase::Serving(_)), "it has a program");
        function.phase = FunctionPhase::Idle;
        function.half.device.forget_host();
        for frame in function.received.drain(..) {
            self.pool.put(frame.packet);
        }
        self.switch.free(index);
    }

    fn free_if_ended(&mut self, index: usize) {
        let Some(function) = &self.functions[index] else { return };
        let is_ending = matches!(function.phase, FunctionPhase::Ending(_));
        if is_ending && function.half.device.has_ended_all() {
            self.free(index);
        }
    }

    /// Returns whether a function has no program, and no connections of one.
    #[must_use]
    pub fn is_idle(&self, function: usize) -> bool {
        let function = &self.functions[function];
        function.as_ref().is_none_or(|function| matches!(function.phase, FunctionPhase::Idle))
    }

    /// Returns the number of programs.
    #[must_use]
    pub fn programs(&self) -> usize {
        (0..FUNCTIONS_MAX).filter(|&function| self.program(function).is_some()).count()
    }

    /// Returns the ports of all programs.
    pub fn programs_mut(&mut self) -> impl Iterator<Item = &mut P> {
        self.functions.iter_mut().flatten().filter_map(|function| match &mut function.phase {
            FunctionPhase::Serving(ports) => Some(ports),
            FunctionPhase::Idle | FunctionPhase::Ending(_) => None,
        })
    }

    /// Returns the ports of a function's program, if it has one.
    #[must_use]
    pub fn program(&self, function: usize) -> Option<&P> {
        match &self.functions[function].as_ref()?.phase {
            FunctionPhase::Serving(ports) => Some(ports),
            FunctionPhase::Idle | FunctionPhase::Ending(_) => None,
        }
    }

    /// As [`Self::program`].
    pub fn program_mut(&mut self, function: usize) -> Option<&mut P> {
        match &mut self.functions[function].as_mut()?.phase {
            FunctionPhase::Serving(ports) => Some(ports),
            FunctionPhase::Idle | FunctionPhase::Ending(_) => None,
        }
    }

    /// Returns the ports of all functions that have a program or end its connections.
    pub fn all_ports(&self) -> impl Iterator<Item = &P> {
        self.functions.iter().filter_map(|function| match &function.as_ref()?.phase {
            FunctionPhase::Serving(ports) | FunctionPhase::Ending(ports) => Some(ports),
            FunctionPhase::Idle => None,
        })
    }

    /// Returns the devices of all functions that were created, with their indices.
    pub fn devices(&self) -> impl Iterator<Item = (usize, &Device)> {
        let functions = self.functions.iter().enumerate();
        functions.filter_map(|(index, function)| Some((index, &function.as_ref()?.half.device)))
    }

    /// Notifies all functions that the link is up again or has another MTU, in bytes.
    pub fn handle_link_change(&mut self, mtu: u16) {
        for Function { half, phase, .. } in self.functions.iter_mut().flatten().map(|f| &mut **f) {
            half.device.handle_link_change(mtu);
            if matches!(phase, FunctionPhase::Idle) {
                // The next program is told when it begins.
                half.device.forget_host();
            }
        }
    }

    /// Sets the load of all devices, which share the driver's time ([`Device::set_load`]).
    pub fn set_load(&mut self, permille: u16) {
        for function in self.functions.iter_mut().flatten() {
            if matches!(function.phase, FunctionPhase::Serving(_)) {
                function.half.device.set_load(permille);
            }
        }
    }

    /// Calls `f` with the name and value of each counter of the switch.
    pub fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.switch.visit(f);
    }

    /// Returns the time at which a function needs a turn even without input.
    #[must_use]
    pub fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        self.functions.iter().flatten().filter_map(|f| f.half.poll_timeout(now)).min()
    }

    /// Takes a batch of frames from the link, and gives each function a turn.
    pub fn turn(&mut self, now: Instant, link: &mut impl LinkPort) -> TurnResult {
        let mut turn = TurnResult::default();
        self.take_frames(now, link, &mut turn);
        for offset in 0..FUNCTIONS_MAX {
            self.turn_function(now, (self.next + offset) % FUNCTIONS_MAX, link, &mut turn);
        }
        self.next = (self.next + 1) % FUNCTIONS_MAX;
        self.pass_local_frames(&mut turn);
        self.send_resets(now, link, &mut turn);
        turn.blocked |= !link.flush_link(now);
        turn
    }

    fn take_frames(&mut self, now: Instant, link: &mut impl LinkPort, turn: &mut TurnResult) {
        for _ in 0..FRAMES_PER_TURN {
            let Some(frame) = link.receive(now, &mut self.pool) else { return };
            self.deliver(frame, None);
            turn.worked = true;
        }
        turn.more = true;
    }

    /// Queues a frame for the functions that it is for.
    fn deliver(&mut self, frame: RxFrame, from: Option<usize>) {
        match self.switch.steer(frame.packet.as_slice(), from) {
            SwitchRoute::One(function) => self.queue(function, frame),
            SwitchRoute::Copies(functions) => self.copy(functions, frame),
            SwitchRoute::Dropped => self.pool.put(frame.packet),
        }
    }

    fn copy(&mut self, functions: FunctionSet, frame: RxFrame) {
        let RxFrame { packet, checksum, segment_size } = frame;
        for function in functions.iter() {
            let Some(copy) = self.pool.copy(packet.as_slice()) else { break };
            self.switch.counters.switch_rx_copies += 1;
            self.queue(function, RxFrame { packet: copy, checksum, segment_size });
        }
        self.pool.put(packet);
    }

    /// Queues a frame for a function. The buffer changes its owner; in exchange the switch gets a
    /// free buffer of the same size.
    fn queue(&mut self, index: usize, frame: RxFrame) {
        let function = self.functions[index].as_mut();
        match function.filter(|function| function.received.len() < WAITING_MAX) {
            Some(function) => {
                let spare = function.half.device.pool().take(frame.packet.footprint());
                spare.into_iter().for_each(|spare| self.pool.put(spare));
                function.received.push_back(frame);
            }
            None => {
                self.switch.counters.switch_rx_dropped += 1;
                self.pool.put(frame.packet);
            }
        }
    }

    fn turn_function(
        &mut self,
        now: Instant,
        index: usize,
        link: &mut impl LinkPort,
        turn: &mut TurnResult,
    ) {
        let Some(function) = &mut self.functions[index] else { return };
        if matches!(function.phase, FunctionPhase::Idle) {
            return;
        }
        let Function { half, phase, received, credit } = &mut **function;
        *credit = QUANTUM.min(*credit + QUANTUM);
        let (switch, pool, local) = (&mut self.switch, &mut self.pool, &mut self.local);
        let mut driver =
            FunctionDriver { index, link, switch, pool, local, phase, received, credit };
        let TurnResult { worked, more, blocked } = half.turn(now, &mut driver);
        turn.worked |= worked;
        turn.more |= more;
        turn.blocked |= blocked;
        self.free_if_ended(index);
    }

    /// Passes the frames between functions. They are taken in the next turn.
    fn pass_local_frames(&mut self, turn: &mut TurnResult) {
        let mut frames = core::mem::take(&mut self.local);
        for LocalFrame { frame, from } in frames.drain(..) {
            self.deliver(frame, Some(from));
            (turn.worked, turn.more) = (true, true);
        }
        self.local = frames;
    }

    fn send_resets(&mut self, now: Instant, link: &mut impl LinkPort, turn: &mut TurnResult) {
        for _ in 0..RESETS_PER_TURN {
            let next = self.unsent.take().or_else(|| self.switch.poll_reset());
            let Some(mut frame) = next else { return };
            turn.worked = true;
            if self.switch.is_local(&frame) {
                // The peer is another program.
                if let Some(frame) = received_copy(&mut self.pool, &frame) {
                    self.deliver(frame, None);
                }
                continue;
            }
            match link.transmit(now, &mut frame) {
                LinkTxStatus::Sent | LinkTxStatus::Failed | LinkTxStatus::TooLong => {}
                LinkTxStatus::Full => {
                    self.unsent = Some(frame);
                    turn.blocked = true;
                    return;
                }
            }
        }
        turn.more = true;
    }
}

/// Copies a sent frame to a buffer, as it is received; `None` if it is too long for one.
fn received_copy(pool: &mut PacketPool, frame: &TxFrame) -> Option<RxFrame> {
    let mut packet = pool.take(frame.len())?;
    frame.copy_to(packet.as_mut_slice());
    let checksum = if frame.checksum_partial { Checksum::Partial } else { Checksum::Good };
    Some(RxFrame { packet, checksum, segment_size: frame.segment_size })
}

impl<P> core::fmt::Debug for SwitchHalf<P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SwitchHalf").field("switch", &self.switch).finish_non_exhaustive()
    }
}

/// The ports of one function in its turn.
struct FunctionDriver<'a, P, L> {
    index: usize,
    link: &'a mut L,
    switch: &'a mut EmbeddedSwitch,
    pool: &'a mut PacketPool,
    local: &'a mut Vec<LocalFrame>,
    phase: &'a mut FunctionPhase<P>,
    received: &'a mut VecDeque<RxFrame>,
    credit: &'a mut isize,
}

impl<P: FunctionPorts, L> FunctionDriver<'_, P, L> {
    /// Returns the ports, if there is a program.
    const fn serving(&mut self) -> Option<&mut P> {
        match self.phase {
            FunctionPhase::Serving(ports) => Some(ports),
            FunctionPhase::Idle | FunctionPhase::Ending(_) => None,
        }
    }

    /// Returns the ports for the disk, which is needed after the program, too.
    const fn disk(&mut self) -> Option<&mut P> {
        match self.phase {
            FunctionPhase::Serving(ports) | FunctionPhase::Ending(ports) => Some(ports),
            FunctionPhase::Idle => None,
        }
    }

    /// Copies a frame for other functions. Returns false if it is too long for a buffer.
    fn copy_to_functions(&mut self, frame: &TxFrame) -> bool {
        let Some(frame) = received_copy(self.pool, frame) else { return false };
        self.switch.counters.switch_local_frames += 1;
        self.local.push(LocalFrame { frame, from: self.index });
        true
    }
}

impl<P: FunctionPorts, L> DiskPort for FunctionDriver<'_, P, L> {
    fn submit(&mut self, now: Instant, request: DiskRequest) -> Result<(), DiskRequest> {
        match self.disk() {
            Some(ports) => ports.submit(now, request),
            None => Err(request),
        }
    }

    fn flush(&mut self) {
        self.disk().into_iter().for_each(DiskPort::flush);
    }

    fn poll(&mut self, now: Instant) -> Option<DiskCompletion> {
        self.disk()?.poll(now)
    }
}

impl<P: FunctionPorts, L: LinkPort> DevicePorts for FunctionDriver<'_, P, L> {
    fn receive(&mut self, _: Instant, _: &mut PacketPool) -> Option<RxFrame> {
        self.received.pop_front()
    }

    fn transmit(&mut self, now: Instant, frame: &mut TxFrame) -> LinkTxStatus {
        if *self.credit <= 0 {
            return LinkTxStatus::Full;
        }
        let route = self.switch.check_sent(now, self.index, frame);
        let status = match route {
            SentRoute::Refused => LinkTxStatus::Failed,
            SentRoute::Link => self.link.transmit(now, frame),
            SentRoute::Functions if self.copy_to_functions(frame) => LinkTxStatus::Sent,
            SentRoute::Functions => LinkTxStatus::TooLong,
            SentRoute::LinkAndFunctions => {
                let copied = self.copy_to_functions(frame);
                let status = self.link.transmit(now, frame);
                if status == LinkTxStatus::Full && copied {
                    // The frame is offered again.
                    self.local.pop().into_iter().for_each(|copy| self.pool.put(copy.frame.packet));
                }
                status
            }
        };
        if status == LinkTxStatus::Sent {
            *self.credit -= isize::try_from(frame.len()).unwrap_or(QUANTUM);
        }
        status
    }

    fn pop_op(&mut self, pool: &mut PacketPool) -> Option<Op> {
        match self.serving()?.pop_op(pool)? {
            // The fragments of a packet go to one function, whichever queue it is for. That ends
            // the batch, or a program could keep the thread here; the next turn follows at once.
            Op::Return(SteeredFrame { frame, reason: SteeringReason::Current })
                if self.switch.is_for_other_queue(self.index, frame.packet.as_slice()) =>
            {
                self.local.push(LocalFrame { frame, from: self.index });
                None
            }
            op => Some(op),
        }
    }

    fn pop_recycled(&mut self) -> Option<PacketBuf> {
        self.serving()?.pop_recycled()
    }

    fn push_event(&mut self, _: usize, event: Event) -> Result<(), Event> {
        let from = self.index;
        match (self.serving(), event) {
            (Some(ports), event) => ports.push_event(event),
            // The device does not need it: it may be the SYN of a later connection with the same
            // ports, which belongs to the next program.
            (None, Event::Received(received)) => {
                let (packet, checksum) = (received.packet, received.checksum);
                let frame = RxFrame { packet, checksum, segment_size: received.segment_size };
                self.local.push(LocalFrame { frame, from });
                Ok(())
            }
            (None, _) => Ok(()),
        }
    }

    fn wake_host(&mut self, _: usize) {
        self.serving().into_iter().for_each(FunctionPorts::wake_host);
    }

    fn extend_claim(&mut self, claim: &AddressClaim) -> Result<(), AttachRefusal> {
        let ports = self.serving().ok_or(AttachRefusal::BadRequest)?;
        let allowed = ports.extend_claim(claim);
        let extended = allowed.and_then(|()| self.switch.extend(self.index, claim));
        let counters = &mut self.switch.counters;
        match extended {
            Ok(()) => counters.switch_claims_extended += 1,
            Err(_) => counters.switch_claims_refused += 1,
        }
        extended
    }
}
