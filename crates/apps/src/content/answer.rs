//! From the bytes of a request to its response: the decisions of HTTP, without a socket.
//!
//! [`super::connection`] calls [`Responder::decide`] with the bytes at the front of a connection
//! and carries the decision out. A request for a file that is not open is decided again from the
//! same bytes once the file is open, so no state of a request is stored.

use core::net::IpAddr;
use std::borrow::Cow;

use abi::decompress::CompressionFormat;
use abi::{FileFault, FileId, FileStat};
use base::Instant;

use super::ContentServerConfig;
use super::coding::{self, ContentCoding, upload_format};
use super::conditional::{PreconditionResult, evaluate};
use super::counters::ContentCounters;
use super::discard::ContentDiscard;
use super::file_cache::{CachedResource, FileCache, FileLookup, FileOpenOutcome, OpenWaiter};
use super::log::{AccessLogQueue, AccessLogRecord};
use super::open_file::OpenFile;
use super::operator_fields::CacheControl;
use super::range::{ByteRange, RangeSelection, select_ranges};
use super::request::{
    ContentFraming, HttpRequest, KnownField, Method, ParsedRequest, RequestLimits, list, parse,
    slots,
};
use super::request_target::{
    TargetError, authority, host_of, normalize_path, plain_path, split_target,
};
use super::response::{
    ConnectionPersistence, ExtraField, ResponseContent, ResponseVariant, ResponseWriter,
    WrittenResponse,
};
use super::sockets::ContentSockets;
use super::status::HttpStatus;
use super::upload::{UploadId, UploadOrder, UploadRefusal, Uploads, upload_path};
use crate::pattern_inspection::{ConnectionRules, PatternInspection};

/// Action of a connection on the bytes at its front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestDecision {
    /// Wait for more bytes.
    Incomplete,
    /// Read the content after the head, which has `head_bytes` bytes, and decide again.
    Content { head_bytes: usize, discard: ContentDiscard, expects_continue: bool },
    /// Begin the upload to [`Responder::path`] of the content after the head, and decide again when
    /// it has ended.
    Upload { head_bytes: usize, framing: ContentFraming, put: PutFields, expects_continue: bool },
    /// Send the response in [`Responder::output`], and remove this number of bytes from the front.
    Respond(WrittenResponse, usize),
    /// Open the file at [`Responder::path`].
    Open,
    /// Wait for the open of that path, which is in progress.
    Join,
}

/// Properties of an upload that follow from the fields of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PutFields {
    /// A file of that name may be replaced.
    pub(crate) replace: bool,
    /// Format of the content, if it has a content coding.
    pub(crate) coding: Option<CompressionFormat>,
}

/// The service of a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ListenerService {
    /// Files over plain HTTP.
    #[default]
    Plain,
    /// Files, over TLS.
    Secure,
    /// Redirects to HTTPS at this port.
    Redirect(u16),
    /// 400: the client does not speak TLS at a port for TLS.
    NotTls,
}

/// State of the content of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RequestContentState {
    /// None of it was read.
    #[default]
    Unread,
    /// All of it was read and discarded.
    Discarded,
    /// Malformed or too long: the request is refused with this status.
    Refused(HttpStatus),
    /// It is the content of a file now, which has replaced another or not.
    Stored { replaced: bool },
    /// It was not stored: the request is refused.
    NotStored(UploadRefusal),
}

/// Facts about a request besides its bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestEnv {
    /// Address of the client, for the log.
    pub(crate) remote: Option<IpAddr>,
    /// Result of the open, if the request waited for one.
    pub(crate) opened: Option<Result<(), FileFault>>,
    /// Time at which the request began to wait; an entry of the file cache that was valid then is
    /// valid for it.
    pub(crate) since: Option<Instant>,
    /// Service of the connection.
    pub(crate) service: ListenerService,
    /// State of the request's content.
    pub(crate) content: RequestContentState,
    /// The connection has reached its maximum of requests: this is the last.
    pub(crate) last: bool,
    /// The request came over HTTP/3, and its head was translated to HTTP/1.1.
    pub(crate) http3: bool,
}

