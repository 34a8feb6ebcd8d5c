//! Cost of a frame in a flood, for device and host separately: SYNs, forged acknowledgments and
//! forged resets, against connections in each of the places that can hold one.
//!
//! A device and a host take turns on one core, a batch at a time, without rings between them. The
//! host's answers go back through the device, and count. The clock stands still, so that rate
//! limits on answers are reached at once and the steady state is measured.

use std::hint::black_box;

use abi::link::RxFrame;
use abi::{Checksum, Event, Op};
use base::{Duration, Prng, SeqNum};
use host::{Cidr, Host, HostConfig, ListenConfig, ListenerOption};
use io::clock::{MonotonicClock, cycles};
use nic::{Device, DeviceConfig};
use wire::tcp::{TcpFlags, TcpHeader};
use wire::{Endpoint, Tuple};

use super::{
    BATCH, LINK_CAPS, LOCAL_MAC, NOW, TUPLES, frame, memory, per_unit, segment, syn, tuple,
};
use crate::bench::experiment::Fields;
use cli::Failure;

/// Connections that forged segments are aimed at.
const AIMS: u16 = 64;
/// An ARP request for our address from the peers' address, without padding (RFC 826).
const ARP: [u8; 42] = [
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 2, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0,
    0, 2, 10, 0, 0, 2, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1,
];

/// Cost of one frame of a kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct FloodCost {
    pub(super) key: &'static str,
    pub(super) what: &'static str,
    /// Cycles of the device per frame.
    pub(super) device: f64,
    /// Cycles of the host per frame.
    pub(super) host: f64,
    /// Frames per second that one core handles if it does the work of both.
    pub(super) per_s: f64,
}

impl FloodCost {
    /// Returns the row of the report.
    pub(super) fn fields(&self) -> Fields {
        Fields::new()
            .column("frame", self.what)
            .field("kind", self.key)
            .show("device cycles", "device_cycles", self.device)
            .show("host cycles", "host_cycles", self.host)
            .column("M/s per core", self.per_s * 1e-6)
            .field("per_s", self.per_s)
    }
}

/// A machine under attack.
struct FloodTarget {
    device: Device,
    host: Host,
    events: Vec<Event>,
    ops: Vec<Op>,
}

