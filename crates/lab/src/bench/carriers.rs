//! `outboard-lab bench carriers`: the cost of carrying an operation or event from one side to the
//! other, inside a process, through memory that two processes share, and over Ethernet.
//!
//! One thread is both sides, in batches, so that the cost of the code is measured and not that of
//! moving cache lines between cores, which all carriers have. `send` is the encoding and the write
//! to the ring, `receive` the read and the decoding. `ring` moves Rust values ([`abi::ring`]);
//! `shared` has the ends that a program and its device have ([`node::remote`]), with payload beside
//! its descriptor unless it is short; `shared, inline` and `shared, named` are the codec and the
//! ring alone ([`abi::layout`], [`io::shared_ring`]), with payload in the descriptor, or in memory
//! that both sides have, without a copy. `ethernet` has the frames of both ends of a session
//! ([`node::ethernet`]), acknowledgments included, and a copy for the link, which is memory: the
//! kernel's cost of sending and receiving a frame is not in it.
//!
//! These are costs of the parts; `bench device-process` measures the system.

use std::collections::VecDeque;
use std::fmt::Display;
use std::hint::black_box;
use std::os::fd::AsFd;

use abi::layout::{self, DecodeMemory, EncodeMemory, InlineMemory, MemoryRange};
use abi::link::TxFrame;
use abi::ring::{RingConsumer, RingProducer, ring};
use abi::{
    Checksum, Event, FileExtent, FileId, FlowId, Op, PacketBuf, PacketHeader, PacketPool,
    ReceivedFrame, Transmit, TransmitPart, TransmitParts,
};
use base::{Duration, Instant};
use bytes::Bytes;
use clap::Args;
use io::clock::cycles;
use io::shared_ring::{RingPush, SharedRingConsumer, SharedRingMemory, SharedRingProducer};
use node::channel::{CarrierFault, DescriptorChannel, PAYLOAD_BYTES_MIN, SentPayload};
use node::ethernet::{EthernetSession, SessionIdentity, SessionRole};
use node::pattern_table::ImmediateCompiler;
use node::remote::{
    CarrierCounters, CarrierRegion, RemoteDeviceEnd, RemoteEnd as _, RemoteHostEnd,
};
use serde_json::{Map, Value};

use super::experiment::{BenchReport, Benchmark, Experiment, Fields, find_figures, median_by};
use cli::Failure;

/// Descriptors that are sent before they are received.
const BATCH: usize = 32;
/// Bytes of a shared ring: a batch of frames with room to spare.
const RING_BYTES: u32 = 256 << 10;
/// Bytes of a ring between a program and its device, as attached programs have them.
const ENDS_RING_BYTES: u32 = 2 << 20;
/// Batches in a run, and runs of a row.
const BATCHES: usize = 2000;
const ROUNDS: usize = 9;
/// Payload of a segment, and of a small transaction.
const SEGMENT_BYTES: usize = 1448;
const SMALL_BYTES: usize = 64;

/// Arguments of `outboard-lab bench carriers`.
#[derive(Debug, Args)]
pub(crate) struct CarriersArgs {
    /// Run three rounds instead of nine
    #[arg(long)]
    quick: bool,
}

/// Carriers under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CarrierKind {
    Values,
    Shared,
    SharedInline,
    SharedNamed,
    Ethernet,
}

/// Descriptors under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CarriedKind {
    /// A transmit of [`SMALL_BYTES`] from the host's memory.
    Small,
    /// A transmit of 64 KiB of a file, with the head of a response.
    File,
    /// A received frame of [`SEGMENT_BYTES`].
    Received,
}

#[derive(Clone, Copy, Debug)]
struct CarrierSetting {
    carrier: CarrierKind,
    carried: CarriedKind,
}

/// Cycles per descriptor.
#[derive(Clone, Copy, Debug)]
struct CarrierFigures {
    send: f64,
    receive: f64,
    /// Bytes of a descriptor; zero for values.
    bytes: usize,
}

