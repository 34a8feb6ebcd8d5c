//! From received bytes to a request that was checked, or to the status that refuses them.
//!
//! Called by [`super::answer`] with the unread bytes of a connection; parses in place and copies
//! nothing. Everything about message framing is decided here: whoever gets a [`Request`] knows
//! where it ends. Targets are not looked into (see [`super::target`]), conditions and ranges
//! neither.

use core::cmp::Ordering;
use core::mem::MaybeUninit;

use httparse::Header;

use super::status::Status;
use super::target::is_authority;

/// Header fields in one request; more are refused with 431. Behind proxies that add theirs a
/// hundred occur.
const FIELDS_MAX: usize = 128;

/// Room for a request's header fields.
pub(crate) struct Slots<'b> {
    /// On the stack and uninitialised, so that it costs nothing.
    usual: [MaybeUninit<Header<'b>>; FIELDS_MAX],
    /// For the fields of a request whose version httparse does not take; else empty.
    later: Vec<Header<'b>>,
}

/// Empty room for header fields.
pub(crate) const fn slots<'b>() -> Slots<'b> {
    Slots { usual: [const { MaybeUninit::uninit() }; FIELDS_MAX], later: Vec::new() }
}

/// How much of a request is taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Bytes of request line and header fields together; 431 above.
    pub(crate) head_bytes_max: usize,
    /// Bytes of the request line; 414 above.
    pub(crate) line_bytes_max: usize,
}

/// What the method is to a file server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Head,
    /// A method of RFC 9110 or RFC 5789 that files do not have.
    NotAllowed,
    /// None that we know.
    Unknown,
}

/// Header fields that are looked at again once the file is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Field {
    IfMatch,
    IfUnmodifiedSince,
    IfNoneMatch,
    IfModifiedSince,
    IfRange,
    Range,
    Referer,
    UserAgent,
    AcceptEncoding,
}

impl Field {
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
        }
    }
}

/// The framing of the content behind a head (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// There is none.
    None,
    /// After that many bytes.
    Length(u64),
    /// The content ends with the chunked coding.
    Chunked,
}

/// A request whose framing is sound.
#[derive(Debug)]
pub(crate) struct Request<'h, 'b> {
    pub(crate) method: Method,
    /// The method as it came.
    pub(crate) name: &'b [u8],
    pub(crate) target: &'b [u8],
    /// Zero for HTTP/1.0, one for everything above.
    pub(crate) minor: u8,
    /// The client wants to go on with this connection.
    pub(crate) keep_alive: bool,
    /// The framing of the content behind the head.
    pub(crate) content: Framing,
    /// The client waits for 100 before it sends the content.
    pub(crate) expects_continue: bool,
    /// An expectation other than 100-continue.
    pub(crate) unknown_expectation: bool,
    fields: &'h [Header<'b>],
    /// One bit for each [`Field`] that is there.
    present: u16,
}

impl<'h, 'b> Request<'h, 'b> {
    /// All header fields, as they came.
    pub(crate) const fn fields(&self) -> &'h [Header<'b>] {
        self.fields
    }

    /// Whether there is such a field.
    pub(crate) const fn has(&self, field: Field) -> bool {
        self.present & (1 << field as u8) != 0
    }

    /// Whether a condition or a range was asked for.
    pub(crate) const fn has_conditions(&self) -> bool {
        const OTHERS: u16 = 1 << Field::Referer as u8
            | 1 << Field::UserAgent as u8
            | 1 << Field::AcceptEncoding as u8;
        self.present & !OTHERS != 0
    }

    /// The values of a field, one for each line that it has.
    pub(crate) fn values(&self, field: Field) -> impl Iterator<Item = &'b [u8]> {
        let fields = if self.has(field) { self.fields } else { &[] };
        fields.iter().filter(move |f| f.name.eq_ignore_ascii_case(field.name())).map(|f| f.value)
    }

    /// The value of a field that must be there once; `None` as well where it is there twice.
    pub(crate) fn single(&self, field: Field) -> Option<&'b [u8]> {
        let mut values = self.values(field);
        values.next().filter(|_| values.next().is_none())
    }
}

/// What the bytes are.
#[derive(Debug)]
pub(crate) enum Parsed<'h, 'b> {
    /// The beginning of a request.
    Incomplete,
    /// A request, and how many bytes its head has.
    Complete(Request<'h, 'b>, usize),
    /// Nothing to go on with: answer with this status and close, for where a next request would
    /// begin is unknown.
    Refused {
        status: Status,
        /// The method is known to be HEAD: no content in the response.
        head: bool,
    },
}

