//! Results of a run: its trace, the responses of its clients, and the first violation.

use base::{Duration, Instant};
use wire::Endpoint;

use crate::http::{CheckedResponse, FileRequest};
use crate::trace::{Trace, mix};
use crate::uploads::ledger::UploadLedger;

/// Time after the faults in which their effects may still end a connection: a file that changed may
/// be assumed unchanged for a second.
const GRACE: Duration = Duration::from_secs(3);

/// A violation that a checker has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Time of the violation.
    pub at: Instant,
    /// Name of the checker.
    pub checker: &'static str,
    /// Description.
    pub what: String,
}

base::counters! {
    /// Statistics of the clients of a run.
    pub struct Stats {
        /// Complete and correct responses.
        responses,
        /// Responses with a file or a part of one.
        responses_ok,
        /// Responses that failed by the server's own fault.
        responses_failed,
        /// Bytes read.
        bytes,
        /// Bytes that clients sent after their last request.
        late_bytes,
        /// Connections that ended with an error.
        errors,
        /// Connections that the client reset.
        aborts,
        /// Connections that clients broke off during uploads, included in `aborts`.
        uploads_broken,
        /// Connections opened again for unanswered requests.
        retries,
        /// Responses and alerts of a proxy's own, after which the client retried.
        retries_of_proxy,
        /// Times that a device resumed decryption after the faults, having missed records.
        offloaded_again,
        /// Handshakes completed by HTTP/3 clients.
        h3_connections,
        /// Responses over HTTP/3, included in `responses`.
        h3_responses,
        /// Streams that the server reset by its own fault.
        h3_failed,
        /// QUIC connections that ended early.
        h3_lost,
        /// QUIC connections that the server closed before all requests were answered.
        h3_closed_early,
        /// QUIC connections long enough to be offloaded at the server.
        h3_long,
        /// Key updates by clients.
        h3_key_updates,
    }
}

/// Summary of a response, for the comparison of runs. In storage, of a request or of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResponseRow {
    /// The client's node.
    pub node: usize,
    /// Index of the session.
    pub session: usize,
    /// Index of the request in the session.
    pub request: usize,
    /// Status of the response.
    pub status: u16,
    /// Version of the file that the response named.
    pub version: Option<u64>,
    /// Bytes of the body; 0 for several parts.
    pub bytes: u64,
    /// Hash over the body.
    pub hash: u64,
}

/// Summary of what one end of a connection sent, for the comparison of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamRow {
    /// The client's endpoint.
    pub client: Endpoint,
    /// True if the server sent it.
    pub from_server: bool,
    /// Bytes of the TCP stream.
    pub bytes: usize,
    /// Hash over these bytes.
    pub hash: u64,
}

/// Data collected during a run.
#[derive(Debug)]
pub(crate) struct RunReport {
    pub(crate) trace: Trace,
    pub(crate) stats: Stats,
    pub(crate) rows: Vec<ResponseRow>,
    /// Hash over the Date fields of all responses: runs with different dates have different bytes
    /// on the link.
    pub(crate) dates: u64,
    /// The first violation; it ends the run.
    pub(crate) violation: Option<Violation>,
    /// Connections that the server closed in order: the client's node, its endpoint, and the bytes
    /// it read.
    pub(crate) ended: Vec<(usize, Endpoint, u64)>,
    /// Connections whose handshake ended with an alert that may be the proxy's: the client's node
    /// and its endpoint.
    pub(crate) alerted: Vec<(usize, Endpoint)>,
    /// Permitted contents of the paths of uploads.
    pub(crate) uploads: UploadLedger,
    /// Time after the faults in which their effects may still end a connection.
    pub(crate) grace: Duration,
    /// Time at which the faults ended.
    pub(crate) healed_at: Option<Instant>,
    /// A program terminates in the middle of the run.
    pub(crate) programs_end: bool,
    /// A server's program starts again in the middle of the run.
    pub(crate) servers_restart: bool,
    /// A device that took over a closing connection dropped data behind a frame that its host had
    /// yet to return: the peer sends it again after a time-out.
    pub(crate) late_data_dropped: bool,
    /// True if a connection may end with an error while the faults and their effects last.
    pub(crate) errors_allowed: bool,
    /// True if the server may fail requests by its own fault while the faults and their effects
    /// last.
    pub(crate) failures_allowed: bool,
}

impl RunReport {
    pub(crate) fn new(whole_trace: bool) -> Self {
        Self {
            trace: Trace::new(whole_trace),
            stats: Stats::default(),
            rows: Vec::new(),
            dates: 0,
            violation: None,
            ended: Vec::new(),
            alerted: Vec::new(),
            uploads: UploadLedger::default(),
            grace: GRACE,
            healed_at: None,
            programs_end: false,
            servers_restart: false,
            late_data_dropped: false,
            errors_allowed: false,
            failures_allowed: false,
        }
    }

    /// Records a violation, unless there was one before.
    pub(crate) fn fail(&mut self, at: Instant, checker: &'static str, what: impl Into<String>) {
        if self.violation.is_none() {
            self.violation = Some(Violation { at, checker, what: what.into() });
        }
    }

    /// Returns whether a connection that was opened at that time cannot be affected by faults.
    fn is_late(&self, opened: Instant) -> bool {
        self.healed_at.is_some_and(|healed| opened > healed + self.grace)
    }

    /// Records a complete response to a client's request.
    pub(crate) fn answered(
        &mut self,
        node: usize,
        (session, request): (usize, usize),
        ask: &FileRequest,
        mut answer: CheckedResponse,
        opened: Instant,
    ) {
        if let Err(what) = self.uploads.answered(ask, &mut answer) {
            self.fail(opened, "uploads", format!("n{node} session {session}.{request}: {what}"));
        }
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
        let CheckedResponse { status, version, body_bytes, hash, date, .. } = answer;
        // A sum, because the order of responses on different connections does not matter.
        let place = ((node as u64) << 32) ^ ((session as u64) << 16) ^ request as u64;
        self.dates = self.dates.wrapping_add(mix(date ^ mix(place)));
        self.rows.push(ResponseRow {
            node,
            session,
            request,
            status,
            version,
            bytes: body_bytes,
            hash,
        });
    }

    /// Records that the server reset a client's stream.
    pub(crate) fn h3_failed(&mut self, at: Instant, node: usize, opened: Instant) {
        self.stats.h3_failed += 1;
        if !self.failures_allowed || self.is_late(opened) {
            self.fail(at, "progress", format!("n{node}: a stream was given up without a cause"));
        }
    }

    /// Records a response or an alert of the proxy's own instead of a server's.
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

    /// Records that a client's connection ended with an error; `all` if it had all responses.
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
