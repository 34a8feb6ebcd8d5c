//! `outboard-lab bench tls`: the autonomous offload of TLS against TLS by the host and plain TCP,
//! in accounted mode (Autonomous NIC Offloads, section 6.1).
//!
//! Streams of messages of 4 to 256 KiB over a memory link. What is measured is one end's host:
//! sending from memory, from memory that is copied first, from a file; and receiving. TLS by the
//! host is this stack's own record layer over aws-lc with whole records, with every instruction
//! that the CPU has. The other end speaks TLS by its host in every run.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use abi::Refusal;
use abi::crypto::Suite;
use base::Duration;
use clap::Args;
use host::{Host, Listen, TlsVersion};
use io::disk::{DiskKind, open_disk};
use io::fault::{FaultConfig, FaultWire};
use io::mem::{LinkConfig, link};
use io::wire::Wire;
use nic::{Device, DeviceConfig, FileConfig, L5oConfig};
use serde_json::{Value, json};
use wire::Endpoint;

use super::accounted::{App, Node, World};
use super::disk::ModelledDisk;
use super::failed;
use super::io_tcp::{DEVICE_MEMORY_BYTES, FAST_DISK, TRANSMIT_RING, host_config};
use super::stream::{self, Agreed, Source, Stream};
use cli::Failure;
use nic::LONG_TRANSMIT_BYTES;

/// Message sizes of the paper's figure 11 and beyond.
const SIZES: [usize; 4] = [4 << 10, 16 << 10, 64 << 10, 256 << 10];
/// Bytes that warm up, of those that are measured.
const WARM_SHARE: u64 = 10;
/// Runs of a configuration, of which the median counts.
const REPEATS: usize = 3;

/// `outboard-lab bench tls`.
#[derive(Debug, Args)]
pub(crate) struct TlsArgs {
    /// For machines
    #[arg(long)]
    json: bool,
    /// Only 256 KiB
    #[arg(long)]
    quick: bool,
    /// Paths to run, instead of all: `plain`, `host`, `device`, `device file`
    #[arg(long, value_delimiter = ',', value_name = "PATH")]
    paths: Option<Vec<String>>,
    /// Mebibytes that each run measures
    #[arg(long, default_value_t = 400, value_name = "N")]
    mebibytes: u64,
    /// Streams at one time
    #[arg(long, default_value_t = 16, value_name = "N")]
    connections: u32,
}

/// Which end is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Transmit,
    Receive,
}

/// Who does the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Nobody,
    Host,
    Device,
}

/// One run's configuration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub(super) side: Side,
    pub(super) by: By,
    pub(super) source: Source,
    pub(super) suite: Suite,
    pub(super) message_bytes: usize,
    pub(super) connections: u32,
}

impl Setting {
    const fn path(&self) -> &'static str {
        match (self.by, self.source) {
            (By::Nobody, Source::File) => "plain file",
            (By::Nobody, _) => "plain",
            (By::Host, _) => "host",
            (By::Device, Source::Copied) => "device copied",
            (By::Device, Source::Memory) => "device",
            (By::Device, Source::File) => "device file",
        }
    }
}

/// One run's result.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) setting: Setting,
    pub(super) bytes: u64,
    host_cycles: u64,
    device_cycles: u64,
    /// Virtual time.
    elapsed: Duration,
    counters: BTreeMap<&'static str, u64>,
}

impl Measured {
    /// A counter of the measured machine.
    pub(super) fn moved(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or_default()
    }

    /// Bytes per second of virtual time: what the modelled link carried.
    pub(super) fn link_rate(&self) -> f64 {
        self.bytes as f64 * 1e9 / self.elapsed.as_nanos() as f64
    }

    pub(super) fn host_per_byte(&self) -> f64 {
        self.host_cycles as f64 / self.bytes as f64
    }

    pub(super) fn device_per_byte(&self) -> f64 {
        self.device_cycles as f64 / self.bytes as f64
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "side": format!("{:?}", self.setting.side),
            "path": self.setting.path(),
            "suite": (self.setting.by != By::Nobody).then(|| format!("{:?}", self.setting.suite)),
            "message_bytes": self.setting.message_bytes,
            "host_cycles_per_byte": self.host_per_byte(),
            "device_cycles_per_byte": self.device_per_byte(),
            "counters": self.counters,
        })
    }
}

