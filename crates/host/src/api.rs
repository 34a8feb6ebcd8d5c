//! Identifiers, options, notices and errors of the socket interface.

use alloc::boxed::Box;
use core::net::IpAddr;

use abi::crypto::Suite;
use abi::disk::{DiskFile, DiskRequestId};
use abi::quic::QuicStatus;
use abi::{FileFault, FlowId, Refusal};
use base::Duration;
use wire::Endpoint;
use wire::tls::TlsRecordVersion as TlsVersion;

pub use abi::splice::{SpliceEnd, SpliceId};
pub use abi::{FileId, FileKind, FileStat};

/// Identifier of a connection. A stale identifier is recognized: a slot reuses one only after 2^32
/// connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl SocketId {
    /// Returns the slot in the table of connections: small, dense, reused. Callers can index tables
    /// of their own with it.
    #[must_use]
    pub const fn index(self) -> usize {
        self.index as usize
    }
}

/// Identifier of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub(crate) u32);

/// Identifier of a UDP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UdpId(pub(crate) u32);

/// A user of the host's disk other than the send streams: see [`crate::Host::new_disk_user`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DiskUser(pub u8);

/// Identifier of a disk operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskToken {
    /// User that started the operation.
    pub user: DiskUser,
    /// Number that the user chose for the operation.
    pub number: u64,
}

/// Request for content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentRequest {
    /// Opens a file. Answered by [`crate::Host::complete_content_open`].
    Open {
        /// Number of the request.
        id: DiskRequestId,
        /// Path below the root, separated by `/`, without a leading slash; untrusted, may have any
        /// bytes.
        path: Box<[u8]>,
    },
    /// Reads a file. Answered by [`crate::Host::complete_content_read`].
    Read {
        /// Number of the request.
        id: DiskRequestId,
        /// The file.
        file: DiskFile,
        /// Offset of the first byte.
        offset: u64,
        /// Largest number of bytes of the answer.
        len: u32,
        /// Smallest number of bytes of the answer: at least one, at most `len`.
        len_min: u32,
        /// Bytes of the file from `offset` on that are expected to be read: at least `len`.
        expected: u64,
    },
    /// Closes a file. Not answered.
    Close {
        /// The file.
        file: DiskFile,
    },
}

/// Files whose content a transmit carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultScope {
    /// One file.
    File(FileId),
    /// More than one.
    Several,
}

/// Notification for the application. Edge-triggered: a change of a socket is reported once, and
/// again only after the application has taken the notice and something new has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A connection was established on a listener.
    Accepted(ListenerId, SocketId),
    /// A connection's readiness changed.
    Socket(SocketId),
    /// `offload_open` has completed, successfully or not, or an open file has become unreadable;
    /// see `offload_fstat`.
    File(FileId),
    /// Two sockets were spliced. The device relays between the connections, and the sockets no
    /// longer exist.
    Spliced(SpliceId),
    /// Two sockets were not spliced and work as before `nsplice`.
    SpliceRefused(SpliceId, Refusal),
    /// Two spliced connections have ended; [`crate::Host::take_splice`] returns the
    /// reason.
    SpliceClosed(SpliceId),
    /// Datagrams are queued on a UDP socket.
    Udp(UdpId),
    /// An operation of this user has completed: a read ([`crate::Host::extent_read`]), a write,
    /// flush or zeroing of a namespace, or a decompression ([`crate::Host::decompress`]).
    DiskDone(DiskUser),
    /// A transmit of a UDP flow was dropped because the content of these files could not be read.
    UdpFault(FlowId, FaultScope, FileFault),
    /// The device refused an operation on a QUIC connection, or dropped one of its transmits.
    Quic(QuicStatus),
    /// The device lost its state. Stream sockets recover without the application; QUIC endpoints
    /// install their keys again, and open files are read by the host until they are opened again.
    DeviceReset,
}

/// Result of a splice, as passed to `nsplice`'s callback (AccelTCP section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpliceMeta {
    /// Identifier that `nsplice` returned.
    pub id: SpliceId,
    /// Remote endpoints, in the order of `nsplice`'s arguments.
    pub remotes: [Endpoint; 2],
    /// Payload bytes that each peer sent and the other acknowledged while spliced.
    pub bytes: [u64; 2],
    /// Packets that each peer sent while spliced.
    pub packets: [u64; 2],
    /// Reason for the end of the splice; `None` if a device reset ended both connections.
    pub end: Option<SpliceEnd>,
}

