//! A box for state that a connection needs only some of the time: on the heap while it exists,
//! eight bytes otherwise.
//!
//! Reading an absent value reads its static default; a mutable access allocates it. The owner frees
//! it by [`Rare::rest`].

use alloc::boxed::Box;
use core::ops::{Deref, DerefMut};

/// State with a static default value.
pub(crate) trait AtRest: Default + 'static {
    /// Returns the default value, for reading.
    fn at_rest() -> &'static Self;
}

/// A `T` on the heap, or its default value.
#[derive(Debug)]
pub(crate) struct Rare<T>(Option<Box<T>>);

impl<T> Rare<T> {
    /// Returns an unallocated value, equal to the default.
    pub(crate) const fn new() -> Self {
        Self(None)
    }

    /// Frees the memory; the value is the default again.
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
