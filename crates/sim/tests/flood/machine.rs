//! A machine whose two halves take time: a device and a host, each a core that does so many cycles
//! a second and no more, with rings of bounded length before them.
//!
//! What does not fit the ring from the wire is lost, as from any card. The halves work by turns of
//! one tick; what a tick has begun to do beyond its time is taken off the next. No clock is read:
//! the outcome is the same on every computer.

use std::collections::VecDeque;

use abi::port::{RxFrame, WireCaps};
use abi::{Checksum, Event, Op};
use base::{Duration, Instant};
use host::{Config, Host, Notice};
use nic::{Device, DeviceConfig};

/// One turn.
pub(crate) const TICK: Duration = Duration::from_micros(20);
/// A tenth of the cores that `outboard bench connections` was measured on, and less: so that a
/// flood that fills them is a hundred thousand frames and not millions.
const CYCLES_PER_S: i64 = 100_000_000;
const CYCLES_PER_TICK: i64 = CYCLES_PER_S / 50_000;
/// Slots of the rings. A card has 512 to 4,096.
const RING: usize = 1_024;

/// Cycles of the device for a frame from the wire, and for one to it. `outboard bench connections`
/// shows 160 to 290 without a driver for the first, 360 for the second.
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

/// A device and a host.
pub(crate) struct Machine {
    pub(crate) device: Device,
    pub(crate) host: Host,
    pub(crate) notices: Vec<Notice>,
    /// Frames that did not fit the ring from the wire.
    pub(crate) overruns: u64,
    ring: VecDeque<Vec<u8>>,
    events: VecDeque<Event>,
    ops: VecDeque<Op>,
    /// Cycles left of the device and the host; none where they take as long as they like.
    left: Option<[i64; 2]>,
    /// Cycles that the device has spent since its driver last said how busy it is.
    spent: i64,
    said_at: Instant,
}

impl Machine {
    /// A machine; `fast` where its time is not what a test is about.
    pub(crate) fn new(mut device: DeviceConfig, config: Config, seed: u64, fast: bool) -> Self {
        device.file = None;
        device.queue_events_max = RING;
        let wire =
            WireCaps { segmentation: false, udp_segmentation: false, checksum: false, mtu: 1500 };
        let device = Device::new(device, wire);
        let host = Host::new(config, &device.capabilities(), seed);
        Self {
            device,
            host,
            notices: vec![],
            overruns: 0,
            ring: VecDeque::new(),
            events: VecDeque::new(),
            ops: VecDeque::new(),
            left: (!fast).then_some([0; 2]),
            spent: 0,
            said_at: Instant::ZERO,
        }
    }

    /// A frame has come.
    pub(crate) fn arrive(&mut self, frame: Vec<u8>) {
        if self.ring.len() < RING || self.left.is_none() {
            self.ring.push_back(frame);
        } else {
            self.overruns += 1;
        }
    }

    /// Both halves work for a tick; gives what has left.
    pub(crate) fn tick(&mut self, now: Instant) -> Vec<Vec<u8>> {
        for left in self.left.iter_mut().flatten() {
            *left = (*left).min(0) + CYCLES_PER_TICK;
        }
        let mut frames = vec![];
        while self.device_works(now, &mut frames) | self.host_works(now) {}
        if now.since(self.said_at) >= Duration::from_millis(10) {
            let whole = CYCLES_PER_TICK * 500;
            let permille = u16::try_from(self.spent * 1000 / whole).unwrap_or(1000);
            self.device.note_load(permille);
            (self.said_at, self.spent) = (now, 0);
        }
        frames
    }

    /// Whether the half has time left; takes some of it.
    fn spends(&mut self, half: usize, cycles: i64) -> bool {
        let Some(left) = &mut self.left else { return true };
        let has = left[half] > 0;
        if has {
            left[half] -= cycles;
            self.spent += if half == 0 { cycles } else { 0 };
        }
        has
    }

    fn device_works(&mut self, now: Instant, frames: &mut Vec<Vec<u8>>) -> bool {
        let mut worked = false;
        if self.device.can_take_op() {
            if let Some(op) = self.ops.pop_front() {
                self.device.handle_op(now, 0, op);
                worked = true;
            }
        }
        if self.left.is_none_or(|[left, _]| left > 0) {
            if let Some(frame) = self.device.poll_frame(now) {
                self.spends(0, FRAME_OUT);
                let mut bytes = vec![0; frame.len()];
                frame.copy_to(&mut bytes);
                frames.push(bytes);
                self.device.recycle(frame);
                worked = true;
            }
        }
        if !self.ring.is_empty() && self.spends(0, FRAME_IN) {
            if let Some(packet) = self.ring.pop_front().and_then(|f| self.device.pool().copy(&f)) {
                let checksum = Checksum::Unchecked;
                self.device.handle_frame(now, RxFrame { packet, checksum, segment_size: 0 });
            }
            worked = true;
        }
        while self.events.len() < RING {
            let Some(event) = self.device.poll_queue_event(0) else { break };
            self.events.push_back(event);
            worked = true;
        }
        worked
    }

    fn host_works(&mut self, now: Instant) -> bool {
        let mut worked = false;
        if !self.events.is_empty() && self.spends(1, EVENT) {
            if let Some(event) = self.events.pop_front() {
                self.host.handle_event(now, event);
            }
            worked = true;
        }
        if self.left.is_some_and(|[_, left]| left <= 0) {
            return worked;
        }
        if self.host.poll_timeout().is_some_and(|at| at <= now) {
            self.host.handle_timeout(now);
        }
        if self.ops.len() < RING {
            if let Some(op) = self.host.poll_op(now) {
                self.spends(1, OP);
                self.ops.push_back(op);
                worked = true;
            }
        }
        while let Some(notice) = self.host.poll_notice() {
            self.notices.push(notice);
        }
        while let Some(packet) = self.host.poll_recycle() {
            self.device.pool().put(packet);
        }
        worked
    }

    /// A counter or gauge of either half.
    pub(crate) fn count(&self, name: &str) -> u64 {
        let (mut sum, add) = (0, |n: &str, value: u64| if n == name { value } else { 0 });
        self.host.visit(&mut |n, value| sum += add(n, value));
        self.device.visit(&mut |n, value| sum += add(n, value));
        sum
    }
}
