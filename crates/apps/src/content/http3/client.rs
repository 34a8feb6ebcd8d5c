//! The client's side of HTTP/3: encodes requests and parses responses.
//!
//! Called by [`crate::get`] and by crate `sim`, which open streams and read them. Fields and
//! content are returned as they arrive and are not interpreted, except that informational responses
//! and trailers are recognized; content is not copied.

use super::{frame, qpack};

/// Maximum length of a response's head in bytes; a longer one is an error.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Maximum number of informational responses before the final one.
pub(crate) const INFORMATIONAL_MAX: u8 = 16;

/// Returns the first bytes of a client's control stream: its type, and settings (RFC 9114 section
/// 6.2.1).
#[must_use]
pub fn control() -> Vec<u8> {
    let mut bytes = vec![0x00];
    frame::put_frame(&mut bytes, frame::SETTINGS, &frame::settings(HEAD_BYTES_MAX as u64));
    bytes
}

/// Returns a request without content. Pseudo-header fields must come first in `fields`.
#[must_use]
pub fn request(fields: &[(&str, &str)]) -> Vec<u8> {
    let (mut section, mut bytes) = (Vec::new(), Vec::new());
    qpack::begin(&mut section);
    fields
        .iter()
        .for_each(|(name, value)| qpack::encode(&mut section, name.as_bytes(), value.as_bytes()));
    frame::put_frame(&mut bytes, frame::HEADERS, &section);
    bytes
}

/// A part of a response.
#[derive(Debug, PartialEq, Eq)]
pub enum Http3ResponsePart<'a> {
    /// The fields, including `:status`.
    Head(Vec<(Vec<u8>, Vec<u8>)>),
    /// Some bytes of the content.
    Content(&'a [u8]),
}

/// Parser of a response stream.
#[derive(Debug, Default)]
pub struct Http3ResponseParser {
    /// Bytes of an incomplete frame.
    kept: Vec<u8>,
    /// Remaining bytes of content in the current frame.
    left: u64,
    /// Remaining bytes of an unknown frame, which are skipped.
    skip: u64,
    stage: Http3ResponseStage,
    /// Number of informational responses.
    informational: u8,
}

/// Part of a response that was parsed last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Http3ResponseStage {
    /// None, or informational responses only.
    #[default]
    Begin,
    /// The head of the final response, and perhaps some content.
    Head,
    /// The trailers, which are ignored.
    Trailers,
}

