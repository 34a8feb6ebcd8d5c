//! Search for the largest segment that the path carries (PLPMTUD): RFC 4821, with the phases and
//! the timer of RFC 8899.
//!
//! The state machine alone: which size to try next, and the consequence of a probe's fate.
//! [`super::mtu_probing`] connects it with a connection: it sends the probes and detects black
//! holes. Sizes are payload bytes of a segment, the options that every segment carries excluded.

use base::{Duration, Instant};

/// Difference of the limits below which the search is over: Linux's `tcp_probe_threshold`.
const PROBE_THRESHOLD: u16 = 8;
/// Time after which a complete search begins again, since the path may have changed: Linux's
/// `tcp_probe_interval`, and RFC 8899's PMTU_RAISE_TIMER.
const PROBE_INTERVAL: Duration = Duration::from_secs(600);

/// An outstanding probe: a segment of stream bytes, larger than the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MtuProbe {
    /// Position of its first byte.
    pub(crate) start: u64,
    /// Position after its last byte.
    pub(crate) end: u64,
}

impl MtuProbe {
    /// Returns the size of the segment.
    pub(crate) fn size(self) -> u16 {
        u16::try_from(self.end - self.start).unwrap_or(u16::MAX)
    }
}

/// State of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MtuSearchState {
    /// The next probe has the largest size: most paths carry what both ends do (RFC 4821 section
    /// 7.3). Then one probe suffices.
    TryingHighest,
    /// The next probe has a size in the middle between the limits.
    Bisecting,
    /// The fate of a probe is unknown.
    Probing(MtuProbe),
    /// The limits have met (RFC 8899 section 5.2: Search Complete). Another search begins then.
    Complete { until: Instant },
}

/// A search for the path MTU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MtuSearch {
    /// Size that the path carries, and that segments have: RFC 4821's search_low.
    low: u16,
    /// Size that the path may carry: RFC 4821's search_high.
    high: u16,
    state: MtuSearchState,
}

impl MtuSearch {
    /// Returns a search from `low`, the size that segments have, to `high`.
    pub(crate) const fn new(low: u16, high: u16) -> Self {
        Self { low, high, state: MtuSearchState::TryingHighest }
    }

    /// Returns a complete search whose limits are both `size`: a router reported it.
    pub(crate) fn complete(size: u16, now: Instant) -> Self {
        let state = MtuSearchState::Complete { until: now + PROBE_INTERVAL };
        Self { low: size, high: size, state }
    }

    /// Returns the size of the next probe; `None` if none is due. `most` is the size that both ends
    /// carry.
    pub(crate) fn next_size(&mut self, now: Instant, most: u16) -> Option<u16> {
        match self.state {
            MtuSearchState::Complete { until } if now >= until => {
                *self = Self::new(self.low, most);
                self.next_size(now, most)
            }
            // One end carries no more than segments have.
            MtuSearchState::TryingHighest if self.high <= self.low => {
                self.advance(now);
                None
            }
            MtuSearchState::TryingHighest => Some(self.high),
            MtuSearchState::Bisecting => Some(self.low + (self.high - self.low) / 2),
            MtuSearchState::Probing(_) | MtuSearchState::Complete { .. } => None,
        }
    }

    /// Returns the outstanding probe.
    pub(crate) const fn outstanding(&self) -> Option<MtuProbe> {
        if let MtuSearchState::Probing(probe) = self.state { Some(probe) } else { None }
    }

    /// Takes note of a probe that was sent.
    pub(crate) const fn on_sent(&mut self, probe: MtuProbe) {
        self.state = MtuSearchState::Probing(probe);
    }

    /// Raises the lower limit to the size of a probe that has arrived (RFC 4821 section 7.6.1), and
    /// returns it.
    pub(crate) fn on_success(&mut self, now: Instant, probe: MtuProbe) -> u16 {
        self.low = probe.size();
        self.high = self.high.max(self.low);
        self.advance(now);
        self.low
    }

    /// Lowers the upper limit below the size of a probe that was lost (RFC 4821 section 7.6.2).
    pub(crate) fn on_failure(&mut self, now: Instant, probe: MtuProbe) {
        self.high = self.high.min(probe.size() - 1).max(self.low);
        self.advance(now);
    }

    /// Forgets the outstanding probe, whose fate shows nothing about its size (RFC 4821 section
    /// 7.6.4); it will be repeated.
    pub(crate) fn on_inconclusive(&mut self) {
        if let MtuSearchState::Probing(probe) = self.state {
            let highest = probe.size() >= self.high;
            self.state =
                if highest { MtuSearchState::TryingHighest } else { MtuSearchState::Bisecting };
        }
    }

