//! `outboard-lab bench quic`: host cycles of QUIC, with and without the device (NiQUIC section 2.2;
//! IO-TCP appendix A), in accounted mode.
//!
//! Downloads of 50 MB and of 10 KB on 1 to 64 connections. Server and client are the same program,
//! quinn-proto over our stack, and both are measured: the server encrypts and sends files; the
//! client decrypts, reorders and acknowledges. Four paths, each of which adds to the one before:
//! all in software; packet protection by the device; reordering by the device; files read by the
//! device. A fifth row is the bound that the offload cannot pass: quinn-proto alone
//! ([`quinn_alone`]). Then larger and smaller datagrams; the breakdown of cycles on the software
//! path, as in NiQUIC's figure 2; and the number of bytes from which offload of a connection pays
//! ([`threshold`]).

mod quinn_alone;
mod threshold;

use std::path::Path as FsPath;

use abi::quic::QuicReorderBounds;
use base::Duration;
use clap::{Args, ValueEnum as _};
use io::memory_link::{MemoryLinkConfig, memory_link_pair};
use serde_json::{Value, json};

use super::cycle_accounting::{AccountedPair, Allocations, Cycles, Usage};
use super::experiment::{
    self, BenchReport, Benchmark, Experiment, Fields, TempFolder, find_figures, median_by, ratio,
    single_run,
};
use super::quic_pair::{QuicCycles, QuicMachineSpec, QuicPair, QuicServerContent, client, server};
use super::testbed::{self, FileSet, Files};
use super::tls_configs::BenchTls;
use cli::Failure;
use quinn_alone::QuinnTransfer;

/// Object sizes in bytes: NiQUIC's transfer, and many small ones.
const SIZES: [u64; 2] = [50_000_000, 10_000];
/// Numbers of connections.
const CONNECTIONS: [u32; 4] = [1, 4, 16, 64];
/// Runs of each setting; the run with the median host cycles counts.
const REPEATS: usize = 3;
/// Object bytes to measure over.
const MEASURED_BYTES: u64 = 200_000_000;
/// Target of the total bytes of all files.
const SET_BYTES: u64 = 1_000_000;
/// Slots of the transmit ring.
const TRANSMIT_RING: usize = 4096;
/// Interrupt moderation: events within this time are handled together.
const MODERATION: Duration = Duration::from_micros(10);
/// MTU of the link if none is given: that of Ethernet.
const MTU: u16 = 1500;
/// MTUs of the table of datagram sizes: path MTU discovery ends at 1,252, 1,452, 8,952 and 65,487
/// bytes of UDP payload.
const MTUS: [u16; 4] = [1300, MTU, 9000, u16::MAX];
/// Minimum size of an object whose request costs little, so that a row of quinn-proto alone, which
/// has no requests, is comparable.
const LARGE_OBJECT_BYTES: u64 = 1_000_000;

/// Arguments of `outboard-lab bench quic`.
#[derive(Debug, Args)]
pub(crate) struct QuicArgs {
    /// Run only 50 MB on 1 and 16 connections, once each
    #[arg(long)]
    quick: bool,
    /// Object sizes in bytes [default: all]
    #[arg(long, value_delimiter = ',', value_name = "BYTES")]
    sizes: Option<Vec<u64>>,
    /// Numbers of connections [default: all]
    #[arg(long, value_delimiter = ',', value_name = "N")]
    connections: Option<Vec<u32>>,
    /// Measure only one path, without ratios, such as for profiling
    #[arg(long, value_enum, value_name = "PATH")]
    path: Option<QuicPath>,
    /// Measure over a link of this MTU, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = MTU,
        value_parser = clap::value_parser!(u16).range(1280..))]
    mtu: u16,
}

/// Work that the device does; each path includes the ones before it. The last one has no device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
enum QuicPath {
    Software,
    Protect,
    Reorder,
    File,
    /// quinn-proto without crypto, host stack, I/O and device
    QuinnProto,
}

