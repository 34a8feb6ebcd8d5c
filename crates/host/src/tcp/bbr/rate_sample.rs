//! Samples of the delivery rate: draft-ietf-ccwg-bbr section 4.1.
//!
//! Used by BBR. A snapshot of the connection's delivery is taken when a transmit *leaves the
//! device*, not when it is handed over: the wait for a disk is no property of the path. Snapshots
//! are kept for each transmit, by its tag, as the draft recommends for offloads (section 4.1.3.1).
//! An acknowledgment is measured against the snapshot of the latest transmit that it covers.
//! Tags count up by one for each transmit; a range that is retransmitted gets a new one.

use alloc::collections::VecDeque;

use base::{Duration, Instant};

/// Number of snapshots below which none are dropped before everything is acknowledged.
const SNAPSHOTS_MIN: usize = 64;

/// State of delivery when a transmit left: the draft's per-packet state.
#[derive(Clone, Copy, Debug, Default)]
struct DepartureSnapshot {
    /// False while the transmit waits in the device.
    departed: bool,
    /// P.is_app_limited.
    app_limited: bool,
    /// P.tx_in_flight: bytes in the network, those of the transmit included.
    tx_in_flight: u64,
    /// P.delivered and P.lost.
    delivered: u64,
    lost: u64,
    /// P.delivered_time, P.first_send_time and P.send_time.
    delivered_at: Instant,
    first_sent_at: Instant,
    sent_at: Instant,
}

/// A sample: the draft's RS.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RateSample {
    /// The acknowledgment covers a transmit with a snapshot.
    pub(super) has_data: bool,
    /// Rate in bytes per second; 0 if it could not be measured.
    pub(super) rate: u64,
    /// The application limited the rate.
    pub(super) app_limited: bool,
    /// Bytes delivered since the snapshot, and the total at the snapshot.
    pub(super) delivered: u64,
    pub(super) prior_delivered: u64,
    /// Bytes in the network when the transmit left.
    pub(super) tx_in_flight: u64,
    /// Total of lost bytes at the snapshot.
    pub(super) prior_lost: u64,
    /// Bytes that this acknowledgment delivered.
    pub(super) newly_acked: u64,
    /// Round-trip time of the latest range that was sent only once.
    pub(super) rtt: Option<Duration>,
}

/// What an acknowledgment delivered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckedBytes {
    /// Bytes acknowledged for the first time, cumulatively or selectively.
    pub(crate) bytes: u64,
    /// Round-trip time of the latest range that was sent only once.
    pub(crate) rtt: Option<Duration>,
    /// Least round-trip time of the connection: an interval below it measures nothing.
    pub(crate) min_rtt: Duration,
}

/// A transmit that leaves the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DepartingTransmit {
    pub(crate) tag: u32,
    pub(crate) at: Instant,
    /// Bytes in the network, those of the transmit included.
    pub(crate) in_network: u64,
    /// There were none before it.
    pub(crate) alone: bool,
}

/// State of a transmit that a lost range belonged to.
#[derive(Clone, Copy, Debug)]
pub(super) struct LostTransmit {
    pub(super) tx_in_flight: u64,
    pub(super) lost_since: u64,
    pub(super) app_limited: bool,
}

/// The sampler of a connection.
#[derive(Debug, Default)]
pub(super) struct DeliverySampler {
    /// C.delivered and C.lost: bytes since the start.
    delivered: u64,
    lost: u64,
    /// C.delivered_time and C.first_send_time.
    delivered_at: Instant,
    first_sent_at: Instant,
    /// C.app_limited: the total of delivered bytes at which the last bubble has left the pipe; 0
    /// without one.
    app_limited: u64,
    /// Tag of the first snapshot; the others follow without gaps.
    first_tag: u32,
    snapshots: VecDeque<DepartureSnapshot>,
    /// Tag of the latest transmit that the current acknowledgment covers.
    newest: Option<u32>,
}

impl DeliverySampler {
    pub(super) const fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Returns the bytes lost after a total of `prior`.
    pub(super) const fn lost_since(&self, prior: u64) -> u64 {
        self.lost - prior
    }

    pub(super) const fn is_app_limited(&self) -> bool {
        self.app_limited > 0
    }

    /// Marks all samples of the bytes now in flight as limited by the application: the draft's
    /// `MarkConnectionAppLimited`.
    pub(super) fn mark_app_limited(&mut self, inflight: u64) {
        self.app_limited = (self.delivered + inflight).max(1);
    }

    /// Makes room for the snapshot of a transmit that is handed to the device.
    pub(super) fn on_handed_over(&mut self, tag: u32) {
        if self.index(tag) != Some(self.snapshots.len()) {
            self.snapshots.clear();
            self.first_tag = tag;
        }
        self.snapshots.push_back(DepartureSnapshot::default());
    }

