//! The content server: files over HTTP/1.1 (RFC 9110, RFC 9112) and HTTP/3 (RFC 9114). The host
//! writes the heads of responses, the device sends the bodies.
//!
//! [`ContentServer`] is a handler over [`host::Host`]'s sockets. The driver, real or simulated,
//! passes it the notices of [`Host::poll_notice`], calls it at [`ContentServer::poll_timeout`], and
//! runs the host afterwards. The server never blocks, reads no clock, and touches no byte of a
//! file: bodies are extents for [`Host::offload_write`].
//!
//! Modules from the socket inward: `server` (connections, deadlines), `connection` (one
//! connection), `gather` (heads that arrive in pieces), `answer` (the decisions of HTTP; no sockets
//! from here on), `request`, `request_target`, `conditional`, `range`, `response`, `file_cache`
//! (open files), `log`. `http3` stands beside `server` and `connection`. The server does not list
//! directories and compresses nothing. The content of requests is stored by PUT (`upload`), if the
//! operator has enabled it, and else read and discarded (`discard`).

mod answer;
mod coding;
mod conditional;
mod connection;
mod counters;
pub(crate) mod date;
mod discard;
mod file_cache;
pub(crate) mod gather;
mod http3;
pub(crate) mod log;
mod open_file;
mod operator_fields;
mod range;
pub(crate) mod reader;
pub(crate) mod request;
mod request_target;
mod response;
mod server;
mod sockets;
pub(crate) mod status;
mod upload;

use std::sync::Arc;

use base::{Duration, Instant};
use host::{
    Application, Host, ListenConfig, ListenError, ListenerId, ListenerOption, Notice, SocketId,
    SocketOption, TlsServer,
};

pub use counters::ContentCounters;
pub use http3::client as http3_client;
pub use operator_fields::{AddedField, CacheControl};
pub use response::ErrorPage;
pub use upload::{UploadConfig, UploadCounters, UploadDecompression, UploadQuota};

use crate::pattern_rules::PatternRules;
use answer::ListenerService;
use http3::Http3;
use server::HttpServer;

