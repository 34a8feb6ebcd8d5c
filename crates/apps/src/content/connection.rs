//! One connection of HTTP/1.1: requests in, responses out, in order, until either side closes.
//!
//! [`super::server`] calls it when the socket's readiness changed, when a file that it waits for
//! was opened, and when its deadline has passed. A request that lies whole in the host's receive
//! buffer is parsed there; only a request that arrives in pieces is gathered in a buffer of the
//! connection. While a file is being opened the request stays where it is and is parsed again
//! afterwards, so an idle connection costs no memory beyond this struct.
//!
//! Head and body are written in turn, and the host cuts segments only when the driver polls it. So
//! the head and the first bytes of the body share a segment without corking.

mod upload;

use core::net::IpAddr;
use std::collections::VecDeque;

use abi::{FileFault, FileId, Refusal};
use base::Instant;
use bytes::Bytes;
use host::{SendError, SocketError};

use super::ContentServerConfig;
use super::answer::{ListenerService, RequestContentState, RequestDecision, RequestEnv, Responder};
use super::discard::ContentDiscard;
use super::file_cache::OpenWaiter;
use super::gather::{HeadLimits, gather_head};
use super::response::{ResponsePiece, WrittenResponse};
use super::sockets::ContentSockets;
use super::status::HttpStatus;
use crate::pattern_inspection::ConnectionRules;
use upload::{HttpUpload, UploadParts};

/// Unacknowledged bytes above which no further pipelined request is answered.
const PIPELINE_BYTES_MAX: u64 = 64 * 1024;

/// Everything outside of a connection that its functions need.
pub(crate) struct HttpConnectionEnv<'a, S> {
    pub(crate) now: Instant,
    pub(crate) host: &'a mut S,
    pub(crate) responder: &'a mut Responder,
    pub(crate) config: &'a ContentServerConfig,
}

impl<S: ContentSockets> HttpConnectionEnv<'_, S> {
    /// Inspects the bytes that can be read, before any of them is used. Returns whether they may be
    /// used.
    fn admits(&mut self, socket: S::Id, rules: &ConnectionRules) -> bool {
        let admitted = self.responder.inspection.admits(rules, self.host, socket);
        self.responder.counters.http_denied += u64::from(!admitted);
        admitted
    }
}

/// RFC 9110 section 15.2.1.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Fate of a connection after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnAction {
    /// The connection continues.
    Keep,
    /// The connection has ended, and its socket was closed.
    Closed,
}

/// Event that a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HttpConnectionPhase {
    /// The first byte of a request.
    Idle,
    /// The rest of a request's head.
    Head,
    /// The rest of a request's content.
    Content,
    /// The rest of the content of an upload, the disk, or both.
    Uploading,
    /// A file to be opened.
    Opening,
    /// The peer's acknowledgments, and then its FIN; no request is answered. Bytes that still
    /// arrive are discarded, because a reset in response to them could destroy the last response on
    /// its way (RFC 9112 section 9.6).
    Closing,
}

/// Result of an attempt to make progress.
enum RequestProgress {
    Again,
    Wait,
    Gone,
}

