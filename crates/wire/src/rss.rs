//! Receive-side scaling (RSS): the Toeplitz hash of a tuple, as NICs compute it.
//!
//! The device hashes each received packet to select the flow's queue. The host's connection table
//! uses another hash, which is safe against chosen input; this one is linear.

use core::net::IpAddr;

use base::Prng;

use crate::Tuple;
use crate::emit::to_v6_octets;

/// Maximum input length, that of IPv6: two addresses and two ports.
const INPUT_BYTES_MAX: usize = 36;

/// Toeplitz hash function, with the key expanded to a table per input nibble.
#[derive(Clone)]
pub struct Toeplitz {
    tables: [[u32; 16]; INPUT_BYTES_MAX * 2],
}

impl Toeplitz {
    /// Expands a 40-byte key.
    #[must_use]
    pub fn new(key: &[u8; 40]) -> Self {
        let mut tables = [[0; 16]; INPUT_BYTES_MAX * 2];
        for (nibble, table) in tables.iter_mut().enumerate() {
            let windows: [u32; 4] = core::array::from_fn(|bit| window(key, nibble * 4 + bit));
            for (value, entry) in table.iter_mut().enumerate() {
                for (bit, window) in windows.iter().enumerate() {
                    if value & (8 >> bit) != 0 {
                        *entry ^= window;
                    }
                }
            }
        }
        Self { tables }
    }

    /// Creates a function with a key from `prng`, so that peers cannot predict a flow's queue.
    #[must_use]
    pub fn random(prng: &mut Prng) -> Self {
        let mut key = [0; 40];
        for chunk in key.chunks_exact_mut(8) {
            chunk.copy_from_slice(&prng.next_u64().to_be_bytes());
        }
        Self::new(&key)
    }

    /// Returns the hash of a received packet's tuple; the remote end is the packet's source.
    #[must_use]
    pub fn hash(&self, tuple: &Tuple) -> u32 {
        let ports = u32::from(tuple.remote.port) << 16 | u32::from(tuple.local.port);
        match (tuple.remote.addr, tuple.local.addr) {
            (IpAddr::V4(remote), IpAddr::V4(local)) => {
                let mut bytes = [0; 12];
                bytes[..4].copy_from_slice(&remote.octets());
                bytes[4..8].copy_from_slice(&local.octets());
                bytes[8..].copy_from_slice(&ports.to_be_bytes());
                self.feed(&bytes)
            }
            (remote, local) => {
                let mut bytes = [0; INPUT_BYTES_MAX];
                bytes[..16].copy_from_slice(&to_v6_octets(remote));
                bytes[16..32].copy_from_slice(&to_v6_octets(local));
                bytes[32..].copy_from_slice(&ports.to_be_bytes());
                self.feed(&bytes)
            }
        }
    }

    /// Returns the tables: for each nibble of the input, in order, the contribution of each value
    /// to the hash.
    #[must_use]
    pub const fn tables(&self) -> &[[u32; 16]; INPUT_BYTES_MAX * 2] {
        &self.tables
    }

    fn feed(&self, bytes: &[u8]) -> u32 {
        let pairs = self.tables.chunks_exact(2).zip(bytes);
        pairs.fold(0, |hash, (pair, byte)| {
            hash ^ pair[0][usize::from(byte >> 4)] ^ pair[1][usize::from(byte & 15)]
        })
    }
}

impl core::fmt::Debug for Toeplitz {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Toeplitz(..)")
    }
}

/// Returns the 32 bits of the key that start at bit `at`.
fn window(key: &[u8; 40], at: usize) -> u32 {
    let bytes = key.iter().skip(at / 8).take(5);
    let bits = bytes.fold(0, |bits, byte| bits << 8 | u64::from(*byte));
    let [.., a, b, c, d] = (bits >> (8 - at % 8)).to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Endpoint;

    /// Key and vectors of Microsoft's "Verifying the RSS Hash Calculation".
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    fn tuple(remote: (&str, u16), local: (&str, u16)) -> Tuple {
        let end = |(addr, port): (&str, u16)| Endpoint { addr: addr.parse().unwrap(), port };
        Tuple { local: end(local), remote: end(remote) }
    }

    #[test]
    fn microsoft_vectors() {
        let rss = Toeplitz::new(&KEY);
        let v4 = tuple(("66.9.149.187", 2794), ("161.142.100.80", 1766));
        assert_eq!(rss.hash(&v4), 0x51cc_c178);
        let v6 = tuple(("3ffe:2501:200:1fff::7", 2794), ("3ffe:2501:200:3::1", 1766));
        assert_eq!(rss.hash(&v6), 0x4020_7d3d);
    }
}
