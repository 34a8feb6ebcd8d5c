//! The endpoint: assigns datagrams to connections and runs the connections.
//!
//! Order of calls: `handle_*` for input, then the application for every
//! [`QuicEndpoint::poll_event`], then [`QuicEndpoint::flush`], which passes written data to
//! quinn-proto and datagrams to the host. Connections send nothing before `flush`.
//!
//! | module | what it does |
//! |---|---|
//! | `streams` | stream operations of the application |
//! | `receive` | received datagrams |
//! | `device` | events from the device and the disk |

mod device;
mod receive;
mod streams;

use core::net::SocketAddr;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use abi::quic::QuicId;
use abi::{FlowId, Refusal};
use base::{DeadlineHeap, Instant};
use bytes::{Bytes, BytesMut};
use host::{Application, Host, ListenError, Notice, UdpId};
use quinn_proto::{
    ConnectionError, ConnectionEvent, EndpointConfig, MtuDiscoveryConfig, ServerConfig, Side,
    StreamEvent, TimeSource, TransportConfig, VarInt,
};
use rustls::crypto::tls13::Hkdf;

pub use streams::StreamReadError;

use crate::config::QuicEndpointConfig;
use crate::congestion::QuinnControllerFactory;
use crate::connection::{PendingReads, QuicConnection, QuicEnv, TransmitScratch};
use crate::counters::QuicEndpointCounters;
use crate::file_ranges::ReleasedRanges;
use crate::info::ConnectionInfo;
use crate::qlog;
use crate::secrets::{CidGenerator, EndpointSecrets, FreshCids, TokenKey};
use crate::session::{HandshakeData, QuicTlsClient, QuicTlsServer, VERSION_1, initial_suite};

/// Lengths of the headers of IPv4 and UDP, and of IPv6 and UDP.
const IPV4_UDP_BYTES: u16 = 28;
const IPV6_UDP_BYTES: u16 = 48;
/// UDP payload bytes that every path must carry (RFC 9000 section 14).
const PAYLOAD_BYTES_MIN: u16 = 1200;
/// Unidirectional streams that a peer may have open; HTTP/3 uses three.
const UNI_STREAMS_MAX: u32 = 16;

/// Identifies a connection of an endpoint. Handles are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QuicHandle {
    pub(crate) index: u32,
    pub(crate) serial: u64,
}

/// An event for the application.
#[derive(Debug)]
pub enum QuicEvent {
    /// The handshake is complete; streams may be opened.
    Connected(QuicHandle),
    /// A stream event of quinn-proto: a stream can be accepted, read or written, or has ended.
    Stream(QuicHandle, StreamEvent),
    /// The connection has ended; its handle is invalid from now on.
    Lost(QuicHandle, ConnectionError),
}

/// Send progress of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendProgress {
    /// STREAM frames sent so far.
    pub stream_frames: u64,
    /// Sending streams with unacknowledged data.
    pub streams: usize,
}

/// Reason why an endpoint cannot be created.
#[derive(Debug)]
#[non_exhaustive]
pub enum QuicConfigError {
    /// The UDP port cannot be bound.
    Bind(ListenError),
    /// The TLS provider lacks TLS_AES_128_GCM_SHA256 of TLS 1.3, the suite of Initial packets.
    Tls,
}

impl core::fmt::Display for QuicConfigError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Bind(error) => error.fmt(f),
            Self::Tls => f.write_str("QUIC needs TLS 1.3 with TLS_AES_128_GCM_SHA256"),
        }
    }
}

impl std::error::Error for QuicConfigError {}

/// Reason why a connection cannot be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum QuicConnectError {
    /// The TLS provider lacks TLS_AES_128_GCM_SHA256 of TLS 1.3, the suite of Initial packets.
    Tls,
    /// quinn-proto rejected the server name or the address.
    Refused,
}

