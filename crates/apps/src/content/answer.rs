//! From the bytes of a request to its response: the decisions of HTTP, without a socket.
//!
//! [`super::connection`] calls [`Responder::decide`] with the bytes at the front of a connection
//! and carries the decision out. A request for a file that is not open is decided again from the
//! same bytes once the file is open, so no state of a request is stored.

use core::net::IpAddr;
use std::borrow::Cow;

use abi::{FileFault, FileId, FileStat};
use base::Instant;

use super::Config;
use super::body::Discard;
use super::coding::{self, Coding};
use super::conditional::{Verdict, evaluate};
use super::counters::Counters;
use super::fields::CacheControl;
use super::files::{Files, Lookup, Opened, Resource, Waiter};
use super::log::{Log, Record};
use super::range::{ByteRange, Selection, select};
use super::request::{Field, Framing, Limits, Method, Parsed, Request, parse, slots};
use super::resource::OpenFile;
use super::response::{Content, Extra, Output, Persist, Plan, Variant};
use super::status::Status;
use super::target::{TargetError, authority, host_of, normalise, plain, split};

/// Action of a connection on the bytes at its front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Wait for more bytes.
    Incomplete,
    /// Read the content behind the head, which has `head_bytes` bytes, and decide again.
    Content { head_bytes: usize, discard: Discard, expects_continue: bool },
    /// Send the response in [`Responder::output`], and remove this number of bytes from the front.
    Respond(Plan, usize),
    /// Open the file at [`Responder::path`].
    Open,
    /// Wait for the open of that path, which is in progress.
    Join,
}

/// The service of a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Service {
    /// Files over plain HTTP.
    #[default]
    Plain,
    /// Files, over TLS.
    Secure,
    /// Redirects to HTTPS at this port.
    Redirect(u16),
    /// 400: the client does not speak TLS at a port for TLS.
    Misdirected,
}

/// State of the content of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// None of it was read.
    #[default]
    Unread,
    /// All of it was read and discarded.
    Whole,
    /// Malformed or too long: the request is refused with this status.
    Refused(Status),
}

/// Facts about a request besides its bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Circumstances {
    /// Address of the client, for the log.
    pub(crate) remote: Option<IpAddr>,
    /// Result of the open, if the request waited for one.
    pub(crate) opened: Option<Result<(), FileFault>>,
    /// When the request began to wait; an entry of the file cache that was valid then is valid for
    /// it.
    pub(crate) since: Option<Instant>,
    /// Service of the connection.
    pub(crate) service: Service,
    /// State of the request's content.
    pub(crate) content: Arrived,
    /// The connection has reached its maximum of requests: this is the last.
    pub(crate) last: bool,
    /// The request came over HTTP/3, and its head was translated to HTTP/1.1.
    pub(crate) http3: bool,
}

/// Everything that decisions and responses need, shared by all connections.
pub(crate) struct Responder {
    pub(crate) files: Files,
    pub(crate) output: Output,
    pub(crate) log: Log,
    pub(crate) counters: Counters,
    limits: Limits,
    content_bytes_max: u64,
    ranges_max: usize,
    index: String,
    cache_control: Vec<CacheControl>,
    precompressed: bool,
    /// The file to open need not exist.
    optional: bool,
    /// The path of the last request, if it was not plain or not in the cache.
    path: Vec<u8>,
    /// The path of a precompressed file.
    coded_path: Vec<u8>,
    ranges: Vec<ByteRange>,
}

/// Why a request cannot be answered yet.
enum Wait {
    Open,
    Join,
}

