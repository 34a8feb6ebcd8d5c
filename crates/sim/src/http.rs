//! The client's HTTP: requests as text, responses checked byte by byte as they arrive.
//!
//! A response must name a version of the file that was on the disk at some time, and all its bytes
//! must be of that version. Bodies are not stored, except short texts and those of several ranges.

use base::Prng;
use bytes::Bytes;

use crate::content::{self, UPLOADS, VersionCatalog};
use crate::trace::{hash_bytes, mix};

/// Name of the proxy in the field `Server` of its own responses.
pub(crate) const PROXY_NAME: &str = "proxy";
/// Maximum size of a response's head.
const HEAD_BYTES_MAX: usize = 4_096;

/// Kind of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Whole,
    Head,
    /// Bytes from the first to the last, inclusive, or to the end of the file.
    Range(u64, Option<u64>),
    /// The last bytes of the file, as many as given.
    Suffix(u64),
    /// Several ranges of bytes.
    Several(Vec<(u64, u64)>),
    /// The file unless it still has a certain version (`If-None-Match`).
    Changed,
    /// A file that does not exist.
    Missing,
    /// A malformed request.
    Nonsense,
    /// A directory without its trailing slash.
    Directory,
    /// A path that leads out of the root.
    Climb,
    /// An upload of a file.
    Put(PutRequest),
    /// A file that was perhaps uploaded.
    Stored,
}

/// An upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PutRequest {
    /// Bytes of the content, which is that of the request's version.
    pub(crate) size: u64,
    /// Bytes of the chunks, over HTTP/1.1 with the chunked coding; `None` with a declared length.
    pub(crate) chunk: Option<u64>,
    /// A file that exists is to be kept.
    pub(crate) keep: bool,
    /// The request has `Expect: 100-continue`, but its content is not delayed.
    pub(crate) expects: bool,
    /// The quota may be used up.
    pub(crate) may_be_full: bool,
    /// Status of the only permitted response, if the server must refuse the request.
    pub(crate) refusal: Option<u16>,
}

impl PutRequest {
    /// Returns the content of that version.
    pub(crate) fn content(&self, version: u64) -> Vec<u8> {
        let mut content = vec![0; self.size as usize];
        content::fill(version, 0, &mut content);
        content
    }

    fn head(&self, path: &str) -> String {
        let keep = if self.keep { "If-None-Match: *\r\n" } else { "" };
        let expect = if self.expects { "Expect: 100-continue\r\n" } else { "" };
        let framing = match self.chunk {
            Some(_) => String::from("Transfer-Encoding: chunked"),
            None => format!("Content-Length: {}", self.size),
        };
        format!("PUT /{path} HTTP/1.1\r\nHost: sim\r\n{keep}{expect}{framing}\r\n\r\n")
    }

    /// Returns the content as it is sent over HTTP/1.1.
    fn body(&self, version: u64) -> Vec<u8> {
        let content = self.content(version);
        let Some(chunk) = self.chunk else { return content };
        let mut body = Vec::new();
        for piece in content.chunks(chunk as usize) {
            body.extend(format!("{:x}\r\n", piece.len()).bytes());
            body.extend_from_slice(piece);
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(b"0\r\n\r\n");
        body
    }
}

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct FileRequest {
    pub(crate) want: RequestKind,
    pub(crate) file: usize,
    pub(crate) path: String,
    /// Version of the file when the request was drawn.
    pub(crate) version: u64,
}

impl FileRequest {
    /// Draws a request for one of the files; with probability `odd`, other than a GET of the whole
    /// file.
    pub(crate) fn draw(rng: &mut Prng, files: &[(String, u64)], odd: f64) -> Self {
        let file = rng.below(files.len() as u64) as usize;
        let (path, version) = files[file].clone();
        let plain = Self { want: RequestKind::Whole, file, path, version };
        if !rng.chance(odd) {
            return plain;
        }
        let at = |rng: &mut Prng| {
            let bound = [100, 5_000, 400_000][rng.below(3) as usize];
            rng.below(bound)
        };
        let want = match rng.below(10) {
            0 => RequestKind::Head,
            1 | 2 => {
                let first = at(rng);
                RequestKind::Range(first, rng.chance(0.7).then(|| first + at(rng)))
            }
            3 => RequestKind::Suffix(at(rng)),
            4 => {
                // Disjoint: overlapping ranges may be ignored.
                let mut first = 0;
                let ranges = (0..rng.range(2, 4)).map(|_| {
                    let range = (first + rng.below(3_000), first + 3_000 + rng.below(3_000));
                    first += 7_000;
                    range
                });
                RequestKind::Several(ranges.collect())
            }
            5 | 6 => RequestKind::Changed,
            7 => RequestKind::Missing,
            8 => RequestKind::Directory,
            _ => {
                if rng.chance(0.5) {
                    RequestKind::Nonsense
                } else {
                    RequestKind::Climb
                }
            }
        };
        Self { want, ..plain }
    }

