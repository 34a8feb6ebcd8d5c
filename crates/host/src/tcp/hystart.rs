//! HyStart++ (RFC 9406): leaves the first slow start before it overflows the path, when the
//! round-trip time grows.
//!
//! Called by [`super::congestion`] for each acknowledgment in the first slow start. A round ends
//! when the bytes that had been sent at its beginning are acknowledged. If the least round-trip
//! time of a round is well above that of the round before, conservative slow start (CSS) begins,
//! which grows a quarter as fast: either the round-trip time falls again and slow start resumes, or
//! congestion avoidance begins after five rounds. RFC 9406's L, a bound on the growth by one
//! acknowledgment, is infinite as in Linux: one acknowledgment may cover a run of 64 KiB.

use base::Duration;

const MIN_RTT_THRESH_US: u32 = 4000;
const MAX_RTT_THRESH_US: u32 = 16_000;
const MIN_RTT_DIVISOR: u32 = 8;
/// Round-trip time without a sample.
const INFINITY: u32 = u32::MAX;
const N_RTT_SAMPLE: u8 = 8;
/// Divisor of growth in CSS.
pub(crate) const CSS_GROWTH_DIVISOR: u32 = 4;
const CSS_ROUNDS: u8 = 5;

/// State of HyStart++.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HyStart {
    stage: HyStartStage,
    /// Position whose acknowledgment ends the round: RFC 9406 windowEnd; 0 before the first round.
    round_end: u64,
    /// Minimum round-trip time of the last and of the current round, in microseconds.
    last_min: u32,
    current_min: u32,
    /// Minimum round-trip time at the beginning of CSS.
    baseline: u32,
    /// Completed rounds of CSS.
    css_rounds: u8,
    /// Samples in the current round.
    samples: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HyStartStage {
    SlowStart,
    /// Conservative slow start.
    Css,
    /// Slow start is over, or HyStart++ is off.
    Done,
}

impl HyStart {
    pub(crate) const fn new(enabled: bool) -> Self {
        Self {
            stage: if enabled { HyStartStage::SlowStart } else { HyStartStage::Done },
            round_end: 0,
            last_min: INFINITY,
            current_min: INFINITY,
            baseline: INFINITY,
            css_rounds: 0,
            samples: 0,
        }
    }

    /// Ends HyStart++ with the first slow start: later ones end at the threshold.
    pub(crate) const fn stop(&mut self) {
        self.stage = HyStartStage::Done;
    }

    /// Returns the divisor of growth.
    pub(crate) const fn divisor(&self) -> u32 {
        match self.stage {
            HyStartStage::Css => CSS_GROWTH_DIVISOR,
            HyStartStage::SlowStart | HyStartStage::Done => 1,
        }
    }

    /// Handles an acknowledgment of everything before `una` while `nxt` is the send position; `rtt`
    /// is its sample. Returns whether congestion avoidance is to begin.
    pub(crate) fn on_ack(&mut self, una: u64, nxt: u64, rtt: Option<Duration>) -> bool {
        if self.stage == HyStartStage::Done {
            return false;
        }
        if self.round_end == 0 {
            self.round_end = nxt;
        }
        if let Some(rtt) = rtt {
            let rtt = u32::try_from(rtt.as_micros()).unwrap_or(INFINITY);
            self.current_min = self.current_min.min(rtt);
            self.samples = self.samples.saturating_add(1);
            self.update_stage();
        }
        if una < self.round_end {
            return false;
        }
        (self.last_min, self.current_min) = (self.current_min, INFINITY);
        (self.round_end, self.samples) = (nxt, 0);
        if self.stage == HyStartStage::Css {
            self.css_rounds += 1;
            if self.css_rounds >= CSS_ROUNDS {
                self.stage = HyStartStage::Done;
                return true;
            }
        }
        false
    }

