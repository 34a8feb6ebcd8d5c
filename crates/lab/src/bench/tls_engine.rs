//! `outboard-lab bench tls-engine`: the device's TLS engine alone, against single calls of aws-lc
//! in the same run.
//!
//! A device gets operations and frames in a loop, without host, rings or link. The reference is the
//! provider's [`Aead::seal`] and [`Aead::open`], which call aws-lc directly, in place and with all
//! data in the cache: of a whole record, and for packets also of a packet's bytes, as if each
//! packet were a record. Engine and reference take turns of 15 MiB, and a ratio is the
//! median of the rounds' ratios, since the speed of a core changes within seconds. Then the rate at
//! which contexts are created.

use std::hint::black_box;
use std::sync::Arc;

use abi::crypto::{Aead, CryptoProvider as _, Suite};
use abi::l5o::{L5oContent, L5oCreate, L5oDirection, L5oId, L5oState, RecordRange, TlsState};
use abi::link::{LinkCaps, RxFrame};
use abi::{Checksum, Event, FlowId, Op, PacketHeader, Transmit, TransmitPart, TransmitParts};
use base::{Duration, Instant, Prng, SeqNum};
use bytes::Bytes;
use clap::Args;
use host::TlsVersion;
use io::clock::MonotonicClock;
use nic::{Device, DeviceConfig, L5oConfig};
use serde_json::{Value, json};
use wire::emit::{EthernetAddrs, IpHeader, tcp_headers};
use wire::frame::protocol;
use wire::tcp::{TcpFlags, TcpHeader};
use wire::tls::TlsRecordRun;
use wire::{Endpoint, Tuple};

use super::experiment::{BenchReport, Benchmark, Experiment, Fields, median, single_run};
use super::stream;
use super::testbed::check_counter;
use cli::Failure;

/// Content of a full record in bytes.
pub(super) const RECORD_CONTENT_BYTES: u32 = 16 << 10;
/// Bytes that a record adds to its content: header, content type and tag.
pub(super) const RECORD_OVERHEAD_BYTES: u32 = 22;
/// Records per transmit.
const RECORDS: u32 = 16;
/// Payload of a packet in bytes.
const SEGMENT: u16 = 1448;
/// Records in each turn of engine and reference: 15 MiB.
const TURN_RECORDS: u32 = 960;
/// Content of the records of a turn in bytes.
const TURN_BYTES: usize = (TURN_RECORDS * RECORD_CONTENT_BYTES) as usize;
/// Bytes that are decrypted between two readings of the clock, by engine and reference. They stay
/// in the cache of the core.
const BATCH_BYTES: usize = 128 << 10;
const NONCE: [u8; 12] = [5; 12];
const HEADER: [u8; 5] = [23, 3, 3, 0x40, 0x11];
/// Rounds of each row. The first warms up and is not counted.
const ROUNDS: usize = 32;
/// Contexts created in a row.
const CONTEXTS: u64 = 20_000;

/// Arguments of `outboard-lab bench tls-engine`.
#[derive(Debug, Args)]
pub(crate) struct TlsEngineArgs {}

pub(super) const SUITES: [Suite; 3] = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305];

