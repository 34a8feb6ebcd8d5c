//! AES-GCM over ranges of a text (NIST SP 800-38D).
//!
//! Called by [`crate::Provider`]. aws-lc encrypts whole texts. It also encrypts and hashes ranges
//! in one pass, as if they were texts of their own ([`GcmRanges`]). Short ranges, and the bytes
//! before the first whole block, take AES in counter mode from the `aes` and `ctr` crates and GHASH
//! from `polyval`. `examples/speed.rs` measures which is faster.
//!
//! Invariant: an element of GHASH's field is kept as in POLYVAL, with its bytes reversed (RFC 8452
//! appendix A). Nonces are 12 bytes, so that the counter of the text's first block is 2.

use std::fmt;
use std::sync::{Arc, OnceLock};

use abi::crypto::{Aead, AeadRanges, AuthSum, BadTag, NONCE_BYTES, Suite, TAG_BYTES};
use aes::cipher::{
    BlockCipherEncrypt, BlockSizeUser, InnerIvInit, KeyInit, StreamCipher, StreamCipherCoreWrapper,
    StreamCipherSeek, consts::U16,
};
use aes::{Aes128Enc, Aes256Enc};
use ctr::{CtrCore, flavors::Ctr32BE};
use polyval::hazmat::FieldElement;
use polyval::{Polyval, universal_hash::UniversalHash};
use zeroize::{Zeroize, Zeroizing};

use crate::aws_lc::{GcmContext, GcmDirection};
use crate::horner::{BLOCK, Field, RunningSum, block_at};
use crate::whole_text::WholeTextKey;
use crate::{bytes_within_max, halves, offset_in_block, u128_from_halves};

/// A key of AES-GCM with the block cipher `C`.
pub(crate) struct Gcm<C> {
    key: Arc<GcmKey<C>>,
    /// Created with the first use: a device's receive contexts decrypt by [`GcmRanges`] alone.
    whole: OnceLock<WholeTextKey>,
}

impl<C: AesCipher> Gcm<C> {
    /// Returns `None` if `key` does not have the length of `suite`'s keys, or `C` is not the cipher
    /// of `suite`.
    pub(crate) fn new(suite: Suite, key: &[u8]) -> Option<Self> {
        if key.len() != C::key_size() || key.len() != suite.key_bytes() {
            return None;
        }
        let mut bytes = Zeroizing::new([0; 32]);
        bytes[..key.len()].copy_from_slice(key);
        let key = Arc::new(GcmKey { suite, bytes, field: OnceLock::new() });
        Some(Self { key, whole: OnceLock::new() })
    }

    fn whole(&self) -> &WholeTextKey {
        let key = &self.key;
        self.whole.get_or_init(|| WholeTextKey::new(key.suite, key.bytes()).expect(NO_MEMORY))
    }

    fn field(&self) -> &GcmField<C> {
        self.key.field()
    }
}

/// The bytes of a key, and its field.
struct GcmKey<C> {
    suite: Suite,
    /// The first [`Suite::key_bytes`] are the key.
    bytes: Zeroizing<[u8; 32]>,
    /// Created with the first range: most keys see only whole texts. In memory of its own, since it
    /// is as large as all else of a key.
    field: OnceLock<Box<GcmField<C>>>,
}

impl<C: AesCipher> GcmKey<C> {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.suite.key_bytes()]
    }

    fn field(&self) -> &GcmField<C> {
        self.field.get_or_init(|| {
            let cipher = C::new_from_slice(self.bytes()).expect("`Gcm::new` checked the length");
            Box::new(GcmField::new(cipher))
        })
    }
}

