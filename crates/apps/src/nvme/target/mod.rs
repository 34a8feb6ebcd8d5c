//! The NVMe/TCP target: namespaces on files (NVMe over Fabrics 1.1, NVMe/TCP Transport
//! specification 1.0).
//!
//! [`NvmeTarget`] is an application over [`host::Host`]'s sockets: the driver, real or simulated,
//! passes it the notices of [`Host::poll_notice`], calls it at [`NvmeTarget::poll_timeout`], and
//! runs the host afterwards. It never blocks and reads no clock. It copies no read data: the device
//! sends it directly from the file if it can. Write data arrives in the buffers that are written to
//! the disk.
//!
//! From the outside in: `server` (connections, deadlines), `queue` (one connection), `connect`,
//! `admin` with `features`, `log_pages` and `discovery`, `io` (operations); below them
//! `controller`, `subsystem`, `unacked_responses`, `range_locks`, `buffer_quota`, and
//! `shared` (state of all connections). `backend` is the interface to the host. `namespaces` holds
//! changes by an operator, `log` the connection log. Specifications are cited by the names that
//! [`wire::nvme`] defines. NVMe's "host" is called initiator in comments.
//!
//! With several device queues each has an [`NvmeTarget`], all with one [`NvmeTargetGroup`]; the
//! connections of an association may be on any of them. `group` has the common state and the mail
//! between queues, `association`, `shared_namespace` and `shared_ranges` its parts, `peers` the
//! handling of mail.
//!
//! Not supported, and refused: in-band authentication, namespace management by initiators,
//! reservations, firmware commands, sanitize, protection information and Copy.

mod admin;
mod association;
mod backend;
mod buffer_quota;
mod common;
mod connect;
mod controller;
mod counters;
mod discovery;
mod features;
mod group;
mod io;
mod log;
mod log_pages;
mod namespaces;
mod peers;
mod queue;
mod range_locks;
mod server;
mod shared;
mod shared_namespace;
mod shared_ranges;
mod subsystem;
mod unacked_responses;

use std::sync::Arc;

use abi::crypto::CryptoProvider;
use base::{Duration, Instant};
use host::nvme::{NvmeTargetParams, NvmeTransport};
use host::{
    Application, Host, ListenConfig, ListenError, ListenerId, Notice, SocketId, SocketOption,
    TlsServer,
};
use wire::Endpoint;
use wire::nvme::fabrics::ADMIN_IN_CAPSULE_BYTES;
use wire::nvme::nqn::Nqn;
use wire::nvme::pdu::{MAXH2CDATA_MIN, PDA_MAX};

pub use counters::NvmeTargetCounters;
pub use group::{NvmeTargetGroup, NvmeTargetMember};
pub use namespaces::{NamespaceChangeError, NamespaceInfo, NvmeQueueInfo};
pub use subsystem::{NamespaceConfig, SubsystemConfig};

use server::NvmeTargetServer;
use subsystem::NAMESPACES_MAX;

use super::channel::NvmeChannel;
use super::handshake::NvmeTlsHandshakeFactory;
use crate::pattern_rules::PatternRules;

