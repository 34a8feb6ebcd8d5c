//! The key of a flow, by which frames are steered ([`super::claims`]) and connections remembered
//! ([`super::flows`]).

use tcp_rules::tuple::hash_tuple;
use wire::Tuple;

/// A flow: TCP and UDP have the same ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlowKey {
    /// Its addresses and ports; `local` is the function's side.
    pub(super) tuple: Tuple,
    pub(super) is_udp: bool,
}

impl FlowKey {
    /// Returns the hash of the key in tables with this seed.
    pub(super) fn hash(&self, seed: u64) -> u64 {
        hash_tuple(seed ^ u64::from(self.is_udp), &self.tuple)
    }
}
