//! The client application: connections with requests, fast and slow readers, and retries.
//!
//! A client has sessions. A session requests its files over one connection at a time; if that ends
//! before all responses are complete, it opens another and requests the rest, repeatedly. After the
//! end of the faults no connection may fail: [`crate::checkers::progress`].

use std::collections::VecDeque;

use abi::l5o::ResyncMode;
use base::{Duration, Instant, Prng};
use bytes::Bytes;
use host::{ConnectError, Host, Notice, SocketError, SocketId, SocketOption};
use wire::Endpoint;

use crate::disk::SimDisk;
use crate::faults::{ClientLoad, Scenario, TlsScenario};
use crate::h3::H3Client;
use crate::http::{FileRequest, ResponseChecker};
use crate::late_data::LateRequestData;
use crate::proxy_scenario::INTERNAL_ERROR;
use crate::report::RunReport;
use crate::tls;
use crate::trace::TraceKind;
use crate::uploads::UploadSession;

/// Maximum number of consecutive tries of a session without a response.
const TRIES_MAX: u32 = 200;

/// Time until a client without a free port tries again.
const PORTS_WAIT: Duration = Duration::from_millis(300);
/// Requests of a lasting session during the faults and after them.
const LASTING_ASKS: (usize, usize) = (1, 3);
/// Size of a receive buffer that holds a record of any length, even if the advertised window lags.
const HOLDS_RECORDS: u32 = 32 * 1024;
/// Time after the faults for their effects to end: queues drain and losses are repaired.
const AFTER_FAULTS: Duration = Duration::from_millis(600);
/// Maximum number of consecutive records that a device may then fail to decrypt.
const MISSED_MAX: u64 = 40;

/// Decryption of a connection's records by the device, for property 9.
#[derive(Clone, Copy, Debug, Default)]
struct DecryptionProgress {
    /// Numbers of records decrypted fully, partly and not at all, at the last observation.
    before: Option<[u64; 3]>,
    /// Consecutive records since one was fully decrypted.
    missed: u64,
}

impl DecryptionProgress {
    /// Notes new numbers. Returns whether decryption has resumed after missed records.
    fn note(&mut self, now: [u64; 3]) -> bool {
        let before = self.before.replace(now).unwrap_or(now);
        let again = now[0] > before[0] && self.missed > 0;
        if now[0] > before[0] {
            self.missed = 0;
        } else {
            self.missed += now[1] + now[2] - before[1] - before[2];
        }
        again
    }
}

/// Reading speed of a session.
#[derive(Clone, Copy, Debug)]
enum ReadPace {
    /// Reads everything at once.
    Eager,
    /// Reads up to this many bytes per interval.
    Slow(usize, Duration),
}

