//! The limits up to which the peer lets us send (RFC 9000, section 4.1), by its transport
//! parameters and its frames.
//!
//! quinn-proto keeps to it and does not say what it is. Here it is followed beside quinn-proto, to
//! tell why a stream waits: a stream without credit of its own lets others go first, and one that
//! waits for the connection keeps its turn. Only the order of streams and what is shown depend on
//! it.

use wire::quic::{Frame, read_varint};

/// `initial_max_data` and the windows of streams that the peer opens, that we open, and of streams
/// in one direction (RFC 9000, section 18.2).
const INITIAL_MAX_DATA: u64 = 0x04;
const INITIAL_BIDI_LOCAL: u64 = 0x05;
const INITIAL_BIDI_REMOTE: u64 = 0x06;
const INITIAL_UNI: u64 = 0x07;
/// MAX_DATA and MAX_STREAM_DATA (sections 19.9 and 19.10).
const MAX_DATA: u64 = 0x10;
const MAX_STREAM_DATA: u64 = 0x11;

/// The peer's limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Credit {
    /// Bytes of all streams.
    pub(crate) connection: u64,
    /// Bytes of a new stream: of the peer's, of ours in both directions, of ours in one.
    pub(crate) streams: [u64; 3],
    /// MAX_STREAM_DATA since the driver looked: which stream, and how far.
    pub(crate) raised: Vec<(u64, u64)>,
}

impl Credit {
    /// The limits that the peer's transport parameters set. What is malformed quinn-proto refuses.
    pub(crate) fn of_parameters(mut rest: &[u8]) -> Self {
        let mut credit = Self::default();
        while let Some((id, value, behind)) = parameter(rest) {
            rest = behind;
            let Some((limit, _)) = read_varint(value) else { continue };
            match id {
                INITIAL_MAX_DATA => credit.connection = limit,
                INITIAL_BIDI_LOCAL => credit.streams[0] = limit,
                INITIAL_BIDI_REMOTE => credit.streams[1] = limit,
                INITIAL_UNI => credit.streams[2] = limit,
                _ => {}
            }
        }
        credit
    }

    /// Notes what a frame of a packet's `payload` allows.
    pub(crate) fn follow(&mut self, payload: &[u8], frame: &Frame) {
        let Frame::Other { kind: kind @ (MAX_DATA | MAX_STREAM_DATA), range } = frame else {
            return;
        };
        let values = payload.get(range.clone()).and_then(read_varint);
        let Some((first, behind)) = values.and_then(|(_, rest)| read_varint(rest)) else { return };
        match (*kind, read_varint(behind)) {
            (MAX_DATA, _) => self.connection = self.connection.max(first),
            (_, Some((limit, _))) => self.raised.push((first, limit)),
            (_, None) => {}
        }
    }

    /// Bytes that a stream may have at first, by its number, for the side that opens streams with
    /// `ours` as their last bit.
    pub(crate) fn initial(&self, stream: u64, ours: u64) -> u64 {
        let [theirs, bidirectional, unidirectional] = self.streams;
        match (stream & 1 == ours, stream & 2 == 0) {
            (false, _) => theirs,
            (true, true) => bidirectional,
            (true, false) => unidirectional,
        }
    }
}

/// The parameter at the front: its ID, its value, and what is behind.
fn parameter(bytes: &[u8]) -> Option<(u64, &[u8], &[u8])> {
    let (id, rest) = read_varint(bytes)?;
    let (len, rest) = read_varint(rest)?;
    let (value, behind) = rest.split_at_checked(usize::try_from(len).ok()?)?;
    Some((id, value, behind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::quic::Frames;

    #[test]
    fn parameters_and_frames() {
        // max_idle_timeout, initial_max_data, the three windows, one that is not known.
        let bytes = [
            &[0x01, 2, 0x40, 100][..],
            &[0x04, 4, 0x80, 0, 0x10, 0],
            &[0x05, 1, 7, 0x06, 1, 8, 0x07, 1, 9],
            &[0x40, 0x99, 0],
        ]
        .concat();
        let mut credit = Credit::of_parameters(&bytes);
        assert_eq!((credit.connection, credit.streams), (0x1000, [7, 8, 9]));
        assert_eq!([0, 1, 3].map(|stream| credit.initial(stream, 1)), [7, 8, 9]);
        let payload = [0x10, 0x80, 0, 0x20, 0, 0x11, 4, 0x40, 99, 0x01, 0x10, 5];
        for frame in Frames::new(&payload) {
            credit.follow(&payload, &frame.expect("frames"));
        }
        assert_eq!((credit.connection, &credit.raised[..]), (0x2000, &[(4, 99)][..]));
        for cut in 0..bytes.len() {
            Credit::of_parameters(&bytes[..cut]);
        }
    }
}
