//! Parses and checks a request, or chooses the status that refuses it.
//!
//! Called by [`super::answer`] with the unread bytes of a connection; parses in place and copies
//! nothing. All decisions about message framing are made here: the end of a [`HttpRequest`] is
//! known. Targets, conditions and ranges are left to [`super::request_target`],
//! [`super::conditional`] and [`super::range`].

use core::cmp::Ordering;
use core::mem::MaybeUninit;

use httparse::Header;

use super::request_target::is_authority;
use super::status::HttpStatus;

/// Maximum number of header fields in a request; 431 above. Requests through several proxies have a
/// hundred.
const FIELDS_MAX: usize = 128;

/// Space for a request's header fields.
pub(crate) struct FieldSlots<'b> {
    /// On the stack and uninitialized, so that it costs nothing.
    stack: [MaybeUninit<Header<'b>>; FIELDS_MAX],
    /// Fields of a request whose version httparse does not accept; else empty.
    heap: Vec<Header<'b>>,
}

/// Returns empty space for header fields.
pub(crate) const fn slots<'b>() -> FieldSlots<'b> {
    FieldSlots { stack: [const { MaybeUninit::uninit() }; FIELDS_MAX], heap: Vec::new() }
}

/// Limits of a request's length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestLimits {
    /// Bytes of request line and header fields together; 431 above.
    pub(crate) head_bytes_max: usize,
    /// Bytes of the request line; 414 above.
    pub(crate) line_bytes_max: usize,
}

/// Methods as a file server distinguishes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Head,
    Put,
    /// A method of RFC 9110 or RFC 5789 that files do not have.
    NotAllowed,
    /// Any other method.
    Unknown,
}

/// Header fields that are needed after parsing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum KnownField {
    IfMatch,
    IfUnmodifiedSince,
    IfNoneMatch,
    IfModifiedSince,
    IfRange,
    Range,
    Referer,
    UserAgent,
    AcceptEncoding,
    ContentEncoding,
    ContentRange,
}

impl KnownField {
    const fn name(self) -> &'static str {
        match self {
            Self::IfMatch => "if-match",
            Self::IfUnmodifiedSince => "if-unmodified-since",
            Self::IfNoneMatch => "if-none-match",
            Self::IfModifiedSince => "if-modified-since",
            Self::IfRange => "if-range",
            Self::Range => "range",
            Self::Referer => "referer",
            Self::UserAgent => "user-agent",
            Self::AcceptEncoding => "accept-encoding",
            Self::ContentEncoding => "content-encoding",
            Self::ContentRange => "content-range",
        }
    }
}

/// Framing of the content after a head (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentFraming {
    /// No content.
    None,
    /// This number of bytes.
    Length(u64),
    /// The content ends with the chunked coding.
    Chunked,
}

/// A request whose framing is valid.
#[derive(Debug)]
pub(crate) struct HttpRequest<'h, 'b> {
    pub(crate) method: Method,
    /// The method as received.
    pub(crate) name: &'b [u8],
    pub(crate) target: &'b [u8],
    /// 0 for HTTP/1.0, 1 for every later minor version.
    pub(crate) minor: u8,
    /// The client wants the connection to persist.
    pub(crate) keep_alive: bool,
    /// Framing of the content after the head.
    pub(crate) content: ContentFraming,
    /// The client waits for 100 before it sends the content.
    pub(crate) expects_continue: bool,
    /// An expectation other than 100-continue.
    pub(crate) unknown_expectation: bool,
    fields: &'h [Header<'b>],
    /// A bit for each [`KnownField`] that is present.
    present: u16,
}

impl<'h, 'b> HttpRequest<'h, 'b> {
    /// Returns all header fields as received.
    pub(crate) const fn fields(&self) -> &'h [Header<'b>] {
        self.fields
    }

    /// Returns whether a field is present.
    pub(crate) const fn has(&self, field: KnownField) -> bool {
        self.present & (1 << field as u8) != 0
    }

    /// Returns whether the request has a condition or a range.
    pub(crate) const fn has_conditions(&self) -> bool {
        const OTHERS: u16 = 1 << KnownField::Referer as u8
            | 1 << KnownField::UserAgent as u8
            | 1 << KnownField::AcceptEncoding as u8
            | 1 << KnownField::ContentEncoding as u8
            | 1 << KnownField::ContentRange as u8;
        self.present & !OTHERS != 0
    }

    /// Returns the values of a field, one for each of its lines.
    pub(crate) fn values(&self, field: KnownField) -> impl Iterator<Item = &'b [u8]> {
        let fields = if self.has(field) { self.fields } else { &[] };
        fields.iter().filter(move |f| f.name.eq_ignore_ascii_case(field.name())).map(|f| f.value)
    }

    /// Returns the value of a field that must occur once; `None` if it is missing or occurs more
    /// often.
    pub(crate) fn single(&self, field: KnownField) -> Option<&'b [u8]> {
        let mut values = self.values(field);
        values.next().filter(|_| values.next().is_none())
    }
}

