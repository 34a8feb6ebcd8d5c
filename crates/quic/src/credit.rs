//! The peer's flow control limits for our sending (RFC 9000 section 4.1), from its transport
//! parameters and frames.
//!
//! quinn-proto enforces the limits but does not expose them. They are tracked here to tell why a
//! stream waits: a stream without stream credit lets others go first, and one that waits for
//! connection credit keeps its turn. Only the order of streams and the displayed state depend on
//! them.

use wire::quic::{QuicFrame, read_varint};

/// Transport parameters (RFC 9000 section 18.2): `initial_max_data`, and the initial windows of
/// bidirectional streams that the peer opens, of those that we open, and of unidirectional streams.
const INITIAL_MAX_DATA: u64 = 0x04;
const INITIAL_BIDI_LOCAL: u64 = 0x05;
const INITIAL_BIDI_REMOTE: u64 = 0x06;
const INITIAL_UNI: u64 = 0x07;
/// Types of MAX_DATA and MAX_STREAM_DATA frames (RFC 9000 sections 19.9 and 19.10).
const MAX_DATA: u64 = 0x10;
const MAX_STREAM_DATA: u64 = 0x11;

/// Flow control limits set by the peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Credit {
    /// Limit of all streams together, in bytes.
    pub(crate) connection: u64,
    /// Initial limits in bytes: of bidirectional streams that the peer opens, of bidirectional
    /// streams that we open, of unidirectional streams that we open.
    pub(crate) streams: [u64; 3],
    /// MAX_STREAM_DATA frames since the driver last drained them: stream number and limit.
    pub(crate) raised_stream_limits: Vec<(u64, u64)>,
}

impl Credit {
    /// Parses the limits in the peer's transport parameters. Malformed ones end the result early;
    /// quinn-proto rejects them.
    pub(crate) fn from_transport_parameters(mut rest: &[u8]) -> Self {
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

    /// Applies a MAX_DATA or MAX_STREAM_DATA frame of a packet's `payload`.
    pub(crate) fn apply_frame(&mut self, payload: &[u8], frame: &QuicFrame) {
        let QuicFrame::Other { kind: kind @ (MAX_DATA | MAX_STREAM_DATA), range } = frame else {
            return;
        };
        let values = payload.get(range.clone()).and_then(read_varint);
        let Some((first, behind)) = values.and_then(|(_, rest)| read_varint(rest)) else { return };
        match (*kind, read_varint(behind)) {
            (MAX_DATA, _) => self.connection = self.connection.max(first),
            (_, Some((limit, _))) => self.raised_stream_limits.push((first, limit)),
            (_, None) => {}
        }
    }

    /// Returns the initial limit of a stream in bytes. `ours` is the lowest bit of the numbers of
    /// streams that we open: 0 for a client, 1 for a server.
    pub(crate) fn initial_stream_limit(&self, stream: u64, ours: u64) -> u64 {
        let [theirs, bidirectional, unidirectional] = self.streams;
        match (stream & 1 == ours, stream & 2 == 0) {
            (false, _) => theirs,
            (true, true) => bidirectional,
            (true, false) => unidirectional,
        }
    }
}

/// Splits off the first parameter: ID, value, and the remaining bytes.
fn parameter(bytes: &[u8]) -> Option<(u64, &[u8], &[u8])> {
    let (id, rest) = read_varint(bytes)?;
    let (len, rest) = read_varint(rest)?;
    let (value, behind) = rest.split_at_checked(usize::try_from(len).ok()?)?;
    Some((id, value, behind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::quic::QuicFrames;

    #[test]
    fn parameters_and_frames() {
        // max_idle_timeout, initial_max_data, the three windows, an unknown parameter.
        let bytes = [
            &[0x01, 2, 0x40, 100][..],
            &[0x04, 4, 0x80, 0, 0x10, 0],
            &[0x05, 1, 7, 0x06, 1, 8, 0x07, 1, 9],
            &[0x40, 0x99, 0],
        ]
        .concat();
        let mut credit = Credit::from_transport_parameters(&bytes);
        assert_eq!((credit.connection, credit.streams), (0x1000, [7, 8, 9]));
        assert_eq!([0, 1, 3].map(|stream| credit.initial_stream_limit(stream, 1)), [7, 8, 9]);
        let payload = [0x10, 0x80, 0, 0x20, 0, 0x11, 4, 0x40, 99, 0x01, 0x10, 5];
        for frame in QuicFrames::new(&payload) {
            credit.apply_frame(&payload, &frame.expect("frames"));
        }
        assert_eq!((credit.connection, &credit.raised_stream_limits[..]), (0x2000, &[(4, 99)][..]));
        for cut in 0..bytes.len() {
            Credit::from_transport_parameters(&bytes[..cut]);
        }
    }
}