/// End of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionEnd {
    /// It closes after the last response.
    Close,
    /// It sends `Connection: close` with its last request and waits for the server's FIN.
    Ask,
    /// It closes its own direction after the last request and waits for the server's FIN.
    HalfClose,
    /// It waits until the server closes, by its keep-alive timeout for example.
    Wait,
    /// It resets the connection after this many bytes and never returns.
    Abort(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HttpSessionStage {
    /// It opens a connection at that time.
    Idle(Instant),
    /// It has a connection.
    Open(SocketId),
    Done,
}

#[derive(Debug)]
struct HttpSession {
    asks: Vec<FileRequest>,
    /// Maximum number of pipelined requests.
    depth: usize,
    pace: ReadPace,
    /// Requests are written in pieces of this size at this interval.
    dribble: Option<(usize, Duration)>,
    end: SessionEnd,
    stage: HttpSessionStage,
    /// Requests that were answered.
    answered: usize,
    /// Requests that were written on this connection, plus those answered before it.
    written: usize,
    /// Data that the host had no room for, or that is written in pieces.
    to_send: Bytes,
    reader: ResponseChecker,
    /// Bytes read on this connection.
    read: u64,
    /// Time of its opening in simulated time.
    opened: Instant,
    established: bool,
    /// Time of the next action without an event.
    wake: Instant,
    may_send_at: Instant,
    tries: u32,
    shut: bool,
    /// Requests from this index on wait until that time.
    pause: Option<(usize, Instant)>,
    /// The number of the file that it uploads.
    uploads: Option<usize>,
    /// Times after which the next connections are broken off, and that time for the present one.
    breaks: VecDeque<Duration>,
    break_at: Instant,
    again: DecryptionProgress,
    /// Data sent after the last request.
    late: LateRequestData,
}

impl HttpSession {
    /// Returns a session that makes one request at a time, reads at once, and closes.
    fn new(asks: Vec<FileRequest>, start: Instant) -> Self {
        Self {
            asks,
            depth: 1,
            pace: ReadPace::Eager,
            dribble: None,
            end: SessionEnd::Close,
            stage: HttpSessionStage::Idle(start),
            answered: 0,
            written: 0,
            to_send: Bytes::new(),
            reader: ResponseChecker::default(),
            read: 0,
            opened: Instant::ZERO,
            established: false,
            wake: Instant::FAR_FUTURE,
            may_send_at: Instant::ZERO,
            tries: 0,
            shut: false,
            pause: None,
            uploads: None,
            breaks: VecDeque::new(),
            break_at: Instant::FAR_FUTURE,
            again: DecryptionProgress::default(),
            late: LateRequestData::default(),
        }
    }
}

/// The client's environment in a call.
pub(crate) struct ClientEnv<'a> {
    /// Simulated time and the node's own.
    pub(crate) now: Instant,
    pub(crate) local: Instant,
    pub(crate) host: &'a mut Host,
    pub(crate) disk: &'a SimDisk,
    pub(crate) report: &'a mut RunReport,
}

/// A client.
pub(crate) struct SimClient {
    node: usize,
    server: Endpoint,
    rng: Prng,
    sessions: Vec<HttpSession>,
    /// Generator for the session after the faults.
    last: Prng,
    /// The upload after the faults.
    last_upload: Vec<FileRequest>,
    /// Its connections use keep-alive.
    keep_alive: bool,
    /// It uses HTTPS.
    tls: Option<TlsScenario>,
    /// Its receive buffer holds any record whole, which decryption in place needs.
    holds_records: bool,
    /// Its proxy reads the ClientHello and may answer with an alert.
    alerts: bool,
    /// It may run out of ports for a while.
    few_ports: bool,
    /// Its HTTP/3 sessions.
    pub(crate) h3: Option<H3Client>,
}

impl SimClient {
    pub(crate) fn new(
        node: usize,
        server: Endpoint,
        mut rng: Prng,
        scenario: &Scenario,
        files: &[(String, u64)],
        start: Instant,
    ) -> Self {
        let (crowd, tls) = (&scenario.crowd, scenario.tls.clone());
        // Keep-alive is needed if a reset may never arrive: a proxy whose device was reset may have
        // to reset both connections; a reset may be lost, or be ignored because an attacker has
        // used up the challenge ACKs that would cause it to be repeated. A reset of the device
        // loses the connections that it tears down: a peer that only waits for the response learns
        // of it when it sends a probe (docs/engines/teardown.md).
        let attacked = scenario.hostile.interval.is_some();
        let loses_closures = scenario.hand_over.tear_down && scenario.resets > 0;
        let keep_alive =
            !scenario.calm_net() || scenario.proxied.is_some() || attacked || loses_closures;
        let r = &mut rng;
        let count = r.range(1, crowd.sessions_max);
        let mut sessions: Vec<_> =
            (0..count).map(|_| draw_session(r, crowd, files, start)).collect();
        if scenario.calm.is_some() {
            // Transfers must be over before the end of the disturbance.
            sessions.iter_mut().for_each(|session| session.end = SessionEnd::Close);
        }
        let last = r.fork();
        if scenario.proxied.is_none() {
            // Uses a generator of its own: the rest of the session does not depend on these draws.
            let mut own = last.clone().fork();
            let ask = sessions.iter_mut().filter(|session| session.end == SessionEnd::Ask);
            ask.for_each(|session| session.late = LateRequestData::draw(&mut own));
        }
        let lasts = tls.as_ref().filter(|_| scenario.calm.is_none());
        if let Some(end) = lasts.map(|_| start + scenario.fault_time + AFTER_FAULTS) {
            sessions.push(lasting_session(&mut last.clone(), files, start, end));
        }
        let uploads = scenario.uploads.as_ref().and_then(|uploads| uploads.of(node, false));
        sessions.extend(uploads.map(|uploads| upload_session(&mut last.clone(), uploads, start)));
        let last_upload = uploads.map(|uploads| uploads.last.clone()).unwrap_or_default();
        let holds_records = scenario.client_tcp.receive_bytes_max >= HOLDS_RECORDS;
        let alerts = scenario.proxy_alerts();
        let few_ports = scenario.ports.is_some();
        Self {
            node,
            server,
            rng,
            sessions,
            last,
            last_upload,
            keep_alive,
            tls,
            holds_records,
            alerts,
            few_ports,
            h3: None,
        }
    }

