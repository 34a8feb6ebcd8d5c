//! Receive coalescing: appends datagrams to one frame, as Linux's GRO does for UDP.
//!
//! Called by [`crate::Device`] when a decrypted datagram is delivered. It is appended to the last
//! delivered frame if the host has not taken that yet and both belong together: same entry,
//! ascending packet numbers, equal headers, and equal sizes except for the last datagram. No
//! datagram waits to be merged, and order is kept. Datagrams that were not decrypted are never
//! merged.

use abi::{PacketBuf, PacketPool, ReceivedFrame};
use wire::{UDP_BYTES, emit};

use super::QuicDatagram;

/// Maximum number of datagrams per frame (Linux: `UDP_MAX_SEGMENTS` was 64).
const DATAGRAMS_MAX: usize = 64;
/// Maximum size of an IP packet.
const IP_BYTES_MAX: usize = 65_535;

/// Appends `next` to `tail` if they belong together. Returns whether it did.
pub(crate) fn append(tail: &mut ReceivedFrame, next: &QuicDatagram, pool: &mut PacketPool) -> bool {
    let Some((size, number)) = fits(tail, next) else { return false };
    let payload = &next.received.packet.as_slice()[next.l4 + UDP_BYTES..next.end];
    if !tail.packet.append(payload) {
        let Some(mut larger) = pool.take(PacketPool::FRAME_BYTES_MAX) else { return false };
        larger.truncate(0);
        if !(larger.append(tail.packet.as_slice()) && larger.append(payload)) {
            return false;
        }
        pool.put(core::mem::replace(&mut tail.packet, larger));
    }
    tail.segment_size = size;
    if let Some(opened) = &mut tail.quic {
        opened.numbers.push(number);
    }
    set_lengths(&mut tail.packet, next);
    true
}

/// Returns the size of the frame's datagrams and the packet number of `next`, if it can be
/// appended.
fn fits(tail: &ReceivedFrame, next: &QuicDatagram) -> Option<(u16, u64)> {
    let (opened, (quic, number)) = (tail.quic.as_ref()?, next.decrypted?);
    let ascending = opened.numbers.last().is_some_and(|&last| last < number);
    if opened.quic != quic || !ascending || opened.numbers.len() >= DATAGRAMS_MAX {
        return None;
    }
    let start = next.l4 + UDP_BYTES;
    let payload = tail.packet.len().checked_sub(start)?;
    // No datagram may follow a shorter one.
    let size = match tail.segment_size {
        0 => payload,
        size => usize::from(size),
    };
    let len = next.end - start;
    let fits = size > 0 && payload % size == 0 && len <= size;
    let short_enough = tail.packet.len() + len - next.l3 <= IP_BYTES_MAX;
    let same = tail.checksum == next.received.checksum && same_headers(tail, next);
    let size = u16::try_from(size).ok()?;
    (fits && short_enough && same).then_some((size, number))
}

/// Returns whether the headers differ only in lengths, checksums and IPv4's identification.
fn same_headers(tail: &ReceivedFrame, next: &QuicDatagram) -> bool {
    let (tail, bytes) = (tail.packet.as_slice(), next.received.packet.as_slice());
    let (l3, l4) = (next.l3, next.l4);
    let same = |from: usize, to: usize| {
        let ranges = (tail.get(from..to), bytes.get(from..to));
        matches!(ranges, (Some(a), Some(b)) if a == b)
    };
    let ip = match bytes.get(l3) {
        // No options: `set_lengths` sums twenty bytes.
        Some(0x45) => same(l3, l3 + 2) && same(l3 + 6, l3 + 10) && same(l3 + 12, l4),
        Some(first) if first >> 4 == 6 => same(l3, l3 + 4) && same(l3 + 6, l4),
        _ => false,
    };
    ip && same(0, l3) && same(l4, l4 + 4)
}

/// Sets the IP and UDP lengths to those of the whole frame.
fn set_lengths(packet: &mut PacketBuf, at: &QuicDatagram) {
    let end = packet.len();
    let bytes = packet.as_mut_slice();
    let identification = bytes.get(at.l3 + 4..).and_then(|field| field.first_chunk());
    let identification = identification.map_or(0, |field| u16::from_be_bytes(*field));
    emit::set_lengths(bytes, at.l3, end, identification);
    let len = u16::try_from(end - at.l4).unwrap_or(0);
    bytes[at.l4 + 4..at.l4 + 6].copy_from_slice(&len.to_be_bytes());
}
