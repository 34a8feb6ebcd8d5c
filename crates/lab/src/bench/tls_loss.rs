//! `outboard-lab bench tls-loss`: what loss and reordering leave of the offload of TLS
//! (Autonomous NIC Offloads, section 6.4).
//!
//! 128 streams of 256 KiB messages, records of 16 KiB, AES-128-GCM; packets of a full segment each,
//! for faults are per packet. Receiving: how many records the device opened whole, in part and not
//! at all, with the paper's algorithm and with ours. Sending: what recovering contexts costs, as a
//! share of the bytes that cross the modelled PCIe. Rates are those of a server with one core of
//! the paper's testbed, or of the link, whichever is less.

use std::io::Write as _;
use std::path::Path;

use abi::crypto::Suite;
use clap::Args;
use io::fault::FaultConfig;
use serde_json::{Value, json};

use super::stream::Source;
use super::tls::{By, Measured, Run, Setting, Side, make_content, measure_run};
use cli::Failure;

/// Probabilities per packet, in thousandths.
const RATES: [u32; 6] = [0, 5, 10, 20, 30, 50];
/// The paper's streams.
const CONNECTIONS: u32 = 128;
const WARM_BYTES: u64 = 24 << 20;
const MEASURED_BYTES: u64 = 240 << 20;
/// A core of the paper's testbed (section 6), in cycles per second.
const CORE_HZ: f64 = 2.0e9;

/// `outboard-lab bench tls-loss`.
#[derive(Debug, Args)]
pub(crate) struct TlsLossArgs {
    /// For machines
    #[arg(long)]
    json: bool,
    /// Only 2 and 5 percent
    #[arg(long)]
    quick: bool,
}

/// What happens to packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Loss,
    Reorder,
}

/// Who does the records, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Plain,
    Host,
    Paper,
    Ours,
}

struct Row {
    side: Side,
    fault: Fault,
    /// In thousandths.
    rate: u32,
    way: Way,
    measured: Measured,
}

impl Row {
    /// Share of the received records that the device opened whole, in part and not at all.
    fn shares(&self) -> [f64; 3] {
        let m = &self.measured;
        let names = ["tls_rx_records_full", "tls_rx_records_partial", "tls_rx_records_none"];
        let all = names.map(|name| m.moved(name) as f64);
        let sum: f64 = all.iter().sum();
        all.map(|n| if sum > 0.0 { n / sum } else { 0.0 })
    }

    /// Bytes of context recovery among those that the device fetched from the host.
    fn recovery_share(&self) -> f64 {
        let recovered = self.measured.moved("dma_recover_bytes") as f64;
        recovered / (recovered + self.measured.moved("tx_tls_encrypted_bytes").max(1) as f64)
    }

    /// Bytes per second of one core, or of the link.
    fn rate(&self) -> f64 {
        self.measured.link_rate().min(CORE_HZ / self.measured.host_per_byte())
    }

    fn json(&self) -> Value {
        let [full, partial, none] = self.shares();
        let mut row = self.measured.json();
        row["fault"] = format!("{:?}", self.fault).into();
        row["rate"] = (f64::from(self.rate) / 1000.0).into();
        row["way"] = format!("{:?}", self.way).into();
        row["full"] = full.into();
        row["partial"] = partial.into();
        row["none"] = none.into();
        row["recovery_share_of_pcie"] = self.recovery_share().into();
        row["one_core_gbit_per_s"] = (self.rate() * 8e-9).into();
        row
    }
}

/// Runs the benchmark.
///
/// # Errors
/// Where bytes came out wrong.
pub(crate) fn run(args: &TlsLossArgs) -> Result<(), Failure> {
    super::in_temp_folder(|folder| make_content(folder).and_then(|()| run_in(args, folder)))
}

