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

use crate::engine::ResolvedPayload;
use crate::pipeline::tx::CheckedTransmit;
use structures::slab::{Slab, SlabKey};

/// Progress of a waiting transmit.
#[derive(Debug)]
pub(crate) enum PendingState {
    /// The file engine loads its payload, in the job of this key.
    Waiting(SlabKey),
    /// Its payload is at hand.
    Ready(ResolvedPayload),
    /// It can never be completed.
    Failed(FileFault),
}

/// A waiting transmit.
#[derive(Debug)]
pub(crate) struct PendingTransmit {
    /// The checked transmit.
    pub(crate) outgoing: CheckedTransmit,
    /// Its progress.
    pub(crate) state: PendingState,
}

#[derive(Debug)]
struct PendingNode {
    pending: PendingTransmit,
    /// Entry of the transmit's flow, or [`SlabKey::NONE`] for [`FlowId::NONE`].
    flow: SlabKey,
    next: SlabKey,
}

#[derive(Debug)]
struct FlowEntry {
    queue: usize,
    flow: FlowId,
    head: SlabKey,
    tail: SlabKey,
}

/// All waiting transmits.
#[derive(Debug)]
pub(crate) struct FlowTable {
    nodes: Slab<PendingNode>,
    entries: Slab<FlowEntry>,
    index: HashTable<SlabKey>,
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
    pub(crate) fn push(&mut self, pending: PendingTransmit) -> SlabKey {
        let (queue, flow) = (pending.outgoing.queue, pending.outgoing.flow);
        let node =
            self.nodes.insert(PendingNode { pending, flow: SlabKey::NONE, next: SlabKey::NONE });
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
    pub(crate) fn set(&mut self, transmit: SlabKey, state: PendingState) {
        if let Some(node) = self.nodes.get_mut(transmit) {
            node.pending.state = state;
        }
    }

    /// Returns the queue of a transmit, for the calls below: its flow's, or one of its own.
    pub(crate) fn queue_of(&self, transmit: SlabKey) -> Option<FlowQueueKey> {
        let node = self.nodes.get(transmit)?;
        Some(if node.flow == SlabKey::NONE {
            FlowQueueKey::Single(transmit)
        } else {
            FlowQueueKey::Flow(node.flow)
        })
    }

    /// Returns the queue of a flow, if any of its transmits waits.
    pub(crate) fn queue_of_flow(&self, queue: usize, flow: FlowId) -> Option<FlowQueueKey> {
        if self.is_waiting(queue, flow) {
            self.find(queue, flow).map(FlowQueueKey::Flow)
        } else {
            None
        }
    }

    /// Removes the transmit at the head of a queue, unless it waits.
    pub(crate) fn pop_resolved(&mut self, line: FlowQueueKey) -> Option<PendingTransmit> {
        let head = self.head(line)?;
        match self.nodes.get(head)?.pending.state {
            PendingState::Waiting(_) => None,
            PendingState::Ready(_) | PendingState::Failed(_) => self.pop(line),
        }
    }

    /// Removes the transmit at the head of a queue, in any state. The flow's entry is removed with
    /// its last transmit.
    pub(crate) fn pop(&mut self, line: FlowQueueKey) -> Option<PendingTransmit> {
        let head = self.head(line)?;
        let node = self.nodes.remove(head)?;
        if let FlowQueueKey::Flow(key) = line {
            if node.next == SlabKey::NONE {
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

    fn head(&self, line: FlowQueueKey) -> Option<SlabKey> {
        match line {
            FlowQueueKey::Single(key) => Some(key),
            FlowQueueKey::Flow(key) => self.entries.get(key).map(|entry| entry.head),
        }
    }

    fn find(&self, queue: usize, flow: FlowId) -> Option<SlabKey> {
        let same = |&key: &SlabKey| {
            self.entries.get(key).is_some_and(|e| e.flow == flow && e.queue == queue)
        };
        self.index.find(self.hash(queue, flow), same).copied()
    }

    fn insert_entry(&mut self, queue: usize, flow: FlowId) -> SlabKey {
        let entry = FlowEntry { queue, flow, head: SlabKey::NONE, tail: SlabKey::NONE };
        let key = self.entries.insert(entry);
        let (entries, seed) = (&self.entries, self.seed);
        let rehash = |&key: &SlabKey| entries.get(key).map_or(0, |e| hash(seed, e.queue, e.flow));
        self.index.insert_unique(hash(seed, queue, flow), key, rehash);
        key
    }

    fn remove_entry(&mut self, key: SlabKey) {
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
pub(crate) enum FlowQueueKey {
    /// A single transmit without a flow.
    Single(SlabKey),
    /// The transmits of a flow.
    Flow(SlabKey),
}

const fn hash(seed: u64, queue: usize, flow: FlowId) -> u64 {
    mix(seed, flow.0, queue as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::tx::{CheckedTransmit, check_transmit};
    use crate::tests::frames::transmit;
    use alloc::vec;
    use alloc::vec::Vec;
    use base::Instant;

    fn pending(queue: usize, flow: FlowId, tag: u32, state: PendingState) -> PendingTransmit {
        let mut t = transmit(flow, 1, 0);
        t.echo = Some(tag);
        let kind = check_transmit(&t, 1500, crate::config::RUN_BYTES_MAX).unwrap();
        let outgoing = CheckedTransmit::new(queue, Instant::ZERO, &t, kind);
        PendingTransmit { outgoing, state }
    }

    fn waiting() -> PendingState {
        PendingState::Waiting(SlabKey::NONE)
    }

    fn settled(table: &mut FlowTable, line: FlowQueueKey) -> Vec<u32> {
        let mut out = vec![];
        while let Some(p) = table.pop_resolved(line) {
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
        table.push(pending(0, flow, 2, PendingState::Ready(ResolvedPayload::default())));
        let third = table.push(pending(0, flow, 3, waiting()));
        assert!(table.is_waiting(0, flow));
        assert!(!table.is_waiting(1, flow), "flows are the queue's own");
        let line = table.queue_of(first).unwrap();
        assert_eq!(settled(&mut table, line), []);
        table.set(first, PendingState::Ready(ResolvedPayload::default()));
        assert_eq!(settled(&mut table, line), [1, 2]);
        table.set(third, PendingState::Failed(FileFault::Io));
        assert_eq!(settled(&mut table, line), [3]);
        assert!(!table.is_waiting(0, flow));
        assert_eq!((table.len(), table.flows()), (0, 0));
        assert!(table.queue_of(third).is_none());
    }

    #[test]
    fn transmits_of_no_flow_stand_alone() {
        let mut table = FlowTable::new(1);
        let a = table.push(pending(0, FlowId::NONE, 1, waiting()));
        let b = table.push(pending(
            0,
            FlowId::NONE,
            2,
            PendingState::Ready(ResolvedPayload::default()),
        ));
        assert!(!table.is_waiting(0, FlowId::NONE));
        let (line_a, line_b) = (table.queue_of(a).unwrap(), table.queue_of(b).unwrap());
        assert_eq!(settled(&mut table, line_b), [2]);
        assert_eq!(settled(&mut table, line_a), []);
        assert!(table.pop(line_a).is_some());
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn many_flows_are_told_apart() {
        let mut table = FlowTable::new(1);
        let keys: Vec<SlabKey> =
            (0..1000).map(|i| table.push(pending(0, FlowId(i), 0, waiting()))).collect();
        assert_eq!((table.len(), table.flows()), (1000, 1000));
        for key in keys {
            let line = table.queue_of(key).unwrap();
            assert!(table.pop(line).is_some() && table.pop(line).is_none());
        }
        assert_eq!(table.flows(), 0);
        table.push(pending(0, FlowId(1), 0, waiting()));
        table.clear();
        assert!(!table.is_waiting(0, FlowId(1)));
    }
}
