//! `outboard-lab bench tls-scale`: TLS offload with many flows and a small context memory (ANO
//! section 6.5, figure 19).
//!
//! 64 to 128 K streams of 64 KiB messages, sent from memory with AES-128-GCM. The device has the
//! limits of `outboard serve`, and its options; flows that do not fit are an error. The device
//! models a context memory, of 4 MiB with 208 bytes per context by default. Results are host cycles
//! relative to plain TCP, how often a context had to be fetched, and the throughput of a NIC for
//! which each fetch has a latency and needs bandwidth of its bus.

use std::sync::Arc;

use abi::crypto::Suite;
use clap::Args;
use nic::L5oConfig;
use serde_json::json;
use stack::LimitOptions;

use super::experiment::{self, BenchReport, Benchmark, Experiment, Fields, TempFolder, single_run};
use super::memory::device_entries;
use super::stream::StreamSource;
use super::stream_pair::{
    ContextMemory, StreamFigures, StreamRun, StreamSide, Streams, TlsProcessing, make_content,
    measure,
};
use super::testbed::MachineConfig;
use cli::Failure;

/// Concurrent streams.
const FLOWS: [u32; 6] = [64, 512, 4 << 10, 16 << 10, 64 << 10, 128 << 10];
/// Contexts of a TLS connection, one for each direction.
const CONTEXTS_PER_FLOW: u32 = 2;
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
    /// Bytes of a context in the NIC's memory; that of the paper by default
    #[arg(long, value_name = "BYTES", default_value_t = 208,
        value_parser = clap::value_parser!(u32).range(1..))]
    context_bytes: u32,
    /// NIC memory for contexts, in KiB
    #[arg(long, value_name = "KIB", default_value_t = 4096,
        value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    context_memory: u32,
    /// Latency of fetching a context, in nanoseconds
    #[arg(long, value_name = "NS", default_value_t = 1000)]
    miss_latency: u32,
    /// Fetches that the NIC has in flight at a time
    #[arg(long, value_name = "N", default_value_t = 16,
        value_parser = clap::value_parser!(u32).range(1..))]
    miss_parallel: u32,
    /// Bandwidth of the NIC's bus in Gbit/s, which payload and contexts share; 126 is PCIe 3.0 with
    /// 16 lanes
    #[arg(long, value_name = "GBIT", default_value_t = 126,
        value_parser = clap::value_parser!(u32).range(1..))]
    bus: u32,
    /// Bandwidth of the NIC's link in Gbit/s
    #[arg(long, value_name = "GBIT", default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(1..))]
    link: u32,
    #[command(flatten)]
    limits: LimitOptions,
}

type TlsScaleRow = experiment::ResultRow<Streams, StreamFigures>;

impl Benchmark for TlsScaleArgs {
    fn run(&self, report: &mut BenchReport) -> Result<(), Failure> {
        let flows = self.flows.as_deref().unwrap_or(&FLOWS);
        let contexts = ContextMemory {
            contexts_max: self.contexts_max(),
            context_bytes: self.context_bytes,
            cache_bytes: self.context_memory << 10,
        };
        let fit = contexts.contexts_max / CONTEXTS_PER_FLOW;
        if let Some(flows) = flows.iter().find(|&&flows| flows > fit) {
            let message = format!(
                "{flows} flows need {CONTEXTS_PER_FLOW} contexts each, and the device has room for \
                 {}; raise --max-contexts or --device-memory",
                contexts.contexts_max
            );
            return Err(Failure::Usage(message));
        }
        let folder = TempFolder::new();
        make_content(folder.path())?;
        let experiment = Experiment {
            groups: flows.iter().map(|&flows| group(flows, contexts)).collect(),
            repeats: 1,
            measure: &mut |streams| {
                let bytes = (u64::from(streams.connections) * FLOW_BYTES).max(TOTAL_BYTES_MIN);
                measure(streams, &StreamRun::new(bytes, bytes), folder.path())
            },
            took_path: &|streams: Streams, figures| {
                (streams.by == TlsProcessing::Device)
                    == (figures.used.moved("tx_tls_encrypted_bytes") > 0)
            },
            combine: &single_run,
            fields: &|row, plain| fields(row, plain, &self.nic()),
        };
        let rows = report.measure("rows", experiment)?;
        let groups = rows.chunk_by(|a, b| a.setting.connections == b.setting.connections);
        let of_device = groups.flat_map(|group| {
            let device = group.iter().filter(|row| row.setting.by == TlsProcessing::Device);
            device.map(|row| over_plain(row, &group[0]))
        });
        let worst = of_device.fold(0.0, f64::max);
        let context = device_entries::tls_transmit_context()?;
        report.line(format!(
            "the NIC's memory has room for {} contexts of {} bytes; a context of this device has \
             {context:.0} bytes",
            contexts.cache_bytes / contexts.context_bytes,
            contexts.context_bytes
        ));
        report.set("context_bytes", self.context_bytes);
        report.set("context_bytes_of_this_device", context);
        report.set("headline", json!({ "offload_zc_vs_plain_worst": worst }));
        Ok(())
    }
}

