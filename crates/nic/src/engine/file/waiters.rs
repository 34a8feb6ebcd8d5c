//! Lists of waiters for blocks that are being read: short FIFO lists in one node store.
//!
//! A canceled waiter stays in its list with a stale key, which the consumer of the list detects.

use alloc::vec::Vec;

use structures::slab::SlabKey;

/// Index that marks the end of a list.
const END: u32 = u32::MAX;

/// A list of waiters.
#[derive(Debug)]
pub(crate) struct WaitList {
    head: u32,
    tail: u32,
}

impl WaitList {
    /// The empty list.
    pub(crate) const EMPTY: Self = Self { head: END, tail: END };
}

/// The nodes of all lists.
#[derive(Debug)]
pub(crate) struct Waiters {
    nodes: Vec<(SlabKey, u32)>,
    free: u32,
}

impl Waiters {
    /// Creates an empty store.
    pub(crate) const fn new() -> Self {
        Self { nodes: Vec::new(), free: END }
    }

    /// Appends a waiter.
    pub(crate) fn push(&mut self, list: &mut WaitList, waiter: SlabKey) {
        let place = if let Some(node) = self.nodes.get_mut(self.free as usize) {
            let place = core::mem::replace(&mut self.free, node.1);
            *node = (waiter, END);
            place
        } else {
            // Each waiter is a block of a pending transmit: far below 2^32.
            let Ok(place) = u32::try_from(self.nodes.len()) else { return };
            self.nodes.push((waiter, END));
            place
        };
        match self.nodes.get_mut(list.tail as usize) {
            Some(last) => last.1 = place,
            None => list.head = place,
        }
        list.tail = place;
    }

    /// Removes and returns the first waiter.
    pub(crate) fn pop(&mut self, list: &mut WaitList) -> Option<SlabKey> {
        let node = self.nodes.get_mut(list.head as usize)?;
        let place = core::mem::replace(&mut list.head, node.1);
        node.1 = core::mem::replace(&mut self.free, place);
        if list.head == END {
            list.tail = END;
        }
        Some(node.0)
    }

    /// Removes all nodes. Existing lists become invalid.
    pub(crate) fn clear(&mut self) {
        self.nodes.clear();
        self.free = END;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use structures::slab::Slab;

    #[test]
    fn nodes_are_reused() {
        let mut keys = Slab::new();
        let (a, b) = (keys.insert(()), keys.insert(()));
        let mut waiters = Waiters::new();
        let (mut one, mut two) = (WaitList::EMPTY, WaitList::EMPTY);
        waiters.push(&mut one, a);
        waiters.push(&mut two, a);
        waiters.push(&mut one, b);
        assert_eq!((waiters.pop(&mut one), waiters.pop(&mut one)), (Some(a), Some(b)));
        assert_eq!(waiters.pop(&mut one), None);
        waiters.push(&mut one, b);
        waiters.push(&mut one, a);
        assert_eq!(waiters.nodes.len(), 3);
        assert_eq!(waiters.pop(&mut two), Some(a));
    }
}
