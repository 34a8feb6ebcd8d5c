//! A tuple as bytes, for keyed hashes, and as words, for the fast hash of bounded tables.
//!
//! [`with_bytes`] is for SipHash: tables whose size an attacker can determine, initial sequence
//! numbers, cookies. [`hash_tuple`] is for bounded tables that are searched for each packet: its
//! seed prevents chosen collisions, but it must not protect secrets.

use core::net::IpAddr;

use base::mix;
use wire::Tuple;
use wire::emit::to_v6_octets;

/// Maximum number of bytes of a tuple: two IPv6 addresses and two ports.
pub const BYTES_MAX: usize = 36;

/// Calls `f` with the tuple as bytes, addresses before ports: 12 bytes for IPv4, else
/// [`BYTES_MAX`], so that the families cannot be confused.
#[inline]
pub fn with_bytes<R>(tuple: &Tuple, f: impl FnOnce(&[u8]) -> R) -> R {
    let (local, remote) = (tuple.local, tuple.remote);
    let ports = u32::from(local.port) << 16 | u32::from(remote.port);
    match (local.addr, remote.addr) {
        (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
            let mut bytes = [0; 12];
            bytes[..4].copy_from_slice(&ours.octets());
            bytes[4..8].copy_from_slice(&theirs.octets());
            bytes[8..].copy_from_slice(&ports.to_be_bytes());
            f(&bytes)
        }
        (ours, theirs) => {
            let mut bytes = [0; BYTES_MAX];
            bytes[..16].copy_from_slice(&to_v6_octets(ours));
            bytes[16..32].copy_from_slice(&to_v6_octets(theirs));
            bytes[32..].copy_from_slice(&ports.to_be_bytes());
            f(&bytes)
        }
    }
}

/// Returns a seeded hash of the tuple, by [`mix`].
#[must_use]
#[inline]
pub fn hash_tuple(seed: u64, tuple: &Tuple) -> u64 {
    let ports = u64::from(tuple.local.port) << 16 | u64::from(tuple.remote.port);
    match (tuple.local.addr, tuple.remote.addr) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => {
            mix(seed, u64::from(u32::from(local)) << 32 | u64::from(u32::from(remote)), ports)
        }
        (local, remote) => {
            let ((l1, l0), (r1, r0)) = (halves(local), halves(remote));
            mix(mix(mix(seed, l1, l0), r1, r0), seed, ports)
        }
    }
}

fn halves(addr: IpAddr) -> (u64, u64) {
    let bits = match addr {
        IpAddr::V4(v4) => u32::from(v4).into(),
        IpAddr::V6(v6) => u128::from(v6),
    };
    #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
    let halves = ((bits >> 64) as u64, bits as u64);
    halves
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use wire::Endpoint;

    fn tuple(local: &str, remote: &str) -> Tuple {
        let end = |text: &str| {
            let socket: core::net::SocketAddr = text.parse().unwrap();
            Endpoint { addr: socket.ip(), port: socket.port() }
        };
        Tuple { local: end(local), remote: end(remote) }
    }

    #[test]
    fn bytes_are_addresses_and_ports() {
        let v4 = with_bytes(&tuple("1.2.3.4:258", "5.6.7.8:772"), <[u8]>::to_vec);
        assert_eq!(v4, [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4]);
        let v6 = with_bytes(&tuple("[100::1]:258", "[200::2]:772"), <[u8]>::to_vec);
        assert_eq!((v6.len(), &v6[32..]), (BYTES_MAX, &[1, 2, 3, 4][..]));
        assert_eq!((v6[0], v6[15], v6[16], v6[31]), (1, 1, 2, 2));
    }

    /// Each part of the tuple, and the seed, changes the hash, in both families.
    #[test]
    fn hashes_differ() {
        for all in [["1.0.0.1:5", "1.0.0.1:6", "2.0.0.1:5"], ["[1::1]:5", "[1::1]:6", "[1::2]:5"]] {
            let pairs = all.map(|local| all.map(|remote| tuple(local, remote)));
            let tuples = pairs.iter().flatten();
            let mut hashes: Vec<u64> =
                tuples.flat_map(|tuple| [hash_tuple(1, tuple), hash_tuple(2, tuple)]).collect();
            hashes.sort_unstable();
            hashes.dedup();
            assert_eq!(hashes.len(), 18);
        }
    }
}