/// A request that arrived in pieces, or has content.
#[derive(Debug, Default)]
struct PartialRequest {
    bytes: Vec<u8>,
    /// The head contains the empty line that ends it, or exceeds the limit of a head or of its
    /// first line.
    complete: bool,
    /// Reader of the content, while it arrives.
    discard: Option<ContentDiscard>,
    /// State of the content.
    content: RequestContentState,
    /// The upload of the content.
    upload: Option<HttpUpload>,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct HttpConnection<I> {
    pub(crate) socket: I,
    /// Distinguishes the connection from earlier ones at the same index of the table.
    pub(crate) serial: u32,
    /// Number of requests that were answered.
    served: u32,
    phase: HttpConnectionPhase,
    service: ListenerService,
    /// Bytes were unacknowledged at the last check: `deadline` is the send timeout.
    has_unacked: bool,
    /// The sending direction was shut down.
    send_closed: bool,
    /// The last request was answered and had no content: closing may be left to the host.
    close_after_reply: bool,
    /// Time at which to call [`Self::handle_timeout`].
    pub(crate) deadline: Instant,
    /// Bytes given to the host.
    written: u64,
    /// Bytes of `written` that were acknowledged when the deadline was set.
    acknowledged: u64,
    partial: Option<Box<PartialRequest>>,
    /// Pieces that the host had no room for.
    #[expect(clippy::box_collection, reason = "nearly always none: eight bytes instead of 32")]
    pending: Option<Box<VecDeque<ResponsePiece>>>,
    /// The file that was sent last.
    file: Option<FileId>,
    /// Rules for the bytes that the client sends.
    rules: ConnectionRules,
}

impl<I: Copy + Eq> HttpConnection<I> {
    /// Creates the state of a connection that was just accepted.
    pub(crate) fn new(
        socket: I,
        serial: u32,
        service: ListenerService,
        rules: ConnectionRules,
        now: Instant,
        config: &ContentServerConfig,
    ) -> Self {
        Self {
            socket,
            serial,
            served: 0,
            phase: HttpConnectionPhase::Idle,
            service,
            has_unacked: false,
            send_closed: false,
            close_after_reply: false,
            deadline: now + config.header_timeout,
            written: 0,
            acknowledged: 0,
            partial: None,
            pending: None,
            file: None,
            rules,
        }
    }

    /// Handles a change of the socket's readiness.
    pub(crate) fn handle_readiness<S: ContentSockets<Id = I>>(
        &mut self,
        cx: &mut HttpConnectionEnv<'_, S>,
    ) -> ConnAction {
        if let Some(error) = cx.host.readiness(self.socket).error {
            return self.handle_socket_error(cx, error);
        }
        self.answer_requests(cx)
    }

    /// Handles the end of the open that the connection waits for.
    pub(crate) fn handle_opened<S: ContentSockets<Id = I>>(
        &mut self,
        cx: &mut HttpConnectionEnv<'_, S>,
        result: Result<(), FileFault>,
    ) -> ConnAction {
        if self.phase != HttpConnectionPhase::Opening {
            return ConnAction::Keep;
        }
        self.phase = if self.partial.is_some() {
            HttpConnectionPhase::Head
        } else {
            HttpConnectionPhase::Idle
        };
        // The deadline was set when the wait began, and not changed since.
        let since = self.deadline - cx.config.send_timeout;
        match self.answer(cx, Some((result, since))) {
            RequestProgress::Gone => ConnAction::Closed,
            RequestProgress::Wait | RequestProgress::Again => self.answer_requests(cx),
        }
    }

    /// Closes an idle connection that had a response: no further requests are wanted.
    pub(crate) fn handle_drain<S: ContentSockets<Id = I>>(
        &mut self,
        cx: &mut HttpConnectionEnv<'_, S>,
    ) -> ConnAction {
        if self.phase != HttpConnectionPhase::Idle || self.served == 0 {
            return ConnAction::Keep;
        }
        self.begin_closing(cx);
        self.close_when_done(cx)
    }

    /// Handles the deadline.
    pub(crate) fn handle_timeout<S: ContentSockets<Id = I>>(
        &mut self,
        cx: &mut HttpConnectionEnv<'_, S>,
    ) -> ConnAction {
        match self.phase {
            HttpConnectionPhase::Idle | HttpConnectionPhase::Closing if self.has_unacked => {
                self.check_progress(cx)
            }
            HttpConnectionPhase::Idle => {
                let counters = &mut cx.responder.counters;
                match self.served {
                    0 => counters.http_timeouts_header += 1,
                    _ => counters.http_timeouts_keepalive += 1,
                }
                self.begin_closing(cx);
                self.close_when_done(cx)
            }
            HttpConnectionPhase::Head => {
                cx.responder.counters.http_timeouts_header += 1;
                self.reply_error_and_close(cx, HttpStatus::RequestTimeout)
            }
            HttpConnectionPhase::Content => {
                cx.responder.counters.http_timeouts_content += 1;
                self.reply_error_and_close(cx, HttpStatus::RequestTimeout)
            }
            HttpConnectionPhase::Uploading => self.check_upload(cx),
            HttpConnectionPhase::Opening => {
                cx.responder.counters.http_timeouts_open += 1;
                self.reply_error_and_close(cx, HttpStatus::ServiceUnavailable)
            }
            HttpConnectionPhase::Closing => {
                cx.responder.counters.http_timeouts_linger += 1;
                self.leave_to_host(cx);
                ConnAction::Closed
            }
        }
    }

