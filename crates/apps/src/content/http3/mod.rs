//! HTTP/3 (RFC 9114) for the content server, over crate `quic`.
//!
//! [`super::ContentServer`] forwards the host's notices. A request is translated to an HTTP/1.1
//! head ([`message`]) and decided by the same [`Responder`]. The pieces of the response are written
//! to its stream, files as extents. Each request stream has a buffer for an incomplete frame,
//! bounded by the maximum size of a head. Responses share their connection according to RFC 9218
//! ([`priority`]).
//!
//! Framing and QPACK are implemented here, because the `h3` crate consists of asynchronous traits
//! that need a runtime, and its bodies are buffers rather than extents of files. There is no
//! dynamic table and no push. The content of requests is compared with its declared length, and
//! stored (`upload`) or discarded.

pub mod client;
mod deadlines;
mod frame;
mod message;
mod priority;
mod qpack;
mod streams;
mod upload;

use core::net::SocketAddr;
use std::collections::BTreeMap;

use abi::{FileFault, Refusal};
use base::Instant;
use bytes::Bytes;
use host::{Application as _, Host, Notice};
use quic::{
    Dir, Priority, QuicEndpoint, QuicEvent, QuicHandle, StreamEvent, StreamId, StreamReadError,
};

use super::ContentServerConfig;
use super::answer::{RequestContentState, RequestDecision, RequestEnv, Responder};
use super::file_cache::OpenWaiter;
use super::response::{ResponsePiece, WrittenResponse};
use super::status::HttpStatus;
use crate::pattern_inspection::ConnectionRules;
use deadlines::{Http3Deadlines, Http3Timeouts};
use frame::Http3ErrorCode;
use streams::RequestStreamReader;
use upload::Http3Upload;

/// Maximum number of bytes per read of a stream.
const READ_BYTES: usize = 16 * 1024;

/// Type of a client's unidirectional stream (section 6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UniStreamType {
    Control,
    Encoder,
    Decoder,
}

/// A client's unidirectional stream.
#[derive(Debug, Default)]
struct ClientUniStream {
    kind: Option<UniStreamType>,
    bytes: Vec<u8>,
    /// Remaining bytes of an unknown frame that is skipped.
    skip: u64,
}

/// A request stream without a response yet.
#[derive(Debug)]
struct Http3Request {
    /// Time at which the stream was opened.
    since: Instant,
    message: RequestStreamReader,
    /// The request's head translated to HTTP/1.1, once it has arrived; empty if it was too long.
    head: Option<Vec<u8>>,
    /// The priority that the client wants for the response.
    priority: Option<Priority>,
    /// The request waits for its file.
    waits_for_file: bool,
    /// The client has finished or reset its direction of the stream.
    ended: bool,
    /// The upload of its content, while it is in progress.
    upload: Option<Http3Upload>,
    /// State of its content, if it is an upload.
    content: RequestContentState,
}

impl Http3Request {
    fn new(since: Instant) -> Self {
        Self {
            since,
            message: RequestStreamReader::default(),
            head: None,
            priority: None,
            waits_for_file: false,
            ended: false,
            upload: None,
            content: RequestContentState::Unread,
        }
    }

    /// Returns whether the request has arrived and can be answered.
    fn is_ready(&self) -> bool {
        self.head.is_some() && !self.message.lacks_content()
    }
}