/// Configuration of the target. The default has no subsystem and listens on port 4420.
#[derive(Clone, Debug)]
pub struct NvmeTargetConfig {
    /// Membership in a group, if the target is that of one of several queues with the same
    /// configuration. Limits hold for each queue, except `queues_max` and `controllers_max`.
    pub member: Option<NvmeTargetMember>,
    /// Addresses and ports to listen on.
    pub listen: Vec<ListenConfig>,
    /// Certificates for TLS on these ports; `None` for no TLS with certificates.
    pub tls: Option<TlsServer>,
    /// Pre-shared keys for TLS on these ports; excludes `tls`.
    pub psk: Option<Arc<dyn NvmeTlsHandshakeFactory>>,
    /// Addresses of the target for the discovery log.
    pub addresses: Vec<Endpoint>,
    /// The subsystems.
    pub subsystems: Vec<SubsystemConfig>,
    /// Grant header digests to initiators that request them.
    pub header_digest: bool,
    /// Grant data digests to initiators that request them.
    pub data_digest: bool,
    /// CPDA: alignment of data sent to the target, in dwords minus one; 0 to 31.
    pub cpda: u8,
    /// Largest in-capsule data in bytes; the admin queue always accepts its specified minimum.
    pub in_capsule_bytes: u32,
    /// Largest data of an H2CData PDU in bytes: a multiple of 4, at least 4096.
    pub maxh2cdata: u32,
    /// Largest data of a command, as MDTS: 4 KiB times two to the power of this.
    pub mdts: u8,
    /// Maximum number of I/O queues of a controller.
    pub queues_max: u16,
    /// Maximum number of entries of a queue.
    pub queue_entries_max: u16,
    /// Maximum number of controllers; further Connects are refused with Controller Busy.
    pub controllers_max: usize,
    /// Maximum number of connections; further ones are reset.
    pub connections_max: usize,
    /// Bytes of memory for write data, of which one controller may use half.
    pub buffer_bytes_max: usize,
    /// Largest amount of in-capsule data, in bytes, that may wait for that memory; one controller
    /// may use half. Commands above it fail with a status that allows a retry.
    pub capsule_bytes_max: usize,
    /// Time in which a new connection has to send Connect.
    pub connect_timeout: Duration,
    /// Time in which requested write data has to make progress. All data of one write may take four
    /// times as long.
    pub data_timeout: Duration,
    /// True to keep a connection log, read by [`NvmeTarget::poll_log`].
    pub log: bool,
    /// Unix time at [`Instant::ZERO`], for the log.
    pub unix_epoch: Duration,
    /// Rules about patterns in the data that initiators send with I/O commands. A Write or Compare
    /// with a denied pattern fails, before the disk is used.
    pub pattern_rules: Option<Arc<PatternRules>>,
    /// Time in which a peer has to acknowledge data, and for which other commands wait for blocks
    /// that the peer has read and not acknowledged.
    pub send_timeout: Duration,
}

impl Default for NvmeTargetConfig {
    fn default() -> Self {
        Self {
            member: None,
            listen: vec![ListenConfig { addr: None, port: 4420, backlog: 128 }],
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
            pattern_rules: None,
            log: false,
            unix_epoch: Duration::ZERO,
        }
    }
}

/// Reason for which a target cannot be started.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NvmeTargetStartError {
    /// Listening failed on a port.
    Listen(ListenError),
    /// A field of [`NvmeTargetConfig`], by its name, is out of range.
    Field(&'static str),
    /// Two subsystems have this name, or it is that of the discovery subsystem.
    Nqn(String),
    /// Two namespaces use this file.
    Path(String),
}

impl core::fmt::Display for NvmeTargetStartError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Listen(error) => error.fmt(f),
            Self::Field(name) => write!(f, "{name} is out of range"),
            Self::Nqn(nqn) => write!(f, "{nqn} is not a valid subsystem NQN, or is used twice"),
            Self::Path(path) => write!(f, "{path} is used by two namespaces"),
        }
    }
}

impl std::error::Error for NvmeTargetStartError {}

impl From<ListenError> for NvmeTargetStartError {
    fn from(error: ListenError) -> Self {
        Self::Listen(error)
    }
}

impl NvmeTargetConfig {
    /// Checks the ranges of all fields, and that names and paths are unique.
    fn check(&self) -> Result<(), NvmeTargetStartError> {
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
                "namespaces",
                self.subsystems.iter().all(|one| one.namespaces.len() <= NAMESPACES_MAX),
            ),
            (
                "block_shift",
                self.namespaces().all(|namespace| (9..=12).contains(&namespace.block_shift)),
            ),
        ];
        if let Some((name, _)) = fields.iter().find(|(_, good)| !good) {
            return Err(NvmeTargetStartError::Field(name));
        }
        let nqns = || self.subsystems.iter().map(|subsystem| subsystem.nqn);
        let twice = |nqn: &Nqn| nqns().filter(|other| other == nqn).count() > 1;
        if let Some(nqn) = nqns().find(|nqn| nqn.is_discovery() || twice(nqn)) {
            return Err(NvmeTargetStartError::Nqn(nqn.to_string()));
        }
        let same = |path: &str| self.namespaces().filter(|other| other.path == path).count() > 1;
        match self.namespaces().find(|namespace| same(&namespace.path)) {
            Some(namespace) => Err(NvmeTargetStartError::Path(namespace.path.clone())),
            None => Ok(()),
        }
    }

    fn namespaces(&self) -> impl Iterator<Item = &NamespaceConfig> {
        self.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces)
    }

    /// Returns the parameters that connections offer.
    fn serve(&self) -> NvmeTargetParams {
        NvmeTargetParams {
            header_digest: self.header_digest,
            data_digest: self.data_digest,
            cpda: self.cpda,
            maxh2cdata: self.maxh2cdata,
            in_capsule_max: self.in_capsule_bytes.max(ADMIN_IN_CAPSULE_BYTES),
        }
    }
}