    /// Enters CSS if the round-trip time has grown, and leaves it if it fell again: RFC 9406
    /// section 4.2.
    fn update_stage(&mut self) {
        if self.samples < N_RTT_SAMPLE {
            return;
        }
        match self.stage {
            HyStartStage::SlowStart if self.last_min != INFINITY => {
                let eighth = self.last_min / MIN_RTT_DIVISOR;
                let thresh = eighth.clamp(MIN_RTT_THRESH_US, MAX_RTT_THRESH_US);
                if self.current_min >= self.last_min.saturating_add(thresh) {
                    self.stage = HyStartStage::Css;
                    (self.baseline, self.css_rounds) = (self.current_min, 0);
                }
            }
            HyStartStage::Css if self.current_min < self.baseline => {
                self.stage = HyStartStage::SlowStart;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// A round of `samples` acknowledgments whose round-trip time is `rtt`; returns whether slow
    /// start is over.
    fn round(h: &mut HyStart, samples: u64, rtt: Duration) -> bool {
        let (from, len) = (h.round_end, 1000);
        if from == 0 {
            h.on_ack(0, len, None);
        }
        let end = h.round_end;
        (1..=samples).any(|n| h.on_ack(end - (samples - n), end + len, Some(rtt)))
    }

    fn in_css(h: &HyStart) -> bool {
        h.stage == HyStartStage::Css
    }

    #[test]
    fn a_round_trip_that_grows_ends_slow_start_after_five_rounds() {
        let mut h = HyStart::new(true);
        assert!(!round(&mut h, 10, ms(50)));
        assert!(!round(&mut h, 10, ms(52)), "less than an eighth more");
        assert_eq!((in_css(&h), h.divisor()), (false, 1));
        // 52 + 52 / 8 = 58.5. The round in which the growth is detected counts.
        assert!(!round(&mut h, 10, ms(59)));
        assert_eq!((in_css(&h), h.divisor()), (true, CSS_GROWTH_DIVISOR));
        for _ in 1..4 {
            assert!(!round(&mut h, 10, ms(70)));
        }
        assert!(round(&mut h, 10, ms(70)));
        assert_eq!((h.stage, h.divisor()), (HyStartStage::Done, 1));
    }

    #[test]
    fn a_round_trip_that_falls_again_resumes_slow_start() {
        let mut h = HyStart::new(true);
        round(&mut h, 10, ms(50));
        round(&mut h, 10, ms(60));
        assert!(in_css(&h));
        round(&mut h, 7, ms(55));
        assert!(in_css(&h), "seven samples are too few");
        round(&mut h, 8, ms(55));
        assert!(!in_css(&h));
        round(&mut h, 8, ms(70));
        assert!(in_css(&h), "and it is watched again");
    }

    #[test]
    fn thresholds_are_four_to_sixteen_milliseconds() {
        for (rtt, thresh) in [(1, 4), (32, 4), (80, 10), (128, 16), (1000, 16)] {
            for (more, noticed) in [(thresh - 1, false), (thresh, true)] {
                let mut h = HyStart::new(true);
                round(&mut h, 8, ms(rtt));
                round(&mut h, 8, ms(rtt + more));
                assert_eq!(in_css(&h), noticed, "{rtt} ms and {more} ms more");
            }
        }
    }

    #[test]
    fn rounds_with_few_samples_prove_nothing() {
        let mut h = HyStart::new(true);
        round(&mut h, 10, ms(50));
        round(&mut h, 7, ms(90));
        assert!(!in_css(&h));
        // Nor does one low outlier: the minimum of the round counts.
        let mut h = HyStart::new(true);
        round(&mut h, 10, ms(50));
        let end = h.round_end;
        for n in 1..=9 {
            h.on_ack(end - 10 + n, end + 500, Some(ms(if n == 3 { 50 } else { 90 })));
        }
        assert!(!in_css(&h));
    }

    #[test]
    fn nothing_is_watched_when_it_is_off_or_over() {
        for mut h in [HyStart::new(false), HyStart::new(true)] {
            h.stop();
            for n in 1..200 {
                assert!(!h.on_ack(n * 100, n * 100 + 1000, Some(ms(n * 5))));
            }
            assert_eq!(h.divisor(), 1);
        }
    }
}