#[derive(Debug, Default)]
struct Http3Connection {
    control: Option<StreamId>,
    settings: bool,
    incoming: BTreeMap<StreamId, ClientUniStream>,
    requests: BTreeMap<StreamId, Http3Request>,
    /// Answered requests whose content is still compared with its declared length.
    answered: BTreeMap<StreamId, RequestStreamReader>,
    /// Priorities from the client's control stream for requests whose head has not arrived.
    priorities: BTreeMap<StreamId, Priority>,
    /// New priorities of responses that have begun.
    reprioritized: Vec<(StreamId, Priority)>,
    /// Identifiers in the client's last GOAWAY and MAX_PUSH_ID.
    goaway_received: Option<u64>,
    max_push_id: Option<u64>,
    /// Number of request streams that the client may have open.
    streams_max: u32,
    served: u32,
    /// Identifier of the first request stream that the client has not opened.
    next_stream: u64,
    /// Identifier that GOAWAY carried: requests on this and higher streams are refused.
    goaway_sent: Option<u64>,
    /// Time at which progress was last seen, and the number of STREAM frames sent until then.
    last_progress: Instant,
    frames_sent: u64,
    /// Time of the next check of the connection's deadlines.
    check_at: Option<Instant>,
    /// Rules for the requests.
    rules: ConnectionRules,
}

impl Http3Connection {
    /// Ends an answered request. The rest of its content is still checked, unless it is too long or
    /// was to be stored. Returns whether the client should stop sending it.
    fn end_request(&mut self, stream: StreamId) -> bool {
        let Some(request) = self.requests.remove(&stream) else { return false };
        let stops = !request.ended && request.message.lacks_stored_content();
        if !request.ended && !request.message.is_too_long() && !stops {
            self.answered.insert(stream, request.message);
        }
        stops
    }
}

/// An error that ends a request or its connection.
enum Http3Fault {
    Stream(Http3ErrorCode),
    Connection(Http3ErrorCode),
    /// The request has a pattern that a rule denies.
    Denied,
}

/// HTTP/3 on one endpoint.
pub(crate) struct Http3 {
    endpoint: QuicEndpoint,
    connections: BTreeMap<QuicHandle, Http3Connection>,
    /// Requests that wait for a file, with the time since when, by the serial number of their
    /// [`OpenWaiter`].
    waiting: BTreeMap<u32, (QuicHandle, StreamId, Instant)>,
    /// Requests with an upload in progress, by the same numbers.
    uploading: BTreeMap<u32, (QuicHandle, StreamId)>,
    next_serial: u32,
    head_bytes_max: usize,
    requests_max: u32,
    times: Http3Timeouts,
    deadlines: Http3Deadlines,
}

/// The parts of the server and the host that HTTP/3 uses.
pub(crate) struct Http3Env<'a> {
    pub(crate) now: Instant,
    pub(crate) host: &'a mut Host,
    pub(crate) responder: &'a mut Responder,
}

impl Http3 {
    pub(crate) fn new(endpoint: QuicEndpoint, config: &ContentServerConfig) -> Self {
        Self {
            endpoint,
            connections: BTreeMap::new(),
            waiting: BTreeMap::new(),
            uploading: BTreeMap::new(),
            next_serial: 0,
            head_bytes_max: config.head_bytes_max,
            requests_max: config.requests_per_connection_max,
            times: Http3Timeouts::of(config),
            deadlines: Http3Deadlines::default(),
        }
    }

    /// Passes a notice of the host to the endpoint.
    pub(crate) fn handle_notice(&mut self, cx: &mut Http3Env<'_>, notice: Notice) {
        self.endpoint.handle_notice(cx.now, cx.host, notice);
    }

    /// Handles the timeouts that have passed.
    pub(crate) fn handle_timeout(&mut self, cx: &mut Http3Env<'_>) {
        self.endpoint.handle_timeout(cx.now, cx.host);
        self.check_deadlines(cx);
    }

