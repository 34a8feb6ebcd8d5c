//! A small seeded generator, so that every run can be replayed from its seed.
//!
//! SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).
//! Not for secrets by itself: callers that need unpredictable numbers seed it from the operating
//! system and hash its output with a key.

/// A pseudorandom generator. Equal seeds give equal sequences on every machine.
#[derive(Clone, Debug)]
pub struct Prng(u64);

impl Prng {
    /// Returns a generator that starts from `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns the next 32 bits.
    pub const fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    /// Returns a number below `bound`; zero if `bound` is zero. The bias is below 2^-32 for the
    /// bounds used here.
    pub const fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 {
            return 0;
        }
        ((self.next_u64() as u128 * bound as u128) >> 64) as u64
    }

    /// Returns a number in `low..=high`.
    pub const fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns true with probability `p` (clamped to 0..=1).
    pub fn chance(&mut self, p: f64) -> bool {
        p > 0.0 && self.unit() < p
    }

    /// Returns a number in `0.0..1.0`.
    pub const fn unit(&mut self) -> f64 {
        // 53 bits: the precision of an f64.
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns an independent generator, for a part that must not disturb this one's sequence.
    pub const fn fork(&mut self) -> Self {
        Self::new(self.next_u64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_sequence() {
        // Reference values of SplitMix64 for seed 1234567, as published with the algorithm.
        let mut prng = Prng::new(1_234_567);
        assert_eq!(prng.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(prng.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn bounds_hold() {
        let mut prng = Prng::new(1);
        for _ in 0..10_000 {
            assert!(prng.below(7) < 7);
            assert!((3..=5).contains(&prng.range(3, 5)));
            assert!((0.0..1.0).contains(&prng.unit()));
        }
        assert!(!prng.chance(0.0));
        assert!(prng.chance(1.0));
        assert_eq!(prng.below(0), 0);
    }
}
