//! `outboard-lab bench quic`: what QUIC costs a host, with and without the device (NiQUIC section
//! 2.2; IO-TCP appendix A), in accounted mode.
//!
//! Downloads of 50 MB and of 10 KB on 1 to 64 connections. Server and client are the same program,
//! quinn-proto over our stack, and are measured both: a server seals and sends files, a client
//! opens, puts in order and acknowledges. Four paths, each with what the one before has: all in
//! software; packets protected by the device; put in order by it; files read by it. Then, for the
//! path in software, what the cycles are spent for, as NiQUIC's figure 2 has it; and from how many
//! bytes on a connection is worth an offload ([`threshold`]).

mod ends;
mod machines;
mod threshold;
pub(super) mod timed;

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path as FsPath;
use std::sync::Arc;

use abi::quic::Reorder;
use base::{Duration, Instant};
use clap::Args;
use host::Application as _;
use io::mem::{LinkConfig, MemWire, link};
use quic::Endpoint;
use serde_json::{Value, json};

use super::accounted::{App, World};
use super::client::Files;
use super::io_tcp::make_files;
use cli::Failure;
pub(crate) use ends::{Answer, QuicEnd, Spent};
pub(crate) use machines::{Bare, Spec, Tls, machine, tls};
use timed::Meter;

/// Bytes of an object: NiQUIC's transfer, and many small ones.
const SIZES: [u64; 2] = [50_000_000, 10_000];
/// Connections.
const CONNECTIONS: [u32; 4] = [1, 4, 16, 64];
/// Runs of a configuration, of which the one with the median host cycles counts.
const REPEATS: usize = 3;
/// Object bytes to measure over.
const MEASURED_BYTES: u64 = 200_000_000;
/// Bytes that all files have together, at least.
const SET_BYTES: u64 = 1_000_000;

/// Bytes of a datagram that the link carries, at most.
const DATAGRAM_BYTES_MAX: u64 = 1472;

/// `outboard-lab bench quic`.
#[derive(Debug, Args)]
pub(crate) struct QuicArgs {
    /// For machines
    #[arg(long)]
    json: bool,
    /// One run each of 50 MB on 1 and 16 connections
    #[arg(long)]
    quick: bool,
    /// Object sizes to run, in bytes, instead of all
    #[arg(long, value_delimiter = ',', value_name = "BYTES")]
    sizes: Option<Vec<u64>>,
    /// Numbers of connections to run, instead of all
    #[arg(long, value_delimiter = ',', value_name = "N")]
    connections: Option<Vec<u32>>,
    /// Measure one path alone, as for a profile; there are no ratios then
    #[arg(long, value_enum, value_name = "PATH", conflicts_with = "json")]
    path: Option<Path>,
}

/// What the device does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
enum Path {
    Software,
    Protect,
    Reorder,
    File,
}

const PATHS: [Path; 4] = [Path::Software, Path::Protect, Path::Reorder, Path::File];

impl Path {
    const fn name(self) -> &'static str {
        match self {
            Self::Software => "software",
            Self::Protect => "protection",
            Self::Reorder => "and order",
            Self::File => "and files",
        }
    }
}

/// One run's configuration.
#[derive(Clone, Copy, Debug)]
struct Setting {
    path: Path,
    connections: u32,
    object_bytes: u64,
    /// Whether cycles are told apart by what they are spent for.
    breakdown: bool,
    /// Whether each object has a connection of its own, which the device has from its first byte
    /// on.
    once: bool,
}

impl Setting {
    /// Connections that stay, measured as a whole.
    const fn new(path: Path, connections: u32, object_bytes: u64) -> Self {
        Self { path, connections, object_bytes, breakdown: false, once: false }
    }

    /// Object bytes to measure over.
    fn measured_bytes(&self) -> u64 {
        if self.once { self.object_bytes * threshold::CONNECTIONS } else { MEASURED_BYTES }
    }
}

/// What one end of a run used.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    host_cycles: u64,
    device_cycles: u64,
    spent: Spent,
}

/// One run's result.
#[derive(Clone, Debug)]
struct Measured {
    setting: Setting,
    bytes: u64,
    objects: u64,
    /// Datagrams with content.
    packets: u64,
    server: Used,
    client: Used,
    /// Virtual time.
    elapsed: Duration,
    lost: u64,
}

impl Measured {
    fn per_byte(&self, cycles: u64) -> f64 {
        cycles as f64 / self.bytes as f64
    }

