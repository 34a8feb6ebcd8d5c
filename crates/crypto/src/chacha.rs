//! ChaCha20-Poly1305 over ranges of a text (RFC 8439).
//!
//! Called by [`crate::Provider`]. ChaCha20 is aws-lc's; Poly1305 of ranges is our own, see
//! [`crate::poly1305`].
//!
//! Each nonce has its own Poly1305 key, which takes a block of ChaCha20 to compute, so the key is
//! kept in the [`AuthSum`]. Invariant: a sum whose key is all zeros has none yet. (If the real key
//! is zero, it is computed again each time, with the same result.)

use std::fmt;
use std::sync::Arc;

use abi::crypto::{Aead, AeadRanges, AuthSum, BadTag, NONCE_BYTES, Suite, TAG_BYTES};
use zeroize::Zeroizing;

use crate::aws_lc::chacha20;
use crate::horner::{BLOCK, RunningSum, block_at};
use crate::poly1305::{Poly1305, Poly1305Element};
use crate::whole_text::WholeTextKey;
use crate::{bytes_within_max, halves, offset_in_block, u128_from_halves};

/// A key of ChaCha20-Poly1305.
pub(crate) struct ChaCha {
    whole: Arc<WholeTextKey>,
    key: Zeroizing<[u8; 32]>,
}

impl ChaCha {
    /// Returns `None` if `key` has the wrong length.
    pub(crate) fn new(key: &[u8]) -> Option<Self> {
        let whole = WholeTextKey::new(Suite::ChaCha20Poly1305, key)?;
        Some(Self { whole: Arc::new(whole), key: Zeroizing::new(key.try_into().ok()?) })
    }
}

/// XORs a range with the keystream; bytes beyond the longest text become zero.
fn apply_keystream(key: &[u8; 32], nonce: &[u8; NONCE_BYTES], offset: u64, range: &mut [u8]) {
    let (range, beyond) = range.split_at_mut(bytes_within_max(offset, range.len(), TEXT_MAX));
    beyond.fill(0);
    let block = u32::try_from(FIRST + offset / STREAM_BLOCK as u64).unwrap_or(0);
    let skip = offset_in_block(offset, STREAM_BLOCK);
    if skip == 0 {
        return chacha20(key, nonce, block, range);
    }
    let (head, body) = range.split_at_mut((STREAM_BLOCK - skip).min(range.len()));
    if !head.is_empty() {
        let mut keystream = Zeroizing::new([0; STREAM_BLOCK]);
        chacha20(key, nonce, block, &mut *keystream);
        head.iter_mut().zip(&keystream[skip..]).for_each(|(byte, key)| *byte ^= key);
    }
    if !body.is_empty() {
        chacha20(key, nonce, block + 1, body);
    }
}

/// A sum in the form for computations.
struct ChaChaSum {
    running: RunningSum<Poly1305Element>,
    /// The Poly1305 key: `r` before clamping, and `s`.
    key: [u128; 2],
}

impl ChaChaSum {
    fn load(key: &[u8; 32], nonce: &[u8; NONCE_BYTES], sum: &AuthSum) -> Self {
        let [a, b, c, end, r0, r1, s0, s1] = *sum.words();
        let mut halves = [u128_from_halves(r0, r1), u128_from_halves(s0, s1)];
        if halves == [0, 0] {
            let mut block = Zeroizing::new([0; 2 * BLOCK]);
            chacha20(key, nonce, 0, &mut *block);
            halves = [0, 1].map(|half| u128::from_le_bytes(block_at(&*block, half)));
        }
        Self { running: RunningSum { value: Poly1305Element([a, b, c]), end }, key: halves }
    }

    fn store(&self) -> AuthSum {
        let [a, b, c] = self.running.value.0;
        let [[r0, r1], [s0, s1]] = self.key.map(halves);
        AuthSum::from_words([a, b, c, self.running.end, r0, r1, s0, s1])
    }
}

impl Aead for ChaCha {
    fn seal(&self, nonce: &[u8; NONCE_BYTES], aad: &[u8], text: &mut [u8]) -> [u8; TAG_BYTES] {
        self.whole.seal(nonce, aad, text)
    }