    /// Returns the request as it is sent over HTTP/1.1: its text, and the content of an upload.
    pub(crate) fn message(&self, last: bool) -> Bytes {
        let mut message = self.text(last).into_bytes();
        if let RequestKind::Put(put) = &self.want {
            message.extend(put.body(self.version));
        }
        message.into()
    }

    /// Returns the request's text, with `Connection: close` if it is the `last`.
    pub(crate) fn text(&self, last: bool) -> String {
        let mut text = self.plain_text();
        if last && self.want != RequestKind::Nonsense {
            text.insert_str(text.len() - 2, "Connection: close\r\n");
        }
        text
    }

    fn plain_text(&self) -> String {
        let get =
            |path: &str, fields: &str| format!("GET /{path} HTTP/1.1\r\nHost: sim\r\n{fields}\r\n");
        match &self.want {
            RequestKind::Whole => get(&self.path, ""),
            RequestKind::Head => format!("HEAD /{} HTTP/1.1\r\nHost: sim\r\n\r\n", self.path),
            RequestKind::Range(first, Some(last)) => {
                get(&self.path, &format!("Range: bytes={first}-{last}\r\n"))
            }
            RequestKind::Range(first, None) => {
                get(&self.path, &format!("Range: bytes={first}-\r\n"))
            }
            RequestKind::Suffix(len) => get(&self.path, &format!("Range: bytes=-{len}\r\n")),
            RequestKind::Several(ranges) => {
                let ranges: Vec<_> = ranges.iter().map(|(a, b)| format!("{a}-{b}")).collect();
                get(&self.path, &format!("Range: bytes={}\r\n", ranges.join(",")))
            }
            RequestKind::Changed => {
                let tag = self.version;
                get(&self.path, &format!("If-None-Match: \"{tag:016x}\"\r\n"))
            }
            RequestKind::Missing => get("no/such/file", ""),
            RequestKind::Nonsense => String::from("BREW /pot HTCPCP/1.0 maybe\r\n\r\n"),
            RequestKind::Directory => get("d", ""),
            RequestKind::Climb => get("%2e%2e/%2e%2e/etc/passwd", ""),
            RequestKind::Put(put) => put.head(&self.path),
            RequestKind::Stored => get(&format!("{UPLOADS}/{}", self.path), ""),
        }
    }

    /// Returns whether the server closes the connection after the response.
    pub(crate) fn ends_connection(&self) -> bool {
        match &self.want {
            RequestKind::Nonsense => true,
            RequestKind::Put(put) => put.refusal.is_some(),
            _ => false,
        }
    }
}

/// Summary of a complete response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CheckedResponse {
    pub(crate) status: u16,
    /// Version of the file, from the `ETag`.
    pub(crate) version: Option<u64>,
    pub(crate) body_bytes: u64,
    /// Hash over the body's contents, without multipart boundaries.
    pub(crate) hash: u64,
    /// It is an error with a cause at the server or the proxy, not the response that was expected.
    pub(crate) failure: bool,
    /// It is the proxy's own: the request never reached a server, or no response returned.
    pub(crate) by_proxy: bool,
    /// Hash over the Date field.
    pub(crate) date: u64,
}

