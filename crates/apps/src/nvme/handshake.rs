//! Interface to the TLS handshake of NVMe/TCP's secure channel (NVMe/TCP transport 1.0, section
//! 3.6.1.3).
//!
//! Before the first PDU, both ends agree on keys by TLS 1.3 with a pre-shared key.
//! [`super::target`] and [`super::initiator`] run a [`NvmeTlsHandshake`] over the plain connection
//! and pass the resulting keys to [`host::Host::attach_tls`]. The store of pre-shared keys and the
//! TLS library are the concern of the implementation of [`NvmeTlsHandshakeFactory`]; tests use a
//! scripted one.

use host::TlsKeys;

/// A TLS handshake over a plain connection, up to the point at which its keys are known.
pub trait NvmeTlsHandshake: Send {
    /// Consumes received bytes, and appends bytes to be sent to `out`; these are sent whatever the
    /// result. Called once with no bytes when the connection is established (a client starts then),
    /// and again when bytes arrive. Bytes that were not used are passed again, followed by newer
    /// ones.
    ///
    /// Bytes after the handshake's last record are never used: they are encrypted with the agreed
    /// keys. Not called again after [`NvmeHandshakeProgress::Done`] or
    /// [`NvmeHandshakeProgress::Failed`].
    fn advance(&mut self, received: &[u8], out: &mut Vec<u8>) -> NvmeHandshakeProgress;
}

/// Result of [`NvmeTlsHandshake::advance`].
#[derive(Debug)]
pub enum NvmeHandshakeProgress {
    /// The handshake needs more bytes.
    More {
        /// Bytes of `received` that were used.
        used: usize,
    },
    /// Both ends have the keys. The bytes in `out` are sent as they are; everything after them is
    /// encrypted by the socket.
    Done {
        /// Bytes of `received` that were used.
        used: usize,
        /// The keys, and the identity that they belong to.
        result: Box<NvmeHandshakeResult>,
    },
    /// The handshake failed. `out` may hold an alert for the peer; then the connection ends.
    Failed {
        /// Bytes of `received` that were used.
        used: usize,
    },
}

/// Result of a complete handshake.
#[derive(Debug)]
pub struct NvmeHandshakeResult {
    /// Keys of both directions.
    pub keys: TlsKeys,
    /// Identity of the pre-shared key: `NVMe1R01 HOSTNQN SUBNQN DIGEST`.
    pub identity: Vec<u8>,
}

/// Creates handshakes, one for each connection.
pub trait NvmeTlsHandshakeFactory: Send + Sync {
    /// Creates the target's side of a handshake. Returns `None` if there are no keys or no memory;
    /// the connection then ends.
    fn server(&self) -> Option<Box<dyn NvmeTlsHandshake>>;

    /// Creates the initiator's side of a handshake. Returns `None` as [`Self::server`] does.
    fn client(&self) -> Option<Box<dyn NvmeTlsHandshake>>;
}
