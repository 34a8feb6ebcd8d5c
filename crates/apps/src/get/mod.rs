//! Bulk receive: downloads of objects over HTTP/1.1, HTTPS and HTTP/3, in parts and resumed.
//!
//! [`GetClient`] is a handler over [`host::Host`]'s sockets and a QUIC endpoint, used by
//! `outboard get`. Its caller starts downloads with [`GetClient::start`], takes
//! [`GetClient::poll_event`], and reports with [`GetClient::written`] how many bytes of content it
//! has stored. Content beyond [`GetClientConfig::unwritten_bytes_max`] stays in the receive
//! buffers, so flow control bounds the memory that a slow caller needs.
//!
//! Each request has a connection of its own (`exchange`, `http1`, `http3`): parts of one object do
//! not wait for each other's losses, and a part that has all of its bytes is ended by closing its
//! connection. `plan` decides which ranges are requested, `response` reads heads, `url` URLs.
//! The client does not resolve names, store files or follow redirects; its caller does.
//!
//! Servers are hostile: heads, the chunked coding and the number of informational responses are
//! bounded, and no byte outside of the requested range reaches the caller.

mod counters;
mod error;
mod exchange;
mod http1;
mod http3;
mod plan;
mod progress;
mod response;
mod url;

use core::net::{IpAddr, SocketAddr};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::{Duration, Instant};
use host::{Application, Host, Notice, TlsClient};
use quic::{QuicEndpoint, QuicEvent, QuicHandle};
use wire::Endpoint;

pub use counters::GetCounters;
pub use error::{GetError, MissingBytes};
pub use plan::ResumePoint;
pub use response::MalformedResponse;
pub use url::{GetUrl, GetUrlError};

use exchange::{Exchange, http1_request, http3_request};
use http1::Http1Exchange;
use http3::Http3Exchange;
use plan::{DownloadPlan, PartRequest};
use progress::ExchangeProgress;
use response::ResponseHead;

/// Configuration of a client.
#[derive(Clone, Debug)]
pub struct GetClientConfig {
    /// Value of the User-Agent field.
    pub user_agent: String,
    /// Time limit for establishing a connection, handshakes included; the next address is tried
    /// then.
    pub connect_timeout: Duration,
    /// Time for which a connection may receive nothing.
    pub idle_timeout: Duration,
    /// Bytes of content of a download that the caller may have received and not written.
    pub unwritten_bytes_max: usize,
}

impl Default for GetClientConfig {
    fn default() -> Self {
        Self {
            user_agent: String::from("outboard"),
            connect_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(60),
            unwritten_bytes_max: 4 << 20,
        }
    }
}

/// Transport of a download.
#[derive(Clone)]
pub enum GetTransport {
    /// HTTP/1.1 over TCP.
    Plain,
    /// HTTP/1.1 over TLS.
    Tls(TlsClient),
    /// HTTP/3. The configuration must offer `h3` by ALPN, and its `name` is not used.
    Http3(TlsClient),
}

/// An order to receive an object.
#[derive(Clone)]
pub struct GetOrder {
    /// Number by which events refer to the download; not that of an open one.
    pub id: u32,
    /// URL of the object. The caller has chosen a transport that fits its scheme.
    pub url: GetUrl,
    /// Addresses of the host, in the order in which they are tried.
    pub addrs: Vec<IpAddr>,
    /// Transport.
    pub transport: GetTransport,
    /// Maximum number of parts that are received at a time; 1 receives the object in order.
    pub parts_max: usize,
    /// State of an interrupted download to be continued.
    pub resume: Option<ResumePoint>,
}

/// An event of a download.
#[derive(Debug)]
pub enum GetEvent {
    /// The server sends the object, or its rest. Precedes all content.
    Begun {
        /// The download.
        id: u32,
        /// Length of the object in bytes, if it is known.
        length: Option<u64>,
        /// Validator of this version of the object: an interrupted download can be continued only
        /// if there is one.
        validator: Option<String>,
        /// True if only missing ranges follow; false if the whole object follows.
        resumed: bool,
    },
    /// Bytes of the object.
    Content {
        /// The download.
        id: u32,
        /// Position of the first byte.
        offset: u64,
        /// The bytes, at least one.
        bytes: Vec<u8>,
    },
    /// The download has ended; no event of it follows.
    Ended {
        /// The download.
        id: u32,
        /// `Ok` if all bytes were delivered.
        result: Result<(), GetError>,
    },
}

