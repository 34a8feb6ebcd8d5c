//! The content server: files over HTTP/1.1 (RFC 9110, RFC 9112) and HTTP/3 (RFC 9114), heads from
//! the host, bodies from the device.
//!
//! [`ContentServer`] is a handler over [`host::Host`]'s sockets: the driver, real or simulated,
//! gives it what [`Host::poll_notice`] says, calls it at [`ContentServer::poll_timeout`], and runs
//! the host afterwards. It never blocks, reads no clock, and touches no byte of a file: bodies are
//! extents given to [`Host::offload_write`].
//!
//! From the outside in: `server` (connections, deadlines), `connection` (one connection), `gather`
//! (a head in pieces), `answer` (what HTTP says to a request; no sockets from here on), `request`,
//! `target`, `conditional`, `range`, `response`, `files` (open files), `log`; `http3` beside
//! `server` and `connection`. It has no directory listings and no content coding of its own; the
//! content of requests is read and thrown away (`body`).

mod answer;
mod body;
mod coding;
mod conditional;
mod connection;
mod counters;
pub(crate) mod date;
mod fields;
mod files;
pub(crate) mod gather;
mod http3;
pub(crate) mod log;
mod range;
pub(crate) mod request;
mod resource;
mod response;
mod server;
mod sockets;
pub(crate) mod status;
mod target;

use base::{Duration, Instant};
use host::{
    Application, Host, Listen, ListenError, ListenerId, ListenerOption, Notice, SocketId,
    SocketOption, TlsServer,
};

pub use counters::Counters;
pub use fields::{AddedField, CacheControl};
pub use http3::client as http3_client;
pub use response::ErrorPage;

use answer::Service;
use http3::Http3;
use server::Server;

/// How the content server works. The default is what `outboard serve` does.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen.
    pub listen: Vec<Listen>,
    /// Speak TLS there, with this.
    pub tls: Option<TlsServer>,
    /// Further listeners, without TLS.
    pub cleartext: Vec<Listen>,
    /// Answer there with a redirect to HTTPS at this port, and not with files.
    pub redirect: Option<u16>,
    /// Speak HTTP/3 on this endpoint, and say so in responses.
    pub http3: Option<quic::Config>,
    /// `TCP_SETUP_OFFLOAD` with `TCP_DEFER_ACCEPT`: the device sets connections up, and the host
    /// hears of them with their first request.
    pub set_up: bool,
    /// `TCP_TEARDOWN_OFFLOAD`: connections are closed with their last response and left to the
    /// device, instead of waiting for the peer to close too.
    pub tear_down: bool,
    /// Value of the Server field; empty for none.
    pub server_name: String,
    /// Fields that all responses have.
    pub headers: Vec<AddedField>,
    /// The Cache-Control fields of files: the first whose pattern fits counts.
    pub cache_control: Vec<CacheControl>,
    /// Content of responses with an error, instead of the status's name.
    pub error_pages: Vec<ErrorPage>,
    /// Look for files with `.br` and `.gz` beside those asked for, and send them to clients that
    /// accept these codings.
    pub precompressed: bool,
    /// File that stands for its directory.
    pub index: String,
    /// Unix time at [`Instant::ZERO`], for Date.
    pub unix_epoch: Duration,
    /// Random where clients are hostile: keys a hash table.
    pub seed: u64,
    /// Time for a whole request head from its first byte, and for a new connection's first byte
    /// (slowloris).
    pub header_timeout: Duration,
    /// How long a connection may be idle between requests.
    pub keepalive_timeout: Duration,
    /// How long a peer may acknowledge nothing: it is reset after once to twice this time. Also the
    /// time for a disk to open a file, answered with 503 then.
    pub send_timeout: Duration,
    /// How long the peer's FIN is waited for after the last response was acknowledged, and whatever
    /// comes before it is discarded.
    pub linger_timeout: Duration,
    /// Bytes that are discarded once the host, or the device, is left to see a connection to its
    /// end; more is answered with a reset. At least the receive window that was offered, since a
    /// client may have filled it before it knew of the end.
    pub linger_bytes_max: u32,
    /// Bytes of a request head; more is 431.
    pub head_bytes_max: usize,
    /// Bytes of a request line; more is 414.
    pub request_line_bytes_max: usize,
    /// Bytes of the content of a request, which is read and thrown away; more is 413.
    pub content_bytes_max: u64,
    /// Time for the content of a request to arrive; 408 above.
    pub content_timeout: Duration,
    /// Ranges in one request; a Range field with more is ignored.
    pub ranges_max: usize,
    /// Connections at one time; more are reset.
    pub connections_max: usize,
    /// Requests on one connection; the last is answered with `Connection: close`.
    pub requests_per_connection_max: u32,
    /// Open files that are kept for the next request.
    pub files_max: usize,
    /// How long an open file is believed to be what its path names.
    pub file_validity: Duration,
    /// Whether [`ContentServer::poll_log`] gives lines.
    pub access_log: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec![Listen { addr: None, port: 80, backlog: 1024 }],
            tls: None,
            cleartext: Vec::new(),
            redirect: None,
            http3: None,
            set_up: false,
            tear_down: false,
            server_name: String::from("outboard"),
            headers: Vec::new(),
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
        }
    }
}

/// The content server.
pub struct ContentServer {
    listeners: Vec<(ListenerId, Service)>,
    server: Server<SocketId>,
    http3: Option<Http3>,
}

/// Why there is no server.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// A port cannot be listened on.
    Listen(ListenError),
    /// There is no endpoint for HTTP/3.
    Quic(quic::ConfigError),
}