impl Benchmark for CarriersArgs {
    fn run(&self, report: &mut BenchReport) -> Result<(), Failure> {
        let all = [CarriedKind::Small, CarriedKind::File, CarriedKind::Received];
        let group = |carried| {
            [
                CarrierKind::Values,
                CarrierKind::Shared,
                CarrierKind::SharedInline,
                CarrierKind::SharedNamed,
                CarrierKind::Ethernet,
            ]
            .map(|carrier| CarrierSetting { carrier, carried })
            .into()
        };
        let experiment = Experiment {
            groups: all.into_iter().map(group).collect(),
            repeats: if self.quick { 3 } else { ROUNDS },
            measure: &mut measure,
            // The measurement checks that every descriptor arrives.
            took_path: &|_, _| true,
            combine: &|runs| median_by(runs, |run: &CarrierFigures| run.send + run.receive),
            fields: &|row, _| {
                let CarrierFigures { send, receive, bytes } = row.figures;
                Fields::new()
                    .show("descriptor", "descriptor", row.setting.carried.name())
                    .show("carrier", "carrier", row.setting.carrier.name())
                    .show("send", "send_cycles", send)
                    .show("receive", "receive_cycles", receive)
                    .show("bytes", "bytes", bytes)
            },
        };
        let rows = report.measure("rows", experiment)?;
        let mut headline = Map::new();
        for carried in all {
            let cost = |carrier| {
                let of = |s: &CarrierSetting| s.carrier == carrier && s.carried == carried;
                find_figures(&rows, of).map(|f: &CarrierFigures| f.send + f.receive)
            };
            let (values, shared) = (cost(CarrierKind::Values), cost(CarrierKind::Shared));
            let added = shared.zip(values).map(|(shared, values)| shared - values);
            headline.insert(format!("added_cycles_{}", carried.key()), added.into());
        }
        report.set("headline", Value::Object(headline));
        Ok(())
    }
}

impl CarrierKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Values => "ring",
            Self::Shared => "shared",
            Self::SharedInline => "shared, inline",
            Self::SharedNamed => "shared, named",
            Self::Ethernet => "ethernet",
        }
    }
}

impl CarriedKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Small => "transmit of 64 bytes",
            Self::File => "transmit of a file",
            Self::Received => "received frame",
        }
    }

    const fn key(self) -> &'static str {
        match self {
            Self::Small => "transmit",
            Self::File => "file",
            Self::Received => "received",
        }
    }
}

fn measure(setting: CarrierSetting) -> Result<CarrierFigures, Failure> {
    let region = Bytes::from(vec![7; 64 << 10]);
    let mut source = DescriptorSource { region: region.clone(), pool: PacketPool::new(BATCH * 2) };
    let memory = BenchMemory {
        region: (setting.carrier == CarrierKind::SharedNamed).then_some(region),
        frames: VecDeque::new(),
        inline: InlineMemory { pool: PacketPool::new(BATCH * 2) },
    };
    let is_file = setting.carried == CarriedKind::File;
    if setting.carried == CarriedKind::Received {
        let codec = DescriptorCoder::new(memory, layout::encode_event, layout::decode_event);
        return run_over(setting.carrier, codec, &mut source, DescriptorSource::received);
    }
    let codec = DescriptorCoder::new(memory, layout::encode_op, layout::decode_op);
    run_over(setting.carrier, codec, &mut source, |source| source.transmit(is_file))
}

/// Runs over a carrier, with the codec if it needs one.
fn run_over<T: Carried + Send>(
    carrier: CarrierKind,
    codec: DescriptorCoder<T>,
    source: &mut DescriptorSource,
    make: impl Fn(&mut DescriptorSource) -> T,
) -> Result<CarrierFigures, Failure>
where
    SharedEnds: BenchCarrier<T>,
{
    match carrier {
        CarrierKind::Values => run(&mut ValueCarrier::new(), source, make),
        CarrierKind::Shared => run(&mut SharedEnds::new()?, source, make),
        CarrierKind::SharedInline | CarrierKind::SharedNamed => {
            run(&mut SharedCarrier::new(codec)?, source, make)
        }
        CarrierKind::Ethernet => run(&mut EthernetCarrier::new(codec), source, make),
    }
}

