//! One client and its backend: the head, the choice of a backend, the connection to it, and then
//! bytes in both directions until both have closed.
//!
//! [`super::server`] calls it when the readiness of one of its sockets changed, when its deadline
//! has passed, and when a splice was made, was refused or has ended. The head is parsed once; the
//! bytes after it are relayed unread, by the device if it accepts, else by this host ([`relay`]).
//! Bytes are read from one side only if the other has room for them, so a pair buffers a head and
//! nothing else.

mod answer;
mod relay;

use base::Instant;
use bytes::Bytes;
use host::{SocketError, SpliceEnd, SpliceError, SpliceMeta};
use wire::Endpoint;

use super::config::{LoadBalancing, ProxyListener, ProxyMode, ProxyOffloads};
use super::head::{self, ProxyDecision};
use super::maglev::{hash_addr, hash_name};
use super::pool::{BackendId, NoBackend};
use super::proxy_protocol;
use super::route::{self, RouteTarget};
use super::shared::{PairTimes, ProxyLogRecord, ProxyShared, ResponseStatusLine, SocketOwner};
use super::sni::{self, ClientHelloName};
use super::sockets::ProxySockets;
use super::termination::{Termination, TerminationCause, TerminationStage};
use crate::content::gather::{HeadLimits, gather_head};
use crate::content::status::HttpStatus;
use crate::pattern_inspection::ConnectionRules;

/// Everything outside of a pair that its functions need.
pub(crate) struct ProxyPairEnv<'a, S: ProxySockets> {
    pub(crate) now: Instant,
    pub(crate) host: &'a mut S,
    pub(crate) shared: &'a mut ProxyShared<S::Id>,
}

impl<S: ProxySockets> ProxyPairEnv<'_, S> {
    /// Inspects the bytes of a client that can be read, before any of them is used. Returns whether
    /// they may be used.
    fn admits(&mut self, client: S::Id, rules: &ConnectionRules) -> bool {
        let admitted = self.shared.inspection.admits(rules, self.host, client);
        self.shared.counters.proxy_denied += u64::from(!admitted);
        admitted
    }
}

/// Fate of a pair after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PairAction {
    /// The pair continues.
    Keep,
    /// The pair has ended, and its sockets were closed.
    Ended,
}

/// Event that a pair waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProxyPairPhase {
    /// The rest of a head or of a ClientHello.
    Head,
    /// A connection to a backend.
    Connecting,
    /// Bytes from either side.
    Relay,
    /// The device's decision about a splice; until then the sockets are the host's.
    Splicing,
    /// The end of a splice; there are no sockets.
    Spliced,
    /// The client's acknowledgments of a response of the proxy's own, and its FIN.
    Answering,
}

/// End of a pair in the log if the end of the program resets it.
const DRAINED: &str = "drained";

/// Indices of the two sides in arrays.
const CLIENT: usize = 0;
const BACKEND: usize = 1;

/// A pair.
#[derive(Debug)]
pub(crate) struct ProxyPair<I> {
    client: I,
    /// Rules for the bytes that the client sends.
    rules: ConnectionRules,
    remote: Endpoint,
    local: Endpoint,
    backend: Option<I>,
    /// Index in the table of pairs.
    index: usize,
    listener: usize,
    phase: ProxyPairPhase,
    /// Slot of the pool, once it is known; `None` if the pool is gone.
    pool: Option<usize>,
    offloads: ProxyOffloads,
    /// The backend that counts this pair's connection.
    backend_id: Option<BackendId>,
    tried: Vec<BackendId>,
    /// Hash of the client's address or of the requested name.
    hash: u64,
    /// True if the method is HEAD.
    is_head: bool,
    /// Bytes of an incomplete head; then the bytes to send to the backend first; then a response of
    /// the proxy's own to the client.
    buffer: Vec<u8>,
    /// Request line or server name, for the log.
    requested: Vec<u8>,
    /// Bytes received from each side and relayed; those of the backend include the proxy's own
    /// response.
    bytes: [u64; 2],
    /// The sending direction to that side was shut down.
    send_closed: [bool; 2],
    times: PairTimes,
    status: ResponseStatusLine,
    /// Cause of the pair's end, once it is known; the first cause counts.
    termination: Option<Termination>,
    /// Unacknowledged bytes on both sides at the last check of the deadline.
    queued: u64,
    /// Time at which bytes were last relayed.
    last_relayed: Instant,
    /// Time at which to call [`Self::handle_timeout`].
    pub(crate) deadline: Instant,
}

