//! Loss detection by time: RACK of RFC 8985 section 6.
//!
//! Tracks the most recently sent range that has arrived; a range that was sent sufficiently earlier
//! and has not arrived is lost. "Sufficiently" adapts to the reordering seen on the path.

use base::{Duration, Instant};

use super::rtt::TcpRttEstimator;
use super::scoreboard::{RetransmitQueue, SentRange};

/// RFC 8985 section 6.2: recoveries after which a widened window is narrowed again.
const REO_WND_PERSIST: u8 = 16;
/// RFC 5681: duplicate acknowledgments that indicate a loss while no reordering has been seen.
const DUP_THRESH: u16 = 3;
/// Limit of the reordering degree that is reported: Linux's `tcp_max_reordering`.
const REORDERING_MAX: u16 = 300;

/// State of RACK.
#[derive(Clone, Debug)]
pub(crate) struct Rack {
    /// Transmission time of the most recently sent range that has arrived; `end` is its end.
    xmit: Instant,
    end: u64,
    /// Round-trip time of the range that arrived last.
    rtt: Duration,
    /// Highest position that has arrived.
    fack: u64,
    reordering_seen: bool,
    /// The most segments by which one was overtaken, for `SocketInfo`.
    reordering: u16,
    reo_wnd_mult: u8,
    reo_wnd_persist: u8,
    /// Send position when a DSACK last widened the window, which counts once per round trip; 0
    /// before.
    dsack_round: u64,
}

impl Rack {
    pub(crate) const fn new() -> Self {
        Self {
            xmit: Instant::ZERO,
            end: 0,
            rtt: Duration::ZERO,
            fack: 0,
            reordering_seen: false,
            reordering: DUP_THRESH,
            reo_wnd_mult: 1,
            reo_wnd_persist: 0,
            dsack_round: 0,
        }
    }

    /// Returns the largest reordering seen, in segments; at first the duplicate-acknowledgment
    /// threshold.
    pub(crate) const fn reordering(&self) -> u16 {
        self.reordering
    }

    /// Handles the arrival of a range: section 6.2 steps 2 and 3. `spurious` is true if the range
    /// was retransmitted and the acknowledgment was for the original.
    pub(crate) fn on_delivered(
        &mut self,
        now: Instant,
        sent: &SentRange,
        rtt: &TcpRttEstimator,
        spurious: bool,
    ) {
        let elapsed = now.since(sent.xmit);
        if sent.ever_resent() && (spurious || elapsed < rtt.min()) {
            return;
        }
        if sent.end < self.fack && !sent.ever_resent() {
            self.reordering_seen = true;
            let segments = u16::try_from(sent.overtaken_by(self.fack)).unwrap_or(u16::MAX);
            self.reordering = self.reordering.max(segments.min(REORDERING_MAX));
        }
        self.fack = self.fack.max(sent.end);
        if !sent.is_pending() {
            // Taken from every range that arrives, however early it was sent.
            self.rtt = elapsed;
        }
        if (sent.xmit, sent.end) > (self.xmit, self.end) {
            (self.xmit, self.end) = (sent.xmit, sent.end);
        }
    }

    /// Widens the reordering window after a DSACK, which shows an unnecessary retransmission:
    /// section 6.2 step 4.
    pub(crate) fn on_dsack(&mut self, una: u64, nxt: u64) {
        if una < self.dsack_round {
            return;
        }
        self.dsack_round = nxt;
        self.reordering_seen = true;
        self.reo_wnd_mult = self.reo_wnd_mult.saturating_add(1);
        self.reo_wnd_persist = REO_WND_PERSIST;
    }

    /// Counts a recovery that ended: after enough of them without a DSACK the window is narrow
    /// again.
    pub(crate) const fn on_recovery_end(&mut self) {
        self.reo_wnd_persist = self.reo_wnd_persist.saturating_sub(1);
        if self.reo_wnd_persist == 0 {
            self.reo_wnd_mult = 1;
        }
    }

    /// Marks lost ranges: section 6.2 step 5. Returns whether there was one, and the time after
    /// which all remaining candidates are lost unless they arrive.
    pub(crate) fn detect(
        &self,
        now: Instant,
        flight: &mut RetransmitQueue,
        rtt: &TcpRttEstimator,
        mss: u32,
        recovering: bool,
    ) -> (bool, Option<Duration>) {
        let front = flight.front();
        if self.end == 0 || front.is_none_or(|front| self.precedes_all(front)) {
            return (false, None);
        }
        let window = self.rtt + self.reordering_window(flight, rtt, mss, recovering);
        self.detect_among_all(now, flight, window)
    }

    /// Marks lost ranges among all outstanding ones, with `window` as the time after which a range
    /// is lost.
    fn detect_among_all(
        &self,
        now: Instant,
        flight: &mut RetransmitQueue,
        window: Duration,
    ) -> (bool, Option<Duration>) {
        let mut wait: Option<Duration> = None;
        let any = flight.mark_lost(|sent| {
            if (sent.xmit, sent.end) >= (self.xmit, self.end) {
                return false;
            }
            let due = sent.xmit + window;
            if due <= now {
                return true;
            }
            let left = due.since(now);
            wait = Some(wait.map_or(left, |w| w.max(left)));
            false
        });
        (any, wait)
    }

    /// Returns whether the range that arrived last was sent before everything outstanding, of which
    /// `front` is the first: transmits leave in the order of their positions, and a retransmission
    /// only makes a range younger than those behind it.
    fn precedes_all(&self, front: &SentRange) -> bool {
        !front.ever_resent() && (front.xmit, front.end) >= (self.xmit, self.end)
    }