    /// Returns whether the connection is in the state of one that was just accepted, except that
    /// requests may have been answered: it waits for the first byte of a request, and everything
    /// that was written is with the host.
    pub(crate) fn is_as_accepted(&self) -> bool {
        self.phase == HttpConnectionPhase::Idle
            && self.partial.is_none()
            && self.pending.is_none()
            && !self.send_closed
            && self.rules.patterns().is_none()
    }

    /// Returns the files of pieces that were never given to the host. The connection is over.
    pub(crate) fn pending_files(&self) -> impl Iterator<Item = FileId> + '_ {
        self.pending.iter().flat_map(|pending| pending.iter()).filter_map(|piece| match piece {
            ResponsePiece::File { file, .. } => Some(*file),
            ResponsePiece::Bytes(_) => None,
        })
    }

    /// Answers all requests that have arrived, within the limit of the send queue.
    fn answer_requests<S: ContentSockets<Id = I>>(
        &mut self,
        cx: &mut HttpConnectionEnv<'_, S>,
    ) -> ConnAction {
        loop {
            match self.phase {
                HttpConnectionPhase::Opening => return ConnAction::Keep,
                HttpConnectionPhase::Closing => return self.close_when_done(cx),
                HttpConnectionPhase::Idle
                | HttpConnectionPhase::Head
                | HttpConnectionPhase::Content
                | HttpConnectionPhase::Uploading => {}
            }
            let step = match self.phase {
                HttpConnectionPhase::Content => self.discard_content(cx),
                HttpConnectionPhase::Uploading => self.receive_upload(cx),
                _ => self.next_request(cx),
            };
            match step {
                RequestProgress::Again => {}
                RequestProgress::Wait => break,
                RequestProgress::Gone => return ConnAction::Closed,
            }
        }
        if self.pending.is_some() {
            return ConnAction::Keep;
        }
        let ready = cx.host.readiness(self.socket);
        if ready.peer_closed && !self.has_whole_upload() {
            // No further request can arrive; an incomplete one gets no response.
            let cut = self.take_partial(cx);
            cx.responder.counters.http_aborted_peer += u64::from(cut);
            self.begin_closing(cx);
            return self.close_when_done(cx);
        }
        if self.has_unacked && ready.drained && self.phase == HttpConnectionPhase::Idle {
            self.has_unacked = false;
            self.deadline = cx.now + cx.config.keepalive_timeout;
        }
        ConnAction::Keep
    }

    fn next_request<S: ContentSockets<Id = I>>(
        &mut self,
        cx: &mut HttpConnectionEnv<'_, S>,
    ) -> RequestProgress {
        match self.flush(cx) {
            Ok(true) => {}
            Ok(false) => return RequestProgress::Wait,
            Err(error) => return self.send_failed(cx, error),
        }
        // The rest of a pipeline waits in the receive buffer and then in the client, until the
        // socket becomes drained or writable.
        if cx.host.send_queue(self.socket) > PIPELINE_BYTES_MAX {
            return RequestProgress::Wait;
        }
        if self.partial.is_some() {
            match self.gather(cx) {
                Ok(true) => {}
                Ok(false) => return RequestProgress::Wait,
                Err(status) => return self.refuse(cx, status),
            }
        } else if !cx.admits(self.socket, &self.rules) {
            return self.refuse(cx, HttpStatus::Forbidden);
        } else {
            // RFC 9112 section 2.2: empty lines before a request line are ignored. They start no
            // deadline.
            let bytes = cx.host.peek(self.socket);
            let empty = bytes.iter().take_while(|b| matches!(b, b'\r' | b'\n')).count();
            if empty > 0 {
                cx.host.consume(self.socket, empty);
                return RequestProgress::Again;
            }
        }
        self.answer(cx, None)
    }

