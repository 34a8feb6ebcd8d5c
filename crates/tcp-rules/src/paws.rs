//! TS.Recent and protection against wrapped sequence numbers (PAWS): RFC 7323 sections 4.3 and 5.
//!
//! One [`TsRecent`] for each connection with timestamps. Called for each segment: first to check
//! whether it is too old, then, after its acknowledgment was checked, to take over its timestamp.

use base::{Duration, Instant, SeqNum, low32};
use wire::tcp::{TcpFlags, TcpHeader};

/// RFC 7323 section 5.5: an older timestamp proves nothing, since the peer's clock may have
/// advanced by half of its range.
const EXPIRES_AFTER: Duration = Duration::from_secs(24 * 24 * 3600);

/// TS.Recent: the peer's timestamp to be echoed, and when it arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TsRecent {
    value: u32,
    /// Arrival in whole seconds, precise enough for an expiry after days.
    arrived_at_s: u32,
}

impl TsRecent {
    /// Returns the state after timestamp `value` arrived at `now`.
    #[must_use]
    pub const fn new(now: Instant, value: u32) -> Self {
        Self { value, arrived_at_s: seconds(now) }
    }

    /// Returns the timestamp to be echoed.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.value
    }

    /// Returns whether the timestamp is too old to judge segments by.
    #[must_use]
    pub const fn has_expired(self, now: Instant) -> bool {
        seconds(now).saturating_sub(self.arrived_at_s) as u64 >= EXPIRES_AFTER.as_secs()
    }

    /// Returns whether a segment is an old duplicate: RFC 7323 section 5.3, R1. A reset is never
    /// one.
    #[must_use]
    #[inline]
    pub fn rejects(self, now: Instant, segment: &TcpHeader) -> bool {
        let Some(ts) = segment.options.timestamps else { return false };
        let is_older = SeqNum(ts.value).lt(SeqNum(self.value));
        is_older && !segment.flags.has(TcpFlags::RST) && !self.has_expired(now)
    }

    /// Takes over the timestamp of an acceptable segment if the segment begins at or before the
    /// last acknowledgment sent: section 4.3 (2). Any timestamp replaces an expired one.
    #[inline]
    pub fn update(&mut self, now: Instant, segment: &TcpHeader, last_ack_sent: SeqNum) {
        let Some(ts) = segment.options.timestamps else { return };
        let is_newer = SeqNum(ts.value).ge(SeqNum(self.value));
        if (is_newer || self.has_expired(now)) && segment.seq.le(last_ack_sent) {
            *self = Self::new(now, ts.value);
        }
    }
}

const fn seconds(now: Instant) -> u32 {
    low32(now.as_nanos() / 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::tcp::{TcpOptions, TcpTimestamps};

    const DAY_S: u64 = 24 * 3600;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn stamped(value: u32, seq: u32) -> TcpHeader {
        let timestamps = Some(TcpTimestamps { value, echo: 0 });
        let options = TcpOptions { timestamps, ..TcpOptions::default() };
        TcpHeader { seq: SeqNum(seq), flags: TcpFlags::ACK, options, ..TcpHeader::default() }
    }

    #[test]
    fn older_timestamps_are_rejected() {
        let recent = TsRecent::new(at(1), 3);
        assert!(recent.rejects(at(1), &stamped(2, 0)) && recent.rejects(at(1), &stamped(!0, 0)));
        assert!(!recent.rejects(at(1), &stamped(3, 0)) && !recent.rejects(at(1), &stamped(4, 0)));
        assert!(!recent.rejects(at(1), &TcpHeader::default()), "it has none");
        let reset = TcpHeader { flags: TcpFlags::RST, ..stamped(2, 0) };
        assert!(!recent.rejects(at(1), &reset), "RFC 7323 section 5.2");
    }

    /// RFC 7323 section 4.3: TS.Recent follows the left edge of the window and never decreases.
    #[test]
    fn follows_the_left_edge() {
        let mut recent = TsRecent::new(at(1), 3);
        let mut noted = |value, seq| {
            recent.update(at(1), &stamped(value, seq), SeqNum(100));
            recent.value()
        };
        assert_eq!((noted(5, 100), noted(9, 101), noted(4, 100), noted(6, 50)), (5, 5, 5, 6));
    }

    /// RFC 7323 section 5.5. Each acceptable timestamp renews the state; once it has expired, the
    /// next one replaces it though it seems older.
    #[test]
    fn expires_after_24_days() {
        let (old, day) = (stamped(2, 100), at(24 * DAY_S));
        let mut recent = TsRecent::new(Instant::ZERO, 3);
        assert!(recent.rejects(at(24 * DAY_S - 1), &old) && !recent.rejects(day, &old));
        recent.update(at(DAY_S), &stamped(3, 100), SeqNum(100));
        assert!(recent.rejects(day, &old), "the same timestamp came again");
        recent.update(at(25 * DAY_S), &stamped(2, 101), SeqNum(100));
        assert_eq!(recent.value(), 3, "not from ahead");
        recent.update(at(25 * DAY_S), &old, SeqNum(100));
        assert_eq!(recent.value(), 2);
        assert!(recent.rejects(at(25 * DAY_S), &stamped(1, 100)), "and counts again");
    }
}
