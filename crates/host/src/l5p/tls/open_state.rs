//! State of a session after its handshake: the keys of both directions, and the messages that
//! change them.
//!
//! [`super::HostTlsSession`] encrypts control records here, and passes handshake messages in. The
//! peer's key changes when it sends KeyUpdate, ours before the usage limit (RFC 8446 sections 4.6.3
//! and 5.5). TLS 1.2 cannot change keys, and a session fails at the limit.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::crypto::{CryptoProvider, Suite};
use bytes::Bytes;
use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{ConnectionTrafficSecrets, ExtractedSecrets, ProtocolVersion, SupportedCipherSuite};

use super::record::{CONTENT_BYTES_MAX, TlsAlert, TlsRecordKeys, TlsRecordVersion, content};
use super::secret::{SecretSender, TrafficSecret};
use super::{TlsDirection, TlsKeys};
use crate::l5p::L5pConnection;
use crate::tcp::conn::TcpEnv;

/// Records before a key's limit at which the key is changed.
pub(super) const LIMIT_MARGIN: u64 = 1024;
/// Limit of a key of unknown origin, in records: RFC 8446 section 5.5, rounded down.
const ATTACHED_LIMIT: u64 = 1 << 23;

/// Bound on messages after the handshake without data between them: each change of keys costs the
/// host a new AEAD, and perhaps the device a new context. BoringSSL has the same limit on key
/// updates.
const MESSAGES_MAX: u8 = 32;

/// Types of handshake messages: RFC 8446 section 4, RFC 5246 section 7.4.
const HELLO_REQUEST: u8 = 0;
const CLIENT_HELLO: u8 = 1;
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

/// Result of a handshake.
pub(crate) struct HandshakeResult {
    pub(crate) secrets: ExtractedSecrets,
    /// Derives the next keys.
    pub(crate) kernel: NextKeySource,
}

/// Source of the next keys.
pub(crate) enum NextKeySource {
    Server(Box<KernelConnection<ServerConnectionData>>),
    Client(Box<KernelConnection<ClientConnectionData>>),
    /// Traffic secrets that the user supplied with the keys.
    Secrets(Box<TrafficSecretPair>),
    /// Only the keys were given; they cannot change.
    Attached,
}

/// Traffic secrets of a handshake that took place elsewhere.
pub(crate) struct TrafficSecretPair {
    tx: TrafficSecret,
    rx: TrafficSecret,
}

impl NextKeySource {
    /// Returns the peer's next key.
    fn update_rx(
        &mut self,
        crypto: &dyn CryptoProvider,
        version: TlsRecordVersion,
    ) -> Option<TlsHalfState> {
        let secrets = match self {
            Self::Server(kernel) => kernel.update_rx_secret(),
            Self::Client(kernel) => kernel.update_rx_secret(),
            Self::Secrets(secrets) => return TlsHalfState::updated(crypto, &mut secrets.rx),
            Self::Attached => return None,
        };
        TlsHalfState::of_secrets(crypto, version, &secrets.ok()?)
    }

    /// Returns our next key.
    fn update_tx(
        &mut self,
        crypto: &dyn CryptoProvider,
        version: TlsRecordVersion,
    ) -> Option<TlsHalfState> {
        let secrets = match self {
            Self::Server(kernel) => kernel.update_tx_secret(),
            Self::Client(kernel) => kernel.update_tx_secret(),
            Self::Secrets(secrets) => return TlsHalfState::updated(crypto, &mut secrets.tx),
            Self::Attached => return None,
        };
        TlsHalfState::of_secrets(crypto, version, &secrets.ok()?)
    }

    /// Returns the version, and the number of records that one key may encrypt.
    fn limits(&self) -> Option<(TlsRecordVersion, u64)> {
        let (version, suite) = match self {
            Self::Server(k) => (k.protocol_version(), k.negotiated_cipher_suite()),
            Self::Client(k) => (k.protocol_version(), k.negotiated_cipher_suite()),
            Self::Secrets(_) | Self::Attached => return None,
        };
        let version = match version {
            ProtocolVersion::TLSv1_2 => TlsRecordVersion::Tls12,
            ProtocolVersion::TLSv1_3 => TlsRecordVersion::Tls13,
            _ => return None,
        };
        let common = match suite {
            SupportedCipherSuite::Tls13(suite) => &suite.common,
            SupportedCipherSuite::Tls12(suite) => &suite.common,
        };
        Some((version, common.confidentiality_limit))
    }
}

/// Keys of one direction, and the number of its next record.
pub(super) struct TlsHalfState {
    pub(super) keys: Arc<TlsRecordKeys>,
    pub(super) number: u64,
}

