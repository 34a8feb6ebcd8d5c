//! The client's HTTP/3: sessions like those over TCP ([`crate::client`]), over QUIC.
//!
//! Part of a client's machine in scenarios with QUIC; shares its host. A session requests its files
//! on streams of one connection at a time; if that ends before all responses are complete, it opens
//! another and requests the rest. [`crate::http`] checks the responses, whose fields are converted
//! to an HTTP/1.1 head. A transfer either completes or fails for a stated reason.

use core::net::SocketAddr;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use apps::content::http3_client::{Http3ResponseParser, Http3ResponsePart, control, request};
use base::{Duration, Instant, Prng};
use bytes::Bytes;
use host::{Application as _, Notice};
use quic::{
    ConnectionError, Dir, QuicEndpoint, QuicEvent, QuicHandle, StreamEvent, StreamId,
    StreamReadError, TransportErrorCode,
};

use crate::client::ClientEnv;
use crate::faults::{ClientLoad, Scenario};
use crate::http::{CheckedResponse, FileRequest, RequestKind, ResponseChecker};
use crate::quic::{QuicScenario, SERVER_PORT};
use crate::tls;
use crate::trace::TraceKind;
use crate::uploads::UploadSession;

/// Offset of session numbers in the trace, to keep them apart from those over TCP.
const SESSIONS: usize = 100;
/// Maximum number of consecutive tries of a session without a response.
const TRIES_MAX: u32 = 200;
/// Requests of a lasting session during the faults and after them.
const LASTING_ASKS: (usize, usize) = (2, 2);
/// Time after the faults for their effects to end.
const AFTER_FAULTS: Duration = Duration::from_millis(600);
/// Maximum size of a read.
const READ_BYTES: usize = 64 * 1024;
/// Bytes beyond the offload threshold after which the server must have offloaded a connection; it
/// does so at its next write.
const LONG_BYTES: u64 = 100 * 1024;
/// Time between stopping a stream and closing its connection.
const STOPPED: Duration = Duration::from_millis(200);

/// HTTP/3 error codes that a session may receive or send (RFC 9114 section 8.1).
const NO_ERROR: u32 = 0x0100;
const INTERNAL_ERROR: u64 = 0x0102;
const REQUEST_REJECTED: u64 = 0x010b;
const REQUEST_CANCELLED: u32 = 0x010c;

