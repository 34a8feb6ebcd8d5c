//! Writes the heads of responses, and queues heads and parts of files in their order.
//!
//! [`super::answer`] decides on the content of a response. Heads are written to one buffer that all
//! connections share. They are split off it without a copy, and the buffer is used again once the
//! last of them was acknowledged, so the steady state does not allocate. A response is left in
//! [`ResponseWriter::pieces`], in sending order.

use std::fmt::Write as _;

use abi::FileId;
use base::{Duration, Instant, Prng};
use bytes::{Bytes, BytesMut};
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};

use super::coding::ContentCoding;
use super::date::HttpClock;
use super::open_file::{OpenFile, write_type_field};
use super::operator_fields::AddedField;
use super::range::ByteRange;
use super::status::HttpStatus;

/// Bytes of the shared buffer. A slow client pins the buffer that its head is in, so the buffer is
/// small.
const BUFFER_BYTES: usize = 16 * 1024;
/// Bytes that are reserved before a head is written; longer heads grow the buffer.
const HEAD_BYTES: usize = 768;

/// All bytes that RFC 3986 does not allow in a path.
const PATH: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// Part of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ResponsePiece {
    /// Bytes of host memory.
    Bytes(Bytes),
    /// Bytes of a file; `len` is never 0.
    File { file: FileId, offset: u64, len: u64 },
}

/// Persistence of the connection after the response, and the field that declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionPersistence {
    /// It persists, which is the default of HTTP/1.1.
    KeepAlive,
    /// It persists, and HTTP/1.0 needs a Connection field that says so.
    KeepAliveExplicit,
    /// It closes.
    Close,
}

/// Presence of content in the response; the response to HEAD has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseContent {
    Full,
    HeadOnly,
}

/// An additional field that belongs to a certain status.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ExtraField<'a> {
    None,
    /// The allowed methods, with or without PUT: for 405.
    Allow {
        put: bool,
    },
    /// Says in the content why the request failed.
    Reason(&'static str),
    /// Says in the content why the request failed, and in Accept-Encoding which codings its content
    /// may have: for 415.
    Codings {
        reason: &'static str,
        accepted: &'static str,
    },
    /// Says in the content that the port is for TLS: for 400.
    NeedsTls,
    /// Time after which to retry: for 503.
    RetryAfter,
    /// Size of the file: for 416.
    Size(u64),
    /// The same resource by HTTPS: for 301 and 308. The path begins with a slash.
    Https {
        host: &'a [u8],
        port: u16,
        path: &'a [u8],
        query: &'a [u8],
    },
    /// The directory's path below the root, without its slashes, and the query: for 301.
    Directory {
        path: &'a [u8],
        query: &'a [u8],
    },
}

/// Content of the responses with a status, in place of its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorPage {
    /// The status: 400 or above.
    pub status: u16,
    /// File name of the page, from which its media type follows.
    pub name: String,
    /// The page.
    pub content: Bytes,
}

/// Properties of a response besides the fields of its file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ResponseVariant<'a> {
    /// The coding of the file, and the name from which its media type follows: the path without the
    /// coding's suffix.
    pub(crate) coded: Option<(ContentCoding, &'a [u8])>,
    /// The response depends on Accept-Encoding.
    pub(crate) varies: bool,
    /// Value of Cache-Control.
    pub(crate) cache_control: Option<&'a str>,
}

/// A response that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrittenResponse {
    pub(crate) status: HttpStatus,
    pub(crate) close: bool,
    /// Bytes of content.
    pub(crate) body_bytes: u64,
    /// The file that the content comes from.
    pub(crate) file: Option<FileId>,
    /// The client said that this request is its last, and the request has no unread content.
    pub(crate) close_after_reply: bool,
}

/// Writer of responses.
#[derive(Debug)]
pub(crate) struct ResponseWriter {
    /// The pieces of the response that was written last.
    pub(crate) pieces: Vec<ResponsePiece>,
    buffer: BytesMut,
    clock: HttpClock,
    /// Fields with their line ends that all responses have: over plain HTTP, and over TLS.
    static_fields: [String; 2],
    /// `static_fields` and the Date field.
    common_fields: [Vec<u8>; 2],
    /// Error pages: status, Content-Type and Content-Length fields, content.
    pages: Vec<(u16, String, Bytes)>,
    /// True if the response is sent over TLS.
    pub(crate) secure: bool,
    boundaries: Prng,
}

