//! `outboard-lab bench tls-loss`: TLS offload under loss and reordering (ANO section 6.4).
//!
//! 128 streams of 256 KiB messages in records of 16 KiB with AES-128-GCM. Packets are single full
//! segments, because faults are per packet ([`super::faults`]). Receiving: the shares of records
//! that the device decrypted entirely, partially and not at all, with the paper's algorithm and
//! with ours. Sending: the cost of context recovery, as a share of the bytes that cross the modeled
//! PCIe bus. Throughput is the lesser of the link's and that of a server with one core of the
//! paper's testbed.

use abi::crypto::Suite;
use clap::Args;
use io::fault::LinkDirection;
use serde_json::{Value, json};

use super::experiment::{
    self, BenchReport, Benchmark, Experiment, Fields, TempFolder, find_figures, single_run,
};
use super::faults::{PacketFault, PacketFaultRate, ReorderArgs, shares};
use super::stream::StreamSource;
use super::stream_pair::{
    ContextMemory, StreamFigures, StreamRun, StreamSide, Streams, TlsProcessing, make_content,
    measure,
};
use cli::Failure;

/// Probabilities per packet, in per mille.
const RATES: [u32; 6] = [0, 5, 10, 20, 30, 50];
/// Number of streams, as in the paper.
const CONNECTIONS: u32 = 128;
/// Bytes to measure in each run.
const MEASURED_BYTES: u64 = 240 << 20;
/// Bytes before them, with loss. After fewer, losses at the end of slow start still show at low
/// rates.
const LOSS_WARM_BYTES: u64 = 512 << 20;
/// Bytes before them, with reordering. If no packet is early, windows fill the queue of the delay,
/// and packets are lost: at the end of slow start, and with 512 MiB again.
const REORDER_WARM_BYTES: u64 = 96 << 20;
/// Clock rate of a core of the paper's testbed (section 6), in cycles per second.
const CORE_HZ: f64 = 2.0e9;

/// Arguments of `outboard-lab bench tls-loss`.
#[derive(Debug, Args)]
pub(crate) struct TlsLossArgs {
    /// Run only rates of 2 and 5 percent
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    reordering: ReorderArgs,
    /// Size of messages in bytes; a record has at most 16 KiB of one message
    #[arg(long, default_value_t = 256 << 10, value_name = "BYTES")]
    #[arg(value_parser = clap::value_parser!(u32).range(1024..=1 << 20))]
    message: u32,
    /// Number of concurrent streams
    #[arg(long, default_value_t = CONNECTIONS, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=4096))]
    connections: u32,
    /// Largest packet without its Ethernet header, in bytes
    #[arg(long, default_value_t = 1500, value_name = "BYTES")]
    #[arg(value_parser = clap::value_parser!(u16).range(576..=9000))]
    mtu: u16,
}

/// Processor of TLS records, and its algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TlsLossAlgorithm {
    Plain,
    Host,
    Paper,
    Ours,
}

