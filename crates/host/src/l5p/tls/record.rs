//! Keys of one direction, and the record layer in software: RFC 8446 section 5 and RFC 5246 section
//! 6, for AEAD suites.
//!
//! [`super::HostTlsSession`] decrypts whole records here, and [`super::tx_keys`] encrypts those
//! that the device does not. Record numbers come from the callers. Invariants: content that fails
//! authentication is never shown; a key is passed only to the device ([`TlsRecordKeys::state`]).

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use abi::crypto::{Aead, CryptoProvider, NONCE_BYTES, Suite, TAG_BYTES};
use abi::l5o::{TlsState, framing};
use rustls::ConnectionTrafficSecrets;
pub(crate) use wire::tls::{
    CONTENT_BYTES_MAX, HEADER_BYTES, RECORD_BYTES_MAX, TlsRecordVersion, content,
};
use wire::tls::{RECORD_BYTES_MAX_13, TlsFraming};
use zeroize::Zeroizing;

/// Alerts that the host sends: RFC 8446 section 6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TlsAlert {
    /// Our direction is closed.
    CloseNotify = 0,
    /// A record or message that is not allowed now.
    UnexpectedMessage = 10,
    /// A record that fails authentication.
    BadRecordMac = 20,
    /// A record that is too long.
    RecordOverflow = 22,
    /// A message that cannot be parsed.
    DecodeError = 50,
    /// A record of a version that was not negotiated.
    ProtocolVersion = 70,
    /// An error of this host.
    InternalError = 80,
    /// A renegotiation is declined: RFC 5246 section 7.2.2.
    NoRenegotiation = 100,
}

/// Keys of one direction.
pub(crate) struct TlsRecordKeys {
    aead: Box<dyn Aead>,
    pub(crate) suite: Suite,
    pub(crate) framing: TlsFraming,
    key: Zeroizing<[u8; 32]>,
    iv: [u8; NONCE_BYTES],
}

impl fmt::Debug for TlsRecordKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsRecordKeys").field("suite", &self.suite).finish_non_exhaustive()
    }
}

