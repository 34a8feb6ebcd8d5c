//! Hashes that are not cryptographic: of two words, for seeded tables of bounded size, and of
//! bytes, for numbers that must be the same on every machine.

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

/// Returns the 64-bit FNV-1a hash of bytes.
#[must_use]
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
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

    /// Values of the reference implementation's test suite.
    #[test]
    fn fnv1a_has_the_published_values() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
