//! Parsers that complement [`wire::quic`]: position of the short-header packet in a datagram,
//! presence of a Retry packet, connection IDs that a peer retires, and packet numbers that it
//! acknowledges (RFC 9000 sections 17.2, 19.16 and 19.3).
//!
//! The input comes from quinn-proto or was authenticated, but every length is checked all the same.

use std::ops::Range;

use wire::quic::{QuicFrame, is_short, read_varint};

/// Types of ACK frames, without and with ECN counts.
const ACK: u64 = 0x02;
const ACK_ECN: u64 = 0x03;
/// Type of RETIRE_CONNECTION_ID frames.
const RETIRE: u64 = 0x19;
/// Maximum ranges read from an ACK frame: those with the largest numbers.
const ACK_RANGES_MAX: u64 = 64;

/// Returns the sequence number of the connection ID that a RETIRE_CONNECTION_ID frame of `payload`
/// retires; `None` for other frames.
pub(crate) fn retired_cid_sequence(payload: &[u8], frame: &QuicFrame) -> Option<u64> {
    let QuicFrame::Other { kind: RETIRE, range } = frame else { return None };
    let (_, behind) = read_varint(payload.get(range.clone())?)?;
    Some(read_varint(behind)?.0)
}

/// Appends the packet number ranges that an ACK frame of `payload` acknowledges, ascending.
pub(crate) fn push_acked_ranges(payload: &[u8], frame: &QuicFrame, into: &mut Vec<Range<u64>>) {
    let QuicFrame::Other { kind: ACK | ACK_ECN, range } = frame else { return };
    let from = into.len();
    // Ranges before a malformed one are kept; quinn-proto closes the connection for the frame.
    let _ = payload.get(range.clone()).and_then(|frame| read_ranges(frame, into));
    into[from..].reverse();
}

/// Appends the ranges of an ACK frame, descending.
fn read_ranges(frame: &[u8], into: &mut Vec<Range<u64>>) -> Option<()> {
    let (_, rest) = read_varint(frame)?;
    let (largest, rest) = read_varint(rest)?;
    let (_, rest) = read_varint(rest)?;
    let (count, rest) = read_varint(rest)?;
    let (first, mut rest) = read_varint(rest)?;
    let mut start = largest.checked_sub(first)?;
    into.push(start..largest + 1);
    for _ in 1..count.saturating_add(1).min(ACK_RANGES_MAX) {
        let (gap, behind) = read_varint(rest)?;
        let (len, behind) = read_varint(behind)?;
        rest = behind;
        let end = start.checked_sub(gap + 1)?;
        start = end.checked_sub(len + 1)?;
        into.push(start..end);
    }
    Some(())
}

/// The last packet of a datagram, if the headers before it can be parsed without keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastPacket {
    /// A packet with a short header that begins at this offset.
    Short(usize),
    Retry,
}

/// Returns the offset of the short-header packet in a datagram. `None` if there is none, or if a
/// packet before it does not parse as one of version 1 (RFC 9000 section 17.2).
pub(crate) fn short_header_offset(datagram: &[u8]) -> Option<usize> {
    match last_packet(datagram) {
        Some(LastPacket::Short(at)) => Some(at),
        _ => None,
    }
}

/// Returns whether a datagram contains a Retry packet (RFC 9000 section 17.2.5).
pub(crate) fn has_retry(datagram: &[u8]) -> bool {
    last_packet(datagram) == Some(LastPacket::Retry)
}

fn last_packet(datagram: &[u8]) -> Option<LastPacket> {
    let mut left = datagram;
    loop {
        let first = *left.first()?;
        if is_short(first) {
            return Some(LastPacket::Short(datagram.len() - left.len()));
        }
        // A Retry packet extends to the end of its datagram.
        if first & 0x30 == 0x30 {
            return Some(LastPacket::Retry);
        }
        left = left.get(5..)?;
        for _ in 0..2 {
            let (&len, behind) = left.split_first()?;
            left = behind.get(usize::from(len)..)?;
        }
        // An Initial has a token.
        if first & 0x30 == 0x00 {
            left = skip_length_prefixed(left)?;
        }
        left = skip_length_prefixed(left)?;
    }
}

/// Returns the bytes after a length and a field of that length.
fn skip_length_prefixed(bytes: &[u8]) -> Option<&[u8]> {
    let (len, behind) = read_varint(bytes)?;
    behind.get(usize::try_from(len).ok()?..)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::quic::QuicFrames;

    #[test]
    fn retirements_are_found() {
        // ACK of one range, STREAM with offset and length, RETIRE, padding, RETIRE in more bytes.
        let payload = [
            &[0x02, 5, 0, 0, 1][..],
            &[0x0e, 4, 0x40, 100, 2, b'h', b'i'],
            &[0x19, 7, 0, 0],
            &[0x40, 0x19, 0x41, 0x00],
        ]
        .concat();
        let frames: Result<Vec<_>, _> = QuicFrames::new(&payload).collect();
        let found: Vec<_> =
            frames.unwrap().iter().filter_map(|f| retired_cid_sequence(&payload, f)).collect();
        assert_eq!(found, [7, 256]);
    }

    #[test]
    fn acknowledged_numbers_ascend() {
        let ranges = |payload: &[u8]| {
            let mut ranges = Vec::new();
            for frame in QuicFrames::new(payload).flatten() {
                push_acked_ranges(payload, &frame, &mut ranges);
            }
            ranges
        };
        // 20 to 18, 15, 10 to 6 (RFC 9000 section 19.3.1); then 3, with ECN counts.
        let frame = [0x02, 20, 0, 2, 2, 1, 0, 3, 4, 0x03, 3, 0, 0, 0, 9, 9, 9];
        assert_eq!(ranges(&frame), [6..11, 15..16, 18..21, 3..4]);
        assert_eq!(ranges(&[0x02, 20, 0, 1, 2, 30, 0]).first(), Some(&(18..21)), "below zero");
        assert_eq!(ranges(&[0x02, 2, 0, 0, 3]), [], "below zero");
        let mut many = vec![0x02, 0x43, 0xe8, 0, 0x40, 200, 0];
        many.extend([0, 0].repeat(200));
        assert_eq!(ranges(&many).len(), 64);
        assert_eq!(ranges(&many).last(), Some(&(1000..1001)));
    }

    #[test]
    fn short_headers_behind_long_ones() {
        let handshake = [&[0xe0, 0, 0, 0, 1, 1, 9, 0, 3][..], &[0; 3]].concat();
        let initial = [&[0xc0, 0, 0, 0, 1, 0, 0, 1, 5, 2][..], &[0; 2]].concat();
        assert_eq!(short_header_offset(&[0x40, 1, 2]), Some(0));
        assert_eq!(short_header_offset(&[&initial[..], &handshake, &[0x40]].concat()), Some(24));
        assert_eq!(short_header_offset(&handshake), None);
        assert_eq!(short_header_offset(&handshake[..11]), None);
        assert_eq!(short_header_offset(&[]), None);
        assert!(has_retry(&[0xf0]) && has_retry(&[&handshake[..], &[0xff, 1]].concat()));
        assert!(!has_retry(&[0x70]) && !has_retry(&handshake) && !has_retry(&initial));
    }

    proptest! {
        #[test]
        fn total(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for frame in QuicFrames::new(&bytes).flatten() {
                let _ = retired_cid_sequence(&bytes, &frame);
                push_acked_ranges(&bytes, &frame, &mut Vec::new());
            }
            let _ = short_header_offset(&bytes);
        }
    }
}