/// Result of reading a head.
enum Routing {
    More,
    Target(RouteTarget),
    Answer(HttpStatus),
    Alert(u8),
}

impl<I: Copy + Eq> ProxyPair<I> {
    /// Creates the pair of a client that was just accepted; `None` if the client is already gone.
    pub(crate) fn new<S: ProxySockets<Id = I>>(
        cx: &ProxyPairEnv<'_, S>,
        client: I,
        rules: ConnectionRules,
        index: usize,
        listener: usize,
    ) -> Option<Self> {
        let remote = cx.host.remote(client)?;
        Some(Self {
            client,
            rules,
            remote,
            local: cx.host.local(client)?,
            backend: None,
            index,
            listener,
            phase: ProxyPairPhase::Head,
            pool: None,
            offloads: ProxyOffloads::ALL,
            backend_id: None,
            tried: Vec::new(),
            hash: hash_addr(remote.addr),
            is_head: false,
            buffer: Vec::new(),
            requested: Vec::new(),
            bytes: [0; 2],
            send_closed: [false; 2],
            times: PairTimes::new(cx.now),
            status: ResponseStatusLine::default(),
            termination: None,
            queued: 0,
            last_relayed: cx.now,
            deadline: cx.now + cx.shared.table.limits.head_timeout,
        })
    }

    /// Begins to read from the client, or connects to a backend at once in TCP mode.
    pub(crate) fn start<S: ProxySockets<Id = I>>(
        &mut self,
        cx: &mut ProxyPairEnv<'_, S>,
    ) -> PairAction {
        let listener = cx.shared.table.listeners.get(self.listener);
        match listener.map(|listener| (listener.mode, route::default_target(listener))) {
            Some((ProxyMode::Tcp, Some(target))) => self.begin_connecting(cx, target),
            Some((ProxyMode::Tcp, None)) | None => {
                self.set_termination(TerminationCause::Proxy, TerminationStage::Request);
                self.reset_both_sides(cx)
            }
            Some(_) => self.handle_readiness(cx),
        }
    }

    /// Handles a change of readiness of one of the sockets.
    pub(crate) fn handle_readiness<S: ProxySockets<Id = I>>(
        &mut self,
        cx: &mut ProxyPairEnv<'_, S>,
    ) -> PairAction {
        match self.phase {
            ProxyPairPhase::Head => self.read_head(cx),
            ProxyPairPhase::Connecting => self.check_connect(cx),
            ProxyPairPhase::Relay => self.relay(cx),
            // The sockets are the host's, or there are none.
            ProxyPairPhase::Splicing | ProxyPairPhase::Spliced => PairAction::Keep,
            ProxyPairPhase::Answering => self.close_when_done(cx),
        }
    }

    /// Handles the deadline.
    pub(crate) fn handle_timeout<S: ProxySockets<Id = I>>(
        &mut self,
        cx: &mut ProxyPairEnv<'_, S>,
    ) -> PairAction {
        match self.phase {
            ProxyPairPhase::Head => {
                cx.shared.counters.proxy_timeouts_head += 1;
                self.set_termination(TerminationCause::ClientTimeout, TerminationStage::Request);
                let is_http = self.mode(cx) == Some(ProxyMode::Http);
                if is_http && !self.buffer.is_empty() {
                    return self.answer(cx, HttpStatus::RequestTimeout);
                }
                self.close_client(cx)
            }
            ProxyPairPhase::Connecting => self.connect_failed(cx, SocketError::TimedOut),
            ProxyPairPhase::Relay | ProxyPairPhase::Splicing => self.check_idle(cx),
            ProxyPairPhase::Spliced => {
                self.deadline = Instant::FAR_FUTURE;
                PairAction::Keep
            }
            ProxyPairPhase::Answering => {
                cx.host.abort(cx.now, self.client);
                self.end(cx, "answered", "unread")
            }
        }
    }

