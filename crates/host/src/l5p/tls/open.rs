//! A session after its handshake: the keys of both directions, and the messages that change them.
//!
//! [`super::Session`] has records sealed and opened here, and hands handshake messages in. RFC 8446
//! sections 4.6.3 and 5.5: keys change when the peer says so, and ours before they have sealed too
//! much; TLS 1.2 cannot change keys and ends there.

use alloc::vec::Vec;

use abi::crypto::CryptoProvider;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{ProtocolVersion, SupportedCipherSuite};

use super::handshake::Done;
use super::record::{Alert, CONTENT_BYTES_MAX, Keys, RECORD_BYTES_MAX, Version, content};
use crate::tcp::conn::Cx;

/// Records left of a key's limit when it is changed.
const LIMIT_MARGIN: u64 = 1024;

/// Messages after the handshake: RFC 8446 section 4, RFC 5246 section 7.4.
const CLIENT_HELLO: u8 = 1;
const KEY_UPDATE: u8 = 24;

/// Keys and what makes the next.
pub(super) struct Open {
    pub(super) tx: Keys,
    pub(super) rx: Keys,
    kernel: KernelConnection<ServerConnectionData>,
    pub(super) version: Version,
    /// Records that one key may seal: RFC 8446 section 5.5.
    tx_limit: u64,
    /// Part of a message after the handshake.
    pub(super) message: Vec<u8>,
    pub(super) empty_records: u8,
}

impl Open {
    pub(super) fn new(done: Done, crypto: &dyn CryptoProvider) -> Option<Self> {
        let Done { secrets, kernel } = done;
        let version = match kernel.protocol_version() {
            ProtocolVersion::TLSv1_2 => Version::Tls12,
            ProtocolVersion::TLSv1_3 => Version::Tls13,
            _ => return None,
        };
        let common = match kernel.negotiated_cipher_suite() {
            SupportedCipherSuite::Tls13(suite) => &suite.common,
            SupportedCipherSuite::Tls12(suite) => &suite.common,
        };
        let tx_limit = common.confidentiality_limit;
        Some(Self {
            tx: Keys::new(crypto, version, secrets.tx)?,
            rx: Keys::new(crypto, version, secrets.rx)?,
            kernel,
            version,
            tx_limit,
            message: Vec::new(),
            empty_records: 0,
        })
    }

    /// A record with `text`; before it, where the key has sealed enough, one that changes the key.
    /// None where it has and cannot be changed.
    pub(super) fn seal(
        &mut self,
        crypto: &dyn CryptoProvider,
        text: &[u8],
        cx: &mut Cx<'_>,
    ) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(text.len() + RECORD_BYTES_MAX - CONTENT_BYTES_MAX);
        if self.tx.number >= self.tx_limit.saturating_sub(LIMIT_MARGIN) {
            if self.version == Version::Tls12 {
                return None;
            }
            self.update_tx(crypto, &mut out, cx)?;
        }
        self.tx.seal(content::APPLICATION_DATA, text, &mut out);
        cx.out.counters.tls_tx_records += 1;
        cx.out.counters.tls_tx_bytes += text.len() as u64;
        Some(out)
    }

    /// Acts on whole messages after the handshake; gives what is to be answered.
    pub(super) fn handle_messages(
        &mut self,
        crypto: &dyn CryptoProvider,
        cx: &mut Cx<'_>,
    ) -> Result<Vec<u8>, Alert> {
        let mut out = Vec::new();
        while let Some(&[kind, high, middle, low]) = self.message.first_chunk::<4>() {
            let len = u32::from_be_bytes([0, high, middle, low]) as usize;
            if len > CONTENT_BYTES_MAX {
                return Err(Alert::DecodeError);
            }
            let Some(body) = self.message.get(4..4 + len) else { break };
            match (self.version, kind) {
                (Version::Tls13, KEY_UPDATE) => {
                    let wants_ours = match body {
                        [0] => false,
                        [1] => true,
                        _ => return Err(Alert::DecodeError),
                    };
                    // RFC 8446 section 5.1: the last message under the old key.
                    if self.message.len() != 4 + len {
                        return Err(Alert::UnexpectedMessage);
                    }
                    self.update_rx(crypto, cx)?;
                    if wants_ours {
                        self.update_tx(crypto, &mut out, cx).ok_or(Alert::InternalError)?;
                    }
                }
                (Version::Tls12, CLIENT_HELLO) => {
                    let warning = [1, Alert::NoRenegotiation as u8];
                    self.tx.seal(content::ALERT, &warning, &mut out);
                }
                _ => return Err(Alert::UnexpectedMessage),
            }
            self.message.drain(..4 + len);
        }
        Ok(out)
    }

    fn update_rx(&mut self, crypto: &dyn CryptoProvider, cx: &mut Cx<'_>) -> Result<(), Alert> {
        cx.out.counters.tls_rx_rekey_received += 1;
        let secrets = self.kernel.update_rx_secret().map_err(|_| Alert::InternalError)?;
        self.rx = Keys::new(crypto, self.version, secrets).ok_or(Alert::InternalError)?;
        cx.out.counters.tls_rx_rekey_ok += 1;
        Ok(())
    }

    /// Says that our key changes, under the old one, and changes it.
    fn update_tx(
        &mut self,
        crypto: &dyn CryptoProvider,
        out: &mut Vec<u8>,
        cx: &mut Cx<'_>,
    ) -> Option<()> {
        /// Ours changes; the peer's need not.
        const UPDATE_NOT_REQUESTED: [u8; 5] = [KEY_UPDATE, 0, 0, 1, 0];
        self.tx.seal(content::HANDSHAKE, &UPDATE_NOT_REQUESTED, out);
        let secrets = self.kernel.update_tx_secret().ok()?;
        self.tx = Keys::new(crypto, self.version, secrets)?;
        cx.out.counters.tls_tx_rekey_ok += 1;
        Some(())
    }
}
