//! Evaluation of an authenticator's polynomial over ranges of a text, in any order.
//!
//! Called by [`crate::gcm`] and [`crate::chacha`], each with its [`Field`]. GHASH and Poly1305 are
//! the same polynomial over different fields: `((b0 x + b1) x + b2) x ..`, with the text's 16-byte
//! blocks as coefficients and a secret `x`. Horner's rule runs along the text; a block of which
//! only some bytes are known counts as if the others were zero, since the contributions of its
//! bytes add up.
//!
//! Invariant of [`RunningSum`]: with `n` the number of whole blocks before `end`, block `i` is in
//! `value` with the factor `x^(n - i)`. So the block in which `end` lies has the factor one and
//! needs no buffer, and a range that begins at `end` needs no power of `x`. Other ranges need one.
//!
//! The length of the text is not known here, nor whether a range was added twice.

use crate::offset_in_block;

/// Bytes of a block of the polynomial.
pub(crate) const BLOCK: usize = 16;

/// Returns block `n` of `blocks`.
#[inline]
pub(crate) fn block_at(blocks: &[u8], n: usize) -> [u8; BLOCK] {
    // The default is for indexes that no caller uses.
    blocks[n * BLOCK..].first_chunk().copied().unwrap_or_default()
}

/// A finite field, with the secret `x`, over which the polynomial is evaluated.
pub(crate) trait Field {
    /// An element of the field. The default is zero.
    type Element: Copy + Default;

    /// Returns `a + b`.
    fn sum(&self, a: Self::Element, b: Self::Element) -> Self::Element;

    /// Returns a block as an element; unknown bytes are zero. What the field adds to each block is
    /// added with the block's first byte, so `first` tells whether that byte is known.
    fn block(&self, bytes: &[u8; BLOCK], first: bool) -> Self::Element;

    /// Returns `a x`.
    fn step(&self, a: Self::Element) -> Self::Element;

    /// Returns `a x^n`.
    fn raise(&self, a: Self::Element, n: u64) -> Self::Element;

    /// Applies `a = (a + block) x` for each of a whole number of blocks; returns the last `a`.
    fn blocks(&self, a: Self::Element, blocks: &[u8]) -> Self::Element;
}

/// The polynomial over all ranges that were added, evaluated up to `end` (see the module's
/// invariant).
#[derive(Clone, Copy, Default)]
pub(crate) struct RunningSum<E> {
    pub(crate) value: E,
    /// Offset of the end of the range that reaches furthest, in bytes.
    pub(crate) end: u64,
}

impl<E: Copy + Default> RunningSum<E> {
    /// Adds the range at `offset`.
    pub(crate) fn add<F: Field<Element = E>>(&mut self, field: &F, offset: u64, range: &[u8]) {
        let (head, body) = head_and_body(offset, range.len());
        if range.is_empty() {
            return;
        }
        self.add_by(field, offset, |mut a| {
            let (first, rest) = range.split_at(head);
            let (blocks, last) = rest.split_at(body);
            a = add_partial_block(field, a, offset, first);
            if !blocks.is_empty() {
                a = field.blocks(a, blocks);
            }
            (add_partial_block(field, a, 0, last), end_of(offset, range.len()))
        });
    }

    /// Continues the evaluation at `offset` if that is not before `end`; else evaluates the range
    /// separately and merges.
    fn add_by<F: Field<Element = E>>(
        &mut self,
        field: &F,
        offset: u64,
        evaluate: impl FnOnce(E) -> (E, u64),
    ) {
        if offset >= self.end {
            let from = field.raise(self.value, block_of(offset) - block_of(self.end));
            let (value, end) = evaluate(from);
            *self = Self { value, end };
        } else {
            let (value, end) = evaluate(E::default());
            self.merge(field, Self { value, end });
        }
    }

    /// Adds the polynomial over other ranges.
    pub(crate) fn merge<F: Field<Element = E>>(&mut self, field: &F, other: Self) {
        let (low, high) = if self.end <= other.end { (*self, other) } else { (other, *self) };
        let raised = field.raise(low.value, block_of(high.end) - block_of(low.end));
        *self = Self { value: field.sum(high.value, raised), end: high.end };
    }

    /// Returns the polynomial of `aad`, then of the text of `text_len` bytes that was added, each
    /// padded with zeros to whole blocks, then of the block of their lengths; with a last factor of
    /// `x`.
    pub(crate) fn finish<F: Field<Element = E>>(
        self,
        field: &F,
        aad: &[u8],
        text_len: u64,
        lengths: &[u8; BLOCK],
    ) -> E {
        let mut header = Self::default();
        header.add(field, 0, aad);
        let blocks = text_len.div_ceil(BLOCK as u64);
        let text = field.raise(self.value, blocks.saturating_sub(block_of(self.end)));
        let open = u64::from(aad.len() % BLOCK != 0);
        let sum = field.sum(field.raise(header.value, blocks + open), text);
        field.step(field.sum(sum, field.block(lengths, true)))
    }
}

/// Returns the end of a range. Saturates only beyond every valid text, where the tag is
/// meaningless.
fn end_of(offset: u64, len: usize) -> u64 {
    offset.saturating_add(len as u64)
}

fn block_of(offset: u64) -> u64 {
    offset / BLOCK as u64
}

/// Returns how many bytes of the range are before its first whole block, and how many in whole
/// blocks.
fn head_and_body(offset: u64, len: usize) -> (usize, usize) {
    let head = offset_in_block(offset.wrapping_neg(), BLOCK);
    let head = head.min(len);
    (head, (len - head) / BLOCK * BLOCK)
}

/// Adds bytes within one block, and multiplies by `x` if they complete it.
fn add_partial_block<F: Field>(field: &F, a: F::Element, offset: u64, bytes: &[u8]) -> F::Element {
    if bytes.is_empty() {
        return a;
    }
    let from = offset_in_block(offset, BLOCK);
    let mut block = [0; BLOCK];
    block[from..from + bytes.len()].copy_from_slice(bytes);
    let a = field.sum(a, field.block(&block, from == 0));
    if from + bytes.len() == BLOCK { field.step(a) } else { a }
}