impl Responder {
    pub(crate) fn new(config: &Config) -> Self {
        let mut seeds = base::Prng::new(config.seed);
        let key = (seeds.next_u64(), seeds.next_u64());
        let alt_svc = config.http3.as_ref().map(|quic| quic.port);
        let (files_key, epoch) = (key, config.unix_epoch);
        let mut output = Output::new(&config.server_name, alt_svc, epoch, seeds.next_u64());
        output.add_fields(&config.headers);
        output.set_pages(&config.error_pages);
        Self {
            files: Files::new(config.files_max, config.file_validity, files_key),
            output,
            log: Log::new(config.access_log),
            counters: Counters::default(),
            limits: Limits {
                head_bytes_max: config.head_bytes_max,
                line_bytes_max: config.request_line_bytes_max.min(config.head_bytes_max),
            },
            content_bytes_max: config.content_bytes_max,
            ranges_max: config.ranges_max,
            index: config.index.clone(),
            cache_control: config.cache_control.clone(),
            precompressed: config.precompressed,
            optional: false,
            path: Vec::new(),
            coded_path: Vec::new(),
            ranges: Vec::new(),
        }
    }

    /// Returns the path to open after [`Decision::Open`], or to wait for after [`Decision::Join`].
    pub(crate) fn path(&self) -> &[u8] {
        &self.path
    }

    /// Decides about the bytes at the front of a connection. Reads one request of them at most.
    pub(crate) fn decide(&mut self, now: Instant, bytes: &[u8], about: Circumstances) -> Decision {
        self.output.advance(now);
        self.output.secure = about.http3 || about.service == Service::Secure;
        let mut slots = slots();
        match parse(bytes, &mut slots, self.limits) {
            Parsed::Incomplete => Decision::Incomplete,
            Parsed::Refused { status, head } => {
                let content = if head { Content::HeadOnly } else { Content::Sent };
                let plan = self.output.text(status, Extra::None, content, Persist::Close);
                self.record(bytes, &plan, None, about);
                Decision::Respond(plan, bytes.len())
            }
            Parsed::Complete(request, head_bytes) if about.service == Service::Misdirected => {
                let (status, content) = (Status::BadRequest, content_of(&request));
                let plan = self.output.text(status, Extra::NeedsTls, content, Persist::Close);
                self.record(bytes, &plan, Some(&request), about);
                Decision::Respond(plan, head_bytes)
            }
            Parsed::Complete(request, head_bytes) => {
                let discard = match self.content(&request, about) {
                    Ok(discard) => discard,
                    Err(status) => {
                        let content = content_of(&request);
                        let plan = self.output.text(status, Extra::None, content, Persist::Close);
                        self.record(bytes, &plan, Some(&request), about);
                        return Decision::Respond(plan, head_bytes);
                    }
                };
                // RFC 9112 section 9.3: if the content is not read, the position of the next
                // request is unknown.
                let unread = request.content != Framing::None && about.content != Arrived::Whole;
                if let Some(discard) = discard {
                    let expects_continue = request.expects_continue;
                    return Decision::Content { head_bytes, discard, expects_continue };
                }
                let persist = if !request.keep_alive || unread || about.last {
                    Persist::Close
                } else if request.minor == 0 {
                    Persist::KeepAliveSaid
                } else {
                    Persist::KeepAlive
                };
                match self.respond(now, &request, persist, about) {
                    Ok(plan) => {
                        let parting = !request.keep_alive && !unread;
                        let plan = Plan { parting, ..plan };
                        self.record(bytes, &plan, Some(&request), about);
                        Decision::Respond(plan, head_bytes)
                    }
                    Err(Wait::Open) => Decision::Open,
                    Err(Wait::Join) => Decision::Join,
                }
            }
        }
    }

    /// Returns a reader for the content of a request, if it must be read before the response;
    /// `None` if there is no content, or the connection ends with the response.
    ///
    /// # Errors
    /// The status with which the content is refused.
    fn content(
        &self,
        request: &Request<'_, '_>,
        about: Circumstances,
    ) -> Result<Option<Discard>, Status> {
        match about.content {
            Arrived::Whole => return Ok(None),
            Arrived::Refused(status) => return Err(status),
            Arrived::Unread => {}
        }
        let lasts = request.keep_alive && !about.last && !request.unknown_expectation;
        if request.content == Framing::None || !lasts {
            return Ok(None);
        }
        match Discard::new(request.content, self.content_bytes_max) {
            Ok(discard) => Ok(Some(discard)),
            Err(status) if matches!(request.method, Method::Get | Method::Head) => Err(status),
            // The method will be refused, whatever the content.
            Err(_) => Ok(None),
        }
    }

