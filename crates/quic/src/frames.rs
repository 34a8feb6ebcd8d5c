//! Frames of a packet in plaintext (RFC 9000, sections 12.4 and 19), as far as the driver looks at
//! them: where the bytes of streams lie in what we send, and which connection IDs a peer retires.
//!
//! What we send is quinn-proto's, what we receive was authenticated, and neither is believed: every
//! length is checked, and a frame that is not known ends the walk with an error.

use core::ops::Range;

/// What is of interest of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// STREAM: its bytes lie in that range of the payload.
    Stream {
        /// Which stream.
        id: u64,
        /// Place of the first byte in the stream.
        offset: u64,
        /// Place of the bytes in the payload.
        data: Range<usize>,
    },
    /// RETIRE_CONNECTION_ID: the sequence number.
    Retire(u64),
}

/// Something that is no frame, or none that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// A place in bytes that are read from the front.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn byte(&mut self) -> Result<u8, Malformed> {
        let byte = *self.bytes.get(self.at).ok_or(Malformed)?;
        self.at += 1;
        Ok(byte)
    }

    fn skip(&mut self, len: u64) -> Result<&'a [u8], Malformed> {
        let len = usize::try_from(len).map_err(|_| Malformed)?;
        let end = self.at.checked_add(len).ok_or(Malformed)?;
        let skipped = self.bytes.get(self.at..end).ok_or(Malformed)?;
        self.at = end;
        Ok(skipped)
    }

    /// RFC 9000, section 16.
    fn varint(&mut self) -> Result<u64, Malformed> {
        let first = self.byte()?;
        let rest = self.skip((1 << (first >> 6)) - 1)?;
        let begin = u64::from(first & 0x3f);
        Ok(rest.iter().fold(begin, |value, &byte| value << 8 | u64::from(byte)))
    }

    fn varints(&mut self, count: u64) -> Result<(), Malformed> {
        (0..count).try_for_each(|_| self.varint().map(|_| ()))
    }

    fn prefixed(&mut self) -> Result<(), Malformed> {
        let len = self.varint()?;
        self.skip(len).map(|_| ())
    }

    fn rest(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }
}

/// Shows what is of interest in a packet's payload.
///
/// # Errors
/// [`Malformed`]: what was not shown by then cannot be known.
pub(crate) fn walk(payload: &[u8], mut seen: impl FnMut(Seen)) -> Result<(), Malformed> {
    let mut cursor = Cursor { bytes: payload, at: 0 };
    while cursor.rest() > 0 {
        let kind = cursor.varint()?;
        frame(&mut cursor, kind, &mut seen)?;
    }
    Ok(())
}

fn frame(cursor: &mut Cursor<'_>, kind: u64, seen: &mut impl FnMut(Seen)) -> Result<(), Malformed> {
    match kind {
        // PADDING, PING, HANDSHAKE_DONE, IMMEDIATE_ACK.
        0x00 | 0x01 | 0x1e | 0x1f => Ok(()),
        // ACK, with and without ECN counts.
        0x02 | 0x03 => {
            cursor.varints(2)?;
            let ranges = cursor.varint()?;
            cursor.varint()?;
            // No more ranges than bytes: a count that lies ends at the end.
            cursor.varints(ranges.checked_mul(2).ok_or(Malformed)?)?;
            cursor.varints(if kind == 0x03 { 3 } else { 0 })
        }
        // RESET_STREAM.
        0x04 => cursor.varints(3),
        // STOP_SENDING, MAX_STREAM_DATA, STREAM_DATA_BLOCKED.
        0x05 | 0x11 | 0x15 => cursor.varints(2),
        // CRYPTO.
        0x06 => {
            cursor.varint()?;
            cursor.prefixed()
        }
        // NEW_TOKEN.
        0x07 => cursor.prefixed(),
        0x08..=0x0f => stream(cursor, kind, seen),
        // MAX_DATA, MAX_STREAMS, DATA_BLOCKED, STREAMS_BLOCKED.
        0x10 | 0x12..=0x14 | 0x16 | 0x17 => cursor.varint().map(|_| ()),
        // NEW_CONNECTION_ID.
        0x18 => {
            cursor.varints(2)?;
            let len = cursor.byte()?;
            cursor.skip(u64::from(len) + 16).map(|_| ())
        }
        0x19 => {
            seen(Seen::Retire(cursor.varint()?));
            Ok(())
        }
        // PATH_CHALLENGE, PATH_RESPONSE.
        0x1a | 0x1b => cursor.skip(8).map(|_| ()),
        // CONNECTION_CLOSE of the transport and of the application.
        0x1c | 0x1d => {
            cursor.varints(if kind == 0x1c { 2 } else { 1 })?;
            cursor.prefixed()
        }
        // DATAGRAM: RFC 9221.
        0x30 => cursor.skip(cursor.rest()).map(|_| ()),
        0x31 => cursor.prefixed(),
        // ACK_FREQUENCY: draft-ietf-quic-ack-frequency.
        0xaf => cursor.varints(4),
        _ => Err(Malformed),
    }
}