/// A download in progress.
struct Download {
    order: GetOrder,
    plan: DownloadPlan,
    /// Index of the address in use.
    addr: usize,
    /// The first head was accepted.
    begun: bool,
    /// Bytes of content that the caller has not written.
    unwritten: usize,
}

/// A request of a download that is in progress.
struct ActivePart {
    download: u32,
    request: PartRequest,
    exchange: Exchange,
    /// The head was accepted.
    has_head: bool,
    /// Position of the next byte of content, and the end of the part if it is known.
    at: u64,
    end: Option<u64>,
    /// The part is given up then.
    deadline: Instant,
}

/// Result of running a part until nothing more has arrived.
enum PartResult {
    Open,
    /// All bytes of the part were received.
    Complete,
    Failed(GetError),
}

/// Client of HTTP servers, an [`Application`].
pub struct GetClient {
    config: GetClientConfig,
    endpoint: Option<QuicEndpoint>,
    downloads: BTreeMap<u32, Download>,
    parts: BTreeMap<u64, ActivePart>,
    next_part: u64,
    /// Parts that may make progress.
    ready: BTreeSet<u64>,
    events: VecDeque<GetEvent>,
    counters: GetCounters,
}

impl GetClient {
    /// Creates a client. `endpoint` is the QUIC endpoint for downloads over HTTP/3; it must not
    /// accept connections.
    #[must_use]
    pub fn new(config: GetClientConfig, endpoint: Option<QuicEndpoint>) -> Self {
        Self {
            config,
            endpoint,
            downloads: BTreeMap::new(),
            parts: BTreeMap::new(),
            next_part: 0,
            ready: BTreeSet::new(),
            events: VecDeque::new(),
            counters: GetCounters::default(),
        }
    }