impl Benchmark for TlsEngineArgs {
    fn run(&self, report: &mut BenchReport) -> Result<(), Failure> {
        let clock = MonotonicClock::new();
        let experiment = Experiment {
            groups: SUITES
                .map(|suite| TlsEngineWork::EVERY.map(|work| (suite, work)).into())
                .into(),
            repeats: 1,
            measure: &mut |(suite, work): (Suite, TlsEngineWork)| work.measure(&clock, suite),
            // The measurement counts the records that were encrypted or verified.
            took_path: &|_, _| true,
            combine: &single_run,
            fields: &|row, _| {
                let ((suite, work), figures) = (row.setting, &row.figures);
                Fields::new()
                    .show("suite", "suite", format!("{suite:?}"))
                    .show("work", "what", work.name())
                    .column("GB/s", figures.engine * 1e-9)
                    .column("aws-lc", figures.same_size * 1e-9)
                    .field("bytes_per_s", figures.engine)
                    .show("ratio", "ratio", figures.ratio)
                    .show("to record", "ratio_to_record", figures.ratio_to_record)
            },
        };
        let rows = report.measure("rows", experiment)?;
        let worst = |of: fn(TlsEngineWork) -> bool| {
            let rows = rows.iter().filter(|row| of(row.setting.1));
            rows.map(|row| row.figures.ratio).fold(f64::INFINITY, f64::min)
        };
        report.set(
            "headline",
            json!({
                "whole_records_worst": worst(|work| !matches!(work, TlsEngineWork::Decrypt(_))),
                "packets_worst": worst(|work| matches!(work, TlsEngineWork::Decrypt(_))),
            }),
        );
        let contexts = contexts(&clock)?;
        report.line(format!("\ncontexts: {contexts:#}"));
        report.set("contexts", contexts);
        Ok(())
    }
}

/// Work of the engine.
#[derive(Clone, Copy, Debug)]
enum TlsEngineWork {
    Encrypt,
    /// Decryption of frames that hold several records.
    DecryptMerged,
    /// Decryption of packets, in this order.
    Decrypt(PacketOrder),
}

impl TlsEngineWork {
    const EVERY: [Self; 4] = [
        Self::Encrypt,
        Self::DecryptMerged,
        Self::Decrypt(PacketOrder::InOrder),
        Self::Decrypt(PacketOrder::Shuffled),
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Encrypt => "encryption, whole records",
            Self::DecryptMerged => "decryption, merged frames",
            Self::Decrypt(PacketOrder::InOrder) => "decryption, 1,448-byte packets in order",
            Self::Decrypt(PacketOrder::Shuffled) => "decryption, 1,448-byte packets shuffled",
        }
    }

    fn measure(self, clock: &MonotonicClock, suite: Suite) -> Result<TlsEngineFigures, Failure> {
        let record = RECORD_CONTENT_BYTES as usize + 1;
        let (mut engine, mut record_calls, mut packet_calls) = match self {
            Self::Encrypt => (
                EngineLoop::Transmit(Box::new(EngineTransmit::new(suite))),
                SingleCalls::new(suite, AeadCall::Seal, record),
                None,
            ),
            Self::DecryptMerged => (
                EngineLoop::Receive(EngineReceive::new(suite, 0, PacketOrder::InOrder)),
                SingleCalls::new(suite, AeadCall::Open, record),
                None,
            ),
            Self::Decrypt(order) => (
                EngineLoop::Receive(EngineReceive::new(suite, SEGMENT, order)),
                SingleCalls::new(suite, AeadCall::Open, record),
                Some(SingleCalls::new(suite, AeadCall::Open, SEGMENT.into())),
            ),
        };
        let mut rounds = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let engine = engine.turn(clock)?;
            let record = record_calls.turn(clock);
            let same_size = packet_calls.as_mut().map_or(record, |calls| calls.turn(clock));
            rounds.push([engine, record, same_size]);
        }
        let median_of = |of: fn(&[f64; 3]) -> f64| median(rounds.iter().skip(1).map(of));
        Ok(TlsEngineFigures {
            engine: median_of(|[engine, _, _]| *engine),
            same_size: median_of(|[_, _, same_size]| *same_size),
            ratio: median_of(|[engine, _, same_size]| engine / same_size),
            ratio_to_record: median_of(|[engine, record, _]| engine / record),
        })
    }
}

/// Medians of the rounds of a row; rates in bytes per second.
#[derive(Debug)]
struct TlsEngineFigures {
    engine: f64,
    /// A single call for the unit of this work: a record or a packet.
    same_size: f64,
    /// Engine to `same_size`.
    ratio: f64,
    /// Engine to a single call for a record.
    ratio_to_record: f64,
}

/// Order in which packets arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PacketOrder {
    InOrder,
    /// The packets of each 32 KiB are shuffled.
    Shuffled,
}

