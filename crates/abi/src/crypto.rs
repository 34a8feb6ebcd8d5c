//! Crypto as host and device see it: keys that seal and open, made by a provider that is injected.
//!
//! Both sides of the contract do authenticated encryption, the device where it can and the host
//! where it cannot, and their results have to be the same bytes. So both get one
//! [`CryptoProvider`], made by whoever starts them; a simulation that is not about crypto may
//! inject one that costs nothing. There is no crypto in this crate.
//!
//! A whole text is sealed and opened in one call. Where only ranges of it are at hand (the packets
//! of a TLS record, in the order in which they arrive), each is crypted on its own and adds to a
//! [`Sum`] of constant size, out of which the tag comes in the end. This works since all suites
//! crypt by counter, and since both authenticators, GHASH (NIST SP 800-38D, section 6.4) and
//! Poly1305 (RFC 8439, section 2.5), are polynomials of the text: sums over separate ranges add up.

use alloc::boxed::Box;
use core::fmt;

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

    /// A key of QUIC's header protection that goes with a suite; none where `key` has the wrong
    /// length.
    fn header_protection(&self, suite: Suite, key: &[u8]) -> Option<Box<dyn HeaderProtection>>;

    /// The CRC32C (RFC 3385; NVMe/TCP's digests) of a text that begins with one whose CRC32C is
    /// `crc`, zero for none, and goes on with `bytes`.
    fn crc32c(&self, crc: u32, bytes: &[u8]) -> u32;

    /// The CRC32C of two texts, one after the other, out of theirs; the second has `len` bytes. The
    /// sum is linear: this is what lets ranges be summed in any order.
    fn crc32c_combine(&self, first: u32, second: u32, len: u64) -> u32;
}

/// Bytes of a packet's ciphertext that header protection samples (RFC 9001, section 5.4.2).
pub const SAMPLE_BYTES: usize = 16;

/// A key of QUIC's header protection (RFC 9001, section 5.4). Dropping it wipes the key.
pub trait HeaderProtection: Send + Sync {
    /// The mask: its first byte is for a packet's first byte, the others for its packet number.
    fn mask(&self, sample: &[u8; SAMPLE_BYTES]) -> [u8; 5];
}

/// What the authenticator has seen of one text so far: any set of ranges that do not overlap.
///
/// The default has seen nothing. The words mean something only to the provider whose key made
/// them, for one key and one nonce; they may hold a secret of that text, so they stay where keys
/// may be.
#[derive(Clone, Copy, Default)]
pub struct Sum([u64; Self::WORDS]);

impl Sum {
    /// Size in words.
    pub const WORDS: usize = 8;

    /// A sum that a provider has written.
    #[must_use]
    pub const fn from_words(words: [u64; Self::WORDS]) -> Self {
        Self(words)
    }

    /// What the provider wrote.
    #[must_use]
    pub const fn words(&self) -> &[u64; Self::WORDS] {
        &self.0
    }
}

impl fmt::Debug for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sum(..)")
    }
}

/// A key of one suite. Dropping it wipes the key.
///
/// Offsets and lengths are in bytes. A text may be as long as its suite allows: less than 2^36 - 31
/// bytes for AES-GCM (NIST SP 800-38D, section 5.2.1.1), less than 2^38 - 63 for ChaCha20-Poly1305
/// (RFC 8439, section 2.8). What reaches beyond is filled with zeros: nothing leaves unsealed.
///
/// The methods on ranges take ranges at any offset, of any length, empty ones too, in any order.
/// They are quickest where each range begins where the one before it ended, and for ranges of 256
/// bytes and more. No byte may be counted into a tag twice. Opening by ranges gives plaintext
/// before the tag is known: nobody may act on it until [`Aead::finish`] has given the tag that came
/// with the text, compared in constant time.
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

    /// Seals or opens the range of a text that begins at `offset`, without authentication: XORs it
    /// with the keystream.
    ///
    /// Twice the same leaves the range as it was.
    fn apply(&self, nonce: &[u8; NONCE_BYTES], offset: u64, range: &mut [u8]);

    /// Adds to `sum` the sealed range of a text that begins at `offset`.
    fn absorb(&self, nonce: &[u8; NONCE_BYTES], sum: &mut Sum, offset: u64, sealed: &[u8]);

    /// Adds `other`, a sum over other ranges of the same text, to `sum`.
    fn merge(&self, sum: &mut Sum, other: &Sum);

    /// The tag of a text of `text_len` bytes all of which `sum` has seen.
    ///
    /// Where `sum` has seen less, or more, the result is no tag of anything.
    #[must_use]
    fn finish(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        text_len: u64,
        sum: &Sum,
    ) -> [u8; TAG_BYTES];

    /// Seals a range in place and adds it to `sum`: [`Aead::apply`], then [`Aead::absorb`].
    fn seal_range(&self, nonce: &[u8; NONCE_BYTES], sum: &mut Sum, offset: u64, range: &mut [u8]) {
        self.apply(nonce, offset, range);
        self.absorb(nonce, sum, offset, range);
    }

    /// Adds a sealed range to `sum` and opens it in place: [`Aead::absorb`], then [`Aead::apply`].
    fn open_range(&self, nonce: &[u8; NONCE_BYTES], sum: &mut Sum, offset: u64, range: &mut [u8]) {
        self.absorb(nonce, sum, offset, range);
        self.apply(nonce, offset, range);
    }
}
