//! A spliced pair and what is known of its two directions: constant state, however much passes.
//!
//! A [`Way`] is what one side's peer sends, in that peer's own numbers. [`Pair::examine`] decides
//! whether a segment may pass, by RFC 5961 and RFC 9293 section 3.10.7.4; [`Pair::note`] remembers
//! what has passed. Retransmission, congestion and flow control are the two peers' own.

use abi::splice::{SpliceId, SpliceSide};
use alloc::vec::Vec;
use base::{Duration, Instant, SeqNum};
use tcp_rules::challenge::ChallengeLimiter;
use wire::Tuple;
use wire::tcp::Flags;

use abi::port::RxFrame;

use super::segment::Segment;
use super::translate::Translation;
use crate::pipeline::rx::TransportAt;

/// Two connections that are one.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) id: SpliceId,
    /// The host's queue.
    pub(super) queue: usize,
    pub(super) idle_timeout: Duration,
    /// When it was taken over.
    pub(super) begun_at: Instant,
    /// When a packet was last relayed.
    pub(super) heard_at: Instant,
    pub(super) challenges: ChallengeLimiter,
    pub(super) phase: Phase,
    pub(super) ways: [Way; 2],
}

/// How far a pair is.
#[derive(Debug)]
pub(super) enum Phase {
    /// The host has not yet given back what came before; this came since.
    Waiting(Vec<Kept>),
    Live,
    /// Both directions are closed and acknowledged; kept until then for what is sent again.
    Lingering(Instant),
}

/// A frame that waits for the pair to begin.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) side: usize,
    pub(super) frame: RxFrame,
    pub(super) at: TransportAt,
}

/// One direction: what that side's peer sends.
#[derive(Debug)]
pub(super) struct Way {
    /// The connection that it comes on.
    pub(super) tuple: Tuple,
    /// What becomes of it.
    pub(super) translation: Translation,
    /// Shift of the windows that this side's peer offers.
    peer_scale: u8,
    /// Behind the last sequence number relayed.
    pub(super) end: SeqNum,
    /// What the other side's peer has acknowledged, and so expects next.
    pub(super) acked: SeqNum,
    /// Right edge of what the peer was ever allowed to send.
    edge: SeqNum,
    /// The widest window that it was ever given: how far back what it repeats may reach.
    window_max: u32,
    /// Number of the FIN, once it was relayed.
    fin: Option<SeqNum>,
    fin_acked: bool,
    /// Window field that the other side's peer offered last, as it was relayed to this one.
    pub(super) window: u16,
    /// Latest TSval of this side's peer.
    pub(super) recent: u32,
    /// Payload bytes acknowledged.
    pub(super) bytes: u64,
    /// Packets relayed.
    pub(super) packets: u64,
}

/// What an operator is shown of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpliceInfo {
    /// Both connections, in the order that the host gave.
    pub tuples: [Tuple; 2],
    /// `BEGINNING` while the host gives back what came before; `SPLICED`; `CLOSED` when both
    /// directions are, for as long as what is sent again is awaited.
    pub state: &'static str,
    /// Payload bytes that each side's peer sent and the other's acknowledged.
    pub bytes: [u64; 2],
    /// Packets relayed that each side's peer sent.
    pub packets: [u64; 2],
    /// How long the device has had it.
    pub age: Duration,
    /// How long nothing has been relayed.
    pub idle: Duration,
}

/// Why a segment does not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Syn,
    /// A reset with another number than the one expected; in the window or not.
    BlindReset {
        in_window: bool,
    },
    OutOfWindow,
    BadAck,
    NoAck,
}

impl Way {
    /// What `from`'s peer sends, and `to`'s shall get.
    pub(super) fn new(from: &SpliceSide, to: &SpliceSide, translation: Translation) -> Self {
        let window_max = from.own_window.max(to.peer_window).max(u32::from(u16::MAX));
        Self {
            tuple: from.tuple,
            translation,
            peer_scale: from.peer_scale,
            end: from.rcv_nxt,
            acked: from.rcv_nxt,
            // A window that was offered holds, though the other peer's may be smaller: what does
            // not fit there is sent again.
            edge: from.rcv_nxt + from.own_window.max(to.peer_window),
            window_max,
            fin: None,
            fin_acked: false,
            window: u16::try_from(from.own_window >> from.own_scale).unwrap_or(u16::MAX),
            recent: from.timestamps.map_or(0, |ts| ts.recent),
            bytes: 0,
            packets: 0,
        }
    }