/// A QUIC endpoint on one UDP port.
pub struct QuicEndpoint {
    socket: UdpId,
    config: QuicEndpointConfig,
    inner: quinn_proto::Endpoint,
    transport: Arc<TransportConfig>,
    /// Configuration of accepted connections; `None` if the endpoint accepts none.
    server: Option<Arc<ServerConfig>>,
    connections: Vec<Option<Box<QuicConnection>>>,
    open_count: usize,
    handshaking_count: usize,
    serial: u64,
    alarms: DeadlineHeap,
    dirty: VecDeque<u32>,
    events: VecDeque<QuicEvent>,
    counters: QuicEndpointCounters,
    /// Connections by the device's offload contexts.
    handles_by_context: BTreeMap<QuicId, QuicHandle>,
    handles_by_flow: BTreeMap<FlowId, QuicHandle>,
    fresh_cids: FreshCids,
    released_ranges: ReleasedRanges,
    reads: PendingReads,
    scratch: TransmitScratch,
    /// Copies of received batches are split off from here.
    batch: BytesMut,
    token_clock: Arc<TokenClock>,
    secrets: EndpointSecrets,
}

/// Unix time in ns as of the last notice, for the lifetime of tokens.
struct TokenClock(AtomicU64);

impl TimeSource for TokenClock {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

fn hkdf_of(provider: &rustls::crypto::CryptoProvider) -> Option<&'static dyn Hkdf> {
    let mut suites = provider.cipher_suites.iter().filter_map(rustls::SupportedCipherSuite::tls13);
    suites.next().map(|suite| suite.hkdf_provider)
}

/// Returns the UDP payload bytes of the largest packet that a link carries.
fn payload_bytes(mtu: u16, header_bytes: u16) -> u16 {
    mtu.saturating_sub(header_bytes).max(PAYLOAD_BYTES_MIN)
}

/// Returns the transport configuration on a link of this MTU. Path MTU discovery (RFC 9000 section
/// 14.3) begins at [`PAYLOAD_BYTES_MIN`] and probes up to what the link carries over IPv6.
fn transport(config: &QuicEndpointConfig, mtu: u16) -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(payload_bytes(mtu, IPV6_UDP_BYTES));
    transport.mtu_discovery_config(Some(discovery));
    let factory = QuinnControllerFactory { epoch: config.epoch };
    transport.congestion_controller_factory(Arc::new(factory));
    let idle = u32::try_from(config.idle_timeout.as_millis()).unwrap_or(u32::MAX);
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(config.streams_max))
        .max_concurrent_uni_streams(VarInt::from_u32(UNI_STREAMS_MAX))
        .stream_receive_window(VarInt::from_u32(config.receive_windows[0]))
        .receive_window(VarInt::from_u32(config.receive_windows[1]))
        .max_idle_timeout(Some(VarInt::from_u32(idle).into()))
        .datagram_receive_buffer_size(None);
    Arc::new(transport)
}