    /// Returns the time at which to call [`Self::handle_timeout`].
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        [self.endpoint.poll_timeout(), self.deadlines.next()].into_iter().flatten().min()
    }

    /// Calls `f` with each counter of the endpoint, and with a gauge: requests that are not
    /// finished.
    pub(crate) fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.endpoint.visit(f);
        let kept = self.connections.values().map(|c| c.requests.len() + c.answered.len());
        f("http3_requests_open", kept.sum::<usize>() as u64);
    }

    /// Returns the number of open connections.
    pub(crate) fn open_connections(&self) -> usize {
        self.endpoint.connections().count()
    }

    /// Returns the endpoint's connections.
    pub(crate) fn connections(&self) -> impl Iterator<Item = quic::ConnectionInfo> + '_ {
        self.endpoint.infos()
    }

    /// Handles the endpoint's events and lets it send. Must be called after every other call.
    pub(crate) fn advance(&mut self, cx: &mut Http3Env<'_>) {
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                QuicEvent::Connected(handle) => {
                    let streams_max = self.endpoint.streams_max();
                    let connection = Http3Connection {
                        last_progress: cx.now,
                        streams_max,
                        rules: cx.responder.inspection.rules(),
                        ..Http3Connection::default()
                    };
                    self.connections.insert(handle, connection);
                    self.open_control(handle);
                    self.expect_head(cx.now, handle);
                }
                QuicEvent::Lost(handle, _) => self.remove_connection(cx, handle),
                QuicEvent::Stream(handle, event) => self.handle_stream(cx, handle, &event),
            }
        }
        self.endpoint.flush(cx.now, cx.host);
    }

    /// Handles the end of an open that a request waits for.
    pub(crate) fn handle_opened(
        &mut self,
        cx: &mut Http3Env<'_>,
        serial: u32,
        result: Result<(), FileFault>,
    ) {
        if let Some((handle, stream, since)) = self.waiting.remove(&serial) {
            self.answer(cx, handle, stream, Some((result, since)));
        }
    }

    /// Opens the control stream and sends the settings on it (section 6.2.1).
    fn open_control(&mut self, handle: QuicHandle) {
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        if connection.control.is_some() {
            return;
        }
        let Some(stream) = self.endpoint.open_stream(handle, Dir::Uni) else { return };
        connection.control = Some(stream);
        let mut bytes = vec![0x00];
        let settings = frame::settings(self.head_bytes_max as u64);
        frame::put_frame(&mut bytes, frame::SETTINGS, &settings);
        self.endpoint.write(handle, stream, Bytes::from(bytes));
    }

    fn handle_stream(&mut self, cx: &mut Http3Env<'_>, handle: QuicHandle, event: &StreamEvent) {
        match *event {
            StreamEvent::Opened { dir } => {
                while let Some(stream) = self.endpoint.accept_stream(handle, dir) {
                    let Some(connection) = self.connections.get_mut(&handle) else { return };
                    match dir {
                        Dir::Uni => {
                            drop(connection.incoming.insert(stream, ClientUniStream::default()))
                        }
                        Dir::Bi => {
                            connection.next_stream = u64::from(stream) + 4;
                            let mut request = Http3Request::new(cx.now);
                            request.message.stores = cx.responder.uploads.is_some();
                            connection.requests.insert(stream, request);
                        }
                    }
                    self.read(cx, handle, stream);
                }
            }
            StreamEvent::Readable { id } => self.read(cx, handle, id),
            StreamEvent::Available { dir: Dir::Uni } => self.open_control(handle),
            StreamEvent::Finished { .. } => self.expect_close(cx.now, handle),
            StreamEvent::Stopped { id, .. } => {
                self.end_upload(cx, handle, id);
                let Some(connection) = self.connections.get_mut(&handle) else { return };
                connection.requests.remove(&id);
                if connection.control == Some(id) {
                    self.fail(cx, handle, Http3ErrorCode::ClosedCriticalStream);
                }
            }
            _ => {}
        }
    }

    /// Reads a client's stream until it blocks, and answers a request that is complete.
    fn read(&mut self, cx: &mut Http3Env<'_>, handle: QuicHandle, stream: StreamId) {
        loop {
            let Some(bytes_max) = self.room(cx, handle, stream) else { return };
            let read = self.endpoint.read(handle, stream, bytes_max);
            let Some(connection) = self.connections.get_mut(&handle) else { return };
            let wanted = connection.requests.contains_key(&stream)
                || connection.answered.contains_key(&stream)
                || connection.incoming.contains_key(&stream);
            let (result, more) = match read {
                Ok(_) if !wanted => (Ok(()), true),
                Ok(bytes) if stream.dir() == Dir::Uni => {
                    (connection.handle_incoming(stream, &bytes), true)
                }
                Ok(bytes) => {
                    let inspection = &mut cx.responder.inspection;
                    let head_bytes_max = self.head_bytes_max;
                    (connection.handle_request(stream, &bytes, head_bytes_max, inspection), true)
                }
                Err(StreamReadError::Blocked | StreamReadError::NoStream) => (Ok(()), false),
                Err(end) => {
                    if end != StreamReadError::Finished {
                        self.end_upload(cx, handle, stream);
                    }
                    let Some(connection) = self.connections.get_mut(&handle) else { return };
                    (connection.handle_end(stream, end), false)
                }
            };
            let failed = result.is_err();
            self.handle_result(cx, handle, stream, result);
            if failed {
                return;
            }
            self.store_content(cx, handle, stream);
            self.apply_priorities(handle);
            self.stop_long_content(handle, stream);
            // An upload begins with the head.
            if !more || self.can_begin_upload(handle, stream) {
                return self.answer_if_ready(cx, handle, stream);
            }
        }
    }

    /// Passes the priorities that the client has changed to the endpoint.
    fn apply_priorities(&mut self, handle: QuicHandle) {
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        for (stream, priority) in connection.reprioritized.drain(..) {
            self.endpoint.set_priority(handle, stream, priority);
        }
    }

    /// Asks the client to stop sending content that is longer than is read (RFC 9114 section
    /// 4.1.2).
    fn stop_long_content(&mut self, handle: QuicHandle, stream: StreamId) {
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        let message = connection.requests.get(&stream).map(|request| &request.message);
        let message = message.or_else(|| connection.answered.get(&stream));
        if message.is_some_and(RequestStreamReader::is_too_long) {
            connection.answered.remove(&stream);
            self.endpoint.stop(handle, stream, Http3ErrorCode::NoError as u32);
        }
    }

    /// Answers a request if it is complete. All bytes that have arrived on the stream were read.
    fn answer_if_ready(&mut self, cx: &mut Http3Env<'_>, handle: QuicHandle, stream: StreamId) {
        let Some(connection) = self.connections.get(&handle) else { return };
        match connection.requests.get(&stream) {
            Some(request) if request.is_ready() && !request.waits_for_file => {
                self.answer(cx, handle, stream, None);
            }
            Some(request) if !request.is_ready() => self.expect_head(cx.now, handle),
            _ => {}
        }
    }

    fn handle_result(
        &mut self,
        cx: &mut Http3Env<'_>,
        handle: QuicHandle,
        stream: StreamId,
        result: Result<(), Http3Fault>,
    ) {
        match result {
            Ok(()) => {}
            Err(Http3Fault::Connection(code)) => self.fail(cx, handle, code),
            Err(Http3Fault::Stream(code)) => self.abort_stream(cx, handle, stream, code),
            Err(Http3Fault::Denied) => self.deny(cx, handle, stream),
        }
    }

    /// Refuses a request with a denied pattern: answers 403, or resets the stream if its response
    /// has begun. The rest of the request is not read.
    fn deny(&mut self, cx: &mut Http3Env<'_>, handle: QuicHandle, stream: StreamId) {
        cx.responder.counters.http_denied += 1;
        let connection = self.connections.get(&handle);
        if connection.is_none_or(|connection| !connection.requests.contains_key(&stream)) {
            return self.abort_stream(cx, handle, stream, Http3ErrorCode::RequestCancelled);
        }
        let remote = self.endpoint.remote(handle).map(|remote| remote.ip());
        let plan = cx.responder.error_reply(cx.now, HttpStatus::Forbidden, remote);
        self.respond(cx, handle, stream, &plan);
        if let Some(connection) = self.connections.get_mut(&handle) {
            connection.answered.remove(&stream);
        }
        self.endpoint.stop(handle, stream, Http3ErrorCode::NoError as u32);
    }

    /// Ends a connection with an error (section 8).
    fn fail(&mut self, cx: &mut Http3Env<'_>, handle: QuicHandle, code: Http3ErrorCode) {
        cx.responder.counters.http3_connection_errors += 1;
        self.close(cx, handle, code);
    }

    fn close(&mut self, cx: &mut Http3Env<'_>, handle: QuicHandle, code: Http3ErrorCode) {
        self.remove_connection(cx, handle);
        self.endpoint.close(cx.now, cx.host, handle, code as u32, "");
    }

    fn remove_connection(&mut self, cx: &mut Http3Env<'_>, handle: QuicHandle) {
        if let Some(mut connection) = self.connections.remove(&handle) {
            for request in connection.requests.values_mut() {
                self.release_upload(cx, request.upload.take());
            }
            self.deadlines.set(handle, &mut connection.check_at, None);
        }
    }

    /// Ends a request (section 4.1.1).
    fn abort_stream(
        &mut self,
        cx: &mut Http3Env<'_>,
        handle: QuicHandle,
        stream: StreamId,
        code: Http3ErrorCode,
    ) {
        // A stream of an unknown type is no error (section 6.2).
        cx.responder.counters.http3_stream_errors += u64::from(stream.dir() == Dir::Bi);
        self.end_upload(cx, handle, stream);
        if let Some(connection) = self.connections.get_mut(&handle) {
            connection.requests.remove(&stream);
            connection.answered.remove(&stream);
            connection.incoming.remove(&stream);
        }
        self.endpoint.stop(handle, stream, code as u32);
        if stream.dir() == Dir::Bi {
            self.endpoint.reset(cx.host, handle, stream, code as u32);
        }
    }

    /// Decides about a request, and carries the decision out.
    fn answer(
        &mut self,
        cx: &mut Http3Env<'_>,
        handle: QuicHandle,
        stream: StreamId,
        opened: Option<(Result<(), FileFault>, Instant)>,
    ) {
        let remote = self.endpoint.remote(handle);
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        if connection.goaway_sent.is_some_and(|last| u64::from(stream) >= last) {
            return self.abort_stream(cx, handle, stream, Http3ErrorCode::RequestRejected);
        }
        let Some(request) = connection.requests.get(&stream) else { return };
        let Some(head) = request.head.as_deref() else { return };
        let remote = remote.map(|remote: SocketAddr| remote.ip());
        let about = RequestEnv {
            remote,
            opened: opened.map(|(result, _)| result),
            since: opened.map(|(_, since)| since),
            content: request.content,
            http3: true,
            ..RequestEnv::default()
        };
        if head.is_empty() {
            let status = HttpStatus::HeaderFieldsTooLarge;
            let plan = cx.responder.error_reply(cx.now, status, remote);
            return self.respond(cx, handle, stream, &plan);
        }
        match cx.responder.decide(cx.now, head, about) {
            RequestDecision::Respond(plan, _) => self.respond(cx, handle, stream, &plan),
            RequestDecision::Upload { put, expects_continue, .. } => {
                self.begin_upload(cx, (handle, stream), put, expects_continue);
            }
            // Cannot occur: the head is complete and declares no content.
            RequestDecision::Incomplete | RequestDecision::Content { .. } => {
                self.abort_stream(cx, handle, stream, Http3ErrorCode::InternalError);
            }
            RequestDecision::Open => {
                let Some(file) = open(cx) else {
                    let full = FileFault::Refused(Refusal::TableFull);
                    return self.answer(cx, handle, stream, Some((Err(full), cx.now)));
                };
                let waiter = self.wait_for_file(handle, stream, about.since.unwrap_or(cx.now));
                cx.responder.begin_open(file, waiter);
            }
            RequestDecision::Join => {
                let waiter = self.wait_for_file(handle, stream, about.since.unwrap_or(cx.now));
                cx.responder.join_open(waiter);
            }
        }
    }

    fn wait_for_file(
        &mut self,
        handle: QuicHandle,
        stream: StreamId,
        since: Instant,
    ) -> OpenWaiter {
        self.next_serial = self.next_serial.wrapping_add(1);
        self.waiting.insert(self.next_serial, (handle, stream, since));
        let connection = self.connections.get_mut(&handle);
        if let Some(request) = connection.and_then(|c| c.requests.get_mut(&stream)) {
            request.waits_for_file = true;
        }
        OpenWaiter::Request(self.next_serial)
    }

    /// Sends the response that is in the responder's output.
    fn respond(
        &mut self,
        cx: &mut Http3Env<'_>,
        handle: QuicHandle,
        stream: StreamId,
        plan: &WrittenResponse,
    ) {
        let mut pieces = core::mem::take(&mut cx.responder.output.pieces).into_iter();
        let Some(ResponsePiece::Bytes(first)) = pieces.next() else {
            return self.abort_stream(cx, handle, stream, Http3ErrorCode::InternalError);
        };
        let mut section = Vec::with_capacity(256);
        let head = message::response_section(&first, &mut section);
        let mut bytes = Vec::with_capacity(section.len() + 16);
        frame::put_frame(&mut bytes, frame::HEADERS, &section);
        if plan.body_bytes > 0 {
            // One DATA frame for all content, because its length is known.
            frame::put_varint(&mut bytes, frame::DATA);
            frame::put_varint(&mut bytes, plan.body_bytes);
        }
        let counters = &mut cx.responder.counters;
        counters.http3_requests += 1;
        counters.http_head_bytes += (bytes.len() + first.len() - head) as u64;
        self.endpoint.write(handle, stream, Bytes::from(bytes));
        let connection = self.connections.get(&handle);
        let request = connection.and_then(|connection| connection.requests.get(&stream));
        if let Some(priority) = request.and_then(|request| request.priority) {
            self.endpoint.set_priority(handle, stream, priority);
        }
        self.endpoint.write(handle, stream, first.slice(head..));
        for piece in pieces {
            match piece {
                ResponsePiece::Bytes(bytes) => {
                    cx.responder.counters.http_head_bytes += bytes.len() as u64;
                    self.endpoint.write(handle, stream, bytes);
                }
                ResponsePiece::File { file, offset, len } => {
                    cx.responder.counters.http_body_bytes += len;
                    if !self.endpoint.send_file(cx.host, (handle, stream), file, offset, len) {
                        return self.abort_stream(
                            cx,
                            handle,
                            stream,
                            Http3ErrorCode::InternalError,
                        );
                    }
                }
            }
        }
        self.endpoint.finish(handle, stream);
        self.end_upload(cx, handle, stream);
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        if connection.end_request(stream) {
            self.endpoint.stop(handle, stream, Http3ErrorCode::NoError as u32);
        }
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        (connection.served, connection.last_progress) = (connection.served + 1, cx.now);
        if connection.served >= self.requests_max {
            self.send_goaway(handle);
        }
    }

    /// Sends GOAWAY: requests on streams that the client has not opened yet are not answered
    /// (section 5.2).
    fn send_goaway(&mut self, handle: QuicHandle) {
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        if connection.goaway_sent.is_some() {
            return;
        }
        let from = connection.next_stream;
        connection.goaway_sent = Some(from);
        let Some(control) = connection.control else { return };
        let (mut payload, mut bytes) = (Vec::new(), Vec::new());
        frame::put_varint(&mut payload, from);
        frame::put_frame(&mut bytes, frame::GOAWAY, &payload);
        self.endpoint.write(handle, control, Bytes::from(bytes));
    }
}

/// Opens the path that was decided on; evicts cached files if the host has no handle left.
fn open(cx: &mut Http3Env<'_>) -> Option<abi::FileId> {
    let file = cx.host.offload_open(cx.responder.path());
    if file.is_some() {
        return file;
    }
    cx.responder.files.evict_some();
    while let Some(file) = cx.responder.files.poll_close() {
        cx.host.offload_close(file);
    }
    cx.host.offload_open(cx.responder.path())
}

#[cfg(test)]
mod tests;
