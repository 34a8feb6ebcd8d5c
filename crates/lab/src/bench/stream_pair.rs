//! Two machines with streams of messages between them, plain or over TLS, for `bench tls`,
//! `bench tls-loss` and `bench tls-scale`.
//!
//! The host of one end is measured. The other end processes TLS on its host in every run.

use std::path::Path;
use std::sync::Arc;

use abi::crypto::Suite;
use base::Duration;
use host::TlsVersion;
use io::fault::FaultConfig;
use io::memory_link::{MemoryLinkConfig, memory_link_pair};
use nic::{L5oConfig, LONG_TRANSMIT_BYTES};

use super::cycle_accounting::{AccountedPair, Usage};
use super::experiment::Fields;
use super::stream::{self, StreamApp, StreamParams, StreamSource};
use super::testbed::{self, FAST_DISK, MachineConfig, TRANSMIT_RING};
use cli::Failure;

/// Direction in which the measured machine transfers data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamSide {
    Transmit,
    Receive,
}

/// Part of the measured machine that processes TLS records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TlsProcessing {
    NoTls,
    Host,
    Device,
}

/// Streams of a run: direction, TLS, source, and sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams {
    pub(crate) side: StreamSide,
    pub(crate) by: TlsProcessing,
    pub(crate) source: StreamSource,
    pub(crate) suite: Suite,
    pub(crate) message_bytes: usize,
    pub(crate) connections: u32,
    pub(crate) contexts: ContextMemory,
}

/// The device's limit of contexts, and its modeled memory for them (ANO section 6.5).
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContextMemory {
    /// Maximum number of contexts.
    pub(crate) contexts_max: u32,
    /// Bytes of a context.
    pub(crate) context_bytes: u32,
    /// Bytes of the memory.
    pub(crate) cache_bytes: u32,
}

impl Default for ContextMemory {
    fn default() -> Self {
        let L5oConfig { contexts_max, context_bytes, cache_bytes, .. } =
            L5oConfig::new(Arc::new(crypto::Provider));
        Self { contexts_max, context_bytes, cache_bytes }
    }
}

impl Streams {
    /// Returns the name of the measured path.
    pub(crate) const fn path(&self) -> &'static str {
        match (self.by, self.source) {
            (TlsProcessing::NoTls, StreamSource::File) => "plain file",
            (TlsProcessing::NoTls, _) => "plain",
            (TlsProcessing::Host, _) => "host",
            (TlsProcessing::Device, StreamSource::Copied) => "device copied",
            (TlsProcessing::Device, StreamSource::Memory) => "device",
            (TlsProcessing::Device, StreamSource::File) => "device file",
        }
    }
}

/// Link, device and length of a run.
#[derive(Clone, Debug)]
pub(crate) struct StreamRun {
    /// Faults of the packets on the measured machine's link.
    pub(crate) faults: FaultConfig,
    /// Largest packet without its Ethernet header, in bytes.
    pub(crate) mtu: u16,
    /// The device decrypts records in any order; otherwise it follows the paper's algorithm.
    pub(crate) out_of_order: bool,
    /// Bytes before the measurement.
    pub(crate) warm_bytes: u64,
    /// See [`StreamParams::begin_together`].
    pub(crate) begin_together: bool,
    pub(crate) measured_bytes: u64,
}

impl StreamRun {
    /// Returns a run on a link without faults.
    pub(crate) fn new(warm_bytes: u64, measured_bytes: u64) -> Self {
        let (faults, mtu) = (FaultConfig::default(), MemoryLinkConfig::default().mtu);
        let begin_together = false;
        Self { faults, mtu, out_of_order: true, begin_together, warm_bytes, measured_bytes }
    }
}

/// Result of one run.
#[derive(Debug)]
pub(crate) struct StreamFigures {
    bytes: u64,
    /// Resources that the measured machine used.
    pub(crate) used: Usage,
}

impl StreamFigures {
    /// Returns bytes per second of virtual time: the modeled link's throughput.
    pub(crate) fn link_rate(&self) -> f64 {
        self.bytes as f64 * 1e9 / self.used.elapsed.as_nanos() as f64
    }

    /// Returns host cycles per byte.
    pub(crate) fn host_per_byte(&self) -> f64 {
        self.used.cycles.host as f64 / self.bytes as f64
    }