impl<C: AesCipher + 'static> Aead for Gcm<C> {
    fn seal(&self, nonce: &[u8; NONCE_BYTES], aad: &[u8], text: &mut [u8]) -> [u8; TAG_BYTES] {
        self.whole().seal(nonce, aad, text)
    }

    fn seal_copy(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        text: &[u8],
        last: &[u8],
        out: &mut [u8],
    ) {
        self.whole().seal_copy(nonce, aad, text, last, out);
    }

    fn open(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        sealed: &mut [u8],
    ) -> Result<usize, BadTag> {
        self.whole().open(nonce, aad, sealed)
    }

    fn apply_keystream(&self, nonce: &[u8; NONCE_BYTES], offset: u64, range: &mut [u8]) {
        self.field().apply_keystream(nonce, offset, range);
    }

    fn merge(&self, sum: &mut AuthSum, other: &AuthSum) {
        let mut running = load(sum);
        running.merge(self.field(), load(other));
        *sum = store(running);
    }

    fn finish(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        text_len: u64,
        sum: &AuthSum,
    ) -> [u8; TAG_BYTES] {
        let field = self.field();
        let lengths = length_block(aad.len() as u64, text_len).to_be_bytes();
        let hash = load(sum).finish(field, aad, text_len, &lengths);
        (hash ^ field.encrypted_counter(nonce, FIRST - 1)).to_be_bytes()
    }

    fn ranges(&self) -> Box<dyn AeadRanges> {
        Box::new(GcmRanges::new(&self.key))
    }
}

impl<C> fmt::Debug for Gcm<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gcm(..)")
    }
}

/// Runs of ranges, and decryption of whole texts.
///
/// Encryption and GHASH of a run are one pass of aws-lc over a text of its own. A run begins at any
/// block of the record, but aws-lc begins a text with the block after J0, and its GHASH with zero.
/// Therefore aws-lc gets an IV of 16 bytes, from which it computes J0 as a GHASH (SP 800-38D
/// section 7.1); the IV is chosen such that J0 is the counter block before the run. The sum of the
/// preceding ranges comes first, as a block of associated data. The sum after the run is computed
/// back from the tag. Each of these inverts GHASH, which is a product with the inverse of the hash
/// key. Nonces are safe: the counter blocks, and so the keystream, are those of the whole text.
///
/// Whole texts take the context too, with their own nonce: unlike [`WholeTextKey`], it keeps a text
/// whose tag is wrong, which another pass of the keystream restores.
struct GcmRanges<C> {
    key: Arc<GcmKey<C>>,
    context: GcmContext,
    run: Option<GcmRun>,
}

/// Position of a [`GcmRanges`].
struct GcmRun {
    nonce: [u8; NONCE_BYTES],
    /// Sum over all ranges but those in the context.
    sum: RunningSum<u128>,
    /// Offset of the next range.
    offset: u64,
    in_context: Option<InContext>,
}

/// The part of a run that the context processes.
struct InContext {
    direction: GcmDirection,
    /// True if it began with the sum of the ranges before it, which it therefore contains.
    continues: bool,
    /// Bytes of text since its beginning.
    len: u64,
    /// The encrypted J0, which masks the tag.
    mask: u128,
}

impl<C: AesCipher> AeadRanges for GcmRanges<C> {
    fn seek(&mut self, nonce: &[u8; NONCE_BYTES], sum: &AuthSum, offset: u64) {
        self.run = Some(GcmRun { nonce: *nonce, sum: load(sum), offset, in_context: None });
    }

    fn seal(&mut self, range: &mut [u8]) {
        self.crypt(GcmDirection::Seal, range);
    }

    fn open(&mut self, range: &mut [u8]) {
        self.crypt(GcmDirection::Open, range);
    }

    fn end_run(&mut self) -> AuthSum {
        let Some(mut run) = self.run.take() else { return AuthSum::default() };
        run.leave_context(&mut self.context, self.key.field());
        store(run.sum)
    }

    fn open_whole(
        &mut self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        sealed: &mut [u8],
        _copy: &mut Vec<u8>,
    ) -> Result<usize, BadTag> {
        self.run = None;
        let Some((text, tag)) = sealed.split_last_chunk_mut::<TAG_BYTES>() else {
            return Err(BadTag);
        };
        if text.len() as u64 > TEXT_MAX {
            return Err(BadTag);
        }
        self.pass(GcmDirection::Open, nonce, aad, text);
        // Constant time: timing must not reveal how much of a forged tag was correct.
        let made = self.context.tag();
        if made.iter().zip(&*tag).fold(0, |diff, (a, b)| diff | (a ^ b)) == 0 {
            return Ok(text.len());
        }
        self.pass(GcmDirection::Seal, nonce, aad, text);
        Err(BadTag)
    }
}

impl<C: AesCipher> GcmRanges<C> {
    fn new(key: &Arc<GcmKey<C>>) -> Self {
        let context = GcmContext::new(key.suite, key.bytes()).expect(NO_MEMORY);
        Self { key: Arc::clone(key), context, run: None }
    }

