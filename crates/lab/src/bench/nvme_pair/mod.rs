//! Two machines that speak NVMe/TCP, a target and an initiator, and the measurement of a run, for
//! `bench nvme` and `bench nvme-loss`.
//!
//! One machine is measured, with the offloads of its [`NvmeOffloads`]; the other machine's device
//! does everything.

mod endpoints;

use std::path::Path;
use std::sync::Arc;

use base::Duration;
use bytes::Bytes;
use io::fault::FaultConfig;
use io::memory_link::{MemoryLinkConfig, memory_link_pair};
use nic::{L5oConfig, LONG_TRANSMIT_BYTES};

use super::cycle_accounting::{AccountedPair, CounterMap};
use super::experiment::{Fields, median};
use super::testbed::{self, FAST_DISK, MachineConfig, TRANSMIT_RING};
use cli::Failure;
use endpoints::{FILE, NvmeBenchApp, NvmeRunParams};

/// The measured machine and its commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NvmeSide {
    /// The initiator, which reads.
    Initiator,
    /// The initiator, which writes.
    InitiatorWrites,
    /// The target, which is read.
    TargetReads,
    /// The target, which is written to.
    TargetWrites,
}

impl NvmeSide {
    const fn is_initiator(self) -> bool {
        matches!(self, Self::Initiator | Self::InitiatorWrites)
    }
}

/// Work that the measured machine's device does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NvmeOffloads {
    /// Name in the report and on the command line.
    pub(crate) name: &'static str,
    /// TLS: `None` without, `Some(false)` by the host, `Some(true)` by the device.
    pub(crate) tls: Option<bool>,
    /// The device computes data digests.
    pub(crate) crc: bool,
    /// The device places data in its buffers.
    pub(crate) copy: bool,
    /// The target's data is in a file: `Some(false)` if the host reads it, `Some(true)` if the
    /// device does.
    pub(crate) file: Option<bool>,
}

/// Commands of a run: kind, method, size and queue depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Commands {
    pub(crate) side: NvmeSide,
    pub(crate) method: NvmeOffloads,
    pub(crate) bytes: u32,
    pub(crate) depth: u16,
}

/// Parameters of a run.
pub(crate) struct NvmeRun<'a> {
    pub(crate) commands: Commands,
    pub(crate) connections: u32,
    /// Faults of the packets on the initiator's link.
    pub(crate) faults: FaultConfig,
    /// The device follows PDUs out of order too; otherwise in order only, like the paper's.
    pub(crate) out_of_order: bool,
    /// Interrupt moderation: events within this time are handled together.
    pub(crate) moderation: Duration,
    /// Commands before the measurement.
    pub(crate) warm: u64,
    /// Commands to measure.
    pub(crate) measured: u64,
    pub(crate) namespace: &'a BenchNamespace<'a>,
}

/// The namespace that is read and written, in memory and in a file.
pub(crate) struct BenchNamespace<'a> {
    folder: &'a Path,
    content: Bytes,
}

/// Result of a run, or of several runs of one setting.
#[derive(Debug)]
pub(crate) struct NvmeFigures {
    commands: Commands,
    count: u64,
    /// Slices of the runs, in order.
    slices: Vec<RunSlice>,
    /// Counters of the measured machine.
    counters: CounterMap,
}

/// Cycles of a slice of a run, per command.
#[derive(Clone, Copy, Debug)]
struct RunSlice {
    host: f64,
    /// Cycles of digests, a part of `host`.
    digests: f64,
    device: f64,
}

/// Bytes that a device copies: to registered buffers, and records of ChaCha20-Poly1305.
pub(crate) const DEVICE_COPIES: [&str; 2] = ["rx_nvmeotcp_bytes", "rx_tls_copied_bytes"];
/// Bytes that a host copies: to buffers, and records before their decryption.
pub(crate) const HOST_COPIES: [&str; 2] = ["nvme_rx_copied_bytes", "tls_rx_copied_bytes"];

/// Slices of a run. Other load interrupts the thread now and then, and the interrupted slice is
/// charged for it; the median over short slices is one without an interruption.
const SLICES: u64 = 16;

