//! Heads of responses, of HTTP/1.1 and HTTP/3, as a download needs them.
//!
//! Called by `http1` and `http3` with complete heads of bounded size. Unknown fields are ignored.

use core::ops::Range;

use crate::content::date;
use crate::content::request::{decimal, list};

/// Maximum number of fields in a head.
const FIELDS_MAX: usize = 128;
/// Maximum length of a validator or a location that is kept, in bytes.
const VALUE_BYTES_MAX: usize = 8000;

/// Violation of HTTP by a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MalformedResponse {
    /// The head cannot be parsed: another protocol, or HTTP/0.9.
    #[error("not HTTP")]
    NotHttp,
    /// The head is too long, or there are too many of them.
    #[error("the head is too long")]
    HeadTooLong,
    /// A field that frames the content is invalid, or contradicts another one.
    #[error("contradictory or invalid length of the content")]
    Framing,
    /// The chunked coding is invalid, or has too many bytes beside the content.
    #[error("invalid chunked coding")]
    Chunked,
    /// The frames of HTTP/3 are invalid.
    #[error("HTTP/3: {0}")]
    Http3(&'static str),
}

/// Framing of the content of a response over HTTP/1.1 (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseFraming {
    Length(u64),
    Chunked,
    UntilClose,
}

/// The range of a response with status 206.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ContentRange {
    pub(super) bytes: Range<u64>,
    /// Length of the whole object, if the server knows it.
    pub(super) total: Option<u64>,
}

/// The parts of a head that a download uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ResponseHead {
    pub(super) status: u16,
    pub(super) content_length: Option<u64>,
    /// True if the content is chunked.
    pub(super) is_chunked: bool,
    pub(super) content_range: Option<ContentRange>,
    /// The server announces that it supports ranges of bytes.
    pub(super) accepts_ranges: bool,
    /// Value for If-Range: a strong entity tag, or a strong date (RFC 9110 section 13.1.5).
    pub(super) validator: Option<String>,
    pub(super) location: Option<String>,
}

impl ResponseHead {
    /// Parses the head of a response over HTTP/1.1.
    ///
    /// # Errors
    /// [`MalformedResponse`].
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, MalformedResponse> {
        let mut slots = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut response = httparse::Response::new(&mut slots);
        match response.parse(bytes) {
            Ok(httparse::Status::Complete(_)) => {}
            Err(httparse::Error::TooManyHeaders) => return Err(MalformedResponse::HeadTooLong),
            Ok(httparse::Status::Partial) | Err(_) => return Err(MalformedResponse::NotHttp),
        }
        let status = response.code.ok_or(MalformedResponse::NotHttp)?;
        Self::of(status, response.headers.iter().map(|field| (field.name.as_bytes(), field.value)))
    }

    /// Reads the fields of a head. Names are compared case-insensitively.
    ///
    /// # Errors
    /// [`MalformedResponse::Framing`].
    pub(super) fn of<'a>(
        status: u16,
        fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Result<Self, MalformedResponse> {
        let mut head = Self { status, ..Self::default() };
        let (mut etag, mut modified, mut at, mut has_coding) = (None, None, None, false);
        for (name, value) in fields {
            let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
            if is("content-length") {
                for length in value.split(|&b| b == b',') {
                    let length = decimal(length.trim_ascii()).ok_or(MalformedResponse::Framing)?;
                    if head.content_length.replace(length).is_some_and(|old| old != length) {
                        return Err(MalformedResponse::Framing);
                    }
                }
            } else if is("transfer-encoding") {
                // No coding but chunked was offered, and it is applied once.
                if core::mem::replace(&mut has_coding, true)
                    || !value.eq_ignore_ascii_case(b"chunked")
                {
                    return Err(MalformedResponse::Framing);
                }
                head.is_chunked = true;
            } else if is("content-range") {
                head.content_range = content_range(value);
            } else if is("accept-ranges") {
                head.accepts_ranges |= list(value).any(|v| v.eq_ignore_ascii_case(b"bytes"));
            } else if is("etag") {
                etag = text(value).filter(|tag| tag.starts_with('"'));
            } else if is("last-modified") {
                modified = text(value);
            } else if is("date") {
                at = date::parse(value);
            } else if is("location") {
                head.location = text(value);
            }
        }
        head.accepts_ranges |= head.content_range.is_some();
        head.validator = etag.or_else(|| strong_date(modified?, at?));
        Ok(head)
    }

