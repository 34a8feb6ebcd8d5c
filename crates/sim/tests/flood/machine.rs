//! A machine whose two halves take time: a device and a host, each a core with a fixed number of
//! cycles per second and with rings of bounded length before it.
//!
//! Frames that do not fit the receive ring are lost, as with any NIC. The halves work in ticks;
//! cycles spent beyond a tick's budget are deducted from the next. No clock is read, so the outcome
//! is the same on every computer.

use std::collections::VecDeque;

use abi::disk::{DiskCompletion, DiskRequest};
use abi::link::{LinkTxStatus, RxFrame, TxFrame};
use abi::{Checksum, Event, Op, PacketBuf, PacketPool};
use base::{Duration, Instant};
use host::{Host, HostConfig};
use nic::{Device, DeviceConfig};
use node::{DeviceHalf, DevicePorts, DiskPort, HostHalf, HostPorts};
use testkit::{NoticeRecorder, PLAIN_LINK};

/// The time step of the simulation.
pub(crate) const TICK: Duration = Duration::from_micros(20);
/// Speed of each half: less than a tenth of the cores on which `outboard-lab bench connections` was
/// measured, so that a flood of 100,000 frames per second rather than millions overloads it.
const CYCLES_PER_S: i64 = 100_000_000;
const CYCLES_PER_TICK: i64 = CYCLES_PER_S / 50_000;
/// Slots of each ring. NICs have 512 to 4,096.
const RING: usize = 1_024;

/// Cycles of the device for a received frame. `outboard-lab bench connections` shows 160 to 290
/// without a driver.
const FRAME_IN: i64 = 400;
/// Cycles of the device for a sent frame. The same benchmark shows 360.
const FRAME_OUT: i64 = 400;
/// Cycles of the host for an event. The same benchmark shows 130 to 340 without the rings for an
/// event that causes no operation.
const EVENT: i64 = 600;
/// Cycles of the host for an operation. The same benchmark shows 120 to 150.
const OP: i64 = 600;

/// Frames per second that take half of the device's time if it only receives them.
pub(crate) const HALF_OF_THE_DEVICE: u64 = 125_000;
/// SYNs per second that take half of the device's time if it answers each.
pub(crate) const HALF_OF_THE_DEVICE_SYN: u64 = 62_500;
/// SYNs per second that take half of the host's time if it answers each.
pub(crate) const HALF_OF_THE_HOST: u64 = 41_666;

const _: () = assert!(HALF_OF_THE_DEVICE == (CYCLES_PER_S / FRAME_IN / 2) as u64);
const _: () = assert!(HALF_OF_THE_DEVICE_SYN == (CYCLES_PER_S / (FRAME_IN + FRAME_OUT) / 2) as u64);
const _: () = assert!(HALF_OF_THE_HOST == (CYCLES_PER_S / (EVENT + OP) / 2) as u64);

/// The rings of a machine, and the budget of the half whose turn it is.
#[derive(Default)]
struct TimedRings {
    received: VecDeque<Vec<u8>>,
    events: VecDeque<Event>,
    ops: VecDeque<Op>,
    recycle: VecDeque<PacketBuf>,
    sent: Vec<Vec<u8>>,
    /// Cycles that the half has spent in this turn.
    spent: i64,
    /// Cycles after which the half takes no more input. Its output for earlier input still leaves.
    limit: i64,
}

/// A device and a host.
pub(crate) struct TimedMachine {
    device: DeviceHalf,
    host: HostHalf,
    pub(crate) notices: NoticeRecorder,
    /// Frames lost because the receive ring was full.
    pub(crate) overruns: u64,
    rings: TimedRings,
    /// Cycles left of the device and of the host; `None` if their time is not limited.
    cycles_left: Option<[i64; 2]>,
    /// Cycles that the device has spent since its load was last reported.
    device_cycles_spent: i64,
    /// Time of that report.
    load_reported_at: Instant,
}

impl TimedMachine {
    /// Creates a machine. If `fast`, its time is not limited.
    pub(crate) fn new(mut device: DeviceConfig, config: HostConfig, seed: u64, fast: bool) -> Self {
        device.file = None;
        device.queue_events_max = RING;
        let device = Device::new(device, PLAIN_LINK);
        let host = Host::new(config, &device.capabilities(), seed);
        Self {
            device: DeviceHalf::new(device, 0),
            host: HostHalf::new(host),
            notices: NoticeRecorder::default(),
            overruns: 0,
            rings: TimedRings::default(),
            cycles_left: (!fast).then_some([0; 2]),
            device_cycles_spent: 0,
            load_reported_at: Instant::ZERO,
        }
    }

