//! `outboard-lab bench nvme`: NVMe/TCP in software and with offload, in accounted mode (ANO section
//! 6, figures 2 and 10, and table 5).
//!
//! Random reads of 4 to 256 KiB at queue depths of 1 to 256 on one connection with both digests.
//! First the initiator's host: in software, with data placed, with digests checked, with both, and
//! over TLS in the cumulative order of table 5; and its writes, with digests by host and device.
//! Then the target's host: reads served from memory and from a file, by host and device; writes
//! copied and placed. The software path is the same stack over crc-fast and aws-lc.
//!
//! No device places data without checking digests, so "copy" discards the device's digest results
//! before the host sees them. For data that the host reads from a file, the host computes the
//! digests too. Writes end in buffers; they do not reach a disk.
//!
//! Paths that are compared run in turn, several times, and the median over the slices of all their
//! runs counts, so that other load on the machine affects all alike, and little. Interrupts are
//! moderated: events within [`MODERATION_US`] are handled together.

use base::Duration;
use clap::Args;
use io::fault::FaultConfig;
use serde_json::{Value, json};

use super::experiment::{
    self, BenchReport, Benchmark, Experiment, Fields, TempFolder, find_figures, ratio,
};
use super::nvme_pair::{
    BenchNamespace, Commands, NvmeFigures, NvmeOffloads, NvmeRun, NvmeSide, measure, took_path,
};
use cli::Failure;

/// Command sizes of the paper's figure 10.
const SIZES: [u32; 4] = [4 << 10, 16 << 10, 64 << 10, 256 << 10];
const DEPTHS: [u16; 4] = [1, 16, 64, 256];
/// Queue depth of a target.
const TARGET_DEPTH: u16 = 64;
/// Sizes, depths and a target's depth of `--quick`.
const QUICK: ([u32; 2], [u16; 2], u16) = ([4 << 10, 256 << 10], [1, 32], 32);
/// Runs of each setting.
const REPEATS: usize = 3;
/// Interrupt moderation in microseconds, the same in every row. Drivers adapt it to the load,
/// between zero and some tens.
const MODERATION_US: u64 = 8;
/// Size of the namespace in bytes: more than the device's memory for files, so that it reads from
/// disk.
const NAMESPACE_BYTES: usize = 128 << 20;
/// Limit of the bytes that a run measures.
const BYTES_MAX: u64 = 192 << 20;
/// Limit of the commands that a run measures.
const COMMANDS_MAX: u64 = 10_000;

const SOFTWARE: NvmeOffloads =
    NvmeOffloads { name: "software", tls: None, crc: false, copy: false, file: None };
const COPY: NvmeOffloads = NvmeOffloads { name: "copy", copy: true, ..SOFTWARE };
const CRC: NvmeOffloads = NvmeOffloads { name: "crc", crc: true, ..SOFTWARE };
const BOTH: NvmeOffloads = NvmeOffloads { name: "crc+copy", crc: true, copy: true, ..SOFTWARE };
const TLS_SOFTWARE: NvmeOffloads =
    NvmeOffloads { name: "tls software", tls: Some(false), ..SOFTWARE };
const TLS: NvmeOffloads = NvmeOffloads { name: "tls", tls: Some(true), ..SOFTWARE };
const TLS_COPY: NvmeOffloads = NvmeOffloads { name: "tls+copy", copy: true, ..TLS };
const TLS_BOTH: NvmeOffloads = NvmeOffloads { name: "tls+crc+copy", crc: true, ..TLS_COPY };
const HOST_READ: NvmeOffloads = NvmeOffloads { name: "host read", file: Some(false), ..SOFTWARE };
const FILE: NvmeOffloads =
    NvmeOffloads { name: "file to wire", crc: true, copy: true, file: Some(true), ..SOFTWARE };

/// Arguments of `outboard-lab bench nvme`.
#[derive(Debug, Args)]
pub(crate) struct NvmeArgs {
    /// Run only 4 and 256 KiB, at queue depths of 1 and 32
    #[arg(long)]
    quick: bool,
    /// Paths, such as `software`, `tls` or `file to wire` [default: all]
    #[arg(long, value_delimiter = ',', value_name = "PATH")]
    paths: Option<Vec<String>>,
    /// Sizes of reads and writes in bytes [default: all]
    #[arg(long, value_delimiter = ',', value_name = "BYTES")]
    sizes: Option<Vec<u32>>,
    /// Queue depths of reads [default: all]
    #[arg(long, value_delimiter = ',', value_name = "COMMANDS")]
    depths: Option<Vec<u16>>,
    /// Interrupt moderation in microseconds
    #[arg(long, default_value_t = MODERATION_US, value_name = "MICROS")]
    moderation: u64,
}

