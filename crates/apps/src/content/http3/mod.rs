//! HTTP/3 (RFC 9114) over crate `quic`: the content server's other face.
//!
//! [`super::ContentServer`] hands on what the host told it. A request is decided by the same
//! [`Responder`] as one of HTTP/1.1, from a head that says the same ([`message`]); the response's
//! pieces go to its stream, files as extents. Frames are read in place of a buffer per request
//! stream, bounded by the size of a head. Responses share their connection as RFC 9218 has it
//! ([`priority`]).
//!
//! Framing and QPACK are our own: the `h3` crate is made of asynchronous traits that expect a
//! runtime, and its bodies are buffers, where ours are extents of files. There is no dynamic table,
//! no push, and content of requests is compared with its declared length and dropped.

pub mod client;
mod deadlines;
mod frame;
mod message;
mod priority;
mod qpack;
mod streams;

use core::net::SocketAddr;
use std::collections::BTreeMap;

use abi::{FileFault, Refusal};
use base::Instant;
use bytes::Bytes;
use host::{Application as _, Host, Notice};
use quic::{Dir, Endpoint, Event, Handle, Priority, ReadEnd, StreamEvent, StreamId};

use super::Config;
use super::answer::{Circumstances, Decision, Responder};
use super::files::Waiter;
use super::response::{Piece, Plan};
use super::status::Status;
use deadlines::{Deadlines, Times};
use frame::Code;
use streams::Message;

/// Bytes read from a stream at a time.
const READ_BYTES: usize = 16 * 1024;

/// What a unidirectional stream of the client is: section 6.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Control,
    Encoder,
    Decoder,
}

/// A unidirectional stream of the client.
#[derive(Debug, Default)]
struct Incoming {
    kind: Option<Kind>,
    bytes: Vec<u8>,
    /// Bytes of an unknown frame that are passed over.
    skip: u64,
}

/// A request stream that is not answered yet.
#[derive(Debug)]
struct Request {
    /// When it was opened.
    since: Instant,
    message: Message,
    /// The request as HTTP/1.1 has it, once it is there.
    head: Option<Vec<u8>>,
    /// The priority that it asks for its response.
    priority: Option<Priority>,
    /// It waits for its file.
    asked: bool,
    /// The client has finished or reset its side of the stream.
    ended: bool,
}

impl Request {
    fn new(since: Instant) -> Self {
        Self {
            since,
            message: Message::default(),
            head: None,
            priority: None,
            asked: false,
            ended: false,
        }
    }

    /// Returns whether it can be answered.
    fn is_ready(&self) -> bool {
        self.head.is_some() && !self.message.lacks_content()
    }
}

#[derive(Debug, Default)]
struct Connection {
    control: Option<StreamId>,
    settings: bool,
    incoming: BTreeMap<StreamId, Incoming>,
    requests: BTreeMap<StreamId, Request>,
    /// Requests that are answered, and whose content is still compared with what was declared.
    answered: BTreeMap<StreamId, Message>,
    /// Priorities of requests that are not there yet, from the client's control stream.
    priorities: BTreeMap<StreamId, Priority>,
    /// New priorities of responses that have begun.
    reprioritised: Vec<(StreamId, Priority)>,
    /// The client's last GOAWAY and MAX_PUSH_ID.
    goaway: Option<u64>,
    max_push_id: Option<u64>,
    /// Request streams that the client may have open.
    streams_max: u32,
    served: u32,
    /// The first request stream that the client has not opened yet.
    next: u64,
    /// Requests from this stream on are refused: GOAWAY was sent.
    last: Option<u64>,
    /// When it was last seen to get on, and the STREAM frames that it had been sent by then.
    active: Instant,
    frames_sent: u64,
    /// When it is looked at.
    check: Option<Instant>,
}

impl Connection {
    /// A request is answered: what the client still sends of it is looked at, if it is short.
    fn end_request(&mut self, stream: StreamId) {
        let Some(request) = self.requests.remove(&stream) else { return };
        if !request.ended && !request.message.is_too_long() {
            self.answered.insert(stream, request.message);
        }
    }
}

/// What becomes of a request or of its connection.
enum Fault {
    Stream(Code),
    Connection(Code),
}