impl QuicPath {
    const fn name(self) -> &'static str {
        match self {
            Self::Software => "software",
            Self::Protect => "protection",
            Self::Reorder => "+ reordering",
            Self::File => "+ files",
            Self::QuinnProto => "quinn-proto alone",
        }
    }
}

/// Configuration of one run.
#[derive(Clone, Copy, Debug)]
struct QuicSetting {
    path: QuicPath,
    connections: u32,
    object_bytes: u64,
    /// MTU of the link.
    mtu: u16,
    /// True if cycles are attributed to kinds of work.
    breakdown: bool,
    /// True if each object has a connection of its own, offloaded to the device from its first
    /// byte.
    connection_per_object: bool,
}

impl QuicSetting {
    /// Returns a setting with persistent connections, without a breakdown.
    const fn new(path: QuicPath, connections: u32, object_bytes: u64) -> Self {
        Self {
            path,
            connections,
            object_bytes,
            mtu: MTU,
            breakdown: false,
            connection_per_object: false,
        }
    }

    /// Returns the object bytes before the measurement: until offload has begun and windows are
    /// open.
    fn warm_bytes(&self) -> u64 {
        match self.connection_per_object {
            true => self.object_bytes * u64::from(self.connections),
            false => (self.object_bytes / 4).max(u64::from(self.connections) * 2_000_000),
        }
    }

    /// Returns the object bytes to measure over.
    const fn measured_bytes(&self) -> u64 {
        if self.connection_per_object {
            self.object_bytes * threshold::CONNECTIONS
        } else {
            MEASURED_BYTES
        }
    }
}

/// Result of one run.
#[derive(Debug)]
struct QuicFigures {
    bytes: u64,
    objects: u64,
    server: QuicEndUsage,
    client: QuicEndUsage,
    lost: u64,
}

/// Resources that one end of a run used.
#[derive(Debug)]
struct QuicEndUsage {
    machine: Usage,
    spent: QuicCycles,
}

type QuicRow = experiment::ResultRow<QuicSetting, QuicFigures>;

impl QuicFigures {
    fn host_per_byte(&self, used: &QuicEndUsage) -> f64 {
        used.machine.cycles.host as f64 / self.bytes as f64
    }

    fn host_per_object(&self) -> f64 {
        self.server.machine.cycles.host as f64 / self.objects.max(1) as f64
    }

    /// Returns the number of packets that the server's device sent.
    fn packets(&self) -> u64 {
        self.server.machine.moved("tx_packets")
    }

    fn json(&self, used: &QuicEndUsage) -> Value {
        let cycles = used.machine.cycles;
        json!({
            "host_cycles_per_byte": self.host_per_byte(used),
            "host_cycles_per_packet": cycles.host as f64 / self.packets() as f64,
            "host_cycles_per_object": cycles.host as f64 / self.objects.max(1) as f64,
            "device_cycles_per_byte": cycles.device as f64 / self.bytes as f64,
        })
    }
}

impl QuicEndUsage {
    /// Returns the resources that server and client have used until now.
    fn by_now(pair: &QuicPair) -> [Self; 2] {
        [
            Self { machine: pair.server_usage(), spent: pair.server.app.spent },
            Self { machine: pair.client_usage(), spent: pair.client.app.spent },
        ]
    }

    fn since(self, before: &Self) -> Self {
        let machine = self.machine.since(&before.machine);
        Self { machine, spent: self.spent.since(before.spent) }
    }

    /// Returns the shares of host cycles: crypto, packet I/O, formatting, acknowledgments and
    /// ordering.
    fn shares(&self) -> Value {
        let QuicCycles { receiving, formatting, crypto } = self.spent;
        let host = self.machine.cycles.host;
        let io = host.saturating_sub(receiving + formatting + crypto);
        let share = |cycles: u64| cycles as f64 / host as f64;
        json!({
            "crypto": share(crypto),
            "packet_io": share(io),
            "formatting": share(formatting),
            "acknowledgment_and_order": share(receiving),
        })
    }
}

