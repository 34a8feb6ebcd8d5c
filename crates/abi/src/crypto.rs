//! Crypto as host and device see it: keys that seal and open, made by a provider that is injected.
//!
//! Both sides of the contract do authenticated encryption, the device where it can and the host
//! where it cannot, and their results have to be the same bytes. So both get one
//! [`CryptoProvider`], made by whoever starts them; a simulation that is not about crypto may
//! inject one that costs nothing. There is no crypto in this crate.

use alloc::boxed::Box;

/// Authenticated encryption of TLS 1.2, TLS 1.3 and QUIC: all with nonces of 12 bytes and tags of
/// 16 (RFC 5116, RFC 8439).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Suite {
    /// AES-128-GCM.
    Aes128Gcm,
    /// AES-256-GCM.
    Aes256Gcm,
    /// ChaCha20-Poly1305.
    ChaCha20Poly1305,
}

impl Suite {
    /// Bytes of a key.
    #[must_use]
    pub const fn key_bytes(self) -> usize {
        match self {
            Self::Aes128Gcm => 16,
            Self::Aes256Gcm | Self::ChaCha20Poly1305 => 32,
        }
    }
}

/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 12;
/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;

/// What did not verify: it was not sealed with this key, nonce and associated data, or was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadTag;

/// Makes keys.
pub trait CryptoProvider: Send + Sync {
    /// A key of a suite; none where `key` has the wrong length.
    fn aead(&self, suite: Suite, key: &[u8]) -> Option<Box<dyn Aead>>;
}

/// A key of one suite. Dropping it wipes the key.
pub trait Aead: Send + Sync {
    /// Seals `text` in place; gives its tag.
    fn seal(&self, nonce: &[u8; NONCE_BYTES], aad: &[u8], text: &mut [u8]) -> [u8; TAG_BYTES];

    /// Opens `sealed`, a text and its tag behind it, in place; gives the text's length.
    ///
    /// # Errors
    /// Where the tag is not that of the text, or there is no room for one; what `sealed` holds then
    /// is unspecified, and is no plaintext.
    fn open(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        sealed: &mut [u8],
    ) -> Result<usize, BadTag>;
}