/// HTTP/3 on one endpoint.
pub(crate) struct Http3 {
    endpoint: Endpoint,
    connections: BTreeMap<Handle, Connection>,
    /// Requests that wait for a file, by the serial number of their [`Waiter`].
    /// With the time when the request began to wait.
    waiting: BTreeMap<u32, (Handle, StreamId, Instant)>,
    next_serial: u32,
    head_bytes_max: usize,
    requests_max: u32,
    times: Times,
    deadlines: Deadlines,
}

/// What is needed of the server.
pub(crate) struct Context<'a> {
    pub(crate) now: Instant,
    pub(crate) host: &'a mut Host,
    pub(crate) responder: &'a mut Responder,
}

impl Http3 {
    pub(crate) fn new(endpoint: Endpoint, config: &Config) -> Self {
        Self {
            endpoint,
            connections: BTreeMap::new(),
            waiting: BTreeMap::new(),
            next_serial: 0,
            head_bytes_max: config.head_bytes_max,
            requests_max: config.requests_per_connection_max,
            times: Times::of(config),
            deadlines: Deadlines::default(),
        }
    }

    /// Takes a notice of the host.
    pub(crate) fn handle_notice(&mut self, cx: &mut Context<'_>, notice: Notice) {
        self.endpoint.handle_notice(cx.now, cx.host, notice);
    }

    /// Runs what is due.
    pub(crate) fn handle_timeout(&mut self, cx: &mut Context<'_>) {
        self.endpoint.handle_timeout(cx.now, cx.host);
        self.check_deadlines(cx);
    }

