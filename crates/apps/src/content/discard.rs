//! Reads and discards the content of a request, in order to find the next request.
//!
//! [`super::connection`] passes a [`ContentDiscard`] the bytes after a head as they arrive. They
//! are read strictly ([`super::reader`]): a proxy in front of the server that reads a chunk
//! differently would see other requests. All bytes count towards the limit, including those of the
//! coding, so extensions and trailers are bounded.

use super::reader::ContentReader;
use super::request::ContentFraming;
use super::status::HttpStatus;

/// Reader of content that is discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContentDiscard {
    reader: ContentReader,
    /// Bytes that may still arrive.
    allowed: u64,
}

impl ContentDiscard {
    /// Creates a reader for content with this framing, of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// 413 if the content is already known to be longer.
    pub(crate) const fn new(framing: ContentFraming, bytes_max: u64) -> Result<Self, HttpStatus> {
        let reader = match framing {
            ContentFraming::None => ContentReader::length(0),
            ContentFraming::Length(bytes) if bytes > bytes_max => {
                return Err(HttpStatus::ContentTooLarge);
            }
            ContentFraming::Length(bytes) => ContentReader::length(bytes),
            ContentFraming::Chunked => ContentReader::chunked(),
        };
        Ok(Self { reader, allowed: bytes_max })
    }

    /// Returns whether all content has arrived.
    pub(crate) fn is_done(&self) -> bool {
        self.reader.is_done()
    }

    /// Takes bytes that arrived; returns the number of them that belong to the content.
    ///
    /// # Errors
    /// 400 if they violate the coding, 413 if the content is too long.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<usize, HttpStatus> {
        let mut rest = bytes;
        while !rest.is_empty() && !self.is_done() {
            let before = rest.len();
            self.reader.take(&mut rest).map_err(|_| HttpStatus::BadRequest)?;
            let too_many = self.allowed.checked_sub((before - rest.len()) as u64);
            self.allowed = too_many.ok_or(HttpStatus::ContentTooLarge)?;
            if self.reader.left() > self.allowed {
                return Err(HttpStatus::ContentTooLarge);
            }
        }
        Ok(bytes.len() - rest.len())
    }
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