    fn reordering_window(
        &self,
        flight: &RetransmitQueue,
        rtt: &TcpRttEstimator,
        mss: u32,
        recovering: bool,
    ) -> Duration {
        let dup_thresh = flight.sacked() >= u64::from(DUP_THRESH) * u64::from(mss);
        if !self.reordering_seen && (recovering || dup_thresh) {
            return Duration::ZERO;
        }
        (rtt.min() / 4 * u64::from(self.reo_wnd_mult)).min(rtt.srtt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::scoreboard::{DeliveredBytes, SentRangeInfo};
    use proptest::prelude::*;

    /// A transmit in segments of 100 bytes.
    const SENDING: SentRangeInfo = SentRangeInfo { tag: 0, segment_size: 100, pending: false };

    fn us(n: u64) -> Instant {
        Instant::from_micros(n)
    }

    /// Ten segments of 100 bytes, sent 10 us apart on a path of 1 ms; those in `arrived` are
    /// acknowledged.
    fn scene(arrived: &[u64]) -> (RetransmitQueue, Rack, TcpRttEstimator) {
        let (mut flight, mut rack, mut rtt) =
            (RetransmitQueue::new(), Rack::new(), TcpRttEstimator::new());
        rtt.sample(us(0), Duration::from_micros(1000));
        for i in 0..10 {
            flight.push(1 + i * 100, 101 + i * 100, us(i * 10), SENDING);
        }
        for &i in arrived {
            let now = us(1000 + i * 10);
            flight.sack(1 + i * 100, 101 + i * 100, now, &mut DeliveredBytes::default(), |s| {
                rack.on_delivered(now, s, &rtt, false);
            });
        }
        (flight, rack, rtt)
    }

    #[test]
    fn a_hole_below_three_sacks_is_lost_at_once() {
        let (mut flight, rack, rtt) = scene(&[1, 2, 3]);
        let (lost, wait) = rack.detect(us(1030), &mut flight, &rtt, 100, false);
        assert!(lost);
        assert_eq!((flight.next_lost(), wait), (Some((1, 101)), None));
    }

    #[test]
    fn a_hole_below_one_sack_waits_a_quarter_of_the_round_trip() {
        let (mut flight, rack, rtt) = scene(&[1]);
        let (lost, wait) = rack.detect(us(1010), &mut flight, &rtt, 100, false);
        // Sent at 0 us, round trip 1000 us, window 250 us.
        assert_eq!((lost, wait), (false, Some(Duration::from_micros(240))));
        assert!(rack.detect(us(1250), &mut flight, &rtt, 100, false).0);
    }

    #[test]
    fn once_reordering_was_seen_three_sacks_are_no_proof() {
        let (mut flight, rack, rtt) = scene(&[1, 2, 3, 0, 5, 6, 7]);
        let (lost, wait) = rack.detect(us(1070), &mut flight, &rtt, 100, false);
        assert!(!lost && wait.is_some());
    }

    #[test]
    fn dsacks_widen_the_window_once_per_round_and_recoveries_narrow_it() {
        let mut rack = Rack::new();
        rack.on_dsack(100, 500);
        rack.on_dsack(200, 600);
        assert_eq!(rack.reo_wnd_mult, 2);
        rack.on_dsack(500, 900);
        assert_eq!(rack.reo_wnd_mult, 3);
        for _ in 0..REO_WND_PERSIST {
            rack.on_recovery_end();
        }
        assert_eq!(rack.reo_wnd_mult, 1);
    }

    proptest! {
        /// The short cut by the oldest entry never misses a loss that a full scan finds.
        #[test]
        fn the_short_cut_finds_the_same_losses(
            steps in proptest::collection::vec((0..6_u8, 0..12_u64), 1..40),
        ) {
            let rtt = scene(&[]).2;
            let scenes = [scene(&[]), scene(&[])];
            let [(mut flight, mut rack, _), (mut slow, mut other, _)] = scenes;
            let (mut una, mut nxt) = (1, 1001);
            for (i, (what, at)) in steps.into_iter().enumerate() {
                let now = us(1000 + i as u64 * 90);
                let (start, end) = (1 + at * 100, (101 + at * 100).min(nxt));
                for (flight, rack) in [(&mut flight, &mut rack), (&mut slow, &mut other)] {
                    let seen = &mut DeliveredBytes::default();
                    match what {
                        0 | 1 => flight.push(nxt, nxt + 100, now, SENDING),
                        2 => flight.acknowledge(end.max(una), now, seen, |s| {
                            rack.on_delivered(now, s, &rtt, false);
                        }),
                        3 if start >= una && start < end => flight.sack(start, end, now, seen, |s| {
                            rack.on_delivered(now, s, &rtt, false);
                        }),
                        4 => if let Some((start, end)) = flight.next_lost() {
                            flight.resend(start, end, now, SENDING);
                        },
                        _ => {}
                    }
                }
                nxt += if what < 2 { 100 } else { 0 };
                una = if what == 2 { una.max(end) } else { una };
                let found = rack.detect(now, &mut flight, &rtt, 100, false);
                let window = other.rtt + other.reordering_window(&slow, &rtt, 100, false);
                let nothing = other.end == 0;
                let all = other.detect_among_all(now, &mut slow, window);
                let all = if nothing { (false, None) } else { all };
                prop_assert_eq!(found, all);
                prop_assert_eq!(flight.next_lost(), slow.next_lost());
            }
        }
    }
}
