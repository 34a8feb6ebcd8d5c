//! Deadlines of HTTP/3: for a request's head, for the next request, and for a client that
//! acknowledges nothing. The times are those of HTTP/1.1.
//!
//! QUIC's own idle timeout ends silent connections; these deadlines end connections that a client
//! keeps alive without requests. Each connection has at most one entry. Progress does not move it:
//! when the entry is due, the connection is checked, and gets a new entry if it made progress
//! meanwhile. So a deadline may fire after up to twice its time.

use std::collections::BTreeSet;

use base::{Duration, Instant};
use quic::{QuicHandle, StreamId};

use super::super::ContentServerConfig;
use super::super::status::HttpStatus;
use super::frame::Http3ErrorCode;
use super::{Http3, Http3Env, Http3Request};

/// The timeouts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Http3Timeouts {
    header: Duration,
    content: Duration,
    keepalive: Duration,
    send: Duration,
    linger: Duration,
}

impl Http3Timeouts {
    pub(super) const fn of(config: &ContentServerConfig) -> Self {
        let (header, keepalive) = (config.header_timeout, config.keepalive_timeout);
        let (content, linger) = (config.content_timeout, config.linger_timeout);
        Self { header, content, keepalive, send: config.send_timeout, linger }
    }

    /// Returns the time limit for opening a file.
    pub(super) const fn open(&self) -> Duration {
        self.send
    }

    /// Returns the time by which the request's head must have arrived, its file must be open, or
    /// enough of an upload must have arrived.
    fn of_request(&self, request: &Http3Request) -> Instant {
        if let Some(upload) = &request.upload {
            return upload.deadline;
        }
        request.since + if request.is_ready() { self.send } else { self.header }
    }
}

/// Times at which connections are to be checked.
#[derive(Debug, Default)]
pub(super) struct Http3Deadlines(BTreeSet<(Instant, QuicHandle)>);

impl Http3Deadlines {
    /// Moves the check of a connection, which is at `at`, to `to`; `None` for no check.
    pub(super) fn set(
        &mut self,
        handle: QuicHandle,
        at: &mut Option<Instant>,
        to: Option<Instant>,
    ) {
        if let Some(at) = *at {
            self.0.remove(&(at, handle));
        }
        if let Some(to) = to {
            self.0.insert((to, handle));
        }
        *at = to;
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.0.first().map(|(at, _)| *at)
    }

    fn pop(&mut self, now: Instant) -> Option<QuicHandle> {
        let (at, handle) = *self.0.first()?;
        (at <= now).then(|| {
            self.0.pop_first();
            handle
        })
    }
}

impl Http3 {
    /// Checks the connections whose time has come.
    pub(super) fn check_deadlines(&mut self, cx: &mut Http3Env<'_>) {
        while let Some(handle) = self.deadlines.pop(cx.now) {
            if let Some(connection) = self.connections.get_mut(&handle) {
                connection.check_at = None;
                self.check(cx, handle);
            }
        }
    }

    /// Makes sure that a connection is checked in time for the head that it waits for.
    pub(super) fn expect_head(&mut self, now: Instant, handle: QuicHandle) {
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        let by = now + self.times.header;
        if connection.check_at.is_none_or(|check| check > by) {
            self.deadlines.set(handle, &mut connection.check_at, Some(by));
        }
    }

    /// Makes sure that a connection that was sent GOAWAY is closed in time after the delivery of
    /// its last response.
    pub(super) fn expect_close(&mut self, now: Instant, handle: QuicHandle) {
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        connection.last_progress = now;
        let by = now + self.times.linger;
        if connection.goaway_sent.is_some() && connection.check_at.is_none_or(|check| check > by) {
            self.deadlines.set(handle, &mut connection.check_at, Some(by));
        }
    }

