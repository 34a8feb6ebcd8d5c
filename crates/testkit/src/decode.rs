//! From a transmit to packets, as a device would make them.

use abi::{Part, Transmit};
use base::{Duration, SeqNum};
use wire::checksum::Sum;
use wire::emit::set_lengths;
use wire::frame::protocol;
use wire::tcp::Flags;

/// The pattern that simulated files repeat has a prime length, so that a shift by any power of two
/// shows.
pub const PAGE_PATTERN: u64 = 251;

/// The byte at `offset` of every simulated file.
#[must_use]
pub fn file_byte(offset: u64) -> u8 {
    u8::try_from(offset % PAGE_PATTERN).unwrap_or(0)
}

/// `len` bytes from `offset` of every simulated file.
#[must_use]
pub fn file_bytes(offset: u64, len: u32) -> Vec<u8> {
    (offset..offset + u64::from(len)).map(file_byte).collect()
}

/// The payload of a transmit.
#[must_use]
pub(crate) fn payload(transmit: &Transmit) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in &transmit.parts {
        match part {
            Part::Host(host) => bytes.extend_from_slice(host),
            Part::File(extent) => bytes.extend(file_bytes(extent.offset, extent.len)),
            Part::Sealed(_) | Part::Pdu(_) => panic!("this device has no such engine"),
        }
    }
    bytes
}

/// The packets that a device makes of a transmit which waited `delay` for its disk, with checksums.
#[must_use]
pub fn packets(transmit: &Transmit, delay: Duration) -> Vec<Vec<u8>> {
    let payload = payload(transmit);
    let header = transmit.header.as_slice();
    let (l3, l4) = (transmit.header.l3(), transmit.header.l4());
    if l4 < header.len() && ip_protocol(header, l3) == protocol::UDP {
        let size =
            if transmit.segment_size == 0 { usize::MAX } else { transmit.segment_size.into() };
        let cut = payload.chunks(size).map(|chunk| [header, chunk].concat());
        return cut.map(|frame| finish_udp(frame, l3, l4)).collect();
    }
    if l4 >= header.len() || ip_protocol(header, l3) != protocol::TCP {
        let frame = [header, &payload].concat();
        return vec![finish_other(frame, l3, l4)];
    }
    let size = match transmit.segment_size {
        0 => payload.len().max(1),
        size => usize::from(size),
    };
    let count = payload.len().div_ceil(size).max(1);
    (0..count)
        .map(|index| {
            let from = index * size;
            let chunk = &payload[from.min(payload.len())..payload.len().min(from + size)];
            let mut frame = [header, chunk].concat();
            let at = u32::try_from(from).unwrap_or(0);
            let seq = SeqNum(u32_at(&frame, l4 + 4)) + at;
            frame[l4 + 4..l4 + 8].copy_from_slice(&seq.0.to_be_bytes());
            frame[l4 + 13] = Flags(frame[l4 + 13]).of_run(index == 0, index + 1 == count).0;
            if let Some(ts) = transmit.timestamp {
                let at = usize::from(ts.offset);
                let ahead = (u64::from(ts.past_us) + delay.as_micros()) / 1000;
                let value = SeqNum(u32_at(&frame, at)) + u32::try_from(ahead).unwrap_or(0);
                frame[at..at + 4].copy_from_slice(&value.0.to_be_bytes());
            }
            finish(frame, l3, l4)
        })
        .collect()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn ip_protocol(header: &[u8], l3: usize) -> u8 {
    match header.get(l3).map(|b| b >> 4) {
        Some(4) if header[12..14] == [8, 0] => header[l3 + 9],
        Some(6) if header[12..14] == [0x86, 0xdd] => header[l3 + 6],
        _ => 0,
    }
}

fn finish(mut frame: Vec<u8>, l3: usize, l4: usize) -> Vec<u8> {
    let end = frame.len();
    set_lengths(&mut frame, l3, end, 0);
    frame[l4 + 16..l4 + 18].fill(0);
    let mut sum: Sum = wire::emit::pseudo_header_of(&frame, l3, protocol::TCP, end - l4);
    sum.add(&frame[l4..end]);
    frame[l4 + 16..l4 + 18].copy_from_slice(&sum.finish().to_be_bytes());
    frame
}

fn finish_udp(mut frame: Vec<u8>, l3: usize, l4: usize) -> Vec<u8> {
    let end = frame.len();
    set_lengths(&mut frame, l3, end, 0);
    let len = u16::try_from(end - l4).expect("a datagram");
    frame[l4 + 4..l4 + 6].copy_from_slice(&len.to_be_bytes());
    frame[l4 + 6..l4 + 8].fill(0);
    let mut sum: Sum = wire::emit::pseudo_header_of(&frame, l3, protocol::UDP, end - l4);
    sum.add(&frame[l4..end]);
    frame[l4 + 6..l4 + 8].copy_from_slice(&sum.finish().to_be_bytes());
    frame
}

fn finish_other(mut frame: Vec<u8>, l3: usize, l4: usize) -> Vec<u8> {
    if l4 < frame.len() && ip_protocol(&frame, l3) != 0 {
        let end = frame.len();
        set_lengths(&mut frame, l3, end, 0);
    }
    frame
}
