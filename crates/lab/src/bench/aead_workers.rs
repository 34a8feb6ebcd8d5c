//! `outboard-lab bench aead-workers`: encryption and decryption by the device with crypto workers,
//! against the device alone (NiQUIC section 3.3, parallel AEAD modules).
//!
//! A device gets operations and frames in a loop, without host, rings or link, as in
//! [`super::tls_engine`]. Its workers are the threads of the product. The settings of a cipher and
//! a kind of work take turns. A turn of the loop is a batch of a driver: several transmits and then
//! their frames, or 64 received frames and then their events.
//!
//! Workers run beside the device only if cores are free. The last row of a cipher and a kind of
//! work does not depend on this: a model of a worker runs the jobs while the device waits, and
//! measures their time. The rest is the device's own share of the time, which bounds the gain of
//! any number of workers.

use std::collections::{BTreeMap, VecDeque};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use abi::crypto::Suite;
use abi::l5o::L5oDirection;
use abi::link::{LinkCaps, RxFrame};
use abi::quic::{
    QuicAdd, QuicConnectionId, QuicDirection, QuicId, QuicKeys, QuicProtect, QuicRouteKey,
    QuicTxPacket,
};
use abi::{Checksum, Event, FlowId, Op, PacketHeader, Transmit, TransmitPart, TransmitParts};
use base::counters::collect_counters;
use base::{Duration, Instant};
use bytes::Bytes;
use clap::Args;
use io::clock::MonotonicClock;
use nic::{CryptoJob, CryptoWorkers, Device, DeviceConfig, L5oConfig, QuicConfig};
use serde_json::Value;
use stack::CryptoThreads;
use wire::emit::{EthernetAddrs, IpHeader, udp_template};
use wire::frame::protocol;

use super::experiment::{
    BenchReport, Benchmark, Experiment, Fields, ResultRow, find_figures, median_by,
};
use super::stream;
use super::tls_engine::{self, LOCAL_MAC, RECORD_CONTENT_BYTES, RECORD_OVERHEAD_BYTES, SUITES};
use cli::Failure;

/// Most workers that are measured.
const WORKERS_MAX: usize = 7;
/// Duration of a run, and of the part before it that is not counted.
const ROUND: Duration = Duration::from_millis(150);
const WARM_UP: Duration = Duration::from_millis(30);
/// Runs of each setting.
const REPEATS: usize = 5;
/// Transmits between two polls of frames.
const TRANSMITS: usize = 4;
/// Records of a transmit: 256 KiB.
const RECORDS: u32 = 16;
/// Datagrams of a transmit: nearly 64 KiB.
const DATAGRAMS: usize = 44;
/// Frames that are handed in between two polls of events, and those that are received in a loop.
const BATCH: usize = 64;
const FRAMES: usize = 1024;
const ID: [u8; 8] = *b"workers!";
const PORT: u16 = 443;
const QUIC: QuicId = QuicId(1);

/// Arguments of `outboard-lab bench aead-workers`.
#[derive(Debug, Args)]
pub(crate) struct AeadWorkersArgs {
    /// Most workers to measure [default: one less than the cores, 1 to 7]
    #[arg(long, value_name = "N")]
    workers: Option<u8>,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
struct WorkersSetting {
    suite: Suite,
    work: AeadWork,
    /// Number of threads; `None` for the model that measures their time.
    workers: Option<u8>,
}

/// Kinds of work, with the size of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AeadWork {
    SealDatagrams(u16),
    OpenDatagrams(u16),
    SealRecords,
}

/// Result of a run.
#[derive(Debug)]
struct WorkersFigures {
    bytes_per_s: f64,
    /// Share of the time that is not spent with jobs; measured with the model only.
    own_share: Option<f64>,
    counters: BTreeMap<&'static str, u64>,
}

/// Bytes and time of a loop.
#[derive(Clone, Copy, Debug)]
struct WorkRate {
    bytes: usize,
    took: Duration,
}

/// A model of a worker: runs jobs when it is waited for, and measures their time.
struct TimedWorker {
    clock: MonotonicClock,
    jobs: VecDeque<CryptoJob>,
    spent_ns: Arc<AtomicU64>,
}

