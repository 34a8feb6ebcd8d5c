//! `outboard-lab bench io-tcp`: IO-TCP's evaluation, in accounted mode.
//!
//! 64 to 4,000 connections download files of 10 KB to 1 MB, one after another; for two sizes, also
//! 1 to 16 connections. Host cycles per byte and per request if the device reads and sends the
//! files are compared with the same stack reading them on the host; TCP, checksums and segmentation
//! by the device are the same in both. The same over TLS with 1,000 to 4,000 connections, which the
//! side that reads the files encrypts. Then the effect of the echo and of timestamp correction on a
//! slow disk (IO-TCP sections 3.5 and 5.3).

use base::Duration;
use clap::Args;
use serde_json::{Value, json};

use super::content_pair::{ContentPair, FileSending, content_pair};
use super::cycle_accounting::Usage;
use super::disk::DiskModel;
use super::experiment::{
    self, BenchReport, Benchmark, Experiment, Fields, TempFolder, find_figures, median_by, ratio,
    single_run,
};
use super::testbed::FileSet;
use super::tls_configs::BenchTls;
use cli::Failure;

/// File sizes of IO-TCP, and the 10 KB of its figure 11b.
const SIZES: [u64; 5] = [10_000, 100_000, 300_000, 500_000, 1_000_000];
/// Numbers of connections.
const CONNECTIONS: [u32; 4] = [64, 256, 1_000, 4_000];
/// File sizes and further numbers of connections of IO-TCP's figure 11.
const FEW_CONNECTIONS: ([u64; 2], [u32; 3]) = ([10_000, 300_000], [1, 4, 16]);
/// Numbers of connections with TLS: those of IO-TCP's figure 9.
const TLS_CONNECTIONS: [u32; 3] = [1_000, 2_000, 4_000];
/// Size of files with TLS and on the slow disk, and of the headline, in bytes.
const MAIN_SIZE: u64 = 300_000;
/// Clock rate of a host core of IO-TCP's testbed, in cycles per second.
const HOST_CORE_HZ: f64 = 2.2e9;
/// Runs of each setting; the run with the median host cycles counts.
const REPEATS: usize = 3;
/// Total bytes of all files: more than the device's memory, so that it reads from disk.
const WORKING_SET_BYTES: u64 = 192 << 20;
/// Limit of body bytes to measure over, in full and with `--quick`.
const MEASURED_BYTES_MAX: u64 = 1_500_000_000;
const QUICK_BYTES_MAX: u64 = 400_000_000;
/// A disk whose queueing delay exceeds a retransmission timeout at a thousand connections.
const SLOW_DISK: DiskModel =
    DiskModel { latency: Duration::from_micros(80), bytes_per_s: 250_000_000 };

/// Arguments of `outboard-lab bench io-tcp`.
#[derive(Debug, Args)]
pub(crate) struct IoTcpArgs {
    /// Run only 300 KB with 64 and 1,000 connections, and 4,000 by the device, over fewer bytes
    #[arg(long)]
    quick: bool,
    /// File sizes in bytes [default: all]
    #[arg(long, value_delimiter = ',', value_name = "BYTES")]
    sizes: Option<Vec<u64>>,
    /// Numbers of connections [default: all]
    #[arg(long, value_delimiter = ',', value_name = "N")]
    connections: Option<Vec<u32>>,
}

/// Configuration of one run.
#[derive(Clone, Copy, Debug)]
struct IoTcpSetting {
    size: u64,
    connections: u32,
    /// True for HTTPS.
    is_secure: bool,
    sending: FileSending,
}

/// Result of one run.
#[derive(Debug)]
struct IoTcpFigures {
    requests: u64,
    bytes: u64,
    server: Usage,
    mean_srtt: Duration,
    jain: f64,
}

type IoTcpRow = experiment::ResultRow<IoTcpSetting, IoTcpFigures>;

impl IoTcpFigures {
    fn host_per_byte(&self) -> f64 {
        self.server.cycles.host as f64 / self.bytes as f64
    }

    /// Returns body bytes per second of virtual time: the modeled link's throughput.
    fn link_rate(&self) -> f64 {
        self.bytes as f64 * 1e9 / self.server.elapsed.as_nanos() as f64
    }

    /// Returns the mean time of a request in virtual microseconds: that of link and disk, and no
    /// cycles.
    fn request_us(&self, connections: u32) -> f64 {
        let elapsed_us = self.server.elapsed.as_nanos() as f64 / 1000.0;
        elapsed_us * f64::from(connections) / self.requests as f64
    }

    /// Returns body bytes per second of a server with one host core of IO-TCP's testbed on this
    /// link.
    fn one_core_rate(&self) -> f64 {
        self.link_rate().min(HOST_CORE_HZ / self.host_per_byte())
    }
}

