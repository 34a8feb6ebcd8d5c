//! With TLS, no frame contains content of files or the beginnings of requests and responses.
//!
//! Called by [`super::frames`] for every segment that a device sends; searches at every offset for
//! all of these at once. A filter over the needles rules out nearly every position; the others are
//! compared exactly.

use core::ops::Range;
use std::collections::BTreeSet;

use crate::content::{self, VersionCatalog};
use crate::trace::hash_long;

/// Eight-byte strings that occur in the head of every request or response.
const HEADS: [u64; 6] = [
    u64::from_le_bytes(*b"HTTP/1.1"),
    u64::from_le_bytes(*b"Host: si"),
    u64::from_le_bytes(*b"BREW /po"),
    u64::from_le_bytes(*b"Content-"),
    u64::from_le_bytes(*b"Server: "),
    u64::from_le_bytes(*b"Date: Mo"),
];

/// Bytes of a needle: a string of [`HEADS`], or a word of content.
const NEEDLE_BYTES: usize = 8;
/// Positions that are looked up together, and the bytes that they cover.
const BLOCK: usize = 8;
const BLOCK_BYTES: usize = BLOCK + NEEDLE_BYTES - 1;
/// Bits of the filter for each needle, at least: about one of 150 random positions passes.
const BITS_PER_NEEDLE: u64 = 16;
/// Minimum size of the filter in entries of 64 bits.
const ENTRIES_MIN: usize = 1 << 10;

/// A Bloom filter of needles: each sets three bits of one entry.
#[derive(Debug, Default)]
struct NeedleFilter {
    /// A power of two of entries; or none, before the first needle.
    entries: Vec<u64>,
    /// Number of needles that fit.
    room: u64,
}

impl NeedleFilter {
    fn with_room(needles: u64) -> Self {
        let entries = usize::try_from(needles * BITS_PER_NEEDLE / 64).unwrap_or(usize::MAX / 2);
        let entries = entries.max(ENTRIES_MIN).next_power_of_two();
        Self { entries: vec![0; entries], room: entries as u64 * 64 / BITS_PER_NEEDLE }
    }

    /// Returns the index of a needle's entry. The bytes of content are uniformly distributed, and
    /// so are those of ciphertext: no hash is needed.
    fn index(&self, needle: u64) -> usize {
        (needle >> 12) as usize & (self.entries.len().wrapping_sub(1))
    }

    fn add(&mut self, needle: u64) {
        let index = self.index(needle);
        if let Some(entry) = self.entries.get_mut(index) {
            *entry |= 1 << (needle & 63) | 1 << (needle >> 6 & 63) | 1 << (needle >> 58);
        }
    }

    /// Returns 1 if a needle may be equal to this word, otherwise 0.
    fn may_have(&self, word: u64) -> u64 {
        let entry = self.entries.get(self.index(word)).copied().unwrap_or(0);
        entry >> (word & 63) & entry >> (word >> 6 & 63) & entry >> (word >> 58) & 1
    }
}

/// Hashes of payloads that were searched and have no plaintext, together with the versions that
/// were searched for. Runs of one seed share them: most send the same bytes.
#[derive(Debug, Default)]
pub(crate) struct CleanPayloads(BTreeSet<u64>);

/// Searches for plaintext.
#[derive(Debug, Default)]
pub(crate) struct PlaintextSearch {
    /// Payloads that need no search.
    pub(crate) clean: CleanPayloads,
    filter: NeedleFilter,
    /// Number of needles in the filter.
    needles: u64,
    /// Number of versions whose words are in the filter.
    versions: usize,
}

impl PlaintextSearch {
    /// Adds versions to the filter that it does not have.
    fn learn(&mut self, known: &VersionCatalog) {
        if self.versions == known.len() && self.needles > 0 {
            return;
        }
        let needles = HEADS.len() as u64 + known.words();
        if needles > self.filter.room {
            (self.filter, self.versions) = (NeedleFilter::with_room(needles), 0);
        }
        HEADS.into_iter().for_each(|needle| self.filter.add(needle));
        known.visit_words(self.versions, |needle| self.filter.add(needle));
        (self.needles, self.versions) = (needles, known.len());
    }

    /// Searches a segment's payload for plaintext.
    ///
    /// # Errors
    /// Describes the first plaintext found.
    pub(crate) fn search(&mut self, payload: &[u8], known: &VersionCatalog) -> Result<(), String> {
        if payload.len() < NEEDLE_BYTES {
            return Ok(());
        }
        let hash = hash_long(known.hash(), payload);
        if !self.clean.0.contains(&hash) {
            self.search_all(payload, known)?;
            self.clean.0.insert(hash);
        }
        Ok(())
    }

    fn search_all(&mut self, payload: &[u8], known: &VersionCatalog) -> Result<(), String> {
        self.learn(known);
        let mut at = 0;
        while let Some(block) = payload.get(at..).and_then(|rest| rest.first_chunk()) {
            if self.may_have_any(block) {
                self.compare_all(payload, at..at + BLOCK, known)?;
            }
            at += BLOCK;
        }
        self.compare_all(payload, at..payload.len(), known)
    }

    /// Compares the bytes at the positions that pass the filter.
    fn compare_all(
        &self,
        payload: &[u8],
        mut positions: Range<usize>,
        known: &VersionCatalog,
    ) -> Result<(), String> {
        positions.try_for_each(|at| match payload.get(at..).and_then(|rest| rest.first_chunk()) {
            Some(word) if self.filter.may_have(u64::from_le_bytes(*word)) != 0 => {
                compare(payload, at, known)
            }
            _ => Ok(()),
        })
    }

