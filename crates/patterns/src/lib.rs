//! Sets of byte patterns that are searched for in streams.
//!
//! Host and device both use a [`PatternSet`]: the device inspects what it can, the host the rest,
//! and the matches must be the same. All patterns are searched for at once, by a deterministic
//! automaton (Aho and Corasick, 1975) that reads each byte once. Its state is a number, so a stream
//! can be inspected piece by piece, by either side in turn: [`PatternSet::scan`] continues from the
//! state after the preceding bytes.
//!
//! Invariants:
//! - Matches and the new state depend on the old state and the bytes only, and not on how the bytes
//!   are divided into pieces.
//! - The state after a number of bytes as large as the longest pattern depends on these bytes only.
//!   An inspection that began with a wrong state therefore corrects itself.
//! - The numbers of states depend on the patterns only, so that two programs of different builds
//!   can name them to each other: 0 is the start, and each beginning of a pattern that is not one
//!   of an earlier pattern has the next number, in the order of the patterns and of its length.
//! - Memory is bounded by [`PATTERNS_MAX`] and [`PATTERN_BYTES_TOTAL_MAX`].
//!
//! The set is immutable. It knows no packets, no connections and no meaning of its patterns.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::vec::Vec;
use core::fmt;

use aho_corasick::Anchored;
use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::dfa::DFA;

/// Patterns in a set.
pub const PATTERNS_MAX: usize = 1024;
/// Bytes of a pattern.
pub const PATTERN_BYTES_MAX: usize = 256;
/// Bytes of all patterns of a set. The automaton has at most one state more, of at most 1 KiB.
pub const PATTERN_BYTES_TOTAL_MAX: usize = 16 * 1024;

/// State of an inspection between two bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PatternState(u32);

impl PatternState {
    /// Returns the state as a number, for [`PatternSet::state`].
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// Reason for which patterns are not a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatternSetError {
    /// There are no patterns.
    NoPatterns,
    /// There are more than [`PATTERNS_MAX`].
    TooMany,
    /// The pattern with this index is empty, or longer than [`PATTERN_BYTES_MAX`].
    BadLength(usize),
    /// The patterns have more than [`PATTERN_BYTES_TOTAL_MAX`] bytes together.
    TooLong,
}

impl fmt::Display for PatternSetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPatterns => f.write_str("no patterns"),
            Self::TooMany => write!(f, "more than {PATTERNS_MAX} patterns"),
            Self::BadLength(_) => {
                write!(f, "a pattern must have 1 to {PATTERN_BYTES_MAX} bytes")
            }
            Self::TooLong => {
                write!(f, "the patterns have more than {PATTERN_BYTES_TOTAL_MAX} bytes together")
            }
        }
    }
}

impl core::error::Error for PatternSetError {}

/// Checks whether these patterns are a set that [`PatternSet::new`] compiles.
///
/// # Errors
/// [`PatternSetError`]: a limit is exceeded.
pub fn check_limits<P: AsRef<[u8]>>(patterns: &[P]) -> Result<(), PatternSetError> {
    if patterns.is_empty() {
        return Err(PatternSetError::NoPatterns);
    }
    if patterns.len() > PATTERNS_MAX {
        return Err(PatternSetError::TooMany);
    }
    let bad = |p: &P| p.as_ref().is_empty() || p.as_ref().len() > PATTERN_BYTES_MAX;
    if let Some(index) = patterns.iter().position(bad) {
        return Err(PatternSetError::BadLength(index));
    }
    if patterns.iter().map(|p| p.as_ref().len()).sum::<usize>() > PATTERN_BYTES_TOTAL_MAX {
        return Err(PatternSetError::TooLong);
    }
    Ok(())
}

/// A set of patterns.
pub struct PatternSet {
    patterns: Box<[Box<[u8]>]>,
    automaton: DFA,
    /// The automaton's identifier of each state, by its number.
    ids: Vec<StateID>,
    /// Identifiers and numbers of all states, sorted by the identifier.
    numbers: Vec<(StateID, u32)>,
}

