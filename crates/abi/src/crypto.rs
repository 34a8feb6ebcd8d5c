//! Cryptography as host and device see it: traits for AEAD and header protection keys, made by an
//! injected provider.
//!
//! Both halves encrypt and decrypt, the device if it can and the host if it cannot, and their
//! results must be the same bytes. So both get one [`CryptoProvider`] from the program that starts
//! them; a simulation that does not test cryptography may inject a cheap fake. This crate has no
//! implementation.
//!
//! A whole text is sealed or opened in one call; [`AeadRanges::open_whole`] also restores a text
//! whose tag is wrong. If only ranges of it are at hand (packets of a TLS record, in the order of
//! arrival), [`AeadRanges`] encrypts or decrypts each on its own and adds it to an [`AuthSum`] of
//! constant size, from which the tag is computed in the end. This works because all suites use
//! counter mode, and because both authenticators, GHASH (NIST SP 800-38D section 6.4) and Poly1305
//! (RFC 8439 section 2.5), are polynomials of the text: the sums of separate ranges add up.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

/// AEAD algorithms of TLS 1.2, TLS 1.3 and QUIC: all with nonces of 12 bytes and tags of 16 bytes
/// (RFC 5116, RFC 8439).
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
    /// Returns the length of a key in bytes.
    #[must_use]
    pub const fn key_bytes(self) -> usize {
        match self {
            Self::Aes128Gcm => 16,
            Self::Aes256Gcm | Self::ChaCha20Poly1305 => 32,
        }
    }
}

/// Length of a nonce in bytes.
pub const NONCE_BYTES: usize = 12;
/// Length of a tag in bytes.
pub const TAG_BYTES: usize = 16;

/// Error of decryption: the ciphertext was not made with this key, nonce and associated data, or
/// was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadTag;

/// A factory of keys, and the implementation of CRC32C.
pub trait CryptoProvider: Send + Sync {
    /// Creates an AEAD key; `None` if `key` has the wrong length for `suite`.
    fn aead(&self, suite: Suite, key: &[u8]) -> Option<Box<dyn Aead>>;

    /// Creates the QUIC header protection key that belongs to `suite`; `None` if `key` has the
    /// wrong length.
    fn header_protection(&self, suite: Suite, key: &[u8]) -> Option<Box<dyn HeaderProtection>>;

    /// Continues the CRC32C (RFC 3385; the digests of NVMe/TCP) `crc` of preceding bytes, zero for
    /// none, over `bytes`.
    fn crc32c(&self, crc: u32, bytes: &[u8]) -> u32;

    /// Combines the CRC32Cs of two adjacent texts into that of their concatenation; `len` is the
    /// length of the second in bytes. With it, ranges can be summed in any order.
    fn crc32c_combine(&self, first: u32, second: u32, len: u64) -> u32;
}

/// Length of the ciphertext sample of header protection (RFC 9001 section 5.4.2).
pub const SAMPLE_BYTES: usize = 16;

/// A QUIC header protection key (RFC 9001 section 5.4). Dropping it wipes the key.
pub trait HeaderProtection: Send + Sync {
    /// Returns the mask: byte 0 for the packet's first byte, bytes 1 to 4 for its packet number.
    fn mask(&self, sample: &[u8; SAMPLE_BYTES]) -> [u8; 5];
}

/// Partial result of the authenticator over any set of non-overlapping ranges of one text.
///
/// The default covers no range. The words have a meaning only to the provider of the key, for one
/// key and one nonce. They may contain a secret of that text, so treat them like keys.
#[derive(Clone, Copy, Default)]
pub struct AuthSum([u64; Self::WORDS]);

impl AuthSum {
    /// Size in words.
    pub const WORDS: usize = 8;

    /// Creates a sum from the provider's words.
    #[must_use]
    pub const fn from_words(words: [u64; Self::WORDS]) -> Self {
        Self(words)
    }

    /// Returns the provider's words.
    #[must_use]
    pub const fn words(&self) -> &[u64; Self::WORDS] {
        &self.0
    }
}

impl fmt::Debug for AuthSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sum(..)")
    }
}

