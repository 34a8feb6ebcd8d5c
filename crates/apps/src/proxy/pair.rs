//! One client and its backend: the head, the choice of a backend, the connection to it, and then
//! bytes in both directions until both have closed.
//!
//! [`super::server`] calls it when the readiness of one of its sockets changed, when its deadline
//! has passed, and when a splice was made, was refused or has ended. The head is parsed once; the
//! bytes behind it are relayed unread, by the device if it accepts, else by this host ([`relay`]).
//! Bytes are read from one side only if the other has room for them, so a pair buffers a head and
//! nothing else.

mod answer;
mod relay;

use base::Instant;
use bytes::Bytes;
use host::{SocketError, SpliceEnd, SpliceError, SpliceMeta};
use wire::Endpoint;

use super::config::{Balance, Listener, Mode};
use super::head::{self, Decision};
use super::hello::{self, Hello};
use super::maglev::{hash_addr, hash_name};
use super::pool::{BackendId, Unavailable};
use super::shared::{Owner, Record, Shared, StatusLine, Times};
use super::sockets::Sockets;
use super::termination::{Cause, Stage, Termination};
use super::{proxy_protocol, route};
use crate::content::gather::{HeadLimits, gather};
use crate::content::status::Status;

/// Everything outside of a pair that its functions need.
pub(crate) struct Context<'a, S: Sockets> {
    pub(crate) now: Instant,
    pub(crate) host: &'a mut S,
    pub(crate) shared: &'a mut Shared<S::Id>,
}

/// Whether a pair continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The pair continues.
    Keep,
    /// The pair has ended, and its sockets were closed.
    Gone,
}

/// Event that a pair waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
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
pub(crate) struct Pair<I> {
    client: I,
    remote: Endpoint,
    local: Endpoint,
    backend: Option<I>,
    /// Index in the table of pairs.
    index: usize,
    listener: usize,
    phase: Phase,
    /// Slot of the pool, once it is known; `None` if the pool is gone.
    pool: Option<usize>,
    /// The backend that counts this pair's connection.
    chosen: Option<BackendId>,
    tried: Vec<BackendId>,
    /// Hash of the client's address or of the requested name.
    hash: u64,
    /// True if the method is HEAD.
    is_head: bool,
    /// Bytes of an incomplete head; then the bytes to send to the backend first; then a response of
    /// the proxy's own to the client.
    head: Vec<u8>,
    /// Request line or server name, for the log.
    asked: Vec<u8>,
    /// Bytes received from each side and relayed; those of the backend include the proxy's own
    /// response.
    bytes: [u64; 2],
    /// The sending direction to that side was shut down.
    shut: [bool; 2],
    times: Times,
    status: StatusLine,
    /// How the pair ends, once that is known; the first cause counts.
    termination: Option<Termination>,
    /// Unacknowledged bytes on both sides at the last check of the deadline.
    queued: u64,
    /// When bytes were last relayed.
    moved: Instant,
    /// When to call [`Self::handle_timeout`].
    pub(crate) deadline: Instant,
}

/// Result of reading a head.
enum Found {
    More,
    Pool(usize),
    Answer(Status),
    Alert(u8),
}

impl<I: Copy + Eq> Pair<I> {
    /// Creates the pair of a client that was just accepted; `None` if the client is already gone.
    pub(crate) fn new<S: Sockets<Id = I>>(
        cx: &Context<'_, S>,
        client: I,
        index: usize,
        listener: usize,
    ) -> Option<Self> {
        let remote = cx.host.remote(client)?;
        Some(Self {
            client,
            remote,
            local: cx.host.local(client)?,
            backend: None,
            index,
            listener,
            phase: Phase::Head,
            pool: None,
            chosen: None,
            tried: Vec::new(),
            hash: hash_addr(remote.addr),
            is_head: false,
            head: Vec::new(),
            asked: Vec::new(),
            bytes: [0; 2],
            shut: [false; 2],
            times: Times::new(cx.now),
            status: StatusLine::default(),
            termination: None,
            queued: 0,
            moved: cx.now,
            deadline: cx.now + cx.shared.table.limits.head_timeout,
        })
    }