    fn json(&self) -> Value {
        let end = |used: &Used| {
            json!({
                "host_cycles_per_byte": self.per_byte(used.host_cycles),
                "host_cycles_per_packet": used.host_cycles as f64 / self.packets as f64,
                "host_cycles_per_object": used.host_cycles as f64 / self.objects.max(1) as f64,
                "device_cycles_per_byte": self.per_byte(used.device_cycles),
            })
        };
        json!({
            "path": self.setting.path.name(),
            "connections": self.setting.connections,
            "object_bytes": self.setting.object_bytes,
            "objects": self.objects,
            "packets": self.packets,
            "lost_packets": self.lost,
            "link_gbit_per_s": self.bytes as f64 * 8.0 / self.elapsed.as_nanos() as f64,
            "server": end(&self.server),
            "client": end(&self.client),
        })
    }

    /// Shares of the host's cycles: crypto, packet I/O, formatting, acknowledgments and order.
    fn shares(used: &Used) -> Value {
        let Spent { receiving, formatting, crypto } = used.spent;
        let io = used.host_cycles.saturating_sub(receiving + formatting + crypto);
        let share = |cycles: u64| cycles as f64 / used.host_cycles as f64;
        json!({
            "crypto": share(crypto),
            "packet_io": share(io),
            "formatting": share(formatting),
            "acknowledgment_and_order": share(receiving),
        })
    }
}

/// Runs the benchmark.
///
/// # Errors
/// Where bytes came out wrong, or the path that was measured is not the one that was asked for.
pub(crate) fn run(args: &QuicArgs) -> Result<(), Failure> {
    super::in_temp_folder(|folder| run_in(args, folder))
}

fn run_in(args: &QuicArgs, folder: &FsPath) -> Result<(), Failure> {
    let quick = |all: &[u64], few: usize| all[..if args.quick { few } else { all.len() }].to_vec();
    let sizes = args.sizes.clone().unwrap_or_else(|| quick(&SIZES, 1));
    let counts = args.connections.clone().unwrap_or_else(|| match args.quick {
        true => vec![1, 16],
        false => CONNECTIONS.to_vec(),
    });
    if sizes.contains(&0) || counts.contains(&0) {
        return Err(Failure::Usage("sizes and connections: at least 1".to_owned()));
    }
    let repeats = if args.quick { 1 } else { REPEATS };
    show_head(args);
    let mut table = Vec::new();
    for &object_bytes in &sizes {
        let files = make_files(folder, object_bytes, SET_BYTES)?;
        for &connections in &counts {
            let mut software = None;
            for path in PATHS.into_iter().filter(|path| args.path.is_none_or(|p| p == *path)) {
                let setting = Setting::new(path, connections, object_bytes);
                let m = median(setting, &files, folder, repeats)?;
                let software = *software.get_or_insert_with(|| m.per_byte(m.server.host_cycles));
                show(args, &m, software);
                table.push(m);
            }
        }
    }
    if args.path.is_some() {
        return Ok(());
    }
    let connections = counts.iter().copied().max().unwrap_or(1);
    let object_bytes = sizes.iter().copied().max().unwrap_or(1);
    let setting =
        Setting { breakdown: true, ..Setting::new(Path::Software, connections, object_bytes) };
    let files = make_files(folder, object_bytes, SET_BYTES)?;
    let parts = measure(setting, &files, folder)?;
    let breakdown = json!({
        "server": Measured::shares(&parts.server),
        "client": Measured::shares(&parts.client),
    });
    let threshold = threshold::run(args, folder, repeats)?;
    let headline = headline(&table, connections, object_bytes, &breakdown, &threshold);
    if args.json {
        let rows: Vec<Value> = table.iter().map(Measured::json).collect();
        println!(
            "{:#}",
            json!({
                "headline": headline,
                "breakdown": breakdown,
                "threshold": threshold,
                "rows": rows,
            })
        );
    } else {
        println!("\nin software, shares of the host's cycles: {breakdown:#}");
        println!("headline: {headline:#}");
    }
    Ok(())
}

fn show_head(args: &QuicArgs) {
    if !args.json {
        println!(
            "{:>9} {:>6} {:<11} {:>11} {:>11} {:>11} {:>11} {:>9} {:>8}",
            "object",
            "conns",
            "path",
            "server c/B",
            "client c/B",
            "device c/B",
            "server c/pk",
            "Gbit/s",
            "ratio"
        );
    }
}