    /// Takes the snapshot of a transmit that leaves: the draft's `OnPacketSent`.
    pub(super) fn on_departed(&mut self, transmit: DepartingTransmit) {
        let DepartingTransmit { tag, at, in_network, alone } = transmit;
        if alone {
            (self.first_sent_at, self.delivered_at) = (at, at);
        }
        let snapshot = DepartureSnapshot {
            departed: true,
            app_limited: self.is_app_limited(),
            tx_in_flight: in_network,
            delivered: self.delivered,
            lost: self.lost,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
            sent_at: at,
        };
        if let Some(entry) = self.index(tag).and_then(|index| self.snapshots.get_mut(index)) {
            *entry = snapshot;
        }
    }

    /// Notes that an acknowledgment covers bytes of the transmit `tag`.
    pub(super) fn note_delivered(&mut self, tag: u32) {
        let Some(index) = self.index(tag) else { return };
        let departed = self.snapshots.get(index).is_some_and(|s| s.departed);
        let newest = self.newest.and_then(|newest| self.index(newest));
        if departed && newest.is_none_or(|newest| newest < index) {
            self.newest = Some(tag);
        }
    }

    /// Counts lost bytes of the transmit `tag`. Returns its state if it is known.
    pub(super) fn on_lost(&mut self, tag: u32, bytes: u64) -> Option<LostTransmit> {
        self.lost += bytes;
        let snapshot = self.index(tag).and_then(|index| self.snapshots.get(index));
        snapshot.filter(|s| s.departed).map(|s| LostTransmit {
            tx_in_flight: s.tx_in_flight,
            lost_since: self.lost - s.lost,
            app_limited: s.app_limited,
        })
    }

    /// Returns the sample of an acknowledgment: the draft's `UpdateRateSample` and
    /// `GenerateRateSample`.
    pub(super) fn on_ack(&mut self, now: Instant, acked: AckedBytes) -> RateSample {
        self.delivered += acked.bytes;
        if acked.bytes > 0 {
            self.delivered_at = now;
        }
        if self.delivered > self.app_limited {
            self.app_limited = 0;
        }
        let none = RateSample { newly_acked: acked.bytes, rtt: acked.rtt, ..RateSample::default() };
        let index = self.newest.take().and_then(|tag| self.index(tag));
        let Some(snapshot) = index.and_then(|index| self.snapshots.get(index)) else { return none };
        self.first_sent_at = snapshot.sent_at;
        let send_elapsed = snapshot.sent_at.since(snapshot.first_sent_at);
        let interval = now.since(snapshot.delivered_at).max(send_elapsed);
        let delivered = self.delivered - snapshot.delivered;
        let measured = interval >= acked.min_rtt && interval > Duration::ZERO;
        RateSample {
            has_data: true,
            rate: if measured { per_second(delivered, interval) } else { 0 },
            app_limited: snapshot.app_limited,
            delivered,
            prior_delivered: snapshot.delivered,
            tx_in_flight: snapshot.tx_in_flight,
            prior_lost: snapshot.lost,
            ..none
        }
    }

    /// Returns whether there are many more snapshots than `ranges` in flight need.
    pub(super) fn has_old_snapshots(&self, ranges: usize) -> bool {
        self.snapshots.len() >= SNAPSHOTS_MIN + 2 * ranges
    }

    /// Drops the snapshots of all transmits that no range in flight belongs to; `tags` are those of
    /// the ranges.
    pub(super) fn drop_old_snapshots(&mut self, tags: impl Iterator<Item = u32>) {
        let oldest = tags.filter_map(|tag| self.index(tag)).min();
        let old = oldest.unwrap_or(self.snapshots.len()).min(self.snapshots.len());
        self.snapshots.drain(..old);
        self.first_tag = self.first_tag.wrapping_add(u32::try_from(old).unwrap_or(0));
    }

    /// Frees the memory of the snapshots while nothing is in flight.
    pub(super) fn shrink(&mut self) {
        self.snapshots = VecDeque::new();
    }

    /// Returns the index that the snapshot of a transmit has or would have next.
    fn index(&self, tag: u32) -> Option<usize> {
        usize::try_from(tag.wrapping_sub(self.first_tag))
            .ok()
            .filter(|&index| index <= self.snapshots.len())
    }
}

