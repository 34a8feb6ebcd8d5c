//! State of tear-down offload (AccelTCP sections 4.2 and 5.2).
//!
//! Called by [`super::Streams`], which decides which connections are handed over, and by
//! [`crate::Host`] with the device's events. The host counts the connections that the device tears
//! down (AccelTCP: "the number of connection closures being handled by the NIC"), and hands none
//! over while the device reports overload. The host tears down the others itself.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use abi::teardown::{Teardown, TeardownDone, TeardownLimits};
use abi::{Capabilities, DeviceLoad, Op, Refusal};

use crate::config::HostConfig;
use crate::counters::HostCounters;
use crate::net::outbox::Outbox;

/// The connections that were handed over.
#[derive(Debug)]
pub(crate) struct TeardownOffloadState {
    limits: Result<TeardownLimits, Refusal>,
    /// The device reported overload.
    overloaded: bool,
    /// Connections handed over that have not ended.
    closing: u32,
    /// Connections that the device had not taken over when the last frame arrived.
    untaken: UntakenConnections,
    /// Number of connections that the device had taken over by then, modulo 2^32.
    taken_count: u32,
}

impl TeardownOffloadState {
    pub(crate) fn new(config: &HostConfig, capabilities: &Capabilities) -> Self {
        Self {
            limits: config.teardown_offload.and(capabilities.teardown),
            overloaded: false,
            closing: 0,
            untaken: UntakenConnections::new(),
            taken_count: 0,
        }
    }

    /// Notes how many connections the device had taken over when a frame arrived, modulo 2^32.
    pub(crate) fn ack_teardowns(&mut self, teardowns: u32) {
        let more = teardowns.wrapping_sub(self.taken_count) as usize;
        self.untaken.remove_oldest(more);
        self.taken_count = teardowns;
    }

    /// Returns whether the connection of a tuple may have been handed over after the device sent
    /// the frame of [`Self::ack_teardowns`]. Compares hashes only, so false positives are possible.
    pub(crate) fn may_be_untaken(&self, hash: u64) -> bool {
        self.untaken.contains(hash)
    }

    /// Returns the number of connections that the device tears down.
    pub(crate) const fn closing(&self) -> u32 {
        self.closing
    }

    /// Returns the limits on the next connection to hand over, or why none can be.
    pub(crate) fn room(&self) -> Result<TeardownLimits, Refusal> {
        let limits = self.limits?;
        if self.overloaded {
            return Err(Refusal::Overloaded);
        }
        if self.closing >= limits.flows_max {
            return Err(Refusal::TableFull);
        }
        Ok(limits)
    }

    /// Hands a connection over. Its frames that the device delivers before taking it over are
    /// returned to the device ([`Op::Return`]).
    pub(crate) fn push(&mut self, out: &mut Outbox, hash: u64, teardown: Box<Teardown>) {
        self.untaken.push(hash);
        self.closing += 1;
        out.counters.handed_over += 1;
        out.ops.push_back(Op::Teardown(teardown));
    }

    /// Handles the end of connections on the device.
    pub(crate) fn handle_done(&mut self, counters: &mut HostCounters, done: TeardownDone) {
        self.closing = self.closing.saturating_sub(done.total());
        counters.handed_over_closed += u64::from(done.closed);
        counters.handed_over_reset += u64::from(done.reset);
        counters.handed_over_timed_out += u64::from(done.timed_out);
    }

    /// Handles the refusal of a connection.
    pub(crate) fn note_refused(&mut self, why: Refusal) {
        self.closing = self.closing.saturating_sub(1);
        if matches!(why, Refusal::Disabled | Refusal::NotSupported) {
            self.limits = Err(why);
        }
    }

    /// Handles a change of the device's load: AccelTCP section 3, "full control by the host side".
    pub(crate) fn handle_load(&mut self, counters: &mut HostCounters, load: DeviceLoad) {
        if load.high != self.overloaded {
            self.overloaded = load.high;
            counters.device_overloads += u64::from(load.high);
        }
    }

    /// Handles a reset of the device, which has lost all its connections. Their peers are answered
    /// with a reset when they send.
    pub(crate) fn handle_device_reset(&mut self, counters: &mut HostCounters) {
        counters.handed_over_lost += u64::from(self.closing);
        self.closing = 0;
    }
}

/// Counters of [`UntakenConnections`]: for the hundreds of connections that are handed over in a
/// turn.
const UNTAKEN_COUNTERS: usize = 1024;

/// Hashes of tuples, oldest first, that can be searched: every first frame of a connection that the
/// device set up is looked up here.
#[derive(Debug)]
struct UntakenConnections {
    hashes: VecDeque<u64>,
    /// Number of hashes by their lowest bits (a counting Bloom filter with one hash function), so
    /// that most misses do not search the list.
    counts: Box<[u32; UNTAKEN_COUNTERS]>,
}

impl UntakenConnections {
    fn new() -> Self {
        Self { hashes: VecDeque::new(), counts: Box::new([0; UNTAKEN_COUNTERS]) }
    }

    #[expect(clippy::cast_possible_truncation, reason = "the lowest bits")]
    const fn counter(hash: u64) -> usize {
        hash as usize % UNTAKEN_COUNTERS
    }

    fn push(&mut self, hash: u64) {
        self.counts[Self::counter(hash)] += 1;
        self.hashes.push_back(hash);
    }

    /// Removes the oldest `count` hashes, or all: a misbehaving device cannot remove more.
    fn remove_oldest(&mut self, count: usize) {
        for hash in self.hashes.drain(..count.min(self.hashes.len())) {
            self.counts[Self::counter(hash)] -= 1;
        }
    }

    fn contains(&self, hash: u64) -> bool {
        self.counts[Self::counter(hash)] > 0 && self.hashes.contains(&hash)
    }
}

/// Counts a connection that was not handed over, for now.
pub(crate) const fn count_kept(counters: &mut HostCounters, why: Refusal) {
    *match why {
        Refusal::TableFull => &mut counters.hand_over_kept_full,
        Refusal::Overloaded => &mut counters.hand_over_kept_overloaded,
        _ => &mut counters.hand_over_kept_disabled,
    } += 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untaken_connections_are_found_until_they_are_removed() {
        let mut untaken = UntakenConnections::new();
        // Every hash shares a counter with others.
        let hashes: alloc::vec::Vec<u64> = (0..3000).map(|n| n * 512).collect();
        for (at, &hash) in hashes.iter().enumerate() {
            untaken.push(hash);
            if at >= 100 {
                untaken.remove_oldest(1);
            }
            let from = at.saturating_sub(99);
            assert!(hashes[from..=at].iter().all(|&hash| untaken.contains(hash)));
            assert!(hashes[..from].iter().all(|&hash| !untaken.contains(hash)));
        }
        untaken.remove_oldest(usize::MAX);
        assert!(hashes.iter().all(|&hash| !untaken.contains(hash)));
        assert_eq!(untaken.counts.iter().sum::<u32>(), 0);
    }
}