/// Sends and receives batches, and returns the cycles per descriptor.
fn run<T: Carried>(
    carrier: &mut impl BenchCarrier<T>,
    source: &mut DescriptorSource,
    make: impl Fn(&mut DescriptorSource) -> T,
) -> Result<CarrierFigures, Failure> {
    let (mut sending, mut receiving, mut arrived) = (0, 0, 0);
    let mut made = Vec::with_capacity(BATCH);
    let mut got = Vec::with_capacity(BATCH);
    for _ in 0..BATCHES {
        made.extend((0..BATCH).map(|_| make(source)));
        let begun = cycles();
        for descriptor in made.drain(..) {
            carrier.send(descriptor);
        }
        carrier.publish();
        let sent = cycles();
        while let Some(descriptor) = carrier.receive() {
            got.push(black_box(descriptor));
        }
        receiving += cycles() - sent;
        sending += sent - begun;
        arrived += got.len();
        for buffer in got.drain(..).filter_map(Carried::into_buffer) {
            carrier.recycle(buffer, &mut source.pool);
        }
    }
    if arrived != BATCHES * BATCH {
        return Err(Failure::System(format!("{arrived} of {} arrived", BATCHES * BATCH)));
    }
    let per = |cycles: u64| cycles as f64 / (BATCHES * BATCH) as f64;
    Ok(CarrierFigures { send: per(sending), receive: per(receiving), bytes: carrier.bytes() })
}

/// An operation or event.
trait Carried {
    /// Returns the buffer of a received frame.
    fn into_buffer(self) -> Option<PacketBuf>;
}

impl Carried for Op {
    fn into_buffer(self) -> Option<PacketBuf> {
        None
    }
}

impl Carried for Event {
    fn into_buffer(self) -> Option<PacketBuf> {
        match self {
            Self::Received(mut received) => Some(received.take_packet()),
            _ => None,
        }
    }
}

/// Both ends of a carrier.
trait BenchCarrier<T> {
    fn send(&mut self, descriptor: T);
    fn publish(&mut self);
    fn receive(&mut self) -> Option<T>;
    /// Returns a received buffer to the pool that it comes from.
    fn recycle(&mut self, buffer: PacketBuf, source: &mut PacketPool);
    /// Returns the length of a descriptor, with the payload beside it.
    fn bytes(&self) -> usize;
}

/// The rings of one process.
struct ValueCarrier<T>(RingProducer<T>, RingConsumer<T>);

impl<T: Send> ValueCarrier<T> {
    fn new() -> Self {
        let (producer, consumer) = ring(BATCH);
        Self(producer, consumer)
    }
}

impl<T: Send> BenchCarrier<T> for ValueCarrier<T> {
    fn send(&mut self, descriptor: T) {
        // The ring has room for a batch; `run` counts what arrives.
        let _full = self.0.push(descriptor);
    }

    fn publish(&mut self) {}

    fn receive(&mut self) -> Option<T> {
        self.1.pop()
    }

    fn recycle(&mut self, buffer: PacketBuf, source: &mut PacketPool) {
        source.put(buffer);
    }

    fn bytes(&self) -> usize {
        0
    }
}

type EncodeDescriptor<T> =
    fn(&mut T, &mut dyn EncodeMemory, &mut Vec<u8>) -> Result<(), layout::EncodeFault>;
type DecodeDescriptor<T> = fn(&[u8], &mut dyn DecodeMemory) -> Result<T, layout::LayoutFault>;

/// Encodes and decodes descriptors for both ends.
struct DescriptorCoder<T> {
    memory: BenchMemory,
    encode: EncodeDescriptor<T>,
    decode: DecodeDescriptor<T>,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

impl<T> DescriptorCoder<T> {
    fn new(memory: BenchMemory, encode: EncodeDescriptor<T>, decode: DecodeDescriptor<T>) -> Self {
        Self { memory, encode, decode, outgoing: vec![], incoming: vec![] }
    }

