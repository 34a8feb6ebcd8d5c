//! Sets of patterns that both ends of a carrier know.
//!
//! Used by [`crate::remote`]. The host's end sends a set with the first operation that refers to
//! it, and its number with later ones. Both ends assign the same numbers, because both have a table
//! of the same size and remove its oldest sets to make room for a new one, as HPACK does with
//! header fields (RFC 7541 section 4).
//!
//! The device's end has to compile a set, which fills up to 18 MiB. Its thread serves other
//! programs meanwhile, so a [`PatternCompiler`] does that, and the operations of this program wait.
//! Contexts keep their set when it leaves the table.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use patterns::PatternSet;

/// Sets in the table.
const SETS_MAX: usize = 8;
/// Bytes of the patterns of all sets in the table: two of the largest sets. An automaton has at
/// most one state of 1 KiB for each.
const PATTERN_BYTES_MAX: usize = 2 * patterns::PATTERN_BYTES_TOTAL_MAX;

/// The patterns of a set that is to be compiled, within the limits of [`patterns::check_limits`].
pub type PatternList = Vec<Box<[u8]>>;

/// Compiles the sets of a program, one at a time.
pub trait PatternCompiler: Send {
    /// Begins to compile a set. The one before is ready and was taken.
    fn start(&mut self, patterns: PatternList);

    /// Returns whether the set is ready.
    fn is_ready(&self) -> bool;

    /// Takes the set, which is ready; `None` if there was no memory for it.
    fn take(&mut self) -> Option<Arc<PatternSet>>;
}

/// Compiles in the calling thread, for a device with one program, tests and the simulator.
#[derive(Debug, Default)]
pub struct ImmediateCompiler(Option<Arc<PatternSet>>);

impl PatternCompiler for ImmediateCompiler {
    fn start(&mut self, patterns: PatternList) {
        self.0 = PatternSet::new(&patterns).ok().map(Arc::new);
    }

    fn is_ready(&self) -> bool {
        true
    }

    fn take(&mut self) -> Option<Arc<PatternSet>> {
        self.0.take()
    }
}

/// Sets by number, from the oldest to the newest.
#[derive(Debug, Default)]
pub(crate) struct PatternTable {
    sets: VecDeque<Arc<PatternSet>>,
    /// Number of the oldest set, modulo 2^32.
    oldest: u32,
    bytes: usize,
}

impl PatternTable {
    /// Adds a set, under the next number, and removes the oldest ones if there is no room.
    pub(crate) fn insert(&mut self, set: Arc<PatternSet>) {
        self.bytes += set.pattern_bytes();
        self.sets.push_back(set);
        while self.sets.len() > SETS_MAX || self.bytes > PATTERN_BYTES_MAX {
            let Some(removed) = self.sets.pop_front() else { break };
            self.bytes -= removed.pattern_bytes();
            self.oldest = self.oldest.wrapping_add(1);
        }
    }

    /// Returns the number of a set, if it is in the table.
    pub(crate) fn number(&self, set: &Arc<PatternSet>) -> Option<u32> {
        let index = self.sets.iter().position(|known| Arc::ptr_eq(known, set))?;
        Some(self.oldest.wrapping_add(u32::try_from(index).ok()?))
    }

    /// Returns the set with a number.
    pub(crate) fn get(&self, number: u32) -> Option<Arc<PatternSet>> {
        self.sets.get(usize::try_from(number.wrapping_sub(self.oldest)).ok()?).cloned()
    }
}

/// Progress of the operation that was received last, if it has a new set.
#[derive(Debug, Default)]
enum NewPatterns {
    /// It has none, or was executed.
    #[default]
    None,
    /// Its set is being compiled.
    Compiling,
    /// Its set is compiled; `None` if that failed.
    Compiled(Option<Arc<PatternSet>>),
}

/// The table of a device's end, and the compiler of its sets.
pub(crate) struct ReceivedPatterns {
    table: PatternTable,
    compiler: Box<dyn PatternCompiler>,
    new: NewPatterns,
}

impl ReceivedPatterns {
    pub(crate) fn new(compiler: Box<dyn PatternCompiler>) -> Self {
        Self { table: PatternTable::default(), compiler, new: NewPatterns::None }
    }

    /// Returns whether an operation waits for its set.
    pub(crate) fn is_waiting(&self) -> bool {
        self.has_operation() && !self.compiler.is_ready()
    }

    /// Returns whether the operation that was received last was not executed yet, because of its
    /// set.
    pub(crate) const fn has_operation(&self) -> bool {
        matches!(self.new, NewPatterns::Compiling)
    }

    /// Takes the set from the compiler. Returns false if it is not ready.
    pub(crate) fn take_compiled(&mut self) -> bool {
        if self.is_waiting() {
            return false;
        }
        self.new = NewPatterns::Compiled(self.compiler.take());
        true
    }

    /// Returns the set with a number.
    pub(crate) fn get(&self, number: u32) -> Option<Arc<PatternSet>> {
        self.table.get(number)
    }

    /// Returns the set of an operation, once it is compiled. If it is not, the operation waits:
    /// [`Self::has_operation`].
    pub(crate) fn compile(&mut self, patterns: &[&[u8]]) -> Option<Arc<PatternSet>> {
        if let NewPatterns::Compiled(set) = core::mem::take(&mut self.new) {
            let set = set?;
            self.table.insert(Arc::clone(&set));
            return Some(set);
        }
        self.compiler.start(patterns.iter().map(|&pattern| pattern.into()).collect());
        self.new = NewPatterns::Compiling;
        None
    }
}

impl core::fmt::Debug for ReceivedPatterns {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ReceivedPatterns").field("table", &self.table).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn set(bytes: usize, fill: u8) -> Arc<PatternSet> {
        let patterns: Vec<_> = (0..bytes / 256).map(|_| vec![fill; 256]).collect();
        Arc::new(PatternSet::new(&patterns).unwrap())
    }

    /// The oldest sets make room, and no number is used for two sets.
    #[test]
    fn the_oldest_sets_leave_the_table() {
        let mut table = PatternTable { oldest: u32::MAX - 3, ..PatternTable::default() };
        let small: Vec<_> = (0..10).map(|fill| set(256, fill)).collect();
        small.iter().for_each(|set| table.insert(Arc::clone(set)));
        let numbers: Vec<_> = small.iter().map(|set| table.number(set)).collect();
        assert_eq!(numbers[..3], [None, None, Some(u32::MAX - 1)]);
        assert_eq!(numbers[3..6], [Some(u32::MAX), Some(0), Some(1)]);
        for (set, number) in small.iter().zip(numbers).skip(2) {
            assert!(Arc::ptr_eq(&table.get(number.unwrap()).unwrap(), set));
        }
        assert!(table.get(u32::MAX - 2).is_none() && table.get(6).is_none());
        let large: Vec<_> = (0..3).map(|fill| set(16 << 10, fill)).collect();
        large.iter().for_each(|set| table.insert(Arc::clone(set)));
        assert_eq!((table.sets.len(), table.bytes), (2, 32 << 10));
        assert_eq!(table.number(&large[0]), None);
        assert!(table.number(&large[1]).is_some() && table.number(&large[2]).is_some());
    }
}