/// Returns bytes per second.
fn per_second(bytes: usize, took: Duration) -> f64 {
    bytes as f64 * 1e9 / took.as_nanos() as f64
}

fn key(suite: Suite) -> Box<dyn Aead> {
    crypto::Provider.aead(suite, &[1; 32][..suite.key_bytes()]).expect("the length is the suite's")
}

/// Call of the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AeadCall {
    Seal,
    Open,
}

/// The reference: single calls of aws-lc for texts of one size.
struct SingleCalls {
    key: Box<dyn Aead>,
    call: AeadCall,
    /// A text, with its tag if it is decrypted.
    text: Vec<u8>,
    /// Copies of `text`, since decryption in place destroys it: several, since reading the clock
    /// takes as long as a call for a short one.
    batch: Vec<Vec<u8>>,
    bytes: usize,
}

impl SingleCalls {
    fn new(suite: Suite, call: AeadCall, bytes: usize) -> Self {
        let key = key(suite);
        let mut text = vec![1; bytes];
        if call == AeadCall::Open {
            let tag = key.seal(&NONCE, &HEADER, &mut text);
            text.extend(tag);
        }
        let batch = vec![text.clone(); BATCH_BYTES / bytes];
        Self { key, call, text, batch, bytes }
    }

    /// Returns the rate of a turn in bytes per second.
    fn turn(&mut self, clock: &MonotonicClock) -> f64 {
        let (mut took, mut done) = (Duration::ZERO, 0);
        while done < TURN_BYTES {
            if self.call == AeadCall::Open {
                self.batch.iter_mut().for_each(|text| text.copy_from_slice(&self.text));
            }
            let from = clock.now();
            for text in &mut self.batch {
                match self.call {
                    // One text, which stays in the first cache.
                    AeadCall::Seal => {
                        black_box(self.key.seal(&NONCE, &HEADER, &mut self.text));
                    }
                    AeadCall::Open => {
                        black_box(self.key.open(&NONCE, &HEADER, text)).expect("it was sealed so");
                    }
                }
            }
            took += clock.now().since(from);
            done += self.batch.len() * self.bytes;
        }
        per_second(done, took)
    }
}

fn device(mtu: u16, segmentation: bool) -> Device {
    let mut config = DeviceConfig::new(LOCAL_MAC);
    config.file = None;
    config.transmit_bytes_max = nic::LONG_TRANSMIT_BYTES;
    config.l5o =
        Some(L5oConfig { contexts_max: 1 << 17, ..L5oConfig::new(Arc::new(crypto::Provider)) });
    Device::new(config, LinkCaps { segmentation, udp_segmentation: false, checksum: true, mtu })
}

pub(super) const LOCAL_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const FLOW: FlowId = FlowId(1);

pub(super) fn create(suite: Suite, context: u64, direction: L5oDirection) -> Op {
    let state =
        TlsState { version: TlsVersion::Tls13, suite, key: [1; 32].into(), iv: [2; 12], number: 0 };
    Op::L5oCreate(Box::new(L5oCreate {
        context: L5oId(context),
        flow: FLOW,
        direction,
        tcpsn: SeqNum(0),
        state: L5oState::Tls(state),
    }))
}

fn tuple(port: u16) -> Tuple {
    Tuple {
        local: Endpoint { addr: [10, 0, 0, 1].into(), port: 80 },
        remote: Endpoint { addr: [10, 0, 0, 2].into(), port },
    }
}

/// Returns the headers of a packet from the peer of [`tuple()`].
fn header(seq: u32) -> PacketHeader {
    let Tuple { local, remote } = tuple(40_000);
    let ip = IpHeader {
        source: remote.addr,
        destination: local.addr,
        protocol: protocol::TCP,
        ecn: 0,
        hop_limit: 64,
    };
    let link = EthernetAddrs { source: [2, 0, 0, 0, 0, 2], destination: LOCAL_MAC };
    let segment = TcpHeader {
        source: remote.port,
        destination: local.port,
        seq: SeqNum(seq),
        flags: TcpFlags::ACK,
        window: 1000,
        ..TcpHeader::default()
    };
    let l4 = 14 + ip.len();
    let mut header = PacketHeader::zeroed(l4 + segment.header_len(), 14, l4).expect("it fits");
    tcp_headers(&link, &ip, &segment, 0, header.as_mut_slice());
    header
}

