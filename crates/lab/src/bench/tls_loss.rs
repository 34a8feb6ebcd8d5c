//! `outboard-lab bench tls-loss`: TLS offload under loss and reordering (ANO section 6.4).
//!
//! 128 streams of 256 KiB messages in records of 16 KiB with AES-128-GCM. Packets are single full
//! segments, because faults are per packet. Receiving: the shares of records that the device
//! decrypted entirely, partially and not at all, with the paper's algorithm and with ours. Sending:
//! the cost of context recovery, as a share of the bytes that cross the modeled PCIe bus.
//! Throughput is the lesser of the link's and that of a server with one core of the paper's
//! testbed.

use abi::crypto::Suite;
use clap::Args;
use serde_json::{Value, json};

use super::experiment::{self, Benchmark, Experiment, Fields, Report, TempFolder, find, only};
use super::faults::{Fault, Faults, shares};
use super::stream::Source;
use super::stream_pair::{By, Figures, Side, Streams, make_content, measure};
use cli::Failure;

/// Probabilities per packet, in per mille.
const RATES: [u32; 6] = [0, 5, 10, 20, 30, 50];
/// Number of streams, as in the paper.
const CONNECTIONS: u32 = 128;
const WARM_BYTES: u64 = 24 << 20;
const MEASURED_BYTES: u64 = 240 << 20;
/// Clock rate of a core of the paper's testbed (section 6), in cycles per second.
const CORE_HZ: f64 = 2.0e9;

/// Arguments of `outboard-lab bench tls-loss`.
#[derive(Debug, Args)]
pub(crate) struct TlsLossArgs {
    /// Run only rates of 2 and 5 percent
    #[arg(long)]
    quick: bool,
}

/// Where and how TLS records are processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Plain,
    Host,
    Paper,
    Ours,
}

impl Algorithm {
    const fn by(self) -> By {
        match self {
            Self::Plain => By::Nobody,
            Self::Host => By::Host,
            Self::Paper | Self::Ours => By::Device,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Setting {
    side: Side,
    faults: Faults,
    algorithm: Algorithm,
}

impl Setting {
    const fn streams(&self) -> Streams {
        Streams {
            side: self.side,
            by: self.algorithm.by(),
            source: Source::Memory,
            suite: Suite::Aes128Gcm,
            message_bytes: 256 << 10,
            connections: CONNECTIONS,
        }
    }
}

type Row = experiment::Row<Setting, Figures>;

impl Benchmark for TlsLossArgs {
    fn run(&self, report: &mut Report) -> Result<(), Failure> {
        let folder = TempFolder::new();
        make_content(folder.path())?;
        let experiment = Experiment {
            groups: groups(if self.quick { &[20, 50] } else { &RATES }),
            repeats: 1,
            measure: &mut |setting: Setting| {
                let faults = setting.faults.config();
                let out_of_order = setting.algorithm != Algorithm::Paper;
                let bytes = (WARM_BYTES, MEASURED_BYTES);
                measure(setting.streams(), faults, out_of_order, bytes, folder.path())
            },
            took_path: &took_path,
            combine: &only,
            fields: &|row, _| fields(row),
        };
        let rows = report.measure("rows", experiment)?;
        report.set("headline", headline(&rows));
        Ok(())
    }
}

fn groups(rates: &[u32]) -> Vec<Vec<Setting>> {
    let mut groups = Vec::new();
    for side in [Side::Receive, Side::Transmit] {
        let mut algorithms =
            vec![Algorithm::Plain, Algorithm::Host, Algorithm::Paper, Algorithm::Ours];
        // The sender has one recovery algorithm only.
        algorithms.retain(|&a| side == Side::Receive || a != Algorithm::Paper);
        for faults in Faults::all(&[Fault::Loss, Fault::Reorder], rates) {
            let setting = |&algorithm| Setting { side, faults, algorithm };
            groups.push(algorithms.iter().map(setting).collect());
        }
    }
    groups
}

fn took_path(setting: Setting, figures: &Figures) -> bool {
    let moved = |name: &str| figures.used.moved(name);
    let by_device = match setting.side {
        Side::Receive => moved("tls_rx_records_full") + moved("tls_rx_records_partial"),
        Side::Transmit => moved("tx_tls_encrypted_bytes"),
    };
    (setting.algorithm.by() == By::Device) == (by_device > 0)
}

/// Returns the shares of received records that the device decrypted entirely, partially and not at
/// all.
fn shares_of(figures: &Figures) -> [f64; 3] {
    let names = ["tls_rx_records_full", "tls_rx_records_partial", "tls_rx_records_none"];
    shares(names.map(|name| figures.used.moved(name)))
}

fn fields(Row { setting, figures }: &Row) -> Fields {
    let [full, partial, none] = shares_of(figures);
    // As a share of the bytes that the device fetched from the host.
    let recovered = figures.used.moved("dma_recover_bytes") as f64;
    let sealed = figures.used.moved("tx_tls_encrypted_bytes").max(1) as f64;
    // Bytes per second of one core, or of the link.
    let rate = figures.link_rate().min(CORE_HZ / figures.host_per_byte());
    Fields::new()
        .show("fault", "fault", format!("{:?}", setting.faults.fault))
        .show("rate", "rate", setting.faults.probability())
        .show("way", "way", format!("{:?}", setting.algorithm))
        .and(figures.fields(&setting.streams()))
        .show("full", "full", full)
        .show("partial", "partial", partial)
        .show("none", "none", none)
        .show("recovery", "recovery_share_of_pcie", recovered / (recovered + sealed))
        .show("Gb/s", "one_core_gbit_per_s", rate * 8e-9)
}

fn headline(rows: &[Row]) -> Value {
    let full = |fault: Fault, rate: u32, algorithm: Algorithm| {
        let wanted = Setting { side: Side::Receive, faults: Faults { fault, rate }, algorithm };
        find(rows, |&setting| setting == wanted).map(|figures| shares_of(figures)[0])
    };
    let of = |algorithm: Algorithm| {
        json!({
            "full_at_5_loss": full(Fault::Loss, 50, algorithm),
            "full_at_2_reorder": full(Fault::Reorder, 20, algorithm),
            "full_at_5_reorder": full(Fault::Reorder, 50, algorithm),
        })
    };
    json!({ "ours": of(Algorithm::Ours), "paper": of(Algorithm::Paper) })
}