impl CryptoWorkers for TimedWorker {
    fn workers(&self) -> usize {
        1
    }

    fn post(&mut self, job: CryptoJob) -> Result<(), CryptoJob> {
        self.jobs.push_back(job);
        Ok(())
    }

    fn poll(&mut self) -> Option<CryptoJob> {
        None
    }

    fn wait(&mut self) -> Option<CryptoJob> {
        let mut job = self.jobs.pop_front()?;
        let from = self.clock.now();
        job.run();
        let took = self.clock.now().since(from).as_nanos();
        self.spent_ns.fetch_add(took, Ordering::Relaxed);
        Some(job)
    }
}

impl Benchmark for AeadWorkersArgs {
    fn run(&self, report: &mut BenchReport) -> Result<(), Failure> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let default = u8::try_from((cores - 1).clamp(1, WORKERS_MAX)).unwrap_or(1);
        let most = self.workers.unwrap_or(default);
        report.set("cores", cores);
        let clock = MonotonicClock::new();
        let group = |suite, work| {
            let settings = (0..=most).map(Some).chain([None]);
            settings.map(|workers| WorkersSetting { suite, work, workers }).collect::<Vec<_>>()
        };
        let groups =
            SUITES.iter().flat_map(|&suite| AeadWork::EVERY.map(|work| group(suite, work)));
        let experiment = Experiment {
            groups: groups.collect(),
            repeats: REPEATS,
            measure: &mut |setting: WorkersSetting| setting.measure(&clock),
            took_path: &|setting, figures| {
                (setting.workers != Some(0)) == (figures.counters["crypto_jobs_worker"] > 0)
            },
            combine: &|runs| median_by(runs, |run| run.bytes_per_s),
            fields: &|row, first| {
                let WorkersSetting { suite, work, workers } = row.setting;
                let count = |name| row.figures.counters[name];
                let jobs = count("crypto_jobs_worker") + count("crypto_jobs_inline");
                let share = count("crypto_jobs_worker") as f64 / jobs.max(1) as f64;
                Fields::new()
                    .show("suite", "suite", format!("{suite:?}"))
                    .show("work", "what", work.name())
                    .show("workers", "workers", workers)
                    .column("GB/s", row.figures.bytes_per_s * 1e-9)
                    .field("bytes_per_s", row.figures.bytes_per_s)
                    .show("ratio", "ratio", row.figures.bytes_per_s / first.figures.bytes_per_s)
                    .show("by workers", "jobs_by_workers", share)
                    .show("own share", "own_share", row.figures.own_share)
            },
        };
        let rows = report.measure("rows", experiment)?;
        let with_most = rows.iter().filter(|row| row.setting.workers == Some(most));
        let ratio = |row: &ResultRow<WorkersSetting, WorkersFigures>| {
            let WorkersSetting { suite, work, .. } = row.setting;
            let alone = find_figures(&rows, |other| {
                (other.suite, other.work, other.workers) == (suite, work, Some(0))
            })?;
            let ratio = row.figures.bytes_per_s / alone.bytes_per_s;
            Some((format!("{suite:?}, {}", work.name()), Value::from(ratio)))
        };
        report.set("headline", Value::Object(with_most.filter_map(ratio).collect()));
        report.line(format!("\n{cores} cores; a row with as many workers as cores shares them"));
        Ok(())
    }
}

impl AeadWork {
    const EVERY: [Self; 5] = [
        Self::SealDatagrams(1200),
        Self::SealDatagrams(1452),
        Self::OpenDatagrams(1200),
        Self::OpenDatagrams(1452),
        Self::SealRecords,
    ];

    fn name(self) -> String {
        match self {
            Self::SealDatagrams(size) => format!("encryption, QUIC, {size} bytes"),
            Self::OpenDatagrams(size) => format!("decryption, QUIC, {size} bytes"),
            Self::SealRecords => "encryption, TLS records of 16 KiB".to_owned(),
        }
    }
}

