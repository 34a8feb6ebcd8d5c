//! Memory link: two ends in one process, with a delay, a rate and a queue in each direction.
//!
//! Used by tests and accounted benchmarks to connect two devices. Each direction is an
//! [`abi::ring`] of frames, so the two ends may be in one thread or in two, and no call takes a
//! lock. A frame crosses as references to the sender's shared buffers and is copied once, into the
//! receiver's pool, as by a NIC's DMA. The references then return to the sender.
//!
//! Frames are lost only if the queue is full; other faults are made by [`crate::fault`]. No
//! checksum is computed: a frame sent with a partial checksum is received as [`Checksum::Partial`],
//! as between two interfaces of one machine.

use std::cell::RefCell;
use std::os::fd::RawFd;

use abi::link::{FramePayloads, LinkCaps, RxFrame, TxFrame};
use abi::ring::{RingConsumer, RingProducer, ring};
use abi::{Checksum, PacketPool};
use base::{Duration, Instant};

use crate::link::{Link, LinkTxStatus};

/// Size of an Ethernet header, which [`LinkCaps::mtu`] does not include.
const ETHERNET_BYTES: usize = 14;

/// Properties of a memory link, the same in both directions.
#[derive(Clone, Debug)]
pub struct MemoryLinkConfig {
    /// One-way propagation delay, counted from the end of transmission.
    pub delay: Duration,
    /// Rate in bytes per second; `None` for infinite.
    pub bytes_per_s: Option<u64>,
    /// Maximum number of bytes that wait for transmission; frames beyond that are dropped. Not used
    /// without a rate.
    pub queue_bytes_max: u64,
    /// Maximum number of frames between the two ends, rounded up to a power of two; beyond it
    /// `transmit` returns [`LinkTxStatus::Full`].
    pub frames_max: usize,
    /// Largest packet without its Ethernet header, in bytes.
    pub mtu: u16,
    /// True if runs of segments cross unsegmented, as over a TAP.
    pub segmentation: bool,
    /// True if frames may be sent with a partial transport checksum.
    pub checksum: bool,
}

impl Default for MemoryLinkConfig {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            bytes_per_s: None,
            queue_bytes_max: 1 << 20,
            frames_max: 4096,
            mtu: 1500,
            segmentation: true,
            checksum: true,
        }
    }
}

base::counters! {
    /// Counters of one end of a memory link.
    pub struct MemoryLinkCounters {
        /// Frames sent.
        mem_tx_frames,
        /// Bytes sent, including one header for each packet of a run.
        mem_tx_bytes,
        /// Frames dropped because the queue was full.
        mem_tx_dropped,
        /// Frames not accepted because [`MemoryLinkConfig::frames_max`] were between the ends.
        mem_tx_full,
        /// Frames that the link cannot carry: too long, or with offloads that [`LinkCaps`] does not
        /// offer.
        mem_tx_refused,
        /// Frames delivered.
        mem_rx_frames,
        /// Bytes delivered.
        mem_rx_bytes,
        /// Frames dropped because no buffer of the pool is large enough.
        mem_rx_too_long,
    }
}

/// A frame in transit, with its arrival time.
struct FrameInTransit {
    arrives: Instant,
    frame: TxFrame,
}

/// One end of a memory link.
pub struct MemoryLink {
    caps: LinkCaps,
    config: MemoryLinkConfig,
    outbox: RingProducer<FrameInTransit>,
    /// Payloads that the other end has copied, which return to the sender.
    spent: RingConsumer<FramePayloads>,
    copied: RingProducer<FramePayloads>,
    // `poll_timeout` takes `&self`, but looking into the ring rereads its index.
    inbox: RefCell<RingConsumer<FrameInTransit>>,
    /// Time at which the last bit sent so far leaves.
    busy_until: Instant,
    counters: MemoryLinkCounters,
}

/// Returns the two connected ends.
#[must_use]
pub fn memory_link_pair(config: &MemoryLinkConfig) -> (MemoryLink, MemoryLink) {
    let capacity = config.frames_max.max(1).next_power_of_two();
    let ((a_out, b_in), (b_out, a_in)) = (ring(capacity), ring(capacity));
    let ((a_copied, b_spent), (b_copied, a_spent)) = (ring(capacity), ring(capacity));
    let a = MemoryLink::new(config, (a_out, a_spent), (a_in, a_copied));
    (a, MemoryLink::new(config, (b_out, b_spent), (b_in, b_copied)))
}

