//! TIME-WAIT: closed connections whose tuples are kept (RFC 9293 section 3.4.2), in a fraction of a
//! connection's memory.
//!
//! Called by the engine for segments whose tuple is here, and when time has passed. Entries expire
//! in the order in which they started; one with a shorter time than its predecessor waits for that.
//! Bounded: if the table is full, the oldest entry is evicted. Neither payload nor header template
//! is kept: the headers of an answer are those of the segment with source and destination
//! exchanged.

use abi::PacketHeader;
use base::{Duration, Instant, SeqNum};
use tcp_rules::time_wait::{TimeWaitTcb, TimeWaitVerdict};
use wire::emit::{EthernetAddrs, IpHeader, tcp_headers};
use wire::frame::{ETHERTYPE_VLAN, protocol};
use wire::tcp::{TcpFlags, TcpHeader, TcpOptions, TcpTimestamps};
use wire::{ETHERNET_BYTES, Tuple};

use super::segments::TimestampClock;
use super::table::TupleTable;
use crate::pipeline::rx::TransportPosition;
use structures::slab::SlabKey;

/// Hop limit, as on the host and in RFC 1700.
const HOP_LIMIT: u8 = 64;
/// Size of an IEEE 802.1Q tag.
const VLAN_BYTES: usize = 4;

/// State of a connection in TIME-WAIT.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeWaitState {
    /// The host's queue.
    pub(super) queue: usize,
    pub(super) snd_nxt: SeqNum,
    pub(super) rcv_nxt: SeqNum,
    /// The window field last offered.
    pub(super) window: u16,
    /// TS.Recent and our timestamp clock, if timestamps are in use.
    pub(super) timestamps: Option<(u32, TimestampClock)>,
    /// Time for which the tuple is kept.
    pub(super) time: Duration,
}

#[derive(Debug)]
struct TimeWaitSlot {
    remains: TimeWaitState,
    until: Instant,
    older: SlabKey,
    newer: SlabKey,
}

/// The result of handling a segment.
#[derive(Debug)]
pub(super) enum TimeWaitReaction {
    /// The segment belongs to no connection here.
    Unknown,
    /// The segment is ignored.
    Nothing,
    /// This answer is to be sent, for the host of that queue.
    Answer(usize, PacketHeader),
    /// The segment opens a new connection; the old one was removed.
    Reused,
}

/// The connections in TIME-WAIT, oldest first.
#[derive(Debug)]
pub(super) struct TimeWaitTable {
    entries: TupleTable<TimeWaitSlot>,
    oldest: SlabKey,
    newest: SlabKey,
    entries_max: usize,
}

impl TimeWaitTable {
    /// Creates an empty table for up to `entries_max` connections.
    pub(super) const fn new(entries_max: u32, seed: u64) -> Self {
        let entries_max = entries_max as usize;
        Self {
            entries: TupleTable::new(seed),
            oldest: SlabKey::NONE,
            newest: SlabKey::NONE,
            entries_max,
        }
    }

    /// Number of connections in TIME-WAIT.
    pub(super) const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds a connection. Returns whether an entry was evicted for it, or it could not be kept.
    pub(super) fn insert(&mut self, now: Instant, tuple: Tuple, remains: TimeWaitState) -> bool {
        self.forget(&tuple);
        if self.entries_max == 0 {
            return true;
        }
        let evicted = self.entries.len() >= self.entries_max;
        if evicted {
            self.remove(self.oldest);
        }
        let until = now + remains.time;
        let entry = TimeWaitSlot { remains, until, older: SlabKey::NONE, newer: SlabKey::NONE };
        let key = self.entries.insert(tuple, entry);
        self.link(key);
        evicted
    }

    /// Removes a connection whose tuple is in use again.
    pub(super) fn forget(&mut self, tuple: &Tuple) {
        if let Some(key) = self.entries.find(tuple) {
            self.remove(key);
        }
    }

    /// Handles a segment.
    pub(super) fn receive(
        &mut self,
        now: Instant,
        frame: &[u8],
        tcp: &TransportPosition,
        segment: &TcpHeader,
        payload: usize,
    ) -> TimeWaitReaction {
        let found = self.entries.find(&tcp.tuple);
        let Some((key, entry)) = found.and_then(|k| Some((k, self.entries.get_mut(k)?))) else {
            return TimeWaitReaction::Unknown;
        };
        let tcb = entry.remains.tcb();
        match tcb.judge(segment, payload) {
            TimeWaitVerdict::Ignore => TimeWaitReaction::Nothing,
            TimeWaitVerdict::Reuse => {
                self.remove(key);
                TimeWaitReaction::Reused
            }
            TimeWaitVerdict::Acknowledge => {
                let remains = entry.remains;
                if tcb.is_last_fin(segment, payload) {
                    entry.until = now + remains.time;
                    self.unlink(key);
                    self.link(key);
                }
                let answer = remains.answer(now, frame, tcp);
                answer.map_or(TimeWaitReaction::Nothing, |header| {
                    TimeWaitReaction::Answer(remains.queue, header)
                })
            }
        }
    }