/// Result of parsing.
#[derive(Debug)]
pub(crate) enum ParsedRequest<'h, 'b> {
    /// The beginning of a request.
    Incomplete,
    /// A request, and the length of its head in bytes.
    Complete(HttpRequest<'h, 'b>, usize),
    /// Refused: respond with this status and close, because the position of the next request is
    /// unknown.
    Refused {
        status: HttpStatus,
        /// The method is known to be HEAD: the response has no content.
        head: bool,
    },
}

/// Parses a head that begins with the request line.
pub(crate) fn parse<'h, 'b>(
    bytes: &'b [u8],
    slots: &'h mut FieldSlots<'b>,
    limits: RequestLimits,
) -> ParsedRequest<'h, 'b> {
    let refused = |status| ParsedRequest::Refused { status, head: false };
    let FieldSlots { stack: usual, heap: later } = slots;
    let mut parsed = httparse::Request::new(&mut []);
    let read = match parsed.parse_with_uninit_headers(bytes, usual) {
        Err(httparse::Error::Version) => parse_version(bytes).and_then(|line| match line {
            Some(line) => parse_later_minor(line, bytes, later),
            None => Ok(None),
        }),
        Err(error) => Err(parser_error_status(error)),
        Ok(httparse::Status::Partial) => Ok(None),
        Ok(httparse::Status::Complete(head_bytes)) => {
            match (parsed.method, parsed.path, parsed.version) {
                (Some(method), Some(target), Some(minor)) => {
                    let line = RequestLine { method, target, minor, bytes: 0 };
                    Ok(Some((line, &*parsed.headers, head_bytes)))
                }
                _ => Err(HttpStatus::BadRequest),
            }
        }
    };
    let head_bytes = read.as_ref().ok().and_then(Option::as_ref).map(|&(_, _, bytes)| bytes);
    if let Some(status) = over_limits(&bytes[..head_bytes.unwrap_or(bytes.len())], limits) {
        return refused(status);
    }
    match read {
        Ok(None) => ParsedRequest::Incomplete,
        Err(status) => refused(status),
        Ok(Some((line, fields, head_bytes))) => match check_request(&line, fields) {
            Ok(request) => ParsedRequest::Complete(request, head_bytes),
            Err(status) => {
                ParsedRequest::Refused { status, head: classify(line.method) == Method::Head }
            }
        },
    }
}

/// A request line.
#[derive(Clone, Copy, Debug)]
struct RequestLine<'b> {
    method: &'b str,
    target: &'b str,
    minor: u8,
    /// Offset of the fields, for a line that httparse did not read.
    bytes: usize,
}