    /// Returns the framing over HTTP/1.1 of the response to a GET.
    ///
    /// # Errors
    /// [`MalformedResponse::Framing`] if there are a length and a coding, as in an attack by
    /// response splitting.
    pub(super) const fn framing(&self) -> Result<ResponseFraming, MalformedResponse> {
        match (self.status, self.is_chunked, self.content_length) {
            (204 | 304, ..) => Ok(ResponseFraming::Length(0)),
            (_, true, Some(_)) => Err(MalformedResponse::Framing),
            (_, true, None) => Ok(ResponseFraming::Chunked),
            (_, false, Some(length)) => Ok(ResponseFraming::Length(length)),
            (_, false, None) => Ok(ResponseFraming::UntilClose),
        }
    }
}

/// Returns a field's value as text, if it is visible ASCII of a bounded length.
fn text(value: &[u8]) -> Option<String> {
    let fits = value.len() <= VALUE_BYTES_MAX && value.iter().all(|b| matches!(b, b' '..=b'~'));
    fits.then(|| String::from_utf8_lossy(value).into_owned())
}

/// Returns a modification date that is strong: at least a second before the response (RFC 9110
/// section 8.8.2.2).
fn strong_date(modified: String, date_s: u64) -> Option<String> {
    let modified_s = date::parse(modified.as_bytes())?;
    (modified_s < date_s).then_some(modified)
}

/// Parses the value of Content-Range (RFC 9110 section 14.4).
fn content_range(value: &[u8]) -> Option<ContentRange> {
    let rest = value.strip_prefix(b"bytes ")?;
    let slash = rest.iter().position(|&b| b == b'/')?;
    let (range, total) = (&rest[..slash], &rest[slash + 1..]);
    let dash = range.iter().position(|&b| b == b'-')?;
    let (first, last) = (decimal(&range[..dash])?, decimal(&range[dash + 1..])?);
    let total = if total == b"*" { None } else { Some(decimal(total)?) };
    let end = last.checked_add(1)?;
    (first <= last && total.is_none_or(|total| end <= total))
        .then_some(ContentRange { bytes: first..end, total })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head(fields: &str) -> Result<ResponseHead, MalformedResponse> {
        ResponseHead::parse(format!("HTTP/1.1 200 OK\r\n{fields}\r\n").as_bytes())
    }

    fn framing(fields: &str) -> Result<ResponseFraming, MalformedResponse> {
        head(fields)?.framing()
    }

    #[test]
    fn framings() {
        assert_eq!(framing(""), Ok(ResponseFraming::UntilClose));
        assert_eq!(framing("Content-Length: 5\r\n"), Ok(ResponseFraming::Length(5)));
        assert_eq!(framing("content-length: 5, 5\r\n"), Ok(ResponseFraming::Length(5)));
        assert_eq!(framing("Transfer-Encoding: Chunked\r\n"), Ok(ResponseFraming::Chunked));
        for bad in [
            "Content-Length: 5\r\nContent-Length: 6\r\n",
            "Content-Length: -5\r\n",
            "Content-Length: \r\n",
            "Content-Length: 99999999999999999999\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        ] {
            assert_eq!(framing(bad), Err(MalformedResponse::Framing), "{bad}");
        }
        assert_eq!(ResponseHead::parse(b"SSH-2.0-x\r\n\r\n"), Err(MalformedResponse::NotHttp));
        let many = "A: b\r\n".repeat(FIELDS_MAX + 1);
        assert_eq!(head(&many), Err(MalformedResponse::HeadTooLong));
    }

    #[test]
    fn validators_are_strong() {
        let validator = |fields: &str| head(fields).expect("well-formed").validator;
        let old = "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
        let date = |second| format!("Date: Sun, 06 Nov 1994 08:49:{second} GMT\r\n");
        assert_eq!(validator("ETag: \"a\"\r\n").as_deref(), Some("\"a\""));
        assert_eq!(validator(&format!("ETag: \"a\"\r\n{old}")).as_deref(), Some("\"a\""));
        let dated = validator(&format!("ETag: W/\"a\"\r\n{old}{}", date(38)));
        assert_eq!(dated.as_deref(), Some("Sun, 06 Nov 1994 08:49:37 GMT"));
        assert_eq!(validator(&format!("{old}{}", date(37))), None, "it may change again");
        assert_eq!(validator(old), None, "no date of the response");
        assert_eq!(validator("ETag: W/\"a\"\r\n"), None);
    }

    #[test]
    fn ranges() {
        let range = |text: &str| content_range(text.as_bytes()).map(|r| (r.bytes, r.total));
        assert_eq!(range("bytes 0-4/10"), Some((0..5, Some(10))));
        assert_eq!(range("bytes 9-9/*"), Some((9..10, None)));
        for bad in [
            "bytes 5-4/10",
            "bytes 0-10/10",
            "bytes */10",
            "items 0-4/10",
            "bytes 0-4",
            "bytes -4/10",
            "bytes 0-18446744073709551615/*",
        ] {
            assert_eq!(range(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_head_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = ResponseHead::parse(&bytes).map(|head| head.framing());
            let _ = content_range(&bytes);
        }
    }
}
