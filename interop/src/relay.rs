//! One direction of the link between a client and a server that the program `udprelay` emulates: a
//! fixed delay, loss, reordering, and a bottleneck with a bounded queue. Time and random numbers
//! come from the caller's clock and seed, so that equal inputs give equal results.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use base::{Duration, Instant, Prng};

/// Properties of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayLinkConfig {
    /// One-way delay.
    pub delay: Duration,
    /// Datagrams lost, per million.
    pub loss_ppm: u64,
    /// Datagrams delayed by `late`, per million; others overtake them.
    pub late_ppm: u64,
    /// Additional delay of late datagrams.
    pub late: Duration,
    /// Bytes per second of the bottleneck; zero for no bottleneck.
    pub rate: u64,
    /// Limit of the bytes queued at the bottleneck; datagrams beyond it are dropped.
    pub queue: u64,
}

/// Counters of the datagrams that entered a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayLinkCounts {
    /// All datagrams that entered.
    pub entered: u64,
    /// Datagrams lost at random.
    pub lost: u64,
    /// Datagrams delayed by `late`.
    pub late: u64,
    /// Datagrams dropped at the full bottleneck queue.
    pub dropped: u64,
}

/// A datagram on the link, ordered by arrival, then by number.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct InFlightDatagram {
    arrives: Instant,
    number: u64,
    datagram: Vec<u8>,
}

/// One direction of a link.
#[derive(Debug)]
pub struct RelayLink {
    config: RelayLinkConfig,
    prng: Prng,
    flying: BinaryHeap<Reverse<InFlightDatagram>>,
    /// Time at which the bottleneck has sent everything that is queued.
    idle_at: Instant,
    counts: RelayLinkCounts,
}

impl RelayLink {
    /// Creates an empty link.
    #[must_use]
    pub fn new(config: RelayLinkConfig, seed: u64) -> Self {
        Self {
            config,
            prng: Prng::new(seed),
            flying: BinaryHeap::new(),
            idle_at: Instant::ZERO,
            counts: RelayLinkCounts::default(),
        }
    }

    /// Sends a datagram into the link.
    pub fn push(&mut self, now: Instant, datagram: &[u8]) {
        let RelayLinkConfig { delay, loss_ppm, late_ppm, late, rate, queue } = self.config;
        self.counts.entered += 1;
        if self.prng.below(1_000_000) < loss_ppm {
            self.counts.lost += 1;
            return;
        }
        let mut leaves = now;
        if rate > 0 {
            let waiting = self.idle_at.since(now).as_nanos() / 1000 * rate / 1_000_000;
            if waiting + datagram.len() as u64 > queue {
                self.counts.dropped += 1;
                return;
            }
            let takes = Duration::from_nanos(datagram.len() as u64 * 1_000_000_000 / rate);
            leaves = self.idle_at.max(now) + takes;
            self.idle_at = leaves;
        }
        let mut arrives = leaves + delay;
        if self.prng.below(1_000_000) < late_ppm {
            self.counts.late += 1;
            arrives += late;
        }
        let number = self.counts.entered;
        self.flying.push(Reverse(InFlightDatagram {
            arrives,
            number,
            datagram: datagram.to_vec(),
        }));
    }

    /// Returns the next datagram that has arrived.
    pub fn pop(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.poll_timeout().is_none_or(|at| at > now) {
            return None;
        }
        self.flying.pop().map(|Reverse(flying)| flying.datagram)
    }

    /// Returns the time of the next arrival.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.flying.peek().map(|Reverse(flying)| flying.arrives)
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counts(&self) -> RelayLinkCounts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn all(link: &mut RelayLink, now: Instant) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| link.pop(now)).collect()
    }

    #[test]
    fn order_is_kept_and_the_delay_exact() {
        let mut link =
            RelayLink::new(RelayLinkConfig { delay: MS, ..RelayLinkConfig::default() }, 1);
        let start = Instant::ZERO;
        link.push(start, b"a");
        link.push(start, b"b");
        assert_eq!(link.poll_timeout(), Some(start + MS));
        assert!(all(&mut link, start).is_empty());
        assert_eq!(all(&mut link, start + MS), [b"a", b"b"]);
        assert_eq!(link.poll_timeout(), None);
    }

    #[test]
    fn late_ones_are_overtaken_and_lost_ones_counted() {
        let (late, late_ppm, loss_ppm) = (MS * 7, 20_000, 10_000);
        let mut link = RelayLink::new(
            RelayLinkConfig { late, late_ppm, loss_ppm, ..RelayLinkConfig::default() },
            1,
        );
        for number in 0..100_000_u32 {
            link.push(Instant::ZERO, &number.to_be_bytes());
        }
        let RelayLinkCounts { entered, lost, late, dropped } = link.counts();
        assert_eq!((entered, dropped), (100_000, 0));
        assert!((900..1_100).contains(&lost) && (1_800..2_200).contains(&late), "{lost} {late}");
        let punctual = all(&mut link, Instant::ZERO);
        assert!(punctual.is_sorted());
        assert_eq!(punctual.len() as u64, entered - lost - late);
        assert_eq!(all(&mut link, Instant::ZERO + MS * 7).len() as u64, late);
    }

    #[test]
    fn the_bottleneck_spaces_and_drops() {
        let mut link = RelayLink::new(
            RelayLinkConfig { rate: 1_000_000, queue: 3000, ..RelayLinkConfig::default() },
            1,
        );
        for _ in 0..5 {
            link.push(Instant::ZERO, &[0; 1000]);
        }
        assert_eq!(link.counts().dropped, 2);
        assert_eq!(all(&mut link, Instant::ZERO + MS).len(), 1);
        assert_eq!(all(&mut link, Instant::ZERO + MS * 3).len(), 2);
        link.push(Instant::ZERO + MS * 10, &[0; 1000]);
        assert_eq!(link.poll_timeout(), Some(Instant::ZERO + MS * 11));
    }
}
