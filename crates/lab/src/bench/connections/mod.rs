//! `outboard-lab bench connections`: connection set-up by the device alone, on one core; the cost
//! of floods (`flood`), and memory per connection (`memory`).
//!
//! Frames are handed to a [`Device`] in batches and its output is drained, as its driver would do;
//! building and freeing frames is not counted. The device verifies and computes all checksums
//! itself. Each figure is a rate and the time-stamp counter's cycles, of the median batch. A frame
//! that no engine handles is measured too, so that the engines' own share can be told.

mod flood;
pub(super) mod memory;

use std::hint::black_box;

use abi::link::{LinkCaps, RxFrame};
use abi::setup::{CookieSecret, ListenId, SetupListen};
use abi::{Checksum, Event, Op};
use base::{Duration, Instant, Prng, SeqNum};
use clap::Args;
use io::clock::{MonotonicClock, cycles};
use io::heap::allocated_bytes;
use nic::{Device, DeviceConfig};
use wire::emit::EthernetAddrs;
use wire::segment::tcp_packet_from_peer;
use wire::tcp::{TcpFlags, TcpHeader, TcpTimestamps};
use wire::{Endpoint, Tuple};

use super::experiment::{BenchReport, Benchmark, Fields, median};
use super::testbed::check_counter;
use cli::Failure;

const LOCAL_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// A link without any offload.
const LINK_CAPS: LinkCaps =
    LinkCaps { segmentation: false, udp_segmentation: false, checksum: false, mtu: 1500 };
/// Time on the device's clock. It stands still, so that cookies made earlier remain valid.
const NOW: Instant = Instant::from_millis(100_000);
/// Number of peers.
const TUPLES: u16 = 4096;
/// Frames that are handed in between two readings of the clock.
const BATCH: usize = 64;
/// Payload of AccelTCP section 6.1: messages of 64 bytes.
const PAYLOAD: [u8; 64] = [b'x'; 64];
/// SYNs, and forged acknowledgments, after which the heap's growth is read.
const FLOOD: u32 = 1_000_000;

/// Arguments of `outboard-lab bench connections`.
#[derive(Debug, Args)]
pub(crate) struct ConnectionsArgs {
    /// Measure each figure for 0.1 seconds instead of 1.5
    #[arg(long)]
    quick: bool,
}

/// Measurement of one kind of work.
#[derive(Clone, Copy, Debug)]
struct ConnSetupFigure {
    what: &'static str,
    per_s: f64,
    cycles: f64,
}

impl Benchmark for ConnectionsArgs {
    fn run(&self, report: &mut BenchReport) -> Result<(), Failure> {
        let time = Duration::from_millis(if self.quick { 100 } else { 1_500 });
        let mut headline = serde_json::Map::new();
        let mut rows = Vec::new();
        for (version, suffix) in [(4, ""), (6, "_ipv6")] {
            for (key, figure) in set_up(version, time)? {
                headline.insert(format!("{key}_per_s{suffix}"), figure.per_s.into());
                headline.insert(format!("{key}_cycles{suffix}"), figure.cycles.into());
                rows.push(figure.fields(version));
            }
        }
        report.table("rows", rows);
        report.line("\ncycles per frame of a flood, IPv4:");
        let floods = flood::costs(time)?;
        for flood::FloodCost { key, per_s, .. } in &floods {
            headline.insert(format!("flood_{key}_per_s"), (*per_s).into());
        }
        report.table("floods", floods.iter().map(flood::FloodCost::fields).collect());
        let growth = set_up_memory()?;
        let (torn_down, spliced) = (memory::torn_down()?, memory::spliced()?);
        report.line(format!(
            "\nheap growth after {FLOOD} SYNs and as many forged acknowledgments: {growth} bytes\n\
             a connection that is torn down, with a response of 64 bytes: {torn_down:.0} bytes\n\
             a pair of spliced connections: {spliced:.0} bytes"
        ));
        headline.insert("setup_heap_growth_bytes".into(), growth.into());
        headline.insert("torn_down_connection_bytes".into(), torn_down.into());
        headline.insert("spliced_pair_bytes".into(), spliced.into());
        report.set("headline", headline);
        Ok(())
    }
}

impl ConnSetupFigure {
    fn fields(&self, version: u8) -> Fields {
        Fields::new()
            .show("IPv", "ip", version)
            .show("what", "what", self.what)
            .column("M/s", self.per_s * 1e-6)
            .field("per_s", self.per_s)
            .show("cycles", "cycles", self.cycles)
    }
}

