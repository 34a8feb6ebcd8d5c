//! Encryption and decryption of a whole text in one call, by aws-lc with the instructions that this
//! CPU has.
//!
//! Called by the suites for `seal` and `open`, and by [`crate::gcm`], which gets GHASH from the tag
//! of a text that is all associated data. Knows nothing of ranges.

use abi::crypto::{BadTag, NONCE_BYTES, Suite, TAG_BYTES};
use aws_lc_rs::aead;

/// A key of aws-lc, which wipes it when dropped.
pub(crate) struct WholeTextKey(aead::LessSafeKey);

impl WholeTextKey {
    /// Returns `None` if `key` has the wrong length.
    pub(crate) fn new(suite: Suite, key: &[u8]) -> Option<Self> {
        let algorithm = match suite {
            Suite::Aes128Gcm => &aead::AES_128_GCM,
            Suite::Aes256Gcm => &aead::AES_256_GCM,
            Suite::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
        };
        let key = aead::UnboundKey::new(algorithm, key).ok()?;
        Some(Self(aead::LessSafeKey::new(key)))
    }

    pub(crate) fn seal(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        text: &mut [u8],
    ) -> [u8; TAG_BYTES] {
        let nonce = aead::Nonce::assume_unique_for_key(*nonce);
        let sealed = self.0.seal_in_place_separate_tag(nonce, aead::Aad::from(aad), text);
        let mut tag = [0; TAG_BYTES];
        match sealed {
            Ok(sealed) => tag.copy_from_slice(sealed.as_ref()),
            // Only for texts of 64 GiB: plaintext must not be taken for ciphertext.
            Err(_) => text.fill(0),
        }
        tag
    }

    pub(crate) fn open(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        sealed: &mut [u8],
    ) -> Result<usize, BadTag> {
        let nonce = aead::Nonce::assume_unique_for_key(*nonce);
        let text = self.0.open_in_place(nonce, aead::Aad::from(aad), sealed);
        text.map(|text| text.len()).map_err(|_| BadTag)
    }
}