    /// Returns whether one of the needles may begin at one of the first positions.
    fn may_have_any(&self, block: &[u8; BLOCK_BYTES]) -> bool {
        let mut any = 0;
        for word in block.windows(NEEDLE_BYTES) {
            let word = word.first_chunk().copied().unwrap_or_default();
            any |= self.filter.may_have(u64::from_le_bytes(word));
        }
        any != 0
    }
}

/// Compares the bytes at a position with all needles.
fn compare(payload: &[u8], at: usize, known: &VersionCatalog) -> Result<(), String> {
    let Some(word) = payload.get(at..).and_then(|rest| rest.first_chunk()) else { return Ok(()) };
    let len = payload.len();
    if HEADS.contains(&u64::from_le_bytes(*word)) {
        let text = String::from_utf8_lossy(word);
        return Err(format!("plaintext at {at} of {len}: {text:?}"));
    }
    match content::version_at(payload, at, known) {
        Some(version) => {
            Err(format!("plaintext at {at} of {len}: content of version {version:016x}"))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::mix;

    fn search(payload: &[u8], known: &VersionCatalog) -> Result<(), String> {
        PlaintextSearch::default().search(payload, known)
    }

    fn catalog(versions: &[u64]) -> VersionCatalog {
        let mut known = VersionCatalog::default();
        versions.iter().for_each(|&version| known.add(version, 0, 4_000));
        known
    }

    /// Returns bytes that look like ciphertext.
    fn noise(len: usize) -> Vec<u8> {
        (0..len as u64).map(|i| mix(i ^ 0x6e6f_6973) as u8).collect()
    }

    #[test]
    fn heads_and_content_are_seen() {
        let known = catalog(&[5]);
        assert!(search(b"", &known).is_ok());
        assert!(search(b"HTTP/1.", &known).is_ok());
        assert!(search(b"\x17\x03\x03GET / HTTP/1.1\r\n", &known).is_err());
        let mut bytes = [0; 64];
        content::fill(5, 1_003, &mut bytes);
        assert!(search(&bytes, &known).is_err());
    }

    #[test]
    fn every_head_is_found_at_every_position() {
        let known = catalog(&[5, 6]);
        for head in HEADS {
            for len in 8..60 {
                for at in 0..=len - 8 {
                    let mut bytes = noise(len);
                    assert_eq!(search(&bytes, &known), Ok(()));
                    bytes[at..at + 8].copy_from_slice(&head.to_le_bytes());
                    let what = search(&bytes, &known).expect_err("a head");
                    assert!(what.starts_with(&format!("plaintext at {at} of {len}: ")), "{what}");
                }
            }
        }
    }

    #[test]
    fn sixteen_bytes_of_content_are_found_at_every_position() {
        let known = catalog(&[5, 6, 7]);
        for (version, offset) in (5..8).flat_map(|version| (0..9).map(move |o| (version, o))) {
            for (len, at) in (16..50).flat_map(|len| (0..=len - 16).map(move |at| (len, at))) {
                let mut bytes = noise(len);
                content::fill(version, offset, &mut bytes[at..at + 16]);
                let what = search(&bytes, &known).expect_err("16 bytes are enough");
                assert!(what.ends_with(&format!("content of version {version:016x}")), "{what}");
                bytes[at + 8] ^= 1;
                assert_eq!(search(&bytes, &known), Ok(()), "8 are not");
            }
        }
    }

    #[test]
    fn the_last_words_of_a_version_are_found() {
        let mut known = catalog(&[]);
        known.add(9, 0, 1_000_003);
        let mut bytes = noise(500);
        content::fill(9, 1_000_003 - 20, &mut bytes[100..120]);
        assert!(search(&bytes, &known).is_err());
    }

    #[test]
    fn the_first_of_several_is_reported() {
        let known = catalog(&[5]);
        let mut bytes = noise(300);
        bytes[200..208].copy_from_slice(b"HTTP/1.1");
        content::fill(5, 0, &mut bytes[100..150]);
        bytes[60..68].copy_from_slice(b"Server: ");
        let found = Err(String::from("plaintext at 60 of 300: \"Server: \""));
        assert_eq!(search(&bytes, &known), found);
    }

    #[test]
    fn a_payload_is_searched_again_unless_it_was_clean_of_the_same_versions() {
        let (known, other) = (catalog(&[5, 6]), catalog(&[5, 7]));
        let mut bytes = noise(1_400);
        content::fill(7, 200, &mut bytes[700..716]);
        let mut first = PlaintextSearch::default();
        assert_eq!(first.search(&bytes, &known), Ok(()));
        assert_eq!(first.clean.0.len(), 1);
        let mut second = PlaintextSearch { clean: first.clean, ..PlaintextSearch::default() };
        assert_eq!(second.search(&bytes, &known), Ok(()));
        assert!(second.search(&bytes, &other).is_err(), "the versions are others");
        assert!(second.search(&bytes, &other).is_err(), "it is still not clean");
        bytes[1_000..1_008].copy_from_slice(b"Content-");
        assert!(second.search(&bytes, &known).is_err(), "the payload is another");
        assert_eq!(second.clean.0.len(), 1);
    }

    #[test]
    fn versions_that_are_added_later_are_found() {
        let (mut known, mut checker) = (catalog(&[5]), PlaintextSearch::default());
        // As many as make the filter grow.
        for version in 6..60 {
            let mut bytes = noise(80);
            content::fill(version, 17, &mut bytes[40..60]);
            assert_eq!(checker.search(&bytes, &known), Ok(()), "not known yet");
            known.add(version, 0, 20_000);
            assert!(checker.search(&bytes, &known).is_err());
            content::fill(5, 3_000, &mut bytes);
            assert!(checker.search(&bytes, &known).is_err(), "the first is still known");
        }
        assert!(checker.filter.entries.len() > ENTRIES_MIN);
    }
}
