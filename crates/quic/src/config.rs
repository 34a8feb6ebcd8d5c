//! Configuration of an endpoint.

use std::sync::Arc;

use abi::crypto::CryptoProvider;
use abi::quic::{QuicReorderBounds, QuicSteering};
use base::Duration;

use crate::qlog::OpenQlog;

/// Configuration of an endpoint.
#[derive(Clone)]
pub struct QuicEndpointConfig {
    /// UDP port.
    pub port: u16,
    /// TLS configuration of accepted connections; `None` if the endpoint accepts none. TLS 1.3 must
    /// be enabled. An endpoint that accepts connections ignores Retry packets, also for the
    /// connections that it opens.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Provider of AEAD and header protection.
    pub crypto: Arc<dyn CryptoProvider>,
    /// Instant of the standard library at [`base::Instant::ZERO`]. quinn-proto's timestamps are
    /// relative to it.
    pub epoch: std::time::Instant,
    /// Unix time at [`base::Instant::ZERO`], for the lifetime of tokens.
    pub unix_epoch: Duration,
    /// Seed of all secrets and random numbers. It must be random if peers may be hostile; equal
    /// seeds repeat a run.
    pub seed: [u8; 32],
    /// Maximum open connections; further attempts are refused.
    pub connections_max: usize,
    /// Number of concurrent handshakes at which clients begin to have to validate their address by
    /// a Retry (RFC 9000 section 8.1.2).
    pub handshakes_before_retry: usize,
    /// Bytes sent and received after which a connection is offloaded to the device. The operations
    /// pay off from the first object on (`outboard-lab bench quic`, `break_even_bytes`); shorter
    /// connections do not occupy entries of the device's table.
    pub offload_bytes_min: u64,
    /// Bounds of the device's reordering window; `None` if the device delivers packets as they
    /// come. `time` is an upper bound: a connection uses a quarter of its round-trip time if that
    /// is less.
    pub reorder: Option<QuicReorderBounds>,
    /// True if peers may migrate to other addresses (RFC 9000 section 9).
    pub migration: bool,
    /// Steering of datagrams over several hosts, and the queue of this one. All hosts that share
    /// the port need the same seed. Every connection ID made here leads to this host's queue.
    pub steering: Option<(QuicSteering, usize)>,
    /// Opens a qlog for each connection.
    pub qlog: Option<OpenQlog>,
    /// Flow control windows in bytes of a stream and of a connection. They bound what a connection
    /// can receive in a round-trip time.
    pub receive_windows: [u32; 2],
    /// Bidirectional streams that a peer may have open at a time.
    pub streams_max: u32,
    /// Idle timeout of a connection.
    pub idle_timeout: Duration,
}

impl QuicEndpointConfig {
    /// Default bounds of the reordering window. `time` is a fifth of the maximum delay of an
    /// acknowledgment (RFC 9000 section 18.2). `packets` and `bytes` fit what a connection with the
    /// default receive window can receive in that time, a quarter of a round trip. Lower bounds
    /// would make a burst give up gaps that are about to be filled.
    pub const REORDER: QuicReorderBounds =
        QuicReorderBounds { packets: 256, bytes: 256 * 1024, time: Duration::from_millis(5) };

    /// Returns the default configuration.
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

impl core::fmt::Debug for QuicEndpointConfig {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // The seed is secret.
        f.debug_struct("QuicEndpointConfig").field("port", &self.port).finish_non_exhaustive()
    }
}
