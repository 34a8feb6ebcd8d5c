//! AES-GCM over ranges of a text (NIST SP 800-38D).
//!
//! Called by [`crate::Provider`]. AES in counter mode comes from the `aes` and `ctr` crates. GHASH
//! over many blocks comes from aws-lc, as the tag of associated data, since aws-lc uses the widest
//! instructions; GHASH over few blocks, and multiplication by powers of its key, come from
//! `polyval`. `examples/speed.rs` measures which is faster. All tags from which GHASH is taken have
//! the same nonce; only sums leave this file, and these do not contain that nonce's mask.
//!
//! Invariant: an element of GHASH's field is kept as in POLYVAL, with its bytes reversed (RFC 8452
//! appendix A). Nonces are 12 bytes, so that the counter of the text's first block is 2.

use std::fmt;

use abi::crypto::{Aead, AuthSum, BadTag, NONCE_BYTES, Suite, TAG_BYTES};
use aes::cipher::{
    BlockCipherEncrypt, BlockSizeUser, InnerIvInit, KeyInit, StreamCipher, StreamCipherCoreWrapper,
    StreamCipherSeek, consts::U16,
};
use aes::{Aes128Enc, Aes256Enc};
use ctr::{CtrCore, flavors::Ctr32BE};
use polyval::hazmat::FieldElement;
use polyval::{Polyval, universal_hash::UniversalHash};
use zeroize::Zeroize;

use crate::horner::{BLOCK, Field, RunningSum, block_at};
use crate::whole_text::WholeTextKey;
use crate::{bytes_within_max, halves, u128_from_halves};

/// A key of AES-GCM with the block cipher `C`.
pub(crate) struct Gcm<C> {
    cipher: C,
    ghash: Ghash,
}

impl<C: AesCipher> Gcm<C> {
    /// Returns `None` if `key` does not have the length of `suite`'s keys, or `C` is not the cipher
    /// of `suite`.
    pub(crate) fn new(suite: Suite, key: &[u8]) -> Option<Self> {
        let whole = WholeTextKey::new(suite, key)?;
        let cipher = C::new_from_slice(key).ok()?;
        let mut hash_key = [0; BLOCK].into();
        cipher.encrypt_block(&mut hash_key);
        Some(Self { cipher, ghash: Ghash::new(whole, hash_key.into()) })
    }

    /// XORs a range with the keystream; the range ends before the block counter does.
    fn crypt(&self, nonce: &[u8; NONCE_BYTES], offset: u64, range: &mut [u8]) {
        let start = self.counter_block(nonce, FIRST);
        let counter = CtrCore::<&C, Ctr32BE>::inner_iv_init(&self.cipher, &start.into());
        let mut cipher = StreamCipherCoreWrapper::from_core(counter);
        let done = cipher.try_seek(offset).is_ok() && cipher.try_apply_keystream(range).is_ok();
        if !done {
            range.fill(0);
        }
    }

    /// Returns the block that masks the tag, E(K, J0) (SP 800-38D section 7.1).
    fn tag_mask(&self, nonce: &[u8; NONCE_BYTES]) -> u128 {
        let mut mask = self.counter_block(nonce, FIRST - 1).into();
        self.cipher.encrypt_block(&mut mask);
        u128::from_be_bytes(mask.into())
    }

    fn counter_block(&self, nonce: &[u8; NONCE_BYTES], counter: u32) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        block[..NONCE_BYTES].copy_from_slice(nonce);
        block[NONCE_BYTES..].copy_from_slice(&counter.to_be_bytes());
        block
    }
}

impl<C: AesCipher> Aead for Gcm<C> {
    fn seal(&self, nonce: &[u8; NONCE_BYTES], aad: &[u8], text: &mut [u8]) -> [u8; TAG_BYTES] {
        self.ghash.whole.seal(nonce, aad, text)
    }

    fn open(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        sealed: &mut [u8],
    ) -> Result<usize, BadTag> {
        self.ghash.whole.open(nonce, aad, sealed)
    }

    fn apply_keystream(&self, nonce: &[u8; NONCE_BYTES], offset: u64, range: &mut [u8]) {
        let (inside, beyond) = range.split_at_mut(bytes_within_max(offset, range.len(), TEXT_MAX));
        self.crypt(nonce, offset, inside);
        beyond.fill(0);
    }