impl TlsRecordKeys {
    /// Creates the keys that a handshake negotiated; `None` if the suite is not supported.
    pub(crate) fn of_secrets(
        crypto: &dyn CryptoProvider,
        version: TlsRecordVersion,
        secrets: &ConnectionTrafficSecrets,
    ) -> Option<Self> {
        let (suite, key, iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (Suite::Aes128Gcm, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (Suite::Aes256Gcm, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
                (Suite::ChaCha20Poly1305, key, iv)
            }
            _ => return None,
        };
        Self::new(crypto, version, suite, key.as_ref(), iv.as_ref().try_into().ok()?)
    }

    /// Creates keys; `None` if `key` does not have the suite's length.
    pub(crate) fn new(
        crypto: &dyn CryptoProvider,
        version: TlsRecordVersion,
        suite: Suite,
        key: &[u8],
        iv: [u8; NONCE_BYTES],
    ) -> Option<Self> {
        let aead = crypto.aead(suite, key)?;
        let mut kept = Zeroizing::new([0; 32]);
        kept.get_mut(..key.len())?.copy_from_slice(key);
        Some(Self { aead, suite, framing: framing(version, suite), key: kept, iv })
    }

    /// Returns the state of a context that begins with record `number`.
    pub(crate) fn state(&self, number: u64) -> TlsState {
        TlsState {
            version: self.framing.version,
            suite: self.suite,
            key: self.key.clone(),
            iv: self.iv,
            number,
        }
    }

    /// Appends record `number` with the content `text`, at most [`CONTENT_BYTES_MAX`] bytes, to
    /// `out`.
    pub(crate) fn seal(&self, number: u64, kind: u8, text: &[u8], out: &mut Vec<u8>) {
        debug_assert!(text.len() <= CONTENT_BYTES_MAX, "callers cut");
        let nonce = self.framing.nonce(&self.iv, number);
        let mut front = [0; TlsFraming::FULL_HEADER_BYTES_MAX];
        let front_len = self.framing.write_full_header(kind, text.len(), &nonce, &mut front);
        out.extend_from_slice(&front[..front_len]);
        let start = out.len();
        out.extend_from_slice(text);
        if self.framing.inner_type_len() > 0 {
            out.push(kind);
        }
        let (aad, aad_len) = self.framing.aad(number, kind, out.len() - start);
        let tag = self.aead.seal(&nonce, &aad[..aad_len], &mut out[start..]);
        out.extend_from_slice(&tag);
    }

    /// Decrypts record `number`, whole, in place. Returns its content type and the range of its
    /// content.
    ///
    /// # Errors
    /// The alert that RFC 8446 section 5.2 or RFC 5246 section 7.2.2 requires.
    pub(crate) fn open(
        &self,
        number: u64,
        record: &mut [u8],
    ) -> Result<(u8, Range<usize>), TlsAlert> {
        let kind = self.check(record)?;
        let front_len = self.framing.full_header_len();
        let mut front = [0; TlsFraming::FULL_HEADER_BYTES_MAX];
        front[..front_len].copy_from_slice(&record[..front_len]);
        let nonce = self.framing.received_nonce(&self.iv, number, &front);
        let sealed = &mut record[front_len..];
        let (mut aad, aad_len) = self.framing.aad(number, kind, sealed.len() - TAG_BYTES);
        if self.framing.version == TlsRecordVersion::Tls13 {
            // The header as received: a modified version must fail authentication.
            aad[..HEADER_BYTES].copy_from_slice(&front[..HEADER_BYTES]);
        }
        let opened = self.aead.open(&nonce, &aad[..aad_len], sealed);
        let len = opened.map_err(|_| TlsAlert::BadRecordMac)?;
        let (kind, end) = match self.framing.version {
            TlsRecordVersion::Tls12 => (kind, len),
            TlsRecordVersion::Tls13 => {
                // RFC 8446 section 5.4: the content type precedes the zero padding at the end.
                let last = sealed[..len].iter().rposition(|&byte| byte != 0);
                let last = last.ok_or(TlsAlert::UnexpectedMessage)?;
                (sealed[last], last)
            }
        };
        if end > CONTENT_BYTES_MAX {
            return Err(TlsAlert::RecordOverflow);
        }
        Ok((kind, front_len..front_len + end))
    }

    /// Checks the header, and returns the outer content type.
    fn check(&self, record: &[u8]) -> Result<u8, TlsAlert> {
        let kind = record[0];
        let sealed = record.len() - HEADER_BYTES;
        match self.framing.version {
            TlsRecordVersion::Tls13 if kind != content::APPLICATION_DATA => {
                return Err(TlsAlert::UnexpectedMessage);
            }
            TlsRecordVersion::Tls13 if sealed > RECORD_BYTES_MAX_13 => {
                return Err(TlsAlert::RecordOverflow);
            }
            TlsRecordVersion::Tls12 if record[1..3] != [3, 3] => {
                return Err(TlsAlert::ProtocolVersion);
            }
            _ => {}
        }
        if sealed < self.framing.full_header_len() - HEADER_BYTES + TAG_BYTES {
            return Err(TlsAlert::BadRecordMac);
        }
        Ok(kind)
    }

    /// Encrypts again what a device decrypted as part of record `number`: `bytes`, which begin at
    /// `offset` of the encrypted text. Applying the keystream again reverts the decryption.
    pub(crate) fn restore(&self, number: u64, explicit: [u8; 8], offset: u64, bytes: &mut [u8]) {
        let mut front = [0; TlsFraming::FULL_HEADER_BYTES_MAX];
        front[HEADER_BYTES..].copy_from_slice(&explicit);
        let nonce = self.framing.received_nonce(&self.iv, number, &front);
        self.aead.apply_keystream(&nonce, offset, bytes);
    }
}
