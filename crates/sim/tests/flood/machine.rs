//! A machine whose two halves take time: a device and a host, each a core that does so many cycles
//! a second and no more, with rings of bounded length before them.
//!
//! What does not fit the ring from the wire is lost, as from any card. The halves work by turns of
//! one tick; what a tick has begun to do beyond its time is taken off the next. No clock is read:
//! the outcome is the same on every computer.

use std::collections::VecDeque;

use abi::disk::{DiskCompletion, DiskRequest};
use abi::port::{RxFrame, TxFrame, TxStatus};
use abi::{Checksum, Event, Op, PacketBuf, PacketPool};
use base::{Duration, Instant};
use host::{Config, Host};
use nic::{Device, DeviceConfig};
use node::{DeviceHalf, DevicePorts, DiskPort, HostHalf, HostPorts};
use testkit::{Notices, PLAIN_LINK};

/// One turn.
pub(crate) const TICK: Duration = Duration::from_micros(20);
/// A tenth of the cores that `outboard-lab bench connections` was measured on, and less: so that a
/// flood that fills them is a hundred thousand frames and not millions.
const CYCLES_PER_S: i64 = 100_000_000;
const CYCLES_PER_TICK: i64 = CYCLES_PER_S / 50_000;
/// Slots of the rings. A card has 512 to 4,096.
const RING: usize = 1_024;

/// Cycles of the device for a frame from the wire, and for one to it. `outboard-lab bench
/// connections` shows 160 to 290 without a driver for the first, 360 for the second.
const FRAME_IN: i64 = 400;
const FRAME_OUT: i64 = 400;
/// Cycles of the host for an event, and for an operation. The same benchmark shows 130 to 340
/// without the rings for an event that makes nothing, 120 to 150 more for what it sends.
const EVENT: i64 = 600;
const OP: i64 = 600;

/// Flood frames per second that half of the device's time is spent on.
pub(crate) const HALF_OF_THE_DEVICE: u64 = 125_000;
/// SYNs per second that half of the device's time is spent on, if it answers each.
pub(crate) const HALF_OF_THE_DEVICE_SYN: u64 = 62_500;
/// SYNs per second that half of the host's time is spent on, if it answers each.
pub(crate) const HALF_OF_THE_HOST: u64 = 41_666;

const _: () = assert!(HALF_OF_THE_DEVICE == (CYCLES_PER_S / FRAME_IN / 2) as u64);
const _: () = assert!(HALF_OF_THE_DEVICE_SYN == (CYCLES_PER_S / (FRAME_IN + FRAME_OUT) / 2) as u64);
const _: () = assert!(HALF_OF_THE_HOST == (CYCLES_PER_S / (EVENT + OP) / 2) as u64);

/// The rings of a machine, and the time of its halves.
#[derive(Default)]
struct Rings {
    received: VecDeque<Vec<u8>>,
    events: VecDeque<Event>,
    ops: VecDeque<Op>,
    recycle: VecDeque<PacketBuf>,
    sent: Vec<Vec<u8>>,
    /// Cycles that the half whose turn it is has spent, and after how many it takes nothing more:
    /// what it makes of that which it has taken still leaves.
    spent: i64,
    limit: i64,
}

/// A device and a host.
pub(crate) struct Machine {
    device: DeviceHalf,
    host: HostHalf,
    pub(crate) notices: Notices,
    /// Frames that did not fit the ring from the link.
    pub(crate) overruns: u64,
    rings: Rings,
    /// Cycles left of the device and the host; none if they take as long as they like.
    left: Option<[i64; 2]>,
    /// Cycles that the device has spent since its driver last said how busy it is.
    spent: i64,
    said_at: Instant,
}

impl Machine {
    /// A machine; `fast` if its time is not what a test is about.
    pub(crate) fn new(mut device: DeviceConfig, config: Config, seed: u64, fast: bool) -> Self {
        device.file = None;
        device.queue_events_max = RING;
        let device = Device::new(device, PLAIN_LINK);
        let host = Host::new(config, &device.capabilities(), seed);
        Self {
            device: DeviceHalf::new(device, 0),
            host: HostHalf::new(host),
            notices: Notices::default(),
            overruns: 0,
            rings: Rings::default(),
            left: (!fast).then_some([0; 2]),
            spent: 0,
            said_at: Instant::ZERO,
        }
    }