/// The NVMe/TCP target.
pub struct NvmeTarget {
    listeners: Vec<ListenerId>,
    crypto: Arc<dyn CryptoProvider>,
    server: NvmeTargetServer<NvmeChannel>,
}

impl NvmeTarget {
    /// Creates a target, listens on the ports of `config`, and opens its namespaces.
    ///
    /// # Errors
    /// An invalid field of `config`, or the first port on which listening failed.
    pub fn new(
        config: NvmeTargetConfig,
        crypto: Arc<dyn CryptoProvider>,
        host: &mut Host,
    ) -> Result<Self, NvmeTargetStartError> {
        config.check()?;
        let mut listeners = Vec::with_capacity(config.listen.len());
        for &listen in &config.listen {
            listeners.push(match &config.tls {
                Some(tls) => host.listen_tls(listen, tls.clone())?,
                None => host.listen(listen)?,
            });
        }
        Ok(Self { listeners, crypto, server: NvmeTargetServer::new(config, host) })
    }

    fn accept(&mut self, now: Instant, host: &mut Host, socket: SocketId) {
        let config = &self.server.shared.config;
        // PDUs are written whole, so Nagle's algorithm could only delay their last segments.
        host.set_option(now, socket, SocketOption::NoDelay(true));
        // Finds dead initiators that do not use NVMe keep alive.
        let probes = SocketOption::KeepAlive(Some(config.send_timeout));
        host.set_option(now, socket, probes);
        // A peer that acknowledges nothing would block other initiators' writes to the same blocks.
        host.set_option(now, socket, SocketOption::UserTimeout(config.send_timeout));
        let transport = NvmeTransport::serve(socket, Arc::clone(&self.crypto), config.serve());
        let link = NvmeChannel::serve(transport, config.psk.as_deref());
        self.server.handle_accepted(now, host, socket.index(), link);
    }

    /// Handles the mail of the other queues' targets. Returns whether there was any. To be called
    /// when the waker of [`NvmeTargetGroup::set_waker`] names this queue; every other call does it
    /// too.
    pub fn handle_mail(&mut self, now: Instant, host: &mut Host) -> bool {
        self.server.handle_mail(now, host)
    }

    /// Returns whether [`Self::handle_mail`] has work to do.
    #[must_use]
    pub fn has_mail(&self) -> bool {
        self.server.shared.member.has_mail()
    }

    /// Replaces the list of hosts that may connect to a subsystem (`None`: all). Existing
    /// connections stay, discovery controllers are notified. Returns false if the subsystem does
    /// not exist. With several queues it is to be called for each.
    pub fn set_allowed_hosts(
        &mut self,
        now: Instant,
        host: &mut Host,
        subsystem: &Nqn,
        hosts: Option<Vec<Nqn>>,
    ) -> bool {
        self.server.set_allowed_hosts(now, host, subsystem, hosts)
    }

    /// Replaces the rules about patterns for I/O queues that are connected from now on.
    pub fn set_pattern_rules(&mut self, rules: Arc<PatternRules>) {
        self.server.shared.inspection.replace_rules(rules);
    }

    /// Adds a namespace to a subsystem in use, under the given ID if it is free, or else under the
    /// next ID that was never used. Returns the ID. Initiators are notified when its file is open.
    ///
    /// With several queues this and the other changes of namespaces apply to all queues, and are to
    /// be requested of one queue's target, always the same.
    ///
    /// # Errors
    /// The reason for which the namespace cannot be added.
    pub fn add_namespace(
        &mut self,
        now: Instant,
        host: &mut Host,
        (subsystem, nsid): (&Nqn, Option<u32>),
        config: &NamespaceConfig,
    ) -> Result<u32, NamespaceChangeError> {
        self.server.add_namespace(now, host, (subsystem, nsid), config)
    }

