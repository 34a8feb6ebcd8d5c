//! Hashing with a secret key, so that nobody outside can choose who shares a bucket.

use core::hash::{BuildHasher, Hasher};
use core::net::IpAddr;

use base::Prng;
use siphasher::sip::SipHasher13;
use smallvec::SmallVec;
use wire::Tuple;

/// Builds SipHash-1-3 with a fixed key.
#[derive(Clone, Debug)]
pub(crate) struct Keyed(u64, u64);

impl Keyed {
    pub(crate) const fn random(prng: &mut Prng) -> Self {
        Self(prng.next_u64(), prng.next_u64())
    }
}

impl Keyed {
    /// Hash of a tuple, in one call over its bytes.
    pub(crate) fn tuple(&self, tuple: &Tuple) -> u64 {
        let mut hasher = self.build_hasher();
        hasher.write(tuple_bytes(tuple).as_ref());
        hasher.finish()
    }
}

/// A tuple as bytes: addresses, then ports.
pub(crate) fn tuple_bytes(tuple: &Tuple) -> impl AsRef<[u8]> {
    let mut bytes = SmallVec::<[u8; 36]>::new();
    for addr in [tuple.local.addr, tuple.remote.addr] {
        match addr {
            IpAddr::V4(v4) => bytes.extend_from_slice(&v4.octets()),
            IpAddr::V6(v6) => bytes.extend_from_slice(&v6.octets()),
        }
    }
    bytes.extend_from_slice(&tuple.local.port.to_be_bytes());
    bytes.extend_from_slice(&tuple.remote.port.to_be_bytes());
    bytes
}

impl BuildHasher for Keyed {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0, self.1)
    }
}
