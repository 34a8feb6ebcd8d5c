//! The NVMe/TCP target: namespaces on files, for hosts (NVMe over Fabrics 1.1, NVMe/TCP Transport
//! specification 1.0).
//!
//! [`Target`] is a handler over [`host::Host`]'s sockets: the driver, real or simulated, gives it
//! what [`Host::poll_notice`] says, calls it at [`Target::poll_timeout`], and runs the host
//! afterwards. It never blocks, reads no clock, and touches no byte of a read: data goes from the
//! file to the wire where the device can, and data of writes comes into the buffers that are
//! written to the disk.
//!
//! From the outside in: `server` (connections, deadlines), `queue` (one connection), `connect`,
//! `admin` with `features`, `pages` and `discovery`, `io` (operations); below them `controller`,
//! `subsystem`, `answers`, `locks`, `shares`, `buffers`, and `shared`, which all connections share.
//! `link` is what is asked of the host. `namespaces` are changes by an operator, `log` tells of
//! connections.
//!
//! There is no in-band authentication, no namespace management by hosts, no reservations, no
//! firmware, no sanitize, no protection information, no copy; commands for them are refused.

mod admin;
mod answers;
mod buffers;
mod connect;
mod controller;
mod counters;
mod discovery;
mod features;
mod io;
mod link;
mod locks;
mod log;
mod namespaces;
mod pages;
mod queue;
mod server;
mod shared;
mod shares;
mod subsystem;

use std::sync::Arc;

use abi::crypto::CryptoProvider;
use base::{Duration, Instant};
use host::nvme::{Serve, Transport};
use host::{
    Application, Host, Listen, ListenError, ListenerId, Notice, SocketId, SocketOption, TlsServer,
};
use wire::Endpoint;
use wire::nvme::fabrics::ADMIN_IN_CAPSULE_BYTES;
use wire::nvme::nqn::Nqn;
use wire::nvme::pdu::{MAXH2CDATA_MIN, PDA_MAX};

pub use counters::Counters;
pub use namespaces::{ChangeError, NamespaceInfo, QueueInfo};
pub use subsystem::{NamespaceConfig, SubsystemConfig};

use server::Server;

use super::channel::Channel;
use super::handshake::Handshakes;

/// How the target works. The default has no subsystem, and listens on the port of the discovery
/// service and of subsystems.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen.
    pub listen: Vec<Listen>,
    /// Speak TLS there, with these certificates.
    pub tls: Option<TlsServer>,
    /// Speak TLS there, with these pre-shared keys; not with certificates too.
    pub psk: Option<Arc<dyn Handshakes>>,
    /// Where hosts find us, for the discovery log.
    pub addresses: Vec<Endpoint>,
    /// What there is.
    pub subsystems: Vec<SubsystemConfig>,
    /// Whether hosts may have digests of headers.
    pub header_digest: bool,
    /// Whether hosts may have digests of data.
    pub data_digest: bool,
    /// Alignment of data to us: one less than the dwords, 0 to 31.
    pub cpda: u8,
    /// Most bytes of data in a capsule; never below what the admin queue has.
    pub in_capsule_bytes: u32,
    /// Most bytes of data in an H2CData: a multiple of four, 4096 or more.
    pub maxh2cdata: u32,
    /// Most data of a command: 4 KiB times two to the power of this.
    pub mdts: u8,
    /// I/O queues of a controller.
    pub queues_max: u16,
    /// Entries of a queue.
    pub queue_entries_max: u16,
    /// Controllers at one time; more connects are told that we are busy.
    pub controllers_max: usize,
    /// Connections at one time; more are reset.
    pub connections_max: usize,
    /// Bytes of memory for the data of writes, of which a controller may have half.
    pub buffer_bytes_max: usize,
    /// Most bytes of data in capsules that wait for that memory, of which a controller may have
    /// half; commands with more fail, and may be sent again.
    pub capsule_bytes_max: usize,
    /// Time for a new connection's Connect.
    pub connect_timeout: Duration,
    /// How long a host may send nothing of the data that it was asked for. All data of one write
    /// may take four times as long.
    pub data_timeout: Duration,
    /// Keep a log of connections, for [`Target::poll_log`].
    pub log: bool,
    /// Unix time at [`Instant::ZERO`], for the log.
    pub unix_epoch: Duration,
    /// How long a peer may acknowledge nothing, and how long others wait for blocks that it has
    /// read and not acknowledged.
    pub send_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec![Listen { addr: None, port: 4420, backlog: 128 }],
            tls: None,
            psk: None,
            addresses: Vec::new(),
            subsystems: Vec::new(),
            header_digest: true,
            data_digest: true,
            cpda: 0,
            in_capsule_bytes: 8192,
            maxh2cdata: 128 << 10,
            mdts: 8,
            queues_max: 64,
            queue_entries_max: 1024,
            controllers_max: 256,
            connections_max: 4096,
            buffer_bytes_max: 64 << 20,
            capsule_bytes_max: 64 << 20,
            connect_timeout: Duration::from_secs(10),
            data_timeout: Duration::from_secs(30),
            send_timeout: Duration::from_secs(30),
            log: false,
            unix_epoch: Duration::ZERO,
        }
    }
}

