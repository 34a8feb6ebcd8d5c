//! The crypto provider that Outboard runs with: `abi`'s [`CryptoProvider`] over aws-lc.
//!
//! The program makes one [`Provider`] and hands it to host and device. No protocol is known here;
//! nonces and associated data are the callers' business.
#![forbid(unsafe_code)]

use std::fmt;

use abi::crypto::{Aead, BadTag, CryptoProvider, NONCE_BYTES, Suite, TAG_BYTES};
use aws_lc_rs::aead;

/// Authenticated encryption by aws-lc, with the instructions that this CPU has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Provider;

impl CryptoProvider for Provider {
    fn aead(&self, suite: Suite, key: &[u8]) -> Option<Box<dyn Aead>> {
        let algorithm = match suite {
            Suite::Aes128Gcm => &aead::AES_128_GCM,
            Suite::Aes256Gcm => &aead::AES_256_GCM,
            Suite::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
        };
        let key = aead::UnboundKey::new(algorithm, key).ok()?;
        Some(Box::new(Key(aead::LessSafeKey::new(key))))
    }
}

struct Key(aead::LessSafeKey);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Aead for Key {
    fn seal(&self, nonce: &[u8; NONCE_BYTES], aad: &[u8], text: &mut [u8]) -> [u8; TAG_BYTES] {
        let nonce = aead::Nonce::assume_unique_for_key(*nonce);
        let sealed = self.0.seal_in_place_separate_tag(nonce, aead::Aad::from(aad), text);
        let mut tag = [0; TAG_BYTES];
        match sealed {
            Ok(sealed) => tag.copy_from_slice(sealed.as_ref()),
            // Only for texts of 64 GiB: nothing must be taken for sealed.
            Err(_) => text.fill(0),
        }
        tag
    }

    fn open(
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

#[cfg(test)]
mod tests {
    use super::*;

    const SUITES: [Suite; 3] = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305];

    #[test]
    fn every_flipped_bit_is_found() {
        for suite in SUITES {
            let key = Provider.aead(suite, &vec![7; suite.key_bytes()]).unwrap();
            let mut sealed = *b"a text of some blocks and a rest .................";
            let tag = key.seal(&[1; 12], b"header", &mut sealed);
            let sealed = [&sealed[..], &tag].concat();
            for bit in 0..sealed.len() * 8 {
                let mut changed = sealed.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(key.open(&[1; 12], b"header", &mut changed), Err(BadTag));
            }
            assert_eq!(key.open(&[1; 12], b"other", &mut sealed.clone()), Err(BadTag));
            let mut opened = sealed.clone();
            let len = key.open(&[1; 12], b"header", &mut opened).unwrap();
            assert_eq!(&opened[..len], b"a text of some blocks and a rest .................");
            assert_eq!(key.open(&[1; 12], b"header", &mut [0; 15]), Err(BadTag), "no tag");
        }
    }

    #[test]
    fn keys_have_their_length() {
        for suite in SUITES {
            for len in 0..48 {
                let key = Provider.aead(suite, &vec![1; len]);
                assert_eq!(key.is_some(), len == suite.key_bytes());
            }
        }
    }
}
