//! TLS 1.3 handshake with an external pre-shared key (RFC 8446 section 2.2) and ephemeral keys
//! (`psk_dhe_ke`, section 4.2.9).
//!
//! Used by NVMe over TCP, whose target and initiator run the handshake over a plain connection and
//! continue with its keys. s2n-tls does the work, since rustls supports only pre-shared keys from
//! its own tickets. The crate is separate because it passes bytes by C callbacks (`s2n_io`). It
//! uses no socket: received bytes are passed in, bytes to send are returned.
//!
//! Invariants: bytes after the handshake's last record are never read; no ticket is sent (Linux
//! drops a connection that receives one); neither end has a certificate, so no handshake succeeds
//! without a pre-shared key; the bytes read from a peer are limited by `BYTES_MAX`.
#![deny(unsafe_code)]

mod records;
mod s2n_io;

#[cfg(test)]
mod tests;

use std::fmt;
use std::task::Poll;

use abi::crypto::Suite;
use s2n_tls::config::Config;
use s2n_tls::connection::Connection;
use s2n_tls::enums::{Blinding, Mode, PskHmac, SerializationVersion};
use s2n_tls::error::Error;
use s2n_tls::psk::Psk;
use s2n_tls::security::Policy;
use wire::tls::fatal_alert;
use zeroize::Zeroizing;

use records::TlsRecordTracker;
use s2n_io::S2nIo;

/// Limit on the received bytes of a handshake. A ClientHello with a few identities has about 1000.
const BYTES_MAX: usize = 1 << 16;
/// TLS 1.3 only; X25519, P-256 and P-384; AES-128-GCM, AES-256-GCM and ChaCha20-Poly1305.
const POLICY: &str = "AWS-CRT-SDK-TLSv1.3";
/// TLS 1.3 only; P-384; AES-256-GCM.
const POLICY_SHA384: &str = "20250211";

/// A pre-shared key, or a traffic secret.
pub type TlsSecret = Zeroizing<Vec<u8>>;

/// Hash of a key (RFC 8446 section 4.2.11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsPskHash {
    /// SHA-256, for AES-128-GCM or ChaCha20-Poly1305.
    Sha256,
    /// SHA-384, for AES-256-GCM.
    Sha384,
}

/// An external pre-shared key.
#[derive(Clone)]
pub struct ExternalPsk {
    /// Identity, sent in the ClientHello.
    pub identity: Vec<u8>,
    /// The key, at least 16 bytes (RFC 9257 section 6).
    pub secret: TlsSecret,
    /// Hash of the key.
    pub hash: TlsPskHash,
}

impl fmt::Debug for ExternalPsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The identity and the secret are not printed.
        f.debug_struct("ExternalPsk").field("hash", &self.hash).finish_non_exhaustive()
    }
}

/// Result of a successful handshake.
pub struct TlsPskSecrets {
    /// AEAD of the following records.
    pub suite: Suite,
    /// Our traffic secret: `client_application_traffic_secret_0` or the server's (RFC 8446 section
    /// 7.1).
    pub tx_secret: TlsSecret,
    /// The peer's traffic secret.
    pub rx_secret: TlsSecret,
    /// Identity of the key that was used.
    pub identity: Vec<u8>,
}

impl fmt::Debug for TlsPskSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsPskSecrets").field("suite", &self.suite).finish_non_exhaustive()
    }
}

/// Result of [`TlsPskHandshake::advance`].
#[derive(Debug)]
pub enum TlsPskProgress {
    /// The handshake needs more bytes.
    More {
        /// Bytes of `received` that were used.
        used: usize,
    },
    /// The handshake is complete. The next records of both directions have number zero.
    Done {
        /// Bytes of `received` that were used.
        used: usize,
        /// The keys.
        secrets: Box<TlsPskSecrets>,
    },
    /// The handshake failed.
    Failed {
        /// Bytes of `received` that were used.
        used: usize,
        /// Reason of the failure.
        reason: TlsPskFailure,
    },
}

/// Reason for which a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsPskFailure {
    /// The peer sent an alert (RFC 8446 section 6.2).
    #[error("peer sent alert {0}")]
    Alert(u8),
    /// The peer does not support TLS 1.3.
    #[error("peer does not use TLS 1.3")]
    Version,
    /// The peer offered no key of ours, or accepted none.
    #[error("peer does not know the identity of this key")]
    NoKey,
    /// The peer has a different secret for the same identity.
    #[error("peer has a different key for this identity")]
    SecretMismatch,
    /// The peer's messages are malformed or do not verify.
    #[error("malformed messages from the peer")]
    InvalidMessage,
    /// The peer sent more than `BYTES_MAX` bytes.
    #[error("messages from the peer are too long")]
    TooLong,
}