impl Benchmark for IoTcpArgs {
    fn run(&self, report: &mut BenchReport) -> Result<(), Failure> {
        let folder = TempFolder::new();
        let mut files = FileSet::new(folder.path(), WORKING_SET_BYTES);
        let tls = BenchTls::new()?;
        let bytes_max = if self.quick { QUICK_BYTES_MAX } else { MEASURED_BYTES_MAX };
        let mut measure = |setting| measure((setting, bytes_max), &tls, &mut files);
        let rows = report.measure("rows", reading(self.readings(), &mut measure))?;
        report.line("\nHTTPS, encrypted by the side that reads the files:");
        let encrypted = reading(self.encrypted_readings(), &mut measure);
        let encrypted = report.measure("https_rows", encrypted)?;
        report.set("headline", headline(&rows, &encrypted));
        if self.quick || self.sizes.is_some() || self.connections.is_some() {
            report.set("corrections", Vec::<Value>::new());
            return Ok(());
        }
        report.line("\nslow disk, 300 KB, 1,000 connections:");
        let corrections = Experiment {
            groups: corrections(),
            repeats: 1,
            measure: &mut measure,
            took_path: &took_path,
            combine: &single_run,
            fields: &|row, _| {
                let FileSending { echo, correct_timestamps, .. } = row.setting.sending;
                Fields::new()
                    .show("echo", "echo", echo)
                    .show("corrected timestamps", "correct_timestamps", correct_timestamps)
                    .column("srtt us", row.figures.mean_srtt.as_micros())
                    .append(fields(row))
            },
        };
        report.measure("corrections", corrections).map(drop)
    }
}

impl IoTcpArgs {
    /// Returns the settings of the main table: files read by the device, and by the host.
    fn readings(&self) -> Vec<Vec<IoTcpSetting>> {
        let all: (&[u64], &[u32]) =
            if self.quick { (&[300_000], &[64, 1_000]) } else { (&SIZES, &CONNECTIONS) };
        let sizes = self.sizes.as_deref().unwrap_or(all.0);
        let counts = self.connections.as_deref().unwrap_or(all.1);
        let is_whole = !self.quick && self.connections.is_none();
        let few = |size: &u64| is_whole && FEW_CONNECTIONS.0.contains(size);
        let of_size = |size: &u64| {
            let fewer: &[u32] = if few(size) { &FEW_CONNECTIONS.1 } else { &[] };
            let size = *size;
            fewer.iter().chain(counts).map(move |&count| (size, count)).collect::<Vec<_>>()
        };
        let both = sizes.iter().flat_map(of_size);
        let both = both.map(|(size, connections)| both_readers(size, connections, false));
        both.chain(self.quick_many(false)).collect()
    }

    /// Returns the settings with TLS.
    fn encrypted_readings(&self) -> Vec<Vec<IoTcpSetting>> {
        let all: &[u32] = if self.quick { &TLS_CONNECTIONS[..1] } else { &TLS_CONNECTIONS };
        let counts = self.connections.as_deref().unwrap_or(all);
        let sizes = self.sizes.as_deref().unwrap_or(&[MAIN_SIZE]).iter();
        let both = sizes.flat_map(|&size| counts.iter().map(move |&count| (size, count)));
        let both = both.map(|(size, connections)| both_readers(size, connections, true));
        both.chain(self.quick_many(true)).collect()
    }

    /// Returns the setting with many connections that the headline of a quick run needs.
    fn quick_many(&self, is_secure: bool) -> Option<Vec<IoTcpSetting>> {
        let is_wanted = self.quick && self.sizes.is_none() && self.connections.is_none();
        is_wanted.then(|| {
            let sending = FileSending::BY_DEVICE;
            vec![IoTcpSetting { size: MAIN_SIZE, connections: 4_000, is_secure, sending }]
        })
    }
}

/// Returns the experiment with these settings; the run with the median host cycles counts.
fn reading(
    groups: Vec<Vec<IoTcpSetting>>,
    measure: &mut dyn FnMut(IoTcpSetting) -> Result<IoTcpFigures, Failure>,
) -> Experiment<'_, IoTcpSetting, IoTcpFigures> {
    Experiment {
        groups,
        repeats: REPEATS,
        measure,
        took_path: &took_path,
        combine: &|runs| median_by(runs, IoTcpFigures::host_per_byte),
        fields: &|row, _| fields(row),
    }
}

/// Returns the settings of files read by the device, and by the host.
fn both_readers(size: u64, connections: u32, is_secure: bool) -> Vec<IoTcpSetting> {
    let setting = |offload| {
        let sending = FileSending { offload, ..FileSending::BY_DEVICE };
        IoTcpSetting { size, connections, is_secure, sending }
    };
    [true, false].map(setting).into()
}

/// Returns the settings with and without echo and timestamp correction, whose retransmissions,
/// timeouts and round-trip times are compared.
fn corrections() -> Vec<Vec<IoTcpSetting>> {
    let setting = |(echo, correct_timestamps)| {
        let sending = FileSending { offload: true, echo, correct_timestamps, disk: SLOW_DISK };
        vec![IoTcpSetting { size: MAIN_SIZE, connections: 1_000, is_secure: false, sending }]
    };
    [(true, true), (true, false), (false, true), (false, false)].map(setting).into()
}