impl QuicEndpoint {
    /// Creates an endpoint on `config.port` of all local addresses. `provider` is the one with
    /// which the TLS configuration was made.
    ///
    /// # Errors
    /// [`QuicConfigError`]: the port cannot be bound, or TLS cannot be used for QUIC.
    pub fn new(
        config: QuicEndpointConfig,
        provider: &rustls::crypto::CryptoProvider,
        host: &mut Host,
    ) -> Result<Self, QuicConfigError> {
        let initial = initial_suite(provider).ok_or(QuicConfigError::Tls)?;
        let hkdf = hkdf_of(provider).ok_or(QuicConfigError::Tls)?;
        let secrets = EndpointSecrets::new(hkdf, &config.seed);
        let unix_ns = Arc::new(TokenClock(AtomicU64::new(0)));
        let transport = transport(&config, host.mtu());
        let server = config.tls.clone().map(|tls| {
            let crypto = Arc::clone(&config.crypto);
            let tokens =
                TokenKey { secrets: secrets.derive(b"tokens"), crypto: Arc::clone(&crypto) };
            let tls = QuicTlsServer { config: tls, crypto, initial };
            let mut server = ServerConfig::new(Arc::new(tls), Arc::new(tokens));
            server
                .transport_config(Arc::clone(&transport))
                .migration(config.migration)
                .time_source(Arc::clone(&unix_ns) as Arc<dyn TimeSource>);
            Arc::new(server)
        });
        let fresh = FreshCids::default();
        // Hosts that share a port have the same seed, so that they accept each other's tokens;
        // other values derived from it must differ, so they include the queue.
        let queue = config.steering.map_or(0, |(_, queue)| queue);
        let own = secrets.derive(&[b"queue ", &queue.to_be_bytes()[..]].concat());
        let (cids, made) = (own.derive(b"cids"), Arc::clone(&fresh));
        let steering = config.steering;
        let mut endpoint = EndpointConfig::new(Arc::new(secrets.derive(b"resets")));
        // Every u16 MTU leads to a value that quinn-proto accepts: 1,200 to 65,527.
        let _ = endpoint.max_udp_payload_size(payload_bytes(host.mtu(), IPV4_UDP_BYTES));
        endpoint
            .supported_versions(vec![VERSION_1])
            .rng_seed(Some(own.derive(b"rng").bytes()))
            .cid_generator(move || {
                let (secrets, fresh) = (cids.clone(), Arc::clone(&made));
                Box::new(CidGenerator { secrets, count: 0, steering, fresh })
            });
        let socket = host.udp_bind(None, config.port).map_err(QuicConfigError::Bind)?;
        // Datagrams are sent with DF set, so the path MTU may be probed.
        let inner = quinn_proto::Endpoint::new(Arc::new(endpoint), server.clone(), true, None);
        Ok(Self {
            socket,
            config,
            inner,
            transport,
            server,
            connections: Vec::new(),
            open_count: 0,
            handshaking_count: 0,
            serial: 0,
            alarms: DeadlineHeap::default(),
            dirty: VecDeque::new(),
            events: VecDeque::new(),
            counters: QuicEndpointCounters::default(),
            handles_by_context: BTreeMap::new(),
            handles_by_flow: BTreeMap::new(),
            fresh_cids: fresh,
            released_ranges: ReleasedRanges::default(),
            reads: PendingReads::new(host.new_disk_user()),
            scratch: TransmitScratch::default(),
            batch: BytesMut::new(),
            token_clock: unix_ns,
            secrets,
        })
    }

    /// Starts to open a connection.
    ///
    /// # Errors
    /// [`QuicConnectError`].
    pub fn connect(
        &mut self,
        now: Instant,
        host: &mut Host,
        remote: SocketAddr,
        name: &str,
        tls: &Arc<rustls::ClientConfig>,
    ) -> Result<QuicHandle, QuicConnectError> {
        let initial = initial_suite(tls.crypto_provider()).ok_or(QuicConnectError::Tls)?;
        let crypto = Arc::clone(&self.config.crypto);
        let tls = QuicTlsClient { config: Arc::clone(tls), crypto, initial };
        let mut client = quinn_proto::ClientConfig::new(Arc::new(tls));
        let first = self.secrets.derive(&self.serial.to_be_bytes()).bytes();
        let id = quinn_proto::ConnectionId::new(&first[..16]);
        let transport = self.transport_with_qlog(host.mtu(), &id, Side::Client);
        client
            .transport_config(transport.unwrap_or_else(|| Arc::clone(&self.transport)))
            .version(VERSION_1)
            .initial_dst_cid_provider(Arc::new(move || id));
        let time = self.time(now);
        let made = self.inner.connect(time, client, remote, name);
        let (quinn, inner) = made.map_err(|_| QuicConnectError::Refused)?;
        self.insert_connection(host, quinn, inner).ok_or(QuicConnectError::Refused)
    }