/// Why there is no target.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartError {
    /// A port cannot be listened on.
    Listen(ListenError),
    /// A field of [`Config`] is out of its range: its name.
    Field(&'static str),
    /// Two subsystems have this name, or it is the discovery subsystem's.
    Nqn(String),
    /// Two namespaces have this file.
    Path(String),
}

impl core::fmt::Display for StartError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Listen(error) => error.fmt(f),
            Self::Field(name) => write!(f, "{name} is out of its range"),
            Self::Nqn(nqn) => write!(f, "{nqn} cannot be the name of a subsystem, or not of two"),
            Self::Path(path) => write!(f, "two namespaces on {path}"),
        }
    }
}

impl std::error::Error for StartError {}

impl From<ListenError> for StartError {
    fn from(error: ListenError) -> Self {
        Self::Listen(error)
    }
}

impl Config {
    /// Says what is wrong with it.
    fn check(&self) -> Result<(), StartError> {
        let data_max = 4096_usize << self.mdts.min(16);
        let fields = [
            ("psk", self.psk.is_none() || self.tls.is_none()),
            ("cpda", self.cpda <= PDA_MAX),
            ("maxh2cdata", self.maxh2cdata >= MAXH2CDATA_MIN && self.maxh2cdata % 4 == 0),
            (
                "in_capsule_bytes",
                self.in_capsule_bytes <= 1 << 20 && self.in_capsule_bytes % 16 == 0,
            ),
            ("mdts", (1..=16).contains(&self.mdts)),
            ("queues_max", (1..=1024).contains(&self.queues_max)),
            ("queue_entries_max", (32..=4096).contains(&self.queue_entries_max)),
            ("buffer_bytes_max", self.buffer_bytes_max >= data_max),
            ("capsule_bytes_max", self.capsule_bytes_max / 2 >= self.in_capsule_bytes as usize),
            (
                "block_shift",
                self.namespaces().all(|namespace| (9..=12).contains(&namespace.block_shift)),
            ),
        ];
        if let Some((name, _)) = fields.iter().find(|(_, good)| !good) {
            return Err(StartError::Field(name));
        }
        let nqns = || self.subsystems.iter().map(|subsystem| subsystem.nqn);
        let twice = |nqn: &Nqn| nqns().filter(|other| other == nqn).count() > 1;
        if let Some(nqn) = nqns().find(|nqn| nqn.is_discovery() || twice(nqn)) {
            return Err(StartError::Nqn(nqn.to_string()));
        }
        let same = |path: &str| self.namespaces().filter(|other| other.path == path).count() > 1;
        match self.namespaces().find(|namespace| same(&namespace.path)) {
            Some(namespace) => Err(StartError::Path(namespace.path.clone())),
            None => Ok(()),
        }
    }

    fn namespaces(&self) -> impl Iterator<Item = &NamespaceConfig> {
        self.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces)
    }

    /// What connections offer.
    fn serve(&self) -> Serve {
        Serve {
            header_digest: self.header_digest,
            data_digest: self.data_digest,
            cpda: self.cpda,
            maxh2cdata: self.maxh2cdata,
            in_capsule_max: self.in_capsule_bytes.max(ADMIN_IN_CAPSULE_BYTES),
        }
    }
}

/// The target.
pub struct Target {
    listeners: Vec<ListenerId>,
    crypto: Arc<dyn CryptoProvider>,
    server: Server<Channel>,
}

impl Target {
    /// A target that listens where `config` says, and opens its namespaces.
    ///
    /// # Errors
    /// What is wrong with `config`, or the first port that cannot be listened on.
    pub fn new(
        config: Config,
        crypto: Arc<dyn CryptoProvider>,
        host: &mut Host,
    ) -> Result<Self, StartError> {
        config.check()?;
        let mut listeners = Vec::with_capacity(config.listen.len());
        for &listen in &config.listen {
            listeners.push(match &config.tls {
                Some(tls) => host.listen_tls(listen, tls.clone())?,
                None => host.listen(listen)?,
            });
        }
        Ok(Self { listeners, crypto, server: Server::new(config, host) })
    }

    fn accept(&mut self, now: Instant, host: &mut Host, socket: SocketId) {
        let config = &self.server.shared.config;
        // PDUs are written whole, so Nagle's algorithm could only hold their ends back.
        host.set_option(now, socket, SocketOption::NoDelay(true));
        // A host without a keep alive of its own that is gone without a word would stay for ever.
        let probes = SocketOption::KeepAlive(Some(config.send_timeout));
        host.set_option(now, socket, probes);
        // Who acknowledges nothing would keep others from writing.
        host.set_option(now, socket, SocketOption::UserTimeout(config.send_timeout));
        let transport = Transport::serve(socket, Arc::clone(&self.crypto), config.serve());
        let link = Channel::serve(transport, config.psk.as_deref());
        self.server.handle_accepted(now, host, socket.index(), link);
    }