    /// Limits the search to sizes up to `size`, which a router or the link reported. Returns the
    /// outstanding probe if it is too large.
    pub(crate) fn limit(&mut self, now: Instant, size: u16) -> Option<MtuProbe> {
        self.low = self.low.min(size);
        self.high = self.high.min(size);
        let probe = self.outstanding().filter(|probe| probe.size() > size);
        if probe.is_some() || self.high - self.low < PROBE_THRESHOLD {
            self.advance(now);
        }
        probe
    }

    /// Begins the next step of the search after its limits have changed.
    fn advance(&mut self, now: Instant) {
        self.state = if self.high - self.low < PROBE_THRESHOLD {
            MtuSearchState::Complete { until: now + PROBE_INTERVAL }
        } else {
            MtuSearchState::Bisecting
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const NOW: Instant = Instant::from_millis(1_000);

    /// Searches on a path that carries `path` bytes; returns the sizes that were tried.
    fn run(search: &mut MtuSearch, path: u16, now: Instant) -> Vec<u16> {
        let mut tried = Vec::new();
        while let Some(size) = search.next_size(now, 1448) {
            let probe = MtuProbe { start: 1, end: 1 + u64::from(size) };
            search.on_sent(probe);
            assert_eq!(search.next_size(now, 1448), None, "one probe at a time");
            if size <= path {
                search.on_success(now, probe);
            } else {
                search.on_failure(now, probe);
            }
            tried.push(size);
        }
        tried
    }

    /// RFC 4821 section 7.3: the largest size is tried first.
    #[test]
    fn a_path_like_the_ends_needs_one_probe() {
        let mut search = MtuSearch::new(1012, 1448);
        assert_eq!((run(&mut search, 1448, NOW), search.low), ([1448].into(), 1448));
    }

    /// The search ends within the threshold below the path's size, for every size.
    #[test]
    fn every_path_is_found() {
        for path in 1012..=1448 {
            let mut search = MtuSearch::new(1012, 1448);
            let tried = run(&mut search, path, NOW);
            assert!(tried.len() <= 8, "{tried:?}");
            assert!(search.low <= path && path - search.low < PROBE_THRESHOLD, "{tried:?}");
        }
    }

    /// RFC 8899 section 5.1.1, PMTU_RAISE_TIMER.
    #[test]
    fn a_complete_search_begins_again() {
        let mut search = MtuSearch::new(1012, 1448);
        run(&mut search, 1200, NOW);
        let low = search.low;
        let early = NOW + PROBE_INTERVAL - Duration::from_nanos(1);
        assert!(run(&mut search, 1448, early).is_empty());
        assert_eq!(run(&mut search, 1448, NOW + PROBE_INTERVAL), [1448]);
        assert!(low < 1200 && search.low == 1448);
    }

    /// RFC 4821 section 7.6.4: the same size is tried again.
    #[test]
    fn an_inconclusive_probe_is_repeated() {
        let mut search = MtuSearch::new(1012, 1448);
        for path in [1448, 1229] {
            assert_eq!(search.next_size(NOW, 1448), Some(path));
            search.on_sent(MtuProbe { start: 1, end: 1 + u64::from(path) });
            search.on_inconclusive();
            assert_eq!(search.next_size(NOW, 1448), Some(path));
            search.on_sent(MtuProbe { start: 1, end: 1 + u64::from(path) });
            search.on_failure(NOW, MtuProbe { start: 1, end: 1 + u64::from(path) });
        }
    }

    /// RFC 4821 section 7.6.2, RFC 8899 section 4.6.1: a reported size ends the search at it.
    #[test]
    fn a_reported_size_limits_the_search() {
        let mut search = MtuSearch::new(1012, 1448);
        let probe = MtuProbe { start: 1, end: 1449 };
        search.on_sent(probe);
        assert_eq!(search.limit(NOW, 1448), None);
        assert_eq!(search.limit(NOW, 1100), Some(probe));
        assert_eq!(search.next_size(NOW, 1448), Some(1056));
        assert_eq!(search.limit(NOW, 600), None);
        assert_eq!((search.next_size(NOW, 1448), search.low), (None, 600));
        let mut reported = MtuSearch::complete(1148, NOW);
        assert_eq!(reported.next_size(NOW, 1448), None);
        assert_eq!(reported.next_size(NOW + PROBE_INTERVAL, 1448), Some(1448));
    }
}
