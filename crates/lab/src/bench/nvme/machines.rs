//! The two machines of a run over NVMe/TCP, and how a run is measured.
//!
//! Called by `bench nvme` and `bench nvme-loss`. One machine is measured, and has what its [`Way`]
//! says; the other's device does everything.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use abi::Refusal;
use base::{Duration, Instant};
use bytes::Bytes;
use host::{Host, Listen};
use io::disk::{DiskKind, open_disk};
use io::fault::{FaultConfig, FaultWire};
use io::mem::{LinkConfig, link};
use io::wire::Wire;
use nic::{Device, DeviceConfig, FileConfig, L5oConfig};
use serde_json::{Value, json};
use wire::Endpoint;

use super::ends::{self, Agreed, FILE, NvmeEnd};
use crate::bench::accounted::{App, Node, World};
use crate::bench::disk::ModelledDisk;
use crate::bench::failed;
use crate::bench::io_tcp::{DEVICE_MEMORY_BYTES, FAST_DISK, TRANSMIT_RING, host_config};
use cli::Failure;
use nic::LONG_TRANSMIT_BYTES;

/// Which machine is measured, at what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The initiator, which reads.
    Initiator,
    /// The target, which is read.
    TargetReads,
    /// The target, which is written to.
    TargetWrites,
}

/// What the measured machine's device does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// What it is called.
    pub(crate) name: &'static str,
    /// There is TLS, done by the host (no) or by the device (yes).
    pub(crate) tls: Option<bool>,
    /// Data digests.
    pub(crate) crc: bool,
    /// Data to its buffers.
    pub(crate) copy: bool,
    /// The target has its data in a file, read by the host (no) or by the device (yes).
    pub(crate) file: Option<bool>,
}

/// One run's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) side: Side,
    pub(crate) way: Way,
    pub(crate) bytes: u32,
    pub(crate) depth: u16,
}

/// What a run has beside its setting.
pub(crate) struct Run<'a> {
    pub(crate) setting: Setting,
    pub(crate) connections: u32,
    /// What happens to the packets of the initiator's wire.
    pub(crate) faults: FaultConfig,
    /// Whether PDUs are followed in any order, or as the paper has it.
    pub(crate) out_of_order: bool,
    /// What happens within this time is seen together.
    pub(crate) moderation: Duration,
    pub(crate) warm: u64,
    /// Commands to measure.
    pub(crate) commands: u64,
    pub(crate) namespace: &'a Namespace<'a>,
}

/// What is read and written.
pub(crate) struct Namespace<'a> {
    folder: &'a Path,
    content: Bytes,
}

/// The result of a run, or of several of one setting.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) setting: Setting,
    commands: u64,
    /// Parts of the runs, one after the other.
    slices: Vec<Slice>,
    counters: BTreeMap<&'static str, u64>,
}

/// Cycles of a part of a run, per command.
#[derive(Clone, Copy, Debug)]
struct Slice {
    host: f64,
    /// Of these, digests.
    digests: f64,
    device: f64,
}

/// Parts of a run: of a machine with other work the thread is stopped now and then, which falls to
/// whatever part it happens in, so that a median of short ones is of those in which it did not.
const SLICES: u64 = 16;

impl<'a> Namespace<'a> {
    /// Makes one of so many bytes, in memory and in a file.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub(crate) fn new(folder: &'a Path, bytes: usize) -> Result<Self, Failure> {
        let content: Vec<u8> = (0..bytes)
            .map(|at| (at ^ (at >> 8) ^ (at >> 16) ^ (at >> 24)).to_le_bytes()[0])
            .collect();
        std::fs::create_dir_all(folder).map_err(failed("cannot make a temporary folder"))?;
        std::fs::write(folder.join(FILE), &content)
            .map_err(failed("cannot write a temporary file"))?;
        Ok(Self { folder, content: content.into() })
    }
}

impl Measured {
    /// A counter of the measured machine.
    pub(crate) fn moved(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or_default()
    }

    /// Adds another run of the same setting.
    pub(crate) fn add(&mut self, other: Self) {
        self.commands += other.commands;
        self.slices.extend(other.slices);
        for (name, value) in other.counters {
            *self.counters.entry(name).or_default() += value;
        }
    }