    /// Adds sessions over QUIC.
    pub(crate) fn with_h3(self, h3: Option<H3Client>) -> Self {
        Self { h3, ..self }
    }

    /// Adds a session after the faults, which must succeed without errors.
    pub(crate) fn add_last(&mut self, files: &[(String, u64)], at: Instant) {
        // Its requests do not depend on how much was drawn during the faults.
        let mut rng = self.last.clone();
        let crowd = ClientLoad {
            clients: 1,
            sessions_max: 1,
            requests_max: 2,
            slow: 0.0,
            dribble: 0.0,
            abort: 0.0,
            abort_bytes_max: 0,
            vanish: 0,
            odd: 0.0,
            v6: 0.0,
        };
        let mut session = draw_session(&mut rng, &crowd, files, at);
        session.stage = HttpSessionStage::Idle(at);
        session.end = SessionEnd::Close;
        self.sessions.push(session);
        let uploads = core::mem::take(&mut self.last_upload);
        if let Some(file) = uploads.first().map(|request| request.file) {
            self.sessions
                .push(HttpSession { uploads: Some(file), ..HttpSession::new(uploads, at) });
        }
        if let Some(h3) = &mut self.h3 {
            h3.add_last(files, at);
        }
    }

    /// Returns whether all sessions are done.
    pub(crate) fn is_done(&self) -> bool {
        let h3 = self.h3.as_ref().is_none_or(H3Client::is_done);
        h3 && self.sessions.iter().all(|s| s.stage == HttpSessionStage::Done)
    }

    /// Returns a description of unfinished sessions for a report.
    pub(crate) fn describe(&self, host: &Host) -> Vec<String> {
        let describe = |s: &HttpSession| {
            let info = match s.stage {
                HttpSessionStage::Open(socket) => format!("{:?}", host.info(socket)),
                _ => String::new(),
            };
            format!(
                "client n{}: {:?}, {} of {} answered, {} bytes read, {} tries, {info}",
                self.node,
                s.stage,
                s.answered,
                s.asks.len(),
                s.read,
                s.tries
            )
        };
        let waits =
            self.sessions.iter().filter(|s| s.stage != HttpSessionStage::Done).map(describe);
        waits.chain(self.h3.iter().flat_map(H3Client::describe)).collect()
    }

