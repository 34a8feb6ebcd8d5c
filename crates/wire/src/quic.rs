//! Fields of QUIC packets: short headers, packet numbers, nonces, and positions of STREAM frames in
//! a payload (RFC 9000, RFC 9001).
//!
//! Host and device both use them and must agree to the byte. There are no keys and no encryption
//! here. Long headers are recognized but not parsed: the device has no part in handshakes.

use core::fmt;
use core::ops::Range;

/// First byte: the header is long (RFC 9000 section 17.2).
pub const LONG: u8 = 0x80;
/// First byte: the fixed bit, set in every packet (RFC 9000 section 17.3.1) unless the receiver has
/// waived it (RFC 9287).
pub const FIXED: u8 = 0x40;
/// First byte of a short header: reserved bits, zero once header protection is removed.
pub const RESERVED: u8 = 0x18;
/// First byte of a short header: key phase (RFC 9001 section 6).
pub const KEY_PHASE: u8 = 0x04;
/// First byte: length of the packet number, less one.
pub const NUMBER_BYTES: u8 = 0x03;
/// Bits of a short header's first byte under header protection (RFC 9001 section 5.4.1).
pub const PROTECTED: u8 = RESERVED | KEY_PHASE | NUMBER_BYTES;

/// Maximum length of a packet number.
pub const NUMBER_BYTES_MAX: usize = 4;
/// Maximum packet number, and maximum variable-length integer.
pub const NUMBER_MAX: u64 = (1 << 62) - 1;
/// Offset of header protection's sample from the packet number, whatever that number's length (RFC
/// 9001 section 5.4.2).
pub const SAMPLE_AT: usize = 4;
/// Length of a nonce.
pub const NONCE_BYTES: usize = 12;

/// Returns whether a packet with this first byte has a short header (RFC 9000 section 17.3.1).
/// [`FIXED`] is ignored, since the endpoints may have agreed not to set it.
#[must_use]
pub const fn is_short(first: u8) -> bool {
    first & LONG == 0
}

/// Returns the length of the packet number, 1 to 4, from a first byte without header protection.
#[must_use]
pub const fn number_len(first: u8) -> usize {
    (first & NUMBER_BYTES) as usize + 1
}

/// Returns whether the key phase bit is set, from a first byte without header protection.
#[must_use]
pub const fn key_phase(first: u8) -> bool {
    first & KEY_PHASE != 0
}

/// A packet with a short header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortHeaderPacket<'a> {
    /// First byte; all bits but [`PROTECTED`] are readable without keys.
    pub first: u8,
    /// Destination connection ID.
    pub id: &'a [u8],
    /// The rest, beginning with the packet number.
    pub rest: &'a [u8],
}

impl<'a> ShortHeaderPacket<'a> {
    /// Splits a packet whose connection ID has `id_len` bytes. `None` if the header is not short or
    /// the packet ends inside the ID.
    #[must_use]
    pub fn parse(packet: &'a [u8], id_len: usize) -> Option<Self> {
        let (&first, behind) = packet.split_first().filter(|(first, _)| is_short(**first))?;
        let (id, rest) = behind.split_at_checked(id_len)?;
        Some(Self { first, id, rest })
    }
}

/// Reconstructs a packet number from its last `len` bytes (RFC 9000 appendix A.3). `expected` is
/// one above the largest received.
#[must_use]
pub fn expand_number(expected: u64, truncated: u32, len: usize) -> u64 {
    let expected = expected.min(NUMBER_MAX);
    let window = 1_u64 << (8 * len.clamp(1, NUMBER_BYTES_MAX));
    let half = window / 2;
    let candidate = expected & !(window - 1) | u64::from(truncated) & (window - 1);
    if candidate + half <= expected && candidate <= NUMBER_MAX - window {
        candidate + window
    } else if candidate > expected + half && candidate >= window {
        candidate - window
    } else {
        candidate
    }
}

/// Returns how many bytes of a packet number must be sent (RFC 9000 appendix A.2); `None` if four
/// do not suffice. `acked` is the largest number that the peer has acknowledged.
#[must_use]
pub fn number_len_for(number: u64, acked: Option<u64>) -> Option<usize> {
    let unacked = match acked {
        Some(acked) => number.checked_sub(acked)?,
        None => number.checked_add(1)?,
    };
    (1..=NUMBER_BYTES_MAX).find(|len| unacked < 1 << (8 * len - 1))
}

/// Returns the last four bytes of a packet number, big-endian; the last `len` of them are sent.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "the last four bytes are what is sent")]
pub const fn truncate_number(number: u64) -> [u8; NUMBER_BYTES_MAX] {
    (number as u32).to_be_bytes()
}