impl PatternSet {
    /// Compiles a set. The index of a pattern is its name in matches. The time is proportional to
    /// [`Self::memory_bytes`].
    ///
    /// # Errors
    /// [`PatternSetError`]: a limit is exceeded.
    pub fn new<P: AsRef<[u8]>>(patterns: &[P]) -> Result<Self, PatternSetError> {
        check_limits(patterns)?;
        // Only far larger sets exceed the limits of the library.
        let automaton = DFA::new(patterns).map_err(|_| PatternSetError::TooLong)?;
        let start = automaton.start_state(Anchored::No).map_err(|_| PatternSetError::TooLong)?;
        let (mut ids, mut numbers) = (alloc::vec![start], BTreeMap::from([(start, 0_u32)]));
        // Every state stands for a beginning of a pattern, and is reached by it.
        for pattern in patterns {
            let mut state = start;
            for &byte in pattern.as_ref() {
                state = automaton.next_state(Anchored::No, state, byte);
                if let Entry::Vacant(entry) = numbers.entry(state) {
                    // States are fewer than PATTERN_BYTES_TOTAL_MAX.
                    entry.insert(u32::try_from(ids.len()).unwrap_or(u32::MAX));
                    ids.push(state);
                }
            }
        }
        let patterns = patterns.iter().map(|pattern| pattern.as_ref().into()).collect();
        Ok(Self { patterns, automaton, ids, numbers: numbers.into_iter().collect() })
    }

    /// Returns the state at the beginning of a stream.
    #[must_use]
    pub const fn start(&self) -> PatternState {
        PatternState(0)
    }

    /// Returns the state with this number; `None` if there is none, so that a number from an
    /// untrusted source can be used.
    #[must_use]
    pub fn state(&self, number: u32) -> Option<PatternState> {
        ((number as usize) < self.ids.len()).then_some(PatternState(number))
    }

    /// Returns the patterns, in their order.
    #[must_use]
    pub fn patterns(&self) -> &[Box<[u8]>] {
        &self.patterns
    }

    /// Returns the bytes of all patterns together.
    #[must_use]
    pub fn pattern_bytes(&self) -> usize {
        self.patterns.iter().map(|pattern| pattern.len()).sum()
    }

    /// Returns the memory that the set occupies, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let patterns = self.pattern_bytes() + size_of_val(&*self.patterns);
        let tables = size_of_val(&self.ids[..]) + size_of_val(&self.numbers[..]);
        size_of::<Self>() + patterns + self.automaton.memory_usage() + tables
    }

    /// Inspects `bytes`, which follow those that led to `state`, and returns the state after them.
    /// Calls `found` with the index of each pattern that ends in them and the number of bytes up to
    /// its end, in the order of the ends. Matches may overlap. A state of another set is taken for
    /// that at the beginning of a stream.
    pub fn scan(
        &self,
        state: PatternState,
        bytes: &[u8],
        found: &mut dyn FnMut(usize, usize),
    ) -> PatternState {
        let known = self.state(state.0).unwrap_or_else(|| self.start());
        let mut at = self.ids[known.0 as usize];
        for (index, &byte) in bytes.iter().enumerate() {
            at = self.automaton.next_state(Anchored::No, at, byte);
            if self.automaton.is_special(at) && self.automaton.is_match(at) {
                for nth in 0..self.automaton.match_len(at) {
                    found(self.automaton.match_pattern(at, nth).as_usize(), index + 1);
                }
            }
        }
        let found = self.numbers.binary_search_by_key(&at, |&(id, _)| id);
        debug_assert!(found.is_ok(), "a beginning of a pattern leads to every state");
        PatternState(found.map_or(0, |index| self.numbers[index].1))
    }
}

