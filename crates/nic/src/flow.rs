//! Waiting transmits, ordered by flow.
//!
//! Transmits of one flow leave in the order of the ring, even if an earlier one waits for a disk
//! and a later one does not. Only a flow with waiting transmits has an entry; for the others a
//! transmit costs one lookup, and none while no flow has an entry. Each flow's queue is a singly
//! linked list in a shared slab, so a flow needs no allocation. Transmits of [`FlowId::NONE`] have
//! no queue: each waits only for its own bytes.
//!
//! Called by [`crate::Device`], which bounds the number of waiting transmits. Reads neither clock
//! nor payload.

use abi::{FileFault, FlowId};
use base::mix;
use hashbrown::HashTable;

use crate::engine::Resolved;
use crate::pipeline::tx::Outgoing;
use structures::slab::{Key, Slab};

/// Progress of a waiting transmit.
#[derive(Debug)]
pub(crate) enum State {
    /// The file engine loads its payload, in the job of this key.
    Waiting(Key),
    /// Its payload is at hand.
    Ready(Resolved),
    /// It can never be completed.
    Failed(FileFault),
}

/// A waiting transmit.
#[derive(Debug)]
pub(crate) struct Pending {
    /// The checked transmit.
    pub(crate) outgoing: Outgoing,
    /// Its progress.
    pub(crate) state: State,
}

#[derive(Debug)]
struct Node {
    pending: Pending,
    /// Entry of the transmit's flow, or [`Key::NONE`] for [`FlowId::NONE`].
    flow: Key,
    next: Key,
}

#[derive(Debug)]
struct Entry {
    queue: usize,
    flow: FlowId,
    head: Key,
    tail: Key,
}

/// All waiting transmits.
#[derive(Debug)]
pub(crate) struct FlowTable {
    nodes: Slab<Node>,
    entries: Slab<Entry>,
    index: HashTable<Key>,
    seed: u64,
}

impl FlowTable {
    /// Creates an empty table.
    pub(crate) const fn new(seed: u64) -> Self {
        Self { nodes: Slab::new(), entries: Slab::new(), index: HashTable::new(), seed }
    }

    /// Returns the number of waiting transmits.
    pub(crate) const fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the number of flows that they belong to.
    pub(crate) const fn flows(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether a transmit of the flow waits, so that the next one has to wait behind it.
    pub(crate) fn is_waiting(&self, queue: usize, flow: FlowId) -> bool {
        !self.entries.is_empty() && flow != FlowId::NONE && self.find(queue, flow).is_some()
    }

    /// Appends a transmit to its flow's queue and returns its key.
    pub(crate) fn push(&mut self, pending: Pending) -> Key {
        let (queue, flow) = (pending.outgoing.queue, pending.outgoing.flow);
        let node = self.nodes.insert(Node { pending, flow: Key::NONE, next: Key::NONE });
        if flow == FlowId::NONE {
            return node;
        }
        let entry = self.find(queue, flow).unwrap_or_else(|| self.insert_entry(queue, flow));
        if let Some(new) = self.nodes.get_mut(node) {
            new.flow = entry;
        }
        if let Some(entry) = self.entries.get_mut(entry) {
            let behind = core::mem::replace(&mut entry.tail, node);
            match self.nodes.get_mut(behind) {
                Some(last) => last.next = node,
                None => entry.head = node,
            }
        }
        node
    }

    /// Sets the state of a transmit that became ready or failed.
    pub(crate) fn set(&mut self, transmit: Key, state: State) {
        if let Some(node) = self.nodes.get_mut(transmit) {
            node.pending.state = state;
        }
    }

    /// Returns the line of a transmit, for the calls below: its flow's, or one of its own.
    pub(crate) fn line_of(&self, transmit: Key) -> Option<Line> {
        let node = self.nodes.get(transmit)?;
        Some(if node.flow == Key::NONE { Line::Single(transmit) } else { Line::Flow(node.flow) })
    }

    /// Returns the line of a flow, if any of its transmits waits.
    pub(crate) fn line_of_flow(&self, queue: usize, flow: FlowId) -> Option<Line> {
        if self.is_waiting(queue, flow) { self.find(queue, flow).map(Line::Flow) } else { None }
    }

    /// Removes the transmit at the head of a line, unless it waits.
    pub(crate) fn pop_settled(&mut self, line: Line) -> Option<Pending> {
        let head = self.head(line)?;
        match self.nodes.get(head)?.pending.state {
            State::Waiting(_) => None,
            State::Ready(_) | State::Failed(_) => self.pop(line),
        }
    }

    /// Removes the transmit at the head of a line, in any state. The flow's entry is removed with
    /// its last transmit.
    pub(crate) fn pop(&mut self, line: Line) -> Option<Pending> {
        let head = self.head(line)?;
        let node = self.nodes.remove(head)?;
        if let Line::Flow(key) = line {
            if node.next == Key::NONE {
                self.remove_entry(key);
            } else if let Some(entry) = self.entries.get_mut(key) {
                entry.head = node.next;
            }
        }
        Some(node.pending)
    }

    /// Removes everything.
    pub(crate) fn clear(&mut self) {
        self.nodes.drain(drop);
        self.entries.drain(drop);
        self.index.clear();
    }

    fn head(&self, line: Line) -> Option<Key> {
        match line {
            Line::Single(key) => Some(key),
            Line::Flow(key) => self.entries.get(key).map(|entry| entry.head),
        }
    }

    fn find(&self, queue: usize, flow: FlowId) -> Option<Key> {
        let same =
            |&key: &Key| self.entries.get(key).is_some_and(|e| e.flow == flow && e.queue == queue);
        self.index.find(self.hash(queue, flow), same).copied()
    }

    fn insert_entry(&mut self, queue: usize, flow: FlowId) -> Key {
        let entry = Entry { queue, flow, head: Key::NONE, tail: Key::NONE };
        let key = self.entries.insert(entry);
        let (entries, seed) = (&self.entries, self.seed);
        let rehash = |&key: &Key| entries.get(key).map_or(0, |e| hash(seed, e.queue, e.flow));
        self.index.insert_unique(hash(seed, queue, flow), key, rehash);
        key
    }

    fn remove_entry(&mut self, key: Key) {
        if let Some(entry) = self.entries.remove(key) {
            let hash = self.hash(entry.queue, entry.flow);
            if let Ok(found) = self.index.find_entry(hash, |&k| k == key) {
                found.remove();
            }
        }
    }

    const fn hash(&self, queue: usize, flow: FlowId) -> u64 {
        hash(self.seed, queue, flow)
    }
}

/// A queue of transmits that leave in order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Line {
    /// A single transmit without a flow.
    Single(Key),
    /// The transmits of a flow.
    Flow(Key),
}

