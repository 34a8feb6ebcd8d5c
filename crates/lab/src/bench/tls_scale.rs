//! `outboard-lab bench tls-scale`: TLS offload with many flows and a small context memory (ANO
//! section 6.5, figure 19).
//!
//! 64 to 128 K streams of 64 KiB messages, sent from memory with AES-128-GCM. The device models 4
//! MiB of context memory with 208 bytes per context. Results are host cycles relative to plain TCP,
//! and how often a context had to be fetched.

use abi::crypto::Suite;
use clap::Args;
use io::fault::FaultConfig;
use serde_json::json;

use super::experiment::{self, BenchReport, Benchmark, Experiment, Fields, TempFolder, single_run};
use super::stream::StreamSource;
use super::stream_pair::{
    StreamFigures, StreamSide, Streams, TlsProcessing, make_content, measure,
};
use cli::Failure;

/// Concurrent streams.
const FLOWS: [u32; 6] = [64, 512, 4 << 10, 16 << 10, 64 << 10, 128 << 10];
/// Bytes of a message; a stream queues at least two messages.
const MESSAGE_BYTES: usize = 64 << 10;
/// Bytes per stream, before and during the measurement.
const FLOW_BYTES: u64 = 16 << 10;
/// Minimum number of bytes of all streams together, before and during the measurement.
const TOTAL_BYTES_MIN: u64 = 200 << 20;

/// Arguments of `outboard-lab bench tls-scale`.
#[derive(Debug, Args)]
pub(crate) struct TlsScaleArgs {
    /// Numbers of flows [default: all]
    #[arg(long, value_delimiter = ',', value_name = "N")]
    flows: Option<Vec<u32>>,
}

type TlsScaleRow = experiment::ResultRow<Streams, StreamFigures>;

impl Benchmark for TlsScaleArgs {
    fn run(&self, report: &mut BenchReport) -> Result<(), Failure> {
        let folder = TempFolder::new();
        make_content(folder.path())?;
        let experiment = Experiment {
            groups: self.flows.as_deref().unwrap_or(&FLOWS).iter().copied().map(group).collect(),
            repeats: 1,
            measure: &mut |streams| {
                let bytes = (u64::from(streams.connections) * FLOW_BYTES).max(TOTAL_BYTES_MIN);
                measure(streams, FaultConfig::default(), true, (bytes, bytes), folder.path())
            },
            took_path: &|streams: Streams, figures| {
                (streams.by == TlsProcessing::Device)
                    == (figures.used.moved("tx_tls_encrypted_bytes") > 0)
            },
            combine: &single_run,
            fields: &fields,
        };
        let rows = report.measure("rows", experiment)?;
        let groups = rows.chunk_by(|a, b| a.setting.connections == b.setting.connections);
        let of_device = groups.flat_map(|group| {
            let device = group.iter().filter(|row| row.setting.by == TlsProcessing::Device);
            device.map(|row| over_plain(row, &group[0]))
        });
        let worst = of_device.fold(0.0, f64::max);
        report.set("headline", json!({ "offload_zc_vs_plain_worst": worst }));
        Ok(())
    }
}

fn group(connections: u32) -> Vec<Streams> {
    let streams = |by| Streams {
        side: StreamSide::Transmit,
        by,
        source: StreamSource::Memory,
        suite: Suite::Aes128Gcm,
        message_bytes: MESSAGE_BYTES,
        connections,
    };
    [TlsProcessing::NoTls, TlsProcessing::Host, TlsProcessing::Device].map(streams).into()
}

/// Returns a row's host cycles relative to those of plain TCP.
fn over_plain(row: &TlsScaleRow, plain: &TlsScaleRow) -> f64 {
    row.figures.host_per_byte() / plain.figures.host_per_byte()
}

fn fields(row: &TlsScaleRow, plain: &TlsScaleRow) -> Fields {
    let moved = |name: &str| row.figures.used.moved(name);
    let packets = moved("tx_tls_encrypted_packets").max(1) as f64;
    let misses = moved("l5o_cache_misses") as f64 / packets;
    Fields::new()
        .show("flows", "flows", row.setting.connections)
        .append(row.figures.fields(&row.setting))
        .show("vs plain", "host_cycles_vs_plain", over_plain(row, plain))
        .show("misses/packet", "cache_misses_per_packet", misses)
        .show("context DMA", "context_dma_bytes", moved("dma_context_bytes"))
}