impl core::fmt::Display for StartError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Listen(error) => error.fmt(f),
            Self::Quic(error) => write!(f, "HTTP/3: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

impl From<ListenError> for StartError {
    fn from(error: ListenError) -> Self {
        Self::Listen(error)
    }
}

impl ContentServer {
    /// A server that listens where `config` says.
    ///
    /// # Errors
    /// The first port that cannot be listened on, and why.
    pub fn new(config: Config, host: &mut Host) -> Result<Self, StartError> {
        let mut listeners = Vec::with_capacity(config.listen.len());
        let first = config.listen.iter().map(|&listen| (listen, config.tls.as_ref()));
        let beside = config.cleartext.iter().map(|&listen| (listen, None));
        for (listen, tls) in first.chain(beside) {
            let (listener, service) = match (tls, config.redirect) {
                (Some(tls), _) => (host.listen_tls(listen, tls.clone())?, Service::Secure),
                (None, Some(port)) => (host.listen(listen)?, Service::Redirect(port)),
                (None, None) => (host.listen(listen)?, Service::Plain),
            };
            // Those who speak plain HTTP there are told so.
            host.set_listener_option(listener, ListenerOption::HandOverCleartext(true));
            host.set_listener_option(listener, ListenerOption::DeferAccept(config.set_up));
            host.set_listener_option(listener, ListenerOption::TeardownOffload(config.tear_down));
            // HTTP's clients speak first.
            host.set_listener_option(listener, ListenerOption::SetupOffload(config.set_up));
            listeners.push((listener, service));
        }
        let http3 = config.http3.clone().map(|quic| http3(&config, quic, host)).transpose()?;
        Ok(Self { listeners, server: Server::new(config), http3 })
    }

    fn handle_http1(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        match notice {
            Notice::Accepted(listener, socket) => {
                let of = self.listeners.iter().find(|(id, _)| *id == listener);
                if let Some(&(_, service)) = of {
                    // Responses are written whole, so Nagle's algorithm could only hold their ends
                    // back.
                    host.set_option(now, socket, SocketOption::NoDelay(true));
                    self.server.handle_accepted(now, host, socket, service);
                }
            }
            Notice::Socket(socket) => self.server.handle_socket(now, host, socket),
            Notice::File(file) => self.server.handle_file(now, host, file),
            // It splices nothing; what is above UDP is `h3`'s.
            Notice::Spliced(_)
            | Notice::SpliceRefused(..)
            | Notice::SpliceClosed(_)
            | Notice::Udp(_)
            | Notice::DiskDone(_)
            | Notice::UdpFault(..)
            | Notice::Quic(_)
            | Notice::DeviceReset => {}
        }
    }

    /// A path below the root, or (`None`) any, may lead elsewhere than it did, or to other content:
    /// the next request opens it again. Without this an open file is believed for
    /// [`Config::file_validity`].
    pub fn expire(&mut self, path: Option<&[u8]>) {
        let responder = &mut self.server.responder;
        responder.counters.http_files_expired += 1;
        match path {
            Some(path) => responder.files.expire(path),
            None => responder.files.expire_all(),
        }
    }

    /// Answers errors with these pages from now on, and with no others.
    pub fn set_error_pages(&mut self, pages: &[ErrorPage]) {
        self.server.responder.output.set_pages(pages);
    }

    /// Lets HTTP/3 work, where it is spoken, and act on what came of it.
    fn with_http3(
        &mut self,
        now: Instant,
        host: &mut Host,
        work: impl FnOnce(&mut Http3, &mut http3::Context<'_>),
    ) {
        let Some(http3) = &mut self.http3 else { return };
        let responder = &mut self.server.responder;
        let mut cx = http3::Context { now, host, responder };
        work(http3, &mut cx);
        for (serial, result) in self.server.elsewhere.drain(..) {
            http3.handle_opened(&mut cx, serial, result);
        }
        http3.advance(&mut cx);
        self.server.close_files(host);
    }

    /// Connections of HTTP/3.
    pub fn quic_connections(&self) -> impl Iterator<Item = quic::ConnectionInfo> + '_ {
        self.http3.iter().flat_map(Http3::connections)
    }
}

impl Application for ContentServer {
    /// Takes what [`Host::poll_notice`] gave. Notices about listeners, sockets and files of others
    /// are passed over, so several applications can share a host.
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        self.handle_http1(now, host, notice);
        self.with_http3(now, host, |http3, cx| http3.handle_notice(cx, notice));
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

    /// Ends: QUIC connections are closed, so that clients learn of it. To be called before
    /// [`Host::end`], which resets those of TCP.
    fn end(&mut self, now: Instant, host: &mut Host) {
        self.with_http3(now, host, |http3, cx| http3.end(cx));
    }

    /// The next line of the access log, without its line end: Combined Log Format, and remarks that
    /// begin with `#`.
    fn poll_log(&mut self) -> Option<String> {
        self.server.responder.log.poll()
    }

    /// Calls `f` with the name and value of each counter, and of gauges: connections, open files,
    /// and requests of HTTP/3 that are not over.
    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.server.responder.counters.visit(f);
        f("http_connections_open", self.server.connections() as u64);
        f("http_files_cached", self.server.responder.files.len() as u64);
        if let Some(http3) = &self.http3 {
            http3.visit(f);
        }
    }
}

fn http3(config: &Config, quic: quic::Config, host: &mut Host) -> Result<Http3, StartError> {
    let no_tls = StartError::Quic(quic::ConfigError::Tls);
    let Some(tls) = quic.tls.clone() else { return Err(no_tls) };
    let endpoint = quic::Endpoint::new(quic, tls.crypto_provider(), host);
    let endpoint = endpoint.map_err(StartError::Quic)?;
    Ok(Http3::new(endpoint, config))
}
