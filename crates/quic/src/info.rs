//! What a connection shows of itself: to `outboard ss`, and to tests.
//!
//! Gathered when somebody asks, out of what quinn-proto and the driver keep anyway.

use core::net::{IpAddr, SocketAddr};

use abi::Refusal;
use abi::quic::{ConnectionId, QuicId};
use base::Duration;
use quinn_proto::ConnectionStats;

use crate::connection::{Connection, Waiting};
use crate::session::VERSION_1;

/// A connection.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    /// Our address, where it is known yet, and our port.
    pub local: (Option<IpAddr>, u16),
    /// The peer's end, as of its last move.
    pub remote: SocketAddr,
    /// `HANDSHAKE`, `ESTABLISHED`, or `CLOSING` for one that has ended and is not yet forgotten.
    pub state: &'static str,
    /// Version of QUIC.
    pub version: u32,
    /// Connection IDs that lead to us.
    pub ids: Vec<ConnectionId>,
    /// The connection ID that leads to the peer, once packets with short headers were sent.
    pub peer_id: Option<ConnectionId>,
    /// The reason of its end, if it has ended.
    pub closed: Option<String>,
    /// Bytes of UDP payload in both directions.
    pub bytes: u64,
    /// Bytes of files that the device reads, as far as they were given to quinn-proto.
    pub file_bytes_offloaded: u64,
    /// Streams that have something left to be sent.
    pub streams: usize,
    /// Counts of the reasons for which those wait.
    pub waiting: Waiting,
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Acknowledgments of packets that had been counted as lost, by ranges.
    pub losses_spurious: u64,
    /// Reductions of the congestion window, and how many of them were undone since all packets were
    /// only late.
    pub reductions: [u64; 2],
    /// Generations of keys after the first, in the direction that has had more.
    pub key_updates: u64,
    /// How often the peer came from another address or port.
    pub migrations: u64,
    /// Under which name the device seals and opens, or why it does not: none before it was asked.
    pub offload: [Result<Option<QuicId>, Refusal>; 2],
    /// quinn-proto's counts of packets, of frames, and of the path.
    pub stats: ConnectionStats,
}

impl Connection {
    /// What it shows of itself, at that port.
    pub(crate) fn info(&self, port: u16) -> ConnectionInfo {
        let stats = self.inner.stats();
        let state = self.shared.lock();
        let key_updates = state.tx_generation.max(state.rx_generation);
        let peer_id = state.peer_id;
        drop(state);
        let rtt = u64::try_from(stats.path.rtt.as_nanos()).unwrap_or(u64::MAX);
        ConnectionInfo {
            local: (self.inner.local_ip(), port),
            remote: self.inner.remote_address(),
            state: match (self.lost, self.connected) {
                (true, _) => "CLOSING",
                (false, true) => "ESTABLISHED",
                (false, false) => "HANDSHAKE",
            },
            version: VERSION_1,
            ids: self.cids.values().copied().collect(),
            peer_id,
            closed: self.closed.clone(),
            bytes: self.bytes,
            file_bytes_offloaded: self.file_bytes_offloaded,
            streams: self.streams(),
            waiting: self.waiting(),
            rtt: Duration::from_nanos(rtt),
            losses_spurious: self.losses.spurious,
            reductions: [self.losses.reductions, self.losses.undone],
            key_updates,
            migrations: self.migrations,
            offload: self.offload.directions(),
            stats,
        }
    }
}
