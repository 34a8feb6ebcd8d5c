//! Reassembly of fragmented IP packets (RFC 791 section 3.2, RFC 8200 section 4.5).
//!
//! Called by the host for frames that are fragments: the device delivers them unmodified, to one
//! host for each pair of addresses. A packet that is complete goes back to the device, as if it had
//! just been received, so checksums, queues and engines treat it as any other.
//!
//! Everything is bounded: packets, memory, pieces and time. Packets with overlapping fragments are
//! dropped as a whole, in both versions (RFC 5722); exact duplicates are ignored. An IPv6 fragment
//! that is a whole packet is reassembled alone (RFC 6946). No Time Exceeded message is sent.

use alloc::vec::Vec;
use core::net::IpAddr;
use core::ops::Range;

use abi::link::RxFrame;
use abi::steering::{SteeredFrame, SteeringReason};
use abi::{Checksum, Op, PacketPool};
use base::{Duration, Instant};
use wire::fragment::{FRAGMENT_HEADER, Fragment};
use wire::{IPV6_BYTES, emit};

use super::outbox::Outbox;

/// Maximum number of incomplete packets. One more displaces the oldest. With at most 64 KiB each,
/// they occupy at most 4 MiB and their headers.
const PACKETS_MAX: usize = 64;
/// Maximum number of fragments of a packet: 64 KiB over links of 576 bytes have 119.
const PIECES_MAX: usize = 128;
/// Time for all fragments of a packet: Linux's `ipfrag_time`. RFC 791 suggests 15 seconds, RFC 8200
/// requires 60 at most.
const TIME_MAX: Duration = Duration::from_secs(30);
/// ECN field of packets that met congestion.
const CE: u8 = 3;

/// Identity of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PacketKey {
    source: IpAddr,
    destination: IpAddr,
    identification: u32,
    /// Protocol (IPv4); 0 for IPv6, whose identification is unique for the addresses.
    protocol: u8,
}

/// A packet that is not complete.
#[derive(Debug)]
struct PartialPacket {
    key: PacketKey,
    until: Instant,
    /// Received ranges of the payload, sorted and disjoint.
    pieces: Vec<Range<usize>>,
    payload: Vec<u8>,
    /// Length of the payload, once the last fragment is here.
    total: Option<usize>,
    /// The first fragment and its headers.
    first: Option<(Fragment, Vec<u8>)>,
    /// ECN fields seen: bit `n` for value `n`.
    ecn_seen: u8,
    /// Fragments overlapped or contradicted each other: all others are dropped too.
    is_bad: bool,
}

/// Incomplete packets.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    packets: Vec<PartialPacket>,
}

impl Reassembly {
    /// Handles a frame that is a fragment.
    pub(crate) fn handle_fragment(&mut self, out: &mut Outbox, now: Instant, frame: &[u8]) {
        out.counters.ip_reasm_reqds += 1;
        let Ok(fragment) = wire::fragment::parse(frame) else {
            out.counters.ip_reasm_fails += 1;
            return;
        };
        if !out.net.is_ours(fragment.destination) {
            out.counters.received_not_ours += 1;
            return;
        }
        let is_atomic = fragment.offset == 0 && !fragment.more;
        let mut packet = if is_atomic {
            PartialPacket::new(key_of(&fragment), now)
        } else {
            self.take(out, now, key_of(&fragment))
        };
        if !packet.is_bad && packet.insert(fragment, frame).is_err() {
            out.counters.ip_reasm_overlaps += 1;
            out.counters.ip_reasm_fails += 1;
            packet.discard();
        }
        if !packet.is_complete() {
            self.packets.push(packet);
            return;
        }
        match packet.assemble() {
            Some(frame) => {
                out.counters.ip_reasm_oks += 1;
                let reason = SteeringReason::Current;
                out.ops.push_back(Op::Return(SteeredFrame { frame, reason }));
            }
            None => out.counters.ip_reasm_fails += 1,
        }
    }

    /// Drops the packets whose time is over.
    pub(crate) fn handle_timeout(&mut self, out: &mut Outbox, now: Instant) {
        let before = self.incomplete();
        self.packets.retain(|packet| packet.until > now);
        let dropped = before - self.incomplete();
        out.counters.ip_reasm_timeouts += dropped;
        out.counters.ip_reasm_fails += dropped;
    }

    /// Returns the time at which to call [`Self::handle_timeout`].
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.packets.iter().map(|packet| packet.until).min()
    }

    /// Returns the number of packets that wait for fragments.
    fn incomplete(&self) -> u64 {
        self.packets.iter().filter(|packet| !packet.is_bad).count() as u64
    }

    /// Removes and returns the packet of a fragment, or a new one.
    fn take(&mut self, out: &mut Outbox, now: Instant, key: PacketKey) -> PartialPacket {
        if let Some(at) = self.packets.iter().position(|packet| packet.key == key) {
            return self.packets.swap_remove(at);
        }
        if self.packets.len() >= PACKETS_MAX {
            let oldest = self.packets.iter().enumerate().min_by_key(|(_, packet)| packet.until);
            if let Some(at) = oldest.map(|(at, _)| at) {
                let displaced = self.packets.swap_remove(at);
                out.counters.ip_reasm_fails += u64::from(!displaced.is_bad);
            }
        }
        PartialPacket::new(key, now)
    }
}