/// A key of one suite. Dropping it wipes the key.
///
/// Offsets and lengths are in bytes. The suite bounds the length of a text: less than 2^36 - 31
/// bytes for AES-GCM (NIST SP 800-38D section 5.2.1.1), less than 2^38 - 63 for ChaCha20-Poly1305
/// (RFC 8439 section 2.8). Bytes beyond the bound are replaced by zeros, so that no plaintext
/// leaves.
///
/// Decrypting by ranges ([`Aead::ranges`]) yields plaintext before the tag is verified: callers
/// must not act on it until [`Aead::finish`] has returned the tag that came with the text, compared
/// in constant time.
pub trait Aead: Send + Sync {
    /// Encrypts `text` in place and returns its tag.
    fn seal(&self, nonce: &[u8; NONCE_BYTES], aad: &[u8], text: &mut [u8]) -> [u8; TAG_BYTES];

    /// Encrypts `text`, followed by the few bytes `last`, and writes the ciphertext and its tag to
    /// `out`.
    ///
    /// # Panics
    /// If the length of `out` is not that of `text`, `last` and a tag.
    fn seal_copy(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        text: &[u8],
        last: &[u8],
        out: &mut [u8],
    );

    /// Decrypts `sealed`, a ciphertext followed by its tag, in place and returns the length of the
    /// plaintext.
    ///
    /// # Errors
    /// `BadTag` if the tag does not match or `sealed` is shorter than a tag. The content of
    /// `sealed` is then unspecified, but never plaintext.
    fn open(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        sealed: &mut [u8],
    ) -> Result<usize, BadTag>;

    /// Encrypts or decrypts the range of a text at `offset` without authentication: XORs it with
    /// the keystream. Applying it twice restores the range.
    fn apply_keystream(&self, nonce: &[u8; NONCE_BYTES], offset: u64, range: &mut [u8]);

    /// Adds `other`, a sum over other ranges of the same text, to `sum`.
    fn merge(&self, sum: &mut AuthSum, other: &AuthSum);

    /// Returns the tag of a text of `text_len` bytes from a `sum` that covers all of them.
    ///
    /// If `sum` covers fewer or more bytes, the result is meaningless.
    #[must_use]
    fn finish(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        text_len: u64,
        sum: &AuthSum,
    ) -> [u8; TAG_BYTES];

    /// Creates the state for encrypting and decrypting ranges.
    fn ranges(&self) -> Box<dyn AeadRanges>;
}

/// Encryption and decryption of ranges of texts with one key, and decryption of whole texts, in
/// place.
///
/// [`Self::seek`] begins a run of adjacent ranges, [`Self::end_run`] ends it. Ranges may have any
/// length, also zero, and runs any order. Ranges within a run are nearly as fast as whole texts; a
/// new run costs as much as a few hundred bytes. Dropping it wipes the key.
pub trait AeadRanges: Send {
    /// Begins a run at `offset` of the text with `nonce`. `sum` covers the ranges of the text that
    /// were processed already; no byte may be added to a sum twice. A previous run is abandoned.
    fn seek(&mut self, nonce: &[u8; NONCE_BYTES], sum: &AuthSum, offset: u64);

    /// Encrypts the next range of the run.
    ///
    /// # Panics
    /// If there is no run; so does [`Self::open`].
    fn seal(&mut self, range: &mut [u8]);

    /// Decrypts the next range of the run.
    fn open(&mut self, range: &mut [u8]);

    /// Ends the run, and returns the sum over the ranges before it and its own. Without a run, the
    /// sum is empty.
    fn end_run(&mut self) -> AuthSum;

    /// Decrypts `sealed`, a ciphertext followed by its tag, in place and returns the length of the
    /// plaintext. The tag is left as it is. A run is abandoned. `copy` is empty, and holds a copy
    /// of `sealed` afterwards if the implementation needs one to restore it.
    ///
    /// # Errors
    /// `BadTag` if the tag does not match or `sealed` is shorter than a tag. Unlike after
    /// [`Aead::open`], `sealed` is then as it was.
    fn open_whole(
        &mut self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        sealed: &mut [u8],
        copy: &mut Vec<u8>,
    ) -> Result<usize, BadTag>;
}