/// Returns the nonce of a packet (RFC 9001 section 5.3).
#[must_use]
pub fn nonce(iv: &[u8; NONCE_BYTES], number: u64) -> [u8; NONCE_BYTES] {
    let mut nonce = *iv;
    for (byte, number) in nonce[NONCE_BYTES - 8..].iter_mut().zip(number.to_be_bytes()) {
        *byte ^= number;
    }
    nonce
}

/// Parses a variable-length integer (RFC 9000 section 16). Returns it with the bytes behind it.
#[must_use]
pub fn read_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let len = 1_usize << (bytes.first()? >> 6);
    let (integer, behind) = bytes.split_at_checked(len)?;
    let value = integer.iter().fold(0, |value, &byte| value << 8 | u64::from(byte));
    Some((value & (u64::MAX >> (66 - 8 * len)), behind))
}

/// Returns the length of the shortest encoding of `value`; `None` above [`NUMBER_MAX`].
#[must_use]
pub const fn varint_len(value: u64) -> Option<usize> {
    Some(match value {
        0..=0x3f => 1,
        0x40..=0x3fff => 2,
        0x4000..=0x3fff_ffff => 4,
        0x4000_0000..=NUMBER_MAX => 8,
        _ => return None,
    })
}

/// Writes the shortest encoding of `value` at the start of `out`. Returns its length, or `None` if
/// there is no encoding or no room.
pub fn write_varint(value: u64, out: &mut [u8]) -> Option<usize> {
    let len = varint_len(value)?;
    let out = out.get_mut(..len)?;
    out.copy_from_slice(&value.to_be_bytes()[8 - len..]);
    // The first two bits encode the lengths 1, 2, 4, 8 as 0 to 3.
    #[expect(clippy::cast_possible_truncation, reason = "zero to three")]
    let tag = len.trailing_zeros() as u8;
    out[0] |= tag << 6;
    Some(len)
}

/// A STREAM frame (RFC 9000 section 19.8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuicStreamFrame {
    /// Stream number.
    pub id: u64,
    /// Stream offset of the data.
    pub offset: u64,
    /// True if the frame ends the stream.
    pub fin: bool,
    /// Range of the data in the payload.
    pub data: Range<usize>,
}

/// A frame in a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuicFrame {
    /// A STREAM frame.
    Stream(QuicStreamFrame),
    /// Any other frame; a run of PADDING frames counts as one.
    Other {
        /// Frame type.
        kind: u64,
        /// Range of the frame in the payload, including its type.
        range: Range<usize>,
    },
}

/// Reason why the rest of a payload cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuicFrameError {
    /// The payload ends inside a frame.
    Truncated,
    /// The frame type is unknown, and so is the frame's length.
    UnknownType(u64),
    /// Stream data would end above 2^62 - 1.
    StreamTooLong,
}

impl fmt::Display for QuicFrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("the payload ends inside a frame"),
            Self::UnknownType(kind) => write!(f, "unknown frame type {kind:#x}"),
            Self::StreamTooLong => f.write_str("a stream is longer than it may be"),
        }
    }
}

/// Iterator over the frames of a decrypted payload. It ends after an error.
#[derive(Clone, Debug)]
pub struct QuicFrames<'a> {
    payload: &'a [u8],
    at: usize,
}

impl<'a> QuicFrames<'a> {
    /// Returns an iterator over the frames of `payload`.
    #[must_use]
    pub const fn new(payload: &'a [u8]) -> Self {
        Self { payload, at: 0 }
    }

    fn frame(&mut self) -> Result<QuicFrame, QuicFrameError> {
        let start = self.at;
        let mut rest = QuicFrameReader(&self.payload[start..]);
        let kind = rest.integer()?;
        if let 0x08..=0x0f = kind {
            let frame = self.stream(kind, rest)?;
            self.at = frame.data.end;
            return Ok(QuicFrame::Stream(frame));
        }
        rest.skip_body(kind)?;
        self.at = self.payload.len() - rest.0.len();
        Ok(QuicFrame::Other { kind, range: start..self.at })
    }

