//! QUIC header protection (RFC 9001 section 5.4). Called by [`crate::Provider`] only; wraps aws-lc,
//! and knows no packet layout.

use abi::crypto::{HeaderProtection, SAMPLE_BYTES, Suite};
use aws_lc_rs::aead::quic;

/// A header protection key.
pub(crate) struct HeaderMaskKey(quic::HeaderProtectionKey);

impl HeaderMaskKey {
    /// Returns `None` if `key` has the wrong length.
    pub(crate) fn new(suite: Suite, key: &[u8]) -> Option<Self> {
        let algorithm = match suite {
            Suite::Aes128Gcm => &quic::AES_128,
            Suite::Aes256Gcm => &quic::AES_256,
            Suite::ChaCha20Poly1305 => &quic::CHACHA20,
        };
        quic::HeaderProtectionKey::new(algorithm, key).ok().map(Self)
    }
}

impl HeaderProtection for HeaderMaskKey {
    fn mask(&self, sample: &[u8; SAMPLE_BYTES]) -> [u8; 5] {
        // Never fails for a sample of this length. If it did, no packet would be readable.
        self.0.new_mask(sample).unwrap_or_default()
    }
}