    /// Lets these hosts, or all, connect to a subsystem from now on; those that are connected stay.
    /// Discovery controllers are told. Says whether there is that subsystem.
    pub fn admit(
        &mut self,
        now: Instant,
        host: &mut Host,
        subsystem: &Nqn,
        hosts: Option<Vec<Nqn>>,
    ) -> bool {
        self.server.admit(now, host, subsystem, hosts)
    }

    /// Adds a namespace to a subsystem while hosts use it, under an ID that is free or under the
    /// next that was never used. Returns the ID; hosts are told when its file is open.
    ///
    /// # Errors
    /// Why it cannot be added.
    pub fn add_namespace(
        &mut self,
        now: Instant,
        host: &mut Host,
        (subsystem, nsid): (&Nqn, Option<u32>),
        config: &NamespaceConfig,
    ) -> Result<u32, ChangeError> {
        self.server.add_namespace(now, host, (subsystem, nsid), config)
    }

    /// Removes a namespace while hosts use it: they are told, and commands for it fail. Its file is
    /// closed when the disk is done with it; [`Self::poll_closed`] says when.
    ///
    /// # Errors
    /// If there is no such namespace.
    pub fn remove_namespace(
        &mut self,
        now: Instant,
        host: &mut Host,
        subsystem: &Nqn,
        nsid: u32,
    ) -> Result<(), ChangeError> {
        self.server.remove_namespace(now, host, subsystem, nsid)
    }

    /// Looks at the length of a namespace's file again; hosts are told if it has changed. No more
    /// than `most` bytes are used from now on, if that is given: then the file may be cut.
    ///
    /// # Errors
    /// Why that cannot be.
    pub fn resize_namespace(
        &mut self,
        now: Instant,
        host: &mut Host,
        (subsystem, nsid): (&Nqn, u32),
        most: Option<u64>,
    ) -> Result<(), ChangeError> {
        self.server.resize_namespace(now, host, (subsystem, nsid), most)
    }

    /// All namespaces.
    #[must_use]
    pub fn namespaces(&self) -> Vec<NamespaceInfo> {
        self.server.namespaces()
    }

    /// The queues that hosts have connected.
    #[must_use]
    pub fn queues(&self) -> Vec<QueueInfo> {
        self.server.queues()
    }

    /// The path of the next namespace that was removed and whose file is closed.
    pub fn poll_closed(&mut self) -> Option<String> {
        self.server.shared.closed.pop_front()
    }

    /// Returns whether no operation of the disk is under way for the target.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.server.shared.ops.len() == 0
    }
}

impl Application for Target {
    /// Notices about listeners, sockets, files and operations of others are passed over.
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        match notice {
            Notice::Accepted(listener, socket) => {
                if self.listeners.contains(&listener) {
                    self.accept(now, host, socket);
                }
            }
            Notice::Socket(socket) => {
                let link = self.server.link(socket.index());
                if link.is_some_and(|link| link.socket() == socket) {
                    self.server.handle_socket(now, host, socket.index());
                }
            }
            Notice::File(file) => self.server.handle_file(now, host, file),
            Notice::DiskDone(user) => self.server.handle_disk(now, host, user),
            // It splices nothing, and speaks nothing above UDP. What the device lost is the
            // transport's business.
            Notice::Spliced(_)
            | Notice::SpliceRefused(..)
            | Notice::SpliceClosed(_)
            | Notice::Udp(_)
            | Notice::UdpFault(..)
            | Notice::Quic(_)
            | Notice::DeviceReset => {}
        }
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        self.server.handle_timeout(now, host);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.server.poll_timeout()
    }

    /// Stops accepting connections and ends those that there are. Operations of the disk that are
    /// under way complete.
    fn drain(&mut self, now: Instant, host: &mut Host) {
        self.listeners.iter().for_each(|&listener| host.unlisten(listener));
        self.server.drain(now, host);
    }

    /// The log has a line for each connection that ends, even if no drain came before.
    fn end(&mut self, now: Instant, host: &mut Host) {
        self.drain(now, host);
    }

    /// The next line of the connection log: [`Config::log`].
    fn poll_log(&mut self) -> Option<String> {
        self.server.shared.log.poll()
    }

    /// Calls `f` with the name and value of each counter, and of gauges: connections, controllers,
    /// operations under way, bytes of memory in use for writes and of capsules that wait for it,
    /// and locks on ranges.
    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        let shared = &self.server.shared;
        shared.counters.visit(f);
        f("nvmet_connections_open", self.server.connections() as u64);
        f("nvmet_controllers_open", shared.controllers.len() as u64);
        f("nvmet_operations_open", shared.ops.len() as u64);
        f("nvmet_buffer_bytes", shared.buffers.used_bytes() as u64);
        f("nvmet_capsule_bytes", shared.capsules as u64);
        let held = shared.namespaces.iter().map(|namespace| namespace.locks.held());
        f("nvmet_locks_held", held.sum::<usize>() as u64);
        f("nvmet_locks_waiting", shared.waiting() as u64);
        f("nvmet_log_lines_lost", shared.log.lost);
    }
}