    /// Starts a download. Its last event is [`GetEvent::Ended`].
    pub fn start(&mut self, now: Instant, host: &mut Host, order: GetOrder) {
        self.counters.get_downloads += 1;
        let (id, resume) = (order.id, order.resume.clone());
        let mut plan = DownloadPlan::new(order.parts_max.max(1), resume);
        let first = plan.first_request();
        let download = Download { order, plan, addr: 0, begun: false, unwritten: 0 };
        let before = self.downloads.insert(id, download);
        assert!(before.is_none(), "the number of an open download");
        self.send_first(now, host, id, first);
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<GetEvent> {
        self.events.pop_front()
    }

    /// Notes that bytes of [`GetEvent::Content`] were written: as many may be received.
    pub fn written(&mut self, id: u32, bytes: usize) {
        let max = self.config.unwritten_bytes_max;
        let Some(download) = self.downloads.get_mut(&id) else { return };
        let was_full = download.unwritten >= max;
        download.unwritten = download.unwritten.saturating_sub(bytes);
        if was_full && download.unwritten < max {
            let of_it = self.parts.iter().filter(|(_, part)| part.download == id);
            self.ready.extend(of_it.map(|(key, _)| *key));
        }
    }

    /// Ends a download without an event.
    pub fn cancel(&mut self, now: Instant, host: &mut Host, id: u32) {
        if self.downloads.remove(&id).is_some() {
            self.close_parts(now, host, id);
        }
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counters(&self) -> &GetCounters {
        &self.counters
    }

    /// Sends the first request of a download, to the first address that can be used.
    fn send_first(&mut self, now: Instant, host: &mut Host, id: u32, request: PartRequest) {
        let mut error = GetError::Connect(host::ConnectError::NoRoute);
        while self.downloads.get(&id).is_some_and(|d| d.addr < d.order.addrs.len()) {
            match self.send(now, host, id, request.clone()) {
                Ok(()) => return,
                Err(why) => error = why,
            }
            if let Some(download) = self.downloads.get_mut(&id) {
                download.addr += 1;
            }
        }
        self.end(now, host, id, Err(error));
    }

    /// Opens a connection for a request.
    fn send(
        &mut self,
        now: Instant,
        host: &mut Host,
        id: u32,
        request: PartRequest,
    ) -> Result<(), GetError> {
        let Some(Download { order, addr, .. }) = self.downloads.get(&id) else { return Ok(()) };
        let addr = *order.addrs.get(*addr).ok_or(host::ConnectError::NoRoute)?;
        let (url, agent) = (&order.url, &self.config.user_agent);
        let remote = Endpoint { addr, port: url.port };
        let exchange = match &order.transport {
            GetTransport::Plain => {
                let socket = host.connect(now, remote)?;
                Exchange::Http1(Http1Exchange::new(socket, http1_request(url, &request, agent)))
            }
            GetTransport::Tls(tls) => {
                let socket = host.connect_tls(now, remote, tls)?;
                Exchange::Http1(Http1Exchange::new(socket, http1_request(url, &request, agent)))
            }
            GetTransport::Http3(tls) => {
                let no_endpoint = || not_connected("no endpoint");
                let endpoint = self.endpoint.as_mut().ok_or_else(no_endpoint)?;
                let to = SocketAddr::new(addr, url.port);
                let handle = endpoint.connect(now, host, to, &url.host, &tls.config);
                let handle = handle.map_err(|e| not_connected(&format!("{e:?}")))?;
                Exchange::Http3(Http3Exchange::new(handle, http3_request(url, &request, agent)))
            }
        };
        self.counters.get_requests += 1;
        let deadline = now + self.config.connect_timeout;
        let (at, end) = (request.start, request.end);
        let part =
            ActivePart { download: id, request, exchange, has_head: false, at, end, deadline };
        self.parts.insert(self.next_part, part);
        self.next_part += 1;
        Ok(())
    }

    /// Passes the events of the QUIC endpoint to the exchanges.
    fn take_quic_events(&mut self) {
        let Some(endpoint) = &mut self.endpoint else { return };
        while let Some(event) = endpoint.poll_event() {
            let (QuicEvent::Connected(handle)
            | QuicEvent::Stream(handle, _)
            | QuicEvent::Lost(handle, _)) = event;
            let Some((key, exchange)) = find_connection(&mut self.parts, handle) else { continue };
            match event {
                QuicEvent::Connected(_) => exchange.handle_connected(endpoint),
                QuicEvent::Stream(..) => exchange.ignore_server_streams(endpoint),
                QuicEvent::Lost(_, why) => exchange.handle_lost(&why),
            }
            self.ready.insert(key);
        }
    }

    /// Runs a part until nothing more has arrived, and acts on the result.
    fn run(&mut self, now: Instant, host: &mut Host, key: u64) {
        // The part is put back if it is still open.
        let Some(mut part) = self.parts.remove(&key) else { return };
        let id = part.download;
        let result = match self.downloads.get_mut(&id) {
            Some(download) => {
                let mut env = PartEnv {
                    now,
                    host,
                    endpoint: self.endpoint.as_mut(),
                    config: &self.config,
                    events: &mut self.events,
                    counters: &mut self.counters,
                };
                part.run(download, &mut env)
            }
            None => PartResult::Failed(GetError::EmptyReply),
        };
        match result {
            PartResult::Open => {
                self.parts.insert(key, part);
            }
            PartResult::Complete => {
                part.exchange.close(now, host, self.endpoint.as_mut());
            }
            PartResult::Failed(error) => {
                let connected = part.exchange.is_connected();
                part.exchange.close(now, host, self.endpoint.as_mut());
                self.handle_failure(now, host, id, (part.request, connected), error);
                return;
            }
        }
        if self.downloads.get(&id).is_some_and(|download| download.begun) {
            self.send_more(now, host, id);
        }
    }

    /// Tries the next address if the first request of a download could not connect; otherwise the
    /// download fails.
    fn handle_failure(
        &mut self,
        now: Instant,
        host: &mut Host,
        id: u32,
        (request, connected): (PartRequest, bool),
        error: GetError,
    ) {
        let next = self.downloads.get_mut(&id).filter(|download| {
            !connected && !download.begun && download.addr + 1 < download.order.addrs.len()
        });
        match next {
            Some(download) => {
                download.addr += 1;
                self.send_first(now, host, id, request);
            }
            None => self.end(now, host, id, Err(error)),
        }
    }

    /// Sends requests for further parts; ends the download if all were received.
    fn send_more(&mut self, now: Instant, host: &mut Host, id: u32) {
        loop {
            let Some(download) = self.downloads.get_mut(&id) else { return };
            let open = self.parts.values().filter(|part| part.download == id).count();
            if open >= download.order.parts_max.max(1) {
                return;
            }
            let Some(request) = download.plan.next_request() else {
                if open == 0 {
                    self.end(now, host, id, Ok(()));
                }
                return;
            };
            if let Err(error) = self.send(now, host, id, request) {
                self.end(now, host, id, Err(error));
                return;
            }
        }
    }

    fn end(&mut self, now: Instant, host: &mut Host, id: u32, result: Result<(), GetError>) {
        if self.downloads.remove(&id).is_none() {
            return;
        }
        match result {
            Ok(()) => self.counters.get_done += 1,
            Err(_) => self.counters.get_failed += 1,
        }
        self.close_parts(now, host, id);
        self.events.push_back(GetEvent::Ended { id, result });
    }

    fn close_parts(&mut self, now: Instant, host: &mut Host, id: u32) {
        let keys: Vec<u64> =
            self.parts.iter().filter(|(_, p)| p.download == id).map(|(key, _)| *key).collect();
        for part in keys.iter().filter_map(|key| self.parts.remove(key)).collect::<Vec<_>>() {
            part.exchange.close(now, host, self.endpoint.as_mut());
        }
    }
}

/// Returns the exchange on a connection and the number of its part.
fn find_connection(
    parts: &mut BTreeMap<u64, ActivePart>,
    handle: QuicHandle,
) -> Option<(u64, &mut Http3Exchange)> {
    parts.iter_mut().find_map(|(key, part)| Some((*key, part.exchange.on_connection(handle)?)))
}

fn not_connected(reason: &str) -> GetError {
    GetError::Quic { established: false, reason: reason.to_owned() }
}

/// The parts of the client and the host that a part uses.
struct PartEnv<'a> {
    now: Instant,
    host: &'a mut Host,
    endpoint: Option<&'a mut QuicEndpoint>,
    config: &'a GetClientConfig,
    events: &'a mut VecDeque<GetEvent>,
    counters: &'a mut GetCounters,
}

impl ActivePart {
    /// Polls the exchange until it waits or has ended.
    fn run(&mut self, download: &mut Download, env: &mut PartEnv<'_>) -> PartResult {
        loop {
            if self.has_head && self.end.is_some_and(|end| self.at >= end) {
                // The server may send more, which is not wanted.
                return PartResult::Complete;
            }
            let room = env.config.unwritten_bytes_max.saturating_sub(download.unwritten);
            // A head is read even without room; it is short.
            let room = if self.has_head { room } else { room.max(1) };
            let was_connected = self.exchange.is_connected();
            let progress = self.exchange.poll(env.now, env.host, env.endpoint.as_deref_mut(), room);
            match progress {
                Ok(ExchangeProgress::Waiting) => {
                    if !was_connected && self.exchange.is_connected() {
                        self.deadline = env.now + env.config.idle_timeout;
                    }
                    return PartResult::Open;
                }
                Ok(ExchangeProgress::Head(head)) => {
                    if let Err(error) = self.handle_head(download, &head, env) {
                        return PartResult::Failed(error);
                    }
                }
                Ok(ExchangeProgress::Content(bytes)) => self.handle_content(download, bytes, env),
                Ok(ExchangeProgress::Finished) => {
                    let missing = self.end.map(|end| end.saturating_sub(self.at));
                    return match missing {
                        None | Some(0) => PartResult::Complete,
                        missing => {
                            PartResult::Failed(GetError::Partial { missing: MissingBytes(missing) })
                        }
                    };
                }
                Err(error) => return PartResult::Failed(error),
            }
            self.deadline = env.now + env.config.idle_timeout;
        }
    }

