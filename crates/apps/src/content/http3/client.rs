//! The client's side of HTTP/3, for simulations: encodes requests and parses responses.
//!
//! Called by crate `sim` alone, which opens streams and reads them. Fields and content are returned
//! as they arrive and are not interpreted; content is not copied.

use super::{frame, qpack};

/// Maximum length of a response's head in bytes; a longer one is an error.
const HEAD_BYTES_MAX: usize = 16 * 1024;

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
    head: bool,
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
            // Heads of frames are short: reading single bytes is fast enough for a simulation.
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
        self.head && self.kept.is_empty() && self.left == 0
    }

    fn take_frame(&mut self) -> Result<Option<Vec<qpack::FieldLine>>, &'static str> {
        let mut rest = &self.kept[..];
        let kind = frame::take_varint(&mut rest);
        match (kind, frame::take_frame(&mut &self.kept[..], HEAD_BYTES_MAX)) {
            (Some(frame::DATA), _) => {
                let Some(len) = frame::take_varint(&mut rest) else { return Ok(None) };
                if !self.head {
                    return Err("content before its head");
                }
                (self.left, self.kept) = (len, Vec::new());
                Ok(None)
            }
            (_, frame::FrameRead::Incomplete) => Ok(None),
            (_, frame::FrameRead::Frame(frame::HEADERS, section)) if !self.head => {
                let lines =
                    qpack::decode(section, HEAD_BYTES_MAX).map_err(|_| "no field section")?;
                (self.head, self.kept) = (true, Vec::new());
                lines.map(Some).ok_or("a long head")
            }
            _ => Err("a frame that is not expected"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_in_any_pieces() {
        let mut bytes = request(&[(":status", "200"), ("etag", "\"1\"")]);
        frame::put_frame(&mut bytes, frame::DATA, b"some");
        frame::put_frame(&mut bytes, frame::DATA, b" content");
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
        assert!(!Http3ResponseParser::default().may_end_here(), "nothing came");
    }
}
