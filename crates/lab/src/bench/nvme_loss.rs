//! `outboard-lab bench nvme-loss`: what loss and reordering leave of the offload of NVMe over TCP
//! (Autonomous NIC Offloads, section 6.4, for section 5.1's protocol).
//!
//! Reads of 16 KiB and of 256 KiB, a PDU each, with both digests; packets of a full
//! segment each, for faults are per packet, on the initiator's wire in both directions. Of the PDUs
//! with data that the initiator received: how many the device did whole (every byte placed, digest
//! checked), in part and not at all, and the share of bytes placed, with the paper's algorithm and
//! with ours.

use std::io::Write as _;

use base::Duration;
use clap::Args;
use io::fault::FaultConfig;
use serde_json::{Value, json};

use super::nvme::{Measured, Namespace, Run, Setting, Side, Way, measure};
use cli::Failure;

/// Probabilities per packet, in thousandths.
const RATES: [u32; 5] = [0, 10, 20, 30, 50];
const SIZES: [u32; 2] = [16 << 10, 256 << 10];
const CONNECTIONS: u32 = 32;
const DEPTH: u16 = 4;
/// Single packets come so fast that nobody looks at each alone.
const MODERATION: Duration = Duration::from_micros(5);
const NAMESPACE_BYTES: usize = 32 << 20;
/// Bytes of reads that warm up, and that are measured.
const WARM_BYTES: u64 = 32 << 20;
const MEASURED_BYTES: u64 = 160 << 20;

/// `outboard-lab bench nvme-loss`.
#[derive(Debug, Args)]
pub(crate) struct NvmeLossArgs {
    /// For machines
    #[arg(long)]
    json: bool,
    /// Only 0 and 5 percent
    #[arg(long)]
    quick: bool,
}

/// What happens to packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Loss,
    Reorder,
}

struct Row {
    fault: Fault,
    /// In thousandths.
    rate: u32,
    ours: bool,
    measured: Measured,
}

impl Row {
    /// Share of the received PDUs that the device did whole, in part and not at all.
    fn shares(&self) -> [f64; 3] {
        let names = ["nvme_rx_pdus_full", "nvme_rx_pdus_partial", "nvme_rx_pdus_none"];
        let all = names.map(|name| self.measured.moved(name) as f64);
        let sum: f64 = all.iter().sum();
        all.map(|n| if sum > 0.0 { n / sum } else { 0.0 })
    }

    /// Share of the received bytes that the device placed.
    fn placed(&self) -> f64 {
        let [placed, copied] = ["nvme_rx_placed_bytes", "nvme_rx_copied_bytes"]
            .map(|name| self.measured.moved(name) as f64);
        placed / (placed + copied)
    }

    const fn way(&self) -> &'static str {
        if self.ours { "Ours" } else { "Paper" }
    }

    fn json(&self) -> Value {
        let [full, partial, none] = self.shares();
        let mut row = self.measured.json();
        row["fault"] = format!("{:?}", self.fault).into();
        row["rate"] = (f64::from(self.rate) / 1000.0).into();
        row["way"] = self.way().into();
        row["full"] = full.into();
        row["partial"] = partial.into();
        row["none"] = none.into();
        row["placed"] = self.placed().into();
        row
    }
}

/// Runs the benchmark.
///
/// # Errors
/// Where bytes came out wrong.
pub(crate) fn run(args: &NvmeLossArgs) -> Result<(), Failure> {
    super::in_temp_folder(|folder| run_in(args, &Namespace::new(folder, NAMESPACE_BYTES)?))
}

fn run_in(args: &NvmeLossArgs, namespace: &Namespace<'_>) -> Result<(), Failure> {
    let rates: &[u32] = if args.quick { &[0, 50] } else { &RATES };
    if !args.json {
        println!(
            "{:<8} {:>6} {:>7} {:<6} {:>6} {:>8} {:>6} {:>7} {:>9} {:>9}",
            "fault",
            "rate",
            "bytes",
            "way",
            "full",
            "partial",
            "none",
            "placed",
            "host c/B",
            "dev c/B"
        );
    }
    let mut table = Vec::new();
    for fault in [Fault::Loss, Fault::Reorder] {
        for &rate in rates {
            for bytes in SIZES {
                for ours in [false, true] {
                    let row = measure_row((fault, rate, ours), bytes, MEASURED_BYTES, namespace)?;
                    show(args, &row);
                    table.push(row);
                }
            }
        }
    }
    let headline = headline(&table);
    if args.json {
        let rows: Vec<Value> = table.iter().map(Row::json).collect();
        println!("{:#}", json!({ "headline": headline, "rows": rows }));
    } else {
        println!("\nheadline: {headline:#}");
    }
    Ok(())
}