impl MemoryLink {
    fn new(
        config: &MemoryLinkConfig,
        (outbox, spent): (RingProducer<FrameInTransit>, RingConsumer<FramePayloads>),
        (inbox, copied): (RingConsumer<FrameInTransit>, RingProducer<FramePayloads>),
    ) -> Self {
        let caps = LinkCaps {
            segmentation: config.segmentation,
            udp_segmentation: false,
            checksum: config.checksum,
            mtu: config.mtu,
        };
        Self {
            caps,
            config: config.clone(),
            outbox,
            spent,
            copied,
            inbox: RefCell::new(inbox),
            busy_until: Instant::ZERO,
            counters: MemoryLinkCounters::default(),
        }
    }

    /// Returns the counters of this end.
    #[must_use]
    pub const fn counters(&self) -> &MemoryLinkCounters {
        &self.counters
    }

    /// Returns whether the capabilities permit the frame, which has `payload` bytes of payload.
    fn carries(&self, frame: &TxFrame, payload: usize) -> bool {
        let mtu = usize::from(self.caps.mtu);
        let packet_bytes = match usize::from(frame.segment_size) {
            0 => frame.header.len() + payload,
            size => frame.header.len() + size.min(payload),
        };
        packet_bytes <= mtu + ETHERNET_BYTES
            && (frame.segment_size == 0 || self.caps.segmentation)
            && (!frame.checksum_partial || self.caps.checksum)
    }

    /// Returns the time at which the last bit of `bytes` will have left, or `None` if the queue has
    /// no room.
    fn transmission_end(&self, now: Instant, bytes: u64) -> Option<Instant> {
        let Some(rate) = self.config.bytes_per_s else { return Some(now) };
        let waiting = self.busy_until.since(now);
        if waiting > Duration::ZERO
            && bytes_in(waiting, rate).saturating_add(bytes) > self.config.queue_bytes_max
        {
            return None;
        }
        let takes = multiply_divide(bytes, 1_000_000_000, rate.max(1));
        Some(self.busy_until.max(now) + Duration::from_nanos(takes))
    }
}

/// Returns how many bytes a link of `rate` bytes per second sends in `time`.
fn bytes_in(time: Duration, rate: u64) -> u64 {
    multiply_divide(time.as_nanos(), rate, 1_000_000_000)
}

/// Returns `a * b / divisor`, or the largest number if that is larger. A division of 128-bit
/// numbers takes longer than the rest of a frame's processing, and is rarely needed.
fn multiply_divide(a: u64, b: u64, divisor: u64) -> u64 {
    match a.checked_mul(b) {
        Some(product) => product / divisor,
        None => {
            let quotient = u128::from(a) * u128::from(b) / u128::from(divisor);
            u64::try_from(quotient).unwrap_or(u64::MAX)
        }
    }
}

impl Link for MemoryLink {
    fn capabilities(&self) -> LinkCaps {
        self.caps
    }

    fn transmit(&mut self, now: Instant, frame: &mut TxFrame) -> LinkTxStatus {
        let payload_len = frame.payload_len();
        if !self.carries(frame, payload_len) {
            self.counters.mem_tx_refused += 1;
            return LinkTxStatus::Failed;
        }
        if self.outbox.free() == 0 {
            self.counters.mem_tx_full += 1;
            return LinkTxStatus::Full;
        }
        let bytes = (frame.packets() * frame.header.len() + payload_len) as u64;
        let Some(leaves) = self.transmission_end(now, bytes) else {
            // Tail drop: on a real link, too, the sender is not told.
            self.counters.mem_tx_dropped += 1;
            return LinkTxStatus::Sent;
        };
        let spent = self.spent.pop().unwrap_or_default();
        let TxFrame { segment_size, checksum_partial, .. } = *frame;
        let in_transit = TxFrame {
            header: frame.header.clone(),
            payload: core::mem::replace(&mut frame.payload, spent),
            segment_size,
            checksum_partial,
        };
        let arrives = leaves + self.config.delay;
        let pushed = self.outbox.push(FrameInTransit { arrives, frame: in_transit });
        debug_assert!(pushed.is_ok(), "there was room above");
        self.busy_until = leaves;
        self.counters.mem_tx_frames += 1;
        self.counters.mem_tx_bytes += bytes;
        LinkTxStatus::Sent
    }

