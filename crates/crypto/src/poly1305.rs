//! Poly1305's field (RFC 8439 section 2.5): numbers modulo 2^130 - 5.
//!
//! Called by [`crate::chacha`] for each record, with the `r` of its nonce. Our own, since no
//! library returns a sum before its end or multiplies by powers of `r`. Constant time: no branch
//! and no index depends on `r` or the text.
//!
//! Invariant: an element's limbs have 44, 44 and 42 bits, the middle one perhaps with a carry of
//! about one more; only [`Poly1305Element::to_number`] reduces completely.

use crate::horner::{BLOCK, Field, block_at};
use crate::{halves, low};

/// A number as `l0 + l1 2^44 + l2 2^88`.
#[derive(Clone, Copy, Default)]
pub(crate) struct Poly1305Element(pub(crate) [u64; 3]);

impl Poly1305Element {
    /// Returns a little-endian number plus `high` times 2^128.
    #[inline]
    fn read(bytes: [u8; BLOCK], high: u64) -> Self {
        let [low, top] = halves(u128::from_le_bytes(bytes));
        Self([low & M44, (low >> 44 | top << 20) & M44, top >> 24 | high << 40])
    }

    fn plus(self, other: Self) -> Self {
        let ([a, b, c], [x, y, z]) = (self.0, other.0);
        Self([a + x, b + y, c + z])
    }

    fn times(self, other: &Poly1305Factor) -> Self {
        carry(other.product(self))
    }

    /// Returns the number modulo 2^130 - 5, modulo 2^128.
    pub(crate) fn to_number(self) -> u128 {
        let [mut a, mut b, mut c] = self.0;
        // Twice, since the first carry out of the top limb may propagate through all limbs.
        for _ in 0..2 {
            b += a >> 44;
            a &= M44;
            c += b >> 44;
            b &= M44;
            a += (c >> 42) * 5;
            c &= M42;
        }
        b += a >> 44;
        a &= M44;
        c += b >> 44;
        b &= M44;
        // A number of at least 2^130 - 5 carries into bit 130 when 5 is added.
        let five = a + 5;
        let over = (c + ((b + (five >> 44)) >> 44)) >> 42;
        a += 5 * over;
        b += a >> 44;
        a &= M44;
        c += b >> 44;
        b &= M44;
        u128::from(a) | u128::from(b) << 44 | u128::from(c & M42) << 88
    }
}

/// A multiplier with precomputed limbs.
#[derive(Clone, Copy)]
struct Poly1305Factor {
    limbs: [u64; 3],
    /// Limbs one and two, times 20: 2^132 is 20 modulo 2^130 - 5.
    folded: [u64; 2],
}

impl Poly1305Factor {
    fn new(Poly1305Element(limbs): Poly1305Element) -> Self {
        Self { limbs, folded: [limbs[1] * 20, limbs[2] * 20] }
    }

    /// Returns the limbs of the product before carries: each less than 2^98 for limbs of 46 bits.
    #[inline]
    fn product(&self, Poly1305Element([a, b, c]): Poly1305Element) -> [u128; 3] {
        let wide = |x: u64, y: u64| u128::from(x) * u128::from(y);
        let ([r0, r1, r2], [s1, s2]) = (self.limbs, self.folded);
        [
            wide(a, r0) + wide(b, s2) + wide(c, s1),
            wide(a, r1) + wide(b, r0) + wide(c, s2),
            wide(a, r2) + wide(b, r1) + wide(c, r0),
        ]
    }
}

/// Propagates carries, so that limbs of up to 2^102 have their sizes again.
#[inline]
fn carry([a, mut b, mut c]: [u128; 3]) -> Poly1305Element {
    b += a >> 44;
    c += b >> 44;
    let folded = (low(a) & M44) + low(c >> 42) * 5;
    Poly1305Element([folded & M44, (low(b) & M44) + (folded >> 44), low(c) & M42])
}

/// The field with the `r` of one nonce.
pub(crate) struct Poly1305 {
    /// `r^4, r^3, r^2, r`: four blocks at a time shorten the chain of dependent multiplications.
    powers: [Poly1305Factor; LANES],
}

