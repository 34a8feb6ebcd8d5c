//! What the driver looks at beyond [`wire::quic`]: where in a datagram the short-header packet
//! begins, whether there is a Retry in it, and which connection IDs a peer retires (RFC 9000,
//! sections 17.2 and 19.16).
//!
//! What we send is quinn-proto's, what we receive was authenticated, and neither is believed: every
//! length is checked.

use wire::quic::{Frame, is_short, read_varint};

/// Type of RETIRE_CONNECTION_ID.
const RETIRE: u64 = 0x19;

/// The sequence number of the connection ID that a frame of `payload` retires, if it does.
pub(crate) fn retired(payload: &[u8], frame: &Frame) -> Option<u64> {
    let Frame::Other { kind: RETIRE, range } = frame else { return None };
    let (_, behind) = read_varint(payload.get(range.clone())?)?;
    Some(read_varint(behind)?.0)
}

/// What a datagram ends with, as far as its headers are readable without keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// A packet with a short header, which begins there.
    Short(usize),
    Retry,
}

/// Where in a datagram its short-header packet begins; none where it has none, or where what it
/// begins with is no packet of version 1 (RFC 9000, section 17.2).
pub(crate) fn short_header(datagram: &[u8]) -> Option<usize> {
    match last(datagram) {
        Some(Last::Short(at)) => Some(at),
        _ => None,
    }
}

/// Whether a datagram has a Retry packet in it (section 17.2.5).
pub(crate) fn has_retry(datagram: &[u8]) -> bool {
    last(datagram) == Some(Last::Retry)
}

fn last(datagram: &[u8]) -> Option<Last> {
    let mut left = datagram;
    loop {
        let first = *left.first()?;
        if is_short(first) {
            return Some(Last::Short(datagram.len() - left.len()));
        }
        // It ends its datagram.
        if first & 0x30 == 0x30 {
            return Some(Last::Retry);
        }
        left = left.get(5..)?;
        for _ in 0..2 {
            let (&len, behind) = left.split_first()?;
            left = behind.get(usize::from(len)..)?;
        }
        // An Initial has a token.
        if first & 0x30 == 0x00 {
            left = behind_counted(left)?;
        }
        left = behind_counted(left)?;
    }
}

/// What is behind a length and as many bytes.
fn behind_counted(bytes: &[u8]) -> Option<&[u8]> {
    let (len, behind) = read_varint(bytes)?;
    behind.get(usize::try_from(len).ok()?..)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::quic::Frames;

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
        let frames: Result<Vec<_>, _> = Frames::new(&payload).collect();
        let found: Vec<_> = frames.unwrap().iter().filter_map(|f| retired(&payload, f)).collect();
        assert_eq!(found, [7, 256]);
    }

    #[test]
    fn short_headers_behind_long_ones() {
        let handshake = [&[0xe0, 0, 0, 0, 1, 1, 9, 0, 3][..], &[0; 3]].concat();
        let initial = [&[0xc0, 0, 0, 0, 1, 0, 0, 1, 5, 2][..], &[0; 2]].concat();
        assert_eq!(short_header(&[0x40, 1, 2]), Some(0));
        assert_eq!(short_header(&[&initial[..], &handshake, &[0x40]].concat()), Some(24));
        assert_eq!(short_header(&handshake), None);
        assert_eq!(short_header(&handshake[..11]), None);
        assert_eq!(short_header(&[]), None);
        assert!(has_retry(&[0xf0]) && has_retry(&[&handshake[..], &[0xff, 1]].concat()));
        assert!(!has_retry(&[0x70]) && !has_retry(&handshake) && !has_retry(&initial));
    }

    proptest! {
        #[test]
        fn total(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for frame in Frames::new(&bytes).flatten() {
                let _ = retired(&bytes, &frame);
            }
            let _ = short_header(&bytes);
        }
    }
}