    /// When to call [`Self::handle_timeout`].
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        [self.endpoint.poll_timeout(), self.deadlines.next()].into_iter().flatten().min()
    }

    /// Shows every counter by name, and a gauge: requests that are not over.
    pub(crate) fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.endpoint.visit(f);
        let kept = self.connections.values().map(|c| c.requests.len() + c.answered.len());
        f("http3_requests_open", kept.sum::<usize>() as u64);
    }

    /// Its connections.
    pub(crate) fn connections(&self) -> impl Iterator<Item = quic::ConnectionInfo> + '_ {
        self.endpoint.infos()
    }

    /// Does what events ask for, and lets the endpoint send. To be called after every other call.
    pub(crate) fn advance(&mut self, cx: &mut Context<'_>) {
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::Connected(handle) => {
                    let streams_max = self.endpoint.streams_max();
                    let connection =
                        Connection { active: cx.now, streams_max, ..Connection::default() };
                    self.connections.insert(handle, connection);
                    self.open_control(handle);
                    self.expect_head(cx.now, handle);
                }
                Event::Lost(handle, _) => self.forget(handle),
                Event::Stream(handle, event) => self.handle_stream(cx, handle, &event),
            }
        }
        self.endpoint.flush(cx.now, cx.host);
    }

    /// A file that a request waited for is open, or not.
    pub(crate) fn handle_opened(
        &mut self,
        cx: &mut Context<'_>,
        serial: u32,
        result: Result<(), FileFault>,
    ) {
        if let Some((handle, stream, since)) = self.waiting.remove(&serial) {
            self.answer(cx, handle, stream, Some((result, since)));
        }
    }

    /// Our control stream, with our settings first: section 6.2.1.
    fn open_control(&mut self, handle: Handle) {
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

    fn handle_stream(&mut self, cx: &mut Context<'_>, handle: Handle, event: &StreamEvent) {
        match *event {
            StreamEvent::Opened { dir } => {
                while let Some(stream) = self.endpoint.accept_stream(handle, dir) {
                    let Some(connection) = self.connections.get_mut(&handle) else { return };
                    match dir {
                        Dir::Uni => drop(connection.incoming.insert(stream, Incoming::default())),
                        Dir::Bi => {
                            connection.next = u64::from(stream) + 4;
                            connection.requests.insert(stream, Request::new(cx.now));
                        }
                    }
                    self.read(cx, handle, stream);
                }
            }
            StreamEvent::Readable { id } => self.read(cx, handle, id),
            StreamEvent::Available { dir: Dir::Uni } => self.open_control(handle),
            StreamEvent::Finished { .. } => self.close_if_done(cx, handle),
            StreamEvent::Stopped { id, .. } => {
                let Some(connection) = self.connections.get_mut(&handle) else { return };
                connection.requests.remove(&id);
                if connection.control == Some(id) {
                    self.fail(cx, handle, Code::ClosedCriticalStream);
                }
            }
            _ => {}
        }
    }

    /// Reads a stream of the client as far as it goes, and answers a request that is whole.
    fn read(&mut self, cx: &mut Context<'_>, handle: Handle, stream: StreamId) {
        loop {
            let read = self.endpoint.read(handle, stream, READ_BYTES);
            let Some(connection) = self.connections.get_mut(&handle) else { return };
            let wanted = connection.requests.contains_key(&stream)
                || connection.answered.contains_key(&stream)
                || connection.incoming.contains_key(&stream);
            let (result, more) = match read {
                Ok(_) if !wanted => (Ok(()), true),
                Ok(bytes) if stream.dir() == Dir::Uni => {
                    (connection.handle_incoming(stream, &bytes), true)
                }
                Ok(bytes) => (connection.handle_request(stream, &bytes, self.head_bytes_max), true),
                Err(ReadEnd::Blocked | ReadEnd::Gone) => (Ok(()), false),
                Err(end) => (connection.handle_end(stream, end), false),
            };
            let failed = result.is_err();
            self.handle_result(cx, handle, stream, result);
            if failed {
                return;
            }
            self.reprioritise(handle);
            self.stop_long_content(handle, stream);
            if !more {
                return self.answer_if_ready(cx, handle, stream);
            }
        }
    }

    /// Tells the endpoint the priorities that the client has changed.
    fn reprioritise(&mut self, handle: Handle) {
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        for (stream, priority) in connection.reprioritised.drain(..) {
            self.endpoint.set_priority(handle, stream, priority);
        }
    }

    /// Asks the client to send no more of content that is longer than is read: RFC 9114, section
    /// 4.1.2.
    fn stop_long_content(&mut self, handle: Handle, stream: StreamId) {
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        let message = connection.requests.get(&stream).map(|request| &request.message);
        let message = message.or_else(|| connection.answered.get(&stream));
        if message.is_some_and(Message::is_too_long) {
            connection.answered.remove(&stream);
            self.endpoint.stop(handle, stream, Code::NoError as u32);
        }
    }

    /// Everything that has come on a stream is read.
    fn answer_if_ready(&mut self, cx: &mut Context<'_>, handle: Handle, stream: StreamId) {
        let Some(connection) = self.connections.get(&handle) else { return };
        match connection.requests.get(&stream) {
            Some(request) if request.is_ready() && !request.asked => {
                self.answer(cx, handle, stream, None);
            }
            Some(request) if !request.is_ready() => self.expect_head(cx.now, handle),
            _ => {}
        }
    }

    fn handle_result(
        &mut self,
        cx: &mut Context<'_>,
        handle: Handle,
        stream: StreamId,
        result: Result<(), Fault>,
    ) {
        match result {
            Ok(()) => {}
            Err(Fault::Connection(code)) => self.fail(cx, handle, code),
            Err(Fault::Stream(code)) => self.refuse(cx, handle, stream, code),
        }
    }

    /// Ends a connection: section 8.
    fn fail(&mut self, cx: &mut Context<'_>, handle: Handle, code: Code) {
        cx.responder.counters.http3_connection_errors += 1;
        self.close(cx, handle, code);
    }

    fn close(&mut self, cx: &mut Context<'_>, handle: Handle, code: Code) {
        self.forget(handle);
        self.endpoint.close(cx.now, cx.host, handle, code as u32, "");
    }

    fn forget(&mut self, handle: Handle) {
        if let Some(mut connection) = self.connections.remove(&handle) {
            self.deadlines.set(handle, &mut connection.check, None);
        }
    }

    /// Ends a request: section 4.1.1.
    fn refuse(&mut self, cx: &mut Context<'_>, handle: Handle, stream: StreamId, code: Code) {
        // A stream of a kind that is not known is no error: section 6.2.
        cx.responder.counters.http3_stream_errors += u64::from(stream.dir() == Dir::Bi);
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

    /// Decides about a request and does what was decided.
    fn answer(
        &mut self,
        cx: &mut Context<'_>,
        handle: Handle,
        stream: StreamId,
        opened: Option<(Result<(), FileFault>, Instant)>,
    ) {
        let remote = self.endpoint.remote(handle);
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        if connection.last.is_some_and(|last| u64::from(stream) >= last) {
            return self.refuse(cx, handle, stream, Code::RequestRejected);
        }
        let Some(head) = connection.requests.get(&stream).and_then(|r| r.head.as_deref()) else {
            return;
        };
        let remote = remote.map(|remote: SocketAddr| remote.ip());
        let about = Circumstances {
            remote,
            opened: opened.map(|(result, _)| result),
            since: opened.map(|(_, since)| since),
            http3: true,
            ..Circumstances::default()
        };
        if head.is_empty() {
            let status = Status::HeaderFieldsTooLarge;
            let plan = cx.responder.give_up(cx.now, status, remote);
            return self.respond(cx, handle, stream, &plan);
        }
        match cx.responder.decide(cx.now, head, about) {
            Decision::Respond(plan, _) => self.respond(cx, handle, stream, &plan),
            // The head is whole, and says nothing of content.
            Decision::Incomplete | Decision::Content { .. } => {
                self.refuse(cx, handle, stream, Code::InternalError);
            }
            Decision::Open => {
                let Some(file) = open(cx) else {
                    let full = FileFault::Refused(Refusal::TableFull);
                    return self.answer(cx, handle, stream, Some((Err(full), cx.now)));
                };
                let waiter = self.wait(handle, stream, about.since.unwrap_or(cx.now));
                cx.responder.begin_open(file, waiter);
            }
            Decision::Join => {
                let waiter = self.wait(handle, stream, about.since.unwrap_or(cx.now));
                cx.responder.join_open(waiter);
            }
        }
    }

    fn wait(&mut self, handle: Handle, stream: StreamId, since: Instant) -> Waiter {
        self.next_serial = self.next_serial.wrapping_add(1);
        self.waiting.insert(self.next_serial, (handle, stream, since));
        let connection = self.connections.get_mut(&handle);
        if let Some(request) = connection.and_then(|c| c.requests.get_mut(&stream)) {
            request.asked = true;
        }
        Waiter::Request(self.next_serial)
    }

    /// Sends the response that lies in the responder's output.
    fn respond(&mut self, cx: &mut Context<'_>, handle: Handle, stream: StreamId, plan: &Plan) {
        let mut pieces = core::mem::take(&mut cx.responder.output.pieces).into_iter();
        let Some(Piece::Bytes(first)) = pieces.next() else {
            return self.refuse(cx, handle, stream, Code::InternalError);
        };
        let mut section = Vec::with_capacity(256);
        let head = message::response_section(&first, &mut section);
        let mut bytes = Vec::with_capacity(section.len() + 16);
        frame::put_frame(&mut bytes, frame::HEADERS, &section);
        if plan.body_bytes > 0 {
            // One DATA frame for all content: its length is known.
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
                Piece::Bytes(bytes) => {
                    cx.responder.counters.http_head_bytes += bytes.len() as u64;
                    self.endpoint.write(handle, stream, bytes);
                }
                Piece::File { file, offset, len } => {
                    cx.responder.counters.http_body_bytes += len;
                    if !self.endpoint.send_file(cx.host, (handle, stream), file, offset, len) {
                        return self.refuse(cx, handle, stream, Code::InternalError);
                    }
                }
            }
        }
        self.endpoint.finish(handle, stream);
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        connection.end_request(stream);
        (connection.served, connection.active) = (connection.served + 1, cx.now);
        if connection.served >= self.requests_max {
            self.go_away(handle);
        }
    }

    /// Tells the client that requests on streams that it has not opened yet are not answered:
    /// section 5.2.
    fn go_away(&mut self, handle: Handle) {
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        if connection.last.is_some() {
            return;
        }
        let from = connection.next;
        connection.last = Some(from);
        let Some(control) = connection.control else { return };
        let (mut payload, mut bytes) = (Vec::new(), Vec::new());
        frame::put_varint(&mut payload, from);
        frame::put_frame(&mut bytes, frame::GOAWAY, &payload);
        self.endpoint.write(handle, control, Bytes::from(bytes));
    }
}

/// Opens the file that the responder asks for; others make room where there is none.
fn open(cx: &mut Context<'_>) -> Option<abi::FileId> {
    let file = cx.host.offload_open(cx.responder.path());
    if file.is_some() {
        return file;
    }
    cx.responder.files.make_room();
    while let Some(file) = cx.responder.files.poll_close() {
        cx.host.offload_close(file);
    }
    cx.host.offload_open(cx.responder.path())
}

#[cfg(test)]
mod tests;
