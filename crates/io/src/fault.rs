//! A link that drops, reorders, duplicates and corrupts packets of the link it wraps, in both
//! directions.
//!
//! For `--drop`, `--reorder`, `--dup` and `--corrupt`, and for tests. Equal seeds and equal calls
//! produce equal faults; each direction has its own generator, so traffic in one direction does not
//! change the faults in the other.
//!
//! While any fault is enabled, the link offers neither segmentation nor checksum offload, so that
//! faults apply to single packets with complete checksums. Received runs and partial checksums
//! cannot be prevented here: open a TAP under this wrapper with `offloads: false`. A corrupted
//! frame that the inner link had marked good is delivered as [`Checksum::Bad`], as a checksum
//! engine would have found.

use std::collections::VecDeque;
use std::os::fd::RawFd;

use abi::link::{FramePayload, LinkCaps, RxFrame, TxFrame};
use abi::steering::FlowSteering;
use abi::{Checksum, PacketPool};
use base::{Duration, Instant, Prng};
use bytes::Bytes;

use crate::link::{Link, LinkTxStatus};

/// Fault probabilities per packet, each 0 to 1, and the seed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultConfig {
    /// Probability of loss.
    pub drop: f64,
    /// Probability of being overtaken by one to eight later packets, or delayed by 1 to 5 ms if
    /// fewer follow; or, with `reorder_delay`, of being sent at once.
    pub reorder: f64,
    /// Delay of all packets that are not reordered, as by Linux's `netem delay D reorder P%`. Zero
    /// for packets that are overtaken instead.
    pub reorder_delay: Duration,
    /// Probability of duplication.
    pub dup: f64,
    /// Probability that one bit after the Ethernet header is flipped.
    pub corrupt: f64,
    /// Direction without faults and delays; `None` if both directions have them.
    pub spared: Option<LinkDirection>,
    /// Seed of the random sequence.
    pub seed: u64,
}

/// A direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkDirection {
    /// From this end of the link.
    Transmit,
    /// To this end of the link.
    Receive,
}

impl FaultConfig {
    /// Returns whether any fault is enabled.
    #[must_use]
    pub fn is_active(&self) -> bool {
        let has_fault = [self.drop, self.reorder, self.dup, self.corrupt].iter().any(|&p| p > 0.0);
        has_fault || self.reorder_delay > Duration::ZERO
    }
}

base::counters! {
    /// Counters of injected faults.
    pub struct FaultCounters {
        /// Outgoing packets dropped.
        fault_tx_dropped,
        /// Outgoing packets reordered.
        fault_tx_reordered,
        /// Outgoing packets duplicated.
        fault_tx_duplicated,
        /// Outgoing packets with a bit flipped.
        fault_tx_corrupted,
        /// Incoming packets dropped.
        fault_rx_dropped,
        /// Incoming packets reordered.
        fault_rx_reordered,
        /// Incoming packets duplicated.
        fault_rx_duplicated,
        /// Incoming packets with a bit flipped.
        fault_rx_corrupted,
    }
}

/// Maximum number of packets held for reordering in one direction, and most that wait for a full
/// inner link.
const HELD_MAX: usize = 64;
/// Maximum number of packets that overtake a held packet.
const OVERTAKEN_BY_MAX: u64 = 8;
/// Longest delay of a held packet that too few packets overtake, in milliseconds. The shortest is 1
/// ms.
const HELD_MS_MAX: u64 = 5;
/// Maximum number of packets that wait for `reorder_delay` in one direction; others are dropped, as
/// by `netem` beyond its limit.
const DELAYED_MAX: usize = 16_384;
/// Delay before a full inner link is tried again.
const RETRY_AFTER: Duration = Duration::from_micros(100);
/// First byte that corruption may touch: the Ethernet header is covered by no checksum here.
const CORRUPT_FROM: usize = 14;

/// Faults drawn for one packet.
struct DrawnFaults {
    drop: bool,
    corrupt: Option<u64>,
    dup: bool,
    order: DrawnOrder,
}