impl ResponseWriter {
    /// Creates a writer. `alt_svc` is the UDP port of HTTP/3 (RFC 7838, RFC 9114 section 3.1.1),
    /// `epoch` the Unix time at [`Instant::ZERO`], `seed` the seed of the boundaries of multipart
    /// responses.
    pub(crate) fn new(server_name: &str, alt_svc: Option<u16>, epoch: Duration, seed: u64) -> Self {
        let name: String = server_name.chars().filter(|c| matches!(c, ' '..='~')).collect();
        let server = if name.is_empty() { name } else { format!("Server: {name}\r\n") };
        let mut fixed = [server.clone(), server];
        if let Some(port) = alt_svc {
            // Writing to a String cannot fail. A maximum age of one day is usual.
            let _ = write!(fixed[1], "Alt-Svc: h3=\":{port}\"; ma=86400\r\n");
        }
        let mut output = Self {
            pieces: Vec::new(),
            buffer: BytesMut::with_capacity(BUFFER_BYTES),
            clock: HttpClock::new(epoch),
            static_fields: fixed,
            common_fields: Default::default(),
            pages: Vec::new(),
            secure: false,
            boundaries: Prng::new(seed),
        };
        output.write_common();
        output
    }

    /// Adds fields to all further responses.
    pub(crate) fn add_fields(&mut self, fields: &[AddedField]) {
        for field in fields {
            // Writing to a String cannot fail.
            let _ = write!(self.static_fields[1], "{field}\r\n");
            if field.allowed_without_tls() {
                let _ = write!(self.static_fields[0], "{field}\r\n");
            }
        }
        self.write_common();
    }

    /// Replaces the error pages.
    pub(crate) fn set_pages(&mut self, pages: &[ErrorPage]) {
        self.pages.clear();
        self.pages.extend(pages.iter().filter(|page| page.status >= 400).map(|page| {
            let mut fields = String::new();
            write_type_field(page.name.as_bytes(), &mut fields);
            // Writing to a String cannot fail.
            let _ = write!(fields, "Content-Length: {}\r\n", page.content.len());
            (page.status, fields, page.content.clone())
        }));
    }

    /// Advances the date to `now`.
    pub(crate) fn advance(&mut self, now: Instant) {
        if self.clock.advance(now) {
            self.write_common();
        }
    }

    /// Returns the clock from which Date is written.
    pub(crate) const fn clock(&self) -> &HttpClock {
        &self.clock
    }

    /// Writes a 200 with the whole file.
    pub(crate) fn write_whole_file(
        &mut self,
        file: &OpenFile,
        variant: ResponseVariant<'_>,
        content: ResponseContent,
        persist: ConnectionPersistence,
    ) -> WrittenResponse {
        self.begin(HttpStatus::Ok);
        if variant.coded.is_none() {
            self.buffer.extend_from_slice(file.fields());
        } else {
            self.buffer.extend_from_slice(file.length_field());
            self.type_field(file, variant);
            self.buffer.extend_from_slice(file.fields_from_ranges());
        }
        self.write_variant_fields(variant);
        self.end(persist);
        let body_bytes = if content == ResponseContent::Full { file.size } else { 0 };
        self.push_file(file.file, 0, body_bytes);
        WrittenResponse {
            status: HttpStatus::Ok,
            close: persist == ConnectionPersistence::Close,
            body_bytes,
            file: Some(file.file),
            close_after_reply: false,
        }
    }

    /// Writes a 206: one range as the content, or several as its parts (RFC 9110 section 15.3.7).
    pub(crate) fn write_ranges(
        &mut self,
        file: &OpenFile,
        variant: ResponseVariant<'_>,
        ranges: &[ByteRange],
        persist: ConnectionPersistence,
    ) -> WrittenResponse {
        let body_bytes = match *ranges {
            [range] => {
                self.begin(HttpStatus::PartialContent);
                let (start, last, size) = (range.start, range.last(), file.size);
                self.field(format_args!("Content-Range: bytes {start}-{last}/{size}"));
                self.field(format_args!("Content-Length: {}", range.len));
                self.type_field(file, variant);
                self.buffer.extend_from_slice(file.fields_from_ranges());
                self.write_variant_fields(variant);
                self.end(persist);
                self.push_file(file.file, range.start, range.len);
                range.len
            }
            _ => self.write_multipart(file, variant, ranges, persist),
        };
        let status = HttpStatus::PartialContent;
        WrittenResponse {
            status,
            close: persist == ConnectionPersistence::Close,
            body_bytes,
            file: Some(file.file),
            close_after_reply: false,
        }
    }

