//! Crypto workers: whatever their number and the order in which they finish, frames, events and
//! counters are those of a device without workers. Workers that fail or lose jobs cost packets, and
//! nothing else.

use abi::crypto::Suite;
use abi::l5o::L5oDirection;
use abi::quic::{QuicAdd, QuicId, QuicRekey, QuicReorderBounds};
use abi::{Event, FlowId, Op, Transmit, TransmitPart};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use base::{Duration, Prng};
use testkit::PLAIN_LINK;

use super::frames::{bytes_of, rx_frame, transmit};
use super::l5o_tx::{ALL, CONTEXT, START, TlsTestPeer, TlsTxStream};
use super::quic::*;
use super::quic_tx::roomy;
use super::rig::Rig;
use crate::{CryptoJob, CryptoWorkers, DeviceConfig, L5oConfig};

const CHACHA: Suite = Suite::ChaCha20Poly1305;

/// Order in which workers finish.
#[derive(Clone, Copy, Debug)]
enum FinishOrder {
    First,
    Last,
    Random,
}

/// Treatment of a job by a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkerFault {
    None,
    /// Jobs come back without having been run.
    Fails,
    /// Jobs do not come back.
    Loses,
}

/// Workers in memory: a job is run when it is polled or waited for.
#[derive(Debug)]
struct ModelWorkers {
    workers: usize,
    order: FinishOrder,
    fault: WorkerFault,
    jobs: Vec<CryptoJob>,
    prng: Prng,
}

impl ModelWorkers {
    fn boxed(workers: usize, order: FinishOrder, fault: WorkerFault) -> Box<dyn CryptoWorkers> {
        let prng = Prng::new(workers as u64);
        Box::new(Self { workers, order, fault, jobs: vec![], prng })
    }

    fn finish(&mut self) -> Option<CryptoJob> {
        let last = self.jobs.len().checked_sub(1)?;
        let index = match self.order {
            FinishOrder::First => 0,
            FinishOrder::Last => last,
            FinishOrder::Random => self.below(last as u64 + 1),
        };
        let mut job = self.jobs.remove(index);
        if self.fault == WorkerFault::None {
            job.run();
        }
        Some(job)
    }

    fn below(&mut self, limit: u64) -> usize {
        usize::try_from(self.prng.below(limit)).unwrap()
    }
}

impl CryptoWorkers for ModelWorkers {
    fn workers(&self) -> usize {
        self.workers
    }

    fn post(&mut self, job: CryptoJob) -> Result<(), CryptoJob> {
        if self.jobs.len() == 2 * self.workers {
            return Err(job);
        }
        self.jobs.push(job);
        Ok(())
    }

    fn poll(&mut self) -> Option<CryptoJob> {
        let busy = self.below(2) == 0 || self.fault == WorkerFault::Loses;
        if busy { None } else { self.finish() }
    }

    fn wait(&mut self) -> Option<CryptoJob> {
        if self.fault == WorkerFault::Loses {
            self.jobs.clear();
        }
        self.finish()
    }
}

/// The frames that a device sent, its events with the bytes of received frames, and its counters.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outputs {
    frames: Vec<Vec<u8>>,
    events: Vec<(usize, String, Vec<u8>)>,
    counters: BTreeMap<&'static str, u64>,
}

impl Outputs {
    fn of(rig: &mut Rig) -> Self {
        rig.collect();
        let mut outputs = Self::default();
        outputs.frames.extend(rig.sent.drain(..).map(|frame| bytes_of(&frame)));
        for (queue, event) in rig.events.drain(..) {
            outputs.events.push(match event {
                Event::Received(frame) => {
                    let text = format!("{:?} {:?}", frame.quic, frame.segment_size);
                    (queue, text, frame.packet.as_slice().to_vec())
                }
                other => (queue, format!("{other:?}"), vec![]),
            });
        }
        // Buffers of jobs are smaller, and jobs are counted.
        let differs = |name: &str| {
            ["crypto_", "pool_"].iter().any(|area| name.starts_with(area))
                || name.ends_with("_output_bytes")
                || name == "quic_rx_ahead_wrong"
        };
        rig.device.visit(&mut |name, value| {
            if !differs(name) {
                outputs.counters.insert(name, value);
            }
        });
        outputs
    }

    /// Returns the number of frames that were delivered or wait for their turn.
    fn received(&self) -> u64 {
        self.counters["rx_packets"] + self.counters["quic_waiting"]
    }
}

fn device_with(workers: Option<Box<dyn CryptoWorkers>>) -> Rig {
    let l5o = Some(L5oConfig::new(Arc::new(crypto::Provider)));
    let mut rig = Rig::with(DeviceConfig { l5o, ..config() }, PLAIN_LINK);
    if let Some(workers) = workers {
        rig.device = rig.device.with_crypto_workers(workers);
    }
    rig
}

