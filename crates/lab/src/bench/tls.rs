//! `outboard-lab bench tls`: autonomous TLS offload against TLS by the host and plain TCP, in
//! accounted mode (ANO section 6.1).
//!
//! Streams of messages of 4 to 256 KiB over a memory link. The host of one end is measured: sending
//! from memory, from memory that is copied first and from a file; and receiving. TLS by the host is
//! this stack's record layer over aws-lc, with whole records and all instructions of the CPU. The
//! other end processes TLS on its host in every run.

use abi::crypto::Suite;
use clap::Args;
use serde_json::{Value, json};

use super::experiment::{
    self, BenchReport, Benchmark, Experiment, TempFolder, find_figures, median_by, ratio,
};
use super::stream::StreamSource;
use super::stream_pair::{
    ContextMemory, StreamFigures, StreamRun, StreamSide, Streams, TlsProcessing, make_content,
    measure,
};
use cli::Failure;

/// Message sizes of the paper's figure 11 and beyond.
const SIZES: [usize; 4] = [4 << 10, 16 << 10, 64 << 10, 256 << 10];
/// Ratio of measured bytes to the bytes before the measurement.
const WARM_SHARE: u64 = 10;
/// Runs of each setting; the median counts.
const REPEATS: usize = 3;

/// Arguments of `outboard-lab bench tls`.
#[derive(Debug, Args)]
pub(crate) struct TlsArgs {
    /// Run only messages of 256 KiB
    #[arg(long)]
    quick: bool,
    /// Paths: `plain`, `plain file`, `host`, `device`, `device copied`, `device file` [default:
    /// all]
    #[arg(long, value_delimiter = ',', value_name = "PATH")]
    paths: Option<Vec<String>>,
    /// Mebibytes to measure in each run
    #[arg(long, default_value_t = 400, value_name = "N")]
    mebibytes: u64,
    /// Number of concurrent streams
    #[arg(long, default_value_t = 16, value_name = "N")]
    connections: u32,
}

type TlsRow = experiment::ResultRow<Streams, StreamFigures>;

impl Benchmark for TlsArgs {
    fn run(&self, report: &mut BenchReport) -> Result<(), Failure> {
        let folder = TempFolder::new();
        make_content(folder.path())?;
        let experiment = Experiment {
            groups: self.groups(),
            repeats: REPEATS,
            measure: &mut |streams| {
                let measured = self.mebibytes << 20;
                measure(streams, &StreamRun::new(measured / WARM_SHARE, measured), folder.path())
            },
            took_path: &took_path,
            combine: &|runs| median_by(runs, StreamFigures::host_per_byte),
            fields: &|row, _| row.figures.fields(&row.setting),
        };
        let rows = report.measure("rows", experiment)?;
        report.set("headline", headline(&rows));
        Ok(())
    }
}

impl TlsArgs {
    fn groups(&self) -> Vec<Vec<Streams>> {
        let sizes: &[usize] = if self.quick { &SIZES[3..] } else { &SIZES };
        let mut groups: Vec<Vec<Streams>> =
            sizes.iter().flat_map(|&size| settings(size, self.connections)).collect();
        if let Some(paths) = &self.paths {
            let is_wanted = |streams: &Streams| paths.iter().any(|path| path == streams.path());
            groups.iter_mut().for_each(|group| group.retain(is_wanted));
        }
        groups
    }
}

fn took_path(streams: Streams, figures: &StreamFigures) -> bool {
    let moved = |name: &str| figures.used.moved(name);
    let by_device = match streams.side {
        StreamSide::Transmit => moved("tx_tls_encrypted_bytes"),
        StreamSide::Receive => moved("tls_rx_records_full"),
    };
    let by_host = match streams.side {
        StreamSide::Transmit => moved("file_fallback_bytes"),
        StreamSide::Receive => moved("tls_rx_records").saturating_sub(by_device),
    };
    match streams.by {
        TlsProcessing::NoTls => {
            by_device == 0 && moved("tls_tx_records") + moved("tls_rx_records") == 0
        }
        TlsProcessing::Host => by_device == 0,
        TlsProcessing::Device => by_device > 0 && by_host == 0,
    }
}

/// Returns the settings of one message size, in two groups: sending and receiving.
fn settings(message_bytes: usize, connections: u32) -> [Vec<Streams>; 2] {
    let suites = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305];
    let make = |side, by, source, suite| {
        let contexts = ContextMemory::default();
        Streams { side, by, source, suite, message_bytes, connections, contexts }
    };
    let (tx, rx) = (StreamSide::Transmit, StreamSide::Receive);
    let mut sent = vec![
        make(tx, TlsProcessing::NoTls, StreamSource::Memory, suites[0]),
        make(tx, TlsProcessing::NoTls, StreamSource::File, suites[0]),
    ];
    let mut received = vec![make(rx, TlsProcessing::NoTls, StreamSource::Memory, suites[0])];
    for suite in suites {
        sent.push(make(tx, TlsProcessing::Host, StreamSource::Memory, suite));
        let sources = [StreamSource::Copied, StreamSource::Memory, StreamSource::File];
        sent.extend(sources.map(|source| make(tx, TlsProcessing::Device, source, suite)));
        received.extend(
            [TlsProcessing::Host, TlsProcessing::Device]
                .map(|by| make(rx, by, StreamSource::Memory, suite)),
        );
    }
    [sent, received]
}

fn headline(rows: &[TlsRow]) -> Value {
    let cost = |side, by, source, suite| {
        let found = find_figures(rows, |s| {
            s.message_bytes == SIZES[3]
                && (s.side, s.by, s.source) == (side, by, source)
                && (by == TlsProcessing::NoTls || s.suite == suite)
        });
        found.map(StreamFigures::host_per_byte)
    };
    let (tx, rx) = (StreamSide::Transmit, StreamSide::Receive);
    let memory = |side, by, suite| cost(side, by, StreamSource::Memory, suite);
    let gain = |side, suite| {
        ratio(memory(side, TlsProcessing::Host, suite), memory(side, TlsProcessing::Device, suite))
    };
    let file = |by| cost(tx, by, StreamSource::File, Suite::Aes128Gcm);
    let over_plain = |side| {
        let suite = Suite::Aes128Gcm;
        ratio(memory(side, TlsProcessing::Device, suite), memory(side, TlsProcessing::NoTls, suite))
    };
    json!({
        "tx_ratio_256k": gain(tx, Suite::Aes128Gcm),
        "rx_ratio_256k": gain(rx, Suite::Aes128Gcm),
        "tx_ratio_256k_chacha": gain(tx, Suite::ChaCha20Poly1305),
        "rx_ratio_256k_chacha": gain(rx, Suite::ChaCha20Poly1305),
        "offload_zc_vs_plain_256k": over_plain(tx),
        "offload_file_vs_plain_file_256k":
            ratio(file(TlsProcessing::Device), file(TlsProcessing::NoTls)),
        "offload_rx_vs_plain_256k": over_plain(rx),
    })
}
