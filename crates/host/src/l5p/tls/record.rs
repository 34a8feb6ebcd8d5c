//! Keys of one direction, and the record layer in software: RFC 8446 section 5 and RFC 5246 section
//! 6, for the AEAD suites.
//!
//! [`super::Session`] opens whole records here, [`super::sealer`] seals what the device does not.
//! Numbers come from the callers. Invariants: what does not verify is never shown; a key leaves
//! only towards the device ([`Keys::state`]).

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use abi::crypto::{Aead, CryptoProvider, NONCE_BYTES, Suite, TAG_BYTES};
use abi::l5o::{TlsState, framing};
use rustls::ConnectionTrafficSecrets;
pub(crate) use wire::tls::{CONTENT_BYTES_MAX, HEADER_BYTES, RECORD_BYTES_MAX, Version, content};
use wire::tls::{Framing, RECORD_BYTES_MAX_13};
use zeroize::Zeroizing;

/// Alerts that we send: RFC 8446 section 6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Alert {
    /// The end of what is sent.
    CloseNotify = 0,
    /// A record that nobody may send now.
    UnexpectedMessage = 10,
    /// A record that does not verify.
    BadRecordMac = 20,
    /// A record that is too long.
    RecordOverflow = 22,
    /// A message that cannot be read.
    DecodeError = 50,
    /// A version that was not agreed on.
    ProtocolVersion = 70,
    /// Something of our own failed.
    InternalError = 80,
    /// RFC 5246 section 7.2.2: we do not negotiate again.
    NoRenegotiation = 100,
}

/// Keys of one direction.
pub(crate) struct Keys {
    aead: Box<dyn Aead>,
    pub(crate) suite: Suite,
    pub(crate) framing: Framing,
    key: Zeroizing<[u8; 32]>,
    iv: [u8; NONCE_BYTES],
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("suite", &self.suite).finish_non_exhaustive()
    }
}

impl Keys {
    /// Keys of what a handshake agreed on; none for a suite that we have no use for.
    pub(crate) fn of_secrets(
        crypto: &dyn CryptoProvider,
        version: Version,
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

    /// Keys as they are; none where `key` has not the suite's length.
    pub(crate) fn new(
        crypto: &dyn CryptoProvider,
        version: Version,
        suite: Suite,
        key: &[u8],
        iv: [u8; NONCE_BYTES],
    ) -> Option<Self> {
        let aead = crypto.aead(suite, key)?;
        let mut kept = Zeroizing::new([0; 32]);
        kept.get_mut(..key.len())?.copy_from_slice(key);
        Some(Self { aead, suite, framing: framing(version, suite), key: kept, iv })
    }

    /// What a device needs to go on from record `number`.
    pub(crate) fn state(&self, number: u64) -> TlsState {
        TlsState {
            version: self.framing.version,
            suite: self.suite,
            key: self.key.clone(),
            iv: self.iv,
            number,
        }
    }

    /// Appends record `number` with `text` to `out`. At most [`CONTENT_BYTES_MAX`] bytes.
    pub(crate) fn seal(&self, number: u64, kind: u8, text: &[u8], out: &mut Vec<u8>) {
        debug_assert!(text.len() <= CONTENT_BYTES_MAX, "callers cut");
        let nonce = self.framing.nonce(&self.iv, number);
        let mut front = [0; Framing::FRONT_BYTES_MAX];
        let front_len = self.framing.write_front(kind, text.len(), &nonce, &mut front);
        out.extend_from_slice(&front[..front_len]);
        let start = out.len();
        out.extend_from_slice(text);
        if self.framing.inner() > 0 {
            out.push(kind);
        }
        let (aad, aad_len) = self.framing.aad(number, kind, out.len() - start);
        let tag = self.aead.seal(&nonce, &aad[..aad_len], &mut out[start..]);
        out.extend_from_slice(&tag);
    }

    /// Opens record `number`, whole, in place; gives what it carries, and where.
    ///
    /// # Errors
    /// The alert that RFC 8446 section 5.2 or RFC 5246 section 7.2.2 asks for.
    pub(crate) fn open(&self, number: u64, record: &mut [u8]) -> Result<(u8, Range<usize>), Alert> {
        let kind = self.check(record)?;
        let front_len = self.framing.front();
        let mut front = [0; Framing::FRONT_BYTES_MAX];
        front[..front_len].copy_from_slice(&record[..front_len]);
        let nonce = self.framing.nonce_of(&self.iv, number, &front);
        let sealed = &mut record[front_len..];
        let (mut aad, aad_len) = self.framing.aad(number, kind, sealed.len() - TAG_BYTES);
        if self.framing.version == Version::Tls13 {
            // As it came: a version that was changed on the way is not ours to mend.
            aad[..HEADER_BYTES].copy_from_slice(&front[..HEADER_BYTES]);
        }
        let opened = self.aead.open(&nonce, &aad[..aad_len], sealed);
        let len = opened.map_err(|_| Alert::BadRecordMac)?;
        let (kind, end) = match self.framing.version {
            Version::Tls12 => (kind, len),
            Version::Tls13 => {
                // RFC 8446 section 5.4: zeros, then the type, from the end.
                let last = sealed[..len].iter().rposition(|&byte| byte != 0);
                let last = last.ok_or(Alert::UnexpectedMessage)?;
                (sealed[last], last)
            }
        };
        if end > CONTENT_BYTES_MAX {
            return Err(Alert::RecordOverflow);
        }
        Ok((kind, front_len..front_len + end))
    }

    /// The header's part of opening: gives the outer content type.
    fn check(&self, record: &[u8]) -> Result<u8, Alert> {
        let kind = record[0];
        let sealed = record.len() - HEADER_BYTES;
        match self.framing.version {
            Version::Tls13 if kind != content::APPLICATION_DATA => {
                return Err(Alert::UnexpectedMessage);
            }
            Version::Tls13 if sealed > RECORD_BYTES_MAX_13 => return Err(Alert::RecordOverflow),
            Version::Tls12 if record[1..3] != [3, 3] => return Err(Alert::ProtocolVersion),
            _ => {}
        }
        if sealed < self.framing.front() - HEADER_BYTES + TAG_BYTES {
            return Err(Alert::BadRecordMac);
        }
        Ok(kind)
    }

    /// Seals again what a device opened as part of record `number`: `bytes`, which begin at
    /// `offset` of the sealed text. Counter mode undoes itself.
    pub(crate) fn restore(&self, number: u64, explicit: [u8; 8], offset: u64, bytes: &mut [u8]) {
        let mut front = [0; Framing::FRONT_BYTES_MAX];
        front[HEADER_BYTES..].copy_from_slice(&explicit);
        let nonce = self.framing.nonce_of(&self.iv, number, &front);
        self.aead.apply(&nonce, offset, bytes);
    }
}