/// Runs the benchmark.
///
/// # Errors
/// Where bytes came out wrong, or another path was taken than the one to be measured.
pub(crate) fn run(args: &TlsArgs) -> Result<(), Failure> {
    super::in_temp_folder(|folder| run_in(args, folder))
}

fn run_in(args: &TlsArgs, folder: &Path) -> Result<(), Failure> {
    make_content(folder)?;
    let sizes: &[usize] = if args.quick { &SIZES[3..] } else { &SIZES };
    if !args.json {
        println!(
            "{:<9} {:<18} {:>8} {:<14} {:>9} {:>9}",
            "side", "suite", "message", "path", "host c/B", "dev c/B"
        );
    }
    let mut table = Vec::new();
    for &message_bytes in sizes {
        let wanted = |setting: &Setting| {
            args.paths.as_ref().is_none_or(|paths| paths.iter().any(|path| path == setting.path()))
        };
        for setting in settings(message_bytes, args.connections).into_iter().filter(wanted) {
            let measured = median(setting, args.mebibytes << 20, folder)?;
            show(args, &measured);
            table.push(measured);
        }
    }
    let headline = headline(&table);
    if args.json {
        let rows: Vec<Value> = table.iter().map(Measured::json).collect();
        println!("{:#}", json!({ "headline": headline, "rows": rows }));
    } else {
        println!("\nheadline: {headline:#}");
    }
    Ok(())
}

/// What is measured for one size of message.
fn settings(message_bytes: usize, connections: u32) -> Vec<Setting> {
    let (tx, rx) = (Side::Transmit, Side::Receive);
    let suites = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305];
    let make =
        |side, by, source, suite| Setting { side, by, source, suite, message_bytes, connections };
    let mut all = vec![
        make(tx, By::Nobody, Source::Memory, suites[0]),
        make(tx, By::Nobody, Source::File, suites[0]),
    ];
    for suite in suites {
        all.push(make(tx, By::Host, Source::Memory, suite));
        for source in [Source::Copied, Source::Memory, Source::File] {
            all.push(make(tx, By::Device, source, suite));
        }
    }
    all.push(make(rx, By::Nobody, Source::Memory, suites[0]));
    for suite in suites {
        all.push(make(rx, By::Host, Source::Memory, suite));
        all.push(make(rx, By::Device, Source::Memory, suite));
    }
    all
}

fn show(args: &TlsArgs, m: &Measured) {
    let Setting { side, suite, message_bytes, by, .. } = m.setting;
    if args.json {
        // Progress for whoever watches; the report itself is one object.
        eprintln!("{side:?}, {message_bytes} bytes, {}: done", m.setting.path());
        return;
    }
    let suite = if by == By::Nobody { "-".to_owned() } else { format!("{suite:?}") };
    println!(
        "{:<9} {:<18} {:>8} {:<14} {:>9.4} {:>9.4}",
        format!("{side:?}"),
        suite,
        message_bytes,
        m.setting.path(),
        m.host_per_byte(),
        m.device_per_byte()
    );
}

fn headline(table: &[Measured]) -> Value {
    let cost = |side, by, source, suite| {
        table
            .iter()
            .find(|m| {
                let s = m.setting;
                s.message_bytes == SIZES[3]
                    && (s.side, s.by, s.source) == (side, by, source)
                    && (by == By::Nobody || s.suite == suite)
            })
            .map(Measured::host_per_byte)
    };
    let ratio = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a / b);
    let (tx, rx) = (Side::Transmit, Side::Receive);
    let memory = |side, by, suite| cost(side, by, Source::Memory, suite);
    let gain = |side, suite| ratio(memory(side, By::Host, suite), memory(side, By::Device, suite));
    let file = |by| cost(tx, by, Source::File, Suite::Aes128Gcm);
    let over_plain = |side| {
        let suite = Suite::Aes128Gcm;
        ratio(memory(side, By::Device, suite), memory(side, By::Nobody, suite))
    };
    json!({
        "tx_ratio_256k": gain(tx, Suite::Aes128Gcm),
        "rx_ratio_256k": gain(rx, Suite::Aes128Gcm),
        "tx_ratio_256k_chacha": gain(tx, Suite::ChaCha20Poly1305),
        "rx_ratio_256k_chacha": gain(rx, Suite::ChaCha20Poly1305),
        "offload_zc_vs_plain_256k": over_plain(tx),
        "offload_file_vs_plain_file_256k": ratio(file(By::Device), file(By::Nobody)),
        "offload_rx_vs_plain_256k": over_plain(rx),
    })
}