fn measure(
    (setting, bytes_max): (IoTcpSetting, u64),
    tls: &BenchTls,
    files: &mut FileSet<'_>,
) -> Result<IoTcpFigures, Failure> {
    let IoTcpSetting { size, connections, is_secure, sending } = setting;
    let tls = is_secure.then_some(tls);
    let mut pair = content_pair(sending, tls, connections, files.of_size(size)?, files.folder)?;
    pair.start();
    let warm = u64::from(connections) * 2;
    let wanted = (bytes_max / size).clamp(warm, 20_000);
    pair.run_until(|p| p.client.app.is_warm())?;
    pair.client.app.reset_bytes_per_connection();
    let before = pair.server_usage();
    let (responses, bytes) = (pair.client.app.responses, pair.client.app.body_bytes);
    pair.run_until(|p| p.client.app.responses >= responses + wanted)?;
    Ok(IoTcpFigures {
        requests: pair.client.app.responses - responses,
        bytes: pair.client.app.body_bytes - bytes,
        server: pair.server_usage().since(&before),
        mean_srtt: mean_srtt(&pair),
        jain: jain(&pair.client.app.bytes_per_connection()),
    })
}

fn took_path(setting: IoTcpSetting, figures: &IoTcpFigures) -> bool {
    let by_host = figures.server.moved("file_fallback_bytes") > 0;
    let encrypted = figures.server.moved("tx_tls_encrypted_bytes");
    by_host != setting.sending.offload
        && if setting.is_secure && setting.sending.offload {
            // The rest are headers. Bytes of the client would be others: those on the way.
            encrypted * 10 >= figures.server.moved("tx_bytes") * 9
        } else {
            encrypted == 0
        }
}

fn fields(IoTcpRow { setting, figures }: &IoTcpRow) -> Fields {
    let Usage { cycles, counters, .. } = &figures.server;
    let moved = |name: &str| figures.server.moved(name);
    let per_request = cycles.host as f64 / figures.requests as f64;
    Fields::new()
        .show("file", "file_bytes", setting.size)
        .show("conns", "connections", setting.connections)
        .show("path", "path", if setting.sending.offload { "device" } else { "host-read" })
        .field("requests", figures.requests)
        .field("request_us", figures.request_us(setting.connections))
        .show("host c/B", "host_cycles_per_byte", figures.host_per_byte())
        .show("host c/req", "host_cycles_per_request", per_request)
        .show("dev c/B", "device_cycles_per_byte", cycles.device as f64 / figures.bytes as f64)
        .append(figures.server.allocation_fields(figures.requests as f64))
        .show("Gb/s", "link_gbit_per_s", figures.link_rate() * 8e-9)
        .show("reads", "disk_reads", moved("file_disk_reads"))
        .show("rexmit", "retransmissions", moved("tcp_retrans"))
        .show("timeouts", "timeouts", moved("tcp_timeouts"))
        .field("mean_srtt_us", figures.mean_srtt.as_micros())
        .show("Jain", "jain", figures.jain)
        .counters(counters)
}

fn headline(rows: &[IoTcpRow], encrypted: &[IoTcpRow]) -> Value {
    let find =
        |rows: &[IoTcpRow], offload: bool, connections: u32, read: fn(&IoTcpFigures) -> f64| {
            let found = find_figures(rows, |s| {
                (s.size, s.connections, s.sending.offload) == (MAIN_SIZE, connections, offload)
            });
            found.map(read)
        };
    let per_byte =
        |rows, offload, connections| find(rows, offload, connections, IoTcpFigures::host_per_byte);
    // IO-TCP's figure 9: throughput of a server with one host core.
    let rate = |rows, connections| find(rows, true, connections, IoTcpFigures::one_core_rate);
    let loss = |rows| ratio(rate(rows, 4_000), rate(rows, 1_000)).map(|left| 1.0 - left);
    let vs_host = |rows| ratio(per_byte(rows, true, 1_000), per_byte(rows, false, 1_000));
    let growth = |rows| ratio(per_byte(rows, true, 4_000), per_byte(rows, true, 1_000));
    json!({
        "host_cycles_per_byte_300k": per_byte(rows, true, 1_000),
        "ratio_vs_host_read_300k": vs_host(rows),
        "loss_at_4000_connections": loss(rows),
        "host_cycles_at_4000_over_1000_connections": growth(rows),
        "https_host_cycles_per_byte_300k": per_byte(encrypted, true, 1_000),
        "https_ratio_vs_host_read_300k": vs_host(encrypted),
        "https_loss_at_4000_connections": loss(encrypted),
        "https_host_cycles_at_4000_over_1000_connections": growth(encrypted),
    })
}

/// Returns the mean smoothed round-trip time of the server's connections.
fn mean_srtt(pair: &ContentPair) -> Duration {
    let host = &pair.server.host.host;
    let infos = host.sockets().filter_map(|socket| host.info(socket));
    let srtts: Vec<u64> = infos.map(|info| info.srtt.as_nanos()).collect();
    Duration::from_nanos(srtts.iter().sum::<u64>() / srtts.len().max(1) as u64)
}

/// Returns Jain's fairness index over the bytes that each connection received.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|x| x * x).sum();
    sum * sum / (shares.len() as f64 * squares)
}