    fn absorb_ciphertext(
        &self,
        _: &[u8; NONCE_BYTES],
        sum: &mut AuthSum,
        offset: u64,
        sealed: &[u8],
    ) {
        let mut running = load(sum);
        running.add(&self.ghash, offset, sealed);
        *sum = store(running);
    }

    fn merge(&self, sum: &mut AuthSum, other: &AuthSum) {
        let mut running = load(sum);
        running.merge(&self.ghash, load(other));
        *sum = store(running);
    }

    fn finish(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        text_len: u64,
        sum: &AuthSum,
    ) -> [u8; TAG_BYTES] {
        let mut lengths = [0; BLOCK];
        lengths[..8].copy_from_slice(&(aad.len() as u64 * 8).to_be_bytes());
        lengths[8..].copy_from_slice(&text_len.wrapping_mul(8).to_be_bytes());
        let hash = load(sum).finish(&self.ghash, aad, text_len, &lengths);
        (hash ^ self.tag_mask(nonce)).to_be_bytes()
    }

    fn seal_range(
        &self,
        nonce: &[u8; NONCE_BYTES],
        sum: &mut AuthSum,
        offset: u64,
        range: &mut [u8],
    ) {
        self.apply_keystream(nonce, offset, range);
        let mut running = load(sum);
        running.add_mut(&self.ghash, offset, range);
        *sum = store(running);
    }

    fn open_range(
        &self,
        nonce: &[u8; NONCE_BYTES],
        sum: &mut AuthSum,
        offset: u64,
        range: &mut [u8],
    ) {
        let mut running = load(sum);
        running.add_mut(&self.ghash, offset, range);
        *sum = store(running);
        self.apply_keystream(nonce, offset, range);
    }
}

impl<C> fmt::Debug for Gcm<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gcm(..)")
    }
}

fn load(sum: &AuthSum) -> RunningSum<u128> {
    let [low, high, end, ..] = *sum.words();
    RunningSum { value: u128_from_halves(low, high), end }
}

fn store(running: RunningSum<u128>) -> AuthSum {
    let [low, high] = halves(running.value);
    AuthSum::from_words([low, high, running.end, 0, 0, 0, 0, 0])
}

/// AES with keys of one length.
pub(crate) trait AesCipher:
    BlockCipherEncrypt + BlockSizeUser<BlockSize = U16> + KeyInit + Send + Sync
{
}

impl AesCipher for Aes128Enc {}
impl AesCipher for Aes256Enc {}

/// GHASH with one key (SP 800-38D section 6.4) as a polynomial's field.
///
/// An element is a block read as a big-endian number, which is POLYVAL's element of that value.
struct Ghash {
    whole: WholeTextKey,
    /// E(K, J0) for a nonce of zeros, which masks the tags that aws-lc computes for us.
    mask: u128,
    /// The hash key to the powers of 2^n.
    powers: [[u8; BLOCK]; POWERS],
}

impl Ghash {
    fn new(whole: WholeTextKey, hash_key: [u8; BLOCK]) -> Self {
        let mask = u128::from_be_bytes(whole.seal(&[0; NONCE_BYTES], &[], &mut []));
        let hash_key = FieldElement::from(u128::from_be_bytes(hash_key)).mulx();
        let mut powers = [hash_key.into(); POWERS];
        for n in 1..POWERS {
            powers[n] = multiply(u128::from_le_bytes(powers[n - 1]), &powers[n - 1]).to_le_bytes();
        }
        Self { whole, mask, powers }
    }

    /// Returns `(..(block x) + block) x + ..)` by aws-lc, as the tag of blocks that are associated
    /// data.
    ///
    /// A tag also covers the block of lengths, with one more factor. So aws-lc is given all blocks
    /// but the last, and the last replaces the lengths.
    fn ghash_by_aws_lc(&self, blocks: &[u8]) -> u128 {
        let (most, last) = blocks.split_at(blocks.len() - BLOCK);
        let tag = u128::from_be_bytes(self.whole.seal(&[0; NONCE_BYTES], most, &mut []));
        let lengths = u128::from(most.len() as u64 * 8) << 64;
        tag ^ self.mask ^ self.step(lengths ^ element(last))
    }

