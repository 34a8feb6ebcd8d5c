//! What an application has to bring to speak TLS: configuration of a handshake, or keys.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use abi::crypto::{CryptoProvider, NONCE_BYTES, Suite};
use rustls::pki_types::ServerName;
use zeroize::Zeroizing;

pub use wire::tls::Version as TlsVersion;

use super::secret::{Secret, Sender};

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
/// secrets that they come from they cannot change, and a peer's `KeyUpdate` ends the session;
/// [`TlsKeys::from_secrets`] has them.
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
    /// What the next key is made from; none where the key cannot change.
    pub(super) secret: Option<Secret>,
}

/// Traffic secrets that a handshake of TLS 1.3 ended with: RFC 8446 section 7.1.
pub struct TlsSecrets {
    /// Which AEAD; the hash goes with it (RFC 8446 appendix B.4).
    pub suite: Suite,
    /// Whether we were the client of the handshake.
    pub is_client: bool,
    /// `client_application_traffic_secret_0` or the server's, whichever is ours.
    pub tx: Zeroizing<Vec<u8>>,
    /// The peer's.
    pub rx: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for TlsSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No secret.
        f.debug_struct("TlsSecrets").field("suite", &self.suite).finish_non_exhaustive()
    }
}

impl TlsKeys {
    /// The keys that secrets lead to, from record zero on. They can change, as those of a handshake
    /// of ours. HKDF is that of the suite in `rustls`; `crypto` seals and opens.
    ///
    /// None where `rustls` has not the suite, or a secret has not the length of its hash.
    #[must_use]
    pub fn from_secrets(
        secrets: &TlsSecrets,
        rustls: &rustls::crypto::CryptoProvider,
        crypto: Arc<dyn CryptoProvider>,
    ) -> Option<Self> {
        let suite = secrets.suite;
        let (ours, theirs) = if secrets.is_client {
            (Sender::Client, Sender::Server)
        } else {
            (Sender::Server, Sender::Client)
        };
        let tx = TlsDirection::of_secret(&Secret::new(rustls, suite, ours, &secrets.tx)?)?;
        let rx = TlsDirection::of_secret(&Secret::new(rustls, suite, theirs, &secrets.rx)?)?;
        Some(Self { version: TlsVersion::Tls13, suite, tx, rx, crypto })
    }
}

impl TlsDirection {
    /// Returns key and iv of the records from number zero: RFC 8446 section 7.3.
    pub(super) fn of_secret(secret: &Secret) -> Option<Self> {
        let mut key = Zeroizing::new([0; 32]);
        let mut iv = [0; NONCE_BYTES];
        secret.expand(b"key", key.get_mut(..secret.suite.key_bytes())?)?;
        secret.expand(b"iv", &mut iv)?;
        Some(Self { key, iv, number: 0, secret: Some(secret.clone()) })
    }

    /// A key, of which the first [`Suite::key_bytes`] count; what nonces are made from; the number
    /// of the next record.
    #[must_use]
    pub fn new(key: &[u8; 32], iv: [u8; NONCE_BYTES], number: u64) -> Self {
        Self { key: Zeroizing::new(*key), iv, number, secret: None }
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