/// End of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum H3SessionEnd {
    /// It closes after the last response.
    Close,
    /// It falls silent: both ends time out as idle.
    Silent,
    /// After this many bytes it stops its streams and then closes, or closes at once.
    Abort { after: u64, stop: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum H3SessionStage {
    /// It opens a connection at that time.
    Idle(Instant),
    /// It has a connection.
    Open(QuicHandle),
    /// It closes its connection at that time.
    Closing(QuicHandle, Instant),
    Done,
}

/// A response in progress.
#[derive(Debug, Default)]
struct H3RequestStream {
    ask: usize,
    response: Http3ResponseParser,
    reader: ResponseChecker,
    answer: Option<CheckedResponse>,
}

#[derive(Debug)]
struct H3Session {
    asks: Vec<FileRequest>,
    answered: Vec<bool>,
    /// Maximum number of concurrent requests.
    depth: usize,
    /// Maximum bytes per read and the interval; `None` reads everything at once.
    pace: Option<(usize, Duration)>,
    end: H3SessionEnd,
    stage: H3SessionStage,
    connected: bool,
    /// The server has sent GOAWAY: it serves no more requests on this connection (RFC 9114 section
    /// 5.2).
    going_away: bool,
    streams: BTreeMap<StreamId, H3RequestStream>,
    /// Bytes read on this connection.
    read: u64,
    /// Value of `read` at which the keys are updated next.
    update_at: u64,
    opened: Instant,
    wake: Instant,
    may_read_at: Instant,
    tries: u32,
    /// Requests from this index on wait until that time.
    pause: Option<(usize, Instant)>,
    /// The number of the file that it uploads.
    uploads: Option<usize>,
    /// Times after which the next connections are broken off, and that time for the present one.
    breaks: VecDeque<Duration>,
    break_at: Instant,
}

impl H3Session {
    fn new(asks: Vec<FileRequest>, start: Instant) -> Self {
        Self {
            answered: vec![false; asks.len()],
            asks,
            depth: 1,
            pace: None,
            end: H3SessionEnd::Close,
            stage: H3SessionStage::Idle(start),
            connected: false,
            going_away: false,
            streams: BTreeMap::new(),
            read: 0,
            update_at: u64::MAX,
            opened: Instant::ZERO,
            wake: Instant::FAR_FUTURE,
            may_read_at: Instant::ZERO,
            tries: 0,
            pause: None,
            uploads: None,
            breaks: VecDeque::new(),
            break_at: Instant::FAR_FUTURE,
        }
    }

    fn has_all(&self) -> bool {
        self.answered.iter().all(|&answered| answered)
    }
}

/// The HTTP/3 client of a machine.
pub(crate) struct H3Client {
    node: usize,
    server: SocketAddr,
    endpoint: QuicEndpoint,
    tls: Arc<rustls::ClientConfig>,
    key_bytes: Option<u64>,
    /// Its external port changes.
    moves: bool,
    /// Bytes after which a connection must have been offloaded.
    long_bytes: u64,
    sessions: Vec<H3Session>,
    /// Generator for the session after the faults.
    last: Prng,
    /// The upload after the faults.
    last_upload: Vec<FileRequest>,
}

impl H3Client {
    /// Returns a client that begins at `start`, on its machine's clock.
    pub(crate) fn new(
        node: usize,
        server: core::net::IpAddr,
        endpoint: QuicEndpoint,
        (scenario, quic): (&Scenario, &QuicScenario),
        files: &[(String, u64)],
        start: Instant,
    ) -> Self {
        let mut rng = Prng::new(scenario.seed ^ ((node as u64) << 32) ^ 0x1e3c_11e7);
        let r = &mut rng;
        let count = r.range(1, quic.sessions_max);
        let mut sessions: Vec<_> =
            (0..count).map(|_| draw_session(r, &scenario.crowd, files, start)).collect();
        let last = r.fork();
        let end = start + scenario.fault_time + AFTER_FAULTS;
        sessions.push(lasting_session(r, files, start, end));
        let uploads = scenario.uploads.as_ref().and_then(|uploads| uploads.of(node, true));
        sessions.extend(uploads.map(|uploads| upload_session(r, uploads, start)));
        let last_upload = uploads.map(|uploads| uploads.last.clone()).unwrap_or_default();
        Self {
            node,
            server: SocketAddr::new(server, SERVER_PORT),
            endpoint,
            tls: tls::quic_client(quic.suite, node),
            key_bytes: quic.key_bytes,
            moves: quic.rebindings > 0,
            long_bytes: quic.offload_bytes_min + LONG_BYTES,
            sessions,
            last,
            last_upload,
        }
    }

    /// Adds a session after the faults, which must succeed without errors.
    pub(crate) fn add_last(&mut self, files: &[(String, u64)], at: Instant) {
        let mut rng = self.last.clone();
        let asks = (0..2).map(|_| FileRequest::draw(&mut rng, files, 0.0)).collect();
        self.sessions.push(H3Session::new(asks, at));
        let uploads = core::mem::take(&mut self.last_upload);
        if let Some(file) = uploads.first().map(|request| request.file) {
            self.sessions.push(H3Session { uploads: Some(file), ..H3Session::new(uploads, at) });
        }
    }

    /// Returns whether all sessions are done.
    pub(crate) fn is_done(&self) -> bool {
        self.sessions.iter().all(|s| s.stage == H3SessionStage::Done)
    }

    /// Returns a description of unfinished sessions for a report.
    pub(crate) fn describe(&self) -> Vec<String> {
        let waits = self.sessions.iter().filter(|s| s.stage != H3SessionStage::Done);
        let describe = |s: &H3Session| {
            let H3Session { stage, read, tries, .. } = s;
            let all = s.asks.len();
            let got = s.answered.iter().filter(|&&answered| answered).count();
            let node = self.node;
            format!("h3 n{node}: {stage:?}, {got} of {all} answered, {read} bytes, {tries} tries")
        };
        waits.map(describe).collect()
    }

    /// Returns the time at which to call [`Self::handle_timeout`], on the node's clock.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let next = |s: &H3Session| match s.stage {
            H3SessionStage::Idle(at) | H3SessionStage::Closing(_, at) => at,
            H3SessionStage::Open(_) => s.wake.min(s.break_at),
            H3SessionStage::Done => Instant::FAR_FUTURE,
        };
        let sessions = self.sessions.iter().map(next).filter(|&at| at != Instant::FAR_FUTURE);
        sessions.chain(self.endpoint.poll_timeout()).min()
    }

    /// Visits all counters of the endpoint.
    pub(crate) fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.endpoint.visit(f);
    }

    /// Handles a notice of the host.
    pub(crate) fn handle_notice(&mut self, notice: Notice, cx: &mut ClientEnv<'_>) {
        self.endpoint.handle_notice(cx.local, cx.host, notice);
    }

    /// Handles expired timers.
    pub(crate) fn handle_timeout(&mut self, cx: &mut ClientEnv<'_>) {
        self.endpoint.handle_timeout(cx.local, cx.host);
        for index in 0..self.sessions.len() {
            match self.sessions[index].stage {
                H3SessionStage::Idle(at) if at <= cx.local => self.open(index, cx),
                H3SessionStage::Closing(handle, at) if at <= cx.local => {
                    self.close(index, handle, cx)
                }
                H3SessionStage::Open(_) if self.sessions[index].break_at <= cx.local => {
                    self.break_off(index, cx);
                }
                H3SessionStage::Open(_) if self.sessions[index].wake <= cx.local => {
                    self.sessions[index].wake = Instant::FAR_FUTURE;
                    self.drive(index, cx);
                }
                _ => {}
            }
        }
    }

    /// Handles events of the endpoint and lets it send. Called after every other call.
    pub(crate) fn advance(&mut self, cx: &mut ClientEnv<'_>) {
        while let Some(event) = self.endpoint.poll_event() {
            let handle = match &event {
                QuicEvent::Connected(handle)
                | QuicEvent::Stream(handle, _)
                | QuicEvent::Lost(handle, _) => *handle,
            };
            let is_it = |s: &H3Session| match s.stage {
                H3SessionStage::Open(open) | H3SessionStage::Closing(open, _) => open == handle,
                H3SessionStage::Idle(_) | H3SessionStage::Done => false,
            };
            let Some(index) = self.sessions.iter().position(is_it) else { continue };
            match event {
                QuicEvent::Connected(_) => self.connected(index, handle, cx),
                QuicEvent::Lost(_, why) => self.lost(index, &why, cx),
                QuicEvent::Stream(_, StreamEvent::Opened { dir }) => {
                    // The server's control stream needs no reaction.
                    while self.endpoint.accept_stream(handle, dir).is_some() {}
                }
                QuicEvent::Stream(..) => self.drive(index, cx),
            }
        }
        self.endpoint.flush(cx.local, cx.host);
    }

    fn open(&mut self, index: usize, cx: &mut ClientEnv<'_>) {
        let (now, server) = (cx.local, self.server);
        let opened = self.endpoint.connect(now, cx.host, server, tls::NAME, &self.tls);
        let Ok(handle) = opened else {
            return cx.report.fail(cx.now, "client", "no QUIC connection can be opened");
        };
        let session = &mut self.sessions[index];
        if let Some(file) = session.uploads {
            cx.report.uploads.connection_ended(file);
        }
        let breaks = session.breaks.pop_front();
        session.break_at = breaks.map_or(Instant::FAR_FUTURE, |after| now + after);
        session.tries += 1;
        session.stage = H3SessionStage::Open(handle);
        session.connected = false;
        session.going_away = false;
        session.streams.clear();
        session.read = 0;
        session.update_at = self.key_bytes.unwrap_or(u64::MAX);
        session.opened = cx.now;
        session.wake = Instant::FAR_FUTURE;
        session.may_read_at = Instant::ZERO;
        let fields = [(SESSIONS + index) as u64, SERVER_PORT.into(), session.tries.into(), 0, 0];
        cx.report.trace.note(cx.now, self.node, TraceKind::Connect, fields);
    }

    fn connected(&mut self, index: usize, handle: QuicHandle, cx: &mut ClientEnv<'_>) {
        cx.report.stats.h3_connections += 1;
        self.sessions[index].connected = true;
        if let Some(stream) = self.endpoint.open_stream(handle, Dir::Uni) {
            self.endpoint.write(handle, stream, Bytes::from(control()));
        }
        self.drive(index, cx);
    }

    /// Makes all possible progress on a session.
    fn drive(&mut self, index: usize, cx: &mut ClientEnv<'_>) {
        let H3SessionStage::Open(handle) = self.sessions[index].stage else { return };
        if let Err(what) = self.read(index, handle, cx) {
            let what = format!("client n{} h3 session {index}: {what}", self.node);
            return cx.report.fail(cx.now, "bytes", what);
        }
        let session = &mut self.sessions[index];
        if session.stage != H3SessionStage::Open(handle) || !session.connected {
            return;
        }
        if session.read >= session.update_at {
            session.update_at = session.read + self.key_bytes.unwrap_or(u64::MAX);
            cx.report.stats.h3_key_updates += 1;
            self.endpoint.update_keys(handle);
        }
        match session.end {
            H3SessionEnd::Abort { after, stop } if session.read >= after => {
                cx.report.stats.aborts += 1;
                for &stream in session.streams.keys() {
                    self.endpoint.stop(handle, stream, REQUEST_CANCELLED);
                }
                let wait = if stop { STOPPED } else { Duration::ZERO };
                session.stage = H3SessionStage::Closing(handle, cx.local + wait);
            }
            H3SessionEnd::Silent if session.has_all() => session.stage = H3SessionStage::Done,
            _ if session.has_all() => self.close(index, handle, cx),
            _ if session.going_away && session.streams.is_empty() => {
                if let Err(what) = self.again(index, cx) {
                    cx.report.fail(cx.now, "progress", what);
                }
            }
            _ if session.going_away => {}
            _ => self.ask(index, handle, cx),
        }
    }

    fn close(&mut self, index: usize, handle: QuicHandle, cx: &mut ClientEnv<'_>) {
        let session = &mut self.sessions[index];
        session.stage = H3SessionStage::Done;
        let fields = [(SESSIONS + index) as u64, session.read, 0, 0, 0];
        cx.report.trace.note(cx.now, self.node, TraceKind::Close, fields);
        self.endpoint.close(cx.local, cx.host, handle, NO_ERROR, "");
    }

    /// Sends requests that were not sent on this connection, within the session's limits.
    fn ask(&mut self, index: usize, handle: QuicHandle, cx: &mut ClientEnv<'_>) {
        let session = &mut self.sessions[index];
        for ask in 0..session.asks.len() {
            if session.streams.len() >= session.depth {
                return;
            }
            let under_way = session.streams.values().any(|stream| stream.ask == ask);
            if session.answered[ask] || under_way {
                continue;
            }
            match session.pause {
                Some((from, until)) if ask >= from && until > cx.local => {
                    session.wake = session.wake.min(until);
                    return;
                }
                _ => {}
            }
            let Some(stream) = self.endpoint.open_stream(handle, Dir::Bi) else { return };
            self.endpoint.write(handle, stream, Bytes::from(text(&session.asks[ask])));
            cx.report.uploads.sent(&session.asks[ask]);
            self.endpoint.finish(handle, stream);
            session.streams.insert(stream, H3RequestStream { ask, ..H3RequestStream::default() });
        }
    }

    /// Reads and checks available data.
    fn read(
        &mut self,
        index: usize,
        handle: QuicHandle,
        cx: &mut ClientEnv<'_>,
    ) -> Result<(), String> {
        let session = &mut self.sessions[index];
        if session.may_read_at > cx.local {
            session.wake = session.wake.min(session.may_read_at);
            return Ok(());
        }
        let mut budget = session.pace.map_or(usize::MAX, |(bytes, _)| bytes);
        let streams: Vec<_> = session.streams.keys().copied().collect();
        for stream in streams {
            while budget > 0 {
                match self.endpoint.read(handle, stream, budget.min(READ_BYTES)) {
                    Ok(bytes) => {
                        budget -= bytes.len();
                        self.take(index, stream, &bytes, cx)?;
                    }
                    Err(StreamReadError::Blocked) => break,
                    Err(end) => {
                        self.ended(index, stream, end, cx)?;
                        break;
                    }
                }
            }
        }
        let session = &mut self.sessions[index];
        if let Some((_, every)) = session.pace.filter(|_| budget == 0) {
            session.may_read_at = cx.local + every;
            session.wake = session.wake.min(session.may_read_at);
        }
        Ok(())
    }

    /// Checks bytes of a response.
    fn take(
        &mut self,
        index: usize,
        id: StreamId,
        bytes: &[u8],
        cx: &mut ClientEnv<'_>,
    ) -> Result<(), String> {
        let session = &mut self.sessions[index];
        let before = session.read;
        session.read += bytes.len() as u64;
        let long = before < self.long_bytes && session.read >= self.long_bytes;
        cx.report.stats.h3_long += u64::from(long);
        cx.report.stats.bytes += bytes.len() as u64;
        let Some(stream) = session.streams.get_mut(&id) else { return Ok(()) };
        let H3RequestStream { ask, response, reader, answer } = stream;
        let ask = &session.asks[*ask];
        let mut rest = bytes;
        while let Some(part) = response.next(&mut rest).map_err(str::to_owned)? {
            let head;
            let bytes = match part {
                Http3ResponsePart::Head(fields) => {
                    head = head_text(&fields)?;
                    head.as_bytes()
                }
                Http3ResponsePart::Content(content) => content,
            };
            if answer.is_some() {
                return Err(format!("{} bytes behind an answer", bytes.len()));
            }
            let (used, whole) = reader.take(bytes, ask, &cx.disk.catalogue)?;
            if used != bytes.len() {
                return Err(format!("{} bytes behind an answer", bytes.len() - used));
            }
            *answer = whole;
        }
        Ok(())
    }

    /// Handles the end of a stream: its response is complete, or the stream was reset.
    fn ended(
        &mut self,
        index: usize,
        id: StreamId,
        end: StreamReadError,
        cx: &mut ClientEnv<'_>,
    ) -> Result<(), String> {
        let session = &mut self.sessions[index];
        let Some(stream) = session.streams.remove(&id) else { return Ok(()) };
        match end {
            StreamReadError::Finished => {}
            StreamReadError::Reset(INTERNAL_ERROR) => {
                cx.report.h3_failed(cx.now, self.node, session.opened);
                return self.again(index, cx);
            }
            StreamReadError::Reset(REQUEST_REJECTED) => {
                session.going_away = true;
                return Ok(());
            }
            _ => return Err(format!("a stream ended by {end:?}")),
        }
        let Some(answer) = stream.answer.filter(|_| stream.response.may_end_here()) else {
            return Err(String::from("a stream ended within a response"));
        };
        let (number, ask) = (SESSIONS + index, stream.ask);
        let fields =
            [number as u64, ask as u64, answer.status.into(), answer.body_bytes, answer.hash];
        cx.report.trace.note(cx.now, self.node, TraceKind::Response, fields);
        let request = &session.asks[ask];
        cx.report.answered(self.node, (number, ask), request, answer, session.opened);
        cx.report.stats.h3_responses += 1;
        session.answered[ask] = true;
        session.tries = 0;
        Ok(())
    }

    /// Handles a connection that ended other than by this client.
    fn lost(&mut self, index: usize, why: &ConnectionError, cx: &mut ClientEnv<'_>) {
        let session = &mut self.sessions[index];
        // The server closes the connection after GOAWAY and the last response, or if it is idle
        // (RFC 9114 section 5.2).
        let in_order = matches!(why, ConnectionError::ApplicationClosed(close)
            if close.error_code == NO_ERROR.into()
                || (cx.report.programs_end && close.error_code.into_inner() == INTERNAL_ERROR));
        let kind = match why {
            _ if in_order => 7,
            ConnectionError::TimedOut => 1,
            ConnectionError::Reset => 2,
            ConnectionError::VersionMismatch => 3,
            ConnectionError::LocallyClosed => 4,
            // RFC 9000 section 8.1.2: the token was for an address that the client no longer has.
            ConnectionError::ConnectionClosed(close)
                if close.error_code == TransportErrorCode::INVALID_TOKEN =>
            {
                6
            }
            // A program that terminates refuses new connections.
            ConnectionError::ConnectionClosed(close)
                if cx.report.programs_end
                    && close.error_code == TransportErrorCode::CONNECTION_REFUSED =>
            {
                8
            }
            // A server that started again during a handshake knows only the connection ID that the
            // previous one had chosen (RFC 9000 section 7.3).
            ConnectionError::TransportError(error)
                if cx.report.servers_restart
                    && error.code == TransportErrorCode::TRANSPORT_PARAMETER_ERROR =>
            {
                9
            }
            // Whatever happens to packets, those that authenticate are as they were sent.
            _ => {
                let what = format!("n{} h3 session {index}: {why}", self.node);
                cx.report.fail(cx.now, "quic", what);
                5
            }
        };
        let fields = [(SESSIONS + index) as u64, kind, session.read, 0, 0];
        cx.report.trace.note(cx.now, self.node, TraceKind::Error, fields);
        // A handshake must not change its address (RFC 9000 section 9).
        let moved = self.moves && session.read == 0;
        let done = session.has_all() || matches!(session.stage, H3SessionStage::Closing(..));
        cx.report.stats.h3_closed_early += u64::from(in_order && !done);
        if !in_order {
            cx.report.stats.h3_lost += 1;
            cx.report.lost(cx.now, self.node, session.opened, why, done || moved);
        }
        if done || matches!(session.end, H3SessionEnd::Abort { .. }) {
            session.stage = H3SessionStage::Done;
            return;
        }
        session.streams.clear();
        if let Err(what) = self.again(index, cx) {
            cx.report.fail(cx.now, "progress", what);
        }
    }

    /// Breaks off the connection of an upload, and continues with another.
    fn break_off(&mut self, index: usize, cx: &mut ClientEnv<'_>) {
        cx.report.stats.aborts += 1;
        cx.report.stats.uploads_broken += 1;
        if let Err(what) = self.again(index, cx) {
            cx.report.fail(cx.now, "progress", what);
        }
    }

    /// Schedules another connection for unanswered requests.
    fn again(&mut self, index: usize, cx: &mut ClientEnv<'_>) -> Result<(), String> {
        let session = &mut self.sessions[index];
        cx.report.stats.retries += 1;
        if session.tries >= TRIES_MAX {
            return Err(format!("{} tries, no answer", session.tries));
        }
        if let H3SessionStage::Open(handle) = session.stage {
            self.endpoint.close(cx.local, cx.host, handle, NO_ERROR, "");
        }
        let wait = Duration::from_millis(10) * u64::from(session.tries.min(50));
        session.stage = H3SessionStage::Idle(cx.local + wait);
        Ok(())
    }
}

