//! `outboard-lab bench quic-reorder`: QUIC's throughput under reordering and loss, with and without
//! reordering by the device (NiQUIC sections 2.2 and 2.3, figures 3, 4, 7 and 8).
//!
//! First transfers on virtual time ([`transfer`]), whose results do not depend on the machine; then
//! the data structures in which packets wait, in cycles: the device's direct-mapped window against
//! those that the paper compares ([`reorder_buffers`]).

mod late_link;
mod reorder_buffers;
mod transfer;

use clap::Args;
use serde_json::{Value, json};

use super::experiment::{
    self, BenchReport, Benchmark, Experiment, Fields, find_figures, single_run,
};
use super::faults::{PacketFault, PacketFaultRate};
use cli::Failure;
use transfer::{
    LATE_PACKETS_MAX, LINKS, LinkModel, QuicReceiveOffload, QuicTransferSetting, Transfer, measure,
};

/// Probabilities per packet, in per mille.
const RATES: [u32; 6] = [0, 5, 10, 20, 30, 50];
/// Bytes to measure each transfer over.
const BYTES: u64 = 100_000_000;
const QUICK_BYTES: u64 = 30_000_000;
/// Runs of a setting with different random losses and delays; the results are summed.
const SEEDS: u64 = 3;

/// Arguments of `outboard-lab bench quic-reorder`.
#[derive(Debug, Args)]
pub(crate) struct QuicReorderArgs {
    /// Run only rates of 0, 1 and 5 percent, one seed, and fewer data structure settings
    #[arg(long)]
    quick: bool,
}

/// Transfers of one setting.
#[derive(Debug)]
struct QuicReorderFigures {
    /// One transfer per seed.
    transfers: Vec<Transfer>,
    /// Bits per second on the same link without faults, with all work on the hosts.
    reference_bits_per_s: f64,
}

impl QuicReorderFigures {
    fn sum(&self, of: impl Fn(&Transfer) -> u64) -> u64 {
        self.transfers.iter().map(of).sum()
    }

    /// Returns bits per second of virtual time.
    fn rate(&self) -> f64 {
        let bytes = self.sum(|t| t.bytes) as f64;
        bytes * 8e9 / self.sum(|t| t.used.elapsed.as_nanos()) as f64
    }

    /// Returns the rate of the slowest or the fastest connection in Mbit/s, chosen by `of`.
    fn connection_rate(&self, of: fn(f64, f64) -> f64) -> f64 {
        let rates = self.transfers.iter().flat_map(|transfer| {
            let seconds = transfer.used.elapsed.as_nanos() as f64 / 1e9;
            transfer.connection_bytes.iter().map(move |&bytes| bytes as f64 * 8e-6 / seconds)
        });
        rates.reduce(of).unwrap_or(f64::NAN)
    }

    fn moved(&self, name: &str) -> u64 {
        self.sum(|t| t.used.moved(name))
    }

    /// Returns the number of datagrams that the receiver's device received.
    fn packets(&self) -> u64 {
        self.sum(|t| t.used.device_packets)
    }

    fn per_packet(&self, cycles: u64) -> f64 {
        cycles as f64 / self.packets().max(1) as f64
    }
}

type QuicReorderRow = experiment::ResultRow<QuicTransferSetting, QuicReorderFigures>;

impl Benchmark for QuicReorderArgs {
    fn run(&self, report: &mut BenchReport) -> Result<(), Failure> {
        report.set("late_packets_max", LATE_PACKETS_MAX);
        report.line(format!("late packets: delayed by 1 to {LATE_PACKETS_MAX} packet times\n"));
        let (bytes, seeds) = if self.quick { (QUICK_BYTES, 1) } else { (BYTES, SEEDS) };
        let mut without_faults = f64::NAN;
        let experiment = Experiment {
            groups: groups(if self.quick { &[0, 10, 50] } else { &RATES }),
            repeats: 1,
            measure: &mut |setting: QuicTransferSetting| {
                let transfers = (1..=seeds).map(|seed| measure(setting, bytes, seed));
                let transfers = transfers.collect::<Result<_, _>>()?;
                let figures =
                    QuicReorderFigures { transfers, reference_bits_per_s: without_faults };
                if setting.by == QuicReceiveOffload::Host && setting.faults.rate == 0 {
                    without_faults = figures.rate();
                }
                Ok(QuicReorderFigures { reference_bits_per_s: without_faults, ..figures })
            },
            took_path: &|setting, figures: &QuicReorderFigures| {
                figures.transfers.iter().all(|transfer| transfer.took_path(setting))
            },
            combine: &single_run,
            fields: &|row, _| fields(row),
        };
        let rows = report.measure("rows", experiment)?;
        report.set("headline", headline(&rows));
        report.line("\ncycles per packet, and bytes of memory per connection with a full window");
        reorder_buffers::run(report, self.quick)
    }
}