    /// Decides about the bytes at the front of the connection, and carries the decision out.
    fn answer<S: ContentSockets<Id = I>>(
        &mut self,
        cx: &mut HttpConnectionEnv<'_, S>,
        opened: Option<(Result<(), FileFault>, Instant)>,
    ) -> RequestProgress {
        let (bytes, content) = match &self.partial {
            Some(partial) => (&partial.bytes[..], partial.content),
            None => (cx.host.peek(self.socket), RequestContentState::Unread),
        };
        if bytes.is_empty() {
            return RequestProgress::Wait;
        }
        let service = match self.service {
            ListenerService::Secure if !cx.host.speaks_tls(self.socket) => ListenerService::NotTls,
            service => service,
        };
        let log = cx.responder.log.enabled();
        let about = RequestEnv {
            remote: if log { self.remote(cx) } else { None },
            opened: opened.map(|(result, _)| result),
            since: opened.map(|(_, since)| since),
            service,
            content,
            last: self.served + 1 >= cx.config.requests_per_connection_max,
            http3: false,
        };
        match cx.responder.decide(cx.now, bytes, about) {
            RequestDecision::Respond(plan, head_bytes) => {
                if !self.take_partial(cx) {
                    cx.host.consume(self.socket, head_bytes);
                }
                self.served += 1;
                self.send_response(cx, &plan)
            }
            RequestDecision::Content { head_bytes, discard, expects_continue } => {
                self.begin_content(cx, head_bytes, discard, expects_continue)
            }
            RequestDecision::Upload { head_bytes, framing, put, expects_continue } => {
                let parts = UploadParts { framing, put, expects_continue };
                self.begin_upload(cx, head_bytes, parts)
            }
            RequestDecision::Incomplete if self.partial.is_none() => {
                self.partial = Some(Box::default());
                self.phase = HttpConnectionPhase::Head;
                self.deadline = cx.now + cx.config.header_timeout;
                RequestProgress::Again
            }
            // Cannot occur: a gathered head is complete or too long, so the parser has accepted or
            // refused it.
            RequestDecision::Incomplete => self.refuse(cx, HttpStatus::BadRequest),
            RequestDecision::Open => {
                let Some(file) = open(cx) else {
                    let full = FileFault::Refused(Refusal::TableFull);
                    return self.answer(cx, Some((Err(full), cx.now)));
                };
                cx.responder.begin_open(file, self.waiter::<S>());
                self.wait_for_file(cx, about.since)
            }
            RequestDecision::Join => {
                cx.responder.join_open(self.waiter::<S>());
                self.wait_for_file(cx, about.since)
            }
        }
    }

    /// Stores the head, in order to read the content after it first.
    fn begin_content<S: ContentSockets<Id = I>>(
        &mut self,
        cx: &mut HttpConnectionEnv<'_, S>,
        head_bytes: usize,
        discard: ContentDiscard,
        expects_continue: bool,
    ) -> RequestProgress {
        self.keep_head(cx, head_bytes).discard = Some(discard);
        self.phase = HttpConnectionPhase::Content;
        self.deadline = cx.now + cx.config.content_timeout;
        // RFC 9110 section 10.1.1: 100 is omitted if content has already arrived.
        if expects_continue && cx.host.peek(self.socket).is_empty() {
            let piece = ResponsePiece::Bytes(Bytes::from_static(CONTINUE));
            if let Err(error) = self.send(cx, piece) {
                return self.send_failed(cx, error);
            }
        }
        RequestProgress::Again
    }

    /// Moves the head to a buffer of the connection, if it is not there, so that the content after
    /// it can be read.
    fn keep_head<S: ContentSockets<Id = I>>(
        &mut self,
        cx: &mut HttpConnectionEnv<'_, S>,
        head_bytes: usize,
    ) -> &mut PartialRequest {
        self.partial.get_or_insert_with(|| {
            let bytes = cx.host.peek(self.socket)[..head_bytes].to_vec();
            cx.host.consume(self.socket, head_bytes);
            Box::new(PartialRequest { bytes, complete: true, ..PartialRequest::default() })
        })
    }

