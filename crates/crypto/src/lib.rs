//! The crypto provider of Outboard: `abi`'s [`CryptoProvider`] over aws-lc and, for short
//! ranges of a text, over RustCrypto's primitives.
//!
//! The program creates one [`Provider`] and passes it to host and device. Nonces and associated
//! data are the callers': no protocol is known here.
#![deny(unsafe_code)]

#[expect(unsafe_code, reason = "calls of a C library, each of which states why it is sound")]
mod aws_lc;
mod chacha;
mod crc;
mod gcm;
mod header;
mod horner;
mod poly1305;
#[expect(unsafe_code, reason = "as in `aws_lc`")]
mod whole_text;

use abi::crypto::{Aead, CryptoProvider, HeaderProtection, Suite};

/// The crypto provider; uses the instructions that this CPU has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Provider;

impl CryptoProvider for Provider {
    fn aead(&self, suite: Suite, key: &[u8]) -> Option<Box<dyn Aead>> {
        Some(match suite {
            Suite::Aes128Gcm => Box::new(gcm::Gcm::<aes::Aes128Enc>::new(suite, key)?),
            Suite::Aes256Gcm => Box::new(gcm::Gcm::<aes::Aes256Enc>::new(suite, key)?),
            Suite::ChaCha20Poly1305 => Box::new(chacha::ChaCha::new(key)?),
        })
    }

    fn header_protection(&self, suite: Suite, key: &[u8]) -> Option<Box<dyn HeaderProtection>> {
        Some(Box::new(header::HeaderMaskKey::new(suite, key)?))
    }

    fn crc32c(&self, crc: u32, bytes: &[u8]) -> u32 {
        crc::extend(crc, bytes)
    }

    fn crc32c_combine(&self, first: u32, second: u32, len: u64) -> u32 {
        crc::combine(first, second, len)
    }
}

/// Returns how many bytes of a range at `offset` are within the longest permitted text.
fn bytes_within_max(offset: u64, len: usize, text_max: u64) -> usize {
    usize::try_from(text_max.saturating_sub(offset)).map_or(len, |room| room.min(len))
}

/// Returns the number with these halves.
fn u128_from_halves(low: u64, high: u64) -> u128 {
    u128::from(low) | u128::from(high) << 64
}

/// Returns the low and the high half of a number.
fn halves(number: u128) -> [u64; 2] {
    [low(number), low(number >> 64)]
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is what is asked for")]
fn low(number: u128) -> u64 {
    number as u64
}

/// Returns the offset within a block of `len` bytes.
fn offset_in_block(offset: u64, len: usize) -> usize {
    // Less than `len`.
    usize::try_from(offset % len as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::crypto::BadTag;

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