/// Position of a packet among those around it.
enum DrawnOrder {
    /// Sent at once, in order.
    Kept,
    /// Sent at once, ahead of the packets that wait for `reorder_delay`.
    Early,
    /// Waits for `reorder_delay`.
    Delayed,
    /// Overtaken by this number of packets, or delayed by this time.
    Late(u64, Duration),
}

/// One direction: its random generator, and the packets that it holds.
struct FaultDirection<F> {
    prng: Prng,
    held: Vec<HeldFrame<F>>,
    /// Packets that wait for `reorder_delay`, with the times at which they are released, in order.
    delayed: VecDeque<(Instant, F)>,
    ready: VecDeque<F>,
}

struct HeldFrame<F> {
    frame: F,
    overtakes_left: u64,
    until: Instant,
}

impl<F> FaultDirection<F> {
    const fn new(prng: Prng) -> Self {
        Self { prng, held: Vec::new(), delayed: VecDeque::new(), ready: VecDeque::new() }
    }

    /// Draws the faults of a packet. The number of draws depends only on the configuration and on
    /// earlier draws, never on the packet.
    fn draw_faults(&mut self, config: &FaultConfig) -> DrawnFaults {
        let prng = &mut self.prng;
        let drop = prng.chance(config.drop);
        let corrupt = prng.chance(config.corrupt).then(|| prng.next_u64());
        let dup = prng.chance(config.dup);
        let order = match (config.reorder_delay > Duration::ZERO, prng.chance(config.reorder)) {
            (true, true) => DrawnOrder::Early,
            (true, false) => DrawnOrder::Delayed,
            (false, false) => DrawnOrder::Kept,
            (false, true) => {
                let overtaken_by = prng.range(1, OVERTAKEN_BY_MAX);
                let micros = prng.range(1_000, HELD_MS_MAX * 1_000);
                DrawnOrder::Late(overtaken_by, Duration::from_micros(micros))
            }
        };
        DrawnFaults { drop, corrupt, dup, order }
    }

    /// Queues a packet as drawn. A packet that cannot be held is sent in order.
    fn queue(&mut self, now: Instant, frame: F, order: &DrawnOrder, delay: Duration) -> Queued<F> {
        match *order {
            DrawnOrder::Late(overtakes_left, time) if self.held.len() < HELD_MAX => {
                self.held.push(HeldFrame { frame, overtakes_left, until: now + time });
                return Queued::Reordered;
            }
            DrawnOrder::Delayed if self.delayed.len() >= DELAYED_MAX => {
                return Queued::Dropped(frame);
            }
            DrawnOrder::Delayed => self.delayed.push_back((now + delay, frame)),
            DrawnOrder::Early => {
                self.pass(frame);
                return Queued::Reordered;
            }
            DrawnOrder::Kept | DrawnOrder::Late(..) => self.pass(frame),
        }
        Queued::InOrder
    }

    /// Passes a packet on, followed by the held packets that it was the last to overtake.
    fn pass(&mut self, frame: F) {
        self.ready.push_back(frame);
        for held in &mut self.held {
            held.overtakes_left -= 1;
        }
        self.release(|held| held.overtakes_left == 0);
    }

    /// Releases packets that were held long enough.
    fn expire(&mut self, now: Instant) {
        self.release(|held| held.until <= now);
        while self.delayed.front().is_some_and(|(until, _)| *until <= now) {
            self.ready.extend(self.delayed.pop_front().map(|(_, frame)| frame));
        }
    }

    fn release(&mut self, due: impl Fn(&HeldFrame<F>) -> bool) {
        let mut at = 0;
        while at < self.held.len() {
            if due(&self.held[at]) {
                self.ready.push_back(self.held.remove(at).frame);
            } else {
                at += 1;
            }
        }
    }

    fn next_release(&self) -> Option<Instant> {
        let delayed = self.delayed.front().map(|(until, _)| *until);
        self.held.iter().map(|held| held.until).chain(delayed).min()
    }
}

