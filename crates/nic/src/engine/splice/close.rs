//! The end of a pair: closed by both sides, reset by one, idle, or ended by the host. Also the
//! segments that the device originates: resets and challenge acknowledgments.

use abi::link::FramePayloads;
use abi::splice::{SpliceClosed, SpliceEnd, SpliceId};
use abi::{Event, PacketHeader};
use alloc::boxed::Box;
use alloc::vec::Vec;
use base::{Duration, Instant, SeqNum, internal_error};
use tcp_rules::tuple::hash_tuple;
use wire::tcp::{TcpFlags, TcpHeader as TcpSegment, TcpOptions, TcpTimestamps};
use wire::{ETHERNET_BYTES, TCP_BYTES};

use super::pair::{SplicedPair, SplicedPairPhase};
use super::{PairSide, SpliceEngine};
use structures::slab::SlabKey;

use crate::pipeline::{Egress, TxRun};

/// Time for which a closed pair is kept. The last acknowledgment may be lost, and is repeated only
/// for a retransmitted FIN. A peer without a round-trip time estimate (RFC 6298 section 2: RTO of
/// one second) retransmits three times in this period, after 1, 3 and 7 seconds. All bytes of a
/// peer that does so later are acknowledged; it gets a reset from the host. The two peers keep
/// TIME-WAIT themselves.
const LINGER: Duration = Duration::from_secs(8);
/// Hop limit of segments that the device originates.
const HOP_LIMIT: u8 = 64;

impl SpliceEngine {
    /// Ends a pair at the host's request. Both connections are reset, unless relaying has not
    /// started and they still belong to the host.
    pub(crate) fn end(&mut self, queue: usize, id: SpliceId, out: &mut Egress) {
        match self.names.get(&(queue, id)).copied() {
            Some(key) => {
                self.counters.splice_unspliced += 1;
                let begun =
                    |pair: &SplicedPair| !matches!(pair.phase, SplicedPairPhase::Waiting(_));
                if self.pairs.get(key).is_some_and(begun) {
                    self.reset_both(out, key);
                }
                self.close(out, key, SpliceEnd::Unspliced);
            }
            None => self.counters.splice_ops_ignored += 1,
        }
    }

    /// Ends every pair of a queue as [`Self::end`] does.
    pub(crate) fn end_all(&mut self, queue: usize, out: &mut Egress) {
        let names = self.names.keys().filter(|(of, _)| *of == queue);
        let ids: Vec<SpliceId> = names.map(|(_, id)| *id).collect();
        ids.into_iter().for_each(|id| self.end(queue, id, out));
    }

    /// Ends pairs that have been idle or closed for long enough.
    pub(crate) fn run_timers(&mut self, now: Instant, out: &mut Egress) {
        while let Some(place) = self.alarms.pop(now) {
            let key = self.pairs.key_at(place);
            let Some((key, pair)) = key.and_then(|key| Some((key, self.pairs.get(key)?))) else {
                internal_error!(self.counters.nic_internal_errors, "an alarm of no pair");
                continue;
            };
            if pair.due() > now {
                // Packets were relayed since the alarm was set.
                self.set_alarm(key);
            } else if matches!(pair.phase, SplicedPairPhase::Lingering(_)) {
                self.finish(out, key);
            } else {
                self.counters.splice_idle_timeouts += 1;
                self.reset_both(out, key);
                self.close(out, key, SpliceEnd::IdleTimeout);
            }
        }
    }

    /// Returns the time at which to call [`Self::run_timers`].
    pub(crate) fn due(&self) -> Option<Instant> {
        self.alarms.next()
    }

    /// Reports a pair whose directions are both closed and acknowledged, and keeps it for a while
    /// without its ID, similar to TIME-WAIT.
    pub(super) fn linger(&mut self, out: &mut Egress, now: Instant, key: SlabKey) {
        let Some(pair) = self.pairs.get_mut(key) else {
            internal_error!(self.counters.nic_internal_errors, "no such pair lingers");
            return;
        };
        if !matches!(pair.phase, SplicedPairPhase::Live) {
            return;
        }
        pair.phase = SplicedPairPhase::Lingering(now + LINGER);
        self.lingering.push_back(key);
        self.names.remove(&(pair.queue, pair.id));
        self.counters.splice_closed += 1;
        let closed = Box::new(pair.closed(SpliceEnd::Closed));
        out.emit(pair.queue, Event::SpliceClosed(closed));
        self.set_alarm(key);
    }

    /// Removes the pair that was closed first. Returns whether there was one.
    pub(super) fn evict_lingering(&mut self, out: &mut Egress) -> bool {
        while let Some(key) = self.lingering.pop_front() {
            if self.pairs.get(key).is_some() {
                self.counters.splice_lingers_cut_short += 1;
                self.finish(out, key);
                return true;
            }
        }
        false
    }