    /// Passes a whole text through the context.
    fn pass(
        &mut self,
        direction: GcmDirection,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        text: &mut [u8],
    ) {
        self.context.begin(direction, nonce, aad);
        for range in text.chunks_mut(CONTEXT_BYTES_MAX) {
            self.context.update(range);
        }
    }

    fn crypt(&mut self, direction: GcmDirection, range: &mut [u8]) {
        let run = self.run.as_mut().expect("the caller has called `seek`");
        let (context, field) = (&mut self.context, self.key.field());
        let end = run.offset.saturating_add(range.len() as u64);
        let running = run.in_context.as_ref().is_some_and(|part| part.direction == direction);
        let fits = field.is_invertible() && end <= TEXT_MAX && range.len() <= CONTEXT_BYTES_MAX;
        let by_context = fits && (running || range.len() >= CONTEXT_BYTES_MIN);
        if !running || !by_context {
            run.leave_context(context, field);
        }
        if by_context {
            run.crypt_in(context, field, direction, range);
        } else {
            run.crypt_apart(field, direction, range);
        }
        run.offset = end;
    }
}

impl GcmRun {
    /// Moves the context's part of the sum to the run's.
    fn leave_context<C: AesCipher>(&mut self, context: &mut GcmContext, field: &GcmField<C>) {
        let Some(part) = self.in_context.take() else { return };
        let hash = u128::from_be_bytes(context.tag()) ^ part.mask;
        let value = multiply(hash, &field.inverse) ^ length_block(BLOCK as u64, part.len);
        // aws-lc has completed the last block with zeros and multiplied.
        let whole = part.len % BLOCK as u64 == 0;
        let value = if whole { value } else { multiply(value, &field.inverse) };
        let sum = RunningSum { value, end: self.offset };
        if part.continues {
            self.sum = sum;
        } else {
            self.sum.merge(field, sum);
        }
    }

    /// Processes a range by the context: in the part that it processes already, or, if the range is
    /// longer than a block, in a new one.
    fn crypt_in<C: AesCipher>(
        &mut self,
        context: &mut GcmContext,
        field: &GcmField<C>,
        direction: GcmDirection,
        range: &mut [u8],
    ) {
        if let Some(part) = &mut self.in_context {
            context.update(range);
            part.len += range.len() as u64;
            return;
        }
        let from = offset_in_block(self.offset, BLOCK);
        let (head, body) = range.split_at_mut(if from == 0 { 0 } else { BLOCK - from });
        let (block, sum) = (self.offset / BLOCK as u64, self.sum);
        let continues = self.offset >= sum.end;
        let value =
            if continues { field.raise(sum.value, block - sum.end / BLOCK as u64) } else { 0 };
        // At most 2^32 - 2, since the range is inside the longest text. If there is a head, the
        // counter block before the body is that of the head.
        let counter = u32::try_from(block).unwrap_or(0) + if from == 0 { FIRST - 1 } else { FIRST };
        let mask = field.encrypted_counter(&self.nonce, counter);
        // Associated data is multiplied by the hash key. The sum of whole blocks was multiplied
        // already; a block that the head completes was not.
        let before = if from == 0 {
            multiply(value, &field.inverse)
        } else {
            value ^ crypt_head(direction, &mask.to_be_bytes()[from..], head)
        };
        let iv = field.iv(counter_block(&self.nonce, counter));
        context.begin(direction, &iv.to_be_bytes(), &before.to_be_bytes());
        context.update(body);
        self.in_context = Some(InContext { direction, continues, len: body.len() as u64, mask });
    }