#[derive(Clone, Debug, Default)]
struct Head {
    status: u16,
    length: Option<u64>,
    version: Option<u64>,
    range: Option<(u64, u64, u64)>,
    boundary: Option<String>,
    location: Option<String>,
    date: u64,
    close: bool,
    by_proxy: bool,
}

#[derive(Debug)]
enum ExpectedBody {
    /// Bytes of a version, from this offset on.
    File(u64, u64),
    /// A short text.
    Text,
    /// Several parts of a version.
    Parts(u64),
}

#[derive(Debug)]
struct BodyInProgress {
    head: Head,
    left: u64,
    body: ExpectedBody,
    gathered: Vec<u8>,
    failure: bool,
}

/// Parses and checks responses.
#[derive(Debug, Default)]
pub(crate) struct ResponseChecker {
    head: Vec<u8>,
    body: Option<BodyInProgress>,
}

impl ResponseChecker {
    /// Returns whether part of a response has arrived.
    pub(crate) fn is_within(&self) -> bool {
        !self.head.is_empty() || self.body.is_some()
    }

    /// Takes bytes from the front of `bytes`. Returns how many, and the response once it is
    /// complete.
    ///
    /// # Errors
    /// Describes the first error in the response.
    pub(crate) fn take(
        &mut self,
        bytes: &[u8],
        ask: &FileRequest,
        known: &VersionCatalog,
    ) -> Result<(usize, Option<CheckedResponse>), String> {
        let mut used = 0;
        if self.body.is_none() {
            used = self.take_head(bytes)?;
            if !self.head.ends_with(b"\r\n\r\n") {
                return Ok((used, None));
            }
            let head = parse_head(&core::mem::take(&mut self.head))?;
            if head.status == 100 && matches!(&ask.want, RequestKind::Put(put) if put.expects) {
                return Ok((used, None));
            }
            self.body = Some(begin(head, ask, known)?);
        }
        let Some(reading) = &mut self.body else { return Ok((used, None)) };
        let here = usize::try_from(reading.left).unwrap_or(usize::MAX).min(bytes.len() - used);
        reading.take(&bytes[used..used + here])?;
        used += here;
        if reading.left > 0 {
            return Ok((used, None));
        }
        let answer = reading.finish(known)?;
        self.body = None;
        Ok((used, Some(answer)))
    }

    /// Collects a head up to its empty line.
    fn take_head(&mut self, bytes: &[u8]) -> Result<usize, String> {
        for (at, &byte) in bytes.iter().enumerate() {
            self.head.push(byte);
            if byte == b'\n' && self.head.ends_with(b"\r\n\r\n") {
                return Ok(at + 1);
            }
        }
        if self.head.len() > HEAD_BYTES_MAX
            || !b"HTTP/1.1 ".starts_with(&self.head[..self.head.len().min(9)])
        {
            let start = String::from_utf8_lossy(&self.head[..self.head.len().min(40)]).into_owned();
            return Err(format!("no response begins like that: {start:?}"));
        }
        Ok(bytes.len())
    }
}

impl BodyInProgress {
    fn take(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.left -= bytes.len() as u64;
        match &mut self.body {
            ExpectedBody::File(version, offset) => {
                content::check(*version, *offset, bytes).map_err(|at| {
                    format!("byte {} of version {version:016x} is wrong", *offset + at as u64)
                })?;
                *offset += bytes.len() as u64;
            }
            ExpectedBody::Text | ExpectedBody::Parts(_) => self.gathered.extend_from_slice(bytes),
        }
        Ok(())
    }