/// A request line, its fields, and the length of the whole head in bytes.
type ParsedHead<'h, 'b> = (RequestLine<'b>, &'h [Header<'b>], usize);

/// Returns the status for a head, complete or not, that exceeds the limits.
fn over_limits(bytes: &[u8], limits: RequestLimits) -> Option<HttpStatus> {
    if bytes.len() <= limits.line_bytes_max.min(limits.head_bytes_max) {
        return None;
    }
    let line = bytes.iter().take(limits.line_bytes_max).position(|&b| b == b'\n');
    match line {
        None if bytes.len() > limits.line_bytes_max => Some(HttpStatus::UriTooLong),
        _ if bytes.len() > limits.head_bytes_max => Some(HttpStatus::HeaderFieldsTooLarge),
        _ => None,
    }
}

/// Returns the status for a head that httparse refuses.
const fn parser_error_status(error: httparse::Error) -> HttpStatus {
    match error {
        httparse::Error::TooManyHeaders => HttpStatus::HeaderFieldsTooLarge,
        _ => HttpStatus::BadRequest,
    }
}

/// Reads a request line whose version is neither 1.0 nor 1.1. A later minor version is served as
/// 1.1; another major version is refused with 505 (RFC 9110 section 2.5), anything else that is no
/// version with 400 (RFC 9112 section 2.3). Returns `None` if the line is incomplete and may still
/// become a later version.
fn parse_version(bytes: &[u8]) -> Result<Option<RequestLine<'_>>, HttpStatus> {
    const PATTERN: &[u8; 8] = b"HTTP/0.0";
    let feed = bytes.iter().position(|&b| b == b'\n');
    let line = &bytes[..feed.unwrap_or(bytes.len())];
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut parts = line.splitn(3, |&b| b == b' ').map(core::str::from_utf8);
    let (Some(Ok(method)), Some(Ok(target))) = (parts.next(), parts.next()) else {
        return Err(HttpStatus::BadRequest);
    };
    let version = parts.next().and_then(Result::ok).unwrap_or_default().as_bytes();
    let fits = version.iter().zip(PATTERN).all(|(&byte, &wanted)| {
        if wanted == b'0' { byte.is_ascii_digit() } else { byte == wanted }
    });
    let later = version.starts_with(b"HTTP/1.");
    match (version.len().cmp(&PATTERN.len()), feed) {
        (Ordering::Less, None) if fits => Ok(None),
        (Ordering::Equal, None) if fits && later => Ok(None),
        (Ordering::Equal, Some(feed)) if fits && later => {
            Ok(Some(RequestLine { method, target, minor: 1, bytes: feed + 1 }))
        }
        (Ordering::Equal, _) if fits => Err(HttpStatus::VersionNotSupported),
        _ => Err(HttpStatus::BadRequest),
    }
}

/// Reads the fields after a request line of a later version.
fn parse_later_minor<'h, 'b>(
    line: RequestLine<'b>,
    bytes: &'b [u8],
    slots: &'h mut Vec<Header<'b>>,
) -> Result<Option<ParsedHead<'h, 'b>>, HttpStatus> {
    let target_ok = !line.target.is_empty() && line.target.bytes().all(|b| b.is_ascii_graphic());
    if line.method.is_empty() || !line.method.bytes().all(is_token) || !target_ok {
        return Err(HttpStatus::BadRequest);
    }
    slots.resize(FIELDS_MAX, httparse::EMPTY_HEADER);
    match httparse::parse_headers(&bytes[line.bytes..], slots) {
        Ok(httparse::Status::Complete((len, fields))) => Ok(Some((line, fields, line.bytes + len))),
        Ok(httparse::Status::Partial) => Ok(None),
        Err(error) => Err(parser_error_status(error)),
    }
}

/// Returns whether a byte is allowed in a token (RFC 9110 section 5.6.2).
pub(crate) const fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric()
        || matches!(b, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~')
}

/// Classifies a method. Methods are case-sensitive (RFC 9110 section 9.1).
fn classify(method: &str) -> Method {
    match method {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "PUT" => Method::Put,
        "POST" | "DELETE" | "OPTIONS" | "TRACE" | "CONNECT" | "PATCH" => Method::NotAllowed,
        _ => Method::Unknown,
    }
}

/// The fields that matter for framing and conditions, collected so far.
#[derive(Default)]
struct CollectedFields {
    hosts: u32,
    close: bool,
    keep_alive: bool,
    content_length: Option<u64>,
    transfer_encoding: Option<TransferEncoding>,
    expects_continue: bool,
    unknown_expectation: bool,
    present: u16,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TransferEncoding {
    Chunked,
    /// A coding that is not implemented.
    Unknown,
    /// Chunked applied twice, or not last: the end of such a message is undefined.
    Unframed,
}

fn check_request<'h, 'b>(
    line: &RequestLine<'b>,
    fields: &'h [Header<'b>],
) -> Result<HttpRequest<'h, 'b>, HttpStatus> {
    let RequestLine { method, target, minor, .. } = *line;
    let mut said = CollectedFields::default();
    for field in fields {
        said.take(field)?;
    }
    // RFC 9112 section 3.2: 400 for HTTP/1.1 without Host, and for several Host fields in any
    // version.
    if said.hosts > 1 || (said.hosts == 0 && minor >= 1) {
        return Err(HttpStatus::BadRequest);
    }
    let content = match (said.transfer_encoding, said.content_length) {
        (None, None | Some(0)) => ContentFraming::None,
        (None, Some(bytes)) => ContentFraming::Length(bytes),
        // RFC 9112 section 6.1: together with Content-Length it may be request smuggling, and
        // HTTP/1.0 does not have it.
        (Some(_), Some(_)) => return Err(HttpStatus::BadRequest),
        (Some(_), None) if minor == 0 => return Err(HttpStatus::BadRequest),
        (Some(TransferEncoding::Chunked), None) => ContentFraming::Chunked,
        (Some(TransferEncoding::Unknown), None) => return Err(HttpStatus::NotImplemented),
        (Some(TransferEncoding::Unframed), None) => return Err(HttpStatus::BadRequest),
    };
    Ok(HttpRequest {
        method: classify(method),
        name: method.as_bytes(),
        target: target.as_bytes(),
        minor,
        // RFC 9112 section 9.3: `close` wins; 1.1 persists; 1.0 persists only with `keep-alive`.
        keep_alive: !said.close && (minor >= 1 || said.keep_alive),
        content,
        // RFC 9110 section 10.1.1: an expectation from HTTP/1.0 is ignored.
        expects_continue: said.expects_continue && minor >= 1,
        unknown_expectation: said.unknown_expectation && minor >= 1,
        fields,
        present: said.present,
    })
}

impl CollectedFields {
    fn take(&mut self, field: &Header<'_>) -> Result<(), HttpStatus> {
        let is = |name: &str| field.name.eq_ignore_ascii_case(name);
        // By length first: most fields of a browser are none of these.
        match field.name.len() {
            4 if is("host") => {
                self.hosts += 1;
                if !is_authority(field.value) {
                    return Err(HttpStatus::BadRequest);
                }
            }
            6 if is("expect") => {
                let known = field.value.eq_ignore_ascii_case(b"100-continue");
                self.expects_continue |= known;
                self.unknown_expectation |= !known;
            }
            10 if is("connection") => {
                for token in list(field.value) {
                    self.close |= token.eq_ignore_ascii_case(b"close");
                    self.keep_alive |= token.eq_ignore_ascii_case(b"keep-alive");
                }
            }
            14 if is("content-length") => self.content_length(field.value)?,
            17 if is("transfer-encoding") => self.transfer_encoding(field.value),
            5 if is("range") => self.mark(KnownField::Range),
            7 if is("referer") => self.mark(KnownField::Referer),
            8 if is("if-match") => self.mark(KnownField::IfMatch),
            8 if is("if-range") => self.mark(KnownField::IfRange),
            10 if is("user-agent") => self.mark(KnownField::UserAgent),
            13 if is("content-range") => self.mark(KnownField::ContentRange),
            13 if is("if-none-match") => self.mark(KnownField::IfNoneMatch),
            15 if is("accept-encoding") => self.mark(KnownField::AcceptEncoding),
            16 if is("content-encoding") => self.mark(KnownField::ContentEncoding),
            17 if is("if-modified-since") => self.mark(KnownField::IfModifiedSince),
            19 if is("if-unmodified-since") => self.mark(KnownField::IfUnmodifiedSince),
            _ => {}
        }
        Ok(())
    }

    const fn mark(&mut self, field: KnownField) {
        self.present |= 1 << field as u8;
    }

    /// RFC 9112 section 6.3: a list of equal numbers may count as one; everything else is an error.
    fn content_length(&mut self, value: &[u8]) -> Result<(), HttpStatus> {
        for item in value.split(|&b| b == b',').map(<[u8]>::trim_ascii) {
            let length = decimal(item).ok_or(HttpStatus::BadRequest)?;
            if self.content_length.is_some_and(|before| before != length) {
                return Err(HttpStatus::BadRequest);
            }
            self.content_length = Some(length);
        }
        Ok(())
    }

    fn transfer_encoding(&mut self, value: &[u8]) {
        use TransferEncoding::{Chunked, Unframed, Unknown};
        for coding in list(value) {
            let chunked = coding.eq_ignore_ascii_case(b"chunked");
            self.transfer_encoding = Some(match (self.transfer_encoding, chunked) {
                (None, true) => Chunked,
                (None | Some(Unknown), _) => Unknown,
                // RFC 9112 section 6.1: chunked is last and applied once.
                (Some(Chunked | Unframed), _) => Unframed,
            });
        }
        self.transfer_encoding.get_or_insert(Unframed);
    }
}

/// Returns the elements of a comma-separated list, without empty ones (RFC 9110 section 5.6.1.2).
pub(crate) fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&b| b == b',').map(<[u8]>::trim_ascii).filter(|item| !item.is_empty())
}

/// Parses a decimal number below 2^64 that consists of digits only.
pub(crate) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |sum, digit| {
        let value = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        sum.checked_mul(10)?.checked_add(value)
    })
}

#[cfg(test)]
mod tests;
