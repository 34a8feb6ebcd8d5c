//! `outboard-lab bench io-tcp`: IO-TCP's evaluation, in accounted mode.
//!
//! Files of 10 KB to 1 MB to 64 to 4,000 connections, each asking for one after the other: host
//! cycles per byte and per request where the device reads and sends the files, against the same
//! stack where the host reads them (same TCP, checksums and segmentation by the device in both).
//! Then what the echo and the correction of timestamps are worth on a slow disk (IO-TCP sections
//! 3.5 and 5.3).

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use abi::Refusal;
use apps::content::{self, ContentServer};
use base::Duration;
use clap::Args;
use host::{Cidr, Host, Listen};
use io::disk::{DiskKind, open_disk};
use io::mem::{LinkConfig, link};
use io::wire::Wire as _;
use nic::{Device, DeviceConfig, FileConfig};
use serde_json::{Value, json};
use wire::Endpoint;

use super::accounted::{App, Node, World};
use super::client::{Client, Files};
use super::disk::{DiskModel, ModelledDisk};
use super::failed;
use cli::Failure;
use nic::LONG_TRANSMIT_BYTES;

/// IO-TCP's sizes, and 10 KB of its figure 11b.
const SIZES: [u64; 5] = [10_000, 100_000, 300_000, 500_000, 1_000_000];
/// Numbers of connections.
const CONNECTIONS: [u32; 4] = [64, 256, 1_000, 4_000];
/// A host core of IO-TCP's testbed, in cycles per second.
const HOST_CORE_HZ: f64 = 2.2e9;
/// Runs of a configuration, of which the one with the median host cycles counts.
const REPEATS: usize = 3;
/// Bytes of all files together: more than the device's memory, so that it reads.
const WORKING_SET_BYTES: u64 = 192 << 20;
/// The device's memory for files.
pub(super) const DEVICE_MEMORY_BYTES: usize = 96 << 20;
/// Frames that a NIC's ring holds.
pub(super) const TRANSMIT_RING: usize = 512;
/// Body bytes to measure over, at most.
const MEASURED_BYTES_MAX: u64 = 1_500_000_000;

/// `outboard-lab bench io-tcp`.
#[derive(Debug, Args)]
pub(crate) struct IoTcpArgs {
    /// For machines
    #[arg(long)]
    json: bool,
    /// One run of 300 KB with 64 and 1,000 connections: a minute's look
    #[arg(long)]
    quick: bool,
    /// File sizes to run, in bytes, instead of all
    #[arg(long, value_delimiter = ',', value_name = "BYTES")]
    sizes: Option<Vec<u64>>,
    /// Numbers of connections to run, instead of all
    #[arg(long, value_delimiter = ',', value_name = "N")]
    connections: Option<Vec<u32>>,
}

/// One run's configuration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    size: u64,
    connections: u32,
    offload: bool,
    echo: bool,
    correct_timestamps: bool,
    disk: DiskModel,
}

/// One run's result.
#[derive(Clone, Debug)]
struct Measured {
    setting: Setting,
    requests: u64,
    bytes: u64,
    host_cycles: u64,
    device_cycles: u64,
    disk_reads: u64,
    retransmissions: u64,
    timeouts: u64,
    fallback_bytes: u64,
    mean_srtt: Duration,
    jain: f64,
    /// Virtual time.
    elapsed: Duration,
    /// Every counter of the server that moved.
    counters: BTreeMap<&'static str, u64>,
}

impl Measured {
    fn host_per_byte(&self) -> f64 {
        self.host_cycles as f64 / self.bytes as f64
    }

    fn device_per_byte(&self) -> f64 {
        self.device_cycles as f64 / self.bytes as f64
    }

    /// Body bytes per second of virtual time: what the modelled link carried.
    fn link_rate(&self) -> f64 {
        self.bytes as f64 * 1e9 / self.elapsed.as_nanos() as f64
    }

    /// Body bytes per second of a server with one host core of IO-TCP's testbed, on this link.
    fn one_core_rate(&self) -> f64 {
        self.link_rate().min(HOST_CORE_HZ / self.host_per_byte())
    }

    fn host_per_request(&self) -> f64 {
        self.host_cycles as f64 / self.requests as f64
    }