/// Configuration of the content server. The default is that of `outboard serve`.
#[derive(Clone, Debug)]
pub struct ContentServerConfig {
    /// Addresses and ports of the listeners: with TLS if `tls` is set, else without.
    pub listen: Vec<ListenConfig>,
    /// TLS settings of the listeners in `listen`; `None` for plain HTTP.
    pub tls: Option<TlsServer>,
    /// Additional listeners without TLS.
    pub cleartext_listen: Vec<ListenConfig>,
    /// Port of HTTPS to which all listeners without TLS redirect; `None` to serve files on them.
    pub redirect_port: Option<u16>,
    /// Configuration of the HTTP/3 endpoint, which responses over TLS announce in Alt-Svc.
    pub http3: Option<quic::QuicEndpointConfig>,
    /// `TCP_SETUP_OFFLOAD` with `TCP_DEFER_ACCEPT`: the device does the handshakes, and the host
    /// learns of a connection with its first request.
    pub setup_offload: bool,
    /// `TCP_TEARDOWN_OFFLOAD`: a connection is closed with its last response and left to the
    /// device. Without it, the server waits for the peer's FIN.
    pub teardown_offload: bool,
    /// Value of the Server field; empty to omit the field.
    pub server_name: String,
    /// Fields that are added to all responses.
    pub added_fields: Vec<AddedField>,
    /// Rules for the Cache-Control field of files; the first whose pattern matches applies.
    pub cache_control: Vec<CacheControl>,
    /// Content of error responses, in place of the status line's text.
    pub error_pages: Vec<ErrorPage>,
    /// Looks for `.br` and `.gz` files beside the requested file, and sends them to clients that
    /// accept these codings.
    pub precompressed: bool,
    /// Name of the file that is sent for a directory.
    pub index: String,
    /// Unix time at [`Instant::ZERO`], for the Date field.
    pub unix_epoch: Duration,
    /// Seed of the keys of a hash table; must be random if clients may be hostile.
    pub seed: u64,
    /// Time limit for a whole request head from its first byte, and for the first byte of a new
    /// connection (against slowloris).
    pub header_timeout: Duration,
    /// Time for which a connection may be idle between requests.
    pub keepalive_timeout: Duration,
    /// Time for which a peer may acknowledge nothing; it is reset after one to two times this time.
    /// Also the time limit for opening a file, or for completing an upload, after which the
    /// response is 503.
    pub send_timeout: Duration,
    /// Time to wait for the peer's FIN after the last response was acknowledged. Bytes that arrive
    /// meanwhile are discarded.
    pub linger_timeout: Duration,
    /// Bytes that are discarded after a connection was left to the host or the device for closing;
    /// more are answered with a reset. At least the receive window that was offered, because a
    /// client may have filled it before it learned of the close.
    pub linger_bytes_max: u32,
    /// Bytes of a request head; 431 above.
    pub head_bytes_max: usize,
    /// Bytes of a request line; 414 above.
    pub request_line_bytes_max: usize,
    /// Bytes of the content of a request that is no upload, which is read and discarded; 413 above.
    pub content_bytes_max: u64,
    /// Time limit for the content of a request; 408 above. Within this time a part of an upload
    /// must arrive.
    pub content_timeout: Duration,
    /// Ranges in one request; a Range field with more is ignored.
    pub ranges_max: usize,
    /// Concurrent TCP connections; more are reset.
    pub connections_max: usize,
    /// Requests on one connection; the response to the last has `Connection: close`. Counted anew
    /// after a move to another queue.
    pub requests_per_connection_max: u32,
    /// Files that are kept open for later requests.
    pub files_max: usize,
    /// Time for which an open file is used without looking its path up again.
    pub file_validity: Duration,
    /// True to fill the access log that [`ContentServer::poll_log`] returns.
    pub access_log: bool,
    /// Rules about patterns in the bytes of clients: a match of a denying rule is answered with
    /// 403, and ends the connection, or over HTTP/3 the request.
    pub pattern_rules: Option<Arc<PatternRules>>,
    /// Uploads by PUT to the directory for uploads of the host's disk; `None` to refuse them with
    /// 405.
    pub uploads: Option<UploadConfig>,
}

impl Default for ContentServerConfig {
    fn default() -> Self {
        Self {
            listen: vec![ListenConfig { addr: None, port: 80, backlog: 1024 }],
            tls: None,
            cleartext_listen: Vec::new(),
            redirect_port: None,
            http3: None,
            setup_offload: false,
            teardown_offload: false,
            server_name: String::from("outboard"),
            added_fields: Vec::new(),
            cache_control: Vec::new(),
            error_pages: Vec::new(),
            precompressed: false,
            index: String::from("index.html"),
            unix_epoch: Duration::ZERO,
            seed: 0,
            header_timeout: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(60),
            send_timeout: Duration::from_secs(60),
            linger_timeout: Duration::from_secs(2),
            linger_bytes_max: 2 << 20,
            head_bytes_max: 16 * 1024,
            request_line_bytes_max: 8 * 1024,
            content_bytes_max: 1 << 20,
            content_timeout: Duration::from_secs(30),
            ranges_max: 16,
            connections_max: 65_536,
            requests_per_connection_max: 100_000,
            files_max: 1024,
            file_validity: Duration::from_secs(1),
            access_log: false,
            pattern_rules: None,
            uploads: None,
        }
    }
}

/// The content server, an [`Application`] for a [`Host`].
pub struct ContentServer {
    listeners: Vec<(ListenerId, ListenerService)>,
    server: HttpServer<SocketId>,
    http3: Option<Http3>,
}

/// Reason for which a server could not be created.
#[derive(Debug)]
#[non_exhaustive]
pub enum ContentServerError {
    /// A listener could not be created.
    Listen(ListenError),
    /// The endpoint of HTTP/3 could not be created.
    Quic(quic::QuicConfigError),
}