    fn handle_head(
        &mut self,
        download: &mut Download,
        head: &ResponseHead,
        env: &mut PartEnv<'_>,
    ) -> Result<(), GetError> {
        if download.begun {
            download.plan.handle_later_head(&self.request, head)?;
        } else {
            let first = download.plan.handle_first_head(&self.request, head)?;
            (self.at, self.end, download.begun) = (first.start, first.end, true);
            env.events.push_back(GetEvent::Begun {
                id: self.download,
                length: download.plan.length,
                validator: download.plan.validator.clone(),
                resumed: first.resumed,
            });
        }
        self.has_head = true;
        Ok(())
    }

    /// Passes content to the caller, without bytes behind the part's end.
    fn handle_content(
        &mut self,
        download: &mut Download,
        mut bytes: Vec<u8>,
        env: &mut PartEnv<'_>,
    ) {
        if let Some(end) = self.end {
            bytes.truncate(usize::try_from(end.saturating_sub(self.at)).unwrap_or(usize::MAX));
        }
        env.counters.get_content_bytes += bytes.len() as u64;
        download.unwritten += bytes.len();
        let offset = self.at;
        self.at += bytes.len() as u64;
        env.events.push_back(GetEvent::Content { id: self.download, offset, bytes });
    }
}

impl Application for GetClient {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        if let Notice::Socket(socket) = notice {
            let part = self.parts.iter().find(|(_, part)| part.exchange.is_on_socket(socket));
            self.ready.extend(part.map(|(key, _)| *key));
        } else if let Some(endpoint) = &mut self.endpoint {
            endpoint.handle_notice(now, host, notice);
        }
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.handle_timeout(now, host);
        }
        let due: Vec<u64> =
            self.parts.iter().filter(|(_, p)| p.deadline <= now).map(|(key, _)| *key).collect();
        for key in due {
            let Some(mut part) = self.parts.remove(&key) else { continue };
            let id = part.download;
            let full = self.downloads.get(&id).is_some_and(|download| {
                part.has_head && download.unwritten >= self.config.unwritten_bytes_max
            });
            if full {
                // The caller is slow, and not the server.
                part.deadline = now + self.config.idle_timeout;
                self.parts.insert(key, part);
                continue;
            }
            self.counters.get_timeouts += 1;
            let connected = part.exchange.is_connected();
            let (doing, limit) = match connected {
                false => ("connecting", self.config.connect_timeout),
                true => ("without data", self.config.idle_timeout),
            };
            let error = GetError::TimedOut { doing, seconds: limit.as_millis().div_ceil(1000) };
            part.exchange.close(now, host, self.endpoint.as_mut());
            self.handle_failure(now, host, id, (part.request, connected), error);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let endpoint = self.endpoint.as_ref().and_then(Application::poll_timeout);
        let deadline = self.parts.values().map(|part| part.deadline).min();
        Instant::earliest([endpoint, deadline])
    }

    fn advance(&mut self, now: Instant, host: &mut Host) -> bool {
        self.take_quic_events();
        let mut worked = false;
        while let Some(key) = self.ready.pop_first() {
            worked = true;
            self.run(now, host, key);
        }
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.flush(now, host);
        }
        worked
    }

    fn end(&mut self, now: Instant, host: &mut Host) {
        for id in self.downloads.keys().copied().collect::<Vec<_>>() {
            self.cancel(now, host, id);
        }
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.flush(now, host);
        }
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(f);
        f("get_downloads_open", self.downloads.len() as u64);
        if let Some(endpoint) = &self.endpoint {
            endpoint.visit(f);
        }
    }
}