/// The fragment contradicts those before it.
struct Contradiction;

impl PartialPacket {
    fn new(key: PacketKey, now: Instant) -> Self {
        Self {
            key,
            until: now + TIME_MAX,
            pieces: Vec::new(),
            payload: Vec::new(),
            total: None,
            first: None,
            ecn_seen: 0,
            is_bad: false,
        }
    }

    /// Inserts a fragment; ignores an exact duplicate.
    fn insert(&mut self, fragment: Fragment, frame: &[u8]) -> Result<(), Contradiction> {
        let bytes = frame.get(fragment.payload.clone()).ok_or(Contradiction)?;
        let piece = fragment.offset..fragment.offset + bytes.len();
        let at = self.pieces.partition_point(|other| other.start < piece.start);
        if self.pieces.get(at) == Some(&piece) {
            let same = self.payload.get(piece.clone()) == Some(bytes);
            let last = fragment.more || self.total == Some(piece.end);
            return if same && last { Ok(()) } else { Err(Contradiction) };
        }
        let overlaps_before = at > 0 && self.pieces[at - 1].end > piece.start;
        let overlaps_after = self.pieces.get(at).is_some_and(|next| next.start < piece.end);
        let end = self.pieces.last().map_or(0, |last| last.end);
        let is_beyond = match self.total {
            Some(total) => !fragment.more || piece.end > total,
            None => !fragment.more && end > piece.end,
        };
        if overlaps_before || overlaps_after || is_beyond || self.pieces.len() >= PIECES_MAX {
            return Err(Contradiction);
        }
        self.ecn_seen |= 1 << fragment.ecn;
        if self.payload.len() < piece.end {
            self.payload.resize(piece.end, 0);
        }
        self.payload[piece.clone()].copy_from_slice(bytes);
        if !fragment.more {
            self.total = Some(piece.end);
        }
        if fragment.offset == 0 {
            let headers = frame.get(fragment.headers.clone()).ok_or(Contradiction)?;
            self.first = Some((fragment, headers.to_vec()));
        }
        self.pieces.insert(at, piece);
        Ok(())
    }

    /// Drops the content, and with it all later fragments of the packet.
    fn discard(&mut self) {
        self.is_bad = true;
        (self.payload, self.pieces, self.first) = (Vec::new(), Vec::new(), None);
    }

    fn is_complete(&self) -> bool {
        let received: usize = self.pieces.iter().map(ExactSizeIterator::len).sum();
        !self.is_bad && self.total == Some(received)
    }

    /// Returns the whole packet as a received frame, or `None` if it cannot be one.
    fn assemble(self) -> Option<RxFrame> {
        let (first, mut frame) = self.first?;
        // No honest sender has fragments of fragments; an attacker could have the host and the
        // device take turns.
        if first.protocol == FRAGMENT_HEADER {
            return None;
        }
        let (l3, end) = (first.l3, first.headers.end + self.payload.len());
        let is_v4 = first.source.is_ipv4();
        // RFC 3168 section 5.3: a mark of one fragment is one of the packet, unless others say that
        // the transport does not support ECN.
        let marked = self.ecn_seen & 1 << CE != 0;
        if marked && self.ecn_seen & 1 != 0 {
            return None;
        }
        let ecn_at = l3 + 1;
        if marked {
            frame[ecn_at] |= if is_v4 { CE } else { CE << 4 };
        }
        if is_v4 {
            frame[l3 + 6..l3 + 8].fill(0);
            set_ipv4_lengths(&mut frame[l3..], end - l3)?;
        } else {
            frame[first.next_header_at] = first.protocol;
            emit::set_lengths(&mut frame, l3, end, 0);
            debug_assert!(end - l3 - IPV6_BYTES <= usize::from(u16::MAX), "checked by the parser");
        }
        frame.extend_from_slice(&self.payload);
        let packet = PacketPool::new(0).copy(&frame)?;
        // Else it would come back here.
        wire::frame::parse(packet.as_slice()).ok()?;
        Some(RxFrame { packet, checksum: Checksum::Unchecked, segment_size: 0 })
    }
}

/// Sets the length and the checksum of an IPv4 header, which may have options.
fn set_ipv4_lengths(header: &mut [u8], total: usize) -> Option<()> {
    let total = u16::try_from(total).ok()?;
    header[2..4].copy_from_slice(&total.to_be_bytes());
    header[10..12].fill(0);
    let sum = wire::checksum::ChecksumSum::of_words(header);
    header[10..12].copy_from_slice(&sum.finish().to_be_bytes());
    Some(())
}

fn key_of(fragment: &Fragment) -> PacketKey {
    let &Fragment { source, destination, identification, protocol, .. } = fragment;
    let protocol = if source.is_ipv4() { protocol } else { 0 };
    PacketKey { source, destination, identification, protocol }
}

#[cfg(test)]
mod tests;