/// Result of queueing a packet.
enum Queued<F> {
    InOrder,
    Reordered,
    /// Not queued: too many packets wait.
    Dropped(F),
}

/// A link with fault injection.
pub struct FaultLink<W> {
    inner: W,
    config: FaultConfig,
    active: bool,
    tx: FaultDirection<TxFrame>,
    rx: FaultDirection<RxFrame>,
    /// Time at which to retry transmission on a full inner link.
    retry_at: Option<Instant>,
    counters: FaultCounters,
}

impl<W: Link> FaultLink<W> {
    /// Wraps `inner`. Without a fault in `config` all packets pass unchanged.
    #[must_use]
    pub fn new(inner: W, config: FaultConfig) -> Self {
        let mut prng = Prng::new(config.seed);
        let active = config.is_active();
        let (tx, rx) = (FaultDirection::new(prng.fork()), FaultDirection::new(prng.fork()));
        let counters = FaultCounters::default();
        Self { inner, config, active, tx, rx, retry_at: None, counters }
    }

    /// Returns the counters of injected faults.
    #[must_use]
    pub const fn counters(&self) -> &FaultCounters {
        &self.counters
    }

    /// Transmits frames that are ready on the inner link.
    fn transmit_ready(&mut self, now: Instant) {
        self.tx.expire(now);
        self.retry_at = None;
        while let Some(frame) = self.tx.ready.front_mut() {
            if self.inner.transmit(now, frame) == LinkTxStatus::Full {
                self.retry_at = Some(now + RETRY_AFTER);
                return;
            }
            self.tx.ready.pop_front();
        }
        if !self.inner.flush(now) {
            self.retry_at = Some(now + RETRY_AFTER);
        }
    }

    /// Draws the faults of an outgoing frame and queues the resulting frames in `tx`.
    fn inject_tx_faults(&mut self, now: Instant, frame: &TxFrame) {
        if self.config.spared == Some(LinkDirection::Transmit) {
            self.tx.ready.push_back(frame.clone());
            return;
        }
        let fate = self.tx.draw_faults(&self.config);
        if fate.drop || (fate.corrupt.is_some() && !is_ip(frame.headers())) {
            self.counters.fault_tx_dropped += 1;
            return;
        }
        let mut frame = frame.clone();
        if let Some(bit) = fate.corrupt.and_then(|random| pick_bit(random, frame.len())) {
            corrupt_tx(&mut frame, bit);
            self.counters.fault_tx_corrupted += 1;
        }
        if fate.dup {
            self.counters.fault_tx_duplicated += 1;
            self.tx.pass(frame.clone());
        }
        match self.tx.queue(now, frame, &fate.order, self.config.reorder_delay) {
            Queued::InOrder => {}
            Queued::Reordered => self.counters.fault_tx_reordered += 1,
            Queued::Dropped(_) => self.counters.fault_tx_dropped += 1,
        }
    }

    /// Draws the faults of a received frame and queues the resulting frames in `rx`.
    fn inject_rx_faults(&mut self, now: Instant, mut frame: RxFrame, pool: &mut PacketPool) {
        if self.config.spared == Some(LinkDirection::Receive) {
            self.rx.ready.push_back(frame);
            return;
        }
        let fate = self.rx.draw_faults(&self.config);
        if fate.drop || (fate.corrupt.is_some() && !is_ip(frame.packet.as_slice())) {
            self.counters.fault_rx_dropped += 1;
            pool.put(frame.packet);
            return;
        }
        if let Some(bit) = fate.corrupt.and_then(|random| pick_bit(random, frame.packet.len())) {
            frame.packet.as_mut_slice()[bit / 8] ^= 1 << (bit % 8);
            if frame.checksum.is_good() {
                frame.checksum = Checksum::Bad;
            }
            self.counters.fault_rx_corrupted += 1;
        }
        if fate.dup {
            if let Some(packet) = pool.copy(frame.packet.as_slice()) {
                self.counters.fault_rx_duplicated += 1;
                self.rx.pass(RxFrame { packet, ..frame });
            }
        }
        match self.rx.queue(now, frame, &fate.order, self.config.reorder_delay) {
            Queued::InOrder => {}
            Queued::Reordered => self.counters.fault_rx_reordered += 1,
            Queued::Dropped(frame) => {
                self.counters.fault_rx_dropped += 1;
                pool.put(frame.packet);
            }
        }
    }
}