    /// Registers the open that [`Decision::Open`] asked for.
    pub(crate) fn begin_open(&mut self, file: FileId, waiter: Waiter) {
        self.files.begin(&self.path, file, waiter, self.optional);
    }

    /// Adds a waiter to the open that [`Decision::Join`] named.
    pub(crate) fn join_open(&mut self, waiter: Waiter) {
        self.files.join(&self.path, waiter, self.optional);
    }

    /// Handles the end of an open.
    pub(crate) fn file_opened(
        &mut self,
        now: Instant,
        file: FileId,
        result: Result<FileStat, FileFault>,
    ) -> Opened {
        self.output.advance(now);
        self.files.opened(now, self.output.clock().unix_s(), file, result)
    }

    /// Handles the failure of a file that was being sent.
    pub(crate) fn file_failed(
        &mut self,
        now: Instant,
        remote: Option<IpAddr>,
        file: Option<FileId>,
        fault: FileFault,
    ) {
        self.output.advance(now);
        if let Some(file) = file {
            self.files.invalidate(file);
        }
        if self.log.enabled() {
            let clock = self.output.clock().log();
            // One expression: before Rust 1.89 the arguments do not outlive it.
            let added =
                self.log.remark(clock, remote, format_args!("reset in mid-response: {fault}"));
            self.counters.http_log_dropped += u64::from(!added);
        }
    }

    /// Writes a response that is not to a complete request: 408, or 503 for a disk that does not
    /// answer.
    pub(crate) fn give_up(&mut self, now: Instant, status: Status, remote: Option<IpAddr>) -> Plan {
        self.output.advance(now);
        self.output.secure = false;
        let extra =
            if status == Status::ServiceUnavailable { Extra::RetryAfter } else { Extra::None };
        let plan = self.output.text(status, extra, Content::Sent, Persist::Close);
        let about = Circumstances { remote, ..Circumstances::default() };
        self.record(b"", &plan, None, about);
        plan
    }

    fn respond(
        &mut self,
        now: Instant,
        request: &Request<'_, '_>,
        persist: Persist,
        about: Circumstances,
    ) -> Result<Plan, Wait> {
        let Circumstances { opened, since, .. } = about;
        let content = content_of(request);
        let output = &mut self.output;
        let mut text = |status, extra| output.text(status, extra, content, persist);
        if let Service::Redirect(port) = about.service {
            return Ok(match secure_target(request, port) {
                Some(extra) => text(redirect_status(request.method), extra),
                None => text(Status::BadRequest, Extra::None),
            });
        }
        match request.method {
            Method::Get | Method::Head => {}
            Method::NotAllowed => return Ok(text(Status::MethodNotAllowed, Extra::Allow)),
            // RFC 9110 section 9.1.
            Method::Unknown => return Ok(text(Status::NotImplemented, Extra::None)),
        }
        if request.unknown_expectation {
            // RFC 9110 section 10.1.1.
            return Ok(text(Status::ExpectationFailed, Extra::None));
        }
        if let Some(Err(fault)) = opened {
            let (status, extra) = fault_status(fault);
            return Ok(text(status, extra));
        }
        let (path, asked) = match locate(request.target, &self.index, &mut self.path) {
            Ok(located) => located,
            Err(error) => return Ok(text(target_status(error), Extra::None)),
        };
        let now = since.unwrap_or(now);
        let is_file = match self.files.lookup(now, path.unwrap_or(&self.path)) {
            Lookup::Ready(resource) => matches!(resource, Resource::File(_)),
            unready => {
                self.counters.http_file_cache_misses += u64::from(opened.is_none());
                let joins = matches!(unready, Lookup::Opening);
                if let Some(path) = path {
                    self.path.clear();
                    self.path.extend_from_slice(path);
                }
                self.optional = false;
                return Err(if joins { Wait::Join } else { Wait::Open });
            }
        };
        let coding = if is_file { self.choose(now, path, request)? } else { None };
        self.counters.http_file_cache_hits += u64::from(opened.is_none());
        self.counters.http_precompressed += u64::from(coding.is_some());
        let serving = Serving { path, asked, coding, content, persist };
        Ok(self.send_found(now, request, serving))
    }