fn median(setting: Setting, bytes: u64, folder: &Path) -> Result<Measured, Failure> {
    let mut runs = Vec::new();
    for _ in 0..REPEATS {
        runs.push(measure(setting, bytes, folder)?);
    }
    runs.sort_by(|a, b| a.host_per_byte().total_cmp(&b.host_per_byte()));
    Ok(runs.swap_remove(REPEATS / 2))
}

/// The file that is sent.
pub(super) fn make_content(folder: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(folder).map_err(failed("cannot make a temporary folder"))?;
    std::fs::write(folder.join("content"), stream::content())
        .map_err(failed("cannot write a temporary file"))
}

/// What a run measures beside its setting.
pub(super) struct Run {
    pub(super) setting: Setting,
    /// What happens to the packets of the measured machine's wire.
    pub(super) faults: FaultConfig,
    /// Whether messages are opened in any order, or as the paper has it.
    pub(super) out_of_order: bool,
    pub(super) warm_bytes: u64,
    pub(super) measured_bytes: u64,
}

fn measure(setting: Setting, measured_bytes: u64, folder: &Path) -> Result<Measured, Failure> {
    let warm_bytes = measured_bytes / WARM_SHARE;
    let faults = FaultConfig::default();
    let run = Run { setting, faults, out_of_order: true, warm_bytes, measured_bytes };
    let measured = measure_run(&run, folder)?;
    check_path(&measured)?;
    Ok(measured)
}

/// Runs it.
pub(super) fn measure_run(run: &Run, folder: &Path) -> Result<Measured, Failure> {
    let setting = run.setting;
    let mut world = build(run, folder)?;
    world.start();
    let read = |w: &World| w.streams().iter().map(|s| s.bytes).sum::<u64>();
    let wrong = |w: &World| w.streams().iter().any(|s| !s.errors.is_empty());
    let up = |w: &World| w.streams().iter().all(|s| s.is_up());
    let mut alive = world.run_until(|w| up(w) && read(w) >= run.warm_bytes || wrong(w));
    let (cycles, before, bytes) = (world.server.cycles, world.server_counters(), read(&world));
    let started = world.now;
    alive = alive && world.run_until(|w| read(w) >= bytes + run.measured_bytes || wrong(w));
    if !alive || wrong(&world) {
        let what = world.streams().iter().find_map(|s| s.errors.first().cloned());
        return Err(Failure::System(format!(
            "the benchmark went wrong ({setting:?}): {}",
            what.unwrap_or_else(|| "nothing left to happen".to_owned())
        )));
    }
    let mut counters = world.server_counters();
    counters.retain(|name, value| {
        *value = value.saturating_sub(before.get(name).copied().unwrap_or_default());
        *value > 0
    });
    Ok(Measured {
        setting,
        bytes: read(&world) - bytes,
        host_cycles: world.server.cycles.host - cycles.host,
        device_cycles: world.server.cycles.device - cycles.device,
        elapsed: world.now.since(started),
        counters,
    })
}