    /// Reads content and discards it; answers the request once all of it has arrived.
    fn discard_content<S: ContentSockets<Id = I>>(
        &mut self,
        cx: &mut HttpConnectionEnv<'_, S>,
    ) -> RequestProgress {
        if let Err(error) = self.flush(cx) {
            return self.send_failed(cx, error);
        }
        let Some(partial) = &mut self.partial else { return self.answer(cx, None) };
        if let Some(discard) = &mut partial.discard {
            while !discard.is_done() {
                if !cx.admits(self.socket, &self.rules) {
                    partial.content = RequestContentState::Refused(HttpStatus::Forbidden);
                    break;
                }
                let bytes = cx.host.peek(self.socket);
                if bytes.is_empty() {
                    return RequestProgress::Wait;
                }
                match discard.take(bytes) {
                    Ok(taken) => {
                        cx.responder.counters.http_content_bytes += taken as u64;
                        cx.host.consume(self.socket, taken);
                    }
                    Err(status) => {
                        partial.content = RequestContentState::Refused(status);
                        break;
                    }
                }
            }
        }
        partial.discard = None;
        if partial.content == RequestContentState::Unread {
            partial.content = RequestContentState::Discarded;
        }
        self.phase = HttpConnectionPhase::Head;
        self.answer(cx, None)
    }

    /// Waits for a file. `since` is when the request began to wait, if it waited for another file
    /// before.
    fn wait_for_file<S: ContentSockets<Id = I>>(
        &mut self,
        cx: &HttpConnectionEnv<'_, S>,
        since: Option<Instant>,
    ) -> RequestProgress {
        self.phase = HttpConnectionPhase::Opening;
        // The disk's time is not the client's fault, but must be bounded too.
        self.deadline = since.unwrap_or(cx.now) + cx.config.send_timeout;
        RequestProgress::Again
    }

    fn remote<S: ContentSockets<Id = I>>(&self, cx: &HttpConnectionEnv<'_, S>) -> Option<IpAddr> {
        cx.host.remote(self.socket).map(|remote| remote.addr)
    }

    fn waiter<S: ContentSockets<Id = I>>(&self) -> OpenWaiter {
        // The host's tables have 32-bit indices.
        let index = u32::try_from(S::index(self.socket)).unwrap_or(u32::MAX);
        OpenWaiter::Connection { index, serial: self.serial }
    }

    /// Gathers bytes of a head that arrives in pieces, and none beyond its end. Returns whether the
    /// head is complete or too long.
    ///
    /// # Errors
    /// 403 if the bytes have a denied pattern.
    fn gather<S: ContentSockets<Id = I>>(
        &mut self,
        cx: &mut HttpConnectionEnv<'_, S>,
    ) -> Result<bool, HttpStatus> {
        let Some(partial) = &mut self.partial else { return Ok(false) };
        while !partial.complete {
            if !cx.admits(self.socket, &self.rules) {
                return Err(HttpStatus::Forbidden);
            }
            let bytes = cx.host.peek(self.socket);
            if bytes.is_empty() {
                return Ok(false);
            }
            let limits = HeadLimits {
                head_bytes_max: cx.config.head_bytes_max,
                line_bytes_max: cx.config.request_line_bytes_max.min(cx.config.head_bytes_max),
            };
            let gathered = gather_head(&mut partial.bytes, bytes, limits);
            partial.complete = gathered.complete;
            cx.host.consume(self.socket, gathered.taken);
        }
        Ok(true)
    }

    /// Sends an error as the last response.
    fn refuse<S: ContentSockets<Id = I>>(
        &mut self,
        cx: &mut HttpConnectionEnv<'_, S>,
        status: HttpStatus,
    ) -> RequestProgress {
        match self.reply_error_and_close(cx, status) {
            ConnAction::Keep => RequestProgress::Again,
            ConnAction::Closed => RequestProgress::Gone,
        }
    }

    /// Sends an error that is not the response to a complete request, and closes.
    fn reply_error_and_close<S: ContentSockets<Id = I>>(
        &mut self,
        cx: &mut HttpConnectionEnv<'_, S>,
        status: HttpStatus,
    ) -> ConnAction {
        self.take_partial(cx);
        let remote = self.remote(cx);
        let plan = cx.responder.error_reply(cx.now, status, remote);
        match self.send_response(cx, &plan) {
            RequestProgress::Gone => ConnAction::Closed,
            RequestProgress::Again | RequestProgress::Wait => self.close_when_done(cx),
        }
    }