    fn finish(&self, known: &VersionCatalog) -> Result<CheckedResponse, String> {
        let hash = match self.body {
            ExpectedBody::File(version, end) => mix(version ^ mix(end)),
            ExpectedBody::Text => hash_bytes(0, &self.gathered),
            ExpectedBody::Parts(version) => {
                let boundary = self.head.boundary.as_deref().unwrap_or_default();
                let size = known.find(version).map_or(0, |v| v.size);
                check_parts(&self.gathered, boundary, version, size)?
            }
        };
        let (status, version, failure) = (self.head.status, self.head.version, self.failure);
        let body_bytes = match self.body {
            ExpectedBody::Parts(_) => 0,
            _ => self.head.length.unwrap_or(0),
        };
        let Head { date, by_proxy, .. } = self.head;
        Ok(CheckedResponse { status, version, body_bytes, hash, failure, by_proxy, date })
    }
}

fn parse_head(text: &[u8]) -> Result<Head, String> {
    let text = core::str::from_utf8(text).map_err(|_| "a head that is no text".to_owned())?;
    let mut lines = text.split("\r\n");
    let status_line = lines.next().unwrap_or_default();
    let status = status_line.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3));
    let status = status.and_then(|code| code.parse().ok());
    let mut head = Head {
        status: status.ok_or_else(|| format!("a status line like {status_line:?}"))?,
        ..Head::default()
    };
    for line in lines.filter(|line| !line.is_empty()) {
        let (name, value) =
            line.split_once(": ").ok_or_else(|| format!("a field like {line:?}"))?;
        match name.to_ascii_lowercase().as_str() {
            "content-length" => head.length = value.parse().ok(),
            "etag" => {
                head.version = u64::from_str_radix(value.trim_matches('"'), 16).ok();
            }
            "content-range" => head.range = parse_range(value),
            "connection" => head.close = value == "close",
            "server" => head.by_proxy = value == PROXY_NAME,
            "date" => head.date = hash_bytes(0, value.as_bytes()),
            "location" => head.location = Some(value.to_owned()),
            "content-type" => {
                head.boundary = value.split_once("boundary=").map(|(_, b)| b.to_owned());
            }
            _ => {}
        }
    }
    Ok(head)
}

/// Parses `bytes first-last/size`.
fn parse_range(value: &str) -> Option<(u64, u64, u64)> {
    let (range, size) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?, size.parse().ok()?))
}

/// Returns whether a failure of the server or of the proxy may have caused the status.
fn is_failure(head: &Head) -> bool {
    match head.status {
        408 | 503 => true,
        502 | 504 => head.by_proxy,
        // The server answers 403 if the disk denies an open.
        403 | 500 | 507 => !head.by_proxy,
        _ => false,
    }
}

/// Checks a head against its request and determines the expected body.
fn begin(head: Head, ask: &FileRequest, known: &VersionCatalog) -> Result<BodyInProgress, String> {
    let status = head.status;
    let wrong = |what: &str| Err(format!("{what}: {:?} was answered with {head:?}", ask.want));
    let Some(length) = head.length.or_else(|| matches!(status, 204 | 304).then_some(0)) else {
        return wrong("no length");
    };
    let file = matches!(status, 200 | 206 | 304);
    let size = if file {
        let Some(version) = head.version.and_then(|v| known.find(v)) else {
            return wrong("an unknown version");
        };
        if version.file != ask.file {
            return wrong("another file's version");
        }
        version.size
    } else {
        0
    };
    let failure = !expected(&head, ask, size, known);
    if failure && !is_failure(&head) {
        return wrong("an unexpected answer");
    }
    let version = known.number(head.version.unwrap_or(0));
    let (left, body) = match (status, &head.boundary, head.range) {
        _ if ask.want == RequestKind::Head => (0, ExpectedBody::Text),
        (200, ..) => (length, ExpectedBody::File(version, 0)),
        (206, Some(_), _) => (length, ExpectedBody::Parts(version)),
        (206, None, Some((first, last, of))) => {
            if of != size || last >= size || first > last || last - first + 1 != length {
                return wrong("a range that is none");
            }
            (length, ExpectedBody::File(version, first))
        }
        (206, ..) => return wrong("a part without a range"),
        (304, ..) => (0, ExpectedBody::Text),
        _ => (length, ExpectedBody::Text),
    };
    if status == 200 && length != size {
        return wrong("not the file's length");
    }
    if matches!(body, ExpectedBody::Text) && left > 200 {
        return wrong("a long text");
    }
    Ok(BodyInProgress { head, left, body, gathered: Vec::new(), failure })
}