    fn median(&self, value: fn(&Slice) -> f64) -> f64 {
        let mut all: Vec<f64> = self.slices.iter().map(value).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or_default()
    }

    pub(crate) fn host_per_command(&self) -> f64 {
        self.median(|slice| slice.host)
    }

    pub(crate) fn host_per_byte(&self) -> f64 {
        self.host_per_command() / f64::from(self.setting.bytes)
    }

    /// Host cycles of data digests, per command.
    pub(crate) fn digests_per_command(&self) -> f64 {
        self.median(|slice| slice.digests)
    }

    pub(crate) fn device_per_byte(&self) -> f64 {
        self.median(|slice| slice.device) / f64::from(self.setting.bytes)
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "side": format!("{:?}", self.setting.side),
            "path": self.setting.way.name,
            "bytes": self.setting.bytes,
            "depth": self.setting.depth,
            "commands": self.commands,
            "host_cycles_per_request": self.host_per_command(),
            "host_cycles_per_byte": self.host_per_byte(),
            "digest_cycles_per_request": self.digests_per_command(),
            "device_cycles_per_byte": self.device_per_byte(),
            "counters": self.counters,
        })
    }
}

/// Runs it.
///
/// # Errors
/// Where bytes came out wrong, or nothing moved any more.
pub(crate) fn measure(run: &Run<'_>) -> Result<Measured, Failure> {
    let setting = run.setting;
    let mut world = build(run)?;
    world.start();
    let node = |w: &World| match setting.side {
        Side::Initiator => (w.client.cycles, w.nvme()[1].digests.cycles()),
        _ => (w.server.cycles, w.nvme()[0].digests.cycles()),
    };
    let counters = |w: &World| match setting.side {
        Side::Initiator => w.client.counters(),
        _ => w.server.counters(),
    };
    let done = |w: &World| w.nvme()[1].commands;
    let wrong = |w: &World| w.nvme().iter().any(|end| !end.errors.is_empty());
    let mut alive = world.run_until(|w| done(w) >= run.warm || wrong(w));
    let (before, from) = (counters(&world), done(&world));
    let mut slices = Vec::new();
    for part in 1..=SLICES {
        let (mark, (cycles, digests)) = (done(&world), node(&world));
        let until = from + run.commands * part / SLICES;
        alive = alive && world.run_until(|w| done(w) >= until || wrong(w));
        let ((after, digested), commands) = (node(&world), (done(&world) - mark) as f64);
        if commands > 0.0 {
            slices.push(Slice {
                host: (after.host - cycles.host) as f64 / commands,
                digests: (digested - digests) as f64 / commands,
                device: (after.device - cycles.device) as f64 / commands,
            });
        }
    }
    if !alive || wrong(&world) {
        let what = world.nvme().iter().find_map(|end| end.errors.first().cloned());
        return Err(Failure::System(format!(
            "the benchmark went wrong ({setting:?}): {}",
            what.unwrap_or_else(|| "nothing left to happen".to_owned())
        )));
    }
    let mut counters = counters(&world);
    counters.retain(|name, value| {
        *value = value.saturating_sub(before.get(name).copied().unwrap_or_default());
        *value > 0
    });
    Ok(Measured { setting, commands: done(&world) - from, slices, counters })
}

/// A silent fallback to software is the characteristic bug: the path that was asked for has to be
/// the one that ran. For runs without faults.
///
/// # Errors
/// Where it was not.
pub(crate) fn check_path(m: &Measured) -> Result<(), Failure> {
    let Setting { side, way, .. } = m.setting;
    let only = |wanted: bool, device: &str, host: &str| {
        (m.moved(device) > 0) == wanted && (m.moved(host) > 0) != wanted
    };
    let digests = match side {
        Side::TargetReads => only(way.crc, "nvme_tx_digests_device", "nvme_tx_digests_host"),
        _ => only(way.crc, "nvme_rx_digests_device", "nvme_rx_digests_host"),
    };
    let data = match side {
        Side::TargetReads => {
            let fallback = m.moved("file_fallback_bytes") > 0;
            fallback == (way.file == Some(false))
        }
        _ => only(way.copy, "nvme_rx_placed_bytes", "nvme_rx_copied_bytes"),
    };
    let right = digests && data;
    if right { Ok(()) } else { Err(Failure::System(format!("the wrong path was measured: {m:?}"))) }
}

