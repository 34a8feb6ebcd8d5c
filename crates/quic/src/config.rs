//! What an endpoint is told before it starts.

use std::sync::Arc;

use abi::crypto::CryptoProvider;
use abi::quic::{Reorder, Steering};
use base::Duration;

use crate::qlog::OpenQlog;

/// Configuration of an endpoint.
#[derive(Clone)]
pub struct Config {
    /// UDP port.
    pub port: u16,
    /// TLS of connections that are accepted; none where none are. TLS 1.3 has to be among its
    /// versions. An endpoint that accepts connections takes no Retry for those that it opens.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// What seals and opens.
    pub crypto: Arc<dyn CryptoProvider>,
    /// The instant of the standard library at [`base::Instant::ZERO`]: quinn-proto's time has no
    /// other beginning.
    pub epoch: std::time::Instant,
    /// Unix time at [`base::Instant::ZERO`]: tokens are valid for a time.
    pub unix_epoch: Duration,
    /// Random where peers are hostile: everything secret comes from it, and equal seeds repeat
    /// runs.
    pub seed: [u8; 32],
    /// Connections at one time; more are refused.
    pub connections_max: usize,
    /// Handshakes at one time from which on clients prove their address first (RFC 9000, section
    /// 8.1.2).
    pub handshakes_before_retry: usize,
    /// Bytes sent or received from which on a connection is handed to the device. It is worth the
    /// operations from the first object on (`outboard-lab bench quic`, `break_even_bytes`); what
    /// ends with less leaves the device's table its room.
    pub offload_bytes_min: u64,
    /// Whether the device puts packets in order before the host gets them, and within which bounds.
    /// The time is the most that any connection gets: one whose peer is near gets a quarter of its
    /// round-trip time.
    pub reorder: Option<Reorder>,
    /// True if peers may move to other addresses (section 9).
    pub migration: bool,
    /// The device's spreading of datagrams over several hosts, and which of them this is: then all
    /// that have the port need the same seed, and every connection ID that is made here leads here.
    pub steering: Option<(Steering, usize)>,
    /// Opens a qlog for each connection.
    pub qlog: Option<OpenQlog>,
    /// Bytes that a peer may send on a stream, and on all of a connection, before we read them:
    /// what a connection can receive in a round-trip time, at most.
    pub receive_windows: [u32; 2],
    /// Streams that a peer may have open at one time in both directions.
    pub streams_max: u32,
    /// How long a connection may be silent.
    pub idle_timeout: Duration,
}

impl Config {
    /// The usual bounds of reordering. The time is a fifth of what we may delay an acknowledgment
    /// by (RFC 9000, section 18.2). Packets and bytes are what a connection with the usual receive
    /// window may receive in that time, a quarter of a round trip: fewer, and a burst gives gaps up
    /// that are about to be filled.
    pub const REORDER: Reorder =
        Reorder { packets: 256, bytes: 256 * 1024, time: Duration::from_millis(5) };

    /// The usual configuration.
    #[must_use]
    pub fn new(crypto: Arc<dyn CryptoProvider>, epoch: std::time::Instant, seed: [u8; 32]) -> Self {
        Self {
            port: 443,
            tls: None,
            crypto,
            epoch,
            unix_epoch: Duration::ZERO,
            seed,
            connections_max: 65_536,
            handshakes_before_retry: 1024,
            offload_bytes_min: 16 * 1024,
            reorder: Some(Self::REORDER),
            migration: true,
            steering: None,
            qlog: None,
            receive_windows: [64 * 1024, 1024 * 1024],
            streams_max: 128,
            idle_timeout: Duration::from_secs(30),
        }
    }
}

impl core::fmt::Debug for Config {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // No seed.
        f.debug_struct("Config").field("port", &self.port).finish_non_exhaustive()
    }
}
