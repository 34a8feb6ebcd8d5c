//! Steering of flows to queues: the hash of a flow's tuple selects the host that owns the flow.
//!
//! All devices and hosts of a stack have the same seed, so they agree on the queue of each tuple,
//! wherever a frame arrives. A device with a queue of its own hands frames of other queues over to
//! their devices; a host opens connections only from ports whose hash leads to its own queue.
//! [`crate::quic::QuicSteering`] does the same for QUIC datagrams, by connection ID.

use alloc::sync::Arc;

use base::Prng;
use wire::Tuple;
use wire::rss::Toeplitz;

/// Selects the queue of a flow by the RSS hash of its tuple.
#[derive(Clone, Debug)]
pub struct FlowSteering {
    rss: Toeplitz,
    queues: u32,
}

impl FlowSteering {
    /// Creates the function for `queues` queues, at least one, with a key derived from `seed`.
    #[must_use]
    pub fn new(seed: u64, queues: usize) -> Self {
        let rss = Toeplitz::random(&mut Prng::new(seed));
        Self { rss, queues: u32::try_from(queues).unwrap_or(u32::MAX).max(1) }
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

    use wire::Endpoint;

    use super::*;

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
