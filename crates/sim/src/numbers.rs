//! Numbers that begin just below their limits: TCP sequence numbers and timestamps, TLS record
//! numbers, and the epochs of a device's SYN cookies.
//!
//! With random numbers one connection in thousands crosses a limit. In a share of the scenarios
//! each host begins below 2^31 or 2^32, so that it crosses them during the run. QUIC packet numbers
//! are not included: quinn-proto begins at zero, and the device's tests cover large ones.

use base::{Duration, Instant, Prng};
use host::{FirstNumbers, TcpConfig};

use crate::faults::{Scenario, TlsScenario};

/// Salt of this module's generator.
const SALT: u64 = 0x4e75_0f0b;
/// Index of the suite without a limit on the number of records per key.
const CHACHA: usize = 2;
/// Number of nodes with first numbers of their own; further nodes repeat them cyclically.
const KINDS: usize = 4;
/// Number of records after which the host updates a key whose suite has no limit.
const RECORDS_MAX: u64 = u64::MAX - 1_024;
/// Length of an epoch of SYN cookies in milliseconds; 32 epochs can be distinguished.
const EPOCH_MS: u64 = 64_000;

/// First numbers of a scenario.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    sequence: Option<[u32; KINDS]>,
    timestamp: Option<[u32; KINDS]>,
    record: u64,
    /// The last epoch before the epoch number wraps is about to end.
    epoch: bool,
}

impl Numbers {
    /// Uses a generator of its own: the rest of the scenario does not depend on these draws.
    pub(crate) fn draw(seed: u64, tls: Option<&TlsScenario>) -> Option<Self> {
        let r = &mut Prng::new(seed ^ SALT);
        if !r.chance(0.3) {
            return None;
        }
        let limits =
            |r: &mut Prng| [(); KINDS].map(|()| if r.chance(0.6) { 0 } else { 1_u32 << 31 });
        let (sequence, timestamp) = (limits(r), limits(r));
        let (has_sequence, has_timestamp, epoch) = (r.chance(0.8), r.chance(0.8), r.chance(0.3));
        // TLS 1.2 has no key update.
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

    /// Returns the lead of the clocks in milliseconds if cookie epochs are to wrap.
    pub(crate) const fn clock_ahead_ms(&self) -> Option<u64> {
        if self.epoch { Some(31 * EPOCH_MS - 1_000) } else { None }
    }
}

/// Returns whether record numbers begin high, which requires a suite without a limit.
pub(crate) fn has_large_records(scenario: &Scenario) -> bool {
    let begin = scenario.numbers.as_ref().is_some_and(|numbers| numbers.record > 0);
    begin && scenario.tls.as_ref().is_some_and(|tls| tls.suite == CHACHA)
}

/// Returns `base` with the first numbers of the scenario, if it has any.
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

/// Returns whether `limit` is in the range `(first, last]` modulo 2^32.
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
