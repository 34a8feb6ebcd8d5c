//! `outboard-lab bench tls-engine`: the device's TLS engine alone, against single calls of aws-lc
//! in the same run.
//!
//! A device gets operations and frames in a loop, without host, rings or link. The reference is the
//! provider's [`Aead::seal`] and [`Aead::open`], which call aws-lc directly, in place and with all
//! data in the cache: of a whole record, and for packets also of a packet's bytes, as if each
//! packet were a record. Then the rate at which contexts are created.

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

use super::experiment::{BenchReport, Benchmark, Experiment, Fields, single_run};
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
/// Texts that are decrypted between two readings of the clock; they stay in the cache.
const CALLS: usize = 8;
const NONCE: [u8; 12] = [5; 12];
const HEADER: [u8; 5] = [23, 3, 3, 0x40, 0x11];
/// Frames that are handed in between two readings of the clock.
const BATCH: usize = 64;
/// Duration of a round.
const ROUND: Duration = Duration::from_millis(150);
/// Rounds of each figure; the best counts.
const ROUNDS: usize = 5;
/// Contexts created in a row.
const CONTEXTS: u64 = 20_000;

/// Arguments of `outboard-lab bench tls-engine`.
#[derive(Debug, Args)]
pub(crate) struct TlsEngineArgs {}

pub(super) const SUITES: [Suite; 3] = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305];

