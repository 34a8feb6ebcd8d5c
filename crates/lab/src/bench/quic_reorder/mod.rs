//! `outboard-lab bench quic-reorder`: what reordering and loss leave of QUIC's throughput, with the
//! device's reordering and without (NiQUIC section 2.2, figures 3 and 4).
//!
//! First transfers on virtual time ([`transfer`]), whose results do not depend on the machine; then
//! the structures that packets wait in, the device's direct-mapped window against those that the
//! paper compares, in cycles ([`orders`]).

mod orders;
mod transfer;
mod ways;

use std::io::Write as _;

use clap::Args;
use serde_json::{Value, json};

use cli::Failure;
use transfer::{By, Fault, LATE_PACKETS_MAX, LINKS, Link, Measured, Setting, measure};

/// Probabilities per packet, in thousandths.
const RATES: [u32; 6] = [0, 5, 10, 20, 30, 50];
const FAULTS: [Fault; 3] = [Fault::Reorder, Fault::Loss, Fault::Both];
const WAYS: [By; 3] = [By::Host, By::Opening, By::Device];
/// Bytes to measure each transfer over.
const BYTES: u64 = 100_000_000;
const QUICK_BYTES: u64 = 30_000_000;
/// Runs of a setting, each with other packets late and lost, over which is summed.
const SEEDS: u64 = 3;

/// `outboard-lab bench quic-reorder`.
#[derive(Debug, Args)]
pub(crate) struct QuicReorderArgs {
    /// For machines
    #[arg(long)]
    json: bool,
    /// Only 0, 1 and 5 percent, one run each, and few structures
    #[arg(long)]
    quick: bool,
}

struct Row {
    setting: Setting,
    measured: Vec<Measured>,
}

impl Row {
    fn sum(&self, of: impl Fn(&Measured) -> u64) -> u64 {
        self.measured.iter().map(of).sum()
    }

    /// Bits per second of virtual time.
    fn rate(&self) -> f64 {
        let bytes = self.sum(|m| m.bytes) as f64;
        bytes * 8e9 / self.sum(|m| m.elapsed.as_nanos()) as f64
    }

    fn moved(&self, name: &str) -> u64 {
        self.sum(|m| m.moved(name))
    }

    /// Gaps that the device gave up, for whatever reason.
    fn given_up(&self) -> u64 {
        let names = ["packets", "bytes", "time", "full"];
        names.map(|why| self.moved(&format!("quic_gap_given_up_{why}"))).iter().sum()
    }

    /// Microseconds that a packet waited which waited, on average.
    fn waited_us(&self) -> f64 {
        self.moved("quic_waited_ns") as f64 / self.moved("quic_waited").max(1) as f64 / 1000.0
    }

    fn per_packet(&self, of: impl Fn(&Measured) -> u64) -> f64 {
        self.sum(of) as f64 / self.sum(|m| m.packets).max(1) as f64
    }

    fn json(&self, none: f64) -> Value {
        let Setting { link, fault, rate, by, .. } = self.setting;
        let given_up = |why: &str| self.moved(&format!("quic_gap_given_up_{why}"));
        json!({
            "link": link.name,
            "fault": format!("{fault:?}"),
            "rate": f64::from(rate) / 1000.0,
            "by": format!("{by:?}"),
            "mbit_per_s": self.rate() / 1e6,
            "of_none": self.rate() / none,
            "packets": self.sum(|m| m.packets),
            "dropped": self.sum(|m| m.dropped),
            "lost": self.sum(|m| m.lost),
            "spurious": self.sum(Measured::spurious),
            "congestion_events": self.sum(|m| m.congestion_events),
            "host_cycles_per_packet": self.per_packet(|m| m.host_cycles),
            "device_cycles_per_packet": self.per_packet(|m| m.device_cycles),
            "round_trip_us": self.sum(|m| m.rtt.as_micros()) as f64 / self.measured.len() as f64,
            "late": self.moved("ways_late"),
            "waited": self.moved("quic_waited"),
            "waited_us_mean": self.waited_us(),
            "reordered": self.moved("quic_reordered"),
            "behind": self.moved("quic_behind"),
            "merged": self.moved("quic_rx_merged"),
            "given_up_time": given_up("time"),
            "given_up_packets": given_up("packets"),
            "given_up_bytes": given_up("bytes"),
            "given_up_full": given_up("full"),
        })
    }
}

