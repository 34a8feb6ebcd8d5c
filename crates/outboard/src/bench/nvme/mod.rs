//! `outboard bench nvme`: NVMe over TCP by software and with the device's help, in accounted mode
//! (autonomous-nic-offloads.md section 6, figure 10 and table 5).
//!
//! Random reads of 4 to 256 KiB at depths of 1 to 256 on one connection with both digests. The
//! initiator's host: in software, with data placed, with digests checked, with both; and over TLS
//! in table 5's cumulative order. Then the target's: reads from memory and from a file, by host and
//! device; writes copied and placed. The software path is the same stack over crc-fast and aws-lc.
//!
//! No device places data without checking digests, so for "copy" what it says of digests is dropped
//! before the host sees it. What the host reads of a file it also sums. Writes go to buffers only,
//! and are not written to the disk.

mod ends;
mod machines;

use std::io::Write as _;

use clap::Args;
use io::fault::FaultConfig;
use serde_json::{Value, json};

pub(crate) use self::ends::NvmeEnd;
pub(super) use self::machines::{Measured, Namespace, Run, Setting, Side, Way, measure};
use crate::error::Failure;

/// Sizes of the paper's figure 10.
const SIZES: [u32; 4] = [4 << 10, 16 << 10, 64 << 10, 256 << 10];
const DEPTHS: [u16; 4] = [1, 16, 64, 256];
/// Depths of a target, and of a short run.
const TARGET_DEPTH: u16 = 64;
const QUICK: ([u32; 2], [u16; 2], u16) = ([4 << 10, 256 << 10], [1, 32], 32);
/// Runs of a configuration, of which the median counts.
const REPEATS: usize = 3;
/// Bytes of the namespace: more than the device's memory for files, so that it reads.
const NAMESPACE_BYTES: usize = 128 << 20;
/// What a run measures, at most.
const BYTES_MAX: u64 = 192 << 20;
const COMMANDS_MAX: u64 = 10_000;

const SOFTWARE: Way = Way { name: "software", tls: None, crc: false, copy: false, file: None };
const COPY: Way = Way { name: "copy", copy: true, ..SOFTWARE };
const CRC: Way = Way { name: "crc", crc: true, ..SOFTWARE };
const BOTH: Way = Way { name: "crc+copy", crc: true, copy: true, ..SOFTWARE };
const TLS_SOFTWARE: Way = Way { name: "tls software", tls: Some(false), ..SOFTWARE };
const TLS: Way = Way { name: "tls", tls: Some(true), ..SOFTWARE };
const TLS_CRC: Way = Way { name: "tls+crc", crc: true, ..TLS };
const TLS_BOTH: Way = Way { name: "tls+crc+copy", copy: true, ..TLS_CRC };
const HOST_READ: Way = Way { name: "host read", file: Some(false), ..SOFTWARE };
const FILE: Way = Way { name: "file to wire", crc: true, copy: true, file: Some(true), ..SOFTWARE };

/// `outboard bench nvme`.
#[derive(Debug, Args)]
pub(crate) struct NvmeArgs {
    /// For machines
    #[arg(long)]
    json: bool,
    /// Only 4 and 256 KiB, at depths of 1 and 32
    #[arg(long)]
    quick: bool,
    /// Paths to run, instead of all: `software`, `tls`, `file to wire` and so on
    #[arg(long, value_delimiter = ',', value_name = "PATH")]
    paths: Option<Vec<String>>,
    /// Bytes of reads and writes to run, instead of all
    #[arg(long, value_delimiter = ',', value_name = "BYTES")]
    sizes: Option<Vec<u32>>,
}

/// Runs the benchmark.
///
/// # Errors
/// Where bytes came out wrong, or another path was taken than the one to be measured.
pub(crate) fn run(args: &NvmeArgs) -> Result<(), Failure> {
    super::in_temp_folder(|folder| {
        let namespace = Namespace::new(folder, NAMESPACE_BYTES)?;
        run_in(args, &namespace)
    })
}

fn run_in(args: &NvmeArgs, namespace: &Namespace<'_>) -> Result<(), Failure> {
    let target_depth = if args.quick { QUICK.2 } else { TARGET_DEPTH };
    if !args.json {
        println!(
            "{:<12} {:>7} {:>5} {:<15} {:>10} {:>8} {:>11} {:>8}",
            "side", "bytes", "depth", "path", "host c/req", "host c/B", "digests c/r", "dev c/B"
        );
    }
    let mut table = Vec::new();
    let wanted = |setting: &Setting| {
        args.paths.as_ref().is_none_or(|paths| paths.iter().any(|p| p == setting.way.name))
            && args.sizes.as_ref().is_none_or(|sizes| sizes.contains(&setting.bytes))
    };
    for setting in settings(args.quick, target_depth).into_iter().filter(wanted) {
        let measured = median(setting, namespace)?;
        show(args, &measured);
        table.push(measured);
    }
    let headline = headline(&table, target_depth);
    if args.json {
        let rows: Vec<Value> = table.iter().map(Measured::json).collect();
        println!("{:#}", json!({ "headline": headline, "rows": rows }));
    } else {
        println!("\nheadline: {headline:#}");
    }
    Ok(())
}