impl TlsHalfState {
    fn of_secrets(
        crypto: &dyn CryptoProvider,
        version: TlsRecordVersion,
        (number, secrets): &(u64, ConnectionTrafficSecrets),
    ) -> Option<Self> {
        Some(Self {
            keys: Arc::new(TlsRecordKeys::of_secrets(crypto, version, secrets)?),
            number: *number,
        })
    }

    fn of_direction(
        crypto: &dyn CryptoProvider,
        version: TlsRecordVersion,
        suite: Suite,
        direction: &TlsDirection,
    ) -> Option<Self> {
        let key = direction.key.get(..suite.key_bytes())?;
        let keys = TlsRecordKeys::new(crypto, version, suite, key, direction.iv)?;
        Some(Self { keys: Arc::new(keys), number: direction.number })
    }

    /// Replaces a secret by the next one, and returns its keys.
    fn updated(crypto: &dyn CryptoProvider, secret: &mut TrafficSecret) -> Option<Self> {
        secret.update()?;
        Self::of_direction(
            crypto,
            TlsRecordVersion::Tls13,
            secret.suite,
            &TlsDirection::of_secret(secret)?,
        )
    }

    /// Appends an encrypted record to `out`; nothing if the record numbers are exhausted (RFC 8446
    /// section 5.3: they never wrap).
    fn seal(&mut self, kind: u8, text: &[u8], out: &mut Vec<u8>) {
        if let Some(next) = self.number.checked_add(1) {
            self.keys.seal(self.number, kind, text, out);
            self.number = next;
        }
    }

    /// Notes that the record with the next number was decrypted.
    ///
    /// # Errors
    /// The record numbers are exhausted (RFC 8446 section 5.3).
    pub(super) fn advance(&mut self) -> Result<(), TlsAlert> {
        self.number = self.number.checked_add(1).ok_or(TlsAlert::InternalError)?;
        Ok(())
    }
}

/// State of a session that has keys.
pub(super) struct TlsOpenState {
    pub(super) tx: TlsHalfState,
    pub(super) rx: TlsHalfState,
    kernel: NextKeySource,
    pub(super) version: TlsRecordVersion,
    /// Records that one key may encrypt: RFC 8446 section 5.5.
    tx_limit: u64,
    /// Received part of an incomplete handshake message.
    pub(super) message: Vec<u8>,
    pub(super) empty_records: u8,
    /// The peer requests that our key changes before more data is written.
    pub(super) update_wanted: bool,
    /// Handshake messages since the last data.
    messages: u8,
}

/// Effects of handshake messages after the handshake.
#[derive(Default)]
pub(super) struct PostHandshakeEffects {
    /// The peer's next record uses another key.
    pub(super) rx: bool,
    /// The peer requests that our key changes too.
    pub(super) tx_wanted: bool,
    /// A renegotiation must be declined: RFC 5246 section 7.2.2.
    pub(super) no_renegotiation: bool,
}

impl TlsOpenState {
    /// Creates the state after a handshake. `first_record` is added to the record numbers if the
    /// key's limit allows it.
    pub(super) fn new(
        done: HandshakeResult,
        crypto: &dyn CryptoProvider,
        first_record: u64,
    ) -> Option<Self> {
        let HandshakeResult { secrets, kernel } = done;
        let (version, tx_limit) = kernel.limits()?;
        let mut tx = TlsHalfState::of_secrets(crypto, version, &secrets.tx)?;
        let mut rx = TlsHalfState::of_secrets(crypto, version, &secrets.rx)?;
        if first_record < tx_limit.saturating_sub(LIMIT_MARGIN) {
            tx.number += first_record;
            rx.number += first_record;
        }
        Some(Self {
            tx,
            rx,
            kernel,
            version,
            tx_limit,
            message: Vec::new(),
            empty_records: 0,
            update_wanted: false,
            messages: 0,
        })
    }

    /// Creates the state of a handshake that took place elsewhere.
    pub(super) fn attached(keys: &TlsKeys, crypto: &dyn CryptoProvider) -> Option<Self> {
        let half =
            |direction| TlsHalfState::of_direction(crypto, keys.version, keys.suite, direction);
        let (kernel, tx_limit) = match (&keys.tx.secret, &keys.rx.secret) {
            (Some(tx), Some(rx)) => {
                let secrets = TrafficSecretPair { tx: tx.clone(), rx: rx.clone() };
                (NextKeySource::Secrets(Box::new(secrets)), tx.limit())
            }
            // RFC 8446 section 5.5: the record numbers end before a limit is reached.
            _ if keys.suite == Suite::ChaCha20Poly1305 => (NextKeySource::Attached, u64::MAX),
            _ => (NextKeySource::Attached, ATTACHED_LIMIT),
        };
        Some(Self {
            tx: half(&keys.tx)?,
            rx: half(&keys.rx)?,
            kernel,
            version: keys.version,
            tx_limit,
            message: Vec::new(),
            empty_records: 0,
            update_wanted: false,
            messages: 0,
        })
    }