    /// Chooses the coding of the response: the best one that the client accepts and for which there
    /// is a precompressed file.
    fn choose(
        &mut self,
        now: Instant,
        path: Option<&[u8]>,
        request: &Request<'_, '_>,
    ) -> Result<Option<Coding>, Wait> {
        if !self.precompressed || !request.has(Field::AcceptEncoding) {
            return Ok(None);
        }
        let codings = coding::preferred(request.values(Field::AcceptEncoding));
        for coding in codings.into_iter().flatten() {
            self.coded_path.clear();
            self.coded_path.extend_from_slice(path.unwrap_or(&self.path));
            self.coded_path.extend_from_slice(coding.suffix().as_bytes());
            let wait = match self.files.lookup(now, &self.coded_path) {
                Lookup::Ready(Resource::File(_)) => return Ok(Some(coding)),
                Lookup::Ready(_) => continue,
                Lookup::Opening => Wait::Join,
                Lookup::Unknown => Wait::Open,
            };
            core::mem::swap(&mut self.path, &mut self.coded_path);
            self.optional = true;
            return Err(wait);
        }
        Ok(None)
    }

    /// Writes the response from the entries of the cache that were found.
    fn send_found(
        &mut self,
        now: Instant,
        request: &Request<'_, '_>,
        serving: Serving<'_>,
    ) -> Plan {
        let Serving { path, asked, coding, content, persist } = serving;
        let path = path.unwrap_or(&self.path);
        let found = match coding {
            Some(_) => self.files.lookup(now, &self.coded_path),
            None => self.files.lookup(now, path),
        };
        let (output, ranges) = (&mut self.output, &mut self.ranges);
        let mut text = |status, extra| output.text(status, extra, content, persist);
        match (found, asked) {
            (Lookup::Ready(Resource::File(file)), _) => {
                let rule = self.cache_control.iter().find(|rule| rule.fits(path));
                let variant = Variant {
                    coded: coding.map(|coding| (coding, path)),
                    varies: self.precompressed,
                    cache_control: rule.map(|rule| &*rule.value),
                };
                let ranges_max = self.ranges_max;
                let sending = Sending { output, ranges, ranges_max, variant, content, persist };
                sending.file(request, file)
            }
            (Lookup::Ready(Resource::Directory), Asked::File { query }) => {
                text(Status::MovedPermanently, Extra::Directory { path, query })
            }
            (Lookup::Ready(Resource::Absent(fault)), _) => {
                let (status, extra) = fault_status(*fault);
                text(status, extra)
            }
            // An index file that is itself a directory; everything else was in the cache a moment
            // ago.
            _ => text(Status::NotFound, Extra::None),
        }
    }

    /// Counts a response and logs it.
    fn record(
        &mut self,
        bytes: &[u8],
        plan: &Plan,
        request: Option<&Request<'_, '_>>,
        about: Circumstances,
    ) {
        self.counters.count_status(plan.status.code());
        if !self.log.enabled() {
            return;
        }
        let line = bytes.split(|&b| b == b'\n').next().unwrap_or_default();
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let version = about.http3.then(|| line.strip_suffix(b"1.1")).flatten();
        let line = version.map_or(Cow::Borrowed(line), |line| Cow::Owned([line, b"3"].concat()));
        let field = |field| request.and_then(|r| r.values(field).next());
        let record = Record {
            remote: about.remote,
            request: &line,
            status: plan.status.code(),
            body_bytes: plan.body_bytes,
            referer: field(Field::Referer),
            user_agent: field(Field::UserAgent),
        };
        let added = self.log.add(self.output.clock().log(), &record);
        self.counters.http_log_dropped += u64::from(!added);
    }
}

fn content_of(request: &Request<'_, '_>) -> Content {
    if request.method == Method::Head { Content::HeadOnly } else { Content::Sent }
}

/// The properties of a request for a file or directory in the cache.
#[derive(Clone, Copy)]
struct Serving<'b> {
    /// Path within the target; `None` if it is in [`Responder::path`].
    path: Option<&'b [u8]>,
    asked: Asked<'b>,
    coding: Option<Coding>,
    content: Content,
    persist: Persist,
}

