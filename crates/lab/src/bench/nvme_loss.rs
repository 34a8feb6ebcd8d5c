//! `outboard-lab bench nvme-loss`: NVMe/TCP offload under loss and reordering (ANO section 6.4,
//! applied to the protocol of section 5.1).
//!
//! Reads of 16 KiB and of 256 KiB, one PDU each, with both digests. Packets are single full
//! segments, because faults are per packet, and cross the initiator's link with faults in both
//! directions. For the data PDUs that the initiator receives: the share that the device processed
//! entirely (every byte placed, digest checked), partially and not at all, and the share of bytes
//! placed, with the paper's algorithm and with ours.

use base::Duration;
use clap::Args;
use serde_json::{Value, json};

use super::experiment::{
    self, Benchmark, Experiment, Fields, Report, TempFolder, find, only, ratio,
};
use super::faults::{Fault, Faults, shares};
use super::nvme_pair::{Commands, Figures, Method, Namespace, Run, Side, measure};
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
}

/// How the device continues after lost and reordered packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Paper,
    Ours,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Setting {
    faults: Faults,
    bytes: u32,
    algorithm: Algorithm,
}

type Row = experiment::Row<Setting, Figures>;

impl Benchmark for NvmeLossArgs {
    fn run(&self, report: &mut Report) -> Result<(), Failure> {
        let folder = TempFolder::new();
        let namespace = &Namespace::new(folder.path(), NAMESPACE_BYTES)?;
        let experiment = Experiment {
            groups: groups(if self.quick { &[0, 50] } else { &RATES }),
            repeats: 1,
            measure: &mut |setting| measure_reads(setting, MEASURED_BYTES, namespace),
            took_path: &|_, figures| took_path(figures),
            combine: &only,
            fields: &|row, _| fields(row),
        };
        let rows = report.measure("rows", experiment)?;
        report.set("headline", headline(&rows));
        Ok(())
    }
}

fn groups(rates: &[u32]) -> Vec<Vec<Setting>> {
    let faults = Faults::all(&[Fault::Loss, Fault::Reorder], rates).into_iter();
    let both = faults.flat_map(|faults| SIZES.map(|bytes| (faults, bytes)));
    let group = |(faults, bytes)| {
        let setting = |algorithm| Setting { faults, bytes, algorithm };
        [Algorithm::Paper, Algorithm::Ours].map(setting).into()
    };
    both.map(group).collect()
}

fn measure_reads(
    setting: Setting,
    measured_bytes: u64,
    namespace: &Namespace<'_>,
) -> Result<Figures, Failure> {
    let method = Method { name: "crc+copy", tls: None, crc: true, copy: true, file: None };
    let Setting { faults, bytes, algorithm } = setting;
    measure(&Run {
        commands: Commands { side: Side::Initiator, method, bytes, depth: DEPTH },
        connections: CONNECTIONS,
        faults: faults.config(),
        out_of_order: algorithm == Algorithm::Ours,
        moderation: MODERATION,
        warm: WARM_BYTES.min(measured_bytes) / u64::from(bytes),
        measured: measured_bytes / u64::from(bytes),
        namespace,
    })
}

fn took_path(figures: &Figures) -> bool {
    figures.moved("nvme_rx_pdus_full") + figures.moved("nvme_rx_pdus_partial") > 0
}

/// Returns the shares of received PDUs that the device processed entirely, partially and not at
/// all.
fn shares_of(figures: &Figures) -> [f64; 3] {
    let names = ["nvme_rx_pdus_full", "nvme_rx_pdus_partial", "nvme_rx_pdus_none"];
    shares(names.map(|name| figures.moved(name)))
}

/// Returns the share of the received bytes that the device placed.
fn placed(figures: &Figures) -> f64 {
    let names = ["nvme_rx_placed_bytes", "nvme_rx_copied_bytes"];
    let [placed, copied] = names.map(|name| figures.moved(name) as f64);
    placed / (placed + copied)
}

fn fields(Row { setting, figures }: &Row) -> Fields {
    let [full, partial, none] = shares_of(figures);
    Fields::new()
        .show("fault", "fault", format!("{:?}", setting.faults.fault))
        .show("rate", "rate", setting.faults.probability())
        .show("way", "way", format!("{:?}", setting.algorithm))
        .show("full", "full", full)
        .show("partial", "partial", partial)
        .show("none", "none", none)
        .show("placed", "placed", placed(figures))
        .and(figures.fields())
}

/// Returns results at 5 % relative to 0 %: bytes placed, and PDUs processed entirely.
fn headline(rows: &[Row]) -> Value {
    let of = |algorithm| {
        let left = |fault, bytes, value: fn(&Figures) -> f64| {
            let at = |rate| {
                let wanted = Setting { faults: Faults { fault, rate }, bytes, algorithm };
                find(rows, |&setting| setting == wanted).map(value)
            };
            ratio(at(50), at(0))
        };
        let [small, large] = SIZES;
        let full = |figures: &Figures| shares_of(figures)[0];
        json!({
            "placed_at_5_loss_16k": left(Fault::Loss, small, placed),
            "placed_at_5_loss_256k": left(Fault::Loss, large, placed),
            "placed_at_5_reorder_16k": left(Fault::Reorder, small, placed),
            "placed_at_5_reorder_256k": left(Fault::Reorder, large, placed),
            "full_at_5_loss_16k": left(Fault::Loss, small, full),
            "full_at_5_loss_256k": left(Fault::Loss, large, full),
            "full_at_5_reorder_16k": left(Fault::Reorder, small, full),
            "full_at_5_reorder_256k": left(Fault::Reorder, large, full),
        })
    };
    json!({ "ours": of(Algorithm::Ours), "paper": of(Algorithm::Paper) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_takes_less_of_ours() {
        let folder = std::env::temp_dir().join(format!("outboard-loss-{}", std::process::id()));
        let namespace = Namespace::new(&folder, 4 << 20).unwrap();
        let run = |rate, algorithm| {
            let faults = Faults { fault: Fault::Loss, rate };
            let setting = Setting { faults, bytes: SIZES[0], algorithm };
            let figures = measure_reads(setting, 8 << 20, &namespace).unwrap();
            assert!(took_path(&figures), "{figures:?}");
            figures
        };
        let whole = run(0, Algorithm::Paper);
        let (paper, ours) = (run(50, Algorithm::Paper), run(50, Algorithm::Ours));
        assert!((placed(&whole) - 1.0).abs() < 1e-9 && shares_of(&whole)[0] > 0.999);
        assert!(placed(&paper) < 1.0 && shares_of(&paper)[0] < 1.0);
        assert!(shares_of(&ours)[0] > shares_of(&paper)[0] && placed(&ours) > placed(&paper));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