/// Reason for which two sockets cannot be spliced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpliceError {
    /// One of the sockets is not established in both directions.
    #[error("not connected: {0}")]
    NotConnected(SocketError),
    /// The device does not splice them.
    #[error("not offloaded: {0}")]
    Refused(Refusal),
}

/// A pattern that ends in the bytes of an inspected connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatternMatch {
    /// Index of the pattern in the set.
    pub pattern: u16,
    /// Number of bytes up to its end, since the inspection began.
    pub end: u64,
}

/// Readiness of a socket, like the event bits of `epoll`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Readiness {
    /// Bytes can be read.
    pub readable: bool,
    /// Bytes can be written: the connection is established and the send buffer has room.
    pub writable: bool,
    /// The peer has closed its direction, and everything that it sent has been read.
    pub peer_closed: bool,
    /// Everything that was written has been acknowledged.
    pub drained: bool,
    /// The reason, if the connection has ended.
    pub error: Option<SocketError>,
}

/// Reason for the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// The peer reset the connection.
    #[error("connection reset by peer")]
    Reset,
    /// The peer refused the connection.
    #[error("connection refused")]
    Refused,
    /// The peer did not answer in time.
    #[error("connection timed out")]
    TimedOut,
    /// An ICMP error reported that the peer is unreachable.
    #[error("destination unreachable")]
    Unreachable,
    /// A file that was being sent failed, and the connection was reset.
    #[error("{0}")]
    File(FileFault),
    /// The peer violated TLS; it was sent this alert.
    #[error("TLS: {0:?}")]
    Tls(crate::TlsAlert),
    /// The TLS handshake failed.
    #[error("TLS: the handshake failed")]
    TlsHandshake,
    /// The peer ended TLS with this fatal alert.
    #[error("TLS: the peer sent alert {0}")]
    TlsPeer(u8),
    /// The local address is no longer ours: its lease ended, or another one was assigned.
    #[error("local address lost")]
    AddressLost,
    /// This side closed or aborted the connection.
    #[error("connection closed")]
    Closed,
}

/// Reason for which bytes cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The connection has ended, or this side has closed its direction.
    #[error("not connected: {0}")]
    NotConnected(SocketError),
    /// `offload_write`: the file is not open, or the range exceeds it.
    #[error("no such file handle or range")]
    BadExtent,
    /// `send_pdu`: a digest was requested on a connection without [`crate::Host::nvme_tx_context`].
    #[error("no digests were negotiated")]
    NoDigests,
}

/// Reason for which a port cannot be listened on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Another listener or socket uses the port.
    #[error("port {0} is in use")]
    InUse(u16),
    /// The port is zero, or the address is not local.
    #[error("cannot listen on that address")]
    BadAddress,
}

/// Reason for which a connection cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// There is no local address of the remote's family.
    #[error("no address of that family")]
    NoRoute,
    /// Every local port is in use for this remote endpoint.
    #[error("no free local port")]
    NoPort,
    /// The table of connections is full.
    #[error("too many connections")]
    TableFull,
}

/// Addresses and port of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenConfig {
    /// Local address to listen on; `None` for all of them.
    pub addr: Option<IpAddr>,
    /// Port.
    pub port: u16,
    /// Bound on the connections that wait to be accepted, and on the half-open ones in the SYN
    /// cache before SYN cookies are sent.
    pub backlog: usize,
}

/// Options of a connection, as in `setsockopt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SocketOption {
    /// `TCP_NODELAY`: disable Nagle's algorithm.
    NoDelay(bool),
    /// `TCP_CORK`: hold partial segments back until uncorked or until a full segment is ready.
    Cork(bool),
    /// `SO_KEEPALIVE` and its interval; `None` disables it.
    KeepAlive(Option<Duration>),
    /// `TCP_USER_TIMEOUT`: time for which bytes may stay unacknowledged.
    UserTimeout(Duration),
    /// `TCP_TEARDOWN_OFFLOAD`: tear-down offload after the close (AccelTCP section 5.1). The
    /// host tears down the connections that the device does not take.
    TeardownOffload(bool),
    /// Let a transmit that the window cuts short wait up to a millisecond for an acknowledgment
    /// that makes it longer, as Linux does. The default is [`TcpConfig::defer`](crate::TcpConfig).
    Defer(bool),
    /// `TCP_MAXSEG`: maximum segment length, TCP options included; at least 88. If set before the
    /// SYN has left, it also bounds the MSS option sent to the peer. Only ever lowers the limit.
    MaxSegment(u16),
}