/// A seeded sequence of inputs.
struct Exchange {
    rig: Rig,
    prng: Prng,
    stream: TlsTxStream,
    streamed: usize,
    /// Next number to send, and next to receive.
    next: u64,
    expected: u64,
    peers: [RustlsQuicPeer; 2],
    /// Key generation of the peer.
    generation: usize,
}

const RECEIVE_ENTRY: QuicId = QuicId(71);

impl Exchange {
    fn new(seed: u64, rig: Rig) -> Self {
        let mut prng = Prng::new(seed);
        let suite = ALL[usize::try_from(prng.below(6)).unwrap()];
        let content = super::l5o_tx::numbers(600_000);
        let records = [16_384, 16_384, 9000, 700][usize::try_from(prng.below(4)).unwrap()];
        let stream = TlsTxStream::new(TlsTestPeer::new(suite), 3, content, records);
        let peers = [0, 1].map(|generation| RustlsQuicPeer::new(CHACHA, generation));
        let (next, expected) = (0, 0);
        let mut exchange =
            Self { rig, prng, stream, streamed: 0, next, expected, peers, generation: 0 };
        let create = TlsTestPeer::new(suite).create(CONTEXT, L5oDirection::Transmit, START, 3);
        exchange.op(create);
        exchange.op(Op::QuicAdd(Box::new(send(CHACHA, 0))));
        let bounds =
            QuicReorderBounds { packets: 16, bytes: 20_000, time: Duration::from_millis(5) };
        let receive = receive(CHACHA, Some(bounds));
        exchange.op(Op::QuicAdd(Box::new(QuicAdd { quic: RECEIVE_ENTRY, ..receive })));
        exchange
    }

    fn op(&mut self, op: Op) {
        self.rig.device.handle_op(self.rig.now, 0, op);
    }

    fn below(&mut self, limit: u64) -> usize {
        usize::try_from(self.prng.below(limit)).unwrap()
    }

    /// Does one random action. Some outputs are left to be collected after further ones.
    fn act(&mut self) {
        match self.prng.below(12) {
            0..=2 => self.send_quic(),
            3..=5 => self.send_tls(),
            6..=9 => self.receive_quic(),
            10 => {
                self.rig.now += Duration::from_millis(self.prng.below(4));
                self.rig.collect();
            }
            _ => {
                let mut plain = transmit(FlowId(9), 1, 1000);
                plain.parts.push(host(&vec![7; 2500]));
                plain.echo = Some(1);
                self.op(Op::Transmit(plain));
            }
        }
    }

    fn send_quic(&mut self) {
        let (count, len) = (1 + self.below(50), 20 + self.below(1380));
        let mut parts: Vec<TransmitPart> = vec![];
        let mut packets = vec![];
        for _ in 0..count {
            let number = self.next;
            self.next += 1 + self.prng.below(2);
            let body = vec![u8::try_from(self.prng.below(256)).unwrap(); len];
            let mut datagram = roomy(false, number, 2, &body);
            // Now and then a packet that cannot be encrypted, or one that was encrypted already.
            let kind = self.below(400);
            datagram[0] ^= if kind == 0 { 0x08 } else { 0 };
            packets.push((kind != 1).then(|| at(number, 2)));
            let (first, second) = datagram.split_at(self.below(datagram.len() as u64));
            parts.extend([host(first), host(second)]);
        }
        let size = u16::try_from(len + 27).unwrap();
        let batch = Transmit { echo: Some(2), ..batch(&parts, size, &packets) };
        self.op(Op::Transmit(batch));
    }

    fn send_tls(&mut self) {
        let jump = self.prng.below(8);
        let wire = self.stream.wire.len();
        let from = match jump {
            0 => self.below(wire as u64),
            _ => self.streamed % wire,
        };
        let len = (1 + self.below(60_000)).min(wire - from);
        let prefix = jump == 0 && self.prng.below(2) == 0;
        let transmit = self.stream.transmit(from, len, prefix);
        self.streamed = from + len;
        self.op(Op::Transmit(transmit));
    }

    fn receive_quic(&mut self) {
        if self.prng.below(30) == 0 && self.generation == 0 {
            let keys = keys_of(&secrets(CHACHA, 1), true);
            self.op(Op::QuicRekey(Box::new(QuicRekey { quic: RECEIVE_ENTRY, keys })));
            self.generation = 1;
        }
        for _ in 0..1 + self.below(70) {
            self.expected += match self.prng.below(40) {
                0 => self.prng.below(300),
                _ => 1,
            };
            let number = self.expected.saturating_sub(self.prng.below(4).pow(2));
            let peer = usize::from(self.prng.below(10) > 0) * self.generation;
            let body = vec![u8::try_from(number % 251).unwrap(); 12 + self.below(1300)];
            let bytes = [1, 2, 4][self.below(3)];
            let mut packet = self.peers[peer].seal(peer == 1, number, bytes, &body);
            if self.prng.below(20) == 0 {
                let at = self.below(packet.len() as u64);
                packet[at] ^= 1;
            }
            let mut frame = frame(&packet);
            // No UDP checksum, so that flipped bits reach the engine.
            frame[40..42].fill(0);
            let frame = rx_frame(self.rig.device.pool(), &frame);
            self.rig.device.handle_frame(self.rig.now, frame);
        }
    }
}

