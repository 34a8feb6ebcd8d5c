//! What is in files: a function of the version and the offset, so that any byte can be checked and
//! none has to be stored.
//!
//! [`Catalogue`] knows every version that was ever on the disk: what a response names has to be one
//! of them.

use std::collections::BTreeMap;

use crate::trace::mix;

const WORD: u64 = 8;

fn word(version: u64, index: u64) -> [u8; 8] {
    mix(version ^ index.wrapping_mul(0xd134_2543_de82_ef95)).to_le_bytes()
}

/// Fills `out` with the bytes of `version` from `offset`.
pub(crate) fn fill(version: u64, offset: u64, out: &mut [u8]) {
    let mut at = 0;
    while at < out.len() {
        let here = offset + at as u64;
        // At most seven.
        let within = (here % WORD) as usize;
        let bytes = word(version, here / WORD);
        let len = (bytes.len() - within).min(out.len() - at);
        out[at..at + len].copy_from_slice(&bytes[within..within + len]);
        at += len;
    }
}

/// Compares `bytes` with those of `version` from `offset`; gives the place of the first that
/// differs.
pub(crate) fn check(version: u64, offset: u64, bytes: &[u8]) -> Result<(), usize> {
    let mut at = 0;
    while at < bytes.len() {
        let here = offset + at as u64;
        let within = (here % WORD) as usize;
        let right = word(version, here / WORD);
        let len = (right.len() - within).min(bytes.len() - at);
        if bytes[at..at + len] != right[within..within + len] {
            let differs = (0..len).find(|i| bytes[at + i] != right[within + i]);
            return Err(at + differs.unwrap_or(0));
        }
        at += len;
    }
    Ok(())
}

/// A version of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    /// Which file.
    pub(crate) file: usize,
    /// Bytes.
    pub(crate) size: u64,
}

/// Every version that was ever on the disk.
#[derive(Debug, Default)]
pub(crate) struct Catalogue {
    versions: BTreeMap<u64, Version>,
}

impl Catalogue {
    /// A version appeared on the disk.
    pub(crate) fn add(&mut self, version: u64, file: usize, size: u64) {
        self.versions.insert(version, Version { file, size });
    }

    /// The version of that name.
    pub(crate) fn find(&self, version: u64) -> Option<Version> {
        self.versions.get(&version).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_range_is_the_same_stream() {
        let mut whole = [0; 100];
        fill(7, 0, &mut whole);
        for start in 0..40 {
            for len in 0..30 {
                let mut part = vec![0; len];
                fill(7, start as u64, &mut part);
                assert_eq!(part, whole[start..start + len]);
                assert_eq!(check(7, start as u64, &part), Ok(()));
            }
        }
        whole[43] ^= 1;
        assert_eq!(check(7, 0, &whole), Err(43));
        assert_eq!(check(7, 40, &whole[40..]), Err(3));
        assert!(check(8, 44, &whole[44..]).is_err(), "another version");
    }
}
