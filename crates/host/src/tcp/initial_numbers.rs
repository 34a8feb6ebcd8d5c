//! Initial sequence numbers and timestamp offsets of connections.
//!
//! Used for active and passive opens. Both numbers are keyed hashes of the tuple, so that an
//! attacker off the path cannot guess them.

use base::{Instant, Prng, SeqNum, low32};
use wire::Tuple;

use crate::config::TcpConfig;
use crate::hash::KeyedHashBuilder;

/// Secret key of initial sequence numbers and timestamp offsets (RFC 6528).
#[derive(Debug)]
pub(crate) struct InitialNumbersKey(KeyedHashBuilder);

impl InitialNumbersKey {
    pub(crate) const fn random(prng: &mut Prng) -> Self {
        Self(KeyedHashBuilder::random(prng))
    }

    /// Returns the initial sequence number (RFC 6528): a clock that ticks every 4 us, plus a keyed
    /// hash of the tuple.
    pub(crate) fn sequence(&self, now: Instant, config: &TcpConfig, tuple: &Tuple) -> SeqNum {
        let secret = low32(self.0.tuple(tuple));
        let first = &config.first_numbers;
        SeqNum(match first.sequence {
            None => secret.wrapping_add(low32(now.as_micros() / 4)),
            Some(limit) => {
                let spread = if secret & 1 == 0 { secret % (1 << 20) } else { secret % (1 << 10) };
                limit.wrapping_sub(spread).wrapping_add(low32(now.since(first.at).as_millis()))
            }
        })
    }

    /// Returns the offset of a connection's timestamps from our clock, a secret for each tuple (RFC
    /// 7323 section 5.4).
    pub(crate) fn timestamp_offset(&self, config: &TcpConfig, tuple: &Tuple) -> u32 {
        let secret = low32(self.0.tuple(tuple) >> 32);
        let first = &config.first_numbers;
        first.timestamp.map_or(secret, |limit| {
            limit.wrapping_sub(low32(first.at.as_millis())).wrapping_sub(secret % (1 << 12))
        })
    }

    /// Returns a secret for a peer and a local address; the local port of `tuple` must be 0. No
    /// connection has such a tuple, so the secret reveals nothing about a sequence number.
    pub(crate) fn first_port(&self, tuple: &Tuple) -> u64 {
        self.0.tuple(tuple)
    }
}