/// Everything that decisions and responses need, shared by all connections.
pub(crate) struct Responder {
    pub(crate) files: FileCache,
    pub(crate) output: ResponseWriter,
    pub(crate) log: AccessLogQueue,
    pub(crate) counters: ContentCounters,
    pub(crate) inspection: PatternInspection,
    /// Uploads, if they are accepted.
    pub(crate) uploads: Option<Uploads>,
    limits: RequestLimits,
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

/// Cause for which a request cannot be answered yet.
enum FileWait {
    Open,
    Join,
}

impl Responder {
    pub(crate) fn new(config: &ContentServerConfig) -> Self {
        let mut seeds = base::Prng::new(config.seed);
        let key = (seeds.next_u64(), seeds.next_u64());
        let alt_svc = config.http3.as_ref().map(|quic| quic.port);
        let (files_key, epoch) = (key, config.unix_epoch);
        let mut output = ResponseWriter::new(&config.server_name, alt_svc, epoch, seeds.next_u64());
        output.add_fields(&config.added_fields);
        output.set_pages(&config.error_pages);
        Self {
            files: FileCache::new(config.files_max, config.file_validity, files_key),
            output,
            log: AccessLogQueue::new(config.access_log),
            counters: ContentCounters::default(),
            inspection: PatternInspection::new(config.pattern_rules.clone()),
            uploads: config.uploads.clone().map(Uploads::new),
            limits: RequestLimits {
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

    /// Returns the path to open after [`RequestDecision::Open`], or to wait for after
    /// [`RequestDecision::Join`].
    pub(crate) fn path(&self) -> &[u8] {
        &self.path
    }

    /// Decides about the bytes at the front of a connection. Reads one request of them at most.
    pub(crate) fn decide(
        &mut self,
        now: Instant,
        bytes: &[u8],
        about: RequestEnv,
    ) -> RequestDecision {
        self.output.advance(now);
        self.output.secure = about.http3 || about.service == ListenerService::Secure;
        let mut slots = slots();
        match parse(bytes, &mut slots, self.limits) {
            ParsedRequest::Incomplete => RequestDecision::Incomplete,
            ParsedRequest::Refused { status, head } => {
                let content = if head { ResponseContent::HeadOnly } else { ResponseContent::Full };
                let plan = self.write_final_error(status, ExtraField::None, content);
                self.record(bytes, &plan, None, about);
                RequestDecision::Respond(plan, bytes.len())
            }
            ParsedRequest::Complete(request, head_bytes)
                if about.service == ListenerService::NotTls =>
            {
                let (status, content) = (HttpStatus::BadRequest, content_of(&request));
                let plan = self.write_final_error(status, ExtraField::NeedsTls, content);
                self.record(bytes, &plan, Some(&request), about);
                RequestDecision::Respond(plan, head_bytes)
            }
            ParsedRequest::Complete(request, head_bytes) => {
                if let Some(decision) = self.decide_upload(bytes, &request, head_bytes, about) {
                    return decision;
                }
                let discard = match self.content_discard(&request, about) {
                    Ok(discard) => discard,
                    Err(status) => {
                        let content = content_of(&request);
                        let plan = self.write_final_error(status, ExtraField::None, content);
                        self.record(bytes, &plan, Some(&request), about);
                        return RequestDecision::Respond(plan, head_bytes);
                    }
                };
                // RFC 9112 section 9.3: if the content is not read, the position of the next
                // request is unknown.
                let unread = request.content != ContentFraming::None
                    && about.content != RequestContentState::Discarded;
                if let Some(discard) = discard {
                    let expects_continue = request.expects_continue;
                    return RequestDecision::Content { head_bytes, discard, expects_continue };
                }
                let persist = persistence(&request, unread || about.last);
                match self.respond(now, &request, persist, about) {
                    Ok(plan) => {
                        let parting = !request.keep_alive && !unread;
                        let plan = WrittenResponse { close_after_reply: parting, ..plan };
                        self.record(bytes, &plan, Some(&request), about);
                        RequestDecision::Respond(plan, head_bytes)
                    }
                    Err(FileWait::Open) => RequestDecision::Open,
                    Err(FileWait::Join) => RequestDecision::Join,
                }
            }
        }
    }

    /// Decides about a PUT, if uploads are accepted: before its content is read, and when it was
    /// stored or not. A redirect, and an unknown expectation, go before.
    fn decide_upload(
        &mut self,
        bytes: &[u8],
        request: &HttpRequest<'_, '_>,
        head_bytes: usize,
        about: RequestEnv,
    ) -> Option<RequestDecision> {
        // A request that follows on the connection gets the new file.
        self.expire_published();
        let redirects = matches!(about.service, ListenerService::Redirect(_));
        if request.method != Method::Put || redirects || request.unknown_expectation {
            return None;
        }
        let uploads = self.uploads.as_mut()?;
        let plan = match about.content {
            RequestContentState::Unread => {
                let path = upload_path(request.target, &mut self.path);
                match path.and_then(|()| check_upload(request)) {
                    Ok(put) => {
                        let (framing, expects) = (request.content, request.expects_continue);
                        return Some(RequestDecision::Upload {
                            head_bytes,
                            framing,
                            put,
                            expects_continue: expects,
                        });
                    }
                    Err(refusal) => {
                        uploads.count_refusal(refusal);
                        self.write_upload_refusal(refusal)
                    }
                }
            }
            RequestContentState::Stored { replaced } => {
                let persist = persistence(request, about.last);
                let plan = match replaced {
                    true => self.output.write_no_content(persist),
                    false => {
                        let (status, content) = (HttpStatus::Created, ResponseContent::Full);
                        self.output.write_status_text(status, ExtraField::None, content, persist)
                    }
                };
                WrittenResponse { close_after_reply: !request.keep_alive, ..plan }
            }
            RequestContentState::NotStored(refusal) => self.write_upload_refusal(refusal),
            RequestContentState::Discarded | RequestContentState::Refused(_) => return None,
        };
        self.record(bytes, &plan, Some(request), about);
        Some(RequestDecision::Respond(plan, head_bytes))
    }

    /// Writes the response to an upload that was refused. The connection is closed, because content
    /// may be unread.
    fn write_upload_refusal(&mut self, refusal: UploadRefusal) -> WrittenResponse {
        let reason = refusal.reason();
        let extra = match (refusal, &self.uploads) {
            (UploadRefusal::Encoded, Some(uploads)) => {
                ExtraField::Codings { reason, accepted: uploads.codings() }
            }
            _ => ExtraField::Reason(reason),
        };
        self.write_final_error(refusal.status(), extra, ResponseContent::Full)
    }

    /// Begins the upload that [`RequestDecision::Upload`] asked for.
    ///
    /// # Errors
    /// The refusal.
    pub(crate) fn begin_upload<S: ContentSockets>(
        &mut self,
        host: &mut S,
        owner: OpenWaiter,
        order: UploadOrder,
        rules: ConnectionRules,
    ) -> Result<UploadId, UploadRefusal> {
        let uploads = self.uploads.as_mut().ok_or(UploadRefusal::Denied)?;
        uploads.begin(host, owner, &self.path, order, rules)
    }

    /// Writes an error response after which the connection is closed.
    fn write_final_error(
        &mut self,
        status: HttpStatus,
        extra: ExtraField<'_>,
        content: ResponseContent,
    ) -> WrittenResponse {
        self.output.write_status_text(status, extra, content, ConnectionPersistence::Close)
    }

    /// Returns a reader for the content of a request, if it must be read before the response;
    /// `None` if there is no content, or the connection ends with the response.
    ///
    /// # Errors
    /// The status with which the content is refused.
    fn content_discard(
        &self,
        request: &HttpRequest<'_, '_>,
        about: RequestEnv,
    ) -> Result<Option<ContentDiscard>, HttpStatus> {
        match about.content {
            RequestContentState::Discarded => return Ok(None),
            RequestContentState::Refused(status) => return Err(status),
            // Both are for uploads, which are decided before.
            RequestContentState::Stored { .. } | RequestContentState::NotStored(_) => {
                return Err(HttpStatus::InternalServerError);
            }
            RequestContentState::Unread => {}
        }
        let lasts = request.keep_alive && !about.last && !request.unknown_expectation;
        if request.content == ContentFraming::None || !lasts {
            return Ok(None);
        }
        match ContentDiscard::new(request.content, self.content_bytes_max) {
            Ok(discard) => Ok(Some(discard)),
            Err(status) if matches!(request.method, Method::Get | Method::Head) => Err(status),
            // The method will be refused, whatever the content.
            Err(_) => Ok(None),
        }
    }

    /// Registers the open that [`RequestDecision::Open`] asked for.
    pub(crate) fn begin_open(&mut self, file: FileId, waiter: OpenWaiter) {
        self.files.begin(&self.path, file, waiter, self.optional);
    }

    /// Adds a waiter to the open that [`RequestDecision::Join`] named.
    pub(crate) fn join_open(&mut self, waiter: OpenWaiter) {
        self.files.join(&self.path, waiter, self.optional);
    }

    /// Makes requests open the files again that uploads have replaced.
    pub(crate) fn expire_published(&mut self) {
        while let Some(path) = self.uploads.as_mut().and_then(Uploads::poll_published) {
            self.files.expire(&path);
        }
    }

    /// Returns the next file to close.
    pub(crate) fn poll_close(&mut self) -> Option<FileId> {
        let uploaded = self.uploads.as_mut().and_then(Uploads::poll_close);
        uploaded.or_else(|| self.files.poll_close())
    }

    /// Handles the end of an open.
    pub(crate) fn file_opened(
        &mut self,
        now: Instant,
        file: FileId,
        result: Result<FileStat, FileFault>,
    ) -> FileOpenOutcome {
        self.output.advance(now);
        self.files.handle_opened(now, self.output.clock().unix_s(), file, result)
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
    pub(crate) fn error_reply(
        &mut self,
        now: Instant,
        status: HttpStatus,
        remote: Option<IpAddr>,
    ) -> WrittenResponse {
        self.output.advance(now);
        self.output.secure = false;
        let extra = if status == HttpStatus::ServiceUnavailable {
            ExtraField::RetryAfter
        } else {
            ExtraField::None
        };
        let plan = self.output.write_status_text(
            status,
            extra,
            ResponseContent::Full,
            ConnectionPersistence::Close,
        );
        let about = RequestEnv { remote, ..RequestEnv::default() };
        self.record(b"", &plan, None, about);
        plan
    }

    fn respond(
        &mut self,
        now: Instant,
        request: &HttpRequest<'_, '_>,
        persist: ConnectionPersistence,
        about: RequestEnv,
    ) -> Result<WrittenResponse, FileWait> {
        let RequestEnv { opened, since, .. } = about;
        let content = content_of(request);
        let output = &mut self.output;
        let mut text = |status, extra| output.write_status_text(status, extra, content, persist);
        if let ListenerService::Redirect(port) = about.service {
            return Ok(match secure_target(request, port) {
                Some(extra) => text(redirect_status(request.method), extra),
                None => text(HttpStatus::BadRequest, ExtraField::None),
            });
        }
        match request.method {
            Method::Get | Method::Head => {}
            Method::Put | Method::NotAllowed => {
                let extra = ExtraField::Allow { put: self.uploads.is_some() };
                return Ok(text(HttpStatus::MethodNotAllowed, extra));
            }
            // RFC 9110 section 9.1.
            Method::Unknown => return Ok(text(HttpStatus::NotImplemented, ExtraField::None)),
        }
        if request.unknown_expectation {
            // RFC 9110 section 10.1.1.
            return Ok(text(HttpStatus::ExpectationFailed, ExtraField::None));
        }
        if let Some(Err(fault)) = opened {
            let (status, extra) = fault_status(fault);
            return Ok(text(status, extra));
        }
        let (path, asked) = match locate(request.target, &self.index, &mut self.path) {
            Ok(located) => located,
            Err(error) => return Ok(text(target_status(error), ExtraField::None)),
        };
        let now = since.unwrap_or(now);
        let is_file = match self.files.lookup(now, path.unwrap_or(&self.path)) {
            FileLookup::Ready(resource) => matches!(resource, CachedResource::File(_)),
            unready => {
                self.counters.http_file_cache_misses += u64::from(opened.is_none());
                let joins = matches!(unready, FileLookup::Opening);
                if let Some(path) = path {
                    self.path.clear();
                    self.path.extend_from_slice(path);
                }
                self.optional = false;
                return Err(if joins { FileWait::Join } else { FileWait::Open });
            }
        };
        let coding = if is_file { self.choose_coding(now, path, request)? } else { None };
        self.counters.http_file_cache_hits += u64::from(opened.is_none());
        self.counters.http_precompressed += u64::from(coding.is_some());
        let serving = ServedRequest { path, requested: asked, coding, content, persist };
        Ok(self.respond_from_cache(now, request, serving))
    }

    /// Chooses the coding of the response: the best one that the client accepts and for which there
    /// is a precompressed file.
    fn choose_coding(
        &mut self,
        now: Instant,
        path: Option<&[u8]>,
        request: &HttpRequest<'_, '_>,
    ) -> Result<Option<ContentCoding>, FileWait> {
        if !self.precompressed || !request.has(KnownField::AcceptEncoding) {
            return Ok(None);
        }
        let codings = coding::preferred(request.values(KnownField::AcceptEncoding));
        for coding in codings.into_iter().flatten() {
            self.coded_path.clear();
            self.coded_path.extend_from_slice(path.unwrap_or(&self.path));
            self.coded_path.extend_from_slice(coding.suffix().as_bytes());
            let wait = match self.files.lookup(now, &self.coded_path) {
                FileLookup::Ready(CachedResource::File(_)) => return Ok(Some(coding)),
                FileLookup::Ready(_) => continue,
                FileLookup::Opening => FileWait::Join,
                FileLookup::Unknown => FileWait::Open,
            };
            core::mem::swap(&mut self.path, &mut self.coded_path);
            self.optional = true;
            return Err(wait);
        }
        Ok(None)
    }

    /// Writes the response from the entries of the cache that were found.
    fn respond_from_cache(
        &mut self,
        now: Instant,
        request: &HttpRequest<'_, '_>,
        serving: ServedRequest<'_>,
    ) -> WrittenResponse {
        let ServedRequest { path, requested: asked, coding, content, persist } = serving;
        let path = path.unwrap_or(&self.path);
        let found = match coding {
            Some(_) => self.files.lookup(now, &self.coded_path),
            None => self.files.lookup(now, path),
        };
        let (output, ranges) = (&mut self.output, &mut self.ranges);
        let mut text = |status, extra| output.write_status_text(status, extra, content, persist);
        match (found, asked) {
            (FileLookup::Ready(CachedResource::File(file)), _) => {
                let rule = self.cache_control.iter().find(|rule| rule.matches(path));
                let variant = ResponseVariant {
                    coded: coding.map(|coding| (coding, path)),
                    varies: self.precompressed,
                    cache_control: rule.map(|rule| &*rule.value),
                };
                let ranges_max = self.ranges_max;
                let sending =
                    FileResponse { output, ranges, ranges_max, variant, content, persist };
                sending.file(request, file)
            }
            (FileLookup::Ready(CachedResource::Directory), RequestedResource::File { query }) => {
                text(HttpStatus::MovedPermanently, ExtraField::Directory { path, query })
            }
            (FileLookup::Ready(CachedResource::Absent(fault)), _) => {
                let (status, extra) = fault_status(*fault);
                text(status, extra)
            }
            // An index file that is itself a directory; everything else was in the cache a moment
            // ago.
            _ => text(HttpStatus::NotFound, ExtraField::None),
        }
    }

    /// Counts a response and logs it.
    fn record(
        &mut self,
        bytes: &[u8],
        plan: &WrittenResponse,
        request: Option<&HttpRequest<'_, '_>>,
        about: RequestEnv,
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
        let record = AccessLogRecord {
            remote: about.remote,
            request: &line,
            status: plan.status.code(),
            body_bytes: plan.body_bytes,
            referer: field(KnownField::Referer),
            user_agent: field(KnownField::UserAgent),
        };
        let added = self.log.add(self.output.clock().log(), &record);
        self.counters.http_log_dropped += u64::from(!added);
    }
}

fn content_of(request: &HttpRequest<'_, '_>) -> ResponseContent {
    if request.method == Method::Head { ResponseContent::HeadOnly } else { ResponseContent::Full }
}

/// The properties of a request for a file or directory in the cache.
#[derive(Clone, Copy)]
struct ServedRequest<'b> {
    /// Path within the target; `None` if it is in [`Responder::path`].
    path: Option<&'b [u8]>,
    requested: RequestedResource<'b>,
    coding: Option<ContentCoding>,
    content: ResponseContent,
    persist: ConnectionPersistence,
}

/// The parameters of a response from an open file.
struct FileResponse<'a> {
    output: &'a mut ResponseWriter,
    ranges: &'a mut Vec<ByteRange>,
    ranges_max: usize,
    variant: ResponseVariant<'a>,
    content: ResponseContent,
    persist: ConnectionPersistence,
}

impl FileResponse<'_> {
    fn file(self, request: &HttpRequest<'_, '_>, file: &OpenFile) -> WrittenResponse {
        let now_s = self.output.clock().unix_s();
        match evaluate(request, &file.validators, now_s) {
            PreconditionResult::NotModified => {
                self.output.write_not_modified(file, self.variant, self.persist)
            }
            PreconditionResult::PreconditionFailed => {
                let status = HttpStatus::PreconditionFailed;
                self.output.write_status_text(status, ExtraField::None, self.content, self.persist)
            }
            PreconditionResult::Proceed { range: false } => {
                self.output.write_whole_file(file, self.variant, self.content, self.persist)
            }
            PreconditionResult::Proceed { range: true } => self.part(request, file),
        }
    }

    fn part(self, request: &HttpRequest<'_, '_>, file: &OpenFile) -> WrittenResponse {
        // Several Range fields are invalid, and so ignored.
        let selection = request.single(KnownField::Range).map_or(RangeSelection::Whole, |value| {
            select_ranges(value, file.size, self.ranges_max, self.ranges)
        });
        match selection {
            RangeSelection::Whole => {
                self.output.write_whole_file(file, self.variant, self.content, self.persist)
            }
            RangeSelection::Ranges => {
                self.output.write_ranges(file, self.variant, self.ranges, self.persist)
            }
            RangeSelection::Unsatisfiable => {
                let extra = ExtraField::Size(file.size);
                self.output.write_status_text(
                    HttpStatus::RangeNotSatisfiable,
                    extra,
                    self.content,
                    self.persist,
                )
            }
        }
    }
}

/// Kind of a target: a file, or a directory and therefore its index file.
#[derive(Clone, Copy, Debug)]
enum RequestedResource<'b> {
    File { query: &'b [u8] },
    Directory,
}

/// Returns the persistence of the connection after the response to a request; `ends` if it ends for
/// a reason other than the client's wish.
const fn persistence(request: &HttpRequest<'_, '_>, ends: bool) -> ConnectionPersistence {
    if !request.keep_alive || ends {
        ConnectionPersistence::Close
    } else if request.minor == 0 {
        ConnectionPersistence::KeepAliveExplicit
    } else {
        ConnectionPersistence::KeepAlive
    }
}

/// Checks the fields of a PUT.
fn check_upload(request: &HttpRequest<'_, '_>) -> Result<PutFields, UploadRefusal> {
    // RFC 9110 section 14.5.
    if request.has(KnownField::ContentRange) {
        return Err(UploadRefusal::Partial);
    }
    let codings = request.values(KnownField::ContentEncoding).flat_map(list);
    let coding = upload_format(codings).ok_or(UploadRefusal::Encoded)?;
    // RFC 9110 section 13.2.1: a condition must not be ignored.
    if request.has(KnownField::IfMatch) || request.has(KnownField::IfUnmodifiedSince) {
        return Err(UploadRefusal::Condition);
    }
    match request.single(KnownField::IfNoneMatch) {
        Some(b"*") => Ok(PutFields { replace: false, coding }),
        None if !request.has(KnownField::IfNoneMatch) => Ok(PutFields { replace: true, coding }),
        _ => Err(UploadRefusal::Condition),
    }
}

/// Returns the path of the file that a target names: within the target, or `None` if it is in
/// `scratch`.
fn locate<'b>(
    target: &'b [u8],
    index: &str,
    scratch: &mut Vec<u8>,
) -> Result<(Option<&'b [u8]>, RequestedResource<'b>), TargetError> {
    if let Some(path) = plain_path(target) {
        return Ok((Some(path), RequestedResource::File { query: b"" }));
    }
    let target = split_target(target)?;
    if normalize_path(target.path, scratch)? {
        scratch.extend_from_slice(index.as_bytes());
        return Ok((None, RequestedResource::Directory));
    }
    Ok((None, RequestedResource::File { query: target.query }))
}

/// Returns the Location of the same resource by HTTPS; `None` if the request names no host.
fn secure_target<'b>(request: &HttpRequest<'_, 'b>, port: u16) -> Option<ExtraField<'b>> {
    let target = split_target(request.target).ok()?;
    let host = authority(request.target).or_else(|| {
        let host = request.fields().iter().find(|f| f.name.eq_ignore_ascii_case("host"));
        host.map(|field| field.value)
    });
    let host = host.map(host_of).filter(|host| !host.is_empty())?;
    Some(ExtraField::Https { host, port, path: target.path, query: target.query })
}

/// Returns the status of a redirect. After 301 a client may change another method to GET, after 308
/// it may not (RFC 9110 section 15.4.9).
const fn redirect_status(method: Method) -> HttpStatus {
    match method {
        Method::Get | Method::Head => HttpStatus::MovedPermanently,
        Method::Put | Method::NotAllowed | Method::Unknown => HttpStatus::PermanentRedirect,
    }
}

const fn target_status(error: TargetError) -> HttpStatus {
    match error {
        TargetError::Malformed => HttpStatus::BadRequest,
        TargetError::AboveRoot => HttpStatus::Forbidden,
    }
}

const fn fault_status(fault: FileFault) -> (HttpStatus, ExtraField<'static>) {
    match fault {
        FileFault::NotFound | FileFault::BadPath => (HttpStatus::NotFound, ExtraField::None),
        FileFault::Denied => (HttpStatus::Forbidden, ExtraField::None),
        FileFault::Refused(_) | FileFault::Unavailable => {
            (HttpStatus::ServiceUnavailable, ExtraField::RetryAfter)
        }
        _ => (HttpStatus::InternalServerError, ExtraField::None),
    }
}

#[cfg(test)]
mod tests;