type NvmeRow = experiment::ResultRow<Commands, NvmeFigures>;

impl Benchmark for NvmeArgs {
    fn run(&self, report: &mut BenchReport) -> Result<(), Failure> {
        let target_depth = if self.quick { QUICK.2 } else { TARGET_DEPTH };
        let compared =
            |a: &Commands, b: &Commands| (a.side, a.bytes, a.depth) == (b.side, b.bytes, b.depth);
        let settings = self.selected_settings(target_depth)?;
        let folder = TempFolder::new();
        let namespace = &BenchNamespace::new(folder.path(), NAMESPACE_BYTES)?;
        let moderation = Duration::from_micros(self.moderation);
        let experiment = Experiment {
            groups: settings.chunk_by(compared).map(<[Commands]>::to_vec).collect(),
            repeats: REPEATS,
            measure: &mut |commands: Commands| {
                let measured = (BYTES_MAX / u64::from(commands.bytes)).min(COMMANDS_MAX);
                let warm = measured / 10 + u64::from(commands.depth);
                measure_commands(commands, moderation, (warm, measured), namespace)
            },
            took_path: &took_path,
            combine: &NvmeFigures::of_all,
            fields: &|row, _| row.figures.fields(),
        };
        let rows = report.measure("rows", experiment)?;
        let shares: Vec<Share> = rows.iter().filter_map(|row| Share::of(row, &rows)).collect();
        report.set("headline", headline(&rows, target_depth, &shares));
        report.line("\ncycle shares of a read in software (figure 10):");
        report.table("shares", shares.iter().map(Share::fields).collect());
        Ok(())
    }
}

fn measure_commands(
    commands: Commands,
    moderation: Duration,
    (warm, measured): (u64, u64),
    namespace: &BenchNamespace<'_>,
) -> Result<NvmeFigures, Failure> {
    measure(&NvmeRun {
        commands,
        connections: 1,
        faults: FaultConfig::default(),
        out_of_order: true,
        moderation,
        warm,
        measured,
        namespace,
    })
}

impl NvmeArgs {
    /// Returns the settings that the options select.
    fn selected_settings(&self, target_depth: u16) -> Result<Vec<Commands>, Failure> {
        let is_wanted = |setting: &Commands| {
            self.paths.as_ref().is_none_or(|paths| paths.iter().any(|p| p == setting.method.name))
                && self.sizes.as_ref().is_none_or(|sizes| sizes.contains(&setting.bytes))
                && self.depths.as_ref().is_none_or(|depths| depths.contains(&setting.depth))
        };
        let mut all = settings(self.quick, target_depth);
        all.retain(is_wanted);
        if all.is_empty() {
            let line = "--paths, --sizes and --depths select no setting; run without them to list \
                        names and numbers are shown";
            return Err(Failure::Usage(line.to_owned()));
        }
        Ok(all)
    }
}

/// Returns all settings; those that are compared are adjacent.
fn settings(quick: bool, target_depth: u16) -> Vec<Commands> {
    let (sizes, depths): (&[u32], &[u16]) =
        if quick { (&QUICK.0, &QUICK.1) } else { (&SIZES, &DEPTHS) };
    let reads = [SOFTWARE, COPY, CRC, BOTH, TLS_SOFTWARE, TLS, TLS_COPY, TLS_BOTH];
    let served = [SOFTWARE, CRC, HOST_READ, FILE];
    let sent = [SOFTWARE, CRC];
    let written = [SOFTWARE, COPY, CRC, BOTH];
    let mut all = Vec::new();
    for &bytes in sizes {
        let of = |side, depth| move |method| Commands { side, method, bytes, depth };
        for &depth in depths {
            all.extend(reads.map(of(NvmeSide::Initiator, depth)));
            all.extend(served.map(of(NvmeSide::TargetReads, depth)));
        }
        all.extend(sent.map(of(NvmeSide::InitiatorWrites, target_depth)));
        all.extend(written.map(of(NvmeSide::TargetWrites, target_depth)));
    }
    all
}