/// Parses the bytes of one head, which begin with the request line.
pub(crate) fn parse<'h, 'b>(
    bytes: &'b [u8],
    slots: &'h mut Slots<'b>,
    limits: Limits,
) -> Parsed<'h, 'b> {
    let refused = |status| Parsed::Refused { status, head: false };
    let Slots { usual, later } = slots;
    let mut parsed = httparse::Request::new(&mut []);
    let read = match parsed.parse_with_uninit_headers(bytes, usual) {
        Err(httparse::Error::Version) => parse_version(bytes).and_then(|line| match line {
            Some(line) => parse_later(line, bytes, later),
            None => Ok(None),
        }),
        Err(error) => Err(blame(error)),
        Ok(httparse::Status::Partial) => Ok(None),
        Ok(httparse::Status::Complete(head_bytes)) => {
            match (parsed.method, parsed.path, parsed.version) {
                (Some(method), Some(target), Some(minor)) => {
                    let line = Line { method, target, minor, bytes: 0 };
                    Ok(Some((line, &*parsed.headers, head_bytes)))
                }
                _ => Err(Status::BadRequest),
            }
        }
    };
    let head_bytes = read.as_ref().ok().and_then(Option::as_ref).map(|&(_, _, bytes)| bytes);
    if let Some(status) = over_limits(&bytes[..head_bytes.unwrap_or(bytes.len())], limits) {
        return refused(status);
    }
    match read {
        Ok(None) => Parsed::Incomplete,
        Err(status) => refused(status),
        Ok(Some((line, fields, head_bytes))) => match check(&line, fields) {
            Ok(request) => Parsed::Complete(request, head_bytes),
            Err(status) => Parsed::Refused { status, head: classify(line.method) == Method::Head },
        },
    }
}

/// A request line.
#[derive(Clone, Copy, Debug)]
struct Line<'b> {
    method: &'b str,
    target: &'b str,
    minor: u8,
    /// The offset of the fields, for a line that httparse did not read.
    bytes: usize,
}

/// A request line, the fields behind it, and the bytes of the whole head.
type Head<'h, 'b> = (Line<'b>, &'h [Header<'b>], usize);

/// The status for a head, whole or not, that is longer than we read.
fn over_limits(bytes: &[u8], limits: Limits) -> Option<Status> {
    if bytes.len() <= limits.line_bytes_max.min(limits.head_bytes_max) {
        return None;
    }
    let line = bytes.iter().take(limits.line_bytes_max).position(|&b| b == b'\n');
    match line {
        None if bytes.len() > limits.line_bytes_max => Some(Status::UriTooLong),
        _ if bytes.len() > limits.head_bytes_max => Some(Status::HeaderFieldsTooLarge),
        _ => None,
    }
}

/// The status for what is not HTTP.
const fn blame(error: httparse::Error) -> Status {
    match error {
        httparse::Error::TooManyHeaders => Status::HeaderFieldsTooLarge,
        _ => Status::BadRequest,
    }
}

/// Reads a request line whose version is neither 1.0 nor 1.1. A later minor version is served as
/// 1.1, another major version is refused with 505 (RFC 9110 section 2.5), anything else in its
/// place with 400 (RFC 9112 section 2.3). Returns none if the line may still become either.
fn parse_version(bytes: &[u8]) -> Result<Option<Line<'_>>, Status> {
    const PATTERN: &[u8; 8] = b"HTTP/0.0";
    let feed = bytes.iter().position(|&b| b == b'\n');
    let line = &bytes[..feed.unwrap_or(bytes.len())];
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut parts = line.splitn(3, |&b| b == b' ').map(core::str::from_utf8);
    let (Some(Ok(method)), Some(Ok(target))) = (parts.next(), parts.next()) else {
        return Err(Status::BadRequest);
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
            Ok(Some(Line { method, target, minor: 1, bytes: feed + 1 }))
        }
        (Ordering::Equal, _) if fits => Err(Status::VersionNotSupported),
        _ => Err(Status::BadRequest),
    }
}

/// Reads the fields behind a request line of a later version.
fn parse_later<'h, 'b>(
    line: Line<'b>,
    bytes: &'b [u8],
    slots: &'h mut Vec<Header<'b>>,
) -> Result<Option<Head<'h, 'b>>, Status> {
    let target_ok = !line.target.is_empty() && line.target.bytes().all(|b| b.is_ascii_graphic());
    if line.method.is_empty() || !line.method.bytes().all(is_token) || !target_ok {
        return Err(Status::BadRequest);
    }
    slots.resize(FIELDS_MAX, httparse::EMPTY_HEADER);
    match httparse::parse_headers(&bytes[line.bytes..], slots) {
        Ok(httparse::Status::Complete((len, fields))) => Ok(Some((line, fields, line.bytes + len))),
        Ok(httparse::Status::Partial) => Ok(None),
        Err(error) => Err(blame(error)),
    }
}