    /// Returns the number of records that the key may still encrypt before it must be changed.
    pub(super) fn tx_left(&self) -> u64 {
        self.tx_limit.saturating_sub(LIMIT_MARGIN).saturating_sub(self.tx.number)
    }

    /// Returns whether our key can be changed.
    pub(super) fn can_rekey(&self) -> bool {
        self.version == TlsRecordVersion::Tls13 && !matches!(self.kernel, NextKeySource::Attached)
    }

    /// Appends a record to the send stream, encrypted by the host.
    pub(super) fn write(&mut self, conn: &mut L5pConnection, kind: u8, text: &[u8]) {
        conn.write_unbounded(self.seal(kind, text));
    }

    /// Returns the next record, encrypted.
    pub(super) fn seal(&mut self, kind: u8, text: &[u8]) -> Bytes {
        let mut out = Vec::new();
        self.tx.seal(kind, text, &mut out);
        out.into()
    }

    /// Resets the bounds on records and messages without data.
    pub(super) const fn note_data(&mut self) {
        (self.empty_records, self.messages) = (0, 0);
    }

    /// Handles the complete handshake messages.
    pub(super) fn handle_messages(
        &mut self,
        crypto: &dyn CryptoProvider,
        cx: &mut TcpEnv<'_>,
    ) -> Result<PostHandshakeEffects, TlsAlert> {
        let mut changes = PostHandshakeEffects::default();
        while let Some(&[kind, high, middle, low]) = self.message.first_chunk::<4>() {
            let len = u32::from_be_bytes([0, high, middle, low]) as usize;
            if len > CONTENT_BYTES_MAX {
                return Err(TlsAlert::DecodeError);
            }
            let Some(body) = self.message.get(4..4 + len) else { break };
            self.messages += 1;
            if self.messages > MESSAGES_MAX {
                return Err(TlsAlert::UnexpectedMessage);
            }
            match (self.version, kind, &mut self.kernel) {
                (TlsRecordVersion::Tls13, KEY_UPDATE, _) => {
                    changes.tx_wanted = match body {
                        [0] => false,
                        [1] => true,
                        _ => return Err(TlsAlert::DecodeError),
                    };
                    // RFC 8446 section 5.1: no message follows KeyUpdate under the old key.
                    if self.message.len() != 4 + len {
                        return Err(TlsAlert::UnexpectedMessage);
                    }
                    self.update_rx(crypto, cx)?;
                    changes.rx = true;
                }
                (TlsRecordVersion::Tls13, NEW_SESSION_TICKET, NextKeySource::Client(kernel)) => {
                    // A ticket that cannot be stored is no reason to fail.
                    let _ = kernel.handle_new_session_ticket(body);
                }
                // Without a ticket store the ticket is ignored, as RFC 8446 section 4.6.1 permits.
                (TlsRecordVersion::Tls13, NEW_SESSION_TICKET, NextKeySource::Secrets(secrets))
                    if secrets.tx.sender == SecretSender::Client => {}
                (TlsRecordVersion::Tls12, CLIENT_HELLO, NextKeySource::Server(_))
                | (TlsRecordVersion::Tls12, HELLO_REQUEST, NextKeySource::Client(_)) => {
                    changes.no_renegotiation = true;
                }
                _ => return Err(TlsAlert::UnexpectedMessage),
            }
            self.message.drain(..4 + len);
        }
        Ok(changes)
    }

    fn update_rx(
        &mut self,
        crypto: &dyn CryptoProvider,
        cx: &mut TcpEnv<'_>,
    ) -> Result<(), TlsAlert> {
        cx.out.counters.tls_rx_rekey_received += 1;
        if matches!(self.kernel, NextKeySource::Attached) {
            return Err(TlsAlert::UnexpectedMessage);
        }
        let next = self.kernel.update_rx(crypto, self.version);
        self.rx = next.ok_or(TlsAlert::InternalError)?;
        cx.out.counters.tls_rx_rekey_ok += 1;
        Ok(())
    }

    /// Changes our key, and returns the KeyUpdate record, encrypted with the old key. `None` if the
    /// key cannot be changed.
    pub(super) fn update_tx(
        &mut self,
        crypto: &dyn CryptoProvider,
        cx: &mut TcpEnv<'_>,
    ) -> Option<Bytes> {
        /// Only our key changes.
        const UPDATE_NOT_REQUESTED: [u8; 5] = [KEY_UPDATE, 0, 0, 1, 0];
        if !self.can_rekey() {
            return None;
        }
        let record = self.seal(content::HANDSHAKE, &UPDATE_NOT_REQUESTED);
        self.tx = self.kernel.update_tx(crypto, self.version)?;
        cx.out.counters.tls_tx_rekey_ok += 1;
        Some(record)
    }
}
