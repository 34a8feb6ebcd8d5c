//! Splicing: the device relays packets between two connections that the host has joined (AccelTCP
//! section 4.3).
//!
//! The two peers effectively share one TCP connection without knowing it: each one's segments are
//! sent to the other with translated headers. The device keeps constant state per direction, no
//! payload once a pair has started, and only timers for idleness and for the end.
//!
//! - `segment` parses, `pair` decides which segments may pass and tracks them, `translate` rewrites
//!   headers;
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
mod segment;
mod translate;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::link::{FramePayload, FramePayloads, RxFrame};
use abi::splice::{SpliceEnd, SpliceId, SpliceLimits};
use abi::{Checksum, PacketBuf, PacketPool, ReceivedFrame};
use base::{DeadlineHeap, Instant, internal_error};
use hashbrown::HashTable;
use tcp_rules::tuple::hash_tuple;
use wire::Tuple;
use wire::tcp::TcpFlags;

use crate::config::SpliceConfig;
use crate::pipeline::rx::TransportPosition;
use crate::pipeline::{Egress, TxRun};
use counters::SpliceCounters;
pub use pair::SpliceInfo;
use pair::{KeptFrame, SpliceFault, SplicedPair, SplicedPairPhase};
use segment::SplicedSegment;
use structures::slab::{Slab, SlabKey};
use translate::Untranslatable;

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
            let FramePayload::Packet { mut packet, .. } = payload else { continue };
            let Some(inner) = Arc::get_mut(&mut packet) else { continue };
            pool.put(core::mem::replace(inner, PacketBuf::empty()));
            if self.spare_packets.len() < SPARE_PACKETS_MAX {
                self.spare_packets.push(packet);
            }
        }
    }

    pub(crate) fn forget(&mut self) {
        let Self { config, mac, seed, .. } = self;
        let fresh = Self::new(config.clone(), *mac, *seed);
        let counters = core::mem::take(&mut self.counters);
        *self = Self { counters, ..fresh };
    }

    /// Describes the pairs, in no particular order.
    pub(crate) fn infos(&self, now: Instant) -> impl Iterator<Item = SpliceInfo> + '_ {
        self.pairs.iter().map(move |(_, pair)| pair.info(now))
    }

    pub(crate) fn visit_counters(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(f);
        f("splice_pairs", self.pairs.len() as u64);
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

    /// Relays a frame to the other side if it may pass.
    fn relay(
        &mut self,
        out: &mut Egress,
        now: Instant,
        end: PairSide,
        frame: RxFrame,
        at: &TransportPosition,
    ) {
        let Some(segment) = SplicedSegment::read(frame.packet.as_slice(), at) else {
            self.counters.splice_dropped_malformed += 1;
            return out.recycle(frame.packet);
        };
        // A frame relayed before this one may have ended the pair.
        let Some(pair) = self.pairs.get(end.key) else { return out.recycle(frame.packet) };
        if let Err(fault) = pair.examine(end.side, &segment) {
            out.recycle(frame.packet);
            return self.refuse(out, now, end, fault);
        }
        if segment.flags.has(TcpFlags::RST) {
            return self.relay_reset(out, end, frame, at, segment);
        }
        let closed = self.pass(out, now, end, frame, at, &segment);
        if closed {
            self.linger(out, now, end.key);
        }
    }

    /// Counts a segment that may not pass, and challenges its sender if necessary.
    fn refuse(&mut self, out: &mut Egress, now: Instant, end: PairSide, fault: SpliceFault) {
        let c = &mut self.counters;
        *match fault {
            SpliceFault::Syn => &mut c.splice_dropped_syn,
            SpliceFault::BlindReset { .. } => &mut c.splice_dropped_blind_reset,
            SpliceFault::OutOfWindow => &mut c.splice_dropped_out_of_window,
            SpliceFault::BadAck => &mut c.splice_dropped_bad_ack,
            SpliceFault::NoAck => &mut c.splice_dropped_no_ack,
        } += 1;
        if matches!(fault, SpliceFault::Syn | SpliceFault::BlindReset { in_window: true }) {
            self.challenge(out, now, end);
        }
    }

    /// Relays a segment that may pass. Returns whether both directions are now closed.
    fn pass(
        &mut self,
        out: &mut Egress,
        now: Instant,
        end: PairSide,
        frame: RxFrame,
        at: &TransportPosition,
        segment: &SplicedSegment,
    ) -> bool {
        let Some(pair) = self.pairs.get_mut(end.key) else {
            internal_error!(self.counters.nic_internal_errors, "a frame of no pair");
            out.recycle(frame.packet);
            return false;
        };
        let RxFrame { packet, checksum, segment_size } = frame;
        let (way, back) = pair.directions_of_mut(end.side);
        let translated = way.translation.translate(packet.as_slice(), at, segment, back.end);
        let translated = match translated {
            Ok(translated) => translated,
            Err(unfit) => {
                *match unfit {
                    Untranslatable::Malformed => &mut self.counters.splice_dropped_malformed,
                    Untranslatable::HopLimit => &mut self.counters.splice_dropped_hop_limit,
                } += 1;
                out.recycle(packet);
                return false;
            }
        };
        if let Some(tsval) = translated.tsval {
            way.ts_recent = tsval;
            way.translation
                .tsval(tsval)
                .into_iter()
                .for_each(|v| back.translation.note_tsval_sent(v));
        }
        self.counters.splice_sack_left_out += u64::from(translated.sack_left_out);
        let len = segment.payload.len();
        let packets = match usize::from(segment_size) {
            0 => 1,
            size => len.div_ceil(size).max(1) as u64,
        };
        let closed = pair.record(end.side, segment, translated.window, packets);
        pair.relayed_at = now;
        self.counters.splice_relayed_packets += packets;
        self.counters.splice_relayed_bytes += len as u64;
        let payload = self.payload(out, packet, segment);
        // Segments above the other side's MSS are segmented again, and so are merged frames.
        let size = match segment_size {
            0 => translated.payload_max,
            size => size.min(translated.payload_max),
        };
        let whole = len <= usize::from(size);
        self.counters.splice_cut += u64::from(len > usize::from(translated.payload_max));
        if whole && checksum == Checksum::Good {
            self.counters.splice_checksums_adjusted += 1;
            out.queue_run(TxRun::from_complete_header(translated.finish(len), payload));
        } else {
            self.counters.splice_checksums_summed += 1;
            let run = TxRun::from_header_segmented(translated.header, payload, size);
            run.into_iter().for_each(|run| out.queue_run(run));
        }
        closed
    }

    /// Returns a frame's payload for sharing with the outgoing frame. The buffer of a frame without
    /// payload is released.
    fn payload(
        &mut self,
        out: &mut Egress,
        packet: PacketBuf,
        segment: &SplicedSegment,
    ) -> FramePayloads {
        let mut payloads = FramePayloads::new();
        let place = (u32::try_from(segment.payload.start), u32::try_from(segment.payload.len()));
        match place {
            (Ok(start), Ok(len)) if len > 0 => {
                let packet = self.share(packet);
                payloads.push(FramePayload::Packet { packet, start, len });
            }
            _ => out.recycle(packet),
        }
        payloads
    }

    fn share(&mut self, packet: PacketBuf) -> Arc<PacketBuf> {
        let Some(mut shell) = self.spare_packets.pop() else { return Arc::new(packet) };
        match Arc::get_mut(&mut shell) {
            Some(inner) => {
                *inner = packet;
                shell
            }
            None => Arc::new(packet),
        }
    }

    /// Relays a reset and ends the pair. The reset gets the number after everything that was
    /// relayed. The receiver expects that number; or, if bytes are still in flight, the number lies
    /// in its window, and the host answers its challenge ACK (RFC 5961 section 3.2).
    fn relay_reset(
        &mut self,
        out: &mut Egress,
        end: PairSide,
        frame: RxFrame,
        at: &TransportPosition,
        mut segment: SplicedSegment,
    ) {
        let Some(pair) = self.pairs.get_mut(end.key) else {
            internal_error!(self.counters.nic_internal_errors, "a reset of no pair");
            return out.recycle(frame.packet);
        };
        let (way, back) = pair.directions_of_mut(end.side);
        way.packets += 1;
        let acked = segment.seq;
        segment.payload.end = segment.payload.start;
        let translated = way.translation.translate(frame.packet.as_slice(), at, &segment, back.end);
        let behind = way.translation.seq(way.end);
        let moved = behind.0.wrapping_sub(way.translation.seq(acked).0);
        let lingers = matches!(pair.phase, SplicedPairPhase::Lingering(_));
        if let Ok(mut translated) = translated {
            let l4 = translated.header.l4();
            let field = translated.header.as_mut_slice().get_mut(l4 + 4..);
            if let Some(field) = field.and_then(|field| field.first_chunk_mut::<4>()) {
                *field = u32::from_be_bytes(*field).wrapping_add(moved).to_be_bytes();
            }
            self.counters.splice_relayed_packets += 1;
            self.counters.splice_checksums_summed += 1;
            let run = TxRun::from_header_segmented(translated.header, FramePayloads::new(), 0);
            run.into_iter().for_each(|run| out.queue_run(run));
        }
        out.recycle(frame.packet);
        if lingers {
            return self.finish(out, end.key);
        }
        self.counters.splice_reset_by_peer += 1;
        self.close(out, end.key, SpliceEnd::Reset(u8::from(end.side == 1)));
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