    /// Begins to read from the client, or connects to a backend at once in TCP mode.
    pub(crate) fn start<S: Sockets<Id = I>>(&mut self, cx: &mut Context<'_, S>) -> Fate {
        let listener = cx.shared.table.listeners.get(self.listener);
        match listener.map(|listener| (listener.mode, listener.default)) {
            Some((Mode::Tcp, Some(pool))) => self.routed(cx, pool),
            Some((Mode::Tcp, None)) | None => {
                self.ends_by(Cause::Proxy, Stage::Request);
                self.drop_client(cx)
            }
            Some(_) => self.turn(cx),
        }
    }

    /// Handles a change of readiness of one of the sockets.
    pub(crate) fn turn<S: Sockets<Id = I>>(&mut self, cx: &mut Context<'_, S>) -> Fate {
        match self.phase {
            Phase::Head => self.read_head(cx),
            Phase::Connecting => self.look_at_connect(cx),
            Phase::Relay => self.relay(cx),
            // The sockets are the host's, or there are none.
            Phase::Splicing | Phase::Spliced => Fate::Keep,
            Phase::Answering => self.close_when_done(cx),
        }
    }

    /// Handles the deadline.
    pub(crate) fn handle_timeout<S: Sockets<Id = I>>(&mut self, cx: &mut Context<'_, S>) -> Fate {
        match self.phase {
            Phase::Head => {
                cx.shared.counters.proxy_timeouts_head += 1;
                self.ends_by(Cause::ClientTimeout, Stage::Request);
                let is_http = self.mode(cx) == Some(Mode::Http);
                if is_http && !self.head.is_empty() {
                    return self.answer(cx, Status::RequestTimeout);
                }
                self.leave_client(cx)
            }
            Phase::Connecting => self.connect_failed(cx, SocketError::TimedOut),
            Phase::Relay | Phase::Splicing => self.check_idle(cx),
            Phase::Spliced => {
                self.deadline = Instant::FAR_FUTURE;
                Fate::Keep
            }
            Phase::Answering => {
                cx.host.abort(cx.now, self.client);
                self.end(cx, "answered", "unread")
            }
        }
    }

    fn mode<S: Sockets<Id = I>>(&self, cx: &Context<'_, S>) -> Option<Mode> {
        cx.shared.table.listeners.get(self.listener).map(|listener| listener.mode)
    }

    fn read_head<S: Sockets<Id = I>>(&mut self, cx: &mut Context<'_, S>) -> Fate {
        if cx.host.readiness(self.client).error.is_some() {
            cx.shared.counters.proxy_ended_early += 1;
            self.ends_by(Cause::Client, Stage::Request);
            return self.drop_client(cx);
        }
        let found = match self.mode(cx) {
            Some(Mode::Http) => self.read_http(cx),
            Some(Mode::Tls) => self.read_hello(cx),
            Some(Mode::Tcp) | None => return self.drop_client(cx),
        };
        match found {
            Found::Pool(pool) => self.routed(cx, pool),
            Found::Answer(status) => {
                self.ends_by(Cause::Proxy, Stage::Request);
                self.answer(cx, status)
            }
            Found::Alert(description) => {
                self.ends_by(Cause::Proxy, Stage::Request);
                self.answer_alert(cx, description)
            }
            Found::More => {
                if cx.host.readiness(self.client).peer_closed {
                    cx.shared.counters.proxy_ended_early += 1;
                    self.ends_by(Cause::Client, Stage::Request);
                    return self.leave_client(cx);
                }
                Fate::Keep
            }
        }
    }

