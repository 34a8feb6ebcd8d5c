//! Packet faults of benchmarks: reordering, loss, or both, at a rate, as Linux's `netem` makes
//! them.
//!
//! As `netem` acts on what a machine sends, only the data has faults, and acknowledgments have
//! none. Loss drops each packet independently. Reordering sends the chosen packets at once, while
//! all others wait for a fixed delay.

use base::Duration;
use clap::Args;
use io::fault::{FaultConfig, LinkDirection};

use super::experiment::Fields;

/// A kind of packet fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketFault {
    Loss,
    Reorder,
    /// Loss and reordering, each at the full rate.
    Both,
}

/// A kind of fault and its rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PacketFaultRate {
    pub(crate) fault: PacketFault,
    /// Probability per packet, in per mille.
    pub(crate) rate: u32,
}

impl PacketFaultRate {
    /// Returns every combination of these faults and rates.
    pub(crate) fn all(faults: &[PacketFault], rates: &[u32]) -> Vec<Self> {
        let of = |&fault: &PacketFault| rates.iter().map(move |&rate| Self { fault, rate });
        faults.iter().flat_map(of).collect()
    }

    /// Returns the probability per packet.
    pub(crate) fn probability(self) -> f64 {
        f64::from(self.rate) / 1000.0
    }

    /// Returns the probabilities that a packet is lost, and that it is reordered.
    pub(crate) fn lost_and_late(self) -> [f64; 2] {
        let p = self.probability();
        match self.fault {
            PacketFault::Loss => [p, 0.0],
            PacketFault::Reorder => [0.0, p],
            PacketFault::Both => [p, p],
        }
    }

    /// Returns the configuration of a link with these faults in the direction of the data. A rate
    /// of zero becomes a tiny one, so that every row has single packets and the same kind of link.
    /// If packets are reordered, all others are delayed ([`ReorderArgs`]).
    pub(crate) fn config(self, reordering: ReorderArgs, data: LinkDirection) -> FaultConfig {
        let least = |p: f64, has: bool| if has { p.max(1e-9) } else { p };
        let [lost, late] = self.lost_and_late();
        FaultConfig {
            drop: least(lost, self.fault != PacketFault::Reorder),
            reorder: least(late, self.fault != PacketFault::Loss),
            reorder_delay: match self.fault {
                PacketFault::Loss => Duration::ZERO,
                PacketFault::Reorder | PacketFault::Both => reordering.delay(),
            },
            spared: Some(match data {
                LinkDirection::Transmit => LinkDirection::Receive,
                LinkDirection::Receive => LinkDirection::Transmit,
            }),
            seed: 3,
            ..FaultConfig::default()
        }
    }

    /// Returns the columns of a row: fault, rate and, with reordering, its method.
    pub(crate) fn fields(self, reordering: ReorderArgs) -> Fields {
        let method = match (self.fault, reordering.reorder_delay) {
            (PacketFault::Loss, _) => None,
            (_, 0) => Some("late".to_owned()),
            (_, delay) => Some(format!("netem {delay} us")),
        };
        Fields::new()
            .show("fault", "fault", format!("{:?}", self.fault))
            .show("rate", "rate", self.probability())
            .show("reordering", "reordering", method)
    }

    /// Returns whether the link made these faults and no others, by its counters.
    pub(crate) fn are_made(self, moved: impl Fn(&str) -> u64) -> bool {
        let any = |names: [&str; 2]| names.iter().any(|name| moved(name) > 0);
        let [lost, late] = self.lost_and_late().map(|p| p > 0.0);
        any(["fault_tx_dropped", "fault_rx_dropped"]) == lost
            && any(["fault_tx_reordered", "fault_rx_reordered"]) == late
    }
}

/// Method of reordering, as the papers' testbeds do it by `netem delay D reorder P%`.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct ReorderArgs {
    /// Delay in microseconds of all packets that are not reordered; the reordered ones are sent at
    /// once. With 0, a reordered packet is overtaken by one to eight later ones instead
    #[arg(
        long,
        value_name = "MICROS",
        default_value_t = Self::default().reorder_delay,
        value_parser = clap::value_parser!(u32).range(..=1_000_000),
    )]
    pub(crate) reorder_delay: u32,
}

impl Default for ReorderArgs {
    fn default() -> Self {
        Self { reorder_delay: 1_000 }
    }
}

impl ReorderArgs {
    fn delay(self) -> Duration {
        Duration::from_micros(self.reorder_delay.into())
    }
}

/// Returns the shares of three numbers in their sum; zeros if all are zero.
pub(crate) fn shares(of: [u64; 3]) -> [f64; 3] {
    let sum = of.iter().sum::<u64>().max(1) as f64;
    of.map(|n| n as f64 / sum)
}