    /// Processes a range without the context.
    fn crypt_apart<C: AesCipher>(
        &mut self,
        field: &GcmField<C>,
        direction: GcmDirection,
        range: &mut [u8],
    ) {
        if direction == GcmDirection::Open {
            self.sum.add(field, self.offset, range);
        }
        field.apply_keystream(&self.nonce, self.offset, range);
        if direction == GcmDirection::Seal {
            self.sum.add(field, self.offset, range);
        }
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

/// AES in counter mode, and GHASH (SP 800-38D section 6.4) as a polynomial's field. An element is a
/// block read as a big-endian number, which is POLYVAL's element of that value.
struct GcmField<C> {
    cipher: C,
    /// The hash key to the powers of 2^n.
    powers: [[u8; BLOCK]; POWERS],
    /// The inverse of the hash key; zero if the hash key is zero, whose products are all zero.
    inverse: [u8; BLOCK],
    /// Its square.
    inverse_square: [u8; BLOCK],
    /// The block of lengths of an IV of 16 bytes, times `inverse`.
    iv_lengths: u128,
}

impl<C: AesCipher> GcmField<C> {
    fn new(cipher: C) -> Self {
        let mut hash_key = [0; BLOCK].into();
        cipher.encrypt_block(&mut hash_key);
        let hash_key = FieldElement::from(u128::from_be_bytes(hash_key.into())).mulx();
        let mut powers = [hash_key.into(); POWERS];
        for n in 1..POWERS {
            powers[n] = multiply(u128::from_le_bytes(powers[n - 1]), &powers[n - 1]).to_le_bytes();
        }
        let inverse = inverse(&powers[0]);
        Self {
            cipher,
            powers,
            inverse,
            inverse_square: multiply(u128::from_le_bytes(inverse), &inverse).to_le_bytes(),
            iv_lengths: multiply(length_block(0, BLOCK as u64), &inverse),
        }
    }

    /// XORs a range with the keystream; bytes beyond the longest text become zero.
    fn apply_keystream(&self, nonce: &[u8; NONCE_BYTES], offset: u64, range: &mut [u8]) {
        let (inside, beyond) = range.split_at_mut(bytes_within_max(offset, range.len(), TEXT_MAX));
        beyond.fill(0);
        let start = counter_block(nonce, FIRST);
        let counter = CtrCore::<&C, Ctr32BE>::inner_iv_init(&self.cipher, &start.into());
        let mut cipher = StreamCipherCoreWrapper::from_core(counter);
        let done = cipher.try_seek(offset).is_ok() && cipher.try_apply_keystream(inside).is_ok();
        if !done {
            inside.fill(0);
        }
    }

    /// Returns whether sums can be computed back from a tag: whether the hash key is not zero.
    fn is_invertible(&self) -> bool {
        self.inverse != [0; BLOCK]
    }

    /// Returns E(K, counter block).
    fn encrypted_counter(&self, nonce: &[u8; NONCE_BYTES], counter: u32) -> u128 {
        let mut block = counter_block(nonce, counter).into();
        self.cipher.encrypt_block(&mut block);
        u128::from_be_bytes(block.into())
    }

    /// Returns the IV from which AES-GCM computes this J0.
    fn iv(&self, j0: [u8; BLOCK]) -> u128 {
        multiply(u128::from_be_bytes(j0), &self.inverse_square) ^ self.iv_lengths
    }
}

impl<C> Drop for GcmField<C> {
    fn drop(&mut self) {
        // The wiping feature of `polyval` is off: it would wipe a copy for each product, byte by
        // byte, which takes longer than the product.
        self.powers.zeroize();
        self.inverse.zeroize();
        self.inverse_square.zeroize();
        self.iv_lengths.zeroize();
    }
}

impl<C: AesCipher> Field for GcmField<C> {
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
        if n == 0 || a == 0 {
            return a;
        }
        for (bit, power) in self.powers.iter().enumerate() {
            // Not secret: the powers depend on lengths and offsets, which are visible in packets.
            if n >> bit & 1 == 1 {
                a = multiply(a, power);
            }
        }
        if n >> POWERS != 0 { raise_far(&self.powers[POWERS - 1], a, n >> POWERS) } else { a }
    }

    fn blocks(&self, mut a: u128, blocks: &[u8]) -> u128 {
        for some in blocks.chunks(POLYVAL_BYTES) {
            a = self.ghash_by_polyval(a, some);
        }
        a
    }
}

impl<C> GcmField<C> {
    /// Continues GHASH from `a` over at most [`POLYVAL_BYTES`].
    #[inline(never)]
    fn ghash_by_polyval(&self, a: u128, blocks: &[u8]) -> u128 {
        let mut reversed = [[0; BLOCK].into(); POLYVAL_BYTES / BLOCK];
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

/// Encrypts or decrypts the last bytes of a block; returns their ciphertext as an element.
fn crypt_head(direction: GcmDirection, keystream: &[u8], head: &mut [u8]) -> u128 {
    let mut block = [0; BLOCK];
    let place = BLOCK - head.len();
    if direction == GcmDirection::Open {
        block[place..].copy_from_slice(head);
    }
    head.iter_mut().zip(keystream).for_each(|(byte, key)| *byte ^= key);
    if direction == GcmDirection::Seal {
        block[place..].copy_from_slice(head);
    }
    u128::from_be_bytes(block)
}

/// Continues `raise` with `n` times 2^`POWERS`: only in texts longer than any record.
#[cold]
fn raise_far(last: &[u8; BLOCK], mut a: u128, n: u64) -> u128 {
    let mut power = *last;
    for bit in 0..u64::BITS - n.leading_zeros() {
        power = multiply(u128::from_le_bytes(power), &power).to_le_bytes();
        if n >> bit & 1 == 1 {
            a = multiply(a, &power);
        }
    }
    a
}

/// Returns the inverse of an element, its power of 2^128 - 2, by the chain of Itoh and Tsujii. That
/// of zero is zero.
fn inverse(of: &[u8; BLOCK]) -> [u8; BLOCK] {
    let product =
        |a: [u8; BLOCK], b: &[u8; BLOCK]| multiply(u128::from_le_bytes(a), b).to_le_bytes();
    let squared = |a: [u8; BLOCK], times: u32| (0..times).fold(a, |a, _| product(a, &a));
    // `ones` is `of` to the power of 2^bits - 1: 1, 3, 7, 15, 31, 63, 127 bits.
    let (mut ones, mut bits) = (*of, 1);
    while bits < 127 {
        ones = product(squared(ones, bits), &ones);
        ones = product(squared(ones, 1), of);
        bits = 2 * bits + 1;
    }
    squared(ones, 1)
}

/// Returns the counter block of a text with this counter.
fn counter_block(nonce: &[u8; NONCE_BYTES], counter: u32) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    block[..NONCE_BYTES].copy_from_slice(nonce);
    block[NONCE_BYTES..].copy_from_slice(&counter.to_be_bytes());
    block
}

/// Returns the last block of GHASH: the lengths in bits.
fn length_block(aad_bytes: u64, text_bytes: u64) -> u128 {
    u128::from(aad_bytes * 8) << 64 | u128::from(text_bytes.wrapping_mul(8))
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

/// Reason why aws-lc has no context for a key whose length was checked.
const NO_MEMORY: &str = "memory for a key of AES-GCM";
/// Counter of a text's first block; the one before masks the tag (SP 800-38D section 7.1).
const FIRST: u32 = 2;
/// Longest text in bytes (SP 800-38D section 5.2.1.1).
const TEXT_MAX: u64 = (1 << 36) - 32;
/// Shortest range with which the context begins; its fixed cost is that of about as many bytes.
const CONTEXT_BYTES_MIN: usize = 192;
/// Longest range for the context.
const CONTEXT_BYTES_MAX: usize = 1 << 30;
/// Bytes that GHASH by `polyval` takes at a time.
const POLYVAL_BYTES: usize = 320;
/// Precomputed powers of the hash key: for the number of blocks in a TLS record.
const POWERS: usize = 11;

#[cfg(test)]
mod tests {
    use super::*;

    /// All other tests would also pass if no range were processed by the context.
    #[test]
    fn the_context_processes_long_ranges_and_what_follows_them() {
        let key = Gcm::<Aes128Enc>::new(Suite::Aes128Gcm, &[7; 16]).unwrap();
        let mut ranges = GcmRanges::new(&key.key);
        let in_context = |ranges: &GcmRanges<_>| {
            ranges.run.as_ref().and_then(|run| run.in_context.as_ref()).map_or(0, |part| part.len)
        };
        ranges.seek(&[1; NONCE_BYTES], &AuthSum::default(), 24);
        ranges.open(&mut [0; 100]);
        assert_eq!(in_context(&ranges), 0, "too short to begin with");
        ranges.open(&mut [0; 1448]);
        // Bytes 124 to 128 complete a block.
        assert_eq!(in_context(&ranges), 1444);
        ranges.open(&mut [0; 3]);
        assert_eq!(in_context(&ranges), 1447);
        ranges.seal(&mut [0; 300]);
        assert!((285..=300).contains(&in_context(&ranges)), "another part");
    }
}
