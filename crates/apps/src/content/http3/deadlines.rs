//! How long HTTP/3 waits for a client: for a request's head, for the next request, and for a client
//! that takes nothing of what it is sent. The times are those of HTTP/1.1.
//!
//! QUIC's own idle time-out ends connections that are silent; these end the ones that a client
//! keeps alive with nothing to say. Each connection has one entry here. Progress does not move it:
//! a connection is looked at when its entry is due, and gets another where it went on meanwhile, so
//! that a deadline may be met up to twice as late as it is long.

use std::collections::BTreeSet;

use base::{Duration, Instant};
use quic::{Handle, StreamId};

use super::super::Config;
use super::super::status::Status;
use super::frame::Code;
use super::{Connection, Context, Http3, Request};

/// The time-outs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    header: Duration,
    keepalive: Duration,
    send: Duration,
}

impl Times {
    pub(super) const fn of(config: &Config) -> Self {
        let (header, keepalive) = (config.header_timeout, config.keepalive_timeout);
        Self { header, keepalive, send: config.send_timeout }
    }

    /// Until when a request's head has to be there, or its file.
    fn of_request(&self, request: &Request) -> Instant {
        request.since + if request.is_ready() { self.send } else { self.header }
    }
}

/// When connections are to be looked at.
#[derive(Debug, Default)]
pub(super) struct Deadlines(BTreeSet<(Instant, Handle)>);

impl Deadlines {
    /// Looks at a connection at another time than it was to be; none for never.
    pub(super) fn set(&mut self, handle: Handle, at: &mut Option<Instant>, to: Option<Instant>) {
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

    fn pop(&mut self, now: Instant) -> Option<Handle> {
        let (at, handle) = *self.0.first()?;
        (at <= now).then(|| {
            self.0.pop_first();
            handle
        })
    }
}

impl Http3 {
    /// Looks at the connections whose time has come.
    pub(super) fn check_deadlines(&mut self, cx: &mut Context<'_>) {
        while let Some(handle) = self.deadlines.pop(cx.now) {
            if let Some(connection) = self.connections.get_mut(&handle) {
                connection.check = None;
                self.check(cx, handle);
            }
        }
    }

    /// A head has to be waited for: its connection is looked at in time.
    pub(super) fn expect_head(&mut self, now: Instant, handle: Handle) {
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        let by = now + self.times.header;
        if connection.check.is_none_or(|check| check > by) {
            self.deadlines.set(handle, &mut connection.check, Some(by));
        }
    }

    fn check(&mut self, cx: &mut Context<'_>, handle: Handle) {
        for (stream, status) in self.stale(cx.now, handle) {
            self.give_up(cx, handle, stream, status);
        }
        let Some(progress) = self.endpoint.progress(handle) else { return };
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        if connection.frames_sent != progress.stream_frames {
            connection.frames_sent = progress.stream_frames;
            connection.active = cx.now;
        }
        // Our control stream never ends.
        let sending = progress.streams > 1;
        let times = self.times;
        let counters = &mut cx.responder.counters;
        let (limit, counter, code) = match connection.served {
            // Section 8.1: a response that is cut off is an error.
            _ if sending => (times.send, &mut counters.http_timeouts_send, Code::RequestCancelled),
            0 => (times.header, &mut counters.http_timeouts_header, Code::NoError),
            _ => (times.keepalive, &mut counters.http_timeouts_keepalive, Code::NoError),
        };
        let until = connection.active + limit;
        if until <= cx.now {
            *counter += 1;
            self.close(cx, handle, code);
            return;
        }
        let requests = connection.requests.values().map(|request| times.of_request(request));
        let next = requests.fold(until, Instant::min);
        self.deadlines.set(handle, &mut connection.check, Some(next));
    }

    /// Requests that were waited for too long, and what they are answered.
    fn stale(&self, now: Instant, handle: Handle) -> Vec<(StreamId, Status)> {
        let Some(connection) = self.connections.get(&handle) else { return Vec::new() };
        let stale = connection.requests.iter().filter(|(_, r)| self.times.of_request(r) <= now);
        let status = |is_ready| {
            if is_ready { Status::ServiceUnavailable } else { Status::RequestTimeout }
        };
        stale.map(|(&stream, request)| (stream, status(request.is_ready()))).collect()
    }

    /// Answers a request whose head did not come, or whose file does not open.
    fn give_up(&mut self, cx: &mut Context<'_>, handle: Handle, stream: StreamId, status: Status) {
        let counters = &mut cx.responder.counters;
        match status {
            Status::RequestTimeout => counters.http_timeouts_header += 1,
            _ => counters.http_timeouts_open += 1,
        }
        let remote = self.endpoint.remote(handle).map(|remote| remote.ip());
        let plan = cx.responder.give_up(cx.now, status, remote);
        self.endpoint.stop(handle, stream, Code::NoError as u32);
        self.respond(cx, handle, stream, &plan);
        // The stream was stopped: its end is not reported, so that the entry would stay.
        if let Some(connection) = self.connections.get_mut(&handle) {
            connection.answered.remove(&stream);
        }
    }

    /// Ends all connections, each when its requests are answered; new ones are refused.
    pub(crate) fn drain(&mut self, cx: &mut Context<'_>) {
        self.endpoint.refuse_new();
        self.requests_max = 1;
        let handles: Vec<Handle> = self.connections.keys().copied().collect();
        for handle in handles {
            self.go_away(handle);
            self.close_if_done(cx, handle);
        }
        self.advance(cx);
    }

    /// Closes every connection, whatever is on its way: a response that is cut off must not look
    /// like one that is complete.
    pub(crate) fn end(&mut self, cx: &mut Context<'_>) {
        self.endpoint.refuse_new();
        let handles: Vec<Handle> = self.connections.keys().copied().collect();
        for handle in handles {
            let has_none = self.connections.get(&handle).is_some_and(|c| c.requests.is_empty());
            // The control stream is always there.
            let sent = self.endpoint.progress(handle).is_none_or(|progress| progress.streams <= 1);
            let is_idle = has_none && sent;
            let code = if is_idle { Code::NoError } else { Code::InternalError };
            self.close(cx, handle, code);
        }
        self.advance(cx);
    }

    /// Ends a connection that was told to go away, once it has all that it asked for.
    pub(super) fn close_if_done(&mut self, cx: &mut Context<'_>, handle: Handle) {
        let done =
            |connection: &Connection| connection.last.is_some() && connection.requests.is_empty();
        if self.connections.get(&handle).is_some_and(done)
            && self.endpoint.progress(handle).is_some_and(|progress| progress.streams <= 1)
        {
            self.close(cx, handle, Code::NoError);
        }
    }
}