    /// Sends the response that is in the responder's output.
    fn send_response<S: ContentSockets<Id = I>>(
        &mut self,
        cx: &mut HttpConnectionEnv<'_, S>,
        plan: &WrittenResponse,
    ) -> RequestProgress {
        if !self.has_unacked {
            self.has_unacked = true;
            self.acknowledged = self.written;
        }
        self.deadline = cx.now + cx.config.send_timeout;
        self.phase = HttpConnectionPhase::Idle;
        self.file = plan.file.or(self.file);
        let mut pieces = core::mem::take(&mut cx.responder.output.pieces);
        let result = pieces.drain(..).try_for_each(|piece| self.send(cx, piece));
        // The vector is put back, so that the next response does not allocate.
        cx.responder.output.pieces = pieces;
        if let Err(error) = result {
            return self.send_failed(cx, error);
        }
        if plan.close {
            // Content is discarded here rather than by the host or the device, because it may be
            // longer than the limit up to which they discard.
            self.close_after_reply = plan.close_after_reply;
            self.begin_closing(cx);
        }
        RequestProgress::Again
    }

    /// Passes a piece to the host, or queues the part that does not fit.
    fn send<S: ContentSockets<Id = I>>(
        &mut self,
        cx: &mut HttpConnectionEnv<'_, S>,
        piece: ResponsePiece,
    ) -> Result<(), SendError> {
        match &piece {
            ResponsePiece::Bytes(bytes) => {
                cx.responder.counters.http_head_bytes += bytes.len() as u64
            }
            ResponsePiece::File { len, .. } => cx.responder.counters.http_body_bytes += len,
        }
        if let Some(pending) = &mut self.pending {
            if let ResponsePiece::File { file, .. } = piece {
                cx.responder.files.pin(file);
            }
            pending.push_back(piece);
        } else if let Some(rest) = self.write_piece(cx, piece)? {
            self.pending = Some(Box::new(VecDeque::from([rest])));
        }
        Ok(())
    }

    /// Passes a piece to the host; returns the rest that did not fit.
    fn write_piece<S: ContentSockets<Id = I>>(
        &mut self,
        cx: &mut HttpConnectionEnv<'_, S>,
        piece: ResponsePiece,
    ) -> Result<Option<ResponsePiece>, SendError> {
        match piece {
            ResponsePiece::Bytes(bytes) => {
                let taken = cx.host.send(cx.now, self.socket, Bytes::clone(&bytes))?;
                self.written += taken as u64;
                let rest = bytes.slice(taken.min(bytes.len())..);
                Ok((!rest.is_empty()).then_some(ResponsePiece::Bytes(rest)))
            }
            ResponsePiece::File { file, offset, len } => {
                cx.host.offload_write(cx.now, self.socket, file, offset, len)?;
                self.written += len;
                Ok(None)
            }
        }
    }

    /// Passes queued pieces to the host; returns whether none is left.
    fn flush<S: ContentSockets<Id = I>>(
        &mut self,
        cx: &mut HttpConnectionEnv<'_, S>,
    ) -> Result<bool, SendError> {
        while let Some(piece) = self.pending.as_mut().and_then(|p| p.pop_front()) {
            if let ResponsePiece::File { file, .. } = piece {
                cx.responder.files.unpin(file);
            }
            if let Some(rest) = self.write_piece(cx, piece)? {
                if let Some(pending) = &mut self.pending {
                    pending.push_front(rest);
                }
                return Ok(false);
            }
        }
        self.pending = None;
        Ok(true)
    }

    fn begin_closing<S: ContentSockets<Id = I>>(&mut self, cx: &HttpConnectionEnv<'_, S>) {
        self.phase = HttpConnectionPhase::Closing;
        self.has_unacked = true;
        self.deadline = cx.now + cx.config.send_timeout;
    }

