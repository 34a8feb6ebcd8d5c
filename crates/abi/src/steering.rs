//! Steering of flows to queues: the hash of a flow's tuple selects the host that owns the flow.
//!
//! All devices and hosts of a stack share one [`FlowSteering`], so they agree on the queue of each
//! tuple, wherever a frame arrives. A device with a queue of its own hands frames of other queues
//! over to their devices; a host opens connections only from ports whose hash leads to its own
//! queue. [`crate::quic::QuicSteering`] does the same for QUIC datagrams, by connection ID.
//!
//! # Moving an entry
//!
//! As in RSS, the hash selects an entry of an indirection table, and the entry names the queue. An
//! entry of TCP flows can be moved to another queue ([`FlowSteering::move_entry`]). Its connections
//! stay with the hosts that have them, which may pass them on to the new queue's host later: SYNs
//! go to the new queue, and so does every other segment first. If the new queue's host has no
//! connection for a segment, the device hands it over to the entry's former queue, and remembers
//! the flow ([`SteeringReason::Former`]). If the former queue's host does not have it either, the
//! segment comes back ([`SteeringReason::Returned`]), and the new queue's host answers it. So no
//! segment is answered by a host while another one has its connection, and none is handed over
//! without end.
//!
//! An entry can be moved again once its former queue has none of its flows
//! ([`FlowSteering::release`]). UDP datagrams and fragments have no state that could be searched
//! for: they are not moved.

use alloc::boxed::Box;
use alloc::sync::Arc;

use core::net::Ipv4Addr;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use base::Prng;
use wire::rss::Toeplitz;
use wire::{Endpoint, Tuple};

use crate::link::RxFrame;

/// Greatest number of queues over which ports in sequence are known to be spread, a power of two.
const SPREAD_MAX: u32 = 128;

/// Maximum number of entries of the indirection table.
const ENTRIES_MAX: u32 = 512;

/// Bits of an entry that hold its queue; the former queue plus one is above them.
const QUEUE_BITS: u32 = 16;

/// Queues whose hosts may have the flows of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowOwners {
    /// The queue of new flows.
    pub current: usize,
    /// The queue of which older flows may be left; `None` if there are none.
    pub former: Option<usize>,
}

impl FlowOwners {
    /// Returns the owners of flows that are not moved.
    #[must_use]
    pub const fn only(current: usize) -> Self {
        Self { current, former: None }
    }

    const fn from_entry(entry: u32) -> Self {
        let former = (entry >> QUEUE_BITS) as usize;
        Self { current: (entry & 0xffff) as usize, former: former.checked_sub(1) }
    }

    fn to_entry(self) -> u32 {
        let bits = |queue| u32::from(u16::try_from(queue).unwrap_or(u16::MAX));
        bits(self.former.map_or(0, |queue| queue + 1)) << QUEUE_BITS | bits(self.current)
    }
}

/// Reason for which a frame is handed over to the device of another queue, or back to the device
/// that delivered it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SteeringReason {
    /// The table names the queue.
    #[default]
    Current,
    /// The host of the current queue has no connection for the segment.
    Former,
    /// Neither has the host of the former queue: the current one answers the segment.
    Returned,
    /// The host had handed the segment's connection over for tear-down
    /// ([`Op::Teardown`](crate::Op::Teardown)) when the segment arrived. If the device has ended
    /// the connection meanwhile, the segment is late: the host drops it.
    TornDown,
}

/// A frame on its way to a device from another one, or from its host.
#[derive(Debug)]
pub struct SteeredFrame {
    /// The frame as received.
    pub frame: RxFrame,
    /// Why it is handed over.
    pub reason: SteeringReason,
}

/// A segment that a host has no connection for, while another queue's host may have one.
#[derive(Debug)]
pub struct SegmentHandOver {
    /// The queue whose device gets the segment.
    pub queue: usize,
    /// The flow.
    pub tuple: Tuple,
    /// The segment, with [`SteeringReason::Former`] or [`SteeringReason::Returned`].
    pub frame: SteeredFrame,
}

/// Selects the queue of a flow by the RSS hash of its tuple.
#[derive(Debug)]
pub struct FlowSteering {
    rss: Toeplitz,
    queues: u32,
    /// The indirection table. Its length is a multiple of the number of queues, so that it agrees
    /// with [`Self::fixed_queue`] until an entry is moved.
    entries: Box<[AtomicU32]>,
    /// Their number: a division by it is one of 32 bits.
    entry_count: u32,
    /// Number of changes of the table, modulo 2^32.
    changes: AtomicU32,
    /// An entry was moved at some time.
    has_moved: AtomicBool,
}