    /// Returns the time at which to call [`Self::handle_timeout`], on the node's clock.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let next = |s: &HttpSession| match s.stage {
            HttpSessionStage::Idle(at) => at,
            HttpSessionStage::Open(_) => s.wake.min(s.break_at),
            HttpSessionStage::Done => Instant::FAR_FUTURE,
        };
        let sessions = self.sessions.iter().map(next).filter(|&at| at != Instant::FAR_FUTURE);
        sessions.chain(self.h3.as_ref().and_then(H3Client::poll_timeout)).min()
    }

    /// Handles expired timers.
    pub(crate) fn handle_timeout(&mut self, cx: &mut ClientEnv<'_>) {
        for index in 0..self.sessions.len() {
            match self.sessions[index].stage {
                HttpSessionStage::Idle(at) if at <= cx.local => self.open(index, cx),
                HttpSessionStage::Open(socket) if self.sessions[index].break_at <= cx.local => {
                    self.break_off(index, socket, cx);
                }
                HttpSessionStage::Open(_) if self.sessions[index].wake <= cx.local => {
                    self.sessions[index].wake = Instant::FAR_FUTURE;
                    self.drive(index, cx);
                }
                _ => {}
            }
        }
        if let Some(h3) = &mut self.h3 {
            h3.handle_timeout(cx);
        }
    }

    /// Finishes a turn: flushes the QUIC endpoint.
    pub(crate) fn advance(&mut self, cx: &mut ClientEnv<'_>) {
        if let Some(h3) = &mut self.h3 {
            h3.advance(cx);
        }
    }

    /// Handles a notice of the host.
    pub(crate) fn handle_notice(&mut self, notice: Notice, cx: &mut ClientEnv<'_>) {
        if let Some(h3) = &mut self.h3 {
            h3.handle_notice(notice, cx);
        }
        let Notice::Socket(socket) = notice else { return };
        let found = self.sessions.iter().position(|s| s.stage == HttpSessionStage::Open(socket));
        if let Some(index) = found {
            self.drive(index, cx);
        }
    }

    fn open(&mut self, index: usize, cx: &mut ClientEnv<'_>) {
        let session = &mut self.sessions[index];
        if let Some(file) = session.uploads {
            cx.report.uploads.connection_ended(file);
        }
        session.tries += 1;
        let opened = match &self.tls {
            Some(tls) => {
                let tls = tls::client(tls, self.node, index);
                cx.host.connect_tls(cx.local, self.server, &tls)
            }
            None => cx.host.connect(cx.local, self.server),
        };
        if opened == Err(ConnectError::NoPort) && self.few_ports {
            session.tries -= 1;
            session.stage = HttpSessionStage::Idle(cx.local + PORTS_WAIT);
            return;
        }
        let Ok(socket) = opened else {
            return cx.report.fail(cx.now, "client", "no connection can be opened");
        };
        if self.rng.chance(0.5) {
            cx.host.set_option(cx.local, socket, SocketOption::NoDelay(true));
        }
        if self.keep_alive {
            // A reset may be lost, and a client that only waits would wait indefinitely.
            let interval = Duration::from_secs(self.rng.range(5, 30));
            cx.host.set_option(cx.local, socket, SocketOption::KeepAlive(Some(interval)));
        }
        session.stage = HttpSessionStage::Open(socket);
        session.written = session.answered;
        session.to_send = Bytes::new();
        session.reader = ResponseChecker::default();
        session.read = 0;
        session.opened = cx.now;
        session.established = false;
        session.shut = false;
        session.again = DecryptionProgress::default();
        session.late.restart();
        let breaks = session.breaks.pop_front();
        session.break_at = breaks.map_or(Instant::FAR_FUTURE, |after| cx.local + after);
        session.wake = Instant::FAR_FUTURE;
        session.may_send_at = Instant::ZERO;
        let port = cx.host.local(socket).map_or(0, |local| local.port);
        let fields = [index as u64, port.into(), session.tries.into(), 0, 0];
        cx.report.trace.note(cx.now, self.node, TraceKind::Connect, fields);
    }

    /// Makes all possible progress on a session.
    fn drive(&mut self, index: usize, cx: &mut ClientEnv<'_>) {
        let HttpSessionStage::Open(socket) = self.sessions[index].stage else { return };
        let ready = cx.host.readiness(socket);
        // Data that arrived before the error can still be read.
        if let Err(what) = self.read(index, socket, cx) {
            let what = format!("client n{} session {index}: {what}", self.node);
            return cx.report.fail(cx.now, "bytes", what);
        }
        self.watch(index, socket, cx);
        if let Some(error) = ready.error {
            return self.lost(index, socket, error, cx);
        }
        let session = &mut self.sessions[index];
        if let SessionEnd::Abort(after) = session.end {
            if session.read >= after && session.established {
                cx.host.abort(cx.local, socket);
                cx.host.close(cx.local, socket);
                session.stage = HttpSessionStage::Done;
                cx.report.stats.aborts += 1;
                return self.note_close(index, cx);
            }
        }
        if ready.writable {
            session.established = true;
            self.write(index, socket, cx);
        }
        self.end(index, socket, cx);
    }

    /// Checks property 9: without further loss, a device resumes decryption.
    fn watch(&mut self, index: usize, socket: SocketId, cx: &mut ClientEnv<'_>) {
        let session = &mut self.sessions[index];
        let Some(tls) = self.tls.as_ref().filter(|tls| tls.client.decrypts()) else { return };
        if session.pause.is_none_or(|(_, until)| until > cx.local) {
            return;
        }
        let Some(info) = cx.host.info(socket).and_then(|info| info.tls) else { return };
        if info.rx_offload.is_err() {
            return;
        }
        let again = session.again.note(info.rx_records);
        cx.report.stats.offloaded_again += u64::from(again);
        let missed = session.again.missed;
        // A hint only helps if it arrives before the bytes it is about.
        let asks = tls.client.resync != ResyncMode::NextHint;
        let can = self.holds_records && asks && tls.key_records.is_none();
        if missed > MISSED_MAX && can {
            let what = format!("n{} session {index}: {missed} records not opened", self.node);
            cx.report.fail(cx.now, "again", what);
        }
    }

    /// Writes requests within the session's limits and the host's send buffer.
    fn write(&mut self, index: usize, socket: SocketId, cx: &mut ClientEnv<'_>) {
        let session = &mut self.sessions[index];
        loop {
            if session.to_send.is_empty() {
                let under_way = session.written - session.answered;
                if under_way >= session.depth || session.written == session.asks.len() {
                    break;
                }
                let before = session.written.checked_sub(1).map(|i| &session.asks[i]);
                if under_way > 0 && before.is_some_and(FileRequest::ends_connection) {
                    break; // Later requests would not be answered.
                }
                match session.pause {
                    Some((from, until)) if session.written >= from && until > cx.local => {
                        session.wake = session.wake.min(until);
                        break;
                    }
                    _ => {}
                }
                let ask = &session.asks[session.written];
                session.written += 1;
                let last = session.end == SessionEnd::Ask && session.written == session.asks.len();
                session.to_send = ask.message(last);
            }
            let piece = match session.dribble {
                Some(_) if session.may_send_at > cx.local => {
                    session.wake = session.wake.min(session.may_send_at);
                    break;
                }
                Some((bytes, _)) => session.to_send.slice(..bytes.min(session.to_send.len())),
                None => session.to_send.clone(),
            };
            let Ok(taken) = cx.host.send(cx.now, socket, piece) else { break };
            session.to_send = session.to_send.slice(taken..);
            if session.to_send.is_empty() {
                let ask = session.asks.get(session.written - 1);
                ask.into_iter().for_each(|ask| cx.report.uploads.sent(ask));
            }
            if let Some((_, every)) = session.dribble {
                session.may_send_at = cx.local + every;
            }
            if taken == 0 {
                break;
            }
        }
        let all = session.written == session.asks.len() && session.to_send.is_empty();
        if all && session.end == SessionEnd::HalfClose && !session.shut {
            session.shut = true;
            cx.host.shutdown(cx.now, socket);
        }
        if all {
            let read = session.read;
            send_late(session, read, socket, cx);
        }
    }

    /// Reads and checks available data.
    fn read(
        &mut self,
        index: usize,
        socket: SocketId,
        cx: &mut ClientEnv<'_>,
    ) -> Result<(), String> {
        let session = &mut self.sessions[index];
        let mut budget = match session.pace {
            ReadPace::Eager => usize::MAX,
            ReadPace::Slow(bytes, _) => bytes,
        };
        while budget > 0 {
            let bytes = cx.host.peek(socket);
            let bytes = &bytes[..bytes.len().min(budget)];
            if bytes.is_empty() {
                return Ok(());
            }
            let Some(ask) = session.asks.get(session.answered) else {
                return Err(format!("{} bytes without a request", bytes.len()));
            };
            let (used, answer) = session.reader.take(bytes, ask, &cx.disk.catalogue)?;
            cx.host.consume(socket, used);
            budget -= used;
            session.read += used as u64;
            cx.report.stats.bytes += used as u64;
            let Some(answer) = answer else { continue };
            if answer.failure && answer.by_proxy {
                let status = answer.status.into();
                cx.report.refused_by_proxy(cx.now, self.node, session.opened, status);
                continue;
            }
            if answer.status == 408 {
                // A 408 response answers no request; the next connection repeats the request.
                continue;
            }
            let fields = [
                index as u64,
                session.answered as u64,
                answer.status.into(),
                answer.body_bytes,
                answer.hash,
            ];
            cx.report.trace.note(cx.now, self.node, TraceKind::Response, fields);
            let number = (index, session.answered);
            cx.report.answered(self.node, number, ask, answer, session.opened);
            session.answered += 1;
            session.tries = 0;
        }
        if let ReadPace::Slow(_, every) = session.pace {
            session.wake = session.wake.min(cx.local + every);
        }
        Ok(())
    }

    /// Closes the connection, or handles the server's FIN.
    fn end(&mut self, index: usize, socket: SocketId, cx: &mut ClientEnv<'_>) {
        let session = &mut self.sessions[index];
        let ready = cx.host.readiness(socket);
        let all = session.answered == session.asks.len();
        if ready.peer_closed {
            if session.reader.is_within() {
                let what = format!("n{} session {index}: closed within a response", self.node);
                return cx.report.fail(cx.now, "bytes", what);
            }
            if let Some(local) = cx.host.local(socket) {
                cx.report.ended.push((self.node, local, session.read));
            }
            if all {
                send_late(session, u64::MAX, socket, cx);
            }
            cx.host.close(cx.local, socket);
            self.note_close(index, cx);
            let session = &mut self.sessions[index];
            if all { session.stage = HttpSessionStage::Done } else { self.again(index, cx) }
        } else if all
            && (session.end == SessionEnd::Close || matches!(session.end, SessionEnd::Abort(_)))
        {
            cx.host.close(cx.local, socket);
            session.stage = HttpSessionStage::Done;
            self.note_close(index, cx);
        }
    }

    fn note_close(&self, index: usize, cx: &mut ClientEnv<'_>) {
        let fields = [index as u64, self.sessions[index].read, 0, 0, 0];
        cx.report.trace.note(cx.now, self.node, TraceKind::Close, fields);
    }

    /// Handles the failure of a connection.
    fn lost(&mut self, index: usize, socket: SocketId, error: SocketError, cx: &mut ClientEnv<'_>) {
        let local = cx.host.local(socket);
        cx.host.close(cx.local, socket);
        let session = &mut self.sessions[index];
        let kind = match error {
            SocketError::Reset => 1,
            SocketError::Refused => 2,
            SocketError::TimedOut => 3,
            SocketError::Unreachable => 4,
            // The checkers verify at the end of the run that it was an alert of the proxy.
            SocketError::TlsHandshake if self.alerts => {
                let (node, opened) = (self.node, session.opened);
                cx.report.alerted.extend(local.map(|local| (node, local)));
                cx.report.refused_by_proxy(cx.now, node, opened, INTERNAL_ERROR.into());
                7
            }
            SocketError::Tls(_) | SocketError::TlsHandshake | SocketError::TlsPeer(_) => {
                // TCP delivers the sent bytes, whatever happens to packets.
                let what = format!("n{} session {index}: {error:?}", self.node);
                cx.report.fail(cx.now, "tls", what);
                6
            }
            _ => 5,
        };
        let fields = [index as u64, kind, session.read, 0, 0];
        cx.report.trace.note(cx.now, self.node, TraceKind::Error, fields);
        // A client that waits for the server's FIN must receive it, even if it has sent late data.
        let owed = session.end == SessionEnd::Ask && error == SocketError::Reset;
        let all = session.answered == session.asks.len();
        cx.report.lost(cx.now, self.node, session.opened, error, all && !owed);
        if all || matches!(session.end, SessionEnd::Abort(_)) {
            session.stage = HttpSessionStage::Done;
        } else {
            self.again(index, cx);
        }
    }

    /// Breaks off the connection of an upload, and continues with another.
    fn break_off(&mut self, index: usize, socket: SocketId, cx: &mut ClientEnv<'_>) {
        cx.host.abort(cx.local, socket);
        cx.host.close(cx.local, socket);
        cx.report.stats.aborts += 1;
        cx.report.stats.uploads_broken += 1;
        self.note_close(index, cx);
        self.again(index, cx);
    }

    fn again(&mut self, index: usize, cx: &mut ClientEnv<'_>) {
        let session = &mut self.sessions[index];
        cx.report.stats.retries += 1;
        if session.tries >= TRIES_MAX {
            let what =
                format!("n{} session {index}: {} tries, no answer", self.node, session.tries);
            return cx.report.fail(cx.now, "progress", what);
        }
        let wait = Duration::from_millis(10) * u64::from(session.tries.min(50));
        session.stage = HttpSessionStage::Idle(cx.local + wait);
    }
}