impl Poly1305 {
    /// Returns the field for `r` as it comes from the keystream; `r` is clamped here.
    pub(crate) fn new(r: u128) -> Self {
        let r = Poly1305Element::read((r & CLAMP).to_le_bytes(), 0);
        let mut powers = [Poly1305Factor::new(r); LANES];
        let mut power = r;
        for factor in powers.iter_mut().rev().skip(1) {
            power = power.times(&Poly1305Factor::new(r));
            *factor = Poly1305Factor::new(power);
        }
        Self { powers }
    }

    /// Returns `r`.
    const fn r(&self) -> &Poly1305Factor {
        &self.powers[LANES - 1]
    }

    /// Processes as many blocks as there are powers.
    #[inline]
    fn lanes(&self, a: Poly1305Element, blocks: &[u8]) -> Poly1305Element {
        let mut sum = self.powers[0].product(a.plus(Poly1305Element::read(block_at(blocks, 0), 1)));
        for (lane, power) in self.powers.iter().enumerate().skip(1) {
            let product = power.product(Poly1305Element::read(block_at(blocks, lane), 1));
            sum = std::array::from_fn(|n| sum[n] + product[n]);
        }
        carry(sum)
    }
}

impl Field for Poly1305 {
    type Element = Poly1305Element;

    fn sum(&self, a: Poly1305Element, b: Poly1305Element) -> Poly1305Element {
        // The sum's limbs have up to 46 bits; the carry brings them back to their sizes.
        let [x, y, z] = a.plus(b).0;
        carry([x.into(), y.into(), z.into()])
    }

    fn block(&self, bytes: &[u8; BLOCK], first: bool) -> Poly1305Element {
        Poly1305Element::read(*bytes, u64::from(first))
    }

    fn step(&self, a: Poly1305Element) -> Poly1305Element {
        a.times(self.r())
    }

    fn raise(&self, mut a: Poly1305Element, mut n: u64) -> Poly1305Element {
        let mut power = *self.r();
        // Not secret: `n` depends on lengths and offsets, which are visible in packets.
        while n != 0 {
            if n & 1 == 1 {
                a = a.times(&power);
            }
            n >>= 1;
            if n != 0 {
                power = Poly1305Factor::new(Poly1305Element(power.limbs).times(&power));
            }
        }
        a
    }

    fn blocks(&self, mut a: Poly1305Element, blocks: &[u8]) -> Poly1305Element {
        let mut groups = blocks.chunks_exact(LANES * BLOCK);
        for group in &mut groups {
            a = self.lanes(a, group);
        }
        for block in groups.remainder().chunks_exact(BLOCK) {
            a = self.step(a.plus(Poly1305Element::read(block_at(block, 0), 1)));
        }
        a
    }
}