    fn read_http<S: Sockets<Id = I>>(&mut self, cx: &mut Context<'_, S>) -> Found {
        if !self.gather_http(cx) {
            return Found::More;
        }
        let Some(listener) = cx.shared.table.listeners.get(self.listener) else {
            return Found::Answer(Status::ServiceUnavailable);
        };
        let about = head::Circumstances {
            listener,
            limits: &cx.shared.table.limits,
            client: self.remote,
            local: self.local,
            name: &cx.shared.config.server_name,
        };
        let decision = head::decide(&self.head, &about);
        if cx.shared.log.enabled() {
            let line = self.head.split(|b| *b == b'\n').next().unwrap_or_default();
            self.asked = line.trim_ascii_end().to_vec();
        }
        match decision {
            Decision::Forward { pool, head, hash, is_head } => {
                self.is_head = is_head;
                self.head = head;
                self.choose_hash(cx, pool, hash);
                Found::Pool(pool)
            }
            Decision::Refuse { status, is_head } => {
                self.is_head = is_head;
                Found::Answer(status)
            }
        }
    }

    fn choose_hash<S: Sockets<Id = I>>(
        &mut self,
        cx: &Context<'_, S>,
        pool: usize,
        name: Option<u64>,
    ) {
        if let Some(Balance::Maglev(by)) = cx.shared.table.pools.get(pool).map(|p| p.balance) {
            self.hash = head::key(by, self.hash, name);
        }
    }

    /// Gathers bytes up to the end of the head, and none beyond. Returns whether the head is
    /// complete or too long.
    fn gather_http<S: Sockets<Id = I>>(&mut self, cx: &mut Context<'_, S>) -> bool {
        let limits = &cx.shared.table.limits;
        let limits = HeadLimits {
            head_bytes_max: limits.head_bytes_max,
            line_bytes_max: limits.request_line_bytes_max,
        };
        loop {
            let bytes = cx.host.peek(self.client);
            if bytes.is_empty() {
                return false;
            }
            // RFC 9112 section 2.2: empty lines before a request line are ignored.
            let empty = bytes.iter().take_while(|b| matches!(b, b'\r' | b'\n')).count();
            if self.head.is_empty() && empty > 0 {
                cx.host.consume(self.client, empty);
                continue;
            }
            let gathered = gather(&mut self.head, bytes, limits);
            cx.host.consume(self.client, gathered.taken);
            if gathered.complete {
                return true;
            }
        }
    }

    fn read_hello<S: Sockets<Id = I>>(&mut self, cx: &mut Context<'_, S>) -> Found {
        let max = cx.shared.table.limits.head_bytes_max;
        let before = self.head.len();
        loop {
            let bytes = cx.host.peek(self.client);
            let taken = bytes.len().min(max.saturating_sub(self.head.len()));
            self.head.extend(bytes.iter().take(taken));
            if taken == 0 {
                break;
            }
            cx.host.consume(self.client, taken);
        }
        if self.head.len() == before && before < max {
            return Found::More;
        }
        let name = match hello::parse(&self.head) {
            Hello::Incomplete if self.head.len() < max => return Found::More,
            Hello::Incomplete | Hello::Malformed => {
                cx.shared.counters.proxy_hellos_malformed += 1;
                return Found::Alert(hello::DECODE_ERROR);
            }
            Hello::Complete(name) => name.unwrap_or_default(),
        };
        if cx.shared.log.enabled() {
            self.asked = name.as_bytes().to_vec();
        }
        let listener = cx.shared.table.listeners.get(self.listener);
        match listener.and_then(|l: &Listener| route::find(l, name.trim_end_matches('.'), "")) {
            Some(pool) => {
                let hash = (!name.is_empty()).then(|| hash_name(name.as_bytes()));
                self.choose_hash(cx, pool, hash);
                Found::Pool(pool)
            }
            None => {
                cx.shared.counters.proxy_hellos_unrouted += 1;
                Found::Alert(hello::UNRECOGNIZED_NAME)
            }
        }
    }

    /// Begins to connect to a backend of the pool with this index in the table.
    fn routed<S: Sockets<Id = I>>(&mut self, cx: &mut Context<'_, S>, pool: usize) -> Fate {
        cx.shared.counters.proxy_routed += 1;
        self.times.routed = Some(cx.now);
        self.pool = cx.shared.pools.get(pool).copied();
        self.phase = Phase::Connecting;
        self.connect(cx, None)
    }

