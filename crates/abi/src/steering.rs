//! Steering of flows to queues: the hash of a flow's tuple selects the host that owns the flow.
//!
//! All devices and hosts of a stack have the same seed, so they agree on the queue of each tuple,
//! wherever a frame arrives. A device with a queue of its own hands frames of other queues over to
//! their devices; a host opens connections only from ports whose hash leads to its own queue.
//! [`crate::quic::QuicSteering`] does the same for QUIC datagrams, by connection ID.

use alloc::sync::Arc;

use core::net::Ipv4Addr;

use base::Prng;
use wire::rss::Toeplitz;
use wire::{Endpoint, Tuple};

/// Greatest number of queues over which ports in sequence are known to be spread, a power of two.
const SPREAD_MAX: u32 = 128;

/// Selects the queue of a flow by the RSS hash of its tuple.
#[derive(Clone, Debug)]
pub struct FlowSteering {
    rss: Toeplitz,
    queues: u32,
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
        let queues = u32::try_from(queues).unwrap_or(u32::MAX).max(1);
        let mut prng = Prng::new(seed);
        loop {
            let steering = Self { rss: Toeplitz::random(&mut prng), queues };
            if steering.spreads_ports_in_sequence() {
                return steering;
            }
        }
    }

    /// Returns whether ports in sequence, four times as many as there are queues, lead to all
    /// queues, for local ports and for remote ports. Each queue's share of them is then equal if
    /// the number of queues is a power of two.
    fn spreads_ports_in_sequence(&self) -> bool {
        let values =
            self.queues.checked_next_power_of_two().map_or(SPREAD_MAX, |n| n.min(SPREAD_MAX));
        let end = |port| Endpoint { addr: Ipv4Addr::UNSPECIFIED.into(), port };
        let spreads = |tuple: &dyn Fn(u16) -> Tuple| {
            let ports = 0..u16::try_from(4 * values).unwrap_or(u16::MAX);
            let seen =
                ports.fold(0_u128, |seen, port| seen | 1 << (self.hash(&tuple(port)) % values));
            seen.count_ones() == values
        };
        spreads(&|port| Tuple { local: end(0), remote: end(port) })
            && spreads(&|port| Tuple { local: end(port), remote: end(0) })
    }

    /// Returns the hash of a tuple, whose `local` side is the stack's.
    #[must_use]
    pub fn hash(&self, tuple: &Tuple) -> u32 {
        self.rss.hash(tuple)
    }

    /// Returns the queue that a hash leads to.
    #[must_use]
    pub const fn queue_of_hash(&self, hash: u32) -> usize {
        (hash % self.queues) as usize
    }

    /// Returns the queue that a tuple leads to.
    #[must_use]
    pub fn queue_of(&self, tuple: &Tuple) -> usize {
        self.queue_of_hash(self.hash(tuple))
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

/// The queue whose flows a host owns.
#[derive(Clone, Debug)]
pub struct OwnQueue {
    /// Steering of all queues.
    pub steering: Arc<FlowSteering>,
    /// Index of the queue.
    pub index: usize,
}

impl OwnQueue {
    /// Returns whether a tuple leads to this queue.
    #[must_use]
    pub fn owns(&self, tuple: &Tuple) -> bool {
        self.steering.queue_of(tuple) == self.index
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
}
