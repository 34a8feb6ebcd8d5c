//! Contents of files: a function of version and offset, so that any byte can be checked without
//! being stored.
//!
//! [`VersionCatalog`] has every version that was ever on the disk; each response must be of one of
//! them.

use std::collections::BTreeMap;

use crate::trace::{inverse, mix, unmix};

/// Directory for uploads below the server's root.
pub(crate) const UPLOADS: &str = "in";

const WORD: u64 = 8;
/// Odd, so that the products of word indices with it are all different.
const STEP: u64 = 0xd134_2543_de82_ef95;
const STEP_INVERSE: u64 = inverse(STEP);

fn word(version: u64, index: u64) -> [u8; 8] {
    mix(version ^ index.wrapping_mul(STEP)).to_le_bytes()
}

/// Returns the known version of which the word at `at` in `bytes` is part, if at least 16 bytes
/// around it are content of that version.
///
/// The function that makes a word is invertible, so a word reveals its index in a version. Any 15
/// bytes of content contain a whole word; the rest of the 16 bytes confirms it.
pub(crate) fn version_at(bytes: &[u8], at: usize, known: &VersionCatalog) -> Option<u64> {
    let &here = bytes.get(at..)?.first_chunk()?;
    let key = unmix(u64::from_le_bytes(here));
    let is_here = |&&(version, words): &&(u64, u64)| {
        let index = (key ^ version).wrapping_mul(STEP_INVERSE);
        index < words && is_confirmed(version, index * WORD, bytes, at)
    };
    known.words.iter().find(is_here).map(|&(version, _)| version)
}

/// Returns whether at least 16 bytes around the word at `at` match `version` around `offset`.
fn is_confirmed(version: u64, offset: u64, bytes: &[u8], at: usize) -> bool {
    let before = WORD.min(at as u64).min(offset);
    let from = at - before as usize;
    let to = (at + 2 * WORD as usize).min(bytes.len());
    let mut right = [0; 3 * WORD as usize];
    let right = &mut right[..to - from];
    fill(version, offset - before, right);
    let same = |from: usize, len: usize| {
        (0..len).take_while(|i| bytes.get(from + i) == right.get(before as usize + i)).count()
    };
    let behind = same(at, to - at);
    let ahead =
        (1..=before as usize).take_while(|i| bytes[at - i] == right[before as usize - i]).count();
    behind + ahead >= 2 * WORD as usize
}

/// Number of bytes from `offset` to the next whole word, at most `len`.
fn before_words(offset: u64, len: usize) -> usize {
    ((offset.wrapping_neg() % WORD) as usize).min(len)
}

/// Fills `out` with the bytes of `version` from `offset`.
pub(crate) fn fill(version: u64, offset: u64, out: &mut [u8]) {
    let (first, rest) = out.split_at_mut(before_words(offset, out.len()));
    if !first.is_empty() {
        let within = (offset % WORD) as usize;
        first.copy_from_slice(&word(version, offset / WORD)[within..within + first.len()]);
    }
    let mut index = offset.div_ceil(WORD);
    let mut words = rest.chunks_exact_mut(WORD as usize);
    for out in &mut words {
        out.copy_from_slice(&word(version, index));
        index += 1;
    }
    let last = words.into_remainder();
    last.copy_from_slice(&word(version, index)[..last.len()]);
}

/// Compares `bytes` with those of `version` from `offset`. The error is the index of the first
/// difference.
pub(crate) fn check(version: u64, offset: u64, bytes: &[u8]) -> Result<(), usize> {
    let (first, rest) = bytes.split_at(before_words(offset, bytes.len()));
    check_part(version, offset, first)?;
    let words = (offset.div_ceil(WORD)..).zip(rest.chunks_exact(WORD as usize));
    let is_right = |(index, bytes): &(u64, &[u8])| word(version, *index) == **bytes;
    // The remaining bytes: from the first wrong word, or less than a word.
    let at = first.len() + words.take_while(is_right).count() * WORD as usize;
    let here = &bytes[at..(at + WORD as usize).min(bytes.len())];
    check_part(version, offset + at as u64, here).map_err(|differs| at + differs)
}