    /// Takes the last steps, in order: send everything, shut down the sending direction, wait for
    /// all acknowledgments, wait for the peer's FIN.
    fn close_when_done<S: ContentSockets<Id = I>>(
        &mut self,
        cx: &mut HttpConnectionEnv<'_, S>,
    ) -> ConnAction {
        loop {
            let bytes = cx.host.peek(self.socket).len();
            if bytes == 0 {
                break;
            }
            cx.responder.counters.http_discarded_bytes += bytes as u64;
            cx.host.consume(self.socket, bytes);
        }
        match self.flush(cx) {
            Ok(true) => {}
            Ok(false) => return ConnAction::Keep,
            Err(error) => {
                self.send_failed(cx, error);
                return ConnAction::Closed;
            }
        }
        if !self.send_closed {
            // A client that has closed its direction sends no further request either.
            let parting = self.close_after_reply || cx.host.readiness(self.socket).peer_closed;
            if parting && cx.config.teardown_offload {
                self.leave_to_host(cx);
                return ConnAction::Closed;
            }
            self.send_closed = true;
            cx.host.shutdown(cx.now, self.socket);
        }
        let ready = cx.host.readiness(self.socket);
        if ready.drained && self.has_unacked {
            self.has_unacked = false;
            self.deadline = cx.now + cx.config.linger_timeout;
        }
        if ready.drained && ready.peer_closed {
            cx.host.close(cx.now, self.socket);
            return ConnAction::Closed;
        }
        ConnAction::Keep
    }

    /// Leaves closing to the host: it delivers written bytes and discards those that still arrive.
    fn leave_to_host<S: ContentSockets<Id = I>>(&self, cx: &mut HttpConnectionEnv<'_, S>) {
        cx.host.close_lingering(cx.now, self.socket, cx.config.linger_bytes_max);
    }

    /// Handles the send timeout: continues if the peer acknowledged anything meanwhile, else
    /// resets.
    fn check_progress<S: ContentSockets<Id = I>>(
        &mut self,
        cx: &mut HttpConnectionEnv<'_, S>,
    ) -> ConnAction {
        let queued = cx.host.send_queue(self.socket);
        let acknowledged = self.written.saturating_sub(queued);
        if acknowledged > self.acknowledged {
            self.acknowledged = acknowledged;
            self.deadline = cx.now + cx.config.send_timeout;
            return ConnAction::Keep;
        }
        if queued == 0 && self.pending.is_none() {
            self.has_unacked = false;
            self.deadline = cx.now
                + match self.phase {
                    HttpConnectionPhase::Closing => cx.config.linger_timeout,
                    _ => cx.config.keepalive_timeout,
                };
            return ConnAction::Keep;
        }
        cx.responder.counters.http_timeouts_send += 1;
        cx.host.abort(cx.now, self.socket);
        cx.host.close(cx.now, self.socket);
        ConnAction::Closed
    }

    fn send_failed<S: ContentSockets<Id = I>>(
        &mut self,
        cx: &mut HttpConnectionEnv<'_, S>,
        error: SendError,
    ) -> RequestProgress {
        match error {
            SendError::NotConnected(error) => {
                self.handle_socket_error(cx, error);
            }
            // The file can no longer be sent. The connection is reset, so that the response does
            // not look complete.
            _ => {
                cx.host.abort(cx.now, self.socket);
                self.handle_socket_error(cx, SocketError::File(FileFault::BadExtent));
            }
        }
        RequestProgress::Gone
    }

    /// Handles a connection that has ended by an error.
    fn handle_socket_error<S: ContentSockets<Id = I>>(
        &mut self,
        cx: &mut HttpConnectionEnv<'_, S>,
        error: SocketError,
    ) -> ConnAction {
        let counters = &mut cx.responder.counters;
        match error {
            SocketError::File(fault) => {
                counters.http_aborted_file += 1;
                let remote = self.remote(cx);
                cx.responder.file_failed(cx.now, remote, self.file, fault);
            }
            // This side closed, and everything was delivered.
            SocketError::Closed => {}
            _ if self.has_unacked
                || matches!(
                    self.phase,
                    HttpConnectionPhase::Head
                        | HttpConnectionPhase::Content
                        | HttpConnectionPhase::Uploading
                        | HttpConnectionPhase::Opening
                ) =>
            {
                counters.http_aborted_peer += 1;
            }
            _ => {}
        }
        cx.host.close(cx.now, self.socket);
        ConnAction::Closed
    }
}

/// Opens the path that was decided on; evicts cached files if the host has no handle left.
fn open<S: ContentSockets>(cx: &mut HttpConnectionEnv<'_, S>) -> Option<FileId> {
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
mod tests {
    use super::*;

    #[test]
    fn an_idle_connection_is_small() {
        assert!(size_of::<Option<HttpConnection<host::SocketId>>>() <= 96);
    }
}