    /// Returns a transport configuration that writes a qlog; `None` if no qlog is wanted.
    fn transport_with_qlog(&self, mtu: u16, id: &[u8], side: Side) -> Option<Arc<TransportConfig>> {
        let open = self.config.qlog.as_ref()?;
        let stream = qlog::begin(open, id, side, self.config.epoch)?;
        let mut transport = Arc::into_inner(transport(&self.config, mtu))?;
        transport.qlog_stream(Some(stream));
        Some(Arc::new(transport))
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<QuicEvent> {
        self.events.pop_front()
    }

    /// Lets every connection with work write, send and update its timer.
    pub fn flush(&mut self, now: Instant, host: &mut Host) {
        while let Some(index) = self.dirty.pop_front() {
            let index = index as usize;
            if let Some(connection) = self.connections.get_mut(index).and_then(Option::as_mut) {
                connection.dirty = false;
            }
            self.run_on(now, host, index, |connection, cx| {
                connection.write_streams(cx);
                connection.transmit(cx);
            });
            self.settle(now, host, index);
        }
        self.release_file_ranges(host);
    }

    /// Closes a connection with an error code of the application. No event follows.
    pub fn close(
        &mut self,
        now: Instant,
        host: &mut Host,
        handle: QuicHandle,
        code: u32,
        why: &str,
    ) {
        let time = self.time(now);
        let Some(connection) = self.get_mut(handle) else { return };
        if connection.ended {
            return;
        }
        let reason = Bytes::copy_from_slice(why.as_bytes());
        connection.inner.close(time, VarInt::from_u32(code), reason);
        let names: Vec<QuicId> = connection.offload.contexts().collect();
        connection.mark_ended(host, format!("closed by us with code {code:#x}"));
        names.iter().for_each(|name| {
            self.handles_by_context.remove(name);
        });
        self.counters.quic_closed_by_us += 1;
        self.schedule_flush(handle.index);
    }

    /// Starts a key update (RFC 9001 section 6); for tests.
    pub fn update_keys(&mut self, handle: QuicHandle) {
        if let Some(connection) = self.get_mut(handle) {
            connection.inner.force_key_update();
            self.schedule_flush(handle.index);
        }
    }

    /// Reports a change of our address (RFC 9000 section 9.2). The peer hears from us at once,
    /// under another of its connection IDs, so that observers cannot link the two paths.
    pub fn address_changed(&mut self, handle: QuicHandle) {
        if let Some(connection) = self.get_mut(handle) {
            connection.inner.local_address_changed();
            self.schedule_flush(handle.index);
        }
    }

    /// Returns a snapshot of a connection's state.
    #[must_use]
    pub fn info(&self, handle: QuicHandle) -> Option<ConnectionInfo> {
        self.get(handle).map(|connection| connection.info(self.config.port))
    }

    /// Returns snapshots of all connections, including ended ones that quinn-proto still keeps.
    pub fn infos(&self) -> impl Iterator<Item = ConnectionInfo> + '_ {
        self.connections.iter().flatten().map(|connection| connection.info(self.config.port))
    }

    /// Returns the peer's address and port.
    #[must_use]
    pub fn remote(&self, handle: QuicHandle) -> Option<SocketAddr> {
        self.get(handle).map(|connection| connection.inner.remote_address())
    }

    /// Returns the reason for which the device protects none of a connection's packets; `Ok` if it
    /// does, or has not been asked. `None` if there is no such connection.
    #[must_use]
    pub fn offload(&self, handle: QuicHandle) -> Option<Result<(), Refusal>> {
        self.get(handle).map(|connection| connection.offload.state())
    }

    /// Returns the protocol negotiated by ALPN.
    #[must_use]
    pub fn protocol(&self, handle: QuicHandle) -> Option<Vec<u8>> {
        handshake_data(&self.get(handle)?.inner)?.protocol
    }

    /// Returns the send progress of a connection; `None` if there is no such connection.
    #[must_use]
    pub fn progress(&mut self, handle: QuicHandle) -> Option<SendProgress> {
        let connection = self.get_mut(handle)?;
        let stream_frames = connection.inner.stats().frame_tx.stream;
        Some(SendProgress { stream_frames, streams: connection.inner.streams().send_streams() })
    }

    /// Returns the number of bidirectional streams that a peer may have open at a time.
    #[must_use]
    pub const fn streams_max(&self) -> u32 {
        self.config.streams_max
    }

    /// Refuses all further incoming connections.
    pub const fn stop_accepting(&mut self) {
        self.config.connections_max = 0;
    }