/// Sends the late data that is due after `read` bytes of the response.
fn send_late(session: &mut HttpSession, read: u64, socket: SocketId, cx: &mut ClientEnv<'_>) {
    while let Some(piece) = session.late.poll(read, cx.host.send_room(socket)) {
        let sent = cx.host.send(cx.now, socket, piece).unwrap_or(0);
        cx.report.stats.late_bytes += sent as u64;
    }
}

/// Returns a session that begins with the faults and continues after them.
fn lasting_session(
    r: &mut Prng,
    files: &[(String, u64)],
    start: Instant,
    end: Instant,
) -> HttpSession {
    let ask = |_| FileRequest::draw(r, files, 0.0);
    let asks: Vec<_> = (0..LASTING_ASKS.0 + LASTING_ASKS.1).map(ask).collect();
    let pause = Some((LASTING_ASKS.0, end));
    HttpSession { pause, ..HttpSession::new(asks, start + Duration::from_millis(1)) }
}

/// Returns a session that uploads files.
fn upload_session(r: &mut Prng, uploads: &UploadSession, start: Instant) -> HttpSession {
    let end = [SessionEnd::Close, SessionEnd::Ask, SessionEnd::HalfClose, SessionEnd::Wait]
        [r.below(4) as usize];
    HttpSession {
        depth: uploads.depth,
        dribble: uploads.piece,
        end,
        uploads: uploads.requests.first().map(|request| request.file),
        breaks: uploads.breaks.iter().copied().collect(),
        ..HttpSession::new(
            uploads.requests.clone(),
            start + Duration::from_micros(r.below(300_000)),
        )
    }
}