    fn check(&mut self, cx: &mut Http3Env<'_>, handle: QuicHandle) {
        self.check_uploads(cx, handle);
        for (stream, status) in self.overdue_requests(cx.now, handle) {
            self.reply_error(cx, handle, stream, status);
        }
        let Some(progress) = self.endpoint.progress(handle) else { return };
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        if connection.frames_sent != progress.stream_frames {
            connection.frames_sent = progress.stream_frames;
            connection.last_progress = cx.now;
        }
        // The control stream of the server never ends.
        let sending = progress.streams > 1;
        let times = self.times;
        let counters = &mut cx.responder.counters;
        // A close discards data that the client acknowledged and its program has not read yet,
        // so the client has time to close first (RFC 9114 section 5.2), as in HTTP/1.1.
        let is_done = connection.goaway_sent.is_some() && connection.requests.is_empty();
        let (limit, counter, code) = match connection.served {
            // Section 8.1: a response that is cut off is an error.
            _ if sending => {
                (times.send, &mut counters.http_timeouts_send, Http3ErrorCode::RequestCancelled)
            }
            _ if is_done => {
                (times.linger, &mut counters.http_timeouts_linger, Http3ErrorCode::NoError)
            }
            0 => (times.header, &mut counters.http_timeouts_header, Http3ErrorCode::NoError),
            _ => (times.keepalive, &mut counters.http_timeouts_keepalive, Http3ErrorCode::NoError),
        };
        let until = connection.last_progress + limit;
        if until <= cx.now {
            *counter += 1;
            self.close(cx, handle, code);
            return;
        }
        let requests = connection.requests.values().map(|request| times.of_request(request));
        let next = requests.fold(until, Instant::min);
        self.deadlines.set(handle, &mut connection.check_at, Some(next));
    }

    /// Extends the deadlines of uploads of which enough has arrived; the others fail. A connection
    /// with uploads makes progress.
    fn check_uploads(&mut self, cx: &mut Http3Env<'_>, handle: QuicHandle) {
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        let Some(uploads) = &mut cx.responder.uploads else { return };
        for upload in connection.requests.values_mut().filter_map(|r| r.upload.as_mut()) {
            connection.last_progress = cx.now;
            if upload.deadline > cx.now {
                continue;
            }
            upload.deadline = cx.now + self.times.content;
            if let Err(refusal) = uploads.check_pace(upload.id) {
                cx.responder.counters.count_upload_timeout(refusal);
            }
        }
    }

    /// Returns the requests that have waited too long, with the status of the response.
    fn overdue_requests(&self, now: Instant, handle: QuicHandle) -> Vec<(StreamId, HttpStatus)> {
        let Some(connection) = self.connections.get(&handle) else { return Vec::new() };
        let is_stale = |r: &Http3Request| r.upload.is_none() && self.times.of_request(r) <= now;
        let stale = connection.requests.iter().filter(|(_, request)| is_stale(request));
        let status = |is_ready| {
            if is_ready { HttpStatus::ServiceUnavailable } else { HttpStatus::RequestTimeout }
        };
        stale.map(|(&stream, request)| (stream, status(request.is_ready()))).collect()
    }

    /// Answers a request whose head did not arrive, or whose file was not opened in time.
    fn reply_error(
        &mut self,
        cx: &mut Http3Env<'_>,
        handle: QuicHandle,
        stream: StreamId,
        status: HttpStatus,
    ) {
        let counters = &mut cx.responder.counters;
        match status {
            HttpStatus::RequestTimeout => counters.http_timeouts_header += 1,
            _ => counters.http_timeouts_open += 1,
        }
        let remote = self.endpoint.remote(handle).map(|remote| remote.ip());
        let plan = cx.responder.error_reply(cx.now, status, remote);
        self.endpoint.stop(handle, stream, Http3ErrorCode::NoError as u32);
        self.respond(cx, handle, stream, &plan);
        // The stream was stopped, so its end is not reported and would not remove the entry.
        if let Some(connection) = self.connections.get_mut(&handle) {
            connection.answered.remove(&stream);
        }
    }

    /// Ends each connection once its requests are answered; refuses new connections.
    pub(crate) fn drain(&mut self, cx: &mut Http3Env<'_>) {
        self.endpoint.stop_accepting();
        self.requests_max = 1;
        let handles: Vec<QuicHandle> = self.connections.keys().copied().collect();
        for handle in handles {
            self.send_goaway(handle);
            self.check(cx, handle);
        }
        self.advance(cx);
    }

    /// Closes all connections at once. A response that is cut off must not look complete, so such a
    /// connection is closed with an error.
    pub(crate) fn end(&mut self, cx: &mut Http3Env<'_>) {
        self.endpoint.stop_accepting();
        let handles: Vec<QuicHandle> = self.connections.keys().copied().collect();
        for handle in handles {
            let has_none = self.connections.get(&handle).is_some_and(|c| c.requests.is_empty());
            // The control stream is always open.
            let sent = self.endpoint.progress(handle).is_none_or(|progress| progress.streams <= 1);
            let is_idle = has_none && sent;
            let code =
                if is_idle { Http3ErrorCode::NoError } else { Http3ErrorCode::InternalError };
            self.close(cx, handle, code);
        }
        self.advance(cx);
    }
}
