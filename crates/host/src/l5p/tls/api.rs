//! Configuration that an application provides to speak TLS: that of a handshake, or keys.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use abi::crypto::{CryptoProvider, NONCE_BYTES, Suite};
use rustls::pki_types::ServerName;
use zeroize::Zeroizing;

pub use wire::tls::TlsRecordVersion as TlsVersion;

use super::secret::{SecretSender, TrafficSecret};

/// TLS configuration of a listener.
#[derive(Clone)]
pub struct TlsServer {
    /// Certificates, versions, suites, ALPN and tickets. Secret extraction must be enabled
    /// (`enable_secret_extraction`).
    pub config: Arc<rustls::ServerConfig>,
    /// AEADs of the record layer.
    pub crypto: Arc<dyn CryptoProvider>,
}

/// TLS configuration of an active open.
#[derive(Clone)]
pub struct TlsClient {
    /// Roots, versions, suites and ALPN. Secret extraction must be enabled
    /// (`enable_secret_extraction`).
    pub config: Arc<rustls::ClientConfig>,
    /// Name that the certificate must have.
    pub name: ServerName<'static>,
    /// AEADs of the record layer.
    pub crypto: Arc<dyn CryptoProvider>,
}

/// Keys of a handshake that took place elsewhere, as for `TLS_TX` and `TLS_RX` of `SOL_TLS`.
/// Without the secrets that they are derived from the keys cannot change, and a peer's `KeyUpdate`
/// fails the session; [`TlsKeys::from_secrets`] keeps the secrets.
pub struct TlsKeys {
    /// Protocol version of the record layer.
    pub version: TlsVersion,
    /// AEAD.
    pub suite: Suite,
    /// Keys for sending.
    pub tx: TlsDirection,
    /// Keys for receiving.
    pub rx: TlsDirection,
    /// AEADs of the record layer.
    pub crypto: Arc<dyn CryptoProvider>,
}

/// Keys of one direction.
pub struct TlsDirection {
    /// Key; its first [`Suite::key_bytes`] bytes count.
    pub(super) key: Zeroizing<[u8; 32]>,
    pub(super) iv: [u8; NONCE_BYTES],
    pub(super) number: u64,
    /// Secret from which the next key is derived; `None` if the key cannot change.
    pub(super) secret: Option<TrafficSecret>,
}

/// Traffic secrets of a TLS 1.3 handshake: RFC 8446 section 7.1.
pub struct TlsSecrets {
    /// AEAD; its hash follows from the suite (RFC 8446 appendix B.4).
    pub suite: Suite,
    /// This side was the client of the handshake.
    pub is_client: bool,
    /// Secret for sending: `client_application_traffic_secret_0` or
    /// `server_application_traffic_secret_0`.
    pub tx: Zeroizing<Vec<u8>>,
    /// Secret for receiving.
    pub rx: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for TlsSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never shows the secret.
        f.debug_struct("TlsSecrets").field("suite", &self.suite).finish_non_exhaustive()
    }
}

impl TlsKeys {
    /// Derives the keys from secrets, from record number 0. The keys can change, as those of a
    /// handshake of this host. HKDF is that of the suite in `rustls`; `crypto` has the AEADs.
    ///
    /// Returns `None` if `rustls` does not have the suite, or a secret does not have the length of
    /// its hash.
    #[must_use]
    pub fn from_secrets(
        secrets: &TlsSecrets,
        rustls: &rustls::crypto::CryptoProvider,
        crypto: Arc<dyn CryptoProvider>,
    ) -> Option<Self> {
        let suite = secrets.suite;
        let (ours, theirs) = if secrets.is_client {
            (SecretSender::Client, SecretSender::Server)
        } else {
            (SecretSender::Server, SecretSender::Client)
        };
        let tx = TlsDirection::of_secret(&TrafficSecret::new(rustls, suite, ours, &secrets.tx)?)?;
        let rx = TlsDirection::of_secret(&TrafficSecret::new(rustls, suite, theirs, &secrets.rx)?)?;
        Some(Self { version: TlsVersion::Tls13, suite, tx, rx, crypto })
    }
}

impl TlsDirection {
    /// Derives key and IV for records from number 0: RFC 8446 section 7.3.
    pub(super) fn of_secret(secret: &TrafficSecret) -> Option<Self> {
        let mut key = Zeroizing::new([0; 32]);
        let mut iv = [0; NONCE_BYTES];
        secret.expand(b"key", key.get_mut(..secret.suite.key_bytes())?)?;
        secret.expand(b"iv", &mut iv)?;
        Some(Self { key, iv, number: 0, secret: Some(secret.clone()) })
    }

    /// Creates keys that cannot change: a key, of which the first [`Suite::key_bytes`] bytes count;
    /// the IV; the number of the next record.
    #[must_use]
    pub fn new(key: &[u8; 32], iv: [u8; NONCE_BYTES], number: u64) -> Self {
        Self { key: Zeroizing::new(*key), iv, number, secret: None }
    }
}

impl fmt::Debug for TlsKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never shows the key.
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