    /// Whether a segment of `len` numbers at `seq` can be meant for the receiver: in its window, or
    /// a repetition from which it learns that its acknowledgment was lost.
    fn takes(&self, seq: SeqNum, len: u32) -> bool {
        let start = i64::from(seq.distance(self.acked));
        start <= i64::from(self.edge.distance(self.acked))
            && start + i64::from(len) >= -i64::from(self.window_max)
    }

    /// The receiver acknowledges everything before `ack`, and offers `window` bytes from there on.
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

impl Pair {
    /// Begins to relay, and gives what was kept; none if it has begun before.
    pub(super) fn go_live(&mut self) -> Option<Vec<Kept>> {
        let Phase::Waiting(kept) = &mut self.phase else { return None };
        let kept = core::mem::take(kept);
        self.phase = Phase::Live;
        Some(kept)
    }

    /// Whether a segment of that side's peer may pass.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn examine(&self, side: usize, segment: &Segment) -> Result<(), Fault> {
        let (way, back) = self.both(side);
        let flags = segment.flags;
        if flags.has(Flags::SYN) {
            return Err(Fault::Syn);
        }
        if flags.has(Flags::RST) {
            // RFC 5961 section 3.2: only the exact number resets.
            if segment.seq == way.acked {
                return Ok(());
            }
            let ahead = segment.seq.distance(way.acked);
            let in_window = ahead > 0 && ahead <= way.edge.distance(way.acked);
            return Err(Fault::BlindReset { in_window });
        }
        if !flags.has(Flags::ACK) {
            return Err(Fault::NoAck);
        }
        if !way.takes(segment.seq, segment.len()) {
            return Err(Fault::OutOfWindow);
        }
        // RFC 5961 section 5.2: SND.UNA - MAX.SND.WND <= SEG.ACK <= SND.NXT.
        let ack = way.translation.ack(segment.ack);
        let behind = i64::from(back.acked.distance(ack));
        if ack.gt(back.end) || behind > i64::from(back.window_max) {
            return Err(Fault::BadAck);
        }
        Ok(())
    }

    /// Remembers a segment of that side's peer that has passed, as `packets` packets, with `window`
    /// in its window field. Says whether both directions are closed now.
    pub(super) fn note(
        &mut self,
        side: usize,
        segment: &Segment,
        window: u16,
        packets: u64,
    ) -> bool {
        let (way, back) = self.both_mut(side);
        way.packets += packets;
        way.end = way.end.max(segment.seq + segment.len());
        if segment.flags.has(Flags::FIN) && way.fin.is_none() {
            way.fin = Some(segment.seq + (segment.len() - 1));
        }
        let offered = u32::from(segment.window) << way.peer_scale;
        let ack = way.translation.ack(segment.ack);
        if !ack.lt(back.acked) {
            // RFC 9293 section 3.10.7.4: what was overtaken says nothing about the window any more.
            // A challenge with it and the latest number would promise what nobody offered.
            back.window = window;
        }
        back.acknowledge(ack, offered);
        way.fin_acked && back.fin_acked
    }

    /// What an operator is shown.
    pub(super) fn info(&self, now: Instant) -> SpliceInfo {
        let [a, b] = &self.ways;
        SpliceInfo {
            tuples: [a.tuple, b.tuple],
            state: match self.phase {
                Phase::Waiting(_) => "BEGINNING",
                Phase::Live => "SPLICED",
                Phase::Lingering(_) => "CLOSED",
            },
            bytes: [a.bytes, b.bytes],
            packets: [a.packets, b.packets],
            age: now.since(self.begun_at),
            idle: now.since(self.heard_at),
        }
    }

    /// The direction from that side, and the one to it.
    pub(super) fn both(&self, side: usize) -> (&Way, &Way) {
        let [a, b] = &self.ways;
        if side == 0 { (a, b) } else { (b, a) }
    }

    /// As [`Self::both`], to change them.
    pub(super) fn both_mut(&mut self, side: usize) -> (&mut Way, &mut Way) {
        let [a, b] = &mut self.ways;
        if side == 0 { (a, b) } else { (b, a) }
    }

    /// When to look at it again, if nothing happens before.
    pub(super) fn due(&self) -> Instant {
        match self.phase {
            Phase::Lingering(until) => until,
            Phase::Waiting(_) | Phase::Live => self.heard_at + self.idle_timeout,
        }
    }
}