impl WorkersSetting {
    fn measure(self, clock: &MonotonicClock) -> Result<WorkersFigures, Failure> {
        let Self { suite, work, workers } = self;
        let spent_ns = Arc::<AtomicU64>::default();
        let model = || {
            let (clock, spent_ns) = (*clock, Arc::clone(&spent_ns));
            Box::new(TimedWorker { clock, jobs: VecDeque::new(), spent_ns })
        };
        let boxed: Box<dyn CryptoWorkers> = match workers {
            Some(count) => Box::new(CryptoThreads::start(0, count)?),
            None => model(),
        };
        let mut device = device(true).with_crypto_workers(boxed);
        let WorkRate { bytes, took } = match work {
            AeadWork::SealDatagrams(size) => {
                device.handle_op(Instant::ZERO, 0, add(suite, QuicDirection::Transmit));
                let (text, mut number) = (plaintext(size, 0), 0);
                rate(clock, &spent_ns, || {
                    for _ in 0..TRANSMITS {
                        device.handle_op(Instant::ZERO, 0, datagrams(&text, size, number));
                        number += 256;
                    }
                    drain_frames(&mut device);
                    TRANSMITS * text.len()
                })
            }
            AeadWork::SealRecords => {
                let create = tls_engine::create(suite, 1, L5oDirection::Transmit);
                device.handle_op(Instant::ZERO, 0, create);
                let content = Bytes::from(stream::content());
                let (mut number, mut seq) = (0, 0_u32);
                rate(clock, &spent_ns, || {
                    for _ in 0..TRANSMITS {
                        let op = tls_engine::transmit_records(number, seq, &content, RECORDS);
                        device.handle_op(Instant::ZERO, 0, op);
                        number += u64::from(RECORDS);
                        let wire = RECORDS * (RECORD_CONTENT_BYTES + RECORD_OVERHEAD_BYTES);
                        seq = seq.wrapping_add(wire);
                    }
                    drain_frames(&mut device);
                    TRANSMITS * (RECORDS * RECORD_CONTENT_BYTES) as usize
                })
            }
            AeadWork::OpenDatagrams(size) => receive(clock, &mut device, suite, size),
        };
        let counters = collect_counters(|f| device.visit(f)).into_iter().collect();
        let nanos = took.as_nanos() as f64;
        let bytes_per_s = bytes as f64 * 1e9 / nanos;
        let spent = spent_ns.load(Ordering::Relaxed) as f64;
        let own_share = workers.is_none().then(|| 1.0 - spent / nanos);
        Ok(WorkersFigures { bytes_per_s, own_share, counters })
    }
}

/// Returns the rate of a run after the warm-up; `work` returns the bytes that it processed.
fn rate(clock: &MonotonicClock, spent_ns: &AtomicU64, mut work: impl FnMut() -> usize) -> WorkRate {
    let begin = clock.now();
    while clock.now().since(begin) < WARM_UP {
        work();
    }
    spent_ns.store(0, Ordering::Relaxed);
    let (from, mut bytes) = (clock.now(), 0);
    while clock.now().since(from) < ROUND {
        bytes += work();
    }
    WorkRate { bytes, took: clock.now().since(from) }
}

fn drain_frames(device: &mut Device) {
    while let Some(frame) = device.poll_frame(Instant::ZERO) {
        black_box(frame);
    }
}

fn device(segmentation: bool) -> Device {
    let mut config = DeviceConfig::new(LOCAL_MAC);
    config.file = None;
    config.transmit_bytes_max = nic::LONG_TRANSMIT_BYTES;
    let crypto = Arc::new(crypto::Provider);
    config.l5o = Some(L5oConfig::new(Arc::clone(&crypto) as _));
    config.quic = Some(QuicConfig::new(crypto));
    let link = LinkCaps { segmentation, udp_segmentation: segmentation, checksum: true, mtu: 1500 };
    Device::new(config, link)
}

fn add(suite: Suite, direction: QuicDirection) -> Op {
    Op::QuicAdd(Box::new(QuicAdd {
        quic: QUIC,
        flow: FlowId(1),
        direction,
        suite,
        header_key: [3; 32].into(),
        keys: QuicKeys { phase: false, key: [1; 32].into(), iv: [2; 12] },
        next_packet_number: 0,
    }))
}

