//! A wire some of whose packets are late, and some never arrive.
//!
//! Around the receiver's end of a link. A late packet has come a longer way, as many packets' time
//! on the link longer as it says; what follows it on the short way overtakes it. So a packet is
//! never late for longer than its way is, however little follows, and what crosses the other way is
//! left alone. Equal seeds and equal arrivals give equal fates.

use std::collections::VecDeque;
use std::os::fd::RawFd;

use abi::PacketPool;
use abi::port::{RxFrame, TxFrame, WireCaps};
use base::{Duration, Instant, Prng};
use io::wire::{TxStatus, Wire};

/// How late packets are, and how many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LateWireConfig {
    /// Probability that a packet is lost.
    pub(crate) lost: f64,
    /// Probability that it comes a longer way.
    pub(crate) late: f64,
    /// A longer way is longer by one to so many packets, each as likely.
    pub(crate) packets_max: u64,
    /// Time of a packet on the link.
    pub(crate) packet_time: Duration,
    /// Start of the random sequence.
    pub(crate) seed: u64,
}

base::counters! {
    /// What became of packets.
    pub(crate) struct LateWireCounters {
        /// Packets lost.
        ways_lost,
        /// Packets that came a longer way.
        ways_late,
    }
}

/// The wire.
pub(crate) struct LateWire<W> {
    inner: W,
    config: LateWireConfig,
    prng: Prng,
    /// On a longer way, and when they arrive.
    late: Vec<(Instant, RxFrame)>,
    ready: VecDeque<RxFrame>,
    counters: LateWireCounters,
}

impl<W: Wire> LateWire<W> {
    /// Longer ways and losses for what arrives by `inner`.
    pub(crate) fn new(inner: W, config: LateWireConfig) -> Self {
        let (prng, counters) = (Prng::new(config.seed), LateWireCounters::default());
        Self { inner, config, prng, late: Vec::new(), ready: VecDeque::new(), counters }
    }

    /// Which way a packet takes that has arrived by the short one. Both fates are drawn for every
    /// packet, so that one rate does not change whom the other meets.
    fn arrive(&mut self, now: Instant, frame: RxFrame, pool: &mut PacketPool) {
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

    /// What has come a longer way by now.
    fn take_late(&mut self, now: Instant) {
        while let Some(first) = (0..self.late.len()).min_by_key(|&at| self.late[at].0) {
            if self.late[first].0 > now {
                return;
            }
            self.ready.push_back(self.late.remove(first).1);
        }
    }
}

impl<W: Wire> Wire for LateWire<W> {
    fn capabilities(&self) -> WireCaps {
        self.inner.capabilities()
    }

    fn transmit(&mut self, now: Instant, frame: &TxFrame) -> TxStatus {
        self.inner.transmit(now, frame)
    }

    fn receive(&mut self, now: Instant, pool: &mut PacketPool) -> Option<RxFrame> {
        self.take_late(now);
        while self.ready.is_empty() {
            let frame = self.inner.receive(now, pool)?;
            self.arrive(now, frame, pool);
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
