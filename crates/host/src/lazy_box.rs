//! A box for state that a connection needs only some of the time: on the heap while it exists,
//! eight bytes otherwise.
//!
//! Reading an absent value reads its static default; a mutable access allocates it. The owner frees
//! it by [`LazyBox::reset`].

use alloc::boxed::Box;
use core::ops::{Deref, DerefMut};

/// State with a static default value.
pub(crate) trait StaticDefault: Default + 'static {
    /// Returns the default value, for reading.
    fn static_default() -> &'static Self;
}

/// A `T` on the heap, or its default value.
#[derive(Debug)]
pub(crate) struct LazyBox<T>(Option<Box<T>>);

impl<T> LazyBox<T> {
    /// Returns an unallocated value, equal to the default.
    pub(crate) const fn new() -> Self {
        Self(None)
    }

    /// Frees the memory; the value is the default again.
    pub(crate) fn reset(&mut self) {
        self.0 = None;
    }
}

impl<T: StaticDefault> Deref for LazyBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or_else(|| T::static_default())
    }
}

impl<T: StaticDefault> DerefMut for LazyBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_with(Box::default)
    }
}
