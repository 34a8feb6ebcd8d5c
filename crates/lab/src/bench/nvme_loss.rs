//! `outboard-lab bench nvme-loss`: NVMe/TCP offload under loss and reordering (ANO section 6.4,
//! applied to the protocol of section 5.1).
//!
//! Reads of 16 KiB and of 256 KiB, one PDU each, with both digests. Packets are single full
//! segments, because faults are per packet ([`super::faults`]), and those to the initiator have
//! faults. For the data PDUs that the initiator receives: the share that the device processed
//! entirely (every byte placed, digest checked), partially and not at all, and the share of bytes
//! placed, with the paper's algorithm and with ours.

use base::Duration;
use clap::Args;
use io::fault::LinkDirection;
use serde_json::{Value, json};

use super::experiment::{
    self, BenchReport, Benchmark, Experiment, Fields, TempFolder, find_figures, ratio, single_run,
};
use super::faults::{PacketFault, PacketFaultRate, ReorderArgs, shares};
use super::nvme_pair::{
    BenchNamespace, Commands, NvmeFigures, NvmeOffloads, NvmeRun, NvmeSide, measure,
};
use cli::Failure;

/// Probabilities per packet, in per mille.
const RATES: [u32; 5] = [0, 10, 20, 30, 50];
const SIZES: [u32; 2] = [16 << 10, 256 << 10];
const CONNECTIONS: u32 = 32;
const DEPTH: u16 = 4;
/// Single packets arrive so fast that interrupts are moderated.
const MODERATION: Duration = Duration::from_micros(5);
const NAMESPACE_BYTES: usize = 32 << 20;
/// Bytes read before the measurement.
const WARM_BYTES: u64 = 32 << 20;
/// Bytes read during the measurement.
const MEASURED_BYTES: u64 = 160 << 20;

/// Arguments of `outboard-lab bench nvme-loss`.
#[derive(Debug, Args)]
pub(crate) struct NvmeLossArgs {
    /// Run only rates of 0 and 5 percent
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    reordering: ReorderArgs,
}

/// Algorithm of the device after lost and reordered packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NvmeLossAlgorithm {
    Paper,
    Ours,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NvmeLossSetting {
    faults: PacketFaultRate,
    bytes: u32,
    algorithm: NvmeLossAlgorithm,
}

type NvmeLossRow = experiment::ResultRow<NvmeLossSetting, NvmeFigures>;

impl Benchmark for NvmeLossArgs {
    fn run(&self, report: &mut BenchReport) -> Result<(), Failure> {
        let folder = TempFolder::new();
        let namespace = &BenchNamespace::new(folder.path(), NAMESPACE_BYTES)?;
        let experiment = Experiment {
            groups: groups(if self.quick { &[0, 50] } else { &RATES }),
            repeats: 1,
            measure: &mut |setting| {
                measure_reads(setting, self.reordering, MEASURED_BYTES, namespace)
            },
            took_path: &took_path,
            combine: &single_run,
            fields: &|row, _| fields(row, self.reordering),
        };
        let rows = report.measure("rows", experiment)?;
        report.set("headline", headline(&rows));
        Ok(())
    }
}

fn groups(rates: &[u32]) -> Vec<Vec<NvmeLossSetting>> {
    let faults =
        PacketFaultRate::all(&[PacketFault::Loss, PacketFault::Reorder], rates).into_iter();
    let both = faults.flat_map(|faults| SIZES.map(|bytes| (faults, bytes)));
    let group = |(faults, bytes)| {
        let setting = |algorithm| NvmeLossSetting { faults, bytes, algorithm };
        [NvmeLossAlgorithm::Paper, NvmeLossAlgorithm::Ours].map(setting).into()
    };
    both.map(group).collect()
}

fn measure_reads(
    setting: NvmeLossSetting,
    reordering: ReorderArgs,
    measured_bytes: u64,
    namespace: &BenchNamespace<'_>,
) -> Result<NvmeFigures, Failure> {
    let method = NvmeOffloads { name: "crc+copy", tls: None, crc: true, copy: true, file: None };
    let NvmeLossSetting { faults, bytes, algorithm } = setting;
    measure(&NvmeRun {
        commands: Commands { side: NvmeSide::Initiator, method, bytes, depth: DEPTH },
        connections: CONNECTIONS,
        faults: faults.config(reordering, LinkDirection::Receive),
        out_of_order: algorithm == NvmeLossAlgorithm::Ours,
        moderation: MODERATION,
        warm: WARM_BYTES.min(measured_bytes) / u64::from(bytes),
        measured: measured_bytes / u64::from(bytes),
        namespace,
    })
}

fn took_path(setting: NvmeLossSetting, figures: &NvmeFigures) -> bool {
    figures.moved("nvme_rx_pdus_full") + figures.moved("nvme_rx_pdus_partial") > 0
        && setting.faults.are_made(|name| figures.moved(name))
}