fn show(args: &QuicArgs, m: &Measured, software: f64) {
    let Setting { path, connections, object_bytes, .. } = m.setting;
    if args.json {
        eprintln!("{object_bytes} bytes, {connections} connections, {}: done", path.name());
        return;
    }
    println!(
        "{object_bytes:>9} {connections:>6} {:<11} {:>11.3} {:>11.3} {:>11.3} {:>11.0} {:>9.1} \
         {:>7.1}x",
        path.name(),
        m.per_byte(m.server.host_cycles),
        m.per_byte(m.client.host_cycles),
        m.per_byte(m.server.device_cycles),
        m.server.host_cycles as f64 / m.packets as f64,
        m.bytes as f64 * 8.0 / m.elapsed.as_nanos() as f64,
        software / m.per_byte(m.server.host_cycles),
    );
    let _ = std::io::stdout().flush();
}

fn headline(
    table: &[Measured],
    connections: u32,
    bytes: u64,
    breakdown: &Value,
    threshold: &Value,
) -> Value {
    let find = |path| {
        table.iter().find(|m| {
            let s = m.setting;
            s.path == path && s.connections == connections && s.object_bytes == bytes
        })
    };
    let server = |path| find(path).map(|m| m.per_byte(m.server.host_cycles));
    let ratio = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a / b);
    let client = |path| find(path).map(|m| m.per_byte(m.client.host_cycles));
    json!({
        "ratio_all": ratio(server(Path::Software), server(Path::File)),
        "ratio_file": ratio(server(Path::Reorder), server(Path::File)),
        "ratio_client": ratio(client(Path::Software), client(Path::Reorder)),
        "crypto_share_software": breakdown["server"]["crypto"],
        "break_even_bytes": threshold["break_even_bytes"],
    })
}

fn median(
    setting: Setting,
    files: &Files,
    folder: &FsPath,
    repeats: usize,
) -> Result<Measured, Failure> {
    let mut runs = Vec::new();
    for _ in 0..repeats {
        runs.push(measure(setting, files, folder)?);
    }
    runs.sort_by_key(|m| m.server.host_cycles * 1000 / m.bytes);
    Ok(runs.swap_remove(repeats / 2))
}

fn measure(setting: Setting, files: &Files, folder: &FsPath) -> Result<Measured, Failure> {
    let mut world = build(setting, files, folder)?;
    world.start();
    let bytes = |w: &World| w.quic()[1].received().1;
    let failed = |w: &World| !(w.quic()[0].errors.is_empty() && w.quic()[1].errors.is_empty());
    // Until the device has what it is to have, and windows are open.
    let warm = match setting.once {
        true => setting.object_bytes * u64::from(setting.connections),
        false => (setting.object_bytes / 4).max(u64::from(setting.connections) * 2_000_000),
    };
    let mut alive = world.run_until(|w| bytes(w) >= warm || failed(w));
    let (from, before) = (used(&world), counted(&world));
    let lost_before = lost(&world);
    let (objects, at, now) = (world.quic()[1].received().0, bytes(&world), world.now);
    alive = alive && world.run_until(|w| bytes(w) >= at + setting.measured_bytes() || failed(w));
    if !alive || failed(&world) {
        let [server, client] = world.quic();
        let what = server.errors.iter().chain(&client.errors).next().cloned();
        return Err(Failure::System(format!(
            "the benchmark went wrong ({setting:?}): {} {:?}",
            what.unwrap_or_else(|| "nothing left to happen".to_owned()),
            counted(&world),
        )));
    }
    let (to, after) = (used(&world), counted(&world));
    let moved = |name: &str| {
        let get = |all: &std::collections::BTreeMap<&'static str, u64>| {
            all.get(name).copied().unwrap_or_default()
        };
        get(&after).saturating_sub(get(&before))
    };
    let measured = Measured {
        setting,
        bytes: bytes(&world) - at,
        objects: world.quic()[1].received().0 - objects,
        packets: moved("tx_packets"),
        server: to[0].since(&from[0]),
        client: to[1].since(&from[1]),
        elapsed: world.now.since(now),
        // Of connections that are gone it is not known any more.
        lost: lost(&world).saturating_sub(lost_before),
    };
    let [sealed, opened, files] =
        ["quic_tx_sealed", "quic_rx_opened", "quic_file_bytes_offloaded"].map(moved);
    check_path(&measured, sealed, opened, files)?;
    Ok(measured)
}