    fn json(&self) -> Value {
        json!({
            "file_bytes": self.setting.size,
            "connections": self.setting.connections,
            "path": if self.setting.offload { "device" } else { "host-read" },
            "requests": self.requests,
            "host_cycles_per_byte": self.host_per_byte(),
            "host_cycles_per_request": self.host_per_request(),
            "device_cycles_per_byte": self.device_per_byte(),
            "disk_reads": self.disk_reads,
            "retransmissions": self.retransmissions,
            "timeouts": self.timeouts,
            "mean_srtt_us": self.mean_srtt.as_micros(),
            "jain": self.jain,
            "link_gbit_per_s": self.link_rate() * 8e-9,
            "counters": self.counters,
        })
    }
}

/// Runs the benchmark.
///
/// # Errors
/// Where files cannot be made, or bytes came out wrong.
pub(crate) fn run(args: &IoTcpArgs) -> Result<(), Failure> {
    super::in_temp_folder(|folder| run_in(args, folder))
}

fn run_in(args: &IoTcpArgs, folder: &Path) -> Result<(), Failure> {
    let all: (&[u64], &[u32]) =
        if args.quick { (&[300_000], &[64, 1_000]) } else { (&SIZES, &CONNECTIONS) };
    let sizes = args.sizes.as_deref().unwrap_or(all.0);
    let connections = args.connections.as_deref().unwrap_or(all.1);
    let part = args.quick || args.sizes.is_some() || args.connections.is_some();
    let mut table = Vec::new();
    if !args.json {
        println!(
            "{:>9} {:>6} {:>9}  {:>9} {:>10} {:>9}  {:>6} {:>7} {:>6} {:>8} {:>6}",
            "file",
            "conns",
            "path",
            "host c/B",
            "host c/req",
            "dev c/B",
            "Gb/s",
            "reads",
            "rexmit",
            "timeouts",
            "Jain"
        );
    }
    for &size in sizes {
        let files = make_files(folder, size, WORKING_SET_BYTES)?;
        for &connections in connections {
            for offload in [true, false] {
                let setting = Setting {
                    size,
                    connections,
                    offload,
                    echo: true,
                    correct_timestamps: true,
                    disk: FAST_DISK,
                };
                let measured = median(setting, &files, folder)?;
                show(args, &measured);
                table.push(measured);
            }
        }
    }
    let corrections = if part { Vec::new() } else { corrections(args, folder)? };
    let headline = headline(&table);
    if args.json {
        let rows: Vec<Value> = table.iter().map(Measured::json).collect();
        let report = json!({ "headline": headline, "rows": rows, "corrections": corrections });
        println!("{report:#}");
    } else {
        println!("\nheadline: {headline:#}");
    }
    Ok(())
}

/// A disk that is never what is waited for.
pub(super) const FAST_DISK: DiskModel =
    DiskModel { latency: Duration::from_micros(20), bytes_per_s: 20_000_000_000 };
/// A disk whose queue is longer than a retransmission time-out at a thousand connections.
const SLOW_DISK: DiskModel =
    DiskModel { latency: Duration::from_micros(80), bytes_per_s: 250_000_000 };

fn show(args: &IoTcpArgs, m: &Measured) {
    if args.json {
        // Progress for whoever watches; the report itself is one object.
        eprintln!("{} bytes, {} connections: done", m.setting.size, m.setting.connections);
        return;
    }
    println!(
        "{:>9} {:>6} {:>9}  {:>9.4} {:>10.0} {:>9.4}  {:>6.1} {:>7} {:>6} {:>8} {:>6.3}",
        m.setting.size,
        m.setting.connections,
        if m.setting.offload { "device" } else { "host-read" },
        m.host_per_byte(),
        m.host_per_request(),
        m.device_per_byte(),
        m.link_rate() * 8e-9,
        m.disk_reads,
        m.retransmissions,
        m.timeouts,
        m.jain
    );
    let _ = std::io::stdout().flush();
}

fn headline(table: &[Measured]) -> Value {
    let find = |offload: bool, connections: u32| {
        table.iter().find(|m| {
            m.setting.size == 300_000
                && m.setting.offload == offload
                && m.setting.connections == connections
        })
    };
    let per_byte = |offload, connections| find(offload, connections).map(Measured::host_per_byte);
    let ratio = per_byte(true, 1_000).zip(per_byte(false, 1_000)).map(|(a, b)| a / b);
    // IO-TCP's figure 9: of what a server with one host core delivers.
    let rate = |connections| find(true, connections).map(Measured::one_core_rate);
    let loss = rate(1_000).zip(rate(4_000)).map(|(at, more)| 1.0 - more / at);
    let growth = per_byte(true, 4_000).zip(per_byte(true, 1_000)).map(|(more, at)| more / at);
    json!({
        "host_cycles_per_byte_300k": per_byte(true, 1_000),
        "ratio_vs_host_read_300k": ratio,
        "loss_at_4000_connections": loss,
        "host_cycles_at_4000_over_1000_connections": growth,
    })
}