/// Returns the shares of received PDUs that the device processed entirely, partially and not at
/// all.
fn shares_of(figures: &NvmeFigures) -> [f64; 3] {
    let names = ["nvme_rx_pdus_full", "nvme_rx_pdus_partial", "nvme_rx_pdus_none"];
    shares(names.map(|name| figures.moved(name)))
}

/// Returns the share of the received bytes that the device placed.
fn placed(figures: &NvmeFigures) -> f64 {
    let names = ["nvme_rx_placed_bytes", "nvme_rx_copied_bytes"];
    let [placed, copied] = names.map(|name| figures.moved(name) as f64);
    placed / (placed + copied)
}

fn fields(NvmeLossRow { setting, figures }: &NvmeLossRow, reordering: ReorderArgs) -> Fields {
    let [full, partial, none] = shares_of(figures);
    let faults = setting.faults.fields(reordering);
    faults
        .show("way", "way", format!("{:?}", setting.algorithm))
        .show("full", "full", full)
        .show("partial", "partial", partial)
        .show("none", "none", none)
        .show("placed", "placed", placed(figures))
        .append(figures.fields())
}

/// Returns results at 5 % relative to 0 %: bytes placed, and PDUs processed entirely.
fn headline(rows: &[NvmeLossRow]) -> Value {
    let of = |algorithm| {
        let left = |fault, bytes, value: fn(&NvmeFigures) -> f64| {
            let at = |rate| {
                let wanted =
                    NvmeLossSetting { faults: PacketFaultRate { fault, rate }, bytes, algorithm };
                find_figures(rows, |&setting| setting == wanted).map(value)
            };
            ratio(at(50), at(0))
        };
        let [small, large] = SIZES;
        let full = |figures: &NvmeFigures| shares_of(figures)[0];
        json!({
            "placed_at_5_loss_16k": left(PacketFault::Loss, small, placed),
            "placed_at_5_loss_256k": left(PacketFault::Loss, large, placed),
            "placed_at_5_reorder_16k": left(PacketFault::Reorder, small, placed),
            "placed_at_5_reorder_256k": left(PacketFault::Reorder, large, placed),
            "full_at_5_loss_16k": left(PacketFault::Loss, small, full),
            "full_at_5_loss_256k": left(PacketFault::Loss, large, full),
            "full_at_5_reorder_16k": left(PacketFault::Reorder, small, full),
            "full_at_5_reorder_256k": left(PacketFault::Reorder, large, full),
        })
    };
    json!({ "ours": of(NvmeLossAlgorithm::Ours), "paper": of(NvmeLossAlgorithm::Paper) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads 8 MiB in commands of 16 KiB.
    fn run(faults: PacketFaultRate, algorithm: NvmeLossAlgorithm, delay: u32) -> NvmeFigures {
        let name = format!("outboard-loss-{}-{:?}", std::process::id(), faults.fault);
        let folder = std::env::temp_dir().join(name);
        let namespace = BenchNamespace::new(&folder, 4 << 20).unwrap();
        let setting = NvmeLossSetting { faults, bytes: SIZES[0], algorithm };
        let reordering = ReorderArgs { reorder_delay: delay };
        let figures = measure_reads(setting, reordering, 8 << 20, &namespace).unwrap();
        assert!(took_path(setting, &figures), "{figures:?}");
        std::fs::remove_dir_all(folder).unwrap();
        figures
    }

    #[test]
    fn early_packets_leave_more_to_the_host_than_late_ones() {
        let faults = PacketFaultRate { fault: PacketFault::Reorder, rate: 20 };
        let full = |delay| shares_of(&run(faults, NvmeLossAlgorithm::Paper, delay))[0];
        let (early, late) = (full(1000), full(0));
        assert!(early > 0.1 && early < late - 0.1, "{early} {late}");
    }

    #[test]
    fn our_algorithm_loses_less_offload() {
        let run = |rate, algorithm| {
            run(PacketFaultRate { fault: PacketFault::Loss, rate }, algorithm, 1000)
        };
        let whole = run(0, NvmeLossAlgorithm::Paper);
        let (paper, ours) = (run(50, NvmeLossAlgorithm::Paper), run(50, NvmeLossAlgorithm::Ours));
        assert!((placed(&whole) - 1.0).abs() < 1e-9 && shares_of(&whole)[0] > 0.999);
        assert!(placed(&paper) < 1.0 && shares_of(&paper)[0] < 1.0);
        assert!(shares_of(&ours)[0] > shares_of(&paper)[0] && placed(&ours) > placed(&paper));
        // A hole costs its own PDU and the next one: those are 2 times 11.3 packets, and one that
        // has an end of either.
        let expected = 0.95_f64.powf(23.7);
        assert!((shares_of(&paper)[0] - expected).abs() < 0.1, "{}", shares_of(&paper)[0]);
    }
}
