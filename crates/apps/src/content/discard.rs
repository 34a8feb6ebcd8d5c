//! Reads and discards the content of a request, in order to find the next request.
//!
//! [`super::connection`] passes a [`ContentDiscard`] the bytes after a head as they arrive. The
//! chunked coding is read strictly (RFC 9112 section 7.1): a proxy in front of the server that
//! reads a chunk differently would see other requests. All bytes count towards the limit, including
//! those of the coding, so extensions and trailers are bounded.

use super::request::ContentFraming;
use super::status::HttpStatus;

/// Maximum number of digits of a chunk size: 2^64 - 1 has sixteen.
const SIZE_DIGITS_MAX: u8 = 16;

/// Reader of content that is discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContentDiscard {
    state: DiscardState,
    /// Bytes that may still arrive.
    allowed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DiscardState {
    /// Remaining bytes of content without a coding.
    Length(u64),
    /// The hexadecimal size of a chunk.
    Size {
        value: u64,
        digits: u8,
    },
    /// The extensions of a chunk of this size.
    Extension(u64),
    /// The line feed after the size of a chunk.
    SizeLf(u64),
    /// Remaining bytes of the chunk.
    Data(u64),
    /// The carriage return after the data of a chunk.
    DataCr,
    /// The line feed after the data of a chunk.
    DataLf,
    /// The beginning of a trailer field, or of the empty line that ends the content.
    TrailerStart,
    /// Within a trailer field.
    Trailer,
    /// The line feed after a trailer field.
    TrailerLf,
    /// The line feed of the empty line.
    FinalLf,
    Done,
}

impl ContentDiscard {
    /// Creates a reader for content with this framing, of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// 413 if the content is already known to be longer.
    pub(crate) const fn new(framing: ContentFraming, bytes_max: u64) -> Result<Self, HttpStatus> {
        let state = match framing {
            ContentFraming::None | ContentFraming::Length(0) => DiscardState::Done,
            ContentFraming::Length(bytes) if bytes > bytes_max => {
                return Err(HttpStatus::ContentTooLarge);
            }
            ContentFraming::Length(bytes) => DiscardState::Length(bytes),
            ContentFraming::Chunked => DiscardState::Size { value: 0, digits: 0 },
        };
        Ok(Self { state, allowed: bytes_max })
    }

    /// Returns whether all content has arrived.
    pub(crate) fn is_done(&self) -> bool {
        self.state == DiscardState::Done
    }

    /// Takes bytes that arrived; returns the number of them that belong to the content.
    ///
    /// # Errors
    /// 400 if they violate the coding, 413 if the content is too long.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<usize, HttpStatus> {
        let mut at = 0;
        while at < bytes.len() && self.state != DiscardState::Done {
            let here = match self.state {
                DiscardState::Length(left) | DiscardState::Data(left) => {
                    self.skip(left, bytes.len() - at)
                }
                state => {
                    self.state = next(state, bytes[at]).ok_or(HttpStatus::BadRequest)?;
                    1
                }
            };
            let too_many = self.allowed.checked_sub(here as u64);
            self.allowed = too_many.ok_or(HttpStatus::ContentTooLarge)?;
            if matches!(self.state, DiscardState::Data(left) if left > self.allowed) {
                return Err(HttpStatus::ContentTooLarge);
            }
            at += here;
        }
        Ok(at)
    }

    /// Skips data, of which `left` bytes remain and `here` bytes have arrived; returns the number
    /// of bytes skipped.
    fn skip(&mut self, left: u64, here: usize) -> usize {
        let taken = usize::try_from(left).unwrap_or(usize::MAX).min(here);
        let left = left - taken as u64;
        self.state = match self.state {
            DiscardState::Length(_) if left == 0 => DiscardState::Done,
            DiscardState::Length(_) => DiscardState::Length(left),
            _ if left == 0 => DiscardState::DataCr,
            _ => DiscardState::Data(left),
        };
        taken
    }
}

/// Returns the state after a byte of the coding; `None` if the byte is not allowed there.
fn next(state: DiscardState, byte: u8) -> Option<DiscardState> {
    Some(match (state, byte) {
        (DiscardState::Size { digits: 1.., value }, b';') => DiscardState::Extension(value),
        (DiscardState::Size { digits: 1.., value }, b'\r') => DiscardState::SizeLf(value),
        (DiscardState::Size { value, digits: 0..SIZE_DIGITS_MAX }, _) => {
            let digit = char::from(byte).to_digit(16)?;
            let DiscardState::Size { digits, .. } = state else { return None };
            DiscardState::Size { value: value << 4 | u64::from(digit), digits: digits + 1 }
        }
        (DiscardState::Extension(size), b'\r') => DiscardState::SizeLf(size),
        (DiscardState::Extension(_), _) if is_text(byte) => state,
        (DiscardState::SizeLf(0), b'\n') => DiscardState::TrailerStart,
        (DiscardState::SizeLf(size), b'\n') => DiscardState::Data(size),
        (DiscardState::DataCr, b'\r') => DiscardState::DataLf,
        (DiscardState::DataLf, b'\n') => DiscardState::Size { value: 0, digits: 0 },
        (DiscardState::TrailerStart, b'\r') => DiscardState::FinalLf,
        (DiscardState::Trailer, b'\r') => DiscardState::TrailerLf,
        (DiscardState::TrailerStart | DiscardState::Trailer, _) if is_text(byte) => {
            DiscardState::Trailer
        }
        (DiscardState::TrailerLf, b'\n') => DiscardState::TrailerStart,
        (DiscardState::FinalLf, b'\n') => DiscardState::Done,
        _ => return None,
    })
}