impl fmt::Debug for PatternSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PatternSet").field("patterns", &self.patterns.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    /// Returns the matches in pieces of a stream, and the state after them.
    fn scan(set: &PatternSet, pieces: &[&[u8]]) -> (Vec<(usize, usize)>, PatternState) {
        let (mut state, mut matches, mut before) = (set.start(), Vec::new(), 0);
        for piece in pieces {
            state = set.scan(state, piece, &mut |pattern, end| {
                matches.push((pattern, before + end));
            });
            before += piece.len();
        }
        (matches, state)
    }

    /// Finds each pattern by comparison, at each end.
    fn search(patterns: &[Vec<u8>], text: &[u8]) -> Vec<(usize, usize)> {
        let mut matches = Vec::new();
        for end in 1..=text.len() {
            for (index, pattern) in patterns.iter().enumerate() {
                if text[..end].ends_with(pattern) {
                    matches.push((index, end));
                }
            }
        }
        matches
    }

    #[test]
    fn limits_are_checked() {
        let error = |patterns: &[Vec<u8>]| PatternSet::new(patterns).unwrap_err();
        assert_eq!(error(&[]), PatternSetError::NoPatterns);
        assert_eq!(error(&[vec![1], vec![]]), PatternSetError::BadLength(1));
        assert_eq!(error(&[vec![0; 257]]), PatternSetError::BadLength(0));
        assert_eq!(error(&vec![vec![1]; 1025]), PatternSetError::TooMany);
        assert_eq!(error(&vec![vec![1; 256]; 65]), PatternSetError::TooLong);
    }

    /// The largest automaton that the limits permit: long patterns without common beginnings, and
    /// all byte values.
    #[test]
    fn memory_is_bounded() {
        let pattern = |n: u8| -> Vec<u8> { (0..=255).map(|i: u8| i.wrapping_mul(n) ^ n).collect() };
        let set = PatternSet::new(&(0..64).map(pattern).collect::<Vec<_>>()).unwrap();
        let most = (PATTERN_BYTES_TOTAL_MAX + 1024) * 1100;
        assert!((1 << 20..most).contains(&set.memory_bytes()), "{}", set.memory_bytes());
    }

    #[test]
    fn matches_cross_pieces_and_overlap() {
        let set = PatternSet::new(&["abab", "ba", "b"]).unwrap();
        let (matches, _) = scan(&set, &[b"xab", b"", b"aba", b"b"]);
        let mut sorted = matches.clone();
        sorted.sort_by_key(|&(pattern, end)| (end, pattern));
        assert_eq!(sorted, [(2, 3), (1, 4), (0, 5), (2, 5), (1, 6), (0, 7), (2, 7)], "{matches:?}");
        assert!(matches.is_sorted_by_key(|&(_, end)| end));
    }

    /// Beginnings that two patterns share have one number.
    #[test]
    fn numbers_follow_from_the_patterns() {
        let set = PatternSet::new(&["pin", "pine", "nap", "pin"]).unwrap();
        let number = |text: &str| set.scan(set.start(), text.as_bytes(), &mut |_, _| {}).number();
        assert_eq!(
            ["", "p", "pi", "pin", "pine", "n", "na", "nap", "napi", "x"].map(number),
            [0, 1, 2, 3, 4, 5, 6, 7, 2, 0]
        );
        assert_eq!((set.patterns().len(), set.pattern_bytes()), (4, 13));
    }

    #[test]
    fn numbers_of_no_state_are_refused() {
        let set = PatternSet::new(&["needle", "pin"]).unwrap();
        let states = (0..5000).filter_map(|number| set.state(number)).count();
        assert_eq!(states, 1 + 6 + 3);
        assert_eq!(set.state(u32::MAX), None);
        let foreign = PatternState(u32::MAX);
        assert_eq!(set.scan(foreign, b"x", &mut |_, _| unreachable!()), set.start());
    }

    proptest! {
        /// However a stream is divided, the matches are those of a comparison at each position, and
        /// the state is a known one.
        #[test]
        fn finds_what_comparison_finds(
            patterns in proptest::collection::vec(
                proptest::collection::vec(0_u8..3, 1..6), 1..6),
            text in proptest::collection::vec(0_u8..3, 0..80),
            cuts in proptest::collection::vec(0_usize..9, 0..20),
        ) {
            let set = PatternSet::new(&patterns).unwrap();
            let (mut rest, mut pieces) = (&text[..], Vec::new());
            for cut in cuts {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                pieces.push(piece);
                rest = after;
            }
            pieces.push(rest);
            let (mut matches, state) = scan(&set, &pieces);
            prop_assert_eq!(set.state(state.number()), Some(state));
            prop_assert_eq!(&matches, &scan(&set, &[&text]).0);
            matches.sort_by_key(|&(pattern, end)| (end, pattern));
            prop_assert_eq!(matches, search(&patterns, &text));
        }

        /// A wrong state is forgotten after as many bytes as the longest pattern has.
        #[test]
        fn wrong_states_are_forgotten(
            patterns in proptest::collection::vec(
                proptest::collection::vec(0_u8..3, 1..6), 1..6),
            before in proptest::collection::vec(0_u8..3, 0..20),
            text in proptest::collection::vec(0_u8..3, 5..6),
        ) {
            let set = PatternSet::new(&patterns).unwrap();
            prop_assert_eq!(scan(&set, &[&before, &text]).1, scan(&set, &[&text]).1);
        }
    }
}