impl<'a> BenchNamespace<'a> {
    /// Creates a namespace of this number of bytes, in memory and in a file.
    ///
    /// # Errors
    /// Reports a file that cannot be written.
    pub(crate) fn new(folder: &'a Path, bytes: usize) -> Result<Self, Failure> {
        let content: Vec<u8> = (0..bytes)
            .map(|at| (at ^ (at >> 8) ^ (at >> 16) ^ (at >> 24)).to_le_bytes()[0])
            .collect();
        testbed::write_file(folder, FILE, &content)?;
        Ok(Self { folder, content: content.into() })
    }
}

impl NvmeFigures {
    /// Returns how much a counter of the measured machine moved.
    pub(crate) fn moved(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or_default()
    }

    /// Combines the figures of several runs of one setting.
    pub(crate) fn of_all(mut runs: Vec<Self>) -> Self {
        let mut all = runs.swap_remove(0);
        for run in runs {
            all.count += run.count;
            all.slices.extend(run.slices);
            for (name, value) in run.counters {
                *all.counters.entry(name).or_default() += value;
            }
        }
        all
    }

    fn median(&self, value: fn(&RunSlice) -> f64) -> f64 {
        median(self.slices.iter().map(value))
    }

    pub(crate) fn host_per_command(&self) -> f64 {
        self.median(|slice| slice.host)
    }

    fn host_per_byte(&self) -> f64 {
        self.host_per_command() / f64::from(self.commands.bytes)
    }

    /// Returns host cycles of data digests per command.
    pub(crate) fn digests_per_command(&self) -> f64 {
        self.median(|slice| slice.digests)
    }

    /// Returns the share of data digests in the host's cycles.
    pub(crate) fn digest_share(&self) -> f64 {
        self.digests_per_command() / self.host_per_command()
    }

    fn device_per_byte(&self) -> f64 {
        self.median(|slice| slice.device) / f64::from(self.commands.bytes)
    }

    /// Returns how often a half of the machine copied a byte of the commands' data.
    fn copies(&self, names: [&str; 2]) -> f64 {
        let copied: u64 = names.iter().map(|name| self.moved(name)).sum();
        copied as f64 / (self.count * u64::from(self.commands.bytes)) as f64
    }

    /// Returns the fields that all rows have.
    pub(crate) fn fields(&self) -> Fields {
        let commands = &self.commands;
        Fields::new()
            .show("side", "side", format!("{:?}", commands.side))
            .show("bytes", "bytes", commands.bytes)
            .show("depth", "depth", commands.depth)
            .show("path", "path", commands.method.name)
            .field("commands", self.count)
            .show("host c/req", "host_cycles_per_request", self.host_per_command())
            .show("host c/B", "host_cycles_per_byte", self.host_per_byte())
            .show("digest c/req", "digest_cycles_per_request", self.digests_per_command())
            .field("digest_share", self.digest_share())
            .show("dev c/B", "device_cycles_per_byte", self.device_per_byte())
            .show("host copies", "host_copies_per_byte", self.copies(HOST_COPIES))
            .show("dev copies", "device_copies_per_byte", self.copies(DEVICE_COPIES))
            .counters(&self.counters)
    }
}

/// Executes a run.
///
/// # Errors
/// Reports wrong bytes, or a run that cannot continue.
pub(crate) fn measure(run: &NvmeRun<'_>) -> Result<NvmeFigures, Failure> {
    let mut pair = build(run)?;
    pair.start();
    let initiator = run.commands.side.is_initiator();
    let usage = |p: &NvmePair| if initiator { p.client_usage() } else { p.server_usage() };
    let cycles = |p: &NvmePair| match initiator {
        true => (p.client.cycles, p.client.app.digests.cycles()),
        false => (p.server.cycles, p.server.app.digests.cycles()),
    };
    let done = |p: &NvmePair| p.client.app.commands;
    pair.run_until(|p| done(p) >= run.warm)?;
    let (before, from) = (usage(&pair), done(&pair));
    let mut slices = Vec::new();
    for part in 1..=SLICES {
        let (mark, (before, digests)) = (done(&pair), cycles(&pair));
        let until = from + run.measured * part / SLICES;
        pair.run_until(|p| done(p) >= until)?;
        let ((after, digested), commands) = (cycles(&pair), (done(&pair) - mark) as f64);
        if commands > 0.0 {
            slices.push(RunSlice {
                host: (after.host - before.host) as f64 / commands,
                digests: (digested - digests) as f64 / commands,
                device: (after.device - before.device) as f64 / commands,
            });
        }
    }
    Ok(NvmeFigures {
        commands: run.commands,
        count: done(&pair) - from,
        slices,
        counters: usage(&pair).since(&before).counters,
    })
}