impl Http3ResponseParser {
    /// Removes bytes from the front of `rest` until a part is complete; returns `None` once all
    /// bytes are removed.
    ///
    /// # Errors
    /// A violation of the protocol by the server.
    pub fn next<'a>(
        &mut self,
        rest: &mut &'a [u8],
    ) -> Result<Option<Http3ResponsePart<'a>>, &'static str> {
        loop {
            if self.left > 0 && !rest.is_empty() {
                let len = usize::try_from(self.left).unwrap_or(usize::MAX).min(rest.len());
                let (content, behind) = rest.split_at(len);
                (self.left, *rest) = (self.left - len as u64, behind);
                return Ok(Some(Http3ResponsePart::Content(content)));
            }
            if self.skip > 0 && !rest.is_empty() {
                let len = usize::try_from(self.skip).unwrap_or(usize::MAX).min(rest.len());
                (self.skip, *rest) = (self.skip - len as u64, &rest[len..]);
                continue;
            }
            // Only heads of frames and field sections, which are short, are read by single bytes.
            let Some((&byte, behind)) = rest.split_first() else { return Ok(None) };
            *rest = behind;
            self.kept.push(byte);
            if let Some(head) = self.take_frame()? {
                return Ok(Some(Http3ResponsePart::Head(head)));
            }
        }
    }

    /// Returns whether a response may end here.
    #[must_use]
    pub fn may_end_here(&self) -> bool {
        let complete = self.kept.is_empty() && self.left == 0 && self.skip == 0;
        complete && self.stage != Http3ResponseStage::Begin
    }

    /// Reacts to the frame whose bytes were kept so far. Returns the fields of a response's head.
    fn take_frame(&mut self) -> Result<Option<Vec<qpack::FieldLine>>, &'static str> {
        let mut rest = &self.kept[..];
        let (Some(kind), Some(len)) =
            (frame::take_varint(&mut rest), frame::take_varint(&mut rest))
        else {
            return Ok(None);
        };
        match kind {
            frame::DATA if self.stage != Http3ResponseStage::Head => {
                return Err("content before the head or behind the trailers");
            }
            frame::DATA => self.left = len,
            frame::HEADERS => {
                return match frame::take_frame(&mut &self.kept[..], HEAD_BYTES_MAX) {
                    frame::FrameRead::Incomplete => Ok(None),
                    frame::FrameRead::TooLong(_) => Err("a long head"),
                    frame::FrameRead::Frame(_, section) => {
                        let lines = qpack::decode(section, HEAD_BYTES_MAX);
                        let lines = lines.map_err(|_| "no field section")?.ok_or("a long head")?;
                        self.kept.clear();
                        self.handle_fields(lines)
                    }
                };
            }
            frame::SETTINGS
            | frame::GOAWAY
            | frame::MAX_PUSH_ID
            | frame::CANCEL_PUSH
            | frame::PUSH_PROMISE => return Err("a frame that is not expected"),
            _ if frame::is_http2_frame(kind) => return Err("a frame of HTTP/2"),
            // RFC 9114 section 9: unknown frames are ignored.
            _ => self.skip = len,
        }
        self.kept.clear();
        Ok(None)
    }

    /// Returns the fields if they are a head; those of trailers are checked and dropped.
    fn handle_fields(
        &mut self,
        lines: Vec<qpack::FieldLine>,
    ) -> Result<Option<Vec<qpack::FieldLine>>, &'static str> {
        if self.stage != Http3ResponseStage::Begin {
            if self.stage == Http3ResponseStage::Trailers
                || lines.iter().any(|(name, _)| name.starts_with(b":"))
            {
                return Err("a second head");
            }
            self.stage = Http3ResponseStage::Trailers;
            return Ok(None);
        }
        // RFC 9110 section 15.2: any number of informational responses may precede the final one.
        let informational = lines
            .iter()
            .any(|(name, value)| name == b":status" && matches!(value[..], [b'1', _, _]));
        if !informational {
            self.stage = Http3ResponseStage::Head;
            return Ok(Some(lines));
        }
        self.informational += 1;
        let few = self.informational < INFORMATIONAL_MAX;
        few.then_some(None).ok_or("too many informational responses")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_in_any_pieces() {
        let mut bytes = request(&[(":status", "103"), ("link", "</a>")]);
        bytes.extend(request(&[(":status", "200"), ("etag", "\"1\"")]));
        frame::put_frame(&mut bytes, frame::DATA, b"some");
        // A type that is reserved in order to be ignored (RFC 9114 section 7.2.8).
        frame::put_frame(&mut bytes, 0x21, b"noise");
        frame::put_frame(&mut bytes, frame::DATA, b" content");
        bytes.extend(request(&[("trailer", "1")]));
        for size in 1..=bytes.len() {
            let (mut response, mut heads, mut content) =
                (Http3ResponseParser::default(), 0, Vec::new());
            for mut piece in bytes.chunks(size) {
                while let Some(part) = response.next(&mut piece).expect("well-formed") {
                    match part {
                        Http3ResponsePart::Head(fields) => heads += fields.len(),
                        Http3ResponsePart::Content(bytes) => content.extend_from_slice(bytes),
                    }
                }
            }
            assert_eq!((heads, &content[..]), (2, &b"some content"[..]));
            assert!(response.may_end_here());
        }
    }

    #[test]
    fn protocol_violations_are_errors() {
        let data = [0, 1, b'x'];
        assert!(Http3ResponseParser::default().next(&mut &data[..]).is_err(), "content first");
        let twice = [request(&[(":status", "200")]), request(&[(":status", "200")])].concat();
        let (mut response, mut rest) = (Http3ResponseParser::default(), &twice[..]);
        assert!(matches!(response.next(&mut rest), Ok(Some(Http3ResponsePart::Head(_)))));
        assert!(response.next(&mut rest).is_err(), "a second head");
        let many = request(&[(":status", "100")]).repeat(INFORMATIONAL_MAX.into());
        assert!(Http3ResponseParser::default().next(&mut &many[..]).is_err(), "no end of them");
        let pushed = [5, 1, 0];
        assert!(Http3ResponseParser::default().next(&mut &pushed[..]).is_err(), "a push");
        assert!(!Http3ResponseParser::default().may_end_here(), "nothing came");
    }
}
