//! A spliced pair and the state of its two directions, of constant size.
//!
//! A [`SpliceDirection`] is the stream sent by one side's peer, in that peer's own numbers.
//! [`SplicedPair::examine`] decides whether a segment may pass, by RFC 5961 and RFC 9293 section
//! 3.10.7.4; [`SplicedPair::record`] records a segment that has passed. Retransmission, congestion
//! control and flow control are left to the peers.

use abi::splice::{SpliceId, SpliceSide};
use alloc::vec::Vec;
use base::{Duration, Instant, SeqNum};
use tcp_rules::challenge::ChallengeLimiter;
use wire::Tuple;
use wire::tcp::TcpFlags;

use abi::link::RxFrame;

use super::segment::SplicedSegment;
use super::translate::HeaderTranslation;
use crate::pipeline::QueuedPacket;
use crate::pipeline::rx::TransportPosition;

/// Two connections spliced together.
#[derive(Debug)]
pub(super) struct SplicedPair {
    pub(super) id: SpliceId,
    /// The host's queue.
    pub(super) queue: usize,
    pub(super) idle_timeout: Duration,
    /// Time at which the pair was taken over.
    pub(super) begun_at: Instant,
    /// Time at which a packet was last relayed.
    pub(super) relayed_at: Instant,
    pub(super) challenges: ChallengeLimiter,
    pub(super) phase: SplicedPairPhase,
    pub(super) directions: [SpliceDirection; 2],
}

/// The life cycle of a pair.
#[derive(Debug)]
pub(super) enum SplicedPairPhase {
    /// The host has not returned its frames yet; these have arrived meanwhile.
    Waiting(Vec<KeptFrame>),
    Live,
    /// Both directions are closed and acknowledged; kept until this time for retransmitted FINs.
    Lingering(Instant),
}

/// A frame that waits for the pair to start.
#[derive(Debug)]
pub(super) struct KeptFrame {
    pub(super) side: usize,
    pub(super) frame: RxFrame,
    pub(super) at: TransportPosition,
}

/// One direction: the stream sent by one side's peer.
#[derive(Debug)]
pub(super) struct SpliceDirection {
    /// The connection on which the stream arrives.
    pub(super) tuple: Tuple,
    /// The packet of this direction that was queued last. Later ones may join it.
    pub(super) queued: Option<QueuedPacket>,
    /// Translation of the headers for the other side.
    pub(super) translation: HeaderTranslation,
    /// Window scale of the peer that sends this stream.
    peer_scale: u8,
    /// Sequence number after the last one relayed.
    pub(super) end: SeqNum,
    /// Sequence number that the other side's peer has acknowledged and expects next.
    pub(super) acked: SeqNum,
    /// Right edge of the largest window offered to the sender.
    edge: SeqNum,
    /// Largest window ever offered to the sender: how far back its retransmissions may reach.
    window_max: u32,
    /// Sequence number of the FIN, once it was relayed.
    fin: Option<SeqNum>,
    fin_acked: bool,
    /// Window field last offered by the other side's peer, as relayed to this side's peer.
    pub(super) window: u16,
    /// Latest TSval of the peer that sends this stream.
    pub(super) ts_recent: u32,
    /// Payload bytes acknowledged.
    pub(super) bytes: u64,
    /// Packets relayed.
    pub(super) packets: u64,
}

/// Description of a pair for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpliceInfo {
    /// Both connections, in the order that the host gave.
    pub tuples: [Tuple; 2],
    /// `BEGINNING` until the host has returned its frames; `SPLICED`; `CLOSED` once both directions
    /// are closed, while retransmitted FINs are still answered.
    pub state: &'static str,
    /// Payload bytes that each side's peer sent and the other acknowledged.
    pub bytes: [u64; 2],
    /// Packets relayed from each side's peer.
    pub packets: [u64; 2],
    /// Time since the device took over the pair.
    pub age: Duration,
    /// Time since a packet was last relayed.
    pub idle: Duration,
}

/// Reason for which a segment may not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpliceFault {
    Syn,
    /// A reset with another number than the expected one, in the window or not.
    BlindReset {
        in_window: bool,
    },
    OutOfWindow,
    BadAck,
    NoAck,
}

impl SpliceDirection {
    /// Creates the direction from `from`'s peer to `to`'s.
    pub(super) fn new(from: &SpliceSide, to: &SpliceSide, translation: HeaderTranslation) -> Self {
        let window_max = from.own_window.max(to.peer_window).max(u32::from(u16::MAX));
        Self {
            tuple: from.tuple,
            queued: None,
            translation,
            peer_scale: from.peer_scale,
            end: from.rcv_nxt,
            acked: from.rcv_nxt,
            // An offered window stays valid even if the other peer's is smaller; bytes that do not
            // fit there are retransmitted.
            edge: from.rcv_nxt + from.own_window.max(to.peer_window),
            window_max,
            fin: None,
            fin_acked: false,
            window: u16::try_from(from.own_window >> from.own_scale).unwrap_or(u16::MAX),
            ts_recent: from.timestamps.map_or(0, |ts| ts.ts_recent),
            bytes: 0,
            packets: 0,
        }
    }

    /// Returns whether a segment of `len` sequence numbers at `seq` can concern the receiver: it
    /// lies in the window, or it is a retransmission that shows that an acknowledgment was lost.
    fn takes(&self, seq: SeqNum, len: u32) -> bool {
        let start = i64::from(seq.distance(self.acked));
        start <= i64::from(self.edge.distance(self.acked))
            && start + i64::from(len) >= -i64::from(self.window_max)
    }