/// Returns the settings. The first one of each link is that of hosts without faults, the reference.
fn groups(rates: &[u32]) -> Vec<Vec<QuicTransferSetting>> {
    let mut all =
        PacketFaultRate::all(&[PacketFault::Reorder, PacketFault::Loss, PacketFault::Both], rates);
    all.retain(|faults| faults.rate > 0 || faults.fault == PacketFault::Reorder);
    let both = LINKS.into_iter().flat_map(|link| all.iter().map(move |&faults| (link, faults)));
    let group = |(link, faults)| {
        [QuicReceiveOffload::Host, QuicReceiveOffload::Opening, QuicReceiveOffload::Device]
            .map(|by| QuicTransferSetting { link, faults, by })
            .into()
    };
    both.map(group).collect()
}

fn fields(QuicReorderRow { setting, figures }: &QuicReorderRow) -> Fields {
    let host_cycles = figures.sum(|t| t.used.cycles.host);
    let device_cycles = figures.sum(|t| t.used.cycles.device - t.used.cycles.link);
    let round_trips = figures.sum(|t| t.rtt.as_micros()) as f64;
    let waited = figures.moved("quic_waited");
    let waited_us = figures.moved("quic_waited_ns") as f64 / 1000.0;
    let given_up = |why: &str| figures.moved(&format!("quic_gap_given_up_{why}"));
    let all_given_up: u64 = ["packets", "bytes", "time", "full"].map(given_up).iter().sum();
    Fields::new()
        .show("link", "link", setting.link.name)
        .show("fault", "fault", format!("{:?}", setting.faults.fault))
        .show("rate", "rate", setting.faults.probability())
        .show("by", "by", format!("{:?}", setting.by))
        .show("Mb/s", "mbit_per_s", figures.rate() / 1e6)
        .show("of none", "of_none", figures.rate() / figures.reference_bits_per_s)
        .field("connections", setting.link.connections)
        .field("connection_mbit_per_s_min", figures.connection_rate(f64::min))
        .field("connection_mbit_per_s_max", figures.connection_rate(f64::max))
        .field("packets", figures.packets())
        .show("dropped", "dropped", figures.sum(|t| t.dropped))
        .field("lost", figures.sum(|t| t.lost))
        .show("spurious", "spurious", figures.sum(Transfer::spurious))
        .show("events", "congestion_events", figures.sum(|t| t.congestion_events))
        .show("host c/p", "host_cycles_per_packet", figures.per_packet(host_cycles))
        .field("device_cycles_per_packet", figures.per_packet(device_cycles))
        .field("round_trip_us", round_trips / figures.transfers.len() as f64)
        .field("late", figures.moved("ways_late"))
        .show("waited", "waited", waited)
        .show("us each", "waited_us_mean", waited_us / waited.max(1) as f64)
        .field("reordered", figures.moved("quic_reordered"))
        .field("behind", figures.moved("quic_behind"))
        .field("merged", figures.moved("quic_rx_merged"))
        .column("gaps skipped", all_given_up)
        .field("given_up_time", given_up("time"))
        .field("given_up_packets", given_up("packets"))
        .field("given_up_bytes", given_up("bytes"))
        .field("given_up_full", given_up("full"))
}

/// Returns throughput at 5 percent as a share of that without faults.
fn headline(rows: &[QuicReorderRow]) -> Value {
    let of = |link: LinkModel, fault: PacketFault, by: QuicReceiveOffload| {
        let wanted = QuicTransferSetting { link, faults: PacketFaultRate { fault, rate: 50 }, by };
        let found = find_figures(rows, |&setting| setting == wanted);
        found.map(|figures| figures.rate() / figures.reference_bits_per_s)
    };
    let of_link = |link: LinkModel| {
        json!({
            "link": link.name,
            "with_at_5_reorder": of(link, PacketFault::Reorder, QuicReceiveOffload::Device),
            "without_at_5_reorder": of(link, PacketFault::Reorder, QuicReceiveOffload::Opening),
            "with_at_5_loss": of(link, PacketFault::Loss, QuicReceiveOffload::Device),
            "without_at_5_loss": of(link, PacketFault::Loss, QuicReceiveOffload::Opening),
        })
    };
    Value::Array(LINKS.into_iter().map(of_link).collect())
}