    pub(crate) const fn host(&mut self) -> &mut Host {
        &mut self.host.host
    }

    /// Receives a frame from the link.
    pub(crate) fn receive_frame(&mut self, frame: Vec<u8>) {
        if self.rings.received.len() < RING || self.cycles_left.is_none() {
            self.rings.received.push_back(frame);
        } else {
            self.overruns += 1;
        }
    }

    /// Runs both halves for a tick; returns the frames that were sent.
    pub(crate) fn tick(&mut self, now: Instant) -> Vec<Vec<u8>> {
        for left in self.cycles_left.iter_mut().flatten() {
            *left = (*left).min(0) + CYCLES_PER_TICK;
        }
        while self.turn(now, 0) | self.turn(now, 1) {}
        if now.since(self.load_reported_at) >= Duration::from_millis(10) {
            let whole = CYCLES_PER_TICK * 500;
            let permille = u16::try_from(self.device_cycles_spent * 1000 / whole).unwrap_or(1000);
            self.device.device.set_load(permille);
            (self.load_reported_at, self.device_cycles_spent) = (now, 0);
        }
        core::mem::take(&mut self.rings.sent)
    }

    /// Runs a turn of a half if it has time left; returns whether it did anything.
    fn turn(&mut self, now: Instant, half: usize) -> bool {
        if self.cycles_left.is_some_and(|left| left[half] <= 0) {
            return false;
        }
        self.rings.limit = self.cycles_left.map_or(i64::MAX, |left| left[half]);
        let turn = match half {
            0 => self.device.turn(now, &mut self.rings),
            _ => self.host.turn(now, &mut self.notices, &mut self.rings),
        };
        let spent = core::mem::take(&mut self.rings.spent);
        if let Some(left) = &mut self.cycles_left {
            left[half] -= spent;
            self.device_cycles_spent += if half == 0 { spent } else { 0 };
        }
        turn.worked
    }

    /// Calls `f` with every counter and gauge of both halves.
    pub(crate) fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.host.host.visit(f);
        self.device.device.visit(f);
    }

    /// Returns a counter or gauge of either half.
    pub(crate) fn count(&self, name: &str) -> u64 {
        testkit::count(name, |f| self.visit(f))
    }
}

/// There are no files.
impl DiskPort for TimedRings {
    fn submit(&mut self, _: Instant, request: DiskRequest) -> Result<(), DiskRequest> {
        panic!("no disk for {request:?}");
    }

    fn poll(&mut self, _: Instant) -> Option<DiskCompletion> {
        None
    }
}

impl DevicePorts for TimedRings {
    fn receive(&mut self, _: Instant, pool: &mut PacketPool) -> Option<RxFrame> {
        if self.spent >= self.limit {
            return None;
        }
        let bytes = self.received.pop_front()?;
        self.spent += FRAME_IN;
        let packet = pool.copy(&bytes)?;
        Some(RxFrame { packet, checksum: Checksum::Unchecked, segment_size: 0 })
    }

    fn transmit(&mut self, _: Instant, frame: &mut TxFrame) -> LinkTxStatus {
        self.spent += FRAME_OUT;
        let mut bytes = vec![0; frame.len()];
        frame.copy_to(&mut bytes);
        self.sent.push(bytes);
        LinkTxStatus::Sent
    }

    fn pop_op(&mut self, _: &mut PacketPool) -> Option<Op> {
        self.ops.pop_front()
    }

    fn pop_recycled(&mut self) -> Option<PacketBuf> {
        self.recycle.pop_front()
    }

    fn push_event(&mut self, _: usize, event: Event) -> Result<(), Event> {
        if self.events.len() >= RING {
            return Err(event);
        }
        self.events.push_back(event);
        Ok(())
    }
}

impl HostPorts for TimedRings {
    fn pop_event(&mut self) -> Option<Event> {
        if self.spent >= self.limit {
            return None;
        }
        let event = self.events.pop_front()?;
        self.spent += EVENT;
        Some(event)
    }

    fn has_op_room(&mut self) -> bool {
        self.ops.len() < RING
    }

    fn push_op(&mut self, op: Op) {
        self.spent += OP;
        self.ops.push_back(op);
    }

    fn push_recycled(&mut self, packet: PacketBuf) {
        self.recycle.push_back(packet);
    }
}
