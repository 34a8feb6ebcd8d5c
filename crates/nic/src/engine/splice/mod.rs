//! Splicing: the device relays packets between two connections that the host has joined (AccelTCP
//! section 4.3).
//!
//! The two peers effectively share one TCP connection without knowing it: each one's segments are
//! sent to the other with translated headers. The device keeps constant state per direction, no
//! payload once a pair has started, and only timers for idleness and for the end.
//!
//! - `segment` parses, `pair` decides which segments may pass and tracks them, `translate` rewrites
//!   headers, `relay` does all three and queues the outgoing frame;
//! - `begin` takes pairs over, `close` ends them; `engine` is the [`super::Engine`] implementation.
//!
//! Invariants: both tuples of a pair lead to it and to no other; kept frames are bounded by
//! [`SpliceConfig`]; a frame of a pair never reaches the host, except a SYN that starts a new
//! connection. Retransmission, congestion control and reassembly are left to the peers.

mod begin;
mod close;
mod counters;
mod engine;
mod pair;
mod relay;
mod segment;
mod translate;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::link::{FramePayload, FramePayloads, RxFrame};
use abi::splice::{SpliceId, SpliceLimits};
use abi::{PacketBuf, PacketPool, ReceivedFrame};
use base::{DeadlineHeap, Instant, internal_error};
use hashbrown::HashTable;
use tcp_rules::tuple::hash_tuple;
use wire::Tuple;
use wire::tcp::TcpFlags;

use crate::config::SpliceConfig;
use crate::pipeline::Egress;
use crate::pipeline::rx::TransportPosition;
use counters::SpliceCounters;
pub use pair::SpliceInfo;
use pair::{KeptFrame, SplicedPair, SplicedPairPhase};
use structures::slab::{Slab, SlabKey};

/// Maximum number of spare packet handles: about the number of frames in flight.
const SPARE_PACKETS_MAX: usize = 4096;

/// The splice engine.
#[derive(Debug)]
pub(crate) struct SpliceEngine {
    config: SpliceConfig,
    mac: [u8; 6],
    seed: u64,
    pairs: Slab<SplicedPair>,
    routes: HashTable<SpliceRoute>,
    /// Pairs by queue and the host's ID.
    names: BTreeMap<(usize, SpliceId), SlabKey>,
    alarms: DeadlineHeap,
    /// Closed pairs, oldest first. Some may have been removed already.
    lingering: VecDeque<SlabKey>,
    /// Number and memory of the frames kept for pairs that have not started.
    kept: usize,
    kept_bytes: usize,
    /// Spare packet handles, reused so that a steady state does not allocate.
    spare_packets: Vec<Arc<PacketBuf>>,
    counters: SpliceCounters,
}

/// Routing entry: maps a tuple to one side of a pair.
#[derive(Debug)]
struct SpliceRoute {
    hash: u64,
    end: PairSide,
}

/// One side of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PairSide {
    key: SlabKey,
    side: usize,
}

impl SpliceEngine {
    pub(crate) fn new(config: SpliceConfig, mac: [u8; 6], seed: u64) -> Self {
        Self {
            config,
            mac,
            seed,
            pairs: Slab::new(),
            routes: HashTable::new(),
            names: BTreeMap::new(),
            alarms: DeadlineHeap::default(),
            lingering: VecDeque::new(),
            kept: 0,
            kept_bytes: 0,
            spare_packets: Vec::new(),
            counters: SpliceCounters::default(),
        }
    }

