//! A queue of ranges that keeps its first entry inline.
//!
//! Used by [`super::scoreboard`]. Small transactions have one transmit in flight: it needs no
//! allocation, and an acknowledgment touches one cache line less. The owner keeps the ranges in
//! order.

use alloc::collections::VecDeque;
use core::ops::{Index, IndexMut};

/// A queue whose first entry is inline.
#[derive(Clone, Debug)]
pub(crate) struct InlineFirstQueue<T> {
    /// `None` only if the queue is empty, `rest` too.
    first: Option<T>,
    rest: VecDeque<T>,
}

impl<T> Default for InlineFirstQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> InlineFirstQueue<T> {
    pub(crate) const fn new() -> Self {
        Self { first: None, rest: VecDeque::new() }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        match index.checked_sub(1) {
            None => self.first.as_ref(),
            Some(index) => self.rest.get(index),
        }
    }

    pub(crate) const fn front(&self) -> Option<&T> {
        self.first.as_ref()
    }

    pub(crate) const fn front_mut(&mut self) -> Option<&mut T> {
        self.first.as_mut()
    }

    pub(crate) fn back(&self) -> Option<&T> {
        self.rest.back().or(self.first.as_ref())
    }

    pub(crate) fn push_back(&mut self, range: T) {
        if self.first.is_none() {
            self.first = Some(range);
        } else {
            self.rest.push_back(range);
        }
    }

    pub(crate) fn pop_front(&mut self) {
        self.first = self.rest.pop_front();
    }

    /// Inserts before the entry at `index`, which is at most the length.
    pub(crate) fn insert(&mut self, index: usize, range: T) {
        match index.checked_sub(1) {
            Some(index) => self.rest.insert(index, range),
            None => {
                if let Some(second) = self.first.replace(range) {
                    self.rest.push_front(second);
                }
            }
        }
    }

    pub(crate) fn remove(&mut self, index: usize) {
        match index.checked_sub(1) {
            Some(index) => _ = self.rest.remove(index),
            None => self.pop_front(),
        }
    }

    /// As [`slice::partition_point`].
    pub(crate) fn partition_point(&self, mut before: impl FnMut(&T) -> bool) -> usize {
        match &self.first {
            Some(first) if before(first) => 1 + self.rest.partition_point(before),
            _ => 0,
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(&self.rest)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.first.iter_mut().chain(&mut self.rest)
    }
}

impl<T> Index<usize> for InlineFirstQueue<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        self.get(index).expect("an index below the length")
    }
}

impl<T> IndexMut<usize> for InlineFirstQueue<T> {
    fn index_mut(&mut self, index: usize) -> &mut T {
        let entry = match index.checked_sub(1) {
            None => self.first.as_mut(),
            Some(index) => self.rest.get_mut(index),
        };
        entry.expect("an index below the length")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_a_queue(
            acts in proptest::collection::vec((0_u8..5, 0_usize..8, 0_u32..100), 0..60),
        ) {
            let (mut ranges, mut model) = (InlineFirstQueue::new(), VecDeque::new());
            for (act, at, value) in acts {
                match act {
                    0 | 1 => {
                        ranges.push_back(value);
                        model.push_back(value);
                    }
                    2 => {
                        ranges.pop_front();
                        model.pop_front();
                    }
                    3 if at <= model.len() => {
                        ranges.insert(at, value);
                        model.insert(at, value);
                    }
                    4 if at < model.len() => {
                        ranges.remove(at);
                        model.remove(at);
                    }
                    _ => {
                        ranges.iter_mut().for_each(|n| *n += 1);
                        model.iter_mut().for_each(|n| *n += 1);
                    }
                }
                prop_assert!(ranges.iter().eq(&model));
                prop_assert_eq!((ranges.len(), ranges.is_empty()), (model.len(), model.is_empty()));
                prop_assert_eq!((ranges.front(), ranges.back()), (model.front(), model.back()));
                prop_assert_eq!(ranges.get(at), model.get(at));
                let mut sorted = model.clone();
                sorted.make_contiguous().sort_unstable();
                let mut ordered = InlineFirstQueue::new();
                sorted.iter().for_each(|n| ordered.push_back(*n));
                let found = ordered.partition_point(|n| *n < value);
                prop_assert_eq!(found, sorted.partition_point(|n| *n < value));
            }
        }
    }
}