    /// Returns the fields that all rows have.
    pub(crate) fn fields(&self, streams: &Streams) -> Fields {
        let messages = self.bytes as f64 / streams.message_bytes as f64;
        let device_per_byte = self.used.cycles.device as f64 / self.bytes as f64;
        Fields::new()
            .show("side", "side", format!("{:?}", streams.side))
            .show(
                "suite",
                "suite",
                (streams.by != TlsProcessing::NoTls).then(|| format!("{:?}", streams.suite)),
            )
            .show("message", "message_bytes", streams.message_bytes)
            .show("path", "path", streams.path())
            .show("host c/B", "host_cycles_per_byte", self.host_per_byte())
            .show("dev c/B", "device_cycles_per_byte", device_per_byte)
            .append(self.used.allocation_fields(messages))
            .counters(&self.used.counters)
    }
}

/// Writes the file that is sent.
///
/// # Errors
/// Reports an error of the file system.
pub(crate) fn make_content(folder: &Path) -> Result<(), Failure> {
    testbed::write_file(folder, stream::CONTENT, &stream::content())
}

/// Runs streams, and measures when every stream has transferred some bytes: sessions are created
/// before the measurement. The content is in `folder`.
///
/// # Errors
/// Reports wrong bytes, or a run that cannot continue.
pub(crate) fn measure(
    streams: Streams,
    run: &StreamRun,
    folder: &Path,
) -> Result<StreamFigures, Failure> {
    let mut pair = build(streams, run, folder)?;
    pair.start();
    let read = |p: &StreamPair| p.server.app.bytes + p.client.app.bytes;
    let is_up = |p: &StreamPair| p.server.app.is_up() && p.client.app.is_up();
    let has_begun = |p: &StreamPair| p.server.app.has_begun() || p.client.app.has_begun();
    pair.run_until(|p| is_up(p) && has_begun(p) && read(p) >= run.warm_bytes)?;
    let (before, bytes) = (pair.server_usage(), read(&pair));
    pair.run_until(|p| read(p) >= bytes + run.measured_bytes)?;
    Ok(StreamFigures { bytes: read(&pair) - bytes, used: pair.server_usage().since(&before) })
}

type StreamPair = AccountedPair<StreamApp, StreamApp>;

/// Returns the two machines of a run.
fn build(streams: Streams, run: &StreamRun, folder: &Path) -> Result<StreamPair, Failure> {
    let Streams { side, by, source, suite, message_bytes, connections, contexts } = streams;
    let ContextMemory { contexts_max, context_bytes, cache_bytes } = contexts;
    // Faults are per packet, so segments cross the link one by one in both directions.
    let segmentation = !run.faults.is_active();
    let (near, far) = memory_link_pair(&MemoryLinkConfig {
        segmentation,
        mtu: run.mtu,
        ..testbed::link_config(TRANSMIT_RING)
    });
    let near = testbed::with_faults(near, run.faults.clone());
    let sends = side == StreamSide::Transmit;
    let suite = (by != TlsProcessing::NoTls).then_some((TlsVersion::Tls13, suite));
    let begin_together = run.begin_together;
    let agreed = StreamParams { connections, message_bytes, source, begin_together, suite };
    let l5o = (by == TlsProcessing::Device).then(|| L5oConfig {
        out_of_order: run.out_of_order,
        contexts_max,
        context_bytes,
        cache_bytes,
        ..L5oConfig::new(Arc::new(crypto::Provider))
    });
    let mut server = node(1);
    server.device.file = Some(testbed::file_config());
    server.device.l5o = l5o;
    server.device_disk = testbed::disk(folder, FAST_DISK)?;
    let server = server.start(near, |host| {
        for port in 80..=80 + stream::server_port_offset(connections - 1) {
            testbed::listen(host, port, 1 << 18)?;
        }
        Ok(StreamApp::new(agreed, None, sends))
    })?;
    let mut client = node(2);
    client.device.file = None;
    client.host.file_offload = testbed::offload(false);
    // The far end always sends from memory.
    let agreed = StreamParams { source: StreamSource::Memory, ..agreed };
    let app = StreamApp::new(agreed, Some(testbed::endpoint(1, 80)), !sends);
    let client = client.start(Box::new(far), |_| Ok(app))?;
    // Single packets arrive so fast that interrupts are moderated.
    let moderation = if segmentation { Duration::ZERO } else { Duration::from_micros(5) };
    Ok(AccountedPair::new(server, client, moderation))
}

fn node(number: u8) -> MachineConfig {
    let mut machine = MachineConfig::new(number);
    machine.device.transmit_bytes_max = LONG_TRANSMIT_BYTES;
    // All streams are opened at the same time.
    machine.host.connections_max = 1 << 18;
    machine
}