    fn receive(&mut self, now: Instant, pool: &mut PacketPool) -> Option<RxFrame> {
        let inbox = self.inbox.get_mut();
        while let Some(flight) = inbox.peek().filter(|flight| flight.arrives <= now) {
            let frame = &mut flight.frame;
            let payload_len = frame.payload_len();
            let len = frame.header.len() + payload_len;
            let Some(mut packet) = pool.take(len) else {
                self.counters.mem_rx_too_long += 1;
                inbox.pop();
                continue;
            };
            frame.copy_to(packet.as_mut_slice());
            self.counters.mem_rx_frames += 1;
            self.counters.mem_rx_bytes += len as u64;
            let checksum =
                if frame.checksum_partial { Checksum::Partial } else { Checksum::Unchecked };
            // A run that fits one packet is a plain packet.
            let merged = payload_len > usize::from(frame.segment_size);
            let segment_size = if merged { frame.segment_size } else { 0 };
            // If the ring back is full, the payload is dropped here.
            let _ = self.copied.push(core::mem::take(&mut frame.payload));
            inbox.pop();
            return Some(RxFrame { packet, checksum, segment_size });
        }
        None
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.inbox.borrow_mut().peek().map(|flight| flight.arrives)
    }

    fn pollable(&self) -> Option<RawFd> {
        None
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(f);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_frames::{bytes_of, frame, nonzero};

    fn pool() -> PacketPool {
        PacketPool::new(8)
    }

    #[test]
    fn delay_and_order() {
        let delay = Duration::from_millis(3);
        let (mut a, mut b) =
            memory_link_pair(&MemoryLinkConfig { delay, ..MemoryLinkConfig::default() });
        let mut pool = pool();
        let t0 = Instant::from_millis(10);
        assert_eq!(b.poll_timeout(), None);
        assert_eq!(a.transmit(t0, &mut frame(b"one")), LinkTxStatus::Sent);
        assert_eq!(a.transmit(t0, &mut frame(b"two")), LinkTxStatus::Sent);
        assert_eq!(b.poll_timeout(), Some(t0 + delay));
        assert!(b.receive(t0 + Duration::from_micros(2_999), &mut pool).is_none());
        let first = b.receive(t0 + delay, &mut pool).unwrap();
        assert_eq!(first.packet.as_slice(), bytes_of(&frame(b"one")));
        assert_eq!(first.checksum, Checksum::Unchecked);
        assert!(b.receive(t0 + delay, &mut pool).is_some());
        assert_eq!(b.poll_timeout(), None);
        assert_eq!(nonzero(|f| b.visit(f)), [("mem_rx_frames", 2), ("mem_rx_bytes", 114)]);
        assert_eq!(nonzero(|f| a.visit(f)), [("mem_tx_frames", 2), ("mem_tx_bytes", 114)]);
    }

    #[test]
    fn rate_spaces_frames_and_the_queue_drops_its_tail() {
        let (mut a, mut b) = memory_link_pair(&MemoryLinkConfig {
            bytes_per_s: Some(1_000_000),
            queue_bytes_max: 2_500,
            ..MemoryLinkConfig::default()
        });
        let mut pool = pool();
        let thousand = frame(&[7; 946]);
        for _ in 0..4 {
            assert_eq!(a.transmit(Instant::ZERO, &mut thousand.clone()), LinkTxStatus::Sent);
        }
        // 1000 and 2000 bytes fit the queue; the third frame would make it 3000.
        assert_eq!(a.counters().mem_tx_frames, 2);
        assert_eq!(a.counters().mem_tx_dropped, 2);
        for millis in 1..=2 {
            let due = Instant::from_millis(millis);
            assert_eq!(b.poll_timeout(), Some(due));
            assert!(b.receive(due, &mut pool).is_some());
        }
        assert_eq!(b.poll_timeout(), None);
        // The link is idle again, so the next frame waits only for its own transmission.
        assert_eq!(a.transmit(Instant::from_millis(50), &mut thousand.clone()), LinkTxStatus::Sent);
        assert_eq!(b.poll_timeout(), Some(Instant::from_millis(51)));
    }

    #[test]
    fn runs_cross_whole_or_are_refused() {
        let mut run = frame(&[1; 5000]);
        run.segment_size = 1446;
        run.checksum_partial = true;
        let (mut a, mut b) = memory_link_pair(&MemoryLinkConfig::default());
        assert_eq!(a.transmit(Instant::ZERO, &mut run.clone()), LinkTxStatus::Sent);
        let got = b.receive(Instant::ZERO, &mut pool()).unwrap();
        assert_eq!(
            (got.packet.len(), got.segment_size, got.checksum),
            (5054, 1446, Checksum::Partial)
        );
        // Four packets: four headers of 54 bytes.
        assert_eq!(a.counters().mem_tx_bytes, 5000 + 4 * 54);

        run.segment_size = 1461;
        assert_eq!(
            a.transmit(Instant::ZERO, &mut run.clone()),
            LinkTxStatus::Failed,
            "longer than the MTU"
        );
        let plain = MemoryLinkConfig {
            segmentation: false,
            checksum: false,
            ..MemoryLinkConfig::default()
        };
        let (mut a, _b) = memory_link_pair(&plain);
        run.segment_size = 1446;
        assert_eq!(a.transmit(Instant::ZERO, &mut run.clone()), LinkTxStatus::Failed);
        let mut partial = frame(b"x");
        partial.checksum_partial = true;
        assert_eq!(a.transmit(Instant::ZERO, &mut partial), LinkTxStatus::Failed);
        assert_eq!(a.transmit(Instant::ZERO, &mut frame(&[0; 1500])), LinkTxStatus::Failed);
        assert_eq!(nonzero(|f| a.visit(f)), [("mem_tx_refused", 3)]);
    }

    /// The sender gets back what the receiver has copied, so that it can reuse relayed buffers.
    #[test]
    fn payloads_return_to_the_sender() {
        let (mut a, mut b) = memory_link_pair(&MemoryLinkConfig::default());
        let mut pool = pool();
        let mut first = frame(b"first");
        assert_eq!(a.transmit(Instant::ZERO, &mut first), LinkTxStatus::Sent);
        assert!(first.payload.is_empty(), "the link has kept it");
        let got = b.receive(Instant::ZERO, &mut pool).unwrap();
        assert_eq!(got.packet.as_slice(), bytes_of(&frame(b"first")));
        let mut second = frame(b"second");
        assert_eq!(a.transmit(Instant::ZERO, &mut second), LinkTxStatus::Sent);
        assert_eq!(second.payload[0].as_slice(), b"first");
    }

    #[test]
    fn a_link_full_of_frames_says_so() {
        let (mut a, mut b) =
            memory_link_pair(&MemoryLinkConfig { frames_max: 2, ..MemoryLinkConfig::default() });
        let f = frame(b"f");
        assert_eq!(a.transmit(Instant::ZERO, &mut f.clone()), LinkTxStatus::Sent);
        assert_eq!(a.transmit(Instant::ZERO, &mut f.clone()), LinkTxStatus::Sent);
        assert_eq!(a.transmit(Instant::ZERO, &mut f.clone()), LinkTxStatus::Full);
        assert!(b.receive(Instant::ZERO, &mut pool()).is_some());
        assert_eq!(a.transmit(Instant::ZERO, &mut f.clone()), LinkTxStatus::Sent);
        assert_eq!(a.counters().mem_tx_full, 1);
    }

    #[test]
    fn the_ends_may_live_in_two_threads() {
        let (mut a, mut b) =
            memory_link_pair(&MemoryLinkConfig { frames_max: 4, ..MemoryLinkConfig::default() });
        let sender = std::thread::spawn(move || {
            for i in 0..1000_u32 {
                while a.transmit(Instant::ZERO, &mut frame(&i.to_be_bytes())) == LinkTxStatus::Full
                {
                    std::thread::yield_now();
                }
            }
        });
        let mut pool = pool();
        for i in 0..1000_u32 {
            let got = loop {
                if let Some(got) = b.receive(Instant::ZERO, &mut pool) {
                    break got;
                }
                std::thread::yield_now();
            };
            assert_eq!(got.packet.as_slice()[54..], i.to_be_bytes());
            pool.put(got.packet);
        }
        sender.join().unwrap();
    }
}
