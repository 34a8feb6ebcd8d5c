//! Gzip (RFC 1952): members one after the other.

use abi::decompress::{DecodeFault, DecodeProgress, Decoder};
use flate2::{Decompress, FlushDecompress, Status};

use crate::BEGINNINGS_MAX;

/// Base-2 logarithm of the largest window of DEFLATE (RFC 1951).
const WINDOW_BITS: u8 = 15;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    /// Before the first byte.
    Start,
    /// In a member.
    Member,
    /// After a member, perhaps before another.
    Between,
}

/// Decoder of a gzip stream.
#[derive(Debug)]
pub(crate) struct GzipDecoder {
    member: Decompress,
    position: Position,
}

impl GzipDecoder {
    pub(crate) fn new() -> Self {
        Self { member: Decompress::new_gzip(WINDOW_BITS), position: Position::Start }
    }
}

impl Decoder for GzipDecoder {
    fn decode(&mut self, input: &[u8], output: &mut [u8]) -> Result<DecodeProgress, DecodeFault> {
        let (mut consumed, mut produced, mut begun) = (0, 0, 0);
        loop {
            let (rest, room) = (&input[consumed..], &mut output[produced..]);
            if self.position != Position::Member {
                if rest.is_empty() || begun == BEGINNINGS_MAX {
                    break;
                }
                begun += 1;
                if self.position == Position::Between {
                    self.member = Decompress::new_gzip(WINDOW_BITS);
                }
                self.position = Position::Member;
            }
            let before = (self.member.total_in(), self.member.total_out());
            let result = self.member.decompress(rest, room, FlushDecompress::None);
            let status = result.map_err(|_| DecodeFault::Malformed)?;
            let moved = |now: u64, before: u64| usize::try_from(now - before).unwrap_or(usize::MAX);
            let read = moved(self.member.total_in(), before.0);
            let written = moved(self.member.total_out(), before.1);
            (consumed, produced) = (consumed + read, produced + written);
            if status == Status::StreamEnd {
                self.position = Position::Between;
            } else if (read, written) == (0, 0) {
                break;
            }
        }
        let is_complete = self.position == Position::Between;
        Ok(DecodeProgress { consumed, produced, is_complete })
    }
}