/// Options of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ListenerOption {
    /// `TCP_SETUP_OFFLOAD`: the device performs the handshake (AccelTCP section 5.1) of peers that
    /// use timestamps. Not for protocols in which the server speaks first: a peer would wait
    /// forever if its last acknowledgment of the handshake were lost (section 4.1).
    SetupOffload(bool),
    /// `TCP_DEFER_ACCEPT`: the device reports a connection that it set up with its first payload.
    DeferAccept(bool),
    /// [`SocketOption::TeardownOffload`] of connections accepted from now on.
    TeardownOffload(bool),
    /// [`SocketOption::MaxSegment`] of connections that begin from now on, and bound on the MSS
    /// option sent to their peers.
    MaxSegment(u16),
    /// For a TLS listener: a client whose first byte is a letter, and thus not a TLS record, is not
    /// refused with an alert. The application gets its connection without TLS, and must ask which
    /// connections these are ([`crate::Host::speaks_tls`]).
    HandOverCleartext(bool),
}

/// TLS state of a connection, as shown by `outboard ss`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsInfo {
    /// Protocol version of the record layer.
    pub version: TlsVersion,
    /// AEAD.
    pub suite: Suite,
    /// `Ok` if the device encrypts, or the reason for a refusal.
    pub tx_offload: Result<(), Refusal>,
    /// `Ok` if the device decrypts, or the reason for a refusal.
    pub rx_offload: Result<(), Refusal>,
    /// Received records that the device decrypted completely, partially, and not at all.
    pub rx_records: [u64; 3],
}

/// NVMe/TCP state of a connection, as shown by `outboard ss`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmeInfo {
    /// `Ok` if the device computes data digests, or its refusal; `None` if the connection sends no
    /// digests.
    pub tx_offload: Option<Result<(), Refusal>>,
    /// `Ok` if the device places data and verifies digests, or the reason for a refusal.
    pub rx_offload: Result<(), Refusal>,
}

/// State of a connection, as shown by `outboard ss`.
#[derive(Clone, Debug, PartialEq)]
pub struct SocketInfo {
    /// Local endpoint.
    pub local: Endpoint,
    /// Remote endpoint.
    pub remote: Endpoint,
    /// TCP state, by its name in RFC 9293.
    pub state: &'static str,
    /// Bytes written but not yet acknowledged.
    pub send_queue: u64,
    /// Bytes received but not yet read.
    pub receive_queue: u64,
    /// Congestion window in bytes.
    pub cwnd: u32,
    /// Slow start threshold in bytes.
    pub ssthresh: u32,
    /// Smoothed round-trip time.
    pub srtt: Duration,
    /// Retransmission time-out.
    pub rto: Duration,
    /// Maximum segment size.
    pub mss: u16,
    /// Payload of the largest segment received: `tcpi_rcv_mss`.
    pub rcv_mss: u16,
    /// Congestion control state, by Linux's names: `Open`, `Disorder`, `CWR`, `Recovery` or `Loss`.
    pub congestion_state: &'static str,
    /// Outstanding bytes that were selectively acknowledged (`tcpi_sacked`, which counts segments).
    pub sacked: u64,
    /// Outstanding bytes that were marked lost, retransmitted or not (`tcpi_lost`, which counts
    /// segments).
    pub lost: u64,
    /// Reordering distance of the path in segments: `tcpi_reordering`.
    pub reordering: u16,
    /// Minimum round-trip time of the last minutes.
    pub min_rtt: Duration,
    /// Recent delivery rate in bytes per second.
    pub delivery_rate: u64,
    /// True if the application, and not the path, limited `delivery_rate`.
    pub delivery_rate_app_limited: bool,
    /// Pacing rate of BBR in bytes per second; 0 with another congestion control, which has none.
    pub pacing_rate: u64,
    /// Bytes of files sent by the device.
    pub file_bytes_offloaded: u64,
    /// Bytes retransmitted.
    pub retransmitted_bytes: u64,
    /// `Ok` if the device sends file content, or the reason for a refusal.
    pub file_offload: Result<(), Refusal>,
    /// TLS state, after the handshake.
    pub tls: Option<TlsInfo>,
    /// NVMe/TCP state, after the exchange of ICReq and ICResp.
    pub nvme: Option<NvmeInfo>,
    /// `Ok` if the device inspects received bytes for patterns, or why the host does; `None` if
    /// they are not inspected.
    pub inspection: Option<Result<(), Refusal>>,
}