/// Bytes of a DATA frame of an upload.
const DATA_BYTES: usize = 10_000;

/// Returns a request as an HTTP/3 message, with the content of an upload.
fn text(ask: &FileRequest) -> Vec<u8> {
    let plain = ask.text(false);
    let mut lines = plain.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let fields: Vec<_> = lines
        .filter_map(|line| line.split_once(": "))
        .filter(|(name, _)| !matches!(*name, "Host" | "Transfer-Encoding"))
        .map(|(name, value)| (name.to_ascii_lowercase(), value))
        .collect();
    let mut all =
        vec![(":method", method), (":scheme", "https"), (":authority", "sim"), (":path", path)];
    all.extend(fields.iter().map(|(name, value)| (name.as_str(), *value)));
    let mut message = request(&all);
    if let RequestKind::Put(put) = &ask.want {
        for piece in put.content(ask.version).chunks(DATA_BYTES) {
            put_data_frame(&mut message, piece);
        }
    }
    message
}

/// Appends a DATA frame whose length is encoded in four bytes (RFC 9000 section 16).
fn put_data_frame(message: &mut Vec<u8>, content: &[u8]) {
    message.push(0);
    message.extend((content.len() as u32 | 0x8000_0000).to_be_bytes());
    message.extend_from_slice(content);
}