/// Measures each kind of flood.
///
/// # Errors
/// Reports a frame that did not take the path of its kind.
pub(super) fn costs(time: Duration) -> Result<Vec<FloodCost>, Failure> {
    let mut prng = Prng::new(1);
    let syns: Vec<_> = (0..TUPLES).map(|i| frame(&tuple(4, i), &syn(), b"")).collect();
    // With a current epoch, so that they pass every check that a forgery can pass.
    let mut acks = |from: u16, to: u16| -> Vec<Vec<u8>> {
        let ack = |number: u32| SeqNum(number & 0x07ff_ffff | 2 << 27);
        let mut one = |i| {
            let (seq, ack) = (SeqNum(prng.next_u32()), ack(prng.next_u32()));
            frame(&tuple(4, from + i % (to - from)), &segment(TcpFlags::ACK, seq, ack, 1), b"")
        };
        (0..TUPLES).map(&mut one).collect()
    };
    let (strays, inside) = (acks(AIMS, TUPLES), acks(0, AIMS));
    let mut prng = Prng::new(2);
    let mut resets = |count: u16| -> Vec<Vec<u8>> {
        let mut reset = |i| {
            let seq = SeqNum(prng.next_u32());
            let segment = TcpHeader { seq, flags: TcpFlags::RST, ..TcpHeader::default() };
            frame(&tuple(4, i % count), &segment, b"")
        };
        (0..TUPLES).map(&mut reset).collect()
    };
    let (few, many) = (resets(AIMS), resets(TUPLES));

    let mut out = Vec::new();
    let mut add = |key, what, target: FloodTarget, frames: &[Vec<u8>], counter: &str| {
        measure(target, frames, time, counter).map(|cost| out.push(FloodCost { key, what, ..cost }))
    };
    let on_host = || FloodTarget::new(false, 1);
    let spoofed_rst = |i: u16| {
        let [high, low] = (1024 + i).to_be_bytes();
        let remote = Endpoint { addr: [10, 0, high, low].into(), port: 1024 };
        frame(&Tuple { remote, ..tuple(4, 0) }, &syn(), b"")
    };
    let spoofed: Vec<_> = (0..TUPLES).map(spoofed_rst).collect();
    add("syn_device", "SYN, answered by the device", FloodTarget::new(true, 1), &syns, DEVICE_SYN)?;
    add("syn_host", "SYN, answered by the host", on_host(), &syns, "tcp_syn_cookies_sent")?;
    let what = "SYN from an unresolvable address, answered by the host";
    add("syn_host_on_link", what, on_host(), &spoofed, "tcp_syn_cookies_sent")?;
    let setup = FloodTarget::new(true, 1);
    add("ack_device", "forged ACK, set-up by the device", setup, &strays, DEVICE_ACK)?;
    let (what, cookies) = ("forged ACK, SYN cookies", on_host().with_cookies_sent(&syns));
    add("ack_host", what, cookies, &strays, "tcp_syn_cookies_failed")?;
    let connected = || FloodTarget::new(false, usize::from(AIMS)).with_connections();
    add("ack_connected", "forged ACK to a host connection", connected()?, &inside, "tcp_in_segs")?;
    add("rst_unknown", "RST without a connection", on_host(), &many, "tcp_no_connection")?;
    add("rst_connected", "RST to a host connection", connected()?, &few, "tcp_in_segs")?;
    let (torn, joined) = (FloodTarget::new(false, 1), FloodTarget::new(false, 1));
    let (what, torn) = ("RST to a connection in tear-down", torn.with_teardowns());
    add("rst_torn_down", what, torn, &few, "teardown_out_of_window")?;
    let (what, joined) = ("RST to a spliced connection", joined.with_splices());
    add("rst_spliced", what, joined, &few, "splice_dropped_blind_reset")?;
    Ok(out)
}

const DEVICE_SYN: &str = "setup_syns_answered";
const DEVICE_ACK: &str = "setup_passed_acks";

impl FloodTarget {
    fn new(set_up: bool, backlog: usize) -> Self {
        let mut config = DeviceConfig::new(LOCAL_MAC);
        config.file = None;
        let device = Device::new(config, LINK_CAPS);
        let addrs = vec![Cidr { addr: tuple(4, 0).local.addr, prefix_len: 16 }];
        let config = HostConfig { addrs, ..HostConfig::default() };
        let mut host = Host::new(config, &device.capabilities(), 1);
        let listener = host.listen(ListenConfig { addr: None, port: 80, backlog });
        if let Ok(listener) = listener {
            host.set_listener_option(listener, ListenerOption::SetupOffload(set_up));
        }
        let mut target = Self { device, host, events: Vec::new(), ops: Vec::new() };
        target.exchange(&ARP);
        target
    }

    /// Sends SYN cookies, so that the host checks acknowledgments for them.
    fn with_cookies_sent(mut self, syns: &[Vec<u8>]) -> Self {
        for syn in syns.iter().take(2) {
            self.exchange(syn);
        }
        self
    }

    /// Establishes connections that the host keeps.
    fn with_connections(mut self) -> Result<Self, Failure> {
        for i in 0..AIMS {
            let answer = self.exchange(&frame(&tuple(4, i), &syn(), b""));
            let answer = answer.first().and_then(|bytes| TcpHeader::parse(bytes.get(34..)?).ok());
            let Some((answer, _)) = answer else { continue };
            let echo = answer.options.timestamps.map_or(0, |ts| ts.value);
            let ack = segment(TcpFlags::ACK, answer.ack, answer.seq + 1, echo);
            self.exchange(&frame(&tuple(4, i), &ack, b""));
            while self.host.poll_notice().is_some() {}
        }
        match self.host.sockets().count() {
            n if n == usize::from(AIMS) => Ok(self),
            n => Err(Failure::System(format!("only {n} of {AIMS} connections were established"))),
        }
    }