impl core::fmt::Display for ContentServerError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Listen(error) => error.fmt(f),
            Self::Quic(error) => write!(f, "HTTP/3: {error}"),
        }
    }
}

impl std::error::Error for ContentServerError {}

impl From<ListenError> for ContentServerError {
    fn from(error: ListenError) -> Self {
        Self::Listen(error)
    }
}

impl ContentServer {
    /// Creates a server and its listeners.
    ///
    /// # Errors
    /// The first listener that could not be created, or the endpoint of HTTP/3.
    pub fn new(config: ContentServerConfig, host: &mut Host) -> Result<Self, ContentServerError> {
        let mut listeners = Vec::with_capacity(config.listen.len());
        let first = config.listen.iter().map(|&listen| (listen, config.tls.as_ref()));
        let beside = config.cleartext_listen.iter().map(|&listen| (listen, None));
        for (listen, tls) in first.chain(beside) {
            let (listener, service) = match (tls, config.redirect_port) {
                (Some(tls), _) => (host.listen_tls(listen, tls.clone())?, ListenerService::Secure),
                (None, Some(port)) => (host.listen(listen)?, ListenerService::Redirect(port)),
                (None, None) => (host.listen(listen)?, ListenerService::Plain),
            };
            // A client that speaks plain HTTP to a TLS port gets a 400 that says so.
            host.set_listener_option(listener, ListenerOption::HandOverCleartext(true));
            host.set_listener_option(listener, ListenerOption::DeferAccept(config.setup_offload));
            host.set_listener_option(
                listener,
                ListenerOption::TeardownOffload(config.teardown_offload),
            );
            // Set-up offload suits HTTP: its clients send first.
            host.set_listener_option(listener, ListenerOption::SetupOffload(config.setup_offload));
            listeners.push((listener, service));
        }
        let http3 = config.http3.clone().map(|quic| http3(&config, quic, host)).transpose()?;
        Ok(Self { listeners, server: HttpServer::new(config), http3 })
    }

    fn handle_http1(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        match notice {
            Notice::Accepted(listener, socket) => {
                let of = self.listeners.iter().find(|(id, _)| *id == listener);
                if let Some(&(_, service)) = of {
                    // Responses are written whole, so Nagle's algorithm would only delay their last
                    // segments.
                    host.set_option(now, socket, SocketOption::NoDelay(true));
                    self.server.handle_accepted(now, host, socket, service);
                }
            }
            Notice::Socket(socket) => self.server.handle_socket(now, host, socket),
            Notice::File(file) => self.server.handle_file(now, host, file),
            Notice::DiskDone(user) => self.server.handle_disk(now, host, user),
            // The server splices nothing; UDP and QUIC notices are for `http3`.
            Notice::Spliced(_)
            | Notice::SpliceRefused(..)
            | Notice::SpliceClosed(_)
            | Notice::Udp(_)
            | Notice::UdpFault(..)
            | Notice::Quic(_) => {}
            // The host reads the files that were open. The next requests open them on the device.
            Notice::DeviceReset => self.server.responder.files.drop_all(),
        }
    }

    /// Marks a path below the root, or with `None` all paths, as changed: the next request opens
    /// the file again. Without this call, an open file is used for
    /// [`ContentServerConfig::file_validity`].
    pub fn expire(&mut self, path: Option<&[u8]>) {
        let responder = &mut self.server.responder;
        responder.counters.http_files_expired += 1;
        match path {
            Some(path) => responder.files.expire(path),
            None => responder.files.expire_all(),
        }
    }

    /// Replaces all error pages by `pages`.
    pub fn set_error_pages(&mut self, pages: &[ErrorPage]) {
        self.server.responder.output.set_pages(pages);
    }

    /// Replaces the rules about patterns for connections that are accepted from now on.
    pub fn set_pattern_rules(&mut self, rules: Arc<PatternRules>) {
        self.server.responder.inspection.replace_rules(rules);
    }

