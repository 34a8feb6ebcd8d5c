//! TLS records, as [`super::l5o`] needs them.
//!
//! [`TlsDeviceKeys`] holds one direction's keys and framing. The receive contexts use it to read a
//! message's length ([`TlsDeviceKeys::length`]: the magic pattern and length rule of Autonomous NIC
//! Offloads, section 3), to decrypt any range ([`TlsRangeCipher`]) and to verify a
//! tag ([`TlsDeviceKeys::verify`]). `encrypt` is the transmit side, and `seal_job` the part of it
//! that workers may do; `decrypted_range` describes decrypted ranges.
//!
//! No connection state is kept here, and TCP sequence numbers occur only in `encrypt`.

mod decrypted_range;
mod encrypt;
mod seal_job;

use abi::crypto::{Aead, AeadRanges, AuthSum, CryptoProvider, TAG_BYTES};
use abi::l5o::TlsState;
use alloc::boxed::Box;
use alloc::vec::Vec;
use wire::tls::{HEADER_BYTES, NONCE_BYTES, TlsFraming};

pub(crate) use decrypted_range::DecryptedRange;
pub(crate) use encrypt::{EncryptEffort, RangeEncryptor, TlsTxPosition, TlsTxState};
pub(crate) use seal_job::{RangeSplit, TlsSealJob};

/// Maximum size of a record's front: header and explicit nonce.
pub(crate) const FRONT: usize = TlsFraming::FULL_HEADER_BYTES_MAX;
/// Size of a record header: type, version and length.
#[expect(clippy::cast_possible_truncation, reason = "five")]
pub(crate) const HEADER: u32 = HEADER_BYTES as u32;
/// Size of a tag.
#[expect(clippy::cast_possible_truncation, reason = "sixteen")]
pub(crate) const TAG: u32 = TAG_BYTES as u32;

/// State for encrypting and decrypting ranges of a context's messages, and for decrypting whole
/// ones; created with the first use.
#[derive(Default)]
pub(crate) struct TlsRangeCipher(Option<Box<dyn AeadRanges>>);

impl TlsRangeCipher {
    fn ranges(&mut self, keys: &TlsDeviceKeys) -> &mut dyn AeadRanges {
        &mut **self.0.get_or_insert_with(|| keys.aead.ranges())
    }

    /// Begins a run of ranges at `offset` of the text of message `number`; `sum` covers the ranges
    /// that were processed already.
    pub(crate) fn seek(
        &mut self,
        keys: &TlsDeviceKeys,
        number: u64,
        front: &[u8; FRONT],
        sum: &AuthSum,
        offset: u32,
    ) {
        let nonce = keys.framing.received_nonce(&keys.iv, number, front);
        self.ranges(keys).seek(&nonce, sum, u64::from(offset));
    }

    /// Decrypts the next range of the run in place.
    pub(crate) fn decrypt(&mut self, keys: &TlsDeviceKeys, range: &mut [u8]) {
        self.ranges(keys).open(range);
    }

    /// Ends the run; returns the sum over the ranges before it and its own.
    pub(crate) fn end_run(&mut self) -> AuthSum {
        self.0.as_mut().map_or_else(AuthSum::default, |ranges| ranges.end_run())
    }

    /// Decrypts a whole message in place; there must be no run. Returns false, with `message`
    /// unchanged, if the tag is wrong. `copy` holds a copy of the encrypted text afterwards, or
    /// nothing if none was needed.
    pub(crate) fn decrypt_whole(
        &mut self,
        keys: &TlsDeviceKeys,
        number: u64,
        message: &mut [u8],
        copy: &mut Vec<u8>,
    ) -> bool {
        copy.clear();
        let mut front = [0; FRONT];
        let front_len = keys.framing.full_header_len();
        if message.len() < front_len + TAG_BYTES {
            return false;
        }
        front[..front_len].copy_from_slice(&message[..front_len]);
        let nonce = keys.framing.received_nonce(&keys.iv, number, &front);
        let text_len = message.len() - front_len - TAG_BYTES;
        let (aad, used) = keys.framing.aad(number, front[0], text_len);
        let sealed = &mut message[front_len..];
        self.ranges(keys).open_whole(&nonce, &aad[..used], sealed, copy).is_ok()
    }

    /// Encrypts a range in place and adds it to `sum`.
    fn encrypt(
        &mut self,
        keys: &TlsDeviceKeys,
        nonce: &[u8; NONCE_BYTES],
        sum: &mut AuthSum,
        offset: u32,
        range: &mut [u8],
    ) {
        let ranges = self.ranges(keys);
        ranges.seek(nonce, sum, u64::from(offset));
        ranges.seal(range);
        *sum = ranges.end_run();
    }
}

impl core::fmt::Debug for TlsRangeCipher {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("TlsRangeCipher").field(&self.0.is_some()).finish()
    }
}

/// Keys and record framing of one direction.
pub(crate) struct TlsDeviceKeys {
    aead: Box<dyn Aead>,
    iv: [u8; NONCE_BYTES],
    framing: TlsFraming,
}

impl TlsDeviceKeys {
    /// Creates the keys of `state`; `None` if the provider does not support the suite or key.
    pub(crate) fn new(provider: &dyn CryptoProvider, state: &TlsState) -> Option<Self> {
        let key = state.key.get(..state.suite.key_bytes())?;
        let aead = provider.aead(state.suite, key)?;
        Some(Self { aead, iv: state.iv, framing: state.framing() })
    }

    /// Returns the framing of records.
    pub(crate) const fn framing(&self) -> TlsFraming {
        self.framing
    }

    /// Size of the front: the bytes before the encrypted text.
    pub(crate) const fn front(&self) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "at most thirteen")]
        let front = self.framing.full_header_len() as u32;
        front
    }

    /// Returns whether records contain an explicit part of the nonce.
    pub(crate) const fn has_explicit(&self) -> bool {
        self.framing.explicit_nonce
    }

    /// Returns the total length of the message that begins with `header`, or `None` if that is not
    /// a header.
    pub(crate) fn length(&self, header: &[u8]) -> Option<u32> {
        let header = header.first_chunk::<HEADER_BYTES>()?;
        self.framing.parse(*header).map(|header| HEADER + u32::from(header.len))
    }

    /// Size of the encrypted text in a message of `len` bytes.
    pub(crate) const fn text_len(&self, len: u32) -> u32 {
        len.saturating_sub(self.front() + TAG)
    }

    /// Encrypts a decrypted range again, which restores the received bytes.
    pub(crate) fn reencrypt_range(
        &self,
        number: u64,
        front: &[u8; FRONT],
        offset: u32,
        range: &mut [u8],
    ) {
        let nonce = self.framing.received_nonce(&self.iv, number, front);
        self.aead.apply_keystream(&nonce, u64::from(offset), range);
    }

    /// Returns whether `tag` is correct for a message whose whole text was added to `sum`.
    pub(crate) fn verify(
        &self,
        number: u64,
        front: &[u8; FRONT],
        len: u32,
        sum: &AuthSum,
        tag: &[u8; TAG_BYTES],
    ) -> bool {
        let nonce = self.framing.received_nonce(&self.iv, number, front);
        let text_len = self.text_len(len);
        let (aad, used) = self.framing.aad(number, front[0], text_len as usize);
        let made = self.aead.finish(&nonce, &aad[..used], u64::from(text_len), sum);
        // Constant time: timing must not reveal how much of a forged tag was correct.
        made.iter().zip(tag).fold(0, |diff, (a, b)| diff | (a ^ b)) == 0
    }
}