/// All that is measured.
fn settings(quick: bool, target_depth: u16) -> Vec<Setting> {
    let (sizes, depths): (&[u32], &[u16]) =
        if quick { (&QUICK.0, &QUICK.1) } else { (&SIZES, &DEPTHS) };
    let reads = [SOFTWARE, COPY, CRC, BOTH, TLS_SOFTWARE, TLS, TLS_CRC, TLS_BOTH];
    let mut all = Vec::new();
    for &bytes in sizes {
        for &depth in depths {
            all.extend(reads.map(|way| Setting { side: Side::Initiator, way, bytes, depth }));
        }
        let (side, depth) = (Side::TargetReads, target_depth);
        let ways = [SOFTWARE, CRC, HOST_READ, FILE];
        all.extend(ways.map(|way| Setting { side, way, bytes, depth }));
        let (side, ways) = (Side::TargetWrites, [SOFTWARE, COPY, CRC, BOTH]);
        all.extend(ways.map(|way| Setting { side, way, bytes, depth }));
    }
    all
}

fn median(setting: Setting, namespace: &Namespace<'_>) -> Result<Measured, Failure> {
    let commands = (BYTES_MAX / u64::from(setting.bytes)).min(COMMANDS_MAX);
    let mut runs = Vec::new();
    for _ in 0..REPEATS {
        let measured = measure(&Run {
            setting,
            connections: 1,
            faults: FaultConfig::default(),
            out_of_order: true,
            warm: commands / 10 + u64::from(setting.depth),
            commands,
            namespace,
        })?;
        machines::check_path(&measured)?;
        runs.push(measured);
    }
    runs.sort_by(|a, b| a.host_per_byte().total_cmp(&b.host_per_byte()));
    Ok(runs.swap_remove(REPEATS / 2))
}

fn show(args: &NvmeArgs, m: &Measured) {
    let Setting { side, way, bytes, depth } = m.setting;
    if args.json {
        // Progress for whoever watches; the report itself is one object.
        eprintln!("{side:?}, {bytes} bytes, depth {depth}, {}: done", way.name);
        return;
    }
    println!(
        "{:<12} {:>7} {:>5} {:<15} {:>10.0} {:>8.4} {:>11.0} {:>8.4}",
        format!("{side:?}"),
        bytes,
        depth,
        way.name,
        m.host_per_command(),
        m.host_per_byte(),
        m.digests_per_command(),
        m.device_per_byte()
    );
    let _ = std::io::stdout().flush();
}

fn headline(table: &[Measured], depth: u16) -> Value {
    let find = |side: Side, way: Way| {
        table.iter().find(|m| {
            let s = m.setting;
            (s.side, s.way, s.bytes, s.depth) == (side, way, SIZES[3], depth)
        })
    };
    let cost = |side, way| find(side, way).map(Measured::host_per_command);
    let ratio = |side, a, b| cost(side, a).zip(cost(side, b)).map(|(a, b)| a / b);
    let (reads, served, written) = (Side::Initiator, Side::TargetReads, Side::TargetWrites);
    // Figure 10: digests are timed; the copy is what software costs beyond the row that differs
    // from it in that alone, digests aside.
    let beyond_digests = |m: &Measured| m.host_per_command() - m.digests_per_command();
    let software = find(reads, SOFTWARE);
    let crc_share = software.map(|m| m.digests_per_command() / m.host_per_command());
    let copy_share = software.zip(find(reads, COPY)).map(|(all, placed)| {
        (beyond_digests(all) - beyond_digests(placed)) / all.host_per_command()
    });
    json!({
        "read_ratio_256k": ratio(reads, SOFTWARE, BOTH),
        "read_ratio_256k_copy": ratio(reads, SOFTWARE, COPY),
        "read_ratio_256k_crc": ratio(reads, SOFTWARE, CRC),
        "read_ratio_256k_tls": ratio(reads, TLS_SOFTWARE, TLS_BOTH),
        "target_read_ratio_256k": ratio(served, HOST_READ, FILE),
        "target_write_ratio_256k": ratio(written, SOFTWARE, BOTH),
        "copy_share_256k": copy_share,
        "crc_share_256k": crc_share,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_is_the_one_that_is_asked_for() {
        let folder = std::env::temp_dir().join(format!("outboard-nvme-{}", std::process::id()));
        let namespace = Namespace::new(&folder, 4 << 20).unwrap();
        for setting in settings(true, QUICK.2) {
            let measured = measure(&Run {
                setting,
                connections: 1,
                faults: FaultConfig::default(),
                out_of_order: true,
                warm: 1,
                commands: 40,
                namespace: &namespace,
            });
            // The path is checked by the counters that moved.
            machines::check_path(&measured.unwrap()).unwrap();
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