/// What echo and timestamp correction are worth: retransmissions, time-outs and the recorded round
/// trip.
fn corrections(args: &IoTcpArgs, folder: &Path) -> Result<Vec<Value>, Failure> {
    let size = 300_000;
    let files = make_files(folder, size, WORKING_SET_BYTES)?;
    let mut rows = Vec::new();
    if !args.json {
        println!("\non a slow disk, 300 KB, 1,000 connections:");
    }
    for (echo, correct_timestamps) in [(true, true), (true, false), (false, true), (false, false)] {
        let setting = Setting {
            size,
            connections: 1_000,
            offload: true,
            echo,
            correct_timestamps,
            disk: SLOW_DISK,
        };
        let m = measure(setting, &files, folder)?;
        if !args.json {
            println!(
                "echo {:<5} timestamps corrected {:<5}: {:>7} retransmissions {:>6} time-outs, \
                 mean srtt {}",
                echo, correct_timestamps, m.retransmissions, m.timeouts, m.mean_srtt
            );
        }
        let mut row = m.json();
        row["echo"] = echo.into();
        row["correct_timestamps"] = correct_timestamps.into();
        rows.push(row);
    }
    Ok(rows)
}

fn median(setting: Setting, files: &Files, folder: &Path) -> Result<Measured, Failure> {
    let mut runs = Vec::new();
    for _ in 0..REPEATS {
        runs.push(measure(setting, files, folder)?);
    }
    runs.sort_by(|a, b| a.host_per_byte().total_cmp(&b.host_per_byte()));
    Ok(runs.swap_remove(REPEATS / 2))
}

/// Byte at a position of a file: cheap to compute, different for every file, no page like another.
fn byte_of(file: u32, position: u64) -> u8 {
    #[expect(clippy::cast_possible_truncation, reason = "a byte is wanted")]
    let byte = (position ^ (position >> 8) ^ (position >> 16) ^ (u64::from(file) * 37)) as u8;
    byte
}

pub(super) fn make_files(folder: &Path, size: u64, set_bytes: u64) -> Result<Files, Failure> {
    let count = u32::try_from((set_bytes / size).clamp(16, 4096)).unwrap_or(16);
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder).map_err(failed("cannot make a temporary folder"))?;
    for file in 0..count {
        let bytes: Vec<u8> = (0..size).map(|at| byte_of(file, at)).collect();
        std::fs::write(folder.join(file.to_string()), bytes)
            .map_err(failed("cannot write a temporary file"))?;
    }
    Ok(Files { count, size, byte: byte_of })
}

fn measure(setting: Setting, files: &Files, folder: &Path) -> Result<Measured, Failure> {
    let mut world = build(setting, files, folder)?;
    world.start();
    let warm = u64::from(setting.connections) * 2;
    let wanted = (MEASURED_BYTES_MAX / setting.size).clamp(warm, 20_000);
    let alive = world.run_until(|w| w.load_ref().is_warm() || failed_load(w));
    world.load().restart_shares();
    let started = world.now;
    let (cycles, before) = (world.server.cycles, world.server_counters());
    let (responses, bytes) = (world.load_ref().responses, world.load_ref().body_bytes);
    let target = responses + wanted;
    let alive = alive && world.run_until(|w| w.load_ref().responses >= target || failed_load(w));
    if !alive || failed_load(&world) {
        let what = world.load_ref().errors.first().cloned();
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
    let moved = |name: &str| counters.get(name).copied().unwrap_or_default();
    let shares = world.load_ref().shares();
    let srtts: Vec<Duration> = world
        .server
        .host
        .host
        .sockets()
        .filter_map(|s| world.server.host.host.info(s))
        .map(|info| info.srtt)
        .collect();
    let total: u64 = srtts.iter().map(|s| s.as_nanos()).sum();
    let measured = Measured {
        setting,
        requests: world.load_ref().responses - responses,
        bytes: world.load_ref().body_bytes - bytes,
        host_cycles: world.server.cycles.host - cycles.host,
        device_cycles: world.server.cycles.device - cycles.device,
        disk_reads: moved("file_disk_reads"),
        retransmissions: moved("tcp_retrans"),
        timeouts: moved("tcp_timeouts"),
        fallback_bytes: moved("file_fallback_bytes"),
        mean_srtt: Duration::from_nanos(total / srtts.len().max(1) as u64),
        jain: jain(&shares),
        elapsed: world.now.since(started),
        counters,
    };
    check_path(&measured)?;
    Ok(measured)
}

fn failed_load(world: &World) -> bool {
    !world.load_ref().errors.is_empty()
}

/// A silent fallback to software is the characteristic bug: the path that was asked for has to be
/// the one that ran.
fn check_path(m: &Measured) -> Result<(), Failure> {
    let by_host = m.fallback_bytes > 0;
    if by_host == m.setting.offload {
        return Err(Failure::System(format!("the wrong path was measured: {m:?}")));
    }
    Ok(())
}

/// Jain's index of fairness over what each connection received.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|x| x * x).sum();
    sum * sum / (shares.len() as f64 * squares)
}