/// Returns the rate of `bytes` in `time`, which is not zero.
fn per_second(bytes: u64, time: Duration) -> u64 {
    let rate = u128::from(bytes) * 1_000_000_000 / u128::from(time.as_nanos());
    u64::try_from(rate).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1000;

    fn ms(n: u64) -> Instant {
        Instant::from_millis(1000 + n)
    }

    fn acked(bytes: u64) -> AckedBytes {
        AckedBytes { bytes, rtt: None, min_rtt: Duration::from_millis(10) }
    }

    fn send(sampler: &mut DeliverySampler, tag: u32, at: Instant, in_network: u64) {
        sampler.on_handed_over(tag);
        let alone = in_network == MSS;
        sampler.on_departed(DepartingTransmit { tag, at, in_network, alone });
    }

    /// Section 4.1.1.2.1: bytes delivered between the acknowledgment before a transmit and its own.
    #[test]
    fn the_rate_is_that_of_acknowledgments() {
        let mut sampler = DeliverySampler::default();
        for n in 0..10 {
            send(&mut sampler, n, ms(n.into()), (u64::from(n) + 1) * MSS);
        }
        // The path delivers a segment each 2 ms.
        for n in 0..10 {
            sampler.note_delivered(n);
            let sample = sampler.on_ack(ms(10 + 2 * u64::from(n)), acked(MSS));
            let bytes = (u64::from(n) + 1) * MSS;
            assert_eq!((sample.delivered, sample.tx_in_flight), (bytes, bytes));
            assert_eq!(sample.rate, bytes * 1000 / (10 + 2 * u64::from(n)));
        }
        // A later transmit counts from the departure of the one acknowledged last, at 9 ms: that
        // is longer than the time since the acknowledgment.
        send(&mut sampler, 10, ms(28), 2 * MSS);
        sampler.note_delivered(10);
        let sample = sampler.on_ack(ms(40), acked(MSS));
        assert_eq!((sample.delivered, sample.rate), (MSS, MSS * 1000 / 19));
    }

    /// Section 4.1.1.2.4: acknowledgments that arrive together do not make a path fast.
    #[test]
    fn the_send_rate_bounds_the_rate() {
        let mut sampler = DeliverySampler::default();
        for n in 0..10 {
            send(&mut sampler, n, ms(10 * u64::from(n)), (u64::from(n) + 1) * MSS);
        }
        sampler.note_delivered(0);
        sampler.on_ack(ms(100), acked(MSS));
        // The other nine arrive 1 ms later; they were sent over 90 ms.
        (1..10).for_each(|n| sampler.note_delivered(n));
        let sample = sampler.on_ack(ms(101), acked(9 * MSS));
        assert_eq!((sample.delivered, sample.rate), (10 * MSS, 10 * MSS * 1000 / 101));
    }

    /// The wait for a disk is no property of the path.
    #[test]
    fn a_transmit_counts_from_its_departure() {
        let mut sampler = DeliverySampler::default();
        sampler.on_handed_over(0);
        sampler.on_departed(DepartingTransmit {
            tag: 0,
            at: ms(500),
            in_network: 10 * MSS,
            alone: true,
        });
        sampler.note_delivered(0);
        let sample = sampler.on_ack(ms(520), acked(10 * MSS));
        assert_eq!(sample.rate, 10 * MSS * 50);
    }

    #[test]
    fn a_transmit_that_waits_in_the_device_is_no_sample() {
        let mut sampler = DeliverySampler::default();
        sampler.on_handed_over(0);
        sampler.note_delivered(0);
        assert!(!sampler.on_ack(ms(500), acked(MSS)).has_data);
    }

    /// Section 4.1.3.5: a retransmission whose original arrived seems to take no time.
    #[test]
    fn an_interval_below_the_round_trip_measures_nothing() {
        let mut sampler = DeliverySampler::default();
        send(&mut sampler, 0, ms(0), MSS);
        sampler.note_delivered(0);
        let sample = sampler.on_ack(ms(9), acked(MSS));
        assert_eq!((sample.has_data, sample.rate), (true, 0));
    }

    /// Section 4.1.1.3: samples are marked until the bubble has left the pipe.
    #[test]
    fn a_bubble_marks_the_next_round() {
        let mut sampler = DeliverySampler::default();
        send(&mut sampler, 0, ms(0), MSS);
        sampler.mark_app_limited(MSS);
        send(&mut sampler, 1, ms(5), 2 * MSS);
        sampler.note_delivered(0);
        assert!(!sampler.on_ack(ms(20), acked(MSS)).app_limited);
        sampler.note_delivered(1);
        assert!(sampler.on_ack(ms(25), acked(MSS)).app_limited);
        assert!(!sampler.is_app_limited());
    }

    #[test]
    fn old_snapshots_are_dropped() {
        let mut sampler = DeliverySampler::default();
        for tag in 0..1000_u32 {
            send(&mut sampler, tag.wrapping_sub(500), ms(tag.into()), MSS);
            if sampler.has_old_snapshots(2) {
                sampler.drop_old_snapshots([tag, tag - 3].map(|t| t.wrapping_sub(500)).into_iter());
                assert_eq!(sampler.snapshots.len(), 4);
            }
            assert!(sampler.snapshots.len() <= SNAPSHOTS_MIN + 4);
        }
        assert_eq!(sampler.on_lost(499, 10).unwrap().lost_since, 10);
        assert!(sampler.on_lost(300, 10).is_none());
    }
}