impl FlowSteering {
    /// Creates the function for `queues` queues, at least one, with a key derived from `seed`.
    ///
    /// Hosts choose the ports of their connections in sequence, this one and Linux too, so that
    /// connections between two hosts differ in a few low bits of one port. The hash is linear: with
    /// one key in 2^n, n such bits have no influence on one bit of the hash, and all connections
    /// would be on half of the queues. Such keys are not used.
    #[must_use]
    pub fn new(seed: u64, queues: usize) -> Self {
        let queues = u32::try_from(queues).unwrap_or(u32::MAX).clamp(1, u32::from(u16::MAX) - 1);
        let count = (ENTRIES_MAX / queues).max(1) * queues;
        let entries: Box<[AtomicU32]> = (0..count).map(|n| AtomicU32::new(n % queues)).collect();
        let mut prng = Prng::new(seed);
        loop {
            let rss = Toeplitz::random(&mut prng);
            if spreads_ports_in_sequence(&rss, queues) {
                let (changes, has_moved) = (AtomicU32::new(0), AtomicBool::new(false));
                return Self { rss, queues, entries, entry_count: count, changes, has_moved };
            }
        }
    }

    /// Returns the hash of a tuple, whose `local` side is the stack's.
    #[must_use]
    pub fn hash(&self, tuple: &Tuple) -> u32 {
        self.rss.hash(tuple)
    }

    /// Returns the queue of UDP datagrams and fragments with this hash, which are not moved.
    #[must_use]
    pub const fn fixed_queue(&self, hash: u32) -> usize {
        (hash % self.queues) as usize
    }

    /// Returns the number of entries of the table.
    #[must_use]
    pub const fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Returns the entry of the TCP flows with this hash.
    const fn entry_of_hash(&self, hash: u32) -> usize {
        (hash % self.entry_count) as usize
    }

    /// Returns the entry of a TCP flow.
    #[must_use]
    pub fn entry_of(&self, tuple: &Tuple) -> usize {
        self.entry_of_hash(self.hash(tuple))
    }

    /// Returns the queues of an entry.
    ///
    /// # Panics
    /// Panics if there is no such entry.
    #[must_use]
    pub fn owners_of_entry(&self, entry: usize) -> FlowOwners {
        FlowOwners::from_entry(self.entries[entry].load(Ordering::Acquire))
    }

    /// Returns the number of changes of the table, modulo 2^32, for links that have a copy of it.
    #[must_use]
    pub fn changes(&self) -> u32 {
        self.changes.load(Ordering::Acquire)
    }

    /// Returns whether an entry may have been moved. While none was, each host has all connections
    /// of its flows, and a device behind a switch need not know their hash.
    #[must_use]
    pub fn has_moved(&self) -> bool {
        self.has_moved.load(Ordering::Relaxed)
    }

    /// Returns the queues of TCP flows with this hash.
    #[must_use]
    pub fn owners(&self, hash: u32) -> FlowOwners {
        self.owners_of_entry(self.entry_of_hash(hash))
    }

    /// Returns the queue to which SYNs of a tuple lead.
    #[must_use]
    pub fn queue_of(&self, tuple: &Tuple) -> usize {
        self.owners_of_entry(self.entry_of(tuple)).current
    }

    /// Moves an entry to the queue `to`. Returns false if it is there already, if there is no such
    /// queue, or if flows of a former queue may be left.
    ///
    /// # Panics
    /// Panics if there is no such entry.
    pub fn move_entry(&self, entry: usize, to: usize) -> bool {
        let before = self.owners_of_entry(entry);
        if before.former.is_some() || before.current == to || to >= self.queues() {
            return false;
        }
        let after = FlowOwners { current: to, former: Some(before.current) };
        self.replace(entry, before, after)
    }

    /// Ends the move of an entry, none of whose flows is left at the queue `former`. Returns false
    /// if that is not the entry's former queue.
    ///
    /// # Panics
    /// Panics if there is no such entry.
    pub fn release(&self, entry: usize, former: usize) -> bool {
        let before = self.owners_of_entry(entry);
        before.former == Some(former)
            && self.replace(entry, before, FlowOwners::only(before.current))
    }

    fn replace(&self, entry: usize, before: FlowOwners, after: FlowOwners) -> bool {
        // Before the entry, so that a host that is asked about one of its flows knows.
        self.has_moved.store(true, Ordering::Relaxed);
        let (before, after) = (before.to_entry(), after.to_entry());
        let entry = &self.entries[entry];
        let done = entry.compare_exchange(before, after, Ordering::AcqRel, Ordering::Relaxed);
        if done.is_ok() {
            self.changes.fetch_add(1, Ordering::Release);
        }
        done.is_ok()
    }

    /// Returns the number of queues.
    #[must_use]
    pub const fn queues(&self) -> usize {
        self.queues as usize
    }

    /// Returns the hash function.
    #[must_use]
    pub const fn rss(&self) -> &Toeplitz {
        &self.rss
    }
}