    /// Returns the connections that have not ended.
    pub fn connections(&self) -> impl Iterator<Item = QuicHandle> + '_ {
        self.connections.iter().flatten().filter(|c| !c.ended).map(|c| c.handle)
    }

    /// Returns the endpoint's counters.
    #[must_use]
    pub const fn counters(&self) -> &QuicEndpointCounters {
        &self.counters
    }

    fn get(&self, handle: QuicHandle) -> Option<&QuicConnection> {
        let connection = self.connections.get(handle.index as usize)?.as_deref()?;
        (connection.handle == handle).then_some(connection)
    }

    fn get_mut(&mut self, handle: QuicHandle) -> Option<&mut QuicConnection> {
        let connection = self.connections.get_mut(handle.index as usize)?.as_deref_mut()?;
        (connection.handle == handle).then_some(connection)
    }

    /// Converts `now` to quinn-proto's time.
    fn time(&self, now: Instant) -> std::time::Instant {
        self.config.epoch + Duration::from_nanos(now.as_nanos())
    }

    fn schedule_flush(&mut self, index: u32) {
        let connection = self.connections.get_mut(index as usize).and_then(Option::as_mut);
        if let Some(connection) = connection.filter(|connection| !connection.dirty) {
            connection.dirty = true;
            self.dirty.push_back(index);
        }
    }

    /// Runs `run_on` on a connection, settles it, and schedules it for the next flush.
    fn run_and_settle(
        &mut self,
        now: Instant,
        host: &mut Host,
        index: usize,
        work: impl FnOnce(&mut QuicConnection, &mut QuicEnv<'_>),
    ) {
        self.run_on(now, host, index, work);
        if let Ok(index) = u32::try_from(index) {
            self.schedule_flush(index);
        }
        self.settle(now, host, index);
    }

    fn run_on(
        &mut self,
        now: Instant,
        host: &mut Host,
        index: usize,
        work: impl FnOnce(&mut QuicConnection, &mut QuicEnv<'_>),
    ) {
        let Some(connection) = self.connections.get_mut(index).and_then(Option::as_mut) else {
            return;
        };
        let before: (Option<QuicId>, Option<QuicId>) =
            (connection.offload.tx(), connection.offload.rx());
        let mut cx = QuicEnv {
            now,
            host,
            socket: self.socket,
            config: &self.config,
            counters: &mut self.counters,
            released: &self.released_ranges,
            reads: &mut self.reads,
            scratch: &mut self.scratch,
        };
        work(connection, &mut cx);
        if before != (connection.offload.tx(), connection.offload.rx()) {
            let handle = connection.handle;
            self.handles_by_context
                .extend(connection.offload.contexts().map(|name| (name, handle)));
        }
    }

    /// Processes the results of work on a connection: events, requests to the endpoint, timer, end.
    fn settle(&mut self, now: Instant, host: &mut Host, index: usize) {
        let mut drained = false;
        loop {
            let Some(connection) = self.connections.get_mut(index).and_then(Option::as_mut) else {
                return;
            };
            if let Some(event) = connection.inner.poll_endpoint_events() {
                drained |= event.is_drained();
                let quinn = connection.quinn_handle;
                let answer = self.inner.handle_event(quinn, event);
                self.route_fresh_cids(host, index, answer);
                continue;
            }
            let Some(event) = connection.inner.poll() else { break };
            self.handle_event(host, index, event);
        }
        if drained {
            self.remove(index);
            return;
        }
        let Some(connection) = self.connections.get_mut(index).and_then(Option::as_mut) else {
            return;
        };
        let Ok(slot) = u32::try_from(index) else { return };
        match connection.inner.poll_timeout() {
            Some(at) => {
                let since = at.saturating_duration_since(self.config.epoch);
                // The timer never fires early: both clocks have a resolution of 1 ns.
                let ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
                self.alarms.set(slot, Instant::from_nanos(ns).max(now));
            }
            None => self.alarms.clear(slot),
        }
    }

    /// Assigns newly generated connection IDs to the connection that asked for them.
    fn route_fresh_cids(&mut self, host: &mut Host, index: usize, answer: Option<ConnectionEvent>) {
        let fresh = self.take_fresh_cids();
        let Some(connection) = self.connections.get_mut(index).and_then(Option::as_mut) else {
            return;
        };
        let (counters, config) = (&mut self.counters, &self.config);
        for id in fresh {
            connection.cids.insert(connection.cids_issued, id);
            connection.cids_issued += 1;
            let mut device = crate::offload::OffloadEnv { host, counters, config };
            connection.offload.route(&mut device, id, true);
        }
        if let Some(event) = answer {
            connection.inner.handle_event(event);
        }
    }

    fn handle_event(&mut self, host: &mut Host, index: usize, event: quinn_proto::Event) {
        let Some(connection) = self.connections.get_mut(index).and_then(Option::as_mut) else {
            return;
        };
        let handle = connection.handle;
        match event {
            quinn_proto::Event::Connected => {
                connection.connected = true;
                self.handshaking_count -= 1;
                self.counters.quic_connections += 1;
                self.events.push_back(QuicEvent::Connected(handle));
            }
            quinn_proto::Event::ConnectionLost { reason } => {
                let known = connection.ended;
                connection.offload.contexts().for_each(|name| {
                    self.handles_by_context.remove(&name);
                });
                connection.mark_ended(host, reason.to_string());
                if !known {
                    self.count_close_reason(&reason);
                    self.events.push_back(QuicEvent::Lost(handle, reason));
                }
            }
            quinn_proto::Event::Stream(event) => {
                match event {
                    StreamEvent::Writable { id } => connection.unblock(id),
                    StreamEvent::Stopped { id, error_code } => {
                        // RFC 9000 section 3.5: the response is a reset.
                        let code = u32::try_from(error_code.into_inner()).unwrap_or(0);
                        connection.reset(host, id, code);
                    }
                    _ => {}
                }
                self.events.push_back(QuicEvent::Stream(handle, event));
            }
            quinn_proto::Event::HandshakeDataReady
            | quinn_proto::Event::DatagramReceived
            | quinn_proto::Event::DatagramsUnblocked => {}
        }
        self.schedule_flush(handle.index);
    }

    const fn count_close_reason(&mut self, reason: &ConnectionError) {
        let counters = &mut self.counters;
        *match reason {
            ConnectionError::ConnectionClosed(_) | ConnectionError::ApplicationClosed(_) => {
                &mut counters.quic_closed_by_peer
            }
            ConnectionError::TimedOut => &mut counters.quic_timed_out,
            ConnectionError::LocallyClosed => &mut counters.quic_closed_by_us,
            _ => &mut counters.quic_failed,
        } += 1;
    }

    /// Removes a connection that quinn-proto has drained.
    fn remove(&mut self, index: usize) {
        let Some(connection) = self.connections.get_mut(index).and_then(Option::take) else {
            return;
        };
        self.open_count -= 1;
        self.handshaking_count -= usize::from(!connection.connected);
        self.handles_by_flow.remove(&connection.flow);
        if let Ok(slot) = u32::try_from(index) {
            self.alarms.clear(slot);
        }
    }
}

/// An application that uses QUIC calls these methods and then [`QuicEndpoint::flush`]. An endpoint
/// can also be the application itself if its events are handled elsewhere.
impl Application for QuicEndpoint {
    fn handle_notice(&mut self, now: Instant, host: &mut Host, notice: Notice) {
        let unix = self.config.unix_epoch.as_nanos().saturating_add(now.as_nanos());
        self.token_clock.0.store(unix, Ordering::Relaxed);
        match notice {
            Notice::Udp(socket) if socket == self.socket => {
                while let Some(received) = host.udp_recv(socket) {
                    self.handle_received(now, host, received);
                }
            }
            Notice::DiskDone(user) if user == self.reads.user() => self.handle_reads(now, host),
            Notice::Quic(status) => self.handle_quic_status(now, host, status),
            Notice::UdpFault(flow, scope, fault) => {
                self.handle_fault(now, host, flow, (scope, fault));
            }
            Notice::File(file) if host.extent_fault(file).is_some() => {
                for index in 0..self.connections.len() {
                    self.run_and_settle(now, host, index, |c, cx| c.fail_streams(cx, file));
                }
            }
            Notice::DeviceReset => self.handle_device_reset(now, host),
            _ => {}
        }
    }

    fn handle_timeout(&mut self, now: Instant, host: &mut Host) {
        let time = self.time(now);
        while let Some(index) = self.alarms.pop(now) {
            self.run_and_settle(now, host, index as usize, |connection, cx| {
                connection.inner.handle_timeout(time);
                // After a failed path validation the connection returns to the previous path.
                connection.update_peer_address(cx.counters);
            });
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.alarms.next()
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(f);
        f("quic_connections_open", self.open_count as u64);
    }

    fn advance(&mut self, now: Instant, host: &mut Host) -> bool {
        self.flush(now, host);
        false
    }
}

fn handshake_data(connection: &quinn_proto::Connection) -> Option<HandshakeData> {
    let data = connection.crypto_session().handshake_data()?;
    data.downcast().ok().map(|data| *data)
}
