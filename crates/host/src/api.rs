//! Names, options and errors of the socket interface.

use core::net::IpAddr;

use abi::crypto::Suite;
use abi::quic::QuicStatus;
use abi::{FileFault, FlowId, Refusal};
use base::Duration;
use wire::Endpoint;
use wire::tls::Version as TlsVersion;

pub use abi::splice::{SpliceEnd, SpliceId};
pub use abi::{FileId, FileKind, FileStat};

/// A connection. Ids are never used again within 2^32 connections of a slot, so a stale one is
/// recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl SocketId {
    /// Slot in the table of connections: small, dense, reused. For tables beside the host's.
    #[must_use]
    pub const fn index(self) -> usize {
        self.index as usize
    }
}

/// A listening port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub(crate) u32);

/// A UDP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UdpId(pub(crate) u32);

/// Names a user of the host's disk beyond sockets: see [`crate::Host::new_disk_user`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DiskUser(pub u8);

/// Names an operation of a user of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskToken {
    /// Whose it is.
    pub user: DiskUser,
    /// The user's own name for it.
    pub number: u64,
}

/// The files that a transmit has bytes of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultScope {
    /// One file.
    File(FileId),
    /// More than one.
    Several,
}

/// Something happened that an application may want to look at. Edge-triggered: it is said once,
/// until the application has looked ([`crate::Host::readiness`]) and something new happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A connection was established on a listener.
    Accepted(ListenerId, SocketId),
    /// A connection's readiness changed.
    Socket(SocketId),
    /// `offload_open` ended, well or not; or an open file can be read no more, as `offload_fstat`
    /// says.
    File(FileId),
    /// Two sockets were spliced: the device relays between them, and the sockets are gone.
    Spliced(SpliceId),
    /// Two sockets were not spliced, and are as they were before `nsplice`.
    SpliceRefused(SpliceId, Refusal),
    /// Two spliced connections have ended; [`crate::Host::take_splice`] tells how.
    SpliceClosed(SpliceId),
    /// Datagrams wait on a UDP socket.
    Udp(UdpId),
    /// A read that [`crate::Host::extent_read`] began has ended, or a change of a namespace: an
    /// operation of this user.
    DiskDone(DiskUser),
    /// A transmit of a flow over UDP never left: content of these files could not be read.
    UdpFault(FlowId, FaultScope, FileFault),
    /// The device did not do something for a QUIC connection.
    Quic(QuicStatus),
    /// The device lost its state. Said to those only who use it beyond sockets: where a UDP socket
    /// is bound.
    DeviceReset,
}

/// What became of two spliced connections: what `nsplice`'s callback gets (AccelTCP section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpliceMeta {
    /// The name that `nsplice` gave.
    pub id: SpliceId,
    /// The peers' ends, in the order of `nsplice`'s arguments.
    pub remotes: [Endpoint; 2],
    /// Payload bytes that each sent, and the other acknowledged, while spliced.
    pub bytes: [u64; 2],
    /// Packets that each sent while spliced.
    pub packets: [u64; 2],
    /// How it ended; none where the device was reset, and both connections with it.
    pub end: Option<SpliceEnd>,
}

/// Why two sockets cannot be spliced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpliceError {
    /// One of them is not established in both directions.
    #[error("not connected: {0}")]
    NotConnected(SocketError),
    /// The device would not do it; the sockets are as they were.
    #[error("not offloaded: {0}")]
    Refused(Refusal),
}

/// What a socket is ready for, like `epoll`'s bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Readiness {
    /// Bytes can be read.
    pub readable: bool,
    /// Bytes can be written (the connection is established and the send buffer has room).
    pub writable: bool,
    /// The peer has closed its direction, and all that it sent before has been read.
    pub peer_closed: bool,
    /// Everything that was written has been acknowledged.
    pub drained: bool,
    /// The connection has ended, and why.
    pub error: Option<SocketError>,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// The peer reset it.
    #[error("connection reset by peer")]
    Reset,
    /// The peer refused it.
    #[error("connection refused")]
    Refused,
    /// The peer did not answer for too long.
    #[error("connection timed out")]
    TimedOut,
    /// The network says that the peer cannot be reached.
    #[error("destination unreachable")]
    Unreachable,
    /// A file that was being sent failed; the connection was reset.
    #[error("{0}")]
    File(FileFault),
    /// The peer's TLS was wrong: the alert that it was sent.
    #[error("TLS: {0:?}")]
    Tls(crate::Alert),
    /// The TLS handshake failed.
    #[error("TLS: the handshake failed")]
    TlsHandshake,
    /// The peer's TLS gave up, with this alert.
    #[error("TLS: the peer sent alert {0}")]
    TlsPeer(u8),
    /// It was closed or aborted by this side.
    #[error("connection closed")]
    Closed,
}

/// Why nothing could be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The connection is gone, or this side has shut down its direction.
    #[error("not connected: {0}")]
    NotConnected(SocketError),
    /// `offload_write`: no such open file, or a range outside it.
    #[error("no such file handle or range")]
    BadExtent,
    /// `send_pdu`: nothing was said of digests on this connection.
    #[error("no digests were agreed on")]
    NoDigests,
}