    /// Runs `work` on HTTP/3, if it is configured, and then lets HTTP/3 act on the results.
    fn with_http3(
        &mut self,
        now: Instant,
        host: &mut Host,
        work: impl FnOnce(&mut Http3, &mut http3::Http3Env<'_>),
    ) {
        let Some(http3) = &mut self.http3 else { return };
        work(http3, &mut http3::Http3Env { now, host, responder: &mut self.server.responder });
        loop {
            let responder = &mut self.server.responder;
            let mut cx = http3::Http3Env { now, host, responder };
            for (serial, result) in self.server.http3_open_results.drain(..) {
                http3.handle_opened(&mut cx, serial, result);
            }
            for serial in self.server.http3_resumed.drain(..) {
                http3.handle_upload(&mut cx, serial);
            }
            http3.advance(&mut cx);
            self.server.finish_turn(now, host);
            if self.server.http3_resumed.is_empty() {
                break;
            }
        }
    }

    /// Returns the number of open connections of HTTP/1.1 and HTTP/3.
    #[must_use]
    pub fn open_connections(&self) -> usize {
        self.server.connections() + self.http3.as_ref().map_or(0, Http3::open_connections)
    }

    /// Returns the connections of HTTP/3.
    pub fn quic_connections(&self) -> impl Iterator<Item = quic::ConnectionInfo> + '_ {
        self.http3.iter().flat_map(Http3::connections)
    }
}

impl Application for ContentServer {
    /// Handles a notice from [`Host::poll_notice`]. Notices about other applications' listeners,
    /// sockets and files are ignored, so several applications can share a host.
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        self.handle_http1(now, host, notice);
        self.with_http3(now, host, |http3, cx| http3.handle_notice(cx, notice));
    }

    fn give_up(&mut self, socket: SocketId) -> bool {
        self.server.give_up::<Host>(socket)
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.server.handle_timeout(now, host);
        self.with_http3(now, host, |http3, cx| http3.handle_timeout(cx));
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let http3 = self.http3.as_ref().and_then(Http3::poll_timeout);
        Instant::earliest([self.server.poll_timeout(), http3])
    }

    fn drain(&mut self, now: Instant, host: &mut Host) {
        self.listeners.iter().for_each(|&(listener, _)| host.unlisten(listener));
        self.server.drain(now, host);
        self.with_http3(now, host, |http3, cx| http3.drain(cx));
    }

    /// Closes the QUIC connections, so that clients learn of the end. Must be called before
    /// [`Host::end`], which resets the TCP connections.
    fn end(&mut self, now: Instant, host: &mut Host) {
        self.with_http3(now, host, |http3, cx| http3.end(cx));
    }

    /// Returns the next line of the access log, without its line end: Combined Log Format, or a
    /// remark that begins with `#`.
    fn poll_log(&mut self) -> Option<String> {
        self.server.responder.log.poll()
    }

    /// Calls `f` with the name and value of each counter and of the gauges: connections, open
    /// files, and HTTP/3 requests that are not finished.
    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.server.responder.counters.visit(f);
        self.server.responder.inspection.visit(f);
        if let Some(uploads) = &self.server.responder.uploads {
            uploads.visit(f);
        }
        f("http_connections_open", self.server.connections() as u64);
        f("http_files_cached", self.server.responder.files.len() as u64);
        if let Some(http3) = &self.http3 {
            http3.visit(f);
        }
    }
}

fn http3(
    config: &ContentServerConfig,
    quic: quic::QuicEndpointConfig,
    host: &mut Host,
) -> Result<Http3, ContentServerError> {
    let no_tls = ContentServerError::Quic(quic::QuicConfigError::Tls);
    let Some(tls) = quic.tls.clone() else { return Err(no_tls) };
    let endpoint = quic::QuicEndpoint::new(quic, tls.crypto_provider(), host);
    let endpoint = endpoint.map_err(ContentServerError::Quic)?;
    Ok(Http3::new(endpoint, config))
}