/// STREAM: section 19.8. The type's low bits say which fields there are.
fn stream(
    cursor: &mut Cursor<'_>,
    kind: u64,
    seen: &mut impl FnMut(Seen),
) -> Result<(), Malformed> {
    let id = cursor.varint()?;
    let offset = if kind & 0x04 != 0 { cursor.varint()? } else { 0 };
    let len = if kind & 0x02 != 0 { cursor.varint()? } else { cursor.rest() };
    let begin = cursor.at;
    cursor.skip(len)?;
    seen(Seen::Stream { id, offset, data: begin..cursor.at });
    Ok(())
}

/// Where in a datagram its short-header packet begins; none where it has none, or where what it
/// begins with is no packet of version 1 (RFC 9000, section 17.2).
pub(crate) fn short_header(datagram: &[u8]) -> Option<usize> {
    let mut cursor = Cursor { bytes: datagram, at: 0 };
    loop {
        let begin = cursor.at;
        let first = cursor.byte().ok()?;
        if first & 0x80 == 0 {
            return Some(begin);
        }
        cursor.skip(4).ok()?;
        for _ in 0..2 {
            let len = cursor.byte().ok()?;
            cursor.skip(u64::from(len)).ok()?;
        }
        match first & 0x30 {
            0x00 => cursor.prefixed().ok()?,
            // A Retry ends its datagram.
            0x30 => return None,
            _ => {}
        }
        cursor.prefixed().ok()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(payload: &[u8]) -> (Vec<Seen>, Result<(), Malformed>) {
        let mut out = Vec::new();
        let result = walk(payload, |seen| out.push(seen));
        (out, result)
    }

    #[test]
    fn streams_and_retirements() {
        // ACK of one range, STREAM with offset and length, RETIRE, padding, STREAM to the end.
        let payload = [
            &[0x02, 5, 0, 0, 1][..],
            &[0x0e, 4, 0x40, 100, 2, b'h', b'i'],
            &[0x19, 7, 0, 0],
            &[0x09, 8, b'x', b'y', b'z'],
        ]
        .concat();
        let (seen, result) = all(&payload);
        assert_eq!(result, Ok(()));
        let first = Seen::Stream { id: 4, offset: 100, data: 10..12 };
        let last = Seen::Stream { id: 8, offset: 0, data: 18..21 };
        assert_eq!(seen, [first, Seen::Retire(7), last]);
    }

    #[test]
    fn what_is_cut_off_or_unknown_is_malformed() {
        assert_eq!(all(&[0x0a, 4, 9, b'x']).1, Err(Malformed), "longer than the packet");
        assert_eq!(all(&[0x40]).1, Err(Malformed), "half a number");
        assert_eq!(all(&[0x21]).1, Err(Malformed), "no such frame");
        assert_eq!(
            all(&[0x02, 0, 0, 0xff, 255, 255, 255, 255, 255, 255, 255, 0]).1,
            Err(Malformed)
        );
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
    }

    proptest! {
        #[test]
        fn total(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = all(&bytes);
            let _ = short_header(&bytes);
        }
    }
}
