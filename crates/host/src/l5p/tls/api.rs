//! What an application has to bring to speak TLS: configuration of a handshake, or keys.

use alloc::sync::Arc;
use core::fmt;

use abi::crypto::{CryptoProvider, NONCE_BYTES, Suite};
use rustls::pki_types::ServerName;
use zeroize::Zeroizing;

pub use wire::tls::Version as TlsVersion;

/// What a listener needs to speak TLS.
#[derive(Clone)]
pub struct TlsServer {
    /// Certificates, versions, suites, ALPN and tickets. Secrets have to be extractable
    /// (`enable_secret_extraction`).
    pub config: Arc<rustls::ServerConfig>,
    /// What seals and opens.
    pub crypto: Arc<dyn CryptoProvider>,
}

/// What a connection that we open needs to speak TLS.
#[derive(Clone)]
pub struct TlsClient {
    /// Roots, versions, suites and ALPN. Secrets have to be extractable
    /// (`enable_secret_extraction`).
    pub config: Arc<rustls::ClientConfig>,
    /// Whom the certificate has to name.
    pub name: ServerName<'static>,
    /// What seals and opens.
    pub crypto: Arc<dyn CryptoProvider>,
}

/// Keys that somebody else has agreed on: what `TLS_TX` and `TLS_RX` take of `SOL_TLS`. Without the
/// secrets that they come from they cannot change: a peer's `KeyUpdate` ends the session.
pub struct TlsKeys {
    /// Which record layer.
    pub version: TlsVersion,
    /// Which AEAD.
    pub suite: Suite,
    /// What we send.
    pub tx: TlsDirection,
    /// What the peer sends.
    pub rx: TlsDirection,
    /// What seals and opens.
    pub crypto: Arc<dyn CryptoProvider>,
}

/// Keys of one direction.
pub struct TlsDirection {
    /// Its first [`Suite::key_bytes`] count.
    pub(super) key: Zeroizing<[u8; 32]>,
    pub(super) iv: [u8; NONCE_BYTES],
    pub(super) number: u64,
}

impl TlsDirection {
    /// A key, of which the first [`Suite::key_bytes`] count; what nonces are made from; the number
    /// of the next record.
    #[must_use]
    pub fn new(key: &[u8; 32], iv: [u8; NONCE_BYTES], number: u64) -> Self {
        Self { key: Zeroizing::new(*key), iv, number }
    }
}

impl fmt::Debug for TlsKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No key.
        f.debug_struct("TlsKeys").field("suite", &self.suite).finish_non_exhaustive()
    }
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsClient").field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsServer").finish_non_exhaustive()
    }
}
