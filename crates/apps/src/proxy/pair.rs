//! One client and its backend: the head, the choice, the connection, and then bytes both ways until
//! both ends have had enough.
//!
//! [`super::server`] calls it when the readiness of one of its sockets changed, when its deadline
//! is over, and when a splice was made, refused or has ended. A head is looked at once; what
//! follows is relayed unread, by the device where it will, else by this host ([`relay`]). Nothing
//! is read from one side that the other has no room for, so a pair holds a head, and what the
//! host's buffers hold.

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

/// All that a pair needs from outside.
pub(crate) struct Context<'a, S: Sockets> {
    pub(crate) now: Instant,
    pub(crate) host: &'a mut S,
    pub(crate) shared: &'a mut Shared<S::Id>,
}

/// What becomes of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It goes on.
    Keep,
    /// It is over, and its sockets were let go.
    Gone,
}

/// What a pair waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The rest of a head or of a ClientHello.
    Head,
    /// A connection to a backend.
    Connecting,
    /// Bytes, from either side.
    Relay,
    /// The device's word; the sockets are the host's until then.
    Splicing,
    /// The end of a splice: there are no sockets any more.
    Spliced,
    /// The client's acknowledgments of an answer of ours, and its FIN.
    Answering,
}

/// The end in the log of a pair that a drain, or the end of the program, resets.
const DRAINED: &str = "drained";

/// A side of a pair, as an index of what there is for both.
const CLIENT: usize = 0;
const BACKEND: usize = 1;

/// A pair.
#[derive(Debug)]
pub(crate) struct Pair<I> {
    client: I,
    remote: Endpoint,
    local: Endpoint,
    backend: Option<I>,
    /// Place in the table of pairs.
    index: usize,
    listener: usize,
    phase: Phase,
    /// Slot of the pool, once it is known; none if the pool is gone.
    pool: Option<usize>,
    /// The backend that counts this pair.
    chosen: Option<BackendId>,
    tried: Vec<BackendId>,
    /// What the client is hashed to.
    hash: u64,
    /// The method is HEAD.
    is_head: bool,
    /// Bytes of a head that is not whole; then what the backend gets before all else; then an
    /// answer of ours for the client.
    head: Vec<u8>,
    /// Request line or name, for the log.
    asked: Vec<u8>,
    /// Bytes relayed that each side sent.
    bytes: [u64; 2],
    /// Our direction to that side is closed.
    shut: [bool; 2],
    times: Times,
    status: StatusLine,
    /// How it ends, once that is known: what happened first counts.
    termination: Option<Termination>,
    /// Bytes unacknowledged when the deadline was set, on both sides.
    queued: u64,
    /// When bytes moved last, while they are relayed.
    moved: Instant,
    /// When to call [`Self::handle_timeout`].
    pub(crate) deadline: Instant,
}

/// What a head, whole or not, leads to.
enum Found {
    More,
    Pool(usize),
    Answer(Status),
    Alert(u8),
}

impl<I: Copy + Eq> Pair<I> {
    /// The pair of a client that was just accepted; none where the client is gone already.
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

    /// The first look at the client.
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

    /// The readiness of one of the sockets changed.
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

    /// The deadline is over.
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

    /// Takes bytes up to the end of the head, and none beyond; says whether the head is whole or
    /// too long.
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

    /// The pool is known, by its index in the table.
    fn routed<S: Sockets<Id = I>>(&mut self, cx: &mut Context<'_, S>, pool: usize) -> Fate {
        cx.shared.counters.proxy_routed += 1;
        self.times.routed = Some(cx.now);
        self.pool = cx.shared.pools.get(pool).copied();
        self.phase = Phase::Connecting;
        self.connect(cx, None)
    }

    /// Begins to connect to the next backend; `before` is why the last one failed.
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
            // What failed first says more than that there is no other.
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
            // Not the backend's fault, and another one would not help.
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

    /// The backend cannot be connected to: no byte has been sent, so another may be tried.
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

    /// Ends the connection to the backend, if there is one, with a reset.
    fn release_backend<S: Sockets<Id = I>>(&mut self, cx: &mut Context<'_, S>) {
        if let Some(socket) = self.backend.take() {
            cx.shared.owners.clear(S::index(socket), socket);
            cx.host.abort(cx.now, socket);
            // One that has ended by itself is held until it is closed.
            cx.host.close(cx.now, socket);
        }
        if let Some(id) = self.chosen.take() {
            cx.shared.backends.release(id);
        }
    }

    /// There is no backend: the client is told so as its protocol has it.
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
            // RFC 9293 has no other way to say it.
            Some(Mode::Tcp) | None => self.drop_client(cx),
        }
    }

    /// Notes how the pair ends, unless something before was the cause.
    fn ends_by(&mut self, cause: Cause, stage: Stage) {
        self.termination.get_or_insert_with(|| Termination::new(cause, stage));
    }

    /// What the pair is doing.
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

    /// Resets whatever there is.
    fn drop_client<S: Sockets<Id = I>>(&mut self, cx: &mut Context<'_, S>) -> Fate {
        self.ends_by(Cause::Internal, self.stage(cx.shared));
        cx.host.abort(cx.now, self.client);
        cx.host.close(cx.now, self.client);
        self.end(cx, "answered", "reset")
    }

    /// Closes a connection on which nothing was promised.
    fn leave_client<S: Sockets<Id = I>>(&mut self, cx: &mut Context<'_, S>) -> Fate {
        cx.host.close(cx.now, self.client);
        self.end(cx, "answered", "closed")
    }

    /// Puts a line about the pair into the log, unless the device has it: then the line has to wait
    /// for what the device relayed.
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

    /// Lets go of everything but the client's socket, and of its name.
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