impl Benchmark for TlsEngineArgs {
    fn run(&self, report: &mut BenchReport) -> Result<(), Failure> {
        let (clock, mut last) = (MonotonicClock::new(), None);
        let experiment = Experiment {
            groups: SUITES
                .map(|suite| TlsEngineWork::EVERY.map(|work| (suite, work)).into())
                .into(),
            repeats: 1,
            measure: &mut |(suite, work): (Suite, TlsEngineWork)| {
                let known = last.filter(|&(of, _)| of == suite);
                let (_, calls) =
                    known.unwrap_or_else(|| (suite, SingleCalls::measure(&clock, suite)));
                last = Some((suite, calls));
                work.measure(&clock, suite, calls)
            },
            // The measurement counts the records that were encrypted or verified.
            took_path: &|_, _| true,
            combine: &single_run,
            fields: &|row, _| {
                let ((suite, work), TlsEngineFigures { engine, record, same_size }) =
                    (row.setting, &row.figures);
                Fields::new()
                    .show("suite", "suite", format!("{suite:?}"))
                    .show("work", "what", work.name())
                    .column("GB/s", engine * 1e-9)
                    .column("aws-lc", same_size * 1e-9)
                    .field("bytes_per_s", *engine)
                    .show("ratio", "ratio", engine / same_size)
                    .show("to record", "ratio_to_record", engine / record)
            },
        };
        let rows = report.measure("rows", experiment)?;
        let worst = |of: fn(TlsEngineWork) -> bool| {
            let rows = rows.iter().filter(|row| of(row.setting.1));
            let ratios = rows.map(|row| row.figures.engine / row.figures.same_size);
            ratios.fold(f64::INFINITY, f64::min)
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

    fn measure(
        self,
        clock: &MonotonicClock,
        suite: Suite,
        calls: SingleCalls,
    ) -> Result<TlsEngineFigures, Failure> {
        let SingleCalls { seal, open, open_packet } = calls;
        let (engine, record, same_size) = match self {
            Self::Encrypt => (transmit(clock, suite)?, seal, seal),
            Self::DecryptMerged => (receive(clock, suite, 0, PacketOrder::InOrder)?, open, open),
            Self::Decrypt(order) => (receive(clock, suite, SEGMENT, order)?, open, open_packet),
        };
        Ok(TlsEngineFigures { engine, record, same_size })
    }
}

/// Results in bytes per second.
#[derive(Debug)]
struct TlsEngineFigures {
    engine: f64,
    /// A single call for a record.
    record: f64,
    /// A single call for the unit of this work: a record or a packet.
    same_size: f64,
}

/// Rates of single calls of aws-lc, in bytes per second.
#[derive(Clone, Copy, Debug)]
struct SingleCalls {
    /// Encryption of a record.
    seal: f64,
    /// Decryption of a record.
    open: f64,
    /// Decryption of as many bytes as a packet has.
    open_packet: f64,
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

/// Returns bytes per second of the best round; `work` returns the number of bytes that it
/// processed.
fn rate(clock: &MonotonicClock, mut work: impl FnMut() -> usize) -> f64 {
    let mut best = 0.0_f64;
    for _ in 0..ROUNDS {
        let (from, mut bytes) = (clock.now(), 0);
        while clock.now().since(from) < ROUND {
            bytes += work();
        }
        best = best.max(per_second(bytes, clock.now().since(from)));
    }
    best
}

fn key(suite: Suite) -> Box<dyn Aead> {
    crypto::Provider.aead(suite, &[1; 32][..suite.key_bytes()]).expect("the length is the suite's")
}

impl SingleCalls {
    fn measure(clock: &MonotonicClock, suite: Suite) -> Self {
        let key = key(suite);
        let mut text = vec![1; RECORD_CONTENT_BYTES as usize + 1];
        let seal = rate(clock, || {
            black_box(key.seal(&NONCE, &HEADER, &mut text));
            text.len()
        });
        let [open, open_packet] = [text.len(), usize::from(SEGMENT)].map(|len| {
            let text = &text[..len];
            // A batch of texts, since reading the clock takes as long as a short one.
            let mut sealed = text.to_vec();
            let tag = key.seal(&NONCE, &HEADER, &mut sealed);
            sealed.extend(tag);
            let mut batch = vec![sealed.clone(); CALLS];
            let (mut best, mut began) = (0.0_f64, clock.now());
            let end = began + ROUND * ROUNDS as u64;
            while began < end {
                batch.iter_mut().for_each(|text| text.copy_from_slice(&sealed));
                let from = clock.now();
                for text in &mut batch {
                    black_box(key.open(&NONCE, &HEADER, text)).expect("it was sealed so");
                }
                best = best.max(per_second(CALLS * len, clock.now().since(from)));
                began = clock.now();
            }
            best
        });
        Self { seal, open, open_packet }
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

fn transmit(clock: &MonotonicClock, suite: Suite) -> Result<f64, Failure> {
    let mut device = device(1500, true);
    let content = Bytes::from(stream::content());
    device.handle_op(Instant::ZERO, 0, create(suite, 1, L5oDirection::Transmit));
    let (mut number, mut seq) = (0, 0_u32);
    let rate = rate(clock, || {
        device.handle_op(Instant::ZERO, 0, transmit_records(number, seq, &content, RECORDS));
        while let Some(frame) = device.poll_frame(Instant::ZERO) {
            black_box(frame);
        }
        number += u64::from(RECORDS);
        seq = seq.wrapping_add(RECORDS * (RECORD_CONTENT_BYTES + RECORD_OVERHEAD_BYTES));
        (RECORDS * RECORD_CONTENT_BYTES) as usize
    });
    check_counter(
        &device,
        "tx_tls_encrypted_bytes",
        number * u64::from(RECORD_CONTENT_BYTES + RECORD_OVERHEAD_BYTES),
    )?;
    Ok(rate)
}

/// Returns frames that contain at least `records` records: merged frames of three records each if
/// `segment_size` is 0, otherwise packets.
fn frames(suite: Suite, segment_size: u16, records: u64) -> Vec<Vec<u8>> {
    let merged = segment_size == 0;
    let mut device = device(1500, merged);
    device.handle_op(Instant::ZERO, 0, create(suite, 1, L5oDirection::Transmit));
    let content = Bytes::from(stream::content());
    let (mut all, mut number, mut seq) = (Vec::new(), 0, 0_u32);
    // Three records fit a frame of 64 KiB. Packets are cut across transmits, as TCP does.
    let per_frame = if merged { 3 } else { RECORDS };
    while number < records {
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

/// Returns the rate of decryption. A record number does not recur during a context's life, so each
/// round uses a new device, whose creation is not counted.
fn receive(
    clock: &MonotonicClock,
    suite: Suite,
    segment_size: u16,
    order: PacketOrder,
) -> Result<f64, Failure> {
    let mut all = frames(suite, segment_size, 960);
    if order == PacketOrder::Shuffled {
        let mut prng = Prng::new(3);
        for some in all.chunks_mut(22) {
            for at in (1..some.len()).rev() {
                let other = usize::try_from(prng.below(at as u64 + 1)).unwrap_or(0);
                some.swap(at, other);
            }
        }
    }
    let bytes = 960 * RECORD_CONTENT_BYTES as usize;
    let mut best = 0.0_f64;
    for _ in 0..2 * ROUNDS {
        let mut device = device(1500, true);
        device.handle_op(Instant::ZERO, 0, create(suite, 1, L5oDirection::Receive(tuple(40_000))));
        let (mut took, mut verified) = (Duration::ZERO, 0);
        let (mut packets, mut done) = (Vec::new(), Vec::new());
        // A batch at a time, from buffers that are recycled like those of a ring.
        for some in all.chunks(BATCH) {
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
                let right = received.metadata.decrypted.map_or(0..0, |opened| opened.verified);
                verified += right.end - right.start;
                device.pool().put(received.packet);
            }
        }
        if verified < 950 {
            return Err(Failure::System(format!("only {verified} of 960 records were verified")));
        }
        best = best.max(per_second(bytes, took));
    }
    Ok(best)
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
