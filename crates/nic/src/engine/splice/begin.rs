//! The start of a pair: checks the host's request, claims both tuples, and keeps arriving frames
//! until the host has returned the frames that it received before.

use abi::Refusal;
use abi::link::RxFrame;
use abi::splice::{Splice, SpliceId, SpliceSide};
use alloc::boxed::Box;
use alloc::vec::Vec;
use base::{Duration, Instant, internal_error};
use tcp_rules::challenge::ChallengeLimiter;
use tcp_rules::tuple::hash_tuple;
use wire::frame::{ParsedFrame, parse, protocol};
use wire::{Endpoint, Tuple};

use super::pair::{KeptFrame, SpliceDirection, SplicedPair, SplicedPairPhase};
use super::translate::HeaderTranslation;
use super::{PairSide, SpliceEngine, SpliceRoute};
use crate::pipeline::Egress;
use crate::pipeline::rx::TransportPosition;
use structures::slab::SlabKey;

/// Maximum window: 2^16 scaled by 14 (RFC 7323 section 2.3).
const WINDOW_MAX: u32 = 1 << 30;
/// Maximum window scale.
const SCALE_MAX: u8 = 14;
/// Minimum idle time-out of a pair.
const IDLE_MIN: Duration = Duration::from_millis(1);

impl SpliceEngine {
    /// Takes over two connections.
    ///
    /// # Errors
    /// The reason for the refusal; nothing has changed then.
    pub(crate) fn begin(
        &mut self,
        now: Instant,
        queue: usize,
        splice: &Splice,
        out: &mut Egress,
    ) -> Result<(), Refusal> {
        let [a, b] = &splice.sides;
        if !splice.sides.iter().all(is_sound) {
            self.counters.splice_refused_malformed += 1;
            return Err(Refusal::DoesNotFit);
        }
        if a.timestamps.is_some() != b.timestamps.is_some() {
            self.counters.splice_refused_options += 1;
            return Err(Refusal::OptionsDiffer);
        }
        let known = |side: &SpliceSide| self.find(&side.tuple).is_some();
        if a.tuple == b.tuple
            || splice.sides.iter().any(known)
            || self.names.contains_key(&(queue, splice.id))
        {
            self.counters.splice_refused_taken += 1;
            return Err(Refusal::DoesNotFit);
        }
        if self.pairs.len() >= self.config.pairs_max as usize && !self.evict_lingering(out) {
            self.counters.splice_refused_full += 1;
            return Err(Refusal::TableFull);
        }
        let mtu = out.link.mtu;
        let way = |from, to| {
            SpliceDirection::new(from, to, HeaderTranslation::new(from, to, self.mac, mtu))
        };
        let key = self.pairs.insert(SplicedPair {
            id: splice.id,
            queue,
            idle_timeout: splice.idle_timeout.max(IDLE_MIN),
            begun_at: now,
            relayed_at: now,
            challenges: ChallengeLimiter::new(),
            phase: SplicedPairPhase::Waiting(Vec::new()),
            directions: [way(a, b), way(b, a)],
        });
        for (side, tuple) in [a.tuple, b.tuple].into_iter().enumerate() {
            let hash = hash_tuple(self.seed, &tuple);
            self.routes.insert_unique(
                hash,
                SpliceRoute { hash, end: PairSide { key, side } },
                |route| route.hash,
            );
        }
        self.names.insert((queue, splice.id), key);
        self.set_alarm(key);
        self.counters.splice_begun += 1;
        Ok(())
    }

    /// Starts relaying: first the frames that the host returns, then those kept meanwhile.
    pub(crate) fn start(
        &mut self,
        now: Instant,
        queue: usize,
        id: SpliceId,
        packets: Box<[RxFrame]>,
        out: &mut Egress,
    ) {
        let key = self.names.get(&(queue, id)).copied().unwrap_or(SlabKey::NONE);
        let pair = self.pairs.get_mut(key);
        let Some(kept) = pair.and_then(SplicedPair::start) else {
            self.counters.splice_ops_ignored += 1;
            packets.into_iter().for_each(|frame| out.recycle(frame.packet));
            return;
        };
        for frame in packets {
            match locate(&frame).and_then(|at| Some((self.find(&at.tuple)?, at))) {
                Some((end, at)) if end.key == key => {
                    self.relay(out, now, end, frame, &at);
                }
                _ => {
                    self.counters.splice_dropped_not_of_pair += 1;
                    out.recycle(frame.packet);
                }
            }
        }
        for KeptFrame { side, frame, at } in kept {
            self.uncount_kept(&frame);
            self.relay(out, now, PairSide { key, side }, frame, &at);
        }
    }

    /// Keeps a frame of a pair that has not started, or drops it if there is no room.
    pub(super) fn keep(&mut self, out: &mut Egress, key: SlabKey, kept: KeptFrame) {
        let bytes = kept.frame.packet.footprint();
        let Some(SplicedPair { phase: SplicedPairPhase::Waiting(queue), .. }) =
            self.pairs.get_mut(key)
        else {
            internal_error!(self.counters.nic_internal_errors, "a frame is kept of no new pair");
            return out.recycle(kept.frame.packet);
        };
        if queue.len() >= self.config.kept_frames_max
            || self.kept_bytes + bytes > self.config.kept_bytes_max
        {
            // The peer will retransmit it.
            self.counters.splice_dropped_kept_full += 1;
            out.recycle(kept.frame.packet);
            return;
        }
        queue.push(kept);
        self.kept += 1;
        self.kept_bytes += bytes;
        self.counters.splice_kept_frames_total += 1;
    }

    /// Stops counting a kept frame.
    pub(super) fn uncount_kept(&mut self, frame: &RxFrame) {
        self.kept -= 1;
        self.kept_bytes -= frame.packet.footprint();
    }
}

/// Returns whether the parameters of a side are valid for a TCB.
fn is_sound(side: &SpliceSide) -> bool {
    let Tuple { local, remote } = side.tuple;
    local.addr.is_ipv4() == remote.addr.is_ipv4()
        && [local, remote]
            .iter()
            .all(|end| end.port != 0 && !end.addr.is_multicast() && !end.addr.is_unspecified())
        && side.next_hop_mac[0] & 1 == 0
        && side.mss > 0
        && side.peer_scale <= SCALE_MAX
        && side.own_scale <= SCALE_MAX
        && side.peer_window <= WINDOW_MAX
        && side.own_window <= WINDOW_MAX
}

/// Locates the TCP segment in a frame that the host returned. The host's word is not trusted, so
/// the frame is parsed again.
fn locate(frame: &RxFrame) -> Option<TransportPosition> {
    let bytes = frame.packet.as_slice();
    let Ok(ParsedFrame::Ip(ip)) = parse(bytes) else { return None };
    if ip.protocol != protocol::TCP || !frame.checksum.is_good() {
        return None;
    }
    let ports: &[u8; 4] = bytes.get(ip.l4..ip.end)?.first_chunk()?;
    let [s0, s1, d0, d1] = *ports;
    let end = |addr, port| Endpoint { addr, port: u16::from_be_bytes(port) };
    let tuple = Tuple { local: end(ip.destination, [d0, d1]), remote: end(ip.source, [s0, s1]) };
    Some(TransportPosition { tuple, l3: ip.l3, l4: ip.l4, end: ip.end })
}