    /// Removes expired connections.
    pub(super) fn expire(&mut self, now: Instant) {
        while self.due().is_some_and(|until| until <= now) {
            self.remove(self.oldest);
        }
    }

    /// Returns the time at which the oldest entry expires.
    pub(super) fn due(&self) -> Option<Instant> {
        self.entries.get(self.oldest).map(|(_, entry)| entry.until)
    }

    /// Removes all connections.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        (self.oldest, self.newest) = (SlabKey::NONE, SlabKey::NONE);
    }

    fn remove(&mut self, key: SlabKey) {
        self.unlink(key);
        self.entries.remove(key);
    }

    /// Appends an entry as the newest.
    fn link(&mut self, key: SlabKey) {
        let older = core::mem::replace(&mut self.newest, key);
        match self.entries.get_mut(older) {
            Some(entry) => entry.newer = key,
            None => self.oldest = key,
        }
        if let Some(entry) = self.entries.get_mut(key) {
            (entry.older, entry.newer) = (older, SlabKey::NONE);
        }
    }

    fn unlink(&mut self, key: SlabKey) {
        let Some(&mut TimeWaitSlot { older, newer, .. }) = self.entries.get_mut(key) else {
            return;
        };
        match self.entries.get_mut(older) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
        match self.entries.get_mut(newer) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
    }
}

impl TimeWaitState {
    /// Returns the state that received segments are checked against.
    fn tcb(&self) -> TimeWaitTcb {
        let ts_recent = self.timestamps.map(|(recent, _)| recent);
        TimeWaitTcb { snd_nxt: self.snd_nxt, rcv_nxt: self.rcv_nxt, ts_recent }
    }

    /// Builds the acknowledgment that answers `frame`, with the frame's addresses exchanged and its
    /// VLAN tag. Returns `None` if the frame was sent to a group address.
    fn answer(&self, now: Instant, frame: &[u8], tcp: &TransportPosition) -> Option<PacketHeader> {
        let (destination, source) = (*frame.get(6..)?.first_chunk()?, *frame.first_chunk::<6>()?);
        if source[0] & 1 == 1 {
            return None;
        }
        let Tuple { local, remote } = tcp.tuple;
        let link = EthernetAddrs { source, destination };
        let ip = IpHeader {
            source: local.addr,
            destination: remote.addr,
            protocol: protocol::TCP,
            ecn: 0,
            hop_limit: HOP_LIMIT,
        };
        let stamps = self.timestamps;
        let timestamps =
            stamps.map(|(echo, stamp)| TcpTimestamps { value: stamp.value(now).0, echo });
        let segment = TcpHeader {
            source: local.port,
            destination: remote.port,
            seq: self.snd_nxt,
            ack: self.rcv_nxt,
            flags: TcpFlags::ACK,
            window: self.window,
            options: TcpOptions { timestamps, ..TcpOptions::default() },
        };
        let l4 = ETHERNET_BYTES + ip.len();
        let mut header =
            PacketHeader::zeroed(l4 + segment.header_len(), ETHERNET_BYTES, l4).ok()?;
        tcp_headers(&link, &ip, &segment, 0, header.as_mut_slice());
        let tag = frame.get(12..12 + VLAN_BYTES)?;
        if tag.first_chunk() == Some(&ETHERTYPE_VLAN.to_be_bytes()) {
            return with_tag(&header, tag);
        }
        Some(header)
    }
}

/// Inserts an IEEE 802.1Q tag into a header.
fn with_tag(header: &PacketHeader, tag: &[u8]) -> Option<PacketHeader> {
    let (bytes, at) = (header.as_slice(), ETHERNET_BYTES - 2);
    let (l3, l4) = (header.l3() + VLAN_BYTES, header.l4() + VLAN_BYTES);
    let mut tagged = PacketHeader::zeroed(bytes.len() + VLAN_BYTES, l3, l4).ok()?;
    let out = tagged.as_mut_slice();
    out[..at].copy_from_slice(&bytes[..at]);
    out[at..at + VLAN_BYTES].copy_from_slice(tag);
    out[at + VLAN_BYTES..].copy_from_slice(&bytes[at..]);
    Some(tagged)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Excludes the index entry. About a fifth of a connection's size.
    #[test]
    fn an_entry_is_small() {
        let bytes = size_of::<Tuple>() + size_of::<TimeWaitSlot>();
        assert!(bytes <= 112, "{bytes} bytes");
    }
}