    /// Encodes a descriptor to `outgoing`.
    fn encode(&mut self, descriptor: &mut T) {
        self.outgoing.clear();
        let encoded = (self.encode)(descriptor, &mut self.memory, &mut self.outgoing);
        debug_assert_eq!(encoded, Ok(()));
    }

    /// Decodes the descriptor in `incoming`.
    fn decode(&mut self) -> Option<T> {
        (self.decode)(&self.incoming, &mut self.memory).ok()
    }

    fn recycle(&mut self, buffer: PacketBuf, source: &mut PacketPool) {
        match self.memory.region {
            Some(_) => source.put(buffer),
            None => self.memory.inline.pool.put(buffer),
        }
    }
}

/// A ring in shared memory, mapped twice.
struct SharedCarrier<T> {
    producer: SharedRingProducer,
    consumer: SharedRingConsumer,
    codec: DescriptorCoder<T>,
}

impl<T> SharedCarrier<T> {
    fn new(codec: DescriptorCoder<T>) -> Result<Self, Failure> {
        let (producer, consumer) = shared_ring(RING_BYTES)?;
        Ok(Self { producer, consumer, codec })
    }
}

/// Creates both ends of a ring.
fn shared_ring(bytes: u32) -> Result<(SharedRingProducer, SharedRingConsumer), Failure> {
    let failed = |e: &dyn Display| Failure::System(format!("cannot create a ring: {e}"));
    let ring = SharedRingMemory::create(bytes).map_err(|e| failed(&e))?;
    let other = ring.as_fd().try_clone_to_owned().map_err(|e| failed(&e))?;
    let other = SharedRingMemory::attach(other, bytes).map_err(|e| failed(&e))?;
    Ok((SharedRingProducer::new(ring), SharedRingConsumer::new(other)))
}

impl<T> BenchCarrier<T> for SharedCarrier<T> {
    fn send(&mut self, mut descriptor: T) {
        self.codec.encode(&mut descriptor);
        let pushed = self.producer.push(&self.codec.outgoing);
        debug_assert_eq!(pushed, Ok(RingPush::Written));
    }

    fn publish(&mut self) {
        let _awake = self.producer.publish();
    }

    fn receive(&mut self) -> Option<T> {
        let popped = self.consumer.pop(&mut self.codec.incoming);
        (popped == Ok(true)).then(|| self.codec.decode())?
    }

    fn recycle(&mut self, buffer: PacketBuf, source: &mut PacketPool) {
        self.codec.recycle(buffer, source);
    }

    fn bytes(&self) -> usize {
        self.codec.incoming.len()
    }
}

/// The ends of a program and its device, over two rings.
struct SharedEnds {
    host: RemoteHostEnd<RingChannel>,
    device: RemoteDeviceEnd<RingChannel>,
    /// Buffers of the device for frames of the host.
    pool: PacketPool,
}

/// A ring for each direction.
struct RingChannel {
    producer: SharedRingProducer,
    consumer: SharedRingConsumer,
}

impl SharedEnds {
    fn new() -> Result<Self, Failure> {
        let ((ops, from_host), (events, from_device)) =
            (shared_ring(ENDS_RING_BYTES)?, shared_ring(ENDS_RING_BYTES)?);
        let host = RingChannel { producer: ops, consumer: from_device };
        let device = RingChannel { producer: events, consumer: from_host };
        Ok(Self {
            host: RemoteHostEnd::new(host, CarrierRegion::Absent),
            device: RemoteDeviceEnd::new(device, None, Box::new(ImmediateCompiler::default())),
            pool: PacketPool::new(BATCH),
        })
    }
}

impl DescriptorChannel for RingChannel {
    fn payload_bytes_min(&self) -> Option<usize> {
        Some(PAYLOAD_BYTES_MIN)
    }

    fn has_room(&mut self) -> Result<bool, CarrierFault> {
        self.producer.has_room_for_any().map_err(|_| CarrierFault::Channel)
    }