impl Benchmark for QuicArgs {
    fn run(&self, report: &mut BenchReport) -> Result<(), Failure> {
        let (sizes, counts) = self.sizes_and_counts()?;
        let repeats = if self.quick { 1 } else { REPEATS };
        let folder = TempFolder::new();
        let mut files = FileSet::new(folder.path(), SET_BYTES);
        let mut experiment = |report: &mut BenchReport, field: &str, groups, repeats| {
            let experiment = Experiment {
                groups,
                repeats,
                measure: &mut |setting| measure(setting, &mut files),
                took_path: &took_path,
                combine: &|runs| {
                    median_by(runs, |run: &QuicFigures| run.host_per_byte(&run.server))
                },
                fields: &fields,
            };
            report.measure(field, experiment)
        };
        let rows = experiment(report, "rows", self.groups(&sizes, &counts), repeats)?;
        if self.path.is_some() {
            return Ok(());
        }
        let most = counts.iter().copied().max().unwrap_or(1);
        let largest = sizes.iter().copied().max().unwrap_or(1);
        report.line("\ndatagrams of other sizes:");
        let groups = mtu_groups(most, largest);
        let by_mtu = experiment(report, "datagram_sizes", groups, repeats)?;
        report.line("\nsoftware path, with shares of host cycles:");
        let setting =
            QuicSetting { breakdown: true, ..QuicSetting::new(QuicPath::Software, most, largest) };
        let parts = single_run(experiment(report, "breakdown", vec![vec![setting]], 1)?).figures;
        let breakdown = json!({ "server": parts.server.shares(), "client": parts.client.shares() });
        report.line(format!("{breakdown:#}\n\none connection per object:"));
        let once = experiment(report, "threshold", threshold::groups(), repeats)?;
        let threshold = threshold::find(&once);
        let mut headline = headline(&rows, self.mtu, most, largest);
        headline["ratio_all_mtu_9000"] = ratios(&by_mtu, 9000, most, largest).0.into();
        headline["crypto_share_software"] = breakdown["server"]["crypto"].clone();
        headline["break_even_bytes"] = threshold["break_even_bytes"].clone();
        report.set("headline", headline);
        report.set("breakdown", breakdown);
        report.set("threshold", threshold);
        Ok(())
    }
}

impl QuicArgs {
    fn sizes_and_counts(&self) -> Result<(Vec<u64>, Vec<u32>), Failure> {
        let (sizes, counts) = match self.quick {
            true => (&SIZES[..1], &[1, 16][..]),
            false => (&SIZES[..], &CONNECTIONS[..]),
        };
        let sizes = self.sizes.clone().unwrap_or_else(|| sizes.to_vec());
        let counts = self.connections.clone().unwrap_or_else(|| counts.to_vec());
        if sizes.contains(&0) || counts.contains(&0) {
            return Err(Failure::Usage("--sizes and --connections must be at least 1".to_owned()));
        }
        Ok((sizes, counts))
    }

    /// Returns all paths for each size and number of connections.
    fn groups(&self, sizes: &[u64], counts: &[u32]) -> Vec<Vec<QuicSetting>> {
        let paths = QuicPath::value_variants().iter().copied();
        let paths: Vec<QuicPath> =
            paths.filter(|&p| self.path.is_none_or(|path| path == p)).collect();
        let both = sizes.iter().flat_map(|&size| counts.iter().map(move |&count| (size, count)));
        let group = |(size, count)| {
            let paths = paths.iter().filter(|&&path| is_comparable(path, size));
            let setting =
                |&path| QuicSetting { mtu: self.mtu, ..QuicSetting::new(path, count, size) };
            paths.map(setting).collect()
        };
        both.map(group).collect()
    }
}

/// Returns groups for datagram sizes: without offload, with all of it, and quinn-proto alone.
fn mtu_groups(connections: u32, object_bytes: u64) -> Vec<Vec<QuicSetting>> {
    let group = |mtu| {
        let paths = [QuicPath::Software, QuicPath::File, QuicPath::QuinnProto];
        let paths = paths.into_iter().filter(|&path| is_comparable(path, object_bytes));
        let setting =
            |path| QuicSetting { mtu, ..QuicSetting::new(path, connections, object_bytes) };
        paths.map(setting).collect()
    };
    MTUS.map(group).into()
}