    /// Removes a pair whose orderly close was reported to the host.
    pub(super) fn finish(&mut self, out: &mut Egress, key: SlabKey) {
        self.close(out, key, SpliceEnd::Closed);
        while self.lingering.front().is_some_and(|&key| self.pairs.get(key).is_none()) {
            self.lingering.pop_front();
        }
    }

    /// Removes a pair, and reports that unless its close was reported before.
    pub(super) fn close(&mut self, out: &mut Egress, key: SlabKey, end: SpliceEnd) {
        let Some(mut pair) = self.pairs.remove(key) else {
            internal_error!(self.counters.nic_internal_errors, "no such pair ends");
            return;
        };
        self.alarms.clear(key.index());
        self.names.remove(&(pair.queue, pair.id));
        for way in &pair.directions {
            let hash = hash_tuple(self.seed, &way.tuple);
            if let Ok(route) =
                self.routes.find_entry(hash, |route| route.hash == hash && route.end.key == key)
            {
                route.remove();
            }
        }
        if let SplicedPairPhase::Waiting(kept) = &mut pair.phase {
            for kept in kept.drain(..) {
                self.uncount_kept(&kept.frame);
                out.recycle(kept.frame.packet);
            }
        }
        if !matches!(pair.phase, SplicedPairPhase::Lingering(_)) {
            out.emit(pair.queue, Event::SpliceClosed(Box::new(pair.closed(end))));
        }
    }

    fn reset_both(&mut self, out: &mut Egress, key: SlabKey) {
        let Some(pair) = self.pairs.get(key) else {
            internal_error!(self.counters.nic_internal_errors, "no such pair is reset");
            return;
        };
        let runs = [0, 1].map(|side| {
            let (_, back) = pair.directions_of(side);
            // The receiver expects the number after the last one relayed. If bytes are still in
            // flight, the number lies in its window; it sends a challenge ACK, and the host answers
            // (RFC 5961 section 3.2).
            own_segment(pair, side, back.translation.seq(back.end), None)
        });
        runs.into_iter().flatten().for_each(|run| out.queue_run(run));
        self.counters.splice_resets_sent += 2;
    }

    /// Sends a challenge ACK to the peer of side `end`, so that it confirms or discards its SYN or
    /// reset (RFC 5961 sections 3.2 and 4.2).
    pub(super) fn challenge(&mut self, out: &mut Egress, now: Instant, end: PairSide) {
        let Some(pair) = self.pairs.get_mut(end.key) else {
            internal_error!(self.counters.nic_internal_errors, "no such pair is challenged");
            return;
        };
        if !pair.challenges.allow(now) {
            self.counters.splice_challenges_limited += 1;
            return;
        }
        self.counters.splice_challenges += 1;
        let (way, back) = pair.directions_of(end.side);
        let seq = back.translation.seq(back.end);
        if let Some(run) = own_segment(pair, end.side, seq, Some(way.acked)) {
            out.queue_run(run);
            // A later packet stays behind it.
            pair.directions_of_mut(end.side).1.queued = None;
        }
    }
}

impl SplicedPair {
    /// Builds the final report for the host.
    fn closed(&self, end: SpliceEnd) -> SpliceClosed {
        let [a, b] = &self.directions;
        let (bytes, packets) = ([a.bytes, b.bytes], [a.packets, b.packets]);
        SpliceClosed { id: self.id, bytes, packets, end }
    }
}

/// Builds a segment from the device to the peer of `side`: an acknowledgment if `ack` is given,
/// otherwise a reset.
fn own_segment(pair: &SplicedPair, side: usize, seq: SeqNum, ack: Option<SeqNum>) -> Option<TxRun> {
    let (way, back) = pair.directions_of(side);
    let to = &back.translation;
    let timestamps = ack
        .and_then(|_| to.tsval(back.ts_recent))
        .map(|value| TcpTimestamps { value, echo: way.ts_recent });
    let segment = TcpSegment {
        source: way.tuple.local.port,
        destination: way.tuple.remote.port,
        seq,
        ack: ack.unwrap_or_default(),
        flags: if ack.is_some() { TcpFlags::ACK } else { TcpFlags::RST },
        window: if ack.is_some() { way.window } else { 0 },
        options: TcpOptions { timestamps, ..TcpOptions::default() },
    };
    let prefix = to.prefix();
    let len = prefix.len() + segment.header_len();
    debug_assert!(segment.header_len() >= TCP_BYTES, "a whole header");
    let mut header = PacketHeader::zeroed(len, ETHERNET_BYTES, prefix.len()).ok()?;
    let (ip, tcp) = header.as_mut_slice().split_at_mut(prefix.len());
    ip.copy_from_slice(prefix);
    let hop_limit_at = if ip[ETHERNET_BYTES] >> 4 == 4 { 8 } else { 7 };
    ip[ETHERNET_BYTES + hop_limit_at] = HOP_LIMIT;
    segment.emit(tcp);
    TxRun::from_header(header, FramePayloads::new())
}