/// Measures connections set up, SYNs answered and forged acknowledgments handled; each with its
/// key.
fn set_up(version: u8, time: Duration) -> Result<Vec<(&'static str, ConnSetupFigure)>, Failure> {
    let mut device = listening();
    let syns: Vec<Vec<u8>> = (0..TUPLES).map(|i| frame(&tuple(version, i), &syn(), b"")).collect();
    let acks = acknowledgments(version, &mut device, &syns)?;
    let both: Vec<_> = syns.iter().zip(&acks).flat_map(|(a, b)| [a.clone(), b.clone()]).collect();
    let mut prng = Prng::new(1);
    // With a current epoch and timestamps, so that they pass every check that a forgery can pass.
    let mut forged = |port: u16| -> Vec<Vec<u8>> {
        let mut number = || SeqNum(prng.next_u32());
        let forged = |i| {
            let mut tuple = tuple(version, i);
            tuple.local.port = port;
            let ack = SeqNum(number().0 & 0x07ff_ffff | 2 << 27);
            frame(&tuple, &segment(TcpFlags::ACK, number(), ack, 1), b"")
        };
        (0..TUPLES).map(forged).collect()
    };
    let (forged, elsewhere) = (forged(80), forged(81));

    let mut figures = Vec::new();
    let mut add = |key, what, frames: &[Vec<u8>], each, moves: &[&str]| {
        let mut device = listening();
        let (handled, figure) = measure(&mut device, frames, each, time);
        let moved = moves.iter().try_for_each(|name| check_counter(&device, name, handled));
        figures.push((key, ConnSetupFigure { what, ..figure }));
        moved
    };
    let two = ["setup_syns_answered", "setup_established"];
    add("connections", "connections: SYN, SYN-ACK, ACK with 64 bytes", &both, 2, &two)?;
    add("syns", "SYNs answered", &syns, 1, &two[..1])?;
    add("established", "ACKs with 64 bytes, connection passed to the host", &acks, 1, &two[1..])?;
    add("forged", "forged ACKs, passed to the host", &forged, 1, &["setup_passed_acks"])?;
    add("unwanted", "forged ACKs to a port without offload", &elsewhere, 1, &["rx_packets"])?;
    Ok(figures)
}

/// Returns the growth of the heap in floods from ever new peers, which must be none.
fn set_up_memory() -> Result<usize, Failure> {
    let mut device = listening();
    let frames = |i: u32| {
        let tuple = tuple(4, u16::try_from(i % 60_000).unwrap_or(0));
        let (syn, ack) = (TcpFlags::SYN, SeqNum(i.wrapping_mul(0x9e37) & 0x07ff_ffff | 2 << 27));
        let first = TcpHeader { seq: SeqNum(i), ..segment(syn, SeqNum(i), SeqNum(0), 0) };
        [frame(&tuple, &first, b""), frame(&tuple, &segment(TcpFlags::ACK, SeqNum(i), ack, 1), b"")]
    };
    let mut flood = |from: u32, to: u32| {
        let mut events = Vec::new();
        for i in from..to {
            for bytes in frames(i) {
                let packets = device.pool().copy(&bytes).into_iter().collect();
                run_device(&mut device, packets, &mut events);
                recycle(&mut device, &mut events);
            }
        }
    };
    flood(0, 10_000);
    let before = allocated_bytes();
    flood(10_000, FLOOD);
    let growth = allocated_bytes().saturating_sub(before);
    check_counter(&device, "setup_syns_answered", FLOOD.into())?;
    check_counter(&device, "setup_passed_acks", FLOOD.into())?;
    // The allocator's caches vary a little.
    if growth > FLOOD as usize / 100 {
        return Err(Failure::System(format!("heap grew by {growth} bytes during the flood")));
    }
    Ok(growth)
}

/// Hands in frames until the time is up, `each` of them per unit of work. Returns the number of
/// units, and the figures of the median batch: other processes interrupt some batches.
fn measure(
    device: &mut Device,
    frames: &[Vec<u8>],
    each: usize,
    time: Duration,
) -> (u64, ConnSetupFigure) {
    let clock = MonotonicClock::new();
    let mut events = Vec::with_capacity(BATCH);
    let (mut took, mut spent) = (Vec::new(), Vec::new());
    let until = clock.now() + time;
    for batch in frames.chunks_exact(BATCH).cycle() {
        let packets = batch.iter().filter_map(|frame| device.pool().copy(frame)).collect();
        let (from, begun) = (clock.now(), cycles());
        run_device(device, packets, &mut events);
        spent.push(cycles() - begun);
        let now = clock.now();
        took.push(now.since(from).as_nanos());
        recycle(device, &mut events);
        if now > until {
            break;
        }
    }
    let pieces = BATCH / each;
    let (per_s, cycles) = (1e9 / per_unit(&took, pieces), per_unit(&spent, pieces));
    ((took.len() * pieces) as u64, ConnSetupFigure { what: "", per_s, cycles })
}