/// Returns whether a path can be compared at this object size.
fn is_comparable(path: QuicPath, object_bytes: u64) -> bool {
    path != QuicPath::QuinnProto || object_bytes >= LARGE_OBJECT_BYTES
}

/// Returns the server's cost of the software path, divided by that of all offloads, and by that of
/// quinn-proto alone.
fn ratios(
    rows: &[QuicRow],
    mtu: u16,
    connections: u32,
    object_bytes: u64,
) -> (Option<f64>, Option<f64>) {
    let server = |path| {
        let wanted = (path, mtu, connections, object_bytes);
        let found =
            find_figures(rows, |s| (s.path, s.mtu, s.connections, s.object_bytes) == wanted);
        found.map(|figures| figures.host_per_byte(&figures.server))
    };
    let software = server(QuicPath::Software);
    (ratio(software, server(QuicPath::File)), ratio(software, server(QuicPath::QuinnProto)))
}

fn headline(rows: &[QuicRow], mtu: u16, connections: u32, object_bytes: u64) -> Value {
    let find = |path| {
        let wanted = (path, connections, object_bytes);
        find_figures(rows, |s| (s.path, s.connections, s.object_bytes) == wanted)
    };
    let server = |path| find(path).map(|figures| figures.host_per_byte(&figures.server));
    let client = |path| find(path).map(|figures| figures.host_per_byte(&figures.client));
    let (ratio_all, ratio_bound) = ratios(rows, mtu, connections, object_bytes);
    json!({
        "ratio_all": ratio_all,
        "ratio_bound": ratio_bound,
        "ratio_file": ratio(server(QuicPath::Reorder), server(QuicPath::File)),
        "ratio_client": ratio(client(QuicPath::Software), client(QuicPath::Reorder)),
        "ratio_client_bound": ratio(client(QuicPath::Software), client(QuicPath::QuinnProto)),
        "quinn_server_cycles_per_byte": server(QuicPath::QuinnProto),
        "quinn_client_cycles_per_byte": client(QuicPath::QuinnProto),
    })
}

/// Measures quinn-proto alone, whose cycles are reported as those of two hosts.
fn measure_quinn(setting: QuicSetting) -> Result<QuicFigures, Failure> {
    let cost = quinn_alone::measure(&QuinnTransfer {
        connections: setting.connections,
        mtu: setting.mtu,
        warm_bytes: setting.warm_bytes(),
        measured_bytes: setting.measured_bytes(),
    })?;
    let elapsed = Duration::from_nanos(u64::try_from(cost.elapsed.as_nanos()).unwrap_or(u64::MAX));
    let usage = |host| QuicEndUsage {
        machine: Usage {
            elapsed,
            cycles: Cycles { host, ..Cycles::default() },
            allocations: Allocations::default(),
            host_packets: cost.packets,
            device_packets: 0,
            counters: [("tx_packets", cost.packets)].into(),
        },
        spent: QuicCycles::default(),
    };
    Ok(QuicFigures {
        bytes: cost.bytes,
        objects: cost.bytes / setting.object_bytes,
        server: usage(cost.server_cycles),
        client: usage(cost.client_cycles),
        lost: 0,
    })
}

fn measure(setting: QuicSetting, files: &mut FileSet<'_>) -> Result<QuicFigures, Failure> {
    if setting.path == QuicPath::QuinnProto {
        return measure_quinn(setting);
    }
    let mut pair = build(setting, files.of_size(setting.object_bytes)?, files.folder)?;
    pair.start();
    let bytes = |p: &QuicPair| p.client.app.received().1;
    pair.run_until(|p| bytes(p) >= setting.warm_bytes())?;
    let (before, lost_before) = (QuicEndUsage::by_now(&pair), lost(&pair));
    let (objects, from) = pair.client.app.received();
    pair.run_until(|p| bytes(p) >= from + setting.measured_bytes())?;
    let [server, client] = QuicEndUsage::by_now(&pair);
    Ok(QuicFigures {
        bytes: bytes(&pair) - from,
        objects: pair.client.app.received().0 - objects,
        server: server.since(&before[0]),
        client: client.since(&before[1]),
        // The losses of connections that have ended are no longer known.
        lost: lost(&pair).saturating_sub(lost_before),
    })
}