/// Returns whether corruption of the frame can be detected: only IP packets have checksums. Other
/// frames (ARP) are dropped instead, as the Ethernet FCS check would do.
fn is_ip(frame: &[u8]) -> bool {
    matches!(frame.get(12..14), Some([0x08, 0x00] | [0x86, 0xdd]))
}

/// Returns the index of a bit after the Ethernet header of a frame of `len` bytes.
fn pick_bit(random: u64, len: usize) -> Option<usize> {
    let bits = len.checked_sub(CORRUPT_FROM)? * 8;
    let bit = usize::try_from(random % (bits.max(1) as u64)).ok()?;
    (bits > 0).then_some(CORRUPT_FROM * 8 + bit)
}

/// Flips a bit of the frame. A payload buffer is shared, so the affected one is replaced by a copy.
fn corrupt_tx(frame: &mut TxFrame, bit: usize) {
    let (mut at, mask) = (bit / 8, 1 << (bit % 8));
    if let Some(byte) = frame.header.as_mut_slice().get_mut(at) {
        *byte ^= mask;
        return;
    }
    at -= frame.header.len();
    for payload in &mut frame.payload {
        let len = payload.as_slice().len();
        if at < len {
            let mut bytes = payload.as_slice().to_vec();
            bytes[at] ^= mask;
            *payload = FramePayload::Host(Bytes::from(bytes));
            return;
        }
        at -= len;
    }
}

impl<W: Link> Link for FaultLink<W> {
    fn capabilities(&self) -> LinkCaps {
        let inner = self.inner.capabilities();
        if !self.active {
            return inner;
        }
        LinkCaps { segmentation: false, udp_segmentation: false, checksum: false, mtu: inner.mtu }
    }

    fn changes(&self) -> u32 {
        self.inner.changes()
    }

    fn pollable_changes(&self) -> Option<RawFd> {
        self.inner.pollable_changes()
    }

    fn transmit(&mut self, now: Instant, frame: &mut TxFrame) -> LinkTxStatus {
        if !self.active {
            return self.inner.transmit(now, frame);
        }
        self.transmit_ready(now);
        // `Full` is returned only before faults are drawn: an offered frame must not be drawn
        // twice.
        if self.tx.ready.len() >= HELD_MAX {
            return LinkTxStatus::Full;
        }
        self.inject_tx_faults(now, frame);
        self.transmit_ready(now);
        LinkTxStatus::Sent
    }

    fn flush(&mut self, now: Instant) -> bool {
        self.inner.flush(now)
    }

    fn receive(&mut self, now: Instant, pool: &mut PacketPool) -> Option<RxFrame> {
        if !self.active {
            return self.inner.receive(now, pool);
        }
        self.transmit_ready(now);
        self.rx.expire(now);
        while self.rx.ready.is_empty() {
            let frame = self.inner.receive(now, pool)?;
            self.inject_rx_faults(now, frame, pool);
        }
        self.rx.ready.pop_front()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let own = [self.tx.next_release(), self.rx.next_release(), self.retry_at];
        own.into_iter().chain([self.inner.poll_timeout()]).flatten().min()
    }

    fn pollable(&self) -> Option<RawFd> {
        self.inner.pollable()
    }

    fn link_address(&self) -> Option<[u8; 6]> {
        self.inner.link_address()
    }

    fn follow_steering(&mut self, steering: &FlowSteering) {
        self.inner.follow_steering(steering);
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.inner.visit(f);
        self.counters.visit(f);
    }
}

#[cfg(test)]
mod tests;
