//! What a client sends behind the request that it said is its last.
//!
//! Stray line ends, pipelined requests, and more than fits a segment: before the response, while it
//! is read, and after the server's end. A server discards it, and the response still arrives whole
//! (RFC 9112 section 9.6). Drawn when a session is drawn and asked by [`crate::client`]; over TLS
//! it becomes records like any other, and the client's close_notify follows.

use base::Prng;
use bytes::Bytes;

/// Chance that a session which says that a request is its last sends more.
const CHANCE: f64 = 0.7;
/// Bytes of a piece at most, and of one in four: several segments, so that part of a TLS record may
/// be there when the server closes.
const PIECE_BYTES_MAX: [u64; 4] = [20, 1_400, 1_400, 16_000];

#[derive(Debug)]
struct Piece {
    /// It is sent when so many bytes of the response were read.
    after: u64,
    bytes: Bytes,
}

/// The data, in pieces.
#[derive(Debug, Default)]
pub(crate) struct Late {
    pieces: Vec<Piece>,
    /// Pieces that were sent on this connection.
    sent: usize,
}

impl Late {
    /// What a session sends late; often nothing.
    pub(crate) fn draw(rng: &mut Prng) -> Self {
        if !rng.chance(CHANCE) {
            return Self::default();
        }
        let most = if rng.chance(0.1) { 50 } else { 4 };
        let mut after = 0;
        let pieces = (0..rng.range(1, most)).map(|_| {
            if rng.chance(0.5) {
                after += rng.below(30_000);
            }
            let bytes = match rng.below(3) {
                0 => Bytes::from_static(b"\r\n"),
                1 => Bytes::from_static(b"GET /0 HTTP/1.1\r\nHost: sim\r\n\r\n"),
                _ => {
                    let most = PIECE_BYTES_MAX[rng.below(4) as usize];
                    vec![b'x'; rng.range(1, most) as usize].into()
                }
            };
            Piece { after, bytes }
        });
        Self { pieces: pieces.collect(), sent: 0 }
    }

    /// Begins again, on another connection.
    pub(crate) fn restart(&mut self) {
        self.sent = 0;
    }

    /// The next piece, if it is time for it and there is room.
    pub(crate) fn poll(&mut self, read: u64, room: usize) -> Option<Bytes> {
        let piece = self.pieces.get(self.sent)?;
        if piece.after > read || piece.bytes.len() > room {
            return None;
        }
        self.sent += 1;
        Some(piece.bytes.clone())
    }
}