fn took_path(setting: QuicSetting, figures: &QuicFigures) -> bool {
    if setting.path == QuicPath::QuinnProto {
        return figures.bytes >= setting.measured_bytes();
    }
    let moved = |name: &str| figures.server.machine.moved(name);
    let (sealed, opened) = (moved("quic_tx_sealed"), moved("quic_rx_opened"));
    let files = moved("quic_file_bytes_offloaded");
    let protected = match setting.path >= QuicPath::Protect {
        false => sealed == 0 && opened == 0,
        // The host protects the packets of handshakes.
        true if setting.connection_per_object => {
            sealed * u64::from(setting.mtu) >= figures.bytes && opened > 0
        }
        true => sealed * 10 >= figures.packets() * 9 && opened > 0,
    };
    let read = match setting.path {
        // A connection begins on the host, which reads its first bytes.
        QuicPath::File => files * 10 >= figures.bytes * 8,
        _ => files == 0,
    };
    protected && read
}

fn fields(QuicRow { setting, figures }: &QuicRow, software: &QuicRow) -> Fields {
    let QuicFigures { server, client, .. } = figures;
    let per_byte = |row: &QuicFigures| row.host_per_byte(&row.server);
    let nanos = server.machine.elapsed.as_nanos() as f64;
    let device_per_byte = server.machine.cycles.device as f64 / figures.bytes as f64;
    Fields::new()
        .show("object", "object_bytes", setting.object_bytes)
        .show("conns", "connections", setting.connections)
        .show("MTU", "mtu", setting.mtu)
        .show("path", "path", setting.path.name())
        .column("server c/B", per_byte(figures))
        .column("client c/B", figures.host_per_byte(client))
        .column("device c/B", device_per_byte)
        .column("server c/object", figures.host_per_object())
        .show("Gbit/s", "link_gbit_per_s", figures.bytes as f64 * 8.0 / nanos)
        .column("ratio", per_byte(&software.figures) / per_byte(figures))
        .field("objects", figures.objects)
        .show("packets", "packets", figures.packets())
        .field("lost_packets", figures.lost)
        .field("server", figures.json(server))
        .field("client", figures.json(client))
}

/// Returns the number of packets that the server declared lost.
fn lost(pair: &QuicPair) -> u64 {
    let paths = pair.server.app.endpoint.infos().map(|info| info.stats.path);
    paths.map(|path| path.lost_packets).sum()
}

/// Returns the two machines of a run.
fn build(setting: QuicSetting, files: Files, folder: &FsPath) -> Result<QuicPair, Failure> {
    let link = MemoryLinkConfig { mtu: setting.mtu, ..testbed::link_config(TRANSMIT_RING) };
    let (server_link, client_link) = memory_link_pair(&link);
    let tls = BenchTls::new()?;
    let reorder =
        QuicReorderBounds { packets: 64, bytes: 128 * 1024, time: Duration::from_millis(1) };
    let spec = QuicMachineSpec {
        protect: setting.path >= QuicPath::Protect,
        reorder: (setting.path >= QuicPath::Reorder).then_some(reorder),
        breakdown: setting.breakdown,
        offload_from_first_byte: setting.connection_per_object,
        ..QuicMachineSpec::default()
    };
    let device_reads = setting.path == QuicPath::File;
    let serving = QuicMachineSpec { files: Some(folder), device_reads, ..spec };
    let server = server(&serving, &tls, Box::new(server_link), |host| {
        let opened = (0..files.count).map(|n| host.offload_open(n.to_string()));
        let opened: Option<Vec<_>> = opened.collect();
        opened
            .map(QuicServerContent::Files)
            .ok_or_else(|| Failure::System("too many files".to_owned()))
    })?;
    let connections = (setting.connections, setting.connection_per_object);
    let client = client(&spec, &tls, Box::new(client_link), connections, files)?;
    Ok(AccountedPair::new(server, client, MODERATION))
}
