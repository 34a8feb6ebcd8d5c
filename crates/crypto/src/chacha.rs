//! ChaCha20-Poly1305 over ranges of a text (RFC 8439).
//!
//! Called by [`crate::Provider`]. ChaCha20 is the `chacha20` crate's; Poly1305 is our own, see
//! [`crate::poly1305`].
//!
//! Each nonce has its own Poly1305 key, which takes a block of ChaCha20 to compute, so the key is
//! kept in the [`AuthSum`]. Invariant: a sum whose key is all zeros has none yet. (If the real key
//! is zero, it is computed again each time, with the same result.)

use std::fmt;

use abi::crypto::{Aead, AuthSum, BadTag, NONCE_BYTES, Suite, TAG_BYTES};
use chacha20::cipher::array::Array;
use chacha20::cipher::{KeyIvInit, StreamCipher, StreamCipherCore};
use chacha20::variants::Ietf;
use chacha20::{ChaCha20, ChaChaCore, R20};
use zeroize::Zeroizing;

use crate::horner::{BLOCK, RunningSum, block_at};
use crate::poly1305::{Poly1305, Poly1305Element};
use crate::whole_text::WholeTextKey;
use crate::{bytes_within_max, halves, offset_in_block, u128_from_halves};

/// A key of ChaCha20-Poly1305.
pub(crate) struct ChaCha {
    whole: WholeTextKey,
    key: Zeroizing<[u8; 32]>,
}

impl ChaCha {
    /// Returns `None` if `key` has the wrong length.
    pub(crate) fn new(key: &[u8]) -> Option<Self> {
        let whole = WholeTextKey::new(Suite::ChaCha20Poly1305, key)?;
        Some(Self { whole, key: Zeroizing::new(key.try_into().ok()?) })
    }

    /// XORs a range with the keystream; the range ends before the block counter does.
    fn crypt(&self, nonce: &[u8; NONCE_BYTES], offset: u64, range: &mut [u8]) {
        let mut core = ChaChaCore::<R20, Ietf>::new((&*self.key).into(), nonce.into());
        let first = FIRST + offset / STREAM_BLOCK as u64;
        core.set_block_pos(u32::try_from(first).unwrap_or(0));
        let mut keystream = [[0; STREAM_BLOCK]; BATCH];
        let mut skip = offset_in_block(offset, STREAM_BLOCK);
        let mut rest = range;
        while !rest.is_empty() {
            let (now, later) = rest.split_at_mut(rest.len().min(BATCH * STREAM_BLOCK - skip));
            // The library computes four blocks in the time of one.
            let blocks = (skip + now.len()).div_ceil(STREAM_BLOCK).next_multiple_of(4);
            let blocks = &mut keystream[..blocks];
            core.write_keystream_blocks(Array::cast_slice_from_core_mut(blocks));
            let key = &blocks.as_flattened()[skip..];
            now.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
            (rest, skip) = (later, 0);
        }
    }

    fn cipher(&self, nonce: &[u8; NONCE_BYTES]) -> ChaCha20 {
        ChaCha20::new((&*self.key).into(), nonce.into())
    }

    fn load(&self, nonce: &[u8; NONCE_BYTES], sum: &AuthSum) -> ChaChaSum {
        let [a, b, c, end, r0, r1, s0, s1] = *sum.words();
        let mut key = [u128_from_halves(r0, r1), u128_from_halves(s0, s1)];
        if key == [0, 0] {
            let mut block = Zeroizing::new([0; 2 * BLOCK]);
            self.cipher(nonce).apply_keystream(&mut *block);
            key = [0, 1].map(|half| u128::from_le_bytes(block_at(&*block, half)));
        }
        ChaChaSum { running: RunningSum { value: Poly1305Element([a, b, c]), end }, key }
    }
}

/// A sum in the form for computations.
struct ChaChaSum {
    running: RunningSum<Poly1305Element>,
    /// The Poly1305 key: `r` before clamping, and `s`.
    key: [u128; 2],
}

impl ChaChaSum {
    fn store(self) -> AuthSum {
        let [a, b, c] = self.running.value.0;
        let [[r0, r1], [s0, s1]] = self.key.map(halves);
        AuthSum::from_words([a, b, c, self.running.end, r0, r1, s0, s1])
    }
}

impl Aead for ChaCha {
    fn seal(&self, nonce: &[u8; NONCE_BYTES], aad: &[u8], text: &mut [u8]) -> [u8; TAG_BYTES] {
        self.whole.seal(nonce, aad, text)
    }

    fn open(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        sealed: &mut [u8],
    ) -> Result<usize, BadTag> {
        self.whole.open(nonce, aad, sealed)
    }

    fn apply_keystream(&self, nonce: &[u8; NONCE_BYTES], offset: u64, range: &mut [u8]) {
        let (range, beyond) = range.split_at_mut(bytes_within_max(offset, range.len(), TEXT_MAX));
        beyond.fill(0);
        self.crypt(nonce, offset, range);
    }

    fn absorb_ciphertext(
        &self,
        nonce: &[u8; NONCE_BYTES],
        sum: &mut AuthSum,
        offset: u64,
        sealed: &[u8],
    ) {
        let mut state = self.load(nonce, sum);
        state.running.add(&Poly1305::new(state.key[0]), offset, sealed);
        *sum = state.store();
    }

    fn merge(&self, sum: &mut AuthSum, other: &AuthSum) {
        // A sum without a key is empty.
        if sum.words()[4..] == [0; 4] {
            *sum = *other;
        } else if other.words()[4..] != [0; 4] {
            let nonce = &[0; NONCE_BYTES];
            let mut state = self.load(nonce, sum);
            let other = self.load(nonce, other).running;
            state.running.merge(&Poly1305::new(state.key[0]), other);
            *sum = state.store();
        }
    }

    fn finish(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        text_len: u64,
        sum: &AuthSum,
    ) -> [u8; TAG_BYTES] {
        let state = self.load(nonce, sum);
        let mut lengths = [0; BLOCK];
        lengths[..8].copy_from_slice(&(aad.len() as u64).to_le_bytes());
        lengths[8..].copy_from_slice(&text_len.to_le_bytes());
        let [r, s] = state.key;
        let value = state.running.finish(&Poly1305::new(r), aad, text_len, &lengths);
        value.to_number().wrapping_add(s).to_le_bytes()
    }
}

impl fmt::Debug for ChaCha {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChaCha(..)")
    }
}

/// Block at which the text's keystream begins: block 0 is Poly1305's key (RFC 8439 section 2.8).
const FIRST: u64 = 1;
/// Bytes of a keystream block.
const STREAM_BLOCK: usize = 64;
/// Keystream blocks computed at once: enough for a segment of 1,448 bytes.
const BATCH: usize = 24;
/// Longest text in bytes (RFC 8439 section 2.8).
const TEXT_MAX: u64 = (1 << 38) - 64;