    pub(crate) fn limits(&self) -> SpliceLimits {
        SpliceLimits { pairs_max: self.config.pairs_max }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Consumes a frame of a spliced connection and returns true; returns false for other frames.
    pub(crate) fn receive(
        &mut self,
        now: Instant,
        received: &mut ReceivedFrame,
        at: &TransportPosition,
        out: &mut Egress,
    ) -> bool {
        let Some(end) = self.find(&at.tuple) else { return false };
        let Some(pair) = self.pairs.get(end.key) else {
            internal_error!(self.counters.nic_internal_errors, "a route to no pair");
            return false;
        };
        let waiting = matches!(pair.phase, SplicedPairPhase::Waiting(_));
        if matches!(pair.phase, SplicedPairPhase::Lingering(_)) && is_syn(received, at) {
            // RFC 9293 section 3.6.1: a tuple in TIME-WAIT is reused, by a peer or, if this is a
            // SYN-ACK, by our host. All bytes of the old connection are acknowledged.
            self.counters.splice_lingers_cut_short += 1;
            self.finish(out, end.key);
            return false;
        }
        let ReceivedFrame { checksum, segment_size, .. } = *received;
        let frame = RxFrame { packet: received.take_packet(), checksum, segment_size };
        if waiting {
            self.keep(out, end.key, KeptFrame { side: end.side, frame, at: *at });
        } else if out.has_run_room() {
            self.relay(out, now, end, frame, at);
        } else {
            self.counters.splice_dropped_link_full += 1;
            out.recycle(frame.packet);
        }
        true
    }

    /// Reclaims a transmitted frame: buffers that are no longer shared return to the pool.
    pub(crate) fn recycle(&mut self, payload: &mut FramePayloads, pool: &mut PacketPool) {
        for payload in payload.drain(..) {
            let mut packet = match payload {
                FramePayload::Frame(packet) => {
                    pool.put(packet);
                    continue;
                }
                FramePayload::Packet { packet, .. } => packet,
                FramePayload::Host(_) | FramePayload::Block { .. } => continue,
            };
            let Some(inner) = Arc::get_mut(&mut packet) else { continue };
            pool.put(core::mem::replace(inner, PacketBuf::empty()));
            if self.spare_packets.len() < SPARE_PACKETS_MAX {
                self.spare_packets.push(packet);
            }
        }
    }

    /// Limits the packets of all pairs to a link's MTU, in bytes above Ethernet.
    pub(crate) fn limit_mtu(&mut self, mtu: u16) {
        for pair in self.pairs.values_mut() {
            pair.directions.iter_mut().for_each(|way| way.translation.limit_mtu(mtu));
        }
    }

    pub(crate) fn forget(&mut self) {
        let Self { config, mac, seed, .. } = self;
        let fresh = Self::new(config.clone(), *mac, *seed);
        let counters = core::mem::take(&mut self.counters);
        *self = Self { counters, ..fresh };
    }

    /// Returns the tuples of all pairs.
    pub(crate) fn tuples(&self) -> impl Iterator<Item = Tuple> {
        self.pairs.iter().flat_map(|(_, pair)| pair.tuples())
    }

    /// Describes the pairs, in no particular order.
    pub(crate) fn infos(&self, now: Instant) -> impl Iterator<Item = SpliceInfo> + '_ {
        self.pairs.iter().map(move |(_, pair)| pair.info(now))
    }

    pub(crate) fn visit_counters(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(f);
        f("splice_pairs", self.pairs.len() as u64);
        f("splice_pairs_max", self.config.pairs_max.into());
        f("splice_lingering", self.lingering.len() as u64);
        f("splice_kept_frames", self.kept as u64);
    }

    /// Returns the pair and side of a tuple.
    fn find(&self, tuple: &Tuple) -> Option<PairSide> {
        let hash = hash_tuple(self.seed, tuple);
        let same = |route: &SpliceRoute| {
            route.hash == hash
                && self
                    .pairs
                    .get(route.end.key)
                    .is_some_and(|pair| pair.directions_of(route.end.side).0.tuple == *tuple)
        };
        self.routes.find(hash, same).map(|route| route.end)
    }

    fn set_alarm(&mut self, key: SlabKey) {
        if let Some(pair) = self.pairs.get(key) {
            self.alarms.set(key.index(), pair.due());
        }
    }
}

/// Returns whether a frame starts a new connection.
fn is_syn(received: &ReceivedFrame, at: &TransportPosition) -> bool {
    let flags = received.packet.as_slice().get(at.l4 + 13);
    flags.is_some_and(|&flags| {
        let flags = TcpFlags(flags);
        flags.has(TcpFlags::SYN) && !flags.any(TcpFlags::RST.with(TcpFlags::FIN))
    })
}