impl TlsScaleArgs {
    /// Returns the limit of contexts that `outboard serve --offload tls-tx` computes from these
    /// options.
    fn contexts_max(&self) -> u32 {
        let l5o = L5oConfig::new(Arc::new(crypto::Provider));
        let mut device = MachineConfig::new(1).device;
        device.l5o = Some(l5o);
        self.limits.apply(1, &mut device);
        device.l5o.map_or(0, |l5o| l5o.contexts_max)
    }

    fn nic(&self) -> ModeledNic {
        let bytes_per_s = |gbit: u32| f64::from(gbit) * 1e9 / 8.0;
        ModeledNic {
            link_bytes_per_s: bytes_per_s(self.link),
            bus_bytes_per_s: bytes_per_s(self.bus),
            misses_per_s: f64::from(self.miss_parallel) * 1e9 / f64::from(self.miss_latency.max(1)),
        }
    }
}

/// A NIC whose context memory is a cache. The scarcest resource determines its throughput: its
/// link, its bus, or the context fetches that it can have in flight.
struct ModeledNic {
    link_bytes_per_s: f64,
    bus_bytes_per_s: f64,
    /// Fetches per second: those in flight at a time, divided by their latency.
    misses_per_s: f64,
}

impl ModeledNic {
    /// Returns payload bytes per second.
    fn payload_rate(&self, sent: &SentByNic) -> f64 {
        let seconds = [
            sent.link_bytes / self.link_bytes_per_s,
            (sent.payload_bytes + sent.context_bytes) / self.bus_bytes_per_s,
            sent.misses / self.misses_per_s,
        ];
        sent.payload_bytes / seconds.into_iter().fold(f64::MIN_POSITIVE, f64::max)
    }
}

/// Work of a NIC in a run.
struct SentByNic {
    payload_bytes: f64,
    /// Bytes of all frames, headers included.
    link_bytes: f64,
    /// Bytes of contexts that were fetched and written back.
    context_bytes: f64,
    misses: f64,
}

fn group(connections: u32, contexts: ContextMemory) -> Vec<Streams> {
    let streams = |by| Streams {
        side: StreamSide::Transmit,
        by,
        source: StreamSource::Memory,
        suite: Suite::Aes128Gcm,
        message_bytes: MESSAGE_BYTES,
        connections,
        contexts,
    };
    [TlsProcessing::NoTls, TlsProcessing::Host, TlsProcessing::Device].map(streams).into()
}

/// Returns a row's host cycles relative to those of plain TCP.
fn over_plain(row: &TlsScaleRow, plain: &TlsScaleRow) -> f64 {
    row.figures.host_per_byte() / plain.figures.host_per_byte()
}

fn fields(row: &TlsScaleRow, plain: &TlsScaleRow, nic: &ModeledNic) -> Fields {
    let moved = |name: &str| row.figures.used.moved(name);
    let sent = SentByNic {
        payload_bytes: moved("tx_tls_encrypted_bytes") as f64,
        link_bytes: moved("tx_bytes") as f64,
        context_bytes: moved("dma_context_bytes") as f64,
        misses: moved("l5o_cache_misses") as f64,
    };
    let packets = moved("tx_tls_encrypted_packets").max(1) as f64;
    let misses = moved("l5o_cache_misses") as f64 / packets;
    Fields::new()
        .show("flows", "flows", row.setting.connections)
        .append(row.figures.fields(&row.setting))
        .show("vs plain", "host_cycles_vs_plain", over_plain(row, plain))
        .show("misses/packet", "cache_misses_per_packet", misses)
        .show("context DMA", "context_dma_bytes", moved("dma_context_bytes"))
        .show(
            "NIC Gb/s",
            "nic_gbit_per_s",
            (row.setting.by == TlsProcessing::Device).then(|| nic.payload_rate(&sent) * 8e-9),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scarcest_resource_limits_the_nic() {
        let nic = ModeledNic { link_bytes_per_s: 10.0, bus_bytes_per_s: 12.0, misses_per_s: 2.0 };
        let sent = |context_bytes, misses| SentByNic {
            payload_bytes: 90.0,
            link_bytes: 100.0,
            context_bytes,
            misses,
        };
        assert!((nic.payload_rate(&sent(0.0, 0.0)) - 9.0).abs() < 1e-9, "the link");
        assert!((nic.payload_rate(&sent(90.0, 1.0)) - 6.0).abs() < 1e-9, "the bus");
        assert!((nic.payload_rate(&sent(0.0, 40.0)) - 4.5).abs() < 1e-9, "latency");
    }
}
