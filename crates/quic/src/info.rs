//! State of a connection as `outboard ss` and tests show it, collected on request from quinn-proto
//! and the connection.

use core::net::{IpAddr, SocketAddr};

use abi::Refusal;
use abi::quic::{QuicConnectionId, QuicId};
use base::Duration;
use quinn_proto::ConnectionStats;

use crate::connection::{QuicConnection, StreamWaitCounts};
use crate::session::VERSION_1;

/// Snapshot of a connection's state.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    /// Our address, if it is known already, and our port.
    pub local: (Option<IpAddr>, u16),
    /// Address and port of the peer after its last migration.
    pub remote: SocketAddr,
    /// `HANDSHAKE`, `ESTABLISHED`, or `CLOSING` for a connection that has ended but that
    /// quinn-proto still keeps.
    pub state: &'static str,
    /// QUIC version.
    pub version: u32,
    /// Our connection IDs, by which the peer addresses the connection.
    pub ids: Vec<QuicConnectionId>,
    /// The peer's connection ID in the last short-header packet that was built, if any.
    pub peer_id: Option<QuicConnectionId>,
    /// Reason for the end of the connection, if it has ended.
    pub closed: Option<String>,
    /// Bytes of UDP payload, both directions together.
    pub bytes: u64,
    /// File bytes passed to quinn-proto for the device to read.
    pub file_bytes_offloaded: u64,
    /// Streams with unsent data.
    pub streams: usize,
    /// Streams with unsent data, counted by what they wait for.
    pub waiting: StreamWaitCounts,
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// ACK ranges with packets that had been declared lost.
    pub losses_spurious: u64,
    /// Reductions of the congestion window, and those of them that were undone because every packet
    /// was only late.
    pub reductions: [u64; 2],
    /// Key updates of the direction that had more of them.
    pub key_updates: u64,
    /// Changes of the peer's address or port.
    pub migrations: u64,
    /// For transmit and receive: identifier of the device's offload context, or the reason why
    /// there is none. `Ok(None)` if the device has not been asked.
    pub offload: [Result<Option<QuicId>, Refusal>; 2],
    /// quinn-proto's statistics of packets, frames and the path.
    pub stats: ConnectionStats,
}

impl QuicConnection {
    /// Returns a snapshot of the connection's state; `port` is the local port.
    pub(crate) fn info(&self, port: u16) -> ConnectionInfo {
        let stats = self.inner.stats();
        let key_updates = self.shared.tx_generation().max(self.shared.rx_generation());
        let peer_id = self.shared.lock().peer_id;
        let rtt = u64::try_from(stats.path.rtt.as_nanos()).unwrap_or(u64::MAX);
        ConnectionInfo {
            local: (self.inner.local_ip(), port),
            remote: self.inner.remote_address(),
            state: match (self.ended, self.connected) {
                (true, _) => "CLOSING",
                (false, true) => "ESTABLISHED",
                (false, false) => "HANDSHAKE",
            },
            version: VERSION_1,
            ids: self.cids.values().copied().collect(),
            peer_id,
            closed: self.end_reason.clone(),
            bytes: self.bytes,
            file_bytes_offloaded: self.file_bytes_offloaded,
            streams: self.unsent_stream_count(),
            waiting: self.wait_counts(),
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
