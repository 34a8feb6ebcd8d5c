//! `outboard-lab bench nvme`: NVMe over TCP by software and with the device's help, in accounted
//! mode (Autonomous NIC Offloads, section 6, figure 10 and table 5).
//!
//! Random reads of 4 to 256 KiB at depths of 1 to 256 on one connection with both digests. The
//! initiator's host: in software, with data placed, with digests checked, with both; and over TLS
//! in table 5's cumulative order. Then the target's: reads from memory and from a file, by host and
//! device; writes copied and placed. The software path is the same stack over crc-fast and aws-lc.
//!
//! No device places data without checking digests, so for "copy" what it says of digests is dropped
//! before the host sees it. What the host reads of a file it also sums. Writes go to buffers only,
//! and are not written to the disk.
//!
//! Ways that are compared run in turn, several times, and of the parts of all their runs the median
//! counts: so other work on the machine meets all alike, and little of it is seen. What comes
//! within [`MODERATION_US`] is seen together, as with a NIC's interrupts.

mod ends;
mod machines;

use std::io::Write as _;

use base::Duration;
use clap::Args;
use io::fault::FaultConfig;
use serde_json::{Value, json};

pub(crate) use self::ends::NvmeEnd;
pub(super) use self::machines::{Measured, Namespace, Run, Setting, Side, Way, measure};
use cli::Failure;

/// Sizes of the paper's figure 10.
const SIZES: [u32; 4] = [4 << 10, 16 << 10, 64 << 10, 256 << 10];
const DEPTHS: [u16; 4] = [1, 16, 64, 256];
/// Depths of a target, and of a short run.
const TARGET_DEPTH: u16 = 64;
const QUICK: ([u32; 2], [u16; 2], u16) = ([4 << 10, 256 << 10], [1, 32], 32);
/// Runs of a configuration.
const REPEATS: usize = 3;
/// Microseconds for which an interrupt waits for more to happen, in every row alike. Drivers adapt
/// it to the load, between none and tens.
const MODERATION_US: u64 = 8;
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
const TLS_COPY: Way = Way { name: "tls+copy", copy: true, ..TLS };
const TLS_BOTH: Way = Way { name: "tls+crc+copy", crc: true, ..TLS_COPY };
const HOST_READ: Way = Way { name: "host read", file: Some(false), ..SOFTWARE };
const FILE: Way = Way { name: "file to wire", crc: true, copy: true, file: Some(true), ..SOFTWARE };

/// `outboard-lab bench nvme`.
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
    /// Depths of reads to run, instead of all
    #[arg(long, value_delimiter = ',', value_name = "COMMANDS")]
    depths: Option<Vec<u16>>,
    /// Microseconds for which an interrupt waits for more to happen
    #[arg(long, default_value_t = MODERATION_US, value_name = "MICROS")]
    moderation: u64,
}

/// Runs the benchmark.
///
/// # Errors
/// Where bytes came out wrong, or another path was taken than the one to be measured.
pub(crate) fn run(args: &NvmeArgs) -> Result<(), Failure> {
    let target_depth = if args.quick { QUICK.2 } else { TARGET_DEPTH };
    let settings = chosen(args, target_depth)?;
    super::in_temp_folder(|folder| {
        let namespace = Namespace::new(folder, NAMESPACE_BYTES)?;
        run_in(args, target_depth, &settings, &namespace)
    })
}

/// What of all settings was asked for.
fn chosen(args: &NvmeArgs, target_depth: u16) -> Result<Vec<Setting>, Failure> {
    let wanted = |setting: &Setting| {
        args.paths.as_ref().is_none_or(|paths| paths.iter().any(|p| p == setting.way.name))
            && args.sizes.as_ref().is_none_or(|sizes| sizes.contains(&setting.bytes))
            && args.depths.as_ref().is_none_or(|depths| depths.contains(&setting.depth))
    };
    let mut all = settings(args.quick, target_depth);
    all.retain(wanted);
    if all.is_empty() {
        let line = "--paths, --sizes and --depths leave nothing to measure: without them all names \
                    and numbers are shown";
        return Err(Failure::Usage(line.to_owned()));
    }
    Ok(all)
}

fn run_in(
    args: &NvmeArgs,
    target_depth: u16,
    settings: &[Setting],
    namespace: &Namespace<'_>,
) -> Result<(), Failure> {
    if !args.json {
        println!(
            "{:<12} {:>7} {:>5} {:<15} {:>10} {:>8} {:>11} {:>8}",
            "side", "bytes", "depth", "path", "host c/req", "host c/B", "digests c/r", "dev c/B"
        );
    }
    let same = |a: &Setting, b: &Setting| (a.side, a.bytes, a.depth) == (b.side, b.bytes, b.depth);
    let mut table = Vec::new();
    for compared in settings.chunk_by(same) {
        let measured = compare(compared, args, namespace)?;
        measured.iter().for_each(|m| show(args, m));
        table.extend(measured);
    }
    let (headline, shares) = (headline(&table, target_depth), shares(&table));
    if args.json {
        let rows: Vec<Value> = table.iter().map(Measured::json).collect();
        let report = json!({ "headline": headline, "shares": shares, "rows": rows });
        println!("{report:#}");
    } else {
        show_shares(&shares);
        println!("\nheadline: {headline:#}");
    }
    Ok(())
}