fn measure_row(
    (fault, rate, ours): (Fault, u32, bool),
    bytes: u32,
    measured_bytes: u64,
    namespace: &Namespace<'_>,
) -> Result<Row, Failure> {
    let way = Way { name: "crc+copy", tls: None, crc: true, copy: true, file: None };
    // The least fault that there can be: every row has packets, and the same wire.
    let some = (f64::from(rate) / 1000.0).max(1e-9);
    let faults = match fault {
        Fault::Loss => FaultConfig { drop: some, seed: 3, ..FaultConfig::default() },
        Fault::Reorder => FaultConfig { reorder: some, seed: 3, ..FaultConfig::default() },
    };
    let measured = measure(&Run {
        setting: Setting { side: Side::Initiator, way, bytes, depth: DEPTH },
        connections: CONNECTIONS,
        faults,
        out_of_order: ours,
        moderation: MODERATION,
        warm: WARM_BYTES.min(measured_bytes) / u64::from(bytes),
        commands: measured_bytes / u64::from(bytes),
        namespace,
    })?;
    let row = Row { fault, rate, ours, measured };
    // A silent fallback to software is the characteristic bug.
    let m = &row.measured;
    if m.moved("nvme_rx_pdus_full") + m.moved("nvme_rx_pdus_partial") == 0 {
        return Err(Failure::System(format!("the wrong path was measured: {m:?}")));
    }
    Ok(row)
}

fn show(args: &NvmeLossArgs, row: &Row) {
    let (p, way, bytes) = (f64::from(row.rate) / 10.0, row.way(), row.measured.setting.bytes);
    if args.json {
        // Progress for whoever watches; the report itself is one object.
        eprintln!("{:?} {p} % {bytes} {way}: done", row.fault);
        return;
    }
    let [full, partial, none] = row.shares();
    println!(
        "{:<8} {:>4} % {:>7} {:<6} {:>6.3} {:>8.3} {:>6.3} {:>7.3} {:>9.4} {:>9.4}",
        format!("{:?}", row.fault),
        p,
        bytes,
        way,
        full,
        partial,
        none,
        row.placed(),
        row.measured.host_per_byte(),
        row.measured.device_per_byte()
    );
    let _ = std::io::stdout().flush();
}

/// At 5 %, relative to 0 %: bytes placed, and PDUs done whole.
fn headline(table: &[Row]) -> Value {
    let find = |fault: Fault, rate: u32, bytes: u32, ours: bool| {
        let same = |r: &&Row| {
            (r.fault, r.rate, r.measured.setting.bytes, r.ours) == (fault, rate, bytes, ours)
        };
        table.iter().find(same)
    };
    let of = |ours: bool| {
        let left = |fault, bytes, value: fn(&Row) -> f64| {
            let at = |rate| find(fault, rate, bytes, ours).map(value);
            at(50).zip(at(0)).map(|(with, without)| with / without)
        };
        let [small, large] = SIZES;
        let full = |row: &Row| row.shares()[0];
        json!({
            "placed_at_5_loss_16k": left(Fault::Loss, small, Row::placed),
            "placed_at_5_loss_256k": left(Fault::Loss, large, Row::placed),
            "placed_at_5_reorder_16k": left(Fault::Reorder, small, Row::placed),
            "placed_at_5_reorder_256k": left(Fault::Reorder, large, Row::placed),
            "full_at_5_loss_16k": left(Fault::Loss, small, full),
            "full_at_5_loss_256k": left(Fault::Loss, large, full),
            "full_at_5_reorder_16k": left(Fault::Reorder, small, full),
            "full_at_5_reorder_256k": left(Fault::Reorder, large, full),
        })
    };
    json!({ "ours": of(true), "paper": of(false) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_takes_less_of_ours() {
        let folder = std::env::temp_dir().join(format!("outboard-loss-{}", std::process::id()));
        let namespace = Namespace::new(&folder, 4 << 20).unwrap();
        let row = |rate, ours| {
            measure_row((Fault::Loss, rate, ours), SIZES[0], 8 << 20, &namespace).unwrap()
        };
        let (whole, paper, ours) = (row(0, false), row(50, false), row(50, true));
        assert!((whole.placed() - 1.0).abs() < 1e-9 && whole.shares()[0] > 0.999);
        assert!(paper.placed() < 1.0 && paper.shares()[0] < 1.0);
        assert!(ours.shares()[0] > paper.shares()[0] && ours.placed() > paper.placed());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