/// 100 Gb/s, 25 us each way; runs of segments cross whole, as they do to a receiver that merges.
fn link_config(segmentation: bool) -> LinkConfig {
    LinkConfig {
        delay: Duration::from_micros(25),
        bytes_per_s: Some(12_500_000_000),
        queue_bytes_max: u64::MAX,
        frames_max: TRANSMIT_RING,
        segmentation,
        ..LinkConfig::default()
    }
}

/// The two machines of a run.
fn build(run: &Run<'_>) -> Result<World, Failure> {
    let Setting { side, way, bytes, depth } = run.setting;
    // Faults are per packet: then no run crosses whole, either way.
    let segmentation = !run.faults.is_active();
    let (near, far) = link(&link_config(segmentation));
    let near: Box<dyn Wire> = if run.faults.is_active() {
        Box::new(FaultWire::new(near, run.faults.clone()))
    } else {
        Box::new(near)
    };
    let agreed = Agreed {
        write: side == Side::TargetWrites,
        bytes,
        depth,
        connections: run.connections,
        tls: way.tls.is_some(),
        content: run.namespace.content.clone(),
    };
    let other =
        Way { name: "other", tls: way.tls.map(|_| true), crc: true, copy: true, file: None };
    let (asks, answers) = if side == Side::Initiator { (way, other) } else { (other, way) };
    let target = NvmeEnd::target(agreed.clone(), answers.file.is_some());
    let server = node(run, ("10.0.0.1", 1), target, Box::new(far), answers)?;
    let remote = Endpoint { addr: [10, 0, 0, 1].into(), port: ends::PORT };
    let client = node(run, ("10.0.0.2", 2), NvmeEnd::initiator(agreed, remote), near, asks)?;
    Ok(World { now: Instant::from_millis(1000), moderation: run.moderation, server, client })
}

fn node(
    run: &Run<'_>,
    (addr, number): (&str, u8),
    app: NvmeEnd,
    wire: Box<dyn Wire>,
    way: Way,
) -> Result<Node, Failure> {
    let mut config = DeviceConfig::new([2, 0, 0, 0, 0, number]);
    config.transmit_bytes_max = LONG_TRANSMIT_BYTES;
    let memory_bytes_max = DEVICE_MEMORY_BYTES;
    config.file = way.file.map(|_| FileConfig { memory_bytes_max, ..FileConfig::default() });
    let defaults = L5oConfig::new(Arc::new(crypto::Provider));
    config.l5o = Some(L5oConfig {
        out_of_order: run.out_of_order,
        ddp_buffers_max: if way.copy { defaults.ddp_buffers_max } else { 0 },
        ..defaults
    });
    let device = Device::new(config, wire.capabilities());
    let mut config = host_config(addr);
    let offered = |wanted: bool| if wanted { Ok(()) } else { Err(Refusal::Disabled) };
    config.file_offload = offered(way.file == Some(true));
    config.tls_offload = offered(way.tls == Some(true));
    config.nvme_tcp_offload = offered(way.crc || way.copy);
    let mut host = Host::new(config, &device.capabilities(), u64::from(number));
    if number == 1 {
        host.listen(Listen { addr: None, port: ends::PORT, backlog: 1024 })
            .map_err(|e| Failure::System(format!("cannot listen: {e}")))?;
    }
    let disk = |wanted: bool| -> Result<Option<ModelledDisk>, Failure> {
        let open = || open_disk(run.namespace.folder, DiskKind::Sync);
        let files = wanted.then(open).transpose();
        let files = files.map_err(|e| Failure::NoInput(e.to_string()))?;
        Ok(files.map(|files| ModelledDisk::new(files, FAST_DISK)))
    };
    let (device_disk, host_disk) = (disk(way.file == Some(true))?, disk(way.file.is_some())?);
    let app = App::Nvme(Box::new(app));
    let mut node = Node::new(host, device, app, wire, device_disk, host_disk);
    if way.copy && !way.crc {
        node.ignore_digests();
    }
    Ok(node)
}