    /// Writes a 304: the client has this version (RFC 9110 section 15.4.5).
    pub(crate) fn write_not_modified(
        &mut self,
        file: &OpenFile,
        variant: ResponseVariant<'_>,
        persist: ConnectionPersistence,
    ) -> WrittenResponse {
        self.begin(HttpStatus::NotModified);
        self.buffer.extend_from_slice(file.validator_fields());
        self.write_variant_fields(ResponseVariant { coded: None, ..variant });
        self.end(persist);
        let status = HttpStatus::NotModified;
        WrittenResponse {
            status,
            close: persist == ConnectionPersistence::Close,
            body_bytes: 0,
            file: None,
            close_after_reply: false,
        }
    }

    /// Writes a 204: an upload has replaced a file. It has no content, and no length of it (RFC
    /// 9110 section 8.6).
    pub(crate) fn write_no_content(&mut self, persist: ConnectionPersistence) -> WrittenResponse {
        let status = HttpStatus::NoContent;
        self.begin(status);
        self.end(persist);
        WrittenResponse {
            status,
            close: persist == ConnectionPersistence::Close,
            body_bytes: 0,
            file: None,
            close_after_reply: false,
        }
    }

    /// Writes a response with any other status: its content is an error page or the status line's
    /// text.
    pub(crate) fn write_status_text(
        &mut self,
        status: HttpStatus,
        extra: ExtraField<'_>,
        content: ResponseContent,
        persist: ConnectionPersistence,
    ) -> WrittenResponse {
        self.begin(status);
        match extra {
            ExtraField::None | ExtraField::NeedsTls | ExtraField::Reason(_) => {}
            // RFC 9110 section 12.5.3.
            ExtraField::Codings { accepted, .. } => {
                self.field(format_args!("Accept-Encoding: {accepted}"));
            }
            // RFC 9110 section 15.5.6.
            ExtraField::Allow { put: false } => self.field(format_args!("Allow: GET, HEAD")),
            ExtraField::Allow { put: true } => self.field(format_args!("Allow: GET, HEAD, PUT")),
            ExtraField::RetryAfter => self.field(format_args!("Retry-After: 1")),
            // RFC 9110 section 15.5.17.
            ExtraField::Size(size) => self.field(format_args!("Content-Range: bytes */{size}")),
            ExtraField::Https { host, port, path, query } => {
                let [host, path, query] = [host, path, query].map(|p| percent_encode(p, CONTROLS));
                match port {
                    443 => self.field(format_args!("Location: https://{host}{path}{query}")),
                    _ => self.field(format_args!("Location: https://{host}:{port}{path}{query}")),
                }
            }
            ExtraField::Directory { path, query } => {
                // From the resolved path, which has no leading slash: `//host` would lead to
                // another site.
                let (path, query) = (percent_encode(path, PATH), percent_encode(query, CONTROLS));
                self.field(format_args!("Location: /{path}/{query}"));
            }
        }
        if let Some(at) = self.pages.iter().position(|(code, ..)| *code == status.code()) {
            return self.write_error_page(at, status, content, persist);
        }
        let text = match extra {
            ExtraField::NeedsTls => {
                "400 Bad Request: a plain HTTP request was sent to an HTTPS port"
            }
            _ => status.line(),
        };
        let reason = match extra {
            ExtraField::Reason(reason) | ExtraField::Codings { reason, .. } => [": ", reason],
            _ => [""; 2],
        };
        let text_bytes = text.len() + reason.concat().len() + 1;
        self.field(format_args!("Content-Type: text/plain; charset=utf-8"));
        self.field(format_args!("Content-Length: {text_bytes}"));
        self.end_fields(persist);
        let mut body_bytes = 0;
        if content == ResponseContent::Full {
            for part in [text, reason[0], reason[1], "\n"] {
                self.buffer.extend_from_slice(part.as_bytes());
            }
            body_bytes = text_bytes as u64;
        }
        self.end_piece();
        WrittenResponse {
            status,
            close: persist == ConnectionPersistence::Close,
            body_bytes,
            file: None,
            close_after_reply: false,
        }
    }

    /// Completes a response with an error page as its content.
    fn write_error_page(
        &mut self,
        at: usize,
        status: HttpStatus,
        content: ResponseContent,
        persist: ConnectionPersistence,
    ) -> WrittenResponse {
        let (_, fields, page) = &self.pages[at];
        self.buffer.extend_from_slice(fields.as_bytes());
        let page =
            Some(page.clone()).filter(|page| content == ResponseContent::Full && !page.is_empty());
        self.end(persist);
        let body_bytes = page.as_ref().map_or(0, |page| page.len() as u64);
        self.pieces.extend(page.map(ResponsePiece::Bytes));
        WrittenResponse {
            status,
            close: persist == ConnectionPersistence::Close,
            body_bytes,
            file: None,
            close_after_reply: false,
        }
    }