    /// Removes a namespace from a subsystem in use. Initiators are notified, and commands for it
    /// fail. [`Self::poll_closed`] reports when its file is closed, which is after the last disk
    /// operation on it.
    ///
    /// # Errors
    /// The namespace does not exist.
    pub fn remove_namespace(
        &mut self,
        now: Instant,
        host: &mut Host,
        subsystem: &Nqn,
        nsid: u32,
    ) -> Result<(), NamespaceChangeError> {
        self.server.remove_namespace(now, host, subsystem, nsid)
    }

    /// Reads the length of a namespace's file again; initiators are notified if it changed. If
    /// `most` is given, at most that many bytes are used from now on, so that the file may then be
    /// truncated.
    ///
    /// # Errors
    /// The reason for which the namespace cannot be resized.
    pub fn resize_namespace(
        &mut self,
        now: Instant,
        host: &mut Host,
        (subsystem, nsid): (&Nqn, u32),
        most: Option<u64>,
    ) -> Result<(), NamespaceChangeError> {
        self.server.resize_namespace(now, host, (subsystem, nsid), most)
    }

    /// Returns the state of all namespaces.
    #[must_use]
    pub fn namespaces(&self) -> Vec<NamespaceInfo> {
        self.server.namespaces()
    }

    /// Returns the connected queues.
    #[must_use]
    pub fn queues(&self) -> Vec<NvmeQueueInfo> {
        self.server.queues()
    }

    /// Returns the path of the next removed namespace whose file has been closed.
    pub fn poll_closed(&mut self) -> Option<String> {
        self.server.shared.closed_paths.pop_front()
    }

    /// Returns whether the target has no operation in progress.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.server.shared.ops.len() == 0
    }
}

impl Application for NvmeTarget {
    /// Ignores notices about listeners, sockets, files and operations of other users.
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        self.server.handle_mail(now, host);
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
            // The target splices nothing and uses no UDP. The transport handles device resets.
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
        self.server.handle_mail(now, host);
        self.server.handle_timeout(now, host);
    }

    fn advance(&mut self, now: Instant, host: &mut Host) -> bool {
        self.handle_mail(now, host)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.server.poll_timeout()
    }

    /// Stops accepting connections and ends the existing ones. Disk operations in progress
    /// complete.
    fn drain(&mut self, now: Instant, host: &mut Host) {
        self.server.handle_mail(now, host);
        self.listeners.iter().for_each(|&listener| host.unlisten(listener));
        self.server.drain(now, host);
    }

    /// Ends all connections, so that each has a line in the log even without a previous drain.
    fn end(&mut self, now: Instant, host: &mut Host) {
        self.drain(now, host);
    }

    /// Returns the next line of the connection log ([`NvmeTargetConfig::log`]).
    fn poll_log(&mut self) -> Option<String> {
        self.server.shared.log.poll()
    }

    /// Calls `f` with the name and value of each counter and gauge: connections, controllers,
    /// operations in progress, bytes of memory in use for writes, bytes of in-capsule data that
    /// waits for memory, and locks.
    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        let shared = &self.server.shared;
        shared.counters.visit(f);
        shared.inspection.visit_rules(f);
        f("nvmet_connections_open", self.server.connections() as u64);
        f("nvmet_controllers_open", shared.controllers.len() as u64);
        f("nvmet_operations_open", shared.ops.len() as u64);
        f("nvmet_buffer_bytes", shared.buffers.used_bytes() as u64);
        f("nvmet_capsule_bytes", shared.waiting_capsule_bytes as u64);
        let held = shared.namespaces.iter().map(|namespace| namespace.locks.held());
        f("nvmet_locks_held", held.sum::<usize>() as u64);
        f("nvmet_locks_waiting", shared.waiting() as u64);
        f("nvmet_log_lines_lost", shared.log.lost);
    }
}
