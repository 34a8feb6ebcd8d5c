//! Hashing with a secret key, so that peers cannot choose which keys collide.

use core::hash::BuildHasher;

use base::Prng;
use siphasher::sip::SipHasher13;
use tcp_rules::tuple::with_bytes;
use wire::Tuple;

/// Builds SipHash-1-3 hashers with a fixed key.
#[derive(Clone, Debug)]
pub(crate) struct KeyedHashBuilder(u64, u64);

impl KeyedHashBuilder {
    pub(crate) const fn random(prng: &mut Prng) -> Self {
        Self(prng.next_u64(), prng.next_u64())
    }
}

impl KeyedHashBuilder {
    /// Returns the hash of a tuple, from one pass over its bytes.
    pub(crate) fn tuple(&self, tuple: &Tuple) -> u64 {
        let hasher = self.build_hasher();
        with_bytes(tuple, |bytes| hasher.hash(bytes))
    }
}

impl BuildHasher for KeyedHashBuilder {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0, self.1)
    }
}