/// Returns whether a run without faults took the path of its method.
pub(crate) fn took_path(commands: Commands, figures: &NvmeFigures) -> bool {
    let Commands { side, method, .. } = commands;
    let moved = |name: &str| figures.moved(name) > 0;
    let only =
        |wanted: bool, device: &str, host: &str| moved(device) == wanted && moved(host) != wanted;
    match side {
        NvmeSide::InitiatorWrites => {
            only(method.crc, "nvme_tx_digests_device", "nvme_tx_digests_host")
        }
        NvmeSide::TargetReads => {
            only(method.crc, "nvme_tx_digests_device", "nvme_tx_digests_host")
                && moved("file_fallback_bytes") == (method.file == Some(false))
        }
        NvmeSide::Initiator | NvmeSide::TargetWrites => {
            only(method.crc, "nvme_rx_digests_device", "nvme_rx_digests_host")
                && only(method.copy, "nvme_rx_placed_bytes", "nvme_rx_copied_bytes")
        }
    }
}

/// A target and an initiator.
type NvmePair = AccountedPair<NvmeBenchApp, NvmeBenchApp>;

/// Returns the two machines of a run.
fn build(run: &NvmeRun<'_>) -> Result<NvmePair, Failure> {
    let Commands { side, method, bytes, depth } = run.commands;
    // Faults are per packet, so segments cross the link one by one in both directions.
    let segmentation = !run.faults.is_active();
    let (near, far) =
        memory_link_pair(&MemoryLinkConfig { segmentation, ..testbed::link_config(TRANSMIT_RING) });
    let near = testbed::with_faults(near, run.faults.clone());
    let agreed = NvmeRunParams {
        write: matches!(side, NvmeSide::TargetWrites | NvmeSide::InitiatorWrites),
        bytes,
        depth,
        connections: run.connections,
        tls: method.tls.is_some(),
        content: run.namespace.content.clone(),
    };
    let other = NvmeOffloads {
        name: "other",
        tls: method.tls.map(|_| true),
        crc: true,
        copy: true,
        file: None,
    };
    let (asks, answers) = if side.is_initiator() { (method, other) } else { (other, method) };
    let server = machine(run, 1, answers)?.start(Box::new(far), |host| {
        testbed::listen(host, endpoints::PORT, 1024)?;
        Ok(NvmeBenchApp::target(agreed.clone(), answers.file.is_some()))
    })?;
    let app = NvmeBenchApp::initiator(agreed, testbed::endpoint(1, endpoints::PORT));
    let client = machine(run, 2, asks)?.start(near, |_| Ok(app))?;
    let mut pair = AccountedPair::new(server, client, run.moderation);
    if asks.copy && !asks.crc {
        pair.client.ignore_digests();
    }
    if answers.copy && !answers.crc {
        pair.server.ignore_digests();
    }
    Ok(pair)
}

fn machine(run: &NvmeRun<'_>, number: u8, method: NvmeOffloads) -> Result<MachineConfig, Failure> {
    let mut machine = MachineConfig::new(number);
    machine.device.transmit_bytes_max = LONG_TRANSMIT_BYTES;
    machine.device.file = method.file.map(|_| testbed::file_config());
    let defaults = L5oConfig::new(Arc::new(crypto::Provider));
    machine.device.l5o = Some(L5oConfig {
        out_of_order: run.out_of_order,
        ddp_buffers_max: if method.copy { defaults.ddp_buffers_max } else { 0 },
        ..defaults
    });
    machine.host.file_offload = testbed::offload(method.file == Some(true));
    machine.host.tls_offload = testbed::offload(method.tls == Some(true));
    machine.host.nvme_tcp_offload = testbed::offload(method.crc || method.copy);
    if method.file.is_some() {
        machine.host_disk = testbed::disk(run.namespace.folder, FAST_DISK)?;
    }
    if method.file == Some(true) {
        machine.device_disk = testbed::disk(run.namespace.folder, FAST_DISK)?;
    }
    Ok(machine)
}
