//! `outboard-lab bench tls-scale`: the offload of TLS with many flows and a small context memory
//! (Autonomous NIC Offloads, section 6.5, figure 19).
//!
//! 64 to 128 K streams of 64 KiB messages, sent from memory, AES-128-GCM; the device models 4 MiB
//! of context memory with 208 bytes per context. Host cycles against plain TCP, and how often a
//! context had to be fetched.

use std::io::Write as _;
use std::path::Path;

use abi::crypto::Suite;
use clap::Args;
use io::fault::FaultConfig;
use serde_json::{Value, json};

use super::stream::Source;
use super::tls::{By, Measured, Run, Setting, Side, make_content, measure_run};
use cli::Failure;

/// Streams at one time.
const FLOWS: [u32; 6] = [64, 512, 4 << 10, 16 << 10, 64 << 10, 128 << 10];
/// Bytes of a message: what a stream has queued at least is a multiple of it.
const MESSAGE_BYTES: usize = 64 << 10;
/// What each stream carries before and while it is measured, and the least of all.
const FLOW_BYTES: u64 = 16 << 10;
const LEAST_BYTES: u64 = 200 << 20;

/// `outboard-lab bench tls-scale`.
#[derive(Debug, Args)]
pub(crate) struct TlsScaleArgs {
    /// For machines
    #[arg(long)]
    json: bool,
    /// Numbers of flows to run, instead of all
    #[arg(long, value_delimiter = ',', value_name = "N")]
    flows: Option<Vec<u32>>,
}

/// Runs the benchmark.
///
/// # Errors
/// Where bytes came out wrong.
pub(crate) fn run(args: &TlsScaleArgs) -> Result<(), Failure> {
    super::in_temp_folder(|folder| make_content(folder).and_then(|()| run_in(args, folder)))
}

fn run_in(args: &TlsScaleArgs, folder: &Path) -> Result<(), Failure> {
    let flows = args.flows.as_deref().unwrap_or(&FLOWS);
    let (mut rows, mut worst) = (Vec::new(), 0.0_f64);
    if !args.json {
        println!(
            "{:>7} {:<7} {:>9} {:>9} {:>9} {:>12} {:>12}",
            "flows", "path", "host c/B", "dev c/B", "vs plain", "misses/packet", "context DMA"
        );
    }
    for &connections in flows {
        let plain = measure(By::Nobody, connections, folder)?;
        for by in [By::Nobody, By::Host, By::Device] {
            let m =
                if by == By::Nobody { plain.clone() } else { measure(by, connections, folder)? };
            let over_plain = m.host_per_byte() / plain.host_per_byte();
            if by == By::Device {
                worst = worst.max(over_plain);
            }
            rows.push(show(args, connections, &m, over_plain));
        }
    }
    let headline = json!({ "offload_zc_vs_plain_worst": worst });
    if args.json {
        println!("{:#}", json!({ "headline": headline, "rows": rows }));
    } else {
        println!("\nheadline: {headline:#}");
    }
    Ok(())
}

fn measure(by: By, connections: u32, folder: &Path) -> Result<Measured, Failure> {
    let setting = Setting {
        side: Side::Transmit,
        by,
        source: Source::Memory,
        suite: Suite::Aes128Gcm,
        message_bytes: MESSAGE_BYTES,
        connections,
    };
    let bytes = (u64::from(connections) * FLOW_BYTES).max(LEAST_BYTES);
    let faults = FaultConfig::default();
    let run = Run { setting, faults, out_of_order: true, warm_bytes: bytes, measured_bytes: bytes };
    let measured = measure_run(&run, folder)?;
    if (by == By::Device) != (measured.moved("tx_tls_encrypted_bytes") > 0) {
        return Err(Failure::System(format!("the wrong path was measured: {measured:?}")));
    }
    Ok(measured)
}

fn show(args: &TlsScaleArgs, flows: u32, m: &Measured, over_plain: f64) -> Value {
    let packets = m.moved("tx_tls_encrypted_packets").max(1) as f64;
    let misses = m.moved("l5o_cache_misses") as f64 / packets;
    let dma = m.moved("dma_context_bytes");
    let path = match m.setting.by {
        By::Nobody => "plain",
        By::Host => "host",
        By::Device => "device",
    };
    if args.json {
        eprintln!("{flows} flows, {path}: done");
    } else {
        println!(
            "{flows:>7} {path:<7} {:>9.4} {:>9.4} {over_plain:>9.3} {misses:>12.4} {dma:>12}",
            m.host_per_byte(),
            m.device_per_byte()
        );
        let _ = std::io::stdout().flush();
    }
    let mut row = m.json();
    row["flows"] = flows.into();
    row["host_cycles_vs_plain"] = over_plain.into();
    row["cache_misses_per_packet"] = misses.into();
    row["context_dma_bytes"] = dma.into();
    row
}
