//! Sets of functions of a switch. Used by all of its parts.

/// Maximum number of functions of a switch.
pub const FUNCTIONS_MAX: usize = 16;

/// A set of functions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionSet(u16);

impl FunctionSet {
    /// The empty set.
    pub const NONE: Self = Self(0);

    /// Returns the set of one function.
    pub(super) const fn only(function: usize) -> Self {
        Self(1 << function)
    }

    /// Returns whether the set has no function.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns whether the set has this function.
    #[must_use]
    pub const fn contains(self, function: usize) -> bool {
        self.0 & Self::only(function).0 != 0
    }

    /// Returns the function with the lowest number.
    #[must_use]
    pub const fn first(self) -> Option<usize> {
        if self.0 == 0 { None } else { Some(self.0.trailing_zeros() as usize) }
    }

    /// Returns the functions of this set that are not in `other`.
    pub(super) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the functions.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..FUNCTIONS_MAX).filter(move |&function| self.contains(function))
    }

    /// Returns the function that a hash selects.
    pub(super) fn select(self, hash: u64) -> Option<usize> {
        let count = u64::from(self.0.count_ones());
        let index = hash.checked_rem(count)?;
        self.iter().nth(usize::try_from(index).unwrap_or(0))
    }

    /// Returns the functions that are in both sets.
    pub(super) const fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns whether the set has more than one function.
    pub(super) const fn is_shared(self) -> bool {
        self.0.count_ones() > 1
    }

    pub(super) const fn insert(&mut self, function: usize) {
        self.0 |= Self::only(function).0;
    }

    pub(super) const fn remove(&mut self, function: usize) {
        self.0 &= !Self::only(function).0;
    }
}
