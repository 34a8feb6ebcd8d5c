//! A fast hash of two words, for seeded tables of bounded size. Not cryptographic.

/// Returns a hash of two words under a seed: a folded 64-by-64 multiplication, twice.
#[must_use]
#[inline]
pub const fn mix(seed: u64, a: u64, b: u64) -> u64 {
    const fn fold(x: u64, y: u64) -> u64 {
        let product = x as u128 * y as u128;
        #[expect(clippy::cast_possible_truncation, reason = "the two halves of the product")]
        let halves = (product as u64, (product >> 64) as u64);
        halves.0 ^ halves.1
    }
    let first = fold(a ^ seed, 0x9e37_79b9_7f4a_7c15);
    fold(first ^ b, seed | 0x2545_f491_4f6c_dd1d)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_spread() {
        // 64 buckets, 4096 consecutive keys: no bucket empty, none with four times its share.
        let mut buckets = [0; 64];
        for flow in 0..4096 {
            buckets[usize::try_from(mix(7, 0, flow) % 64).unwrap()] += 1;
        }
        assert!(buckets.iter().all(|&n| n > 0 && n < 256), "{buckets:?}");
    }
}