    fn seal_copy(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        text: &[u8],
        last: &[u8],
        out: &mut [u8],
    ) {
        self.whole.seal_copy(nonce, aad, text, last, out);
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
        apply_keystream(&self.key, nonce, offset, range);
    }

    fn merge(&self, sum: &mut AuthSum, other: &AuthSum) {
        // A sum without a key is empty.
        if sum.words()[4..] == [0; 4] {
            *sum = *other;
        } else if other.words()[4..] != [0; 4] {
            let nonce = &[0; NONCE_BYTES];
            let mut state = ChaChaSum::load(&self.key, nonce, sum);
            let other = ChaChaSum::load(&self.key, nonce, other).running;
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
        let state = ChaChaSum::load(&self.key, nonce, sum);
        let mut lengths = [0; BLOCK];
        lengths[..8].copy_from_slice(&(aad.len() as u64).to_le_bytes());
        lengths[8..].copy_from_slice(&text_len.to_le_bytes());
        let [r, s] = state.key;
        let value = state.running.finish(&Poly1305::new(r), aad, text_len, &lengths);
        value.to_number().wrapping_add(s).to_le_bytes()
    }

    fn ranges(&self) -> Box<dyn AeadRanges> {
        let (whole, key) = (Arc::clone(&self.whole), self.key.clone());
        Box::new(ChaChaRanges { whole, key, run: None })
    }
}

/// Runs of ranges, and decryption of whole texts.
struct ChaChaRanges {
    whole: Arc<WholeTextKey>,
    key: Zeroizing<[u8; 32]>,
    run: Option<ChaChaRun>,
}

/// Position of a [`ChaChaRanges`].
struct ChaChaRun {
    nonce: [u8; NONCE_BYTES],
    /// Offset of the next range.
    offset: u64,
    sum: ChaChaSum,
    field: Poly1305,
}

impl ChaChaRun {
    fn absorb(&mut self, sealed: &[u8]) {
        self.sum.running.add(&self.field, self.offset, sealed);
    }

    fn apply_keystream(&mut self, key: &[u8; 32], range: &mut [u8]) {
        apply_keystream(key, &self.nonce, self.offset, range);
    }
}

impl AeadRanges for ChaChaRanges {
    fn seek(&mut self, nonce: &[u8; NONCE_BYTES], sum: &AuthSum, offset: u64) {
        let sum = ChaChaSum::load(&self.key, nonce, sum);
        let field = Poly1305::new(sum.key[0]);
        self.run = Some(ChaChaRun { nonce: *nonce, offset, sum, field });
    }

    fn seal(&mut self, range: &mut [u8]) {
        let run = self.run.as_mut().expect("the caller has called `seek`");
        run.apply_keystream(&self.key, range);
        run.absorb(range);
        run.offset = run.offset.saturating_add(range.len() as u64);
    }

    fn open(&mut self, range: &mut [u8]) {
        let run = self.run.as_mut().expect("the caller has called `seek`");
        run.absorb(range);
        run.apply_keystream(&self.key, range);
        run.offset = run.offset.saturating_add(range.len() as u64);
    }

    fn end_run(&mut self) -> AuthSum {
        self.run.take().map_or_else(AuthSum::default, |run| run.sum.store())
    }

    /// Keeps a copy: aws-lc clears a text whose tag is wrong, and our Poly1305, which could verify
    /// the tag first, is slower than a copy and aws-lc's.
    fn open_whole(
        &mut self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        sealed: &mut [u8],
        copy: &mut Vec<u8>,
    ) -> Result<usize, BadTag> {
        self.run = None;
        copy.extend_from_slice(sealed);
        let opened = self.whole.open(nonce, aad, sealed);
        // aws-lc may also have changed the tag.
        let keep = opened.unwrap_or(0);
        sealed[keep..].copy_from_slice(&copy[keep..]);
        opened
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
/// Longest text in bytes (RFC 8439 section 2.8).
const TEXT_MAX: u64 = (1 << 38) - 64;