    /// Returns the same by `polyval`, continuing from `a`.
    #[inline(never)]
    fn ghash_by_polyval(&self, a: u128, blocks: &[u8]) -> u128 {
        let mut reversed = [[0; BLOCK].into(); AWS_LC_BYTES_MIN / BLOCK];
        let mut first = a;
        for (to, from) in reversed.iter_mut().zip(blocks.chunks_exact(BLOCK)) {
            *to = (element(from) ^ first).to_le_bytes().into();
            first = 0;
        }
        let mut sum = Polyval::new(&self.powers[0].into());
        sum.update(&reversed[..blocks.len() / BLOCK]);
        u128::from_le_bytes(sum.finalize().into())
    }
}

impl Drop for Ghash {
    fn drop(&mut self) {
        // `WholeTextKey` wipes itself. The wiping feature of `polyval` is off: it would wipe a copy
        // for each product, byte by byte, which takes longer than the product.
        self.powers.zeroize();
        self.mask.zeroize();
    }
}

impl Field for Ghash {
    type Element = u128;

    fn sum(&self, a: u128, b: u128) -> u128 {
        a ^ b
    }

    fn block(&self, bytes: &[u8; BLOCK], _: bool) -> u128 {
        u128::from_be_bytes(*bytes)
    }

    fn step(&self, a: u128) -> u128 {
        multiply(a, &self.powers[0])
    }

    fn raise(&self, mut a: u128, n: u64) -> u128 {
        if n == 0 {
            return a;
        }
        for (bit, power) in self.powers.iter().enumerate() {
            // Not secret: the powers depend on lengths and offsets, which are visible in packets.
            if n >> bit & 1 == 1 {
                a = multiply(a, power);
            }
        }
        if n >> POWERS != 0 { self.raise_far(a, n >> POWERS) } else { a }
    }

    fn blocks(&self, a: u128, blocks: &[u8]) -> u128 {
        if blocks.len() < AWS_LC_BYTES_MIN {
            return self.ghash_by_polyval(a, blocks);
        }
        let before = if a == 0 { 0 } else { self.raise(a, (blocks.len() / BLOCK) as u64) };
        before ^ self.ghash_by_aws_lc(blocks)
    }

    fn blocks_mut(&self, a: u128, blocks: &mut [u8]) -> u128 {
        if blocks.len() < AWS_LC_BYTES_MIN {
            return self.ghash_by_polyval(a, blocks);
        }
        // `a` is added to the first block and so gets all factors for free.
        let first = block_at(blocks, 0);
        blocks[..BLOCK].copy_from_slice(&(a ^ u128::from_be_bytes(first)).to_be_bytes());
        let sum = self.ghash_by_aws_lc(blocks);
        blocks[..BLOCK].copy_from_slice(&first);
        sum
    }
}

impl Ghash {
    /// Continues `raise` with `n` times 2^`POWERS`: only in texts longer than any record.
    #[cold]
    fn raise_far(&self, mut a: u128, n: u64) -> u128 {
        let mut power = self.powers[POWERS - 1];
        for bit in 0..u64::BITS - n.leading_zeros() {
            power = multiply(u128::from_le_bytes(power), &power).to_le_bytes();
            if n >> bit & 1 == 1 {
                a = multiply(a, &power);
            }
        }
        a
    }
}

/// Returns a block as an element.
fn element(block: &[u8]) -> u128 {
    u128::from_be_bytes(block_at(block, 0))
}

/// Returns `a b`. Half of the time is the set-up of `b`, whose result is not kept because it cannot
/// be wiped.
fn multiply(a: u128, b: &[u8; BLOCK]) -> u128 {
    let mut product = Polyval::new(&(*b).into());
    product.update(&[a.to_le_bytes().into()]);
    u128::from_le_bytes(product.finalize().into())
}

/// Counter of a text's first block; the one before masks the tag (SP 800-38D section 7.1).
const FIRST: u32 = 2;
/// Longest text in bytes (SP 800-38D section 5.2.1.1).
const TEXT_MAX: u64 = (1 << 36) - 32;
/// Bytes from which GHASH by aws-lc, which has a fixed cost of 60 ns, is faster.
const AWS_LC_BYTES_MIN: usize = 320;
/// Precomputed powers of the hash key: for the number of blocks in a TLS record.
const POWERS: usize = 11;