/// A setting for connections that are mostly idle.
pub(super) const fn idle_setting(connections: u32) -> Setting {
    Setting {
        size: 10_000,
        connections,
        offload: true,
        echo: true,
        correct_timestamps: true,
        disk: FAST_DISK,
    }
}

/// The two machines of a run.
pub(super) fn build(setting: Setting, files: &Files, folder: &Path) -> Result<World, Failure> {
    // 100 Gb/s, 25 us each way; the run of segments crosses whole, as it does to a receiver that
    // merges. As at a real NIC, what is too much for the rate waits for a place in the transmit
    // ring: nothing is lost.
    let link_config = LinkConfig {
        delay: Duration::from_micros(25),
        bytes_per_s: Some(12_500_000_000),
        queue_bytes_max: u64::MAX,
        frames_max: TRANSMIT_RING,
        ..LinkConfig::default()
    };
    let (server_wire, client_wire) = link(&link_config);
    let disk = |wanted: bool| -> Result<Option<ModelledDisk>, Failure> {
        let open = || open_disk(folder, DiskKind::Sync);
        let model = |files| ModelledDisk::new(files, setting.disk);
        wanted
            .then(open)
            .transpose()
            .map(|d| d.map(model))
            .map_err(|e| Failure::NoInput(e.to_string()))
    };
    let mut device_config = DeviceConfig::new([2, 0, 0, 0, 0, 1]);
    // As `serve` has it; the wire's frames stay below 64 KiB, and so do the runs that the client
    // acknowledges.
    device_config.transmit_bytes_max = LONG_TRANSMIT_BYTES;
    device_config.correct_timestamps = setting.correct_timestamps;
    device_config.file = setting
        .offload
        .then(|| FileConfig { memory_bytes_max: DEVICE_MEMORY_BYTES, ..FileConfig::default() });
    let device = Device::new(device_config, server_wire.capabilities());
    let mut config = host_config("10.0.0.1");
    config.file_offload = if setting.offload { Ok(()) } else { Err(Refusal::Disabled) };
    config.tcp.echo = setting.echo;
    let mut host = Host::new(config, &device.capabilities(), 1);
    let content = content::Config {
        listen: vec![Listen { addr: None, port: 80, backlog: 8192 }],
        // Every open file stays open: what is measured is sending.
        files_max: 8192,
        file_validity: Duration::from_secs(3600),
        requests_per_connection_max: u32::MAX,
        ..content::Config::default()
    };
    let app = ContentServer::new(content, &mut host)
        .map_err(|e| Failure::System(format!("cannot listen: {e}")))?;
    let app = App::Server(Box::new(app));
    let server = Node::new(
        host,
        device,
        app,
        Box::new(server_wire),
        disk(setting.offload)?,
        disk(!setting.offload)?,
    );
    let client = client_node(client_wire, files, setting.connections);
    let moderation = Duration::ZERO;
    Ok(World { now: base::Instant::from_millis(1000), moderation, server, client })
}

/// The machine that asks.
fn client_node(wire: io::mem::MemWire, files: &Files, connections: u32) -> Node {
    let mut config = DeviceConfig::new([2, 0, 0, 0, 0, 2]);
    config.file = None;
    let device = Device::new(config, wire.capabilities());
    let host = Host::new(host_config("10.0.0.2"), &device.capabilities(), 2);
    let server = Endpoint { addr: [10, 0, 0, 1].into(), port: 80 };
    let client = Client::new(server, files.clone(), connections);
    Node::new(host, device, App::Client(Box::new(client)), Box::new(wire), None, None)
}

pub(super) fn host_config(addr: &str) -> host::Config {
    host::Config {
        addrs: addr.parse().map(|addr| Cidr { addr, prefix_len: 24 }).into_iter().collect(),
        ..host::Config::default()
    }
}