fn run_in(args: &TlsLossArgs, folder: &Path) -> Result<(), Failure> {
    let rates: &[u32] = if args.quick { &[20, 50] } else { &RATES };
    let mut table = Vec::new();
    if !args.json {
        println!(
            "{:<9} {:<8} {:>6} {:<6} {:>9} {:>9} {:>6} {:>8} {:>6} {:>9} {:>7}",
            "side",
            "fault",
            "rate",
            "way",
            "host c/B",
            "dev c/B",
            "full",
            "partial",
            "none",
            "recovery",
            "Gb/s"
        );
    }
    for side in [Side::Receive, Side::Transmit] {
        for fault in [Fault::Loss, Fault::Reorder] {
            for &rate in rates {
                for way in ways(side) {
                    let row = measure(side, fault, rate, way, folder)?;
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

/// The sender recovers in one way only.
const fn ways(side: Side) -> &'static [Way] {
    match side {
        Side::Receive => &[Way::Plain, Way::Host, Way::Paper, Way::Ours],
        Side::Transmit => &[Way::Plain, Way::Host, Way::Ours],
    }
}

fn measure(side: Side, fault: Fault, rate: u32, way: &Way, folder: &Path) -> Result<Row, Failure> {
    let by = match way {
        Way::Plain => By::Nobody,
        Way::Host => By::Host,
        Way::Paper | Way::Ours => By::Device,
    };
    let setting = Setting {
        side,
        by,
        source: Source::Memory,
        suite: Suite::Aes128Gcm,
        message_bytes: 256 << 10,
        connections: CONNECTIONS,
    };
    let p = f64::from(rate) / 1000.0;
    // The least fault that there can be: every row has packets, and the same wire.
    let some = p.max(1e-9);
    let faults = match fault {
        Fault::Loss => FaultConfig { drop: some, seed: 3, ..FaultConfig::default() },
        Fault::Reorder => FaultConfig { reorder: some, seed: 3, ..FaultConfig::default() },
    };
    let out_of_order = *way != Way::Paper;
    let (warm_bytes, measured_bytes) = (WARM_BYTES, MEASURED_BYTES);
    let run = Run { setting, faults, out_of_order, warm_bytes, measured_bytes };
    let measured = measure_run(&run, folder)?;
    let row = Row { side, fault, rate, way: *way, measured };
    // A silent fallback to software is the characteristic bug.
    let m = &row.measured;
    let by_device = match side {
        Side::Receive => m.moved("tls_rx_records_full") + m.moved("tls_rx_records_partial"),
        Side::Transmit => m.moved("tx_tls_encrypted_bytes"),
    };
    if (by == By::Device) != (by_device > 0) {
        return Err(Failure::System(format!("the wrong path was measured: {m:?}")));
    }
    Ok(row)
}

fn show(args: &TlsLossArgs, row: &Row) {
    let p = f64::from(row.rate) / 10.0;
    if args.json {
        // Progress for whoever watches; the report itself is one object.
        eprintln!("{:?} {:?} {p} % {:?}: done", row.side, row.fault, row.way);
        return;
    }
    let [full, partial, none] = row.shares();
    println!(
        "{:<9} {:<8} {:>4} % {:<6} {:>9.4} {:>9.4} {:>6.3} {:>8.3} {:>6.3} {:>9.4} {:>7.2}",
        format!("{:?}", row.side),
        format!("{:?}", row.fault),
        p,
        format!("{:?}", row.way),
        row.measured.host_per_byte(),
        row.measured.device_per_byte(),
        full,
        partial,
        none,
        row.recovery_share(),
        row.rate() * 8e-9
    );
    let _ = std::io::stdout().flush();
}

fn headline(table: &[Row]) -> Value {
    let full = |fault: Fault, rate: u32, way: Way| {
        table
            .iter()
            .find(|r| (r.side, r.fault, r.rate, r.way) == (Side::Receive, fault, rate, way))
            .map(|r| r.shares()[0])
    };
    let of = |way: Way| {
        json!({
            "full_at_5_loss": full(Fault::Loss, 50, way),
            "full_at_2_reorder": full(Fault::Reorder, 20, way),
            "full_at_5_reorder": full(Fault::Reorder, 50, way),
        })
    };
    json!({ "ours": of(Way::Ours), "paper": of(Way::Paper) })
}