    fn mode<S: ProxySockets<Id = I>>(&self, cx: &ProxyPairEnv<'_, S>) -> Option<ProxyMode> {
        cx.shared.table.listeners.get(self.listener).map(|listener| listener.mode)
    }

    fn read_head<S: ProxySockets<Id = I>>(&mut self, cx: &mut ProxyPairEnv<'_, S>) -> PairAction {
        if cx.host.readiness(self.client).error.is_some() {
            cx.shared.counters.proxy_ended_early += 1;
            self.set_termination(TerminationCause::Client, TerminationStage::Request);
            return self.reset_both_sides(cx);
        }
        let found = match self.mode(cx) {
            Some(ProxyMode::Http) => self.read_http(cx),
            Some(ProxyMode::Tls) => self.read_hello(cx),
            Some(ProxyMode::Tcp) | None => return self.reset_both_sides(cx),
        };
        match found {
            Routing::Target(target) => self.begin_connecting(cx, target),
            Routing::Answer(status) => {
                self.set_termination(TerminationCause::Proxy, TerminationStage::Request);
                self.answer(cx, status)
            }
            Routing::Alert(description) => {
                self.set_termination(TerminationCause::Proxy, TerminationStage::Request);
                self.answer_alert(cx, description)
            }
            Routing::More => {
                if cx.host.readiness(self.client).peer_closed {
                    cx.shared.counters.proxy_ended_early += 1;
                    self.set_termination(TerminationCause::Client, TerminationStage::Request);
                    return self.close_client(cx);
                }
                PairAction::Keep
            }
        }
    }

    fn read_http<S: ProxySockets<Id = I>>(&mut self, cx: &mut ProxyPairEnv<'_, S>) -> Routing {
        match self.gather_http(cx) {
            Ok(true) => {}
            Ok(false) => return Routing::More,
            Err(status) => return Routing::Answer(status),
        }
        let Some(listener) = cx.shared.table.listeners.get(self.listener) else {
            return Routing::Answer(HttpStatus::ServiceUnavailable);
        };
        let about = head::ProxyRequestEnv {
            listener,
            limits: &cx.shared.table.limits,
            client: self.remote,
            local: self.local,
            name: &cx.shared.config.server_name,
        };
        let decision = head::decide(&self.buffer, &about);
        if cx.shared.log.enabled() {
            let line = self.buffer.split(|b| *b == b'\n').next().unwrap_or_default();
            self.requested = line.trim_ascii_end().to_vec();
        }
        match decision {
            ProxyDecision::Forward { target, head, hash, is_head } => {
                self.is_head = is_head;
                self.buffer = head;
                self.choose_hash(cx, target.pool, hash);
                Routing::Target(target)
            }
            ProxyDecision::Refuse { status, is_head } => {
                self.is_head = is_head;
                Routing::Answer(status)
            }
        }
    }

    fn choose_hash<S: ProxySockets<Id = I>>(
        &mut self,
        cx: &ProxyPairEnv<'_, S>,
        pool: usize,
        name: Option<u64>,
    ) {
        if let Some(LoadBalancing::Maglev(by)) = cx.shared.table.pools.get(pool).map(|p| p.balance)
        {
            self.hash = head::balance_hash(by, self.hash, name);
        }
    }