    fn push(&mut self, descriptor: &[u8], payload: &[SentPayload]) -> Result<(), CarrierFault> {
        let pushed = if payload.is_empty() {
            self.producer.push(descriptor)
        } else {
            self.producer.push_with_payload(descriptor, payload.iter().map(SentPayload::as_slice))
        };
        pushed.map(|_| ()).map_err(|_| CarrierFault::Channel)
    }

    fn publish(&mut self) {
        let _awake = self.producer.publish();
    }

    fn pop(&mut self, out: &mut Vec<u8>) -> Result<bool, CarrierFault> {
        self.consumer.pop(out).map_err(|_| CarrierFault::Channel)
    }

    fn payload_len(&self) -> usize {
        self.consumer.payload_len()
    }

    fn copy_payload(&self, at: usize, to: &mut [u8]) {
        self.consumer.copy_payload(at, to);
    }
}

/// Returns the mean length of the descriptors that an end has sent.
fn mean_bytes(counters: &CarrierCounters) -> usize {
    let mean = counters.carrier_sent_bytes.checked_div(counters.carrier_sent);
    mean.and_then(|mean| mean.try_into().ok()).unwrap_or(0)
}

impl BenchCarrier<Op> for SharedEnds {
    fn send(&mut self, op: Op) {
        self.host.push_op(op);
    }

    fn publish(&mut self) {
        self.host.publish();
    }

    fn receive(&mut self) -> Option<Op> {
        self.device.pop_op(&mut self.pool)
    }

    fn recycle(&mut self, buffer: PacketBuf, _: &mut PacketPool) {
        self.pool.put(buffer);
    }

    fn bytes(&self) -> usize {
        mean_bytes(self.host.counters())
    }
}

impl BenchCarrier<Event> for SharedEnds {
    fn send(&mut self, event: Event) {
        // The ring has room for a batch; `run` counts what arrives.
        let _full = self.device.push_event(event);
    }

    fn publish(&mut self) {
        self.device.publish();
    }

    fn receive(&mut self) -> Option<Event> {
        self.host.pop_event()
    }

    fn recycle(&mut self, buffer: PacketBuf, source: &mut PacketPool) {
        self.host.recycle(buffer);
        while let Some(sent) = self.device.pop_recycled() {
            source.put(sent);
        }
    }

    fn bytes(&self) -> usize {
        mean_bytes(self.device.counters())
    }
}

/// Both ends of a session over Ethernet.
struct EthernetCarrier<T> {
    /// The sending end, and the receiving one.
    ends: [EthernetSession; 2],
    codec: DescriptorCoder<T>,
    /// Frames on the way to the receiving end.
    frames: VecDeque<PacketBuf>,
    now: Instant,
}

impl<T> EthernetCarrier<T> {
    fn new(codec: DescriptorCoder<T>) -> Self {
        let (program, device, now) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], Instant::ZERO);
        let end = |role, local, peer| {
            let identity = SessionIdentity { local, peer, session: 1 };
            EthernetSession::new(role, identity, 1500, now)
        };
        let ends =
            [end(SessionRole::Program, program, device), end(SessionRole::Device, device, program)];
        Self { ends, codec, frames: VecDeque::new(), now }
    }

    /// Passes the acknowledgment of everything back.
    fn acknowledge(&mut self) {
        let [sender, receiver] = &mut self.ends;
        receiver.acknowledge();
        while let Some(frame) = receiver.poll_frame(self.now) {
            let copied = copy(&frame, sender);
            let handled = copied.map(|packet| sender.handle_frame(self.now, packet));
            debug_assert_eq!(handled, Some(Ok(())));
        }
    }
}

impl<T> BenchCarrier<T> for EthernetCarrier<T> {
    fn send(&mut self, mut descriptor: T) {
        self.codec.encode(&mut descriptor);
        self.ends[0].push(&self.codec.outgoing);
    }

