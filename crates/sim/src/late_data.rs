//! Data that a client sends after a request with `Connection: close`.
//!
//! Stray line ends, pipelined requests, and more than fits a segment: before the response, while it
//! is read, and after the server's FIN. The server must discard the data, and the response must
//! still arrive in full (RFC 9112 section 9.6). Drawn with the session and polled by
//! [`crate::client`]; over TLS the data is sent in ordinary records, before the client's
//! close_notify.

use base::Prng;
use bytes::Bytes;

/// Probability that a session sends such data.
const CHANCE: f64 = 0.7;
/// Maximum sizes of a piece, one of which is drawn. The large one has several segments, so that
/// part of a TLS record may have arrived when the server closes.
const PIECE_BYTES_MAX: [u64; 4] = [20, 1_400, 1_400, 16_000];

#[derive(Debug)]
struct LatePiece {
    /// Number of bytes of the response to read before the piece is sent.
    after: u64,
    bytes: Bytes,
}

/// The data, in pieces.
#[derive(Debug, Default)]
pub(crate) struct LateRequestData {
    pieces: Vec<LatePiece>,
    /// Pieces sent on the present connection.
    sent: usize,
}

impl LateRequestData {
    /// Draws the late data of a session; often none.
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
            LatePiece { after, bytes }
        });
        Self { pieces: pieces.collect(), sent: 0 }
    }

    /// Starts again from the first piece, on another connection.
    pub(crate) fn restart(&mut self) {
        self.sent = 0;
    }

    /// Returns the next piece if it is due and fits `room`.
    pub(crate) fn poll(&mut self, read: u64, room: usize) -> Option<Bytes> {
        let piece = self.pieces.get(self.sent)?;
        if piece.after > read || piece.bytes.len() > room {
            return None;
        }
        self.sent += 1;
        Some(piece.bytes.clone())
    }
}
