//! Numbers that begin just below their limits: sequence numbers and timestamps of TCP, record
//! numbers of TLS, and the epochs of a device's cookies.
//!
//! Random numbers meet their limits in one connection of thousands. In a share of the worlds each
//! host has its own begin below 2^31 or 2^32, so that they cross it during the world. Packet
//! numbers of QUIC are not among them: quinn-proto begins at zero, and the device's tests have
//! large ones.

use base::{Duration, Instant, Prng};
use host::{FirstNumbers, TcpConfig};

use crate::faults::{Scenario, Tls};

/// Of the numbers that are drawn here.
const SALT: u64 = 0x4e75_0f0b;
/// The suite that may seal so many records, of those of a world.
const CHACHA: usize = 2;
/// Nodes that have numbers of their own; the others follow in turn.
const KINDS: usize = 4;
/// Records that a key may seal, if its suite has no limit, before the host changes it.
const RECORDS_MAX: u64 = u64::MAX - 1_024;
/// Milliseconds of an epoch of cookies, of which 32 can be told apart.
const EPOCH_MS: u64 = 64_000;

/// Where the numbers of a world begin.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    sequence: Option<[u32; KINDS]>,
    timestamp: Option<[u32; KINDS]>,
    record: u64,
    /// The last epoch before they repeat is about to end.
    epoch: bool,
}

impl Numbers {
    /// From numbers of its own: the rest of a scenario is the same with and without.
    pub(crate) fn draw(seed: u64, tls: Option<&Tls>) -> Option<Self> {
        let r = &mut Prng::new(seed ^ SALT);
        if !r.chance(0.3) {
            return None;
        }
        let limits =
            |r: &mut Prng| [(); KINDS].map(|()| if r.chance(0.6) { 0 } else { 1_u32 << 31 });
        let (sequence, timestamp) = (limits(r), limits(r));
        let (has_sequence, has_timestamp, epoch) = (r.chance(0.8), r.chance(0.8), r.chance(0.3));
        // TLS 1.2 has no other key to go on with.
        let last = r.chance(0.5) && tls.is_some_and(|tls| !tls.v12);
        let limit = if last { RECORDS_MAX } else { 1 << 32 };
        let few = tls.is_some_and(|tls| tls.key_records.is_some());
        Some(Self {
            sequence: has_sequence.then_some(sequence),
            timestamp: has_timestamp.then_some(timestamp),
            record: if few { 0 } else { limit - r.range(1, 30) },
            epoch,
        })
    }

    /// Milliseconds that clocks are ahead, if the epochs of cookies are to end.
    pub(crate) const fn clock_ahead_ms(&self) -> Option<u64> {
        if self.epoch { Some(31 * EPOCH_MS - 1_000) } else { None }
    }
}

/// Whether record numbers begin high: those of a suite without a limit.
pub(crate) fn has_large_records(scenario: &Scenario) -> bool {
    let begin = scenario.numbers.as_ref().is_some_and(|numbers| numbers.record > 0);
    begin && scenario.tls.as_ref().is_some_and(|tls| tls.suite == CHACHA)
}

/// A node's TCP as `base` says, with first numbers if the scenario has any.
pub(crate) fn tcp(
    scenario: &Scenario,
    node: usize,
    base: &TcpConfig,
    ahead: Duration,
) -> TcpConfig {
    let mut tcp = base.clone();
    if let Some(numbers) = &scenario.numbers {
        tcp.first_numbers = FirstNumbers {
            at: Instant::ZERO + ahead,
            sequence: numbers.sequence.map(|limits| limits[node % KINDS]),
            timestamp: numbers.timestamp.map(|limits| limits[node % KINDS]),
            record: numbers.record,
        };
    }
    tcp
}

/// Whether `limit` lies behind `first` and not behind `last`, modulo 2^32.
pub(crate) const fn crosses(first: u32, last: u32, limit: u32) -> bool {
    let ahead = limit.wrapping_sub(first);
    ahead > 0 && ahead <= last.wrapping_sub(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_crossed_once() {
        assert!(crosses(u32::MAX, 0, 0) && crosses(u32::MAX - 5, 5, 0));
        assert!(!crosses(0, 5, 0) && !crosses(5, u32::MAX, 0) && !crosses(7, 7, 7));
        assert!(crosses(0x7fff_ffff, 0x8000_0000, 1 << 31));
        assert!(!crosses(0x7fff_fff0, 0x7fff_ffff, 1 << 31));
    }
}