    /// Records that the receiver has acknowledged everything before `ack` and offers `window` bytes
    /// from there on.
    fn acknowledge(&mut self, ack: SeqNum, window: u32) {
        let ahead = ack.distance(self.acked);
        if ahead > 0 {
            self.bytes += u64::from(ahead.unsigned_abs());
            self.acked = ack;
            if !self.fin_acked && self.fin.is_some_and(|fin| ack.gt(fin)) {
                self.fin_acked = true;
                self.bytes -= 1;
            }
        }
        self.edge = self.edge.max(ack + window);
        self.window_max = self.window_max.max(window);
    }
}

impl SplicedPair {
    /// Starts relaying and returns the kept frames; `None` if the pair was started before.
    pub(super) fn start(&mut self) -> Option<Vec<KeptFrame>> {
        let SplicedPairPhase::Waiting(kept) = &mut self.phase else { return None };
        let kept = core::mem::take(kept);
        self.phase = SplicedPairPhase::Live;
        Some(kept)
    }

    /// Checks whether a segment from `side`'s peer may pass.
    ///
    /// # Errors
    /// The reason for which it may not.
    pub(super) fn examine(&self, side: usize, segment: &SplicedSegment) -> Result<(), SpliceFault> {
        let (way, back) = self.directions_of(side);
        let flags = segment.flags;
        if flags.has(TcpFlags::SYN) {
            return Err(SpliceFault::Syn);
        }
        if flags.has(TcpFlags::RST) {
            // RFC 5961 section 3.2: only the exact number resets.
            if segment.seq == way.acked {
                return Ok(());
            }
            let ahead = segment.seq.distance(way.acked);
            let in_window = ahead > 0 && ahead <= way.edge.distance(way.acked);
            return Err(SpliceFault::BlindReset { in_window });
        }
        if !flags.has(TcpFlags::ACK) {
            return Err(SpliceFault::NoAck);
        }
        if !way.takes(segment.seq, segment.len()) {
            return Err(SpliceFault::OutOfWindow);
        }
        // RFC 5961 section 5.2: SND.UNA - MAX.SND.WND <= SEG.ACK <= SND.NXT.
        let ack = way.translation.ack(segment.ack);
        let behind = i64::from(back.acked.distance(ack));
        if ack.gt(back.end) || behind > i64::from(back.window_max) {
            return Err(SpliceFault::BadAck);
        }
        Ok(())
    }

    /// Records the TSval of a segment of `side`'s peer that was relayed.
    pub(super) fn note_tsval(&mut self, side: usize, value: u32) {
        let (way, back) = self.directions_of_mut(side);
        way.ts_recent = value;
        if let Some(sent) = way.translation.tsval(value) {
            back.translation.note_tsval_sent(sent);
        }
    }

    /// Records a segment of `side`'s peer that was relayed as `packets` packets with `window` in
    /// its window field. Returns whether both directions are now closed.
    pub(super) fn record(
        &mut self,
        side: usize,
        segment: &SplicedSegment,
        window: u16,
        packets: u64,
    ) -> bool {
        let (way, back) = self.directions_of_mut(side);
        way.packets += packets;
        way.end = way.end.max(segment.seq + segment.len());
        if segment.flags.has(TcpFlags::FIN) && way.fin.is_none() {
            way.fin = Some(segment.seq + (segment.len() - 1));
        }
        let offered = u32::from(segment.window) << way.peer_scale;
        let ack = way.translation.ack(segment.ack);
        if !ack.lt(back.acked) {
            // RFC 9293 section 3.10.7.4: an overtaken segment does not update the window. A
            // challenge ACK with its window and the latest number would offer a window that no peer
            // offered.
            back.window = window;
        }
        back.acknowledge(ack, offered);
        way.fin_acked && back.fin_acked
    }

    /// Returns the tuples of both connections.
    pub(super) fn tuples(&self) -> [Tuple; 2] {
        let [a, b] = &self.directions;
        [a.tuple, b.tuple]
    }

    /// Describes the pair for operators.
    pub(super) fn info(&self, now: Instant) -> SpliceInfo {
        let [a, b] = &self.directions;
        SpliceInfo {
            tuples: self.tuples(),
            state: match self.phase {
                SplicedPairPhase::Waiting(_) => "BEGINNING",
                SplicedPairPhase::Live => "SPLICED",
                SplicedPairPhase::Lingering(_) => "CLOSED",
            },
            bytes: [a.bytes, b.bytes],
            packets: [a.packets, b.packets],
            age: now.since(self.begun_at),
            idle: now.since(self.relayed_at),
        }
    }

    /// Returns the direction from `side` and the one to it.
    pub(super) fn directions_of(&self, side: usize) -> (&SpliceDirection, &SpliceDirection) {
        let [a, b] = &self.directions;
        if side == 0 { (a, b) } else { (b, a) }
    }

    /// As [`Self::directions_of`], mutably.
    pub(super) fn directions_of_mut(
        &mut self,
        side: usize,
    ) -> (&mut SpliceDirection, &mut SpliceDirection) {
        let [a, b] = &mut self.directions;
        if side == 0 { (a, b) } else { (b, a) }
    }

    /// Returns the time at which the pair ends if nothing else happens before.
    pub(super) fn due(&self) -> Instant {
        match self.phase {
            SplicedPairPhase::Lingering(until) => until,
            SplicedPairPhase::Waiting(_) | SplicedPairPhase::Live => {
                self.relayed_at + self.idle_timeout
            }
        }
    }
}