/// Returns HTTP/3 fields as an HTTP/1.1 head.
fn head_text(fields: &[(Vec<u8>, Vec<u8>)]) -> Result<String, String> {
    let mut head = String::new();
    for (name, value) in fields {
        let field = core::str::from_utf8(name).ok().zip(core::str::from_utf8(value).ok());
        let (name, value) = field.ok_or("a field that is no text")?;
        head += &match name {
            ":status" => format!("HTTP/1.1 {value} \r\n"),
            _ if name.bytes().any(|byte| byte.is_ascii_uppercase()) => {
                return Err(format!("a field like {name:?}"));
            }
            _ => format!("{name}: {value}\r\n"),
        };
    }
    Ok(head + "\r\n")
}

/// Returns a session that begins with the faults and continues after them.
fn lasting_session(
    r: &mut Prng,
    files: &[(String, u64)],
    start: Instant,
    end: Instant,
) -> H3Session {
    let ask = |_| FileRequest::draw(r, files, 0.0);
    let asks: Vec<_> = (0..LASTING_ASKS.0 + LASTING_ASKS.1).map(ask).collect();
    let pause = Some((LASTING_ASKS.0, end));
    H3Session { pause, ..H3Session::new(asks, start + Duration::from_millis(1)) }
}

/// Returns a session that uploads files, one request at a time.
fn upload_session(r: &mut Prng, uploads: &UploadSession, start: Instant) -> H3Session {
    H3Session {
        uploads: uploads.requests.first().map(|request| request.file),
        breaks: uploads.breaks.iter().copied().collect(),
        ..H3Session::new(uploads.requests.clone(), start + Duration::from_micros(r.below(300_000)))
    }
}

fn draw_session(
    r: &mut Prng,
    crowd: &ClientLoad,
    files: &[(String, u64)],
    start: Instant,
) -> H3Session {
    let mut asks: Vec<_> = (0..r.range(1, crowd.requests_max))
        .map(|_| FileRequest::draw(r, files, crowd.odd))
        .collect();
    for ask in &mut asks {
        // A malformed request can only be written in HTTP/1.1.
        if ask.want == RequestKind::Nonsense {
            ask.want = RequestKind::Whole;
        }
    }
    let pace = r.chance(crowd.slow).then(|| {
        let bytes = r.range(500, 20_000) as usize;
        (bytes, Duration::from_micros(r.range(200, 20_000)))
    });
    let end = if r.chance(crowd.abort) {
        H3SessionEnd::Abort { after: r.below(crowd.abort_bytes_max), stop: r.chance(0.5) }
    } else if r.chance(0.2) {
        H3SessionEnd::Silent
    } else {
        H3SessionEnd::Close
    };
    let depth = if r.chance(0.4) { 1 } else { r.range(2, 8) as usize };
    let start = start + Duration::from_micros(r.below(300_000));
    H3Session { depth, pace, end, ..H3Session::new(asks, start) }
}