fn draw_session(
    r: &mut Prng,
    crowd: &ClientLoad,
    files: &[(String, u64)],
    start: Instant,
) -> HttpSession {
    let asks: Vec<_> = (0..r.range(1, crowd.requests_max))
        .map(|_| FileRequest::draw(r, files, crowd.odd))
        .collect();
    let pace = if r.chance(crowd.slow) {
        let bytes = r.range(500, 20_000) as usize;
        ReadPace::Slow(bytes, Duration::from_micros(r.range(200, 20_000)))
    } else {
        ReadPace::Eager
    };
    let dribble = r.chance(crowd.dribble).then(|| {
        let bytes = r.range(1, 60) as usize;
        (bytes, Duration::from_micros(r.range(100, 50_000)))
    });
    let end = if r.chance(crowd.abort) {
        SessionEnd::Abort(r.below(crowd.abort_bytes_max))
    } else {
        [SessionEnd::Close, SessionEnd::Ask, SessionEnd::HalfClose, SessionEnd::Wait]
            [r.below(4) as usize]
    };
    let depth = if r.chance(0.5) { 1 } else { r.range(2, 8) as usize };
    let start = start + Duration::from_micros(r.below(300_000));
    HttpSession { depth, pace, dribble, end, ..HttpSession::new(asks, start) }
}