/// Returns the share of one unit of work in the median batch.
fn per_unit(batches: &[u64], pieces: usize) -> f64 {
    median(batches.iter().map(|&batch| batch as f64)) / pieces as f64
}

/// Runs the measured part: frames in, frames and events out.
fn run_device(device: &mut Device, packets: Vec<abi::PacketBuf>, events: &mut Vec<Event>) {
    for packet in packets {
        let checksum = Checksum::Unchecked;
        device.handle_frame(NOW, RxFrame { packet, checksum, segment_size: 0 });
    }
    while let Some(frame) = device.poll_frame(NOW) {
        black_box(frame);
    }
    events.extend(std::iter::from_fn(|| device.poll_queue_event(0)));
}

/// Returns packets to the pool, as the host does after reading them.
fn recycle(device: &mut Device, events: &mut Vec<Event>) {
    for event in events.drain(..) {
        if let Event::Received(received) = event {
            device.pool().put(received.packet);
        }
    }
}

/// Returns a device that answers SYNs to port 80.
fn listening() -> Device {
    let mut config = DeviceConfig::new(LOCAL_MAC);
    config.file = None;
    let mut device = Device::new(config, LINK_CAPS);
    let listen = SetupListen {
        listener: ListenId(1),
        addrs: [tuple(4, 0).local.addr, tuple(6, 0).local.addr].into(),
        port: 80,
        window: 65_535,
        window_scale: 5,
        mss: [1460, 1440],
        sack: true,
        ecn: false,
        defer_accept: false,
        secret: CookieSecret([1, 2]),
    };
    device.handle_op(NOW, 0, Op::Listen(Box::new(listen)));
    device
}

/// Returns the peers' first segments with payload, which carry the cookies of the device's
/// SYN-ACKs.
fn acknowledgments(
    version: u8,
    device: &mut Device,
    syns: &[Vec<u8>],
) -> Result<Vec<Vec<u8>>, Failure> {
    let (mut events, mut out) = (Vec::new(), Vec::new());
    for (i, bytes) in (0..TUPLES).zip(syns) {
        let packet = device.pool().copy(bytes);
        let Some(packet) = packet else { break };
        let checksum = Checksum::Unchecked;
        device.handle_frame(NOW, RxFrame { packet, checksum, segment_size: 0 });
        let Some(answer) = device.poll_frame(NOW) else { break };
        let mut bytes = vec![0; answer.len()];
        answer.copy_to(&mut bytes);
        let Ok((answer, _)) = TcpHeader::parse(&bytes[if version == 4 { 34 } else { 54 }..]) else {
            break;
        };
        let echo = answer.options.timestamps.map_or(0, |ts| ts.value);
        let ack = segment(TcpFlags::ACK.with(TcpFlags::PSH), answer.ack, answer.seq + 1, echo);
        out.push(frame(&tuple(version, i), &ack, &PAYLOAD));
        recycle(device, &mut events);
    }
    if out.len() == syns.len() {
        return Ok(out);
    }
    Err(Failure::System(format!("only {} of {} SYNs were answered", out.len(), syns.len())))
}

fn tuple(version: u8, peer: u16) -> Tuple {
    let (local, remote) = match version {
        4 => ([10, 0, 0, 1].into(), [10, 0, 0, 2].into()),
        _ => ([0xfd00, 0, 0, 0, 0, 0, 0, 1].into(), [0xfd00, 0, 0, 0, 0, 0, 0, 2].into()),
    };
    Tuple {
        local: Endpoint { addr: local, port: 80 },
        remote: Endpoint { addr: remote, port: 1024 + peer },
    }
}

fn syn() -> TcpHeader {
    let mut syn = segment(TcpFlags::SYN, SeqNum(7), SeqNum(0), 0);
    let options = &mut syn.options;
    (options.mss, options.window_scale, options.sack_permitted) = (Some(1460), Some(7), true);
    syn
}

/// Returns a peer's segment without ports.
fn segment(flags: TcpFlags, seq: SeqNum, ack: SeqNum, echo: u32) -> TcpHeader {
    let mut segment = TcpHeader { seq, ack, flags, window: 502, ..TcpHeader::default() };
    segment.options.timestamps = Some(TcpTimestamps { value: 5000, echo });
    segment
}

fn frame(tuple: &Tuple, segment: &TcpHeader, payload: &[u8]) -> Vec<u8> {
    let link = EthernetAddrs { source: PEER_MAC, destination: LOCAL_MAC };
    tcp_packet_from_peer(tuple, &link, segment, payload)
}