const fn hash(seed: u64, queue: usize, flow: FlowId) -> u64 {
    mix(seed, flow.0, queue as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::tx::check;
    use crate::tests::frames::transmit;
    use alloc::vec;
    use alloc::vec::Vec;
    use base::Instant;

    fn pending(queue: usize, flow: FlowId, tag: u32, state: State) -> Pending {
        let mut t = transmit(flow, 1, 0);
        t.echo = Some(tag);
        let (outgoing, _) =
            check(queue, Instant::ZERO, t, 1500, crate::config::RUN_BYTES_MAX).unwrap();
        Pending { outgoing, state }
    }

    fn waiting() -> State {
        State::Waiting(Key::NONE)
    }

    fn settled(table: &mut FlowTable, line: Line) -> Vec<u32> {
        let mut out = vec![];
        while let Some(p) = table.pop_settled(line) {
            out.extend(p.outgoing.echo);
        }
        out
    }

    #[test]
    fn order_is_kept_and_entries_vanish() {
        let mut table = FlowTable::new(1);
        let flow = FlowId(7);
        assert!(!table.is_waiting(0, flow));
        let first = table.push(pending(0, flow, 1, waiting()));
        table.push(pending(0, flow, 2, State::Ready(Resolved::default())));
        let third = table.push(pending(0, flow, 3, waiting()));
        assert!(table.is_waiting(0, flow));
        assert!(!table.is_waiting(1, flow), "flows are the queue's own");
        let line = table.line_of(first).unwrap();
        assert_eq!(settled(&mut table, line), []);
        table.set(first, State::Ready(Resolved::default()));
        assert_eq!(settled(&mut table, line), [1, 2]);
        table.set(third, State::Failed(FileFault::Io));
        assert_eq!(settled(&mut table, line), [3]);
        assert!(!table.is_waiting(0, flow));
        assert_eq!((table.len(), table.flows()), (0, 0));
        assert!(table.line_of(third).is_none());
    }

    #[test]
    fn transmits_of_no_flow_stand_alone() {
        let mut table = FlowTable::new(1);
        let a = table.push(pending(0, FlowId::NONE, 1, waiting()));
        let b = table.push(pending(0, FlowId::NONE, 2, State::Ready(Resolved::default())));
        assert!(!table.is_waiting(0, FlowId::NONE));
        let (line_a, line_b) = (table.line_of(a).unwrap(), table.line_of(b).unwrap());
        assert_eq!(settled(&mut table, line_b), [2]);
        assert_eq!(settled(&mut table, line_a), []);
        assert!(table.pop(line_a).is_some());
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn many_flows_are_told_apart() {
        let mut table = FlowTable::new(1);
        let keys: Vec<Key> =
            (0..1000).map(|i| table.push(pending(0, FlowId(i), 0, waiting()))).collect();
        assert_eq!((table.len(), table.flows()), (1000, 1000));
        for key in keys {
            let line = table.line_of(key).unwrap();
            assert!(table.pop(line).is_some() && table.pop(line).is_none());
        }
        assert_eq!(table.flows(), 0);
        table.push(pending(0, FlowId(1), 0, waiting()));
        table.clear();
        assert!(!table.is_waiting(0, FlowId(1)));
    }
}