/// Returns whether ports in sequence, four times as many as there are queues, lead to all queues,
/// for local ports and for remote ports. Each queue's share of them is then equal if the number of
/// queues is a power of two.
fn spreads_ports_in_sequence(rss: &Toeplitz, queues: u32) -> bool {
    let values = queues.checked_next_power_of_two().map_or(SPREAD_MAX, |n| n.min(SPREAD_MAX));
    let end = |port| Endpoint { addr: Ipv4Addr::UNSPECIFIED.into(), port };
    let spreads = |tuple: &dyn Fn(u16) -> Tuple| {
        let ports = 0..u16::try_from(4 * values).unwrap_or(u16::MAX);
        let seen = ports.fold(0_u128, |seen, port| seen | 1 << (rss.hash(&tuple(port)) % values));
        seen.count_ones() == values
    };
    spreads(&|port| Tuple { local: end(0), remote: end(port) })
        && spreads(&|port| Tuple { local: end(port), remote: end(0) })
}

/// The queue of a device and its host.
#[derive(Clone, Debug)]
pub struct OwnQueue {
    /// Steering of all queues.
    pub steering: Arc<FlowSteering>,
    /// Index of the queue.
    pub index: usize,
}

impl OwnQueue {
    /// Returns whether a tuple leads to this queue, and no other queue's host can have its
    /// connection.
    #[must_use]
    pub fn owns(&self, tuple: &Tuple) -> bool {
        let owners = self.steering.owners_of_entry(self.steering.entry_of(tuple));
        owners == FlowOwners::only(self.index)
    }
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use super::*;

    /// A quarter of all keys would have all eight connections on one of two queues, for one side or
    /// the other.
    #[test]
    fn ports_in_sequence_are_spread_with_every_key() {
        let addr = |last| IpAddr::from([10, 0, 0, last]);
        for (seed, queues) in (0..500).flat_map(|seed| [(seed, 2), (seed, 4), (seed, 16)]) {
            let steering = FlowSteering::new(seed, queues);
            let mut seen = [[0; 16]; 2];
            let first = 4096 * u16::try_from(seed % 8).unwrap();
            for port in first..first + 4 * u16::try_from(queues).unwrap() {
                let ours = Endpoint { addr: addr(1), port: 80 };
                let theirs = Endpoint { addr: addr(2), port };
                seen[0][steering.queue_of(&Tuple { local: ours, remote: theirs })] += 1;
                seen[1][steering.queue_of(&Tuple { local: theirs, remote: ours })] += 1;
            }
            for shares in seen {
                assert!(shares[..queues].iter().all(|&n| n == 4), "seed {seed}: {shares:?}");
            }
        }
    }

    #[test]
    fn each_tuple_has_one_queue_and_all_queues_have_tuples() {
        let steering = Arc::new(FlowSteering::new(7, 3));
        let addr = |last| IpAddr::from([10, 0, 0, last]);
        let mut seen = [0; 3];
        for port in 0..300 {
            let tuple = Tuple {
                local: Endpoint { addr: addr(1), port: 80 },
                remote: Endpoint { addr: addr(2), port },
            };
            let own = |index| OwnQueue { steering: Arc::clone(&steering), index };
            let owners: alloc::vec::Vec<_> = (0..3).filter(|&q| own(q).owns(&tuple)).collect();
            assert_eq!(owners, [steering.queue_of(&tuple)]);
            seen[owners[0]] += 1;
        }
        assert!(seen.iter().all(|&n| n > 60), "{seen:?}");
        assert_eq!(FlowSteering::new(7, 0).queues(), 1);
    }

    #[test]
    fn an_entry_moves_once_its_former_queue_has_released_it() {
        for queues in [1, 2, 3, 7, 512, 600] {
            let steering = FlowSteering::new(7, queues);
            assert!((0..5000).all(|hash| {
                steering.owners(hash) == FlowOwners::only(steering.fixed_queue(hash))
            }));
        }
        let steering = Arc::new(FlowSteering::new(7, 3));
        let hash = 3 * 1000 + 1;
        let entry = steering.entry_of_hash(hash);
        assert!(!steering.move_entry(entry, 1) && !steering.move_entry(entry, 3));
        assert!(steering.move_entry(entry, 2));
        assert_eq!(steering.owners(hash), FlowOwners { current: 2, former: Some(1) });
        assert_eq!(steering.fixed_queue(hash), 1);
        assert!(!steering.move_entry(entry, 0) && !steering.release(entry, 0));
        assert!(steering.release(entry, 1) && !steering.release(entry, 1));
        assert!(steering.move_entry(entry, 0));
        assert_eq!(steering.owners(hash), FlowOwners { current: 0, former: Some(2) });
        let others = (0..steering.entries()).filter(|&other| other != entry);
        assert!(others.into_iter().all(|n| steering.owners_of_entry(n).former.is_none()));
    }
}