    /// Gathers bytes up to the end of the head, and none beyond. Returns whether the head is
    /// complete or too long.
    ///
    /// # Errors
    /// 403 if the bytes have a denied pattern.
    fn gather_http<S: ProxySockets<Id = I>>(
        &mut self,
        cx: &mut ProxyPairEnv<'_, S>,
    ) -> Result<bool, HttpStatus> {
        let limits = &cx.shared.table.limits;
        let limits = HeadLimits {
            head_bytes_max: limits.head_bytes_max,
            line_bytes_max: limits.request_line_bytes_max,
        };
        loop {
            if !cx.admits(self.client, &self.rules) {
                return Err(HttpStatus::Forbidden);
            }
            let bytes = cx.host.peek(self.client);
            if bytes.is_empty() {
                return Ok(false);
            }
            // RFC 9112 section 2.2: empty lines before a request line are ignored.
            let empty = bytes.iter().take_while(|b| matches!(b, b'\r' | b'\n')).count();
            if self.buffer.is_empty() && empty > 0 {
                cx.host.consume(self.client, empty);
                continue;
            }
            let gathered = gather_head(&mut self.buffer, bytes, limits);
            cx.host.consume(self.client, gathered.taken);
            if gathered.complete {
                return Ok(true);
            }
        }
    }

    fn read_hello<S: ProxySockets<Id = I>>(&mut self, cx: &mut ProxyPairEnv<'_, S>) -> Routing {
        let max = cx.shared.table.limits.head_bytes_max;
        let before = self.buffer.len();
        loop {
            if !cx.admits(self.client, &self.rules) {
                return Routing::Alert(sni::ACCESS_DENIED);
            }
            let bytes = cx.host.peek(self.client);
            let taken = bytes.len().min(max.saturating_sub(self.buffer.len()));
            self.buffer.extend(bytes.iter().take(taken));
            if taken == 0 {
                break;
            }
            cx.host.consume(self.client, taken);
        }
        if self.buffer.len() == before && before < max {
            return Routing::More;
        }
        let name = match sni::parse(&self.buffer) {
            ClientHelloName::Incomplete if self.buffer.len() < max => return Routing::More,
            ClientHelloName::Incomplete | ClientHelloName::Malformed => {
                cx.shared.counters.proxy_hellos_malformed += 1;
                return Routing::Alert(sni::DECODE_ERROR);
            }
            ClientHelloName::Complete(name) => name.unwrap_or_default(),
        };
        if cx.shared.log.enabled() {
            self.requested = name.as_bytes().to_vec();
        }
        let listener = cx.shared.table.listeners.get(self.listener);
        match listener
            .and_then(|l: &ProxyListener| route::find_target(l, name.trim_end_matches('.'), ""))
        {
            Some(target) => {
                let hash = (!name.is_empty()).then(|| hash_name(name.as_bytes()));
                self.choose_hash(cx, target.pool, hash);
                Routing::Target(target)
            }
            None => {
                cx.shared.counters.proxy_hellos_unrouted += 1;
                Routing::Alert(sni::UNRECOGNIZED_NAME)
            }
        }
    }

    /// Begins to connect to a backend of the target's pool.
    fn begin_connecting<S: ProxySockets<Id = I>>(
        &mut self,
        cx: &mut ProxyPairEnv<'_, S>,
        RouteTarget { pool, offloads }: RouteTarget,
    ) -> PairAction {
        cx.shared.counters.proxy_routed += 1;
        self.times.routed = Some(cx.now);
        self.pool = cx.shared.pools.get(pool).copied();
        self.offloads = offloads;
        if !offloads.teardown {
            cx.host.keep_teardown(cx.now, self.client);
        }
        self.phase = ProxyPairPhase::Connecting;
        self.connect(cx, None)
    }

