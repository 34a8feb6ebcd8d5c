//! Finds the content in the bytes after the head of a message over HTTP/1.1.
//!
//! The content server reads the content of requests with a [`ContentReader`] and discards it, and
//! downloads read that of responses. The chunked coding is read strictly (RFC 9112 section 7.1), so
//! that no other program that reads a message can find another end. Callers bound the bytes of the
//! coding, of which extensions and trailers may have any number.

/// Maximum number of digits of a chunk size: 2^64 - 1 has sixteen.
const SIZE_DIGITS_MAX: u8 = 16;

/// Violation of the chunked coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MalformedChunk;

/// Reader of the content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContentReader(ContentReaderState);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ContentReaderState {
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

impl ContentReader {
    /// Creates a reader of content of this length.
    pub(crate) const fn length(bytes: u64) -> Self {
        Self(match bytes {
            0 => ContentReaderState::Done,
            _ => ContentReaderState::Length(bytes),
        })
    }

    /// Creates a reader of content with the chunked coding.
    pub(crate) const fn chunked() -> Self {
        Self(ContentReaderState::Size { value: 0, digits: 0 })
    }

    /// Returns whether all content has arrived.
    pub(crate) fn is_done(&self) -> bool {
        self.0 == ContentReaderState::Done
    }

    /// Returns the number of bytes of the content, or of the current chunk, that have not arrived.
    pub(crate) const fn left(&self) -> u64 {
        match self.0 {
            ContentReaderState::Length(left) | ContentReaderState::Data(left) => left,
            _ => 0,
        }
    }

    /// Returns the number of bytes of the whole content that have not arrived; `None` if it is
    /// chunked.
    pub(crate) const fn length_left(&self) -> Option<u64> {
        match self.0 {
            ContentReaderState::Length(left) => Some(left),
            _ => None,
        }
    }

    /// Removes bytes from the front of `rest` up to the next piece of content, and the piece;
    /// returns the piece, which is empty if there is none in `rest`. Removes no byte behind the
    /// content.
    ///
    /// # Errors
    /// [`MalformedChunk`].
    pub(crate) fn take<'a>(&mut self, rest: &mut &'a [u8]) -> Result<&'a [u8], MalformedChunk> {
        loop {
            if self.left() > 0 {
                let len = usize::try_from(self.left()).unwrap_or(usize::MAX).min(rest.len());
                let (piece, behind) = rest.split_at(len);
                *rest = behind;
                self.advance(len as u64);
                return Ok(piece);
            }
            let Some((&byte, behind)) = rest.split_first().filter(|_| !self.is_done()) else {
                return Ok(&[]);
            };
            self.0 = next(self.0, byte).ok_or(MalformedChunk)?;
            *rest = behind;
        }
    }

    /// Counts bytes of content that were removed.
    const fn advance(&mut self, bytes: u64) {
        self.0 = match self.0 {
            ContentReaderState::Length(left) if left == bytes => ContentReaderState::Done,
            ContentReaderState::Length(left) => ContentReaderState::Length(left - bytes),
            ContentReaderState::Data(left) if left == bytes => ContentReaderState::DataCr,
            ContentReaderState::Data(left) => ContentReaderState::Data(left - bytes),
            state => state,
        };
    }
}

/// Returns the state after a byte of the coding; `None` if the byte is not allowed there.
fn next(state: ContentReaderState, byte: u8) -> Option<ContentReaderState> {
    Some(match (state, byte) {
        (ContentReaderState::Size { digits: 1.., value }, b';') => {
            ContentReaderState::Extension(value)
        }
        (ContentReaderState::Size { digits: 1.., value }, b'\r') => {
            ContentReaderState::SizeLf(value)
        }
        (ContentReaderState::Size { value, digits: 0..SIZE_DIGITS_MAX }, _) => {
            let digit = char::from(byte).to_digit(16)?;
            let ContentReaderState::Size { digits, .. } = state else { return None };
            ContentReaderState::Size { value: value << 4 | u64::from(digit), digits: digits + 1 }
        }
        (ContentReaderState::Extension(size), b'\r') => ContentReaderState::SizeLf(size),
        (ContentReaderState::Extension(_), _) if is_text(byte) => state,
        (ContentReaderState::SizeLf(0), b'\n') => ContentReaderState::TrailerStart,
        (ContentReaderState::SizeLf(size), b'\n') => ContentReaderState::Data(size),
        (ContentReaderState::DataCr, b'\r') => ContentReaderState::DataLf,
        (ContentReaderState::DataLf, b'\n') => ContentReaderState::Size { value: 0, digits: 0 },
        (ContentReaderState::TrailerStart, b'\r') => ContentReaderState::FinalLf,
        (ContentReaderState::Trailer, b'\r') => ContentReaderState::TrailerLf,
        (ContentReaderState::TrailerStart | ContentReaderState::Trailer, _) if is_text(byte) => {
            ContentReaderState::Trailer
        }
        (ContentReaderState::TrailerLf, b'\n') => ContentReaderState::TrailerStart,
        (ContentReaderState::FinalLf, b'\n') => ContentReaderState::Done,
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

    proptest! {
        #[test]
        fn chunks_in_any_pieces(
            sizes in proptest::collection::vec(1_usize..40, 0..5),
            piece in 1_usize..50,
        ) {
            let (mut coded, mut content) = (Vec::new(), Vec::new());
            for (size, byte) in sizes.into_iter().zip(b'a'..) {
                coded.extend(format!("{size:x};n=v\r\n").bytes());
                coded.extend(vec![byte; size]);
                coded.extend(b"\r\n");
                content.extend(vec![byte; size]);
            }
            coded.extend(b"0\r\nTrailer: x\r\n\r\n");
            let (mut reader, mut read) = (ContentReader::chunked(), Vec::<u8>::new());
            for mut rest in coded.chunks(piece) {
                while !rest.is_empty() {
                    prop_assert!(!reader.is_done());
                    read.extend(reader.take(&mut rest).expect("well-formed"));
                }
            }
            prop_assert!(reader.is_done());
            prop_assert_eq!(read, content);
        }
    }
}