/// Runs the benchmark.
///
/// # Errors
/// Where bytes or an order came out wrong, or the path that was measured is not the one that was
/// asked for.
pub(crate) fn run(args: &QuicReorderArgs) -> Result<(), Failure> {
    let rates: &[u32] = if args.quick { &[0, 10, 50] } else { &RATES };
    let mut rows: Vec<(Row, f64)> = Vec::new();
    if !args.json {
        println!("late packets: by 1 to {LATE_PACKETS_MAX} packets' time on the link\n");
        println!(
            "{:<15} {:<8} {:>6} {:<8} {:>7} {:>7} {:>8} {:>8} {:>7} {:>8} {:>8} {:>7} {:>7}",
            "link",
            "fault",
            "rate",
            "by",
            "Mb/s",
            "of none",
            "dropped",
            "spurious",
            "events",
            "host c/p",
            "waited",
            "us each",
            "gave up"
        );
    }
    for link in LINKS {
        let mut none = None;
        for fault in FAULTS {
            for &rate in rates.iter().filter(|&&rate| rate > 0 || fault == Fault::Reorder) {
                for by in WAYS {
                    let row = run_one(args, link, fault, rate, by)?;
                    // That of hosts that get along without a device.
                    let none = *none.get_or_insert_with(|| row.rate());
                    show(args, &row, none);
                    rows.push((row, none));
                }
            }
        }
    }
    let orders = orders::run(args.quick, args.json)?;
    let headline = headline(&rows);
    if args.json {
        let rows: Vec<Value> = rows.iter().map(|(row, none)| row.json(*none)).collect();
        let late = LATE_PACKETS_MAX;
        let all = json!({
            "headline": headline, "late_packets_max": late, "rows": rows, "orders": orders,
        });
        println!("{all:#}");
    } else {
        println!("\nheadline: {headline:#}");
    }
    Ok(())
}

fn run_one(
    args: &QuicReorderArgs,
    link: Link,
    fault: Fault,
    rate: u32,
    by: By,
) -> Result<Row, Failure> {
    let (bytes, seeds) = if args.quick { (QUICK_BYTES, 1) } else { (BYTES, SEEDS) };
    let setting = Setting { link, fault, rate, by, bytes, seed: 1 };
    let measured: Result<Vec<_>, Failure> =
        (1..=seeds).map(|seed| measure(Setting { seed, ..setting })).collect();
    Ok(Row { setting, measured: measured? })
}

fn show(args: &QuicReorderArgs, row: &Row, none: f64) {
    let Setting { link, fault, rate, by, .. } = row.setting;
    let percent = f64::from(rate) / 10.0;
    if args.json {
        // Progress for whoever watches; the report itself is one object.
        eprintln!("{} {fault:?} {percent} % {by:?}: done", link.name);
        return;
    }
    println!(
        "{:<15} {:<8} {:>4} % {:<8} {:>7.1} {:>7.3} {:>8} {:>8} {:>7} {:>8.0} {:>8} {:>7.1} {:>7}",
        link.name,
        format!("{fault:?}"),
        percent,
        format!("{by:?}"),
        row.rate() / 1e6,
        row.rate() / none,
        row.sum(|m| m.dropped),
        row.sum(Measured::spurious),
        row.sum(|m| m.congestion_events),
        row.per_packet(|m| m.host_cycles),
        row.moved("quic_waited"),
        row.waited_us(),
        row.given_up(),
    );
    let _ = std::io::stdout().flush();
}

/// Throughput at 5 percent, as a share of that without any.
fn headline(rows: &[(Row, f64)]) -> Value {
    let of = |link: Link, fault: Fault, by: By| {
        let is_it = |s: &Setting| (s.link, s.fault, s.rate, s.by) == (link, fault, 50, by);
        rows.iter().find(|(row, _)| is_it(&row.setting)).map(|(row, none)| row.rate() / none)
    };
    let of_link = |link: Link| {
        json!({
            "link": link.name,
            "with_at_5_reorder": of(link, Fault::Reorder, By::Device),
            "without_at_5_reorder": of(link, Fault::Reorder, By::Opening),
            "with_at_5_loss": of(link, Fault::Loss, By::Device),
            "without_at_5_loss": of(link, Fault::Loss, By::Opening),
        })
    };
    Value::Array(LINKS.into_iter().map(of_link).collect())
}