fn headline(rows: &[NvmeRow], depth: u16, shares: &[Share]) -> Value {
    let cost = |side, method| {
        let wanted = Commands { side, method, bytes: SIZES[3], depth };
        find_figures(rows, |&setting| setting == wanted).map(NvmeFigures::host_per_command)
    };
    let ratio = |side, a, b| ratio(cost(side, a), cost(side, b));
    let (reads, served, written) =
        (NvmeSide::Initiator, NvmeSide::TargetReads, NvmeSide::TargetWrites);
    let writes = NvmeSide::InitiatorWrites;
    let sent = Commands { side: writes, method: SOFTWARE, bytes: SIZES[3], depth };
    let sent = find_figures(rows, |&setting| setting == sent);
    let large = shares.iter().find(|share| (share.bytes, share.depth) == (SIZES[3], depth));
    json!({
        "read_ratio_256k": ratio(reads, SOFTWARE, BOTH),
        "read_ratio_256k_copy": ratio(reads, SOFTWARE, COPY),
        "read_ratio_256k_crc": ratio(reads, SOFTWARE, CRC),
        "read_ratio_256k_tls": ratio(reads, TLS_SOFTWARE, TLS_BOTH),
        "write_ratio_256k": ratio(writes, SOFTWARE, CRC),
        "write_crc_share_256k": sent.map(NvmeFigures::digest_share),
        "target_read_ratio_256k": ratio(served, HOST_READ, FILE),
        "target_write_ratio_256k": ratio(written, SOFTWARE, BOTH),
        "copy_share_256k": large.map(|share| share.copy),
        "crc_share_256k": large.map(|share| share.crc),
    })
}

/// Shares of copies and digests in the cycles of a read in software (figure 10). Digests are timed.
/// The copy is the difference to the row that differs only in placement, digests excluded.
struct Share {
    bytes: u32,
    depth: u16,
    copy: f64,
    crc: f64,
}

impl Share {
    /// Returns the shares of a row if it is a read in software.
    fn of(NvmeRow { setting, figures }: &NvmeRow, rows: &[NvmeRow]) -> Option<Self> {
        let Commands { side, method, bytes, depth } = *setting;
        if side != NvmeSide::Initiator || method != SOFTWARE {
            return None;
        }
        let wanted = Commands { method: COPY, ..*setting };
        let placed = find_figures(rows, |&setting| setting == wanted)?;
        let beyond_digests = |f: &NvmeFigures| f.host_per_command() - f.digests_per_command();
        let all = figures.host_per_command();
        let copy = (beyond_digests(figures) - beyond_digests(placed)) / all;
        Some(Self { bytes, depth, copy, crc: figures.digests_per_command() / all })
    }

    fn fields(&self) -> Fields {
        Fields::new()
            .show("bytes", "bytes", self.bytes)
            .show("depth", "depth", self.depth)
            .show("copy", "copy", self.copy)
            .show("crc", "crc", self.crc)
            .column("other", 1.0 - self.copy - self.crc)
    }
}

#[cfg(test)]
mod tests {
    use super::super::nvme_pair::{DEVICE_COPIES, HOST_COPIES};
    use super::*;

    #[test]
    fn options_that_select_nothing_are_usage_errors() {
        use crate::args::{Cli, Verb};
        use crate::bench::{Bench, BenchArgs};
        use clap::Parser as _;
        let count = |option: &str| {
            let cli = Cli::parse_from(["outboard", "bench", "nvme", "--quick", option]);
            match cli.verb {
                Verb::Bench(BenchArgs { bench: Bench::Nvme(args), .. }) => {
                    args.selected_settings(QUICK.2).map(|all| all.len())
                }
                _ => panic!("a benchmark"),
            }
        };
        for option in ["--paths=sofware", "--sizes=5", "--depths=16"] {
            let failure = count(option).unwrap_err();
            assert!(matches!(failure, Failure::Usage(_)), "{option}: {failure}");
        }
        assert!(count("--paths=software").is_ok_and(|count| count > 0));
    }

    #[test]
    fn every_setting_takes_its_path() {
        let folder = std::env::temp_dir().join(format!("outboard-nvme-{}", std::process::id()));
        let namespace = BenchNamespace::new(&folder, 4 << 20).unwrap();
        let moderation = Duration::from_micros(MODERATION_US);
        for commands in settings(true, QUICK.2) {
            let figures = measure_commands(commands, moderation, (1, 40), &namespace).unwrap();
            // Checked by the counters that moved.
            assert!(took_path(commands, &figures), "{commands:?}: {figures:?}");
            let [placed, to_decrypt] = DEVICE_COPIES.map(|name| figures.moved(name));
            // The device copies data once, and the host never if the device has placed it. The host
            // may not have read a record that has not arrived completely.
            let method = commands.method;
            let unread = placed.abs_diff(figures.moved("nvme_rx_placed_bytes"));
            assert!(unread <= if method.tls.is_some() { 1 << 14 } else { 0 }, "{commands:?}");
            if method.copy && commands.side != NvmeSide::TargetReads {
                assert_eq!(HOST_COPIES.map(|name| figures.moved(name)), [0; 2], "{commands:?}");
            }
            assert_eq!(to_decrypt, 0, "AES-GCM needs no copy: {commands:?}");
            let decrypted = figures.moved("rx_tls_decrypted_bytes");
            assert!((decrypted > 0) == (method.tls == Some(true)), "{commands:?}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