/// Why a port cannot be listened on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Somebody already listens there.
    #[error("port {0} is in use")]
    InUse(u16),
    /// Port zero, or an address that is not ours.
    #[error("cannot listen on that address")]
    BadAddress,
}

/// Why a connection cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No address of ours is of the remote's family.
    #[error("no address of that family")]
    NoRoute,
    /// Every local port is taken for that remote end.
    #[error("no free local port")]
    NoPort,
    /// The table of connections is full.
    #[error("too many connections")]
    TableFull,
}

/// A port to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Only on this address, or on all of ours.
    pub addr: Option<IpAddr>,
    /// Port.
    pub port: u16,
    /// Connections that may wait to be accepted, and half-open ones in the SYN cache before cookies
    /// begin.
    pub backlog: usize,
}

/// Options of a connection, as `setsockopt` has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SocketOption {
    /// `TCP_NODELAY`: switch Nagle's algorithm off.
    NoDelay(bool),
    /// `TCP_CORK`: hold back partial segments until uncorked or a full one is there.
    Cork(bool),
    /// `SO_KEEPALIVE` with its interval, or off.
    KeepAlive(Option<Duration>),
    /// `TCP_USER_TIMEOUT`: how long bytes may stay unacknowledged.
    UserTimeout(Duration),
    /// `TCP_TEARDOWN_OFFLOAD`: once closed, the device brings it to an end (AccelTCP section 5.1).
    /// A wish: what does not fit the device the host does.
    TeardownOffload(bool),
    /// Let a transmit that is short for want of window wait up to a millisecond for an
    /// acknowledgment that makes it longer, as Linux does; at first as in
    /// [`TcpConfig::defer`](crate::TcpConfig).
    Defer(bool),
    /// `TCP_MAXSEG`: segments are no longer than that, 88 at least, options included. Set on a
    /// connection whose SYN has not left, it is also what is asked of the peer. Only ever lowers.
    MaxSegment(u16),
}

/// Options of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ListenerOption {
    /// `TCP_SETUP_OFFLOAD`: the device sets connections up (AccelTCP section 5.1), where peers use
    /// timestamps. Not for protocols in which the server speaks first: a peer whose last
    /// acknowledgment of the handshake is lost would wait for ever (section 4.1).
    SetupOffload(bool),
    /// `TCP_DEFER_ACCEPT`: of connections that the device sets up the host hears with their first
    /// payload.
    DeferAccept(bool),
    /// [`SocketOption::TeardownOffload`] of connections that are accepted from now on.
    TeardownOffload(bool),
    /// [`SocketOption::MaxSegment`] of connections that begin from now on, and what their peers are
    /// asked for.
    MaxSegment(u16),
    /// Of a listener for TLS: a client that begins with text, and not with a record, is not refused
    /// with an alert. Its connection is the application's without TLS, as those of a listener
    /// without TLS are; the application has to ask which they are ([`crate::Host::speaks_tls`]).
    HandOverCleartext(bool),
}

/// What `outboard ss` shows of a connection's TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsInfo {
    /// Which record layer.
    pub version: TlsVersion,
    /// Which AEAD.
    pub suite: Suite,
    /// Whether the device seals, or why not.
    pub tx_offload: Result<(), Refusal>,
    /// Whether the device opens, or why not.
    pub rx_offload: Result<(), Refusal>,
    /// Received records that the device opened whole, in part, and not at all.
    pub rx_records: [u64; 3],
}

/// What `outboard ss` shows of a connection's NVMe/TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmeInfo {
    /// Whether the device fills data digests in, or why not; none where there are none.
    pub tx_offload: Option<Result<(), Refusal>>,
    /// Whether the device places data and checks digests, or why not.
    pub rx_offload: Result<(), Refusal>,
}

/// What `outboard ss` shows of a connection.
#[derive(Clone, Debug, PartialEq)]
pub struct SocketInfo {
    /// Its ends.
    pub local: Endpoint,
    /// The peer's end.
    pub remote: Endpoint,
    /// State, by its name in RFC 9293.
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
    /// State of congestion control: `Open`, `Disorder`, `CWR`, `Recovery` or `Loss`, Linux's names.
    pub congestion_state: &'static str,
    /// Outstanding bytes that were acknowledged selectively, in segments `tcpi_sacked`.
    pub sacked: u64,
    /// Outstanding bytes that were found lost, sent again or not: `tcpi_lost`.
    pub lost: u64,
    /// Segments by which the path reorders: `tcpi_reordering`.
    pub reordering: u16,
    /// Least round-trip time of the last minutes.
    pub min_rtt: Duration,
    /// Bytes per second that the path delivered lately, and whether it was the application that
    /// sent no more.
    pub delivery_rate: u64,
    /// See `delivery_rate`.
    pub delivery_rate_app_limited: bool,
    /// Bytes sent that came out of files by the device.
    pub file_bytes_offloaded: u64,
    /// Bytes retransmitted.
    pub retransmitted_bytes: u64,
    /// Whether file content is sent by the device, or why not.
    pub file_offload: Result<(), Refusal>,
    /// TLS on it, once its handshake is over.
    pub tls: Option<TlsInfo>,
    /// NVMe/TCP on it, once both ends know how to speak it.
    pub nvme: Option<NvmeInfo>,
}