/// Returns a transmit of `records` whole records.
pub(super) fn transmit_records(number: u64, seq: u32, content: &Bytes, records: u32) -> Op {
    let bytes = records * RECORD_CONTENT_BYTES;
    let run = TlsRecordRun {
        content_bytes: bytes.into(),
        record_content_bytes: RECORD_CONTENT_BYTES,
        overhead: RECORD_OVERHEAD_BYTES,
    };
    let mut parts = TransmitParts::new();
    parts.push(TransmitPart::Records(Box::new(RecordRange {
        context: L5oId(1),
        content: L5oContent::Host(content.slice(..bytes as usize)),
        prefix: 0,
        number,
        kind: 23,
        run,
        skip: 0,
        len: u32::try_from(run.wire_len()).unwrap_or(u32::MAX),
    })));
    Op::Transmit(Transmit {
        flow: FLOW,
        header: header(seq),
        segment_size: SEGMENT,
        parts,
        timestamp: None,
        echo: None,
        retransmission: false,
        quic: None,
    })
}

/// Work of the engine in turns.
enum EngineLoop {
    Transmit(Box<EngineTransmit>),
    Receive(EngineReceive),
}

impl EngineLoop {
    /// Returns the rate of a turn in bytes per second.
    fn turn(&mut self, clock: &MonotonicClock) -> Result<f64, Failure> {
        match self {
            Self::Transmit(transmit) => transmit.turn(clock),
            Self::Receive(receive) => receive.turn(clock),
        }
    }
}

/// Encryption of whole records.
struct EngineTransmit {
    device: Device,
    content: Bytes,
    /// Next record.
    number: u64,
    seq: u32,
}

impl EngineTransmit {
    fn new(suite: Suite) -> Self {
        let mut device = device(1500, true);
        device.handle_op(Instant::ZERO, 0, create(suite, 1, L5oDirection::Transmit));
        Self { device, content: Bytes::from(stream::content()), number: 0, seq: 0 }
    }

    fn turn(&mut self, clock: &MonotonicClock) -> Result<f64, Failure> {
        let from = clock.now();
        for _ in 0..TURN_RECORDS / RECORDS {
            let transmit = transmit_records(self.number, self.seq, &self.content, RECORDS);
            self.device.handle_op(Instant::ZERO, 0, transmit);
            while let Some(frame) = self.device.poll_frame(Instant::ZERO) {
                black_box(frame);
            }
            self.number += u64::from(RECORDS);
            self.seq =
                self.seq.wrapping_add(RECORDS * (RECORD_CONTENT_BYTES + RECORD_OVERHEAD_BYTES));
        }
        let took = clock.now().since(from);
        let encrypted = self.number * u64::from(RECORD_CONTENT_BYTES + RECORD_OVERHEAD_BYTES);
        check_counter(&self.device, "tx_tls_encrypted_bytes", encrypted)?;
        Ok(per_second(TURN_BYTES, took))
    }
}

/// Returns frames that contain at least `records` records: merged frames of three records each if
/// `segment_size` is 0, otherwise packets.
fn frames(suite: Suite, segment_size: u16, records: u32) -> Vec<Vec<u8>> {
    let merged = segment_size == 0;
    let mut device = device(1500, merged);
    device.handle_op(Instant::ZERO, 0, create(suite, 1, L5oDirection::Transmit));
    let content = Bytes::from(stream::content());
    let (mut all, mut number, mut seq) = (Vec::new(), 0, 0_u32);
    // Three records fit a frame of 64 KiB. Packets are cut across transmits, as TCP does.
    let per_frame = if merged { 3 } else { RECORDS };
    while number < u64::from(records) {
        device.handle_op(Instant::ZERO, 0, transmit_records(number, seq, &content, per_frame));
        while let Some(frame) = device.poll_frame(Instant::ZERO) {
            let mut bytes = vec![0; frame.len()];
            frame.copy_to(&mut bytes);
            all.push(bytes);
        }
        number += u64::from(per_frame);
        seq = seq.wrapping_add(per_frame * (RECORD_CONTENT_BYTES + RECORD_OVERHEAD_BYTES));
    }
    all
}