    /// RFC 9000 section 19.8: the three low bits of the type tell which fields are present.
    fn stream(
        &self,
        kind: u64,
        mut rest: QuicFrameReader<'a>,
    ) -> Result<QuicStreamFrame, QuicFrameError> {
        let id = rest.integer()?;
        let offset = if kind & 0x04 == 0 { 0 } else { rest.integer()? };
        let len = if kind & 0x02 == 0 { rest.0.len() as u64 } else { rest.integer()? };
        let start = self.payload.len() - rest.0.len();
        rest.skip(len)?;
        if offset + len > NUMBER_MAX {
            return Err(QuicFrameError::StreamTooLong);
        }
        let end = self.payload.len() - rest.0.len();
        Ok(QuicStreamFrame { id, offset, fin: kind & 0x01 != 0, data: start..end })
    }
}

impl Iterator for QuicFrames<'_> {
    type Item = Result<QuicFrame, QuicFrameError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.payload.len() {
            return None;
        }
        let frame = self.frame();
        if frame.is_err() {
            self.at = self.payload.len();
        }
        Some(frame)
    }
}

/// The bytes not parsed yet.
struct QuicFrameReader<'a>(&'a [u8]);

impl QuicFrameReader<'_> {
    fn integer(&mut self) -> Result<u64, QuicFrameError> {
        let (value, behind) = read_varint(self.0).ok_or(QuicFrameError::Truncated)?;
        self.0 = behind;
        Ok(value)
    }

    fn integers(&mut self, count: usize) -> Result<(), QuicFrameError> {
        (0..count).try_for_each(|_| self.integer().map(drop))
    }

    fn skip(&mut self, bytes: u64) -> Result<(), QuicFrameError> {
        let bytes = usize::try_from(bytes).map_err(|_| QuicFrameError::Truncated)?;
        self.0 = self.0.get(bytes..).ok_or(QuicFrameError::Truncated)?;
        Ok(())
    }

    /// Skips a length and as many bytes.
    fn skip_length_prefixed_field(&mut self) -> Result<(), QuicFrameError> {
        let len = self.integer()?;
        self.skip(len)
    }

    /// Skips the fields after a frame's type: RFC 9000 section 19, and DATAGRAM (RFC 9221).
    fn skip_body(&mut self, kind: u64) -> Result<(), QuicFrameError> {
        match kind {
            // PADDING.
            0x00 => {
                let zeros = self.0.iter().take_while(|byte| **byte == 0).count();
                self.skip(zeros as u64)
            }
            // PING, HANDSHAKE_DONE, IMMEDIATE_ACK.
            0x01 | 0x1e | 0x1f => Ok(()),
            0x02 | 0x03 => self.skip_ack(kind == 0x03),
            // RESET_STREAM.
            0x04 => self.integers(3),
            // STOP_SENDING, MAX_STREAM_DATA, STREAM_DATA_BLOCKED.
            0x05 | 0x11 | 0x15 => self.integers(2),
            // CRYPTO.
            0x06 => {
                self.integers(1)?;
                self.skip_length_prefixed_field()
            }
            // NEW_TOKEN, DATAGRAM with a length.
            0x07 | 0x31 => self.skip_length_prefixed_field(),
            // MAX_DATA, MAX_STREAMS, DATA_BLOCKED, STREAMS_BLOCKED, RETIRE_CONNECTION_ID.
            0x10 | 0x12 | 0x13 | 0x14 | 0x16 | 0x17 | 0x19 => self.integers(1),
            // NEW_CONNECTION_ID: two numbers, an ID with a length byte, a stateless reset token.
            0x18 => {
                self.integers(2)?;
                let len = *self.0.first().ok_or(QuicFrameError::Truncated)?;
                self.skip(u64::from(len) + 17)
            }
            // PATH_CHALLENGE, PATH_RESPONSE.
            0x1a | 0x1b => self.skip(8),
            // CONNECTION_CLOSE of QUIC, and below that of the application.
            0x1c => {
                self.integers(2)?;
                self.skip_length_prefixed_field()
            }
            0x1d => {
                self.integers(1)?;
                self.skip_length_prefixed_field()
            }
            // DATAGRAM without a length: it extends to the payload's end.
            0x30 => self.skip(self.0.len() as u64),
            // ACK_FREQUENCY; like IMMEDIATE_ACK from draft-ietf-quic-ack-frequency.
            0xaf => self.integers(4),
            other => Err(QuicFrameError::UnknownType(other)),
        }
    }

    /// Skips the fields of an ACK frame (RFC 9000 section 19.3).
    fn skip_ack(&mut self, ecn: bool) -> Result<(), QuicFrameError> {
        self.integers(2)?;
        let ranges = self.integer()?;
        self.integers(1)?;
        // Each range takes at least two bytes, so the end of the payload bounds the loop.
        for _ in 0..ranges {
            self.integers(2)?;
        }
        self.integers(if ecn { 3 } else { 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    #[test]
    fn headers_are_told_apart() {
        assert!(is_short(0x40) && is_short(0x7f) && is_short(0x03));
        assert!(!is_short(0xc0) && !is_short(0x80));
        let packet = [0x43, 1, 2, 3, 9, 9];
        let short = ShortHeaderPacket::parse(&packet, 3).unwrap();
        assert_eq!((short.first, short.id, short.rest), (0x43, &[1, 2, 3][..], &[9, 9][..]));
        assert_eq!((number_len(0x43), key_phase(0x43), key_phase(0x47)), (4, false, true));
        assert!(
            ShortHeaderPacket::parse(&packet, 5).is_some()
                && ShortHeaderPacket::parse(&packet, 6).is_none()
        );
        assert!(ShortHeaderPacket::parse(&[], 0).is_none());
    }

    /// Examples of RFC 9000 appendices A.1 to A.3.
    #[test]
    fn the_examples_of_the_rfc() {
        assert_eq!(expand_number(0xa82f_30ea + 1, 0x9b32, 2), 0xa82f_9b32);
        assert_eq!(number_len_for(0xac_5c02, Some(0xab_e8b3)), Some(2));
        assert_eq!(number_len_for(0xac_e8fe, Some(0xab_e8b3)), Some(3));
        let varints: [(&[u8], u64); 5] = [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
        ];
        for (bytes, value) in varints {
            assert_eq!(read_varint(bytes), Some((value, &[][..])));
        }
        assert_eq!(read_varint(&[0x40]), None);
        assert_eq!(write_varint(1 << 62, &mut [0; 8]), None);
        assert_eq!(write_varint(64, &mut [0; 1]), None);
    }

    #[test]
    fn numbers_at_both_ends() {
        assert_eq!(expand_number(0, 0xff, 1), 0xff, "nothing below zero");
        assert_eq!(expand_number(NUMBER_MAX + 1, 0xff, 1), NUMBER_MAX);
        assert_eq!(expand_number(NUMBER_MAX, 0, 1), NUMBER_MAX - 0xff, "nothing above the end");
        assert_eq!(number_len_for(1 << 31, None), None);
        assert_eq!(number_len_for(5, Some(6)), None);
    }

    #[test]
    fn stream_frames_are_found() {
        let mut payload = vec![0, 0, 0, 0x01];
        payload.extend([0x0f, 4, 0x44, 0x00, 3, b'a', b'b', b'c']);
        payload.extend([0x02, 9, 0, 1, 3, 0, 2]);
        payload.extend([0x08, 8, b'r', b'e', b's', b't']);
        let frames: Vec<_> = QuicFrames::new(&payload).collect::<Result<_, _>>().unwrap();
        let stream =
            |id, offset, fin, data| QuicFrame::Stream(QuicStreamFrame { id, offset, fin, data });
        assert_eq!(
            frames,
            [
                QuicFrame::Other { kind: 0, range: 0..3 },
                QuicFrame::Other { kind: 1, range: 3..4 },
                stream(4, 0x400, true, 9..12),
                QuicFrame::Other { kind: 2, range: 12..19 },
                stream(8, 0, false, 21..25),
            ]
        );
        assert_eq!(&payload[9..12], b"abc");
    }

    /// Every frame type of RFC 9000 section 19, RFC 9221 and the acknowledgment frequency draft,
    /// each followed by a PING; and each truncated.
    #[test]
    fn every_type_has_its_length() {
        let bodies: [&[u8]; 21] = [
            &[0x03, 9, 0, 1, 3, 0, 2, 1, 1, 1],
            &[0x04, 1, 2, 3],
            &[0x05, 1, 2],
            &[0x06, 0, 2, 7, 7],
            &[0x07, 2, 7, 7],
            &[0x10, 1],
            &[0x11, 1, 2],
            &[0x12, 1],
            &[0x13, 1],
            &[0x14, 1],
            &[0x15, 1, 2],
            &[0x16, 1],
            &[0x17, 1],
            &[0x18, 1, 0, 2, 7, 7, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16],
            &[0x19, 1],
            &[0x1a, 1, 2, 3, 4, 5, 6, 7, 8],
            &[0x1c, 1, 2, 1, b'x'],
            &[0x1d, 1, 1, b'x'],
            &[0x1e],
            &[0x1f],
            &[0x31, 2, 7, 7],
        ];
        for body in bodies {
            let payload = [body, &[0x01]].concat();
            let frames: Vec<_> = QuicFrames::new(&payload).collect();
            let expected = [
                Ok(QuicFrame::Other { kind: u64::from(body[0]), range: 0..body.len() }),
                Ok(QuicFrame::Other { kind: 1, range: body.len()..body.len() + 1 }),
            ];
            assert_eq!(frames, expected, "{body:?}");
            for len in 1..body.len() {
                let cut: Vec<_> = QuicFrames::new(&body[..len]).collect();
                assert_eq!(cut, [Err(QuicFrameError::Truncated)], "{body:?} cut to {len}");
            }
        }
        let all: Vec<_> = QuicFrames::new(&[0x30, 1, 2]).collect();
        assert_eq!(all, [Ok(QuicFrame::Other { kind: 0x30, range: 0..3 })]);
        let frequency = [0x40, 0xaf, 1, 2, 3, 4];
        let all: Vec<_> = QuicFrames::new(&frequency).collect();
        assert_eq!(all, [Ok(QuicFrame::Other { kind: 0xaf, range: 0..6 })]);
        for len in 1..frequency.len() {
            let cut: Vec<_> = QuicFrames::new(&frequency[..len]).collect();
            assert_eq!(cut, [Err(QuicFrameError::Truncated)], "cut to {len}");
        }
        for kind in [0x20, 0x21, 0x32] {
            let unknown: Vec<_> = QuicFrames::new(&[kind, 1]).collect();
            assert_eq!(unknown, [Err(QuicFrameError::UnknownType(kind.into()))]);
        }
        let mut far = vec![0x0c, 1];
        far.extend([0xff; 8]);
        assert_eq!(QuicFrames::new(&far).next().unwrap().map(drop), Ok(()));
        far.push(0);
        assert_eq!(QuicFrames::new(&far).next(), Some(Err(QuicFrameError::StreamTooLong)));
    }

    proptest! {
        /// A truncated number is reconstructed if its distance from the expected one is within half
        /// the window (RFC 9000 section 17.1).
        #[test]
        fn numbers_survive(expected in 0..=NUMBER_MAX, distance in -(1_i64 << 31)..1 << 31) {
            let number = expected.saturating_add_signed(distance);
            prop_assume!(number <= NUMBER_MAX);
            for len in 1..=NUMBER_BYTES_MAX {
                let half = 1_i64 << (8 * len - 1);
                let truncated = u32::from_be_bytes(truncate_number(number));
                let kept = if len == 4 { truncated } else { truncated & ((1 << (8 * len)) - 1) };
                let expanded = expand_number(expected, kept, len);
                prop_assert!(expanded <= NUMBER_MAX);
                prop_assert_eq!(u64::from(kept), expanded & ((1 << (8 * len)) - 1));
                if distance > -half && distance <= half {
                    prop_assert_eq!(expanded, number, "{} bytes", len);
                }
            }
        }

        #[test]
        fn enough_bytes_are_sent(acked in 0..NUMBER_MAX / 2, ahead in 1_u64..1 << 31) {
            let number = acked + ahead;
            let len = number_len_for(number, Some(acked)).unwrap();
            let kept = u64::from(u32::from_be_bytes(truncate_number(number)));
            let kept = u32::try_from(kept & ((1 << (8 * len)) - 1)).unwrap();
            // Whichever of them the peer has received.
            for largest in [acked, acked + ahead / 2, number - 1] {
                prop_assert_eq!(expand_number(largest + 1, kept, len), number);
            }
        }

        #[test]
        fn integers_survive(value in prop_oneof![0..=NUMBER_MAX, 0_u64..0x8000]) {
            let mut out = [0; 9];
            let len = write_varint(value, &mut out).unwrap();
            prop_assert_eq!(Some(len), varint_len(value));
            prop_assert_eq!(read_varint(&out[..len]), Some((value, &[][..])));
            prop_assert_eq!(read_varint(&out[..len - 1]), None);
        }

        #[test]
        fn total_on_any_bytes(payload in proptest::collection::vec(
            prop_oneof![0_u8..0x32, any::<u8>()], 0..200), id_len in 0_usize..30,
        ) {
            let mut at = 0;
            for frame in QuicFrames::new(&payload).flatten() {
                let end = match frame {
                    QuicFrame::Stream(stream) => {
                        prop_assert!(stream.data.start > at);
                        stream.data.end
                    }
                    QuicFrame::Other { range, .. } => {
                        prop_assert_eq!(range.start, at);
                        range.end
                    }
                };
                prop_assert!(end > at && end <= payload.len());
                at = end;
            }
            if let Some(short) = ShortHeaderPacket::parse(&payload, id_len) {
                prop_assert_eq!(1 + short.id.len() + short.rest.len(), payload.len());
            }
        }
    }
}