impl Used {
    const fn since(&self, before: &Self) -> Self {
        Self {
            host_cycles: self.host_cycles - before.host_cycles,
            device_cycles: self.device_cycles - before.device_cycles,
            spent: Spent {
                receiving: self.spent.receiving - before.spent.receiving,
                formatting: self.spent.formatting - before.spent.formatting,
                crypto: self.spent.crypto - before.spent.crypto,
            },
        }
    }
}

fn used(world: &World) -> [Used; 2] {
    let [server, client] = world.quic();
    [(&world.server, server), (&world.client, client)].map(|(node, end)| Used {
        host_cycles: node.cycles.host,
        device_cycles: node.cycles.device,
        spent: end.spent,
    })
}

/// Packets that the server took for lost.
fn lost(world: &World) -> u64 {
    let endpoint = &world.quic()[0].endpoint;
    let paths = endpoint.infos().map(|info| info.stats.path);
    paths.map(|path| path.lost_packets).sum()
}

fn counted(world: &World) -> std::collections::BTreeMap<&'static str, u64> {
    let mut all = world.server_counters();
    world.quic()[0].endpoint.visit(&mut |name, value| {
        all.insert(name, value);
    });
    all
}

/// A silent fallback to software is the characteristic bug: the path that was asked for has to be
/// the one that ran.
fn check_path(m: &Measured, sealed: u64, opened: u64, files: u64) -> Result<(), Failure> {
    let protects = m.setting.path >= Path::Protect;
    let right = match protects {
        false => sealed == 0 && opened == 0,
        // The packets of handshakes are the host's.
        true if m.setting.once => sealed * DATAGRAM_BYTES_MAX >= m.bytes && opened > 0,
        true => sealed * 10 >= m.packets * 9 && opened > 0,
    } && match m.setting.path {
        // A connection begins on the host, and its first bytes were read there.
        Path::File => files * 10 >= m.bytes * 8,
        _ => files == 0,
    };
    if right { Ok(()) } else { Err(Failure::System(format!("the wrong path was measured: {m:?}"))) }
}

fn build(setting: Setting, files: &Files, folder: &FsPath) -> Result<World, Failure> {
    // 100 Gb/s, 25 us each way, as for IO-TCP; what is too much for the rate waits.
    let link_config = LinkConfig {
        delay: Duration::from_micros(25),
        bytes_per_s: Some(12_500_000_000),
        queue_bytes_max: u64::MAX,
        frames_max: 4096,
        ..LinkConfig::default()
    };
    let (server_wire, client_wire) = link(&link_config);
    let tls = tls()?;
    let server = node(setting, &tls, Some(folder), server_wire)?;
    let client = node(setting, &tls, None, client_wire).map(|(node, endpoint, meter)| {
        let at: SocketAddr = ([10, 0, 0, 1], 443).into();
        let tls = Arc::clone(&tls.client);
        let end = QuicEnd::client(
            endpoint,
            at,
            tls,
            (setting.connections, setting.once),
            files.clone(),
            meter,
        );
        node.with_app(App::Quic(Box::new(end)))
    })?;
    let (mut server, endpoint, meter) = server;
    let open = |n: u32| server.host.offload_open(n.to_string());
    let opened: Option<Vec<_>> = (0..files.count).map(open).collect();
    let opened = opened.ok_or_else(|| Failure::System("too many files".to_owned()))?;
    let server = server.with_app(App::Quic(Box::new(QuicEnd::server(
        endpoint,
        Answer::Files(opened),
        meter,
    ))));
    let moderation = Duration::from_micros(10);
    Ok(World { now: Instant::from_millis(1000), moderation, server, client })
}

/// A machine without its application, its endpoint, and what measures its crypto. The server is
/// the one with files.
fn node(
    setting: Setting,
    tls: &Tls,
    files: Option<&FsPath>,
    wire: MemWire,
) -> Result<(Bare, Endpoint, Option<Meter>), Failure> {
    let reorder = Reorder { packets: 64, bytes: 128 * 1024, time: Duration::from_millis(1) };
    let spec = Spec {
        server: files.is_some(),
        protect: setting.path >= Path::Protect,
        reorder: (setting.path >= Path::Reorder).then_some(reorder),
        files,
        device_reads: files.is_some() && setting.path == Path::File,
        receive_windows: None,
        breakdown: setting.breakdown,
        at_once: setting.once,
    };
    machine(&spec, tls, Box::new(wire))
}