/// One end of a handshake.
pub struct TlsPskHandshake {
    // Declared before the link, so that it is dropped first: it has a pointer to the link's pipe.
    connection: Connection,
    link: S2nIo,
    is_client: bool,
    sent: TlsRecordTracker,
    received: TlsRecordTracker,
    /// Received bytes used so far.
    used: usize,
}

impl fmt::Debug for TlsPskHandshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsPskHandshake")
            .field("is_client", &self.is_client)
            .finish_non_exhaustive()
    }
}

/// Alerts (RFC 8446 section 6.2).
mod alert {
    pub(super) const HANDSHAKE_FAILURE: u8 = 40;
    pub(super) const DECODE_ERROR: u8 = 50;
    pub(super) const DECRYPT_ERROR: u8 = 51;
    pub(super) const PROTOCOL_VERSION: u8 = 70;
}

impl TlsPskHandshake {
    /// Creates a client that offers these keys.
    ///
    /// # Errors
    /// The library rejects a key, or has no memory.
    pub fn client(keys: &[ExternalPsk]) -> Result<Self, TlsPskSetupError> {
        Self::new(Mode::Client, keys)
    }

    /// Creates a server with these keys. Each key costs a copy and a comparison with those before
    /// it; if there are many, pass only those that the client has offered.
    ///
    /// # Errors
    /// As for [`Self::client`].
    pub fn server(keys: &[ExternalPsk]) -> Result<Self, TlsPskSetupError> {
        Self::new(Mode::Server, keys)
    }

    fn new(mode: Mode, keys: &[ExternalPsk]) -> Result<Self, TlsPskSetupError> {
        let is_client = matches!(mode, Mode::Client);
        let mut connection = Connection::new(mode);
        let link = S2nIo::new();
        link.attach(&mut connection)?;
        // Blinding delays are left to the caller, who ends the connection.
        connection
            .set_config(config(policy(is_client, keys))?)?
            .set_blinding(Blinding::SelfService)?;
        for key in keys {
            connection.append_psk(&psk(key)?)?;
        }
        let (sent, received) = (TlsRecordTracker::default(), TlsRecordTracker::default());
        Ok(Self { connection, link, is_client, sent, received, used: 0 })
    }

    /// Processes received bytes and appends bytes to be sent to `out`, including an alert. Call it
    /// first with no bytes, then with received bytes; unused bytes have to be passed again. Not to
    /// be called after [`TlsPskProgress::Done`] or [`TlsPskProgress::Failed`].
    pub fn advance(&mut self, received: &[u8], out: &mut Vec<u8>) -> TlsPskProgress {
        let room = BYTES_MAX.saturating_sub(self.used);
        let part = received.get(..room).unwrap_or(received);
        self.link.set_received(part);
        let result = self.connection.poll_negotiate().map_ok(|_| ());
        let (used, sent) = self.link.take_sent();
        self.used += used;
        self.received.follow(part.get(..used).unwrap_or_default());
        self.sent.follow(&sent);
        out.extend_from_slice(&sent);
        let result = match result {
            Poll::Pending if self.used < BYTES_MAX => return TlsPskProgress::More { used },
            Poll::Pending => Err((TlsPskFailure::TooLong, alert::DECODE_ERROR)),
            Poll::Ready(Err(error)) => Err(self.why(&error)),
            Poll::Ready(Ok(())) => {
                self.agreed().ok_or((TlsPskFailure::NoKey, alert::HANDSHAKE_FAILURE))
            }
        };
        match result {
            Ok(agreed) => TlsPskProgress::Done { used, secrets: Box::new(agreed) },
            Err((why, alert)) => {
                self.alert(why, alert, out);
                TlsPskProgress::Failed { used, reason: why }
            }
        }
    }

    /// Returns the reason for a library error, and the alert for it.
    fn why(&self, error: &Error) -> (TlsPskFailure, u8) {
        if let Some(theirs) = self.connection.alert() {
            return (TlsPskFailure::Alert(theirs), 0);
        }
        match error.name() {
            "S2N_ERR_PROTOCOL_VERSION_UNSUPPORTED" => {
                (TlsPskFailure::Version, alert::PROTOCOL_VERSION)
            }
            // The library reports these if neither a key nor a certificate can be used.
            "S2N_ERR_NO_VALID_SIGNATURE_SCHEME" | "S2N_ERR_CIPHER_NOT_SUPPORTED" => {
                (TlsPskFailure::NoKey, alert::HANDSHAKE_FAILURE)
            }
            // RFC 8446 section 4.2.11: the identity is known, but its binder does not verify.
            _ if !self.is_client && self.has_chosen() => {
                (TlsPskFailure::SecretMismatch, alert::DECRYPT_ERROR)
            }
            _ => (TlsPskFailure::InvalidMessage, alert::HANDSHAKE_FAILURE),
        }
    }