    /// Adds connections that the device tears down.
    fn with_teardowns(mut self) -> Self {
        memory::add_teardowns(&mut self.device, 0, AIMS.into());
        self
    }

    /// Adds connections that the device splices.
    fn with_splices(mut self) -> Self {
        memory::add_splices(&mut self.device, 0, AIMS.into());
        self
    }

    /// Handles one frame and returns the frames sent in response.
    fn exchange(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        self.device_receive(std::slice::from_ref(&bytes.to_vec()));
        self.host_process();
        let ops = std::mem::take(&mut self.ops);
        ops.into_iter().for_each(|op| self.device.handle_op(NOW, 0, op));
        let frames = std::iter::from_fn(|| self.device.poll_frame(NOW));
        let bytes = |frame: abi::link::TxFrame| {
            let mut bytes = vec![0; frame.len()];
            frame.copy_to(&mut bytes);
            bytes
        };
        frames.map(bytes).collect()
    }

    fn device_receive(&mut self, batch: &[Vec<u8>]) {
        for bytes in batch {
            let Some(packet) = self.device.pool().copy(bytes) else { continue };
            let checksum = Checksum::Unchecked;
            self.device.handle_frame(NOW, RxFrame { packet, checksum, segment_size: 0 });
        }
        self.events.extend(std::iter::from_fn(|| self.device.poll_queue_event(0)));
    }

    fn host_process(&mut self) {
        for event in self.events.drain(..) {
            self.host.handle_event(NOW, event);
        }
        self.ops.extend(std::iter::from_fn(|| self.host.poll_op(NOW)));
    }

    fn device_transmit(&mut self) {
        while let Some(packet) = self.host.poll_recycle() {
            self.device.pool().put(packet);
        }
        for op in self.ops.drain(..) {
            self.device.handle_op(NOW, 0, op);
        }
        while let Some(mut frame) = self.device.poll_frame(NOW) {
            self.device.recycle(black_box(&mut frame));
        }
    }

    fn counter(&self, counter: &str) -> u64 {
        let mut sum = 0;
        let mut add = |name: &str, value| sum += if name == counter { value } else { 0 };
        self.device.visit(&mut |name, value| add(name, value));
        self.host.visit(&mut |name, value| add(name, value));
        sum
    }
}

/// Measures medians over batches. Every frame must move the counter, except the SYNs of one peer.
fn measure(
    mut target: FloodTarget,
    frames: &[Vec<u8>],
    time: Duration,
    counter: &str,
) -> Result<FloodCost, Failure> {
    let clock = MonotonicClock::new();
    let (mut device, mut host, mut took) = (Vec::new(), Vec::new(), Vec::new());
    let (counted, until) = (target.counter(counter), clock.now() + time);
    for batch in frames.chunks_exact(BATCH).cycle() {
        let (from, begun) = (clock.now(), cycles());
        target.device_receive(batch);
        let passed = cycles();
        target.host_process();
        let answered = cycles();
        target.device_transmit();
        device.push(cycles() - answered + passed - begun);
        host.push(answered - passed);
        let now = clock.now();
        took.push(now.since(from).as_nanos());
        if now > until {
            break;
        }
    }
    let (sent, moved) = ((took.len() * BATCH) as u64, target.counter(counter) - counted);
    // A backlog of one accepts the first SYN; that peer's SYNs recur in each cycle.
    if moved + 1 + sent / u64::from(TUPLES) < sent || moved > sent {
        return Err(Failure::System(format!("counter {counter} is {moved}, expected {sent}")));
    }
    let per_s = 1e9 / per_unit(&took, BATCH);
    let (device, host) = (per_unit(&device, BATCH), per_unit(&host, BATCH));
    Ok(FloodCost { key: "", what: "", device, host, per_s })
}
