//! The content server: files over HTTP/1.1 (RFC 9110, RFC 9112), heads from the host, bodies from
//! the device.
//!
//! [`ContentServer`] is a handler over [`host::Host`]'s sockets: the driver, real or simulated,
//! gives it what [`Host::poll_notice`] says, calls it at [`ContentServer::poll_timeout`], and runs
//! the host afterwards. It never blocks, reads no clock, and touches no byte of a file: bodies are
//! extents given to [`Host::offload_write`].
//!
//! From the outside in: `server` (connections, deadlines), `connection` (one connection), `answer`
//! (what HTTP says to a request; no sockets from here on), `request`, `target`, `conditional`,
//! `range`, `response`, `files` (open files), `log`. It has no directory listings, no content
//! coding, no TLS, and it reads no request's content.

mod answer;
mod conditional;
mod connection;
mod counters;
pub(crate) mod date;
mod files;
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
    Host, Listen, ListenError, ListenerId, ListenerOption, Notice, SocketId, SocketOption,
    TlsServer,
};

pub use counters::Counters;

use server::Server;

/// How the content server works. The default is what `outboard serve` does.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen.
    pub listen: Vec<Listen>,
    /// Speak TLS there, with this.
    pub tls: Option<TlsServer>,
    /// `TCP_SETUP_OFFLOAD` with `TCP_DEFER_ACCEPT`: the device sets connections up, and the host
    /// hears of them with their first request.
    pub set_up: bool,
    /// `TCP_TEARDOWN_OFFLOAD`: connections are closed with their last response and left to the
    /// device, instead of waiting for the peer to close too.
    pub tear_down: bool,
    /// Value of the Server field; empty for none.
    pub server_name: String,
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
    /// How long the peer's FIN is waited for after the last response was acknowledged.
    pub linger_timeout: Duration,
    /// Bytes of a request head; more is 431.
    pub head_bytes_max: usize,
    /// Bytes of a request line; more is 414.
    pub request_line_bytes_max: usize,
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
            set_up: false,
            tear_down: false,
            server_name: String::from("outboard"),
            index: String::from("index.html"),
            unix_epoch: Duration::ZERO,
            seed: 0,
            header_timeout: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(60),
            send_timeout: Duration::from_secs(60),
            linger_timeout: Duration::from_secs(2),
            head_bytes_max: 16 * 1024,
            request_line_bytes_max: 8 * 1024,
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
    listeners: Vec<ListenerId>,
    server: Server<SocketId>,
}

impl ContentServer {
    /// A server that listens where `config` says.
    ///
    /// # Errors
    /// The first port that cannot be listened on, and why.
    pub fn new(config: Config, host: &mut Host) -> Result<Self, ListenError> {
        let mut listeners = Vec::with_capacity(config.listen.len());
        for &listen in &config.listen {
            let listener = match &config.tls {
                Some(tls) => host.listen_tls(listen, tls.clone())?,
                None => host.listen(listen)?,
            };
            host.set_listener_option(listener, ListenerOption::DeferAccept(config.set_up));
            host.set_listener_option(listener, ListenerOption::TeardownOffload(config.tear_down));
            // HTTP's clients speak first.
            host.set_listener_option(listener, ListenerOption::SetupOffload(config.set_up));
            listeners.push(listener);
        }
        Ok(Self { listeners, server: Server::new(config) })
    }

    /// Takes what [`Host::poll_notice`] gave. Notices about listeners, sockets and files of others
    /// are passed over, so several applications can share a host.
    pub fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        match notice {
            Notice::Accepted(listener, socket) => {
                if self.listeners.contains(&listener) {
                    // Responses are written whole, so Nagle's algorithm could only hold their ends
                    // back.
                    host.set_option(now, socket, SocketOption::NoDelay(true));
                    self.server.handle_accepted(now, host, socket);
                }
            }
            Notice::Socket(socket) => self.server.handle_socket(now, host, socket),
            Notice::File(file) => self.server.handle_file(now, host, file),
            // It splices nothing; what is above UDP is `h3`'s.
            Notice::Spliced(_)
            | Notice::SpliceRefused(..)
            | Notice::SpliceClosed(_)
            | Notice::Udp(_)
            | Notice::ExtentRead
            | Notice::Quic(_)
            | Notice::DeviceReset => {}
        }
    }

    /// Accepts nobody any more. Idle connections are closed; the others are with the response that
    /// they are at, or with the next.
    pub fn drain(&mut self, now: Instant, host: &mut Host) {
        self.listeners.iter().for_each(|&listener| host.unlisten(listener));
        self.server.drain(now, host);
    }

    /// Acts on deadlines that are over.
    pub fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.server.handle_timeout(now, host);
    }

    /// When to call [`Self::handle_timeout`] at the latest; may be earlier than anything is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.server.poll_timeout()
    }

    /// The next line of the access log, without its line end: Combined Log Format, and remarks that
    /// begin with `#`.
    #[must_use]
    pub fn poll_log(&mut self) -> Option<String> {
        self.server.responder.log.poll()
    }

    /// Calls `f` with the name and value of each counter, and of two gauges: connections and open
    /// files.
    pub fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.server.responder.counters.visit(f);
        f("http_connections_open", self.server.connections() as u64);
        f("http_files_cached", self.server.responder.files.len() as u64);
    }
}