/// Decryption of received frames.
struct EngineReceive {
    suite: Suite,
    frames: Vec<Vec<u8>>,
    /// Frames that are handed in between two readings of the clock.
    batch: usize,
}

impl EngineReceive {
    /// Frames are as in [`frames()`].
    fn new(suite: Suite, segment_size: u16, order: PacketOrder) -> Self {
        let mut frames = frames(suite, segment_size, TURN_RECORDS);
        if order == PacketOrder::Shuffled {
            let mut prng = Prng::new(3);
            for some in frames.chunks_mut(22) {
                for at in (1..some.len()).rev() {
                    let other = usize::try_from(prng.below(at as u64 + 1)).unwrap_or(0);
                    some.swap(at, other);
                }
            }
        }
        let batch = (BATCH_BYTES / frames[0].len()).max(1);
        Self { suite, frames, batch }
    }

    /// A record number does not recur during a context's life, so each turn uses a new device,
    /// whose creation is not counted.
    fn turn(&self, clock: &MonotonicClock) -> Result<f64, Failure> {
        let mut device = device(1500, true);
        let direction = L5oDirection::Receive(tuple(40_000));
        device.handle_op(Instant::ZERO, 0, create(self.suite, 1, direction));
        let (mut took, mut verified) = (Duration::ZERO, 0);
        let (mut packets, mut done) = (Vec::new(), Vec::new());
        // From buffers that are recycled like those of a ring.
        for some in self.frames.chunks(self.batch) {
            packets.extend(some.iter().filter_map(|frame| device.pool().copy(frame)));
            let from = clock.now();
            for packet in packets.drain(..) {
                let frame = RxFrame { packet, checksum: Checksum::Good, segment_size: 0 };
                device.handle_frame(Instant::ZERO, frame);
                done.extend(device.poll_queue_event(0));
            }
            took += clock.now().since(from);
            for event in done.drain(..) {
                let Event::Received(received) = event else { continue };
                let right =
                    received.metadata.decrypted.map_or(0..0, |decrypted| decrypted.verified);
                verified += right.end - right.start;
                device.pool().put(received.packet);
            }
        }
        if verified < u64::from(TURN_RECORDS) - 10 {
            return Err(Failure::System(format!(
                "only {verified} of {TURN_RECORDS} records were verified"
            )));
        }
        Ok(per_second(TURN_BYTES, took))
    }
}

/// Returns the rate of context creation, and the duration of one.
fn contexts(clock: &MonotonicClock) -> Result<Value, Failure> {
    let mut rows = serde_json::Map::new();
    for suite in SUITES {
        let mut device = device(1500, true);
        let ops: Vec<Op> =
            (0..CONTEXTS).map(|n| create(suite, n + 1, L5oDirection::Transmit)).collect();
        let mut each = Vec::with_capacity(ops.len());
        let from = clock.now();
        for op in ops {
            let begun = clock.now();
            device.handle_op(Instant::ZERO, 0, op);
            each.push(clock.now().since(begun));
        }
        let took = clock.now().since(from);
        check_counter(&device, "tx_tls_ctx", CONTEXTS)?;
        each.sort_unstable();
        let micros = |at: usize| each[at].as_nanos() as f64 * 1e-3;
        rows.insert(
            format!("{suite:?}"),
            json!({
                "installed_per_s": CONTEXTS as f64 * 1e9 / took.as_nanos() as f64,
                "median_us": micros(each.len() / 2),
                "p99_us": micros(each.len() * 99 / 100),
            }),
        );
    }
    Ok(Value::Object(rows))
}
