//! A machine for the examples: a host, a device and an application on one thread.
//!
//! The machine is complete: it has the link and the queues that `stack` has in threads and rings,
//! and the same driver (`node`). Time is a parameter, so an example may use a real clock, or a
//! virtual one that jumps from one deadline to the next, as here.
#![forbid(unsafe_code)]

pub mod apps;

use std::collections::VecDeque;

use abi::disk::{DiskCompletion, DiskRequest};
use abi::link::{LinkTxStatus, RxFrame, TxFrame};
use abi::{Event, Op, PacketBuf, PacketPool};
use base::{Duration, Instant};
use host::{Application, Cidr, Host, HostConfig};
use io::disk::Disk;
use io::link::Link;
use nic::{Device, DeviceConfig};
use node::{DeviceHalf, DevicePorts, DiskPort, HostHalf, HostPorts};

/// The link, the disk, and the queues between host and device.
pub struct Ports {
    link: Box<dyn Link>,
    disk: Option<Box<dyn Disk>>,
    /// True while the host's half runs: the disk is the device's.
    is_host_turn: bool,
    ops: VecDeque<Op>,
    events: VecDeque<Event>,
    recycled: VecDeque<PacketBuf>,
}

/// A host with its device and an application.
pub struct Machine<A> {
    host: HostHalf,
    device: DeviceHalf,
    ports: Ports,
    /// The application.
    pub app: A,
}

impl<A: Application> Machine<A> {
    /// Creates the machine 10.0.0.`number` on a link. `start` creates its application, for
    /// instance with [`Host::listen`]. Only the device reads the disk.
    #[must_use]
    pub fn new(
        number: u8,
        link: impl Link + 'static,
        disk: Option<Box<dyn Disk>>,
        start: impl FnOnce(&mut Host) -> A,
    ) -> Self {
        let mut device = DeviceConfig::new([2, 0, 0, 0, 0, number]);
        // A device without a disk must not offer to send files.
        device.file = device.file.filter(|_| disk.is_some());
        let device = Device::new(device, link.capabilities());
        let addrs = vec![Cidr { addr: [10, 0, 0, number].into(), prefix_len: 24 }];
        let config = HostConfig { addrs, ..HostConfig::default() };
        // The host learns from the capabilities which operations it may use.
        let mut host = Host::new(config, &device.capabilities(), u64::from(number));
        let app = start(&mut host);
        let ports = Ports {
            link: Box::new(link),
            disk,
            is_host_turn: false,
            ops: VecDeque::new(),
            events: VecDeque::new(),
            recycled: VecDeque::new(),
        };
        Self { host: HostHalf::new(host), device: DeviceHalf::new(device, 0), ports, app }
    }

    /// Returns the host.
    pub const fn host(&mut self) -> &mut Host {
        &mut self.host.host
    }

    /// Runs device and host once. Returns whether either had work to do.
    pub fn turn(&mut self, now: Instant) -> bool {
        self.ports.is_host_turn = false;
        let by_device = self.device.turn(now, &mut self.ports);
        self.ports.is_host_turn = true;
        let by_host = self.host.turn(now, &mut self.app, &mut self.ports);
        by_device.worked || by_host.worked
    }

    /// Returns the time at which the machine has work to do next.
    #[must_use]
    pub fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let all = [
            self.host.poll_timeout(&self.app),
            self.device.poll_timeout(now),
            self.ports.link.poll_timeout(),
        ];
        all.into_iter().flatten().min()
    }

    /// Puts an operation into the device's ring, behind those of the host.
    pub fn push_op(&mut self, op: Op) {
        self.ports.ops.push_back(op);
    }

    /// Runs the device once. Removes and returns the events for the host that `f` selects.
    pub fn device_events(&mut self, now: Instant, f: impl Fn(&Event) -> bool) -> Vec<Event> {
        self.ports.is_host_turn = false;
        self.device.turn(now, &mut self.ports);
        let events = core::mem::take(&mut self.ports.events);
        let (taken, left): (VecDeque<_>, VecDeque<_>) = events.into_iter().partition(f);
        self.ports.events = left;
        taken.into()
    }

    /// Returns the sum of the host's and the device's counters of this name.
    #[must_use]
    pub fn counter(&self, name: &str) -> u64 {
        let mut sum = 0;
        let mut add = |counter: &str, value| sum += if counter == name { value } else { 0 };
        self.host.host.visit(&mut |counter, value| add(counter, value));
        self.device.device.visit(&mut |counter, value| add(counter, value));
        sum
    }
}

/// Runs two machines on a virtual clock until `done`, or for `limit`. Returns the time at the end,
/// and whether `done` returned true.
pub fn run_until<A: Application, B: Application>(
    (a, b): (&mut Machine<A>, &mut Machine<B>),
    limit: Duration,
    mut done: impl FnMut(&mut Machine<A>, &mut Machine<B>) -> bool,
) -> (Instant, bool) {
    let mut now = Instant::ZERO;
    loop {
        while a.turn(now) | b.turn(now) {}
        if done(a, b) {
            return (now, true);
        }
        let next = a.poll_timeout(now).into_iter().chain(b.poll_timeout(now)).min();
        match next.filter(|next| next.since(Instant::ZERO) <= limit) {
            // A deadline that has passed is due in the next turn; time itself must advance.
            Some(next) => now = next.max(now + Duration::from_micros(1)),
            None => return (now, false),
        }
    }
}

impl DiskPort for Ports {
    fn submit(&mut self, _: Instant, request: DiskRequest) -> Result<(), DiskRequest> {
        match &mut self.disk {
            Some(disk) if !self.is_host_turn => disk.submit(request),
            _ => Err(request),
        }
    }

    fn flush(&mut self) {
        if let Some(disk) = &mut self.disk {
            disk.flush();
        }
    }

    fn poll(&mut self, _: Instant) -> Option<DiskCompletion> {
        self.disk.as_mut().filter(|_| !self.is_host_turn)?.poll()
    }
}

impl DevicePorts for Ports {
    fn receive(&mut self, now: Instant, pool: &mut PacketPool) -> Option<RxFrame> {
        self.link.receive(now, pool)
    }

    fn transmit(&mut self, now: Instant, frame: &mut TxFrame) -> LinkTxStatus {
        self.link.transmit(now, frame)
    }

    fn pop_op(&mut self, _: &mut PacketPool) -> Option<Op> {
        self.ops.pop_front()
    }

    fn pop_recycled(&mut self) -> Option<PacketBuf> {
        self.recycled.pop_front()
    }

    fn push_event(&mut self, _queue: usize, event: Event) -> Result<(), Event> {
        self.events.push_back(event);
        Ok(())
    }
}

impl HostPorts for Ports {
    fn pop_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn has_op_room(&mut self) -> bool {
        true
    }

    fn push_op(&mut self, op: Op) {
        self.ops.push_back(op);
    }

    fn push_recycled(&mut self, packet: PacketBuf) {
        self.recycled.push_back(packet);
    }
}
