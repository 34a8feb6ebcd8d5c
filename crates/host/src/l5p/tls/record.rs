//! The record layer in software: RFC 8446 section 5 and RFC 5246 section 6, for the AEAD suites.
//!
//! [`super::Session`] calls it with whole records. It knows keys, numbers and framing, and nothing
//! of what records carry. Invariants: a record's number is used once; what does not verify is never
//! shown.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;

use abi::crypto::{Aead, CryptoProvider, NONCE_BYTES, Suite, TAG_BYTES};
use rustls::ConnectionTrafficSecrets;

/// Bytes of a record's header.
pub(crate) const HEADER_BYTES: usize = 5;
/// Most bytes of content in a record: RFC 8446 section 5.1.
pub(crate) const CONTENT_BYTES_MAX: usize = 1 << 14;
/// Most bytes behind a header before the peer's record is refused: RFC 5246 section 6.2.3, of which
/// RFC 8446 section 5.2 uses less.
pub(crate) const RECORD_BYTES_MAX: usize = CONTENT_BYTES_MAX + 2048;
/// The same in TLS 1.3.
const RECORD_BYTES_MAX_13: usize = CONTENT_BYTES_MAX + 256;
/// The nonce's part that TLS 1.2 sends with each record under AES-GCM: RFC 5288 section 3.
const EXPLICIT_BYTES: usize = 8;

/// What a record carries: RFC 8446 section 5.1.
pub(crate) mod content {
    pub(crate) const ALERT: u8 = 21;
    pub(crate) const HANDSHAKE: u8 = 22;
    pub(crate) const APPLICATION_DATA: u8 = 23;
}

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

/// Which record layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Tls12,
    Tls13,
}

/// Keys of one direction.
pub(crate) struct Keys {
    aead: Box<dyn Aead>,
    version: Version,
    /// TLS 1.2 with AES-GCM: part of the nonce travels in the record.
    explicit: bool,
    iv: [u8; NONCE_BYTES],
    /// Number of the next record.
    pub(crate) number: u64,
}

impl Keys {
    /// Keys of what the handshake agreed on; none for a suite that we have no use for.
    pub(crate) fn new(
        crypto: &dyn CryptoProvider,
        version: Version,
        (number, secrets): (u64, ConnectionTrafficSecrets),
    ) -> Option<Self> {
        let (suite, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (Suite::Aes128Gcm, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (Suite::Aes256Gcm, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
                (Suite::ChaCha20Poly1305, key, iv)
            }
            _ => return None,
        };
        let explicit = version == Version::Tls12 && suite != Suite::ChaCha20Poly1305;
        let aead = crypto.aead(suite, key.as_ref())?;
        let iv = iv.as_ref().try_into().ok()?;
        Some(Self { aead, version, explicit, iv, number })
    }

    /// RFC 8446 section 5.3. TLS 1.2 with AES-GCM sends the last eight bytes of the same.
    fn nonce(&self) -> [u8; NONCE_BYTES] {
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(self.number.to_be_bytes()) {
            *byte ^= number;
        }
        nonce
    }

    /// RFC 5246 section 6.2.3.3; RFC 8446 section 5.2 has the header alone.
    fn aad_12(&self, kind: u8, len: usize) -> [u8; 13] {
        let mut aad = [0; 13];
        aad[..8].copy_from_slice(&self.number.to_be_bytes());
        aad[8..11].copy_from_slice(&[kind, 3, 3]);
        aad[11..].copy_from_slice(&length(len));
        aad
    }

    /// Appends a record with `text` to `out`. At most [`CONTENT_BYTES_MAX`] bytes.
    pub(crate) fn seal(&mut self, kind: u8, text: &[u8], out: &mut Vec<u8>) {
        debug_assert!(text.len() <= CONTENT_BYTES_MAX, "callers cut");
        let nonce = self.nonce();
        match self.version {
            Version::Tls13 => {
                let len = length(text.len() + 1 + TAG_BYTES);
                let header = [content::APPLICATION_DATA, 3, 3, len[0], len[1]];
                out.extend_from_slice(&header);
                let start = out.len();
                out.extend_from_slice(text);
                out.push(kind);
                let tag = self.aead.seal(&nonce, &header, &mut out[start..]);
                out.extend_from_slice(&tag);
            }
            Version::Tls12 => {
                let explicit = if self.explicit { EXPLICIT_BYTES } else { 0 };
                let len = length(explicit + text.len() + TAG_BYTES);
                out.extend_from_slice(&[kind, 3, 3, len[0], len[1]]);
                out.extend_from_slice(&nonce[NONCE_BYTES - explicit..]);
                let start = out.len();
                out.extend_from_slice(text);
                let aad = self.aad_12(kind, text.len());
                let tag = self.aead.seal(&nonce, &aad, &mut out[start..]);
                out.extend_from_slice(&tag);
            }
        }
        self.number += 1;
    }

    /// Opens a whole record in place; gives what it carries, and where.
    ///
    /// # Errors
    /// The alert that RFC 8446 section 5.2 or RFC 5246 section 7.2.2 asks for.
    pub(crate) fn open(&mut self, record: &mut [u8]) -> Result<(u8, Range<usize>), Alert> {
        let (kind, content) = match self.version {
            Version::Tls13 => self.open_13(record)?,
            Version::Tls12 => self.open_12(record)?,
        };
        if content.len() > CONTENT_BYTES_MAX {
            return Err(Alert::RecordOverflow);
        }
        self.number += 1;
        Ok((kind, content))
    }

    fn open_13(&self, record: &mut [u8]) -> Result<(u8, Range<usize>), Alert> {
        let (header, sealed) = record.split_at_mut(HEADER_BYTES);
        if header[0] != content::APPLICATION_DATA {
            return Err(Alert::UnexpectedMessage);
        }
        if sealed.len() > RECORD_BYTES_MAX_13 {
            return Err(Alert::RecordOverflow);
        }
        let opened = self.aead.open(&self.nonce(), header, sealed);
        let len = opened.map_err(|_| Alert::BadRecordMac)?;
        // RFC 8446 section 5.4: zeros, then the type, from the end.
        let last = sealed[..len].iter().rposition(|&byte| byte != 0);
        let last = last.ok_or(Alert::UnexpectedMessage)?;
        Ok((sealed[last], HEADER_BYTES..HEADER_BYTES + last))
    }

    fn open_12(&self, record: &mut [u8]) -> Result<(u8, Range<usize>), Alert> {
        let (header, body) = record.split_at_mut(HEADER_BYTES);
        if header[1..3] != [3, 3] {
            return Err(Alert::ProtocolVersion);
        }
        let explicit = if self.explicit { EXPLICIT_BYTES } else { 0 };
        if body.len() < explicit + TAG_BYTES {
            return Err(Alert::BadRecordMac);
        }
        let (sent, sealed) = body.split_at_mut(explicit);
        let mut nonce = self.nonce();
        nonce[NONCE_BYTES - explicit..].copy_from_slice(sent);
        let kind = header[0];
        let aad = self.aad_12(kind, sealed.len() - TAG_BYTES);
        let len = self.aead.open(&nonce, &aad, sealed).map_err(|_| Alert::BadRecordMac)?;
        let start = HEADER_BYTES + explicit;
        Ok((kind, start..start + len))
    }
}

/// A length as records carry it.
fn length(len: usize) -> [u8; 2] {
    // All callers are bounded by RECORD_BYTES_MAX.
    u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes()
}