/// The parameters of a response from an open file.
struct Sending<'a> {
    output: &'a mut Output,
    ranges: &'a mut Vec<ByteRange>,
    ranges_max: usize,
    variant: Variant<'a>,
    content: Content,
    persist: Persist,
}

impl Sending<'_> {
    fn file(self, request: &Request<'_, '_>, file: &OpenFile) -> Plan {
        let now_s = self.output.clock().unix_s();
        match evaluate(request, &file.validators, now_s) {
            Verdict::NotModified => self.output.not_modified(file, self.variant, self.persist),
            Verdict::PreconditionFailed => {
                let status = Status::PreconditionFailed;
                self.output.text(status, Extra::None, self.content, self.persist)
            }
            Verdict::Proceed { range: false } => {
                self.output.whole(file, self.variant, self.content, self.persist)
            }
            Verdict::Proceed { range: true } => self.part(request, file),
        }
    }

    fn part(self, request: &Request<'_, '_>, file: &OpenFile) -> Plan {
        // Several Range fields are invalid, and so ignored.
        let selection = request.single(Field::Range).map_or(Selection::Whole, |value| {
            select(value, file.size, self.ranges_max, self.ranges)
        });
        match selection {
            Selection::Whole => self.output.whole(file, self.variant, self.content, self.persist),
            Selection::Ranges => self.output.ranges(file, self.variant, self.ranges, self.persist),
            Selection::Unsatisfiable => {
                let extra = Extra::Size(file.size);
                self.output.text(Status::RangeNotSatisfiable, extra, self.content, self.persist)
            }
        }
    }
}

/// Kind of a target: a file, or a directory and therefore its index file.
#[derive(Clone, Copy, Debug)]
enum Asked<'b> {
    File { query: &'b [u8] },
    Directory,
}

/// Returns the path of the file that a target names: within the target, or `None` if it is in
/// `scratch`.
fn locate<'b>(
    target: &'b [u8],
    index: &str,
    scratch: &mut Vec<u8>,
) -> Result<(Option<&'b [u8]>, Asked<'b>), TargetError> {
    if let Some(path) = plain(target) {
        return Ok((Some(path), Asked::File { query: b"" }));
    }
    let target = split(target)?;
    if normalise(target.path, scratch)? {
        scratch.extend_from_slice(index.as_bytes());
        return Ok((None, Asked::Directory));
    }
    Ok((None, Asked::File { query: target.query }))
}

/// Returns the Location of the same resource by HTTPS; `None` if the request names no host.
fn secure_target<'b>(request: &Request<'_, 'b>, port: u16) -> Option<Extra<'b>> {
    let target = split(request.target).ok()?;
    let host = authority(request.target).or_else(|| {
        let host = request.fields().iter().find(|f| f.name.eq_ignore_ascii_case("host"));
        host.map(|field| field.value)
    });
    let host = host.map(host_of).filter(|host| !host.is_empty())?;
    Some(Extra::Https { host, port, path: target.path, query: target.query })
}

/// Returns the status of a redirect. After 301 a client may change another method to GET, after 308
/// it may not (RFC 9110 section 15.4.9).
const fn redirect_status(method: Method) -> Status {
    match method {
        Method::Get | Method::Head => Status::MovedPermanently,
        Method::NotAllowed | Method::Unknown => Status::PermanentRedirect,
    }
}

const fn target_status(error: TargetError) -> Status {
    match error {
        TargetError::Malformed => Status::BadRequest,
        TargetError::Climbs => Status::Forbidden,
    }
}

const fn fault_status(fault: FileFault) -> (Status, Extra<'static>) {
    match fault {
        FileFault::NotFound | FileFault::BadPath => (Status::NotFound, Extra::None),
        FileFault::Denied => (Status::Forbidden, Extra::None),
        FileFault::Refused(_) => (Status::ServiceUnavailable, Extra::RetryAfter),
        _ => (Status::InternalServerError, Extra::None),
    }
}

#[cfg(test)]
mod tests;