/// Returns whether a byte may stand in a token (RFC 9110 section 5.6.2).
pub(crate) const fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric()
        || matches!(b, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~')
}

/// Methods are case-sensitive (RFC 9110 section 9.1).
fn classify(method: &str) -> Method {
    match method {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" | "PUT" | "DELETE" | "OPTIONS" | "TRACE" | "CONNECT" | "PATCH" => Method::NotAllowed,
        _ => Method::Unknown,
    }
}

/// What the framing fields said so far.
#[derive(Default)]
struct Said {
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
    /// A coding that we do not have.
    Unknown,
    /// Chunked applied twice, or not last: nobody can tell where such a message ends.
    Unframed,
}

fn check<'h, 'b>(line: &Line<'b>, fields: &'h [Header<'b>]) -> Result<Request<'h, 'b>, Status> {
    let Line { method, target, minor, .. } = *line;
    let mut said = Said::default();
    for field in fields {
        said.take(field)?;
    }
    // RFC 9112 section 3.2: 400 for HTTP/1.1 without Host, and for two of them whatever the
    // version.
    if said.hosts > 1 || (said.hosts == 0 && minor >= 1) {
        return Err(Status::BadRequest);
    }
    let content = match (said.transfer_encoding, said.content_length) {
        (None, None | Some(0)) => Framing::None,
        (None, Some(bytes)) => Framing::Length(bytes),
        // RFC 9112 section 6.1: with Content-Length it smells of request smuggling, and HTTP/1.0
        // does not have it.
        (Some(_), Some(_)) => return Err(Status::BadRequest),
        (Some(_), None) if minor == 0 => return Err(Status::BadRequest),
        (Some(TransferEncoding::Chunked), None) => Framing::Chunked,
        (Some(TransferEncoding::Unknown), None) => return Err(Status::NotImplemented),
        (Some(TransferEncoding::Unframed), None) => return Err(Status::BadRequest),
    };
    Ok(Request {
        method: classify(method),
        name: method.as_bytes(),
        target: target.as_bytes(),
        minor,
        // RFC 9112 section 9.3: close wins, 1.1 persists, 1.0 only where it says so.
        keep_alive: !said.close && (minor >= 1 || said.keep_alive),
        content,
        // RFC 9110 section 10.1.1: an expectation from HTTP/1.0 is ignored.
        expects_continue: said.expects_continue && minor >= 1,
        unknown_expectation: said.unknown_expectation && minor >= 1,
        fields,
        present: said.present,
    })
}

impl Said {
    fn take(&mut self, field: &Header<'_>) -> Result<(), Status> {
        let is = |name: &str| field.name.eq_ignore_ascii_case(name);
        // By length first: most fields of a browser are none of these.
        match field.name.len() {
            4 if is("host") => {
                self.hosts += 1;
                if !is_authority(field.value) {
                    return Err(Status::BadRequest);
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
            5 if is("range") => self.mark(Field::Range),
            7 if is("referer") => self.mark(Field::Referer),
            8 if is("if-match") => self.mark(Field::IfMatch),
            8 if is("if-range") => self.mark(Field::IfRange),
            10 if is("user-agent") => self.mark(Field::UserAgent),
            13 if is("if-none-match") => self.mark(Field::IfNoneMatch),
            15 if is("accept-encoding") => self.mark(Field::AcceptEncoding),
            17 if is("if-modified-since") => self.mark(Field::IfModifiedSince),
            19 if is("if-unmodified-since") => self.mark(Field::IfUnmodifiedSince),
            _ => {}
        }
        Ok(())
    }

    const fn mark(&mut self, field: Field) {
        self.present |= 1 << field as u8;
    }

    /// RFC 9112 section 6.3: a list of equal numbers may pass as one; everything else is an error.
    fn content_length(&mut self, value: &[u8]) -> Result<(), Status> {
        for item in value.split(|&b| b == b',').map(<[u8]>::trim_ascii) {
            let length = decimal(item).ok_or(Status::BadRequest)?;
            if self.content_length.is_some_and(|before| before != length) {
                return Err(Status::BadRequest);
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

/// The elements of a comma-separated list, empty ones left out (RFC 9110 section 5.6.1.2).
pub(crate) fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&b| b == b',').map(<[u8]>::trim_ascii).filter(|item| !item.is_empty())
}

/// Digits and nothing else, below 2^64.
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