/// Like [`check`], for at most a word.
fn check_part(version: u64, offset: u64, bytes: &[u8]) -> Result<(), usize> {
    let mut right = [0; WORD as usize];
    let right = &mut right[..bytes.len()];
    fill(version, offset, right);
    (0..bytes.len()).find(|&i| bytes[i] != right[i]).map_or(Ok(()), Err)
}

/// A version of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileVersion {
    /// Index of the file.
    pub(crate) file: usize,
    /// Size in bytes.
    pub(crate) size: u64,
}

/// All versions that were ever on the disk.
#[derive(Debug, Default)]
pub(crate) struct VersionCatalog {
    versions: BTreeMap<u64, FileVersion>,
    /// Numbers of versions by other names of these: those that a reader of a file system reports.
    names: BTreeMap<u64, u64>,
    /// The same for iteration: versions and their sizes in words.
    words: Vec<(u64, u64)>,
    /// Hash over `words`.
    hash: u64,
}

impl VersionCatalog {
    /// Adds a version that appeared on the disk.
    pub(crate) fn add(&mut self, version: u64, file: usize, size: u64) {
        self.versions.insert(version, FileVersion { file, size });
        self.words.push((version, size.div_ceil(WORD)));
        self.hash = mix(self.hash ^ mix(version ^ mix(size)));
    }

    /// Adds another name of a version.
    pub(crate) fn add_name(&mut self, name: u64, version: u64) {
        self.names.insert(name, version);
    }

    /// Returns whether versions have other names.
    pub(crate) fn has_names(&self) -> bool {
        !self.names.is_empty()
    }

    /// Returns the number of a version by this or its other name.
    pub(crate) fn number(&self, name: u64) -> u64 {
        self.names.get(&name).copied().unwrap_or(name)
    }

    /// Returns a version by its number or its other name.
    pub(crate) fn find(&self, version: u64) -> Option<FileVersion> {
        self.versions.get(&self.number(version)).copied()
    }

    /// Returns all versions with their numbers.
    pub(crate) fn versions(&self) -> impl Iterator<Item = (u64, FileVersion)> {
        self.versions.iter().map(|(&number, &version)| (number, version))
    }

    /// Returns a hash over all versions, in order of addition.
    pub(crate) const fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns the number of versions that were added.
    pub(crate) fn len(&self) -> usize {
        self.words.len()
    }

    /// Calls `f` with every word of the versions from the `first` on, in order of addition.
    pub(crate) fn visit_words(&self, first: usize, mut f: impl FnMut(u64)) {
        for &(version, words) in self.words.iter().skip(first) {
            (0..words).for_each(|index| f(u64::from_le_bytes(word(version, index))));
        }
    }

    /// Returns the number of words of all versions.
    pub(crate) fn words(&self) -> u64 {
        self.words.iter().map(|&(_, words)| words).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(bytes: &[u8], known: &VersionCatalog) -> Option<(usize, u64)> {
        (0..bytes.len()).find_map(|at| version_at(bytes, at, known).map(|version| (at, version)))
    }

    #[test]
    fn content_is_found_wherever_it_lies() {
        let mut known = VersionCatalog::default();
        for version in [3, 7, 11] {
            known.add(version, 0, 1_000);
        }
        for offset in 0..20 {
            for at in 0..20 {
                let mut bytes = vec![0xaa; 60];
                fill(7, offset, &mut bytes[at..at + 16]);
                let (found, version) = find(&bytes, &known).expect("16 bytes are enough");
                assert!((at..at + 8).contains(&found) && version == 7);
                bytes[at + 8] ^= 1;
                assert_eq!(find(&bytes, &known), None, "8 are not");
            }
        }
        let mut other = [0; 100];
        fill(8, 0, &mut other);
        assert_eq!(find(&other, &known), None, "a version that is not known");
    }

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