    /// Connects to the next backend; `before` is the error of the last one.
    fn connect<S: ProxySockets<Id = I>>(
        &mut self,
        cx: &mut ProxyPairEnv<'_, S>,
        before: Option<SocketError>,
    ) -> PairAction {
        let chosen = match self.pool {
            Some(pool) => cx.shared.backends.choose(pool, self.hash, &self.tried),
            None => Err(NoBackend::Down),
        };
        let id = match chosen {
            Ok(id) => id,
            // The error of a backend is more informative than the lack of another one.
            Err(_) if before.is_some() => return self.reply_no_backend(cx, before),
            Err(NoBackend::Down) => {
                cx.shared.counters.proxy_no_backend_up += 1;
                return self.reply_no_backend(cx, None);
            }
            Err(NoBackend::Full) => {
                cx.shared.counters.proxy_no_backend_room += 1;
                return self.reply_no_backend(cx, None);
            }
        };
        self.backend_id = Some(id);
        cx.shared.counters.proxy_connects += 1;
        cx.shared.counters.proxy_retries += u64::from(before.is_some());
        let addr = cx.shared.backends.get(id).map(|backend| backend.addr);
        let socket = addr.and_then(|addr| cx.host.connect(cx.now, addr).ok());
        let Some(socket) = socket else {
            // Not the backend's fault, and the same would happen with another one.
            cx.shared.counters.proxy_connects_local += 1;
            self.set_termination(TerminationCause::Resource, TerminationStage::Connect);
            self.release_backend(cx);
            return self.reply_no_backend(cx, None);
        };
        if !self.offloads.teardown {
            cx.host.keep_teardown(cx.now, socket);
        }
        self.backend = Some(socket);
        cx.shared.owners.set(S::index(socket), socket, SocketOwner::Pair(self.index));
        self.deadline = cx.now + cx.shared.table.limits.connect_timeout;
        PairAction::Keep
    }

    fn check_connect<S: ProxySockets<Id = I>>(
        &mut self,
        cx: &mut ProxyPairEnv<'_, S>,
    ) -> PairAction {
        let Some(backend) = self.backend else { return self.reset_both_sides(cx) };
        if cx.host.readiness(self.client).error.is_some() {
            cx.shared.counters.proxy_relays_reset_by_client += 1;
            self.set_termination(TerminationCause::Client, TerminationStage::Connect);
            return self.reset_both_sides(cx);
        }
        let ready = cx.host.readiness(backend);
        if let Some(error) = ready.error {
            return self.connect_failed(cx, error);
        }
        if !ready.writable {
            return PairAction::Keep;
        }
        if let Some(id) = self.backend_id {
            let change = cx.shared.backends.record_success(id, false);
            cx.shared.record_health_change(cx.now, id, change);
            if cx.shared.backends.config_of(id).is_some_and(|pool| pool.proxy_protocol) {
                let mut before = Vec::with_capacity(52 + self.buffer.len());
                proxy_protocol::write(&mut before, self.remote, self.local);
                before.append(&mut self.buffer);
                self.buffer = before;
            }
        }
        self.tried = Vec::new();
        self.times.connected = Some(cx.now);
        self.begin_relay(cx)
    }

    /// Handles a failed connection to a backend. No byte has been sent, so another may be tried.
    fn connect_failed<S: ProxySockets<Id = I>>(
        &mut self,
        cx: &mut ProxyPairEnv<'_, S>,
        error: SocketError,
    ) -> PairAction {
        cx.shared.counters.count_failed_connect(error);
        if let Some(id) = self.backend_id {
            let change = cx.shared.backends.record_failure(id, cx.now);
            cx.shared.record_health_change(cx.now, id, change);
            self.tried.push(id);
        }
        self.release_backend(cx);
        if self.tried.len() > cx.shared.table.limits.retries as usize {
            return self.reply_no_backend(cx, Some(error));
        }
        self.connect(cx, Some(error))
    }

    /// Resets the connection to the backend, if there is one, and stops counting it.
    fn release_backend<S: ProxySockets<Id = I>>(&mut self, cx: &mut ProxyPairEnv<'_, S>) {
        if let Some(socket) = self.backend.take() {
            cx.shared.owners.clear(S::index(socket), socket);
            cx.host.abort(cx.now, socket);
            // The host keeps a socket that has ended by itself until it is closed.
            cx.host.close(cx.now, socket);
        }
        if let Some(id) = self.backend_id.take() {
            cx.shared.backends.release(id);
        }
    }