    pub(crate) const fn host(&mut self) -> &mut Host {
        &mut self.host.host
    }

    /// A frame has come.
    pub(crate) fn arrive(&mut self, frame: Vec<u8>) {
        if self.rings.received.len() < RING || self.left.is_none() {
            self.rings.received.push_back(frame);
        } else {
            self.overruns += 1;
        }
    }

    /// Both halves work for a tick; returns the frames that have left.
    pub(crate) fn tick(&mut self, now: Instant) -> Vec<Vec<u8>> {
        for left in self.left.iter_mut().flatten() {
            *left = (*left).min(0) + CYCLES_PER_TICK;
        }
        while self.turn(now, 0) | self.turn(now, 1) {}
        if now.since(self.said_at) >= Duration::from_millis(10) {
            let whole = CYCLES_PER_TICK * 500;
            let permille = u16::try_from(self.spent * 1000 / whole).unwrap_or(1000);
            self.device.device.note_load(permille);
            (self.said_at, self.spent) = (now, 0);
        }
        core::mem::take(&mut self.rings.sent)
    }

    /// Gives a half a turn, if it has time left; returns whether it did anything.
    fn turn(&mut self, now: Instant, half: usize) -> bool {
        if self.left.is_some_and(|left| left[half] <= 0) {
            return false;
        }
        self.rings.limit = self.left.map_or(i64::MAX, |left| left[half]);
        let turn = match half {
            0 => self.device.turn(now, &mut self.rings),
            _ => self.host.turn(now, &mut self.notices, &mut self.rings),
        };
        let spent = core::mem::take(&mut self.rings.spent);
        if let Some(left) = &mut self.left {
            left[half] -= spent;
            self.spent += if half == 0 { spent } else { 0 };
        }
        turn.worked
    }

    /// Calls `f` with every counter and gauge of both halves.
    pub(crate) fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.host.host.visit(f);
        self.device.device.visit(f);
    }

    /// A counter or gauge of either half.
    pub(crate) fn count(&self, name: &str) -> u64 {
        testkit::count(name, |f| self.visit(f))
    }
}

/// There are no files.
impl DiskPort for Rings {
    fn submit(&mut self, _: Instant, request: DiskRequest) -> Result<(), DiskRequest> {
        panic!("no disk for {request:?}");
    }

    fn poll(&mut self, _: Instant) -> Option<DiskCompletion> {
        None
    }
}

impl DevicePorts for Rings {
    fn receive(&mut self, _: Instant, pool: &mut PacketPool) -> Option<RxFrame> {
        if self.spent >= self.limit {
            return None;
        }
        let bytes = self.received.pop_front()?;
        self.spent += FRAME_IN;
        let packet = pool.copy(&bytes)?;
        Some(RxFrame { packet, checksum: Checksum::Unchecked, segment_size: 0 })
    }

    fn transmit(&mut self, _: Instant, frame: &TxFrame) -> TxStatus {
        self.spent += FRAME_OUT;
        let mut bytes = vec![0; frame.len()];
        frame.copy_to(&mut bytes);
        self.sent.push(bytes);
        TxStatus::Sent
    }

    fn pop_op(&mut self) -> Option<Op> {
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

impl HostPorts for Rings {
    fn pop_event(&mut self, _: usize) -> Option<Event> {
        if self.spent >= self.limit {
            return None;
        }
        let event = self.events.pop_front()?;
        self.spent += EVENT;
        Some(event)
    }

    fn push_op(&mut self, op: Op) -> Result<(), Op> {
        if self.ops.len() >= RING {
            return Err(op);
        }
        self.spent += OP;
        self.ops.push_back(op);
        Ok(())
    }

    fn push_recycled(&mut self, packet: PacketBuf) {
        self.recycle.push_back(packet);
    }
}
