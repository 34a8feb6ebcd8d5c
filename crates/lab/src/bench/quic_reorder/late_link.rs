//! A link that delivers some packets late and drops others, in front of the receiver's end of a
//! link.
//!
//! A late packet takes a longer path: its extra delay is a random number of packet times, and
//! packets on the short path overtake it. A packet is therefore never later than its path is long,
//! however few packets follow. The other direction is not changed. The same seed and the same
//! arrivals give the same result.

use std::collections::VecDeque;
use std::os::fd::RawFd;

use abi::PacketPool;
use abi::link::{LinkCaps, RxFrame, TxFrame};
use base::{Duration, Instant, Prng};
use io::link::{Link, LinkTxStatus};

/// Rates and lengths of delays and losses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LateLinkConfig {
    /// Probability that a packet is dropped.
    pub(crate) lost: f64,
    /// Probability that a packet takes a longer path.
    pub(crate) late: f64,
    /// Longest extra delay in packet times; the delay is uniform between 1 and this.
    pub(crate) packets_max: u64,
    /// Transmission time of a packet on the link.
    pub(crate) packet_time: Duration,
    /// Seed of the random numbers.
    pub(crate) seed: u64,
}

base::counters! {
    /// Packets dropped and delayed.
    pub(crate) struct LateLinkCounters {
        /// Packets dropped.
        ways_lost,
        /// Packets that took a longer path.
        ways_late,
    }
}

/// A link with delayed and dropped packets.
pub(crate) struct LateLink<W> {
    inner: W,
    config: LateLinkConfig,
    prng: Prng,
    /// Packets on a longer path, with their times of arrival.
    late: Vec<(Instant, RxFrame)>,
    ready: VecDeque<RxFrame>,
    counters: LateLinkCounters,
}

impl<W: Link> LateLink<W> {
    /// Returns a link that delays and drops packets received from `inner`.
    pub(crate) fn new(inner: W, config: LateLinkConfig) -> Self {
        let (prng, counters) = (Prng::new(config.seed), LateLinkCounters::default());
        Self { inner, config, prng, late: Vec::new(), ready: VecDeque::new(), counters }
    }

    /// Handles a packet that arrived on the short path. All random numbers are drawn for every
    /// packet, so that a change of one rate does not change the packets that the other rate
    /// affects.
    fn handle_arrival(&mut self, now: Instant, frame: RxFrame, pool: &mut PacketPool) {
        let lost = self.prng.chance(self.config.lost);
        let late = self.prng.chance(self.config.late);
        let packets = self.prng.range(1, self.config.packets_max);
        if lost {
            self.counters.ways_lost += 1;
            pool.put(frame.packet);
        } else if late {
            self.counters.ways_late += 1;
            let longer = Duration::from_nanos(self.config.packet_time.as_nanos() * packets);
            self.late.push((now + longer, frame));
        } else {
            self.ready.push_back(frame);
        }
    }

    /// Moves packets that have arrived on a longer path to `ready`.
    fn move_late_to_ready(&mut self, now: Instant) {
        while let Some(first) = (0..self.late.len()).min_by_key(|&at| self.late[at].0) {
            if self.late[first].0 > now {
                return;
            }
            self.ready.push_back(self.late.remove(first).1);
        }
    }
}

impl<W: Link> Link for LateLink<W> {
    fn capabilities(&self) -> LinkCaps {
        self.inner.capabilities()
    }

    fn transmit(&mut self, now: Instant, frame: &mut TxFrame) -> LinkTxStatus {
        self.inner.transmit(now, frame)
    }

    fn flush(&mut self, now: Instant) -> bool {
        self.inner.flush(now)
    }

    fn receive(&mut self, now: Instant, pool: &mut PacketPool) -> Option<RxFrame> {
        self.move_late_to_ready(now);
        while self.ready.is_empty() {
            let frame = self.inner.receive(now, pool)?;
            self.handle_arrival(now, frame, pool);
        }
        self.ready.pop_front()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let late = self.late.iter().map(|(at, _)| *at);
        late.chain(self.inner.poll_timeout()).min()
    }

    fn pollable(&self) -> Option<RawFd> {
        self.inner.pollable()
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.inner.visit(f);
        self.counters.visit(f);
    }
}