    /// Reports to the client, according to its protocol, that there is no backend.
    fn reply_no_backend<S: ProxySockets<Id = I>>(
        &mut self,
        cx: &mut ProxyPairEnv<'_, S>,
        error: Option<SocketError>,
    ) -> PairAction {
        let cause = match error {
            Some(SocketError::TimedOut) => TerminationCause::ServerTimeout,
            _ => TerminationCause::Server,
        };
        self.set_termination(cause, TerminationStage::Connect);
        match self.mode(cx) {
            Some(ProxyMode::Http) => self.answer(
                cx,
                match error {
                    Some(SocketError::TimedOut) => HttpStatus::GatewayTimeout,
                    Some(_) => HttpStatus::BadGateway,
                    None => HttpStatus::ServiceUnavailable,
                },
            ),
            Some(ProxyMode::Tls) => self.answer_alert(cx, sni::INTERNAL_ERROR),
            // TCP has no other way to report an error than a reset.
            Some(ProxyMode::Tcp) | None => self.reset_both_sides(cx),
        }
    }

    /// Sets how the pair ends, unless an earlier cause is known.
    fn set_termination(&mut self, cause: TerminationCause, stage: TerminationStage) {
        self.termination.get_or_insert_with(|| Termination::new(cause, stage));
    }

    /// Returns the stage of the pair for its termination state.
    fn stage(&self, shared: &ProxyShared<I>) -> TerminationStage {
        let listener = shared.table.listeners.get(self.listener);
        let is_http = listener.is_some_and(|listener| listener.mode == ProxyMode::Http);
        match self.phase {
            ProxyPairPhase::Head => TerminationStage::Request,
            ProxyPairPhase::Connecting => TerminationStage::Connect,
            _ if is_http && self.bytes[BACKEND] == 0 => TerminationStage::Headers,
            ProxyPairPhase::Relay
            | ProxyPairPhase::Splicing
            | ProxyPairPhase::Spliced
            | ProxyPairPhase::Answering => TerminationStage::Data,
        }
    }

    /// Resets the connections of both sides.
    fn reset_both_sides<S: ProxySockets<Id = I>>(
        &mut self,
        cx: &mut ProxyPairEnv<'_, S>,
    ) -> PairAction {
        self.set_termination(TerminationCause::Internal, self.stage(cx.shared));
        cx.host.abort(cx.now, self.client);
        cx.host.close(cx.now, self.client);
        self.end(cx, "answered", "reset")
    }

    /// Closes a connection to which nothing was sent.
    fn close_client<S: ProxySockets<Id = I>>(
        &mut self,
        cx: &mut ProxyPairEnv<'_, S>,
    ) -> PairAction {
        cx.host.close(cx.now, self.client);
        self.end(cx, "answered", "closed")
    }

    /// Logs the pair at the end of the program. A spliced pair is logged later, when the number of
    /// bytes that the device relayed is known.
    pub(crate) fn log_drained(&self, now: Instant, shared: &mut ProxyShared<I>) {
        let how = match self.phase {
            ProxyPairPhase::Spliced => return,
            ProxyPairPhase::Relay | ProxyPairPhase::Splicing => "relayed",
            ProxyPairPhase::Head | ProxyPairPhase::Connecting | ProxyPairPhase::Answering => {
                "answered"
            }
        };
        let killed = Termination::new(TerminationCause::Killed, self.stage(shared));
        self.log_end(now, shared, (how, DRAINED), self.termination.unwrap_or(killed));
    }

    fn log_end(
        &self,
        now: Instant,
        shared: &mut ProxyShared<I>,
        (how, end): (&'static str, &str),
        termination: Termination,
    ) {
        let backend = self.backend_id.and_then(|id| shared.backends.get(id)).map(|b| b.addr);
        let record = ProxyLogRecord {
            client: self.remote,
            requested: &self.requested,
            backend,
            bytes: self.bytes,
            how,
            end,
            times: self.times,
            status: self.status.code(),
            termination,
        };
        shared.log_record(now, &record);
    }

    /// Logs the pair, and releases everything but the client's socket.
    fn end<S: ProxySockets<Id = I>>(
        &mut self,
        cx: &mut ProxyPairEnv<'_, S>,
        how: &'static str,
        end: &str,
    ) -> PairAction {
        let termination = self.termination.unwrap_or(Termination::NORMAL);
        self.log_end(cx.now, cx.shared, (how, end), termination);
        self.release_backend(cx);
        cx.shared.owners.clear(S::index(self.client), self.client);
        PairAction::Ended
    }
}