    /// Writes a multipart/byteranges response (RFC 9110 section 14.6); returns the bytes of its
    /// content.
    fn write_multipart(
        &mut self,
        file: &OpenFile,
        variant: ResponseVariant<'_>,
        ranges: &[ByteRange],
        persist: ConnectionPersistence,
    ) -> u64 {
        // The file might contain the boundary; 64 random bits make that improbable.
        let boundary = format!("outboard-{:016x}", self.boundaries.next_u64());
        self.pieces.clear();
        // The head comes first but contains the length of the parts: an empty piece reserves its
        // position.
        self.pieces.push(ResponsePiece::Bytes(Bytes::new()));
        let mut body_bytes = 0;
        for range in ranges {
            self.buffer.reserve(HEAD_BYTES);
            self.field(format_args!("\r\n--{boundary}"));
            self.type_field(file, variant);
            let (start, last, size) = (range.start, range.last(), file.size);
            self.field(format_args!("Content-Range: bytes {start}-{last}/{size}\r\n"));
            body_bytes += self.buffer.len() as u64 + range.len;
            self.end_piece();
            self.push_file(file.file, range.start, range.len);
        }
        self.field(format_args!("\r\n--{boundary}--"));
        body_bytes += self.buffer.len() as u64;
        self.end_piece();
        self.begin_head(HttpStatus::PartialContent);
        self.field(format_args!("Content-Type: multipart/byteranges; boundary={boundary}"));
        self.field(format_args!("Content-Length: {body_bytes}"));
        self.buffer.extend_from_slice(file.fields_from_ranges());
        self.write_variant_fields(variant);
        self.end_fields(persist);
        self.pieces[0] = ResponsePiece::Bytes(self.buffer.split().freeze());
        body_bytes
    }

    fn begin(&mut self, status: HttpStatus) {
        self.pieces.clear();
        self.begin_head(status);
    }

    fn begin_head(&mut self, status: HttpStatus) {
        self.buffer.reserve(HEAD_BYTES);
        self.buffer.extend_from_slice(b"HTTP/1.1 ");
        self.buffer.extend_from_slice(status.line().as_bytes());
        self.buffer.extend_from_slice(b"\r\n");
        self.buffer.extend_from_slice(&self.common_fields[usize::from(self.secure)]);
    }

    fn field(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a BytesMut cannot fail.
        let _ = self.buffer.write_fmt(line);
        self.buffer.extend_from_slice(b"\r\n");
    }

    /// Writes the media type of the decoded content.
    fn type_field(&mut self, file: &OpenFile, variant: ResponseVariant<'_>) {
        match variant.coded {
            Some((_, path)) => write_type_field(path, &mut self.buffer),
            None => self.buffer.extend_from_slice(file.type_field()),
        }
    }

    /// Writes the fields of `write_variant_fields`.
    fn write_variant_fields(&mut self, variant: ResponseVariant<'_>) {
        if let Some((coding, _)) = variant.coded {
            self.field(format_args!("Content-Encoding: {}", coding.name()));
        }
        if variant.varies {
            self.field(format_args!("Vary: Accept-Encoding"));
        }
        if let Some(value) = variant.cache_control {
            self.field(format_args!("Cache-Control: {value}"));
        }
    }

    fn end_fields(&mut self, persist: ConnectionPersistence) {
        self.buffer.extend_from_slice(match persist {
            ConnectionPersistence::KeepAlive => b"\r\n",
            ConnectionPersistence::KeepAliveExplicit => b"Connection: keep-alive\r\n\r\n",
            ConnectionPersistence::Close => b"Connection: close\r\n\r\n",
        });
    }

    fn end(&mut self, persist: ConnectionPersistence) {
        self.end_fields(persist);
        self.end_piece();
    }

    /// Turns the bytes written since the last cut into a piece.
    fn end_piece(&mut self) {
        self.pieces.push(ResponsePiece::Bytes(self.buffer.split().freeze()));
    }

    fn push_file(&mut self, file: FileId, offset: u64, len: u64) {
        if len > 0 {
            self.pieces.push(ResponsePiece::File { file, offset, len });
        }
    }

    fn write_common(&mut self) {
        for (common, fixed) in self.common_fields.iter_mut().zip(&self.static_fields) {
            common.clear();
            common.extend_from_slice(fixed.as_bytes());
            common.extend_from_slice(b"Date: ");
            common.extend_from_slice(self.clock.http().as_bytes());
            common.extend_from_slice(b"\r\n");
        }
    }
}

#[cfg(test)]
mod tests;