    /// Connects to the next backend; `before` is the error of the last one.
    fn connect<S: Sockets<Id = I>>(
        &mut self,
        cx: &mut Context<'_, S>,
        before: Option<SocketError>,
    ) -> Fate {
        let chosen = match self.pool {
            Some(pool) => cx.shared.backends.choose(pool, self.hash, &self.tried),
            None => Err(Unavailable::Down),
        };
        let id = match chosen {
            Ok(id) => id,
            // The error of a backend is more informative than the lack of another one.
            Err(_) if before.is_some() => return self.give_up(cx, before),
            Err(Unavailable::Down) => {
                cx.shared.counters.proxy_no_backend_up += 1;
                return self.give_up(cx, None);
            }
            Err(Unavailable::Full) => {
                cx.shared.counters.proxy_no_backend_room += 1;
                return self.give_up(cx, None);
            }
        };
        self.chosen = Some(id);
        cx.shared.counters.proxy_connects += 1;
        cx.shared.counters.proxy_retries += u64::from(before.is_some());
        let addr = cx.shared.backends.get(id).map(|backend| backend.addr);
        let socket = addr.and_then(|addr| cx.host.connect(cx.now, addr).ok());
        let Some(socket) = socket else {
            // Not the backend's fault, and the same would happen with another one.
            cx.shared.counters.proxy_connects_local += 1;
            self.ends_by(Cause::Resource, Stage::Connect);
            self.release_backend(cx);
            return self.give_up(cx, None);
        };
        self.backend = Some(socket);
        cx.shared.owners.set(S::index(socket), socket, Owner::Pair(self.index));
        self.deadline = cx.now + cx.shared.table.limits.connect_timeout;
        Fate::Keep
    }

    fn look_at_connect<S: Sockets<Id = I>>(&mut self, cx: &mut Context<'_, S>) -> Fate {
        let Some(backend) = self.backend else { return self.drop_client(cx) };
        if cx.host.readiness(self.client).error.is_some() {
            cx.shared.counters.proxy_relays_reset_by_client += 1;
            self.ends_by(Cause::Client, Stage::Connect);
            return self.drop_client(cx);
        }
        let ready = cx.host.readiness(backend);
        if let Some(error) = ready.error {
            return self.connect_failed(cx, error);
        }
        if !ready.writable {
            return Fate::Keep;
        }
        if let Some(id) = self.chosen {
            let change = cx.shared.backends.good(id, false);
            cx.shared.note_change(cx.now, id, change);
            if cx.shared.backends.config_of(id).is_some_and(|pool| pool.proxy_protocol) {
                let mut before = Vec::with_capacity(52 + self.head.len());
                proxy_protocol::write(&mut before, self.remote, self.local);
                before.append(&mut self.head);
                self.head = before;
            }
        }
        self.tried = Vec::new();
        self.times.connected = Some(cx.now);
        self.begin_relay(cx)
    }

    /// Handles a failed connection to a backend. No byte has been sent, so another may be tried.
    fn connect_failed<S: Sockets<Id = I>>(
        &mut self,
        cx: &mut Context<'_, S>,
        error: SocketError,
    ) -> Fate {
        cx.shared.counters.count_failed_connect(error);
        if let Some(id) = self.chosen {
            let change = cx.shared.backends.bad(id, cx.now);
            cx.shared.note_change(cx.now, id, change);
            self.tried.push(id);
        }
        self.release_backend(cx);
        if self.tried.len() > cx.shared.table.limits.retries as usize {
            return self.give_up(cx, Some(error));
        }
        self.connect(cx, Some(error))
    }

    /// Resets the connection to the backend, if there is one, and stops counting it.
    fn release_backend<S: Sockets<Id = I>>(&mut self, cx: &mut Context<'_, S>) {
        if let Some(socket) = self.backend.take() {
            cx.shared.owners.clear(S::index(socket), socket);
            cx.host.abort(cx.now, socket);
            // The host keeps a socket that has ended by itself until it is closed.
            cx.host.close(cx.now, socket);
        }
        if let Some(id) = self.chosen.take() {
            cx.shared.backends.release(id);
        }
    }

