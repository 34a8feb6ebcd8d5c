//! State that a connection needs only some of the time: on the heap while it does, eight bytes
//! otherwise.
//!
//! Reading state that is not there reads what it would be at rest; changing it brings it into
//! being. Nothing here decides when it is needed no more: the owner calls [`Rare::rest`].

use alloc::boxed::Box;
use core::ops::{Deref, DerefMut};

/// State that has a value at rest.
pub(crate) trait AtRest: Default + 'static {
    /// That value, to read.
    fn at_rest() -> &'static Self;
}

/// A `T` that may be at rest.
#[derive(Debug)]
pub(crate) struct Rare<T>(Option<Box<T>>);

impl<T> Rare<T> {
    /// At rest.
    pub(crate) const fn new() -> Self {
        Self(None)
    }

    /// Gives the memory back: the value is the one at rest again.
    pub(crate) fn rest(&mut self) {
        self.0 = None;
    }
}

impl<T: AtRest> Deref for Rare<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or_else(|| T::at_rest())
    }
}

impl<T: AtRest> DerefMut for Rare<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_with(Box::default)
    }
}