impl TlsLossAlgorithm {
    const fn by(self) -> TlsProcessing {
        match self {
            Self::Plain => TlsProcessing::NoTls,
            Self::Host => TlsProcessing::Host,
            Self::Paper | Self::Ours => TlsProcessing::Device,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct TlsLossSetting {
    side: StreamSide,
    faults: PacketFaultRate,
    algorithm: TlsLossAlgorithm,
}

type TlsLossRow = experiment::ResultRow<TlsLossSetting, StreamFigures>;

impl Benchmark for TlsLossArgs {
    fn run(&self, report: &mut BenchReport) -> Result<(), Failure> {
        let folder = TempFolder::new();
        make_content(folder.path())?;
        let experiment = Experiment {
            groups: groups(if self.quick { &[20, 50] } else { &RATES }),
            repeats: 1,
            measure: &mut |setting: TlsLossSetting| {
                let run = self.stream_run(setting);
                measure(self.streams(setting), &run, folder.path())
            },
            took_path: &took_path,
            combine: &single_run,
            fields: &|row, _| self.fields(row),
        };
        let rows = report.measure("rows", experiment)?;
        report.set("headline", headline(&rows));
        Ok(())
    }
}

impl TlsLossArgs {
    fn streams(&self, setting: TlsLossSetting) -> Streams {
        Streams {
            side: setting.side,
            by: setting.algorithm.by(),
            source: StreamSource::Memory,
            suite: Suite::Aes128Gcm,
            message_bytes: self.message as usize,
            connections: self.connections,
            contexts: ContextMemory::default(),
        }
    }

    fn stream_run(&self, setting: TlsLossSetting) -> StreamRun {
        let data = match setting.side {
            StreamSide::Receive => LinkDirection::Receive,
            StreamSide::Transmit => LinkDirection::Transmit,
        };
        let warm_bytes = match setting.faults.fault {
            PacketFault::Loss => LOSS_WARM_BYTES,
            PacketFault::Reorder | PacketFault::Both => REORDER_WARM_BYTES,
        };
        StreamRun {
            faults: setting.faults.config(self.reordering, data),
            mtu: self.mtu,
            out_of_order: setting.algorithm != TlsLossAlgorithm::Paper,
            begin_together: setting.faults.fault == PacketFault::Loss,
            ..StreamRun::new(warm_bytes, MEASURED_BYTES)
        }
    }

    fn fields(&self, TlsLossRow { setting, figures }: &TlsLossRow) -> Fields {
        let [full, partial, none] = shares_of(figures);
        // As a share of the bytes that the device fetched from the host.
        let recovered = figures.used.moved("dma_recover_bytes") as f64;
        let sealed = figures.used.moved("tx_tls_encrypted_bytes").max(1) as f64;
        // Bytes per second of one core, or of the link.
        let rate = figures.link_rate().min(CORE_HZ / figures.host_per_byte());
        let faults = setting.faults.fields(self.reordering);
        faults
            .show("way", "way", format!("{:?}", setting.algorithm))
            .append(figures.fields(&self.streams(*setting)))
            .show("full", "full", full)
            .show("partial", "partial", partial)
            .show("none", "none", none)
            .show("recovery", "recovery_share_of_pcie", recovered / (recovered + sealed))
            .show("Gb/s", "one_core_gbit_per_s", rate * 8e-9)
    }
}

fn groups(rates: &[u32]) -> Vec<Vec<TlsLossSetting>> {
    let mut groups = Vec::new();
    for side in [StreamSide::Receive, StreamSide::Transmit] {
        let mut algorithms = vec![
            TlsLossAlgorithm::Plain,
            TlsLossAlgorithm::Host,
            TlsLossAlgorithm::Paper,
            TlsLossAlgorithm::Ours,
        ];
        // The sender has one recovery algorithm only.
        algorithms.retain(|&a| side == StreamSide::Receive || a != TlsLossAlgorithm::Paper);
        for faults in PacketFaultRate::all(&[PacketFault::Loss, PacketFault::Reorder], rates) {
            let setting = |&algorithm| TlsLossSetting { side, faults, algorithm };
            groups.push(algorithms.iter().map(setting).collect());
        }
    }
    groups
}

fn took_path(setting: TlsLossSetting, figures: &StreamFigures) -> bool {
    let moved = |name: &str| figures.used.moved(name);
    let by_device = match setting.side {
        StreamSide::Receive => moved("tls_rx_records_full") + moved("tls_rx_records_partial"),
        StreamSide::Transmit => moved("tx_tls_encrypted_bytes"),
    };
    (setting.algorithm.by() == TlsProcessing::Device) == (by_device > 0)
        && setting.faults.are_made(moved)
}

/// Returns the shares of received records that the device decrypted entirely, partially and not at
/// all.
fn shares_of(figures: &StreamFigures) -> [f64; 3] {
    let names = ["tls_rx_records_full", "tls_rx_records_partial", "tls_rx_records_none"];
    shares(names.map(|name| figures.used.moved(name)))
}

fn headline(rows: &[TlsLossRow]) -> Value {
    let full = |fault: PacketFault, rate: u32, algorithm: TlsLossAlgorithm| {
        let wanted = TlsLossSetting {
            side: StreamSide::Receive,
            faults: PacketFaultRate { fault, rate },
            algorithm,
        };
        find_figures(rows, |&setting| setting == wanted).map(|figures| shares_of(figures)[0])
    };
    let of = |algorithm: TlsLossAlgorithm| {
        json!({
            "full_at_5_loss": full(PacketFault::Loss, 50, algorithm),
            "full_at_2_reorder": full(PacketFault::Reorder, 20, algorithm),
            "full_at_5_reorder": full(PacketFault::Reorder, 50, algorithm),
        })
    };
    json!({ "ours": of(TlsLossAlgorithm::Ours), "paper": of(TlsLossAlgorithm::Paper) })
}