    /// Reports to the client, according to its protocol, that there is no backend.
    fn give_up<S: Sockets<Id = I>>(
        &mut self,
        cx: &mut Context<'_, S>,
        error: Option<SocketError>,
    ) -> Fate {
        let cause = match error {
            Some(SocketError::TimedOut) => Cause::ServerTimeout,
            _ => Cause::Server,
        };
        self.ends_by(cause, Stage::Connect);
        match self.mode(cx) {
            Some(Mode::Http) => self.answer(
                cx,
                match error {
                    Some(SocketError::TimedOut) => Status::GatewayTimeout,
                    Some(_) => Status::BadGateway,
                    None => Status::ServiceUnavailable,
                },
            ),
            Some(Mode::Tls) => self.answer_alert(cx, hello::INTERNAL_ERROR),
            // TCP has no other way to report an error than a reset.
            Some(Mode::Tcp) | None => self.drop_client(cx),
        }
    }

    /// Sets how the pair ends, unless an earlier cause is known.
    fn ends_by(&mut self, cause: Cause, stage: Stage) {
        self.termination.get_or_insert_with(|| Termination::new(cause, stage));
    }

    /// Returns the stage of the pair for its termination state.
    fn stage(&self, shared: &Shared<I>) -> Stage {
        let listener = shared.table.listeners.get(self.listener);
        let is_http = listener.is_some_and(|listener| listener.mode == Mode::Http);
        match self.phase {
            Phase::Head => Stage::Request,
            Phase::Connecting => Stage::Connect,
            _ if is_http && self.bytes[BACKEND] == 0 => Stage::Headers,
            Phase::Relay | Phase::Splicing | Phase::Spliced | Phase::Answering => Stage::Data,
        }
    }

    /// Resets the connections of both sides.
    fn drop_client<S: Sockets<Id = I>>(&mut self, cx: &mut Context<'_, S>) -> Fate {
        self.ends_by(Cause::Internal, self.stage(cx.shared));
        cx.host.abort(cx.now, self.client);
        cx.host.close(cx.now, self.client);
        self.end(cx, "answered", "reset")
    }

    /// Closes a connection to which nothing was sent.
    fn leave_client<S: Sockets<Id = I>>(&mut self, cx: &mut Context<'_, S>) -> Fate {
        cx.host.close(cx.now, self.client);
        self.end(cx, "answered", "closed")
    }

    /// Logs the pair at the end of the program. A spliced pair is logged later, when the number of
    /// bytes that the device relayed is known.
    pub(crate) fn note_end(&self, now: Instant, shared: &mut Shared<I>) {
        let how = match self.phase {
            Phase::Spliced => return,
            Phase::Relay | Phase::Splicing => "relayed",
            Phase::Head | Phase::Connecting | Phase::Answering => "answered",
        };
        let killed = Termination::new(Cause::Killed, self.stage(shared));
        self.note(now, shared, (how, DRAINED), self.termination.unwrap_or(killed));
    }

    fn note(
        &self,
        now: Instant,
        shared: &mut Shared<I>,
        (how, end): (&'static str, &str),
        termination: Termination,
    ) {
        let backend = self.chosen.and_then(|id| shared.backends.get(id)).map(|b| b.addr);
        let record = Record {
            client: self.remote,
            asked: &self.asked,
            backend,
            bytes: self.bytes,
            how,
            end,
            times: self.times,
            status: self.status.code(),
            termination,
        };
        shared.note(now, &record);
    }

    /// Logs the pair, and releases everything but the client's socket.
    fn end<S: Sockets<Id = I>>(
        &mut self,
        cx: &mut Context<'_, S>,
        how: &'static str,
        end: &str,
    ) -> Fate {
        let termination = self.termination.unwrap_or(Termination::NORMAL);
        self.note(cx.now, cx.shared, (how, end), termination);
        self.release_backend(cx);
        cx.shared.owners.clear(S::index(self.client), self.client);
        Fate::Gone
    }
}
