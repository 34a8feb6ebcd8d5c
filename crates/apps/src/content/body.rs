//! Reads and discards the content of a request, in order to find the next request.
//!
//! [`super::connection`] passes a [`Discard`] the bytes behind a head as they arrive. The chunked
//! coding is read strictly (RFC 9112 section 7.1): a proxy in front of the server that reads a
//! chunk differently would see other requests. All bytes count towards the limit, including those
//! of the coding, so extensions and trailers are bounded.

use super::request::Framing;
use super::status::Status;

/// Maximum number of digits of a chunk size: 2^64 - 1 has sixteen.
const SIZE_DIGITS_MAX: u8 = 16;

/// Reader of content that is discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Discard {
    state: State,
    /// Bytes that may still arrive.
    allowed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Remaining bytes of content without a coding.
    Length(u64),
    /// The hexadecimal size of a chunk.
    Size {
        value: u64,
        digits: u8,
    },
    /// The extensions of a chunk of this size.
    Extension(u64),
    /// The line feed behind the size of a chunk.
    SizeFeed(u64),
    /// Remaining bytes of the chunk.
    Data(u64),
    /// The carriage return behind the data of a chunk.
    DataReturn,
    /// The line feed behind the data of a chunk.
    DataFeed,
    /// The beginning of a trailer field, or of the empty line that ends the content.
    TrailerStart,
    /// Within a trailer field.
    Trailer,
    /// The line feed behind a trailer field.
    TrailerFeed,
    /// The line feed of the empty line.
    LastFeed,
    Done,
}

impl Discard {
    /// Creates a reader for content with this framing, of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// 413 if the content is already known to be longer.
    pub(crate) const fn new(framing: Framing, bytes_max: u64) -> Result<Self, Status> {
        let state = match framing {
            Framing::None | Framing::Length(0) => State::Done,
            Framing::Length(bytes) if bytes > bytes_max => return Err(Status::ContentTooLarge),
            Framing::Length(bytes) => State::Length(bytes),
            Framing::Chunked => State::Size { value: 0, digits: 0 },
        };
        Ok(Self { state, allowed: bytes_max })
    }

    /// Returns whether all content has arrived.
    pub(crate) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Takes bytes that arrived; returns the number of them that belong to the content.
    ///
    /// # Errors
    /// 400 if they violate the coding, 413 if the content is too long.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<usize, Status> {
        let mut at = 0;
        while at < bytes.len() && self.state != State::Done {
            let here = match self.state {
                State::Length(left) | State::Data(left) => self.skip(left, bytes.len() - at),
                state => {
                    self.state = next(state, bytes[at]).ok_or(Status::BadRequest)?;
                    1
                }
            };
            let too_many = self.allowed.checked_sub(here as u64);
            self.allowed = too_many.ok_or(Status::ContentTooLarge)?;
            if matches!(self.state, State::Data(left) if left > self.allowed) {
                return Err(Status::ContentTooLarge);
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
            State::Length(_) if left == 0 => State::Done,
            State::Length(_) => State::Length(left),
            _ if left == 0 => State::DataReturn,
            _ => State::Data(left),
        };
        taken
    }
}

/// Returns the state after a byte of the coding; `None` if the byte is not allowed there.
fn next(state: State, byte: u8) -> Option<State> {
    Some(match (state, byte) {
        (State::Size { digits: 1.., value }, b';') => State::Extension(value),
        (State::Size { digits: 1.., value }, b'\r') => State::SizeFeed(value),
        (State::Size { value, digits: 0..SIZE_DIGITS_MAX }, _) => {
            let digit = char::from(byte).to_digit(16)?;
            let State::Size { digits, .. } = state else { return None };
            State::Size { value: value << 4 | u64::from(digit), digits: digits + 1 }
        }
        (State::Extension(size), b'\r') => State::SizeFeed(size),
        (State::Extension(_), _) if is_text(byte) => state,
        (State::SizeFeed(0), b'\n') => State::TrailerStart,
        (State::SizeFeed(size), b'\n') => State::Data(size),
        (State::DataReturn, b'\r') => State::DataFeed,
        (State::DataFeed, b'\n') => State::Size { value: 0, digits: 0 },
        (State::TrailerStart, b'\r') => State::LastFeed,
        (State::Trailer, b'\r') => State::TrailerFeed,
        (State::TrailerStart | State::Trailer, _) if is_text(byte) => State::Trailer,
        (State::TrailerFeed, b'\n') => State::TrailerStart,
        (State::LastFeed, b'\n') => State::Done,
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
    fn taken(framing: Framing, bytes: &[u8]) -> Result<(usize, bool), u16> {
        let mut discard = Discard::new(framing, MAX).map_err(Status::code)?;
        let taken = discard.take(bytes).map_err(Status::code)?;
        Ok((taken, discard.is_done()))
    }

    #[test]
    fn lengths() {
        assert_eq!(taken(Framing::None, b"GET"), Ok((0, true)));
        assert_eq!(taken(Framing::Length(0), b"GET"), Ok((0, true)));
        assert_eq!(taken(Framing::Length(3), b"ab"), Ok((2, false)));
        assert_eq!(taken(Framing::Length(3), b"abcGET"), Ok((3, true)));
        assert_eq!(taken(Framing::Length(MAX), &[0; 1001]), Ok((1000, true)));
        assert_eq!(taken(Framing::Length(MAX + 1), b""), Err(413));
        assert_eq!(taken(Framing::Length(u64::MAX), b""), Err(413));
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
                taken(Framing::Chunked, next.as_bytes()),
                Ok((text.len(), true)),
                "{text:?}"
            );
            for end in 0..text.len() {
                let part = taken(Framing::Chunked, &text.as_bytes()[..end]);
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
            assert_eq!(taken(Framing::Chunked, text.as_bytes()), Err(400), "{text:?}");
        }
    }

    #[test]
    fn chunks_are_bounded() {
        assert_eq!(taken(Framing::Chunked, b"ffffffffffffffff\r\n"), Err(413));
        assert_eq!(taken(Framing::Chunked, b"3e8\r\n"), Err(413), "with its coding it is too long");
        assert_eq!(taken(Framing::Chunked, b"3e3\r\n"), Ok((5, false)));
        let extension = [&b"1;"[..], &[b'x'; 1000]].concat();
        assert_eq!(taken(Framing::Chunked, &extension), Err(413));
        let trailer = [&b"0\r\n"[..], &b"a: b\r\n".repeat(200)].concat();
        assert_eq!(taken(Framing::Chunked, &trailer), Err(413));
        let tiny = b"1\r\na\r\n".repeat(200);
        assert_eq!(taken(Framing::Chunked, &tiny), Err(413));
    }

    proptest! {
        /// However the bytes are cut, the same of them are content.
        #[test]
        fn cuts_change_nothing(
            text in "([0-9a-f]{1,2}(;[a-z]{0,3})?\r?\n|[a-z0-9]{0,12}\r\n){0,8}0\r\n\r\nGET",
            cuts in proptest::collection::vec(1_usize..7, 0..60),
        ) {
            let whole = taken(Framing::Chunked, text.as_bytes());
            let mut discard = Discard::new(Framing::Chunked, MAX).expect("no length");
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