/// Blocks that are processed at a time. The sum of their products stays below 2^102.
const LANES: usize = 4;
const M44: u64 = (1 << 44) - 1;
const M42: u64 = (1 << 42) - 1;
/// Bits of `r` that may be set (RFC 8439 section 2.5).
const CLAMP: u128 = 0x0fff_fffc_0fff_fffc_0fff_fffc_0fff_ffff;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A number below 2^130 as bits 0..65 and 65..130, with bitwise arithmetic: slow and simple.
    type Plain = [u128; 2];
    const HALF: u128 = (1 << 65) - 1;
    const P: Plain = [HALF - 4, HALF];

    fn plain_sum(a: Plain, b: Plain) -> Plain {
        let low = a[0] + b[0];
        let sum = [low & HALF, a[1] + b[1] + (low >> 65)];
        let less = |a: Plain, b: Plain| (a[1], a[0]) < (b[1], b[0]);
        if less(sum, P) {
            return sum;
        }
        let low = sum[0] + (1 << 65) - P[0];
        [low & HALF, sum[1] + (low >> 65) - P[1] - 1]
    }

    fn plain_product(a: Plain, b: Plain) -> Plain {
        (0..130).rev().fold([0, 0], |sum, bit| {
            let sum = plain_sum(sum, sum);
            if b[bit / 65] >> (bit % 65) & 1 == 1 { plain_sum(sum, a) } else { sum }
        })
    }

    fn plain_block(block: &[u8]) -> Plain {
        let number = u128::from_le_bytes(block.try_into().unwrap());
        plain_sum([number & HALF, number >> 65 | 1 << 63], [0, 0])
    }

    fn plain_hash(r: u128, blocks: &[u8]) -> u128 {
        let r = r & CLAMP;
        let sum = blocks.chunks(BLOCK).fold([0, 0], |sum, block| {
            plain_product(plain_sum(sum, plain_block(block)), [r & HALF, r >> 65])
        });
        sum[0] | sum[1] << 65
    }

    fn hash(r: u128, blocks: &[u8]) -> u128 {
        Poly1305::new(r).blocks(Poly1305Element::default(), blocks).to_number()
    }

    /// RFC 8439 appendix A.3, from number 7 on: sums next to the modulus and to powers of two.
    #[test]
    fn sums_that_wrap() {
        let block = |first: u8, rest: u8| {
            let mut block = [rest; BLOCK];
            block[0] = first;
            block
        };
        assert_eq!(hash(2, &block(255, 255)), 3);
        assert_eq!(hash(2, &block(2, 0)).wrapping_add(u128::MAX), 3);
        let blocks = [block(255, 255), block(0xf0, 255), block(0x11, 0)];
        assert_eq!(hash(1, blocks.as_flattened()), 5);
        let blocks = [block(255, 255), block(0xfb, 0xfe), block(1, 1)];
        assert_eq!(hash(1, blocks.as_flattened()), 0);
        assert_eq!(hash(2, &block(0xfd, 255)), u128::MAX - 5);
        let numbers: [u128; 4] = [0xb943_5e50_d794_35e3, 0x1_cd79_435e_50d7_9433, 0, 1];
        let blocks = numbers.map(u128::to_le_bytes);
        let r = 1 | 4 << 64;
        assert_eq!(hash(r, blocks.as_flattened()), 0x14 | 0x55 << 64);
        assert_eq!(hash(r, blocks[..3].as_flattened()), 0x13);
    }

    /// Numbers about the modulus, with limbs of all sizes, are reduced below it.
    #[test]
    fn reduction_is_complete() {
        for (low, want) in [(M44 - 5, u128::MAX - 5), (M44 - 4, 0), (M44 - 3, 1), (M44, 4)] {
            assert_eq!(Poly1305Element([low, M44, M42]).to_number(), want);
            let borrowed = Poly1305Element([low + (1 << 44), M44 - 1, M42]);
            assert_eq!(borrowed.to_number(), want);
            let doubled = Poly1305Element([low * 2, M44 * 2, M42 * 2]).to_number();
            let plain = [u128::from(low) | (u128::from(M44) << 44) & HALF, HALF];
            let plain = plain_sum(plain_sum(plain, [0, 0]), plain_sum(plain, [0, 0]));
            assert_eq!(doubled, plain[0] | plain[1] << 65);
        }
    }

    fn extreme() -> impl Strategy<Value = u128> {
        let near = prop_oneof![Just(0_u128), Just(u128::MAX), Just(u128::MAX - 4), Just(1 << 127)];
        prop_oneof![any::<u128>(), near]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..<_>::default() })]

        #[test]
        fn agrees_with_long_multiplication(
            r in extreme(),
            blocks in prop::collection::vec(extreme().prop_map(u128::to_le_bytes), 0..12),
        ) {
            prop_assert_eq!(hash(r, blocks.as_flattened()), plain_hash(r, blocks.as_flattened()));
        }

        #[test]
        fn powers_are_repeated_steps(r in extreme(), start in extreme(), n in 0..70_u64) {
            let field = Poly1305::new(r);
            let start = field.block(&start.to_le_bytes(), true);
            let stepped = (0..n).fold(start, |a, _| field.step(a));
            prop_assert_eq!(field.raise(start, n).to_number(), stepped.to_number());
        }
    }
}