/// Returns the packets of a transmit in plaintext, with numbers from `first` on. One byte of a
/// number is sent, so transmits whose numbers begin at multiples of 256 have the same plaintext.
fn plaintext(size: u16, first: u64) -> Bytes {
    let packet = |number: u64| {
        let mut packet = vec![7; usize::from(size)];
        packet[0] = 0x40;
        packet[1..9].copy_from_slice(&ID);
        packet[9] = number.to_le_bytes()[0];
        packet
    };
    (first..).take(DATAGRAMS).flat_map(packet).collect::<Vec<_>>().into()
}

fn datagrams(text: &Bytes, size: u16, first: u64) -> Op {
    let packet = |number| Some(QuicTxPacket { begin: 0, pn_offset: 9, pn_len: 1, number });
    let packets = (first..).take(DATAGRAMS).map(packet).collect();
    let mut parts = TransmitParts::new();
    parts.push(TransmitPart::Host(text.clone()));
    Op::Transmit(Transmit {
        flow: FlowId(1),
        header: header(),
        segment_size: size,
        parts,
        timestamp: None,
        echo: None,
        retransmission: false,
        quic: Some(Box::new(QuicProtect { quic: QUIC, packets })),
    })
}

fn header() -> PacketHeader {
    let ip = IpHeader {
        source: [10, 0, 0, 2].into(),
        destination: [10, 0, 0, 1].into(),
        protocol: protocol::UDP,
        ecn: 0,
        hop_limit: 64,
    };
    let link = EthernetAddrs { source: [2, 0, 0, 0, 0, 2], destination: LOCAL_MAC };
    let l4 = 14 + ip.len();
    let mut header = PacketHeader::zeroed(l4 + wire::UDP_BYTES, 14, l4).expect("it fits");
    udp_template(&link, &ip, [40_000, PORT], 0, header.as_mut_slice());
    header
}

/// Returns encrypted frames whose packet numbers ascend.
fn frames(suite: Suite, size: u16) -> Vec<Vec<u8>> {
    let (mut device, mut all) = (device(false), Vec::new());
    device.handle_op(Instant::ZERO, 0, add(suite, QuicDirection::Transmit));
    for number in (0..).step_by(DATAGRAMS).take(FRAMES.div_ceil(DATAGRAMS)) {
        let text = plaintext(size, number);
        device.handle_op(Instant::ZERO, 0, datagrams(&text, size, number));
        while let Some(frame) = device.poll_frame(Instant::ZERO) {
            let mut bytes = vec![0; frame.len()];
            frame.copy_to(&mut bytes);
            all.push(bytes);
        }
    }
    all
}

/// Returns the rate of decryption. The frames are received again and again; the time of copying
/// them to buffers does not count.
fn receive(clock: &MonotonicClock, device: &mut Device, suite: Suite, size: u16) -> WorkRate {
    let all = frames(suite, size);
    let id = QuicConnectionId::new(&ID).expect("it is short");
    let routes = std::iter::once(QuicRouteKey::Id { port: PORT, id }).collect();
    let direction = QuicDirection::Receive { routes, reorder: None };
    let (mut packets, mut events) = (Vec::new(), Vec::new());
    let mut sum = WorkRate { bytes: 0, took: Duration::ZERO };
    // A packet number of one byte has its meaning only next to its predecessors, so each pass has a
    // new entry.
    let begin = clock.now();
    while clock.now().since(begin) < WARM_UP + ROUND {
        device.handle_op(Instant::ZERO, 0, add(suite, direction.clone()));
        for some in all.chunks(BATCH) {
            packets.extend(some.iter().filter_map(|frame| device.pool().copy(frame)));
            let from = clock.now();
            for packet in packets.drain(..) {
                let frame = RxFrame { packet, checksum: Checksum::Good, segment_size: 0 };
                device.handle_frame(Instant::ZERO, frame);
            }
            events.extend(std::iter::from_fn(|| device.poll_queue_event(0)));
            sum.took += clock.now().since(from);
            for event in events.drain(..) {
                let Event::Received(received) = event else { continue };
                sum.bytes +=
                    received.quic.map_or(0, |opened| opened.numbers.len()) * usize::from(size);
                device.pool().put(received.packet);
            }
        }
        device.handle_op(Instant::ZERO, 0, Op::QuicRemove { quic: QUIC });
    }
    sum
}