/// Returns whether a byte is allowed in a field value (RFC 9110 section 5.5).
const fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAX: u64 = 1000;

    /// Returns the number of content bytes in `bytes` and whether the content is complete, or the
    /// status.
    fn taken(framing: ContentFraming, bytes: &[u8]) -> Result<(usize, bool), u16> {
        let mut discard = ContentDiscard::new(framing, MAX).map_err(HttpStatus::code)?;
        let taken = discard.take(bytes).map_err(HttpStatus::code)?;
        Ok((taken, discard.is_done()))
    }

    #[test]
    fn lengths() {
        assert_eq!(taken(ContentFraming::None, b"GET"), Ok((0, true)));
        assert_eq!(taken(ContentFraming::Length(0), b"GET"), Ok((0, true)));
        assert_eq!(taken(ContentFraming::Length(3), b"ab"), Ok((2, false)));
        assert_eq!(taken(ContentFraming::Length(3), b"abcGET"), Ok((3, true)));
        assert_eq!(taken(ContentFraming::Length(MAX), &[0; 1001]), Ok((1000, true)));
        assert_eq!(taken(ContentFraming::Length(MAX + 1), b""), Err(413));
        assert_eq!(taken(ContentFraming::Length(u64::MAX), b""), Err(413));
    }

    #[test]
    fn chunks() {
        for text in [
            "0\r\n\r\n",
            "3\r\nabc\r\n0\r\n\r\n",
            "00000003\r\nabc\r\n000\r\n\r\n",
            "a\r\n0123456789\r\nA;x=y; z=\"q\"\r\n0123456789\r\n0\r\n\r\n",
            "1\r\n\n\r\n0\r\nTrailer: 1\r\nOther: 2\r\n\r\n",
        ] {
            let next = format!("{text}GET / HTTP/1.1");
            assert_eq!(
                taken(ContentFraming::Chunked, next.as_bytes()),
                Ok((text.len(), true)),
                "{text:?}"
            );
            for end in 0..text.len() {
                let part = taken(ContentFraming::Chunked, &text.as_bytes()[..end]);
                assert_eq!(part, Ok((end, false)), "{end} bytes of {text:?}");
            }
        }
        for text in [
            "\r\n",
            ";x\r\n",
            "g\r\n",
            "-1\r\n",
            "+1\r\n",
            "0x1\r\n",
            " 1\r\n",
            "1 \r\n",
            "1\n",
            "1\rx",
            "1;x\n",
            "1;\0",
            "1\r\nab",
            "1\r\na\n",
            "1\r\na\rb",
            "0\r\n\n",
            "0\r\na\n",
            "0\r\na: b\r\n\n",
            "0\r\na\r\r",
            "00000000000000001\r\n",
        ] {
            assert_eq!(taken(ContentFraming::Chunked, text.as_bytes()), Err(400), "{text:?}");
        }
    }

    #[test]
    fn chunks_are_bounded() {
        assert_eq!(taken(ContentFraming::Chunked, b"ffffffffffffffff\r\n"), Err(413));
        assert_eq!(
            taken(ContentFraming::Chunked, b"3e8\r\n"),
            Err(413),
            "with its coding it is too long"
        );
        assert_eq!(taken(ContentFraming::Chunked, b"3e3\r\n"), Ok((5, false)));
        let extension = [&b"1;"[..], &[b'x'; 1000]].concat();
        assert_eq!(taken(ContentFraming::Chunked, &extension), Err(413));
        let trailer = [&b"0\r\n"[..], &b"a: b\r\n".repeat(200)].concat();
        assert_eq!(taken(ContentFraming::Chunked, &trailer), Err(413));
        let tiny = b"1\r\na\r\n".repeat(200);
        assert_eq!(taken(ContentFraming::Chunked, &tiny), Err(413));
    }

    proptest! {
        /// However the bytes are cut, the same of them are content.
        #[test]
        fn cuts_change_nothing(
            text in "([0-9a-f]{1,2}(;[a-z]{0,3})?\r?\n|[a-z0-9]{0,12}\r\n){0,8}0\r\n\r\nGET",
            cuts in proptest::collection::vec(1_usize..7, 0..60),
        ) {
            let whole = taken(ContentFraming::Chunked, text.as_bytes());
            let mut discard = ContentDiscard::new(ContentFraming::Chunked, MAX).expect("no length");
            let (mut rest, mut sum) = (text.as_bytes(), 0);
            let mut result = Ok(());
            for cut in cuts.into_iter().chain([text.len()]) {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                rest = later;
                match discard.take(now) {
                    Ok(bytes) => sum += bytes,
                    Err(status) => { result = Err(status.code()); break; }
                }
            }
            prop_assert_eq!(result.map(|()| (sum, discard.is_done())), whole);
        }
    }
}