fn run_exchange(seed: u64, workers: Option<Box<dyn CryptoWorkers>>) -> (Outputs, Rig) {
    let mut exchange = Exchange::new(seed, device_with(workers));
    for _ in 0..30 {
        exchange.act();
    }
    let outputs = Outputs::of(&mut exchange.rig);
    assert_eq!(exchange.rig.counter("crypto_jobs_lost"), 0);
    assert_eq!(exchange.rig.counter("nic_internal_errors"), 0);
    (outputs, exchange.rig)
}

#[test]
fn outputs_do_not_depend_on_workers() {
    let (mut by_workers, mut inline, mut wrong) = (0, 0, 0);
    for seed in 0..40 {
        let (expected, rig) = run_exchange(seed, None);
        assert_eq!(rig.counter("crypto_jobs_worker") + rig.counter("crypto_jobs_inline"), 0);
        for (workers, order) in
            [(1, FinishOrder::First), (3, FinishOrder::Last), (3, FinishOrder::Random)]
        {
            let model = ModelWorkers::boxed(workers, order, WorkerFault::None);
            let (outputs, rig) = run_exchange(seed, Some(model));
            assert_eq!(outputs.frames.len(), expected.frames.len(), "seed {seed}");
            assert!(outputs == expected, "seed {seed}, {workers} workers, {order:?}");
            by_workers += rig.counter("crypto_jobs_worker");
            inline += rig.counter("crypto_jobs_inline");
            wrong += rig.counter("quic_rx_ahead_wrong");
        }
    }
    // All paths were taken.
    assert!(by_workers > 1000 && inline > 1000 && wrong > 50, "{by_workers} {inline} {wrong}");
}

/// Encryption is repeated without the worker; a packet that was being decrypted is lost.
#[test]
fn failing_workers_cost_received_packets_only() {
    for seed in 0..10 {
        let (expected, _) = run_exchange(seed, None);
        let model = ModelWorkers::boxed(2, FinishOrder::First, WorkerFault::Fails);
        let mut exchange = Exchange::new(seed, device_with(Some(model)));
        for _ in 0..30 {
            exchange.act();
        }
        let outputs = Outputs::of(&mut exchange.rig);
        assert_eq!(outputs.frames, expected.frames, "seed {seed}");
        let lost = exchange.rig.counter("crypto_frames_lost");
        assert_eq!(outputs.received() + lost, expected.received());
        assert!(exchange.rig.counter("crypto_jobs_failed") > 0 && lost > 0);
    }
}

/// The packets of lost jobs are lost like on a link: the device continues, and nothing is sent in
/// plaintext.
#[test]
fn lost_jobs_are_lost_packets() {
    for seed in 0..10 {
        let (expected, _) = run_exchange(seed, None);
        let model = ModelWorkers::boxed(2, FinishOrder::First, WorkerFault::Loses);
        let mut exchange = Exchange::new(seed, device_with(Some(model)));
        for _ in 0..30 {
            exchange.act();
        }
        let outputs = Outputs::of(&mut exchange.rig);
        let rig = &exchange.rig;
        assert!(rig.counter("crypto_jobs_lost") > 0 && rig.counter("crypto_runs_lost") > 0);
        assert!(outputs.frames.len() < expected.frames.len());
        assert!(outputs.frames.iter().all(|frame| expected.frames.contains(frame)));
        let lost = rig.counter("crypto_frames_lost");
        assert_eq!(outputs.received() + lost, expected.received());
    }
}

#[test]
fn a_reset_discards_jobs() {
    let model = ModelWorkers::boxed(2, FinishOrder::Last, WorkerFault::None);
    let mut exchange = Exchange::new(1, device_with(Some(model)));
    exchange.send_tls();
    exchange.send_quic();
    exchange.receive_quic();
    exchange.rig.device.reset();
    let outputs = Outputs::of(&mut exchange.rig);
    assert_eq!(outputs.frames, [[0; 0]; 0]);
    assert!(outputs.events.iter().all(|(_, event, _)| event.starts_with("Reset")), "{outputs:?}");
    // The device works on.
    exchange.op(Op::QuicAdd(Box::new(send(CHACHA, 10_000))));
    exchange.next = 10_000;
    exchange.send_quic();
    assert!(!Outputs::of(&mut exchange.rig).frames.is_empty());
}