    /// Returns whether one of the client's identities is known.
    fn has_chosen(&self) -> bool {
        self.connection.negotiated_psk_identity_length().is_ok_and(|len| len > 0)
    }

    /// Appends a plaintext alert, unless encrypted records were exchanged, the library has sent an
    /// alert, or the failure is the peer's alert.
    fn alert(&mut self, why: TlsPskFailure, description: u8, out: &mut Vec<u8>) {
        let sealed = self.sent.encrypted || self.received.encrypted;
        if !sealed && !self.sent.alert && !matches!(why, TlsPskFailure::Alert(_)) {
            out.extend_from_slice(&fatal_alert(description));
        }
    }

    /// Returns the keys; `None` if the library finished without a pre-shared key.
    fn agreed(&mut self) -> Option<TlsPskSecrets> {
        if !self.received.is_whole() {
            return None;
        }
        let len = self.connection.negotiated_psk_identity_length().ok().filter(|&len| len > 0)?;
        let mut identity = vec![0; len];
        self.connection.negotiated_psk_identity(&mut identity).ok()?;
        let (suite, client, server) = self.secrets()?;
        let (tx_secret, rx_secret) =
            if self.is_client { (client, server) } else { (server, client) };
        Some(TlsPskSecrets { suite, tx_secret, rx_secret, identity })
    }

    /// Returns the suite, and the secrets of client and server. The library discards the secrets;
    /// they are read from the serialized connection, its form for continuing a connection
    /// elsewhere.
    fn secrets(&mut self) -> Option<(Suite, TlsSecret, TlsSecret)> {
        /// Version of the serialization, and protocol version 3.4.
        const HEAD: [u8; 10] = [0, 0, 0, 0, 0, 0, 0, 1, 3, 4];
        let mut form = Zeroizing::new(vec![0; self.connection.serialization_length().ok()?]);
        self.connection.serialize(&mut form).ok()?;
        let rest = form.strip_prefix(&HEAD)?;
        let (suite, rest) = rest.split_first_chunk()?;
        // RFC 8446 appendix B.4.
        let (suite, hash_bytes) = match u16::from_be_bytes(*suite) {
            0x1301 => (Suite::Aes128Gcm, 32),
            0x1302 => (Suite::Aes256Gcm, 48),
            0x1303 => (Suite::ChaCha20Poly1305, 32),
            _ => return None,
        };
        // Skips the next record numbers of client and server, and the longest fragment.
        let rest = rest.strip_prefix(&[0; 16])?.get(2..)?;
        let secret = |nth: usize| {
            let bytes = rest.get(nth * hash_bytes..)?.get(..hash_bytes)?;
            Some(Zeroizing::new(bytes.to_vec()))
        };
        Some((suite, secret(0)?, secret(1)?))
    }
}

/// The library rejects a key, or has no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("TLS library error: {0}")]
pub struct TlsPskSetupError(&'static str);

impl From<Error> for TlsPskSetupError {
    fn from(error: Error) -> Self {
        Self(error.message())
    }
}

/// Returns the security policy for an end with these keys. A server uses the suite of the chosen
/// key. A client whose keys are all of SHA-384 offers no other suite: OpenSSL's servers choose the
/// suite first, and then ignore keys that do not match it.
fn policy(is_client: bool, keys: &[ExternalPsk]) -> &'static str {
    let is_sha384 = |key: &ExternalPsk| key.hash == TlsPskHash::Sha384;
    if is_client && !keys.is_empty() && keys.iter().all(is_sha384) { POLICY_SHA384 } else { POLICY }
}

fn config(policy: &str) -> Result<Config, Error> {
    let mut config = Config::builder();
    // No certificates, no trust anchors, no tickets.
    config.with_system_certs(false)?;
    config.set_security_policy(&Policy::from_version(policy)?)?;
    config.set_serialization_version(SerializationVersion::V1)?;
    config.build()
}

fn psk(key: &ExternalPsk) -> Result<Psk, Error> {
    let mut psk = Psk::builder()?;
    psk.set_identity(&key.identity)?.set_secret(&key.secret)?.set_hmac(match key.hash {
        TlsPskHash::Sha256 => PskHmac::SHA256,
        TlsPskHash::Sha384 => PskHmac::SHA384,
    })?;
    psk.build()
}