/// All that is measured; what is compared stands together.
fn settings(quick: bool, target_depth: u16) -> Vec<Setting> {
    let (sizes, depths): (&[u32], &[u16]) =
        if quick { (&QUICK.0, &QUICK.1) } else { (&SIZES, &DEPTHS) };
    let reads = [SOFTWARE, COPY, CRC, BOTH, TLS_SOFTWARE, TLS, TLS_COPY, TLS_BOTH];
    let served = [SOFTWARE, CRC, HOST_READ, FILE];
    let mut all = Vec::new();
    for &bytes in sizes {
        for &depth in depths {
            all.extend(reads.map(|way| Setting { side: Side::Initiator, way, bytes, depth }));
            all.extend(served.map(|way| Setting { side: Side::TargetReads, way, bytes, depth }));
        }
        let (side, depth, ways) = (Side::TargetWrites, target_depth, [SOFTWARE, COPY, CRC, BOTH]);
        all.extend(ways.map(|way| Setting { side, way, bytes, depth }));
    }
    all
}

/// Measures settings in turn, several times.
fn compare(
    settings: &[Setting],
    args: &NvmeArgs,
    namespace: &Namespace<'_>,
) -> Result<Vec<Measured>, Failure> {
    let mut all: Vec<Measured> = Vec::new();
    for _ in 0..REPEATS {
        for (index, &setting) in settings.iter().enumerate() {
            let commands = (BYTES_MAX / u64::from(setting.bytes)).min(COMMANDS_MAX);
            let measured = measure(&Run {
                setting,
                connections: 1,
                faults: FaultConfig::default(),
                out_of_order: true,
                moderation: Duration::from_micros(args.moderation),
                warm: commands / 10 + u64::from(setting.depth),
                commands,
                namespace,
            })?;
            machines::check_path(&measured)?;
            match all.get_mut(index) {
                Some(before) => before.add(measured),
                None => all.push(measured),
            }
        }
    }
    Ok(all)
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
    let shares = shares(table);
    let large =
        shares.iter().find(|s| (&s["bytes"], &s["depth"]) == (&SIZES[3].into(), &depth.into()));
    let share = |name: &str| large.map(|shares| &shares[name]);
    json!({
        "read_ratio_256k": ratio(reads, SOFTWARE, BOTH),
        "read_ratio_256k_copy": ratio(reads, SOFTWARE, COPY),
        "read_ratio_256k_crc": ratio(reads, SOFTWARE, CRC),
        "read_ratio_256k_tls": ratio(reads, TLS_SOFTWARE, TLS_BOTH),
        "target_read_ratio_256k": ratio(served, HOST_READ, FILE),
        "target_write_ratio_256k": ratio(written, SOFTWARE, BOTH),
        "copy_share_256k": share("copy"),
        "crc_share_256k": share("crc"),
    })
}

/// Figure 10: of the cycles of a read in software, what copies and digests take. Digests are timed;
/// the copy is what software costs beyond the row that differs from it in that alone, digests
/// aside.
fn shares(table: &[Measured]) -> Vec<Value> {
    let beyond_digests = |m: &Measured| m.host_per_command() - m.digests_per_command();
    let placed = |software: &Measured| {
        let setting = Setting { way: COPY, ..software.setting };
        table.iter().find(|m| m.setting == setting)
    };
    let reads = table.iter().filter(|m| m.setting.side == Side::Initiator);
    let software = reads.filter(|m| m.setting.way == SOFTWARE);
    let share = |software: &Measured| {
        let all = software.host_per_command();
        let copy = (beyond_digests(software) - beyond_digests(placed(software)?)) / all;
        let crc = software.digests_per_command() / all;
        let Setting { bytes, depth, .. } = software.setting;
        Some(json!({ "bytes": bytes, "depth": depth, "copy": copy, "crc": crc }))
    };
    software.filter_map(share).collect()
}

fn show_shares(shares: &[Value]) {
    println!("\nshares of a read in software (figure 10):");
    println!("{:>7} {:>5} {:>6} {:>6} {:>6}", "bytes", "depth", "copy", "crc", "other");
    for row in shares {
        let value = |name: &str| row[name].as_f64().unwrap_or_default();
        let (copy, crc) = (value("copy"), value("crc"));
        let (bytes, depth) = (&row["bytes"], &row["depth"]);
        println!("{bytes:>7} {depth:>5} {copy:>6.3} {crc:>6.3} {:>6.3}", 1.0 - copy - crc);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leaves_nothing_is_wrong_usage() {
        use crate::args::{Cli, Verb};
        use crate::bench::Bench;
        use clap::Parser as _;
        let count =
            |option: &str| match Cli::parse_from(["outboard", "bench", "nvme", "--quick", option])
                .verb
            {
                Verb::Bench(Bench::Nvme(args)) => chosen(&args, QUICK.2).map(|all| all.len()),
                _ => panic!("a benchmark"),
            };
        for option in ["--paths=sofware", "--sizes=5", "--depths=16"] {
            let failure = count(option).unwrap_err();
            assert!(matches!(failure, Failure::Usage(_)), "{option}: {failure}");
        }
        assert!(count("--paths=software").is_ok_and(|count| count > 0));
    }

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
                moderation: Duration::from_micros(MODERATION_US),
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