/// A silent fallback to software is the characteristic bug: the path that was asked for has to be
/// the one that ran.
fn check_path(m: &Measured) -> Result<(), Failure> {
    let moved = |name: &str| m.moved(name);
    let by_device = match m.setting.side {
        Side::Transmit => moved("tx_tls_encrypted_bytes"),
        Side::Receive => moved("tls_rx_records_full"),
    };
    let by_host = match m.setting.side {
        Side::Transmit => moved("file_fallback_bytes"),
        Side::Receive => moved("tls_rx_records") - by_device.min(moved("tls_rx_records")),
    };
    let right = match m.setting.by {
        By::Nobody => by_device == 0 && moved("tls_tx_records") + moved("tls_rx_records") == 0,
        By::Host => by_device == 0,
        By::Device => by_device > 0 && by_host == 0,
    };
    if right { Ok(()) } else { Err(Failure::System(format!("the wrong path was measured: {m:?}"))) }
}

/// 100 Gb/s, 25 us each way; runs of segments cross whole, as they do to a receiver that merges.
fn link_config() -> LinkConfig {
    LinkConfig {
        delay: Duration::from_micros(25),
        bytes_per_s: Some(12_500_000_000),
        queue_bytes_max: u64::MAX,
        frames_max: TRANSMIT_RING,
        ..LinkConfig::default()
    }
}

/// The two machines of a run.
fn build(run: &Run, folder: &Path) -> Result<World, Failure> {
    let setting = run.setting;
    // Faults are per packet: then no run crosses whole, either way.
    let segmentation = !run.faults.is_active();
    let (near, far) = link(&LinkConfig { segmentation, ..link_config() });
    let near: Box<dyn Wire> = if run.faults.is_active() {
        Box::new(FaultWire::new(near, run.faults.clone()))
    } else {
        Box::new(near)
    };
    let sends = setting.side == Side::Transmit;
    let suite = (setting.by != By::Nobody).then_some((TlsVersion::Tls13, setting.suite));
    let agreed = Agreed {
        connections: setting.connections,
        message_bytes: setting.message_bytes,
        source: setting.source,
        suite,
    };
    let l5o = (setting.by == By::Device).then(|| L5oConfig {
        out_of_order: run.out_of_order,
        contexts_max: 1 << 20,
        ..L5oConfig::new(Arc::new(crypto::Provider))
    });
    let server = node(("10.0.0.1", 1), Stream::new(agreed, None, sends), near, l5o, Some(folder))?;
    let remote = Endpoint { addr: [10, 0, 0, 1].into(), port: 80 };
    // The far end's memory is its own business.
    let agreed = Agreed { source: Source::Memory, ..agreed };
    let client = Stream::new(agreed, Some(remote), !sends);
    let client = node(("10.0.0.2", 2), client, Box::new(far), None, None)?;
    // Single packets come so fast that nobody looks at each alone.
    let moderation = if segmentation { Duration::ZERO } else { Duration::from_micros(5) };
    Ok(World { now: base::Instant::from_millis(1000), moderation, server, client })
}

fn node(
    (addr, number): (&str, u8),
    app: Stream,
    wire: Box<dyn Wire>,
    l5o: Option<L5oConfig>,
    folder: Option<&Path>,
) -> Result<Node, Failure> {
    let mut config = DeviceConfig::new([2, 0, 0, 0, 0, number]);
    config.transmit_bytes_max = LONG_TRANSMIT_BYTES;
    config.file = folder
        .map(|_| FileConfig { memory_bytes_max: DEVICE_MEMORY_BYTES, ..FileConfig::default() });
    config.l5o = l5o;
    let device = Device::new(config, wire.capabilities());
    let mut config = host_config(addr);
    if folder.is_none() {
        config.file_offload = Err(Refusal::Disabled);
    }
    // Many streams begin at one time.
    config.connections_max = 1 << 18;
    let mut host = Host::new(config, &device.capabilities(), u64::from(number));
    if number == 1 {
        for port in 80..=80 + stream::port_of(app.connections() - 1) {
            host.listen(Listen { addr: None, port, backlog: 1 << 18 })
                .map_err(|e| Failure::System(format!("cannot listen: {e}")))?;
        }
    }
    let disk = folder
        .map(|folder| open_disk(folder, DiskKind::Sync))
        .transpose()
        .map_err(|e| Failure::NoInput(e.to_string()))?
        .map(|files| ModelledDisk::new(files, FAST_DISK));
    Ok(Node::new(host, device, App::Stream(Box::new(app)), wire, disk, None))
}