    fn publish(&mut self) {
        self.now += Duration::from_micros(10);
        let [sender, receiver] = &mut self.ends;
        while let Some(frame) = sender.poll_frame(self.now) {
            self.frames.extend(copy(&frame, receiver));
        }
    }

    fn receive(&mut self) -> Option<T> {
        loop {
            if self.ends[1].pop(&mut self.codec.incoming) == Ok(true) {
                return self.codec.decode();
            }
            let Some(frame) = self.frames.pop_front() else {
                self.acknowledge();
                return None;
            };
            self.ends[1].handle_frame(self.now, frame).ok()?;
        }
    }

    fn recycle(&mut self, buffer: PacketBuf, source: &mut PacketPool) {
        self.codec.recycle(buffer, source);
    }

    fn bytes(&self) -> usize {
        self.codec.incoming.len()
    }
}

/// Copies a frame to a buffer of the end that receives it, as a link does.
fn copy(frame: &TxFrame, to: &mut EthernetSession) -> Option<PacketBuf> {
    let mut packet = to.pool().take(frame.len())?;
    frame.copy_to(packet.as_mut_slice());
    Some(packet)
}

/// Memory of both sides: everything inline, or named if there is a region.
struct BenchMemory {
    region: Option<Bytes>,
    /// Named frames on their way.
    frames: VecDeque<PacketBuf>,
    inline: InlineMemory,
}

impl EncodeMemory for BenchMemory {
    fn name_bytes(&mut self, bytes: Bytes) -> Result<MemoryRange, Bytes> {
        let start = self.region.as_ref().map(|region| region.as_ptr() as usize);
        let offset = start.and_then(|start| (bytes.as_ptr() as usize).checked_sub(start));
        match (offset, u32::try_from(bytes.len())) {
            (Some(offset), Ok(len)) => Ok(MemoryRange { region: 0, offset: offset as u64, len }),
            _ => Err(bytes),
        }
    }

    fn name_frame(&mut self, frame: PacketBuf) -> Result<MemoryRange, PacketBuf> {
        if self.region.is_none() {
            return Err(frame);
        }
        let len = u32::try_from(frame.len()).unwrap_or(0);
        self.frames.push_back(frame);
        Ok(MemoryRange { region: 1, offset: 0, len })
    }
}

impl DecodeMemory for BenchMemory {
    fn bytes(&mut self, range: MemoryRange) -> Option<Bytes> {
        let start = usize::try_from(range.offset).ok()?;
        let end = start.checked_add(range.len as usize)?;
        let region = self.region.as_ref().filter(|region| end <= region.len())?;
        Some(region.slice(start..end))
    }

    fn frame(&mut self, range: MemoryRange) -> Option<PacketBuf> {
        self.frames.pop_front().filter(|frame| frame.len() == range.len as usize)
    }

    fn copy_frame(&mut self, bytes: &[u8]) -> Option<PacketBuf> {
        self.inline.copy_frame(bytes)
    }
}

/// Makes descriptors without allocating.
struct DescriptorSource {
    region: Bytes,
    pool: PacketPool,
}

impl DescriptorSource {
    fn transmit(&mut self, file: bool) -> Op {
        let mut parts = TransmitParts::new();
        parts.push(TransmitPart::Host(self.region.slice(4096..4096 + SMALL_BYTES)));
        if file {
            let extent = FileExtent { file: FileId(3), offset: 1 << 20, len: 64 << 10 };
            parts.push(TransmitPart::File(extent));
        }
        Op::Transmit(Transmit {
            flow: FlowId(77),
            header: PacketHeader::zeroed(66, 14, 34).unwrap_or_else(|_| PacketHeader::empty()),
            segment_size: 1448,
            parts,
            timestamp: None,
            echo: None,
            retransmission: false,
            quic: None,
        })
    }

    fn received(&mut self) -> Event {
        let packet = self.pool.take(SEGMENT_BYTES + 66).unwrap_or_else(PacketBuf::empty);
        Event::Received(ReceivedFrame::new(packet, Checksum::Good, 9, 0))
    }
}
