//! Hashing with a secret key, so that nobody outside can choose who shares a bucket.

use core::hash::{BuildHasher, Hasher};
use core::net::IpAddr;

use base::Prng;
use siphasher::sip::SipHasher13;
use wire::Tuple;
use wire::emit::to_v6_octets;

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
        write_tuple(tuple, &mut hasher);
        hasher.finish()
    }
}

/// Writes a tuple as bytes, in one piece: addresses, then ports.
pub(crate) fn write_tuple(tuple: &Tuple, hasher: &mut impl Hasher) {
    let (local, remote) = (tuple.local, tuple.remote);
    let ports = u32::from(local.port) << 16 | u32::from(remote.port);
    match (local.addr, remote.addr) {
        (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
            let mut bytes = [0; 12];
            bytes[..4].copy_from_slice(&ours.octets());
            bytes[4..8].copy_from_slice(&theirs.octets());
            bytes[8..].copy_from_slice(&ports.to_be_bytes());
            hasher.write(&bytes);
        }
        (ours, theirs) => {
            let mut bytes = [0; 36];
            bytes[..16].copy_from_slice(&to_v6_octets(ours));
            bytes[16..32].copy_from_slice(&to_v6_octets(theirs));
            bytes[32..].copy_from_slice(&ports.to_be_bytes());
            hasher.write(&bytes);
        }
    }
}

impl BuildHasher for Keyed {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0, self.1)
    }
}