/// Returns whether RFC 9110 and the server's documentation allow the response, for a file of `size`
/// bytes.
fn expected(head: &Head, ask: &FileRequest, size: u64, known: &VersionCatalog) -> bool {
    let (status, range) = (head.status, head.range);
    match &ask.want {
        RequestKind::Whole | RequestKind::Head => status == 200,
        // Size 0 is also used for the unknown version of a 416.
        RequestKind::Range(first, last) => match status {
            206 => {
                let end = last.map_or(size, |last| size.min(last.saturating_add(1)));
                *first < size && range == Some((*first, end.wrapping_sub(1), size))
            }
            416 => true,
            _ => false,
        },
        RequestKind::Suffix(len) => match status {
            206 => *len > 0 && range == Some((size - (*len).min(size), size.wrapping_sub(1), size)),
            200 => size == 0 && *len > 0,
            416 => *len == 0,
            _ => false,
        },
        RequestKind::Several(ranges) => match status {
            206 if head.boundary.is_some() => ranges.iter().any(|r| r.0 < size),
            206 => ranges[0].0 < size && range.is_some_and(|r| r.0 == ranges[0].0),
            416 => true,
            _ => false,
        },
        RequestKind::Changed => match status {
            304 => head.version == Some(ask.version),
            200 => head.version != Some(ask.version),
            _ => false,
        },
        RequestKind::Missing => status == 404,
        RequestKind::Nonsense => matches!(status, 400 | 501 | 505) && head.close,
        // A file system that a scenario makes has no other directory than its root.
        RequestKind::Directory if known.has_names() => status == 404,
        RequestKind::Directory => status == 301 && head.location.as_deref() == Some("/d/"),
        RequestKind::Climb => status == 403,
        RequestKind::Put(put) => match (status, put.refusal) {
            (507, _) if put.may_be_full => true,
            (_, Some(refusal)) => status == refusal,
            (201 | 204, None) => true,
            (412, None) => put.keep,
            _ => false,
        },
        // The ledger knows whether there is a file.
        RequestKind::Stored => matches!(status, 200 | 404),
    }
}

/// Checks a multipart body. Returns a hash over its contents.
fn check_parts(body: &[u8], boundary: &str, version: u64, size: u64) -> Result<u64, String> {
    let mut rest = body;
    let mut hash = version;
    let mut parts = 0;
    let (open, end) = (format!("\r\n--{boundary}\r\n"), format!("\r\n--{boundary}--\r\n"));
    while let Some(part) = rest.strip_prefix(open.as_bytes()) {
        let fields =
            part.windows(4).position(|w| w == b"\r\n\r\n").ok_or("a part without an end")?;
        let text = String::from_utf8_lossy(&part[..fields]);
        let range = text.split("\r\n").find_map(|line| line.strip_prefix("Content-Range: "));
        let (first, last, of) =
            range.and_then(parse_range).ok_or_else(|| format!("a part like {text:?}"))?;
        if of != size || first > last || last >= size {
            return Err(format!("a part {first}-{last}/{of} of {size} bytes"));
        }
        let len = usize::try_from(last - first + 1).map_err(|e| e.to_string())?;
        let bytes = part.get(fields + 4..fields + 4 + len).ok_or("a part that is cut short")?;
        content::check(version, first, bytes)
            .map_err(|at| format!("byte {} of a part is wrong", first + at as u64))?;
        hash = mix(hash ^ mix(first) ^ last);
        rest = &part[fields + 4 + len..];
        parts += 1;
    }
    if rest == end.as_bytes() && parts > 0 {
        Ok(hash)
    } else {
        Err(format!("{parts} parts and then {} bytes", rest.len()))
    }
}
