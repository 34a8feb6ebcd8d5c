//! What a run leaves behind: its trace, what its clients got, and what was wrong.

use base::{Duration, Instant};
use wire::Endpoint;

use crate::http::Answer;
use crate::trace::{Trace, mix};

/// How long after the faults their effects may still end a connection: a file that changed may be
/// believed unchanged for a second.
const GRACE: Duration = Duration::from_secs(3);

/// A checker found something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When.
    pub at: Instant,
    /// Which checker.
    pub checker: &'static str,
    /// What.
    pub what: String,
}

base::counters! {
    /// What the clients of a run did.
    pub struct Stats {
        /// Responses that were whole and right.
        responses,
        /// Of these, whole files or parts.
        responses_ok,
        /// Of these, refused because of the server's own trouble.
        responses_failed,
        /// Bytes read.
        bytes,
        /// Bytes that clients sent behind the request that they said is their last.
        late_bytes,
        /// Connections that ended by an error.
        errors,
        /// Connections that the client reset.
        aborts,
        /// Connections opened again for what was not answered.
        retries,
        /// Of these, those that a proxy had answered itself.
        retries_of_proxy,
        /// Times that a device opened records again after the faults, having missed some.
        offloaded_again,
        /// Handshakes of HTTP/3's clients.
        h3_connections,
        /// Responses over HTTP/3, of those above.
        h3_responses,
        /// Streams that the server gave up for trouble of its own.
        h3_failed,
        /// Connections over QUIC that ended early.
        h3_lost,
        /// Connections over QUIC that the server closed before all was answered.
        h3_closed_early,
        /// Connections over QUIC that were long enough to be handed to the server's device.
        h3_long,
        /// Updates of keys that clients asked for.
        h3_key_updates,
    }
}

/// What a client got for a request: equal in two runs if the bytes were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    /// The client.
    pub node: usize,
    /// Its session.
    pub session: usize,
    /// The request in it.
    pub request: usize,
    /// Status of the response.
    pub status: u16,
    /// Version of the file that it named.
    pub version: Option<u64>,
    /// Bytes of the body, boundaries left out.
    pub bytes: u64,
    /// Hash over the body.
    pub hash: u64,
}

/// What one end of a connection put on the wire: equal in two runs if the bytes were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamRow {
    /// The client's end.
    pub client: Endpoint,
    /// Whether the server sent it.
    pub from_server: bool,
    /// Bytes of the TCP stream.
    pub bytes: usize,
    /// Hash over them.
    pub hash: u64,
}

/// What is gathered during a run.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) trace: Trace,
    pub(crate) stats: Stats,
    pub(crate) rows: Vec<Row>,
    /// Hash over when the answers were made, as they said: runs in which it differs have other
    /// bytes on the wire.
    pub(crate) dates: u64,
    /// The first thing that was wrong: the run ends there.
    pub(crate) violation: Option<Violation>,
    /// Connections that the server closed in order: the client, its end, and the bytes it read.
    pub(crate) ended: Vec<(usize, Endpoint, u64)>,
    /// Connections whose handshake ended by an alert that may be the proxy's: the client, its end.
    pub(crate) alerted: Vec<(usize, Endpoint)>,
    /// How long after the faults their effects may still end a connection.
    pub(crate) grace: Duration,
    /// When the faults ended.
    pub(crate) healed_at: Option<Instant>,
    /// A program ends in the middle of the world.
    pub(crate) programs_end: bool,
    /// Whether a connection may end by an error before that.
    pub(crate) errors_allowed: bool,
    /// Whether the server may refuse for reasons of its own before that.
    pub(crate) failures_allowed: bool,
}

impl Report {
    pub(crate) fn new(whole_trace: bool) -> Self {
        Self {
            trace: Trace::new(whole_trace),
            stats: Stats::default(),
            rows: Vec::new(),
            dates: 0,
            violation: None,
            ended: Vec::new(),
            alerted: Vec::new(),
            grace: GRACE,
            healed_at: None,
            programs_end: false,
            errors_allowed: false,
            failures_allowed: false,
        }
    }

    /// Something is wrong.
    pub(crate) fn fail(&mut self, at: Instant, checker: &'static str, what: impl Into<String>) {
        if self.violation.is_none() {
            self.violation = Some(Violation { at, checker, what: what.into() });
        }
    }

    /// Whether a connection that was opened then is free of all faults.
    fn is_late(&self, opened: Instant) -> bool {
        self.healed_at.is_some_and(|healed| opened > healed + self.grace)
    }

    /// A client has a whole answer.
    pub(crate) fn answered(
        &mut self,
        node: usize,
        session: usize,
        request: usize,
        answer: Answer,
        opened: Instant,
    ) {
        self.stats.responses += 1;
        self.stats.responses_ok += u64::from(matches!(answer.status, 200 | 206));
        if answer.failure {
            self.stats.responses_failed += 1;
            if !self.failures_allowed || self.is_late(opened) {
                let (status, request) = (answer.status, format!("session {session}.{request}"));
                let what = format!("n{node} {request}: {status} without a cause");
                self.fail(opened, "progress", what);
            }
        }
        let Answer { status, version, body_bytes, hash, date, .. } = answer;
        // A sum: the order of answers on different connections is nobody's business.
        let place = ((node as u64) << 32) ^ ((session as u64) << 16) ^ request as u64;
        self.dates = self.dates.wrapping_add(mix(date ^ mix(place)));
        self.rows.push(Row { node, session, request, status, version, bytes: body_bytes, hash });
    }

    /// The server gave a stream of a client's up.
    pub(crate) fn h3_failed(&mut self, at: Instant, node: usize, opened: Instant) {
        self.stats.h3_failed += 1;
        if !self.failures_allowed || self.is_late(opened) {
            self.fail(at, "progress", format!("n{node}: a stream was given up without a cause"));
        }
    }

    /// A client's proxy gave an answer of its own instead of a server's, as status or alert.
    pub(crate) fn refused_by_proxy(
        &mut self,
        at: Instant,
        node: usize,
        opened: Instant,
        what: u64,
    ) {
        self.stats.retries_of_proxy += 1;
        if !self.errors_allowed || self.is_late(opened) {
            let what = format!("n{node}: the proxy answered {what} without a cause");
            self.fail(at, "progress", what);
        }
    }

    /// A client's connection ended by an error; `all` says that it had all answers.
    pub(crate) fn lost(
        &mut self,
        at: Instant,
        node: usize,
        opened: Instant,
        error: impl core::fmt::Display,
        all: bool,
    ) {
        self.stats.errors += 1;
        if !all && (!self.errors_allowed || self.is_late(opened)) {
            let what =
                format!("n{node}: a connection opened at {opened} ended without a cause: {error}");
            self.fail(at, "progress", what);
        }
    }
}
